//! Reads of many keys, and transactions that only read, which may take long and have to wait for
//! the disk: on threads of their own, a few at a time, from a snapshot.
//!
//! A scan waits for two permits: one of its connection, which it keeps until the client has been
//! sent the result, so that results that are not read cannot pile up; and one of the node
//! while it runs. Only then, with no more waiting ahead, it takes the steps of a
//! [leased read](crate::node::Captured), and scans the snapshot that may be answered from.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

use super::refusals::{behind, lease_invalid};
use super::shared::Sessions;
use crate::api::{
    AuthRequest, Call, Consistency, Error, ErrorKind, RangeRequest, Request, RequestKind, Response,
    ResponseBody, SnapshotCall, TxnRequest,
};
use crate::node::{Captured, Demand, ReadBuffer, ReadResult};
use crate::raft::ReadPermit;
use crate::server::disk::store::{Snapshot, StoreError};
use crate::server::mail::Mail;
use crate::server::mail::outbox::{Delivery, Outbox, Stages};
use crate::server::metrics::{ExpiredIn, OperationKind, stopwatch};
use crate::server::session::auth::Principal;
use crate::server::session::budget::ScanPermit;
use crate::wire::RequestContext;

/// What a read asks for.
#[derive(Clone, Debug)]
pub(super) enum Query {
    /// Keys.
    Range(RangeRequest),
    /// As many keys as fit a reply.
    Page(RangeRequest),
    /// What a transaction finds that cannot change anything. It sees one state of the store, and on
    /// the same word as any other read.
    Txn(Arc<TxnRequest>),
    /// A snapshot of everything, or a chunk of one. What is new about a snapshot is when it is taken;
    /// its chunks are as old as it is, whichever node leads meanwhile.
    Snapshot(SnapshotCall),
    /// What there is to know of users and roles, or a token.
    Auth(Arc<AuthRequest>),
    /// The alarms that are raised.
    Alarms,
    /// The lease that has this name.
    LeaseNamed(Arc<str>),
}

impl Query {
    /// What `request` asks for, if it is a read.
    pub(super) fn of(request: &Request) -> Option<Self> {
        match request {
            Request::Range(range) => Some(Self::Range(range.clone())),
            Request::RangePage(range) => Some(Self::Page(range.clone())),
            Request::Txn(txn) if txn.is_read_only() => Some(Self::Txn(Arc::new(txn.clone()))),
            Request::Snapshot(call) => Some(Self::Snapshot(*call)),
            Request::Auth(auth) if auth.spec().kind == RequestKind::Read => {
                Some(Self::Auth(Arc::new(auth.clone())))
            }
            Request::AlarmList => Some(Self::Alarms),
            Request::LeaseNamed { name } => Some(Self::LeaseNamed(name.as_str().into())),
            _ => None,
        }
    }

    /// Its name in metric labels.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Range(_) => "range",
            Self::Page(_) => "range_page",
            Self::Txn(_) => "txn",
            Self::Snapshot(_) => "snapshot",
            Self::Auth(auth) => auth.spec().name,
            Self::Alarms => Request::AlarmList.spec().name,
            Self::LeaseNamed(_) => "lease_named",
        }
    }

    /// The request that asks for it.
    fn request(&self) -> Request {
        match self {
            Self::Range(range) => Request::Range(range.clone()),
            Self::Page(range) => Request::RangePage(range.clone()),
            Self::Txn(txn) => Request::Txn(TxnRequest::clone(txn)),
            Self::Snapshot(call) => Request::Snapshot(*call),
            Self::Auth(auth) => Request::Auth(AuthRequest::clone(auth)),
            Self::Alarms => Request::AlarmList,
            Self::LeaseNamed(name) => Request::LeaseNamed {
                name: name.to_string(),
            },
        }
    }

    /// Where it waits for its turn on the node.
    fn turn(&self, shared: &Sessions) -> Arc<Semaphore> {
        match self {
            Self::Auth(auth) if matches!(**auth, AuthRequest::Authenticate { .. }) => {
                shared.serving.access.hashing()
            }
            _ => shared.limits.scans.clone(),
        }
    }
}

