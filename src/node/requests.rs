//! Waiting requests: writes wait for their entry, reads for a permit and then for the state machine.
//!
//! A write is matched by index **and** term (A18): an entry of another term at the awaited place
//! means that ours was overwritten, and what became of it is for its session to find out. When
//! leadership is lost, everything that waits is answered at once, writes with outcome *unknown*.

use std::time::Duration;

use super::pending::{ExpiredRequest, PendingKind};
use super::{Node, Output};
use crate::api::{Call, Consistency, Error, ErrorKind, Outcome, Request, Response, ResponseBody};
use crate::kv::access::Author;
use crate::kv::{Command, Operation, Reply};
use crate::raft::{ProposalError, ReadId, ReadMode, ReadPermit};
use crate::time::Instant;
use crate::types::{LogId, RequestId, Term};

/// A read waits for the word of a leader elsewhere for this part of its time.
const QUESTION_SHARE: u32 = 4;

impl Node {
    pub(super) fn start_write(
        &mut self,
        now: Instant,
        id: RequestId,
        call: &Call,
        author: Option<Author>,
        deadline: Instant,
    ) {
        let operation = match &call.request {
            Request::Put(put) => Some(Operation::Put(put.clone())),
            Request::DeleteRange(delete) => Some(Operation::DeleteRange(delete.clone())),
            Request::Txn(txn) => Some(Operation::Txn(txn.clone())),
            Request::Compact(compaction) => Some(Operation::Compact(*compaction)),
            Request::Auth(auth) => Some(Operation::Auth(auth.clone())),
            Request::AlarmSet { member, is_raised } => Some(Operation::SetAlarm {
                member: *member,
                is_raised: *is_raised,
            }),
            Request::LeaseGrant(_)
            | Request::LeaseRevoke(_)
            | Request::LeaseUpdateTtl { .. }
            | Request::PutWithNewLease(..) => match self.lease_operation(&call.request) {
                Ok(operation) => Some(operation),
                Err(refusal) => return self.refuse_with(id, refusal),
            },
            _ => None,
        };
        let sessions_max = self.options.sessions_max;
        let session = call.session;
        let command = match operation {
            Some(operation) => Command::Write {
                author,
                session,
                operation,
            },
            None => Command::OpenSession {
                author,
                sessions_max,
            },
        };
        if self.refuse_without_room(id, call, &command) {
            return;
        }
        match self.consensus.propose(now, command.encode()) {
            Ok(entry) => self.pending.add_write(entry, id, deadline),
            Err(refused) => {
                self.note_refused_write(refused);
                self.refuse_because(id, refused);
            }
        }
    }

    /// What a write of leases is in the log.
    fn lease_operation(&self, request: &Request) -> Result<Operation, Error> {
        Ok(match request {
            Request::LeaseGrant(grant) => Operation::LeaseGrant(self.leases.grant(grant)?),
            Request::LeaseRevoke(lease) => Operation::LeaseRevoke(*lease),
            Request::LeaseUpdateTtl { lease, ttl_ms } => Operation::LeaseUpdateTtl {
                lease: *lease,
                ttl_ms: self.leases.ttl_ms(*ttl_ms)?,
            },
            Request::PutWithNewLease(grant, put) => Operation::PutWithNewLease {
                grant: Box::new(self.leases.grant(grant)?),
                put: put.clone(),
            },
            _ => unreachable!("these are the writes of leases"),
        })
    }

    /// A read that the session which received it could not answer: by the lease, or because the
    /// store is behind. A serializable one waits for nothing but its revision.
    pub(super) fn start_read(&mut self, now: Instant, id: RequestId, call: &Call) {
        let deadline = now + read_patience(call);
        let mode = match call.consistency {
            Consistency::Linearizable | Consistency::MaxStaleness(_) => ReadMode::Any,
            Consistency::LinearizableQuorum => ReadMode::Quorum,
            Consistency::LeaseOnly => ReadMode::Lease,
            Consistency::Serializable => {
                self.pending
                    .add(id, deadline, PendingKind::Read(call.min_revision));
                return self.pending.wait_for_revision(id, call.min_revision, None);
            }
        };
        let asked_until = now + self.question_patience(read_patience(call));
        self.pending
            .add_read(id, asked_until, deadline, call.min_revision);
        if let Err(refused) = self.consensus.read(now, ReadId(id.0), mode) {
            self.pending.take_read(id);
            self.leases.forget(id);
            self.members.forget(id);
            self.refuse_because(id, refused);
        }
    }

