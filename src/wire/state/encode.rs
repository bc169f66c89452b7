//! Records in, chunks out.

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::Xxh3;

use crate::kv::Space;

use super::chunk::{BODY_BYTES_MAX, ChunkKind, seal};
use super::header::StateHeader;
use super::{Counts, STATE_KEY_BYTES_MAX, STATE_RECORD_BYTES_MAX};

/// Makes the chunks of a state. After each record take the chunks that are [full](Self::full);
/// after the last one [finish](Self::finish).
pub struct StateEncoder {
    /// How many there are so far.
    chunks: u64,
    records: Counts,
    running: u128,
    /// Of the records so far, what is in no chunk yet.
    pending: BytesMut,
}

/// Where an encoder stood after a chunk, to go on there again ([`StateEncoder::resume`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderMark {
    chunks: u64,
    records: Counts,
    running: u128,
    tail: usize,
}

impl EncoderMark {
    /// The number of the chunk that comes next.
    pub fn next_chunk(&self) -> u64 {
        self.chunks
    }
}

impl StateEncoder {
    /// Begins with the header, which is chunk 0.
    pub fn begin(header: &StateHeader) -> (Self, Bytes) {
        let mut this = Self {
            chunks: 0,
            records: Counts::default(),
            running: 0,
            pending: BytesMut::new(),
        };
        let chunk = this.chunk(ChunkKind::Header, &header.encode());
        (this, chunk)
    }

    /// Goes on where `mark` was taken. `last` is the last record that was pushed before.
    pub fn resume(mark: &EncoderMark, last: Option<(Space, &[u8], &[u8])>) -> Self {
        let mut pending = BytesMut::new();
        if let Some((space, key, record)) = last {
            put_record(&mut pending, space, key, record);
            let sent = pending.len() - mark.tail;
            drop(pending.split_to(sent));
        }
        Self {
            chunks: mark.chunks,
            records: mark.records,
            running: mark.running,
            pending,
        }
    }

    /// Where it stands: to be asked when a chunk has just been taken, so that all that is pending
    /// belongs to the last record.
    pub fn mark(&self) -> EncoderMark {
        EncoderMark {
            chunks: self.chunks,
            records: self.records,
            running: self.running,
            tail: self.pending.len(),
        }
    }

    /// Takes the next record. Records come in the order of keyspaces and keys.
    ///
    /// # Panics
    /// A key or a record is longer than any that is ever stored.
    pub fn push(&mut self, space: Space, key: &[u8], record: &[u8]) {
        assert!(key.len() <= STATE_KEY_BYTES_MAX);
        assert!(record.len() <= STATE_RECORD_BYTES_MAX);
        self.records[space.slot()] += 1;
        put_record(&mut self.pending, space, key, record);
    }

    /// A chunk, if there are records enough for a full one.
    pub fn full(&mut self) -> Option<Bytes> {
        if self.pending.len() < BODY_BYTES_MAX {
            return None;
        }
        let body = self.pending.split_to(BODY_BYTES_MAX);
        Some(self.chunk(ChunkKind::Records, &body))
    }

    /// The last chunks: the rest of the records, if there is any, and the end.
    pub fn finish(mut self) -> Vec<Bytes> {
        let mut last = Vec::with_capacity(2);
        last.extend(self.full());
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() {
            last.push(self.chunk(ChunkKind::Records, &rest));
        }
        let end = End {
            chunks: self.chunks,
            records: self.records,
            hash: self.running,
        };
        last.push(seal(self.chunks, ChunkKind::End, &end.encode()));
        last
    }

    fn chunk(&mut self, kind: ChunkKind, body: &[u8]) -> Bytes {
        let chunk = seal(self.chunks, kind, body);
        self.chunks += 1;
        self.running = run(self.running, &chunk);
        chunk
    }
}

/// The hash of all chunks up to this one.
pub(super) fn run(before: u128, chunk: &[u8]) -> u128 {
    let mut hasher = Xxh3::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(chunk);
    hasher.digest128()
}

/// One byte of keyspace and two lengths stand before key and record.
pub(super) const RECORD_HEADING_BYTES: usize = 7;

fn put_record(bytes: &mut BytesMut, space: Space, key: &[u8], record: &[u8]) {
    bytes.reserve(RECORD_HEADING_BYTES + key.len() + record.len());
    bytes.put_u8(space as u8);
    bytes.put_u16_le(key.len() as u16);
    bytes.put_u32_le(record.len() as u32);
    bytes.put_slice(key);
    bytes.put_slice(record);
}

/// What stands in the last chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// How many chunks are before it.
    pub(super) chunks: u64,
    pub(super) records: Counts,
    /// The hash of all of them.
    pub(super) hash: u128,
}

impl End {
    fn encode(&self) -> BytesMut {
        let mut bytes = BytesMut::with_capacity(24 + 8 * self.records.len());
        bytes.put_u64_le(self.chunks);
        for count in self.records {
            bytes.put_u64_le(count);
        }
        bytes.put_u128_le(self.hash);
        bytes
    }

    /// Whether `body` says this, and nothing else.
    pub(super) fn is_told_by(&self, body: &[u8]) -> bool {
        self.encode() == body
    }
}
