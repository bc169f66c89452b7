//! The examples, run as a reader runs them.

#[path = "../../examples/etcd/flags.rs"]
#[allow(dead_code, reason = "the example uses all of it")]
mod flags;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::OnceLock;

use flags::Flags;

use crate::etcd::grpc::Channel;
use crate::etcd::tls::{Shown, certificate_for, page_at};
use crate::harness::{Cluster, Signal, binary, eventually, free_port, without_settings};
use crate::locks::{Running, with_cluster};

/// Where the examples lie, beside the binary under test. A test that is asked for by name comes without
/// them, and one that was edited may be older than its source: cargo knows.
fn folder() -> &'static PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = cargo(&["build", "--quiet", "--examples"]).status();
        assert!(built.unwrap().success(), "the examples build");
        PathBuf::from(binary()).parent().unwrap().join("examples")
    })
}

/// Cargo, for what is built as the binary under test was, beside it.
fn cargo(arguments: &[&str]) -> Command {
    let profile = PathBuf::from(binary()).parent().unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    // What it says of this package to its tests, the build of `ring` takes for a reason to begin again, and with it
    // everything that stands on it, which others use meanwhile.
    for (name, _) in std::env::vars_os() {
        let is_of_a_package = |name: &str| {
            name == "OUT_DIR"
                || name.starts_with("CARGO_PKG_")
                || name.starts_with("CARGO_MANIFEST_")
        };
        if name.to_str().is_some_and(is_of_a_package) {
            cargo.env_remove(name);
        }
    }
    cargo.args(arguments).args(["--locked", "--offline"]);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo
}

fn start(cluster: &Cluster, name: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(folder().join(name));
    without_settings(&mut command);
    Running::start(with_cluster(command.args(arguments), cluster))
}

/// X14: a server that crashed leaves the list by itself.
#[test]
fn x14_the_registry_of_the_example_loses_a_server_that_is_killed() {
    let cluster = Cluster::start(1);
    let seven = start(&cluster, "service_registry", &["7", "10.0.0.7:80"]);
    assert_eq!(seven.line(), "7 is at 10.0.0.7:80");
    assert_eq!(seven.line(), "that is all");
    let mut eight = start(&cluster, "service_registry", &["8", "10.0.0.8:80"]);
    assert_eq!(seven.line(), "8 is at 10.0.0.8:80");
    assert_eq!(eight.line(), "7 is at 10.0.0.7:80");
    eight.signal(Signal::KILL);
    eight.end();
    assert_eq!(seven.line(), "8 is gone");
    let mut nine = start(&cluster, "service_registry", &["9", "10.0.0.9:80"]);
    assert_eq!(seven.line(), "9 is at 10.0.0.9:80");
    nine.says("that is all");
    nine.signal(Signal::INT);
    assert!(nine.end().success());
    assert_eq!(seven.line(), "9 is gone");
}

#[test]
fn the_election_of_the_example_hands_over_when_a_leader_is_killed() {
    let cluster = Cluster::start(1);
    let mut ann = start(&cluster, "leader_election", &["ann"]);
    ann.says("ann leads with token");
    let bob = start(&cluster, "leader_election", &["bob"]);
    bob.says("bob stands");
    ann.signal(Signal::KILL);
    ann.end();
    bob.says("bob leads with token");
}

#[test]
fn the_watcher_of_the_example_shows_all_and_then_each_change() {
    let cluster = Cluster::start(1);
    let put = |key: &str, value| {
        let put = ["put", key, value, "--exactly-once"];
        assert_eq!(cluster.cli(&put).0, 0);
    };
    put("examples/config/color", "blue");
    let watcher = start(&cluster, "config_watcher", &[]);
    let shown = |line: String| line.split_once(": ").unwrap().1.to_owned();
    assert_eq!(shown(watcher.line()), "color=blue");
    put("examples/config/size", "3");
    assert_eq!(shown(watcher.line()), "color=blue size=3");
    let del = ["del", "examples/config/color", "--exactly-once"];
    assert_eq!(cluster.cli(&del).0, 0);
    assert_eq!(shown(watcher.line()), "size=3");
}

