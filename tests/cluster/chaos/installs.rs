//! A follower that is too far behind is sent the whole state, and somebody is killed at a step of it:
//! whoever receives, when it is about to do something that lasts (make a folder durable or a file,
//! rename it, remove it); or whoever sends.
//!
//! ```text
//! cargo test --test cluster chaos::installs                                        # a sample
//! INSTALL_KILLS=0 cargo test --test cluster chaos::installs -- --nocapture         # every step
//! INSTALL_KILLS=40 INSTALL_FIRST=7 cargo test --test cluster chaos::installs       # so many, beginning elsewhere
//! ```
//!
//! The steps are those of a run in which nobody is killed. `strace` holds each such call of the
//! receiver up for a moment and tells of it before it is made, so that a kill comes between two of
//! them. Then the one that was killed is started again, and
//!
//! - it catches up, and its state is equal to the others', as they themselves compare them;
//! - it shows everything that was acknowledged, whatever it was that it had to do for that;
//! - nothing that was half done is left, and nothing of it is taken for damage.

use std::collections::BTreeMap;
use std::fs;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::api::Consistency;
use leasehold::client::{Client, GetOptions};

use crate::chaos::load::insist;
use crate::chaos::tools::{Tools, left_out};
use crate::harness::{Cluster, Node, PATIENCE, binary, eventually, setting};

/// Logs are so short that whoever misses some entries is sent the state, which takes a while.
const SHORT_LOGS: &str = "[raft]\nsnapshot_entries = 40\nsnapshot_catchup_entries = 10\n\
    snapshot_send_rate = \"12MiB\"\n";
/// Calls after which something lasts.
const CALLS: &str = "fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat";
/// How long each of them is held up.
const HELD_UP: Duration = Duration::from_millis(10);
/// Between two looks at what the tracer tells.
const LOOK: Duration = Duration::from_micros(500);
/// Values that make the state large: more than the receiver writes in one go.
const LARGE: usize = 44;
const LARGE_BYTES: usize = 128 << 10;
/// Keys that are written over and over.
const SMALL: u64 = 50;
/// Entries that a follower may hold beyond those that its leader has applied.
const UNDER_WAY: f64 = 20.0;
/// How often a follower is left behind anew that needed no state.
const TRIES: usize = 5;

const APPLIED: &str = "leasehold_raft_applied_index";
const FIRST: &str = "leasehold_raft_log_first_index";
const WITHOUT_STATE: &str = "leasehold_raft_without_state";
const RECEIVED: &str = "leasehold_raft_snapshot_received_total{result=\"ok\"}";
const RECEIVED_BYTES: &str = "leasehold_raft_snapshot_received_bytes_total";
const AGREED: &str = "leasehold_storage_hash_checks_total{result=\"ok\"}";
const ALARM: &str = "leasehold_alarms{type=\"corrupt\"}";

/// A call of the receiver: what it does to what, and how many like it came before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    kind: String,
    before: usize,
}

/// When somebody is killed.
#[derive(Clone, Debug)]
enum Moment {
    /// When the receiver is about to make this call.
    Before(Step),
    /// When so many bytes have come to the receiver.
    Received(f64),
}

/// What became of a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    /// It is there.
    Came,
    /// The state is in use without one.
    Missed,
    /// No state was needed: the log went on where the receiver's ends, since another leads now.
    ByLog,
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Receiver,
    Sender,
}

/// What the tracer of a process tells.
struct Trace {
    file: File,
    text: String,
    /// What of the text is read already.
    read: usize,
    steps: Vec<Step>,
    seen: BTreeMap<String, usize>,
    /// Left out of what is told.
    data_dir: String,
}

