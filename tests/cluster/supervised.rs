//! A node under a service manager: it is told that the node is ready, that it lives, and that it stops.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::Cluster;
use crate::harness::PATIENCE;
use crate::harness::binary;

/// The next message; fails after a minute.
fn heard(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 200];
    let length = socket.recv(&mut buffer).expect("a message within a minute");
    String::from_utf8(buffer[..length].to_vec()).unwrap()
}

/// The messages up to the first that begins so.
fn heard_until(socket: &UnixDatagram, wanted: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        all.push(heard(socket));
        if all.last().is_some_and(|last| last.starts_with(wanted)) {
            return all;
        }
    }
}

#[test]
fn a_service_manager_hears_that_a_node_is_ready_lives_and_stops() {
    // Two of its three members are missing: that it has no leader is nothing for a watchdog.
    let mut cluster = Cluster::prepare(3);
    let path = cluster.folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let node = &mut cluster.nodes[0];
    let child = Command::new(binary())
        .args(["serve", "--config", node.config.to_str().unwrap()])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    node.process = Some(child);
    assert!(heard(&socket).starts_with("READY=1"));
    assert_eq!(node.admin("/livez").map(|(status, _)| status), Some(200));
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }

    // A process that stands still shows no life.
    let id = node.process.as_ref().unwrap().id().to_string();
    let signal = |signal: &str| {
        let sent = Command::new("kill")
            .args([signal, id.as_str()])
            .status()
            .unwrap();
        assert!(sent.success());
    };
    signal("-STOP");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut late = 0;
    while socket.recv(&mut [0; 200]).is_ok() {
        late += 1;
    }
    assert!(late < 20, "signs of life from a process that stands still");
    signal("-CONT");
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(heard(&socket), "WATCHDOG=1\n");

    assert_eq!(node.stop(), 0);
    let last = heard_until(&socket, "STOPPING=1");
    assert!(
        last[..last.len() - 1]
            .iter()
            .all(|said| said == "WATCHDOG=1\n"),
        "{last:?}"
    );
}
