//! Leases: some that are kept, which must not end while their holder counts on them; and some that
//! are abandoned, which must not end early, and must end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold::client::{Client, GetOptions, LeaseKeeper, PutOptions};

use super::{AFTER_FAILURE, Book, open};
use crate::harness::PATIENCE;

/// Longer than any time without a leader that faults bring about: these are never lost.
pub(super) const LONG: Duration = Duration::from_secs(60);
/// Short enough to be lost now and then. That is right; ending while it is counted on is not.
pub(super) const SHORT: Duration = Duration::from_secs(3);
/// How many of each are kept.
const KEPT: usize = 20;
/// Where the keys of leases are that are kept, and of those that are not.
pub(super) const KEPT_KEYS: &str = "kept/";
pub(super) const ABANDONED_KEYS: &str = "abandoned/";
/// How often a key was looked for whose holder was sure.
const LOOKS: &str = "looks at leases that are counted on";
/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// What an abandoned lease lasts, in milliseconds, at least and at most.
const ABANDONED_MS: (u64, u64) = (500, 3_000);
/// The share of its time that a lease lasts at least, by a clock that is not the cluster's: the drift
/// that the protocol allows for.
const LEAST: f64 = 0.98;

/// Abandoned leases.
#[derive(Default)]
pub(super) struct Account {
    /// By key: the earliest moment at which it may go.
    abandoned: BTreeMap<String, Instant>,
}

/// Who keeps a lease.
pub(super) trait Holder {
    /// Whether it counts on the lease.
    fn is_sure(&self) -> bool;
}

impl Holder for LeaseKeeper {
    fn is_sure(&self) -> bool {
        self.is_alive()
    }
}

/// A key with a lease that is kept.
pub(super) struct Kept<H> {
    pub(super) key: String,
    pub(super) holder: H,
}

/// Keeps leases, and looks whether their keys are there.
pub(super) async fn keep(book: Arc<Book>, client: Client) {
    let mut kept: Vec<Option<Kept<LeaseKeeper>>> = Vec::new();
    kept.resize_with(2 * KEPT, || None);
    let mut generation = 0_u64;
    while !book.is_over() {
        for (number, place) in kept
            .iter_mut()
            .enumerate()
            .filter(|(_, place)| place.is_none())
        {
            generation += 1;
            let ttl = if number < KEPT { LONG } else { SHORT };
            let key = format!("{KEPT_KEYS}{number:03}-{generation}");
            match client.put_with_new_lease(&key, "", ttl, None).await {
                Ok((_, holder)) => *place = Some(Kept { key, holder }),
                Err(error) => book.failed(&error),
            }
        }
        let options = GetOptions::new().with_prefix().with_keys_only();
        if let Ok(found) = client.get(KEPT_KEYS, Some(options)).await {
            let found = found.kvs.into_iter().map(|kv| kv.key).collect();
            look(&book, &found, &mut kept, LOOKS);
        }
        book.rest(LOOK).await;
    }
}

/// Judges what was found below [`KEPT_KEYS`]; the first half of what is kept is never lost.
// The keys first and the clocks after that: who is sure now was sure when they were read.
pub(super) fn look<H: Holder>(
    book: &Book,
    found: &BTreeSet<Bytes>,
    kept: &mut [Option<Kept<H>>],
    counted_as: &'static str,
) {
    let never_lost = kept.len() / 2;
    for (number, place) in kept.iter_mut().enumerate() {
        let Some(Kept { key, holder }) = place else {
            continue;
        };
        if holder.is_sure() {
            book.count(counted_as);
            if !found.contains(key.as_bytes()) {
                book.violation(format!("{key} is gone, and its holder counts on its lease"));
                *place = None;
            }
        } else {
            book.count("leases lost by holders that were cut off for too long");
            if number < never_lost {
                book.violation(format!("{key} was kept, and is lost"));
            }
            *place = None;
        }
    }
}

/// Grants leases and leaves them, some after one renewal.
pub(super) async fn abandon(book: Arc<Book>, client: Client, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut number = 0_u64;
    while !book.is_over() {
        number += 1;
        let ttl = Duration::from_millis(random.u64(ABANDONED_MS.0..ABANDONED_MS.1));
        let key = format!("{ABANDONED_KEYS}{number}");
        let sent = Instant::now();
        let Ok(granted) = client.lease().grant(ttl, None).await else {
            book.rest(AFTER_FAILURE).await;
            continue;
        };
        let until = |sent| lasts_until(sent, granted.ttl());
        leave(&book, &key, until(sent));
        let options = PutOptions::new().with_lease(granted.lease());
        if client.put(&key, "", Some(options)).await.is_ok() {
            book.count("leases abandoned");
        }
        if random.bool() {
            let sent = Instant::now();
            let renewed = client.lease().keep_alive_once(granted.lease()).await;
            if renewed.is_ok() {
                leave(&book, &key, until(sent));
            }
        }
        book.rest(AFTER_FAILURE).await;
    }
}

/// How long a lease lasts at least that a request granted or renewed which was sent then.
pub(super) fn lasts_until(sent: Instant, ttl: Duration) -> Instant {
    sent + ttl.mul_f64(LEAST)
}

/// Nobody renews the lease of this key, which may end from then on, and has to.
pub(super) fn leave(book: &Book, key: &str, until: Instant) {
    let mut account = open(&book.keepers);
    account.abandoned.insert(key.to_owned(), until);
}

/// A watch was told now that this key is gone.
pub(super) fn gone(book: &Book, key: &[u8]) {
    let now = Instant::now();
    let Ok(key) = std::str::from_utf8(key) else {
        return;
    };
    let until = open(&book.keepers).abandoned.get(key).copied();
    if let Some(until) = until
        && now < until
    {
        let early = until - now;
        book.violation(format!(
            "{key} went {early:?} before its lease may have ended"
        ));
    }
}

/// What was abandoned goes, on a cluster that is well.
pub(super) async fn settle(book: &Book, client: &Client) {
    let started = Instant::now();
    loop {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let left = super::insist(|| client.get(ABANDONED_KEYS, Some(options.clone()))).await;
        if left.kvs.is_empty() {
            return;
        }
        if started.elapsed() > PATIENCE {
            return book.violation(format!("{} abandoned keys stay", left.kvs.len()));
        }
        tokio::time::sleep(LOOK).await;
    }
}
