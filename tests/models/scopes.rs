//! The models: what each lets happen.

use leasehold::raft::{Envelope, Message};
use leasehold::types::{NodeId, Term};

use crate::holder_scopes::*;
use crate::marks::Mark;
use crate::replica::NOTHING;
use crate::scope::{Begin, FAST, Rate, SLOW, Scope, timing, timing_with_drift};
use crate::world::Left;

/// All of them, by how deep they are to be gone through.
pub(crate) const ALL: &[fn(u8) -> Scope] = &[
    elections,
    batches,
    logs,
    writes,
    figure_8,
    quorum_reads,
    follower_reads,
    ages,
    rounds,
    conflicts,
    restarts,
    unequal_promises,
    rivals,
    pre_votes,
    crossed_pre_votes,
    twice_leader,
    handovers,
    stale_authority,
    late_orders,
    late_words,
    releases,
    released_restarts,
    late_votes,
    steps_back,
    two_clocks,
    fresh_reads,
    bootstraps,
    wiped_voters,
    grants,
    voting_holders,
    uneven_clocks,
    gates,
    latecomers,
    recalls,
    installs,
    returns,
    grantors,
    held_handovers,
    held_releases,
    removals,
    promotions,
    replacements,
];

/// What leaders say to all, and not to one.
fn from_a_leader(envelope: &Envelope) -> bool {
    matches!(envelope.message, Message::Heartbeat(_) | Message::Append(_))
}

fn from_a_later_leader(envelope: &Envelope) -> bool {
    from_a_leader(envelope) && envelope.term > Term(1)
}

fn heartbeat(envelope: &Envelope) -> bool {
    matches!(
        envelope.message,
        Message::Heartbeat(_) | Message::HeartbeatReply(_)
    )
}

/// Votes and terms: whoever wants to be elected may try, processes crash with writes on their way.
/// Leaders are not heard, so their terms end as soon as anyone wants.
pub(crate) fn elections(depth: u8) -> Scope {
    let left = Left {
        timeouts: 2 + depth.min(1),
        restarts: 1,
        duplicates: depth.saturating_sub(1),
        ..Left::default()
    };
    Scope {
        loses: from_a_leader,
        expects: &[Mark::Vote, Mark::LaterLeader, Mark::WriteLost],
        ..Scope::timeless("elections", Begin::Fresh, left)
    }
}

/// The same with messages that are handled together.
pub(crate) fn batches(depth: u8) -> Scope {
    let left = Left {
        timeouts: 2,
        batches: 1 + depth,
        ..Left::default()
    };
    Scope {
        loses: from_a_leader,
        expects: &[Mark::Vote, Mark::LaterLeader],
        ..Scope::timeless("batches", Begin::Fresh, left)
    }
}

/// Logs: what is committed under one leader is kept by the next.
pub(crate) fn logs(depth: u8) -> Scope {
    let left = Left {
        timeouts: 1 + depth,
        rounds: 1,
        proposals: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(11),
        slow_disks: false,
        candidates: &[2, 1],
        expects: &[Mark::LaterLeader, Mark::Commit],
        ..Scope::timeless("logs", Begin::Led, left)
    }
}

/// Writes: what is acknowledged has been synced, wherever a crash comes between.
pub(crate) fn writes(depth: u8) -> Scope {
    let left = Left {
        timeouts: 1,
        proposals: 1,
        restarts: 1 + depth,
        ..Left::default()
    };
    Scope {
        steps: Some(14),
        candidates: &[2],
        loses: heartbeat,
        expects: &[Mark::Commit, Mark::WriteLost],
        ..Scope::timeless("writes", Begin::Led, left)
    }
}

