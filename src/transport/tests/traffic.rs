//! What went over connections, added up.

use super::*;
use crate::transport::Traffic;

/// Whether nothing of it is less than before.
fn has_not_fallen(now: Traffic, before: Traffic) -> bool {
    before.since(now) == Traffic::default()
}

#[test]
fn bytes_are_counted_by_port_and_stay_counted_when_connections_end() {
    run(async {
        let authority = Authority::new();
        let node = authority.node(CLUSTER, "n1");
        let mut host = host(Port::Client, &node, Admission::DEFAULT);
        let stats = host.stats.clone();
        assert_eq!(stats.traffic(Port::Client), Traffic::default());
        let mut before = Traffic::default();
        for size in [100, 50_000] {
            let endpoint = caller(Port::Client, &authority.client(CLUSTER, "c1"));
            let connection = endpoint.connect(host.address).await.unwrap();
            let accepted = host.connections.recv().await.unwrap();
            let mut stream = connection.open_stream().await.unwrap();
            stream.write(Bytes::from(vec![7; size])).await.unwrap();
            eventually("the other side has it", || {
                accepted.facts().received_bytes > size as u64
            })
            .await;
            // Nobody has looked: it is counted when the connection is dropped.
            let facts = accepted.facts();
            drop(accepted);
            let now = stats.traffic(Port::Client);
            assert!(has_not_fallen(now, before));
            assert!(now.received_bytes >= before.received_bytes + facts.received_bytes);
            assert!(now.sent_bytes >= before.sent_bytes + facts.sent_bytes);
            before = now;
        }
        assert_eq!(stats.traffic(Port::Peer), Traffic::default());
        assert_eq!(stats.migrations(), 0);
    });
}

#[test]
fn what_a_look_has_counted_is_not_counted_again_at_the_end() {
    run(async {
        let server = server();
        let (endpoint, connection, mut stream, mut host) = greeted(&server).await;
        let (server_end, stats) = (server.listener.endpoint(), &server.stats);
        assert_eq!(server_end.look().len(), 1);
        let mut before = stats.traffic(Port::Client);
        assert!(before.sent_bytes > 0 && before.received_bytes > 0);
        for _ in 0..10 {
            server_end.look();
            let now = stats.traffic(Port::Client);
            assert!(has_not_fallen(now, before));
            before = now;
        }
        // There is no other connection, and no more than has come.
        let come = host.connection().facts().received_bytes;
        assert!(before.received_bytes <= come, "{before:?}, of {come}");
        assert_eq!(stats.migrations(), 0);

        endpoint.rebind().unwrap();
        stream.write(encoded(&call(1))).await.unwrap();
        let mut arrived = host.accept_stream().await.unwrap();
        assert_eq!(read_one::<ClientFrame>(&mut arrived).await, call(1));
        for _ in 0..2 {
            server_end.look();
            assert_eq!(stats.migrations(), 1, "one move is counted once");
        }
        let come = host.connection().facts().received_bytes;
        connection.close(CloseCode::Done);
        drop((arrived, host));
        eventually("the connection is gone", || server_end.look().is_empty()).await;
        assert!(has_not_fallen(stats.traffic(Port::Client), before));
        assert!(stats.traffic(Port::Client).received_bytes < 2 * come);
    });
}