impl Trace {
    /// Starts `node` under the eyes of `strace`.
    fn start(node: &mut Node, strace: &Path) -> Self {
        assert!(node.process.is_none(), "{} runs already", node.name);
        let path = node.config.with_extension("trace");
        let file = File::create(&path).unwrap();
        drop(file);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&node.log)
            .unwrap();
        let inject = format!("inject={CALLS}:delay_enter={}", HELD_UP.as_micros());
        // The tracer is nobody's child, so that the process of the node is ours.
        let child = Command::new(strace)
            .args([
                "-D",
                "-f",
                "-qq",
                "-y",
                "--seccomp-bpf",
                "-e",
                "signal=none",
            ])
            .args(["-o", path.to_str().unwrap()])
            .args(["-e", &format!("trace={CALLS}"), "-e", &inject])
            .arg(binary())
            .args(["serve", "--config", node.config.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("strace runs");
        node.process = Some(child);
        Self {
            file: File::open(&path).unwrap(),
            text: String::new(),
            read: 0,
            steps: Vec::new(),
            seen: BTreeMap::new(),
            data_dir: node.data_dir.to_str().unwrap().to_owned(),
        }
    }

    /// Reads what was told since. A call is told of when it is about to be made, in a line that may
    /// end much later.
    fn look(&mut self) {
        let mut more = Vec::new();
        self.file.read_to_end(&mut more).unwrap();
        self.text.push_str(&String::from_utf8_lossy(&more));
        loop {
            let rest = &self.text[self.read..];
            let (line, is_whole) = match rest.split_once('\n') {
                Some((line, _)) => (line, true),
                None => (rest, false),
            };
            let line_bytes = line.len();
            // An unfinished line is a call that is held up: the tracer writes its beginning in one piece,
            // and what comes of it is no call.
            let call = line.split_once(' ').map(|(_, call)| call.trim_start());
            let kind = call.and_then(|call| kind(call, &self.data_dir));
            if !is_whole && kind.is_none() {
                return;
            }
            if let Some(kind) = kind {
                let before = self.seen.entry(kind.clone()).or_default();
                let step = Step {
                    kind,
                    before: *before,
                };
                *before += 1;
                self.steps.push(step);
            }
            self.read += line_bytes + usize::from(is_whole);
            if !is_whole {
                return;
            }
        }
    }
}

/// What a line of the tracer says is about to be done: the call, and to what, without numbers. Nothing,
/// if it is the end of a call or no call.
fn kind(call: &str, data_dir: &str) -> Option<String> {
    let (name, arguments) = call.split_once('(')?;
    if !CALLS.split(',').any(|known| known == name) {
        return None;
    }
    let mut places = Vec::new();
    // Paths stand in quotes, or in angle brackets after the number of an open file.
    for (open, close) in [('<', '>'), ('"', '"')] {
        let mut rest = arguments;
        while let Some((_, after)) = rest.split_once(open) {
            let Some((path, after)) = after.split_once(close) else {
                break;
            };
            rest = after;
            if let Some(place) = path.strip_prefix(data_dir) {
                places.push(place.trim_start_matches('/').to_owned());
            } else if !path.starts_with('/') && !path.contains("unfinished") {
                places.push(path.to_owned());
            }
        }
    }
    // Names that are drawn are other ones in each run.
    for place in &mut places {
        if let Some(at) = place.find(".tmp") {
            place.truncate(at + ".tmp".len());
        }
    }
    let text = format!("{name} {}", places.join(" "));
    let mut plain: String = text
        .chars()
        .map(|c| if c.is_ascii_digit() { '#' } else { c })
        .collect();
    while plain.contains("##") {
        plain = plain.replace("##", "#");
    }
    Some(plain)
}

/// Somebody who writes all the time, and what was acknowledged.
struct Writer {
    acknowledged: Arc<Mutex<BTreeMap<String, u64>>>,
    stop: Arc<AtomicBool>,
    rests: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Writer {
    fn start(client: Client) -> Self {
        let acknowledged: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let rests: Arc<AtomicBool> = Arc::default();
        let (book, over, idle) = (acknowledged.clone(), stop.clone(), rests.clone());
        let task = tokio::spawn(async move {
            let mut number = 0;
            while !over.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(4)).await;
                if idle.load(Ordering::SeqCst) {
                    continue;
                }
                number += 1;
                let key = format!("small/{:03}", number % SMALL);
                // Of one that fails nothing is known, and nothing is claimed.
                if client.put(&key, number.to_string(), None).await.is_ok() {
                    book.lock().unwrap().insert(key, number);
                }
            }
        });
        Self {
            acknowledged,
            stop,
            rests,
            task,
        }
    }

