//! Wrong passwords make whoever gives them wait, and nobody else.

use std::fs;
use std::time::{Duration, Instant};

use leasehold::api::{Error, ErrorKind};
use leasehold::client::{Client, TlsOptions};

use crate::harness::{Cluster, PATIENCE, eventually};

const ROOT: &str = "password-of-root-2af1";
const ANNA: &str = "password-of-anna-c370";
/// How long `evil` waits for an answer: if told to wait longer before the next try, it gives up.
const EVIL_WAITS: Duration = Duration::from_secs(2);

/// A client of a certificate of this name, which logs in as nobody and waits so long for an answer.
async fn with_certificate(cluster: &Cluster, name: &str, timeout: Duration) -> Client {
    cluster.pki.issue("--client", name, &[]);
    let file = |ending: &str| cluster.pki.file(&format!("{name}.{ending}"));
    let tls = TlsOptions::new()
        .ca_pem_file(cluster.pki.file("client-ca.pem"))
        .identity_pem_files(file("pem"), file("key"));
    let options = cluster.options().with_tls(tls);
    let options = options.with_timeout(timeout);
    cluster.client_with(options).await
}

async fn log_in(client: &Client, name: &str, password: &str) -> Result<(), Error> {
    let token = client.auth().authenticate(name, password).await?;
    token
        .map(drop)
        .ok_or_else(|| panic!("access is controlled"))
}

/// Guesses until it is told to wait longer than it asks for, and for how long.
async fn guess_until_locked_out(client: &Client, name: &str) -> Duration {
    let started = Instant::now();
    loop {
        let error = log_in(client, name, "a guess").await.unwrap_err();
        if let ErrorKind::SlowDown { retry_after_ms } = error.kind {
            assert_eq!(
                error.retry_after().map(|wait| wait.as_millis()),
                Some(u128::from(retry_after_ms))
            );
            assert!(
                error.to_string().contains("wait before the next attempt"),
                "{error}"
            );
            return Duration::from_millis(u64::from(retry_after_ms));
        }
        // On a busy machine there may be no time left to try after a wait.
        let is_refused = matches!(
            error.kind,
            ErrorKind::Unauthenticated | ErrorKind::DeadlineExceeded
        );
        assert!(is_refused || error.is_retryable(), "{error}");
        assert!(started.elapsed() < PATIENCE, "guesses go on for ever");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_guesses_waits_and_who_has_a_certificate_or_was_there_before_does_not() {
    let mut cluster = Cluster::prepare(1);
    let audit = cluster.folder.path().join("audit.log");
    cluster.write_configs(&format!("[auth]\naudit_file = \"{}\"\n", audit.display()));
    cluster.start_and_settle();
    let founder = cluster.client().await;
    let auth = founder.auth();
    auth.user_add("root", Some(ROOT)).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("anna", Some(ANNA)).await.unwrap();
    auth.user_add("carol", None).await.unwrap();
    auth.user_grant_role("carol", "root").await.unwrap();
    auth.auth_enable().await.unwrap();
    let carol = with_certificate(&cluster, "carol", PATIENCE).await;
    let home = with_certificate(&cluster, "home", PATIENCE).await;
    let evil = with_certificate(&cluster, "evil", EVIL_WAITS).await;
    log_in(&home, "anna", ANNA).await.expect("it is right");

    let wait = guess_until_locked_out(&evil, "anna").await;
    assert!(wait >= Duration::from_millis(1), "{wait:?}");
    // Nor is he let try another name, or one by the name of somebody who has no password.
    for name in ["root", "carol", "nobody"] {
        guess_until_locked_out(&evil, name).await;
    }
    // The right password is not looked at either: else to wait would tell that it was wrong.
    let started = Instant::now();
    loop {
        let wait = guess_until_locked_out(&evil, "anna").await;
        let told = Instant::now();
        match log_in(&evil, "anna", ANNA).await {
            Ok(()) => assert!(
                told.elapsed() + EVIL_WAITS >= wait,
                "looked at within {:?} of {wait:?}",
                told.elapsed()
            ),
            Err(error) if matches!(error.kind, ErrorKind::SlowDown { .. }) => break,
            Err(error) => {
                let is_late = error.kind == ErrorKind::DeadlineExceeded;
                assert!(is_late || error.is_retryable(), "{error}");
            }
        }
        // On a busy machine most of the wait may be over before he is heard. The next one is longer.
        assert!(started.elapsed() < PATIENCE, "no wait is long enough");
    }

    // Who is meant by that name gets in where she has been before, others from anywhere.
    log_in(&home, "anna", ANNA)
        .await
        .expect("nobody locks her out");
    log_in(&founder, "root", ROOT)
        .await
        .expect("nor root, from elsewhere");
    carol.put("k", "by certificate", None).await.unwrap();

    let node = &cluster.nodes[0];
    let failures = |reason: &str| {
        node.metric(&format!(
            "leasehold_auth_failures_total{{reason=\"{reason}\"}}"
        ))
    };
    assert!(failures("locked_out") >= 5.0);
    assert!(failures("unauthenticated") >= 6.0);
    eventually("a line in the audit file", || {
        let told = fs::read_to_string(&audit).unwrap();
        let is_told = |line: &str| {
            line.contains("\"authenticate\"")
                && line.contains("\"LH-SLOW-DOWN\"")
                && line.contains("\"evil\"")
        };
        told.lines().any(is_told).then_some(())
    });
}
