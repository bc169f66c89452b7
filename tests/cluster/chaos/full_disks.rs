//! One node on a small disk that becomes full: by what the node writes itself, and at once by somebody
//! else. It refuses what adds, serves reads, ends leases, and goes on by itself once there is room.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::api::{Error, ErrorKind};
use leasehold::client::{
    Client, CompactionOptions, ConnectOptions, DeleteOptions, GetOptions, PutOptions,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::chaos::tools::{Disk, Tools, left_out};
use crate::harness::{Cluster, PATIENCE, eventually};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 60_000;
/// Writers at a time: what is under way when the alarm is raised is written, too.
const WRITERS: u64 = 16;
/// Writes that are refused one after the other in the end, by each writer. The engine may still give back what
/// it has merged, and then there is room again.
const REFUSED: u64 = 40;
const BETWEEN_REFUSALS: Duration = Duration::from_millis(50);
const ALARM: &str = "leasehold_alarms{type=\"no_space\"}";
/// The code of a process whose disk failed it.
const DISK_FAILED: i32 = 1;

/// A cluster of one on a disk of its own.
struct Small {
    // Before the cluster: the disk goes before the folder that it is mounted in.
    disk: Disk,
    cluster: Cluster,
    runtime: Runtime,
}

impl Small {
    fn start(bytes: u64) -> Option<Self> {
        if !Tools::find().disks {
            left_out("full disks: needs loop devices and mkfs.ext4");
            return None;
        }
        let mut cluster = Cluster::prepare(1);
        let at = cluster.folder.path().join("disk");
        let Some(disk) = Disk::mount(&at, bytes) else {
            left_out("full disks: nothing may be mounted here");
            return None;
        };
        cluster.nodes[0].data_dir = at.join("data");
        cluster.write_configs("");
        // As large as the node chooses for such a disk.
        let config = &cluster.nodes[0].config;
        let text = fs::read_to_string(config).unwrap();
        fs::write(config, text.replace("segment_bytes = \"8MiB\"\n", "")).unwrap();
        cluster.start_and_settle();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        Some(Self {
            disk,
            cluster,
            runtime,
        })
    }

    fn client(&self, timeout: Duration) -> Client {
        let options: ConnectOptions = self.cluster.options().with_timeout(timeout);
        self.runtime.block_on(self.cluster.client_with(options))
    }

    fn process(&self) -> u32 {
        self.cluster.nodes[0]
            .process
            .as_ref()
            .expect("it runs")
            .id()
    }
}

/// Bytes that nothing compresses.
fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; VALUE_BYTES];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn is_no_space(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::NoSpace { .. })
}

/// Puts one value after the other until so many were refused in a row. Returns how many were taken.
async fn put_until_refused(client: Client, writer: u64) -> u64 {
    let (mut taken, mut refused, mut number) = (0, 0, 0);
    while refused < REFUSED {
        number += 1;
        let key = format!("big/{writer}/{number}");
        match client.put(key, noise(writer << 32 | number), None).await {
            Ok(_) => (taken, refused) = (taken + 1, 0),
            Err(error) if is_no_space(&error) => {
                refused += 1;
                tokio::time::sleep(BETWEEN_REFUSALS).await;
            }
            Err(error) => panic!("write {number} of {writer}: {error}"),
        }
    }
    taken
}

/// Has a node fill a disk of so many bytes, and make room there again.
fn fill_by_itself(bytes: u64) {
    let Some(small) = Small::start(bytes) else {
        return;
    };
    let process = small.process();
    let client = small.client(PATIENCE);
    let block_on = |work| small.runtime.block_on(work);
    let held = small.runtime.block_on(async {
        let lease = client.lease().grant(Duration::from_secs(5), None).await;
        let lease = lease.unwrap();
        let on_it = PutOptions::new().with_lease(lease.id);
        client.put("held", "v", Some(on_it)).await.unwrap();
        client.put("kept", "v", None).await.unwrap();
        lease.id
    });
    let taken: u64 = small.runtime.block_on(async {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(put_until_refused(client.clone(), writer));
        }
        writers.join_all().await.into_iter().sum()
    });
    let node = &small.cluster.nodes[0];
    eventually("the alarm", || (node.metric(ALARM) == 1.0).then_some(()));
    // Reads are served, and leases end.
    let get = |key: &'static str| {
        let found = small.runtime.block_on(client.get(key, None)).unwrap();
        found.value().is_some()
    };
    assert!(get("kept"));
    eventually("the end of a lease", || (!get("held")).then_some(()));
    eprintln!(
        "{} MiB: {taken} values of {VALUE_BYTES} bytes, then no more; {} MiB are free ({held:?})",
        bytes / MIB,
        small.disk.available() / MIB
    );
    assert!(taken > 0 && small.disk.available() > 0);
    // What frees is taken: some keys at a time, since one request may not cover so much.
    let (mut deleted, mut revision) = (0, 0);
    for (writer, digit) in (0..WRITERS).flat_map(|writer| (1..=9).map(move |digit| (writer, digit)))
    {
        let all = DeleteOptions::new().with_prefix().with_timeout(PATIENCE);
        let done = client.delete(format!("big/{writer}/{digit}"), Some(all));
        let done = small.runtime.block_on(done).unwrap();
        (deleted, revision) = (deleted + done.deleted, done.header.revision);
    }
    assert_eq!(deleted, taken);
    let physical = CompactionOptions::new()
        .with_physical()
        .with_timeout(PATIENCE);
    let compacted = client.compact(revision, Some(physical));
    small.runtime.block_on(compacted).unwrap();
    eventually("room for writes", || {
        (node.metric(ALARM) == 0.0).then_some(())
    });
    block_on(Box::pin(async {
        client.put("k", "v", None).await.unwrap();
    }));
    assert_eq!(small.process(), process, "it never ended");
}

