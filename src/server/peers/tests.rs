use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::raft::{Append, Entry, Envelope, Heartbeat, Message, Payload, RoundId};
use crate::server::peers::hub::Hub;
use crate::server::peers::{PeerHandler, PeerInfo, Peers, PeersConfig, PeersError, Roster};
use crate::server::threads::queue::{Overflow, StreamQueue};
use crate::transport::testing::Authority;
use crate::transport::{
    Admission, BindError, CloseCode, Connection, ConnectionLost, Endpoint, FrameSender,
    FrameStream, HandshakeFailure, Port, StreamError, Tls, TransportStats,
};
use crate::types::{BootstrapId, ClusterId, Incarnation, LogId, LogIndex, NodeId, Term};
use crate::wire::client::ClientHello;
use crate::wire::peer::{PeerHello, Raft};
use crate::wire::{Body, FrameLimits, Kind, PROTOCOL_VERSIONS, VersionRange, encode};

const CLUSTER: ClusterId = ClusterId(0xabc0_0000_0000_0000_0000_0000_0000_0001);
const LIMITS: FrameLimits = FrameLimits::DEFAULT;
/// Long enough for a slow machine; reached only by a test that is about to fail.
const PATIENCE: Duration = Duration::from_secs(120);

fn localhost() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn id_of(name: &str) -> NodeId {
    id_in(name, 0)
}

fn id_in(name: &str, incarnation: u64) -> NodeId {
    NodeId::derive(CLUSTER, name, Incarnation(incarnation))
}

fn heartbeat(from: &str, to: &str, round: u64) -> Envelope {
    Envelope {
        from: id_of(from),
        to: id_of(to),
        term: Term(1),
        message: Message::Heartbeat(beat(round)),
    }
}

fn beat(round: u64) -> Heartbeat {
    Heartbeat {
        round: RoundId(round),
        promise: Duration::from_millis(500),
        commit: LogIndex(0),
        fresh: None,
    }
}

fn append(from: &str, to: &str, round: u64, bytes: usize) -> Envelope {
    Envelope {
        message: Message::Append(Append {
            heartbeat: beat(round),
            base: LogId::default(),
            base_checksum: None,
            entries: vec![Entry {
                id: LogId::new(LogIndex(1), Term(1)),
                payload: Payload::Command(Bytes::from(vec![b'x'; bytes])),
            }],
        }),
        ..heartbeat(from, to, round)
    }
}

fn round_of(envelope: &Envelope) -> u64 {
    match &envelope.message {
        Message::Heartbeat(heartbeat) => heartbeat.round.0,
        Message::Append(append) => append.heartbeat.round.0,
        other => panic!("unexpected {other:?}"),
    }
}

/// Records what arrives; can be told to hold the peers' thread up.
struct Recorder {
    messages: Mutex<mpsc::Sender<Envelope>>,
    connects: AtomicUsize,
    disconnects: AtomicUsize,
    other_bootstraps: Mutex<Vec<(String, BootstrapId)>>,
    held: Mutex<bool>,
    released: Condvar,
}

impl Recorder {
    fn new() -> (Arc<Self>, mpsc::Receiver<Envelope>) {
        let (sender, receiver) = mpsc::channel();
        let recorder = Self {
            messages: Mutex::new(sender),
            connects: AtomicUsize::new(0),
            disconnects: AtomicUsize::new(0),
            other_bootstraps: Mutex::default(),
            held: Mutex::new(false),
            released: Condvar::new(),
        };
        (Arc::new(recorder), receiver)
    }

    fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.released.notify_all();
    }
}

impl PeerHandler for Recorder {
    fn on_message(&self, envelope: Envelope) {
        let _ = self.messages.lock().unwrap().send(envelope);
        let mut held = self.held.lock().unwrap();
        while *held {
            held = self.released.wait(held).unwrap();
        }
    }
    fn on_connected(&self, _: &PeerInfo) {
        self.connects.fetch_add(1, Ordering::SeqCst);
    }
    fn on_other_bootstrap(&self, peer: &str, theirs: BootstrapId) {
        let mut others = self.other_bootstraps.lock().unwrap();
        others.push((peer.to_owned(), theirs));
    }
    fn on_disconnected(&self, _: NodeId) {
        self.disconnects.fetch_add(1, Ordering::SeqCst);
    }
}

