//! What is in the log, and what applying it answers.
//!
//! A [`Command`] is written once by a leader and read by every replica for as long as the log
//! lives, also by later versions of this program. So its bytes begin with a format version, its
//! variants are only ever appended, and a test holds the encoding of each to its golden bytes.
//!
//! A command that does not read is refused by apply and changes nothing. That keeps replicas equal
//! only while they read alike, so a leader proposes nothing that some member's release does not
//! know (`node/upgrade.rs`); if it happened, the content hash (`hash.rs`) would show it.
//!
//! Everything a replica could decide differently from its peers is decided by the proposer and
//! written into the command (T8): apply knows no clock, no configuration and no
//! role.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api::{
    AuthRequest, ClusterInfo, CompactionRequest, DeleteRangeRequest, Error, ErrorKind, LeaseRef,
    PutRequest, ResponseBody, SessionCall, TxnRequest,
};
use crate::types::{LogIndex, SessionId, Term, VersionRange};

use super::access::Author;
use super::lease::{LeaseChange, LeaseGrant};
use super::meta::FIRST_VERSION;
use super::space_alarm::SpaceAlarm;

use super::record_hash::ContentHash;

/// One change of the state machine, as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A client's write.
    Write {
        /// Its place in the client's session, if it is to be applied exactly once.
        session: Option<SessionCall>,
        /// What to write.
        operation: Operation,
    },
    /// Opens a session. Its id is the index of this entry, so no id is ever used twice.
    OpenSession {
        /// The proposer's limit: a table that already holds this many refuses the new one.
        sessions_max: u32,
    },
    /// Records the cluster's identity and first members. Once they are set, nothing changes them.
    Bootstrap(ClusterInfo),
    /// Forgets sessions and the replies kept for them.
    ForgetSessions {
        /// Which. Unknown ones are passed over.
        sessions: Vec<SessionId>,
        /// Spares a session that has been used after this index: it came back to life between
        /// the proposer's decision and this entry.
        unused_since: LogIndex,
    },
    /// Ends leases that were not renewed in time.
    ExpireLeases {
        /// The leadership that decided it: in an entry of any other term it means nothing.
        term: Term,
        /// Which. Those that are gone are passed over.
        leases: Vec<LeaseRef>,
    },
    /// Notes what is left of leases, for the next leader.
    MarkLeases {
        /// The leadership that decided it: in an entry of any other term it means nothing.
        term: Term,
        /// Which, and what.
        marks: Vec<LeaseMark>,
    },
    /// Deletes more keys of leases that have ended and had too many for one step.
    ContinueLeaseEnds {
        /// Which.
        leases: Vec<LeaseRef>,
    },
    /// Changes nothing: every replica tells the others which content hash it has here.
    CheckHash,
    /// From here on the cluster is of this version, if it is not of a later one: every member has said
    /// that it reads it, and what it brings may follow in the log.
    RaiseVersion {
        /// The version.
        version: u16,
    },
    /// From here on what would make the state grow is refused with these figures, or, with none, is
    /// not any more.
    SetSpaceAlarm(Option<SpaceAlarm>),
    /// A write of somebody who is known: what access control goes by, where there is one.
    WriteAs {
        /// Whose.
        author: Author,
        /// Its place in his session, if it is to be applied exactly once.
        session: Option<SessionCall>,
        /// What to write.
        operation: Operation,
    },
    /// Opens a session that is somebody's own.
    OpenSessionAs {
        /// Whose.
        author: Author,
        /// As in [`Command::OpenSession`].
        sessions_max: u32,
    },
}

/// Something to be noted of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseMark {
    /// Of which.
    pub lease: LeaseRef,
    /// What.
    pub kind: LeaseMarkKind,
}

/// What is noted of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseMarkKind {
    /// So many milliseconds were left of it: a new leader need give it no more.
    Remaining(u64),
    /// Nothing any more: it was renewed since.
    Clear,
    /// A longer time to live that it once had is not promised to anybody any more.
    Settle {
        /// What it has now; with any other, the mark means nothing.
        ttl_ms: u64,
    },
}

