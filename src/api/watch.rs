//! Watches: every change of some keys, once, in order, from any revision that is left.
//!
//! A watch is asked for with a [`WatchRequest`]. All changes of one revision belong together: a
//! revision is never split between what a watcher has seen and what it has not.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::limits::validate_range;
use super::{Error, ErrorKind, KeyRange, KeyValue, Limits};

/// Watch one key or a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchRequest {
    /// The key, or where the range starts.
    pub key: Bytes,
    /// How far the range goes.
    pub range: KeyRange,
    /// The first revision whose changes are wanted; 0 begins after the current one. It may lie in
    /// the future: then nothing older is delivered. Below the compact revision the watch is refused
    /// with [`ErrorKind::Compacted`].
    pub start_revision: i64,
    /// Begin with what the keys hold now, then say that this was all, then go on with changes.
    /// Only together with a `start_revision` of 0.
    pub initial_state: bool,
    /// Also tell what a key held before each change, where that is not compacted.
    pub prev_kv: bool,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletes.
    pub no_delete: bool,
    /// Say every so often how far the watch is, if there is nothing else to say.
    pub progress_notify: bool,
}

/// What a watch is told, in this order: `Created`; with an initial state, all of `State` and then
/// `Synced`; then `Events` and `Progress`; and `Canceled`, if the server ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WatchMessage {
    /// The first word on the stream of a watch.
    Created {
        /// Which watch it is.
        watch_id: u64,
        /// The revision that the node had; a watch from now on is told everything above it.
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
    /// All changes of one revision that were asked for, or a part of them.
    Events {
        /// The revision.
        revision: i64,
        /// The next message holds more of the same revision: no reader may take this for all.
        is_partial: bool,
        /// The changes, in the order they were made.
        events: Vec<Event>,
    },
    /// Everything up to this revision has been told.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The watch is over; nothing follows.
    Canceled {
        /// Why: [`ErrorKind::SlowWatcher`]; [`ErrorKind::Compacted`], with the revision that is
        /// left.
        error: Error,
        /// Where a new watch must start to miss nothing and be told nothing twice; `None` if it
        /// must begin anew.
        resume_revision: Option<i64>,
    },
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// What was done.
    pub kind: EventKind,
    /// What the key holds since; of a delete only the key and the revision of the delete.
    pub kv: KeyValue,
    /// What it held before, if that was asked for, existed and is not compacted.
    pub prev_kv: Option<KeyValue>,
}

/// What was done to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// It was written.
    Put,
    /// It was deleted.
    Delete,
}

impl Event {
    /// The change made the key: it did not exist before.
    pub fn is_create(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision == self.kv.mod_revision
    }

    /// The change wrote a key that existed.
    pub fn is_modify(&self) -> bool {
        self.kind == EventKind::Put && self.kv.create_revision != self.kv.mod_revision
    }
}

impl WatchRequest {
    /// Checks what needs no store.
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
