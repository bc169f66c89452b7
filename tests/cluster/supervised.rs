//! A node under a service manager: it is told that the node is ready, that it lives, and that it stops.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::harness::{Cluster, PATIENCE, eventually, leasehold_command};

/// The messages to a socket at `path`, which are read as they come: none is refused, or waits there.
fn listen(path: &Path) -> Receiver<String> {
    let socket = UnixDatagram::bind(path).unwrap();
    let (read, messages) = mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = [0; 200];
        while let Ok(length) = socket.recv(&mut buffer) {
            let message = String::from_utf8(buffer[..length].to_vec()).unwrap();
            if read.send(message).is_err() {
                return;
            }
        }
    });
    messages
}

/// The next message; fails after a minute.
fn heard(messages: &Receiver<String>) -> String {
    let message = messages.recv_timeout(PATIENCE);
    message.expect("a message within a minute")
}

/// The messages up to the first that begins so.
fn heard_until(messages: &Receiver<String>, wanted: &str) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        all.push(heard(messages));
        if all.last().is_some_and(|last| last.starts_with(wanted)) {
            return all;
        }
    }
}

/// Whether every thread of a process is suspended.
fn stands_still(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat"));
    let mut stats = threads.map(|thread| stat(thread.unwrap()));
    stats.all(|stat| stat.is_ok_and(|stat| stat.contains(") T ")))
}

#[test]
fn a_service_manager_hears_that_a_node_is_ready_lives_and_stops() {
    // Two of its three members are missing: that it has no leader is nothing for a watchdog.
    let mut cluster = Cluster::prepare(3);
    let path = cluster.folder.path().join("notify");
    let messages = listen(&path);
    let node = &mut cluster.nodes[0];
    let child = leasehold_command()
        .args(["serve", "--config", node.config.to_str().unwrap()])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = child.id();
    node.process = Some(child);
    assert!(heard(&messages).starts_with("READY=1"));
    eventually("life", || (node.admin("/livez")?.0 == 200).then_some(()));
    for _ in 0..3 {
        assert_eq!(heard(&messages), "WATCHDOG=1\n");
    }

    // A process that stands still shows no life.
    node.pause();
    eventually("a process that stands still", || {
        stands_still(process).then_some(())
    });
    // All that it said before comes before this.
    let ours = UnixDatagram::unbound().unwrap();
    ours.send_to(b"it stands still", &path).unwrap();
    heard_until(&messages, "it stands still");
    assert_eq!(
        messages.recv_timeout(Duration::from_millis(500)),
        Err(RecvTimeoutError::Timeout),
        "signs of life from a process that stands still"
    );
    node.resume();
    assert_eq!(heard(&messages), "WATCHDOG=1\n");

    assert_eq!(node.stop(), 0);
    let last = heard_until(&messages, "STOPPING=1");
    assert!(
        last[..last.len() - 1]
            .iter()
            .all(|said| said == "WATCHDOG=1\n"),
        "{last:?}"
    );
}

/// A member that was removed records that before it ends. Here its disk takes the mark only once somebody
/// reads the pipe that it is written to first, and until then nothing else may wait.
#[test]
fn a_mark_that_the_disk_does_not_take_holds_up_no_thread_but_its_own() {
    let mut cluster = Cluster::prepare(3);
    let path = cluster.folder.path().join("notify");
    let messages = listen(&path);
    cluster.nodes[2].environment = vec![
        ("NOTIFY_SOCKET", path.to_str().unwrap().to_owned()),
        ("WATCHDOG_USEC", "100000".to_owned()),
    ];
    cluster.start_and_settle();
    let pipe = cluster.nodes[2].data_dir.join("removed.new");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());

    eventually("a member that is removed", || {
        let (code, ..) = cluster.cli(&["member", "remove", "n3"]);
        // Nobody may have known what became of the first attempt.
        [0, 5].contains(&code).then_some(())
    });
    let process = cluster.nodes[2].process.as_ref().unwrap().id();
    eventually("a thread that waits for the disk", || {
        threads(process)
            .iter()
            .any(|name| name == "n3-leave")
            .then_some(())
    });
    // What it said so far is out of the way.
    while messages.try_recv().is_ok() {}
    for _ in 0..5 {
        assert_eq!(heard(&messages), "WATCHDOG=1\n");
    }
    let is_alive = cluster.nodes[2].process.as_mut().unwrap().try_wait();
    assert_eq!(is_alive.unwrap(), None, "it is not recorded yet");

    let said = fs::read_to_string(&pipe).unwrap();
    assert!(said.contains("was removed from its cluster"), "{said}");
    assert_eq!(cluster.nodes[2].wait_for_exit(), 7);
}

/// The names of the threads of a process.
fn threads(process: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
    let names = threads.filter_map(|thread| name(thread.unwrap()).ok());
    names.map(|name| name.trim().to_owned()).collect()
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
    let child = leasehold_command()
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
