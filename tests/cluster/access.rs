//! Users, roles and what they may do, as clients of a cluster meet them.

use std::fs;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold::api::{
    Compare, CompareOp, Consistency, ErrorKind, KeyRange, Permission, PermissionKind, RangeRequest,
    Request, ResponseBody, TxnOp, TxnRequest,
};
use leasehold::client::{Client, ConnectOptions, GetOptions, TlsOptions, WatchEvent, WatchOptions};
use memchr::memmem;

use crate::harness::{Cluster, PATIENCE, eventually, files_below, write_secret};

/// Nobody would write this by accident.
pub(crate) const ROOT_PASSWORD: &str = "canary-of-root-5be1";
pub(crate) const ANNA_PASSWORD: &str = "canary-of-anna-77f0";

fn permission(kind: PermissionKind, prefix: &str) -> Permission {
    Permission {
        kind,
        key: Bytes::copy_from_slice(prefix.as_bytes()),
        range: KeyRange::Prefix,
    }
}

/// Whom a password makes one, by the certificate that everybody has.
pub(crate) fn as_user(cluster: &Cluster, name: &str, password: &str) -> ConnectOptions {
    cluster.options().with_user(name, password)
}

pub(crate) async fn connect(cluster: &Cluster, options: ConnectOptions) -> Client {
    // To prove who one is takes a node much time.
    let options = options.with_connect_timeout(Duration::from_secs(30));
    cluster.client_with(options).await
}

/// That nobody answered in time, which says nothing of why.
fn is_late(error: &leasehold::api::Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::DeadlineExceeded | ErrorKind::ConnectFailed | ErrorKind::ConnectionLost
    )
}

/// What whoever comes with a wrong password is told of it.
async fn turned_away(cluster: &Cluster, options: &ConnectOptions) -> leasehold::api::Error {
    let began = Instant::now();
    loop {
        let asked = async {
            // It may connect, if the login failed for another reason, and tries that again then.
            let client = Client::connect(cluster.endpoints(), Some(options.clone())).await?;
            client.get("a/1", None).await
        };
        let error = asked.await.map(drop).expect_err("a wrong password");
        if !is_late(&error) {
            return error;
        }
        assert!(began.elapsed() < PATIENCE, "{error}");
    }
}

/// Turns access control on: root may do all, anna reads `a/` and writes `a/w/`.
pub(crate) async fn guard(cluster: &Cluster) {
    let client = cluster.client().await;
    let auth = client.auth();
    auth.user_add("root", Some(ROOT_PASSWORD)).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("anna", Some(ANNA_PASSWORD)).await.unwrap();
    auth.role_add("readers").await.unwrap();
    auth.role_add("writers").await.unwrap();
    let reads = permission(PermissionKind::Read, "a/");
    auth.role_grant_permission("readers", reads).await.unwrap();
    let writes = permission(PermissionKind::Write, "a/w/");
    auth.role_grant_permission("writers", writes).await.unwrap();
    auth.user_grant_role("anna", "readers").await.unwrap();
    auth.user_grant_role("anna", "writers").await.unwrap();
    auth.auth_enable().await.unwrap();
    client.close().await;
}

