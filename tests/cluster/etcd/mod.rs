//! The port for etcd's clients: etcd's own command line against real processes, and what clients see on
//! the wire.

mod alarms;
mod auth;
mod corrupt;
mod deadlines;
mod differential;
mod forwarding;
mod gateway;
mod given_up;
pub(crate) mod grpc;
mod hostile;
pub(crate) mod http;
mod json;
mod kubernetes;
#[allow(
    dead_code,
    unused_qualifications,
    reason = "the messages are the server's, and these tests use most of them"
)]
#[path = "."]
pub(crate) mod messages {
    #[path = "../../../src/etcd/proto/auth.rs"]
    mod auth;
    #[path = "../../../src/etcd/proto/cluster.rs"]
    mod cluster;
    #[path = "../../../src/etcd/proto/health.rs"]
    mod health;
    #[path = "../../../src/etcd/proto/kv.rs"]
    pub(crate) mod kv;
    #[path = "../../../src/etcd/proto/lease.rs"]
    mod lease;
    #[path = "../../../src/etcd/proto/maintenance.rs"]
    mod maintenance;
    #[path = "../../../src/etcd/proto/recipes.rs"]
    mod recipes;
    #[path = "../../../src/etcd/proto/watch.rs"]
    mod watch;

    pub(crate) use auth::*;
    pub(crate) use cluster::*;
    pub(crate) use health::*;
    pub(crate) use lease::*;
    pub(crate) use maintenance::*;
    pub(crate) use recipes::*;
    pub(crate) use watch::*;
}
mod maintenance;
mod members;
mod metrics;
mod moving;
mod probes;
mod range_stream;
mod recipes;
mod renewals;
mod revokes;
mod said;
mod snapshot;
mod stale;
pub(crate) mod tls;
mod unread;
mod watches;
mod wire;

use http::Connection;
use messages::kv;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::access::revocation_list;
use crate::harness::{Cluster, free_port, left_out};

/// The setting of a port without TLS.
pub(crate) const IN_THE_CLEAR: (&str, &str) = ("LEASEHOLD_ETCD_COMPAT_INSECURE", "true");

/// A cluster of which every node has a port for etcd's clients.
pub(crate) struct EtcdCluster {
    pub(crate) cluster: Cluster,
    pub(crate) ports: Vec<SocketAddr>,
    pub(crate) leader: usize,
}

