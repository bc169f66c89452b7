//! What comes from inside, as the driver is sent it.

use super::*;
use crate::api::{LeaseRef, SnapshotCall};
use crate::kv::access::Author;

#[tokio::test]
async fn a_write_from_inside_is_in_the_nodes_own_name() {
    let world = World::new();
    let shared = world.shared.clone();
    let revoke = Request::LeaseRevoke(LeaseRef::id(5));
    let asked = tokio::spawn(async move {
        let patience = Duration::from_secs(60);
        shared
            .ask(revoke, Consistency::Linearizable, patience)
            .await
    });
    let mut mails = sent_to_the_driver(&world).await;
    let Some(Mail::Request {
        author,
        outbox,
        frame,
        ..
    }) = mails.pop()
    else {
        panic!("a write goes to the driver");
    };
    assert_eq!(author, Some(Author::Node));
    let refused = Error::not_applied(ErrorKind::LeaseNotFound, "none");
    outbox.deliver(frame, Delivery::Reply(Err(refused)));
    let error = asked.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
}

/// Once the lease is over another leader may have acknowledged what is not here: such a state is no
/// backup of what was acknowledged before it was asked for.
#[tokio::test]
async fn a_snapshot_does_not_begin_on_a_state_that_nobody_confirms() {
    let mut world = World::new();
    let begin = Request::Snapshot(SnapshotCall::Begin);
    let begun = asked_aside(&mut world, Consistency::Linearizable, begin.clone()).await;
    assert_eq!(path(&begun.unwrap()), ReadPath::Lease);
    let later = Duration::from_secs(1).as_nanos() as u64;
    world.clock.nanos.fetch_add(later, Ordering::Relaxed);
    let frame = world.frame(Consistency::Linearizable, begin);
    assert!(world.take_in(&[frame]).0.is_empty());
    let (outbox, mut answers) = (world.session.outbox.clone(), Vec::new());
    tokio::select! {
        mails = sent_to_the_driver(&world) => assert_eq!(mails.len(), 1),
        () = outbox.take(&mut answers) => panic!("a snapshot was begun on nobody's word"),
    }
}

/// The same of what the admin port downloads.
#[tokio::test]
async fn an_export_does_not_begin_on_a_state_that_nobody_confirms() {
    let world = World::new();
    let patience = Duration::from_secs(60);
    let begun = world.shared.export(SnapshotCall::Begin, patience).await;
    assert!(begun.is_ok(), "the lease holds");
    let later = Duration::from_secs(1).as_nanos() as u64;
    world.clock.nanos.fetch_add(later, Ordering::Relaxed);
    let shared = world.shared.clone();
    let export = tokio::spawn(async move { shared.export(SnapshotCall::Begin, patience).await });
    tokio::pin!(export);
    let mut mails = tokio::select! {
        mails = sent_to_the_driver(&world) => mails,
        _ = &mut export => panic!("an export was begun on nobody's word"),
    };
    let Some(Mail::Request { outbox, frame, .. }) = mails.pop() else {
        panic!("a quorum has to be asked");
    };
    let kind = ErrorKind::LeaderChanged;
    let refused = Error::not_applied(kind.clone(), "another one leads");
    outbox.deliver(frame, Delivery::Reply(Err(refused)));
    assert_eq!(export.await.unwrap().unwrap_err().kind, kind);
}

/// Without a quorum each waits, and takes nothing of what is kept for renewals.
#[tokio::test]
async fn wishes_to_be_forwarded_for_wait_briefly_and_in_the_place_of_reads() {
    let mut world = World::with(1 << 30, 32);
    let wish = |leader| Request::ForwardToLeader {
        leader: NodeId(leader),
    };
    // Of another than who leads there is nothing to hear.
    let refused = world.ask(Consistency::Serializable, wish(7)).unwrap();
    assert_eq!(refused.unwrap_err().outcome, Outcome::NotApplied);
    assert_eq!(world.shared.in_flight(), 0);
    assert_eq!(in_flight(&mut world, &wish(1)), 24);
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
    assert_eq!(in_flight(&mut world, &renewal), 8);
    let mails = sent_to_the_driver(&world).await;
    let Some(Mail::Request { call, .. }) = mails.first() else {
        panic!("a quorum has to be asked");
    };
    assert_eq!(call.consistency, Consistency::LinearizableQuorum);
    assert_eq!(call.timeout_ms, 1_000, "of the hour that the client has");
}

#[test]
fn a_wish_to_be_forwarded_for_counts_as_a_request_of_its_user() {
    let mut world = World::rated(1);
    world.put("k", "v");
    world.get(Consistency::Linearizable, "k").unwrap().unwrap();
    let wish = Request::ForwardToLeader { leader: NodeId(1) };
    let refused = world.ask(Consistency::Serializable, wish).unwrap();
    assert!(refused.unwrap_err().retry_after().is_some());
}

#[tokio::test]
async fn a_query_of_leases_is_put_to_the_leader_with_the_revision_that_it_needs() {
    let world = World::new();
    let call = Call {
        timeout_ms: 60_000,
        consistency: Consistency::Linearizable,
        min_revision: 9,
        session: None,
        request: Request::LeaseTimeToLive { id: 5, keys: true },
    };
    let (shared, principal) = (world.shared.clone(), world.session.principal().clone());
    tokio::spawn(async move {
        shared
            .relay_lease_query(principal, call, RequestContext::default())
            .await
    });
    let [Mail::Request { call, .. }] = &sent_to_the_driver(&world).await[..] else {
        panic!("it is asked");
    };
    assert_eq!((call.min_revision, call.timeout_ms), (9, 60_000));
}
