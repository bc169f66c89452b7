//! Users, roles and what they may do.

use std::time::Duration;

use bytes::Bytes;

use super::response::unexpected_response;
use super::{Client, invalid};
use crate::api::{
    AuthRequest, AuthResponse, AuthStatus, Consistency, Error, KeyRange, Outcome, Password,
    Permission, Request, ResponseBody, RoleInfo, Secret, UserInfo,
};

/// Administers users, roles and permissions: [`Client::auth`]. Once access control is on, every
/// method requires the role [`ROOT`](crate::api::ROOT), except where stated otherwise.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::api::{KeyRange, Permission, PermissionKind};
///
/// let auth = client.auth();
/// auth.role_add("billing").await?;
/// let what = Permission {
///     kind: PermissionKind::ReadWrite,
///     key: "/billing/".into(),
///     range: KeyRange::Prefix,
/// };
/// auth.role_grant_permission("billing", what).await?;
/// println!("{:?} of {:?}", auth.role_get("billing").await?, auth.role_list().await?);
///
/// // One who is known by a certificate of that name, and one who has a password:
/// auth.user_add("billing", None).await?;
/// auth.user_add("ann", Some("correct horse battery")).await?;
/// auth.user_grant_role("billing", "billing").await?;
/// auth.user_change_password("ann", Some("staple")).await?;
/// println!("{:?} of {:?}", auth.user_get("billing").await?, auth.user_list().await?);
///
/// // And all of it taken back:
/// auth.user_revoke_role("billing", "billing").await?;
/// auth.role_revoke_permission("billing", "/billing/", KeyRange::Prefix).await?;
/// auth.user_delete("ann").await?;
/// auth.user_delete("billing").await?;
/// auth.role_delete("billing").await?;
/// # Ok(())
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct AuthClient {
    client: Client,
}

/// A token and its lifetime.
#[derive(Clone, Debug)]
pub struct AuthToken {
    /// Pass it to [`ConnectOptions::with_token`](super::ConnectOptions::with_token).
    pub token: Secret,
    /// Lifetime, counted from when the token was issued.
    pub ttl: Duration,
}

impl Client {
    /// The operations on users, roles and permissions.
    pub fn auth(&self) -> AuthClient {
        AuthClient {
            client: self.clone(),
        }
    }
}