#[test]
fn a_node_that_fills_a_disk_of_256_mib_refuses_what_adds_and_goes_on_once_there_is_room() {
    fill_by_itself(256 * MIB);
}

#[test]
fn a_node_that_fills_a_disk_of_700_mib_refuses_what_adds_and_goes_on_once_there_is_room() {
    fill_by_itself(700 * MIB);
}

/// Only by hand: it writes gigabytes.
#[test]
#[ignore = "minutes, and a disk with 10 GB"]
fn a_node_that_fills_a_disk_of_8_gib_refuses_what_adds_and_goes_on_once_there_is_room() {
    fill_by_itself(8192 * MIB);
}

/// Puts until told to end. Returns the keys of what was acknowledged.
async fn put_on(client: Client, writer: u64, ends: &'static AtomicBool) -> Vec<String> {
    let mut taken = Vec::new();
    let mut number = 0;
    while !ends.load(Ordering::Relaxed) {
        number += 1;
        let key = format!("k/{writer}/{number}");
        // Whatever becomes of it: only what is acknowledged counts.
        if client.put(key.as_str(), "v", None).await.is_ok() {
            taken.push(key);
        }
    }
    taken
}

/// Whoever fills the disk leaves not a byte, in the midst of writes. The node runs on, or says why it ends;
/// then its next start waits for space instead of ending again.
#[test]
fn a_disk_that_others_fill_at_once_costs_nothing_acknowledged_and_nobodys_hand() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let Some(mut small) = Small::start(256 * MIB) else {
        return;
    };
    let client = small.client(Duration::from_secs(1));
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn_on(
            put_on(client.clone(), writer, &ENDS),
            small.runtime.handle(),
        );
    }
    let node = &mut small.cluster.nodes[0];
    eventually("some writes", || {
        (node.metric("leasehold_raft_applied_index") > 500.0).then_some(())
    });
    small.disk.fill();
    // The log's writer says the one, and the state's, if it is the first to meet the end of the disk, the other.
    eventually("that the node says that its disk is full", || {
        let text = node.log_text();
        let says = ["the disk is full", "free space on the disk"];
        says.iter().any(|said| text.contains(said)).then_some(())
    });
    let mut child = node.process.take().expect("it was started");
    let ended = child.try_wait().unwrap();
    match ended {
        None => node.process = Some(child),
        Some(status) => {
            assert_eq!(status.code(), Some(DISK_FAILED), "{}", node.log_text());
            assert!(node.log_text().contains("free space on the disk"));
        }
    }
    // A start on the full disk waits, and does not end.
    if node.process.is_some() {
        node.kill();
    }
    node.start();
    eventually("a start that waits for space", || {
        let ended = node.process.as_mut().expect("it was started").try_wait();
        assert_eq!(ended.unwrap(), None, "{}", node.log_text());
        node.log_text()
            .contains("this node starts once")
            .then_some(())
    });
    let process = node.process.as_ref().expect("it was started").id();
    small.disk.free();
    small.cluster.wait_until_settled();
    ENDS.store(true, Ordering::Relaxed);
    let taken: Vec<String> = small
        .runtime
        .block_on(writers.join_all())
        .into_iter()
        .flatten()
        .collect();
    let client = small.client(PATIENCE);
    small
        .runtime
        .block_on(client.put("after", "v", None))
        .unwrap();
    let all = GetOptions::new().with_prefix().with_keys_only();
    let found = small.runtime.block_on(client.get("k/", Some(all))).unwrap();
    let found: std::collections::BTreeSet<_> = found
        .kvs
        .iter()
        .map(|kv| String::from_utf8_lossy(&kv.key).into_owned())
        .collect();
    for key in &taken {
        assert!(found.contains(key), "{key} was acknowledged");
    }
    assert_eq!(small.process(), process);
    let became = match ended {
        None => "ran on",
        Some(_) => "ended and said why",
    };
    eprintln!(
        "filled at once: the node {became}; {} writes were acknowledged",
        taken.len()
    );
}

/// Runs on through a disk that is full for a while, without a restart.
#[test]
fn a_node_at_rest_outlives_a_disk_that_others_fill_and_empty() {
    let Some(small) = Small::start(256 * MIB) else {
        return;
    };
    let process = small.process();
    let client = small.client(PATIENCE);
    small.runtime.block_on(client.put("a", "v", None)).unwrap();
    small.disk.fill();
    // The first may find the node before it has looked, and then it is not known what became of it.
    let refused = eventually("a refusal", || {
        let brief = small.client(Duration::from_secs(1));
        let put = small.runtime.block_on(brief.put("b", "v", None));
        put.err().filter(is_no_space)
    });
    eprintln!("a full disk: {refused}");
    small.disk.free();
    // Until it has looked again, it refuses, and says so.
    eventually("a write that is taken", || {
        match small.runtime.block_on(client.put("c", "v", None)) {
            Ok(_) => Some(()),
            Err(error) => {
                assert!(is_no_space(&error), "{error}");
                None
            }
        }
    });
    let found = small.runtime.block_on(client.get("a", None)).unwrap();
    assert!(found.value().is_some());
    assert_eq!(small.process(), process);
}
