//! The rules of access, beside the state that they come from.
//!
//! They are published before the state that brought them: a reader that looks at the state first and
//! at the rules afterwards has rules that are no older. They may be newer, and then they hold already.
//! While access is not controlled, finding that out is one relaxed load; that it is not an older one
//! than the state follows from the state's own publication, which the look has synchronised with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::kv::access::Policy;

/// The rules in force, for all who read. One for all states of a node, as they follow each other.
#[derive(Debug, Default)]
pub struct Gate {
    is_on: AtomicBool,
    policy: ArcSwap<Policy>,
}

impl Gate {
    /// The rules, if access is controlled. To be asked after the look at the state that they are to be
    /// applied to.
    pub fn rules(&self) -> Option<Arc<Policy>> {
        // Pairs with the store before the state was published, as the module says.
        if !self.is_on.load(Ordering::Relaxed) {
            return None;
        }
        let policy = self.policy.load_full();
        policy.status().enabled.then_some(policy)
    }

    /// The rules, whether they are enforced or not.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Puts these in force. Called before the state is published that they are part of.
    pub(super) fn publish(&self, policy: Arc<Policy>) {
        let is_on = policy.status().enabled;
        self.policy.store(policy);
        self.is_on.store(is_on, Ordering::Release);
    }
}
