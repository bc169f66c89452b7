//! A client inside of this process: the connection of another protocol, whose requests take every step
//! of a native session.
//!
//! It has what a connection has (its share of requests in flight, its memory, its turns to scan, a
//! principal), and one stream, on which it sends the frames that a native client would send. What
//! has gathered is one closed batch. So admission, budgets, access, audit, the slow log, scans and the
//! steps of a leased read are those of [`stream`](super::stream), and only the socket is missing.
//!
//! Its watches are beside that stream: their events come by a queue of their own
//! ([`LocalClient::watches`]).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::connection::{ConnectionState, ForwardTarget};
use super::dispatch::Session;
use super::point_read::IndexedRead;
use super::shared::Sessions;
use super::stream::BATCH_MAX;
use crate::api::{Call, Error, ErrorKind, Response, Secret};
use crate::kv::access::{Identity, Policy};
use crate::server::metrics::stopwatch;
use crate::server::session::auth::{Principal, TokenUse};
use crate::server::session::budget::{
    ByteBudget, InFlight, ReservedBytes, SCANS_PER_CONNECTION_MAX,
};
use crate::server::watch::{LocalWatches, WatchSender, Watches};
use crate::sync::Mutex;
use crate::wire::client::{ClientFrame, ContextFrame, ServerFrame};
use crate::wire::{Door, Frame, FrameReader, RequestContext, WireError};

/// Tokens that one connection may use beside each other.
const LOGINS_MAX: usize = 16;

/// Sends the requests of one connection. What serves it ends when the last clone is dropped; requests that are
/// not answered by then continue, as those of any client do.
#[derive(Clone)]
pub(crate) struct LocalClient {
    requests: mpsc::Sender<LocalRequest>,
    connection: Arc<ConnectionState>,
    node_budget: Arc<ByteBudget>,
    logins: Arc<Mutex<Vec<Login>>>,
}

/// A token that was shown on a connection, and was good.
struct Login {
    token: Secret,
    /// The rules by which it was checked.
    policy: Arc<Policy>,
    uses: Arc<TokenUse>,
    /// Makes requests in the name of its user.
    client: LocalClient,
}

struct LocalRequest {
    context: RequestContext,
    call: Call,
    answer: oneshot::Sender<Result<Response, Error>>,
}

impl Sessions {
    /// Opens a connection for the client `name` at `address`, and gives what serves it until the last clone of the
    /// client is dropped.
    pub(crate) fn connect_local(
        self: &Arc<Self>,
        name: &str,
        address: SocketAddr,
    ) -> (LocalClient, impl Future<Output = ()> + Send + use<>) {
        self.open_local(ConnectionState {
            in_flight: Arc::new(InFlight::new(self.limits.in_flight_max)),
            budget: ByteBudget::new(self.limits.connection_bytes_max),
            scans: Arc::new(Semaphore::new(SCANS_PER_CONNECTION_MAX)),
            watch_sender: WatchSender::local(name, address),
            principal: Principal::new(name, address.ip()),
            address,
            forwarding: ForwardTarget::Always,
            has_free_pages: true,
        })
    }

    fn open_local(
        self: &Arc<Self>,
        connection: ConnectionState,
    ) -> (LocalClient, impl Future<Output = ()> + Send + use<>) {
        let connection = Arc::new(connection);
        let (requests, waiting) = mpsc::channel(BATCH_MAX);
        let session = Session::new(self.clone(), connection.clone());
        let client = LocalClient {
            requests,
            connection,
            node_budget: self.limits.budget.clone(),
            logins: Arc::default(),
        };
        (client, LocalStream::new(session, waiting).run())
    }
}

impl LocalClient {
    /// Makes one request, which says `context` of itself.
    ///
    /// # Errors
    /// As a client of this node gets them.
    ///
    /// # Cancel safety
    /// A request that was handed over continues.
    pub(crate) async fn ask(&self, context: RequestContext, call: Call) -> Result<Response, Error> {
        let (answer, answered) = oneshot::channel();
        let ended = || {
            Error::unknown(
                ErrorKind::ConnectionLost,
                "the session of this connection ended before it answered",
            )
        };
        let request = LocalRequest {
            context,
            call,
            answer,
        };
        self.requests.send(request).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }

