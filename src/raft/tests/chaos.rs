//! Random worlds and random messages: what no script thought of.
//!
//! Every world has clocks that drift as far as the lease allows, one of each pair even further;
//! lost, doubled and late messages; cuts in one or both directions; pauses, sleep, crashes with and
//! without the last writes; slow disks and slow state machines; hand-overs, retirements and
//! changes of membership; and replicas that lose what they had acknowledged. The oracles of [`World`] watch every step; afterwards everything is
//! healed, and the cluster must work again.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use crate::raft::role::RoleState;
use crate::raft::tests::script::Show;
use crate::raft::tests::world::{Faults, MS, World};
use crate::raft::*;
use crate::time::Instant;
use crate::types::{LogId, LogIndex, NodeId, Term};

fn voters(ids: impl IntoIterator<Item = u64>) -> Configuration {
    Configuration {
        voters: ids.into_iter().map(NodeId).collect(),
        ..Configuration::default()
    }
}

/// How many worlds; `RAFT_SEEDS` and `RAFT_SEED_FROM` say otherwise, `RAFT_TRACE` tells of each.
fn seeds() -> u64 {
    let set = std::env::var("RAFT_SEEDS").ok();
    set.and_then(|seeds| seeds.parse().ok()).unwrap_or(300)
}

struct Sums {
    leased: u64,
    quorum: u64,
    follower: u64,
    held: u64,
    ages: u64,
    elections: u64,
    committed: usize,
    recovered: u64,
    changes: u64,
}

