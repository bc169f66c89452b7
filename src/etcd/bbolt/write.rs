//! Writes a file from keys that come in order, each page once.

use std::io;
use std::io::{Seek, SeekFrom, Write};

use bytes::BufMut;

use super::page::{
    BRANCH, BUCKET_BYTES, ELEMENT_BYTES, FREE_LIST, HEADER_BYTES, Header, IS_BUCKET, LEAF, Meta,
    PAGE_BYTES,
};

/// The list of free pages, of which there are none, lies behind the two meta pages.
const FREE_LIST_PAGE: u64 = 2;

/// A file that is being written, bucket by bucket. It is none before [`BoltWriter::finish`].
pub(crate) struct BoltWriter<F> {
    file: F,
    /// The number of the page that is written next.
    next: u64,
    /// The buckets that are complete.
    buckets: Vec<Element>,
    /// What is not on a page yet: of the leaves, and of each level of branches above them.
    levels: Vec<Level>,
    #[cfg(debug_assertions)]
    last: Option<Vec<u8>>,
}

/// A key, with its value or with the number of a page.
struct Element {
    key: Vec<u8>,
    value: Vec<u8>,
    page: u64,
}

impl Element {
    fn bytes(&self) -> usize {
        ELEMENT_BYTES + self.key.len() + self.value.len()
    }
}

/// Elements of one level of a tree that are to share a page.
#[derive(Default)]
struct Level {
    elements: Vec<Element>,
    bytes: usize,
    /// Whether pages of this level were written.
    is_split: bool,
}

impl Level {
    fn is_full_with(&self, element: &Element) -> bool {
        let bytes = HEADER_BYTES + self.bytes + element.bytes();
        !self.elements.is_empty() && bytes > PAGE_BYTES
    }

    fn push(&mut self, element: Element) {
        self.bytes += element.bytes();
        self.elements.push(element);
    }

    fn take(&mut self) -> Vec<Element> {
        self.bytes = 0;
        std::mem::take(&mut self.elements)
    }
}

impl<F: Write + Seek> BoltWriter<F> {
    /// Begins with an empty `file`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn begin(mut file: F) -> io::Result<Self> {
        file.seek(SeekFrom::Start(FREE_LIST_PAGE * PAGE_BYTES as u64))?;
        let mut writer = Self {
            file,
            next: FREE_LIST_PAGE,
            buckets: Vec::new(),
            levels: vec![Level::default()],
            #[cfg(debug_assertions)]
            last: None,
        };
        writer.write_page(FREE_LIST, &[], 0)?;
        Ok(writer)
    }

    /// Adds a key to the bucket that is being written. It comes after all others of the bucket.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> io::Result<()> {
        #[cfg(debug_assertions)]
        {
            debug_assert!(self.last.as_ref().is_none_or(|last| *last < key));
            self.last = Some(key.clone());
        }
        let page = 0;
        self.add(0, Element { key, value, page })
    }

    /// Ends the bucket that is being written, which may be empty. Names come in order, too.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn end_bucket(&mut self, name: &str) -> io::Result<()> {
        let root = self.end_tree()?;
        debug_assert!(
            self.buckets
                .last()
                .is_none_or(|last| *last.key < *name.as_bytes())
        );
        let mut value = Vec::with_capacity(BUCKET_BYTES);
        value.put_u64_le(root);
        value.put_u64_le(0);
        self.buckets.push(Element {
            key: name.as_bytes().to_vec(),
            value,
            page: 0,
        });
        Ok(())
    }

    /// Ends the file, and returns it with its length in bytes. It is not synced.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn finish(mut self) -> io::Result<(F, u64)> {
        let buckets = std::mem::take(&mut self.buckets);
        let root = self.write_page(LEAF, &buckets, IS_BUCKET)?;
        self.file.seek(SeekFrom::Start(0))?;
        for number in 0..FREE_LIST_PAGE {
            let meta = Meta {
                page_bytes: PAGE_BYTES as u32,
                root,
                free_list: FREE_LIST_PAGE,
                pages: self.next,
                transaction: number,
            };
            self.file.write_all(&meta.page(number))?;
        }
        self.file.flush()?;
        Ok((self.file, self.next * PAGE_BYTES as u64))
    }

    /// Adds an element to a level. A page that is full goes to the file, and to the level above.
    fn add(&mut self, level: usize, element: Element) -> io::Result<()> {
        let (mut level, mut element) = (level, element);
        loop {
            if self.levels.len() == level {
                self.levels.push(Level::default());
            }
            if !self.levels[level].is_full_with(&element) {
                self.levels[level].push(element);
                return Ok(());
            }
            let above = self.end_page(level)?;
            self.levels[level].is_split = true;
            self.levels[level].push(element);
            (level, element) = (level + 1, above);
        }
    }

    /// Writes what a level has gathered as one page, and returns the element for it on the level above.
    fn end_page(&mut self, level: usize) -> io::Result<Element> {
        let elements = self.levels[level].take();
        let kind = if level == 0 { LEAF } else { BRANCH };
        let page = self.write_page(kind, &elements, 0)?;
        let first = elements.into_iter().next();
        Ok(Element {
            key: first.map(|first| first.key).unwrap_or_default(),
            value: Vec::new(),
            page,
        })
    }

    /// Writes what is left of the tree, and returns the number of its root.
    fn end_tree(&mut self) -> io::Result<u64> {
        #[cfg(debug_assertions)]
        {
            self.last = None;
        }
        let mut level = 0;
        loop {
            let root = self.end_page(level)?;
            let is_root = !std::mem::take(&mut self.levels[level].is_split);
            if is_root {
                return Ok(root.page);
            }
            level += 1;
            self.add(level, root)?;
        }
    }

    /// Writes a page of `elements`, as long as it must be, and returns its number.
    fn write_page(&mut self, kind: u16, elements: &[Element], flags: u32) -> io::Result<u64> {
        let content: usize = elements.iter().map(Element::bytes).sum();
        let pages = (HEADER_BYTES + content).div_ceil(PAGE_BYTES);
        let number = self.next;
        let header = Header {
            number,
            kind,
            count: u16::try_from(elements.len()).map_err(io::Error::other)?,
            overflow: u32::try_from(pages - 1).map_err(io::Error::other)?,
        };
        let mut page = Vec::with_capacity(pages * PAGE_BYTES);
        header.put(&mut page);
        let mut lies_at = elements.len() * ELEMENT_BYTES;
        for (position, element) in elements.iter().enumerate() {
            // Where a key lies is said from its element on.
            let ahead = length(lies_at - position * ELEMENT_BYTES)?;
            let key = length(element.key.len())?;
            if kind == BRANCH {
                page.put_u32_le(ahead);
                page.put_u32_le(key);
                page.put_u64_le(element.page);
            } else {
                page.put_u32_le(flags);
                page.put_u32_le(ahead);
                page.put_u32_le(key);
                page.put_u32_le(length(element.value.len())?);
            }
            lies_at += element.key.len() + element.value.len();
        }
        for element in elements {
            page.put_slice(&element.key);
            page.put_slice(&element.value);
        }
        page.resize(pages * PAGE_BYTES, 0);
        self.file.write_all(&page)?;
        self.next += pages as u64;
        Ok(number)
    }
}

/// A length as the format has it.
fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(io::Error::other)
}
