//! Reads that never fall back behind what their client has seen, whichever node answers.

use std::sync::atomic::AtomicI64;

use super::*;

/// A leader and a follower, at these revisions.
struct Pair {
    leader: Fake,
    follower: Fake,
    at: [Arc<AtomicI64>; 2],
}

fn pair(authority: &Authority, leader_at: i64, follower_at: i64) -> Pair {
    let at = [leader_at, follower_at].map(|revision| Arc::new(AtomicI64::new(revision)));
    let [leads, follows] = at.clone();
    let leader = fake(authority, "n1", move |_, frame| {
        let mut told = answer("n1", frame).unwrap();
        told.header.revision = leads.load(Ordering::SeqCst);
        reply(Ok(told))
    });
    let hint = leader.address.clone();
    let follower = fake(authority, "n2", move |_, frame| {
        if frame.call.consistency == Consistency::Linearizable {
            return not_leader(Some((id_of("n1"), &hint)));
        }
        let mut told = answer("n2", frame).unwrap();
        told.header.leader_id = Some(id_of("n1"));
        told.header.revision = follows.load(Ordering::SeqCst);
        reply(Ok(told))
    });
    Pair {
        leader,
        follower,
        at,
    }
}

impl Pair {
    /// A client that was at the follower first, and has seen what the leader has.
    async fn client(&self, options: ConnectOptions) -> Client {
        let client = connect_with(&[&self.follower, &self.leader], options).await;
        let seen = client.get("k", None).await.unwrap().header.revision;
        assert_eq!(seen, self.at[0].load(Ordering::SeqCst));
        client
    }

    fn set(&self, leader_at: i64, follower_at: i64) {
        self.at[0].store(leader_at, Ordering::SeqCst);
        self.at[1].store(follower_at, Ordering::SeqCst);
    }
}

fn stale() -> GetOptions {
    GetOptions::new().with_consistency(Consistency::Serializable)
}

async fn revision(client: &Client, options: GetOptions) -> i64 {
    client
        .get("k", Some(options))
        .await
        .unwrap()
        .header
        .revision
}

#[test]
fn a_node_that_is_behind_what_was_seen_is_left_for_another() {
    run(async {
        let authority = Authority::new();
        let nodes = pair(&authority, 9, 5);
        let client = nodes.client(options(&authority)).await;
        let before = nodes.follower.calls().len();
        for _ in 0..4 {
            assert_eq!(revision(&client, stale()).await, 9);
        }
        assert!(nodes.follower.calls().len() > before, "it was asked");
        let txn = TxnRequest::new().and_then([crate::api::TxnOp::get("k")]);
        let how = crate::client::TxnOptions::new().with_consistency(Consistency::Serializable);
        let txn = client.txn(txn, Some(how)).await.unwrap();
        assert_eq!(txn.header.revision, 9);
        let mut stream = client.get_stream("k", Some(stale())).unwrap();
        assert!(stream.next().await.is_none());
        assert!(nodes.leader.methods().contains(&"range_page"));
        // What the follower has seen meanwhile is good enough, and no less than that any more.
        nodes.set(10, 12);
        let at_follower = stale().with_endpoint(&nodes.follower.address);
        assert_eq!(revision(&client, at_follower).await, 12);
        nodes.set(11, 12);
        assert_eq!(revision(&client, stale()).await, 12);

        let careless = nodes
            .client(options(&authority).with_monotonic(false))
            .await;
        nodes.set(11, 5);
        assert_eq!(revision(&careless, stale()).await, 5);
    });
}

#[test]
fn reads_at_a_revision_or_a_node_of_their_own_are_left_alone() {
    run(async {
        let authority = Authority::new();
        let nodes = pair(&authority, 9, 5);
        let client = nodes.client(options(&authority)).await;
        assert_eq!(revision(&client, stale().with_revision(3)).await, 5);
        let there = stale().with_endpoint(&nodes.follower.address);
        assert_eq!(revision(&client, there).await, 5);
    });
}

#[test]
fn a_client_that_reaches_nobody_else_is_told_so_in_time() {
    run(async {
        let authority = Authority::new();
        let nodes = pair(&authority, 9, 5);
        let client = nodes.client(options(&authority)).await;
        let once = options(&authority).with_retry(RetryPolicy::never());
        let once = connect_with(&[&nodes.follower], once).await;
        let at_leader = stale().with_endpoint(&nodes.leader.address);
        assert_eq!(revision(&once, at_leader).await, 9);
        drop(nodes.leader);
        let soon = stale().with_timeout(Duration::from_millis(300));
        let error = client.get("k", Some(soon)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FutureRevision, "{error}");
        assert_eq!(error.outcome, Outcome::NotApplied);
        let error = once.get("k", Some(stale())).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FutureRevision, "{error}");
    });
}

/// The fast path: a leader that was deposed answers what may be old from what it has.
#[test]
fn a_leader_that_is_behind_is_left_as_well() {
    run(async {
        let authority = Authority::new();
        let nodes = pair(&authority, 9, 5);
        let client = nodes.client(options(&authority)).await;
        nodes.set(4, 9);
        let young = GetOptions::new().with_consistency(Consistency::MaxStaleness(PATIENCE));
        for _ in 0..3 {
            assert_eq!(revision(&client, young.clone()).await, 9);
        }
        let [.., last] = &nodes.leader.calls()[..] else {
            panic!("it was asked");
        };
        assert_eq!(last.call.consistency, young.consistency.unwrap());
    });
}
