//! The admin port: probes that tell a start from a partition, what a node shows of itself, and what
//! can be done to it from its own machine.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use leasehold::client::LeaseGrantOptions;
use leasehold::client::PutOptions;
use leasehold::client::WatchEvent;
use leasehold::client::WatchOptions;
use leasehold::types::Role;

use crate::harness::Cluster;
use crate::harness::PATIENCE;
use crate::harness::eventually;
use crate::harness::run;

/// The checks of `/readyz`, as they are shown.
const READY: [&str; 11] = [
    "started",
    "storage_writable",
    "serializable_read",
    "linearizable_read",
    "leader_known",
    "caught_up",
    "non_learner",
    "log_whole",
    "data_corruption",
    "certificates",
    "not_stopping",
];

#[test]
fn every_check_of_a_healthy_cluster_passes_on_every_node_each_by_its_own_path() {
    let cluster = Cluster::start(3);
    for node in &cluster.nodes {
        eventually("a node that is ready", || {
            (node.admin("/readyz")?.0 == 200).then_some(())
        });
        let (status, text) = node.admin("/readyz?verbose").unwrap();
        let expected = READY.map(|check| format!("[+]{check} ok\n")).concat();
        assert_eq!((status, text), (200, expected + "readyz check passed\n"));
        for check in READY {
            let path = format!("/readyz/{check}");
            assert_eq!(node.admin(&path), Some((200, "ok\n".to_owned())), "{path}");
        }
        assert_eq!(node.admin("/livez/threads").unwrap().0, 200);
        let (status, text) = node.admin("/startupz").unwrap();
        assert_eq!((status, text.as_str()), (200, r#"{"phase":"serving"}"#));
        let (status, text) = node.admin("/health").unwrap();
        assert_eq!(status, 200, "{text}");
        assert_eq!(text, r#"{"health":"true","reason":""}"#);
        let (_, text) = node.admin("/version").unwrap();
        let version: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(version["cluster"], 1);
        assert_eq!(version["cluster_supported"]["newest"], 1);
        assert_eq!(version["leasehold"], env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn a_node_without_a_majority_lives_and_is_not_ready() {
    let mut cluster = Cluster::start(3);
    eventually("a start that ended", || {
        (cluster.nodes[0].admin("/startupz")?.0 == 200).then_some(())
    });
    cluster.nodes[1].kill();
    cluster.nodes[2].kill();
    let node = &cluster.nodes[0];
    let text = eventually("a node that is not ready", || {
        let (status, text) = node.admin("/readyz")?;
        (status == 503 && text.contains("[-]leader_known")).then_some(text)
    });
    assert!(text.contains("[-]linearizable_read failed: "), "{text}");
    assert!(text.contains("[+]serializable_read ok"), "{text}");
    assert_eq!(node.admin("/livez").unwrap().0, 200);
    assert_eq!(
        node.admin("/startupz").unwrap().0,
        200,
        "it has started, whatever became of the others"
    );
    assert_eq!(node.admin("/readyz/leader_known").unwrap().0, 503);
    assert_eq!(node.admin("/health").unwrap().0, 503);
    assert_eq!(node.admin("/health?serializable=true").unwrap().0, 200);
    eventually("a state that is too old", || {
        (node.admin("/readyz/caught_up")?.0 == 503).then_some(())
    });
    let needed = "/readyz?exclude=leader_known&exclude=linearizable_read&exclude=caught_up";
    assert_eq!(node.admin(needed).unwrap().0, 200);
}

#[test]
fn a_start_says_what_it_waits_for_and_ends_with_serving() {
    let mut cluster = Cluster::prepare(3);
    cluster.nodes[0].start();
    // Alone it finds no leader.
    let node = &cluster.nodes[0];
    let text = eventually("a start that waits", || {
        let (status, text) = node.admin("/startupz")?;
        (status == 503 && text.contains("joining")).then_some(text)
    });
    assert_eq!(text, r#"{"phase":"joining"}"#);
    assert_eq!(node.admin("/livez").unwrap().0, 200);
    cluster.nodes[1].start();
    cluster.nodes[2].start();
    for node in &cluster.nodes {
        eventually("a start that ended", || {
            (node.admin("/startupz")?.0 == 200).then_some(())
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_shows_itself_its_members_leases_watches_and_connections() {
    let mut cluster = Cluster::prepare(3);
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    let ttl = Duration::from_secs(600);
    let options = LeaseGrantOptions::new()
        .with_name("job")
        .with_owner("host-7");
    let named = client.lease().grant(ttl, Some(options)).await.unwrap();
    let other = client.lease().grant(ttl, None).await.unwrap();
    let put = PutOptions::new().with_lease(named.id);
    client.put("a\"\n", "1", Some(put)).await.unwrap();
    let watch = WatchOptions::new().with_prefix();
    let mut watcher = client.watch("svc/", Some(watch)).await.unwrap();
    client.put("svc/a", "1", None).await.unwrap();
    watcher.next().await.unwrap().unwrap();

    let node = &cluster.nodes[leader];
    let (_, status) = node.manage("GET", "/admin/v1/status", "");
    assert_eq!(status["name"], *node.name);
    assert_eq!(status["role"], "leader");
    assert_eq!(status["leader"]["name"], *node.name);
    assert_eq!(status["leader_lease"]["is_valid"], true);
    assert_eq!(status["is_stopping"], false);
    assert!(status["revision"].as_i64().unwrap() >= 3, "{status}");
    assert_eq!(status["startup"]["phase"], "serving");

    let (_, members) = node.manage("GET", "/admin/v1/members", "");
    let members = members["members"].as_array().unwrap();
    assert_eq!(members.len(), 3);
    for (member, known) in members.iter().zip(&cluster.nodes) {
        assert_eq!(member["name"], *known.name);
        assert_eq!(member["part"], "voter");
        assert_eq!(member["is_connected"], true, "{member}");
        assert_eq!(member["is_leader"], known.name == node.name);
        assert_eq!(member["peer_address"], known.peer.to_string());
    }

    let (_, lease) = node.manage("GET", "/admin/v1/leader-lease", "");
    assert_eq!(lease["is_valid"], true);
    assert_eq!(lease["lease_duration_ms"], 500);
    let renewals = |lease: &serde_json::Value| lease["renewal_count"].as_u64().unwrap();
    assert!(renewals(&lease) > 0);
    let (_, report) = node.manage("GET", "/admin/v1/leader-lease/report", "");
    assert!(
        report["renew_interval"]["count"].as_u64().unwrap() > 0,
        "{report}"
    );
    assert_eq!(
        node.manage("POST", "/admin/v1/leader-lease/reset-stats", "")
            .0,
        200
    );
    let (_, after) = node.manage("GET", "/admin/v1/leader-lease", "");
    let so_far = node.metric("leasehold_leader_lease_renewals_total");
    assert!(
        (renewals(&after) as f64) < so_far,
        "only what is shown here begins anew"
    );

    let (_, leases) = node.manage("GET", "/admin/v1/leases", "");
    assert_eq!(leases["leases"].as_array().unwrap().len(), 2, "{leases}");
    assert_eq!(leases["may_be_old"], false);
    let (_, leases) = node.manage("GET", "/admin/v1/leases?owner=host-7&prefix=j", "");
    let found = leases["leases"].as_array().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["name"], "job");
    assert_eq!(found[0]["keys"], 1);
    assert!(found[0]["remaining_ms"].as_u64().unwrap() > 0);
    let (_, first) = node.manage("GET", "/admin/v1/leases?limit=1", "");
    let cursor = first["next"].as_str().expect("there is a second page");
    let path = format!("/admin/v1/leases?limit=1&cursor={cursor}");
    let (_, second) = node.manage("GET", &path, "");
    assert_eq!(
        second["leases"][0]["id"],
        format!("{:016x}", other.id.max(named.id))
    );
    let path = format!("/admin/v1/leases/{:016x}", named.id);
    let (_, one) = node.manage("GET", &path, "");
    assert_eq!(one["attached"][0], "a\\\"\\n");

    // Of a follower: what there is, and not what is left.
    let follower = &cluster.nodes[(leader + 1) % 3];
    let leases = eventually("a follower that has both", || {
        let (status, leases) = follower.manage("GET", "/admin/v1/leases", "");
        (status == 200 && leases["leases"].as_array()?.len() == 2).then_some(leases)
    });
    assert_eq!(leases["may_be_old"], true);
    assert_eq!(leases["leases"][0]["remaining_ms"], serde_json::Value::Null);
    let (status, refused) = follower.manage("DELETE", &path, "");
    assert_eq!(status, 503);
    assert_eq!(refused["error"]["code"], "LH-NOT-LEADER");
    assert_eq!(
        refused["error"]["leader"]["client_address"],
        node.client.to_string()
    );

    let (status, revoked) = node.manage("DELETE", &path, "");
    assert_eq!((status, &revoked["deleted"]), (200, &1.into()), "{revoked}");
    assert!(client.get("a\"\n", None).await.unwrap().kvs.is_empty());
    let (status, refused) = node.manage("DELETE", &path, "");
    assert_eq!(status, 404);
    assert_eq!(refused["error"]["code"], "LH-LEASE-NOT-FOUND");

    let watched: Vec<_> = cluster
        .nodes
        .iter()
        .flat_map(|node| {
            let (_, watches) = node.manage("GET", "/admin/v1/watches", "");
            watches["watches"].as_array().unwrap().clone()
        })
        .collect();
    assert_eq!(watched.len(), 1, "{watched:?}");
    assert_eq!(watched[0]["client"], "tester");
    assert_eq!(watched[0]["from"], "svc/");
    assert_eq!(watched[0]["until"], "svc0");
    assert_eq!(watched[0]["phase"], "current");
    assert_eq!(watched[0]["lag"], 0);

    let (_, connections) = node.manage("GET", "/admin/v1/connections", "");
    let peers = connections["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 2, "{connections}");
    let clients = connections["clients"].as_array().unwrap();
    assert!(
        clients.iter().any(|one| one["name"] == "tester"),
        "{connections}"
    );
    assert!(
        peers
            .iter()
            .all(|one| one["sent_bytes"].as_u64().unwrap() > 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_hands_over_serves_nobody_and_keeps_the_majority_of_the_others() {
    let mut cluster = Cluster::prepare(3);
    let leader = cluster.start_and_settle();
    let client = cluster.client().await;
    client.put("k", "1", None).await.unwrap();
    let watch = WatchOptions::new().with_prefix();
    let mut watcher = client.watch("k", Some(watch)).await.unwrap();
    let admin = cluster.nodes[leader].admin.to_string();
    let (code, stdout, stderr) = run(&["drain", "--admin", &admin]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("drained: "), "{stdout}");
    assert!(stdout.contains(" leads now"), "{stdout}");

    let node = &cluster.nodes[leader];
    assert_eq!(node.admin("/livez").unwrap().0, 200);
    let (status, text) = node.admin("/readyz").unwrap();
    assert_eq!(status, 503);
    assert!(text.contains("[-]not_stopping failed"), "{text}");
    let (_, status) = node.manage("GET", "/admin/v1/status", "");
    assert_eq!(status["is_stopping"], true);
    assert_ne!(status["role"], "leader");
    // Who asks it alone is refused, and may still ask how it is.
    let flags = cluster.flags();
    let alone = |words: &[&str]| {
        let endpoint = format!("--endpoints={}", node.client);
        let mut all = vec![endpoint.as_str(), "--timeout=2s"];
        all.extend(flags[1..4].iter().map(String::as_str));
        all.extend(words);
        run(&all)
    };
    let (code, _, stderr) = alone(&["get", "k", "--consistency", "s"]);
    assert_ne!(code, 0);
    assert!(stderr.contains("stopping"), "{stderr}");
    let (code, _, stderr) = alone(&["endpoint", "status"]);
    assert_eq!(code, 0, "{stderr}");
    // It follows: with one of the others gone there is still a majority of two, and it does not lead.
    let next = cluster.wait_for_lease();
    assert_ne!(next, leader);
    let third = 3 - leader - next;
    cluster.nodes[third].kill();
    client.put("k", "2", None).await.unwrap();
    let heard = async {
        loop {
            let told = watcher.next().await.unwrap().unwrap();
            if let WatchEvent::Events { events, .. } = told
                && events.iter().any(|event| event.kv.value == "2")
            {
                return;
            }
        }
    };
    let heard = tokio::time::timeout(PATIENCE, heard).await;
    heard.expect("the watch goes on at another node");
    // Once more is the same, and then it stops as any other does.
    let (code, stdout, _) = run(&["drain", "--admin", &admin, "-o", "json"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &document["drained"]), (0, &true.into()));
    assert_eq!(cluster.nodes[leader].stop(), 0);
    // And serves again once it is started.
    cluster.nodes[leader].start();
    let node = &cluster.nodes[leader];
    eventually("a node that is ready again", || {
        (node.admin("/readyz")?.0 == 200).then_some(())
    });
}

#[test]
fn a_drain_of_what_is_not_there_says_where_to_look() {
    let nobody = crate::harness::free_port();
    let (code, _, stderr) = run(&["drain", "--admin", &format!("127.0.0.1:{nobody}")]);
    assert_eq!(code, 3);
    assert!(stderr.contains("listen.admin"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_is_handed_to_whom_the_operator_names() {
    let mut cluster = Cluster::prepare(3);
    let leader = cluster.start_and_settle();
    let target = (leader + 1) % 3;
    let name = cluster.nodes[target].name.clone();
    let path = format!("/admin/v1/transfer-leadership?to={name}");
    // A follower must have caught up: which it has a moment after the election.
    let (_, moved) = eventually("a hand-over", || {
        let answer = cluster.nodes[leader].manage("POST", &path, "");
        (answer.0 == 200).then_some(answer)
    });
    assert_eq!(moved["transferred"], true, "{moved}");
    assert_eq!(cluster.wait_for_lease(), target);
    let node = &cluster.nodes[target];
    let (status, refused) = node.manage("POST", "/admin/v1/transfer-leadership?to=nobody", "");
    assert_eq!(status, 400);
    let detail = refused["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("\"nobody\" is no member"), "{detail}");
}

#[test]
fn the_log_filter_and_the_certificates_change_while_the_node_runs() {
    let cluster = Cluster::start(1);
    let node = &cluster.nodes[0];
    let path = "/admin/v1/log-level";
    let (_, filter) = node.manage("GET", path, "");
    assert_eq!(filter["filter"], "info");
    let before = node.log_text();
    assert!(
        !before.contains("client connected"),
        "a line of level debug"
    );
    let wanted = r#"{"filter":"info,leasehold::server=debug"}"#;
    let (status, changed) = node.manage("PUT", path, wanted);
    assert_eq!(status, 200, "{changed}");
    assert_eq!(changed["before"], "info");
    cluster.cli(&["put", "k", "v"]);
    eventually("a line that was not written before", || {
        node.log_text().contains("client connected").then_some(())
    });
    for (body, problem) in [
        (r#"{"filter":"info,leasehold=loud"}"#, "cannot be used"),
        (r#"{"level":"info"}"#, "unknown field"),
        ("nonsense", "send {"),
    ] {
        let (status, refused) = node.manage("PUT", path, body);
        let detail = refused["error"]["detail"].as_str().unwrap().to_owned();
        assert_eq!(status, 400, "{detail}");
        assert!(detail.contains(problem), "{detail}");
    }
    let (_, filter) = node.manage("GET", path, "");
    assert_eq!(filter["filter"], "info,leasehold::server=debug");
    let (status, _) = node.http(
        &format!("PUT {path} HTTP/1.1\r\nHost: localhost"),
        &"x".repeat(5_000),
    );
    assert_eq!(status, 413);

    let ok = "leasehold_tls_reloads_total{role=\"client\",result=\"ok\"}";
    assert_eq!(node.metric(ok), 0.0);
    let (status, reloaded) = node.manage("POST", "/admin/v1/tls/reload", "");
    assert_eq!((status, &reloaded["reloaded"]), (200, &true.into()));
    assert_eq!(node.metric(ok), 1.0);
    let key = cluster.pki.file("n1-server.key");
    std::fs::write(&key, "nonsense").unwrap();
    let (status, refused) = node.manage("POST", "/admin/v1/tls/reload", "");
    assert_eq!(status, 409);
    let problem = refused["error"]["problems"][0].as_str().unwrap();
    assert!(problem.starts_with("[tls.client]"), "{problem}");
    cluster.cli(&["put", "k", "v"]);
}

#[test]
fn who_is_not_on_the_machine_or_asks_nonsense_is_told_so_and_changes_nothing() {
    let mut cluster = Cluster::prepare(1);
    let metrics = crate::harness::free_port();
    let node = &cluster.nodes[0];
    let text = std::fs::read_to_string(&node.config).unwrap();
    let listen = format!("[listen]\nmetrics = \"127.0.0.1:{metrics}\"\n");
    std::fs::write(&node.config, text.replace("[listen]\n", &listen)).unwrap();
    cluster.start_and_settle();
    let node = &cluster.nodes[0];
    let (status, text) = node.http("GET /admin/v1/nothing HTTP/1.1\r\nHost: localhost", "");
    assert_eq!(status, 404);
    assert!(
        text.contains("/admin/v1/drain") && text.contains("/startupz"),
        "{text}"
    );
    for (method, path) in [
        ("GET", "/admin/v1/drain"),
        ("POST", "/admin/v1/status"),
        ("DELETE", "/admin/v1/leases"),
        ("POST", "/startupz"),
    ] {
        let (status, _) = node.http(&format!("{method} {path} HTTP/1.1\r\nHost: localhost"), "");
        assert_eq!(status, 405, "{method} {path}");
    }
    let (status, refused) = node.manage("GET", "/admin/v1/leases?colour=red", "");
    assert_eq!(status, 400, "{refused}");
    let (status, refused) = node.manage("GET", "/admin/v1/leases/zzz", "");
    assert_eq!(status, 400, "{refused}");
    // By a name that somebody else made point here, or from a page in a browser.
    for head in [
        "POST /admin/v1/drain HTTP/1.1\r\nHost: evil.example",
        "POST /admin/v1/drain HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example",
        "GET /admin/v1/status HTTP/1.1\r\nHost: evil.example",
    ] {
        let (status, text) = node.http(head, "");
        assert_eq!(status, 403, "{text}");
    }
    // The port for other machines has probes and metrics, and nothing else.
    let elsewhere = |request: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", metrics)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(elsewhere("GET /readyz"), "200");
    assert_eq!(elsewhere("GET /startupz"), "200");
    assert_eq!(elsewhere("GET /metrics"), "200");
    assert_eq!(elsewhere("GET /admin/v1/status"), "404");
    assert_eq!(elsewhere("POST /admin/v1/drain"), "404");
    let (_, status) = node.manage("GET", "/admin/v1/status", "");
    assert_eq!(status["is_stopping"], false);
    assert_eq!(status["role"], Role::Leader.to_string());
}
