//! Single requests in gRPC over HTTP/2, without TLS.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Buf;
use bytes::BufMut;
use bytes::Bytes;
use bytes::BytesMut;
use h2::RecvStream;
use h2::client::SendRequest;
use http::HeaderMap;
use http::HeaderValue;
use http::Method;
use http::Request;
use http::Uri;
use http::Version;
use http::header::CONTENT_TYPE;
use http::header::TE;
use prost::Message;
use tokio::net::TcpStream;

use crate::bench::store::Trouble;

/// What a receiver takes before it must be told to go on, of a stream and of all together. Large,
/// so that a client never waits for leave.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Before each message: a byte that says whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// The largest answer that is taken.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The methods that are called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rpc {
    Range,
    Put,
    Status,
    MoveLeader,
}

impl Rpc {
    fn path(self) -> &'static str {
        match self {
            Self::Range => "/etcdserverpb.KV/Range",
            Self::Put => "/etcdserverpb.KV/Put",
            Self::Status => "/etcdserverpb.Maintenance/Status",
            Self::MoveLeader => "/etcdserverpb.Maintenance/MoveLeader",
        }
    }
}

/// A connection to one server, made again when it broke.
#[derive(Debug)]
pub(super) struct Channel {
    endpoint: String,
    timeout: Duration,
    sender: RefCell<Option<SendRequest<Bytes>>>,
    uris: [Uri; 4],
}

impl Channel {
    /// To `host:port`; makes no connection yet. A request may take as long as `timeout`.
    pub(super) fn new(endpoint: &str, timeout: Duration) -> Result<Self, Trouble> {
        let rpcs = [Rpc::Range, Rpc::Put, Rpc::Status, Rpc::MoveLeader];
        let mut uris = [(); 4].map(|()| Uri::default());
        for rpc in rpcs {
            let text = format!("http://{endpoint}{}", rpc.path());
            uris[rpc as usize] = text.parse().map_err(|error| Trouble {
                code: "invalid-endpoint",
                detail: format!("`{endpoint}` is not an endpoint (write host:port): {error}"),
            })?;
        }
        Ok(Self {
            endpoint: endpoint.to_owned(),
            timeout,
            sender: RefCell::new(None),
            uris,
        })
    }

    /// Makes the connection.
    pub(super) async fn connect(&self) -> Result<(), Trouble> {
        match tokio::time::timeout(self.timeout, self.sender()).await {
            Ok(sender) => sender.map(drop),
            Err(_) => Err(self.out_of_time()),
        }
    }

    /// Asks once.
    pub(super) async fn call<A: Message + Default>(
        &self,
        rpc: Rpc,
        question: &impl Message,
    ) -> Result<A, Trouble> {
        match tokio::time::timeout(self.timeout, self.attempt(rpc, question)).await {
            Ok(result) => result,
            Err(_) => Err(self.out_of_time()),
        }
    }

    pub(super) fn close(&self) {
        self.sender.take();
    }

    async fn attempt<A: Message + Default>(
        &self,
        rpc: Rpc,
        question: &impl Message,
    ) -> Result<A, Trouble> {
        let mut sender = self.sender().await?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = self.uris[rpc as usize].clone();
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        let (answer, mut body) = sender
            .send_request(request, false)
            .map_err(|error| self.broke(&error))?;
        body.send_data(framed(question), true)
            .map_err(|error| self.broke(&error))?;
        let (head, body) = answer
            .await
            .map_err(|error| self.broke(&error))?
            .into_parts();
        if !head.status.is_success() {
            return Err(Trouble {
                code: "http",
                detail: format!(
                    "{} answered with HTTP status {}",
                    self.endpoint, head.status
                ),
            });
        }
        // An answer of nothing but trailers has them in its head.
        self.check(&head.headers)?;
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
        self.check(&trailers)?;
        unframed(whole.freeze()).ok_or_else(|| self.malformed("the answer is not one message"))
    }

    /// The status that these headers tell, if they tell one.
    fn check(&self, headers: &HeaderMap) -> Result<(), Trouble> {
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
            detail: format!("{}: {message}", self.endpoint),
        })
    }

    /// A way to send, once the connection has room for another request.
    async fn sender(&self) -> Result<SendRequest<Bytes>, Trouble> {
        let known = self.sender.borrow().clone();
        let sender = match known {
            Some(sender) => sender,
            None => {
                let made = self.dial().await?;
                self.sender.replace(Some(made.clone()));
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
        // Ends when the last sender is gone, or with the runtime; how is told by the requests.
        tokio::spawn(connection);
        Ok(sender)
    }

    fn broke(&self, error: &h2::Error) -> Trouble {
        // The next request makes a new connection, unless only this stream was refused.
        if !error.is_reset() {
            self.sender.take();
        }
        Trouble {
            code: "connection-lost",
            detail: format!("the connection to {} broke: {error}", self.endpoint),
        }
    }

    fn malformed(&self, what: &str) -> Trouble {
        Trouble {
            code: "malformed-answer",
            detail: format!("{}: {what}", self.endpoint),
        }
    }

    fn out_of_time(&self) -> Trouble {
        Trouble {
            code: "DEADLINE_EXCEEDED",
            detail: format!("{} did not answer within {:?}", self.endpoint, self.timeout),
        }
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
}