/// Figure 8 of the Raft paper: an entry that a quorum holds, and that is not committed.
pub(crate) fn figure_8(_depth: u8) -> Scope {
    let left = Left {
        timeouts: 3,
        proposals: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(19),
        slow_disks: false,
        large_command: true,
        candidates: &[0, 2],
        // The first is heard by the second alone, and its command by nobody before it leads anew;
        // the third is never heard but when it wants to be elected.
        loses: |envelope| {
            let (from, to) = (envelope.from, envelope.to);
            let heard = from == NodeId(1) && to == NodeId(2) && envelope.term > Term(1);
            let aside = from != NodeId(2) && to != NodeId(2);
            let answer = matches!(envelope.message, Message::VoteReply(_));
            heartbeat(envelope) || from_a_leader(envelope) && !heard || answer && aside
        },
        expects: &[Mark::LaterLeader, Mark::Commit],
        ..Scope::timeless("figure_8", Begin::Led, left)
    }
}

/// Reads by quorum, at a leader that is deposed and at one that is new.
pub(crate) fn quorum_reads(depth: u8) -> Scope {
    let left = Left {
        timeouts: 1,
        rounds: 1,
        proposals: 1,
        quorum_reads: 1 + depth,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        slow_disks: false,
        slow_apply: &[2],
        candidates: &[2],
        // Between the leaders passes nothing but the command and the question for a vote.
        loses: |envelope| {
            let second = envelope.from == NodeId(2) || envelope.to == NodeId(2);
            !second && (heartbeat(envelope) || from_a_later_leader(envelope))
        },
        expects: &[Mark::LaterLeader, Mark::Commit, Mark::QuorumRead],
        ..Scope::timeless("quorum_reads", Begin::Led, left)
    }
}

/// Reads that arrive at a follower, of a leader that may be another before they are answered.
pub(crate) fn follower_reads(depth: u8) -> Scope {
    Scope {
        name: "follower_reads",
        steps: Some(11),
        left: Left {
            rounds: 1 + depth,
            ..quorum_reads(0).left
        },
        follower_reads: true,
        ..quorum_reads(0)
    }
}

/// How old a state is said to be, by slow clocks and by fast ones.
pub(crate) fn ages(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        rounds: 2,
        timeouts: 1,
        proposals: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(10),
        timings: vec![timing_with_drift(); 3],
        clocks: vec![vec![SLOW, FAST, FAST], vec![FAST, SLOW, SLOW]],
        candidates: &[2],
        ages: true,
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::Age],
        ..Scope::timed("ages", Begin::Led, left)
    }
}

/// A lease and its rounds: echoes late, twice and out of order, and somebody who wants to lead.
pub(crate) fn rounds(depth: u8) -> Scope {
    let left = Left {
        passes: 5,
        timeouts: 1,
        rounds: 2,
        duplicates: depth,
        ..Left::default()
    };
    Scope {
        steps: Some(11),
        candidates: &[2],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::PromiseKept],
        ..Scope::timed("rounds", Begin::Led, left)
    }
}

/// The same with less of a margin than the clocks may differ by.
pub(crate) fn too_small_a_margin(depth: u8) -> Scope {
    Scope {
        name: "too_small_a_margin",
        timings: vec![timing(9, 2); 3],
        ..rounds(depth)
    }
}

/// Voters that forget what they promised, and keep silent instead.
pub(crate) fn restarts(depth: u8) -> Scope {
    let left = Left {
        passes: 4 + depth,
        timeouts: 1,
        rounds: 1,
        restarts: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[2],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::Silence],
        ..Scope::timed("restarts", Begin::Led, left)
    }
}

/// A voter that is set to promise less than it is asked for, and forgets.
pub(crate) fn unequal_promises(depth: u8) -> Scope {
    Scope {
        name: "unequal_promises",
        timings: vec![timing(9, 3), timing(6, 0), timing(9, 3)],
        ..restarts(depth)
    }
}

/// Appends that do not fit, which promise all the same.
pub(crate) fn conflicts(depth: u8) -> Scope {
    let left = Left {
        passes: 5,
        timeouts: 1,
        rounds: 1,
        proposals: 2 + depth,
        ..Left::default()
    };
    Scope {
        candidates: &[2],
        // The third hears nothing, and the second learns of a round by appends alone.
        loses: |envelope| {
            heartbeat(envelope)
                || from_a_leader(envelope) && (envelope.to == NodeId(3) || envelope.term > Term(1))
        },
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::PromiseKept],
        ..Scope::timed("conflicts", Begin::Led, left)
    }
}

