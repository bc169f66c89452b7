//! Requests and streams in gRPC over HTTP/2, without TLS.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version};
use prost::Message;
use tokio::net::TcpStream;

use leasehold::bench::store::Trouble;

/// The receive window, of a stream and of all together. Large,
/// so that a client never waits for leave.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Before each message: a byte that says whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The largest answer that is taken.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The methods that are called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rpc {
    Range,
    Put,
    Status,
    MoveLeader,
    LeaseGrant,
    LeaseRevoke,
    LeaseKeepAlive,
    Watch,
}

impl Rpc {
    /// In the order in which they are numbered.
    const ALL: [Self; 8] = [
        Self::Range,
        Self::Put,
        Self::Status,
        Self::MoveLeader,
        Self::LeaseGrant,
        Self::LeaseRevoke,
        Self::LeaseKeepAlive,
        Self::Watch,
    ];

    fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::Status => "/etcdserverpb.Maintenance/Status",
            Self::MoveLeader => "/etcdserverpb.Maintenance/MoveLeader",
            Self::LeaseGrant => "/etcdserverpb.Lease/LeaseGrant",
            Self::LeaseRevoke => "/etcdserverpb.Lease/LeaseRevoke",
            Self::LeaseKeepAlive => "/etcdserverpb.Lease/LeaseKeepAlive",
            Self::Watch => "/etcdserverpb.Watch/Watch",
        }
    }
}

/// A connection to one server, made again when it broke.
#[derive(Debug)]
pub(crate) struct Channel {
    endpoint: String,
    timeout: Duration,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    uris: [Uri; Rpc::ALL.len()],
}

/// Our side of a stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    endpoint: String,
    stream: SendStream<Bytes>,
}

/// The server's side of a stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    endpoint: String,
    body: Body,
    /// What has come of a message that is not whole.
    rest: BytesMut,
}

/// A server says nothing, not even that it listens, before it has something to say.
#[derive(Debug)]
enum Body {
    Awaited(ResponseFuture),
    Open(RecvStream),
    Ended,
}

impl Channel {
    /// To `host:port`; makes no connection yet. A request may take as long as `timeout`.
    pub(crate) fn new(endpoint: &str, timeout: Duration) -> Result<Self, Trouble> {
        let mut uris = Rpc::ALL.map(|_| Uri::default());
        for rpc in Rpc::ALL {
            let text = format!("http://{endpoint}{}", rpc.path());
            uris[rpc as usize] = text.parse().map_err(|error| Trouble {
                code: "invalid-endpoint",
                detail: format!("`{endpoint}` is not an endpoint (write host:port): {error}"),
            })?;
        }
        Ok(Self {
            endpoint: endpoint.to_owned(),
            timeout,
            sender: Mutex::new(None),
            uris,
        })
    }

    /// Makes the connection.
    pub(crate) async fn connect(&self) -> Result<(), Trouble> {
        match tokio::time::timeout(self.timeout, self.sender()).await {
            Ok(sender) => sender.map(drop),
            Err(_) => Err(self.out_of_time()),
        }
    }

    /// Asks once.
    pub(crate) async fn call<A: Message + Default>(
        &self,
        rpc: Rpc,
        question: &impl Message,
    ) -> Result<A, Trouble> {
        match tokio::time::timeout(self.timeout, self.attempt(rpc, question)).await {
            Ok(result) => result,
            Err(_) => Err(self.out_of_time()),
        }
    }

    /// Opens a stream on which both sides say something whenever they like.
    pub(crate) async fn open(&self, rpc: Rpc) -> Result<(Outgoing, Incoming), Trouble> {
        let mut sender = match tokio::time::timeout(self.timeout, self.sender()).await {
            Ok(sender) => sender?,
            Err(_) => return Err(self.out_of_time()),
        };
        let (answer, stream) = sender
            .send_request(self.request(rpc), false)
            .map_err(|error| self.broke(&error))?;
        let outgoing = Outgoing {
            endpoint: self.endpoint.clone(),
            stream,
        };
        let incoming = Incoming {
            endpoint: self.endpoint.clone(),
            body: Body::Awaited(answer),
            rest: BytesMut::new(),
        };
        Ok((outgoing, incoming))
    }

