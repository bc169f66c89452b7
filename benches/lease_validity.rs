//! Whether this machine bears the leader lease: a short `leasehold verify lease`, with every fault.
//!
//! `cargo bench --bench lease_validity`, or `-- 60s` for a longer look. Prints the verb's own report,
//! and ends as it does. What the lines mean stands in `src/bench/verify/judge/mod.rs`.

#![expect(clippy::print_stderr, reason = "a bench says why it is over")]

use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let length = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let length = length.unwrap_or_else(|| "10s".to_owned());
    let verify = [
        "verify",
        "lease",
        "--faults",
        "pause,kill,cut",
        "--duration",
        &length,
    ];
    match Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(verify)
        .status()
    {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lease_validity: leasehold does not run: {error}");
            ExitCode::FAILURE
        }
    }
}
