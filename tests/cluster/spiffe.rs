//! Workloads with SPIFFE ids, issued by an authority of their own, at both ports for clients.

use std::fs;

use leasehold::api::{Error, ErrorKind, KeyRange, Permission, PermissionKind};
use leasehold::client::{Client, ConnectOptions, TlsOptions};

use crate::etcd::{EtcdCluster, etcdctl, run};
use crate::harness::{Cluster, PATIENCE, eventually, write_secret};

/// Writes the certificate of a workload with these URI names to `name.pem`, and its key.
fn issue(cluster: &Cluster, issuer: &rcgen::Issuer<'_, rcgen::KeyPair>, name: &str, uris: &[&str]) {
    let mut params = rcgen::CertificateParams::default();
    // The user of a certificate without a SPIFFE id, at the port for etcd's clients.
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "root");
    params.subject_alt_names = uris
        .iter()
        .map(|uri| rcgen::SanType::URI((*uri).try_into().unwrap()))
        .collect();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, issuer).unwrap();
    fs::write(cluster.pki.file(&format!("{name}.pem")), certificate.pem()).unwrap();
    write_secret(
        cluster.pki.file(&format!("{name}.key")),
        &key.serialize_pem(),
    );
}

/// An authority of workloads, which the nodes trust beside that of clients.
fn trust_workloads(cluster: &Cluster) -> rcgen::Issuer<'static, rcgen::KeyPair> {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let both = fs::read_to_string(cluster.pki.file("client-ca.pem")).unwrap() + &authority.pem();
    fs::write(cluster.pki.file("clients.pem"), both).unwrap();
    for node in &cluster.nodes {
        let text = fs::read_to_string(&node.config).unwrap();
        assert!(text.contains("client-ca.pem"), "{text}");
        fs::write(&node.config, text.replace("client-ca.pem", "clients.pem")).unwrap();
    }
    rcgen::Issuer::new(params, key)
}

fn options(cluster: &Cluster, name: &str) -> ConnectOptions {
    let tls = TlsOptions::new()
        .ca_pem_file(cluster.pki.file("client-ca.pem"))
        .identity_pem_files(
            cluster.pki.file(&format!("{name}.pem")),
            cluster.pki.file(&format!("{name}.key")),
        );
    cluster.options().with_tls(tls)
}

/// The error with which a client with this certificate is turned away.
async fn turned_away(cluster: &Cluster, name: &str) -> Error {
    let began = std::time::Instant::now();
    loop {
        let asked = async {
            let client = Client::connect(cluster.endpoints(), Some(options(cluster, name))).await?;
            client.get("k", None).await
        };
        let error = asked.await.map(drop).expect_err(name);
        match error.kind {
            ErrorKind::DeadlineExceeded | ErrorKind::ConnectFailed | ErrorKind::ConnectionLost => {
                assert!(began.elapsed() < PATIENCE, "{error}");
            }
            _ => return error,
        }
    }
}

