//! The examples, run as a reader runs them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::{Cluster, Signal, binary, without_settings};
use crate::locks::{Running, with_cluster};

/// Where the examples lie, beside the binary under test. A test that is asked for by name comes without
/// them, and one that was edited may be older than its source: cargo knows.
fn folder() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = cargo(&["build", "--quiet", "--examples"]).status();
        assert!(built.unwrap().success(), "the examples build");
        PathBuf::from(binary()).parent().unwrap().join("examples")
    })
}

/// Cargo, for what is built as the binary under test was, beside it.
fn cargo(arguments: &[&str]) -> Command {
    let profile = PathBuf::from(binary()).parent().unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).args(["--locked", "--offline"]);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

fn start(cluster: &Cluster, name: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(folder().join(name));
    without_settings(&mut command);
    Running::start(with_cluster(command.args(arguments), cluster))
}

/// X14: a server that crashed leaves the list by itself.
#[test]
fn x14_the_registry_of_the_example_loses_a_server_that_is_killed() {
    let cluster = Cluster::start(1);
    let seven = start(&cluster, "service_registry", &["7", "10.0.0.7:80"]);
    assert_eq!(seven.line(), "7 is at 10.0.0.7:80");
    assert_eq!(seven.line(), "that is all");
    let mut eight = start(&cluster, "service_registry", &["8", "10.0.0.8:80"]);
    assert_eq!(seven.line(), "8 is at 10.0.0.8:80");
    assert_eq!(eight.line(), "7 is at 10.0.0.7:80");
    eight.signal(Signal::KILL);
    eight.end();
    assert_eq!(seven.line(), "8 is gone");
    let mut nine = start(&cluster, "service_registry", &["9", "10.0.0.9:80"]);
    assert_eq!(seven.line(), "9 is at 10.0.0.9:80");
    nine.says("that is all");
    nine.signal(Signal::INT);
    assert!(nine.end().success());
    assert_eq!(seven.line(), "9 is gone");
}

#[test]
fn the_election_of_the_example_hands_over_when_a_leader_is_killed() {
    let cluster = Cluster::start(1);
    let mut ann = start(&cluster, "leader_election", &["ann"]);
    ann.says("ann leads with token");
    let bob = start(&cluster, "leader_election", &["bob"]);
    bob.says("bob stands");
    ann.signal(Signal::KILL);
    ann.end();
    bob.says("bob leads with token");
}

#[test]
fn the_watcher_of_the_example_shows_all_and_then_each_change() {
    let cluster = Cluster::start(1);
    let put = |key: &str, value| {
        let put = ["put", key, value, "--exactly-once"];
        assert_eq!(cluster.cli(&put).0, 0);
    };
    put("examples/config/color", "blue");
    let watcher = start(&cluster, "config_watcher", &[]);
    let shown = |line: String| line.split_once(": ").unwrap().1.to_owned();
    assert_eq!(shown(watcher.line()), "color=blue");
    put("examples/config/size", "3");
    assert_eq!(shown(watcher.line()), "color=blue size=3");
    let del = ["del", "examples/config/color", "--exactly-once"];
    assert_eq!(cluster.cli(&del).0, 0);
    assert_eq!(shown(watcher.line()), "size=3");
}

#[test]
fn the_store_of_the_example_outlives_its_program() {
    let scratch = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Command::new(folder().join("embedded"));
        without_settings(&mut command);
        let output = command
            .arg(scratch.path().join("counter"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(), "run 1\n");
    assert_eq!(run(), "run 2\n");
}

#[test]
fn the_job_of_the_example_is_overtaken_while_it_is_suspended() {
    let cluster = Cluster::start(1);
    let mut ann = start(&cluster, "fenced_job", &["ann"]);
    ann.says("ann did step 2");
    let bob = start(&cluster, "fenced_job", &["bob"]);
    ann.signal(Signal::STOP);
    bob.says("bob works with token");
    bob.says("bob did step");
    ann.signal(Signal::CONT);
    ann.says("ann was overtaken");
    assert!(ann.end().success());
    bob.says("bob did step");
}

/// What the documentation of the SDK shows, each operation by an example, does what it says.
#[test]
fn the_examples_of_the_documentation_run_beside_a_cluster() {
    let cluster = Cluster::start(3);
    let endpoints: Vec<String> = cluster
        .nodes
        .iter()
        .map(|it| it.client.to_string())
        .collect();
    let mut examples = cargo(&["test", "--doc", "client"]);
    examples.env("LEASEHOLD_EXAMPLES", endpoints.join(","));
    examples.env("LEASEHOLD_EXAMPLES_PKI", &cluster.pki.path);
    examples.env("LEASEHOLD_EXAMPLES_NAME", "tester");
    // Each in its turn: some hand leadership over, or give up history that others read.
    examples.args(["--", "--test-threads=1"]);
    let output = examples.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let problems = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{problems}");
    // They were no mere compilations: this is what one of them leaves behind.
    let (code, out, _) = cluster.cli(&["get", "nightly-report", "--print-value-only"]);
    assert_eq!((code, out.as_str()), (0, "done\n"), "{said}");
}
