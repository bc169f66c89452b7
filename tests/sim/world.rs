//! The world: one queue of events, ordered by time and then by number, and everything they touch.
//!
//! Nothing happens but by an event, and every event is drawn from the seed, so a run is a function
//! of its options. What the world does with a node is what the server's shell does (`driver.rs`,
//! `session.rs`); what it does to it is in `nemesis.rs`; what must hold is in `checkers/`.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::api::{Call, Error, Limits, MemberInfo, Response};
use leasehold::kv;
use leasehold::node::turn::{Idle, Marks};
use leasehold::node::{Input, LeaseOptions, Node, NodeOptions};
use leasehold::raft::{Configuration, Envelope, RestoredState};
use leasehold::types::{BootstrapId, ClusterId, LogIndex, NodeId, Role};

use crate::checkers::Judge;
use crate::clock::{MS, MachineClock, Nanos, SECOND, US};
use crate::dice::Dice;
use crate::disk::{Backup, Ending, Received, SimDisk};
use crate::driver::Effects;
use crate::holders::Holder;
use crate::lockers::{Locker, Turn};
use crate::machine::{Driver, LogThread, Machine, Mail, Process, Stage, StateThread, Thread};
use crate::marks::Mark;
use crate::nemesis::Nemesis;
use crate::network::Network;
use crate::options::Options;
use crate::queue::Queue;
use crate::trace::Trace;
use crate::watchers::Watcher;
use crate::watches::{Order, Parcel, WatchThread};
use crate::workload::Workload;

/// Something that will happen.
pub(crate) enum Event {
    /// A message reaches its receiver's machine.
    Deliver(Box<Envelope>),
    /// A thread of a process does its next step.
    Work(usize, u64, Work),
    /// A process starts.
    Start(usize),
    /// A client has something to do.
    Client(usize),
    /// An attempt of a client may have taken too long.
    ClientTimeout(usize, Nanos),
    /// A client tries again.
    ClientRetries(usize, u64),
    /// A client gets an answer to an attempt.
    ClientAnswer(usize, u64, Box<Result<Response, Error>>),
    /// A fault of the schedule begins, or ends.
    FaultBegins(usize),
    FaultEnds(usize),
    /// A process that was told to retire is gone.
    Retired(usize, u64),
    /// A holder of leases is free to act, if nothing was scheduled for it since.
    Holder(usize, u64),
    HolderTires(usize, u64),
    /// A whole state has reached its receiver, or got lost on the way from this life of its sender.
    Snapshot {
        from: usize,
        life: u64,
        to: usize,
        received: Box<Received>,
    },
    HolderHears(usize, u64, Box<Result<Response, Error>>),
    /// A watcher is free to act, if nothing was scheduled for it since.
    Watcher(usize, u64),
    /// A node answers a request to watch, for the stream of that number.
    WatchOpened(usize, u64, Box<Result<i64, Error>>),
    WatchHears(usize, u64, Box<Parcel>),
    WatchBreaks(usize, u64),
    /// Something happens to a user of locks.
    Locker(usize, Turn),
}

impl Event {
    /// What and where, for the hash of everything that happened.
    fn tag(&self) -> u64 {
        let (kind, of) = match self {
            Self::Deliver(envelope) => (1, envelope.from.0 << 8 | envelope.to.0),
            Self::Work(node, life, work) => (16 + work.tag(), life << 8 | *node as u64),
            Self::Start(node) => (2, *node as u64),
            Self::Client(client) => (3, *client as u64),
            Self::ClientTimeout(client, _) => (4, *client as u64),
            Self::ClientRetries(client, attempt) => (5, attempt << 8 | *client as u64),
            Self::ClientAnswer(client, attempt, _) => (6, attempt << 8 | *client as u64),
            Self::FaultBegins(fault) => (7, *fault as u64),
            Self::FaultEnds(fault) => (8, *fault as u64),
            Self::Retired(node, life) => (9, life << 8 | *node as u64),
            Self::Holder(holder, turn) => (10, turn << 8 | *holder as u64),
            Self::Snapshot { from, to, .. } => (14, (from << 8 | to) as u64),
            Self::HolderTires(holder, attempt) => (11, attempt << 8 | *holder as u64),
            Self::HolderHears(holder, attempt, _) => (12, attempt << 8 | *holder as u64),
            Self::Watcher(watcher, turn) => (40, turn << 8 | *watcher as u64),
            Self::WatchOpened(watcher, stream, _) => (41, stream << 8 | *watcher as u64),
            Self::WatchHears(watcher, stream, _) => (42, stream << 8 | *watcher as u64),
            Self::WatchBreaks(watcher, stream) => (43, stream << 8 | *watcher as u64),
            Self::Locker(locker, turn) => (13, turn.tag() << 8 | *locker as u64),
        };
        of << 8 | kind
    }
}

