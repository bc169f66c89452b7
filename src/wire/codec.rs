//! Frames: their header, their limits, and the reader that finds them in a stream of chunks.

use bytes::{Buf, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::Limits;
use crate::kv::KNOWN_VERSIONS;
use crate::types::VersionRange;
use crate::wire::state::CHUNK_BYTES_MAX;

/// Bytes before the body: length, kind, version, checksum.
pub const HEADER_BYTES: usize = 4 + 1 + 2 + 4;

/// The versions of the protocol that this build speaks. One number stands for what is in frames and
/// what is in the log, for a node that cannot read the one is of no use with the other.
pub const PROTOCOL_VERSIONS: VersionRange = KNOWN_VERSIONS;

/// The version in which frames took the shape that they have now. A frame is written in this one, and
/// not in the newest that this build speaks: else the nodes of a cluster that is being upgraded would
/// not understand each other. A shape that changes is written only once the cluster has agreed on its
/// version, and then carries that.
const SHAPED_IN: u16 = 1;

/// Hellos are read before a version is agreed on, so they are written in this one for ever.
const HELLO_VERSION: u16 = 1;

/// Hellos are small; a larger one is refused.
const HELLO_BYTES_MAX: usize = 4 << 10;
/// Two readings, each at its longest.
const CLOCK_BYTES_MAX: usize = 20;
/// A few numbers.
const TRANSFER_BYTES_MAX: usize = 64;
/// The names of as many members as there may be.
const STANDING_BYTES_MAX: usize = 64 * (64 + 1) + 64;
/// A chunk of a state with its length.
const STATE_CHUNK_BYTES_MAX: usize = (256 << 10) + 8;
/// What a request that is forwarded has around its call or reply: an author, and a few numbers.
const FORWARD_BYTES_MAX: usize = 1 << 10;
/// What a request may say of itself, with room for what is to come.
pub(super) const CONTEXT_BYTES_MAX: usize = 256;
/// Of the number that says how long that is.
const CONTEXT_LENGTH_BYTES: usize = 2;
/// What a call or reply may have around the request or reply that `api::Limits` counts.
const ENVELOPE_BYTES_MAX: usize = 4 << 10;
/// The longest Raft frame is no shorter, whatever the limits of requests are.
const RAFT_BYTES_MIN: usize = 2 << 20;
/// Room set aside for a frame that has only begun to arrive; more is taken as more arrives, so a
/// length that is merely claimed costs nothing.
const FIRST_RESERVE_BYTES: usize = 4 << 10;

/// What a frame's body is. The numbers are for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A client introduces itself.
    ClientHello = 1,
    /// The server's answer to that.
    ServerHello = 2,
    /// A client's request.
    Call = 3,
    /// The server's answer to one.
    Reply = 4,
    /// The events of a watch.
    Watch = 5,
    /// A client's request that says something of itself.
    ContextCall = 6,
    /// A peer introduces itself; the answer has the same kind.
    PeerHello = 16,
    /// Raft messages.
    Raft = 17,
    /// The clocks of a peer.
    PeerClock = 18,
    /// What two peers say of a whole state that one sends.
    Transfer = 19,
    /// A piece of it.
    StateChunk = 20,
    /// What the cluster knows of a node.
    Standing = 21,
    /// A request for the leader, from the node that received it.
    Forward = 22,
    /// The leader's answer to one.
    ForwardReply = 23,
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::ClientHello,
            2 => Self::ServerHello,
            3 => Self::Call,
            4 => Self::Reply,
            5 => Self::Watch,
            6 => Self::ContextCall,
            16 => Self::PeerHello,
            17 => Self::Raft,
            18 => Self::PeerClock,
            19 => Self::Transfer,
            20 => Self::StateChunk,
            21 => Self::Standing,
            22 => Self::Forward,
            23 => Self::ForwardReply,
            _ => return None,
        })
    }

    fn is_hello(self) -> bool {
        matches!(
            self,
            Self::ClientHello | Self::ServerHello | Self::PeerHello
        )
    }

    fn written_version(self) -> u16 {
        if self.is_hello() {
            HELLO_VERSION
        } else {
            SHAPED_IN
        }
    }

    fn reads_version(self, version: u16) -> bool {
        if self.is_hello() {
            version == HELLO_VERSION
        } else {
            PROTOCOL_VERSIONS.contains(version)
        }
    }

    /// The longest body of this kind.
    pub fn body_bytes_max(self, limits: &FrameLimits) -> usize {
        match self {
            Self::ClientHello | Self::ServerHello | Self::PeerHello => HELLO_BYTES_MAX,
            Self::PeerClock => CLOCK_BYTES_MAX,
            Self::Transfer => TRANSFER_BYTES_MAX,
            Self::Standing => STANDING_BYTES_MAX,
            Self::StateChunk => STATE_CHUNK_BYTES_MAX,
            Self::Call => limits.call_bytes_max,
            Self::ContextCall => {
                (limits.call_bytes_max).saturating_add(CONTEXT_BYTES_MAX + CONTEXT_LENGTH_BYTES)
            }
            Self::Reply => limits.reply_bytes_max,
            Self::Forward => limits.call_bytes_max.saturating_add(FORWARD_BYTES_MAX),
            Self::ForwardReply => limits.reply_bytes_max.saturating_add(FORWARD_BYTES_MAX),
            Self::Watch => limits.watch_bytes_max,
            Self::Raft => limits.raft_bytes_max,
        }
    }
}

