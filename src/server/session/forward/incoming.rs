//! The leader's side: carries out what another node was asked.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::{UNDER_WAY_MAX, WRITE_PATIENCE, is_forwarded, is_question};
use crate::api;
use crate::api::{Call, Error, ErrorKind, Request, RequestKind, Response};
use crate::kv::access::Author;
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, HeldResources, Outbox, Stages};
use crate::server::metrics::{Rejection, stopwatch};
use crate::server::session::budget::InFlight;
use crate::server::session::phases::Phases;
use crate::server::session::refusals::{bootstraps_alone, read_aborted, slow_down, stopping};
use crate::server::session::shared::Sessions;
use crate::server::session::slow_log::{Outcome, Summary};
use crate::server::session::traces::JoinedTrace;
use crate::sync::Mutex;
use crate::transport::{FrameReceiver, FrameSender, FrameStream};
use crate::wire::peer::{Forward, ForwardReply};
use crate::wire::{Frame, RequestContext, encode};

/// How long a request that was refused for want of room should wait.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// What a request costs beside its bytes while it waits.
const REQUEST_BYTES: usize = 512;

/// Serves the streams on which other nodes forward requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ForwardService {
    sessions: Arc<Sessions>,
}

/// One stream.
struct Stream {
    sessions: Arc<Sessions>,
    outbox: Arc<Outbox>,
    under_way: InFlight,
    /// The requests that are not answered.
    held: Mutex<BTreeMap<u64, HeldRequest>>,
}

/// A request that is not answered.
struct HeldRequest {
    /// What it holds of the node.
    resources: HeldResources,
    /// Where its time goes, if it is a part of a trace.
    traced: Option<TracedRequest>,
}

/// What is told of a request that is a part of a trace. The node that forwarded it accounts for the others.
struct TracedRequest {
    joined: JoinedTrace,
    phases: Phases,
    method: &'static str,
    bytes: usize,
}

/// A request on its way to the driver.
struct ForwardedRequest {
    call: Call,
    arrived: Instant,
    author: Option<Author>,
    outbox: Arc<Outbox>,
    id: u64,
}

impl ForwardService {
    /// On a node with these sessions.
    pub(crate) fn new(sessions: Arc<Sessions>) -> Self {
        Self { sessions }
    }

    /// Takes in one request, as of a stream that has brought no other.
    #[cfg(test)]
    pub(crate) fn submit_alone(sessions: &Arc<Sessions>, request: Request) -> Result<(), Error> {
        let call = Call {
            timeout_ms: 1000,
            consistency: api::Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request,
        };
        let author = None;
        let id = 1;
        let forward = Forward {
            id,
            author,
            call,
            context: RequestContext::default(),
        };
        Stream::new(Arc::clone(sessions)).submit(forward, 0)
    }

    /// Serves a stream that another node has opened, and on which `first` has arrived, until that node
    /// ends it. What is under way by then continues.
    pub(crate) async fn serve(self, stream: FrameStream, first: Vec<Frame>) {
        let (sender, receiver) = stream.split();
        let stream = Arc::new(Stream::new(self.sessions));
        // How a stream ends is no news.
        tokio::select! {
            () = stream.take_in(receiver, first) => {}
            () = stream.answer(sender) => {}
        }
        let held = std::mem::take(&mut *stream.held.lock()).into_iter();
        let held = held.map(|(id, request)| (id, request.resources));
        stream.outbox.abandon(held.collect());
    }
}

impl Stream {
    fn new(sessions: Arc<Sessions>) -> Self {
        Self {
            sessions,
            outbox: Arc::default(),
            under_way: InFlight::new(UNDER_WAY_MAX),
            held: Mutex::default(),
        }
    }

