//! The atom of everything on disk: 512 bytes that check themselves.
//!
//! A disk writes a sector whole or not at all; everything larger may be torn. So every sector
//! begins with a checksum over the rest of it and over *where it belongs* (a seed): a sector that
//! landed in another place, another segment or another member's log is as wrong as a flipped bit.
//! A sealed sector is never all zero, so zeros always mean "never written".

use crc32fast::Hasher;

pub(super) const SECTOR: usize = 512;
/// What no sync may share: the unit in which batches and slots are laid out.
pub(super) const BLOCK: usize = 4096;

const CHECKSUM: usize = 4;
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// What a sector turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// All zero: never written.
    Blank,
    /// Its checksum holds.
    Whole,
    /// Neither.
    Broken,
}

/// Puts the checksum in front of a sector whose other bytes are final.
pub(super) fn seal(sector: &mut [u8], seed: u32) {
    let sum = checksum(sector, seed);
    sector[..CHECKSUM].copy_from_slice(&sum.to_le_bytes());
}

/// Checks a sector that was read.
pub(super) fn inspect(sector: &[u8], seed: u32) -> Seal {
    if is_blank(sector) {
        return Seal::Blank;
    }
    if sector[..CHECKSUM] == checksum(sector, seed).to_le_bytes() {
        Seal::Whole
    } else {
        Seal::Broken
    }
}

/// Whether these bytes (at most a block) are all zero.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes == &ZEROS[..bytes.len()]
}

/// Rounds up to whole blocks.
pub(super) fn block_align(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK as u64)
}

/// A checksum that continues from `seed`: how a place becomes part of a sector's checksum.
pub(super) fn mix(seed: u32, place: u64) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&place.to_le_bytes());
    hasher.finalize()
}

fn checksum(sector: &[u8], seed: u32) -> u32 {
    let mut hasher = Hasher::new_with_initial(seed);
    hasher.update(&sector[CHECKSUM..]);
    hasher.finalize()
}

/// Writes little-endian fields into a sector, after the place of its checksum.
pub(super) struct Fields<B> {
    bytes: B,
    at: usize,
}

impl Fields<[u8; SECTOR]> {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; SECTOR],
            at: CHECKSUM,
        }
    }

    pub(super) fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    pub(super) fn sealed(mut self, seed: u32) -> [u8; SECTOR] {
        seal(&mut self.bytes, seed);
        self.bytes
    }
}

impl<'a> Fields<&'a [u8]> {
    /// Reads a sector (or any longer slice) back.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: CHECKSUM,
        }
    }

    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.bytes[self.at..self.at + N]);
        self.at += N;
        field
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(super) fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_knows_its_place_and_every_flip() {
        let sector = Fields::new().put(&7u64.to_le_bytes()).sealed(mix(1, 9));
        assert_eq!(inspect(&sector, mix(1, 9)), Seal::Whole);
        assert_eq!(inspect(&sector, mix(1, 10)), Seal::Broken, "another place");
        for bit in 0..SECTOR * 8 {
            let mut flipped = sector;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(inspect(&flipped, mix(1, 9)), Seal::Broken, "bit {bit}");
        }
        assert_eq!(inspect(&[0; SECTOR], 5), Seal::Blank);
    }
}