    /// How long a request may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn close(&self) {
        self.held().take();
    }

    fn held(&self) -> MutexGuard<'_, Option<SendRequest<Bytes>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self, rpc: Rpc) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uris[rpc as usize].clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        request
    }

    async fn attempt<A: Message + Default>(
        &self,
        rpc: Rpc,
        question: &impl Message,
    ) -> Result<A, Trouble> {
        let mut sender = self.sender().await?;
        let (answer, mut body) = sender
            .send_request(self.request(rpc), false)
            .map_err(|error| self.broke(&error))?;
        body.send_data(framed(question), true)
            .map_err(|error| self.broke(&error))?;
        let (head, body) = answer
            .await
            .map_err(|error| self.broke(&error))?
            .into_parts();
        // An answer of nothing but trailers has them in its head.
        check_head(&self.endpoint, &head)?;
        let message = self.receive(body).await?;
        A::decode(message).map_err(|error| self.malformed(&error.to_string()))
    }

    /// The message of an answer, once all of it is there and its trailers say that it is good.
    async fn receive(&self, mut body: RecvStream) -> Result<Bytes, Trouble> {
        let mut whole = BytesMut::new();
        while let Some(data) = body.data().await {
            let data = data.map_err(|error| self.broke(&error))?;
            if whole.len() + data.len() > ANSWER_BYTES_MAX {
                return Err(self.malformed("the answer is too large"));
            }
            let taken = body.flow_control().release_capacity(data.len());
            taken.map_err(|error| self.broke(&error))?;
            whole.extend_from_slice(&data);
        }
        let trailers = body.trailers().await.map_err(|error| self.broke(&error))?;
        let trailers = trailers.ok_or_else(|| self.malformed("the answer has no trailers"))?;
        if !trailers.contains_key("grpc-status") {
            return Err(self.malformed("the answer has no status"));
        }
        check(&self.endpoint, &trailers)?;
        unframed(whole.freeze()).ok_or_else(|| self.malformed("the answer is not one message"))
    }

    /// A way to send, once the connection has room for another request.
    async fn sender(&self) -> Result<SendRequest<Bytes>, Trouble> {
        let known = self.held().clone();
        let sender = match known {
            Some(sender) => sender,
            None => {
                let made = self.dial().await?;
                self.held().replace(made.clone());
                made
            }
        };
        sender.ready().await.map_err(|error| self.broke(&error))
    }

    async fn dial(&self) -> Result<SendRequest<Bytes>, Trouble> {
        let refused = |error: std::io::Error| Trouble {
            code: "connect-failed",
            detail: format!("cannot connect to {}: {error}", self.endpoint),
        };
        let stream = TcpStream::connect(&self.endpoint).await.map_err(refused)?;
        stream.set_nodelay(true).map_err(refused)?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(stream)
            .await
            .map_err(|error| self.broke(&error))?;
        // Ends when the last sender is gone, or with the runtime; the requests report how.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn broke(&self, error: &h2::Error) -> Trouble {
        // The next request makes a new connection, unless only this stream was refused.
        if !error.is_reset() {
            self.held().take();
        }
        lost(&self.endpoint, error)
    }

    fn malformed(&self, what: &str) -> Trouble {
        malformed(&self.endpoint, what)
    }

    fn out_of_time(&self) -> Trouble {
        Trouble {
            code: "DEADLINE_EXCEEDED",
            detail: format!("{} did not answer within {:?}", self.endpoint, self.timeout),
        }
    }
}

impl Outgoing {
    /// Says something; it is sent as soon as the server takes it.
    pub(crate) fn say(&mut self, message: &impl Message) -> Result<(), Trouble> {
        let sent = self.stream.send_data(framed(message), false);
        sent.map_err(|error| lost(&self.endpoint, &error))
    }
}

impl Incoming {
    /// The next message; `None` once the server has ended the stream in good order. Loses nothing
    /// when it is dropped before it is done.
    pub(crate) async fn hear<A: Message + Default>(&mut self) -> Result<Option<A>, Trouble> {
        loop {
            if let Some(message) =
                first_framed(&mut self.rest).map_err(|what| malformed(&self.endpoint, what))?
            {
                let message = A::decode(message);
                return message
                    .map(Some)
                    .map_err(|error| malformed(&self.endpoint, &error.to_string()));
            }
            match &mut self.body {
                Body::Awaited(answer) => {
                    let answer = answer.await.map_err(|error| lost(&self.endpoint, &error))?;
                    let (head, body) = answer.into_parts();
                    check_head(&self.endpoint, &head)?;
                    self.body = Body::Open(body);
                }
                Body::Open(body) => match body.data().await {
                    Some(data) => {
                        let data = data.map_err(|error| lost(&self.endpoint, &error))?;
                        let taken = body.flow_control().release_capacity(data.len());
                        taken.map_err(|error| lost(&self.endpoint, &error))?;
                        self.rest.extend_from_slice(&data);
                    }
                    None => {
                        let trailers = body.trailers().await;
                        let trailers = trailers.map_err(|error| lost(&self.endpoint, &error))?;
                        self.body = Body::Ended;
                        check(&self.endpoint, &trailers.unwrap_or_default())?;
                    }
                },
                Body::Ended => return Ok(None),
            }
        }
    }
}

