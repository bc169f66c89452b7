//! What all sessions of a node share.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::accounting::Accounting;
use super::storage_size::StorageSize;
use crate::api;
use crate::api::{Class, Consistency, Error, ErrorKind, QuotaStatus};
use crate::kv::{RangeCounts, raised_refusal};
use crate::node::{Captured, Demand, ReadResult, Reader, Source};
use crate::server::disk::gc_thread::GcProgress;
use crate::server::disk::hand_over_thread::AHEAD_BYTES_FULL;
use crate::server::disk::quota::{Room, alarm_text};
use crate::server::disk::store::{Snapshot, StateReader, StoreError};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{ReadFallback, Rejection};
use crate::server::session::admission::Backlog;
use crate::server::session::auth::Access;
use crate::server::session::budget::ByteBudget;
use crate::server::session::exports::Exports;
use crate::server::session::forward::Forwarder;
use crate::server::session::origins::Origins;
use crate::server::session::user_rates::UserRates;
use crate::server::status::node_state::NodeState;
use crate::server::watch::Watches;
use crate::sync::Mutex;
use crate::wire::FrameLimits;

/// Scans that may run at the same time on one node; more wait their turn.
const SCANS_MAX: usize = 4;
/// Renewals whose leases' owners may be looked up at the same time. They do not wait behind scans,
/// which may take longer than a lease has left.
const KEEP_ALIVES_MAX: usize = 4;

/// What every session of a node shares.
pub(crate) struct Sessions {
    pub(crate) node: Arc<NodeState>,
    pub(crate) limits: SessionLimits,
    pub(crate) serving: Serving,
    pub(crate) accounting: Accounting,
    pub(crate) mailbox: Arc<Mailbox>,
    /// Takes requests to the leader, where another node leads.
    pub(crate) forwarder: Option<Forwarder>,
    /// Requests of all connections that wait for the driver, a scan or the watch thread.
    pub(crate) in_flight: AtomicUsize,
    /// Emptied, this node would bootstrap a cluster by itself, so it adds no members.
    pub(crate) bootstraps_alone: bool,
    /// Called when the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// What clients may ask of a node at the same time.
pub(crate) struct SessionLimits {
    pub(crate) requests: api::Limits,
    pub(crate) frames: FrameLimits,
    /// Requests of one connection that may be outstanding; its streams are not read beyond.
    pub(crate) in_flight_max: usize,
    /// Bytes that one connection may make this node hold.
    pub(crate) connection_bytes_max: usize,
    /// Bytes that all connections may make this node hold; beyond, requests are refused.
    pub(crate) budget: Arc<ByteBudget>,
    /// The requests of all connections that wait here.
    pub(crate) backlog: Arc<Backlog>,
    pub(crate) scans: Arc<Semaphore>,
    pub(crate) keep_alives: Arc<Semaphore>,
    /// Requests a second of one user; `None` without a limit.
    pub(crate) user_rates: Option<UserRates>,
}

/// What requests are answered from, and the rules of who may ask.
pub(crate) struct Serving {
    pub(crate) reader: Reader,
    pub(crate) store: StateReader,
    /// Of ranges that were read.
    pub(crate) counts: Mutex<RangeCounts>,
    pub(crate) storage_size: StorageSize,
    /// How much room there is for data.
    pub(crate) room: Arc<Room>,
    /// How far compacted history is gone from this node.
    pub(crate) removed: Arc<GcProgress>,
    pub(crate) access: Access,
    pub(crate) watches: Arc<Watches>,
    /// Snapshots that clients are fetching.
    pub(crate) exports: Arc<Exports>,
    pub(crate) origins: Arc<Origins>,
}

impl Serving {
    /// Whether writes are refused that would make the state grow: by measure, or by an operator's word.
    pub(crate) fn is_no_space(&self) -> bool {
        self.room.is_alarm() || self.store.raised_alarms() > 0
    }

