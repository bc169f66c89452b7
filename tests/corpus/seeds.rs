//! What the seeds are: one for each thing that a target knows how to do, from which a fuzzer finds
//! its way.
//!
//! Messages are encoded from values. What is read by a [`Draw`](super::targets::draw::Draw) is
//! written down in its bytes, with names for the steps of each target; the names are checked by
//! nobody, but a seed that no longer does what it is called does no harm either.

#[cfg(feature = "cli")]
mod etcd;

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold::api::{
    Call, ClusterInfo, CompactionRequest, Compare, CompareOp, Consistency, DeleteRangeRequest,
    Error, ErrorKind, Event, EventKind, KeyRange, KeyValue, LeaseGrantRequest, LeaseRef,
    MemberInfo, Priority, PutRequest, RangeRequest, RangeResponse, Request, Response, ResponseBody,
    ResponseHeader, SessionCall, SnapshotCall, TXN_PARTS_MAX, TraceParent, TxnOp, TxnRequest,
    WatchMessage, WatchRequest,
};
use leasehold::kv;
use leasehold::kv::{
    Command, LeaseGrant, LeaseMark, LeaseMarkKind, MemStore, Operation, Space, Span, View,
};
use leasehold::raft::{
    Append, AppendReply, Configuration, Entry, Envelope, Fresh, Heard, Heartbeat, LogBase,
    LogOrigin, Message, Payload, ReadGrant, RoundId, Verdict, Vote,
};
use leasehold::types::{
    BootstrapId, ClusterId, Incarnation, LogId, LogIndex, NodeId, SessionId, Term,
};
use leasehold::wire::client::{
    ClientFrame, ClientHello, ContextFrame, KnownLeader, ServerFrame, ServerHello, Welcome,
};
use leasehold::wire::peer::{PeerHello, Raft};
use leasehold::wire::state::{StateEncoder, StateHeader};
use leasehold::wire::{Body, FrameLimits, HEADER_BYTES, PROTOCOL_VERSIONS, RequestContext, encode};