    /// Reserves memory for `bytes` of a request that arrives or an answer that is put together, of the
    /// connection's budget and of the node's; `None` if either has no room.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<[ReservedBytes; 2]> {
        let of_connection = self.connection.budget.take(bytes)?;
        Some([of_connection, self.node_budget.take(bytes)?])
    }

    /// A queue for watches of this client, which has none yet.
    pub(crate) fn watches(&self, watches: &Arc<Watches>) -> LocalWatches {
        LocalWatches::new(watches.clone(), &self.name(), self.connection.address)
    }

    /// The client that makes requests in the name of the user of `token`, with the limits of this
    /// connection; `None` if access is not controlled, so that no token counts. A token is checked once,
    /// and again whenever the rules have changed.
    ///
    /// # Errors
    /// The token is no good; [`ErrorKind::Unavailable`] if this node has not applied yet what it is from.
    pub(crate) fn with_token(
        &self,
        sessions: &Arc<Sessions>,
        token: &Secret,
    ) -> Result<Option<Self>, Error> {
        let access = &sessions.serving.access;
        let Some(policy) = access.rules() else {
            return Ok(None);
        };
        let before = {
            let mut logins = self.logins.lock();
            let known = logins.iter().position(|login| login.token == *token);
            if let Some(login) = known.map(|at| &logins[at])
                && Arc::ptr_eq(&login.policy, &policy)
                && login.uses.touch(stopwatch())
            {
                return Ok(Some(login.client.clone()));
            }
            known.map(|at| logins.swap_remove(at))
        };
        // Checking a signature takes a while, so other calls of this connection do not wait for it.
        let (identity, uses) = access.identity_of(&policy, token)?;
        let is_same = |client: &Self| client.identity().is_ok_and(|known| *known == identity);
        let client = match before.map(|login| login.client).filter(is_same) {
            Some(client) => client,
            None => {
                let (client, session) = sessions.open_local(self.connection_as(identity));
                tokio::spawn(session);
                client
            }
        };
        let mut logins = self.logins.lock();
        // Another call may have shown it meanwhile.
        logins.retain(|login| login.token != *token);
        if logins.len() >= LOGINS_MAX {
            let oldest = (0..logins.len()).min_by_key(|at| logins[*at].uses.until());
            drop(oldest.map(|at| logins.swap_remove(at)));
        }
        logins.push(Login {
            token: token.clone(),
            policy,
            uses,
            client: client.clone(),
        });
        Ok(Some(client))
    }

    /// This connection in the name of another user: what it may make the node hold is shared.
    fn connection_as(&self, identity: Identity) -> ConnectionState {
        let address = self.connection.address;
        ConnectionState {
            in_flight: self.connection.in_flight.clone(),
            budget: self.connection.budget.clone(),
            scans: self.connection.scans.clone(),
            watch_sender: WatchSender::local(&identity.name, address),
            principal: Principal::of_token(identity, address.ip()),
            address,
            forwarding: ForwardTarget::Always,
            has_free_pages: true,
        }
    }

    /// By whose rules its watches are judged.
    ///
    /// # Errors
    /// Its token has expired.
    pub(crate) fn identity(&self) -> Result<Arc<Identity>, Error> {
        self.connection.principal.identity()
    }

    /// The name under which its requests are judged; empty if the client has shown none.
    pub(crate) fn name(&self) -> String {
        self.connection.principal.name()
    }
}

/// What serves a [`LocalClient`].
struct LocalStream {
    session: Session,
    requests: mpsc::Receiver<LocalRequest>,
    /// Who waits for which answer.
    answers: BTreeMap<u64, oneshot::Sender<Result<Response, Error>>>,
    next_request: u64,
    replies: FrameReader,
}

