//! What can be typed after `leasehold leader-lease`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do about the lease under which a leader answers reads alone.
#[derive(Clone, Debug, Subcommand)]
pub enum LeaderLeaseCommand {
    /// Allow a stopped node to serve leased reads again, after a clock assumption was violated
    #[command(after_help = "Example:
  leasehold leader-lease clear --data-dir /var/lib/leasehold

For the node named by the alert LeaseholdLeaseAssumptionViolated: it once held a leader lease \
while another node was leader, and has served no leased reads since, across restarts. The cluster \
works without them; reads take a quorum round. Find the cause first (deploy/runbook.md): while it \
persists, leased reads may be stale. The command asks for confirmation and is refused while the \
node runs.")]
    Clear(ClearArgs),
}

/// Have a stopped node serve reads under a lease again.
#[derive(Clone, Debug, Args)]
pub struct ClearArgs {
    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Do not ask for confirmation: the cause was found and removed
    #[arg(long)]
    pub yes_the_cause_is_gone: bool,
}
