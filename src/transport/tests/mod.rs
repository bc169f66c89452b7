mod ports;
mod traffic;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::task::JoinHandle;

use crate::api::{Call, Consistency, ErrorKind, Request};
use crate::transport::testing::{Authority, IssuedCertificate, Says};
use crate::transport::{
    Admission, BindError, ClientConnection, ClientListener, CloseCode, ConnectError, Connection,
    ConnectionLost, Endpoint, FrameStream, HandshakeFailure, IdentityError, ListenerConfig,
    PeerIdentity, Port, SpiffeError, SpiffeUsers, StreamError, Tls, TlsError, TlsPaths,
    TransportStats, resolve,
};
use crate::types::{ClusterId, NodeId};
use crate::wire::client::{ClientFrame, ClientHello, ServerHello};
use crate::wire::{FrameLimits, Kind, PROTOCOL_VERSIONS, VersionRange, encode};

const CLUSTER: ClusterId = ClusterId(0xabc0_0000_0000_0000_0000_0000_0000_0001);
const LIMITS: FrameLimits = FrameLimits::DEFAULT;
/// Long enough for a slow machine; reached only by a test that is about to fail.
const PATIENCE: Duration = Duration::from_secs(120);

fn localhost() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() })
}

/// A node's endpoint that takes everyone in whom the handshake lets through, and hands them out.
struct Host {
    address: SocketAddr,
    stats: Arc<TransportStats>,
    connections: tokio::sync::mpsc::UnboundedReceiver<Connection>,
    _task: JoinHandle<()>,
}

fn host(port: Port, tls: &Tls, admission: Admission) -> Host {
    let stats = Arc::new(TransportStats::default());
    let endpoint = Endpoint::listen(
        localhost(),
        port,
        tls,
        LIMITS,
        admission,
        Arc::clone(&stats),
    )
    .unwrap();
    let address = endpoint.local_address().unwrap();
    let (sender, connections) = tokio::sync::mpsc::unbounded_channel();
    let task = tokio::spawn(async move {
        while let Some(accepting) = endpoint.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                if let Ok(connection) = accepting.establish().await {
                    let _ = sender.send(connection);
                }
            });
        }
    });
    Host {
        address,
        stats,
        connections,
        _task: task,
    }
}

/// An endpoint that calls on `port` with `tls`, whatever that certificate is for.
fn caller(port: Port, tls: &Tls) -> Endpoint {
    let stats = Arc::new(TransportStats::default());
    match port {
        Port::Client => Endpoint::client(tls, LIMITS, stats).unwrap(),
        Port::Peer => {
            Endpoint::listen(localhost(), port, tls, LIMITS, Admission::DEFAULT, stats).unwrap()
        }
    }
}

/// Waits for a counter that another task raises.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never came true: {what}");
}

/// Waits until so many handshakes failed; more may, as a call that waits too long is made again.
async fn failed(stats: &TransportStats, port: Port, reason: HandshakeFailure, times: u64) {
    eventually("that many handshakes failed for this reason", || {
        stats.handshakes_failed(port, reason) >= times
    })
    .await;
}

/// An answer would have ended the call, which is given up here; it may have given up by itself.
async fn has_no_answer(call: JoinHandle<Result<Connection, ConnectError>>) {
    if !call.is_finished() {
        return call.abort();
    }
    let ended = call.await.unwrap();
    let has_given_up = matches!(ended, Err(ConnectError::Timeout { .. }));
    assert!(has_given_up, "{ended:?}");
}

// ---- certificates and keys -------------------------------------------------------------------

fn write(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

fn paths(directory: &Path, ca: &str, issued: &IssuedCertificate) -> TlsPaths {
    TlsPaths {
        ca: write(directory, "ca.pem", ca),
        certificate: write(directory, "n.pem", &issued.certificate),
        key: write(directory, "n.key", &issued.key),
        crl: None,
    }
}

#[test]
fn each_way_in_which_the_files_are_wrong_has_its_own_error() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let identity = PeerIdentity::node(CLUSTER, "n1");
    let good = authority.issue(&identity);
    let all = paths(directory.path(), &authority.pem(), &good);
    let tls = Tls::load(&all).unwrap();
    assert_eq!(tls.identity(), &identity);
    assert!(tls.expires_at_unix_seconds() > 4_000_000_000);
    assert!(!format!("{tls:?}").contains("PRIVATE"));

    let missing = TlsPaths {
        ca: directory.path().join("nowhere.pem"),
        ..all.clone()
    };
    assert!(matches!(Tls::load(&missing), Err(TlsError::Missing { .. })));
    let unreadable = TlsPaths {
        ca: directory.path().to_path_buf(),
        ..all.clone()
    };
    assert!(matches!(
        Tls::load(&unreadable),
        Err(TlsError::Unreadable { .. })
    ));
    for field in 0..3 {
        let empty = write(directory.path(), "empty", "nothing here\n");
        let mut bad = all.clone();
        *[&mut bad.ca, &mut bad.certificate, &mut bad.key][field] = empty;
        assert!(
            matches!(Tls::load(&bad), Err(TlsError::NotPem { .. })),
            "field {field}"
        );
    }
    for mode in [0o640, 0o604, 0o660] {
        fs::set_permissions(&all.key, fs::Permissions::from_mode(mode)).unwrap();
        let error = Tls::load(&all).unwrap_err();
        assert!(matches!(error, TlsError::KeyExposed { .. }), "{mode:o}");
        assert!(error.to_string().contains("chmod 600"));
    }
    fs::set_permissions(&all.key, fs::Permissions::from_mode(0o400)).unwrap();
    assert!(Tls::load(&all).is_ok());
    let other_key = TlsPaths {
        key: write(
            directory.path(),
            "other.key",
            &authority.issue(&identity).key,
        ),
        ..all.clone()
    };
    assert!(matches!(
        Tls::load(&other_key),
        Err(TlsError::KeyMismatch { .. })
    ));
}

