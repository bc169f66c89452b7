use std::time::Duration;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use crate::api::{
    Call, Consistency, Error, ErrorKind, KeyValue, Limits, Priority, PutRequest, RangeRequest,
    RangeResponse, ReadInfo, ReadPath, Request, Response, ResponseBody, ResponseHeader,
    SessionCall, TraceParent, WatchMessage,
};
use crate::raft::{
    APPEND_WEIGHT_MAX, Append, Configuration, Entry, Envelope, Heartbeat, MEMBERS_MAX, Message,
    Payload, RoundId,
};
use crate::types::{BootstrapId, ClusterId, Incarnation, LogId, LogIndex, NodeId, SessionId, Term};
use crate::wire::client::{
    ClientFrame, ClientHello, ContextFrame, ServerFrame, ServerHello, Welcome, encode_call,
};
use crate::wire::peer::{
    FRAME_WEIGHT_MAX, Forward, ForwardReply, MemberStanding, PeerClock, PeerHello, Raft,
    StateChunk, Transfer,
};
use crate::wire::point::PointRead;
use crate::wire::state::CHUNK_BYTES_MAX;
use crate::wire::{
    Body, Door, Frame, FrameLimits, FrameReader, HEADER_BYTES, Kind, PROTOCOL_VERSIONS,
    RequestContext, VersionRange, WireError, encode,
};

const LIMITS: FrameLimits = FrameLimits::DEFAULT;

