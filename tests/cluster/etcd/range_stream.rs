//! Ranges as streams: their answers together are that of Range, and the last says what holds for all.

use bytes::{Buf, Bytes};
use prost::Message;

use super::grpc::{Channel, framed};
use super::kv::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
};
use super::watches::started;

const STREAM: &str = "/etcdserverpb.KV/RangeStream";
const RANGE: &str = "/etcdserverpb.KV/Range";
const KEYS: usize = 40;
const VALUE_BYTES: usize = 100 << 10;

async fn put(channel: &Channel, key: &str, bytes: usize) -> i64 {
    let put = PutRequest {
        key: key.to_owned().into(),
        value: vec![b'x'; bytes].into(),
        ..PutRequest::default()
    };
    let path = "/etcdserverpb.KV/Put";
    let done: PutResponse = channel.ask(path, &put).await.unwrap();
    done.header.unwrap().revision
}

/// Of all keys that are put here.
fn all() -> RangeRequest {
    RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..RangeRequest::default()
    }
}

/// The answers to a call, which goes well.
async fn streamed(
    channel: &Channel,
    asked: &RangeRequest,
) -> Result<Vec<RangeResponse>, (i32, String)> {
    let body = framed(&asked.encode_to_vec());
    let ended = channel.call(STREAM, body, &[]).await.unwrap();
    let mut rest = ended.body.clone();
    let mut answers = Vec::new();
    while rest.has_remaining() {
        assert_eq!(rest.get_u8(), 0);
        let bytes = rest.get_u32() as usize;
        let answer = RangeStreamResponse::decode(rest.split_to(bytes)).unwrap();
        answers.push(answer.range_response.unwrap());
    }
    match ended.status() {
        (0, _) => Ok(answers),
        status => Err(status),
    }
}

