//! What probes are told: checks, each of which passed or says why not. Those of this file are made on both
//! ports that have probes.

use super::node_state::NodeState;
use crate::api::Error;
use crate::types::Role;

/// One check of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, as in `leader_known`.
    pub name: &'static str,
    /// Whether all is well.
    pub ok: bool,
    /// What was found, in a few words; empty if that is nothing.
    pub detail: String,
}

impl Check {
    /// All is well.
    pub fn ok(name: &'static str) -> Self {
        Self {
            name,
            ok: true,
            detail: String::new(),
        }
    }

    /// A failed check; `detail` is the reason.
    pub fn failed(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            ok: false,
            detail: detail.into(),
        }
    }

    /// All is well unless there is this warning.
    pub(crate) fn unless(name: &'static str, warning: Option<String>) -> Self {
        match warning {
            None => Self::ok(name),
            Some(warning) => Self::failed(name, warning),
        }
    }

    /// The same, passed whatever was found.
    pub(crate) fn borne(self) -> Self {
        Self { ok: true, ..self }
    }

    /// As a line of a list, in etcd's form.
    pub(crate) fn line(&self) -> String {
        let Self { name, ok, detail } = self;
        match ok {
            true if detail.is_empty() => format!("[+]{name} ok\n"),
            true => format!("[+]{name} ok: {detail}\n"),
            false => format!("[-]{name} failed: {detail}\n"),
        }
    }
}

pub(crate) const DATA_CORRUPTION: &str = "data_corruption";
pub(crate) const SERIALIZABLE_READ: &str = "serializable_read";
pub(crate) const LINEARIZABLE_READ: &str = "linearizable_read";
pub(crate) const NON_LEARNER: &str = "non_learner";

/// Whether the state of this node is that of the others.
pub(crate) fn data_corruption(node: &NodeState) -> Check {
    Check::unless(DATA_CORRUPTION, node.integrity.warning())
}

/// Whether this node serves reads that may be stale.
pub(crate) fn serializable_read(node: &NodeState) -> Check {
    match node.is_readable() {
        true => Check::ok(SERIALIZABLE_READ),
        false => Check::failed(
            SERIALIZABLE_READ,
            "the state is being received, or compared with its hash",
        ),
    }
}

/// Whether this node serves a linearizable read, of which this is the outcome.
pub(crate) fn linearizable_read(read: Result<(), Error>) -> Check {
    Check::unless(LINEARIZABLE_READ, read.err().map(|error| error.to_string()))
}

/// Whether this node counts for the quorum.
pub(crate) fn non_learner(role: Role) -> Check {
    match role {
        Role::Learner => Check::failed(
            NON_LEARNER,
            "this node is a learner and does not count until it is promoted",
        ),
        _ => Check::ok(NON_LEARNER),
    }
}
