//! The examples, run as a reader runs them.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::Cluster;
use crate::harness::binary;
use crate::locks::Running;
use crate::locks::with_cluster;

/// Where the examples lie, beside the binary under test. A test that is asked for by name comes without
/// them, and one that was edited may be older than its source: cargo knows.
fn folder() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let profile = PathBuf::from(binary()).parent().unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "--offline", "--examples"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        build.arg("--target-dir").arg(profile.parent().unwrap());
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(build.status().unwrap().success(), "the examples build");
        profile.join("examples")
    })
}

fn start(cluster: &Cluster, name: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(folder().join(name));
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
    eight.signal("-KILL");
    eight.end();
    assert_eq!(seven.line(), "8 is gone");
    let mut nine = start(&cluster, "service_registry", &["9", "10.0.0.9:80"]);
    assert_eq!(seven.line(), "9 is at 10.0.0.9:80");
    nine.says("that is all");
    nine.signal("-INT");
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
    ann.signal("-KILL");
    ann.end();
    bob.says("bob leads with token");
}

#[test]
fn the_watcher_of_the_example_shows_all_and_then_each_change() {
    let cluster = Cluster::start(1);
    let put = |key: &str, value| assert_eq!(cluster.cli(&["put", key, value]).0, 0);
    put("examples/config/color", "blue");
    let watcher = start(&cluster, "config_watcher", &[]);
    let shown = |line: String| line.split_once(": ").unwrap().1.to_owned();
    assert_eq!(shown(watcher.line()), "color=blue");
    put("examples/config/size", "3");
    assert_eq!(shown(watcher.line()), "color=blue size=3");
    assert_eq!(cluster.cli(&["del", "examples/config/color"]).0, 0);
    assert_eq!(shown(watcher.line()), "size=3");
}

#[test]
fn the_job_of_the_example_is_overtaken_while_it_is_suspended() {
    let cluster = Cluster::start(1);
    let mut ann = start(&cluster, "fenced_job", &["ann"]);
    ann.says("ann did step 2");
    let bob = start(&cluster, "fenced_job", &["bob"]);
    ann.signal("-STOP");
    bob.says("bob works with token");
    bob.says("bob did step");
    ann.signal("-CONT");
    ann.says("ann was overtaken");
    assert!(ann.end().success());
    bob.says("bob did step");
}