fn check_head(endpoint: &str, head: &http::response::Parts) -> Result<(), Trouble> {
    if !head.status.is_success() {
        return Err(Trouble {
            code: "http",
            detail: format!("{endpoint} answered with HTTP status {}", head.status),
        });
    }
    check(endpoint, &head.headers)
}

/// The status that these headers tell, if they tell one.
fn check(endpoint: &str, headers: &HeaderMap) -> Result<(), Trouble> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    let Some(status) = text("grpc-status") else {
        return Ok(());
    };
    let code = status_name(status);
    if code == "OK" {
        return Ok(());
    }
    let message = text("grpc-message").unwrap_or("no reason was given");
    Err(Trouble {
        code,
        detail: format!("{endpoint}: {message}"),
    })
}

fn lost(endpoint: &str, error: &h2::Error) -> Trouble {
    Trouble {
        code: "connection-lost",
        detail: format!("the connection to {endpoint} broke: {error}"),
    }
}

fn malformed(endpoint: &str, what: &str) -> Trouble {
    Trouble {
        code: "malformed-answer",
        detail: format!("{endpoint}: {what}"),
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    // A request of ours has a value of at most a mebibyte.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// The one message in these bytes.
fn unframed(mut bytes: Bytes) -> Option<Bytes> {
    if bytes.len() < PREFIX_BYTES {
        return None;
    }
    let (compressed, length) = (bytes.get_u8(), bytes.get_u32());
    (compressed == 0 && bytes.len() == length as usize).then_some(bytes)
}

/// Takes the first message off these bytes, if all of it is there.
fn first_framed(bytes: &mut BytesMut) -> Result<Option<Bytes>, &'static str> {
    let Some(prefix) = bytes.first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    let [compressed, length @ ..] = *prefix;
    let length = u32::from_be_bytes(length) as usize;
    if compressed != 0 {
        return Err("a message is compressed, which was not agreed on");
    }
    if length > ANSWER_BYTES_MAX {
        return Err("a message is too large");
    }
    if bytes.len() < PREFIX_BYTES + length {
        return Ok(None);
    }
    bytes.advance(PREFIX_BYTES);
    Ok(Some(bytes.split_to(length).freeze()))
}

/// gRPC's own names of its statuses.
fn status_name(status: &str) -> &'static str {
    match status {
        "0" => "OK",
        "1" => "CANCELLED",
        "3" => "INVALID_ARGUMENT",
        "4" => "DEADLINE_EXCEEDED",
        "5" => "NOT_FOUND",
        "7" => "PERMISSION_DENIED",
        "8" => "RESOURCE_EXHAUSTED",
        "9" => "FAILED_PRECONDITION",
        "11" => "OUT_OF_RANGE",
        "12" => "UNIMPLEMENTED",
        "13" => "INTERNAL",
        "14" => "UNAVAILABLE",
        "16" => "UNAUTHENTICATED",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::PutRequest;

    #[test]
    fn a_frame_holds_one_message_and_nothing_else() {
        let put = PutRequest {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
            lease: 0,
        };
        let bytes = framed(&put);
        assert_eq!(bytes[..PREFIX_BYTES], [0, 0, 0, 0, 6]);
        assert_eq!(
            PutRequest::decode(unframed(bytes.clone()).unwrap()).unwrap(),
            put
        );
        for cut in 0..bytes.len() {
            assert_eq!(unframed(bytes.slice(..cut)), None, "{cut} bytes of it");
        }
        let mut longer = BytesMut::from(&bytes[..]);
        longer.put_u8(0);
        assert_eq!(unframed(longer.freeze()), None);
        let mut compressed = BytesMut::from(&bytes[..]);
        compressed[0] = 1;
        assert_eq!(unframed(compressed.freeze()), None);
    }

    #[test]
    fn messages_of_a_stream_are_found_however_they_are_cut() {
        let put = |key: &'static str| PutRequest {
            key: Bytes::from_static(key.as_bytes()),
            ..PutRequest::default()
        };
        let all = [framed(&put("one")), framed(&put("")), framed(&put("three"))].concat();
        for cut in 0..=all.len() {
            let mut bytes = BytesMut::new();
            let mut found = Vec::new();
            for part in [&all[..cut], &all[cut..]] {
                bytes.extend_from_slice(part);
                while let Some(message) = first_framed(&mut bytes).unwrap() {
                    found.push(PutRequest::decode(message).unwrap().key);
                }
            }
            assert_eq!(found, ["one", "", "three"], "cut after {cut}");
            assert!(bytes.is_empty());
        }
        assert!(first_framed(&mut BytesMut::from(&[1, 0, 0, 0, 0][..])).is_err());
        assert!(first_framed(&mut BytesMut::from(&[0, 255, 0, 0, 0][..])).is_err());
    }
}
