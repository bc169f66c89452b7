//! What the state machine should do, told a second time in the plainest way: the whole store is
//! kept at every revision, and every question is a walk over a map.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::api::{
    Compare, CompareOp, CompareTarget, RangeCount, SortOrder, SortTarget, TxnOp, TxnOpResponse,
    TxnRequest, TxnResponse,
};
use crate::kv::replies::RUN;

/// Every key of a store with what it holds.
type State = BTreeMap<Bytes, KeyValue>;

/// A state machine on plain maps.
pub(crate) struct Model {
    revision: i64,
    compact_revision: i64,
    /// The store as it was after each revision.
    states: BTreeMap<i64, State>,
    changes: Vec<Change>,
    sessions: BTreeMap<SessionId, ModelSession>,
    leases: BTreeMap<i64, ModelLease>,
    cluster: Option<ClusterInfo>,
    bootstrap: BootstrapId,
    /// The alarms of operators.
    raised: BTreeSet<NodeId>,
}

/// One key was changed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) main: i64,
    pub(crate) sub: u32,
    pub(crate) key: Bytes,
    pub(crate) before: Option<KeyValue>,
    pub(crate) after: Option<KeyValue>,
}

#[derive(Default)]
struct ModelSession {
    mark: u64,
    used: u64,
    replies: BTreeMap<u64, Verdict>,
    /// The runs of which replies are kept: of any number that is not acknowledged.
    runs: BTreeSet<u64>,
}

/// A lease; its keys are those of the store that say so.
#[derive(Clone, Debug)]
struct ModelLease {
    grant_index: u64,
    name: String,
    ttl_ms: u64,
    promised_ms: u64,
    checkpoint_ms: Option<u64>,
    keys_max: u64,
}

/// A reply without the sentences of its error.
pub(crate) type Verdict = (i64, Result<Option<ResponseBody>, (ErrorKind, Outcome)>);

pub(super) fn verdict(reply: Reply) -> Verdict {
    let strip = |error: Error| match error.kind {
        ErrorKind::SlowDown { .. } => (ErrorKind::SlowDown { retry_after_ms: 0 }, error.outcome),
        kind => (kind, error.outcome),
    };
    (reply.revision, reply.result.map_err(strip))
}

/// A write under way: the store as it will be, and what was changed so far.
struct Draft {
    main: i64,
    state: State,
    changes: Vec<Change>,
}

