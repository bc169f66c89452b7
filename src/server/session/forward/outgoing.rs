//! The side of a node that does not lead: sends requests to the leader, and gives the answers out once
//! this node has applied what they tell of.
//!
//! A follower learns late what is committed: with the next entries, or the next heartbeat. A write that
//! is answered already must not wait for that, so the node asks the leader for a quorum read: its round
//! carries the commit index, and its permit comes once this node has applied that. One such
//! read serves all answers that wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::mpsc;

use super::{PRIORITY, UNDER_WAY_MAX, WRITE_PATIENCE, is_forwarded};
use crate::api::{
    Call, Consistency, Error, ErrorKind, RangeCount, RangeRequest, Request, Response,
};
use crate::kv::access::Author;
use crate::raft::Published;
use crate::server::disk::store::StateReader;
use crate::server::mail::outbox::{Delivery, Outbox};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::stopwatch;
use crate::server::peers::Peers;
use crate::sync::Mutex;
use crate::transport::{Connection, FrameReceiver, FrameSender};
use crate::types::{LogIndex, NodeId};
use crate::wire::peer::{Forward, ForwardReply};
use crate::wire::{FrameLimits, RequestContext, encode};

/// Requests in one write.
const BATCH_MAX: usize = 128;
/// How long a quorum read may take that tells this node what is committed.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether a link that is not used any more has its last answer.
const LAST_ANSWERS_EVERY: Duration = Duration::from_millis(50);
/// How long the answers of a leader are waited for that leads no more: one that has handed over, or lost its
/// quorum, still says what it knows.
const LAST_WORD: Duration = Duration::from_secs(1);
/// How long to wait before the next quorum read, if one failed.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(10);

/// Forwards requests to the leader.
pub(crate) struct Forwarder {
    to: ForwardTo,
    link: Mutex<Option<Link>>,
}

/// What the tasks of a link need of the node.
#[derive(Clone)]
struct ForwardTo {
    member: NodeId,
    published: Arc<Published>,
    /// Not kept alive by what is forwarded: they end with the server.
    peers: Weak<Peers>,
    mailbox: Arc<Mailbox>,
    store: StateReader,
    limits: FrameLimits,
}

/// The stream to a leader.
struct Link {
    leader: NodeId,
    connection: Connection,
    requests: mpsc::Sender<LeaderRequest>,
}

/// A request for the leader, and where its answer goes.
struct LeaderRequest {
    call: Call,
    arrived: Instant,
    author: Option<Author>,
    context: RequestContext,
    waiter: Waiter,
}

/// Who waits for an answer.
struct Waiter {
    outbox: Arc<Outbox>,
    frame: u64,
}

impl Waiter {
    fn answer(self, result: Result<Response, Error>) {
        self.outbox.deliver(self.frame, Delivery::Reply(result));
    }
}

impl Forwarder {
    /// Of this node.
    pub(crate) fn new(
        member: NodeId,
        published: Arc<Published>,
        peers: Weak<Peers>,
        mailbox: Arc<Mailbox>,
        store: StateReader,
        limits: FrameLimits,
    ) -> Self {
        Self {
            to: ForwardTo {
                member,
                published,
                peers,
                mailbox,
                store,
                limits,
            },
            link: Mutex::default(),
        }
    }

    /// Forwards a request if another node leads that can be reached and if the leader carries out
    /// requests of its kind for others; else gives it back, for this node's driver.
    pub(crate) fn send(&self, mail: Mail) -> Option<Mail> {
        match &mail {
            Mail::Request { call, .. } if is_forwarded(call.request.spec().kind) => {
                self.forward(mail)
            }
            _ => Some(mail),
        }
    }

