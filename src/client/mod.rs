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
//! One [`Client`] serves any number of tasks: it is cheap to clone, every method takes `&self`,
//! and all requests to a node share one connection, on which they are gathered into few packets.
//! It needs a tokio runtime with its I/O and time enabled.
//!
//! Every request has a deadline, two seconds unless told otherwise, and it covers everything:
//! finding the leader, retries, waits. When a request fails, its error says what became of it
//! ([`Error::outcome`]): *not applied*, *applied* or *unknown*. `Ok` of a write means that it is
//! committed.
//!
//! # Dropped futures
//!
//! Any future of this module may be dropped at any time; nothing breaks. But a request that was
//! sent stays sent: a write whose future was dropped may take effect, as one with outcome
//! *unknown* may.

mod auth;
mod credentials;
mod fence;
mod lease;
mod lease_keeper;
mod link;
mod login;
mod members;
mod options;
mod pool;
mod range_stream;
pub mod recipes;
mod response;
mod route;
mod session;
mod snapshot;
mod txn;
mod watch;

#[cfg(test)]
#[cfg(feature = "cli")]
mod tests;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::Consistency;
use crate::api::DeleteRangeRequest;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::LeaderLeaseReport;
use crate::api::Outcome;
use crate::api::PutRequest;
use crate::api::RangeRequest;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::api::ResponseHeader;
use crate::api::validate;
use crate::transport::Endpoint;
use crate::transport::TransportStats;
use crate::types::NodeId;
use crate::wire::FrameLimits;
use crate::wire::point::PointCall;
use crate::wire::point::Wanted;

pub use auth::AuthClient;
pub use auth::AuthToken;
pub use lease::LeaseClient;
pub use lease::LeaseGrantOptions;
pub use lease::LeaseListOptions;
pub use lease::TimeToLiveOptions;
pub use lease_keeper::KeepAliveEvent;
pub use lease_keeper::LeaseKeeper;
pub use lease_keeper::LostCause;
pub use options::CompactionOptions;
pub use options::ConnectOptions;
pub use options::DeleteOptions;
pub use options::GetOptions;
pub use options::PutOptions;
pub use options::RetryPolicy;
pub use options::TlsOptions;
pub use options::TxnOptions;
pub use range_stream::RangeStream;
pub use response::CasResponse;
pub use response::CompactionResponse;
pub use response::DeleteResponse;
pub use response::GetResponse;
pub use response::PutResponse;
pub use response::StatusResponse;
pub use response::TxnResponse;
pub use snapshot::SnapshotOptions;
pub use snapshot::SnapshotStream;
pub use watch::WatchEvent;
pub use watch::WatchOptions;
pub use watch::Watcher;

use self::credentials::Credentials;
use self::login::Login;
use self::pool::Pool;
use self::route::Errand;
use self::route::Failed;
use self::route::Router;
use self::route::Tried;
use self::route::describe;
use self::route::in_time;
use self::session::Session;
use self::session::Ticket;

/// Where clients are listened to unless an endpoint says otherwise.
const DEFAULT_PORT: u16 = 7400;
/// Between the first calls to several endpoints.
const CONNECT_STAGGER: Duration = Duration::from_millis(100);
/// Sessions that a single write may find forgotten before it gives up.
const SESSIONS_MAX: u32 = 3;

/// A connection to a cluster. Cheap to clone: all clones are one client.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ConnectOptions,
    router: Router,
    /// The open session; the lock is held while one is being opened, so that all wait for it.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// The same, for everyone who need not wait.
    opened: arc_swap::ArcSwapOption<Session>,
    /// The way to the task that renews leases, once there is one.
    keeping: OnceLock<mpsc::UnboundedSender<lease_keeper::Order>>,
    /// How many keepers of leases there have been.
    keepers: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.router.pool().close();
    }
}

