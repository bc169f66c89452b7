//! Calls of one message each way.

use hyper::Response;
use prost::Message;

use super::arriving::ARRIVES_WITHIN;
use super::body::RequestBody;
use super::caller::Caller;
use super::grpc::{Pieces, Reply, failure, receive, success};
use crate::etcd::errors::TIMEOUT;
use crate::etcd::status::{Code, Status};

/// Serves a unary call: receives the request, has `check` look at it before it is decoded and `serve`
/// answer it, and sends the answer.
pub(super) async fn unary<Q, A, F>(
    caller: Caller,
    mut body: RequestBody,
    check: fn(&[u8]) -> Result<(), Status>,
    serve: impl FnOnce(Caller, Q) -> F,
) -> Response<Reply>
where
    Q: Message + Default,
    A: Into<Pieces>,
    F: Future<Output = Result<A, Status>>,
{
    let late = caller.late();
    let deadline = caller.deadline();
    if caller.left().is_zero() {
        return failure(&late);
    }
    let (client, bytes_max) = (caller.client().clone(), caller.message_bytes_max());
    let work = async {
        let received = receive(&mut body, &client, bytes_max);
        // Also where the call itself may take for ever.
        let received = tokio::time::timeout(ARRIVES_WITHIN, received).await;
        let (message, held) = received.unwrap_or(Err(TIMEOUT))?;
        check(&message)?;
        let request = Q::decode(message).map_err(|error| {
            let text = format!("grpc: error unmarshalling request: {error}");
            Status::with(Code::Internal, text)
        })?;
        caller.wants_leader()?;
        let answer = serve(caller, request).await?;
        drop(held);
        Ok(answer.into())
    };
    let answered = tokio::time::timeout_at(deadline, work).await;
    let answered = answered.unwrap_or(Err(late));
    match answered.and_then(|answer: Pieces| answer.counted(&client)) {
        Ok(pieces) => success(pieces),
        Err(status) => failure(&status),
    }
}
