//! The nodes: processes with disks and clocks of their own, wires between them, and what is done to
//! them.
//!
//! A node's disk is a small file system in a file, so that it can be filled; its syncs are slowed and
//! failed by `strace`; its clock on the wall is moved by `libfaketime`; at every start its other
//! clocks begin elsewhere, in a time namespace; and they are made to run wrong while it runs
//! ([`crate::monitoring::clocks`]). What of these cannot be had here is left out ([`crate::chaos::tools`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::chaos::partitions::Net;
use crate::chaos::schedule::{Event, Fault, ReadLeases, Whom};
use crate::chaos::tools::{Disk, Tools, clean_up_after, left_out, let_go};
use crate::chaos::wires::Wires;
use crate::harness::{Cluster, Node, PATIENCE, binary, free_port, without_settings};
use crate::monitoring::clocks::Clocks;

/// How long after a fault of its disk a node may still end by it.
const DISK_GRACE: Duration = Duration::from_secs(20);
/// Logs are cut so often that who was away for a while is sent the whole state.
const CUTS: &str = "[raft]\nsnapshot_entries = 2000\nsnapshot_catchup_entries = 200\n";
/// Lines of a node's log that are shown when something is wrong.
const TAIL: usize = 40;
/// The size of a node's disk.
const DISK_BYTES: u64 = 768 << 20;
/// How far apart the clocks of two starts may be, in seconds.
const CLOCKS_APART: u64 = 10 * 86_400;

/// What is being done to the process of a node. One thing at a time.
#[derive(Debug)]
enum Affliction {
    Down,
    Paused,
    /// Its system calls are tampered with.
    Traced(Child),
    Full,
}

/// When what cannot be ended now is tried to be ended again.
const LATER: Duration = Duration::from_millis(500);

/// One node, beyond its process.
#[derive(Default)]
struct Member {
    affliction: Option<Affliction>,
    disk: Option<Disk>,
    /// Until when it may end by itself.
    may_end_until: Option<Instant>,
    /// Where its clock on the wall is told.
    wall_clock: PathBuf,
    /// Its port for etcd's clients.
    etcd: Option<SocketAddr>,
    /// The other clocks of this process.
    clocks: Option<(u32, Clocks)>,
}

/// A fault that is going on.
struct Active {
    fault: Fault,
    /// Whom it befell.
    node: usize,
    began: Instant,
    until: Instant,
}

/// How a process ended by itself.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Whose.
    pub(crate) number: usize,
    pub(crate) code: Option<i32>,
    /// What it said last.
    pub(crate) tail: String,
}

/// What was done in all.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Faults that were done, by name, and those that were not: the node had another at the time, or
    /// they cannot be done here.
    pub(crate) faults: BTreeMap<&'static str, (u64, u64)>,
    /// Processes that ended because of their disk.
    pub(crate) ended_by_disk: Vec<Ending>,
    /// Processes that were started.
    pub(crate) starts: u64,
}

/// Writes every node's configuration.
fn write_configs(cluster: &Cluster, read_leases: &ReadLeases) {
    let initial = cluster.initial();
    for place in 0..cluster.nodes.len() {
        let more = format!("{CUTS}{}", read_leases.settings(place));
        cluster.write_config(place, &initial, &more);
    }
}

/// All nodes.
pub(crate) struct Fleet {
    // Before the cluster: disks go before the folder that they are mounted in.
    members: Vec<Member>,
    pub(crate) cluster: Cluster,
    pub(crate) wires: Wires,
    /// Where the nodes run, if each has a network of its own.
    pub(crate) net: Option<Net>,
    pub(crate) read_leases: ReadLeases,
    pub(crate) deeds: Deeds,
    active: Vec<Active>,
    tools: Tools,
    random: fastrand::Rng,
    violations: Vec<String>,
    /// All that were ever started.
    processes: Vec<u32>,
    _turn: SemaphorePermit<'static>,
}

/// Fleets that run at a time. The clients of one use more than a processor: more of them would only keep each other,
/// and all other tests, waiting.
static TURNS: Semaphore = Semaphore::const_new(2);

