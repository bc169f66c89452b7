//! A cluster whose state is as large as it may be: nothing is added, what makes room is taken, and
//! once there is room everything goes on by itself.

use std::time::Duration;

use leasehold::api::{Error, ErrorKind, Outcome};
use leasehold::client::{Client, CompactionOptions, DeleteOptions, GetOptions, PutOptions};

use crate::harness::{Cluster, PATIENCE, eventually, judged};

const QUOTA: u64 = 160 << 20;
const VALUE_BYTES: usize = 1 << 20;
const ALARM: &str = "leasehold_alarms{type=\"no_space\"}";

fn patient() -> Option<PutOptions> {
    Some(PutOptions::new().with_timeout(Duration::from_secs(60)))
}

/// Bytes that nothing compresses.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..VALUE_BYTES / 8).flat_map(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    });
    words.collect()
}

/// Puts one large key after the other until the cluster takes no more; why, and how many it has.
async fn fill(client: &Client) -> (Error, u64) {
    for number in 0..1000 {
        let key = format!("big{number:03}");
        let put = async || client.put(&key, noise(number), patient()).await;
        if let Err(error) = judged(put).await {
            // An attempt before the one that was refused may have put it.
            let keys = GetOptions::new().with_prefix().with_count_only();
            let found = client.get("big", Some(keys)).await.unwrap();
            return (error, found.count.expect("it was asked for"));
        }
    }
    panic!("a thousand values of {VALUE_BYTES} bytes fit a quota of {QUOTA}");
}

fn assert_no_space<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.expect_err("there is no room");
    let ErrorKind::NoSpace { used, quota } = error.kind else {
        panic!("{error}");
    };
    assert!(used >= quota && quota == QUOTA, "{used} of {quota}");
    assert_eq!(error.outcome, Outcome::NotApplied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cluster_refuses_what_adds_takes_what_frees_and_goes_on_once_there_is_room() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("[quota]\nbytes = \"160MiB\"\n");
    cluster.check_states_every_second();
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    let minute = Duration::from_secs(60);
    // Nobody renews it while the cluster is filled.
    let hour = Duration::from_secs(3600);
    let held = client.lease().grant(hour, None).await.unwrap();
    let on_it = PutOptions::new().with_lease(held.id);
    client.put("held", "v", Some(on_it)).await.unwrap();
    assert_eq!(
        cluster.cli(&["alarm", "list"]),
        (0, String::new(), String::new())
    );

    let (error, count) = fill(&client).await;
    assert_no_space(Err::<(), _>(error));
    assert!(count > 10, "{count} values were taken");
    // Another leader knows it from the log.
    cluster.nodes[leader].kill();
    cluster.wait_for_lease();
    // One that has no call under way to the old leader: of that it could not know what became.
    let client = cluster.client().await;
    assert_no_space(judged(async || client.put("k", "v", patient()).await).await);
    let lease = client.lease();
    assert_no_space(judged(async || lease.grant(minute, None).await).await);
    // Without a session it is refused before it is in the log.
    eventually("the alarm on every node that runs", || {
        let running = cluster.nodes.iter().filter(|node| node.process.is_some());
        let mut alarms = running.map(|node| node.metric(ALARM));
        alarms.all(|alarm| alarm == 1.0).then_some(())
    });
    let now = cluster.wait_for_lease();
    let last = cluster.nodes[now].metric("leasehold_raft_commit_index");
    // Whose leader is lost meanwhile hears of that, and not of the space.
    let said = eventually("a refusal", || {
        let (code, _, said) = cluster.cli(&["put", "k", "v"]);
        assert_ne!(code, 0);
        (code == 1).then_some(said)
    });
    assert!(
        said.contains("LH-NO-SPACE") && said.contains("compact"),
        "{said}"
    );
    let grown = cluster.nodes[now].metric("leasehold_raft_commit_index") - last;
    // The comparison of states writes an entry every second.
    assert!(grown < 60.0, "{grown} entries");

    // What is there is served, and what is held is kept.
    assert!(client.lease().keep_alive_once(held.id).await.is_ok());
    assert_eq!(
        client.get("held", None).await.unwrap().value().unwrap(),
        "v"
    );
    cluster.nodes[leader].start();
    cluster.wait_until_settled();
    eventually("the alarm of the node that was away", || {
        (cluster.nodes[leader].metric(ALARM) == 1.0).then_some(())
    });
    let (code, listed, said) = cluster.cli(&["alarm", "list"]);
    assert_eq!((code, said.as_str()), (0, ""));
    assert_eq!(listed.matches("alarm:NOSPACE").count(), 3, "{listed}");
    let (_, table, _) = cluster.cli(&["endpoint", "status", "-o", "table"]);
    assert_eq!(table.matches("(NOSPACE)").count(), 3, "{table}");
    for node in &cluster.nodes {
        eventually("no health, for want of space", || {
            let (status, said) = node.admin("/health")?;
            (status == 503 && said.contains("alarm NOSPACE: ")).then_some(())
        });
        eventually("health, apart from that", || {
            (node.admin("/health?exclude=NOSPACE")?.0 == 200).then_some(())
        });
    }

    // Deletions and compactions are taken; so is the end of a lease.
    client.lease().revoke(held.id).await.unwrap();
    let keys = DeleteOptions::new().with_prefix().with_timeout(PATIENCE);
    let deleted = client.delete("big", Some(keys)).await.unwrap();
    assert_eq!(deleted.deleted, count);
    let revision = deleted.header.revision;
    let physical = CompactionOptions::new()
        .with_physical()
        .with_timeout(PATIENCE);
    client.compact(revision, Some(physical)).await.unwrap();
    eventually("room for writes", || {
        let mut alarms = cluster.nodes.iter().map(|node| node.metric(ALARM));
        alarms.all(|alarm| alarm == 0.0).then_some(())
    });
    client.put("k", "v", patient()).await.unwrap();
    client.lease().grant(minute, None).await.unwrap();
    let keys = GetOptions::new().with_prefix().with_keys_only();
    assert_eq!(client.get("big", Some(keys)).await.unwrap().count, Some(0));
    for node in &cluster.nodes {
        let differs = "leasehold_storage_hash_checks_total{result=\"differs\"}";
        assert_eq!(node.metric(differs), 0.0, "{}", node.name);
    }
}
