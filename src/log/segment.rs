//! The layout of a segment: a file of fixed size, written with zeros before it is used.
//!
//! ```text
//! block 0   header    format version, cluster, member, number, size      written once, with the zeros
//! block 1   opening   last synced batch, its hash, last entry            written with the first batch
//! block 2.. batches   each on a fresh block, never rewritten
//! ```
//!
//! A batch is a row of sectors, each {batch number, sector i of n, bytes used, checksum}; what they
//! carry, put together, is a row of records. The blocks between the last sector and the next batch
//! stay zero. An empty batch (one sector, nothing in it) is a mark: it says that the batch before
//! it was synced.
//!
//! The opening is written in the same breath as the first batch, so recovery counts it as one more
//! sector of that batch.

use crate::log::LogOptions;
use crate::log::sector::{BLOCK, Fields, SECTOR, Seal, block_align, inspect, mix, seal};
use crate::types::{LogId, LogIndex, Term};

/// Format of segments and vote file. A higher one is refused, never guessed at.
pub(super) const FORMAT_VERSION: u32 = 1;
/// The folder of the segments.
pub(super) const FOLDER: &str = "log";
/// Where the opening lies.
pub(super) const OPENING_AT: u64 = BLOCK as u64;
/// Where batches begin.
pub(super) const DATA_AT: u64 = 2 * BLOCK as u64;

/// No count comes near it, so what claims to is wrong, and adding to what does not cannot overflow.
pub(super) const COUNT_MAX: u64 = 1 << 62;

/// The same for terms. A node believes its peers up to 2^62 and counts on by one at each election,
/// so that what it writes itself stays far below this.
pub(super) const TERM_MAX: Term = Term(1 << 63);

const HEADER_MAGIC: [u8; 8] = *b"lh-log-1";
const OPENING_MAGIC: [u8; 8] = *b"lh-open1";
/// checksum u32, used u16, zero u16, index u32, count u32, batch u64
const SECTOR_HEADER: usize = 24;
const SECTOR_PAYLOAD: usize = SECTOR - SECTOR_HEADER;

/// The file of segment `number`.
pub(super) fn file_name(number: u64) -> String {
    format!("{FOLDER}/{number:016}")
}

/// The number in a file name without its folder; `None` for what is not a segment.
pub(super) fn number_of(name: &str) -> Option<u64> {
    let digits = name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok()).flatten()
}

/// Whether a segment may have this size: whole blocks, and room for two batches.
pub(super) fn segment_bytes_are_sound(bytes: u64) -> bool {
    bytes.is_multiple_of(BLOCK as u64) && bytes >= DATA_AT + 2 * BLOCK as u64
}

/// How many payload bytes a batch in a segment of this size can hold.
pub(super) fn payload_max(segment_bytes: u64) -> usize {
    let sectors = segment_bytes.saturating_sub(DATA_AT) / SECTOR as u64;
    usize::try_from(sectors)
        .unwrap_or(usize::MAX)
        .saturating_mul(SECTOR_PAYLOAD)
}

/// How many bytes on disk a batch with this much payload takes: whole blocks.
pub(super) fn batch_bytes(payload: usize) -> u64 {
    block_align((sectors_of(payload) * SECTOR) as u64)
}

fn sectors_of(payload: usize) -> usize {
    payload.div_ceil(SECTOR_PAYLOAD).max(1)
}

/// The first block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: u64,
    pub(super) bytes: u64,
}

/// What a header turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderRead {
    Blank,
    Broken,
    Newer { version: u32 },
    Foreign { cluster: u128, node: u64 },
    Whole(Header),
}

impl Header {
    pub(super) fn encode(self, options: &LogOptions) -> [u8; SECTOR] {
        Fields::new()
            .put(&HEADER_MAGIC)
            .put(&FORMAT_VERSION.to_le_bytes())
            .put(&options.cluster.0.to_le_bytes())
            .put(&options.node.0.to_le_bytes())
            .put(&self.number.to_le_bytes())
            .put(&self.bytes.to_le_bytes())
            .sealed(0)
    }

    pub(super) fn decode(sector: &[u8], options: &LogOptions) -> HeaderRead {
        match inspect(sector, 0) {
            Seal::Blank => return HeaderRead::Blank,
            Seal::Broken => return HeaderRead::Broken,
            Seal::Whole => {}
        }
        let mut fields = Fields::of(sector);
        if fields.take() != HEADER_MAGIC {
            return HeaderRead::Broken;
        }
        let version = fields.u32();
        if version > FORMAT_VERSION {
            return HeaderRead::Newer { version };
        }
        let cluster = fields.u128();
        let node = fields.u64();
        if cluster != options.cluster.0 || node != options.node.0 {
            return HeaderRead::Foreign { cluster, node };
        }
        HeaderRead::Whole(Self {
            number: fields.u64(),
            bytes: fields.u64(),
        })
    }
}

/// Where the log stood when a segment was opened: a mark of the last batch before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// The last synced batch.
    pub(super) batch: u64,
    /// The hash of the last record in or before it.
    pub(super) chain: u128,
    /// The last entry.
    pub(super) last: LogId,
}

impl Opening {
    pub(super) fn encode(self, seed: Seed) -> [u8; SECTOR] {
        Fields::new()
            .put(&OPENING_MAGIC)
            .put(&self.batch.to_le_bytes())
            .put(&self.chain.to_le_bytes())
            .put(&self.last.index.0.to_le_bytes())
            .put(&self.last.term.0.to_le_bytes())
            .sealed(seed.at(OPENING_AT))
    }

