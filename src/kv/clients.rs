//! Exactly-once writes: sessions, and the first reply to each of their numbers.
//!
//! A client opens a session and numbers its writes. The first time a number is applied its reply is
//! kept, and a retry gets that reply instead of a second effect. The client also says up to which
//! number it has seen replies; those are dropped, and a number at or below the mark is refused
//! (A17): it is no longer known whether it was ever applied, so the outcome is *unknown*. Numbers
//! may be applied in any order: each is remembered separately.
//!
//! Everything is bounded. Numbers too far above the mark are refused until the client acknowledges
//! what it has; a session that keeps too much drops the keys and values in its replies first, and a
//! retry then reports that; a full table refuses new sessions (A18). The node decides which
//! sessions to forget, and a logged command forgets them.
//!
//! | Key in `clients` | Record |
//! |---|---|
//! | `S` ⧺ session | mark, index of the last use, bytes kept |
//! | `R` ⧺ session ⧺ run of numbers | the first replies (`replies.rs`) |

use bytes::{Buf, BufMut, Bytes};
use serde::{Deserialize, Serialize};

use crate::api::{Error, ErrorKind, KeyValue, Outcome, ResponseBody, SessionCall, TxnOpResponse};
use crate::types::{LogIndex, SessionId};

use super::command::Reply;
use super::hash::HashedStore;
use super::replies;
use super::replies::{OUTSTANDING_MAX, Replies};
use super::store::{Fault, Space, Span, Store, View};

/// The most bytes of previous keys and values that are kept of a single reply.
const REPLY_BYTES_MAX: u64 = 4 << 10;

/// Once a session keeps this many bytes, previous values are left out of what it keeps further.
const SESSION_BYTES_MAX: u64 = 256 << 10;

/// What to do with a numbered write.
pub(super) enum Admission {
    /// It has not been applied: apply it, then [`AdmittedWrite::settle`].
    First(AdmittedWrite),
    /// It was decided before, or cannot be: this is its reply.
    Settled(Reply),
}

/// A numbered write on its way through apply.
pub(super) struct AdmittedWrite {
    call: SessionCall,
    session: Session,
    /// Those that its own is to be kept with.
    replies: Replies,
}

/// Decides what to do with the write `call`, which is applied at `index`; `revision` is the
/// store's. With access control, the session must belong to `owner`; another user's session is
/// treated as unknown, because its id is easily guessed and the replies it keeps are confidential.
pub(super) fn admit<S: Store>(
    store: &mut HashedStore<'_, S>,
    index: LogIndex,
    call: SessionCall,
    revision: i64,
    owner: Option<&str>,
) -> Result<Admission, S::Error> {
    let refuse = |error| {
        Ok(Admission::Settled(Reply {
            revision,
            result: Err(error),
            leases: Vec::new(),
            is_repeat: false,
            lease_keys: 0,
            hash: None,
        }))
    };
    let found = Session::read(store, call.id)?;
    let found = found.filter(|session| owner.is_none_or(|owner| owner == session.owner));
    let Some(mut session) = found else {
        return refuse(Error::unknown(
            ErrorKind::SessionExpired,
            format!(
                "session {} is not open: it expired, was never opened, or belongs to this cluster as it \
                 was before it was bootstrapped anew; open a new one, and read before repeating the write",
                call.id
            ),
        ));
    };
    let mark = session.acknowledged.max(call.acknowledged);
    if call.sequence <= mark && !planted!(MarkIgnored) {
        return refuse(Error::unknown(
            ErrorKind::StaleSequence,
            format!(
                "write {} of session {} was acknowledged before (up to {mark}), so its reply is \
                 gone; give every write its own number",
                call.sequence, call.id
            ),
        ));
    }
    let replies = Replies::read(store, call.id, call.sequence)?;
    let kept = replies.find(call.sequence)?;
    let kept = kept.filter(|_| !planted!(RetryApplied));
    #[cfg(leasehold_bugs)]
    let kept = planted_among_kept(store, &call, kept)?;
    if let Some(kept) = kept {
        session.advance(store, &call, index)?;
        session.write(store, call.id);
        let kept = KeptReply::decode(&kept)?;
        return Ok(Admission::Settled(kept.into_reply(&call)));
    }
    if call.sequence.saturating_sub(mark) > OUTSTANDING_MAX {
        return refuse(Error::not_applied(
            ErrorKind::SlowDown {
                retry_after_ms: RETRY_AFTER_MS,
            },
            format!(
                "session {} has acknowledged writes up to {mark} and accepts numbers up to \
                 {OUTSTANDING_MAX} above: acknowledge replies before sending more",
                call.id
            ),
        ));
    }
    session.advance(store, &call, index)?;
    Ok(Admission::First(AdmittedWrite {
        call,
        session,
        replies,
    }))
}

