//! Who waits for what: writes for their entry, reads for a permit and then for the state machine.
//!
//! A write is matched by index **and** term (A18): an entry of another term at the awaited place
//! means that ours was overwritten, and what became of it is for its session to find out. When
//! leadership is lost, everything that waits is answered at once, writes with outcome *unknown*.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Node;
use super::Output;
use crate::api::Call;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::Outcome;
use crate::api::Request;
use crate::api::Response;
use crate::api::ResponseBody;
use crate::kv::Command;
use crate::kv::Operation;
use crate::kv::Reply;
use crate::raft::ReadId;
use crate::raft::ReadPermit;
use crate::raft::Refused;
use crate::time::Instant;
use crate::types::LogId;
use crate::types::LogIndex;
use crate::types::RequestId;
use crate::types::Role;
use crate::types::Term;

/// Everything that waits inside a node. Every operation is O(log n).
pub(super) struct Waiting {
    max: usize,
    requests: BTreeMap<RequestId, Waiter>,
    /// The same requests by deadline, as a reading of the boot clock: no safety hangs on request
    /// deadlines, so one clock is enough.
    deadlines: BTreeSet<(u64, RequestId)>,
    writes: BTreeMap<LogIndex, (Term, RequestId)>,
    /// Reads with a permit, waiting for the state machine to reach its index.
    permitted: BTreeMap<(LogIndex, RequestId), ReadPermit>,
    /// Transfers by the term that they end.
    transfers: BTreeMap<RequestId, Term>,
    /// The leadership that writes and transfers wait on.
    leadership: Option<Term>,
}

struct Waiter {
    deadline: u64,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    Read,
    PermittedRead(LogIndex),
    Write(LogIndex),
    Transfer,
}

impl Waiting {
    pub(super) fn new(max: usize) -> Self {
        Self {
            max,
            requests: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            writes: BTreeMap::new(),
            permitted: BTreeMap::new(),
            transfers: BTreeMap::new(),
            leadership: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// The earliest instant at which some request's deadline is over.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(boot, _)| Instant {
            boot: *boot,
            ..Instant::NEVER
        })
    }

    fn add(&mut self, request: RequestId, deadline: Instant, what: What) {
        self.deadlines.insert((deadline.boot, request));
        self.requests.insert(
            request,
            Waiter {
                deadline: deadline.boot,
                what,
            },
        );
    }

    fn remove(&mut self, request: RequestId) -> Option<Waiter> {
        let waiter = self.requests.remove(&request)?;
        self.deadlines.remove(&(waiter.deadline, request));
        match waiter.what {
            What::Read => {}
            What::PermittedRead(index) => {
                self.permitted.remove(&(index, request));
            }
            What::Write(index) => {
                self.writes.remove(&index);
            }
            What::Transfer => {
                self.transfers.remove(&request);
            }
        }
        Some(waiter)
    }

    pub(super) fn add_transfer(&mut self, request: RequestId, term: Term, deadline: Instant) {
        self.add(request, deadline, What::Transfer);
        self.transfers.insert(request, term);
    }

    fn add_write(&mut self, id: LogId, request: RequestId, deadline: Instant) {
        self.add(request, deadline, What::Write(id.index));
        self.writes.insert(id.index, (id.term, request));
    }

    pub(super) fn take_read(&mut self, request: RequestId) -> bool {
        self.remove(request).is_some()
    }

    /// A read got its permit and waits for the state machine from here on. One that is not here
    /// any more ran out of time.
    fn permit_read(&mut self, request: RequestId, permit: ReadPermit) {
        if let Some(waiter) = self.requests.get_mut(&request) {
            waiter.what = What::PermittedRead(permit.index());
            self.permitted.insert((permit.index(), request), permit);
        }
    }

    /// The first permitted read that `applied` covers.
    fn take_released(&mut self, applied: LogIndex) -> Option<(RequestId, ReadPermit)> {
        let (&(index, request), &permit) = self.permitted.first_key_value()?;
        if index > applied && !planted!(ReadUnapplied) {
            return None;
        }
        self.remove(request);
        Some((request, permit))
    }

    /// A request whose deadline is over, and what has become of it.
    fn take_expired(&mut self, now: Instant) -> Option<(RequestId, Outcome)> {
        let (deadline, request) = *self.deadlines.first()?;
        if now.boot < deadline {
            return None;
        }
        let outcome = match self.remove(request)?.what {
            What::Read | What::PermittedRead(_) => Outcome::NotApplied,
            What::Write(_) | What::Transfer => Outcome::Unknown,
        };
        Some((request, outcome))
    }
}

impl Node {
    pub(super) fn start_write(
        &mut self,
        now: Instant,
        id: RequestId,
        call: &Call,
        deadline: Instant,
    ) {
        let command = match &call.request {
            Request::Put(put) => Command::Write {
                session: call.session,
                operation: Operation::Put(put.clone()),
            },
            Request::DeleteRange(delete) => Command::Write {
                session: call.session,
                operation: Operation::DeleteRange(delete.clone()),
            },
            Request::Compact(compaction) => Command::Write {
                session: call.session,
                operation: Operation::Compact(*compaction),
            },
            _ => Command::OpenSession {
                sessions_max: self.options.sessions_max,
            },
        };
        match self.consensus.propose(now, command.encode()) {
            Ok(entry) => self.waiting.add_write(entry, id, deadline),
            Err(refused) => self.refuse_because(id, refused),
        }
    }

