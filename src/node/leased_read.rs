//! A leased read, step by step. The order makes it linearizable, and types keep the order: each step
//! is made from the one before and consumes it (P20, P21).
//!
//! 1. [`Captured`]: the batch is closed, so every read in it has arrived (A1). The last index that
//!    any look at the state may have found is captured: the reads must see it. Nothing later was seen
//!    anywhere, because followers commit what the leader has applied (A11). The lease of the current leadership is loaded, and what is
//!    known of the age of this node's state if a read of the batch may report it.
//! 2. [`Looked`]: the store was read. What was found carries the applied index and the revision of
//!    the state in which it was found (A9, A10).
//! 3. [`Judged`]: the pair of clocks was read, once for the batch, and the lease was asked whether it
//!    still holds.
//! 4. [`ReadResult`]: an [`Answer`] for what was found in a state that contains the captured index and
//!    the floor of the lease (P21, A7). Every other read goes to the driver.
//!
//! Nothing is kept for the next batch but an empty [`ReadBuffer`]: a check, a clock reading or a
//! state that is older than the request is what makes stale reads. Reads that want less than the lease take the
//! same steps. So do reads that the driver released ([`Captured::released`]): on its permit, or
//! because the state has reached their revision; they ask no lease of their own.
//!
//! The server's point reads, scans and lease queries run these lines, and so do the simulator and the
//! models of `tests/interleavings`; they differ only in what happens between two steps.
//!
//! ```
//! # use std::ops::ControlFlow;
//! # use leasehold::node::{Captured, Read, Reader, Source};
//! # use leasehold::time::Clock;
//! fn in_order<R: Read>(captured: Captured<&[R], u8>, source: Source<u8>, clock: &dyn Clock, reader: Reader) {
//!     let mut source = Some(source);
//!     let looked = captured.look(|_| source.take().map(ControlFlow::Break).ok_or(()));
//!     let mut judged = looked.unwrap().judge(clock);
//!     judged.next(&reader);
//! }
//! ```
//!
//! The lease is not asked before the store was read, so that the check is the last thing that can
//! turn out wrong:
//!
//! ```compile_fail
//! # use leasehold::node::{Captured, Read};
//! # use leasehold::time::Clock;
//! fn judged_before_the_look<R: Read>(captured: Captured<&[R], u8>, clock: &dyn Clock) {
//!     captured.judge(clock);
//! }
//! ```
//!
//! A read that arrives after the capture does not join the batch (A1):
//!
//! ```compile_fail
//! # use leasehold::node::{Captured, Read};
//! fn late_arrival<R: Read>(mut captured: Captured<Vec<R>, u8>, late: R) {
//!     captured.reads.push(late);
//! }
//! ```
//!
//! What one batch has found answers no other batch, and no check is used twice (P20):
//!
//! ```compile_fail
//! # use leasehold::node::{Looked, Read};
//! # use leasehold::time::Clock;
//! fn found_by_an_earlier_batch<R: Read>(looked: Looked<&[R], u8>, clock: &dyn Clock) {
//!     looked.judge(clock);
//!     looked.judge(clock);
//! }
//! ```
//!
//! The applied index and the revision of what was found are not read again later (A9, A10):
//!
//! ```compile_fail
//! # use leasehold::node::Looked;
//! # use leasehold::types::LogIndex;
//! fn applied_read_later(looked: &mut Looked<&[u8], u8>, applied: LogIndex) {
//!     looked.0.buffer.found[0].as_mut().unwrap().applied = applied;
//! }
//! ```
//!
//! ```compile_fail
//! # use leasehold::node::Answer;
//! fn revision_read_later(answer: &mut Answer<u8>, revision: i64) {
//!     answer.source.revision = revision;
//! }
//! ```

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Consistency, ReadInfo, ReadPath, ResponseHeader};
use crate::raft::{LeaseCell, Published, ReadPermit, Staleness, StalenessBound};
use crate::time::{Clock, Instant};
use crate::types::{ClusterId, LogIndex, NodeId, Term};

/// The properties of a read that determine how it may be answered.
pub trait Read {
    /// How fresh the answer has to be.
    fn consistency(&self) -> Consistency;
    /// The revision that the state has to have reached.
    fn min_revision(&self) -> i64;
}

/// A read of which nothing else is known.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// See [`Read::consistency`].
    pub consistency: Consistency,
    /// See [`Read::min_revision`].
    pub min_revision: i64,
}

