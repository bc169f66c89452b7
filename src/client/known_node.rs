//! A node that requests go to, as the router and its parts share it.

use std::sync::Weak;

use super::link::Link;
use crate::types::NodeId;

/// A node to which requests go, be it as the leader, and its address.
#[derive(Clone, Debug)]
pub(super) struct KnownNode {
    pub(super) id: Option<NodeId>,
    pub(super) address: String,
    /// The connection that it answered on last. The pool keeps it.
    pub(super) link: Weak<Link>,
}
