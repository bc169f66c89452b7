//! Which requests a node admits when there are more than it can serve.
//!
//! A request that is admitted and answered too late was work for nothing, so an overloaded node must
//! refuse early, and refuse the right requests: a delayed renewal may lose its lease, a delayed write only
//! waits. So there is one [`Backlog`] for all connections, of requests that wait for the log, the state or
//! a scan, and each [`Class`] may fill it up to a limit of its own: keep-alives all of it, reads three
//! quarters, writes half, scans a quarter. A request that does not fit is answered `SlowDown` and has had
//! no effect. Reads under the lease never wait here. A request of low priority finds half of the room of its
//! class, so that it is refused before any other; a keep-alive has all of its own, whatever it says. No
//! priority stands above the usual one: every client would claim it.
//!
//! The length of a queue alone says nothing about time: a backlog that a fast node works off in a moment
//! is minutes of a slow one. So the limit of writes falls to what the node has lately served within
//! [`SOJOURN_MAX`], by Little's law, and rises again while the node keeps up. The fastest write of each
//! window counts: it is slow only if all were, and then there is a standing queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::api::{Class, Priority};
use crate::server::metrics::Rejection;
use crate::sync::Mutex;

/// Writes should not wait longer.
const SOJOURN_MAX: Duration = Duration::from_millis(250);
/// How long writes are measured before their limit is set again.
const WINDOW: Duration = Duration::from_millis(100);
/// So many writes may always wait: with fewer, a pause of the scheduler would have a node that keeps up
/// refuse what comes right after it.
const ROOM_MIN: usize = 256;
/// The limit rises by this part at a time.
const RISE_PART: usize = 2;
/// Requests of low priority have this part of the room of their class.
const LOW_PART: usize = 2;
/// The shortest and the longest time after which a refused client may retry.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The requests of all connections that wait in this node.
#[derive(Debug)]
pub(crate) struct Backlog {
    waiting_max: usize,
    waiting: AtomicUsize,
    by_class: [AtomicUsize; Class::ALL.len()],
    /// The limit of writes.
    room: AtomicUsize,
    /// How long the fastest write of the last window took, in nanoseconds.
    sojourn: AtomicU64,
    window: Mutex<Window>,
}

/// What was measured since the limit was set.
#[derive(Debug, Default)]
struct Window {
    began: Option<Instant>,
    fastest: Option<ServedWrite>,
    /// A write was refused at the limit.
    was_full: bool,
}

/// A write that was served: how long it took, and how many waited with it.
#[derive(Clone, Copy, Debug)]
struct ServedWrite {
    took: Duration,
    waiting: usize,
}

/// The backlog has no room for a request of that class; retry after this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BacklogFull {
    pub(crate) retry_after: Duration,
    /// One of the usual priority would have had room.
    pub(crate) is_for_priority: bool,
}

/// The place of one request in the backlog, released when dropped.
#[derive(Debug)]
pub(crate) struct BacklogPermit {
    backlog: Arc<Backlog>,
    class: Class,
    /// How many waited when it was taken.
    waiting: usize,
}

impl BacklogFull {
    /// Why it was refused, as the metrics say it.
    pub(crate) fn reason(&self) -> Rejection {
        match self.is_for_priority {
            true => Rejection::Priority,
            false => Rejection::Waiting,
        }
    }
}

impl Backlog {
    pub(crate) fn new(waiting_max: usize) -> Arc<Self> {
        Arc::new(Self {
            waiting_max,
            waiting: AtomicUsize::new(0),
            by_class: Default::default(),
            room: AtomicUsize::new(room_max(waiting_max)),
            sojourn: AtomicU64::new(0),
            window: Mutex::default(),
        })
    }

