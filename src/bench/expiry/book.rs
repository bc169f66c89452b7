//! What is known of each lease, and what that says of how late they ended.
//!
//! The cluster counts a lease's deadline from when its leader took the last renewal (or the grant)
//! in. That moment is not known out here, but it lies between the sending of the request and the
//! arrival of the answer. So there are two latenesses of each lease, from both ends: one is never more
//! than the truth, the other never less, as far as the two moments are those of the leader's clock;
//! all of them share this machine's clock when the cluster runs on it. What the watch takes until it
//! shows the end is in both.

use std::cell::RefCell;
use std::time::Duration;

use crate::bench::tally::Latencies;

/// All leases of a run, by number.
#[derive(Debug)]
pub struct Book {
    ttl: Duration,
    leases: RefCell<Vec<Lease>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    id: i64,
    /// Of the last request that gave it time, granted or renewed: when it was sent, and answered.
    sent: Duration,
    answered: Duration,
    /// When the deletion of its key was seen.
    ended: Option<Duration>,
    /// A renewal was answered that it does not exist.
    is_lost: bool,
    /// It is not renewed any more, while others are.
    is_let_go: bool,
}

/// How many of the leases are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Granted.
    pub granted: usize,
    /// Seen to end.
    pub ended: usize,
    /// Refused to their holders as gone, though they were kept.
    pub lost: usize,
    /// Of those that were let go while the others were kept: seen to end.
    pub let_go_ended: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    /// From the answer of the last renewal, plus the time to live: never more than the truth.
    pub from_answer: Latencies,
    /// From its sending: never less.
    pub from_send: Latencies,
    /// Leases that ended before they can have been due.
    pub early: usize,
    /// From the first moment at which a lease was due until the last one had ended.
    pub span: Duration,
}

impl Book {
    /// Of `count` leases that last `ttl`.
    pub fn new(count: usize, ttl: Duration) -> Self {
        Self {
            ttl,
            leases: RefCell::new(vec![Lease::default(); count]),
        }
    }

    /// Lease `number` was granted as `id`.
    pub fn granted(&self, number: usize, id: i64, sent: Duration, answered: Duration) {
        let lease = &mut self.leases.borrow_mut()[number];
        // Its end may have been seen before the answer to its grant.
        *lease = Lease {
            id,
            sent,
            answered,
            ..*lease
        };
    }

    /// The id of lease `number`, while it is there to be renewed.
    pub fn id(&self, number: usize) -> Option<i64> {
        let lease = self.leases.borrow()[number];
        let is_over = lease.ended.is_some() || lease.is_lost || lease.is_let_go;
        (lease.id != 0 && !is_over).then_some(lease.id)
    }

    /// Lets `count` leases go, evenly among all: they are not renewed from here on.
    pub fn let_go(&self, count: usize) {
        let mut leases = self.leases.borrow_mut();
        let all = leases.len();
        for number in 0..count.min(all) {
            leases[number * all / count].is_let_go = true;
        }
    }

    /// When the last of those that were let go is due, by the latest account.
    pub fn last_let_go_due(&self) -> Duration {
        let leases = self.leases.borrow();
        let let_go = leases.iter().filter(|lease| lease.is_let_go);
        let last = let_go.map(|lease| lease.answered).max();
        last.unwrap_or_default() + self.ttl
    }

    /// Lease `number` was renewed.
    pub fn renewed(&self, number: usize, sent: Duration, answered: Duration) {
        let lease = &mut self.leases.borrow_mut()[number];
        (lease.sent, lease.answered) = (sent, answered);
    }

    /// A renewal of lease `number` was answered that it does not exist.
    pub fn lost(&self, number: usize) {
        self.leases.borrow_mut()[number].is_lost = true;
    }

    /// The key of lease `number` was seen to go.
    pub fn ended(&self, number: usize, now: Duration) {
        if let Some(lease) = self.leases.borrow_mut().get_mut(number) {
            lease.ended.get_or_insert(now);
        }
    }

    /// How many are where.
    pub fn count(&self) -> Count {
        let leases = self.leases.borrow();
        let of = |is: fn(&Lease) -> bool| leases.iter().filter(|lease| is(lease)).count();
        Count {
            granted: of(|lease| lease.id != 0),
            ended: of(|lease| lease.ended.is_some()),
            lost: of(|lease| lease.is_lost),
            let_go_ended: of(|lease| lease.is_let_go && lease.ended.is_some()),
        }
    }

