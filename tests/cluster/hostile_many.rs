//! Very many who mean no good, from very many addresses, beside clients who do.
//!
//! A few dozen in `cargo test`; `HOSTILE_CONNECTIONS=10000` for as many as it takes. What honest clients
//! feel of it is printed, not asserted; that every one of their requests is served is asserted, and that
//! nothing of the strangers is left behind.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leasehold::client::Client;
use quinn::crypto::rustls::QuicClientConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::harness::{Cluster, eventually, setting};

const ALPN: &[u8] = b"leasehold/1";
/// How many are at it at the same time.
const AT_ONCE: usize = 200;
/// How long each of them stays, if it is let.
const STAY: Duration = Duration::from_secs(3);

/// What a stranger does.
#[derive(Clone, Copy, Debug)]
enum Malice {
    /// Begins a handshake, and hears nothing of what it is answered.
    HalfOpen,
    /// Goes through the handshake a second at a time, and then says nothing.
    Slow,
    /// Sends bytes that are no QUIC.
    Garbage,
    /// Has a certificate, and announces a frame of four gigabytes.
    Oversized,
    /// Speaks another protocol.
    WrongProtocol,
}

const ALL: [Malice; 5] = [
    Malice::HalfOpen,
    Malice::Slow,
    Malice::Garbage,
    Malice::Oversized,
    Malice::WrongProtocol,
];

/// What strangers need.
struct Strangers {
    target: SocketAddr,
    ours: quinn::ClientConfig,
    other: quinn::ClientConfig,
}

