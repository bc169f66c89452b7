//! The language of the golden conversations in `testdata/`.
//!
//! A script is read line by line. What a command made happen stands below it, indented by two
//! spaces; `UPDATE_GOLDEN=1 cargo test` writes those lines anew. Comments start with `#`, and the
//! first line is the claim, which begins with the name of the file.
//!
//! ```text
//! cluster nodes=3 leader=1     a cluster; with leader, time 0 is when its next round is due
//! timers on                    elections happen by themselves, not only by `campaign`
//! show votes|all|nothing       which messages are told when they arrive
//! advance 10ms                 time passes
//! cut 1 2 | cut 1->2 | isolate 1 | heal
//! hold 2->1 [kind] | drop 2->1 [kind] | release 2->1 | repeat 2->1   keep back, lose, let go,
//!                              let go and keep
//! crash 1 | restart 1 [damaged|wiped] [lose=2] [unapplied] | pause 1 | resume 1 | disk 1 stall|flow|5ms
//! apply 1 hold|flow
//! clock 1 +2% | clock 1 boot +9% | clock 1 back 100ms | clock 1 freeze | suspend 1
//! propose 1 x [count] | read 1 | read 1 any|quorum|lease [count] | age 1 | campaign 2 | transfer 1 2 | retire 1 | clear 1
//! timing promise=250ms         how nodes are set that start from here on
//! configure 1 voters=1,2 outgoing=1,2,3 learners=4
//! change 1 add 4 [learner|for=2] | change 1 promote|remove|update 4 | members 1
//! status | log 1 | lease 1 | counters 1
//! forge 2->1 t3 heartbeat round=5 promise=500ms commit=7     a message out of nowhere
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use crate::raft::tests::world::{Disk, Hold, MS, World};
use crate::raft::*;
use crate::types::{LogId, LogIndex, NodeId, Term};

/// Which messages are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Show {
    Nothing,
    Events,
    Votes,
    All,
}

impl Show {
    pub(super) fn of(self, envelope: &Envelope) -> Option<String> {
        let bulk = matches!(
            envelope.message,
            Message::Heartbeat(_)
                | Message::HeartbeatReply(_)
                | Message::Append(_)
                | Message::Appended(_)
        );
        let shown = match self {
            Self::Nothing | Self::Events => false,
            Self::Votes => !bulk,
            Self::All => true,
        };
        let Envelope {
            from,
            to,
            term,
            message,
        } = envelope;
        shown.then(|| format!("{from} -> {to} {term} {}", describe(message)))
    }
}

