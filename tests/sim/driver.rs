//! The driver's thread, and the two that serve it: as in the server, with invented delays.
//!
//! The driver takes the steps of `leasehold::node::turn`, as the server's thread does. Now and then
//! there is time between two of them, as when the thread is preempted, so that sessions and other
//! nodes see what is between. What the node wants done is carried away after each input and not only
//! at the end of the turn: the law allows both, and each effect can be judged by the input it is of.

use leasehold::kv;
use leasehold::kv::{CompactionBudget, Fault};
use leasehold::node::recovery::UnprovenReason;
use leasehold::node::{Input, Node, Output, turn};
use leasehold::types::{LogIndex, Role};

use crate::clock::{MS, Nanos, US, nanos};
use crate::disk::{Ending, Sync};
use crate::machine::{Delivery, Mail, Stage, Step};
use crate::marks::Mark;
use crate::network::Copies;
use crate::tell;
use crate::watches::command;
use crate::world::{Event, Work, World, place};

/// The shortest sleep. The server's is shorter; nothing hangs on it.
const SLEEP_MIN: Nanos = MS;
/// Most entries applied in one step.
const APPLY_MAX: usize = 512;

/// One effect of a turn.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are outputs, and a turn has few"
)]
pub(crate) enum Effect {
    Mark(turn::Mark),
    Output(Output),
}

/// The effects of an input, in order: the checkers look at all of them before the first is carried out.
#[derive(Default)]
pub(crate) struct Effects(Vec<Effect>);

impl turn::TurnEffects for Effects {
    fn mark(&mut self, mark: turn::Mark) {
        self.0.push(Effect::Mark(mark));
    }

    fn output(&mut self, _: &Node, output: Output) {
        self.0.push(Effect::Output(output));
    }
}

impl World {
    /// Puts mail into the driver's box and wakes it.
    pub(crate) fn mail(&mut self, node: usize, mail: Mail) {
        let latency = self.scheduling.between(2 * US, 40 * US);
        let Some(process) = self.machines[node].process.as_mut() else {
            return;
        };
        process.driver.mails.push(mail);
        if process.driver.asleep {
            process.driver.asleep = false;
            self.schedule_work(latency, node, Work::DriverWakes);
        }
    }

    /// The driver takes what has gathered.
    pub(crate) fn driver_wakes(&mut self, node: usize) {
        let preempted = self.preempted();
        let driver = &mut self.process(node).driver;
        driver.asleep = false;
        let Stage::Asleep(asleep) = std::mem::take(&mut driver.turn) else {
            unreachable!("it is woken once");
        };
        let taken = asleep.take(|room, _| std::mem::swap(room, &mut driver.mails));
        driver.turn = Stage::Taken(taken);
        match preempted {
            Some(delay) => self.schedule_work(delay, node, Work::DriverReads),
            None => {
                self.driver_reads(node);
                while self.machines[node].process.is_some() && !self.driver_next(node) {}
            }
        }
    }

    /// The driver reads the clock.
    pub(crate) fn driver_reads(&mut self, node: usize) {
        let clock = self.machines[node].clock.at(self.now);
        let driver = &mut self.process(node).driver;
        let Stage::Taken(taken) = std::mem::take(&mut driver.turn) else {
            unreachable!("it reads the clock once it has taken its mail");
        };
        driver.turn = Stage::Stamped(taken.read(&clock));
    }

