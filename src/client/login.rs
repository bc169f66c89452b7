//! Authentication beyond the certificate: by a user name with a password, or by a token.
//!
//! A token in a file is read for each connection, and again when a request fails because it has
//! expired: whatever fetches tokens from an issuer replaces the file in time.
//!
//! A password is exchanged once for a token, which every node accepts; each connection presents the
//! token right after it is made. When the token has expired, or the password has changed, the
//! request that fails for it fetches a new token and is retried. Where access control is off, no
//! token is needed or presented.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use tokio::time::Instant;
use zeroize::Zeroize;

use super::response::unexpected_response;
use crate::api::{
    AuthRequest, AuthResponse, Error, ErrorKind, Outcome, Request, ResponseBody, Secret,
    TOKEN_BYTES_MAX,
};
use crate::client::link::Link;
use crate::client::retry_rule::RetryRule;
use crate::sync::{Mutex, MutexGuard};

/// How much of a token file is read: more than a token, for the blanks around it.
const TOKEN_FILE_BYTES_MAX: usize = 2 * TOKEN_BYTES_MAX;

/// The credentials to log in with.
#[derive(Clone, Debug)]
pub(super) enum Means {
    Password { name: String, password: Secret },
    Token(Secret),
    TokenFile(PathBuf),
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
            Means::Password { .. } | Means::TokenFile(_) => None,
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
        if let Means::TokenFile(path) = &self.means {
            return show(link, token_of(path, deadline).await?, deadline).await;
        }
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

/// The token in a file, which may be of a machine that does not answer by `deadline`.
async fn token_of(path: &Path, deadline: Instant) -> Result<Secret, Error> {
    let file = path.to_owned();
    let read = tokio::task::spawn_blocking(move || token_in(&file));
    match tokio::time::timeout_at(deadline, read).await {
        Ok(Ok(token)) => token,
        Ok(Err(failed)) => Err(unusable(path, failed)),
        Err(_) => Err(unusable(path, "it could not be read in time")),
    }
}

fn unusable(path: &Path, reason: impl Display) -> Error {
    let path = path.display();
    Error::not_applied(
        ErrorKind::InvalidArgument,
        format!("the token file {path} cannot be used: {reason}"),
    )
}

/// The token in a file, without the blanks around it. Takes as long as the file does.
fn token_in(path: &Path) -> Result<Secret, Error> {
    let wrong = |reason: String| unusable(path, reason);
    // To open what is no file, as a pipe, may take forever.
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => {}
        Ok(_) => return Err(wrong("it is not a regular file".to_owned())),
        Err(error) => return Err(wrong(error.to_string())),
    }
    // All of it at once: growing would leave pieces of the token behind.
    let mut text = Vec::with_capacity(TOKEN_FILE_BYTES_MAX + 1);
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let read = file
        .take(TOKEN_FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text);
    let token = Secret::new(text.trim_ascii());
    text.zeroize();
    read.map_err(|error| wrong(error.to_string()))?;
    match token.reveal().len() {
        0 => Err(wrong("it is empty".to_owned())),
        length if length > TOKEN_BYTES_MAX => {
            Err(wrong(format!("it has more than {TOKEN_BYTES_MAX} bytes")))
        }
        _ => Ok(token),
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

/// Whether a connection is of no use after this error: what is to be presented is refused, or cannot be read or
/// sent at all. The client would act as the user of its certificate instead.
pub(super) fn is_final(error: &Error) -> bool {
    is_about_who(error) || error.kind == ErrorKind::InvalidArgument
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_is_read_without_blanks_and_told_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let said = token_in(&path).unwrap_err();
        assert_eq!(said.kind, ErrorKind::InvalidArgument);
        assert!(
            said.to_string().contains(&path.display().to_string()),
            "{said}"
        );
        let mut full = vec![b'x'; TOKEN_BYTES_MAX];
        for (text, wanted) in [
            (b"a.b.c\n".to_vec(), Ok(b"a.b.c".to_vec())),
            (b" \r\n a \t".to_vec(), Ok(b"a".to_vec())),
            (full.clone(), Ok(full.clone())),
            (b"\n \n".to_vec(), Err("it is empty")),
            (Vec::new(), Err("it is empty")),
            (vec![b'x'; 1 << 20], Err("it has more than 8192 bytes")),
        ] {
            std::fs::write(&path, text).unwrap();
            match (token_in(&path), wanted) {
                (Ok(token), Ok(wanted)) => assert_eq!(token.reveal(), wanted),
                (Err(error), Err(wanted)) => assert!(error.to_string().contains(wanted), "{error}"),
                (read, wanted) => panic!("{read:?} instead of {wanted:?}"),
            }
        }
        full.push(b'x');
        std::fs::write(&path, &full).unwrap();
        assert!(token_in(&path).is_err());
        for what in [folder.path(), Path::new("/dev/zero")] {
            let said = token_in(what).unwrap_err().to_string();
            assert!(said.contains("it is not a regular file"), "{said}");
        }
        // As secrets of pods are.
        let link = folder.path().join("link");
        std::fs::write(&path, "a").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(token_in(&link).unwrap().reveal(), b"a");
    }
}
