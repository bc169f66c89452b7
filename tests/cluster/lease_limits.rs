//! The bad input of client leases, at the door that programs use: a typed result each, nothing
//! happens, and whoever asked is served on.

use std::time::Duration;

use leasehold::api::{
    Consistency, Error, ErrorKind, LeaseGrantRequest, LeaseKept, LeaseRef, LeaseTarget, Outcome,
    PutRequest, Request, ResponseBody, TxnOp, TxnRequest,
};
use leasehold::client::{Client, LeaseGrantOptions, PutOptions};

use crate::harness::{Cluster, PATIENCE, judged};

const TTL: Duration = Duration::from_secs(60);
/// That of etcd.
const LONGEST_MS: u64 = 9_000_000_000_000;

/// A grant as no option of the SDK would write it.
async fn grant(client: &Client, ttl_ms: i64) -> Result<u64, Error> {
    let request = Request::LeaseGrant(LeaseGrantRequest {
        ttl_ms,
        ..LeaseGrantRequest::default()
    });
    let response = client.call(request, Consistency::Linearizable).await?;
    match response.body {
        ResponseBody::LeaseGrant(granted) => Ok(granted.ttl_ms),
        other => panic!("not a grant: {other:?}"),
    }
}

/// Refused for this reason, and certainly without effect.
async fn assert_refused<T: std::fmt::Debug>(
    request: impl AsyncFnMut() -> Result<T, Error>,
    kind: &ErrorKind,
) {
    let error = judged(request).await.expect_err("it must be refused");
    assert_eq!((&error.kind, error.outcome), (kind, Outcome::NotApplied));
    assert!(error.detail.len() > 20, "it says what to do: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_of_zero_below_zero_or_beyond_the_longest_is_refused_and_a_tiny_one_clamped() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let lease = client.lease();
    for ttl_ms in [0, -1, i64::MIN] {
        let refused = async || grant(&client, ttl_ms).await;
        assert_refused(refused, &ErrorKind::InvalidArgument).await;
    }
    let huge = ErrorKind::TtlOutOfRange {
        ttl_max_ms: LONGEST_MS,
    };
    assert_refused(async || grant(&client, i64::MAX).await, &huge).await;
    assert_eq!(grant(&client, 1).await.unwrap(), 500);
    // The longest is one, and is renewed and asked for as any.
    let longest = lease.grant(Duration::from_millis(LONGEST_MS), None);
    let longest = longest.await.unwrap();
    assert_eq!(longest.ttl_ms, LONGEST_MS);
    lease.keep_alive_once(longest.id).await.unwrap();
    let left = lease.time_to_live(longest.id, None).await.unwrap();
    assert_eq!(left.granted_ttl_ms, LONGEST_MS);
    assert!(left.remaining_ms.unwrap() > LONGEST_MS / 2);
    // The same of a change, and at the command line.
    let held = lease.grant(TTL, None).await.unwrap();
    assert_refused(
        async || lease.update_ttl(held.id, Duration::ZERO).await,
        &ErrorKind::InvalidArgument,
    )
    .await;
    let longer = Duration::from_millis(LONGEST_MS + 1);
    assert_refused(async || lease.update_ttl(held.id, longer).await, &huge).await;
    assert_eq!(
        lease
            .time_to_live(held.id, None)
            .await
            .unwrap()
            .granted_ttl_ms,
        60_000
    );
    for (ttl, code, says) in [
        ("0", 1, "millisecond"),
        ("-5", 1, "millisecond"),
        ("110000d", 1, "9000000000000"),
        ("soon", 2, "1500ms"),
    ] {
        let (found, _, stderr) = cluster.refused(&["lease", "grant", ttl]);
        assert_eq!(found, code, "{ttl}: {stderr}");
        assert!(stderr.contains(says), "{ttl}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_or_a_name_that_is_taken_is_refused_until_its_lease_is_over() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let lease = client.lease();
    let named = || LeaseGrantOptions::new().with_name("server1Lease");
    let numbered = || LeaseGrantOptions::new().with_id(77);
    let both = named().with_id(77);
    lease.grant(TTL, Some(both)).await.unwrap();
    for taken in [named(), numbered(), named().with_id(78)] {
        let refused = async || lease.grant(TTL, Some(taken.clone())).await;
        assert_refused(refused, &ErrorKind::LeaseExists).await;
    }
    assert!(
        lease.time_to_live(78, None).await.is_err(),
        "nothing is left of it"
    );
    lease.revoke(77).await.unwrap();
    lease.grant(TTL, Some(named())).await.unwrap();
    lease.grant(TTL, Some(numbered())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_and_an_expired_id_are_told_apart_where_that_is_known() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let lease = client.lease();
    let over = lease.grant(Duration::from_millis(500), None).await.unwrap();
    let gone = async {
        while lease.time_to_live(over.id, None).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it ends");
    assert_refused(
        async || lease.keep_alive_once(over.id).await,
        &ErrorKind::LeaseExpired,
    )
    .await;
    for id in [over.id, 4_711] {
        let not_found = ErrorKind::LeaseNotFound;
        assert_refused(async || lease.revoke(id).await, &not_found).await;
        assert_refused(async || lease.time_to_live(id, None).await, &not_found).await;
        assert_refused(async || lease.update_ttl(id, TTL).await, &not_found).await;
        let on_it = || Some(PutOptions::new().with_lease(id));
        assert_refused(async || client.put("k", "v", on_it()).await, &not_found).await;
    }
    assert_refused(
        async || lease.keep_alive_once(4_711).await,
        &ErrorKind::LeaseNotFound,
    )
    .await;
    assert!(client.get("k", None).await.unwrap().kv().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lease_more_than_the_most_is_refused_until_another_is_gone() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[lease]\nmax_leases = 3\n");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let lease = client.lease();
    let first = lease.grant(TTL, None).await.unwrap();
    for _ in 0..2 {
        lease.grant(TTL, None).await.unwrap();
    }
    let full = ErrorKind::LeaseLimit { limit: 3 };
    assert_refused(async || lease.grant(TTL, None).await, &full).await;
    let both = async || client.put_with_new_lease("k", "v", TTL, None).await;
    assert_refused(both, &full).await;
    assert!(client.get("k", None).await.unwrap().kv().is_none());
    lease.revoke(first.id).await.unwrap();
    lease.grant(TTL, None).await.unwrap();
}

/// The TTL and the keys of one lease, as the configuration has them: with the bound, and counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_ttl_and_more_keys_than_are_configured_are_refused_with_the_bound() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[lease]\nmax_ttl = \"90s\"\nmax_keys = 2\n");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let lease = client.lease();
    let too_long = ErrorKind::TtlOutOfRange { ttl_max_ms: 90_000 };
    let longer = Duration::from_secs(91);
    assert_refused(async || lease.grant(longer, None).await, &too_long).await;
    let held = lease.grant(longer - Duration::from_secs(1), None).await;
    let held = held.unwrap();
    assert_refused(async || lease.update_ttl(held.id, longer).await, &too_long).await;
    let on_it = || Some(PutOptions::new().with_lease(held.id));
    for key in ["a", "b", "a"] {
        client.put(key, "v", on_it()).await.unwrap();
    }
    let full = ErrorKind::LeaseLimit { limit: 2 };
    assert_refused(async || client.put("c", "v", on_it()).await, &full).await;
    client.delete("a", None).await.unwrap();
    client.put("c", "v", on_it()).await.unwrap();
    for (method, code) in [
        ("lease_grant", "LH-TTL-OUT-OF-RANGE"),
        ("lease_update_ttl", "LH-TTL-OUT-OF-RANGE"),
        ("put", "LH-LEASE-LIMIT"),
    ] {
        let refused = format!("leasehold_requests_total{{method=\"{method}\",code=\"{code}\"}} ");
        assert!(cluster.nodes[0].metric(&refused) >= 1.0, "{refused}");
    }
}

/// A hundred thousand keys, as a program would attach them, and one more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_more_than_a_lease_may_have_is_refused_and_all_of_them_go_with_it() {
    const KEYS_MAX: usize = 100_000;
    const PUTS: usize = 100;
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let held = client.lease().grant(TTL * 10, None).await.unwrap();
    let put = |number: usize| {
        TxnOp::Put(PutRequest {
            key: format!("many/{number:06}").into(),
            lease: LeaseTarget::Lease(LeaseRef::id(held.id)),
            ..PutRequest::default()
        })
    };
    let mut writes = tokio::task::JoinSet::new();
    for first in (0..KEYS_MAX).step_by(PUTS) {
        while writes.len() >= 16 {
            writes.join_next().await.unwrap().unwrap();
        }
        let txn = TxnRequest::new().and_then((first..first + PUTS).map(put));
        let client = client.clone();
        writes.spawn(async move {
            let done = client
                .call(Request::Txn(txn), Consistency::Linearizable)
                .await;
            done.unwrap();
        });
    }
    while let Some(written) = writes.join_next().await {
        written.unwrap();
    }
    let full = ErrorKind::LeaseLimit {
        limit: KEYS_MAX as u64,
    };
    let on_it = || Some(PutOptions::new().with_lease(held.id));
    let one_more = async || client.put("one more", "v", on_it()).await;
    assert_refused(one_more, &full).await;
    let is_there = client.put("many/000000", "v", on_it()).await;
    is_there.expect("a key that hangs on it already takes no room");
    assert_eq!(cluster.nodes[0].metric("leasehold_lease_keys "), 100_000.0);
    // They are deleted in steps, which go on by themselves.
    let revoked = client.lease().revoke(held.id).await.unwrap();
    assert_eq!(
        (revoked.deleted, revoked.is_partial),
        (KEYS_MAX as u64, true)
    );
    let gone = async {
        while cluster.nodes[0].metric("leasehold_lease_keys ") > 0.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("it ends");
    let left = client.get("many/099999", None).await.unwrap();
    assert!(left.kv().is_none());
    client
        .lease()
        .time_to_live(held.id, None)
        .await
        .unwrap_err();
}

/// One result for each of ten thousand, in their order, on one connection that lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keep_alive_of_ten_thousand_ids_some_bad_has_one_result_each_and_the_stream_lives() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let lease = client.lease();
    let good = lease.grant(TTL, None).await.unwrap().lease();
    let revoked = lease.grant(TTL, None).await.unwrap().lease();
    lease.revoke(revoked).await.unwrap();
    let another_grant = LeaseRef {
        grant_index: good.grant_index + 1,
        ..good
    };
    let bad = [
        (5, LeaseRef::id(i64::MAX), LeaseKept::NotFound),
        (6, LeaseRef::id(-3), LeaseKept::NotFound),
        (7, LeaseRef::id(i64::MIN), LeaseKept::NotFound),
        (8, LeaseRef::id(0), LeaseKept::NotFound),
        (4_999, revoked, LeaseKept::Revoked),
        (9_999, another_grant, LeaseKept::NotFound),
    ];
    let mut leases = vec![good; 10_000];
    for (place, lease, _) in bad {
        leases[place] = lease;
    }
    let renew = async |leases: Vec<LeaseRef>| -> Result<Vec<LeaseKept>, Error> {
        let request = Request::LeaseKeepAlive(leases);
        let response = client.call(request, Consistency::Linearizable).await?;
        match response.body {
            ResponseBody::LeaseKeepAlive(kept) => Ok(kept),
            other => panic!("not a renewal: {other:?}"),
        }
    };
    let connections = "leasehold_quic_handshakes_total{kind=\"client\",result=\"ok\"}";
    let mut tries = 0;
    loop {
        let before = cluster.nodes[0].metric(connections);
        for _ in 0..3 {
            let kept = renew(leases.clone()).await.unwrap();
            assert_eq!(kept.len(), leases.len());
            for (place, mut kept) in kept.into_iter().enumerate() {
                // A leader that stood still meanwhile has extended it.
                if let LeaseKept::Renewed { is_extended, .. } = &mut kept {
                    *is_extended = false;
                }
                let expected = bad.iter().find(|(bad, ..)| *bad == place);
                let renewed = LeaseKept::Renewed {
                    ttl_ms: 60_000,
                    grant_index: good.grant_index,
                    is_extended: false,
                };
                assert_eq!(
                    kept,
                    expected.map_or(renewed, |(.., kept)| *kept),
                    "{place}"
                );
            }
        }
        let too_many = async || renew(vec![good; 20_000]).await;
        assert_refused(too_many, &ErrorKind::InvalidArgument).await;
        renew(vec![good]).await.unwrap();
        let after = cluster.nodes[0].metric(connections);
        if before == after {
            return;
        }
        // A client on a busy machine may give up a connection that was silent for long, but not always.
        tries += 1;
        assert!(tries < 5, "each time somebody had to connect again");
    }
}
