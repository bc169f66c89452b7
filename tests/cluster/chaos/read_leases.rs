//! Read leases at every member, under clients that ask one member each: a holder, and then the leader, is paused,
//! killed, cut off in one direction and in both, and slowed; and leadership moves past a holder that does not hear of
//! it. Nothing that is read is stale, and writes go on: those that a holder who is gone holds up, too.
//!
//! Here wires and disks are those of the long run, which draws read leases, too; [`crate::chaos::partitions`] has the cuts
//! that no member is told of.

use std::time::{Duration, Instant};

use crate::chaos::fleet::Fleet;
use crate::chaos::schedule::{Event, Fault, PATIENT_LEADER, ReadLeases, Whom};
use crate::chaos::trial::Trial;

/// For how long a fault goes on once writes were seen to go on: longer than any lease.
const MEANWHILE: Duration = Duration::from_millis(700);
/// Pauses that a read lease survives, nearly, and just not: `leader_lease.duration` is 500 ms.
const BLINKS: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(600),
];
/// What a holder takes to notice that it goes on.
const NOTICED: Duration = Duration::from_millis(80);
/// How long leaders wait for a slow holder: longer than one is slow because the machine is busy, for such a holder is
/// granted nothing while writes go on.
const WAITS: Duration = Duration::from_millis(200);
/// What takes a holder longer than that.
const SLOW: Duration = Duration::from_millis(320);
/// How often leadership is handed over.
const HAND_OVERS: usize = 4;
const RECALLS: &str = "leasehold_read_lease_recalls_total{reason=\"slow\"}";

/// Who it is, of those that serve reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Holder,
    Leader,
}

/// What befalls it.
type Kind = fn(Whom) -> Fault;

/// A cluster in which all members ask for read leases.
fn begin(seed: u64, max_write_delay: Duration) -> Trial {
    let read_leases = ReadLeases::everywhere(3, max_write_delay);
    Trial::begin(Fleet::start_with(3, seed, &read_leases), seed)
}

#[test]
fn holders_and_leaders_that_are_paused_killed_and_cut_off_tell_nothing_stale() {
    let mut trial = begin(5, PATIENT_LEADER);
    let client = trial.client();
    for lasts in BLINKS {
        let leader = trial.leader_of_holders();
        for node in [(leader + 1) % 3, (leader + 2) % 3, leader] {
            let event = Event {
                at: Duration::ZERO,
                lasts,
                fault: Fault::Pause(Whom::Node(node)),
            };
            trial.fleet.begin(&event, leader);
            trial.go_on(lasts + NOTICED);
        }
        trial.write_on(&client);
    }
    let faults: [(Part, Kind); 8] = [
        (Part::Holder, Fault::Deafen),
        (Part::Holder, Fault::Kill),
        (Part::Leader, Fault::Deafen),
        (Part::Holder, Fault::Mute),
        (Part::Leader, Fault::Kill),
        (Part::Holder, Fault::Pause),
        (Part::Leader, Fault::Pause),
        (Part::Holder, Fault::Isolate),
    ];
    for (turn, (part, kind)) in faults.into_iter().enumerate() {
        let began = Instant::now();
        let leader = trial.leader_of_holders();
        let found = began.elapsed();
        let node = match part {
            Part::Holder => (leader + 1 + turn % 2) % 3,
            Part::Leader => leader,
        };
        trial.strike(node, kind);
        let wrote = trial.write_on(&client);
        trial.go_on(MEANWHILE);
        trial.fleet.heal();
        let name = kind(Whom::Leader).name();
        eprintln!(
            "{name} of a {part:?}, {found:?} after all held: {wrote:?} for the first writes; {:?} in all",
            began.elapsed()
        );
    }
    trial.end().demand_read_leases();
}

#[test]
fn holders_that_are_slow_are_recalled_and_tell_nothing_stale() {
    let mut trial = begin(6, WAITS);
    let client = trial.client();
    let lag: Kind = |whom| Fault::Lag(whom, SLOW);
    let disk: Kind = |whom| Fault::SlowDisk(whom, SLOW);
    let faults = match trial.fleet.can_slow_disks() {
        true => vec![lag, disk],
        false => vec![lag],
    };
    for kind in faults {
        let began = Instant::now();
        let leader = trial.leader_of_holders();
        let found = began.elapsed();
        trial.strike((leader + 1) % 3, kind);
        let wrote = trial.write_on(&client);
        // What was recalled is not granted again as long as its holder is behind.
        let (_, recalled) = trial.until("a holder that is too slow is recalled", |fleet| {
            let nodes = fleet.cluster.nodes.iter();
            let recalls: f64 = nodes.map(|node| node.metric(RECALLS)).sum();
            (recalls > 0.0).then_some(())
        });
        trial.go_on(MEANWHILE);
        trial.fleet.heal();
        let name = kind(Whom::Leader).name();
        eprintln!(
            "{name}, {found:?} after all held: {wrote:?} for the first writes; recalled {recalled:?} later; {:?} in all",
            began.elapsed()
        );
        // The next leader has had no trouble with any holder.
        let (leader, _) = trial.leader_beside(&[]);
        trial.strike(leader, Fault::Kill);
        trial.leader_beside(&[leader]);
        trial.fleet.heal();
    }
    trial.end().demand();
}

#[test]
fn leadership_moves_once_all_read_leases_are_back_though_a_holder_never_hears_the_next_leader() {
    let mut trial = begin(7, PATIENT_LEADER);
    let client = trial.client();
    let mut handed_over = 0;
    for _ in 0..HAND_OVERS {
        let leader = trial.leader_of_holders();
        // Each of the others hears the leader, and not the other one. Which of them leads next is open.
        trial.strike((leader + 1) % 3, Fault::Bridge);
        trial.fleet.tick();
        let moved = trial.runtime.block_on(client.move_leader(None));
        let wrote = trial.write_on(&client);
        let (next, _) = trial.leader_beside(&[]);
        eprintln!(
            "n{} hands over: {:?}; n{} leads; {wrote:?} for the first writes",
            leader + 1,
            moved.map(|_| "done"),
            next + 1
        );
        handed_over += u32::from(next != leader);
        trial.go_on(MEANWHILE);
        trial.fleet.heal();
    }
    assert!(handed_over > 0, "no leader has handed over");
    trial.end().demand_read_leases();
}
