//! A disk that stalls, and one without a byte left: of the leader and of a follower, one at a time,
//! under clients that know what they may expect.

use std::time::{Duration, Instant};

use leasehold::api::ErrorKind;
use leasehold::client::Client;

use crate::chaos::fleet::Fleet;
use crate::chaos::schedule::Fault;
use crate::chaos::tools::left_out;
use crate::chaos::trial::{TICK, Trial};
use crate::harness::PATIENCE;

/// How long each sync takes on a disk that stalls: several times as long as promises and elections.
const STALL: Duration = Duration::from_secs(4);
/// How long it is watched what others do meanwhile.
const MEANWHILE: Duration = Duration::from_secs(5);
/// The code of a process whose disk failed it.
const DISK_FAILED: i32 = 1;
/// What is written at most, in parts, to have a log of 8 MiB segments ask its disk for more.
const PARTS: usize = 320;
const PART_BYTES: usize = 100_000;

const APPLIED: &str = "leasehold_raft_applied_index";

/// Waits until `node` has applied what the leader has by now.
fn follows(trial: &mut Trial, number: usize) -> Duration {
    let (wanted, _) = trial.until("a leader that says how far it is", |fleet| {
        let leader = fleet.cluster.leader()?;
        fleet.cluster.nodes[leader].metric_if_any(APPLIED)
    });
    let (_, took) = trial.until("the node follows again", |fleet| {
        let node = &fleet.cluster.nodes[number];
        (node.metric_if_any(APPLIED)? >= wanted).then_some(())
    });
    took
}

#[test]
fn a_leader_whose_disk_stalls_is_succeeded_and_no_lease_suffers_by_it() {
    let fleet = Fleet::start(3, 1);
    if !fleet.can_slow_disks() {
        return left_out("a disk that stalls: needs strace");
    }
    let mut trial = Trial::begin(fleet, 1);
    // Twice: whoever stood still the first time may lead, or stand still, the second time.
    for _ in 0..2 {
        let (stalled, _) = trial.leader_beside(&[]);
        let process = trial.fleet.cluster.nodes[stalled].process.as_ref();
        let process = process.expect("it leads").id();
        trial.strike(stalled, |whom| Fault::SlowDisk(whom, STALL));
        let (next, took) = trial.leader_beside(&[stalled]);
        eprintln!(
            "n{} leads {took:?} after the disk of n{} stalled",
            next + 1,
            stalled + 1
        );
        // It has no say, and no others do without one.
        let client = trial.client();
        let began = Instant::now();
        let mut written = 0;
        while began.elapsed() < MEANWHILE {
            let leader = trial.fleet.cluster.leader();
            assert_ne!(leader, Some(stalled), "whose disk stands still leads");
            trial
                .runtime
                .block_on(client.put("meanwhile", "v", None))
                .unwrap();
            written += 1;
            trial.go_on(Duration::from_millis(50));
        }
        trial.fleet.heal();
        let took = follows(&mut trial, stalled);
        eprintln!("{written} writes meanwhile; it follows {took:?} after its disk recovered");
        let now = trial.fleet.cluster.nodes[stalled].process.as_ref();
        let now = now.expect("it runs").id();
        assert_eq!(now, process, "a disk that is slow is no reason to end");
    }
    trial.end().demand();
}

/// Writes until the node `number` notices that its disk is full, or so much that it might have. Returns
/// how many were taken, which each has to be in the end, and how many were refused at first: a leader
/// that sees its disk fill up says so of the cluster until another leads.
fn write_much(trial: &mut Trial, client: &Client, number: usize) -> (usize, usize) {
    let mut refused = 0;
    for part in 0..PARTS {
        let mut bytes = vec![0; PART_BYTES];
        fastrand::Rng::with_seed(part as u64).fill(&mut bytes);
        let began = Instant::now();
        loop {
            let put = client.put(format!("much/{}", part % 8), bytes.clone(), None);
            match trial.runtime.block_on(put) {
                Ok(_) => break,
                Err(error) if matches!(error.kind, ErrorKind::NoSpace { .. }) => {
                    assert!(began.elapsed() < PATIENCE, "{error}");
                    refused += 1;
                    trial.go_on(TICK);
                }
                Err(error) => panic!("part {part}: {error}"),
            }
        }
        trial.fleet.tick();
        if trial.fleet.cluster.nodes[number].process.is_none() {
            return (part + 1, refused);
        }
    }
    (PARTS, refused)
}

/// Fills the disk of a node, and demands that the cluster takes every write, and that the node is there
/// again once there is room.
fn fill(trial: &mut Trial, number: usize, whose: &str) {
    let client = trial.client();
    let ended_before = trial.fleet.deeds.ended_by_disk.len();
    trial.strike(number, Fault::FullDisk);
    let (parts, refused) = write_much(trial, &client, number);
    let (leader, _) = trial.leader_beside(&[]);
    trial.fleet.heal();
    let took = follows(trial, number);
    let endings = &trial.fleet.deeds.ended_by_disk[ended_before..];
    for ending in endings {
        assert_eq!(ending.number, number, "{ending:?}");
        assert_eq!(ending.code, Some(DISK_FAILED), "{}", ending.tail);
        let said = ending.tail.to_lowercase();
        assert!(said.contains("no space left"), "{}", ending.tail);
    }
    let became = match endings {
        [] => "runs on",
        _ => "has ended, and said why",
    };
    eprintln!(
        "{whose} without space: {parts} writes of {PART_BYTES} bytes after {refused} refusals, n{} \
         {became}, n{} led; it has everything {took:?} after there was room",
        number + 1,
        leader + 1
    );
}

#[test]
fn a_node_without_space_hinders_nobody_and_is_there_again_once_it_has_some() {
    let fleet = Fleet::start(3, 2);
    if !fleet.can_fill_disks() {
        return left_out("full disks: needs loop devices and mkfs.ext4");
    }
    let mut trial = Trial::begin(fleet, 2);
    let (leader, _) = trial.leader_beside(&[]);
    fill(&mut trial, (leader + 1) % 3, "a follower");
    let (leader, _) = trial.leader_beside(&[]);
    fill(&mut trial, leader, "the leader");
    let verdict = trial.end();
    verdict.demand();
}
