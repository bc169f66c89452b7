//! Watches over real servers: every change once, in order, at any node, whatever dies meanwhile.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use leasehold::api::{
    Call, Consistency, ErrorKind, EventKind, KeyRange, Request, ResponseBody, TxnOp, TxnRequest,
    WatchMessage, WatchRequest,
};
use leasehold::client::{Client, GetOptions, WatchEvent, WatchOptions, Watcher};
use leasehold::transport::{
    Connection, Endpoint, FrameReceiver, FrameStream, Tls, TlsPaths, TransportStats,
};
use leasehold::wire::client::{ClientFrame, ClientHello, ServerFrame, ServerHello};
use leasehold::wire::{FrameLimits, PROTOCOL_VERSIONS, encode};

use crate::harness::{Cluster, PATIENCE, eventually, leasehold_command, must};
use crate::hostile::connected;

/// The next event, or a sentence after a minute.
async fn next(watcher: &mut Watcher) -> WatchEvent {
    let next = tokio::time::timeout(PATIENCE, watcher.next()).await;
    next.expect("an event within a minute")
        .expect("the watch goes on")
        .expect("and well")
}

/// How far a watch is. A node has a second to answer, and a watch that is opened anew forgets what was
/// asked of the old one: so it is asked for until it comes.
async fn progress(watcher: &mut Watcher) -> i64 {
    let began = Instant::now();
    loop {
        let asked = watcher.request_progress().await;
        assert!(began.elapsed() < PATIENCE, "no progress is told: {asked:?}");
        let told = async {
            loop {
                if let WatchEvent::Progress { revision } = next(watcher).await {
                    return revision;
                }
            }
        };
        // It may come though the answer was late.
        if let Ok(revision) = tokio::time::timeout(Duration::from_secs(2), told).await {
            return revision;
        }
    }
}