fn range(key: &str, range: KeyRange) -> Request {
    Request::Range(RangeRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        range,
        ..RangeRequest::default()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_does_what_is_granted_and_nothing_else_and_every_node_says_so() {
    let cluster = Cluster::start(3);
    guard(&cluster).await;
    let root = connect(&cluster, as_user(&cluster, "root", ROOT_PASSWORD)).await;
    for key in ["a/1", "a/w/1", "b", "secret"] {
        root.put(key, "value", None).await.unwrap();
    }
    let anna = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;

    // What she may.
    assert_eq!(
        anna.get("a/1", None).await.unwrap().value().unwrap(),
        "value"
    );
    anna.put("a/w/2", "hers", None).await.unwrap();
    let all = Some(GetOptions::new().with_prefix());
    assert_eq!(anna.get("a/", all.clone()).await.unwrap().kvs.len(), 3);
    let session = anna.put("a/w/3", "hers", None).await.unwrap();

    // What she may not, each at every node, however fresh.
    let denied = |result: Result<(), leasehold::api::Error>, what: &str| {
        let error = result.expect_err(what);
        assert_eq!(error.kind, ErrorKind::PermissionDenied, "{what}: {error}");
    };
    denied(anna.get("b", None).await.map(drop), "get");
    denied(anna.get("", all).await.map(drop), "get all");
    denied(anna.put("a/1", "x", None).await.map(drop), "put");
    denied(anna.delete("b", None).await.map(drop), "delete");
    denied(anna.move_leader(None).await.map(drop), "move_leader");
    denied(anna.compact(2, None).await.map(drop), "compact");
    denied(anna.auth().user_list().await.map(drop), "user_list");
    denied(anna.auth().auth_disable().await.map(drop), "auth_disable");
    denied(anna.auth().user_get("root").await.map(drop), "user_get");
    let mut snapshot = anna.snapshot(None).await;
    let begun = match &mut snapshot {
        Ok(stream) => stream.next().await.expect("an answer").map(drop),
        Err(error) => Err(error.clone()),
    };
    denied(begun, "snapshot");
    for endpoint in cluster.endpoints() {
        for consistency in [
            Consistency::Serializable,
            Consistency::Linearizable,
            Consistency::LinearizableQuorum,
        ] {
            let ask = |request| anna.call_at(endpoint.clone(), request, consistency);
            // A follower may not have applied the user yet, where nobody waits for it.
            let started = Instant::now();
            loop {
                // What was written after access was controlled.
                match ask(range("a/1", KeyRange::Single))
                    .await
                    .map(|found| found.body)
                {
                    Ok(ResponseBody::Range(found)) if found.count == 1 => break,
                    other => assert!(started.elapsed() < PATIENCE, "{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for forbidden in [
                range("secret", KeyRange::Single),
                range("a", KeyRange::Prefix),
                range("a/", KeyRange::From),
            ] {
                denied(ask(forbidden).await.map(drop), &endpoint);
            }
        }
    }

    // A transaction with one forbidden operation in the branch that is not taken.
    let before = root.get("a/w/2", None).await.unwrap().header.revision;
    let txn = TxnRequest::new()
        .when([Compare::version("a/none", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("a/w/2", "new")])
        .or_else([TxnOp::put("b", "x")]);
    denied(anna.txn(txn, None).await.map(drop), "txn");
    let after = root.get("a/w/2", None).await.unwrap();
    assert_eq!(after.value().unwrap(), "hers", "nothing of it was done");
    assert_eq!(after.header.revision, before);
    assert!(session.header.revision <= before);

    // Leases are theirs who granted them.
    let granted = anna
        .lease()
        .grant(Duration::from_secs(60), None)
        .await
        .unwrap();
    let id = granted.id;
    root.auth()
        .user_add("bert", Some("b-password"))
        .await
        .unwrap();
    root.auth()
        .user_grant_role("bert", "writers")
        .await
        .unwrap();
    let bert = connect(&cluster, as_user(&cluster, "bert", "b-password")).await;
    denied(
        bert.lease().keep_alive_once(id).await.map(drop),
        "keep-alive",
    );
    denied(bert.lease().revoke(id).await.map(drop), "revoke");
    anna.lease().keep_alive_once(id).await.unwrap();
    anna.lease().revoke(id).await.unwrap();

    // The certificate's name is no user, and is told so.
    let nobody = cluster.client().await;
    let error = nobody.get("a/1", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated, "{error}");
    let error = nobody.put("a/w/1", "x", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated, "{error}");
    // A wrong password gets nobody in.
    let error = turned_away(&cluster, &as_user(&cluster, "anna", "not hers")).await;
    assert_eq!(error.kind, ErrorKind::Unauthenticated, "{error}");
    let said = error.to_string();
    assert!(said.starts_with("wrong user name or password"), "{said}");

    // A certificate of a user's name needs no password.
    cluster.pki.issue("--client", "carol", &[]);
    root.auth().user_add("carol", None).await.unwrap();
    root.auth()
        .user_grant_role("carol", "readers")
        .await
        .unwrap();
    let tls = TlsOptions::new()
        .ca_pem_file(cluster.pki.file("client-ca.pem"))
        .identity_pem_files(cluster.pki.file("carol.pem"), cluster.pki.file("carol.key"));
    let carol = connect(&cluster, cluster.options().with_tls(tls)).await;
    carol.get("a/1", None).await.unwrap();
    denied(
        carol.put("a/w/1", "x", None).await.map(drop),
        "carol only reads",
    );
    denied(
        carol
            .lease()
            .grant(Duration::from_secs(60), None)
            .await
            .map(drop),
        "carol could attach nothing to a lease",
    );

    // Root turns it off again, and everybody may.
    root.auth().auth_disable().await.unwrap();
    nobody.put("b", "anybody's", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_at_every_node_when_it_may_not_be_read_any_more() {
    let cluster = Cluster::start(3);
    guard(&cluster).await;
    let root = connect(&cluster, as_user(&cluster, "root", ROOT_PASSWORD)).await;
    root.put("a/1", "seen", None).await.unwrap();
    let mut watchers = Vec::new();
    for endpoint in cluster.endpoints() {
        let options = as_user(&cluster, "anna", ANNA_PASSWORD);
        let options = options.with_connect_timeout(Duration::from_secs(30));
        let anna = cluster.client_of(vec![endpoint.clone()], options).await;
        // The node knows by now that access is controlled, and who she is.
        let known = range("a/1", KeyRange::Single);
        anna.call_at(endpoint, known, Consistency::Linearizable)
            .await
            .unwrap();
        let refused = anna.watch("b", None).await.map(drop).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
        let wanted = WatchOptions::new().with_prefix();
        let watcher = anna.watch("a/", Some(wanted)).await.unwrap();
        watchers.push((anna, watcher));
    }
    root.put("a/2", "seen", None).await.unwrap();
    for (_, watcher) in &mut watchers {
        loop {
            let next = tokio::time::timeout(PATIENCE, watcher.next()).await;
            let event = next.expect("an event").expect("it goes on").unwrap();
            if matches!(event, WatchEvent::Events { .. }) {
                break;
            }
        }
    }
    root.auth()
        .user_revoke_role("anna", "readers")
        .await
        .unwrap();
    root.put("a/3", "not for her", None).await.unwrap();
    for (_, watcher) in &mut watchers {
        loop {
            let next = tokio::time::timeout(PATIENCE, watcher.next()).await;
            match next.expect("a last word").expect("it says so") {
                Ok(WatchEvent::Events { events, .. }) => panic!("told of {events:?}"),
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::PermissionDenied, "{error}");
                    break;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_has_its_time_and_a_client_with_a_password_does_not_notice() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[auth]\ntoken_ttl = \"5s\"\n");
    cluster.start_and_settle();
    // Connected while everything was allowed: it finds out by itself.
    let early = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;
    guard(&cluster).await;
    let root = connect(&cluster, as_user(&cluster, "root", ROOT_PASSWORD)).await;
    root.put("a/1", "value", None).await.unwrap();
    let anna = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;
    let token = root
        .auth()
        .authenticate("anna", ANNA_PASSWORD)
        .await
        .unwrap();
    let token = token.expect("access is controlled").token;
    let forged = {
        let mut bytes = token.reveal().to_vec();
        bytes[20] ^= 1;
        leasehold::api::Secret::new(bytes)
    };
    let options = cluster.options().with_token(forged);
    let started = Instant::now();
    let refused = loop {
        let options = Some(options.clone());
        match Client::connect(cluster.endpoints(), options).await {
            Err(error) if !is_late(&error) => break error,
            // A node that stands still says nothing of it. If it does so once it is connected, the
            // first request is to find that out.
            other => assert!(started.elapsed() < PATIENCE, "{:?}", other.err()),
        }
    };
    assert_eq!(refused.kind, ErrorKind::Unauthenticated);
    let mut expired = 0;
    let started = Instant::now();
    // Every token that was given at the beginning has ended by then.
    while started.elapsed() < Duration::from_secs(6) || expired == 0 {
        assert!(started.elapsed() < PATIENCE, "the token never had its time");
        anna.get("a/1", None)
            .await
            .expect("the client logs in by itself");
        anna.put("a/w/1", "x", None).await.expect("for writes, too");
        early
            .put("a/w/2", "x", None)
            .await
            .expect("and where it was not known before");
        let options = cluster.options().with_token(token.clone());
        let by_token = async {
            let client = Client::connect(cluster.endpoints(), Some(options)).await?;
            client.get("a/1", None).await
        };
        match by_token.await {
            Err(error) if !is_late(&error) => {
                assert_eq!(error.kind, ErrorKind::TokenExpired, "{error}");
                expired += 1;
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Another password, and what the old one was given is void.
    let auth = root.auth();
    auth.user_change_password("anna", Some("another"))
        .await
        .unwrap();
    let error = anna.get("a/1", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unauthenticated, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_in_no_log_and_on_no_disk_and_what_was_done_is_written_down() {
    let mut cluster = Cluster::prepare(1);
    let audit = cluster.folder.path().join("audit.log");
    cluster.write_configs(&format!(
        "filter = \"leasehold=trace,debug\"\n[auth]\naudit_file = \"{}\"\n",
        audit.display()
    ));
    cluster.start_and_settle();
    guard(&cluster).await;
    let anna = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;
    let value = "canary-of-a-value-31d2";
    anna.put("a/w/key-of-anna", value, None).await.unwrap();
    assert!(anna.get("secret/key", None).await.is_err());
    let wrong = as_user(&cluster, "anna", "canary-of-nobody-9c44");
    let error = turned_away(&cluster, &wrong).await;
    assert_eq!(error.kind, ErrorKind::Unauthenticated, "{error}");

    let (word, other) = (
        cluster.folder.path().join("p"),
        cluster.folder.path().join("q"),
    );
    write_secret(&word, &format!("{ROOT_PASSWORD}\n"));
    write_secret(&other, "canary-of-cli-1a1a\n");
    let by_file = format!("--password-file={}", word.display());
    let new = format!("--new-password-file={}", other.display());
    let root = ["--user=root", by_file.as_str(), "--exactly-once"];
    let cli = |arguments: &[&str]| cluster.cli(&[&root[..], arguments].concat());
    // A refusal of what was repeated does not say what became of it before.
    let certain = |arguments: &[&str]| {
        eventually("an outcome that is known", || {
            Some(cluster.cli(arguments)).filter(|(code, ..)| *code != 4)
        })
    };
    let (code, said, complaint) = cli(&["user", "add", "dora", &new]);
    assert_eq!(
        (code, said.as_str()),
        (0, "User dora created\n"),
        "{complaint}"
    );
    let again = [&root[..], &["user", "add", "dora", &new]].concat();
    let (code, _, complaint) = certain(&again);
    assert_eq!(code, 1, "{complaint}");
    assert_eq!(cli(&["role", "add", "ops"]).0, 0);
    let grant = [
        "role",
        "grant-permission",
        "ops",
        "readwrite",
        "--prefix",
        "/ops/",
    ];
    assert_eq!(cli(&grant).0, 0);
    assert_eq!(cli(&["user", "grant-role", "dora", "ops"]).0, 0);
    assert_eq!(
        cli(&["role", "get", "ops"]).1,
        "Role ops\nreadwrite /ops/ (prefix)\n"
    );
    assert_eq!(cli(&["user", "get", "dora"]).1, "User: dora\nRoles: ops\n");
    assert_eq!(cli(&["user", "list"]).1, "anna\ndora\nroot\n");
    assert!(
        cli(&["auth", "status"])
            .1
            .starts_with("Authentication Status: true\n")
    );
    let dora = [
        "--user=dora",
        &format!("--password-file={}", other.display()),
        "--exactly-once",
    ];
    let put = cluster.cli(&[&dora[..], &["put", "/ops/x", "1"]].concat());
    assert_eq!(put.0, 0, "{}", put.2);
    let denied = certain(&[&dora[..], &["put", "/other", "1"]].concat());
    assert!(
        denied.0 == 1 && denied.2.contains("LH-PERMISSION-DENIED"),
        "{}",
        denied.2
    );
    let missing = cluster.cli(&["--user=dora", "get", "/ops/x"]);
    assert!(
        missing.0 == 2 && missing.2.contains("--password-file"),
        "{}",
        missing.2
    );
    let back = ["role", "revoke-permission", "ops", "--prefix", "/ops/"];
    assert_eq!(cli(&back).0, 0);
    let see = [
        "role",
        "grant-permission",
        "ops",
        "read",
        "--prefix",
        "/ops/",
    ];
    assert_eq!(cli(&see).0, 0);
    let denied = certain(&[&dora[..], &["lease", "grant", "60"]].concat());
    assert!(denied.2.contains("may not grant leases"), "{}", denied.2);
    let counted = "leasehold_requests_total{method=\"lease_grant\",code=\"LH-PERMISSION-DENIED\"} ";
    assert!(cluster.nodes[0].metric(counted) >= 1.0);
    assert_eq!(cli(&["user", "revoke-role", "dora", "ops"]).0, 0);
    assert_eq!(cli(&["role", "delete", "ops"]).0, 0);
    assert_eq!(cli(&["user", "passwd", "dora", "--no-password"]).0, 0);
    assert_eq!(cli(&["user", "delete", "dora"]).0, 0);
    assert_eq!(cli(&["user", "get", "dora"]).0, 5, "there is no such user");

    let told = || fs::read_to_string(&audit).unwrap();
    eventually("the last line", || {
        told().contains("user_delete").then_some(())
    });
    let told = told();
    let lines: Vec<serde_json::Value> = told
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let line = |operation: &str, user: &str, result: &str| {
        lines.iter().find(|line| {
            line["operation"] == operation && line["user"] == user && line["result"] == result
        })
    };
    assert!(line("auth_enable", "tester", "OK").is_some(), "{told}");
    let put = line("put", "anna", "OK").expect("her put");
    assert!(
        put["revision"]
            .as_i64()
            .is_some_and(|revision| revision > 1),
        "{put}"
    );
    assert!(
        put["address"].as_str().unwrap().contains("127.0.0.1"),
        "{put}"
    );
    let refused = line("range", "anna", "LH-PERMISSION-DENIED").expect("her read");
    assert!(
        refused["prefix"]
            .as_str()
            .is_some_and(|hash| hash.len() == 16)
    );
    assert!(
        line("authenticate", "tester", "LH-UNAUTHENTICATED").is_some(),
        "{told}"
    );
    assert!(
        line("put", "dora", "LH-PERMISSION-DENIED").is_some(),
        "{told}"
    );
    assert!(
        line("lease_grant", "dora", "LH-PERMISSION-DENIED").is_some(),
        "{told}"
    );
    assert!(!told.contains("key-of-anna") && !told.contains("secret/key"));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&audit).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);

    let node = &mut cluster.nodes[0];
    assert_eq!(node.stop(), 0);
    let canaries = [
        ROOT_PASSWORD,
        ANNA_PASSWORD,
        "canary-of-nobody",
        "canary-of-cli",
    ];
    let log = node.log_text();
    assert!(log.contains("client connected"), "the log tells a lot");
    for secret in canaries.iter().chain([&value]) {
        assert!(!log.contains(secret), "{secret} is in the log");
        assert!(!told.contains(secret), "{secret} is in the audit file");
    }
    for secret in canaries {
        for file in files_below(&node.data_dir) {
            let bytes = fs::read(&file).unwrap();
            let is_there = memmem::find(&bytes, secret.as_bytes()).is_some();
            assert!(!is_there, "{secret} is in {}", file.display());
        }
    }
}

/// What `client-ca` has revoked, in PEM form.
pub(crate) fn revocation_list(cluster: &Cluster, revoked: &[&str]) -> String {
    let read = |name: &str| fs::read_to_string(cluster.pki.file(name)).unwrap();
    let key = rcgen::KeyPair::from_pem(&read("client-ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("client-ca.pem"), key).unwrap();
    let revoked_certs = revoked
        .iter()
        .map(|name| {
            let pem = read(&format!("{name}.pem"));
            let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
            let serial = pem.parse_x509().unwrap().raw_serial().to_vec();
            rcgen::RevokedCertParams {
                serial_number: serial.into(),
                revocation_time: rcgen::date_time_ymd(2024, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }
        })
        .collect();
    let list = rcgen::CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2024, 1, 1),
        next_update: rcgen::date_time_ymd(2099, 1, 1),
        crl_number: 1.into(),
        issuing_distribution_point: None,
        revoked_certs,
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_revoked_is_cut_off_and_who_is_not_listed_is_not_let_in() {
    let mut cluster = Cluster::prepare(1);
    let crl = cluster.folder.path().join("revoked.pem");
    fs::write(&crl, revocation_list(&cluster, &[])).unwrap();
    for name in ["good", "unlisted"] {
        cluster.pki.issue("--client", name, &[]);
    }
    let node = &cluster.nodes[0];
    let text = fs::read_to_string(&node.config).unwrap();
    let section = format!(
        "[tls.client]\ncrl_file = \"{}\"\nallowed_sans = [\"tester\", \"good\"]\n",
        crl.display()
    );
    let text = text.replace("[tls.client]\n", &section);
    fs::write(
        &node.config,
        format!("{text}[tls]\nreload_interval = \"1s\"\n"),
    )
    .unwrap();
    cluster.start_and_settle();
    // In the end it is refused for as long as it asks.
    let options = cluster.options().with_timeout(Duration::from_secs(10));
    let tester = cluster.client_with(options).await;
    tester.put("k", "v", None).await.unwrap();
    let by = |name: &str| {
        let tls = TlsOptions::new()
            .ca_pem_file(cluster.pki.file("client-ca.pem"))
            .identity_pem_files(
                cluster.pki.file(&format!("{name}.pem")),
                cluster.pki.file(&format!("{name}.key")),
            );
        cluster.options().with_tls(tls)
    };
    let good = connect(&cluster, by("good")).await;
    good.put("k", "v", None).await.unwrap();
    let unlisted = async {
        let client = Client::connect(cluster.endpoints(), Some(by("unlisted"))).await?;
        client.get("k", None).await
    };
    let error = unlisted.await.map(drop).expect_err("who is not listed");
    eprintln!("who is not listed is told: {error}");
    // That is told before it is logged.
    eventually("the reason", || {
        let said = cluster.nodes[0].log_text();
        said.contains("allowed_sans").then_some(())
    });

    // A file that is no list changes nothing.
    fs::write(&crl, "nothing\n").unwrap();
    eventually("the complaint", || {
        let said = cluster.nodes[0].log_text();
        said.contains("revocation list").then_some(())
    });
    tester.put("k", "v", None).await.unwrap();
    fs::write(&crl, revocation_list(&cluster, &["tester"])).unwrap();
    let started = Instant::now();
    loop {
        match tester.put("k", "v", None).await {
            Err(error) if error.kind == ErrorKind::TlsHandshake => break,
            _ => {}
        }
        assert!(started.elapsed() < PATIENCE, "who is revoked goes on");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let soon = ["get", "k", "--timeout=5s"];
    assert_ne!(cluster.cli(&soon).0, 0, "nor is it let in anew");
    good.put("k", "v", None)
        .await
        .expect("the other one does not notice");
}
