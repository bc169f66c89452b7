//! The `leasehold` binary: it chooses the allocator and hands over to the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use leasehold::cli::arguments::Command;
use leasehold::{bench, cli};

/// A store's memory is made of small pieces that one thread makes and another gives back; the
/// system's allocator holds up the first while the second does.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli::CommandLine {
        command,
        global,
        settings,
    } = cli::parse();
    cli::printing(|out| match command {
        // Load stands above the command line, and is no part of it.
        Command::Bench { command } => bench::run(command, &global, out),
        Command::Chaos(arguments) => bench::chaos::run(&arguments, &global, out),
        Command::Verify { command } => bench::verify::run(command, &global, out),
        other => cli::run(other, &global, settings, out),
    })
}
