//! Client connections: decode a batch, answer what may be answered here, hand on the rest.
//!
//! Each stream has a task, [`stream`], that takes in what has arrived as closed batches. Reads of
//! one key that the lease covers live and end in [`leased`]: no other thread, no peer and no disk
//! write takes part. Reads of many keys run beside, in [`scans`]; everything else, and whatever the
//! lease does not cover, goes to the driver and comes back through the stream's
//! [`Outbox`](crate::server::mail::outbox::Outbox).
//!
//! What a client can make a node hold is bounded: requests by connection and, by how much they matter,
//! by node ([`admission`](crate::server::session::admission)), bytes by both ([`budget`](crate::server::session::budget)), replies by what is written before more is taken in.
//! What a request holds of the node it gives back when its work is done, whether or not the client reads
//! the answer, and keeps until then, whether or not the client is still there. Whoever reads nothing
//! loses his stream.

pub(crate) mod admission;
pub(crate) mod auth;
mod blocking_task;
pub(crate) mod budget;
pub(crate) mod exports;
mod inside;
mod lease_query;
pub(crate) mod origins;
mod phases;
mod point_read;
mod scan;
mod slow_log;
mod status;
mod stream;
pub(crate) mod traces;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::disk::store::{StateReader, StoreError};
use super::mail::Mailbox;
use super::metrics::{AuthFailure, Metrics, Sampler};
use crate::api::{Error, ErrorKind, Limits, ResponseHeader};
use crate::node::{Answer, Reader};
use crate::raft;
use crate::raft::{Published, Timing};
use crate::server::disk::gc_thread::GcProgress;
use crate::server::disk::quota::Room;
use crate::server::session::admission::Backlog;
use crate::server::session::auth::{Access, Audit, Principal};
use crate::server::session::budget::{ByteBudget, InFlight, SCANS_PER_CONNECTION_MAX};
use crate::server::session::exports::Exports;
use crate::server::session::origins::Origins;
use crate::server::session::traces::Traces;
use crate::server::status::directory::Directory;
use crate::server::status::integrity::Integrity;
use crate::server::status::lease_stats::LeaseStats;
use crate::server::watch;
use crate::server::watch::{WatchSender, Watches};
use crate::time::Clock;
use crate::transport::{ClientConnection, ClientListener};
use crate::types::{ClusterId, NodeId};
use crate::wire::FrameLimits;

pub(crate) use slow_log::SlowLog;
pub(crate) use status::StorageSize;

/// Scans that may run at the same time on one node; more wait their turn.
const SCANS_MAX: usize = 4;
/// Renewals for which it may be looked up at the same time whose leases they are. They never wait for
/// scans, which may take long: a lease could be over meanwhile.
const KEEP_ALIVES_MAX: usize = 4;