/// Turns access control on: `prod/web` may do all below `web/`, and the rest is root's.
async fn guard(cluster: &Cluster) {
    let client = cluster.client().await;
    let auth = client.auth();
    // Root has to be able to log in afterwards.
    auth.user_add("root", Some("canary-of-root")).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("tester", None).await.unwrap();
    auth.user_grant_role("tester", "root").await.unwrap();
    auth.user_add("prod/web", None).await.unwrap();
    auth.role_add("web").await.unwrap();
    let permission = Permission {
        kind: PermissionKind::ReadWrite,
        key: "web/".into(),
        range: KeyRange::Prefix,
    };
    auth.role_grant_permission("web", permission).await.unwrap();
    auth.user_grant_role("prod/web", "web").await.unwrap();
    auth.auth_enable().await.unwrap();
    client.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_is_the_user_of_its_spiffe_id_and_other_ids_are_refused_by_name() {
    let mut etcd_cluster = EtcdCluster::prepare(
        1,
        &[
            ("LEASEHOLD_TLS_SPIFFE_TRUST_DOMAIN", "example.org"),
            ("LEASEHOLD_TLS_SPIFFE_USERS", "/ns/prod/sa/*=prod/*"),
            ("LEASEHOLD_LOG_FILTER", "info"),
        ],
    );
    let issuer = trust_workloads(&etcd_cluster.cluster);
    let cluster = &etcd_cluster.cluster;
    let web = "spiffe://example.org/ns/prod/sa/web";
    issue(cluster, &issuer, "web", &[web]);
    let refused = [
        (
            "two",
            vec![web, "spiffe://example.org/ns/prod/sa/root"],
            "has 2 URI names",
        ),
        (
            "elsewhere",
            vec!["spiffe://example.com/ns/prod/sa/web"],
            "another trust domain",
        ),
        (
            "unmapped",
            vec!["spiffe://example.org/ns/test/sa/web"],
            "no entry of tls.spiffe.users",
        ),
        (
            "dots",
            vec!["spiffe://example.org/ns/test/../prod/sa/web"],
            "has the segment",
        ),
        (
            "port",
            vec!["spiffe://example.org:8443/ns/prod/sa/web"],
            "a user or a port",
        ),
        (
            "query",
            vec!["spiffe://example.org/ns/prod/sa/web?x"],
            "a query or a fragment",
        ),
    ];
    for (name, uris, _) in &refused {
        issue(cluster, &issuer, name, uris);
    }
    issue(cluster, &issuer, "plain", &[]);
    etcd_cluster.cluster.start_and_settle();
    let cluster = &etcd_cluster.cluster;
    guard(cluster).await;

    let client = cluster.client_with(options(cluster, "web")).await;
    client.put("web/1", "hers", None).await.unwrap();
    let error = client.put("other", "x", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error}");
    for (name, _, reason) in &refused {
        // What is malformed is found before anything is sent, the rest by the node, which says why in its log.
        let error = turned_away(cluster, name).await;
        let is_told = || error.to_string().contains(reason);
        let is_logged = || cluster.nodes[0].log_text().contains(reason);
        eventually("the reason", || (is_told() || is_logged()).then_some(()));
    }

    let Some(etcdctl) = etcdctl("a_workload_is_the_user_of_its_spiffe_id") else {
        return;
    };
    let endpoint = format!("https://{}", etcd_cluster.ports[0]);
    let by = |name: &str, patience: &str, command: &[&str]| {
        let file = |name: &str| cluster.pki.file(name);
        let ca = file("client-ca.pem");
        let (pem, key) = (file(&format!("{name}.pem")), file(&format!("{name}.key")));
        let named = [
            "--cacert",
            &ca,
            "--cert",
            &pem,
            "--key",
            &key,
            "--command-timeout",
            patience,
        ];
        run(&etcdctl, &endpoint, &[&named[..], command].concat())
    };
    let (is_done, said) = by("web", "60s", &["get", "web/1", "--print-value-only"]);
    assert!(is_done && said.contains("hers"), "{said}");
    let (is_done, said) = by("web", "60s", &["get", "other"]);
    assert!(!is_done && said.contains("permission denied"), "{said}");
    // The common name of all of them is that of root, as whom one without an id is let in. It takes the place of
    // no id: such a client has no connection, on which it could be refused anything.
    let (is_done, said) = by("plain", "60s", &["get", "other"]);
    assert!(is_done, "{said}");
    for (name, ..) in &refused {
        let (is_done, said) = by(name, "3s", &["get", "other"]);
        let is_cut_off = said.contains("deadline exceeded") && !said.contains("etcdserver");
        assert!(!is_done && is_cut_off, "{name}: {said}");
    }
    eventually("the first of the reasons", || {
        let said = cluster.nodes[0].log_text();
        (said.contains("client of the etcd port refused") && said.contains("has 2 URI names"))
            .then_some(())
    });
}
