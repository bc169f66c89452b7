//! Replies as JSON. Field names are part of the command line's contract: etcdctl's where it has
//! them.

use std::io;
use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use super::table::table_of_one;
use super::text::{View, escaped, event_kind};
use crate::api::{
    DeleteRangeResponse, KeyValue, PutResponse, RangeResponse, ReadInfo, ResponseHeader,
    TxnOpResponse, TxnResponse,
};
use crate::client::WatchEvent;

/// A whole document as `fields` shows it: each of its leaves on a line, with the way to it.
///
/// # Errors
/// Those of `out`.
pub fn fields(out: &mut impl Write, document: &Value) -> io::Result<()> {
    fields_below(out, "", document)
}

fn fields_below(out: &mut impl Write, way: &str, value: &Value) -> io::Result<()> {
    let longer = |name: &str| match way {
        "" => name.to_owned(),
        way => format!("{way}.{name}"),
    };
    match value {
        Value::Object(inner) => inner
            .iter()
            .try_for_each(|(name, value)| fields_below(out, &longer(name), value)),
        Value::Array(inner) => (0..).zip(inner).try_for_each(|(at, value): (usize, _)| {
            fields_below(out, &longer(&at.to_string()), value)
        }),
        leaf => writeln!(out, "\"{way}\" : {leaf}"),
    }
}

/// Names under which a document holds an id as a number: people see and type these in hexadecimal.
const IDS: [&str; 5] = ["id", "lease", "member_id", "from", "to"];

/// A whole document as a table of one row: a column for each of its leaves, a list of names or numbers
/// in one cell.
///
/// # Errors
/// Those of `out`.
pub fn row(out: &mut impl Write, document: &Value) -> io::Result<()> {
    let mut cells = Vec::new();
    cells_below(&mut cells, "", document);
    let cells: Vec<(&str, String)> = cells
        .iter()
        .map(|(title, cell)| (title.as_str(), cell.clone()))
        .collect();
    table_of_one(out, &cells)
}

fn cells_below(cells: &mut Vec<(String, String)>, way: &str, value: &Value) {
    let text = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(View::default(), text.as_bytes()),
        other => other.to_string(),
    };
    match value {
        Value::Object(inner) => {
            for (name, value) in inner {
                let title = format!("{way} {}", name.replace('_', " ").to_uppercase());
                let id = value
                    .as_u64()
                    .or_else(|| value.as_i64().map(i64::cast_unsigned));
                match id.filter(|_| IDS.contains(&name.as_str())) {
                    Some(id) => cells.push((title.trim().to_owned(), format!("{id:016x}"))),
                    None => cells_below(cells, title.trim(), value),
                }
            }
        }
        Value::Array(inner) => {
            let inner: Vec<String> = inner.iter().map(text).collect();
            cells.push((way.to_owned(), inner.join(" ")));
        }
        leaf => cells.push((way.to_owned(), text(leaf))),
    }
}

#[derive(Serialize)]
pub(super) struct Header {
    cluster_id: u64,
    member_id: u64,
    revision: i64,
    raft_term: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<Read>,
}

#[derive(Serialize)]
struct Read {
    path: &'static str,
    lease_remaining_ms: f64,
    lease_margin_ms: f64,
    read_index: u64,
    applied_index: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    staleness_ms: Option<f64>,
}

#[derive(Serialize)]
struct Pair {
    key: String,
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    value: String,
    lease: i64,
}

#[derive(Serialize)]
struct RangeDocument {
    kvs: Vec<Pair>,
    more: bool,
    count: u64,
}

#[derive(Serialize)]
struct PutDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_kv: Option<Pair>,
}

#[derive(Serialize)]
struct DeleteDocument {
    deleted: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prev_kvs: Vec<Pair>,
}

#[derive(Serialize)]
struct Txn {
    succeeded: bool,
    responses: Vec<Op>,
}

/// As etcdctl shows them, whose programs know these names.
#[derive(Serialize)]
struct Op {
    #[serde(rename = "Response")]
    response: OpResponse,
}

#[derive(Serialize)]
enum OpResponse {
    #[serde(rename = "ResponseRange")]
    Range(RangeDocument),
    #[serde(rename = "ResponsePut")]
    Put(PutDocument),
    #[serde(rename = "ResponseDeleteRange")]
    DeleteRange(DeleteDocument),
    #[serde(rename = "ResponseTxn")]
    Txn(Txn),
}

/// A reply with its header.
#[derive(Serialize)]
struct ReplyDocument<T> {
    header: Header,
    #[serde(flatten)]
    body: T,
}

#[derive(Serialize)]
struct EmptyDocument {}

/// A key with what it holds, as a document on a line of its own.
///
/// # Errors
/// Those of `out`.
pub fn key_value_line(out: &mut impl Write, kv: &KeyValue) -> io::Result<()> {
    line(out, &pair(kv))
}

fn found(range: &RangeResponse) -> RangeDocument {
    RangeDocument {
        kvs: range.kvs.iter().map(pair).collect(),
        more: range.more,
        count: range.count,
    }
}

fn written(put: &PutResponse) -> PutDocument {
    PutDocument {
        prev_kv: put.prev_kv.as_ref().map(pair),
    }
}

