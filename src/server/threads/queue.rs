//! Queues between threads. Senders never block.
//!
//! From a [`BatchQueue`] everything that has gathered is taken at once. What bounds it is the sender's side: client
//! requests by their sessions' limits, peer messages by the peers' queues, entries by the window of
//! uncommitted proposals. A [`StreamQueue`] is bounded itself, and drops what has no room.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::Notify;

use crate::raft::Envelope;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// A queue from which everything that has gathered is taken at once.
#[derive(Debug)]
pub(crate) struct BatchQueue<T> {
    gathered: Mutex<Vec<T>>,
    arrived: Condvar,
}

impl<T> Default for BatchQueue<T> {
    fn default() -> Self {
        Self {
            gathered: Mutex::new(Vec::new()),
            arrived: Condvar::new(),
        }
    }
}

impl<T> BatchQueue<T> {
    /// Adds one item.
    pub(crate) fn send(&self, item: T) {
        self.send_all(std::iter::once(item));
    }

    /// Adds several items in one step.
    pub(crate) fn send_all(&self, items: impl Iterator<Item = T>) {
        let mut gathered = self.lock();
        let was_empty = gathered.is_empty();
        gathered.extend(items);
        if was_empty && !gathered.is_empty() {
            drop(gathered);
            self.arrived.notify_one();
        }
    }

    /// Moves what has gathered into `into`, which must be empty, waiting up to `patience` for
    /// something to arrive.
    pub(crate) fn take(&self, into: &mut Vec<T>, patience: Duration) {
        debug_assert!(into.is_empty(), "what was taken before has been dealt with");
        let mut gathered = self.lock();
        if gathered.is_empty() && !patience.is_zero() {
            gathered = self
                .arrived
                .wait_timeout_while(gathered, patience, |gathered| gathered.is_empty());
        }
        std::mem::swap(&mut *gathered, into);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.gathered.lock()
    }
}

/// Which message goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// The oldest: what is said later makes it void (heartbeats, votes, acknowledgements).
    DropOldest,
    /// The newest: entries build on the ones before them, so the front of the queue is worth
    /// more than its end.
    DropNewest,
}

/// A bounded queue of messages between a thread that must not wait and a task that may.
#[derive(Debug)]
pub(crate) struct StreamQueue {
    waiting: Mutex<VecDeque<Envelope>>,
    filled: Notify,
    emptied: Notify,
    waiting_max: usize,
    overflow: Overflow,
}

impl StreamQueue {
    pub(crate) fn new(waiting_max: usize, overflow: Overflow) -> Self {
        Self {
            waiting: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            waiting_max,
            overflow,
        }
    }

    /// Appends a message. Returns the one that was dropped for it: this one or an older one.
    pub(crate) fn push(&self, envelope: Envelope) -> Option<Envelope> {
        let mut waiting = self.lock();
        let mut dropped = None;
        if waiting.len() >= self.waiting_max {
            if self.overflow == Overflow::DropNewest {
                return Some(envelope);
            }
            dropped = waiting.pop_front();
        }
        waiting.push_back(envelope);
        drop(waiting);
        self.filled.notify_one();
        dropped
    }

    /// Takes up to `count_max` messages, oldest first, waiting for the first one.
    ///
    /// # Cancel safety
    /// Safe: nothing is taken until it is returned.
    pub(crate) async fn take(&self, count_max: usize) -> Vec<Envelope> {
        loop {
            let taken = self.take_now(count_max);
            if !taken.is_empty() {
                return taken;
            }
            // A push between the look and this wait leaves a permit, so it is not missed.
            self.filled.notified().await;
        }
    }

    /// Takes up to `count_max` messages that are there.
    pub(crate) fn take_now(&self, count_max: usize) -> Vec<Envelope> {
        let mut waiting = self.lock();
        let count = waiting.len().min(count_max);
        let taken = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.emptied.notify_waiters();
        }
        taken
    }

    /// Waits until nothing waits here.
    pub(crate) async fn drained(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.lock().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Envelope>> {
        self.waiting.lock()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn what_gathered_comes_in_order_and_a_later_item_wakes_the_taker() {
        let queue = Arc::new(BatchQueue::default());
        queue.send(1);
        queue.send_all([2, 3].into_iter());
        let mut taken = Vec::new();
        queue.take(&mut taken, Duration::ZERO);
        assert_eq!(taken, [1, 2, 3]);
        taken.clear();
        let sender = queue.clone();
        let sending = std::thread::spawn(move || sender.send(4));
        while taken.is_empty() {
            queue.take(&mut taken, Duration::from_secs(5));
        }
        sending.join().unwrap();
        assert_eq!(taken, [4]);
    }

    #[test]
    fn an_empty_queue_gives_nothing_when_patience_ends() {
        let queue: BatchQueue<u8> = BatchQueue::default();
        let mut taken = Vec::new();
        queue.take(&mut taken, Duration::from_millis(1));
        assert!(taken.is_empty());
    }
}
