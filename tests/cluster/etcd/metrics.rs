//! What the page of metrics says by the names that etcd gives.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::EtcdCluster;
use super::grpc::{Channel, Stream, framed};
use super::kv::{RangeRequest, RangeResponse};
use super::messages::{
    LockRequest, LockResponse, SnapshotRequest, SnapshotResponse, WatchCreateRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use super::watches::{put, started};
use crate::harness::PATIENCE;

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";

/// The value of a series; none if it is not there.
fn value(page: &str, series: &str) -> Option<f64> {
    let mut lines = page.lines().filter_map(|line| line.strip_prefix(series));
    let value = lines.find_map(|rest| rest.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

fn page(cluster: &EtcdCluster) -> String {
    tokio::task::block_in_place(|| cluster.page(0, "/metrics").1)
}

fn begun(page: &str, method: &str, kind: &str) -> f64 {
    let (service, method) = method.split_once('/').unwrap();
    let series = format!(
        r#"grpc_server_started_total{{grpc_method="{method}",grpc_service="etcdserverpb.{service}",grpc_type="{kind}"}}"#
    );
    value(page, &series).unwrap_or_default()
}

/// Waits until so many calls have ended with this code.
async fn wait_for(cluster: &EtcdCluster, code: &str, method: &str, kind: &str, count: f64) {
    let (service, name) = method.split_once('/').unwrap();
    let series = format!(
        r#"grpc_server_handled_total{{grpc_code="{code}",grpc_method="{name}",grpc_service="etcdserverpb.{service}",grpc_type="{kind}"}}"#
    );
    let began = std::time::Instant::now();
    loop {
        let page = page(cluster);
        let ended = value(&page, &series).unwrap_or_default();
        if ended == count {
            return;
        }
        assert!(
            ended < count && began.elapsed() < PATIENCE,
            "{series}: {page}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// A watch that is asked for.
async fn asked_to_watch(channel: &Channel, headers: &[(&str, &str)]) -> Stream {
    let create = WatchCreateRequest {
        key: Bytes::from_static(b"a"),
        ..WatchCreateRequest::default()
    };
    let mut stream = channel.begin(WATCH, headers).await;
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::CreateRequest(create)),
    });
    stream
}

/// A watch that has begun.
async fn watch(channel: &Channel) -> Stream {
    let mut stream = asked_to_watch(channel, &[]).await;
    let created: WatchResponse = stream.next().await.unwrap();
    assert!(created.created);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_count_when_they_begin_and_by_their_code_when_they_end() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    put(&channel, "a", "1").await;
    wait_for(&cluster, "OK", "KV/Put", "unary", 1.0).await;
    let open = watch(&channel).await;
    // It may be over before it has begun.
    let mut late = asked_to_watch(&channel, &[("grpc-timeout", "1S")]).await;
    let ended = loop {
        if let Err(ended) = late.next::<WatchResponse>().await {
            break ended;
        }
    };
    assert_eq!(ended.0, 4);
    wait_for(
        &cluster,
        "DeadlineExceeded",
        "Watch/Watch",
        "bidi_stream",
        1.0,
    )
    .await;
    wait_for(&cluster, "OK", "Watch/Watch", "bidi_stream", 0.0).await;
    assert_eq!(begun(&page(&cluster), "Watch/Watch", "bidi_stream"), 2.0);
    drop(open);
    wait_for(&cluster, "Canceled", "Watch/Watch", "bidi_stream", 1.0).await;
    let mut snapshot = channel.stream(SNAPSHOT, &[]).await;
    snapshot.send_last(&SnapshotRequest {});
    while let Ok(SnapshotResponse { .. }) = snapshot.next().await {}
    wait_for(&cluster, "OK", "Maintenance/Snapshot", "server_stream", 1.0).await;
    // One that waits, and is given up.
    let lock = LockRequest {
        name: Bytes::from_static(b"l"),
        lease: 0,
    };
    let path = "/v3lockpb.Lock/Lock";
    let _: LockResponse = channel.ask(path, &lock).await.unwrap();
    let waiting = channel.ask::<LockResponse>(path, &lock);
    let waited = tokio::time::timeout(std::time::Duration::from_millis(300), waiting).await;
    assert!(waited.is_err());
    let ended = r#"grpc_server_handled_total{grpc_code="Canceled",grpc_method="Lock""#;
    let began = std::time::Instant::now();
    while !page(&cluster).contains(ended) {
        assert!(began.elapsed() < PATIENCE, "{}", page(&cluster));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let page = page(&cluster);
    for way in ["sent", "received"] {
        let series = format!("etcd_network_client_grpc_{way}_bytes_total");
        assert!(value(&page, &series).unwrap() > 0.0, "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_that_are_not_there_count_as_one_and_services_not_at_all() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let nothing = || framed(&[]);
    for number in 0..50 {
        for path in [
            format!("/etcdserverpb.KV/Splice{number}"),
            format!("/made.up{number}/Splice"),
        ] {
            // Before anything is looked for it fails for another reason.
            let odd = [("grpc-timeout", "soon")];
            let ended = channel.call(&path, nothing(), &odd).await.unwrap();
            assert_eq!(ended.status().0, 3);
            let ended = channel.call(&path, nothing(), &[]).await.unwrap();
            assert_eq!(ended.status().0, 12);
        }
    }
    wait_for(&cluster, "Unimplemented", "KV/unknown", "unary", 50.0).await;
    wait_for(&cluster, "InvalidArgument", "KV/unknown", "unary", 50.0).await;
    let page = page(&cluster);
    assert_eq!(begun(&page, "KV/unknown", "unary"), 100.0);
    assert!(!page.contains("Splice") && !page.contains("made"), "{page}");
    let read: RangeResponse = channel
        .ask(
            RANGE,
            &RangeRequest {
                key: Bytes::from_static(b"a"),
                ..RangeRequest::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(read.count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_names_that_etcd_gives_are_those_that_the_document_lists() {
    let cluster = started(3).await;
    let channel = Channel::open(cluster.ports[0]).await;
    put(&channel, "a", "1").await;
    let page = page(&cluster);
    let is_theirs = |name: &&str| name.starts_with("etcd_") || name.starts_with("grpc_");
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let named = types.filter_map(|rest| rest.split(' ').next());
    let shown: BTreeSet<&str> = named.filter(is_theirs).collect();
    let document = include_str!("../../../docs/etcd.md");
    let (_, list) = document.split_once("| Metric | What it is here |").unwrap();
    let (list, _) = list.split_once("\n\n").unwrap();
    let quoted = list.split('`').skip(1).step_by(2);
    let listed: BTreeSet<&str> = quoted.filter(is_theirs).collect();
    assert_eq!(shown, listed);
    // Of three nodes that have written.
    for series in [
        "etcd_disk_wal_fsync_duration_seconds_count",
        "etcd_disk_wal_fsync_duration_seconds_sum",
        r#"etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"}"#,
        "etcd_network_peer_sent_bytes_total",
        "etcd_network_peer_received_bytes_total",
    ] {
        assert!(value(&page, series).unwrap() > 0.0, "{series}: {page}");
    }
}