    fn acknowledged(&self) -> BTreeMap<String, u64> {
        self.acknowledged.lock().unwrap().clone()
    }
}

/// A cluster, one member of which is behind again and again.
struct Trials {
    cluster: Cluster,
    strace: PathBuf,
    writer: Writer,
    /// Bytes of a whole state, as the receiver counts them.
    state_bytes: f64,
    killed_in_time: u64,
    killed: u64,
    never_came: Vec<String>,
}

fn large(number: usize) -> String {
    let mut text = format!("{number};");
    while text.len() < LARGE_BYTES {
        text.push_str(&text.clone());
    }
    text.truncate(LARGE_BYTES);
    text
}

impl Trials {
    async fn begin(strace: PathBuf) -> Self {
        let mut cluster = Cluster::prepare(3);
        cluster.write_configs(SHORT_LOGS);
        for node in &cluster.nodes {
            let text = fs::read_to_string(&node.config).unwrap();
            let often = "[storage]\ncorruption_check_interval = \"200ms\"\n";
            fs::write(&node.config, text.replace("[storage]\n", often)).unwrap();
        }
        cluster.start_and_settle();
        let client = cluster.client().await;
        for number in 0..LARGE {
            let key = format!("large/{number:03}");
            client.put(key, large(number), None).await.unwrap();
        }
        let writer = Writer::start(client);
        Self {
            cluster,
            strace,
            writer,
            state_bytes: f64::INFINITY,
            killed_in_time: 0,
            killed: 0,
            never_came: Vec::new(),
        }
    }

    /// Stops a follower until the log has gone on without it. Returns it, the leader, and where the
    /// leader's log begins.
    fn leave_one_behind(&mut self) -> (usize, usize, f64) {
        let leader = self.cluster.wait_until_settled();
        let behind = (leader + 1) % 3;
        let node = &mut self.cluster.nodes[behind];
        // One time so, and one time so.
        match self.killed % 2 {
            0 => node.kill(),
            _ => assert_eq!(node.stop(), 0),
        }
        let had = self.cluster.nodes[leader].metric(APPLIED);
        self.writer.rests.store(false, Ordering::SeqCst);
        let (leader, first) = eventually(
            "the leader's log begins after what the follower has",
            || {
                let leader = self.cluster.leader()?;
                let first = self.cluster.nodes[leader].metric_if_any(FIRST)?;
                (first > had + UNDER_WAY).then_some((leader, first))
            },
        );
        (behind, leader, first)
    }

    /// Whether a receiver has what came before `first` without having put a state to use.
    fn came_by_log(node: &Node, first: f64) -> bool {
        // Which state is in use is written down before the node shows how far that one is.
        node.metric_if_any(APPLIED)
            .is_some_and(|applied| applied >= first)
            && !node.data_dir.join("state.current").exists()
    }

    /// What a receiver does that nobody disturbs, from the first sign of a state that comes in.
    fn undisturbed(&mut self) -> Vec<Step> {
        for _ in 0..TRIES {
            let (behind, _, first) = self.leave_one_behind();
            let trace = Trace::start(&mut self.cluster.nodes[behind], &self.strace);
            let node = &self.cluster.nodes[behind];
            let is_sent = eventually("the state is in use, and the one before it gone", || {
                if Self::came_by_log(node, first) {
                    return Some(false);
                }
                let received = node.metric_if_any(RECEIVED)? > 0.0;
                let old = node.data_dir.join("state").exists();
                (received && !old).then_some(true)
            });
            if is_sent {
                return self.steps_of(behind, trace);
            }
            eprintln!("no state was needed: the log sufficed");
        }
        panic!("no state was needed by a follower that was left behind, {TRIES} times");
    }

