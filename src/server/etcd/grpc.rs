//! gRPC over HTTP/2: five bytes before each message, and how a call ended in the trailers.
//!
//! What clients of etcd depend on is exact here: a message that is too long gets etcd's code and text; a
//! call that fails before its first message ends in one block of headers that has a content type; a
//! deadline is the client's.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use tokio::sync::mpsc;

use super::arriving::{ArrivingBytes, SMALL_BYTES};
use super::body::{CUT_OFF, NO_REQUEST, RequestBody};
use super::large::{LargeReply, Patience};
pub(super) use super::stream_frame::StreamFrame;
use crate::etcd::framing::{PREFIX_BYTES, message_bytes};
use crate::etcd::status::{Code, Status};
use crate::server::session::LocalClient;

/// An answer for which there is no memory until its client reads. Nothing is said of what it answers: a write
/// is applied by then.
const NOT_READ: Status = Status::new(
    Code::Unavailable,
    "etcdserver: no memory is left for the answer until the client reads it; the request may have been carried out",
);
/// The status of a call that went well.
const OK: i32 = 0;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const CONTENT: HeaderValue = HeaderValue::from_static("application/grpc");

/// The body of an answer.
pub(super) enum Reply {
    /// What is left of it.
    Small(VecDeque<Frame<Bytes>>),
    /// What takes long to send, and memory meanwhile.
    Large(LargeReply),
    /// What comes by and by, in frames that are small or that others hold, too.
    Stream(mpsc::Receiver<StreamFrame>),
    /// One of these, in other words, or counted.
    Translated(Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>),
}

impl Reply {
    /// A body of these bytes.
    pub(super) fn of(bytes: Bytes) -> Self {
        Self::Small(VecDeque::from([Frame::data(bytes)]))
    }

    /// No body.
    pub(super) fn empty() -> Self {
        Self::Small(VecDeque::new())
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Small(frames) => Poll::Ready(frames.pop_front().map(Ok)),
            Self::Large(large) => Pin::new(large).poll_frame(cx),
            Self::Stream(frames) => frames
                .poll_recv(cx)
                .map(|next| next.map(|next| Ok(next.into_parts().0))),
            Self::Translated(reply) => reply.as_mut().poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Small(frames) if frames.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        let Self::Small(frames) = self else {
            return SizeHint::default();
        };
        let has_trailers = frames.iter().any(Frame::is_trailers);
        let bytes = frames.iter().filter_map(Frame::data_ref).map(Bytes::len);
        match has_trailers {
            true => SizeHint::default(),
            false => SizeHint::with_exact(bytes.sum::<usize>() as u64),
        }
    }
}

/// Whether the headers are those of a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let content = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content.is_some_and(|content| content.starts_with(b"application/grpc"))
}

/// How long the client waits; `None` for as long as it takes.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else {
        return Ok(None);
    };
    let malformed = || Status::new(Code::InvalidArgument, "malformed grpc-timeout");
    let text = value.to_str().map_err(|_| malformed())?;
    let (digits, unit) = text
        .split_at_checked(text.len().saturating_sub(1))
        .ok_or_else(malformed)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit())
    {
        return Err(malformed());
    }
    let count: u64 = digits.parse().map_err(|_| malformed())?;
    Ok(Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return Err(malformed()),
    }))
}

/// That the client compresses nothing.
pub(super) fn refuse_compression(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(GRPC_ENCODING).map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(()),
        Some(_) => Err(Status::new(
            Code::Unimplemented,
            "grpc: compression is not supported",
        )),
    }
}

/// Receives the one message of a unary call, of at most `bytes_max`, against the memory of `client`.
///
/// # Errors
/// It is too long, compressed, cut off or more than one, or there is no memory for it.
pub(super) async fn receive(
    body: &mut RequestBody,
    client: &LocalClient,
    bytes_max: usize,
) -> Result<(Bytes, impl Sized + use<>), Status> {
    let mut read = BytesMut::new();
    let mut held = ArrivingBytes::new(client.clone(), 1);
    let mut length = None;
    loop {
        if length.is_none()
            && let Some(bytes) = message_bytes(&read, bytes_max)?
        {
            read.advance(PREFIX_BYTES);
            length = Some(bytes);
        }
        if length.is_some_and(|length| read.len() > length) {
            return Err(Status::new(
                Code::Unimplemented,
                "grpc: more than one message in a unary call",
            ));
        }
        match body.next().await {
            None if length == Some(read.len()) => return Ok((read.freeze(), held)),
            None if length.is_none() && read.is_empty() => return Err(NO_REQUEST),
            None => return Err(CUT_OFF),
            Some(data) => read.extend_from_slice(&data?),
        }
        held.hold(read.len())?;
    }
}

