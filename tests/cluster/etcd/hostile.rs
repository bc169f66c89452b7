//! Clients that mean no good: each gets an answer or the end of its connection, the node's memory stays where it
//! was, and another client is served all the time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use prost::Message;
use tokio::task::JoinHandle;

use super::given_up::give_up;
use super::grpc::{Channel, framed};
use super::http::Connection;
use super::kv::{PutRequest, PutResponse, RangeRequest, RangeResponse};
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LockRequest, LockResponse, WatchResponse,
};
use super::watches::started;
use super::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::PATIENCE;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const LOCK: &str = "/v3lockpb.Lock/Lock";
/// What a client of HTTP/2 says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// By how much a node may grow while it is attacked: less than any of the attacks would cost it.
const GROWTH_MAX: f64 = (192 << 20) as f64;
/// The code of *too many requests*.
const BUSY: i32 = 8;
/// A value that a node needs some of its memory for while it arrives.
const LARGE: usize = 64 << 10;
/// How many of them an honest client writes, however long the attack lasts: a node keeps what is written, and that
/// is no growth by the attack.
const LARGE_MAX: u32 = 256;

fn resident(cluster: &EtcdCluster) -> f64 {
    tokio::task::block_in_place(|| cluster.cluster.nodes[0].metric("process_resident_memory_bytes"))
}

/// A client that writes and reads on a connection of its own, until it is told to end.
struct Honest {
    over: Arc<AtomicBool>,
    serving: JoinHandle<u32>,
}

impl Honest {
    fn begin(port: SocketAddr) -> Self {
        Self::begin_and_repeat(port, false)
    }

