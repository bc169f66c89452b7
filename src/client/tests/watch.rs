//! Watches against nodes that tell what a test wrote for them, and break off where it says so: what
//! the reader is told must be the same as if nothing had happened, but for the word that it did.

use std::iter::zip;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::api::{Event, EventKind, WatchMessage, WatchRequest};
use crate::client::deadline::deadline_after;
use crate::client::{WatchEvent, WatchOptions, Watcher};
use crate::transport::Connection;

/// What is told to the next watch that is opened, at whichever node.
struct Telling {
    /// The revision that the node says it has, or why it opens no watch.
    opened: Result<i64, Error>,
    messages: Vec<WatchMessage>,
    then: Then,
}

/// What comes after the messages.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// Nothing, for as long as the watcher likes.
    Silence,
    /// The end of the stream, without a word.
    End,
    /// The end of the connection.
    Cut,
    /// The same before the stream has begun, though the watch was said to be open.
    Nowhere,
}

/// What nodes share: what they are to tell, and what they were asked.
#[derive(Default)]
struct Script {
    tellings: Mutex<VecDeque<Telling>>,
    asked: Mutex<Vec<(&'static str, WatchRequest)>>,
    canceled: Mutex<Vec<u64>>,
    progress: Mutex<Vec<u64>>,
    /// How often it was asked whether a node is there.
    presence: AtomicUsize,
}

impl Script {
    fn new(tellings: impl IntoIterator<Item = Telling>) -> Arc<Self> {
        let script = Self::default();
        script.tellings.lock().unwrap().extend(tellings);
        Arc::new(script)
    }

    /// Where watches began, in the order they were asked for; 0 for "from now on".
    fn starts(&self) -> Vec<i64> {
        let asked = self.asked.lock().unwrap();
        asked
            .iter()
            .map(|(_, watch)| watch.start_revision)
            .collect()
    }

    fn nodes(&self) -> Vec<&'static str> {
        let asked = self.asked.lock().unwrap();
        asked.iter().map(|(node, _)| *node).collect()
    }
}

/// A node that follows a script.
struct Teller {
    address: String,
    listener: Arc<ClientListener>,
    task: JoinHandle<()>,
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.listener.close(CloseCode::Stopping);
        self.task.abort();
    }
}

fn teller(authority: &Authority, name: &'static str, script: &Arc<Script>) -> Teller {
    teller_from(None, authority, name, script)
}

/// A node that comes from this bootstrap of its cluster.
fn teller_from(
    bootstrap: Option<BootstrapId>,
    authority: &Authority,
    name: &'static str,
    script: &Arc<Script>,
) -> Teller {
    let config = ListenerConfig {
        member_id: id_of(name),
        limits: LIMITS,
        admission: Admission::DEFAULT,
        introduction: Arc::new(Says::comes_from(bootstrap)),
    };
    let tls = authority.node(CLUSTER, name);
    let stats = Arc::new(TransportStats::default());
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Arc::new(ClientListener::bind(address, &tls, config, stats).unwrap());
    let address = listener.local_address().unwrap().to_string();
    let (accepting, script) = (Arc::clone(&listener), Arc::clone(script));
    let task = tokio::spawn(async move {
        while let Some(mut connection) = accepting.accept().await {
            let script = Arc::clone(&script);
            tokio::spawn(async move {
                let call = Arc::new(Caller {
                    connection: connection.connection().clone(),
                    is_ending: AtomicBool::new(false),
                });
                while let Ok(stream) = connection.accept_stream().await {
                    tokio::spawn(listen(name, stream, Arc::clone(&call), Arc::clone(&script)));
                }
            });
        }
    });
    Teller {
        address,
        listener,
        task,
    }
}

/// A connection of a client.
struct Caller {
    connection: Connection,
    /// No further watch is opened on it.
    is_ending: AtomicBool,
}