struct Node {
    peers: Peers,
    recorder: Arc<Recorder>,
    messages: mpsc::Receiver<Envelope>,
    stats: Arc<TransportStats>,
    bootstrap: Arc<OnceLock<BootstrapId>>,
}

fn config(tls: Tls, peers: &[(&str, String)]) -> PeersConfig {
    PeersConfig {
        bind: localhost(),
        node_id: id_of(tls.identity().name()),
        tls,
        incarnation: Incarnation(0),
        peer_address: String::new(),
        client_address: "client:1".into(),
        etcd_url: String::new(),
        roster: Roster::of_addresses(
            peers
                .iter()
                .map(|(name, address)| ((*name).to_string(), address.clone())),
        ),
        limits: LIMITS,
        admission: Admission::DEFAULT,
        bootstrap: Arc::default(),
        seed: seed(),
    }
}

fn seed() -> u64 {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed) as u64
}

fn start(config: PeersConfig) -> Node {
    try_start(config).unwrap()
}

fn try_start(config: PeersConfig) -> Result<Node, PeersError> {
    let (recorder, messages) = Recorder::new();
    let stats = Arc::new(TransportStats::default());
    let handler: Arc<dyn PeerHandler> = Arc::clone(&recorder) as Arc<dyn PeerHandler>;
    let bootstrap = config.bootstrap.clone();
    let peers = Peers::start(config, handler, Arc::clone(&stats))?;
    Ok(Node {
        peers,
        recorder,
        messages,
        stats,
        bootstrap,
    })
}

impl Node {
    fn address(&self) -> String {
        self.peers.local_address().to_string()
    }

    fn next(&self) -> Envelope {
        self.messages.recv_timeout(PATIENCE).expect("a message")
    }

    fn until_connected(&self, count: usize) {
        eventually("all are connected", || {
            self.peers.connected().len() == count
        });
    }

    fn other_bootstraps(&self) -> Vec<(String, BootstrapId)> {
        self.recorder.other_bootstraps.lock().unwrap().clone()
    }

