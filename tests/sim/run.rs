//! One run: trouble for a while, then healing, then everything must be well again; then judgement.

use std::time::Duration;

use leasehold::api::{Consistency, ReadPath};
use leasehold::kv;

use crate::checkers::{Counts, Violation};
use crate::clock::{MS, Nanos, nanos};
use crate::history::{Action, Fate};
use crate::machine::Machine;
use crate::marks::{Mark, Marks};
use crate::nemesis::WELL_WITHIN;
use crate::options::Options;
use crate::trace::Trace;
use crate::world::World;

/// What became of a run.
pub(crate) struct Report {
    pub(crate) violation: Option<Violation>,
    pub(crate) counts: Counts,
    pub(crate) marks: Marks,
    pub(crate) operations: usize,
    pub(crate) simulated: Nanos,
    pub(crate) trace: Trace,
}

/// Does it.
pub(crate) fn run(options: Options) -> Report {
    let faulty_for = options.faulty_for;
    let mut world = World::new(options);
    world.run_until(faulty_for);
    world.heal();
    world.must_be_well();
    if world.needs_one_that_lost_all() {
        return world.finish();
    }
    world.leases_must_end();
    world.watches_must_catch_up();
    world.states_must_be_compared();
    world.finish()
}

impl World {
    /// Judges the whole and gives the report.
    pub(crate) fn finish(mut self) -> Report {
        if self.judge.violation().is_none() {
            self.judge.history(&self.workload.history, &self.machines);
        }
        let mut marks = self.judge.all_marks();
        marks.add(&self.network.marks);
        for machine in &self.machines {
            marks.add(&machine.disk.marks);
        }
        Report {
            marks,
            violation: self.judge.violation().cloned(),
            counts: self.judge.counts,
            operations: self.workload.history.operations.len(),
            simulated: self.now,
            trace: self.trace,
        }
    }

    /// Liveness: within a bounded time somebody leads, a write is acknowledged, a read is answered
    /// under the lease, changes of members are completed, and all members become equal.
    pub(crate) fn must_be_well(&mut self) {
        let patience = self.options.election_timeout_max();
        let bound = WELL_WITHIN.max(8 * nanos(patience));
        let deadline = self.now + bound;
        let node = self.leader().unwrap_or_default();
        let fate = self.ask(node, Action::Put(0), deadline - self.now);
        if !matches!(fate, Fate::Written { .. }) {
            return self.unwell("no write was acknowledged");
        }
        let mut leased = false;
        while !leased && self.now < deadline && self.judge.violation().is_none() {
            let node = self.leader().unwrap_or_default();
            let action = Action::Get(0, Consistency::LeaseOnly);
            let fate = self.ask(node, action, deadline - self.now);
            // Where the tripwire went off there are no leased reads until an operator says so.
            leased = self.machines[node].tripped
                || matches!(
                    fate,
                    Fate::Read {
                        path: ReadPath::Lease,
                        ..
                    }
                );
            self.run_until(self.now + 5 * MS);
        }
        if !leased {
            return self.unwell("no read was answered under a lease");
        }
        self.workload.resting = true;
        while !self.are_equal() && self.judge.violation().is_none() {
            if self.now >= deadline {
                return self.unwell("replicas did not become equal");
            }
            self.run_until(self.now + 10 * MS);
        }
    }

    /// C2: nobody renews any more, so every lease ends, and what hung on it goes.
    pub(crate) fn leases_must_end(&mut self) {
        let longest = nanos(Duration::from_millis(4_000));
        let deadline = self.now + longest + longest / 10 + WELL_WITHIN;
        let some_left = |world: &Self| {
            let progress = |node: usize| world.machines[node].disk.state.look().progress();
            let mut members = world.members().into_iter();
            members.any(|node| progress(node).leases > 0)
        };
        while some_left(self) && self.judge.violation().is_none() {
            if self.now >= deadline {
                return self.unwell("a lease that nobody renews did not end");
            }
            self.run_until(self.now + 50 * MS);
        }
        for node in 0..self.machines.len() {
            let look = self.machines[node].disk.state.look();
            if kv::leases_are_sound(&look, &look.progress()) != Ok(true) {
                return self.unwell("a store counts leases that are not there");
            }
        }
    }

    /// W1, in the end: whoever watches is told everything.
    pub(crate) fn watches_must_catch_up(&mut self) {
        if self.watchers.is_empty() || self.judge.violation().is_some() {
            return;
        }
        let deadline = self.now + WELL_WITHIN;
        while self.judge.some_watch_is_behind() && self.judge.violation().is_none() {
            if self.now >= deadline {
                return self.unwell("a watch was not told everything");
            }
            // A node that has long known no leader ends its watches, says the server.
            let members = self.members();
            for node in (0..self.machines.len()).filter(|node| !members.contains(node)) {
                self.watchers_lose(node);
            }
            self.run_until(self.now + 20 * MS);
        }
        self.judge.marks.hit(Mark::WatchCaughtUpJudged);
    }

    /// R4: where states are to be compared they are, by every replica.
    pub(crate) fn states_must_be_compared(&mut self) {
        let Some(interval) = self.options.check_interval else {
            return;
        };
        let deadline = self.now + WELL_WITHIN + 4 * nanos(interval);
        let compared = |machine: &Machine| {
            let process = machine.process.as_ref();
            process.is_some_and(|process| process.node.checks_agreed() > process.agreed_when_healed)
        };
        let all = |world: &Self| {
            let mut members = world.members().into_iter();
            members.all(|node| compared(&world.machines[node]))
        };
        while !all(self) && self.judge.violation().is_none() {
            if self.now >= deadline {
                let what = format!("{:?} after all was well", deadline - self.now);
                return self.judge.fail("R4 states are compared", what);
            }
            self.run_until(self.now + 20 * MS);
        }
    }

    fn are_equal(&self) -> bool {
        let hash = |node: usize| kv::content_hash(&self.machines[node].disk.state.look());
        let members = self.members();
        let committed = self.judge.committed().len() as u64;
        self.members_are_settled()
            && members
                .iter()
                .all(|node| self.applied(*node).0 == committed)
            && members.iter().all(|node| hash(*node) == hash(members[0]))
            && members.iter().all(|node| {
                let look = self.machines[*node].disk.state.look();
                kv::scan(&look) == kv::content_hash(&look)
            })
    }

    /// Whether one of two voters has lost what it had: of those nobody could say what the other must hold. Faults
    /// bring that about only where a leader removes one of three after the loss, and before it has heard of it.
    fn needs_one_that_lost_all(&self) -> bool {
        let mut halves = (0..self.machines.len()).flat_map(|of| self.judge.voters_known_to(of));
        let is_damaged = |voter: &usize| {
            let disk = &self.machines[*voter].disk;
            disk.is_damaged() || disk.unproven.is_some()
        };
        self.options.moves && halves.any(|half| half.len() <= 2 && half.iter().any(is_damaged))
    }

    fn unwell(&mut self, what: &str) {
        if self.needs_one_that_lost_all() {
            return;
        }
        let within = Duration::from_nanos(self.now);
        let nodes: Vec<_> = self
            .machines
            .iter()
            .map(|machine| {
                machine
                    .process
                    .as_ref()
                    .map(|process| process.node.status())
            })
            .collect();
        let what = format!("{what}, now at {within:?}: {nodes:?}");
        self.judge.fail("liveness after healing", what);
    }
}
