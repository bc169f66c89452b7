//! What clients of HTTP/2 call this node, which plays no part here and need not be a name.
//!
//! Clients of etcd send what they were given: `http://10.0.0.1:2379`, where gRPC resolves no URL, or
//! `#initially=[...]`. The library for HTTP/2 refuses such a request for the sake of its URI, and etcd takes it.
//! So a `:authority` that is spelled out in a HEADERS frame is replaced by [`NAME`] before the library sees
//! it. What a client refers back to by number is the field that was replaced. That needs nothing of the tables
//! of HPACK (RFC 7541): a field with a name from the static table is found by its first byte, and as the new
//! value is no longer than the old one, this side's table forgets nothing that the client still counts on.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::work::Turn;

/// A value of one byte, not coded by Huffman, with its length.
const NAME: &[u8] = b"\x01e";

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER_BYTES: usize = 9;
/// No frame is longer unless this side allows it, which it does not.
const FRAME_BYTES_MAX: usize = 16 << 10;
const READ_BYTES: usize = 8 << 10;

/// Type and flags of frames (RFC 9113, section 6.2).
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;
const PRIORITY_BYTES: usize = 5;

/// The place of `:authority` in the static table.
const AUTHORITY: usize = 1;

/// A connection on which clients may call this node what they like.
pub(super) struct AnyAuthority<S> {
    stream: S,
    turn: Turn,
    stage: Stage,
    /// What was read and is not looked at yet: less than a frame.
    read: BytesMut,
    /// What was looked at and is not handed on yet.
    seen: BytesMut,
}

enum Stage {
    /// It is not known yet which protocol this is.
    Preface,
    /// At the beginning of a frame.
    Frame,
    /// So many bytes are left of one that does not matter.
    Passing(usize),
    /// It is not HTTP/2, or has ended.
    Through,
}

impl<S> AnyAuthority<S> {
    /// Hands on as much as `turn` lets it.
    pub(super) fn new(stream: S, turn: Turn) -> Self {
        Self {
            stream,
            turn,
            stage: Stage::Preface,
            read: BytesMut::new(),
            seen: BytesMut::new(),
        }
    }

    /// Looks at what was read, as far as it is whole.
    fn look(&mut self) {
        loop {
            match self.stage {
                Stage::Preface => {
                    let known = self.read.len().min(PREFACE.len());
                    if self.read[..known] != PREFACE[..known] {
                        self.stage = Stage::Through;
                    } else if known < PREFACE.len() {
                        return;
                    } else {
                        self.stage = Stage::Passing(PREFACE.len());
                    }
                }
                Stage::Passing(left) => {
                    let passed = self.read.split_to(left.min(self.read.len()));
                    self.seen.extend_from_slice(&passed);
                    if passed.len() < left {
                        self.stage = Stage::Passing(left - passed.len());
                        return;
                    }
                    self.stage = Stage::Frame;
                }
                Stage::Frame => {
                    let Some(header) = self.read.first_chunk::<FRAME_HEADER_BYTES>() else {
                        return;
                    };
                    let [a, b, c, kind, flags, ..] = *header;
                    let length = u32::from_be_bytes([0, a, b, c]) as usize;
                    let whole = FRAME_HEADER_BYTES + length;
                    if kind != HEADERS || length > FRAME_BYTES_MAX {
                        self.stage = Stage::Passing(whole);
                    } else if self.read.len() < whole {
                        return;
                    } else {
                        let frame = self.read.split_to(whole).freeze();
                        rename(&frame, flags, &mut self.seen);
                    }
                }
                Stage::Through => {
                    let rest = self.read.split();
                    self.seen.extend_from_slice(&rest);
                    return;
                }
            }
        }
    }
}

/// Puts a whole frame of headers into `to`, with another authority if it spells one out.
fn rename(frame: &Bytes, flags: u8, to: &mut BytesMut) {
    let (header, payload) = frame.split_at(FRAME_HEADER_BYTES);
    let Some(value) = authority(payload, flags).filter(|value| value.len() >= NAME.len()) else {
        to.extend_from_slice(frame);
        return;
    };
    let length = payload.len() - value.len() + NAME.len();
    // No longer than it was, so three bytes have room for it.
    to.extend_from_slice(&(length as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&header[3..]);
    to.extend_from_slice(&payload[..value.start]);
    to.extend_from_slice(NAME);
    to.extend_from_slice(&payload[value.end..]);
}

/// Where the value of the authority lies in a payload, with its length; `None` if it is not spelled out, or not
/// whole. What is wrong with the payload is for the library to say.
fn authority(payload: &[u8], flags: u8) -> Option<Range<usize>> {
    let mut at = 0;
    let mut end = payload.len();
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        at += 1;
    }
    if flags & HAS_PRIORITY != 0 {
        at += PRIORITY_BYTES;
    }
    let block = payload.get(..end)?;
    while at < end {
        let first = *block.get(at)?;
        // How many bits of the first byte a number has (RFC 7541, section 6).
        let name = match first {
            0x80.. => {
                at = number(block, at, 7)?.1;
                continue;
            }
            0x40.. => number(block, at, 6)?,
            0x20.. => {
                at = number(block, at, 5)?.1;
                continue;
            }
            _ => number(block, at, 4)?,
        };
        let (name, mut value) = name;
        if name == 0 {
            value = string(block, value)?;
        }
        at = string(block, value)?;
        if name == AUTHORITY {
            return Some(value..at);
        }
    }
    None
}

