//! What a store must do to be watched under load, and how leasehold does it.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use super::leasehold::tls;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::{Client, ConnectOptions, WatchEvent, WatchOptions, Watcher};

/// How long a watch may take to be opened.
const PATIENCE: Duration = Duration::from_secs(120);
/// The least time that a request may take: servers under this load may be slow.
const TIMEOUT_MIN: Duration = Duration::from_secs(10);

/// A store that can be watched.
pub trait Watched: Clone + Send + Sync + 'static {
    /// A connection to it. Whatever goes over it may overlap.
    type Connection: WatchedConnection;

    /// The store's name in reports.
    fn name(&self) -> &'static str;

    /// Makes connection `number`; they are numbered from 0, so that they can be spread.
    fn connection(
        &self,
        number: usize,
    ) -> impl Future<Output = Result<Self::Connection, Failure>> + Send;
}

/// A connection for writers and watchers.
pub trait WatchedConnection: Clone + Send + Sync + 'static {
    /// A watch.
    type Listener: Listener;

    /// Writes one key; returns the revision.
    fn write(&self, key: Bytes, value: Bytes) -> impl Future<Output = Result<i64, Failure>> + Send;

    /// Watches one key from a revision on.
    fn watch(
        &self,
        key: Bytes,
        start: i64,
    ) -> impl Future<Output = Result<Self::Listener, Failure>> + Send;

    /// Takes leave of the server.
    fn leave(self) -> impl Future<Output = ()> + Send;
}

/// A watch that was opened.
pub trait Listener: Send + 'static {
    /// What is heard next.
    ///
    /// # Errors
    /// The watch ended.
    fn hear(&mut self) -> impl Future<Output = Result<Heard, Failure>> + Send;
}

/// What a watcher heard.
#[derive(Clone, Debug)]
pub enum Heard {
    /// The key was written.
    Changes {
        /// The revision up to which that is.
        revision: i64,
        /// In order.
        changes: Vec<Change>,
    },
    /// The watch had been interrupted, and goes on without a gap.
    Resumed,
    /// Something that is not measured.
    Other,
}

/// A key was written.
#[derive(Clone, Debug)]
pub struct Change {
    /// How often it was, since it was created.
    pub version: i64,
    /// The value.
    pub value: Bytes,
}

/// leasehold, to be watched.
#[derive(Clone, Debug)]
pub struct WatchedLeasehold {
    target: Target,
    /// Where watches go, if not wherever the client is connected.
    endpoint: Option<String>,
}

/// A client of it.
#[derive(Clone, Debug)]
pub struct WatchedClient {
    client: Client,
    endpoint: Option<String>,
}

impl WatchedLeasehold {
    /// The cluster that `target` names; watches go to `endpoint`, if one is named.
    pub fn new(target: Target, endpoint: Option<String>) -> Self {
        Self { target, endpoint }
    }
}

impl Watched for WatchedLeasehold {
    type Connection = WatchedClient;

    fn name(&self) -> &'static str {
        "leasehold"
    }

    async fn connection(&self, _: usize) -> Result<WatchedClient, Failure> {
        let options = ConnectOptions::new()
            .with_tls(tls(&self.target))
            .with_timeout(self.target.timeout.max(TIMEOUT_MIN))
            .with_client_name("leasehold-bench");
        let endpoints = self.target.endpoints.iter().cloned();
        Ok(WatchedClient {
            client: Client::connect(endpoints, Some(options)).await?,
            endpoint: self.endpoint.clone(),
        })
    }
}

impl WatchedConnection for WatchedClient {
    type Listener = Watcher;

    async fn write(&self, key: Bytes, value: Bytes) -> Result<i64, Failure> {
        Ok(self.client.put(key, value, None).await?.header.revision)
    }

    async fn watch(&self, key: Bytes, start: i64) -> Result<Watcher, Failure> {
        let mut options = WatchOptions::new()
            .with_start_revision(start)
            .with_timeout(PATIENCE);
        if let Some(endpoint) = &self.endpoint {
            options = options.with_endpoint(endpoint);
        }
        Ok(self.client.watch(key, Some(options)).await?)
    }

    async fn leave(self) {
        self.client.close().await;
    }
}

impl Listener for Watcher {
    async fn hear(&mut self) -> Result<Heard, Failure> {
        match self.next().await {
            None => Err(Failure::refused("a watch ended")),
            Some(event) => Ok(match event? {
                WatchEvent::Events { revision, events } => Heard::Changes {
                    revision,
                    changes: events
                        .into_iter()
                        .map(|event| Change {
                            version: event.kv.version,
                            value: event.kv.value,
                        })
                        .collect(),
                },
                WatchEvent::Resumed { .. } => Heard::Resumed,
                _ => Heard::Other,
            }),
        }
    }
}