impl Read for Demand {
    fn consistency(&self) -> Consistency {
        self.consistency
    }

    fn min_revision(&self) -> i64 {
        self.min_revision
    }
}

/// Something read from one consistent state of the store.
#[derive(Clone, Debug)]
pub struct Source<T> {
    /// What was read.
    pub found: T,
    /// The state contains at least this log index.
    pub applied: LogIndex,
    /// The store's revision in that state, or of what was read if that is newer.
    pub revision: i64,
}

/// Holds what a batch finds. It is empty between batches, and kept so that the next one need not
/// allocate.
#[derive(Debug)]
pub struct ReadBuffer<T> {
    /// What the reader's clock has said.
    guard: ClockGuard,
    /// One for each read that was looked up; `None` if no answer was possible anyway.
    found: Vec<Option<Source<T>>>,
    #[cfg(leasehold_bugs)]
    kept: PreviousBatch,
}

impl<T> Default for ReadBuffer<T> {
    fn default() -> Self {
        Self {
            guard: ClockGuard::default(),
            found: Vec::new(),
            #[cfg(leasehold_bugs)]
            kept: PreviousBatch::default(),
        }
    }
}

/// Notices that the clock of a reader ran backwards between two of its batches. The driver may not have
/// looked at the clock meanwhile, so lease and age would seem younger than they are (A4).
#[derive(Debug, Default)]
struct ClockGuard {
    /// The reader's last reading.
    last: Instant,
    /// The first reading after its clock ran backwards last.
    ran_back: Option<Instant>,
}

impl ClockGuard {
    #[inline]
    fn note(&mut self, now: Instant) {
        if now.went_back_since(self.last) && !planted!(ReaderForgetsItsClock) {
            self.ran_back = Some(now);
        }
        self.last = now;
    }

    /// Whether what is good for `length` at most is from after that.
    #[inline]
    fn trusts(&self, now: Instant, length: Duration) -> bool {
        self.ran_back
            .is_none_or(|ran_back| now.certainly_after(ran_back + length))
    }
}

/// What deliberate bugs keep from the batch before.
#[cfg(leasehold_bugs)]
#[derive(Debug, Default)]
struct PreviousBatch {
    shown: LogIndex,
    now: Option<Instant>,
    permit: Option<(Instant, ReadPermit)>,
}

#[cfg(leasehold_bugs)]
impl PreviousBatch {
    fn clock(&mut self, now: Instant) -> Instant {
        let before = self.now.replace(now).unwrap_or(now);
        if planted!(CachedCheckClock) {
            before
        } else {
            now
        }
    }

    fn memo(&mut self, now: Instant, permit: Option<ReadPermit>) -> Option<ReadPermit> {
        if let Some(permit) = permit {
            self.permit = Some((now, permit));
        }
        let (since, kept) = self.permit?;
        (now.at_most_since(since) < Duration::from_millis(100)).then_some(kept)
    }
}

/// On what the reads of a batch may be answered.
#[derive(Debug)]
enum Ground {
    /// On what this node knows itself.
    Own {
        /// The last index that a look at the state may have found.
        shown: LogIndex,
        /// Its own, or its read lease of the leader; `None` while it has neither.
        lease: Option<Arc<LeaseCell>>,
    },
    /// On this permit of the driver.
    Permit(ReadPermit),
    /// On no permit: the driver has waited for the revision that the read asks for.
    CaughtUp,
}

/// A closed batch of reads, and what they must see.
#[derive(Debug)]
pub struct Captured<B, T> {
    reads: B,
    ground: Ground,
    staleness: Option<Arc<Staleness>>,
    buffer: ReadBuffer<T>,
}

