//! Snapshots in etcd's own format: taken here and restored by etcd, and the other way.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::differential::{Etcd, etcd};
use super::http::Connection;
use super::{EtcdCluster, IN_THE_CLEAR, etcdctl, must, run};
use crate::harness::{self, eventually};

/// The revision at which what [`fill`] writes is compacted.
const COMPACTED: i64 = 6;

/// Writes something of everything, the same at etcd and here: revisions 2 to 14.
fn fill(etcdctl: &Path, at: SocketAddr) {
    must(etcdctl, at, &["lease", "grant", "600"]);
    let leases = document(etcdctl, at, &["lease", "list"]);
    let lease = format!("{:x}", leases["leases"][0]["id"].as_i64().unwrap());
    for (key, value) in [("a", "1"), ("a", "2"), ("b", "1"), ("gone", "early")] {
        must(etcdctl, at, &["put", key, value]);
    }
    must(etcdctl, at, &["del", "gone"]);
    must(etcdctl, at, &["put", "a", "3"]);
    must(etcdctl, at, &["put", "gone", "again"]);
    must(etcdctl, at, &["del", "gone"]);
    must(etcdctl, at, &["put", "held/1", "x", "--lease", &lease]);
    must(etcdctl, at, &["put", "held/2", "x", "--lease", &lease]);
    let long = "v".repeat(9_000);
    must(etcdctl, at, &["put", "long", &long]);
    // Two keys at one revision.
    let mut txn = Command::new(etcdctl)
        .env_clear()
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &at.to_string(), "txn"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let operations = "\nput t/1 one\nput t/2 two\ndel b\n\n\n";
    std::io::Write::write_all(&mut txn.stdin.take().unwrap(), operations.as_bytes()).unwrap();
    assert!(txn.wait().unwrap().success());
    must(etcdctl, at, &["compaction", &COMPACTED.to_string()]);
    must(etcdctl, at, &["put", "a", "4"]);
}

/// What etcd's command line answers as JSON, without its header.
fn document(etcdctl: &Path, at: SocketAddr, arguments: &[&str]) -> serde_json::Value {
    let mut all = arguments.to_vec();
    all.extend(["-w", "json"]);
    let said = must(etcdctl, at, &all);
    let mut document: serde_json::Value = serde_json::from_str(&said).unwrap();
    let revision = document["header"]["revision"].clone();
    let fields = document.as_object_mut().unwrap();
    // Some answers have the fields of their header beside the others.
    for field in ["header", "cluster_id", "member_id", "raft_term"] {
        fields.remove(field);
    }
    fields.insert("revision".to_owned(), revision);
    document
}