impl LocalStream {
    fn new(session: Session, requests: mpsc::Receiver<LocalRequest>) -> Self {
        let limits = session.shared.limits.frames;
        Self {
            session,
            requests,
            answers: BTreeMap::new(),
            next_request: 1,
            replies: FrameReader::new(Door::Client, limits),
        }
    }

    async fn run(mut self) {
        if let Err(error) = self.serve().await {
            // Both sides of these frames are ours.
            tracing::error!(%error, "a session inside of this node ended");
        }
    }

    /// Until the client is gone.
    async fn serve(&mut self) -> Result<(), WireError> {
        let (mut requests, mut reads, mut deliveries) = (Vec::new(), Vec::new(), Vec::new());
        while poll_fn(|cx| self.poll_work(cx, &mut requests)).await {
            let batch = self.take_in(&mut requests);
            self.serve_batch(&batch, &mut reads)?;
            std::mem::swap(&mut deliveries, &mut self.session.answers);
            for answered in deliveries.drain(..) {
                self.session.complete(answered);
                self.hand_out()?;
            }
        }
        Ok(())
    }

    /// Ready when requests have come, or answers to earlier ones; false once there is no client any more.
    fn poll_work(&mut self, cx: &mut Context<'_>, requests: &mut Vec<LocalRequest>) -> Poll<bool> {
        while self.session.collect_answers(cx) {}
        let mut is_ready = !self.session.answers.is_empty();
        if self.session.connection.in_flight.poll_room(cx)
            && let Poll::Ready(count) = self.requests.poll_recv_many(cx, requests, BATCH_MAX)
        {
            if count == 0 {
                return Poll::Ready(false);
            }
            is_ready = true;
        }
        match is_ready {
            true => Poll::Ready(true),
            false => Poll::Pending,
        }
    }

    /// The frames of one closed batch.
    fn take_in(&mut self, requests: &mut Vec<LocalRequest>) -> Vec<Frame> {
        let limits = self.session.shared.limits.frames;
        let mut frames = Vec::with_capacity(requests.len());
        for request in requests.drain(..) {
            let LocalRequest {
                context,
                call,
                answer,
            } = request;
            let request_id = self.next_request;
            self.next_request += 1;
            let frame = ClientFrame { request_id, call };
            let frame = match context.is_empty() {
                true => Frame::new(&frame, &limits),
                false => Frame::new(&ContextFrame { context, frame }, &limits),
            };
            match frame {
                Ok(frame) => {
                    self.answers.insert(request_id, answer);
                    frames.push(frame);
                }
                // Its client may have given up.
                Err(error) => drop(answer.send(Err(too_long(error)))),
            }
        }
        frames
    }

    fn serve_batch(
        &mut self,
        batch: &[Frame],
        reads: &mut Vec<IndexedRead>,
    ) -> Result<(), WireError> {
        self.session.dispatch_batch(batch, reads)?;
        self.session.submit();
        self.hand_out()?;
        let mut rest = &reads[..];
        while !rest.is_empty() {
            let done = self.session.read_round(batch, rest)?;
            rest = &rest[done..];
            self.session.submit();
            self.hand_out()?;
        }
        Ok(())
    }

    /// Gives the replies that have gathered to who waits for them.
    fn hand_out(&mut self) -> Result<(), WireError> {
        if self.session.replies.is_empty() {
            return Ok(());
        }
        let replies: Bytes = self.session.replies.split().freeze();
        self.replies.push(replies);
        while let Some(frame) = self.replies.next_frame()? {
            let ServerFrame { request_id, result } = frame.decode()?;
            if let Some(answer) = self.answers.remove(&request_id) {
                // Its client may have given up.
                drop(answer.send(result));
            }
        }
        self.session.written();
        Ok(())
    }
}

fn too_long(error: WireError) -> Error {
    let kind = match error {
        WireError::TooLong {
            bytes, bytes_max, ..
        } => ErrorKind::RequestTooLarge {
            limit: bytes_max as u64,
            actual: bytes as u64,
        },
        _ => ErrorKind::Internal,
    };
    Error::not_applied(kind, format!("the request cannot be served: {error}"))
}