/// Waits until there are fewer.
fn turn() -> SemaphorePermit<'static> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let turn = runtime.unwrap().block_on(TURNS.acquire());
    turn.expect("nothing closes it")
}

impl Fleet {
    /// Prepares `nodes` nodes, on disks and wires of their own, and starts them.
    pub(crate) fn start(nodes: usize, seed: u64) -> Self {
        Self::start_with(nodes, seed, &ReadLeases::nowhere(nodes))
    }

    /// The same with read leases.
    pub(crate) fn start_with(nodes: usize, seed: u64, read_leases: &ReadLeases) -> Self {
        let tools = Tools::find();
        let mut cluster = Cluster::prepare(nodes);
        let mut members = Vec::new();
        for node in &mut cluster.nodes {
            let mut member = Member {
                wall_clock: node.config.with_extension("clock"),
                etcd: Some(SocketAddr::from(([127, 0, 0, 1], free_port()))),
                ..Member::default()
            };
            fs::write(&member.wall_clock, "+0").unwrap();
            if tools.disks {
                let at = cluster.folder.path().join(format!("{}-disk", node.name));
                member.disk = Disk::mount(&at, DISK_BYTES);
                match &member.disk {
                    Some(_) => node.data_dir = at.join("data"),
                    None => left_out("full disks: nothing may be mounted here"),
                }
            }
            members.push(member);
        }
        let wires = Wires::between(&cluster.nodes, seed);
        write_configs(&cluster, read_leases);
        wires.take_over(&cluster.nodes);
        let network = (wires, None);
        Self::begin_with((cluster, members), network, tools, seed, read_leases)
    }

    /// The same with each node in a network namespace of `net`, and no wires but those that it has.
    pub(crate) fn start_apart(net: Net, seed: u64, read_leases: &ReadLeases) -> Self {
        let tools = Tools::find();
        let mut cluster = Cluster::prepare(net.nodes());
        for (number, node) in cluster.nodes.iter_mut().enumerate() {
            node.client = net.socket(number, 7400);
            node.peer = net.socket(number, 7401);
            node.admin = net.socket(number, 7481);
        }
        write_configs(&cluster, read_leases);
        let mut members = Vec::new();
        for (number, node) in cluster.nodes.iter().enumerate() {
            let text = fs::read_to_string(&node.config).unwrap();
            // What can change a node is served on its own machine only.
            let asked = format!("admin = \"{}\"", node.admin);
            let served = format!("admin = \"127.0.0.1:7480\"\nmetrics = \"{}\"", node.admin);
            assert!(text.contains(&asked), "{text}");
            fs::write(&node.config, text.replace(&asked, &served)).unwrap();
            let member = Member {
                wall_clock: node.config.with_extension("clock"),
                etcd: Some(net.socket(number, 2379)),
                ..Member::default()
            };
            fs::write(&member.wall_clock, "+0").unwrap();
            members.push(member);
        }
        let wires = Wires::lay(&[], seed);
        let network = (wires, Some(net));
        Self::begin_with((cluster, members), network, tools, seed, read_leases)
    }

    fn begin_with(
        (cluster, members): (Cluster, Vec<Member>),
        (wires, net): (Wires, Option<Net>),
        tools: Tools,
        seed: u64,
        read_leases: &ReadLeases,
    ) -> Self {
        Self {
            members,
            cluster,
            wires,
            net,
            read_leases: read_leases.clone(),
            deeds: Deeds::default(),
            active: Vec::new(),
            tools,
            random: fastrand::Rng::with_seed(seed),
            violations: Vec::new(),
            processes: Vec::new(),
            _turn: turn(),
        }
        .begun()
    }

    fn begun(mut self) -> Self {
        for number in 0..self.members.len() {
            self.start_node(number);
        }
        self.cluster.wait_until_settled();
        self
    }

    /// Whether syncs can be slowed.
    pub(crate) fn can_slow_disks(&self) -> bool {
        self.tools.strace.is_some()
    }

