mod cached_kv;
mod contexts;
mod forwarded;
mod home;
mod leases;
#[cfg(all(test, feature = "metrics", feature = "server"))]
mod measured;
mod members;
mod monotonic;
mod namespaces;
mod near;
mod outages;
mod queues;
mod recipes;
mod relay;
mod retries;
mod sessions;
mod stm;
mod store;
mod watch;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use self::relay::Relay;
use crate::api::{
    CompactionRequest, Consistency, DeleteRangeRequest, DeleteRangeResponse, Error, ErrorKind,
    KeyRange, KeyValue, LeaseGrantRequest, LeaseGrantResponse, LeaseKept, LeaseListResponse,
    LeaseRef, LeaseRevokeResponse, MemberInfo, MembersResponse, Outcome, PutRequest, PutResponse,
    PutWithNewLeaseResponse, RangeResponse, Request, Response, ResponseBody, ResponseHeader,
    StatusResponse, TxnRequest, TxnResponse,
};
use crate::client::deadline::deadline_after;
use crate::client::link::MAY_BE_SILENT;
use crate::client::{
    Client, ConnectOptions, DeleteOptions, GetOptions, PutOptions, RetryPolicy, TlsOptions,
};
use crate::transport::testing::{Authority, Says};
use crate::transport::{
    Admission, ClientConnection, ClientListener, CloseCode, FrameReceiver, FrameStream,
    Introduction, ListenerConfig, PeerIdentity, TransportStats,
};
use crate::types::{BootstrapId, ClusterId, NodeId, SessionId, Term};
use crate::wire::client::{ClientFrame, ContextFrame, KnownLeader, ServerFrame};
use crate::wire::{Frame, FrameLimits, Kind, RequestContext, encode};

const CLUSTER: ClusterId = ClusterId(0xabc0_0000_0000_0000_0000_0000_0000_0001);
const LIMITS: FrameLimits = FrameLimits::DEFAULT;
/// Long enough for a slow machine; reached only by a test that is about to fail.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a test whose nodes may be slow: a request that went elsewhere meanwhile would be one too many.
fn run<T>(test: impl Future<Output = T>) -> T {
    run_where(true, test)
}

/// Runs a test of what is done about nodes that fall silent.
fn run_watching_for_silence<T>(test: impl Future<Output = T>) -> T {
    run_where(false, test)
}

fn run_where<T>(may_be_silent: bool, test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // All links are made there.
        .on_thread_start(move || MAY_BE_SILENT.set(may_be_silent))
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() })
}

// ---- a node that does what the test says -----------------------------------------------------

/// What a fake node does with a call.
enum Reaction {
    Reply(Box<Result<Response, Error>>),
    /// Never answers.
    Ignore,
    /// Answers once the next call has come, and after that one.
    AfterNext(Box<Result<Response, Error>>),
    /// Closes the connection without an answer.
    Cut,
    /// Answers with bytes that are no frame.
    Garbage,
}

type Script = Arc<dyn Fn(usize, &ClientFrame) -> Reaction + Send + Sync>;

/// A node whose answers are scripted: by the number of the call, from 0, and the call.
struct Fake {
    id: NodeId,
    address: String,
    calls: Arc<Mutex<Vec<ContextFrame>>>,
    connections: Arc<AtomicUsize>,
    writes: Arc<AtomicU64>,
    listener: Arc<ClientListener>,
    /// Holds every answer back until told.
    gate: Arc<Gate>,
    /// What it says of the cluster to who connects.
    said: Arc<Says>,
    /// Who it says that the members are.
    members: Arc<Mutex<MembersResponse>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Gate {
    shut: std::sync::atomic::AtomicBool,
    opened: Notify,
}

fn fake(
    authority: &Authority,
    name: &str,
    script: impl Fn(usize, &ClientFrame) -> Reaction + Send + Sync + 'static,
) -> Fake {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    fake_at(authority, name, address, script)
}

fn fake_at(
    authority: &Authority,
    name: &str,
    address: SocketAddr,
    script: impl Fn(usize, &ClientFrame) -> Reaction + Send + Sync + 'static,
) -> Fake {
    let id = id_of(name);
    let said = Arc::<Says>::default();
    let config = ListenerConfig {
        member_id: id,
        limits: LIMITS,
        admission: Admission::DEFAULT,
        introduction: Arc::clone(&said) as Arc<dyn Introduction>,
    };
    let tls = authority.node(CLUSTER, name);
    let stats = Arc::new(TransportStats::default());
    let listener = Arc::new(ClientListener::bind(address, &tls, config, stats).unwrap());
    let address = listener.local_address().unwrap().to_string();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let connections = Arc::new(AtomicUsize::new(0));
    let writes = Arc::new(AtomicU64::new(0));
    let gate = Arc::new(Gate::default());
    let members = Arc::<Mutex<MembersResponse>>::default();
    let script: Script = Arc::new(script);
    let task = {
        let (listener, calls) = (Arc::clone(&listener), Arc::clone(&calls));
        let (connections, writes) = (Arc::clone(&connections), Arc::clone(&writes));
        let (gate, members) = (Arc::clone(&gate), Arc::clone(&members));
        tokio::spawn(async move {
            while let Some(connection) = listener.accept().await {
                connections.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(
                    connection,
                    Arc::clone(&calls),
                    Arc::clone(&script),
                    Arc::clone(&writes),
                    Arc::clone(&gate),
                    Arc::clone(&members),
                ));
            }
        })
    };
    Fake {
        said,
        id,
        address,
        calls,
        connections,
        writes,
        listener,
        gate,
        members,
        task,
    }
}

