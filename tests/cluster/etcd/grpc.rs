//! A client of gRPC that leaves everything to the test: headers, framing and what comes back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::harness::PATIENCE;

/// A connection.
pub(crate) struct Channel {
    sender: SendRequest<Bytes>,
    address: SocketAddr,
    driver: JoinHandle<()>,
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The messages that came.
    pub(crate) body: Bytes,
    /// Of the answer.
    pub(crate) headers: HeaderMap,
    /// After the body; empty if the answer was headers alone.
    pub(crate) trailers: HeaderMap,
}

impl Ended {
    /// The code and the text; 0 and nothing if all went well.
    pub(crate) fn status(&self) -> (i32, String) {
        let either = |name: &str| {
            let found = self.trailers.get(name).or_else(|| self.headers.get(name));
            found.map(|value| value.to_str().unwrap().to_owned())
        };
        let code = either("grpc-status").expect("every call ends with a status");
        (
            code.parse().unwrap(),
            either("grpc-message").unwrap_or_default(),
        )
    }

    /// The one message of a call that went well.
    pub(crate) fn message<M: Message + Default>(&self) -> M {
        assert_eq!(self.status().0, 0, "{self:?}");
        let mut body = self.body.clone();
        assert_eq!(body.get_u8(), 0);
        assert_eq!(body.get_u32() as usize, body.len());
        M::decode(body).unwrap()
    }
}

/// A message as it is sent.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.extend_from_slice(message);
    bytes.freeze()
}

