//! The real server loses its power: on a disk that forgets what was not synced, at any change of its files.
//!
//! `power.c` is that disk. It is preloaded into the node, takes back what no sync has made durable, and kills the
//! process at the change that a seed names. Then the node is started again on what is left, and again: in the end every
//! write that was acknowledged has to be there, every delete too, and no key with a value that was never written.
//!
//! ```text
//! cargo test --test cluster damage::power                            # eight cuts of each kind
//! POWER_CUTS=1000 POWER_SEED=7 cargo test --release --test cluster damage::power -- --nocapture
//! ```
//!
//! A node that is alone has no peer to heal it: what its disk forgot is gone. Three nodes that lose their power again
//! and again show that votes and terms are durable, too: two leaders of one term would leave different states.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use leasehold::client::{Client, GetOptions};

use super::TIMINGS;
use crate::harness::{Cluster, PATIENCE, eventually, setting};

/// Writers beside each other: their writes share syncs.
const WRITERS: u64 = 4;
/// Nodes that have acknowledged so many writes, or that run for so long, are killed as by `kill -9`.
const LIFE_WRITES: usize = 400;
const LIFE_MAX: Duration = Duration::from_secs(30);
/// Fewer acknowledged writes than these prove little.
const WRITES_MIN: usize = 200;
/// The last change that is tried; a start makes some hundred.
const CHANGES_MAX: f64 = 2500.0;

/// The disk, compiled once.
fn disk() -> &'static str {
    static DISK: OnceLock<String> = OnceLock::new();
    DISK.get_or_init(|| {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/damage/power.c");
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("power-{}.so", std::process::id()));
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .args([source, "-ldl", "-lpthread"])
            .output()
            .expect("a C compiler is there: the TLS library needs one, too");
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        library.to_str().unwrap().to_owned()
    })
}

/// What clients were promised.
#[derive(Default)]
struct Ledger {
    next: AtomicU64,
    put: Mutex<BTreeSet<u64>>,
    /// Deletes that were asked for, and whether they were acknowledged.
    deleted: Mutex<BTreeMap<u64, bool>>,
}

/// Logs that are truncated every few writes: so the power goes between making a state durable and letting go of the
/// log, too.
fn short_logs() -> String {
    let raft = TIMINGS.strip_prefix("[raft]\n").expect("they begin so");
    format!("[raft]\nsnapshot_entries = 50\nsnapshot_catchup_entries = 10\n{raft}")
}

fn key(number: u64) -> String {
    format!("power/{number:08}")
}

fn value(number: u64) -> String {
    format!("{number} ").repeat(usize::try_from(number % 200).unwrap() + 1)
}

impl Ledger {
    /// Writes until `is_over`.
    async fn write(&self, client: &Client, is_over: &AtomicBool) {
        while !is_over.load(Ordering::SeqCst) {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            if client.put(key(number), value(number), None).await.is_err() {
                continue;
            }
            self.put.lock().unwrap().insert(number);
            if number.is_multiple_of(7) {
                self.deleted.lock().unwrap().insert(number, false);
                if client.delete(key(number), None).await.is_ok() {
                    self.deleted.lock().unwrap().insert(number, true);
                }
            }
        }
    }

    /// What is wrong with a node's answers; empty if nothing is.
    async fn judge(&self, client: &Client) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut found = BTreeSet::new();
        let all = GetOptions::new().with_prefix();
        let mut keys = client.get_stream("power/", Some(all)).unwrap();
        while let Some(kv) = keys.next().await {
            let kv = kv.expect("a node that serves reads its state");
            let name = String::from_utf8_lossy(&kv.key).into_owned();
            let number: u64 = name.rsplit('/').next().unwrap().parse().unwrap();
            if number >= self.next.load(Ordering::SeqCst) || kv.value != value(number) {
                wrong.push(format!("{name} holds what was never written"));
            }
            found.insert(number);
        }
        let deleted = self.deleted.lock().unwrap();
        for number in self.put.lock().unwrap().iter() {
            match (found.contains(number), deleted.get(number)) {
                (false, None) => wrong.push(format!("{} is lost", key(*number))),
                (true, Some(true)) => wrong.push(format!("{} is back", key(*number))),
                _ => {}
            }
        }
        wrong
    }

    fn acknowledged(&self) -> usize {
        self.put.lock().unwrap().len()
    }
}

