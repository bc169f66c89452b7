//! Answers that count: how many bytes they have, and how the call has ended.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body, Frame};

use super::calls::BegunCall;
use super::grpc::{Reply, outcome};
use crate::sync::{Count, Ordering};

const OK: i32 = 0;

/// The answer to a call that has begun, if it counts: its bytes count, and the call has ended when it has been sent, or
/// is given up.
pub(super) fn counted(
    mut begun: Option<BegunCall>,
    sent_bytes: &Arc<Count>,
    answer: Response<Reply>,
) -> Response<Reply> {
    let mut ends = |code| {
        if let Some(begun) = &mut begun {
            begun.ends(code);
        }
    };
    if let Some((code, _)) = outcome(answer.headers()) {
        ends(code);
        return answer;
    }
    if let Reply::Small(frames) = answer.body() {
        ends(OK);
        let data = frames.iter().filter_map(Frame::data_ref);
        let bytes: usize = data.map(Bytes::len).sum();
        sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        return answer;
    }
    answer.map(|reply| {
        Reply::Translated(Box::pin(CountedReply {
            reply,
            begun,
            sent_bytes: Arc::clone(sent_bytes),
        }))
    })
}

/// The body of an answer that takes its time.
struct CountedReply {
    reply: Reply,
    begun: Option<BegunCall>,
    sent_bytes: Arc<Count>,
}

impl Body for CountedReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = ready!(Pin::new(&mut this.reply).poll_frame(cx));
        if let Some(Ok(frame)) = &next {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            this.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            let end = frame.trailers_ref().and_then(outcome);
            if let (Some((code, _)), Some(begun)) = (end, &mut this.begun) {
                begun.ends(code);
            }
        }
        Poll::Ready(next)
    }
}
