//! The rules of watches one by one, and what people get wrong about etcd's.

use super::*;
use crate::api::{Outcome, PutRequest, TxnOp, TxnRequest};
use crate::kv::{Command, Operation};
use crate::types::Term;
use crate::watch::WireFormat;

impl Node {
    fn run(&mut self, operation: Operation) {
        let index = kv::progress(&self.store).unwrap().applied.index.next();
        let command = Command::Write {
            author: None,
            session: None,
            operation,
        };
        self.apply(LogId::new(index, Term(1)), Some(&command.encode()));
    }

    fn put(&mut self, key: &'static str, value: &'static str) {
        self.run(Operation::Put(PutRequest {
            key: key.into(),
            value: value.into(),
            ..PutRequest::default()
        }));
    }

    fn txn<const N: usize>(&mut self, ops: [TxnOp; N]) {
        self.run(Operation::Txn(TxnRequest::new().and_then(ops)));
    }

    fn compact(&mut self, revision: i64) {
        let request = crate::api::CompactionRequest {
            revision,
            physical: false,
        };
        self.run(Operation::Compact(request));
        self.sweep(usize::MAX);
    }
}

fn node() -> Node {
    Node::new(OPTIONS)
}

fn watch(key: &'static str) -> WatchRequest {
    WatchRequest {
        key: key.into(),
        ..WatchRequest::default()
    }
}

fn prefix(key: &'static str) -> WatchRequest {
    WatchRequest {
        range: KeyRange::Prefix,
        ..watch(key)
    }
}

fn from(start_revision: i64, request: WatchRequest) -> WatchRequest {
    WatchRequest {
        start_revision,
        ..request
    }
}

/// What events say, short enough to compare: `5:a=1,-b` is the put and the delete of revision 5.
fn told(events: &[WatcherEvent]) -> Vec<String> {
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let event = |event: &Event| {
        let key = text(&event.kv.key);
        let now = match event.kind {
            EventKind::Put => format!("{key}={}", text(&event.kv.value)),
            EventKind::Delete => format!("-{key}"),
        };
        match &event.prev_kv {
            Some(before) => format!("{now}({})", text(&before.value)),
            None => now,
        }
    };
    let watcher_event = |given: &WatcherEvent| match given {
        WatcherEvent::State(state) => {
            let pair = |kv: &KeyValue| format!("{}={}", text(&kv.key), text(&kv.value));
            let pairs: Vec<String> = state.kvs().iter().map(pair).collect();
            format!("state {}", pairs.join(","))
        }
        WatcherEvent::Synced(revision) => format!("synced {revision}"),
        WatcherEvent::Events(batch) => {
            let events: Vec<String> = batch.events().iter().map(event).collect();
            format!("{}:{}", batch.revision(), events.join(","))
        }
        WatcherEvent::Progress(revision) => format!("progress {revision}"),
        WatcherEvent::Canceled(cancel) => {
            assert_eq!(cancel.error.outcome, Outcome::NotApplied);
            format!("{} {:?}", cancel.error.code(), cancel.resume_revision)
        }
    };
    events.iter().map(watcher_event).collect()
}

impl Node {
    fn hear(&mut self, id: WatcherId) -> Vec<String> {
        told(&self.take(id))
    }
}

#[test]
fn from_zero_means_after_the_revision_that_the_reply_names() {
    let mut node = node();
    node.put("a", "1");
    // Applied, and not told to the hub yet: it is before the watch all the same.
    let NewWatcher { id, revision } = node.watch(&watch("a"));
    assert_eq!(revision, 2);
    node.put("a", "2");
    node.settle();
    assert_eq!(node.hear(id), ["3:a=2"]);
}

#[test]
fn a_start_in_the_future_delivers_nothing_older() {
    let mut node = node();
    node.put("a", "1");
    node.settle();
    let id = node.watch(&from(5, watch("a"))).id;
    node.hub.request_progress(id);
    for value in ["2", "3", "4", "5", "6"] {
        node.put("a", value);
        node.settle();
    }
    let heard = node.hear(id);
    assert_eq!(heard, ["progress 4", "5:a=4", "6:a=5", "7:a=6"]);
}

