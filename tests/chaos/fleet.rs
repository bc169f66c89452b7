//! The nodes: processes with disks and clocks of their own, wires between them, and what is done to
//! them.
//!
//! A node's disk is a small file system in a file, so that it can be filled; its syncs are slowed and
//! failed by `strace`; its clock on the wall is moved by `libfaketime`; and at every start its other
//! clocks begin elsewhere, in a time namespace. Where one of these cannot be had here it is said, and
//! that fault is left out; with `LEASEHOLD_REQUIRE_FAULTS` set it is an error instead.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

use crate::harness::Cluster;
use crate::harness::PATIENCE;
use crate::harness::binary;
use crate::schedule::Event;
use crate::schedule::Fault;
use crate::schedule::Whom;
use crate::wires::Wires;

/// The size of a node's disk.
const DISK_BYTES: u64 = 768 << 20;
/// How long after a fault of its disk a node may still end by it.
const DISK_GRACE: Duration = Duration::from_secs(20);
/// Logs are cut so often that who was away for a while is sent the whole state.
const CUTS: &str = "[raft]\nsnapshot_entries = 2000\nsnapshot_catchup_entries = 200\n";
/// Lines of a node's log that are shown when something is wrong.
const TAIL: usize = 40;
/// How far apart the clocks of two starts may be, in seconds.
const CLOCKS_APART: u64 = 10 * 86_400;

/// What the machine has for doing damage.
struct Tools {
    strace: Option<PathBuf>,
    faketime: Option<PathBuf>,
    clocks: bool,
    disks: bool,
}

impl Tools {
    fn find() -> Self {
        let runs = |program: &str, arguments: &[&str]| {
            let ended = Command::new(program)
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            ended.is_ok_and(|status| status.success())
        };
        let library = "lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/usr");
        let places = [unpacked.clone(), PathBuf::from("/usr")];
        let faketime = places.iter().map(|place| place.join(library));
        let strace = [unpacked.join("bin/strace"), PathBuf::from("strace")];
        let inject = ["-qq", "-o", "/dev/null", "-e", "inject=fsync:delay_enter=1"];
        let tools = Self {
            strace: strace.into_iter().find(|strace| {
                let strace = strace.to_str().unwrap_or_default();
                runs(strace, &[inject.as_slice(), &["true"]].concat())
            }),
            faketime: faketime.into_iter().find(|library| library.exists()),
            clocks: runs(
                "unshare",
                &["-T", "--boottime", "60", "--monotonic", "60", "true"],
            ),
            disks: runs("mkfs.ext4", &["-V"]) && runs("losetup", &["--find"]),
        };
        let all = [
            ("slow and failing disks", "strace", tools.strace.is_some()),
            ("wall clocks", "libfaketime", tools.faketime.is_some()),
            (
                "clocks that begin anew",
                "unshare -T, as root",
                tools.clocks,
            ),
            ("full disks", "loop devices and mkfs.ext4", tools.disks),
        ];
        for (fault, needs, is_there) in all {
            if !is_there {
                left_out(&format!("{fault}: needs {needs}"));
            }
        }
        tools
    }
}

/// Says that a fault cannot be had here, past what the test harness keeps to itself when all goes well.
fn left_out(what: &str) {
    let is_demanded = std::env::var_os("LEASEHOLD_REQUIRE_FAULTS").is_some();
    assert!(!is_demanded, "{what}");
    let _ = writeln!(std::io::stderr(), "##### LEFT OUT: {what} #####");
}

/// A file system in a file.
struct Disk {
    at: PathBuf,
}

impl Disk {
    /// Makes and mounts one at `at`; none if that is not possible here.
    fn mount(at: &Path) -> Option<Self> {
        let image = at.with_extension("disk");
        let file = fs::File::create(&image).unwrap();
        file.set_len(DISK_BYTES).unwrap();
        fs::create_dir_all(at).unwrap();
        let image = image.to_str().unwrap();
        let ok = |program: &str, arguments: &[&str]| {
            let status = Command::new(program).args(arguments).status();
            status.is_ok_and(|status| status.success())
        };
        let is_mounted = ok("mkfs.ext4", &["-q", "-F", image])
            && ok("mount", &["-o", "loop", image, at.to_str().unwrap()]);
        is_mounted.then(|| Self { at: at.to_owned() })
    }

