//! Peers played by the input: honest ones, that answer what they are asked, and hostile ones, that
//! know everything about the node they talk to and say whatever they like.

use std::time::Duration;

use bytes::Bytes;
use leasehold::raft::{
    Append, AppendReply, Ballot, Configuration, Confirmation, Conflict, Consensus, Entry, Envelope,
    Fresh, Heard, Heartbeat, HeartbeatReply, LogOrigin, Message, Payload, PreVote, PreVoteReply,
    ReadGrant, ReadIndex, ReadIndexReply, ReadMode, Reason, Rejoin, RejoinReply, RoundId,
    TimeoutNow, UnsavedState, Verdict, Vote, VoteReply,
};
use leasehold::types::{LogId, LogIndex, NodeId, Term};

use super::disk::place;
use super::draw::Draw;

/// The node that is fuzzed; its peers are 2 and 3, and whoever else claims to be one.
pub const NODE: NodeId = NodeId(1);

/// A configuration of these voters.
pub fn voters(ids: impl IntoIterator<Item = u64>) -> Configuration {
    Configuration {
        voters: ids.into_iter().map(NodeId).collect(),
        ..Configuration::default()
    }
}

/// What the peers know of the node: what it said, and how it stands.
#[derive(Debug, Default)]
pub struct Peers {
    /// Messages that the node sent and nobody has answered, oldest first.
    unanswered: Vec<Envelope>,
    /// The last names that it gave to rounds, questions and lives.
    round: u64,
    name: u64,
    nonce: u64,
    /// What the node's log holds, as far as it was handed out to be written.
    pub log: Vec<Entry>,
}

/// Messages that are remembered to be answered.
const UNANSWERED_MAX: usize = 64;

impl Peers {
    /// The node sent this.
    pub fn hear(&mut self, envelope: &Envelope) {
        match &envelope.message {
            Message::PreVote(question) => self.round = question.round.0,
            Message::Vote(question) => self.round = question.round.0,
            Message::Heartbeat(heartbeat) => self.round = heartbeat.round.0,
            Message::Append(append) => self.round = append.heartbeat.round.0,
            Message::Rejoin(question) => self.nonce = question.nonce,
            Message::ReadIndex(question) => self.name = question.name.0,
            Message::HeartbeatReply(reply) => {
                self.name = reply.name.0;
                return;
            }
            _ => return,
        }
        if self.unanswered.len() == UNANSWERED_MAX {
            self.unanswered.remove(0);
        }
        self.unanswered.push(envelope.clone());
    }

    /// The node wants this to be written.
    pub fn write(&mut self, unsaved: &UnsavedState) {
        if let Some(first) = unsaved.entries.first() {
            self.log.truncate(place(first.id.index));
        }
        self.log.extend(unsaved.entries.iter().cloned());
    }

    /// What an honest peer answers to something that the node said.
    pub fn answer(&mut self, draw: &mut Draw<'_>) -> Option<Envelope> {
        if self.unanswered.is_empty() {
            return None;
        }
        let place = draw.below(self.unanswered.len());
        let said = self.unanswered.remove(place);
        let heard = |round| Heard {
            round,
            promised: true,
        };
        let message = match said.message {
            Message::PreVote(question) => Message::PreVoteReply(PreVoteReply {
                round: question.round,
                ballot: Ballot::Granted,
            }),
            Message::Vote(question) => Message::VoteReply(VoteReply {
                round: question.round,
                ballot: Ballot::Granted,
                promised: question.transfer_from.is_some(),
            }),
            Message::Heartbeat(heartbeat) => Message::HeartbeatReply(HeartbeatReply {
                heard: heard(heartbeat.round),
                verified: LogIndex(0),
                name: heartbeat.round,
                wants_read_lease: draw.bool(),
            }),
            Message::ReadIndex(question) => Message::ReadIndexReply(ReadIndexReply {
                name: question.name,
                mode: question.mode,
                confirmed: Some(Confirmation {
                    index: self.log.last().map_or(LogIndex(0), |entry| entry.id.index),
                    lease_remaining: draw.bool().then_some(Duration::from_millis(400)),
                }),
            }),
            Message::Append(append) => {
                let through = append.entries.last().map_or(append.base, |entry| entry.id);
                Message::Appended(AppendReply {
                    heard: heard(append.heartbeat.round),
                    verdict: Verdict::Durable(through.index),
                })
            }
            Message::Rejoin(question) => Message::RejoinReply(RejoinReply {
                nonce: question.nonce,
                through: self.log.last().map_or(LogIndex(0), |entry| entry.id.index),
            }),
            _ => return None,
        };
        Some(Envelope {
            from: said.to,
            to: said.from,
            term: said.term,
            message,
        })
    }

