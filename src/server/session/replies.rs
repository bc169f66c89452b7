//! Answers on their way to the client: a request is finished, or the driver released a read, which
//! looks at the store now. Replies are encoded, counted, and recorded in the audit log and the slow log.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::dispatch::Session;
use super::pending::{PendingKind, PendingRequest, RequestTiming};
use super::point_read::PointRequest;
use super::refusals::{lease_invalid, not_readable, read_aborted};
use crate::api::{Class, Consistency, Error, ErrorKind, Outcome, ReadPath, Response, ResponseBody};
use crate::node::{QueriedLeases, path_of};
use crate::raft::ReadPermit;
use crate::server::mail::outbox::{Completion, Delivery, Stages};
use crate::server::metrics::{Phase, stopwatch};
use crate::server::session::auth::Note;
use crate::server::session::budget::ScanPermit;
use crate::server::session::lease_query::{LeaseQuestion, answer};
use crate::server::session::scan::{Query, ScanAuthority};
use crate::server::session::slow_log::{Outcome as RequestOutcome, Summary};
use crate::wire::WireError;
use crate::wire::client::ServerFrame;
use crate::wire::point::Projection;

impl Session {
    /// Completes a pending request.
    pub(super) fn complete(&mut self, (frame, delivery, stages): Completion) {
        let Some(mut pending) = self.waiting.remove(&frame) else {
            return;
        };
        let now = stopwatch();
        pending.answered(&delivery, &stages, now);
        let PendingRequest {
            timing,
            kind,
            backlog_permit: _,
            node_bytes,
            connection_bytes,
        } = pending;
        drop((node_bytes, connection_bytes));
        self.connection.in_flight.leave(1);
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        let method = kind.method();
        match delivery {
            Delivery::Permit(permit) => self.release(timing, frame, Some(permit), kind),
            Delivery::CaughtUp => self.release(timing, frame, None, kind),
            Delivery::Leases(permit, asked) => {
                if let PendingKind::Leases(question) = kind {
                    self.release_leases(timing, frame, permit, asked, question);
                }
            }
            Delivery::Reply(result) => {
                if matches!(kind, PendingKind::Read { .. }) {
                    let failures = &self.shared.accounting.metrics.reads.read_index_failures;
                    failures.increment(u64::from(result.is_err()));
                }
                let mut result =
                    result.map_err(|error| self.shared.node.with_leader_address(error));
                if let Ok(response) = &mut result
                    && let ResponseBody::Members(list) = &mut response.body
                {
                    self.shared.node.directory.complete(&mut list.members);
                }
                if let PendingKind::Renewal(leases) = kind {
                    self.note_renewal(&timing, leases, &result);
                }
                self.finish(now, &timing, frame, method, result);
            }
            Delivery::Scanned(result, permit) => {
                self.scan_permits.push(permit);
                self.finish(now, &timing, frame, method, result);
            }
        }
    }

