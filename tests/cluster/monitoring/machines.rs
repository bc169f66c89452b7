//! Clusters of their own, as in [`beside`](crate::monitoring::beside), whose machines are not what they should be:
//! disks and wires that are slow, and clocks that do not agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::client::Client;

use crate::chaos::tools::{Tools, left_out, let_go};
use crate::chaos::wires::Wires;
use crate::harness::{Cluster, eventually};
use crate::monitoring::clocks::Clocks;
use crate::monitoring::live::{Stage, repeat, watch_over_what_is_wrong, who_gives_up};

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
const VALID: &str = "leasehold_leader_lease_valid ";
const VIOLATIONS: &str = "leasehold_leader_lease_assumption_violations_total ";
const JUMPS: &str = "leasehold_clock_jump_total ";

/// Nodes that call each other over wires of ours, and run.
fn wired(more: &str) -> (Cluster, Wires, usize) {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(more);
    let wires = Wires::between(&cluster.nodes, 1);
    wires.take_over(&cluster.nodes);
    let leader = cluster.start_and_settle();
    (cluster, wires, leader)
}

/// The way to a member with a read lease is slow now and then, and writes wait for it; then it stays slow.
async fn far_holder(cluster: &Cluster, wires: &Wires, leader: usize, stage: &mut Stage<'_>) {
    stage.begin("a member with a read lease is far away, again and again");
    // On a busy machine another may begin to lead, and have another one far away.
    let mut leads = leader;
    let mut away = |delay| {
        let now = cluster.leader().unwrap_or(leads);
        for (place, delay) in [(leads, Duration::ZERO), (now, delay)] {
            let far = (place + 2) % 3;
            for (from, to) in [(place, far), (far, place)] {
                wires.change(from, to, |weather| weather.delay = delay);
            }
        }
        leads = now;
    };
    while !stage.has_fired(&["LeaseholdReadLeaseHoldsWrites warning"]) {
        away(Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        away(SLOW_WIRE);
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    eventually("a warning of the delay that is too short", || {
        away(SLOW_WIRE);
        let node = &cluster.nodes[cluster.leader()?];
        let (_, status) = node.manage("GET", "/admin/v1/status", "");
        let warning = "read_lease.max_write_delay is 50.0 ms";
        let is_told = status["warnings"].to_string().contains(warning);
        is_told.then_some(())
    });
}

/// Messages between nodes take their time, and one follower's disk does.
pub(crate) async fn slow_wires_and_a_slow_disk() {
    let tools = Tools::find();
    if tools.strace.is_none() {
        return left_out("a disk that is slow, under Prometheus: needs strace");
    }
    let (cluster, wires, leader) = wired("[read_lease]\nenabled = true\n");
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
    far_holder(&cluster, &wires, leader, &mut stage).await;
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

/// Waits for a leader with a lease. A member that has found a lease of its own wrong has no other before the operator
/// has done what deploy/runbook.md says: this does it, or all of them might be without one.
fn leader_with_a_lease(cluster: &mut Cluster, clocks: &mut [Clocks]) -> usize {
    eventually("a leader with a lease", || {
        for (node, clocks) in cluster.nodes.iter_mut().zip(&mut *clocks) {
            if node.tripped_mark().exists() {
                assert_eq!(node.stop(), 0);
                node.clear_leader_lease();
                node.start();
                eventually("a node that is there again", || node.status());
                *clocks = Clocks::of(node).expect("it was had before");
            }
        }
        cluster.leader()
    })
}

/// Cuts a leader off from the others and slows its clocks down while its lease still has long enough to go.
/// Returns which node it is.
fn cut_off_with_slow_clocks(cluster: &mut Cluster, clocks: &mut [Clocks], wires: &Wires) -> usize {
    loop {
        let leader = leader_with_a_lease(cluster, clocks);
        clocks[leader].run(&cluster.nodes[leader], SLOW_CLOCKS);
        for other in (0..3).filter(|other| *other != leader) {
            wires.change(leader, other, |weather| weather.is_cut = true);
            wires.change(other, leader, |weather| weather.is_cut = true);
        }
        // To get hold of its clocks it was stopped, which may have taken longer than its lease lasts.
        if cluster.nodes[leader].metric(REMAINING) > ENOUGH_SECONDS {
            return leader;
        }
        clocks[leader].run(&cluster.nodes[leader], 1.0);
        wires.clear();
    }
}

/// What no cluster can bear: a leader that is cut off, and whose clocks hardly move, so that it takes its
/// lease for valid long after the others' promises have ended. Then clocks that run apart, as those who
/// compare them see, and a leader's clocks that are set back.
pub(crate) async fn clocks_that_lie() {
    let (mut cluster, wires, _) = wired("");
    let clocks: Option<Vec<Clocks>> = cluster.nodes.iter().map(Clocks::of).collect();
    let Some(mut clocks) = clocks else {
        return left_out("clocks that run apart: needs x86-64, and processes that may be traced");
    };
    let prometheus = watch_over_what_is_wrong(&cluster);
    let mut stage = Stage::new(&prometheus);
    let leader = 'tries: loop {
        stage.begin("the clocks of a leader hardly move, and it hears of no other");
        let leader = cut_off_with_slow_clocks(&mut cluster, &mut clocks, &wires);
        while !stage.has_fired(&["LeaseholdConcurrentLeases critical"]) {
            let node = &cluster.nodes[leader];
            if node.metric(VALID) == 0.0 {
                eprintln!("its lease ended before Prometheus saw two: once more");
                clocks[leader].run(node, 1.0);
                wires.clear();
                continue 'tries;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        eventually("a successor", || {
            let others = (0..3).filter(|other| *other != leader);
            let mut leases = others.map(|other| cluster.nodes[other].metric(VALID));
            leases.any(|valid| valid > 0.0).then_some(())
        });
        stage.begin("it hears of its successor");
        wires.clear();
        let node = &cluster.nodes[leader];
        eventually("the end of its lease", || {
            (node.metric(VALID) == 0.0).then_some(())
        });
        if node.metric(VIOLATIONS) > 0.0 {
            break leader;
        }
        // A follower's refusal of its older term came before the successor's first message, and a
        // higher term alone does not prove that somebody leads (P37).
        eprintln!("it heard of a later term, and not from a leader: once more");
        clocks[leader].run(node, 1.0);
    };
    stage.must_fire(&["LeaseholdLeaseAssumptionViolated critical"]);
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