    async fn take_in(&self, mut receiver: FrameReceiver, mut frames: Vec<Frame>) {
        loop {
            for frame in frames.drain(..) {
                // Bad bytes close the connection and are counted below.
                let Ok(forward) = receiver.decode::<Forward>(&frame) else {
                    return;
                };
                let id = forward.id;
                if let Err(refusal) = self.submit(forward, frame.body.len()) {
                    self.under_way.enter();
                    self.outbox.deliver(id, Delivery::Reply(Err(refusal)));
                }
            }
            poll_fn(|cx| match self.under_way.poll_room(cx) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
            if receiver.read_batch(&mut frames).await.is_err() {
                return;
            }
        }
    }

    /// Sends a request to the driver.
    fn submit(&self, forward: Forward, bytes: usize) -> Result<(), Error> {
        let Forward {
            id,
            author,
            call,
            context,
        } = forward;
        let spec = call.request.spec();
        if !is_forwarded(spec.kind) && !is_question(&call.request) {
            return Err(Error::not_applied(
                ErrorKind::Unsupported,
                "requests of this kind are not forwarded",
            ));
        }
        let sessions = &self.sessions;
        if sessions.node.is_stopping() {
            return Err(stopping());
        }
        api::validate(&call.request, &sessions.limits.requests)?;
        if matches!(spec.kind, RequestKind::MemberChange | RequestKind::Transfer) {
            let access = &sessions.serving.access;
            access.admit_author(author.as_ref(), &call.request)?;
            if sessions.bootstraps_alone && matches!(call.request, Request::MemberAdd(_)) {
                return Err(bootstraps_alone());
            }
        }
        let checked = sessions.check_ahead(spec.class);
        checked.map_err(|reason| slow_down(reason, RETRY_AFTER))?;
        let permit = sessions.limits.backlog.enter(spec.class, context.priority);
        let permit = permit.map_err(|full| slow_down(full.reason(), full.retry_after))?;
        let reserved = sessions.limits.budget.take(bytes + REQUEST_BYTES);
        let reserved = reserved.ok_or_else(|| slow_down(Rejection::Memory, RETRY_AFTER))?;
        let arrived = stopwatch();
        let request = HeldRequest {
            resources: Box::new((permit, reserved)),
            traced: context.trace_parent.map(|parent| TracedRequest {
                joined: sessions.accounting.join(parent),
                phases: Phases::begin(arrived),
                method: spec.name,
                bytes,
            }),
        };
        let held = self.held.lock().insert(id, request);
        self.under_way.enter();
        drop(held);
        if is_question(&call.request) {
            self.ask(id, call);
            return Ok(());
        }
        let request = ForwardedRequest {
            call,
            arrived,
            author,
            outbox: self.outbox.clone(),
            id,
        };
        match spec.kind {
            RequestKind::KeepAlive if sessions.serving.access.rules().is_some() => {
                request.judge(sessions.clone());
            }
            _ => request.send(sessions),
        }
        Ok(())
    }

    /// Has a question answered as one of this node.
    fn ask(&self, id: u64, call: Call) {
        let (sessions, outbox) = (self.sessions.clone(), self.outbox.clone());
        tokio::spawn(async move {
            let answer = match sessions.of_itself(&call.request) {
                Some(response) => Ok(response),
                None => sessions.make(call).await,
            };
            outbox.deliver(id, Delivery::Reply(answer));
        });
    }

    async fn answer(&self, mut sender: FrameSender) {
        let mut completions = Vec::new();
        let mut bytes = BytesMut::new();
        loop {
            self.outbox.take(&mut completions).await;
            let count = completions.len();
            for (id, delivery, stages) in completions.drain(..) {
                let held = self.held.lock().remove(&id);
                let traced = held.and_then(|request| request.traced);
                let result = match delivery {
                    Delivery::Reply(result) => result,
                    _ => Err(unexpected()),
                };
                let (outcome, before) =
                    (traced.as_ref().map(|_| Outcome::of(&result)), bytes.len());
                self.encode(id, result, &mut bytes);
                if let Some((traced, outcome)) = traced.zip(outcome) {
                    self.account(traced, &stages, outcome, bytes.len() - before);
                }
            }
            self.under_way.leave(count);
            let write = sender.write(bytes.split().freeze());
            if !matches!(
                tokio::time::timeout(WRITE_PATIENCE, write).await,
                Ok(Ok(()))
            ) {
                return;
            }
        }
    }

    /// Tells of a request that is a part of a trace, now that its answer is written down.
    fn account(
        &self,
        traced: TracedRequest,
        stages: &Stages,
        outcome: Outcome,
        reply_bytes: usize,
    ) {
        let TracedRequest {
            joined,
            mut phases,
            method,
            bytes,
        } = traced;
        let now = stopwatch();
        phases.answered(stages, now);
        let summary = Summary {
            method,
            outcome,
            request_bytes: bytes,
            reply_bytes,
            beside: 0,
        };
        let node = &self.sessions.node.name;
        let accounting = &self.sessions.accounting;
        accounting.tell_joined(node, now, &phases, &joined, summary);
    }

    /// Appends an answer. What it tells of was applied here before, so this node's applied index contains
    /// it.
    fn encode(&self, id: u64, result: Result<Response, Error>, bytes: &mut BytesMut) {
        let applied = self.sessions.serving.store.applied();
        let frames = &self.sessions.limits.frames;
        let is_write = result.is_ok();
        let answer = ForwardReply {
            id,
            result,
            applied,
        };
        if encode(&answer, frames, bytes).is_ok() {
            return;
        }
        let outcome = match is_write {
            true => api::Outcome::Applied,
            false => api::Outcome::Unknown,
        };
        let refusal = ForwardReply {
            id,
            result: Err(Error {
                kind: ErrorKind::Internal,
                outcome,
                detail: "the answer is longer than a frame between nodes".to_owned(),
                tries: None,
            }),
            applied,
        };
        encode(&refusal, frames, bytes).expect("an error of one sentence fits into a frame");
    }
}

impl ForwardedRequest {
    fn send(self, sessions: &Sessions) {
        sessions.mailbox.send(Mail::Request {
            call: self.call,
            arrived: self.arrived,
            author: self.author,
            // It goes no further.
            context: RequestContext::default(),
            outbox: self.outbox,
            frame: self.id,
        });
    }