/// The kind of a message, as scripts name it.
pub(super) fn kind(message: &Message) -> &'static str {
    match message {
        Message::PreVote(_) => "pre-vote?",
        Message::PreVoteReply(_) => "pre-vote!",
        Message::Vote(_) => "vote?",
        Message::VoteReply(_) => "vote!",
        Message::Heartbeat(_) => "heartbeat?",
        Message::HeartbeatReply(_) => "heartbeat!",
        Message::Append(_) => "append?",
        Message::Appended(_) => "append!",
        Message::TimeoutNow(_) => "timeout-now",
        Message::Release => "release",
        Message::Rejoin(_) => "rejoin?",
        Message::RejoinReply(_) => "rejoin!",
        Message::ReadIndex(_) => "read-index?",
        Message::ReadIndexReply(_) => "read-index!",
        Message::StateHash(_) => "hash",
        Message::NeedState => "state?",
        Message::Forgotten(_) => "forgotten",
        Message::Recall => "recall",
        Message::Returned(_) => "returned",
        Message::Reminder(_) => "reminder",
    }
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
        let promised = if heard.promised {
            "promised"
        } else {
            "not promised"
        };
        format!("#{} {promised}", round(heard.round))
    };
    let text = match message {
        Message::PreVote(m) => format!("for {} with {}", m.next_term, m.last),
        Message::PreVoteReply(m) => ballot(&m.ballot),
        Message::Vote(m) => {
            let from = m.transfer_from.map(|t| format!(", handed over by {t}"));
            format!("with {}{}", m.last, from.unwrap_or_default())
        }
        Message::VoteReply(m) => {
            let promised = if m.promised { ", promised" } else { "" };
            format!("{}{promised}", ballot(&m.ballot))
        }
        Message::Heartbeat(m) => format!("#{} commit {}", round(m.round), m.commit),
        Message::HeartbeatReply(m) => format!("{} verified {}", heard(&m.heard), m.verified),
        Message::Append(m) => {
            let last = m.entries.last().map(|e| format!("..{}", e.id));
            let (round, commit) = (round(m.heartbeat.round), m.heartbeat.commit);
            format!(
                "#{round} {}{} commit {commit}",
                m.base,
                last.unwrap_or_default()
            )
        }
        Message::Appended(m) => match m.verdict {
            Verdict::Durable(i) => format!("{} durable {i}", heard(&m.heard)),
            Verdict::Held(i) => format!("{} held {i}", heard(&m.heard)),
            Verdict::Conflict(c) => format!("{} not {}: {}", heard(&m.heard), c.base, c.first),
        },
        Message::TimeoutNow(m) => format!("with {} commit {}", m.last, m.commit),
        Message::Release | Message::Rejoin(_) | Message::NeedState | Message::Recall => {
            String::new()
        }
        Message::RejoinReply(m) => format!("through {}", m.through),
        Message::Forgotten(newest) | Message::Returned(newest) => format!("#{}", round(*newest)),
        Message::Reminder(m) => format!("of {} {}", m.term, m.last),
        Message::StateHash(m) => format!("at {}", m.index),
        Message::ReadIndex(m) => format!("by {:?}", m.mode).to_lowercase(),
        Message::ReadIndexReply(m) => match m.confirmed {
            None => "void".to_owned(),
            Some(m) if m.lease_remaining.is_some() => format!("{} by lease", m.index),
            Some(m) => format!("{} by quorum", m.index),
        },
    };
    format!("{} {text}", kind(message)).trim_end().to_owned()
}

/// Runs a script, and returns it with what happened.
pub(super) fn run(script: &str) -> String {
    let mut stage = Stage::default();
    let mut text = String::new();
    for line in script.lines() {
        if line.starts_with("  ") {
            continue;
        }
        text.push_str(line);
        text.push('\n');
        let command = line.split('#').next().unwrap_or_default();
        let words: Vec<_> = command.split_whitespace().collect();
        if let [verb, arguments @ ..] = &words[..] {
            stage.perform(verb, arguments);
            if let Some(world) = &mut stage.world {
                world.look_at_leases();
                world.look_at_logs();
                for line in world.trace.drain(..) {
                    text.push_str(&format!("  {line}\n"));
                }
            }
        }
    }
    text
}

#[derive(Default)]
struct Stage {
    world: Option<World>,
}

impl Stage {
    fn world(&mut self) -> &mut World {
        self.world.as_mut().expect("a script begins with `cluster`")
    }

