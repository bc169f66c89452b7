//! The state machine: whatever stands in an entry, and programs of clients against a model.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use leasehold::api::{
    ClusterInfo, CompactionRequest, Compare, CompareOp, CompareTarget, DeleteRangeRequest,
    DeleteRangeResponse, ErrorKind, KeyRange, KeyValue, LeaseRef, LeaseRevokeResponse, LeaseTarget,
    Limits, Outcome, PutRequest, PutResponse, PutWithNewLeaseResponse, RangeRequest, RangeResponse,
    ResponseBody, SessionCall, TxnOp, TxnOpResponse, TxnRequest, TxnResponse,
};
use leasehold::kv;
use leasehold::kv::{
    Command, CompactionBudget, LeaseGrant, MemStore, OUTSTANDING_MAX, Operation, Overlay, Reply,
    ScanBudget, Store,
};
use leasehold::types::{BootstrapId, ClusterId, LogId, LogIndex, SessionId};

use super::draw::Draw;
use super::leases::Leases;
use super::ranges::{Held, History, State};
use super::trace::say;
use super::{leases, meter, ranges};

/// Steps of one input; what follows is not read.
const STEPS_MAX: usize = 300;

/// The bytes of an entry, whoever wrote them: they are refused or applied, on a store that holds
/// something, and what they say is said again in the same way.
pub fn commands(data: &[u8]) {
    let (decoded, peak) = meter::peak(|| Command::decode(data));
    // A list of sessions may be claimed to be long; serde sets a megabyte aside before it looks.
    let fair = 16 * data.len() + (1 << 20) + (64 << 10);
    assert!(peak <= fair, "{peak} bytes for a command of {}", data.len());
    if let Ok(command) = &decoded {
        let written = command.encode();
        let again = Command::decode(&written).expect("what we write we can read");
        assert_eq!(&again, command);
        assert_eq!(again.encode(), written, "there is one way to say it");
    }
    let mut store = MemStore::new();
    let (one, two) = (entry(1), entry(2));
    let opened = Command::OpenSession {
        author: None,
        sessions_max: 2,
    }
    .encode();
    kv::apply(&mut store, one, Some(&opened)).expect("memory does not fail");
    let put = Command::Write {
        author: None,
        session: None,
        operation: Operation::Put(PutRequest {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
            ..PutRequest::default()
        }),
    };
    kv::apply(&mut store, two, Some(&put.encode())).expect("memory does not fail");
    let mut other = store.clone();
    for index in 3..5 {
        let reply = kv::apply(&mut store, entry(index), Some(data)).expect("memory does not fail");
        let same = kv::apply(&mut other, entry(index), Some(data)).expect("memory does not fail");
        assert_eq!(reply, same, "replicas agree");
        if decoded.is_err() {
            assert!(reply.result.is_err());
        }
    }
    assert_eq!(kv::content_hash(&store), kv::scan(&store));
    assert_eq!(store, other);
}

fn entry(index: u64) -> LogId {
    LogId::new(LogIndex(index), leases::TERM)
}

/// Programs of clients with sessions, retries, forgotten sessions and leases, and of leaders that end
/// leases, on a store in memory and on one that is written in batches, against maps that know nothing
/// of either.
pub fn kv_model(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::default();
    for _ in 0..STEPS_MAX {
        if draw.is_over() {
            break;
        }
        world.step(&mut draw);
    }
    world.compare_everything();
}

#[derive(Default)]
struct World {
    store: MemStore,
    batched: Batched,
    model: Model,
    held: Option<Held>,
    index: u64,
}

/// A store whose writes gather above it, as on a disk.
#[derive(Default)]
struct Batched {
    below: MemStore,
    above: Vec<(LogId, Option<Bytes>)>,
}

