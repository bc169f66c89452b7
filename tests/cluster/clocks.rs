//! Nodes that are told by their hypervisor that it has disrupted their clocks (P17). Its device is a page, and
//! so is a file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use leasehold::api::Consistency;
use leasehold::client::{GetOptions, RetryPolicy};

use crate::harness::{Cluster, eventually};

const MARKER_AT: u64 = 16;
const DISRUPTIONS: &str = "leasehold_clock_disruptions_total";

fn device(cluster: &Cluster, node: usize) -> PathBuf {
    cluster.folder.path().join(format!("vmclock{node}"))
}

fn disrupt(cluster: &Cluster, node: usize, marker: u64) {
    let page = File::options().write(true).open(device(cluster, node));
    let marker = marker.to_le_bytes();
    page.unwrap().write_all_at(&marker, MARKER_AT).unwrap();
}

/// Has the node's configuration name its device.
fn names(cluster: &Cluster, node: usize) {
    let config = &cluster.nodes[node].config;
    let setting = format!(
        "[node]\nvm_clock = \"{}\"\n",
        device(cluster, node).display()
    );
    let text = fs::read_to_string(config).unwrap();
    fs::write(config, text.replacen("[node]\n", &setting, 1)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_clocks_were_disrupted_serves_nothing_under_the_lease_of_before() {
    let mut cluster = Cluster::prepare(3);
    for node in 0..3 {
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(b"VCLK\0\x10\0\0");
        fs::write(device(&cluster, node), page).unwrap();
        names(&cluster, node);
    }
    cluster.start_and_settle();
    cluster.client().await.put("k", "1", None).await.unwrap();
    let lease_only = GetOptions::new().with_consistency(Consistency::LeaseOnly);
    for marker in 1.. {
        let leader = cluster.wait_for_lease();
        let options = cluster.options().with_timeout(Duration::from_secs(2));
        let options = options.with_retry(RetryPolicy::never());
        let endpoint = cluster.nodes[leader].client.to_string();
        let client = cluster.client_of(vec![endpoint], options).await;
        // Nobody prolongs its lease from here on.
        let followers = [1, 2].map(|step| (leader + step) % 3);
        followers
            .iter()
            .for_each(|node| cluster.nodes[*node].pause());
        let held = client.get("k", Some(lease_only.clone())).await;
        disrupt(&cluster, leader, marker);
        let after = client.get("k", Some(lease_only.clone())).await;
        followers
            .iter()
            .for_each(|node| cluster.nodes[*node].resume());
        assert!(after.is_err(), "{after:?}");
        let node = &cluster.nodes[leader];
        eventually("the disruption to be counted", || {
            (node.metric(DISRUPTIONS) >= 1.0).then_some(())
        });
        eventually("the log to say it", || {
            let told = "the hypervisor disrupted the clocks of this machine";
            node.log_text().contains(told).then_some(())
        });
        // A machine that is so slow that the lease had ended before shows nothing: again.
        if held.is_ok() {
            break;
        }
    }
    // Whoever leads then has a lease as any other.
    let leader = cluster.wait_for_lease();
    let client = cluster.client_at(&[leader]).await;
    assert!(client.get("k", None).await.unwrap().value().is_some());
}

#[test]
fn a_named_device_that_cannot_be_asked_is_refused_at_the_start() {
    let mut cluster = Cluster::prepare(1);
    let named = device(&cluster, 0);
    fs::write(&named, "no page").unwrap();
    names(&cluster, 0);
    let node = &mut cluster.nodes[0];
    node.start();
    assert_ne!(node.wait_for_exit(), 0);
    let log = node.log_text();
    assert!(
        log.contains("node.vm_clock") && log.contains("name a VMClock device"),
        "{log}"
    );
}