#[test]
fn random_worlds_keep_every_claim_and_recover() {
    let mut sums = Sums {
        leased: 0,
        quorum: 0,
        follower: 0,
        held: 0,
        ages: 0,
        elections: 0,
        committed: 0,
        recovered: 0,
        changes: 0,
    };
    let from = std::env::var("RAFT_SEED_FROM").ok();
    let from = from.and_then(|seed| seed.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds() {
        let played = std::panic::catch_unwind(|| play(seed));
        let world = played.unwrap_or_else(|_| panic!("seed {seed} broke a claim (see above)"));
        sums.leased += world.leased_reads;
        sums.quorum += world.quorum_reads;
        sums.follower += world.follower_reads;
        sums.held += world.held_reads;
        sums.ages += world.ages_judged;
        sums.elections += world.elections;
        sums.committed += world.committed();
        sums.recovered += world.recovered;
        sums.changes += world.changes;
    }
    // The claims must not hold because nothing happened.
    assert!(sums.leased > seeds() * 50, "{} leased reads", sums.leased);
    assert!(sums.quorum > seeds() * 4, "{} quorum reads", sums.quorum);
    assert!(
        sums.follower > seeds() * 4,
        "{} at followers",
        sums.follower
    );
    assert!(sums.held > seeds() * 10, "{} by read leases", sums.held);
    assert!(sums.ages > seeds() * 100, "{} ages", sums.ages);
    assert!(sums.elections > seeds() * 2, "{} elections", sums.elections);
    assert!(sums.changes > seeds() / 2, "{} changes", sums.changes);
    assert!(sums.recovered > seeds() / 5, "{} recovered", sums.recovered);
    let entries = sums.committed as u64;
    assert!(entries > seeds() * 15, "{entries} entries");
}

fn play(seed: u64) -> World {
    let mut rng = fastrand::Rng::with_seed(seed);
    let nodes = if rng.u8(0..4) == 0 { 5 } else { 3 };
    let initial = if rng.u8(0..8) == 0 { 1 } else { nodes };
    // In half of the worlds everybody asks for read leases.
    let timing = Timing::new(TimingOptions {
        read_lease_enabled: seed.is_multiple_of(2),
        ..TimingOptions::default()
    });
    let timing = timing.expect("the defaults fit each other");
    let mut world = World::new(nodes, timing, voters(1..=initial), seed);
    if std::env::var_os("RAFT_TRACE").is_some() {
        world.aloud = true;
        world.show = Show::All;
    }
    for id in 1..=nodes {
        // One clock of each pair is as good as the settings say; the other may be anything.
        let good = rng.i64(-20_000..=20_000);
        let other = rng.i64(-150_000..=150_000);
        let (boot, raw) = if rng.bool() {
            (good, other)
        } else {
            (other, good)
        };
        let site = world.site(id);
        site.boot.change(0, 0, boot);
        site.raw.change(0, 0, raw);
    }
    // Some worlds are quiet for long: then logs are equal, and hide nothing.
    let moves = rng.bool();
    let habits = Habits {
        busy: rng.u64(0..100),
        trouble: rng.u64(10..=100),
        moves,
        damage: !moves && initial > 1,
    };
    let noisy = rng.bool();
    if noisy {
        world.faults = Faults {
            lost: rng.u64(0..150),
            doubled: rng.u64(0..150),
            late: rng.u64(1..100),
        };
    }
    world.advance(rng.u64(0..2000) * MS);
    for _ in 0..rng.u64(100..300) {
        step(&mut world, &mut rng, nodes, habits);
        world.look_at_leases();
    }
    world.look_at_logs();
    recover(&mut world, nodes);
    world
}

fn leaders(world: &World) -> Vec<u64> {
    let leads = |node: &Consensus| matches!(node.role, RoleState::Leader(_));
    let sites = world.sites.iter();
    sites
        .filter(|(_, site)| site.node.as_ref().is_some_and(leads))
        .map(|(id, _)| *id)
        .collect()
}

/// What a world is like, of a hundred.
#[derive(Clone, Copy)]
struct Habits {
    /// How often something is proposed.
    busy: u64,
    /// How often something goes wrong.
    trouble: u64,
    /// Whether members change.
    moves: bool,
    /// Whether a replica may lose what it had acknowledged, one at a time.
    damage: bool,
}

fn step(world: &mut World, rng: &mut fastrand::Rng, nodes: u64, habits: Habits) {
    let one = rng.u64(1..=nodes);
    let runs = world.sites[&one].node.is_some();
    let what = match rng.u64(0..100) < habits.trouble {
        true => rng.u64(0..100),
        false => rng.u64(46..100),
    };
    match what {
        0..=3 => {
            let other = rng.u64(1..=nodes);
            world.cuts.insert((one, other));
            if rng.bool() {
                world.cuts.insert((other, one));
            }
        }
        4..=5 => {
            let one = leaders(world).first().copied().unwrap_or(one);
            for other in 1..=nodes {
                world.cuts.extend([(one, other), (other, one)]);
            }
        }
        6..=10 => world.cuts.clear(),
        11..=13 if runs => {
            world.crash(one);
            if rng.bool() {
                // A crash so short that nobody notices.
                world.advance(rng.u64(0..5) * MS);
                world.start(one);
            }
        }
        // Before the bootstrap it would stop that until an operator empties the directory (A25).
        14 if habits.damage
            && world.committed() > 0
            && world.sites.values().all(|site| !site.disk.damaged) =>
        {
            world.crash(one);
            let site = world.site(one);
            let keep = rng.usize(0..=site.disk.entries.len());
            site.disk.entries.truncate(keep);
            site.disk.damaged = true;
            world.start(one);
        }
        14..=19 if !runs => world.start(one),
        20..=22 if runs && !world.sites[&one].paused => {
            // Who relies on the clock that stops in sleep had better not sleep (A1).
            let sleeps_well = world.sites[&one].boot.rate().abs() <= 20_000;
            match rng.bool() || !sleeps_well {
                true => world.pause(one),
                false => world.suspend(one),
            }
        }
        23..=28 if world.sites[&one].paused => world.resume(one),
        29..=30 => {
            let delay = rng.u64(0..20) * MS;
            let site = world.site(one);
            site.disk_delay = delay;
            site.disk_stalled = rng.u8(0..10) == 0;
        }
        31..=32 => world.site(one).disk_stalled = false,
        33 => world.site(one).apply_held = true,
        34..=37 => world.apply_flows(one),
        38..=39 => {
            for leader in leaders(world) {
                let target = rng.bool().then(|| NodeId(rng.u64(1..=nodes)));
                let real = world.real;
                let site = world.site(leader);
                let now = site.clock(real);
                let _ = site.node().transfer(now, target);
                world.after(leader);
            }
        }
        40 if runs => {
            let real = world.real;
            let site = world.site(one);
            let now = site.clock(real);
            site.node().retire(now);
            world.after(one);
        }
        41..=43 if habits.moves => change_members(world, rng, nodes),
        44..=45 if runs && !world.sites[&one].paused => world.time_out(one),
        46..=47 => nemesis(world, rng, nodes),
        48..=56 => {
            for id in leaders(world) {
                if !world.sites[&id].paused {
                    world.quorum_reads_together(id, 2);
                }
            }
        }
        57..=60 if runs && !world.sites[&one].paused => {
            world.reads_together(one, 2, ReadMode::ALL[rng.usize(0..3)]);
        }
        61..=64 if habits.moves => change_members(world, rng, nodes),
        _ => {
            for id in leaders(world) {
                if rng.u64(0..100) < habits.busy && !world.sites[&id].paused {
                    let weight = rng.usize(0..100);
                    let _ = world.propose(id, Bytes::from(vec![b'x'; weight]));
                }
            }
            world.advance(rng.u64(0..80) * MS);
        }
    }
    // Whoever may have a lease is asked, all the time.
    for id in 1..=nodes {
        if world.sites[&id].node.is_some() {
            let _ = world.leased_read(id);
            world.look_at_age(id);
        }
    }
}

/// Two faults that meet, which chance alone seldom arranges: one voter is cut off until its promise
/// is over, then the leader is, and meanwhile the others are disturbed and asked to elect.
fn nemesis(world: &mut World, rng: &mut fastrand::Rng, nodes: u64) {
    let Some(leader) = leaders(world).first().copied() else {
        return;
    };
    let rival = 1 + (leader + rng.u64(0..nodes - 1)) % nodes;
    if rival == leader {
        return;
    }
    let before = world.faults;
    world.cuts.extend([(leader, rival), (rival, leader)]);
    if rng.bool() {
        world.faults.late = 300;
    }
    world.advance(rng.u64(520..700) * MS);
    for other in 1..=nodes {
        if other != leader && (rng.bool() || other == rival) {
            world.cuts.extend([(leader, other), (other, leader)]);
        }
    }
    for _ in 0..12 {
        let other = rng.u64(1..=nodes);
        let up = world.sites[&other].node.is_some();
        match rng.u8(0..8) {
            0 if up && other != leader => {
                world.crash(other);
                world.advance(rng.u64(0..3) * MS);
                world.start(other);
            }
            1 => {
                world.cuts.remove(&(leader, other));
                world.cuts.remove(&(other, leader));
            }
            2 if up => {
                let real = world.real;
                let site = world.site(leader);
                let now = site.clock(real);
                if site.node.is_some() {
                    let _ = site.node().transfer(now, Some(NodeId(other)));
                    world.after(leader);
                }
            }
            _ => {}
        }
        let site = &world.sites[&rival];
        if site.node.is_some() && !site.paused {
            world.time_out(rival);
        }
        world.advance(rng.u64(0..70) * MS);
        for id in 1..=nodes {
            if world.sites[&id].node.is_some() {
                let _ = world.leased_read(id);
            }
        }
    }
    world.faults = before;
    world.cuts.clear();
}

/// Members change: one at a time, as an operator would; or many at once, which only a joint
/// configuration makes safe.
fn change_members(world: &mut World, rng: &mut fastrand::Rng, nodes: u64) {
    for id in leaders(world) {
        let mut someone = || NodeId(rng.u64(1..=nodes));
        let (member, other) = (someone(), someone());
        let details = Bytes::from_static(b"somewhere");
        let change = match rng.u8(0..8) {
            0 => Change::Add {
                member,
                details,
                role: JoinRole::Learner,
            },
            1..=2 => Change::Add {
                member,
                details,
                role: JoinRole::Voter,
            },
            3 => Change::Add {
                member,
                details,
                role: JoinRole::InPlaceOf(other),
            },
            4 => Change::Promote(member),
            5 => Change::Remove(member),
            6 => Change::Update { member, details },
            _ => {
                replace_all(world, rng, id, nodes);
                continue;
            }
        };
        world.changes += u64::from(world.change(id, &change).is_ok());
    }
}

/// Any set of voters in the place of another, by the rules.
fn replace_all(world: &mut World, rng: &mut fastrand::Rng, id: u64, nodes: u64) {
    let node = world.site(id).node();
    let mut next = node.configuration().clone();
    let chosen: BTreeSet<_> = (1..=nodes).filter(|_| rng.bool()).map(NodeId).collect();
    if node.may_change().is_err() || next.is_joint() || chosen.is_empty() {
        return;
    }
    next.outgoing = Some(std::mem::replace(&mut next.voters, chosen));
    next.learners.clear();
    next.joining.clear();
    node.append_configuration(next);
    world.changes += 1;
    world.after(id);
}

/// Everything is mended; then the cluster must be one again, and serve.
fn recover(world: &mut World, nodes: u64) {
    world.cuts.clear();
    world.faults = Faults::default();
    for id in 1..=nodes {
        // Retired nodes come back as new processes.
        world.crash(id);
        world.resume(id);
        let site = world.site(id);
        site.disk_delay = MS / 10;
        site.disk_stalled = false;
        site.apply_held = false;
        world.start(id);
    }
    if !world.aloud {
        world.trace.clear();
        world.show = Show::Votes;
    }
    world.advance(8000 * MS);
    let leader = leaders(world);
    assert_eq!(
        leader.len(),
        1,
        "one leader once all is well:\n{}",
        world.trace.join("\n")
    );
    let leader = leader[0];
    let id = world
        .propose(leader, Bytes::from_static(b"last"))
        .expect("taken");
    world.advance(500 * MS);
    assert!(world.leased_read(leader).is_some(), "the lease holds");
    let before = world.quorum_reads;
    world.quorum_reads_together(leader, 1);
    world.advance(100 * MS);
    assert_eq!(
        world.quorum_reads,
        before + 1,
        "reads by quorum are answered"
    );
    let members = world.site(leader).node().configuration().members();
    for member in members {
        let node = world.site(member.0).node();
        assert!(node.status().commit >= id.index, "{member} follows");
        assert!(!node.is_quarantined(), "{member} is whole again");
    }
    world.look_at_logs();
}

#[test]
fn the_same_seed_twice_is_the_same_world() {
    let run = |seed| {
        let world = play(seed);
        let ends = world.sites.values().map(|site| {
            let node = site.node.as_ref().expect("all run at the end");
            (node.status(), node.next_round, site.disk.entries.clone())
        });
        format!("{:?}", ends.collect::<Vec<_>>())
    };
    assert_eq!(run(42), run(42));
}

/// Whatever arrives, there is a result: nothing overflows, nothing panics, nothing piles up, and
/// what was committed stays.
#[test]
fn any_message_whatever_has_a_result() {
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut now = Instant::from_nanos(rng.u64(0..u64::MAX / 2));
        let entries = (1..=rng.u64(0..6)).map(|index| Entry {
            id: LogId::new(LogIndex(index), Term(1)),
            payload: Payload::Noop,
        });
        let entries: Vec<_> = entries.collect();
        let term = Term(if entries.is_empty() { 0 } else { 1 });
        let restored = RestoredState {
            hard_state: HardState {
                term,
                ..HardState::default()
            },
            base_configuration: voters(1..=3),
            applied: LogIndex(entries.len() as u64 / 2),
            entries,
            quarantined: rng.u8(0..8) == 0,
            ..RestoredState::default()
        };
        let mut applied = restored.applied;
        let mut node = Consensus::new(NodeId(1), Timing::default(), restored, seed, now);
        let mut waiting = 0;
        for _ in 0..400 {
            let input = match rng.u8(0..10) {
                0 => Input::Tick,
                1 => Input::Persisted(Ticket(absurd(&mut rng))),
                2 => Input::Applied(LogIndex(absurd(&mut rng))),
                _ => Input::Message(random_envelope(&mut rng, &node)),
            };
            now = match rng.u8(0..20) {
                0 => Instant::from_nanos(absurd(&mut rng)),
                _ => now + Duration::from_millis(rng.u64(0..200)),
            };
            node.handle(now, input);
            if rng.u8(0..10) == 0 {
                let _ = node.propose(now, Bytes::from_static(b"x"));
            }
            if rng.u8(0..10) == 0 {
                let _ = node.read(now, ReadId(waiting), ReadMode::ALL[rng.usize(0..3)]);
                waiting += 1;
            }
            if rng.u8(0..40) == 0 {
                let _ = node.transfer(now, None);
            }
            let _ = node.poll_timeout();
            let mut outputs = 0;
            while let Some(output) = node.poll_output() {
                outputs += 1;
                if let Output::Commit(entries) = output {
                    for entry in entries {
                        assert_eq!(entry.id.index, applied.next(), "handed out once, in order");
                        applied = entry.id.index;
                    }
                }
            }
            assert!(outputs < 200, "one input, {outputs} effects");
            assert!(node.outputs.is_empty());
        }
    }
}