    /// The driver released a read: the store has applied what it must see.
    fn release(
        &mut self,
        mut timing: RequestTiming,
        frame: u64,
        permit: Option<ReadPermit>,
        kind: PendingKind,
    ) {
        let method = kind.method();
        let PendingKind::Read {
            query,
            consistency,
            min_revision,
            timeout,
        } = kind
        else {
            let error = Error::not_applied(ErrorKind::Internal, "a permit came for no read");
            return self.reply(frame, method, Err(error));
        };
        let is_leased = permit.is_some_and(|permit| permit.lease_remaining().is_some());
        if consistency == Consistency::LeaseOnly && !is_leased {
            return self.reply(frame, method, Err(lease_invalid()));
        }
        if !self.is_readable() {
            return self.reply(frame, method, Err(not_readable()));
        }
        if !self.shared.node.integrity.is_sound() {
            return self.reply(frame, method, Err(self.shared.node.integrity.refusal()));
        }
        let range = match query {
            Query::Range(range) if range.is_point() => range,
            query => {
                let left = timeout.saturating_sub(timing.phases.total());
                let kind = PendingKind::Read {
                    query: query.clone(),
                    consistency,
                    min_revision,
                    timeout,
                };
                // It has waited already, so it is not refused half way.
                let (class, on) = (Class::KeepAlive, ScanAuthority::Released(permit));
                return self.run_scan(timing, frame, class, query, left, kind, on);
            }
        };
        let request = PointRequest {
            request_id: frame,
            wanted: Projection::of(range.keys_only, range.is_count_only()),
            min_revision,
        };
        let before = self.replies.len();
        // A read is recorded only if it is denied, which deny_read does.
        self.notes.remove(&frame);
        let outcome = self.read_released(request, consistency, &range.key, permit);
        let path = permit.map_or(ReadPath::Serializable, |permit| path_of(&permit));
        let now = stopwatch();
        timing.phases.until(Phase::Storage, now);
        let took = timing.phases.total().as_secs_f64();
        let reads = &self.shared.accounting.metrics.reads;
        reads.duration_seconds[path].record(took);
        let latencies = &self.shared.accounting.latencies;
        latencies.reads.record(timing.phases.total());
        self.measure(&timing, method);
        self.account(now, &timing, method, outcome, before);
    }

    /// The driver released a lease query. The store is read on a thread that may block, because a page,
    /// or the keys of one lease, may be many.
    pub(super) fn release_leases(
        &mut self,
        timing: RequestTiming,
        frame: u64,
        permit: Option<ReadPermit>,
        asked: QueriedLeases,
        question: LeaseQuestion,
    ) {
        let method = question.method();
        let is_leased = permit.is_some_and(|permit| permit.lease_remaining().is_some());
        if question.consistency == Consistency::LeaseOnly && !is_leased {
            return self.reply(frame, method, Err(lease_invalid()));
        }
        if !self.is_readable() {
            return self.reply(frame, method, Err(not_readable()));
        }
        let bytes = self.shared.limits.requests.reply_bytes_max;
        // It has waited already, so it is not refused half way.
        if !self.register(
            timing,
            frame,
            Class::KeepAlive,
            PendingKind::Other(method),
            bytes,
        ) {
            return;
        }
        let (shared, outbox) = (self.shared.clone(), self.outbox.clone());
        let principal = self.principal().clone();
        let places = self.connection_scans();
        tokio::spawn(async move {
            let place = ScanPermit::take(places).await;
            let slot = shared.limits.scans.clone().acquire_owned().await;
            let node = shared.clone();
            let read = tokio::task::spawn_blocking(move || {
                let _slot = slot;
                let looked = Some(stopwatch());
                (
                    looked,
                    answer(&node, Some(&principal), permit, &asked, &question),
                )
            });
            let mut stages = Stages::default();
            let read = read.await.map(|(looked, result)| {
                stages.looked = looked;
                result
            });
            let result = match read {
                Ok(Ok(result)) => result,
                Ok(Err(error)) => Err(shared.fail(error)),
                Err(_) => Err(read_aborted()),
            };
            outbox.deliver_after(stages, frame, Delivery::Scanned(result, Box::new(place)));
        });
    }
}

impl Session {
    pub(super) fn reply(
        &mut self,
        request_id: u64,
        method: &'static str,
        result: Result<Response, Error>,
    ) {
        let metrics = &self.shared.accounting.metrics;
        match &result {
            Ok(_) => metrics.requests.succeeded(method).increment(1),
            Err(error) => metrics.request_failed(method, &error.kind),
        }
        if let Some(audit) = &self.shared.accounting.audit
            // The note of another request of this number, which still waits, is not of this one.
            && !self.waiting.contains_key(&request_id)
            && let Some(note) = self.notes.remove(&request_id)
        {
            let (principal, address) = (&self.connection.principal, self.connection.address);
            audit.record(principal, address, method, &note, &result);
        }
        let limits = &self.shared.limits.frames;
        let frame = ServerFrame { request_id, result };
        if let Err(error) = crate::wire::encode(&frame, limits, &mut self.replies) {
            let applied = frame
                .result
                .is_ok_and(|response| response.header.read.is_none());
            self.refuse_too_long(request_id, applied, error);
        }
    }

