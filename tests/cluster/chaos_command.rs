//! `leasehold chaos`, run for a moment: what is broken comes back, and what clients see is judged.

use serde_json::Value;

use crate::harness::{eventually, run};

#[test]
fn a_cluster_that_is_broken_by_turn_keeps_its_promises_and_the_report_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().to_str().unwrap();
    let history = folder.path().join("history.jsonl");
    // A machine may stand still for as long as it runs, or so slow that time is not left for each fault.
    let (code, report) = eventually("a run in which each fault had its turn", || {
        let (code, stdout, stderr) = run(&[
            "chaos",
            "--for=12s",
            "--seed=7",
            "--clients=4",
            "--data-dir",
            place,
            "-o",
            "json",
            "--history",
            history.to_str().unwrap(),
        ]);
        let report: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|error| panic!("{code} {error}: {stdout} {stderr}"));
        let is_broken = report["violations"] != 0;
        let had_all = report["faults"]
            .as_object()
            .is_some_and(|all| all.len() == 4);
        let are_some = |what: &str| report[what].as_u64() > Some(0);
        let is_enough = had_all && are_some("reads") && are_some("writes");
        (is_broken || is_enough).then_some((code, report))
    });
    assert_eq!(
        (code, report["verdict"].as_str()),
        (0, Some("PASS")),
        "{report:#}"
    );
    assert_eq!(report["seed"], 7);
    assert_eq!(report["violations"], 0, "{report:#}");
    assert!(report["writes"].as_u64() > Some(0), "{report:#}");
    for name in ["kill", "pause", "restart", "cut"] {
        assert!(report["faults"][name].as_u64() > Some(0), "{report:#}");
    }
    let (code, out, error) = run(&["verify", "history", history.to_str().unwrap()]);
    assert_eq!(code, 0, "{out} {error}");
    // Its data is gone, the history aside.
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn chaos_touches_no_cluster_that_exists_and_is_told_what_can_be_asked_of_it() {
    for (arguments, wanted) in [
        (vec!["--endpoints=10.0.0.1:7400"], "never one that exists"),
        (vec!["--discovery-srv=example.org"], "never one that exists"),
        (vec!["-o", "table"], "has no table"),
        (vec!["--faults=fire"], "fire"),
        (vec!["--for=0"], "between 100ms and 1day"),
        (vec!["--for=2d"], "between 100ms and 1day"),
        (vec!["--clients=0"], "0"),
    ] {
        let (code, _, error) = run(&[&["chaos"][..], &arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(wanted), "{arguments:?}: {error}");
    }
}
