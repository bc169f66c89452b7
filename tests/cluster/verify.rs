//! `leasehold verify`, run for a moment. Whether this machine bears a lease is not for a test to
//! say; that the verdict follows from what was found, and that a broken history is found, is.

use std::time::{Duration, Instant};

use leasehold::types::Role;
use serde_json::Value;

use crate::harness::{Cluster, PATIENCE, eventually, run};

/// The exit code, and the JSON document taken apart.
fn verify(arguments: &[&str]) -> (i32, Value) {
    let mut all = vec!["verify", "lease", "-o", "json"];
    all.extend(arguments);
    let (code, stdout, stderr) = run(&all);
    let report = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{all:?}: {code} {error}\n{stdout}\n{stderr}"));
    (code, report)
}

/// Whether there was time for reads and for writes: a machine may stand still for as long as a measurement
/// takes, or elect a leader.
fn is_measured(report: &Value) -> bool {
    let histories = report["histories"].as_array().unwrap();
    let has = |history: &Value, what: &str| history[what].as_u64().unwrap() > 0;
    let mut histories = histories.iter();
    histories.all(|history| has(history, "reads") && has(history, "writes"))
}

/// What one check found, and whether it passed.
fn check(report: &Value, name: &str) -> (String, Option<bool>) {
    let checks = report["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no check of {name}: {report:#}"));
    (
        found["found"].as_str().unwrap().to_owned(),
        found["passed"].as_bool(),
    )
}

/// The verdict is what the checks say, and the exit code what the verdict says.
fn is_consistent(code: i32, report: &Value) {
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().any(|check| check["passed"] == false);
    assert_eq!(
        report["verdict"],
        if failed { "FAIL" } else { "PASS" },
        "{report:#}"
    );
    assert_eq!(code, i32::from(failed), "{report:#}");
}

#[test]
fn a_healthy_cluster_of_its_own_is_measured_and_broken_and_stays_linearizable() {
    let (folder, code, report) = eventually("a measurement", || {
        let folder = tempfile::tempdir().unwrap();
        let history = folder.path().join("history.jsonl");
        let mut arguments = vec![
            "--duration",
            "2s",
            "--faults",
            "pause,kill,cut",
            "--clients",
            "4",
        ];
        arguments.extend(["--history", history.to_str().unwrap()]);
        arguments.extend(["--data-dir", folder.path().to_str().unwrap()]);
        let (code, report) = verify(&arguments);
        is_measured(&report).then_some((folder, code, report))
    });
    is_consistent(code, &report);
    assert_eq!(
        check(&report, "linearizability").1,
        Some(true),
        "{report:#}"
    );
    // Of one machine with itself, known to within a round trip over a second or so.
    assert_eq!(check(&report, "clock steps").1, Some(true), "{report:#}");
    let histories = report["histories"].as_array().unwrap();
    assert_eq!(histories.len(), 2, "with and without faults");
    for seen in histories {
        assert!(seen["reads"].as_u64().unwrap() > 0, "{report:#}");
        assert!(seen["writes"].as_u64().unwrap() > 0, "{report:#}");
    }
    let faults = report["faults"].as_array().unwrap();
    let names: Vec<&str> = faults
        .iter()
        .map(|fault| fault["fault"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["pause", "kill", "cut"]);
    assert!(
        faults[2]["dropped"].as_u64().unwrap() > 0,
        "a cut that cuts nothing: {report:#}"
    );
    for fault in faults {
        assert!(
            fault["reads_silent_ms"].as_f64().unwrap() > 0.0,
            "{report:#}"
        );
    }
    // Nothing is left of it but what was asked for.
    let mut left: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["history.jsonl", "history.jsonl.faults"]);

    for file in left {
        let path = folder.path().join(file);
        let (code, stdout, stderr) = run(&["verify", "history", path.to_str().unwrap()]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert!(stdout.ends_with("PASS\n"), "{stdout}");
    }
}

#[test]
fn a_history_that_was_broken_fails_with_code_1_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history.jsonl");
    let lines = [
        r#"{"op":"put","key":1,"value":1,"invoked":0,"returned":10,"revision":2}"#,
        r#"{"op":"put","key":1,"value":2,"invoked":20,"returned":30,"revision":3}"#,
        r#"{"op":"get","key":1,"invoked":40,"returned":50,"revision":2,"value":1,"mod_revision":2}"#,
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let file = path.to_str().unwrap();
    let (code, stdout, stderr) = run(&["verify", "history", file]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stdout.contains("violation: real time"), "{stdout}");
    assert!(stdout.ends_with("FAIL\n"), "{stdout}");
    let (code, stdout, _) = run(&["verify", "history", file, "-o", "json"]);
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["verdict"], "FAIL");
    assert_eq!(report["histories"][0]["violations"], 1);

    std::fs::write(&path, lines[..2].join("\n")).unwrap();
    assert_eq!(
        run(&["verify", "history", file]).0,
        0,
        "without the stale read it is fine"
    );
    std::fs::write(&path, "nonsense").unwrap();
    let (code, _, stderr) = run(&["verify", "history", file]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("line 1 is not an operation"), "{stderr}");
}

