//! Messages in words, as the golden conversations of `src/raft` tell them.

use leasehold::api::{
    Call, Compare, CompareTarget, DeleteRangeRequest, Error, KeyRange, PutRequest, RangeRequest,
    RangeResponse, Request, Response, ResponseBody, TxnOp, TxnOpResponse, TxnRequest, TxnResponse,
};
use leasehold::raft::{Ballot, Envelope, Heard, Message, RoundId, Status, UnsavedState, Verdict};

use crate::history;

/// `-> n2 t3 heartbeat? #7 commit 9`
pub(crate) fn sent(envelope: &Envelope) -> String {
    let Envelope { to, term, .. } = envelope;
    format!("-> {to} {term} {}", message(&envelope.message))
}

/// `<- n1 t3 heartbeat? #7 commit 9`
pub(crate) fn heard_message(envelope: &Envelope) -> String {
    let Envelope { from, term, .. } = envelope;
    format!("<- {from} {term} {}", message(&envelope.message))
}

/// The upper bits of a round's name say only who made it.
fn round(id: RoundId) -> u64 {
    id.0 & 0xf_ffff
}

fn ballot(ballot: &Ballot) -> String {
    match ballot {
        Ballot::Granted => "granted".to_owned(),
        Ballot::Withheld(reason) => format!("withheld: {reason:?}").to_lowercase(),
    }
}

fn heard(heard: &Heard) -> String {
    let promised = if heard.promised {
        "promised"
    } else {
        "not promised"
    };
    format!("#{} {promised}", round(heard.round))
}

fn message(message: &Message) -> String {
    match message {
        Message::PreVote(m) => format!("pre-vote? for {} with {}", m.next_term, m.last),
        Message::PreVoteReply(m) => format!("pre-vote! {}", ballot(&m.ballot)),
        Message::Vote(m) => {
            let from = m
                .transfer_from
                .map(|term| format!(", handed over by {term}"));
            let from = from.unwrap_or_default();
            format!("vote? #{} with {}{from}", round(m.round), m.last)
        }
        Message::VoteReply(m) => {
            let promised = if m.promised { ", promised" } else { "" };
            format!("vote! {}{promised}", ballot(&m.ballot))
        }
        Message::Heartbeat(m) => format!("heartbeat? #{} commit {}", round(m.round), m.commit),
        Message::HeartbeatReply(m) => {
            format!("heartbeat! {} verified {}", heard(&m.heard), m.verified)
        }
        Message::Append(m) => {
            let last = m.entries.last().map(|entry| format!("..{}", entry.id));
            let last = last.unwrap_or_default();
            let (round, commit) = (round(m.heartbeat.round), m.heartbeat.commit);
            format!("append? #{round} {}{last} commit {commit}", m.base)
        }
        Message::Appended(m) => {
            let verdict = match m.verdict {
                Verdict::Durable(index) => format!("durable {index}"),
                Verdict::Held(index) => format!("held {index}"),
                Verdict::Conflict(conflict) => format!("not {}: {}", conflict.base, conflict.first),
            };
            format!("append! {} {verdict}", heard(&m.heard))
        }
        Message::TimeoutNow(m) => format!("timeout-now with {} commit {}", m.last, m.commit),
        Message::Release => "release".to_owned(),
        Message::Rejoin(_) => "rejoin?".to_owned(),
        Message::RejoinReply(m) => format!("rejoin! through {}", m.through),
        Message::StateHash(m) => format!("hash at {}", m.index),
        Message::NeedState => "needs a state".to_owned(),
        Message::Forgotten(newest) => format!("forgotten #{}", round(*newest)),
        Message::Recall => "recall".to_owned(),
        Message::Returned(newest) => format!("returned #{}", round(*newest)),
        Message::Reminder(m) => format!("reminder of {} {}", m.term, m.last),
        Message::ReadIndex(m) => {
            let mode = format!("{:?}", m.mode).to_lowercase();
            format!("read-index? #{} by {mode}", round(m.name))
        }
        Message::ReadIndexReply(m) => match &m.confirmed {
            Some(confirmed) => {
                let by = confirmed.lease_remaining.map_or("quorum", |_| "lease");
                format!("read-index! #{} {} by {by}", round(m.name), confirmed.index)
            }
            None => format!("read-index! #{} refused", round(m.name)),
        },
    }
}

/// How a node stands.
pub(crate) fn status(status: &Status) -> String {
    let Status {
        role,
        term,
        last,
        commit,
        ready,
        ..
    } = status;
    let leader = status.leader.map(|leader| format!(" of {leader}"));
    let leader = leader.unwrap_or_default();
    let ready = if *ready { " ready" } else { "" };
    format!("is {role}{leader} in {term}, last {last} commit {commit}{ready}")
}

