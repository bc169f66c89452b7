//! `leasehold bench`, run against separate processes. What it measures here means nothing; that it
//! measures, and what it says of it, does.

use serde_json::Value;

use crate::harness::{Cluster, eventually};

/// Runs a bench and takes its JSON document apart.
fn bench(cluster: &Cluster, arguments: &[&str]) -> Value {
    let mut all = vec!["bench"];
    all.extend(arguments);
    all.extend([
        "--keys",
        "50",
        "--duration",
        "500ms",
        "--warm-up",
        "100ms",
        "-o",
        "json",
    ]);
    let (code, stdout, stderr) = cluster.cli(&all);
    assert_eq!(code, 0, "leasehold {all:?} failed:\n{stdout}\n{stderr}");
    assert_eq!(stderr, "", "no progress where nobody watches");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

#[test]
fn a_bench_says_what_it_did_and_how_the_cluster_bore_it() {
    let cluster = Cluster::start(3);
    let pids: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| node.process.as_ref().unwrap().id().to_string())
        .collect();
    let pids = pids.join(",");

    let loaded = [
        "get",
        "--clients",
        "8",
        "--connections",
        "2",
        "--server-pid",
        &pids,
    ];
    // Half a second is soon over, where a machine stands still or elects a leader.
    let report = eventually("reads under the lease", || {
        let report = bench(&cluster, &loaded);
        let is_leased = report["runs"][0]["read_paths"].get("lease").is_some();
        is_leased.then_some(report)
    });
    let run = &report["runs"][0];
    assert_eq!(run["store"], "leasehold");
    assert_eq!(run["load"], "get");
    assert_eq!(run["loop"], "closed");
    assert_eq!(run["failed"], 0, "{run}");
    assert_eq!(run["not_found"], 0, "{run}");
    let answered = run["answered"].as_u64().unwrap();
    assert!(answered > 0, "{run}");
    assert_eq!(run["operations"]["get"]["answered"], answered);
    let paths = run["read_paths"].as_object().unwrap();
    let by_path: u64 = paths.values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(
        by_path, answered,
        "every read says how it was served: {run}"
    );
    assert!(paths.contains_key("lease"), "{run}");
    assert!(run["server_cpu_us_per_op"].is_number(), "{run}");

    // At a follower it is the word of its leader, who asks a quorum.
    eventually("reads by a quorum alone", || {
        let report = bench(&cluster, &["get", "--clients", "2", "--consistency", "q"]);
        let paths = report["runs"][0]["read_paths"].as_object().unwrap();
        assert!(!paths.contains_key("lease"), "{report}");
        paths.keys().eq(["read_index"]).then_some(())
    });

    let mixed = [
        "mixed",
        "--reads",
        "0.5",
        "--rate",
        "200",
        "--distribution",
        "zipf",
    ];
    let report = eventually("reads and writes", || {
        let report = bench(&cluster, &mixed);
        let operations = &report["runs"][0]["operations"];
        let is_measured = |name: &str| operations[name]["delay_us"]["p50"].is_number();
        (is_measured("get") && is_measured("put")).then_some(report)
    });
    let run = &report["runs"][0];
    assert_eq!(run["load"], "mixed");
    assert_eq!(run["loop"], "open");
    assert_eq!(run["latency_counts_from"], "due");
    assert_eq!(run["failed"], 0, "{run}");
    let count = |name: &str| run[name].as_u64().unwrap();
    assert_eq!(
        count("answered") + count("unsent"),
        100,
        "all that were due are told: {run}"
    );
}

#[test]
fn a_bench_writes_its_distribution_and_refuses_what_it_cannot_do() {
    let cluster = Cluster::start(1);
    let name = cluster.folder.path().join("latency");
    let arguments = [
        "put",
        "--clients",
        "2",
        "--histogram",
        name.to_str().unwrap(),
    ];
    // Half a second is soon over, and a put that began in the warm-up does not count.
    let file = eventually("a put that was measured", || {
        bench(&cluster, &arguments);
        std::fs::read_to_string(name.with_extension("put.hgrm")).ok()
    });
    assert!(file.contains("#[Max"), "{file}");

    let (code, _, stderr) = cluster.cli(&["bench", "get", "--clients", "2", "--connections", "3"]);
    assert_eq!(code, 2, "{stderr}");
    let (code, _, stderr) = cluster.cli(&["bench", "get", "--server-pid", "4294967295"]);
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("4294967295"), "{stderr}");
}