    pub(super) fn permit_read(&mut self, id: RequestId, permit: ReadPermit) {
        self.pending.permit_read(id, permit);
    }

    /// Lets go the reads that the state machine has caught up with.
    pub(super) fn release_reads(&mut self) {
        while let Some((id, permit)) = self.pending.take_released(self.applied, self.revision) {
            if self.answer_lease_question(id, permit) || self.answer_member_list(id, permit) {
                continue;
            }
            self.outputs.push_back(match permit {
                Some(permit) => Output::Read(id, permit),
                None => Output::CaughtUp(id),
            });
        }
    }

    pub(super) fn answer_write(&mut self, id: LogId, reply: Reply) {
        let Some((term, request)) = self.pending.writes.get(&id.index).copied() else {
            return;
        };
        self.pending.remove(request);
        let result = if term == id.term || planted!(WaitersByIndex) {
            self.proposals.repeated += u64::from(reply.is_repeat);
            let header = self.header(reply.revision);
            match reply.result {
                Ok(Some(body)) => Ok(Response { header, body }),
                Ok(None) => Err(Error {
                    kind: ErrorKind::Internal,
                    outcome: Outcome::Applied,
                    detail: "the write was applied but produced no reply".to_owned(),
                    tries: None,
                }),
                Err(refusal) => Err(refusal),
            }
        } else {
            self.proposals.failed += 1;
            Err(Error::unknown(
                ErrorKind::LeaderChanged,
                "another leader's entry replaced this write; it is not known whether an earlier \
                 attempt took effect",
            ))
        };
        self.outputs.push_back(Output::Reply(request, result));
    }

    pub(super) fn expire_requests(&mut self, now: Instant) {
        let late = "the cluster did not finish the request within its deadline";
        let leads = self.consensus.leads_in().is_some();
        while let Some(expired) = self.pending.take_expired(now, leads) {
            let ExpiredRequest { id, what, .. } = expired;
            self.leases.forget(id);
            self.members.forget(id);
            self.proposals.failed += u64::from(matches!(what, PendingKind::Write(_)));
            let error = match what {
                PendingKind::Read(_) if expired.has_time_left => self.no_word_of_the_leader(),
                PendingKind::EarlyRead(revision) => Error::not_applied(
                    ErrorKind::FutureRevision,
                    format!(
                        "the read requires at least revision {revision}, but this node has reached \
                         {}: it lags behind, or this cluster never issued that revision",
                        self.revision
                    ),
                ),
                PendingKind::Read(_) | PendingKind::PermittedRead(..) => {
                    Error::not_applied(ErrorKind::DeadlineExceeded, late)
                }
                PendingKind::Write(_) | PendingKind::Transfer | PendingKind::Change => {
                    Error::unknown(ErrorKind::DeadlineExceeded, late)
                }
            };
            self.outputs.push_back(Output::Reply(id, Err(error)));
        }
    }

    /// How long a read may wait for the word of a leader that is another node: a part of its time,
    /// so that the rest is left for another node, which may reach that leader or know a newer one.
    fn question_patience(&self, patience: Duration) -> Duration {
        (patience / QUESTION_SHARE).min(self.options.timing.election_timeout_max)
    }

    /// The leader is heard, or was, and does not answer: it may hear nothing from here.
    fn no_word_of_the_leader(&self) -> Error {
        let detail = match self.consensus.status().leader {
            Some(leader) => format!(
                "{leader}, which leads by this node's knowledge, did not confirm the read in time: \
                 use another node"
            ),
            None => "no leader confirmed the read in time: use another node".to_owned(),
        };
        Error::not_applied(ErrorKind::QuorumTimeout, detail)
    }