impl Batched {
    /// Applies what has gathered in one piece.
    fn settle(&mut self) -> Vec<Reply> {
        let mut overlay = Overlay::new(std::mem::take(&mut self.below));
        let apply = |(id, command): (LogId, Option<Bytes>)| {
            kv::apply(&mut overlay, id, command.as_deref()).expect("memory does not fail")
        };
        let replies = self.above.drain(..).map(apply).collect();
        // What is below cannot be taken out again, so it is what the overlay shows.
        let mut below = MemStore::new();
        for space in kv::Space::ALL {
            for pair in kv::View::range(&overlay, space, &kv::Span::all()) {
                let (key, record) = pair.expect("memory does not fail");
                below.put(space, key, record);
            }
        }
        self.below = below;
        replies
    }
}

impl World {
    fn step(&mut self, draw: &mut Draw<'_>) {
        match draw.byte() % 16 {
            0..=6 => {
                let command = Command::Write {
                    author: None,
                    session: self.session(draw),
                    operation: operation(draw, &self.model),
                };
                self.run(&command);
            }
            7 => self.run(&Command::OpenSession {
                author: None,
                sessions_max: u32::from(draw.byte() % 4),
            }),
            8 => {
                let sessions = (0..draw.below(4)).map(|_| self.some_session(draw));
                let sessions = sessions.collect();
                self.run(&Command::ForgetSessions {
                    sessions,
                    unused_since: LogIndex(draw.number(&[self.index])),
                });
            }
            9 => {
                let drawn = u128::from(draw.byte() % 2);
                let info = ClusterInfo {
                    cluster_id: ClusterId(drawn),
                    members: Vec::new(),
                };
                self.run(&match draw.one_in(2) {
                    true => Command::Bootstrap(info),
                    false => Command::BootstrapAs {
                        bootstrap: BootstrapId((drawn + 1) << 40),
                        info,
                    },
                });
            }
            10 => self.entry(None),
            11 => self.compare_batched(),
            // Each replica removes what is compacted at its own pace.
            12 => {
                sweep(&mut self.store, usize::from(draw.byte() % 4), 1);
            }
            13 => self.scan(draw),
            14 => {
                let command = self.model.leases.draw_decision(draw);
                self.run(&command);
            }
            _ => self.read(draw),
        }
    }

    fn some_session(&self, draw: &mut Draw<'_>) -> SessionId {
        let open: Vec<u64> = self.model.sessions.keys().map(|id| id.0).collect();
        match draw.one_in(8) {
            false if !open.is_empty() => SessionId(open[draw.below(open.len())]),
            _ => SessionId(draw.number(&[self.index])),
        }
    }

    fn session(&self, draw: &mut Draw<'_>) -> Option<SessionCall> {
        if draw.one_in(4) {
            return None;
        }
        let id = self.some_session(draw);
        let mark = self
            .model
            .sessions
            .get(&id)
            .map_or(0, |session| session.mark);
        Some(SessionCall {
            id,
            sequence: draw.number(&[0, 1, 2, OUTSTANDING_MAX].map(|more| mark.wrapping_add(more))),
            acknowledged: match draw.below(4) {
                0 => draw.number(&[mark]),
                _ => mark,
            },
        })
    }

    fn run(&mut self, command: &Command) {
        say(format_args!("{} {command:?}", self.index + 1));
        let bytes = command.encode();
        self.entry(Some((command, bytes)));
    }

    fn entry(&mut self, command: Option<(&Command, Bytes)>) {
        self.index += 1;
        let id = entry(self.index);
        let bytes = command.as_ref().map(|(_, bytes)| bytes.clone());
        let reply = kv::apply(&mut self.store, id, bytes.as_deref()).expect("memory does not fail");
        self.batched.above.push((id, bytes));
        if let Some((command, _)) = command {
            self.model.expect(self.index, command, &reply);
        }
        self.model.leases.hear(&reply.leases);
        let progress = kv::progress(&self.store).expect("memory does not fail");
        assert_eq!(progress.applied, id);
        assert_eq!(progress.revision, self.model.revision());
        assert_eq!(progress.compact_revision, self.model.history.compacted);
        assert_eq!(progress.sessions, self.model.sessions.len() as u64);
        assert_eq!(progress.leases, self.model.leases.count());
    }

