//! R6 across syncs, and R9: nothing is said before what it rests on is durable.

use leasehold::raft::{Ballot, Envelope, HardState, Message, Verdict};

use super::logs::Seen;
use super::{Violation, id, slot, violation};
use crate::disk::SimDisk;

/// R6: on disk, too, the term goes forward, a vote is not taken back, a promise is not shortened.
pub(crate) fn hard_state_goes_on(
    node: usize,
    before: HardState,
    after: HardState,
) -> Result<(), Violation> {
    let backwards = after.term < before.term || after.promise_floor < before.promise_floor;
    let taken_back =
        after.term == before.term && before.vote.is_some() && after.vote != before.vote;
    if backwards || taken_back {
        let what = format!("{}: {after:?} is written over {before:?}", id(node));
        return violation("R6 votes are kept", what);
    }
    Ok(())
}

/// R11: a damaged replica neither votes, nor asks for votes, nor acknowledges; one that has lost its
/// vote file as well does not even promise.
pub(crate) fn says_nothing_that_counts(
    node: usize,
    envelope: &Envelope,
    wiped: bool,
) -> Result<(), Violation> {
    let counts = match &envelope.message {
        Message::PreVote(_) | Message::Vote(_) | Message::Heartbeat(_) | Message::Append(_) => true,
        Message::PreVoteReply(reply) => reply.ballot == Ballot::Granted,
        Message::VoteReply(reply) => reply.ballot == Ballot::Granted,
        Message::Appended(appended) => {
            matches!(appended.verdict, Verdict::Durable(_)) || wiped && appended.heard.promised
        }
        Message::HeartbeatReply(reply) => wiped && reply.heard.promised,
        _ => false,
    };
    if counts {
        let what = format!("{} says {envelope:?}", id(node));
        return violation("R11 a damaged replica has no say", what);
    }
    Ok(())
}

/// R9.
pub(crate) fn before_it_is_said(
    node: usize,
    envelope: &Envelope,
    disk: &SimDisk,
    mirror: &[Seen],
) -> Result<(), Violation> {
    let hard = disk.hard();
    let object = |what: String| {
        let what = format!(
            "{} says {envelope:?}, and {what}; on disk {hard:?}",
            id(node)
        );
        violation("R9 durable before it is said", what)
    };
    let promised = match &envelope.message {
        Message::HeartbeatReply(reply) => reply.heard.promised,
        Message::Appended(appended) => appended.heard.promised,
        _ => false,
    };
    // Who promises a leader of one term must not follow one of an earlier term after a crash.
    if promised && hard.term < envelope.term {
        return object("the term in which it promises is not durable".to_owned());
    }
    match &envelope.message {
        Message::VoteReply(reply)
            if reply.ballot == Ballot::Granted
                && (hard.term != envelope.term || hard.vote != Some(envelope.to)) =>
        {
            return object("the vote is not durable".to_owned());
        }
        Message::Appended(appended) => {
            if let Verdict::Durable(index) = appended.verdict
                && let Some(place) = slot(index)
            {
                let held = mirror.get(place).map(|seen| seen.term);
                if held.is_none() || disk.term_at(index) != held {
                    return object(format!("entry {index} is not durable"));
                }
            }
        }
        Message::Heartbeat(_) | Message::Append(_)
            if (hard.term != envelope.term || hard.vote != Some(id(node))) =>
        {
            return object("its vote for itself is not durable".to_owned());
        }
        _ => {}
    }
    Ok(())
}