#[test]
fn the_rate_that_watchers_keep_up_with_is_found_and_twice_as_much_leaves_no_gap() {
    let cluster = Cluster::start(1);
    let pid = cluster.nodes[0].process.as_ref().unwrap().id().to_string();
    let words = "bench watch --watchers 40 --connections 2 --keys 4 --find-rate --rate 3000 \
                 --step 200ms --duration 300ms -o json --server-pid";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    words.push(&pid);
    let (code, stdout, stderr) = cluster.cli(&words);
    if code != 0 {
        // Of a machine that has no time at all that is the right answer.
        assert!(stderr.contains("not even one put per second"), "{stderr}");
        return;
    }
    let found: Value = serde_json::from_str(&stdout).unwrap();
    let sustained = &found["sustained"];
    assert_eq!(found["sustained_rate"], sustained["rate"]);
    assert_eq!(sustained["verdict"], "sustained");
    assert_eq!(
        (&sustained["resumed"], &sustained["watchers_late"]),
        (&0.into(), &0.into())
    );
    let steps = found["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step == sustained));
    let rate = |step: &Value| step["rate"].as_u64().unwrap();
    let twice = &found["twice"];
    assert_eq!(rate(twice), 2 * rate(sustained));
    // Ten watch each key, so every put is heard ten times.
    for step in steps.iter().chain([twice]) {
        let (puts, events) = (step["puts"].as_u64(), step["events"].as_u64());
        let failed = step["puts_failed"].as_u64();
        assert!(events >= puts.map(|puts| 10 * puts), "{step}");
        assert!(
            failed > Some(0) || events == puts.map(|puts| 10 * puts),
            "{step}"
        );
    }
    assert!(sustained["p99_us"].as_f64() >= sustained["p50_us"].as_f64());
    assert!(found["server_bytes_watched"].as_u64() > Some(0));
    let (code, _, stderr) = cluster.cli(&["bench", "watch", "--find-rate", "--catch-up", "5"]);
    assert_eq!(code, 2, "{stderr}");
}

#[test]
fn leases_that_end_are_measured_and_none_is_early_or_left_over() {
    let cluster = Cluster::start(3);
    let pids: Vec<String> = cluster
        .nodes
        .iter()
        .map(|node| node.process.as_ref().unwrap().id().to_string())
        .collect();
    let pids = pids.join(",");
    let run = |more: &[&str]| {
        let mut all = vec![
            "bench",
            "lease-expiry",
            "--leases",
            "100",
            "--ttl",
            "2s",
            "--connections",
            "2",
            "--server-pid",
            &pids,
            "-o",
            "json",
        ];
        all.extend(more);
        let (code, stdout, stderr) = cluster.cli(&all);
        assert_eq!(code, 0, "{stdout}\n{stderr}");
        let report: Value = serde_json::from_str(&stdout).unwrap();
        report["runs"][0].clone()
    };
    let kept = ["--keep", "1s", "--let-go", "10"];
    for (more, together) in [(&[][..], false), (&kept[..], true)] {
        let found = run(more);
        assert_eq!(found["store"], "leasehold");
        assert_eq!(found["due_together"], together);
        for (what, expected) in [("leases", 100), ("ended", 100), ("early", 0)] {
            assert_eq!(found[what], expected, "{what}: {found}");
        }
        let late = &found["late"];
        let millis = |what| late[what].as_f64().unwrap();
        assert!(millis("p50_ms") <= millis("p99_ms") && millis("p99_ms") <= millis("max_ms"));
        assert!(found["late_at_most"]["max_ms"].as_f64() >= late["max_ms"].as_f64());
        assert_eq!(found["memory"].as_array().unwrap().len(), 3);
        assert!(found["leadership"]["probe"]["asked"].as_u64().unwrap() > 0);
        let renewals = found["renewals"].as_u64().unwrap();
        assert_eq!(renewals >= 100, together, "{renewals}");
        assert_eq!(found["renewals_per_second"].is_number(), together);
        match together {
            true => assert_eq!(found["let_go"]["ended"], 10, "{found}"),
            false => assert!(found["let_go"].is_null(), "{found}"),
        }
    }
    for (more, says) in [
        (&["--set", "lease.tick=20ms"][..], "cannot be configured"),
        (&["--ttl", "soon"], "5m"),
        (&["--let-go", "5"], "--keep"),
    ] {
        let mut all = vec!["bench", "lease-expiry"];
        all.extend(more);
        let (code, _, stderr) = cluster.cli(&all);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}