async fn serve(
    mut connection: ClientConnection,
    calls: Arc<Mutex<Vec<ContextFrame>>>,
    script: Script,
    writes: Arc<AtomicU64>,
    gate: Arc<Gate>,
    members: Arc<Mutex<MembersResponse>>,
) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(serve_stream(
            stream,
            Arc::clone(&calls),
            Arc::clone(&script),
            Arc::clone(&writes),
            Arc::clone(&gate),
            Arc::clone(&members),
        ));
    }
}

/// A call, and what it says of itself.
fn heard(receiver: &FrameReceiver, frame: &Frame) -> Option<(ClientFrame, RequestContext)> {
    if frame.kind == Kind::ContextCall {
        let ContextFrame { context, frame } = receiver.decode(frame).ok()?;
        assert!(
            !context.is_empty(),
            "it is sent only where there is something to say"
        );
        return Some((frame, context));
    }
    Some((receiver.decode(frame).ok()?, RequestContext::default()))
}

async fn serve_stream(
    stream: FrameStream,
    calls: Arc<Mutex<Vec<ContextFrame>>>,
    script: Script,
    writes: Arc<AtomicU64>,
    gate: Arc<Gate>,
    members: Arc<Mutex<MembersResponse>>,
) {
    let (mut sender, mut receiver) = stream.split();
    let mut frames = Vec::new();
    let mut late: VecDeque<ServerFrame> = VecDeque::new();
    while receiver.read_batch(&mut frames).await.is_ok() {
        let mut out = BytesMut::new();
        // What the client asks by itself is not held back, or a test would wait for what comes after.
        let mut is_held = false;
        for frame in frames.drain(..) {
            let Some((call, context)) = heard(&receiver, &frame) else {
                return;
            };
            if call.call.request == Request::MemberList
                && call.call.consistency == Consistency::Serializable
            {
                // The client asks this by itself, whatever a test is about.
                let list = ResponseBody::Members(Box::new(members.lock().unwrap().clone()));
                let result = answer("n1", &call).map(|known| Response {
                    body: list,
                    ..known
                });
                encode(&reply_to(&call, result), &LIMITS, &mut out).unwrap();
                continue;
            }
            is_held = true;
            let number = {
                let mut calls = calls.lock().unwrap();
                calls.push(ContextFrame {
                    context,
                    frame: call.clone(),
                });
                calls.len() - 1
            };
            let reply = |result: Box<Result<Response, Error>>| reply_to(&call, *result);
            let overdue = late.pop_front();
            match script(number, &call) {
                Reaction::Reply(result) => encode(&reply(result), &LIMITS, &mut out).unwrap(),
                Reaction::AfterNext(result) => late.push_back(reply(result)),
                Reaction::Ignore => {}
                Reaction::Cut => {
                    receiver.connection().close(CloseCode::Done);
                    return;
                }
                Reaction::Garbage => out.extend_from_slice(&[0xff; 64]),
            }
            if let Some(overdue) = overdue {
                encode(&overdue, &LIMITS, &mut out).unwrap();
            }
        }
        while is_held && gate.shut.load(Ordering::SeqCst) {
            gate.opened.notified().await;
        }
        if !out.is_empty() {
            writes.fetch_add(1, Ordering::SeqCst);
            if sender.write(out.freeze()).await.is_err() {
                return;
            }
        }
    }
}

impl Gate {
    /// Holds answers back.
    fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Lets those go that it held back.
    fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
        // Whoever looked just before it was opened comes to wait just after.
        self.opened.notify_one();
    }
}

impl Fake {
    fn calls(&self) -> Vec<ClientFrame> {
        self.heard().into_iter().map(|heard| heard.frame).collect()
    }

