//! Commands, as stored in the log, and the replies of applying them.
//!
//! A [`Command`] is written once by a leader and read by every replica for as long as the log
//! lives, also by later versions of this program. So its bytes begin with a format version, its
//! variants are only ever appended, and a test holds the encoding of each to its golden bytes.
//!
//! Apply refuses a command that cannot be decoded, without any change. This keeps replicas equal
//! only while all decode alike, so a leader proposes nothing that the release of some member does
//! not know (`node/upgrade.rs`); if it did, the content hash (`hash.rs`) would reveal it.
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
use crate::types::{BootstrapId, LogIndex, NodeId, SessionId, Term, VersionRange};

use super::access::Author;
use super::lease::{LeaseChange, LeaseGrant};
use super::space_alarm::SpaceAlarm;

use super::record_hash::ContentHash;

/// One change of the state machine, as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A client's write, or a node's own.
    Write {
        /// The author, for access control. `None` for an unauthenticated client, which is refused
        /// while access control is enabled.
        author: Option<Author>,
        /// Its session and number, if it is to be applied exactly once.
        session: Option<SessionCall>,
        /// What to write.
        operation: Operation,
    },
    /// Opens a session. Its id follows from the index of this entry and from the cluster's bootstrap, so no
    /// id is ever used twice.
    OpenSession {
        /// The owner of the session; as in [`Command::Write`].
        author: Option<Author>,
        /// The proposer's limit: no session is opened if this many are open already.
        sessions_max: u32,
    },
    /// Records the cluster's identity and first members. Once they are set, nothing changes them. Read only:
    /// clusters that were bootstrapped with it have the bootstrap 0.
    Bootstrap(ClusterInfo),
    /// Forgets sessions and the replies kept for them.
    ForgetSessions {
        /// Their ids. Unknown ones are skipped.
        sessions: Vec<SessionId>,
        /// Keeps a session used after this index: it became active between the proposer's decision
        /// and this entry.
        unused_since: LogIndex,
    },
    /// Expires leases that were not renewed in time.
    ExpireLeases {
        /// The term of the leader that decided it: in an entry of any other term it has no effect.
        term: Term,
        /// Their ids. Those that no longer exist are skipped.
        leases: Vec<LeaseRef>,
    },
    /// Checkpoints the remaining time of leases, for the next leader.
    MarkLeases {
        /// The term of the leader that decided it: in an entry of any other term it has no effect.
        term: Term,
        /// Which, and what.
        marks: Vec<LeaseMark>,
    },
    /// Deletes more keys of leases that have ended and had too many for one step.
    ContinueLeaseEnds {
        /// Which.
        leases: Vec<LeaseRef>,
    },
    /// Changes nothing: every replica reports its content hash at this entry to the others.
    CheckHash,
    /// Raises the version of the cluster, unless it is higher already: every member has reported
    /// that it supports this version, so entries of it may follow in the log.
    RaiseVersion {
        /// The version.
        version: u16,
    },
    /// Raises the space alarm with these figures, so that writes that would make the state grow are
    /// refused; clears it if there are none.
    SetSpaceAlarm(Option<SpaceAlarm>),
    /// Records the cluster's identity and first members, and which bootstrap of it this is. Once they are set,
    /// nothing changes them.
    BootstrapAs {
        /// Drawn by the first leader.
        bootstrap: BootstrapId,
        /// The identity and members.
        info: ClusterInfo,
    },
    /// Records where etcd's clients reach the members, which are these: what each has said, empty if it has no
    /// such port, or nothing if its leader has not heard of it.
    SetEtcdUrls(Vec<(NodeId, Option<String>)>),
}

/// A checkpoint of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseMark {
    /// Of which.
    pub lease: LeaseRef,
    /// What.
    pub kind: LeaseMarkKind,
}

