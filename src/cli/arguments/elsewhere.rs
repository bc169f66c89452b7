//! What can be typed after a command of etcdctl whose work is done by another one here.

use std::ffi::OsString;

use clap::Args;

/// Anything: what is typed is not looked at.
#[derive(Clone, Debug, Args)]
pub struct ElsewhereArgs {
    /// Anything
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub rest: Vec<OsString>,
}
