//! Leases: some that are kept, which must not end while their holder counts on them; and some that
//! are abandoned, which must not end early, and must end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::client::{Client, GetOptions, LeaseKeeper, PutOptions};

use super::{AFTER_FAILURE, Book, open};
use crate::harness::PATIENCE;

/// Longer than any time without a leader that faults bring about: these are never lost.
const LONG: Duration = Duration::from_secs(60);
/// Short enough to be lost now and then. That is right; ending while it is counted on is not.
const SHORT: Duration = Duration::from_secs(3);
/// How many of each are kept.
const KEPT: usize = 20;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(100);
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

struct Kept {
    key: String,
    keeper: LeaseKeeper,
}

/// Keeps leases, and looks whether their keys are there.
pub(super) async fn keep(book: Arc<Book>, client: Client) {
    let mut kept: Vec<Option<Kept>> = Vec::new();
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
            let key = format!("kept/{number:03}-{generation}");
            match client.put_with_new_lease(&key, "", ttl, None).await {
                Ok((_, keeper)) => *place = Some(Kept { key, keeper }),
                Err(error) => book.failed(&error),
            }
        }
        look(&book, &client, &mut kept).await;
        book.rest(LOOK).await;
    }
}

async fn look(book: &Book, client: &Client, kept: &mut [Option<Kept>]) {
    // The keys first and the clocks after that: who is sure then was sure when they were read.
    let options = GetOptions::new().with_prefix().with_keys_only();
    let Ok(found) = client.get("kept/", Some(options)).await else {
        return;
    };
    let found: BTreeSet<_> = found.kvs.into_iter().map(|kv| kv.key).collect();
    for (number, place) in kept.iter_mut().enumerate() {
        let Some(Kept { key, keeper }) = place else {
            continue;
        };
        if keeper.is_alive() {
            book.count("looks at leases that are counted on");
            if !found.contains(key.as_bytes()) {
                book.violation(format!("{key} is gone, and its holder counts on its lease"));
                *place = None;
            }
        } else {
            book.count("leases lost by holders that were cut off for too long");
            if number < KEPT {
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
        let key = format!("abandoned/{number}");
        let sent = Instant::now();
        let Ok(granted) = client.lease().grant(ttl, None).await else {
            book.rest(AFTER_FAILURE).await;
            continue;
        };
        let until = |from: Instant| from + granted.ttl().mul_f64(LEAST);
        open(&book.keepers)
            .abandoned
            .insert(key.clone(), until(sent));
        let options = PutOptions::new().with_lease(granted.lease());
        if client.put(&key, "", Some(options)).await.is_ok() {
            book.count("leases abandoned");
        }
        if random.bool() {
            let sent = Instant::now();
            let renewed = client.lease().keep_alive_once(granted.lease()).await;
            if renewed.is_ok() {
                open(&book.keepers).abandoned.insert(key, until(sent));
            }
        }
        book.rest(AFTER_FAILURE).await;
    }
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
        let left = super::insist(|| client.get("abandoned/", Some(options.clone()))).await;
        if left.kvs.is_empty() {
            return;
        }
        if started.elapsed() > PATIENCE {
            return book.violation(format!("{} abandoned keys stay", left.kvs.len()));
        }
        tokio::time::sleep(LOOK).await;
    }
}
