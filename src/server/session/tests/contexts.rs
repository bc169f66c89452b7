//! What requests say of themselves, and what becomes of them for it.

use super::*;
use crate::api::{Priority, TraceParent};
use crate::wire::client::ContextFrame;

fn a_put() -> Request {
    Request::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    })
}

fn traced() -> RequestContext {
    RequestContext {
        trace_parent: TraceParent::new([7; 16], [8; 8], 1).ok(),
        ..RequestContext::default()
    }
}

fn low() -> RequestContext {
    RequestContext {
        priority: Priority::Low,
        ..RequestContext::default()
    }
}

/// One request, and what is answered at once.
fn made(
    world: &mut World,
    context: RequestContext,
    request: Request,
) -> Option<Result<Response, Error>> {
    let frame = world.frame(Consistency::Linearizable, request);
    let frame = match context.is_empty() {
        true => frame,
        false => {
            let frame = frame.decode().unwrap();
            Frame::new(&ContextFrame { context, frame }, &FrameLimits::DEFAULT).unwrap()
        }
    };
    let mut replies = world.take_in(&[frame]).0;
    assert!(replies.len() <= 1);
    replies.pop().map(|reply| reply.result)
}

#[test]
fn a_write_that_matters_little_is_refused_at_half_of_the_room_and_a_renewal_is_not() {
    let mut world = World::with(1 << 30, 32);
    for _ in 0..8 {
        assert_eq!(made(&mut world, low(), a_put()), None);
    }
    let refused = made(&mut world, low(), a_put()).unwrap().unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::SlowDown { .. }));
    assert!(refused.detail.contains("low priority"), "{refused}");
    for _ in 0..8 {
        assert_eq!(made(&mut world, RequestContext::default(), a_put()), None);
    }
    for context in [low(), RequestContext::default()] {
        let refused = made(&mut world, context, a_put()).unwrap().unwrap_err();
        assert!(refused.detail.contains("overloaded"), "{refused}");
    }
    let renewal = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
    assert_eq!(made(&mut world, low(), renewal), None);
    let rendered = world.shared.accounting.metrics.render(|_| {});
    for (reason, count) in [("priority", 1), ("waiting", 2)] {
        let series = format!(
            "leasehold_requests_rejected_total{{class=\"write\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(rendered.contains(&series), "{series} in {rendered}");
    }
}

#[test]
fn what_a_request_says_of_itself_goes_with_it_to_the_leader() {
    let mut world = World::new();
    let both = RequestContext {
        priority: Priority::Low,
        ..traced()
    };
    assert_eq!(made(&mut world, both, a_put()), None);
    let mut mails = Vec::new();
    world.shared.mailbox.take(&mut mails, Duration::ZERO);
    let Some(Mail::Request { context, .. }) = mails.pop() else {
        panic!("a write goes to the driver");
    };
    assert_eq!(context, both);
}

#[test]
fn a_read_of_one_key_is_answered_at_once_whatever_it_says_of_itself() {
    let mut world = World::new();
    world.put("k", "v");
    for context in [RequestContext::default(), traced(), low()] {
        let read = Request::Range(RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        });
        let found = made(&mut world, context, read).unwrap().unwrap();
        let read = found.header.read.unwrap();
        assert_eq!(read.path, ReadPath::Lease);
    }
}
