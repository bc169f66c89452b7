//! E1 to E3, K1 to K3, C7 against the committed log: what the store should be, by a model of its own.
//!
//! The model is a map and a set of numbers, and knows nothing of `kv` but the form of its commands.
//! It runs through everything that was committed; then every answer that a client got must be what
//! the model says at that answer's revision, every write acknowledged is there exactly once, every
//! write refused is not there, and every replica's store is the model at the index it has applied.

mod locks;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use leasehold::api::{
    CompareTarget, KeyRange, KeyValue, LeaseRef, LeaseTarget, Limits, PutRequest, RangeRequest,
    TxnOp, TxnRequest,
};
use leasehold::kv;
use leasehold::kv::{Command, Operation};
use leasehold::types::{BootstrapId, LogIndex, SessionId, Term};

use super::{Committed, Violation, id, violation};
use crate::history;
use crate::history::{Action, Fate, Found, History, Key, Value};
use crate::marks::{Mark, Marks};
use crate::state::Look;

pub(crate) use locks::{Claim, entry, place_of, register};

/// Keys of holders of leases, beside those of the other clients.
const HELD: Key = 1_000;

/// The store's name of a key, whoever's it is.
fn name(key: Key) -> Bytes {
    match (locks::name(key), key.checked_sub(HELD)) {
        (Some(name), _) => name,
        (None, Some(number)) => crate::holders::key(number as usize),
        (None, None) => history::name(key),
    }
}

/// The number of a key of a holder of leases.
fn held_key(name: &[u8]) -> Option<Key> {
    let digits = name.strip_prefix(b"l")?;
    let number: Key = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(HELD + number)
}

/// The number of anybody's key.
fn any_key(name: &[u8]) -> Option<Key> {
    history::key(name)
        .or_else(|| held_key(name))
        .or_else(|| locks::key(name))
}

/// What the log means, as far as it was gone through.
#[derive(Default)]
pub(crate) struct Model {
    /// By key: the revisions that changed it, and to what.
    versions: BTreeMap<Key, Vec<(i64, Option<Value>)>>,
    /// By value: the revisions that wrote it. More than one is one too many.
    written: BTreeMap<Value, Vec<i64>>,
    /// What the keys hold, and every change of them in order: what watches are told.
    current: BTreeMap<Key, KeyValue>,
    changes: Vec<Change>,
    /// The revision after each entry.
    revisions: Vec<i64>,
    /// Where the compact revision moved, by the number of the entry.
    compactions: Vec<(u64, i64)>,
    bootstrap: BootstrapId,
    sessions: BTreeMap<SessionId, Session>,
    leases: BTreeMap<i64, Lease>,
    /// By lock: the largest token that a write was let through with.
    tokens: BTreeMap<u64, i64>,
    /// What no log may say.
    objection: Option<Violation>,
}

/// One change of one key.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) key: Bytes,
    pub(crate) before: Option<KeyValue>,
    pub(crate) after: Option<KeyValue>,
}

/// A client lease, and the keys that hang on it.
#[derive(Default)]
struct Lease {
    grant_index: u64,
    keys: BTreeSet<Key>,
}

#[derive(Default)]
struct Session {
    acknowledged: u64,
    applied: BTreeSet<u64>,
    used: u64,
}

impl Model {
    /// Goes on through the log.
    pub(crate) fn extend(&mut self, log: &[Committed]) -> Result<(), Violation> {
        let mut revision = self.revision();
        for (place, entry) in log.iter().enumerate().skip(self.revisions.len()) {
            let index = place as u64 + 1;
            if let Some(bytes) = &entry.command {
                let command = Command::decode(bytes).map_err(|error| Violation {
                    rule: "R4 commands read",
                    what: format!("{}: {error}", entry.id),
                })?;
                self.apply(index, entry.id.term, command, &mut revision);
            }
            self.revisions.push(revision);
        }
        self.objection.take().map_or(Ok(()), Err)
    }

    /// The revision after everything that it went through.
    pub(crate) fn revision(&self) -> i64 {
        self.revisions.last().copied().unwrap_or(1)
    }

    /// The compact revision after the entry `index`.
    pub(crate) fn compact_revision(&self, index: LogIndex) -> i64 {
        let later = self.compactions.partition_point(|(at, _)| *at <= index.0);
        let last = later.checked_sub(1).map(|last| self.compactions[last].1);
        last.unwrap_or_default()
    }

    /// The newest compact revision.
    pub(crate) fn newest_compact_revision(&self) -> i64 {
        self.compactions.last().map_or(0, |(_, revision)| *revision)
    }

    /// The changes above `revision`, in order.
    pub(crate) fn changes_after(&self, revision: i64) -> &[Change] {
        let first = self
            .changes
            .partition_point(|change| change.revision <= revision);
        &self.changes[first..]
    }