/// A change of keys and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Writes one key.
    Put(PutRequest),
    /// Deletes one key or a range of keys.
    DeleteRange(DeleteRangeRequest),
    /// Gives up history: changes no key, and no revision.
    Compact(CompactionRequest),
    /// Compares, and does one thing or another.
    Txn(TxnRequest),
    /// Grants a lease.
    LeaseGrant(LeaseGrant),
    /// Ends a lease.
    LeaseRevoke(LeaseRef),
    /// Gives a lease another time to live.
    LeaseUpdateTtl {
        /// Which.
        lease: LeaseRef,
        /// In milliseconds, within the proposer's limits.
        ttl_ms: u64,
    },
    /// Grants a lease and attaches a key to it.
    PutWithNewLease {
        /// The lease.
        grant: LeaseGrant,
        /// The key, and its value.
        put: PutRequest,
    },
    /// Changes who may do what. Passwords are hashed by now.
    Auth(AuthRequest),
}

/// The format version this program writes, and the highest that it reads.
const VERSION: u8 = 1;

/// The versions of the cluster that this program knows. The newest rises with every kind of command,
/// and every message between nodes, that the release before does not read: whatever is new is used
/// only when the cluster is of that version ([`Command::since`]), which it becomes when every member
/// knows it. The oldest rises when something may not be in any log any more.
pub const KNOWN_VERSIONS: VersionRange = VersionRange {
    oldest: 1,
    newest: 1,
};

impl Command {
    /// The version of the cluster from which on this may be in its log.
    pub fn since(&self) -> u16 {
        match self {
            Self::Write { operation, .. } | Self::WriteAs { operation, .. } => operation.since(),
            Self::OpenSession { .. }
            | Self::OpenSessionAs { .. }
            | Self::SetSpaceAlarm(_)
            | Self::Bootstrap(_)
            | Self::ForgetSessions { .. }
            | Self::ExpireLeases { .. }
            | Self::MarkLeases { .. }
            | Self::ContinueLeaseEnds { .. }
            | Self::CheckHash
            | Self::RaiseVersion { .. } => FIRST_VERSION,
        }
    }

    /// The bytes that go into the log.
    pub fn encode(&self) -> Bytes {
        let bytes = postcard::to_extend(self, vec![VERSION])
            .expect("a vector grows without bound and the types serialize without fail");
        Bytes::from(bytes)
    }

    /// Reads what [`Command::encode`] wrote.
    ///
    /// # Errors
    /// Bytes that are no command of a version known here, or that go on after one.
    pub fn decode(bytes: &[u8]) -> Result<Self, CommandError> {
        let (version, body) = bytes.split_first().ok_or(CommandError::Empty)?;
        if *version != VERSION {
            return Err(CommandError::UnknownVersion { found: *version });
        }
        let (command, rest) =
            postcard::take_from_bytes(body).map_err(|_| CommandError::Malformed)?;
        if !rest.is_empty() {
            return Err(CommandError::TrailingBytes { count: rest.len() });
        }
        Ok(command)
    }
}

impl Operation {
    fn since(&self) -> u16 {
        match self {
            Self::Put(_)
            | Self::DeleteRange(_)
            | Self::Compact(_)
            | Self::Txn(_)
            | Self::LeaseGrant(_)
            | Self::LeaseRevoke(_)
            | Self::LeaseUpdateTtl { .. }
            | Self::PutWithNewLease { .. }
            | Self::Auth(_) => FIRST_VERSION,
        }
    }
}

/// The version to which `bytes`, if they are a command, raise the cluster. Asked of every entry, so
/// nothing else is decoded.
pub fn raises_version(bytes: &[u8]) -> Option<u16> {
    if !matches!(bytes, [VERSION, RAISE_VERSION, ..]) {
        return None;
    }
    match Command::decode(bytes) {
        Ok(Command::RaiseVersion { version }) => Some(version),
        _ => None,
    }
}

/// Whether `bytes` are a command that may end very many leases: one that takes as long to apply as some
/// hundred writes do. Asked without decoding it, by the number of its variant, which never changes.
pub fn ends_many_leases(bytes: &[u8]) -> bool {
    matches!(bytes, [VERSION, EXPIRE_LEASES | CONTINUE_LEASE_ENDS, ..])
}

