//! Writes of the command line, which have no session unless they ask for one, where nobody can tell
//! what became of them.

use std::thread;
use std::time::Duration;

use crate::harness::{Cluster, PATIENCE, run};

/// Runs the command line, which gives a request so long.
fn leasehold(cluster: &Cluster, timeout: &str, words: &[&str]) -> (i32, String, String) {
    let flags = cluster.flags();
    let mut all: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .filter(|flag| !flag.starts_with("--timeout"))
        .collect();
    all.push(timeout);
    all.extend(words);
    run(&all)
}

/// The version of a key: how often it was written. 0 if it is not there.
fn version(cluster: &Cluster, key: &str) -> u64 {
    let (code, found, error) = cluster.cli(&["get", key, "-o", "fields"]);
    match code {
        0 => found
            .lines()
            .find_map(|line| line.strip_prefix("\"Version\" : ")?.parse().ok())
            .unwrap_or_else(|| panic!("a version in {found}")),
        5 => 0,
        _ => panic!("the cluster serves: {error}"),
    }
}

/// Followers that do not answer leave a leader that has taken a write in and cannot say what became
/// of it. What is told must be right, and no write may be made twice.
#[test]
fn an_unknown_outcome_ends_the_command_line_with_code_4_and_nothing_is_written_twice() {
    let mut cluster = Cluster::start(3);
    let started = std::time::Instant::now();
    let mut unknown = 0;
    for round in 0.. {
        let leader = cluster.wait_for_lease();
        let pause = |cluster: &Cluster, is_paused: bool| {
            for (number, node) in cluster.nodes.iter().enumerate() {
                match is_paused {
                    _ if number == leader => {}
                    true => node.pause(),
                    false => node.resume(),
                }
            }
        };
        let key = format!("k{round}");
        pause(&cluster, true);
        let (code, _, error) = leasehold(&cluster, "--timeout=2s", &["put", &key, "v"]);
        pause(&cluster, false);
        cluster.wait_for_lease();
        let written = version(&cluster, &key);
        match code {
            0 => assert_eq!(written, 1, "it was said to be written"),
            4 => {
                assert!(error.contains("may have taken effect"), "{error}");
                assert!(written <= 1, "it was written {written} times");
                unknown += 1;
            }
            _ => assert_eq!(written, 0, "code {code} says that it was not: {error}"),
        }
        // A leader that had lost its followers before the write came refuses it, and that is told.
        if unknown >= 2 {
            break;
        }
        assert!(started.elapsed() < 2 * PATIENCE, "no outcome was unknown");
    }
}

/// With a session the same write goes on by itself until it is known to have been made, and is made
/// once.
#[test]
fn a_write_that_asks_for_it_is_repeated_until_it_was_made_once() {
    let mut cluster = Cluster::start(3);
    for round in 0..3 {
        let leader = cluster.wait_for_lease();
        let key = format!("k{round}");
        let followers = [(leader + 1) % 3, (leader + 2) % 3];
        followers
            .iter()
            .for_each(|node| cluster.nodes[*node].pause());
        let (code, _, error) = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let words = ["put", &key, "v", "--exactly-once"];
                leasehold(&cluster, "--timeout=60s", &words)
            });
            // Long enough for the leader to take it in and to give up; if not, the write has it easier.
            thread::sleep(Duration::from_millis(1200));
            followers
                .iter()
                .for_each(|node| cluster.nodes[*node].resume());
            writing.join().unwrap()
        });
        assert_eq!(code, 0, "{error}");
        assert_eq!(version(&cluster, &key), 1);
    }
}
