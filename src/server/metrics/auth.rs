//! Metrics of requests that were refused for who asked.

use metrics::Counter;

use super::Register;
use crate::api::ErrorKind;

/// What was wrong with who asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthFailure {
    /// Nobody of that name with that password or certificate, or no token of this cluster.
    Unauthenticated,
    /// The token has had its time.
    TokenExpired,
    /// Who it is was clear, and may not do it.
    PermissionDenied,
    /// After wrong passwords: the next one was not looked at yet.
    LockedOut,
}

/// Requests refused for who asked.
pub struct AuthMetrics {
    failures: [Counter; AuthFailure::ALL.len()],
}

impl AuthFailure {
    const ALL: [Self; 4] = [
        Self::Unauthenticated,
        Self::TokenExpired,
        Self::PermissionDenied,
        Self::LockedOut,
    ];

    /// What an error says about who asked, if it does.
    pub(super) fn of(kind: &ErrorKind) -> Option<Self> {
        match kind {
            ErrorKind::Unauthenticated => Some(Self::Unauthenticated),
            ErrorKind::TokenExpired => Some(Self::TokenExpired),
            ErrorKind::PermissionDenied => Some(Self::PermissionDenied),
            _ => None,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Unauthenticated => "unauthenticated",
            Self::TokenExpired => "token_expired",
            Self::PermissionDenied => "permission_denied",
            Self::LockedOut => "locked_out",
        }
    }
}

impl AuthMetrics {
    pub(super) fn new(register: Register<'_>) -> Self {
        Self {
            failures: AuthFailure::ALL.map(|reason| {
                register.labelled(&[("reason", reason.label())]).counter(
                    "leasehold_auth_failures_total",
                    "Requests refused by authentication or access control, by reason.",
                )
            }),
        }
    }

    /// Requests refused for this.
    pub fn failures(&self, reason: AuthFailure) -> &Counter {
        &self.failures[reason as usize]
    }
}
