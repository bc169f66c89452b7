//! How a gRPC call ends.

use std::borrow::Cow;

/// The codes that are used here. The numbers are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// None of the others.
    Unknown = 2,
    /// The request is wrong.
    InvalidArgument = 3,
    /// The client's deadline passed.
    DeadlineExceeded = 4,
    /// What the request names does not exist.
    NotFound = 5,
    /// The user may not do that.
    PermissionDenied = 7,
    /// Memory, space or patience is exhausted.
    ResourceExhausted = 8,
    /// The state does not allow it.
    FailedPrecondition = 9,
    /// A revision or a duration is out of range.
    OutOfRange = 11,
    /// There is no such method, or it does not work that way.
    Unimplemented = 12,
    /// The request is not what its method takes.
    Internal = 13,
    /// Not now, or not here; or the outcome is not known.
    Unavailable = 14,
    /// The data of this node is damaged.
    DataLoss = 15,
    /// The user is not known.
    Unauthenticated = 16,
}

/// Why a call failed: etcd's code and its text, which clients compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Status {
    /// The code.
    pub(crate) code: Code,
    /// The text, as clients see it.
    pub(crate) message: Cow<'static, str>,
}

impl Status {
    /// A failure with this text.
    pub(crate) const fn new(code: Code, message: &'static str) -> Self {
        Self {
            code,
            message: Cow::Borrowed(message),
        }
    }

    /// A failure whose text is put together.
    pub(crate) const fn with(code: Code, message: String) -> Self {
        Self {
            code,
            message: Cow::Owned(message),
        }
    }
}