    /// Replies that the client may not read `key`, and records that.
    pub(super) fn deny_read(&mut self, request_id: u64, key: &[u8], error: Error) {
        let denied = Err(error);
        if let Some(audit) = &self.shared.accounting.audit {
            let (principal, address) = (&self.connection.principal, self.connection.address);
            audit.record(principal, address, "range", &Note::of_read(key), &denied);
        }
        self.reply(request_id, "range", denied);
    }

    /// Replies that the result is longer than a frame may be.
    pub(super) fn refuse_too_long(&mut self, request_id: u64, applied: bool, error: WireError) {
        let outcome = match applied {
            true => Outcome::Applied,
            false => Outcome::NotApplied,
        };
        let kind = match error {
            WireError::TooLong {
                bytes, bytes_max, ..
            } => ErrorKind::ResponseTooLarge {
                limit: bytes_max as u64,
                actual: bytes as u64,
            },
            _ => ErrorKind::Internal,
        };
        let refusal = Error {
            kind,
            outcome,
            detail: format!(
                "the reply is larger than a client accepts: {error}; request less at a time"
            ),
            tries: None,
        };
        let frame = ServerFrame {
            request_id,
            result: Err(refusal),
        };
        crate::wire::encode(&frame, &self.shared.limits.frames, &mut self.replies)
            .expect("an error of one sentence fits into a frame");
    }

    /// Answers a request that has come back, and accounts for its time.
    pub(super) fn finish(
        &mut self,
        now: Instant,
        timing: &RequestTiming,
        frame: u64,
        method: &'static str,
        result: Result<Response, Error>,
    ) {
        self.measure(timing, method);
        if let Ok(response) = &result {
            let latencies = &self.shared.accounting.latencies;
            match (&response.header.read, &response.body) {
                (Some(_), _) => latencies.reads.record(timing.phases.total()),
                (
                    None,
                    ResponseBody::Put(_) | ResponseBody::DeleteRange(_) | ResponseBody::Txn(_),
                ) => latencies.writes.record(timing.phases.total()),
                _ => {}
            }
        }
        let (before, outcome) = (self.replies.len(), RequestOutcome::of(&result));
        self.reply(frame, method, result);
        self.account(now, timing, method, outcome, before);
    }

    /// Accounts for the time of a request whose answer is all that was written since `before`.
    pub(super) fn account(
        &self,
        now: Instant,
        timing: &RequestTiming,
        method: &'static str,
        outcome: RequestOutcome,
        before: usize,
    ) {
        let joined = timing.arrival.joined.as_ref();
        self.shared.accounting.account(
            &self.shared.node.name,
            now,
            &timing.phases,
            1,
            joined,
            || Summary {
                method,
                outcome,
                request_bytes: timing.arrival.bytes,
                reply_bytes: self.replies.len() - before,
                beside: 0,
            },
        );
    }

    pub(super) fn note_renewal(
        &self,
        timing: &RequestTiming,
        leases: u64,
        result: &Result<Response, Error>,
    ) {
        let metrics = &self.shared.accounting.metrics.leases;
        match result {
            Ok(Response {
                body: ResponseBody::LeaseKeepAlive(kept),
                ..
            }) => metrics.kept(kept),
            Ok(_) => {}
            Err(error) => metrics.refused(leases, &error.kind),
        }
        metrics
            .renew_duration_seconds
            .record(timing.phases.total().as_secs_f64());
    }

    pub(super) fn measure(&self, timing: &RequestTiming, method: &'static str) {
        let took = timing.phases.total().as_secs_f64();
        let requests = &self.shared.accounting.metrics.requests;
        requests.duration_seconds.of(method).record(took);
    }
}
