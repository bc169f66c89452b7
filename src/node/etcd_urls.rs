//! Where etcd's clients reach the members: each says it to its peers, and the leader has it logged.
//!
//! A leader logs what it has heard when it is elected and whenever that or the configuration changes, and does not
//! look whether the state says so already: an entry that changes nothing is rare and cheap. While no member has such
//! a port there is none.

use super::Node;
use super::said_urls::SaidUrls;
use crate::kv::Command;
use crate::time::Instant;

impl Node {
    /// As leader, has logged what the members have said, if that is new.
    pub(super) fn record_etcd_urls(&mut self, now: Instant) {
        let Some(term) = self.consensus.leads_in() else {
            return;
        };
        let SaidUrls { said, changes, .. } = &self.etcd_urls;
        let wish = (term, self.consensus.configuration_index(), *changes);
        if self.etcd_urls.proposed == Some(wish) || said.values().all(String::is_empty) {
            return;
        }
        if !self.consensus.status().ready {
            return;
        }
        let members = self.consensus.configuration().members().into_iter();
        let members = members.map(|id| (id, said.get(&id).cloned())).collect();
        let command = Command::SetEtcdUrls(members);
        // A refusal is harmless: the next input tries again.
        if self.consensus.propose(now, command.encode()).is_ok() {
            self.etcd_urls.proposed = Some(wish);
        }
    }
}