/// One input of one target.
pub(crate) struct Seed {
    pub(crate) target: &'static str,
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

fn seed(target: &'static str, name: &'static str, bytes: impl Into<Vec<u8>>) -> Seed {
    Seed {
        target,
        name,
        bytes: bytes.into(),
    }
}

/// Every seed that is made here.
pub(crate) fn all() -> Vec<Seed> {
    let mut all = Vec::new();
    all.extend(messages());
    all.extend(frames());
    all.extend(commands());
    all.extend(state_machine());
    all.extend(consensus());
    all.extend(node());
    all.extend(log_files());
    all.extend(states());
    if cfg!(feature = "cli") {
        all.extend(texts());
    }
    #[cfg(feature = "cli")]
    all.extend(etcd::all());
    all
}

fn frame<T: Body>(body: &T) -> BytesMut {
    let mut out = BytesMut::new();
    encode(body, &FrameLimits::DEFAULT, &mut out).unwrap();
    out
}

/// A body as the message targets read it: behind one byte that says which of two it is.
fn body<T: Body>(which: u8, value: &T) -> Vec<u8> {
    [&[which], &frame(value)[HEADER_BYTES..]].concat()
}

fn client_hello() -> ClientHello {
    ClientHello {
        versions: PROTOCOL_VERSIONS,
        cluster_id: ClusterId(0x77),
        name: "app".to_owned(),
    }
}

fn call(request: Request) -> ClientFrame {
    ClientFrame {
        request_id: 7,
        call: Call {
            timeout_ms: 2_000,
            min_revision: 0,
            consistency: Consistency::Linearizable,
            session: Some(SessionCall {
                id: SessionId(9),
                sequence: 2,
                acknowledged: 1,
            }),
            request,
        },
    }
}

/// A call that is a part of a trace.
fn traced() -> ContextFrame {
    ContextFrame {
        context: RequestContext {
            trace_parent: TraceParent::new([7; 16], [8; 8], 1).ok(),
            priority: Priority::Low,
        },
        frame: call(Request::Put(put())),
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put() -> PutRequest {
    PutRequest {
        key: text("key"),
        value: text("value"),
        prev_kv: true,
        ..PutRequest::default()
    }
}

fn delete() -> DeleteRangeRequest {
    DeleteRangeRequest {
        key: text("a"),
        range: KeyRange::Until(text("b")),
        prev_kv: true,
    }
}

/// One inside of another one, with something in each branch.
fn txn() -> TxnRequest {
    let inner = TxnRequest::new()
        .when([Compare::version("b", CompareOp::Greater, 0)])
        .and_then([TxnOp::put("b", "inner")])
        .or_else([TxnOp::delete("c")]);
    TxnRequest::new()
        .when([Compare::mod_revision("a", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("a", "outer"), TxnOp::txn(inner)])
        .or_else([TxnOp::get("a")])
}

fn reply(body: ResponseBody) -> ServerFrame {
    ServerFrame {
        request_id: 7,
        result: Ok(Response {
            header: ResponseHeader {
                cluster_id: 1,
                member_id: NodeId(2),
                revision: 30,
                raft_term: Term(4),
                leader_id: Some(NodeId(2)),
                read: None,
            },
            body,
        }),
    }
}

fn found() -> RangeResponse {
    let kv = |key: &str| KeyValue {
        key: text(key),
        value: text("\u{1b}[31mred\0"),
        create_revision: 2,
        mod_revision: 30,
        version: 4,
        lease: 0,
    };
    RangeResponse {
        kvs: vec![kv("a"), kv("b\n")],
        more: true,
        count: 9,
    }
}

fn watch() -> Request {
    Request::Watch {
        watch_id: 7,
        watch: WatchRequest {
            key: text("k"),
            range: KeyRange::Prefix,
            start_revision: 5,
            prev_kv: true,
            progress_notify: true,
            ..WatchRequest::default()
        },
    }
}

fn events() -> WatchMessage {
    let event = |kind, kv: KeyValue, prev_kv| Event { kind, kv, prev_kv };
    let kv = || found().kvs.remove(0);
    WatchMessage::Events {
        revision: 30,
        is_partial: true,
        events: vec![
            event(EventKind::Put, kv(), Some(kv())),
            event(EventKind::Delete, kv(), None),
        ],
    }
}

fn canceled() -> WatchMessage {
    let kind = ErrorKind::Compacted {
        compact_revision: 9,
    };
    WatchMessage::Canceled {
        error: Error::not_applied(kind, "compacted"),
        resume_revision: Some(9),
    }
}

fn refusal() -> ServerFrame {
    let kind = ErrorKind::NotLeader {
        leader: Some(NodeId(3)),
        address: Some("h:1".to_owned()),
    };
    ServerFrame {
        request_id: 1,
        result: Err(Error::not_applied(kind, "ask n3")),
    }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        round: RoundId(5),
        promise: Duration::from_millis(500),
        commit: LogIndex(2),
        fresh: Some(Fresh {
            name: RoundId(3),
            index: LogIndex(4),
            grant: Some(ReadGrant {
                length: Duration::from_millis(400),
                floor: LogIndex(3),
            }),
        }),
    }
}

fn raft() -> Raft {
    let says = |message| Envelope {
        from: NodeId(2),
        to: NodeId(1),
        term: Term(3),
        message,
    };
    let configuration = Configuration {
        voters: (1..=3).map(NodeId).collect(),
        outgoing: Some([NodeId(1)].into()),
        learners: [NodeId(9)].into(),
        joining: [(NodeId(9), Some(NodeId(2)))].into(),
        details: [(NodeId(9), text("where"))].into(),
    };
    let payloads = [
        Payload::Noop,
        Payload::Command(text("x")),
        Payload::Configuration(Box::new(configuration)),
    ];
    let entries = payloads.into_iter().zip(3..).map(|(payload, index)| Entry {
        id: LogId::new(LogIndex(index), Term(3)),
        payload,
    });
    let heard = Heard {
        round: RoundId(5),
        promised: true,
    };
    Raft {
        envelopes: vec![
            says(Message::Vote(Vote {
                round: RoundId(5),
                last: LogId::new(LogIndex(2), Term(1)),
                origin: LogOrigin {
                    first: LogId::new(LogIndex(1), Term(1)),
                    hash: 0,
                },
                promise: Duration::from_millis(500),
                transfer_from: Some(Term(2)),
            })),
            says(Message::Heartbeat(heartbeat())),
            says(Message::Append(Append {
                heartbeat: heartbeat(),
                base: LogId::new(LogIndex(2), Term(1)),
                base_checksum: Some(7),
                entries: entries.collect(),
            })),
            says(Message::Appended(AppendReply {
                heard,
                verdict: Verdict::Durable(LogIndex(4)),
            })),
            says(Message::Release),
        ],
    }
}

fn peer_hello() -> PeerHello {
    PeerHello {
        versions: PROTOCOL_VERSIONS,
        cluster_id: ClusterId(0x77),
        node_id: NodeId(2),
        name: "n2".to_owned(),
        incarnation: Incarnation(1),
        peer_address: "h:1".to_owned(),
        client_address: "h:2".to_owned(),
        etcd_url: "http://h:3".to_owned(),
        boot: 3,
        sequence: 4,
        bootstrap: Some(BootstrapId(0x99)),
    }
}

fn messages() -> Vec<Seed> {
    let welcome = ServerHello {
        result: Ok(Welcome {
            serves_reads: true,
            leader: Some(KnownLeader {
                id: NodeId(8),
                address: Some("10.0.0.8:7400".to_owned()),
            }),
            version: 1,
            cluster_id: ClusterId(0x77),
            member_id: NodeId(2),
            name: "n2".to_owned(),
            bootstrap: Some(BootstrapId(0x99)),
        }),
    };
    let range = RangeRequest {
        key: text("k"),
        range: KeyRange::Prefix,
        limit: 5,
        keys_only: true,
        ..RangeRequest::default()
    };
    let compact = CompactionRequest::at(3);
    let most = TxnRequest {
        success: vec![TxnOp::delete(""); TXN_PARTS_MAX],
        ..TxnRequest::default()
    };
    let target = Some(NodeId(3));
    vec![
        seed("client_messages", "hello", body(0, &client_hello())),
        seed(
            "client_messages",
            "put",
            body(1, &call(Request::Put(put()))),
        ),
        seed(
            "client_messages",
            "delete",
            body(1, &call(Request::DeleteRange(delete()))),
        ),
        seed(
            "client_messages",
            "range",
            body(1, &call(Request::Range(range))),
        ),
        seed(
            "client_messages",
            "compact",
            body(1, &call(Request::Compact(compact))),
        ),
        seed(
            "client_messages",
            "txn",
            body(1, &call(Request::Txn(txn()))),
        ),
        seed(
            "client_messages",
            "lease_keep_alive",
            body(
                1,
                &call(Request::LeaseKeepAlive(vec![
                    LeaseRef::id(2),
                    LeaseRef::id(-3),
                ])),
            ),
        ),
        seed(
            "client_messages",
            "put_with_new_lease",
            body(
                1,
                &call(Request::PutWithNewLease(
                    LeaseGrantRequest {
                        ttl_ms: 9,
                        name: "n".to_owned(),
                        ..LeaseGrantRequest::default()
                    },
                    put(),
                )),
            ),
        ),
        // As much memory as a transaction can be made to take.
        seed(
            "client_messages",
            "txn_of_many_parts",
            body(1, &call(Request::Txn(most))),
        ),
        seed(
            "client_messages",
            "open",
            body(1, &call(Request::OpenSession)),
        ),
        seed(
            "client_messages",
            "move",
            body(1, &call(Request::MoveLeader { target })),
        ),
        seed("client_messages", "watch", body(1, &call(watch()))),
        seed("client_messages", "traced", body(3, &traced())),
        seed(
            "client_messages",
            "watch_cancel",
            body(1, &call(Request::WatchCancel { watch_id: 7 })),
        ),
        seed(
            "client_messages",
            "watch_progress",
            body(1, &call(Request::WatchProgress { watch_id: 7 })),
        ),
        seed(
            "client_messages",
            "snapshot",
            body(
                1,
                &call(Request::Snapshot(SnapshotCall::Chunk { id: 7, number: 2 })),
            ),
        ),
        seed("server_messages", "welcome", body(0, &welcome)),
        seed(
            "server_messages",
            "found",
            body(1, &reply(ResponseBody::Range(found()))),
        ),
        seed(
            "server_messages",
            "opened",
            body(1, &reply(ResponseBody::OpenSession { id: SessionId(4) })),
        ),
        seed(
            "server_messages",
            "status",
            body(1, &reply(ResponseBody::Status(Box::default()))),
        ),
        seed("server_messages", "refused", body(1, &refusal())),
        seed("server_messages", "watch_events", body(2, &events())),
        seed("server_messages", "watch_canceled", body(2, &canceled())),
        seed(
            "server_messages",
            "watch_state",
            body(2, &WatchMessage::State { kvs: found().kvs }),
        ),
        seed("peer_messages", "hello", body(0, &peer_hello())),
        seed("peer_messages", "raft", body(1, &raft())),
        // A list that is claimed to be endless, and is empty.
        seed("peer_messages", "claim", [1, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    ]
}

/// Streams: a byte for the door (and, with its upper bit, for checksums that are put right), one
/// for the longest chunk, then frames.
fn frames() -> Vec<Seed> {
    let (server, client, peer) = (0, 1, 2);
    let stream = |door: u8, chunk: u8, frames: &[BytesMut]| {
        [&[door, chunk], frames.concat().as_slice()].concat()
    };
    let calls = [
        frame(&client_hello()),
        frame(&call(Request::Put(put()))),
        frame(&call(Request::Status)),
    ];
    let replies = [
        frame(&reply(ResponseBody::Range(found()))),
        frame(&refusal()),
    ];
    let mut cut = stream(server, 2, &calls);
    cut.truncate(40);
    vec![
        seed("frames", "calls", stream(server, 255, &calls)),
        seed("frames", "calls_in_pieces", stream(server, 0, &calls)),
        seed("frames", "replies", stream(client, 10, &replies)),
        seed(
            "frames",
            "peer",
            stream(peer, 16, &[frame(&peer_hello()), frame(&raft())]),
        ),
        seed(
            "frames",
            "checksums_put_right",
            stream(server | 0x80 | 1, 3, &replies),
        ),
        seed("frames", "cut", cut),
        seed(
            "frames",
            "long_claim",
            [server, 7, 0, 0, 0x10, 0, 3, 1, 0, 0, 0, 0, 0, 1, 2],
        ),
    ]
}

fn commands() -> Vec<Seed> {
    let session = Some(SessionCall {
        id: SessionId(1),
        sequence: 2,
        acknowledged: 1,
    });
    let write = |operation| {
        Command::Write {
            author: None,
            session,
            operation,
        }
        .encode()
    };
    let member = MemberInfo {
        id: NodeId(1),
        name: "n1".to_owned(),
        peer_address: "h:1".to_owned(),
        client_address: String::new(),
    };
    let info = ClusterInfo {
        cluster_id: ClusterId(5),
        members: vec![member],
    };
    let bootstrap = Command::Bootstrap(info.clone());
    let bootstrap_as = Command::BootstrapAs {
        bootstrap: BootstrapId(6),
        info,
    };
    let forget = Command::ForgetSessions {
        sessions: vec![SessionId(1), SessionId(7)],
        unused_since: LogIndex(40),
    };
    vec![
        seed("commands", "put", write(Operation::Put(put()))),
        seed(
            "commands",
            "delete",
            write(Operation::DeleteRange(delete())),
        ),
        seed(
            "commands",
            "compact",
            write(Operation::Compact(CompactionRequest::at(2))),
        ),
        seed("commands", "txn", write(Operation::Txn(txn()))),
        seed(
            "commands",
            "lease_grant",
            write(Operation::LeaseGrant(LeaseGrant {
                id: 2,
                ttl_ms: 500,
                requested_ttl_ms: 1,
                name: "n".to_owned(),
                owner: "o".to_owned(),
                granted_at_ms: 7,
                leases_max: 9,
                keys_max: 9,
                per_user_max: 9,
            })),
        ),
        seed(
            "commands",
            "lease_revoke",
            write(Operation::LeaseRevoke(LeaseRef::id(2))),
        ),
        seed(
            "commands",
            "lease_expire",
            Command::ExpireLeases {
                term: Term(3),
                leases: vec![LeaseRef::id(2), LeaseRef::id(4)],
            }
            .encode(),
        ),
        seed(
            "commands",
            "lease_mark",
            Command::MarkLeases {
                term: Term(3),
                marks: vec![LeaseMark {
                    lease: LeaseRef::id(2),
                    kind: LeaseMarkKind::Remaining(9),
                }],
            }
            .encode(),
        ),
        seed(
            "commands",
            "open",
            Command::OpenSession {
                author: None,
                sessions_max: 9,
            }
            .encode(),
        ),
        seed("commands", "bootstrap", bootstrap.encode()),
        seed("commands", "bootstrap_as", bootstrap_as.encode()),
        seed("commands", "forget", forget.encode()),
        seed("commands", "later_version", [9, 1, 2, 3]),
    ]
}

/// Programs of [`kv_model`](super::targets::kv::kv_model).
fn state_machine() -> Vec<Seed> {
    const OPEN: &[u8] = &[7, 3];
    // No session, a put with a value of three bytes to the key `a`, and what was there before.
    const PUT: &[u8] = &[0, 3, 0, 0, 0, 3, b'x', b'y', b'z', 0x05, 1];
    // The same with the session that is open, under the number after its mark.
    const NUMBERED: &[u8] = &[0, 0, 0, 0, 5, 1, 0, 0, 0, 2, b'p', b'q', 0x05, 1];
    const DELETE: &[u8] = &[0, 3, 0, 3, 0x05, 2, 1];
    const COMPACT: &[u8] = &[0, 3, 7, 5];
    const OTHER: &[u8] = &[0, 3, 0, 0, 0, 1, b'w', 0x09, 0];
    // The key `a`, if the last write was its own, and another one; else what is there.
    const SWAP: &[u8] = &[
        0, 3, 0, 7, 1, 0x05, 0, 9, 0, 2, 0, 0x05, 1, b's', 0, 0x09, 1, b't', 1, 2, 0x05,
    ];
    const SWEEP: &[u8] = &[12, 1];
    const COMPARE: &[u8] = &[11];
    const READ: &[u8] = &[15, 0, 4, 2, 0, 0, 0, 1];
    // All keys, as they were at a revision, the youngest first.
    const READ_PAST: &[u8] = &[15, 0, 4, 0, 0, 0, 33, 9, 3, 0, 3];
    // All keys, in steps of one key.
    const SCAN: &[u8] = &[13, 0, 4, 0, 0, 0, 0];
    const STEP: &[u8] = &[13, 1, 2];
    const FORGET: &[u8] = &[8, 1, 0, 0, 5];
    // A lease of seven milliseconds with an id by its entry, and no name.
    const GRANT: &[u8] = &[0, 3, 0, 6, 0, 7, 0, 0, 0, 3];
    // The key `a` on the first lease that there is.
    const ATTACH: &[u8] = &[0, 3, 0, 4, 0, 0x05, 1, b'l', 0, 0, 2, 2];
    const REVOKE: &[u8] = &[0, 3, 0, 6, 3, 2];
    const UPDATE_TTL: &[u8] = &[0, 3, 0, 6, 4, 2, 3];
    const PUT_WITH_LEASE: &[u8] = &[0, 3, 0, 6, 5, 5, 0, 2, 2, 3, 0, 1, b'n', 0x09, 1];
    // The first lease that there is, by whoever leads, and by whoever does not lead any more.
    const EXPIRE: &[u8] = &[14, 0, 0, 2];
    const DEPOSED: &[u8] = &[14, 0x80, 0, 2];
    const MARK: &[u8] = &[14, 2, 0, 2, 0, 5];
    vec![
        seed(
            "kv_model",
            "writes",
            [PUT, PUT, DELETE, PUT, COMPARE, READ].concat(),
        ),
        seed(
            "kv_model",
            "transactions",
            [PUT, SWAP, SWAP, COMPARE, DELETE, SWAP, COMPARE, READ].concat(),
        ),
        seed(
            "kv_model",
            "sessions",
            [OPEN, NUMBERED, NUMBERED, COMPARE, FORGET, NUMBERED].concat(),
        ),
        seed(
            "kv_model",
            "reads",
            [
                PUT, DELETE, PUT, OTHER, READ_PAST, SCAN, STEP, PUT, STEP, STEP,
            ]
            .concat(),
        ),
        seed(
            "kv_model",
            "leases",
            [
                GRANT,
                ATTACH,
                PUT,
                ATTACH,
                COMPARE,
                EXPIRE,
                GRANT,
                ATTACH,
                DEPOSED,
                REVOKE,
                PUT_WITH_LEASE,
                UPDATE_TTL,
                MARK,
                READ,
            ]
            .concat(),
        ),
        seed(
            "kv_model",
            "compaction",
            [PUT, PUT, DELETE, COMPACT, SWEEP, PUT, COMPACT, SWEEP, SWEEP].concat(),
        ),
    ]
}

// Steps of consensus and of a node. Time is drawn as (100, quarter of the milliseconds).
const LATER: &[u8] = &[0, 100, 250];
const SOON: &[u8] = &[0, 100, 15];
/// The oldest message is answered as an honest peer would.
const ANSWER: &[u8] = &[11, 0];

/// Scripts of [`raft_inputs`](super::targets::raft::raft_inputs), behind a byte that shapes the
/// world.
fn consensus() -> Vec<Seed> {
    const SETTLE: &[u8] = &[5, 3];
    const APPLIED: &[u8] = &[9];
    const PROPOSE: &[u8] = &[23, 2, b'h', b'i'];
    const READ: &[u8] = &[25, 0];
    const READ_BY_QUORUM: &[u8] = &[25, 1];
    const TRANSFER: &[u8] = &[27, 1];
    const RESTART: &[u8] = &[28, 1, 0, 0, 0];
    const RESTART_DAMAGED: &[u8] = &[28, 1, 0, 7, 0];
    const BACK: &[u8] = &[4, 9, 2];
    const CLEAR: &[u8] = &[29];
    const RETIRE: &[u8] = &[30, 7];
    let shape: &[u8] = &[0];
    let alone: &[u8] = &[0x18];
    // Silence after the start, a pre-vote, the vote, its own vote on disk, a first entry.
    let elected = [
        LATER, SETTLE, LATER, LATER, ANSWER, ANSWER, SETTLE, ANSWER, ANSWER, SETTLE, ANSWER,
        ANSWER, ANSWER, ANSWER, APPLIED, ANSWER, ANSWER,
    ]
    .concat();
    // A leader of the first term from outside: a heartbeat, then an append after nothing.
    let follows = [
        &[16, 0, 0, 6, 4, 5, 4, 1, 0][..],
        &[16, 0, 0, 6, 6, 5, 4, 1, 0, 3, 2, 1, 4, 3, 2, b'a', b'b'],
        SETTLE,
    ]
    .concat();
    let round = [SOON, ANSWER, ANSWER, SETTLE, ANSWER, ANSWER, APPLIED].concat();
    let script = |start: &[u8], steps: &[&[u8]]| [start, &steps.concat()].concat();
    vec![
        seed(
            "raft_inputs",
            "alone",
            script(
                alone,
                &[
                    LATER, SETTLE, LATER, LATER, SETTLE, APPLIED, PROPOSE, SETTLE, READ,
                ],
            ),
        ),
        seed(
            "raft_inputs",
            "elected",
            script(
                shape,
                &[&elected, PROPOSE, &round, READ, READ_BY_QUORUM, &round],
            ),
        ),
        seed(
            "raft_inputs",
            "hands_over",
            script(
                shape,
                &[&elected, PROPOSE, &round, TRANSFER, &round, &round, LATER],
            ),
        ),
        seed(
            "raft_inputs",
            "deposed",
            script(shape, &[&elected, &follows, PROPOSE, &round]),
        ),
        seed(
            "raft_inputs",
            "follows",
            script(shape, &[&follows, SOON, &follows, READ, ANSWER]),
        ),
        seed(
            "raft_inputs",
            "restarts",
            script(shape, &[&elected, PROPOSE, RESTART, &elected, &round]),
        ),
        seed(
            "raft_inputs",
            "damaged",
            script(
                shape,
                &[
                    &elected,
                    PROPOSE,
                    &round,
                    RESTART_DAMAGED,
                    &follows,
                    ANSWER,
                    &follows,
                ],
            ),
        ),
        seed(
            "raft_inputs",
            "clock_runs_back",
            script(shape, &[&elected, BACK, &round, CLEAR, &round]),
        ),
        seed(
            "raft_inputs",
            "retires",
            script(shape, &[&elected, RETIRE, &round, LATER, LATER]),
        ),
    ]
}

/// Scripts of [`node_inputs`](super::targets::node::node_inputs).
fn node() -> Vec<Seed> {
    const SETTLE: &[u8] = &[4, 3];
    const APPLY: &[u8] = &[8];
    const PUT: &[u8] = &[21, 0, 0, 0, 0, 0, 0, 0];
    const GET: &[u8] = &[21, 0, 9, 0, 0, 0, 0];
    const SWAP: &[u8] = &[21, 0, 8, 0, 0, 0, 0, 0];
    const OPEN: &[u8] = &[21, 0, 4, 0, 0, 0, 0];
    const MOVE: &[u8] = &[21, 0, 5, 1, 0, 0, 0, 0];
    const IDLE: &[u8] = &[29];
    const RESTART: &[u8] = &[28, 1, 0];
    const LONG: &[u8] = &[0, 230, 100];
    let alone: &[u8] = &[3];
    let three: &[u8] = &[0];
    let lone = [
        LATER, SETTLE, LATER, LATER, SETTLE, SETTLE, APPLY, SETTLE, APPLY,
    ]
    .concat();
    let elected = [
        LATER, SETTLE, LATER, LATER, ANSWER, ANSWER, SETTLE, ANSWER, ANSWER, SETTLE, ANSWER,
        ANSWER, ANSWER, ANSWER, APPLY, ANSWER, SETTLE, ANSWER, ANSWER, APPLY,
    ]
    .concat();
    let round = [SOON, ANSWER, ANSWER, SETTLE, ANSWER, ANSWER, APPLY].concat();
    let script = |start: &[u8], steps: &[&[u8]]| [start, &steps.concat()].concat();
    vec![
        seed(
            "node_inputs",
            "alone",
            script(
                alone,
                &[&lone, PUT, GET, SETTLE, APPLY, OPEN, SETTLE, APPLY],
            ),
        ),
        seed(
            "node_inputs",
            "idle_sessions",
            script(
                alone,
                &[
                    &lone, OPEN, SETTLE, APPLY, LONG, LONG, LONG, IDLE, SETTLE, APPLY,
                ],
            ),
        ),
        seed(
            "node_inputs",
            "elected",
            script(three, &[&elected, PUT, &round, GET, &round]),
        ),
        seed(
            "node_inputs",
            "swaps",
            script(three, &[&elected, SWAP, &round, SWAP, &round]),
        ),
        seed(
            "node_inputs",
            "moves",
            script(three, &[&elected, PUT, &round, MOVE, &round, &round, LATER]),
        ),
        seed(
            "node_inputs",
            "restarts",
            script(three, &[&elected, PUT, RESTART, GET, &elected, GET, &round]),
        ),
    ]
}

/// Backups: of nothing, of a little, and damaged.
fn states() -> Vec<Seed> {
    let put = |key: &str| {
        let operation = Operation::Put(PutRequest {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::from_static(b"value"),
            ..PutRequest::default()
        });
        Command::Write {
            author: None,
            session: None,
            operation,
        }
    };
    let compact = Command::Write {
        author: None,
        session: None,
        operation: Operation::Compact(CompactionRequest::at(2)),
    };
    let open = Command::OpenSession {
        author: None,
        sessions_max: 9,
    };
    let little = backup(&[put("a"), put("b"), open, put("a"), compact]);
    let whole = [&[0], &little[..]].concat();
    let mut flipped = whole.clone();
    flipped[400] ^= 1;
    let mut forged = flipped.clone();
    forged[0] = 1;
    let cut = whole[..300].to_vec();
    vec![
        seed("state_stream", "nothing", [&[0], &backup(&[])[..]].concat()),
        seed("state_stream", "whole", whole),
        seed("state_stream", "flipped", flipped),
        seed("state_stream", "checksum_put_right", forged),
        seed("state_stream", "cut", cut),
    ]
}

/// The state that `commands` lead to, as a file.
fn backup(commands: &[Command]) -> Vec<u8> {
    let mut store = MemStore::new();
    for (index, command) in (1..).zip(commands) {
        let id = LogId::new(LogIndex(index), Term(1));
        kv::apply(&mut store, id, Some(&command.encode())).unwrap();
    }
    let progress = kv::progress(&store).unwrap();
    let header = StateHeader {
        cluster: ClusterId(7),
        member: NodeId(3),
        base: LogBase {
            id: progress.applied,
            configuration: Configuration::default(),
        },
        revision: progress.revision,
        compact_revision: progress.compact_revision,
        sessions: progress.sessions,
        leases: progress.leases,
        hash: kv::content_hash(&store).unwrap(),
    };
    let (mut encoder, first) = StateEncoder::begin(&header);
    for space in Space::ALL {
        for pair in store.range(space, &Span::all()) {
            let (key, record) = pair.unwrap();
            encoder.push(space, &key, &record);
        }
    }
    [&[first][..], &encoder.finish()].concat().concat()
}

/// Scripts of [`log_files`](super::targets::log::log_files): steps that write, a zero, changes.
fn log_files() -> Vec<Seed> {
    // Records of 40, of 2,000 and of 500 bytes, the last in place of earlier ones.
    const APPEND: &[u8] = &[5, 0, 2, 1];
    const LARGE: &[u8] = &[5, 0, 4, 2];
    const REPLACE: &[u8] = &[5, 7, 3, 0];
    const MARK: &[u8] = &[1];
    const VOTE: &[u8] = &[2, 1];
    const PREPARE: &[u8] = &[3];
    const REOPEN: &[u8] = &[4];
    const END: &[u8] = &[0];
    // File, sector, byte within it, what.
    const FLIP: &[u8] = &[0, 65, 20, 0, 3];
    const BLANK: &[u8] = &[0, 65, 0, 1];
    const MISDIRECT: &[u8] = &[0, 66, 0, 2, 65];
    const LOSE: &[u8] = &[1, 0, 0, 4];
    const FORGE_OPENING: &[u8] = &[0, 33, 6, 7, 2, 177];
    const FORGE_VOTE: &[u8] = &[2, 1, 28, 7, 2, 176];
    const BLANKED_CUT: &[u8] = &[
        5, 242, 250, 143, 143, 255, 255, 255, 21, 21, 21, 21, 255, 255, 255, 255, 255, 255, 255,
        20, 223, 223, 223, 223, 0, 3, 70, 4, 5, 0, 17, 5, 0, 93, 1, 41, 3, 33, 4, 2, 177,
    ];
    const ROT_OTHER_VOTE: &[u8] = &[2, 65, 20, 0, 3];
    let life = [
        APPEND, VOTE, APPEND, LARGE, PREPARE, REPLACE, MARK, LARGE, REOPEN, APPEND, END,
    ]
    .concat();
    let forged_term = [
        &[5, 0, 1, 1, 2, 0, 4, 2, 4],
        APPEND,
        END,
        FORGE_VOTE,
        ROT_OTHER_VOTE,
    ]
    .concat();
    // After an entry that it holds, then after one that it does not.
    let cut = [
        LARGE,
        LARGE,
        LARGE,
        &[248, 2],
        LARGE,
        &[249],
        REOPEN,
        &[248, 15],
        APPEND,
        LARGE,
        &[249],
        END,
    ]
    .concat();
    let with = |changes: &[&[u8]]| [&life, changes.concat().as_slice()].concat();
    vec![
        seed("log_files", "sound", life.clone()),
        seed("log_files", "flipped", with(&[FLIP])),
        seed("log_files", "blanked", with(&[BLANK])),
        seed("log_files", "misdirected", with(&[MISDIRECT])),
        seed("log_files", "lost", with(&[LOSE])),
        seed("log_files", "forged_opening", with(&[FORGE_OPENING])),
        seed("log_files", "forged_vote", with(&[FORGE_VOTE, FLIP])),
        // A vote of the last term that a number can name: no election can follow it.
        seed("log_files", "forged_term", forged_term),
        // The only sector of the last batch, and with it a cut: what it replaced shows again (A24).
        seed("log_files", "blanked_cut", BLANKED_CUT),
        seed("log_files", "begun_later", cut.clone()),
        seed("log_files", "begun_later_lost", [&cut[..], LOSE].concat()),
    ]
}

/// What is text. (Certificates are not made here: each would be another one. They lie in
/// `fuzz/seeds/certificates` since they were issued once.)
fn texts() -> Vec<Seed> {
    let file = r#"[node]
name = "n1"
data_dir = "data"
[cluster]
initial = ["n1=10.0.0.1:7401", "n2=10.0.0.2:7401", "n3=n3.example.org:7401"]
[listen]
metrics = "[::]:7490"
[raft]
heartbeat_interval = "40ms"
[leader_lease]
enabled = true
max_drift_ppm = 20_000
[limits]
max_value_bytes = "1MiB"
[tls.client]
cert_file = "c.pem"
key_file = "c.key"
trusted_ca_file = "ca.pem"
[tls.peer]
cert_file = "p.pem"
key_file = "p.key"
trusted_ca_file = "ca.pem"
"#;
    let variables = "LEASEHOLD_LISTEN_CLIENT=127.0.0.1:0\nLEASEHOLD_NODE_NMAE=n2\nHOME=/\n";
    let flags = "storage.cache_bytes=1.5MiB\nlog.format=text\n";
    let all = format!("{file}\0\0{flags}");
    let line = |words: &[&str]| format!("\0{}", words.join("\n"));
    let identity = "\u{1}leasehold://01234567-89ab-cdef-0011-223344556677/node/n1";
    vec![
        seed("config_file", "file", file),
        seed("config_file", "file_and_flags", all),
        seed(
            "config_file",
            "misspelt_variable",
            format!("{file}\0{variables}"),
        ),
        seed(
            "config_file",
            "deep",
            "a.b.c.d.e.f=[[[[1]]]]\n[x.y]\nz={a={b=1}}\n",
        ),
        seed(
            "command_line",
            "get",
            line(&["get", "--prefix", "a", "--limit", "3", "-o", "json"]),
        ),
        seed(
            "command_line",
            "serve",
            line(&[
                "serve",
                "--config",
                "x",
                "--raft.heartbeat_interval",
                "30ms",
            ]),
        ),
        seed(
            "command_line",
            "cert",
            line(&["cert", "issue", "--name", "n1", "--san", "a,10.0.0.1"]),
        ),
        seed(
            "command_line",
            "found",
            body(1, &reply(ResponseBody::Range(found()))),
        ),
        seed("certificates", "identity", identity),
    ]
}