    /// A permit for a request of `class` that matters so much, if there is room.
    pub(crate) fn enter(
        self: &Arc<Self>,
        class: Class,
        priority: Priority,
    ) -> Result<BacklogPermit, BacklogFull> {
        let usual = self.mark(class);
        let mark = match priority {
            Priority::Low if class != Class::KeepAlive => usual / LOW_PART,
            _ => usual,
        };
        let enter = |waiting: usize| (waiting < mark).then_some(waiting + 1);
        let entered = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter);
        let before = match entered {
            Ok(before) => before,
            Err(waiting) => return Err(self.full(class, waiting < usual)),
        };
        self.by_class[class as usize].fetch_add(1, Ordering::Relaxed);
        Ok(BacklogPermit {
            backlog: Arc::clone(self),
            class,
            waiting: before + 1,
        })
    }

    /// A request of `class` is refused.
    fn full(&self, class: Class, is_for_priority: bool) -> BacklogFull {
        // Whatever its priority: else the limit would not rise where all that comes has the low one.
        if class == Class::Write {
            self.window().was_full = true;
        }
        let last = Duration::from_nanos(self.sojourn.load(Ordering::Relaxed));
        BacklogFull {
            retry_after: last.clamp(RETRY_MIN, RETRY_MAX),
            is_for_priority,
        }
    }

    /// How many requests may wait before one more of `class` is refused.
    fn mark(&self, class: Class) -> usize {
        let room = self.room.load(Ordering::Relaxed);
        match class {
            Class::KeepAlive => self.waiting_max,
            Class::Read => self.waiting_max / 4 * 3,
            Class::Write => room,
            Class::Scan => room / 2,
        }
    }

    /// How many of a class wait.
    pub(crate) fn waiting(&self, class: Class) -> usize {
        self.by_class[class as usize].load(Ordering::Relaxed)
    }

    /// How many writes the node lets wait at the moment.
    pub(crate) fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    fn window(&self) -> std::sync::MutexGuard<'_, Window> {
        // Nothing in it can be half done.
        self.window.lock()
    }

    fn served(&self, now: Instant, served: ServedWrite) {
        let mut window = self.window();
        let began = *window.began.get_or_insert(now);
        let is_fastest = window.fastest.is_none_or(|other| served.took < other.took);
        if is_fastest {
            window.fastest = Some(served);
        }
        if now.saturating_duration_since(began) < WINDOW {
            return;
        }
        let ended = std::mem::replace(
            &mut *window,
            Window {
                began: Some(now),
                ..Window::default()
            },
        );
        let fastest = ended.fastest.unwrap_or(served);
        let room = next_room(
            self.room(),
            room_max(self.waiting_max),
            fastest,
            ended.was_full,
        );
        self.room.store(room, Ordering::Relaxed);
        let nanos = u64::try_from(fastest.took.as_nanos()).unwrap_or(u64::MAX);
        self.sojourn.store(nanos, Ordering::Relaxed);
    }
}

impl BacklogPermit {
    /// The request was answered at `now`, so long after it came.
    pub(crate) fn served(self, now: Instant, took: Duration) {
        if self.class == Class::Write {
            let waiting = self.waiting;
            self.backlog.served(now, ServedWrite { took, waiting });
        }
    }
}