fn client_config(cluster: &Cluster, alpn: &[u8]) -> quinn::ClientConfig {
    let file = |name: &str| cluster.pki.file(name);
    let mut roots = rustls::RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(Path::new(&file("client-ca.pem"))).unwrap();
    roots.add(authority).unwrap();
    let chain = CertificateDer::pem_file_iter(file("stranger.pem")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(file("stranger.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

/// One of sixteen million addresses of this machine; each /24 has a few of them.
fn address_of(number: usize) -> SocketAddr {
    let octet = |divisor: usize| u8::try_from(number / divisor % 250).unwrap() + 1;
    SocketAddr::from((Ipv4Addr::new(127, 1 + octet(2_500), octet(10), octet(1)), 0))
}

impl Strangers {
    async fn act(&self, number: usize) {
        let from = address_of(number);
        match ALL[number % ALL.len()] {
            Malice::HalfOpen => self.through_a_relay(from, None).await,
            Malice::Slow => {
                let delay = Duration::from_millis(1000);
                self.through_a_relay(from, Some(delay)).await;
            }
            Malice::Garbage => {
                let socket = UdpSocket::bind(from).await.unwrap();
                for length in [1, 21, 1200, 1400] {
                    let noise: Vec<u8> = (0..length)
                        .map(|at| (at * 131 + length * 7 + number) as u8 | 0xc0)
                        .collect();
                    // Nobody may be there to take it.
                    let _ = socket.send_to(&noise, self.target).await;
                }
            }
            Malice::Oversized => {
                let endpoint = quinn::Endpoint::client(from).unwrap();
                let call = endpoint.connect_with(self.ours.clone(), self.target, "localhost");
                let Ok(Ok(connection)) = tokio::time::timeout(STAY, call.unwrap()).await else {
                    return;
                };
                if let Ok((mut sender, _receiver)) = connection.open_bi().await {
                    let _ = sender.write_all(&[0xff; 4000]).await;
                    let _ = tokio::time::timeout(STAY, connection.closed()).await;
                }
            }
            Malice::WrongProtocol => {
                let endpoint = quinn::Endpoint::client(from).unwrap();
                let call = endpoint.connect_with(self.other.clone(), self.target, "localhost");
                let end = tokio::time::timeout(STAY, call.unwrap()).await;
                assert!(!matches!(end, Ok(Ok(_))), "it was let in");
            }
        }
    }

    /// Connects by way of `from`, where answers are held up for `delay`, or lost.
    async fn through_a_relay(&self, from: SocketAddr, delay: Option<Duration>) {
        let relay = UdpSocket::bind(from).await.unwrap();
        let through = relay.local_addr().unwrap();
        let endpoint = quinn::Endpoint::client(SocketAddr::from((from.ip(), 0))).unwrap();
        let call = endpoint.connect_with(self.ours.clone(), through, "localhost");
        let carried = async {
            let mut datagram = vec![0; 2000];
            let mut caller = None;
            loop {
                let (length, sender) = relay.recv_from(&mut datagram).await.unwrap();
                if sender != self.target {
                    caller = Some(sender);
                    let _ = relay.send_to(&datagram[..length], self.target).await;
                } else if let (Some(delay), Some(caller)) = (delay, caller) {
                    tokio::time::sleep(delay).await;
                    let _ = relay.send_to(&datagram[..length], caller).await;
                }
            }
        };
        let connected = async {
            // A connection that is made is kept, and says no hello.
            let connection = call.unwrap().await;
            tokio::time::sleep(STAY).await;
            drop(connection);
        };
        tokio::select! {
            () = connected => {}
            () = carried => {}
            () = tokio::time::sleep(STAY) => {}
        }
    }
}

/// How long requests took, the shortest first.
fn spread(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    format!(
        "{} requests, p50 {:?}, p99 {:?}, longest {:?}",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

/// Puts and gets until `over`; every one of them is served.
async fn honest(client: Client, number: usize, over: Arc<AtomicBool>) -> Vec<Duration> {
    let mut took = Vec::new();
    let mut turn = 0;
    while !over.load(Ordering::Relaxed) {
        let (key, value) = (format!("honest{number}"), format!("{turn}"));
        let began = Instant::now();
        client.put(key.clone(), value.clone(), None).await.unwrap();
        took.push(began.elapsed());
        let began = Instant::now();
        let found = client.get(key.clone(), None).await.unwrap();
        took.push(began.elapsed());
        assert_eq!(found.value().unwrap(), value.as_str());
        turn += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_by_the_thousand_are_borne_and_leave_nothing_behind() {
    let count = usize::try_from(setting("HOSTILE_CONNECTIONS", 60)).unwrap();
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    // They have a certificate, and not that of the others: those keep their places.
    cluster.pki.issue("--client", "stranger", &[]);
    let resident = |cluster: &Cluster| {
        cluster.nodes[leader].metric("process_resident_memory_bytes") / f64::from(1 << 20)
    };
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(cluster.client().await);
    }
    let serve = |over: &Arc<AtomicBool>| {
        let mut serving = JoinSet::new();
        for (number, client) in clients.iter().enumerate() {
            serving.spawn(honest(client.clone(), number, over.clone()));
        }
        serving
    };

    let over = Arc::new(AtomicBool::new(false));
    let serving = serve(&over);
    tokio::time::sleep(Duration::from_secs(2)).await;
    over.store(true, Ordering::Relaxed);
    let alone = serving.join_all().await.concat();
    let before = resident(&cluster);

    let over = Arc::new(AtomicBool::new(false));
    let serving = serve(&over);
    let strangers = Arc::new(Strangers {
        target: cluster.nodes[leader].client,
        ours: client_config(&cluster, ALPN),
        other: client_config(&cluster, b"h3"),
    });
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let gone = Arc::new(AtomicUsize::new(0));
    let mut acting = JoinSet::new();
    let began = Instant::now();
    for number in 0..count {
        let place = places.clone().acquire_owned().await.unwrap();
        let (strangers, gone) = (strangers.clone(), gone.clone());
        acting.spawn(async move {
            strangers.act(number).await;
            gone.fetch_add(1, Ordering::Relaxed);
            drop(place);
        });
    }
    acting.join_all().await;
    let took = began.elapsed();
    // Somebody new is let in beside them, and after them.
    let late = cluster.client().await;
    late.put("late", "v", None).await.unwrap();
    over.store(true, Ordering::Relaxed);
    let beside = serving.join_all().await.concat();
    let after = resident(&cluster);
    assert_eq!(gone.load(Ordering::Relaxed), count);

    eprintln!("honest clients alone:          {}", spread(alone));
    eprintln!("beside {count} strangers ({took:.1?}): {}", spread(beside));
    eprintln!("resident memory of the leader: {before:.0} MiB before, {after:.0} MiB after");
    let node = &cluster.nodes[leader];
    for result in ["alpn", "timeout", "hello", "limit", "tls", "other"] {
        let series =
            format!("leasehold_quic_handshakes_total{{kind=\"client\",result=\"{result}\"}}");
        eprintln!(
            "handshakes that ended as {result}: {}",
            node.metric(&series)
        );
    }
    eprintln!(
        "asked to prove their address: {}, not answered: {}",
        node.metric("leasehold_quic_retries_total"),
        node.metric("leasehold_quic_ignored_total")
    );
    let of_others = "leasehold_quic_handshakes_total{kind=\"client\",result=\"alpn\"}";
    assert!(node.metric(of_others) > 0.0, "other protocols are counted");
    eventually("the strangers' connections to be gone", || {
        let open = node.metric("leasehold_quic_connections{kind=\"client\"}");
        (open <= (clients.len() + 1) as f64).then_some(())
    });
}