/// Answers the calls of a stream.
async fn listen(name: &'static str, stream: FrameStream, caller: Arc<Caller>, script: Arc<Script>) {
    let (mut sender, mut receiver) = stream.split();
    let mut frames = Vec::new();
    while receiver.read_batch(&mut frames).await.is_ok() {
        for frame in frames.drain(..) {
            let call = receiver.decode::<ClientFrame>(&frame).unwrap();
            let mut result = answer(name, &call);
            let mut telling = None;
            match &call.call.request {
                Request::Watch { .. } if caller.is_ending.load(Ordering::SeqCst) => return,
                Request::Watch { watch_id, watch } => {
                    let next = script.tellings.lock().unwrap().pop_front();
                    let next = next.expect("the script goes on");
                    script.asked.lock().unwrap().push((name, watch.clone()));
                    match &next.opened {
                        Ok(revision) => {
                            result.as_mut().unwrap().header.revision = *revision;
                            telling = Some((*watch_id, *revision, next));
                        }
                        Err(error) => result = Err(error.clone()),
                    }
                }
                Request::WatchCancel { watch_id } => {
                    script.canceled.lock().unwrap().push(*watch_id);
                }
                Request::WatchProgress { watch_id } => {
                    script.progress.lock().unwrap().push(*watch_id);
                }
                Request::Range(range) if range.key == "\0" && range.is_count_only() => {
                    script.presence.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
            let mut out = BytesMut::new();
            encode(&reply_to(&call, result), &LIMITS, &mut out).unwrap();
            if sender.write(out.freeze()).await.is_err() {
                return;
            }
            if let Some((watch_id, revision, telling)) = telling {
                if telling.then == Then::Nowhere {
                    sender.finish();
                    sender.arrived().await;
                    return caller.connection.close(CloseCode::Stopping);
                }
                tokio::spawn(tell(Arc::clone(&caller), watch_id, revision, telling));
            }
        }
    }
}

/// Tells a watch what is written for it.
async fn tell(caller: Arc<Caller>, watch_id: u64, revision: i64, telling: Telling) {
    let connection = &caller.connection;
    let mut stream = connection.open_sender(0).await.unwrap();
    if telling.then == Then::Cut {
        caller.is_ending.store(true, Ordering::SeqCst);
    }
    let created = WatchMessage::Created { watch_id, revision };
    for message in [created].iter().chain(&telling.messages) {
        let mut out = BytesMut::new();
        encode(message, &LIMITS, &mut out).unwrap();
        if stream.write(out.freeze()).await.is_err() {
            return;
        }
    }
    match telling.then {
        Then::Silence => {
            let _open = stream;
            let _ = connection.lost().await;
        }
        Then::End => stream.finish(),
        Then::Cut => {
            // A closed connection sends nothing again.
            stream.finish();
            stream.arrived().await;
            connection.close(CloseCode::Stopping);
        }
        Then::Nowhere => unreachable!("there is no stream"),
    }
}

fn telling(messages: impl IntoIterator<Item = WatchMessage>, then: Then) -> Telling {
    Telling {
        opened: Ok(4),
        messages: messages.into_iter().collect(),
        then,
    }
}

fn refusing(kind: ErrorKind) -> Telling {
    Telling {
        opened: Err(Error::not_applied(kind, "the script says no")),
        messages: Vec::new(),
        then: Then::End,
    }
}

/// A put of `key` at `revision`.
fn put_of(key: &'static str, revision: i64) -> Event {
    Event {
        kind: EventKind::Put,
        kv: KeyValue {
            key: key.into(),
            mod_revision: revision,
            ..KeyValue::default()
        },
        prev_kv: None,
    }
}

/// A whole revision.
fn change(revision: i64) -> WatchMessage {
    part(revision, "k", false)
}

fn part(revision: i64, key: &'static str, is_partial: bool) -> WatchMessage {
    WatchMessage::Events {
        revision,
        is_partial,
        events: vec![put_of(key, revision)],
    }
}

fn canceled(kind: ErrorKind, resume_revision: Option<i64>) -> WatchMessage {
    WatchMessage::Canceled {
        error: Error::not_applied(kind, "the script has enough"),
        resume_revision,
    }
}

/// What the reader is told next, in a few words; `None` at the end.
async fn word(watcher: &mut Watcher) -> Option<String> {
    Some(match watcher.next().await? {
        Ok(WatchEvent::Created { revision }) => format!("created at {revision}"),
        Ok(WatchEvent::State { kvs }) => format!("state of {}", kvs.len()),
        Ok(WatchEvent::Synced { revision }) => format!("synced {revision}"),
        Ok(WatchEvent::Events { revision, events }) => {
            let text = |event: &Event| String::from_utf8_lossy(&event.kv.key).into_owned();
            let keys: Vec<String> = events.iter().map(text).collect();
            format!("{revision} {}", keys.join(" "))
        }
        Ok(WatchEvent::Progress { revision }) => format!("progress {revision}"),
        Ok(WatchEvent::Resumed { from, cause }) => format!("resumed {from} {}", cause.code()),
        Ok(WatchEvent::Restarted { cause }) => format!("restarted {}", cause.code()),
        Err(error) => format!("over {}", error.code()),
    })
}

/// The next `count` words.
async fn words(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut heard = Vec::new();
    while heard.len() < count {
        heard.push(word(watcher).await.expect("the watch goes on"));
    }
    heard
}

async fn watch(authority: &Authority, nodes: &[&Teller], options: WatchOptions) -> Watcher {
    let endpoints: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    let connecting = Client::connect(endpoints, Some(super::options(authority)));
    let client = connecting.await.unwrap();
    client.watch("k", Some(options)).await.unwrap()
}

fn from(revision: i64) -> WatchOptions {
    WatchOptions::new().with_start_revision(revision)
}

const LOST: &str = "LH-CONNECTION-LOST";

#[test]
fn a_watch_goes_on_after_a_lost_connection_with_what_comes_next() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5), change(7)], Then::Cut),
            telling([change(8)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(
            words(&mut watcher, 5).await,
            [
                "created at 4",
                "5 k",
                "7 k",
                &format!("resumed 8 {LOST}"),
                "8 k"
            ]
        );
        assert_eq!(script.starts(), [5, 8]);
        assert_eq!(watcher.revision(), 8);
    });
}

