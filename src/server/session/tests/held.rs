//! What requests hold of a node: how long, whoever reads their answers or does not, and what is written
//! down of those that are not answered.

use super::*;
use crate::api::{AuthRequest, Class, LeaseRef, Password, Secret};
use crate::kv::access::{Author, Identity};
use crate::server::mail::outbox::Outbox;
use crate::server::session::ForwardService;
use crate::transport::StreamError;

fn a_put() -> Request {
    Request::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    })
}

/// Leaves a write to the driver; where its answer goes.
fn in_flight(world: &mut World) -> (Arc<Outbox>, u64) {
    let frame = world.frame(Consistency::Linearizable, a_put());
    assert!(world.take_in(&[frame]).0.is_empty());
    let mut mails = Vec::new();
    world.shared.mailbox.take(&mut mails, Duration::ZERO);
    let Some(Mail::Request { outbox, frame, .. }) = mails.pop() else {
        panic!("a write goes to the driver");
    };
    (outbox, frame)
}

fn end_stream(world: &mut World) {
    world.session = Session::new(world.shared.clone(), shares(1 << 20));
}

#[tokio::test]
async fn what_is_done_leaves_its_place_while_the_client_reads_nothing_and_his_stream_ends() {
    let mut world = World::new();
    let (outbox, frame) = in_flight(&mut world);
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 1);
    let done = Error::unknown(ErrorKind::LeaderChanged, "nobody knows");
    outbox.deliver(frame, Delivery::Reply(Err(done)));
    let patience = Duration::from_millis(20);
    let written = world.session.write(patience, std::future::pending()).await;
    assert_eq!(written, Err(StreamError::TooSlow));
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 0);
    assert_eq!(world.shared.limits.budget.taken(), 0);
    assert_eq!(world.shared.in_flight(), 1, "it is still to be given out");
}

#[test]
fn what_an_ended_stream_asked_for_keeps_its_place_until_it_is_done() {
    let mut world = World::new();
    let (outbox, frame) = in_flight(&mut world);
    end_stream(&mut world);
    assert_eq!(world.shared.in_flight(), 0);
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 1);
    outbox.deliver(frame, Delivery::CaughtUp);
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 0);
    assert_eq!(world.shared.limits.budget.taken(), 0);
    // Or until nobody has it any more.
    let (outbox, _) = in_flight(&mut world);
    end_stream(&mut world);
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 1);
    drop(outbox);
    assert_eq!(world.shared.limits.backlog.waiting(Class::Write), 0);
}

#[test]
fn what_asks_to_wait_for_weeks_waits_for_ten_minutes() {
    let mut world = World::new();
    for request in [get("k"), a_put()] {
        let consistency = Consistency::LinearizableQuorum;
        let frame = world.frame_within(u32::MAX, consistency, request);
        world.take_in(&[frame]);
        let mut mails = Vec::new();
        world.shared.mailbox.take(&mut mails, Duration::ZERO);
        let Some(Mail::Request { call, .. }) = mails.pop() else {
            panic!("it goes to the driver");
        };
        assert_eq!(call.timeout_ms, 600_000);
    }
}

/// Access is controlled, and only root may do anything.
pub(in crate::server::session) fn guard(world: &mut World) {
    for auth in [
        AuthRequest::UserAdd {
            name: "root".into(),
            password: Password::Hashed(Secret::new("hash")),
        },
        AuthRequest::UserGrantRole {
            name: "root".into(),
            role: "root".into(),
        },
        AuthRequest::Enable {
            token_key: Secret::new("key"),
        },
    ] {
        let root = Identity {
            name: "root".into(),
            generation: None,
        };
        let command = Command::Write {
            author: Some(Author::Client(root)),
            session: None,
            operation: Operation::Auth(auth),
        };
        world.last.index = world.last.index.next();
        let entry = (world.last, Some(command.encode()));
        world.store.lock().unwrap().apply_batch(&[entry]).unwrap();
    }
    assert!(world.shared.serving.access.rules().is_some());
}

