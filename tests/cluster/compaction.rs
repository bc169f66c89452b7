//! History that is given up, by hand and by itself, leaves the disks of real servers.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold::api::ErrorKind;
use leasehold::client::{CompactionOptions, GetOptions, PutOptions};

use crate::harness::{Cluster, Node, PATIENCE, eventually};

/// Bytes of the tables of a node's state.
fn table_bytes(node: &Node) -> u64 {
    fn bytes(path: &Path) -> u64 {
        // Tables come and go while they are counted.
        let Ok(entries) = fs::read_dir(path) else {
            return 0;
        };
        entries
            .filter_map(Result::ok)
            .map(|entry| match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => bytes(&entry.path()),
                Ok(metadata) => metadata.len(),
                Err(_) => 0,
            })
            .sum()
    }
    bytes(&node.data_dir.join("state").join("db").join("keyspaces"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_physical_compaction_gives_the_space_back_on_every_node() {
    const VALUE: usize = 200_000;
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut random = 1u64;
    let mut revision = 0;
    for number in 0..200 {
        let value: Vec<u8> = (0..VALUE)
            .map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as u8
            })
            .collect();
        let key = format!("key{}", number % 4);
        let options = PutOptions::new().with_timeout(Duration::from_secs(60));
        let put = client.put(key, value, Some(options)).await.unwrap();
        revision = put.header.revision;
    }
    for node in &cluster.nodes {
        eventually("history in tables", || {
            (table_bytes(node) > 12 << 20).then_some(())
        });
    }
    // It is answered when every node has merged all its tables, and slow disks take their time for that.
    let (code, out, error) = cluster.cli(&[
        "compaction",
        &revision.to_string(),
        "--physical",
        "--timeout=170s",
        "--exactly-once",
    ]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(out, format!("compacted revision {revision}\n"));
    for node in &cluster.nodes {
        let left = table_bytes(node);
        assert!(left < 5 << 20, "{} still has {left} bytes", node.name);
        let removed = node.metric("leasehold_storage_history_removed_revision");
        assert_eq!(removed, revision as f64);
        assert_eq!(
            node.metric("leasehold_mvcc_compact_revision"),
            revision as f64
        );
        // It is counted a moment after it is told.
        eventually("one compaction that is counted", || {
            (node.metric("leasehold_storage_compactions_total") == 1.0).then_some(())
        });
        assert!(node.metric("leasehold_storage_history_removed_records_total") >= 390.0);
    }
    let kept = GetOptions::new().with_prefix().with_keys_only();
    assert_eq!(client.get("key", Some(kept)).await.unwrap().count, Some(4));

    // The same through the SDK, and at a revision that does not come round again.
    let put = client.put("key0", "small", None).await.unwrap();
    let physical = || {
        CompactionOptions::new()
            .with_physical()
            .with_timeout(PATIENCE)
    };
    let last = put.header.revision;
    client.compact(last, Some(physical())).await.unwrap();
    for node in &cluster.nodes {
        // Of a node that did not answer for long nobody waited to hear that it is done.
        eventually("history that is removed", || {
            let removed = node.metric("leasehold_storage_history_removed_revision");
            (removed == last as f64).then_some(())
        });
    }
    let error = client.compact(last, Some(physical())).await.unwrap_err();
    let compact_revision = last;
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_older_than_the_retention_goes_by_itself_whoever_leads() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("[compaction]\nmode = \"periodic\"\nretention = \"2s\"\n");
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    let first = client.put("k", "1", None).await.unwrap().header.revision;
    let second = client.put("k", "2", None).await.unwrap().header.revision;
    let gone = |revision: i64, nodes: &[Node]| {
        eventually("old history to go", || {
            let all = nodes.iter().filter(|node| node.process.is_some());
            let mut through =
                all.map(|node| node.metric("leasehold_storage_history_removed_revision") as i64);
            through.all(|through| through >= revision).then_some(())
        });
    };
    gone(second, &cluster.nodes);
    let past = |revision| Some(GetOptions::new().with_revision(revision));
    let error = client.get("k", past(first)).await.unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Compacted { .. }));
    let kept = client.get("k", None).await.unwrap();
    assert_eq!(kept.value().unwrap(), "2");

    cluster.nodes[leader].kill();
    let third = client.put("k", "3", None).await.unwrap().header.revision;
    gone(third, &cluster.nodes);
    // A node that was away gives up the same.
    cluster.nodes[leader].start();
    gone(third, &cluster.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_as_many_revisions_are_kept_as_the_configuration_says() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[compaction]\nmode = \"revision\"\nretention = \"5\"\n");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let mut last = 0;
    for number in 0..20 {
        let put = client.put("k", number.to_string(), None).await.unwrap();
        last = put.header.revision;
    }
    eventually("the rest to go", || {
        let node = &cluster.nodes[0];
        let through = node.metric("leasehold_storage_history_removed_revision");
        (through as i64 == last - 5).then_some(())
    });
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    let kept = client.get("k", at(last - 5)).await.unwrap();
    assert_eq!(kept.value().unwrap(), "14");
    let error = client.get("k", at(last - 6)).await.unwrap_err();
    let compact_revision = last - 5;
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
}

/// The storage engine merges tables and makes new ones on threads of its own. On one thread writes
/// would wait for every merge; on two, one would turn around while the other merges.
#[test]
fn tables_are_made_while_others_are_merged_however_few_cores_there_are() {
    let cluster = Cluster::start(1);
    let pid = cluster.nodes[0].process.as_ref().unwrap().id();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| {
        let name = task.ok()?.path().join("comm");
        fs::read_to_string(name).ok()
    });
    let workers = names.filter(|name| name.trim() == "fjall:worker").count();
    assert!(workers >= 3, "{workers}");
}

#[test]
fn what_the_runbook_says_of_a_full_store_can_be_typed_as_it_stands() {
    let cluster = Cluster::start(3);
    let typed = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        eventually("an answer", || {
            let (code, out, said) = cluster.cli(&words);
            assert!(code != 2, "{words:?}: {said}");
            (code == 0).then_some((out, said))
        })
    };
    typed("put a/1 x");
    typed("put a/2 x");
    let (out, said) = typed("del --prefix a/");
    assert_eq!(out, "2\n", "as etcdctl, for programs");
    let revision = said.trim().strip_prefix("deleted at revision ");
    let revision: i64 = revision.expect("it says which").parse().unwrap();
    let (out, _) = typed(&format!("compaction --physical {revision}"));
    assert_eq!(out, format!("compacted revision {revision}\n"));
    for time in ["the same revision again", "and again"] {
        let (out, said) = typed("compaction --physical");
        assert_eq!(
            out,
            format!("compacted revision {revision}\n"),
            "{time}: {said}"
        );
    }
    typed("put a/3 x");
    let (out, _) = typed("compaction --physical");
    assert_eq!(out, format!("compacted revision {}\n", revision + 1));
}