fn absurd(rng: &mut fastrand::Rng) -> u64 {
    match rng.u8(0..6) {
        0 => u64::MAX - rng.u64(0..3),
        1 => rng.u64(..),
        _ => rng.u64(0..12),
    }
}

fn random_envelope(rng: &mut fastrand::Rng, node: &Consensus) -> Envelope {
    let term = node.hard.term;
    let term = match rng.u8(0..8) {
        0 => Term(absurd(rng)),
        1 => Term(term.0 + 1),
        _ => term,
    };
    let round = RoundId(match rng.u8(0..3) {
        0 => absurd(rng),
        _ => node.next_round.wrapping_sub(rng.u64(0..3)),
    });
    let mut id = || LogId::new(LogIndex(absurd(rng)), Term(absurd(rng).min(term.0)));
    let (last, base, first) = (id(), id(), id());
    let base = match rng.bool() {
        true => node.log.last(),
        false => base,
    };
    let promise = match rng.u8(0..4) {
        0 => Duration::MAX,
        1 => Duration::ZERO,
        _ => Duration::from_millis(500),
    };
    let heartbeat = Heartbeat {
        round,
        promise,
        commit: LogIndex(absurd(rng)),
        fresh: rng.bool().then(|| Fresh {
            name: round,
            index: LogIndex(absurd(rng)),
            grant: rng.bool().then(|| ReadGrant {
                length: Duration::from_nanos(absurd(rng)),
                floor: LogIndex(absurd(rng)),
            }),
        }),
    };
    let heard = Heard {
        round,
        promised: rng.bool(),
    };
    let ballot = match rng.bool() {
        true => Ballot::Granted,
        false => Ballot::Withheld(Reason::Log),
    };
    let index = LogIndex(absurd(rng));
    let mode = ReadMode::ALL[rng.usize(0..3)];
    let message = match rng.u8(0..15) {
        0 => Message::PreVote(PreVote {
            round,
            next_term: Term(absurd(rng)),
            last,
            origin: LogOrigin {
                first: last,
                hash: u128::from(rng.u8(0..2)),
            },
        }),
        1 => Message::PreVoteReply(PreVoteReply { round, ballot }),
        2 => Message::Vote(Vote {
            round,
            last,
            origin: LogOrigin {
                first: last,
                hash: u128::from(rng.u8(0..2)),
            },
            promise,
            transfer_from: rng.bool().then(|| Term(absurd(rng))),
        }),
        3 => Message::VoteReply(VoteReply {
            round,
            ballot,
            promised: rng.bool(),
        }),
        4 => Message::Heartbeat(heartbeat),
        5 => Message::HeartbeatReply(HeartbeatReply {
            heard,
            verified: index,
            name: round,
            wants_read_lease: rng.bool(),
        }),
        6..=7 => {
            let mut at = base.index.0;
            let entries = (0..rng.u64(0..4)).map(|_| {
                at = match rng.u8(0..10) {
                    0 => absurd(rng),
                    _ => at.wrapping_add(1),
                };
                let configuration = match rng.bool() {
                    true => Configuration::default(),
                    false => voters(1..=3),
                };
                Entry {
                    id: LogId::new(LogIndex(at), Term(absurd(rng).min(term.0))),
                    payload: match rng.u8(0..4) {
                        0 => Payload::Configuration(Box::new(configuration)),
                        _ => Payload::Command(Bytes::from_static(b"y")),
                    },
                }
            });
            Message::Append(Append {
                heartbeat,
                base,
                base_checksum: None,
                entries: entries.collect(),
            })
        }
        8 => Message::Appended(AppendReply {
            heard,
            verdict: match rng.u8(0..3) {
                0 => Verdict::Durable(index),
                1 => Verdict::Held(index),
                _ => Verdict::Conflict(Conflict { base: index, first }),
            },
        }),
        9 => Message::TimeoutNow(TimeoutNow {
            last: base,
            commit: index,
            id: absurd(rng),
        }),
        10 => Message::Release,
        11 => Message::Rejoin(Rejoin { nonce: absurd(rng) }),
        12 => Message::ReadIndex(ReadIndex { name: round, mode }),
        13 => Message::ReadIndexReply(ReadIndexReply {
            name: round,
            mode,
            confirmed: rng.bool().then(|| Confirmation {
                index,
                lease_remaining: rng.bool().then_some(promise),
            }),
        }),
        _ => Message::RejoinReply(RejoinReply {
            nonce: absurd(rng),
            through: index,
        }),
    };
    Envelope {
        from: NodeId(rng.u64(0..6)),
        to: NodeId(if rng.u8(0..20) == 0 { 9 } else { 1 }),
        term,
        message,
    }
}
