//! The models of read leases: what each lets happen. The fourth replica is a learner, and holds one; in some models
//! a voter does.

use leasehold::raft::{Change, Configuration, Envelope, Message, Timing};
use leasehold::types::{NodeId, Term};

use crate::marks::Mark;
use crate::scope::{Begin, FAST, Rate, SLOW, Scope, holder, impatient, timing};
use crate::world::Left;

const LEARNER: NodeId = NodeId(4);

/// A slow leader and a slow holder, who trust, and fast voters, who promise.
fn trusting() -> Vec<Vec<Rate>> {
    vec![vec![SLOW, FAST, FAST, SLOW]]
}

/// A fast leader, who waits for a slow holder.
fn waiting() -> Vec<Vec<Rate>> {
    vec![vec![FAST, FAST, FAST, SLOW]]
}

fn to(envelope: &Envelope, id: u64) -> bool {
    envelope.to == NodeId(id)
}

/// What passes between the leader of term 1 and the third, or from a later leader to whomever.
fn of_the_deaf(envelope: &Envelope) -> bool {
    from_a_leader(envelope) && (to(envelope, 3) || envelope.term > Term(1))
}

fn from_a_leader(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Heartbeat(_) | Message::Append(_))
}

/// Three voters, and a learner that holds a read lease.
fn with_a_learner(name: &'static str, left: Left) -> Scope {
    let timings = vec![timing(9, 3), timing(9, 3), timing(9, 3), holder(9, 3)];
    held(name, left, timings)
}

fn held(name: &'static str, left: Left, timings: Vec<Timing>) -> Scope {
    let timed = Scope::timed(name, Begin::Held, left);
    Scope {
        timings,
        clocks: trusting(),
        configuration: Configuration {
            learners: [LEARNER].into(),
            ..timed.configuration
        },
        candidates: &[2],
        ..timed
    }
}

/// Grants, late and lost, and a voter that wants to lead once its promise and another's are over.
pub(crate) fn grants(depth: u8) -> Scope {
    let left = Left {
        passes: 4 + depth,
        timeouts: 1,
        rounds: 2,
        ..Left::default()
    };
    Scope {
        deaf: &[2],
        loses: of_the_deaf,
        expects: &[Mark::Granted, Mark::ReadLease, Mark::HeldRead, Mark::LaterLeader, Mark::PromiseKept],
        ..with_a_learner("grants", left)
    }
}

/// Commits, for which a quorum would do, and a holder that hears of them late.
pub(crate) fn gates(depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        rounds: 1 + depth,
        proposals: 1,
        ..Left::default()
    };
    Scope {
        clocks: waiting(),
        candidates: &[],
        loses: |envelope| to(envelope, 3),
        expects: &[
            Mark::Granted,
            Mark::HeldBack,
            Mark::HeldRead,
            Mark::HeldReadWaits,
            Mark::CommitWithoutHolder,
        ],
        ..with_a_learner("gates", left)
    }
}