impl Client {
    /// Connects to the cluster behind `endpoints` (`host:port`; port 7400 if left out). All are
    /// tried, shortly after one another, until one answers: one is enough, the others are found
    /// when they are needed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if no endpoint or no usable certificate is given, or there
    /// is no tokio runtime;
    /// [`ErrorKind::ConnectFailed`], [`ErrorKind::TlsHandshake`] or
    /// [`ErrorKind::ClusterMismatch`] if none can be reached, with the reason of each.
    ///
    /// # Cancel safety
    /// Safe: the attempt is given up.
    pub async fn connect(
        endpoints: impl IntoIterator<Item = impl Into<String>>,
        options: Option<ConnectOptions>,
    ) -> Result<Self, Error> {
        let options = options.unwrap_or_default();
        let endpoints = endpoints
            .into_iter()
            .map(|endpoint| with_port(&endpoint.into()))
            .collect::<Result<Vec<_>, _>>()?;
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
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(invalid(
                "a client needs a tokio runtime: call connect from inside one, with I/O and time \
                 enabled",
            ));
        }
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
        let router = Router::new(pool, endpoints, options.retry, seed());
        let client = Self {
            inner: Arc::new(Inner {
                options,
                router,
                session: tokio::sync::Mutex::default(),
                opened: arc_swap::ArcSwapOption::empty(),
                keeping: OnceLock::new(),
                keepers: AtomicU64::new(1),
            }),
        };
        client.reach_one().await?;
        Ok(client)
    }

    /// Reads a key, or a range of keys.
    ///
    /// # Errors
    /// Outcome always *not applied*. [`ErrorKind::Compacted`] or [`ErrorKind::FutureRevision`] if
    /// the revision asked for cannot be read; [`ErrorKind::DeadlineExceeded`] and the kinds that
    /// [`Error::is_retryable`] knows, once the deadline leaves no time for a retry.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn get(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<GetOptions>,
    ) -> Result<GetResponse, Error> {
        let options = options.unwrap_or_default();
        let key = match options.all_keys {
            true => &[],
            false => key.as_ref(),
        };
        let asked = &options.request;
        let defaults = &self.inner.options;
        let consistency = options.consistency.unwrap_or(defaults.consistency);
        let timeout = options.timeout.unwrap_or(defaults.timeout);
        let deadline = in_time(timeout);
        let is_plain = asked.is_point()
            && consistency != Consistency::Serializable
            && !key.is_empty()
            && key.len() <= defaults.limits.key_bytes_max;
        let mut first = None;
        if is_plain {
            let mut call = PointCall {
                timeout_ms: 0,
                consistency,
                min_revision: options.min_revision,
                key,
                wanted: Wanted::of(asked.keys_only, asked.count_only),
                limit: asked.limit,
            };
            match self
                .inner
                .router
                .try_point(&mut call, timeout, deadline)
                .await
            {
                Tried::Found(found) => return Ok(found.into()),
                Tried::Failed(attempt) => first = Some(attempt),
                Tried::Not => {}
            }
        }
        let request = Request::Range(RangeRequest {
            key: Bytes::copy_from_slice(key),
            ..options.request
        });
        validate(&request, &defaults.limits)?;
        let errand = Errand {
            request,
            consistency,
            min_revision: options.min_revision,
            ticket: None,
            timeout,
            only: None,
        };
        // In a box, so that the future of the shortest way is a small one.
        let rest = Box::pin(self.inner.router.run_after(errand, deadline, first));
        let (header, body) = rest.await.map(parts).map_err(|failed| failed.error)?;
        match body {
            ResponseBody::Range(range) => Ok(GetResponse {
                header,
                kvs: range.kvs,
                more: range.more,
                count: range.count,
            }),
            other => Err(senseless(&other, Outcome::NotApplied)),
        }
    }

    /// Writes a key. `Ok` means that the write is committed.
    ///
    /// # Errors
    /// As [`Client::get`], and the outcome says whether the write may have taken effect all the
    /// same. [`ErrorKind::Fenced`] if a fence of the options does not stand any more.
    ///
    /// # Cancel safety
    /// Nothing breaks, but the write may take effect after the future was dropped.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: Option<PutOptions>,
    ) -> Result<PutResponse, Error> {
        let options = options.unwrap_or_default();
        let put = PutRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            value: value.into(),
            prev_kv: options.prev_kv,
            ignore_value: options.ignore_value,
            ignore_lease: options.ignore_lease,
            lease: options.lease,
        };
        let (header, put) = match options.fences.as_slice() {
            [] => match self.write(Request::Put(put), options.timeout).await? {
                (header, ResponseBody::Put(put)) => (header, put),
                (_, other) => return Err(senseless(&other, Outcome::Unknown)),
            },
            fences => self.fenced_put(fences, put, options.timeout).await?,
        };
        Ok(PutResponse {
            header,
            prev_kv: put.prev_kv,
        })
    }

    /// Deletes a key, or a range of keys. Deleting what is not there succeeds, with a count of 0.
    ///
    /// # Errors
    /// As [`Client::put`].
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn delete(
        &self,
        key: impl AsRef<[u8]>,
        options: Option<DeleteOptions>,
    ) -> Result<DeleteResponse, Error> {
        let options = options.unwrap_or_default();
        let delete = DeleteRangeRequest {
            key: Bytes::copy_from_slice(key.as_ref()),
            range: options.range,
            prev_kv: options.prev_kv,
        };
        let (header, delete) = match options.fences.as_slice() {
            [] => match self
                .write(Request::DeleteRange(delete), options.timeout)
                .await?
            {
                (header, ResponseBody::DeleteRange(delete)) => (header, delete),
                (_, other) => return Err(senseless(&other, Outcome::Unknown)),
            },
            fences => self.fenced_delete(fences, delete, options.timeout).await?,
        };
        Ok(DeleteResponse {
            header,
            deleted: delete.deleted,
            prev_kvs: delete.prev_kvs,
        })
    }

    /// Asks one node how it is: the one at `endpoint`, whether or not this client was given it.
    ///
    /// # Errors
    /// The node cannot be reached within the default timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn status(&self, endpoint: impl Into<String>) -> Result<StatusResponse, Error> {
        let endpoint = with_port(&endpoint.into())?;
        let errand = Errand {
            request: Request::Status,
            consistency: Consistency::Serializable,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: Some(&endpoint),
        };
        let (header, body) = parts(self.inner.router.run(errand).await.map_err(|f| f.error)?);
        match body {
            ResponseBody::Status(status) => Ok(StatusResponse {
                header,
                status: *status,
            }),
            other => Err(senseless(&other, Outcome::NotApplied)),
        }
    }

    /// Asks one node what the leader lease depends on, as that node measures it: the one at
    /// `endpoint`, whether or not this client was given it.
    ///
    /// # Errors
    /// The node cannot be reached within the default timeout.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leader_lease_report(
        &self,
        endpoint: impl Into<String>,
    ) -> Result<LeaderLeaseReport, Error> {
        let endpoint = with_port(&endpoint.into())?;
        let errand = Errand {
            request: Request::LeaderLeaseReport,
            consistency: Consistency::Serializable,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: Some(&endpoint),
        };
        let (_, body) = parts(self.inner.router.run(errand).await.map_err(|f| f.error)?);
        match body {
            ResponseBody::LeaderLeaseReport(report) => Ok(*report),
            other => Err(senseless(&other, Outcome::NotApplied)),
        }
    }

    /// Has the leader hand leadership over: to `target`, or to the most up to date voter.
    ///
    /// # Errors
    /// Outcome *unknown* if the answer got lost: ask a node for its status.
    ///
    /// # Cancel safety
    /// Nothing breaks, but leadership may move after the future was dropped.
    pub async fn move_leader(&self, target: Option<NodeId>) -> Result<ResponseHeader, Error> {
        let errand = Errand {
            request: Request::MoveLeader { target },
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: None,
        };
        let (header, body) = parts(self.inner.router.run(errand).await.map_err(|f| f.error)?);
        match body {
            ResponseBody::MoveLeader => Ok(header),
            other => Err(senseless(&other, Outcome::Unknown)),
        }
    }

    /// Sends a request that the caller has put together, by the same rules as the methods above,
    /// which are made for people. `consistency` is ignored by writes.
    ///
    /// # Errors
    /// As [`Client::get`] and [`Client::put`]; [`ErrorKind::Unsupported`] for what is no affair of
    /// a whole cluster (a status) or of a caller (a session).
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn call(
        &self,
        request: Request,
        consistency: Consistency,
    ) -> Result<Response, Error> {
        let (header, body) = match request {
            Request::Range(_)
            | Request::RangePage(_)
            | Request::LeaseTimeToLive { .. }
            | Request::LeaseList(_)
            | Request::MemberList => self.read(request, consistency, 0, None).await?,
            Request::Txn(ref txn) if txn.is_read_only() => {
                self.read(request, consistency, 0, None).await?
            }
            Request::Auth(ref auth) if auth.is_read() => {
                self.read(request, consistency, 0, None).await?
            }
            Request::Auth(ref auth) if auth.is_write() => self.write(request, None).await?,
            Request::Put(_)
            | Request::DeleteRange(_)
            | Request::Compact(_)
            | Request::Txn(_)
            | Request::LeaseGrant(_)
            | Request::LeaseRevoke(_)
            | Request::LeaseUpdateTtl { .. }
            | Request::PutWithNewLease(..) => self.write(request, None).await?,
            Request::LeaseKeepAlive(leases) => {
                let kept = self.renew(leases, self.inner.options.timeout).await?;
                let header = ResponseHeader {
                    leader_id: self.leader(),
                    ..ResponseHeader::default()
                };
                (header, ResponseBody::LeaseKeepAlive(kept))
            }
            Request::MoveLeader { target } => {
                (self.move_leader(target).await?, ResponseBody::MoveLeader)
            }
            Request::MemberAdd(_)
            | Request::MemberRemove { .. }
            | Request::MemberPromote { .. }
            | Request::MemberUpdate(_) => {
                let members = self.change_members(request).await?;
                let header = ResponseHeader {
                    leader_id: self.leader(),
                    ..ResponseHeader::default()
                };
                (header, ResponseBody::Members(Box::new(members)))
            }
            Request::OpenSession
            | Request::Status
            | Request::LeaderLeaseReport
            | Request::Snapshot(_)
            | Request::Watch { .. }
            | Request::WatchCancel { .. }
            | Request::WatchProgress { .. }
            | Request::Auth(_) => {
                return Err(Error::not_applied(
                    ErrorKind::Unsupported,
                    format!(
                        "`{}` is not asked of a cluster: see Client::status, \
                         Client::leader_lease_report and Client::snapshot",
                        request.method()
                    ),
                ));
            }
        };
        Ok(Response { header, body })
    }

    /// Sends a request to the node at `endpoint` and to no other, whoever leads, whether or not
    /// this client was given it: for measuring single nodes. A write carries no number, so it is
    /// not repeated where it might be applied twice.
    ///
    /// # Errors
    /// As [`Client::call`]; of a node that does not lead, [`ErrorKind::NotLeader`] for all that
    /// only a leader may do.
    ///
    /// # Cancel safety
    /// As [`Client::put`].
    pub async fn call_at(
        &self,
        endpoint: impl Into<String>,
        request: Request,
        consistency: Consistency,
    ) -> Result<Response, Error> {
        let endpoint = with_port(&endpoint.into())?;
        validate(&request, &self.inner.options.limits)?;
        let errand = Errand {
            request,
            consistency,
            min_revision: 0,
            ticket: None,
            timeout: self.inner.options.timeout,
            only: Some(&endpoint),
        };
        let response = self.inner.router.run(errand).await;
        response.map_err(|failed| failed.error)
    }

    /// The endpoints this client was given, ports filled in.
    pub fn endpoints(&self) -> &[String] {
        self.inner.router.endpoints()
    }

    /// Who led the cluster when this client last heard of it.
    pub fn leader(&self) -> Option<NodeId> {
        self.inner.router.leader().and_then(|leader| leader.id)
    }

    /// Closes all connections, of all clones, and tells the servers so. Requests under way fail,
    /// later ones too. Dropping the last clone does the same without waiting.
    ///
    /// # Cancel safety
    /// Safe: everything is closed at once, only the wait is given up.
    pub async fn close(&self) {
        let pool = self.inner.router.pool();
        pool.close();
        // Bounded by the protocol: three round trips to the slowest of the servers.
        let _ = tokio::time::timeout(Duration::from_secs(1), pool.wait_idle()).await;
    }

    async fn reach_one(&self) -> Result<(), Error> {
        let inner = &self.inner;
        let deadline = in_time(inner.options.connect_timeout);
        let mut waiting = inner.router.endpoints().iter();
        let mut calls = JoinSet::new();
        let mut failures: Vec<Error> = Vec::new();
        loop {
            match waiting.next() {
                Some(endpoint) => {
                    let pool = Arc::clone(inner.router.pool());
                    let endpoint = endpoint.clone();
                    calls.spawn(async move { pool.link(&endpoint, deadline).await });
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
                Ok(Some(Ok(Ok(_)))) => return Ok(()),
                Ok(Some(Ok(Err(error)))) => failures.push(error),
                // A call that was cut off with its runtime, or one that takes its time.
                Ok(Some(Err(_)) | None) | Err(_) => {}
            }
        }
    }

    async fn read(
        &self,
        request: Request,
        consistency: Consistency,
        min_revision: i64,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, ResponseBody), Error> {
        let options = &self.inner.options;
        validate(&request, &options.limits)?;
        let errand = Errand {
            request,
            consistency,
            min_revision,
            ticket: None,
            timeout: timeout.unwrap_or(options.timeout),
            only: None,
        };
        let response = self.inner.router.run(errand).await;
        response.map(parts).map_err(|failed| failed.error)
    }

    async fn write(
        &self,
        request: Request,
        timeout: Option<Duration>,
    ) -> Result<(ResponseHeader, ResponseBody), Error> {
        let options = &self.inner.options;
        validate(&request, &options.limits)?;
        let timeout = timeout.unwrap_or(options.timeout);
        let deadline = in_time(timeout);
        let mut sessions = 0;
        loop {
            let left = deadline.saturating_duration_since(in_time(Duration::ZERO));
            let ticket = if options.exactly_once {
                Some(self.number(left).await?)
            } else {
                None
            };
            let left = deadline.saturating_duration_since(in_time(Duration::ZERO));
            let errand = Errand {
                request: request.clone(),
                consistency: Consistency::Linearizable,
                min_revision: 0,
                ticket: ticket.as_ref(),
                timeout: left,
                only: None,
            };
            let failed = match self.inner.router.run(errand).await {
                Ok(response) => return Ok(parts(response)),
                Err(failed) => failed,
            };
            let Some(ticket) = ticket else {
                return Err(failed.error);
            };
            sessions += 1;
            match self.after_failure(failed, &ticket, sessions).await {
                None => {}
                Some(error) => return Err(error),
            }
        }
    }

    /// What to do about a write that failed: `None` means that it was certainly not applied,
    /// because its session was unknown from its first attempt on, and may start over in a new one.
    async fn after_failure(&self, failed: Failed, ticket: &Ticket, sessions: u32) -> Option<Error> {
        let Failed {
            error,
            unknown_before,
        } = failed;
        if error.kind != ErrorKind::SessionExpired {
            return Some(error);
        }
        self.forget_session(ticket.session()).await;
        if unknown_before {
            // An earlier attempt may have been applied before the session was forgotten.
            return Some(Error {
                outcome: Outcome::Unknown,
                detail: format!(
                    "{}: {} may have been applied before; read before you repeat it",
                    error.detail,
                    describe(ticket.call())
                ),
                ..error
            });
        }
        let error = Error {
            outcome: Outcome::NotApplied,
            ..error
        };
        (sessions >= SESSIONS_MAX).then_some(error)
    }

    /// The number of a new write, in a session that is opened if there is none.
    async fn number(&self, timeout: Duration) -> Result<Ticket, Error> {
        if let Some(session) = &*self.inner.opened.load() {
            return Ok(session.number());
        }
        let deadline = in_time(timeout);
        let waiting = tokio::time::timeout_at(deadline, self.inner.session.lock());
        let Ok(mut open) = waiting.await else {
            return Err(Error::not_applied(
                ErrorKind::DeadlineExceeded,
                "no session could be opened in time; the write was not sent",
            ));
        };
        if let Some(session) = &*open {
            return Ok(session.number());
        }
        let errand = Errand {
            request: Request::OpenSession,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            ticket: None,
            timeout: deadline.saturating_duration_since(in_time(Duration::ZERO)),
            only: None,
        };
        // Whatever became of the session, the write itself was not sent.
        let response = self
            .inner
            .router
            .run(errand)
            .await
            .map_err(|failed| Error {
                outcome: Outcome::NotApplied,
                detail: format!("no session could be opened: {}", failed.error.detail),
                kind: failed.error.kind,
            })?;
        let ResponseBody::OpenSession { id } = response.body else {
            return Err(senseless(&response.body, Outcome::NotApplied));
        };
        let session = Session::new(id);
        *open = Some(Arc::clone(&session));
        self.inner.opened.store(Some(Arc::clone(&session)));
        Ok(session.number())
    }

    /// Forgets a session that the cluster has forgotten, unless there is a newer one already.
    async fn forget_session(&self, gone: &Arc<Session>) {
        let mut open = self.inner.session.lock().await;
        if open
            .as_ref()
            .is_some_and(|session| session.id() == gone.id())
        {
            *open = None;
            self.inner.opened.store(None);
        }
    }
}