#[cfg(all(test, feature = "metrics", feature = "server"))]
#[test]
fn watches_are_counted_while_they_are_open_and_so_are_their_resumptions() {
    measured::measuring(|told| async move {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5)], Then::Cut),
            telling([change(6)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(told.value("leasehold_client_watches"), 1.0);
        words(&mut watcher, 4).await;
        let resumptions = "leasehold_client_watch_resumptions_total";
        assert_eq!(told.value(resumptions), 1.0);
        drop(watcher);
        told.until("leasehold_client_watches", |open| open == 0.0)
            .await;
    });
}

/// A25: the revisions of another bootstrap are other changes. Which of the nodes is asked next is not fixed, so
/// what the watch is told is judged by which were asked.
#[test]
fn a_watch_never_goes_on_in_another_bootstrap_of_its_cluster() {
    run(async {
        let (one, other) = (Some(BootstrapId(1)), Some(BootstrapId(2)));
        // One that does not say of which bootstrap it is is no reason to end, nor to forget what is known.
        for histories in [[None, one, other], [one, None, other], [one, None, None]] {
            let ends = histories.contains(&other);
            let mut has_ended = false;
            // Going back to the node before tells nothing of two bootstraps.
            for _ in 0..100 {
                has_ended |= watch_of(histories).await;
                if has_ended == ends {
                    break;
                }
            }
            assert_eq!(has_ended, ends, "{histories:?}");
        }
    });
}

/// Watches at three nodes of these bootstraps, each of which is cut off or falls silent, and judges what is
/// told. Whether the watch has ended because it met another bootstrap.
async fn watch_of(histories: [Option<BootstrapId>; 3]) -> bool {
    let authority = Authority::new();
    let script = Script::new([
        telling([], Then::Cut),
        telling([change(5)], Then::Cut),
        telling([], Then::Silence),
    ]);
    let names = ["n1", "n2", "n3"];
    let nodes: Vec<Teller> = zip(histories, names)
        .map(|(history, name)| teller_from(history, &authority, name, &script))
        .collect();
    let nodes: Vec<&Teller> = nodes.iter().collect();
    let mut watcher = watch(&authority, &nodes, from(5)).await;
    let mut told = Vec::new();
    while told.len() < 4 {
        let Some(word) = word(&mut watcher).await else {
            break;
        };
        told.push(word);
    }
    let asked = script.nodes();
    let (resumed, again) = (format!("resumed 5 {LOST}"), format!("resumed 6 {LOST}"));
    let by_turn = [vec!["created at 4"], vec![&resumed, "5 k"], vec![&again]];
    let (mut expected, mut known) = (Vec::new(), None);
    for (node, words) in zip(&asked, by_turn) {
        let found = names.iter().position(|name| name == node);
        let found = histories[found.unwrap()];
        known = known.or(found);
        if found.is_some() && found != known {
            expected.push("over LH-CLUSTER-MISMATCH");
            break;
        }
        expected.extend(words);
    }
    assert_eq!(told, expected, "{histories:?}, asked {asked:?}");
    told.last().is_some_and(|word| word.starts_with("over"))
}

