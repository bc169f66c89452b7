//! The tests of the bench `load`, whose modules these are: cargo runs none in a bench without a harness.

#![cfg_attr(
    test,
    expect(clippy::unwrap_used, reason = "a test that meets an error has failed")
)]

mod arguments;
mod cached_reads;
mod compare;
mod cpu_share;
mod etcd;
mod gap;
#[expect(dead_code, reason = "what lies in tests/pins is compared elsewhere")]
#[path = "../../tests/pins/golden.rs"]
mod golden;
mod lease_expiry;
mod overload;
mod peers;
mod read_leases;
mod run;
mod snapshot_transfer;
mod succession;

use std::ffi::OsString;

use clap::CommandFactory;
use leasehold::bench::cluster::OwnCluster;
use leasehold::cli::arguments::bench::OwnClusterArgs;
use leasehold::cli::failure::{Exit, Failure};
use serde_json::Value;

/// What the bench prints for these words, whatever the environment of the tests says.
fn load(words: &[&str]) -> Result<String, Failure> {
    let command = arguments::Arguments::command();
    let command = command.mut_args(|argument| argument.env(None::<&'static str>));
    let words = ["load"].iter().chain(words).map(OsString::from);
    let mut out = Vec::new();
    run::run(command, words, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// The document that it prints.
fn document(words: &[&str]) -> Value {
    let words: Vec<&str> = words.iter().chain(&["-o", "json"]).copied().collect();
    let printed = load(&words).unwrap_or_else(|failure| panic!("{words:?}: {failure}"));
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

/// A cluster, and the words that name it.
fn cluster(runtime: &tokio::runtime::Runtime) -> (OwnCluster, Vec<String>) {
    let plan = run::cluster_plan(&OwnClusterArgs {
        set: Vec::new(),
        data_dir: None,
    });
    let cluster = runtime.block_on(OwnCluster::start(&plan)).unwrap();
    let target = cluster.target();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let words = [
        ("--endpoints", target.endpoints.join(",")),
        ("--cacert", path(&target.cacert)),
        ("--cert", path(&target.cert)),
        ("--key", path(&target.key)),
    ];
    let words = words
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value]);
    (cluster, words.collect())
}

#[test]
fn the_gaps_of_a_change_of_leader_are_told_for_every_probe() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let report = document(&[
        "gap",
        "--case",
        "move-leader,kill",
        "--rounds",
        "1",
        "--data-dir",
        data,
    ]);
    let gaps = report["gaps"].as_array().unwrap();
    let told: Vec<(&str, &str)> = gaps
        .iter()
        .map(|gap| {
            (
                gap["case"].as_str().unwrap(),
                gap["probe"].as_str().unwrap(),
            )
        })
        .collect();
    let probes = ["read", "write", "read_by_sdk", "write_by_sdk"];
    let expected: Vec<(&str, &str)> = ["move-leader", "kill"]
        .into_iter()
        .flat_map(|case| probes.map(|probe| (case, probe)))
        .collect();
    assert_eq!(told, expected);
    for gap in gaps {
        assert_eq!(gap["rounds_ms"].as_array().unwrap().len(), 1, "{gap}");
        assert!(gap["median_ms"].as_f64().unwrap() > 0.0, "{gap}");
        assert_eq!(gap["median_ms"], gap["worst_ms"], "of one round: {gap}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is left"
    );
}

#[test]
fn reads_at_a_holder_are_local_and_writes_wait_for_it_when_it_is_killed() {
    let report = document(&[
        "read-leases",
        "--round-trip",
        "2",
        "--duration",
        "1s",
        "--rate",
        "20",
    ]);
    let cases = report["cases"].as_array().unwrap();
    let holders: Vec<_> = cases.iter().map(|case| &case["holders"]).collect();
    assert_eq!(holders, ["none", "one", "all"]);
    for case in cases {
        let has_holder = case["holders"] != "none";
        let local = case["local_beside_puts"].as_f64().unwrap();
        assert_eq!(local > 0.0, has_holder, "{case}");
        assert_eq!(case["stall_ms"].is_number(), has_holder, "{case}");
        assert!(case["put_p50_ms"].as_f64().unwrap() >= 2.0, "{case}");
    }
}

#[test]
fn a_copy_inside_the_program_is_read_without_the_cluster_and_says_how_old_it_can_be() {
    let report = document(&[
        "cached-reads",
        "--keys",
        "20",
        "--clients",
        "2",
        "--rate",
        "20",
        "--duration",
        "1s",
    ]);
    let cases = report["cases"].as_array().unwrap();
    let [leased, cached] = cases.as_slice() else {
        panic!("{report}");
    };
    assert_eq!(
        (&leased["reads"], &cached["reads"]),
        (&"leased get".into(), &"CachedKv".into())
    );
    // A leased get shows what was acknowledged before it, whatever the machine does.
    assert_eq!(leased["stale_probes"], 0.0, "{leased}");
    assert_eq!(leased["shown_after_p99_ms"], 0.0, "{leased}");
    assert!(leased["age_p50_ms"].is_null(), "{leased}");
    assert!(cached["age_p50_ms"].is_number(), "{cached}");
    for case in cases {
        assert!(case["per_second"].as_f64().unwrap() > 0.0, "{case}");
    }
}

#[test]
fn a_cluster_that_runs_already_is_asked_to_hand_over_and_nothing_worse() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (cluster, target) = cluster(&runtime);
    let words = |more: &[&'static str]| -> Vec<String> {
        let more = more.iter().map(|word| (*word).to_owned());
        more.chain(target.iter().cloned()).collect()
    };
    let report = document(&borrowed(&words(&["gap", "--rounds", "1"])));
    let gaps = report["gaps"].as_array().unwrap();
    assert!(!gaps.is_empty());
    assert!(
        gaps.iter().all(|gap| gap["case"] == "move-leader"),
        "{report:#}"
    );
    for (more, says) in [
        (
            &["gap", "--case", "kill"][..],
            "a cluster that runs already",
        ),
        (
            &["lease-expiry", "--keep", "1s", "--kills", "1"],
            "is not ended",
        ),
        (
            &["lease-expiry", "--set", "lease.tick=20ms"],
            "cannot be configured",
        ),
        (&["snapshot-transfer"], "no cluster that runs already"),
        (&["overload"], "a cluster that runs already"),
    ] {
        refused(&borrowed(&words(more)), says);
    }
    drop(cluster);
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

fn refused(words: &[&str], says: &str) {
    let failure = load(words).unwrap_err();
    assert_eq!(failure.exit, Exit::Usage, "{words:?}: {failure}");
    assert!(failure.message.contains(says), "{words:?}: {failure}");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    for (line, says) in [
        ("get --peer etcd", "--peer-endpoints"),
        ("get --peer-endpoints a:1", "--peer"),
        ("get --interleave 5", "--peer"),
        ("get --peer consul --peer-endpoints a:1", "etcd"),
        ("lease-expiry --kills 1", "--keep"),
        ("lease-expiry --peer etcd --ttl 1500ms", "whole seconds"),
        ("lease-expiry --peer etcd --keep 1s --kills 1", "`gap`"),
    ] {
        refused(&line.split(' ').collect::<Vec<_>>(), says);
    }
}

#[test]
fn the_published_picture_shows_the_published_tables() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/performance.md");
    let page = std::fs::read_to_string(page).unwrap();
    golden::check_file("docs/compare.svg", &compare::picture(&page).unwrap());
}

#[test]
fn a_picture_has_the_rows_that_have_a_ratio_whether_or_not_durations_have_blanks() {
    let table = "etcd 3.5.1, commit fbe548b\n\n\
        | Load | ops/s | p50 | p99 | CPU | ops/s | p50 | p99 | CPU | ratio |\n|---|\n\
        | get | 80 | 1ms | 500µs | 20 µs | 10 | 2ms | 2 ms | 1ms | 8.00× (7.50× to 9.00×) |\n\
        | put | 80 | 1ms | 2ms | 20µs | – | – | – | – | – |\n";
    let picture = compare::picture(table).unwrap();
    for shown in [
        "etcd 3.5.1",
        "fbe548b",
        ">get<",
        ">8.00×<",
        ">0.25×<",
        ">0.02×<",
    ] {
        assert!(picture.contains(shown), "{shown}: {picture}");
    }
    assert!(!picture.contains(">put<"), "{picture}");
    assert_eq!(
        compare::picture(&table.replace("8.00×", "–").replace("(7.50× to 9.00×)", "")),
        None
    );
}

#[test]
fn another_store_that_is_not_there_is_not_connected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (cluster, target) = cluster(&runtime);
    let mut words = borrowed(&target);
    words.extend("get --no-fill --peer etcd --peer-endpoints 127.0.0.1:1".split(' '));
    let failure = load(&words).unwrap_err();
    assert_eq!(failure.exit, Exit::NotConnected, "{failure}");
    drop(cluster);
}

#[test]
fn the_death_of_a_leader_is_measured_while_leases_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let line = "lease-expiry --leases 50 --ttl 20s --connections 2 --keep 1s --kills 1 --data-dir";
    let report = document(&line.split(' ').chain([data]).collect::<Vec<_>>());
    let run = &report["runs"][0];
    for (what, expected) in [("leases", 50), ("ended", 50), ("early", 0), ("lost", 0)] {
        assert_eq!(run[what], expected, "{what}: {run}");
    }
    let kills = run["kills"].as_array().unwrap();
    assert_eq!(kills.len(), 1, "{run}");
    assert_eq!(kills[0]["leases"], 50, "{run}");
    for gap in ["read_gap_ms", "write_gap_ms"] {
        assert!(kills[0][gap].as_f64().unwrap() > 0.0, "{run}");
    }
}

#[test]
fn a_transfer_is_measured_beside_a_load_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let line = "snapshot-transfer --mib 1 --rounds 1 --rate 100 --duration 300ms --data-dir";
    let report = document(&line.split(' ').chain([data]).collect::<Vec<_>>());
    let round = &report["rounds"][0];
    for side in ["without", "with"] {
        assert!(round[side]["answered"].as_u64() > Some(0), "{round}");
    }
    assert!(round["transfer_seconds"].as_f64().unwrap() > 0.0, "{round}");
}
