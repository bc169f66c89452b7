//! Reads a file, and believes nothing in it that was not checked.

use std::io::{Read, Seek, SeekFrom};

use bytes::Buf;

use super::BoltError;
use super::page::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, HEADER_BYTES, Header, IS_BUCKET, LEAF, META_PAGE_BYTES,
    Meta,
};

/// The sizes that a page may have: powers of two.
const PAGE_BITS: std::ops::RangeInclusive<u32> = 9..=16;
/// More than a page of one key and value has, as etcd bounds those.
const LONG_PAGE_BYTES_MAX: u64 = 256 << 20;
/// More levels than any tree has whose branches divide.
const DEPTH_MAX: usize = 64;

/// A file that is being read.
pub(crate) struct BoltReader<F> {
    file: F,
    meta: Meta,
    /// Pages of the file, and how many may still be read: no file has a page in two places.
    pages: u64,
    pages_left: u64,
}

/// Where a bucket begins.
#[derive(Clone, Debug)]
pub(crate) enum BucketRoot {
    /// At a page of its own.
    Page(u64),
    /// In the element that names it.
    Inline(Vec<u8>),
}

/// A page, checked as far as its length goes.
struct Page {
    number: u64,
    header: Header,
    bytes: Vec<u8>,
}

/// What an element holds.
struct Element<'p> {
    flags: u32,
    key: &'p [u8],
    value: &'p [u8],
    page: u64,
}

impl<F: Read + Seek> BoltReader<F> {
    /// Opens a file of `length` bytes; what follows them in `file` is not looked at.
    ///
    /// # Errors
    /// It cannot be read, or is none of bbolt.
    pub(crate) fn open(mut file: F, length: u64) -> Result<Self, BoltError> {
        let mut metas = Vec::new();
        let mut beginnings = vec![0];
        // Where the second one lies depends on the size of pages, which only they tell.
        beginnings.extend(PAGE_BITS.map(|bits| 1_u64 << bits));
        for at in beginnings {
            let mut page = [0; META_PAGE_BYTES];
            if at + META_PAGE_BYTES as u64 > length {
                continue;
            }
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(&mut page)?;
            let meta = Meta::read(&page);
            metas.extend(meta.filter(|meta| at == 0 || u64::from(meta.page_bytes) == at));
        }
        let newest = metas.into_iter().max_by_key(|meta| meta.transaction);
        let meta = newest.ok_or(BoltError::Unknown)?;
        let is_size = PAGE_BITS.contains(&meta.page_bytes.trailing_zeros());
        if !meta.page_bytes.is_power_of_two() || !is_size {
            return Err(BoltError::Unknown);
        }
        let pages = (length / u64::from(meta.page_bytes)).min(meta.pages);
        Ok(Self {
            file,
            meta,
            pages,
            pages_left: pages,
        })
    }