    /// The calls, with what they say of themselves.
    fn heard(&self) -> Vec<ContextFrame> {
        self.calls.lock().unwrap().clone()
    }

    fn methods(&self) -> Vec<&'static str> {
        let calls = self.calls();
        calls
            .iter()
            .map(|frame| frame.call.request.method())
            .collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.listener.close(CloseCode::Stopping);
        self.task.abort();
    }
}

fn id_of(name: &str) -> NodeId {
    NodeId(u64::from(name.as_bytes()[name.len() - 1]))
}

fn reply(result: Result<Response, Error>) -> Reaction {
    Reaction::Reply(Box::new(result))
}

fn refuse(kind: ErrorKind) -> Reaction {
    reply(Err(Error::not_applied(kind, "the fake says no")))
}

fn not_leader(leader: Option<(NodeId, &str)>) -> Reaction {
    refuse(ErrorKind::NotLeader {
        leader: leader.map(|(id, _)| id),
        address: leader.map(|(_, address)| address.to_string()),
    })
}

/// What a healthy leader grants: its leases are renewed within the patience of a test.
const TTL_MS: u64 = 600;

/// The lease that has any name, at a healthy leader.
const NAMED: LeaseRef = LeaseRef {
    id: 9,
    grant_index: 9,
};

fn reply_to(call: &ClientFrame, result: Result<Response, Error>) -> ServerFrame {
    ServerFrame {
        request_id: call.request_id,
        result,
    }
}

/// The answer a healthy leader named `name` gives.
fn answer(name: &str, frame: &ClientFrame) -> Result<Response, Error> {
    let body = match &frame.call.request {
        Request::Range(range) => ResponseBody::Range(RangeResponse {
            kvs: vec![KeyValue {
                key: range.key.clone(),
                value: Bytes::from(format!("value of {}", String::from_utf8_lossy(&range.key))),
                ..KeyValue::default()
            }],
            more: false,
            count: 1,
        }),
        Request::Put(_) => ResponseBody::Put(PutResponse::default()),
        Request::DeleteRange(_) => ResponseBody::DeleteRange(DeleteRangeResponse {
            deleted: 3,
            prev_kvs: Vec::new(),
        }),
        Request::OpenSession => ResponseBody::OpenSession { id: SessionId(40) },
        Request::Status => ResponseBody::Status(Box::new(StatusResponse {
            name: name.into(),
            members: vec![MemberInfo::default()],
            ..StatusResponse::default()
        })),
        Request::MoveLeader { .. } => ResponseBody::MoveLeader,
        Request::Compact(_) => ResponseBody::Compact,
        Request::ForwardToLeader { .. } => ResponseBody::ForwardToLeader,
        Request::LeaderLeaseReport => ResponseBody::LeaderLeaseReport(Box::default()),
        Request::RangePage(_) => ResponseBody::RangePage(Default::default()),
        Request::Txn(_) => ResponseBody::Txn(TxnResponse::default()),
        Request::LeaseKeepAlive(leases) => {
            let renewed = LeaseKept::Renewed {
                ttl_ms: TTL_MS,
                grant_index: 9,
                is_extended: false,
            };
            ResponseBody::LeaseKeepAlive(vec![renewed; leases.len()])
        }
        Request::LeaseGrant(grant) => ResponseBody::LeaseGrant(LeaseGrantResponse {
            id: 9,
            grant_index: 9,
            ttl_ms: TTL_MS,
            requested_ttl_ms: grant.ttl_ms.unsigned_abs(),
            name: grant.name.clone(),
        }),
        Request::LeaseRevoke(_) => ResponseBody::LeaseRevoke(LeaseRevokeResponse::default()),
        Request::LeaseUpdateTtl { .. } => ResponseBody::LeaseUpdateTtl { ttl_ms: TTL_MS },
        Request::LeaseTimeToLive { .. } => ResponseBody::LeaseTimeToLive(Box::default()),
        Request::LeaseList(_) => ResponseBody::LeaseList(LeaseListResponse::default()),
        Request::LeaseNamed { .. } => ResponseBody::LeaseNamed(NAMED),
        Request::PutWithNewLease(..) => {
            let mut both = PutWithNewLeaseResponse::default();
            (both.grant.id, both.grant.ttl_ms) = (9, TTL_MS);
            ResponseBody::PutWithNewLease(Box::new(both))
        }
        Request::Watch { .. } => ResponseBody::Watch,
        Request::WatchCancel { .. } => ResponseBody::WatchCancel,
        Request::WatchProgress { .. } => ResponseBody::WatchProgress,
        Request::Snapshot(_) => ResponseBody::Snapshot(Default::default()),
        Request::MemberList
        | Request::MemberAdd(_)
        | Request::MemberRemove { .. }
        | Request::MemberPromote { .. }
        | Request::MemberUpdate(_) => ResponseBody::Members(Box::default()),
        Request::Auth(_) => ResponseBody::Auth(crate::api::AuthResponse::NotEnabled),
        Request::AlarmList | Request::AlarmSet { .. } => ResponseBody::Alarms(Default::default()),
    };
    Ok(Response {
        header: ResponseHeader {
            cluster_id: CLUSTER.short(),
            member_id: id_of(name),
            revision: 7,
            raft_term: Term(2),
            leader_id: Some(id_of(name)),
            read: None,
        },
        body,
    })
}