fn encoded<T: Body>(body: &T) -> Bytes {
    let mut out = BytesMut::new();
    encode(body, &LIMITS, &mut out).unwrap();
    out.freeze()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn put_frame(request_id: u64, value_bytes: usize) -> ClientFrame {
    ClientFrame {
        request_id,
        call: Call {
            timeout_ms: 2000,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: Some(SessionCall {
                id: SessionId(300),
                sequence: 2,
                acknowledged: 1,
            }),
            request: Request::Put(PutRequest {
                key: Bytes::from_static(b"key"),
                value: Bytes::from(vec![b'v'; value_bytes]),
                prev_kv: true,
                ..PutRequest::default()
            }),
        },
    }
}

fn get_frame() -> ClientFrame {
    ClientFrame {
        request_id: 7,
        call: Call {
            timeout_ms: 1000,
            consistency: Consistency::LeaseOnly,
            min_revision: 0,
            session: None,
            request: Request::Range(RangeRequest {
                key: Bytes::from_static(b"k"),
                limit: 1,
                ..RangeRequest::default()
            }),
        },
    }
}

fn reply_frame() -> ServerFrame {
    ServerFrame {
        request_id: 7,
        result: Ok(Response {
            header: ResponseHeader {
                cluster_id: 5,
                member_id: NodeId(1),
                revision: 9,
                raft_term: Term(3),
                leader_id: Some(NodeId(1)),
                read: Some(ReadInfo {
                    path: ReadPath::Lease,
                    lease_remaining: Duration::from_millis(400),
                    lease_margin: Duration::from_millis(50),
                    read_index: LogIndex(8),
                    applied_index: LogIndex(9),
                    staleness: None,
                }),
            },
            body: ResponseBody::Range(RangeResponse {
                kvs: vec![KeyValue {
                    key: Bytes::from_static(b"k"),
                    value: Bytes::from_static(b"v"),
                    create_revision: 1,
                    mod_revision: 2,
                    version: 2,
                    lease: 0,
                }],
                more: false,
                count: 1,
            }),
        }),
    }
}

fn context_frame() -> ContextFrame {
    ContextFrame {
        context: RequestContext {
            trace_parent: Some(TraceParent::new([7; 16], [8; 8], 1).unwrap()),
            priority: Priority::Low,
        },
        frame: put_frame(1, 3),
    }
}

fn peer_hello() -> PeerHello {
    PeerHello {
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
        cluster_id: ClusterId(0x77),
        node_id: NodeId(2),
        name: "n2".into(),
        incarnation: Incarnation(1),
        peer_address: "h:1".into(),
        client_address: "h:2".into(),
        etcd_url: "u".into(),
        boot: 3,
        sequence: 4,
        bootstrap: Some(BootstrapId(0x99)),
    }
}

fn welcome() -> ServerHello {
    ServerHello {
        result: Ok(Welcome {
            leader: None,
            serves_reads: false,
            version: 1,
            cluster_id: ClusterId(0x77),
            member_id: NodeId(2),
            name: "n2".into(),
            bootstrap: Some(BootstrapId(0x99)),
        }),
    }
}

/// Reads everything out of `bytes`, cut into chunks of `chunk_bytes`.
fn read_all(door: Door, bytes: &[u8], chunk_bytes: usize) -> Result<Vec<Frame>, WireError> {
    let mut reader = FrameReader::new(door, LIMITS);
    let mut frames = Vec::new();
    for chunk in bytes.chunks(chunk_bytes.max(1)) {
        reader.push(Bytes::copy_from_slice(chunk));
        while let Some(frame) = reader.next_frame()? {
            frames.push(frame);
        }
    }
    reader.finish()?;
    Ok(frames)
}

#[test]
fn the_bytes_of_each_kind_are_these_for_ever() {
    let hello = ClientHello {
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
        cluster_id: ClusterId(0x77),
        name: "c".into(),
    };
    let refusal = ServerFrame {
        request_id: 1,
        result: Err(Error::not_applied(
            ErrorKind::NotLeader {
                leader: Some(NodeId(3)),
                address: Some("h:1".into()),
            },
            "no",
        )),
    };
    let golden = [
        (encoded(&hello), "05000000010100f68b69900101770163"),
        (
            encoded(&welcome()),
            "0c000000020100829b51d800017702026e320199010000",
        ),
        (
            encoded(&put_frame(1, 3)),
            "170000000301007b17399501d00f000001ac02020101036b65790376767601000000",
        ),
        (
            encoded(&get_frame()),
            "140000000301003ad67c0307e80702000000016b0001000000000000000000",
        ),
        (
            encoded(&reply_frame()),
            "24000000040100babbee4b07000501120301010100008088debe010080e1eb170809000001016b0176020404000001",
        ),
        (
            encoded(&refusal),
            "0e0000000401009bf74af401010201030103683a3100026e6f",
        ),
        (
            encoded(&WatchMessage::Progress { revision: 300 }),
            "03000000050100a448952c04d804",
        ),
        (
            encoded(&peer_hello()),
            "170000001001007b3532dc01017702026e320103683a3103683a3201750304019901",
        ),
        (encoded(&MemberStanding::Ask), "010000001501006d128dcf00"),
        (
            encoded(&MemberStanding::Known {
                index: LogIndex(300),
                incarnation: Some(Incarnation(5)),
                initial_members: vec!["n1".to_owned()],
            }),
            "09000000150100c35ed70b01ac02010501026e31",
        ),
        (encoded(&Raft::default()), "010000001101003a85ef4000"),
        (
            encoded(&PeerClock { boot: 1, raw: 300 }),
            "03000000120100aba1bd9601ac02",
        ),
        (
            encoded(&Transfer::Offer {
                export: 300,
                base: LogId::new(LogIndex(5), Term(2)),
            }),
            "05000000130100dd6850f100ac020205",
        ),
        (
            encoded(&Transfer::Want { from: 300 }),
            "030000001301000e72e15d01ac02",
        ),
        (encoded(&Transfer::Busy), "010000001301009d2ce80402"),
        (encoded(&Transfer::Done), "010000001301000b1cef7303"),
        (
            encoded(&Transfer::Failed { corrupt: true }),
            "020000001301008d4368440401",
        ),
        (
            encoded(&StateChunk {
                bytes: Bytes::from_static(b"ab"),
            }),
            "03000000140100b4344471026162",
        ),
        (
            encoded(&Forward {
                id: 3,
                author: None,
                call: put_frame(1, 3).call,
                context: RequestContext::default(),
            }),
            "19000000160100fc53333c0300d00f000001ac02020101036b6579037676760100000000",
        ),
        (
            encoded(&context_frame()),
            "360000000601001a29b1f81e01190707070707070707070707070707070708080808080808080102010101d00f000001ac02020101036b65790376767601000000",
        ),
        (
            encoded(&ForwardReply {
                id: 3,
                result: refusal.result.clone(),
                applied: LogIndex(9),
            }),
            "0f00000017010039037cb703010201030103683a3100026e6f09",
        ),
    ];
    let found: Vec<String> = golden.iter().map(|(bytes, _)| hex(bytes)).collect();
    let expected: Vec<&str> = golden.iter().map(|(_, text)| *text).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_request_that_says_nothing_of_itself_is_the_same_as_ever() {
    let mut out = BytesMut::new();
    let nothing = RequestContext::default();
    encode_call(&nothing, &put_frame(1, 3), &LIMITS, &mut out).unwrap();
    assert_eq!(out.split().freeze(), encoded(&put_frame(1, 3)));
    let ContextFrame { context, frame } = context_frame();
    encode_call(&context, &frame, &LIMITS, &mut out).unwrap();
    assert_eq!(out.freeze(), encoded(&context_frame()));
}

#[test]
fn what_a_request_says_of_itself_takes_nothing_from_its_own_room() {
    let small = FrameLimits {
        call_bytes_max: encoded(&put_frame(1, 3)).len() - HEADER_BYTES,
        ..LIMITS
    };
    let mut out = BytesMut::new();
    encode(&context_frame(), &small, &mut out).unwrap();
    let mut reader = FrameReader::new(Door::Server, small);
    reader.push(out.freeze());
    let frame = reader.next_frame().unwrap().unwrap();
    assert_eq!(frame.decode::<ContextFrame>(), Ok(context_frame()));
    assert_eq!(RequestContext::of(&frame), context_frame().context);
    assert_eq!(PointRead::of(&frame), None);
    // A read of one key is one, whatever it says of itself.
    let encoded = encoded(&ContextFrame {
        frame: get_frame(),
        ..context_frame()
    });
    let frames = read_all(Door::Server, &encoded, usize::MAX).unwrap();
    let plain = read_all(Door::Server, &self::encoded(&get_frame()), usize::MAX).unwrap();
    let (found, expected) = (
        PointRead::of(&frames[0]).unwrap(),
        PointRead::of(&plain[0]).unwrap(),
    );
    assert_eq!(found.request_id, expected.request_id);
    assert_eq!(found.key(&frames[0]), expected.key(&plain[0]));
    assert!(read_all(Door::Peer, &encoded, usize::MAX).is_err());
    assert!(read_all(Door::Client, &encoded, usize::MAX).is_err());
}

#[test]
fn frames_come_out_whole_however_they_were_cut() {
    let mut stream = BytesMut::new();
    for id in 0..5 {
        encode(&put_frame(id, 100 * id as usize), &LIMITS, &mut stream).unwrap();
    }
    for chunk_bytes in 1..=stream.len() {
        let frames = read_all(Door::Server, &stream, chunk_bytes).unwrap();
        assert_eq!(frames.len(), 5, "chunks of {chunk_bytes}");
        for (id, frame) in frames.iter().enumerate() {
            assert_eq!(
                frame.decode::<ClientFrame>().unwrap(),
                put_frame(id as u64, 100 * id)
            );
        }
    }
}

#[test]
fn a_frame_that_arrives_in_one_piece_is_not_copied() {
    let chunk = encoded(&put_frame(1, 1000));
    let mut reader = FrameReader::new(Door::Server, LIMITS);
    reader.push(chunk.clone());
    let frame = reader.next_frame().unwrap().unwrap();
    assert_eq!(frame.body.as_ptr(), chunk[HEADER_BYTES..].as_ptr());
    assert_eq!(reader.buffered_bytes(), 0);
}

#[test]
fn a_small_frame_that_arrived_in_two_pieces_holds_no_more_than_itself() {
    let bytes = encoded(&put_frame(1, 10));
    let mut reader = FrameReader::new(Door::Server, LIMITS);
    let frame = [bytes.slice(..20), bytes.slice(20..)].map(|piece| {
        reader.push(piece);
        reader.next_frame().unwrap()
    });
    let [None, Some(frame)] = frame else {
        panic!("the second piece ends the frame");
    };
    let held = frame.body.try_into_mut().unwrap();
    assert!(held.capacity() <= 2 * bytes.len(), "{}", held.capacity());
    assert_eq!(reader.buffered_bytes(), 0);
}

#[test]
fn a_chunk_pushed_too_early_is_not_lost() {
    let stream = [encoded(&get_frame()), encoded(&put_frame(2, 9))].concat();
    let mut reader = FrameReader::new(Door::Server, LIMITS);
    reader.push(Bytes::copy_from_slice(&stream[..20]));
    reader.push(Bytes::copy_from_slice(&stream[20..]));
    assert!(reader.next_frame().unwrap().is_some());
    assert!(reader.next_frame().unwrap().is_some());
    assert_eq!(reader.next_frame(), Ok(None));
}

#[test]
fn a_length_is_judged_before_anything_is_kept_for_it() {
    // Five bytes are enough to know that this is too much.
    let claimed = u32::try_from(LIMITS.call_bytes_max).unwrap() + 1;
    let mut reader = FrameReader::new(Door::Server, LIMITS);
    let mut start = claimed.to_le_bytes().to_vec();
    start.push(Kind::Call as u8);
    reader.push(start.into());
    assert_eq!(
        reader.next_frame(),
        Err(WireError::TooLong {
            kind: Kind::Call,
            bytes: LIMITS.call_bytes_max + 1,
            bytes_max: LIMITS.call_bytes_max,
        })
    );
    assert_eq!(reader.buffered_bytes(), 0);
    // Nothing behind a bad frame is read any more.
    reader.push(encoded(&get_frame()));
    assert!(reader.next_frame().is_err());
    assert!(reader.finish().is_err());
}

#[test]
fn the_longest_frame_passes_and_one_byte_more_does_not() {
    let small = FrameLimits {
        call_bytes_max: encoded(&put_frame(1, 500)).len() - HEADER_BYTES,
        ..LIMITS
    };
    let mut out = BytesMut::new();
    encode(&put_frame(1, 500), &small, &mut out).unwrap();
    let kept = out.clone();
    let error = encode(&put_frame(1, 501), &small, &mut out).unwrap_err();
    assert!(matches!(
        error,
        WireError::TooLong {
            kind: Kind::Call,
            ..
        }
    ));
    assert_eq!(out, kept, "a frame that is refused leaves nothing behind");
    let mut reader = FrameReader::new(Door::Server, small);
    reader.push(kept.freeze());
    assert!(reader.next_frame().unwrap().is_some());
    reader.push(encoded(&put_frame(1, 501)));
    assert!(matches!(
        reader.next_frame(),
        Err(WireError::TooLong { .. })
    ));
}

#[test]
fn a_length_that_is_only_claimed_costs_no_memory() {
    let mut reader = FrameReader::new(Door::Server, LIMITS);
    let mut start = (1_u32 << 20).to_le_bytes().to_vec();
    start.extend_from_slice(&[Kind::Call as u8, 1, 0, 0, 0, 0, 0]);
    reader.push(start.into());
    assert_eq!(reader.next_frame(), Ok(None));
    assert!(reader.buffered_bytes() <= 8 << 10);
    for _ in 0..100 {
        reader.push(Bytes::from_static(&[0; 1000]));
        assert_eq!(reader.next_frame(), Ok(None));
    }
    assert!(
        reader.buffered_bytes() <= 4 * 100_000,
        "{} bytes held for 100,000 received",
        reader.buffered_bytes()
    );
}

#[test]
fn every_flipped_bit_is_noticed() {
    let good = encoded(&put_frame(1, 20));
    for bit in 0..good.len() * 8 {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        // A longer length waits for bytes that never come, which is noticed at the end.
        let result = read_all(Door::Server, &bad, usize::MAX);
        assert!(result.is_err(), "bit {bit} was flipped and nothing said so");
    }
}

#[test]
fn kinds_and_versions_that_do_not_belong_here_are_refused() {
    let reply = encoded(&reply_frame());
    assert_eq!(
        read_all(Door::Server, &reply, 64),
        Err(WireError::UnexpectedKind(Kind::Reply))
    );
    let raft = encoded(&Raft::default());
    assert_eq!(
        read_all(Door::Server, &raft, 64),
        Err(WireError::UnexpectedKind(Kind::Raft))
    );
    assert_eq!(read_all(Door::Peer, &raft, 64).unwrap().len(), 1);
    let call = encoded(&get_frame());
    assert_eq!(
        read_all(Door::Peer, &call, 64),
        Err(WireError::UnexpectedKind(Kind::Call))
    );
    assert_eq!(
        read_all(Door::Client, &call, 64),
        Err(WireError::UnexpectedKind(Kind::Call))
    );
    let mut unknown = call.to_vec();
    unknown[4] = 99;
    assert_eq!(
        read_all(Door::Server, &unknown, 64),
        Err(WireError::UnknownKind(99))
    );
    let mut future = call.to_vec();
    future[5] = 0xff;
    assert_eq!(
        read_all(Door::Server, &future, 64),
        Err(WireError::Version(0xff))
    );
}

#[test]
fn trailing_bytes_and_a_cut_stream_are_errors() {
    let frame = Frame {
        kind: Kind::Call,
        version: 1,
        body: [&encoded(&get_frame())[HEADER_BYTES..], b"x"]
            .concat()
            .into(),
    };
    assert_eq!(
        frame.decode::<ClientFrame>(),
        Err(WireError::Trailing {
            kind: Kind::Call,
            bytes: 1
        })
    );
    assert_eq!(
        frame.decode::<ServerFrame>(),
        Err(WireError::UnexpectedKind(Kind::Call))
    );
    let whole = encoded(&get_frame());
    for end in 1..whole.len() {
        assert_eq!(
            read_all(Door::Server, &whole[..end], 8),
            Err(WireError::Cut)
        );
    }
}

#[test]
fn versions_meet_at_the_newest_that_both_speak() {
    let range = |oldest, newest| VersionRange { oldest, newest };
    assert_eq!(range(1, 3).common(range(2, 9)), Some(3));
    assert_eq!(range(2, 9).common(range(1, 3)), Some(3));
    assert_eq!(range(1, 1).common(range(2, 3)), None);
    assert_eq!(range(4, 5).common(range(2, 3)), None);
    assert!(PROTOCOL_VERSIONS.contains(1));
}

fn envelope(message: Message) -> Envelope {
    Envelope {
        from: NodeId(1),
        to: NodeId(2),
        term: Term(3),
        message,
    }
}

fn append(count: usize, payload: impl Fn() -> Payload) -> Message {
    let entries = (1..=count as u64).map(|index| Entry {
        id: LogId::new(LogIndex(index), Term(1)),
        payload: payload(),
    });
    Message::Append(Append {
        heartbeat: Heartbeat {
            round: RoundId(1),
            promise: Duration::from_millis(500),
            commit: LogIndex(0),
            fresh: None,
        },
        base: LogId::default(),
        base_checksum: None,
        entries: entries.collect(),
    })
}

fn configuration(voters: u64) -> Payload {
    Payload::Configuration(Box::new(Configuration {
        voters: (1..=voters).map(NodeId).collect(),
        ..Configuration::default()
    }))
}

/// What is short on the wire and long in memory is bounded by count, at n and n + 1.
#[test]
fn what_a_peer_may_ask_of_our_memory_is_bounded() {
    let reads = |envelopes: Vec<Envelope>| {
        let bytes = encoded(&Raft { envelopes });
        let frames = read_all(Door::Peer, &bytes, usize::MAX).unwrap();
        frames[0].decode::<Raft>().is_ok()
    };
    let releases = |count| vec![envelope(Message::Release); count];
    assert!(reads(releases(FRAME_WEIGHT_MAX)));
    assert!(!reads(releases(FRAME_WEIGHT_MAX + 1)));

    let noops = |count| envelope(append(count, || Payload::Noop));
    assert!(reads(vec![noops(APPEND_WEIGHT_MAX)]));
    assert!(!reads(vec![noops(APPEND_WEIGHT_MAX + 1)]));
    assert!(reads(vec![noops(APPEND_WEIGHT_MAX / 2); 2]));
    assert!(!reads(vec![noops(APPEND_WEIGHT_MAX / 2); 3]));

    let of_members = |members| reads(vec![envelope(append(1, || configuration(members)))]);
    assert!(of_members(MEMBERS_MAX as u64));
    assert!(!of_members(MEMBERS_MAX as u64 + 1));
    let large = |count| reads(vec![envelope(append(count, || configuration(40)))]);
    assert!(large(APPEND_WEIGHT_MAX / 11));
    assert!(!large(APPEND_WEIGHT_MAX / 11 + 1));
}

#[test]
fn the_largest_request_that_is_allowed_fits_its_frames() {
    let limits = Limits::DEFAULT;
    let mut frame = put_frame(u64::MAX, limits.value_bytes_max);
    if let Request::Put(put) = &mut frame.call.request {
        put.key = Bytes::from(vec![b'k'; limits.key_bytes_max]);
    }
    let mut out = BytesMut::new();
    assert!(encode(&frame, &FrameLimits::of(&limits), &mut out).is_ok());
    let raised = Limits {
        request_bytes_max: 8 << 20,
        ..limits
    };
    let frames = FrameLimits::of(&raised);
    assert!(frames.raft_bytes_max > frames.call_bytes_max);
    // A chunk of a snapshot fits, whatever requests may cost.
    let lowered = Limits {
        reply_bytes_max: 4 << 10,
        ..limits
    };
    assert!(FrameLimits::of(&lowered).reply_bytes_max > CHUNK_BYTES_MAX);
}

#[test]
fn limits_that_are_lifted_altogether_hold_any_frame() {
    let most = usize::MAX;
    let lifted = FrameLimits::of(&Limits {
        key_bytes_max: most,
        value_bytes_max: most,
        txn_ops_max: most,
        request_bytes_max: most,
        reply_bytes_max: most,
    });
    for kind in (0..=u8::MAX).filter_map(Kind::from_byte) {
        assert!(kind.body_bytes_max(&lifted) > 0, "{kind:?}");
    }
    for kind in [
        Kind::Call,
        Kind::ContextCall,
        Kind::Reply,
        Kind::Watch,
        Kind::Raft,
    ] {
        assert_eq!(kind.body_bytes_max(&lifted), most, "{kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 1_usize..64) {
        for door in [Door::Server, Door::Client, Door::Peer] {
            let _ = read_all(door, &bytes, cut);
        }
    }

    #[test]
    fn random_bodies_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        // Bodies past a correct checksum: what a hostile but authenticated sender can produce.
        let body = Bytes::from(bytes);
        let frame = |kind| Frame { kind, version: 1, body: body.clone() };
        let _ = frame(Kind::Call).decode::<ClientFrame>();
        let _ = frame(Kind::ContextCall).decode::<ContextFrame>();
        let _ = frame(Kind::Reply).decode::<ServerFrame>();
        let _ = frame(Kind::Watch).decode::<WatchMessage>();
        let _ = frame(Kind::ClientHello).decode::<ClientHello>();
        let _ = frame(Kind::ServerHello).decode::<ServerHello>();
        let _ = frame(Kind::PeerHello).decode::<PeerHello>();
        let _ = frame(Kind::Raft).decode::<Raft>();
        let _ = frame(Kind::PeerClock).decode::<PeerClock>();
        let _ = frame(Kind::Transfer).decode::<Transfer>();
        let _ = frame(Kind::StateChunk).decode::<StateChunk>();
        let _ = frame(Kind::Standing).decode::<MemberStanding>();
        let _ = frame(Kind::Forward).decode::<Forward>();
        let _ = frame(Kind::ForwardReply).decode::<ForwardReply>();
    }

    #[test]
    fn damaged_bodies_never_panic(at in 0_usize..200, to in any::<u8>(), end in 0_usize..200) {
        let wholes = [
            encoded(&put_frame(1, 30)),
            encoded(&reply_frame()),
            encoded(&context_frame()),
            encoded(&peer_hello()),
        ];
        for whole in wholes {
            let kind = match whole[4] {
                3 => Kind::Call,
                4 => Kind::Reply,
                6 => Kind::ContextCall,
                _ => Kind::PeerHello,
            };
            let mut body = whole[HEADER_BYTES..].to_vec();
            let at = at % body.len();
            body[at] = to;
            body.truncate(end.max(1));
            let frame = Frame { kind, version: 1, body: body.into() };
            let _ = frame.decode::<ClientFrame>();
            let _ = frame.decode::<ServerFrame>();
            let _ = frame.decode::<ContextFrame>();
            let _ = frame.decode::<PeerHello>();
        }
    }
}