    /// Any range, with any trimming, against the model.
    fn read(&mut self, draw: &mut Draw<'_>) {
        let (from, to) = (key(draw), range(draw));
        let request = ranges::request(draw, from, to, &self.model.history);
        let limits = Limits {
            reply_bytes_max: [512, 600, 1000, 1 << 20][draw.below(4)],
            ..Limits::DEFAULT
        };
        say(format_args!(
            "{request:?} within {}",
            limits.reply_bytes_max
        ));
        let found = kv::range(&self.store, &request, &limits).expect("memory does not fail");
        self.model.history.check(&request, &limits, &found);
    }

    /// Begins a scan or takes it a step further; between its steps anything may happen.
    fn scan(&mut self, draw: &mut Draw<'_>) {
        let Some(held) = self.held.take() else {
            let (from, to) = (key(draw), range(draw));
            let request = ranges::request(draw, from, to, &self.model.history);
            say(format_args!("scan {request:?}"));
            self.held = Held::begin(&self.store, request, &self.model.history);
            return;
        };
        let budget = ScanBudget {
            keys: draw.below(4),
            bytes: [0, 20, 1 << 20][draw.below(3)],
        };
        self.held = held.step(&self.store, &budget, &self.model.history);
    }

    /// The store that is written in batches is the same store, and both are what the model says.
    fn compare_batched(&mut self) {
        self.batched.settle();
        let (one, other) = (&self.store, &self.batched.below);
        assert_eq!(
            kv::content_hash(one),
            kv::content_hash(other),
            "batches change nothing"
        );
        assert_eq!(kv::scan(one), kv::scan(other));
    }

    fn compare_everything(&mut self) {
        self.compare_batched();
        assert_eq!(
            kv::content_hash(&self.store),
            kv::scan(&self.store),
            "the hash is kept"
        );
        let all = RangeRequest {
            range: KeyRange::From,
            ..RangeRequest::default()
        };
        let held = kv::range(&self.store, &all, &Limits::DEFAULT).expect("memory does not fail");
        self.model.history.check(&all, &Limits::DEFAULT, &held);
        let leases = &self.model.leases;
        leases.check(&self.store, self.model.history.now());
        let idle = kv::idle_sessions(&self.store, LogIndex(self.index), usize::MAX);
        let idle: BTreeSet<SessionId> = idle.expect("memory does not fail").into_iter().collect();
        assert_eq!(idle, self.model.sessions.keys().copied().collect());
    }
}

/// Removes some of what is compacted; whether all of it is gone.
fn sweep(store: &mut MemStore, events: usize, bytes: usize) -> bool {
    let budget = CompactionBudget { events, bytes };
    let step = kv::compact_step(store, &budget).expect("memory does not fail");
    assert!(step.events <= events.max(1));
    step.finished
}

/// A few short keys that are prefixes and neighbours of each other.
fn key(draw: &mut Draw<'_>) -> Bytes {
    const LETTERS: [u8; 4] = [0, b'a', b'b', 0xff];
    let shape = draw.byte();
    let length = usize::from(shape % 4);
    let letter = |place: usize| LETTERS[usize::from(shape >> (2 + 2 * place) & 3)];
    (0..length).map(letter).collect()
}

fn range(draw: &mut Draw<'_>) -> KeyRange {
    match draw.below(5) {
        0 | 1 => KeyRange::Single,
        2 => KeyRange::Prefix,
        3 => KeyRange::Until(key(draw)),
        _ => KeyRange::From,
    }
}

fn operation(draw: &mut Draw<'_>, model: &Model) -> Operation {
    let revision = model.revision();
    if draw.one_in(8) {
        return Operation::Compact(CompactionRequest {
            revision: draw.number(&[0, revision as u64]) as i64,
            physical: false,
        });
    }
    let kind = draw.byte() % 8;
    match kind {
        0..=2 => Operation::Put(plain_put(draw)),
        4 | 5 => Operation::Put(leased_put(draw, model)),
        6 => model.leases.draw_operation(draw, plain_put),
        7 => Operation::Txn(txn(draw, model)),
        _ => Operation::DeleteRange(DeleteRangeRequest {
            key: key(draw),
            range: range(draw),
            prev_kv: draw.bool(),
        }),
    }
}