/// The longest bodies that are sent or taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameLimits {
    /// Of a [`Kind::Call`], in bytes. A [`Kind::ContextCall`] has a little room beside that.
    pub call_bytes_max: usize,
    /// Of a [`Kind::Reply`], in bytes.
    pub reply_bytes_max: usize,
    /// Of a [`Kind::Watch`], in bytes.
    pub watch_bytes_max: usize,
    /// Of a [`Kind::Raft`], in bytes.
    pub raft_bytes_max: usize,
}

impl FrameLimits {
    /// The limits of an unconfigured server.
    pub const DEFAULT: Self = Self::of(&Limits::DEFAULT);

    /// What follows from the limits of requests: a Raft frame must hold any one request, and a reply a
    /// chunk of a snapshot. A client may lift its limits altogether.
    pub const fn of(limits: &Limits) -> Self {
        Self {
            call_bytes_max: limits.request_bytes_max.saturating_add(ENVELOPE_BYTES_MAX),
            // A page of one record that fills it also names the key where the next one begins.
            reply_bytes_max: larger(limits.reply_bytes_max, CHUNK_BYTES_MAX)
                .saturating_add(limits.key_bytes_max)
                .saturating_add(ENVELOPE_BYTES_MAX),
            watch_bytes_max: watch_bytes_max(limits),
            raft_bytes_max: larger(
                RAFT_BYTES_MIN,
                (limits.request_bytes_max).saturating_add(2 * ENVELOPE_BYTES_MAX),
            ),
        }
    }
}

/// The larger one, where the trait's method cannot be called.
const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// One event must fit: what its key holds, and what it held before.
const fn watch_bytes_max(limits: &Limits) -> usize {
    let held = limits.key_bytes_max.saturating_add(limits.value_bytes_max);
    held.saturating_mul(2).saturating_add(ENVELOPE_BYTES_MAX)
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Where frames arrive, which decides what kinds may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A server, from a client.
    Server,
    /// A client, from its server.
    Client,
    /// A server, from a peer.
    Peer,
}