fn healthy(name: &'static str) -> impl Fn(usize, &ClientFrame) -> Reaction + Send + Sync {
    move |_, frame| reply(answer(name, frame))
}

fn options(authority: &Authority) -> ConnectOptions {
    let issued = authority.issue(&PeerIdentity::client(CLUSTER, "tests"));
    ConnectOptions::new()
        .with_tls(
            TlsOptions::new()
                .ca_pem(authority.pem())
                .identity_pem(issued.certificate, issued.key),
        )
        // Only a test that is about to fail waits that long.
        .with_connect_timeout(PATIENCE)
        .with_timeout(Duration::from_secs(20))
}

async fn connect(authority: &Authority, nodes: &[&Fake]) -> Client {
    connect_with(nodes, options(authority)).await
}

async fn connect_with(nodes: &[&Fake], options: ConnectOptions) -> Client {
    let endpoints: Vec<String> = nodes.iter().map(|node| node.address.clone()).collect();
    Client::connect(endpoints, Some(options)).await.unwrap()
}

// ---- requests --------------------------------------------------------------------------------

#[test]
fn each_request_arrives_as_it_was_made_and_its_reply_comes_back() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let found = client
            .get(
                "k",
                Some(
                    GetOptions::new()
                        .with_range("z")
                        .with_limit(5)
                        .with_keys_only()
                        .with_consistency(Consistency::LeaseOnly),
                ),
            )
            .await
            .unwrap();
        assert_eq!(found.value().unwrap(), "value of k");
        assert_eq!(found.header.revision, 7);
        let put = client
            .put("k", "v", Some(PutOptions::new().with_prev_kv()))
            .await
            .unwrap();
        assert_eq!(put.header.member_id, node.id);
        let deleted = client
            .delete("k", Some(DeleteOptions::new().with_prefix()))
            .await
            .unwrap();
        assert_eq!(deleted.deleted, 3);
        client.move_leader(Some(NodeId(9))).await.unwrap();
        let status = client.status(node.address.as_str()).await.unwrap();
        assert_eq!(status.status.name, "n1");
        assert_eq!(client.leader(), Some(node.id));
        assert_eq!(client.endpoints(), std::slice::from_ref(&node.address));

        let calls = node.calls();
        assert_eq!(
            node.methods(),
            [
                "range",
                "open_session",
                "put",
                "delete_range",
                "move_leader",
                "status"
            ]
        );
        let Request::Range(range) = &calls[0].call.request else {
            panic!("{:?}", calls[0]);
        };
        assert_eq!(range.range, KeyRange::Until(Bytes::from_static(b"z")));
        assert_eq!((range.limit, range.keys_only), (5, true));
        assert_eq!(calls[0].call.consistency, Consistency::LeaseOnly);
        assert_eq!(calls[0].call.session, None);
        let told = calls[0].call.timeout_ms;
        assert!((1..20_000).contains(&told), "the deadline travels: {told}");
        let session = calls[2].call.session.unwrap();
        assert_eq!((session.id, session.sequence), (SessionId(40), 1));
        let session = calls[3].call.session.unwrap();
        assert_eq!((session.sequence, session.acknowledged), (2, 1));
        assert_eq!(node.connections.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn what_is_too_large_or_empty_is_refused_without_being_sent() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let empty = client.get("", None).await.unwrap_err();
        assert_eq!(empty.kind, ErrorKind::InvalidArgument);
        let large = client.put("k", vec![0; 2 << 20], None).await.unwrap_err();
        assert!(matches!(large.kind, ErrorKind::RequestTooLarge { .. }));
        assert_eq!(large.outcome, Outcome::NotApplied);
        assert!(node.calls().is_empty());
    });
}