fn gone(delete: &DeleteRangeResponse) -> DeleteDocument {
    DeleteDocument {
        deleted: delete.deleted,
        prev_kvs: delete.prev_kvs.iter().map(pair).collect(),
    }
}

fn done(txn: &TxnResponse) -> Txn {
    let op = |response: &TxnOpResponse| Op {
        response: match response {
            TxnOpResponse::Range(range) => OpResponse::Range(found(range)),
            TxnOpResponse::Put(put) => OpResponse::Put(written(put)),
            TxnOpResponse::DeleteRange(delete) => OpResponse::DeleteRange(gone(delete)),
            TxnOpResponse::Txn(inner) => OpResponse::Txn(done(inner)),
        },
    };
    Txn {
        succeeded: txn.succeeded,
        responses: txn.responses.iter().map(op).collect(),
    }
}

#[derive(Serialize)]
struct WatchDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kvs: Vec<Pair>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<EventDocument>,
    /// What it is, if it is no change.
    #[serde(skip_serializing_if = "Option::is_none")]
    notice: Option<&'static str>,
}

#[derive(Serialize)]
struct EventDocument {
    #[serde(rename = "type")]
    kind: &'static str,
    kv: Pair,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_kv: Option<Pair>,
}

/// One line for each revision, and for each notice.
pub(super) fn watched(out: &mut impl Write, event: &WatchEvent) -> io::Result<()> {
    let notice = |notice, revision| WatchDocument {
        revision,
        kvs: Vec::new(),
        events: Vec::new(),
        notice: Some(notice),
    };
    let watched = match event {
        WatchEvent::Events { revision, events } => WatchDocument {
            revision: Some(*revision),
            kvs: Vec::new(),
            events: events
                .iter()
                .map(|event| EventDocument {
                    kind: event_kind(event.kind),
                    kv: pair(&event.kv),
                    prev_kv: event.prev_kv.as_ref().map(pair),
                })
                .collect(),
            notice: None,
        },
        WatchEvent::State { kvs } => WatchDocument {
            kvs: kvs.iter().map(pair).collect(),
            ..notice("state", None)
        },
        WatchEvent::Created { revision } => notice("created", Some(*revision)),
        WatchEvent::Synced { revision } => notice("synced", Some(*revision)),
        WatchEvent::Progress { revision } => notice("progress", Some(*revision)),
        WatchEvent::Resumed { from, .. } => notice("resumed", Some(*from)),
        WatchEvent::Restarted { .. } => notice("restarted", None),
    };
    serde_json::to_writer(&mut *out, &watched)?;
    writeln!(out)
}

pub(super) fn get(
    out: &mut impl Write,
    reply_header: &ResponseHeader,
    range: &RangeResponse,
) -> io::Result<()> {
    whole(out, reply_header, found(range))
}

pub(super) fn put(
    out: &mut impl Write,
    reply_header: &ResponseHeader,
    put: &PutResponse,
) -> io::Result<()> {
    whole(out, reply_header, written(put))
}

pub(super) fn delete(
    out: &mut impl Write,
    reply_header: &ResponseHeader,
    delete: &DeleteRangeResponse,
) -> io::Result<()> {
    whole(out, reply_header, gone(delete))
}

pub(super) fn txn(
    out: &mut impl Write,
    reply_header: &ResponseHeader,
    txn: &TxnResponse,
) -> io::Result<()> {
    whole(out, reply_header, done(txn))
}

pub(super) fn compacted(out: &mut impl Write, reply_header: &ResponseHeader) -> io::Result<()> {
    whole(out, reply_header, EmptyDocument {})
}

/// The document of a node's reply: what `body` says, and the `header` that every reply has.
pub fn with_header(reply_header: &ResponseHeader, mut body: Value) -> Value {
    body["header"] =
        serde_json::to_value(header(reply_header)).expect("a document of plain values");
    body
}

fn whole(
    out: &mut impl Write,
    reply_header: &ResponseHeader,
    body: impl Serialize,
) -> io::Result<()> {
    let header = header(reply_header);
    line(out, &ReplyDocument { header, body })
}

/// A document in one line.
///
/// # Errors
/// Those of `out`.
pub fn line(out: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, document)?;
    out.write_all(b"\n")
}

pub(super) fn header(header: &ResponseHeader) -> Header {
    Header {
        cluster_id: header.cluster_id,
        member_id: header.member_id.0,
        revision: header.revision,
        raft_term: header.raft_term.0,
        leader_id: header.leader_id.map(|leader| leader.0),
        read: header.read.map(read),
    }
}

pub(super) fn milliseconds(duration: Duration) -> f64 {
    // To the microsecond: more would only show how floating point rounds.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn read(read: ReadInfo) -> Read {
    Read {
        path: read.path.name(),
        lease_remaining_ms: milliseconds(read.lease_remaining),
        lease_margin_ms: milliseconds(read.lease_margin),
        read_index: read.read_index.0,
        applied_index: read.applied_index.0,
        staleness_ms: read.staleness.map(milliseconds),
    }
}

fn pair(kv: &KeyValue) -> Pair {
    Pair {
        key: STANDARD.encode(&kv.key),
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: STANDARD.encode(&kv.value),
        lease: kv.lease,
    }
}