/// What every session of a node shares.
pub(crate) struct Sessions {
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: NodeId,
    pub(crate) name: String,
    pub(crate) limits: Limits,
    pub(crate) frame_limits: FrameLimits,
    /// Requests of one connection that may be outstanding; its streams are not read beyond.
    pub(crate) in_flight_max: usize,
    /// Bytes that all connections may make this node hold; beyond, requests are refused.
    pub(crate) budget: Arc<ByteBudget>,
    /// The same, of one connection.
    pub(crate) connection_bytes_max: usize,
    /// The requests of all connections that wait here.
    pub(crate) backlog: Arc<Backlog>,
    /// How much room there is for data.
    pub(crate) room: Arc<Room>,
    pub(crate) reader: Reader,
    pub(crate) store: StateReader,
    pub(crate) storage_size: StorageSize,
    /// The store may be read: it was closed cleanly, or its content has been verified.
    pub(crate) readable: Arc<AtomicBool>,
    pub(crate) published: Arc<Published>,
    pub(crate) status: Arc<ArcSwap<raft::Status>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) watches: Arc<Watches>,
    /// Who may do what.
    pub(crate) access: Access,
    /// Where it is written down who did what.
    pub(crate) audit: Option<Audit>,
    /// New work is refused: the node is stopping.
    pub(crate) stopping: AtomicBool,
    pub(crate) scans: Arc<Semaphore>,
    /// Where renewals wait whose owner has to be looked up.
    pub(crate) keep_alives: Arc<Semaphore>,
    /// Snapshots that clients are fetching.
    pub(crate) exports: Arc<Exports>,
    /// Whose state they are.
    pub(crate) origins: Arc<Origins>,
    /// Emptied, this node would found a cluster by itself: so it takes in no members.
    pub(crate) bootstraps_alone: bool,
    /// What the lease rests on.
    pub(crate) timing: Timing,
    /// How well the lease is kept alive.
    pub(crate) lease_stats: Arc<LeaseStats>,
    pub(crate) lease_duration: Duration,
    pub(crate) lease_enabled: bool,
    /// Requests handed to the driver or to a scan and not answered yet, of all connections.
    pub(crate) in_flight: AtomicUsize,
    /// How far compacted history is gone from this node.
    pub(crate) removed: Arc<GcProgress>,
    /// Whether the state may be served, by what other nodes have.
    pub(crate) integrity: Arc<Integrity>,
    /// What the cluster has agreed on, as far as this node knows.
    pub(crate) cluster_version: Arc<AtomicU16>,
    /// Which requests are told of because they took too long.
    pub(crate) slow: SlowLog,
    /// Which are traced, and where their traces go; `None`: nowhere.
    pub(crate) traces: Option<Traces>,
    /// Which leased reads are measured.
    pub(crate) sampler: Sampler,
    /// What `endpoint status` says while the log is being taken anew.
    pub(crate) quarantine_warning: Option<String>,
    /// Sentences for `endpoint status`.
    pub(crate) warnings: Vec<String>,
    /// Called when the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// What the streams of one connection share.
struct ConnectionState {
    /// Requests that are not answered yet.
    in_flight: InFlight,
    /// Bytes that the connection may make the node hold.
    budget: Arc<ByteBudget>,
    /// Places for scans.
    scans: Arc<Semaphore>,
    /// Sends what its watches are told.
    watch_sender: Arc<WatchSender>,
    /// Who is at the other end.
    principal: Arc<Principal>,
    /// Where that is, or was when it connected.
    address: SocketAddr,
}

/// Ends the watches of a connection with it, however its task ends.
struct WatchGuard {
    watch_sender: Arc<WatchSender>,
    watches: Arc<Watches>,
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.watches.left(self.watch_sender.clone());
    }
}

