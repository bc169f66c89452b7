//! How many calls of the port have ended, by method and code: what gRPC's own metrics count.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::range_stream;
use crate::etcd::json::{Messages, Method};
use crate::etcd::metrics::with_etcd_names;
use crate::etcd::status::Code;
use crate::sync::Mutex;

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
const UNIMPLEMENTED: i32 = Code::Unimplemented as i32;

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

/// Calls that have ended. A stream counts once it is open, or as what it was refused with.
#[derive(Debug, Default)]
pub(super) struct Calls {
    ended: Mutex<BTreeMap<String, [u64; CODES.len()]>>,
}

impl Calls {
    /// A call of the method at `path` has ended with `code`. Methods that are not there are not counted: clients
    /// could make up any number of them.
    pub(super) fn count(&self, path: &str, code: i32) {
        let known = usize::try_from(code)
            .ok()
            .filter(|code| *code < CODES.len());
        let Some(code) = known.filter(|_| code != UNIMPLEMENTED) else {
            return;
        };
        let mut ended = self.ended.lock();
        match ended.get_mut(path) {
            Some(counts) => counts[code] += 1,
            None => {
                let mut counts = [0; CODES.len()];
                counts[code] = 1;
                ended.insert(path.to_owned(), counts);
            }
        }
    }

    /// As Prometheus reads them.
    pub(super) fn text(&self) -> String {
        const NAME: &str = "grpc_server_handled_total";
        let mut text =
            format!("# HELP {NAME} Calls of etcd's API that have ended.\n# TYPE {NAME} counter\n");
        for (path, counts) in self.ended.lock().iter() {
            let (service, method) = path
                .trim_start_matches('/')
                .split_once('/')
                .unwrap_or_default();
            let kind = match Method::of_grpc(path).map(|method| method.messages) {
                Some(Messages::Many) => "bidi_stream",
                Some(Messages::ManyAnswers) => "server_stream",
                None if path == range_stream::PATH => "server_stream",
                Some(Messages::One) | None => "unary",
            };
            for (code, count) in CODES.iter().zip(counts).filter(|(_, count)| **count > 0) {
                let line = writeln!(
                    text,
                    "{NAME}{{grpc_code=\"{code}\",grpc_method=\"{method}\",grpc_service=\"{service}\",\
                     grpc_type=\"{kind}\"}} {count}"
                );
                line.expect("a text takes everything");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_method_and_code_and_none_that_is_made_up() {
        let calls = Calls::default();
        calls.count("/etcdserverpb.KV/Range", 0);
        calls.count("/etcdserverpb.KV/Range", 0);
        calls.count("/etcdserverpb.KV/Range", 14);
        calls.count("/etcdserverpb.Watch/Watch", 0);
        calls.count("/made/up\"", UNIMPLEMENTED);
        calls.count("/etcdserverpb.KV/Range", 99);
        let text = calls.text();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 2",
                "grpc_server_handled_total{grpc_code=\"Unavailable\",grpc_method=\"Range\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1",
                "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Watch\",grpc_service=\"etcdserverpb.Watch\",grpc_type=\"bidi_stream\"} 1",
            ]
        );
    }
}
