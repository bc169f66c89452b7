//! The body of a request, as framed messages of gRPC.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};

use crate::etcd::status::{Code, Status};

/// How much of a body is read that nothing needs, and for how long.
const DRAINED_BYTES_MAX: usize = 256 << 10;
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) enum RequestBody {
    /// They are what the client sends.
    Grpc(Incoming),
    /// They are what it means.
    Translated(Box<dyn TranslatedBody>),
}

/// A body that means framed messages.
pub(super) trait TranslatedBody: Send {
    /// The next bytes of these messages; `None` after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>>;
}

impl RequestBody {
    /// The next bytes of framed messages; `None` after the last.
    ///
    /// # Errors
    /// The client has gone, or what it sent is no message.
    ///
    /// # Cancel safety
    /// Nothing that has arrived is lost.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Status>> {
        std::future::poll_fn(|cx| match self {
            Self::Grpc(body) => poll_data(body, cx),
            Self::Translated(body) => body.poll_next(cx),
        })
        .await
    }
}

/// The next bytes of a body. Trailers of a client mean nothing.
pub(super) fn poll_data(
    body: &mut Incoming,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Bytes, Status>>> {
    loop {
        let Some(frame) = ready!(Pin::new(&mut *body).poll_frame(cx)) else {
            return Poll::Ready(None);
        };
        match frame.map(|frame| frame.into_data()) {
            Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
            Ok(Err(_)) => {}
            Err(_) => return Poll::Ready(Some(Err(ended_early()))),
        }
    }
}

/// Reads what is left of the body of a request that is answered already, if that is little: without it a
/// connection of HTTP/1.1 would be closed, which its client may be about to use again.
pub(super) fn drain(mut body: Incoming) {
    if body.is_end_stream() {
        return;
    }
    tokio::spawn(async move {
        let mut left = DRAINED_BYTES_MAX;
        let drained = async {
            while let Some(Ok(data)) = std::future::poll_fn(|cx| poll_data(&mut body, cx)).await {
                left = left.saturating_sub(data.len());
                if left == 0 {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(DRAINED_WITHIN, drained).await;
    });
}

/// That the client has gone before it had said everything.
pub(super) fn ended_early() -> Status {
    Status::new(Code::Unknown, "grpc: the request ended early")
}
