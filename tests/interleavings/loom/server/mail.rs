//! The way back to a client's stream.

#[path = "../../../../src/server/mail/outbox.rs"]
#[allow(dead_code, reason = "compiled as it is")]
pub(crate) mod outbox;
