//! What a user can get wrong: each is refused with a sentence that says what to do.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use leasehold::api::{ErrorKind, Limits, Outcome};
use leasehold::client::{Client, ConnectOptions, TlsOptions};
use leasehold::pki::{Authority, IdentityFiles};

use crate::harness::{Cluster, Pki, copy_folder, leasehold_command, left_out, run};

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_and_values_outside_the_limits_are_refused_and_took_no_effect() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let limits = Limits::DEFAULT;
    let key = |length| "k".repeat(length);

    let error = client.put("", "v", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("the key is empty"), "{error}");

    let error = client
        .put(key(limits.key_bytes_max + 1), "v", None)
        .await
        .unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::RequestTooLarge { .. }),
        "{error}"
    );
    assert_eq!(error.outcome, Outcome::NotApplied);
    client
        .put(key(limits.key_bytes_max), "v", None)
        .await
        .unwrap();

    let value = vec![7; limits.value_bytes_max + 1];
    let error = client.put("big", value, None).await.unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::RequestTooLarge { .. }),
        "{error}"
    );
    assert_eq!(client.get("big", None).await.unwrap().count, Some(0));
    client
        .put("big", vec![7; limits.value_bytes_max], None)
        .await
        .unwrap();
    let get = client.get("big", None).await.unwrap();
    assert_eq!(get.kvs[0].value.len(), limits.value_bytes_max);
}

