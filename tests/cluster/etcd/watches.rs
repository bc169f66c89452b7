//! Watches: what clients see on the wire, etcd's own command line, and watches that outlive what happens
//! to nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;

use super::grpc::{Channel, Stream};
use super::kv::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse,
};
use super::messages::{
    Event, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchRequestUnion, WatchResponse,
};
use super::{EtcdCluster, etcdctl, must};
use crate::harness::{PATIENCE, eventually};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const PUT: &str = "/etcdserverpb.KV/Put";
const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
const TXN: &str = "/etcdserverpb.KV/Txn";
const COMPACT: &str = "/etcdserverpb.KV/Compact";

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A watch of the keys from `key` to `range_end`.
fn of(key: &str, range_end: &str) -> WatchCreateRequest {
    WatchCreateRequest {
        key: bytes(key),
        range_end: bytes(range_end),
        ..WatchCreateRequest::default()
    }
}

fn create(stream: &mut Stream, create: WatchCreateRequest) {
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::CreateRequest(create)),
    });
}

fn cancel(stream: &mut Stream, watch_id: i64) {
    let cancel = WatchCancelRequest { watch_id };
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::CancelRequest(cancel)),
    });
}

fn ask_progress(stream: &mut Stream) {
    let progress = WatchProgressRequest {};
    stream.send(&WatchRequest {
        request: Some(WatchRequestUnion::ProgressRequest(progress)),
    });
}

async fn next(stream: &mut Stream) -> WatchResponse {
    stream.next().await.unwrap()
}

fn revision(response: &WatchResponse) -> i64 {
    response.header.unwrap().revision
}

/// Of an event: its kind, key, create and mod revision, version, and value.
fn told(event: &Event) -> (i32, String, i64, i64, i64, String) {
    let kv = event.kv.as_ref().unwrap();
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        event.r#type,
        text(&kv.key),
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        text(&kv.value),
    )
}

