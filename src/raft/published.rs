//! What consensus shows other threads.

use std::sync::Arc;

use crate::raft::{LeaseCell, LeaseCounters, Staleness};
use crate::sync::{AtomicU8, AtomicU64, Count, Ordering, Slot};
use crate::types::{LogIndex, NodeId, Role, Term};

/// What consensus publishes for other threads, written inside `handle` before it returns.
#[derive(Debug, Default)]
pub struct Published {
    commit: AtomicU64,
    term: AtomicU64,
    /// 0 for none.
    leader: AtomicU64,
    role: AtomicU8,
    lease: Slot<LeaseCell>,
    pub(super) staleness: Slot<Staleness>,
    lease_counters: Arc<LeaseCounters>,
    messages_refused: Count,
    lost_logs: Count,
}

impl Published {
    /// Highest committed index.
    pub fn commit(&self) -> LogIndex {
        LogIndex(self.commit.load(Ordering::Acquire))
    }

    /// The current leadership's lease; `None` when not leading. Load it anew for every batch (A1).
    pub fn lease(&self) -> Option<Arc<LeaseCell>> {
        self.lease.load_full()
    }

    /// What is known of how old this node's applied state can be; `None` while nothing is. Load it
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
            term: AtomicU64::new(self.term.load(Ordering::Acquire)),
            leader: AtomicU64::new(self.leader.load(Ordering::Acquire)),
            role: AtomicU8::new(self.role.load(Ordering::Acquire)),
            lease: Slot::new(self.lease.load_full()),
            staleness: Slot::new(self.staleness.load_full()),
            lease_counters: self.lease_counters.clone(),
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
