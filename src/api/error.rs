//! Why a request failed, and what became of it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::types::NodeId;

/// Why a request failed, and what became of it.
///
/// `Display` is a sentence for a person; [`Error::kind`] is for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What became of the request.
    pub outcome: Outcome,
    /// One sentence more than the kind says: what was found, and what to do about it.
    pub detail: String,
}

/// What became of a request that failed.
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
    /// It is larger than the server takes.
    RequestTooLarge {
        /// The most that is taken, in bytes.
        limit: u64,
        /// What was sent, in bytes.
        actual: u64,
    },
    /// This node does not lead; ask that one.
    NotLeader {
        /// Who leads, where known.
        leader: Option<NodeId>,
        /// Where clients reach the leader, where known.
        address: Option<String>,
    },
    /// Nobody leads at the moment; ask again shortly.
    NoLeader,
    /// Leadership moved while the request was under way.
    LeaderChanged,
    /// A lease-only read found the lease void.
    LeaseInvalid,
    /// No quorum answered in time.
    QuorumTimeout,
    /// The request's own deadline passed.
    DeadlineExceeded,
    /// The server is busy; ask again after the time given.
    SlowDown {
        /// How long to wait, in milliseconds.
        retry_after_ms: u32,
    },
    /// The session is not known (any more): it was forgotten, or never opened.
    SessionExpired,
    /// The write's number is one whose reply was already acknowledged.
    StaleSequence,
    /// The state is as large as it may be, or the leader's disk is full: nothing is written or granted
    /// until there is room again. What makes room is always allowed.
    NoSpace {
        /// How much the state takes, in bytes.
        used: u64,
        /// How much it may take, in bytes.
        quota: u64,
    },
    /// This node cannot serve: its data is damaged and it waits to be rebuilt.
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
    /// A defect of ours.
    Internal,
    /// A retry of a write that took effect; the first reply was too large to be kept for it.
    ReplyNotKept,
    /// History before this revision has been given up.
    Compacted {
        /// The oldest revision that can be read.
        compact_revision: i64,
    },
    /// The revision does not exist yet, or has not come to the node by the read's deadline.
    FutureRevision,
    /// A put that keeps something of its key found no such key.
    KeyNotFound,
    /// A transaction has too many operations, or is nested too deep.
    TxnTooLarge,
    /// A transaction writes a key twice.
    DuplicateKey,
    /// There is no client lease of that id or name.
    LeaseNotFound,
    /// A client lease has that id or name already.
    LeaseExists,
    /// The client lease is over, or about to be: its end is decided.
    LeaseExpired,
    /// A client lease cannot last that long.
    TtlOutOfRange {
        /// The longest, in milliseconds.
        ttl_max_ms: u64,
    },
    /// There are so many client leases, or a lease has so many keys, that no more may be added.
    LeaseLimit {
        /// How many there may be.
        limit: u64,
    },
    /// What there is to answer is larger than one reply may be.
    ResponseTooLarge {
        /// The most that a reply holds, in bytes.
        limit: u64,
        /// What it would take, in bytes.
        actual: u64,
    },
    /// A watcher took its events more slowly than they arose.
    SlowWatcher,
    /// The connection has no such watch (any more).
    WatchNotFound,
    /// The connection has a watch of that name already.
    WatchExists,
    /// A write named a fence, and the lock has moved on since its writer held it.
    Fenced {
        /// The revision that the key of the fence is from now; 0 if it is gone.
        current: i64,
    },
    /// The node does not have that snapshot (any more).
    SnapshotGone,
    /// There is a member of that name, or at that address, already.
    MemberExists,
    /// There is no such member.
    MemberNotFound,
    /// The members may not be changed like that, or not now: it would not be safe.
    UnsafeReconfiguration,
    /// The learner has not caught up yet.
    LearnerNotReady,
    /// It is not known who asks: there is no such user, or the password or the token is not good.
    Unauthenticated,
    /// The token has had its time: another one must be asked for.
    TokenExpired,
    /// Whoever asks may not do that.
    PermissionDenied,
    /// There is no user of that name.
    UserNotFound,
    /// There is a user of that name already.
    UserExists,
    /// There is no role of that name.
    RoleNotFound,
    /// There is a role of that name already.
    RoleExists,
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
        }
    }

    /// A request that may have taken effect.
    pub fn unknown(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            outcome: Outcome::Unknown,
            detail: detail.into(),
        }
    }

    /// What went wrong.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// What became of the request.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The stable name of the kind.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Whether the same request may succeed if it is sent again. Says nothing about whether
    /// repeating it is safe: that is [`Error::outcome`]'s question.
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
        )
    }

    /// How long the server asks to be left alone.
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
        match self.outcome {
            Outcome::NotApplied => write!(f, ")"),
            Outcome::Applied => write!(f, "; the request took effect)"),
            Outcome::Unknown => write!(f, "; the request may have taken effect)"),
        }
    }
}

impl std::error::Error for Error {}