fn parts(response: Response) -> (ResponseHeader, ResponseBody) {
    (response.header, response.body)
}

fn invalid(detail: &str) -> Error {
    Error::not_applied(ErrorKind::InvalidArgument, detail)
}

/// A reply of another shape than its request calls for.
fn senseless(body: &ResponseBody, outcome: Outcome) -> Error {
    let shape = match body {
        ResponseBody::Range(_) => "range",
        ResponseBody::Put(_) => "put",
        ResponseBody::DeleteRange(_) => "delete",
        ResponseBody::OpenSession { .. } => "session",
        ResponseBody::Status(_) => "status",
        ResponseBody::MoveLeader => "move-leader",
        ResponseBody::Compact => "compact",
        ResponseBody::LeaderLeaseReport(_) => "leader-lease-report",
        ResponseBody::Txn(_) => "transaction",
        ResponseBody::LeaseGrant(_) => "lease-grant",
        ResponseBody::LeaseRevoke(_) => "lease-revoke",
        ResponseBody::LeaseKeepAlive(_) => "lease-keep-alive",
        ResponseBody::LeaseTimeToLive(_) => "lease-time-to-live",
        ResponseBody::LeaseList(_) => "lease-list",
        ResponseBody::LeaseUpdateTtl { .. } => "lease-update-ttl",
        ResponseBody::PutWithNewLease(_) => "put-with-new-lease",
        ResponseBody::RangePage(_) => "page",
        ResponseBody::Watch => "watch",
        ResponseBody::WatchCancel => "watch-cancel",
        ResponseBody::WatchProgress => "watch-progress",
        ResponseBody::Snapshot(_) => "snapshot",
        ResponseBody::Members(_) => "member",
        ResponseBody::Auth(_) => "auth",
    };
    Error {
        kind: ErrorKind::Internal,
        outcome,
        detail: format!("the server answered with a {shape} reply to another request"),
    }
}

