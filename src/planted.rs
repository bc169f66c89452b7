//! Deliberate bugs, to prove the provers: compiled under `--cfg leasehold_bugs` only.
//!
//! Each [`Bug`] takes one rule away (of the lease protocol, of Raft, or of what stands around
//! them), at the one place that keeps it: `if planted!(AckTime)`. In a normal build that macro is
//! the word `false`, and this module is not there. The tests insist that every bug is noticed:
//! `tests/sim/bugs.rs` by seeds and by schedules told by name, `planted/tests.rs` by the
//! conversations and tests of the library that a rule has to itself.
//!
//! Bugs are switched per thread, so that runs side by side can each have their own. A whole test
//! binary gets them from the environment, to see by hand what notices:
//!
//! ```text
//! LEASEHOLD_BUGS=OldTermAck,RoundsStartOver RUSTFLAGS='--cfg leasehold_bugs' \
//!     cargo test --target-dir target/bugs --no-default-features --lib
//! ```

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;

/// Whether a bug is switched on; or what it does, if it is.
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_on($crate::planted::Bug::$bug)
    };
    ($bug:ident => $does:expr) => {
        if $crate::planted::is_on($crate::planted::Bug::$bug) {
            $does
        }
    };
}

/// Bugs, as bits.
type Bits = u128;

thread_local! {
    static ON: Cell<Bits> = Cell::new(from_environment());
    /// Bugs whose place was come to, on or not.
    static REACHED: Cell<Bits> = const { Cell::new(0) };
}

/// Whether `bug` is switched on in this thread. Its place counts as reached.
pub fn is_on(bug: Bug) -> bool {
    REACHED.set(REACHED.get() | bit(bug));
    ON.get() & bit(bug) != 0
}

/// Whether this thread has come to the place of `bug` since it last planted something: what is
/// never reached cannot be found.
pub fn was_reached(bug: Bug) -> bool {
    REACHED.get() & bit(bug) != 0
}

/// Switches exactly `bugs` on in this thread, until the result is dropped.
#[must_use = "the bugs go with it"]
pub fn plant(bugs: &[Bug]) -> Planted {
    REACHED.set(0);
    let before = ON.replace(bugs.iter().fold(0, |on, bug| on | bit(*bug)));
    Planted { before }
}

/// Bugs that are switched on; see [`plant`].
#[derive(Debug)]
pub struct Planted {
    before: Bits,
}

impl Drop for Planted {
    fn drop(&mut self) {
        ON.set(self.before);
    }
}

fn bit(bug: Bug) -> Bits {
    1 << bug as u32
}

fn from_environment() -> Bits {
    let Ok(names) = std::env::var("LEASEHOLD_BUGS") else {
        return 0;
    };
    let names = names.split(',').filter(|name| !name.is_empty());
    names.fold(0, |on, name| {
        let bug = Bug::named(name).unwrap_or_else(|| panic!("LEASEHOLD_BUGS: no bug `{name}`"));
        on | bit(bug)
    })
}

macro_rules! bugs {
    ($($bug:ident $rule:literal $what:literal)*) => {
        /// A rule that can be taken away.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "`what` says it")]
        pub enum Bug {
            $($bug),*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$bug),*];

            /// The rule that it takes away, by its name in the documents.
            pub fn rule(self) -> &'static str {
                match self {
                    $(Self::$bug => $rule),*
                }
            }

            /// What it does wrong.
            pub fn what(self) -> &'static str {
                match self {
                    $(Self::$bug => $what),*
                }
            }
        }
    };
}

impl Bug {
    /// The bug of that name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter().copied();
        all.find(|bug| bug.to_string() == name)
    }
}

impl fmt::Display for Bug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

const _: () = assert!(Bug::ALL.len() <= Bits::BITS as usize);