    /// Answers what waits on a leadership that is over. A write is answered *unknown*: its entry
    /// may still be committed by the next leader.
    pub(super) fn give_up_on_lost_leadership(&mut self) {
        let leadership = self.consensus.leads_in();
        if self.pending.leadership == leadership {
            return;
        }
        self.pending.leadership = leadership;
        self.give_up_on_changes();
        planted!(WaitersKept => return);
        let over = |term: &Term| Some(*term) != leadership;
        let writes: Vec<RequestId> = self
            .pending
            .writes
            .values()
            .filter(|(term, _)| over(term))
            .map(|(_, id)| *id)
            .collect();
        for id in writes {
            self.pending.remove(id);
            self.proposals.failed += 1;
            let error = Error::unknown(
                ErrorKind::LeaderChanged,
                "this node lost leadership before the write was committed",
            );
            #[cfg(leasehold_bugs)]
            let error = planted_in_doubt(error);
            self.outputs.push_back(Output::Reply(id, Err(error)));
        }
    }

    /// Answers hand-overs once they are given up, or it is known who leads a later term: somebody
    /// else, or this node again, because they came to nothing.
    pub(super) fn answer_transfers(&mut self) {
        if self.pending.transfers.is_empty() {
            return;
        }
        let status = self.consensus.status();
        let Some(leader) = status.leader else { return };
        let given_up = leader == self.options.id && !self.consensus.is_handing_over();
        let over = |term: &Term| *term < status.term || given_up;
        let transfers = self.pending.transfers.iter();
        let transfers = transfers.filter(|(_, term)| over(term)).map(|(id, _)| *id);
        for id in transfers.collect::<Vec<RequestId>>() {
            self.pending.remove(id);
            let result = if leader == self.options.id {
                Err(Error::not_applied(
                    ErrorKind::DeadlineExceeded,
                    format!(
                        "the target did not become leader in time, and this node stays leader, in \
                         term {}: check whether the target is reachable, or name another",
                        status.term.0
                    ),
                ))
            } else {
                Ok(Response {
                    header: self.header(0),
                    body: ResponseBody::MoveLeader,
                })
            };
            self.outputs.push_back(Output::Reply(id, result));
        }
    }

    pub(super) fn refuse(&mut self, id: RequestId, kind: ErrorKind, detail: &str) {
        self.refuse_with(id, Error::not_applied(kind, detail));
    }

    pub(super) fn refuse_with(&mut self, id: RequestId, refusal: Error) {
        self.outputs.push_back(Output::Reply(id, Err(refusal)));
    }

    pub(super) fn refuse_because(&mut self, id: RequestId, refused: ProposalError) {
        match refused {
            ProposalError::NotLeader { .. } => self.refuse_not_leader(id),
            ProposalError::Transferring => self.refuse(
                id,
                ErrorKind::SlowDown { retry_after_ms: 10 },
                "leadership is being transferred: retry shortly",
            ),
            ProposalError::Busy => self.refuse(
                id,
                ErrorKind::SlowDown { retry_after_ms: 20 },
                "too many writes are waiting to be committed: retry shortly",
            ),
            ProposalError::TooLarge => self.refuse(
                id,
                ErrorKind::Internal,
                "the write is within the request limits but larger than one log entry",
            ),
            ProposalError::NoTarget => self.refuse(
                id,
                ErrorKind::InvalidArgument,
                "leadership cannot move there: the next leader must be another voter of this cluster",
            ),
            ProposalError::Membership(error) => self.refuse_membership_change(id, error),
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
                format!("this node is not the leader: send the request to {leader}"),
            ),
            None => Error::not_applied(
                ErrorKind::NoLeader,
                "no leader is known at the moment: retry shortly",
            ),
        }
    }
}

/// How long a read may wait here. One that waits for a revision is answered a little before its
/// deadline, so that the caller learns why it failed and not only that it did.
fn read_patience(call: &Call) -> Duration {
    let timeout = Duration::from_millis(u64::from(call.timeout_ms));
    match call.min_revision {
        0 => timeout,
        _ => timeout - (timeout / 10).min(Duration::from_millis(50)),
    }
}

#[cfg(leasehold_bugs)]
fn planted_in_doubt(error: Error) -> Error {
    if planted!(UnknownSaidRefused) {
        return Error::not_applied(error.kind, error.detail);
    }
    error
}
