//! The models of read leases: what each lets happen. The fourth replica is a learner, and holds one; in some models
//! a voter does.

use bytes::Bytes;
use leasehold::raft::{Change, Configuration, Envelope, JoinRole, Message, Timing};
use leasehold::types::{NodeId, Term};

use crate::marks::Mark;
use crate::scope::{Begin, FAST, Rate, SLOW, Scope, beating, holder, impatient, timing};
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

/// What the leader of term 1 says to the third, and what a later leader says to all.
fn of_the_deaf(envelope: &Envelope) -> bool {
    from_a_leader(envelope) && (to(envelope, 3) || envelope.term > Term(1))
}

fn is_ballot(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Vote(_))
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
        steps: Some(12),
        deaf: &[2],
        // The leader is asked for its vote in `grantors`.
        loses: |envelope| of_the_deaf(envelope) || to(envelope, 1) && is_ballot(envelope),
        expects: &[
            Mark::Granted,
            Mark::ReadLease,
            Mark::HeldRead,
            Mark::LaterLeader,
            Mark::PromiseKept,
        ],
        ..with_a_learner("grants", left)
    }
}

/// The same where the holder is the voter on whose promise the lease rests.
pub(crate) fn voting_holders(depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        timeouts: 1,
        rounds: 2 + depth,
        ..Left::default()
    };
    let timings = vec![timing(9, 3), holder(9, 3), timing(9, 3)];
    let held = held("voting_holders", left, timings);
    Scope {
        steps: Some(10),
        clocks: vec![vec![SLOW, SLOW, FAST], vec![SLOW, FAST, FAST]],
        configuration: Configuration {
            learners: [].into(),
            ..held.configuration
        },
        deaf: &[2],
        loses: |envelope| from_a_leader(envelope) && envelope.term > Term(1),
        expects: &[
            Mark::Granted,
            Mark::ReadLease,
            Mark::HeldRead,
            Mark::LaterLeader,
            Mark::PromiseKept,
        ],
        ..held
    }
}

/// One clock of the leader hardly runs, and it begins rounds for reads between its heartbeats.
pub(crate) fn uneven_clocks(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        rounds: 1,
        quorum_reads: 1 + depth,
        ..Left::default()
    };
    let stumbles = [Rate { boot: 2, raw: 1 }, Rate { boot: 1, raw: 2 }];
    let clocks = stumbles.map(|leader| vec![leader, FAST, FAST, SLOW]);
    let timings = vec![beating(9, 3, 1), timing(9, 3), timing(9, 3), holder(9, 3)];
    Scope {
        clocks: clocks.into(),
        deaf: &[2],
        // The lease rests on the round before the model begins: the second hears of no other.
        loses: |envelope| {
            of_the_deaf(envelope)
                || to(envelope, 1) && is_ballot(envelope)
                || from_a_leader(envelope) && to(envelope, 2)
        },
        expects: &[
            Mark::Granted,
            Mark::ReadLease,
            Mark::HeldRead,
            Mark::LaterLeader,
        ],
        ..held("uneven_clocks", left, timings)
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
        steps: Some(12),
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

/// A member that is granted its first read lease while it lacks what was committed, and reads that take their time.
pub(crate) fn latecomers(depth: u8) -> Scope {
    let left = Left {
        passes: 2,
        rounds: 1 + depth,
        proposals: 1,
        reads: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(13),
        begin: Begin::Led,
        slow_apply: &[3],
        candidates: &[],
        loses: |envelope| to(envelope, 3),
        expects: &[
            Mark::Granted,
            Mark::HeldRead,
            Mark::LateAnswer,
            Mark::CommitWithoutHolder,
        ],
        ..with_a_learner("latecomers", left)
    }
}

/// A holder for which commits may not wait at all, and grants that were made before they were recalled.
pub(crate) fn recalls(depth: u8) -> Scope {
    let left = Left {
        passes: 2,
        rounds: 1,
        proposals: 1 + depth,
        ..Left::default()
    };
    let timings = vec![impatient(9, 3, 0), timing(9, 3), timing(9, 3), holder(9, 3)];
    Scope {
        candidates: &[],
        loses: |envelope| to(envelope, 3),
        expects: &[
            Mark::Granted,
            Mark::HeldBack,
            Mark::Returned,
            Mark::CommitWithoutHolder,
        ],
        ..held("recalls", left, timings)
    }
}

/// A new member that is sent a whole state, and is granted a read lease afterwards.
pub(crate) fn installs(depth: u8) -> Scope {
    let left = Left {
        passes: 2,
        rounds: 1 + depth,
        proposals: 1,
        ..Left::default()
    };
    let joined = with_a_learner("installs", left);
    Scope {
        steps: Some(11),
        begin: Begin::Joined,
        configuration: Configuration {
            learners: [].into(),
            ..joined.configuration
        },
        change: Some(Change::Add {
            member: LEARNER,
            details: Bytes::new(),
            role: JoinRole::Learner,
        }),
        candidates: &[],
        slow_apply: &[3],
        deaf: &[2],
        loses: of_the_deaf,
        expects: &[
            Mark::Installed,
            Mark::Granted,
            Mark::HeldRead,
            Mark::HeldReadWaits,
        ],
        ..joined
    }
}

/// A new member that takes the place of a voter: of one that holds a read lease, and on whose promise the lease of
/// the leader rests. Those who elect in the new configuration may be others.
pub(crate) fn replacements(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        rounds: depth,
        ..Left::default()
    };
    let timings = vec![timing(9, 3), holder(9, 3), timing(9, 3), timing(9, 3)];
    let joined = held("replacements", left, timings);
    Scope {
        steps: Some(10),
        begin: Begin::Joined,
        configuration: Configuration {
            learners: [].into(),
            ..joined.configuration
        },
        change: Some(Change::Add {
            member: LEARNER,
            details: Bytes::new(),
            role: JoinRole::InPlaceOf(NodeId(2)),
        }),
        clocks: vec![vec![SLOW, SLOW, FAST, FAST]],
        candidates: &[3],
        deaf: &[2],
        // In the last configuration the third and the fourth are enough; and appends say all that is said.
        loses: |envelope| {
            let heartbeats = matches!(
                envelope.message,
                Message::Heartbeat(_) | Message::HeartbeatReply(_)
            );
            heartbeats || of_the_deaf(envelope) || !to(envelope, 3) && is_ballot(envelope)
        },
        expects: &[
            Mark::Installed,
            Mark::ReadLease,
            Mark::Returned,
            Mark::ChangeWaits,
        ],
        ..joined
    }
}

