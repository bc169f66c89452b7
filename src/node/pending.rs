//! Requests that wait: by deadline, by entry, by permit and by revision.

use std::collections::{BTreeMap, BTreeSet};

use crate::raft::ReadPermit;
use crate::time::Instant;
use crate::types::{LogId, LogIndex, RequestId, Term};

/// One part in this many is reserved for urgent requests: a refused renewal may cost a lease, while any
/// other request is only retried.
pub(super) const URGENT_PART: usize = 8;

/// Everything that waits inside a node. Every operation is O(log n).
pub(super) struct PendingRequests {
    pub(super) max: usize,
    pub(super) requests: BTreeMap<RequestId, PendingRequest>,
    /// The same requests by deadline, as a reading of the boot clock: no safety hangs on request
    /// deadlines, so one clock is enough.
    pub(super) deadlines: BTreeSet<(u64, RequestId)>,
    pub(super) writes: BTreeMap<LogIndex, (Term, RequestId)>,
    /// Reads with a permit, waiting for the state machine to reach its index.
    pub(super) permitted: BTreeMap<(LogIndex, RequestId), ReadPermit>,
    /// Reads that wait for a revision, and nothing else; with a permit, if they needed one.
    pub(super) early: BTreeMap<(i64, RequestId), Option<ReadPermit>>,
    /// Transfers by the term that they end.
    pub(super) transfers: BTreeMap<RequestId, Term>,
    /// The leadership that writes and transfers wait on.
    pub(super) leadership: Option<Term>,
}

pub(super) struct PendingRequest {
    /// When it is looked at again.
    pub(super) deadline: u64,
    /// Its own deadline: later, for a read that waits for the word of a leader elsewhere.
    pub(super) last: u64,
    pub(super) what: PendingKind,
}

/// A request whose time is over, and what it waited for.
pub(super) struct ExpiredRequest {
    pub(super) id: RequestId,
    pub(super) what: PendingKind,
    /// Its own deadline is not over: only that of a question to the leader.
    pub(super) has_time_left: bool,
}

#[derive(Clone, Copy)]
pub(super) enum PendingKind {
    /// Waits for a permit, and then for at least this revision.
    Read(i64),
    PermittedRead(LogIndex, i64),
    EarlyRead(i64),
    Write(LogIndex),
    Transfer,
    /// A change of members.
    Change,
}

