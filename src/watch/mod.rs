//! Who watches what, and what they are told: pure, without a thread or a socket.
//!
//! A [`Hub`] holds watchers. Those that keep up are fed from the changes of each applied revision
//! ([`Hub::feed`]); those that begin in the past, or with an initial state, are fed from the
//! store in steps of bounded work ([`Hub::catch_up`]) until they have caught up. Each has a bounded
//! queue, from which whoever sends takes at its own pace ([`Hub::take`]).
//!
//! What is promised to every watcher, whatever happens:
//!
//! - every change of its keys from its start on, once, in order, all changes of a revision together;
//! - nothing from before its start, a start in the future included;
//! - a progress notice only once everything up to it has been delivered, and none below its start;
//! - when it cannot be served further, a word why, and where to resume: no gap, and nothing twice.
//!
//! How a watcher may be slow: one that catches up waits for its own queue and holds up nobody, because
//! what it wants is in the store; one that keeps up, and lets its queue fill, is ended. Watchers with
//! equal wishes form a group: a change is matched and made ready once for all of them and shared, so
//! ten thousand watchers of one key cost ten thousand pointers and no copies. All that is queued
//! is counted, and where it is too much in all, the slow ones go first.
//!
//! What is missing on purpose: what connections and streams there are, when work is done, and how
//! notices become bytes; that is the server's.

mod group;
mod hub;
mod index;
mod queue;
#[cfg(test)]
mod tests;

pub use hub::{Applied, CatchUpBudget, Hub, HubOptions, Registered, WatcherId, WatcherView};
pub use queue::{Batch, Cancel, Counted, Notice, State, Taken};