#[test]
fn a_watch_from_now_on_that_was_told_nothing_goes_on_where_it_began() {
    run(async {
        let authority = Authority::new();
        let first = Telling {
            opened: Ok(40),
            ..telling([], Then::End)
        };
        // The next node is ahead: what happened meanwhile is history to it.
        let second = Telling {
            opened: Ok(50),
            ..telling([change(41)], Then::Silence)
        };
        let script = Script::new([first, second]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], WatchOptions::new()).await;
        assert_eq!(
            words(&mut watcher, 3).await,
            ["created at 40", &format!("resumed 41 {LOST}"), "41 k"]
        );
        assert_eq!(script.starts(), [0, 41]);
    });
}

#[test]
fn a_revision_that_was_cut_in_the_middle_is_told_once_and_whole() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5), part(6, "a", true)], Then::Cut),
            telling([part(6, "a", true), part(6, "b", false)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(
            words(&mut watcher, 4).await[1..],
            ["5 k", &format!("resumed 6 {LOST}"), "6 a b"]
        );
        assert_eq!(script.starts(), [5, 6]);
    });
}

#[test]
fn a_watch_moves_to_another_node_when_its_own_is_gone_or_shows_nothing_any_more() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            // As a node does that stops, or whose leader is gone.
            telling([change(5), canceled(ErrorKind::NoLeader, None)], Then::End),
            telling(
                [change(6), canceled(ErrorKind::Unavailable, None)],
                Then::End,
            ),
            telling([change(7), canceled(ErrorKind::Corrupt, None)], Then::End),
            telling([change(8)], Then::Cut),
            telling([change(9)], Then::Silence),
        ]);
        let (one, two) = (
            teller(&authority, "n1", &script),
            teller(&authority, "n2", &script),
        );
        let addresses = [&one, &two].map(|node| node.address.clone());
        let connecting = Client::connect(addresses.clone(), Some(options(&authority)));
        let client = connecting.await.unwrap();
        // Where only one is connected, that one is asked again: it is there.
        for address in &addresses {
            let linked = client
                .inner
                .router
                .pool()
                .link(address, deadline_after(PATIENCE));
            linked.await.unwrap();
        }
        let mut watcher = client.watch("k", Some(from(5))).await.unwrap();
        assert_eq!(
            words(&mut watcher, 10).await[1..],
            [
                "5 k",
                "resumed 6 LH-NO-LEADER",
                "6 k",
                "resumed 7 LH-UNAVAILABLE",
                "7 k",
                "resumed 8 LH-CORRUPT",
                "8 k",
                &format!("resumed 9 {LOST}"),
                "9 k"
            ]
        );
        assert_eq!(script.starts(), [5, 6, 7, 8, 9]);
        // Whoever failed is not asked next.
        let nodes = script.nodes();
        let is_other = |pair: &[&str]| pair[0] != pair[1];
        assert!(nodes.windows(2).all(is_other), "{nodes:?}");
    });
}

#[test]
fn a_watch_whose_stream_never_comes_is_opened_again_once_its_connection_is_over() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([], Then::Nowhere),
            telling([change(5)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(words(&mut watcher, 2).await, ["created at 4", "5 k"]);
        assert_eq!(script.starts(), [5, 5]);
    });
}

