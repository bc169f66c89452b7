//! Load on a cluster, and how the cluster bears it: `leasehold bench`, `leasehold verify`
//! and `leasehold chaos`.
//!
//! A [`generator`] puts a [`load`] on a [`store`] and keeps a [`tally`]; a [`report`] says what
//! came of it. Two ways of asking: in a *closed loop* each client sends its next request when the
//! last one is answered, which finds out how much a store can do, and hides how long requests wait
//! when it cannot keep up; in an *open loop* ([`pace`]) requests are due at times that do not
//! depend on answers, and their latency counts from when they were due. That is the answer to
//! coordinated omission: a store that stalls delays every request that would have been made
//! meanwhile, not one.
//!
//! What compares with other stores, ends leaders or floods a cluster is in `benches/load`, which puts
//! the same loads on with the same generator.
//!
//! Left out: ranges, deletes, and loads from several machines at once.

pub mod chaos;
pub mod cluster;
pub mod cpu;
pub mod expiry;
pub mod figures;
pub mod generator;
pub mod heading;
pub mod history;
pub mod keep_alive;
pub mod leasehold;
pub mod load;
pub mod memory;
pub mod mixed;
pub mod pace;
pub mod pacemaker;
pub mod process;
pub mod progress;
pub mod report;
mod stopwatch;
pub mod store;
pub mod tally;
pub mod verify;
pub mod watch;

use std::io::Write;

pub use stopwatch::{Stopwatch, Wall};

use crate::cli::arguments::bench::BenchCommand;
use crate::cli::arguments::{Format, GlobalArgs};
use crate::cli::failure::Failure;

/// Carries out `leasehold bench`.
///
/// # Errors
/// No node can be reached, or nothing was answered.
pub fn run(
    command: BenchCommand,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let has_table = !matches!(
        command,
        BenchCommand::LeaseExpiry(_) | BenchCommand::Watch(_)
    );
    if global.output == Format::Table && !has_table {
        return Err(Failure::usage(
            "the report of this load is told in sentences and has no table: leave out `-o table`, or \
             choose json or fields",
        ));
    }
    match command {
        BenchCommand::Get(arguments) => mixed::run(1.0, &arguments, global, out),
        BenchCommand::Put(arguments) => mixed::run(0.0, &arguments, global, out),
        BenchCommand::Mixed(arguments) => {
            let (reads, load) = arguments.load();
            mixed::run(reads, &load, global, out)
        }
        BenchCommand::LeaseKeepalive(arguments) => keep_alive::run(&arguments, global, out),
        BenchCommand::LeaseExpiry(arguments) => expiry::run(&arguments, global, out),
        BenchCommand::Watch(arguments) => watch::run(&arguments, global, out),
    }
}