    /// Anything at all, from anybody.
    pub fn lie(&self, draw: &mut Draw<'_>, node: &Consensus) -> Envelope {
        let from = NodeId(draw.of(&[2, 3, 2, 3, 4, 9, 1, 0]));
        let to = if draw.one_in(16) { NodeId(2) } else { NODE };
        let status = node.status();
        let term = draw.number(&[status.term.0, status.last.term.0]);
        Envelope {
            from,
            to,
            term: Term(term),
            message: self.message(draw, node, term),
        }
    }

    fn message(&self, draw: &mut Draw<'_>, node: &Consensus, term: u64) -> Message {
        match draw.below(15) {
            0 => Message::PreVote(PreVote {
                round: self.round(draw),
                next_term: self.term(draw, node),
                last: self.place(draw, node),
                origin: LogOrigin::default(),
            }),
            1 => Message::PreVoteReply(PreVoteReply {
                round: self.round(draw),
                ballot: ballot(draw),
            }),
            2 => Message::Vote(Vote {
                round: self.round(draw),
                last: self.place(draw, node),
                origin: LogOrigin::default(),
                promise: length(draw),
                transfer_from: draw
                    .bool()
                    .then(|| Term(draw.number(&[term, term.wrapping_sub(1)]))),
            }),
            3 => Message::VoteReply(VoteReply {
                round: self.round(draw),
                ballot: ballot(draw),
                promised: draw.bool(),
            }),
            4 => Message::Heartbeat(self.heartbeat(draw, node)),
            5 => Message::HeartbeatReply(HeartbeatReply {
                heard: self.heard(draw),
                verified: self.index(draw, node),
                name: RoundId(draw.number(&[self.name])),
                wants_read_lease: draw.bool(),
            }),
            6 | 7 => Message::Append(self.append(draw, node, term)),
            8 => Message::Appended(AppendReply {
                heard: self.heard(draw),
                verdict: match draw.below(3) {
                    0 => Verdict::Durable(self.index(draw, node)),
                    1 => Verdict::Held(self.index(draw, node)),
                    _ => Verdict::Conflict(Conflict {
                        base: self.index(draw, node),
                        first: self.place(draw, node),
                    }),
                },
            }),
            9 => Message::TimeoutNow(TimeoutNow {
                last: self.place(draw, node),
                commit: self.index(draw, node),
                id: draw.number(&[]),
            }),
            10 => Message::Release,
            11 => Message::Rejoin(Rejoin {
                nonce: draw.number(&[self.nonce]),
            }),
            12 => Message::ReadIndex(ReadIndex {
                name: RoundId(draw.number(&[self.name])),
                mode: mode(draw),
            }),
            13 => Message::ReadIndexReply(ReadIndexReply {
                name: RoundId(draw.number(&[self.name])),
                mode: mode(draw),
                confirmed: draw.bool().then(|| Confirmation {
                    index: self.index(draw, node),
                    lease_remaining: draw.bool().then(|| length(draw)),
                }),
            }),
            _ => Message::RejoinReply(RejoinReply {
                nonce: draw.number(&[self.nonce]),
                through: self.index(draw, node),
            }),
        }
    }