    /// What a receiver did from the first sign of the state that has come in.
    fn steps_of(&mut self, behind: usize, mut trace: Trace) -> Vec<Step> {
        let node = &self.cluster.nodes[behind];
        trace.look();
        self.state_bytes = node.metric(RECEIVED_BYTES);
        let is_incoming = |step: &Step| step.kind.contains("state-");
        let first = trace.steps.iter().position(is_incoming).unwrap();
        trace.steps.split_off(first)
    }

    /// One trial. False if its moment did not come: nobody was killed at it then, but later.
    async fn kill(&mut self, who: Who, moment: &Moment) -> bool {
        let mut tries = 0;
        let (behind, leader, mut trace, found) = loop {
            let (behind, leader, first) = self.leave_one_behind();
            let mut trace = Trace::start(&mut self.cluster.nodes[behind], &self.strace);
            match self.wait_for(&mut trace, behind, first, moment) {
                Waited::ByLog => tries += 1,
                waited => break (behind, leader, trace, waited == Waited::Came),
            }
            assert!(tries < TRIES, "no state was needed, {TRIES} times");
        };
        let victim = match who {
            Who::Receiver => behind,
            Who::Sender => leader,
        };
        let began_before = trace.steps.len();
        self.cluster.nodes[victim].kill();
        match found {
            false => self.never_came.push(format!("{who:?} {moment:?}")),
            true => {
                self.killed += 1;
                trace.look();
                self.killed_in_time += u64::from(trace.steps.len() == began_before);
            }
        }
        self.cluster.nodes[victim].start();
        self.is_whole(behind, &format!("{who:?} {moment:?}")).await;
        self.change_leaders();
        found
    }

    /// A leader keeps its log for a minute for whom it has sent a state: the next one must not. While
    /// it is away nobody writes, or it would be sent one, too.
    fn change_leaders(&mut self) {
        self.writer.rests.store(true, Ordering::SeqCst);
        let leader = self.cluster.wait_until_settled();
        self.catch_up(leader);
        assert_eq!(self.cluster.nodes[leader].stop(), 0);
        self.cluster.nodes[leader].start();
        let next = self.cluster.wait_until_settled();
        self.catch_up(next);
    }

    /// Waits until all have what the leader has by now.
    fn catch_up(&self, leader: usize) {
        let wanted = self.cluster.nodes[leader].metric(APPLIED);
        for node in &self.cluster.nodes {
            eventually("all have the same", || {
                (node.metric_if_any(APPLIED)? >= wanted).then_some(())
            });
        }
    }

    /// Waits for the moment. The leader's log begins at `first`.
    fn wait_for(
        &mut self,
        trace: &mut Trace,
        behind: usize,
        first: f64,
        moment: &Moment,
    ) -> Waited {
        let node = &mut self.cluster.nodes[behind];
        let started = Instant::now();
        let mut asked = Instant::now();
        let mut at = 0;
        loop {
            trace.look();
            if let Moment::Before(wanted) = moment {
                if trace.steps[at..].contains(wanted) {
                    return Waited::Came;
                }
                at = trace.steps.len();
            }
            let exited = node.process.as_mut().unwrap().try_wait().unwrap();
            assert!(exited.is_none(), "it ended by itself:\n{}", node.log_text());
            let often = match moment {
                Moment::Before(_) => 100,
                Moment::Received(_) => 2,
            };
            if asked.elapsed() > Duration::from_millis(often) {
                if let Moment::Received(share) = moment
                    && node
                        .metric_if_any(RECEIVED_BYTES)
                        .is_some_and(|b| b >= share * self.state_bytes)
                {
                    return Waited::Came;
                }
                if Self::came_by_log(node, first) {
                    return Waited::ByLog;
                }
                let installed = node
                    .metric_if_any(RECEIVED)
                    .is_some_and(|received| received > 0.0)
                    && !node.data_dir.join("state").exists();
                if installed {
                    return Waited::Missed;
                }
                asked = Instant::now();
            }
            assert!(
                started.elapsed() < PATIENCE,
                "neither {moment:?} nor the state came"
            );
            std::thread::sleep(LOOK);
        }
    }

