//! Everything that arrives as bytes: the frames of a stream, and the bodies of each kind.

use std::fmt::Debug;

use bytes::{Bytes, BytesMut};
use leasehold::api;
use leasehold::api::{Compare, Limits, Request, SessionCall, TXN_PARTS_MAX, TxnOp, WatchMessage};
use leasehold::kv::{Command, Operation};
use leasehold::raft::COMMAND_BYTES_MAX;
use leasehold::wire::client::{ClientFrame, ClientHello, ContextFrame, ServerFrame, ServerHello};
use leasehold::wire::peer::{
    Forward, ForwardReply, MemberStanding, PeerClock, PeerHello, Raft, StateChunk, Transfer,
};
use leasehold::wire::{Body, Door, Frame, FrameLimits, FrameReader, Kind, encode};

use super::draw::Draw;
use super::meter;

const LIMITS: FrameLimits = FrameLimits::DEFAULT;

/// A stream of bytes at one of the three doors, cut into chunks: one byte for the door, one for
/// the longest chunk, then the stream. Checksums are put right if the door's byte asks for it,
/// because nobody guesses one.
pub fn frames(data: &[u8]) {
    let mut draw = Draw::new(data);
    let choice = draw.byte();
    let door = [Door::Server, Door::Client, Door::Peer][usize::from(choice) % 3];
    let chunk_bytes = usize::from(draw.byte()) + 1;
    let mut stream = draw.rest().to_vec();
    if choice & 0x80 != 0 {
        put_right(&mut stream);
    }
    let whole = read_all(door, &stream, usize::MAX);
    let (cut, peak) = meter::peak(|| read_all(door, &stream, chunk_bytes));
    assert_eq!(whole, cut, "where a stream is cut changes nothing");
    assert!(
        peak <= 8 * stream.len() + (64 << 10),
        "{peak} bytes of memory for {} received",
        stream.len()
    );
    for frame in cut.0 {
        decode_any(&frame);
    }
}

/// What a client sends.
pub fn client_messages(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    // What a stranger with a certificate sends may cost little more than its own length, and the
    // parts of a transaction, of which there is a bounded number; a list doubles as it grows.
    let most = 4 * body.len() + (64 << 10);
    if kind % 2 == 0 {
        message::<ClientHello>(body, most);
        return;
    }
    let parts = body.len().min(TXN_PARTS_MAX) * size_of::<TxnOp>().max(size_of::<Compare>());
    let most = most + 4 * parts;
    let frame = match kind % 4 {
        1 => message::<ClientFrame>(body, most),
        _ => message::<ContextFrame>(body, most).map(|it| it.frame),
    };
    if let Some(frame) = frame {
        fits_the_log(frame.call.request, frame.call.session);
    }
}

/// What a server answers. A client asked for it, so its size is the client's own affair; what is
/// held against it is a length that is only claimed.
pub fn server_messages(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let most = 64 * body.len() + (2 << 20);
    match kind % 3 {
        0 => drop(message::<ServerHello>(body, most)),
        1 => drop(message::<ServerFrame>(body, most)),
        _ => drop(message::<WatchMessage>(body, most)),
    }
}

/// What a peer sends.
pub fn peer_messages(data: &[u8]) {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    if kind % 2 == 0 {
        message::<PeerHello>(body, 4 * body.len() + (64 << 10));
    } else {
        let most = 4 * LIMITS.raft_bytes_max + (256 << 10);
        message::<Raft>(body, most.min(64 * body.len() + (4 << 20)));
    }
}

