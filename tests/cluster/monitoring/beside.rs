//! Clusters of their own, beside the one of [`live`](crate::monitoring::live), for what would be in the way there.
//! They begin when that one was found to be well, and each has a Prometheus of its own.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::client::{Client, PutOptions};
use tokio::task::JoinSet;

use crate::harness::{Cluster, Node, Signal, eventually, leasehold_command, send};
use crate::monitoring::live::{Stage, repeat, watch_over_what_is_wrong, who_gives_up};

/// How often a client of ours that stands still does not, for how much work, and for how long at most.
const LISTENS_EACH: Duration = Duration::from_secs(3);
const LISTENS_FOR: Duration = Duration::from_millis(10);
const LISTENS_MOST: Duration = Duration::from_secs(1);
/// Of a quota of 160 MiB: what is written between two looks at it, and merged, comes on top.
const QUOTA_MOST: f64 = 640.0 * 1_048_576.0;

/// Leaders whose promises last so long that they outlive followers who stand still for seconds. Client
/// leases that are due meanwhile end when a quorum is there again, and late. And a node that may open
/// hardly more files than it has.
pub(crate) async fn ends_that_are_late() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(
        "[leader_lease]\nduration = \"4s\"\nmax_clock_skew = \"400ms\"\n\
         [raft]\nelection_timeout_min = \"4500ms\"\nelection_timeout_max = \"6s\"\n\
         step_down_after = \"5s\"\n",
    );
    let leader = cluster.start_and_settle();
    let client = who_gives_up(&cluster).await;
    let stop = Arc::<AtomicBool>::default();
    let granting = tokio::spawn(repeat(
        (client.clone(), stop.clone()),
        100,
        async |client: &Client, _| {
            let ttl = Duration::from_millis(500);
            let _ = client.lease().grant(ttl, None).await;
        },
    ));
    let prometheus = watch_over_what_is_wrong(&cluster);
    let mut stage = Stage::new(&prometheus);
    stage.begin(
        "followers stand still for seconds, and the leader goes on; few files may be opened",
    );
    let followers = [(leader + 1) % 3, (leader + 2) % 3];
    let mut fewest = f64::INFINITY;
    while !stage.has_fired(&[
        "LeaseholdLeaseExpiryLate warning",
        "LeaseholdFileDescriptorsHigh warning",
    ]) {
        fewest = fewest.min(cluster.nodes[leader].metric("process_open_fds "));
        allow_few_files(&cluster.nodes[leader], fewest);
        for follower in followers {
            cluster.nodes[follower].pause();
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        for follower in followers {
            cluster.nodes[follower].resume();
        }
        tokio::time::sleep(Duration::from_millis(800)).await;
    }
    stop.store(true, Ordering::Relaxed);
    granting.await.unwrap();
    stage.end();
}

/// Lets a node open a sixth more files than the fewest that it was seen with.
fn allow_few_files(node: &Node, fewest: f64) {
    let most = (fewest * 7.0 / 6.0).ceil();
    let id = node.process.as_ref().expect("it runs").id();
    let limited = Command::new("prlimit")
        .args(["--pid", &id.to_string(), &format!("--nofile={most}:")])
        .status()
        .unwrap();
    assert!(
        limited.success(),
        "{fewest} files were open, {most} are allowed"
    );
}

