//! Members that come and go.
//!
//! An operator asks whoever leads to take a member in, to let one go, or to put one in another's
//! place, while everything else goes on; what is not safe is refused, and asked again or not. A
//! member that was removed is not stopped: it goes on with what it knows, which is the worst that it
//! can do, and it may be taken in again. (A server stops then, and comes back under another
//! identity.)

use bytes::Bytes;
use leasehold::node::Input;
use leasehold::raft::{Change, Configuration, Entry, JoinRole, Payload};
use leasehold::types::NodeId;

use crate::machine::Mail;
use crate::marks::Mark;
use crate::world::{World, founding, place};

impl World {
    /// Asks whoever leads for `change`.
    pub(crate) fn changes_members(&mut self, change: Change) {
        let Some(leader) = self.leader() else { return };
        // Nobody lets a voter go while another is still being built anew, or waits for a state: a
        // leader may take that one for alive for a moment, and would then need it.
        let takes_away = !matches!(change, Change::Add { .. } | Change::Promote(_));
        let is_whole = |node: &usize| {
            let disk = &self.machines[*node].disk;
            !disk.is_damaged() && disk.unproven.is_none() && !disk.lacks_state()
        };
        let mut halves = self.judge.voters_known_to(leader).into_iter();
        if takes_away && !halves.all(|half| half.iter().all(is_whole)) {
            return;
        }
        self.judge.marks.hit(Mark::ChangeAsked);
        self.mail(leader, Mail::Input(Box::new(Input::Change(change))));
    }

    /// What a process on `node` begins with: what was in force where its log begins.
    pub(crate) fn base_configuration(&self, node: usize) -> Configuration {
        let disk = &self.machines[node].disk;
        let before = disk.base().index.0 as usize;
        let is_initial_member = node < self.options.founders;
        match latest(&disk.entries()[..before]) {
            Some(configuration) => configuration.clone(),
            None if is_initial_member || before > 0 => founding(&self.options),
            // Whoever waits to be made a member knows nothing of the cluster.
            None => Configuration::default(),
        }
    }

    /// The members, as whoever leads has them.
    pub(crate) fn members(&self) -> Vec<usize> {
        let of = self.leader().unwrap_or_default();
        let members = self.judge.configuration(of).members();
        members.into_iter().map(place).collect()
    }

    /// No change is under way.
    pub(crate) fn members_are_settled(&self) -> bool {
        let leader = self.leader().unwrap_or_default();
        let Some(process) = &self.machines[leader].process else {
            return false;
        };
        let consensus = process.node.consensus();
        let configuration = consensus.configuration();
        consensus.is_configuration_committed()
            && !configuration.is_joint()
            && configuration.joining.is_empty()
    }
}

/// The last configuration among `entries`.
pub(crate) fn latest(entries: &[Entry]) -> Option<&Configuration> {
    entries.iter().rev().find_map(|entry| match &entry.payload {
        Payload::Configuration(configuration) => Some(&**configuration),
        _ => None,
    })
}

pub(crate) fn added(node: usize, votes: bool) -> Change {
    Change::Add {
        member: id(node),
        details: details(node),
        role: match votes {
            true => JoinRole::Voter,
            false => JoinRole::Learner,
        },
    }
}

pub(crate) fn promoted(node: usize) -> Change {
    Change::Promote(id(node))
}

pub(crate) fn removed(node: usize) -> Change {
    Change::Remove(id(node))
}

pub(crate) fn replaced(node: usize, by: usize) -> Change {
    Change::Add {
        member: id(by),
        details: details(by),
        role: JoinRole::InPlaceOf(id(node)),
    }
}

fn details(node: usize) -> Bytes {
    Bytes::from(format!("n{}", node + 1))
}

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

#[cfg(test)]
mod tests {
    use crate::clock::MS;
    use crate::disk::Ending;
    use crate::nemesis::Target::Node;
    use crate::nemesis::{Fault, Way};
    use crate::options::Options;
    use crate::scenarios::Stage;

    /// `founders` nodes lead a cluster, and others wait to be taken in.
    fn stage(founders: usize, nodes: usize) -> Stage {
        let mut options = Options::still(founders);
        options.nodes = nodes;
        options.clients = 3;
        Stage::of(options)
    }

    fn settled(stage: &mut Stage, members: usize) {
        stage.until("the change is complete", 5_000, |stage| {
            let world = &stage.world;
            world.leader().is_some()
                && world.members_are_settled()
                && world.members().len() == members
        });
    }

    #[test]
    fn p13_a_cluster_grows_from_one_to_five_and_shrinks_while_clients_work() {
        let mut stage = stage(1, 5);
        for node in 1..5 {
            stage.does(0, Fault::Add(Node(node), true));
            settled(&mut stage, node + 1);
            stage.write();
        }
        for left in (1..5).rev() {
            let leader = stage.leader();
            stage.does(0, Fault::Remove(Node(leader)));
            settled(&mut stage, left);
            let next = stage.until_another_leads(leader, 1_000);
            assert!(!stage.lease_holds(leader));
            stage.write();
            stage.until("it has a lease", 1_000, |stage| stage.lease_holds(next));
        }
        stage.ends_well();
    }

