//! Clients that reach one node, which does not lead: it takes to the leader what only that carries out.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use leasehold::api::{
    Compare, CompareOp, Consistency, ErrorKind, MemberAddRequest, TxnOp, TxnRequest,
};
use leasehold::client::recipes::Lock;
use leasehold::client::{Client, GetOptions, PutOptions, TimeToLiveOptions, WatchEvent};

use crate::access::{ANNA_PASSWORD, as_user, connect, guard};
use crate::admin::hand_over;
use crate::harness::{Cluster, eventually, free_port, judged, leasehold_command, run};

const TTL: Duration = Duration::from_secs(600);
const FORWARDS: &str = "leasehold_requests_total{method=\"forward_to_leader\",code=\"OK\"} ";

/// Three nodes that say of each other that clients find them where nobody listens. With the place of one that does
/// not lead, as long as the leader does not change.
fn behind_a_wall() -> (Cluster, usize) {
    let mut cluster = Cluster::prepare(3);
    let nowhere = free_port();
    cluster.write_configs(&format!("[advertise]\nclient = \"127.0.0.1:{nowhere}\"\n"));
    let leader = cluster.start_and_settle();
    (cluster, (leader + 1) % 3)
}

/// A write, a lease with a key, a transaction and a lock, from their begin to their end.
async fn everything_works(client: &Client) {
    client.put("k", "v", None).await.unwrap();
    let found = client.get("k", None).await.unwrap();
    assert_eq!(
        found.value().unwrap(),
        "v",
        "it is seen where it was asked for"
    );
    let txn = TxnRequest::new()
        .when([Compare::version("k", CompareOp::Greater, 0)])
        .and_then([TxnOp::put("t", "yes")])
        .or_else([TxnOp::put("t", "no")]);
    assert!(client.txn(txn, None).await.unwrap().succeeded);

    let lease = client.lease();
    let id = lease.grant(TTL, None).await.unwrap().id;
    client
        .put("held", "v", Some(PutOptions::new().with_lease(id)))
        .await
        .unwrap();
    assert_eq!(lease.keep_alive_once(id).await.unwrap(), TTL);
    let with_keys = TimeToLiveOptions::new().with_keys();
    for options in [None, Some(with_keys)] {
        let has_keys = options.is_some();
        let info = lease.time_to_live(id, options).await.unwrap();
        assert!(info.remaining_ms.is_some(), "the leader's word: {info:?}");
        assert_eq!(
            (info.key_count, info.keys.len()),
            (1, usize::from(has_keys))
        );
    }
    let all = lease.leases(None).await.unwrap();
    let own = all.iter().find(|info| info.id == id).expect("it is listed");
    assert!(own.remaining_ms.is_some(), "{own:?}");
    assert_eq!(lease.revoke(id).await.unwrap().deleted, 1);
    let gone = lease.time_to_live(id, None).await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::LeaseNotFound);

    for consistency in [
        Consistency::LinearizableQuorum,
        Consistency::Serializable,
        Consistency::MaxStaleness(TTL),
    ] {
        let how = GetOptions::new().with_consistency(consistency);
        let found = client.get("k", Some(how)).await.unwrap();
        assert_eq!(found.value().unwrap(), "v", "{consistency:?}");
    }
    let all = GetOptions::new().with_prefix();
    let mut stream = client.get_stream("t", Some(all)).unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().value, "yes");
    let mut watcher = client.watch("w", None).await.unwrap();
    let put = client.put("w", "v", None).await.unwrap().header.revision;
    loop {
        match watcher.next().await.unwrap().unwrap() {
            WatchEvent::Events { revision, .. } => break assert_eq!(revision, put),
            _ => continue,
        }
    }
    assert_eq!(client.delete("w", None).await.unwrap().deleted, 1);
    client.compact(put, None).await.unwrap();
    let mut snapshot = client.snapshot(None).await.unwrap();
    let mut bytes = 0;
    while let Some(part) = snapshot.next().await {
        bytes += part.unwrap().len();
    }
    assert!(bytes > 0);
    client.auth().role_add("r").await.unwrap();
    let roles = client.auth().role_list().await.unwrap();
    assert!(roles.contains(&"r".to_owned()), "{roles:?}");
    client.auth().role_delete("r").await.unwrap();
    changes_members(client).await;

    let session = lease.session(TTL, None).await.unwrap();
    let lock = Lock::new(&session, "l");
    let held = lock.acquire().await.unwrap();
    assert!(held.fencing_token() > 0);
    held.release().await.unwrap();
    session.close().await.unwrap();
}

