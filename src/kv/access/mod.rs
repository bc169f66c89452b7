//! Who may do what: users, roles, permissions, and the one judgement over every request.
//!
//! The rules are replicated state like any other, changed by entries of the log alone. A write is
//! judged when it is applied, by the rules of that moment, so that replicas cannot disagree; its
//! author stands in the command. A read is judged by rules that are no older than what it finds
//! ([`Policy`], published with the state), and a watch anew whenever the rules have changed.
//!
//! [`needs`] says what each request needs, in one table without a default, and [`judge`] whether an
//! identity has that. Whoever is nobody, or has a role that does not say so, may not.
//!
//! | Key in `meta` | Record |
//! |---|---|
//! | `access` | what tokens are signed with |
//! | `user/` ⧺ name | `User` |
//! | `role/` ⧺ name | `Role` |
//!
//! Whether access is controlled at all stands with the state's progress, which every entry reads
//! anyway. What is missing on purpose: hashing and tokens, which need randomness and clocks; the
//! server has them.

mod change;
mod need;
mod needs;
mod policy;
mod ranges;
mod records;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(super) use change::change;
pub use need::Need;
pub use needs::needs;
pub(super) use needs::{permit, permit_session};
pub use policy::{Policy, Rules, judge};
pub use records::{password_hash, read};

/// Who wants a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// A node of the cluster, of its own accord.
    Node,
    /// A client.
    Client(Identity),
}

/// Who a client is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The user's name.
    pub name: String,
    /// Where he is known by a token: which of his passwords it was given for. With another password
    /// the token is void. `None` where he is known by certificate.
    pub generation: Option<u64>,
}

impl Author {
    /// Whose sessions and leases they are.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Node => "",
            Self::Client(identity) => &identity.name,
        }
    }
}