    /// [`Forwarder::send`] of a request that the leader takes, of whatever kind it is.
    pub(crate) fn forward(&self, mail: Mail) -> Option<Mail> {
        let leader = self.to.published.leader();
        let Some(leader) = leader.filter(|leader| *leader != self.to.member) else {
            return Some(mail);
        };
        let Some(requests) = self.link_to(leader) else {
            return Some(mail);
        };
        let Mail::Request {
            call,
            arrived,
            author,
            context,
            outbox,
            frame,
        } = mail
        else {
            return Some(mail);
        };
        let request = LeaderRequest {
            call,
            arrived,
            author,
            context,
            waiter: Waiter { outbox, frame },
        };
        match requests.try_send(request) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(request)) => {
                request.waiter.answer(Err(crowded()));
            }
            Err(mpsc::error::TrySendError::Closed(request)) => {
                request.waiter.answer(Err(unsent()));
            }
        }
        None
    }

    /// Puts one question to a member, on a stream of its own; `None` without a connection that lasts until
    /// the answer is there.
    pub(crate) async fn ask_member(
        &self,
        member: NodeId,
        call: Call,
    ) -> Option<Result<Response, Error>> {
        let connection = self.to.peers.upgrade()?.connection(member)?;
        let stream = connection.open_stream_of(PRIORITY).await.ok()?;
        let (mut sender, mut receiver) = stream.split();
        let mut bytes = BytesMut::new();
        let (id, author) = (1, Some(Author::Node));
        let context = RequestContext::default();
        let forward = Forward {
            id,
            author,
            call,
            context,
        };
        encode(&forward, &self.to.limits, &mut bytes).ok()?;
        sender.write(bytes.freeze()).await.ok()?;
        let mut frames = Vec::new();
        while frames.is_empty() {
            receiver.read_batch(&mut frames).await.ok()?;
        }
        let answer = receiver.decode::<ForwardReply>(frames.first()?).ok()?;
        sender.finish();
        Some(answer.result)
    }

    /// When the certificate ends that a member presents to this node, in seconds since 1970; `None` without
    /// a connection.
    pub(crate) fn certificate_end(&self, member: NodeId) -> Option<i64> {
        let connection = self.to.peers.upgrade()?.connection(member)?;
        let presented = connection.certificates();
        let (_, certificate) = x509_parser::parse_x509_certificate(presented.first()?).ok()?;
        Some(certificate.validity().not_after.timestamp())
    }

    /// The queue of the link to `leader`, which is opened if there is none; `None` without a connection.
    fn link_to(&self, leader: NodeId) -> Option<mpsc::Sender<LeaderRequest>> {
        let mut link = self.link.lock();
        let known = link.as_ref().filter(|link| {
            link.leader == leader && !link.connection.is_lost() && !link.requests.is_closed()
        });
        if let Some(known) = known {
            return Some(known.requests.clone());
        }
        // Closed once it is dropped: what it has sent is still answered.
        *link = None;
        let connection = self.to.peers.upgrade()?.connection(leader)?;
        let (requests, queue) = mpsc::channel(UNDER_WAY_MAX);
        tokio::spawn(run(self.to.clone(), leader, connection.clone(), queue));
        *link = Some(Link {
            leader,
            connection,
            requests: requests.clone(),
        });
        Some(requests)
    }
}

/// The node has too many requests at the leader.
fn crowded() -> Error {
    Error::not_applied(
        ErrorKind::SlowDown { retry_after_ms: 50 },
        "this node has as many requests under way at the leader as it may: retry later",
    )
}

/// The request did not leave this node.
fn unsent() -> Error {
    Error::not_applied(
        ErrorKind::NoLeader,
        "the connection to the leader was lost before the request was sent",
    )
}

/// The request left, and no answer came.
fn unanswered() -> Error {
    Error::unknown(
        ErrorKind::ConnectionLost,
        "the connection to the leader was lost before it answered",
    )
}

/// The request left, and another node leads, or none.
fn outlived() -> Error {
    Error::unknown(
        ErrorKind::LeaderChanged,
        "the leader was replaced before it answered",
    )
}

/// Requests that were sent, by number.
type SentRequests = Mutex<BTreeMap<u64, Waiter>>;

/// Serves one link until it breaks, or is not used any more and everything is answered.
async fn run(
    to: ForwardTo,
    leader: NodeId,
    connection: Connection,
    mut queue: mpsc::Receiver<LeaderRequest>,
) {
    let sent = SentRequests::default();
    let mut behind = Behind::new(to.clone());
    let error = match connection.open_stream_of(PRIORITY).await {
        Ok(stream) => {
            let (sender, receiver) = stream.split();
            tokio::select! {
                () = write(&to, sender, &mut queue, &sent) => unanswered(),
                () = read(receiver, &sent, &mut behind) => unanswered(),
                () = replaced(&to, leader) => outlived(),
            }
        }
        Err(_) => unanswered(),
    };
    give_up(queue, &sent, &error);
    // What the leader has answered and this node has not applied yet has its answer. Last: it may take an election,
    // for which no other request should wait.
    while !behind.waiting.is_empty() {
        behind.catch_up().await;
    }
}

/// Answers all that the link has: of what was sent, nothing but `error` is known.
fn give_up(mut queue: mpsc::Receiver<LeaderRequest>, sent: &SentRequests, error: &Error) {
    queue.close();
    while let Ok(request) = queue.try_recv() {
        request.waiter.answer(Err(unsent()));
    }
    for (_, waiter) in std::mem::take(&mut *sent.lock()) {
        waiter.answer(Err(error.clone()));
    }
}