bugs! {
    // Measuring the interval.
    AckTime "P1" "the lease counts from the acknowledgement of its round"
    RoundStampedLate "P28, R1" "a round's time is that of the next heartbeat, after its name is out"
    NoBlackout "P2" "votes at once after a start"
    HalfBlackout "P2" "keeps silent for half as long after a start"
    OwnBlackout "P3" "keeps silent for its own promise after a start, not the longest it made"
    FloorNotRaised "P3, P34" "does not write down that it promises longer than ever before"
    FirstBootSpeaks "A3" "a node without a log and a vote does not keep silent"
    SelfCampaign "P4" "its own timer does not ask its promise"
    PreVoteUngated "P4" "grants pre-votes whatever it has promised"
    CachedNow "P5, R2" "the driver's reading is from before it took the batch"
    CachedCheckClock "P5, R5" "a session checks the lease with the driver's last reading"

    // Keeping the promise.
    PromiseDropped "P6" "a new term ends the promise"
    PreVoteOnly "P7" "the gate is asked for pre-votes only"
    CandidacyGoesOn "P8" "a pre-candidate promises a leader and goes on asking"
    UncheckedCampaign "P8" "the gate is not asked again before the campaign"
    NoBurn "P9" "the lease survives the word to the next leader"
    ResumeBurn "P9" "the lease comes back when a transfer is given up"
    StickyTransferFlag "P10" "the authority of a transfer is kept, and good for any term"
    LateTransferWord "P10" "the word of an earlier term to campaign is obeyed"
    TransferUnequal "4.3" "whoever is told to campaign does not look whether it has everything"
    TransferHurried "4.3" "the word is given before the target has everything"
    TransferPostponesStepDown "P11" "every transfer counts as a quorum heard"
    NoStepDown "P12" "a leader without a quorum stays, and goes on beating"
    VotePromiseNotMade "4.3" "an authorised vote says that it promises, and does not"
    VotesArePromises "4.3" "every vote counts as a promise to the new leader"
    PromiseShortened "5.4" "a shorter promise replaces a longer one"
    PromiseOwnLength "P34" "promises its own length instead of the one asked for"

    // Who counts.
    KeepExpiry "P13" "a smaller lease than before is not published"
    JointHalf "P13" "a joint configuration decides by its new half alone"
    LearnersCount "P14" "learners count"
    AckFromEntry "P15" "who enters counts as having promised the newest round"
    LoneLeaseForever "P16" "a lone voter's lease never ends"

    // Clocks.
    RawClockOnly "P17" "the lease is judged by the raw clock alone"
    BootClockOnly "P17" "the lease is judged by the boot clock alone"
    EitherClockEndsPromise "P17" "a promise is over when one clock says so"
    NoMargin "P18" "the leader trusts the promise to its end"
    UncheckedTiming "P18, A6" "settings without a margin for the drift are accepted"
    StepBackIgnored "A4" "a clock that ran backwards goes unnoticed"

    // The read.
    MemoizedCheck "P20" "a permit is used again for 20 ms"
    OlderSnapshot "P20" "a read is answered from the state that the one before it saw"
    OlderCommit "P20, P21" "the commit index is from before the requests arrived"
    LateArrivals "A1" "what arrives after the batch was closed is answered with it"
    AppliedReadLater "A9" "the applied index is read after the snapshot, not in it"
    RevisionReadLater "A10" "the revision in the header is newer than what was read"
    PermitIndexIgnored "P21, A7" "the reader does not look whether its state has the permit's index"
    CommitNotCaptured "P21" "a leased read asks for nothing but the floor"
    ReadUnapplied "P21" "a permitted read does not wait until its index is applied"
    CommitPublishedLate "P21" "the commit index is published after what follows from it is out"
    LeaseReadyAtOnce "P22" "a new leader serves before it has applied what it was elected with"
    LeaseReadyByCommit "A8" "a new leader serves once that is committed, applied or not"
    NoFloor "A7" "a permit does not ask for what the leader was elected with"
    QuorumReadNoFloor "A7" "a quorum read does not ask for what the leader was elected with"
    QuorumReadUnready "A7, A8" "quorum reads are permitted before the leader is ready"
    QuorumReadOldRound "5.5" "a quorum read rests on a round from before it arrived"
    AnswerOfApplied "A11" "a leader tells followers what it has applied instead of what is committed"
    AnswerUnconfirmed "4.4" "a leader answers followers whether its lease holds or not"
    AnswerServesLater "4.4" "the answer to a question serves reads that came after it was put"
    FreshUnconfirmed "4.4" "a leader says how fresh it is whether its lease holds or not"
    NamesRepeat "4.4" "names of a follower's questions repeat after a restart"
    AgeOfNewestName "4.4" "a state is as young as the last question, answered or not"
    AgeUnapplied "4.4" "what is committed counts for the age of a state that has not applied it"
    AgeBySlowerClock "A5" "an age is told by the slower clock, as if no clock were too slow"
    AgeOverStepBack "A4" "ages are told on after a clock ran backwards"
    LeaderAgeIsNow "5.5" "a leader's state is as old as its last look, not as its last quorum"
    MinRevisionIgnored "5.8" "a read that says what was seen is shown less"
    NoOwnSuccession "P9" "a leader that failed to hand over goes on without a lease"
    StepDownKeepsLease "P23" "the shared cell is not voided by stepping down"
    LeaderVotes "P23" "a leader whose lease holds votes for another"
    LeaseUntilStepDown "P24" "the lease holds until the leader finds out that it has no quorum"

    // Messages.
    AnyAckIsNewest "P25" "an answer counts for the newest round, whichever it names"
    UnknownRoundIsNow "P25" "an answer that names an unknown round counts for the newest"
    RoundsStartOver "P25, P26" "names of rounds start over with every leadership"
    RoundsRepeat "P33" "names of rounds repeat after a restart"
    OldTermAck "P26" "answers to an earlier term of the same leader count"
    RejectUnpromised "P27" "an append that does not fit is said to be promised, and is not"
    SilentDiskPromises "P29" "a voter whose disk is silent goes on promising"
    SilentDiskLeads "P29" "a leader whose disk is silent stays"
    TimeFirst "P29, A2" "the tick is handled before the messages of its batch"

    // Lifecycle.
    VoteBeforeSync "P33" "a vote is given before it is durable"
    OwnVoteBeforeSync "P33" "a candidate's own vote counts before it is durable"
    PromiseBeforeSync "P33, P34" "a promise is told before term and longest promise are durable"
    VoteForgotten "P33" "a restart forgets the vote"
    VoteToctou "P38" "while a vote is written, the leader of the term before is still promised"
    ReleaseWhileServing "P36" "a retiring leader releases the promises and keeps its lease"
    ReleaseByAnybody "P36" "anybody's release ends the promise"
    ReleaseEndsBlackout "P36" "a release ends the silence after a start as well"
    NoTripwire "P37" "a later leader beside a valid lease goes unnoticed"
    TrippedServes "P37" "leased reads go on after the tripwire went off"
    TripwireForgotten "P37" "a restart forgets that the tripwire went off"
    CandidateTrips "P37" "a candidate of a later term sets the tripwire off"

    // Raft.
    TwoVotes "Raft 5.2" "votes twice in a term"
    LogIgnored "Raft 5.4.1" "votes for candidates whose log lacks entries"
    OldTermsCounted "Raft 5.4.2" "entries of earlier terms are committed by counting"
    CommitUnverified "Raft 5.3" "a follower commits entries that may not be its leader's"
    AckBeforeSync "R9" "entries are acknowledged before they are durable"
    LeaderCountsUnsynced "R7" "a leader counts itself before its entries are durable"
    AppliedUnheld "A11" "entries are applied before they are durable here"
    CutStaysDurable "Raft 5.3" "entries that were cut still count as durable"

    // Damage.
    QuarantineIgnored "A23" "a replica that lost its log votes and acknowledges at once"
    RejoinUnconfirmed "A23" "a leader tells a damaged replica what to hold without asking a quorum"
    EarlierLifeCounts "A23" "what a damaged replica acknowledged before still counts"
    DamageKeepsCommit "A23" "the end of a damaged log is taken for what was applied from it"
    WipedVotesAtOnce "A23" "a wiped replica that is whole again votes at once"

    // Requests and exactly-once.
    WaitersByIndex "A18" "a write is answered by whatever entry took its place"
    WaitersKept "A18" "writes go on waiting when leadership is lost"
    UnknownSaidRefused "A18, X2" "a write in doubt is reported as not applied"
    UnknownForgotten "A18" "a client settles a write by its last attempt alone"
    RetryApplied "A17" "a number that was applied is applied again"
    DedupByLast "A17" "a number below the last applied gets the last one's reply"
    MarkIgnored "A17" "a number at or below the acknowledged mark is applied"
    ForgottenInUse "A18" "sessions are forgotten though they were used since"
    FullTableEvicts "A18" "a full table of sessions evicts one for the next"

    // The log and the vote file.
    SyncSkipped "R9" "batches are not synced"
    VoteSyncSkipped "A19" "the vote file is not synced"
    SlotsAlternate "A19" "a vote is written into one slot, by turns"
    SyncErrorForgiven "fsync" "a log whose sync failed goes on"
    DamageIsTorn "A21" "a damaged sector of the last batch is taken for a torn one"
    NamedIgnored "A21" "recovery does not look at what the vote file names as synced"
    TailTrusted "A21" "the tail that is found is not made durable before it counts"
    NoSpare "A22" "a segment is used before the next one is ready"
    QuarantineUnwritten "A23" "the mark of damage is not written down"
}
