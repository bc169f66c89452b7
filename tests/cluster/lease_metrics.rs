//! What a node tells of client leases: each metric is there before anything has happened, and moves
//! with what it counts. And what the log says, and does not.

use std::time::Duration;

use leasehold::api::{Consistency, Request};
use leasehold::client::{PutOptions, WatchEvent, WatchOptions};

use crate::harness::{Cluster, Node, PATIENCE, eventually};

const TTL: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(500);

/// Every series of client leases, histograms by their count.
const SERIES: [&str; 20] = [
    "leasehold_leases",
    "leasehold_lease_keys",
    "leasehold_lease_expiring",
    "leasehold_lease_granted_total",
    "leasehold_lease_revoked_total{reason=\"client\"}",
    "leasehold_lease_revoked_total{reason=\"expired\"}",
    "leasehold_lease_renewed_total",
    "leasehold_lease_renew_rejected_total{reason=\"not_found\"}",
    "leasehold_lease_renew_rejected_total{reason=\"expired\"}",
    "leasehold_lease_renew_rejected_total{reason=\"leader_lease_invalid\"}",
    "leasehold_lease_renew_rejected_total{reason=\"undecided\"}",
    "leasehold_lease_renew_duration_seconds_count",
    "leasehold_lease_expiry_error_seconds_count",
    "leasehold_lease_checkpoints_total",
    "leasehold_lease_lapses_total{reason=\"stood_still\"}",
    "leasehold_lease_lapses_total{reason=\"clock_went_back\"}",
    "leasehold_lease_lapses_total{reason=\"no_quorum\"}",
    "leasehold_lease_ttl_seconds_count",
    "leasehold_lease_remaining_ratio_at_renew_count",
    "leasehold_lease_remaining_ratio_at_renew_sum",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_client_leases_is_there_from_the_start_and_moves() {
    let mut cluster = Cluster::prepare(3);
    // So that a checkpoint is made while somebody watches.
    cluster.write_configs("[lease]\ncheckpoint_min_ttl = \"5m\"\ncheckpoint_interval = \"1s\"\n");
    let leader = cluster.start_and_settle();
    let node = &cluster.nodes[leader];
    let term = node.metric("leasehold_raft_term ");
    for series in SERIES {
        let value = node.metric(&format!("{series} "));
        // A leader that stood still for half a second since it was elected has counted that.
        let may_have_lapsed = series.contains("_lapses_") && !series.contains("went_back");
        assert!(value == 0.0 || may_have_lapsed, "{series} is {value}");
    }
    // What every node counts as it applies it.
    let is = |series: &str, value: f64| {
        let name = format!("{series} ");
        let what = format!("{series} is {value}");
        eventually(&what, || (node.metric(&name) == value).then_some(()));
    };
    // What a leader alone counts: another may have come to lead meanwhile, and a request that was
    // repeated then is counted again.
    let of_all = |series: &str| -> f64 {
        let name = format!("{series} ");
        cluster.nodes.iter().map(|node| node.metric(&name)).sum()
    };
    let reaches = |series: &str, value: f64| {
        let what = format!("{series} is at least {value}");
        eventually(&what, || (of_all(series) >= value).then_some(()));
    };
    let grows = |series: &str| {
        let what = format!("{series} grows");
        eventually(&what, || (of_all(series) > 0.0).then_some(()));
    };

    let client = cluster.client().await;
    let lease = client.lease();
    let held = lease.grant(TTL, None).await.unwrap();
    for key in ["a", "b", "c"] {
        let on_it = PutOptions::new().with_lease(held.id);
        client.put(key, "v", Some(on_it)).await.unwrap();
    }
    client.delete("c", None).await.unwrap();
    is("leasehold_leases", 1.0);
    is("leasehold_lease_keys", 2.0);
    is("leasehold_lease_granted_total", 1.0);
    is("leasehold_lease_ttl_seconds_count", 1.0);
    is("leasehold_lease_ttl_seconds_sum", 600.0);
    grows("leasehold_lease_checkpoints_total");

    lease.keep_alive_once(held.id).await.unwrap();
    reaches("leasehold_lease_renewed_total", 1.0);
    reaches("leasehold_lease_remaining_ratio_at_renew_count", 1.0);
    let share = of_all("leasehold_lease_remaining_ratio_at_renew_sum");
    let count = of_all("leasehold_lease_remaining_ratio_at_renew_count");
    assert!(share > 0.0 && share <= count, "{share} of {count}");
    grows("leasehold_lease_renew_duration_seconds_count");

    lease.keep_alive_once(4_711).await.unwrap_err();
    reaches(
        "leasehold_lease_renew_rejected_total{reason=\"not_found\"}",
        1.0,
    );
    let short = lease.grant(SHORT, None).await.unwrap();
    is("leasehold_lease_revoked_total{reason=\"expired\"}", 1.0);
    reaches("leasehold_lease_expiry_error_seconds_count", 1.0);
    eventually("no lease that is due", || {
        (of_all("leasehold_lease_expiring") == 0.0).then_some(())
    });
    lease.keep_alive_once(short.id).await.unwrap_err();
    reaches(
        "leasehold_lease_renew_rejected_total{reason=\"expired\"}",
        1.0,
    );
    lease.revoke(held.id).await.unwrap();
    is("leasehold_lease_revoked_total{reason=\"client\"}", 1.0);
    is("leasehold_leases", 0.0);
    is("leasehold_lease_keys", 0.0);

    // A follower counts what it applies, and keeps no deadlines.
    let follower = &cluster.nodes[(leader + 1) % 3];
    let applied = || {
        let granted = follower.metric("leasehold_lease_granted_total ");
        (granted == 2.0).then_some(())
    };
    eventually("the follower has applied both grants", applied);
    let told = [
        "leasehold_lease_expiring ",
        "leasehold_lease_renewed_total ",
    ];
    let told = told.map(|series| follower.metric(series));
    // Unless it has come to lead.
    if follower.metric("leasehold_raft_term ") == term {
        assert_eq!(told, [0.0, 0.0]);
    }

    // Where nobody else has led all that was counted once.
    let led = |node: &Node| node.metric("leasehold_raft_term ") == term;
    if cluster.nodes.iter().all(led) {
        for series in [
            "leasehold_lease_renewed_total",
            "leasehold_lease_remaining_ratio_at_renew_count",
            "leasehold_lease_renew_rejected_total{reason=\"not_found\"}",
            "leasehold_lease_renew_rejected_total{reason=\"expired\"}",
            "leasehold_lease_expiry_error_seconds_count",
        ] {
            // Whoever heard nothing for half a second asked again.
            assert!(of_all(series) >= 1.0, "{series}");
        }
    }

    // The log tells why they ended.
    for (id, why) in [
        (short.id, "it was not renewed in time"),
        (held.id, "it was revoked"),
    ] {
        let id = format!("{id:016x}");
        let tells = |line: &str| line.contains(&id) && line.contains(why);
        eventually(why, || {
            let mut logs = cluster.nodes.iter().map(Node::log_text);
            logs.any(|log| log.lines().any(tells)).then_some(())
        });
    }
}

/// A leader that cannot prove that it leads renews nothing, and counts that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_a_leader_without_its_lease_refuses_are_counted() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let client = cluster.client().await;
    let held = client.lease().grant(TTL, None).await.unwrap().lease();
    for number in 0..3 {
        if number != leader {
            cluster.nodes[number].kill();
        }
    }
    let endpoint = cluster.nodes[leader].client.to_string();
    // No quorum answers, and this is how long that is waited for.
    let options = cluster.options().with_timeout(Duration::from_secs(5));
    let client = cluster.client_of(vec![endpoint.clone()], options).await;
    let refused = async {
        loop {
            // Until its own lease has lapsed it renews as before.
            let request = Request::LeaseKeepAlive(vec![held; 3]);
            let renewed = client.call_at(&endpoint, request, Consistency::Linearizable);
            let _ = renewed.await;
            let series = "leasehold_lease_renew_rejected_total{reason=\"leader_lease_invalid\"} ";
            if cluster.nodes[leader].metric(series) >= 3.0 {
                return;
            }
        }
    };
    // Once it has stepped down it sends clients elsewhere, and that is no refusal of a leader.
    let counted = tokio::time::timeout(PATIENCE, refused).await;
    counted.expect("a renewal waited for a quorum, and was refused");
}

