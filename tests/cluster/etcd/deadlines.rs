//! Streams that a client gives a deadline: each ends when that has passed, whatever it waits for then.

use bytes::Bytes;

use super::EtcdCluster;
use super::grpc::{Channel, Stream};
use super::http::Connection;
use super::kv::RangeStreamResponse;
use super::messages::{
    HealthCheckRequest, HealthCheckResponse, LeaderRequest, LeaderResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, WatchCreateRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};
use super::watches::started;
use crate::harness::eventually;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const HEALTH: &str = "/grpc.health.v1.Health/Watch";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";
const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
/// Long enough that what is asked at once is answered before, on a machine that is not at a standstill.
const SOON: [(&str, &str); 1] = [("grpc-timeout", "1S")];

fn watch() -> WatchRequest {
    let create = WatchCreateRequest {
        key: Bytes::from_static(b"a"),
        ..WatchCreateRequest::default()
    };
    WatchRequest {
        request: Some(WatchRequestUnion::CreateRequest(create)),
    }
}

fn late() -> (i32, String) {
    (4, "context deadline exceeded".to_owned())
}

/// How a stream ends: of its messages, which it has while the deadline is ahead, nothing is asked.
async fn end<A: prost::Message + Default>(stream: &mut Stream) -> (i32, String) {
    loop {
        if let Err(ended) = stream.next::<A>().await {
            return ended;
        }
    }
}

/// The ends of streams, each open and in use, or before its first request.
async fn ends(channel: &Channel) -> Vec<(i32, String)> {
    let mut watched = channel.begin(WATCH, &SOON).await;
    watched.send(&watch());
    let mut kept = channel.begin(KEEP_ALIVE, &SOON).await;
    kept.send(&LeaseKeepAliveRequest { id: 5 });
    let mut observed = channel.begin(OBSERVE, &SOON).await;
    observed.send_last(&LeaderRequest {
        name: Bytes::from_static(b"nobody"),
    });
    let mut healthy = channel.begin(HEALTH, &SOON).await;
    healthy.send_last(&HealthCheckRequest::default());
    let mut ends = vec![
        end::<WatchResponse>(&mut watched).await,
        end::<LeaseKeepAliveResponse>(&mut kept).await,
        end::<LeaderResponse>(&mut observed).await,
        end::<HealthCheckResponse>(&mut healthy).await,
    ];
    for path in [WATCH, KEEP_ALIVE, OBSERVE, SNAPSHOT] {
        let mut silent = channel.begin(path, &SOON).await;
        ends.push(end::<WatchResponse>(&mut silent).await);
    }
    ends
}

/// etcd 3.5.1 ends some of them with code 2 and the same text.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_at_the_deadline_of_its_client() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    assert_eq!(ends(&channel).await, vec![late(); 8]);
    let mut silent = channel.begin(RANGE_STREAM, &SOON).await;
    assert_eq!(end::<RangeStreamResponse>(&mut silent).await, late());
}

#[test]
fn a_stream_of_the_gateway_ends_at_the_deadline_of_its_client() {
    let cluster = EtcdCluster::in_the_clear(1);
    let watch = r#"{"create_request":{"key":"YQ=="}}"#;
    let late = r#"{"error":{"grpc_code":4,"code":4,"http_code":504,"http_status":"Gateway Timeout","message":"context deadline exceeded"}}"#;
    eventually("a watch that begins before it is over", || {
        let mut connection = Connection::open(cluster.ports[0]);
        let answer = connection.request("POST", "/v3/watch", "Grpc-Timeout: 1S\r\n", watch);
        let lines: Vec<&str> = answer.body.lines().collect();
        assert_eq!(lines.last(), Some(&late), "{lines:?}");
        let has_begun = answer.status == 200 && lines[0].contains(r#""created":true"#);
        (has_begun && lines.len() == 2).then_some(())
    });
}
