//! What the threads of a node have in common: their queues, and what ends all of them.

pub(crate) mod fatal;
pub(crate) mod queue;
mod spawn;

pub(crate) use self::spawn::spawn;
