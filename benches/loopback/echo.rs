//! A bare quinn echo, the physical limit: requests and replies as long as ours, multiplexed by
//! number on one stream, batched, with our TLS and transport settings, and nothing else.
//!
//! A frame is its length, a number and padding. A caller is no task but a number: whatever has
//! been answered is asked again with the next write.

use std::time::{Duration, Instant as Stopwatch};

use bytes::{Buf, Bytes, BytesMut};
use hdrhistogram::Histogram;
use leasehold::transport::{Tls, bare};

use crate::load::Round;

/// Packets taken at one time, as our streams do.
const CHUNKS: usize = 64;

pub(crate) fn listen(tls: &Tls) -> quinn::Endpoint {
    bare::listen("127.0.0.1:0".parse().unwrap(), tls).unwrap()
}

pub(crate) async fn serve(endpoint: quinn::Endpoint) {
    while let Some(incoming) = endpoint.accept().await {
        tokio::spawn(async move {
            let connection = incoming.await.unwrap();
            while let Ok((sender, receiver)) = connection.accept_bi().await {
                tokio::spawn(answer(sender, receiver));
            }
        });
    }
}

async fn answer(mut sender: quinn::SendStream, receiver: quinn::RecvStream) {
    let mut frames = Frames::new(receiver);
    let mut out = BytesMut::new();
    let mut reply_bytes = 0;
    while frames
        .read(|number, body| {
            // The first bytes of the body say how long the reply shall be.
            reply_bytes = u32::from_le_bytes(body[..4].try_into().unwrap()) as usize;
            put_frame(&mut out, number, reply_bytes);
        })
        .await
    {
        if sender.write_chunk(out.split().freeze()).await.is_err() {
            return;
        }
    }
}

fn put_frame(out: &mut BytesMut, number: u32, bytes: usize) {
    let start = out.len();
    out.extend_from_slice(&u32::try_from(bytes).unwrap().to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.resize(start + bytes, 7);
}

/// The frames of a stream, at least 12 bytes each.
struct Frames {
    stream: quinn::RecvStream,
    chunks: Vec<Bytes>,
    rest: BytesMut,
}

impl Frames {
    fn new(stream: quinn::RecvStream) -> Self {
        Self {
            stream,
            chunks: vec![Bytes::new(); CHUNKS],
            rest: BytesMut::new(),
        }
    }

    /// Reads what has arrived; false at the end.
    async fn read(&mut self, mut found: impl FnMut(u32, &[u8])) -> bool {
        loop {
            let Ok(Some(count)) = self.stream.read_chunks(&mut self.chunks).await else {
                return false;
            };
            let mut some = false;
            for at in 0..count {
                let mut chunk = std::mem::take(&mut self.chunks[at]);
                if !self.rest.is_empty() {
                    // The frame that the chunk before has begun.
                    let missing = frame_bytes(&self.rest)
                        .map_or(8, |bytes| bytes)
                        .saturating_sub(self.rest.len());
                    let take = missing.min(chunk.len());
                    self.rest.extend_from_slice(&chunk.split_to(take));
                    if let Some(bytes) = frame_bytes(&self.rest) {
                        let take = (bytes - self.rest.len()).min(chunk.len());
                        self.rest.extend_from_slice(&chunk.split_to(take));
                        if self.rest.len() == bytes {
                            some = true;
                            take_frame(&self.rest, &mut found);
                            self.rest.clear();
                        }
                    }
                }
                while let Some(bytes) = frame_bytes(&chunk).filter(|bytes| chunk.len() >= *bytes) {
                    some = true;
                    take_frame(&chunk[..bytes], &mut found);
                    chunk.advance(bytes);
                }
                self.rest.extend_from_slice(&chunk);
            }
            if some {
                return true;
            }
        }
    }
}

fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    let length = bytes.first_chunk()?;
    Some(u32::from_le_bytes(*length) as usize)
}

fn take_frame(frame: &[u8], found: &mut impl FnMut(u32, &[u8])) {
    let number = u32::from_le_bytes(frame[4..8].try_into().unwrap());
    found(number, &frame[8..]);
}

/// One connection to the echo.
pub(crate) struct EchoClient {
    _connection: quinn::Connection,
    sender: quinn::SendStream,
    frames: Frames,
    request_bytes: usize,
    reply_bytes: u32,
}

impl EchoClient {
    pub(crate) async fn connect(
        address: std::net::SocketAddr,
        tls: &Tls,
        request_bytes: usize,
        reply_bytes: usize,
    ) -> Self {
        let connection = bare::connect(address, tls).await.unwrap();
        let (sender, receiver) = connection.open_bi().await.unwrap();
        Self {
            _connection: connection,
            sender,
            frames: Frames::new(receiver),
            request_bytes,
            reply_bytes: u32::try_from(reply_bytes).unwrap(),
        }
    }

    fn put_request(&self, out: &mut BytesMut, number: u32) {
        let start = out.len();
        put_frame(out, number, self.request_bytes);
        out[start + 8..start + 12].copy_from_slice(&self.reply_bytes.to_le_bytes());
    }

    /// Keeps `callers` requests under way for `length`.
    pub(crate) async fn round(&mut self, callers: usize, length: Duration) -> Round {
        let mut taken = Histogram::<u64>::new(3).unwrap();
        let began = Stopwatch::now();
        let mut started = vec![began; callers];
        let mut out = BytesMut::new();
        for number in 0..callers {
            self.put_request(&mut out, u32::try_from(number).unwrap());
        }
        let mut under_way = callers;
        let mut answered = Vec::new();
        loop {
            self.sender.write_chunk(out.split().freeze()).await.unwrap();
            if under_way == 0 {
                break;
            }
            assert!(self.frames.read(|number, _| answered.push(number)).await);
            let now = Stopwatch::now();
            let is_over = now - began >= length;
            for number in answered.drain(..) {
                let nanos = (now - started[number as usize]).as_nanos();
                taken.record(u64::try_from(nanos).unwrap()).unwrap();
                if is_over {
                    under_way -= 1;
                } else {
                    started[number as usize] = now;
                    self.put_request(&mut out, number);
                }
            }
        }
        Round::new(began.elapsed(), taken)
    }
}