    fn failed(&self, reason: HandshakeFailure) -> u64 {
        self.stats.handshakes_failed(Port::Peer, reason)
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never came true: {what}");
}

// ---- real peers ------------------------------------------------------------------------------

#[test]
fn members_find_each_other_and_exchange_messages() {
    let authority = Authority::new();
    let a = start(config(
        authority.node(CLUSTER, "a"),
        &[("b", "127.0.0.1:1".into())],
    ));
    let b = start(config(authority.node(CLUSTER, "b"), &[("a", a.address())]));
    a.until_connected(1);
    b.until_connected(1);
    for round in 0..50 {
        a.peers.send(heartbeat("a", "b", round));
        b.peers.send(heartbeat("b", "a", round));
    }
    for round in 0..50 {
        assert_eq!(b.next(), heartbeat("a", "b", round));
        assert_eq!(a.next(), heartbeat("b", "a", round));
    }
    assert_eq!(a.peers.stats().sent(), 50);
    assert_eq!(b.peers.stats().received(), 50);
    let known = b.peers.find(id_of("a")).unwrap();
    assert_eq!(known.name, "a");
    assert_eq!(known.peer_address, a.address());
    assert_eq!(known.client_address, "client:1");
    assert_eq!(b.peers.connected(), vec![known]);
}

#[test]
fn a_message_to_nobody_is_dropped_and_counted() {
    let authority = Authority::new();
    let a = start(config(authority.node(CLUSTER, "a"), &[]));
    a.peers.send(heartbeat("a", "b", 1));
    assert_eq!(a.peers.stats().dropped_unconnected(), 1);
    assert_eq!(a.peers.find(id_of("b")), None);
}

#[test]
fn members_that_all_call_at_once_end_with_one_connection_for_each_pair() {
    let authority = Authority::new();
    let names = ["a", "b", "c", "d"];
    let nodes: Vec<Node> = names
        .iter()
        .map(|name| start(config(authority.node(CLUSTER, name), &[])))
        .collect();
    // Who the others are, all hear at once: before, none has a port that could be told.
    let address = |(name, node): (&&str, &Node)| ((*name).to_string(), node.address());
    let roster = Roster::of_addresses(names.iter().zip(&nodes).map(address));
    for node in &nodes {
        node.peers.set_roster(roster.clone());
    }
    for node in &nodes {
        node.until_connected(3);
    }
    eventually("the second ones are closed", || {
        nodes
            .iter()
            .all(|node| node.stats.connections(Port::Peer) == 3)
    });
    // They carry messages, each pair both ways, and stay what they are while they do.
    let settled: Vec<usize> = nodes
        .iter()
        .map(|node| node.recorder.connects.load(Ordering::SeqCst))
        .collect();
    for round in 0..20 {
        for (from, node) in names.iter().zip(&nodes) {
            for to in names.iter().filter(|to| *to != from) {
                node.peers.send(heartbeat(from, to, round));
            }
        }
        for node in &nodes {
            for _ in 0..3 {
                assert_eq!(round_of(&node.next()), round);
            }
        }
    }
    for (node, settled) in nodes.iter().zip(settled) {
        assert_eq!(node.stats.connections(Port::Peer), 3);
        assert_eq!(node.recorder.connects.load(Ordering::SeqCst), settled);
        assert_eq!(node.recorder.disconnects.load(Ordering::SeqCst), 0);
        assert_eq!(node.peers.stats().dropped_unconnected(), 0);
    }
}

#[test]
fn a_member_that_comes_back_at_another_port_is_found_again() {
    let authority = Authority::new();
    let a = start(config(
        authority.node(CLUSTER, "a"),
        &[("b", "127.0.0.1:1".into())],
    ));
    let b = start(config(authority.node(CLUSTER, "b"), &[("a", a.address())]));
    a.until_connected(1);
    b.until_connected(1);
    let old = b.address();
    // Keeps the old port taken, so that the new one is another for certain.
    b.peers.stop();
    let _taken = std::net::UdpSocket::bind(old.parse::<SocketAddr>().unwrap()).unwrap();
    let b = start(config(authority.node(CLUSTER, "b"), &[("a", a.address())]));
    assert_ne!(b.address(), old);
    b.until_connected(1);
    eventually("a knows the new address", || {
        a.peers
            .find(id_of("b"))
            .is_some_and(|info| info.peer_address == b.address())
            && !a.peers.connected().is_empty()
    });
    a.peers.send(heartbeat("a", "b", 7));
    assert_eq!(round_of(&b.next()), 7);
}

#[test]
fn an_address_that_was_learned_is_called_when_the_configured_one_is_dead() {
    let authority = Authority::new();
    // B knows nothing of A but will answer; A has a wrong address for B, until B's first call.
    let a = start(config(
        authority.node(CLUSTER, "a"),
        &[("b", "127.0.0.1:1".into())],
    ));
    let b_tls = authority.node(CLUSTER, "b");
    let first = start(config(b_tls.clone(), &[("a", a.address())]));
    a.until_connected(1);
    let bind = first.peers.local_address();
    first.peers.stop();
    // Back at the same port, but now B cannot call A: it is A that must find B, by what it learned.
    let mut again = None;
    eventually("nobody else has the port", || {
        let config = PeersConfig {
            bind,
            ..config(b_tls.clone(), &[("a", "127.0.0.1:1".into())])
        };
        again = match try_start(config) {
            Ok(b) => Some(b),
            Err(PeersError::Bind(BindError::InUse { .. })) => None,
            Err(other) => panic!("{other}"),
        };
        again.is_some()
    });
    let b = again.unwrap();
    b.until_connected(1);
    b.peers.send(heartbeat("b", "a", 3));
    assert_eq!(round_of(&a.next()), 3);
}

#[test]
fn nobody_is_told_to_call_every_address() {
    let authority = Authority::new();
    let hello_at = |local: &str, advertised: &str| {
        let (recorder, _messages) = Recorder::new();
        let config = PeersConfig {
            peer_address: advertised.into(),
            ..config(authority.node(CLUSTER, "a"), &[("b", "b:1".into())])
        };
        let hub = Hub::new(config, local.parse().unwrap(), recorder);
        hub.calling_hello("b").unwrap().peer_address
    };
    assert_eq!(hello_at("10.0.0.1:7401", ""), "10.0.0.1:7401");
    assert_eq!(hello_at("0.0.0.0:7401", ""), "");
    assert_eq!(hello_at("[::]:7401", ""), "");
    assert_eq!(hello_at("0.0.0.0:7401", "n1:7401"), "n1:7401");
}

#[test]
fn a_heartbeat_overtakes_a_backlog_of_entries() {
    const APPENDS: u64 = 160;
    let authority = Authority::new();
    let a = start(config(
        authority.node(CLUSTER, "a"),
        &[("b", "127.0.0.1:1".into())],
    ));
    let b = start(config(authority.node(CLUSTER, "b"), &[("a", a.address())]));
    a.until_connected(1);
    b.until_connected(1);
    // B takes the first message and then nothing more: a backlog of 10 MB builds up behind it.
    b.recorder.hold(true);
    for round in 0..APPENDS {
        a.peers.send(append("a", "b", round, 64 << 10));
    }
    let first = b.next();
    assert_eq!(round_of(&first), 0);
    a.peers.send(heartbeat("a", "b", 1_000_000));
    b.recorder.hold(false);
    let mut before = 1;
    while round_of(&b.next()) != 1_000_000 {
        before += 1;
    }
    assert!(before < APPENDS, "it came last of all");
    for _ in before..APPENDS {
        assert!(round_of(&b.next()) < APPENDS);
    }
    assert_eq!(a.peers.stats().dropped_bulk(), 0);
}

#[test]
fn what_is_said_last_still_arrives() {
    let authority = Authority::new();
    let b = start(config(
        authority.node(CLUSTER, "b"),
        &[("a", "127.0.0.1:1".into())],
    ));
    let a = start(config(authority.node(CLUSTER, "a"), &[("b", b.address())]));
    a.until_connected(1);
    // From here on somebody reads what A sends: what comes together with the end of its connection finds a
    // reader, however late B's thread looks.
    a.peers.send(heartbeat("a", "b", 0));
    assert_eq!(b.next(), heartbeat("a", "b", 0));
    a.peers.send(Envelope {
        message: Message::Release,
        ..heartbeat("a", "b", 0)
    });
    a.peers.stop();
    assert_eq!(b.next().message, Message::Release);
    eventually("b has noticed", || b.peers.connected().is_empty());
    assert_eq!(b.recorder.disconnects.load(Ordering::SeqCst), 1);
}

#[test]
fn starting_with_a_foreign_certificate_or_a_taken_port_says_what_is_wrong() {
    let authority = Authority::new();
    let a = start(config(authority.node(CLUSTER, "a"), &[]));
    let attempt = |config| {
        let (recorder, _messages) = Recorder::new();
        // From inside a runtime, as the server does it.
        run(async { Peers::start(config, recorder, Arc::default()).unwrap_err() })
    };
    let foreign = PeersConfig {
        node_id: id_of("b"),
        ..config(authority.node(CLUSTER, "a"), &[])
    };
    assert!(matches!(
        attempt(foreign),
        PeersError::ForeignIdentity { .. }
    ));
    let taken = PeersConfig {
        bind: a.peers.local_address(),
        ..config(authority.node(CLUSTER, "a"), &[])
    };
    assert!(matches!(
        attempt(taken),
        PeersError::Bind(BindError::InUse { .. })
    ));
    let client = PeersConfig {
        node_id: id_of("c"),
        ..config(authority.client(CLUSTER, "c"), &[])
    };
    assert!(matches!(
        attempt(client),
        PeersError::Bind(BindError::WrongKind { .. })
    ));
}

// ---- peers that misbehave --------------------------------------------------------------------

/// A member written by hand: says whatever the test wants it to say.
struct Fake {
    endpoint: Endpoint,
    name: String,
}

impl Fake {
    fn new(tls: &Tls) -> Self {
        let stats = Arc::new(TransportStats::default());
        let endpoint = Endpoint::listen(
            localhost(),
            Port::Peer,
            tls,
            LIMITS,
            Admission::DEFAULT,
            stats,
        )
        .unwrap();
        Self {
            endpoint,
            name: tls.identity().name().to_string(),
        }
    }