#[test]
fn the_command_line_says_what_is_wrong_with_it() {
    let (code, _, error) = run(&["frobnicate"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("frobnicate"), "{error}");
    let (code, _, error) = run(&["put", "onlykey"]);
    assert_eq!(code, 2, "{error}");
    let cluster = Cluster::start(1);
    let (code, _, error) = cluster.cli(&["put", "", "v"]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("the key is empty"), "{error}");
}

/// What would do more than was meant, or nothing at all, has not been asked of a cluster.
#[test]
fn an_empty_prefix_deletes_nothing_and_an_empty_transaction_is_none() {
    let cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    for line in [&["del", "--prefix", ""][..], &["del", "--from-key", ""]] {
        let (code, _, error) = cluster.cli(line);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains("--all"), "{error}");
    }
    let (code, _, error) = cluster.cli(&["txn"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("the transaction is empty"), "{error}");
    let (code, out, error) = cluster.cli(&["get", "k"]);
    assert_eq!((code, out.as_str()), (0, "k\nv\n"), "{error}");
}

#[test]
fn a_variable_that_is_not_text_is_named() {
    for variable in [
        "CONSISTENCY",
        "CONTEXT",
        "DEV",
        "DISCOVERY_DNS",
        "DISCOVERY_SRV",
        "DISCOVERY_SRV_NAME",
        "ENDPOINTS",
        "OUTPUT",
        "PRIORITY",
        "TIMEOUT",
        "USER",
    ] {
        let variable = format!("LEASEHOLD_{variable}");
        let mut command = leasehold_command();
        command.env(&variable, OsStr::from_bytes(b"\xff"));
        let output = command.args(["get", "k"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{variable}: {error}");
        let said = format!("the environment variable {variable} is not valid UTF-8");
        assert!(error.contains(&said), "{variable}: {error}");
    }
}

#[test]
fn nobody_there_is_exit_code_three() {
    let folder = tempfile::tempdir().unwrap();
    let pki = Pki::create(&folder.path().join("pki"));
    let (code, _, error) = run(&[
        &format!("--endpoints=127.0.0.1:{}", crate::harness::free_port()),
        &format!("--cacert={}", pki.file("client-ca.pem")),
        &format!("--cert={}", pki.file("tester.pem")),
        &format!("--key={}", pki.file("tester.key")),
        "--timeout=2s",
        "get",
        "k",
    ]);
    assert_eq!(code, 3, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_wrong_an_expired_or_a_nodes_certificate_is_refused() {
    let cluster = Cluster::start(1);
    let ours = Authority::load(&cluster.pki.path).unwrap();
    let folder = cluster.folder.path();
    let connect = |ca: String, stem: String| {
        let options = ConnectOptions::new()
            .with_tls(
                TlsOptions::new()
                    .ca_pem_file(ca)
                    .identity_pem_files(format!("{stem}.pem"), format!("{stem}.key")),
            )
            .with_timeout(Duration::from_secs(3));
        Client::connect(cluster.endpoints(), Some(options))
    };
    let our_ca = cluster.pki.file("client-ca.pem");

    // Another cluster's client, even one that trusts our authority.
    let other = Pki::create(&folder.join("other"));
    let theirs = other.file("tester");
    let error = refusal(|| connect(our_ca.clone(), theirs.clone())).await;
    assert!(is_about_certificates(&error), "{error}");
    // Our client does not take another cluster's node for its own, either.
    let tester = cluster.pki.file("tester");
    let error = refusal(|| connect(other.file("client-ca.pem"), tester.clone())).await;
    assert!(is_about_certificates(&error), "{error}");

    // Expired a day ago.
    let long_ago = SystemTime::now() - 3 * DAY;
    let expired = ours.issue_client("late", DAY, long_ago).unwrap();
    IdentityFiles::client(folder, "late")
        .write(&expired, false)
        .unwrap();
    let stem = folder.join("late").to_str().unwrap().to_owned();
    let error = refusal(|| connect(our_ca.clone(), stem.clone())).await;
    assert!(error.contains("expired"), "{error}");

    // A node's certificate does not make a client.
    let node = cluster.pki.file("n1-server");
    let error = refusal(|| connect(our_ca.clone(), node.clone())).await;
    assert!(is_about_certificates(&error), "{error}");

    // And whoever is right still gets in.
    cluster.client().await.put("k", "v", None).await.unwrap();
}

/// The error of a connection that must not come about.
async fn refusal(connect: impl AsyncFn() -> Result<Client, leasehold::api::Error>) -> String {
    let began = Instant::now();
    loop {
        let error = match connect().await {
            Err(error) => error,
            Ok(client) => client
                .put("k", "v", None)
                .await
                .expect_err("the server must refuse it"),
        };
        let said = error.to_string();
        // A node that stands still says nothing of who is let in.
        let is_late = matches!(
            error.kind,
            ErrorKind::ConnectFailed | ErrorKind::DeadlineExceeded
        ) && (said.contains("in time") || said.contains("stopped responding"));
        if !is_late {
            return said;
        }
        assert!(began.elapsed() < crate::harness::PATIENCE, "{said}");
    }
}

fn is_about_certificates(error: &str) -> bool {
    ["certificate", "Certificate", "cluster", "authorit"]
        .iter()
        .any(|word| error.contains(word))
}

/// Starts a node that must refuse, and returns what it said.
fn refused_start(cluster: &mut Cluster, node: usize) -> String {
    cluster.nodes[node].start();
    let code = cluster.nodes[node].wait_for_exit();
    assert_ne!(code, 0, "it ended as if all were well");
    cluster.nodes[node].log_text()
}

#[test]
fn a_port_in_use_is_named() {
    let mut cluster = Cluster::prepare(1);
    let taken = std::net::UdpSocket::bind(cluster.nodes[0].client).unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(
        said.contains(&taken.local_addr().unwrap().to_string()),
        "{said}"
    );
    assert!(said.contains("in use"), "{said}");
    drop(taken);
    let taken = std::net::TcpListener::bind(cluster.nodes[0].admin).unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(
        said.contains(&taken.local_addr().unwrap().to_string()),
        "{said}"
    );
}

#[test]
fn a_data_directory_belongs_to_one_process_at_a_time() {
    let mut cluster = Cluster::start(1);
    // A second process with other ports and the same directory.
    let text = fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let node = &cluster.nodes[0];
    let other = ["client", "peer", "admin"]
        .iter()
        .zip([node.client, node.peer, node.admin])
        .fold(text, |text, (_, address)| {
            let free = format!("127.0.0.1:{}", crate::harness::free_port());
            text.replace(&address.to_string(), &free)
        });
    let config = cluster.folder.path().join("second.toml");
    fs::write(&config, other).unwrap();
    let output = leasehold_command()
        .args(["serve", "--config", config.to_str().unwrap()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("in use") || said.contains("another process"),
        "{said}"
    );
    // The first process goes on.
    cluster.wait_for_lease();
    assert_eq!(cluster.nodes[0].stop(), 0);
}

#[test]
fn a_foreign_data_directory_is_not_touched() {
    let mut cluster = Cluster::prepare(1);
    let directory = cluster.nodes[0].data_dir.clone();
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("thesis.txt"), "years of work").unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(said.contains(directory.to_str().unwrap()), "{said}");
    assert_eq!(
        fs::read_to_string(directory.join("thesis.txt")).unwrap(),
        "years of work"
    );
    assert_eq!(
        fs::read_dir(&directory).unwrap().count(),
        1,
        "nothing was added"
    );
}

#[test]
fn another_clusters_data_directory_is_refused() {
    let mut first = Cluster::start(1);
    assert_eq!(first.nodes[0].stop(), 0);
    let mut second = Cluster::prepare(1);
    let text = fs::read_to_string(&second.nodes[0].config).unwrap();
    let own = second.nodes[0].data_dir.display().to_string();
    let others = first.nodes[0].data_dir.display().to_string();
    fs::write(&second.nodes[0].config, text.replace(&own, &others)).unwrap();
    let said = refused_start(&mut second, 0);
    assert!(said.contains("cluster"), "{said}");
    // The owner still starts from it.
    first.start_all();
    first.wait_for_lease();
}

#[test]
fn a_state_of_another_format_is_refused_and_left_to_the_release_that_wrote_it() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let format = cluster.nodes[0].data_dir.join("state/format");
    let ours = fs::read_to_string(&format).unwrap();
    for (other, which) in [
        ("leasehold state 1\n", "state format 1"),
        (
            "leasehold state 99\nchecksum: 5d6a569e\n",
            "state format 99",
        ),
    ] {
        fs::write(&format, other).unwrap();
        let before = cluster.nodes[0].log_text().len();
        let said = refused_start(&mut cluster, 0).split_off(before);
        assert!(said.contains(which), "{said}");
        assert!(said.contains("release that wrote it"), "{said}");
        let aside = cluster.nodes[0].data_dir.join("state.damaged-1");
        assert!(!aside.exists(), "nothing was moved");
    }
    fs::write(&format, ours).unwrap();
    cluster.nodes[0].start();
    cluster.wait_for_lease();
    let (code, found, _) = cluster.cli(&["get", "k", "--print-value-only"]);
    assert_eq!((code, found.trim()), (0, "v"));
}

#[test]
fn a_corrupt_data_directory_is_noticed() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let identity = cluster.nodes[0].data_dir.join("identity");
    let mut bytes = fs::read(&identity).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&identity, bytes).unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(said.contains("identity"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_log_puts_one_replica_in_quarantine_and_its_peers_heal_it() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    for number in 0..50 {
        client.put(format!("k{number}"), "v", None).await.unwrap();
    }
    let damaged = (cluster.wait_for_lease() + 1) % 3;
    assert_eq!(cluster.nodes[damaged].stop(), 0);
    flip_in_the_middle_of_the_log(&cluster.nodes[damaged].data_dir);
    cluster.nodes[damaged].start();
    crate::harness::eventually("a sentence about the damage", || {
        let said = cluster.nodes[damaged].log_text();
        (said.contains("damaged") && said.contains("quarantin")).then_some(())
    });
    // It asks its peers, holds everything again, and serves.
    let endpoint = cluster.nodes[damaged].client.to_string();
    let alone = cluster.client_at(&[damaged]).await;
    let started = Instant::now();
    loop {
        if let Ok(status) = alone.status(&endpoint).await
            && crate::harness::is_healthy(status.status.role)
            && status.status.applied_index >= status.status.commit_index
            && status.status.commit_index.0 > 50
        {
            break;
        }
        assert!(
            started.elapsed() < crate::harness::PATIENCE,
            "it never came out of quarantine:\n{}",
            cluster.nodes[damaged].log_text()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    client.put("after", "v", None).await.unwrap();
}

/// A log and a vote file from an earlier day fit together, and say nothing of what came later: only the
/// state knows that acknowledged entries are missing.
#[test]
fn a_log_that_lost_its_end_puts_the_node_in_quarantine_with_a_sentence() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "old", "--exactly-once"]).0, 0);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let data_dir = cluster.nodes[0].data_dir.clone();
    let earlier = cluster.folder.path().join("earlier");
    copy_folder(&data_dir, &earlier);
    cluster.start_and_settle();
    assert_eq!(cluster.cli(&["put", "k", "new", "--exactly-once"]).0, 0);
    assert_eq!(cluster.nodes[0].stop(), 0);
    fs::remove_dir_all(data_dir.join("log")).unwrap();
    copy_folder(&earlier.join("log"), &data_dir.join("log"));
    fs::copy(earlier.join("vote"), data_dir.join("vote")).unwrap();
    cluster.nodes[0].start();
    crate::harness::eventually("a sentence about the damage", || {
        let said = cluster.nodes[0].log_text();
        (said.contains("its end is lost") && said.contains("restore")).then_some(())
    });
    let asked = ["get", "k", "--consistency", "l", "--timeout=1s"];
    // That it could not be reached for a moment says nothing of what it serves.
    let (code, shown, error) = crate::harness::eventually("a node that answers", || {
        Some(cluster.cli(&asked)).filter(|(code, ..)| *code != 3)
    });
    assert_eq!((code, shown.as_str()), (1, ""), "it refuses: {error}");
    // After another start it is still so.
    cluster.nodes[0].kill();
    fs::remove_file(&cluster.nodes[0].log).unwrap();
    cluster.nodes[0].start();
    crate::harness::eventually("the sentence again", || {
        let said = cluster.nodes[0].log_text();
        said.contains("it is quarantined").then_some(())
    });
}

/// Flips one bit inside an early record of the newest segment.
pub(crate) fn flip_in_the_middle_of_the_log(data_dir: &Path) {
    let mut segments: Vec<_> = fs::read_dir(data_dir.join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    segments.sort();
    let segment = segments.first().expect("a segment exists").clone();
    let mut bytes = fs::read(&segment).unwrap();
    // The segment's own header takes the first block; a record of the first batches lies behind.
    let at = 3 * 4096 + 100;
    bytes[at] ^= 4;
    fs::write(&segment, bytes).unwrap();
}

/// A large state takes time to open, and a probe, a memory limit or a person may end the process
/// meanwhile, again and again. That says nothing about the state.
#[test]
fn a_node_that_is_killed_again_and_again_while_it_opens_its_state_comes_back_with_it() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    let data_dir = cluster.nodes[0].data_dir.clone();
    let opening = data_dir.join("state.opening");
    cluster.nodes[0].kill();
    let mut killed_in_it = 0;
    while killed_in_it < 4 {
        cluster.nodes[0].start();
        let begun = Instant::now();
        // Some openings are over before anybody has looked: then it is another that is killed.
        while !opening.exists() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_micros(200));
        }
        cluster.nodes[0].kill();
        killed_in_it += u32::from(opening.exists());
    }
    cluster.nodes[0].start();
    cluster.wait_for_lease();
    let said = cluster.nodes[0].log_text();
    assert!(said.contains("times in a row"), "{said}");
    assert!(!data_dir.join("state.damaged-1").exists(), "{said}");
    assert!(!opening.exists());
    let (code, found, _) = cluster.cli(&["get", "k", "--print-value-only"]);
    assert_eq!((code, found.trim()), (0, "v"));
}

