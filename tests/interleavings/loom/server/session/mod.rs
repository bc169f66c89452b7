//! Between a client's stream and the driver.

#[path = "../../../../../src/server/session/budget.rs"]
#[allow(dead_code, unreachable_pub, reason = "compiled as it is")]
pub(crate) mod budget;
