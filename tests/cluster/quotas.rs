//! What one user may have of a node and of a cluster, and that others have theirs.

use std::time::{Duration, Instant};

use leasehold::api::{Error, ErrorKind, Outcome};
use leasehold::client::{RetryPolicy, TlsOptions};

use crate::access::{ANNA_PASSWORD, ROOT_PASSWORD, as_user, connect, guard};
use crate::harness::{Cluster, PATIENCE, judged};

const TTL: Duration = Duration::from_secs(600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_has_so_many_leases_and_others_have_theirs() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("[lease]\nmax_per_user = 2\n");
    cluster.start_and_settle();
    // While access is open leases are nobody's.
    let open = cluster.client().await;
    for _ in 0..3 {
        open.lease().grant(TTL, None).await.unwrap();
    }
    guard(&cluster).await;
    let anna = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;
    let root = connect(&cluster, as_user(&cluster, "root", ROOT_PASSWORD)).await;
    let first = anna.lease().grant(TTL, None).await.unwrap();
    anna.lease().grant(TTL, None).await.unwrap();
    let refused = judged(async || anna.lease().grant(TTL, None).await).await;
    let refused = refused.unwrap_err();
    let full = ErrorKind::QuotaExceeded { limit: 2 };
    assert_eq!(
        (&refused.kind, refused.outcome),
        (&full, Outcome::NotApplied)
    );
    let said = refused.to_string();
    assert!(said.contains("\"anna\" has 2 leases"), "{said}");
    assert!(!refused.is_retryable());
    let both = async || anna.put_with_new_lease("a/w/1", "v", TTL, None).await;
    assert_eq!(judged(both).await.map(drop).unwrap_err().kind, full);
    root.lease().grant(TTL, None).await.unwrap();
    let leader = cluster.wait_for_lease();
    let counted = "leasehold_requests_total{method=\"lease_grant\",code=\"LH-QUOTA-EXCEEDED\"} ";
    let has_counted = cluster.nodes.iter().any(|node| {
        let (_, body) = node.admin("/metrics").expect("a scrape");
        body.contains(counted)
    });
    assert!(
        has_counted,
        "the node that was asked counts what was refused"
    );
    // Whoever leads next counts as many.
    cluster.nodes[leader].kill();
    cluster.wait_for_lease();
    let refused = judged(async || anna.lease().grant(TTL, None).await).await;
    assert_eq!(refused.unwrap_err().kind, full);
    anna.lease().revoke(first.id).await.unwrap();
    anna.lease().grant(TTL, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_asks_too_often_is_told_when_to_come_back_and_others_are_served() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[limits]\nmax_request_rate_per_user = 1\n");
    cluster.start_and_settle();
    let options = cluster.options().with_retry(RetryPolicy::never());
    let eager = cluster.client_with(options.clone()).await;
    let began = Instant::now();
    let refused = loop {
        // Many at once: more than one a second, unless the machine stands still.
        let asked = (0..64).map(|_| {
            let eager = eager.clone();
            tokio::spawn(async move { eager.get("k", None).await.map(drop) })
        });
        let asked: Vec<_> = asked.collect();
        let mut refused = None;
        for one in asked {
            refused = refused.or(one.await.unwrap().err());
        }
        if let Some(refused) = refused {
            break refused;
        }
        assert!(began.elapsed() < PATIENCE, "64 at once are never too many");
    };
    let told: &Error = &refused;
    assert_eq!(told.outcome, Outcome::NotApplied, "{told}");
    assert!(told.retry_after().is_some(), "{told}");
    let said = told.to_string();
    assert!(
        said.contains("\"tester\" makes more requests a second"),
        "{said}"
    );
    assert!(said.contains("limits.max_request_rate_per_user"), "{said}");
    let rejected = "leasehold_requests_rejected_total{class=\"read\",reason=\"user\"} ";
    assert!(cluster.nodes[0].metric(rejected) >= 1.0);
    // Another one has what it may have in a second.
    cluster.pki.issue("--client", "other", &[]);
    let tls = TlsOptions::new()
        .ca_pem_file(cluster.pki.file("client-ca.pem"))
        .identity_pem_files(cluster.pki.file("other.pem"), cluster.pki.file("other.key"));
    let other = cluster.client_with(options.with_tls(tls)).await;
    other.get("k", None).await.unwrap();
    // And a patient client gets all it asks for.
    let patient = cluster.client().await;
    for _ in 0..3 {
        patient.put("k", "v", None).await.unwrap();
    }
}
