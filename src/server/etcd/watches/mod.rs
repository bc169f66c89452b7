//! The service of watches: many on one stream, and one ordered queue out.
//!
//! A watch here outlives those of the node that serve it ([`LocalWatches`]). One that is slow, or whose
//! node has lost its leader for a while, is ended there, and opened again from the next revision on:
//! its client sees a pause. Only compaction and lost permission end a watch for its client.
//!
//! Requests are taken one at a time, so that watches are created in the order in which they were asked for:
//! clients count on that.

mod messages;
mod unsent;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::unsent::Unsent;
use super::body::RequestBody;
use super::caller::{Caller, now, until};
use super::grpc::{Reply, StreamFrame, message_frame, streaming};
use super::stream::{Requests, send_answers};
use crate::api;
use crate::api::{Error, ErrorKind};
use crate::etcd::convert::watch_request;
use crate::etcd::errors::{DUPLICATE_WATCH, Method, REQUEST_TOO_LARGE, STOPPED, TOO_MANY_REQUESTS};
use crate::etcd::proto;
use crate::etcd::proto::{WatchCreateRequest, WatchRequestUnion, WatchResponse};
use crate::etcd::status::{Code, Status};
use crate::kv::access::Identity;
use crate::server::watch::{LocalWatches, WatchStep};
use crate::watch::{Batch, WatcherEvent, WatcherId};

/// Frames that may wait until the client reads; then the watches of the stream wait.
const WAITING_MAX: usize = 2;
/// Watches of a stream.
const WATCHES_MAX: usize = 10_000;
/// How long to wait before a watch is opened again that the node could not serve.
const RETRY: Duration = Duration::from_millis(100);
/// The number of a watch that was refused, and of what is about all watches of a stream.
const NO_WATCH: i64 = -1;

/// Serves a stream of watches.
pub(super) fn serve(caller: Caller, body: RequestBody) -> Response<Reply> {
    send_answers(
        caller,
        WAITING_MAX,
        streaming,
        |caller, answers| async move {
            match WatchStream::new(caller, body, answers).run().await {
                End::Gone => None,
                End::Failed(status) => Some(Err(status)),
            }
        },
    )
}

/// Why a stream ends.
enum End {
    /// The client is gone.
    Gone,
    Failed(Status),
}

/// One stream.
struct WatchStream {
    caller: Caller,
    requests: Requests,
    /// The client has sent its last request. Its watches go on.
    is_over: bool,
    answers: mpsc::Sender<StreamFrame>,
    /// What is to be sent next.
    unsent: Unsent,
    /// The watches of the node whose events are in there.
    delivered: Vec<WatcherId>,
    served: LocalWatches,
    /// By the number that the client knows.
    watches: BTreeMap<i64, Watch>,
    /// The numbers that clients know, by those that the node knows.
    numbers: BTreeMap<u64, i64>,
    /// Those that the node could not serve, by the number that the client knows. Some may have ended meanwhile.
    waiting: BTreeSet<i64>,
    /// When they are opened again.
    again_at: Option<Instant>,
    /// Something was sent in this turn.
    was_flushed: bool,
    next_id: i64,
    next_number: u64,
    /// The watch that is being created.
    creating: Option<i64>,
    /// The client wants to know how far its watches are.
    asks_progress: bool,
}

/// A watch of the client.
struct Watch {
    request: api::WatchRequest,
    /// Large messages of it may be cut.
    is_cut: bool,
    /// The first revision that it has not been sent; 0 while the node has not chosen it.
    next: i64,
    /// Of the watch of the node that serves it.
    number: u64,
    /// By whose rules it was judged last: a token that expires ends no watch.
    who: Option<Arc<Identity>>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The node was asked to serve it.
    Opening,
    Live,
    /// The node cannot serve it for now.
    Waiting,
    /// It has ended, and the client has not said that it knows.
    Over,
}

enum Turn {
    Request(Result<Option<proto::WatchRequest>, Status>),
    Step(WatchStep),
    Again,
}

impl WatchStream {
    fn new(caller: Caller, body: RequestBody, answers: mpsc::Sender<StreamFrame>) -> Self {
        let watches = &caller.sessions.serving.watches;
        Self {
            served: caller.client().watches(watches),
            requests: Requests::new(caller.clone(), body),
            caller,
            is_over: false,
            answers,
            unsent: Unsent::default(),
            delivered: Vec::new(),
            watches: BTreeMap::new(),
            numbers: BTreeMap::new(),
            waiting: BTreeSet::new(),
            again_at: None,
            was_flushed: false,
            next_id: 0,
            next_number: 1,
            creating: None,
            asks_progress: false,
        }
    }