#[test]
fn a_configuration_that_cannot_work_names_the_line_and_the_way_out() {
    let mut cluster = Cluster::prepare(1);
    for (addition, expected) in [
        (
            "[raft]\nheartbeat_intervall = \"50ms\"\n",
            "heartbeat_interval",
        ),
        (
            "[raft]\nelection_timeout_min = \"400ms\"\n",
            "election_timeout_min",
        ),
        (
            "[leader_lease]\nmax_clock_skew = \"10ms\"\n",
            "max_clock_skew",
        ),
        ("[raft]\nheartbeat_interval = \"soon\"\n", "soon"),
    ] {
        cluster.write_configs(addition);
        let _ = fs::remove_file(&cluster.nodes[0].log);
        let said = refused_start(&mut cluster, 0);
        assert!(said.contains(expected), "{addition:?} gave: {said}");
        assert!(
            said.contains("n1.toml:"),
            "the file and line are named: {said}"
        );
        assert!(!cluster.nodes[0].data_dir.exists(), "nothing was made");
    }
    let text = fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let twice = text.replace("initial = [", "initial = [\"n1=127.0.0.1:1\", ");
    fs::write(&cluster.nodes[0].config, twice).unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(said.contains("n1"), "{said}");
    assert!(said.contains("twice"), "{said}");
}