    fn perform(&mut self, verb: &str, arguments: &[&str]) {
        if verb == "cluster" {
            self.world = Some(cluster(arguments));
            return;
        }
        let world = self.world();
        let node = || number(arguments[0]);
        match (verb, arguments) {
            ("timers", ["on"]) => {
                world.timers = true;
                let ids: Vec<_> = world.sites.keys().copied().collect();
                for id in ids {
                    if let Some(node) = &mut world.site(id).node {
                        node.restart_election_timer();
                    }
                }
            }
            ("timers", ["off"]) => {
                world.timers = false;
                let ids: Vec<_> = world.sites.keys().copied().collect();
                ids.into_iter().for_each(|id| world.after(id));
            }
            ("show", [what]) => {
                world.show = match *what {
                    "nothing" => Show::Nothing,
                    "events" => Show::Events,
                    "votes" => Show::Votes,
                    "all" => Show::All,
                    other => panic!("show {other}?"),
                }
            }
            ("lies", []) => world.lies = true,
            ("delay", [time]) => world.delay = nanos(time),
            ("advance", [time]) => world.advance(nanos(time)),
            ("cut", [link]) => {
                world.cuts.insert(arrow(link));
            }
            ("cut", [a, b]) => {
                let (a, b) = (number(a), number(b));
                world.cuts.extend([(a, b), (b, a)]);
            }
            ("isolate", [_]) => {
                let one = node();
                let others: Vec<_> = world.sites.keys().copied().collect();
                for other in others.into_iter().filter(|other| *other != one) {
                    world.cuts.extend([(one, other), (other, one)]);
                }
            }
            ("heal", []) => world.cuts.clear(),
            ("heal", [a, b]) => {
                let (a, b) = (number(a), number(b));
                world.cuts.remove(&(a, b));
                world.cuts.remove(&(b, a));
            }
            ("hold" | "drop", [link, kind @ ..]) => {
                let (from, to) = arrow(link);
                world.holds.push(Hold {
                    from,
                    to,
                    kind: kind.first().map(|kind| (*kind).to_owned()),
                    held: Vec::new(),
                    drops: verb == "drop",
                });
            }
            ("release" | "repeat", [link]) => {
                let link = arrow(link);
                let mut kept = Vec::new();
                for mut hold in std::mem::take(&mut world.holds) {
                    if (hold.from, hold.to) != link {
                        kept.push(hold);
                        continue;
                    }
                    for envelope in hold.held.clone() {
                        world.deliver(envelope);
                    }
                    if verb == "repeat" {
                        hold.kind = Some("nothing more".to_owned());
                        kept.push(std::mem::replace(
                            &mut hold,
                            Hold {
                                from: 0,
                                to: 0,
                                kind: None,
                                held: Vec::new(),
                                drops: false,
                            },
                        ));
                    }
                }
                world.holds.extend(kept);
            }
            ("crash", [_]) => world.crash(node()),
            ("restart", [_, how @ ..]) => {
                for how in how {
                    let disk = &mut world.site(node()).disk;
                    match how.split_once('=') {
                        None if *how == "damaged" => disk.damaged = true,
                        None if *how == "wiped" => {
                            *disk = Disk {
                                unproven: true,
                                ..Disk::default()
                            };
                            world.site(node()).applied = LogIndex(0);
                        }
                        None if *how == "unapplied" => {
                            world.site(node()).applied = LogIndex(0);
                        }
                        Some(("lose", count)) => {
                            let keep = disk.entries.len() - number(count) as usize;
                            disk.entries.truncate(keep);
                            let site = world.site(node());
                            site.applied = site.applied.min(LogIndex(keep as u64));
                        }
                        _ => panic!("restart {how}?"),
                    }
                }
                world.start(node());
            }
            ("pause", [_]) => world.pause(node()),
            ("suspend", [_]) => world.suspend(node()),
            ("resume", [_]) => world.resume(node()),
            ("disk", [_, "stall"]) => world.site(node()).disk_stalled = true,
            ("disk", [_, "flow"]) => world.site(node()).disk_stalled = false,
            ("disk", [_, time]) => world.site(node()).disk_delay = nanos(time),
            ("apply", [_, "hold"]) => world.site(node()).apply_held = true,
            ("apply", [_, "flow"]) => world.apply_flows(node()),
            ("compact", [_, through]) => {
                let through = LogIndex(number(through));
                let real = world.real;
                let site = world.site(node());
                let now = site.clock(real);
                site.node().handle(now, Input::Compact(through));
                world.after(node());
            }
            ("state", [link]) => {
                let (from, to) = arrow(link);
                world.deliver_state(from, to);
            }
            ("clock", [_, change @ ..]) => self.clock(number(arguments[0]), change),
            ("propose", [_, text, count @ ..]) => {
                let count = count.first().map_or(1, |count| number(count));
                for _ in 0..count {
                    let command = match text.split_once('*') {
                        Some((letter, times)) => letter.repeat(number(times) as usize),
                        None => (*text).to_owned(),
                    };
                    match world.propose(node(), Bytes::from(command)) {
                        Ok(id) if count == 1 => world.say(format!("n{} appends {id}", node())),
                        Ok(_) => {}
                        Err(refused) => {
                            world.say(format!("n{} refuses: {refused}", node()));
                            break;
                        }
                    }
                }
            }
            ("read", [_]) => {
                let line = match world.leased_read(node()) {
                    Some(permit) => format!("n{} permits at {permit}", node()),
                    None => format!("n{} has no lease", node()),
                };
                world.say(line);
            }
            ("read", [_, mode @ ("any" | "quorum" | "lease"), count @ ..]) => {
                let count = count.first().map_or(1, |count| number(count));
                let mode = match *mode {
                    "any" => ReadMode::Any,
                    "quorum" => ReadMode::Quorum,
                    _ => ReadMode::Lease,
                };
                world.reads_together(node(), count, mode);
            }
            ("age", [_]) => {
                world.look_at_age(node());
                let line = match world.age(node()) {
                    None => format!("n{} does not know its age", node()),
                    Some(bound) => {
                        let (index, age) = (bound.index(), bound.staleness());
                        format!(
                            "n{} at {index} is at most {} ms old",
                            node(),
                            age.as_millis()
                        )
                    }
                };
                world.say(line);
            }
            ("campaign", [_]) => {
                let rounds = world.site(node()).node().next_round;
                world.time_out(node());
                if world.site(node()).node().next_round == rounds {
                    world.say(format!("n{} keeps silent", node()));
                }
            }
            ("transfer", [_, target @ ..]) => {
                let target = target.first().map(|target| NodeId(number(target)));
                let real = world.real;
                let site = world.site(node());
                let now = site.clock(real);
                let result = site.node().transfer(now, target);
                world.say(match result {
                    Ok(target) => format!("n{} hands over to {target}", node()),
                    Err(refused) => format!("n{} refuses: {refused:?}", node()),
                });
                world.after(node());
            }
            ("retire", [_]) => {
                let real = world.real;
                let site = world.site(node());
                let now = site.clock(real);
                site.node().retire(now);
                world.after(node());
            }
            ("read_lease", [_, asks]) => {
                let real = world.real;
                let site = world.site(node());
                let now = site.clock(real);
                site.node().ask_for_read_leases(now, *asks == "on");
                world.after(node());
            }
            ("clear", [_]) => {
                world.site(node()).node().clear_lease_tripwire();
                world.after(node());
            }
            ("configure", [_, sets @ ..]) => {
                let configuration = configuration(sets);
                world
                    .site(node())
                    .node()
                    .append_configuration(configuration);
                world.after(node());
            }
            ("change", [_, what, member, how @ ..]) => {
                let member = NodeId(number(member));
                let details = Bytes::from(format!("of {member}"));
                let change = match (*what, how) {
                    ("promote", []) => Change::Promote(member),
                    ("remove", []) => Change::Remove(member),
                    ("update", [text]) => Change::Update {
                        member,
                        details: Bytes::from((*text).to_owned()),
                    },
                    ("add", how) => Change::Add {
                        member,
                        details,
                        role: match how {
                            ["learner"] => JoinRole::Learner,
                            [] => JoinRole::Voter,
                            [place] => {
                                let voter = place.strip_prefix("for=").expect("for=voter");
                                JoinRole::InPlaceOf(NodeId(number(voter)))
                            }
                            _ => panic!("add {how:?}?"),
                        },
                    },
                    _ => panic!("change {what} {how:?}?"),
                };
                let line = match world.change(node(), &change) {
                    Ok(id) => format!("n{} appends {id}", node()),
                    Err(refused) => format!("n{} refuses: {refused:?}", node()),
                };
                world.say(line);
            }
            ("members", [_]) => {
                let line = members(world.site(node()).node());
                world.say(format!("n{} has {line}", node()));
            }
            ("timing", settings) => world.timing = timing(settings),
            ("status", chosen) => {
                let mut ids: Vec<_> = world.sites.keys().copied().collect();
                ids.retain(|id| chosen.is_empty() || chosen.contains(&id.to_string().as_str()));
                for id in ids {
                    let site = world.site(id);
                    let applied = site.applied;
                    let line = match &site.node {
                        None => format!("n{id} is down"),
                        Some(node) => {
                            let status = node.status();
                            let (role, term, last) = (status.role, status.term, status.last);
                            format!(
                                "n{id} {role} {term} last {last} commit {} applied {applied}",
                                status.commit
                            )
                        }
                    };
                    world.say(line);
                }
            }
            ("log", [_]) => {
                let node_ref = world.site(node()).node();
                let last = node_ref.log.last().index;
                let base = node_ref.log.base();
                let entries = node_ref.log.between(base.index.next(), last);
                let ids: Vec<_> = entries.iter().map(|entry| entry.id.to_string()).collect();
                let after = match base.index {
                    LogIndex(0) => String::new(),
                    _ => format!("after {base} "),
                };
                world.say(format!("n{} holds {after}{}", node(), ids.join(" ")));
            }
            ("lease", [_]) => {
                let real = world.real;
                let site = world.site(node());
                let now = site.clock(real);
                let published = site.node().published();
                let held = published.read_lease();
                let held = held.and_then(|cell| Some((cell.remaining(now)?, cell.floor)));
                let cell = published.lease();
                let line = match cell.map(|cell| cell.remaining(now)) {
                    None if held.is_some() => {
                        let (left, floor) = held.expect("as was just seen");
                        format!("holds a read lease from {floor} on for {left:?}")
                    }
                    None => "leads nobody".to_owned(),
                    Some(None) => "has no lease".to_owned(),
                    Some(Some(left)) => format!("has a lease for {left:?}"),
                };
                world.say(format!("n{} {line}", node()));
            }
            ("counters", [_]) => {
                let published = world.site(node()).node().published();
                let counters = published.lease_counters();
                let mut line = format!("n{} expirations {}", node(), counters.expirations());
                for reason in Invalidation::ALL {
                    let count = counters.invalidations(reason);
                    if count > 0 {
                        line += &format!(", {reason} {count}");
                    }
                }
                let grants = published.grant_counters();
                for reason in RecallReason::ALL {
                    let count = grants.recalls(reason);
                    if count > 0 {
                        line += &format!(", recalled: {} {count}", reason.label());
                    }
                }
                for (name, count) in [
                    ("read leases waited out", grants.waited_out()),
                    ("clock ran back", counters.clock_regressions()),
                    ("violations", counters.assumption_violations()),
                    ("refused messages", published.messages_refused()),
                ] {
                    if count > 0 {
                        line += &format!(", {name} {count}");
                    }
                }
                world.say(line);
            }
            ("forge", [link, term, rest @ ..]) => {
                let (from, to) = arrow(link);
                let envelope = Envelope {
                    from: NodeId(from),
                    to: NodeId(to),
                    term: Term(number(term.trim_start_matches('t'))),
                    message: forged(world, from, to, rest),
                };
                world.deliver(envelope);
            }
            _ => panic!("{verb} {arguments:?}?"),
        }
    }