/// Waits until `leader` has not led for [`LAST_WORD`], as far as this node knows. A leader that died would
/// otherwise be waited for until its connection is given up, which takes longer than its successor does.
///
/// Cancel safe.
async fn replaced(to: &ForwardTo, leader: NodeId) {
    let mut absence = Absence::default();
    while !absence.is_over() {
        tokio::time::sleep(LAST_ANSWERS_EVERY).await;
        absence.look(to.published.leader() == Some(leader));
    }
}

/// For how long a leader has not led, as looks that are [`LAST_ANSWERS_EVERY`] apart show it.
#[derive(Debug, Default)]
struct Absence(Duration);

impl Absence {
    fn look(&mut self, leads: bool) {
        self.0 = match leads {
            true => Duration::ZERO,
            false => self.0 + LAST_ANSWERS_EVERY,
        };
    }

    /// Whether what it has not said by now is not waited for.
    fn is_over(&self) -> bool {
        self.0 >= LAST_WORD
    }
}

/// Sends what is queued. Ends when the stream does, or once nothing more can come and all is answered.
async fn write(
    to: &ForwardTo,
    mut sender: FrameSender,
    queue: &mut mpsc::Receiver<LeaderRequest>,
    sent: &SentRequests,
) {
    let mut batch = Vec::new();
    let mut bytes = BytesMut::new();
    let mut next_id = 1;
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        for request in batch.drain(..) {
            let LeaderRequest {
                mut call,
                arrived,
                author,
                context,
                waiter,
            } = request;
            let spent = stopwatch().saturating_duration_since(arrived);
            let spent = u32::try_from(spent.as_millis()).unwrap_or(u32::MAX);
            call.timeout_ms = call.timeout_ms.saturating_sub(spent);
            let (id, forward) = (
                next_id,
                Forward {
                    id: next_id,
                    author,
                    call,
                    context,
                },
            );
            next_id += 1;
            match encode(&forward, &to.limits, &mut bytes) {
                Ok(()) => drop(sent.lock().insert(id, waiter)),
                Err(error) => waiter.answer(Err(Error::not_applied(
                    ErrorKind::Internal,
                    format!("the request cannot be forwarded: {error}"),
                ))),
            }
        }
        let writing = sender.write(bytes.split().freeze());
        if !matches!(
            tokio::time::timeout(WRITE_PATIENCE, writing).await,
            Ok(Ok(()))
        ) {
            return;
        }
    }
    // Another link has taken its place: this one ends once the last answer is there.
    while !sent.lock().is_empty() {
        tokio::time::sleep(LAST_ANSWERS_EVERY).await;
    }
}

/// Takes the answers. Ends when the stream does.
async fn read(mut receiver: FrameReceiver, sent: &SentRequests, behind: &mut Behind) {
    let mut frames = Vec::new();
    loop {
        let read = match behind.waiting.is_empty() {
            true => receiver.read_batch(&mut frames).await,
            false => tokio::select! {
                read = receiver.read_batch(&mut frames) => read,
                () = behind.catch_up() => Ok(()),
            },
        };
        if read.is_err() {
            return;
        }
        for frame in frames.drain(..) {
            // Bad bytes close the connection and are counted below.
            let Ok(answer) = receiver.decode::<ForwardReply>(&frame) else {
                return;
            };
            if let Some(waiter) = sent.lock().remove(&answer.id) {
                behind.take(answer, waiter);
            }
        }
    }
}

/// Answers that tell of entries which this node has not applied yet.
struct Behind {
    to: ForwardTo,
    waiting: VecDeque<(LogIndex, Waiter, Result<Response, Error>)>,
    /// Where the permits of quorum reads come.
    permits: Arc<Outbox>,
    is_asking: bool,
}

impl Behind {
    fn new(to: ForwardTo) -> Self {
        Self {
            to,
            waiting: VecDeque::new(),
            permits: Arc::default(),
            is_asking: false,
        }
    }

    /// Gives an answer out, or keeps it until this node has applied as much as the leader had.
    fn take(&mut self, answer: ForwardReply, waiter: Waiter) {
        let ForwardReply {
            mut result,
            applied,
            ..
        } = answer;
        if let Ok(response) = &mut result {
            // Who was asked, not who was asked by that.
            response.header.member_id = self.to.member;
        }
        if result.is_err() || self.to.store.applied() >= applied {
            return waiter.answer(result);
        }
        self.waiting.push_back((applied, waiter, result));
    }