    /// Its buckets, by name.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(crate) fn buckets(&mut self) -> Result<Vec<(Vec<u8>, BucketRoot)>, BoltError> {
        let mut buckets = Vec::new();
        let root = BucketRoot::Page(self.meta.root);
        self.walk(&root, |page, element| {
            if element.flags & IS_BUCKET == 0 {
                return Err(page.damaged("holds a value where buckets are"));
            }
            let mut value = element.value;
            if value.len() < BUCKET_BYTES {
                return Err(page.damaged("holds a bucket that is too short"));
            }
            let root = value.get_u64_le();
            value.advance(BUCKET_BYTES - size_of::<u64>());
            let root = match root {
                0 => BucketRoot::Inline(value.to_vec()),
                page => BucketRoot::Page(page),
            };
            buckets.push((element.key.to_vec(), root));
            Ok(())
        })?;
        Ok(buckets)
    }

    /// Hands the keys and values of a bucket to `take`, in order, until that refuses one.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged; or what `take` says.
    pub(crate) fn for_each<E: From<BoltError>>(
        &mut self,
        bucket: &BucketRoot,
        mut take: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.walk(bucket, |page, element| {
            if element.flags & IS_BUCKET != 0 {
                return Err(page.damaged("holds a bucket where values are").into());
            }
            take(element.key, element.value)
        })
    }

    fn walk<E: From<BoltError>>(
        &mut self,
        root: &BucketRoot,
        mut take: impl FnMut(&Page, &Element<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let root = match root {
            BucketRoot::Page(number) => self.page(*number)?,
            BucketRoot::Inline(bytes) => Page::new(0, bytes.clone())?,
        };
        // Pages that are being read, and which of their elements comes next.
        let mut open = vec![(root, 0)];
        let mut last: Option<Vec<u8>> = None;
        while let Some((page, position)) = open.last_mut() {
            let Some(element) = page.element(*position)? else {
                open.pop();
                continue;
            };
            *position += 1;
            if page.header.kind == BRANCH {
                let below = element.page;
                if open.len() == DEPTH_MAX {
                    return Err(page_damaged(below, "lies too deep").into());
                }
                let below = self.page(below)?;
                open.push((below, 0));
                continue;
            }
            if last.as_ref().is_some_and(|last| **last >= *element.key) {
                return Err(page.damaged("has keys that are out of order").into());
            }
            take(page, &element)?;
            last = Some(element.key.to_vec());
        }
        Ok(())
    }

    fn page(&mut self, number: u64) -> Result<Page, BoltError> {
        // The first two are no part of a tree.
        if !(2..self.pages).contains(&number) {
            return Err(page_damaged(
                number,
                "is not in the file, or no part of a tree",
            ));
        }
        let page_bytes = u64::from(self.meta.page_bytes);
        let mut header = [0; HEADER_BYTES];
        self.file.seek(SeekFrom::Start(number * page_bytes))?;
        self.file.read_exact(&mut header)?;
        let read = Header::read(&header).filter(|header| header.number == number);
        let read = read.ok_or_else(|| page_damaged(number, "has another number in it"))?;
        let pages = u64::from(read.overflow) + 1;
        if pages > self.pages - number {
            return Err(page_damaged(number, "ends behind the end of the file"));
        }
        if pages * page_bytes > LONG_PAGE_BYTES_MAX {
            return Err(page_damaged(number, "is longer than any key and value"));
        }
        self.pages_left = self
            .pages_left
            .checked_sub(pages)
            .ok_or_else(|| page_damaged(number, "is in two places"))?;
        let mut bytes = header.to_vec();
        let more = pages * page_bytes - HEADER_BYTES as u64;
        (&mut self.file).take(more).read_to_end(&mut bytes)?;
        Page::new(number, bytes)
    }
}

impl Page {
    fn new(number: u64, bytes: Vec<u8>) -> Result<Self, BoltError> {
        let header = Header::read(&bytes).ok_or_else(|| page_damaged(number, "is cut off"))?;
        if ![BRANCH, LEAF].contains(&header.kind) {
            return Err(page_damaged(number, "is neither a leaf nor a branch"));
        }
        let page = Self {
            number,
            header,
            bytes,
        };
        page.check_elements()?;
        Ok(page)
    }

    /// Checks that elements end before the page does, and that no two share a byte, as far as their lengths
    /// show it: otherwise a file could mean a thousand times of what it is long.
    fn check_elements(&self) -> Result<(), BoltError> {
        let mut bytes = HEADER_BYTES;
        let mut position = 0;
        while let Some(element) = self.element(position)? {
            bytes += ELEMENT_BYTES + element.key.len() + element.value.len();
            if bytes > self.bytes.len() {
                return Err(self.damaged("has elements that share bytes"));
            }
            position += 1;
        }
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> BoltError {
        page_damaged(self.number, what)
    }

    /// The element at `position`; `None` behind the last one.
    fn element(&self, position: usize) -> Result<Option<Element<'_>>, BoltError> {
        if position >= usize::from(self.header.count) {
            return Ok(None);
        }
        let element = self.read_element(HEADER_BYTES + position * ELEMENT_BYTES);
        let beyond = || self.damaged("has an element that ends behind its end");
        element.map(Some).ok_or_else(beyond)
    }

    fn read_element(&self, at: usize) -> Option<Element<'_>> {
        let mut fields = self.bytes.get(at..at.checked_add(ELEMENT_BYTES)?)?;
        let is_branch = self.header.kind == BRANCH;
        let flags = if is_branch { 0 } else { fields.get_u32_le() };
        let from = at.checked_add(fields.get_u32_le() as usize)?;
        let key_ends = from.checked_add(fields.get_u32_le() as usize)?;
        let (value_bytes, page) = match is_branch {
            true => (0, fields.get_u64_le()),
            false => (fields.get_u32_le() as usize, 0),
        };
        let value_ends = key_ends.checked_add(value_bytes)?;
        Some(Element {
            flags,
            key: self.bytes.get(from..key_ends)?,
            value: self.bytes.get(key_ends..value_ends)?,
            page,
        })
    }
}

fn page_damaged(page: u64, what: &'static str) -> BoltError {
    BoltError::Damaged { page, what }
}