/// A read of many keys, or of the past.
pub(super) struct Scan {
    pub(super) shared: Arc<Sessions>,
    pub(super) principal: Arc<Principal>,
    /// Where its answer goes, and to which request.
    pub(super) outbox: Arc<Outbox>,
    pub(super) frame: u64,
    pub(super) query: Query,
    pub(super) min_revision: i64,
    /// When it was asked for here, and how long the client waits from then on.
    pub(super) began: Instant,
    pub(super) left: Duration,
    pub(super) on: ScanAuthority,
}

/// What a scan may be answered on.
pub(super) enum ScanAuthority {
    /// What this node can say itself when the scan runs; if that does not do, the call goes to the
    /// driver.
    Own(Call),
    /// The driver released it: on its permit, or because the store has reached its revision.
    Released(Option<ReadPermit>),
}

enum ScanOutcome {
    Done(Result<Response, Error>),
    Forward(Call),
}

impl Scan {
    /// Runs it when its turn has come, and delivers what it finds.
    pub(super) fn spawn(self, places: Arc<Semaphore>) {
        tokio::spawn(async move {
            let place = ScanPermit::take(places).await;
            let slot = self.query.turn(&self.shared).acquire_owned().await;
            let (shared, outbox, frame) = (self.shared.clone(), self.outbox.clone(), self.frame);
            let began = self.began;
            let scanned = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                let looked = stopwatch();
                (looked, self.run(looked))
            })
            .await;
            let mut stages = Stages::default();
            let scanned = scanned.map(|(looked, scanned)| {
                stages.looked = Some(looked);
                scanned
            });
            let result = match scanned {
                Ok(Ok(ScanOutcome::Forward(call))) => {
                    // It comes back with a permit, and waits for its turn again.
                    drop(place);
                    return shared.mailbox.send(Mail::Request {
                        call,
                        arrived: began,
                        author: None,
                        context: RequestContext::default(),
                        outbox,
                        frame,
                    });
                }
                Ok(Ok(ScanOutcome::Done(result))) => result,
                Ok(Err(error)) => Err(shared.fail(error)),
                Err(_) => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the scan was aborted",
                )),
            };
            outbox.deliver_after(stages, frame, Delivery::Scanned(result, Box::new(place)));
        });
    }

    /// Runs the scan, `now` that it has its permits.
    fn run(self, now: Instant) -> Result<ScanOutcome, StoreError> {
        let shared = &*self.shared;
        if now.saturating_duration_since(self.began) >= self.left {
            // The client has given up.
            let expired = &shared.accounting.metrics.work.expired;
            expired[ExpiredIn::Scan].increment(1);
            return Ok(ScanOutcome::Done(Err(Error::not_applied(
                ErrorKind::DeadlineExceeded,
                "the deadline passed while the read was queued: this node is overloaded",
            ))));
        }
        if !shared.node.integrity.is_sound() {
            let refusal = shared.node.integrity.refusal();
            return Ok(ScanOutcome::Done(Err(refusal)));
        }
        // Before the scan: whether the snapshot may be answered from is known now.
        let answer = match self.look()? {
            ReadResult::Answer(answer) => answer,
            result => return Ok(self.fall_back(&result)),
        };
        let (header, path) = (shared.node.header_of(&answer), answer.read().path);
        let snapshot = answer.into_found();
        // The rules are no older than the snapshot.
        let request = || self.query.request();
        let access = &shared.serving.access;
        if let Err(refusal) = access.admit(&self.principal, &snapshot, request)? {
            return Ok(ScanOutcome::Done(Err(refusal)));
        }
        shared.accounting.metrics.reads.total[path].increment(1);
        let found = self.find(snapshot)?;
        Ok(ScanOutcome::Done(
            found.map(|body| Response { header, body }),
        ))
    }

    /// Takes a snapshot by the steps of a leased read.
    fn look(&self) -> Result<ReadResult<Snapshot>, StoreError> {
        let (published, buffer) = (&self.shared.node.published, ReadBuffer::default());
        let min_revision = self.min_revision;
        match &self.on {
            ScanAuthority::Released(permit) => {
                let demand = Demand {
                    consistency: Consistency::Serializable,
                    min_revision,
                };
                let captured = Captured::released(&demand, *permit, published, buffer);
                self.shared.look_at_snapshot(captured)
            }
            ScanAuthority::Own(call) => {
                let demand = Demand {
                    consistency: match &self.query {
                        Query::Snapshot(_) if planted!(SnapshotUnconfirmed) => {
                            Consistency::Serializable
                        }
                        _ => call.consistency,
                    },
                    min_revision,
                };
                let shown = self.shared.serving.store.shown();
                let captured = Captured::of(slice::from_ref(&demand), shown, published, buffer);
                self.shared.look_at_snapshot(captured)
            }
        }
    }

    /// The snapshot may not be answered from: the driver is asked, unless it has been or the client
    /// wants nothing but the lease.
    fn fall_back(self, result: &ReadResult<Snapshot>) -> ScanOutcome {
        let shared = &self.shared;
        let call = match self.on {
            ScanAuthority::Own(call) => Some(call),
            ScanAuthority::Released(_) => None,
        };
        match (result, &call) {
            (ReadResult::Lapsed, Some(call)) if call.consistency == Consistency::LeaseOnly => {
                return ScanOutcome::Done(Err(lease_invalid()));
            }
            (ReadResult::Lapsed, _) => shared.count_lapsed(),
            (ReadResult::Behind, _) => shared.count_behind(self.min_revision),
            (_, Some(call)) => shared.count_uncovered(call.consistency),
            (_, None) => {}
        }
        call.map_or(ScanOutcome::Done(Err(behind())), ScanOutcome::Forward)
    }

    /// Reads what the query asks for from `snapshot`.
    fn find(&self, snapshot: Snapshot) -> Result<Result<ResponseBody, Error>, StoreError> {
        let shared = &*self.shared;
        let limits = &shared.limits.requests;
        let operations = &shared.accounting.metrics.mvcc.operations;
        match &self.query {
            Query::Range(_) | Query::Page(_) => operations[OperationKind::Range].increment(1),
            Query::Txn(_) => operations[OperationKind::Txn].increment(1),
            Query::Snapshot(_) | Query::Auth(_) | Query::Alarms | Query::LeaseNamed(_) => {}
        }
        Ok(match &self.query {
            Query::Range(range) => {
                let (counts, current) = (&shared.serving.counts, snapshot.revision());
                let known = counts.lock().get(range, current);
                let found = crate::kv::counted_range(&snapshot, range, limits, known)?;
                found.map(|response| {
                    counts.lock().note(range, current, &response);
                    ResponseBody::Range(response)
                })
            }
            Query::Page(range) => {
                crate::kv::page(&snapshot, range, limits)?.map(ResponseBody::RangePage)
            }
            Query::Txn(txn) => crate::kv::read_txn(&snapshot, txn)?.map(ResponseBody::Txn),
            Query::Snapshot(call) => {
                let (exports, origins) = (&shared.serving.exports, &shared.serving.origins);
                let reply = exports.answer(*call, snapshot, origins)?;
                reply.map(ResponseBody::Snapshot)
            }
            Query::Auth(auth) => match &**auth {
                AuthRequest::Authenticate { name, password } => {
                    let access = &shared.serving.access;
                    let token = access.authenticate(&self.principal, &snapshot, name, password)?;
                    if token.as_ref().is_err_and(is_rate_limited) {
                        shared.accounting.count_rate_limited();
                    }
                    token
                }
                auth => crate::kv::access::read(&snapshot, auth)?,
            }
            .map(ResponseBody::Auth),
            Query::Alarms => Ok(ResponseBody::Alarms(crate::kv::alarms(&snapshot)?)),
            Query::LeaseNamed(name) => {
                crate::kv::named_lease(&snapshot, name)?.map(ResponseBody::LeaseNamed)
            }
        })
    }
}

/// Whether a refused password was not checked.
fn is_rate_limited(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::SlowDown { .. })
}
