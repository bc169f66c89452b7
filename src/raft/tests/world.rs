//! A small world for several replicas: clocks, links and disks that do what a test says, and
//! oracles that look at every step.
//!
//! The oracles know real time and everybody's state. They are the claims that all of this exists
//! for: one leader per term; nothing committed is ever lost or changed; no read is permitted that
//! misses what anyone could have seen before it arrived; and no lease is valid anywhere once a
//! later leader exists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::raft::role::RoleState;
use crate::raft::tests::script;
use crate::raft::{
    Change, Configuration, Consensus, Entry, Envelope, HardState, Input, LogBase, Output,
    ProposalError, ReadId, ReadMode, RestoredState, StalenessBound, Ticket, Timing, UnsavedState,
};
use crate::time::Instant;
use crate::types::{LogId, LogIndex, NodeId, Term};

pub(super) const MS: u64 = 1_000_000;

/// One clock: what it shows at a real time, and how fast it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand {
    anchor: u64,
    shown: u64,
    rate_ppm: i64,
}

impl Hand {
    fn at(self, real: u64) -> u64 {
        let passed = i128::from(real - self.anchor) * i128::from(1_000_000 + self.rate_ppm);
        self.shown + u64::try_from(passed / 1_000_000).expect("clocks run forward")
    }

    /// The first real time at which it shows `deadline`.
    fn reaches(self, deadline: u64) -> u64 {
        if deadline <= self.shown {
            return self.anchor;
        }
        if deadline == u64::MAX || self.rate_ppm <= -1_000_000 {
            return u64::MAX;
        }
        let missing = u128::from(deadline - self.shown) * 1_000_000;
        let rate = u128::try_from(1_000_000 + self.rate_ppm).expect("clocks run forward");
        u64::try_from(missing.div_ceil(rate)).map_or(u64::MAX, |d| self.anchor.saturating_add(d))
    }

    pub(super) fn change(&mut self, real: u64, jump: i64, rate_ppm: i64) {
        self.shown = self.at(real).saturating_add_signed(jump);
        self.anchor = real;
        self.rate_ppm = rate_ppm;
    }

    pub(super) fn rate(&self) -> i64 {
        self.rate_ppm
    }
}

/// What a crash leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) hard: HardState,
    /// The log begins after it; what was before it is kept for who looks.
    pub(super) base: LogId,
    pub(super) entries: Vec<Entry>,
    /// A whole state that lies beside the one in use: its last entry, and what it came from.
    pub(super) received: Option<(LogId, Vec<Entry>)>,
    pub(super) damaged: bool,
    pub(super) unproven: bool,
    pub(super) tripped: bool,
}

impl Disk {
    fn write(&mut self, unsaved: UnsavedState) {
        if let Some(hard) = unsaved.hard_state {
            self.hard = hard;
        }
        if let Some(base) = unsaved.base {
            let place = usize::try_from(base.id.index.0).expect("small");
            if self.entries.get(place - 1).map(|entry| entry.id) != Some(base.id) {
                let (id, entries) = self.received.clone().expect("a state was received");
                assert_eq!(id, base.id, "the log begins where the state ends");
                self.entries = entries;
            }
            self.base = base.id;
        }
        if let Some(first) = unsaved.entries.first() {
            let keep = usize::try_from(first.id.index.0 - 1).expect("small");
            assert!(keep <= self.entries.len(), "writes leave no hole");
            self.entries.truncate(keep);
            self.entries.extend(unsaved.entries);
        }
    }
}

/// One node, running or not.
pub(super) struct Site {
    pub(super) node: Option<Consensus>,
    pub(super) disk: Disk,
    writes: VecDeque<(u64, Ticket, UnsavedState)>,
    pub(super) disk_delay: u64,
    pub(super) disk_stalled: bool,
    pub(super) boot: Hand,
    pub(super) raw: Hand,
    inbox: VecDeque<Envelope>,
    pub(super) paused: bool,
    /// Asleep, with the rate of the clock that stands still.
    asleep: Option<i64>,
    pub(super) applied: LogIndex,
    to_apply: VecDeque<LogIndex>,
    pub(super) apply_held: bool,
    /// Whom it was told to send its state.
    pub(super) owes_state: BTreeSet<u64>,
    lives: u64,
    /// Leads by the last look, in this term.
    led: Option<Term>,
    shown: String,
}

