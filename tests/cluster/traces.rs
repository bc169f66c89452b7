//! Traces of requests, as a collector gets them: what they say, what they never say, and that nobody
//! waits for the collector.
//!
//! The collector here knows nothing of how the server writes: it reads protobuf as it finds it, by the
//! numbers that OTLP gives to its fields.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use leasehold::api::{Consistency, TraceParent};
use leasehold::client::{GetOptions, PutOptions};
use memchr::memmem;

use crate::harness::{Cluster, PATIENCE, eventually, free_port};

const KEY: &str = "canary-of-a-key-61c8";
const VALUE: &str = "canary-of-a-value-9b02";

/// What takes traces.
#[derive(Default)]
struct Collector {
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    /// Takes traces at `port` until the test process ends.
    fn listen(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let collector = Self::default();
        let bodies = collector.bodies.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                take(stream.unwrap(), &bodies);
            }
        });
        collector
    }

    /// All that has come.
    fn bytes(&self) -> Vec<u8> {
        self.bodies.lock().unwrap().concat()
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().unwrap();
        bodies.iter().flat_map(|body| spans(body)).collect()
    }
}

/// Takes one request as OTLP has it, and answers when its body can be found in `bodies`.
fn take(stream: TcpStream, bodies: &Mutex<Vec<Vec<u8>>>) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_lowercase());
    }
    assert_eq!(head[0], "post /v1/traces http/1.1");
    let protobuf = "content-type: application/x-protobuf";
    assert!(head.iter().any(|line| line == protobuf), "{head:?}");
    let length = head
        .iter()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    bodies.lock().unwrap().push(body);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    reader.get_mut().write_all(answer).unwrap();
}

/// A span, with its node.
#[derive(Debug)]
struct Span {
    resource: BTreeMap<String, String>,
    trace: String,
    id: String,
    parent: Option<String>,
    name: String,
    kind: u64,
    began: u64,
    ended: u64,
    attributes: BTreeMap<String, String>,
    status: Option<u64>,
}

impl Span {
    fn is_of(&self, method: &str, code: &str) -> bool {
        self.name == method && self.attributes["leasehold.code"] == code
    }
}

/// The value of a field of a message of protobuf.
#[derive(Clone, Copy)]
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Field<'_>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut number = 0;
        for place in 0.. {
            let (first, rest) = bytes.split_first().unwrap();
            *bytes = rest;
            number |= u64::from(first & 0x7f) << (7 * place);
            if first & 0x80 == 0 {
                break;
            }
        }
        number
    }
    fn take<'a>(bytes: &mut &'a [u8], count: usize) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        taken
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().unwrap())),
            2 => {
                let length = varint(&mut bytes);
                Field::Bytes(take(&mut bytes, length as usize))
            }
            5 => Field::Number(u64::from(u32::from_le_bytes(
                take(&mut bytes, 4).try_into().unwrap(),
            ))),
            layout => panic!("there is no layout {layout}"),
        };
        found.push((key >> 3, field));
    }
    found
}

/// The messages, texts or byte strings in a field.
fn all(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    let of_it = |(field, value)| match value {
        Field::Bytes(bytes) if field == number => Some(bytes),
        _ => None,
    };
    fields(bytes).into_iter().filter_map(of_it).collect()
}

fn number(bytes: &[u8], number: u64) -> Option<u64> {
    fields(bytes)
        .into_iter()
        .find_map(|(field, value)| match value {
            Field::Number(value) if field == number => Some(value),
            _ => None,
        })
}