impl Channel {
    /// To a node that has the port open, or is about to.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::with_window(address, 8 << 20).await
    }

    /// One whose streams take in no more than `bytes` that were not read.
    pub(crate) async fn with_window(address: SocketAddr, bytes: u32) -> Self {
        let begun = Instant::now();
        loop {
            match Self::connect(address, bytes).await {
                Ok(channel) => return channel,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{address}: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The same, to a node that may not be there.
    pub(crate) async fn connect(address: SocketAddr, bytes: u32) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        // Or each call waits for the delayed acknowledgement of the one before.
        stream.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder
            .initial_window_size(bytes)
            .initial_connection_window_size(16 << 20);
        let begun = builder.handshake(stream).await;
        let (sender, connection) = begun.map_err(std::io::Error::other)?;
        let driver = tokio::spawn(async move {
            // How it ends is seen by the calls.
            let _ = connection.await;
        });
        Ok(Self {
            sender,
            address,
            driver,
        })
    }

    /// How many calls the node takes beside each other here.
    pub(crate) fn streams_max(&self) -> usize {
        self.sender.current_max_send_streams()
    }

    /// Calls `path` with these bytes as the body, and these headers beside the usual ones.
    pub(crate) async fn call(
        &self,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> Result<Ended, h2::Error> {
        self.call_as("application/grpc", path, body, headers).await
    }

    /// The same with a body of this type.
    pub(crate) async fn call_as(
        &self,
        content_type: &str,
        path: &str,
        body: Bytes,
        headers: &[(&str, &str)],
    ) -> Result<Ended, h2::Error> {
        let mut request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", content_type)
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.sender.clone().ready().await?;
        let (answer, mut stream) = sender.send_request(request.body(()).unwrap(), false)?;
        // Who has answered already wants no body, and has closed the stream: the answer counts.
        let _ = stream.send_data(body, true);
        let answer = answer.await?;
        let headers = answer.headers().clone();
        let mut incoming = answer.into_body();
        let mut body = BytesMut::new();
        while let Some(chunk) = incoming.data().await {
            let chunk = chunk?;
            body.extend_from_slice(&chunk);
            incoming.flow_control().release_capacity(chunk.len())?;
        }
        let trailers = incoming.trailers().await?.unwrap_or_default();
        Ok(Ended {
            body: body.freeze(),
            headers,
            trailers,
        })
    }

    /// Begins a call of many messages each way, whose headers come before anything is asked.
    pub(crate) async fn stream(&self, path: &str, headers: &[(&str, &str)]) -> Stream {
        let mut stream = self.begin(path, headers).await;
        let answered = tokio::time::timeout(PATIENCE, stream.wait_for_headers());
        let answered = answered.await.expect("headers before anything is asked");
        answered.unwrap();
        stream
    }

    /// Begins a call of many messages each way, whose headers may come with the first answer: etcd's do.
    pub(crate) async fn begin(&self, path: &str, headers: &[(&str, &str)]) -> Stream {
        self.try_begin(path, headers).await.unwrap()
    }

    /// The same, to a node that may be gone.
    pub(crate) async fn try_begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<Stream, h2::Error> {
        let mut request = Request::post(format!("http://{}{path}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut sender = self.sender.clone().ready().await?;
        let request = request.body(()).unwrap();
        let (answer, sending) = sender.send_request(request, false)?;
        Ok(Stream {
            sending,
            receiving: Receiving::Headers(answer),
            read: BytesMut::new(),
        })
    }

    /// A unary call.
    pub(crate) async fn ask<A: Message + Default>(
        &self,
        path: &str,
        question: &impl Message,
    ) -> Result<A, (i32, String)> {
        self.ask_with(path, question, &[]).await
    }

    /// A unary call with these headers beside the usual ones.
    pub(crate) async fn ask_with<A: Message + Default>(
        &self,
        path: &str,
        question: &impl Message,
        headers: &[(&str, &str)],
    ) -> Result<A, (i32, String)> {
        let body = framed(&question.encode_to_vec());
        let call = self.call(path, body, headers);
        let ended = tokio::time::timeout(PATIENCE, call).await;
        let ended = ended.expect("an answer").unwrap();
        match ended.status() {
            (0, _) => Ok(ended.message()),
            status => Err(status),
        }
    }
}

/// How a call ended, if these say so.
fn status(headers: &HeaderMap) -> Option<(i32, String)> {
    let text = |name: &str| headers.get(name).map(|text| text.to_str().unwrap());
    let code = text("grpc-status")?.parse().unwrap();
    Some((code, text("grpc-message").unwrap_or_default().to_owned()))
}

/// Why no more messages come.
#[derive(Debug)]
pub(crate) enum Silence {
    /// The call ended so.
    Ended((i32, String)),
    /// The connection did, or the stream broke off.
    Lost(h2::Error),
}

/// A call of many messages each way.
pub(crate) struct Stream {
    sending: SendStream<Bytes>,
    receiving: Receiving,
    read: BytesMut,
}

/// What is received next.
enum Receiving {
    Headers(ResponseFuture),
    Messages(RecvStream),
}

impl Stream {
    /// Sends a message. A call that has ended already takes none, here and below: how it ended is what is read next.
    pub(crate) fn send(&mut self, message: &impl Message) {
        self.send_together(std::slice::from_ref(message));
    }

    /// Sends messages in one frame, so that they arrive together.
    pub(crate) fn send_together(&mut self, messages: &[impl Message]) {
        let _ = self.try_send(messages);
    }

    /// The same, on a connection that may be gone.
    pub(crate) fn try_send(&mut self, messages: &[impl Message]) -> Result<(), h2::Error> {
        let framed = messages
            .iter()
            .map(|message| framed(&message.encode_to_vec()));
        let bytes: Vec<u8> = framed.flatten().collect();
        self.sending.send_data(bytes.into(), false)
    }

    /// Sends the only message, or the last.
    pub(crate) fn send_last(&mut self, message: &impl Message) {
        let bytes = framed(&message.encode_to_vec());
        let _ = self.sending.send_data(bytes, true);
    }

    /// Sends bytes that need not be messages.
    pub(crate) fn send_bytes(&mut self, bytes: Bytes) {
        let _ = self.sending.send_data(bytes, false);
    }

    /// Says that no more messages follow.
    pub(crate) fn finish(&mut self) {
        let _ = self.sending.send_data(Bytes::new(), true);
    }

    /// The next message; how the call ended, if it did.
    pub(crate) async fn next<M: Message + Default>(&mut self) -> Result<M, (i32, String)> {
        let received = tokio::time::timeout(PATIENCE, self.try_next());
        match received.await.expect("a message, or the end of the call") {
            Ok(message) => Ok(message),
            Err(Silence::Ended(status)) => Err(status),
            Err(Silence::Lost(error)) => panic!("the call is broken off: {error}"),
        }
    }

    /// Waits for the first bytes of an answer, and makes no room for more; how the call ended, if it did before.
    pub(crate) async fn leave_unread(&mut self) -> Result<(), (i32, String)> {
        let begun = async {
            match self.first_bytes().await {
                Ok(()) => Ok(()),
                Err(Silence::Ended(status)) => Err(status),
                Err(Silence::Lost(error)) => panic!("the call is broken off: {error}"),
            }
        };
        let begun = tokio::time::timeout(PATIENCE, begun).await;
        begun.expect("the beginning of an answer, or the end of the call")
    }

    async fn first_bytes(&mut self) -> Result<(), Silence> {
        let messages = self.wait_for_headers().await?;
        match messages.data().await {
            Some(bytes) => bytes.map(drop).map_err(Silence::Lost),
            None => Err(ending(messages).await),
        }
    }

    async fn wait_for_headers(&mut self) -> Result<&mut RecvStream, Silence> {
        if let Receiving::Headers(answer) = &mut self.receiving {
            let answer = answer.await.map_err(Silence::Lost)?;
            assert_eq!(answer.headers()["content-type"], "application/grpc");
            if let Some(ended) = status(answer.headers()) {
                return Err(Silence::Ended(ended));
            }
            self.receiving = Receiving::Messages(answer.into_body());
        }
        match &mut self.receiving {
            Receiving::Messages(messages) => Ok(messages),
            Receiving::Headers(_) => unreachable!("they are there"),
        }
    }

    /// The next message, from a node that may be gone. Whoever waits no longer loses nothing by it.
    pub(crate) async fn try_next<M: Message + Default>(&mut self) -> Result<M, Silence> {
        loop {
            if let Some(mut prefix) = self.read.get(1..5) {
                let end = 5 + prefix.get_u32() as usize;
                if self.read.len() >= end {
                    let message = self.read.split_to(end).freeze().slice(5..);
                    return Ok(M::decode(message).unwrap());
                }
            }
            let receiving = self.wait_for_headers().await?;
            let Some(chunk) = receiving.data().await else {
                return Err(ending(receiving).await);
            };
            let chunk = chunk.map_err(Silence::Lost)?;
            let flow = receiving.flow_control();
            flow.release_capacity(chunk.len()).map_err(Silence::Lost)?;
            self.read.extend_from_slice(&chunk);
        }
    }
}

/// How a call ended of which all messages are read.
async fn ending(messages: &mut RecvStream) -> Silence {
    match messages.trailers().await {
        Ok(trailers) => {
            let trailers = trailers.expect("a call ends with trailers");
            Silence::Ended(status(&trailers).expect("they say how"))
        }
        Err(error) => Silence::Lost(error),
    }
}