impl Door {
    fn admits(self, kind: Kind) -> bool {
        match self {
            Self::Server => matches!(kind, Kind::ClientHello | Kind::Call | Kind::ContextCall),
            Self::Client => matches!(kind, Kind::ServerHello | Kind::Reply | Kind::Watch),
            Self::Peer => matches!(
                kind,
                Kind::PeerHello
                    | Kind::Raft
                    | Kind::PeerClock
                    | Kind::Transfer
                    | Kind::StateChunk
                    | Kind::Standing
                    | Kind::Forward
                    | Kind::ForwardReply
            ),
        }
    }
}

/// Why bytes are not a frame, or a frame is not what it says. Each ends the connection that it
/// came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// No such kind of frame.
    #[error("frame of unknown kind {0}")]
    UnknownKind(u8),
    /// A kind that has no business at this door.
    #[error("unexpected {0:?} frame")]
    UnexpectedKind(Kind),
    /// A version that this build does not speak.
    #[error("frame of protocol version {0}; this build speaks {PROTOCOL_VERSIONS}")]
    Version(u16),
    /// The body is longer than its kind may be.
    #[error("a {kind:?} frame of {bytes} bytes; at most {bytes_max} are allowed")]
    TooLong {
        /// Of which kind.
        kind: Kind,
        /// How long it is or claims to be.
        bytes: usize,
        /// How long it may be.
        bytes_max: usize,
    },
    /// The checksum does not match: the sender computed another frame than we received.
    #[error("the checksum of a {0:?} frame does not match")]
    Checksum(Kind),
    /// The body is no value of its type.
    #[error("the body of a {0:?} frame cannot be read")]
    Body(Kind),
    /// The body is a value and then something more.
    #[error("the body of a {kind:?} frame has {bytes} bytes too many")]
    Trailing {
        /// Of which kind.
        kind: Kind,
        /// How many.
        bytes: usize,
    },
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Cut,
}

/// A type that is the body of one kind of frame.
pub trait Body: Serialize + DeserializeOwned {
    /// The kind.
    const KIND: Kind;
}

/// A whole frame, its checksum verified, its body not yet decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the body is.
    pub kind: Kind,
    /// The protocol version it was written in.
    pub version: u16,
    /// The body. Shares memory with the chunk it arrived in where it arrived in one piece.
    pub body: Bytes,
}

impl Frame {
    /// A frame with this body, that travels no further than this process.
    ///
    /// # Errors
    /// [`WireError::TooLong`]: it could not be sent either.
    pub fn new<T: Body>(body: &T, limits: &FrameLimits) -> Result<Self, WireError> {
        let mut out = BytesMut::new();
        encode(body, limits, &mut out)?;
        out.advance(HEADER_BYTES);
        Ok(Self {
            kind: T::KIND,
            version: T::KIND.written_version(),
            body: out.freeze(),
        })
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// The frame is of another kind, its body is no such value, or there is more after the value.
    pub fn decode<T: Body>(&self) -> Result<T, WireError> {
        if self.kind != T::KIND {
            return Err(WireError::UnexpectedKind(self.kind));
        }
        let (value, rest) =
            postcard::take_from_bytes(&self.body).map_err(|_| WireError::Body(self.kind))?;
        if !rest.is_empty() {
            return Err(WireError::Trailing {
                kind: self.kind,
                bytes: rest.len(),
            });
        }
        Ok(value)
    }
}

/// Appends `body` to `out` as one frame.
///
/// # Errors
/// [`WireError::TooLong`]; `out` is then as it was.
pub fn encode<T: Body>(
    body: &T,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    encode_as::<T>(body, limits, out)
}

/// Appends a frame of `T` whose body is `parts`, which are encoded as a `T` is.
pub(super) fn encode_as<T: Body>(
    parts: &impl Serialize,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    append_frame::<T>(limits, out, |out| {
        postcard::serialize_with_flavor(parts, Append(out)).is_ok()
    })
}

/// Appends a frame whose body `write` appends; false if it could not.
pub(super) fn append_frame<T: Body>(
    limits: &FrameLimits,
    out: &mut BytesMut,
    write: impl FnOnce(&mut BytesMut) -> bool,
) -> Result<(), WireError> {
    let start = out.len();
    let body_start = start + HEADER_BYTES;
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let written = write(out);
    let bytes = out.len() - body_start;
    let bytes_max = T::KIND.body_bytes_max(limits);
    if !written || bytes > bytes_max {
        out.truncate(start);
        // Our bodies hold nothing that postcard cannot write, so size is the one way to fail.
        return Err(WireError::TooLong {
            kind: T::KIND,
            bytes,
            bytes_max,
        });
    }
    let length = u32::try_from(bytes).map_err(|_| WireError::TooLong {
        kind: T::KIND,
        bytes,
        bytes_max,
    })?;
    let header = Header {
        length,
        kind: T::KIND as u8,
        version: T::KIND.written_version(),
    };
    let checksum = header.checksum(&out[body_start..]);
    out[start..body_start].copy_from_slice(&header.to_bytes(checksum));
    Ok(())
}

/// Finds frames in a stream of chunks.
///
/// Frames that lie whole in a chunk are cut out of it without copying; a frame spread over
/// several chunks is collected in a buffer that grows with what has arrived, never with what is
/// claimed. After an error the reader only repeats it: nothing behind a bad frame can be trusted.
#[derive(Debug)]
pub struct FrameReader {
    door: Door,
    limits: FrameLimits,
    chunk: Bytes,
    /// The start of a frame whose rest has not arrived. Empty unless `chunk` is.
    partial: BytesMut,
    failed: Option<WireError>,
}

impl FrameReader {
    /// A reader at the start of a stream.
    pub fn new(door: Door, limits: FrameLimits) -> Self {
        Self {
            door,
            limits,
            chunk: Bytes::new(),
            partial: BytesMut::new(),
            failed: None,
        }
    }