/// Without a runtime no errand could be begun.
#[test]
fn a_password_is_not_hashed_for_whoever_may_not_set_it() {
    let mut world = World::new();
    guard(&mut world);
    let user = Request::Auth(AuthRequest::UserAdd {
        name: "eve".into(),
        password: Password::Plain(Secret::new("a password as long as need be")),
    });
    let refused = world.ask(Consistency::Linearizable, user);
    let kind = refused.expect("on the spot").unwrap_err().kind;
    assert!(
        matches!(
            kind,
            ErrorKind::PermissionDenied | ErrorKind::Unauthenticated
        ),
        "{kind:?}"
    );
    assert_eq!(world.shared.in_flight(), 0);
}

#[tokio::test]
async fn whose_a_lease_is_can_be_looked_up_while_scans_take_all_their_slots() {
    let mut world = World::new();
    guard(&mut world);
    let scans = world.shared.limits.scans.clone();
    let slots = u32::try_from(scans.available_permits()).unwrap();
    let _busy = scans.acquire_many_owned(slots).await.unwrap();
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
    let frame = world.frame(Consistency::Linearizable, renewal);
    assert!(world.take_in(&[frame]).0.is_empty());
    let mut answers = Vec::new();
    let judged = world.session.outbox.take(&mut answers);
    let waited = tokio::time::timeout(Duration::from_secs(60), judged).await;
    waited.expect("it waits for scans");
    assert_eq!(answers.len(), 1);
}

#[test]
fn a_write_whose_stream_ends_is_in_the_audit_file_and_no_other_of_its_number_hides_it() {
    let mut world = World::auditing();
    let (_outbox, number) = in_flight(&mut world);
    world.next_request = number;
    let other = world.frame(Consistency::Linearizable, Request::Status);
    assert!(world.take_in(&[other]).0.is_empty());
    end_stream(&mut world);
    let path = world._folder.path().join("audit");
    let mut lines = String::new();
    for _ in 0..1_000 {
        lines = std::fs::read_to_string(&path).unwrap();
        if lines.ends_with('\n') {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert!(lines.contains("\"operation\":\"put\""), "{lines}");
    assert!(
        lines.contains("\"result\":\"LH-CONNECTION-LOST\""),
        "{lines}"
    );
}

#[test]
fn writes_wait_for_a_database_that_is_far_behind_and_renewals_and_reads_do_not() {
    let mut world = World::new();
    for number in 0..25_u8 {
        let command = Command::Write {
            author: None,
            session: None,
            operation: Operation::Put(PutRequest {
                key: vec![number].into(),
                value: vec![0; 1 << 20].into(),
                ..PutRequest::default()
            }),
        };
        world.last.index = world.last.index.next();
        let entry = (world.last, Some(command.encode()));
        let mut store = world.store.lock().unwrap();
        store.apply_ahead(&[entry], false).unwrap();
    }
    let slow_down = ErrorKind::SlowDown { retry_after_ms: 50 };
    let refused = world.ask(Consistency::Linearizable, a_put()).unwrap();
    assert_eq!(refused.unwrap_err().kind, slow_down);
    let forwarded = ForwardService::submit_alone(&world.shared, a_put());
    assert_eq!(forwarded.unwrap_err().kind, slow_down);
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(5)]);
    ForwardService::submit_alone(&world.shared, renewal.clone()).unwrap();
    let mut mails = Vec::new();
    world.shared.mailbox.take(&mut mails, Duration::ZERO);
    assert_eq!(mails.len(), 1);
    let renewed = world.ask(Consistency::Linearizable, renewal);
    assert!(renewed.is_none(), "{renewed:?}");
    let read = world.get(Consistency::Linearizable, "k").unwrap();
    assert!(read.is_ok(), "{read:?}");
    world.store.lock().unwrap().settle().unwrap();
    let taken = world.ask(Consistency::Linearizable, a_put());
    assert!(taken.is_none(), "{taken:?}");
}
