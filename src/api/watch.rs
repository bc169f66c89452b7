//! Watches: every change of some keys, once, in order, from any revision that is not compacted.
//!
//! A [`WatchRequest`] opens a watch. All changes of one revision belong together: a watcher sees
//! all of a revision or nothing of it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::validate_range;
use super::{Error, ErrorKind, KeyRange, KeyValue, Limits};

/// Watch one key or a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// The key, or the start of the range.
    pub key: Bytes,
    /// The extent of the range.
    pub range: KeyRange,
    /// The first revision whose changes to deliver; 0 starts after the current one. It may lie in
    /// the future: then nothing older is delivered. Below the compact revision the watch is refused
    /// with [`ErrorKind::Compacted`].
    pub start_revision: i64,
    /// Start with the current values of the keys, followed by `Synced` and then by changes.
    /// Requires a `start_revision` of 0.
    pub initial_state: bool,
    /// Include the previous value in each event, unless it is compacted.
    pub prev_kv: bool,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletes.
    pub no_delete: bool,
    /// Send periodic progress notifications while there are no events.
    pub progress_notify: bool,
}

/// The messages of a watch, in this order: `Created`; with an initial state, all of `State` and
/// then `Synced`; then `Events` and `Progress`; and `Canceled`, if the server cancels it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchMessage {
    /// The first message on the stream of a watch.
    Created {
        /// Which watch it is.
        watch_id: u64,
        /// The current revision of the node; a watch from now on receives all later ones.
        revision: i64,
    },
    /// A part of the initial state.
    State {
        /// Keys and what they hold, in key order.
        kvs: Vec<KeyValue>,
    },
    /// The initial state is complete.
    Synced {
        /// The revision that it is of. Everything above it follows as events.
        revision: i64,
    },
    /// The matching changes of one revision, or a part of them.
    Events {
        /// The revision.
        revision: i64,
        /// The next message contains more of the same revision: this one is incomplete.
        is_partial: bool,
        /// The changes, in the order they were made.
        events: Vec<Event>,
    },
    /// All events up to this revision have been delivered.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The watch has ended; nothing follows.
    Canceled {
        /// The reason: [`ErrorKind::SlowWatcher`]; [`ErrorKind::Compacted`], with the oldest
        /// available revision.
        error: Error,
        /// The revision from which a new watch misses and repeats nothing; `None` if it must start
        /// over.
        resume_revision: Option<i64>,
    },
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What was done.
    pub kind: EventKind,
    /// The new record of the key; for a delete, only the key and the revision of the delete.
    pub kv: KeyValue,
    /// The previous record, if it was requested, existed and is not compacted.
    pub prev_kv: Option<KeyValue>,
}

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted.
    Delete,
}

impl Event {
    /// Whether the change created the key.
    pub fn is_create(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision == self.kv.mod_revision
    }

    /// Whether the change modified an existing key.
    pub fn is_modify(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision != self.kv.mod_revision
    }
}

impl WatchRequest {
    /// Checks everything that needs no store.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or [`ErrorKind::RequestTooLarge`], outcome *not applied*.
    pub fn validate(&self, limits: &Limits) -> Result<(), Error> {
        validate_range(&self.key, &self.range, limits)?;
        let contradiction = if self.no_put && self.no_delete {
            "the watch filters out both puts and deletes, so it would never report anything"
        } else if self.initial_state && self.start_revision != 0 {
            "the watch asks for the current state and also for changes from another revision: \
             choose one of the two"
        } else {
            return Ok(());
        };
        Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            contradiction,
        ))
    }
}