#[test]
fn a_thousand_requests_share_one_connection_and_few_writes() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        client.get("warm", None).await.unwrap();
        node.gate.shut();
        let before = node.writes.load(Ordering::SeqCst);
        let begun: Arc<AtomicUsize> = Arc::default();
        let tasks: Vec<_> = (0..1000)
            .map(|n| {
                let (client, begun) = (client.clone(), begun.clone());
                tokio::spawn(async move {
                    let key = format!("key {n}");
                    begun.fetch_add(1, Ordering::SeqCst);
                    let found = client.get(&key, None).await.unwrap();
                    assert_eq!(found.value().unwrap(), &format!("value of {key}"));
                })
            })
            .collect();
        while begun.load(Ordering::SeqCst) < 1000 {
            tokio::task::yield_now().await;
        }
        node.gate.open();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(node.connections.load(Ordering::SeqCst), 1);
        // What the fake wrote mirrors what it read at one time: requests came in batches.
        let writes = node.writes.load(Ordering::SeqCst) - before;
        assert!(writes < 500, "{writes} writes for 1000 requests");
    });
}

#[test]
fn replies_find_their_requests_in_whatever_order_they_come() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| {
            if number % 2 == 0 {
                Reaction::AfterNext(Box::new(answer("n1", frame)))
            } else {
                reply(answer("n1", frame))
            }
        });
        let client = connect(&authority, &[&node]).await;
        for _ in 0..20 {
            let (a, b) = tokio::join!(client.get("a", None), client.get("b", None));
            assert_eq!(a.unwrap().value().unwrap(), "value of a");
            assert_eq!(b.unwrap().value().unwrap(), "value of b");
        }
    });
}

#[test]
fn a_dropped_request_disturbs_no_other_and_its_late_reply_finds_nobody() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| {
            if number == 0 {
                Reaction::AfterNext(Box::new(answer("n1", frame)))
            } else {
                reply(answer("n1", frame))
            }
        });
        let client = connect(&authority, &[&node]).await;
        let dropped = {
            let client = client.clone();
            tokio::spawn(async move { client.get("dropped", None).await })
        };
        // One that is dropped before it was sent never is.
        while node.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        for key in ["x", "y", "z"] {
            let found = client.get(key, None).await.unwrap();
            assert_eq!(found.value().unwrap(), &format!("value of {key}"));
        }
    });
}

// ---- finding the leader ----------------------------------------------------------------------

#[test]
fn the_leader_is_found_by_the_hint_and_kept() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n2", healthy("n2"));
        let hint = (leader.id, leader.address.clone());
        let follower = fake(&authority, "n1", move |_, _| {
            not_leader(Some((hint.0, &hint.1)))
        });
        // The leader is not among the endpoints: the hint alone leads there.
        let client = connect(&authority, &[&follower]).await;
        client.get("k", None).await.unwrap();
        // Once, and again for as long as it takes the leader to answer the first call.
        let asked = follower.calls().len();
        for _ in 0..4 {
            client.get("k", None).await.unwrap();
        }
        assert_eq!(follower.calls().len(), asked);
        assert_eq!(leader.calls().len(), 5);
        assert_eq!(client.leader(), Some(leader.id));
    });
}

#[test]
fn the_first_read_goes_to_the_leader_that_the_welcome_named() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n2", healthy("n2"));
        let follower = fake(&authority, "n1", |_, _| not_leader(None));
        let named = |address: &str| KnownLeader {
            id: leader.id,
            address: Some(address.to_owned()),
        };
        follower.said.leads(named(&leader.address));
        let client = connect(&authority, &[&follower]).await;
        assert_eq!(client.leader(), Some(leader.id));
        client.get("k", None).await.unwrap();
        assert_eq!(follower.methods(), [""; 0]);
        assert_eq!(leader.methods()[0], "range");
        // One that is not there hides nobody.
        let elsewhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        follower
            .said
            .leads(named(&elsewhere.local_addr().unwrap().to_string()));
        let client = connect(&authority, &[&follower, &leader]).await;
        client.get("k", None).await.unwrap();
        assert_eq!(client.leader(), Some(leader.id));
    });
}

#[test]
fn without_a_hint_the_endpoints_are_tried_in_turn() {
    run(async {
        let authority = Authority::new();
        let first = fake(&authority, "n1", |_, _| not_leader(None));
        let second = fake(&authority, "n2", |_, _| refuse(ErrorKind::NoLeader));
        let third = fake(&authority, "n3", healthy("n3"));
        let client = connect(&authority, &[&first, &second, &third]).await;
        client.put("k", "v", None).await.unwrap();
        assert_eq!(client.leader(), Some(third.id));
        client.put("k", "v", None).await.unwrap();
        assert_eq!(third.methods(), ["open_session", "put", "put"]);
    });
}