#[test]
fn a_node_whose_own_certificate_others_would_refuse_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let good = authority.issue(&PeerIdentity::node(CLUSTER, "n1"));
    for port in [Port::Client, Port::Peer] {
        let files = paths(directory.path(), &authority.pem(), &good);
        assert!(Tls::load_of_node(&files, port).is_ok());
        let both = authority.pem() + &other.pem();
        assert!(Tls::load_of_node(&paths(directory.path(), &both, &good), port).is_ok());
        let files = paths(directory.path(), &other.pem(), &good);
        let error = Tls::load_of_node(&files, port).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("another authority signed it"), "{said}");
        assert!(said.contains("n.pem") && said.contains("ca.pem"), "{said}");
    }
}

#[test]
fn a_certificate_out_of_its_time_or_with_the_wrong_names_is_refused_at_start() {
    let authority = Authority::new();
    let ca = authority.pem();
    let uri = PeerIdentity::node(CLUSTER, "n1").to_string();
    let other = PeerIdentity::client(CLUSTER, "c1").to_string();
    let dns = format!("{CLUSTER}.leasehold.internal");
    let load = |uris: &[&str], dns: &[&str], years| {
        let issued = authority.issue_with(uris, dns, years);
        Tls::from_pem(
            ca.as_bytes(),
            issued.certificate.as_bytes(),
            issued.key.as_bytes(),
        )
    };
    let now = (2020, 2100);
    assert!(load(&[&uri], &[&dns], now).is_ok());
    assert!(matches!(
        load(&[&uri], &[&dns], (2001, 2002)),
        Err(TlsError::Expired { .. })
    ));
    assert!(matches!(
        load(&[&uri], &[&dns], (2090, 2091)),
        Err(TlsError::NotYetValid { .. })
    ));
    let identity_error = |result: Result<Tls, TlsError>| match result {
        Err(TlsError::Identity { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        identity_error(load(&[], &[&dns], now)),
        IdentityError::Missing
    );
    assert_eq!(
        identity_error(load(&["https://n1"], &[&dns], now)),
        IdentityError::Missing
    );
    assert_eq!(
        identity_error(load(&[&uri, &other], &[&dns], now)),
        IdentityError::Ambiguous
    );
    assert!(matches!(
        identity_error(load(&["leasehold://x/node/n1"], &[&dns], now)),
        IdentityError::Malformed(_)
    ));
    assert!(matches!(
        load(&[&uri], &[], now),
        Err(TlsError::NoServerName { .. })
    ));
    assert!(
        load(&[&other], &[], now).is_ok(),
        "clients are not addressed by name"
    );
}

/// A certificate whose alternative names are these bytes (DER).
fn certificate_with_names(names: &[u8]) -> Vec<u8> {
    let mut params = rcgen::CertificateParams::default();
    let names = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], names.to_vec());
    params.custom_extensions.push(names);
    let key = rcgen::KeyPair::generate().unwrap();
    params.self_signed(&key).unwrap().der().to_vec()
}