impl Site {
    pub(super) fn clock(&self, real: u64) -> Instant {
        Instant {
            boot: self.boot.at(real),
            raw: self.raw.at(real),
        }
    }

    pub(super) fn node(&mut self) -> &mut Consensus {
        self.node.as_mut().expect("the node runs")
    }
}

/// Messages that are kept back on a link, by kind.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) kind: Option<String>,
    pub(super) held: Vec<Envelope>,
    /// Not kept, lost.
    pub(super) drops: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// Of a thousand messages, how many are lost, doubled, or very late.
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) late: u64,
}

pub(super) struct World {
    pub(super) real: u64,
    pub(super) origin: u64,
    pub(super) timing: Timing,
    pub(super) bootstrap: Configuration,
    pub(super) sites: BTreeMap<u64, Site>,
    pub(super) delay: u64,
    wire: BTreeMap<(u64, u64), Envelope>,
    sequence: u64,
    pub(super) cuts: BTreeSet<(u64, u64)>,
    pub(super) holds: Vec<Hold>,
    pub(super) faults: Faults,
    pub(super) rng: fastrand::Rng,
    seed: u64,
    /// Elections happen only when a script says so.
    pub(super) timers: bool,
    pub(super) show: script::Show,
    pub(super) trace: Vec<String>,
    /// Tell at once what happens: for a world that ends in a panic.
    pub(super) aloud: bool,
    /// Counts of what happened, so that a test can say that it was not vacuous.
    pub(super) leased_reads: u64,
    pub(super) held_reads: u64,
    pub(super) quorum_reads: u64,
    pub(super) follower_reads: u64,
    pub(super) elections: u64,
    pub(super) recovered: u64,
    pub(super) changes: u64,
    /// Where a rule is broken by the schedule itself (a clock that lies), only this is noted.
    pub(super) lies: bool,

    leaders: BTreeMap<Term, u64>,
    /// What was committed, and in which term at the latest.
    committed: BTreeMap<LogIndex, (Entry, Term)>,
    /// The highest index that anybody can have seen applied.
    exposed: LogIndex,
    /// Since when each was exposed.
    exposures: Vec<(u64, LogIndex)>,
    /// How often an age was judged, and how old the youngest was.
    pub(super) ages_judged: u64,
    pub(super) youngest: Duration,
    reads: BTreeMap<u64, LogIndex>,
    next_read: u64,
}

impl World {
    pub(super) fn new(nodes: u64, timing: Timing, bootstrap: Configuration, seed: u64) -> Self {
        let mut world = Self {
            real: 0,
            origin: 0,
            timing,
            bootstrap,
            sites: BTreeMap::new(),
            delay: MS,
            wire: BTreeMap::new(),
            sequence: 0,
            cuts: BTreeSet::new(),
            holds: Vec::new(),
            faults: Faults::default(),
            rng: fastrand::Rng::with_seed(seed),
            seed,
            timers: true,
            show: script::Show::Nothing,
            trace: Vec::new(),
            aloud: false,
            leased_reads: 0,
            held_reads: 0,
            quorum_reads: 0,
            follower_reads: 0,
            elections: 0,
            recovered: 0,
            changes: 0,
            lies: false,
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            exposed: LogIndex(0),
            exposures: Vec::new(),
            ages_judged: 0,
            youngest: Duration::MAX,
            reads: BTreeMap::new(),
            next_read: 0,
        };
        for id in 1..=nodes {
            // No two machines started together, and no two clocks of one machine.
            let hand = |shown: u64| Hand {
                anchor: 0,
                shown,
                rate_ppm: 0,
            };
            let site = Site {
                node: None,
                disk: Disk::default(),
                writes: VecDeque::new(),
                disk_delay: 0,
                disk_stalled: false,
                boot: hand(id * 1000 * MS),
                raw: hand(id * 777 * MS),
                inbox: VecDeque::new(),
                paused: false,
                asleep: None,
                applied: LogIndex(0),
                to_apply: VecDeque::new(),
                apply_held: false,
                owes_state: BTreeSet::new(),
                lives: 0,
                led: None,
                shown: String::new(),
            };
            world.sites.insert(id, site);
            world.start(id);
        }
        world
    }

