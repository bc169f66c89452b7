//! A member that is started on an older copy of its data directory, and the one whose log that contradicts.

use std::fs;
use std::path::PathBuf;

use leasehold::api::{Consistency, ErrorKind};
use leasehold::client::{Client, RetryPolicy};

use crate::consistency::{ALARM, read, serves_nothing};
use crate::harness::{Cluster, copy_folder, eventually, run, say_left_out};
use crate::warnings::says;

/// How many writes only one member has in the end.
const WRITES: usize = 500;
const TERM: &str = "leasehold_raft_term ";

/// A28: its leader tells it what it has forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_on_an_older_copy_is_quarantined_until_it_has_everything() {
    let mut cluster = Cluster::prepare(3);
    let leader = cluster.start_and_settle();
    let one = (leader + 1) % 3;
    let client = cluster.client().await;
    assert_eq!(cluster.nodes[one].stop(), 0);
    let directory = cluster.nodes[one].data_dir.clone();
    let older = cluster.folder.path().join("older");
    copy_folder(&directory, &older);
    cluster.nodes[one].start();
    let leader = cluster.wait_until_settled();
    assert_ne!(leader, one, "it has just come back");
    for number in 0..100 {
        client.put("k", number.to_string(), None).await.unwrap();
    }
    let applied = |node: &crate::harness::Node| node.metric("leasehold_raft_applied_index");
    eventually("it has everything", || {
        (applied(&cluster.nodes[one]) >= applied(&cluster.nodes[leader])).then_some(())
    });
    cluster.nodes[one].kill();
    fs::remove_dir_all(&directory).unwrap();
    fs::rename(&older, &directory).unwrap();
    cluster.nodes[one].start();
    let node = &cluster.nodes[one];
    let quarantined = "leasehold_raft_quarantined";
    eventually("the leader tells it", || {
        let (_, metrics) = node.admin("/metrics")?;
        metrics.contains(&format!("{quarantined} 1")).then_some(())
    });
    eventually("the mark", || {
        node.data_dir.join("unproven").exists().then_some(())
    });
    assert!(node.log_text().contains("is an older copy"));
    eventually("it is back", || {
        (node.metric(quarantined) == 0.0 && node.admin("/readyz")?.0 == 200).then_some(())
    });
    eventually("no mark", || {
        (!node.data_dir.join("unproven").exists()).then_some(())
    });
    assert_eq!(cluster.leader(), Some(leader));
    assert_eq!(
        cluster.nodes[leader].metric("leasehold_raft_lost_logs_total"),
        1.0
    );
}

/// A27: `first` and `third` acknowledge what `second` has not, `first` stops, and `third` comes back with an older
/// copy: no majority of those that are left knows better. Two histories meet when `first` returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_log_an_older_copy_contradicts_says_so_and_serves_nothing() {
    let mut cluster = Cluster::prepare(3);
    let first = cluster.start_and_settle();
    let client = cluster.client().await;
    client.put("k", "before", None).await.unwrap();
    let (second, third) = ((first + 1) % 3, (first + 2) % 3);
    let older = older_copies(&mut cluster, &[third]);
    cluster.nodes[second].kill();
    acknowledge(&mut cluster, &client, first).await;
    client.close().await;
    if !go_on_with(&mut cluster, older, first).await {
        return;
    }

    // What it has can be read.
    assert_eq!(cluster.nodes[first].stop(), 0);
    let kept = cluster.nodes[first].data_dir.clone();
    let offline = |what: &str| run(&["offline", what, "--data-dir", kept.to_str().unwrap()]);
    let (code, said, _) = offline("check");
    assert!(code == 1 && said.contains("diverged"), "{code} {said}");
    let (code, keys, _) = offline("dump-kv");
    assert_eq!(code, 0);
    for number in [0, WRITES - 1] {
        assert!(keys.contains(&format!("lost/{number}")), "{number}");
    }
    let (code, _, _) = offline("dump-log");
    assert_eq!(code, 0);

    // And it can be given up.
    fs::rename(&kept, cluster.folder.path().join("kept")).unwrap();
    cluster.says_that_the_cluster_exists(first);
    cluster.start_all();
    let node = &cluster.nodes[first];
    eventually("it has taken the history of the others", || {
        (node.admin("/readyz")?.0 == 200 && node.metric(ALARM) == 0.0).then_some(())
    });
    let client = cluster.client().await;
    let found = client.get("k", None).await.unwrap();
    assert_eq!(found.value().unwrap(), "later");
}