/// What a checkpoint records about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaseMarkKind {
    /// The remaining time in milliseconds: a new leader need not give it more.
    Remaining(u64),
    /// Cleared: it was renewed since.
    Clear,
    /// A longer, earlier TTL is no longer promised to any holder.
    Settle {
        /// Its current TTL; if it has another one by now, the checkpoint has no effect.
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
    /// Compacts history: changes no key, and no revision.
    Compact(CompactionRequest),
    /// Runs a transaction.
    Txn(TxnRequest),
    /// Grants a lease.
    LeaseGrant(LeaseGrant),
    /// Ends a lease.
    LeaseRevoke(LeaseRef),
    /// Changes the TTL of a lease.
    LeaseUpdateTtl {
        /// Which.
        lease: LeaseRef,
        /// In milliseconds, within the proposer's limits.
        ttl_ms: u64,
    },
    /// Grants a lease and attaches a key to it.
    PutWithNewLease {
        /// The lease.
        grant: Box<LeaseGrant>,
        /// The key, and its value.
        put: PutRequest,
    },
    /// Changes users, roles or access control. Passwords have been hashed.
    Auth(AuthRequest),
    /// Raises or clears an operator's alarm.
    SetAlarm {
        /// Of which member.
        member: NodeId,
        /// Raises it.
        is_raised: bool,
    },
}

/// The format version this program writes, and the highest that it reads.
const VERSION: u8 = 1;

/// The cluster versions that this release supports. The newest rises with every kind of command,
/// and every message between nodes, that the previous release cannot decode: new features are used
/// only once the cluster has that version, to which it is raised when every member supports it. The oldest rises when something can no longer be in any log.
pub const KNOWN_VERSIONS: VersionRange = VersionRange {
    oldest: 1,
    newest: 1,
};

impl Command {
    /// The bytes that go into the log.
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(self.bytes_expected());
        bytes.push(VERSION);
        let bytes = postcard::to_extend(self, bytes)
            .expect("a vector grows without bound and the types serialize without fail");
        Bytes::from(bytes)
    }

    /// About what [`Command::encode`] writes, so that the most common command need not grow as it is written.
    fn bytes_expected(&self) -> usize {
        let operation = match self {
            Self::Write { operation, .. } => Some(operation),
            _ => None,
        };
        let put = match operation {
            Some(Operation::Put(put) | Operation::PutWithNewLease { put, .. }) => {
                put.key.len() + put.value.len()
            }
            _ => 0,
        };
        64 + put
    }

    /// Reads what [`Command::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are not a command of a supported version, or more bytes follow it.
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

/// The version to which `bytes`, if they are a command, raise the cluster. Called for every entry,
/// so nothing else is decoded.
pub fn raises_version(bytes: &[u8]) -> Option<u16> {
    if !matches!(bytes, [VERSION, RAISE_VERSION, ..]) {
        return None;
    }
    match Command::decode(bytes) {
        Ok(Command::RaiseVersion { version }) => Some(version),
        _ => None,
    }
}

/// Which bootstrap of its cluster `bytes` record, if they are the command for that. Called for every
/// entry while that is not known, so nothing else is decoded.
pub fn bootstraps(bytes: &[u8]) -> Option<BootstrapId> {
    if !matches!(bytes, [VERSION, BOOTSTRAP | BOOTSTRAP_AS, ..]) {
        return None;
    }
    match Command::decode(bytes) {
        Ok(Command::Bootstrap(_)) => Some(BootstrapId::default()),
        Ok(Command::BootstrapAs { bootstrap, .. }) => Some(bootstrap),
        _ => None,
    }
}

/// Whether `bytes` are a command that may end very many leases, which takes as long to apply as
/// some hundred writes. Decided without decoding it, by the number of its variant, which never
/// changes.
pub fn ends_many_leases(bytes: &[u8]) -> bool {
    matches!(bytes, [VERSION, EXPIRE_LEASES | CONTINUE_LEASE_ENDS, ..])
}

const BOOTSTRAP: u8 = 2;
const EXPIRE_LEASES: u8 = 4;
const CONTINUE_LEASE_ENDS: u8 = 6;
const RAISE_VERSION: u8 = 8;
const BOOTSTRAP_AS: u8 = 10;

/// Why bytes are not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The bytes are empty.
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
    /// The version is supported, but the rest cannot be decoded.
    #[error("the command does not read as format version {VERSION}")]
    Malformed,
    /// A command was decoded, but more bytes follow.
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