/// One leader in two terms, with answers to the first on their way in the second.
pub(crate) fn twice_leader(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 3,
        rounds: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        loses: |envelope| {
            from_a_leader(envelope) && (envelope.from != NodeId(1) || envelope.to != NodeId(2))
        },
        expects: &[Mark::Lease, Mark::LaterLease, Mark::LaterLeader],
        ..Scope::timed("twice_leader", Begin::Led, left)
    }
}

/// Two who want to lead: terms come back to voters and to the leader from all sides.
pub(crate) fn rivals(depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        timeouts: 2,
        rounds: 1 + depth,
        ..Left::default()
    };
    Scope {
        candidates: &[1, 2],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::PromiseKept],
        ..Scope::timed("rivals", Begin::Led, left)
    }
}

/// Pre-votes as they are, late ones among them.
pub(crate) fn pre_votes(depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        timeouts: 1 + depth,
        rounds: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[2, 1],
        pre_votes_granted: false,
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::PromiseKept],
        ..Scope::timed("pre_votes", Begin::Led, left)
    }
}

/// Two who ask around at once: to one of them the other's later term comes with the answer to its own question,
/// after it has promised. Nothing else brings a later term to a voter that promises, for a candidate's word does not.
pub(crate) fn crossed_pre_votes(depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 2,
        rounds: 1 + depth,
        ..Left::default()
    };
    Scope {
        candidates: &[1, 2],
        pre_votes_granted: false,
        // The leader and the third talk of nothing, so that the second is the only one who promises; and it is
        // the third who is elected.
        loses: |envelope| {
            let second = envelope.from == NodeId(2) || envelope.to == NodeId(2);
            !second || from_a_later_leader(envelope)
        },
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::PromiseKept],
        ..Scope::timed("crossed_pre_votes", Begin::Led, left)
    }
}

/// Leadership handed over, late or in vain.
pub(crate) fn handovers(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 1,
        rounds: 1,
        handovers: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[1, 2],
        expects: &[
            Mark::Lease,
            Mark::LaterLease,
            Mark::LaterLeader,
            Mark::HandedOver,
            Mark::PromiseKept,
        ],
        loses: from_a_later_leader,
        ..Scope::timed("handovers", Begin::Led, left)
    }
}

/// One to whom leadership was handed over in vain, and who wants it again.
pub(crate) fn stale_authority(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 2,
        handovers: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[1, 2],
        loses: |envelope| {
            heartbeat(envelope)
                || from_a_leader(envelope)
                    && (envelope.from != NodeId(3) || envelope.to != NodeId(1))
        },
        expects: &[Mark::LaterLease, Mark::LaterLeader, Mark::HandedOver],
        ..Scope::timed("stale_authority", Begin::Led, left)
    }
}

/// The word to campaign comes to one who follows the next leader by then, and whose promise that one's lease rests
/// on.
pub(crate) fn late_orders(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 1,
        handovers: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[2],
        loses: |envelope| {
            heartbeat(envelope) || from_a_later_leader(envelope) && envelope.to != NodeId(2)
        },
        expects: &[Mark::LaterLease, Mark::LaterLeader, Mark::HandedOver],
        ..Scope::timed("late_orders", Begin::Led, left)
    }
}

/// A hand-over that was given up, and of which the other hears afterwards.
pub(crate) fn late_words(depth: u8) -> Scope {
    let left = Left {
        passes: 4 + depth,
        rounds: 2,
        handovers: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(9),
        clocks: vec![vec![FAST, FAST, FAST]],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::HandedOver],
        ..Scope::timed("late_words", Begin::Led, left)
    }
}