    async fn run(mut self) -> End {
        loop {
            self.was_flushed = false;
            let ended = self.turn().await;
            // What was to be said before the end is said.
            let flushed = self.flush().await;
            if let Err(end) = ended.and(flushed) {
                return end;
            }
        }
    }

    /// One turn, and the steps that are there by then, as far as they go into one write.
    async fn turn(&mut self) -> Result<(), End> {
        let takes_request = !self.is_over && self.creating.is_none();
        let again_at = self.again_at;
        let turn = tokio::select! {
            request = self.requests.next(), if takes_request => Turn::Request(request),
            step = self.served.next() => Turn::Step(step),
            () = until(again_at) => Turn::Again,
        };
        match turn {
            Turn::Request(request) => self.take_in(request).await?,
            Turn::Step(step) => self.take_step(step).await?,
            Turn::Again => self.open_waiting()?,
        }
        // Requests have their turn even if steps never end.
        while !self.was_flushed
            && let Some(step) = self.served.next_if_ready().await
        {
            self.take_step(step).await?;
        }
        Ok(())
    }

    /// Sends what has gathered, and lets the watches go on whose events that was.
    async fn flush(&mut self) -> Result<(), End> {
        self.was_flushed = true;
        for frame in self.unsent.take() {
            self.answers.send(frame).await.map_err(|_| End::Gone)?;
        }
        if !self.delivered.is_empty() {
            self.served.sent(std::mem::take(&mut self.delivered));
        }
        Ok(())
    }