impl Draft {
    fn set(&mut self, key: &Bytes, after: Option<KeyValue>) {
        let before = match &after {
            Some(kv) => self.state.insert(key.clone(), kv.clone()),
            None => self.state.remove(key),
        };
        self.changes.push(Change {
            main: self.main,
            sub: u32::try_from(self.changes.len()).unwrap(),
            key: key.clone(),
            before,
            after,
        });
    }
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            revision: 1,
            compact_revision: 0,
            states: BTreeMap::from([(1, State::new())]),
            changes: Vec::new(),
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            cluster: None,
            bootstrap: BootstrapId(0),
            raised: BTreeSet::new(),
        }
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }

    /// Every change so far, in order.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// What there was at `revision`.
    pub(crate) fn state_at(&self, revision: i64) -> Vec<KeyValue> {
        self.states[&revision].values().cloned().collect()
    }

    pub(super) fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    pub(crate) fn apply(&mut self, id: LogId, command: Option<&Bytes>) -> Verdict {
        let no = |kind| Err((kind, Outcome::NotApplied));
        let Some(bytes) = command else {
            return (self.revision, Ok(None));
        };
        let Ok(command) = Command::decode(bytes) else {
            return (self.revision, no(ErrorKind::Unsupported));
        };
        match command {
            // Access control has tests of its own.
            Command::Write {
                author: Some(_), ..
            }
            | Command::OpenSession {
                author: Some(_), ..
            } => {
                unreachable!("the script draws no author")
            }
            Command::Write {
                author: None,
                session: None,
                operation,
            } => self.write(id, operation),
            Command::Write {
                author: None,
                session: Some(call),
                operation,
            } => self.write_once(id, call, operation),
            Command::OpenSession {
                author: None,
                sessions_max,
            } => {
                if self.sessions.len() >= sessions_max as usize {
                    return (self.revision, no(ErrorKind::SlowDown { retry_after_ms: 0 }));
                }
                let session = ModelSession {
                    used: id.index.0,
                    ..ModelSession::default()
                };
                let id = SessionId::new(id.index, self.bootstrap);
                self.sessions.insert(id, session);
                (self.revision, Ok(Some(ResponseBody::OpenSession { id })))
            }
            Command::Bootstrap(info) => self.bootstrap(info, BootstrapId(0)),
            Command::BootstrapAs { bootstrap, info } => self.bootstrap(info, bootstrap),
            Command::ForgetSessions {
                sessions,
                unused_since,
            } => {
                for id in sessions {
                    let used = self.sessions.get(&id).map(|session| session.used);
                    if used.is_some_and(|used| used <= unused_since.0) {
                        self.sessions.remove(&id);
                    }
                }
                (self.revision, Ok(None))
            }
            Command::ExpireLeases { term, leases } => {
                for lease in leases {
                    if term == id.term && self.find(lease).is_some() {
                        let mut draft = self.draft();
                        self.end(&mut draft, lease.id);
                        self.adopt(draft);
                    }
                }
                (self.revision, Ok(None))
            }
            Command::MarkLeases { term, marks } => {
                for LeaseMark { lease, kind } in marks {
                    let Some(found) = self.find(lease).filter(|_| term == id.term) else {
                        continue;
                    };
                    match kind {
                        LeaseMarkKind::Remaining(left) => found.checkpoint_ms = Some(left),
                        LeaseMarkKind::Clear => found.checkpoint_ms = None,
                        LeaseMarkKind::Settle { ttl_ms } if ttl_ms == found.ttl_ms => {
                            found.promised_ms = 0;
                        }
                        LeaseMarkKind::Settle { .. } => {}
                    }
                }
                (self.revision, Ok(None))
            }
            // No lease has so many keys here that its end would take a second step.
            Command::ContinueLeaseEnds { .. }
            | Command::CheckHash
            | Command::SetSpaceAlarm(_)
            | Command::RaiseVersion { .. }
            | Command::SetEtcdUrls(_) => (self.revision, Ok(None)),
        }
    }

    fn draft(&self) -> Draft {
        Draft {
            main: self.revision + 1,
            state: self.states[&self.revision].clone(),
            changes: Vec::new(),
        }
    }

    fn adopt(&mut self, draft: Draft) {
        if !draft.changes.is_empty() {
            self.revision = draft.main;
            self.states.insert(draft.main, draft.state);
            self.changes.extend(draft.changes);
        }
    }

    fn find(&mut self, lease: LeaseRef) -> Option<&mut ModelLease> {
        let found = self.leases.get_mut(&lease.id);
        found.filter(|found| lease.grant_index == 0 || lease.grant_index == found.grant_index)
    }

    fn grant(&mut self, id: LogId, grant: &LeaseGrant) -> Result<LeaseGrantResponse, ErrorKind> {
        let limit = grant.leases_max;
        if self.leases.len() as u64 >= limit {
            return Err(ErrorKind::LeaseLimit { limit });
        }
        let mut chosen = grant.id;
        if chosen == 0 {
            chosen = id.index.0 as i64;
            while self.leases.contains_key(&chosen) {
                chosen += 1 << 40;
            }
        }
        let mut named = self.leases.values().filter(|_| !grant.name.is_empty());
        if self.leases.contains_key(&chosen) || named.any(|lease| lease.name == grant.name) {
            return Err(ErrorKind::LeaseExists);
        }
        let lease = ModelLease {
            grant_index: id.index.0,
            name: grant.name.clone(),
            ttl_ms: grant.ttl_ms,
            promised_ms: 0,
            checkpoint_ms: None,
            keys_max: grant.keys_max,
        };
        self.leases.insert(chosen, lease);
        Ok(LeaseGrantResponse {
            id: chosen,
            grant_index: id.index.0,
            ttl_ms: grant.ttl_ms,
            requested_ttl_ms: grant.requested_ttl_ms,
            name: grant.name.clone(),
        })
    }

    /// Ends a lease and deletes its keys; says how many.
    fn end(&mut self, draft: &mut Draft, id: i64) -> u64 {
        self.leases.remove(&id);
        let held = draft.state.values().filter(|kv| kv.lease == id);
        let keys: Vec<Bytes> = held.map(|kv| kv.key.clone()).collect();
        for key in &keys {
            draft.set(key, None);
        }
        keys.len() as u64
    }

    fn target(&self, target: &LeaseTarget) -> Result<i64, ErrorKind> {
        let by_name = |name: &String| {
            let mut all = self.leases.iter();
            all.find(|(_, lease)| lease.name == *name)
                .map(|(id, _)| *id)
        };
        match target {
            LeaseTarget::None => Ok(0),
            LeaseTarget::Lease(lease) => match self.leases.get(&lease.id) {
                Some(found) if lease.grant_index == 0 || lease.grant_index == found.grant_index => {
                    Ok(lease.id)
                }
                _ => Err(ErrorKind::LeaseNotFound),
            },
            LeaseTarget::Name(name) => by_name(name).ok_or(ErrorKind::LeaseNotFound),
        }
    }

    fn bootstrap(&mut self, info: ClusterInfo, drawn: BootstrapId) -> Verdict {
        match &self.cluster {
            Some(set) if *set != info => {
                let refused = (ErrorKind::ClusterMismatch, Outcome::NotApplied);
                (self.revision, Err(refused))
            }
            Some(_) => (self.revision, Ok(None)),
            None => {
                self.cluster = Some(info);
                self.bootstrap = drawn;
                (self.revision, Ok(None))
            }
        }
    }

    fn write_once(&mut self, id: LogId, call: SessionCall, operation: Operation) -> Verdict {
        let unknown = |kind| Err((kind, Outcome::Unknown));
        let revision = self.revision;
        let Some(session) = self.sessions.get_mut(&call.id) else {
            return (revision, unknown(ErrorKind::SessionExpired));
        };
        let mark = session.mark.max(call.acknowledged);
        if call.sequence <= mark {
            return (revision, unknown(ErrorKind::StaleSequence));
        }
        session.mark = mark;
        session.used = id.index.0;
        session.replies.retain(|sequence, _| *sequence > mark);
        session.runs.retain(|run| run * RUN + (RUN - 1) > mark);
        if let Some(verdict) = session.replies.get(&call.sequence) {
            return verdict.clone();
        }
        let verdict = self.write(id, operation);
        let session = self.sessions.get_mut(&call.id).expect("it is there");
        session.replies.insert(call.sequence, verdict.clone());
        session.runs.insert(call.sequence / RUN);
        verdict
    }

    fn write(&mut self, id: LogId, operation: Operation) -> Verdict {
        let mut draft = Draft {
            main: self.revision + 1,
            state: self.states[&self.revision].clone(),
            changes: Vec::new(),
        };
        let result = match operation {
            growing if growing.takes_room() && !self.raised.is_empty() => {
                Err(ErrorKind::NoSpace { used: 0, quota: 0 })
            }
            Operation::Put(request) => self.put(&mut draft, request).map(ResponseBody::Put),
            Operation::DeleteRange(request) => {
                delete(&mut draft, &request).map(ResponseBody::DeleteRange)
            }
            Operation::Compact(request) => self.compact(request).map(|()| ResponseBody::Compact),
            Operation::Txn(request) => self.txn(&mut draft, &request).map(ResponseBody::Txn),
            Operation::LeaseGrant(request) => {
                self.grant(id, &request).map(ResponseBody::LeaseGrant)
            }
            Operation::LeaseRevoke(lease) => match self.find(lease) {
                Some(_) => {
                    let deleted = self.end(&mut draft, lease.id);
                    Ok(ResponseBody::LeaseRevoke(LeaseRevokeResponse {
                        deleted,
                        is_partial: false,
                    }))
                }
                None => Err(ErrorKind::LeaseNotFound),
            },
            Operation::LeaseUpdateTtl { lease, ttl_ms } => match self.find(lease) {
                Some(found) => {
                    let promised = found.promised_ms.max(found.ttl_ms);
                    found.promised_ms = if promised > ttl_ms { promised } else { 0 };
                    found.ttl_ms = ttl_ms;
                    Ok(ResponseBody::LeaseUpdateTtl { ttl_ms })
                }
                None => Err(ErrorKind::LeaseNotFound),
            },
            Operation::PutWithNewLease { grant, put } => {
                let leases = self.leases.clone();
                let both = self.grant(id, &grant).and_then(|grant| {
                    let put = PutRequest {
                        lease: LeaseTarget::Lease(LeaseRef::id(grant.id)),
                        ..put
                    };
                    let put = self.put(&mut draft, put)?;
                    let both = PutWithNewLeaseResponse { grant, put };
                    Ok(ResponseBody::PutWithNewLease(Box::new(both)))
                });
                if both.is_err() {
                    self.leases = leases;
                }
                both
            }
            Operation::Auth(_) => unreachable!("the script does not draw these"),
            Operation::SetAlarm { member, is_raised } => {
                let was_raised = match is_raised {
                    true => !self.raised.insert(member),
                    false => self.raised.remove(&member),
                };
                Ok(ResponseBody::Alarms(AlarmsResponse {
                    measured: false,
                    members: Vec::from_iter((is_raised || was_raised).then_some(member)),
                }))
            }
        };
        if result.is_ok() && !draft.changes.is_empty() {
            self.revision = draft.main;
            self.states.insert(draft.main, draft.state);
            self.changes.extend(draft.changes);
        }
        let result = result.map(Some).map_err(|kind| (kind, Outcome::NotApplied));
        (self.revision, result)
    }

    fn put(&self, draft: &mut Draft, request: PutRequest) -> Result<PutResponse, ErrorKind> {
        let both = request.ignore_lease && request.lease != LeaseTarget::None;
        if request.key.is_empty() || both || request.ignore_value && !request.value.is_empty() {
            return Err(ErrorKind::InvalidArgument);
        }
        let mut lease = self.target(&request.lease)?;
        let old = draft.state.get(&request.key).cloned();
        let value = match &old {
            None if request.ignore_value || request.ignore_lease => {
                return Err(ErrorKind::KeyNotFound);
            }
            Some(old) if request.ignore_value => old.value.clone(),
            _ => request.value,
        };
        if request.ignore_lease {
            lease = old.as_ref().map_or(0, |old| old.lease);
        }
        if old.as_ref().map_or(0, |old| old.lease) != lease
            && let Some(found) = self.leases.get(&lease)
        {
            let attached = draft.state.values().filter(|kv| kv.lease == lease);
            let limit = found.keys_max;
            if attached.count() as u64 >= limit {
                return Err(ErrorKind::LeaseLimit { limit });
            }
        }
        let new = KeyValue {
            key: request.key.clone(),
            value,
            create_revision: old.as_ref().map_or(draft.main, |old| old.create_revision),
            mod_revision: draft.main,
            version: old.as_ref().map_or(0, |old| old.version) + 1,
            lease,
        };
        draft.set(&request.key, Some(new));
        let prev_kv = old.filter(|_| request.prev_kv);
        Ok(PutResponse { prev_kv })
    }

    fn txn(&self, draft: &mut Draft, request: &TxnRequest) -> Result<TxnResponse, ErrorKind> {
        let mut courses = Vec::new();
        for branch in [&request.success, &request.failure] {
            courses.extend(courses_of(branch));
        }
        if courses.iter().any(|course| writes_twice(course)) {
            return Err(ErrorKind::DuplicateKey);
        }
        let before = draft.state.clone();
        self.carry_out(draft, &before, request)
    }

    fn carry_out(
        &self,
        draft: &mut Draft,
        before: &State,
        request: &TxnRequest,
    ) -> Result<TxnResponse, ErrorKind> {
        let succeeded = request.compare.iter().all(|compare| holds(before, compare));
        let mut responses = Vec::new();
        for op in if succeeded {
            &request.success
        } else {
            &request.failure
        } {
            responses.push(match op {
                TxnOp::Range(range) if range.revision == 0 => {
                    TxnOpResponse::Range(look(&draft.state, range))
                }
                TxnOp::Range(range) => TxnOpResponse::Range(self.read(range)?),
                TxnOp::Put(put) => TxnOpResponse::Put(self.put(draft, put.clone())?),
                TxnOp::DeleteRange(request) => TxnOpResponse::DeleteRange(delete(draft, request)?),
                TxnOp::Txn(txn) => TxnOpResponse::Txn(self.carry_out(draft, before, txn)?),
            });
        }
        Ok(TxnResponse {
            succeeded,
            responses,
        })
    }

    fn compact(&mut self, request: CompactionRequest) -> Result<(), ErrorKind> {
        let compact_revision = self.compact_revision;
        if request.revision <= compact_revision {
            return Err(ErrorKind::Compacted { compact_revision });
        }
        if request.revision > self.revision {
            return Err(ErrorKind::FutureRevision);
        }
        self.compact_revision = request.revision;
        Ok(())
    }

    /// What a range finds, replies of any size allowed.
    pub(super) fn read(&self, request: &RangeRequest) -> Result<RangeResponse, ErrorKind> {
        let revision = match request.revision {
            0 => self.revision,
            past => past,
        };
        if request.revision != 0 && revision < self.compact_revision {
            let compact_revision = self.compact_revision;
            return Err(ErrorKind::Compacted { compact_revision });
        }
        match self.states.range(..=revision).next_back() {
            Some((_, state)) if revision <= self.revision => Ok(look(state, request)),
            _ => Err(ErrorKind::FutureRevision),
        }
    }

    /// Whether `store` holds what this model holds, history aside.
    pub(super) fn check(&self, store: &MemStore) {
        let all = RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        };
        let found = range(store, &all, &Limits::DEFAULT).unwrap().unwrap().kvs;
        let expected: Vec<KeyValue> = self.states[&self.revision].values().cloned().collect();
        assert_eq!(found, expected);

        let progress = progress(store).unwrap();
        assert_eq!(progress.revision, self.revision);
        assert_eq!(progress.compact_revision, self.compact_revision);
        assert_eq!(progress.sessions, self.sessions.len() as u64);
        assert_eq!(cluster_info(store).unwrap(), self.cluster);
        assert!(leases_are_sound(store, &progress).unwrap());
        let terms = held_leases(store).unwrap().terms;
        let found: Vec<_> = terms
            .iter()
            .map(|terms| (terms.lease, terms.restart_ms))
            .collect();
        let expected = self.leases.iter().map(|(id, lease)| {
            let grant_index = lease.grant_index;
            let promised = lease.ttl_ms.max(lease.promised_ms);
            let restart = lease.checkpoint_ms.unwrap_or(promised);
            (
                LeaseRef {
                    id: *id,
                    grant_index,
                },
                restart,
            )
        });
        assert_eq!(found, expected.collect::<Vec<_>>());
        let kept: usize = self.sessions.values().map(|s| s.runs.len()).sum();
        assert_eq!(
            store.count(Space::Clients, &Span::all()).unwrap(),
            (kept + self.sessions.len()) as u64
        );
    }

    /// Whether `store` holds all history, as before any of it is removed.
    pub(super) fn check_uncompacted(&self, store: &MemStore) {
        self.check_history(store, |_| true, |_| true);
    }

    /// Whether `store` holds the history that is left once everything compacted is removed.
    pub(super) fn check_compacted(&self, store: &MemStore) {
        let limit = self.compact_revision;
        let newest: BTreeMap<Bytes, i64> = self
            .changes
            .iter()
            .filter(|change| change.main <= limit)
            .map(|change| (change.key.clone(), change.main))
            .collect();
        self.check_history(
            store,
            |change| change.main >= limit,
            |change| {
                let is_newest = newest.get(&change.key) == Some(&change.main);
                change.main > limit || is_newest && change.after.is_some()
            },
        );
    }

    fn check_history(
        &self,
        store: &MemStore,
        has_event: impl Fn(&Change) -> bool,
        has_record: impl Fn(&Change) -> bool,
    ) {
        let mut expected = MemStore::new();
        for change in &self.changes {
            let place = keys::Revision {
                main: change.main,
                sub: change.sub,
            };
            if has_event(change) {
                let before = change.before.as_ref().map_or(0, |kv| kv.mod_revision);
                let mut record = vec![u8::from(change.after.is_some())];
                record.extend_from_slice(&before.to_be_bytes());
                record.extend_from_slice(&change.key);
                expected.put(Space::Events, keys::event_key(place), record.into());
            }
            if has_record(change) {
                let mut record = vec![u8::from(change.after.is_some())];
                if let Some(kv) = &change.after {
                    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
                        record.extend_from_slice(&number.to_be_bytes());
                    }
                    record.extend_from_slice(&kv.value);
                }
                let key = keys::history_key(&change.key, place);
                expected.put(Space::History, key, record.into());
            }
        }
        for space in [Space::Events, Space::History] {
            let pairs = |store: &MemStore| -> Vec<Pair> {
                let pairs = store.range(space, &Span::all());
                pairs.map(Result::unwrap).collect()
            };
            assert_eq!(pairs(store), pairs(&expected), "{space}");
        }
    }
}