#[test]
fn the_store_of_the_example_outlives_its_program() {
    let scratch = tempfile::tempdir().unwrap();
    let run = || {
        let mut command = Command::new(folder().join("embedded"));
        without_settings(&mut command);
        let output = command
            .arg(scratch.path().join("counter"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(), "run 1\n");
    assert_eq!(run(), "run 2\n");
}

#[test]
fn the_job_of_the_example_is_overtaken_while_it_is_suspended() {
    let cluster = Cluster::start(1);
    let mut ann = start(&cluster, "fenced_job", &["ann"]);
    ann.says("ann did step 2");
    let bob = start(&cluster, "fenced_job", &["bob"]);
    ann.signal(Signal::STOP);
    bob.says("bob works with token");
    bob.says("bob did step");
    ann.signal(Signal::CONT);
    ann.says("ann was overtaken");
    assert!(ann.end().success());
    bob.says("bob did step");
}

/// What the documentation of the SDK shows, each operation by an example, does what it says.
#[test]
fn the_examples_of_the_documentation_run_beside_a_cluster() {
    let cluster = Cluster::start(3);
    let endpoints: Vec<String> = cluster
        .nodes
        .iter()
        .map(|it| it.client.to_string())
        .collect();
    let mut examples = cargo(&["test", "--doc", "client"]);
    examples.env("LEASEHOLD_EXAMPLES", endpoints.join(","));
    examples.env("LEASEHOLD_EXAMPLES_PKI", &cluster.pki.path);
    examples.env("LEASEHOLD_EXAMPLES_NAME", "tester");
    // Each in its turn: some hand leadership over, or give up history that others read.
    examples.args(["--", "--test-threads=1"]);
    let output = examples.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let problems = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{problems}");
    // They were no mere compilations: this is what one of them leaves behind.
    let (code, out, _) = cluster.cli(&["get", "nightly-report", "--print-value-only"]);
    assert_eq!((code, out.as_str()), (0, "done\n"), "{said}");
}

fn etcd_s_flags(words: &[&str]) -> Result<Flags, String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Flags::parse(&words)
}

#[test]
fn flags_of_etcd_about_tokens_and_streams_are_mapped_or_refused_by_name() {
    for (given, expected) in [
        ("3", 3),
        ("4096", 4_096),
        ("4294967295", 4_096),
        ("0", 4_096),
    ] {
        let flags = etcd_s_flags(&["--max-concurrent-streams", given]).unwrap();
        assert_eq!(flags.streams_max, Some(expected));
        assert!(flags.ignored.is_empty(), "{flags:?}");
    }
    let flags = etcd_s_flags(&["--auth-token=simple", "--auth-token-ttl=9"]).unwrap();
    assert_eq!(flags.token_ttl.as_deref(), Some("9s"));
    assert_eq!(flags.streams_max, None);
    assert!(flags.ignored.is_empty(), "{flags:?}");
    let signed = "jwt,pub-key=a.pem,priv-key=b.pem,sign-method=RS256,ttl=10m";
    let flags = etcd_s_flags(&["--auth-token", signed]).unwrap();
    assert_eq!(flags.token_ttl.as_deref(), Some("10m"));
    let ignored = ["pub-key=a.pem", "priv-key=b.pem", "sign-method=RS256"];
    assert_eq!(
        flags.ignored,
        ignored.map(|it| format!("{it} of --auth-token"))
    );
    for (flag, value) in [
        ("--max-concurrent-streams", "-1"),
        ("--max-concurrent-streams", "many"),
        ("--auth-token", "bearer"),
        ("--auth-token", "simple,ttl=1m"),
        ("--auth-token", "jwt,colour=red"),
        ("--auth-token", "jwt,pub-key=a.pem,sign-method=RS256"),
    ] {
        let refused = etcd_s_flags(&[flag, value]).unwrap_err();
        assert!(refused.contains(flag), "{value}: {refused}");
    }
}

#[test]
fn the_hosts_of_clients_that_etcd_is_told_are_mapped_where_they_show_certificates() {
    let hosts = ["--client-cert-allowed-hostname", "a.example, b.example"];
    let tls = ["--listen-client-urls", "https://127.0.0.1:2379"];
    let mapped = [&tls[..], &hosts, &["--trusted-ca-file", "ca.pem"]].concat();
    let mapped = etcd_s_flags(&mapped).unwrap();
    assert_eq!(mapped.allowed_hosts, ["a.example", "b.example"]);
    assert!(mapped.ignored.is_empty(), "{mapped:?}");
    // Without such certificates etcd looks at none, too.
    for words in [[&tls[..], &hosts].concat(), hosts.to_vec()] {
        let passed_over = etcd_s_flags(&words).unwrap();
        assert!(passed_over.allowed_hosts.is_empty());
        assert_eq!(passed_over.ignored, ["--client-cert-allowed-hostname"]);
    }
}

/// A process that is gone with its test.
struct Launched(Child);

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_etcd_takes_as_many_streams_as_its_flags_say() {
    let data = tempfile::tempdir().unwrap();
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let peer_url = format!("http://127.0.0.1:{}", free_port());
    let program = tokio::task::spawn_blocking(|| folder().join("etcd"))
        .await
        .unwrap();
    let mut command = Command::new(program);
    without_settings(&mut command);
    command
        .arg("--data-dir")
        .arg(data.path().join("one"))
        .args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
        ])
        .args([
            "--listen-peer-urls",
            &peer_url,
            "--initial-cluster-token",
            "streams",
        ])
        .args(["--max-concurrent-streams", "3"]);
    let _launched = Launched(command.spawn().unwrap());
    let channel = Channel::open(SocketAddr::from(([127, 0, 0, 1], port))).await;
    let _watch = channel.stream("/etcdserverpb.Watch/Watch", &[]).await;
    assert_eq!(channel.streams_max(), 3);
}

