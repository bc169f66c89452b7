//! Damaged data directories by the thousand, and a real node started on each: it must notice, or it must
//! not matter. What is never right is another answer than before.
//!
//! ```text
//! cargo test --test cluster damage::                                  # some dozens
//! DAMAGE_DIRECTORIES=10000 DAMAGE_WORKERS=8 cargo test --release --test cluster damage:: -- --nocapture
//! ```
//!
//! The node is alone, so nobody can help it: a member of a larger cluster is healed by the others
//! (`bad_input.rs`), and this is the harder case. Its directory is one that was left in
//! order or by `kill -9`; one or two strokes are dealt to any of its files, by a seed. Then it may
//!
//! - refuse to start, with a sentence that names what is damaged;
//! - run in quarantine, which is to serve nothing, and say so;
//! - or serve: every key, at the present and at earlier revisions, has to be what it was.
//!
//! Anything else is a violation: another answer, an acknowledged write that is missing, a panic, an end
//! without a word, and no decision within a minute.

mod format;
mod harm;
mod manifests;
mod power;
mod report;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use harm::{Harm, Stroke, files};
use leasehold::api::{ErrorKind, KeyValue};
use leasehold::client::{Client, GetOptions};
use report::Report;

use crate::harness::{Cluster, PATIENCE, copy_folder, setting};

/// Writes before the older copy is taken, and after it.
const WRITES: u64 = 150;
/// For how long a machine may stand still while somebody connects.
const STANDS_STILL: Duration = Duration::from_secs(30);
/// Keys that are written.
const KEYS: u64 = 40;
/// Earlier revisions that are read again, one in so many.
const EVERY: u64 = 37;
/// Between two looks at a node that starts.
const LOOK: Duration = Duration::from_millis(5);
/// Timings of a node that need not wait for anybody.
const TIMINGS: &str = "[raft]\nheartbeat_interval = \"20ms\"\nelection_timeout_min = \"220ms\"\n\
    election_timeout_max = \"400ms\"\nstep_down_after = \"300ms\"\n\
    [leader_lease]\nduration = \"200ms\"\nmax_clock_skew = \"20ms\"\n";

/// What became of a start.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It did not start, and said why.
    Refused,
    /// It ended later, and said why.
    Ended,
    /// It runs, serves nothing, and says why.
    Quarantined,
    /// It found the damage, mended it, and serves what it did.
    Mended,
    /// It serves what it did.
    Harmless,
    /// It did what it must not.
    Wrong(String),
}

/// Every key as of some revisions; 0 is the present.
type Memory = BTreeMap<i64, Vec<KeyValue>>;

/// One node, its directories as they were left, and what it has to remember.
struct Subject {
    runtime: tokio::runtime::Runtime,
    cluster: Cluster,
    older: PathBuf,
    /// As it was left in order, and by `kill -9`.
    left: [(PathBuf, Memory); 2],
}