    /// The driver handles the next of its batch, or the tick; true after the tick.
    pub(crate) fn driver_next(&mut self, node: usize) -> bool {
        let driver = &mut self.process(node).driver;
        let Stage::Stamped(turn) = &mut driver.turn else {
            unreachable!("it handles mail once it has read the clock");
        };
        match turn.next_mail() {
            Some(Mail::Message(envelope)) => {
                self.handle(node, Input::Message(*envelope));
                false
            }
            Some(Mail::Persisted(ticket)) => {
                self.handle(node, Input::Persisted(ticket));
                false
            }
            Some(Mail::Applied(replies)) => {
                self.handle(node, Input::Applied(replies));
                false
            }
            Some(Mail::Input(input)) => {
                self.handle(node, *input);
                false
            }
            Some(Mail::Request(call, connection, frame)) => {
                let id = leasehold::types::RequestId(driver.next_request);
                driver.next_request += 1;
                driver.pending.insert(id, (connection, frame));
                self.handle(node, Input::Request(id, *call, None));
                false
            }
            None => {
                self.handle(node, Input::Tick);
                let node_now = &self.process(node).node;
                let (consistency, agreed) = (node_now.state_check(), node_now.checks_agreed());
                self.judge.compared(node, consistency, agreed);
                self.process(node).is_sound = consistency.is_sound();
                self.watches_may_show(node, consistency.is_sound());
                self.driver_sleeps(node);
                true
            }
        }
    }

    fn driver_sleeps(&mut self, node: usize) {
        let real = self.now;
        let clock = self.machines[node].clock.at(real);
        let late = self.scheduling.between(5 * US, 100 * US);
        let process = self.process(node);
        let Stage::Idle(idle) = std::mem::take(&mut process.driver.turn) else {
            unreachable!("it sleeps after the tick");
        };
        let asleep = idle.sleep(&clock, process.node.poll_timeout());
        let patience = nanos(asleep.patience()).max(SLEEP_MIN);
        process.driver.turn = Stage::Asleep(asleep);
        process.driver.asleep = process.driver.mails.is_empty();
        if process.driver.asleep {
            process.driver.due = real + patience + late;
            self.set_alarm(node);
        } else {
            self.schedule_work(late, node, Work::DriverWakes);
        }
    }

    /// Sees to it that an alarm goes off when the driver is due, or before.
    fn set_alarm(&mut self, node: usize) {
        let real = self.now;
        let driver = &mut self.process(node).driver;
        let due = driver.due;
        if driver.alarm.is_none_or(|alarm| alarm > due) {
            driver.alarm = Some(due);
            self.schedule_work(due.saturating_sub(real), node, Work::DriverAlarm(due));
        }
    }

    /// An alarm goes off.
    pub(crate) fn driver_alarm(&mut self, node: usize, alarm: Nanos) {
        let real = self.now;
        let driver = &mut self.process(node).driver;
        if driver.alarm != Some(alarm) {
            return;
        }
        driver.alarm = None;
        if driver.asleep && driver.due <= real {
            self.driver_wakes(node);
        } else if driver.asleep {
            self.set_alarm(node);
        }
    }

