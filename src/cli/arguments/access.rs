//! Users, roles and what they may do, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::RangeArgs;
use crate::api::PermissionKind;

/// Whether access is controlled.
#[derive(Debug, Subcommand)]
pub enum AuthCommand {
    /// Allow nothing from now on that no role allows. Takes a user root with the role root first
    Enable,
    /// Allow everything to every client from now on
    Disable,
    /// Show whether access is controlled
    Status,
}

/// Users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user. He may prove who he is by a certificate of his name, and by a password if he is
    /// given one
    #[command(after_help = "Examples:
  leasehold user add anna                       the password is asked for
  leasehold user add anna --new-password-file f
  leasehold user add n8n --no-password          by certificate only

Without a terminal the password is the first line of standard input.")]
    Add(PasswordArgs),
    /// Show a user and the roles he has
    Get(UserArgs),
    /// List users
    List,
    /// Remove a user
    Delete(UserArgs),
    /// Give a user another password, which voids the tokens he was given
    Passwd(PasswordArgs),
    /// Give a user a role
    GrantRole(UserRoleArgs),
    /// Take a role from a user
    RevokeRole(UserRoleArgs),
}

/// Roles.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Add a role that allows nothing
    Add(RoleArgs),
    /// Show what a role allows
    Get(RoleArgs),
    /// List roles
    List,
    /// Remove a role, from everybody who has it
    Delete(RoleArgs),
    /// Have a role allow something
    #[command(after_help = "Examples:
  leasehold role grant-permission ops readwrite --prefix /prod/
  leasehold role grant-permission ops read a c
  leasehold role grant-permission ops write k")]
    GrantPermission(GrantPermissionArgs),
    /// Take from a role what it allows with exactly these keys
    RevokePermission(RevokePermissionArgs),
}

/// Names a user.
#[derive(Debug, Args)]
pub struct UserArgs {
    /// The user
    #[arg(id = "user_name", value_name = "USER")]
    pub user: String,
}

/// Names a user, and how he proves who he is.
#[derive(Debug, Args)]
pub struct PasswordArgs {
    /// The user
    #[arg(id = "user_name", value_name = "USER")]
    pub user: String,
    /// The file whose first line is the new password
    #[arg(long, value_name = "FILE", conflicts_with = "no_password")]
    pub new_password_file: Option<PathBuf>,
    /// No password: only a certificate of the user's name will do
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
    /// What it allows
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
