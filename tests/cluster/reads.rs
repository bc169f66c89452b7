//! Reads where the leader is not: at followers, of bounded staleness, at a revision; and reads while
//! leadership moves, or fails to.

use std::time::{Duration, Instant};

use leasehold::api::{Consistency, ErrorKind, Outcome, ReadInfo, ReadPath};
use leasehold::client::{Client, GetOptions, GetResponse, WatchEvent, WatchOptions};

use crate::admin::hand_over;
use crate::harness::{Cluster, Node, PATIENCE, eventually, run};

/// A client that knows one node alone.
async fn client_of(cluster: &Cluster, node: usize) -> Client {
    cluster.client_at(&[node]).await
}

fn how(consistency: Consistency) -> Option<GetOptions> {
    Some(GetOptions::new().with_consistency(consistency))
}

/// At this node and no other.
pub(crate) fn at(cluster: &Cluster, node: usize) -> GetOptions {
    GetOptions::new().with_endpoint(cluster.nodes[node].client.to_string())
}

pub(crate) fn read(get: &GetResponse) -> ReadInfo {
    get.header.read.expect("a read says how it was served")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_serves_what_was_just_acknowledged_followers_by_their_leaders_word() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let (mut round, mut followed) = (0, [0_u32; 3]);
    let began = Instant::now();
    // Two of three do not lead, whoever does; what a follower cannot answer in time its leader does.
    while followed.iter().filter(|times| **times >= 15).count() < 2 {
        assert!(began.elapsed() < PATIENCE, "{followed:?}");
        round += 1;
        let put = client.put("k", format!("{round}"), None).await.unwrap();
        for (node, followed) in followed.iter_mut().enumerate() {
            let get = client.get("k", Some(at(&cluster, node))).await.unwrap();
            assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
            assert!(get.header.revision >= put.header.revision);
            let read = read(&get);
            assert_ne!(read.path, ReadPath::Serializable);
            assert!(read.applied_index >= read.read_index);
            assert_eq!(read.staleness, None, "nothing is left out");
            *followed += u32::from(read.path == ReadPath::Follower);
        }
    }
    for node in 0..3 {
        let quorum = at(&cluster, node).with_consistency(Consistency::LinearizableQuorum);
        let quorum = client.get("k", Some(quorum)).await;
        let read = read(&quorum.unwrap());
        assert!(
            read.lease_remaining.is_zero(),
            "no lease took part: {read:?}"
        );
    }
    let served = |node: &Node| node.metric("leasehold_reads_total{path=\"follower\"}");
    let served: f64 = cluster.nodes.iter().map(served).sum();
    let followed = f64::from(followed.iter().sum::<u32>());
    assert!(served >= followed, "{served} of {followed}");
}

