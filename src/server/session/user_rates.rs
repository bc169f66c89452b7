//! How many requests a second one user may make of this node.
//!
//! Each user has a bucket that holds the requests of one second and is filled again evenly. It is the
//! node's own: a user that asks three nodes may ask three times as much, and what a node forwards to
//! the leader is counted where the client asked. Users are told apart by the name under which their
//! requests are judged: that of a token, else that of the certificate; clients without a name, on a
//! port that asks for none, share a bucket.
//!
//! Renewals of leases are not counted, because a renewal that is refused may lose its lease, nor is what
//! operators ask of a cluster in trouble: about members, for another leader, of a node about itself; nor what
//! logs in. A read of an etcd client counts once, whatever pages it takes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::api::{Class, Needs, RequestKind, Spec};
use crate::sync::Mutex;

/// Beyond so many users, those whose buckets are full are forgotten.
const USERS_MAX: usize = 4_096;
/// What a bucket holds: the requests of so long.
const BURST: Duration = Duration::from_secs(1);

/// The buckets of all users.
#[derive(Debug)]
pub(crate) struct UserRates {
    /// Between two requests, in nanoseconds.
    interval: u64,
    began: Instant,
    users: Mutex<BTreeMap<String, Arc<UserRate>>>,
}

/// The bucket of one user.
#[derive(Debug, Default)]
pub(crate) struct UserRate {
    /// When it is full again, in nanoseconds since the node began to count.
    full_at: AtomicU64,
}

impl UserRates {
    /// Of `rate_max` requests a second; `None` if that is 0, and there is no limit. It counts from `now`.
    pub(crate) fn new(rate_max: u64, now: Instant) -> Option<Self> {
        Some(Self {
            interval: nanos(BURST).checked_div(rate_max)?.max(1),
            began: now,
            users: Mutex::default(),
        })
    }

    /// The bucket of the user `name`.
    pub(crate) fn of(&self, name: &str, now: Instant) -> Arc<UserRate> {
        let mut users = self.users.lock();
        if let Some(known) = users.get(name) {
            return known.clone();
        }
        if users.len() >= USERS_MAX {
            let now = self.since(now);
            // One that a connection is counting by stays where it can be found.
            users.retain(|_, user| {
                Arc::strong_count(user) > 1 || user.full_at.load(Ordering::Relaxed) > now
            });
        }
        users.entry(name.to_owned()).or_default().clone()
    }

    /// Takes one request out of the bucket of `user`.
    ///
    /// # Errors
    /// There is none left; there will be after this time.
    pub(crate) fn admit(&self, user: &UserRate, now: Instant) -> Result<(), Duration> {
        let now = self.since(now);
        let latest = now.saturating_add(nanos(BURST));
        let take = |full_at: u64| {
            let full_at = full_at.max(now).saturating_add(self.interval);
            (full_at <= latest).then_some(full_at)
        };
        let taken = user
            .full_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        match taken {
            Ok(_) => Ok(()),
            Err(full_at) => {
                let wait = full_at.saturating_add(self.interval) - latest;
                // Rounded up, so that an attempt after that time is not too early.
                Err(Duration::from_millis(wait.div_ceil(1_000_000)))
            }
        }
    }

    fn since(&self, now: Instant) -> u64 {
        nanos(now.saturating_duration_since(self.began))
    }
}

/// Whether a request counts.
pub(crate) fn counts(spec: &Spec) -> bool {
    // Of what needs no permission, all but the requests about the connection are logins.
    let is_login = spec.needs == Needs::Nothing && spec.kind != RequestKind::Node;
    spec.class != Class::KeepAlive && !is_login
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::metrics::stopwatch;

    #[test]
    fn a_user_makes_the_requests_of_a_second_at_once_and_then_one_after_the_other() {
        let began = stopwatch();
        let rates = UserRates::new(4, began).unwrap();
        let (anna, bert) = (rates.of("anna", began), rates.of("bert", began));
        let ms = Duration::from_millis;
        for _ in 0..4 {
            assert_eq!(rates.admit(&anna, began), Ok(()));
        }
        assert_eq!(rates.admit(&anna, began), Err(ms(250)));
        assert_eq!(rates.admit(&anna, began + ms(100)), Err(ms(150)));
        assert_eq!(rates.admit(&bert, began), Ok(()), "has a bucket of his own");
        // What is refused takes nothing.
        assert_eq!(rates.admit(&anna, began + ms(250)), Ok(()));
        assert_eq!(rates.admit(&anna, began + ms(250)), Err(ms(250)));
        // However long it was idle, it holds no more.
        let later = began + ms(60_000);
        let again = rates.of("anna", later);
        for _ in 0..4 {
            assert_eq!(rates.admit(&again, later), Ok(()));
        }
        assert!(rates.admit(&anna, later).is_err(), "it is the same bucket");
        assert!(UserRates::new(0, began).is_none());
    }

    #[test]
    fn users_who_ask_for_nothing_are_forgotten_when_there_are_very_many() {
        let began = stopwatch();
        let rates = UserRates::new(1, began).unwrap();
        let kept = rates.of("kept", began);
        drop(rates.of("idle", began));
        rates.admit(&rates.of("busy", began), began).unwrap();
        for number in 0..2 * USERS_MAX {
            rates.of(&format!("user-{number}"), began);
        }
        let users = rates.users.lock();
        assert!(users.len() <= USERS_MAX);
        assert!(Arc::ptr_eq(&users["kept"], &kept));
        assert!(users.contains_key("busy") && !users.contains_key("idle"));
    }

    #[test]
    fn renewals_and_what_operators_ask_of_a_cluster_in_trouble_are_not_counted() {
        let mut free: Vec<&str> = Spec::all()
            .filter(|spec| !counts(spec))
            .map(|spec| spec.name)
            .collect();
        free.sort_unstable();
        let expected = [
            "authenticate",
            "leader_lease_report",
            "lease_keep_alive",
            "member_add",
            "member_list",
            "member_promote",
            "member_remove",
            "member_update",
            "move_leader",
            "status",
            "use_token",
        ];
        assert_eq!(free, expected);
    }
}