#[test]
fn a_spiffe_id_is_a_client_s_only_name_and_never_overlooked() {
    let authority = Authority::new();
    let users = SpiffeUsers {
        trust_domain: "example.org".to_owned(),
        rules: vec!["/sa/*=prod/*".parse().unwrap()],
    };
    let of = |uris: &[&str]| {
        let issued = authority.issue_with(uris, &["a.example.org"], (2020, 2100));
        let (_, pem) = x509_parser::pem::parse_x509_pem(issued.certificate.as_bytes()).unwrap();
        PeerIdentity::of_client(&pem.contents, CLUSTER, Some(&users))
    };
    let spiffe = |result: Result<PeerIdentity, IdentityError>| match result {
        Err(IdentityError::Spiffe(error)) => *error,
        other => panic!("{other:?}"),
    };
    let ours = PeerIdentity::client(CLUSTER, "c1");
    let id = "spiffe://example.org/sa/web";
    let found = of(&[id]).unwrap();
    assert_eq!((found.name(), found.to_string().as_str()), ("prod/web", id));
    assert!(!found.is_node() && found.cluster_id == CLUSTER);
    assert_eq!(of(&[&ours.to_string()]), Ok(ours.clone()));
    assert_eq!(of(&["https://example.org/"]), Err(IdentityError::Missing));
    for several in [
        [id, id],
        [id, &ours.to_string()],
        [&ours.to_string(), id],
        [id, "https://example.org/"],
        ["https://example.org/", "SPIFFE://x"],
    ] {
        assert_eq!(spiffe(of(&several)), SpiffeError::SeveralNames(2));
    }
    for (bad, wanted) in [
        ("spiffe://example.com/sa/web", "another trust domain"),
        (
            "spiffe://example.org/sb/web",
            "no entry of tls.spiffe.users",
        ),
        ("spiffe://example.org/sa/../web", "segment"),
        ("spiffe://example.org:443/sa/web", "port"),
        ("Spiffe://example.org/sa/web", "does not begin"),
        ("spiffe:example", "does not begin"),
    ] {
        let said = spiffe(of(&[bad])).to_string();
        assert!(said.contains(wanted), "{bad}: {said}");
    }
    // One URI name that is no text; and names that are no list at all.
    for names in [
        &b"\x30\x0a\x86\x08spiffe:\xff"[..],
        b"\x30\x7f\x86",
        b"\x05\x00",
    ] {
        let der = certificate_with_names(names);
        let found = PeerIdentity::of_client(&der, CLUSTER, Some(&users));
        assert_eq!(spiffe(found), SpiffeError::UnreadableNames, "{names:?}");
    }
}

// ---- who may connect where -------------------------------------------------------------------

#[test]
fn of_all_certificates_only_the_right_one_gets_in_at_each_port() {
    run(async {
        let ours = Authority::new();
        let foreign = Authority::new();
        let other_cluster = ClusterId(77);
        let identities = |cluster| {
            [
                PeerIdentity::node(cluster, "n2"),
                PeerIdentity::client(cluster, "c1"),
            ]
        };
        for port in Port::ALL {
            let mut host = host(port, &ours.node(CLUSTER, "n1"), Admission::DEFAULT);
            for authority in [&ours, &foreign] {
                for cluster in [CLUSTER, other_cluster] {
                    for identity in identities(cluster) {
                        let right = std::ptr::eq(authority, &ours)
                            && cluster == CLUSTER
                            && identity.is_node() == (port == Port::Peer);
                        // The caller trusts our authority, so that only the host decides.
                        let issued = authority.issue(&identity);
                        let tls = Tls::from_pem(
                            ours.pem().as_bytes(),
                            issued.certificate.as_bytes(),
                            issued.key.as_bytes(),
                        )
                        .unwrap();
                        let (_endpoint, connecting) = raw_call(&tls, port, host.address, |_| {});
                        // A TLS 1.3 client may think it is through before the server has judged.
                        let connection = connecting.await;
                        if right {
                            let connection = connection.unwrap();
                            let arrived = host.connections.recv().await.unwrap();
                            assert_eq!(arrived.identity(), &identity);
                            assert!(!arrived.dialled());
                            connection.close(0_u32.into(), b"");
                        } else if let Ok(connection) = connection {
                            connection.closed().await;
                        }
                        assert!(host.connections.try_recv().is_err());
                    }
                }
            }
            let stats = &host.stats;
            failed(stats, port, HandshakeFailure::Tls, 4).await;
            failed(stats, port, HandshakeFailure::Cluster, 2).await;
            failed(stats, port, HandshakeFailure::Identity, 1).await;
            assert_eq!(stats.handshakes_ok(port), 1);
        }
    });
}

/// A call with quinn itself: to be ruder than our own endpoint can be.
fn raw_call(
    tls: &Tls,
    port: Port,
    address: SocketAddr,
    change: impl FnOnce(&mut rustls::ClientConfig),
) -> (quinn::Endpoint, quinn::Connecting) {
    let mut config = tls.client_config(port).unwrap();
    change(&mut config);
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    let endpoint = quinn::Endpoint::client(localhost()).unwrap();
    let name = format!("{CLUSTER}.leasehold.internal");
    let connecting = endpoint
        .connect_with(quinn::ClientConfig::new(Arc::new(crypto)), address, &name)
        .unwrap();
    (endpoint, connecting)
}