fn delete(
    draft: &mut Draft,
    request: &DeleteRangeRequest,
) -> Result<DeleteRangeResponse, ErrorKind> {
    if request.key.is_empty() && request.range == KeyRange::Single {
        return Err(ErrorKind::InvalidArgument);
    }
    let gone: Vec<KeyValue> = draft
        .state
        .values()
        .filter(|kv| matches(&request.key, &request.range, &kv.key))
        .cloned()
        .collect();
    for kv in &gone {
        draft.set(&kv.key, None);
    }
    Ok(DeleteRangeResponse {
        deleted: gone.len() as u64,
        prev_kvs: if request.prev_kv { gone } else { vec![] },
    })
}

fn holds(state: &State, compare: &Compare) -> bool {
    let keys: Vec<&KeyValue> = state
        .values()
        .filter(|kv| matches(&compare.key, &compare.range, &kv.key))
        .collect();
    let nothing = KeyValue::default();
    let is_right = |kv: &KeyValue| {
        let ordering = match &compare.target {
            CompareTarget::Version(given) => kv.version.cmp(given),
            CompareTarget::CreateRevision(given) => kv.create_revision.cmp(given),
            CompareTarget::ModRevision(given) => kv.mod_revision.cmp(given),
            CompareTarget::Lease(given) => kv.lease.cmp(given),
            CompareTarget::Value(given) => kv.value.cmp(given),
        };
        match compare.op {
            CompareOp::Equal => ordering == Ordering::Equal,
            CompareOp::NotEqual => ordering != Ordering::Equal,
            CompareOp::Less => ordering == Ordering::Less,
            CompareOp::Greater => ordering == Ordering::Greater,
        }
    };
    if keys.is_empty() {
        return !matches!(compare.target, CompareTarget::Value(_)) && is_right(&nothing);
    }
    keys.into_iter().all(is_right)
}

