//! Every disk that can be told apart, under every configuration, and every start cut off after every step.

use super::*;

const ME: NodeId = NodeId(1);
/// Restored from a backup that ended where the shorter logs here begin.
const RESTORED: UnprovenReason = UnprovenReason::Restored {
    base: LogIndex(5),
    hash: 7,
};

/// A disk as it is, whether anybody has looked or not. What is known of it, and what was done in this start
/// alone, is in `known`.
#[derive(Clone, Debug)]
struct World {
    known: Disk,
    log: OpenLog,
    state: Content,
    received: bool,
    /// What was set aside, if it is to be opened again.
    aside: Option<Content>,
}

/// What is in a state.
#[derive(Clone, Copy, Debug)]
enum Content {
    Applied(u64),
    Damaged,
}

impl World {
    /// A member of three, as it was left by a clean stop.
    fn whole() -> Self {
        let known = Disk {
            path: PathBuf::from("data"),
            removed: None,
            bootstrap: Bootstrap::Members(names(&["n1", "n2", "n3"])),
            unproven: None,
            diverged: None,
            lease_tripped: false,
            log: LogFacts::Unread,
            state: StateFacts::default(),
        };
        let log = OpenLog {
            damage: None,
            repaired: None,
            is_quarantined: false,
            base: LogId::default(),
            last: id(9, 2),
            term: Term(2),
            members: [ME, NodeId(2), NodeId(3)].into(),
            version: None,
        };
        Self {
            known,
            log,
            state: Content::Applied(9),
            received: false,
            aside: None,
        }
    }

    /// A directory that holds nothing.
    fn empty() -> Self {
        let mut world = Self::whole();
        world.known.bootstrap = Bootstrap::Missing;
        world.loses_its_log()
    }