    /// If it `repeats`, it may be told that there are too many requests for now, and asks again.
    fn begin_and_repeat(port: SocketAddr, repeats: bool) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = over.clone();
        let serving = tokio::spawn(async move {
            let channel = Channel::open(port).await;
            let mut turns = 0;
            while !until.load(Ordering::Relaxed) {
                let size = if turns < LARGE_MAX { LARGE } else { 1 };
                match turn(&channel, size).await {
                    Err((BUSY, _)) if repeats => {}
                    served => turns += served.map(|()| 1).unwrap(),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            turns
        });
        Self { over, serving }
    }

    /// It was served all the time, or now and then if it repeats.
    async fn end(self) {
        self.over.store(true, Ordering::Relaxed);
        assert!(self.serving.await.unwrap() > 0);
    }
}

/// A write of so many bytes, and a read of it.
async fn turn(channel: &Channel, size: usize) -> Result<(), (i32, String)> {
    let value = Bytes::from(vec![b'x'; size]);
    let put = PutRequest {
        key: Bytes::from_static(b"honest"),
        value: value.clone(),
        ..PutRequest::default()
    };
    let _: PutResponse = channel.ask(PUT, &put).await?;
    let range = RangeRequest {
        key: put.key,
        ..RangeRequest::default()
    };
    let found: RangeResponse = channel.ask(RANGE, &range).await?;
    assert_eq!(found.kvs[0].value, value);
    Ok(())
}

/// Opens streams and resets them, as long as the connection lasts: how many.
async fn reset(address: SocketAddr, streams: usize) -> Result<usize, h2::Error> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await?;
    let driver = tokio::spawn(connection);
    let mut opened = 0;
    let attack = async {
        let bodies = [
            (
                WATCH,
                Bytes::from_static(&[0, 0, 0, 0, 5, 0x0a, 3, 0x0a, 1, b'a']),
            ),
            (RANGE, Bytes::from_static(&[0, 0, 0, 0, 3, 0x0a, 1, b'a'])),
            (LOCK, Bytes::from_static(&[0, 0, 0])),
        ];
        while opened < streams {
            let (path, body) = bodies[opened % bodies.len()].clone();
            let request = Request::post(format!("http://{address}{path}"))
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let mut ready = sender.clone().ready().await?;
            let (answer, mut sending) = ready.send_request(request, false)?;
            opened += 1;
            sending.send_data(body, false)?;
            // Some are under way by then.
            if opened % 7 == 0 {
                tokio::task::yield_now().await;
            }
            drop((answer, sending));
        }
        Ok::<_, h2::Error>(())
    };
    // The other side may have had enough of it.
    let _ = tokio::time::timeout(PATIENCE, attack)
        .await
        .expect("an end");
    driver.abort();
    Ok(opened)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_opened_and_reset_leave_nothing_behind() {
    const CONNECTIONS: usize = 40;
    const STREAMS: usize = 1_000;
    let cluster = started(1).await;
    let port = cluster.ports[0];
    let honest = Honest::begin(port);
    let before = resident(&cluster);
    let mut opened = 0;
    for _ in 0..CONNECTIONS {
        opened += reset(port, STREAMS).await.unwrap_or_default();
    }
    let grown = resident(&cluster) - before;
    honest.end().await;
    println!("{opened} streams, {} MiB more", grown / f64::from(1 << 20));
    assert!(
        opened >= CONNECTIONS && grown < GROWTH_MAX,
        "{opened} {grown}"
    );
    // What has begun has ended.
    let began = std::time::Instant::now();
    loop {
        let page = tokio::task::block_in_place(|| cluster.page(0, "/metrics").1);
        let sum = |name: &str| {
            let series = page.lines().filter(|line| line.starts_with(name));
            let values = series.map(|line| line.rsplit(' ').next().unwrap());
            values
                .map(|value| value.parse::<f64>().unwrap())
                .sum::<f64>()
        };
        let begun = sum("grpc_server_started_total");
        if begun > 0.0 && begun == sum("grpc_server_handled_total") {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{page}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What each of them began goes on without them.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_are_given_up_as_fast_as_they_can_be_said_hold_no_memory() {
    const CALLS: u32 = 50_000;
    let cluster = started(1).await;
    let port = cluster.ports[0];
    // A flood of writes fills what a node has under way, as it does in etcd.
    let honest = Honest::begin_and_repeat(port, true);
    let channel = Channel::open(port).await;
    let grant = LeaseGrantRequest { ttl: 3600, id: 5 };
    let granted = channel.ask::<LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", &grant);
    let lock = LockRequest {
        name: Bytes::from_static(b"l"),
        lease: granted.await.unwrap().id,
    };
    let before = resident(&cluster);
    let asked = lock.encode_to_vec();
    let given_up = tokio::task::spawn_blocking(move || give_up(port, CALLS, &asked)).await;
    assert_eq!(given_up.unwrap(), Ok(()));
    let grown = resident(&cluster) - before;
    honest.end().await;
    println!("{} MiB more", grown / f64::from(1 << 20));
    assert!(grown < GROWTH_MAX, "{grown}");
}

/// A frame of HTTP/2.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Says `begin` and then `again` and again, until the node ends the connection: how many bytes it has taken.
fn said_until_the_end(port: SocketAddr, begin: &[u8], again: &[u8], bytes_max: usize) -> usize {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let ended = std::thread::spawn(move || {
        let mut answer = vec![0; 1 << 16];
        // A reset is an end, too.
        while matches!(reader.read(&mut answer), Ok(read) if read > 0) {}
    });
    let mut said = 0;
    let mut words = begin;
    while said < bytes_max && !ended.is_finished() && stream.write_all(words).is_ok() {
        said += words.len();
        words = again;
    }
    let began = std::time::Instant::now();
    while !ended.is_finished() {
        assert!(began.elapsed() < PATIENCE, "it goes on after {said} bytes");
        std::thread::sleep(Duration::from_millis(10));
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_an_end_end_the_connection() {
    const BYTES_MAX: usize = 64 << 20;
    let cluster = started(1).await;
    let port = cluster.ports[0];
    let honest = Honest::begin(port);
    let before = resident(&cluster);
    // POST, http, /, and then one header after the other, none of them in the table.
    let header = [&[0, 1, b'x', 100][..], &[b'v'; 100]].concat();
    let many = header.repeat(150);
    let headers = frame(1, 0, 1, &[0x83, 0x86, 0x84]);
    let begin = [PREFACE, &frame(4, 0, 0, &[]), &headers].concat();
    let attacks = [
        ("continuations", begin.clone(), frame(9, 0, 1, &many)),
        (
            "empty continuations",
            begin.clone(),
            frame(9, 0, 1, &[]).repeat(100),
        ),
        (
            "small continuations",
            begin,
            frame(9, 0, 1, &header).repeat(20),
        ),
    ];
    for (name, begin, again) in attacks {
        let attack = move || said_until_the_end(port, &begin, &again, BYTES_MAX);
        let said = tokio::task::spawn_blocking(attack).await.unwrap();
        println!("{name}: {said} bytes");
        assert!(said < BYTES_MAX, "{name}");
    }
    let grown = resident(&cluster) - before;
    assert!(grown < GROWTH_MAX, "{grown}");
    // A list that is too long, and has an end: the call alone fails.
    let channel = Channel::open(port).await;
    let long = "v".repeat(20 << 10);
    let good = framed(&[0x0a, 1, b'a']);
    let refused = channel.call(RANGE, good.clone(), &[("x", &long)]).await;
    if let Ok(refused) = &refused {
        assert!(!refused.headers.contains_key("grpc-status"), "{refused:?}");
    }
    honest.end().await;
    let served = Channel::open(port).await.call(RANGE, good, &[]).await;
    assert_eq!(served.unwrap().status().0, 0);
}

/// Messages that are announced and never there cost nothing, and end.
#[tokio::test(flavor = "multi_thread")]
async fn messages_that_do_not_come_hold_no_memory_and_end_in_time() {
    const CONNECTIONS: usize = 5;
    // Announced by each connection is what one may hold, and by all more than the node has.
    const STREAMS: usize = 30;
    let cluster = started(1).await;
    let port = cluster.ports[0];
    let mut announced = vec![0, 0, 0x1f, 0, 0];
    announced.push(0x0a);
    let announced = Bytes::from(announced);
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let channel = Channel::open(port).await;
        for number in 0..STREAMS {
            let path = [WATCH, LOCK][number % 2];
            let mut stream = channel.begin(path, &[]).await;
            stream.send_bytes(announced.clone());
            open.push(stream);
        }
        // Those that are there by then.
        let asked = RangeRequest {
            key: Bytes::from_static(b"a"),
            ..RangeRequest::default()
        };
        let _: RangeResponse = channel.ask(RANGE, &asked).await.unwrap();
        open.push(channel.begin(WATCH, &[]).await);
        let mut last = open.pop().unwrap();
        last.send_bytes(announced.clone());
        open.push(last);
        std::mem::forget(channel);
    }
    let honest = Honest::begin(port);
    for mut stream in open {
        let ended = loop {
            if let Err(ended) = stream.next::<WatchResponse>().await {
                break ended;
            }
        };
        let late = (14, "etcdserver: request timed out".to_owned());
        assert_eq!(ended, late);
    }
    // JSON that stops in the middle of a message, of a stream that has one request and of one that has many.
    tokio::task::block_in_place(|| {
        let streams = ["/v3/lease/keepalive", "/v3/watch"].map(|path| {
            let mut stream = Connection::open(port);
            stream.begin(path);
            stream.send(r#"{"ID":"1"#);
            stream
        });
        for mut stream in streams {
            let (status, head) = stream.head();
            assert_eq!(status, 503, "{head}");
        }
    });
    honest.end().await;
}

/// A field with this number and these bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).unwrap();
    [&[number << 3 | 2, length], bytes].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_no_text_are_refused_and_keys_need_be_none() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let bad = b"a\xff\xfe";
    let auth = |method: &str| format!("/etcdserverpb.Auth/{method}");
    let members = |method: &str| format!("/etcdserverpb.Cluster/{method}");
    for (path, number) in [
        (auth("Authenticate"), 1),
        (auth("Authenticate"), 2),
        (auth("UserAdd"), 1),
        (auth("UserAdd"), 2),
        (auth("UserGet"), 1),
        (auth("UserDelete"), 1),
        (auth("UserChangePassword"), 2),
        (auth("UserGrantRole"), 1),
        (auth("UserGrantRole"), 2),
        (auth("UserRevokeRole"), 1),
        (auth("RoleAdd"), 1),
        (auth("RoleGet"), 1),
        (auth("RoleDelete"), 1),
        (auth("RoleGrantPermission"), 1),
        (auth("RoleRevokePermission"), 1),
        (members("MemberAdd"), 1),
        (members("MemberUpdate"), 2),
        ("/grpc.health.v1.Health/Check".to_owned(), 1),
    ] {
        let body = framed(&field(number, bad));
        let (code, text) = channel.call(&path, body, &[]).await.unwrap().status();
        assert_eq!(code, 13, "{path} {number}: {text}");
        let begin = "grpc: error unmarshalling request";
        assert!(text.starts_with(begin), "{path} {number}: {text}");
    }
    let lock = LockRequest {
        name: Bytes::from_static(bad),
        lease: 0,
    };
    let locked: LockResponse = channel.ask(LOCK, &lock).await.unwrap();
    assert!(locked.key.starts_with(b"a\xff\xfe/"));
    let connection = &mut Connection::open(cluster.ports[0]);
    for name in [&b"\"a\xff\""[..], br#""\ud800""#] {
        let body = [b"{\"name\":", name, b"}"].concat();
        let answer = connection.post_bytes("/v3/auth/user/add", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert!(answer.body.contains(r#""code":3,"#), "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn json_that_has_no_end_or_too_much_in_it_is_refused() {
    let cluster = started(1).await;
    let port = cluster.ports[0];
    let honest = Honest::begin(port);
    let before = resident(&cluster);
    let deep = "[".repeat(100_000);
    let digits = "9".repeat(1 << 20);
    tokio::task::block_in_place(|| {
        let connection = &mut Connection::open(port);
        for body in [
            format!(r#"{{"unknown":{deep}"#),
            format!(r#"{{"unknown":{{"a":{deep}"#),
            format!(r#"{{"limit":{digits}}}"#),
            format!(r#"{{"limit":"{digits}"}}"#),
            r#"{"limit":1e999999999}"#.to_owned(),
            r#"{"limit":1e400}"#.to_owned(),
        ] {
            let answer = connection.post("/v3/kv/range", &body);
            assert_eq!(answer.status, 400, "{answer:?}");
        }
        // Without an end: blanks, text, and members of an object.
        for (path, begin, again) in [
            ("/v3/watch", "", " "),
            ("/v3/watch", r#"{"create_request":{"key":""#, "A"),
            ("/v3/kv/range", "{", r#""a":0,"#),
            ("/v3/lease/keepalive", r#"{"ID":"#, "1"),
        ] {
            let mut stream = Connection::open(port);
            stream.begin(path);
            let part = again.repeat(64 << 10);
            stream.send(&format!("{begin}{part}"));
            for _ in 0..200 {
                stream.send(&part);
            }
            let (status, head) = stream.head();
            assert!(matches!(status, 400 | 429), "{path} {again}: {head}");
        }
    });
    let grown = resident(&cluster) - before;
    honest.end().await;
    assert!(grown < GROWTH_MAX, "{grown}");
}

/// As [`said_until_the_end`], by a client that reads nothing, until so much is said or no more is taken for a while.
fn said_unread(port: SocketAddr, begin: &[u8], again: &[u8], bytes_max: usize) -> usize {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_write_timeout(Some(PATIENCE / 100)).unwrap();
    let mut said = 0;
    let mut words = begin;
    while said < bytes_max && stream.write_all(words).is_ok() {
        said += words.len();
        words = again;
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_ask_for_an_answer_hold_no_memory_and_are_no_lines_of_the_log() {
    // As answers that wait they would take more than a node may grow.
    const BYTES_MAX: usize = 4 << 20;
    let mut cluster = EtcdCluster::prepare(1, &[IN_THE_CLEAR, ("LEASEHOLD_LOG_FILTER", "info")]);
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.cluster.start_and_settle();
        cluster
    });
    let cluster = cluster.await.unwrap();
    let port = cluster.ports[0];
    let honest = Honest::begin(port);
    let before = resident(&cluster);
    let settings = frame(4, 0, 0, &[]);
    let begin = [PREFACE, &settings].concat();
    for (name, again) in [
        ("PING", frame(6, 0, 0, &[7; 8])),
        ("SETTINGS", settings),
        ("an answer to no PING", frame(6, 1, 0, &[7; 8])),
        ("WINDOW_UPDATE", frame(8, 0, 0, &[0, 0, 0, 1])),
        ("PRIORITY", frame(2, 0, 3, &[0, 0, 0, 0, 9])),
    ] {
        let (begin, again) = (begin.clone(), again.repeat(1000));
        let attack = move || said_unread(port, &begin, &again, BYTES_MAX);
        let said = tokio::task::spawn_blocking(attack).await.unwrap();
        println!("{name}: {said} bytes");
    }
    let grown = resident(&cluster) - before;
    honest.end().await;
    assert!(grown < GROWTH_MAX, "{grown}");
    let said = cluster.cluster.nodes[0].log_text();
    assert!(!said.contains("PING"), "{} bytes of log", said.len());
}

/// etcd ends the connection of a client that asks often whether it is there.
#[tokio::test(flavor = "multi_thread")]
async fn every_ping_is_answered_however_often_they_come() {
    let cluster = started(1).await;
    let stream = tokio::net::TcpStream::connect(cluster.ports[0]).await;
    let (sender, mut connection) = h2::client::handshake(stream.unwrap()).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let driver = tokio::spawn(connection);
    for _ in 0..200 {
        let answered = tokio::time::timeout(PATIENCE, pings.ping(h2::Ping::opaque()));
        answered.await.expect("an answer").unwrap();
    }
    drop::<h2::client::SendRequest<Bytes>>(sender);
    driver.abort();
}
