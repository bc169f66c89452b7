//! What a command that failed says, and with which code it ends.

use std::{fmt, io};

use crate::api;
use crate::api::{ErrorKind, Outcome};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0. Done; or the reader of our output went away, which is no failure.
    Done,
    /// 1. The server, or this machine, said no.
    Refused,
    /// 2. What was typed cannot be done.
    Usage,
    /// 3. No node could be reached.
    NotConnected,
    /// 4. It may have happened.
    Unknown,
    /// 5. There is no such key, or lease.
    NotFound,
    /// 6. The lease, or the lock, is lost.
    Lost,
    /// 7. This node was removed from its cluster: starting it again will not help.
    Removed,
    /// 8. The lock was not acquired for as long as was to be waited.
    NotAcquired,
    /// A command that was run for the user ended with this code of its own.
    Command(u8),
}

impl Exit {
    /// The code of the process.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::NotConnected => 3,
            Self::Unknown => 4,
            Self::NotFound => 5,
            Self::Lost => 6,
            Self::Removed => 7,
            Self::NotAcquired => 8,
            Self::Command(code) => code,
        }
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code to end with.
    pub exit: Exit,
    /// A sentence that says what to do; empty when there is nothing to say.
    pub message: String,
}

impl Failure {
    /// The server, or this machine, said no.
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(Exit::Refused, message)
    }

    /// What was typed cannot be done.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// With this code.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<api::Error> for Failure {
    fn from(error: api::Error) -> Self {
        let exit = match (error.outcome, &error.kind) {
            (Outcome::Unknown, _) => Exit::Unknown,
            (
                _,
                ErrorKind::ConnectFailed
                | ErrorKind::ConnectionLost
                | ErrorKind::TlsHandshake
                | ErrorKind::ClusterMismatch,
            ) => Exit::NotConnected,
            (
                _,
                ErrorKind::LeaseNotFound
                | ErrorKind::MemberNotFound
                | ErrorKind::UserNotFound
                | ErrorKind::RoleNotFound,
            ) => Exit::NotFound,
            (_, ErrorKind::Fenced { .. } | ErrorKind::LeaseExpired) => Exit::Lost,
            _ => Exit::Refused,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<io::Error> for Failure {
    /// Of writing output, or of something local.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            // `leasehold get --prefix / | head` is no failure.
            io::ErrorKind::BrokenPipe => Self::new(Exit::Done, ""),
            _ => Self::refused(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_says_who_must_act() {
        let code = |error: api::Error| Failure::from(error).exit;
        let not_applied = |kind| api::Error::not_applied(kind, "x");
        assert_eq!(
            code(not_applied(ErrorKind::NoSpace { used: 2, quota: 1 })),
            Exit::Refused
        );
        assert_eq!(code(not_applied(ErrorKind::InvalidArgument)), Exit::Refused);
        assert_eq!(
            code(not_applied(ErrorKind::ConnectFailed)),
            Exit::NotConnected
        );
        assert_eq!(
            code(not_applied(ErrorKind::TlsHandshake)),
            Exit::NotConnected
        );
        assert_eq!(
            code(not_applied(ErrorKind::Fenced { current: 0 })),
            Exit::Lost
        );
        let unknown = |kind| api::Error::unknown(kind, "x");
        assert_eq!(code(unknown(ErrorKind::ConnectionLost)), Exit::Unknown);
        assert_eq!(code(unknown(ErrorKind::DeadlineExceeded)), Exit::Unknown);
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure, Failure::new(Exit::Done, ""));
    }
}
