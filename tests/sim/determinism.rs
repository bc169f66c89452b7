//! The same seed gives the same run: in one process, and in two.

use std::process::Command;

use crate::run::run;
use crate::{Settings, affordable};

/// Seeds whose every event is compared.
const SEEDS: u64 = affordable(20);
/// Tells a process that it is one of the two.
const CHILD: &str = "SIM_FINGERPRINTS";

#[test]
fn the_same_seed_gives_the_same_run() {
    let settings = Settings::read();
    for seed in settings.first..settings.first + 6 {
        let first = run(settings.options(seed));
        let mut options = settings.options(seed);
        options.readable = true;
        let second = run(options);
        assert_eq!(first.trace.hash(), second.trace.hash(), "seed {seed:#x}");
        assert_eq!(first.trace.events(), second.trace.events());
        assert!(first.trace.events() > 1_000);
    }
}

/// What differs from process to process (addresses, hash seeds, the environment) must not matter.
#[test]
fn two_processes_do_the_same() {
    if std::env::var_os(CHILD).is_some() {
        return println!("{}", fingerprints().join("\n"));
    }
    let child = |name: &str| {
        let program = std::env::current_exe().expect("a running program has a file");
        let mut command = Command::new(program);
        let test = "determinism::two_processes_do_the_same";
        command.args(["--exact", test, "--nocapture"]);
        let output = command.env(CHILD, name).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
        let lines = text.lines().filter(|line| line.contains("fingerprint"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (first, second) = (child("a"), child("a much longer name for the environment"));
    assert_eq!(first.len() as u64, SEEDS);
    assert_eq!(first, second);
}

fn fingerprints() -> Vec<String> {
    let settings = Settings::read();
    let seeds = settings.first..settings.first + SEEDS;
    seeds
        .map(|seed| {
            let trace = run(settings.options(seed)).trace;
            let (hash, events) = (trace.hash(), trace.events());
            format!("fingerprint of {seed:#x}: {hash:016x}, {events} events")
        })
        .collect()
}