/// The next step of a thread.
pub(crate) enum Work {
    Message(Box<Envelope>),
    Retire,
    DriverWakes,
    DriverAlarm(Nanos),
    DriverReads,
    DriverNext,
    LogWrites,
    LogSyncs,
    StateApplies,
    StatePublishesNext,
    StateReports,
    StateFindsIdle(LogIndex),
    Arrives(usize, u64, Box<Call>),
    SessionTakes(usize),
    SessionReads(usize),
    SessionChecks(usize),
    SessionGives(usize),
    Watch(Box<Order>),
    WatchTurn,
    WatchAlarm,
}

impl Work {
    fn tag(&self) -> u64 {
        match self {
            Self::Message(_) => 0,
            Self::Retire => 1,
            Self::DriverWakes => 2,
            Self::DriverAlarm(_) => 3,
            Self::DriverReads => 4,
            Self::DriverNext => 5,
            Self::LogWrites => 6,
            Self::LogSyncs => 7,
            Self::StateApplies => 8,
            Self::StateReports => 9,
            Self::StateFindsIdle(_) => 10,
            Self::Arrives(..) => 11,
            Self::SessionTakes(_) => 12,
            Self::SessionReads(_) => 13,
            Self::SessionChecks(_) => 14,
            Self::SessionGives(_) => 15,
            Self::Watch(_) => 16,
            Self::WatchTurn => 17,
            Self::WatchAlarm => 18,
            Self::StatePublishesNext => 19,
        }
    }

    fn thread(&self) -> Thread {
        match self {
            Self::DriverWakes | Self::DriverAlarm(_) | Self::DriverReads | Self::DriverNext => {
                Thread::Driver
            }
            Self::LogWrites | Self::LogSyncs => Thread::Log,
            Self::StateApplies
            | Self::StatePublishesNext
            | Self::StateReports
            | Self::StateFindsIdle(_) => Thread::State,
            Self::Watch(_) | Self::WatchTurn | Self::WatchAlarm => Thread::Watch,
            _ => Thread::Sessions,
        }
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) now: Nanos,
    queue: Queue<Event>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) network: Network,
    pub(crate) nemesis: Nemesis,
    pub(crate) workload: Workload,
    pub(crate) holders: Vec<Holder>,
    pub(crate) watchers: Vec<Watcher>,
    pub(crate) next_stream: u64,
    pub(crate) lockers: Vec<Locker>,
    pub(crate) judge: Judge,
    pub(crate) trace: Trace,
    /// What an input has caused, until it is carried out.
    pub(crate) effects: Effects,
    /// Delays of threads.
    pub(crate) scheduling: Dice,
    /// When the thread that applies loses the processor while it publishes.
    pub(crate) publishing: Dice,
    /// When history is removed, and how much at a time.
    pub(crate) sweeping: Dice,
    /// Delays of the watch threads.
    pub(crate) watching: Dice,
    /// When logs are cut, and what becomes of whole states on their way.
    pub(crate) compacting: Dice,
    lives: Dice,
    /// Faults are over: what fails from here on comes back at once.
    pub(crate) healed: bool,
    /// What all were restored from, if they were.
    pub(crate) backup: Option<Backup>,
}

