//! Strangers and garbage: refused and counted, and nothing falls over.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use leasehold::transport::{Admission, Connection, Endpoint, Port, Tls, TlsPaths, TransportStats};
use leasehold::wire::FrameLimits;

use crate::harness::{Cluster, Node, PATIENCE, Pki, eventually};

/// A machine may stand still for longer than a handshake may take.
pub(crate) async fn connected(endpoint: &Endpoint, address: SocketAddr) -> Connection {
    let began = Instant::now();
    loop {
        match endpoint.connect(address).await {
            Ok(connection) => return connection,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{address}: {error}"),
        }
    }
}

fn refused(node: &Node, kind: &str, results: &[&str]) -> f64 {
    results
        .iter()
        .map(|result| {
            node.metric(&format!(
                "leasehold_quic_handshakes_total{{kind=\"{kind}\",result=\"{result}\"}}"
            ))
        })
        .sum()
}

/// Starts a process that pretends to be `victim`, at its address, with certificates from
/// `directory`, and waits until the others have turned it away.
fn impostor_is_turned_away(cluster: &mut Cluster, victim: usize, pki: &Pki, reasons: &[&str]) {
    let others: Vec<usize> = (0..3).filter(|other| *other != victim).collect();
    let before: f64 = others
        .iter()
        .map(|other| refused(&cluster.nodes[*other], "peer", reasons))
        .sum();
    let real = std::fs::read_to_string(&cluster.nodes[victim].config).unwrap();
    let text = real
        .replace(
            cluster.pki.path.to_str().unwrap(),
            pki.path.to_str().unwrap(),
        )
        .replace(
            &format!(
                "data_dir = \"{}\"",
                cluster.nodes[victim].data_dir.display()
            ),
            &format!("data_dir = \"{}-impostor\"", pki.path.display()),
        );
    std::fs::write(&cluster.nodes[victim].config, text).unwrap();
    cluster.nodes[victim].start();
    eventually("the impostor is counted as refused", || {
        let now: f64 = others
            .iter()
            .map(|other| refused(&cluster.nodes[*other], "peer", reasons))
            .sum();
        (now > before).then_some(())
    });
    assert_eq!(
        cluster.cli(&["put", "still", "here", "--exactly-once"]).0,
        0,
        "two of three go on"
    );
    assert_eq!(
        cluster.nodes[victim].metric("leasehold_raft_has_leader"),
        0.0,
        "nobody told the impostor who leads"
    );
    cluster.nodes[victim].kill();
    std::fs::write(&cluster.nodes[victim].config, real).unwrap();
}

#[test]
fn a_process_of_a_wrong_authority_or_of_another_cluster_is_refused_and_counted() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let victim = (leader + 1) % 3;
    assert_eq!(cluster.nodes[victim].stop(), 0);
    let name = cluster.nodes[victim].name.clone();

    // The same name, signed by somebody else.
    let wrong = Pki::create(&cluster.folder.path().join("wrong"));
    wrong.issue("--node", &name, &[]);
    impostor_is_turned_away(&mut cluster, victim, &wrong, &["tls"]);

    // Another cluster whose authorities this one was told to trust as well.
    let other = Pki::create(&cluster.folder.path().join("other"));
    other.issue("--node", &name, &[]);
    for ca in ["peer-ca.pem", "client-ca.pem"] {
        let both = format!(
            "{}{}",
            std::fs::read_to_string(cluster.pki.file(ca)).unwrap(),
            std::fs::read_to_string(other.file(ca)).unwrap()
        );
        std::fs::write(cluster.pki.file(ca), &both).unwrap();
        std::fs::write(other.file(ca), &both).unwrap();
    }
    for node in 0..3 {
        if node != victim {
            assert_eq!(cluster.nodes[node].stop(), 0);
            cluster.nodes[node].start();
        }
    }
    cluster.wait_for_lease();
    impostor_is_turned_away(
        &mut cluster,
        victim,
        &other,
        &["cluster", "identity", "tls"],
    );

    // And the real one is still welcome.
    cluster.nodes[victim].start();
    eventually("the real node follows", || {
        let body = cluster.nodes[victim].admin("/metrics")?.1;
        body.contains("leasehold_raft_has_leader 1").then_some(())
    });
}

fn tls(pki: &Pki, ca: &str, stem: &str) -> Tls {
    Tls::load(&TlsPaths {
        ca: pki.file(ca).into(),
        certificate: pki.file(&format!("{stem}.pem")).into(),
        crl: None,
        key: pki.file(&format!("{stem}.key")).into(),
    })
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bytes_on_both_ports_are_refused_and_counted_and_nothing_falls_over() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("k", "v", None).await.unwrap();
    let target = cluster.wait_for_lease();

    // Datagrams that are no QUIC at all.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for address in [cluster.nodes[target].client, cluster.nodes[target].peer] {
        for length in [0, 1, 20, 1200, 1400] {
            let noise: Vec<u8> = (0..length).map(|at| (at * 131 + length) as u8).collect();
            socket.send_to(&noise, address).unwrap();
        }
    }

    // A client with a good certificate that does not speak our language.
    let stats = Arc::new(TransportStats::default());
    let caller = tls(&cluster.pki, "client-ca.pem", "tester");
    let endpoint = Endpoint::client(&caller, FrameLimits::DEFAULT, stats.clone()).unwrap();
    let connection = connected(&endpoint, cluster.nodes[target].client).await;
    let mut stream = connection.open_stream().await.unwrap();
    let _ = stream.write(vec![0xff; 5000]).await;
    connection.lost().await;

    // A member of the cluster that has lost its mind: its certificate is stolen for the purpose
    // while the real one is down.
    let stolen = (target + 1) % 3;
    cluster.nodes[stolen].kill();
    let name = cluster.nodes[stolen].name.clone();
    let member = tls(&cluster.pki, "peer-ca.pem", &format!("{name}-peer"));
    let endpoint = Endpoint::listen(
        "127.0.0.1:0".parse().unwrap(),
        Port::Peer,
        &member,
        FrameLimits::DEFAULT,
        Admission::DEFAULT,
        stats,
    )
    .unwrap();
    let connection = connected(&endpoint, cluster.nodes[target].peer).await;
    let mut stream = connection.open_stream().await.unwrap();
    let _ = stream.write(vec![0xff; 5000]).await;
    connection.lost().await;

    for kind in ["client", "peer"] {
        eventually("the garbage is counted", || {
            let node = &cluster.nodes[target];
            let malformed = node.metric(&format!(
                "leasehold_malformed_frames_total{{kind=\"{kind}\"}}"
            ));
            let hello = refused(node, kind, &["hello"]);
            (malformed + hello > 0.0).then_some(())
        });
    }
    let get = client.get("k", None).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"v");
    cluster.nodes[stolen].start();
    cluster.wait_for_lease();
    client.put("k", "w", None).await.unwrap();
}

#[test]
fn a_node_with_another_nodes_certificate_does_not_start() {
    let mut cluster = Cluster::prepare(3);
    let text = std::fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let swapped = text
        .replace("n1-peer", "n2-peer")
        .replace("n1-server", "n2-server");
    std::fs::write(&cluster.nodes[0].config, swapped).unwrap();
    cluster.nodes[0].start();
    assert_ne!(cluster.nodes[0].wait_for_exit(), 0);
    let said = cluster.nodes[0].log_text();
    assert!(said.contains("n2") && said.contains("\"n1\""), "{said}");
}