    pub(super) fn site(&mut self, id: u64) -> &mut Site {
        self.sites.get_mut(&id).expect("a node of this world")
    }

    pub(super) fn say(&mut self, text: impl AsRef<str>) {
        let now = (self.real as i64 - self.origin as i64) as f64 / MS as f64;
        // Microseconds are fine enough to read.
        let now = (now * 1000.0).round() / 1000.0;
        let line = format!("{now}ms {}", text.as_ref());
        if self.aloud {
            eprintln!("{line}");
        } else {
            self.trace.push(line);
        }
    }

    // What is done to nodes.

    pub(super) fn start(&mut self, id: u64) {
        let (real, timing, seed) = (self.real, self.timing, self.seed);
        let bootstrap = self.bootstrap.clone();
        let site = self.site(id);
        site.lives += 1;
        let restored = RestoredState {
            hard_state: site.disk.hard,
            base: site.disk.base,
            base_configuration: bootstrap,
            entries: site.disk.entries[site.disk.base.index.0 as usize..].to_vec(),
            applied: site.applied,
            quarantined: site.disk.damaged,
            unproven: site.disk.unproven,
            restored_from: None,
            diverged: None,
            lease_tripped: site.disk.tripped,
            ..RestoredState::default()
        };
        if self.aloud {
            let site = &self.sites[&id];
            let (last, damaged) = (site.disk.entries.last().map(|e| e.id), site.disk.damaged);
            self.say(format!("n{id} starts with {last:?}, damaged: {damaged}"));
        }
        let site = self.site(id);
        let seed = seed.wrapping_mul(1_000_003) ^ (id << 32) ^ site.lives;
        let now = site.clock(real);
        let node = Consensus::new(NodeId(id), timing, restored, seed, now);
        site.node = Some(node);
        site.paused = false;
        self.after(id);
    }

    pub(super) fn crash(&mut self, id: u64) {
        if self.aloud {
            self.say(format!("n{id} crashes"));
        }
        // Of the writes on their way, some prefix may have reached the disk.
        let random = self.timers;
        let mut rng = self.rng.clone();
        let site = self.site(id);
        while random && rng.bool() {
            if let Some((_, _, unsaved)) = site.writes.pop_front() {
                site.disk.write(unsaved);
            } else {
                break;
            }
        }
        site.writes.clear();
        site.inbox.clear();
        site.to_apply.clear();
        site.node = None;
        site.led = None;
        // What was applied may not have been, after a crash; it is replayed.
        if random {
            site.applied = LogIndex(rng.u64(0..=site.applied.0));
        }
        self.rng = rng;
    }

    pub(super) fn input(&mut self, id: u64, input: Input) {
        let real = self.real;
        let site = self.site(id);
        let now = site.clock(real);
        let Some(node) = &mut site.node else {
            return;
        };
        node.handle(now, input);
        self.after(id);
    }

    pub(super) fn propose(&mut self, id: u64, command: Bytes) -> Result<LogId, String> {
        let real = self.real;
        let site = self.site(id);
        let now = site.clock(real);
        let result = site.node().propose(now, command);
        self.after(id);
        result.map_err(|refused| format!("{refused:?}"))
    }

    pub(super) fn change(&mut self, id: u64, change: &Change) -> Result<LogId, ProposalError> {
        let real = self.real;
        let site = self.site(id);
        let now = site.clock(real);
        let result = site.node().change(now, change);
        self.after(id);
        result
    }

    /// A session's leased read: capture, snapshot, then the check.
    pub(super) fn leased_read(&mut self, id: u64) -> Option<String> {
        let (real, exposed) = (self.real, self.exposed);
        let site = self.site(id);
        let now = site.clock(real);
        let published = site.node().published();
        let (cell, captured) = match published.lease() {
            Some(cell) => (cell, site.applied),
            None => (published.read_lease()?, site.applied.max(published.last())),
        };
        let permit = cell.permit(now, captured)?;
        assert!(
            self.lies || permit.index() >= exposed,
            "n{id} would serve {} when {exposed} has been seen",
            permit.index()
        );
        if self.sites[&id].applied < permit.index() {
            return Some(format!("{}, which it has not applied", permit.index()));
        }
        self.leased_reads += 1;
        self.held_reads += u64::from(permit.is_by_read_lease());
        let left = permit.lease_remaining().expect("permitted by the lease");
        Some(format!("{} with {left:?} left", permit.index()))
    }