/// The worst news first: what a person can do something about.
fn unreachable_cluster(mut failures: Vec<Error>) -> Error {
    failures.sort_by_key(|error| match error.kind {
        ErrorKind::ClusterMismatch => 0,
        ErrorKind::TlsHandshake | ErrorKind::Unauthenticated | ErrorKind::TokenExpired => 1,
        ErrorKind::Unsupported | ErrorKind::InvalidArgument => 2,
        _ => 3,
    });
    let kind = failures
        .first()
        .map_or(ErrorKind::ConnectFailed, |error| error.kind.clone());
    let reasons: Vec<&str> = failures.iter().map(|error| error.detail.as_str()).collect();
    Error::not_applied(
        kind,
        format!("no endpoint can be reached: {}", reasons.join("; ")),
    )
}

fn with_port(endpoint: &str) -> Result<String, Error> {
    let endpoint = endpoint.trim();
    let valid = !endpoint.is_empty()
        && !endpoint.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ',' | '@'));
    if !valid {
        return Err(invalid(&format!(
            "{endpoint:?} is no endpoint: give host:port, such as n1.example:7400"
        )));
    }
    let (host, port) = match endpoint.rsplit_once(':') {
        // An IPv6 address without a port has colons and no bracket at its end.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (endpoint, None),
    };
    match port {
        Some(port) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(endpoint.to_string())
        }
        Some(_) => Err(invalid(&format!(
            "{endpoint:?} is no endpoint: give host:port, with a port from 1 to 65535"
        ))),
        None if host.contains(':') && !host.starts_with('[') => {
            Ok(format!("[{host}]:{DEFAULT_PORT}"))
        }
        None => Ok(format!("{host}:{DEFAULT_PORT}")),
    }
}

/// Differs from client to client, so that they do not retry in step.
fn seed() -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "only spreads retries; nothing depends on it"
    )]
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let nanos = since_1970.map_or(0, |elapsed| elapsed.as_nanos());
    let mut bytes = nanos.to_le_bytes().to_vec();
    bytes.extend_from_slice(&std::process::id().to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

#[cfg(test)]
mod endpoint_tests {
    use super::*;

    #[test]
    fn endpoints_get_the_default_port_and_nonsense_is_refused() {
        for (given, expected) in [
            ("n1", "n1:7400"),
            (" n1:7410 ", "n1:7410"),
            ("10.0.0.1", "10.0.0.1:7400"),
            ("::1", "[::1]:7400"),
            ("[::1]", "[::1]:7400"),
            ("[::1]:7410", "[::1]:7410"),
        ] {
            assert_eq!(with_port(given).unwrap(), expected);
        }
        for bad in [
            "",
            " ",
            "n1:",
            "n1:0",
            "n1:99999",
            ":7400",
            "http://n1:7400",
            "n1,n2",
        ] {
            let error = with_port(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{bad:?}");
        }
    }
}
