//! Development clusters of one user, side by side.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{Signal, free_port, leasehold_command};
use crate::locks::Running;

/// The command line of a user whose runtime directory this is.
fn leasehold(home: &Path, words: &str) -> Command {
    let mut command = leasehold_command();
    command.args(words.split(' '));
    command.env("XDG_RUNTIME_DIR", home);
    command
}

/// Three free ports in a row, the first of them.
fn three_ports() -> u16 {
    loop {
        let [first, second, third] = [(); 3].map(|()| free_port());
        if (second, third) == (first + 1, first + 2) {
            return first;
        }
    }
}

fn start(home: &Path, name: &str) -> Running {
    let words = format!("dev --nodes 1 --port {}{name}", three_ports());
    let running = Running::start(&mut leasehold(home, &words));
    running.says("Ctrl-C stops everything");
    running
}

fn run(home: &Path, words: &str) -> (i32, String, String) {
    let output = leasehold(home, words).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_second_development_cluster_runs_beside_the_first_under_a_name() {
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let home = home.path();
    let (code, _, said) = run(home, "--dev two get k");
    assert_eq!(code, 2);
    assert!(said.contains("leasehold dev --name two"), "{said}");

    let mut first = start(home, "");
    let (code, _, said) = run(home, "dev --nodes 1");
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("--name two --port 7500"),
        "it names the way: {said}"
    );
    let mut second = start(home, " --name two");
    for (to, value) in [("", "1"), ("--dev two ", "2")] {
        let (code, _, said) = run(home, &format!("{to}--timeout 60 put k {value}"));
        assert_eq!(code, 0, "{to}: {said}");
    }
    for (to, value) in [("", "k\n1\n"), ("--dev two ", "k\n2\n")] {
        let (_, out, said) = run(home, &format!("{to}--timeout 60 get k"));
        assert_eq!(out, value, "{to}: {said}");
    }
    for dev in [&mut second, &mut first] {
        dev.signal(Signal::INT);
        assert!(dev.end().success());
    }
    assert_eq!(fs::read_dir(home).unwrap().count(), 0, "they leave nothing");
}