pub(crate) async fn put(channel: &Channel, key: &str, value: &str) -> i64 {
    let put = PutRequest {
        key: bytes(key),
        value: bytes(value),
        ..PutRequest::default()
    };
    let began = std::time::Instant::now();
    loop {
        match channel.ask::<PutResponse>(PUT, &put).await {
            Ok(answer) => return answer.header.unwrap().revision,
            // On a busy machine its leader may be replaced: what became of the write is not known then.
            Err((14, text)) => assert!(began.elapsed() < PATIENCE, "{text}"),
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn delete(channel: &Channel, key: &str) -> i64 {
    let delete = DeleteRangeRequest {
        key: bytes(key),
        ..DeleteRangeRequest::default()
    };
    let answer: DeleteRangeResponse = channel.ask(DELETE, &delete).await.unwrap();
    answer.header.unwrap().revision
}

pub(crate) async fn started(count: usize) -> EtcdCluster {
    let cluster = tokio::task::spawn_blocking(move || EtcdCluster::in_the_clear(count));
    cluster.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_are_numbered_refused_cancelled_and_told_their_progress_as_in_etcd() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let mut stream = channel.stream(WATCH, &[]).await;
    // None is there: that is no answer.
    ask_progress(&mut stream);
    create(&mut stream, of("a", ""));
    let first = next(&mut stream).await;
    assert_eq!(
        (first.watch_id, first.created, first.canceled),
        (0, true, false)
    );
    let begin = revision(&first);
    let given = WatchCreateRequest {
        watch_id: 7,
        ..of("b", "d")
    };
    create(&mut stream, given.clone());
    assert_eq!(next(&mut stream).await.watch_id, 7);
    let negative = WatchCreateRequest {
        start_revision: -1,
        ..of("a", "")
    };
    for (refused, reason) in [
        (
            given,
            "mvcc: duplicate watch ID provided on the WatchStream",
        ),
        (of("b", "b"), "mvcc: watcher range is empty"),
        (of("b", "a"), "mvcc: watcher range is empty"),
        (negative, "mvcc: required revision has been compacted"),
    ] {
        create(&mut stream, refused);
        let refusal = next(&mut stream).await;
        assert_eq!(
            (refusal.watch_id, refusal.created, refusal.canceled),
            (-1, true, true)
        );
        assert_eq!(refusal.cancel_reason, reason);
        assert_eq!(revision(&refusal), begin);
    }
    // All keys, and all events left out.
    let silent = WatchCreateRequest {
        filters: vec![0, 1],
        ..of("", "\0")
    };
    create(&mut stream, silent);
    assert_eq!(next(&mut stream).await.watch_id, 1);

    assert_eq!(put(&channel, "a", "1").await, begin + 1);
    let events = next(&mut stream).await;
    assert_eq!((events.watch_id, revision(&events)), (0, begin + 1));
    let expected = (0, "a".to_owned(), begin + 1, begin + 1, 1, "1".to_owned());
    assert_eq!(
        events.events.iter().map(told).collect::<Vec<_>>(),
        [expected]
    );
    put(&channel, "c", "1").await;
    assert_eq!(next(&mut stream).await.watch_id, 7);
    put(&channel, "z", "1").await;
    ask_progress(&mut stream);
    let progress = next(&mut stream).await;
    assert_eq!((progress.watch_id, revision(&progress)), (-1, begin + 3));
    assert!(progress.events.is_empty());
    assert!(!progress.created);

    // One that is not there is not cancelled, and nothing is said of it.
    cancel(&mut stream, 99);
    cancel(&mut stream, 7);
    let canceled = next(&mut stream).await;
    assert_eq!((canceled.watch_id, canceled.canceled), (7, true));
    assert_eq!(
        (canceled.compact_revision, canceled.cancel_reason.as_str()),
        (0, "")
    );
    assert_eq!(revision(&canceled), begin + 3);
    put(&channel, "c", "2").await;

    // One that begins later is told nothing from before, and holds progress back.
    let later = WatchCreateRequest {
        start_revision: begin + 6,
        ..of("a", "")
    };
    create(&mut stream, later);
    assert_eq!(next(&mut stream).await.watch_id, 2);
    ask_progress(&mut stream);
    put(&channel, "a", "2").await;
    let early = next(&mut stream).await;
    assert_eq!((early.watch_id, revision(&early)), (0, begin + 5));
    // Until its start is the next revision.
    let progress = next(&mut stream).await;
    assert_eq!((progress.watch_id, revision(&progress)), (-1, begin + 5));
    put(&channel, "a", "3").await;
    let mut both: Vec<i64> = Vec::new();
    for _ in 0..2 {
        let events = next(&mut stream).await;
        assert_eq!((revision(&events), events.events.len()), (begin + 6, 1));
        assert_eq!(told(&events.events[0]).4, 3);
        both.push(events.watch_id);
    }
    both.sort_unstable();
    assert_eq!(both, [0, 2]);
    // An ended stream of requests ends no watch.
    stream.finish();
    delete(&channel, "a").await;
    let deleted = next(&mut stream).await;
    let expected = (1, "a".to_owned(), 0, begin + 7, 0, String::new());
    assert_eq!(told(&deleted.events[0]), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_told_from_any_revision_that_is_not_compacted() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let first = put(&channel, "a", "1").await;
    put(&channel, "a", "2").await;
    let gone = delete(&channel, "a").await;
    let puts = ["a", "b"].map(|key| RequestOp {
        request: Some(RequestUnion::RequestPut(PutRequest {
            key: bytes(key),
            value: bytes("3"),
            ..PutRequest::default()
        })),
    });
    let both = TxnRequest {
        success: puts.to_vec(),
        ..TxnRequest::default()
    };
    let _: TxnResponse = channel.ask(TXN, &both).await.unwrap();
    let from = |start_revision, prev_kv| WatchCreateRequest {
        start_revision,
        prev_kv,
        ..of("a", "c")
    };
    let mut stream = channel.stream(WATCH, &[]).await;
    create(&mut stream, from(first, true));
    assert!(next(&mut stream).await.created);
    let mut events = Vec::new();
    while events.len() < 5 {
        let response = next(&mut stream).await;
        let last = response.events.last().unwrap().kv.as_ref().unwrap();
        assert_eq!(last.mod_revision, revision(&response));
        events.extend(response.events);
    }
    let before = |event: &Event| event.prev_kv.as_ref().map(|kv| kv.value.clone());
    let told_of: Vec<_> = events
        .iter()
        .map(|event| (told(event).3, before(event)))
        .collect();
    assert_eq!(
        told_of,
        [
            (first, None),
            (first + 1, Some(bytes("1"))),
            (gone, Some(bytes("2"))),
            (gone + 1, None),
            (gone + 1, None),
        ]
    );

    let compaction = CompactionRequest {
        revision: gone,
        physical: true,
    };
    let _: CompactionResponse = channel.ask(COMPACT, &compaction).await.unwrap();
    let mut stream = channel.stream(WATCH, &[]).await;
    create(&mut stream, from(gone - 1, true));
    let created = next(&mut stream).await;
    assert!(created.created);
    assert!(!created.canceled);
    let canceled = next(&mut stream).await;
    assert_eq!(
        (canceled.watch_id, canceled.canceled),
        (created.watch_id, true)
    );
    assert_eq!((canceled.compact_revision, revision(&canceled)), (gone, 0));
    assert_eq!(canceled.cancel_reason, "");
    // A client that says that it knows is told so.
    cancel(&mut stream, created.watch_id);
    assert!(next(&mut stream).await.canceled);
    // At the compact revision all is there, and what was deleted there, too.
    create(&mut stream, from(gone, true));
    assert!(next(&mut stream).await.created);
    let response = next(&mut stream).await;
    assert_eq!(told(&response.events[0]).0, 1);
    assert_eq!(told(&response.events[0]).3, gone);
    assert_eq!(response.events.len(), 3);
    assert_eq!(revision(&response), gone + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_revision_is_whole_or_in_parts_as_the_client_asks() {
    const KEYS: usize = 12;
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let value = "x".repeat(100 << 10);
    let puts = (0..KEYS).map(|number| RequestOp {
        request: Some(RequestUnion::RequestPut(PutRequest {
            key: bytes(&format!("k{number:02}")),
            value: bytes(&value),
            ..PutRequest::default()
        })),
    });
    let txn = TxnRequest {
        success: puts.collect(),
        ..TxnRequest::default()
    };
    let _: TxnResponse = channel.ask(TXN, &txn).await.unwrap();
    let second: TxnResponse = channel.ask(TXN, &txn).await.unwrap();
    let second = second.header.unwrap().revision;
    let mut stream = channel.stream(WATCH, &[]).await;
    for fragment in [false, true] {
        let asked = WatchCreateRequest {
            start_revision: second,
            prev_kv: true,
            fragment,
            ..of("k", "l")
        };
        create(&mut stream, asked);
        let id = next(&mut stream).await.watch_id;
        let mut keys = Vec::new();
        let mut parts = 0;
        loop {
            let response = next(&mut stream).await;
            assert_eq!((response.watch_id, revision(&response)), (id, second));
            assert!(response.events.iter().all(|event| event.prev_kv.is_some()));
            keys.extend(response.events.iter().map(|event| told(event).1));
            parts += 1;
            if !response.fragment {
                break;
            }
        }
        assert_eq!(keys.len(), KEYS);
        assert!(keys.is_sorted());
        // 2.4 MB, and a message may have 2 MiB.
        assert_eq!(parts, if fragment { 2 } else { 1 });
        cancel(&mut stream, id);
        assert!(next(&mut stream).await.canceled);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_slowly_gets_every_event_once() {
    const PUTS: i64 = 1_600;
    let cluster = started(1).await;
    let writer = Channel::open(cluster.ports[0]).await;
    let reader = Channel::with_window(cluster.ports[0], 64 << 10).await;
    let mut stream = reader.stream(WATCH, &[]).await;
    create(&mut stream, of("k", ""));
    let begin = revision(&next(&mut stream).await);
    // More than waits for one watch.
    let value = "x".repeat(8 << 10);
    for _ in 0..PUTS {
        put(&writer, "k", &value).await;
    }
    let mut last = begin;
    while last < begin + PUTS {
        let response = next(&mut stream).await;
        assert!(!response.canceled);
        for event in &response.events {
            last += 1;
            assert_eq!(told(event).3, last);
        }
        assert_eq!(revision(&response), last);
    }
    let slow = r#"leasehold_watch_cancels_total{reason="slow"}"#;
    let slow = tokio::task::block_in_place(|| cluster.cluster.nodes[0].metric(slow));
    assert!(slow > 0.0, "this test wants a watch that falls behind");
}

/// Takes what a watch is told until it has been told of `last`: values by revision.
async fn read_until(mut stream: Stream, last: i64) -> BTreeMap<i64, String> {
    let mut found = BTreeMap::new();
    while found.last_key_value().is_none_or(|(at, _)| *at < last) {
        let response = next(&mut stream).await;
        assert!(!response.canceled, "{response:?}");
        for event in &response.events {
            let (_, _, _, at, _, value) = told(event);
            let newest = found.last_key_value().map_or(0, |(at, _)| *at);
            assert!(at > newest, "{at} after {newest}");
            found.insert(at, value);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_moves_and_no_watch_misses_an_event_and_no_write_is_refused() {
    const PUTS: usize = 300;
    let cluster = started(3).await;
    let mut channels = Vec::new();
    let mut streams = Vec::new();
    for port in &cluster.ports {
        let channel = Channel::open(*port).await;
        let mut stream = channel.stream(WATCH, &[]).await;
        create(&mut stream, of("k", "l"));
        assert!(next(&mut stream).await.created);
        channels.push(channel);
        streams.push(stream);
    }
    let moving = std::sync::atomic::AtomicBool::new(true);
    let written = std::thread::scope(|scope| {
        scope.spawn(|| {
            while moving.load(std::sync::atomic::Ordering::Relaxed) {
                // Refused while one is under way.
                cluster.cluster.cli(&["move-leader"]);
            }
        });
        let written = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let mut terms = BTreeSet::new();
                let mut written = BTreeMap::new();
                for number in 0..PUTS {
                    let value = number.to_string();
                    let put = PutRequest {
                        key: bytes("k"),
                        value: bytes(&value),
                        ..PutRequest::default()
                    };
                    let channel = &channels[number % channels.len()];
                    match channel.ask::<PutResponse>(PUT, &put).await {
                        Ok(answer) => {
                            let header = answer.header.unwrap();
                            terms.insert(header.raft_term);
                            assert_eq!(written.insert(header.revision, value), None);
                        }
                        // It may have been applied, and is not written again.
                        Err((code, text)) => {
                            assert_eq!(code, 14, "{text}");
                            assert!(text.contains("timed out"), "{text}");
                        }
                    }
                }
                (terms, written)
            })
        });
        moving.store(false, std::sync::atomic::Ordering::Relaxed);
        written
    });
    let (terms, written) = written;
    assert!(terms.len() > 2, "this test wants leaders that change");
    let last = put(&channels[0], "k", "last").await;
    let mut all = Vec::new();
    for stream in streams {
        all.push(read_until(stream, last).await);
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    for (at, value) in &written {
        assert_eq!(all[0].get(at), Some(value));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn want_of_a_leader_is_a_pause_for_watches_and_an_end_where_the_client_asks_for_one() {
    let mut cluster = started(3).await;
    let (leader, follower) = (cluster.leader, cluster.follower());
    let channel = Channel::open(cluster.ports[follower]).await;
    let mut patient = channel.stream(WATCH, &[]).await;
    create(&mut patient, of("k", ""));
    assert!(next(&mut patient).await.created);
    let began = std::time::Instant::now();
    let mut impatient = loop {
        let mut stream = channel.begin(WATCH, &[("hasleader", "true")]).await;
        create(&mut stream, of("k", ""));
        match stream.next::<WatchResponse>().await {
            Ok(told) => {
                assert!(told.created);
                break stream;
            }
            // On a busy machine a node may lose its leader for a moment.
            Err(ended) => assert!(began.elapsed() < PATIENCE, "{ended:?}"),
        }
    };
    let nodes = &cluster.cluster.nodes;
    let others: Vec<usize> = (0..3).filter(|place| *place != follower).collect();
    for place in &others {
        nodes[*place].pause();
    }
    let ended: Result<WatchResponse, _> = impatient.next().await;
    assert_eq!(ended, Err((14, "etcdserver: no leader".to_owned())));
    tokio::task::block_in_place(|| {
        eventually("watches that the node has ended", || {
            let ends = r#"leasehold_watch_cancels_total{reason="no_leader"}"#;
            (nodes[follower].metric(ends) > 0.0).then_some(())
        });
    });
    // It is created all the same.
    create(&mut patient, of("k", ""));
    assert_eq!(next(&mut patient).await.watch_id, 1);
    for place in &others {
        nodes[*place].resume();
    }
    // On a busy machine an election takes longer than a write waits for it.
    tokio::task::block_in_place(|| cluster.cluster.wait_for_lease());
    let writer = Channel::open(cluster.ports[leader]).await;
    let written = put(&writer, "k", "1").await;
    let mut told = BTreeSet::new();
    while told.len() < 2 {
        let events = next(&mut patient).await;
        assert!(revision(&events) <= written, "{events:?}");
        if revision(&events) == written {
            told.insert(events.watch_id);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_says_so_on_its_streams() {
    let mut cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let mut watching = channel.stream(WATCH, &[]).await;
    create(&mut watching, of("k", ""));
    assert!(next(&mut watching).await.created);
    let mut idle = channel.stream(WATCH, &[]).await;
    let mut renewing = channel
        .stream("/etcdserverpb.Lease/LeaseKeepAlive", &[])
        .await;
    let code = tokio::task::block_in_place(|| cluster.cluster.nodes[0].stop());
    assert_eq!(code, 0);
    for stream in [&mut watching, &mut idle, &mut renewing] {
        let ended: Result<WatchResponse, _> = stream.next().await;
        assert_eq!(ended, Err((14, "etcdserver: server stopped".to_owned())));
    }
}

/// etcd's command line at work, and the lines that it prints.
struct Running {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(program: &std::path::Path, endpoint: SocketAddr, arguments: &[&str]) -> Self {
        let mut process = Command::new(program)
            .env_clear()
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &endpoint.to_string()])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { process, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).unwrap()
    }

    fn lines(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.line()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn etcdctl_watches_at_every_node() {
    let Some(etcdctl) = etcdctl("watches of etcdctl") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let port = cluster.ports[cluster.leader];
    must(&etcdctl, port, &["put", "old", "1"]);
    for (place, port) in cluster.ports.iter().enumerate() {
        let key = format!("k{place}");
        let rest = ["watch", &key, "--prefix", "--rev=2", "--prev-kv"];
        let watching = Running::start(&etcdctl, *port, &rest);
        must(&etcdctl, *port, &["put", &key, "1"]);
        assert_eq!(watching.lines(3), ["PUT", &key, "1"]);
        must(&etcdctl, *port, &["put", &key, "2"]);
        assert_eq!(watching.lines(5), ["PUT", &key, "1", &key, "2"]);
        must(&etcdctl, *port, &["del", &key]);
        assert_eq!(watching.lines(5), ["DELETE", &key, "2", &key, ""]);
    }
    must(&etcdctl, port, &["compact", "3"]);
    let refused = super::run(&etcdctl, &port.to_string(), &["watch", "k", "--rev=1"]);
    assert!(
        refused.1.contains("required revision has been compacted"),
        "{refused:?}"
    );
}

#[test]
fn etcdctl_takes_locks_and_wins_elections() {
    let Some(etcdctl) = etcdctl("locks of etcdctl") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let (one, two) = (
        cluster.ports[cluster.leader],
        cluster.ports[cluster.follower()],
    );
    for (at, words) in [
        ("lock", &["lock", "l"][..]),
        ("elect", &["elect", "e", "first"]),
    ] {
        let holder = Running::start(&etcdctl, one, words);
        let key = holder.line();
        assert!(key.starts_with(&words[1].to_owned()), "{key}");
        let waiter = Running::start(&etcdctl, two, words);
        eventually("both wait in line", || {
            let keys = must(&etcdctl, two, &["get", words[1], "--prefix", "--keys-only"]);
            (keys.split_whitespace().count() == 2).then_some(())
        });
        assert!(
            waiter
                .lines
                .recv_timeout(Duration::from_millis(100))
                .is_err()
        );
        if at == "elect" {
            let listening = Running::start(&etcdctl, two, &["elect", "--listen", "e"]);
            assert_eq!(listening.lines(2), [key.as_str(), "first"]);
        }
        crate::harness::send(&holder.process, crate::harness::Signal::INT);
        let next = waiter.line();
        assert!(next.starts_with(&words[1].to_owned()), "{next}");
        assert_ne!(next, key);
    }
}