    fn hello(&self, sequence: u64) -> PeerHello {
        PeerHello {
            versions: PROTOCOL_VERSIONS,
            cluster_id: CLUSTER,
            node_id: id_of(&self.name),
            name: self.name.clone(),
            incarnation: Incarnation(0),
            peer_address: String::new(),
            client_address: String::new(),
            etcd_url: String::new(),
            boot: 4711,
            sequence,
            bootstrap: None,
        }
    }

    async fn connect(&self, node: &Node) -> Connection {
        self.endpoint
            .connect(node.peers.local_address())
            .await
            .unwrap()
    }

    /// Says `hello` and returns what came of it.
    async fn say(
        &self,
        node: &Node,
        hello: &PeerHello,
    ) -> (Connection, Result<PeerHello, ConnectionLost>) {
        let connection = self.connect(node).await;
        let mut stream = connection.open_stream().await.unwrap();
        let answer = exchange(&mut stream, hello).await;
        (connection, answer)
    }

    /// A connection at work, with a stream for messages.
    async fn at_work(&self, node: &Node, sequence: u64) -> (Connection, FrameSender) {
        let (connection, answer) = self.say(node, &self.hello(sequence)).await;
        answer.unwrap();
        let sender = connection.open_sender(0).await.unwrap();
        (connection, sender)
    }
}

async fn exchange(
    stream: &mut FrameStream,
    hello: &PeerHello,
) -> Result<PeerHello, ConnectionLost> {
    stream.write(encoded(hello)).await.unwrap();
    let mut frames = Vec::new();
    match stream.read_batch(&mut frames).await {
        Ok(()) => Ok(stream.receiver.decode(&frames[0]).unwrap()),
        Err(StreamError::Lost(lost)) => Err(lost),
        Err(other) => panic!("{other}"),
    }
}

fn encoded<T: Body>(body: &T) -> Bytes {
    let mut out = BytesMut::new();
    encode(body, &LIMITS, &mut out).unwrap();
    out.freeze()
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() })
}