/// An encoded message, in pieces that follow each other.
pub(super) struct Pieces {
    pub(super) pieces: VecDeque<Bytes>,
    /// What is held of the node's memory until it is sent.
    pub(super) held: Option<Box<dyn Send + Sync>>,
}

impl Pieces {
    /// The same, counted against the memory of `client` until that has read it, unless it is small or
    /// counted already.
    ///
    /// # Errors
    /// There is no memory for it. The request was carried out all the same.
    pub(super) fn counted(self, client: &LocalClient) -> Result<Self, Status> {
        let bytes: usize = self.pieces.iter().map(Bytes::len).sum();
        if self.held.is_some() || bytes <= SMALL_BYTES {
            return Ok(self);
        }
        let held = client.reserve(bytes).ok_or(NOT_READ)?;
        Ok(Self {
            held: Some(Box::new(held)),
            ..self
        })
    }
}

impl<M: Message> From<M> for Pieces {
    fn from(message: M) -> Self {
        Self {
            pieces: VecDeque::from([Bytes::from(message.encode_to_vec())]),
            held: None,
        }
    }
}

/// The answer to a call that went well.
pub(super) fn success(message: Pieces) -> Response<Reply> {
    let Pieces { mut pieces, held } = message;
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    let mut prefix = BytesMut::with_capacity(PREFIX_BYTES);
    prefix.put_u8(0);
    // Answers are bounded far below.
    prefix.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    let mut trailers = HeaderMap::new();
    trailers.insert(GRPC_STATUS, HeaderValue::from(OK));
    let reply = match held {
        None => {
            for piece in pieces.drain(..) {
                prefix.extend_from_slice(&piece);
            }
            let frames = [Frame::data(prefix.freeze()), Frame::trailers(trailers)];
            Reply::Small(VecDeque::from(frames))
        }
        Some(held) => {
            pieces.push_front(prefix.freeze());
            Reply::Large(LargeReply::new(pieces, trailers, held))
        }
    };
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    response
}

/// The answer to a call that failed: headers alone.
pub(super) fn failure(status: &Status) -> Response<Reply> {
    let mut response = Response::new(Reply::empty());
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, CONTENT);
    headers.insert(GRPC_STATUS, HeaderValue::from(status.code as i32));
    let message = HeaderValue::from_bytes(&escaped(&status.message));
    let message = message.unwrap_or_else(|_| HeaderValue::from_static(""));
    headers.insert(GRPC_MESSAGE, message);
    response
}

/// The headers of a call whose messages come by and by.
pub(super) fn streaming(frames: mpsc::Receiver<StreamFrame>) -> Response<Reply> {
    streamed(Reply::Stream(frames))
}

/// The same, if the messages are large: they wait for this long until the client reads, and are given up
/// then, with the call. Their channel is closed as well.
pub(super) fn streaming_large(
    frames: mpsc::Receiver<StreamFrame>,
    patience: Patience,
) -> Response<Reply> {
    streamed(Reply::Large(LargeReply::stream(frames, patience)))
}

fn streamed(reply: Reply) -> Response<Reply> {
    let mut response = Response::new(reply);
    response.headers_mut().insert(CONTENT_TYPE, CONTENT);
    response
}

/// A message of a stream.
pub(super) fn message_frame(message: &impl Message) -> StreamFrame {
    message_head(message, 0).freeze().into()
}

/// Messages of a stream, one after the other.
pub(super) fn message_frames(messages: &[impl Message]) -> StreamFrame {
    let framed = messages
        .iter()
        .map(|message| PREFIX_BYTES + message.encoded_len());
    let mut bytes = BytesMut::with_capacity(framed.sum());
    for message in messages {
        put_message(&mut bytes, message, 0);
    }
    bytes.freeze().into()
}

