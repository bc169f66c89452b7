//! One record of the log.

use bytes::Bytes;

use crate::types::LogId;

/// One entry, as the log sees it: opaque bytes with a place and a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place and term.
    pub id: LogId,
    /// The caller's kind, below 128.
    pub kind: u8,
    /// Its bytes.
    pub payload: Bytes,
}