#[test]
fn a_hint_to_an_address_that_cannot_be_reached_does_not_hide_the_leader() {
    run(async {
        let authority = Authority::new();
        // Followers advertise an address for the leader that leads nowhere from here.
        let elsewhere = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dead = elsewhere.local_addr().unwrap().to_string();
        let leader = fake(&authority, "n3", healthy("n3"));
        let leader_id = leader.id;
        let (to, also_to) = (dead.clone(), dead);
        let first = fake(&authority, "n1", move |_, _| {
            not_leader(Some((leader_id, &to)))
        });
        let second = fake(&authority, "n2", move |_, _| {
            not_leader(Some((leader_id, &also_to)))
        });
        let client = connect(&authority, &[&first, &second, &leader]).await;
        client.get("k", None).await.unwrap();
        assert_eq!(leader.calls().len(), 1);
        client.get("k", None).await.unwrap();
        assert_eq!(leader.calls().len(), 2, "and is believed from then on");
    });
}

#[test]
fn one_reachable_endpoint_is_enough_to_connect() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dead = silent.local_addr().unwrap().to_string();
        let endpoints = [dead, "127.0.0.1:1".into(), node.address.clone()];
        let client = Client::connect(endpoints, Some(options(&authority)))
            .await
            .unwrap();
        client.get("k", None).await.unwrap();
    });
}

#[test]
fn a_cluster_that_cannot_be_reached_or_trusted_says_so() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let dead = silent.local_addr().unwrap().to_string();
        let quick = |authority: &Authority| {
            options(authority).with_connect_timeout(Duration::from_millis(300))
        };
        let connect = |endpoint: String, options: ConnectOptions| async move {
            Client::connect([endpoint], Some(options))
                .await
                .unwrap_err()
        };
        let error = connect(dead.clone(), quick(&authority)).await;
        assert_eq!(error.kind, ErrorKind::ConnectFailed);
        assert!(error.detail.contains(&dead), "{error}");
        assert_eq!(error.outcome, Outcome::NotApplied);

        let error = connect(node.address.clone(), options(&Authority::new())).await;
        assert_eq!(error.kind, ErrorKind::TlsHandshake, "{error}");

        // Our authority trusts the server, but the server does not know our certificate's.
        let issued = Authority::new().issue(&PeerIdentity::client(CLUSTER, "x"));
        let untrusted = options(&authority).with_tls(
            TlsOptions::new()
                .ca_pem(authority.pem())
                .identity_pem(issued.certificate, issued.key),
        );
        let error = connect(node.address.clone(), untrusted).await;
        assert_eq!(error.kind, ErrorKind::TlsHandshake, "{error}");
        assert!(error.detail.contains("authority"), "{error}");

        let error = Client::connect(["n1:7400"], None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        let none: [&str; 0] = [];
        let error = Client::connect(none, Some(options(&authority)))
            .await
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
    });
}

#[test]
fn without_a_runtime_connecting_is_an_error_and_no_panic() {
    let authority = Authority::new();
    let connecting = Client::connect(["n1:7400"], Some(options(&authority)));
    let mut connecting = std::pin::pin!(connecting);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(result) = connecting.as_mut().poll(&mut context) else {
        panic!("there is nothing to wait for");
    };
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.detail.contains("tokio"), "{error}");
}

#[test]
fn status_asks_the_node_that_was_named_and_no_other() {
    run(async {
        let authority = Authority::new();
        let first = fake(&authority, "n1", healthy("n1"));
        let second = fake(&authority, "n2", healthy("n2"));
        let client = connect(&authority, &[&first]).await;
        let status = client.status(second.address.clone()).await.unwrap();
        assert_eq!(status.status.name, "n2");
        assert!(first.calls().is_empty());
    });
}

// ---- trouble on the way ----------------------------------------------------------------------

#[test]
fn a_write_that_was_cut_off_is_sent_again_with_the_same_number() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| {
            if number == 1 {
                Reaction::Cut
            } else {
                reply(answer("n1", frame))
            }
        });
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        let calls = node.calls();
        assert_eq!(node.methods(), ["open_session", "put", "put"]);
        assert_eq!(calls[1].call.session, calls[2].call.session);
        assert_eq!(calls[1].call.session.unwrap().sequence, 1);
        assert_eq!(node.connections.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_write_without_number_that_was_cut_off_is_unknown_and_not_sent_again() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, _| Reaction::Cut);
        let client = connect_with(&[&node], options(&authority).with_exactly_once(false)).await;
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConnectionLost);
        assert_eq!(error.outcome, Outcome::Unknown);
        assert_eq!(node.methods(), ["put"]);
        assert_eq!(node.calls()[0].call.session, None);
    });
}