/// Every course that `ops` may take: which writes are carried out, for each way that the nested
/// comparisons may turn out.
fn courses_of(ops: &[TxnOp]) -> Vec<Vec<&TxnOp>> {
    let mut courses: Vec<Vec<&TxnOp>> = vec![vec![]];
    for op in ops {
        let ways: Vec<Vec<&TxnOp>> = match op {
            TxnOp::Txn(txn) => {
                let mut ways = courses_of(&txn.success);
                ways.extend(courses_of(&txn.failure));
                ways
            }
            op => vec![vec![op]],
        };
        courses = courses
            .iter()
            .flat_map(|course| {
                ways.iter()
                    .map(move |way| course.iter().chain(way).copied().collect())
            })
            .collect();
    }
    courses
}

fn writes_twice(course: &[&TxnOp]) -> bool {
    let puts: Vec<&Bytes> = course
        .iter()
        .filter_map(|op| match op {
            TxnOp::Put(put) => Some(&put.key),
            _ => None,
        })
        .collect();
    let is_deleted = |key: &Bytes| {
        course.iter().any(|op| match op {
            TxnOp::DeleteRange(delete) => matches(&delete.key, &delete.range, key),
            _ => false,
        })
    };
    let mut unique = puts.clone();
    unique.sort();
    unique.dedup();
    unique.len() < puts.len() || puts.into_iter().any(is_deleted)
}

