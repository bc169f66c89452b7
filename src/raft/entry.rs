//! Entries of the log, and what confirms a read: the vocabulary of messages and effects alike.

use std::hash::{Hash, Hasher};
use std::mem;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::raft::Configuration;
use crate::raft::bounded::Weigh;
use crate::types::LogId;

/// How many bytes of a command its hash covers.
const COMMAND_BYTES_HASHED: usize = 64;

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry {
    /// Its place and term.
    pub id: LogId,
    /// What it says.
    pub payload: Payload,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing: a new leader's first entry, which lets it commit what came before (Raft, section 5.4.2).
    Noop,
    /// A command of the state machine; opaque here.
    Command(Bytes),
    /// A membership, in force from the moment it is appended.
    Configuration(Box<Configuration>),
}

impl Entry {
    /// Tells this entry from another one of its place and term, which there can be only if members have forgotten what
    /// they acknowledged (A27): a CRC-32 of what it says. Not for use against an enemy.
    pub fn checksum(&self) -> u32 {
        match &self.payload {
            Payload::Noop => 0,
            Payload::Command(bytes) => crc32fast::hash(bytes),
            Payload::Configuration(configuration) => {
                let bytes = postcard::to_stdvec(configuration);
                crc32fast::hash(&bytes.expect("a configuration has a form of bytes"))
            }
        }
    }
}

impl Hash for Payload {
    /// Of a command, only its length and its beginning: a hash need not read a megabyte.
    fn hash<H: Hasher>(&self, state: &mut H) {
        mem::discriminant(self).hash(state);
        match self {
            Self::Noop => {}
            Self::Command(bytes) => {
                bytes.len().hash(state);
                bytes[..bytes.len().min(COMMAND_BYTES_HASHED)].hash(state);
            }
            Self::Configuration(configuration) => configuration.hash(state),
        }
    }
}

impl Weigh for Entry {
    fn weight(&self) -> usize {
        1 + match &self.payload {
            Payload::Noop | Payload::Command(_) => 0,
            Payload::Configuration(configuration) => configuration.len() / 4,
        }
    }
}

/// What must confirm that a linearizable read sees everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadMode {
    /// The leader's lease, or, while that is void, a quorum round.
    #[default]
    Any,
    /// A quorum round: independent of clocks.
    Quorum,
    /// The leader's lease, or the read is refused.
    Lease,
}

impl ReadMode {
    /// Every mode.
    pub(super) const ALL: [Self; 3] = [Self::Any, Self::Quorum, Self::Lease];
}