    /// Reads by quorum that arrive together.
    pub(super) fn quorum_reads_together(&mut self, id: u64, count: u64) {
        self.reads_together(id, count, ReadMode::Quorum);
    }

    /// Reads that arrive together, at a leader or elsewhere.
    pub(super) fn reads_together(&mut self, id: u64, count: u64, mode: ReadMode) {
        let (real, exposed) = (self.real, self.exposed);
        for _ in 0..count {
            let read = self.next_read;
            self.next_read += 1;
            let site = self.site(id);
            let now = site.clock(real);
            let line = match site.node().read(now, ReadId(read), mode) {
                Ok(()) => {
                    self.reads.insert(read, exposed);
                    format!("n{id} takes read {read}")
                }
                Err(refused) => format!("n{id} refuses read {read}: {refused:?}"),
            };
            if self.show != script::Show::Nothing {
                self.say(line);
            }
        }
        self.after(id);
    }

    pub(super) fn pause(&mut self, id: u64) {
        self.site(id).paused = true;
    }

    /// The whole machine sleeps: one of its clocks counts that, the other does not.
    pub(super) fn suspend(&mut self, id: u64) {
        let real = self.real;
        let site = self.site(id);
        site.paused = true;
        if site.asleep.is_none() {
            site.asleep = Some(site.raw.rate());
            site.raw.change(real, 0, -1_000_000);
        }
    }

    /// A paused process wakes: it takes its queue, reads its clock once, and handles it all, time
    /// last (A2).
    pub(super) fn resume(&mut self, id: u64) {
        let real = self.real;
        let site = self.site(id);
        site.paused = false;
        if let Some(rate) = site.asleep.take() {
            site.raw.change(real, 0, rate);
        }
        let now = site.clock(real);
        let inbox = std::mem::take(&mut site.inbox);
        if let Some(node) = &mut site.node {
            for envelope in inbox {
                node.handle(now, Input::Message(envelope));
            }
            node.handle(now, Input::Tick);
        }
        self.after(id);
    }

    /// Lets the election timer of `id` run out now.
    pub(super) fn time_out(&mut self, id: u64) {
        let real = self.real;
        let site = self.site(id);
        let now = site.clock(real);
        site.node().election_due = now;
        self.input(id, Input::Tick);
    }

    pub(super) fn apply_flows(&mut self, id: u64) {
        let site = self.site(id);
        site.apply_held = false;
        while let Some(index) = self.site(id).to_apply.pop_front() {
            self.apply(id, index);
        }
    }

    fn apply(&mut self, id: u64, index: LogIndex) {
        let site = self.site(id);
        site.applied = site.applied.max(index);
        if index > self.exposed {
            self.exposed = index;
            self.exposures.push((self.real, index));
        }
        self.input(id, Input::Applied(index));
    }

    // Time.

    /// Lets `nanos` of real time pass, with everything that happens in it.
    pub(super) fn advance(&mut self, nanos: u64) {
        let end = self.real + nanos;
        let mut at_this_time = 0u32;
        while let Some((at, event)) = self.next_event() {
            if at > end {
                break;
            }
            at_this_time = if at > self.real { 0 } else { at_this_time + 1 };
            assert!(at_this_time < 20_000, "something spins");
            self.real = self.real.max(at);
            self.happen(event);
        }
        self.real = end;
    }