    /// Gives the node one input, lets the checkers look, and carries its outputs away.
    fn handle(&mut self, node: usize, input: Input) {
        let real = self.now;
        let process = self.machines[node]
            .process
            .as_mut()
            .expect("only running processes are given work");
        let Stage::Stamped(turn) = std::mem::take(&mut process.driver.turn) else {
            unreachable!("inputs are handled with the reading of the turn");
        };
        let now = turn.now();
        if now.went_back_since(process.read) {
            self.judge.marks.hit(Mark::ClockRanBack);
        }
        process.read = now;
        self.judge.before(node, now, &input);
        if let Input::Message(envelope) = &input {
            self.trace
                .line(real, Some(node), || tell::heard_message(envelope));
        }
        let was_tripped = process.node.consensus().lease_tripped();
        let mut effects = std::mem::take(&mut self.effects);
        let (replica, marks) = (&mut process.node, &mut process.driver.marks);
        process.driver.turn = match input {
            Input::Tick => Stage::Idle(turn.tick(replica).carry_away(replica, marks, &mut effects)),
            input => {
                turn.handle(replica, input);
                turn.carry_away(replica, marks, &mut effects);
                Stage::Stamped(turn)
            }
        };
        let after = process.node.status();
        let before = std::mem::replace(&mut process.status, after.clone());
        if (before.role, before.term) != (after.role, after.term) {
            process.lease = process.published.lease();
        }
        let tripped = process.node.consensus().lease_tripped();
        if process.node.consensus().is_removed() {
            self.judge.marks.hit(Mark::RemovedKnows);
            if before.role == Role::Leader && after.role != Role::Leader {
                self.judge.marks.hit(Mark::LeaderRemoved);
            }
        }
        if before.role == Role::Quarantined && after.role != Role::Quarantined {
            if self.machines[node].disk.wiped {
                self.judge.marks.hit(Mark::WipedReturned);
            }
            self.judge.counts.recoveries += 1;
            self.judge.marks.hit(Mark::DamagedReturned);
        }
        if tripped && !was_tripped {
            self.judge.tripped(node);
        }
        if before != after {
            self.trace.line(real, Some(node), || {
                format!("   {}, reads {now}", tell::status(&after))
            });
        }
        self.trace.mix([
            real,
            node as u64,
            after.term.0 << 32 | after.role as u64,
            after.last.index.0 << 32 | after.commit.0,
        ]);
        for effect in &effects.0 {
            if let Effect::Output(Output::Persist(_, unsaved)) = effect {
                self.judge.persist(node, now, &before, unsaved);
            }
        }
        self.judge
            .handled(real, node, now, &before, &after, &self.machines);
        for effect in effects.0.drain(..) {
            if self.machines[node].process.is_none() {
                continue;
            }
            match effect {
                Effect::Mark(mark) => self.mark(node, mark),
                Effect::Output(output) => self.carry_away(node, now, output),
            }
        }
        self.effects = effects;
    }

    /// Changes what the data directory of `node` says.
    fn mark(&mut self, node: usize, mark: turn::Mark) {
        let machine = &mut self.machines[node];
        match mark {
            turn::Mark::Proven => {
                machine.disk.unproven = None;
                machine.disk.wiped = false;
            }
            turn::Mark::Forgotten => {
                self.judge.marks.hit(Mark::OlderCopyTold);
                machine.disk.unproven = Some(UnprovenReason::OlderCopy);
            }
            turn::Mark::QuarantineOver => machine.disk.recovered = true,
            turn::Mark::LeaseTripped => machine.tripped = true,
            turn::Mark::Diverged(index) => machine.disk.diverged = Some(index),
            turn::Mark::Bootstrap(id) => machine.disk.bootstrap_id = Some(id),
            // States that differ are found by `erring.rs`, and no machine here rebuilds one.
            turn::Mark::StateCorrupt => {}
        }
    }

    fn carry_away(&mut self, node: usize, now: leasehold::time::Instant, output: Output) {
        match output {
            Output::Persist(ticket, unsaved) => {
                self.trace.line(self.now, Some(node), || {
                    format!("   writes #{}{}", ticket.0, tell::unsaved(&unsaved))
                });
                let log = &mut self.process(node).log;
                log.queue.push((ticket, unsaved));
                if !log.busy {
                    log.busy = true;
                    self.schedule_work(5 * US, node, Work::LogWrites);
                }
            }
            Output::Send(envelope) => {
                self.judge.send(node, now, &envelope, &self.machines[node]);
                self.trace
                    .line(self.now, Some(node), || tell::sent(&envelope));
                self.nemesis_sees_message(node, &envelope);
                match self.network.carry(&envelope) {
                    Copies::None => {}
                    Copies::One(delay) => {
                        self.schedule(delay, Event::Deliver(Box::new(envelope)));
                    }
                    Copies::Two(first, second) => {
                        self.schedule(first, Event::Deliver(Box::new(envelope.clone())));
                        self.schedule(second, Event::Deliver(Box::new(envelope)));
                    }
                }
            }
            Output::Apply(entries) => {
                self.judge.apply(node, &entries);
                let delay = self.apply_delay(node);
                let state = &mut self.process(node).state;
                state.queue.extend(entries.into_iter().map(Step::Apply));
                if !state.busy {
                    state.busy = true;
                    self.schedule_work(delay, node, Work::StateApplies);
                }
            }
            Output::Install(id) => {
                let delay = self.apply_delay(node);
                let state = &mut self.process(node).state;
                state.queue.push_back(Step::Install(id));
                if !state.busy {
                    state.busy = true;
                    self.schedule_work(delay, node, Work::StateApplies);
                }
            }
            Output::SendSnapshot(peer) => self.sends_snapshot(node, place(peer)),
            Output::DiscardSnapshot(id) => self.discards_snapshot(node, id),
            Output::Read(id, permit) => self.deliver(node, id, Delivery::Permit(permit)),
            Output::CaughtUp(id) => self.deliver(node, id, Delivery::CaughtUp),
            Output::ReadLeases(..) => unreachable!("nobody lists leases here"),
            Output::FindIdleSessions { unused_since } => {
                self.schedule_work(20 * US, node, Work::StateFindsIdle(unused_since));
            }
            Output::Reply(id, result) => {
                let real = self.now;
                if let Ok(response) = &result {
                    self.judge.exposes(real, response.header.revision);
                }
                self.deliver(node, id, Delivery::Reply(result));
            }
        }
    }