    /// When the last of them is due, by the latest account.
    pub fn last_due(&self) -> Duration {
        let leases = self.leases.borrow();
        let last = leases.iter().map(|lease| lease.answered).max();
        last.unwrap_or_default() + self.ttl
    }

    /// How late those were that ended: of all that were kept to the last, or of those that were let go
    /// before.
    pub fn lateness(&self, let_go: bool) -> Lateness {
        let mut found = Lateness::default();
        let (mut first, mut last) = (Duration::MAX, Duration::ZERO);
        let leases = self.leases.borrow();
        let meant = |lease: &&Lease| lease.id != 0 && lease.is_let_go == let_go;
        for lease in leases.iter().filter(meant) {
            let Some(ended) = lease.ended else { continue };
            let (soonest, latest) = (lease.sent + self.ttl, lease.answered + self.ttl);
            found.early += usize::from(ended < soonest);
            found.from_answer.record(ended.saturating_sub(latest));
            found.from_send.record(ended.saturating_sub(soonest));
            first = first.min(soonest);
            last = last.max(ended);
        }
        found.span = last.saturating_sub(first);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_lease_is_late_by_something_between_two_bounds_and_never_early() {
        let book = Book::new(4, 100 * MS);
        book.granted(0, 7, 10 * MS, 20 * MS);
        book.granted(1, 8, 10 * MS, 20 * MS);
        book.granted(2, 9, 10 * MS, 20 * MS);
        book.renewed(1, 50 * MS, 60 * MS);
        book.ended(0, 123 * MS);
        book.ended(1, 149 * MS);
        book.ended(1, 190 * MS);
        let found = book.lateness(false);
        assert_eq!(found.early, 1, "the second had at least until 150");
        assert_eq!(found.from_answer.count(), 2);
        let about = |latencies: &Latencies| latencies.max().as_millis();
        assert_eq!(about(&found.from_answer), 3);
        assert_eq!(about(&found.from_send), 13);
        assert_eq!(found.span, 39 * MS);
        assert_eq!(book.last_due(), 160 * MS);
        let count = Count {
            granted: 3,
            ended: 2,
            ..Count::default()
        };
        assert_eq!(book.count(), count);
    }

    #[test]
    fn who_is_gone_is_not_renewed() {
        let book = Book::new(3, MS);
        for number in 0..3 {
            assert_eq!(book.id(number), None, "not granted yet");
            book.granted(number, 5, MS, MS);
        }
        book.lost(1);
        book.ended(2, MS);
        assert_eq!(
            [0, 1, 2].map(|number| book.id(number)),
            [Some(5), None, None]
        );
        assert_eq!(book.count().lost, 1);
    }

    #[test]
    fn those_that_are_let_go_are_not_renewed_and_counted_by_themselves() {
        let book = Book::new(10, 10 * MS);
        for number in 0..10 {
            book.granted(number, 5, MS, 2 * MS);
        }
        book.let_go(3);
        let let_go: Vec<usize> = (0..10)
            .filter(|number| book.id(*number).is_none())
            .collect();
        assert_eq!(let_go, [0, 3, 6], "evenly among all");
        assert_eq!(book.last_let_go_due(), 12 * MS);
        book.renewed(1, 50 * MS, 51 * MS);
        book.ended(3, 15 * MS);
        book.ended(1, 70 * MS);
        assert_eq!((book.count().ended, book.count().let_go_ended), (2, 1));
        let late = |let_go| book.lateness(let_go).from_answer.max().as_millis();
        assert_eq!((late(true), late(false)), (3, 9));
        assert_eq!(book.lateness(true).from_answer.count(), 1);
    }

    #[test]
    fn an_end_that_is_seen_before_the_answer_to_the_grant_counts() {
        let book = Book::new(1, 10 * MS);
        book.ended(0, 15 * MS);
        book.granted(0, 5, MS, 30 * MS);
        let found = book.lateness(false);
        assert_eq!((found.early, found.from_answer.count()), (0, 1));
    }
}
