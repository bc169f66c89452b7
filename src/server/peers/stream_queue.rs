//! A bounded queue between a thread that must not wait and a task that may.

use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::raft::Envelope;
use crate::sync::{Mutex, MutexGuard};

/// Which message goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overflow {
    /// The oldest: what is said later makes it void (heartbeats, votes, acknowledgements).
    DropOldest,
    /// The newest: entries build on the ones before them, so the front of the queue is worth
    /// more than its end.
    DropNewest,
}

/// The queue.
#[derive(Debug)]
pub(super) struct StreamQueue {
    waiting: Mutex<VecDeque<Envelope>>,
    filled: Notify,
    emptied: Notify,
    waiting_max: usize,
    overflow: Overflow,
}

impl StreamQueue {
    pub(super) fn new(waiting_max: usize, overflow: Overflow) -> Self {
        Self {
            waiting: Mutex::default(),
            filled: Notify::new(),
            emptied: Notify::new(),
            waiting_max,
            overflow,
        }
    }

    /// Appends a message. Returns the one that was dropped for it: this one or an older one.
    pub(super) fn push(&self, envelope: Envelope) -> Option<Envelope> {
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
    pub(super) async fn take(&self, count_max: usize) -> Vec<Envelope> {
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
    pub(super) fn take_now(&self, count_max: usize) -> Vec<Envelope> {
        let mut waiting = self.lock();
        let count = waiting.len().min(count_max);
        let taken = waiting.drain(..count).collect();
        if waiting.is_empty() {
            self.emptied.notify_waiters();
        }
        taken
    }

    /// Waits until nothing waits here.
    pub(super) async fn drained(&self) {
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
