//! What Kubernetes asks of an etcd, in its shapes: objects that are created and updated by comparing revisions,
//! lists in pages at one revision, watches that go on where a list ended and ask how far they are, and its
//! compactor. `KUBERNETES_OBJECTS` is how many objects there are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::EtcdCluster;
use super::grpc::{Channel, Stream};
use super::kv::{
    CompactionRequest, CompactionResponse, Compare, CompareUnion, KeyValue, PutRequest,
    RangeRequest, RangeResponse, RequestOp, RequestUnion, ResponseUnion, TxnRequest, TxnResponse,
};
use super::messages::{
    Event, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchRequestUnion, WatchResponse,
};
use super::watches::started;
use crate::harness::setting;

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";
const WATCH: &str = "/etcdserverpb.Watch/Watch";

const PODS: &[u8] = b"/registry/pods/";
const AFTER_PODS: &[u8] = b"/registry/pods0";
const PAGE: i64 = 500;
/// As many as an API server has under way.
const WRITERS: u64 = 16;

fn pod(number: u64) -> Bytes {
    Bytes::from(format!("/registry/pods/default/pod-{number:07}"))
}

fn equal(key: &Bytes, target: i32, given: CompareUnion) -> Compare {
    Compare {
        result: 0,
        target,
        key: key.clone(),
        target_union: Some(given),
        range_end: Bytes::new(),
    }
}

fn op(request: RequestUnion) -> RequestOp {
    RequestOp {
        request: Some(request),
    }
}

/// Puts `value` if the key is still of `mod_revision`; says what is there otherwise.
fn guaranteed_update(key: &Bytes, mod_revision: i64, value: &str) -> TxnRequest {
    TxnRequest {
        compare: vec![equal(key, 2, CompareUnion::ModRevision(mod_revision))],
        success: vec![op(RequestUnion::RequestPut(PutRequest {
            key: key.clone(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            ..PutRequest::default()
        }))],
        failure: vec![op(RequestUnion::RequestRange(RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        }))],
    }
}

/// The key that a refused update finds instead.
fn found(answer: &TxnResponse) -> KeyValue {
    match answer.responses[0].response.as_ref().unwrap() {
        ResponseUnion::ResponseRange(range) => range.kvs[0].clone(),
        other => panic!("{other:?}"),
    }
}

/// A client at a node.
struct ApiServer {
    channel: Channel,
}

impl ApiServer {
    async fn at(cluster: &EtcdCluster, place: usize) -> Self {
        let channel = Channel::open(cluster.ports[place]).await;
        Self { channel }
    }

    async fn update(&self, key: &Bytes, mod_revision: i64, value: &str) -> TxnResponse {
        let update = guaranteed_update(key, mod_revision, value);
        self.channel.ask(TXN, &update).await.unwrap()
    }

    async fn pods(&self, request: RangeRequest) -> Result<RangeResponse, (i32, String)> {
        let request = RangeRequest {
            range_end: Bytes::from_static(AFTER_PODS),
            ..request
        };
        self.channel.ask(RANGE, &request).await
    }

    async fn count(&self) -> i64 {
        let request = RangeRequest {
            key: Bytes::from_static(PODS),
            count_only: true,
            ..RangeRequest::default()
        };
        self.pods(request).await.unwrap().count
    }

    /// Everything in pages of one revision, which it returns, with what each page took. Each page says how many
    /// are left from its first one on.
    async fn list(&self) -> (i64, Vec<KeyValue>, Vec<Duration>) {
        let (mut revision, mut kvs, mut took) = (0, Vec::new(), Vec::new());
        let mut all = None;
        let mut from = Bytes::from_static(PODS);
        loop {
            let began = Instant::now();
            let request = RangeRequest {
                key: from,
                limit: PAGE,
                revision,
                ..RangeRequest::default()
            };
            let page = self.pods(request).await.unwrap();
            took.push(began.elapsed());
            if revision == 0 {
                revision = page.header.unwrap().revision;
            }
            let all = *all.get_or_insert(page.count);
            let before = i64::try_from(kvs.len()).unwrap();
            assert_eq!(page.count, all - before);
            kvs.extend(page.kvs);
            let so_far = i64::try_from(kvs.len()).unwrap();
            assert_eq!(page.more, so_far < all);
            if !page.more {
                return (revision, kvs, took);
            }
            let mut next = kvs.last().unwrap().key.to_vec();
            next.push(0);
            from = Bytes::from(next);
        }
    }

    /// Watches the pods from a revision on, as its cache does.
    async fn watch(&self, start_revision: i64) -> Stream {
        let mut stream = self.channel.stream(WATCH, &[("hasleader", "true")]).await;
        let create = WatchCreateRequest {
            key: Bytes::from_static(PODS),
            range_end: Bytes::from_static(AFTER_PODS),
            start_revision,
            progress_notify: true,
            prev_kv: true,
            ..WatchCreateRequest::default()
        };
        stream.send(&WatchRequest {
            request: Some(WatchRequestUnion::CreateRequest(create)),
        });
        let created: WatchResponse = stream.next().await.unwrap();
        assert!(created.created && !created.canceled, "{created:?}");
        stream
    }
}

