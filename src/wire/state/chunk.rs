//! One chunk: its heading, its checksum, and a reader of chunks that lie one after the other.

use std::io;
use std::io::Read;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::fault::{ReadFault, StateFault};

/// The longest chunk, heading and all.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// What stands before the body of a chunk.
pub const HEADING_BYTES: usize = 21;

/// The longest body.
pub(super) const BODY_BYTES_MAX: usize = CHUNK_BYTES_MAX - HEADING_BYTES;

const MAGIC: [u8; 4] = *b"lhs1";
/// Magic and checksum; the checksum covers what follows.
const SEAL_BYTES: usize = 8;

/// What a chunk carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkKind {
    Header = 0,
    Records = 1,
    End = 2,
}

/// A chunk whose checksum is right.
pub(super) struct Chunk {
    pub(super) number: u64,
    pub(super) kind: ChunkKind,
    pub(super) body: Bytes,
}

/// Puts `body` into a chunk.
pub(super) fn seal(number: u64, kind: ChunkKind, body: &[u8]) -> Bytes {
    debug_assert!(body.len() <= BODY_BYTES_MAX);
    let mut chunk = BytesMut::with_capacity(HEADING_BYTES + body.len());
    chunk.put_slice(&MAGIC);
    chunk.put_u32_le(0);
    chunk.put_u64_le(number);
    chunk.put_u8(kind as u8);
    chunk.put_u32_le(body.len() as u32);
    chunk.put_slice(body);
    let sum = crc32fast::hash(&chunk[SEAL_BYTES..]);
    chunk[MAGIC.len()..SEAL_BYTES].copy_from_slice(&sum.to_le_bytes());
    chunk.freeze()
}

/// How long the chunk is that begins with `heading`, in bytes and at most [`CHUNK_BYTES_MAX`].
/// `number` is the one that is expected, for the error.
///
/// # Errors
/// [`StateFault::Foreign`] or [`StateFault::Damaged`]: this begins no chunk.
pub fn chunk_bytes(heading: &[u8; HEADING_BYTES], number: u64) -> Result<usize, StateFault> {
    if heading[..MAGIC.len()] != MAGIC {
        return Err(no_chunk(number));
    }
    let mut length = &heading[HEADING_BYTES - 4..];
    let length = length.get_u32_le() as usize;
    if length > BODY_BYTES_MAX {
        return Err(StateFault::Damaged {
            chunk: number,
            what: "it claims to be longer than a chunk may be",
        });
    }
    Ok(HEADING_BYTES + length)
}

fn no_chunk(number: u64) -> StateFault {
    match number {
        0 => StateFault::Foreign,
        chunk => StateFault::Damaged {
            chunk,
            what: "it does not start with a chunk header",
        },
    }
}

/// Reads one whole chunk. `number` is the one that is expected, for the errors; the chunk may have
/// another.
pub(super) fn open(mut bytes: Bytes, number: u64) -> Result<Chunk, StateFault> {
    let damaged = |what| StateFault::Damaged {
        chunk: number,
        what,
    };
    let Some(heading) = bytes.first_chunk::<HEADING_BYTES>() else {
        return Err(damaged("it is shorter than a chunk header"));
    };
    if chunk_bytes(heading, number)? != bytes.len() {
        return Err(damaged("its length does not match its header"));
    }
    let (seal, content) = bytes.split_at(SEAL_BYTES);
    let mut sum = &seal[MAGIC.len()..];
    if sum.get_u32_le() != crc32fast::hash(content) {
        return Err(damaged("its checksum is wrong"));
    }
    bytes.advance(SEAL_BYTES);
    let found = bytes.get_u64_le();
    let kind = match bytes.get_u8() {
        0 => ChunkKind::Header,
        1 => ChunkKind::Records,
        2 => ChunkKind::End,
        _ => return Err(damaged("it is of an unknown kind")),
    };
    bytes.advance(4);
    Ok(Chunk {
        number: found,
        kind,
        body: bytes,
    })
}

/// Chunks that lie one after the other, as in a file. Give it a buffered reader or not: it reads a
/// heading, and then the rest of the chunk.
pub struct Chunks<R> {
    from: R,
    next: u64,
}

impl<R: Read> Chunks<R> {
    /// The chunks of `from`.
    pub fn new(from: R) -> Self {
        Self { from, next: 0 }
    }

    /// The next chunk, whatever it is; `None` where the bytes end between two chunks.
    ///
    /// # Errors
    /// The bytes end within a chunk, are no chunk, or cannot be read.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, ReadFault> {
        let mut heading = [0; HEADING_BYTES];
        match read_fully(&mut self.from, &mut heading)? {
            0 => return Ok(None),
            HEADING_BYTES => {}
            read => {
                // A short file of something else is no cut state.
                let whole = heading[..read].starts_with(&MAGIC[..read.min(MAGIC.len())]);
                return Err(match whole {
                    true => StateFault::Cut { chunks: self.next }.into(),
                    false => no_chunk(self.next).into(),
                });
            }
        }
        let length = chunk_bytes(&heading, self.next)?;
        let mut chunk = BytesMut::zeroed(length);
        chunk[..HEADING_BYTES].copy_from_slice(&heading);
        let rest = &mut chunk[HEADING_BYTES..];
        if read_fully(&mut self.from, rest)? < rest.len() {
            return Err(StateFault::Cut { chunks: self.next }.into());
        }
        self.next += 1;
        Ok(Some(chunk.freeze()))
    }
}

/// Reads until `into` is full or the bytes end, and says how many there were.
fn read_fully(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < into.len() {
        match from.read(&mut into[read..]) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