/// Node `a`, which expects `b` at a place where nobody is.
fn lonely(authority: &Authority) -> Node {
    start(config(
        authority.node(CLUSTER, "a"),
        &[("b", "127.0.0.1:1".into())],
    ))
}

#[test]
fn a_hello_that_does_not_fit_the_certificate_is_refused_and_counted() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let good = fake.hello(1);
        let cases = [
            (
                PeerHello {
                    cluster_id: ClusterId(9),
                    ..good.clone()
                },
                CloseCode::Cluster,
                HandshakeFailure::Cluster,
            ),
            (
                PeerHello {
                    name: "c".into(),
                    node_id: id_of("c"),
                    ..good.clone()
                },
                CloseCode::Identity,
                HandshakeFailure::Identity,
            ),
            (
                PeerHello {
                    node_id: NodeId(1),
                    ..good.clone()
                },
                CloseCode::Identity,
                HandshakeFailure::Identity,
            ),
            (
                PeerHello {
                    versions: VersionRange {
                        oldest: 700,
                        newest: 701,
                    },
                    ..good.clone()
                },
                CloseCode::Version,
                HandshakeFailure::Version,
            ),
        ];
        let mut counted = BTreeMap::new();
        for (hello, code, failure) in cases {
            let (_connection, answer) = fake.say(&node, &hello).await;
            assert_eq!(answer, Err(ConnectionLost::Closed(code)), "{hello:?}");
            *counted.entry(failure).or_insert(0) += 1;
            eventually("it is counted", || {
                node.failed(failure) == counted[&failure]
            });
            assert!(node.peers.connected().is_empty());
        }
        assert!(fake.say(&node, &good).await.1.is_ok());
        // The cluster agrees on what the release of this member does not know.
        node.peers.require_version(good.versions.newest + 1);
        let again = PeerHello {
            boot: good.boot + 1,
            ..good.clone()
        };
        let (_connection, answer) = fake.say(&node, &again).await;
        assert_eq!(answer, Err(ConnectionLost::Closed(CloseCode::Version)));
        let newer = PeerHello {
            versions: VersionRange {
                oldest: good.versions.oldest,
                newest: good.versions.newest + 1,
            },
            ..again
        };
        assert!(fake.say(&node, &newer).await.1.is_ok());
    });
}

#[test]
fn members_of_different_bootstraps_refuse_each_other() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let of = |bootstrap, sequence| PeerHello {
            bootstrap,
            ..fake.hello(sequence)
        };
        let (ours, other) = (BootstrapId(1), BootstrapId(2));
        // It knows of none yet, and hears of the other before it learns which one is its own.
        let (early, answer) = fake.say(&node, &of(Some(other), 1)).await;
        assert_eq!(answer.unwrap().bootstrap, None);
        node.bootstrap.set(ours).unwrap();
        let refused = ConnectionLost::Closed(CloseCode::Bootstrap);
        let (_again, answer) = fake.say(&node, &of(Some(other), 2)).await;
        assert_eq!(answer, Err(refused.clone()));
        eventually("it is counted", || {
            node.failed(HandshakeFailure::Cluster) == 1
        });
        node.peers.part_from_other_bootstraps();
        assert_eq!(early.lost().await, refused);
        eventually("it is gone", || node.peers.connected().is_empty());
        assert_eq!(node.other_bootstraps(), [("b".to_owned(), other)]);
        assert!(node.peers.connected().is_empty());
        // One that has lost everything, or is new; and one of its own.
        for (theirs, sequence) in [(None, 3), (Some(ours), 4)] {
            let (connection, answer) = fake.say(&node, &of(theirs, sequence)).await;
            assert_eq!(answer.unwrap().bootstrap, Some(ours));
            node.peers.part_from_other_bootstraps();
            assert!(!connection.is_lost());
        }
    });
}

