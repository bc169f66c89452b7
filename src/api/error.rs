//! Errors: why a request failed, and whether it took effect.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::NodeId;

/// Errors: why a request failed, and whether it took effect.
///
/// `Display` is a sentence for people; programs match on [`Error::kind`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// Whether the request took effect.
    pub outcome: Outcome,
    /// Details beyond the kind: what was found, and what to do about it.
    pub detail: String,
    /// How often the SDK tried before it gave up; `None` if nothing was tried again. Known to this process
    /// alone: no server sends it.
    #[serde(skip)]
    pub tries: Option<Tries>,
}

/// How often a request was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tries {
    /// The attempts that were made, at least one.
    pub attempts: u32,
    /// The time from the beginning of the first one until the end of the last.
    pub elapsed: Duration,
}

impl fmt::Display for Tries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.attempts == 1 { "" } else { "s" };
        write!(f, "{} attempt{plural} in ", self.attempts)?;
        match self.elapsed.as_millis() {
            millis if millis < 1_000 => write!(f, "{millis} ms"),
            // To a tenth, without one that says nothing.
            millis if millis % 1_000 < 100 => write!(f, "{} s", millis / 1_000),
            millis => write!(f, "{}.{} s", millis / 1_000, millis % 1_000 / 100),
        }
    }
}

/// Whether a failed request took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// It took no effect and will take none.
    NotApplied,
    /// It took effect; only the reply is missing.
    Applied,
    /// It may have taken effect, or may yet. Read before repeating it.
    Unknown,
}

/// What went wrong, sorted by who must act.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong; repeating it will not help.
    InvalidArgument,
    /// It is larger than the server accepts.
    RequestTooLarge {
        /// The maximum, in bytes.
        limit: u64,
        /// What was sent, in bytes.
        actual: u64,
    },
    /// This node is not the leader; send the request to that one.
    NotLeader {
        /// The leader, if known.
        leader: Option<NodeId>,
        /// The leader's client address, if known.
        address: Option<String>,
    },
    /// There is no leader at the moment; retry shortly.
    NoLeader,
    /// Leadership changed while the request was in progress.
    LeaderChanged,
    /// A lease-only read found no valid leader lease.
    LeaseInvalid,
    /// No quorum answered in time.
    QuorumTimeout,
    /// The request's own deadline passed.
    DeadlineExceeded,
    /// The server is busy; retry after the given time.
    SlowDown {
        /// How long to wait, in milliseconds.
        retry_after_ms: u32,
    },
    /// The session does not exist (any more): it expired or was never opened.
    SessionExpired,
    /// The reply to this write's number was already acknowledged.
    StaleSequence,
    /// The state has reached its quota, or the leader's disk is full: puts and lease grants are
    /// refused until space is freed. What frees space is always allowed.
    NoSpace {
        /// How much the state takes, in bytes.
        used: u64,
        /// The quota, in bytes.
        quota: u64,
    },
    /// This node cannot serve: its data is damaged and will be rebuilt.
    Corrupt,
    /// This node is stopping or still starting.
    Unavailable,
    /// The other side belongs to another cluster.
    ClusterMismatch,
    /// No secure connection could be made.
    TlsHandshake,
    /// The connection broke.
    ConnectionLost,
    /// No endpoint could be reached.
    ConnectFailed,
    /// The server does not know this request.
    Unsupported,
    /// A bug in leasehold.
    Internal,
    /// A retry of a write that took effect; the first reply was too large to be kept for it.
    ReplyNotKept,
    /// History before this revision has been compacted.
    Compacted {
        /// The oldest revision that can be read.
        compact_revision: i64,
    },
    /// The revision does not exist yet, or no node that was asked had applied it by the read's deadline: the
    /// one that was asked for, or the newest that the client had seen.
    FutureRevision,
    /// A put that keeps the value or lease of its key found no such key.
    KeyNotFound,
    /// A transaction has too many operations, or is nested too deeply.
    TxnTooLarge,
    /// A transaction writes a key twice.
    DuplicateKey,
    /// There is no client lease with that id or name.
    LeaseNotFound,
    /// A client lease has that id or name already.
    LeaseExists,
    /// The client lease has ended, or its end is decided.
    LeaseExpired,
    /// A client lease cannot last that long.
    TtlOutOfRange {
        /// The longest, in milliseconds.
        ttl_max_ms: u64,
    },
    /// The maximum number of client leases, or of keys of a lease, is reached.
    LeaseLimit {
        /// How many there may be.
        limit: u64,
    },
    /// The reply would be larger than the maximum.
    ResponseTooLarge {
        /// The most that a reply holds, in bytes.
        limit: u64,
        /// What it would take, in bytes.
        actual: u64,
    },
    /// A watcher read its events more slowly than they occurred.
    SlowWatcher,
    /// The connection has no such watch (any more).
    WatchNotFound,
    /// The connection already has a watch with that id.
    WatchExists,
    /// A fenced write was refused because its lock has been released or acquired by another holder.
    Fenced {
        /// The create revision that the key of the fence has now; 0 if it does not exist.
        current: i64,
    },
    /// The node does not have that snapshot (any more).
    SnapshotGone,
    /// There already is a member with that name or address.
    MemberExists,
    /// There is no such member.
    MemberNotFound,
    /// The membership change is unsafe, now or at all.
    UnsafeReconfiguration,
    /// The learner has not caught up yet.
    LearnerNotReady,
    /// Authentication failed: the user does not exist, or the password or token is invalid.
    Unauthenticated,
    /// The token has expired: request another one.
    TokenExpired,
    /// The user lacks the permission.
    PermissionDenied,
    /// There is no user with that name.
    UserNotFound,
    /// There already is a user with that name.
    UserExists,
    /// There is no role with that name.
    RoleNotFound,
    /// There already is a role with that name.
    RoleExists,
    /// Another client was faster each time: what was read had changed when it was to be committed.
    /// From the SDK alone.
    Conflict {
        /// The attempts that were made.
        attempts: u32,
    },
    /// What a cache has may be older than the caller allows. From the SDK alone.
    TooOld {
        /// How old it may be, in milliseconds.
        age_ms: u64,
    },
    /// A user has as much as one may have.
    QuotaExceeded {
        /// How much that is.
        limit: u64,
    },
}