    /// Waits until this node may have applied more, and gives out what it has caught up with.
    ///
    /// Cancel safe: a read that was asked for is waited for the next time.
    async fn catch_up(&mut self) {
        if !self.is_asking {
            self.to.mailbox.send(quorum_read(&self.permits));
            self.is_asking = true;
        }
        let mut permits = Vec::new();
        self.permits.take(&mut permits).await;
        self.is_asking = false;
        let applied = self.to.store.applied();
        let waiting = std::mem::take(&mut self.waiting);
        for (needs, waiter, result) in waiting {
            match needs <= applied {
                true => waiter.answer(result),
                false => self.waiting.push_back((needs, waiter, result)),
            }
        }
        let has_failed = matches!(permits.first(), Some((_, Delivery::Reply(Err(_)), _)));
        if has_failed {
            tokio::time::sleep(CATCH_UP_PAUSE).await;
        }
    }
}

/// A read whose result is not used: its round tells this node what is committed.
fn quorum_read(permits: &Arc<Outbox>) -> Mail {
    let timeout_ms = CATCH_UP_PATIENCE.as_millis();
    Mail::Request {
        call: Call {
            timeout_ms: u32::try_from(timeout_ms).unwrap_or(u32::MAX),
            consistency: Consistency::LinearizableQuorum,
            min_revision: 0,
            session: None,
            request: Request::Range(RangeRequest {
                key: b"leasehold".as_slice().into(),
                count: RangeCount::Only,
                ..RangeRequest::default()
            }),
        },
        arrived: stopwatch(),
        author: None,
        context: RequestContext::default(),
        outbox: permits.clone(),
        frame: 0,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tempfile::TempDir;

    use super::*;
    use crate::api::{Outcome, PutRequest, PutResponse, ResponseBody, ResponseHeader};
    use crate::kv::{Command, Operation};
    use crate::server::disk::store::{StateStore, StoreOptions};
    use crate::types::{LogId, Term};

    struct World {
        store: StateStore,
        to: ForwardTo,
        outbox: Arc<Outbox>,
        _folder: TempDir,
    }

    impl World {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let options = StoreOptions::default();
            let store = StateStore::open(&folder.path().join("state"), &options).unwrap();
            let to = ForwardTo {
                member: NodeId(1),
                published: Arc::default(),
                peers: Weak::new(),
                mailbox: Arc::default(),
                store: store.reader(),
                limits: FrameLimits::DEFAULT,
            };
            Self {
                store,
                to,
                outbox: Arc::default(),
                _folder: folder,
            }
        }

        fn apply(&mut self, index: u64) {
            let command = Command::Write {
                author: None,
                session: None,
                operation: Operation::Put(put()),
            };
            let id = LogId::new(LogIndex(index), Term(1));
            let entries = [(id, Some(command.encode()))];
            self.store.apply_batch(&entries).unwrap();
        }

        fn waiter(&self, frame: u64) -> Waiter {
            Waiter {
                outbox: self.outbox.clone(),
                frame,
            }
        }

        /// Who has an answer by now.
        fn answered(&self) -> Vec<u64> {
            let cx = std::task::Context::from_waker(std::task::Waker::noop());
            let mut answers = Vec::new();
            self.outbox.poll_take(&cx, &mut answers);
            answers.into_iter().map(|(frame, ..)| frame).collect()
        }

        fn mails(&self) -> Vec<Mail> {
            let mut mails = Vec::new();
            self.to.mailbox.take(&mut mails, Duration::ZERO);
            mails
        }
    }

    fn put() -> PutRequest {
        PutRequest {
            key: Bytes::from_static(b"k"),
            ..PutRequest::default()
        }
    }

    /// An answer of a leader that has applied so much.
    fn answer(applied: u64, result: Result<(), Error>) -> ForwardReply {
        ForwardReply {
            id: 1,
            result: result.map(|()| Response {
                header: ResponseHeader::default(),
                body: ResponseBody::Put(PutResponse::default()),
            }),
            applied: LogIndex(applied),
        }
    }

    #[tokio::test]
    async fn a_write_is_answered_once_this_node_has_applied_it_and_a_refusal_at_once() {
        let mut world = World::new();
        world.apply(1);
        let mut behind = Behind::new(world.to.clone());
        behind.take(answer(1, Ok(())), world.waiter(10));
        behind.take(answer(3, Ok(())), world.waiter(11));
        behind.take(answer(2, Ok(())), world.waiter(12));
        let refused = Error::not_applied(ErrorKind::KeyNotFound, "none");
        behind.take(answer(3, Err(refused)), world.waiter(13));
        assert_eq!(world.answered(), [10, 13]);
        // A quorum read tells what is committed. One that is not waited for to its end is not lost.
        for _ in 0..2 {
            let early = tokio::time::timeout(Duration::from_millis(1), behind.catch_up());
            assert!(early.await.is_err());
        }
        let mails = world.mails();
        assert_eq!(mails.len(), 1, "it is asked for once");
        let Mail::Request { call, outbox, .. } = &mails[0] else {
            panic!("a read");
        };
        assert_eq!(call.consistency, Consistency::LinearizableQuorum);
        world.apply(2);
        outbox.deliver(0, Delivery::CaughtUp);
        behind.catch_up().await;
        assert_eq!(world.answered(), [12]);
        // The next is asked for anew, also after one that failed.
        let failed = Error::not_applied(ErrorKind::NoLeader, "none");
        let permits = behind.permits.clone();
        permits.deliver(0, Delivery::Reply(Err(failed)));
        behind.catch_up().await;
        assert_eq!(world.answered(), [0; 0]);
        world.apply(3);
        permits.deliver(0, Delivery::CaughtUp);
        behind.catch_up().await;
        assert_eq!(world.answered(), [11]);
        assert!(behind.waiting.is_empty());
    }

    #[test]
    fn without_a_leader_or_a_way_to_it_a_request_stays_with_this_node() {
        let world = World::new();
        let to = world.to.clone();
        let forwarder = Forwarder {
            to,
            link: Mutex::default(),
        };
        let mail = |request| Mail::Request {
            call: Call {
                timeout_ms: 1_000,
                consistency: Consistency::Linearizable,
                min_revision: 0,
                session: None,
                request,
            },
            arrived: stopwatch(),
            author: None,
            context: RequestContext::default(),
            outbox: world.outbox.clone(),
            frame: 5,
        };
        // No leader is known, and there is no connection to one.
        assert!(forwarder.send(mail(Request::Put(put()))).is_some());
        assert!(forwarder.link_to(NodeId(2)).is_none());
        assert!(forwarder.send(mail(Request::Status)).is_some());
        assert_eq!(world.answered(), [0; 0]);
    }

    #[test]
    fn what_was_not_sent_was_not_applied_and_what_was_is_not_known() {
        assert_eq!(unsent().outcome, Outcome::NotApplied);
        assert_eq!(crowded().outcome, Outcome::NotApplied);
        assert_eq!(unanswered().outcome, Outcome::Unknown);
    }
    #[test]
    fn a_leader_that_leads_again_within_a_second_keeps_what_was_sent_to_it() {
        let mut absence = Absence::default();
        let mut pass = |time: Duration, leads| {
            let looks = time.as_millis() / LAST_ANSWERS_EVERY.as_millis();
            for _ in 0..looks {
                absence.look(leads);
            }
            absence.is_over()
        };
        let ms = Duration::from_millis;
        assert!(!pass(ms(900), false));
        assert!(!pass(ms(50), true));
        assert!(!pass(ms(900), false), "it begins again");
        assert!(!pass(ms(50), true));
        assert!(pass(ms(1_100), false));
    }

    #[test]
    fn when_a_leader_is_given_up_what_was_sent_is_unknown_and_what_was_queued_was_not_applied() {
        let world = World::new();
        let (requests, queue) = mpsc::channel(4);
        let request = LeaderRequest {
            call: Call {
                timeout_ms: 1_000,
                consistency: Consistency::Linearizable,
                min_revision: 0,
                session: None,
                request: Request::Put(put()),
            },
            arrived: stopwatch(),
            author: None,
            context: RequestContext::default(),
            waiter: world.waiter(11),
        };
        requests.try_send(request).ok().unwrap();
        let sent = SentRequests::default();
        sent.lock().insert(1, world.waiter(10));
        give_up(queue, &sent, &outlived());
        assert!(requests.is_closed() && sent.lock().is_empty());
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        let mut answers = Vec::new();
        world.outbox.poll_take(&cx, &mut answers);
        let mut failed: Vec<_> = answers
            .into_iter()
            .map(|(frame, answer, _)| match answer {
                Delivery::Reply(Err(error)) => (frame, error.kind, error.outcome),
                _ => panic!("{frame} has no answer from a leader"),
            })
            .collect();
        failed.sort_by_key(|(frame, ..)| *frame);
        let expected = [
            (10, ErrorKind::LeaderChanged, Outcome::Unknown),
            (11, ErrorKind::NoLeader, Outcome::NotApplied),
        ];
        assert_eq!(failed, expected);
    }

    /// The link is alive, and ends all the same.
    #[tokio::test]
    async fn a_link_ends_once_its_leader_has_been_replaced() {
        let world = World::new();
        // No leader is known here.
        replaced(&world.to, NodeId(2)).await;
    }
}