    /// `Err` when broken, `None` when blank.
    pub(super) fn decode(sector: &[u8], seed: Seed) -> Result<Option<Self>, ()> {
        match inspect(sector, seed.at(OPENING_AT)) {
            Seal::Blank => return Ok(None),
            Seal::Broken => return Err(()),
            Seal::Whole => {}
        }
        let mut fields = Fields::of(sector);
        if fields.take() != OPENING_MAGIC {
            return Err(());
        }
        let opening = Self {
            batch: fields.u64(),
            chain: fields.u128(),
            last: LogId::new(LogIndex(fields.u64()), Term(fields.u64())),
        };
        let possible = opening.batch < COUNT_MAX
            && opening.last.index.0 < COUNT_MAX
            && opening.last.term < TERM_MAX;
        possible.then_some(Some(opening)).ok_or(())
    }
}

/// What makes a sector's checksum belong to one place of one segment of one member's log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u32);

impl Seed {
    pub(super) fn new(options: &LogOptions, number: u64) -> Self {
        let cluster = options.cluster.0;
        let seed = mix(mix(0, cluster as u64), (cluster >> 64) as u64);
        Self(mix(mix(seed, options.node.0), number))
    }

    pub(super) fn at(self, offset: u64) -> u32 {
        mix(self.0, offset)
    }
}

/// Lays a batch out in sectors, for writing at `at`. `out` is filled up to whole blocks.
pub(super) fn seal_batch(seed: Seed, batch: u64, at: u64, payload: &[u8], out: &mut Vec<u8>) {
    let count = sectors_of(payload.len());
    out.clear();
    out.resize(batch_bytes(payload.len()) as usize, 0);
    let mut rest = payload;
    for (index, sector) in out.chunks_exact_mut(SECTOR).take(count).enumerate() {
        let (now, later) = rest.split_at(rest.len().min(SECTOR_PAYLOAD));
        rest = later;
        sector[4..6].copy_from_slice(&(now.len() as u16).to_le_bytes());
        sector[8..12].copy_from_slice(&(index as u32).to_le_bytes());
        sector[12..16].copy_from_slice(&(count as u32).to_le_bytes());
        sector[16..24].copy_from_slice(&batch.to_le_bytes());
        sector[24..24 + now.len()].copy_from_slice(now);
        seal(sector, seed.at(at + (index * SECTOR) as u64));
    }
}

/// One sector of a batch, read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    pub(super) batch: u64,
    pub(super) index: u32,
    pub(super) count: u32,
    pub(super) payload: &'a [u8],
}

/// What a sector in the batches' part turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceRead<'a> {
    Blank,
    Broken,
    Whole(Piece<'a>),
}

impl<'a> Piece<'a> {
    pub(super) fn decode(sector: &'a [u8], seed: Seed, at: u64) -> PieceRead<'a> {
        match inspect(sector, seed.at(at)) {
            Seal::Blank => return PieceRead::Blank,
            Seal::Broken => return PieceRead::Broken,
            Seal::Whole => {}
        }
        let mut fields = Fields::of(sector);
        let used = usize::from(fields.u16());
        let zero = fields.u16();
        let index = fields.u32();
        let count = fields.u32();
        let batch = fields.u64();
        if zero != 0 || index >= count || used > SECTOR_PAYLOAD || batch == 0 {
            return PieceRead::Broken;
        }
        PieceRead::Whole(Self {
            batch,
            index,
            count,
            payload: &sector[SECTOR_HEADER..SECTOR_HEADER + used],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::tests::options;

    #[test]
    fn a_batch_reads_back_and_fills_whole_blocks() {
        let seed = Seed::new(&options(), 3);
        for length in [0, 1, 487, 488, 489, 8 * 488, 8 * 488 + 1] {
            let payload: Vec<u8> = (0..length).map(|i| i as u8 | 1).collect();
            let mut out = vec![7; 99];
            seal_batch(seed, 9, DATA_AT, &payload, &mut out);
            assert_eq!(out.len() as u64, batch_bytes(length));
            assert_eq!(out.len() % BLOCK, 0);
            let mut read = Vec::new();
            let mut pieces = 0;
            for (i, sector) in out.chunks(SECTOR).enumerate() {
                let at = DATA_AT + (i * SECTOR) as u64;
                if let PieceRead::Whole(piece) = Piece::decode(sector, seed, at) {
                    assert_eq!((piece.batch, piece.index as usize), (9, i));
                    assert_eq!(piece.count as usize, sectors_of(length));
                    read.extend_from_slice(piece.payload);
                    pieces += 1;
                }
            }
            assert_eq!(pieces, sectors_of(length));
            assert_eq!(read, payload);
        }
    }

    #[test]
    fn a_sector_of_another_segment_place_or_member_is_broken() {
        let seed = Seed::new(&options(), 3);
        let mut out = Vec::new();
        seal_batch(seed, 9, DATA_AT, b"x", &mut out);
        let sector = &out[..SECTOR];
        let other_segment = Seed::new(&options(), 4);
        let other_member = Seed::new(
            &LogOptions {
                node: crate::types::NodeId(99),
                ..options()
            },
            3,
        );
        assert_eq!(
            Piece::decode(sector, seed, DATA_AT + 512),
            PieceRead::Broken
        );
        assert_eq!(
            Piece::decode(sector, other_segment, DATA_AT),
            PieceRead::Broken
        );
        assert_eq!(
            Piece::decode(sector, other_member, DATA_AT),
            PieceRead::Broken
        );
    }

    #[test]
    fn only_segment_names_are_segments() {
        assert_eq!(file_name(7), "log/0000000000000007");
        assert_eq!(number_of("0000000000000007"), Some(7));
        assert_eq!(number_of("7"), None);
        assert_eq!(number_of("000000000000000x"), None);
    }
}