#[test]
fn no_progress_is_told_from_which_a_client_would_go_on_before_the_start() {
    let mut node = node();
    let request = WatchRequest {
        progress_notify: true,
        ..from(4, watch("a"))
    };
    let id = node.watch(&request).id;
    node.hub.request_progress(id);
    for (seconds, expected) in [
        (10, &[][..]),
        (20, &["progress 3"]),
        (30, &[]),
        (40, &["progress 4"]),
    ] {
        node.hub.tick(Instant::from_nanos(seconds * 1_000_000_000));
        node.put("b", "1");
        node.settle();
        assert_eq!(node.hear(id), expected, "after {seconds} seconds");
    }
}

#[test]
fn a_watch_may_begin_at_the_compact_revision_and_not_below() {
    let mut node = node();
    node.put("a", "1"); // 2
    node.put("a", "2"); // 3
    node.txn([TxnOp::delete("a")]); // 4: compacting here must not lose it
    node.put("a", "3"); // 5
    node.compact(4);
    node.settle();
    for start in [-1, 1, 3] {
        let compact_revision = 4;
        assert_eq!(
            node.refusal(&from(start, watch("a"))),
            ErrorKind::Compacted { compact_revision }
        );
    }
    let id = node.watch(&from(4, watch("a"))).id;
    node.settle();
    assert_eq!(node.hear(id), ["4:-a", "5:a=3"]);
}

#[test]
fn a_watcher_that_compaction_overtakes_is_told_so() {
    let mut node = node();
    for value in ["1", "2", "3", "4"] {
        node.put("a", value);
    }
    node.publish();
    let id = node.watch(&from(2, watch("a"))).id;
    let one = CatchUpBudget {
        changes: 1,
        bytes: usize::MAX,
    };
    node.hub.catch_up(&node.store, &one).unwrap();
    node.compact(5);
    node.settle();
    assert_eq!(node.hear(id), ["2:a=1", "LH-COMPACTED None"]);
    assert!(node.hub.take(id, 1).is_none(), "it is gone");
    assert_eq!(node.hub.watchers(), 0);
}

#[test]
fn a_revision_is_told_whole_and_in_its_order() {
    let mut node = node();
    let all = node.watch(&prefix("")).id;
    let some = node.watch(&prefix("a")).id;
    node.put("a1", "0");
    node.put("c", "0");
    node.txn([
        TxnOp::put("b", "1"),
        TxnOp::delete("a1"),
        TxnOp::put("a2", "1"),
        TxnOp::put("c", "1"),
    ]);
    let late = node.watch(&from(4, prefix("a"))).id;
    node.settle();
    assert_eq!(node.hear(all), ["2:a1=0", "3:c=0", "4:b=1,-a1,a2=1,c=1"]);
    assert_eq!(node.hear(some), ["2:a1=0", "4:-a1,a2=1"]);
    assert_eq!(node.hear(late), ["4:-a1,a2=1"]);
}

