//! What can be typed after `leasehold leader-lease`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to do about the lease under which a leader answers reads alone.
#[derive(Clone, Debug, Subcommand)]
pub enum LeaderLeaseCommand {
    /// Have a stopped node serve reads under a lease again, after an assumption about clocks failed
    #[command(after_help = "Example:
  leasehold leader-lease clear --data-dir /var/lib/leasehold

For the node that the alert LeaseholdLeaseAssumptionViolated named: it once held a lease while another \
node led, and has served no reads under one since, over restarts too. Everything works without. Find out \
why first (deploy/runbook.md): while the cause is there, leased reads may be old. It asks before it does \
it, and is refused while the node runs.")]
    Clear(ClearArgs),
}

/// Have a stopped node serve reads under a lease again.
#[derive(Clone, Debug, Args)]
pub struct ClearArgs {
    /// The node's data directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// Do not ask: the cause was found, and is gone
    #[arg(long)]
    pub yes_the_cause_is_gone: bool,
}
