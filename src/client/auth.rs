//! Users, roles and what they may do.

use std::time::Duration;

use bytes::Bytes;

use super::request::senseless;
use super::{Client, invalid};
use crate::api::{
    AuthRequest, AuthResponse, AuthStatus, Consistency, Error, KeyRange, Outcome, Password,
    Permission, Request, ResponseBody, RoleInfo, Secret, UserInfo,
};

/// Says who may do what: [`Client::auth`]. Once it is turned on, all of it takes the role
/// [`ROOT`](crate::api::ROOT), but for what says otherwise.
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

/// A token, and how long it is good for.
#[derive(Clone, Debug)]
pub struct AuthToken {
    /// To be given to [`ConnectOptions::with_token`](super::ConnectOptions::with_token).
    pub token: Secret,
    /// How long it is good for from when it was given.
    pub ttl: Duration,
}

impl Client {
    /// Users, roles and what they may do.
    pub fn auth(&self) -> AuthClient {
        AuthClient {
            client: self.clone(),
        }
    }
}

/// Every method fails as [`Client::put`](super::Client::put) does where it changes something, and as
/// [`Client::get`](super::Client::get) where it does not; what else may go wrong stands with it.
impl AuthClient {
    /// From here on nothing is allowed that no role allows.
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
    /// [`InvalidArgument`](crate::api::ErrorKind::InvalidArgument) unless there is a user `root` with
    /// the role `root` who can get in.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn auth_enable(&self) -> Result<(), Error> {
        let token_key = Secret::default();
        self.change(AuthRequest::Enable { token_key }).await
    }

    /// From here on everything is allowed to every client.
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

    /// Whether access is controlled. Whoever may do anything may ask.
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

    /// A token for a password; `None` where access is not controlled. Anybody may ask. A client that
    /// was given a user to connect with does this by itself.
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
    ///     None => println!("nobody is asked who he is"),
    /// }
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Unauthenticated`](crate::api::ErrorKind::Unauthenticated): they are not those of a user.
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

    /// Makes a user without a role. Without a password he is known by a certificate of his name alone.
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

    /// Who a user is. He may ask himself.
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

    /// Which users there are, in order.
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

    /// Takes a user away.
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

    /// Gives a user another password, or none. The tokens that he was given are void with that.
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

    /// Gives a user a role.
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

    /// Takes a role from a user.
    ///
    /// # Errors
    /// [`UserNotFound`](crate::api::ErrorKind::UserNotFound), or
    /// [`RoleNotFound`](crate::api::ErrorKind::RoleNotFound) if he does not have it.
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

    /// Makes a role that allows nothing.
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

    /// What a role allows. Whoever has it may ask.
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

    /// Which roles there are, in order.
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

    /// Takes a role away, from everybody who has it.
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

    /// Has a role allow something. What it allows with exactly these keys, it allows no more.
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

    /// Takes from a role what it allows with exactly these keys.
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
            (_, other) => Err(senseless(&other, Outcome::Unknown)),
        }
    }

    async fn ask(&self, request: AuthRequest) -> Result<AuthResponse, Error> {
        if !request.is_read() {
            return Err(invalid("this is nothing that is asked of a cluster"));
        }
        let request = Request::Auth(request);
        let asked = self
            .client
            .read(request, Consistency::Linearizable, 0, None);
        match asked.await? {
            (_, ResponseBody::Auth(answer)) => Ok(answer),
            (_, other) => Err(senseless(&other, Outcome::NotApplied)),
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
    senseless(&ResponseBody::Auth(answer), Outcome::NotApplied)
}