impl Sessions {
    /// How many scans may run at once.
    pub(crate) fn scan_slots() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(SCANS_MAX))
    }

    /// For how many renewals it may be looked up at once whose leases they are.
    pub(crate) fn keep_alive_slots() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(KEEP_ALIVES_MAX))
    }

    /// Accepts connections until the listener is closed. The connections end with it.
    pub(crate) async fn accept(self: Arc<Self>, listener: Arc<ClientListener>) {
        let mut connections = JoinSet::new();
        while let Some(connection) = listener.accept().await {
            connections.spawn(self.clone().serve_connection(connection));
            while connections.try_join_next().is_some() {}
        }
        while connections.join_next().await.is_some() {}
    }

    async fn serve_connection(self: Arc<Self>, mut connection: ClientConnection) {
        tracing::debug!(
            client = %connection.identity().name(),
            address = %connection.remote_address(),
            "client connected"
        );
        let connection_state = Arc::new(ConnectionState {
            in_flight: InFlight::new(self.in_flight_max),
            budget: ByteBudget::new(self.connection_bytes_max),
            scans: Arc::new(Semaphore::new(SCANS_PER_CONNECTION_MAX)),
            watch_sender: WatchSender::of(connection.connection()),
            principal: Principal::new(
                connection.identity().name(),
                connection.remote_address().ip(),
            ),
            address: connection.remote_address(),
        });
        let watch_sender = connection_state.watch_sender.clone();
        // Ends with this task, as the streams do.
        let mut sending = JoinSet::new();
        sending.spawn(watch::send(
            watch_sender.clone(),
            connection.connection().clone(),
            self.watches.clone(),
            self.metrics.clone(),
        ));
        let _watches = WatchGuard {
            watch_sender,
            watches: self.watches.clone(),
        };
        let mut streams = JoinSet::new();
        while let Ok(stream) = connection.accept_stream().await {
            streams.spawn(stream::serve(
                self.clone(),
                connection_state.clone(),
                stream,
            ));
            while streams.try_join_next().is_some() {}
        }
    }

    /// Requests taken in and not answered yet, those aside that were answered on the spot.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id.short(),
            member_id: self.member_id,
            revision,
            raft_term: self.published.term(),
            leader_id: self.published.leader(),
            read: None,
        }
    }

    fn header_of<T>(&self, answer: &Answer<T>) -> ResponseHeader {
        let mut header = self.header(answer.revision());
        header.read = Some(answer.read());
        // Another may lead by now.
        if let Some((term, leader)) = answer.leadership() {
            header.raft_term = term;
            header.leader_id = leader.or(Some(self.member_id));
        }
        header
    }

    /// A password was not looked at, because others were wrong.
    fn count_rate_limited(&self) {
        self.metrics.auth.failures[AuthFailure::LockedOut].increment(1);
    }

    /// The store failed: this node is over. What whoever asked is told.
    fn fail(&self, error: StoreError) -> Error {
        (self.on_fatal)(error);
        Error::not_applied(
            ErrorKind::Internal,
            "the store of this node failed: use another node",
        )
    }

    /// What is said to whoever wants what only the leader does.
    fn not_leader(&self) -> Error {
        let leader = self.published.leader();
        match leader.filter(|leader| *leader != self.member_id) {
            Some(leader) => self.with_leader_address(Error::not_applied(
                ErrorKind::NotLeader {
                    leader: Some(leader),
                    address: None,
                },
                "this node is not the leader",
            )),
            None => Error::not_applied(
                ErrorKind::NoLeader,
                "no leader is known at the moment: retry shortly",
            ),
        }
    }

    /// Fills in where clients reach the leader: the node knows only who it is.
    fn with_leader_address(&self, error: Error) -> Error {
        let ErrorKind::NotLeader {
            leader: Some(leader),
            address: None,
        } = error.kind
        else {
            return error;
        };
        let member = self.directory.member(leader);
        let detail = match &member {
            Some(member) => format!(
                "this node is not the leader: send the request to {}",
                member.name
            ),
            None => error.detail,
        };
        let address = member
            .map(|member| member.client_address)
            .filter(|address| !address.is_empty());
        Error {
            kind: ErrorKind::NotLeader {
                leader: Some(leader),
                address,
            },
            detail,
            ..error
        }
    }
}

/// What is said to whoever wants to add a member to a cluster that would be bootstrapped anew.
fn bootstraps_alone() -> Error {
    Error::not_applied(
        ErrorKind::UnsafeReconfiguration,
        "this node bootstrapped its cluster alone, and with cluster.state = \"new\" it would do so \
         again if its data directory were ever emptied, next to the members that are added now: \
         set cluster.state = \"existing\" in its configuration and restart it, then add members",
    )
}

fn lease_invalid() -> Error {
    Error::not_applied(
        ErrorKind::LeaseInvalid,
        "the leader has no valid lease at the moment: retry shortly, or allow a quorum read",
    )
}

/// The answer to any request while the node is out of service.
pub(crate) fn stopping() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "this node is stopping: use another node",
    )
}

fn not_readable() -> Error {
    Error::not_applied(
        ErrorKind::Unavailable,
        "this node was not stopped cleanly and is verifying its state: use another node, or retry \
         shortly",
    )
}