#[test]
fn the_caller_refuses_a_host_of_a_wrong_authority_cluster_or_kind() {
    run(async {
        let ours = Authority::new();
        let client = caller(Port::Client, &ours.client(CLUSTER, "c1"));
        let connect = |tls: Tls| {
            let client = client.clone();
            async move {
                let host = host(Port::Client, &tls, Admission::DEFAULT);
                client.connect(host.address).await
            }
        };
        let node = ours.node(CLUSTER, "n1");
        let connection = connect(node).await.unwrap();
        assert_eq!(connection.identity(), &PeerIdentity::node(CLUSTER, "n1"));
        assert!(connection.dialled());

        let foreign = connect(Authority::new().node(CLUSTER, "n1")).await;
        assert!(
            matches!(&foreign, Err(error @ ConnectError::Tls { .. })
                if error.failure() == HandshakeFailure::Tls),
            "{foreign:?}"
        );
        // Our authority, our server name, but the identity of another cluster.
        let impostor = PeerIdentity::node(ClusterId(9), "n1").to_string();
        let nine = format!("{}.leasehold.internal", ClusterId(9));
        let dns = format!("{CLUSTER}.leasehold.internal");
        let issued = ours.issue_with(&[&impostor], &[&dns, &nine], (2020, 2100));
        let tls = Tls::from_pem(
            ours.pem().as_bytes(),
            issued.certificate.as_bytes(),
            issued.key.as_bytes(),
        )
        .unwrap();
        let error = connect(tls).await.unwrap_err();
        assert_eq!(error.failure(), HandshakeFailure::Cluster, "{error}");
        // Another cluster altogether: already its server name is not the one that was asked for.
        let error = connect(ours.node(ClusterId(9), "n1")).await.unwrap_err();
        assert_eq!(error.failure(), HandshakeFailure::Tls, "{error}");
    });
}

#[test]
fn certificates_for_the_wrong_end_are_refused_before_a_port_is_opened() {
    run(async {
        let authority = Authority::new();
        let stats = Arc::new(TransportStats::default());
        let client = authority.client(CLUSTER, "c1");
        let node = authority.node(CLUSTER, "n1");
        let listened = Endpoint::listen(
            localhost(),
            Port::Peer,
            &client,
            LIMITS,
            Admission::DEFAULT,
            Arc::clone(&stats),
        );
        assert!(matches!(listened, Err(BindError::WrongKind { .. })));
        let called = Endpoint::client(&node, LIMITS, stats);
        assert!(matches!(called, Err(BindError::WrongKind { .. })));
    });
}

#[test]
fn ports_do_not_answer_to_each_others_protocol_nor_to_none() {
    run(async {
        let authority = Authority::new();
        let node = authority.node(CLUSTER, "n1");
        for port in Port::ALL {
            let host = host(port, &node, Admission::DEFAULT);
            let wrong: [&[&[u8]]; 4] = [
                &[match port {
                    Port::Peer => b"leasehold/1",
                    Port::Client => b"leasehold-peer/1",
                }],
                &[b"leasehold/2"],
                &[b"h3"],
                &[],
            ];
            for protocols in wrong {
                let (_endpoint, connecting) = raw_call(&node, port, host.address, |config| {
                    config.alpn_protocols = protocols.iter().map(|p| p.to_vec()).collect();
                });
                assert!(connecting.await.is_err(), "{port:?} {protocols:?}");
            }
            assert_eq!(host.stats.handshakes_ok(port), 0);
            failed(&host.stats, port, HandshakeFailure::Alpn, 4).await;
        }
        let peer = host(Port::Peer, &node, Admission::DEFAULT);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        let error = client.connect(peer.address).await.unwrap_err();
        assert!(matches!(error, ConnectError::Alpn { .. }), "{error}");
    });
}

#[test]
fn no_connection_resumes_another_even_for_a_client_that_would_like_to() {
    run(async {
        let authority = Authority::new();
        let client = authority.client(CLUSTER, "c1");
        let mut host = host(
            Port::Client,
            &authority.node(CLUSTER, "n1"),
            Admission::DEFAULT,
        );
        let mut config = client.client_config(Port::Client).unwrap();
        config.resumption = rustls::client::Resumption::in_memory_sessions(16);
        config.enable_early_data = true;
        let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
        let config = quinn::ClientConfig::new(Arc::new(crypto));
        let endpoint = quinn::Endpoint::client(localhost()).unwrap();
        let name = format!("{CLUSTER}.leasehold.internal");
        for _ in 0..3 {
            let connecting = endpoint
                .connect_with(config.clone(), host.address, &name)
                .unwrap();
            let connecting = connecting.into_0rtt().err().expect("no ticket to use");
            let connection = connecting.await.unwrap();
            let arrived = host.connections.recv().await.unwrap();
            // Give a ticket, were there one, the time to arrive: a whole round trip.
            let (mut stream, _) = connection.open_bi().await.unwrap();
            stream.write_all(b"x").await.unwrap();
            let _ = arrived.accept_stream().await.unwrap();
            connection.close(0_u32.into(), b"");
            assert!(matches!(
                arrived.lost().await,
                ConnectionLost::Closed(CloseCode::Done)
            ));
        }
        assert_eq!(host.stats.handshakes_ok(Port::Client), 3);
    });
}