/// S20: however many renewals there are, the log has no line for each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s20_renewals_write_no_lines_to_the_log() {
    let mut cluster = Cluster::prepare(1);
    let text = std::fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let text = text.replace("[log]\n", "[log]\nfilter = \"info,leasehold=debug\"\n");
    std::fs::write(&cluster.nodes[0].config, text).unwrap();
    cluster.start_and_settle();
    let client = cluster.client().await;
    let held = client.lease().grant(TTL, None).await.unwrap().lease();
    let before = cluster.nodes[0].log_text().lines().count();
    for _ in 0..100 {
        let request = Request::LeaseKeepAlive(vec![held; 1_000]);
        client
            .call(request, Consistency::Linearizable)
            .await
            .unwrap();
    }
    let renewed = cluster.nodes[0].metric("leasehold_lease_renewed_total ");
    // What went unanswered for long was sent again.
    assert!(renewed >= 100_000.0, "{renewed}");
    let lines = cluster.nodes[0].log_text().lines().count() - before;
    assert!(lines < 100, "{lines} lines for 100 requests");
}

/// S12: whoever watches sees the end of another as deletes of one revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s12_a_watch_sees_the_keys_of_a_holder_that_died_go_in_one_revision() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let options = WatchOptions::new().with_prefix().with_no_put();
    let mut watcher = client.watch("svc/", Some(options)).await.unwrap();
    client.put("svc/other", "stays", None).await.unwrap();
    let mut attempt = 0;
    let keys = loop {
        attempt += 1;
        let keys = ["a", "b"].map(|name| format!("svc/{attempt}/{name}"));
        let held = client.lease().grant(SHORT, None).await.unwrap();
        let mut put = Vec::new();
        for key in keys.iter().rev() {
            let on_it = PutOptions::new().with_lease(held.id);
            put.push(client.put(key, "v", Some(on_it)).await);
        }
        // On a machine that is busy elsewhere the lease may have been over by then.
        if put.iter().all(Result::is_ok) {
            break keys;
        }
    };
    let seen = async {
        loop {
            if let WatchEvent::Events { events, .. } = watcher.next().await.unwrap().unwrap()
                && events.iter().any(|event| keys[0] == event.kv.key)
            {
                return events;
            }
        }
    };
    let events = tokio::time::timeout(PATIENCE, seen)
        .await
        .expect("an event");
    let seen: Vec<_> = events.iter().map(|event| event.kv.key.clone()).collect();
    assert_eq!(seen, keys, "all of them, in their order");
    assert_eq!(events[0].kv.mod_revision, events[1].kv.mod_revision);
}

