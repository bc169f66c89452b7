//! A watch of everything at each node, from the beginning to the end, through whatever happens: no
//! revision twice, none out of order, none left out, and the same on all.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use leasehold::api::{Error, EventKind};
use leasehold::client::{Client, WatchEvent, WatchOptions, Watcher};

use super::{Book, keepers, open};

/// How often a watch of the SDK told a revision.
const TOLD: &str = "revisions told by watches";

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

/// One watch from the beginning on, over as many streams as it takes: what it was told, and how far.
pub(super) struct Listener {
    book: Arc<Book>,
    name: String,
    /// What its revisions are counted as.
    counted_as: &'static str,
    told_up_to: i64,
}

impl Listener {
    pub(super) fn new(book: Arc<Book>, name: String, counted_as: &'static str) -> Self {
        // One that is never told anything is compared, too.
        open(&book.watches).told.entry(name.clone()).or_default();
        Self {
            book,
            name,
            counted_as,
            told_up_to: 0,
        }
    }

    /// Writes down all the changes of a revision.
    pub(super) fn told<'a>(
        &mut self,
        revision: i64,
        changes: impl IntoIterator<Item = (EventKind, &'a [u8], &'a [u8])>,
    ) {
        if revision <= self.told_up_to {
            self.book.violation(format!(
                "the watch at {} told revision {revision} after {}",
                self.name, self.told_up_to
            ));
        }
        self.passed(revision);
        let mut looks = 0_u64;
        for (kind, key, value) in changes {
            if kind == EventKind::Delete {
                keepers::gone(&self.book, key);
            }
            looks = looks.wrapping_add(fingerprint(kind, key, value));
        }
        self.book.count(self.counted_as);
        let mut account = open(&self.book.watches);
        let told = account.told.entry(self.name.clone()).or_default();
        told.insert(revision, looks);
    }

    /// Nothing up to this revision is still to come.
    pub(super) fn passed(&mut self, revision: i64) {
        self.told_up_to = self.told_up_to.max(revision);
    }

    /// The watch ended, which nothing that happens here makes it do.
    pub(super) fn ended(&self, why: &dyn Display) {
        let name = &self.name;
        self.book
            .violation(format!("the watch at {name} ended: {why}"));
    }

    /// What it was not told yet.
    pub(super) fn next_revision(&self) -> i64 {
        self.told_up_to + 1
    }

    /// Whether it was told everything that matters.
    pub(super) fn is_done(&self) -> bool {
        let last = open(&self.book.watches).last;
        last.is_some_and(|last| self.told_up_to >= last)
    }
}

/// Writes down what a watch at this node tells.
pub(super) async fn listen(book: Arc<Book>, mut watch: Watcher, endpoint: String) {
    let mut listener = Listener::new(book.clone(), endpoint, TOLD);
    while let Some(told) = watch.next().await {
        let told = match told {
            Ok(told) => told,
            Err(error) => return listener.ended(&error),
        };
        match told {
            WatchEvent::Events { revision, events } => {
                let changes = events
                    .iter()
                    .map(|event| (event.kind, &event.kv.key[..], &event.kv.value[..]));
                listener.told(revision, changes);
            }
            WatchEvent::Resumed { .. } => book.count("watches resumed"),
            _ => {}
        }
        if listener.is_done() {
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