    fn clock(&mut self, id: u64, change: &[&str]) {
        let world = self.world();
        let real = world.real;
        let site = world.site(id);
        let (boot, raw) = (site.boot.rate(), site.raw.rate());
        match change {
            ["back", time] => {
                let back = -(nanos(time) as i64);
                site.boot.change(real, back, boot);
                site.raw.change(real, back, raw);
            }
            ["freeze"] => {
                site.boot.change(real, 0, -1_000_000);
                site.raw.change(real, 0, -1_000_000);
            }
            [rate] => {
                let ppm = percent(rate);
                site.boot.change(real, 0, ppm);
                site.raw.change(real, 0, ppm);
            }
            [which @ ("boot" | "raw"), rate] => {
                let hand = match *which {
                    "boot" => &mut site.boot,
                    _ => &mut site.raw,
                };
                hand.change(real, 0, percent(rate));
            }
            _ => panic!("clock {change:?}?"),
        }
    }
}

/// The configuration in force.
fn members(node: &Consensus) -> String {
    let list = |set: &BTreeSet<NodeId>| {
        let names: Vec<_> = set.iter().map(NodeId::to_string).collect();
        names.join(",")
    };
    let configuration = node.configuration();
    let mut line = format!("voters {}", list(&configuration.voters));
    if let Some(outgoing) = &configuration.outgoing {
        line += &format!(" and before {}", list(outgoing));
    }
    if !configuration.learners.is_empty() {
        line += &format!(" learners {}", list(&configuration.learners));
    }
    for (member, place) in &configuration.joining {
        line += &format!(" joining {member}");
        if let Some(voter) = place {
            line += &format!(" for {voter}");
        }
    }
    for (member, details) in &configuration.details {
        line += &format!(" {member}={:?}", String::from_utf8_lossy(details));
    }
    if !node.is_configuration_committed() {
        line += ", uncommitted";
    }
    if node.is_removed() {
        line += ", and is none of them";
    }
    line
}

