//! Users, roles and what they may do: what may be asked, and what is answered.
//!
//! The model is etcd's. A user has roles, and may have a password; a role has permissions on ranges
//! of keys. Nothing is allowed that no role of the user allows, once it is turned on
//! ([`AuthRequest::Enable`]). Who has the role [`ROOT`] may do everything.
//!
//! A client is the user whose name stands in its certificate, or, once it has shown a token on its
//! connection, the user that the token was given to.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::limits::validate_range;
use super::{Error, ErrorKind, KeyRange, Limits};
use crate::types::is_name;

/// The role that may do everything, and the user that must have it before anything is enforced.
pub const ROOT: &str = "root";

/// The longest password, in bytes.
pub const PASSWORD_BYTES_MAX: usize = 1024;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 1024;

/// Bytes that are nobody's business: they are shown nowhere, and overwritten when they are dropped.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(#[serde(with = "serde_bytes")] Vec<u8>);

impl Secret {
    /// Keeps `bytes` to itself.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes, for whoever has to have them.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.as_mut_slice().zeroize();
    }
}

/// How a user proves who he is, where it is not by certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Password {
    /// Not at all: only a certificate of his name will do.
    #[default]
    None,
    /// By this. The node that takes the request in puts its hash in its place, so that it is never
    /// in a log, nor on a disk.
    Plain(Secret),
    /// By a password that has this hash, in the form in which the cluster keeps it.
    Hashed(Secret),
}

/// What may be done with the keys of a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PermissionKind {
    /// They may be read and watched.
    Read,
    /// They may be written and deleted.
    Write,
    /// Both.
    ReadWrite,
}

impl PermissionKind {
    /// Whether reading is part of it.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether writing is part of it.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Its name in output and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "readwrite",
        }
    }
}

/// What a role allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permission {
    /// What.
    pub kind: PermissionKind,
    /// With this key, or from this key on.
    pub key: Bytes,
    /// How far.
    pub range: KeyRange,
}

/// What may be asked about users and roles. All of it needs the role [`ROOT`] once access is
/// controlled, but for what says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthRequest {
    /// From now on nothing is allowed that no role allows. Refused unless a user with the role
    /// [`ROOT`] can get in: with a password, or because it is he who asks.
    Enable {
        /// What tokens are signed with. Drawn by the node that takes the request in, whatever a
        /// client says.
        token_key: Secret,
    },
    /// From now on everything is allowed to every client.
    Disable,
    /// Whether access is controlled; answered to anybody who may do anything.
    Status,
    /// Gives a token for a password. Anybody may ask.
    Authenticate {
        /// Who.
        name: String,
        /// Of whom this is the password.
        password: Secret,
    },
    /// From here on this connection is that of the user whom the token was given to. Anybody may
    /// ask; the node that is asked answers.
    UseToken {
        /// What [`AuthResponse::Token`] gave.
        token: Secret,
    },
    /// Makes a user, without a role.
    UserAdd {
        /// His name, which no other user has.
        name: String,
        /// How he proves it.
        password: Password,
    },
    /// Who has which roles; a user may ask about himself.
    UserGet {
        /// Whose.
        name: String,
    },
    /// Which users there are.
    UserList,
    /// Takes a user away. The tokens that he was given are void with that.
    UserDelete {
        /// Whom.
        name: String,
    },
    /// Gives a user another password. The tokens that he was given are void with that.
    UserChangePassword {
        /// Whom.
        name: String,
        /// How he proves who he is from now on.
        password: Password,
    },
    /// Gives a user a role.
    UserGrantRole {
        /// Whom.
        name: String,
        /// Which.
        role: String,
    },
    /// Takes a role from a user.
    UserRevokeRole {
        /// From whom.
        name: String,
        /// Which.
        role: String,
    },
    /// Makes a role that allows nothing.
    RoleAdd {
        /// Its name, which no other role has.
        name: String,
    },
    /// What a role allows; a user may ask about those that he has.
    RoleGet {
        /// Which.
        name: String,
    },
    /// Which roles there are.
    RoleList,
    /// Takes a role away, from everybody who has it.
    RoleDelete {
        /// Which.
        name: String,
    },
    /// Has a role allow something. What it allows with exactly these keys, it allows no more.
    RoleGrantPermission {
        /// Which role.
        name: String,
        /// What.
        permission: Permission,
    },
    /// Takes a permission from a role.
    RoleRevokePermission {
        /// From which.
        name: String,
        /// The key of the permission.
        key: Bytes,
        /// And how far it goes.
        range: KeyRange,
    },
}

/// The answer to an [`AuthRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AuthResponse {
    /// It is done.
    Done,
    /// To [`AuthRequest::Status`].
    Status(AuthStatus),
    /// To [`AuthRequest::Authenticate`].
    Token {
        /// To be shown on each connection, to whichever node.
        token: Secret,
        /// How long it is good for, in milliseconds.
        ttl_ms: u64,
    },
    /// To [`AuthRequest::Authenticate`] and [`AuthRequest::UseToken`]: nobody asks for tokens here,
    /// because everything is allowed.
    NotEnabled,
    /// To [`AuthRequest::UserGet`].
    User(UserInfo),
    /// To [`AuthRequest::UserList`].
    Users(Vec<String>),
    /// To [`AuthRequest::RoleGet`].
    Role(RoleInfo),
    /// To [`AuthRequest::RoleList`].
    Roles(Vec<String>),
}

