//! What is wrong with a node, and with its cluster as far as it knows: one list, which `endpoint status`,
//! `/readyz`, the reports of the admin port and `leasehold doctor` show alike.

use super::node_state::NodeState;
use crate::api::{DRAINED, MemberInfo};
use crate::types::Role;

/// Of a node that went into quarantine while it ran.
const QUARANTINED: &str = "this node may lack entries that it has acknowledged: it is quarantined \
                           and neither votes nor serves; it copies all data from its peers";

impl NodeState {
    /// Everything that an operator should know; `space` is what there is to say of the quota.
    pub(crate) fn all_warnings(&self, space: Option<String>) -> Vec<String> {
        let now = self.clock.now();
        let members = self.directory.members();
        let drained = self.is_stopping().then(|| DRAINED.to_owned());
        let bootstrap = self.directory.bootstrap_warning();
        // While it waits for its bootstrap, a cluster has no leader for that reason.
        let leaderless = match bootstrap {
            Some(_) => None,
            None => self.leaderless_warning(),
        };
        drained
            .into_iter()
            .chain(self.integrity.warning())
            .chain(space)
            .chain(bootstrap)
            .chain(self.directory.other_bootstrap_warning())
            .chain(leaderless)
            .chain(self.double_warning())
            .chain(self.doubles.of_others(now))
            .chain(self.quarantine_warning())
            .chain(self.contacts.silent(now, self.member_id, &members))
            .chain(self.far_holders(&members))
            .chain(self.start_warnings.iter().cloned())
            .collect()
    }

    /// That no node has led for a while.
    pub(crate) fn leaderless_warning(&self) -> Option<String> {
        let voters = self.directory.voters();
        self.contacts
            .leaderless(self.clock.now(), self.member_id, &voters)
    }

    fn far_holders(&self, members: &[MemberInfo]) -> Vec<String> {
        let max_write_delay = self.timing.read_lease_max_write_delay;
        self.followers.far_holders(max_write_delay, members)
    }

    /// That another process has the identity of this node.
    pub(crate) fn double_warning(&self) -> Option<String> {
        self.doubles.of_this_node(self.clock.now(), &self.name)
    }

    /// Why it is quarantined, if it is.
    pub(crate) fn quarantine_warning(&self) -> Option<String> {
        (self.role() == Role::Quarantined).then(|| {
            let at_start = self.quarantined_at_start.clone();
            at_start.unwrap_or_else(|| QUARANTINED.to_owned())
        })
    }
}
