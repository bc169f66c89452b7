//! A request in JSON, as the messages of gRPC that it means.

use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::Incoming;

use crate::etcd::framing::PREFIX_BYTES;
use crate::etcd::json::{Messages, Method, Scanner, to_protobuf};
use crate::etcd::status::{Code, Status};
use crate::server::etcd::arriving::ArrivingBytes;
use crate::server::etcd::body::{TranslatedBody, drain, poll_data};
use crate::server::session::LocalClient;

/// A message is longer in JSON; up to so many times as long, it is looked at.
const LONGER_MAX: usize = 2;

/// See the module.
pub(in crate::server::etcd) struct JsonBody {
    /// There until it is dropped.
    body: Option<Incoming>,
    method: &'static Method,
    /// The longest text of a message.
    bytes_max: usize,
    /// What has arrived and was not taken.
    read: BytesMut,
    scanner: Scanner,
    /// Of the node's memory: for the text, and for the message that it means.
    held: ArrivingBytes,
    is_over: bool,
    /// The one message of the call was taken.
    is_taken: bool,
}

impl JsonBody {
    /// Messages of at most `message_bytes_max`.
    pub(in crate::server::etcd) fn new(
        body: Incoming,
        method: &'static Method,
        client: LocalClient,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            body: Some(body),
            method,
            bytes_max: LONGER_MAX * message_bytes_max,
            read: BytesMut::new(),
            scanner: Scanner::default(),
            held: ArrivingBytes::new(client, 2),
            is_over: false,
            is_taken: false,
        }
    }

    /// The next message, framed; `None` after the last.
    ///
    /// # Errors
    /// It is not JSON, or not that of a request of the method; it is too long, or there is no memory for
    /// it.
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        loop {
            if let Some(text) = self.whole()? {
                let message = to_protobuf(&text, self.method.request).map_err(malformed)?;
                self.held.release(self.read.len());
                return Poll::Ready(Ok(Some(framed(&message))));
            }
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            let Some(body) = &mut self.body else {
                return Poll::Ready(Ok(None));
            };
            match ready!(poll_data(body, cx)) {
                Some(data) => {
                    self.read.extend_from_slice(&data?);
                    self.hold()?;
                }
                None => self.is_over = true,
            }
        }
    }

    /// The text of a message that has arrived as a whole. One of a stream ends with its last bracket, that
    /// of another call with the body.
    fn whole(&mut self) -> Result<Option<BytesMut>, Status> {
        if self.method.messages == Messages::Many {
            return match self.scanner.end(&self.read).map_err(malformed)? {
                Some(end) => Ok(Some(self.read.split_to(end))),
                None if self.is_over && !self.read.trim_ascii().is_empty() => {
                    Err(malformed("the body ends within an object".to_owned()))
                }
                None => Ok(None),
            };
        }
        // An empty body is an empty message.
        let is_whole = self.is_over && !self.is_taken;
        Ok(is_whole.then(|| {
            self.is_taken = true;
            self.read.split()
        }))
    }

    /// Counts what has arrived against the node's memory.
    fn hold(&mut self) -> Result<(), Status> {
        let bytes = self.read.len();
        if bytes > self.bytes_max {
            let limit = self.bytes_max;
            let text =
                format!("the JSON text of a request is larger than max ({bytes} vs. {limit})");
            return Err(Status::with(Code::ResourceExhausted, text));
        }
        self.held.hold(bytes)
    }
}

impl Drop for JsonBody {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            drain(body);
        }
    }
}

impl TranslatedBody for JsonBody {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        self.poll_message(cx).map(Result::transpose)
    }

    fn has_begun(&self) -> bool {
        !self.read.trim_ascii_start().is_empty()
    }
}

fn malformed(found: String) -> Status {
    Status::with(Code::InvalidArgument, format!("malformed JSON: {found}"))
}

fn framed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    // The text was bounded, and so is this.
    framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    framed.extend_from_slice(message);
    framed.freeze()
}
