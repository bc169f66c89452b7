//! Bytes and types: what travels between a client and a server, and between peers.
//!
//! Everything is a frame: `u32 length, u8 kind, u16 version, u32 crc32, body`, numbers little
//! endian. The length counts the body alone and is checked against the limit of its kind before
//! anything is allocated for it; the checksum covers everything else in the frame, length
//! included; the body is one postcard value and nothing after it.
//!
//! postcard is not self-describing: enum variants are only ever appended, and a body that must
//! change gets a new kind or a new version. Tests pin the bytes of each kind. The two hello
//! bodies keep their shape for ever, because they are read before a version is agreed on.
//!
//! Nothing here knows a socket. [`FrameReader`] takes chunks as they come and yields whole
//! frames; [`encode`] appends a frame to a buffer, so that many frames become one write. Whatever
//! the bytes are, the answer is a frame or a [`WireError`], never a panic, and memory grows with
//! what was received, never with what a length claims.

mod codec;
mod context;

pub mod client;
pub mod peer;
pub mod point;
pub mod state;

#[cfg(test)]
mod tests;

pub use codec::{
    Body, Door, Frame, FrameLimits, FrameReader, HEADER_BYTES, Kind, PROTOCOL_VERSIONS, WireError,
    encode,
};

pub use context::RequestContext;

pub use crate::types::VersionRange;
