//! Who a client is, where its certificate alone does not say so: a name with a password, or a token.
//!
//! A password is given once for a token, which every node then takes; each connection is shown the
//! token right after it is made. When the token has had its time, or the password has changed, the
//! request that finds out has a new one fetched and is made again. Where access is not controlled,
//! nobody asks, and nothing is shown.

use tokio::time::Instant;

use crate::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, Outcome, Request, ResponseBody, Secret,
};
use crate::client::link::Link;
use crate::client::request::senseless;
use crate::sync::{Mutex, MutexGuard};

/// As whom to log in.
#[derive(Clone, Debug)]
pub(super) enum Means {
    Password { name: String, password: Secret },
    Token(Secret),
}

/// A client's login, for all of its connections.
#[derive(Debug)]
pub(super) struct Login {
    means: Means,
    /// The token that was given last.
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

    /// Whether it is worth logging in (again) on `link` after this refusal.
    pub(super) fn may_help(&self, link: &Link, error: &Error) -> bool {
        match error.kind {
            ErrorKind::Unauthenticated | ErrorKind::TokenExpired => true,
            // Access control was turned on after the connection was made.
            ErrorKind::PermissionDenied => !link.is_logged_in(),
            _ => false,
        }
    }

    /// Tells the other end of `link` who the client is.
    ///
    /// # Errors
    /// It does not believe it, or does not answer by `deadline`.
    pub(super) async fn log_in(&self, link: &Link, deadline: Instant) -> Result<(), Error> {
        let held = self.held().clone();
        if let Some(token) = held {
            match (show(link, token.clone(), deadline).await, &self.means) {
                (Err(refusal), Means::Password { .. }) if is_about_who(&refusal) => {
                    let mut held = self.held();
                    // Unless another connection has a newer one by now.
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
        other => Err(senseless(&other, Outcome::NotApplied)),
    }
}

/// Whether another token, or another password, is what it takes.
pub(super) fn is_about_who(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::Unauthenticated | ErrorKind::TokenExpired
    )
}
