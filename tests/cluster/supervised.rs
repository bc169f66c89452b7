//! A node under a service manager: it is told that the node is ready, that it lives, and that it stops.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::Cluster;
use crate::harness::PATIENCE;
use crate::harness::binary;
use crate::harness::eventually;

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
    assert_eq!(eventually("life", || node.admin("/livez")).0, 200);
    for _ in 0..3 {
        assert_eq!(heard(&socket), "WATCHDOG=1\n");
    }

    // A process that stands still shows no life.
    node.pause();
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let mut late = 0;
    while socket.recv(&mut [0; 200]).is_ok() {
        late += 1;
    }
    assert!(late < 20, "signs of life from a process that stands still");
    node.resume();
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

/// The lines that a node writes until it is ready, when the environment says that the journal is at this
/// device and inode, or at those of its standard error.
fn lines_beside_a_journal(stream: Option<&str>) -> Vec<String> {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("");
    let node = &mut cluster.nodes[0];
    let config = fs::read_to_string(&node.config).unwrap();
    let config = config.replace("format = \"text\"", "format = \"json\"");
    fs::write(&node.config, config).unwrap();
    let log = fs::File::create(&node.log).unwrap();
    let found = log.metadata().unwrap();
    let its_own = format!("{}:{}", found.dev(), found.ino());
    let child = Command::new(binary())
        .args(["serve", "--config", node.config.to_str().unwrap()])
        .env("JOURNAL_STREAM", stream.unwrap_or(&its_own))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    node.process = Some(child);
    cluster.wait_for_lease();
    let lines = cluster.nodes[0].log_text();
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn the_journal_is_told_how_much_each_line_matters_and_nobody_else_is() {
    let lines = lines_beside_a_journal(None);
    assert!(!lines.is_empty());
    for line in &lines {
        let (priority, event) = line.split_at(3);
        let event: serde_json::Value = serde_json::from_str(event).expect("one object a line");
        let wanted = match event["level"].as_str() {
            Some("ERROR") => "<3>",
            Some("WARN") => "<4>",
            Some("INFO") => "<6>",
            _ => "<7>",
        };
        assert_eq!(priority, wanted, "{line}");
    }
    // Inherited from whoever started us: our lines go elsewhere.
    let lines = lines_beside_a_journal(Some("9:12345"));
    assert!(!lines.is_empty());
    for line in &lines {
        assert!(line.starts_with('{'), "{line}");
    }
}
