//! What was seen to happen, so that a model can say that it did not hold for lack of events.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! marks {
    ($($(#[$doc:meta])* $mark:ident)*) => {
        /// Something that happens on the way from one state to the next.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Mark {
            $($(#[$doc])* $mark),*
        }

        impl Mark {
            const ALL: &[Self] = &[$(Self::$mark),*];
        }
    };
}

marks! {
    /// A vote was given.
    Vote
    /// A vote was refused because of a promise.
    PromiseKept
    /// A vote was refused because of the silence after a start.
    Silence
    /// A leader of term 2 or later was elected.
    LaterLeader
    /// A leader was elected to whom the one before had handed over.
    HandedOver
    /// The lease of term 1 could be trusted.
    Lease
    /// So could one of a later term.
    LaterLease
    /// A lease that could be trusted was taken back.
    LeaseTakenBack
    /// A leader released the promises made to it.
    Release
    /// Something was committed after the beginning.
    Commit
    /// A session answered a read whose lease it had checked after a while.
    LateAnswer
    /// A session did not answer, though its lease was good: its snapshot was too old.
    SnapshotTooOld
    /// A read was permitted by a quorum.
    QuorumRead
    /// Something was known of how old a state is.
    Age
    /// A leader granted a read lease, or renewed one.
    Granted
    /// A read lease could be trusted.
    ReadLease
    /// A holder could answer a read by its read lease.
    HeldRead
    /// It could not: it had not applied what it has acknowledged.
    HeldReadWaits
    /// A read lease was given back.
    Returned
    /// A quorum held what was not committed, because a holder had not acknowledged it.
    HeldBack
    /// A whole state was installed.
    Installed
    /// Something was committed that one who asks for read leases did not have.
    CommitWithoutHolder
    /// A hand-over waited for nothing but a read lease.
    TransferWaits
    /// Who leaves a joint configuration waited for nothing but a read lease.
    ChangeWaits
    /// A leader stopped and released no promise.
    ReleaseWithheld
    /// A member lost everything that was on its disk.
    Wiped
    /// A process ended while something that it had wanted written was not.
    WriteLost
}

/// How often each happened, and in which step first.
#[derive(Debug)]
pub(crate) struct Marks {
    counts: [AtomicU64; Mark::ALL.len()],
    first: [AtomicU64; Mark::ALL.len()],
    /// The step that is being taken, from the beginning of the model.
    step: AtomicU64,
    /// How many were taken that far from the beginning.
    taken: [AtomicU64; 64],
    /// The place of every planted bug was come to.
    #[cfg(leasehold_bugs)]
    all_reached: std::sync::atomic::AtomicBool,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU64::new(0) }; Mark::ALL.len()],
            first: [const { AtomicU64::new(u64::MAX) }; Mark::ALL.len()],
            step: AtomicU64::new(0),
            taken: [const { AtomicU64::new(0) }; 64],
            #[cfg(leasehold_bugs)]
            all_reached: false.into(),
        }
    }
}

impl Marks {
    pub(crate) fn note(&self, mark: Mark) {
        self.counts[mark as usize].fetch_add(1, Ordering::Relaxed);
        let step = self.step.load(Ordering::Relaxed);
        self.first[mark as usize].fetch_min(step, Ordering::Relaxed);
    }

    /// A step is taken, so many after the beginning.
    pub(crate) fn begin_step(&self, step: u8) {
        self.step.store(step.into(), Ordering::Relaxed);
        self.taken[usize::from(step).min(63)].fetch_add(1, Ordering::Relaxed);
    }

    /// Steps taken that far from the beginning, for each distance.
    pub(crate) fn taken(&self) -> Vec<u64> {
        let taken = self.taken.iter().map(|taken| taken.load(Ordering::Relaxed));
        taken.collect()
    }

    #[cfg(leasehold_bugs)]
    pub(crate) fn note_all_reached(&self) {
        self.all_reached.store(true, Ordering::Relaxed);
    }

    #[cfg(leasehold_bugs)]
    pub(crate) fn all_reached(&self) -> bool {
        self.all_reached.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, mark: Mark) -> u64 {
        self.counts[mark as usize].load(Ordering::Relaxed)
    }
}

impl fmt::Display for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for mark in Mark::ALL {
            let count = self.count(*mark);
            if count > 0 {
                let first = self.first[*mark as usize].load(Ordering::Relaxed);
                write!(f, "{between}{mark:?} {count} (from step {first})")?;
                between = ", ";
            }
        }
        Ok(())
    }
}
