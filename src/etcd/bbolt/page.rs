//! What stands in pages, byte by byte.

use bytes::{Buf, BufMut};

/// The size of the pages that are written; others are read, too.
pub(super) const PAGE_BYTES: usize = 4096;
/// Of its number, kind, count of elements and count of further pages.
pub(super) const HEADER_BYTES: usize = 16;
/// Of an element of a leaf or a branch page, beside its key and value.
pub(super) const ELEMENT_BYTES: usize = 16;

/// The kinds of pages.
pub(super) const BRANCH: u16 = 0x01;
pub(super) const LEAF: u16 = 0x02;
pub(super) const META: u16 = 0x04;
pub(super) const FREE_LIST: u16 = 0x10;

/// The mark of an element whose value is a bucket.
pub(super) const IS_BUCKET: u32 = 1;
/// Of the root of a bucket: its page, and a counter that etcd does not use.
pub(super) const BUCKET_BYTES: usize = 16;

const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;
/// Of what a meta page says, behind the header; its checksum comes next.
const META_BYTES: usize = 56;
const CHECKSUM_BYTES: usize = 8;
/// From the beginning of a file to the end of its first meta page's content.
pub(super) const META_PAGE_BYTES: usize = HEADER_BYTES + META_BYTES + CHECKSUM_BYTES;

/// The header of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) number: u64,
    pub(super) kind: u16,
    pub(super) count: u16,
    /// Pages that belong to it beside the first.
    pub(super) overflow: u32,
}

impl Header {
    pub(super) fn put(&self, page: &mut impl BufMut) {
        page.put_u64_le(self.number);
        page.put_u16_le(self.kind);
        page.put_u16_le(self.count);
        page.put_u32_le(self.overflow);
    }

    /// `None` if there are too few bytes.
    pub(super) fn read(page: &[u8]) -> Option<Self> {
        let mut header = page.get(..HEADER_BYTES)?;
        Some(Self {
            number: header.get_u64_le(),
            kind: header.get_u16_le(),
            count: header.get_u16_le(),
            overflow: header.get_u32_le(),
        })
    }
}

/// What a meta page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) page_bytes: u32,
    /// The page where the tree of buckets begins.
    pub(super) root: u64,
    pub(super) free_list: u64,
    /// How many pages there are.
    pub(super) pages: u64,
    /// The transaction that wrote it: of two, the later one counts.
    pub(super) transaction: u64,
}

impl Meta {
    /// The meta page `number`.
    pub(super) fn page(&self, number: u64) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE_BYTES);
        let header = Header {
            number,
            kind: META,
            count: 0,
            overflow: 0,
        };
        header.put(&mut page);
        page.put_u32_le(MAGIC);
        page.put_u32_le(VERSION);
        page.put_u32_le(self.page_bytes);
        page.put_u32_le(0);
        page.put_u64_le(self.root);
        page.put_u64_le(0);
        page.put_u64_le(self.free_list);
        page.put_u64_le(self.pages);
        page.put_u64_le(self.transaction);
        let checksum = fnv1a(&page[HEADER_BYTES..]);
        page.put_u64_le(checksum);
        page.resize(PAGE_BYTES, 0);
        page
    }

    /// `None` if `page` is no meta page of this format, or not whole.
    pub(super) fn read(page: &[u8]) -> Option<Self> {
        let header = Header::read(page)?;
        let said = page.get(HEADER_BYTES..HEADER_BYTES + META_BYTES)?;
        let mut checksum = page.get(HEADER_BYTES + META_BYTES..META_PAGE_BYTES)?;
        if header.kind != META || checksum.get_u64_le() != fnv1a(said) {
            return None;
        }
        let mut said = said;
        if said.get_u32_le() != MAGIC || said.get_u32_le() != VERSION {
            return None;
        }
        let page_bytes = said.get_u32_le();
        let _flags = said.get_u32_le();
        let root = said.get_u64_le();
        let _sequence = said.get_u64_le();
        Some(Self {
            page_bytes,
            root,
            free_list: said.get_u64_le(),
            pages: said.get_u64_le(),
            transaction: said.get_u64_le(),
        })
    }
}

/// Whether a file begins as those of bbolt do: `beginning` is its first bytes.
pub(crate) fn is_bolt(beginning: &[u8]) -> bool {
    let magic = beginning.get(HEADER_BYTES..HEADER_BYTES + size_of::<u32>());
    magic == Some(&MAGIC.to_le_bytes()[..])
}

/// The hash FNV-1a of 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(BASIS, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_fnv_1a() {
        // From the tables of its authors.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_meta_page_reads_as_it_was_written_and_any_other_byte_is_noticed() {
        let meta = Meta {
            page_bytes: 4096,
            root: 7,
            free_list: 2,
            pages: 9,
            transaction: 1,
        };
        let page = meta.page(1);
        assert_eq!((Meta::read(&page), page.len()), (Some(meta), PAGE_BYTES));
        assert!(is_bolt(&page) && !is_bolt(&page[1..]) && !is_bolt(&page[..19]));
        for at in HEADER_BYTES..META_PAGE_BYTES {
            let mut other = page.clone();
            other[at] ^= 1;
            assert_eq!(Meta::read(&other), None, "byte {at}");
        }
        for end in 0..META_PAGE_BYTES {
            assert_eq!(Meta::read(&page[..end]), None);
        }
    }
}