impl<R, B, T> Captured<B, T>
where
    R: Read,
    B: Deref<Target = [R]>,
{
    /// For `reads`, which have all arrived; `shown` was read since, from the state that will be
    /// looked at ([`Front::shown`](crate::front::Front::shown)). Each batch loads the lease itself (A1).
    #[inline]
    pub fn of(reads: B, shown: LogIndex, published: &Published, buffer: ReadBuffer<T>) -> Self {
        #[cfg(leasehold_bugs)]
        let mut buffer = buffer;
        #[cfg(leasehold_bugs)]
        let shown = match () {
            () if planted!(ShownNotCaptured) => LogIndex(0),
            () if planted!(OlderShown) => std::mem::replace(&mut buffer.kept.shown, shown),
            () => shown,
        };
        let (shown, lease) = match published.lease() {
            Some(lease) => (shown, Some(lease)),
            None => Self::held(shown, published),
        };
        Self::on(Ground::Own { shown, lease }, reads, published, buffer)
    }

    /// At a node that does not lead: its read lease, and then what its log holds, which contains whatever
    /// it has acknowledged (RL5).
    fn held(shown: LogIndex, published: &Published) -> (LogIndex, Option<Arc<LeaseCell>>) {
        planted!(LastBeforeLease => {
            let last = published.last();
            return (shown.max(last), published.read_lease());
        });
        let lease = published.read_lease();
        let last = match () {
            () if lease.is_none() || planted!(HolderServesApplied) => shown,
            () if planted!(HolderCapturesCommit) => published.commit(),
            () => published.last(),
        };
        (shown.max(last), lease)
    }

    #[inline]
    fn on(ground: Ground, reads: B, published: &Published, mut buffer: ReadBuffer<T>) -> Self {
        buffer.found.clear();
        // Most batches want the lease alone, and an age costs as much as half of a read.
        let asks_age = match &ground {
            Ground::Own { .. } => reads.iter().any(|read| reports_age(read.consistency())),
            Ground::Permit(_) => false,
            Ground::CaughtUp => true,
        };
        Self {
            reads,
            ground,
            staleness: asks_age.then(|| published.staleness()).flatten(),
            buffer,
        }
    }

    /// Reads the store: `look` is asked for one read after the other, until it breaks off because
    /// what it has found is enough for now. Reads that cannot be answered here in any case are left
    /// out.
    ///
    /// # Errors
    /// Those of `look`.
    #[inline]
    pub fn look<E>(
        mut self,
        mut look: impl FnMut(&R) -> Result<ControlFlow<Source<T>, Source<T>>, E>,
    ) -> Result<Looked<B, T>, E> {
        for read in &*self.reads {
            if !self.may_answer(read.consistency()) {
                self.buffer.found.push(None);
                continue;
            }
            match look(read)? {
                ControlFlow::Continue(source) => self.buffer.found.push(Some(source)),
                ControlFlow::Break(source) => {
                    self.buffer.found.push(Some(source));
                    break;
                }
            }
        }
        Ok(Looked(self))
    }

    /// Whether a read may be answered here at all, so that it is worth a look at the store.
    #[inline]
    fn may_answer(&self, consistency: Consistency) -> bool {
        let Ground::Own { lease, .. } = &self.ground else {
            return true;
        };
        let leads = lease.is_some() || planted!(MemoizedCheck);
        match consistency {
            Consistency::Linearizable | Consistency::LeaseOnly => leads,
            Consistency::MaxStaleness(_) => leads || self.staleness.is_some(),
            Consistency::Serializable => true,
            Consistency::LinearizableQuorum => false,
        }
    }
}

impl<'a, R: Read, T> Captured<&'a [R], T> {
    /// For a read that the driver released after it had arrived: on `permit`, once the store had
    /// applied what that demands; or without one, once the store had reached the revision that the
    /// read asks for. Its consistency was for the driver to judge.
    pub fn released(
        read: &'a R,
        permit: Option<ReadPermit>,
        published: &Published,
        buffer: ReadBuffer<T>,
    ) -> Self {
        let ground = permit.map_or(Ground::CaughtUp, Ground::Permit);
        Self::on(ground, std::slice::from_ref(read), published, buffer)
    }
}

/// A batch whose reads were looked up in the store.
#[derive(Debug)]
pub struct Looked<B, T>(Captured<B, T>);

impl<R, B, T> Looked<B, T>
where
    R: Read,
    B: Deref<Target = [R]>,
{
    /// Reads the clock, once and only now, and asks the lease whether it still holds, and how old
    /// the state can be.
    #[inline]
    pub fn judge(self, clock: &dyn Clock) -> Judged<B, T> {
        let Captured {
            reads,
            ground,
            staleness,
            buffer,
        } = self.0;
        let mut buffer = buffer;
        let (mut permit, mut bound, mut lapsed) = (None, None, false);
        let released = !matches!(ground, Ground::Own { .. });
        if let Ground::Permit(given) = ground {
            // It was judged when the driver gave it, and that was after its read had arrived.
            permit = Some(given);
        } else {
            let now = clock.now();
            #[cfg(leasehold_bugs)]
            let now = buffer.kept.clock(now);
            buffer.guard.note(now);
            let guard = &buffer.guard;
            bound = staleness
                .filter(|staleness| guard.trusts(now, staleness.is_looked_after_within()))
                .and_then(|staleness| staleness.bound(now));
            let mut looked = reads.iter().take(buffer.found.len());
            if let Ground::Own {
                shown,
                lease: Some(lease),
            } = &ground
                && looked.any(|read| wants_lease(read.consistency()))
            {
                permit = lease.permit(now, *shown);
                permit = permit.filter(|_| guard.trusts(now, lease.longest()));
                lapsed = permit.is_none() && !lease.is_read_lease();
            }
            planted!(MemoizedCheck => permit = buffer.kept.memo(now, permit));
        }
        Judged {
            reads,
            permit,
            bound,
            lapsed,
            released,
            next: 0,
            buffer,
        }
    }
}

