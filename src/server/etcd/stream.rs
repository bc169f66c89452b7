//! Calls of many messages: a stream each way, answered in order.

use bytes::{Buf, Bytes, BytesMut};
use hyper::Response;
use prost::Message;
use tokio::sync::mpsc;

use super::body::{RequestBody, ended_early};
use super::caller::Caller;
use super::grpc::{Reply, SMALL_BYTES, StreamFrame, end_frame, failure, message_frame, streaming};
use crate::etcd::errors::TOO_MANY_REQUESTS;
use crate::etcd::framing::{PREFIX_BYTES, message_bytes};
use crate::etcd::status::{Code, Status};

/// Answers that may wait until the client reads; then no more requests are taken.
const WAITING_MAX: usize = 16;

/// Serves a call in which `serve` answers each request before the next is taken. The headers go out at
/// once: some clients wait for them.
pub(super) fn serve<Q, A, F>(
    caller: Caller,
    body: RequestBody,
    serve: impl Fn(Caller, Q) -> F + Send + 'static,
) -> Response<Reply>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    if let Err(status) = caller.wants_leader() {
        return failure(&status);
    }
    let (answers, waiting) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        let mut requests = Requests::new(caller, body);
        // Fails once the client is gone, and then nothing is to be said.
        let _ = run(&mut requests, &answers, serve).await;
    });
    streaming(waiting)
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

type SendFailure = mpsc::error::SendError<StreamFrame>;

async fn run<Q, A, F>(
    requests: &mut Requests,
    answers: &mpsc::Sender<StreamFrame>,
    serve: impl Fn(Caller, Q) -> F,
) -> Result<(), SendFailure>
where
    Q: Message + Default,
    A: Message,
    F: Future<Output = Result<A, Status>>,
{
    let of_stream = requests.caller.clone();
    let mut ended = std::pin::pin!(of_stream.ended());
    loop {
        let request = tokio::select! {
            request = requests.next::<Q>() => request,
            status = ended.as_mut() => Err(status),
            () = answers.closed() => return Ok(()),
        };
        let request = match request {
            Ok(Some(request)) => request,
            Ok(None) => return answers.send(end_frame(Ok(()))).await,
            Err(status) => return answers.send(end_frame(Err(&status))).await,
        };
        let caller = requests.caller.again();
        let (deadline, late) = (caller.deadline(), caller.late());
        let answered = tokio::time::timeout_at(deadline, serve(caller, request)).await;
        match answered.unwrap_or(Err(late)) {
            Ok(answer) => answers.send(message_frame(&answer)).await?,
            Err(status) => return answers.send(end_frame(Err(&status))).await,
        }
    }
}

/// The requests of a stream.
pub(super) struct Requests {
    caller: Caller,
    body: RequestBody,
    /// What has arrived and is not a whole message.
    read: BytesMut,
}

impl Requests {
    /// Those that arrive on `body`.
    pub(super) fn new(caller: Caller, body: RequestBody) -> Self {
        Self {
            caller,
            body,
            read: BytesMut::new(),
        }
    }

    /// The next; `None` once the client has sent its last.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    pub(super) async fn next<Q: Message + Default>(&mut self) -> Result<Option<Q>, Status> {
        let bytes_max = self.caller.message_bytes_max();
        let mut reserved = None;
        loop {
            if let Some(bytes) = message_bytes(&self.read, bytes_max)? {
                if bytes > SMALL_BYTES && reserved.is_none() {
                    let room = self.caller.client().reserve(bytes);
                    reserved = Some(room.ok_or(TOO_MANY_REQUESTS)?);
                }
                if self.read.len() >= PREFIX_BYTES + bytes {
                    self.read.advance(PREFIX_BYTES);
                    let message = self.read.split_to(bytes).freeze();
                    return decode(message).map(Some);
                }
            }
            match self.body.next().await {
                None if self.read.is_empty() => return Ok(None),
                None => return Err(ended_early()),
                Some(data) => self.read.extend_from_slice(&data?),
            }
        }
    }
}

fn decode<Q: Message + Default>(message: Bytes) -> Result<Q, Status> {
    Q::decode(message).map_err(|error| {
        let text = format!("grpc: error unmarshalling request: {error}");
        Status::with(Code::Unknown, text)
    })
}
