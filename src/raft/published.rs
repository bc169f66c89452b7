//! What consensus shows other threads: the commit index, its leadership, and the leader lease that
//! permits reads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::raft::{Confirmation, GrantCounters, Staleness};
use crate::sync::{AtomicU8, AtomicU64, Count, Ordering, Slot};
use crate::time::Instant;
use crate::types::{LogIndex, NodeId, Role, Term};

/// What consensus publishes for other threads, written inside `handle` before it returns.
#[derive(Debug, Default)]
pub struct Published {
    commit: AtomicU64,
    last: AtomicU64,
    term: AtomicU64,
    /// 0 for none.
    leader: AtomicU64,
    role: AtomicU8,
    lease: Slot<LeaseCell>,
    read_lease: Slot<LeaseCell>,
    pub(super) staleness: Slot<Staleness>,
    lease_counters: Arc<LeaseCounters>,
    read_lease_counters: Arc<LeaseCounters>,
    grant_counters: Arc<GrantCounters>,
    messages_refused: Count,
    lost_logs: Count,
}

impl Published {
    /// Highest committed index.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.commit.load(Ordering::Acquire))
    }

    /// The last index of the log. It is never below what this node has acknowledged.
    pub fn last(&self) -> LogIndex {
        LogIndex(self.last.load(Ordering::Acquire))
    }

    /// The read lease of this node; `None` while it holds none. Load it again for every batch (A1), and
    /// before [`Self::last`].
    pub fn read_lease(&self) -> Option<Arc<LeaseCell>> {
        self.read_lease.load_full()
    }

    /// The current leadership's lease; `None` when not leading. Load it again for every batch (A1).
    pub fn lease(&self) -> Option<Arc<LeaseCell>> {
        self.lease.load_full()
    }

    /// The bound on the age of this node's applied state; `None` while it is unknown. Load it
    /// before the store is read.
    pub fn staleness(&self) -> Option<Arc<Staleness>> {
        self.staleness.load_full()
    }

    /// The node's term.
    pub fn term(&self) -> Term {
        Term(self.term.load(Ordering::Acquire))
    }

    /// The leader, as far as the node knows.
    pub fn leader(&self) -> Option<NodeId> {
        let id = self.leader.load(Ordering::Acquire);
        (id != 0).then_some(NodeId(id))
    }

    /// The node's role.
    pub fn role(&self) -> Role {
        let role = usize::from(self.role.load(Ordering::Acquire));
        ROLES.get(role).copied().unwrap_or_default()
    }

    /// What happened to this node's leader leases since it started.
    pub fn lease_counters(&self) -> &Arc<LeaseCounters> {
        &self.lease_counters
    }

    /// What happened to the read leases that this node held since it started.
    pub fn read_lease_counters(&self) -> &Arc<LeaseCounters> {
        &self.read_lease_counters
    }

    /// What happened to the read leases that this node granted since it started.
    pub fn grant_counters(&self) -> &Arc<GrantCounters> {
        &self.grant_counters
    }

    /// Messages that no correct peer can have sent, and that changed nothing.
    pub fn messages_refused(&self) -> u64 {
        self.messages_refused.load(Ordering::Relaxed)
    }

    /// As leader: how often a follower turned out to lack what it had acknowledged.
    pub fn lost_logs(&self) -> u64 {
        self.lost_logs.load(Ordering::Relaxed)
    }

    /// The same, for a copy of its replica. Counts are shared: nothing is decided by them.
    pub(super) fn fork(&self) -> Self {
        Self {
            commit: AtomicU64::new(self.commit.load(Ordering::Acquire)),
            last: AtomicU64::new(self.last.load(Ordering::Acquire)),
            term: AtomicU64::new(self.term.load(Ordering::Acquire)),
            leader: AtomicU64::new(self.leader.load(Ordering::Acquire)),
            role: AtomicU8::new(self.role.load(Ordering::Acquire)),
            lease: Slot::new(self.lease.load_full()),
            read_lease: Slot::new(self.read_lease.load_full()),
            staleness: Slot::new(self.staleness.load_full()),
            lease_counters: self.lease_counters.clone(),
            read_lease_counters: self.read_lease_counters.clone(),
            grant_counters: self.grant_counters.clone(),
            messages_refused: Count::new(self.messages_refused()),
            lost_logs: Count::new(self.lost_logs()),
        }
    }

    pub(super) fn count_lost_log(&self) {
        self.lost_logs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn begin_lease(&self, cell: Arc<LeaseCell>) {
        self.lease.store(Some(cell));
    }

    pub(super) fn end_lease(&self) {
        self.lease.store(None);
    }

    pub(super) fn begin_read_lease(&self, cell: Arc<LeaseCell>) {
        self.read_lease.store(Some(cell));
    }

    pub(super) fn end_read_lease(&self) {
        self.read_lease.store(None);
    }

    /// The log ends with `last` now. Shown before anything leaves that acknowledges it (RL5).
    pub(super) fn show_last(&self, last: LogIndex) {
        self.last.store(last.0, Ordering::Release);
    }

    pub(super) fn refuse_message(&self) {
        self.messages_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn update(&self, commit: LogIndex, term: Term, role: Role, leader: Option<NodeId>) {
        let role = ROLES.iter().position(|known| *known == role);
        let role = role.and_then(|role| u8::try_from(role).ok()).unwrap_or(0);
        self.term.store(term.0, Ordering::Release);
        self.role.store(role, Ordering::Release);
        let leader = leader.map_or(0, |leader| leader.0);
        self.leader.store(leader, Ordering::Release);
        self.commit.store(commit.0, Ordering::Release);
    }
}

/// Roles by the number that stands for them in an atomic.
const ROLES: [Role; 6] = [
    Role::Follower,
    Role::PreCandidate,
    Role::Candidate,
    Role::Leader,
    Role::Learner,
    Role::Quarantined,
];

/// Proof that a read at `index()` is linearizable. Made only by a live leader lease or a finished
/// quorum round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadPermit {
    index: LogIndex,
    term: Term,
    lease_remaining: Option<Duration>,
    /// The leader that gave it, if that is another node.
    from: Option<NodeId>,
    /// By a read lease that this node holds of it.
    by_read_lease: bool,
}