/// What is to be made durable.
pub(crate) fn unsaved(unsaved: &UnsavedState) -> String {
    let hard = unsaved.hard_state.map(|hard| {
        let vote = hard.vote.map(|vote| format!(" vote {vote}"));
        format!(" {}{}", hard.term, vote.unwrap_or_default())
    });
    let entries = match (unsaved.entries.first(), unsaved.entries.last()) {
        (Some(first), Some(last)) if first.id != last.id => format!(" {}..{}", first.id, last.id),
        (Some(only), _) => format!(" {}", only.id),
        _ => String::new(),
    };
    format!("{}{entries}", hard.unwrap_or_default())
}

/// What a client asks.
pub(crate) fn call(call: &Call) -> String {
    let text = match &call.request {
        Request::Put(put) => write(put),
        Request::DeleteRange(delete) => removal(delete),
        Request::Range(range) => format!("{} {:?}", read(range), call.consistency),
        Request::Txn(txn) if txn.is_read_only() => {
            format!("{} {:?}", transaction(txn), call.consistency)
        }
        Request::Txn(txn) => transaction(txn),
        other => format!("{other:?}"),
    };
    let least = match call.min_revision {
        0 => String::new(),
        revision => format!(", at least {revision}"),
    };
    let session = call.session.as_ref().map(|session| {
        let (id, sequence) = (session.id, session.sequence);
        format!(", {id} number {sequence} after {}", session.acknowledged)
    });
    format!("{text}{least}{}", session.unwrap_or_default())
}

fn write(put: &PutRequest) -> String {
    let value = history::value(&put.value).unwrap_or_default();
    format!("put {} = {value}", key(&put.key))
}

fn removal(delete: &DeleteRangeRequest) -> String {
    format!("delete {}", key(&delete.key))
}

fn read(range: &RangeRequest) -> String {
    let all = if range.range == KeyRange::Single {
        ""
    } else {
        "*"
    };
    format!("get {}{all}", key(&range.key))
}

/// `if k0 Equal 3 {put k0 = 7} else {get k0}`
fn transaction(txn: &TxnRequest) -> String {
    let ops = |ops: &[TxnOp]| {
        let told = ops.iter().map(|op| match op {
            TxnOp::Put(put) => write(put),
            TxnOp::DeleteRange(delete) => removal(delete),
            TxnOp::Range(range) => read(range),
            TxnOp::Txn(inner) => transaction(inner),
        });
        format!("{{{}}}", told.collect::<Vec<_>>().join(", "))
    };
    if txn.compare.is_empty() {
        return ops(&txn.success);
    }
    let compare = |compare: &Compare| match &compare.target {
        CompareTarget::ModRevision(revision) => {
            format!("{} {:?} {revision}", key(&compare.key), compare.op)
        }
        other => format!("{} {:?} {other:?}", key(&compare.key), compare.op),
    };
    let compares: Vec<_> = txn.compare.iter().map(compare).collect();
    let (yes, no) = (ops(&txn.success), ops(&txn.failure));
    format!("if {} {yes} else {no}", compares.join(", "))
}

/// What a client hears.
pub(crate) fn outcome(result: &Result<Response, Error>) -> String {
    let response = match result {
        Ok(response) => response,
        Err(error) => return format!("{}, {:?}", error.code(), error.outcome),
    };
    let at = response.header.revision;
    let path = response.header.read.as_ref().map(|read| read.path.name());
    let path = path.map(|path| format!(" by {path}")).unwrap_or_default();
    match &response.body {
        ResponseBody::Range(range) => format!("at {at}{path}: {}", found(range)),
        ResponseBody::Txn(txn) => format!("at {at}{path}: {}", done(txn)),
        ResponseBody::Put(_) => format!("written at {at}"),
        ResponseBody::DeleteRange(delete) => format!("at {at}: {} deleted", delete.deleted),
        other => format!("at {at}: {other:?}"),
    }
}

fn found(range: &RangeResponse) -> String {
    let found = range.kvs.iter().map(|kv| {
        let value = history::value(&kv.value).unwrap_or_default();
        format!("{} = {value} of {}", key(&kv.key), kv.mod_revision)
    });
    found.collect::<Vec<_>>().join(", ")
}

/// What a transaction did; `else` is the branch for what did not compare.
fn done(txn: &TxnResponse) -> String {
    let branch = if txn.succeeded { "" } else { "else " };
    let told = txn.responses.iter().map(|response| match response {
        TxnOpResponse::Range(range) => found(range),
        TxnOpResponse::Put(_) => "written".to_owned(),
        TxnOpResponse::DeleteRange(delete) => format!("{} deleted", delete.deleted),
        TxnOpResponse::Txn(inner) => done(inner),
    });
    format!("{branch}{{{}}}", told.collect::<Vec<_>>().join(", "))
}

fn key(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