    fn loses_its_log(mut self) -> Self {
        self.known.log = LogFacts::Missing;
        self.log.last = LogId::default();
        self.log.term = Term(0);
        self.state = Content::Applied(0);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// As the shell does.
    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Bootstrap { members, unproven } => {
                if *unproven {
                    self.known.unproven = Some(UnprovenReason::WasEmpty);
                }
                self.known.bootstrap = Bootstrap::Members(members.clone());
                if self.log.last == LogId::default() {
                    let members = 0..members.len() as u64;
                    self.log.members = members.map(|place| NodeId(place + 1)).collect();
                }
            }
            Step::MarkLostLog => self.known.unproven = Some(UnprovenReason::LostLog),
            Step::MarkOlderVotes => self.known.unproven = Some(UnprovenReason::OlderVotes),
            Step::OpenLog => self.known.log = LogFacts::Open(self.log.clone()),
            Step::RepairLog => {
                self.log.is_quarantined = true;
                let damage = self.log.damage.take();
                let repaired = damage.clone();
                self.known.log = LogFacts::Open(OpenLog {
                    repaired,
                    ..self.log.clone()
                });
            }
            Step::SetStateAside { .. } => {
                self.state = Content::Applied(0);
                self.known.state = StateFacts {
                    is_set_aside: true,
                    is_wanted_back: self.aside.is_some(),
                    ..StateFacts::default()
                };
            }
            Step::OpenState => {
                self.known.state.opened = Some(match self.state {
                    Content::Applied(index) => StateOpening::Whole {
                        applied: LogIndex(index),
                        version: 1,
                    },
                    Content::Damaged => StateOpening::Damaged("rotten".to_owned()),
                });
                self.known.state.is_received = self.received;
            }
            Step::ReopenState => {
                self.state = self.aside.take().expect("one is wanted back");
                self.known.state = StateFacts::default();
            }
            Step::AdoptState => {
                self.state = Content::Applied(self.log.base.index.0);
                self.received = false;
                self.known.state.opened = None;
                self.known.state.is_received = false;
            }
            Step::Quarantine => {
                self.log.is_quarantined = true;
                let LogFacts::Open(log) = &mut self.known.log else {
                    panic!("a quarantine is written into an open log");
                };
                log.is_quarantined = true;
            }
            Step::Start(_) => {}
        }
    }

    /// The process ends: what only it knew is gone.
    fn is_cut_off(&mut self) {
        if let LogFacts::Open(_) = self.known.log {
            self.known.log = LogFacts::Unread;
        }
        self.known.state.opened = None;
        self.known.state.is_set_aside = false;
        self.known.state.is_received = false;
    }

    /// All steps to the start, or to the refusal.
    fn start(&mut self, member: &Member) -> (Vec<Step>, Result<Start, Refusal>) {
        let mut steps = Vec::new();
        loop {
            assert!(steps.len() < 16, "no end: {steps:?}");
            let step = match decide(&self.known, member) {
                Ok(Step::Start(start)) => return (steps, Ok(start)),
                Ok(step) => step,
                Err(refusal) => return (steps, Err(refusal)),
            };
            self.carry_out(&step);
            steps.push(step);
        }
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn id(index: u64, term: u64) -> LogId {
    LogId::new(LogIndex(index), Term(term))
}

fn damage() -> Damage {
    Damage {
        what: "a bit".to_owned(),
        place: "log/1".to_owned(),
    }
}

fn member(state: ClusterState, initial: &[&str]) -> Member {
    Member {
        id: ME,
        state,
        initial: names(initial),
        is_initial_member: true,
        told: Vec::new(),
        versions: VersionRange {
            oldest: 1,
            newest: 1,
        },
    }
}

/// One of three, bootstrapped together.
fn new() -> Member {
    member(ClusterState::New, &["n3", "n1", "n2"])
}

fn existing() -> Member {
    Member {
        told: names(&["n1", "n2", "n3"]),
        ..member(ClusterState::Existing, &["n2", "n3"])
    }
}

fn joining() -> Member {
    Member {
        is_initial_member: false,
        ..member(ClusterState::Existing, &["n2", "n3"])
    }
}

fn alone() -> Member {
    member(ClusterState::New, &["n1"])
}

/// Its log was cut, its state set aside, and that is to be opened again.
fn lacks(world: &mut World, aside: Content) {
    world.log.base = id(5, 2);
    world.state = Content::Applied(0);
    world.aside = Some(aside);
    world.known.state.is_wanted_back = true;
}

/// A log that holds what a member has that is alone.
fn lone(world: &mut World) {
    world.known.bootstrap = Bootstrap::Members(names(&["n1"]));
    world.log.members = [ME].into();
}

fn tell(step: &Step) -> String {
    match step {
        Step::Bootstrap { members, unproven } => {
            let mark = if *unproven { ", unproven" } else { "" };
            format!("bootstrap [{}]{mark}", members.join(" "))
        }
        Step::MarkLostLog => "mark lost log".to_owned(),
        Step::MarkOlderVotes => "mark older votes".to_owned(),
        Step::OpenLog => "log".to_owned(),
        Step::RepairLog => "repair".to_owned(),
        Step::SetStateAside { why } => format!("set aside ({why})"),
        Step::OpenState => "state".to_owned(),
        Step::AdoptState => "adopt".to_owned(),
        Step::ReopenState => "reopen".to_owned(),
        Step::Quarantine => "quarantine".to_owned(),
        Step::Start(_) => unreachable!("told as a start"),
    }
}

fn tell_start(start: &Start) -> String {
    let mut said = "start".to_owned();
    for (is, what) in [
        (start.quarantined, " quarantined"),
        (start.unproven, " unproven"),
        (start.diverged.is_some(), " diverged"),
        (start.lease_tripped, " tripped"),
        (start.lacks_state, " without state"),
    ] {
        if is {
            said.push_str(what);
        }
    }
    said
}

#[test]
fn each_disk_is_started_as_it_must_be() {
    let whole = World::whole;
    let rows: &[(&str, World, Member, &str)] = &[
        (
            "new",
            World::empty(),
            new(),
            "bootstrap [n1 n2 n3], unproven; log; state; start unproven",
        ),
        (
            "new, and alone",
            World::empty(),
            alone(),
            "bootstrap [n1]; log; state; start",
        ),
        (
            "joins",
            World::empty(),
            joining(),
            "bootstrap [], unproven; log; state; start unproven",
        ),
        (
            "emptied, and told that the cluster exists",
            World::empty(),
            existing(),
            "bootstrap [n1 n2 n3], unproven; log; state; quarantine; start quarantined unproven",
        ),
        (
            "emptied, of one, and told that the cluster exists",
            World::empty(),
            Member {
                told: names(&["n1"]),
                ..existing()
            },
            "bootstrap [n1], unproven; log; state; quarantine; start quarantined unproven",
        ),
        ("left whole", whole(), new(), "log; state; start"),
        (
            "left whole, by now with other names in the configuration",
            whole(),
            member(ClusterState::New, &["n1", "n2", "n3", "n4"]),
            "log; state; start",
        ),
        (
            "its log and its votes are gone",
            whole().loses_its_log(),
            new(),
            "mark lost log; log; state; quarantine; start quarantined unproven",
        ),
        (
            "its log is gone, and it was alone",
            whole().loses_its_log().with(lone),
            alone(),
            "log; state; start",
        ),
        (
            "damaged",
            whole().with(|world| world.log.damage = Some(damage())),
            new(),
            "log; repair; state; start quarantined",
        ),
        (
            "damaged, and alone",
            whole()
                .with(lone)
                .with(|world| world.log.damage = Some(damage())),
            alone(),
            "log; refused: the log of this node is damaged (log/1: a bit)",
        ),
        (
            "quarantined before",
            whole().with(|world| world.log.is_quarantined = true),
            new(),
            "log; state; start quarantined",
        ),
        (
            "the state is ahead of the log",
            whole().with(|world| world.state = Content::Applied(10)),
            new(),
            "log; state; quarantine; start quarantined",
        ),
        (
            "the vote file is older than the log",
            whole().with(|world| world.log.term = Term(1)),
            new(),
            "log; state; mark older votes; quarantine; start quarantined unproven",
        ),
        (
            "restored from a backup",
            whole().with(|world| {
                world.log.base = id(7, 2);
                world.log.last = id(7, 2);
                world.state = Content::Applied(7);
            }),
            new(),
            "log; state; start",
        ),
        (
            "its state was found to be damaged while it ran",
            whole().with(|world| world.known.state.damage_mark = Some("a table".to_owned())),
            new(),
            "log; set aside (a table); state; start",
        ),
        (
            "its state cannot be opened",
            whole().with(|world| world.state = Content::Damaged),
            new(),
            "log; state; set aside (rotten); state; start",
        ),
        (
            "its state is lost, and its log was cut",
            whole().with(|world| {
                world.log.base = id(5, 2);
                world.state = Content::Damaged;
            }),
            new(),
            "log; state; set aside (rotten); state; start without state",
        ),
        (
            "its state is damaged, its log was cut, and it is alone",
            whole().with(lone).with(|world| {
                world.log.base = id(5, 2);
                world.state = Content::Damaged;
            }),
            alone(),
            "log; state; refused: the state is damaged: rotten",
        ),
        (
            "its state is lost, its log was cut, and it is alone",
            whole().with(lone).with(|world| {
                world.log.base = id(5, 2);
                world.state = Content::Applied(0);
            }),
            alone(),
            "log; state; refused: the state has applied entry 0, but the log begins after 5",
        ),
        (
            "a state came from a peer, and the log begins there",
            whole().with(|world| {
                world.log.base = id(5, 2);
                world.state = Content::Applied(3);
                world.received = true;
            }),
            new(),
            "log; state; adopt; state; start",
        ),
        (
            "nobody leads without the state that was set aside",
            whole().with(|world| lacks(world, Content::Applied(8))),
            new(),
            "log; state; reopen; state; start",
        ),
        (
            "the state that was set aside is as bad as before",
            whole().with(|world| lacks(world, Content::Damaged)),
            new(),
            "log; state; reopen; state; set aside (rotten); state; start without state",
        ),
        (
            "a state came from a peer before the one that was set aside was wanted back",
            whole().with(|world| {
                lacks(world, Content::Applied(8));
                world.received = true;
            }),
            new(),
            "log; state; adopt; state; start",
        ),
        (
            "removed",
            whole().with(|world| world.known.removed = Some("removed by an operator".to_owned())),
            new(),
            "refused: removed by an operator (says data/removed)",
        ),
        (
            "being bootstrapped, and with other names in the configuration",
            whole().with(|world| world.known.unproven = Some(UnprovenReason::WasEmpty)),
            member(ClusterState::New, &["n1"]),
            "refused: cluster.initial names [\"n1\"], but the bootstrap of this cluster has begun \
             with [\"n1\", \"n2\", \"n3\"]",
        ),
        (
            "what it remembers of the bootstrap is damaged",
            whole().with(|world| world.known.bootstrap = Bootstrap::Damaged),
            new(),
            "refused: data/bootstrap is damaged",
        ),
        (
            "would bootstrap the cluster again, were it emptied",
            whole(),
            alone(),
            "log; refused: this cluster has 3 members",
        ),
        (
            "an entry raises the cluster to a version that this program does not know",
            whole().with(|world| world.log.version = Some(2)),
            new(),
            "log; state; refused: data belongs to a cluster of version 2",
        ),
    ];
    for (what, world, member, expected) in rows {
        let (steps, end) = world.clone().start(member);
        let mut said: Vec<String> = steps.iter().map(tell).collect();
        said.push(match &end {
            Ok(start) => tell_start(start),
            Err(refusal) => format!("refused: {refusal}"),
        });
        let said = said.join("; ");
        match end {
            Ok(_) => assert_eq!(said, *expected, "{what}"),
            // What follows in the sentence is for who reads it.
            Err(_) => assert!(said.starts_with(expected), "{what}: {said}"),
        }
    }
}

#[test]
fn a_lease_that_tripped_is_remembered() {
    for tripped in [false, true] {
        let mut world = World::whole().with(|world| world.known.lease_tripped = tripped);
        assert_eq!(world.start(&new()).1.unwrap().lease_tripped, tripped);
    }
}

#[test]
fn a_log_that_diverged_is_remembered() {
    for diverged in [None, Some(LogIndex(7))] {
        let mut world = World::whole().with(|world| world.known.diverged = diverged);
        assert_eq!(world.start(&new()).1.unwrap().diverged, diverged);
    }
}

#[test]
fn each_doubt_is_explained() {
    let warning = |world: World, member| {
        let start = world.clone().start(&member).1.unwrap();
        start.quarantine_warning()
    };
    assert_eq!(warning(World::whole(), new()), None);
    for (world, why) in [
        (World::whole().loses_its_log(), "votes are gone"),
        (
            World::whole().with(|world| world.log.damage = Some(damage())),
            "log/1: a bit",
        ),
        (
            World::whole().with(|world| world.log.is_quarantined = true),
            "before the last stop",
        ),
        (
            World::whole().with(|world| world.state = Content::Applied(10)),
            "ends with entry 9, but the state has applied entry 10",
        ),
        (
            World::whole().with(|world| world.log.term = Term(1)),
            "later term than the vote file knew",
        ),
    ] {
        let warning = warning(world, new()).unwrap();
        assert!(warning.contains(why), "{warning}");
        assert!(
            warning.contains("copies all data from its peers"),
            "{warning}"
        );
    }
    let emptied = warning(World::empty(), existing()).unwrap();
    assert!(emptied.contains("was empty"), "{emptied}");
    let ahead = World::whole().with(lone);
    let ahead = ahead.with(|world| world.state = Content::Applied(10));
    let ahead = warning(ahead, alone()).unwrap();
    assert!(ahead.contains("from a copy"), "{ahead}");
}

/// Every disk, as far as the decision tells them apart, and every configuration.
fn all(mut judge: impl FnMut(&World, &Member)) -> usize {
    let begun = [
        Bootstrap::Missing,
        Bootstrap::Members(names(&[])),
        Bootstrap::Members(names(&["n1"])),
        Bootstrap::Members(names(&["n1", "n2", "n3"])),
    ];
    let unproven = [
        None,
        Some(UnprovenReason::WasEmpty),
        Some(UnprovenReason::LostLog),
        Some(UnprovenReason::OlderVotes),
        Some(UnprovenReason::OlderCopy),
        Some(RESTORED),
    ];
    let states = [
        Content::Applied(0),
        Content::Applied(5),
        Content::Applied(9),
        Content::Applied(10),
        Content::Damaged,
    ];
    let members = [new(), existing(), joining(), alone()];
    let mut worlds = Vec::new();
    for begun in begun {
        for unproven in unproven {
            for state in states {
                for bits in 0..128_u32 {
                    let is = |bit: u32| bits >> bit & 1 == 1;
                    let mut world = World::whole();
                    world.known.bootstrap = begun.clone();
                    world.known.unproven = unproven;
                    if is(0) {
                        world = world.loses_its_log();
                    } else if is(1) {
                        world.log.base = id(5, 2);
                    }
                    world.state = state;
                    world.received = is(1) && is(2);
                    world.log.damage = (is(3) && !is(0)).then(damage);
                    world.log.is_quarantined = is(4) && !is(0);
                    if is(5) {
                        world.log.members = [ME].into();
                    }
                    if is(6) {
                        world.known.state.damage_mark = Some("marked".to_owned());
                    }
                    worlds.push(world);
                }
            }
        }
    }
    for world in &worlds {
        members.iter().for_each(|member| judge(world, member));
    }
    worlds.len() * members.len()
}

#[test]
fn every_start_comes_to_an_end_and_forgives_nothing() {
    let mut started = 0;
    let cases = all(|world, member| {
        let mut after = world.clone();
        let Ok(start) = after.start(member).1 else {
            return;
        };
        started += 1;
        let lost = matches!(world.known.log, LogFacts::Missing)
            && matches!(&world.known.bootstrap, Bootstrap::Members(names)
                if names.len() != 1 || member.state == ClusterState::Existing)
            && world.known.unproven.is_none();
        let emptied = after.known.unproven.is_some()
            && after.known.unproven != Some(RESTORED)
            && member.is_initial_member
            && member.state == ClusterState::Existing;
        let marked = matches!(
            world.known.unproven,
            Some(UnprovenReason::LostLog | UnprovenReason::OlderVotes | UnprovenReason::OlderCopy)
        );
        let forgot = lost || emptied || marked;
        assert!(start.unproven || !forgot, "{world:?} {member:?}");
        let LogFacts::Open(log) = &after.known.log else {
            panic!("it started without a log");
        };
        let Some(StateOpening::Whole { applied, .. }) = after.known.state.opened else {
            panic!("it started without a state");
        };
        let doubtful = forgot
            || world.log.damage.is_some()
            || world.log.is_quarantined
            || applied > log.last.index;
        assert_eq!(start.quarantined, doubtful, "{world:?} {member:?}");
        assert_eq!(start.unproven, after.known.unproven.is_some());
        assert!(start.unproven || world.known.unproven.is_none());
        assert_eq!(start.lacks_state, applied < log.base.index);
        let is_restored = world.known.unproven == Some(RESTORED) && log.base.index == LogIndex(5);
        assert_eq!(start.restored_from, is_restored.then_some(7));
        // What it was restored with may be of another history than the entries that came later.
        assert!(!is_restored || !start.has_peers || log.last == log.base || start.lacks_state);
        assert!(!start.lacks_state || start.has_peers);
        assert!(log.damage.is_none());
    });
    assert!(started > cases / 4, "{started} of {cases}");
}

/// The process may end after any step, and in the middle of the first, which writes two files. What the
/// next one makes of what is there by then is no bolder than what the first would have done.
#[test]
fn a_start_that_is_cut_off_anywhere_forgives_nothing_later() {
    all(|world, member| {
        let mut first = world.clone();
        let (steps, end) = first.start(member);
        let Ok(start) = end else { return };
        assert!(
            first.log.is_quarantined || !start.quarantined,
            "it is on the disk"
        );
        for cut in 0..=steps.len() {
            let mut again = world.clone();
            for step in &steps[..cut] {
                again.carry_out(step);
            }
            if let Some(Step::Bootstrap { unproven: true, .. }) = steps.get(cut) {
                again.known.unproven.get_or_insert(UnprovenReason::WasEmpty);
            }
            again.is_cut_off();
            let (_, end) = again.start(member);
            let later = end.expect("what could be started once can be started");
            let cut = &steps[..cut];
            assert!(later.quarantined || !start.quarantined, "{world:?} {cut:?}");
            assert!(later.unproven || !start.unproven, "{world:?} {cut:?}");
        }
    });
}