/// The reply of applying an entry. Equal on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The revision of the reply's header: after the entry, or, for a retry, after the first time.
    pub revision: i64,
    /// What to tell the client. `None` for entries that no client waits for.
    pub result: Result<Option<ResponseBody>, Error>,
    /// What the entry did to leases. A retry does nothing.
    pub leases: Vec<LeaseChange>,
    /// The write had been decided before: this is the reply its session kept.
    pub is_repeat: bool,
    /// The change in the number of keys attached to leases; negative if fewer.
    pub lease_keys: i64,
    /// To [`Command::CheckHash`]: the content hash once the entry is applied.
    pub hash: Option<ContentHash>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyRange, MemberInfo};
    use crate::kv::access::Identity;
    use crate::types::ClusterId;

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
            keys_max: 7,
            per_user_max: 9,
        }
    }

    fn examples() -> Vec<(Command, &'static str)> {
        vec![
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::Put(PutRequest {
                        key: Bytes::from_static(b"key"),
                        value: Bytes::from_static(b"value"),
                        prev_kv: true,
                        ..PutRequest::default()
                    }),
                },
                "0100000000036b65790576616c756501000000",
            ),
            (
                Command::Write {
                    author: None,
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
                "01000001ac020201010161020162 00",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::Compact(CompactionRequest::at(70)),
                },
                "01000000028c0100",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::Txn(TxnRequest::create("k", "v")),
                },
                // If mod(k) = 0 then put else get.
                "01000000 03 01 016b 00 00 02 00 01 01 016b 0176 00000000 01 00 016b 00 00 00 00 00 \
                 00 00 00 00 00 00",
            ),
            (
                Command::OpenSession {
                    author: None,
                    sessions_max: 128,
                },
                "0101008001",
            ),
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
                    author: None,
                    session: None,
                    operation: Operation::LeaseGrant(lease_grant()),
                },
                "01 00 00 00 04 04 0a 05 016e 016f 0c 08 07 09",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::LeaseRevoke(LEASE),
                },
                "01 00 00 00 05 04 03",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::LeaseUpdateTtl {
                        lease: LEASE,
                        ttl_ms: 5,
                    },
                },
                "01 00 00 00 06 04 03 05",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::PutWithNewLease {
                        grant: Box::new(lease_grant()),
                        put: PutRequest::default(),
                    },
                },
                "01 00 00 00 07 04 0a 05 016e 016f 0c 08 07 09 00 00 00 00 00 00",
            ),
            (Command::CheckHash, "0107"),
            (Command::RaiseVersion { version: 300 }, "0108ac02"),
            (
                Command::SetSpaceAlarm(Some(SpaceAlarm { used: 9, quota: 8 })),
                "01 09 01 09 08",
            ),
            (Command::SetSpaceAlarm(None), "01 09 00"),
            (
                Command::BootstrapAs {
                    bootstrap: BootstrapId(6),
                    info: ClusterInfo {
                        cluster_id: ClusterId(5),
                        members: vec![],
                    },
                },
                "01 0a 06 05 00",
            ),
            (
                Command::SetEtcdUrls(vec![
                    (NodeId(300), Some("u".into())),
                    (NodeId(2), Some(String::new())),
                    (NodeId(3), None),
                ]),
                "01 0b 03 ac02 01 0175 02 01 00 03 00",
            ),
            (
                Command::Write {
                    author: Some(Author::Node),
                    session: None,
                    operation: Operation::Compact(CompactionRequest::at(70)),
                },
                "01 00 01 00 00 02 8c0100",
            ),
            (
                Command::Write {
                    author: Some(Author::Client(Identity {
                        name: "anna".into(),
                        generation: Some(3),
                    })),
                    session: None,
                    operation: Operation::Auth(AuthRequest::Disable),
                },
                "01 00 01 01 04616e6e61 0103 00 08 01",
            ),
            (
                Command::Write {
                    author: None,
                    session: None,
                    operation: Operation::SetAlarm {
                        member: NodeId(300),
                        is_raised: true,
                    },
                },
                "01 00 00 00 09 ac02 01",
            ),
            (
                Command::OpenSession {
                    author: Some(Author::Client(Identity {
                        name: "anna".into(),
                        generation: None,
                    })),
                    sessions_max: 128,
                },
                "01 01 01 01 04616e6e61 00 8001",
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
    fn what_bootstraps_the_cluster_is_found_without_decoding_the_rest() {
        for (command, _) in examples() {
            let found = match command {
                Command::Bootstrap(_) => Some(BootstrapId(0)),
                Command::BootstrapAs { bootstrap, .. } => Some(bootstrap),
                _ => None,
            };
            assert_eq!(bootstraps(&command.encode()), found, "{command:?}");
        }
        assert_eq!(bootstraps(&[VERSION, BOOTSTRAP_AS]), None);
        assert_eq!(bootstraps(b""), None);
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
