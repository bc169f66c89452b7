//! The service of health of gRPC, which says whether the node serves at all. `/health` and `/readyz` say
//! more.

use hyper::Response;
use tokio::sync::mpsc;

use super::body::RequestBody;
use super::caller::Caller;
use super::grpc::{Reply, end_frame, message_frame, streaming};
use super::stream::Requests;
use crate::etcd::errors::STOPPED;
use crate::etcd::proto;
use crate::etcd::proto::{HealthCheckRequest, HealthCheckResponse};
use crate::etcd::status::{Code, Status};

/// Answers that may wait until the client reads: there are two at most.
const WAITING_MAX: usize = 2;

/// Check.
pub(super) async fn check(
    caller: Caller,
    check: HealthCheckRequest,
) -> Result<HealthCheckResponse, Status> {
    if !check.service.is_empty() {
        return Err(Status::new(Code::NotFound, "unknown service"));
    }
    let status = match caller.sessions.node.is_stopping() {
        true => proto::NOT_SERVING,
        false => proto::SERVING,
    };
    Ok(HealthCheckResponse { status })
}

/// Watch: how it is now, and once more when that changes, which it does when the node stops.
pub(super) fn watch(caller: Caller, body: RequestBody) -> Response<Reply> {
    let (answers, waiting) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        let mut requests = Requests::new(caller.clone(), body);
        let asked = tokio::select! {
            asked = requests.only::<HealthCheckRequest>() => asked,
            status = caller.ended() => Err(status),
            () = answers.closed() => return,
        };
        let service = match asked {
            Ok(asked) => asked.service,
            Err(status) => return drop(answers.send(end_frame(Err(&status))).await),
        };
        let is_known = service.is_empty();
        let status = match is_known {
            true => proto::SERVING,
            false => proto::SERVICE_UNKNOWN,
        };
        let told = answers.send(message_frame(&HealthCheckResponse { status }));
        // Each of these fails if the client has gone.
        if told.await.is_err() {
            return;
        }
        let ended = tokio::select! {
            status = caller.ended() => status,
            () = answers.closed() => return,
        };
        if is_known && ended == STOPPED {
            let status = proto::NOT_SERVING;
            let _ = answers
                .send(message_frame(&HealthCheckResponse { status }))
                .await;
        }
        let _ = answers.send(end_frame(Err(&ended))).await;
    });
    streaming(waiting)
}