    /// The member catches up, shows what was acknowledged, and agrees with the others.
    async fn is_whole(&self, number: usize, after: &str) {
        let node = &self.cluster.nodes[number];
        let acknowledged = self.writer.acknowledged();
        let wanted = eventually("a leader that says how far it is", || {
            self.cluster.nodes[self.cluster.leader()?].metric_if_any(APPLIED)
        });
        eventually(&format!("{} catches up after {after}", node.name), || {
            let there =
                node.metric_if_any(APPLIED)? >= wanted && node.metric_if_any(WITHOUT_STATE)? == 0.0;
            there.then_some(())
        });
        let agreed = node.metric(AGREED);
        let endpoint = [node.client.to_string()];
        let options = self.cluster.options().with_timeout(PATIENCE);
        let connect = || Client::connect(endpoint.clone(), Some(options.clone()));
        let client = insist(connect).await;
        let own = GetOptions::new().with_consistency(Consistency::Serializable);
        let all = client.get("small/", Some(own.clone().with_prefix())).await;
        let all: BTreeMap<String, u64> = all.unwrap().kvs.into_iter().map(small).collect();
        for (key, number) in &acknowledged {
            let shown = all.get(key).copied();
            assert!(
                shown >= Some(*number),
                "{after}: {key} is {shown:?}, and was {number}"
            );
        }
        for number in 0..LARGE {
            let key = format!("large/{number:03}");
            let got = client.get(key, Some(own.clone())).await.unwrap();
            assert!(
                got.value().unwrap() == large(number).as_str(),
                "{after}: large/{number}"
            );
        }
        client.close().await;
        eventually(&format!("its state is compared after {after}"), || {
            (node.metric_if_any(AGREED)? > agreed + 1.0).then_some(())
        });
        for node in &self.cluster.nodes {
            assert!(
                node.metric_if_any(ALARM).is_none_or(|alarm| alarm == 0.0),
                "{after}: {}",
                node.name
            );
            let text = node.log_text();
            let mut lines = text.lines();
            let bad = lines.find(|line| line.contains("panicked") || line.contains("damaged"));
            assert_eq!(bad, None, "{after}: {}", node.name);
        }
        eventually(&format!("what is not used is gone after {after}"), || {
            let entries = fs::read_dir(&node.data_dir).unwrap().flatten();
            let names = entries.map(|entry| entry.file_name().into_string().unwrap());
            let states = names.filter(|name| name == "state" || name.starts_with("state-"));
            (states.count() == 1).then_some(())
        });
    }
}

fn small(kv: leasehold::api::KeyValue) -> (String, u64) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&kv.key), text(&kv.value).parse().unwrap())
}

