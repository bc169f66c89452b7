//! Bounds on what clients can make a node hold: requests of a connection, bytes of all of them,
//! scans whose results the client does not read.

use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::sync::{AtomicUsize, Mutex, Ordering};

/// Scans of one connection that may be under way: running, or found and not yet taken by the
/// client. Further ones wait.
pub(crate) const SCANS_PER_CONNECTION_MAX: usize = 4;

/// Requests of one connection that are not answered yet. Its streams share the limit, so a stream that
/// waits for room is woken when a request of another one is answered.
#[derive(Debug)]
pub(crate) struct InFlight {
    count: AtomicUsize,
    count_max: usize,
    waiting: Mutex<Vec<Waker>>,
}

impl InFlight {
    pub(crate) fn new(count_max: usize) -> Self {
        Self {
            count: AtomicUsize::new(0),
            count_max,
            waiting: Mutex::default(),
        }
    }

    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, count: usize) {
        let before = self.count.fetch_sub(count, Ordering::Relaxed);
        // A stream waits only if there was no room. One that is about to wait checks again after it
        // has registered its waker under the lock, and then sees this change.
        if before >= self.count_max {
            let mut waiting = self.waiting.lock();
            waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Whether there is room; if not, the task is woken when there may be.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> bool {
        if self.has_room() {
            return true;
        }
        let mut waiting = self.waiting.lock();
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        drop(waiting);
        self.has_room()
    }

    fn has_room(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.count_max
    }
}

/// Bytes of requests and of results of scans that a node holds for its clients.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    taken: AtomicUsize,
    bytes_max: usize,
}

impl ByteBudget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            taken: AtomicUsize::new(0),
            bytes_max,
        })
    }

    /// Takes `bytes`, if so many are left.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<ReservedBytes> {
        let take = |taken: usize| {
            let then = taken.checked_add(bytes)?;
            (then <= self.bytes_max).then_some(then)
        };
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
            .then(|| ReservedBytes {
                budget: Arc::clone(self),
                bytes,
            })
    }

    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

/// Bytes that were taken, given back when dropped.
#[derive(Debug)]
pub(crate) struct ReservedBytes {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Permits a connection to have one more scan under way, until dropped.
#[derive(Debug)]
pub(crate) struct ScanPermit {
    _permit: OwnedSemaphorePermit,
}

impl ScanPermit {
    /// Waits for a place among those of a connection.
    pub(crate) async fn take(of_connection: Arc<Semaphore>) -> Self {
        let permit = of_connection.acquire_owned().await;
        Self {
            _permit: permit.expect("the semaphore is never closed"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    #[test]
    fn a_budget_gives_what_it_has_and_takes_it_back() {
        let budget = ByteBudget::new(10);
        let most = budget.take(9).unwrap();
        assert!(budget.take(2).is_none());
        let last = budget.take(1).unwrap();
        assert!(budget.take(1).is_none());
        assert!(budget.take(usize::MAX).is_none());
        drop(most);
        assert_eq!(budget.taken(), 1);
        drop(last);
        assert!(budget.take(10).is_some());
    }

    #[tokio::test]
    async fn whoever_waits_for_room_is_woken_when_some_is_left() {
        let in_flight = Arc::new(InFlight::new(2));
        in_flight.enter();
        in_flight.enter();
        let waiting = tokio::spawn({
            let in_flight = Arc::clone(&in_flight);
            async move {
                poll_fn(|cx| match in_flight.poll_room(cx) {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                })
                .await;
            }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        in_flight.leave(1);
        waiting.await.unwrap();
    }
}