/// How long a client should wait when its session or the table of sessions is full.
const RETRY_AFTER_MS: u32 = 100;

impl AdmittedWrite {
    /// Keeps `result`, decided at `revision`, as the first reply to this number.
    pub(super) fn settle<S: Store>(
        mut self,
        store: &mut HashedStore<'_, S>,
        revision: i64,
        result: &Result<ResponseBody, Error>,
    ) {
        let room = SESSION_BYTES_MAX.saturating_sub(self.session.kept_bytes);
        let previous_bytes_max = REPLY_BYTES_MAX.min(room);
        let result = match result {
            Ok(body) if found_bytes(body) > previous_bytes_max => KeptResult::PreviousLeftOut,
            Ok(body) => KeptResult::Response(body.clone()),
            Err(error) => KeptResult::Refused(error.clone()),
        };
        let reply = KeptReply { revision, result }.encode();
        // The mark may have moved on since they were read, but not past this number, so not past
        // its run either.
        self.session.kept_bytes += self.replies.keep(store, self.call.sequence, &reply);
        self.session.write(store, self.call.id);
    }

    /// Leaves this number undecided: a retry is judged again, by the state of that time.
    pub(super) fn leave<S: Store>(self, store: &mut HashedStore<'_, S>) {
        self.session.write(store, self.call.id);
    }
}

/// How many bytes of a reply are keys and values that were read, not the result of the write.
fn found_bytes(body: &ResponseBody) -> u64 {
    match body {
        ResponseBody::Put(put) => in_all(&put.prev_kv),
        ResponseBody::DeleteRange(delete) => in_all(&delete.prev_kvs),
        ResponseBody::Txn(txn) => txn.responses.iter().map(found_bytes_of_op).sum(),
        ResponseBody::PutWithNewLease(both) => in_all(&both.put.prev_kv),
        _ => 0,
    }
}

fn found_bytes_of_op(response: &TxnOpResponse) -> u64 {
    // A transaction may have many, so that even those that found nothing count.
    let bytes = match response {
        TxnOpResponse::Put(put) => in_all(&put.prev_kv),
        TxnOpResponse::DeleteRange(delete) => in_all(&delete.prev_kvs),
        TxnOpResponse::Range(range) => in_all(&range.kvs),
        TxnOpResponse::Txn(txn) => txn.responses.iter().map(found_bytes_of_op).sum(),
    };
    bytes + 4
}

fn in_all<'a>(kvs: impl IntoIterator<Item = &'a KeyValue>) -> u64 {
    let bytes = |kv: &KeyValue| (kv.key.len() + kv.value.len()) as u64;
    kvs.into_iter().map(bytes).sum()
}