fn ask_progress(stream: &mut Stream) {
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::ProgressRequest(WatchProgressRequest {})),
    });
}

/// What a watch says until it has said that it is at `revision` or later.
async fn until_progress(stream: &mut Stream, revision: i64) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let said: WatchResponse = stream.next().await.unwrap();
        let is_progress = said.events.is_empty();
        events.extend(said.events);
        if is_progress {
            let at = said.header.unwrap().revision;
            let last = events.last().and_then(|event| event.kv.as_ref());
            assert!(
                last.is_none_or(|kv| kv.mod_revision <= at),
                "told before it is there"
            );
            if at >= revision {
                return events;
            }
            ask_progress(stream);
        }
    }
}

/// Creates so many pods, by several at once.
async fn create(servers: &Arc<ApiServer>, objects: u64) {
    let writers = (0..WRITERS).map(|writer| {
        let server = servers.clone();
        tokio::spawn(async move {
            for number in (writer..objects).step_by(WRITERS as usize) {
                let created = server.update(&pod(number), 0, "Pending").await;
                assert!(created.succeeded, "{number}");
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_lists_updates_watches_and_compacts_at_any_node() {
    let objects = setting("KUBERNETES_OBJECTS", 1_600);
    let cluster = started(3).await;
    let leader = Arc::new(ApiServer::at(&cluster, cluster.leader).await);
    let follower = ApiServer::at(&cluster, cluster.follower()).await;
    create(&leader, objects).await;
    let again = follower.update(&pod(7), 0, "Pending").await;
    assert!(!again.succeeded, "it is there");
    let known = found(&again);
    assert_eq!(known.key, pod(7));

    let (revision, listed, took) = follower.list().await;
    assert_eq!(listed.len() as u64, objects);
    assert!(listed.is_sorted_by(|one, next| one.key < next.key));
    assert_eq!(follower.count().await as u64, objects);
    let rest = &took[1..];
    eprintln!(
        "{objects} objects in pages of {PAGE}: the first in {:?}, the others in {:?} each",
        took[0],
        rest.iter().sum::<Duration>() / u32::try_from(rest.len()).unwrap().max(1),
    );

    // Its cache goes on after the list, and learns how far it is though nothing is written.
    let mut watch = follower.watch(revision + 1).await;
    ask_progress(&mut watch);
    assert_eq!(until_progress(&mut watch, revision).await, []);
    let updated = leader
        .update(&known.key, known.mod_revision, "Running")
        .await;
    assert!(updated.succeeded);
    let stale = follower
        .update(&known.key, known.mod_revision, "Failed")
        .await;
    assert!(!stale.succeeded);
    assert_eq!(&found(&stale).value[..], b"Running");
    let updated = updated.header.unwrap().revision;
    ask_progress(&mut watch);
    let told = until_progress(&mut watch, updated).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].kv.as_ref().unwrap().mod_revision, updated);
    assert_eq!(&told[0].prev_kv.as_ref().unwrap().value[..], b"Pending");

    // Pages of what is compacted say so, and a list begins again.
    compact(&leader, updated).await;
    let page = RangeRequest {
        key: pod(500),
        limit: PAGE,
        revision,
        ..RangeRequest::default()
    };
    let (code, text) = follower.pods(page).await.unwrap_err();
    assert_eq!(code, 11, "{text}");
    assert_eq!(follower.list().await.1.len() as u64, objects);
}

/// As the API server's compactor does it: whoever may raise the version of a key compacts.
async fn compact(server: &ApiServer, revision: i64) {
    let key = Bytes::from_static(b"compact_rev_key");
    let by = |version| TxnRequest {
        compare: vec![equal(&key, 0, CompareUnion::Version(version))],
        success: vec![op(RequestUnion::RequestPut(PutRequest {
            key: key.clone(),
            value: Bytes::from(revision.to_string()),
            ..PutRequest::default()
        }))],
        failure: vec![op(RequestUnion::RequestRange(RangeRequest {
            key: key.clone(),
            ..RangeRequest::default()
        }))],
    };
    let first: TxnResponse = server.channel.ask(TXN, &by(0)).await.unwrap();
    assert!(first.succeeded);
    let second: TxnResponse = server.channel.ask(TXN, &by(0)).await.unwrap();
    assert!(!second.succeeded);
    assert_eq!(found(&second).version, 1);
    let compaction = CompactionRequest {
        revision,
        physical: false,
    };
    let done: Result<CompactionResponse, _> = server.channel.ask(COMPACT, &compaction).await;
    done.unwrap();
}
