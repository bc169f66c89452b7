//! The services of locks and elections: etcd's recipes, carried out by the node.
//!
//! Both are lines below a prefix ([`line`]): who was there first has the lock, or leads.

mod election;
mod line;
mod lock;

pub(super) use election::{campaign, leader, observe, proclaim, resign};
pub(super) use lock::{lock, unlock};