impl PendingRequests {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            writes: BTreeMap::new(),
            permitted: BTreeMap::new(),
            early: BTreeMap::new(),
            transfers: BTreeMap::new(),
            leadership: None,
        }
    }

    /// What must hold after every input.
    pub(super) fn check(&self) {
        assert_eq!(
            self.deadlines.len(),
            self.requests.len(),
            "every waiting request has one deadline"
        );
        let listed =
            self.writes.len() + self.permitted.len() + self.early.len() + self.transfers.len();
        assert!(
            listed <= self.requests.len(),
            "a request waits for one thing at a time"
        );
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// How many of them are writes that have an entry.
    pub(super) fn writes(&self) -> usize {
        self.writes.len()
    }

    /// The entry that a write waits for.
    pub(super) fn entry_of(&self, request: RequestId) -> Option<LogIndex> {
        match self.requests.get(&request)?.what {
            PendingKind::Write(index) => Some(index),
            _ => None,
        }
    }

    /// Whether there is no room for one more. The last of it is kept for what is urgent.
    pub(super) fn is_full(&self, is_urgent: bool) -> bool {
        let kept = match is_urgent {
            true => 0,
            false => self.max / URGENT_PART,
        };
        self.len() >= self.max - kept
    }

    /// The earliest instant at which some request's deadline is over.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(boot, _)| Instant {
            boot: *boot,
            ..Instant::NEVER
        })
    }

    pub(super) fn add(&mut self, request: RequestId, deadline: Instant, what: PendingKind) {
        self.insert(request, deadline, deadline, what);
    }

    /// A read that needs a permit. If it has none by `asked_until`, it is looked at again.
    pub(super) fn add_read(
        &mut self,
        request: RequestId,
        asked_until: Instant,
        deadline: Instant,
        min_revision: i64,
    ) {
        let what = PendingKind::Read(min_revision);
        self.insert(request, asked_until, deadline, what);
    }

    fn insert(&mut self, request: RequestId, deadline: Instant, last: Instant, what: PendingKind) {
        self.deadlines.insert((deadline.boot, request));
        let (deadline, last) = (deadline.boot, last.boot);
        self.requests.insert(
            request,
            PendingRequest {
                deadline,
                last,
                what,
            },
        );
    }

    /// From here on the request may wait until its own deadline.
    fn prolong(&mut self, request: RequestId) {
        if let Some(pending) = self.requests.get_mut(&request) {
            self.deadlines.remove(&(pending.deadline, request));
            pending.deadline = pending.last;
            self.deadlines.insert((pending.deadline, request));
        }
    }

    pub(super) fn remove(&mut self, request: RequestId) -> Option<PendingRequest> {
        let pending = self.requests.remove(&request)?;
        self.deadlines.remove(&(pending.deadline, request));
        match pending.what {
            PendingKind::Read(_) | PendingKind::Change => {}
            PendingKind::PermittedRead(index, _) => {
                self.permitted.remove(&(index, request));
            }
            PendingKind::EarlyRead(revision) => {
                self.early.remove(&(revision, request));
            }
            PendingKind::Write(index) => {
                self.writes.remove(&index);
            }
            PendingKind::Transfer => {
                self.transfers.remove(&request);
            }
        }
        Some(pending)
    }

    pub(super) fn add_transfer(&mut self, request: RequestId, term: Term, deadline: Instant) {
        self.add(request, deadline, PendingKind::Transfer);
        self.transfers.insert(request, term);
    }

    pub(super) fn add_change(&mut self, request: RequestId, deadline: Instant) {
        self.add(request, deadline, PendingKind::Change);
    }

    pub(super) fn take_change(&mut self, request: RequestId) {
        self.remove(request);
    }

    pub(super) fn add_write(&mut self, id: LogId, request: RequestId, deadline: Instant) {
        self.add(request, deadline, PendingKind::Write(id.index));
        self.writes.insert(id.index, (id.term, request));
    }

    pub(super) fn take_read(&mut self, request: RequestId) -> bool {
        self.remove(request).is_some()
    }

    /// A read got its permit and waits for the state machine from here on. One that is not here
    /// any more ran out of time.
    pub(super) fn permit_read(&mut self, request: RequestId, permit: ReadPermit) {
        if let Some(pending) = self.requests.get_mut(&request)
            && let PendingKind::Read(revision) = pending.what
        {
            pending.what = PendingKind::PermittedRead(permit.index(), revision);
            self.permitted.insert((permit.index(), request), permit);
            self.prolong(request);
        }
    }

    /// From here on the request waits for nothing but `revision`.
    pub(super) fn wait_for_revision(
        &mut self,
        request: RequestId,
        revision: i64,
        permit: Option<ReadPermit>,
    ) {
        if let Some(pending) = self.requests.get_mut(&request) {
            pending.what = PendingKind::EarlyRead(revision);
            self.early.insert((revision, request), permit);
        }
    }

    /// Lets those wait for their revision who waited for `applied`; then the first read that waits
    /// for nothing any more.
    pub(super) fn take_released(
        &mut self,
        applied: LogIndex,
        reached: i64,
    ) -> Option<(RequestId, Option<ReadPermit>)> {
        while let Some((&(index, request), &permit)) = self.permitted.first_key_value()
            && (index <= applied || planted!(ReadUnapplied))
        {
            let what = self.requests.get(&request).map(|pending| pending.what);
            let Some(PendingKind::PermittedRead(_, revision)) = what else {
                unreachable!("whoever is permitted waits");
            };
            self.permitted.pop_first();
            self.wait_for_revision(request, revision, Some(permit));
        }
        let (&(revision, request), &permit) = self.early.first_key_value()?;
        if revision > reached {
            return None;
        }
        self.remove(request);
        Some((request, permit))
    }

    /// A request whose time is over. While this node `leads`, a read waits for no other node's word
    /// and keeps its own deadline.
    pub(super) fn take_expired(&mut self, now: Instant, leads: bool) -> Option<ExpiredRequest> {
        loop {
            let (deadline, id) = *self.deadlines.first()?;
            if now.boot < deadline {
                return None;
            }
            let has_time_left = now.boot < self.requests.get(&id)?.last;
            if has_time_left && leads {
                self.prolong(id);
                continue;
            }
            let what = self.remove(id)?.what;
            return Some(ExpiredRequest {
                id,
                what,
                has_time_left,
            });
        }
    }
}