    /// What all keys held at `revision`, in their order.
    pub(crate) fn state_at(&self, revision: i64) -> Vec<KeyValue> {
        let mut state: BTreeMap<&Bytes, &KeyValue> = BTreeMap::new();
        let later = self
            .changes
            .partition_point(|change| change.revision <= revision);
        for change in &self.changes[..later] {
            match &change.after {
                Some(kv) => state.insert(&change.key, kv),
                None => state.remove(&change.key),
            };
        }
        state.into_values().cloned().collect()
    }

    /// A key has changed.
    fn note(&mut self, key: Key, revision: i64, value: Option<Value>, lease: i64) {
        let versions = self.versions.entry(key).or_default();
        versions.push((revision, value));
        let before = self.current.remove(&key);
        let after = value.map(|value| KeyValue {
            key: name(key),
            value: history::bytes(value),
            create_revision: before.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(1, |kv| kv.version + 1),
            lease,
        });
        if let Some(after) = &after {
            self.current.insert(key, after.clone());
        }
        self.changes.push(Change {
            revision,
            key: name(key),
            before,
            after,
        });
    }

    fn apply(&mut self, index: u64, of: Term, command: Command, revision: &mut i64) {
        match command {
            Command::Write {
                session, operation, ..
            } => {
                if let Some(call) = session {
                    let Some(session) = self.sessions.get_mut(&call.id) else {
                        return;
                    };
                    let mark = session.acknowledged.max(call.acknowledged);
                    if call.sequence <= mark {
                        return;
                    }
                    session.acknowledged = mark;
                    session.used = index;
                    if !session.applied.insert(call.sequence) {
                        return;
                    }
                }
                self.write(index, operation, revision);
            }
            Command::OpenSession { .. } => {
                let session = Session {
                    used: index,
                    ..Session::default()
                };
                let id = SessionId::new(LogIndex(index), self.bootstrap);
                self.sessions.insert(id, session);
            }
            Command::BootstrapAs { bootstrap, .. } if self.bootstrap == BootstrapId(0) => {
                self.bootstrap = bootstrap;
            }
            // No node of the simulator is given a quota.
            Command::Bootstrap(_)
            | Command::BootstrapAs { .. }
            | Command::CheckHash
            | Command::SetSpaceAlarm(_)
            | Command::RaiseVersion { .. }
            | Command::SetEtcdUrls(_) => {}
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
            }
            Command::ExpireLeases { term, leases } => {
                // C4: the word of another leadership is void.
                for lease in leases {
                    if term == of {
                        self.end(lease, revision);
                    }
                }
            }
            Command::MarkLeases { .. } | Command::ContinueLeaseEnds { .. } => {}
        }
    }

    /// A lease ends, and its keys go, at one revision.
    fn end(&mut self, lease: LeaseRef, revision: &mut i64) {
        let found = self.leases.get(&lease.id);
        if !found.is_some_and(|found| lease.means(found.grant_index)) {
            return;
        }
        let keys = self.leases.remove(&lease.id).expect("it was there").keys;
        *revision += i64::from(!keys.is_empty());
        for key in keys {
            self.note(key, *revision, None, 0);
        }
    }

    /// A holder puts its key: it hangs on this lease from now on, and on no other.
    fn hang(&mut self, key: Key, put: &PutRequest, revision: &mut i64) {
        let LeaseTarget::Lease(lease) = put.lease else {
            return;
        };
        let found = self.leases.get(&lease.id);
        let Some(value) = history::value(&put.value) else {
            return;
        };
        if !found.is_some_and(|found| lease.means(found.grant_index)) {
            return;
        }
        for (id, other) in &mut self.leases {
            other.keys.remove(&key);
            if *id == lease.id {
                other.keys.insert(key);
            }
        }
        *revision += 1;
        self.note(key, *revision, Some(value), lease.id);
    }

    fn write(&mut self, index: u64, operation: Operation, revision: &mut i64) {
        match operation {
            Operation::Put(put) if held_key(&put.key).is_some() => {
                let key = held_key(&put.key).expect("it is one");
                self.hang(key, &put, revision);
            }
            Operation::LeaseGrant(_) => {
                let lease = Lease {
                    grant_index: index,
                    ..Lease::default()
                };
                self.leases.insert(index as i64, lease);
            }
            Operation::LeaseRevoke(lease) => self.end(lease, revision),
            Operation::LeaseUpdateTtl { .. }
            | Operation::PutWithNewLease { .. }
            | Operation::Auth(_)
            | Operation::SetAlarm { .. } => {
                unreachable!("no client asks for it")
            }
            Operation::Put(put) => {
                let (Some(key), Some(value)) = (history::key(&put.key), history::value(&put.value))
                else {
                    return;
                };
                *revision += 1;
                self.note(key, *revision, Some(value), 0);
                self.written.entry(value).or_default().push(*revision);
            }
            Operation::DeleteRange(delete) => {
                let Some(key) = any_key(&delete.key) else {
                    return;
                };
                for lease in self.leases.values_mut() {
                    lease.keys.remove(&key);
                }
                if self.current.contains_key(&key) {
                    *revision += 1;
                    self.note(key, *revision, None, 0);
                }
            }
            Operation::Txn(txn) if locks::is_of_locks(&txn) => self.transact_locks(&txn, revision),
            Operation::Txn(txn) => self.transact(&txn, revision),
            Operation::Compact(request) => {
                let last = self.newest_compact_revision();
                if request.revision > last && request.revision <= *revision {
                    self.compactions.push((index, request.revision));
                }
            }
        }
    }

    /// A transaction of the two kinds that clients make and that may write: all its puts have one
    /// revision, if what it compares holds (K2).
    fn transact(&mut self, txn: &TxnRequest, revision: &mut i64) {
        let holds = txn.compare.iter().all(|compare| {
            let CompareTarget::ModRevision(expected) = compare.target else {
                unreachable!("clients compare mod revisions");
            };
            let found = history::key(&compare.key).and_then(|key| self.at(key, *revision));
            found.map_or(0, |found| found.mod_revision) == expected
        });
        let ops = match holds {
            true => &txn.success,
            false => &txn.failure,
        };
        let puts: Vec<(Key, Value)> = ops
            .iter()
            .filter_map(|op| match op {
                TxnOp::Put(put) => Some((history::key(&put.key)?, history::value(&put.value)?)),
                _ => None,
            })
            .collect();
        let Some((_, value)) = puts.first().copied() else {
            return;
        };
        *revision += 1;
        self.written.entry(value).or_default().push(*revision);
        for (key, value) in puts {
            self.note(key, *revision, Some(value), 0);
        }
    }

    /// The key at a revision, if it is there.
    fn at(&self, key: Key, revision: i64) -> Option<Found> {
        let versions = self.versions.get(&key)?;
        let later = versions.partition_point(|(written, _)| *written <= revision);
        let (mod_revision, value) = versions[later.checked_sub(1)?];
        value.map(|value| Found {
            key,
            value,
            mod_revision,
        })
    }

    fn all_at(&self, revision: i64) -> Vec<Found> {
        let keys = self.versions.keys();
        let mut all: Vec<Found> = keys.filter_map(|key| self.at(*key, revision)).collect();
        all.sort_by_key(|found| name(found.key));
        all
    }

    /// Whether every answer is what the log says.
    pub(crate) fn explains(
        &self,
        history: &History,
        frozen: bool,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        // Keys of leases are judged with the stores, each at what it has applied.
        if self.versions.keys().any(|key| *key >= HELD) {
            marks.hit(Mark::KeyOfLeaseCheckedAgainstLog);
        }
        for (place, operation) in history.operations.iter().enumerate() {
            let number = place as u64 + 1;
            let wrote: &[i64] = self.written.get(&number).map_or(&[], Vec::as_slice);
            let object = |rule, expected: String| {
                let what = format!("operation {number} {operation:?}; the log says {expected}");
                violation(rule, what)
            };
            if wrote.len() > 1 {
                return object("E1 exactly once", format!("written at {wrote:?}"));
            }
            match (&operation.fate, operation.action) {
                (Fate::Written { .. }, _) if wrote.len() == 1 => {
                    marks.hit(Mark::WriteCheckedAgainstLog);
                }
                (Fate::NotApplied, action) if action.is_write() && wrote.is_empty() => {
                    marks.hit(Mark::RefusalCheckedAgainstLog);
                }
                _ => {}
            }
            match (&operation.fate, operation.action) {
                (Fate::Written { revision }, _) if wrote != [*revision] => {
                    return object("E1 acknowledged writes are there", format!("{wrote:?}"));
                }
                (Fate::NotApplied | Fate::Unequal { .. }, _) if !wrote.is_empty() => {
                    return object("E2 refused means not applied", format!("{wrote:?}"));
                }
                (Fate::Written { revision }, Action::Swap(key, expected)) => {
                    let before = self.at(key, *revision - 1);
                    if before.map_or(0, |found| found.mod_revision) != expected {
                        return object("K2 a swap compares", format!("{before:?} before"));
                    }
                    marks.hit(Mark::SwapCheckedAgainstLog);
                }
                (Fate::Written { revision }, Action::PutBoth(one, other)) => {
                    let written = |key| self.at(key, *revision).map(|found| found.value);
                    if (written(one), written(other)) != (Some(number), Some(number)) {
                        return object("K2 all or nothing", "it is not there whole".to_owned());
                    }
                    marks.hit(Mark::PairCheckedAgainstLog);
                }
                (Fate::Unequal { revision, found }, Action::Swap(key, expected)) => {
                    let there = self.at(key, *revision);
                    let is_equal = there.map_or(0, |found| found.mod_revision) == expected;
                    if there != *found || is_equal {
                        return object("K2 a swap compares", format!("{there:?}"));
                    }
                    marks.hit(Mark::FailedSwapCheckedAgainstLog);
                }
                (Fate::Deleted { revision, .. }, Action::Delete(key))
                    if self.at(key, *revision).is_some() =>
                {
                    return object("K1 a deleted key is gone", "it is there".to_owned());
                }
                (
                    Fate::Read {
                        revision,
                        leased,
                        found,
                        ..
                    },
                    action,
                ) => {
                    if frozen && *leased {
                        continue;
                    }
                    let at = action.at().unwrap_or(*revision);
                    if action.at().is_some() {
                        marks.hit(Mark::PastReadCheckedAgainstLog);
                    }
                    let expected: Vec<Found> = match action {
                        Action::GetAt(key, ..) => self.at(key, at).into_iter().collect(),
                        Action::Get(key, _) => self.at(key, *revision).into_iter().collect(),
                        Action::GetBoth(one, other, _) => {
                            marks.hit(Mark::PairOfReadsCheckedAgainstLog);
                            let keys = [one, other].into_iter();
                            keys.filter_map(|key| self.at(key, *revision)).collect()
                        }
                        _ => {
                            let all = self.all_at(at).into_iter();
                            all.filter(|found| found.key < HELD).collect()
                        }
                    };
                    if *found != expected {
                        let rule = match action.at() {
                            Some(_) => "K5 the past stays what it was",
                            None => "K1 reads show the log",
                        };
                        return object(rule, format!("{expected:?}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a replica's store is what the log says, as far as it has applied it.
    pub(crate) fn equals(&self, node: usize, store: &Look) -> Result<(), Violation> {
        let progress = store.progress();
        let Some(place) = super::slot(progress.applied.index) else {
            return Ok(());
        };
        let revision = self.revisions.get(place).copied().unwrap_or_default();
        let request = RangeRequest {
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        };
        let held = kv::range(store, &request, &Limits::DEFAULT)
            .expect("memory does not fail")
            .expect("the current revision can be read");
        let held = all_found(&held.kvs);
        let expected = self.all_at(revision);
        if progress.revision != revision || held != expected {
            let what = format!(
                "{} holds {held:?} at {}, the log says {expected:?} at {revision}",
                id(node),
                progress.revision
            );
            return violation("R4 the store is what the log says", what);
        }
        self.past_equals(node, store, &progress)
    }

    /// K5: every past revision that may still be read shows what the log says, and no other one
    /// shows anything, however far the removal of history is.
    fn past_equals(
        &self,
        node: usize,
        store: &Look,
        progress: &kv::Progress,
    ) -> Result<(), Violation> {
        let object = |what: String| violation("K5 the past stays what it was", what);
        let at = |revision: i64| {
            let request = RangeRequest {
                range: KeyRange::Prefix,
                revision,
                ..RangeRequest::default()
            };
            kv::range(store, &request, &Limits::DEFAULT).expect("memory does not fail")
        };
        let oldest = progress.compact_revision.max(1);
        // All of a short past, the edges and a sample of a long one.
        let stride = ((progress.revision - oldest) / 24).max(1) as usize;
        let sample = (oldest..=progress.revision).step_by(stride);
        for revision in sample.chain([progress.revision]) {
            let shown = match at(revision) {
                Ok(range) => range.kvs,
                Err(error) => {
                    return object(format!("{} refuses {revision}: {error}", id(node)));
                }
            };
            let shown = all_found(&shown);
            let expected = self.all_at(revision);
            if shown != expected {
                let what = format!(
                    "{} shows {shown:?} at {revision}, the log says {expected:?}",
                    id(node)
                );
                return object(what);
            }
        }
        if progress.compact_revision > 1 && at(progress.compact_revision - 1).is_ok() {
            let what = format!("{} shows what is compacted", id(node));
            return object(what);
        }
        Ok(())
    }
}

/// What `kvs` show of the keys of clients, of holders and of lockers.
fn all_found(kvs: &[KeyValue]) -> Vec<Found> {
    let found = |kv: &KeyValue| {
        Some(Found {
            key: any_key(&kv.key)?,
            value: history::value(&kv.value)?,
            mod_revision: kv.mod_revision,
        })
    };
    kvs.iter().filter_map(found).collect()
}
