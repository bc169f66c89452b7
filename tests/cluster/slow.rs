//! Requests that take too long: what the log and the metrics say of them, and what they never say.

use std::time::{Duration, Instant};

use crate::harness::{Cluster, PATIENCE, eventually};

const KEY: &str = "canary-of-a-key-61c8";
const VALUE: &str = "canary-of-a-value-9b02";

/// A line of the log, by its fields.
struct Line(String);

impl Line {
    fn field(&self, name: &str) -> &str {
        let value = self.0.split(' ').find_map(|word| {
            let (field, value) = word.split_once('=')?;
            (field == name).then_some(value)
        });
        let value = value.unwrap_or_else(|| panic!("no {name} in {}", self.0));
        value.trim_matches('"')
    }

    fn millis(&self, name: &str) -> f64 {
        self.field(name).parse().unwrap()
    }
}

/// Every slow request that the nodes have told of.
fn lines(cluster: &Cluster) -> Vec<Line> {
    let logs = cluster.nodes.iter().map(crate::harness::Node::log_text);
    let lines = |log: String| -> Vec<Line> {
        let lines = log.lines().filter(|line| line.contains("slow request"));
        lines.map(|line| Line(line.to_owned())).collect()
    };
    logs.flat_map(lines).collect()
}

fn sum(cluster: &Cluster, series: &str) -> f64 {
    cluster.nodes.iter().map(|node| node.metric(series)).sum()
}

fn nothing_of_the_data_is_told(cluster: &Cluster) {
    for node in &cluster.nodes {
        let log = node.log_text();
        assert!(!log.contains("canary"), "{log}");
    }
}

/// Followers that do not answer for a moment make writes wait for a quorum, and that is what is told.
#[test]
fn a_write_that_waits_for_a_quorum_is_told_of_with_that_phase_and_without_its_data() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("slow_request = \"50ms\"\n");
    cluster.start_and_settle();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Connected, and with a session, before anybody is stopped.
    let client = runtime.block_on(async {
        let client = cluster.client().await;
        client.put(KEY, VALUE, None).await.unwrap();
        client
    });
    let started = Instant::now();
    let found = loop {
        let leader = cluster.wait_for_lease();
        let followers = [(leader + 1) % 3, (leader + 2) % 3];
        for node in followers {
            cluster.nodes[node].pause();
        }
        let writing = runtime.spawn({
            let client = client.clone();
            async move { client.put(KEY, VALUE, None).await.map(drop) }
        });
        // Longer than is slow, and shorter than a leader leads alone.
        std::thread::sleep(Duration::from_millis(300));
        for node in followers {
            cluster.nodes[node].resume();
        }
        let written = runtime.block_on(writing).unwrap();
        let found = lines(&cluster).into_iter().find(|line| {
            line.field("method") == "put"
                && line.field("outcome") == "OK"
                && line.millis("quorum_ms") >= 50.0
        });
        if let Some(found) = found {
            break found;
        }
        assert!(
            started.elapsed() < 2 * PATIENCE,
            "no write was slow (the last ended with {written:?}): {:?}",
            lines(&cluster)
                .iter()
                .map(|line| &line.0)
                .collect::<Vec<_>>()
        );
    };
    let line = &found.0;
    assert!(line.contains("WARN"), "{line}");
    let phases = ["queue_ms", "quorum_ms", "apply_ms", "storage_ms"].map(|name| found.millis(name));
    let total = found.millis("total_ms");
    assert!((phases.iter().sum::<f64>() - total).abs() < 0.01, "{line}");
    assert_eq!(found.millis("storage_ms"), 0.0, "{line}");
    assert!(found.millis("revision") > 0.0, "{line}");
    let sent = (KEY.len() + VALUE.len()) as f64;
    assert!(found.millis("request_bytes") >= sent, "{line}");
    assert!(found.millis("reply_bytes") > 0.0, "{line}");
    found.millis("left_out");

    let slow = "leasehold_slow_requests_total{method=\"put\"}";
    let told = lines(&cluster);
    let told = told.iter().filter(|line| line.field("method") == "put");
    assert!(sum(&cluster, slow) >= told.count() as f64);
    let quorum = "leasehold_request_phase_duration_seconds_sum{phase=\"quorum\"}";
    assert!(sum(&cluster, quorum) >= 0.05);
    for phase in ["queue", "apply"] {
        let count = format!("leasehold_request_phase_duration_seconds_count{{phase=\"{phase}\"}}");
        assert!(sum(&cluster, &count) >= 1.0, "{phase}");
    }
    eventually("nobody who waits", || {
        (sum(&cluster, "leasehold_raft_proposals_pending") == 0.0).then_some(())
    });
    nothing_of_the_data_is_told(&cluster);
}

/// A threshold that everything passes fills no log: what has no line is counted.
#[test]
fn many_slow_requests_have_few_lines_and_are_all_counted() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("slow_request = \"1us\"\n");
    cluster.start_and_settle();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.client().await;
        for number in 0..200 {
            let key = format!("{KEY}-{number}");
            client.put(key, VALUE, None).await.unwrap();
        }
        client.close().await;
    });
    let node = &cluster.nodes[0];
    let slow = node.metric("leasehold_slow_requests_total{method=\"put\"}");
    // One that is long without an answer is sent again.
    assert!(slow >= 200.0, "{slow}");
    let method = |line: &Line| line.field("method").to_owned();
    let told = lines(&cluster);
    assert!(!told.is_empty());
    let puts = told.iter().filter(|line| method(line) == "put").count();
    assert!(puts > 0 && (puts as f64) < slow, "{puts} of {slow}");
    let queue = "leasehold_request_phase_duration_seconds_count{phase=\"queue\"}";
    assert!(node.metric(queue) >= 200.0);
    nothing_of_the_data_is_told(&cluster);
}