    /// Hands in the next chunk, once [`FrameReader::next_frame`] has given back everything of the
    /// one before; a chunk that comes too early is appended to what is left, which copies.
    pub fn push(&mut self, chunk: Bytes) {
        if self.chunk.is_empty() {
            self.chunk = chunk;
        } else {
            let mut joined = BytesMut::with_capacity(self.chunk.len() + chunk.len());
            joined.extend_from_slice(&self.chunk);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        }
    }

    /// The next whole frame; `None` until more has arrived.
    ///
    /// # Errors
    /// The bytes are no frame for this door. The same error again at every further call.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, WireError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let found = self.find();
        if let Err(error) = found {
            self.failed = Some(error);
            self.chunk = Bytes::new();
            self.partial = BytesMut::new();
        }
        found
    }

    /// Says that the stream has ended.
    ///
    /// # Errors
    /// [`WireError::Cut`] if it ended inside a frame.
    pub fn finish(&self) -> Result<(), WireError> {
        match self.failed {
            Some(error) => Err(error),
            None if self.partial.is_empty() && self.chunk.is_empty() => Ok(()),
            None => Err(WireError::Cut),
        }
    }

    /// Memory held for a frame that has not arrived whole, in bytes.
    pub fn buffered_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Of a frame that has begun to arrive, how long it will be, in bytes: at least a header.
    pub fn begun_bytes(&self) -> Option<usize> {
        if self.partial.is_empty() {
            return None;
        }
        let header = self.check_header(&self.partial).ok().flatten();
        Some(header.map_or(HEADER_BYTES, |checked| checked.frame_bytes))
    }

    fn find(&mut self) -> Result<Option<Frame>, WireError> {
        if self.partial.is_empty() {
            let Some(checked) = self.check_header(&self.chunk)? else {
                self.keep_partial();
                return Ok(None);
            };
            if self.chunk.len() < checked.frame_bytes {
                self.keep_partial();
                return Ok(None);
            }
            let whole = self.chunk.split_to(checked.frame_bytes);
            return checked.open(whole).map(Some);
        }
        self.take_from_chunk(HEADER_BYTES);
        let Some(checked) = self.check_header(&self.partial)? else {
            return Ok(None);
        };
        self.take_from_chunk(checked.frame_bytes);
        if self.partial.len() < checked.frame_bytes {
            return Ok(None);
        }
        let whole = std::mem::take(&mut self.partial);
        // A small frame must not hold on to the room in which it was gathered.
        let whole = if whole.capacity() > 2 * whole.len() {
            Bytes::copy_from_slice(&whole)
        } else {
            whole.freeze()
        };
        checked.open(whole).map(Some)
    }