impl World {
    /// A cluster that starts now.
    pub(crate) fn new(options: Options) -> Self {
        let seed = options.seed;
        let mut clocks = Dice::new(seed, "clocks", 0);
        let machines = (0..options.nodes)
            .map(|node| {
                let clock = if options.drift_ppm == 0 {
                    MachineClock::perfect(0)
                } else {
                    MachineClock::draw(&mut clocks, options.drift_ppm, options.slewed, 0)
                };
                let dice = Dice::new(seed, "disk", node as u64);
                Machine::new(clock, SimDisk::new(dice, node, &options))
            })
            .collect();
        let network = Network::new(
            options.nodes,
            options.quality,
            Dice::new(seed, "network", 0),
        );
        let mut world = Self {
            now: 0,
            queue: Queue::new(),
            machines,
            network,
            nemesis: Nemesis::new(&options),
            workload: Workload::new(&options),
            holders: Holder::all(&options),
            watchers: Watcher::all(&options),
            next_stream: 1,
            lockers: Locker::all(&options),
            judge: Judge::new(&options),
            trace: Trace::new(options.readable, options.aloud),
            effects: Effects::default(),
            scheduling: Dice::new(seed, "scheduling", 0),
            publishing: Dice::new(seed, "publishing", 0),
            sweeping: Dice::new(seed, "sweeping", 0),
            watching: Dice::new(seed, "watching", 0),
            compacting: Dice::new(seed, "compacting", 0),
            lives: Dice::new(seed, "lives", 0),
            healed: false,
            backup: match options.restored {
                true => backup_of_another(&options),
                false => None,
            },
            options,
        };
        if let Some(backup) = &world.backup {
            world.judge.restored(backup.entries());
            (0..world.machines.len()).for_each(|node| world.restore(node));
        }
        for node in 0..world.machines.len() {
            let delay = world.scheduling.between(0, 20 * MS);
            world.schedule(delay, Event::Start(node));
        }
        world.nemesis_starts();
        world.clients_start();
        world.holders_start();
        world.watchers_start();
        world.lockers_start();
        world
    }

    /// While no process runs, `node` is restored from what all were restored from.
    pub(crate) fn restore(&mut self, node: usize) {
        let backup = self.backup.as_ref().expect("they were restored");
        let names = (1..=self.options.founders).map(|number| format!("n{number}"));
        self.machines[node]
            .disk
            .restore(node, backup, names.collect());
    }

    /// Lets everything happen that is due until `until`, or until a checker objects.
    pub(crate) fn run_until(&mut self, until: Nanos) {
        while self.judge.violation().is_none() {
            let Some((at, event)) = self.queue.pop_due(until) else {
                self.now = self.now.max(until);
                return;
            };
            self.now = at;
            self.trace.mix([at, event.tag()]);
            self.happen(event);
        }
    }