fn text(bytes: &[u8], number: u64) -> String {
    String::from_utf8(all(bytes, number).concat()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `KeyValue`s, with numbers and truths as they are written.
fn attributes(messages: Vec<&[u8]>) -> BTreeMap<String, String> {
    let attribute = |message: &[u8]| {
        let value = all(message, 2).concat();
        let value = match fields(&value)[..] {
            [(1, Field::Bytes(text))] => String::from_utf8(text.to_vec()).unwrap(),
            [(2, Field::Number(truth))] => (truth == 1).to_string(),
            [(3, Field::Number(number))] => (number as i64).to_string(),
            _ => panic!("an attribute has one value: {value:?}"),
        };
        (text(message, 1), value)
    };
    messages.into_iter().map(attribute).collect()
}

/// The spans of an `ExportTraceServiceRequest`.
fn spans(request: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for of_resource in all(request, 1) {
        let resource = attributes(all(&all(of_resource, 1).concat(), 1));
        for of_scope in all(of_resource, 2) {
            for span in all(of_scope, 2) {
                let (trace, id) = (all(span, 1).concat(), all(span, 2).concat());
                assert_eq!((trace.len(), id.len()), (16, 8));
                spans.push(Span {
                    resource: resource.clone(),
                    trace: hex(&trace),
                    id: hex(&id),
                    parent: all(span, 4).first().map(|parent| hex(parent)),
                    name: text(span, 5),
                    kind: number(span, 6).unwrap(),
                    began: number(span, 7).unwrap(),
                    ended: number(span, 8).unwrap(),
                    attributes: attributes(all(span, 9)),
                    status: all(span, 15).first().and_then(|status| number(status, 3)),
                });
            }
        }
    }
    spans
}

/// `SpanKind`.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
/// `StatusCode`.
const ERROR: u64 = 2;

/// The caller of a trace whose id is 16 bytes of `byte`, and what it says of it.
fn caller(byte: u8, flags: &str) -> (String, String, TraceParent) {
    let (trace, span) = (
        format!("{byte:02x}").repeat(16),
        "00f067aa0ba902b7".to_owned(),
    );
    let parent = format!("00-{trace}-{span}-{flags}").parse().unwrap();
    (trace, span, parent)
}

/// The spans with which a node and the leader have told of a request that the node forwarded: the node's
/// lies below the caller's, and the leader's below that.
fn forwarded<'a>(spans: &'a [Span], (trace, caller): (&str, &str)) -> Option<(&'a Span, &'a Span)> {
    let below = |parent: &str| {
        spans.iter().find(|span| {
            let is_below = span.parent.as_deref() == Some(parent);
            is_below && span.kind == SERVER && span.trace == trace && span.is_of("put", "OK")
        })
    };
    let asked = below(caller)?;
    Some((asked, below(&asked.id)?))
}

#[test]
fn a_request_of_a_traced_client_is_found_in_its_trace_at_the_leader_and_where_it_was_sent() {
    let port = free_port();
    let collector = Collector::listen(port);
    let mut cluster = Cluster::prepare(3);
    for node in &mut cluster.nodes {
        let etcd = ([127, 0, 0, 1], free_port()).into();
        node.environment
            .push(("LEASEHOLD_LISTEN_ETCD", SocketAddr::to_string(&etcd)));
        node.environment
            .push(("LEASEHOLD_ETCD_COMPAT_INSECURE", "true".to_owned()));
    }
    // Clients cannot find the leader, so that the node that they ask forwards what they ask.
    let nowhere = free_port();
    cluster.write_configs(&format!(
        "slow_request = \"0s\"\n[tracing]\notlp_endpoint = \"http://127.0.0.1:{port}\"\nsample_ratio = 0.0\n\
         [advertise]\nclient = \"127.0.0.1:{nowhere}\"\n"
    ));
    cluster.start_and_settle();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (trace, span, parent) = caller(0x4b, "01");
    eventually("a put that is forwarded, at both nodes", || {
        let follower = (cluster.wait_for_lease() + 1) % 3;
        runtime.block_on(async {
            let client = cluster.client_at(&[follower]).await;
            client
                .with_traceparent(parent)
                .put(KEY, VALUE, None)
                .await
                .unwrap();
            client.put(KEY, VALUE, None).await.unwrap();
            client.close().await;
        });
        let spans = collector.spans();
        let (asked, led) = forwarded(&spans, (&trace, &span))?;
        let node = |span: &Span| span.resource["service.instance.id"].clone();
        assert_ne!(node(asked), node(led));
        assert!(below(&spans, led).ends_with(&["quorum", "apply"]));
        Some(())
    });
    // The same by what instruments gRPC, and by its gateway.
    let (trace, span, parent) = caller(0x5c, "01");
    eventually(
        "a put of etcd's API that is forwarded, at both nodes",
        || {
            let follower = (cluster.wait_for_lease() + 1) % 3;
            put_as_etcd(
                &cluster.nodes[follower].environment[0].1,
                &parent.to_string(),
            );
            forwarded(&collector.spans(), (&trace, &span)).map(drop)
        },
    );
    // No other trace was asked for.
    let spans = collector.spans();
    let known = [caller(0x4b, "01").0, trace];
    assert!(
        spans.iter().all(|span| known.contains(&span.trace)),
        "{spans:#?}"
    );
}

/// Puts a key by the gateway of etcd's API at `address`.
fn put_as_etcd(address: &str, parent: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = r#"{"key":"Zm9v","value":"YmFy"}"#;
    let call = format!(
        "POST /v3/kv/put HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\
         traceparent: {parent}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(call.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_slow_request_has_the_trace_of_its_client_in_the_log_also_without_a_collector() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("slow_request = \"1us\"\n");
    cluster.start_and_settle();
    let (trace, _, parent) = caller(0x4b, "00");
    let by_quorum = ["put", KEY, VALUE, "--traceparent", &parent.to_string()];
    // Ten lines are written in ten seconds, and others may have been first.
    eventually("a line with the trace", || {
        let (code, _, error) = cluster.cli(&by_quorum);
        assert_eq!(code, 0, "{error}");
        let log = cluster.nodes[0].log_text();
        let mut told = log
            .lines()
            .filter(|line| line.contains("slow request") && line.contains("trace_id="));
        let line = told.next()?;
        assert_eq!(field(line, "trace_id"), trace);
        Some(())
    });
    let malformed = cluster.cli(&["get", KEY, "--traceparent", "00-zz"]);
    assert_eq!(malformed.0, 2, "{malformed:?}");
    assert!(malformed.2.contains("traceparent"), "{malformed:?}");
}

#[test]
fn a_trace_that_its_client_does_not_keep_is_kept_for_no_fast_request() {
    let port = free_port();
    let collector = Collector::listen(port);
    let mut cluster = traced(port, "0.0", "0s");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.client().await;
        client.put(KEY, VALUE, None).await.unwrap();
        for (byte, flags) in [(0x4b, "00"), (0x5c, "01")] {
            let traced = client.with_traceparent(caller(byte, flags).2);
            traced.put(KEY, VALUE, None).await.unwrap();
            let read = traced.get(KEY, None).await.unwrap();
            assert_eq!(read.value().unwrap(), VALUE);
            traced
                .get(KEY, Some(GetOptions::new().with_prefix()))
                .await
                .unwrap();
        }
        client.close().await;
    });
    assert_eq!(cluster.nodes[0].stop(), 0);
    let spans = collector.spans();
    let (trace, span, _) = caller(0x5c, "01");
    let told: Vec<_> = spans.iter().filter(|span| span.kind == SERVER).collect();
    let names: Vec<&str> = told.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["put", "range", "range"]);
    assert!(
        told.iter()
            .all(|it| it.trace == trace && it.parent.as_ref() == Some(&span)),
        "{told:#?}"
    );
}