#[test]
fn datagrams_and_one_way_streams_of_clients_are_not_taken() {
    run(async {
        let authority = Authority::new();
        let client = authority.client(CLUSTER, "c1");
        let mut host = host(
            Port::Client,
            &authority.node(CLUSTER, "n1"),
            Admission::DEFAULT,
        );
        let (_endpoint, connecting) = raw_call(&client, Port::Client, host.address, |_| {});
        let connection = connecting.await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
        assert_eq!(connection.max_datagram_size(), None);
        let opened = tokio::time::timeout(Duration::from_millis(200), connection.open_uni()).await;
        assert!(opened.is_err(), "the server admits no such stream");
    });
}

// ---- how many --------------------------------------------------------------------------------

#[test]
fn one_identity_cannot_take_all_connections() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            per_identity_max: 2,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let first = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        let second = caller(Port::Client, &authority.client(CLUSTER, "c2"));
        let mut kept = Vec::new();
        for _ in 0..2 {
            kept.push(first.connect(host.address).await.unwrap());
            kept.push(host.connections.recv().await.unwrap());
        }
        // The third is closed by the host, right after the handshake.
        let third = first.connect(host.address).await;
        let lost = match third {
            Ok(third) => third.lost().await,
            Err(ConnectError::Lost { lost, .. }) => lost,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(lost, ConnectionLost::Closed(CloseCode::Busy));
        failed(&host.stats, Port::Client, HandshakeFailure::Limit, 1).await;
        second.connect(host.address).await.unwrap();
        drop(host.connections.recv().await.unwrap());
        // A seat comes back with the end of its connection.
        kept.clear();
        eventually("the host has noticed", || {
            host.stats.connections(Port::Client) == 0
        })
        .await;
        let again = first.connect(host.address).await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
        assert!(!again.is_lost());
    });
}

#[test]
fn one_address_cannot_take_all_connections() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            per_address_max: 1,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        let _first = client.connect(host.address).await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
        assert!(client.connect(host.address).await.is_err());
        failed(&host.stats, Port::Client, HandshakeFailure::Limit, 1).await;
    });
}

#[test]
fn so_many_connections_are_taken_in_and_one_more_gets_no_answer() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            connections_max: 2,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        let mut kept = Vec::new();
        for _ in 0..2 {
            kept.push(client.connect(host.address).await.unwrap());
            kept.push(host.connections.recv().await.unwrap());
        }
        let address = host.address;
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.connect(address).await }
        });
        eventually("it was ignored", || host.stats.ignored() > 0).await;
        has_no_answer(call).await;
        kept.clear();
        eventually("there is room again", || {
            host.stats.connections(Port::Client) == 0
        })
        .await;
        // What is said to those who left takes its time.
        let again = loop {
            if let Ok(connection) = client.connect(address).await {
                break connection;
            }
        };
        assert!(!again.is_lost());
    });
}

/// Unauthenticated peers that begin a handshake and never finish it delay their own network only.
#[test]
fn one_network_cannot_take_all_handshakes() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            handshakes_max: 8,
            handshakes_before_retry: 8,
            per_network_per_second_max: 1000,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        // They are heard and never answered to: what the host says does not come through. Each has an
        // address of its own.
        let mut mute = Vec::new();
        let mut calls = tokio::task::JoinSet::new();
        for place in 1..=3 {
            let relay = tokio::net::UdpSocket::bind((Ipv4Addr::new(127, 8, 8, place), 0));
            let relay = relay.await.unwrap();
            let through = relay.local_addr().unwrap();
            let (client, address) = (client.clone(), host.address);
            calls.spawn(async move { drop(client.connect(through).await) });
            let mut datagram = vec![0; 2000];
            let (length, _) = relay.recv_from(&mut datagram).await.unwrap();
            relay.send_to(&datagram[..length], address).await.unwrap();
            mute.push(relay);
            if place == 3 {
                eventually("the third was ignored", || host.stats.ignored() == 1).await;
            }
        }
        // From elsewhere there is room.
        let _honest = client.connect(host.address).await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
        assert_eq!(host.stats.ignored(), 1);
    });
}

