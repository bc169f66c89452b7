//! A watch of everything at each node, from the beginning to the end, through whatever happens: no
//! revision twice, none out of order, none left out, and the same on all.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use leasehold::api::{Error, EventKind};
use leasehold::client::{Client, WatchEvent, WatchOptions, Watcher};

use super::{Book, keepers, open};

/// What was told, by watch.
#[derive(Default)]
pub(super) struct Account {
    told: BTreeMap<String, BTreeMap<i64, u64>>,
    /// The last revision that matters, once it is known.
    last: Option<i64>,
}

/// What an event looks like. Events of one revision are added up.
pub(super) fn fingerprint(kind: EventKind, key: &[u8], value: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (kind, key, value).hash(&mut hasher);
    hasher.finish()
}

/// Watches all keys at one node.
pub(super) async fn begin(client: &Client, endpoint: &str) -> Result<Watcher, Error> {
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(1)
        .with_progress_notify()
        .with_endpoint(endpoint);
    client.watch("", Some(options)).await
}

/// Writes down what a watch at this node tells.
pub(super) async fn listen(book: Arc<Book>, mut watch: Watcher, endpoint: String) {
    let mut told_up_to = 0;
    while let Some(told) = watch.next().await {
        let told = match told {
            Ok(told) => told,
            Err(error) => {
                return book.violation(format!("the watch at {endpoint} ended: {error}"));
            }
        };
        match told {
            WatchEvent::Events { revision, events } => {
                if revision <= told_up_to {
                    book.violation(format!(
                        "the watch at {endpoint} told revision {revision} after {told_up_to}"
                    ));
                }
                told_up_to = told_up_to.max(revision);
                let mut looks = 0_u64;
                for event in &events {
                    let (kind, kv) = (event.kind, &event.kv);
                    if kind == EventKind::Delete {
                        keepers::gone(&book, &kv.key);
                    }
                    looks = looks.wrapping_add(fingerprint(kind, &kv.key, &kv.value));
                }
                book.count("revisions told by watches");
                let mut account = open(&book.watches);
                let told = account.told.entry(endpoint.clone()).or_default();
                told.insert(revision, looks);
            }
            WatchEvent::Resumed { .. } => book.count("watches resumed"),
            _ => {}
        }
        if open(&book.watches)
            .last
            .is_some_and(|last| told_up_to >= last)
        {
            return;
        }
    }
}

/// Watches may end with this revision, which is of a change.
pub(super) fn stop_at(book: &Book, revision: i64) {
    open(&book.watches).last = Some(revision);
}

/// Compares what was told with what was acknowledged, and with what others were told.
pub(super) fn settle(book: &Book) {
    let mut account = std::mem::take(&mut *open(&book.watches));
    // Leases go on ending after that.
    let last = account.last.unwrap_or(i64::MAX);
    for told in account.told.values_mut() {
        told.retain(|revision, _| *revision <= last);
    }
    let acknowledged = std::mem::take(&mut open(&book.keys).acknowledged);
    for (endpoint, told) in &account.told {
        let lacking = acknowledged
            .iter()
            .filter(|(revision, looks)| told.get(revision) != Some(looks));
        for (revision, _) in lacking.take(3) {
            book.violation(format!(
                "revision {revision} was acknowledged, and the watch at {endpoint} told it \
                 differently or not at all"
            ));
        }
    }
    let mut all = account.told.iter();
    if let Some((first, told)) = all.next() {
        for (other, told_too) in all {
            if told != told_too {
                let differs = told
                    .iter()
                    .zip(told_too)
                    .find(|(one, another)| one != another);
                book.violation(format!(
                    "the watches at {first} and {other} were told {} and {} revisions, different \
                     from {differs:?} on",
                    told.len(),
                    told_too.len()
                ));
            }
        }
    }
}