    async fn take_in(
        &mut self,
        request: Result<Option<proto::WatchRequest>, Status>,
    ) -> Result<(), End> {
        let Some(request) = request.map_err(End::Failed)? else {
            self.is_over = true;
            return Ok(());
        };
        match request.request {
            Some(WatchRequestUnion::CreateRequest(create)) => self.create(&create).await,
            Some(WatchRequestUnion::CancelRequest(cancel)) => self.cancel(cancel.watch_id).await,
            Some(WatchRequestUnion::ProgressRequest(_)) => {
                self.asks_progress = self.has_watches();
                self.served.ask_progress();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn take_step(&mut self, step: WatchStep) -> Result<(), End> {
        let id_of = |number: &u64| self.numbers.get(number).copied();
        match step {
            WatchStep::Opened { watch, revision } => match id_of(&watch) {
                Some(id) => self.opened(id, revision).await,
                None => Ok(()),
            },
            WatchStep::Refused { watch, error } => match id_of(&watch) {
                Some(id) => self.interrupted(id, &error).await,
                None => Ok(()),
            },
            WatchStep::Events {
                watch,
                watcher,
                events,
            } => match id_of(&watch) {
                Some(id) => self.deliver(id, watcher, events).await,
                // The client has cancelled it.
                None => Ok(()),
            },
            WatchStep::Synced { revision } => self.synced(revision).await,
        }
    }

    async fn create(&mut self, create: &WatchCreateRequest) -> Result<(), End> {
        let request = match self.admit(create) {
            Ok(request) => request,
            Err(reason) => return self.refuse(reason).await,
        };
        let id = match create.watch_id {
            0 => {
                while self.watches.contains_key(&self.next_id) {
                    self.next_id += 1;
                }
                self.next_id += 1;
                self.next_id - 1
            }
            given => given,
        };
        let watch = Watch {
            next: request.start_revision,
            request,
            is_cut: create.fragment,
            number: 0,
            who: None,
            phase: Phase::Waiting,
        };
        self.watches.insert(id, watch);
        self.creating = Some(id);
        self.open(id)
    }

    /// What the node is asked for, if etcd would create this watch.
    fn admit(&self, create: &WatchCreateRequest) -> Result<api::WatchRequest, Cow<'static, str>> {
        let request = watch_request(create)?;
        if create.watch_id != 0 && self.watches.contains_key(&create.watch_id) {
            return Err(DUPLICATE_WATCH.into());
        }
        if self.watches.len() >= WATCHES_MAX {
            return Err(TOO_MANY_REQUESTS.message);
        }
        // Both filters together are good here, and leave nothing.
        let unfiltered = api::WatchRequest {
            no_put: false,
            no_delete: false,
            ..request.clone()
        };
        let limits = &self.caller.sessions.limits.requests;
        match unfiltered.validate(limits) {
            Ok(()) => Ok(request),
            Err(_) => Err(REQUEST_TOO_LARGE.message),
        }
    }

    async fn refuse(&mut self, reason: Cow<'static, str>) -> Result<(), End> {
        let refusal = WatchResponse {
            header: Some(self.header(self.revision())),
            watch_id: NO_WATCH,
            created: true,
            canceled: true,
            cancel_reason: reason.into_owned(),
            ..WatchResponse::default()
        };
        self.send(message_frame(&refusal)).await
    }

    async fn cancel(&mut self, id: i64) -> Result<(), End> {
        let Some(watch) = self.watches.remove(&id) else {
            return Ok(());
        };
        self.numbers.remove(&watch.number);
        self.waiting.remove(&id);
        if matches!(watch.phase, Phase::Opening | Phase::Live) {
            let who = self.caller.identity();
            self.served.cancel(watch.number, who);
        }
        self.asks_progress &= self.has_watches();
        let canceled = WatchResponse {
            header: Some(self.header(self.revision())),
            watch_id: id,
            canceled: true,
            ..WatchResponse::default()
        };
        self.send(message_frame(&canceled)).await
    }

    /// Has the node serve a watch, from the first revision on that it was not sent.
    fn open(&mut self, id: i64) -> Result<(), End> {
        if !self.caller.sessions.node.is_readable() {
            return Err(End::Failed(STOPPED));
        }
        let Some(watch) = self.watches.get_mut(&id) else {
            return Ok(());
        };
        self.numbers.remove(&watch.number);
        watch.number = self.next_number;
        watch.phase = Phase::Opening;
        self.numbers.insert(watch.number, id);
        self.next_number += 1;
        let request = api::WatchRequest {
            start_revision: watch.next,
            ..watch.request.clone()
        };
        let who = self.caller.identity();
        let who = who.or_else(|error| watch.who.clone().ok_or(error));
        watch.who = who.as_ref().ok().cloned();
        self.served.open(watch.number, request, who);
        Ok(())
    }

    fn open_waiting(&mut self) -> Result<(), End> {
        self.again_at = None;
        for id in std::mem::take(&mut self.waiting) {
            let watch = self.watches.get(&id);
            if watch.is_some_and(|watch| watch.phase == Phase::Waiting) {
                self.open(id)?;
            }
        }
        Ok(())
    }

    async fn opened(&mut self, id: i64, revision: i64) -> Result<(), End> {
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.phase = Phase::Live;
            if watch.next == 0 {
                watch.next = revision + 1;
            }
        }
        if self.asks_progress {
            self.served.ask_progress();
        }
        self.created(id, revision).await
    }

    /// Tells the client that a watch is there, unless it knows.
    async fn created(&mut self, id: i64, revision: i64) -> Result<(), End> {
        if self.creating.take_if(|creating| *creating == id).is_none() {
            return Ok(());
        }
        let created = WatchResponse {
            header: Some(self.header(revision)),
            watch_id: id,
            created: true,
            ..WatchResponse::default()
        };
        self.send(message_frame(&created)).await
    }

    /// The node does not serve the watch any more, or not at all.
    async fn interrupted(&mut self, id: i64, error: &Error) -> Result<(), End> {
        match error.kind {
            ErrorKind::SlowWatcher => self.open(id),
            ErrorKind::Compacted { compact_revision } => {
                self.created(id, self.revision()).await?;
                self.end(id, compact_revision, String::new()).await
            }
            ErrorKind::Unavailable | ErrorKind::Corrupt => Err(End::Failed(STOPPED)),
            ErrorKind::NoLeader => self.postpone(id).await,
            // Who has it already is served as soon as that is possible.
            ErrorKind::SlowDown { .. } if self.creating != Some(id) => self.postpone(id).await,
            _ => {
                let reason = reason(&self.caller.status_of(error, Method::Range));
                if self.creating.take_if(|creating| *creating == id).is_none() {
                    return self.end(id, 0, reason).await;
                }
                if let Some(watch) = self.watches.remove(&id) {
                    self.numbers.remove(&watch.number);
                }
                self.refuse(reason.into()).await
            }
        }
    }

    /// The watch continues once the node serves it again.
    async fn postpone(&mut self, id: i64) -> Result<(), End> {
        let revision = self.revision();
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.phase = Phase::Waiting;
            if watch.next == 0 {
                watch.next = revision + 1;
            }
            self.waiting.insert(id);
            // At a time of its own, however much happens to other watches of the stream meanwhile.
            self.again_at.get_or_insert_with(|| now() + RETRY);
        }
        self.created(id, revision).await
    }