/// Every key at every revision that can be read, every event since the compaction, and the leases.
fn everything(etcdctl: &Path, at: SocketAddr) -> Vec<serde_json::Value> {
    let now = document(etcdctl, at, &["get", "", "--prefix"]);
    let revision = now["revision"].as_i64().unwrap();
    let mut found = vec![now];
    for revision in COMPACTED..=revision {
        let revision = revision.to_string();
        found.push(document(
            etcdctl,
            at,
            &["get", "", "--prefix", "--rev", &revision],
        ));
    }
    let compacted = (COMPACTED - 1).to_string();
    let (is_done, said) = run(etcdctl, &at.to_string(), &["get", "a", "--rev", &compacted]);
    assert!(!is_done && said.contains("has been compacted"), "{said}");
    let mut watch = Command::new(etcdctl)
        .env_clear()
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", &at.to_string(), "watch", "", "--prefix"])
        .args(["--rev", &COMPACTED.to_string(), "-w", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = Vec::new();
    for line in BufReader::new(watch.stdout.take().unwrap()).lines() {
        let mut answer: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        events.append(answer["Events"].as_array_mut().unwrap());
        let last = events.last().unwrap()["kv"]["mod_revision"].as_i64();
        if last == Some(revision) {
            break;
        }
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    found.push(events.into());
    let leases = document(etcdctl, at, &["lease", "list"]);
    for lease in leases["leases"].as_array().unwrap() {
        let id = format!("{:x}", lease["id"].as_i64().unwrap());
        let mut lease = document(etcdctl, at, &["lease", "timetolive", &id, "--keys"]);
        lease["ttl"] = true.into();
        // etcd names them in no order.
        let keys = lease["keys"].as_array_mut().unwrap();
        keys.sort_by_key(ToString::to_string);
        found.push(lease);
    }
    found.push(leases);
    found
}

#[test]
fn etcd_restores_a_snapshot_that_its_command_line_takes_of_any_node() {
    let (Some(etcdctl), Some(etcd)) = (etcdctl("a snapshot for etcd"), etcd()) else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let follower = cluster.ports[cluster.follower()];
    fill(&etcdctl, follower);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.db");
    let path = file.to_str().unwrap();
    must(&etcdctl, follower, &["snapshot", "save", path]);
    let status = must(
        &etcdctl,
        follower,
        &["snapshot", "status", path, "-w", "json"],
    );
    // That of 3.5 says before it that another program is to be asked.
    let status = status.lines().find(|line| line.starts_with('{')).unwrap();
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    assert_eq!(status["revision"], 14, "{status}");
    assert_eq!(fs::metadata(&file).unwrap().len() % 512, 32, "its hash");
    let left = fs::read_dir(&cluster.cluster.nodes[cluster.follower()].data_dir).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|name| name.contains("snapshot")).count(), 0);

    let mut connection = Connection::open(follower);
    let answer = connection.request("POST", "/v3/maintenance/snapshot", "", "{}");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let last: serde_json::Value =
        serde_json::from_str(answer.body.lines().last().unwrap()).unwrap();
    let hash = last["result"]["blob"].as_str().unwrap();
    assert_eq!(
        hash.len(),
        44,
        "32 bytes in base64, and the file before them"
    );
    assert!(answer.body.lines().count() > 1);

    let data = folder.path().join("data");
    let data = data.to_str().unwrap();
    must(
        &etcdctl,
        follower,
        &["snapshot", "restore", path, "--data-dir", data],
    );
    let restored = Etcd::start_in(&etcd, folder);
    eventually("etcd that serves", || {
        let health = run(
            &etcdctl,
            &restored.address.to_string(),
            &["endpoint", "health"],
        );
        health.0.then_some(())
    });
    let ours = everything(&etcdctl, follower);
    assert_eq!(everything(&etcdctl, restored.address), ours);
    assert!(ours.len() > 10);
    must(&etcdctl, restored.address, &["put", "next", "1"]);
    let next = document(&etcdctl, restored.address, &["get", "next"]);
    assert_eq!(next["revision"], 15);
}

/// Restores `file` for every member of a cluster: what the last one said.
fn restore(cluster: &EtcdCluster, file: &str, more: &[&str]) -> (i32, String, String) {
    let cluster = &cluster.cluster;
    let mut said = (1, String::new(), String::new());
    for node in &cluster.nodes {
        let certificate = cluster.pki.file(&format!("{}-peer.pem", node.name));
        said = cluster.restore(node, file, &certificate, more);
        if said.0 != 0 {
            let _ = fs::remove_dir_all(&node.data_dir);
            break;
        }
    }
    said
}

#[test]
fn a_snapshot_of_etcd_becomes_a_cluster_with_the_same_keys_history_revisions_and_leases() {
    let (Some(etcdctl), Some(etcd)) = (etcdctl("a snapshot of etcd"), etcd()) else {
        return;
    };
    let old = Etcd::start(&etcd);
    eventually("etcd that serves", || {
        let health = run(&etcdctl, &old.address.to_string(), &["endpoint", "health"]);
        health.0.then_some(())
    });
    fill(&etcdctl, old.address);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.db");
    let path = file.to_str().unwrap();
    must(&etcdctl, old.address, &["snapshot", "save", path]);
    let mut cluster = EtcdCluster::prepare(3, &[IN_THE_CLEAR]);

    let mut cut = fs::read(&file).unwrap();
    let middle = cut.len() / 2;
    cut[middle] ^= 1;
    let damaged = folder.path().join("damaged.db");
    fs::write(&damaged, cut).unwrap();
    let (code, _, error) = restore(&cluster, damaged.to_str().unwrap(), &[]);
    assert!(code == 1 && error.contains("SHA-256"), "{error}");

    let (code, out, error) = restore(&cluster, path, &[]);
    assert_eq!(code, 0, "{out}\n{error}");
    let restored: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (&restored["revision"], &restored["leases"]),
        (&14.into(), &1.into())
    );
    let data_dir = cluster.cluster.nodes[0].data_dir.to_str().unwrap();
    let (code, out, _) = harness::run(&["offline", "check", "--data-dir", data_dir]);
    assert_eq!(code, 0, "{out}");
    cluster.leader = cluster.cluster.start_and_settle();
    let follower = cluster.ports[cluster.follower()];
    let theirs = everything(&etcdctl, old.address);
    assert_eq!(everything(&etcdctl, follower), theirs);
    must(&etcdctl, follower, &["put", "held/1", "free"]);
    let (code, out, error) = cluster.cluster.cli(&["get", "held/1"]);
    assert_eq!((code, out.as_str()), (0, "held/1\nfree\n"), "{error}");
    let next = document(&etcdctl, follower, &["get", "held/1"]);
    assert_eq!(next["revision"], 15);
}

#[test]
fn a_snapshot_of_an_etcd_with_users_is_restored_only_if_they_may_stay_behind() {
    let (Some(etcdctl), Some(etcd)) = (etcdctl("a snapshot of etcd with users"), etcd()) else {
        return;
    };
    let old = Etcd::start(&etcd);
    eventually("etcd that serves", || {
        let health = run(&etcdctl, &old.address.to_string(), &["endpoint", "health"]);
        health.0.then_some(())
    });
    must(&etcdctl, old.address, &["put", "a", "1"]);
    must(&etcdctl, old.address, &["user", "add", "root:secret"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot.db");
    let path = file.to_str().unwrap();
    must(&etcdctl, old.address, &["snapshot", "save", path]);
    let cluster = EtcdCluster::prepare(1, &[IN_THE_CLEAR]);
    let (code, _, error) = restore(&cluster, path, &[]);
    assert!(code == 1 && error.contains("--without-users"), "{error}");
    let (code, out, error) = restore(&cluster, path, &["--without-users"]);
    assert_eq!(code, 0, "{error}");
    let restored: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(restored["keys"], 1);
}