fn percent(rate: &str) -> i64 {
    let percent: f64 = rate.trim_end_matches('%').parse().expect("a percentage");
    (percent * 10_000.0) as i64
}

fn forged(world: &mut World, from: u64, to: u64, words: &[&str]) -> Message {
    let fields: BTreeMap<_, _> = words[1..]
        .iter()
        .filter_map(|w| w.split_once('='))
        .collect();
    let field = |name: &str, default: &'static str| *fields.get(name).unwrap_or(&default);
    // Rounds are told without their upper bits; those of whoever created them are put back.
    let asks = words[0].ends_with('?');
    let creator = if asks { from } else { to };
    let creator = world
        .sites
        .get(&creator)
        .and_then(|site| site.node.as_ref());
    let high = creator.map_or(0, |node| node.next_round & !0xf_ffff);
    let round = RoundId(high | number(field("round", "0")));
    let id = |text: &str| {
        let (index, term) = text.split_once('@').expect("index@term");
        LogId::new(LogIndex(number(index)), Term(number(term)))
    };
    let heard = Heard {
        round,
        promised: true,
    };
    let heartbeat = Heartbeat {
        round,
        promise: Duration::from_nanos(nanos(field("promise", "500ms"))),
        commit: LogIndex(number(field("commit", "0"))),
        fresh: None,
    };
    match words[0] {
        "heartbeat?" => Message::Heartbeat(heartbeat),
        "heartbeat!" => Message::HeartbeatReply(HeartbeatReply {
            heard,
            verified: LogIndex(number(field("verified", "0"))),
            name: RoundId(0),
            wants_read_lease: false,
        }),
        "append?" => {
            let entries = field("entries", "").split(',').filter(|e| !e.is_empty());
            Message::Append(Append {
                heartbeat,
                base: id(field("base", "0@0")),
                base_checksum: None,
                entries: entries
                    .map(|entry| match entry.split_once(':') {
                        None => (entry, Payload::Noop),
                        Some((entry, text)) => {
                            (entry, Payload::Command(Bytes::from(text.to_owned())))
                        }
                    })
                    .map(|(entry, payload)| Entry {
                        id: id(entry),
                        payload,
                    })
                    .collect(),
            })
        }
        "append!" => Message::Appended(AppendReply {
            heard,
            verdict: Verdict::Durable(LogIndex(number(field("durable", "0")))),
        }),
        "vote?" => {
            let from = fields.get("transfer").map(|term| Term(number(term)));
            Message::Vote(Vote {
                round,
                last: id(field("last", "0@0")),
                origin: LogOrigin {
                    first: id(field("first", "0@0")),
                    hash: 0,
                },
                promise: Duration::from_millis(500),
                transfer_from: from,
            })
        }
        "pre-vote!" => Message::PreVoteReply(PreVoteReply {
            round,
            ballot: Ballot::Granted,
        }),
        "release" => Message::Release,
        other => panic!("forge {other}?"),
    }
}

