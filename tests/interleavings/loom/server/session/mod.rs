//! Between a client's stream and the driver.

#[path = "../../../../../src/server/session/budget.rs"]
#[allow(dead_code, unreachable_pub, reason = "compiled as it is")]
pub(crate) mod budget;
#[path = "../../../../../src/server/session/outbox.rs"]
#[allow(dead_code, reason = "compiled as it is")]
pub(crate) mod outbox;
