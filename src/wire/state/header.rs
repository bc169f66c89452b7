//! What a state says of itself before its first record.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::kv::{ContentHash, STATE_FORMAT};
use crate::raft::LogBase;
use crate::types::{ClusterId, NodeId};

use super::fault::StateFault;

/// The format of chunks, header and end that this program writes, and the highest that it reads.
pub const STREAM_FORMAT: u16 = 1;

/// Identifies the file format by the first bytes.
const TITLE: &[u8; 16] = b"leasehold state\n";

/// Whose state it is, and as of when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// The member that wrote this.
    pub member: NodeId,
    /// The last entry applied, and the configuration there: a log may begin after it.
    pub base: LogBase,
    /// The store-wide revision.
    pub revision: i64,
    /// The oldest revision that can be read; 0 while nothing was ever compacted.
    pub compact_revision: i64,
    /// How many sessions are open.
    pub sessions: u64,
    /// How many client leases there are.
    pub leases: u64,
    /// The hash of everything stored (D1): what every change has kept.
    pub hash: ContentHash,
}

impl StateHeader {
    pub(super) fn encode(&self) -> BytesMut {
        let mut bytes = BytesMut::new();
        bytes.put_slice(TITLE);
        bytes.put_u16_le(STREAM_FORMAT);
        bytes.put_u32_le(STATE_FORMAT);
        let body = postcard::to_extend(self, Vec::new())
            .expect("a vector grows without bound and the types serialize without fail");
        bytes.put_slice(&body);
        bytes
    }

    pub(super) fn decode(mut body: Bytes) -> Result<Self, StateFault> {
        let damaged = StateFault::Damaged {
            chunk: 0,
            what: "its header cannot be decoded",
        };
        if body.len() < TITLE.len() + 6 || !body.starts_with(TITLE) {
            return Err(damaged);
        }
        let whole = body.clone();
        body.advance(TITLE.len());
        let format = body.get_u16_le();
        if format != STREAM_FORMAT {
            return Err(StateFault::NewerFormat {
                found: format,
                known: STREAM_FORMAT,
            });
        }
        let state = body.get_u32_le();
        if state != STATE_FORMAT {
            return Err(StateFault::OtherState {
                found: state,
                known: STATE_FORMAT,
            });
        }
        // There is one way to say it, so equal bytes are the whole check.
        match postcard::from_bytes::<Self>(&body) {
            Ok(header) if header.encode() == whole => Ok(header),
            _ => Err(damaged),
        }
    }
}