/// Whether access is controlled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthStatus {
    /// It is.
    pub enabled: bool,
    /// Raised by every change of users, of roles, and of this.
    pub revision: u64,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserInfo {
    /// His name.
    pub name: String,
    /// The roles that he has, in order.
    pub roles: Vec<String>,
    /// He may prove who he is by a password.
    pub has_password: bool,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInfo {
    /// Its name.
    pub name: String,
    /// What it allows.
    pub permissions: Vec<Permission>,
}

impl AuthRequest {
    /// The password that a node has to hash before it goes any further.
    pub fn password_mut(&mut self) -> Option<&mut Password> {
        match self {
            Self::UserAdd { password, .. } | Self::UserChangePassword { password, .. } => {
                Some(password)
            }
            _ => None,
        }
    }
}

/// Checks what needs no store.
pub(super) fn validate(request: &AuthRequest, limits: &Limits) -> Result<(), Error> {
    match request {
        AuthRequest::Enable { .. }
        | AuthRequest::Disable
        | AuthRequest::Status
        | AuthRequest::UserList
        | AuthRequest::RoleList => Ok(()),
        AuthRequest::Authenticate { name, password } => {
            validate_name("user", name)?;
            validate_secret("password", password, PASSWORD_BYTES_MAX)
        }
        AuthRequest::UseToken { token } => validate_secret("token", token, TOKEN_BYTES_MAX),
        AuthRequest::UserAdd { name, password }
        | AuthRequest::UserChangePassword { name, password } => {
            validate_name("user", name)?;
            match password {
                Password::None => Ok(()),
                Password::Plain(secret) | Password::Hashed(secret) => {
                    validate_secret("password", secret, PASSWORD_BYTES_MAX)
                }
            }
        }
        AuthRequest::UserGet { name } | AuthRequest::UserDelete { name } => {
            validate_name("user", name)
        }
        AuthRequest::UserGrantRole { name, role } | AuthRequest::UserRevokeRole { name, role } => {
            validate_name("user", name)?;
            validate_name("role", role)
        }
        AuthRequest::RoleAdd { name }
        | AuthRequest::RoleGet { name }
        | AuthRequest::RoleDelete { name } => validate_name("role", name),
        AuthRequest::RoleGrantPermission { name, permission } => {
            validate_name("role", name)?;
            validate_range(&permission.key, &permission.range, limits)
        }
        AuthRequest::RoleRevokePermission { name, key, range } => {
            validate_name("role", name)?;
            validate_range(key, range, limits)
        }
    }
}

fn validate_name(what: &str, name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    Err(Error::not_applied(
        ErrorKind::InvalidArgument,
        format!(
            "{name:?} is not a valid {what} name: use 1 to 64 letters, digits, dots, dashes and \
             underscores, not starting with a dot, as in certificates"
        ),
    ))
}

fn validate_secret(what: &str, secret: &Secret, bytes_max: usize) -> Result<(), Error> {
    if (1..=bytes_max).contains(&secret.reveal().len()) {
        return Ok(());
    }
    Err(Error::not_applied(
        ErrorKind::InvalidArgument,
        format!("a {what} has 1 to {bytes_max} bytes"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "correct horse battery staple";

    #[test]
    fn no_secret_is_ever_shown() {
        let secret = || Secret::new(CANARY);
        let requests = [
            AuthRequest::Authenticate {
                name: "anna".into(),
                password: secret(),
            },
            AuthRequest::UseToken { token: secret() },
            AuthRequest::UserAdd {
                name: "anna".into(),
                password: Password::Plain(secret()),
            },
            AuthRequest::UserChangePassword {
                name: "anna".into(),
                password: Password::Hashed(secret()),
            },
        ];
        for request in requests {
            let shown = format!("{request:?} {request:#?}");
            assert!(shown.contains("***"), "{shown}");
            assert!(!shown.contains("horse"), "{shown}");
            assert!(!shown.contains("104, 111"), "{shown}");
        }
        let token = AuthResponse::Token {
            token: secret(),
            ttl_ms: 1,
        };
        assert!(!format!("{token:?}").contains("horse"));
    }

    #[test]
    fn names_and_secrets_have_bounds() {
        let add = |name: &str, bytes| AuthRequest::UserAdd {
            name: name.into(),
            password: Password::Plain(Secret::new(vec![b'x'; bytes])),
        };
        let ok = |request: &AuthRequest| validate(request, &Limits::DEFAULT).is_ok();
        assert!(ok(&add("anna", 1)));
        assert!(ok(&add("anna", PASSWORD_BYTES_MAX)));
        assert!(!ok(&add("anna", 0)));
        assert!(!ok(&add("anna", PASSWORD_BYTES_MAX + 1)));
        assert!(!ok(&add("", 1)));
        assert!(!ok(&add("an/na", 1)));
        assert!(!ok(&add(&"a".repeat(65), 1)));
    }
}