/// A cluster on disks that forget.
struct Trial {
    runtime: tokio::runtime::Runtime,
    cluster: Cluster,
    ledger: Arc<Ledger>,
    random: fastrand::Rng,
    lies: Option<&'static str>,
    /// How often the power went while a node started, and while it served.
    cuts: u64,
}

impl Trial {
    fn new(nodes: usize, seed: u64, lies: Option<&'static str>) -> Self {
        let mut cluster = Cluster::prepare(nodes);
        for node in &mut cluster.nodes {
            // The folder above is watched, so that the name of the data directory can be lost, too.
            node.data_dir = cluster
                .folder
                .path()
                .join(format!("disk-{}", node.name))
                .join("data");
            std::fs::create_dir_all(node.data_dir.parent().unwrap()).unwrap();
        }
        cluster.write_configs(&short_logs());
        Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            cluster,
            ledger: Arc::default(),
            random: fastrand::Rng::with_seed(seed),
            lies,
            cuts: 0,
        }
    }

    /// Gives the nodes power that goes at some change.
    fn set_cuts(&mut self) {
        for node in &mut self.cluster.nodes {
            // Half of them while a node starts.
            let least: f64 = [1.0, 400.0][self.random.usize(..2)];
            let cut = (least * (CHANGES_MAX / least).powf(self.random.f64())) as u64;
            let keep = match self.lies {
                None => [0, 0, 50, 90][self.random.usize(..4)],
                Some(_) => 0,
            };
            let root = node.data_dir.parent().unwrap().display().to_string();
            node.environment = vec![
                ("LD_PRELOAD", disk().to_owned()),
                ("POWER_ROOT", root),
                ("POWER_CUT", cut.to_string()),
                ("POWER_KEEP", keep.to_string()),
                ("POWER_SEED", self.random.u32(1..).to_string()),
            ];
            let lies = self.lies.map(|part| ("POWER_LIES", part.to_owned()));
            node.environment.extend(lies);
        }
    }

    /// Starts all nodes, writes, and comes back when each has lost its power once.
    fn live(&mut self) {
        self.set_cuts();
        self.cluster.start_all();
        let is_over = Arc::new(AtomicBool::new(false));
        let options = self.cluster.options().with_timeout(Duration::from_secs(2));
        let endpoints = self.cluster.endpoints();
        let (ledger, over) = (self.ledger.clone(), is_over.clone());
        let writing = async move {
            let client = loop {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                match Client::connect(endpoints.clone(), Some(options.clone())).await {
                    Ok(client) => break client,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            let mut writers = tokio::task::JoinSet::new();
            for _ in 0..WRITERS {
                let (client, ledger, over) = (client.clone(), ledger.clone(), over.clone());
                writers.spawn(async move { ledger.write(&client, &over).await });
            }
            writers.join_all().await;
        };
        let (counted, before) = (self.ledger.clone(), self.ledger.acknowledged());
        let lies = self.lies.is_some();
        let Self {
            runtime, cluster, ..
        } = self;
        let began = Instant::now();
        let cuts = std::thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut cuts = vec![false; cluster.nodes.len()];
                loop {
                    for (node, cut) in cluster.nodes.iter_mut().zip(&mut cuts) {
                        let process = node.process.as_mut().expect("it was started");
                        let Some(status) = process.try_wait().unwrap() else {
                            continue;
                        };
                        *cut = true;
                        // A disk that keeps its word gives no reason to refuse a start.
                        let text = node.log_text();
                        assert!(status.signal().is_some() || lies, "{status}\n{text}");
                    }
                    let alive = cuts.iter().filter(|cut| !**cut).count();
                    let written = counted.acknowledged() - before;
                    if alive * 2 <= cuts.len()
                        || written > LIFE_WRITES
                        || began.elapsed() > LIFE_MAX
                    {
                        break;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                for node in &mut cluster.nodes {
                    node.kill();
                }
                is_over.store(true, Ordering::SeqCst);
                cuts.iter().filter(|cut| **cut).count() as u64
            });
            runtime.block_on(writing);
            watching.join().unwrap()
        });
        self.cuts += cuts;
        for node in &self.cluster.nodes {
            let text = node.log_text();
            let panic = text
                .lines()
                .find(|line| line.contains("panicked") || line.contains("power: "));
            assert!(panic.is_none(), "{panic:?}\n{text}");
        }
    }

    /// Starts all nodes with power that stays, and compares each with what was promised.
    fn judge(&mut self) -> Vec<String> {
        for node in &mut self.cluster.nodes {
            node.environment.clear();
            std::fs::remove_file(&node.log).ok();
        }
        self.cluster.start_all();
        let refusal = eventually("a node that serves or refuses to", || {
            for node in &mut self.cluster.nodes {
                let process = node.process.as_mut().expect("it was started");
                if process.try_wait().unwrap().is_some() {
                    return Some(Some(node.log_text()));
                }
            }
            self.cluster.leader().map(|_| None)
        });
        if let Some(refusal) = refusal {
            return vec![format!("a node refuses to start: {refusal}")];
        }
        self.cluster.wait_until_settled();
        let mut wrong = Vec::new();
        for place in 0..self.cluster.nodes.len() {
            wrong.extend(self.runtime.block_on(async {
                let client = self.cluster.client_at(&[place]).await;
                let wrong = self.ledger.judge(&client).await;
                client.close().await;
                wrong
            }));
        }
        for node in &mut self.cluster.nodes {
            assert_eq!(node.stop(), 0);
        }
        wrong
    }
}

