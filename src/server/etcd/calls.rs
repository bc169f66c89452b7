//! How many calls of the port have begun and ended, by method and code: what gRPC's own metrics count. A stream has
//! ended when its trailers are sent, or its client has gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::unknown::{RANGE_STREAM, service_of};
use crate::etcd::json::{Messages, Method};
use crate::etcd::metrics::with_etcd_names;
use crate::sync::{Count, Mutex, Ordering};

/// The codes of gRPC by their numbers.
const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];
/// How a call ends whose client has gone.
const CANCELED: i32 = 1;
/// Stands for the methods that a service has not: clients could make up any number of them.
const UNKNOWN: &str = "unknown";

const UNARY: &str = "unary";
const MANY_ANSWERS: &str = "server_stream";
const MANY: &str = "bidi_stream";
/// Methods that have no path of the gateway, or not by this name.
const OTHERS: [(&str, &str); 4] = [
    (RANGE_STREAM, MANY_ANSWERS),
    ("/etcdserverpb.Lease/Leases", UNARY),
    ("/grpc.health.v1.Health/Check", UNARY),
    ("/grpc.health.v1.Health/Watch", MANY_ANSWERS),
];

/// The metrics of this node, as text. Takes milliseconds.
pub(crate) type Scrape = Box<dyn Fn() -> String + Send + Sync>;

/// What the page of metrics of this port shows.
pub(super) struct PortMetrics {
    pub(super) calls: Calls,
    pub(super) scrape: Scrape,
}

impl PortMetrics {
    /// The page. Takes milliseconds.
    pub(super) fn page(&self) -> String {
        let mut text = with_etcd_names(&(self.scrape)());
        text.push_str(&self.calls.text());
        text
    }
}

/// The calls of the port.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// By the path of the method, as far as any was called.
    methods: Mutex<BTreeMap<String, Arc<Counts>>>,
    /// Bytes of messages, and of what goes before each.
    received_bytes: Arc<Count>,
    sent_bytes: Arc<Count>,
}

/// Of a method.
#[derive(Debug, Default)]
struct Counts {
    /// How many messages it has, in the words of gRPC.
    kind: &'static str,
    begun: Count,
    ended: [Count; CODES.len()],
}

impl Calls {
    /// A call of the method at `path` has begun; none if its service is not there.
    pub(super) fn begin(&self, path: &str) -> Option<BegunCall> {
        let mut methods = self.methods.lock();
        let counts = match methods.get(path) {
            Some(counts) => Arc::clone(counts),
            None => {
                let (path, kind) = known(path)?;
                let new = || {
                    Arc::new(Counts {
                        kind,
                        ..Counts::default()
                    })
                };
                Arc::clone(methods.entry(path).or_insert_with(new))
            }
        };
        drop(methods);
        counts.begun.fetch_add(1, Ordering::Relaxed);
        Some(BegunCall {
            counts,
            code: CANCELED,
        })
    }

    /// Counts what is received.
    pub(super) fn received_bytes(&self) -> &Arc<Count> {
        &self.received_bytes
    }

    /// Counts what is sent.
    pub(super) fn sent_bytes(&self) -> &Arc<Count> {
        &self.sent_bytes
    }

