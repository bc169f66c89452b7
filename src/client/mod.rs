//! The client: connects to a cluster, finds its leader, and makes requests of it.
//!
//! ```no_run
//! use leasehold::client::{Client, ConnectOptions, TlsOptions};
//!
//! # async fn example() -> Result<(), leasehold::api::Error> {
//! let client = Client::connect(
//!     ["n1:7400", "n2:7400", "n3:7400"],
//!     Some(ConnectOptions::new().with_tls(
//!         TlsOptions::new()
//!             .ca_pem_file("client-ca.pem")
//!             .identity_pem_files("client.pem", "client.key"),
//!     )),
//! )
//! .await?;
//! client.put("greeting", "hello", None).await?;
//! let found = client.get("greeting", None).await?;
//! assert_eq!(found.value().map(|value| &value[..]), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! One [`Client`] serves any number of tasks: it is cheap to clone, every method takes `&self`, and
//! all requests to a node share one connection, which batches them into few packets. It needs a
//! tokio runtime with its I/O and time enabled.
//!
//! Every request has a deadline, two seconds by default, that covers everything: finding the
//! leader, retries, waits. When a request fails, its error gives the outcome ([`Error::outcome`]):
//! *not applied*, *applied* or *unknown*. `Ok` of a write means that it is committed.
//!
//! # Dropped futures
//!
//! Any future of this module may be dropped at any time without harm to the client. But a request
//! that was sent stays sent: a write whose future was dropped may still take effect, like one with
//! outcome *unknown*.

mod addresses;
mod auth;
mod context;
mod credentials;
mod deadline;
mod discovery;
mod endpoint;
#[doc(hidden)]
pub mod examples;
mod fence;
mod home;
mod kept_lease;
mod known_node;
mod kv;
mod lease;
mod lease_keeper;
mod lease_watch;
mod link;
mod login;
mod measure;
mod members;
mod mirror;
mod namespace;
mod namespaced;
mod newest;
mod node;
mod options;
mod pool;
pub mod prelude;
mod range_stream;
pub mod recipes;
mod request;
mod response;
mod retry_rule;
mod route;
mod selector;
mod sequence;
mod session;
mod snapshot;
mod stream;
mod throttle;
mod txn;
mod watch;
mod which_lease;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::deadline::deadline_after;
use crate::api::{Error, ErrorKind};
use crate::clock;
use crate::transport::{ConnectionFacts, Endpoint, TransportStats};
use crate::types::NodeId;
use crate::wire::{FrameLimits, RequestContext};

pub use auth::{AuthClient, AuthToken};
pub use discovery::SrvDiscovery;
pub use kept_lease::{KeepAliveEvent, KeepAliveOptions, LostCause};
pub use lease::{LeaseClient, LeaseGrantOptions, LeaseListOptions, TimeToLiveOptions};
pub use lease_keeper::LeaseKeeper;
pub use lease_watch::{LeaseEndCause, LeaseEvent, LeaseWatchOptions, LeaseWatcher};
pub use measure::{CLIENT_METRICS, ClientLabels, ClientMetric, ClientRecorder};
pub use mirror::{CopyReason, Mirror, MirrorCounts, MirrorEvent, MirrorOptions};
pub use options::{
    CompactionOptions, ConnectOptions, DeleteOptions, GetOptions, PutOptions, RetryPolicy,
    TlsOptions, TxnOptions,
};
pub use range_stream::RangeStream;
pub use response::{
    CasResponse, CompactionResponse, DeleteResponse, GetResponse, PutResponse,
    SequentialPutResponse, StatusResponse, TxnResponse,
};
pub use retry_rule::RetryRule;
pub use snapshot::{SnapshotOptions, SnapshotStream};
pub use stream::Items;
pub use watch::{WatchOptions, Watcher};
pub use which_lease::WhichLease;

pub use crate::api::WatchEvent;

use self::credentials::Credentials;
use self::endpoint::{invalid, with_port};
use self::login::Login;
use self::namespace::Namespace;
use self::pool::Pool;
use self::route::{Router, seed};
use self::session::Session;

/// Shortest interval between requests for the member list.
const AUTO_SYNC_MIN: Duration = Duration::from_millis(100);
/// Delay between the first connection attempts to successive endpoints.
const CONNECT_STAGGER: Duration = Duration::from_millis(100);

/// A connection to a cluster. Cheap to clone: all clones are one client, as are those
/// [with a namespace](Client::with_namespace), [in a trace](Client::with_traceparent), or [with a
/// priority](Client::with_priority).
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
    namespace: Option<Namespace>,
    /// What its requests say of themselves.
    context: RequestContext,
}