    /// Sends renewals on if their author may make them by the rules and the leases of this node, which are looked
    /// up on a thread that may block.
    fn judge(self, sessions: Arc<Sessions>) {
        tokio::spawn(async move {
            let turn = sessions.limits.keep_alives.clone().acquire_owned().await;
            let (id, outbox, node) = (self.id, self.outbox.clone(), sessions.clone());
            let judged = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let view = node.serving.store.snapshot()?;
                let access = &node.serving.access;
                let judged =
                    access.admit_author_of(self.author.as_ref(), &view, &self.call.request)?;
                Ok(judged.map(|()| self))
            });
            let refusal = match judged.await {
                Ok(Ok(Ok(admitted))) => return admitted.send(&sessions),
                Ok(Ok(Err(refusal))) => refusal,
                Ok(Err(error)) => sessions.fail(error),
                Err(_) => read_aborted(),
            };
            outbox.deliver(id, Delivery::Reply(Err(refusal)));
        });
    }
}

fn unexpected() -> Error {
    Error::unknown(
        ErrorKind::Internal,
        "the driver answered a forwarded request as if it were a read",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use bytes::Bytes;

    use super::*;
    use crate::api::{
        Consistency, LeaseRef, PutRequest, PutResponse, RangeRequest, ResponseBody, ResponseHeader,
        SnapshotReply,
    };
    use crate::kv::access::Identity;
    use crate::server::session::tests::{World, guard, sent_to_the_driver};
    use crate::types::LogIndex;
    use crate::wire::{Door, FrameReader};

    fn stream(world: &World) -> Stream {
        Stream {
            sessions: world.shared.clone(),
            outbox: Arc::default(),
            under_way: InFlight::new(UNDER_WAY_MAX),
            held: Mutex::default(),
        }
    }

    fn forward(id: u64, author: Option<Author>, request: Request) -> Forward {
        Forward {
            id,
            author,
            call: Call {
                timeout_ms: 60_000,
                consistency: Consistency::Linearizable,
                min_revision: 0,
                session: None,
                request,
            },
            context: RequestContext::default(),
        }
    }

    fn put() -> Request {
        Request::Put(PutRequest {
            key: Bytes::from_static(b"k"),
            ..PutRequest::default()
        })
    }

    fn mails(world: &World) -> Vec<Mail> {
        let mut mails = Vec::new();
        world.shared.mailbox.take(&mut mails, Duration::ZERO);
        mails
    }

    /// What the other node is sent.
    fn decoded(bytes: &mut BytesMut, world: &World) -> ForwardReply {
        let mut reader = FrameReader::new(Door::Peer, world.shared.limits.frames);
        reader.push(bytes.split().freeze());
        reader.next_frame().unwrap().unwrap().decode().unwrap()
    }

    #[test]
    fn a_write_is_the_authors_whom_the_other_node_names() {
        let world = World::new();
        let stream = stream(&world);
        let author = Some(Author::Client(Identity {
            name: "alice".to_owned(),
            generation: None,
        }));
        let write = forward(7, author.clone(), put());
        stream.submit(write, 100).unwrap();
        let mails = mails(&world);
        let [
            Mail::Request {
                author: given,
                frame,
                ..
            },
        ] = &mails[..]
        else {
            panic!("one request goes to the driver");
        };
        assert_eq!((given, *frame), (&author, 7));
        // It holds its place until it is answered.
        assert!(stream.held.lock().contains_key(&7));
    }

    #[test]
    fn what_the_leader_does_not_do_for_others_is_refused_and_goes_nowhere() {
        let world = World::new();
        let stream = stream(&world);
        let read = Request::Range(RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        });
        assert!(!is_forwarded(RequestKind::Read));
        let no_key = Request::Put(PutRequest::default());
        let keep_alive = Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
        for (request, expected) in [
            (read, Some(ErrorKind::Unsupported)),
            (no_key, Some(ErrorKind::InvalidArgument)),
            (keep_alive, None),
        ] {
            let submitted = stream.submit(forward(1, None, request), 10);
            let refused = submitted.err();
            assert!(
                refused
                    .iter()
                    .all(|error| error.outcome == api::Outcome::NotApplied)
            );
            let is_sent = !mails(&world).is_empty();
            assert_eq!(is_sent, refused.is_none());
            assert_eq!(refused.map(|error| error.kind), expected);
        }
        world.shared.node.stopping.store(true, Ordering::Relaxed);
        let refused = stream.submit(forward(2, None, put()), 10).unwrap_err();
        assert_eq!(refused.outcome, api::Outcome::NotApplied);
        assert!(mails(&world).is_empty());
    }

    #[test]
    fn an_answer_says_how_far_this_node_is_and_one_that_is_too_long_what_became_of_the_request() {
        let world = World::new();
        let stream = stream(&world);
        let mut bytes = BytesMut::new();
        let response = |body| Response {
            header: ResponseHeader::default(),
            body,
        };
        let written = response(ResponseBody::Put(PutResponse::default()));
        stream.encode(3, Ok(written.clone()), &mut bytes);
        let answer = decoded(&mut bytes, &world);
        assert_eq!((answer.id, answer.result), (3, Ok(written)));
        assert_eq!(answer.applied, world.shared.serving.store.applied());
        assert!(answer.applied > LogIndex(0));
        // It was carried out, so it was applied; of a failure that is not known.
        let long = Bytes::from(vec![0; 8 << 20]);
        let long = response(ResponseBody::Snapshot(SnapshotReply { id: 1, chunk: long }));
        stream.encode(4, Ok(long), &mut bytes);
        let answer = decoded(&mut bytes, &world);
        assert_eq!(answer.id, 4);
        assert_eq!(answer.result.unwrap_err().outcome, api::Outcome::Applied);
        let detail = "x".repeat(8 << 20);
        let long = Error::not_applied(ErrorKind::Internal, detail);
        stream.encode(5, Err(long), &mut bytes);
        let answer = decoded(&mut bytes, &world);
        assert_eq!(answer.result.unwrap_err().outcome, api::Outcome::Unknown);
    }
    /// The rules of the node that was asked may be older than these.
    #[tokio::test]
    async fn what_another_node_admitted_is_judged_again_by_the_leaders_rules() {
        let mut world = World::new();
        guard(&mut world);
        let stream = stream(&world);
        let author = |name: &str| {
            Some(Author::Client(Identity {
                name: name.to_owned(),
                generation: None,
            }))
        };
        let transfer = || Request::MoveLeader { target: None };
        let refused = |author| {
            let submitted = stream.submit(forward(1, author, transfer()), 10);
            submitted.unwrap_err().kind
        };
        assert_eq!(refused(author("anna")), ErrorKind::Unauthenticated);
        assert_eq!(refused(None), ErrorKind::Unavailable);
        assert!(mails(&world).is_empty());
        let admitted = stream.submit(forward(1, author("root"), transfer()), 10);
        assert_eq!((admitted, mails(&world).len()), (Ok(()), 1));

        let renewal = || Request::LeaseKeepAlive(vec![LeaseRef::id(1)]);
        for (author, expected) in [
            (author("anna"), ErrorKind::Unauthenticated),
            (None, ErrorKind::Unavailable),
        ] {
            stream.submit(forward(2, author, renewal()), 10).unwrap();
            let mut answers = Vec::new();
            stream.outbox.take(&mut answers).await;
            let Some((2, Delivery::Reply(Err(refusal)), _)) = answers.pop() else {
                panic!("a refusal");
            };
            assert_eq!(refusal.kind, expected);
            assert!(mails(&world).is_empty());
        }
        let root = forward(3, author("root"), renewal());
        stream.submit(root, 10).unwrap();
        let [Mail::Request { frame, .. }] = &sent_to_the_driver(&world).await[..] else {
            panic!("root may renew it");
        };
        assert_eq!(*frame, 3);
    }

    #[tokio::test]
    async fn a_question_keeps_the_revision_that_its_answer_must_have() {
        let world = World::new();
        let stream = stream(&world);
        let mut asked = forward(1, None, Request::LeaseTimeToLive { id: 5, keys: false });
        asked.call.min_revision = 9;
        stream.submit(asked, 10).unwrap();
        let [Mail::Request { call, .. }] = &sent_to_the_driver(&world).await[..] else {
            panic!("it is asked");
        };
        assert_eq!(call.min_revision, 9);
    }
}
