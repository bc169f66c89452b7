//! Authentication beyond the certificate: by a user name with a password, or by a token.
//!
//! A password is exchanged once for a token, which every node accepts; each connection presents the
//! token right after it is made. When the token has expired, or the password has changed, the
//! request that fails for it fetches a new token and is retried. Where access control is off, no
//! token is needed or presented.

use tokio::time::Instant;

use super::response::unexpected_response;
use crate::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, Outcome, Request, ResponseBody, Secret,
};
use crate::client::link::Link;
use crate::client::retry_rule::RetryRule;
use crate::sync::{Mutex, MutexGuard};

/// The credentials to log in with.
#[derive(Clone, Debug)]
pub(super) enum Means {
    Password { name: String, password: Secret },
    Token(Secret),
}

/// A client's login, for all of its connections.
#[derive(Debug)]
pub(super) struct Login {
    means: Means,
    /// The latest token.
    token: Mutex<Option<Secret>>,
}

impl Login {
    pub(super) fn new(means: Means) -> Self {
        let token = match &means {
            Means::Password { .. } => None,
            Means::Token(token) => Some(token.clone()),
        };
        Self {
            means,
            token: Mutex::new(token),
        }
    }

    /// Whether logging in (again) on `link` may help after this error.
    pub(super) fn may_help(&self, link: &Link, error: &Error) -> bool {
        let may_help = RetryRule::of(&error.kind) == RetryRule::AfterLogin;
        // Access control may have been turned on after the connection was made.
        may_help && (error.kind != ErrorKind::PermissionDenied || !link.is_logged_in())
    }

    /// Authenticates the client on the connection `link`.
    ///
    /// # Errors
    /// The node rejects the credentials, or does not answer by `deadline`.
    pub(super) async fn log_in(&self, link: &Link, deadline: Instant) -> Result<(), Error> {
        let held = self.held().clone();
        if let Some(token) = held {
            match (show(link, token.clone(), deadline).await, &self.means) {
                (Err(refusal), Means::Password { .. }) if is_about_who(&refusal) => {
                    let mut held = self.held();
                    // Unless another connection has stored a newer one meanwhile.
                    if *held == Some(token) {
                        *held = None;
                    }
                }
                (shown, _) => return shown,
            }
        }
        let Means::Password { name, password } = &self.means else {
            return Ok(());
        };
        let ask = AuthRequest::Authenticate {
            name: name.clone(),
            password: password.clone(),
        };
        match call(link, ask, deadline).await? {
            AuthResponse::Token { token, .. } => {
                *self.held() = Some(token.clone());
                show(link, token, deadline).await
            }
            _ => Ok(()),
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Secret>> {
        self.token.lock()
    }
}

async fn show(link: &Link, token: Secret, deadline: Instant) -> Result<(), Error> {
    let answer = call(link, AuthRequest::UseToken { token }, deadline).await?;
    if answer == AuthResponse::Done {
        link.logged_in();
    }
    Ok(())
}

async fn call(link: &Link, request: AuthRequest, deadline: Instant) -> Result<AuthResponse, Error> {
    let response = link.ask(Request::Auth(request), deadline).await?;
    match response.body {
        ResponseBody::Auth(answer) => Ok(answer),
        other => Err(unexpected_response(&other, Outcome::NotApplied)),
    }
}

/// Whether another token, or another password, may cure the error.
pub(super) fn is_about_who(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Unauthenticated | ErrorKind::TokenExpired
    )
}
