//! What requests say of themselves, and what becomes of them for it.

use super::*;
use crate::api::TraceParent;
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
fn what_a_request_says_of_itself_goes_with_it_to_the_leader() {
    let mut world = World::new();
    assert_eq!(made(&mut world, traced(), a_put()), None);
    let mut mails = Vec::new();
    world.shared.mailbox.take(&mut mails, Duration::ZERO);
    let Some(Mail::Request { context, .. }) = mails.pop() else {
        panic!("a write goes to the driver");
    };
    assert_eq!(context, traced());
}

#[test]
fn a_read_of_one_key_is_answered_at_once_whatever_it_says_of_itself() {
    let mut world = World::new();
    world.put("k", "v");
    for context in [RequestContext::default(), traced()] {
        let read = Request::Range(RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        });
        let found = made(&mut world, context, read).unwrap().unwrap();
        let read = found.header.read.unwrap();
        assert_eq!(read.path, ReadPath::Lease);
    }
}