impl EtcdCluster {
    /// Of `count` nodes; each with these settings, as environment variables.
    pub(crate) fn start(count: usize, settings: &[(&'static str, &str)]) -> Self {
        let mut this = Self::prepare(count, settings);
        this.leader = this.cluster.start_and_settle();
        this
    }

    /// The same, whose nodes do not run yet.
    pub(crate) fn prepare(count: usize, settings: &[(&'static str, &str)]) -> Self {
        let mut cluster = Cluster::prepare(count);
        let mut ports = Vec::new();
        for node in &mut cluster.nodes {
            let port = SocketAddr::from(([127, 0, 0, 1], free_port()));
            node.environment
                .push(("LEASEHOLD_LISTEN_ETCD", port.to_string()));
            let settings = settings.iter();
            node.environment
                .extend(settings.map(|(name, value)| (*name, (*value).to_owned())));
            ports.push(port);
        }
        Self {
            cluster,
            ports,
            leader: 0,
        }
    }

    /// Without TLS.
    pub(crate) fn in_the_clear(count: usize) -> Self {
        Self::start(count, &[IN_THE_CLEAR])
    }

    /// A page of the port, for programs without gRPC: its status and its text.
    pub(crate) fn page(&self, place: usize, path: &str) -> (String, String) {
        let answer = Connection::open(self.ports[place]).request("GET", path, "", "");
        (answer.status.to_string(), answer.body)
    }

    /// A node that does not lead.
    pub(crate) fn follower(&self) -> usize {
        (self.leader + 1) % self.ports.len()
    }
}

/// Where the gate unpacks what tests need.
fn tool(name: &str) -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../tools/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = vec![unpacked];
    folders.extend(std::env::split_paths(&path));
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// etcd's command line, or the one that `LEASEHOLD_ETCDCTL` names; none, and a loud remark, if it is not there and
/// need not be.
pub(crate) fn etcdctl(test: &str) -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("LEASEHOLD_ETCDCTL") {
        let named = std::path::absolute(named).unwrap();
        assert!(named.is_file(), "{} is no etcdctl", named.display());
        return Some(named);
    }
    let found = tool("etcdctl");
    if found.is_none() {
        assert!(
            std::env::var_os("LEASEHOLD_REQUIRE_ETCDCTL").is_none(),
            "etcdctl is not on the path: install Debian's package `etcd-client`"
        );
        left_out(&format!(
            "{test}: needs `etcdctl`, of Debian's package `etcd-client`"
        ));
    }
    found
}

/// Runs etcd's command line, which sees nothing but its arguments: whether it succeeded, and what it said.
pub(crate) fn run(program: &Path, endpoint: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .env_clear()
        .env("ETCDCTL_API", "3")
        .args([
            "--endpoints",
            endpoint,
            "--command-timeout",
            "60s",
            "--dial-timeout",
            "60s",
        ])
        .args(arguments)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    )
}

fn must(program: &Path, endpoint: SocketAddr, arguments: &[&str]) -> String {
    let (is_done, said) = run(program, &endpoint.to_string(), arguments);
    assert!(is_done, "etcdctl {arguments:?} at {endpoint}: {said}");
    said
}

/// gRPC for Go resolves no URL, and sends it as the name of the node.
#[test]
fn endpoints_may_be_urls() {
    let Some(etcdctl) = etcdctl("etcdctl with URLs") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(1);
    let url = format!("http://{}", cluster.ports[0]);
    for (arguments, expected) in [
        (&["put", "k", "v"][..], "OK\n"),
        (&["get", "k"], "k\nv\n"),
        (&["endpoint", "status"], &url),
        (&["endpoint", "hashkv"], &url),
        (&["member", "list"], "started"),
    ] {
        let (is_done, said) = run(&etcdctl, &url, arguments);
        assert!(is_done && said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn every_node_takes_every_request_of_etcdctl_and_shows_its_writes_at_once() {
    let Some(etcdctl) = etcdctl("etcdctl against three nodes") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    for (place, port) in cluster.ports.iter().enumerate() {
        let key = format!("k{place}");
        assert_eq!(must(&etcdctl, *port, &["put", &key, "one"]), "OK\n");
        // The node has applied the write when it answers.
        let read = must(&etcdctl, *port, &["get", &key, "--consistency=s"]);
        assert_eq!(read, format!("{key}\none\n"), "at node {place}");
        let put = must(&etcdctl, *port, &["put", &key, "two", "--prev-kv"]);
        assert_eq!(put, format!("OK\n{key}\none\n"));
        for other in &cluster.ports {
            let read = must(&etcdctl, *other, &["get", &key, "--print-value-only"]);
            assert_eq!(read, "two\n");
        }
    }
    let follower = cluster.ports[cluster.follower()];
    let all = must(&etcdctl, follower, &["get", "k", "--prefix", "--keys-only"]);
    assert_eq!(all, "k0\n\nk1\n\nk2\n\n");
    assert_eq!(must(&etcdctl, follower, &["del", "k", "--prefix"]), "3\n");
    let refused = run(
        &etcdctl,
        &follower.to_string(),
        &["put", "k", "--ignore-value"],
    );
    assert!(!refused.0);
    assert!(
        refused.1.contains("etcdserver: key not found"),
        "{refused:?}"
    );
    must(&etcdctl, follower, &["compact", "3", "--physical"]);
    let refused = run(&etcdctl, &follower.to_string(), &["get", "k0", "--rev=1"]);
    assert!(refused.1.contains("has been compacted"), "{refused:?}");
    must(&etcdctl, follower, &["endpoint", "health"]);
    let status = must(&etcdctl, follower, &["endpoint", "status"]);
    assert!(status.contains("3.6.14"), "{status}");
}

#[test]
fn leases_are_granted_renewed_listed_and_revoked_at_a_node_that_does_not_lead() {
    let Some(etcdctl) = etcdctl("leases of etcdctl") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let follower = cluster.ports[cluster.follower()];
    let granted = must(&etcdctl, follower, &["lease", "grant", "3600"]);
    assert!(granted.ends_with("granted with TTL(3600s)\n"), "{granted}");
    let id = granted.split(' ').nth(1).unwrap().to_owned();
    let lease = format!("--lease={id}");
    must(&etcdctl, follower, &["put", "leased", "1", &lease]);
    for port in &cluster.ports {
        // Only the leader knows how much is left, and every node says it.
        let left = must(&etcdctl, *port, &["lease", "timetolive", &id, "--keys"]);
        assert!(
            left.contains("granted with TTL(3600s), remaining(3"),
            "{left}"
        );
        assert!(left.contains("attached keys([leased])"), "{left}");
        let kept = must(&etcdctl, *port, &["lease", "keep-alive", "--once", &id]);
        assert!(kept.contains("keepalived with TTL(3600)"), "{kept}");
        let list = must(&etcdctl, *port, &["lease", "list"]);
        assert!(
            list.contains("found 1 leases") && list.contains(&id),
            "{list}"
        );
    }
    must(&etcdctl, follower, &["lease", "revoke", &id]);
    assert_eq!(must(&etcdctl, follower, &["get", "leased"]), "");
    let left = must(&etcdctl, follower, &["lease", "timetolive", &id]);
    assert!(left.contains("already expired"), "{left}");
    let kept = ["lease", "keep-alive", "--once", &id];
    let refused = run(&etcdctl, &follower.to_string(), &kept);
    assert!(
        refused.1.contains("requested lease not found"),
        "{refused:?}"
    );
    let refused = run(&etcdctl, &follower.to_string(), &["lease", "revoke", &id]);
    assert!(
        refused.1.contains("requested lease not found"),
        "{refused:?}"
    );
}

#[test]
fn keys_of_etcdctl_are_read_by_the_command_line_and_the_other_way_round() {
    let Some(etcdctl) = etcdctl("etcdctl beside the native protocol") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(1);
    must(&etcdctl, cluster.ports[0], &["put", "theirs", "1"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.cluster.client().await;
        let got = client.get("theirs", None).await.unwrap();
        assert_eq!(got.value().map(|value| &value[..]), Some(&b"1"[..]));
        client.put("ours", "2", None).await.unwrap();
    });
    let read = must(&etcdctl, cluster.ports[0], &["get", "ours"]);
    assert_eq!(read, "ours\n2\n");
}

#[test]
fn under_tls_a_certificate_of_the_client_is_taken_and_needed_only_if_the_settings_say_so() {
    let Some(etcdctl) = etcdctl("etcdctl under TLS") else {
        return;
    };
    for is_demanded in ["false", "true"] {
        let settings = [("LEASEHOLD_TLS_ETCD_CLIENT_CERT_AUTH", is_demanded)];
        let cluster = EtcdCluster::start(1, &settings);
        let endpoint = format!("https://{}", cluster.ports[0]);
        let pki = &cluster.cluster.pki;
        let ca = pki.file("client-ca.pem");
        let (certificate, key) = (pki.file("tester.pem"), pki.file("tester.key"));
        let named = ["--cacert", &ca, "--cert", &certificate, "--key", &key];
        let (is_done, said) = run(
            &etcdctl,
            &endpoint,
            &[&named[..], &["put", "a", "b"]].concat(),
        );
        assert!(is_done, "{said}");
        let unnamed = ["--cacert", &ca, "--command-timeout", "5s", "get", "a"];
        let (is_done, said) = run(&etcdctl, &endpoint, &unnamed);
        assert_eq!(is_done, is_demanded == "false", "{said}");
        // Nothing is served in the clear there.
        let plain = ["--command-timeout", "2s", "get", "a"];
        assert!(!run(&etcdctl, &cluster.ports[0].to_string(), &plain).0);
    }
}

/// In PEM form and in DER form, as etcd takes them.
#[test]
fn a_client_whose_certificate_is_revoked_is_refused_by_a_list_of_either_form() {
    let Some(etcdctl) = etcdctl("etcdctl with a certificate that is revoked") else {
        return;
    };
    let mut cluster = EtcdCluster::prepare(1, &[]);
    let list = cluster.cluster.folder.path().join("revoked");
    let node = &mut cluster.cluster.nodes[0];
    let setting = list.display().to_string();
    node.environment
        .push(("LEASEHOLD_TLS_ETCD_CRL_FILE", setting));
    cluster.cluster.pki.issue("--client", "good", &[]);
    let pem = revocation_list(&cluster.cluster, &["tester"]);
    let (_, parsed) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
    let endpoint = format!("https://{}", cluster.ports[0]);
    for bytes in [pem.as_bytes(), &parsed.contents] {
        fs::write(&list, bytes).unwrap();
        cluster.cluster.start_and_settle();
        for (name, is_served) in [("good", true), ("tester", false)] {
            let pki = &cluster.cluster.pki;
            let file = |name: &str| pki.file(name);
            let (ca, pem, key) = (
                file("client-ca.pem"),
                file(&format!("{name}.pem")),
                file(&format!("{name}.key")),
            );
            let named = ["--cacert", &ca, "--cert", &pem, "--key", &key];
            let get = ["--command-timeout", "5s", "get", "a"];
            let (is_done, said) = run(&etcdctl, &endpoint, &[&named[..], &get].concat());
            assert_eq!(is_done, is_served, "{name}: {said}");
        }
        assert_eq!(cluster.cluster.nodes[0].stop(), 0);
    }
    // What is neither is refused at the start.
    for text in ["nothing\n", "0", ""] {
        fs::write(&list, text).unwrap();
        let node = &mut cluster.cluster.nodes[0];
        fs::write(&node.log, "").unwrap();
        node.start();
        assert_ne!(node.wait_for_exit(), 0);
        let said = node.log_text();
        let wanted = "holds no revocation list in DER form, nor one in PEM form";
        assert!(said.contains(wanted), "{said}");
    }
}