#[test]
fn a_node_that_is_dead_is_left_for_one_that_lives() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5)], Then::Silence),
            telling([change(6)], Then::Silence),
        ]);
        let names = ["n1", "n2"];
        let mut nodes = names.map(|name| Some(teller(&authority, name, &script)));
        let living: Vec<&Teller> = nodes.iter().flatten().collect();
        let mut watcher = watch(&authority, &living, from(5)).await;
        words(&mut watcher, 2).await;
        let served = names.iter().position(|name| script.nodes()[0] == *name);
        nodes[served.unwrap()] = None;
        assert_eq!(
            words(&mut watcher, 2).await,
            [&format!("resumed 6 {LOST}"), "6 k"]
        );
        assert_eq!(script.starts(), [5, 6]);
        assert_ne!(script.nodes()[1], script.nodes()[0]);
    });
}

#[test]
fn a_node_that_falls_silent_is_left_though_nobody_waits_for_an_answer() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5)], Then::Silence),
            telling([change(6)], Then::Silence),
        ]);
        let nodes = ["n1", "n2"].map(|name| teller(&authority, name, &script));
        let fronts = [Relay::start().await, Relay::start().await];
        for (front, node) in fronts.iter().zip(&nodes) {
            front.leads_to(&node.address);
        }
        let endpoints = fronts.each_ref().map(|front| front.address.clone());
        let client = Client::connect(endpoints, Some(options(&authority)));
        let client = client.await.unwrap();
        let mut watcher = client.watch("k", Some(from(5))).await.unwrap();
        words(&mut watcher, 2).await;
        let served = usize::from(script.nodes()[0] == "n2");
        fronts[served].cut();
        let cause = match watcher.next().await.unwrap().unwrap() {
            WatchEvent::Resumed { from: 6, cause } => cause,
            other => panic!("{other:?}"),
        };
        // And not: after ten seconds, that the connection was idle.
        assert!(cause.detail.contains("stopped answering"), "{cause}");
        assert_eq!(words(&mut watcher, 1).await, ["6 k"]);
        assert_ne!(script.nodes()[1], script.nodes()[0]);
    });
}

