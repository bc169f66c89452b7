//! Delays attempts to log in after wrong passwords, longer after each.
//!
//! Failures are counted for the *user* whose password was wrong, wherever the attempt came from, and for
//! the *source* of the attempt, whatever the user. Both delays double with each failure. A source is a
//! client certificate at a network address: every client has a certificate, and cannot use that of
//! another one.
//!
//! An attacker must not be able to lock users out:
//!
//! - a client that is known by its certificate alone gives no password and is never delayed;
//! - a source from which a user has logged in is not delayed, whatever others do to that user's name,
//!   until a few wrong passwords in a row come from it;
//! - an attempt that comes too early is refused without checking its password and does not lengthen the
//!   delay, and the delay of a user is at most some seconds.
//!
//! The memory is bounded: a fixed number of users, sources and known pairs are remembered by a hash, and
//! beyond it the least important is forgotten. The counts are local to a node and not stored, so an
//! attacker who uses every node is faster by the number of nodes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::sync::{Mutex, MutexGuard};

/// So many wrong passwords cost nothing: people mistype.
const FREE: u32 = 5;
/// The first wait, which doubles from there.
const WAIT_MIN: Duration = Duration::from_millis(200);
/// The longest wait for a user: others may have caused it.
const USER_WAIT_MAX: Duration = Duration::from_secs(10);
/// The longest wait for a source: it caused it itself.
const SOURCE_WAIT_MAX: Duration = Duration::from_secs(300);
/// Without a failure for so long, what was before is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(900);
/// So many of each are remembered.
const REMEMBERED_MAX: usize = 4_096;
/// After so many wrong passwords in a row a known source is like any other.
const KNOWN_FAILURES_MAX: u32 = 3;

/// The source of an attempt: a hash of certificate and network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source(u64);

/// The failed attempts that this node remembers.
#[derive(Debug, Default)]
pub(super) struct LoginRateLimit {
    /// Seeded at random for each process, so that colliding names cannot be chosen.
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    users: BTreeMap<u64, Failures>,
    sources: BTreeMap<Source, Failures>,
    known: BTreeMap<(u64, Source), KnownSource>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Instant,
}

/// A source from which a user has logged in.
#[derive(Clone, Copy, Debug)]
struct KnownSource {
    failures: u32,
    last: Instant,
}

impl LoginRateLimit {
    /// The source of a client with this certificate at this address.
    pub(super) fn source(&self, certificate: &str, address: IpAddr) -> Source {
        Source(self.hasher.hash_one((certificate, network(address))))
    }