    /// Moves what the chunk has into `partial`, until that holds `bytes`.
    fn take_from_chunk(&mut self, bytes: usize) {
        let take = bytes
            .saturating_sub(self.partial.len())
            .min(self.chunk.len());
        self.partial.extend_from_slice(&self.chunk[..take]);
        self.chunk.advance(take);
    }

    fn keep_partial(&mut self) {
        if !self.chunk.is_empty() {
            self.partial
                .reserve(self.chunk.len().max(FIRST_RESERVE_BYTES));
            self.partial.extend_from_slice(&self.chunk);
            self.chunk = Bytes::new();
        }
    }

    /// Reads and judges the header that `bytes` starts with; `None` while it is incomplete. A bad
    /// length or kind is noticed as soon as those bytes are there.
    fn check_header(&self, bytes: &[u8]) -> Result<Option<CheckedHeader>, WireError> {
        let [l0, l1, l2, l3, kind_byte, after @ ..] = bytes else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
        let kind = Kind::from_byte(*kind_byte).ok_or(WireError::UnknownKind(*kind_byte))?;
        if !self.door.admits(kind) {
            return Err(WireError::UnexpectedKind(kind));
        }
        let bytes_max = kind.body_bytes_max(&self.limits);
        let body_bytes = usize::try_from(length).unwrap_or(usize::MAX);
        if body_bytes > bytes_max {
            return Err(WireError::TooLong {
                kind,
                bytes: body_bytes,
                bytes_max,
            });
        }
        let [v0, v1, c0, c1, c2, c3, ..] = after else {
            return Ok(None);
        };
        let version = u16::from_le_bytes([*v0, *v1]);
        if !kind.reads_version(version) {
            return Err(WireError::Version(version));
        }
        Ok(Some(CheckedHeader {
            header: Header {
                length,
                kind: *kind_byte,
                version,
            },
            kind,
            checksum: u32::from_le_bytes([*c0, *c1, *c2, *c3]),
            frame_bytes: HEADER_BYTES + body_bytes,
        }))
    }
}

/// A header whose kind, length and version are acceptable.
struct CheckedHeader {
    header: Header,
    kind: Kind,
    checksum: u32,
    frame_bytes: usize,
}

impl CheckedHeader {
    fn open(self, mut whole: Bytes) -> Result<Frame, WireError> {
        whole.advance(HEADER_BYTES);
        if self.header.checksum(&whole) != self.checksum {
            return Err(WireError::Checksum(self.kind));
        }
        Ok(Frame {
            kind: self.kind,
            version: self.header.version,
            body: whole,
        })
    }
}

#[derive(Clone, Copy)]
struct Header {
    length: u32,
    kind: u8,
    version: u16,
}

impl Header {
    fn to_bytes(self, checksum: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..7].copy_from_slice(&self.checked_bytes());
        bytes[7..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn checksum(self, body: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.checked_bytes());
        hasher.update(body);
        hasher.finalize()
    }

    fn checked_bytes(self) -> [u8; 7] {
        let mut bytes = [0; 7];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5..].copy_from_slice(&self.version.to_le_bytes());
        bytes
    }
}

/// Lets postcard write straight into the batch: it would copy from a buffer of its own otherwise.
struct Append<'a>(&'a mut BytesMut);

impl postcard::ser_flavors::Flavor for Append<'_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    #[inline]
    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.extend_from_slice(&[data]);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}