/// Without that, a node that is gone would be noticed once the transport sends something.
#[test]
fn an_idle_watch_asks_its_node_whether_it_is_there() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        let script = Script::new([telling([change(5)], Then::Silence)]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        words(&mut watcher, 2).await;
        while script.presence.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[test]
fn a_watch_that_was_too_slow_goes_on_where_the_node_says_and_is_told_nothing_twice() {
    run(async {
        let authority = Authority::new();
        let slow = |resume| canceled(ErrorKind::SlowWatcher, Some(resume));
        let script = Script::new([
            telling([change(5), slow(6)], Then::End),
            // Nothing that is watched happened up to 8.
            telling([change(6), slow(9)], Then::End),
            // A node that says less than it has told is not believed.
            telling([change(9), slow(5)], Then::End),
            telling([change(10)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(
            words(&mut watcher, 8).await[1..],
            [
                "5 k",
                "resumed 6 LH-SLOW-WATCHER",
                "6 k",
                "resumed 9 LH-SLOW-WATCHER",
                "9 k",
                "resumed 10 LH-SLOW-WATCHER",
                "10 k"
            ]
        );
        assert_eq!(script.starts(), [5, 6, 9, 10]);
    });
}

#[test]
fn history_that_is_gone_ends_a_watch_with_a_word_and_leaves_no_silent_gap() {
    run(async {
        let authority = Authority::new();
        let gone = || ErrorKind::Compacted {
            compact_revision: 20,
        };
        // It falls behind a compaction while it is open, or while it is being opened again.
        let first = [
            telling([change(5), canceled(gone(), None)], Then::End),
            telling([change(5)], Then::Cut),
        ];
        for first in first {
            let script = Script::new([first, refusing(gone()), telling([change(21)], Then::End)]);
            let node = teller(&authority, "n1", &script);
            let mut watcher = watch(&authority, &[&node], from(5)).await;
            let last = loop {
                match watcher.next().await.expect("it ends with a word") {
                    Ok(WatchEvent::Created { .. }) => {}
                    Ok(WatchEvent::Events { revision, .. }) => assert_eq!(revision, 5),
                    Ok(other) => panic!("{other:?}"),
                    Err(error) => break error,
                }
            };
            assert_eq!(last.kind, gone());
            assert_eq!(watcher.next().await, None);
            assert_eq!(watcher.next().await, None, "and stays over");
            assert_eq!(watcher.revision(), 5);
        }
    });
}

#[test]
fn many_interruptions_in_a_row_leave_no_gap_and_repeat_nothing() {
    run(async {
        const CUTS: i64 = 24;
        let authority = Authority::new();
        let endings = [Then::End, Then::Cut];
        let tellings = (0..CUTS).flat_map(|round| {
            let first = 5 + 2 * round;
            let then = endings[usize::from(round % 6 == 0)];
            let mut told = vec![telling(
                [change(first), part(first + 1, "half", true)],
                then,
            )];
            match round % 4 {
                // Some attempts to open it again fail as well.
                1 => told.push(refusing(ErrorKind::Unavailable)),
                2 => told.push(refusing(ErrorKind::SlowDown { retry_after_ms: 1 })),
                _ => {}
            }
            told.push(telling([change(first + 1)], Then::End));
            told
        });
        let script = Script::new(tellings.chain([telling([], Then::Silence)]));
        let (one, two) = (
            teller(&authority, "n1", &script),
            teller(&authority, "n2", &script),
        );
        let mut watcher = watch(&authority, &[&one, &two], from(5)).await;
        let (mut next, mut resumed) = (5, 0);
        while resumed < 2 * CUTS {
            match watcher.next().await.unwrap().unwrap() {
                WatchEvent::Created { .. } => {}
                WatchEvent::Events { revision, events } => {
                    assert_eq!((revision, events), (next, vec![put_of("k", next)]));
                    next += 1;
                }
                WatchEvent::Resumed { from, .. } => {
                    assert_eq!(from, next);
                    resumed += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(next, 5 + 2 * CUTS);
        let starts = script.starts();
        assert!(starts.is_sorted(), "{starts:?}");
    });
}

#[test]
fn a_node_that_tells_something_twice_is_left_and_not_believed() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5), change(6), change(6)], Then::Silence),
            telling([change(5)], Then::Silence),
            telling([change(7)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        assert_eq!(
            words(&mut watcher, 6).await[1..],
            [
                "5 k",
                "6 k",
                "resumed 7 LH-INTERNAL",
                "resumed 7 LH-INTERNAL",
                "7 k"
            ]
        );
    });
}

#[test]
fn what_progress_has_told_is_not_asked_for_again() {
    run(async {
        let authority = Authority::new();
        let progress = |revision| WatchMessage::Progress { revision };
        let script = Script::new([
            telling([change(5), progress(20), progress(19)], Then::Cut),
            telling([progress(30)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let mut watcher = watch(&authority, &[&node], from(5)).await;
        let heard = words(&mut watcher, 6).await;
        assert_eq!(heard[4..], [&format!("resumed 21 {LOST}"), "progress 30"]);
        assert_eq!(script.starts(), [5, 21]);
        // It has a second, which a machine that is busy elsewhere may need longer than.
        let mut requests = 1;
        while watcher.request_progress().await.is_err() {
            requests += 1;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let asked = script.progress.lock().unwrap().len();
        assert!((1..=requests).contains(&asked), "{asked} of {requests}");
    });
}

#[test]
fn an_initial_state_that_was_cut_begins_anew_and_a_whole_one_does_not() {
    run(async {
        let authority = Authority::new();
        let state = || WatchMessage::State {
            kvs: vec![KeyValue::default(); 2],
        };
        let synced = |revision| WatchMessage::Synced { revision };
        let script = Script::new([
            telling([state()], Then::Cut),
            telling([state(), canceled(ErrorKind::SlowWatcher, None)], Then::End),
            telling([state(), synced(8), change(9)], Then::Cut),
            telling([change(10)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let options = WatchOptions::new().with_initial_state();
        let mut watcher = watch(&authority, &[&node], options).await;
        assert_eq!(
            words(&mut watcher, 10).await[1..],
            [
                "state of 2",
                &format!("restarted {LOST}"),
                "state of 2",
                "restarted LH-SLOW-WATCHER",
                "state of 2",
                "synced 8",
                "9 k",
                &format!("resumed 10 {LOST}"),
                "10 k"
            ]
        );
        let asked = script.asked.lock().unwrap().clone();
        let shape: Vec<(i64, bool)> = asked
            .iter()
            .map(|(_, watch)| (watch.start_revision, watch.initial_state))
            .collect();
        assert_eq!(shape, [(0, true), (0, true), (0, true), (10, false)]);
    });
}

#[test]
fn what_is_watched_is_asked_for_in_the_same_way_each_time() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([
            telling([change(5)], Then::End),
            telling([change(6)], Then::Silence),
        ]);
        let node = teller(&authority, "n1", &script);
        let options = from(5)
            .with_range("z")
            .with_prev_kv()
            .with_no_delete()
            .with_progress_notify();
        let mut watcher = watch(&authority, &[&node], options).await;
        words(&mut watcher, 4).await;
        let asked = script.asked.lock().unwrap().clone();
        for ((_, watch), start_revision) in asked.iter().zip([5, 6]) {
            let expected = WatchRequest {
                key: "k".into(),
                range: KeyRange::Until("z".into()),
                start_revision,
                prev_kv: true,
                no_delete: true,
                progress_notify: true,
                ..WatchRequest::default()
            };
            assert_eq!(*watch, expected);
        }
    });
}

#[test]
fn a_watch_that_is_cancelled_or_dropped_is_ended_at_its_node() {
    run(async {
        let authority = Authority::new();
        for is_cancelled in [true, false] {
            let script = Script::new([telling([change(5)], Then::Silence)]);
            let node = teller(&authority, "n1", &script);
            // It outlives the watch: one that goes with it takes the connection along.
            let client = Client::connect([node.address.clone()], Some(options(&authority)));
            let client = client.await.unwrap();
            let mut watcher = client.watch("k", Some(from(5))).await.unwrap();
            words(&mut watcher, 2).await;
            match is_cancelled {
                true => watcher.cancel(),
                false => drop(watcher),
            }
            // The patience of `run` ends this if the word never comes.
            while script.canceled.lock().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(*script.canceled.lock().unwrap(), [1]);
            assert_eq!(script.starts(), [5], "and it is not opened again");
        }
    });
}

#[test]
fn a_closed_client_ends_its_watches_with_a_word() {
    run(async {
        let authority = Authority::new();
        let script = Script::new([telling([change(5)], Then::Silence)]);
        let node = teller(&authority, "n1", &script);
        let endpoints = [node.address.clone()];
        let client = Client::connect(endpoints, Some(options(&authority)));
        let client = client.await.unwrap();
        let mut watcher = client.watch("k", Some(from(5))).await.unwrap();
        words(&mut watcher, 2).await;
        client.close().await;
        let last = watcher.next().await.unwrap().unwrap_err();
        assert_eq!(last.kind, ErrorKind::ConnectionLost);
        assert!(last.detail.contains("closed"), "{last}");
        assert_eq!(watcher.next().await, None);
        let refused = client.watch("k", None).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::ConnectionLost);
    });
}

#[test]
fn a_watch_that_cannot_be_opened_says_why() {
    run(async {
        let authority = Authority::new();
        let gone = ErrorKind::Compacted {
            compact_revision: 9,
        };
        let busy = || ErrorKind::SlowDown {
            retry_after_ms: 60_000,
        };
        for (kind, timeout) in [
            (gone, Duration::from_secs(20)),
            (ErrorKind::InvalidArgument, Duration::from_secs(20)),
            (busy(), Duration::from_secs(20)),
        ] {
            let script = Script::new([refusing(kind.clone())]);
            let node = teller(&authority, "n1", &script);
            let endpoints = [node.address.clone()];
            let client = Client::connect(endpoints, Some(options(&authority)));
            let client = client.await.unwrap();
            let options = from(5).with_timeout(timeout);
            let error = client.watch("k", Some(options)).await.unwrap_err();
            assert_eq!(error.kind, kind, "{error}");
            assert_eq!(script.starts(), [5], "it is asked once");
        }
    });
}