    /// Why, while they are.
    pub(crate) fn space_alarm(&self) -> Option<String> {
        let raised = || {
            let is_raised = self.store.raised_alarms() > 0;
            is_raised.then(|| alarm_text(&raised_refusal()))
        };
        self.room.alarm().or_else(raised)
    }

    /// What an operator must know of the space.
    pub(crate) fn space_warning(&self) -> Option<String> {
        self.space_alarm().or_else(|| self.room.warning())
    }

    /// For `endpoint status`.
    pub(crate) fn quota_status(&self) -> QuotaStatus {
        QuotaStatus {
            bytes: self.room.quota.bytes,
            no_space: self.is_no_space(),
        }
    }
}

impl SessionLimits {
    /// The permits of scans.
    pub(crate) fn scan_permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(SCANS_MAX))
    }

    /// The permits of renewals.
    pub(crate) fn keep_alive_permits() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(KEEP_ALIVES_MAX))
    }
}

impl Sessions {
    /// Requests that wait for an answer, those aside that are answered on the spot.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether one more request of `class` is to wait until the storage engine has more of what was written
    /// before. Renewals and reads never are.
    pub(super) fn check_ahead(&self, class: Class) -> Result<(), Rejection> {
        let is_behind = self.serving.store.ahead_bytes() >= AHEAD_BYTES_FULL;
        match class == Class::Write && is_behind && !planted!(AheadAdmitted) {
            true => Err(Rejection::Storage),
            false => Ok(()),
        }
    }

    /// Sends requests on: to the driver of this node, or, if they may be `forwarded`, to the leader.
    pub(super) fn send(&self, requests: impl IntoIterator<Item = Mail>, forwarded: bool) {
        match self.forwarder.as_ref().filter(|_| forwarded) {
            None => self.mailbox.send_all(requests.into_iter()),
            Some(forwarder) => {
                let own = requests.into_iter().filter_map(|mail| forwarder.send(mail));
                // Not while the mailbox is locked.
                let own: Vec<Mail> = own.collect();
                self.mailbox.send_all(own.into_iter());
            }
        }
    }

    /// The store failed, which ends this node. The refusal of the request that met the failure.
    pub(super) fn fail(&self, error: StoreError) -> Error {
        (self.on_fatal)(error);
        Error::not_applied(
            ErrorKind::Internal,
            "the store of this node failed: use another node",
        )
    }

    /// Takes the steps of a leased read for the one of `captured`, which reads a snapshot.
    pub(super) fn look_at_snapshot(
        &self,
        captured: Captured<&[Demand], Snapshot>,
    ) -> Result<ReadResult<Snapshot>, StoreError> {
        let looked = captured.look(|_| {
            let snapshot = self.serving.store.snapshot();
            snapshot.map(|snapshot| {
                ControlFlow::Break(Source {
                    applied: snapshot.applied().index,
                    revision: snapshot.revision(),
                    found: snapshot,
                })
            })
        })?;
        let mut judged = looked.judge(&*self.node.clock);
        let (_, result) = judged
            .next(&self.serving.reader)
            .expect("one read was captured");
        Ok(result)
    }

    /// The state machine has not reached what a read must see: the read waits at the driver.
    pub(super) fn count_behind(&self, min_revision: i64) {
        let reason = match min_revision > self.serving.store.revision() {
            true => ReadFallback::Revision,
            false => ReadFallback::Behind,
        };
        self.count_fallback(reason);
    }

    /// The lease of this leadership is void: a read goes to the driver.
    pub(super) fn count_lapsed(&self) {
        let reason = match self.node.timing.lease_enabled {
            true => ReadFallback::LeaseInvalid,
            false => ReadFallback::Disabled,
        };
        self.count_fallback(reason);
    }

    /// A read goes to the driver because this node has no lease.
    pub(super) fn count_uncovered(&self, consistency: Consistency) {
        if matches!(consistency, Consistency::MaxStaleness(_)) {
            self.count_fallback(ReadFallback::TooOld);
        }
    }

    fn count_fallback(&self, reason: ReadFallback) {
        let reads = &self.accounting.metrics.reads;
        reads.fallbacks[reason].increment(1);
    }
}
