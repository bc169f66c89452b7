//! The core of watches, without threads or sockets.
//!
//! A [`Hub`] holds watchers. Those that keep up are fed from the changes of each applied revision
//! ([`Hub::feed`]); those that begin in the past, or with an initial state, are fed from the store
//! in steps of bounded work ([`Hub::catch_up`]) until they have caught up. Each has a bounded
//! queue, from which the sender takes at its own pace ([`Hub::take`]).
//!
//! Guarantees for every watcher:
//!
//! - every change of its keys from its start on, once, in order, all changes of a revision together;
//! - nothing from before its start, a start in the future included;
//! - a progress notice only once everything up to it has been delivered, and none from which its client would
//!   go on before its start: a watch that begins at the next revision has made progress to this one;
//! - when it cannot be served further, the reason and the revision to resume from: no gap, and no
//!   repetition.
//!
//! Slow watchers: one that catches up waits for its own queue and blocks no other, because its
//! events are in the store; one that keeps up and lets its queue fill is cancelled. Watchers with
//! equal selections form a group: a change is matched and encoded once for all of them and shared,
//! so ten thousand watchers of one key cost ten thousand pointers and no copies. All queued bytes
//! are counted, and if they exceed the limit, slow watchers are cancelled first.
//!
//! Missing on purpose: connections and streams, scheduling, and encoding, which belong to the
//! server.

mod group;
mod hub;
mod index;
mod queue;
#[cfg(test)]
mod tests;

pub use hub::{AppliedStep, CatchUpBudget, Hub, HubOptions, NewWatcher, WatcherId, WatcherView};
pub use queue::{Batch, Cancel, CountedBytes, State, TakenEvents, WatcherEvent, WireFormat};