    fn deliver(&mut self, node: usize, id: leasehold::types::RequestId, delivery: Delivery) {
        let process = self.process(node);
        let Some((connection, frame)) = process.driver.pending.remove(&id) else {
            return;
        };
        if let Some(session) = process.sessions.get_mut(&connection) {
            session.outbox.push((frame, delivery));
            self.ring_session(node, connection);
        }
    }

    /// The log thread takes what has gathered and writes it.
    pub(crate) fn log_writes(&mut self, node: usize) {
        let real = self.now;
        let machine = &mut self.machines[node];
        let log = &mut machine.process.as_mut().expect("running").log;
        let Some((last, _)) = log.queue.last() else {
            log.busy = false;
            return;
        };
        log.writing = Some(*last);
        let batch = log.queue.drain(..).map(|(_, unsaved)| unsaved).collect();
        let latency = machine.disk.write(real, batch);
        self.schedule_work(latency, node, Work::LogSyncs);
    }

    /// The sync returns.
    pub(crate) fn log_syncs(&mut self, node: usize) {
        let real = self.now;
        let machine = &mut self.machines[node];
        let before = machine.disk.hard();
        match machine.disk.sync(real) {
            Sync::Done => {
                self.judge.synced(node, before, &self.machines[node].disk);
                let log = &mut self.process(node).log;
                let ticket = log.writing.take().expect("a batch was being written");
                self.trace
                    .line(real, Some(node), || format!("   has written #{}", ticket.0));
                self.mail(node, Mail::Persisted(ticket));
                self.log_writes(node);
            }
            Sync::Failed => {
                self.trace
                    .line(real, Some(node), || "   sync failed".to_owned());
                self.stop(node, Ending::Kill);
                let delay = self.scheduling.between(10 * MS, 500 * MS);
                self.schedule(delay, Event::Start(node));
            }
        }
    }

    /// The state thread applies what has gathered, in one step.
    pub(crate) fn state_applies(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        let state = &mut machine.process.as_mut().expect("running").state;
        if let Some(Step::Install(id)) = state.queue.front() {
            let id = *id;
            state.queue.pop_front();
            return self.installs(node, id);
        }
        let is_install = |step: &Step| matches!(step, Step::Install(_));
        let some = state.queue.iter().position(is_install);
        let some = some.unwrap_or(state.queue.len()).min(APPLY_MAX);
        let entries = state.queue.drain(..some).map(|step| match step {
            Step::Apply(entry) => command(&entry),
            Step::Install(_) => unreachable!("none is among the first of them"),
        });
        let entries: Vec<_> = entries.collect();
        let entries = self.miscomputed(node, entries);
        let machine = &mut self.machines[node];
        let process = machine.process.as_mut().expect("running");
        let listening = process.watches.listening;
        let state = &mut machine.disk.state;
        match state.apply(node, &entries, listening, &mut self.judge) {
            Ok(applied) => {
                process.state.replies = applied.replies;
                process.state.changes = applied.changes;
                self.state_publishes(node);
            }
            Err(fault) => self.cannot_apply(node, &fault),
        }
    }