impl Subject {
    fn prepare() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut cluster = Cluster::prepare(1);
        cluster.write_configs(TIMINGS);
        let copy = |name: &str| cluster.folder.path().join(name);
        let (older, in_order, killed) = (copy("older"), copy("in-order"), copy("killed"));
        let data_dir = cluster.nodes[0].data_dir.clone();
        cluster.start_and_settle();
        runtime.block_on(write(&cluster, 0));
        assert_eq!(cluster.nodes[0].stop(), 0);
        copy_folder(&data_dir, &older);
        cluster.start_and_settle();
        runtime.block_on(write(&cluster, WRITES));
        let memory = runtime.block_on(remember(&cluster)).unwrap();
        assert_eq!(cluster.nodes[0].stop(), 0);
        copy_folder(&data_dir, &in_order);
        cluster.start_and_settle();
        runtime.block_on(write(&cluster, 2 * WRITES));
        let memory_killed = runtime.block_on(remember(&cluster)).unwrap();
        cluster.nodes[0].kill();
        copy_folder(&data_dir, &killed);
        Self {
            runtime,
            cluster,
            older,
            left: [(in_order, memory), (killed, memory_killed)],
        }
    }

    /// Damages a copy of what was left, starts a node on it, and tells what came of it.
    fn trial(&mut self, seed: u64) -> (Vec<Harm>, Outcome) {
        let mut random = fastrand::Rng::with_seed(seed);
        let which = random.usize(..2);
        let older = self.older.clone();
        self.start_on(which, |data_dir| damage(data_dir, &older, &mut random))
    }

    /// The same for the damage that is given.
    fn start_on<T>(&mut self, which: usize, harm: impl FnOnce(&Path) -> T) -> (T, Outcome) {
        let (left, memory) = self.left[which].clone();
        let data_dir = self.cluster.nodes[0].data_dir.clone();
        let _ = fs::remove_dir_all(&data_dir);
        copy_folder(&left, &data_dir);
        let harms = harm(&data_dir);
        let node = &mut self.cluster.nodes[0];
        let _ = fs::remove_file(&node.log);
        node.start();
        let outcome = match self.decide() {
            Some(outcome) => outcome,
            None => {
                let remembered = self.runtime.block_on(remember_all(&self.cluster, &memory));
                self.judge(&memory, remembered)
            }
        };
        self.cluster.nodes[0].kill();
        let text = self.cluster.nodes[0].log_text();
        let outcome = match text.lines().find(|line| line.contains("panicked")) {
            Some(line) if !text.contains("the storage engine") => {
                Outcome::Wrong(format!("{line}\n{text}"))
            }
            _ => outcome,
        };
        (harms, outcome)
    }

    /// Waits until the node has ended, says that it is damaged and serves nothing, or serves (`None`).
    fn decide(&mut self) -> Option<Outcome> {
        let started = Instant::now();
        loop {
            let node = &mut self.cluster.nodes[0];
            let process = node.process.as_mut().expect("it was started");
            if let Some(status) = process.try_wait().unwrap() {
                node.process = None;
                let text = node.log_text();
                let said = status.code().is_some_and(|code| code != 0) && !text.trim().is_empty();
                return Some(match said {
                    true if text.contains("started;") => Outcome::Ended,
                    true => Outcome::Refused,
                    false => Outcome::Wrong(format!("ended with {status} and said:\n{text}")),
                });
            }
            let status = node.status().unwrap_or_default();
            if status["leader_lease"]["is_valid"] == true {
                return None;
            }
            if status["role"] == "quarantined" && node.log_text().contains("damaged") {
                return Some(Outcome::Quarantined);
            }
            if started.elapsed() > PATIENCE {
                let text = node.log_text();
                return Some(Outcome::Wrong(format!(
                    "undecided after {PATIENCE:?}:\n{text}"
                )));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn judge(&self, memory: &Memory, remembered: Result<Memory, String>) -> Outcome {
        let text = self.cluster.nodes[0].log_text();
        let noticed = text.contains("damaged");
        match remembered {
            Ok(remembered) if remembered == *memory && noticed => Outcome::Mended,
            Ok(remembered) if remembered == *memory => Outcome::Harmless,
            Ok(remembered) => {
                let at = memory
                    .iter()
                    .find(|(at, kvs)| remembered.get(at) != Some(kvs));
                let (at, kvs) = at.expect("they differ");
                let found = &remembered[at];
                let differs: Vec<_> = kvs.iter().filter(|kv| !found.contains(kv)).collect();
                Outcome::Wrong(format!(
                    "as of revision {at} it shows {} keys instead of {}; missing or different: \
                     {differs:?}\n{text}",
                    found.len(),
                    kvs.len()
                ))
            }
            // It may have come upon the damage only now.
            Err(error) => match text.contains("damaged") || text.contains("corrupt") {
                true => Outcome::Ended,
                false => Outcome::Wrong(format!("it serves, and then: {error}\n{text}")),
            },
        }
    }
}

/// A client of a node that may have ended, for a good reason.
async fn client(cluster: &Cluster) -> Result<Client, leasehold::api::Error> {
    let began = Instant::now();
    loop {
        match Client::connect(cluster.endpoints(), Some(cluster.options())).await {
            // A machine may stand still for longer than a handshake may take.
            Err(error)
                if error.kind == ErrorKind::DeadlineExceeded && began.elapsed() < STANDS_STILL => {}
            connected => return connected,
        }
    }
}

/// Writes keys over and over, and deletes some.
async fn write(cluster: &Cluster, from: u64) {
    let options = cluster.options().with_timeout(PATIENCE);
    let client = cluster.client_with(options).await;
    for number in from..from + WRITES {
        let key = format!("key/{:02}", number % KEYS);
        let value = format!("{number} ").repeat(usize::try_from(number % 300).unwrap());
        client.put(&key, value, None).await.unwrap();
        if number % 11 == 0 {
            client.delete(&key, None).await.unwrap();
        }
    }
    client.close().await;
}

/// Everything that there is to know, now and at some earlier revisions.
async fn remember(cluster: &Cluster) -> Result<Memory, String> {
    let client = client(cluster).await.map_err(|error| error.to_string())?;
    let now = client
        .get("key/", Some(GetOptions::new().with_prefix()))
        .await;
    let now = now.map_err(|error| error.to_string())?;
    let last = u64::try_from(now.header.revision).unwrap();
    let mut memory = Memory::from([(0, now.kvs)]);
    for revision in (1..=last).step_by(usize::try_from(EVERY).unwrap()) {
        memory.insert(i64::try_from(revision).unwrap(), Vec::new());
    }
    client.close().await;
    remember_all(cluster, &memory).await
}

/// Everything as of the same revisions as `memory`.
async fn remember_all(cluster: &Cluster, memory: &Memory) -> Result<Memory, String> {
    let client = client(cluster).await.map_err(|error| error.to_string())?;
    let mut found = Memory::new();
    for revision in memory.keys() {
        let options = GetOptions::new().with_prefix().with_revision(*revision);
        let got = client.get("key/", Some(options)).await;
        let got = got.map_err(|error| format!("as of revision {revision}: {error}"))?;
        found.insert(*revision, got.kvs);
    }
    client.close().await;
    Ok(found)
}

/// Deals one stroke or two.
fn damage(data_dir: &Path, older: &Path, random: &mut fastrand::Rng) -> Vec<Harm> {
    let mut harms = Vec::new();
    let strokes = 1 + usize::from(random.u8(..4) == 0);
    let candidates: Vec<PathBuf> = files(data_dir);
    while harms.len() < strokes {
        let file = candidates[random.usize(..candidates.len())].clone();
        let stroke = Stroke::ALL[random.usize(..Stroke::ALL.len())];
        let target = data_dir.join(&file);
        if target.exists() && stroke.deal(&target, Some(&older.join(&file)), random) {
            harms.push(Harm { stroke, file });
        }
    }
    harms
}

#[test]
fn damage_is_noticed_or_does_not_matter() {
    let directories = setting("DAMAGE_DIRECTORIES", 36);
    let workers = setting("DAMAGE_WORKERS", 4);
    let first = setting("DAMAGE_SEED", 1);
    let next = AtomicU64::new(first);
    let report = Mutex::new(Report::new(directories));
    let wrong: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let mut subject = Subject::prepare();
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= first + directories {
                        return;
                    }
                    let (harms, outcome) = subject.trial(seed);
                    let word = report.lock().unwrap().count(&harms, &outcome);
                    if let Some(word) = word {
                        eprintln!("{word}");
                    }
                    if let Outcome::Wrong(how) = outcome {
                        let harms: Vec<String> = harms.iter().map(Harm::to_string).collect();
                        let how = format!("seed {seed}, {}: {how}", harms.join(" and "));
                        eprintln!("WRONG {how}");
                        wrong.lock().unwrap().push(how);
                    }
                }
            });
        }
    });
    let report = report.into_inner().unwrap();
    eprintln!("{}", report.tables());
    let wrong = wrong.into_inner().unwrap();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert_eq!(report.counted(), directories);
}