/// A holder that stops, says so, and asks for another read lease before that is heard. It is not granted one within these
/// bounds: its next life must acknowledge first what the one before has, so `ReturnOfAnyLife` is out of reach here.
pub(crate) fn returns(_depth: u8) -> Scope {
    let left = Left {
        passes: 2,
        rounds: 2,
        proposals: 1,
        stops: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        candidates: &[],
        // The holder hears heartbeats alone, and so nothing is committed as long as it is waited for.
        loses: |envelope| {
            let appends = matches!(envelope.message, Message::Append(_));
            to(envelope, 3) || appends && to(envelope, 4)
        },
        expects: &[Mark::Granted, Mark::HeldBack, Mark::Returned],
        ..with_a_learner("returns", left)
    }
}

/// A leader that has granted hears of a later term and steps down, or ends and begins again, and is asked for its
/// vote.
pub(crate) fn grantors(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        rounds: 1 + depth,
        restarts: 1,
        ..Left::default()
    };
    Scope {
        restarted: &[0],
        deaf: &[2],
        loses: |envelope| from_a_leader(envelope) && envelope.term > Term(1),
        expects: &[
            Mark::Granted,
            Mark::ReadLease,
            Mark::LaterLeader,
            Mark::PromiseKept,
        ],
        ..with_a_learner("grantors", left)
    }
}

/// Leadership handed over, past the promises, while a read lease is out.
pub(crate) fn held_handovers(depth: u8) -> Scope {
    let left = Left {
        passes: 2 + depth,
        rounds: 1,
        handovers: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[],
        loses: of_the_deaf,
        expects: &[
            Mark::ReadLease,
            Mark::Returned,
            Mark::TransferWaits,
            Mark::HandedOver,
        ],
        ..with_a_learner("held_handovers", left)
    }
}

/// A leader that stops, and sets its voters free if no read lease is out.
pub(crate) fn held_releases(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        rounds: 2 + depth,
        retirements: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(11),
        // It waits with a fast clock, or its read leases would outlast the model.
        clocks: waiting(),
        deaf: &[2],
        loses: of_the_deaf,
        expects: &[
            Mark::ReadLease,
            Mark::ReleaseWithheld,
            Mark::Release,
            Mark::LaterLeader,
        ],
        ..with_a_learner("held_releases", left)
    }
}

/// A holder that is removed, and may not hear of it.
pub(crate) fn removals(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        rounds: 1 + depth,
        changes: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(10),
        clocks: waiting(),
        candidates: &[],
        change: Some(Change::Remove(LEARNER)),
        loses: |envelope| to(envelope, 3),
        expects: &[
            Mark::ReadLease,
            Mark::HeldBack,
            Mark::Returned,
            Mark::CommitWithoutHolder,
        ],
        ..with_a_learner("removals", left)
    }
}

/// A holder that becomes a voter: joint configurations, which are left once no read lease is out.
pub(crate) fn promotions(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        rounds: depth,
        changes: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        change: Some(Change::Promote(LEARNER)),
        deaf: &[2],
        loses: of_the_deaf,
        expects: &[
            Mark::ReadLease,
            Mark::Returned,
            Mark::ChangeWaits,
            Mark::LaterLeader,
        ],
        ..with_a_learner("promotions", left)
    }
}
