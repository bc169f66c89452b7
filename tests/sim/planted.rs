//! Deliberate bugs in what stands in for the server's threads and for the SDK: compiled under
//! `--cfg leasehold_bugs` only. Each takes a rule away that lives outside the library's pure base;
//! `leasehold::planted` has the list, `bugs.rs` insists that each is found.

use leasehold::kv;
use leasehold::kv::Overlay;
use leasehold::raft::Unsaved;
use leasehold::types::Role;
use leasehold::watch::Applied;

use crate::watches::{Order, changes_of, command};
use crate::world::World;

impl World {
    /// `UncommittedShown`: a leader tells its watchers what it is about to make durable.
    pub(crate) fn planted_before_the_sync(&mut self, node: usize, unsaved: &Unsaved) {
        let process = self.machines[node].process.as_ref().expect("it runs");
        let leads = process.status.role == Role::Leader && process.watches.listening;
        if !leads || !planted!(UncommittedShown) {
            return;
        }
        let store = &self.machines[node].disk.store;
        let mut overlay = Overlay::new(store);
        for (id, bytes) in unsaved.entries.iter().map(command) {
            if kv::apply(&mut overlay, id, bytes.as_deref()).is_err() {
                // Something before it is not applied yet.
                return;
            }
        }
        let revision = kv::progress(&overlay).expect("memory does not fail");
        let written: Vec<_> = overlay.into_changes().collect();
        let changes = changes_of(&written).ok();
        let revision = revision.revision;
        if changes.as_ref().is_some_and(|changes| !changes.is_empty()) {
            self.tell_watches(node, Order::Applied(Applied { revision, changes }));
        }
    }
}