    fn ballast(&self) -> PathBuf {
        self.at.join("ballast")
    }

    /// Leaves not a byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).unwrap();
        let mut block = vec![0x5A; 1 << 20];
        while !block.is_empty() {
            if file.write_all(&block).is_err() {
                block.truncate(block.len() / 2);
            }
        }
    }

    fn free(&self) {
        let _ = fs::remove_file(self.ballast());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

/// What is being done to the process of a node. One thing at a time.
#[derive(Debug)]
enum Affliction {
    Down,
    Paused,
    /// Its system calls are tampered with.
    Traced(Child),
    Full,
}

/// One node, beyond its process.
#[derive(Default)]
struct Member {
    affliction: Option<Affliction>,
    disk: Option<Disk>,
    /// Until when it may end by itself.
    may_end_until: Option<Instant>,
    /// Where its clock on the wall is told.
    wall_clock: PathBuf,
}

/// A fault that is going on.
struct Active {
    fault: Fault,
    /// Whom it befell.
    node: usize,
    began: Instant,
    until: Instant,
}

/// What was done in all.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Faults that were done, by name, and those that were not: the node had another at the time, or
    /// they cannot be done here.
    pub(crate) faults: BTreeMap<&'static str, (u64, u64)>,
    /// Processes that ended because of their disk.
    pub(crate) ended_by_disk: u64,
    /// Processes that were started.
    pub(crate) starts: u64,
}

/// All nodes.
pub(crate) struct Fleet {
    // Before the cluster: disks go before the folder that they are mounted in.
    members: Vec<Member>,
    pub(crate) cluster: Cluster,
    pub(crate) wires: Wires,
    pub(crate) deeds: Deeds,
    active: Vec<Active>,
    tools: Tools,
    random: fastrand::Rng,
    violations: Vec<String>,
    /// All that were ever started.
    processes: Vec<u32>,
}

impl Fleet {
    /// Prepares `nodes` nodes, on disks and wires of their own, and starts them.
    pub(crate) fn start(nodes: usize, seed: u64) -> Self {
        let tools = Tools::find();
        let mut cluster = Cluster::prepare(nodes);
        let mut members = Vec::new();
        for node in &mut cluster.nodes {
            let mut member = Member {
                wall_clock: node.config.with_extension("clock"),
                ..Member::default()
            };
            fs::write(&member.wall_clock, "+0").unwrap();
            if tools.disks {
                let at = cluster.folder.path().join(format!("{}-disk", node.name));
                member.disk = Disk::mount(&at);
                match &member.disk {
                    Some(_) => node.data_dir = at.join("data"),
                    None => left_out("full disks: nothing may be mounted here"),
                }
            }
            members.push(member);
        }
        let mut pairs = Vec::new();
        for from in 0..=nodes {
            for (to, node) in cluster
                .nodes
                .iter()
                .enumerate()
                .filter(|(to, _)| *to != from)
            {
                // The last number is that of all clients.
                let target = if from == nodes {
                    node.client
                } else {
                    node.peer
                };
                pairs.push((from, to, target));
            }
        }
        let wires = Wires::lay(&pairs, seed);
        cluster.write_configs(CUTS);
        for (from, node) in cluster.nodes.iter().enumerate() {
            let mut text = fs::read_to_string(&node.config).unwrap();
            for (to, other) in cluster
                .nodes
                .iter()
                .enumerate()
                .filter(|(to, _)| *to != from)
            {
                let entry = |address| format!("\"{}={address}\"", other.name);
                text = text.replace(&entry(other.peer), &entry(wires.address(from, to)));
            }
            fs::write(&node.config, text).unwrap();
        }
        let mut fleet = Self {
            cluster,
            wires,
            deeds: Deeds::default(),
            members,
            active: Vec::new(),
            tools,
            random: fastrand::Rng::with_seed(seed),
            violations: Vec::new(),
            processes: Vec::new(),
        };
        for number in 0..nodes {
            fleet.start_node(number);
        }
        fleet.cluster.wait_until_settled();
        fleet
    }