/// Calls `host` by way of `from`, for as long as what is returned lives. Nothing of what is answered
/// comes through, but for the wish to see the address proved, if it `proves` that.
async fn call_unheard(
    caller: &Endpoint,
    from: Ipv4Addr,
    host: SocketAddr,
    proves: bool,
) -> tokio::task::JoinSet<()> {
    let relay = tokio::net::UdpSocket::bind((from, 0)).await.unwrap();
    let through = relay.local_addr().unwrap();
    let endpoint = caller.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { drop(endpoint.connect(through).await) });
    tasks.spawn(async move {
        let mut datagram = vec![0; 2000];
        let mut caller = None;
        loop {
            let (length, sender) = relay.recv_from(&mut datagram).await.unwrap();
            // A long header, and of its four types the Retry (RFC 9000, 17.2).
            let is_retry = datagram[0] & 0xb0 == 0xb0;
            let to = if sender != host {
                caller = Some(sender);
                Some(host)
            } else {
                caller.filter(|_| proves && is_retry)
            };
            if let Some(to) = to {
                relay.send_to(&datagram[..length], to).await.unwrap();
            }
        }
    });
    tasks
}

/// An endpoint of a node, at this address.
fn node_at(authority: &Authority, name: &str, from: Ipv4Addr) -> Endpoint {
    Endpoint::listen(
        SocketAddr::from((from, 0)),
        Port::Peer,
        &authority.node(CLUSTER, name),
        LIMITS,
        Admission::DEFAULT,
        Arc::default(),
    )
    .unwrap()
}

/// What one network may have under way is not for one address alone, whoever has proved that it is his.
#[test]
fn one_address_cannot_take_all_handshakes_of_its_network() {
    run(async {
        let authority = Authority::new();
        // Eight of a network, and two of an address.
        let admission = Admission {
            handshakes_max: 32,
            handshakes_before_retry: 0,
            per_network_per_second_max: 1000,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Peer, &authority.node(CLUSTER, "n1"), admission);
        let unauthenticated = node_at(&authority, "n2", Ipv4Addr::LOCALHOST);
        let busy = Ipv4Addr::new(127, 8, 9, 1);
        let mut mute = Vec::new();
        for _ in 0..3 {
            mute.push(call_unheard(&unauthenticated, busy, host.address, true).await);
        }
        eventually("the third was ignored", || host.stats.ignored() > 0).await;
        let neighbour = node_at(&authority, "n3", Ipv4Addr::new(127, 8, 9, 2));
        let _honest = neighbour.connect(host.address).await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
    });
}

#[test]
fn whoever_forges_an_address_does_not_keep_its_owner_out() {
    run(async {
        let authority = Authority::new();
        // Sixteen of a network, and four of an address, of which two may be forged.
        let admission = Admission {
            handshakes_max: 64,
            handshakes_before_retry: 64,
            per_network_per_second_max: 1000,
            ..Admission::DEFAULT
        };
        let mut host = host(Port::Peer, &authority.node(CLUSTER, "n1"), admission);
        let unauthenticated = node_at(&authority, "n2", Ipv4Addr::LOCALHOST);
        let theirs = Ipv4Addr::new(127, 8, 10, 1);
        let mut mute = Vec::new();
        for _ in 0..3 {
            mute.push(call_unheard(&unauthenticated, theirs, host.address, false).await);
        }
        eventually("the third is to prove it", || host.stats.retries() > 0).await;
        let owner = node_at(&authority, "n3", theirs);
        let _honest = owner.connect(host.address).await.unwrap();
        let _arrived = host.connections.recv().await.unwrap();
        assert_eq!(host.stats.ignored(), 0);
    });
}

#[test]
fn many_unauthenticated_peers_prove_their_address_first_and_still_connect() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            handshakes_before_retry: 0,
            ..Admission::DEFAULT
        };
        let host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        client.connect(host.address).await.unwrap();
        // A call that waits too long is made again.
        assert!(host.stats.retries() >= 1);
    });
}

#[test]
fn beyond_the_bound_an_unauthenticated_peer_gets_no_answer() {
    run(async {
        let authority = Authority::new();
        let admission = Admission {
            handshakes_max: 0,
            ..Admission::DEFAULT
        };
        let host = host(Port::Client, &authority.node(CLUSTER, "n1"), admission);
        let client = caller(Port::Client, &authority.client(CLUSTER, "c1"));
        let address = host.address;
        let call = tokio::spawn(async move { client.connect(address).await });
        eventually("it was ignored", || host.stats.ignored() > 0).await;
        has_no_answer(call).await;
    });
}

#[test]
fn a_port_that_is_taken_or_not_ours_is_an_error_that_says_so() {
    run(async {
        let authority = Authority::new();
        let node = authority.node(CLUSTER, "n1");
        let listen = |address| {
            Endpoint::listen(
                address,
                Port::Peer,
                &node,
                LIMITS,
                Admission::DEFAULT,
                Arc::default(),
            )
        };
        let first = listen(localhost()).unwrap();
        let taken = first.local_address().unwrap();
        assert_eq!(
            listen(taken).unwrap_err(),
            BindError::InUse { address: taken }
        );
        let elsewhere = "192.0.2.1:7400".parse().unwrap();
        assert_eq!(
            listen(elsewhere).unwrap_err(),
            BindError::NotLocal { address: elsewhere }
        );
    });
}

