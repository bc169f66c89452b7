use super::*;
use crate::raft::{Append, Entry, Heartbeat, LogOrigin, PreVote, Rejoin, RejoinReply};

fn entry(index: u64, term: u64) -> Entry {
    Entry {
        id: LogId::new(LogIndex(index), Term(term)),
        payload: Payload::Noop,
    }
}

/// Drains the outputs, makes everything durable at once, and gives what is sent.
fn settle(node: &mut Consensus, now: Instant) -> Vec<Message> {
    let mut sent = Vec::new();
    while let Some(output) = node.poll_output() {
        match output {
            Output::Persist(ticket, _) => node.handle(now, Input::Persisted(ticket)),
            Output::Send(envelope) => sent.push(envelope.message),
            _ => {}
        }
    }
    sent
}

/// A26: the same index and term, and another state: they would count as one log.
#[test]
fn members_that_were_restored_from_different_data_elect_no_leader() {
    let now = Instant::from_nanos(1_000_000_000);
    let later = Instant::from_nanos(60_000_000_000);
    for (hash, grants) in [(7, true), (8, false), (0, false)] {
        let restored = RestoredState {
            hard_state: HardState {
                term: Term(3),
                ..HardState::default()
            },
            base: LogId::new(LogIndex(100), Term(3)),
            base_configuration: Configuration {
                voters: [NodeId(1), NodeId(2), NodeId(3)].into(),
                ..Default::default()
            },
            applied: LogIndex(100),
            unproven: true,
            restored_from: Some(7),
            ..RestoredState::default()
        };
        let mut node = Consensus::new(NodeId(2), Timing::default(), restored, 7, now);
        settle(&mut node, now);
        let question = PreVote {
            round: RoundId(1),
            next_term: Term(4),
            last: LogId::new(LogIndex(100), Term(3)),
            origin: LogOrigin {
                first: LogId::default(),
                hash,
            },
        };
        let asks = Envelope {
            from: NodeId(1),
            to: NodeId(2),
            term: Term(3),
            message: Message::PreVote(question),
        };
        node.handle(later, Input::Message(asks));
        let said = settle(&mut node, later);
        let is_granted = |message: &Message| match message {
            Message::PreVoteReply(reply) => reply.ballot == Ballot::Granted,
            _ => false,
        };
        assert_eq!(said.iter().any(is_granted), grants, "{said:?}");
        assert!(node.is_unproven() && !node.is_quarantined());
    }
}

/// A log that lost its end may show, in its place, what had been cut there before: here 2@1,
/// where 2@2 was committed and applied. Taken for committed it could never be replaced, and
/// the replica would vote with it.
#[test]
fn a_damaged_log_is_not_taken_for_committed_because_something_was_applied() {
    let now = Instant::from_nanos(1_000_000_000);
    let restored = RestoredState {
        hard_state: HardState {
            term: Term(2),
            ..HardState::default()
        },
        base_configuration: Configuration {
            voters: [NodeId(1), NodeId(2), NodeId(3)].into(),
            ..Default::default()
        },
        entries: vec![entry(1, 1), entry(2, 1)],
        applied: LogIndex(2),
        quarantined: true,
        ..RestoredState::default()
    };
    let mut node = Consensus::new(NodeId(2), Timing::default(), restored, 7, now);
    settle(&mut node, now);
    let heartbeat = Heartbeat {
        round: RoundId(9),
        promise: Timing::default().lease_duration,
        commit: LogIndex(2),
        fresh: None,
    };
    let hears = |node: &mut Consensus, message| {
        let envelope = Envelope {
            from: NodeId(1),
            to: NodeId(2),
            term: Term(2),
            message,
        };
        node.handle(now, Input::Message(envelope));
        settle(node, now)
    };
    let said = hears(&mut node, Message::Heartbeat(heartbeat));
    let nonce = said.iter().find_map(|message| match message {
        Message::Rejoin(Rejoin { nonce }) => Some(*nonce),
        _ => None,
    });
    let reply = RejoinReply {
        nonce: nonce.expect("it asks how much it must hold"),
        through: LogIndex(2),
    };
    hears(&mut node, Message::RejoinReply(reply));
    assert!(node.is_quarantined(), "it holds 2@1, and 2@2 was meant");
    let append = Append {
        heartbeat,
        base: entry(1, 1).id,
        base_checksum: None,
        entries: vec![entry(2, 2)],
    };
    hears(&mut node, Message::Append(append));
    assert_eq!(node.status().last, entry(2, 2).id);
    assert!(!node.is_quarantined());
}
