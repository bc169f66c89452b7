//! A cluster starts, takes writes, serves reads under its lease, stops and starts again.

use std::time::{Duration, Instant};

use leasehold::api::{Consistency, ErrorKind, ReadPath};
use leasehold::client::{Client, DeleteOptions, GetOptions, GetResponse, PutOptions};

use crate::admin::hand_over;
use crate::embedded;
use crate::harness::{Cluster, Node, PATIENCE, eventually, is_healthy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_take_writes_and_serve_reads_under_the_lease() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;

    let put = client.put("color", "red", None).await.unwrap();
    assert!(
        put.header.revision > 1,
        "a first write raises the revision of an empty store"
    );
    assert_eq!(put.header.read, None);
    let put = client
        .put("color", "blue", Some(PutOptions::new().with_prev_kv()))
        .await
        .unwrap();
    let previous = put.prev_kv.as_ref().expect("the key existed");
    assert_eq!(previous.value.as_ref(), b"red");
    assert_eq!(previous.version, 1);

    let get = leased_get(&client, "color").await;
    let [kv] = &get.kvs[..] else {
        panic!("one key was asked for: {get:?}")
    };
    assert_eq!(kv.value.as_ref(), b"blue");
    assert_eq!(kv.version, 2);
    assert_eq!(kv.mod_revision, put.header.revision);
    assert_eq!(kv.create_revision, put.header.revision - 1);
    let read = get.header.read.expect("a read says how it was served");
    assert!(read.applied_index >= read.read_index);
    assert!(!read.lease_remaining.is_zero());
    assert_eq!(
        get.header.leader_id,
        Some(get.header.member_id),
        "only the leader has a lease"
    );

    let quorum = GetOptions::new().with_consistency(Consistency::LinearizableQuorum);
    let get = client.get("color", Some(quorum)).await.unwrap();
    assert_eq!(get.header.read.unwrap().path, ReadPath::ReadIndex);
    assert_eq!(get.kvs[0].value.as_ref(), b"blue");

    for number in 0..5 {
        client
            .put(format!("svc/{number}"), "x", None)
            .await
            .unwrap();
    }
    let two = GetOptions::new()
        .with_prefix()
        .with_limit(2)
        .with_keys_only();
    for (options, count) in [(two.clone(), None), (two.with_count(), Some(5))] {
        let found = client.get("svc/", Some(options)).await.unwrap();
        assert_eq!(found.kvs.len(), 2);
        assert_eq!(found.count, count);
        assert!(found.more);
        assert!(found.kvs.iter().all(|kv| kv.value.is_empty()));
    }
    let deleted = client
        .delete("svc/", Some(DeleteOptions::new().with_prefix()))
        .await
        .unwrap();
    assert_eq!(deleted.deleted, 5);
    let none = client
        .get("svc/", Some(GetOptions::new().with_prefix()))
        .await
        .unwrap();
    assert_eq!(none.count, Some(0));

    for node in &cluster.nodes {
        let started = Instant::now();
        let status = loop {
            let status = client.status(&node.client.to_string()).await.unwrap();
            let status = status.status;
            // An election may be on.
            if is_healthy(status.role) {
                break status;
            }
            let role = status.role;
            assert!(started.elapsed() < PATIENCE, "{} is {role}", node.name);
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(status.name, node.name);
        assert_eq!(status.members.len(), 3);
        eventually("a node that is ready", || {
            (node.admin("/readyz?verbose")?.0 == 200).then_some(())
        });
        for path in ["/livez", "/version"] {
            let (status, _) = eventually(path, || node.admin(path));
            assert_eq!(status, 200, "{path}");
        }
    }
    client.close().await;

    // The lot stops cleanly, comes back, and remembers.
    for node in &mut cluster.nodes {
        assert_eq!(node.stop(), 0, "{}:\n{}", node.name, node.log_text());
    }
    cluster.start_and_settle();
    let client = cluster.client().await;
    let get = client.get("color", None).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"blue");
    assert_eq!(get.kvs[0].version, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_leased_reads_cause_no_message_to_a_peer_and_no_disk_sync() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("k", "v", None).await.unwrap();
    let started = Instant::now();
    // A machine that stands still for half a second ends a lease, and then some read takes another
    // road; only a run in which all took this one says anything about it.
    loop {
        let node = cluster.wait_for_lease();
        let node = &cluster.nodes[node];
        // The log writes a mark after a pause in writing, and followers catch up.
        eventually("a quiet cluster", || {
            let before = traffic(node);
            std::thread::sleep(Duration::from_millis(200));
            (before == traffic(node)).then_some(())
        });
        let before = traffic(node);
        let term = node.metric("leasehold_raft_term");
        let count = || node.metric("leasehold_reads_total{path=\"lease\"}");
        let leased_before = count();
        for _ in 0..100 {
            let reads = (0..100).map(|_| {
                let client = client.clone();
                async move { client.get("k", None).await }
            });
            for read in futures_join(reads).await {
                read.unwrap();
            }
        }
        if count() - leased_before == 10_000.0 && term == node.metric("leasehold_raft_term") {
            let after = traffic(node);
            if after == before {
                return;
            }
            // A message that was sent again, or the answer to a follower that stood still and asked
            // whether it may stand for election, says nothing; some for every hundred reads do.
            let what =
                "(messages to peers other than heartbeats and comparisons of states, disk syncs)";
            let more = (after.0 - before.0) + (after.1 - before.1);
            assert!(more < 100, "{what}: {before:?}, then {after:?}");
        }
        assert!(
            started.elapsed() < 3 * PATIENCE,
            "10,000 reads were never all leased, with nothing sent and synced"
        );
    }
}

/// A get that was served under the lease: a machine that stands still for half a second ends one,
/// and then the next get is served by a round.
async fn leased_get(client: &Client, key: &str) -> GetResponse {
    let started = Instant::now();
    loop {
        let get = client.get(key, None).await.unwrap();
        if get.header.read.unwrap().path == ReadPath::Lease {
            return get;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "no get was served under the lease"
        );
    }
}

/// What a leased read must not cause: messages to peers other than the heartbeats that flow
/// anyway, and syncs of the log.
fn traffic(node: &Node) -> (u64, u64) {
    let sent: f64 = ["append", "vote", "other"]
        .iter()
        .map(|kind| {
            node.metric(&format!(
                "leasehold_raft_messages_sent_total{{kind=\"{kind}\"}}"
            ))
        })
        .sum();
    let rounds = node.metric("leasehold_reads_total{path=\"read_index\"}");
    let syncs = node.metric("leasehold_wal_fsync_duration_seconds_count");
    ((sent + rounds) as u64, syncs as u64)
}

/// Polls all of them together and returns their results in order.
async fn futures_join<F>(futures: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_alone_is_a_cluster_too() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    client.put("a", "1", None).await.unwrap();
    assert_eq!(leased_get(&client, "a").await.kvs[0].value.as_ref(), b"1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_request_and_writes_go_on() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("a", "1", None).await.unwrap();
    let started = Instant::now();
    loop {
        let before = client.put("b", "", None).await.unwrap();
        let old = before.header.leader_id.unwrap();
        let is_acknowledged = hand_over(&client).await;
        let after = client.put("b", "", None).await.unwrap();
        let (term, then) = (before.header.raft_term, after.header.raft_term);
        assert!(then > term, "{term}, then {then}");
        if after.header.leader_id != Some(old) {
            if is_acknowledged {
                break;
            }
        } else {
            // Somebody else led; an election that nobody had asked for may have ended that.
            assert!(then > term.next(), "{old} leads from {term} to {then}");
        }
        assert!(started.elapsed() < PATIENCE, "{old} leads again and again");
    }
    client.put("a", "2", None).await.unwrap();
    let get = client.get("a", None).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"2");
    assert_eq!(get.kvs[0].version, 2);
}

/// Calls that cross and a moment without a leader are part of it, and nothing holds a stopped node's directory. On a
/// machine that stands still there may be cause to warn: not each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_start_a_hand_over_and_an_end_warn_of_nothing() {
    let mut warned = Vec::new();
    for _ in 0..6 {
        let mut cluster = Cluster::start(3);
        let client = cluster.client().await;
        hand_over(&client).await;
        cluster.wait_for_lease();
        client.put("k", "v", None).await.unwrap();
        let said: String = cluster.nodes.iter().map(Node::log_text).collect();
        assert!(said.contains(" INFO "), "{said}");
        let is_warning = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let mut lines: Vec<String> = said.lines().filter(is_warning).map(str::to_owned).collect();
        for node in &mut cluster.nodes {
            assert_eq!(node.stop(), 0);
            // That the others cannot reach it is another matter.
            let said = node.log_text();
            let end = said.lines().skip_while(|line| !line.contains("stopping"));
            lines.extend(end.filter(is_warning).map(str::to_owned));
        }
        if lines.is_empty() {
            return;
        }
        warned.push(lines);
    }
    panic!("{warned:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_moved_to_other_ports_is_found_again() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("a", "1", None).await.unwrap();
    let leader = cluster.wait_for_lease();
    let moved = (leader + 1) % 3;
    assert_eq!(cluster.nodes[moved].stop(), 0);
    // Only the moved node knows its new place; the others are not told.
    let old_configs: Vec<String> = cluster
        .nodes
        .iter()
        .map(|n| std::fs::read_to_string(&n.config).unwrap())
        .collect();
    let new_peer = std::net::SocketAddr::from(([127, 0, 0, 1], crate::harness::free_port()));
    let text = old_configs[moved].replace(
        &cluster.nodes[moved].peer.to_string(),
        &new_peer.to_string(),
    );
    std::fs::write(&cluster.nodes[moved].config, text).unwrap();
    cluster.nodes[moved].peer = new_peer;
    client.put("b", "2", None).await.unwrap();
    cluster.nodes[moved].start();
    let serializable = GetOptions::new().with_consistency(Consistency::Serializable);
    let alone = cluster.client_at(&[moved]).await;
    let started = Instant::now();
    loop {
        let get = alone.get("b", Some(serializable.clone())).await;
        if get.is_ok_and(|get| get.count == Some(1)) {
            break;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "the moved node never caught up"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_only_read_on_a_follower_is_sent_on_to_the_leader() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let client = cluster.client_at(&[(leader + 1) % 3]).await;
    client.put("a", "1", None).await.unwrap();
    let lease_only = GetOptions::new().with_consistency(Consistency::LeaseOnly);
    let started = Instant::now();
    let got = loop {
        let got = client.get("a", Some(lease_only.clone())).await;
        let by_follower = |get: &GetResponse| {
            let header = &get.header;
            header.leader_id != Some(header.member_id)
        };
        // Whoever has lost the leader may ask a follower, which answers by its leader's lease.
        if !got.as_ref().is_ok_and(by_follower) {
            break got;
        }
        assert!(started.elapsed() < PATIENCE, "no leader answers: {got:?}");
    };
    match got {
        Ok(get) => assert_eq!(get.header.read.unwrap().path, ReadPath::Lease),
        Err(error) => assert_eq!(error.kind, ErrorKind::LeaseInvalid, "{error}"),
    }
}

#[test]
fn the_command_line_does_what_the_library_does() {
    let cluster = Cluster::start(3);
    assert_eq!(
        cluster.cli(&["put", "foo", "bar", "--exactly-once"]),
        (0, "OK\n".into(), String::new())
    );
    let (code, out, _) = cluster.cli(&["put", "foo", "bar2", "--prev-kv", "--exactly-once"]);
    assert_eq!((code, out.as_str()), (0, "OK\nfoo\nbar\n"));
    let (code, out, _) = cluster.cli(&["get", "foo"]);
    assert_eq!((code, out.as_str()), (0, "foo\nbar2\n"));
    // A machine that stands still for half a second ends a lease; the next get is under it again.
    // Which node is asked first is anybody's guess: a follower answers by its leader's lease.
    let out = eventually("a get under the lease", || {
        let asked = ["get", "foo", "--consistency", "lease", "-o", "fields"];
        let (code, out, _) = cluster.cli(&asked);
        let paths = ["lease", "follower"].map(|path| format!("\"ReadPath\" : \"{path}\"\n"));
        (code == 0 && paths.iter().any(|path| out.contains(path))).then_some(out)
    });
    assert!(out.contains("\"LeaseRemainingMs\" : "), "{out}");
    assert!(out.contains("\"Version\" : 2"), "{out}");
    let (code, out, _) = cluster.cli(&["del", "--prefix", "fo", "--exactly-once"]);
    assert_eq!((code, out.as_str()), (0, "1\n"));
    eventually("one leader and two followers", || {
        let (code, out, _) = cluster.cli(&["endpoint", "status", "-o", "table"]);
        let count = |role| out.matches(&format!("| {role} ")).count();
        (code == 0 && count("follower") == 2 && count("leader") == 1).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_in_one_process_elect_a_leader_that_hands_over_when_it_stops() {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = embedded::start(folder.path(), 3).await;
    let options = embedded::client_options(folder.path());
    let client = Client::connect(embedded::endpoints(&servers), Some(options))
        .await
        .unwrap();
    client.put("k", "v", None).await.unwrap();
    let leader = embedded::lease_holder(&servers).await;
    let term = servers[leader].status().term;
    servers.remove(leader).shutdown().await;
    let next = embedded::lease_holder(&servers).await;
    assert!(servers[next].status().term > term);
    assert_eq!(
        client.get("k", None).await.unwrap().kvs[0].value.as_ref(),
        b"v"
    );
    client.close().await;
    for server in servers {
        server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_room_goes_on_when_another_one_of_its_connection_leaves_some() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[limits]\nmax_inflight = 2\n");
    cluster.start_and_settle();
    let client = cluster.client().await;
    // Large values travel on a stream of their own, and small ones take all the room there is.
    for round in 0..20 {
        let small = (0..8).map(|number| (format!("small/{round}/{number}"), 10));
        let puts = small
            .chain([(format!("large/{round}"), 40 << 10)])
            .map(|(key, bytes)| {
                let client = client.clone();
                async move { client.put(key, vec![7; bytes], None).await }
            });
        for put in futures_join(puts).await {
            put.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_lets_go_of_its_data_directory() {
    let folder = tempfile::tempdir().unwrap();
    let config = embedded::configurations(folder.path(), 1).remove(0);
    let options = leasehold::server::ServerOptions::default;
    let server = leasehold::server::Server::start(config.clone(), options())
        .await
        .unwrap();
    drop(server);
    // Its threads finish what they hold; then, and not before, the directory is free.
    let started = Instant::now();
    let again = loop {
        match leasehold::server::Server::start(config.clone(), options()).await {
            Ok(server) => break server,
            Err(error) => {
                assert!(error.to_string().contains("in use"), "{error}");
                assert!(started.elapsed() < PATIENCE, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    again.shutdown().await;
}

/// What nobody waits for gives way to what somebody does wait for.
#[cfg(target_os = "linux")]
#[test]
fn threads_in_the_background_have_a_lower_priority_than_the_others() {
    let cluster = Cluster::start(1);
    let process = cluster.nodes[0].process.as_ref().unwrap().id();
    let niceness = |thread: &str| {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let stats = tasks
            .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok());
        let mut found = stats.filter_map(|stat| {
            // The nineteenth field of proc_pid_stat(5), the third of which comes first here.
            let (before, after) = stat.rsplit_once(") ")?;
            let named = before.ends_with(&format!("(n1-{thread}"));
            named.then(|| after.split(' ').nth(16).unwrap().parse::<i32>().unwrap())
        });
        found.next().unwrap_or_else(|| panic!("no thread {thread}"))
    };
    let first = ["driver", "log", "state"].map(niceness);
    assert!(first.iter().all(|of| *of == first[0]), "{first:?}");
    let background = ["database", "gc", "journal", "compactor"].map(niceness);
    let lower = (first[0] + 5).min(19);
    assert!(background.iter().all(|of| *of == lower), "{background:?}");
}
