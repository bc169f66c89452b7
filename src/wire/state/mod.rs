//! A whole state as a row of chunks: a stream to a member that is too far behind, and a backup in a
//! file. The same bytes are both.
//!
//! ```text
//! chunk    magic "lhs1", u32 crc32 of the rest, u64 number, u8 kind, u32 length of the body, body
//! kind 0   header    title, u16 format, u32 format of the state, then one postcard value: whose state
//!                    it is, as of which entry, and its content hash
//! kind 1   records   a piece of the row of records, wherever that is cut
//! kind 2   end       how many chunks and records there were, and a hash over all chunks before it
//! record   u8 keyspace, u16 length of the key, u32 length of the record, key, record
//! ```
//!
//! Numbers are little endian. Chunks are numbered from 0. All but the last two are as long as a chunk
//! may be, so the same state gives the same chunks for every reader, at any pace, and a reader
//! that lost its connection goes on with the chunk that it has not got. Records come in the order of
//! keyspaces and keys, each once.
//!
//! Three things are checked, each against a different fault: the checksum of a chunk (bits that
//! turned), the hash in the end (chunks of different states put together), and the content hash of the
//! state itself (a state that was wrong before it was read). [`StateDecoder`] checks all of them and
//! hands out records before the end, so a receiver keeps them separate until the end has arrived.
//!
//! Nothing here knows a file or a socket, or what a record means.

mod chunk;
mod decode;
mod encode;
mod fault;
mod header;
#[cfg(test)]
mod tests;

pub use chunk::{CHUNK_BYTES_MAX, Chunks, HEADING_BYTES, chunk_bytes};
pub use decode::{StateDecoder, StatePart, StateSummary};
pub use encode::{EncoderMark, StateEncoder};
pub use fault::{ReadFault, StateFault};
pub use header::{STREAM_FORMAT, StateHeader};

use crate::kv::Space;

/// How many records there are, by [`Space::slot`].
pub type Counts = [u64; Space::ALL.len()];

/// The longest key of a record: what its length can say.
pub const STATE_KEY_BYTES_MAX: usize = u16::MAX as usize;

/// The longest record. The longest that is ever stored is a few megabytes.
pub const STATE_RECORD_BYTES_MAX: usize = 64 << 20;