#[test]
fn names_resolve_and_nonsense_does_not() {
    run(async {
        assert_eq!(
            resolve("127.0.0.1:5").await.unwrap(),
            vec!["127.0.0.1:5".parse().unwrap()]
        );
        assert!(!resolve("localhost:5").await.unwrap().is_empty());
        assert!(matches!(
            resolve("no port").await,
            Err(ConnectError::Address { .. })
        ));
    });
}

// ---- frames, and the client port -------------------------------------------------------------

struct Server {
    listener: ClientListener,
    address: SocketAddr,
    stats: Arc<TransportStats>,
    authority: Authority,
}

fn server() -> Server {
    let authority = Authority::new();
    let stats = Arc::new(TransportStats::default());
    let config = ListenerConfig {
        member_id: NodeId(5),
        limits: LIMITS,
        admission: Admission::DEFAULT,
        introduction: Arc::<Says>::default(),
    };
    let tls = authority.node(CLUSTER, "n1");
    let listener = ClientListener::bind(localhost(), &tls, config, Arc::clone(&stats)).unwrap();
    let address = listener.local_address().unwrap();
    Server {
        listener,
        address,
        stats,
        authority,
    }
}

impl Server {
    async fn connect(&self) -> Connection {
        let client = caller(Port::Client, &self.authority.client(CLUSTER, "c1"));
        client.connect(self.address).await.unwrap()
    }

    /// A greeted connection, from both ends.
    async fn greeted(&self) -> (FrameStream, FrameStream) {
        let connection = self.connect().await;
        let mut stream = connection.open_stream().await.unwrap();
        stream.write(encoded(&hello())).await.unwrap();
        let mut host = self.listener.accept().await.unwrap();
        let welcome: ServerHello = read_one(&mut stream).await;
        assert_eq!(welcome.result.unwrap().member_id, NodeId(5));
        (stream, host.accept_stream().await.unwrap())
    }
}

fn hello() -> ClientHello {
    ClientHello {
        versions: PROTOCOL_VERSIONS,
        cluster_id: CLUSTER,
        name: "tests".into(),
    }
}

fn encoded<T: crate::wire::Body>(body: &T) -> Bytes {
    let mut out = BytesMut::new();
    encode(body, &LIMITS, &mut out).unwrap();
    out.freeze()
}

async fn read_one<T: crate::wire::Body>(stream: &mut FrameStream) -> T {
    let mut frames = Vec::new();
    stream.read_batch(&mut frames).await.unwrap();
    assert_eq!(frames.len(), 1);
    stream.receiver.decode(&frames[0]).unwrap()
}

fn call(request_id: u64) -> ClientFrame {
    ClientFrame {
        request_id,
        call: Call {
            timeout_ms: 1000,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request: Request::Status,
        },
    }
}

#[test]
fn a_client_is_greeted_and_its_calls_arrive_in_order_and_in_batches() {
    run(async {
        let server = server();
        let (mut client, mut host) = server.greeted().await;
        let mut batch = BytesMut::new();
        for id in 0..100 {
            encode(&call(id), &LIMITS, &mut batch).unwrap();
        }
        client.write(batch.freeze()).await.unwrap();
        let mut frames = Vec::new();
        let mut reads = 0;
        while frames.len() < 100 {
            host.read_batch(&mut frames).await.unwrap();
            reads += 1;
        }
        assert!(
            reads < 50,
            "{reads} reads for 100 small frames in one write"
        );
        for (id, frame) in frames.iter().enumerate() {
            let decoded: ClientFrame = host.receiver.decode(frame).unwrap();
            assert_eq!(decoded, call(id as u64));
        }
        client.sender.finish();
        assert_eq!(
            host.read_batch(&mut frames).await,
            Err(StreamError::Finished)
        );
        assert_eq!(server.stats.malformed_frames(Port::Client), 0);
    });
}

#[test]
fn a_second_stream_needs_no_hello() {
    run(async {
        let server = server();
        let connection = server.connect().await;
        let mut first = connection.open_stream().await.unwrap();
        let named = ClientHello {
            name: "tests\u{1b}[31m\n".into(),
            ..hello()
        };
        first.write(encoded(&named)).await.unwrap();
        let mut host = server.listener.accept().await.unwrap();
        assert_eq!(host.client_name(), "tests[31m", "fit for a log");
        assert_eq!(host.identity(), &PeerIdentity::client(CLUSTER, "c1"));
        let _: ServerHello = read_one(&mut first).await;
        let mut second = connection.open_stream().await.unwrap();
        second.write(encoded(&call(9))).await.unwrap();
        let _first = host.accept_stream().await.unwrap();
        let mut second = host.accept_stream().await.unwrap();
        assert_eq!(read_one::<ClientFrame>(&mut second).await, call(9));
    });
}