/// Opens session `id` for `owner` with the entry at `opened`, unless `sessions_max` are open already;
/// `sessions` counts them.
pub(super) fn open<S: Store>(
    store: &mut HashedStore<'_, S>,
    id: SessionId,
    opened: LogIndex,
    sessions: &mut u64,
    sessions_max: u32,
    owner: &str,
) -> Result<ResponseBody, Error> {
    #[cfg(leasehold_bugs)]
    planted_eviction(store, sessions, sessions_max);
    if *sessions >= u64::from(sessions_max) {
        return Err(Error::not_applied(
            ErrorKind::SlowDown {
                retry_after_ms: RETRY_AFTER_MS,
            },
            format!(
                "{sessions} sessions are open, and at most {sessions_max} are allowed: use fewer \
                 clients, or raise the limit"
            ),
        ));
    }
    *sessions += 1;
    let session = Session {
        acknowledged: 0,
        used: opened,
        kept_bytes: 0,
        owner: owner.to_owned(),
        stored: Bytes::new(),
    };
    store.insert(Space::Clients, session_key(id), session.encode());
    Ok(ResponseBody::OpenSession { id })
}

/// Forgets session `id` and its replies, unless it is unknown or was used after `unused_since`.
pub(super) fn forget<S: Store>(
    store: &mut HashedStore<'_, S>,
    id: SessionId,
    unused_since: LogIndex,
    sessions: &mut u64,
) -> Result<(), S::Error> {
    let Some(session) = Session::read(store, id)? else {
        return Ok(());
    };
    if session.used > unused_since && !planted!(ForgottenInUse) {
        return Ok(());
    }
    replies::drop_all(store, id, session.acknowledged)?;
    store.take(Space::Clients, &session_key(id))?;
    *sessions -= 1;
    Ok(())
}

/// Sessions last used at or before `unused_since`, at most `count_max` of them: candidates for the
/// leader to forget.
///
/// # Errors
/// The store's error, which is fatal for the reader.
pub fn idle_sessions<V: View>(
    view: &V,
    unused_since: LogIndex,
    count_max: usize,
) -> Result<Vec<SessionId>, V::Error> {
    let mut idle = Vec::new();
    // Replies sort before sessions, so the span of the sessions has only sessions.
    for pair in view.range(
        Space::Clients,
        &Span::from_key(Bytes::from_static(&[SESSION])),
    ) {
        if idle.len() == count_max {
            break;
        }
        let (key, record) = pair?;
        let (id, session) = (session_of(&key)?, Session::decode(record)?);
        if session.used <= unused_since {
            idle.push(id);
        }
    }
    Ok(idle)
}

/// The stored record of a session.
struct Session {
    /// The client has acknowledged the replies up to this number.
    acknowledged: u64,
    /// Where in the log it was last used, or opened.
    used: LogIndex,
    /// The size of the replies kept for it.
    kept_bytes: u64,
    /// The user who opened it; empty if access control was disabled then.
    owner: String,
    /// The record that it was read from; empty if it is new.
    stored: Bytes,
}

/// The numbers of a session; its owner's name stands behind them.
const SESSION_BYTES: usize = 24;

impl Session {
    fn read<V: View>(view: &V, id: SessionId) -> Result<Option<Self>, V::Error> {
        match view.get(Space::Clients, &session_key(id))? {
            Some(record) => Ok(Some(Self::decode(record)?)),
            None => Ok(None),
        }
    }

    /// Drops the replies that `call` acknowledges.
    fn advance<S: Store>(
        &mut self,
        store: &mut HashedStore<'_, S>,
        call: &SessionCall,
        index: LogIndex,
    ) -> Result<(), S::Error> {
        self.used = index;
        if call.acknowledged > self.acknowledged {
            let freed =
                replies::drop_acknowledged(store, call.id, self.acknowledged, call.acknowledged)?;
            self.kept_bytes = self.kept_bytes.saturating_sub(freed);
            self.acknowledged = call.acknowledged;
        }
        Ok(())
    }

    /// In place of what it was read from: nothing else that a write does changes a session.
    fn write<S: Store>(&self, store: &mut HashedStore<'_, S>, id: SessionId) {
        let key = session_key(id);
        store.replace(Space::Clients, key, &self.stored, self.encode());
    }

    fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(SESSION_BYTES + self.owner.len());
        bytes.put_u64(self.acknowledged);
        bytes.put_u64(self.used.0);
        bytes.put_u64(self.kept_bytes);
        bytes.put_slice(self.owner.as_bytes());
        bytes.into()
    }

    fn decode(mut record: Bytes) -> Result<Self, Fault> {
        let stored = record.clone();
        if record.len() < SESSION_BYTES {
            return Err(damaged("a session of the wrong size"));
        }
        let owner = std::str::from_utf8(&record[SESSION_BYTES..])
            .map_err(|_| damaged("a session of a user whose name does not read"))?
            .to_owned();
        Ok(Self {
            acknowledged: record.get_u64(),
            used: LogIndex(record.get_u64()),
            kept_bytes: record.get_u64(),
            owner,
            stored,
        })
    }
}

/// `DedupByLast`: only the last applied number is remembered.
#[cfg(leasehold_bugs)]
fn planted_among_kept<S: Store>(
    store: &HashedStore<'_, S>,
    call: &SessionCall,
    kept: Option<Bytes>,
) -> Result<Option<Bytes>, S::Error> {
    if !planted!(DedupByLast) {
        return Ok(kept);
    }
    replies::last_from(store, call.id, call.sequence)
}

/// `FullTableEvicts`: evicts a session to make room for the next.
#[cfg(leasehold_bugs)]
fn planted_eviction<S: Store>(
    store: &mut HashedStore<'_, S>,
    sessions: &mut u64,
    sessions_max: u32,
) {
    if planted!(FullTableEvicts)
        && *sessions >= u64::from(sessions_max)
        && let Ok(idle) = idle_sessions(store, LogIndex(u64::MAX), 1)
    {
        for id in idle {
            let _ = forget(store, id, LogIndex(u64::MAX), sessions);
        }
    }
}

/// A first reply, as it is stored.
#[derive(Serialize, Deserialize)]
struct KeptReply {
    revision: i64,
    result: KeptResult,
}

#[derive(Serialize, Deserialize)]
enum KeptResult {
    Response(ResponseBody),
    Refused(Error),
    /// It took effect; the keys and values of its reply were too large to keep.
    PreviousLeftOut,
}

impl KeptReply {
    fn encode(&self) -> Vec<u8> {
        // Room for that to a put, so that it need not grow.
        postcard::to_extend(self, Vec::with_capacity(32))
            .expect("a vector grows without bound and the types serialize without fail")
    }

    fn decode(record: &[u8]) -> Result<Self, Fault> {
        postcard::from_bytes(record).map_err(|_| damaged("a kept reply that does not read"))
    }

    fn into_reply(self, call: &SessionCall) -> Reply {
        let revision = self.revision;
        let result = match self.result {
            KeptResult::Response(body) => Ok(Some(body)),
            KeptResult::Refused(error) => Err(error),
            KeptResult::PreviousLeftOut => Err(Error {
                kind: ErrorKind::ReplyNotKept,
                outcome: Outcome::Applied,
                detail: format!(
                    "write {} of session {} took effect at revision {revision}; its reply was too \
                     large to be kept for this retry",
                    call.sequence, call.id
                ),
                tries: None,
            }),
        };
        Reply {
            revision,
            result,
            leases: Vec::new(),
            is_repeat: true,
            lease_keys: 0,
            hash: None,
        }
    }
}

const SESSION: u8 = b'S';

fn session_key(id: SessionId) -> Bytes {
    let mut bytes = Vec::with_capacity(9);
    bytes.put_u8(SESSION);
    bytes.put_u64(id.0);
    bytes.into()
}

fn session_of(key: &[u8]) -> Result<SessionId, Fault> {
    key.strip_prefix(&[SESSION])
        .and_then(|id| <[u8; 8]>::try_from(id).ok())
        .map(|id| SessionId(u64::from_be_bytes(id)))
        .ok_or_else(|| damaged("a session key that does not read"))
}

fn damaged(what: &'static str) -> Fault {
    Fault::Damaged {
        space: Space::Clients,
        what,
    }
}
