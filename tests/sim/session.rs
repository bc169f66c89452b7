//! A node's sessions with its clients: the leased read, step by step as in `session/point_read.rs`.
//!
//! The batch is closed; the commit index is captured and the lease loaded; the store is read; only
//! then the clock, and the lease is asked, or how old the state can be; `Reader::answer` has the
//! last word. Between any two of these steps a thread may lose the processor for as long as it
//! likes (P20).

use std::time::Duration;

use leasehold::api::{
    Call, Consistency, Error, ErrorKind, Limits, Request, Response, ResponseBody, ResponseHeader,
};
use leasehold::kv;
use leasehold::kv::MemStore;
use leasehold::node::{Authority, Reader, Source};

use crate::clock::US;
use crate::machine::{Arrival, Asked, Batch, Candidate, Delivery, Handed, Mail};
use crate::marks::Mark;
use crate::world::{Work, World};

impl World {
    /// A request has reached the node.
    pub(crate) fn arrives(&mut self, node: usize, connection: usize, frame: u64, call: Call) {
        let exposed = self.judge.exposed();
        let sessions = &mut self.process(node).sessions;
        sessions
            .entry(connection)
            .or_default()
            .arrived
            .push(Arrival {
                frame,
                call,
                exposed,
            });
        self.ring_session(node, connection);
    }

    /// Makes sure that the session looks at what there is for it.
    pub(crate) fn ring_session(&mut self, node: usize, connection: usize) {
        let delay = self.scheduling.between(US, 20 * US);
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("whoever rings has put something in");
        if !session.busy {
            session.busy = true;
            self.schedule_work(delay, node, Work::SessionTakes(connection));
        }
    }

    /// The session closes its batch, and captures what the reads in it must see.
    pub(crate) fn session_takes(&mut self, node: usize, connection: usize) {
        let process = self.process(node);
        let published = process.published.clone();
        let (commit, lease) = (published.commit(), published.lease());
        #[cfg(leasehold_bugs)]
        let commit = self.planted_in_capture(node, connection, commit);
        let batch_max = self.options.batch_max;
        let marks = &mut self.judge.marks;
        let process = self.machines[node].process.as_mut().expect("it runs");
        let session = process.sessions.get_mut(&connection).expect("it was rung");
        let mut candidates = std::mem::take(&mut session.spare);
        let mut handed = Vec::new();
        let some = session.arrived.len().min(batch_max);
        if some < session.arrived.len() {
            // What is not decoded yet belongs to the next batch, though it came in one packet (A1).
            marks.hit(Mark::LeftForTheNextBatch);
        }
        for arrival in session.arrived.drain(..some) {
            match (arrival.call.request.is_read(), arrival.call.consistency) {
                // The driver says why nothing is served.
                _ if !process.is_sound => handed.push(arrival),
                (true, Consistency::LinearizableQuorum) => handed.push(arrival),
                (true, _) => candidates.push(Candidate {
                    arrival,
                    source: None,
                }),
                _ => handed.push(arrival),
            }
        }
        if candidates.len() > 1 {
            marks.hit(Mark::BatchOfSeveral);
        }
        session.batch = Some(Batch {
            candidates,
            commit,
            lease,
            freshness: published.freshness(),
        });
        self.hand_on(node, connection, handed);
        self.then(node, Work::SessionReads(connection));
    }

    /// The session reads the store.
    pub(crate) fn session_reads(&mut self, node: usize, connection: usize) {
        let Some(mut batch) = self.take_batch(node, connection) else {
            return;
        };
        for candidate in &mut batch.candidates {
            let may_be_old = matches!(
                candidate.arrival.call.consistency,
                Consistency::Serializable | Consistency::MaxStaleness(_)
            );
            let reads = batch.lease.is_some() || may_be_old || planted!(MemoizedCheck);
            if reads {
                let request = &candidate.arrival.call.request;
                let source = self.read_store(node, request);
                #[cfg(leasehold_bugs)]
                let source = self.planted_in_reading(node, connection, request, source);
                candidate.source = Some(source);
            }
        }
        #[cfg(leasehold_bugs)]
        self.planted_after_reading(node, connection);
        let session = self.process(node).sessions.get_mut(&connection);
        session.expect("it is busy").batch = Some(batch);
        self.then(node, Work::SessionChecks(connection));
    }