impl ReadPermit {
    /// A finished quorum round of the leadership of `term` permits a read at `index`.
    pub(super) fn by_quorum(index: LogIndex, term: Term) -> Self {
        Self {
            index,
            term,
            lease_remaining: None,
            from: None,
            by_read_lease: false,
        }
    }

    /// `leader` of `term`, confirmed after it was asked, permits a read of a follower (F1).
    pub(super) fn by_leader(confirmed: Confirmation, leader: NodeId, term: Term) -> Self {
        Self {
            index: confirmed.index,
            term,
            lease_remaining: confirmed.lease_remaining,
            from: Some(leader),
            by_read_lease: false,
        }
    }

    /// A snapshot serves this read only if it contains this index.
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// What was left of the lease, the leader's in any case; `None` if a quorum round permitted
    /// the read.
    pub fn lease_remaining(&self) -> Option<Duration> {
        self.lease_remaining
    }

    /// The term of the leadership that permits the read.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The leader that this node got it from; `None` if this node led itself.
    pub fn from_leader(&self) -> Option<NodeId> {
        self.from
    }

    /// Whether this node got it from its leader, after it had asked.
    pub fn is_from_leader(&self) -> bool {
        self.from.is_some() && !self.by_read_lease
    }

    /// Whether a read lease of this node gave it.
    pub fn is_by_read_lease(&self) -> bool {
        self.by_read_lease
    }
}

/// What one leadership publishes of its lease: one object per leadership (P23, A7).
///
/// Readers hold it across batches at no risk: once void for good it stays void. The two clocks'
/// bounds are written one after the other, so a reader may see one of a newer round; each alone
/// was promised by a quorum, so that is harmless.
#[derive(Debug)]
pub struct LeaseCell {
    /// The leadership's term.
    pub term: Term,
    /// No snapshot below it may be served: the last index at its election (A7); of a read lease, what was
    /// committed when its tenure began (RL2).
    pub floor: LogIndex,
    /// The leader of which this is a sub-lease: a read lease. `None` for the leader's own.
    pub(super) leader: Option<NodeId>,
    pub(super) until_boot: AtomicU64,
    pub(super) until_raw: AtomicU64,
    /// No lease has more than this left, unless the clock ran backwards after it was renewed.
    pub(super) longest: Duration,
    pub(super) counters: Arc<LeaseCounters>,
}

impl LeaseCell {
    pub(crate) fn new(
        term: Term,
        floor: LogIndex,
        longest: Duration,
        counters: Arc<LeaseCounters>,
    ) -> Self {
        Self {
            term,
            floor,
            leader: None,
            longest,
            until_boot: AtomicU64::new(0),
            until_raw: AtomicU64::new(0),
            counters,
        }
    }

    /// Another one that says the same.
    pub(super) fn fork(&self) -> Self {
        let until = self.until();
        Self {
            leader: self.leader,
            until_boot: AtomicU64::new(until.boot),
            until_raw: AtomicU64::new(until.raw),
            ..Self::new(self.term, self.floor, self.longest, self.counters.clone())
        }
    }

    /// Whether it is a read lease, and not that of a leader.
    pub fn is_read_lease(&self) -> bool {
        self.leader.is_some()
    }

    /// The right to answer one batch of reads. `now` was read after the requests had arrived and
    /// after their state was read; `captured` is the last index that any look at that state may have
    /// found, captured after they arrived.
    /// Counts a rejection where there is none.
    pub fn permit(&self, now: Instant, captured: LogIndex) -> Option<ReadPermit> {
        let permit = self.check(now, captured);
        if permit.is_none() {
            self.counters.rejections.fetch_add(1, Ordering::Relaxed);
        }
        permit
    }