impl Drop for BacklogPermit {
    fn drop(&mut self) {
        self.backlog.waiting.fetch_sub(1, Ordering::Relaxed);
        self.backlog.by_class[self.class as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many writes may wait where the node is fast enough for all of them.
fn room_max(waiting_max: usize) -> usize {
    (waiting_max / 2).max(1)
}

/// The limit of writes after a window whose fastest write was `fastest`.
fn next_room(room: usize, room_max: usize, fastest: ServedWrite, was_full: bool) -> usize {
    let least = ROOM_MIN.min(room_max);
    if fastest.took > SOJOURN_MAX {
        // Little's law: so many writes are served within the longest time that is good.
        let waiting = fastest.waiting as u128;
        let fitting = waiting * SOJOURN_MAX.as_nanos() / fastest.took.as_nanos();
        let fitting = usize::try_from(fitting).unwrap_or(usize::MAX);
        return fitting.min(room).max(least);
    }
    if was_full && fastest.took < SOJOURN_MAX / 2 {
        return (room + room / RISE_PART + 1).min(room_max);
    }
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(backlog: &Arc<Backlog>, class: Class) -> Vec<BacklogPermit> {
        std::iter::from_fn(|| backlog.enter(class, Priority::Normal).ok()).collect()
    }

    #[test]
    fn each_class_fills_the_backlog_up_to_its_mark_and_leaves_room_above_it() {
        let backlog = Backlog::new(1000);
        let mut places = Vec::new();
        for (class, mark) in [
            (Class::Scan, 250),
            (Class::Write, 500),
            (Class::Read, 750),
            (Class::KeepAlive, 1000),
        ] {
            let mut taken = fill(&backlog, class);
            assert_eq!(taken.len(), 250, "{class:?}");
            assert_eq!(backlog.waiting(class), 250);
            places.append(&mut taken);
            assert_eq!(places.len(), mark, "{class:?}");
        }
        for class in Class::ALL {
            assert!(backlog.enter(class, Priority::Normal).is_err(), "{class:?}");
        }
        // One place at the top: only keep-alives reach so far.
        places.pop();
        for class in [Class::Scan, Class::Write, Class::Read] {
            assert!(backlog.enter(class, Priority::Normal).is_err(), "{class:?}");
        }
        assert!(backlog.enter(Class::KeepAlive, Priority::Normal).is_ok());
        places.clear();
        for class in Class::ALL {
            assert_eq!(backlog.waiting(class), 0, "{class:?}");
        }
        assert_eq!(fill(&backlog, Class::Write).len(), 500);
    }

    #[test]
    fn a_flood_of_writes_leaves_all_their_room_to_keep_alives_and_reads() {
        let backlog = Backlog::new(1000);
        let writes = fill(&backlog, Class::Write);
        assert_eq!(writes.len(), 500);
        assert!(backlog.enter(Class::Scan, Priority::Normal).is_err());
        assert_eq!(fill(&backlog, Class::Read).len(), 250);
        assert_eq!(fill(&backlog, Class::KeepAlive).len(), 500);
    }

    #[test]
    fn the_mark_falls_to_what_is_served_in_time_at_once_and_rises_step_by_step() {
        let served = |millis: u64, waiting: usize| ServedWrite {
            took: Duration::from_millis(millis),
            waiting,
        };
        // 8,000 took four seconds: 500 take a quarter of one.
        assert_eq!(next_room(8192, 8192, served(4000, 8000), true), 500);
        // It does not rise by being slow, nor fall below what fills a batch.
        assert_eq!(next_room(400, 8192, served(500, 4000), true), 400);
        assert_eq!(next_room(400, 8192, served(60_000, 100), true), ROOM_MIN);
        assert_eq!(next_room(8, 8, served(60_000, 100), true), 8);
        // Fast enough: up to the mark it rises, while somebody is refused at it.
        assert_eq!(next_room(400, 8192, served(100, 400), true), 601);
        assert_eq!(next_room(400, 8192, served(100, 400), false), 400);
        assert_eq!(next_room(8000, 8192, served(100, 400), true), 8192);
        // Neither fast nor slow: as it is.
        assert_eq!(next_room(400, 8192, served(200, 400), true), 400);
    }

    #[test]
    fn what_matters_little_is_refused_at_half_of_the_room_and_renewals_never_for_that() {
        for (class, mark) in [
            (Class::Scan, 250),
            (Class::Write, 500),
            (Class::Read, 750),
            (Class::KeepAlive, 1000),
        ] {
            let backlog = Backlog::new(1000);
            let low = |_| backlog.enter(class, Priority::Low).ok();
            let taken: Vec<_> = (0..1001).map_while(low).collect();
            let expected = match class {
                Class::KeepAlive => mark,
                _ => mark / 2,
            };
            assert_eq!(taken.len(), expected, "{class:?}");
            let refused = backlog.enter(class, Priority::Low).unwrap_err();
            assert_eq!(refused.is_for_priority, class != Class::KeepAlive);
            // The usual ones find the room that they always had, and no more.
            let rest = fill(&backlog, class);
            assert_eq!(taken.len() + rest.len(), mark, "{class:?}");
            let refused = backlog.enter(class, Priority::Normal).unwrap_err();
            assert!(!refused.is_for_priority);
            let refused = backlog.enter(class, Priority::Low).unwrap_err();
            assert!(!refused.is_for_priority, "there is no room for any");
        }
    }

    #[test]
    fn a_node_that_serves_slowly_takes_in_less_and_more_again_once_it_is_fast() {
        let backlog = Backlog::new(16_384);
        let mut now = crate::server::metrics::stopwatch();
        let mut window = |took: Duration| {
            let places = fill(&backlog, Class::Write);
            let count = places.len();
            now += WINDOW;
            for place in places {
                place.served(now, took);
            }
            count
        };
        // The first that is served begins the first window.
        assert_eq!(window(Duration::from_secs(2)), 8192);
        window(Duration::from_secs(2));
        let slow = window(Duration::from_secs(2));
        assert!(slow <= 8192 / 8, "{slow}");
        let refused = backlog.room();
        assert!(refused < 8192);
        for _ in 0..200 {
            window(Duration::from_millis(5));
        }
        assert_eq!(window(Duration::from_millis(5)), 8192);
    }

    #[test]
    fn whoever_is_refused_is_told_to_wait_about_as_long_as_others_waited() {
        let backlog = Backlog::new(16);
        let now = crate::server::metrics::stopwatch();
        let full = fill(&backlog, Class::Write);
        let refused = backlog.enter(Class::Write, Priority::Normal).unwrap_err();
        assert_eq!(refused.retry_after, RETRY_MIN);
        for place in full {
            place.served(now + WINDOW, Duration::from_millis(700));
        }
        for place in fill(&backlog, Class::Write) {
            place.served(now + WINDOW * 3, Duration::from_millis(700));
        }
        let _full = fill(&backlog, Class::Write);
        let refused = backlog.enter(Class::Write, Priority::Normal).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_millis(700));
    }
}