fn plain_put(draw: &mut Draw<'_>) -> PutRequest {
    let large = draw.one_in(16);
    let value = draw.bytes(12);
    PutRequest {
        key: key(draw),
        value: match large {
            true => Bytes::from(vec![7; 5 << 10]),
            false => Bytes::copy_from_slice(value),
        },
        prev_kv: draw.bool(),
        ..PutRequest::default()
    }
}

/// One that names a lease, or keeps the value or the lease that its key has.
fn leased_put(draw: &mut Draw<'_>, model: &Model) -> PutRequest {
    let ignore_value = draw.one_in(4);
    PutRequest {
        key: key(draw),
        value: match ignore_value {
            true => Bytes::new(),
            false => Bytes::copy_from_slice(draw.bytes(4)),
        },
        prev_kv: draw.bool(),
        ignore_value,
        ignore_lease: draw.one_in(4),
        lease: model.leases.draw_target(draw),
    }
}

/// A transaction of single keys, many of them the same; nested ones are for the unit tests.
fn txn(draw: &mut Draw<'_>, model: &Model) -> TxnRequest {
    let revision = model.revision();
    let compares = draw.below(3);
    let compare = |draw: &mut Draw<'_>| {
        let (key, version) = (key(draw), draw.bool());
        let given = draw.number(&[0, 1, revision as u64]) as i64;
        let op = draw.of(&[
            CompareOp::Equal,
            CompareOp::NotEqual,
            CompareOp::Less,
            CompareOp::Greater,
        ]);
        match version {
            true => Compare::version(key, op, given),
            false => Compare::mod_revision(key, op, given),
        }
    };
    let compare = (0..compares).map(|_| compare(draw)).collect();
    TxnRequest {
        compare,
        success: ops(draw, model),
        failure: ops(draw, model),
    }
}

fn ops(draw: &mut Draw<'_>, model: &Model) -> Vec<TxnOp> {
    let op = |draw: &mut Draw<'_>| match draw.below(6) {
        5 => TxnOp::Put(leased_put(draw, model)),
        0 => TxnOp::put(key(draw), Bytes::copy_from_slice(draw.bytes(12))),
        1 => TxnOp::delete(key(draw)),
        _ => TxnOp::get(key(draw)),
    };
    (0..draw.below(4)).map(|_| op(draw)).collect()
}

/// What the state machine should be: maps, and the rules of README and `kv/mod.rs`.
#[derive(Default)]
struct Model {
    history: History,
    sessions: BTreeMap<SessionId, Session>,
    leases: Leases,
    cluster: Option<ClusterInfo>,
    bootstrap: BootstrapId,
    /// There is no room.
    is_full: bool,
}

#[derive(Default)]
struct Session {
    mark: u64,
    used: u64,
    /// First replies by number, of those above the mark.
    replies: BTreeMap<u64, Reply>,
}

impl Model {
    fn revision(&self) -> i64 {
        self.history.revision()
    }