/// With such a certificate a node once ran on, and nobody let it in.
#[test]
fn a_node_whose_own_certificate_is_of_another_authority_does_not_start() {
    let mut cluster = Cluster::prepare(1);
    let config = cluster.nodes[0].config.clone();
    let good = fs::read_to_string(&config).unwrap();
    let other = cluster.folder.path().join("other");
    crate::harness::must(&["cert", "init", "--out", other.to_str().unwrap()]);
    for (from, to) in [
        // The certificate of the client port, at the port for peers.
        ("n1-peer.", "n1-server."),
        // The authority of the other port.
        ("peer-ca.pem", "client-ca.pem"),
        ("client-ca.pem", "../other/client-ca.pem"),
    ] {
        fs::write(&config, good.replace(from, to)).unwrap();
        let said = refused_start(&mut cluster, 0);
        assert!(said.contains("another authority signed it"), "{to}: {said}");
        assert!(said.contains("cert check"), "{to}: {said}");
    }
    fs::write(&config, good).unwrap();
    cluster.start_all();
    cluster.wait_for_lease();
}

/// The kernel keeps no files for others there, whoever asks.
#[test]
fn a_data_directory_that_cannot_be_made_is_named_with_its_setting_and_line() {
    let mut cluster = Cluster::prepare(1);
    let good = fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let own = cluster.nodes[0].data_dir.display().to_string();
    let is_own = |line: &str| line.starts_with("data_dir");
    let line = good.lines().position(is_own).unwrap() + 1;
    for directory in ["/proc/1/x", "/sys/x"] {
        let elsewhere = good.replace(&format!("\"{own}\""), &format!("\"{directory}\""));
        assert_ne!(elsewhere, good);
        fs::write(&cluster.nodes[0].config, elsewhere).unwrap();
        let _ = fs::remove_file(&cluster.nodes[0].log);
        let said = refused_start(&mut cluster, 0);
        let place = format!("n1.toml:{line}: node.data_dir: ");
        assert!(said.contains(&place), "{said}");
        assert!(said.contains(directory), "{said}");
    }
}

