//! One record: an entry of the log, the cut of a conflicting tail, or where the log begins.
//!
//! ```text
//! checksum u32 | length u32 | index u64 | term u64 | record before u128 | kind u8 | payload
//! ```
//!
//! The checksum (crc32) is over everything after it. `record before` is the xxh3-128 of the
//! whole record before this one, so records form a chain: none can be lost, doubled, reordered or
//! taken from elsewhere without breaking it. All numbers are little-endian.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::types::{LogId, LogIndex, Term};

/// Kinds from here on belong to the log itself.
pub(super) const KINDS_MAX: u8 = 128;
const CUT: u8 = 255;
/// The log begins after this entry, which it holds: what follows it stays.
const BEGINS: u8 = 254;
/// The log begins after this entry, which it does not hold: nothing before this record counts.
const BEGINS_RESET: u8 = 253;

/// Bytes in front of each payload.
pub(super) const HEADER: usize = 4 + 4 + 8 + 8 + 16 + 1;

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

/// Where a log begins: everything up to here is in the state, durably, and need not be in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// The last entry before the log.
    pub id: LogId,
    /// What its owner has to know of what was before: opaque here.
    pub note: Bytes,
}

/// One thing to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry.
    Entry(Record),
    /// The log begins after this one. If it holds that very entry, what follows it stays; if not,
    /// everything so far goes.
    Base(Base),
}

impl Item {
    pub(super) fn view(&self) -> View<'_> {
        match self {
            Self::Entry(record) => View::Entry(record),
            Self::Base(base) => View::Base(base),
        }
    }
}

/// An item, borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'a> {
    Entry(&'a Record),
    Base(&'a Base),
}

/// What a record says, once read back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordRead {
    /// An entry.
    Entry(Record),
    /// Everything after this entry is void: the leader's log differs from there on (A22).
    KeepUpTo(LogId),
    /// The log begins here; `is_reset` if everything before this record is void.
    BeginsAfter {
        /// Where.
        base: Base,
        /// See [`BEGINS_RESET`].
        is_reset: bool,
    },
}

/// Appends the record's bytes to `out`, and gives the hash that the next record has to carry.
pub(super) fn encode(record: &Record, before: u128, out: &mut Vec<u8>) -> u128 {
    encode_parts(record.id, record.kind, &record.payload, before, out)
}

/// Appends a truncation: everything after `keep` is void.
pub(super) fn encode_cut(keep: LogId, before: u128, out: &mut Vec<u8>) -> u128 {
    encode_parts(keep, CUT, &[], before, out)
}

/// Appends where the log begins.
pub(super) fn encode_base(base: &Base, is_reset: bool, before: u128, out: &mut Vec<u8>) -> u128 {
    let kind = if is_reset { BEGINS_RESET } else { BEGINS };
    encode_parts(base.id, kind, &base.note, before, out)
}

fn encode_parts(id: LogId, kind: u8, payload: &[u8], before: u128, out: &mut Vec<u8>) -> u128 {
    let start = out.len();
    let length = u32::try_from(payload.len()).expect("the writer bounds payloads by the segment");
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&id.index.0.to_le_bytes());
    out.extend_from_slice(&id.term.0.to_le_bytes());
    out.extend_from_slice(&before.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(payload);
    let checksum = crc32fast::hash(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&checksum.to_le_bytes());
    xxh3_128(&out[start..])
}

/// Reads the record at `at` in a batch's bytes: what it says, the hash that its successor has to
/// carry, and where that begins. An error says what is wrong.
pub(super) fn decode(
    batch: &Bytes,
    at: usize,
    before: u128,
) -> Result<(RecordRead, u128, usize), &'static str> {
    let rest = &batch[at..];
    if rest.len() < HEADER {
        return Err("a record is cut short");
    }
    let field = |from: usize, to: usize| &rest[from..to];
    let checksum = u32::from_le_bytes(array(field(0, 4)));
    let length = u32::from_le_bytes(array(field(4, 8))) as usize;
    let index = LogIndex(u64::from_le_bytes(array(field(8, 16))));
    let term = Term(u64::from_le_bytes(array(field(16, 24))));
    let chained = u128::from_le_bytes(array(field(24, 40)));
    let kind = rest[40];
    if length > rest.len() - HEADER {
        return Err("a record is longer than its batch");
    }
    let end = HEADER + length;
    if crc32fast::hash(&rest[4..end]) != checksum {
        return Err("a record's checksum does not match");
    }
    if chained != before {
        return Err("a record does not follow the one before it");
    }
    let id = LogId::new(index, term);
    let said = match kind {
        CUT => RecordRead::KeepUpTo(id),
        BEGINS | BEGINS_RESET => RecordRead::BeginsAfter {
            base: Base {
                id,
                note: batch.slice(at + HEADER..at + end),
            },
            is_reset: kind == BEGINS_RESET,
        },
        kind if kind < KINDS_MAX => RecordRead::Entry(Record {
            id,
            kind,
            payload: batch.slice(at + HEADER..at + end),
        }),
        _ => return Err("a record has a kind that this release does not know"),
    };
    Ok((said, xxh3_128(&rest[..end]), at + end))
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(index: u64, payload: &'static [u8]) -> Record {
        Record {
            id: LogId::new(LogIndex(index), Term(3)),
            kind: 1,
            payload: Bytes::from_static(payload),
        }
    }

    #[test]
    fn records_read_back_in_their_chain() {
        let mut bytes = Vec::new();
        let first = record(1, b"one");
        let second = record(2, b"");
        let after_first = encode(&first, 5, &mut bytes);
        let after_second = encode(&second, after_first, &mut bytes);
        let keep = LogId::new(LogIndex(1), Term(3));
        let after_cut = encode_cut(keep, after_second, &mut bytes);
        let base = Base {
            id: keep,
            note: Bytes::from_static(b"who votes"),
        };
        let after_base = encode_base(&base, false, after_cut, &mut bytes);
        encode_base(&base, true, after_base, &mut bytes);
        let bytes = Bytes::from(bytes);

        let (said, chain, at) = decode(&bytes, 0, 5).unwrap();
        assert_eq!((said, chain), (RecordRead::Entry(first), after_first));
        let (said, chain, at) = decode(&bytes, at, chain).unwrap();
        assert_eq!((said, chain), (RecordRead::Entry(second), after_second));
        let (said, mut chain, mut at) = decode(&bytes, at, chain).unwrap();
        assert_eq!(said, RecordRead::KeepUpTo(keep));
        for is_reset in [false, true] {
            let base = base.clone();
            let (said, after, next) = decode(&bytes, at, chain).unwrap();
            assert_eq!(said, RecordRead::BeginsAfter { base, is_reset });
            (chain, at) = (after, next);
        }
        assert_eq!(at, bytes.len());
    }

    #[test]
    fn a_record_out_of_its_chain_or_altered_is_refused() {
        let mut bytes = Vec::new();
        encode(&record(1, b"one"), 5, &mut bytes);
        assert!(decode(&Bytes::from(bytes.clone()), 0, 6).is_err(), "chain");
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&Bytes::from(flipped), 0, 5).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            let short = Bytes::from(bytes[..length].to_vec());
            assert!(decode(&short, 0, 5).is_err(), "{length} bytes");
        }
    }
}
