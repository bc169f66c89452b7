//! Clusters of their own, as in [`beside`](crate::beside), whose machines are not what they should be:
//! disks and wires that are slow, and clocks that do not agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::client::Client;

use crate::clocks::Clocks;
use crate::harness::Cluster;
use crate::live::{Stage, repeat, watch_over_what_is_wrong, who_gives_up};
use crate::tools::{Tools, left_out, let_go};
use crate::wires::Wires;

/// How long a message takes from node to node: two of them are half as long again as is bearable.
const SLOW_WIRE: Duration = Duration::from_millis(75);
/// How long a sync takes: longer than a promise lasts.
const SLOW_SYNC: Duration = Duration::from_millis(700);
/// A leader whose clocks run so slowly takes half a second for two minutes.
const SLOW_CLOCKS: f64 = 1.0 / 256.0;
/// A node whose clocks run so fast has soon seen enough of the others' to judge them.
const FAST_CLOCKS: f64 = 4.0;
const SECOND_NANOS: i64 = 1_000_000_000;
/// What is left of a lease, by its own slow clock, that lasts for as long as this needs: 25 seconds.
const ENOUGH_SECONDS: f64 = 0.1;
const REMAINING: &str = "leasehold_leader_lease_remaining_seconds ";
const JUMPS: &str = "leasehold_clock_jump_total ";

/// Nodes that call each other over wires of ours, and run.
fn wired() -> (Cluster, Wires, usize) {
    let mut cluster = Cluster::prepare(3);
    let wires = Wires::between(&cluster.nodes, 1);
    wires.take_over(&cluster.nodes);
    let leader = cluster.start_and_settle();
    (cluster, wires, leader)
}

/// Messages between nodes take their time, and one follower's disk does.
pub(crate) async fn slow_wires_and_a_slow_disk() {
    let tools = Tools::find();
    if tools.strace.is_none() {
        return left_out("a disk that is slow, under Prometheus: needs strace");
    }
    let (cluster, wires, leader) = wired();
    let client = who_gives_up(&cluster).await;
    let stop = Arc::<AtomicBool>::default();
    let writing = tokio::spawn(repeat(
        (client, stop.clone()),
        50,
        async |client: &Client, round| {
            let _ = client.put(format!("slow/{}", round % 10), "v", None).await;
        },
    ));
    let prometheus = watch_over_what_is_wrong(&cluster);
    let mut stage = Stage::new(&prometheus);
    stage.begin("messages between nodes are slow, and so is the disk of a follower");
    for (from, to) in (0..3).flat_map(|from| (0..3).map(move |to| (from, to))) {
        wires.change(from, to, |weather| weather.delay = SLOW_WIRE);
    }
    let follower = &cluster.nodes[(leader + 1) % 3];
    let tracer = tools.slow_syncs(follower, SLOW_SYNC).expect("it runs");
    while !stage.has_fired(&[
        "LeaseholdPeerRttHigh warning",
        "LeaseholdFsyncSlow warning",
        "LeaseholdDiskStalled warning",
    ]) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let_go(tracer);
    stop.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    stage.end();
}

/// What no cluster can bear: a leader that is cut off, and whose clocks hardly move, so that it takes its
/// lease for valid long after the others' promises have ended. Then clocks that run apart, as those who
/// compare them see, and a leader's clocks that are set back.
pub(crate) async fn clocks_that_lie() {
    let (mut cluster, wires, _) = wired();
    let clocks: Option<Vec<Clocks>> = cluster.nodes.iter().map(Clocks::of).collect();
    let Some(mut clocks) = clocks else {
        return left_out("clocks that run apart: needs x86-64, and processes that may be traced");
    };
    let prometheus = watch_over_what_is_wrong(&cluster);
    let mut stage = Stage::new(&prometheus);
    stage.begin("the clocks of a leader hardly move, and nobody hears of it");
    let leader = loop {
        let leader = cluster.wait_for_lease();
        clocks[leader].run(&cluster.nodes[leader], SLOW_CLOCKS);
        for other in (0..3).filter(|other| *other != leader) {
            wires.change(leader, other, |weather| weather.is_cut = true);
            wires.change(other, leader, |weather| weather.is_cut = true);
        }
        // To get hold of its clocks it was stopped, which may have taken longer than its lease lasts.
        if cluster.nodes[leader].metric(REMAINING) > ENOUGH_SECONDS {
            break leader;
        }
        clocks[leader].run(&cluster.nodes[leader], 1.0);
        wires.clear();
    };
    while !stage.has_fired(&["LeaseholdConcurrentLeases critical"]) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.begin("it hears of its successor");
    wires.clear();
    while !stage.has_fired(&["LeaseholdLeaseAssumptionViolated critical"]) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.begin("its clocks run four times as fast as the others'");
    clocks[leader].run(&cluster.nodes[leader], FAST_CLOCKS);
    while !stage.has_fired(&["LeaseholdClockDrift critical"]) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    clocks[leader].run(&cluster.nodes[leader], 1.0);
    stage.begin("the clocks of another member are set back by a second");
    // Whether anybody has a lease does not matter.
    let other = cluster.leader().filter(|other| *other != leader);
    let other = other.unwrap_or((leader + 1) % 3);
    let node = &cluster.nodes[other];
    let jumps = node.metric(JUMPS);
    while node.metric(JUMPS) == jumps {
        // It stands meanwhile. If that takes a second, they do not go back, as it sees them.
        clocks[other].set_back(node, SECOND_NANOS);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    while !stage.has_fired(&["LeaseholdClockJump warning"]) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.end();
}