#[test]
fn malformed_frames_cost_the_sender_its_connection_and_are_counted() {
    run(async {
        let server = server();
        let mut too_long = u32::MAX.to_le_bytes().to_vec();
        too_long.push(Kind::Call as u8);
        let mut wrong_body = BytesMut::new();
        encode(&hello(), &LIMITS, &mut wrong_body).unwrap();
        let mut flipped = encoded(&call(1)).to_vec();
        flipped[12] ^= 1;
        let bad: Vec<Bytes> = vec![
            Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n"),
            Bytes::from(vec![0xff; 3000]),
            too_long.into(),
            flipped.into(),
        ];
        let count = bad.len() as u64;
        for bytes in bad {
            let (mut client, mut host) = server.greeted().await;
            client.write(bytes.clone()).await.unwrap();
            let mut frames = Vec::new();
            let error = host.read_batch(&mut frames).await.unwrap_err();
            assert!(matches!(error, StreamError::Malformed(_)), "{bytes:?}");
            let lost = client.receiver.connection().lost().await;
            assert_eq!(lost, ConnectionLost::Closed(CloseCode::Malformed));
        }
        assert_eq!(server.stats.malformed_frames(Port::Client), count);
        // A frame that is whole but is no call: noticed where it is decoded.
        let (mut client, mut host) = server.greeted().await;
        client.write(wrong_body.freeze()).await.unwrap();
        let mut frames = Vec::new();
        host.read_batch(&mut frames).await.unwrap();
        assert!(host.receiver.decode::<ClientFrame>(&frames[0]).is_err());
        assert_eq!(server.stats.malformed_frames(Port::Client), count + 1);
        // And nobody else noticed anything.
        let _ = server.greeted().await;
    });
}

#[test]
fn garbage_instead_of_a_hello_is_refused_and_counted() {
    run(async {
        let server = server();
        let connection = server.connect().await;
        let mut stream = connection.open_stream().await.unwrap();
        stream.write(Bytes::from(vec![7; 100])).await.unwrap();
        assert_eq!(
            connection.lost().await,
            ConnectionLost::Closed(CloseCode::Malformed)
        );
        assert_eq!(server.stats.malformed_frames(Port::Client), 1);
        // Calls before the welcome are no hello either.
        let connection = server.connect().await;
        let mut stream = connection.open_stream().await.unwrap();
        let both = [encoded(&hello()), encoded(&call(1))].concat();
        stream.write(both).await.unwrap();
        assert_eq!(
            connection.lost().await,
            ConnectionLost::Closed(CloseCode::Hello)
        );
        failed(&server.stats, Port::Client, HandshakeFailure::Hello, 1).await;
    });
}

#[test]
fn a_hello_of_another_cluster_or_version_is_told_why_it_is_turned_away() {
    run(async {
        let server = server();
        let wrong = [
            (
                ClientHello {
                    cluster_id: ClusterId(1),
                    ..hello()
                },
                ErrorKind::ClusterMismatch,
                HandshakeFailure::Cluster,
            ),
            (
                ClientHello {
                    versions: VersionRange {
                        oldest: 900,
                        newest: 901,
                    },
                    ..hello()
                },
                ErrorKind::Unsupported,
                HandshakeFailure::Version,
            ),
        ];
        for (hello, kind, failure) in wrong {
            let connection = server.connect().await;
            let mut stream = connection.open_stream().await.unwrap();
            stream.write(encoded(&hello)).await.unwrap();
            let answer: ServerHello = read_one(&mut stream).await;
            assert_eq!(answer.result.unwrap_err().kind, kind);
            connection.close(CloseCode::Done);
            failed(&server.stats, Port::Client, failure, 1).await;
        }
    });
}

#[test]
fn closing_the_listener_tells_its_clients() {
    run(async {
        let server = server();
        let (client, _host) = server.greeted().await;
        server.listener.close(CloseCode::Stopping);
        assert_eq!(
            client.receiver.connection().lost().await,
            ConnectionLost::Closed(CloseCode::Stopping)
        );
        assert!(server.listener.accept().await.is_none());
    });
}

/// A client that was greeted: its socket, its connection and its first stream, and the server's end.
async fn greeted(server: &Server) -> (Endpoint, Connection, FrameStream, ClientConnection) {
    let endpoint = caller(Port::Client, &server.authority.client(CLUSTER, "c1"));
    let connection = endpoint.connect(server.address).await.unwrap();
    let mut stream = connection.open_stream().await.unwrap();
    stream.write(encoded(&hello())).await.unwrap();
    let host = server.listener.accept().await.unwrap();
    let _: ServerHello = read_one(&mut stream).await;
    (endpoint, connection, stream, host)
}
