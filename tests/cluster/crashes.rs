//! `kill -9` under load: nothing acknowledged is lost, nothing is applied twice.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::api::{Consistency, Outcome};
use leasehold::client::{Client, GetOptions};
use leasehold::log::Log;
use leasehold::server::disk::data_dir::DataDir;

use crate::harness::{Cluster, copy_folder, eventually, files_below, run, say_left_out};
use crate::warnings::says;

/// Kills of the leader in a row.
const KILLS: usize = 20;
/// Writes acknowledged under each leader before it is killed.
const WRITES_PER_LEADER: usize = 500;
const WRITERS: u64 = 8;
const TERM: &str = "leasehold_raft_term ";

/// What the writers did.
#[derive(Default)]
struct Ledger {
    /// Keys whose put was acknowledged, with the revision it was told.
    acknowledged: Mutex<Vec<(String, i64)>>,
    /// Keys whose put ended in an unknown outcome.
    unknown: Mutex<Vec<String>>,
    /// Keys whose put was refused for certain.
    refused: Mutex<Vec<String>>,
    stop: AtomicBool,
    last_acknowledged: AtomicU64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_kills_of_the_leader_under_load_lose_nothing_acknowledged_and_double_nothing() {
    let mut cluster = Cluster::start(3);
    let began = Instant::now();
    let ledger = Arc::new(Ledger::default());
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = cluster.client().await;
        writers.push(tokio::spawn(write_until_stopped(
            client,
            writer,
            ledger.clone(),
            began,
        )));
    }

    let mut gaps = Vec::new();
    for round in 0..KILLS {
        let leader = cluster.wait_for_lease();
        // Some writes under this leader first, so that there is something to lose.
        let target = ledger.acknowledged.lock().unwrap().len() + WRITES_PER_LEADER;
        wait_until("writes before the kill", || {
            ledger.acknowledged.lock().unwrap().len() >= target
        })
        .await;
        let killed_at = Instant::now();
        cluster.nodes[leader].kill();
        let before = ledger.last_acknowledged.load(Ordering::SeqCst);
        // A reply that was on its way already may still be counted; the second one is new.
        wait_until("a write after the kill", || {
            let last = ledger.last_acknowledged.load(Ordering::SeqCst);
            last > before
                && Duration::from_micros(last) > killed_at - began + Duration::from_millis(100)
        })
        .await;
        let back = Duration::from_micros(ledger.last_acknowledged.load(Ordering::SeqCst));
        gaps.push(back.saturating_sub(killed_at - began));
        cluster.nodes[leader].start();
        eprintln!(
            "kill {:>2}: writes again after {:?}",
            round + 1,
            gaps[round]
        );
    }
    ledger.stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    cluster.wait_for_lease();

    let client = cluster.client().await;
    let acknowledged = std::mem::take(&mut *ledger.acknowledged.lock().unwrap());
    assert!(
        acknowledged.len() > KILLS * WRITES_PER_LEADER,
        "only {} writes",
        acknowledged.len()
    );
    let mut found = std::collections::BTreeMap::new();
    let mut from = "w/".to_owned();
    loop {
        let options = GetOptions::new().with_range("w0").with_limit(1000);
        let page = client.get(from.clone(), Some(options)).await.unwrap();
        let Some(last) = page.kvs.last() else { break };
        from = format!("{}\0", String::from_utf8(last.key.to_vec()).unwrap());
        for kv in page.kvs {
            found.insert(String::from_utf8(kv.key.to_vec()).unwrap(), kv.clone());
        }
        if !page.more {
            break;
        }
    }
    for (key, revision) in &acknowledged {
        let kv = found
            .get(key)
            .unwrap_or_else(|| panic!("{key} was acknowledged and is gone"));
        assert_eq!(
            kv.value.as_ref(),
            key.as_bytes(),
            "{key} holds another value"
        );
        assert_eq!(kv.version, 1, "{key} was applied more than once");
        assert_eq!(
            kv.mod_revision, *revision,
            "{key} was acknowledged at another revision"
        );
    }
    for key in ledger.refused.lock().unwrap().iter() {
        assert!(
            !found.contains_key(key),
            "{key} was reported as not applied and is there"
        );
    }
    for key in ledger.unknown.lock().unwrap().iter() {
        assert!(
            found.get(key).is_none_or(|kv| kv.version == 1),
            "{key} was applied twice"
        );
    }
    gaps.sort();
    eprintln!(
        "{KILLS} kills, {} writes acknowledged, {} unknown, {} refused, 0 lost, 0 doubled; writes \
         again after: median {:?}, worst {:?}",
        acknowledged.len(),
        ledger.unknown.lock().unwrap().len(),
        ledger.refused.lock().unwrap().len(),
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1],
    );
}

