//! The state on fjall.