impl ErrorKind {
    /// The stable name of the kind: what programs and metrics match on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidArgument => "LH-INVALID-ARGUMENT",
            Self::RequestTooLarge { .. } => "LH-REQUEST-TOO-LARGE",
            Self::NotLeader { .. } => "LH-NOT-LEADER",
            Self::NoLeader => "LH-NO-LEADER",
            Self::LeaderChanged => "LH-LEADER-CHANGED",
            Self::LeaseInvalid => "LH-LEASE-INVALID",
            Self::QuorumTimeout => "LH-QUORUM-TIMEOUT",
            Self::DeadlineExceeded => "LH-DEADLINE-EXCEEDED",
            Self::SlowDown { .. } => "LH-SLOW-DOWN",
            Self::SessionExpired => "LH-SESSION-EXPIRED",
            Self::StaleSequence => "LH-STALE-SEQUENCE",
            Self::NoSpace { .. } => "LH-NO-SPACE",
            Self::Corrupt => "LH-CORRUPT",
            Self::Unavailable => "LH-UNAVAILABLE",
            Self::ClusterMismatch => "LH-CLUSTER-MISMATCH",
            Self::TlsHandshake => "LH-TLS-HANDSHAKE",
            Self::ConnectionLost => "LH-CONNECTION-LOST",
            Self::ConnectFailed => "LH-CONNECT-FAILED",
            Self::Unsupported => "LH-UNSUPPORTED",
            Self::Internal => "LH-INTERNAL",
            Self::ReplyNotKept => "LH-REPLY-NOT-KEPT",
            Self::Compacted { .. } => "LH-COMPACTED",
            Self::FutureRevision => "LH-FUTURE-REVISION",
            Self::KeyNotFound => "LH-KEY-NOT-FOUND",
            Self::TxnTooLarge => "LH-TXN-TOO-LARGE",
            Self::DuplicateKey => "LH-DUPLICATE-KEY",
            Self::SlowWatcher => "LH-SLOW-WATCHER",
            Self::WatchNotFound => "LH-WATCH-NOT-FOUND",
            Self::WatchExists => "LH-WATCH-EXISTS",
            Self::Fenced { .. } => "LH-FENCED",
            Self::LeaseNotFound => "LH-LEASE-NOT-FOUND",
            Self::LeaseExists => "LH-LEASE-EXISTS",
            Self::LeaseExpired => "LH-LEASE-EXPIRED",
            Self::TtlOutOfRange { .. } => "LH-TTL-OUT-OF-RANGE",
            Self::LeaseLimit { .. } => "LH-LEASE-LIMIT",
            Self::ResponseTooLarge { .. } => "LH-RESPONSE-TOO-LARGE",
            Self::SnapshotGone => "LH-SNAPSHOT-GONE",
            Self::MemberExists => "LH-MEMBER-EXISTS",
            Self::MemberNotFound => "LH-MEMBER-NOT-FOUND",
            Self::UnsafeReconfiguration => "LH-UNSAFE-RECONFIGURATION",
            Self::LearnerNotReady => "LH-LEARNER-NOT-READY",
            Self::Unauthenticated => "LH-UNAUTHENTICATED",
            Self::TokenExpired => "LH-TOKEN-EXPIRED",
            Self::PermissionDenied => "LH-PERMISSION-DENIED",
            Self::UserNotFound => "LH-USER-NOT-FOUND",
            Self::UserExists => "LH-USER-EXISTS",
            Self::RoleNotFound => "LH-ROLE-NOT-FOUND",
            Self::RoleExists => "LH-ROLE-EXISTS",
            Self::Conflict { .. } => "LH-CONFLICT",
            Self::TooOld { .. } => "LH-TOO-OLD",
            Self::QuotaExceeded { .. } => "LH-QUOTA-EXCEEDED",
        }
    }
}

impl Error {
    /// A request that took no effect.
    pub fn not_applied(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: Outcome::NotApplied,
            detail: detail.into(),
            tries: None,
        }
    }

    /// A request that may have taken effect.
    pub fn unknown(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: Outcome::Unknown,
            detail: detail.into(),
            tries: None,
        }
    }

    /// The stable name of the kind.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Whether the same request may succeed if it is sent again. Whether repeating it is safe is a
    /// different question, which [`Error::outcome`] answers.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::NotLeader { .. }
                | ErrorKind::NoLeader
                | ErrorKind::LeaderChanged
                | ErrorKind::QuorumTimeout
                | ErrorKind::SlowDown { .. }
                | ErrorKind::Unavailable
                | ErrorKind::ConnectionLost
                | ErrorKind::ConnectFailed
                | ErrorKind::Conflict { .. }
                | ErrorKind::TooOld { .. }
        )
    }

    /// How long the server asks the client to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ErrorKind::SlowDown { retry_after_ms } => {
                Some(Duration::from_millis(u64::from(retry_after_ms)))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.detail, self.code())?;
        if let Some(tries) = self.tries {
            write!(f, "; gave up after {tries}")?;
        }
        match self.outcome {
            Outcome::NotApplied => write!(f, ")"),
            Outcome::Applied => write!(f, "; the request took effect)"),
            Outcome::Unknown => write!(f, "; the request may have taken effect)"),
        }
    }
}

impl std::error::Error for Error {}