    fn next_event(&self) -> Option<(u64, Event)> {
        let mut next: Option<(u64, Event)> = None;
        let mut offer = |at: u64, event: Event| {
            if at != u64::MAX && next.as_ref().is_none_or(|(soonest, _)| at < *soonest) {
                next = Some((at, event));
            }
        };
        for (id, site) in &self.sites {
            if let Some((at, ..)) = site.writes.front()
                && !site.disk_stalled
            {
                offer(*at, Event::Written(*id));
            }
        }
        if let Some((at, sequence)) = self.wire.keys().next() {
            offer(*at, Event::Arrives(*at, *sequence));
        }
        for (id, site) in &self.sites {
            if let Some(node) = &site.node
                && !site.paused
            {
                let due = node.poll_timeout();
                let at = site.boot.reaches(due.boot).max(site.raw.reaches(due.raw));
                offer(at.max(self.real), Event::Due(*id));
            }
        }
        next
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrives(at, sequence) => {
                let envelope = self.wire.remove(&(at, sequence)).expect("it was there");
                // A cut loses what is on its way, too.
                if !self.cuts.contains(&(envelope.from.0, envelope.to.0)) {
                    self.deliver(envelope);
                }
            }
            Event::Written(id) => {
                let site = self.site(id);
                let (_, ticket, unsaved) = site.writes.pop_front().expect("it was there");
                site.disk.write(unsaved);
                self.input(id, Input::Persisted(ticket));
            }
            Event::Due(id) => {
                self.input(id, Input::Tick);
                let real = self.real;
                let site = self.site(id);
                let now = site.clock(real);
                if let Some(node) = &site.node {
                    let due = node.poll_timeout();
                    assert!(!now.certainly_after(due), "n{id} asks for a tick in vain");
                }
            }
        }
    }

    /// Puts a message at its receiver now, whatever the links are like.
    pub(super) fn deliver(&mut self, envelope: Envelope) {
        let to = envelope.to.0;
        if let Some(line) = self.show.of(&envelope) {
            self.say(line);
        }
        let Some(site) = self.sites.get_mut(&to) else {
            return;
        };
        if site.node.is_none() {
            return;
        }
        if site.paused {
            site.inbox.push_back(envelope);
            return;
        }
        self.input(to, Input::Message(envelope));
    }

    fn post(&mut self, envelope: Envelope) {
        let link = (envelope.from.0, envelope.to.0);
        if self.cuts.contains(&link) {
            return;
        }
        let kind = script::kind(&envelope.message);
        let hold = self.holds.iter_mut().find(|hold| {
            (hold.from, hold.to) == link && hold.kind.as_ref().is_none_or(|k| kind.starts_with(k))
        });
        if let Some(hold) = hold {
            if !hold.drops {
                hold.held.push(envelope);
            }
            return;
        }
        let faults = self.faults;
        if self.rng.u64(0..1000) < faults.lost {
            return;
        }
        let copies = 1 + u64::from(self.rng.u64(0..1000) < faults.doubled);
        for _ in 0..copies {
            let mut delay = self.delay;
            if faults.late > 0 {
                delay = self.rng.u64(delay / 2..=delay * 3);
                if self.rng.u64(0..1000) < faults.late {
                    delay += self.rng.u64(0..1500 * MS);
                }
            }
            self.sequence += 1;
            let key = (self.real + delay, self.sequence);
            self.wire.insert(key, envelope.clone());
        }
    }

    /// Carries out what a node wants, and looks at the world.
    pub(super) fn after(&mut self, id: u64) {
        let manual = !self.timers;
        let real = self.real;
        loop {
            let site = self.site(id);
            let Some(node) = &mut site.node else {
                return;
            };
            if manual {
                node.election_due = Instant::NEVER;
            }
            let Some(output) = node.poll_output() else {
                break;
            };
            match output {
                Output::Persist(ticket, unsaved) => {
                    let at = real + site.disk_delay;
                    site.writes.push_back((at, ticket, unsaved));
                }
                Output::Send(envelope) => {
                    assert_eq!(envelope.from, NodeId(id));
                    self.post(envelope);
                }
                Output::Commit(entries) => self.handed_out(id, entries),
                Output::SendSnapshot(peer) => {
                    self.site(id).owes_state.insert(peer.0);
                    if self.show != script::Show::Nothing {
                        self.say(format!("n{id} owes {peer} a state"));
                    }
                }
                Output::Install(state) => self.install(id, state),
                Output::DiscardSnapshot(state) => {
                    self.site(id).disk.received = None;
                    if self.show != script::Show::Nothing {
                        self.say(format!("n{id} discards the state at {state}"));
                    }
                }
                Output::Permit(read, permit) => {
                    let seen = self.reads.remove(&read.0).expect("asked once");
                    let misses = permit.index() < seen;
                    let leased = permit.lease_remaining().is_some();
                    assert!(
                        !misses || self.lies && leased,
                        "n{id} would serve {} when {seen} has been seen",
                        permit.index()
                    );
                    match (permit.is_from_leader(), leased) {
                        (true, _) => self.follower_reads += 1,
                        (false, true) => self.leased_reads += 1,
                        (false, false) => self.quorum_reads += 1,
                    }
                    if self.show != script::Show::Nothing {
                        let how = match (permit.is_from_leader(), leased) {
                            (true, true) => ", by its leader's lease",
                            (true, false) => ", by its leader's quorum",
                            (false, true) => ", by its lease",
                            (false, false) => "",
                        };
                        self.say(format!(
                            "n{id} permits read {} at {}{how}",
                            read.0,
                            permit.index()
                        ));
                    }
                }
                Output::RefuseRead(read, refusal) => {
                    self.reads.remove(&read.0).expect("asked once");
                    if self.show != script::Show::Nothing {
                        self.say(format!("n{id} refuses read {}: {refusal:?}", read.0));
                    }
                }
            }
        }
        let site = self.site(id);
        if site.disk.unproven && !site.node().is_unproven() && !site.node().is_quarantined() {
            site.disk.unproven = false;
            self.recovered += 1;
        }
        let site = self.site(id);
        if site.disk.damaged && !site.node().is_quarantined() {
            // It holds again what it must: the mark of damage goes.
            site.disk.damaged = false;
            self.recovered += 1;
        }
        self.look(id);
    }

    /// One node's state reaches another, beside the one in use there.
    pub(super) fn deliver_state(&mut self, from: u64, to: u64) {
        let real = self.real;
        let sender = self.site(from);
        assert!(sender.owes_state.remove(&to), "n{from} owes n{to} nothing");
        let through = usize::try_from(sender.applied.0).expect("small");
        let entries = sender.disk.entries[..through].to_vec();
        let state = entries.last().expect("something was applied").id;
        let now = sender.clock(real);
        let sent = Input::SnapshotSent(NodeId(to));
        sender.node().handle(now, sent);
        self.after(from);
        let base = LogBase {
            id: state,
            configuration: self.bootstrap.clone(),
        };
        let site = self.site(to);
        site.disk.received = Some((state, entries));
        let now = site.clock(real);
        site.node().handle(now, Input::SnapshotReceived(base));
        self.after(to);
    }

    fn install(&mut self, id: u64, state: LogId) {
        let site = self.site(id);
        let (received, _) = site.disk.received.take().expect("a state was received");
        assert_eq!(received, state);
        let held = usize::try_from(state.index.0 - 1).expect("small");
        let held = site.disk.entries.get(held).map(|entry| entry.id);
        assert_eq!(held, Some(state), "the log on disk goes on from elsewhere");
        if self.show != script::Show::Nothing {
            self.say(format!("n{id} installs the state at {state}"));
        }
        self.apply(id, state.index);
    }

    fn handed_out(&mut self, id: u64, entries: Vec<Entry>) {
        let mut last = None;
        let term = self.site(id).node().status().term;
        for entry in entries {
            let index = entry.id.index;
            let disk = &self.sites[&id].disk.entries;
            let position = usize::try_from(index.0 - 1).expect("small");
            assert_eq!(disk.get(position), Some(&entry), "applied, and not durable");
            let known = self.committed.entry(index);
            let (known, _) = known.or_insert_with(|| (entry.clone(), term));
            assert_eq!(*known, entry, "n{id} commits something else");
            last = Some(index);
        }
        let last = last.expect("never empty");
        let site = self.site(id);
        if site.apply_held {
            site.to_apply.push_back(last);
        } else {
            self.apply(id, last);
        }
    }

    /// The oracles.
    fn look(&mut self, id: u64) {
        let site = self.sites.get_mut(&id).expect("a node of this world");
        let Some(node) = &site.node else {
            return;
        };
        let status = node.status();
        let shown = match &node.role {
            RoleState::Leader(_) => format!("leads {}", status.term),
            RoleState::Candidate(_) => format!("stands for {}", status.term),
            RoleState::PreCandidate(_) => format!("asks around in {}", status.term),
            RoleState::Follower(_) => match status.leader {
                Some(leader) => format!("follows {leader} in {}", status.term),
                None => format!("waits in {}", status.term),
            },
        };
        let leads = matches!(node.role, RoleState::Leader(_)).then_some(status.term);
        let elected = leads.filter(|term| site.led != Some(*term));
        site.led = leads;
        if let Some(term) = elected {
            self.elections += 1;
            let first = *self.leaders.entry(term).or_insert(id);
            assert_eq!(first, id, "two leaders in {term}");
            // Every leader of a later term holds it. (One of an earlier term may be elected late.)
            for (index, (entry, committed_in)) in &self.committed {
                let held = node.log.entry(*index) == Some(entry);
                // What lies before the base is compared as it was when it was on disk.
                let held = held || *index <= node.log.base().index;
                let complete = held || *committed_in >= term;
                assert!(complete, "n{id} was elected without {index}");
            }
        }
        let changed = (site.shown != shown).then(|| format!("n{id} {shown}"));
        site.shown = shown;
        if let Some(line) = changed
            && self.show != script::Show::Nothing
        {
            self.say(line);
        }
        self.look_at_leases();
        self.look_at_age(id);
    }

    /// A state that is said to be at most so old contains all that was exposed before that.
    pub(super) fn look_at_age(&mut self, id: u64) {
        let Some(bound) = self.age(id) else { return };
        self.ages_judged += 1;
        self.youngest = self.youngest.min(bound.staleness());
        assert!(
            self.sites[&id].applied >= bound.index(),
            "n{id} has not applied {}",
            bound.index()
        );
        let age = u64::try_from(bound.staleness().as_nanos()).expect("short");
        let Some(before) = self.real.checked_sub(age) else {
            return;
        };
        let older = self.exposures.partition_point(|(at, _)| *at < before);
        if let Some((at, index)) = self.exposures[..older].last() {
            assert!(
                self.lies || *index <= bound.index(),
                "n{id} says that {} is at most {:?} old, but {index} was exposed {} ns ago",
                bound.index(),
                bound.staleness(),
                self.real - at
            );
        }
    }

    /// What a node can prove of the age of its state now.
    pub(super) fn age(&self, id: u64) -> Option<StalenessBound> {
        let site = &self.sites[&id];
        let staleness = site.node.as_ref()?.published.staleness()?;
        staleness.bound(site.clock(self.real))
    }

    /// Exclusivity: where a lease is valid, nobody was elected later (O2).
    pub(super) fn look_at_leases(&mut self) {
        let Some((latest, leader)) = self.leaders.last_key_value() else {
            return;
        };
        for (id, site) in &self.sites {
            let Some(node) = &site.node else {
                continue;
            };
            let now = site.clock(self.real);
            let lease = node.published.lease();
            if let Some(cell) = lease.or_else(|| node.published.read_lease())
                && cell.is_valid(now)
                && cell.term < *latest
            {
                let line = format!(
                    "n{id} holds a lease of {} while n{leader} leads {latest}",
                    cell.term
                );
                assert!(self.lies, "{line}");
            }
        }
    }

    /// Everybody's log agrees wherever two have the same term at the same place.
    pub(super) fn look_at_logs(&self) {
        let logs: Vec<_> = self.sites.values().map(|site| &site.disk.entries).collect();
        for (position, one) in logs.iter().enumerate() {
            for other in &logs[position + 1..] {
                let pairs = one.iter().zip(other.iter());
                let same: Vec<_> = pairs.map(|(a, b)| (a == b, a.id == b.id)).collect();
                if let Some(last) = same.iter().rposition(|(_, ids)| *ids) {
                    assert!(same[..=last].iter().all(|(equal, _)| *equal), "logs match");
                }
            }
        }
    }

    pub(super) fn committed(&self) -> usize {
        self.committed.len()
    }
}

enum Event {
    Arrives(u64, u64),
    Written(u64),
    Due(u64),
}
