//! The queues between threads and tasks: nothing is lost, doubled or turned round, and nobody sleeps
//! on what has come. A notice that is lost leaves a thread waiting for ever, which loom tells.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::future::block_on;
use loom::thread;

use crate::server::mail::outbox::{Delivery, Outbox};
use crate::server::session::budget::{ByteBudget, InFlight};
use crate::server::threads::queue::BatchQueue;

/// Two threads send to the driver, one of them twice.
pub(crate) fn what_gathers_arrives_in_order_and_wakes_the_taker() {
    let queue = Arc::new(BatchQueue::default());
    let one = thread::spawn({
        let queue = Arc::clone(&queue);
        move || {
            queue.send(1);
            queue.send_all([2, 3].into_iter());
        }
    });
    let other = thread::spawn({
        let queue = Arc::clone(&queue);
        move || queue.send(10)
    });
    let mut all = Vec::new();
    let mut taken = Vec::new();
    while all.len() < 4 {
        queue.take(&mut taken, Duration::from_secs(60));
        assert!(!taken.is_empty(), "patience has not ended");
        all.append(&mut taken);
    }
    one.join().unwrap();
    other.join().unwrap();
    let of_one: Vec<i32> = all.iter().copied().filter(|item| *item < 10).collect();
    assert_eq!((of_one, all.len()), (vec![1, 2, 3], 4));
}

/// The driver and another thread answer a stream, whose task writes what it finds.
pub(crate) fn an_answer_is_delivered_once_and_wakes_the_stream() {
    let outbox = Arc::new(Outbox::default());
    let deliveries: Vec<_> = [1, 10]
        .map(|first| {
            let outbox = Arc::clone(&outbox);
            thread::spawn(move || {
                outbox.deliver(first, Delivery::CaughtUp);
                if first == 1 {
                    outbox.deliver(2, Delivery::CaughtUp);
                }
            })
        })
        .into();
    let mut all = Vec::new();
    while all.len() < 3 {
        let mut taken = Vec::new();
        block_on(outbox.take(&mut taken));
        assert!(!taken.is_empty(), "it waits until there is something");
        all.extend(taken.into_iter().map(|(frame, ..)| frame));
    }
    for thread in deliveries {
        thread.join().unwrap();
    }
    let of_one: Vec<u64> = all.iter().copied().filter(|frame| *frame < 10).collect();
    assert_eq!((of_one, all.len()), (vec![1, 2], 3));
}

/// Two streams of a connection wait for room, and two requests are answered.
pub(crate) fn room_that_is_left_is_given_to_who_waits() {
    let in_flight = Arc::new(InFlight::new(1));
    in_flight.enter();
    let stream = thread::spawn({
        let in_flight = Arc::clone(&in_flight);
        move || {
            block_on(poll_fn(|cx| match in_flight.poll_room(cx) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }));
            in_flight.enter();
            in_flight.leave(1);
        }
    });
    let answerer = thread::spawn({
        let in_flight = Arc::clone(&in_flight);
        move || in_flight.leave(1)
    });
    block_on(poll_fn(|cx| match in_flight.poll_room(cx) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    }));
    stream.join().unwrap();
    answerer.join().unwrap();
}

/// No two take bytes of which there are enough for one.
pub(crate) fn a_budget_is_never_overdrawn() {
    let budget = ByteBudget::new(10);
    let take = |budget: &Arc<ByteBudget>| {
        let budget = Arc::clone(budget);
        move || budget.take(6)
    };
    let one = thread::spawn(take(&budget));
    let other = thread::spawn(take(&budget));
    let shares = [one.join().unwrap(), other.join().unwrap()];
    let got = shares.iter().flatten().count();
    assert_eq!(got, 1, "one of two has bytes");
    drop(shares);
    assert!(budget.take(10).is_some(), "all are given back");
}
