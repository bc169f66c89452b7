//! A path through a model, told like the golden conversations of `src/raft/testdata`.

use std::sync::Arc;

use leasehold::raft::{Ballot, Heard, LeaseCell, Message, RoundId, Verdict};
use leasehold::types::Role;

use crate::replica::Replica;
use crate::scope::Scope;
use crate::world::{Action, World};

/// One line for each step, and below it what it changed.
pub(crate) fn tell(scope: &Scope, path: &[(World, Option<Action>)]) -> String {
    let mut text = String::new();
    for (world, action) in path {
        let Some(action) = action else {
            continue;
        };
        let Some(next) = world.after(scope, *action) else {
            continue;
        };
        text.push_str(&format!("{}q {}\n", world.time, step(world, *action)));
        for line in changes(world, &next) {
            text.push_str(&format!("     {line}\n"));
        }
        if let Some(broken) = &next.broken {
            text.push_str(&format!("   ! {broken}\n"));
        }
    }
    text
}

fn step(world: &World, action: Action) -> String {
    let name = |n: usize| world.replicas[n].id;
    let message = |at: usize| {
        let envelope = &world.wire[at].envelope;
        let (from, to, term) = (envelope.from, envelope.to, envelope.term);
        format!("{from} -> {to} {term} {}", describe(&envelope.message))
    };
    match action {
        Action::Deliver(at) => message(at),
        Action::DeliverAndKeep(at) => format!("{} (and will arrive again)", message(at)),
        Action::DeliverTogether(first, second) => {
            format!("{}, together with {}", message(first), message(second))
        }
        Action::Receive(at) => {
            let (to, base) = &world.states[at];
            format!("{to} has received a whole state, up to {}", base.id)
        }
        Action::Written(n) => format!("{} has written", name(n)),
        Action::Applied(n) => format!("{} has applied {}", name(n), world.replicas[n].to_apply),
        Action::Pass => "time passes".to_owned(),
        Action::TimeOut(n) => format!("{} times out", name(n)),
        Action::Tick(n) => format!("{} looks at its clock", name(n)),
        Action::Restart(n) => format!("{} crashes and restarts", name(n)),
        Action::Wipe(n) => format!("{} loses everything and starts again", name(n)),
        Action::Wait => "a long time passes".to_owned(),
        Action::HandOver(n, target) => {
            format!("{} is asked to hand over to {}", name(n), name(target))
        }
        Action::Stop(n) => format!("{} is asked to stop, and restarts", name(n)),
        Action::Change(n) => format!("{} is asked to change the members", name(n)),
        Action::Retire(n) => format!("{} is asked to stop", name(n)),
        Action::Propose(n) => format!("{} is asked to append a command", name(n)),
        Action::BeginRead(n) => format!("{} begins to read", name(n)),
        Action::EndRead(n) => format!("{} checks its lease, to answer", name(n)),
        Action::Ask(n) => format!("{} is asked for a read by quorum", name(n)),
        Action::StepBack(n, clocks) => {
            format!("{} sees its clock step back ({clocks:?})", name(n)).to_lowercase()
        }
    }
}

fn changes(before: &World, after: &World) -> Vec<String> {
    let mut lines = Vec::new();
    for (old, new) in before.replicas.iter().zip(&after.replicas) {
        let id = new.id;
        let (was, is) = (old.core.status(), new.core.status());
        if (was.role, was.term, was.leader) != (is.role, is.term, is.leader) {
            let term = is.term;
            lines.push(match (is.role, is.leader) {
                (Role::Leader, _) => format!("{id} leads {term}"),
                (Role::Candidate, _) => format!("{id} stands for {term}"),
                (Role::PreCandidate, _) => format!("{id} asks around in {term}"),
                (_, Some(leader)) => format!("{id} follows {leader} in {term}"),
                (_, None) => format!("{id} waits in {term}"),
            });
        }
        if was.last != is.last {
            lines.push(format!("{id}'s log ends at {}", is.last));
        }
        if was.commit != is.commit {
            lines.push(format!("{id} has committed {}", is.commit));
        }
        if old.applied != new.applied {
            lines.push(format!("{id} has applied {}", new.applied));
        }
        if new.writes.len() > old.writes.len() {
            lines.push(format!("{id} writes"));
        }
        let leases = [
            ("lease", &old.cell, &new.cell),
            ("read lease", &old.read_cell, &new.read_cell),
        ];
        for (what, before, after) in leases {
            let left = |cell: &Option<Arc<LeaseCell>>, replica: &Replica| {
                let cell = cell.as_ref()?;
                let left = cell.remaining(replica.clock)?;
                Some((cell.term, left.as_nanos()))
            };
            match (left(before, old), left(after, new)) {
                (Some((term, _)), None) => {
                    lines.push(format!("{id} has no {what} of {term} any more"));
                }
                (old, Some((term, left))) if old.is_none_or(|old| old.1 < left) => {
                    lines.push(format!(
                        "{id} has a {what} of {term}, with {left} units left"
                    ));
                }
                _ => {}
            }
        }
    }
    lines
}

