//! What must go on while links are broken: a majority that is connected has a leader soon, and
//! keeps it; and a link that comes and goes disturbs nobody who can do without it.

use leasehold::api::Consistency;

use crate::affordable;
use crate::clock::{MS, Nanos, SECOND, nanos};
use crate::history::{Action, Fate};
use crate::nemesis::Fault;
use crate::nemesis::Target::Node;
use crate::options::{Options, Profile};
use crate::scenarios::Stage;
use crate::world::World;

/// Which ways are cut in a cluster of so many, where node 0 leads.
type Cuts = fn(nodes: usize) -> Vec<(usize, usize)>;

fn both(pairs: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let ways = pairs.iter().flat_map(|(a, b)| [(*a, *b), (*b, *a)]);
    ways.collect()
}

/// In each of these a majority is connected both ways, directly, with the leader or without it.
const PATTERNS: [(&str, &[usize], Cuts); 9] = [
    ("nobody hears the leader", &[3, 4, 5], |nodes| {
        (1..nodes).map(|other| (0, other)).collect()
    }),
    ("the leader hears nobody", &[3, 4, 5], |nodes| {
        (1..nodes).map(|other| (other, 0)).collect()
    }),
    ("the leader is cut off", &[3, 4, 5], |nodes| {
        both(&(1..nodes).map(|other| (0, other)).collect::<Vec<_>>())
    }),
    ("one does not hear the leader", &[3, 4, 5], |_| vec![(0, 1)]),
    ("the leader does not hear one", &[3, 4, 5], |_| vec![(1, 0)]),
    ("one link of the leader is gone", &[3, 4, 5], |_| {
        both(&[(0, 1)])
    }),
    ("one bridges two halves, the leader in one", &[5], |_| {
        both(&[(0, 3), (0, 4), (1, 3), (1, 4)])
    }),
    ("one bridges two halves, and leads", &[5], |_| {
        both(&[(1, 3), (1, 4), (2, 3), (2, 4)])
    }),
    (
        "the leader reaches the others through one",
        &[4, 5],
        |nodes| both(&(2..nodes).map(|other| (0, other)).collect::<Vec<_>>()),
    ),
];

/// Who could answer a read by its lease right now.
fn leaseholder(world: &World) -> Option<usize> {
    let holds = |node: &usize| {
        let machine = &world.machines[*node];
        let lease = machine.process.as_ref().and_then(|p| p.published.lease());
        lease.is_some_and(|lease| lease.is_valid(machine.clock.read(world.now)))
    };
    (0..world.machines.len()).find(holds)
}

fn go_on(world: &mut World, by: Nanos) {
    world.run_until(world.now + by);
    let violation = world.judge.violation();
    assert!(violation.is_none(), "{violation:?}");
}

/// How a cluster fares from the moment some ways are cut.
struct Fared {
    /// How long nobody had a lease that began after the cut, in longest election timeouts.
    without: f64,
    elections: u64,
    /// The share of the time afterwards in which somebody had one.
    with: f64,
}

fn fare(seed: u64, nodes: usize, cuts: Cuts) -> Fared {
    let mut options = Options::draw(seed, Some(Profile::Calm), None);
    options.found(nodes);
    options.moves = false;
    options.clients = 0;
    options.probe_every = None;
    options.preempt = 0.0;
    options.quality.loss = 0.0;
    options.quality.late = 0.0;
    let election = nanos(options.timing.election_timeout_max);
    let lease = nanos(options.timing.lease_duration);
    let mut world = World::new(options);
    while leaseholder(&world).is_none() || world.now < 4 * SECOND {
        go_on(&mut world, MS);
        assert!(world.now < 60 * SECOND, "seed {seed}: nobody leads");
    }
    let leader = leaseholder(&world).expect("somebody has a lease");
    let cut = world.now;
    let elections = world.judge.counts.elections;
    for (from, to) in cuts(nodes) {
        let place = |number: usize| (leader + number) % nodes;
        world.network.cut(place(from), place(to));
    }
    // A lease that is seen after this was earned after the cut.
    go_on(&mut world, lease + lease / 5);
    while leaseholder(&world).is_none() && world.now < cut + 12 * election {
        go_on(&mut world, MS);
    }
    let without = (world.now - cut) as f64 / election as f64;
    let (mut with, mut looks) = (0, 0);
    while world.now < cut + 12 * election {
        go_on(&mut world, 5 * MS);
        looks += 1;
        with += u32::from(leaseholder(&world).is_some());
    }
    Fared {
        without,
        elections: world.judge.counts.elections - elections,
        with: f64::from(with) / f64::from(looks),
    }
}

#[test]
fn a_connected_majority_has_a_leader_soon_and_keeps_it() {
    for (name, sizes, cuts) in PATTERNS {
        let (mut longest, mut most) = (0.0f64, 0);
        for nodes in sizes {
            for seed in 1..=affordable(6) {
                let fared = fare(seed, *nodes, cuts);
                let what = format!("{name}, {nodes} nodes, seed {seed}");
                // Clocks may be slow by as much as they may drift.
                assert!(fared.without <= 3.5, "{what}: {:.1} E_max", fared.without);
                assert!(
                    fared.elections <= 2,
                    "{what}: {} elections",
                    fared.elections
                );
                assert!(
                    fared.with > 0.95,
                    "{what}: a lease {:.2} of the time",
                    fared.with
                );
                longest = longest.max(fared.without);
                most = most.max(fared.elections);
            }
        }
        println!("{name}: a lease within {longest:.1} E_max, {most} elections at most");
    }
}

#[test]
fn a_link_that_comes_and_goes_stops_nobody_who_can_do_without_it() {
    for (up, down) in [(25, 25), (100, 100), (300, 600), (600, 300), (1_000, 1_000)] {
        let mut stage = Stage::with(3);
        let (leader, one) = (stage.leader(), stage.other(1));
        let flapping = Fault::Flap(Node(leader), Node(one), up * MS, down * MS);
        stage.does(21_000, flapping);
        let mut written = 0;
        for _ in 0..20 {
            let until = stage.world.now + SECOND;
            let fate = stage.world.ask(leader, Action::Put(0), SECOND - MS);
            written += u32::from(matches!(fate, Fate::Written { .. }));
            let rest = until.saturating_sub(stage.world.now);
            go_on(&mut stage.world, rest);
        }
        assert!(written >= 18, "up {up} ms, down {down} ms: {written} of 20");
        let read = stage.read(leader, Consistency::LeaseOnly, 100);
        assert!(matches!(read, Fate::Read { .. }), "{read:?}");
        stage.ends_well();
    }
}