/// The beginning of a message of a stream: its prefix, and `message`, which `more` bytes follow.
pub(super) fn message_head(message: &impl Message, more: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.encoded_len());
    put_message(&mut bytes, message, more);
    bytes
}

fn put_message(bytes: &mut BytesMut, message: &impl Message, more: usize) {
    bytes.put_u8(0);
    // What is sent on streams is bounded far below.
    let length = message.encoded_len() + more;
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message
        .encode(bytes)
        .expect("a buffer of bytes grows as it is needed");
}

/// The end of a stream.
pub(super) fn end_frame(end: Result<(), &Status>) -> StreamFrame {
    let mut trailers = HeaderMap::new();
    match end {
        Ok(()) => drop(trailers.insert(GRPC_STATUS, HeaderValue::from(OK))),
        Err(status) => {
            trailers.insert(GRPC_STATUS, HeaderValue::from(status.code as i32));
            let message = HeaderValue::from_bytes(&escaped(&status.message));
            let message = message.unwrap_or_else(|_| HeaderValue::from_static(""));
            trailers.insert(GRPC_MESSAGE, message);
        }
    }
    Frame::trailers(trailers).into()
}

/// How a call ended by its headers or trailers, with a code and a text; `None` if they do not say.
pub(super) fn outcome(headers: &HeaderMap) -> Option<(i32, String)> {
    let code = headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()?;
    let text = headers.get(GRPC_MESSAGE).map(HeaderValue::as_bytes);
    Some((code, unescaped(text.unwrap_or_default())))
}

/// A text that was [`escaped`].
fn unescaped(header: &[u8]) -> String {
    let mut text = Vec::with_capacity(header.len());
    let mut rest = header;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let escaped = after.split_at_checked(2).filter(|_| byte == b'%');
        let escaped = escaped.and_then(|(digits, after)| {
            let digits = std::str::from_utf8(digits).ok()?;
            Some((u8::from_str_radix(digits, 16).ok()?, after))
        });
        match escaped {
            Some((escaped, after)) => {
                text.push(escaped);
                rest = after;
            }
            None => text.push(byte),
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// A text as a header: what is not printable ASCII, and the percent sign, is escaped.
fn escaped(text: &str) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(byte),
            _ => out.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_in_every_unit_and_nothing_else_is() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_str(text).unwrap());
            timeout(&headers)
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(read("2H"), Ok(Some(Duration::from_secs(7200))));
        assert_eq!(read("99999999H").map(|some| some.is_some()), Ok(true));
        assert_eq!(read("3M"), Ok(Some(Duration::from_secs(180))));
        assert_eq!(read("4S"), Ok(Some(Duration::from_secs(4))));
        assert_eq!(read("5m"), Ok(Some(Duration::from_millis(5))));
        assert_eq!(read("6u"), Ok(Some(Duration::from_micros(6))));
        assert_eq!(read("7n"), Ok(Some(Duration::from_nanos(7))));
        for text in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1 S", "1é"] {
            let refused = HeaderValue::from_str(text).is_err() || read(text).is_err();
            assert!(refused, "{text}");
        }
    }

    #[test]
    fn messages_are_escaped_and_failures_are_headers_alone() {
        assert_eq!(escaped("a b%é\n"), b"a b%25%C3%A9%0A");
        assert_eq!(unescaped(&escaped("a b%é\n")), "a b%é\n");
        assert_eq!(unescaped(b"%%4%zz"), "%%4%zz");
        let failed = failure(&crate::etcd::errors::EMPTY_KEY);
        assert!(failed.body().is_end_stream());
        assert_eq!(failed.headers()[CONTENT_TYPE], "application/grpc");
        assert_eq!(failed.headers()[&GRPC_STATUS], "3");
        assert_eq!(
            failed.headers()[&GRPC_MESSAGE],
            "etcdserver: key is not provided"
        );
        let text = "etcdserver: key is not provided".to_owned();
        assert_eq!(outcome(failed.headers()), Some((3, text)));
        assert_eq!(outcome(&HeaderMap::new()), None);
    }
}
