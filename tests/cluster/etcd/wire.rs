//! What clients of etcd see on the wire, where libraries rely on more than the messages.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::grpc::{Channel, framed};
use super::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::PATIENCE;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

/// A read, a put, or the header of an answer, as far as these tests need them.
#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(int32, tag = "5")]
    sort_order: i32,
    #[prost(int32, tag = "6")]
    sort_target: i32,
    #[prost(bool, tag = "8")]
    keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Found {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    kvs: Vec<Record>,
    #[prost(bool, tag = "3")]
    more: bool,
    #[prost(int64, tag = "4")]
    count: i64,
}

fn put(key: &str, value: Vec<u8>) -> Put {
    Put {
        key: key.as_bytes().to_vec(),
        value,
    }
}

fn range(key: &str, range_end: &str) -> Range {
    Range {
        key: key.as_bytes().to_vec(),
        range_end: range_end.as_bytes().to_vec(),
        ..Range::default()
    }
}

/// A path, a body and headers, and the code and the text that they get.
type Failing<'a> = (&'a str, Bytes, &'a [(&'a str, &'a str)], i32, &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_fail_end_in_headers_with_a_content_type_and_etcd_s_words() {
    let cluster = tokio::task::spawn_blocking(|| EtcdCluster::in_the_clear(1));
    let cluster = cluster.await.unwrap();
    let channel = Channel::open(cluster.ports[0]).await;
    let good = framed(&range("a", "").encode_to_vec());
    let long = framed(&put("a", vec![b'x'; (2 << 20) + 1]).encode_to_vec());
    let long_bytes = long.len() - 5;
    let two = Bytes::from([good.clone(), good.clone()].concat());
    let packed = Bytes::from_static(&[1, 0, 0, 0, 1, 0]);
    let garbage = framed(&[0xff; 9]);
    // An operation without a body each.
    let parts = framed(&[0x12, 0].repeat(100_000));
    let too_long = format!("grpc: received message larger than max ({long_bytes} vs. 2097152)");
    let table: &[Failing<'_>] = &[
        (
            RANGE,
            framed(&[]),
            &[],
            3,
            "etcdserver: key is not provided",
        ),
        (PUT, framed(&[]), &[], 3, "etcdserver: key is not provided"),
        (PUT, long, &[], 8, &too_long),
        (
            TXN,
            parts,
            &[],
            3,
            "etcdserver: too many operations in txn request",
        ),
        (
            "/etcdserverpb.KV/Splice",
            good.clone(),
            &[],
            12,
            "unknown method Splice for service etcdserverpb.KV",
        ),
        (
            RANGE,
            good.clone(),
            &[("grpc-encoding", "gzip")],
            12,
            "grpc: compression is not supported",
        ),
        (RANGE, packed, &[], 12, "grpc: compression is not supported"),
        (
            RANGE,
            two,
            &[],
            12,
            "grpc: more than one message in a unary call",
        ),
        (RANGE, good.slice(..4), &[], 2, "unexpected EOF"),
        (RANGE, Bytes::new(), &[], 2, "EOF"),
        (
            RANGE,
            good.clone(),
            &[("grpc-timeout", "soon")],
            3,
            "malformed grpc-timeout",
        ),
        (
            RANGE,
            good.clone(),
            &[("grpc-timeout", "0n")],
            4,
            "context deadline exceeded",
        ),
    ];
    for (path, body, headers, code, text) in table {
        let ended = channel.call(path, body.clone(), headers).await.unwrap();
        assert_eq!(ended.status(), (*code, (*text).to_owned()), "{path}");
        assert_eq!(ended.headers["content-type"], "application/grpc");
        assert!(ended.trailers.is_empty(), "{ended:?}");
        assert!(ended.body.is_empty());
    }
    let ended = channel.call(RANGE, garbage, &[]).await.unwrap();
    assert_eq!(ended.status().0, 13);
    // The connection has served all that, and serves on.
    let ended = channel.call(RANGE, good, &[]).await.unwrap();
    assert_eq!(ended.headers["content-type"], "application/grpc");
    assert_eq!(ended.trailers["grpc-status"], "0");
    let found: Found = ended.message();
    assert_eq!((found.count, found.kvs.len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_larger_than_a_reply_of_ours_are_whole_and_of_one_revision() {
    const KEYS: usize = 40;
    let cluster = tokio::task::spawn_blocking(|| EtcdCluster::in_the_clear(1));
    let cluster = cluster.await.unwrap();
    let channel = Channel::open(cluster.ports[0]).await;
    let mut revision = 0;
    for number in 0..KEYS {
        // The values fall as the keys rise.
        let first = u8::try_from(KEYS - number).unwrap();
        let mut value = vec![b'x'; 100 << 10];
        value[0] = first;
        let written: Found = channel
            .ask(PUT, &put(&format!("k{number:02}"), value))
            .await
            .unwrap();
        revision = written.header.unwrap().revision;
    }
    let read = async |range: &Range| -> Found { channel.ask(RANGE, range).await.unwrap() };
    let all = range("k", "l");
    let found = read(&all).await;
    assert_eq!(found.header.as_ref().unwrap().revision, revision);
    assert_eq!(
        (found.kvs.len(), found.count, found.more),
        (KEYS, 40, false)
    );
    assert!(found.kvs.iter().all(|kv| kv.value.len() == 100 << 10));
    assert!(found.kvs.is_sorted_by(|a, b| a.key < b.key));
    let found = read(&Range {
        limit: 35,
        ..all.clone()
    })
    .await;
    assert_eq!((found.kvs.len(), found.count, found.more), (35, 40, true));
    let found = read(&Range {
        limit: 40,
        ..all.clone()
    })
    .await;
    assert_eq!((found.kvs.len(), found.more), (40, false));
    // By value, upwards.
    let found = read(&Range {
        limit: 30,
        sort_order: 1,
        sort_target: 4,
        keys_only: true,
        ..all.clone()
    })
    .await;
    let keys: Vec<_> = found.kvs.iter().map(|kv| kv.key.clone()).collect();
    assert_eq!(keys.len(), 30);
    assert_eq!(keys[0], b"k39");
    assert!(keys.is_sorted_by(|a, b| a > b));
    assert!(found.more);
    assert!(found.kvs.iter().all(|kv| kv.value.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_renewals_is_answered_in_order_and_outlives_leases_that_are_not_there() {
    const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    let cluster = tokio::task::spawn_blocking(|| EtcdCluster::in_the_clear(1));
    let cluster = cluster.await.unwrap();
    let channel = Channel::open(cluster.ports[0]).await;
    // Field 1 is the id.
    let renewals = [framed(&[0x08, 7]), framed(&[]), framed(&[0x08, 9])].concat();
    let ended = channel
        .call(KEEP_ALIVE, renewals.into(), &[])
        .await
        .unwrap();
    assert_eq!(ended.headers["content-type"], "application/grpc");
    assert_eq!(ended.trailers["grpc-status"], "0");
    let mut ids = Vec::new();
    let mut rest = &ended.body[..];
    while let Some((prefix, message)) = rest.split_at_checked(5) {
        let (message, more) = message.split_at(usize::from(prefix[4]));
        // The id, if it is not zero, is the second field and the last: the time to live is zero.
        let has_id = message.len() > 1 && message[message.len() - 2] == 0x10;
        ids.push(if has_id {
            message[message.len() - 1]
        } else {
            0
        });
        rest = more;
    }
    assert_eq!(ids, [7, 0, 9]);
    let long = framed(&[0; (2 << 20) + 1]);
    let ended = channel.call(KEEP_ALIVE, long, &[]).await;
    // It ends before everything was sent, which a client may see as a reset.
    if let Ok(ended) = ended {
        assert_eq!(ended.trailers["grpc-status"], "8");
    }
    let cut = channel
        .call(KEEP_ALIVE, Bytes::from_static(&[0, 0, 0]), &[])
        .await;
    assert_eq!(cut.unwrap().trailers["grpc-status"], "13");
}

/// Clients keep to it by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_as_many_calls_beside_each_other_as_the_settings_say() {
    let streams = ("LEASEHOLD_ETCD_COMPAT_MAX_CONCURRENT_STREAMS", "2");
    let started =
        tokio::task::spawn_blocking(move || EtcdCluster::start(1, &[IN_THE_CLEAR, streams]));
    let cluster = started.await.unwrap();
    let channel = Channel::open(cluster.ports[0]).await;
    let mut first = channel.stream(WATCH, &[]).await;
    let _second = channel.stream(WATCH, &[]).await;
    assert_eq!(channel.streams_max(), 2);
    let question = framed(&range("k", "").encode_to_vec());
    let mut third = std::pin::pin!(channel.call(RANGE, question, &[]));
    let early = tokio::time::timeout(Duration::from_millis(200), &mut third).await;
    assert!(early.is_err(), "{early:?}");
    first.finish();
    drop(first);
    let ended = tokio::time::timeout(PATIENCE, third).await;
    assert_eq!(ended.expect("its turn comes").unwrap().status().0, 0);
}

#[test]
fn programs_without_grpc_get_pages_and_nonsense_gets_an_end() {
    let cluster = EtcdCluster::in_the_clear(1);
    let talk = |words: &[u8]| {
        let mut stream = TcpStream::connect(cluster.ports[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be closed before everything is said.
        let _ = stream.write_all(words);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let page = |path: &str| cluster.page(0, path);
    assert_eq!(
        page("/version"),
        (
            "200".to_owned(),
            r#"{"etcdserver":"3.6.14","etcdcluster":"3.6.0","storage":"3.6.0"}"#.to_owned()
        )
    );
    for path in ["/health", "/health?serializable=true"] {
        let healthy = (
            "200".to_owned(),
            r#"{"health":"true","reason":""}"#.to_owned(),
        );
        assert_eq!(page(path), healthy, "{path}");
    }
    let read = "[+]serializable_read ok\n";
    let live = format!("{read}ok\n");
    let but_one = format!("[+]data_corruption ok\n{read}[+]non_learner ok\nok\n");
    let ready = but_one.replace(read, &format!("{read}[+]linearizable_read ok\n"));
    for (path, text) in [
        ("/livez", "ok\n"),
        ("/livez?verbose", &live),
        ("/livez/serializable_read", "ok\n"),
        ("/readyz", "ok\n"),
        ("/readyz?verbose", &ready),
        ("/readyz?verbose&exclude=linearizable_read", &but_one),
        ("/readyz?verbose=true&exclude=nothing", &ready),
        ("/readyz/data_corruption", "ok\n"),
        ("/readyz/serializable_read?verbose", &live),
    ] {
        assert_eq!(page(path), ("200".to_owned(), text.to_owned()), "{path}");
    }
    for path in ["/nothing", "/livez/data_corruption", "/readyz/nothing"] {
        assert_eq!(page(path).0, "404", "{path}");
    }
    // What dashboards of etcd read, and our own.
    let metrics = page("/metrics").1;
    for series in [
        "etcd_server_has_leader 1",
        "etcd_server_quota_backend_bytes ",
        "etcd_mvcc_db_total_size_in_bytes ",
        "etcd_server_leader_changes_seen_total ",
        "etcd_server_proposals_committed_total ",
        "etcd_server_proposals_applied_total ",
        "etcd_server_proposals_pending ",
        "etcd_server_proposals_failed_total ",
        "# TYPE grpc_server_handled_total counter",
        "leasehold_raft_has_leader 1",
    ] {
        let there = metrics.lines().any(|line| line.starts_with(series));
        assert!(there, "no {series} in {metrics}");
    }
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let endless = [&preface[..], &[0xff; 4096]].concat();
    for words in [&b"nonsense\r\n\r\n"[..], &[0; 64], &endless] {
        // It ends; how, is HTTP's business.
        talk(words);
    }
    assert_eq!(page("/livez").0, "200");
}
