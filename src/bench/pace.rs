//! When the requests of an open loop are due.
//!
//! Request `n` is due at `n / rate`, whatever became of the ones before it. Pure: a
//! [`pacemaker`](super::pacemaker) says what time it is, clients take what is due. Requests that
//! no client takes, because all still wait for a reply, stay due; a client that takes one later
//! learns when it was due, and counts its latency from there.

use std::cell::Cell;
use std::time::Duration;

use tokio::sync::Semaphore;

/// The timetable of one thread's requests, and how far it has come.
#[derive(Debug)]
pub struct Pace {
    /// Requests a second.
    rate: f64,
    /// Requests in all.
    total: u64,
    /// Requests that have become due.
    released: Cell<u64>,
    /// Requests that were taken.
    taken: Cell<u64>,
    due: Semaphore,
}

impl Pace {
    /// `rate` requests a second, a positive number, for so long.
    pub fn new(rate: f64, length: Duration) -> Self {
        Self {
            rate,
            // A request that would be due at the very end is not, whatever rounding says.
            total: (rate * length.as_secs_f64() - 1e-6).ceil() as u64,
            released: Cell::new(0),
            taken: Cell::new(0),
            due: Semaphore::new(0),
        }
    }

    /// Lets go of what is due at `now`; gives when the next one is, or nothing if there is none.
    pub fn release(&self, now: Duration) -> Option<Duration> {
        let released = self.released.get();
        // Request 0 is due at once. The product may be a hair below a whole number where a
        // request is due exactly now; then it is due a hair later.
        let due = ((now.as_secs_f64() * self.rate) as u64 + 1).min(self.total);
        if due > released {
            self.released.set(due);
            self.due
                .add_permits(usize::try_from(due - released).unwrap_or(usize::MAX));
        }
        let next = self.released.get();
        (next < self.total).then(|| self.due_at(next))
    }

    /// Waits for a request to be due, and gives when it was; nothing once the pace is closed.
    pub async fn next(&self) -> Option<Duration> {
        self.due.acquire().await.ok()?.forget();
        let number = self.taken.get();
        self.taken.set(number + 1);
        Some(self.due_at(number))
    }

    /// Hands out no more requests. Returns when each request was due that no client took.
    pub fn close(&self) -> impl Iterator<Item = Duration> + '_ {
        self.due.close();
        (self.taken.get()..self.released.get()).map(|number| self.due_at(number))
    }

    fn due_at(&self, number: u64) -> Duration {
        Duration::from_secs_f64(number as f64 / self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn requests_are_due_at_even_distances_from_the_start() {
        let pace = Pace::new(1_000.0, 10 * MS);
        assert_eq!(pace.release(Duration::ZERO), Some(MS));
        assert_eq!(pace.released.get(), 1);
        assert_eq!(pace.release(MS / 2), Some(MS));
        assert_eq!(pace.released.get(), 1, "not before its time");
        let just_after = Duration::from_micros(3_001);
        assert_eq!(pace.release(just_after), Some(4 * MS), "all that came due");
        assert_eq!(pace.released.get(), 4);
        assert_eq!(pace.release(60_000 * MS), None);
        assert_eq!(pace.released.get(), 10, "never more than there are");
    }

    #[test]
    fn what_nobody_took_is_given_back_with_its_time() {
        let pace = Pace::new(1_000.0, 10 * MS);
        pace.release(Duration::from_micros(4_500));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let next = std::pin::pin!(pace.next());
        let next = Future::poll(next, &mut context);
        assert_eq!(next, std::task::Poll::Ready(Some(Duration::ZERO)));
        let left: Vec<Duration> = pace.close().collect();
        assert_eq!(left, [MS, 2 * MS, 3 * MS, 4 * MS]);
        let next = std::pin::pin!(pace.next());
        let next = Future::poll(next, &mut context);
        assert_eq!(next, std::task::Poll::Ready(None));
    }
}