/// A node that answers no reads under the lease, has room for a few requests and a little data, is asked
/// for more of both, and cannot write its backups.
pub(crate) async fn a_node_that_is_full() {
    let mut cluster = Cluster::prepare(1);
    let no_folder = cluster.folder.path().join("no-folder");
    fs::write(&no_folder, "a file").unwrap();
    cluster.write_configs(&format!(
        "[leader_lease]\nenabled = false\n[limits]\nmax_waiting = 16\n[quota]\nbytes = \"160MiB\"\n\
         [backup]\nschedule = \"1h\"\ndir = \"{}\"\n",
        no_folder.display()
    ));
    cluster.start_all();
    eventually("a leader without a lease", || {
        (cluster.nodes[0].metric("leasehold_raft_is_leader ") == 1.0).then_some(())
    });
    let client = who_gives_up(&cluster).await;
    let stop = Arc::<AtomicBool>::default();
    let mut tasks = JoinSet::new();
    guard(&cluster.client().await).await;
    // Somebody who guesses.
    tasks.spawn(repeat(
        (client.clone(), stop.clone()),
        20,
        async |client: &Client, _| {
            let _ = client.auth().authenticate("root", "a guess").await;
        },
    ));
    // Many more at a time than may wait.
    tasks.spawn(repeat(
        (client.clone(), stop.clone()),
        50,
        async |client: &Client, _| {
            let mut together = JoinSet::new();
            for number in 0..64 {
                let client = client.clone();
                let options = PutOptions::new().with_timeout(Duration::from_millis(200));
                together.spawn(async move {
                    let _ = client
                        .put(format!("many/{number}"), "", Some(options))
                        .await;
                });
            }
            together.join_all().await;
        },
    ));
    // Whoever watches hardly listens.
    let watcher = Watcher::of(&cluster, &[]);
    let (filler, full) = (client.clone(), stop.clone());
    tasks.spawn(async move {
        for number in 0..2_000_u64 {
            if full.load(Ordering::Relaxed) {
                return;
            }
            let patient = PutOptions::new().with_timeout(Duration::from_secs(5));
            let put = filler.put(format!("large/{number}"), noise(number), Some(patient));
            // In the end there is no room.
            let _ = put.await;
        }
    });
    let prometheus = watch_over_what_is_wrong(&cluster);
    let mut stage = Stage::new(&prometheus);
    stage.begin("a node is asked for more than it has room for, and may not use its lease");
    // What is counted before anybody looks is no change.
    eventually("a look at reloads of certificates", || {
        let reloads = prometheus.query("leasehold_tls_reloads_total");
        (!reloads.is_empty()).then_some(())
    });
    fs::write(cluster.pki.file("n1-peer.pem"), "-----BEGIN").unwrap();
    let (refused, said) = cluster.nodes[0].manage("POST", "/admin/v1/tls/reload", "");
    assert_eq!(refused, 409, "{said}");
    while !stage.has_fired(&[
        "LeaseholdLeaderWithoutLease warning",
        "LeaseholdOverloaded warning",
        "LeaseholdBackupStale warning",
        "LeaseholdAuthFailures warning",
        "LeaseholdTlsReloadFailed warning",
    ]) {
        watcher.listens_briefly().await;
    }
    // How long it takes to write so much is the machine's affair.
    stage.begin("it has no room left");
    let mut largest = 0.0;
    while !stage.has_fired(&["LeaseholdNoSpace critical"]) {
        watcher.listens_briefly().await;
        let size = cluster.nodes[0].metric("leasehold_storage_size_bytes ");
        assert!(size < QUOTA_MOST, "the quota does not hold: {size}");
        if size > largest {
            largest = size;
            stage.goes_on();
        }
    }
    stage.begin("and does not get any, and a client has all of it to hear");
    drop(watcher);
    let late = Watcher::of(&cluster, &["--rev=1"]);
    while !stage.has_fired(&[
        "LeaseholdQuotaNear warning",
        "LeaseholdQuotaNearlyFull critical",
        "LeaseholdQuotaGrowth warning",
        "LeaseholdSlowWatchers warning",
    ]) {
        late.listens_briefly().await;
    }
    stop.store(true, Ordering::Relaxed);
    while tasks.join_next().await.is_some() {}
    stage.end();
}

/// Somebody who watches in a process that stands still.
struct Watcher(Child);

impl Watcher {
    fn of(cluster: &Cluster, from: &[&str]) -> Self {
        let are_there = || cluster.nodes[0].metric("leasehold_watchers ") > 0.0;
        eventually("no other watch", || (!are_there()).then_some(()));
        let process = leasehold_command()
            .args(cluster.flags())
            .args(["watch", "large/", "--prefix"])
            .args(from)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("a watch", || are_there().then_some(()));
        let watcher = Self(process);
        watcher.signal(Signal::STOP);
        watcher
    }

    /// So long that it is not taken for dead, and too briefly for all that there is to hear.
    async fn listens_briefly(&self) {
        tokio::time::sleep(LISTENS_EACH).await;
        let before = self.has_run();
        self.signal(Signal::CONT);
        let began = Instant::now();
        // On a machine that has much to do it takes a while until it gets to say that it lives.
        while self.has_run() < before + LISTENS_FOR && began.elapsed() < LISTENS_MOST {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.signal(Signal::STOP);
    }

    /// For how long its threads have had a processor.
    fn has_run(&self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let nanos = threads.flatten().filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    fn signal(&self, signal: Signal) {
        send(&self.0, signal);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Turns access control on. Whoever has the tests' certificate may do all, as before.
async fn guard(client: &Client) {
    let auth = client.auth();
    auth.user_add("root", Some("a password")).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("tester", None).await.unwrap();
    auth.user_grant_role("tester", "root").await.unwrap();
    auth.auth_enable().await.unwrap();
}

/// A mebibyte that nothing compresses.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..(1 << 20) / 8).flat_map(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()
    });
    words.collect()
}