/// Merged as messages of protobuf are: by the concatenation of their bytes.
fn merged(answers: &[RangeResponse]) -> RangeResponse {
    let bytes: Vec<u8> = answers.iter().flat_map(Message::encode_to_vec).collect();
    RangeResponse::decode(Bytes::from(bytes)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_in_parts_what_range_has_in_one() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    for number in 0..KEYS {
        put(&channel, &format!("k{number:02}"), VALUE_BYTES).await;
    }
    let old = put(&channel, "k00", 5).await;
    put(&channel, "k39", 5).await;
    let cases: Vec<(RangeRequest, usize)> = vec![
        (all(), 4),
        (RangeRequest { limit: 30, ..all() }, 3),
        (RangeRequest { limit: 40, ..all() }, 4),
        (RangeRequest { limit: 3, ..all() }, 1),
        (
            RangeRequest {
                revision: old,
                ..all()
            },
            4,
        ),
        (
            RangeRequest {
                keys_only: true,
                ..all()
            },
            1,
        ),
        (
            RangeRequest {
                count_only: true,
                ..all()
            },
            1,
        ),
        (
            RangeRequest {
                count_only: true,
                limit: 2,
                ..all()
            },
            1,
        ),
        (
            RangeRequest {
                serializable: true,
                sort_order: 1,
                ..all()
            },
            4,
        ),
        // One key, none, and a range that has none.
        (
            RangeRequest {
                key: "k07".into(),
                ..RangeRequest::default()
            },
            1,
        ),
        (
            RangeRequest {
                key: "n".into(),
                range_end: "\0".into(),
                ..RangeRequest::default()
            },
            1,
        ),
        (
            RangeRequest {
                key: "l".into(),
                range_end: "k".into(),
                ..RangeRequest::default()
            },
            1,
        ),
    ];
    for (asked, count) in cases {
        let range: RangeResponse = channel.ask(RANGE, &asked).await.unwrap();
        let answers = streamed(&channel, &asked).await.unwrap();
        assert_eq!(merged(&answers), range, "{asked:?}");
        assert_eq!(answers.len(), count, "{asked:?}");
        let (last, others) = answers.split_last().unwrap();
        assert!(last.header.is_some());
        for answer in others {
            assert_eq!((answer.header, answer.more, answer.count), (None, false, 0));
            let bytes: usize = answer.kvs.iter().map(|kv| kv.value.len()).sum();
            assert!((1_000_000..1_200_000).contains(&bytes), "{bytes}");
        }
    }
    // Refused as Range is, and for what it does not do as in etcd.
    let current = old + 1;
    let refusals = [
        (
            RangeRequest::default(),
            3,
            "etcdserver: key is not provided",
        ),
        (
            RangeRequest {
                sort_order: 5,
                ..all()
            },
            3,
            "etcdserver: invalid sort option",
        ),
        (
            RangeRequest {
                revision: current + 1,
                ..all()
            },
            11,
            "etcdserver: mvcc: required revision is a future revision",
        ),
        (
            RangeRequest {
                sort_order: 2,
                ..all()
            },
            12,
            "RangeStream does not support custom sort orders",
        ),
        (
            RangeRequest {
                min_mod_revision: 1,
                ..all()
            },
            12,
            "RangeStream does not support revision filters",
        ),
    ];
    for (asked, code, text) in refusals {
        let refused = streamed(&channel, &asked).await.unwrap_err();
        assert_eq!(refused, (code, text.to_owned()), "{asked:?}");
    }
    let metrics = cluster.page(0, "/metrics").1;
    let counted =
        "grpc_method=\"RangeStream\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"server_stream\"}";
    assert!(metrics.contains(counted), "{metrics}");
}

/// The client takes in little, so most is read after it has begun.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_of_one_revision_and_ends_when_that_is_compacted() {
    let cluster = started(1).await;
    let channel = Channel::with_window(cluster.ports[0], 64 << 10).await;
    let writer = Channel::open(cluster.ports[0]).await;
    for number in 0..2 * KEYS {
        put(&writer, &format!("k{number:02}"), VALUE_BYTES).await;
    }
    let begin = async || {
        let mut stream = channel.stream(STREAM, &[]).await;
        stream.send(&all());
        let first: RangeStreamResponse = stream.next().await.unwrap();
        (stream, first.range_response.unwrap().kvs.len())
    };
    let (mut stream, mut found) = begin().await;
    let deleted = DeleteRangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..DeleteRangeRequest::default()
    };
    let path = "/etcdserverpb.KV/DeleteRange";
    let deleted: DeleteRangeResponse = writer.ask(path, &deleted).await.unwrap();
    assert_eq!(deleted.deleted, 2 * KEYS as i64);
    loop {
        let answer: RangeStreamResponse = stream.next().await.unwrap();
        let answer = answer.range_response.unwrap();
        found += answer.kvs.len();
        if let Some(header) = answer.header {
            assert_eq!(header.revision, deleted.header.unwrap().revision - 1);
            assert_eq!((answer.count, answer.more), (2 * KEYS as i64, false));
            break;
        }
    }
    assert_eq!(found, 2 * KEYS);
    assert_eq!(
        stream.next::<RangeStreamResponse>().await,
        Err((0, String::new()))
    );

    let mut last = 0;
    for number in 0..2 * KEYS {
        last = put(&writer, &format!("k{number:02}"), VALUE_BYTES).await;
    }
    let (mut stream, _) = begin().await;
    put(&writer, "other", 1).await;
    let compaction = CompactionRequest {
        revision: last + 1,
        physical: false,
    };
    let path = "/etcdserverpb.KV/Compact";
    let _: CompactionResponse = writer.ask(path, &compaction).await.unwrap();
    let ended = loop {
        match stream.next::<RangeStreamResponse>().await {
            Ok(answer) => assert!(answer.range_response.unwrap().header.is_none()),
            Err(ended) => break ended,
        }
    };
    let text = "etcdserver: mvcc: required revision has been compacted".to_owned();
    assert_eq!(ended, (11, text));
}
