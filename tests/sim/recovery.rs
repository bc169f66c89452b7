//! How a machine starts with what its disk holds: the server's own decision
//! ([`leasehold::node::recovery`]), over a simulated disk.

use leasehold::kv;
use leasehold::node::recovery;
use leasehold::node::recovery::{Bootstrap, ClusterState, Member, Refusal, Start, Step};
use leasehold::raft::Configuration;
use leasehold::types::NodeId;

use crate::members::latest;
use crate::world::World;

impl World {
    /// Puts the disk of `node` in order, as a process does that starts there. Where that refuses because it
    /// cannot know whether there are other members, the operator, who knows, empties the directory.
    pub(crate) fn recover(&mut self, node: usize, configuration: &Configuration) -> Start {
        match self.decide(node, configuration) {
            Ok(start) => start,
            Err(Refusal::LogDamaged { .. }) if self.has_others(node) => {
                let machine = &mut self.machines[node];
                machine.cluster_exists = true;
                machine.disk.wipe(node);
                self.judge.stopped(node, &machine.disk);
                let emptied = self.decide(node, configuration);
                emptied.unwrap_or_else(|refusal| panic!("n{} does not start: {refusal}", node + 1))
            }
            Err(refusal) => panic!("n{} does not start: {refusal}", node + 1),
        }
    }

    fn decide(&mut self, node: usize, configuration: &Configuration) -> Result<Start, Refusal> {
        let member = self.member(node);
        let machine = &mut self.machines[node];
        let mut facts = machine.disk.facts(machine.tripped);
        loop {
            match recovery::decide(&facts, &member)? {
                Step::Start(start) => return Ok(start),
                step => machine.disk.carry_out(step, &mut facts, configuration),
            }
        }
    }

    /// Whether another node holds a configuration with somebody else than `node`, which may be none of its members any
    /// more.
    fn has_others(&self, node: usize) -> bool {
        let id = NodeId(node as u64 + 1);
        let others = (0..self.machines.len()).filter(|other| *other != node);
        let mut logs = others.map(|other| (other, self.machines[other].disk.log()));
        logs.any(|(other, log)| {
            let base = self.base_configuration(other);
            let members = latest(log).unwrap_or(&base).members();
            members.iter().any(|member| *member != id)
        })
    }

    /// What the operator has written into the configuration of `node`.
    fn member(&self, node: usize) -> Member {
        let founders = self.options.founders;
        let names: Vec<String> = (1..=founders).map(|number| format!("n{number}")).collect();
        let is_initial_member = node < founders;
        let machine = &self.machines[node];
        // A node that bootstrapped its cluster alone takes in no other before that has been changed.
        let ran_alone = founders == 1 && *machine.disk.bootstrap() != Bootstrap::Missing;
        let exists = !is_initial_member || ran_alone || machine.cluster_exists;
        Member {
            id: NodeId(node as u64 + 1),
            state: match exists {
                true => ClusterState::Existing,
                false => ClusterState::New,
            },
            initial: names.clone(),
            is_initial_member,
            told: names,
            versions: kv::KNOWN_VERSIONS,
        }
    }
}