    fn cannot_apply(&mut self, node: usize, fault: &Fault) {
        let what = format!("n{} cannot apply: {fault}", node + 1);
        self.judge.fail("R4 state-machine safety", what);
    }

    /// The state thread publishes what it has applied, step by step; between any two it may lose the
    /// processor.
    pub(crate) fn state_publishes(&mut self, node: usize) {
        loop {
            if self.publishing.chance(self.options.preempt) {
                self.judge.marks.hit(Mark::PublicationInterrupted);
                let delay = self.publishing.spread(US, self.options.preempt_max);
                return self.schedule_work(delay, node, Work::StatePublishesNext);
            }
            if self.publishes_next(node) {
                return;
            }
        }
    }

    /// The state thread takes the next step of publication, and goes on to those that follow.
    pub(crate) fn state_publishes_next(&mut self, node: usize) {
        if !self.publishes_next(node) {
            self.state_publishes(node);
        }
    }

    /// Takes one step of publication; true if there is nothing more to do.
    fn publishes_next(&mut self, node: usize) -> bool {
        match self.machines[node].disk.state.publish_next() {
            Ok(false) => return false,
            Ok(true) => {}
            Err(fault) => {
                self.cannot_apply(node, &fault);
                return true;
            }
        }
        self.history_is_swept(node);
        let applied = self.process(node).state.replies.last().map(|(id, _)| *id);
        self.trace.line(self.now, Some(node), || {
            format!("   has applied {}", applied.unwrap_or_default())
        });
        let delay = self.scheduling.between(US, 30 * US);
        self.schedule_work(delay, node, Work::StateReports);
        true
    }

    /// A step of the removal of compacted history, at a pace of its own.
    fn history_is_swept(&mut self, node: usize) {
        if !self.sweeping.chance(0.4) {
            return;
        }
        let budget = CompactionBudget {
            events: self.sweeping.between(1, 12) as usize,
            bytes: usize::MAX,
        };
        let state = &self.machines[node].disk.state;
        let step = state.sweep(&budget);
        if step.removed == 0 {
            return;
        }
        self.judge.marks.hit(Mark::HistoryRemoved);
        if step.finished {
            self.judge.swept(node, &state.look());
        }
    }

    /// The state thread tells the driver.
    pub(crate) fn state_reports(&mut self, node: usize) {
        let delay = self.apply_delay(node);
        let state = &mut self.process(node).state;
        let replies = std::mem::take(&mut state.replies);
        let changes = state.changes.take();
        state.busy = !state.queue.is_empty();
        if state.busy {
            self.schedule_work(delay, node, Work::StateApplies);
        }
        self.mail(node, Mail::Applied(replies));
        self.watches_hear(node, changes);
        self.machines[node].disk.state.hands_over_perhaps();
        self.compacts_log(node);
    }

    /// The state thread looks for sessions that nobody used.
    pub(crate) fn state_finds_idle(&mut self, node: usize, unused_since: LogIndex) {
        let look = self.machines[node].disk.state.look();
        let sessions = kv::idle_sessions(&look, unused_since, 16).expect("memory does not fail");
        let input = Input::IdleSessions {
            unused_since,
            sessions,
        };
        self.mail(node, Mail::Input(Box::new(input)));
    }

    fn apply_delay(&mut self, node: usize) -> Nanos {
        let (slow_until, slow_by) = self.machines[node].apply_slow;
        if self.now < slow_until {
            self.judge.marks.hit(Mark::ApplySlow);
            self.scheduling.between(slow_by / 4, slow_by)
        } else {
            self.scheduling.between(5 * US, 100 * US)
        }
    }
}