#[derive(Debug)]
struct Inner {
    options: ConnectOptions,
    router: Router,
    /// The open session. The lock is held while one is being opened, so that all callers wait for
    /// it.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// The same session, for callers that need not wait.
    opened: arc_swap::ArcSwapOption<Session>,
    /// The channel to the task that renews leases, once that task runs.
    keeping: OnceLock<mpsc::UnboundedSender<kept_lease::Order>>,
    /// Number of lease keepers created so far.
    keepers: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.router.pool().close();
    }
}

impl Client {
    /// Has `recorder` told what all clients of this program do from now on: see [`CLIENT_METRICS`]. To be called before
    /// clients are made: what is open already is not counted. False if a recorder is told already, which it goes on
    /// to be.
    pub fn record_to(recorder: &'static dyn ClientRecorder) -> bool {
        measure::tell(recorder)
    }

    /// Connects to the cluster behind `endpoints` (`host:port`; the default port is 7400). All are
    /// tried, shortly after one another, until one answers: one is enough, connections to the
    /// others are made when they are needed. Without endpoints they are found by DNS, if the options say
    /// so ([`ConnectOptions::with_discovery`]).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), leasehold::api::Error> {
    /// use leasehold::client::{Client, ConnectOptions, TlsOptions};
    /// use std::time::Duration;
    ///
    /// let options = ConnectOptions::new()
    ///     .with_tls(TlsOptions::new().ca_pem_file("client-ca.pem").identity_pem_files("app.pem", "app.key"))
    ///     .with_timeout(Duration::from_secs(5))
    ///     .with_client_name("billing");
    /// let client = Client::connect(["10.0.0.1:7400", "10.0.0.2"], Some(options)).await?;
    /// println!("{:?}", client.endpoints());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no endpoint or no usable certificate is given, or if there
    /// is no tokio runtime;
    /// [`ErrorKind::ConnectFailed`], [`ErrorKind::TlsHandshake`] or [`ErrorKind::ClusterMismatch`]
    /// if no endpoint can be reached, with the reason for each.
    ///
    /// # Cancel safety
    /// Safe: the attempt is abandoned.
    pub async fn connect(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
        options: Option<ConnectOptions>,
    ) -> Result<Self, Error> {
        let options = options.unwrap_or_default();
        let endpoints = endpoints
            .into_iter()
            .map(|endpoint| with_port(&endpoint.into()))
            .collect::<Result<Vec<_>, _>>()?;
        let endpoints = match &options.discovery {
            Some(discovery) if endpoints.is_empty() => {
                require_runtime()?;
                discovery.endpoints_within(options.connect_timeout).await?
            }
            _ => endpoints,
        };
        if endpoints.is_empty() {
            return Err(invalid("no endpoint was given: name at least one node"));
        }
        let Some(tls) = &options.tls else {
            return Err(invalid(
                "no certificates were given: connections are always mutually authenticated; add \
                 them with ConnectOptions::with_tls",
            ));
        };
        let tls = tls.load()?;
        require_runtime()?;
        watch_clock();
        let limits = FrameLimits::of(&options.limits);
        let endpoint = Endpoint::client(&tls, limits, Arc::new(TransportStats::default()))
            .map_err(|error| Error::not_applied(ErrorKind::InvalidArgument, error.to_string()))?;
        let pool = Pool::new(
            endpoint,
            Credentials::new(options.tls.clone().unwrap_or_default()),
            tls.cluster_id(),
            options.client_name.clone(),
            limits,
            options.connect_timeout,
            options.login.clone().map(Login::new),
        );
        let router = Router::new(
            pool,
            endpoints,
            options.retry,
            (options.monotonic, options.spans),
            seed(),
        );
        let client = Self {
            inner: Arc::new(Inner {
                options,
                router,
                session: tokio::sync::Mutex::default(),
                opened: arc_swap::ArcSwapOption::empty(),
                keeping: OnceLock::new(),
                keepers: AtomicU64::new(1),
            }),
            namespace: None,
            context: RequestContext::default(),
        };
        client.reach_one().await?;
        let interval = client.inner.options.auto_sync_interval;
        if !interval.is_zero() {
            let known_by = Arc::downgrade(&client.inner);
            tokio::spawn(keep_in_sync(known_by, interval.max(AUTO_SYNC_MIN)));
        }
        Ok(client)
    }