/// What is below a span, one after the other, if that is all of its time and nothing else.
fn phases<'a>(spans: &'a [Span], request: &Span) -> Vec<&'a str> {
    assert_eq!(request.parent, None);
    below(spans, request)
}

/// The same of a span that lies below another one.
fn below<'a>(spans: &'a [Span], request: &Span) -> Vec<&'a str> {
    assert_eq!(request.kind, SERVER);
    let below: Vec<_> = spans
        .iter()
        .filter(|span| span.parent.as_ref() == Some(&request.id) && span.kind == INTERNAL)
        .collect();
    let mut at = request.began;
    for span in &below {
        assert_eq!((span.kind, &span.trace), (INTERNAL, &request.trace));
        assert_eq!(span.began, at, "{span:?}");
        at = span.ended;
    }
    assert_eq!(at, request.ended);
    below.iter().map(|span| span.name.as_str()).collect()
}

/// A cluster of one that is traced.
fn traced(port: u16, ratio: &str, slow: &str) -> Cluster {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs(&format!(
        "slow_request = \"{slow}\"\n[tracing]\notlp_endpoint = \"http://127.0.0.1:{port}\"\n\
         sample_ratio = {ratio}\n"
    ));
    cluster.start_and_settle();
    cluster
}

/// Writes that often, each with success.
fn write(cluster: &Cluster, count: usize) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.client().await;
        for _ in 0..count {
            client.put(KEY, VALUE, None).await.unwrap();
        }
        client.close().await;
    });
}

