//! Traces as a collector takes them: the protobuf message `ExportTraceServiceRequest` of OTLP.
//!
//! OTLP is stable since its version 1.0, what is said here is a dozen fields of it, and they are only
//! ever written: so they are written down as they are, field by field in the order of their numbers,
//! which makes the bytes those that the official libraries make (a test compares them).

use std::time::Duration;

use super::trace::Trace;

/// What is the same in all traces of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Resource {
    pub(super) version: &'static str,
    pub(super) node: String,
    pub(super) cluster: String,
}

/// `SpanKind`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `StatusCode`.
const ERROR: u64 = 2;
/// Of `SpanFlags`: sampled, and it is known whether the parent is elsewhere, which it is not.
const FLAGS: u32 = 0x101;
/// The same of a span whose parent is elsewhere.
const FLAGS_REMOTE: u32 = FLAGS | 0x200;

/// One request to a collector with all of `traces`.
pub(super) fn encode(resource: &Resource, traces: &[Trace]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |message| {
            for (key, value) in [
                ("service.name", "leasehold"),
                ("service.version", resource.version),
                ("service.instance.id", &resource.node),
                ("leasehold.cluster.id", &resource.cluster),
            ] {
                message.attribute(1, key, Value::Text(value));
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, "leasehold");
                scope.text(2, resource.version);
            });
            for trace in traces {
                spans(scope_spans, trace);
            }
        });
    });
    request.0
}

/// The span of the request, and one below it for each stretch of its way.
fn spans(scope: &mut Message, trace: &Trace) {
    let account = &trace.account;
    let ended = account
        .stretches
        .iter()
        .fold(trace.began, |at, stretch| at + stretch.spent);
    scope.message(2, |span| {
        span.head(trace, trace.span_id, trace.caller);
        span.body(account.method, SERVER, trace.began, ended);
        span.attribute(9, "leasehold.code", Value::Text(account.code));
        if let Some(path) = account.read_path {
            span.attribute(9, "leasehold.read_path", Value::Text(path));
        }
        for (key, number) in [
            ("leasehold.revision", account.revision),
            (
                "leasehold.request_bytes",
                Some(account.request_bytes as i64),
            ),
            ("leasehold.reply_bytes", Some(account.reply_bytes as i64)),
            ("leasehold.beside", Some(account.beside as i64)),
        ] {
            if let Some(number) = number {
                span.attribute(9, key, Value::Number(number));
            }
        }
        span.attribute(9, "leasehold.slow", Value::Truth(account.is_slow));
        if account.code != "OK" {
            span.attribute(9, "error.type", Value::Text(account.code));
            span.message(15, |status| {
                status.text(2, account.code);
                status.number(3, ERROR);
            });
        }
        let flags = trace.caller.map_or(FLAGS, |_| FLAGS_REMOTE);
        span.fixed32(16, flags);
    });
    let mut began = trace.began;
    for (id, stretch) in (trace.span_id + 1..).zip(&account.stretches) {
        let ended = began + stretch.spent;
        scope.message(2, |span| {
            span.head(trace, id, Some(trace.span_id));
            span.body(stretch.phase.label(), INTERNAL, began, ended);
            span.fixed32(16, FLAGS);
        });
        began = ended;
    }
}

/// The value of an attribute.
enum Value<'a> {
    Text(&'a str),
    Truth(bool),
    Number(i64),
}

/// A message of protobuf, as far as it is written.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

/// How the value of a field is laid out.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

impl Message {
    /// What names a span, and the one above it.
    fn head(&mut self, trace: &Trace, id: u64, parent: Option<u64>) {
        self.bytes(1, &trace.id.0.to_be_bytes());
        self.bytes(2, &id.to_be_bytes());
        if let Some(parent) = parent {
            self.bytes(4, &parent.to_be_bytes());
        }
    }

    /// What a span is called, what it is, and when it was.
    fn body(&mut self, name: &str, kind: u64, began: Duration, ended: Duration) {
        self.text(5, name);
        self.number(6, kind);
        self.fixed64(7, nanos(began));
        self.fixed64(8, nanos(ended));
    }

    fn attribute(&mut self, field: u32, key: &str, value: Value<'_>) {
        self.message(field, |attribute| {
            attribute.text(1, key);
            // One of several fields: that it is there says which, so it is written though it be zero.
            attribute.message(2, |any| match value {
                Value::Text(text) => any.bytes(1, text.as_bytes()),
                Value::Truth(truth) => any.number(2, truth.into()),
                Value::Number(number) => any.number(3, number as u64),
            });
        });
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, field: u32, number: u64) {
        self.key(field, VARINT);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.key(field, FIXED64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.key(field, FIXED32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn key(&mut self, field: u32, layout: u32) {
        self.varint(u64::from(field << 3 | layout));
    }

    /// Seven bits a byte, the lowest first; all bytes but the last have the eighth.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// Until the year 2554.
fn nanos(since_1970: Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::trace::{Account, Stretch, TraceId};
    use super::*;
    use crate::server::metrics::Phase;

    /// The same request, built with the messages of the official `opentelemetry-proto` 1.45 (for
    /// Python) and serialized by it.
    const OFFICIAL: &str = include_str!("testdata/request.hex");

    #[test]
    fn the_bytes_are_those_of_the_official_library() {
        let resource = Resource {
            version: "0.1.0",
            node: "n1".to_owned(),
            cluster: "000102".to_owned(),
        };
        let stretch = |phase, nanos| Stretch {
            phase,
            spent: Duration::from_nanos(nanos),
        };
        let read = Trace {
            id: TraceId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            span_id: 0x1112_1314_1516_1718,
            caller: None,
            began: Duration::new(1_700_000_000, 123_456_789),
            account: Account {
                method: "range",
                code: "OK",
                read_path: Some("lease"),
                revision: Some(300),
                request_bytes: 70,
                reply_bytes: 0,
                beside: 63,
                is_slow: false,
                stretches: vec![stretch(Phase::Storage, 1_500)],
            },
        };
        let failed = Trace {
            id: TraceId(0xfffe_fdfc),
            span_id: u64::MAX >> 1,
            caller: None,
            began: Duration::from_secs(1_700_000_001),
            account: Account {
                method: "put",
                code: "LH-UNKNOWN",
                request_bytes: 1 << 20,
                reply_bytes: 40,
                is_slow: true,
                stretches: vec![
                    stretch(Phase::Queue, 1_000_000),
                    stretch(Phase::Quorum, 2_000_000_000),
                ],
                ..Account::default()
            },
        };
        let bytes = encode(&resource, &[read, failed]);
        let shown: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let official: String = OFFICIAL.split_whitespace().collect();
        assert_eq!(shown, official);
    }
}
