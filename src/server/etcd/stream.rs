//! Calls of many messages: a stream each way, answered in order, together what has arrived together.

use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};
use hyper::Response;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::arriving::{ARRIVES_WITHIN, ArrivingBytes};
use super::body::{NO_REQUEST, RequestBody, STREAM_CUT_OFF};
use super::caller::{Caller, now, until};
use super::grpc::{Reply, StreamFrame, end_frame, failure, message_frames, streaming};
use crate::etcd::errors::TIMEOUT;
use crate::etcd::framing::{PREFIX_BYTES, message_bytes};
use crate::etcd::status::{Code, Status};

/// Requests of a stream that are answered together at most.
const TOGETHER_MAX: usize = 64;
/// So many times their answers may wait until the client reads; then no more requests are taken.
const WAITING_MAX: usize = 2;
/// Of requests that are taken in while others are answered.
const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Serves a call in which `serve` answers requests that have arrived together: as many of the first of them as it can,
/// one at least, and then is asked for the rest. If it refuses them because one is not permitted, each is served alone.
/// The headers go out at once: some clients wait for them.
pub(super) fn serve<Q, A, F>(
    caller: Caller,
    body: RequestBody,
    serve: impl Fn(Caller, Vec<Q>) -> F + Send + 'static,
) -> Response<Reply>
where
    Q: Message + Default + Clone + 'static,
    A: Message + 'static,
    F: Future<Output = Result<Vec<A>, Status>> + Send,
{
    send_answers(
        caller,
        WAITING_MAX,
        streaming,
        |caller, answers| async move {
            let mut requests = Requests::new(caller, body);
            run(&mut requests, &answers, serve).await
        },
    )
}

/// Serves a call whose answers come by and by, not one for each request: `send` sends them, and its outcome ends the
/// call, unless there is none to tell. The headers go out at once. At most `waiting_max` frames wait until the
/// client reads, in the body that `respond` makes.
pub(super) fn send_answers<F>(
    caller: Caller,
    waiting_max: usize,
    respond: fn(mpsc::Receiver<StreamFrame>) -> Response<Reply>,
    send: impl FnOnce(Caller, mpsc::Sender<StreamFrame>) -> F,
) -> Response<Reply>
where
    F: Future<Output = Option<Result<(), Status>>> + Send + 'static,
{
    if let Err(status) = caller.wants_leader() {
        return failure(&status);
    }
    let (answers, waiting) = mpsc::channel(waiting_max);
    let sent = send(caller.clone(), answers.clone());
    tokio::spawn(async move {
        let ended = tokio::select! {
            ended = sent => ended,
            status = caller.ended() => Some(Err(status)),
            // The client has gone, or has not read.
            () = answers.closed() => None,
        };
        if let Some(ended) = ended {
            // Fails for the same reasons.
            let _ = answers.send(end_frame(ended.as_ref().copied())).await;
        }
    });
    respond(waiting)
}

/// How the call ends; none if the client is gone.
async fn run<Q, A, F>(
    requests: &mut Requests,
    answers: &mpsc::Sender<StreamFrame>,
    serve: impl Fn(Caller, Vec<Q>) -> F,
) -> Option<Result<(), Status>>
where
    Q: Message + Default + Clone,
    A: Message,
    F: Future<Output = Result<Vec<A>, Status>>,
{
    loop {
        let (together, end) = requests.next_together::<Q>(TOGETHER_MAX).await;
        let mut tries = match together.is_empty() {
            true => Vec::new(),
            false => vec![together],
        };
        while let Some(asked) = tries.pop() {
            let caller = requests.caller.again();
            let (deadline, late) = (caller.deadline(), caller.late());
            let answered = tokio::time::timeout_at(deadline, serve(caller, asked.clone()));
            let answered = requests.arrive_during(answered).await;
            match answered.unwrap_or(Err(late)) {
                Ok(found) => {
                    answers.send(message_frames(&found)).await.ok()?;
                    let mut rest = asked;
                    rest.drain(..found.len().clamp(1, rest.len()));
                    if !rest.is_empty() {
                        tries.push(rest);
                    }
                }
                Err(Status {
                    code: Code::PermissionDenied,
                    ..
                }) if asked.len() > 1 => {
                    // What is wrong with one of them is nothing to those before.
                    tries = asked.into_iter().rev().map(|one| vec![one]).collect();
                }
                Err(status) => return Some(Err(status)),
            }
        }
        if end.is_some() {
            return end;
        }
    }
}

