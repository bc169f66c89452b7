//! The unit of `deploy/systemd`: what it lets a node do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Cluster, Signal, binary, eventually, left_out};
use crate::monitoring::rules::read;

/// The system calls of each group, as this machine's systemd has them; nothing without systemd.
fn groups() -> Option<BTreeMap<String, Vec<String>>> {
    let said = Command::new("systemd-analyze")
        .args(["syscall-filter", "--no-pager"])
        .output()
        .ok()
        .filter(|said| said.status.success())?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut group = String::new();
    for line in said.lines() {
        let name = line.trim().trim_start_matches("# ");
        match line.starts_with(' ') {
            false => group = name.to_owned(),
            true if line.trim().starts_with('#') => {}
            true => groups.entry(group.clone()).or_default().push(name.into()),
        }
    }
    Some(groups)
}

/// What a name of a filter stands for: a call, or all calls of a group and of those within it.
fn calls_of(name: &str, groups: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    if !name.starts_with('@') {
        return BTreeSet::from([name.to_owned()]);
    }
    let members = groups.get(name);
    let members = members.unwrap_or_else(|| panic!("systemd knows no group {name}"));
    members
        .iter()
        .flat_map(|member| calls_of(member, groups))
        .collect()
}

/// The calls that a unit allows: its first filter allows, and each one after it adds or, with `~`, takes
/// away. Some are allowed whatever it says.
fn allowed(unit: &str, groups: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    let mut allowed = calls_of("@default", groups);
    let filters = unit
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="));
    for filter in filters {
        let (takes, names) = match filter.strip_prefix('~') {
            Some(names) => (true, names),
            None => (false, filter),
        };
        for name in names.split_whitespace() {
            let calls = calls_of(name, groups);
            match takes {
                true => allowed.retain(|call| !calls.contains(call)),
                false => allowed.extend(calls),
            }
        }
    }
    allowed
}

#[test]
fn filters_allow_and_take_away_in_their_order() {
    let groups = BTreeMap::from([
        ("@default".to_owned(), vec!["exit".to_owned()]),
        ("@a".to_owned(), vec!["x".to_owned(), "@b".to_owned()]),
        ("@b".to_owned(), vec!["y".to_owned(), "z".to_owned()]),
    ]);
    let unit = "SystemCallFilter=@a\nUser=x\nSystemCallFilter=~@b x\nSystemCallFilter=z";
    let found = allowed(unit, &groups);
    assert_eq!(found, ["exit", "z"].map(str::to_owned).into());
}

/// `strace`, if there is one that can look at a process here.
fn strace() -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr/bin/strace");
    [unpacked, PathBuf::from("strace")]
        .into_iter()
        .find(|strace| {
            let looked = Command::new(strace)
                .args(["-c", "-o", "/dev/null", "true"])
                .stderr(Stdio::null())
                .status();
            looked.is_ok_and(|status| status.success())
        })
}

/// The calls in a summary of strace's, `-c`.
fn calls_made(summary: &str) -> BTreeSet<String> {
    let rows = summary.lines().filter(|row| !row.contains("---"));
    rows.skip(1)
        .filter_map(|row| row.split_whitespace().last())
        .filter(|call| *call != "total")
        .map(str::to_owned)
        .collect()
}

/// A node that finds the others, takes a write, is scraped, writes a backup, gets other certificates, is
/// asked by the command line, hands over and stops: everything that it asks of the system is allowed.
#[test]
fn the_unit_allows_every_system_call_that_a_node_makes() {
    let (Some(groups), Some(strace)) = (groups(), strace()) else {
        return left_out(
            "the unit's filter of system calls, held against a node: needs systemd-analyze, and strace that may \
             look at processes",
        );
    };
    let mut cluster = Cluster::prepare(3);
    let backups = cluster.folder.path().join("backups");
    let audit = cluster.folder.path().join("audit.log");
    cluster.write_configs("");
    let node = &cluster.nodes[0];
    let config = fs::read_to_string(&node.config).unwrap()
        + &format!(
            "[backup]\nschedule = \"1s\"\ndir = \"{}\"\n[auth]\naudit_file = \"{}\"\n",
            backups.display(),
            audit.display(),
        );
    fs::write(&node.config, config).unwrap();
    let summary = cluster.folder.path().join("calls");
    // With -D it is the node that is our child, and strace looks on from beside.
    let child = Command::new(strace)
        .args(["-D", "-f", "-qq", "-c", "-o", summary.to_str().unwrap()])
        .args([binary(), "serve", "--config"])
        .arg(&node.config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&node.log).unwrap())
        .spawn()
        .unwrap();
    cluster.nodes[0].process = Some(child);
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    cluster.wait_until_settled();
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    let node = &mut cluster.nodes[0];
    let (status, _) = eventually("a scrape", || node.admin("/metrics"));
    assert_eq!(status, 200);
    eventually("a backup", || {
        let written = fs::read_dir(&backups).ok()?.count() > 0;
        written.then_some(())
    });
    node.signal(Signal::HUP);
    eventually("certificates are read again", || {
        let series = "leasehold_tls_reloads_total{role=\"peer\",result=\"ok\"}";
        (node.metric(series) >= 1.0).then_some(())
    });
    assert_eq!(node.stop(), 0);
    let summary = eventually("what strace saw", || {
        let summary = fs::read_to_string(&summary).ok()?;
        summary.contains(" total").then_some(summary)
    });

    let made = calls_made(&summary);
    assert!(made.len() > 40, "{made:?}");
    assert!(made.contains("setpriority"), "of the threads that merge");
    let allowed = allowed(&read("systemd/leasehold.service"), &groups);
    assert!(!allowed.contains("mount") && !allowed.contains("sched_setscheduler"));
    let refused: Vec<&String> = made.difference(&allowed).collect();
    eprintln!("{} system calls, refused: {refused:?}", made.len());
    assert_eq!(refused, [""; 0], "the unit refuses what a node asks for");
}
