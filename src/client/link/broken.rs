//! Why a request got no answer.

use crate::transport::{ConnectionLost, StreamError};
use crate::wire::WireError;

/// Why a request got no reply on this connection.
#[derive(Clone, Debug)]
pub(in crate::client) struct LinkFailure {
    /// The request may have reached the node.
    pub(in crate::client) sent: bool,
    pub(in crate::client) cause: BrokenCause,
}

/// The cause of a broken connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::client) enum BrokenCause {
    #[error("{0}")]
    Lost(ConnectionLost),
    #[error("it stopped answering")]
    Silent,
    #[error("it sent something that is not a reply")]
    Malformed,
    #[error("it closed the request stream")]
    Ended,
    #[error("it did not answer in time")]
    OutOfTime,
    #[error("{0}")]
    TooLong(WireError),
}

impl From<StreamError> for BrokenCause {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Lost(lost) => Self::Lost(lost),
            StreamError::Malformed(_) => Self::Malformed,
            StreamError::Finished | StreamError::Stopped | StreamError::TooSlow => Self::Ended,
        }
    }
}