    /// Whether the lease holds at `now`. Counts nothing.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.remaining(now).is_some()
    }

    /// The remaining time of the lease, by the clock that says less; `None` if it is over or void, or if
    /// more is left than there can be: then the clock ran backwards since (A4), and the thread
    /// that renews the lease invalidates it once it observes that. Changes no counters.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        let until = self.until();
        let holds = match () {
            () if planted!(RawClockOnly) => now.raw < until.raw,
            () if planted!(BootClockOnly) => now.boot < until.boot,
            () if planted!(LeaseUntilStepDown) => until != Instant::ZERO,
            // Bugs of those who see a clock step back: this would make up for them.
            () if planted!(StepBackIgnored) => now.certainly_before(until),
            () if planted!(CampaignOverStepBack) => now.certainly_before(until),
            () => now.certainly_before(until) && until.at_most_since(now) <= self.longest,
        };
        planted!(RawClockOnly => return holds.then(|| until.at_most_since(now)));
        planted!(BootClockOnly => return holds.then(|| until.at_most_since(now)));
        planted!(LeaseUntilStepDown => return holds.then_some(Duration::from_millis(1)));
        holds.then(|| until.at_least_since(now))
    }

    /// For how long it can hold at most from any moment on.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Until when it holds, by each clock; zero while void.
    pub fn until(&self) -> Instant {
        Instant {
            boot: self.until_boot.load(Ordering::SeqCst),
            raw: self.until_raw.load(Ordering::SeqCst),
        }
    }

    /// As [`Self::permit`], without counting.
    pub(super) fn check(&self, now: Instant, captured: LogIndex) -> Option<ReadPermit> {
        self.remaining(now).map(|remaining| ReadPermit {
            index: if planted!(NoFloor) {
                captured
            } else {
                captured.max(self.floor)
            },
            term: self.term,
            lease_remaining: Some(remaining),
            from: self.leader,
            by_read_lease: self.is_read_lease(),
        })
    }

    pub(super) fn publish(&self, until: Instant) {
        self.until_boot.store(until.boot, Ordering::SeqCst);
        self.until_raw.store(until.raw, Ordering::SeqCst);
    }
}

/// Why a lease that held was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// A higher term was seen, or a vote given: leadership is over.
    StepDown,
    /// Too long without a quorum: leadership is given up.
    QuorumLost,
    /// Leadership is being handed over; the lease of this term is burned (P9).
    Transfer,
    /// The node retires.
    Retired,
    /// A clock ran backwards (A4).
    ClockWentBack,
    /// The configuration changed, and its quorum has not promised (P13); or this node is not in it.
    ConfigurationChanged,
    /// The tripwire went off (P37).
    Tripped,
    /// The leader that had granted a read lease wants it back (RL7).
    Recalled,
}

impl Invalidation {
    /// Every reason, in the order of their labels.
    pub const ALL: [Self; 8] = [
        Self::StepDown,
        Self::QuorumLost,
        Self::Transfer,
        Self::Retired,
        Self::ClockWentBack,
        Self::ConfigurationChanged,
        Self::Tripped,
        Self::Recalled,
    ];

    /// Its name as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::StepDown => "step_down",
            Self::QuorumLost => "quorum_lost",
            Self::Transfer => "transfer",
            Self::Retired => "retired",
            Self::ClockWentBack => "clock_jump",
            Self::ConfigurationChanged => "configuration",
            Self::Tripped => "tripped",
            Self::Recalled => "recalled",
        }
    }
}

impl fmt::Display for Invalidation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What happened to this node's leader leases since it started.
#[derive(Debug, Default)]
pub struct LeaseCounters {
    pub(super) renewals: Count,
    pub(super) expirations: Count,
    pub(super) rejections: Count,
    pub(super) invalidations: [Count; Invalidation::ALL.len()],
    pub(super) clock_regressions: Count,
    pub(super) assumption_violations: Count,
}

impl LeaseCounters {
    /// How often a lease was granted or prolonged.
    pub fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// How often a lease ran out unrenewed; once per lapse.
    pub fn expirations(&self) -> u64 {
        self.expirations.load(Ordering::Relaxed)
    }

    /// How often [`LeaseCell::permit`] said no.
    pub fn rejections(&self) -> u64 {
        self.rejections.load(Ordering::Relaxed)
    }

    /// How often a lease that held was given up for `reason`.
    pub fn invalidations(&self, reason: Invalidation) -> u64 {
        self.invalidations[reason as usize].load(Ordering::Relaxed)
    }

    /// How often the clock ran backwards (A4).
    pub fn clock_regressions(&self) -> u64 {
        self.clock_regressions.load(Ordering::Relaxed)
    }

    /// How often it was proved that an assumption about clocks or members is false (P37).
    pub fn assumption_violations(&self) -> u64 {
        self.assumption_violations.load(Ordering::Relaxed)
    }

    pub(crate) fn rejected(&self) {
        self.rejections.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn clock_went_back(&self) {
        self.clock_regressions.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn violated(&self) {
        self.assumption_violations.fetch_add(1, Ordering::Relaxed);
    }
}