/// A leader that stops, and sets its voters free; some hear of it when they follow another.
pub(crate) fn releases(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 2,
        rounds: 1,
        retirements: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(10),
        candidates: &[2, 0],
        // A later leader is heard by the second alone.
        loses: |envelope| {
            from_a_later_leader(envelope) && (envelope.to != NodeId(2) || heartbeat(envelope))
        },
        expects: &[
            Mark::Lease,
            Mark::LaterLeader,
            Mark::LaterLease,
            Mark::Release,
        ],
        ..Scope::timed("releases", Begin::Led, left)
    }
}

/// The same with voters that forget what they promised.
pub(crate) fn released_restarts(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 1,
        rounds: 1,
        retirements: 1,
        restarts: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(11),
        candidates: &[2],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader, Mark::Release, Mark::Silence],
        ..Scope::timed("released_restarts", Begin::Led, left)
    }
}

/// Votes that are being written while rounds come in.
pub(crate) fn late_votes(depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        timeouts: 1,
        rounds: 1 + depth,
        batches: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[2],
        slow_disks: true,
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader],
        ..Scope::timed("late_votes", Begin::Led, left)
    }
}

/// Clocks that run backwards.
pub(crate) fn steps_back(depth: u8) -> Scope {
    let left = Left {
        passes: 5,
        timeouts: 1,
        rounds: 1,
        steps_back: 1 + depth,
        ..Left::default()
    };
    Scope {
        steps: Some(10),
        candidates: &[2],
        step_back: 4,
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader],
        ..Scope::timed("steps_back", Begin::Led, left)
    }
}

/// One clock of each pair is useless: it stands still where a lease is trusted, and races where a
/// promise is kept.
pub(crate) fn two_clocks(_depth: u8) -> Scope {
    let left = Left {
        passes: 4,
        timeouts: 1,
        rounds: 1,
        ..Left::default()
    };
    let sleeps = |boot, raw| Rate { boot, raw };
    let (slow, fast, races) = (SLOW.boot, FAST.boot, 3 * FAST.boot);
    let leads = [sleeps(slow, 0), sleeps(0, slow)];
    let votes = [sleeps(fast, races), sleeps(races, fast)];
    let clocks = leads
        .iter()
        .flat_map(|leader| votes.map(|voter| vec![*leader, voter, voter]));
    Scope {
        clocks: clocks.collect(),
        candidates: &[2],
        loses: from_a_later_leader,
        expects: &[Mark::Lease, Mark::LaterLeader],
        ..Scope::timed("two_clocks", Begin::Led, left)
    }
}

/// Reads at a new leader that has not yet applied what it was elected with.
pub(crate) fn fresh_reads(_depth: u8) -> Scope {
    let left = Left {
        passes: 3,
        timeouts: 1,
        proposals: 1,
        reads: 1,
        ..Left::default()
    };
    Scope {
        candidates: &[2],
        slow_apply: &[2],
        loses: heartbeat,
        expects: &[
            Mark::Lease,
            Mark::LaterLease,
            Mark::LateAnswer,
            Mark::SnapshotTooOld,
        ],
        ..Scope::timed("fresh_reads", Begin::Led, left)
    }
}

/// A cluster that begins, whatever becomes of it then: a member that heard nothing of it, and one that lost it all.
pub(crate) fn bootstraps(depth: u8) -> Scope {
    let left = Left {
        timeouts: 2,
        wipes: 1,
        waits: 1 + depth,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        base: NOTHING,
        loses: heartbeat,
        expects: &[Mark::Vote, Mark::Commit, Mark::Wiped],
        ..Scope::timed("bootstraps", Begin::Fresh, left)
    }
}

/// Voters that lose everything, the votes that they have given among it.
pub(crate) fn wiped_voters(depth: u8) -> Scope {
    let left = Left {
        passes: 3 + depth,
        timeouts: 1,
        rounds: 1,
        wipes: 1,
        ..Left::default()
    };
    Scope {
        steps: Some(12),
        base: NOTHING,
        candidates: &[2],
        wiped: &[1],
        loses: from_a_later_leader,
        expects: &[
            Mark::Lease,
            Mark::LaterLeader,
            Mark::PromiseKept,
            Mark::Wiped,
        ],
        ..Scope::timed("wiped_voters", Begin::Led, left)
    }
}
