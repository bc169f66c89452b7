//! Watches of etcd's clients, one at each node's port: of everything, from the beginning to the end, over as many
//! streams as it takes. What they are told is judged together with what those of the SDK are told. Where a node says
//! how far a watch is, nothing older may follow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leasehold::api::EventKind;

use super::EtcdClient;
use crate::chaos::load::watches::Listener;
use crate::chaos::load::{AFTER_FAILURE, Book, PROBE_TIMEOUT};
use crate::etcd::grpc::{Channel, Silence, Stream};
use crate::etcd::messages::{
    Event, EventType, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchRequestUnion,
    WatchResponse,
};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// All keys: from the first one on, without an end.
const ALL: Bytes = Bytes::from_static(b"\0");
/// How often it is asked how far a watch is, as Kubernetes does.
const PROGRESS_ASKED: Duration = Duration::from_millis(100);
/// After so long without a word another stream is begun. Some wait for longer than a node is paused.
const SILENT_FOR: [Duration; 2] = [PROBE_TIMEOUT, Duration::from_secs(1)];

/// How often a watch of etcd's told a revision.
pub(crate) const TOLD: &str = "revisions told by etcd's watches";

/// Watches at `port`, and writes down what is told.
pub(in crate::chaos::load) async fn listen(book: Arc<Book>, port: SocketAddr, number: usize) {
    let name = format!("{port}, etcd's,");
    let mut listener = Listener::new(book.clone(), name, TOLD);
    let silent_for = SILENT_FOR[number % 2];
    let mut client = EtcdClient::new(book.clone(), port, silent_for);
    while !listener.is_done() {
        if let Ok(channel) = client.connection().await {
            book.count("streams of etcd's watches");
            follow(&channel, &mut listener, silent_for).await;
        }
        tokio::time::sleep(AFTER_FAILURE).await;
    }
}

/// Writes down what comes on one stream, until it ends, is silent, or all that matters is told.
async fn follow(channel: &Channel, listener: &mut Listener, silent_for: Duration) {
    // A stream of the hasty ones ends where no leader is known.
    let headers: &[_] = match silent_for < PROBE_TIMEOUT {
        true => &[("hasleader", "true")],
        false => &[],
    };
    let Ok(Ok(mut stream)) =
        tokio::time::timeout(silent_for, channel.try_begin(WATCH, headers)).await
    else {
        return;
    };
    let create = WatchRequestUnion::CreateRequest(WatchCreateRequest {
        key: ALL,
        range_end: ALL,
        start_revision: listener.next_revision(),
        progress_notify: true,
        ..WatchCreateRequest::default()
    });
    if !ask(&mut stream, create) {
        return;
    }
    let (mut heard, mut asked) = (Instant::now(), Instant::now());
    while !listener.is_done() && heard.elapsed() < silent_for {
        if asked.elapsed() >= PROGRESS_ASKED {
            asked = Instant::now();
            let progress = WatchRequestUnion::ProgressRequest(WatchProgressRequest {});
            if !ask(&mut stream, progress) {
                return;
            }
        }
        let next = tokio::time::timeout(PROGRESS_ASKED, stream.try_next()).await;
        let Ok(told) = next else { continue };
        heard = Instant::now();
        match told {
            Ok(told) => take(listener, &told),
            // No leader, or the node stops.
            Err(Silence::Ended((14, _)) | Silence::Lost(_)) => return,
            Err(Silence::Ended(status)) => return listener.ended(&format!("{status:?}")),
        }
    }
}

/// Whether it could be sent.
fn ask(stream: &mut Stream, request: WatchRequestUnion) -> bool {
    let request = WatchRequest {
        request: Some(request),
    };
    stream.try_send(&[request]).is_ok()
}

/// All events of a revision come in one message, which may hold several revisions.
fn take(listener: &mut Listener, told: &WatchResponse) {
    if told.canceled {
        let (why, compacted) = (&told.cancel_reason, told.compact_revision);
        listener.ended(&format!("canceled: {why}, compacted up to {compacted}"));
    }
    let of_one_revision = |one: &Event, other: &Event| revision_of(one) == revision_of(other);
    for events in told.events.chunk_by(of_one_revision) {
        listener.told(revision_of(&events[0]), events.iter().map(change));
    }
    if told.events.is_empty() && !told.created {
        let header = told.header.expect("an answer has a header");
        listener.passed(header.revision);
    }
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().expect("an event has a key").mod_revision
}

fn change(event: &Event) -> (EventKind, &[u8], &[u8]) {
    let kv = event.kv.as_ref().expect("an event has a key");
    let kind = match event.r#type() {
        EventType::Put => EventKind::Put,
        EventType::Delete => EventKind::Delete,
    };
    (kind, &kv.key, &kv.value)
}
