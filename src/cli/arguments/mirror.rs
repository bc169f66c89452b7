//! What can be typed after `make-mirror`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::cli::runtime::DevName;

/// Where a mirror is, and what it holds.
#[derive(Clone, Debug, Args)]
pub struct MirrorArgs {
    /// Client addresses of the destination, comma-separated; one reachable address is enough
    #[arg(
        value_name = "HOST:PORT",
        value_delimiter = ',',
        required_unless_present = "dest_dev"
    )]
    pub destination: Vec<String>,
    /// Copy only keys with this prefix
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub prefix: OsString,
    /// In the destination, write this prefix in place of that of --prefix; default: the same
    #[arg(long, value_name = "PREFIX", conflicts_with = "no_dest_prefix")]
    pub dest_prefix: Option<OsString>,
    /// In the destination, write no prefix in place of that of --prefix
    #[arg(long)]
    pub no_dest_prefix: bool,
    /// Key of the destination that says how far the mirror is; default:
    /// leasehold-mirror/CLUSTER/PREFIX
    #[arg(long, value_name = "KEY")]
    pub progress_key: Option<OsString>,
    /// Development cluster that is the destination, by its name
    #[arg(long, value_name = "NAME")]
    pub dest_dev: Option<DevName>,
    /// Certificate of the authority that signs the certificates of the destination's nodes
    #[arg(long, value_name = "FILE")]
    pub dest_cacert: Option<PathBuf>,
    /// Client certificate for the destination
    #[arg(long, value_name = "FILE")]
    pub dest_cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, value_name = "FILE")]
    pub dest_key: Option<PathBuf>,
    /// User to log in as at the destination, if it is not the one named in the certificate
    #[arg(long, value_name = "USER", requires = "dest_password_file")]
    pub dest_user: Option<String>,
    /// File, private to its owner, whose first line is that user's password
    #[arg(long, value_name = "FILE", requires = "dest_user")]
    pub dest_password_file: Option<PathBuf>,
}