#[test]
fn a_trace_tells_what_a_request_did_with_its_time_and_nothing_of_its_data() {
    let port = free_port();
    let collector = Collector::listen(port);
    let mut cluster = traced(port, "1.0", "0s");
    let started = std::time::SystemTime::now();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.client().await;
        client.put(KEY, VALUE, None).await.unwrap();
        let by_quorum = GetOptions::new().with_consistency(Consistency::LinearizableQuorum);
        client.get(KEY, Some(by_quorum)).await.unwrap();
        let on_nothing = PutOptions::new().with_lease(7_777_777);
        client.put(KEY, VALUE, Some(on_nothing)).await.unwrap_err();
        // Of reads under the lease one in 64 is measured.
        for _ in 0..128 {
            client.get(KEY, None).await.unwrap();
        }
        client.delete(KEY, None).await.unwrap();
        client.close().await;
    });
    // What waits to be sent is sent by a node that stops.
    let document = cluster.nodes[0].manage("GET", "/admin/v1/status", "").1;
    assert_eq!(cluster.nodes[0].stop(), 0);

    let spans = collector.spans();
    let find = |method: &str, code: &str| -> &Span {
        let found = spans
            .iter()
            .find(|span| span.kind == SERVER && span.is_of(method, code));
        found.unwrap_or_else(|| panic!("no {method} with {code}: {spans:#?}"))
    };
    let put = find("put", "OK");
    let below = phases(&spans, put);
    assert!(below.ends_with(&["quorum", "apply"]), "{below:?}");
    assert_eq!(put.status, None);
    assert_eq!(put.attributes["leasehold.slow"], "false");
    let count = |name: &str| put.attributes[name].parse::<usize>().unwrap();
    assert!(count("leasehold.request_bytes") > KEY.len() + VALUE.len());
    assert!(count("leasehold.reply_bytes") > 0);
    assert!(count("leasehold.revision") > 0);
    assert!(!put.attributes.contains_key("leasehold.read_path"));
    let day = |nanos: u64| nanos / 1_000_000_000 / 86_400;
    let today = started
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    assert!(day(put.began).abs_diff(day(today as u64)) <= 1);

    let reads: BTreeSet<&str> = spans
        .iter()
        .filter(|span| span.is_of("range", "OK"))
        .inspect(|read| assert!(phases(&spans, read).ends_with(&["storage"])))
        .map(|read| read.attributes["leasehold.read_path"].as_str())
        .collect();
    assert!(reads.contains("read_index"), "{reads:?}");
    assert!(reads.contains("lease"), "{reads:?}");

    let failed = find("put", "LH-LEASE-NOT-FOUND");
    assert_eq!(failed.status, Some(ERROR));
    assert_eq!(failed.attributes["error.type"], "LH-LEASE-NOT-FOUND");
    find("delete_range", "OK");

    for span in &spans {
        let resource = |name: &str| span.resource[name].as_str();
        assert_eq!(resource("service.name"), "leasehold");
        assert_eq!(resource("service.version"), leasehold::version::VERSION);
        assert_eq!(resource("service.instance.id"), "n1");
        assert!(
            document
                .to_string()
                .contains(resource("leasehold.cluster.id")),
            "{span:?}: {document}"
        );
    }
    let ids: BTreeSet<_> = spans.iter().map(|span| (&span.trace, &span.id)).collect();
    assert_eq!(ids.len(), spans.len());
    let bytes = collector.bytes();
    for secret in ["canary", "tester", "7777777", "127.0.0.1"] {
        let is_there = memmem::find(&bytes, secret.as_bytes()).is_some();
        assert!(!is_there, "{secret}");
    }
}