#[test]
fn no_write_without_number_is_sent_again_once_its_outcome_is_unknown() {
    run(async {
        let authority = Authority::new();
        let lease = LeaseRef::id(9);
        let put = PutRequest {
            key: "k".into(),
            ..PutRequest::default()
        };
        let grant = LeaseGrantRequest {
            ttl_ms: 1000,
            ..LeaseGrantRequest::default()
        };
        let delete = DeleteRangeRequest {
            key: "k".into(),
            ..DeleteRangeRequest::default()
        };
        let writes = [
            Request::Put(put.clone()),
            Request::DeleteRange(delete),
            Request::Txn(TxnRequest::create("k", "v")),
            Request::Compact(CompactionRequest::at(3)),
            Request::LeaseGrant(grant.clone()),
            Request::LeaseRevoke(lease),
            Request::LeaseUpdateTtl {
                lease,
                ttl_ms: 2000,
            },
            Request::PutWithNewLease(grant, put),
        ];
        type Say = fn() -> Reaction;
        let cut: Say = || Reaction::Cut;
        let moved: Say = || reply(Err(Error::unknown(ErrorKind::LeaderChanged, "moved")));
        for request in writes {
            assert!(request.is_write(), "{request:?}");
            for say in [cut, moved] {
                let node = fake(&authority, "n1", move |_, _| say());
                let options = options(&authority).with_exactly_once(false);
                let client = connect_with(&[&node], options).await;
                let asked = client.call(request.clone(), Consistency::default()).await;
                assert_eq!(asked.unwrap_err().outcome, Outcome::Unknown);
                assert_eq!(node.methods(), [request.method()]);
                assert_eq!(node.calls()[0].call.session, None);
            }
        }
    });
}

#[test]
fn a_write_without_number_that_was_certainly_refused_is_sent_again() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| match number {
            0 => refuse(ErrorKind::NoLeader),
            1 => refuse(ErrorKind::SlowDown { retry_after_ms: 1 }),
            _ => reply(answer("n1", frame)),
        });
        let client = connect_with(&[&node], options(&authority).with_exactly_once(false)).await;
        client.put("k", "v", None).await.unwrap();
        assert_eq!(node.methods(), ["put", "put", "put"]);
    });
}

#[test]
fn leadership_lost_under_a_write_is_retried_only_if_the_write_has_a_number() {
    run(async {
        let authority = Authority::new();
        let changed = |number: usize, frame: &ClientFrame| {
            let first_write = frame.call.request.is_write()
                && !matches!(frame.call.request, Request::OpenSession)
                && number < 2;
            if first_write {
                reply(Err(Error::unknown(ErrorKind::LeaderChanged, "moved")))
            } else {
                reply(answer("n1", frame))
            }
        };
        let node = fake(&authority, "n1", changed);
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        assert_eq!(node.methods(), ["open_session", "put", "put"]);

        let node = fake(&authority, "n1", changed);
        let client = connect_with(&[&node], options(&authority).with_exactly_once(false)).await;
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::LeaderChanged);
        assert_eq!(error.outcome, Outcome::Unknown);
        assert_eq!(node.methods(), ["put"]);
    });
}

#[test]
fn an_error_never_says_less_than_the_attempts_before_it() {
    run(async {
        let authority = Authority::new();
        // The first attempt may have been applied; the second is certainly refused.
        let node = fake(&authority, "n1", |number, frame| match number {
            0 => reply(answer("n1", frame)),
            1 => reply(Err(Error::unknown(ErrorKind::LeaderChanged, "moved"))),
            _ => refuse(ErrorKind::NoSpace { used: 2, quota: 1 }),
        });
        let client = connect(&authority, &[&node]).await;
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoSpace { used: 2, quota: 1 });
        assert_eq!(error.outcome, Outcome::Unknown);

        // The same refusal alone is certain, and a read is never applied.
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(error.outcome, Outcome::NotApplied);
    });
}

#[test]
fn a_deadline_that_passes_says_whether_the_request_may_have_been_applied() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| match &frame.call.request {
            Request::OpenSession => reply(answer("n1", frame)),
            Request::Put(put) if put.key == "answered" => reply(answer("n1", frame)),
            _ => Reaction::Ignore,
        });
        let client = connect(&authority, &[&node]).await;
        let short = Duration::from_millis(100);
        // Where the machine is busy elsewhere, its time may be over before it arrives.
        while node.calls().is_empty() {
            let read = client
                .get("k", Some(GetOptions::new().with_timeout(short)))
                .await
                .unwrap_err();
            assert_eq!(read.kind, ErrorKind::DeadlineExceeded);
            assert_eq!(read.outcome, Outcome::NotApplied);
        }
        assert!(node.calls()[0].call.timeout_ms <= 100);
        // A long one first, so that the session is open whatever the machine's speed.
        client.put("answered", "v", None).await.unwrap();
        let write = client
            .put("k", "v", Some(PutOptions::new().with_timeout(short)))
            .await
            .unwrap_err();
        assert_eq!(write.kind, ErrorKind::DeadlineExceeded);
        let is_it = |request: &Request| matches!(request, Request::Put(put) if put.key == "k");
        let has_arrived = node.calls().iter().any(|frame| is_it(&frame.call.request));
        // What has not arrived may be on its way, or never have left.
        if has_arrived {
            assert_eq!(write.outcome, Outcome::Unknown);
        } else {
            assert_ne!(write.outcome, Outcome::Applied);
        }
    });
}