fn cluster(arguments: &[&str]) -> World {
    let fields: BTreeMap<_, _> = arguments.iter().filter_map(|w| w.split_once('=')).collect();
    let nodes = fields.get("nodes").map_or(3, |nodes| number(nodes));
    let sets: Vec<_> = arguments
        .iter()
        .filter(|word| {
            ["voters", "learners", "outgoing"]
                .iter()
                .any(|set| word.starts_with(set))
        })
        .copied()
        .collect();
    let bootstrap = if sets.is_empty() {
        Configuration {
            voters: (1..=nodes).map(NodeId).collect(),
            ..Configuration::default()
        }
    } else {
        configuration(&sets)
    };
    let timing = timing(arguments);
    let seed = fields.get("seed").map_or(1, |seed| number(seed));
    let mut world = World::new(nodes, timing, bootstrap, seed);
    world.timers = false;
    let ids: Vec<_> = world.sites.keys().copied().collect();
    ids.into_iter().for_each(|id| world.after(id));
    if let Some(leader) = fields.get("leader") {
        let leader = number(leader);
        world.advance(u64::try_from(timing.lease_duration.as_nanos()).expect("short") + MS);
        world.time_out(leader);
        world.advance(200 * MS);
        // Time 0 is when the next round is due.
        let due = world.site(leader).node().poll_timeout();
        let now = world.sites[&leader].clock(world.real);
        let wait = due.at_most_since(now).as_nanos();
        world.advance(u64::try_from(wait).expect("short") - 1);
        world.real += 1;
        world.origin = world.real;
    }
    world.trace.clear();
    world.show = Show::Votes;
    world
}