    /// Whether every node has a disk that can be filled.
    pub(crate) fn can_fill_disks(&self) -> bool {
        self.members.iter().all(|member| member.disk.is_some())
    }

    /// Where clients call the nodes.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        let clients = self.members.len();
        if self.net.is_some() {
            return self.cluster.endpoints();
        }
        let address = |to| self.wires.address(clients, to).to_string();
        (0..clients).map(address).collect()
    }

    /// Where clients of etcd call the nodes: whatever happens to wires, they are beside their node.
    pub(crate) fn etcd_ports(&self) -> Vec<SocketAddr> {
        self.members
            .iter()
            .filter_map(|member| member.etcd)
            .collect()
    }

    fn start_node(&mut self, number: usize) {
        let node = &mut self.cluster.nodes[number];
        assert!(node.process.is_none(), "{} runs already", node.name);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&node.log)
            .unwrap();
        let mut words = match &self.net {
            Some(net) => net.enter(number),
            None => Vec::new(),
        };
        if self.tools.clocks {
            let offset = self.random.u64(..CLOCKS_APART).to_string();
            let clocks = [
                "unshare",
                "-T",
                "--boottime",
                &offset,
                "--monotonic",
                &offset,
            ];
            words.extend(clocks.map(str::to_owned));
        }
        words.push(binary().to_owned());
        let mut command = Command::new(&words[0]);
        without_settings(command.args(&words[1..]));
        if let Some(port) = self.members[number].etcd {
            command
                .env("LEASEHOLD_LISTEN_ETCD", port.to_string())
                .env("LEASEHOLD_ETCD_COMPAT_INSECURE", "true");
        }
        if let Some(library) = &self.tools.faketime {
            // Before its certificates begin to be valid a node does not start, and is right.
            let wall_clock = &self.members[number].wall_clock;
            if fs::read_to_string(wall_clock).is_ok_and(|text| text.starts_with('-')) {
                fs::write(wall_clock, "+0").unwrap();
            }
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", &self.members[number].wall_clock)
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("FAKETIME_CACHE_DURATION", "1");
        }
        let child = command
            .args(["serve", "--config", node.config.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the binary under test runs");
        self.processes.push(child.id());
        node.process = Some(child);
        self.deeds.starts += 1;
    }

    /// Begins a fault. `leader` is who leads as far as anybody knows.
    pub(crate) fn begin(&mut self, event: &Event, leader: usize) {
        let now = Instant::now();
        let whom = match event.fault {
            Fault::Kill(whom)
            | Fault::Pause(whom)
            | Fault::Isolate(whom)
            | Fault::Mute(whom)
            | Fault::Deafen(whom)
            | Fault::Bridge(whom)
            | Fault::Flap(whom, _)
            | Fault::Lag(whom, _)
            | Fault::SlowDisk(whom, _)
            | Fault::FailingDisk(whom)
            | Fault::FullDisk(whom)
            | Fault::WallClock(whom, _)
            | Fault::Drift(whom, _)
            | Fault::StepBack(whom, _) => whom,
            Fault::KillAll | Fault::Storm { .. } | Fault::Drizzle { .. } => Whom::Leader,
        };
        let node = match whom {
            Whom::Leader => leader,
            Whom::Node(number) => number,
        };
        let is_done = self.afflict(event.fault, node);
        let (done, skipped) = self.deeds.faults.entry(event.fault.name()).or_default();
        if !is_done {
            *skipped += 1;
            return;
        }
        *done += 1;
        self.active.push(Active {
            fault: event.fault,
            node,
            began: now,
            until: now + event.lasts,
        });
    }

    /// Does to the process what the fault asks for. Whether that was possible.
    fn afflict(&mut self, fault: Fault, node: usize) -> bool {
        let is_free = |member: &Member| member.affliction.is_none();
        match fault {
            Fault::KillAll => {
                if !self.members.iter().all(is_free) {
                    return false;
                }
                for number in 0..self.members.len() {
                    self.cluster.nodes[number].kill();
                    self.members[number].affliction = Some(Affliction::Down);
                }
                true
            }
            // Before its certificates begin to be valid a node does not start.
            Fault::WallClock(_, seconds) if seconds < 0 && !self.runs(node) => false,
            Fault::WallClock(_, seconds) => {
                let text = format!("{seconds:+}");
                fs::write(&self.members[node].wall_clock, text).unwrap();
                self.tools.faketime.is_some()
            }
            Fault::Drift(_, ppm) => self.drift(node, ppm),
            Fault::StepBack(_, back) => self.step_back(node, back),
            Fault::Kill(_)
            | Fault::Pause(_)
            | Fault::SlowDisk(..)
            | Fault::FailingDisk(_)
            | Fault::FullDisk(_) => {
                let runs = self.cluster.nodes[node].process.is_some();
                if !runs || !is_free(&self.members[node]) {
                    return false;
                }
                let affliction = self.begin_affliction(fault, node);
                self.members[node].affliction = affliction;
                self.members[node].affliction.is_some()
            }
            _ => true,
        }
    }

    /// From now on the clocks that a node's leases go by run faster by so many parts in a million, as long as its
    /// process runs. Whether that was possible.
    pub(crate) fn drift(&mut self, number: usize, ppm: i32) -> bool {
        let times = 1.0 + f64::from(ppm) / 1e6;
        self.with_clocks(number, |clocks, node| clocks.run(node, times))
    }

    /// Sets the same clocks back.
    pub(crate) fn step_back(&mut self, number: usize, back: Duration) -> bool {
        let nanos = i64::try_from(back.as_nanos()).unwrap();
        self.with_clocks(number, |clocks, node| clocks.set_back(node, nanos))
    }

    /// Does something to the clocks of a process that nothing else is being done to, for it is stopped meanwhile.
    fn with_clocks(&mut self, number: usize, change: impl FnOnce(&mut Clocks, &Node)) -> bool {
        let member = &self.members[number];
        let may_end = member.may_end_until;
        let may_end = may_end.is_some_and(|until| Instant::now() < until);
        if member.affliction.is_some() || may_end || !self.runs(number) {
            return false;
        }
        let node = &self.cluster.nodes[number];
        let process = node.process.as_ref().expect("it answers").id();
        let member = &mut self.members[number];
        let known = member.clocks.as_ref();
        if known.is_none_or(|(of, _)| *of != process) {
            member.clocks = Clocks::of(node).map(|clocks| (process, clocks));
        }
        let Some((_, clocks)) = &mut member.clocks else {
            left_out("clocks that run wrong: need x86-64, and processes that may be traced");
            return false;
        };
        change(clocks, node);
        true
    }

    /// Whether it has got so far that it answers.
    fn runs(&self, node: usize) -> bool {
        let lives = self.cluster.nodes[node].admin("/livez");
        lives.is_some_and(|(status, _)| status == 200)
    }

    fn begin_affliction(&mut self, fault: Fault, number: usize) -> Option<Affliction> {
        let node = &mut self.cluster.nodes[number];
        let member = &mut self.members[number];
        let grace = Some(Instant::now() + DISK_GRACE);
        match fault {
            Fault::Kill(_) => {
                node.kill();
                Some(Affliction::Down)
            }
            Fault::Pause(_) => {
                node.pause();
                Some(Affliction::Paused)
            }
            Fault::SlowDisk(_, each) => {
                member.may_end_until = grace;
                let tracer = self.tools.slow_syncs(node, each);
                tracer.map(Affliction::Traced)
            }
            Fault::FailingDisk(_) => {
                member.may_end_until = grace;
                let tracer = self.tools.fail_syncs(node);
                tracer.map(Affliction::Traced)
            }
            Fault::FullDisk(_) => {
                member.may_end_until = grace;
                member.disk.as_ref()?.fill();
                Some(Affliction::Full)
            }
            _ => None,
        }
    }

    /// Ends faults whose time is over, starts nodes that have ended, and sets the weather.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        let (over, active): (Vec<Active>, Vec<Active>) = std::mem::take(&mut self.active)
            .into_iter()
            .partition(|active| active.until <= now);
        self.active = active;
        for active in over {
            self.end(&active);
        }
        self.supervise();
        self.set_weather();
    }

    fn end(&mut self, active: &Active) {
        match active.fault {
            Fault::KillAll => {
                for number in 0..self.members.len() {
                    self.relieve(number);
                }
            }
            Fault::WallClock(..) => {
                fs::write(&self.members[active.node].wall_clock, "+0").unwrap();
            }
            Fault::Drift(..) => {
                let node = &self.cluster.nodes[active.node];
                let process = node.process.as_ref().map(Child::id);
                let known = self.members[active.node].clocks.as_ref();
                let is_over = known.is_none_or(|(of, _)| Some(*of) != process);
                // What has another trouble at the moment is set right after it.
                if !is_over && !self.drift(active.node, 0) {
                    self.active.push(Active {
                        until: Instant::now() + LATER,
                        ..*active
                    });
                }
            }
            Fault::Kill(_)
            | Fault::Pause(_)
            | Fault::SlowDisk(..)
            | Fault::FailingDisk(_)
            | Fault::FullDisk(_) => self.relieve(active.node),
            _ => {}
        }
    }

    fn relieve(&mut self, number: usize) {
        let member = &mut self.members[number];
        let node = &self.cluster.nodes[number];
        if let Some(Affliction::Full | Affliction::Traced(_)) = member.affliction {
            // What it met before that may end it yet.
            member.may_end_until = Some(Instant::now() + DISK_GRACE);
        }
        match member.affliction.take() {
            Some(Affliction::Down) => self.start_node(number),
            Some(Affliction::Paused) if node.process.is_some() => node.resume(),
            Some(Affliction::Traced(child)) => let_go(child),
            Some(Affliction::Full) => {
                if let Some(disk) = &member.disk {
                    disk.free();
                }
            }
            Some(Affliction::Paused) | None => {}
        }
    }

    /// Starts what has ended; who ended without a reason is a violation.
    fn supervise(&mut self) {
        for number in 0..self.members.len() {
            let node = &mut self.cluster.nodes[number];
            if let Some(process) = &mut node.process
                && let Some(status) = process.try_wait().unwrap()
            {
                node.process = None;
                let member = &self.members[number];
                let is_failed = matches!(
                    member.affliction,
                    Some(Affliction::Full | Affliction::Traced(_))
                );
                let may_end = member.may_end_until;
                let text = node.log_text();
                let mut tail: Vec<&str> = text.lines().rev().take(TAIL).collect();
                tail.reverse();
                let tail = tail.join("\n");
                if is_failed || may_end.is_some_and(|until| Instant::now() < until) {
                    let code = status.code();
                    self.deeds.ended_by_disk.push(Ending { number, code, tail });
                } else {
                    self.violations.push(format!(
                        "{} ended by itself with {status}, after these last lines:\n{tail}",
                        node.name
                    ));
                }
            }
            if node.process.is_none() && self.members[number].affliction.is_none() {
                self.start_node(number);
            }
        }
    }

    /// The weather of each wire follows from the faults that are going on.
    fn set_weather(&self) {
        self.wires.clear();
        let nodes = self.members.len();
        let both = |a: usize, b: usize, cut: bool| {
            self.wires.change(a, b, |weather| weather.is_cut |= cut);
            self.wires.change(b, a, |weather| weather.is_cut |= cut);
        };
        for Active {
            fault, node, began, ..
        } in &self.active
        {
            let others = (0..nodes).filter(|other| other != node);
            match *fault {
                Fault::Isolate(_) => others.for_each(|other| both(*node, other, true)),
                Fault::Mute(_) => others.for_each(|other| {
                    self.wires
                        .change(*node, other, |weather| weather.is_cut = true);
                }),
                Fault::Deafen(_) => others.for_each(|other| {
                    self.wires
                        .change(other, *node, |weather| weather.is_cut = true);
                }),
                Fault::Bridge(_) => both(*node, (node + 1) % nodes, true),
                Fault::Flap(_, each) => {
                    let turns = began.elapsed().as_nanos() / each.as_nanos().max(1);
                    others.for_each(|other| both(*node, other, turns % 2 == 0));
                }
                Fault::Lag(_, each) => others.for_each(|other| {
                    for (from, to) in [(*node, other), (other, *node)] {
                        self.wires.change(from, to, |weather| {
                            weather.delay = weather.delay.max(each);
                            weather.jitter = weather.jitter.max(each);
                        });
                    }
                }),
                Fault::Storm { .. } => {
                    let among = |from| (0..nodes).map(move |to| (from, to));
                    for (from, to) in (0..nodes).flat_map(among) {
                        self.worsen(from, to, fault);
                    }
                }
                Fault::Drizzle { .. } => {
                    for number in 0..nodes {
                        self.worsen(number, nodes, fault);
                        self.worsen(nodes, number, fault);
                    }
                }
                _ => {}
            }
        }
    }

    fn worsen(&self, from: usize, to: usize, fault: &Fault) {
        let (Fault::Storm {
            loss,
            doubled,
            damaged,
            jitter,
        }
        | Fault::Drizzle {
            loss,
            doubled,
            damaged,
            jitter,
        }) = *fault
        else {
            return;
        };
        self.wires.change(from, to, |weather| {
            weather.loss = f64::from(loss) / 100.0;
            weather.doubled = f64::from(doubled) / 100.0;
            weather.damaged = f64::from(damaged) / 100.0;
            weather.jitter = weather.jitter.max(jitter);
        });
    }

    /// Ends all faults, and waits until every node is there again and one leads.
    pub(crate) fn heal(&mut self) {
        for active in std::mem::take(&mut self.active) {
            self.end(&active);
        }
        let started = Instant::now();
        let mut present = BTreeSet::new();
        while present.len() < self.members.len() || !self.active.is_empty() {
            self.tick();
            let ready = |node: &&Node| {
                node.admin("/readyz")
                    .is_some_and(|(status, _)| status == 200)
            };
            let nodes = self.cluster.nodes.iter().filter(ready);
            present = nodes.map(|node| node.name.clone()).collect();
            if started.elapsed() > PATIENCE {
                let logs: Vec<String> = self
                    .cluster
                    .nodes
                    .iter()
                    .map(|node| node.log_text())
                    .collect();
                panic!(
                    "healed, but only {present:?} are ready after {PATIENCE:?}:\n{}",
                    logs.join("\n---\n")
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the nodes themselves did that they must not.
    pub(crate) fn violations(&mut self) -> Vec<String> {
        let mut violations = std::mem::take(&mut self.violations);
        for node in &self.cluster.nodes {
            let text = node.log_text();
            let bad = text.lines().filter(|line| line.contains("panicked"));
            violations.extend(bad.map(|line| format!("{}: {line}", node.name)));
        }
        violations.extend(self.tripped());
        violations
    }

    /// Which nodes have found a lease of their own wrong. Clocks are never more wrong than they may be here.
    pub(crate) fn tripped(&self) -> Vec<String> {
        let nodes = self.cluster.nodes.iter();
        let tripped = nodes.filter(|node| node.tripped_mark().exists());
        let told = tripped.map(|node| format!("{} has found a lease of its own wrong", node.name));
        told.collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.cluster.nodes {
                let ready = node.admin("/readyz?verbose");
                let text = node.log_text();
                let mut tail: Vec<&str> = text.lines().rev().take(TAIL).collect();
                tail.reverse();
                eprintln!(
                    "{} is {ready:?} and last said:\n{}",
                    node.name,
                    tail.join("\n")
                );
            }
        }
        for member in &mut self.members {
            if let Some(Affliction::Traced(child)) = member.affliction.take() {
                let_go(child);
            }
        }
        // Before their disks go.
        for node in &mut self.cluster.nodes {
            node.kill();
        }
        self.processes.drain(..).for_each(clean_up_after);
    }
}
