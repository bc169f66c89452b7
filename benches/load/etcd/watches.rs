//! Watches of etcd.
//!
//! As etcd's own client does it: all watches of a connection share one stream, and what arrives is
//! handed to each by its number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::{OnceCell, mpsc, oneshot};

use super::leases::held;
use super::messages::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use super::rpc::{Channel, Incoming, Outgoing, Rpc};
use leasehold::bench::store::{Change, Watch, WatchEvent, WatchTarget};
use leasehold::cli::failure::Failure;

/// Events that wait for one watcher. One that does not read holds up the stream, as it does to etcd's own
/// client once its memory is gone.
const EVENTS_MAX: usize = 1024;
/// etcd's number of a put among kinds of events, and among those that a watch leaves out.
const PUT: i32 = 0;

/// The watches of a connection. The first one opens their stream.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    stream: OnceCell<Stream>,
}

#[derive(Debug)]
struct Stream {
    /// With the number of the last watch.
    outgoing: Mutex<(Outgoing, i64)>,
    watchers: Watchers,
}

type Watchers = Arc<Mutex<BTreeMap<i64, Watcher>>>;

/// A watch, as the task sees it that reads the stream.
#[derive(Debug)]
struct Watcher {
    created: Option<oneshot::Sender<()>>,
    events: mpsc::Sender<Result<WatchEvent, Failure>>,
}

/// One watch.
#[derive(Debug)]
pub(crate) struct EtcdWatch {
    events: mpsc::Receiver<Result<WatchEvent, Failure>>,
}

impl Watches {
    /// Opens a watch.
    ///
    /// # Errors
    /// etcd does not answer, or refuses.
    pub(crate) async fn open(
        &self,
        channel: &Channel,
        what: WatchTarget,
    ) -> Result<EtcdWatch, Failure> {
        let stream = self
            .stream
            .get_or_try_init(|| Stream::open(channel))
            .await?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let (created, is_created) = oneshot::channel();
        {
            let mut outgoing = held(&stream.outgoing);
            let (outgoing, last) = &mut *outgoing;
            *last += 1;
            let watcher = Watcher {
                created: Some(created),
                events: sender,
            };
            // Before the request: the answer may be quick.
            held(&stream.watchers).insert(*last, watcher);
            let request = WatchRequest {
                create: Some(create(what, *last)),
            };
            outgoing.say(&request)?;
        }
        match is_created.await {
            Ok(()) => Ok(EtcdWatch { events }),
            Err(_) => Err(Failure::refused("etcd did not open a watch")),
        }
    }
}

impl Stream {
    async fn open(channel: &Channel) -> Result<Self, Failure> {
        let (outgoing, incoming) = channel.open(Rpc::Watch).await?;
        let watchers = Watchers::default();
        // Ends with the connection, at the latest with the runtime.
        tokio::spawn(hear(incoming, Arc::clone(&watchers)));
        Ok(Self {
            outgoing: Mutex::new((outgoing, 0)),
            watchers,
        })
    }
}

fn create(what: WatchTarget, watch_id: i64) -> WatchCreateRequest {
    match what {
        WatchTarget::Key { key, start } => WatchCreateRequest {
            key,
            range_end: Bytes::new(),
            start_revision: start,
            filters: Vec::new(),
            watch_id,
        },
        WatchTarget::Deletes { prefix } => WatchCreateRequest {
            range_end: after(&prefix),
            key: prefix.into(),
            start_revision: 0,
            filters: vec![PUT],
            watch_id,
        },
    }
}

impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<WatchEvent, Failure> {
        let ended = || Err(Failure::refused("etcd ended the stream of watches"));
        self.events.recv().await.unwrap_or_else(ended)
    }
}

/// The first key after all that begin with `prefix`, which ends with a character of ASCII.
fn after(prefix: &str) -> Bytes {
    let mut bytes = prefix.as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last += 1;
    }
    bytes.into()
}

async fn hear(mut incoming: Incoming, watchers: Watchers) {
    loop {
        let Ok(Some(response)) = incoming.hear::<WatchResponse>().await else {
            // All receivers learn that the sender is gone.
            return held(&watchers).clear();
        };
        let watcher = {
            let mut watchers = held(&watchers);
            let Some(watcher) = watchers.get_mut(&response.watch_id) else {
                continue;
            };
            if response.created
                && let Some(created) = watcher.created.take()
            {
                // The receiver may have gone.
                let _ = created.send(());
            }
            watcher.events.clone()
        };
        if let Some(event) = event_of(response) {
            let _ = watcher.send(event).await;
        }
    }
}

/// Why etcd ended the watch, if it says so.
fn cancelled(response: &WatchResponse) -> Option<Failure> {
    if !response.canceled {
        return None;
    }
    let reason = match response.compact_revision {
        0 => response.cancel_reason.clone(),
        compacted => format!("revisions below {compacted} are compacted"),
    };
    let told = format!("etcd cancelled a watch: {reason}");
    Some(Failure::refused(told))
}

/// The event that a response is for its watch, if it is one.
fn event_of(response: WatchResponse) -> Option<Result<WatchEvent, Failure>> {
    if let Some(failure) = cancelled(&response) {
        return Some(Err(failure));
    }
    let mut revision = 0;
    let mut changes = Vec::with_capacity(response.events.len());
    for Event { kv, .. } in response.events {
        let Some(kv) = kv else {
            continue;
        };
        revision = kv.mod_revision;
        changes.push(Change {
            key: kv.key,
            version: kv.version,
            value: kv.value,
        });
    }
    (!changes.is_empty()).then_some(Ok(WatchEvent::Changes { revision, changes }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::messages::KeyValue;

    fn event(kind: i32, mod_revision: i64) -> Event {
        Event {
            kind,
            kv: Some(KeyValue {
                mod_revision,
                ..KeyValue::default()
            }),
        }
    }

    #[test]
    fn changes_come_with_the_last_revision_and_a_cancelled_watch_with_the_reason() {
        let response = WatchResponse {
            events: vec![event(PUT, 4), event(1, 5), event(PUT, 6)],
            ..WatchResponse::default()
        };
        let Some(Ok(WatchEvent::Changes { revision, changes })) = event_of(response) else {
            panic!("no event");
        };
        assert_eq!((revision, changes.len()), (6, 3));
        assert!(event_of(WatchResponse::default()).is_none(), "created");
        let cancelled = WatchResponse {
            canceled: true,
            compact_revision: 7,
            ..WatchResponse::default()
        };
        let failure = event_of(cancelled).unwrap().unwrap_err();
        assert!(failure.to_string().contains("below 7"), "{failure}");
    }
}