async fn write_until_stopped(client: Client, writer: u64, ledger: Arc<Ledger>, began: Instant) {
    let mut number = 0;
    while !ledger.stop.load(Ordering::SeqCst) {
        let key = format!("w/{writer}/{number:08}");
        number += 1;
        match client.put(key.clone(), key.clone(), None).await {
            Ok(put) => {
                let now = u64::try_from(began.elapsed().as_micros()).unwrap();
                ledger
                    .acknowledged
                    .lock()
                    .unwrap()
                    .push((key, put.header.revision));
                ledger.last_acknowledged.fetch_max(now, Ordering::SeqCst);
            }
            Err(error) => match error.outcome {
                Outcome::NotApplied => ledger.refused.lock().unwrap().push(key),
                Outcome::Applied => panic!("an error for a write that was applied: {error}"),
                Outcome::Unknown => {
                    eprintln!("in doubt: {key}: {error}");
                    ledger.unknown.lock().unwrap().push(key);
                }
            },
        }
    }
}

async fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(
            started.elapsed() < crate::harness::PATIENCE,
            "waited too long for: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_killed_at_once_come_back_with_everything_acknowledged() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut writes = Vec::new();
    for number in 0..200 {
        let key = format!("k/{number}");
        let put = client.put(key.clone(), "v", None).await.unwrap();
        writes.push((key, put.header.revision));
    }
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.start_and_settle();
    let client = cluster.client().await;
    for (key, revision) in writes {
        let get = client.get(key.clone(), None).await.unwrap();
        let [kv] = &get.kvs[..] else {
            panic!("{key} is gone")
        };
        assert_eq!((kv.mod_revision, kv.version), (revision, 1), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_disk_was_emptied_elects_nobody_until_it_holds_everything_again() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("before", "v", None).await.unwrap();
    let leader = cluster.wait_for_lease();
    let (wiped, behind) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[behind].kill();
    client.put("acknowledged", "v", None).await.unwrap();
    cluster.nodes[leader].kill();
    cluster.nodes[wiped].kill();
    std::fs::remove_dir_all(&cluster.nodes[wiped].data_dir).unwrap();

    // The one that forgot and the one that missed it: a majority that must not be one.
    cluster.nodes[wiped].start();
    cluster.nodes[behind].start();
    nobody_leads(&cluster);
    // With the one that remembers, all is well again.
    cluster.nodes[leader].start();
    cluster.wait_for_lease();
    let client = cluster.client().await;
    assert_eq!(
        client.get("acknowledged", None).await.unwrap().count,
        Some(1)
    );
    eventually("the wiped member is out of quarantine", || {
        let body = cluster.nodes[wiped].admin("/readyz?verbose")?;
        let proven = !cluster.nodes[wiped].data_dir.join("unproven").exists();
        (body.0 == 200 && proven).then_some(())
    });
    // It counts again: the other one may go.
    cluster.nodes[behind].kill();
    cluster.wait_for_lease();
    cluster
        .client()
        .await
        .put("after", "v", None)
        .await
        .unwrap();
}

/// A25: n1 is emptied and n3 has never stored an entry: a majority without n2, which has what was acknowledged. n3
/// remembers that it voted for that bootstrap, so it elects n2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_member_and_one_without_an_entry_wait_for_the_one_that_has_the_data() {
    let mut cluster = Cluster::prepare(3);
    cluster.nodes[2].start();
    eventually("a directory without an entry", || {
        cluster.nodes[2].admin("/metrics")
    });
    assert_eq!(cluster.nodes[2].stop(), 0);
    let data = cluster.nodes[2].data_dir.clone();
    let early = data.with_extension("early");
    copy_folder(&data, &early);
    acknowledge_and_kill(&mut cluster).await;
    let open = |folder: &Path| {
        let identity = DataDir::read_identity(folder).unwrap().unwrap();
        let directory = DataDir::open_or_create(folder, &identity).unwrap();
        Log::open(directory.log_disk(), directory.log_options(8 << 20)).unwrap()
    };
    let (_, whole) = open(&data);
    assert!(whole.vote.bootstrap.0 > 0 && !whole.records.is_empty());
    let (mut log, nothing) = open(&early);
    assert_eq!(nothing.records, []);
    log.save_vote(whole.vote).unwrap();
    drop(log);
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&early, &data).unwrap();
    std::fs::remove_dir_all(&cluster.nodes[0].data_dir).unwrap();

    wait_for_n2(&mut cluster);
    cluster.nodes[1].start();
    cluster.wait_until_settled();
    let client = cluster.client().await;
    let found = client.get("acknowledged", None).await.unwrap();
    assert_eq!(found.count, Some(1));
}