    /// Applies `command` and compares what it should answer.
    fn expect(&mut self, index: u64, command: &Command, reply: &Reply) {
        match command {
            Command::SetSpaceAlarm(alarm) => {
                self.is_full = alarm.is_some();
                assert_eq!(reply.result, Ok(None));
            }
            Command::CheckHash => {
                assert_eq!(reply.revision, self.revision());
                assert_eq!(reply.result, Ok(None));
                assert!(reply.hash.is_some());
            }
            Command::Write {
                author: None,
                session: None,
                operation,
            } => {
                let expected = self.write(index, operation);
                assert_eq!(reply.revision, self.revision());
                self.matches(expected, reply);
            }
            Command::Write {
                author: None,
                session: Some(call),
                operation,
            } => self.write_once(index, *call, operation, reply),
            Command::OpenSession {
                author: None,
                sessions_max,
            } => {
                let id = SessionId::new(LogIndex(index), self.bootstrap);
                if self.sessions.len() as u64 >= u64::from(*sessions_max) {
                    let error = reply.result.as_ref().expect_err("the table is full");
                    assert!(matches!(error.kind, ErrorKind::SlowDown { .. }));
                    assert_eq!(error.outcome, Outcome::NotApplied);
                } else {
                    assert_eq!(reply.result, Ok(Some(ResponseBody::OpenSession { id })));
                    let session = Session {
                        used: index,
                        ..Session::default()
                    };
                    self.sessions.insert(id, session);
                }
            }
            Command::Bootstrap(info) | Command::BootstrapAs { info, .. } => {
                if let (None, Command::BootstrapAs { bootstrap, .. }) = (&self.cluster, command) {
                    self.bootstrap = *bootstrap;
                }
                let first = self.cluster.get_or_insert_with(|| info.clone());
                assert_eq!(reply.result.is_ok(), first == info);
            }
            Command::ForgetSessions {
                sessions,
                unused_since,
            } => {
                for id in sessions {
                    let used = self.sessions.get(id).map(|session| session.used);
                    if used.is_some_and(|used| used <= unused_since.0) {
                        self.sessions.remove(id);
                    }
                }
                assert_eq!(reply.result, Ok(None));
            }
            Command::ExpireLeases { term, leases } => {
                for lease in leases.iter().filter(|_| *term == leases::TERM) {
                    // A revision for each that had keys.
                    self.end(*lease);
                }
                assert_eq!(reply.revision, self.revision());
                assert_eq!(reply.result, Ok(None));
            }
            Command::MarkLeases { term, marks } => {
                self.leases.mark(*term, marks);
                assert_eq!(reply.result, Ok(None));
            }
            Command::ContinueLeaseEnds { .. }
            | Command::RaiseVersion { .. }
            | Command::SetEtcdUrls(_) => {
                assert_eq!(reply.result, Ok(None));
            }
            Command::Write { .. } | Command::OpenSession { .. } => {
                unreachable!("the target draws no author")
            }
        }
    }

    fn write_once(&mut self, index: u64, call: SessionCall, operation: &Operation, reply: &Reply) {
        let refused = |kind: fn(&ErrorKind) -> bool, outcome| {
            let error = reply.result.as_ref().expect_err("it must be refused");
            assert!(kind(&error.kind) && error.outcome == outcome, "{error:?}");
        };
        let revision = self.revision();
        let Some(session) = self.sessions.get_mut(&call.id) else {
            return refused(|kind| *kind == ErrorKind::SessionExpired, Outcome::Unknown);
        };
        let mark = session.mark.max(call.acknowledged);
        if call.sequence <= mark {
            return refused(|kind| *kind == ErrorKind::StaleSequence, Outcome::Unknown);
        }
        let first = session.replies.get(&call.sequence).cloned();
        if first.is_none() && call.sequence - mark > OUTSTANDING_MAX {
            assert_eq!(reply.revision, revision);
            return refused(
                |kind| matches!(kind, ErrorKind::SlowDown { .. }),
                Outcome::NotApplied,
            );
        }
        session.mark = mark;
        session.used = index;
        session.replies = session.replies.split_off(&mark.saturating_add(1));
        let Some(first) = first else {
            let expected = self.write(index, operation);
            assert_eq!(reply.revision, self.revision());
            self.matches(expected, reply);
            let session = self.sessions.get_mut(&call.id).expect("it is still open");
            session.replies.insert(call.sequence, reply.clone());
            return;
        };
        assert_eq!(
            reply.revision, first.revision,
            "a retry is answered as the first time was"
        );
        match &reply.result {
            // The values from before the write were too large to be kept.
            Err(error) if error.kind == ErrorKind::ReplyNotKept => {
                assert_eq!(error.outcome, Outcome::Applied);
                assert!(
                    previous_bytes(&first) > 0,
                    "only what was there before may be left out"
                );
            }
            _ => assert_eq!(reply.result, first.result),
        }
        assert_eq!(reply.leases, [], "nothing happens a second time");
    }

    /// Ends a lease: how many keys went with it. `None` if there is no such.
    fn end(&mut self, lease: LeaseRef) -> Option<u64> {
        let mut state = self.history.now().clone();
        let deleted = self.leases.end(&mut state, lease)?;
        if deleted > 0 {
            self.history.push(state);
        }
        Some(deleted)
    }