    /// As Prometheus reads them.
    pub(super) fn text(&self) -> String {
        const BEGUN: &str = "grpc_server_started_total";
        const ENDED: &str = "grpc_server_handled_total";
        let mut begun = head(BEGUN, "Calls of etcd's API that have begun.");
        let mut ended = head(ENDED, "Calls of etcd's API that have ended.");
        for (path, counts) in self.methods.lock().iter() {
            let (service, method) = path
                .trim_start_matches('/')
                .split_once('/')
                .unwrap_or_default();
            let kind = counts.kind;
            let labels =
                format!("grpc_method=\"{method}\",grpc_service=\"{service}\",grpc_type=\"{kind}\"");
            let count = counts.begun.load(Ordering::Relaxed);
            begun.push_str(&format!("{BEGUN}{{{labels}}} {count}\n"));
            for (code, count) in CODES.iter().zip(&counts.ended) {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let line = format!("{ENDED}{{grpc_code=\"{code}\",{labels}}} {count}\n");
                    ended.push_str(&line);
                }
            }
        }
        for (name, help, bytes) in [
            (
                "etcd_network_client_grpc_received_bytes_total",
                "Bytes of messages that clients have sent.",
                &self.received_bytes,
            ),
            (
                "etcd_network_client_grpc_sent_bytes_total",
                "Bytes of messages that were sent to clients.",
                &self.sent_bytes,
            ),
        ] {
            let count = bytes.load(Ordering::Relaxed);
            ended.push_str(&head(name, help));
            ended.push_str(&format!("{name} {count}\n"));
        }
        begun + &ended
    }
}

fn head(name: &str, help: &str) -> String {
    format!("# HELP {name} {help}\n# TYPE {name} counter\n")
}

/// As what a call of the method at `path` counts, and how many messages that has.
fn known(path: &str) -> Option<(String, &'static str)> {
    if let Some(method) = Method::of_grpc(path) {
        let kind = match method.messages {
            Messages::Many => MANY,
            Messages::ManyAnswers => MANY_ANSWERS,
            Messages::One => UNARY,
        };
        return Some((path.to_owned(), kind));
    }
    let other = OTHERS.iter().find(|(other, _)| *other == path);
    if let Some((_, kind)) = other {
        return Some((path.to_owned(), kind));
    }
    service_of(path).map(|service| (format!("/{service}/{UNKNOWN}"), UNARY))
}

/// A call that has begun. It has ended when this is dropped.
pub(super) struct BegunCall {
    counts: Arc<Counts>,
    /// With which code, if nothing else is heard of it.
    code: i32,
}

impl BegunCall {
    /// How it ends.
    pub(super) fn ends(&mut self, code: i32) {
        self.code = code;
    }
}

impl Drop for BegunCall {
    fn drop(&mut self) {
        let place = usize::try_from(self.code).ok();
        let count = place.and_then(|place| self.counts.ended.get(place));
        // There is no other code.
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(calls: &Calls) -> Vec<String> {
        let text = calls.text();
        let series = text.lines().filter(|line| line.starts_with("grpc_"));
        series.map(str::to_owned).collect()
    }

    #[test]
    fn calls_are_counted_by_method_and_code_and_none_that_is_made_up() {
        let calls = Calls::default();
        let ended = |path, code| {
            if let Some(mut begun) = calls.begin(path) {
                begun.ends(code);
            }
        };
        ended("/etcdserverpb.KV/Range", 0);
        ended("/etcdserverpb.KV/Range", 14);
        ended("/etcdserverpb.KV/Range", 99);
        ended("/etcdserverpb.KV/Splice", 12);
        ended("/etcdserverpb.KV/Sp\"lice", 3);
        ended("/made/up", 12);
        let open = calls.begin("/etcdserverpb.Watch/Watch");
        let begun = |service, method, kind, count| {
            format!(
                "grpc_server_started_total{{grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}} {count}"
            )
        };
        let handled = |code, service, method, kind, count| {
            format!(
                "grpc_server_handled_total{{grpc_code=\"{code}\",grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}} {count}"
            )
        };
        let mut expected = vec![
            begun("KV", "Range", "unary", 3),
            begun("KV", "unknown", "unary", 2),
            begun("Watch", "Watch", "bidi_stream", 1),
            handled("OK", "KV", "Range", "unary", 1),
            handled("Unavailable", "KV", "Range", "unary", 1),
            handled("InvalidArgument", "KV", "unknown", "unary", 1),
            handled("Unimplemented", "KV", "unknown", "unary", 1),
        ];
        assert_eq!(series(&calls), expected);
        drop(open);
        expected.push(handled("Canceled", "Watch", "Watch", "bidi_stream", 1));
        assert_eq!(series(&calls), expected);
    }
}