#[test]
fn a_large_revision_is_not_split_by_a_small_budget() {
    let mut node = node();
    let puts: [TxnOp; 20] = std::array::from_fn(|number| TxnOp::put(format!("{number:02}"), "v"));
    node.txn(puts);
    node.put("a", "1");
    node.publish();
    let id = node.watch(&from(1, prefix(""))).id;
    for budget in [
        CatchUpBudget {
            changes: 3,
            bytes: 1,
        },
        EVERYTHING,
    ] {
        node.hub.catch_up(&node.store, &budget).unwrap();
    }
    let events = node.take(id);
    let lengths: Vec<usize> = events
        .iter()
        .map(|event| match event {
            WatcherEvent::Events(batch) => batch.events().len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(lengths, [20, 1]);
}

#[test]
fn a_delete_tells_its_key_and_revision_and_no_more() {
    let mut node = node();
    let id = node.watch(&watch("a")).id;
    node.put("a", "1");
    node.txn([TxnOp::delete("a")]);
    node.settle();
    let WatcherEvent::Events(batch) = &node.take(id)[1] else {
        panic!("a delete is an event");
    };
    let expected = Event {
        kind: EventKind::Delete,
        kv: KeyValue {
            key: "a".into(),
            mod_revision: 3,
            ..KeyValue::default()
        },
        prev_kv: None,
    };
    assert_eq!(batch.events(), [expected]);
}

#[test]
fn previous_values_are_told_to_those_who_ask_unless_compacted() {
    let mut node = node();
    let asked = |request| WatchRequest {
        prev_kv: true,
        ..request
    };
    let now = node.watch(&asked(watch("a"))).id;
    let plain = node.watch(&watch("a")).id;
    node.put("a", "1"); // 2
    node.put("a", "2"); // 3
    node.txn([TxnOp::delete("a")]); // 4
    node.put("a", "3"); // 5
    node.settle();
    assert_eq!(node.hear(now), ["2:a=1", "3:a=2(1)", "4:-a(2)", "5:a=3"]);
    assert_eq!(node.hear(plain), ["2:a=1", "3:a=2", "4:-a", "5:a=3"]);
    let past = node.watch(&asked(from(2, watch("a")))).id;
    node.settle();
    assert_eq!(node.hear(past), ["2:a=1", "3:a=2(1)", "4:-a(2)", "5:a=3"]);
    // Not removed yet on this replica, and compacted all the same.
    let request = crate::api::CompactionRequest {
        revision: 3,
        physical: false,
    };
    node.run(Operation::Compact(request));
    let compacted = node.watch(&asked(from(3, watch("a")))).id;
    node.settle();
    assert_eq!(node.hear(compacted), ["3:a=2", "4:-a(2)", "5:a=3"]);
}

#[test]
fn filters_leave_out_what_they_say_and_no_revision_is_told_empty() {
    let mut node = node();
    let no_put = WatchRequest {
        no_put: true,
        ..prefix("")
    };
    let no_delete = WatchRequest {
        no_delete: true,
        ..prefix("")
    };
    let deletes = node.watch(&no_put).id;
    let puts = node.watch(&no_delete).id;
    node.put("a", "1");
    node.txn([TxnOp::delete("a"), TxnOp::put("b", "1")]);
    node.txn([TxnOp::delete("b")]);
    node.settle();
    assert_eq!(node.hear(deletes), ["3:-a", "4:-b"]);
    assert_eq!(node.hear(puts), ["2:a=1", "3:b=1"]);
}

#[test]
fn creation_is_told_from_change() {
    let mut node = node();
    let id = node.watch(&watch("a")).id;
    node.put("a", "1");
    node.put("a", "2");
    node.txn([TxnOp::delete("a")]);
    node.put("a", "3");
    node.settle();
    let kinds: Vec<(bool, bool)> = node
        .take(id)
        .iter()
        .map(|event| match event {
            WatcherEvent::Events(batch) => {
                let event = &batch.events()[0];
                (event.is_create(), event.is_modify())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let (created, modified, deleted) = ((true, false), (false, true), (false, false));
    assert_eq!(kinds, [created, modified, deleted, created]);
}

#[test]
fn the_initial_state_comes_first_then_synced_then_what_changed_since() {
    let mut node = node();
    node.put("a1", "1");
    node.put("a2", "1");
    node.put("b", "1");
    node.publish();
    let request = WatchRequest {
        initial_state: true,
        ..prefix("a")
    };
    let id = node.watch(&request).id;
    // Written while the state is still being read, and before any of it was.
    node.put("a1", "2");
    node.put("a3", "1");
    node.txn([TxnOp::delete("a2")]);
    node.publish();
    let one = CatchUpBudget {
        changes: 1,
        bytes: usize::MAX,
    };
    while node.hub.catch_up(&node.store, &one).unwrap() {}
    let heard = node.hear(id);
    assert_eq!(
        heard,
        [
            "state a1=1",
            "state a2=1",
            "synced 4",
            "5:a1=2",
            "6:a3=1",
            "7:-a2"
        ]
    );
    let empty = WatchRequest {
        initial_state: true,
        ..prefix("nothing")
    };
    let id = node.watch(&empty).id;
    node.settle();
    assert_eq!(node.hear(id), ["synced 7"], "an empty state is a state too");
}

#[test]
fn progress_is_told_on_request_also_to_a_watcher_that_never_had_an_event() {
    let mut node = node();
    node.put("a", "1");
    node.publish();
    let id = node.watch(&watch("never")).id;
    assert!(node.hub.request_progress(id));
    assert_eq!(node.hear(id), ["progress 2"]);
    node.put("a", "2");
    node.settle();
    assert!(node.hub.request_progress(id));
    assert!(node.hub.request_progress(id));
    assert_eq!(node.hear(id), ["progress 3"], "once is enough");
    assert!(node.hub.cancel(id));
    assert!(!node.hub.request_progress(id), "there is no such watch");
}

#[test]
fn a_watch_that_begins_with_the_next_revision_has_made_progress_at_once() {
    let mut node = node();
    node.put("a", "1");
    node.publish();
    // As after a range, whose revision was 2.
    let next = node.watch(&from(3, watch("a"))).id;
    assert_eq!(node.hub.synced_revision(&[next]), Some(2));
    assert!(node.hub.request_progress(next));
    assert_eq!(node.hear(next), ["progress 2"]);
    let later = node.watch(&from(4, watch("a"))).id;
    assert_eq!(node.hub.synced_revision(&[later]), None);
    assert!(node.hub.request_progress(later));
    assert_eq!(node.hear(later), [""; 0]);
    node.put("b", "1");
    node.publish();
    assert_eq!(node.hear(later), ["progress 3"]);
}

#[test]
fn progress_waits_for_what_was_not_delivered() {
    let mut node = node();
    for value in ["1", "2", "3"] {
        node.put("a", value);
    }
    node.publish();
    let behind = node.watch(&from(2, watch("a"))).id;
    assert!(node.hub.request_progress(behind));
    assert_eq!(node.hear(behind), [""; 0], "it is not there yet");
    assert_eq!(node.hub.synced_revision(&[behind]), None);
    node.settle();
    assert_eq!(
        node.hub.synced_revision(&[behind]),
        None,
        "it has not heard it"
    );
    let heard = node.hear(behind);
    assert_eq!(heard, ["2:a=1", "3:a=2", "4:a=3", "progress 4"]);
    assert_eq!(node.hub.synced_revision(&[behind]), Some(4));
    let now = node.watch(&watch("b")).id;
    assert_eq!(node.hub.synced_revision(&[behind, now]), Some(4));
    node.put("b", "1");
    node.publish();
    assert_eq!(node.hub.synced_revision(&[behind, now]), None);
}

#[test]
fn progress_is_told_from_time_to_time_if_there_is_nothing_else_to_say() {
    let mut node = node();
    let request = WatchRequest {
        progress_notify: true,
        ..watch("a")
    };
    let id = node.watch(&request).id;
    let silent = node.watch(&watch("a")).id;
    let seconds = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
    assert_eq!(
        node.hub.next_tick(),
        Instant {
            boot: seconds(10).boot,
            ..Instant::NEVER
        }
    );
    node.hub.tick(seconds(9));
    assert_eq!(node.hear(id), [""; 0]);
    node.hub.tick(seconds(10));
    assert_eq!(node.hear(id), ["progress 1"]);
    node.put("a", "1");
    node.settle();
    node.hub.tick(seconds(20));
    assert_eq!(node.hear(id), ["2:a=1"], "an event says as much");
    node.hub.tick(seconds(30));
    assert_eq!(node.hear(id), ["progress 2"]);
    node.hub.tick(seconds(40));
    node.hub.tick(seconds(50));
    assert_eq!(
        node.hear(id),
        ["progress 2"],
        "none on top of one that waits"
    );
    assert_eq!(node.hear(silent), ["2:a=1"]);
    node.hub.cancel(id);
    assert_eq!(node.hub.next_tick(), Instant::NEVER);
}

#[test]
fn a_slow_watcher_is_ended_with_the_revision_to_resume_from() {
    let options = HubOptions {
        queue_events_max: 3,
        ..OPTIONS
    };
    let mut node = Node::new(options);
    let slow = node.watch(&watch("a")).id;
    let quick = node.watch(&watch("a")).id;
    node.put("a", "1");
    node.settle();
    assert_eq!(node.hear(slow), ["2:a=1"]);
    for value in ["2", "3", "4", "5", "6"] {
        node.put("a", value);
        node.settle();
        assert_eq!(node.take(quick).len(), if value == "2" { 2 } else { 1 });
    }
    assert_eq!(node.hear(slow), ["LH-SLOW-WATCHER Some(3)"]);
    assert_eq!(node.hub.watchers(), 1);
    let resumed = node.watch(&from(3, watch("a"))).id;
    node.settle();
    let mut heard = node.hear(resumed);
    node.settle();
    heard.extend(node.hear(resumed));
    assert_eq!(heard, ["3:a=2", "4:a=3", "5:a=4", "6:a=5", "7:a=6"]);
}

#[test]
fn all_can_be_ended_whatever_waits_for_them() {
    let mut node = node();
    let done = node.watch(&watch("a")).id;
    let waiting = node.watch(&watch("a")).id;
    node.put("a", "1");
    node.settle();
    assert_eq!(node.hear(done), ["2:a=1"]);
    node.put("b", "1");
    node.settle();
    let behind = node.watch(&from(2, watch("a"))).id;
    let future = node.watch(&from(9, watch("a"))).id;
    let listing = node.watch(&WatchRequest {
        initial_state: true,
        ..watch("a")
    });
    let error = crate::api::Error::not_applied(ErrorKind::Corrupt, "another state");
    node.hub.end_all(&error);
    node.hub.end_all(&error);
    for id in [done, waiting, behind, future, listing.id] {
        assert_eq!(node.hear(id), ["LH-CORRUPT None"]);
    }
    assert_eq!(node.hub.watchers(), 0);
    assert_eq!((node.hub.queued_bytes(), node.hub.queued_events()), (0, 0));
}

#[test]
fn one_that_catches_up_waits_for_its_queue_and_is_not_ended() {
    let options = HubOptions {
        queue_events_max: 4,
        ..OPTIONS
    };
    let mut node = Node::new(options);
    for _ in 0..20 {
        node.put("a", "1");
    }
    node.publish();
    let id = node.watch(&from(2, watch("a"))).id;
    let mut heard = Vec::new();
    for _ in 0..20 {
        node.settle();
        assert!(
            !node.hub.catch_up(&node.store, &EVERYTHING).unwrap(),
            "it waits"
        );
        heard.extend(node.hear(id));
        node.put("b", "1");
    }
    let expected: Vec<String> = (2..22).map(|revision| format!("{revision}:a=1")).collect();
    assert_eq!(heard, expected);
}

#[test]
fn where_too_much_waits_in_all_those_who_stand_still_go_first() {
    let options = HubOptions {
        memory_bytes_max: 20_000,
        ..OPTIONS
    };
    let mut node = Node::new(options);
    let value: &'static str = Box::leak("v".repeat(1000).into_boxed_str());
    for _ in 0..40 {
        node.put("a", value);
    }
    node.publish();
    let still: Vec<WatcherId> = (0..5)
        .map(|number| {
            // Each of its own group, so that nothing is shared.
            let mut request = from(2, prefix("a"));
            request.range = KeyRange::Until(format!("b{number}").into());
            node.watch(&request).id
        })
        .collect();
    let budget = CatchUpBudget {
        changes: usize::MAX,
        bytes: 2000,
    };
    for _ in 0..100 {
        node.hub.catch_up(&node.store, &budget).unwrap();
        let queued = node.hub.queued_bytes();
        assert!(queued < 15_000, "{queued}: half is for what happens now");
    }
    assert!(node.hub.queued_bytes() > 5_000);
    assert_eq!(node.hub.watchers_behind(), 5);
    let lazy = node.watch(&watch("a")).id;
    let quick = node.watch(&watch("a")).id;
    let mut ended_after = None;
    for more in 0..12 {
        node.put("a", value);
        node.publish();
        assert_eq!(node.take(quick).len(), 1, "who keeps up is left alone");
        let behind = node.hub.watchers_behind();
        assert!(node.hub.queued_bytes() < 22_000);
        if behind < 5 && ended_after.is_none() {
            ended_after = Some(more);
        }
    }
    assert!(ended_after.is_some_and(|more| more > 5), "{ended_after:?}");
    // It lets twelve changes wait, and there is room for those once the others are gone.
    assert_eq!(node.take(lazy).len(), 12);
    let mut ended = 0;
    for id in still {
        if let Some(WatcherEvent::Canceled(cancel)) = node.take(id).last() {
            assert_eq!(cancel.error.kind, ErrorKind::SlowWatcher);
            assert_eq!(cancel.resume_revision, Some(2));
            ended += 1;
        }
    }
    assert!(ended > 0);
    assert_eq!(node.hub.queued_bytes(), 0);
}

#[test]
fn one_far_behind_does_not_hold_up_one_that_is_close() {
    let mut node = node();
    for _ in 0..1000 {
        node.put("a", "1");
    }
    node.publish();
    let far = node.watch(&from(2, watch("a"))).id;
    let close = node.watch(&from(1000, watch("a"))).id;
    let few = CatchUpBudget {
        changes: 10,
        bytes: usize::MAX,
    };
    for _ in 0..2 {
        node.hub.catch_up(&node.store, &few).unwrap();
    }
    assert_eq!(node.take(close).len(), 2);
    assert!(node.hub.synced_revision(&[close]).is_some());
    assert!(node.hub.synced_revision(&[far]).is_none());
}

#[test]
fn many_that_resume_at_the_same_place_are_served_by_one_walk() {
    let mut node = node();
    for _ in 0..100 {
        node.put("a", "1");
    }
    node.publish();
    let ids: Vec<WatcherId> = (0..1000)
        .map(|_| node.watch(&from(50, watch("a"))).id)
        .collect();
    let more = node.hub.catch_up(&node.store, &EVERYTHING).unwrap();
    assert!(!more, "one step was enough for all");
    for id in &ids {
        assert_eq!(node.take(*id).len(), 52);
    }
    // And what they were told was made once: it is gone when the last has heard it.
    assert_eq!(node.hub.queued_bytes(), 0);
}

#[test]
fn what_watchers_of_one_key_wait_for_is_shared() {
    let mut node = node();
    let ids: Vec<WatcherId> = (0..1000).map(|_| node.watch(&watch("a")).id).collect();
    node.put("a", "1");
    node.publish();
    let once = node.hub.queued_bytes();
    let places = ids.len() * size_of::<WatcherEvent>();
    assert!(once < places + 1000, "{once} bytes for a thousand watchers");
    let of = |events: Vec<WatcherEvent>| match &events[..] {
        [WatcherEvent::Events(batch)] => std::sync::Arc::as_ptr(batch),
        other => panic!("{other:?}"),
    };
    let first = node.take(ids[0]);
    let second = node.take(ids[1]);
    assert_eq!(of(first), of(second));
}

#[test]
fn what_was_encoded_counts_until_all_have_sent_it() {
    let mut node = node();
    node.put("a", "1");
    node.settle();
    let request = WatchRequest {
        initial_state: true,
        ..watch("a")
    };
    let id = node.watch(&request).id;
    node.settle();
    node.put("a", "2");
    node.settle();
    let events = node.take(id);
    let mut counts = Vec::new();
    for event in &events {
        match event {
            WatcherEvent::State(state) => {
                let (bytes, counted) = state.encoded(|_| Bytes::from_static(b"state"));
                assert_eq!(bytes, "state");
                counts.push(counted);
            }
            WatcherEvent::Events(batch) => {
                for _ in 0..2 {
                    let (bytes, counted) =
                        batch.encoded(WireFormat::Native, |_| Bytes::from_static(b"events"));
                    assert_eq!(bytes, "events");
                    counts.push(counted);
                }
            }
            _ => {}
        }
    }
    assert_eq!(counts.len(), 3);
    drop(events);
    let (state, events) = ("state".len(), "events".len());
    assert_eq!(node.hub.queued_bytes(), state + events, "each once");
    drop(counts.remove(0));
    assert_eq!(node.hub.queued_bytes(), events);
    drop(counts.pop());
    assert_eq!(node.hub.queued_bytes(), events, "another has it to send");
    drop(counts);
    assert_eq!(node.hub.queued_bytes(), 0);
}

#[test]
fn one_watcher_more_than_allowed_is_refused() {
    let options = HubOptions {
        watchers_max: 2,
        ..OPTIONS
    };
    let mut node = Node::new(options);
    let first = node.watch(&watch("a")).id;
    node.watch(&watch("b"));
    assert!(matches!(
        node.refusal(&watch("c")),
        ErrorKind::SlowDown { .. }
    ));
    node.hub.cancel(first);
    let third = node.watch(&watch("c")).id;
    assert_ne!(third, first, "an id is never used again");
    assert!(node.hub.take(first, 1).is_none());
}

#[test]
fn watchers_are_reported_as_ready_once_until_they_are_emptied() {
    let mut node = node();
    let id = node.watch(&watch("a")).id;
    let other = node.watch(&watch("b")).id;
    assert_eq!(node.hub.take_ready(), []);
    for value in ["1", "2", "3"] {
        node.put("a", value);
        node.publish();
    }
    assert_eq!(node.hub.take_ready(), [id]);
    let taken = node.hub.take(id, 1).unwrap();
    assert_eq!((taken.events.len(), taken.more), (1, true));
    node.put("a", "4");
    node.publish();
    assert_eq!(
        node.hub.take_ready(),
        [],
        "whoever takes has been told of more"
    );
    assert_eq!(node.take(id).len(), 3);
    node.put("b", "1");
    node.put("a", "5");
    node.publish();
    assert_eq!(node.hub.take_ready(), [other, id]);
}

#[test]
fn changes_that_come_twice_are_told_once_and_lost_ones_are_fetched() {
    let mut node = node();
    let id = node.watch(&watch("a")).id;
    node.put("a", "1");
    let again = node.pending.clone();
    node.publish();
    node.hub.publish(&node.store, &again).unwrap();
    node.put("a", "2");
    node.put("a", "3");
    node.pending.remove(0);
    node.publish();
    assert_eq!(node.hub.watchers_behind(), 1);
    node.settle();
    assert_eq!(node.hear(id), ["2:a=1", "3:a=2", "4:a=3"]);
    assert_eq!(node.hub.watchers_behind(), 0);
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    let limits = crate::api::Limits::DEFAULT;
    let bad = [
        watch(""),
        WatchRequest {
            range: KeyRange::Until("a".into()),
            ..watch("b")
        },
        WatchRequest {
            no_put: true,
            no_delete: true,
            ..watch("a")
        },
        WatchRequest {
            initial_state: true,
            ..from(3, watch("a"))
        },
    ];
    for request in bad {
        let error = request.validate(&limits).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument, "{request:?}");
    }
    let long = WatchRequest {
        key: vec![b'k'; limits.key_bytes_max + 1].into(),
        ..WatchRequest::default()
    };
    let error = long.validate(&limits).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::RequestTooLarge { .. }));
    assert!(
        from(-5, prefix("")).validate(&limits).is_ok(),
        "compacted, later"
    );
}

#[test]
fn a_watcher_that_waits_costs_little() {
    // What stands in the hub for each, its queue empty, its group shared.
    let bytes = Hub::BYTES_PER_WATCHER;
    assert!(bytes <= 160, "{bytes} bytes");
}

#[test]
fn steps_are_told_in_their_order_and_what_was_not_kept_is_fetched_between() {
    let mut node = node();
    node.put("a", "0");
    node.publish();
    assert_eq!(
        node.hub.revision(),
        node.revision(),
        "nobody has missed anything"
    );
    let id = node.watch(&watch("a")).id;
    let mut steps = Vec::new();
    for (value, is_kept) in [("1", true), ("2", false), ("3", true)] {
        node.put("a", value);
        let changes = std::mem::take(&mut node.pending);
        steps.push(AppliedStep {
            revision: node.revision(),
            changes: is_kept.then_some(changes),
        });
    }
    node.hub.feed(&node.store, steps).unwrap();
    while node.hub.catch_up(&node.store, &EVERYTHING).unwrap() {}
    assert_eq!(node.hear(id), ["3:a=1", "4:a=2", "5:a=3"]);
}