/// A25: two are emptied while the third is down. No majority can tell what was acknowledged, and the only copy stays
/// as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_emptied_members_leave_the_only_copy_alone() {
    let mut cluster = Cluster::prepare(3);
    acknowledge_and_kill(&mut cluster).await;
    for emptied in [0, 2] {
        std::fs::remove_dir_all(&cluster.nodes[emptied].data_dir).unwrap();
    }
    wait_for_n2(&mut cluster);
    let only = cluster.nodes[1].data_dir.clone();
    let bootstrap = || std::fs::read_to_string(only.join("bootstrap.id")).unwrap();
    let before = bootstrap();
    cluster.nodes[1].start();
    nobody_leads(&cluster);
    cluster.nodes[1].kill();
    assert_eq!(bootstrap(), before);
    let (code, keys, _) = run(&["offline", "dump-kv", "--data-dir", only.to_str().unwrap()]);
    assert!(code == 0 && keys.contains("acknowledged"), "{code} {keys}");
}

/// All three start, n2 stores what is acknowledged, and all are killed.
async fn acknowledge_and_kill(cluster: &mut Cluster) {
    cluster.start_and_settle();
    let client = cluster.client().await;
    let put = client.put("acknowledged", "v", None).await.unwrap();
    eventually("n2 to have it", || {
        let revision = cluster.nodes[1].metric("leasehold_mvcc_revision");
        (revision >= put.header.revision as f64).then_some(())
    });
    // Without a leader nothing of the log is applied to it later.
    eventually("the database of n2 to have it", || {
        (cluster.nodes[1].metric("leasehold_storage_ahead_bytes") == 0.0).then_some(())
    });
    for node in &mut cluster.nodes {
        node.kill();
    }
}

/// n1 and n3 start, and say whom they miss.
fn wait_for_n2(cluster: &mut Cluster) {
    let files = |cluster: &Cluster| {
        let files = files_below(&cluster.nodes[1].data_dir);
        let read = |file: &PathBuf| (file.clone(), std::fs::read(file).unwrap());
        files.iter().map(read).collect::<Vec<_>>()
    };
    let before = files(cluster);
    for started in [0, 2] {
        cluster.nodes[started].start();
    }
    nobody_leads(cluster);
    for started in [0, 2] {
        says(
            cluster,
            &cluster.nodes[started],
            &["the vote of n2 is missing"],
        );
    }
    assert!(files(cluster) == before, "nothing of n2 was touched");
}

