//! Logs that are cut, and whole states for members that need what was cut: over real disks and QUIC,
//! whoever is killed meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use leasehold::api::Consistency;
use leasehold::client::{Client, GetOptions, PutOptions, WatchEvent, WatchOptions};

use crate::harness::{Cluster, Node, PATIENCE, eventually};

const RECEIVED: &str = "leasehold_raft_snapshot_received_total{result=\"ok\"}";
/// To its end, or as far as it went.
const SENT: [&str; 2] = [
    "leasehold_raft_snapshot_sent_total{result=\"ok\"}",
    "leasehold_raft_snapshot_sent_total{result=\"broken\"}",
];
const CUTS: &str = "leasehold_raft_log_compactions_total";
const FIRST: &str = "leasehold_raft_log_first_index";
const APPLIED: &str = "leasehold_raft_applied_index";
const KEYS: &str = "leasehold_mvcc_keys ";
const WITHOUT_STATE: &str = "leasehold_raft_without_state";
const AGREED: &str = "leasehold_storage_hash_checks_total{result=\"ok\"}";
const ALARM: &str = "leasehold_alarms{type=\"corrupt\"}";

/// A cluster that keeps few entries, and compares its states every second.
fn prepare(rate: &str) -> Cluster {
    let cluster = Cluster::prepare(3);
    cluster.write_configs(&format!(
        "[raft]\nsnapshot_entries = 40\nsnapshot_catchup_entries = 10\nsnapshot_send_rate = \
         \"{rate}\"\n"
    ));
    cluster.check_states_every_second();
    cluster
}

/// Puts keys `from..to` with values of `bytes`, several at a time.
async fn fill(client: &Client, from: usize, to: usize, bytes: usize) {
    let mut at = from;
    while at < to {
        let end = (at + 16).min(to);
        let puts = (at..end).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                client
                    .put(key(number), value(number, bytes), None)
                    .await
                    .unwrap();
            })
        });
        for put in puts.collect::<Vec<_>>() {
            put.await.unwrap();
        }
        at = end;
    }
}

fn key(number: usize) -> String {
    format!("k/{number:05}")
}

fn value(number: usize, bytes: usize) -> String {
    let mut stamp = format!("{number};");
    while stamp.len() < bytes {
        stamp.push_str(&stamp.clone());
    }
    stamp.truncate(bytes.max(6));
    stamp
}

/// What this one node has, by its own word.
async fn at(cluster: &Cluster, node: &Node) -> Client {
    let endpoints = vec![node.client.to_string()];
    cluster.client_of(endpoints, cluster.options()).await
}

/// Waits until `node` has applied all that the others have, then reads every key there.
async fn has_everything(cluster: &Cluster, number: usize, keys: usize, bytes: usize) {
    let node = &cluster.nodes[number];
    let leader = eventually("a leader", || cluster.leader());
    let wanted = cluster.nodes[leader].metric(APPLIED);
    eventually("the node catches up", || {
        (node.metric_if_any(APPLIED)? >= wanted).then_some(())
    });
    assert_eq!(node.metric(WITHOUT_STATE), 0.0);
    let client = at(cluster, node).await;
    let serializable = GetOptions::new().with_consistency(Consistency::Serializable);
    for number in 0..keys {
        let get = client.get(key(number), Some(serializable.clone())).await;
        let get = get.unwrap();
        assert_eq!(get.kvs.len(), 1, "{} is missing", key(number));
        assert_eq!(get.kvs[0].value, value(number, bytes), "{}", key(number));
    }
    eventually("as many keys as the leader has, counted anew", || {
        (node.metric(KEYS) == cluster.nodes[leader].metric(KEYS)).then_some(())
    });
}