/// The number at `at`, in a prefix of `bits` bits and what follows (RFC 7541, section 5.1), and where it ends.
fn number(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let prefix_max = (1_usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & prefix_max;
    let mut at = at + 1;
    if value < prefix_max {
        return Some((value, at));
    }
    for shift in [0, 7, 14, 21] {
        let byte = *block.get(at)?;
        at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, at));
        }
    }
    None
}

/// Where the string at `at` ends, coded by Huffman or not.
fn string(block: &[u8], at: usize) -> Option<usize> {
    let (length, from) = number(block, at, 7)?;
    let end = from.checked_add(length)?;
    (end <= block.len()).then_some(end)
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if !this.seen.is_empty() {
                let most = this.seen.len().min(buffer.remaining());
                let count = ready!(this.turn.poll_take(cx, most));
                buffer.put_slice(&this.seen[..count]);
                this.seen.advance(count);
                return Poll::Ready(Ok(()));
            }
            if matches!(this.stage, Stage::Through) {
                return Pin::new(&mut this.stream).poll_read(cx, buffer);
            }
            let mut bytes = [0; READ_BYTES];
            let mut bytes = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut bytes))?;
            if bytes.filled().is_empty() {
                // What is left is no whole frame, which the library finds out.
                this.stage = Stage::Through;
            }
            this.read.extend_from_slice(bytes.filled());
            this.look();
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(payload);
        frame
    }

    /// What comes out of `bytes` that arrive in pieces of `piece` bytes.
    fn through(bytes: &[u8], piece: usize) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let turn = Turn::default();
            turn.begin();
            let mut stream = AnyAuthority::new(Pieces(bytes.chunks(piece)), turn);
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            all
        })
    }

    /// A stream of pieces.
    struct Pieces<'b>(std::slice::Chunks<'b, u8>);

    impl AsyncRead for Pieces<'_> {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(piece) = self.get_mut().0.next() {
                buffer.put_slice(piece);
            }
            Poll::Ready(Ok(()))
        }
    }

    /// `:method POST`, `:scheme http`, the authority, and a field with a name of its own.
    fn block(authority: &[u8]) -> Vec<u8> {
        [&[0x83, 0x86][..], authority, b"\x00\x01a\x01b\x41"].concat()
    }

    #[test]
    fn an_authority_that_is_spelled_out_is_replaced_in_every_encoding() {
        let long = [b"\x41\x7f\x31".as_slice(), &[b'x'; 176]].concat();
        for authority in [
            b"\x41\x15http://10.0.0.1:12379".as_slice(),
            b"\x01\x03#i=",
            b"\x11\x85\x9d\x29\xad\x17\x18",
            &long,
        ] {
            // Its name as it was, and the new value.
            let replaced = [&authority[..1], NAME].concat();
            // The last byte begins a field that is not whole.
            for (flags, before, after) in [
                (4, b"".as_slice(), b"".as_slice()),
                (4 | PADDED, b"\x02", b"\0\0"),
                (4 | HAS_PRIORITY, b"\0\0\0\0\x10", b""),
                (4 | PADDED | HAS_PRIORITY, b"\x01\0\0\0\0\x10", b"\0"),
            ] {
                let headers = |authority: &[u8]| {
                    let payload = [before, &block(authority), after].concat();
                    frame(HEADERS, flags, &payload)
                };
                let data = frame(0, 1, b"\x41\x03abc");
                let sent = [PREFACE, &data, &headers(authority), &data].concat();
                let expected = [PREFACE, &data, &headers(&replaced), &data].concat();
                for piece in [1, 7, 40, 4096] {
                    assert_eq!(through(&sent, piece), expected, "{authority:?} {flags}");
                }
            }
        }
    }

    #[test]
    fn what_refers_to_an_authority_is_empty_or_of_another_protocol_stays() {
        let other = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec();
        let begun = [PREFACE, &frame(HEADERS, 4, &block(b"\x41\x03abc"))[..20]].concat();
        for sent in [
            [PREFACE, &frame(HEADERS, 4, &block(b"\xbe"))].concat(),
            [PREFACE, &frame(HEADERS, 4, &block(b"\x41\x00"))].concat(),
            [PREFACE, &frame(HEADERS, 4, b"\x41\x7fab")].concat(),
            [PREFACE, &frame(HEADERS, 4 | PADDED, b"\xff\x41\x03abc")].concat(),
            other,
            begun,
            b"PRI".to_vec(),
            Vec::new(),
        ] {
            for piece in [1, 5, 4096] {
                assert_eq!(through(&sent, piece), sent);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn no_frame_panics_and_none_grows(
            flags in any::<u8>(),
            payload in prop::collection::vec(any::<u8>(), 0..200),
            piece in 1_usize..50,
        ) {
            let sent = [PREFACE, &frame(HEADERS, flags, &payload)].concat();
            let passed = through(&sent, piece);
            prop_assert!(passed.len() <= sent.len());
            let length = usize::from(passed[PREFACE.len() + 2]) + FRAME_HEADER_BYTES;
            prop_assert_eq!(passed.len(), PREFACE.len() + length);
        }
    }
}