    /// Schedules an event after a delay.
    pub(crate) fn schedule(&mut self, delay: Nanos, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    /// Schedules a step of a thread of the process that runs on `node` now.
    pub(crate) fn schedule_work(&mut self, delay: Nanos, node: usize, work: Work) {
        let life = self.machines[node].life;
        self.schedule(delay, Event::Work(node, life, work));
    }

    /// Whether, and for how long, the thread at work loses the processor.
    pub(crate) fn preempted(&mut self) -> Option<Nanos> {
        if !self.scheduling.chance(self.options.preempt) {
            return None;
        }
        self.judge.marks.hit(Mark::ThreadPreempted);
        Some(self.scheduling.spread(US, self.options.preempt_max))
    }

    /// The process on `node`, which runs.
    pub(crate) fn process(&mut self, node: usize) -> &mut Process {
        let process = self.machines[node].process.as_mut();
        process.expect("work is only given to processes that run")
    }

    /// A25: whoever hears of a bootstrap hears of the same one. (Hellos would keep the others apart, and there
    /// are none here.)
    fn compare_bootstraps(&mut self, one: usize, other: usize) {
        let known = |node: usize| self.machines[node].disk.known_bootstrap();
        if let (Some(here), Some(there)) = (known(one), known(other))
            && here != there
        {
            let what = format!(
                "n{} comes from {here}, n{} from {there}",
                one + 1,
                other + 1
            );
            self.judge.fail("A25 one bootstrap", what);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver(envelope) => {
                let (from, to) = (place(envelope.from), place(envelope.to));
                let life = self.machines[to].life;
                if !self.network.passes(self.now, from, to) {
                    return;
                }
                if self.machines[to].process.is_none() {
                    return self.judge.marks.hit(Mark::MessageToNobody);
                }
                self.compare_bootstraps(from, to);
                self.happen(Event::Work(to, life, Work::Message(envelope)));
            }
            Event::Work(node, life, work) => {
                let machine = &self.machines[node];
                if machine.life != life || machine.process.is_none() {
                    return;
                }
                let held = machine.held_until(work.thread());
                if held > self.now {
                    self.judge.marks.hit(match work.thread() {
                        _ if held == machine.paused_until => Mark::ProcessPaused,
                        Thread::Driver => Mark::DriverStalled,
                        Thread::Log => Mark::LogStalled,
                        Thread::State => Mark::StateStalled,
                        Thread::Sessions => Mark::SessionsStalled,
                        Thread::Watch => Mark::WatchesStalled,
                    });
                    return self.schedule(held - self.now, Event::Work(node, life, work));
                }
                self.work(node, work);
            }
            Event::Start(node) => self.start(node),
            Event::Client(client) => self.client_acts(client),
            Event::ClientTimeout(client, timer) => self.client_timer(client, timer),
            Event::ClientRetries(client, attempt) => self.client_retries(client, attempt),
            Event::ClientAnswer(client, attempt, result) => {
                self.client_hears(client, attempt, *result);
            }
            Event::Locker(locker, turn) => self.locker_turns(locker, turn),
            Event::Snapshot {
                from,
                life,
                to,
                received,
            } => self.snapshot_arrives(from, life, to, *received),
            Event::Holder(holder, turn) => self.holder_acts(holder, turn),
            Event::HolderTires(holder, attempt) => self.holder_tires(holder, attempt),
            Event::HolderHears(holder, attempt, result) => {
                self.holder_hears(holder, attempt, *result);
            }
            Event::Watcher(watcher, turn) => self.watcher_acts(watcher, turn),
            Event::WatchOpened(watcher, stream, answer) => {
                self.watch_opened(watcher, stream, *answer);
            }
            Event::WatchHears(watcher, stream, parcel) => {
                self.watch_hears(watcher, stream, *parcel);
            }
            Event::WatchBreaks(watcher, stream) => self.watch_breaks(watcher, stream),
            Event::FaultBegins(fault) => self.fault_begins(fault),
            Event::FaultEnds(fault) => self.fault_ends(fault),
            Event::Retired(node, life) => {
                if self.machines[node].life == life && self.machines[node].process.is_some() {
                    self.stop(node, Ending::Kill);
                    let delay = self.lives.spread(MS, 2 * SECOND);
                    self.schedule(delay, Event::Start(node));
                }
            }
        }
    }

    /// Does the next step of a thread.
    pub(crate) fn work(&mut self, node: usize, work: Work) {
        match work {
            Work::Message(envelope) => self.mail(node, Mail::Message(envelope)),
            Work::Retire => self.mail(node, Mail::Input(Box::new(Input::Retire))),
            Work::DriverWakes => self.driver_wakes(node),
            Work::DriverAlarm(alarm) => self.driver_alarm(node, alarm),
            Work::DriverReads => {
                self.driver_reads(node);
                let delay = self.preempted().unwrap_or(US);
                self.schedule_work(delay, node, Work::DriverNext);
            }
            Work::DriverNext => {
                if !self.driver_next(node) {
                    let delay = self.preempted().unwrap_or(US);
                    self.schedule_work(delay, node, Work::DriverNext);
                }
            }
            Work::LogWrites => self.log_writes(node),
            Work::LogSyncs => self.log_syncs(node),
            Work::StateApplies => self.state_applies(node),
            Work::StatePublishesNext => self.state_publishes_next(node),
            Work::StateReports => self.state_reports(node),
            Work::StateFindsIdle(unused_since) => self.state_finds_idle(node, unused_since),
            Work::Arrives(connection, frame, call) => self.arrives(node, connection, frame, call),
            Work::SessionTakes(connection) => self.session_takes(node, connection),
            Work::SessionReads(connection) => self.session_reads(node, connection),
            Work::SessionChecks(connection) => self.session_checks(node, connection),
            Work::SessionGives(connection) => self.session_gives(node, connection),
            Work::Watch(order) => self.tell_watches(node, *order),
            Work::WatchTurn => self.watch_turn(node),
            Work::WatchAlarm => self.watch_alarm(node),
        }
    }

    /// Starts a process on `node`, unless one runs.
    pub(crate) fn start(&mut self, node: usize) {
        let seed = self.lives.number();
        let machine = &mut self.machines[node];
        if machine.process.is_some() {
            return;
        }
        if machine.disk.full_until > self.now {
            return self.schedule(200 * MS, Event::Start(node));
        }
        machine.life += 1;
        machine.stalled_until = [0; 5];
        let configuration = self.base_configuration(node);
        let members = members(self.options.founders);
        let other = self.options.other_timing.filter(|_| seed.is_multiple_of(2));
        let timing = other.unwrap_or(self.options.timing);
        let timing = match self.options.read_leases {
            Some(read_leases) => read_leases.set(timing, node),
            None => timing,
        };
        let start = self.recover(node, &configuration);
        let machine = &mut self.machines[node];
        machine.disk.clear_received();
        let look = machine.disk.state.look();
        let progress = look.progress();
        let applied = kv::bootstrap(&look).expect("memory does not fail");
        let bootstrap = machine.disk.known_bootstrap().or(applied);
        // The server does the same as it starts.
        machine.disk.bootstrap_id = bootstrap;
        let restored = RestoredState {
            hard_state: machine.disk.hard(),
            base: machine.disk.base(),
            base_configuration: configuration,
            entries: machine.disk.log().to_vec(),
            applied: progress.applied.index,
            quarantined: start.quarantined,
            unproven: start.unproven,
            restored_from: start.restored_from,
            diverged: start.diverged,
            lease_tripped: start.lease_tripped,
            ..RestoredState::default()
        };
        let options = NodeOptions {
            cluster_id: CLUSTER,
            id: NodeId(node as u64 + 1),
            members,
            timing,
            limits: Limits::DEFAULT,
            waiting_max: 1024,
            sessions_max: 1024,
            session_idle_max: self.options.sessions_idle_max,
            leases: LEASES,
            auto_compaction: self.options.auto_compaction,
            check_interval: self.options.check_interval,
            seed,
            bootstrap: BootstrapId(u128::from(seed) << 64 | u128::from(seed.rotate_left(32))),
        };
        if start.lacks_state {
            self.judge.marks.hit(Mark::StateLacking);
        }
        let now = machine.clock.read(self.now);
        let leases = kv::held_leases(&look).expect("memory does not fail");
        let node_value = Node::new(options, restored, bootstrap, progress.revision, now);
        let node_value = node_value.with_leases(leases);
        let is_sound = node_value.state_check().is_sound();
        self.judge.started(node, now, &machine.disk, &timing);
        let asleep = Idle::new(now).sleep(&machine.clock.at(self.now), node_value.poll_timeout());
        let published = node_value.published();
        let marks = Marks::new(&node_value, machine.disk.unproven.is_some());
        machine.process = Some(Process {
            lease: published.lease(),
            published,
            read: now,
            status: node_value.status(),
            node: node_value,
            driver: Driver {
                mails: Vec::new(),
                marks,
                turn: Stage::Asleep(asleep),
                asleep: false,
                due: 0,
                alarm: None,
                pending: BTreeMap::new(),
                next_request: 1,
            },
            log: LogThread::default(),
            state: StateThread::default(),
            sessions: BTreeMap::new(),
            watches: WatchThread::new(&self.options, seed, progress.revision),
            is_sound,
            agreed_when_healed: 0,
        });
        self.trace.line(self.now, Some(node), || {
            format!("starts, applied {}", progress.applied)
        });
        self.schedule_work(0, node, Work::DriverWakes);
    }

    /// Ends the process on `node`, if one runs.
    pub(crate) fn stop(&mut self, node: usize, ending: Ending) {
        let spare = self.others_are_whole(node);
        let machine = &mut self.machines[node];
        if machine.process.take().is_none() {
            return;
        }
        if let Err(found) = machine.disk.stop(ending, spare) {
            let what = format!("n{}: {found}", node + 1);
            self.judge.fail("A21 what was durable is found again", what);
        }
        if machine.disk.log_was_cut_too_far() {
            let (base, applied) = (machine.disk.base(), machine.disk.state.applied());
            let what = format!("n{}: {base} is cut, the state ends at {applied}", node + 1);
            let rule = "D1 the log is cut only behind a durable state";
            self.judge.fail(rule, what);
        }
        machine.paused_until = 0;
        if ending == Ending::Power {
            let uptime = self.lives.between(SECOND, 60 * SECOND);
            machine.clock.reboot(self.now, uptime);
        }
        self.trace
            .line(self.now, Some(node), || format!("ends: {ending:?}"));
        self.judge.stopped(node, &self.machines[node].disk);
        self.clients_lose(node);
        self.watchers_lose(node);
    }

    /// The node that leads in the highest term, if any does.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leads = |machine: &Machine| {
            let status = &machine.process.as_ref()?.status;
            (status.role == Role::Leader).then_some(status.term)
        };
        (0..self.machines.len())
            .filter_map(|node| leads(&self.machines[node]).map(|term| (term, node)))
            .max()
            .map(|(_, node)| node)
    }

    /// How far `node` has applied, as it has published.
    pub(crate) fn applied(&self, node: usize) -> LogIndex {
        self.machines[node].disk.state.applied()
    }
}

