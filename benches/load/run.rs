//! From what was typed to what is measured.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use clap::FromArgMatches;
use leasehold::bench::cluster::ClusterPlan;
use leasehold::cli::arguments::bench::OwnClusterArgs;
use leasehold::cli::failure::Failure;

use crate::arguments::{Arguments, Command};
use crate::etcd::serve_echo;
use crate::{
    cached_reads, compare, gap, lease_expiry, overload, peers, read_leases, snapshot_transfer,
};

/// Measures what the arguments ask for, of which the first is this program.
pub(crate) fn run(
    command: clap::Command,
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let parsed = command
        .try_get_matches_from(arguments)
        .and_then(|matches| Arguments::from_arg_matches(&matches));
    let parsed = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() => return Err(Failure::usage(error.to_string())),
        Err(help) => return Ok(write!(out, "{help}")?),
    };
    let global = &parsed.global;
    match parsed.command {
        Command::Get(arguments) => peers::mixed(1.0, &arguments.load, &arguments.peer, global, out),
        Command::Put(arguments) => peers::mixed(0.0, &arguments.load, &arguments.peer, global, out),
        Command::Mixed(arguments) => {
            let (reads, load) = arguments.load.load();
            peers::mixed(reads, &load, &arguments.peer, global, out)
        }
        Command::LeaseKeepalive(arguments) => peers::keep_alive(&arguments, global, out),
        Command::Watch(arguments) => peers::watch(&arguments, global, out),
        Command::LeaseExpiry(arguments) => lease_expiry::run(&arguments, global, out),
        Command::SnapshotTransfer(arguments) => snapshot_transfer::run(&arguments, global, out),
        Command::Gap(arguments) => gap::run(&arguments, global, out),
        Command::Overload(arguments) => overload::run(&arguments, global, out),
        Command::ReadLeases(arguments) => read_leases::run(&arguments, global, out),
        Command::CachedReads(arguments) => cached_reads::run(&arguments, global, out),
        Command::Compare(arguments) => match arguments.door {
            true => compare::door(&arguments, out),
            false => compare::run(&arguments, out),
        },
        Command::Echo(echo) => serve_echo(echo.address, echo.value_bytes),
    }
}

/// Three processes of the binary that was built beside this one.
pub(crate) fn cluster_plan(arguments: &OwnClusterArgs) -> ClusterPlan {
    ClusterPlan::of(arguments, PathBuf::from(env!("CARGO_BIN_EXE_leasehold")))
}
