//! The client for programs that are not async: each call waits on the thread that makes it.
//!
//! ```no_run
//! use leasehold::blocking::BlockingClient;
//! use leasehold::client::{ConnectOptions, TlsOptions};
//!
//! # fn example() -> Result<(), leasehold::api::Error> {
//! let tls = TlsOptions::new()
//!     .ca_pem_file("client-ca.pem")
//!     .identity_pem_files("app.pem", "app.key");
//! let client = BlockingClient::connect(["n1:7400"], Some(ConnectOptions::new().with_tls(tls)))?;
//! client.put("greeting", "hello", None)?;
//! println!("{:?}", client.get("greeting", None)?.value());
//! for event in client.iterate(client.watch("greeting", None)?).take(3) {
//!     println!("{:?}", event?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Everything else the SDK has is reached by [`BlockingClient::run`], which waits for any async code over the
//! [`Client`] inside. Connections, keepers of leases and watches go on between calls, on one thread of the
//! client's own.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_core::Stream;
use tokio::runtime::{Builder, Runtime};

use crate::api::{Error, ErrorKind, Priority, TraceParent, TxnRequest};
use crate::client::{
    Client, ConnectOptions, DeleteOptions, DeleteResponse, GetOptions, GetResponse, PutOptions,
    PutResponse, TxnOptions, TxnResponse, WatchOptions, Watcher,
};

/// See the module. Cheap to clone: all clones are one client.
#[derive(Clone, Debug)]
pub struct BlockingClient {
    client: Client,
    runtime: Arc<ClientThread>,
}

/// The runtime whose one thread serves the client between its calls.
struct ClientThread(Option<Runtime>);

impl ClientThread {
    fn wait<T>(&self, call: impl Future<Output = T>) -> T {
        let runtime = self.0.as_ref().expect("it is taken when it is dropped");
        runtime.block_on(call)
    }
}

impl Drop for ClientThread {
    /// Does not wait for the thread, which async code may not.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientThread")
    }
}

impl BlockingClient {
    /// Connects to a cluster, as [`Client::connect`] does.
    ///
    /// # Errors
    /// As [`Client::connect`], and [`ErrorKind::Unavailable`] if the system refuses a thread.
    ///
    /// # Panics
    /// In async code, as every call here: that must not wait. Use [`Client`] there.
    pub fn connect(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
        options: Option<ConnectOptions>,
    ) -> Result<Self, Error> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("leasehold-client")
            .enable_all()
            .build()
            .map_err(|error| {
                let message = format!("the thread of the client cannot be started: {error}");
                Error::not_applied(ErrorKind::Unavailable, message)
            })?;
        let runtime = Arc::new(ClientThread(Some(runtime)));
        let client = runtime.wait(Client::connect(endpoints, options))?;
        Ok(Self { client, runtime })
    }

    /// This client within a namespace, as [`Client::with_namespace`].
    #[must_use]
    pub fn with_namespace(&self, prefix: impl AsRef<[u8]>) -> Self {
        let client = self.client.with_namespace(prefix);
        let runtime = self.runtime.clone();
        Self { client, runtime }
    }

    /// This client in a trace, as [`Client::with_traceparent`].
    #[must_use]
    pub fn with_traceparent(&self, parent: TraceParent) -> Self {
        let client = self.client.with_traceparent(parent);
        let runtime = self.runtime.clone();
        Self { client, runtime }
    }

    /// This client with a priority, as [`Client::with_priority`].
    #[must_use]
    pub fn with_priority(&self, priority: Priority) -> Self {
        let client = self.client.with_priority(priority);
        let runtime = self.runtime.clone();
        Self { client, runtime }
    }

    /// Waits for async code over the client, such as a lock or a transaction of several steps.
    ///
    /// ```no_run
    /// # use leasehold::blocking::BlockingClient;
    /// # fn example(client: BlockingClient) -> Result<(), leasehold::api::Error> {
    /// let id = client.run(async |client| {
    ///     let options = leasehold::client::LeaseGrantOptions::new().with_name("nightly");
    ///     client.lease().grant(std::time::Duration::from_secs(60), Some(options)).await
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What the code returns lives on: a keeper renews its lease, a lock stays held. Give it back by another
    /// `run`, so that what it does when it is dropped can be sent.
    ///
    /// # Panics
    /// In async code.
    pub fn run<T>(&self, call: impl AsyncFnOnce(&Client) -> T) -> T {
        self.runtime.wait(call(&self.client))
    }

    /// Reads, as [`Client::get`].
    ///
    /// # Errors
    /// As [`Client::get`].
    ///
    /// # Panics
    /// In async code.
    pub fn get(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<GetOptions>,
    ) -> Result<GetResponse, Error> {
        self.runtime.wait(self.client.get(key, options))
    }

    /// Writes, as [`Client::put`].
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Panics
    /// In async code.
    pub fn put(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: Option<PutOptions>,
    ) -> Result<PutResponse, Error> {
        self.runtime.wait(self.client.put(key, value, options))
    }

    /// Deletes, as [`Client::delete`].
    ///
    /// # Errors
    /// As [`Client::delete`].
    ///
    /// # Panics
    /// In async code.
    pub fn delete(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<DeleteOptions>,
    ) -> Result<DeleteResponse, Error> {
        self.runtime.wait(self.client.delete(key, options))
    }

    /// Compares and then reads and writes, as [`Client::txn`].
    ///
    /// # Errors
    /// As [`Client::txn`].
    ///
    /// # Panics
    /// In async code.
    pub fn txn(&self, txn: TxnRequest, options: Option<TxnOptions>) -> Result<TxnResponse, Error> {
        self.runtime.wait(self.client.txn(txn, options))
    }

    /// Watches, as [`Client::watch`]; [`BlockingClient::iterate`] waits for its events.
    ///
    /// # Errors
    /// As [`Client::watch`].
    ///
    /// # Panics
    /// In async code.
    pub fn watch(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<WatchOptions>,
    ) -> Result<Watcher, Error> {
        self.runtime.wait(self.client.watch(key, options))
    }

    /// What a watch, a streamed range or a snapshot yields, each item waited for. The iteration ends when the
    /// stream does.
    ///
    /// # Panics
    /// `next` in async code.
    pub fn iterate<S: Stream + Unpin>(&self, stream: S) -> BlockingIter<S> {
        BlockingIter {
            stream,
            runtime: Arc::clone(&self.runtime),
        }
    }

    /// Ends the client and all its clones, as [`Client::close`].
    ///
    /// # Panics
    /// In async code.
    pub fn close(&self) {
        self.runtime.wait(self.client.close());
    }
}

/// The items of a stream, each waited for.
#[derive(Debug)]
pub struct BlockingIter<S> {
    stream: S,
    runtime: Arc<ClientThread>,
}

impl<S: Stream + Unpin> Iterator for BlockingIter<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        let stream = &mut self.stream;
        self.runtime
            .wait(poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)))
    }
}
