//! How a machine starts with what its disk holds: the server's own decision
//! ([`leasehold::node::recovery`]), over a simulated disk.

use leasehold::kv;
use leasehold::node::recovery;
use leasehold::node::recovery::{Bootstrap, ClusterState, Member, Start, Step};
use leasehold::raft::Configuration;
use leasehold::types::NodeId;

use crate::world::World;

impl World {
    /// Puts the disk of `node` in order, as a process does that starts there.
    pub(crate) fn recover(&mut self, node: usize, configuration: &Configuration) -> Start {
        let member = self.member(node);
        let machine = &mut self.machines[node];
        let mut facts = machine.disk.facts(machine.tripped);
        loop {
            match recovery::decide(&facts, &member) {
                Ok(Step::Start(start)) => break start,
                Ok(step) => machine.disk.carry_out(step, &mut facts, configuration),
                Err(refusal) => panic!("n{} does not start: {refusal}", node + 1),
            }
        }
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
