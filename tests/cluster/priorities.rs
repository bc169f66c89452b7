//! What is refused first while writes wait for a quorum, and that what matters waits its turn.

use std::time::{Duration, Instant};

use leasehold::api::{Error, ErrorKind, Outcome, Priority};
use leasehold::client::{Client, PutOptions, RetryPolicy};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::harness::{Cluster, Node, PATIENCE, eventually};

/// Of these requests half may be writes that wait. One of low priority is refused once a quarter waits.
const WAITING_MAX: usize = 16;
const WAITING_LOW_MAX: usize = 4;
/// Leaders that lead on for a while when their followers are silent.
const PATIENT: &str = "[leader_lease]\nduration = \"3s\"\nmax_clock_skew = \"150ms\"\n\
                       [raft]\nstep_down_after = \"3200ms\"\nelection_timeout_min = \"3500ms\"\n\
                       election_timeout_max = \"4s\"\n";
const REFUSED: &str = "leasehold_requests_rejected_total{class=\"write\",reason=\"priority\"}";

#[test]
fn while_writes_wait_those_of_low_priority_are_refused_and_the_usual_ones_are_served() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(&format!("{PATIENT}[limits]\nmax_waiting = {WAITING_MAX}\n"));
    cluster.start_and_settle();
    let runtime = Runtime::new().unwrap();
    let began = Instant::now();
    // A machine that is busy for long may change its leader meanwhile: then nothing was shown.
    while let Err(why) = attempt(&mut cluster, &runtime) {
        assert!(began.elapsed() < 2 * PATIENCE, "{why}");
    }
}

fn attempt(cluster: &mut Cluster, runtime: &Runtime) -> Result<(), Error> {
    let leader = cluster.wait_for_lease();
    let options = cluster.options().with_retry(RetryPolicy::never());
    let endpoint = vec![cluster.nodes[leader].client.to_string()];
    let client = runtime.block_on(cluster.client_of(endpoint, options));
    runtime.block_on(put(&client, "warm"))?;
    let low = client.with_priority(Priority::Low);
    let node = &cluster.nodes[leader];
    let refused_before = node.metric(REFUSED);
    let followers = [(leader + 1) % 3, (leader + 2) % 3].map(|place| &cluster.nodes[place]);
    followers.iter().for_each(|node| node.pause());
    let put_in_turn = |key| spawn(runtime, &client, key);
    let mut waiting: Vec<_> = ["a", "b", "c", "d"].into_iter().map(put_in_turn).collect();
    wait_for(node, &waiting);
    let refused = runtime.block_on(put(&low, "low"));
    // The others have room where it had none.
    waiting.push(put_in_turn("e"));
    wait_for(node, &waiting);
    followers.iter().for_each(|node| node.resume());
    for write in waiting {
        runtime.block_on(write).unwrap()?;
    }
    let refused = refused.expect_err("it is not served before those that came earlier");
    if !matches!(refused.kind, ErrorKind::SlowDown { .. }) {
        return Err(refused);
    }
    assert_eq!(refused.outcome, Outcome::NotApplied, "{refused}");
    assert!(refused.to_string().contains("low priority"), "{refused}");
    assert_eq!(node.metric(REFUSED), refused_before + 1.0);
    runtime.block_on(put(&low, "low"))
}

fn spawn(runtime: &Runtime, client: &Client, key: &'static str) -> JoinHandle<Result<(), Error>> {
    let client = client.clone();
    runtime.spawn(async move { put(&client, key).await })
}

async fn put(client: &Client, key: &str) -> Result<(), Error> {
    let options = PutOptions::new().with_timeout(Duration::from_secs(10));
    client.put(key, "", Some(options)).await.map(drop)
}

/// Until all of these wait at the leader, or one is over, which is found out when it is looked at.
fn wait_for(node: &Node, writes: &[JoinHandle<Result<(), Error>>]) {
    assert!(writes.len() >= WAITING_LOW_MAX);
    eventually("writes that wait", || {
        let waiting = node.metric("leasehold_raft_proposals_pending");
        let is_over = writes.iter().any(JoinHandle::is_finished);
        (is_over || waiting >= writes.len() as f64).then_some(())
    });
}