/// Adds a learner and takes it away again. A change is refused while another is under way.
async fn changes_members(client: &Client) {
    let learner = MemberAddRequest {
        name: "n9".into(),
        peer_address: format!("127.0.0.1:{}", free_port()),
        ..MemberAddRequest::default()
    };
    let add = judged(async || client.member_add(learner.clone()).await).await;
    let members = add.unwrap().members;
    let id = members.iter().find(|member| member.info.name == "n9");
    let id = id.expect("it was added").info.id;
    let remove = judged(async || client.member_remove(id).await).await;
    assert_eq!(remove.unwrap().members.len(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reaches_a_follower_alone_does_everything_there() {
    let (mut cluster, place) = behind_a_wall();
    let client = cluster.client_at(&[place]).await;
    everything_works(&client).await;
    let leader = cluster.wait_for_lease();
    if leader != place {
        assert!(cluster.nodes[place].metric(FORWARDS) >= 1.0);
    }
    // The next leader is out of reach as well, or is the node itself.
    hand_over(&client).await;
    everything_works(&client).await;
}

/// A17, A18: whatever becomes of the leader and of the node that forwards, each write is applied once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forwarded_is_applied_once_though_leaders_die() {
    const PUTS: i64 = 120;
    let (mut cluster, place) = behind_a_wall();
    let client = cluster.client_at(&[place]).await;
    client.put("counted", "0", None).await.unwrap();
    let mut puts = tokio::task::JoinSet::new();
    for number in 1..PUTS {
        let client = client.clone();
        puts.spawn(async move { client.put("counted", number.to_string(), None).await });
        if number == PUTS / 2 {
            let leader = cluster.wait_for_lease();
            if leader != place {
                cluster.nodes[leader].kill();
            }
        }
        if number % 8 == 0 {
            puts.join_next().await.unwrap().unwrap().unwrap();
        }
    }
    while let Some(done) = puts.join_next().await {
        done.unwrap().unwrap();
    }
    let found = client.get("counted", None).await.unwrap();
    assert_eq!(found.kv().unwrap().version, PUTS, "each of them once");
}

/// The author travels along, and the rules are those of whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forwarded_is_judged_as_the_client_s() {
    let (cluster, place) = behind_a_wall();
    let open = cluster.client_at(&[place]).await;
    open.put("b", "v", None).await.unwrap();
    let others = open.lease().grant(TTL, None).await.unwrap().id;
    guard(&cluster).await;
    let endpoint = cluster.nodes[place].client.to_string();
    let options = as_user(&cluster, "anna", ANNA_PASSWORD);
    let options = options.with_connect_timeout(Duration::from_secs(30));
    let anna = cluster.client_of(vec![endpoint], options).await;
    anna.put("a/w/1", "v", None).await.unwrap();
    let denied = anna.put("b", "x", None).await.unwrap_err();
    assert_eq!(denied.kind, ErrorKind::PermissionDenied, "{denied}");
    let lease = anna.lease();
    let own = lease.grant(TTL, None).await.unwrap().id;
    anna.put("a/w/1", "v", Some(PutOptions::new().with_lease(own)))
        .await
        .unwrap();
    let with_keys = || Some(TimeToLiveOptions::new().with_keys());
    let info = lease.time_to_live(own, with_keys()).await.unwrap();
    assert_eq!(info.keys, ["a/w/1"]);
    // What hangs on a lease she may see as far as she may read it.
    let root = connect(
        &cluster,
        as_user(&cluster, "root", crate::access::ROOT_PASSWORD),
    )
    .await;
    root.put("secret", "v", Some(PutOptions::new().with_lease(others)))
        .await
        .unwrap();
    let denied = lease.time_to_live(others, with_keys()).await.unwrap_err();
    assert_eq!(denied.kind, ErrorKind::PermissionDenied, "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_works_through_one_follower() {
    let (cluster, place) = behind_a_wall();
    let mut flags = cluster.flags();
    flags[0] = format!("--endpoints={}", cluster.nodes[place].client);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let cli = |arguments: &[&str]| {
        eventually("an outcome that is known", || {
            let (code, out, error) = run(&[&flags[..], arguments].concat());
            // A machine may stand still for longer than a handshake, or an election, may take.
            let is_late = code == 3 || code == 4;
            (!is_late).then_some((code, out, error))
        })
    };
    let must = |arguments: &[&str]| {
        let (code, out, error) = cli(arguments);
        assert_eq!(code, 0, "{arguments:?}: {error}");
        out
    };
    assert_eq!(must(&["put", "k", "v", "--exactly-once"]), "OK\n");
    assert_eq!(must(&["get", "k"]), "k\nv\n");
    let granted = must(&["lease", "grant", "600", "--exactly-once"]);
    let id = granted.split(' ').nth(1).expect("its id").to_owned();
    let kept = must(&["lease", "keep-alive", "--once", &id]);
    assert!(kept.contains("keepalived with TTL(600s)"), "{kept}");
    let left = must(&["lease", "timetolive", &id]);
    assert!(!left.contains("unknown here"), "{left}");
    assert!(must(&["lease", "list"]).contains(&id));
    let revoked = must(&["lease", "revoke", &id, "--exactly-once"]);
    assert!(revoked.contains("revoked"), "{revoked}");
    let said = must(&["lock", "l", "--exactly-once", "--", "echo", "mine"]);
    assert!(said.contains("mine"), "{said}");

    let mut child = leasehold_command()
        .args(&flags)
        .args(["txn", "--exactly-once"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input
        .write_all(b"version(\"k\") > \"0\"\n\nput t yes\n\nput t no\n")
        .unwrap();
    drop(input);
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.starts_with("SUCCESS"), "{said}");
    assert_eq!(must(&["get", "t"]), "t\nyes\n");
}