    /// Whether a password of `user` from `source` is checked `now`.
    ///
    /// # Errors
    /// How long to wait first.
    pub(super) fn admit(&self, now: Instant, user: &str, source: Source) -> Result<(), Duration> {
        let user = self.hasher.hash_one(user);
        let table = self.lock();
        if table.known.contains_key(&(user, source)) {
            return Ok(());
        }
        let of_user = table.users.get(&user);
        let of_source = table.sources.get(&source);
        let wait = of_user.map_or(Duration::ZERO, |held| held.left(now, USER_WAIT_MAX));
        let wait =
            wait.max(of_source.map_or(Duration::ZERO, |held| held.left(now, SOURCE_WAIT_MAX)));
        match wait {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// The password was wrong.
    pub(super) fn failed(&self, now: Instant, user: &str, source: Source) {
        let user = self.hasher.hash_one(user);
        let mut table = self.lock();
        if let Some(known) = table.known.get_mut(&(user, source)) {
            known.failures += 1;
            if known.failures >= KNOWN_FAILURES_MAX {
                table.known.remove(&(user, source));
            }
        }
        strike(&mut table.users, user, now);
        strike(&mut table.sources, source, now);
    }

    /// The password was right. The failures of user and source stay: otherwise an attacker could clear
    /// them by logging in with a password of their own.
    pub(super) fn succeeded(&self, now: Instant, user: &str, source: Source) {
        let pair = (self.hasher.hash_one(user), source);
        let mut table = self.lock();
        let is_new = !table.known.contains_key(&pair);
        if is_new && table.known.len() >= REMEMBERED_MAX {
            let oldest = table.known.iter().min_by_key(|(_, known)| known.last);
            if let Some(oldest) = oldest.map(|(pair, _)| *pair) {
                table.known.remove(&oldest);
            }
        }
        let known = KnownSource {
            failures: 0,
            last: now,
        };
        table.known.insert(pair, known);
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Failures {
    /// How much is left of the wait after the last failure.
    fn left(&self, now: Instant, most: Duration) -> Duration {
        let wait = wait_after(self.count).min(most);
        wait.saturating_sub(now.saturating_duration_since(self.last))
    }

    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= FORGOTTEN_AFTER
    }
}

/// How long to wait after so many failures in a row.
fn wait_after(failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(FREE + 1) else {
        return Duration::ZERO;
    };
    // Beyond that it is longer than anybody waits.
    WAIT_MIN * 2_u32.pow(doublings.min(20))
}

fn strike<K: Copy + Ord>(table: &mut BTreeMap<K, Failures>, key: K, now: Instant) {
    if let Some(strikes) = table.get_mut(&key) {
        let count = match strikes.is_forgotten(now) {
            true => 0,
            false => strikes.count,
        };
        *strikes = Failures {
            count: count.saturating_add(1),
            last: now,
        };
        return;
    }
    if table.len() >= REMEMBERED_MAX {
        // A hash of a password has taken a million times longer than this walk.
        table.retain(|_, strikes| !strikes.is_forgotten(now));
    }
    if table.len() >= REMEMBERED_MAX {
        let least = table
            .iter()
            .min_by_key(|(_, strikes)| (strikes.count, strikes.last));
        if let Some(least) = least.map(|(key, _)| *key) {
            table.remove(&least);
        }
    }
    table.insert(
        key,
        Failures {
            count: 1,
            last: now,
        },
    );
}

/// The network of an address: a host with one address of an IPv6 /64 can use all of it.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let mut segments = address.segments();
            segments[4..].fill(0);
            IpAddr::V6(segments.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::metrics::stopwatch;

    fn from(limit: &LoginRateLimit, address: &str) -> Source {
        limit.source("shared", address.parse().unwrap())
    }

    /// Fails as often as it is let, waiting as long as it is told to, and says how long that was.
    fn try_for(limit: &LoginRateLimit, now: &mut Instant, user: &str, at: Source) -> Duration {
        let waited = limit.admit(*now, user, at).err().unwrap_or_default();
        *now += waited;
        assert_eq!(limit.admit(*now, user, at), Ok(()), "it was told so");
        limit.failed(*now, user, at);
        waited
    }

    #[test]
    fn a_few_failures_are_free_then_each_wait_is_twice_the_one_before_up_to_a_bound() {
        let limit = LoginRateLimit::default();
        let at = from(&limit, "10.0.0.1");
        let mut now = stopwatch();
        let tries = FREE + 14;
        let waits: Vec<u128> = (0..=tries)
            .map(|_| try_for(&limit, &mut now, "anna", at).as_millis())
            .collect();
        assert_eq!(waits[..=FREE as usize], [0; FREE as usize + 1]);
        let doubling = [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600];
        assert_eq!(waits[FREE as usize + 1..][..8], doubling);
        assert_eq!(*waits.last().unwrap(), SOURCE_WAIT_MAX.as_millis());
    }

    #[test]
    fn a_try_that_has_to_wait_makes_the_wait_no_longer() {
        let limit = LoginRateLimit::default();
        let at = from(&limit, "10.0.0.1");
        let mut now = stopwatch();
        for _ in 0..=FREE {
            try_for(&limit, &mut now, "anna", at);
        }
        for _ in 0..100 {
            assert_eq!(limit.admit(now, "anna", at), Err(WAIT_MIN));
        }
        let half = now + WAIT_MIN / 2;
        assert_eq!(limit.admit(half, "anna", at), Err(WAIT_MIN / 2));
        assert_eq!(limit.admit(now + WAIT_MIN, "anna", at), Ok(()));
    }

    #[test]
    fn an_attacker_elsewhere_delays_a_user_by_seconds_and_not_where_the_user_is_known() {
        let limit = LoginRateLimit::default();
        let (home, away) = (from(&limit, "10.0.0.1"), from(&limit, "10.0.0.2"));
        let evil = from(&limit, "192.0.2.7");
        let mut now = stopwatch();
        limit.succeeded(now, "anna", home);
        for _ in 0..100 {
            try_for(&limit, &mut now, "anna", evil);
        }
        assert_eq!(limit.admit(now, "anna", home), Ok(()));
        assert_eq!(limit.admit(now, "anna", away), Err(USER_WAIT_MAX));
        assert_eq!(
            limit.admit(now, "bert", away),
            Ok(()),
            "others are not meant"
        );
        assert!(limit.admit(now, "bert", evil).is_err(), "it is the source");
        // With another certificate the same address is another source.
        let honest = limit.source("honest", "192.0.2.7".parse().unwrap());
        assert_eq!(limit.admit(now, "bert", honest), Ok(()));
    }

    #[test]
    fn where_a_user_is_known_nobody_may_guess_for_ever() {
        let limit = LoginRateLimit::default();
        let home = from(&limit, "10.0.0.1");
        let mut now = stopwatch();
        limit.succeeded(now, "anna", home);
        let mut waited = Duration::ZERO;
        for _ in 0..FREE + 5 {
            waited += try_for(&limit, &mut now, "anna", home);
        }
        assert!(waited >= WAIT_MIN * 3, "{waited:?}");
        // A password that is right in between does not wipe the slate of the source.
        limit.succeeded(now, "mallory", home);
        assert!(limit.admit(now, "anna", home).is_err());
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let limit = LoginRateLimit::default();
        let at = from(&limit, "10.0.0.1");
        let mut now = stopwatch();
        for _ in 0..FREE + 8 {
            try_for(&limit, &mut now, "anna", at);
        }
        now += FORGOTTEN_AFTER;
        for _ in 0..=FREE {
            assert_eq!(try_for(&limit, &mut now, "anna", at), Duration::ZERO);
        }
        assert_eq!(limit.admit(now, "anna", at), Err(WAIT_MIN));
    }

    #[test]
    fn memory_is_bounded_and_who_fails_most_is_remembered() {
        let limit = LoginRateLimit::default();
        let evil = from(&limit, "192.0.2.7");
        let mut now = stopwatch();
        for _ in 0..FREE + 3 {
            try_for(&limit, &mut now, "anna", evil);
        }
        for number in 0..REMEMBERED_MAX + 100 {
            let user = format!("user{number}");
            let at = from(&limit, &format!("2001:db8:{:x}::1", number % 0xffff));
            limit.failed(now, &user, at);
            limit.succeeded(now, &user, at);
        }
        let table = limit.lock();
        assert_eq!(table.users.len(), REMEMBERED_MAX);
        assert_eq!(table.sources.len(), REMEMBERED_MAX);
        assert_eq!(table.known.len(), REMEMBERED_MAX);
        drop(table);
        assert!(limit.admit(now, "anna", from(&limit, "10.0.0.9")).is_err());
        assert!(limit.admit(now, "nobody", evil).is_err());
    }

    #[test]
    fn a_network_of_ipv6_is_one_source_and_so_is_an_address_in_both_spellings() {
        let limit = LoginRateLimit::default();
        let source = |address: &str| from(&limit, address);
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("10.0.0.1"), source("::ffff:10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
    }
}