#[test]
fn the_example_etcd_lets_in_whose_certificate_is_for_a_host_that_its_flags_name() {
    let folder_of_files = tempfile::tempdir().unwrap();
    let file = |name: &str| folder_of_files.path().join(name);
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(file("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let authority = rcgen::Issuer::new(params, key);
    let (certificate, key) = certificate_for(&authority, "127.0.0.1");
    std::fs::write(file("server.pem"), certificate.pem()).unwrap();
    std::fs::write(file("server.key"), key.serialize_pem()).unwrap();
    let port = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (url, peer_url) = (
        format!("https://{port}"),
        format!("http://127.0.0.1:{}", free_port()),
    );
    let mut command = Command::new(folder().join("etcd"));
    without_settings(&mut command);
    for (flag, name) in [
        ("--data-dir", "one"),
        ("--cert-file", "server.pem"),
        ("--key-file", "server.key"),
        ("--trusted-ca-file", "ca.pem"),
    ] {
        command.arg(flag).arg(file(name));
    }
    command
        .args(["--listen-client-urls", &url])
        .args(["--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer_url])
        .args(["--initial-cluster-token", "hosts", "--client-cert-auth"])
        .args(["--client-cert-allowed-hostname", "app.example"]);
    let _launched = Launched(command.spawn().unwrap());
    let page = |host: &str| {
        let (certificate, key) = certificate_for(&authority, host);
        let shown = Shown::of(&certificate, &key);
        page_at(port, &file("ca.pem"), Some(shown)).map(|(_, page)| page)
    };
    let served = eventually("a page for the host that is named", || {
        page("app.example").ok()
    });
    assert!(served.starts_with("HTTP/1.1 200"), "{served}");
    // Under TLS 1.3 it may learn that only as it reads, and then the connection ends.
    let refused = page("other.example").unwrap_or_default();
    assert_eq!(refused, "");
}
