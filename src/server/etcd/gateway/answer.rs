//! An answer of gRPC, as JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use hyper::Response;
use hyper::body::{Body, Frame};
use hyper::header::CONTENT_TYPE;

use super::{JSON, error, http_status, json, stream_error};
use crate::etcd::framing::PREFIX_BYTES;
use crate::etcd::json::{Messages, Method, Writer};
use crate::server::etcd::grpc::{Reply, outcome};

/// The answer of gRPC to a call of `method`, in JSON. Waits for the first message of a stream: only then it
/// is known with which status it begins.
pub(in crate::server::etcd) async fn translated(
    answer: Response<Reply>,
    method: &'static Method,
) -> Response<Reply> {
    let is_stream = method.messages != Messages::One;
    let failure = |code, text: &str| match is_stream {
        true => json(http_status(code), stream_error(code, text)),
        false => json(http_status(code), error(code, text)),
    };
    let (head, reply) = answer.into_parts();
    if let Some((code, text)) = outcome(&head.headers) {
        return failure(code, &text);
    }
    let is_small = matches!(reply, Reply::Small(_));
    let mut reply = JsonReply {
        reply: Box::new(reply),
        method,
        is_stream,
        first: None,
        text: String::new(),
        read: BytesMut::new(),
        message: None,
        ended: None,
    };
    // A small answer is there as a whole.
    let first = std::future::poll_fn(|cx| reply.poll_text(cx)).await;
    let body = match (first, reply.ended.take()) {
        (None, Some((code, text))) if code != 0 => return failure(code, &text),
        (None, _) => Reply::of(Bytes::new()),
        (Some(text), _) if is_small => Reply::of(text),
        (Some(text), ended) => {
            (reply.first, reply.ended) = (Some(text), ended);
            Reply::Translated(Box::pin(reply))
        }
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// The body of an answer that comes by and by.
struct JsonReply {
    reply: Box<Reply>,
    method: &'static Method,
    is_stream: bool,
    /// What was translated and not sent yet: a text, and the beginning of the next.
    first: Option<Bytes>,
    text: String,
    /// What was not translated yet: less than a field, or than what begins a message.
    read: BytesMut,
    /// The message that has begun, and how many bytes of it are to come.
    message: Option<(Writer, usize)>,
    /// How it ended, with a code and a text, until the client is told.
    ended: Option<(i32, String)>,
}

impl JsonReply {
    /// The next text; `None` once there is none, and [`JsonReply::ended`] says why. A message of a stream is
    /// one text, and so one chunk: there are clients that count on that.
    fn poll_text(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        loop {
            if self.translate() {
                let text = std::mem::take(&mut self.text);
                return Poll::Ready(Some(text.into()));
            }
            if self.ended.is_some() {
                return Poll::Ready(None);
            }
            let frame = ready!(Pin::new(&mut *self.reply).poll_frame(cx));
            let Some(Ok(frame)) = frame else {
                // Given up, as the client did not read; or the end was told before.
                return Poll::Ready(None);
            };
            match frame.into_data() {
                Ok(data) => self.read.extend_from_slice(&data),
                Err(frame) => self.ended = frame.trailers_ref().and_then(outcome),
            }
        }
    }

    /// Translates what has arrived. Whether there is a text to send.
    fn translate(&mut self) -> bool {
        loop {
            let Some((writer, left)) = &mut self.message else {
                if self.read.len() < PREFIX_BYTES {
                    return !self.text.is_empty();
                }
                // Nothing is compressed here.
                self.read.advance(1);
                let left = self.read.get_u32() as usize;
                if self.is_stream {
                    self.text.push_str("{\"result\":");
                }
                let writer = Writer::begin(self.method.answer, &mut self.text);
                self.message = Some((writer, left));
                continue;
            };
            let part = (*left).min(self.read.len());
            let is_last = part == *left;
            let used = writer.add(&self.read[..part], &mut self.text);
            // At the end nothing can be left of a message that is well formed.
            let used = if is_last { part } else { used };
            self.read.advance(used);
            *left -= used;
            if !is_last {
                return !self.is_stream && !self.text.is_empty();
            }
            if let Some((writer, _)) = self.message.take() {
                writer.end(&mut self.text);
            }
            if self.is_stream {
                self.text.push_str("}\n");
                return true;
            }
        }
    }
}

impl Body for JsonReply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let text = match ready!(self.poll_text(cx)) {
            Some(text) => Some(text),
            None => match self.ended.take() {
                Some((code, text)) if code != 0 => Some(stream_error(code, &text).into()),
                _ => None,
            },
        };
        Poll::Ready(text.map(|text| Ok(Frame::data(text))))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use prost::Message as _;
    use tokio::sync::mpsc;

    use super::*;
    use crate::etcd::proto::{Event, KeyValue, RangeResponse, WatchResponse};
    use crate::etcd::status::{Code, Status};
    use crate::server::etcd::grpc::{Pieces, end_frame, failure, message_head, streaming, success};

    fn method(path: &str) -> &'static Method {
        Method::at(path).unwrap()
    }

    /// What is left of a body, piece by piece.
    async fn texts(mut reply: Reply) -> Vec<String> {
        let mut texts = Vec::new();
        while let Some(Ok(frame)) =
            std::future::poll_fn(|cx| Pin::new(&mut reply).poll_frame(cx)).await
        {
            let data = frame.into_data().unwrap();
            texts.push(String::from_utf8(data.to_vec()).unwrap());
        }
        texts
    }

    fn range(count: i64) -> RangeResponse {
        RangeResponse {
            count,
            ..RangeResponse::default()
        }
    }

    #[tokio::test]
    async fn a_small_answer_is_one_text_of_known_length_and_a_large_one_comes_in_pieces() {
        let small = translated(success(range(3).into()), method("/v3/kv/range")).await;
        assert_eq!(small.status(), 200);
        assert_eq!(small.headers()[CONTENT_TYPE], "application/json");
        assert_eq!(small.body().size_hint().exact(), Some(13));
        assert_eq!(texts(small.into_body()).await, [r#"{"count":"3"}"#]);

        let kvs = RangeResponse {
            kvs: vec![
                KeyValue {
                    version: 1,
                    ..KeyValue::default()
                };
                2
            ],
            ..RangeResponse::default()
        };
        let pieces = [
            kvs.encode_to_vec(),
            kvs.encode_to_vec(),
            range(4).encode_to_vec(),
        ];
        let pieces = Pieces {
            pieces: pieces.map(Bytes::from).into_iter().collect::<VecDeque<_>>(),
            held: Some(Box::new(())),
        };
        let large = translated(success(pieces), method("/v3/kv/range")).await;
        let texts = texts(large.into_body()).await;
        assert_eq!(texts.len(), 4);
        let kv = r#"{"version":"1"}"#;
        assert_eq!(
            texts.concat(),
            format!(r#"{{"kvs":[{kv},{kv},{kv},{kv}],"count":"4"}}"#)
        );
    }

    #[tokio::test]
    async fn each_message_of_a_stream_is_one_text_however_it_was_cut() {
        let (sender, frames) = mpsc::channel(20);
        let event = |version| Event {
            kv: Some(KeyValue {
                version,
                ..KeyValue::default()
            }),
            ..Event::default()
        };
        let events = WatchResponse {
            events: vec![event(1), event(2)],
            ..WatchResponse::default()
        };
        let events = Bytes::from(events.encode_to_vec());
        let head = WatchResponse {
            watch_id: 5,
            ..WatchResponse::default()
        };
        for cut in [4, 5] {
            let begin = message_head(&head, events.len()).freeze();
            sender.send(begin.into()).await.unwrap();
            sender.send(events.slice(..cut).into()).await.unwrap();
            sender.send(events.slice(cut..).into()).await.unwrap();
        }
        let status = Status::new(Code::Unavailable, "\"gone\"");
        sender.send(end_frame(Err(&status))).await.unwrap();
        drop(sender);
        let answer = translated(streaming(frames), method("/v3/watch")).await;
        assert_eq!(answer.status(), 200);
        let message = "{\"result\":{\"watch_id\":\"5\",\"events\":[{\"kv\":{\"version\":\"1\"}},\
                       {\"kv\":{\"version\":\"2\"}}]}}\n";
        let end = "{\"error\":{\"grpc_code\":14,\"code\":14,\"http_code\":503,\
                   \"http_status\":\"Service Unavailable\",\"message\":\"\\\"gone\\\"\"}}\n";
        assert_eq!(texts(answer.into_body()).await, [message, message, end]);
    }

    #[tokio::test]
    async fn a_failure_has_a_status_of_http_also_if_a_stream_begins_with_it() {
        let status = Status::new(Code::FailedPrecondition, "é%");
        let failed = translated(failure(&status), method("/v3/kv/put")).await;
        assert_eq!(failed.status(), 400);
        let expected = r#"{"error":"é%","code":9,"message":"é%"}"#;
        assert_eq!(texts(failed.into_body()).await, [expected]);
        let (sender, frames) = mpsc::channel(1);
        sender.send(end_frame(Err(&status))).await.unwrap();
        let failed = translated(streaming(frames), method("/v3/watch")).await;
        assert_eq!(failed.status(), 400);
        let texts_of = texts(failed.into_body()).await;
        assert!(
            texts_of[0].starts_with(r#"{"error":{"grpc_code":9,"#),
            "{texts_of:?}"
        );
        let (sender, frames) = mpsc::channel(1);
        sender.send(end_frame(Ok(()))).await.unwrap();
        let empty = translated(streaming(frames), method("/v3/lease/keepalive")).await;
        assert_eq!(empty.status(), 200);
        assert!(texts(empty.into_body()).await.concat().is_empty());
    }

    #[test]
    fn codes_have_the_status_that_etcd_gives_them() {
        let table = [
            (400, &[3, 9, 11][..]),
            (401, &[16]),
            (403, &[7]),
            (404, &[5]),
            (429, &[8]),
            (501, &[12]),
            (503, &[14]),
            (504, &[4]),
            (500, &[2, 13, 15, 99, -1]),
        ];
        for (status, codes) in table {
            assert!(
                codes.iter().all(|code| http_status(*code) == status),
                "{status}"
            );
        }
    }
}
