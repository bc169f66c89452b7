//! What can be typed after `leasehold cert`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::types::ClusterId;

/// Create and check certificates.
#[derive(Debug, Subcommand)]
pub enum CertCommand {
    /// Create the two certificate authorities of a new cluster, and its identity
    #[command(after_help = "Example:
  leasehold cert init --out pki/

Keep the private keys of the authorities off the nodes: anyone who has them can join the cluster.")]
    Init(CertInitArgs),
    /// Issue the certificates of a node or of a client
    #[command(after_help = "Examples:
  leasehold cert issue --out pki/ --name n1 --san 10.0.0.1
  leasehold cert issue --out pki/ --name app --client")]
    Issue(CertIssueArgs),
    /// Issue again the certificates in a directory that end soon, for the same names
    #[command(after_help = "Example:
  leasehold cert renew --out pki/

Run it every day, and take what it wrote to where it is used: nodes load new files by themselves.")]
    Renew(CertRenewArgs),
    /// Check certificate and key files; exits with 1 if one is not usable
    #[command(after_help = "Example:\n  leasehold cert check pki/*")]
    Check(CertCheckArgs),
}

/// Make the two authorities of a new cluster.
#[derive(Debug, Args)]
pub struct CertInitArgs {
    /// The directory to write to
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub out: PathBuf,
    /// Identity of the cluster, if it has one already; otherwise a random one is generated
    #[arg(long, value_name = "UUID", value_parser = parse_cluster_id)]
    pub cluster_id: Option<ClusterId>,
    /// Validity of the authorities in days
    #[arg(long, value_name = "DAYS", default_value_t = 3650)]
    pub days: u64,
}

/// Issue the certificates of a node or of a client.
#[derive(Debug, Args)]
pub struct CertIssueArgs {
    /// Directory of the authorities, to which the certificates are written as well
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub out: PathBuf,
    /// The name of the node or client
    #[arg(long)]
    pub name: String,
    /// Additional host names and IP addresses for a node's certificates, comma-separated
    #[arg(
        long,
        value_name = "HOST|IP",
        value_delimiter = ',',
        conflicts_with = "client"
    )]
    pub san: Vec<String>,
    /// For a node (the default)
    #[arg(long, conflicts_with = "client")]
    pub node: bool,
    /// For a client
    #[arg(long)]
    pub client: bool,
    /// Validity of the certificates in days
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    pub days: u64,
    /// Replace existing certificates
    #[arg(long)]
    pub force: bool,
}

/// Make the certificates that end soon again.
#[derive(Debug, Args)]
pub struct CertRenewArgs {
    /// Directory of the authorities and of the certificates
    #[arg(long, value_name = "DIR", default_value = "pki")]
    pub out: PathBuf,
    /// Renew what ends within as many days
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    pub before: u64,
    /// Validity of the new certificates in days
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    pub days: u64,
}

/// Look at certificate and key files.
#[derive(Debug, Args)]
pub struct CertCheckArgs {
    /// The files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// A cluster's identity.
pub(super) fn parse_cluster_id(text: &str) -> Result<ClusterId, String> {
    let form = "write it as cert init printed it, for example 01234567-89ab-cdef-0011-223344556677";
    ClusterId::parse(text).ok_or_else(|| form.to_owned())
}
