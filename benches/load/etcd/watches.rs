//! etcd's watches under load: what `watch --peer etcd` opens.
//!
//! As etcd's own client does it: all watches of a connection share one stream, and what arrives is
//! handed to each by its number.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::messages::{Event, WatchCreateRequest, WatchRequest, WatchResponse};
use super::rpc::{Incoming, Outgoing, Rpc};
use super::store::{EtcdConnection, EtcdConnector};
use leasehold::bench::store::{Connector, Store, Trouble};
use leasehold::bench::watched::{Change, Heard, Listener, Watched, WatchedConnection};
use leasehold::cli::failure::Failure;

/// What waits for one watcher. One that does not read holds up the stream, as it does to etcd's own
/// client once its memory is gone.
const HEARD_MAX: usize = 1024;
/// etcd's number of a put among kinds of events, and among those that a watch leaves out.
pub(crate) const PUT: i32 = 0;

/// A connection with one stream of watches.
#[derive(Clone, Debug)]
pub(crate) struct EtcdWatches {
    connection: Arc<EtcdConnection>,
    stream: Arc<Mutex<Stream>>,
    watchers: Watchers,
}

#[derive(Debug)]
struct Stream {
    outgoing: Outgoing,
    /// The number of the last watch.
    last: i64,
}

type Watchers = Arc<Mutex<BTreeMap<i64, Watcher>>>;

/// Whom to tell.
#[derive(Debug)]
struct Watcher {
    created: Option<oneshot::Sender<()>>,
    heard: mpsc::Sender<Result<Heard, Failure>>,
}

/// What one watch hears.
#[derive(Debug)]
pub(crate) struct EtcdListener {
    heard: mpsc::Receiver<Result<Heard, Failure>>,
}

fn failure(trouble: Trouble) -> Failure {
    Failure::refused(trouble.detail)
}

fn held<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched for EtcdConnector {
    type Connection = EtcdWatches;

    fn name(&self) -> &'static str {
        Connector::name(self)
    }

    async fn connection(&self, number: usize) -> Result<EtcdWatches, Failure> {
        let connection = Arc::new(self.dial(number).await?);
        let opened = connection.channel.open(Rpc::Watch).await;
        let (outgoing, incoming) = opened.map_err(failure)?;
        let watchers = Watchers::default();
        // Ends with the connection, at the latest with the runtime.
        tokio::spawn(hear(incoming, Arc::clone(&watchers)));
        Ok(EtcdWatches {
            connection,
            stream: Arc::new(Mutex::new(Stream { outgoing, last: 0 })),
            watchers,
        })
    }
}

impl WatchedConnection for EtcdWatches {
    type Listener = EtcdListener;

    async fn write(&self, key: Bytes, value: Bytes) -> Result<i64, Failure> {
        let put = self.connection.put_once(key, value, 0).await;
        Ok(put.map_err(failure)?.revision)
    }

    async fn watch(&self, key: Bytes, start: i64) -> Result<EtcdListener, Failure> {
        let (heard_by, heard) = mpsc::channel(HEARD_MAX);
        let (created, is_created) = oneshot::channel();
        {
            let mut stream = held(&self.stream);
            stream.last += 1;
            let watch_id = stream.last;
            let watcher = Watcher {
                created: Some(created),
                heard: heard_by,
            };
            // Before it is asked: the answer may be quick.
            held(&self.watchers).insert(watch_id, watcher);
            let create = WatchCreateRequest {
                key,
                range_end: Bytes::new(),
                start_revision: start,
                filters: Vec::new(),
                watch_id,
            };
            let request = WatchRequest {
                create: Some(create),
            };
            stream.outgoing.say(&request).map_err(failure)?;
        }
        match is_created.await {
            Ok(()) => Ok(EtcdListener { heard }),
            Err(_) => Err(Failure::refused("etcd did not open a watch")),
        }
    }

    async fn leave(self) {
        self.connection.close().await;
    }
}

impl Listener for EtcdListener {
    async fn hear(&mut self) -> Result<Heard, Failure> {
        let ended = || Err(Failure::refused("etcd ended the stream of watches"));
        self.heard.recv().await.unwrap_or_else(ended)
    }
}

async fn hear(mut incoming: Incoming, watchers: Watchers) {
    loop {
        let Ok(Some(response)) = incoming.hear::<WatchResponse>().await else {
            // All who listen learn that there is nobody any more who could tell them something.
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
                // Whoever asked may have gone.
                let _ = created.send(());
            }
            watcher.heard.clone()
        };
        if let Some(heard) = told(response) {
            let _ = watcher.send(heard).await;
        }
    }
}

/// Why etcd ended the watch, if it says so.
pub(crate) fn cancelled(response: &WatchResponse) -> Option<Failure> {
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

/// What a watcher is told of this.
fn told(response: WatchResponse) -> Option<Result<Heard, Failure>> {
    if let Some(failure) = cancelled(&response) {
        return Some(Err(failure));
    }
    let mut revision = 0;
    let mut changes = Vec::with_capacity(response.events.len());
    for event in response.events {
        if let Event {
            kind: PUT,
            kv: Some(kv),
        } = event
        {
            revision = kv.mod_revision;
            changes.push(Change {
                version: kv.version,
                value: kv.value,
            });
        }
    }
    (!changes.is_empty()).then_some(Ok(Heard::Changes { revision, changes }))
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
    fn puts_are_told_with_the_last_revision_and_a_cancelled_watch_with_the_reason() {
        let response = WatchResponse {
            events: vec![event(PUT, 4), event(1, 5), event(PUT, 6)],
            ..WatchResponse::default()
        };
        let Some(Ok(Heard::Changes { revision, changes })) = told(response) else {
            panic!("changes were not told");
        };
        assert_eq!((revision, changes.len()), (6, 2));
        assert!(told(WatchResponse::default()).is_none(), "created");
        let cancelled = WatchResponse {
            canceled: true,
            compact_revision: 7,
            ..WatchResponse::default()
        };
        let failure = told(cancelled).unwrap().unwrap_err();
        assert!(failure.to_string().contains("below 7"), "{failure}");
    }
}