    /// The session reads the clock, asks the lease, and answers what it, or the state's age, covers.
    pub(crate) fn session_checks(&mut self, node: usize, connection: usize) {
        let Some(mut batch) = self.take_batch(node, connection) else {
            return;
        };
        #[cfg(leasehold_bugs)]
        {
            batch = self.planted_before_the_check(node, connection, batch);
        }
        let now = self.machines[node].clock.read(self.now);
        #[cfg(leasehold_bugs)]
        let now = self.planted_clock(node, now);
        let lease = batch.lease.as_deref();
        let permit = lease
            .filter(|_| !batch.candidates.is_empty())
            .and_then(|lease| lease.permit(now, batch.commit));
        #[cfg(leasehold_bugs)]
        let permit = self.planted_permit(node, connection, now, permit);
        match (permit, lease) {
            (Some(_), Some(lease)) => self.judge.permitted(self.now, node, lease),
            (None, Some(_)) => self.judge.marks.hit(Mark::PermitRefused),
            _ => {}
        }
        let bound = batch.freshness.as_deref().map(|fresh| fresh.bound(now));
        let mut handed = Vec::new();
        for Candidate { arrival, source } in batch.candidates.drain(..) {
            let asked = arrival.asked();
            let authority = Authority::for_read(asked.consistency, permit, bound);
            let insists = asked.consistency == Consistency::LeaseOnly;
            match (authority, source) {
                (Some(authority), Some(source)) => {
                    // Else the state machine is not there yet: wait for it at the driver.
                    if !self.answer_read(node, arrival.frame, authority, source, asked) {
                        self.judge.marks.hit(Mark::PermitBeyondApplied);
                        handed.push(arrival);
                    }
                }
                (None, _) if insists && batch.lease.is_some() => {
                    self.judge.marks.hit(Mark::LeaseInsistedInVain);
                    self.reply(node, arrival.frame, Err(lease_invalid()));
                }
                _ => handed.push(arrival),
            }
        }
        let session = self.process(node).sessions.get_mut(&connection);
        session.expect("it is busy").spare = batch.candidates;
        self.hand_on(node, connection, handed);
        self.then(node, Work::SessionGives(connection));
    }

    /// The session looks at what the driver has answered, and rests or starts again.
    pub(crate) fn session_gives(&mut self, node: usize, connection: usize) {
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("it is busy");
        let mut answers = Vec::new();
        for (frame, delivery) in session.outbox.drain(..) {
            if let Some(handed) = session.waiting.remove(&frame) {
                answers.push((frame, delivery, handed));
            }
        }
        for (frame, delivery, handed) in answers {
            match (delivery, handed) {
                (Delivery::Reply(result), _) => self.reply(node, frame, result),
                (Delivery::Permit(permit), Handed::Read { request, asked }) => {
                    let source = self.read_store(node, &request);
                    self.must_answer(node, frame, Authority::Permit(permit), source, asked);
                }
                (Delivery::CaughtUp, Handed::Read { request, asked }) => {
                    let authority = Authority::Serializable(None);
                    let source = self.read_store(node, &request);
                    self.must_answer(node, frame, authority, source, asked);
                }
                (Delivery::Permit(_) | Delivery::CaughtUp, Handed::Other) => {
                    self.judge
                        .fail("L6 permits are for reads", format!("frame {frame}"));
                }
            }
        }
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("it is busy");
        session.busy = false;
        if !session.arrived.is_empty() || !session.outbox.is_empty() {
            self.ring_session(node, connection);
        }
    }