    /// `None` if the write is refused.
    fn write(&mut self, index: u64, operation: &Operation) -> Option<ResponseBody> {
        if self.is_full && operation.takes_room() {
            return None;
        }
        match operation {
            Operation::Compact(request) => {
                let possible = request.revision > self.history.compacted
                    && request.revision <= self.revision();
                if possible {
                    self.history.compacted = request.revision;
                }
                possible.then_some(ResponseBody::Compact)
            }
            Operation::Put(request) => {
                let mut state = self.history.now().clone();
                let main = self.revision() + 1;
                let answer = put(&mut state, &mut self.leases, main, request)?;
                self.history.push(state);
                Some(ResponseBody::Put(answer))
            }
            Operation::DeleteRange(request) => {
                let mut state = self.history.now().clone();
                let answer = delete(&mut state, request)?;
                if answer.deleted > 0 {
                    self.history.push(state);
                }
                Some(ResponseBody::DeleteRange(answer))
            }
            Operation::Txn(txn) => self.transact(txn).map(ResponseBody::Txn),
            Operation::LeaseGrant(grant) => {
                let granted = self.leases.grant(index, grant)?;
                Some(ResponseBody::LeaseGrant(granted))
            }
            Operation::LeaseRevoke(lease) => {
                let deleted = self.end(*lease)?;
                Some(ResponseBody::LeaseRevoke(LeaseRevokeResponse {
                    deleted,
                    is_partial: false,
                }))
            }
            Operation::LeaseUpdateTtl { lease, ttl_ms } => {
                let ttl_ms = self.leases.update_ttl(*lease, *ttl_ms)?;
                Some(ResponseBody::LeaseUpdateTtl { ttl_ms })
            }
            Operation::PutWithNewLease { grant, put } => self.put_with_new_lease(index, grant, put),
            Operation::Auth(_) | Operation::SetAlarm { .. } => {
                unreachable!("users, roles and alarms are not drawn")
            }
        }
    }

    /// Both or neither.
    fn put_with_new_lease(
        &mut self,
        index: u64,
        grant: &LeaseGrant,
        request: &PutRequest,
    ) -> Option<ResponseBody> {
        let mut leases = self.leases.clone();
        let mut state = self.history.now().clone();
        let grant = leases.grant(index, grant)?;
        let request = PutRequest {
            lease: LeaseTarget::Lease(LeaseRef::id(grant.id)),
            ..request.clone()
        };
        let put = put(&mut state, &mut leases, self.revision() + 1, &request)?;
        self.leases = leases;
        self.history.push(state);
        let both = PutWithNewLeaseResponse { grant, put };
        Some(ResponseBody::PutWithNewLease(Box::new(both)))
    }

    fn transact(&mut self, txn: &TxnRequest) -> Option<TxnResponse> {
        if writes_twice(&txn.success) || writes_twice(&txn.failure) {
            return None;
        }
        let mut state = self.history.now().clone();
        let succeeded = txn.compare.iter().all(|compare| holds(&state, compare));
        let branch = match succeeded {
            true => &txn.success,
            false => &txn.failure,
        };
        let mut changes = false;
        let mut responses = Vec::new();
        for op in branch {
            responses.push(match op {
                TxnOp::Put(request) => {
                    changes = true;
                    let main = self.revision() + 1;
                    TxnOpResponse::Put(put(&mut state, &mut self.leases, main, request)?)
                }
                TxnOp::DeleteRange(request) => {
                    let answer = delete(&mut state, request)?;
                    changes |= answer.deleted > 0;
                    TxnOpResponse::DeleteRange(answer)
                }
                TxnOp::Range(request) => {
                    let kvs = ranges::within(&state, &request.key, &request.range);
                    TxnOpResponse::Range(RangeResponse {
                        count: kvs.len() as u64,
                        more: false,
                        kvs,
                    })
                }
                TxnOp::Txn(_) => unreachable!("none are drawn"),
            });
        }
        if changes {
            self.history.push(state);
        }
        Some(TxnResponse {
            succeeded,
            responses,
        })
    }