/// The value of a field in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let rest = line.split(&format!(" {name}=")).nth(1);
    let rest = rest.unwrap_or_else(|| panic!("no {name}: {line}"));
    rest.split(' ').next().unwrap().trim_matches('"')
}

#[test]
fn with_no_share_of_requests_those_are_traced_that_the_log_tells_of() {
    let port = free_port();
    let collector = Collector::listen(port);
    let mut cluster = traced(port, "0.0", "1us");
    write(&cluster, 100);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let log = cluster.nodes[0].log_text();
    let told: BTreeSet<String> = log
        .lines()
        .filter(|line| line.contains("slow request"))
        .map(|line| field(line, "trace_id").to_owned())
        .collect();
    let spans = collector.spans();
    let requests = spans.iter().filter(|span| span.kind == SERVER);
    let requests: Vec<_> = requests
        .inspect(|request| assert_eq!(request.attributes["leasehold.slow"], "true"))
        .map(|request| request.trace.clone())
        .collect();
    assert!(!told.is_empty() && requests.len() < 100, "{requests:?}");
    assert_eq!(requests.len(), told.len());
    assert_eq!(BTreeSet::from_iter(requests), told);

    // Nothing is slow, and no share of the rest is wanted.
    let port = free_port();
    let collector = Collector::listen(port);
    let mut cluster = traced(port, "0", "0s");
    write(&cluster, 100);
    assert_eq!(cluster.nodes[0].stop(), 0);
    assert_eq!(collector.bytes(), [0u8; 0]);
}

#[test]
fn a_collector_that_is_not_there_is_said_once_and_harms_no_request() {
    let port = free_port();
    let mut cluster = traced(port, "1.0", "0s");
    let traces = |cluster: &Cluster, result: &str| {
        let series = format!("leasehold_traces_total{{result=\"{result}\"}}");
        cluster.nodes[0].metric(&series)
    };
    let lines = |cluster: &Cluster, part: &str| cluster.nodes[0].log_text().matches(part).count();
    let (lost, found) = (
        "trace collector is unreachable",
        "the trace collector is reachable",
    );
    // Two batches at least.
    for _ in 0..2 {
        let before = traces(&cluster, "failed");
        write(&cluster, 20);
        eventually("a batch that does not arrive", || {
            (traces(&cluster, "failed") > before).then_some(())
        });
    }
    assert_eq!((lines(&cluster, lost), lines(&cluster, found)), (1, 0));
    assert_eq!(traces(&cluster, "exported"), 0.0);

    let collector = Collector::listen(port);
    eventually("a batch that arrives", || {
        write(&cluster, 1);
        (traces(&cluster, "exported") > 0.0).then_some(())
    });
    // It is counted first, and told of then.
    eventually("a line that says so", || {
        (lines(&cluster, found) > 0).then_some(())
    });
    assert_eq!((lines(&cluster, lost), lines(&cluster, found)), (1, 1));
    assert!(!collector.spans().is_empty());
    assert_eq!(cluster.nodes[0].stop(), 0);
}

#[test]
fn a_collector_that_never_answers_holds_up_neither_requests_nor_the_end() {
    // Connections are taken by the system, and nobody reads them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut cluster = traced(listener.local_addr().unwrap().port(), "1.0", "0s");
    // More than may wait for the collector, which has not answered to the first of them.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dropped = "leasehold_traces_total{result=\"dropped\"}";
    runtime.block_on(async {
        let client = cluster.client().await;
        while cluster.nodes[0].metric(dropped) == 0.0 {
            let puts = (0..500).map(|_| {
                let client = client.clone();
                tokio::spawn(async move { client.put(KEY, VALUE, None).await.map(drop) })
            });
            for put in puts.collect::<Vec<_>>() {
                put.await.unwrap().unwrap();
            }
        }
        client.close().await;
    });
    assert_eq!(cluster.nodes[0].stop(), 0);
    drop(listener);
}