    /// The endpoints passed to [`Client::connect`], with ports filled in.
    pub fn endpoints(&self) -> &[String] {
        self.inner.router.endpoints()
    }

    /// Statistics of the connection to one of the endpoints, if there is one.
    #[allow(dead_code, reason = "the command line alone asks")]
    pub(crate) fn path(&self, endpoint: &str) -> Option<ConnectionFacts> {
        let endpoint = with_port(endpoint).ok()?;
        let link = self.inner.router.pool().usable(&endpoint)?;
        Some(link.facts())
    }

    /// The leader of the cluster, as far as this client knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.inner.router.leader().and_then(|leader| leader.id)
    }

    /// Closes the connections of all clones and notifies the servers. Pending requests fail, and so
    /// do later ones. Dropping the last clone does the same without waiting.
    ///
    /// ```
    /// # leasehold::client::examples::run(async |client| {
    /// let other = client.clone();
    /// client.close().await;
    /// assert!(other.get("color", None).await.is_err(), "all clones are one client");
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Cancel safety
    /// Safe: everything is closed at once, only the wait is abandoned.
    pub async fn close(&self) {
        let farewells = self.inner.router.pool().close();
        // Each takes one turn of its connection's task. A node that is gone is not waited for.
        let _ = tokio::time::timeout(Duration::from_secs(1), farewells.sent()).await;
    }

    async fn reach_one(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let deadline = deadline_after(inner.options.connect_timeout);
        let mut waiting = inner.router.endpoints().iter();
        let mut calls = JoinSet::new();
        let mut failures: Vec<Error> = Vec::new();
        loop {
            match waiting.next() {
                Some(endpoint) => {
                    let pool = Arc::clone(inner.router.pool());
                    let endpoint = endpoint.clone();
                    calls.spawn(async move {
                        let link = pool.link(&endpoint, deadline).await?;
                        Ok((endpoint, link))
                    });
                }
                None if calls.is_empty() => return Err(unreachable_cluster(failures)),
                None => {}
            }
            let patience = if waiting.len() == 0 {
                // Each call ends at its deadline by itself.
                Duration::from_secs(60)
            } else {
                CONNECT_STAGGER
            };
            match tokio::time::timeout(patience, calls.join_next()).await {
                Ok(Some(Ok(Ok((endpoint, link))))) => {
                    inner.router.greeted(&endpoint, &link);
                    return Ok(());
                }
                Ok(Some(Ok(Err(error)))) => failures.push(error),
                // A call that was cancelled with its runtime, or one that is still running.
                Ok(Some(Err(_)) | None) | Err(_) => {}
            }
        }
    }
}

/// Requests the member list at each interval, for as long as the client exists.
async fn keep_in_sync(client: Weak<Inner>, interval: Duration) {
    let mut wait = interval;
    loop {
        tokio::time::sleep(wait).await;
        let Some(inner) = client.upgrade() else {
            return;
        };
        let router = &inner.router;
        if router.pool().is_closed() {
            return;
        }
        router.sync();
        wait = router.jittered(interval);
    }
}

/// Leases of a client end by the same clock. One without such a device, or that may not ask it, has nothing
/// better than the clock alone.
fn watch_clock() {
    if clock::disruptions().is_none() {
        let _ = clock::watch_vm_clock(Path::new(clock::VM_CLOCK_DEVICE));
    }
}

fn require_runtime() -> Result<(), Error> {
    match tokio::runtime::Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(invalid(
            "a client needs a tokio runtime: call connect inside one that has I/O and time enabled",
        )),
    }
}

/// The most serious failure first: the one that an operator can act on.
fn unreachable_cluster(mut failures: Vec<Error>) -> Error {
    // Who is refused has reached a node: every other would say the same.
    if let Some(refusal) = failures.iter().find(|error| login::is_about_who(error)) {
        return refusal.clone();
    }
    failures.sort_by_key(|error| match error.kind {
        ErrorKind::ClusterMismatch => 0,
        ErrorKind::TlsHandshake => 1,
        ErrorKind::Unsupported | ErrorKind::InvalidArgument => 2,
        _ => 3,
    });
    let kind = failures
        .first()
        .map_or(ErrorKind::ConnectFailed, |error| error.kind.clone());
    let mut reasons: Vec<&str> = failures.iter().map(|error| error.detail.as_str()).collect();
    reasons.dedup();
    Error::not_applied(
        kind,
        format!("no endpoint can be reached: {}", reasons.join("; ")),
    )
}