/// Cuts the power of one cluster of `nodes` so often, and says what was wrong in the end.
#[expect(clippy::print_stderr, reason = "a test says what it tried")]
fn lose_power(nodes: usize, cuts: u64, seed: u64, lies: Option<&'static str>) -> Vec<String> {
    let mut trial = Trial::new(nodes, seed, lies);
    let mut lives = 0;
    let mut wrong = Vec::new();
    let began = Instant::now();
    while (trial.cuts < cuts || trial.ledger.acknowledged() < WRITES_MIN) && wrong.is_empty() {
        assert!(
            began.elapsed() < 10 * PATIENCE,
            "too little was written between the cuts"
        );
        trial.live();
        lives += 1;
        // Not after each: what is lost must not hide behind what was lost before it.
        if lives % 4 == 0 {
            wrong = trial.judge();
        }
    }
    if wrong.is_empty() {
        wrong = trial.judge();
    }
    let acknowledged = trial.ledger.acknowledged();
    eprintln!(
        "{nodes} node(s), seed {seed}: {} cuts in {lives} lives, {acknowledged} writes acknowledged",
        trial.cuts
    );
    wrong
}

#[test]
fn power_lost_at_any_change_loses_nothing_that_was_acknowledged() {
    let (cuts, seed) = (setting("POWER_CUTS", 8), setting("POWER_SEED", 1));
    assert_eq!(lose_power(1, cuts, seed, None), [""; 0]);
}

#[test]
fn power_lost_by_all_three_nodes_loses_nothing_that_was_acknowledged() {
    let (cuts, seed) = (setting("POWER_CUTS", 8), setting("POWER_SEED", 1));
    assert_eq!(lose_power(3, cuts, seed, None), [""; 0]);
}

/// The judge judged: on a disk whose syncs do nothing, acknowledged writes are lost and seen to be; also where it lies
/// about the log alone.
#[test]
fn power_lost_on_a_disk_that_lies_is_noticed() {
    // A refusal for another reason notices nothing.
    let is_loss = |wrong: &String| {
        let losses = ["is lost", "is back", "damaged", "older copy"];
        losses.iter().any(|loss| wrong.contains(loss))
    };
    for lies in ["", "/log/"] {
        let mut trials = (1..=20).map(|seed| lose_power(1, 4, seed, Some(lies)));
        let noticed = trials.find(|wrong| wrong.iter().any(is_loss));
        eprintln!("{lies:?}: {noticed:?}");
        assert!(
            noticed.is_some(),
            "{lies:?}: nothing that was lost was missed in 20 trials"
        );
    }
}
