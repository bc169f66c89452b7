//! Clients that ask for much and read nothing: what waits for them is bounded, is given up, and costs others
//! nothing.

use std::net::SocketAddr;
use std::time::Duration;

use prost::Message;

use super::grpc::{Channel, Stream};
use super::kv::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use super::messages::SnapshotRequest;
use super::watches::started;
use crate::harness::PATIENCE;

const RANGE: &str = "/etcdserverpb.KV/Range";
const STREAM: &str = "/etcdserverpb.KV/RangeStream";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
const VALUE_BYTES: usize = 1 << 20;
const KEYS: usize = 6;
/// What a connection may hold by default (`limits.connection_memory_budget`).
const BUDGET_BYTES: usize = 64 << 20;
/// So many calls at once that their answers do not fit.
const CALLS: usize = 80;

async fn begin(channel: &Channel, path: &str, question: &impl Message) -> Stream {
    let mut stream = channel.begin(path, &[]).await;
    stream.send_last(question);
    stream
}

/// The calls whose answers have begun, and how the others ended.
async fn leave_unread(
    channel: &Channel,
    path: &str,
    question: &impl Message,
) -> (Vec<Stream>, Vec<(i32, String)>) {
    let (mut begun, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..CALLS {
        let mut stream = begin(channel, path, question).await;
        match stream.leave_unread().await {
            Ok(()) => begun.push(stream),
            Err(ended) => refused.push(ended),
        }
    }
    (begun, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_not_read_are_bounded_given_up_and_cost_others_nothing() {
    let cluster = started(1).await;
    let honest = Channel::open(cluster.ports[0]).await;
    for number in 0..KEYS {
        let put = PutRequest {
            key: format!("k{number}").into(),
            value: vec![b'x'; VALUE_BYTES].into(),
            ..PutRequest::default()
        };
        let _: PutResponse = honest.ask("/etcdserverpb.KV/Put", &put).await.unwrap();
    }
    let one = RangeRequest {
        key: "k0".into(),
        ..RangeRequest::default()
    };
    let all = RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..RangeRequest::default()
    };
    let no_memory = "etcdserver: no memory is left for the answer until the client reads it; the request may have \
                     been carried out";
    let too_many = "etcdserver: too many requests";
    let port = cluster.ports[0];
    is_bounded(port, RANGE, &one, (14, no_memory)).await;
    is_bounded(port, STREAM, &all, (8, too_many)).await;
    is_bounded(port, SNAPSHOT, &SnapshotRequest {}, (8, too_many)).await;
}

/// Of calls whose answers are not read, some are refused; another client is served meanwhile; and those that
/// are not read are given up, so that there is memory for this client again.
async fn is_bounded(port: SocketAddr, path: &str, question: &impl Message, refusal: (i32, &str)) {
    let refusal = (refusal.0, refusal.1.to_owned());
    let hostile = Channel::with_window(port, 16).await;
    let (begun, refused) = leave_unread(&hostile, path, question).await;
    assert!(!begun.is_empty(), "{path}");
    let bytes = begun.len() * VALUE_BYTES;
    assert!(bytes <= BUDGET_BYTES, "{path}: {bytes}");
    for ended in refused {
        assert_eq!(ended, refusal, "{path}");
    }
    let honest = Channel::open(port).await;
    let all = RangeRequest {
        key: "k".into(),
        range_end: "l".into(),
        ..RangeRequest::default()
    };
    let range: RangeResponse = honest.ask(RANGE, &all).await.unwrap();
    assert_eq!(range.kvs.len(), KEYS, "{path}");
    let again = async {
        let mut stream = begin(&hostile, path, question).await;
        while let Err(ended) = stream.leave_unread().await {
            assert_eq!(ended, refusal, "{path}");
            tokio::time::sleep(Duration::from_millis(200)).await;
            stream = begin(&hostile, path, question).await;
        }
    };
    let again = tokio::time::timeout(PATIENCE, again).await;
    again.unwrap_or_else(|_| panic!("{path}: the memory comes back"));
    drop(begun);
}