/// A batch of which is known what may be said.
#[derive(Debug)]
pub struct Judged<B, T> {
    reads: B,
    permit: Option<ReadPermit>,
    bound: Option<StalenessBound>,
    /// This node leads, and its lease is void.
    lapsed: bool,
    /// The driver released the read.
    released: bool,
    /// The read whose turn it is.
    next: usize,
    buffer: ReadBuffer<T>,
}

impl<R, B, T> Judged<B, T>
where
    R: Read,
    B: Deref<Target = [R]>,
{
    /// How many reads were looked up, from the front.
    pub fn len(&self) -> usize {
        self.buffer.found.len()
    }

    /// Whether there was none.
    pub fn is_empty(&self) -> bool {
        self.buffer.found.is_empty()
    }

    /// The leadership whose lease permits the reads.
    pub fn permitted_in(&self) -> Option<Term> {
        self.permit.map(|permit| permit.term())
    }

    /// Whether the lease of this node's leadership was asked and is void.
    pub fn has_lapsed(&self) -> bool {
        self.lapsed
    }

    /// The next read that was looked up, and what becomes of it; `None` after the last.
    #[inline]
    pub fn next(&mut self, reader: &Reader) -> Option<(&R, ReadResult<T>)> {
        let source = self.buffer.found.get_mut(self.next)?.take();
        let read = &self.reads[self.next];
        self.next += 1;
        let consistency = read.consistency();
        let result = match (self.authority(consistency), source) {
            (Some(authority), Some(source)) => {
                let answer = reader.answer(authority, read.min_revision(), source);
                answer.map_or(ReadResult::Behind, ReadResult::Answer)
            }
            _ if self.lapsed && wants_lease(consistency) => ReadResult::Lapsed,
            _ => ReadResult::Uncovered,
        };
        Some((read, result))
    }

    /// The reads, and the buffer for the next batch.
    #[inline]
    pub fn finish(self) -> (B, ReadBuffer<T>) {
        let Self {
            reads, mut buffer, ..
        } = self;
        buffer.found.clear();
        (reads, buffer)
    }

    /// On whose word a read may be answered that asks for `consistency`. A lease is better than what
    /// a bounded read asks for, and costs the same.
    #[inline]
    fn authority(&self, consistency: Consistency) -> Option<Authority> {
        let own_state = Authority::Serializable(self.bound);
        match (consistency, self.permit) {
            (_, permit) if self.released => Some(permit.map_or(own_state, Authority::Permit)),
            (Consistency::Serializable, _) => Some(own_state),
            (Consistency::LinearizableQuorum, _) => None,
            (_, Some(permit)) => Some(Authority::Permit(permit)),
            (Consistency::MaxStaleness(most), None) => {
                let young = self.bound.filter(|bound| bound.staleness() <= most);
                young.map(Authority::Bounded)
            }
            (Consistency::Linearizable | Consistency::LeaseOnly, None) => None,
        }
    }
}

/// Whether a read is better served under the lease than in any other way.
#[inline]
pub fn wants_lease(consistency: Consistency) -> bool {
    match consistency {
        Consistency::Linearizable | Consistency::LeaseOnly | Consistency::MaxStaleness(_) => true,
        Consistency::LinearizableQuorum | Consistency::Serializable => false,
    }
}

/// Whether the answer to a read may say how old the state is.
#[inline]
fn reports_age(consistency: Consistency) -> bool {
    match consistency {
        Consistency::Serializable | Consistency::MaxStaleness(_) => true,
        Consistency::Linearizable | Consistency::LeaseOnly | Consistency::LinearizableQuorum => {
            false
        }
    }
}