/// Waits until the states of all nodes were compared, after this, and are the same.
fn agree(nodes: &[Node]) {
    let before: Vec<f64> = nodes.iter().map(|node| node.metric(AGREED)).collect();
    for (node, before) in nodes.iter().zip(before) {
        eventually("the states are compared", || {
            (node.metric(AGREED) > before + 1.0).then_some(())
        });
        assert_eq!(node.metric(ALARM), 0.0, "{}", node.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_behind_a_cut_log_gets_the_state_and_its_watches_and_leases_go_on() {
    const ALL: usize = 1_500;
    let mut cluster = prepare("64MiB");
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    fill(&client, 0, 20, 100).await;
    let lease = client
        .lease()
        .grant(Duration::from_secs(600), None)
        .await
        .unwrap();

    // It stands still for a while, with a watch open, and finds that its log cannot go on.
    let behind = (leader + 1) % 3;
    let endpoint = cluster.nodes[behind].client.to_string();
    let options = WatchOptions::new().with_prefix().with_endpoint(&endpoint);
    let mut watcher = client.watch("k/", Some(options)).await.unwrap();
    let others: Vec<String> = (0..3)
        .filter(|node| *node != behind)
        .map(|node| cluster.nodes[node].client.to_string())
        .collect();
    let writer = cluster.client_of(others, cluster.options()).await;
    cluster.nodes[behind].pause();
    let with_lease = PutOptions::new().with_lease(lease.id);
    writer.put("leased", "v", Some(with_lease)).await.unwrap();
    // More than may be under way to it, which is 32 appends of 16 entries; and a log that begins
    // behind all of that, or it goes on from the log.
    fill(&writer, 20, ALL, 2_000).await;
    eventually("the logs are cut behind what is under way", || {
        (0..3)
            .filter(|node| *node != behind)
            .all(|node| cluster.nodes[node].metric(FIRST) > 1_400.0)
            .then_some(())
    });
    cluster.nodes[behind].resume();
    eventually("the state arrives", || {
        (cluster.nodes[behind].metric(RECEIVED) > 0.0).then_some(())
    });
    // Its sender hears of it a little later, or loses the connection before it does.
    eventually("somebody has sent it", || {
        let sent = |node: &Node| SENT.iter().any(|series| node.metric(series) > 0.0);
        cluster.nodes.iter().any(sent).then_some(())
    });
    writer.put("k/last", "v", None).await.unwrap();

    let mut heard = BTreeMap::new();
    let mut revision_before = 0;
    while !heard.contains_key("k/last") {
        let next = tokio::time::timeout(PATIENCE, watcher.next()).await;
        let next = next.expect("an event within a minute");
        if let WatchEvent::Events { revision, events } = next.unwrap().unwrap() {
            assert!(revision > revision_before, "in order, each once");
            revision_before = revision;
            for event in events {
                let key = String::from_utf8(event.kv.key.to_vec()).unwrap();
                assert!(heard.insert(key, ()).is_none(), "each once");
            }
        }
    }
    for number in 20..ALL {
        assert!(
            heard.contains_key(&key(number)),
            "{} was not told",
            key(number)
        );
    }
    for number in (0..ALL).step_by(7) {
        let bytes = if number < 20 { 100 } else { 2_000 };
        let get = client.get(key(number), None).await.unwrap();
        assert_eq!(get.kvs[0].value, value(number, bytes));
    }
    agree(&cluster.nodes);
    // Its files, too, are gone.
    for node in &cluster.nodes {
        assert!(node.metric(CUTS) > 0.0 || node.metric(RECEIVED) > 0.0);
        // The members are those of the beginning, wherever the log begins.
        let text = node.log_text();
        let told = text
            .lines()
            .find(|line| line.contains("observer: configuration changed"));
        assert_eq!(told, None, "{}", node.name);
    }

    // The one that was sent the state knows the lease, and everybody starts from cut logs.
    cluster.nodes[leader].kill();
    let next = cluster.wait_for_lease();
    assert_ne!(next, leader);
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.start_all();
    cluster.wait_for_lease();
    let client = cluster.client().await;
    let kept = client.lease().time_to_live(lease.id, None).await.unwrap();
    assert!(kept.granted_ttl_ms > 0);
    for node in 0..3 {
        assert!(cluster.nodes[node].metric(FIRST) > 1.0, "the log stays cut");
    }
    for number in [0, 19, 20, ALL - 1] {
        let get = client.get(key(number), None).await.unwrap();
        assert_eq!(get.kvs.len(), 1);
    }
    agree(&cluster.nodes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_disk_is_filled_from_a_cut_log_whoever_is_killed_meanwhile() {
    const KEYS: usize = 160;
    const BYTES: usize = 50_000;
    let mut cluster = prepare("8MiB");
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    fill(&client, 0, KEYS, BYTES).await;
    eventually("the leader cuts its log", || {
        (cluster.nodes[leader].metric(FIRST) > 100.0).then_some(())
    });
    let wiped = (leader + 1) % 3;
    cluster.nodes[wiped].kill();
    fs::remove_dir_all(&cluster.nodes[wiped].data_dir).unwrap();

    // The receiver dies while it receives, or finishes, or installs.
    for millis in [150, 500, 900, 1_100, 1_300, 1_500, 2_000] {
        cluster.nodes[wiped].start();
        tokio::time::sleep(Duration::from_millis(millis)).await;
        cluster.nodes[wiped].kill();
    }
    // So does the sender.
    fs::remove_dir_all(&cluster.nodes[wiped].data_dir).unwrap();
    cluster.nodes[wiped].start();
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    cluster.nodes[leader].kill();
    cluster.nodes[leader].start();
    cluster.wait_for_lease();
    eventually("the emptied member is whole", || {
        let (status, _) = cluster.nodes[wiped].admin("/readyz?verbose")?;
        let proven = !cluster.nodes[wiped].data_dir.join("unproven").exists();
        (proven && status == 200).then_some(())
    });
    has_everything(&cluster, wiped, KEYS, BYTES).await;
    agree(&cluster.nodes);
    let left: Vec<_> = fs::read_dir(&cluster.nodes[wiped].data_dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("state-"))
        .collect();
    assert!(left.len() <= 1, "what was not used is gone: {left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_lost_behind_a_cut_log_comes_from_a_peer() {
    let mut cluster = prepare("64MiB");
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    fill(&client, 0, 200, 1_000).await;
    let victim = (leader + 1) % 3;
    eventually("the log is cut", || {
        (cluster.nodes[victim].metric(FIRST) > 100.0).then_some(())
    });
    cluster.nodes[victim].kill();
    // One that a peer has sent it before is in use where it came in, until the next start.
    let files = fs::read_dir(&cluster.nodes[victim].data_dir).unwrap();
    let mut removed = 0;
    for file in files.map(Result::unwrap) {
        let name = file.file_name().into_string().unwrap();
        if name == "state.current" {
            fs::remove_file(file.path()).unwrap();
        } else if name == "state" || name.starts_with("state-") {
            fs::remove_dir_all(file.path()).unwrap();
            removed += 1;
        }
    }
    assert!(removed > 0, "it had a state");
    cluster.nodes[victim].start();
    eventually("the state arrives", || {
        (cluster.nodes[victim].metric(RECEIVED) > 0.0).then_some(())
    });
    assert!(cluster.nodes[victim].log_text().contains("has no state"));
    has_everything(&cluster, victim, 200, 1_000).await;
    agree(&cluster.nodes);
}

/// D3: whatever it was that had all members take their states for damaged, somebody has to lead, and the
/// copies are good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_all_members_have_set_aside_is_opened_again() {
    let mut cluster = prepare("64MiB");
    cluster.start_and_settle();
    let client = cluster.client().await;
    fill(&client, 0, 200, 100).await;
    for node in &cluster.nodes {
        eventually("the log is cut", || {
            (node.metric(FIRST) > 100.0).then_some(())
        });
    }
    for node in &mut cluster.nodes {
        assert_eq!(node.stop(), 0);
        fs::write(node.data_dir.join("state.damaged"), "a false alarm\n").unwrap();
    }
    cluster.start_all();
    // What a supervisor does. Once one has its state back it may lead, and then the others need not end.
    let mut ended = 0;
    eventually("a leader", || {
        for node in &mut cluster.nodes {
            let process = node.process.as_mut().expect("it was started");
            if process.try_wait().unwrap().is_some() {
                assert_eq!(node.wait_for_exit(), 1);
                let said = node.log_text();
                assert!(said.contains("opens again what was set aside"), "{said}");
                ended += 1;
                node.start();
            }
        }
        cluster.leader()
    });
    assert!(ended > 0);
    cluster.wait_until_settled();
    for number in 0..3 {
        has_everything(&cluster, number, 200, 100).await;
    }
    agree(&cluster.nodes);
}
