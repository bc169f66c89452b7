//! What measures clusters and other stores beside them: the loads of `leasehold bench` on etcd too, leases
//! that end while leaders are killed, changes of leaders, overload, the transfer of snapshots, copies of
//! keys inside the program, and the
//! comparison of `benches/compare.sh`.
//!
//! `cargo bench --bench load -- --help`. The generator and its reports are the library's
//! (`leasehold::bench`); the servers are processes of the binary that cargo has built beside. `tests.rs`
//! holds the tests of this target, which cargo does not look for in a bench.

#![allow(
    unused_imports,
    dead_code,
    reason = "cargo says `test` to a bench as well, without a harness that would run its tests: what is \
              unused is found in tests.rs, where they are"
)]

mod arguments;
mod cached_reads;
mod compare;
mod cpu_share;
mod etcd;
mod gap;
mod lease_expiry;
mod overload;
mod peers;
mod read_leases;
mod run;
mod snapshot_transfer;
mod succession;

use std::io;
use std::process::ExitCode;

use clap::CommandFactory;

fn main() -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout());
    let command = arguments::Arguments::command();
    leasehold::cli::report(run::run(command, std::env::args_os(), &mut out))
}