/// Decodes `body`, and sends what it says once round: encoded it is a frame of its own, and that
/// frame says the same.
fn message<T: Body + PartialEq + Debug>(body: &[u8], memory_max: usize) -> Option<T> {
    let frame = Frame {
        kind: T::KIND,
        version: 1,
        body: Bytes::copy_from_slice(body),
    };
    let (decoded, peak) = meter::peak(|| frame.decode::<T>());
    assert!(
        peak <= memory_max,
        "{peak} bytes of memory for a {:?} of {} bytes; {memory_max} would be fair",
        T::KIND,
        body.len()
    );
    let value = decoded.ok()?;
    if body.len() > T::KIND.body_bytes_max(&LIMITS) {
        return None;
    }
    let written = written(&value);
    let door = match T::KIND {
        Kind::ClientHello | Kind::Call | Kind::ContextCall => Door::Server,
        Kind::ServerHello | Kind::Reply | Kind::Watch => Door::Client,
        Kind::PeerHello
        | Kind::Raft
        | Kind::PeerClock
        | Kind::Transfer
        | Kind::StateChunk
        | Kind::Standing
        | Kind::Forward
        | Kind::ForwardReply => Door::Peer,
    };
    let (frames, end) = read_all(door, &written, 7);
    assert_eq!(end, Ok(()), "what we write we can read");
    let [frame] = frames.as_slice() else {
        panic!("one frame was written, {} were read", frames.len());
    };
    let again: T = frame.decode().expect("what we write we can read");
    assert_eq!(again, value, "a round trip changes nothing");
    assert_eq!(self::written(&again), written, "there is one way to say it");
    Some(value)
}

fn written<T: Body>(value: &T) -> BytesMut {
    let mut out = BytesMut::new();
    // There are longer ways to write a number than ours, and no shorter one.
    encode(value, &LIMITS, &mut out).expect("what fitted a frame still does");
    out
}

/// A request that is not refused at the door fits one entry of the log.
pub fn fits_the_log(request: Request, session: Option<SessionCall>) {
    if api::validate(&request, &Limits::DEFAULT).is_err() {
        return;
    }
    let operation = match request {
        Request::Put(put) => Operation::Put(put),
        Request::DeleteRange(delete) => Operation::DeleteRange(delete),
        Request::Txn(txn) => Operation::Txn(txn),
        _ => return,
    };
    let command = Command::Write {
        author: None,
        session,
        operation,
    };
    assert!(command.encode().len() <= COMMAND_BYTES_MAX);
}

fn decode_any(frame: &Frame) {
    match frame.kind {
        Kind::ClientHello => drop(frame.decode::<ClientHello>()),
        Kind::ServerHello => drop(frame.decode::<ServerHello>()),
        Kind::Call => drop(frame.decode::<ClientFrame>()),
        Kind::ContextCall => drop(frame.decode::<ContextFrame>()),
        Kind::Reply => drop(frame.decode::<ServerFrame>()),
        Kind::Watch => drop(frame.decode::<WatchMessage>()),
        Kind::PeerHello => drop(frame.decode::<PeerHello>()),
        Kind::Raft => drop(frame.decode::<Raft>()),
        Kind::PeerClock => drop(frame.decode::<PeerClock>()),
        Kind::Transfer => drop(frame.decode::<Transfer>()),
        Kind::StateChunk => drop(frame.decode::<StateChunk>()),
        Kind::Standing => drop(frame.decode::<MemberStanding>()),
        Kind::Forward => drop(frame.decode::<Forward>()),
        Kind::ForwardReply => drop(frame.decode::<ForwardReply>()),
    }
}

type Read = (Vec<Frame>, Result<(), leasehold::wire::WireError>);

/// Reads a stream that comes in chunks of at most `chunk_bytes`.
fn read_all(door: Door, stream: &[u8], chunk_bytes: usize) -> Read {
    let mut reader = FrameReader::new(door, LIMITS);
    let mut frames = Vec::new();
    for chunk in stream.chunks(chunk_bytes.min(stream.len().max(1))) {
        reader.push(Bytes::copy_from_slice(chunk));
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(reader.next_frame(), Err(error), "an error stays");
                    return (frames, Err(error));
                }
            }
        }
    }
    (frames, reader.finish())
}

/// Makes the checksum of every frame in `stream` right, as far as there are frames.
fn put_right(stream: &mut [u8]) {
    let mut at = 0;
    while let Some([l0, l1, l2, l3, ..]) = stream.get(at..) {
        let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]) as usize;
        let body = at + leasehold::wire::HEADER_BYTES;
        let Some(end) = body.checked_add(length).filter(|end| *end <= stream.len()) else {
            return;
        };
        let mut sum = crc32fast::Hasher::new();
        sum.update(&stream[at..at + 7]);
        sum.update(&stream[body..end]);
        let sum = sum.finalize().to_le_bytes();
        stream[at + 7..body].copy_from_slice(&sum);
        at = end;
    }
}