#[test]
fn a_node_of_the_cluster_that_is_not_configured_is_refused() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let not_member = Fake::new(&authority.node(CLUSTER, "z"));
        let (_connection, answer) = not_member.say(&node, &not_member.hello(1)).await;
        assert_eq!(answer, Err(ConnectionLost::Closed(CloseCode::Identity)));
        eventually("it is counted", || {
            node.failed(HandshakeFailure::Identity) == 1
        });
    });
}

#[test]
fn a_node_of_a_wrong_authority_is_refused_and_counted() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let foreign = Authority::new();
        let issued = foreign.issue(&crate::transport::PeerIdentity::node(CLUSTER, "b"));
        // It trusts us; we do not trust it.
        let tls = Tls::from_pem(
            authority.pem().as_bytes(),
            issued.certificate.as_bytes(),
            issued.key.as_bytes(),
        )
        .unwrap();
        let fake = Fake::new(&tls);
        // It may think for a moment that it is through: TLS 1.3 judges the caller last.
        if let Ok(connection) = fake.endpoint.connect(node.peers.local_address()).await {
            assert!(matches!(connection.lost().await, ConnectionLost::Tls(_)));
        }
        eventually("it is counted", || node.failed(HandshakeFailure::Tls) == 1);
        assert!(node.peers.connected().is_empty());
    });
}

#[test]
fn only_the_newest_incarnation_of_a_member_is_heard() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let (old, answer) = fake.say(&node, &fake.hello(1)).await;
        answer.unwrap();
        let newer = PeerHello {
            incarnation: Incarnation(1),
            node_id: id_in("b", 1),
            boot: 4712,
            ..fake.hello(1)
        };
        let (_new, answer) = fake.say(&node, &newer).await;
        answer.unwrap();
        assert_eq!(
            old.lost().await,
            ConnectionLost::Closed(CloseCode::Duplicate)
        );
        assert_eq!(
            node.peers.find(id_of("b")),
            None,
            "the older one is forgotten"
        );
        assert!(node.peers.find(id_in("b", 1)).is_some());
        let (_again, answer) = fake.say(&node, &fake.hello(9)).await;
        assert_eq!(answer, Err(ConnectionLost::Closed(CloseCode::Outdated)));
    });
}

#[test]
fn of_two_calls_of_one_process_the_later_one_stays_however_they_arrive() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let (first, _sender) = fake.at_work(&node, 5).await;
        let (_late, answer) = fake.say(&node, &fake.hello(4)).await;
        assert_eq!(answer, Err(ConnectionLost::Closed(CloseCode::Duplicate)));
        let (_second, mut sender) = fake.at_work(&node, 6).await;
        assert_eq!(
            first.lost().await,
            ConnectionLost::Closed(CloseCode::Duplicate)
        );
        let raft = Raft {
            envelopes: vec![heartbeat("b", "a", 1)],
        };
        sender.write(encoded(&raft)).await.unwrap();
        assert_eq!(round_of(&node.next()), 1);
        assert_eq!(node.recorder.disconnects.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn messages_of_or_for_someone_else_cost_the_connection_and_do_not_reach_the_core() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let wrong = [heartbeat("c", "a", 1), heartbeat("b", "c", 1)];
        for (count, envelope) in wrong.into_iter().enumerate() {
            let (connection, mut sender) = fake.at_work(&node, count as u64 + 1).await;
            let raft = Raft {
                envelopes: vec![envelope],
            };
            sender.write(encoded(&raft)).await.unwrap();
            assert_eq!(
                connection.lost().await,
                ConnectionLost::Closed(CloseCode::Identity)
            );
            assert_eq!(node.peers.stats().misaddressed(), count as u64 + 1);
        }
        assert!(node.messages.try_recv().is_err());
    });
}

