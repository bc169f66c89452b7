//! Reads of many keys, which may take long and have to wait for the disk: on threads of their own,
//! a few at a time, from a snapshot.
//!
//! A scan waits for two places: one of its connection, which it keeps until the client has been
//! sent what it found, so that nobody can pile up results by not reading them; and one of the node
//! while it runs. Only then, with no more waiting ahead, it takes the steps of a leased read, in the
//! order of [`leased`](super::leased): commit index, snapshot, clock, reply.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Sessions;
use super::lease_invalid;
use super::leased::check;
use super::leased::path_of;
use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::RangeRequest;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::node::Authority;
use crate::node::Source;
use crate::server::budget::ScanPlace;
use crate::server::disk::store::Snapshot;
use crate::server::disk::store::StoreError;
use crate::server::driver::Mail;
use crate::server::metrics::ReadFallback;
use crate::server::outbox::Delivery;
use crate::server::outbox::Outbox;

/// A read of many keys.
pub(super) struct Scan {
    pub(super) shared: Arc<Sessions>,
    /// Where its answer goes, and to which request.
    pub(super) outbox: Arc<Outbox>,
    pub(super) frame: u64,
    pub(super) range: RangeRequest,
    pub(super) on: ScanOn,
}

/// On whose word.
pub(super) enum ScanOn {
    /// The lease is asked when it runs; the call is for the driver, should the lease not cover it.
    Lease(Call),
    /// It was permitted, or needs no permission.
    Authority(Authority),
}

enum Scanned {
    Done(Result<Response, Error>),
    /// The lease does not cover it.
    HandOn(Call),
}

impl Scan {
    /// Runs it when its turn has come, and delivers what it finds.
    pub(super) fn spawn(self, places: Arc<Semaphore>) {
        tokio::spawn(async move {
            let place = ScanPlace::take(places).await;
            let slot = self.shared.scans.clone().acquire_owned().await;
            let (shared, outbox, frame) = (self.shared.clone(), self.outbox.clone(), self.frame);
            let scanned = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                self.run()
            })
            .await;
            let result = match scanned {
                Ok(Ok(Scanned::HandOn(call))) => {
                    // It comes back with a permit, and waits for a place anew.
                    drop(place);
                    let outbox = outbox.clone();
                    return shared.mailbox.send(Mail::Request {
                        call,
                        outbox,
                        frame,
                    });
                }
                Ok(Ok(Scanned::Done(result))) => result,
                Ok(Err(error)) => Err(shared.fail(error)),
                Err(_) => Err(Error::not_applied(
                    ErrorKind::Internal,
                    "the scan was cut short",
                )),
            };
            outbox.deliver(frame, Delivery::Scanned(result, place));
        });
    }

    fn run(self) -> Result<Scanned, StoreError> {
        let Self {
            shared, range, on, ..
        } = self;
        let (authority, snapshot) = match on {
            ScanOn::Authority(authority) => (authority, shared.store.snapshot()?),
            ScanOn::Lease(call) => match permitted(&shared, call)? {
                Ok(permitted) => permitted,
                Err(scanned) => return Ok(scanned),
            },
        };
        shared.metrics.reads.total(path_of(authority)).increment(1);
        let found = crate::kv::range(&snapshot, &range, &shared.limits)?;
        let source = Source {
            found,
            applied: snapshot.applied().index,
            revision: snapshot.revision(),
        };
        let answer = shared.reader.answer(authority, source).ok_or_else(behind);
        Ok(Scanned::Done(answer.map(|answer| Response {
            header: shared.header_of(&answer),
            body: ResponseBody::Range(answer.found),
        })))
    }
}

/// A snapshot, and the lease's word for it; or what becomes of the scan without.
fn permitted(
    shared: &Sessions,
    call: Call,
) -> Result<Result<(Authority, Snapshot), Scanned>, StoreError> {
    let commit = shared.published.commit();
    let Some(lease) = shared.published.lease() else {
        return Ok(Err(Scanned::HandOn(call)));
    };
    let snapshot = shared.store.snapshot()?;
    let Some(permit) = check(&lease, &*shared.clock, commit) else {
        if call.consistency == Consistency::LeaseOnly {
            return Ok(Err(Scanned::Done(Err(lease_invalid()))));
        }
        let reason = match shared.lease_enabled {
            true => ReadFallback::LeaseInvalid,
            false => ReadFallback::Disabled,
        };
        shared.metrics.reads.fallbacks(reason).increment(1);
        return Ok(Err(Scanned::HandOn(call)));
    };
    if snapshot.applied().index < permit.index() {
        let behind = ReadFallback::Behind;
        shared.metrics.reads.fallbacks(behind).increment(1);
        return Ok(Err(Scanned::HandOn(call)));
    }
    Ok(Ok((Authority::Permit(permit), snapshot)))
}

/// The range of a call that reads one.
pub(super) fn range_of(call: &Call) -> Option<&RangeRequest> {
    match &call.request {
        Request::Range(range) => Some(range),
        _ => None,
    }
}

fn behind() -> Error {
    Error::not_applied(
        ErrorKind::LeaseInvalid,
        "the store has not applied what the read must see: ask again",
    )
}
