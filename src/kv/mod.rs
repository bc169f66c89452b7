//! The state machine: commands in, replies out, the same on every replica.
//!
//! Keys have etcd's history: one revision for the whole store, raised by one for each write that
//! changes something; every key knows the revision that created it, the one that last wrote it,
//! and how often it was written since. Past values stay in `history` and every change is listed in
//! `events`, so that reads at a revision ([`Scan`]) and watches ([`Change`]) find what they need,
//! until compaction gives them up (`compaction.rs`). Several operations may be one write, under
//! conditions (`txn.rs`).
//!
//! `apply` is the only function that changes the state. It is total and deterministic: it sees
//! the entry's index and term, the command, and the store, and nothing else, least of all a clock
//! (T8). Writes that carry a session are applied exactly once (`clients.rs`), and every change
//! keeps a hash of the whole state up to date, by which replicas and restarts check themselves
//! (`hash.rs`).
//!
//! Keys may be attached to a client lease (`lease.rs`) and are deleted when it ends
//! (`lease_end.rs`); leases that expire together are ended together (`lease_walk.rs`).
//!
//! Access control is part of the state, too (`access/`).
//!
//! Nothing here interprets terms or nodes beyond recording them, and nothing knows disks: the store
//! is a trait ([`View`], [`Store`]).

pub mod access;
mod alarms;
mod apply;
mod clients;
mod command;
mod compaction;
mod etcd_urls;
mod events;
mod hash;
mod keys;
mod lease;
mod lease_end;
mod lease_walk;
mod meta;
mod mvcc;
mod page;
mod quota;
mod range_counts;
mod read;
mod record;
mod record_hash;
mod replies;
mod restore;
mod scan;
mod space_alarm;
mod store;
mod sum;
#[cfg(test)]
pub(crate) mod tests;
mod txn;
mod versions;

pub use alarms::{RAISED_ALARMS_MAX, alarms, raised_refusal};
pub use apply::apply;
pub use clients::idle_sessions;
pub use command::{Command, CommandError, LeaseMark, LeaseMarkKind};
pub use command::{KNOWN_VERSIONS, bootstraps, raises_version};
pub use command::{Operation, Reply, ends_many_leases};
pub use compaction::{
    CompactionBudget, CompactionProgress, CompactionStep, compact_step, compacted,
};
pub use etcd_urls::etcd_urls;
pub use events::{Change, KeyChanges, changes_from, changes_of, key_changes};
pub use hash::{content_hash, scan};
pub use keys::KEY_BYTES_MAX;
pub use lease::{HeldLeases, LEASE_KEYS_MAX, LeaseChange, LeaseEnd, LeaseGrant, LeaseTerms};
pub use lease::{held_leases, lease_info, leases_are_sound, named_lease};
pub use lease_end::END_KEYS_MAX;
pub use meta::{FIRST_VERSION, Progress, bootstrap, cluster_info, cluster_version, progress};
pub use mvcc::{ANSWER_BYTES_MAX, WRITE_BYTES_MAX, WRITE_KEYS_MAX};
pub use page::page;
pub use range_counts::RangeCounts;
pub use read::{RangeReply, counted_range, range};
pub use record::{key_value, record_of};
pub use record_hash::ContentHash;
pub use replies::OUTSTANDING_MAX;
pub use restore::reset_identity;
pub use scan::{Chunk, Scan, ScanBudget};
pub use space_alarm::SpaceAlarm;
pub use store::{
    Changes, Fault, LastChange, MemStore, Overlay, Pair, Space, Span, Store, View, overlaid,
};
pub use sum::{StateReport, StateSum};
pub use txn::read_txn;
pub use versions::{LoadRefusal, LoadedLease, LoadedPart, Version, Versions, load};

/// The format of everything that is stored: keyspaces, keys and records. Raised whenever what an older
/// version stored no longer means the same, or is no longer where this version looks for it; a test
/// pins it together with the hash of a state that has something of everything.
pub const STATE_FORMAT: u32 = 2;