    /// It hands over: nobody has to wait until promises are over.
    #[test]
    fn p36_a_leader_that_is_removed_is_succeeded_at_once() {
        let mut stage = stage(3, 3);
        let leader = stage.leader();
        let before = stage.now();
        stage.does(0, Fault::Remove(Node(leader)));
        let next = stage.until_another_leads(leader, 200);
        stage.until("it has a lease", 200, |stage| stage.lease_holds(next));
        assert!(!stage.lease_holds(leader));
        assert!(stage.now() - before < 100, "{} ms", stage.now() - before);
        stage.write();
        stage.ends_well();
    }

    #[test]
    fn p14_a_member_that_did_not_hear_of_its_removal_disturbs_nobody() {
        let mut stage = stage(4, 4);
        let (leader, gone) = (stage.leader(), stage.other(1));
        stage.does(6_000, Fault::Isolate(Node(gone), Way::Both, false));
        stage.does(0, Fault::Remove(Node(gone)));
        settled(&mut stage, 3);
        stage.wait(6_000);
        for _ in 0..20 {
            assert!(stage.lease_holds(leader));
            stage.wait(100);
        }
        assert_eq!(stage.leader(), leader);
        stage.ends_well();
    }

    #[test]
    fn p13_a_dead_member_is_replaced_and_then_another_may_die() {
        let mut stage = stage(3, 4);
        let leader = stage.leader();
        let (dead, another) = ((leader + 1) % 3, (leader + 2) % 3);
        stage.does(60_000, Fault::Crash(Node(dead), Ending::Power));
        stage.wait(100);
        stage.does(0, Fault::Replace(Node(dead), Node(3)));
        stage.until("the other has its place", 5_000, |stage| {
            stage.world.members_are_settled() && !stage.world.members().contains(&dead)
        });
        assert_eq!(stage.world.members().len(), 3);
        stage.does(2_000, Fault::Crash(Node(another), Ending::Power));
        stage.wait(100);
        stage.write();
        stage.ends_well();
    }

    /// Seeds 0xce5 and 0xe90: whoever founds alone has nobody to ask whether the cluster exists
    /// already. Had it lost everything it would found it again, beside the one that there is; no
    /// replica can know better, so operators must not let it, nor may the nemesis.
    #[test]
    fn a_lone_founder_that_was_removed_does_not_found_the_cluster_again() {
        let mut stage = stage(1, 2);
        stage.does(0, Fault::Add(Node(1), true));
        settled(&mut stage, 2);
        stage.does(0, Fault::Remove(Node(0)));
        settled(&mut stage, 1);
        stage.does(5, Fault::Wipe(Node(0)));
        stage.wait(5_000);
        assert!(!stage.world.machines[0].disk.wiped);
        assert_eq!(stage.leader(), 1);
        stage.ends_well();
    }

    /// Seed 0x4c4bad: a member was alone, took in others, and its log lost its end back to when it was alone. It
    /// must not go by that: it starts once the operator says that there are others, and gets everything back.
    #[test]
    fn a_member_whose_damaged_log_names_no_other_starts_when_the_operator_knows_better() {
        let mut stage = stage(1, 3);
        let alone = stage.world.machines[0].disk.log().len();
        for node in 1..3 {
            stage.does(0, Fault::Add(Node(node), true));
            settled(&mut stage, node + 1);
        }
        stage.write();
        stage.world.stop(0, Ending::Kill);
        stage.world.machines[0].disk.lose_end(alone);
        let disk = &stage.world.machines[0].disk;
        stage.world.judge.stopped(0, disk);
        stage.until_another_leads(0, 5_000);
        stage.world.start(0);
        stage.until("it has everything again", 5_000, |stage| {
            let machine = &stage.world.machines[0];
            !machine.disk.wiped && !machine.disk.is_damaged()
        });
        assert!(stage.world.machines[0].cluster_exists, "it was told so");
        stage.write();
        stage.ends_well();
    }

    /// Seeds 0x26f9 and 0x27a6: a learner lost everything a moment before it became the second voter of two, by
    /// a leader that had not heard. Then nobody is left who could confirm what it must hold: the same
    /// as a voter of two that loses its disk, which nothing can survive.
    #[test]
    fn a_learner_that_would_be_the_second_voter_keeps_its_disk() {
        let mut stage = stage(1, 2);
        stage.does(0, Fault::Add(Node(1), false));
        stage.wait(2_000);
        stage.does(5, Fault::Wipe(Node(1)));
        assert!(!stage.world.machines[1].disk.wiped);
        stage.does(0, Fault::Promote(Node(1)));
        settled(&mut stage, 2);
        stage.ends_well();
    }

    /// What is not safe is refused, and nothing changes.
    #[test]
    fn a_removal_that_would_leave_too_few_is_refused() {
        let mut stage = stage(3, 3);
        let (dead, alive) = (stage.other(1), stage.other(2));
        stage.does(60_000, Fault::Crash(Node(dead), Ending::Kill));
        stage.wait(1_500);
        stage.does(0, Fault::Remove(Node(alive)));
        stage.world.run_until(stage.world.now + 100 * MS);
        assert_eq!(stage.world.members().len(), 3);
        stage.write();
        stage.does(0, Fault::Remove(Node(dead)));
        settled(&mut stage, 2);
        stage.ends_well();
    }
}