fn nobody_leads(cluster: &Cluster) {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        assert_eq!(
            cluster.leader(),
            None,
            "what was acknowledged would be lost"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A25: all members are emptied and bootstrap again; then the old directory of one comes back, and so does a
/// client of before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_and_sessions_of_another_bootstrap_are_refused_and_keep_what_they_have() {
    let mut cluster = Cluster::start(3);
    let away = cluster.client().await;
    away.put("first", "1", None).await.unwrap();
    let id_of = |cluster: &Cluster, node: usize| {
        let text = std::fs::read_to_string(cluster.nodes[node].data_dir.join("bootstrap.id"));
        text.ok()
    };
    let first = eventually("the member to note its bootstrap", || id_of(&cluster, 2));
    for node in &mut cluster.nodes {
        assert_eq!(node.stop(), 0);
    }
    let data = cluster.nodes[2].data_dir.clone();
    let (old, newer) = (data.with_extension("old"), data.with_extension("newer"));
    std::fs::rename(&data, &old).unwrap();
    for node in &cluster.nodes[..2] {
        std::fs::remove_dir_all(&node.data_dir).unwrap();
    }
    cluster.start_and_settle();
    let present = cluster.client().await;
    for number in 0..3 {
        present
            .put(format!("second/{number}"), "1", None)
            .await
            .unwrap();
    }
    // Its second write in the session of the first bootstrap; in the second one, another client made such.
    let put = away.put("again", "1", None).await.unwrap();
    assert_eq!(present.get("again", None).await.unwrap().count, Some(1));
    assert_eq!(put.header.revision, 5, "it is a write of its own");
    let second = eventually("the member to note its bootstrap", || id_of(&cluster, 2));
    assert_ne!(first, second);

    assert_eq!(cluster.nodes[2].stop(), 0);
    std::fs::rename(&data, &newer).unwrap();
    std::fs::rename(&old, &data).unwrap();
    cluster.nodes[2].start();
    let named = "comes from another bootstrap of this cluster";
    for node in [0, 2] {
        eventually("both sides to say it", || {
            cluster.nodes[node].log_text().contains(named).then_some(())
        });
    }
    let said = "the cluster was bootstrapped more than once";
    for node in [0, 1, 2] {
        let client = cluster.client_at(&[node]).await;
        let status = client.status(cluster.nodes[node].client.to_string());
        let warnings = status.await.unwrap().status.warnings.join("\n");
        assert!(warnings.contains(said), "n{}: {warnings}", node + 1);
    }
    // Both keep what they have.
    present.put("third", "1", None).await.unwrap();
    let options = GetOptions::new().with_consistency(Consistency::Serializable);
    let alone = cluster.client_at(&[2]).await;
    let found = |key: &'static str| alone.get(key, Some(options.clone()));
    assert_eq!(found("first").await.unwrap().count, Some(1));
    assert_eq!(found("third").await.unwrap().count, Some(0));
    assert_eq!(id_of(&cluster, 2), Some(first));

    // What the warning says.
    assert_eq!(cluster.nodes[2].stop(), 0);
    std::fs::rename(&data, &old).unwrap();
    cluster.says_that_the_cluster_exists(2);
    cluster.nodes[2].start();
    cluster.wait_until_settled();
    let found = alone.get("third", Some(options)).await.unwrap();
    assert_eq!(found.count, Some(1));
    assert_eq!(id_of(&cluster, 2), Some(second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_with_an_older_copy_of_its_data_is_fed_again() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("old", "v", None).await.unwrap();
    let leader = cluster.wait_for_lease();
    let member = (leader + 1) % 3;
    assert_eq!(cluster.nodes[member].stop(), 0);
    let data = cluster.nodes[member].data_dir.clone();
    let copy = cluster.folder.path().join("copy");
    copy_folder(&data, &copy);
    cluster.nodes[member].start();
    for number in 0..20 {
        client
            .put(format!("new/{number}"), "v", None)
            .await
            .unwrap();
    }
    let caught_up = |node: &crate::harness::Node, revision: f64| {
        node.metric("leasehold_mvcc_revision") >= revision
    };
    let revision = cluster.nodes[leader].metric("leasehold_mvcc_revision");
    eventually("the member to catch up", || {
        caught_up(&cluster.nodes[member], revision).then_some(())
    });
    let leader = cluster.wait_for_lease();
    let term = cluster.nodes[leader].metric(TERM);
    cluster.nodes[member].kill();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&copy, &data).unwrap();
    cluster.nodes[member].start();
    eventually("the member to be fed again", || {
        caught_up(&cluster.nodes[member], revision).then_some(())
    });
    // Another leader than the one whom it had told what it has cannot know that it lost anything.
    if cluster.nodes[leader].metric(TERM) > term {
        return say_left_out("the count of lost logs: another node leads, so nobody counts");
    }
    eventually("the loss is counted", || {
        let lost = |node: &crate::harness::Node| node.metric("leasehold_raft_lost_logs_total");
        let lost: f64 = cluster.nodes.iter().map(lost).sum();
        (lost >= 1.0).then_some(())
    });
}
