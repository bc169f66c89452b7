//! The stream queues to peers: between the driver, which must not wait, and a task that may.

use std::sync::Arc;

use loom::future::block_on;
use loom::thread;

use crate::raft::{Envelope, Message};
use crate::server::threads::queue::{Overflow, StreamQueue};
use crate::types::{NodeId, Term};

fn message(term: u64) -> Envelope {
    Envelope {
        from: NodeId(1),
        to: NodeId(2),
        term: Term(term),
        message: Message::Release,
    }
}

/// The driver says three things to a peer whose task takes two at a time.
pub(crate) fn a_stream_queue_keeps_the_order_and_wakes_its_task() {
    let queue = Arc::new(StreamQueue::new(8, Overflow::DropNewest));
    let driver = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            for term in 1..=3 {
                assert!(queue.push(message(term)).is_none(), "there is room");
            }
        }
    });
    let mut terms = Vec::new();
    while terms.len() < 3 {
        let taken = block_on(queue.take(2));
        assert!((1..=2).contains(&taken.len()));
        terms.extend(taken.into_iter().map(|envelope| envelope.term.0));
    }
    driver.join().unwrap();
    assert_eq!(terms, [1, 2, 3]);
}

/// Room for one: whichever goes, what is left is in order, and as many are missed as were said to be.
pub(crate) fn a_full_stream_queue_says_what_it_drops() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
        let queue = Arc::new(StreamQueue::new(1, overflow));
        let driver = thread::spawn({
            let queue = Arc::clone(&queue);
            move || {
                let dropped = (1..=3).filter_map(|term| queue.push(message(term)));
                dropped.count()
            }
        });
        let mut terms: Vec<u64> = Vec::new();
        let mut take = |envelopes: Vec<Envelope>| {
            terms.extend(envelopes.iter().map(|envelope| envelope.term.0));
        };
        take(block_on(queue.take(1)));
        let dropped = driver.join().unwrap();
        take(queue.take_now(8));
        assert!(terms.is_sorted());
        assert_eq!(terms.len() + dropped, 3);
        if overflow == Overflow::DropOldest {
            assert_eq!(terms.last(), Some(&3), "the newest is never dropped");
        } else {
            assert_eq!(terms.first(), Some(&1), "the oldest is never dropped");
        }
    }
}

/// Whoever waits for the queue to be empty hears of it.
pub(crate) fn a_stream_queue_that_empties_tells_who_waits_for_it() {
    let queue = Arc::new(StreamQueue::new(8, Overflow::DropNewest));
    queue.push(message(1));
    let task = thread::spawn({
        let queue = Arc::clone(&queue);
        move || assert_eq!(queue.take_now(8).len(), 1)
    });
    block_on(queue.drained());
    assert!(queue.take_now(8).is_empty());
    task.join().unwrap();
}
