//! Users, roles and what they may do, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::kv::RangeArgs;
use crate::api::PermissionKind;

/// Whether access is controlled.
#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Enable access control: from now on only what roles permit is allowed. Requires a user root
    /// with the role root
    #[command(after_help = "Example:
  leasehold auth enable")]
    Enable,
    /// Disable access control: every client may do everything
    #[command(after_help = "Example:
  leasehold auth disable --user root --password-file root.pw")]
    Disable,
    /// Show whether access control is enabled
    #[command(after_help = "Examples:
  leasehold auth status
  leasehold auth status -o json")]
    Status,
}

/// Users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user, who logs in with a certificate of that name, or with a password if one is set
    #[command(after_help = "Examples:
  leasehold user add anna                       prompts for the password
  leasehold user add anna --new-password-file f
  leasehold user add n8n --no-password          by certificate only

Without a terminal, the password is read from the first line of standard input.")]
    Add(PasswordArgs),
    /// Show a user and its roles
    #[command(after_help = "Example:
  leasehold user get anna")]
    Get(UserArgs),
    /// List users
    #[command(after_help = "Example:
  leasehold user list")]
    List,
    /// Remove a user
    #[command(after_help = "Example:
  leasehold user delete anna")]
    Delete(UserArgs),
    /// Change a user's password, which invalidates the tokens issued to the user
    #[command(after_help = "Examples:
  leasehold user passwd anna
  leasehold user passwd anna --new-password-file f")]
    Passwd(PasswordArgs),
    /// Grant a role to a user
    #[command(after_help = "Example:
  leasehold user grant-role anna ops")]
    GrantRole(UserRoleArgs),
    /// Revoke a role from a user
    #[command(after_help = "Example:
  leasehold user revoke-role anna ops")]
    RevokeRole(UserRoleArgs),
}

/// Roles.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Add a role without permissions
    #[command(after_help = "Example:
  leasehold role add ops")]
    Add(RoleArgs),
    /// Show the permissions of a role
    #[command(after_help = "Example:
  leasehold role get ops")]
    Get(RoleArgs),
    /// List roles
    #[command(after_help = "Example:
  leasehold role list")]
    List,
    /// Remove a role, also from all users that have it
    #[command(after_help = "Example:
  leasehold role delete ops")]
    Delete(RoleArgs),
    /// Grant a permission to a role
    #[command(after_help = "Examples:
  leasehold role grant-permission ops readwrite --prefix /prod/
  leasehold role grant-permission ops read a c
  leasehold role grant-permission ops write k")]
    GrantPermission(GrantPermissionArgs),
    /// Revoke the permission of a role for exactly these keys
    #[command(after_help = "Example:
  leasehold role revoke-permission ops --prefix /prod/")]
    RevokePermission(RevokePermissionArgs),
}

/// Names a user.
#[derive(Debug, Args)]
pub struct UserArgs {
    /// The user
    #[arg(id = "user_name", value_name = "USER")]
    pub user: String,
}

/// A user, with the password to set.
#[derive(Debug, Args)]
pub struct PasswordArgs {
    /// The user
    #[arg(id = "user_name", value_name = "USER")]
    pub user: String,
    /// File, private to its owner, whose first line is the new password
    #[arg(long, value_name = "FILE", conflicts_with = "no_password")]
    pub new_password_file: Option<PathBuf>,
    /// Set no password: the user can only log in with a certificate of that name
    #[arg(long)]
    pub no_password: bool,
}

/// Names a user and a role.
#[derive(Debug, Args)]
pub struct UserRoleArgs {
    /// The user
    #[arg(id = "user_name", value_name = "USER")]
    pub user: String,
    /// The role
    pub role: String,
}

/// Names a role.
#[derive(Debug, Args)]
pub struct RoleArgs {
    /// The role
    pub role: String,
}

/// What a role shall allow.
#[derive(Debug, Args)]
pub struct GrantPermissionArgs {
    /// The role
    pub role: String,
    /// Kind of access to grant
    pub kind: Kind,
    /// With which keys.
    #[command(flatten)]
    pub range: RangeArgs,
}

/// What a role shall not allow any more.
#[derive(Debug, Args)]
pub struct RevokePermissionArgs {
    /// The role
    pub role: String,
    /// Which keys.
    #[command(flatten)]
    pub range: RangeArgs,
}

/// What may be done with keys.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kind {
    /// Read and watch
    Read,
    /// Write and delete
    Write,
    /// Both
    Readwrite,
}

impl From<Kind> for PermissionKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Read => Self::Read,
            Kind::Write => Self::Write,
            Kind::Readwrite => Self::ReadWrite,
        }
    }
}
