//! Requests refused by authentication or access control.

use super::table::{By, Counter, labels, metrics};
use crate::api::ErrorKind;

metrics! {
    /// Requests refused by authentication or access control.
    pub struct AuthMetrics {
        pub failures: By<AuthFailure, Counter> = "leasehold_auth_failures_total",
            "Requests refused by authentication or access control, by reason.";
    }
}

labels! {
    /// Why a request was refused.
    pub enum AuthFailure: "reason" {
        /// No user with this name and password or certificate, or a token of another cluster.
        Unauthenticated = "unauthenticated",
        /// The token has expired.
        TokenExpired = "token_expired",
        /// The user is known and lacks the permission.
        PermissionDenied = "permission_denied",
        /// Too many wrong passwords: this one was not checked.
        LockedOut = "locked_out",
    }
}

impl AuthFailure {
    /// The reason for an error, if it is one of these.
    pub(super) fn of(kind: &ErrorKind) -> Option<Self> {
        match kind {
            ErrorKind::Unauthenticated => Some(Self::Unauthenticated),
            ErrorKind::TokenExpired => Some(Self::TokenExpired),
            ErrorKind::PermissionDenied => Some(Self::PermissionDenied),
            _ => None,
        }
    }
}