/// `count` of `steps`, with those among them that are turning points; all of them for 0.
fn sample(steps: &[Step], count: usize, first: usize) -> Vec<Step> {
    if count == 0 || count >= steps.len() {
        return steps.to_vec();
    }
    let is_turn = |step: &&Step| step.kind.starts_with("rename ") && step.kind.contains("state");
    // The last ones first: which state is in use, and before that which one has come whole.
    let turns = steps.iter().rev().filter(is_turn);
    let mut chosen: Vec<Step> = turns.take(count).cloned().collect();
    let stride = steps.len() / count;
    let spread = steps
        .iter()
        .cycle()
        .skip(first + stride / 2)
        .step_by(stride.max(1));
    for step in spread.take(steps.len()) {
        if chosen.len() >= count {
            break;
        }
        if !chosen.contains(step) {
            chosen.push(step.clone());
        }
    }
    chosen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_step_of_sending_or_installing_a_state_is_harmless() {
    let Some(strace) = Tools::find().strace else {
        return left_out("kills at each step of a state that is installed: needs strace");
    };
    let count = usize::try_from(setting("INSTALL_KILLS", 3)).unwrap();
    let first = usize::try_from(setting("INSTALL_FIRST", 0)).unwrap();
    let began = Instant::now();
    let mut trials = Trials::begin(strace).await;
    let steps = trials.undisturbed();
    eprintln!("{} steps, {:?}", steps.len(), began.elapsed());
    trials.change_leaders();
    let mut deeds: Vec<(Who, Moment)> = vec![
        (Who::Receiver, Moment::Received(0.5)),
        (Who::Sender, Moment::Received(0.5)),
    ];
    if count == 0 {
        deeds.push((Who::Sender, Moment::Received(0.0)));
        deeds.push((Who::Sender, Moment::Received(1.0)));
        let turns = steps.iter().filter(|step| step.kind.starts_with("rename"));
        deeds.extend(turns.map(|step| (Who::Sender, Moment::Before(step.clone()))));
    }
    let sampled = sample(&steps, count, first).into_iter();
    deeds.extend(sampled.map(|step| (Who::Receiver, Moment::Before(step))));
    for (who, moment) in &deeds {
        let began = Instant::now();
        let what = match trials.kill(*who, moment).await {
            true => "harmless",
            false => "did not come",
        };
        eprintln!("{who:?} {moment:?}: {what}, {:?}", began.elapsed());
    }
    trials.cluster.wait_until_settled();
    trials.writer.stop.store(true, Ordering::SeqCst);
    for number in 0..3 {
        trials.is_whole(number, "all of it").await;
    }
    eprintln!(
        "{} kills, {} of them before anything else lasted; {} moments did not come: {:?}; {:?}",
        trials.killed,
        trials.killed_in_time,
        trials.never_came.len(),
        trials.never_came,
        began.elapsed()
    );
    assert!(trials.killed > 0, "nothing was shown");
    trials.writer.task.await.unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_tracer_is_a_step_by_what_it_does_to_what() {
        let told = |line: &str| kind(line, "/tmp/x/n2");
        assert_eq!(
            told("fsync(31</tmp/x/n2/state-14/received.new>"),
            Some("fsync state-#/received.new".to_owned())
        );
        assert_eq!(
            told(r#"rename("/tmp/x/n2/state.current.new", "/tmp/x/n2/state.current") = 0"#),
            Some("rename state.current.new state.current".to_owned())
        );
        assert_eq!(
            told(r#"unlinkat(7</tmp/x/n2/state-1/keyspaces>, "3", 0 <unfinished ...>"#),
            Some("unlinkat state-#/keyspaces #".to_owned())
        );
        assert_eq!(
            told(r#"renameat(AT_FDCWD</>, "/tmp/x/n2/a/.tmpQv7nR2", AT_FDCWD</>, "/tmp/x/n2/a/b""#),
            Some("renameat a/.tmp a/b".to_owned())
        );
        assert_eq!(told("<... fsync resumed>) = 0 (DELAYED)"), None);
        assert_eq!(told("+++ killed by SIGKILL +++"), None);
    }

    #[test]
    fn a_sample_has_the_turning_points_and_is_spread() {
        let kinds = [
            "mkdir state-#",
            "fsync a",
            "rename state-#/received.new",
            "fsync b",
            "fsync c",
        ];
        let steps: Vec<Step> = kinds
            .iter()
            .map(|kind| Step {
                kind: (*kind).to_owned(),
                before: 0,
            })
            .collect();
        assert_eq!(sample(&steps, 0, 0), steps);
        let three = sample(&steps, 3, 0);
        assert_eq!(three.len(), 3);
        assert!(three.contains(&steps[2]));
    }
}