#[test]
fn bad_bytes_cost_the_connection_are_counted_and_nothing_else_falls() {
    run(async {
        let authority = Authority::new();
        let node = lonely(&authority);
        let fake = Fake::new(&authority.node(CLUSTER, "b"));
        let mut oversized = (LIMITS.raft_bytes_max as u32 + 1).to_le_bytes().to_vec();
        oversized.push(Kind::Raft as u8);
        let mut flipped = encoded(&Raft {
            envelopes: vec![heartbeat("b", "a", 1)],
        })
        .to_vec();
        *flipped.last_mut().unwrap() ^= 1;
        let client_hello = ClientHello {
            versions: PROTOCOL_VERSIONS,
            cluster_id: CLUSTER,
            name: "c".into(),
        };
        let bad: Vec<Bytes> = vec![
            Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"),
            oversized.into(),
            flipped.into(),
            encoded(&client_hello),
            // A hello where messages belong.
            encoded(&fake.hello(1)),
        ];
        for (count, bytes) in (1..).zip(bad) {
            let (connection, mut sender) = fake.at_work(&node, count).await;
            sender.write(bytes).await.unwrap();
            assert_eq!(
                connection.lost().await,
                ConnectionLost::Closed(CloseCode::Malformed)
            );
            assert_eq!(node.stats.malformed_frames(Port::Peer), count);
        }
        // The same instead of a hello.
        let connection = fake.connect(&node).await;
        let mut stream = connection.open_stream().await.unwrap();
        stream.write(Bytes::from(vec![0xff; 2000])).await.unwrap();
        assert_eq!(
            connection.lost().await,
            ConnectionLost::Closed(CloseCode::Malformed)
        );
        assert_eq!(node.stats.malformed_frames(Port::Peer), 6);
        assert!(node.messages.try_recv().is_err());

        let (_connection, mut sender) = fake.at_work(&node, 100).await;
        let raft = Raft {
            envelopes: vec![heartbeat("b", "a", 8), heartbeat("b", "a", 9)],
        };
        sender.write(encoded(&raft)).await.unwrap();
        assert_eq!(round_of(&node.next()), 8);
        assert_eq!(round_of(&node.next()), 9);
    });
}

#[test]
fn whoever_answers_in_the_place_of_another_is_refused() {
    run(async {
        let authority = Authority::new();
        // Where A expects B, C answers.
        let impostor = Fake::new(&authority.node(CLUSTER, "c"));
        let address = impostor.endpoint.local_address().unwrap().to_string();
        let node = start(config(authority.node(CLUSTER, "a"), &[("b", address)]));
        let accepting = impostor.endpoint.accept().await.unwrap();
        let connection = accepting.establish().await.unwrap();
        assert_eq!(
            connection.lost().await,
            ConnectionLost::Closed(CloseCode::Identity)
        );
        eventually("it is counted", || {
            node.failed(HandshakeFailure::Identity) >= 1
        });
    });
}

// ---- the queue -------------------------------------------------------------------------------

#[test]
fn a_full_lane_drops_the_end_that_is_worth_less() {
    let control = StreamQueue::new(2, Overflow::DropOldest);
    let bulk = StreamQueue::new(2, Overflow::DropNewest);
    for (queue, worth_less) in [(&control, 1), (&bulk, 3)] {
        assert_eq!(queue.push(heartbeat("a", "b", 1)), None);
        assert_eq!(queue.push(heartbeat("a", "b", 2)), None);
        let dropped = queue.push(heartbeat("a", "b", 3)).unwrap();
        assert_eq!(round_of(&dropped), worth_less);
    }
    let rounds =
        |queue: &StreamQueue| -> Vec<u64> { queue.take_now(9).iter().map(round_of).collect() };
    assert_eq!(rounds(&control), [2, 3]);
    assert_eq!(rounds(&bulk), [1, 2]);
    assert!(rounds(&control).is_empty());
}

#[test]
fn a_stream_queue_wakes_whoever_waits_for_it_to_fill_or_to_empty() {
    run(async {
        let queue = Arc::new(StreamQueue::new(8, Overflow::DropOldest));
        queue.drained().await;
        let taker = {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.take(8).await })
        };
        tokio::task::yield_now().await;
        assert_eq!(queue.push(heartbeat("a", "b", 1)), None);
        assert_eq!(taker.await.unwrap().len(), 1);
        queue.push(heartbeat("a", "b", 2));
        let waiter = {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { queue.drained().await })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        queue.take_now(1);
        waiter.await.unwrap();
    });
}
