//! What a node tells of its peers, its keys, its connections and its probes moves under what it measures.

use std::time::Duration;

use leasehold::api::{Compare, CompareOp, TxnOp, TxnRequest};
use leasehold::client::{DeleteOptions, GetOptions, PutOptions};

use crate::admin::hand_over;
use crate::harness::{Cluster, Node, eventually};

fn of_peer(name: &str, peer: &Node) -> String {
    format!("leasehold_raft_{name}{{peer=\"{}\"}} ", peer.name)
}

fn lag(of: &Node, peer: &Node) -> f64 {
    of.metric(&of_peer("follower_lag_entries", peer))
}

fn failures(of: &Node, peer: &Node) -> f64 {
    of.metric(&of_peer("heartbeat_send_failures_total", peer))
}

fn becomes(node: &Node, series: &str, wanted: f64) {
    let what = format!("{series} of {} to be {wanted}", node.name);
    let series = format!("{series} ");
    eventually(&what, || (node.metric(&series) == wanted).then_some(()));
}

/// Who leads now, and the others that run. Leadership may change at any time on a busy machine.
fn leader_and_others(cluster: &Cluster) -> Option<(&Node, Vec<&Node>)> {
    let leader = &cluster.nodes[cluster.leader()?];
    let runs = |node: &&Node| node.process.is_some() && node.name != leader.name;
    Some((leader, cluster.nodes.iter().filter(runs).collect()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_tells_how_far_its_followers_are() {
    let mut cluster = Cluster::start(3);
    let elections = "leasehold_raft_election_duration_seconds_count";
    let stood = cluster.nodes.iter().map(|node| node.metric(elections));
    assert!(stood.sum::<f64>() >= 1.0, "somebody was elected");
    eventually("followers that answer, and have everything", || {
        let (leader, others) = leader_and_others(&cluster)?;
        let is_well = |other: &&Node| {
            let journeys = |what| leader.metric(&of_peer(what, other));
            journeys("heartbeat_round_trip_seconds_count") > 5.0
                && journeys("heartbeat_round_trip_seconds_sum") > 0.0
                && lag(leader, other) == 0.0
                && lag(other, leader) == 0.0
        };
        others.iter().all(is_well).then_some(())
    });

    // One that stands still lacks what is written meanwhile, and no other does.
    let still = (cluster.wait_for_lease() + 1) % 3;
    let awake = [(still + 1) % 3, (still + 2) % 3];
    let client = cluster.client_at(&awake).await;
    cluster.nodes[still].pause();
    for number in 0..30 {
        client.put(format!("k{number}"), "v", None).await.unwrap();
    }
    eventually("the lag of the one that stands still", || {
        let [one, other] = awake.map(|node| &cluster.nodes[node]);
        let still = &cluster.nodes[still];
        let is_told = |by: &Node, well: &Node| lag(by, still) >= 30.0 && lag(by, well) == 0.0;
        (is_told(one, other) || is_told(other, one)).then_some(())
    });
    cluster.nodes[still].resume();
    eventually("a follower that has caught up", || {
        let (leader, others) = leader_and_others(&cluster)?;
        let has_all = |other: &&Node| lag(leader, other) == 0.0;
        others.iter().all(has_all).then_some(())
    });

    // To one that is gone no heartbeat can be sent.
    let gone = (cluster.wait_for_lease() + 1) % 3;
    let of_all = |cluster: &Cluster| -> f64 {
        let others = cluster.nodes.iter().filter(|node| node.process.is_some());
        let to_it = others.filter(|node| node.name != cluster.nodes[gone].name);
        to_it.map(|node| failures(node, &cluster.nodes[gone])).sum()
    };
    let before = of_all(&cluster);
    cluster.nodes[gone].kill();
    eventually("heartbeats that cannot be sent", || {
        (of_all(&cluster) > before + 3.0).then_some(())
    });
    // Who comes to lead has heard nothing of it, and who led tells of nobody any more.
    let old = cluster.wait_for_lease();
    let new = (0..3).find(|node| ![old, gone].contains(node)).unwrap();
    let client = cluster.client_at(&[old, new]).await;
    hand_over(&client).await;
    eventually("another leader, who tells of followers alone", || {
        let (leader, others) = leader_and_others(&cluster)?;
        let gone = &cluster.nodes[gone];
        let other = others.first()?;
        (lag(leader, gone) > 30.0 && lag(other, gone) == 0.0).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_counted_and_a_restart_forgets_none() {
    const KEYS: &str = "leasehold_mvcc_keys";
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    for node in &cluster.nodes {
        becomes(node, KEYS, 0.0);
    }
    for number in 0..10 {
        client.put(format!("k{number}"), "v", None).await.unwrap();
        client.put(format!("k{number}"), "w", None).await.unwrap();
    }
    client.delete("k0", None).await.unwrap();
    let three = Some(DeleteOptions::new().with_range("k4"));
    assert_eq!(client.delete("k1", three).await.unwrap().deleted, 3);
    let lease = client.lease();
    let held = lease.grant(Duration::from_secs(600), None).await.unwrap();
    let on_it = PutOptions::new().with_lease(held.id);
    client.put("held", "v", Some(on_it)).await.unwrap();
    lease.revoke(held.id).await.unwrap();
    let written = TxnRequest::new()
        .when([Compare::create_revision("new", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("new", "v"), TxnOp::put("k9", "x")]);
    assert!(client.txn(written, None).await.unwrap().succeeded);
    let operations = |op: &str| format!("leasehold_mvcc_operations_total{{op=\"{op}\"}}");
    for node in &cluster.nodes {
        becomes(node, KEYS, 7.0);
        becomes(node, &operations("put"), 23.0);
        becomes(node, &operations("delete"), 5.0);
        becomes(node, &operations("txn"), 1.0);
    }
    let ranges = |cluster: &Cluster| -> f64 {
        let series = format!("{} ", operations("range"));
        cluster.nodes.iter().map(|node| node.metric(&series)).sum()
    };
    let before = ranges(&cluster);
    client.get("k9", None).await.unwrap();
    let all = GetOptions::new().with_prefix();
    assert_eq!(client.get("k", Some(all)).await.unwrap().count, Some(6));
    assert!(ranges(&cluster) >= before + 2.0);

    let follower = (cluster.wait_for_lease() + 1) % 3;
    assert_eq!(cluster.nodes[follower].stop(), 0);
    cluster.nodes[follower].start();
    becomes(&cluster.nodes[follower], KEYS, 7.0);
    cluster.nodes[follower].kill();
    client.put("another", "v", None).await.unwrap();
    cluster.nodes[follower].start();
    for node in &cluster.nodes {
        becomes(node, KEYS, 8.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_stay_counted_and_probes_are_told_of() {
    let mut cluster = Cluster::start(3);
    let of_all = |cluster: &Cluster, series: &str| -> f64 {
        cluster.nodes.iter().map(|node| node.metric(series)).sum()
    };
    let bytes = |cluster: &Cluster, direction: &str, kind: &str| {
        let series = format!("leasehold_quic_{direction}_bytes_total{{kind=\"{kind}\"}} ");
        of_all(cluster, &series)
    };
    let before = bytes(&cluster, "received", "client");
    {
        let client = cluster.client().await;
        client
            .put("large", vec![7_u8; 100_000], None)
            .await
            .unwrap();
        client.get("large", None).await.unwrap();
    }
    let connections = "leasehold_quic_connections{kind=\"client\"} ";
    eventually("no client", || {
        (of_all(&cluster, connections) == 0.0).then_some(())
    });
    let after = bytes(&cluster, "received", "client");
    assert!(after > before + 100_000.0, "{before} {after}");
    assert!(bytes(&cluster, "sent", "client") > 100_000.0);
    // The followers have the value, too.
    eventually("as many bytes to both followers", || {
        (bytes(&cluster, "sent", "peer") > 200_000.0).then_some(())
    });
    let round_trips = "leasehold_quic_round_trip_seconds_count{kind=\"peer\"} ";
    let samples = of_all(&cluster, round_trips);
    assert!(samples > 0.0, "connections to peers that are measured");
    eventually("round trips that are sampled", || {
        (of_all(&cluster, round_trips) > samples).then_some(())
    });

    let node = &cluster.nodes[0];
    let (_, scrape) = eventually("a scrape", || node.admin("/metrics"));
    assert!(
        !scrape.contains("leasehold_healthcheck{"),
        "nobody has asked"
    );
    let gauge = |probe: &str, check: &str| {
        format!("leasehold_healthcheck{{type=\"{probe}\",name=\"{check}\"}} ")
    };
    let count = |check: &str, status: &str| {
        format!(
            "leasehold_healthchecks_total{{type=\"readyz\",name=\"{check}\",status=\"{status}\"}} "
        )
    };
    for probe in ["/livez", "/readyz"] {
        eventually("a probe that passes", || {
            (node.admin(probe)?.0 == 200).then_some(())
        });
    }
    assert_eq!(node.metric(&gauge("livez", "threads")), 1.0);
    for check in ["leader_known", "linearizable_read"] {
        assert_eq!(node.metric(&gauge("readyz", check)), 1.0, "{check}");
        assert!(node.metric(&count(check, "success")) >= 1.0, "{check}");
    }
    let errors = node.metric(&count("leader_known", "error"));
    for other in [1, 2] {
        cluster.nodes[other].kill();
    }
    let node = &cluster.nodes[0];
    eventually("a check that fails", || {
        node.admin("/readyz")?;
        (node.metric(&gauge("readyz", "leader_known")) == 0.0).then_some(())
    });
    assert!(node.metric(&count("leader_known", "error")) > errors);
    assert_eq!(node.metric(&gauge("livez", "threads")), 1.0);
}