    fn matches(&self, expected: Option<ResponseBody>, reply: &Reply) {
        match (expected, &reply.result) {
            (Some(expected), Ok(Some(found))) => assert_eq!(*found, expected),
            (None, Err(error)) => assert_eq!(error.outcome, Outcome::NotApplied),
            (expected, found) => panic!("expected {expected:?}, found {found:?}"),
        }
    }
}

/// `None` if the put is refused.
fn put(
    state: &mut State,
    leases: &mut Leases,
    revision: i64,
    put: &PutRequest,
) -> Option<PutResponse> {
    if put.key.is_empty() || put.ignore_lease && put.lease != LeaseTarget::None {
        return None;
    }
    let named = leases.target(&put.lease)?;
    let old = state.get(&put.key).cloned();
    if old.is_none() && (put.ignore_value || put.ignore_lease) {
        return None;
    }
    let kept = |ignored: bool| old.as_ref().filter(|_| ignored);
    let kv = KeyValue {
        key: put.key.clone(),
        value: kept(put.ignore_value).map_or_else(|| put.value.clone(), |old| old.value.clone()),
        create_revision: old.as_ref().map_or(revision, |old| old.create_revision),
        mod_revision: revision,
        version: old.as_ref().map_or(1, |old| old.version + 1),
        lease: kept(put.ignore_lease).map_or(named, |old| old.lease),
    };
    state.insert(put.key.clone(), kv);
    let prev_kv = old.filter(|_| put.prev_kv);
    Some(PutResponse { prev_kv })
}

/// `None` if the delete is refused.
fn delete(state: &mut State, delete: &DeleteRangeRequest) -> Option<DeleteRangeResponse> {
    if delete.range == KeyRange::Single && delete.key.is_empty() {
        return None;
    }
    let old = ranges::within(state, &delete.key, &delete.range);
    state.retain(|key, _| old.iter().all(|kv| kv.key != key));
    let deleted = old.len() as u64;
    let prev_kvs = if delete.prev_kv { old } else { Vec::new() };
    Some(DeleteRangeResponse { deleted, prev_kvs })
}

fn holds(state: &State, compare: &Compare) -> bool {
    let found = state.get(&compare.key);
    let (there, given) = match &compare.target {
        CompareTarget::Version(given) => (found.map_or(0, |kv| kv.version), *given),
        CompareTarget::ModRevision(given) => (found.map_or(0, |kv| kv.mod_revision), *given),
        _ => unreachable!("none are drawn"),
    };
    match compare.op {
        CompareOp::Equal => there == given,
        CompareOp::NotEqual => there != given,
        CompareOp::Less => there < given,
        CompareOp::Greater => there > given,
    }
}

/// Whether two puts of a branch, or a put and a delete, are of one key.
fn writes_twice(ops: &[TxnOp]) -> bool {
    let puts = |key: &Bytes| {
        let same = |op: &&TxnOp| matches!(op, TxnOp::Put(put) if put.key == key);
        ops.iter().filter(same).count()
    };
    ops.iter().any(|op| match op {
        TxnOp::Put(put) => puts(&put.key) > 1,
        TxnOp::DeleteRange(delete) => puts(&delete.key) > 0,
        TxnOp::Range(_) | TxnOp::Txn(_) => false,
    })
}

/// What of a reply may be too large to be kept for a retry.
fn previous_bytes(reply: &Reply) -> usize {
    let bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
    match &reply.result {
        Ok(Some(ResponseBody::Put(put))) => put.prev_kv.as_ref().map_or(0, bytes),
        Ok(Some(ResponseBody::PutWithNewLease(both))) => both.put.prev_kv.as_ref().map_or(0, bytes),
        Ok(Some(ResponseBody::DeleteRange(delete))) => delete.prev_kvs.iter().map(bytes).sum(),
        Ok(Some(ResponseBody::Txn(txn))) => {
            let shown = txn.responses.iter().map(|response| match response {
                TxnOpResponse::Range(range) => range.kvs.iter().map(bytes).sum(),
                _ => 0,
            });
            shown.sum()
        }
        _ => 0,
    }
}