/// The result of a read.
#[derive(Clone, Debug)]
pub enum ReadResult<T> {
    /// This may be sent.
    Answer(Answer<T>),
    /// The state that was read is not what the read must see yet: the driver waits for it.
    Behind,
    /// This node leads, and its lease is void.
    Lapsed,
    /// This node cannot answer it by itself.
    Uncovered,
}

/// What may be sent to the client.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    source: Source<T>,
    authority: Authority,
    lease_margin: Duration,
}

impl<T> Answer<T> {
    /// What was read.
    pub fn found(&self) -> &T {
        &self.source.found
    }

    /// What was read.
    pub fn into_found(self) -> T {
        self.source.found
    }

    /// The revision for the reply's header: that of the state that was read (A10).
    pub fn revision(&self) -> i64 {
        self.source.revision
    }

    /// How it was served.
    pub fn read(&self) -> ReadInfo {
        let applied = self.source.applied;
        let (path, lease_remaining, staleness) = match self.authority {
            Authority::Permit(permit) => (path_of(&permit), permit.lease_remaining(), None),
            Authority::Serializable(bound) => {
                let contained = bound.filter(|bound| bound.index() <= applied);
                (ReadPath::Serializable, None, contained)
            }
            Authority::Bounded(bound) => (ReadPath::Serializable, None, Some(bound)),
        };
        ReadInfo {
            path,
            lease_remaining: lease_remaining.unwrap_or_default(),
            lease_margin: self.lease_margin,
            read_index: self.authority.index(),
            applied_index: applied,
            staleness: staleness.map(|bound| bound.staleness()),
        }
    }

    /// The leadership that permitted it, if any had to: its term, and its leader if that is another
    /// node. The reply reports this leadership, even if another one has begun when it is written.
    pub fn leadership(&self) -> Option<(Term, Option<NodeId>)> {
        match self.authority {
            Authority::Permit(permit) => Some((permit.term(), permit.from_leader())),
            Authority::Serializable(_) | Authority::Bounded(_) => None,
        }
    }

    /// The header of the reply, from the member `member` of `cluster`.
    pub fn header(
        &self,
        cluster: ClusterId,
        member: NodeId,
        published: &Published,
    ) -> ResponseHeader {
        // The leadership that permitted the read, even if another node has become leader since.
        let (raft_term, leader_id) = match self.leadership() {
            Some((term, leader)) => (term, leader.or(Some(member))),
            None => (published.term(), published.leader()),
        };
        ResponseHeader {
            cluster_id: cluster.short(),
            member_id: member,
            revision: self.revision(),
            raft_term,
            leader_id,
            read: Some(self.read()),
        }
    }
}

/// On whose word a read is answered.
#[derive(Clone, Copy, Debug)]
enum Authority {
    /// A live leader lease or a finished quorum round, here or at the leader.
    Permit(ReadPermit),
    /// None is needed: the caller asked for this node's own state, however old. With the bound of its
    /// age, if there is one.
    Serializable(Option<StalenessBound>),
    /// None is needed: the caller asked for this node's own state if it is no older than this, and
    /// that was proved.
    Bounded(StalenessBound),
}

impl Authority {
    /// What was read must contain this index.
    fn index(&self) -> LogIndex {
        match self {
            Self::Permit(permit) => permit.index(),
            Self::Serializable(_) => LogIndex(0),
            Self::Bounded(bound) => bound.index(),
        }
    }
}

/// Turns what was read into what may be said.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The margin the lease keeps, for reply headers.
    pub lease_margin: Duration,
}

impl Reader {
    /// The answer, or `None` if the state that was read does not contain what the authority
    /// demands, or is not at `min_revision` yet: then the read must look again, later.
    #[inline]
    fn answer<T>(
        &self,
        authority: Authority,
        min_revision: i64,
        source: Source<T>,
    ) -> Option<Answer<T>> {
        let lacks = source.applied < authority.index() && !planted!(PermitIndexIgnored);
        let early = source.revision < min_revision && !planted!(MinRevisionIgnored);
        (!lacks && !early).then_some(Answer {
            source,
            authority,
            lease_margin: self.lease_margin,
        })
    }
}

/// How a read is served that has this permit.
pub fn path_of(permit: &ReadPermit) -> ReadPath {
    match permit.lease_remaining() {
        _ if permit.is_from_leader() => ReadPath::Follower,
        _ if permit.is_by_read_lease() => ReadPath::ReadLease,
        Some(_) => ReadPath::Lease,
        None => ReadPath::ReadIndex,
    }
}
