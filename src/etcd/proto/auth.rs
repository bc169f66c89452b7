//! Users, roles and permissions: the service `etcdserverpb.Auth`.
//!
//! Messages with a password or a token do not show it.

use std::fmt;

use bytes::Bytes;
use prost::{Enumeration, Message};

use super::kv::ResponseHeader;

/// Turns access control on.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthEnableRequest {}

/// Turns access control off.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthDisableRequest {}

/// Asks whether access is controlled.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthStatusRequest {}

/// To [`AuthStatusRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) enabled: bool,
    #[prost(uint64, tag = "3")]
    pub(crate) auth_revision: u64,
}

/// Exchanges a password for a token.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthenticateRequest");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// To [`AuthenticateRequest`].
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthenticateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) token: String,
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthenticateResponse");
        shown.field("header", &self.header).finish_non_exhaustive()
    }
}

/// To every request that has nothing else to say.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthDoneResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// How a user is added.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserAddOptions {
    #[prost(bool, tag = "1")]
    pub(crate) no_password: bool,
}

/// Adds a user.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthUserAddRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) options: Option<UserAddOptions>,
    #[prost(string, tag = "4")]
    pub(crate) hashed_password: String,
}

impl fmt::Debug for AuthUserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthUserAddRequest");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// Asks for the roles of a user.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserGetRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// To [`AuthUserGetRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserGetResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) roles: Vec<String>,
}

/// Asks which users there are.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserListRequest {}

/// To [`AuthUserListRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserListResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) users: Vec<String>,
}

/// Removes a user.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserDeleteRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Gives a user another password.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct AuthUserChangePasswordRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) password: String,
    #[prost(string, tag = "3")]
    pub(crate) hashed_password: String,
}

impl fmt::Debug for AuthUserChangePasswordRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthUserChangePasswordRequest");
        shown.field("name", &self.name).finish_non_exhaustive()
    }
}

/// Grants a role to a user.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserGrantRoleRequest {
    #[prost(string, tag = "1")]
    pub(crate) user: String,
    #[prost(string, tag = "2")]
    pub(crate) role: String,
}

/// Takes a role from a user.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthUserRevokeRoleRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) role: String,
}

/// Adds a role.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleAddRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

/// Asks for the permissions of a role.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleGetRequest {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
}

/// What a permission allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(crate) enum PermissionType {
    Read = 0,
    Write = 1,
    ReadWrite = 2,
}

/// A permission on a range of keys.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Permission {
    #[prost(enumeration = "PermissionType", tag = "1")]
    pub(crate) perm_type: i32,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) range_end: Bytes,
}

/// To [`AuthRoleGetRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleGetResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) perm: Vec<Permission>,
}

/// Asks which roles there are.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleListRequest {}

/// To [`AuthRoleListRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleListResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) roles: Vec<String>,
}

/// Removes a role.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleDeleteRequest {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
}

/// Grants a permission to a role.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleGrantPermissionRequest {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) perm: Option<Permission>,
}

/// Takes a permission from a role.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthRoleRevokePermissionRequest {
    #[prost(string, tag = "1")]
    pub(crate) role: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) range_end: Bytes,
}