/// Checkpoints as often as faults, so that they meet.
const LEASES: LeaseOptions = LeaseOptions {
    checkpoint_min_ttl: Duration::from_millis(1_500),
    checkpoint_interval: Duration::from_millis(200),
    ..LeaseOptions::DEFAULT
};

/// The cluster of every run.
pub(crate) const CLUSTER: ClusterId = ClusterId(0x5eed);

/// Node numbers count from 0, ids from 1.
pub(crate) fn place(id: NodeId) -> usize {
    id.0 as usize - 1
}

/// What the cluster begins with.
pub(crate) fn founding(options: &Options) -> Configuration {
    let founders = members(options.founders);
    Configuration {
        voters: founders.iter().map(|member| member.id).collect(),
        ..Configuration::default()
    }
}

fn members(nodes: usize) -> Vec<MemberInfo> {
    let member = |number: u64| MemberInfo {
        id: NodeId(number),
        name: format!("n{number}"),
        ..MemberInfo::default()
    };
    (1..=nodes as u64).map(member).collect()
}

/// Of another cluster, in which nothing was written yet. None if it has no leader, by a bug that was planted.
fn backup_of_another(options: &Options) -> Option<Backup> {
    let mut still = Options::still(options.founders);
    still.real_log = false;
    still.readable = false;
    let mut world = World::new(still);
    // An objection ends it at once.
    world.run_until(3 * SECOND);
    let leader = world.leader()?;
    Some(world.machines[leader].disk.back_up())
}
