//! Between threads.

#[path = "../../../../../src/server/threads/queue.rs"]
pub(crate) mod queue;