/// What happens to keys up to and with the change of `key`, as `revision kind key=value(before)`.
async fn until(watcher: &mut Watcher, last: &str) -> Vec<String> {
    let mut heard = Vec::new();
    loop {
        match next(watcher).await {
            WatchEvent::Events { revision, events } => {
                let mut is_last = false;
                for event in events {
                    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
                    let key = text(&event.kv.key);
                    is_last |= key == last;
                    let before = event.prev_kv.map(|kv| format!("({})", text(&kv.value)));
                    heard.push(match event.kind {
                        EventKind::Put => format!(
                            "{revision} {key}={}{}",
                            text(&event.kv.value),
                            before.unwrap_or_default()
                        ),
                        EventKind::Delete => {
                            format!("{revision} -{key}{}", before.unwrap_or_default())
                        }
                    });
                }
                if is_last {
                    return heard;
                }
            }
            WatchEvent::State { kvs } => heard.extend(
                kvs.iter()
                    .map(|kv| format!("state {}", String::from_utf8(kv.key.to_vec()).unwrap())),
            ),
            WatchEvent::Synced { revision } => heard.push(format!("synced {revision}")),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_tells_what_happens_from_then_from_before_and_with_what_was_there() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let client = cluster.client().await;
    let first = client.put("k/a", "1", None).await.unwrap().header.revision;
    client.put("k/a", "2", None).await.unwrap();
    client.put("other", "1", None).await.unwrap();
    for node in 0..3 {
        let endpoint = cluster.nodes[node].client.to_string();
        let options = || WatchOptions::new().with_prefix().with_endpoint(&endpoint);
        // A node that is behind sees a start in the future; either way nothing is older.
        let now = client.put("fence", "", None).await.unwrap().header.revision;
        let from_now = options().with_start_revision(now + 1).with_prev_kv();
        let mut from_now = client.watch("k/", Some(from_now)).await.unwrap();
        let from_before = options().with_start_revision(first).with_no_delete();
        let mut from_before = client.watch("k/", Some(from_before)).await.unwrap();
        assert!(matches!(
            next(&mut from_now).await,
            WatchEvent::Created { .. }
        ));
        let txn = TxnRequest::new().and_then([
            TxnOp::put("k/b", "1"),
            TxnOp::delete("k/a"),
            TxnOp::put("k/c", "1"),
        ]);
        let at = client.txn(txn, None).await.unwrap().header.revision;
        let end = format!("k/end{node}");
        client.put(&end, "", None).await.unwrap();
        let heard = until(&mut from_now, &end).await;
        let before = if node == 0 { "" } else { "(1)" };
        assert_eq!(
            heard,
            [
                format!("{at} k/b=1{before}"),
                format!("{at} -k/a(2)"),
                format!("{at} k/c=1{before}"),
                format!("{} {end}=", at + 1),
            ],
            "node {node}, the leader is {leader}"
        );
        let heard = until(&mut from_before, &end).await;
        let expected = [format!("{first} k/a=1"), format!("{} k/a=2", first + 1)];
        assert_eq!(heard[..2], expected);
        assert!(!heard.iter().any(|word| word.contains(" -")));

        let listed = options().with_initial_state();
        let mut listed = client.watch("k/", Some(listed)).await.unwrap();
        client.put("k/a", "2", None).await.unwrap();
        let heard = until(&mut listed, "k/a").await;
        // A node that is a little behind begins with an older state and tells the rest as events.
        assert!(heard.iter().any(|word| word.starts_with("synced")));
        let told = |key: &str| {
            let in_state = format!("state {key}");
            let in_event = format!(" {key}=");
            let is_told = |word: &&String| **word == in_state || word.contains(&in_event);
            heard.iter().filter(is_told).count()
        };
        assert_eq!((told("k/b"), told("k/c")), (1, 1), "{heard:?}");
        // Everything has been told, and now that is said.
        let revision = progress(&mut listed).await;
        assert!(revision > at + 1, "{revision} and {at}");
    }
    let total = cluster.nodes[leader].metric("leasehold_watch_events_total");
    assert!(total > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_watched_is_refused_with_a_reason() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    for value in ["1", "2", "3", "4"] {
        client.put("a", value, None).await.unwrap();
    }
    let last = client.get("a", None).await.unwrap().kvs[0].mod_revision;
    client.compact(last - 1, None).await.unwrap();
    let from = |revision| WatchOptions::new().with_start_revision(revision);
    for start in [last - 2, 1, -1] {
        let refused = client.watch("a", Some(from(start))).await.unwrap_err();
        let compact_revision = last - 1;
        assert_eq!(refused.kind, ErrorKind::Compacted { compact_revision });
    }
    let mut left = client.watch("a", Some(from(last - 1))).await.unwrap();
    client.put("a", "5", None).await.unwrap();
    client.put("end", "", None).await.unwrap();
    let mut heard = Vec::new();
    while heard.len() < 3 {
        if let WatchEvent::Events { revision, .. } = next(&mut left).await {
            heard.push(revision);
        }
    }
    assert_eq!(heard, [last - 1, last, last + 1]);
    let inverted = WatchOptions::new().with_range("a");
    let refused = client.watch("b", Some(inverted)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let refused = client.watch("", None).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let nothing = WatchOptions::new().with_no_put().with_no_delete();
    let refused = client.watch("a", Some(nothing)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
}

const WRITERS: u64 = 4;
const KILLS: usize = 3;
const WRITES_PER_LEADER: u64 = 300;

/// Writers write keys of their own, some by transactions of three; watchers hear of it at fixed
/// followers and wherever the client likes, while leaders die. In the end each has heard exactly
/// what the history holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_die_and_no_watch_has_a_gap_a_duplicate_or_a_wrong_order() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let start = client.put("w/", "", None).await.unwrap().header.revision;
    let written = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = cluster.client().await;
        let (written, stop) = (written.clone(), stop.clone());
        writers.push(tokio::spawn(async move {
            for number in 0_u64.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let key = |part: u64| format!("w/{writer}/{number:06}/{part}");
                // What fails may have happened all the same; the history knows.
                let ok = if number % 3 == 0 {
                    let puts: Vec<TxnOp> = (0..3).map(|part| TxnOp::put(key(part), "")).collect();
                    let txn = TxnRequest::new().and_then(puts);
                    client.txn(txn, None).await.is_ok()
                } else {
                    client.put(key(0), "", None).await.is_ok()
                };
                written.fetch_add(u64::from(ok), Ordering::Relaxed);
            }
        }));
    }
    let mut watchers = Vec::new();
    for number in 0..6 {
        let mut options = WatchOptions::new().with_prefix().with_start_revision(start);
        if number < 3 {
            options = options.with_endpoint(cluster.nodes[number].client.to_string());
        }
        let watching = cluster.client().await;
        let watcher = watching.watch("w/", Some(options)).await.unwrap();
        watchers.push(tokio::spawn(collect(watching, watcher)));
    }
    for _ in 0..KILLS {
        let leader = cluster.wait_for_lease();
        let target = written.load(Ordering::Relaxed) + WRITES_PER_LEADER;
        while written.load(Ordering::Relaxed) < target {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.nodes[leader].kill();
        let target = written.load(Ordering::Relaxed) + WRITES_PER_LEADER;
        while written.load(Ordering::Relaxed) < target {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cluster.nodes[leader].start();
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    cluster.wait_for_lease();
    let end = client.put("w/end", "", None).await.unwrap();
    let history = history(&client).await;
    assert_eq!(history.keys().next_back(), Some(&end.header.revision));
    let mut resumed = 0;
    for watcher in watchers {
        let (heard, resumes) = watcher.await.unwrap();
        resumed += resumes;
        assert_eq!(heard.len(), history.len());
        for (heard, expected) in heard.into_iter().zip(&history) {
            assert_eq!((&heard.0, &heard.1), expected);
        }
    }
    assert!(
        resumed >= KILLS,
        "the watches at the dead resumed: {resumed}"
    );
    eprintln!("{} revisions, {resumed} resumes", history.len());
}

/// Everything that is heard until the key `w/end`, and how often it was interrupted.
async fn collect(_client: Client, mut watcher: Watcher) -> (Vec<(i64, Vec<Bytes>)>, usize) {
    let mut heard = Vec::new();
    let mut resumes = 0;
    loop {
        match next(&mut watcher).await {
            WatchEvent::Events { revision, events } => {
                let keys: Vec<Bytes> = events.into_iter().map(|event| event.kv.key).collect();
                let is_last = keys.iter().any(|key| key == "w/end");
                heard.push((revision, keys));
                if is_last {
                    return (heard, resumes);
                }
            }
            WatchEvent::Resumed { .. } => resumes += 1,
            _ => {}
        }
    }
}

/// The keys below `w/`, each of which was written once, by the revision that wrote them.
async fn history(client: &Client) -> BTreeMap<i64, Vec<Bytes>> {
    let mut found: BTreeMap<i64, Vec<Bytes>> = BTreeMap::new();
    let mut from = Bytes::from_static(b"w/");
    loop {
        let options = GetOptions::new().with_range("w0").with_limit(1000);
        let page = client.get(&from, Some(options)).await.unwrap();
        let Some(last) = page.kvs.last() else {
            return found;
        };
        from = [&last.key[..], &[0]].concat().into();
        for kv in page.kvs {
            assert_eq!(kv.version, 1);
            found.entry(kv.mod_revision).or_default().push(kv.key);
        }
    }
}

/// Nothing happens, so the watch waits for nothing: that its node stands still it finds out by asking.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_watch_leaves_a_node_that_stands_still() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let began = Instant::now();
    let watchers = |node: usize| cluster.nodes[node].metric("leasehold_watchers");
    let mut resumed = loop {
        eventually("no watch", || {
            (0..3).all(|node| watchers(node) == 0.0).then_some(())
        });
        let client = cluster.client_at(&[follower, leader, third]).await;
        let mut watcher = client.watch("w", None).await.unwrap();
        if watchers(follower) < 1.0 {
            assert!(began.elapsed() < PATIENCE, "the watch is never there");
            continue;
        }
        cluster.nodes[follower].pause();
        let cause = loop {
            match next(&mut watcher).await {
                WatchEvent::Resumed { cause, .. } => break cause,
                WatchEvent::Progress { .. } | WatchEvent::Created { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        cluster.nodes[follower].resume();
        // And not: after ten seconds, that the connection was idle. A client that stands still itself finds that too,
        // and tries again.
        if cause.detail.contains("stopped answering") {
            break watcher;
        }
        assert!(began.elapsed() < PATIENCE, "{cause}");
    };
    let writer = cluster.client_at(&[leader, third]).await;
    writer.put("w", "1", None).await.unwrap();
    assert!(until(&mut resumed, "w").await[0].ends_with(" w=1"));
}

/// A follower that hears of nothing any more would leave its watches silent without a word. It ends
/// them: those that may go elsewhere hear of everything at another node, and those that may not go on
/// when it has a leader again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_at_a_node_that_is_cut_off_from_its_leader_goes_on_at_another() {
    let (mut cluster, wires) = Cluster::prepare_wired(3);
    let leader = cluster.start_and_settle();
    let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let address = |node: usize| cluster.nodes[node].client.to_string();
    let writer = cluster.client_at(&[leader, third]).await;
    let start = writer.put("w/", "", None).await.unwrap().header.revision;
    let options = || WatchOptions::new().with_prefix().with_start_revision(start);
    let mut free = loop {
        let client = cluster.client_at(&[follower, leader, third]).await;
        let free = client.watch("w/", Some(options())).await.unwrap();
        if cluster.nodes[follower].metric("leasehold_watchers") == 1.0 {
            break free;
        }
    };
    let bound = cluster.client_at(&[follower]).await;
    let here = options().with_endpoint(address(follower));
    let mut bound = bound.watch("w/", Some(here)).await.unwrap();
    for watcher in [&mut free, &mut bound] {
        assert_eq!(until(watcher, "w/").await, [format!("{start} w/=")]);
    }
    wires.cut(follower, true);
    for number in 0..20 {
        writer.put(format!("w/{number}"), "", None).await.unwrap();
    }
    let heard_without = async |watcher: &mut Watcher| {
        let (mut heard, mut causes) = (Vec::new(), Vec::new());
        while heard.len() < 20 {
            match next(watcher).await {
                WatchEvent::Events { revision, .. } => heard.push(revision),
                WatchEvent::Resumed { cause, .. } => causes.push(cause.kind),
                other => panic!("{other:?}"),
            }
        }
        assert!(heard.into_iter().eq(start + 1..=start + 20));
        causes
    };
    let of_free = heard_without(&mut free).await;
    let refused = cluster.client_at(&[follower]).await;
    let soon = options().with_timeout(Duration::from_secs(2));
    let refused = refused.watch("w/", Some(soon)).await.unwrap_err();
    // Or, where its last attempt took too long, that no node opened it in time.
    let expected = [ErrorKind::NoLeader, ErrorKind::DeadlineExceeded];
    assert!(
        expected.contains(&refused.kind) || refused.is_retryable(),
        "{refused}"
    );
    wires.cut(follower, false);
    let of_bound = heard_without(&mut bound).await;
    // A node that stands still for longer than a second loses its clients before it can tell them.
    let told = [of_free, of_bound];
    assert!(told.iter().all(|causes| !causes.is_empty()), "{told:?}");
    let is_lost = |kind: &ErrorKind| *kind == ErrorKind::ConnectionLost;
    if told.iter().flatten().any(is_lost) {
        let is_one = |kind: &ErrorKind| *kind == ErrorKind::NoLeader || is_lost(kind);
        assert!(told.iter().flatten().all(is_one), "{told:?}");
    } else {
        // More than once, where it was opened anew and no leader was heard of again.
        let is_one = |kind: &ErrorKind| *kind == ErrorKind::NoLeader;
        assert!(told.iter().flatten().all(is_one), "{told:?}");
        let series = "leasehold_watch_cancels_total{reason=\"no_leader\"}";
        assert!(cluster.nodes[follower].metric(series) >= 2.0);
    }
}

/// The SDK's reader stands still: the stream is given up, and goes on from where it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_stands_still_resumes_without_a_gap() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let start = client.put("s", "", None).await.unwrap().header.revision;
    let options = WatchOptions::new()
        .with_start_revision(start)
        .with_buffer(16 << 10);
    let mut watcher = client.watch("s", Some(options)).await.unwrap();
    for number in 0..300 {
        let value = vec![b'v'; 1000];
        client.put("s", value, None).await.unwrap();
        if number == 100 {
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
    }
    let mut expected = start;
    let mut causes = Vec::new();
    while expected <= start + 300 {
        match next(&mut watcher).await {
            WatchEvent::Events { revision, events } => {
                assert_eq!((revision, events.len()), (expected, 1));
                expected += 1;
            }
            WatchEvent::Resumed { from, cause } => {
                assert_eq!(from, expected);
                causes.push(cause.kind);
            }
            _ => {}
        }
    }
    // A node that stands still for longer than a second may lose it besides.
    let is_one =
        |kind: &ErrorKind| [ErrorKind::SlowWatcher, ErrorKind::ConnectionLost].contains(kind);
    assert!(causes.iter().all(is_one), "{causes:?}");
    assert!(
        causes.contains(&ErrorKind::SlowWatcher),
        "its buffer was full for longer than a second: {causes:?}"
    );
}

/// A client that speaks the protocol and reads only what it wants to.
pub(crate) struct Raw {
    connection: Connection,
    stream: FrameStream,
    next_id: u64,
    _endpoint: Endpoint,
}

impl Raw {
    pub(crate) async fn connect(cluster: &Cluster) -> Self {
        let file = |name: &str| cluster.pki.path.join(name);
        let paths = TlsPaths {
            certificate: file("tester.pem"),
            key: file("tester.key"),
            ca: file("client-ca.pem"),
            crl: None,
        };
        let tls = Tls::load(&paths).unwrap();
        let stats = Arc::new(TransportStats::default());
        let endpoint = Endpoint::client(&tls, FrameLimits::DEFAULT, stats).unwrap();
        let address = cluster.nodes[0].client;
        let connection = connected(&endpoint, address).await;
        let mut stream = connection.open_stream().await.unwrap();
        let hello = ClientHello {
            versions: PROTOCOL_VERSIONS,
            cluster_id: tls.cluster_id(),
            name: "raw".into(),
        };
        let mut bytes = BytesMut::new();
        encode(&hello, &FrameLimits::DEFAULT, &mut bytes).unwrap();
        stream.write(bytes).await.unwrap();
        let mut frames = Vec::new();
        stream.read_batch(&mut frames).await.unwrap();
        let welcome: ServerHello = frames[0].decode().unwrap();
        welcome.result.unwrap();
        Self {
            connection,
            stream,
            next_id: 1,
            _endpoint: endpoint,
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(crate) async fn ask(&mut self, request: Request) -> Result<ResponseBody, ErrorKind> {
        let frame = ClientFrame {
            request_id: self.next_id,
            call: Call {
                timeout_ms: 60_000,
                consistency: Consistency::Serializable,
                min_revision: 0,
                session: None,
                request,
            },
        };
        self.next_id += 1;
        let mut bytes = BytesMut::new();
        encode(&frame, &FrameLimits::DEFAULT, &mut bytes).unwrap();
        self.stream.write(bytes).await.unwrap();
        let mut frames = Vec::new();
        let read = self.stream.read_batch(&mut frames);
        let read = tokio::time::timeout(PATIENCE, read).await;
        read.expect("a reply within a minute").unwrap();
        let reply: ServerFrame = frames[0].decode().unwrap();
        assert_eq!(reply.request_id, frame.request_id);
        reply
            .result
            .map(|response| response.body)
            .map_err(|error| error.kind)
    }

    async fn watch(&mut self, watch_id: u64, start_revision: i64) -> FrameReceiver {
        let watch = WatchRequest {
            key: "s".into(),
            range: KeyRange::Prefix,
            start_revision,
            ..WatchRequest::default()
        };
        let opened = self.ask(Request::Watch { watch_id, watch }).await;
        assert_eq!(opened, Ok(ResponseBody::Watch));
        let stream = tokio::time::timeout(PATIENCE, self.connection.accept_receiver()).await;
        stream.expect("its stream comes").unwrap()
    }
}

/// The next messages of a watch.
async fn messages(stream: &mut FrameReceiver) -> Vec<WatchMessage> {
    let mut frames = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_batch(&mut frames)).await;
    match read.expect("something comes within a minute") {
        Ok(()) | Err(_) if !frames.is_empty() => {}
        other => panic!("{other:?}"),
    }
    frames.iter().map(|frame| frame.decode().unwrap()).collect()
}

/// So many large values are put while a client reads nothing.
const LARGE: i64 = 16;

/// The server's side of it: the client reads nothing, and everybody else is served meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_nothing_is_cancelled_and_told_where_to_resume() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let mut raw = Raw::connect(&cluster).await;
    let mut stuck = raw.watch(1, 0).await;
    let mut quick = client
        .watch("s", Some(WatchOptions::new().with_prefix()))
        .await
        .unwrap();
    let mut last = 0;
    // More than the window of a stream, the watch sender's hands and a queue hold, in few steps: a stream
    // that takes nothing for half a minute is given up, and everything must have been put by then.
    for number in 0..LARGE {
        let value = vec![b'v'; 700_000];
        let put = client.put(format!("s{number}"), value, None).await;
        last = put.unwrap().header.revision;
        loop {
            if let WatchEvent::Events { revision, .. } = next(&mut quick).await {
                assert_eq!(revision, last, "the quick one is not held up");
                break;
            }
        }
    }
    let watch_again = Request::Watch {
        watch_id: 1,
        watch: WatchRequest {
            key: "s".into(),
            ..WatchRequest::default()
        },
    };
    let refused = raw.ask(watch_again).await;
    assert_eq!(refused, Err(ErrorKind::WatchExists));
    let mut expected = last - (LARGE - 1);
    let resume = 'reading: loop {
        for message in messages(&mut stuck).await {
            match message {
                WatchMessage::Created { watch_id, .. } => assert_eq!(watch_id, 1),
                WatchMessage::Events { revision, .. } => {
                    assert_eq!(revision, expected);
                    expected += 1;
                }
                WatchMessage::Canceled {
                    error,
                    resume_revision,
                } => {
                    assert_eq!(error.kind, ErrorKind::SlowWatcher);
                    break 'reading resume_revision.unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    };
    assert_eq!(resume, expected, "no gap, and nothing twice");
    assert!(expected < last, "and it was not all told before");
    let series = "leasehold_watch_cancels_total{reason=\"slow\"}";
    assert_eq!(cluster.nodes[0].metric(series), 1.0);
    let unknown = raw.ask(Request::WatchCancel { watch_id: 1 }).await;
    assert_eq!(unknown, Err(ErrorKind::WatchNotFound));
    let mut again = raw.watch(1, resume).await;
    while expected <= last {
        for message in messages(&mut again).await {
            if let WatchMessage::Events { revision, .. } = message {
                assert_eq!(revision, expected);
                expected += 1;
            }
        }
    }
    assert_eq!(
        raw.ask(Request::WatchCancel { watch_id: 1 }).await,
        Ok(ResponseBody::WatchCancel)
    );
}

#[test]
fn the_command_line_shows_events_and_runs_commands_for_them() {
    let cluster = Cluster::start(1);
    let flags = cluster.flags();
    let watch = |arguments: &[&str]| {
        let mut child = leasehold_command()
            .args(&flags)
            .arg("watch")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map(|line| line.unwrap()))
    };
    let flag_words: Vec<&str> = flags.iter().map(String::as_str).collect();
    let run = |arguments: &[&str]| {
        must(&[&flag_words[..], &["--exactly-once"], arguments].concat());
    };
    run(&["put", "foo", "bar"]);
    run(&["put", "foo", "bar2"]);
    run(&["del", "foo"]);
    let expected = ["PUT", "foo", "bar", "PUT", "foo", "bar", "foo", "bar2"];
    let (mut child, mut lines) = watch(&["foo", "--rev", "2", "--prev-kv"]);
    let heard: Vec<String> = lines.by_ref().take(expected.len()).collect();
    assert_eq!(heard, expected);
    assert_eq!(lines.next().as_deref(), Some("DELETE"));
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut child, lines) = watch(&["--prefix", "fo", "--rev", "2", "-o", "json"]);
    let first: Vec<String> = lines.take(2).collect();
    assert!(first[0].contains("\"notice\":\"created\""), "{first:?}");
    assert!(first[1].contains("\"type\":\"PUT\""), "{first:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let script = "echo $LEASEHOLD_WATCH_EVENT_TYPE $LEASEHOLD_WATCH_KEY $LEASEHOLD_WATCH_VALUE";
    let (mut child, lines) = watch(&["foo", "--rev", "3", "--", "sh", "-c", script]);
    let heard: Vec<String> = lines.take(2).collect();
    assert_eq!(heard, ["PUT foo bar2", "DELETE foo "].map(str::trim_end));
    child.kill().unwrap();
    child.wait().unwrap();
    run(&["put", "foo", "bar3"]);
    run(&["compaction", "4"]);
    let (code, _, stderr) = cluster.cli(&["watch", "foo", "--rev", "2"]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains('4') && stderr.contains("compact"),
        "{stderr}"
    );
}