    fn append(&self, draw: &mut Draw<'_>, node: &Consensus, term: u64) -> Append {
        let heartbeat = self.heartbeat(draw, node);
        let base = self.place(draw, node);
        let mut last = base;
        let entries = (0..draw.below(5)).map(|_| {
            let shape = draw.byte();
            let index = match shape {
                0..=239 => last.index.0.wrapping_add(1),
                _ => draw.number(&[last.index.0, node.status().last.index.0]),
            };
            let written = match shape % 4 {
                0 => term,
                1 | 2 => last.term.0,
                _ => draw.number(&[term, last.term.0]),
            };
            last = LogId::new(LogIndex(index), Term(written));
            Entry {
                id: last,
                payload: payload(draw),
            }
        });
        let entries = entries.collect();
        Append {
            heartbeat,
            base,
            // Mostly another than that of what is held there, and then the node takes nothing any more.
            base_checksum: (draw.below(16) == 0).then(|| draw.number(&[0]) as u32),
            entries,
        }
    }

    fn heartbeat(&self, draw: &mut Draw<'_>, node: &Consensus) -> Heartbeat {
        Heartbeat {
            round: self.round(draw),
            promise: length(draw),
            commit: self.index(draw, node),
            fresh: draw.bool().then(|| Fresh {
                name: RoundId(draw.number(&[self.name])),
                index: self.index(draw, node),
                grant: draw.bool().then(|| ReadGrant {
                    length: Duration::from_millis(draw.number(&[1, 400, 600])),
                    floor: self.index(draw, node),
                }),
            }),
        }
    }

    fn heard(&self, draw: &mut Draw<'_>) -> Heard {
        Heard {
            round: self.round(draw),
            promised: draw.bool(),
        }
    }

    fn round(&self, draw: &mut Draw<'_>) -> RoundId {
        RoundId(draw.number(&[self.round]))
    }

    fn term(&self, draw: &mut Draw<'_>, node: &Consensus) -> Term {
        let status = node.status();
        Term(draw.number(&[status.term.0, status.last.term.0]))
    }

    fn index(&self, draw: &mut Draw<'_>, node: &Consensus) -> LogIndex {
        let status = node.status();
        LogIndex(draw.number(&[status.last.index.0, status.commit.0]))
    }

    /// A place in a log: mostly one of the node's own.
    fn place(&self, draw: &mut Draw<'_>, node: &Consensus) -> LogId {
        match draw.below(4) {
            0 => LogId::new(self.index(draw, node), self.term(draw, node)),
            1 => node.status().last,
            _ if self.log.is_empty() => LogId::default(),
            _ => self.log[draw.below(self.log.len().min(256))].id,
        }
    }
}

pub fn mode(draw: &mut Draw<'_>) -> ReadMode {
    draw.of(&[ReadMode::Any, ReadMode::Quorum, ReadMode::Lease])
}

fn ballot(draw: &mut Draw<'_>) -> Ballot {
    match draw.below(4) {
        0 => Ballot::Withheld(draw.of(&[
            Reason::Term,
            Reason::Promise,
            Reason::Leads,
            Reason::Log,
            Reason::Voted,
            Reason::Quarantined,
        ])),
        _ => Ballot::Granted,
    }
}

/// How long a promise is asked for.
fn length(draw: &mut Draw<'_>) -> Duration {
    match draw.below(8) {
        0 => Duration::ZERO,
        1 => Duration::MAX,
        2 => Duration::from_secs(60),
        3 => Duration::from_nanos(60_000_000_001),
        _ => Duration::from_millis(500),
    }
}

fn payload(draw: &mut Draw<'_>) -> Payload {
    match draw.below(8) {
        0 | 1 => Payload::Noop,
        2 => Payload::Configuration(Box::new(configuration(draw))),
        _ => Payload::Command(Bytes::copy_from_slice(draw.bytes(8))),
    }
}

fn configuration(draw: &mut Draw<'_>) -> Configuration {
    let mut set = || {
        let members = draw.byte();
        (0..8)
            .filter(move |bit| members >> bit & 1 == 1)
            .map(NodeId)
            .collect()
    };
    let (voters, learners, outgoing) = (set(), set(), set());
    let outgoing = draw.bool().then_some(outgoing);
    let member = NodeId(u64::from(draw.byte() % 8));
    let replaced = draw.bool().then_some(NodeId(1));
    Configuration {
        voters,
        outgoing,
        learners,
        joining: [(member, replaced)].into(),
        details: [(member, Bytes::copy_from_slice(draw.bytes(8)))].into(),
    }
}