#[test]
fn a_cluster_that_runs_already_is_measured_and_left_alone() {
    let cluster = Cluster::start(3);
    let flags = cluster.flags();
    let mut arguments: Vec<&str> = flags.iter().map(String::as_str).collect();
    arguments.extend(["--duration", "1s", "--clients", "2"]);
    let (code, report) = eventually("a measurement", || {
        let (code, report) = verify(&arguments);
        is_measured(&report).then_some((code, report))
    });
    is_consistent(code, &report);
    assert_eq!(
        check(&report, "linearizability").1,
        Some(true),
        "{report:#}"
    );
    assert_eq!(report["faults"].as_array().unwrap().len(), 0);

    arguments.extend(["--faults", "kill"]);
    arguments.splice(0..0, ["verify", "lease"]);
    let (code, _, stderr) = run(&arguments);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("existing cluster"), "{stderr}");
    for node in &cluster.nodes {
        eventually("a node that was not harmed", || {
            (node.admin("/livez")?.0 == 200).then_some(())
        });
    }
}

#[tokio::test]
async fn a_leader_reports_what_its_lease_depends_on_and_a_follower_its_clocks() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let ask = async |number: usize| {
        let endpoint = cluster.nodes[number].client.to_string();
        client.leader_lease_report(endpoint).await.unwrap()
    };
    let started = Instant::now();
    let (leader, first, last, follower) = loop {
        let leader = eventually("a leader with a lease", || cluster.leader());
        let first = ask(leader).await;
        // The lease goes on being renewed, and each renewal is noted with the round that brought it.
        let mut last = first.clone();
        let mut renewed = 0;
        while last.role == Role::Leader && renewed < 5 {
            assert!(started.elapsed() < PATIENCE, "{last:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
            last = ask(leader).await;
            renewed = last.renew_interval.since(&first.renew_interval).count();
        }
        let follower = ask((leader + 1) % 3).await;
        if last.role == Role::Leader && follower.role != Role::Leader {
            break (leader, first, last, follower);
        }
        // Somebody else was elected meanwhile.
        assert!(started.elapsed() < PATIENCE, "{last:?}");
    };
    assert_eq!(first.name, cluster.nodes[leader].name);
    assert_eq!(first.timing.max_drift_ppm, 20_000);
    let renewed = last.renew_interval.since(&first.renew_interval);
    assert!(renewed.count() >= 5, "{last:?}");
    assert!(
        last.round_trip.since(&first.round_trip).count() >= renewed.count(),
        "{last:?}"
    );
    assert!(last.timer_delay.count() > 0, "{last:?}");
    assert!(last.clock.boot > first.clock.boot && last.clock.raw > first.clock.raw);
    assert!(!follower.lease.is_valid);
    // Of the same machine: its clocks agree to within the time that asking took.
    assert!(follower.clock.raw > last.clock.raw);
    let text = eventually("metrics", || cluster.nodes[leader].admin("/metrics")).1;
    for series in [
        "leasehold_leader_lease_renew_interval_seconds_count",
        "leasehold_leader_lease_round_trip_seconds_count",
        "leasehold_raft_timer_delay_seconds_count",
    ] {
        let line = text.lines().find(|line| line.starts_with(series));
        let line = line.unwrap_or_else(|| panic!("no {series}"));
        assert!(!line.ends_with(" 0"), "{line}");
    }
}

#[test]
fn every_node_shows_how_fast_the_clocks_of_its_peers_run() {
    let cluster = Cluster::start(3);
    // Nothing is told before half a minute has been seen.
    std::thread::sleep(Duration::from_secs(31));
    for node in &cluster.nodes {
        for peer in cluster.nodes.iter().filter(|peer| peer.name != node.name) {
            let series = format!("leasehold_clock_drift_ratio{{peer=\"{}\"}} ", peer.name);
            let ratio = eventually("the drift of a peer's clocks", || {
                let (_, text) = node.admin("/metrics")?;
                let line = text.lines().find_map(|line| line.strip_prefix(&series))?;
                line.trim().parse::<f64>().ok()
            });
            // It is one machine's clock; how well that is seen depends on what delays messages.
            assert!(ratio.is_finite() && ratio.abs() < 0.5, "{series}{ratio}");
        }
    }
}
