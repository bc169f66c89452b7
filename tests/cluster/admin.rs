//! The admin port: probes that tell a start from a partition, what a node shows of itself, and what
//! can be done to it from its own machine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use leasehold::api::{ErrorKind, Outcome};
use leasehold::client::{Client, LeaseGrantOptions, PutOptions, WatchEvent, WatchOptions};
use leasehold::types::Role;

use crate::harness::{Cluster, Node, PATIENCE, eventually, run};

/// Leaders that stay in office, and keep their lease, though somebody stands still for seconds.
const CALM: &str = "[leader_lease]\nduration = \"5s\"\nmax_clock_skew = \"500ms\"\n\
     [raft]\nelection_timeout_min = \"6s\"\nelection_timeout_max = \"7s\"\n\
     step_down_after = \"6s\"\n";

/// Asks again until nothing is wrong. What is wrong for too long is why a test fails.
fn in_the_end(mut check: impl FnMut() -> Result<(), String>) {
    let began = Instant::now();
    while let Err(problem) = check() {
        assert!(began.elapsed() < PATIENCE, "{problem}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has somebody else lead. A hand-over to a node that stands still for a moment fails for good, and is
/// asked for anew; so is one that was asked of a leader who has just lost its place by itself. Says
/// whether it was acknowledged in the end, or just happened.
pub(crate) async fn hand_over(client: &Client) -> bool {
    let began = Instant::now();
    let leads = async || {
        let read = client.get("who-leads", None).await.unwrap();
        read.header.leader_id
    };
    let old = leads().await;
    while let Err(error) = client.move_leader(None).await {
        assert!(began.elapsed() < PATIENCE, "{error}");
        let may_pass = error.is_retryable()
            || error.kind == ErrorKind::DeadlineExceeded
            || error.outcome == Outcome::Unknown;
        assert!(may_pass, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = leads().await;
        if old.is_some() && now.is_some() && now != old {
            return false;
        }
    }
    true
}

/// The checks of `/readyz`, as they are shown.
const READY: [&str; 12] = [
    "started",
    "storage_writable",
    "serializable_read",
    "linearizable_read",
    "leader_known",
    "caught_up",
    "non_learner",
    "log_whole",
    "data_corruption",
    "sole_process",
    "certificates",
    "not_stopping",
];

/// That a node answers with 200 and this text.
fn says(node: &Node, path: &str, expected: &str) -> Result<(), String> {
    match node.admin(path) {
        Some((200, text)) if text == expected => Ok(()),
        answer => Err(format!("{}: {path}: {answer:?}", node.name)),
    }
}

#[test]
fn every_check_of_a_healthy_cluster_passes_on_every_node_each_by_its_own_path() {
    let cluster = Cluster::start(3);
    for node in &cluster.nodes {
        // Each needs a leader and a read within a second: an election may begin at any of them.
        in_the_end(|| {
            let lines = READY.map(|check| format!("[+]{check} ok\n")).concat();
            says(node, "/readyz?verbose", &(lines + "readyz check passed\n"))?;
            for check in READY {
                says(node, &format!("/readyz/{check}"), "ok\n")?;
            }
            let threads = node.admin("/livez/threads");
            if threads.as_ref().is_none_or(|(status, _)| *status != 200) {
                return Err(format!("{}: /livez/threads: {threads:?}", node.name));
            }
            says(node, "/startupz", r#"{"phase":"serving"}"#)?;
            says(node, "/health", r#"{"health":"true","reason":""}"#)
        });
        let (_, text) = eventually("the versions", || node.admin("/version"));
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
    for (path, expected) in [
        ("/livez", 200),
        // It has started, whatever became of the others.
        ("/startupz", 200),
        ("/readyz/leader_known", 503),
        ("/health", 503),
        ("/health?serializable=true", 200),
    ] {
        let (status, said) = eventually(path, || node.admin(path));
        assert_eq!(status, expected, "{path}: {said}");
    }
    eventually("a state that is too old", || {
        (node.admin("/readyz/caught_up")?.0 == 503).then_some(())
    });
    let needed = "/readyz?exclude=leader_known&exclude=linearizable_read&exclude=caught_up";
    assert_eq!(eventually(needed, || node.admin(needed)).0, 200);
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
    assert_eq!(eventually("life", || node.admin("/livez")).0, 200);
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
    // All of it is asked of one leader.
    cluster.write_configs(CALM);
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
    let status = eventually("a status with a valid lease", || {
        let (_, status) = node.manage("GET", "/admin/v1/status", "");
        (status["leader_lease"]["is_valid"] == true).then_some(status)
    });
    assert_eq!(status["name"], *node.name);
    assert_eq!(status["role"], "leader");
    assert_eq!(status["leader"]["name"], *node.name);
    assert_eq!(status["is_stopping"], false);
    assert!(status["revision"].as_i64().unwrap() >= 3, "{status}");
    assert_eq!(status["startup"]["phase"], "serving");

    let members = eventually("three members that are connected", || {
        let (_, members) = node.manage("GET", "/admin/v1/members", "");
        let members = members["members"].as_array()?.clone();
        // What a member is comes from the log, and may come after its connection.
        let mut known = members
            .iter()
            .map(|member| member["is_connected"] == true && member["part"] != "none");
        (members.len() == 3 && known.all(|is_known| is_known)).then_some(members)
    });
    for (member, known) in members.iter().zip(&cluster.nodes) {
        assert_eq!(member["name"], *known.name);
        assert_eq!(member["part"], "voter");
        assert_eq!(member["is_leader"], known.name == node.name);
        assert_eq!(member["peer_address"], known.peer.to_string());
    }

    let lease = eventually("a valid lease", || {
        let (_, lease) = node.manage("GET", "/admin/v1/leader-lease", "");
        (lease["is_valid"] == true).then_some(lease)
    });
    assert_eq!(lease["lease_duration_ms"], 5_000);
    assert_eq!(lease["max_clock_skew_ms"], 500);
    let renewals = |lease: &serde_json::Value| lease["renewal_count"].as_u64().unwrap();
    assert!(renewals(&lease) > 0);
    // The first renewal has none before it.
    eventually("an interval between two renewals", || {
        let (_, report) = node.manage("GET", "/admin/v1/leader-lease/report", "");
        (report["renew_interval"]["count"].as_u64()? > 0).then_some(())
    });
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

    // It may be on its way from one node to another.
    in_the_end(|| {
        let watched: Vec<_> = cluster
            .nodes
            .iter()
            .flat_map(|node| {
                let (_, watches) = node.manage("GET", "/admin/v1/watches", "");
                watches["watches"].as_array().unwrap().clone()
            })
            .collect();
        let is_it = |watch: &serde_json::Value| {
            watch["client"] == "tester"
                && watch["from"] == "svc/"
                && watch["until"] == "svc0"
                && watch["phase"] == "current"
                && watch["lag"] == 0
        };
        match &watched[..] {
            [watch] if is_it(watch) => Ok(()),
            _ => Err(format!("not the one watch: {watched:?}")),
        }
    });

    in_the_end(|| {
        let (_, connections) = node.manage("GET", "/admin/v1/connections", "");
        let peers = connections["peers"].as_array().unwrap();
        let clients = connections["clients"].as_array().unwrap();
        let sends = |peer: &serde_json::Value| peer["sent_bytes"].as_u64().unwrap() > 0;
        let is_all = peers.len() == 2
            && peers.iter().all(sends)
            && clients.iter().any(|one| one["name"] == "tester");
        match is_all {
            true => Ok(()),
            false => Err(format!("not the connections: {connections}")),
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_hands_over_serves_nobody_and_keeps_the_majority_of_the_others() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("k", "1", None).await.unwrap();
    let watch = WatchOptions::new().with_prefix();
    let mut watcher = client.watch("k", Some(watch)).await.unwrap();
    let began = Instant::now();
    let (leader, admin) = loop {
        let leader = cluster.wait_for_lease();
        let admin = cluster.nodes[leader].admin.to_string();
        let (code, stdout, stderr) = run(&["drain", "--admin", &admin]);
        assert_eq!(code, 0, "{stderr}");
        assert!(stdout.starts_with("drained: "), "{stdout}");
        let is_handed_over = ["is the new leader", "leadership was transferred"];
        if is_handed_over.iter().any(|said| stdout.contains(said)) {
            break (leader, admin);
        }
        // Another one had come to lead by then, or stood still for longer than the drain waits: it
        // says so, and is tried again.
        let is_told = ["it was not the leader", "leadership was not transferred: "];
        assert!(is_told.iter().any(|said| stdout.contains(said)), "{stdout}");
        assert!(began.elapsed() < PATIENCE, "{stdout}");
        assert_eq!(cluster.nodes[leader].stop(), 0);
        cluster.nodes[leader].start();
        cluster.wait_until_settled();
    };

    let node = &cluster.nodes[leader];
    assert_eq!(eventually("life", || node.admin("/livez")).0, 200);
    let (status, text) = eventually("whether it is ready", || node.admin("/readyz"));
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
    // What took too long says that, and not why.
    eventually("a refusal of a node that is stopping", || {
        let (code, _, stderr) = alone(&["get", "k", "--consistency", "s"]);
        assert_ne!(code, 0);
        stderr.contains("stopping").then_some(())
    });
    let told = eventually("how it is", || {
        let (code, told, _) = alone(&["endpoint", "status"]);
        (code == 0).then_some(told)
    });
    assert!(told.contains(" (drained), "), "{told}");
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

/// A profile is off unless it was asked for, and tells of the threads by their names.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_works_on_is_seen_in_its_profile() {
    let mut cluster = Cluster::prepare(1);
    cluster.start_and_settle();
    let (status, refusal) = cluster.nodes[0].manage("GET", "/debug/profile", "");
    assert_eq!(status, 404);
    let detail = refusal["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("admin.profiling = true"), "{detail}");
    assert_eq!(cluster.nodes[0].stop(), 0);
    cluster.write_configs("[admin]\nprofiling = true\n");
    cluster.start_and_settle();

    let client = cluster.client().await;
    let load = tokio::spawn(async move {
        loop {
            // An election may come between; the load goes on.
            let _ = client.put("k", "v", None).await;
        }
    });
    let node = &cluster.nodes[0];
    let admin = node.admin;
    in_the_end(|| {
        let head = format!(
            "GET /debug/profile?seconds=1 HTTP/1.1\r\nHost: {admin}\r\nAccept: application/json"
        );
        let (status, body) = node.http(&head, "");
        assert_eq!(status, 200, "{body}");
        let profile: serde_json::Value = serde_json::from_str(&body).unwrap();
        let threads = profile["threads"].as_array().unwrap();
        let number = |of: &serde_json::Value, key: &str| of[key].as_u64().unwrap();
        let works = |thread: &serde_json::Value| {
            number(thread, "user_ms") + number(thread, "system_ms") > 0
                && number(thread, "voluntary_switches") > 0
        };
        // It passes each of those writes on.
        let is_driver =
            |thread: &&serde_json::Value| thread["name"].as_str().unwrap().ends_with("-driver");
        let drives = threads.iter().find(is_driver).is_some_and(works);
        let workers = profile["runtime"]["workers"].as_array().unwrap();
        let serves = workers.iter().any(|worker| number(worker, "busy_ms") > 0);
        let is_sum = number(&profile, "user_ms")
            == threads.iter().map(|it| number(it, "user_ms")).sum::<u64>();
        match drives && serves && is_sum && number(&profile, "readings") > 1 {
            true => Ok(()),
            false => Err(format!("no thread is seen to work: {profile}")),
        }
    });
    load.abort();
    let head = format!("GET /debug/profile?seconds=1 HTTP/1.1\r\nHost: {admin}");
    let (_, text) = node.http(&head, "");
    assert!(
        text.contains("\nTHREAD ") && text.contains("-driver "),
        "{text}"
    );
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
    let mut cluster = Cluster::start(3);
    eventually("the one who was named to lead", || {
        let leader = cluster.leader()?;
        let target = (leader + 1) % 3;
        let name = cluster.nodes[target].name.clone();
        let path = format!("/admin/v1/transfer-leadership?to={name}");
        let (status, moved) = cluster.nodes[leader].manage("POST", &path, "");
        // A follower must have caught up: which it has a moment after the election. And the leader
        // may have lost its place meanwhile.
        if status != 200 {
            return None;
        }
        assert_eq!(moved["transferred"], true, "{moved}");
        let now = cluster.wait_for_lease();
        // If it does not, another election was won by somebody else, who stood still for less long.
        (now == target).then_some(())
    });
    // A follower would send on whoever asks.
    let refused = eventually("a leader that refuses", || {
        let node = &cluster.nodes[cluster.leader()?];
        let (status, refused) = node.manage("POST", "/admin/v1/transfer-leadership?to=nobody", "");
        (status == 400).then_some(refused)
    });
    let detail = refused["error"]["detail"].as_str().unwrap();
    assert!(detail.contains("\"nobody\" is not a member"), "{detail}");
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
        (r#"{"filter":"info,leasehold=loud"}"#, "is invalid"),
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

/// What was set is told with its place, and nothing of what a file holds that it names.
#[test]
fn a_node_tells_what_it_goes_by_and_who_said_so() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("slow_request = \"7ms\"\n");
    cluster.start_and_settle();
    let node = &cluster.nodes[0];
    let (status, document) = node.manage("GET", "/admin/v1/config", "");
    assert_eq!(status, 200, "{document}");
    let settings = &document["settings"];
    let known: Vec<&str> = leasehold::server::config::SETTINGS
        .iter()
        .map(|setting| setting.key)
        .collect();
    let told = settings.as_object().unwrap();
    assert_eq!(told.len(), known.len());
    assert!(known.iter().all(|key| told.contains_key(*key)));

    let slow = &settings["log.slow_request"];
    assert_eq!(
        (&slow["value"], &slow["source"]),
        (&"7ms".into(), &"file".into())
    );
    let text = std::fs::read_to_string(&node.config).unwrap();
    let line = 1 + text
        .lines()
        .position(|line| line.starts_with("slow_request"))
        .unwrap();
    let place = format!("{}:{line}", node.config.display());
    assert_eq!(slow["place"], place);
    let key = &settings["tls.peer.key_file"];
    let path = format!("{}.key", cluster.pki.file("n1-peer"));
    assert_eq!(
        (&key["value"], &key["source"]),
        (&path.into(), &"file".into())
    );
    let quota = &settings["quota.bytes"];
    assert_eq!(
        (&quota["value"], &quota["source"]),
        (&"8GiB".into(), &"default".into())
    );
    assert!(quota["place"].is_null() && settings["backup.dir"]["value"].is_null());
    // Nobody set it, and it is told all the same where clients come.
    assert!(settings["advertise.client"]["value"].is_null());
    assert_eq!(
        document["in_use"]["advertise.client"],
        node.client.to_string()
    );
    assert_eq!(document["in_use"]["log.filter"], "info");
    let (status, _) = node.manage("PUT", "/admin/v1/log-level", r#"{"filter":"warn"}"#);
    assert_eq!(status, 200);
    let (_, later) = node.manage("GET", "/admin/v1/config", "");
    assert_eq!(later["in_use"]["log.filter"], "warn");
    assert_eq!(later["settings"], *settings, "that is what was set");

    // Of every file that is named, nothing of what is in it.
    let shown = document.to_string();
    for (_, given) in told {
        let Some(text) = given["value"]
            .as_str()
            .and_then(|path| std::fs::read_to_string(path).ok())
        else {
            continue;
        };
        for line in text.lines().filter(|line| line.len() > 20) {
            assert!(!shown.contains(line), "{line}");
        }
    }
    assert!(!shown.contains("PRIVATE KEY"));
    // Flags and the environment are named, too.
    let mut by_others = crate::harness::leasehold_command();
    cluster.nodes[0].stop();
    let node = &mut cluster.nodes[0];
    let child = by_others
        .args([
            "serve",
            "--config",
            node.config.to_str().unwrap(),
            "--limits.max_inflight=9",
        ])
        .env("LEASEHOLD_LOG_SLOW_REQUEST", "8ms")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    node.process = Some(child);
    cluster.wait_for_lease();
    let (_, document) = cluster.nodes[0].manage("GET", "/admin/v1/config", "");
    let slow = &document["settings"]["log.slow_request"];
    let expected = serde_json::json!({
        "value": "8ms", "source": "environment", "place": "LEASEHOLD_LOG_SLOW_REQUEST",
    });
    assert_eq!(*slow, expected);
    let inflight = &document["settings"]["limits.max_inflight"];
    let expected = serde_json::json!({
        "value": "9", "source": "flag", "place": "--limits.max_inflight",
    });
    assert_eq!(*inflight, expected);
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
        ("GET", "/admin/v1/snapshot"),
        ("DELETE", "/admin/v1/leases"),
        ("POST", "/startupz"),
    ] {
        let (status, _) = node.http(&format!("{method} {path} HTTP/1.1\r\nHost: localhost"), "");
        assert_eq!(status, 405, "{method} {path}");
    }
    for (path, known) in [
        ("/readyz?exclude=typo", READY.join(" ")),
        ("/livez?exclude=typo", "threads".to_owned()),
        ("/health?exclude=typo", "NOSPACE CORRUPT".to_owned()),
    ] {
        let (status, said) = eventually(path, || node.admin(path));
        assert_eq!(status, 400, "{path}: {said}");
        assert!(said.ends_with(&format!("choose from {known}\n")), "{said}");
    }
    let (status, refused) = node.manage("GET", "/admin/v1/leases?colour=red", "");
    assert_eq!(status, 400, "{refused}");
    let (status, refused) = node.manage("GET", "/admin/v1/leases/zzz", "");
    assert_eq!(status, 400, "{refused}");
    // By a name that somebody else made point here, or from a page in a browser.
    for head in [
        "POST /admin/v1/drain HTTP/1.1\r\nHost: evil.example",
        "POST /admin/v1/snapshot HTTP/1.1\r\nHost: evil.example",
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

/// The storage engine tells the log alone why it stopped.
#[test]
fn what_the_storage_engine_has_to_say_reaches_the_log_and_what_nobody_needs_does_not() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("filter = \"info,fjall=info\"\n");
    cluster.start_and_settle();
    let said = cluster.nodes[0].log_text();
    assert!(said.contains("INFO fjall::"), "{said}");

    let quiet = Cluster::start(1);
    let said = quiet.nodes[0].log_text();
    assert!(!said.contains("fjall"), "{said}");
}
