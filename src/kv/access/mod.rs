//! Access control: users, roles, permissions, and the one function that judges every request.
//!
//! The rules are replicated state like any other, changed by entries of the log alone. A write is
//! judged when it is applied, by the rules of that moment, so that replicas cannot disagree; the
//! command carries its author. A read is judged by rules that are no older than the state it reads
//! ([`Policy`], published with the state), and a watch is judged again whenever the rules have
//! changed.
//!
//! `needs` lists the permissions that each request needs, in one table without a default, and
//! [`judge`] decides whether an identity has them. What no role permits is refused, and so are
//! unknown users.
//!
//! | Key in `meta` | Record |
//! |---|---|
//! | `access` | what tokens are signed with |
//! | `user/` ⧺ name | `User` |
//! | `role/` ⧺ name | `Role` |
//!
//! Whether access control is enabled is stored with the progress of the state, which every entry
//! reads anyway. Missing on purpose: password hashing and tokens, which need randomness and clocks;
//! they are in the server.

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

/// The author of a write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// A node of the cluster itself.
    Node,
    /// A client.
    Client(Identity),
}

/// The identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The user's name.
    pub name: String,
    /// For a user authenticated by a token: the password revision it was issued for or, if an issuer outside of
    /// the cluster gave it, that of the moment at which it was shown. A change of the password invalidates it.
    /// `None` for a user authenticated by certificate.
    pub generation: Option<u64>,
}

impl Author {
    /// The owner of the sessions and leases it creates.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Node => "",
            Self::Client(identity) => &identity.name,
        }
    }
}