fn round(id: RoundId) -> u64 {
    id.0 & 0xf_ffff
}

fn describe(message: &Message) -> String {
    let ballot = |ballot: &Ballot| match ballot {
        Ballot::Granted => "granted".to_owned(),
        Ballot::Withheld(reason) => format!("withheld: {reason:?}").to_lowercase(),
    };
    let heard = |heard: &Heard| {
        let not = if heard.promised { "" } else { "not " };
        format!("#{} {not}promised", round(heard.round))
    };
    match message {
        Message::PreVote(m) => format!("pre-vote? for {} with {}", m.next_term, m.last),
        Message::PreVoteReply(m) => format!("pre-vote! {}", ballot(&m.ballot)),
        Message::Vote(m) => {
            let from = m.transfer_from.map(|t| format!(", handed over by {t}"));
            format!("vote? with {}{}", m.last, from.unwrap_or_default())
        }
        Message::VoteReply(m) => {
            let promised = if m.promised { ", promised" } else { "" };
            format!("vote! {}{promised}", ballot(&m.ballot))
        }
        Message::Heartbeat(m) => {
            let grant = m.fresh.and_then(|fresh| Some((fresh.name, fresh.grant?)));
            let grant = grant.map(|(name, grant)| {
                let (name, floor) = (round(name), grant.floor);
                let length = grant.length.as_nanos();
                format!(", grants {length} units to ?{name} from {floor} on")
            });
            let (round, grant) = (round(m.round), grant.unwrap_or_default());
            format!("heartbeat? #{round} commit {}{grant}", m.commit)
        }
        Message::HeartbeatReply(m) => {
            let asks = match m.wants_read_lease {
                true => format!(", asks for a read lease as ?{}", round(m.name)),
                false => String::new(),
            };
            format!(
                "heartbeat! {} verified {}{asks}",
                heard(&m.heard),
                m.verified
            )
        }
        Message::Append(m) => {
            let last = m.entries.last().map(|entry| format!("..{}", entry.id));
            let (round, commit) = (round(m.heartbeat.round), m.heartbeat.commit);
            let last = last.unwrap_or_default();
            format!("append? #{round} {}{last} commit {commit}", m.base)
        }
        Message::Appended(m) => match m.verdict {
            Verdict::Durable(index) => format!("append! {} durable {index}", heard(&m.heard)),
            Verdict::Held(index) => format!("append! {} held {index}", heard(&m.heard)),
            Verdict::Conflict(conflict) => {
                let (base, first) = (conflict.base, conflict.first);
                format!("append! {} not {base}: {first}", heard(&m.heard))
            }
        },
        Message::TimeoutNow(m) => format!("timeout-now with {} commit {}", m.last, m.commit),
        Message::Release => "release".to_owned(),
        Message::ReadIndex(m) => format!("read-index? {}", round(m.name)),
        Message::ReadIndexReply(m) => {
            let index = m.confirmed.map(|confirmed| confirmed.index.to_string());
            format!(
                "read-index! {} {}",
                round(m.name),
                index.unwrap_or_default()
            )
        }
        Message::Rejoin(_) => "rejoin?".to_owned(),
        Message::RejoinReply(m) => format!("rejoin! through {}", m.through),
        Message::StateHash(m) => format!("hash at {}", m.index),
        Message::NeedState => "needs a state".to_owned(),
        Message::Forgotten(newest) => format!("forgotten {}", round(*newest)),
        Message::Recall => "recall".to_owned(),
        Message::Returned(newest) => format!("returned {}", round(*newest)),
        Message::Reminder(m) => format!("reminder of {} {}", m.term, m.last),
    }
}