const EXPIRE_LEASES: u8 = 4;
const CONTINUE_LEASE_ENDS: u8 = 6;
const RAISE_VERSION: u8 = 8;

/// Why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// There is nothing, not even a version.
    #[error("the command is empty")]
    Empty,
    /// Written by a later version of this program.
    #[error(
        "the command has format version {found}, but this release reads up to {VERSION}: run the \
         same release on every node"
    )]
    UnknownVersion {
        /// The version it carries.
        found: u8,
    },
    /// The version is known and the rest does not read.
    #[error("the command does not read as format version {VERSION}")]
    Malformed,
    /// A command reads, and more follows.
    #[error("{count} unexpected bytes follow the command")]
    TrailingBytes {
        /// How many.
        count: usize,
    },
}

impl From<CommandError> for Error {
    /// The refusal that every replica gives for such an entry: it took no effect.
    fn from(error: CommandError) -> Self {
        Self::not_applied(ErrorKind::Unsupported, error.to_string())
    }
}

/// What applying an entry answers. Equal on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The revision of the reply's header: after the entry, or, for a retry, after the first time.
    pub revision: i64,
    /// What to tell the client. `None` for entries that no client waits for.
    pub result: Result<Option<ResponseBody>, Error>,
    /// What the entry did to leases. A retry does nothing.
    pub leases: Vec<LeaseChange>,
    /// The write had been decided before: this is what its session kept.
    pub is_repeat: bool,
    /// How many more keys hang on leases than before the entry; negative if fewer.
    pub lease_keys: i64,
    /// To [`Command::CheckHash`]: the content hash once the entry is applied.
    pub hash: Option<ContentHash>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyRange, MemberInfo};
    use crate::kv::access::Identity;
    use crate::types::{ClusterId, NodeId};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const LEASE: LeaseRef = LeaseRef {
        id: 2,
        grant_index: 3,
    };

    fn lease_grant() -> LeaseGrant {
        LeaseGrant {
            id: 2,
            ttl_ms: 10,
            requested_ttl_ms: 5,
            name: "n".into(),
            owner: "o".into(),
            granted_at_ms: 6,
            leases_max: 8,
        }
    }

    fn examples() -> Vec<(Command, &'static str)> {
        vec![
            (
                Command::Write {
                    session: None,
                    operation: Operation::Put(PutRequest {
                        key: Bytes::from_static(b"key"),
                        value: Bytes::from_static(b"value"),
                        prev_kv: true,
                        ..PutRequest::default()
                    }),
                },
                "01000000036b65790576616c756501000000",
            ),
            (
                Command::Write {
                    session: Some(SessionCall {
                        id: SessionId(300),
                        sequence: 2,
                        acknowledged: 1,
                    }),
                    operation: Operation::DeleteRange(DeleteRangeRequest {
                        key: Bytes::from_static(b"a"),
                        range: KeyRange::Until(Bytes::from_static(b"b")),
                        prev_kv: false,
                    }),
                },
                "010001ac020201010161020162 00",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::Compact(CompactionRequest::at(70)),
                },
                "010000028c0100",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::Txn(TxnRequest::create("k", "v")),
                },
                // If mod(k) = 0 then put else get.
                "01000003 01 016b 00 00 02 00 01 01 016b 0176 00000000 01 00 016b 00 00 00 00 00 \
                 00 00 00 00 00 00",
            ),
            (Command::OpenSession { sessions_max: 128 }, "01018001"),
            (
                Command::Bootstrap(ClusterInfo {
                    cluster_id: ClusterId(5),
                    members: vec![MemberInfo {
                        id: NodeId(1),
                        name: "n1".into(),
                        peer_address: "h:1".into(),
                        client_address: String::new(),
                    }],
                }),
                "0102050101026e3103683a3100",
            ),
            (
                Command::ForgetSessions {
                    sessions: vec![SessionId(7), SessionId(9)],
                    unused_since: LogIndex(40),
                },
                "010302070928",
            ),
            (
                Command::ExpireLeases {
                    term: Term(9),
                    leases: vec![LEASE],
                },
                "01 04 09 01 04 03",
            ),
            (
                Command::MarkLeases {
                    term: Term(9),
                    marks: [
                        LeaseMarkKind::Remaining(5),
                        LeaseMarkKind::Clear,
                        LeaseMarkKind::Settle { ttl_ms: 7 },
                    ]
                    .map(|kind| LeaseMark { lease: LEASE, kind })
                    .to_vec(),
                },
                "01 05 09 03 04 03 00 05 04 03 01 04 03 02 07",
            ),
            (
                Command::ContinueLeaseEnds {
                    leases: vec![LEASE],
                },
                "01 06 01 04 03",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::LeaseGrant(lease_grant()),
                },
                "01 00 00 04 04 0a 05 016e 016f 0c 08",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::LeaseRevoke(LEASE),
                },
                "01 00 00 05 04 03",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::LeaseUpdateTtl {
                        lease: LEASE,
                        ttl_ms: 5,
                    },
                },
                "01 00 00 06 04 03 05",
            ),
            (
                Command::Write {
                    session: None,
                    operation: Operation::PutWithNewLease {
                        grant: lease_grant(),
                        put: PutRequest::default(),
                    },
                },
                "01 00 00 07 04 0a 05 016e 016f 0c 08 00 00 00 00 00 00",
            ),
            (Command::CheckHash, "0107"),
            (Command::RaiseVersion { version: 300 }, "0108ac02"),
            (
                Command::SetSpaceAlarm(Some(SpaceAlarm { used: 9, quota: 8 })),
                "01 09 01 09 08",
            ),
            (Command::SetSpaceAlarm(None), "01 09 00"),
            (
                Command::WriteAs {
                    author: Author::Node,
                    session: None,
                    operation: Operation::Compact(CompactionRequest::at(70)),
                },
                "01 0a 00 00 02 8c0100",
            ),
            (
                Command::WriteAs {
                    author: Author::Client(Identity {
                        name: "anna".into(),
                        generation: Some(3),
                    }),
                    session: None,
                    operation: Operation::Auth(AuthRequest::Disable),
                },
                "01 0a 01 04616e6e61 0103 00 08 01",
            ),
            (
                Command::OpenSessionAs {
                    author: Author::Client(Identity {
                        name: "anna".into(),
                        generation: None,
                    }),
                    sessions_max: 128,
                },
                "01 0b 01 04616e6e61 00 8001",
            ),
        ]
    }

    #[test]
    fn the_encoding_of_every_command_is_pinned() {
        for (command, golden) in examples() {
            let bytes = command.encode();
            assert_eq!(hex(&bytes), golden.replace(' ', ""), "{command:?}");
            assert_eq!(Command::decode(&bytes), Ok(command));
        }
    }

    #[test]
    fn what_raises_the_version_is_found_without_decoding_the_rest() {
        for (command, _) in examples() {
            let version = match command {
                Command::RaiseVersion { version } => Some(version),
                _ => None,
            };
            assert_eq!(raises_version(&command.encode()), version, "{command:?}");
        }
        assert_eq!(raises_version(&[VERSION, RAISE_VERSION]), None);
        assert_eq!(raises_version(b""), None);
    }

    #[test]
    fn nothing_is_newer_than_this_program_knows() {
        for (command, _) in examples() {
            assert!(KNOWN_VERSIONS.contains(command.since()), "{command:?}");
        }
        assert!(KNOWN_VERSIONS.contains(FIRST_VERSION));
    }

    #[test]
    fn what_is_not_exactly_a_command_is_refused() {
        assert_eq!(Command::decode(b""), Err(CommandError::Empty));
        assert_eq!(
            Command::decode(&[9, 1, 1]),
            Err(CommandError::UnknownVersion { found: 9 })
        );
        assert_eq!(
            Command::decode(&[VERSION, 200, 1]),
            Err(CommandError::Malformed)
        );
        for (command, _) in examples() {
            let bytes = command.encode();
            for length in 1..bytes.len() {
                assert_eq!(
                    Command::decode(&bytes[..length]),
                    Err(CommandError::Malformed),
                    "the first {length} bytes of {command:?}"
                );
            }
            let mut longer = bytes.to_vec();
            longer.extend_from_slice(b"xy");
            assert_eq!(
                Command::decode(&longer),
                Err(CommandError::TrailingBytes { count: 2 })
            );
        }
    }
}