    /// Where clients call the nodes.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        let clients = self.members.len();
        let address = |to| self.wires.address(clients, to).to_string();
        (0..clients).map(address).collect()
    }

    fn start_node(&mut self, number: usize) {
        let node = &mut self.cluster.nodes[number];
        assert!(node.process.is_none(), "{} runs already", node.name);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&node.log)
            .unwrap();
        let mut command = match self.tools.clocks {
            true => {
                let offset = self.random.u64(..CLOCKS_APART).to_string();
                let mut command = Command::new("unshare");
                command.args(["-T", "--boottime", &offset, "--monotonic", &offset]);
                command.arg(binary());
                command
            }
            false => Command::new(binary()),
        };
        if let Some(library) = &self.tools.faketime {
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
            | Fault::SlowDisk(whom, _)
            | Fault::FailingDisk(whom)
            | Fault::FullDisk(whom)
            | Fault::WallClock(whom, _) => whom,
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
            Fault::WallClock(_, seconds) => {
                let text = format!("{seconds:+}");
                fs::write(&self.members[node].wall_clock, text).unwrap();
                self.tools.faketime.is_some()
            }
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
                let inject = format!("inject=fsync,fdatasync:delay_enter={}", each.as_micros());
                member.may_end_until = grace;
                self.trace(number, &inject)
            }
            Fault::FailingDisk(_) => {
                member.may_end_until = grace;
                self.trace(number, "inject=fsync,fdatasync:error=EIO")
            }
            Fault::FullDisk(_) => {
                member.may_end_until = grace;
                member.disk.as_ref()?.fill();
                Some(Affliction::Full)
            }
            _ => None,
        }
    }

    /// Has its syncs tampered with.
    fn trace(&self, number: usize, inject: &str) -> Option<Affliction> {
        let strace = self.tools.strace.as_ref()?;
        let process = self.cluster.nodes[number].process.as_ref()?;
        let child = Command::new(strace)
            .args([
                "-f",
                "-qq",
                "-o",
                "/dev/null",
                "-e",
                "trace=fsync,fdatasync",
            ])
            .args(["-e", inject, "-p", &process.id().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.ok().map(Affliction::Traced)
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
                let may_end = self.members[number].may_end_until;
                if may_end.is_some_and(|until| Instant::now() < until) {
                    self.deeds.ended_by_disk += 1;
                } else {
                    let text = node.log_text();
                    let mut tail: Vec<&str> = text.lines().rev().take(TAIL).collect();
                    tail.reverse();
                    self.violations.push(format!(
                        "{} ended by itself with {status}, after these last lines:\n{}",
                        node.name,
                        tail.join("\n")
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
            weather.jitter = jitter;
        });
    }

    /// Ends all faults, and waits until every node is there again and one leads.
    pub(crate) fn heal(&mut self) {
        for active in std::mem::take(&mut self.active) {
            self.end(&active);
        }
        let started = Instant::now();
        let mut present = BTreeSet::new();
        while present.len() < self.members.len() {
            self.tick();
            let ready = |node: &&crate::harness::Node| {
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
        violations
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

/// What `libfaketime` leaves behind of a process that was killed.
fn clean_up_after(process: u32) {
    for name in ["faketime_shm_", "sem.faketime_sem_"] {
        let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
    }
}

/// Ends a tracer, so that what it traced goes on undisturbed.
fn let_go(mut child: Child) {
    let _ = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .stderr(Stdio::null())
        .status();
    for _ in 0..100 {
        if child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}