#[test]
fn a_setting_that_is_not_text_or_is_out_of_bounds_is_named_with_its_bound() {
    use std::os::unix::ffi::OsStringExt;
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("n1.toml");
    let refused = |text: &str, more: &[&str], variable: Option<&str>| {
        fs::write(&config, text).unwrap();
        let mut command = leasehold_command();
        command.args(["serve", "--config", config.to_str().unwrap()]);
        if let Some(variable) = variable {
            command.env(variable, std::ffi::OsString::from_vec(vec![b'a', 0xff]));
        }
        let output = command.args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{text:?} {more:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused("", &[], Some("LEASEHOLD_NODE_NAME"));
    assert!(
        said.contains("LEASEHOLD_NODE_NAME: it is not UTF-8"),
        "{said}"
    );
    // What commands are given of keys and values may be anything.
    let said = refused("", &[], Some("LEASEHOLD_WATCH_VALUE"));
    assert!(!said.contains("UTF-8"), "{said}");
    let base = format!(
        "[node]\nname = \"n1\"\ndata_dir = \"{}\"\n\
         [tls.client]\ncert_file = \"a\"\nkey_file = \"a\"\ntrusted_ca_file = \"a\"\n\
         [tls.peer]\ncert_file = \"a\"\nkey_file = \"a\"\ntrusted_ca_file = \"a\"\n",
        directory.path().display()
    );
    for (setting, expected) in [
        (
            "[storage]\nsegment_bytes = \"1PiB\"",
            ["storage.segment_bytes", "choose between"],
        ),
        (
            "[storage]\nsegment_bytes = -1",
            ["storage.segment_bytes", "between"],
        ),
        (
            "[storage]\nsegment_bytes = \"99999999999999999999\"",
            ["storage.segment_bytes", "choose between"],
        ),
        (
            "[raft]\nheartbeat_interval = \"99999999999999999999s\"",
            ["raft.heartbeat_interval", "at most"],
        ),
        (
            "[limits]\nmax_inflight = -1",
            ["limits.max_inflight", "between 1 and"],
        ),
        (
            "[limits]\nmax_inflight = 99999999999999999999",
            ["limits.max_inflight", "between 1 and"],
        ),
        (
            "[limits]\nmax_inflight = 1\nmax_inflight = 2",
            ["`max_inflight`", "set twice"],
        ),
    ] {
        let text = format!("{base}{setting}\n");
        let said = refused(&text, &[], None);
        let line = text.lines().count();
        assert!(
            said.contains(&format!("n1.toml:{line}: ")),
            "{setting}: {said}"
        );
        for part in expected {
            assert!(said.contains(part), "{setting}: {said}");
        }
    }
    let said = refused(&base, &["--limits.max_inflight", "-1"], None);
    assert!(said.contains("limits.max_inflight = `-1`"), "{said}");
    assert!(said.contains("between 1 and"), "{said}");
}

/// Everything that a node keeps is its user's alone: keys and values are in most of it.
#[test]
fn every_file_of_a_data_directory_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.cli(&["put", "k", "v", "--exactly-once"]).0, 0);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let mut folders = vec![cluster.nodes[0].data_dir.clone()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let (path, metadata) = {
                let entry = entry.unwrap();
                (entry.path(), entry.metadata().unwrap())
            };
            let mode = metadata.permissions().mode() & 0o777;
            if metadata.is_dir() {
                assert_eq!(mode, 0o700, "{}", path.display());
                folders.push(path);
            } else {
                assert_eq!(mode, 0o600, "{}", path.display());
                files += 1;
            }
        }
    }
    assert!(files > 3, "{files}");
}