    /// Ends a watch for its client.
    async fn end(&mut self, id: i64, compact_revision: i64, reason: String) -> Result<(), End> {
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.phase = Phase::Over;
            self.numbers.remove(&watch.number);
        }
        let revision = match compact_revision {
            0 => self.revision(),
            // As in etcd.
            _ => 0,
        };
        let canceled = WatchResponse {
            header: Some(self.header(revision)),
            watch_id: id,
            canceled: true,
            compact_revision,
            cancel_reason: reason,
            ..WatchResponse::default()
        };
        self.send(message_frame(&canceled)).await
    }

    async fn deliver(
        &mut self,
        id: i64,
        watcher: WatcherId,
        events: Vec<WatcherEvent>,
    ) -> Result<(), End> {
        let mut batches = Vec::new();
        for event in events {
            match event {
                WatcherEvent::Events(batch) => batches.push(batch),
                WatcherEvent::Progress(revision) => {
                    self.send_events(id, &std::mem::take(&mut batches)).await?;
                    self.send_progress(id, revision).await?;
                    if let Some(watch) = self.watches.get_mut(&id) {
                        watch.next = watch.next.max(revision + 1);
                    }
                }
                WatcherEvent::Canceled(cancel) => {
                    self.send_events(id, &std::mem::take(&mut batches)).await?;
                    return self.interrupted(id, &cancel.error).await;
                }
                // Only for watches that ask for the state that there is.
                WatcherEvent::State(_) | WatcherEvent::Synced(_) => {}
            }
        }
        self.send_events(id, &batches).await?;
        self.delivered.push(watcher);
        Ok(())
    }

    async fn send_events(&mut self, id: i64, batches: &[Arc<Batch>]) -> Result<(), End> {
        let (Some(last), Some(watch)) = (batches.last(), self.watches.get_mut(&id)) else {
            return Ok(());
        };
        watch.next = last.revision() + 1;
        let part_bytes = watch.is_cut.then(|| self.caller.message_bytes_max());
        let head = WatchResponse {
            header: Some(self.header(last.revision())),
            watch_id: id,
            ..WatchResponse::default()
        };
        for frame in messages::frames(&head, batches, part_bytes) {
            self.send(frame).await?;
        }
        Ok(())
    }

    async fn send_progress(&mut self, id: i64, revision: i64) -> Result<(), End> {
        let progress = WatchResponse {
            header: Some(self.header(revision)),
            watch_id: id,
            ..WatchResponse::default()
        };
        self.send(message_frame(&progress)).await
    }

    /// The node has handed over everything up to `revision`, for the watches that it serves.
    async fn synced(&mut self, revision: i64) -> Result<(), End> {
        let is_served = |watch: &Watch| matches!(watch.phase, Phase::Live | Phase::Over);
        // One that is opened again asks again.
        if !self.asks_progress || !self.watches.values().all(is_served) {
            return Ok(());
        }
        self.asks_progress = false;
        self.send_progress(NO_WATCH, revision).await
    }

    fn has_watches(&self) -> bool {
        self.watches
            .values()
            .any(|watch| watch.phase != Phase::Over)
    }

    async fn send(&mut self, frame: StreamFrame) -> Result<(), End> {
        self.unsent.push(frame);
        match self.unsent.has_room() {
            true => Ok(()),
            false => self.flush().await,
        }
    }

    /// The current revision of this node.
    fn revision(&self) -> i64 {
        self.caller.sessions.serving.store.revision()
    }

    fn header(&self, revision: i64) -> proto::ResponseHeader {
        let node = &self.caller.sessions.node;
        self.caller.header(&node.header(revision))
    }
}

/// Why a watch is cancelled, as etcd puts it: for access, with the code.
fn reason(status: &Status) -> String {
    let code = status.code;
    match code {
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
            format!("rpc error: code = {code:?} desc = {}", status.message)
        }
        _ => status.message.clone().into_owned(),
    }
}
