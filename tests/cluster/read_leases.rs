//! Read leases: linearizable reads at every member, without a message.

use std::time::{Duration, Instant};

use leasehold::api::ReadPath;

use crate::admin::hand_over;
use crate::harness::{Cluster, Node, PATIENCE, eventually};
use crate::reads::{at, read};

const EVERYBODY: &str = "[read_lease]\nenabled = true\n";

fn start(more: &str) -> Cluster {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(more);
    cluster.start_and_settle();
    cluster
}

fn held(node: &Node) -> f64 {
    node.metric("leasehold_reads_total{path=\"read_lease\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_serve_what_was_just_acknowledged_and_are_waited_for_when_they_die() {
    let mut cluster = start(EVERYBODY);
    let client = cluster.client().await;
    let (mut round, mut by_lease) = (0, [0_u32; 3]);
    let began = Instant::now();
    // Two of three do not lead. One that has acknowledged a write and not heard that it is committed asks.
    while by_lease.iter().filter(|times| **times >= 50).count() < 2 {
        assert!(began.elapsed() < PATIENCE, "{by_lease:?}");
        round += 1;
        let put = client.put("k", format!("{round}"), None).await.unwrap();
        for (node, by_lease) in by_lease.iter_mut().enumerate() {
            for _ in 0..3 {
                let get = client.get("k", Some(at(&cluster, node))).await.unwrap();
                assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
                assert!(get.header().revision >= put.header().revision);
                let read = read(&get);
                assert!(read.applied_index >= read.read_index);
                if read.path == ReadPath::ReadLease {
                    assert!(!read.lease_remaining.is_zero(), "{read:?}");
                    assert_ne!(get.header().leader_id, Some(get.header().member_id));
                    *by_lease += 1;
                }
            }
        }
    }
    let served: f64 = cluster.nodes.iter().map(held).sum();
    assert!(served >= 100.0, "{served}");

    // A holder that dies is waited for, and then no more.
    let leader = cluster.wait_for_lease();
    eventually("two holders", || {
        let holders = cluster.nodes[leader].metric("leasehold_read_lease_holders");
        (holders >= 2.0).then_some(())
    });
    cluster.nodes[(leader + 1) % 3].kill();
    client.put("k", "after", None).await.unwrap();
    let other = (leader + 2) % 3;
    let get = client.get("k", Some(at(&cluster, other))).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_once_its_read_leases_are_back() {
    let cluster = start(EVERYBODY);
    let client = cluster.client().await;
    for round in 0..3 {
        let put = client.put("k", format!("{round}"), None).await.unwrap();
        hand_over(&client).await;
        for node in 0..3 {
            let get = client.get("k", Some(at(&cluster, node))).await.unwrap();
            assert!(get.header().revision >= put.header().revision);
            assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
        }
    }
    let recalls: f64 = cluster
        .nodes
        .iter()
        .map(|node| node.metric("leasehold_read_lease_recalls_total{reason=\"transfer\"}"))
        .sum();
    assert!(recalls >= 1.0, "{recalls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_ask_for_read_leases_hold_nothing_back() {
    let mut cluster = start("");
    let client = cluster.client().await;
    let leader = cluster.wait_for_lease();
    client.put("k", "v", None).await.unwrap();
    let follower = (leader + 1) % 3;
    let get = client.get("k", Some(at(&cluster, follower))).await.unwrap();
    let read = read(&get);
    assert_ne!(read.path, ReadPath::ReadLease);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let grants: f64 = cluster
        .nodes
        .iter()
        .map(|node| node.metric("leasehold_read_lease_grants_total"))
        .sum();
    assert!(grants == 0.0, "{grants}");
}
