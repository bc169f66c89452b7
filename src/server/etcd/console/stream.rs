//! How the cluster is, told again and again. However many look, it is put together once; while no page
//! is open, not at all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::status;
use crate::api::Distribution;
use crate::etcd::status::Status;
use crate::server::etcd::caller::Caller;
use crate::server::etcd::gateway::stream_error;
use crate::server::etcd::grpc::{Reply, StreamFrame};
use crate::server::session::Sessions;
use crate::sync::Mutex;

/// How often everything is told.
const WHOLE: Duration = Duration::from_secs(1);
/// How often the lease is told that another node holds, who has to be asked.
const ASKED: Duration = Duration::from_millis(250);
/// How often the lease is told at most, however short the heartbeats are.
const SHORTEST: Duration = Duration::from_millis(50);
/// Messages that may wait until the client reads. It misses those in between: each tells how things are.
const WAITING_MAX: usize = 2;
/// The time of which quantiles are told, in rounds of [`WHOLE`].
const ROUNDS: usize = 10;

/// What the connections of a port share.
pub(in crate::server::etcd) struct Console {
    sessions: Arc<Sessions>,
    is_on_loopback: bool,
    /// Where the messages come; there while a page looks.
    messages: Mutex<Option<watch::Sender<Bytes>>>,
}

impl Console {
    /// Of a port of this node.
    pub(in crate::server::etcd) fn new(sessions: Arc<Sessions>, is_on_loopback: bool) -> Self {
        Self {
            sessions,
            is_on_loopback,
            messages: Mutex::default(),
        }
    }

    pub(super) fn is_on_loopback(&self) -> bool {
        self.is_on_loopback
    }

    /// The messages from now on.
    fn look(self: &Arc<Self>) -> watch::Receiver<Bytes> {
        let mut messages = self.messages.lock();
        if let Some(sender) = &*messages {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(Bytes::new());
        *messages = Some(sender);
        tokio::spawn(self.clone().tell());
        receiver
    }

    /// Sends a message to all who look; false if no page does any more.
    fn send(&self, message: &Value) -> bool {
        let mut messages = self.messages.lock();
        let Some(sender) = messages
            .as_ref()
            .filter(|sender| sender.receiver_count() > 0)
        else {
            *messages = None;
            return false;
        };
        sender.send_replace(format!("{{\"result\":{message}}}\n").into());
        true
    }

    async fn tell(self: Arc<Self>) {
        let sessions = &self.sessions;
        let heartbeat = sessions.node.timing.heartbeat_interval.max(SHORTEST);
        let mut window = Window::default();
        loop {
            let mut whole = status::collect(sessions, self.is_on_loopback).await;
            whole["latency"] = window.slide(sessions);
            if !self.send(&whole) {
                return;
            }
            let mut past = Duration::ZERO;
            while past < WHOLE {
                let leads = sessions.node.published.leader() == Some(sessions.node.member_id);
                let pause = if leads { heartbeat } else { ASKED };
                tokio::time::sleep(pause.min(WHOLE)).await;
                past += pause;
                let lease = match leads {
                    true => status::own_lease(sessions),
                    false => status::leaders_lease(sessions).await,
                };
                if let Some(lease) = lease
                    && !self.send(&json!({"lease": lease}))
                {
                    return;
                }
            }
        }
    }
}

/// What was counted at the end of each of the last rounds: of reads, and of writes.
#[derive(Default)]
struct Window(VecDeque<[Distribution; 2]>);

impl Window {
    /// The quantiles of the last rounds.
    fn slide(&mut self, sessions: &Sessions) -> Value {
        let latencies = &sessions.accounting.latencies;
        let now = [latencies.reads.read(), latencies.writes.read()];
        let before = self.0.front().cloned().unwrap_or_default();
        let [reads, writes] = [0, 1].map(|kind| status::quantiles(&now[kind].since(&before[kind])));
        self.0.push_back(now);
        if self.0.len() > ROUNDS {
            self.0.pop_front();
        }
        json!({"reads": reads, "writes": writes})
    }
}

/// Tells `caller`, who may look, until it goes, or may not look any more.
pub(super) fn serve(caller: Caller, console: &Arc<Console>) -> Response<Reply> {
    let mut messages = console.look();
    // A round may be under way: what is known is told at once.
    messages.mark_changed();
    let (frames, waiting) = mpsc::channel(WAITING_MAX);
    tokio::spawn(async move {
        let status = run(&caller, &mut messages, &frames).await;
        if let Some(status) = status {
            let text = stream_error(status.code as i32, &status.message);
            // Fails once the client is gone.
            let _ = frames.send(Bytes::from(text).into()).await;
        }
    });
    let mut response = Response::new(Reply::Stream(waiting));
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Passes messages on; returns why they end, or nothing if the client is gone.
async fn run(
    caller: &Caller,
    messages: &mut watch::Receiver<Bytes>,
    frames: &mpsc::Sender<StreamFrame>,
) -> Option<Status> {
    let mut ended = std::pin::pin!(caller.ended());
    let mut judge = tokio::time::interval(WHOLE);
    loop {
        tokio::select! {
            status = ended.as_mut() => return Some(status),
            () = frames.closed() => return None,
            _ = judge.tick() => {
                if let Err(status) = status::may_look(&caller.again()).await {
                    return Some(status);
                }
            }
            changed = messages.changed() => {
                changed.ok()?;
                let message = messages.borrow_and_update().clone();
                if !message.is_empty() {
                    frames.send(message.into()).await.ok()?;
                }
            }
        }
    }
}