    pub(super) fn start_read(
        &mut self,
        now: Instant,
        id: RequestId,
        consistency: Consistency,
        deadline: Instant,
    ) {
        if consistency == Consistency::Serializable {
            return self.refuse(
                id,
                ErrorKind::Internal,
                "a serializable read was handed to consensus instead of the store",
            );
        }
        let lease_allowed = consistency != Consistency::LinearizableQuorum;
        self.waiting.add(id, deadline, What::Read);
        if let Err(refused) = self.consensus.read(now, ReadId(id.0), lease_allowed) {
            self.waiting.take_read(id);
            self.refuse_because(id, refused);
        }
    }

    pub(super) fn permit_read(&mut self, id: RequestId, permit: ReadPermit) {
        self.waiting.permit_read(id, permit);
    }

    /// Lets go the permitted reads that the state machine has caught up with.
    pub(super) fn release_reads(&mut self) {
        while let Some((id, permit)) = self.waiting.take_released(self.applied) {
            self.outputs.push_back(Output::Read(id, permit));
        }
    }

    pub(super) fn answer_write(&mut self, id: LogId, reply: Reply) {
        let Some((term, request)) = self.waiting.writes.get(&id.index).copied() else {
            return;
        };
        self.waiting.remove(request);
        let result = if term == id.term || planted!(WaitersByIndex) {
            let header = self.header(reply.revision);
            match reply.result {
                Ok(Some(body)) => Ok(Response { header, body }),
                Ok(None) => Err(Error {
                    kind: ErrorKind::Internal,
                    outcome: Outcome::Applied,
                    detail: "the write was applied and gave no reply".to_owned(),
                }),
                Err(refusal) => Err(refusal),
            }
        } else {
            Err(Error::unknown(
                ErrorKind::LeaderChanged,
                "another leader's entry took this write's place; whether an earlier attempt of it \
                 took effect is not known",
            ))
        };
        self.outputs.push_back(Output::Reply(request, result));
    }

    pub(super) fn expire_requests(&mut self, now: Instant) {
        while let Some((id, outcome)) = self.waiting.take_expired(now) {
            let error = Error {
                kind: ErrorKind::DeadlineExceeded,
                outcome,
                detail: "the cluster did not finish the request within its deadline".to_owned(),
            };
            self.outputs.push_back(Output::Reply(id, Err(error)));
        }
    }

    /// Answers what waits on a leadership that is over. A write is answered *unknown*: its entry
    /// may still be committed by the next leader.
    pub(super) fn give_up_on_lost_leadership(&mut self) {
        let status = self.consensus.status();
        let leadership = (status.role == Role::Leader).then_some(status.term);
        if self.waiting.leadership == leadership {
            return;
        }
        self.waiting.leadership = leadership;
        planted!(WaitersKept => return);
        let over = |term: &Term| Some(*term) != leadership;
        let writes: Vec<RequestId> = self
            .waiting
            .writes
            .values()
            .filter(|(term, _)| over(term))
            .map(|(_, id)| *id)
            .collect();
        for id in writes {
            self.waiting.remove(id);
            let error = Error::unknown(
                ErrorKind::LeaderChanged,
                "this node lost leadership before the write was committed",
            );
            #[cfg(leasehold_bugs)]
            let error = planted_in_doubt(error);
            self.outputs.push_back(Output::Reply(id, Err(error)));
        }
        let transfers: Vec<RequestId> = self
            .waiting
            .transfers
            .iter()
            .filter(|(_, term)| over(term))
            .map(|(id, _)| *id)
            .collect();
        for id in transfers {
            self.waiting.remove(id);
            let response = Response {
                header: self.header(0),
                body: ResponseBody::MoveLeader,
            };
            self.outputs.push_back(Output::Reply(id, Ok(response)));
        }
    }

    pub(super) fn refuse(&mut self, id: RequestId, kind: ErrorKind, detail: &str) {
        self.outputs
            .push_back(Output::Reply(id, Err(Error::not_applied(kind, detail))));
    }

    pub(super) fn refuse_because(&mut self, id: RequestId, refused: Refused) {
        match refused {
            Refused::NotLeader { .. } => self.refuse_not_leader(id),
            Refused::Transferring => self.refuse(
                id,
                ErrorKind::SlowDown { retry_after_ms: 10 },
                "leadership is being handed over: ask again shortly",
            ),
            Refused::Busy => self.refuse(
                id,
                ErrorKind::SlowDown { retry_after_ms: 20 },
                "too many writes wait to be committed: ask again shortly",
            ),
            Refused::TooLarge => self.refuse(
                id,
                ErrorKind::Internal,
                "the write passed the request limits and is still larger than one log entry",
            ),
            Refused::NoTarget => self.refuse(
                id,
                ErrorKind::InvalidArgument,
                "the node named cannot lead: it is not a voter of this cluster, or is this node",
            ),
        }
    }

    pub(super) fn refuse_not_leader(&mut self, id: RequestId) {
        let error = self.not_leader_error();
        self.outputs.push_back(Output::Reply(id, Err(error)));
    }

    /// Where to ask instead.
    fn not_leader_error(&self) -> Error {
        let status = self.consensus.status();
        match status.leader.filter(|leader| *leader != self.options.id) {
            Some(leader) => Error::not_applied(
                ErrorKind::NotLeader {
                    leader: Some(leader),
                    address: None,
                },
                format!("this node does not lead: ask {leader}"),
            ),
            None => Error::not_applied(
                ErrorKind::NoLeader,
                "no leader is known at the moment: ask again shortly",
            ),
        }
    }
}

#[cfg(leasehold_bugs)]
fn planted_in_doubt(error: Error) -> Error {
    if planted!(UnknownSaidRefused) {
        return Error::not_applied(error.kind, error.detail);
    }
    error
}
