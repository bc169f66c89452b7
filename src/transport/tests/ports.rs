//! Clients whose local port changes, and nodes that come back at theirs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::{
    CLUSTER, LIMITS, PATIENCE, call, caller, encoded, eventually, greeted, hello, localhost,
    read_one, run, server,
};
use crate::transport::testing::Authority;
use crate::transport::{Admission, CloseCode, ConnectionLost, Endpoint, Port};
use crate::wire::client::ClientFrame;

#[test]
fn a_client_that_moves_to_another_port_keeps_its_connection() {
    run(async {
        let server = server();
        let (endpoint, _connection, mut stream, mut host) = greeted(&server).await;
        let before = host.remote_address();
        endpoint.rebind().unwrap();
        stream.write(encoded(&call(1))).await.unwrap();
        let mut arrived = host.accept_stream().await.unwrap();
        assert_eq!(read_one::<ClientFrame>(&mut arrived).await, call(1));
        assert_ne!(host.remote_address().port(), before.port());
    });
}

#[test]
fn a_client_that_changes_its_port_connects_from_there_and_keeps_and_closes_what_it_has() {
    run(async {
        let server = server();
        let (endpoint, _connection, mut stream, mut host) = greeted(&server).await;
        endpoint.change_port().unwrap();
        let second = endpoint.connect(server.address).await.unwrap();
        let mut hello_stream = second.open_stream().await.unwrap();
        hello_stream.write(encoded(&hello())).await.unwrap();
        let second_host = server.listener.accept().await.unwrap();
        assert_ne!(
            host.remote_address().port(),
            second_host.remote_address().port()
        );
        stream.write(encoded(&call(1))).await.unwrap();
        let mut arrived = host.accept_stream().await.unwrap();
        assert_eq!(read_one::<ClientFrame>(&mut arrived).await, call(1));
        endpoint.close(CloseCode::Done);
        endpoint.wait_idle().await;
        for host in [&host, &second_host] {
            let lost = host.connection().lost().await;
            assert_eq!(lost, ConnectionLost::Closed(CloseCode::Done));
        }
    });
}

/// What a client hears of its connection to a node that is killed and started again. `meanwhile` runs after the answer
/// of the new node has come to the client's socket, and before the task of the connection has seen it.
fn lost_with_its_node(authority: &Authority, meanwhile: fn(&Endpoint)) -> ConnectionLost {
    let tls = authority.node(CLUSTER, "n1");
    let listen = |address: SocketAddr| {
        let stats = Arc::default();
        Endpoint::listen(
            address,
            Port::Client,
            &tls,
            LIMITS,
            Admission::DEFAULT,
            stats,
        )
    };
    let threads = || {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        threads.enable_all().build().unwrap()
    };
    let (doomed, revived) = (threads(), threads());
    let endpoint = doomed.block_on(async { listen(localhost()).unwrap() });
    let address = endpoint.local_address().unwrap();
    doomed.spawn(async move {
        let accepted = endpoint.accept().await.unwrap().establish().await;
        std::future::pending::<()>().await;
        drop((accepted, endpoint));
    });
    // One thread, so that no task of the client's runs before this one lets it.
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let lost = client.block_on(async {
        let caller = caller(Port::Client, &authority.client(CLUSTER, "app"));
        let connection = caller.connect(address).await.unwrap();
        doomed.shutdown_background();
        let mut again = None;
        eventually("the port of the dead", || {
            let _runtime = revived.enter();
            again = listen(address).ok();
            again.is_some()
        })
        .await;
        // It may have been told already, in answer to a ping of its own.
        if let Ok(mut stream) = connection.open_stream().await {
            let _ = stream.write(encoded(&hello())).await;
        }
        // It is sent; the answer arrives; the task of the endpoint hands it over to that of the connection, which comes
        // after this one.
        let next_in_turn = tokio::spawn(async move {
            tokio::task::yield_now().await;
            std::thread::sleep(Duration::from_millis(5));
            tokio::task::yield_now().await;
            meanwhile(&caller);
            caller
        });
        let _caller = next_in_turn.await.unwrap();
        let lost = tokio::time::timeout(PATIENCE, connection.lost()).await;
        lost.expect("it must notice")
    });
    revived.shutdown_background();
    lost
}

/// At least one of twenty clients is told by a node that was started again that it knows nothing of its connection.
fn is_told_of_its_reset(meanwhile: fn(&Endpoint)) {
    let authority = Authority::new();
    for _ in 0..20 {
        let lost = lost_with_its_node(&authority, meanwhile);
        if lost == ConnectionLost::Reset {
            return;
        }
        // Its runtime did not end fast enough: the connection that it dropped still took its leave.
        assert_eq!(lost, ConnectionLost::Closed(CloseCode::Done));
    }
    panic!("no node forgot its connection");
}

#[test]
fn a_node_that_was_killed_and_started_again_says_so_to_those_it_has_forgotten() {
    is_told_of_its_reset(|_| ());
}

#[test]
fn a_client_changes_its_port_while_it_is_told_that_its_connection_is_gone() {
    is_told_of_its_reset(|client| client.change_port().unwrap());
}