/// What `request` finds in `state`.
fn look(state: &State, request: &RangeRequest) -> RangeResponse {
    let mut kvs: Vec<KeyValue> = state
        .values()
        .filter(|kv| matches(&request.key, &request.range, &kv.key))
        .cloned()
        .collect();
    let count = kvs.len() as u64;
    if request.is_count_only() {
        return RangeResponse {
            count,
            ..RangeResponse::default()
        };
    }
    kvs.retain(|kv| kv.mod_revision >= request.min_mod_revision);
    kvs.retain(|kv| kv.create_revision >= request.min_create_revision);
    if request.max_mod_revision != 0 {
        kvs.retain(|kv| kv.mod_revision <= request.max_mod_revision);
    }
    if request.max_create_revision != 0 {
        kvs.retain(|kv| kv.create_revision <= request.max_create_revision);
    }
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let names_no_order = request.sort_order == SortOrder::None && bounds == [0; 4];
    if names_no_order && request.sort_target != SortTarget::Key && request.limit != 0 {
        // As etcd does it: what is sorted are the first ones by key, and one more.
        kvs.truncate(request.limit as usize + 1);
    }
    let descending = request.sort_order == SortOrder::Descend;
    kvs.sort_by(|left, right| {
        let by = match request.sort_target {
            SortTarget::Key => left.key.cmp(&right.key),
            SortTarget::Version => left.version.cmp(&right.version),
            SortTarget::CreateRevision => left.create_revision.cmp(&right.create_revision),
            SortTarget::ModRevision => left.mod_revision.cmp(&right.mod_revision),
            SortTarget::Value => left.value.cmp(&right.value),
        };
        if descending { by.reverse() } else { by }
    });
    let mut more = false;
    if request.limit != 0 && kvs.len() as u64 > request.limit {
        kvs.truncate(request.limit as usize);
        more = true;
    }
    if request.keys_only {
        for kv in &mut kvs {
            kv.value = Bytes::new();
        }
    }
    let count = match request.count == RangeCount::ToLimit && more {
        true => kvs.len() as u64,
        false => count,
    };
    RangeResponse { kvs, more, count }
}

/// Whether a request for `key` and `range` means `other`.
pub(super) fn matches(key: &Bytes, range: &KeyRange, other: &Bytes) -> bool {
    match range {
        KeyRange::Single => other == key,
        KeyRange::Prefix => other.starts_with(key),
        KeyRange::Until(end) => other >= key && other < end,
        KeyRange::From => other >= key,
    }
}
