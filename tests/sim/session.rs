//! A node's sessions with its clients: when each step of a leased read is taken. The steps are the
//! library's (`node/leased_read.rs`); between any two of them a thread may lose the processor for as
//! long as it likes (P20).

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use leasehold::api::{
    Call, Consistency, Error, ErrorKind, Limits, RangeResponse, Request, Response, ResponseBody,
    ResponseHeader,
};
use leasehold::kv;
use leasehold::node::{Answer, Captured, ReadBuffer, ReadResult, Reader, Source};
use leasehold::raft::ReadPermit;

use crate::clock::{ReadAt, US};
use crate::machine::{Arrival, Asked, Batch, Delivery, Found, Handed, Mail};
use crate::marks::Mark;
use crate::state::State;
use crate::world::{Work, World};

/// A step of a look at the store, which does not fail.
type Look = Result<ControlFlow<Source<Found>, Source<Found>>, Infallible>;

const READER: Reader = Reader {
    lease_margin: Duration::ZERO,
};

impl World {
    /// A request has reached the node.
    pub(crate) fn arrives(&mut self, node: usize, connection: usize, frame: u64, call: Box<Call>) {
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
        let batch_max = self.options.batch_max;
        let marks = &mut self.judge.marks;
        let shown = self.machines[node].disk.state.shown();
        let process = self.machines[node].process.as_mut().expect("it runs");
        let session = process.sessions.get_mut(&connection).expect("it was rung");
        let mut reads = std::mem::take(&mut session.spare);
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
                (true, _) => reads.push(arrival),
                _ => handed.push(arrival),
            }
        }
        if reads.len() > 1 {
            marks.hit(Mark::BatchOfSeveral);
        }
        let buffer = std::mem::take(&mut session.buffer);
        let captured = Captured::of(reads, shown, &process.published, buffer);
        session.batch = Some(Batch::Captured(captured));
        self.hand_on(node, connection, handed);
        self.then(node, Work::SessionReads(connection));
    }

    /// The session reads the store.
    pub(crate) fn session_reads(&mut self, node: usize, connection: usize) {
        let Some(Batch::Captured(captured)) = self.take_batch(node, connection) else {
            return;
        };
        let state = &self.machines[node].disk.state;
        let looked = captured.look(|read| read_from(state, &read.call.request));
        let Ok(looked) = looked;
        let session = self.process(node).sessions.get_mut(&connection);
        session.expect("it is busy").batch = Some(Batch::Looked(looked));
        self.then(node, Work::SessionChecks(connection));
    }

    /// The session reads the clock, asks the lease, and answers what it, or the state's age, covers.
    pub(crate) fn session_checks(&mut self, node: usize, connection: usize) {
        let Some(Batch::Looked(looked)) = self.take_batch(node, connection) else {
            return;
        };
        let mut judged = looked.judge(&ReadAt(&self.machines[node].clock, self.now));
        if let Some(term) = judged.permitted_in() {
            self.judge.permitted(self.now, node, term);
        }
        if judged.has_lapsed() {
            self.judge.marks.hit(Mark::PermitRefused);
        }
        // The frames of those that go on to the driver: of few batches any.
        let mut to_driver = Vec::new();
        while let Some((read, result)) = judged.next(&READER) {
            match result {
                ReadResult::Answer(answer) => {
                    self.answer_read(node, read.frame, answer, read.asked());
                }
                ReadResult::Lapsed if read.call.consistency == Consistency::LeaseOnly => {
                    self.judge.marks.hit(Mark::LeaseInsistedInVain);
                    self.reply(node, read.frame, Err(lease_invalid()));
                }
                // The state machine is not there yet: the read waits for it at the driver.
                ReadResult::Behind => {
                    self.judge.marks.hit(Mark::PermitBeyondApplied);
                    to_driver.push(read.frame);
                }
                ReadResult::Lapsed | ReadResult::Uncovered => to_driver.push(read.frame),
            }
        }
        let (mut reads, buffer) = judged.finish();
        let handed = reads.extract_if(.., |read| to_driver.contains(&read.frame));
        let handed = handed.collect();
        reads.clear();
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("it is busy");
        (session.spare, session.buffer) = (reads, buffer);
        self.hand_on(node, connection, handed);
        self.then(node, Work::SessionGives(connection));
    }

    /// The session looks at what the driver has answered, and rests or starts again.
    pub(crate) fn session_gives(&mut self, node: usize, connection: usize) {
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("it is busy");
        let mut outbox = std::mem::take(&mut session.outbox);
        for (frame, delivery) in outbox.drain(..) {
            let session = self.process(node).sessions.get_mut(&connection);
            let Some(handed) = session.and_then(|session| session.waiting.remove(&frame)) else {
                continue;
            };
            match (delivery, handed) {
                (Delivery::Reply(result), _) => self.reply(node, frame, result),
                (Delivery::Permit(permit), Handed::Read { request, asked }) => {
                    self.read_released(node, frame, &request, asked, Some(permit));
                }
                (Delivery::CaughtUp, Handed::Read { request, asked }) => {
                    self.read_released(node, frame, &request, asked, None);
                }
                (Delivery::Permit(_) | Delivery::CaughtUp, Handed::Other) => {
                    self.judge
                        .fail("L6 permits are for reads", format!("frame {frame}"));
                }
            }
        }
        let session = self.process(node).sessions.get_mut(&connection);
        let session = session.expect("it is busy");
        // Nothing was put in meanwhile, and its room is kept.
        assert!(session.outbox.is_empty(), "the driver does not run now");
        session.outbox = outbox;
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

    /// Takes the steps of a read that the driver released: its store is far enough.
    fn read_released(
        &mut self,
        node: usize,
        frame: u64,
        request: &Request,
        asked: Asked,
        permit: Option<ReadPermit>,
    ) {
        let machine = &self.machines[node];
        let process = machine.process.as_ref().expect("it runs");
        let captured =
            Captured::released(&asked, permit, &process.published, ReadBuffer::default());
        let Ok(looked) = captured.look(|_| read_from(&machine.disk.state, request));
        let mut judged = looked.judge(&ReadAt(&machine.clock, self.now));
        match judged.next(&READER) {
            Some((_, ReadResult::Answer(answer))) => self.answer_read(node, frame, answer, asked),
            _ => {
                let what = format!("n{}: permit beyond what is applied", node + 1);
                self.judge.fail("P21 applied covers the permit", what);
            }
        }
    }

    /// Answers a read.
    fn answer_read(&mut self, node: usize, frame: u64, answer: Answer<Found>, asked: Asked) {
        let (read, revision) = (answer.read(), answer.revision());
        let real = self.now;
        if asked.at != 0 {
            let refusal = answer.found().as_ref().err();
            self.judge
                .read_at(node, asked.at, read.applied_index, revision, refusal);
        }
        self.judge.answered(real, node, &read, revision, asked);
        self.trace.line(real, Some(node), || {
            format!("   answers by {} at {revision}", read.path.name())
        });
        let header = ResponseHeader {
            revision,
            read: Some(read),
            ..ResponseHeader::default()
        };
        let result = answer.into_found().map(|body| Response { header, body });
        self.reply(node, frame, result);
    }
}

