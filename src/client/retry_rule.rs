//! What becomes of a request after an error: whether it is sent again, where, and after which wait.
//!
//! These are the rules by which the router decides (`route.rs`), and of which docs/reference/retries.md is made. That an
//! error allows another attempt is half of it: the request must be safe to send again, which
//! [`Attempts`](crate::api::Attempts) says. Nothing is sent after the deadline of the request.

use std::time::Duration;

use crate::api::ErrorKind;

/// Where and when a request may be sent again after a node has answered it with an error.
///
/// ```
/// use leasehold::api::ErrorKind;
/// use leasehold::client::RetryRule;
///
/// assert_eq!(RetryRule::of(&ErrorKind::NoLeader), RetryRule::Elsewhere);
/// assert_eq!(RetryRule::of(&ErrorKind::InvalidArgument), RetryRule::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryRule {
    /// At the leader that the node names, at once the first time, later after a back-off; at another node if it
    /// names none.
    AtLeader,
    /// At the same node, after the wait that it asks for, or a back-off if that is longer.
    AfterWait(Duration),
    /// At another node if there is one, after a back-off.
    Elsewhere,
    /// At the same node, at once, when the client has logged in there, if it has a user; else not at all.
    AfterLogin,
    /// Not at all; the next request does not begin at this node.
    NextElsewhere,
    /// Not at all.
    Never,
}

impl RetryRule {
    /// The rule for an error that a node answered with.
    pub fn of(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::NotLeader { .. } => Self::AtLeader,
            ErrorKind::SlowDown { retry_after_ms } => {
                Self::AfterWait(Duration::from_millis(u64::from(*retry_after_ms)))
            }
            // Another node may be able to serve what this one cannot.
            ErrorKind::NoLeader
            | ErrorKind::LeaderChanged
            | ErrorKind::QuorumTimeout
            | ErrorKind::Unavailable
            // Of a node that forwards, to its leader.
            | ErrorKind::ConnectionLost
            | ErrorKind::Corrupt => Self::Elsewhere,
            // The last one where access control was turned on after the connection was made.
            ErrorKind::Unauthenticated
            | ErrorKind::TokenExpired
            | ErrorKind::PermissionDenied => Self::AfterLogin,
            // It lags, is slow, or leads no more: the next request asks elsewhere who leads.
            ErrorKind::DeadlineExceeded | ErrorKind::FutureRevision => Self::NextElsewhere,
            _ => Self::Never,
        }
    }

    /// The rule for an error that the opening of a watch was refused with, be it the first or one where the watch goes
    /// on. It is opened at another node, unless it is to be at one endpoint alone.
    pub fn of_watching(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::Compacted { .. }
            | ErrorKind::InvalidArgument
            | ErrorKind::RequestTooLarge { .. }
            | ErrorKind::PermissionDenied
            | ErrorKind::Unauthenticated
            | ErrorKind::TokenExpired
            | ErrorKind::Unsupported => Self::Never,
            ErrorKind::SlowDown { retry_after_ms } => {
                Self::AfterWait(Duration::from_millis(u64::from(*retry_after_ms)))
            }
            _ => Self::Elsewhere,
        }
    }

    /// The rule for an error that kept a node from being connected to: nothing was sent, so every request is safe
    /// to send again.
    pub fn of_connecting(kind: &ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidArgument | ErrorKind::Unauthenticated | ErrorKind::TokenExpired => {
                Self::Never
            }
            _ => Self::Elsewhere,
        }
    }
}
