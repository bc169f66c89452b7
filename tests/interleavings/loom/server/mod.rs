//! The files of the server that are tried, in the places where they know each other.

#[path = "../../../../src/server/session/budget.rs"]
#[allow(dead_code, unreachable_pub, reason = "compiled as it is")]
pub(crate) mod budget;
#[path = "../../../../src/server/threads/queue.rs"]
pub(crate) mod gather;
#[path = "../../../../src/server/session/outbox.rs"]
#[allow(dead_code, reason = "compiled as it is")]
pub(crate) mod outbox;
pub(crate) mod peers;