/// Methods that change something fail as [`Client::put`](super::Client::put) does, the others as
/// [`Client::get`](super::Client::get); further errors are listed with each method.
impl AuthClient {
    /// Turns access control on: from here on, a request is allowed only if a role permits it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold::client::Client) -> Result<(), leasehold::api::Error> {
    /// let auth = client.auth();
    /// auth.role_add("root").await?;
    /// auth.user_add("root", Some("a good one")).await?;
    /// auth.user_grant_role("root", "root").await?;
    /// auth.auth_enable().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::api::ErrorKind::InvalidArgument) unless there is a user `root`
    /// with the role `root` that can authenticate.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn auth_enable(&self) -> Result<(), Error> {
        let token_key = Secret::default();
        self.change(AuthRequest::Enable { token_key }).await
    }

    /// Turns access control off: from here on, every client is allowed everything.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// client.auth().auth_disable().await?;
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As above.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn auth_disable(&self) -> Result<(), Error> {
        self.change(AuthRequest::Disable).await
    }

    /// Whether access control is on. Available to every user with at least one permission.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// println!("{:?}", client.auth().auth_status().await?);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As above.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn auth_status(&self) -> Result<AuthStatus, Error> {
        match self.ask(AuthRequest::Status).await? {
            AuthResponse::Status(status) => Ok(status),
            other => Err(mistaken(other)),
        }
    }

    /// Returns a token for a user name and a password; `None` where access control is off. Requires
    /// no role. A client that connects with [`with_user`](super::ConnectOptions::with_user) does
    /// this by itself.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// use leasehold::client::ConnectOptions;
    ///
    /// match client.auth().authenticate("ann", "staple").await? {
    ///     Some(given) => {
    ///         println!("good for {:?}", given.ttl);
    ///         let _options = ConnectOptions::new().with_token(given.token);
    ///     }
    ///     None => println!("access control is disabled"),
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Unauthenticated`](crate::api::ErrorKind::Unauthenticated): unknown user or wrong password.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn authenticate(
        &self,
        name: impl Into<String>,
        password: impl Into<Vec<u8>>,
    ) -> Result<Option<AuthToken>, Error> {
        let ask = AuthRequest::Authenticate {
            name: name.into(),
            password: Secret::new(password),
        };
        match self.ask(ask).await? {
            AuthResponse::Token { token, ttl_ms } => Ok(Some(AuthToken {
                token,
                ttl: Duration::from_millis(ttl_ms),
            })),
            AuthResponse::NotEnabled => Ok(None),
            other => Err(mistaken(other)),
        }
    }

    /// Creates a user without roles. Without a password, the user can authenticate only by a
    /// certificate with this name.
    ///
    /// # Errors
    /// [`UserExists`](crate::api::ErrorKind::UserExists).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn user_add(
        &self,
        name: impl Into<String>,
        password: Option<&str>,
    ) -> Result<(), Error> {
        let (name, password) = (name.into(), plain(password));
        self.change(AuthRequest::UserAdd { name, password }).await
    }

    /// Returns a user and its roles. A user may query itself.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn user_get(&self, name: impl Into<String>) -> Result<UserInfo, Error> {
        let name = name.into();
        match self.ask(AuthRequest::UserGet { name }).await? {
            AuthResponse::User(user) => Ok(user),
            other => Err(mistaken(other)),
        }
    }

    /// Lists the names of all users, in order.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn user_list(&self) -> Result<Vec<String>, Error> {
        match self.ask(AuthRequest::UserList).await? {
            AuthResponse::Users(users) => Ok(users),
            other => Err(mistaken(other)),
        }
    }

    /// Deletes a user.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn user_delete(&self, name: impl Into<String>) -> Result<(), Error> {
        let name = name.into();
        self.change(AuthRequest::UserDelete { name }).await
    }

    /// Replaces a user's password, or removes it. The user's existing tokens become invalid.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn user_change_password(
        &self,
        name: impl Into<String>,
        password: Option<&str>,
    ) -> Result<(), Error> {
        let (name, password) = (name.into(), plain(password));
        self.change(AuthRequest::UserChangePassword { name, password })
            .await
    }

    /// Grants a role to a user.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound),
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn user_grant_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Result<(), Error> {
        let (name, role) = (name.into(), role.into());
        self.change(AuthRequest::UserGrantRole { name, role }).await
    }

    /// Revokes a role from a user.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound), or
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound) if the user does not have the role.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn user_revoke_role(
        &self,
        name: impl Into<String>,
        role: impl Into<String>,
    ) -> Result<(), Error> {
        let (name, role) = (name.into(), role.into());
        self.change(AuthRequest::UserRevokeRole { name, role })
            .await
    }

    /// Creates a role without permissions.
    ///
    /// # Errors
    /// [`RoleExists`](crate::api::ErrorKind::RoleExists).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn role_add(&self, name: impl Into<String>) -> Result<(), Error> {
        let name = name.into();
        self.change(AuthRequest::RoleAdd { name }).await
    }

    /// Returns the permissions of a role. A user that has the role may query it.
    ///
    /// # Errors
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn role_get(&self, name: impl Into<String>) -> Result<RoleInfo, Error> {
        let name = name.into();
        match self.ask(AuthRequest::RoleGet { name }).await? {
            AuthResponse::Role(role) => Ok(role),
            other => Err(mistaken(other)),
        }
    }

    /// Lists the names of all roles, in order.
    ///
    /// # Errors
    /// As above.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn role_list(&self) -> Result<Vec<String>, Error> {
        match self.ask(AuthRequest::RoleList).await? {
            AuthResponse::Roles(roles) => Ok(roles),
            other => Err(mistaken(other)),
        }
    }

    /// Deletes a role and revokes it from every user that has it.
    ///
    /// # Errors
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn role_delete(&self, name: impl Into<String>) -> Result<(), Error> {
        let name = name.into();
        self.change(AuthRequest::RoleDelete { name }).await
    }

    /// Grants a permission to a role. It replaces the role's permission on exactly the same keys.
    ///
    /// # Errors
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn role_grant_permission(
        &self,
        name: impl Into<String>,
        permission: Permission,
    ) -> Result<(), Error> {
        let name = name.into();
        self.change(AuthRequest::RoleGrantPermission { name, permission })
            .await
    }

    /// Revokes a role's permission on exactly these keys.
    ///
    /// # Errors
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound);
    /// [`InvalidArgument`](crate::api::ErrorKind::InvalidArgument) if there is no such permission.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn role_revoke_permission(
        &self,
        name: impl Into<String>,
        key: impl AsRef<[u8]>,
        range: KeyRange,
    ) -> Result<(), Error> {
        let (name, key) = (name.into(), Bytes::copy_from_slice(key.as_ref()));
        self.change(AuthRequest::RoleRevokePermission { name, key, range })
            .await
    }

    async fn change(&self, request: AuthRequest) -> Result<(), Error> {
        match self.client.write(Request::Auth(request), None).await? {
            (_, ResponseBody::Auth(AuthResponse::Done)) => Ok(()),
            (_, other) => Err(unexpected_response(&other, Outcome::Unknown)),
        }
    }

    async fn ask(&self, request: AuthRequest) -> Result<AuthResponse, Error> {
        let request = Request::Auth(request);
        if !request.is_read() {
            return Err(invalid("this is not a request to a cluster"));
        }
        let asked = self
            .client
            .read(request, Consistency::Linearizable, 0, None);
        match asked.await? {
            (_, ResponseBody::Auth(answer)) => Ok(answer),
            (_, other) => Err(unexpected_response(&other, Outcome::NotApplied)),
        }
    }
}

fn plain(password: Option<&str>) -> Password {
    match password {
        None => Password::None,
        Some(password) => Password::Plain(Secret::new(password)),
    }
}

fn mistaken(answer: AuthResponse) -> Error {
    unexpected_response(&ResponseBody::Auth(answer), Outcome::NotApplied)
}