/// What a read finds: one key by itself as a session reads it, from the cache if it is there; all else in
/// one look.
fn read_from(state: &State, request: &Request) -> Look {
    if let Request::Range(range) = request
        && range.is_point()
        && !range.keys_only
        && !range.is_count_only()
    {
        let point = state.front().get(&range.key).expect("memory does not fail");
        let kvs = Vec::from_iter(point.key_value());
        let found = RangeResponse {
            count: kvs.len() as u64,
            kvs,
            more: false,
        };
        return Ok(ControlFlow::Continue(Source {
            found: Ok(ResponseBody::Range(found)),
            applied: point.applied,
            revision: point.revision,
        }));
    }
    let look = state.look();
    let found = match request {
        Request::Range(range) => kv::range(&look, range, &Limits::DEFAULT)
            .expect("memory does not fail")
            .map(ResponseBody::Range),
        Request::Txn(txn) => kv::read_txn(&look, txn)
            .expect("memory does not fail")
            .map(ResponseBody::Txn),
        other => unreachable!("{other:?} is no read"),
    };
    Ok(ControlFlow::Continue(Source {
        found,
        applied: look.applied().index,
        revision: look.revision(),
    }))
}

fn lease_invalid() -> Error {
    Error::not_applied(ErrorKind::LeaseInvalid, "the lease is void at the moment")
}