    /// Goes on to the next step of a session: at once, or after losing the processor.
    fn then(&mut self, node: usize, work: Work) {
        match self.preempted() {
            Some(delay) => self.schedule_work(delay, node, work),
            None => self.work(node, work),
        }
    }

    fn take_batch(&mut self, node: usize, connection: usize) -> Option<Batch> {
        let session = self.process(node).sessions.get_mut(&connection);
        session.and_then(|session| session.batch.take())
    }

    fn hand_on(&mut self, node: usize, connection: usize, handed: Vec<Arrival>) {
        for arrival in handed {
            let asked = arrival.asked();
            let Arrival { frame, call, .. } = arrival;
            let remembered = match call.request.is_read() {
                true => {
                    self.judge.marks.hit(Mark::ReadHandedOn);
                    Handed::Read {
                        request: Box::new(call.request.clone()),
                        asked,
                    }
                }
                false => Handed::Other,
            };
            let session = self.process(node).sessions.get_mut(&connection);
            session
                .expect("it is busy")
                .waiting
                .insert(frame, remembered);
            self.mail(node, Mail::Request(call, connection, frame));
        }
    }

    fn read_store(&self, node: usize, request: &Request) -> Source<Result<ResponseBody, Error>> {
        read_from(&self.machines[node].disk.store, request)
    }

    /// Answers a read whose store is known to be far enough.
    fn must_answer(
        &mut self,
        node: usize,
        frame: u64,
        authority: Authority,
        source: Source<Result<ResponseBody, Error>>,
        asked: Asked,
    ) {
        if !self.answer_read(node, frame, authority, source, asked) {
            let what = format!("n{}: permit beyond what is applied", node + 1);
            self.judge.fail("P21 applied covers the permit", what);
        }
    }

    /// Answers a read, if what was read is enough for it.
    fn answer_read(
        &mut self,
        node: usize,
        frame: u64,
        authority: Authority,
        source: Source<Result<ResponseBody, Error>>,
        asked: Asked,
    ) -> bool {
        let reader = Reader {
            lease_margin: Duration::ZERO,
        };
        let Some(answer) = reader.answer(authority, asked.min_revision, source) else {
            return false;
        };
        #[cfg(leasehold_bugs)]
        let answer = self.planted_in_answer(node, answer);
        let read = answer.read;
        let real = self.now;
        if asked.at != 0 {
            let refusal = answer.found.as_ref().err();
            let (applied, revision) = (read.applied_index, answer.revision);
            self.judge
                .read_at(node, asked.at, applied, revision, refusal);
        }
        self.judge
            .answered(real, node, &read, answer.revision, asked);
        self.trace.line(real, Some(node), || {
            format!("   answers by {} at {}", read.path.name(), answer.revision)
        });
        let header = ResponseHeader {
            revision: answer.revision,
            read: Some(read),
            ..ResponseHeader::default()
        };
        let result = answer.found.map(|body| Response { header, body });
        self.reply(node, frame, result);
        true
    }
}

/// What a read finds in one state of a store.
pub(crate) fn read_from(
    store: &MemStore,
    request: &Request,
) -> Source<Result<ResponseBody, Error>> {
    let progress = kv::progress(store).expect("memory does not fail");
    let found = match request {
        Request::Range(range) => kv::range(store, range, &Limits::DEFAULT)
            .expect("memory does not fail")
            .map(ResponseBody::Range),
        Request::Txn(txn) => kv::read_txn(store, txn)
            .expect("memory does not fail")
            .map(ResponseBody::Txn),
        other => unreachable!("{other:?} is no read"),
    };
    Source {
        found,
        applied: progress.applied.index,
        revision: progress.revision,
    }
}

fn lease_invalid() -> Error {
    Error::not_applied(ErrorKind::LeaseInvalid, "the lease is void at the moment")
}
