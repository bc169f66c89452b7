//! Logs that are cut at their beginning, and whole states on their way to who needs one.
//!
//! A node cuts its log now and then, by what it has just made durable, and keeps a few entries.
//! A whole state is copied when it is asked for and takes its time; until all heals it may get
//! lost as a message may, its sender or its receiver may die meanwhile, and it arrives whole or not
//! at all: that the shell takes no other for whole is for the tests of the shell to show.

use std::time::Duration;

use leasehold::kv;
use leasehold::node::{Input, InstalledSnapshot};
use leasehold::raft::LogBase;
use leasehold::types::{LogId, LogIndex, NodeId};

use crate::clock::{MS, SECOND, US};
use crate::disk::Received;
use crate::machine::Mail;
use crate::marks::Mark;
use crate::members;
use crate::world::{Event, Work, World, founding};

impl World {
    /// The state thread has applied something, and may make all of it durable.
    pub(crate) fn compacts_log(&mut self, node: usize) {
        let Some(kept) = self.options.log_tail else {
            return;
        };
        if !self.machines[node].disk.can_compact() || !self.compacting.chance(0.1) {
            return;
        }
        // Usually the map has nearly everything by then: seconds pass between two cuts.
        if self.compacting.chance(0.7) {
            self.machines[node].disk.state.hands_over();
        }
        let durable = self.machines[node].disk.persist();
        let applied = self.applied(node);
        let truncation = durable.truncation(LogIndex(applied.0.saturating_sub(kept)));
        if truncation.through() > self.machines[node].disk.base().index {
            self.judge.marks.hit(Mark::LogCompacted);
            self.mail(node, Mail::Input(Box::new(Input::Compact(truncation))));
        }
    }

    /// `node` sends what it has to `to`.
    pub(crate) fn sends_snapshot(&mut self, node: usize, to: usize) {
        self.judge.marks.hit(Mark::SnapshotSent);
        let machine = &self.machines[node];
        let store = machine.disk.state.copy();
        let id = kv::progress(&store).expect("memory does not fail").applied;
        let through = id.index.0 as usize;
        let received = Received {
            id,
            store,
            entries: machine.disk.entries()[..through].to_vec(),
        };
        let event = Event::Snapshot {
            from: node,
            life: machine.life,
            to,
            received: Box::new(received),
        };
        let delay = self.compacting.spread(MS, 2 * SECOND);
        self.trace.line(self.now, Some(node), || {
            let takes = Duration::from_nanos(delay);
            format!("   sends its state, {id}, to n{}: takes {takes:?}", to + 1)
        });
        self.schedule(delay, event);
    }

    /// It arrives, or does not; its sender notices either.
    pub(crate) fn snapshot_arrives(
        &mut self,
        from: usize,
        life: u64,
        to: usize,
        received: Received,
    ) {
        let sender = &self.machines[from];
        let sends = sender.life == life && sender.process.is_some();
        let passes = self.network.passes(self.now, from, to)
            && (!self.compacting.chance(0.2) || self.healed);
        let hears = self.machines[to].process.is_some();
        let arrives = sends && passes && hears;
        self.trace.line(self.now, Some(to), || {
            let (what, id) = (if arrives { "gets" } else { "misses" }, received.id);
            format!("   {what} the state of n{}, {id}", from + 1)
        });
        if arrives {
            let configuration = members::latest(&received.entries).cloned();
            let base = LogBase {
                id: received.id,
                configuration: configuration.unwrap_or_else(|| founding(&self.options)),
            };
            if self.machines[to].disk.receive(received) {
                self.mail(to, Mail::Input(Box::new(Input::SnapshotReceived(base))));
            }
        } else {
            self.judge.marks.hit(Mark::SnapshotLost);
        }
        if sends {
            let peer = NodeId(to as u64 + 1);
            self.mail(from, Mail::Input(Box::new(Input::SnapshotSent(peer))));
        }
    }

    /// The state thread puts what was received in the store's place.
    pub(crate) fn installs(&mut self, node: usize, id: LogId) {
        let applied = self.applied(node);
        if applied > id.index {
            let what = format!("n{} installs {id} over {applied}", node + 1);
            return self
                .judge
                .fail("P30 the state machine never goes back", what);
        }
        let disk = &mut self.machines[node].disk;
        if !disk.install(id) {
            let what = format!("n{} is to install {id}, which it has not", node + 1);
            return self.judge.fail("R4 state-machine safety", what);
        }
        self.judge.marks.hit(Mark::SnapshotInstalled);
        let look = disk.state.look();
        let progress = look.progress();
        let hash = kv::content_hash(&look).expect("memory does not fail");
        let bootstrap = kv::bootstrap(&look).expect("memory does not fail");
        let leases = kv::held_leases(&look).expect("memory does not fail");
        let cluster_version = kv::cluster_version(&look).expect("memory does not fail");
        self.judge.applied(node, id, hash.0);
        self.trace
            .line(self.now, Some(node), || format!("   has installed {id}"));
        let installed = InstalledSnapshot {
            id: progress.applied,
            revision: progress.revision,
            bootstrap,
            leases,
            cluster_version,
        };
        let input = Input::Installed(Box::new(installed));
        self.mail(node, Mail::Input(Box::new(input)));
        self.schedule_work(US, node, Work::StateReports);
    }

    pub(crate) fn discards_snapshot(&mut self, node: usize, id: LogId) {
        self.judge.marks.hit(Mark::SnapshotDiscarded);
        self.machines[node].disk.discard(id);
    }
}

#[cfg(test)]
mod tests {
    use crate::marks::Mark;
    use crate::script;
    use crate::world::World;

    /// Seed 0x834: four in a row did, to a follower that needed one, and nothing was wrong any more.
    #[test]
    fn no_state_gets_lost_once_all_has_healed() {
        let mut installed = 0;
        for seed in 1..=20 {
            let text = format!(
                "seed {seed}\nlog plain\nlog-tail 0\nclients 2\nthink 20ms\nfaults-last 5s\n\
                 at 3s for 3s: isolate follower1 both\n"
            );
            let script = script::read(&text).expect("it is well formed");
            let mut world = World::new(script.options.clone());
            world.run_until(script.options.faulty_for);
            world.heal();
            let lost = |world: &World| world.judge.all_marks().count(Mark::SnapshotLost);
            let before = lost(&world);
            world.must_be_well();
            assert_eq!(lost(&world), before, "seed {seed}");
            let report = world.finish();
            assert!(report.violation.is_none(), "{seed}: {:?}", report.violation);
            installed += report.marks.count(Mark::SnapshotInstalled);
        }
        assert!(installed >= 20, "{installed}");
    }
}
