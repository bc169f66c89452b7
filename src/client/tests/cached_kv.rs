//! The cache, beside a node with a store that watches it: what is told of its age must be true, whatever
//! becomes of the watch.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::store::Store;
use super::*;
use crate::api::{TxnOp, WatchMessage, WatchRequest};
use crate::client::recipes::{CacheAnswer, CacheOptions, CacheView, CachedKv};
use crate::clock::SystemClock;
use crate::time::Clock;
use crate::transport::Connection;

/// Far longer than a test runs.
const AGES: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(20);

/// A leader whose watches can be behind.
struct Watchable {
    address: String,
    listener: Arc<ClientListener>,
    shared: Arc<Node>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Node {
    store: Arc<Mutex<Store>>,
    /// Watches are told nothing new.
    lags: AtomicBool,
    /// No watch is opened, and those that are open end.
    refuses: AtomicBool,
    /// Asked for the progress of a watch.
    asks: Mutex<BTreeMap<u64, UnboundedSender<()>>>,
    /// Reads that may be answered from an old state.
    stale: AtomicUsize,
    /// Reads of one key, of which most tell the age of a cache.
    reads: AtomicUsize,
}

impl Drop for Watchable {
    fn drop(&mut self) {
        self.listener.close(CloseCode::Stopping);
        self.task.abort();
    }
}

fn watchable(authority: &Authority) -> Watchable {
    let config = ListenerConfig {
        member_id: id_of("n1"),
        limits: LIMITS,
        admission: Admission::DEFAULT,
        introduction: Arc::<Says>::default(),
    };
    let tls = authority.node(CLUSTER, "n1");
    let stats = Arc::new(TransportStats::default());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Arc::new(ClientListener::bind(address, &tls, config, stats).unwrap());
    let shared = Arc::new(Node::default());
    let (accepting, node) = (Arc::clone(&listener), Arc::clone(&shared));
    let task = tokio::spawn(async move {
        while let Some(mut connection) = accepting.accept().await {
            let node = Arc::clone(&node);
            tokio::spawn(async move {
                let of = connection.connection().clone();
                while let Ok(stream) = connection.accept_stream().await {
                    tokio::spawn(listen(stream, of.clone(), Arc::clone(&node)));
                }
            });
        }
    });
    Watchable {
        address: listener.local_address().unwrap().to_string(),
        listener,
        shared,
        task,
    }
}

async fn listen(stream: FrameStream, connection: Connection, node: Arc<Node>) {
    let (mut sender, mut receiver) = stream.split();
    let mut frames = Vec::new();
    while receiver.read_batch(&mut frames).await.is_ok() {
        for frame in frames.drain(..) {
            let call = receiver.decode::<ClientFrame>(&frame).unwrap();
            let result = match &call.call.request {
                Request::Watch { .. } if node.refuses.load(Ordering::SeqCst) => {
                    Err(Error::not_applied(ErrorKind::NoLeader, "not now"))
                }
                Request::Watch { watch, .. }
                    if watch.start_revision <= node.store.lock().unwrap().compacted() =>
                {
                    let compact_revision = node.store.lock().unwrap().compacted();
                    let kind = ErrorKind::Compacted { compact_revision };
                    Err(Error::not_applied(kind, "it is compacted"))
                }
                Request::Watch { watch_id, watch } => {
                    let (ask, asked) = unbounded_channel();
                    node.asks.lock().unwrap().insert(*watch_id, ask);
                    let watch = (*watch_id, watch.clone());
                    tokio::spawn(tell(connection.clone(), watch, asked, Arc::clone(&node)));
                    node.store.lock().unwrap().answer("n1", &call)
                }
                Request::WatchProgress { watch_id } => {
                    if let Some(ask) = node.asks.lock().unwrap().get(watch_id) {
                        let _ = ask.send(());
                    }
                    answer("n1", &call)
                }
                request => {
                    let is_read = matches!(request, Request::Range(_));
                    node.reads.fetch_add(usize::from(is_read), Ordering::SeqCst);
                    let is_stale = request.is_read()
                        && *request != Request::MemberList
                        && call.call.consistency != Consistency::Linearizable;
                    node.stale
                        .fetch_add(usize::from(is_stale), Ordering::SeqCst);
                    node.store.lock().unwrap().answer("n1", &call)
                }
            };
            let mut out = BytesMut::new();
            encode(&reply_to(&call, result), &LIMITS, &mut out).unwrap();
            if sender.write(out.freeze()).await.is_err() {
                return;
            }
        }
    }
}

/// Tells a watch what happens, once it may.
async fn tell(
    connection: Connection,
    (watch_id, watch): (u64, WatchRequest),
    mut asked: UnboundedReceiver<()>,
    node: Arc<Node>,
) {
    let mut stream = connection.open_sender(0).await.unwrap();
    let revision = node.store.lock().unwrap().revision();
    let mut next = watch.start_revision;
    let mut messages = vec![WatchMessage::Created { watch_id, revision }];
    loop {
        let is_over = {
            // What is set before a change is known to whoever sees the change.
            let store = node.store.lock().unwrap();
            let is_over = node.refuses.load(Ordering::SeqCst);
            let lags = is_over || node.lags.load(Ordering::SeqCst);
            while !lags && next <= store.revision() {
                let events = store.changes(next, &watch);
                messages.extend((!events.is_empty()).then_some(WatchMessage::Events {
                    revision: next,
                    is_partial: false,
                    events,
                }));
                next += 1;
            }
            is_over
        };
        if is_over {
            return stream.finish();
        }
        if asked.try_recv().is_ok() {
            let revision = next - 1;
            messages.push(WatchMessage::Progress { revision });
        }
        for message in messages.drain(..) {
            let mut out = BytesMut::new();
            encode(&message, &LIMITS, &mut out).unwrap();
            if stream.write(out.freeze()).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Watchable {
    fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.shared.store.lock().unwrap()
    }

    /// Waits until the age was checked so often again.
    async fn checks(&self, count: usize) {
        let until = self.shared.reads.load(Ordering::SeqCst) + count;
        while self.shared.reads.load(Ordering::SeqCst) < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn cache(&self, authority: &Authority) -> (Client, CachedKv) {
        let endpoints = [self.address.clone()];
        let stale = options(authority).with_consistency(Consistency::Serializable);
        let client = Client::connect(endpoints, Some(stale)).await.unwrap();
        let often = CacheOptions::new().with_check_interval(SOON);
        let cache = CachedKv::open(&client, "c/", Some(often)).await.unwrap();
        (client, cache)
    }
}

fn text(answer: &CacheAnswer) -> &str {
    let value = answer.value().map(|value| &value[..]).unwrap_or_default();
    std::str::from_utf8(value).unwrap()
}

fn words(view: &CacheView) -> String {
    let word = |kv: &KeyValue| {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        format!("{}={}", text(&kv.key), text(&kv.value))
    };
    view.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Waits until the cache has this value of a key.
async fn until(cache: &CachedKv, key: &str, value: &str) -> CacheAnswer {
    loop {
        let answer = cache.get(key);
        if text(&answer) == value {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_cache_has_what_was_there_and_what_becomes_of_it() {
    run(async {
        let authority = Authority::new();
        let node = watchable(&authority);
        node.store().put("c/a", "1");
        node.store().put("d", "beside");
        let (_, cache) = node.cache(&authority).await;
        let answer = cache.get("c/a");
        assert_eq!((text(&answer), answer.revision), ("1", 3));
        assert_eq!(cache.get("d").kv, None);
        let first = cache.view();
        assert_eq!(words(&first), "c/a=1");

        let txn = TxnRequest::new().and_then([TxnOp::put("c/b", "2"), TxnOp::delete("c/a")]);
        node.store().write(&txn);
        let second = cache.changed(&first).await.unwrap();
        assert_eq!((words(&second), second.revision()), ("c/b=2".into(), 4));
        assert_eq!(words(&first), "c/a=1", "a view does not change");
        // Nothing of it has changed, and yet it is known to be as new as that.
        node.store().put("d", "beside, again");
        while cache.get("c/b").revision < 5 {
            node.checks(1).await;
        }
        assert_eq!(cache.view().revision(), 5);
        let waits = tokio::time::timeout(SOON, cache.changed(&second));
        assert!(waits.await.is_err(), "nothing of it has changed");
        assert_eq!(cache.trouble(), None);
        assert_eq!(cache.prefix(), "c/");
        assert_eq!((second.len(), second.is_empty()), (1, false));
        assert_eq!(second.get("c/b").unwrap().value, "2");
        assert_eq!(text(&cache.read("c/b").await.unwrap()), "2");
        assert_eq!(node.shared.stale.load(Ordering::SeqCst), 0);
    });
}

/// The watch of a node that is behind looks like any other. What is told of the age is true all the same.
#[cfg(all(test, feature = "metrics", feature = "server"))]
#[test]
fn the_age_of_a_cache_is_told_each_time_that_it_is_found_out() {
    measured::measuring(|told| async move {
        let authority = Authority::new();
        let node = watchable(&authority);
        let (_, cache) = node.cache(&authority).await;
        let count = "leasehold_client_cache_age_seconds_count";
        told.until(count, |found_out| found_out >= 2.0).await;
        drop(cache);
    });
}

#[test]
fn a_cache_that_is_behind_knows_that_it_ages() {
    run(async {
        let authority = Authority::new();
        let node = watchable(&authority);
        node.store().put("c/k", "old");
        let (_, cache) = node.cache(&authority).await;
        node.shared.lags.store(true, Ordering::SeqCst);
        // The store stands still, so nothing is missing.
        let before = cache.view();
        node.checks(3).await;
        while cache.view().age() >= before.age() {
            node.checks(1).await;
        }

        let began = SystemClock.now();
        node.store().put("c/k", "new");
        node.checks(5).await;
        let passed = SystemClock.now().at_least_since(began);
        let answer = cache.get("c/k");
        assert_eq!(text(&answer), "old");
        assert!(answer.age >= passed, "{answer:?} after {passed:?}");
        let error = cache.get_within("c/k", passed / 2).unwrap_err();
        let ErrorKind::TooOld { age_ms } = error.kind else {
            panic!("{error}");
        };
        assert!(u128::from(age_ms) >= passed.as_millis());
        assert_eq!(error.outcome, Outcome::NotApplied);
        assert_eq!(text(&cache.get_within("c/k", AGES).unwrap()), "old");
        // It goes through where that is too old, and only there.
        let reads = || node.shared.reads.load(Ordering::SeqCst);
        let found = cache.get_or_read("c/k", passed / 2).await.unwrap();
        assert_eq!((text(&found), found.revision), ("new", 3));
        // And what it has told of a key it does not take back, though a view is of one revision.
        let found = cache.get_or_read("c/k", AGES).await.unwrap();
        assert_eq!((text(&found), found.revision), ("new", 3));
        assert_eq!(text(&cache.get("c/k")), "new");
        assert_eq!(cache.view().get("c/k").unwrap().value, "old");
        assert_eq!(cache.read("c/none").await.unwrap().kv, None);
        node.store().put("c/none", "there");
        assert_eq!(cache.get("c/none").kv, None);
        assert_eq!(text(&cache.read("c/none").await.unwrap()), "there");
        assert_eq!(text(&cache.get("c/none")), "there");
        node.store().delete("c/none");
        assert_eq!(cache.read("c/none").await.unwrap().kv, None);
        assert_eq!(cache.get("c/none").kv, None);
        assert_eq!(text(&cache.read("c/k").await.unwrap()), "new");
        let outside = cache.read("d").await.unwrap_err();
        assert_eq!(outside.kind, ErrorKind::InvalidArgument);
        assert!(reads() > 0);

        node.shared.lags.store(false, Ordering::SeqCst);
        node.store().put("c/k", "newest");
        let answer = until(&cache, "c/k", "newest").await;
        assert_eq!(answer.revision, 6);
        assert_eq!(
            cache.get("c/none").revision,
            6,
            "the copy has reached all that was told"
        );
        // The oldest check that it has reached makes it younger than it was.
        while cache.get("c/k").age >= answer.age.max(passed) {
            node.checks(1).await;
        }
    });
}

/// What the watch has missed while it was away is compacted: the cache is read anew, and until then ages.
#[test]
fn a_cache_that_was_cut_off_is_filled_again_and_shows_no_age_that_is_not_true() {
    run(async {
        let authority = Authority::new();
        let node = watchable(&authority);
        node.store().put("c/a", "1");
        node.store().put("c/b", "1");
        let (client, cache) = node.cache(&authority).await;
        let first = cache.view();
        node.shared.refuses.store(true, Ordering::SeqCst);
        let began = SystemClock.now();
        node.store().delete("c/a");
        let last = node.store().put("c/b", "2");
        node.store().compact(last);
        while cache.trouble().is_none() {
            node.checks(1).await;
        }
        let passed = SystemClock.now().at_least_since(began);
        let answer = cache.get("c/a");
        assert_eq!(text(&answer), "1", "nothing has told it of the end");
        assert!(answer.age >= passed, "{answer:?} after {passed:?}");
        assert!(cache.get_within("c/a", passed / 2).is_err());

        node.shared.refuses.store(false, Ordering::SeqCst);
        let second = cache.changed(&first).await.unwrap();
        assert_eq!((words(&second), second.revision()), ("c/b=2".into(), last));
        node.store().put("c/b", "3");
        let third = cache.changed(&second).await.unwrap();
        assert_eq!(words(&third), "c/b=3");
        while cache.trouble().is_some() {
            node.checks(1).await;
        }

        client.close().await;
        let error = cache.changed(&third).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
        let age = cache.get("c/b").age;
        assert_eq!(text(&cache.get("c/b")), "3");
        assert!(cache.get("c/b").age >= age);
    });
}
