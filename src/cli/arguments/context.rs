//! What can be typed after `leasehold context`.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration::parse_timeout;
use crate::cli::contexts::{DEV, DEV_IS_TAKEN, KEYS, check_name};

/// What to do about contexts.
#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// List the contexts, and mark the one that is used
    #[command(after_help = "Examples:
  leasehold context list
  leasehold context list -o json")]
    List,
    /// Show a context
    #[command(after_help = "Examples:
  leasehold context show           the one that is used
  leasehold context show prod")]
    Show(ContextShowArgs),
    /// Use a context from now on
    #[command(after_help = "Examples:
  leasehold context use prod
  leasehold context use dev        the development cluster that runs")]
    Use(ContextUseArgs),
    /// Create a context, or change it: what flags and variables give is kept under the name
    #[command(after_help = "Examples:
  leasehold context set prod --endpoints 10.0.0.1:7400,10.0.0.2:7400 --cacert client-ca.pem \\
    --cert app.pem --key app.key
  leasehold context set prod --user anna --password-file anna.pw
  leasehold context set prod --timeout 10s --connect-timeout 2s
  leasehold context set prod --unset user,password_file

Files are kept with their whole path. Keys that are not given stay as they are, but a password file
is taken out when its user changes, and of --user and --token-file the one that is given takes the
place of the other.")]
    Set(ContextSetArgs),
    /// Remove a context
    #[command(after_help = "Example:\n  leasehold context remove prod")]
    Remove(ContextNameArgs),
}

/// A context that may be left out.
#[derive(Debug, Args)]
pub struct ContextShowArgs {
    /// Its name; default: the one that is used
    pub name: Option<String>,
}

/// A context, or the development cluster.
#[derive(Debug, Args)]
pub struct ContextUseArgs {
    /// Its name
    pub name: String,
}

/// A context.
#[derive(Debug, Args)]
pub struct ContextNameArgs {
    /// Its name
    #[arg(value_parser = parse_name)]
    pub name: String,
}

/// A context, and what is to be kept in it beside what every command takes.
#[derive(Debug, Args)]
pub struct ContextSetArgs {
    /// Its name
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Deadline for a connection; default: that for a request
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub connect_timeout: Option<Duration>,
    /// Keys to take out, comma-separated
    #[arg(long, value_name = "KEY", value_delimiter = ',', value_parser = KEYS)]
    pub unset: Vec<String>,
}

fn parse_name(text: &str) -> Result<String, String> {
    check_name(text)?;
    match text {
        DEV => Err(DEV_IS_TAKEN.to_owned()),
        name => Ok(name.to_owned()),
    }
}