/// `leasehold lease top`, as people and programs read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_top_shows_what_is_nearest_to_its_end_and_what_changed() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let lease = client.lease();
    for seconds in [300, 100, 200] {
        let ttl = Duration::from_secs(seconds);
        lease.grant(ttl, None).await.unwrap();
    }
    let (code, stdout, stderr) = cluster.cli(&[
        "lease",
        "top",
        "--count",
        "2",
        "--interval",
        "10ms",
        "--limit",
        "2",
    ]);
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(
        lines.len(),
        6,
        "two looks of a headline and two leases: {stdout}"
    );
    assert!(
        lines[0].starts_with("3 leases, 0 at risk, 0 being revoked"),
        "{stdout}"
    );
    assert!(lines[3].contains("0 granted, 0 ended"), "{stdout}");
    assert!(
        lines[1].contains("100s") && lines[2].contains("200s"),
        "{stdout}"
    );
    assert!(
        !stdout.contains('\x1b'),
        "no terminal, no control characters"
    );

    let (code, stdout, _) = cluster.cli(&["lease", "top", "-o", "json"]);
    assert_eq!(code, 0);
    let document: serde_json::Value = serde_json::from_str(&stdout).expect("one look");
    assert_eq!(document["leases"], 3);
    assert_eq!(document["top"].as_array().unwrap().len(), 3);
    assert_eq!(document["top"][0]["granted_ttl_ms"], 100_000);
    let (code, ..) = cluster.cli(&["lease", "top", "--interval", "soon"]);
    assert_eq!(code, 2);
}