/// A follower that is cut off goes on serving what may be old. A client that has seen more asks another, and one
/// that wants whatever there is gets it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_seen_more_than_a_node_has_reads_elsewhere() {
    let (mut cluster, wires) = Cluster::prepare_wired(3);
    let leader = cluster.start_and_settle();
    let (follower, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let writer = cluster.client_at(&[leader, third]).await;
    let first = writer.put("k", "old", None).await.unwrap().header.revision;
    let there = || at(&cluster, follower).with_consistency(Consistency::Serializable);
    let caught_up = writer.get("k", Some(there().with_min_revision(first)));
    assert_eq!(caught_up.await.unwrap().kvs[0].value, "old");
    wires.cut(follower, true);
    let second = writer.put("k", "new", None).await.unwrap().header.revision;
    let served = |node: &Node| node.metric("leasehold_reads_total{path=\"serializable\"}");
    let stale = || how(Consistency::Serializable);

    let began = Instant::now();
    let before = served(&cluster.nodes[follower]);
    while served(&cluster.nodes[follower]) == before {
        assert!(began.elapsed() < PATIENCE, "the follower is never asked");
        let client = cluster.client_at(&[follower, leader, third]).await;
        let seen = client.get("k", None).await.unwrap();
        assert_eq!(seen.kvs[0].value, "new");
        for _ in 0..5 {
            let read = client.get("k", stale()).await.unwrap();
            assert_eq!(read.kvs[0].value, "new", "{read:?}");
            assert!(read.header.revision >= second);
        }
    }
    // By itself the follower has nothing newer, and says so to who asks for anything.
    let careless = cluster.options().with_monotonic(false);
    let careless = cluster.client_with(careless).await;
    assert_eq!(careless.get("k", None).await.unwrap().kvs[0].value, "new");
    let read = careless.get("k", Some(there())).await.unwrap();
    assert_eq!(
        (&read.kvs[0].value[..], read.header.revision),
        (&b"old"[..], first)
    );
    // What a watch has told counts as seen.
    let before = served(&cluster.nodes[follower]);
    while served(&cluster.nodes[follower]) == before {
        assert!(began.elapsed() < PATIENCE, "the follower is never asked");
        let watching = cluster.client_at(&[follower, third]).await;
        let options = WatchOptions::new()
            .with_start_revision(second)
            .with_endpoint(cluster.nodes[third].client.to_string());
        let mut watcher = watching.watch("k", Some(options)).await.unwrap();
        loop {
            let event = tokio::time::timeout(PATIENCE, watcher.next()).await;
            let event = event.expect("an event").unwrap().unwrap();
            if matches!(event, WatchEvent::Events { revision, .. } if revision == second) {
                break;
            }
        }
        for _ in 0..5 {
            let read = watching.get("k", stale()).await.unwrap();
            assert_eq!(read.kvs[0].value, "new", "{read:?}");
        }
    }
    wires.cut(follower, false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_served_while_it_is_young_enough_and_not_longer() {
    let mut cluster = Cluster::start(3);
    cluster.client().await.put("k", "v", None).await.unwrap();
    let most = PATIENCE;
    let started = Instant::now();
    let (follower, client, first) = loop {
        // Anew each time: a follower may come to lead, and a client that was sent on to the leader
        // stays there.
        let follower = (cluster.wait_for_lease() + 1) % 3;
        let client = client_of(&cluster, follower).await;
        let get = client.get("k", how(Consistency::MaxStaleness(most))).await;
        let get = get.unwrap();
        let read = read(&get);
        // Until it has exchanged a heartbeat or two, it asks. The write is young, and may not
        // be seen yet.
        if read.path == ReadPath::Serializable && get.count == Some(1) {
            break (follower, client, read);
        }
        assert!(started.elapsed() < PATIENCE, "{read:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(first.staleness.is_some_and(|staleness| staleness <= most));

    // The others are gone: nobody tells it that its state is the newest.
    for other in (0..3).filter(|node| *node != follower) {
        cluster.nodes[other].kill();
    }
    let old = Duration::from_millis(700);
    let started = Instant::now();
    loop {
        let get = client
            .get("k", how(Consistency::Serializable))
            .await
            .unwrap();
        let known = read(&get).staleness.expect("it goes on being known");
        if known > old {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{known:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let soon = how(Consistency::MaxStaleness(old))
        .map(|options| options.with_timeout(Duration::from_secs(3)));
    let error = client.get("k", soon).await.unwrap_err();
    assert_eq!(error.outcome, Outcome::NotApplied, "{error}");
    // Refusing some is no reason to refuse all. (All of this took less than a minute.)
    if started.elapsed() < PATIENCE / 2 {
        let patient = how(Consistency::MaxStaleness(2 * PATIENCE));
        let get = client.get("k", patient).await.unwrap();
        assert_eq!(get.kvs[0].value.as_ref(), b"v");
        let read = read(&get);
        assert!(
            read.staleness.is_some_and(|staleness| staleness > old),
            "{read:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_waits_for_the_revision_that_its_caller_has_seen() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let writer = cluster.client().await;
    let client = client_of(&cluster, (leader + 1) % 3).await;
    for round in 0..20 {
        let put = writer.put("k", format!("{round}"), None).await.unwrap();
        let seen = put.header.revision;
        let options = how(Consistency::Serializable).map(|options| options.with_min_revision(seen));
        let get = client.get("k", options).await.unwrap();
        assert!(get.header.revision >= seen);
        assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
        assert_eq!(read(&get).path, ReadPath::Serializable);
    }
    for consistency in [Consistency::Serializable, Consistency::Linearizable] {
        let options = how(consistency).map(|options| {
            let options = options.with_min_revision(1_000_000);
            options.with_timeout(Duration::from_secs(2))
        });
        let began = Instant::now();
        loop {
            let error = client.get("k", options.clone()).await.unwrap_err();
            if error.kind == ErrorKind::FutureRevision {
                break;
            }
            // Whoever was asked says it shortly before it is too late, unless it stood still then.
            assert_eq!(error.outcome, Outcome::NotApplied, "{error}");
            assert!(began.elapsed() < PATIENCE, "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_to_a_node_that_is_gone_leaves_a_leader_with_a_lease() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let client = cluster.client().await;
    let put = client.put("k", "v", None).await.unwrap();
    // All three have taken part: one that has not might be one that lost everything, and two are
    // needed to go on without the target.
    for node in 0..3 {
        let options = how(Consistency::Serializable);
        let options = options.map(|options| options.with_min_revision(put.header.revision));
        let client = client_of(&cluster, node).await;
        client.get("k", options).await.unwrap();
    }
    let target = (leader + 1) % 3;
    let status = client
        .status(&cluster.nodes[target].client.to_string())
        .await;
    let target_id = status.unwrap().header.member_id;
    cluster.nodes[target].kill();
    let logs = || cluster.nodes.iter().map(Node::log_text).collect::<String>();
    let began = Instant::now();
    loop {
        match client.move_leader(Some(target_id)).await {
            Err(error) if error.detail.contains("did not become leader") => break,
            // An election takes its time.
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error:?}\n{}", logs()),
            // Nor does the old leader stay for ever; then it was the third who was elected.
            Ok(_) => assert!(began.elapsed() < PATIENCE, "it is dead\n{}", logs()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.wait_for_lease();
    client.put("k", "w", None).await.unwrap();
    let get = client.get("k", None).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"w");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_at_every_node_go_on_while_leadership_moves_about() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let put = client.put("k", "v", None).await.unwrap();
    let seen = put.header.revision;
    let mut readers = Vec::new();
    let (over, _) = tokio::sync::watch::channel(false);
    for node in 0..3 {
        let (reader, here) = (client.clone(), at(&cluster, node));
        let over = over.subscribe();
        readers.push(tokio::spawn(async move {
            let mut paths = Vec::new();
            while !*over.borrow() {
                let get = reader.get("k", Some(here.clone())).await;
                let get = get.expect("it waits for a leader");
                assert!(get.header.revision >= seen);
                paths.push(read(&get).path);
                // Who reads without a break leaves nobody the time to elect a leader.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            paths
        }));
    }
    for _ in 0..5 {
        hand_over(&client).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    over.send(true).unwrap();
    for reader in readers {
        let paths = reader.await.unwrap();
        assert!(paths.contains(&ReadPath::Follower), "{}", paths.len());
    }
}

/// The first that a user sees.
#[test]
fn the_first_read_of_a_client_is_under_the_lease_whichever_node_it_knows() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.cli(&["put", "foo", "bar", "--exactly-once"]).0, 0);
    for node in &cluster.nodes {
        let mut flags = cluster.flags();
        flags[0] = format!("--endpoints={}", node.client);
        flags.extend(["get", "foo", "-o", "fields"].map(str::to_owned));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        // A machine that stands still ends a lease, and a node may not know yet who leads.
        eventually("a read under the lease", || {
            let (_, out, _) = run(&flags);
            out.contains("\"ReadPath\" : \"lease\"").then_some(())
        });
    }
}

#[test]
fn the_command_line_asks_for_bounded_staleness_by_a_duration() {
    let cluster = Cluster::start(3);
    assert_eq!(cluster.cli(&["put", "foo", "bar", "--exactly-once"]).0, 0);
    // A leader without its lease, or a follower that has heard nothing yet, asks the others.
    eventually("a read under the lease, or of a known age", || {
        let (code, out, _) = cluster.cli(&["get", "foo", "--consistency", "1m", "-o", "fields"]);
        let leased = out.contains("\"ReadPath\" : \"lease\"");
        (code == 0 && (leased || out.contains("\"StalenessMs\" : "))).then_some(())
    });
    let (code, _, err) = cluster.cli(&["get", "foo", "--consistency", "old"]);
    assert_eq!(code, 2);
    assert!(err.contains("500ms"), "{err}");
}
