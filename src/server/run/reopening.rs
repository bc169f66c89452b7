//! Has a state that was set aside opened again where no member leads without it (D3).
//!
//! A node without a state waits for one from its leader. Where all members have set theirs aside (a
//! release may take whole states for damaged), none of them can lead, with good copies on every disk.
//! So a node that lacks a state, has one aside, and hears of no leader for ten election timeouts ends,
//! and opens it again at its next start; once, for what is set aside then stays there.

use std::sync::Arc;
use std::time::Duration;

use crate::server::disk::state_dirs::StateDirs;
use crate::server::status::node_state::NodeState;
use crate::server::threads::fatal::Fatal;

/// For so many of the longest election timeouts no leader is heard of.
const PATIENCE: u32 = 10;

/// See the module.
pub(crate) struct LeaderlessWatch {
    pub(crate) node: Arc<NodeState>,
    pub(crate) lacks_state: bool,
    pub(crate) state_dirs: StateDirs,
    pub(crate) fatal: Fatal,
}

impl LeaderlessWatch {
    /// Waits until the node has a state, or has to end.
    pub(crate) async fn watch(self) {
        let timeout = self.node.timing.election_timeout_max;
        let clock = &self.node.clock;
        let mut heard = clock.now();
        while self.lacks_state && !self.node.is_readable() {
            tokio::time::sleep(timeout / 4).await;
            if self.node.published.leader().is_some() {
                heard = clock.now();
            }
            if clock.now().at_least_since(heard) < timeout * PATIENCE {
                continue;
            }
            heard = clock.now();
            match self.wants_back() {
                Ok(Some(aside)) => return self.fatal.give_up(&message(&aside, timeout * PATIENCE)),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "cannot look for a state that was set aside"),
            }
        }
    }

    /// Has the next start open what was set aside last; returns where it lies.
    fn wants_back(&self) -> std::io::Result<Option<String>> {
        let aside = self.state_dirs.last_aside()?;
        if let Some(aside) = &aside {
            self.state_dirs.ask_to_reopen(aside)?;
        }
        Ok(aside.map(|aside| aside.display().to_string()))
    }
}

fn message(aside: &str, waited: Duration) -> String {
    format!(
        "this node has no state, and no leader was heard of for {waited:?} that could send one: it \
         ends, and its next start opens again what was set aside ({aside})"
    )
}