/// A27: all three acknowledge, and two come back with older copies while the third is down.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_log_two_older_copies_contradict_says_so_and_serves_nothing() {
    let mut cluster = Cluster::prepare(3);
    let first = cluster.start_and_settle();
    let client = cluster.client().await;
    client.put("k", "before", None).await.unwrap();
    let older = older_copies(&mut cluster, &[(first + 1) % 3, (first + 2) % 3]);
    acknowledge(&mut cluster, &client, first).await;
    client.close().await;
    go_on_with(&mut cluster, older, first).await;
}

/// Copies the directories of these, one after the other.
fn older_copies(cluster: &mut Cluster, nodes: &[usize]) -> Vec<(usize, PathBuf)> {
    let mut copies = Vec::new();
    for place in nodes {
        assert_eq!(cluster.nodes[*place].stop(), 0);
        let name = format!("older-{place}");
        let older = cluster.folder.path().join(name);
        copy_folder(&cluster.nodes[*place].data_dir, &older);
        cluster.nodes[*place].start();
        cluster.wait_until_settled();
        copies.push((*place, older));
    }
    copies
}

/// Those that are up acknowledge writes; `first` has them in its database, too.
async fn acknowledge(cluster: &mut Cluster, client: &Client, first: usize) {
    let mut last = 0;
    for number in 0..WRITES {
        let key = format!("lost/{number}");
        last = client.put(key, "x", None).await.unwrap().header.revision;
    }
    let node = &cluster.nodes[first];
    eventually("it has applied it all", || {
        (node.metric("leasehold_mvcc_revision") >= last as f64).then_some(())
    });
    // Later nothing is applied to its state any more.
    eventually("its database has it all", || {
        (node.metric("leasehold_storage_ahead_bytes") == 0.0).then_some(())
    });
}

/// All end. The others go on, some of them with older copies, and `first` returns and finds that out. False if an
/// election since the copies were made keeps it from that.
async fn go_on_with(cluster: &mut Cluster, older: Vec<(usize, PathBuf)>, first: usize) -> bool {
    let others = [(first + 1) % 3, (first + 2) % 3];
    let term = cluster.nodes[first].metric(TERM);
    for node in &mut cluster.nodes {
        node.kill();
    }
    for (place, copy) in older {
        let directory = &cluster.nodes[place].data_dir;
        fs::remove_dir_all(directory).unwrap();
        fs::rename(copy, directory).unwrap();
    }
    for other in others {
        cluster.nodes[other].start();
    }
    let leader = cluster.wait_for_lease();
    if cluster.nodes[leader].metric(TERM) <= term {
        say_left_out("older copies that contradict: an election of theirs repeated a term");
        return false;
    }
    let client = cluster.client_at(&others).await;
    client.put("k", "after", None).await.unwrap();

    // At once, and it stays so without anybody who contradicts it.
    cluster.nodes[first].start();
    for is_alone in [false, true] {
        if is_alone {
            cluster.nodes.iter_mut().for_each(|node| node.kill());
            cluster.nodes[first].start();
        }
        must_have_diverged(cluster, first).await;
        if is_alone {
            continue;
        }
        // The others go on.
        client.put("k", "later", None).await.unwrap();
        for other in others {
            assert_eq!(cluster.nodes[other].metric(ALARM), 0.0);
            let endpoint = cluster.nodes[other].client.to_string();
            let asked = client.call_at(endpoint, read(), Consistency::Linearizable);
            let error = asked.await.err().map(|error| error.kind);
            assert_ne!(error, Some(ErrorKind::Corrupt));
        }
    }
    true
}

async fn must_have_diverged(cluster: &Cluster, first: usize) {
    let node = &cluster.nodes[first];
    eventually("the alarm", || {
        let (_, metrics) = node.admin("/metrics")?;
        metrics.contains(&format!("{ALARM} 1")).then_some(())
    });
    let (code, ready) = eventually("an answer", || node.admin("/readyz"));
    assert!(code >= 500 && ready.contains("data_corruption"), "{ready}");
    let options = cluster.options().with_retry(RetryPolicy::never());
    let once = cluster.client_of(vec![node.client.to_string()], options);
    let once = once.await;
    let status = once.status(node.client.to_string()).await.unwrap();
    let warnings = status.status.warnings.join("\n");
    assert!(
        warnings.contains("ALARM CORRUPT") && warnings.contains("offline dump-kv"),
        "{warnings}"
    );
    let said = says(cluster, node, &["ALARM CORRUPT"]);
    assert!(said.doctor.contains("offline dump-kv"), "{}", said.doctor);
    serves_nothing(&once, node).await;
}
