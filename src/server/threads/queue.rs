//! A queue between threads from which everything that has gathered is taken at once.
//!
//! Senders never block. What bounds it is the sender's side: client requests by their sessions'
//! limits, peer messages by the peers' queues, entries by the window of uncommitted proposals.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// The queue.
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