#[test]
fn a_start_on_a_full_disk_says_so_and_goes_on_by_itself_once_there_is_space() {
    let mut cluster = Cluster::prepare(1);
    let directory = cluster.nodes[0].data_dir.clone();
    fs::create_dir_all(&directory).unwrap();
    let small = Command::new("mount")
        .args([
            "-t",
            "tmpfs",
            "-o",
            "size=6m,mode=0700",
            "tmpfs",
            directory.to_str().unwrap(),
        ])
        .status();
    if !small.is_ok_and(|status| status.success()) {
        return left_out("a start on a full disk: a small file system cannot be mounted here");
    }
    let mounted = Mounted(directory.clone());
    let waits = "the disk is full: this node starts once";
    let node = &mut cluster.nodes[0];
    node.start();
    crate::harness::eventually("a start that says what it waits for", || {
        node.log_text().contains(waits).then_some(())
    });
    assert_eq!(node.stop(), 0, "who waits can be stopped");
    node.start();
    let grown = Command::new("mount")
        .args(["-o", "remount,size=256m", directory.to_str().unwrap()])
        .status();
    assert!(grown.unwrap().success());
    cluster.wait_for_lease();
    assert_eq!(cluster.nodes[0].stop(), 0);
    drop(mounted);
}

struct Mounted(std::path::PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_member_that_would_found_its_cluster_alone_is_refused() {
    let mut cluster = Cluster::start(3);
    assert_eq!(cluster.nodes[0].stop(), 0);
    let text = fs::read_to_string(&cluster.nodes[0].config).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("initial"))
        .unwrap();
    let alone = format!("initial = [\"n1={}\"]", cluster.nodes[0].peer);
    fs::write(&cluster.nodes[0].config, text.replace(line, &alone)).unwrap();
    let said = refused_start(&mut cluster, 0);
    assert!(said.contains("this cluster has 3 members"), "{said}");
    assert!(said.contains("cluster.state = \"existing\""), "{said}");
}

#[test]
fn values_leave_the_command_line_byte_for_byte() {
    let cluster = Cluster::start(1);
    let value: Vec<u8> = (0..=255).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        cluster
            .client()
            .await
            .put("bytes", value.clone(), None)
            .await
            .unwrap();
    });
    let output = leasehold_command()
        .args(cluster.flags())
        .args(["get", "bytes", "--print-value-only"])
        .output()
        .unwrap();
    assert_eq!(output.stdout.strip_suffix(b"\n").unwrap(), value);
}