/// The default timing with changes; `promise` scales everything with it.
fn timing(settings: &[&str]) -> Timing {
    let mut options = TimingOptions::default();
    for (name, value) in settings.iter().filter_map(|word| word.split_once('=')) {
        match name {
            "promise" => {
                let scale = nanos(value) as f64 / (500 * MS) as f64;
                for setting in [
                    &mut options.heartbeat_interval,
                    &mut options.election_timeout_min,
                    &mut options.election_timeout_max,
                    &mut options.step_down_after,
                    &mut options.lease_duration,
                    &mut options.max_clock_skew,
                ] {
                    *setting = setting.mul_f64(scale);
                }
            }
            "step_down" => options.step_down_after = Duration::from_nanos(nanos(value)),
            "lease" => options.lease_enabled = value != "off",
            "read_lease" => options.read_lease_enabled = value != "off",
            "write_delay" => {
                options.read_lease_max_write_delay = Duration::from_nanos(nanos(value));
            }
            _ => {}
        }
    }
    Timing::new(options).expect("settings that fit")
}

fn configuration(sets: &[&str]) -> Configuration {
    let mut configuration = Configuration::default();
    for set in sets {
        let (name, ids) = set.split_once('=').expect("name=ids");
        let ids: BTreeSet<_> = ids.split(',').map(|id| NodeId(number(id))).collect();
        match name {
            "voters" => configuration.voters = ids,
            "outgoing" => configuration.outgoing = Some(ids),
            "learners" => configuration.learners = ids,
            other => panic!("{other}?"),
        }
    }
    configuration
}

fn arrow(link: &str) -> (u64, u64) {
    let (from, to) = link.split_once("->").expect("from->to");
    (number(from), number(to))
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

fn nanos(time: &str) -> u64 {
    let (count, unit) = match time.strip_suffix("ms") {
        Some(count) => (count, MS),
        None => (time.strip_suffix('s').expect("a time"), 1000 * MS),
    };
    let count: f64 = count.parse().expect("a time");
    (count * unit as f64) as u64
}
