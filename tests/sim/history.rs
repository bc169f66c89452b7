//! What clients did and saw: the input of every checker that judges from outside.
//!
//! Times are the world's. A value is the number of the operation that wrote it, so each is unique
//! and a read says by itself whose write it saw.

use bytes::Bytes;
use leasehold::api::{Consistency, ReadPath};

use crate::clock::Nanos;

/// A key; the store calls it `k<n>`.
pub(crate) type Key = u64;
/// The number of the operation that wrote it.
pub(crate) type Value = u64;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Put(Key),
    Delete(Key),
    Get(Key, Consistency),
    /// Every key.
    List(Consistency),
    /// Puts the key if it was last written at this revision, 0 if it does not exist; else reads it.
    Swap(Key, i64),
    /// Puts two keys in one transaction.
    PutBoth(Key, Key),
    /// Reads two keys in one transaction.
    GetBoth(Key, Key, Consistency),
    /// Reads a key, or every key, as they were at a revision.
    GetAt(Key, i64, Consistency),
    ListAt(i64, Consistency),
}

impl Action {
    /// What a read asks for; `None` of a write.
    pub(crate) fn consistency(self) -> Option<Consistency> {
        match self {
            Self::Get(_, consistency) | Self::List(consistency) => Some(consistency),
            Self::GetBoth(_, _, consistency) | Self::GetAt(_, _, consistency) => Some(consistency),
            Self::ListAt(_, consistency) => Some(consistency),
            Self::Put(_) | Self::Delete(_) | Self::Swap(..) | Self::PutBoth(..) => None,
        }
    }

    pub(crate) fn is_write(self) -> bool {
        self.consistency().is_none()
    }

    /// Whether it puts `key`, or would.
    pub(crate) fn puts(self, key: Key) -> bool {
        match self {
            Self::Put(one) | Self::Swap(one, _) => one == key,
            Self::PutBoth(one, other) => one == key || other == key,
            _ => false,
        }
    }

    /// The revision that a read asks for by its number.
    pub(crate) fn at(self) -> Option<i64> {
        match self {
            Self::GetAt(_, revision, _) | Self::ListAt(revision, _) => Some(revision),
            _ => None,
        }
    }

    /// The keys that a read shows; `None` for every key.
    pub(crate) fn shows(self) -> Option<Vec<Key>> {
        match self {
            Self::Get(key, _) | Self::GetAt(key, ..) => Some(vec![key]),
            Self::GetBoth(one, other, _) => Some(vec![one, other]),
            _ => None,
        }
    }
}

/// One key as a read found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) key: Key,
    pub(crate) value: Value,
    pub(crate) mod_revision: i64,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not answered yet, or given up: it may have happened, or may yet.
    Unknown,
    /// It did not happen and will not.
    NotApplied,
    /// What was to be put was put.
    Written { revision: i64 },
    /// A swap found the key otherwise than expected, and changed nothing.
    Unequal { revision: i64, found: Option<Found> },
    /// A delete took effect, and found that many keys.
    Deleted { revision: i64, keys: u64 },
    /// A read was answered.
    Read {
        revision: i64,
        path: ReadPath,
        /// A lease, here or at the leader, confirmed it.
        leased: bool,
        found: Vec<Found>,
    },
}

/// One operation of one client.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    /// The least revision that a read asks for.
    pub(crate) min_revision: i64,
    pub(crate) invoked: Nanos,
    /// When the client learned its fate.
    pub(crate) returned: Option<Nanos>,
    pub(crate) fate: Fate,
}

impl Operation {
    /// The revision it was answered with.
    pub(crate) fn revision(&self) -> Option<i64> {
        match self.fate {
            Fate::Unknown | Fate::NotApplied => None,
            Fate::Written { revision }
            | Fate::Unequal { revision, .. }
            | Fate::Deleted { revision, .. }
            | Fate::Read { revision, .. } => Some(revision),
        }
    }

    /// The keys that its answer shows.
    pub(crate) fn found(&self) -> &[Found] {
        match &self.fate {
            Fate::Read { found, .. } => found,
            Fate::Unequal { found, .. } => found.as_slice(),
            _ => &[],
        }
    }

    /// Whether its answer must be linearizable.
    pub(crate) fn is_linearizable(&self) -> bool {
        !matches!(
            self.action.consistency(),
            Some(Consistency::Serializable | Consistency::MaxStaleness(_))
        )
    }
}

/// All operations, in order of invocation. The number of an operation is its place, from 1.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
}

impl History {
    /// Somebody begins; gives the operation's number.
    pub(crate) fn invoke(&mut self, action: Action, min_revision: i64, now: Nanos) -> u64 {
        self.operations.push(Operation {
            action,
            min_revision,
            invoked: now,
            returned: None,
            fate: Fate::Unknown,
        });
        self.operations.len() as u64
    }

    /// The least revision that operation `number` asks for.
    pub(crate) fn least(&self, number: u64) -> i64 {
        self.operations[number as usize - 1].min_revision
    }

    /// The client learned what became of operation `number`.
    pub(crate) fn finish(&mut self, number: u64, now: Nanos, fate: Fate) {
        let operation = &mut self.operations[number as usize - 1];
        operation.returned = (fate != Fate::Unknown).then_some(now);
        operation.fate = fate;
    }
}

/// The store's name of a key.
pub(crate) fn name(key: Key) -> Bytes {
    const NAMES: [&str; 8] = ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"];
    match NAMES.get(key as usize) {
        Some(name) => Bytes::from_static(name.as_bytes()),
        None => format!("k{key}").into(),
    }
}

/// The key of that name.
pub(crate) fn key(name: &[u8]) -> Option<Key> {
    let digits = name.strip_prefix(b"k")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The bytes of a value.
pub(crate) fn bytes(value: Value) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

/// The value of these bytes.
pub(crate) fn value(bytes: &[u8]) -> Option<Value> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