/// The requests of a stream.
pub(super) struct Requests {
    caller: Caller,
    body: RequestBody,
    /// What has arrived and was not taken, and the memory for it.
    read: BytesMut,
    held: ArrivingBytes,
    /// How the body ended, if that is known already.
    ended: Option<Result<(), Status>>,
    /// When the message has to be there that has begun to arrive.
    whole_by: Option<Instant>,
}

impl Requests {
    /// Those that arrive on `body`.
    pub(super) fn new(caller: Caller, body: RequestBody) -> Self {
        Self {
            held: ArrivingBytes::new(caller.client().clone(), 1),
            caller,
            body,
            read: BytesMut::new(),
            ended: None,
            whole_by: None,
        }
    }

    /// The next; `None` once the client has sent its last.
    ///
    /// # Errors
    /// It is no request, or was not there in time, or there is no memory for it.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    pub(super) async fn next<Q: Message + Default>(&mut self) -> Result<Option<Q>, Status> {
        let bytes_max = self.caller.message_bytes_max();
        loop {
            if let Some(bytes) = message_bytes(&self.read, bytes_max)?
                && let Some(message) = self.whole(bytes)
            {
                self.whole_by = None;
                let decoded = decode(message);
                self.held.release(self.read.len());
                return decoded.map(Some);
            }
            let has_begun = !self.read.is_empty() || self.body.has_begun();
            self.whole_by = match has_begun {
                true => self.whole_by.or_else(|| Some(now() + ARRIVES_WITHIN)),
                false => None,
            };
            match self.ended.take() {
                None => {}
                Some(Ok(())) if self.read.is_empty() => return Ok(None),
                Some(ended) => return Err(ended.err().unwrap_or(STREAM_CUT_OFF)),
            }
            let whole_by = self.whole_by;
            tokio::select! {
                // What has arrived was in time, though it was not looked at.
                biased;
                () = self.arrive() => {}
                () = until(whole_by) => return Err(TIMEOUT),
            }
        }
    }

    /// Takes in what arrives next, or how the body ended.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    async fn arrive(&mut self) {
        let arrived = match self.body.next().await {
            None => Err(Ok(())),
            Some(Err(status)) => Err(Err(status)),
            Some(Ok(data)) => {
                self.read.extend_from_slice(&data);
                self.held.hold(self.read.len()).map_err(Err)
            }
        };
        self.ended = arrived.err();
    }

    /// Takes in what arrives while `work` goes on. For the library for HTTP/2 a small frame that waits weighs as a large
    /// one, and it ends a connection with too many: a client that renews all its leases at once sends them.
    async fn arrive_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            let is_taken = self.ended.is_none() && self.read.len() < AHEAD_BYTES_MAX;
            tokio::select! {
                biased;
                done = work.as_mut() => return done,
                () = self.arrive(), if is_taken => {}
            }
        }
    }
}

impl Requests {
    /// The one request of a call that has many answers.
    ///
    /// # Errors
    /// As [`Self::next`], and if there is none.
    pub(super) async fn only<Q: Message + Default>(&mut self) -> Result<Q, Status> {
        self.next().await?.ok_or(NO_REQUEST)
    }

    /// The next, and those behind it that have arrived, at most `count_max`; and, if nothing follows them, how the
    /// client ended.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    async fn next_together<Q: Message + Default>(
        &mut self,
        count_max: usize,
    ) -> (Vec<Q>, Option<Result<(), Status>>) {
        let mut together = match self.next().await {
            Ok(Some(first)) => vec![first],
            Ok(None) => return (Vec::new(), Some(Ok(()))),
            Err(status) => return (Vec::new(), Some(Err(status))),
        };
        while together.len() < count_max {
            let mut next = std::pin::pin!(self.next());
            let arrived = std::future::poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
            match arrived {
                Poll::Ready(Ok(Some(next))) => together.push(next),
                Poll::Ready(Ok(None)) => return (together, Some(Ok(()))),
                Poll::Ready(Err(status)) => return (together, Some(Err(status))),
                Poll::Pending => break,
            }
        }
        (together, None)
    }

    /// The first message, of so many bytes, if all of it has arrived.
    fn whole(&mut self, bytes: usize) -> Option<Bytes> {
        if self.read.len() < PREFIX_BYTES + bytes {
            return None;
        }
        self.read.advance(PREFIX_BYTES);
        Some(self.read.split_to(bytes).freeze())
    }
}

fn decode<Q: Message + Default>(message: Bytes) -> Result<Q, Status> {
    Q::decode(message).map_err(|error| {
        let text = format!("grpc: error unmarshalling request: {error}");
        Status::with(Code::Internal, text)
    })
}