#[test]
fn a_server_that_asks_to_slow_down_is_asked_again_later_with_the_last_cause_kept() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| {
            if number == 0 {
                refuse(ErrorKind::SlowDown { retry_after_ms: 20 })
            } else {
                reply(answer("n1", frame))
            }
        });
        let client = connect(&authority, &[&node]).await;
        client.get("k", None).await.unwrap();
        assert_eq!(node.calls().len(), 2);

        let busy = fake(&authority, "n1", |_, _| {
            refuse(ErrorKind::SlowDown {
                retry_after_ms: 60_000,
            })
        });
        let client = connect(&authority, &[&busy]).await;
        // It would take longer than there is time: said at once, with the server's words.
        let error = client.get("k", None).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::SlowDown { .. }), "{error}");
        assert!(error.detail.contains("the fake says no"), "{error}");
        assert_eq!(busy.calls().len(), 1);
    });
}

#[test]
fn a_malformed_reply_ends_the_connection_and_the_request_is_made_again() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |number, frame| {
            if number == 0 {
                Reaction::Garbage
            } else {
                reply(answer("n1", frame))
            }
        });
        let client = connect(&authority, &[&node]).await;
        let found = client.get("k", None).await.unwrap();
        assert_eq!(found.value().unwrap(), "value of k");
        assert_eq!(node.connections.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_reply_to_another_request_is_an_error_and_not_an_answer() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| {
            let mut response = answer("n1", frame).unwrap();
            response.body = ResponseBody::MoveLeader;
            reply(Ok(response))
        });
        let client = connect(&authority, &[&node]).await;
        let error = client.get("k", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
    });
}

#[test]
fn a_node_that_falls_silent_is_left_for_another_before_the_deadline() {
    run_watching_for_silence(async {
        let authority = Authority::new();
        // The first node's socket is taken away under its connections: nothing comes from there
        // any more, not even a goodbye.
        let front = Relay::start().await;
        let dying = fake(&authority, "n1", healthy("n1"));
        front.leads_to(&dying.address);
        let second = fake(&authority, "n2", healthy("n2"));
        let endpoints = [front.address.clone(), second.address.clone()];
        // Less than the ten seconds after which the connection would be given up anyway.
        let options = options(&authority).with_timeout(Duration::from_secs(8));
        let client = Client::connect(endpoints, Some(options)).await.unwrap();
        // The second may have answered first; of those that are connected, the first is asked.
        let pool = client.inner.router.pool();
        let linked = pool.link(&front.address, deadline_after(PATIENCE)).await;
        linked.unwrap();
        let first = client.get("k", None).await.unwrap();
        assert_eq!(first.header.member_id, dying.id);
        front.cut();
        let waiting = [(); 16].map(|()| {
            let client = client.clone();
            tokio::spawn(async move { client.get("k", None).await })
        });
        for next in waiting {
            let next = next.await.unwrap().unwrap();
            assert_eq!(next.header.member_id, second.id);
        }
        // One silence, however many heard it.
        assert_eq!(pool.strikes(&front.address), 1);
        let write = client.put("k", "v", None).await.unwrap();
        assert_eq!(write.header.member_id, second.id);
    });
}

#[test]
fn a_client_that_was_closed_fails_at_once_and_so_do_its_clones() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, _| Reaction::Ignore);
        let client = connect(&authority, &[&node]).await;
        let waiting = {
            let client = client.clone();
            tokio::spawn(async move { client.get("k", None).await })
        };
        while node.calls().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.close().await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConnectionLost);
        let error = client.clone().put("k", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ConnectionLost);
        assert_eq!(error.outcome, Outcome::NotApplied);
        assert_eq!(node.methods(), ["range"]);
    });
}

#[test]
fn a_policy_without_retries_makes_one_attempt() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, _| refuse(ErrorKind::NoLeader));
        let client = connect_with(
            &[&node],
            options(&authority).with_retry(RetryPolicy::never()),
        )
        .await;
        let error = client.get("k", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NoLeader);
        assert_eq!(node.calls().len(), 1);
    });
}
