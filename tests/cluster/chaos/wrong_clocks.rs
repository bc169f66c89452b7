//! The clocks that leases go by, as wrong as the settings allow, and set back: nothing may come of the first, and
//! of the second no more than a lease that is void. Clocks that are more wrong than that are no trial of this kind:
//! reads under a lease may then be stale. What gives them away is tested beside the alerts.

use std::time::Duration;

use crate::chaos::fleet::Fleet;
use crate::chaos::schedule::{DRIFT_PPM, Fault};
use crate::chaos::trial::Trial;

/// For how long the clocks run apart before the leader is cut off, and after another leads.
const A_WHILE: Duration = Duration::from_secs(2);
const BACK: Duration = Duration::from_secs(3);
const JUMPS: &str = "leasehold_clock_jump_total ";
const VOIDED: &str = "leasehold_leader_lease_invalidations_total{reason=\"clock_jump\"} ";

#[test]
fn clocks_as_wrong_as_they_may_be_break_no_promise_and_a_step_back_voids_the_lease() {
    let mut fleet = Fleet::start(3, 1);
    // Says what is missing.
    if !fleet.drift(0, 0) {
        return;
    }
    let mut trial = Trial::begin(fleet, 1);
    // A leader that trusts its lease for too long, among voters that promise too shortly; and the reverse.
    for slow_leader in [true, false] {
        let (leader, _) = trial.leader_beside(&[]);
        for node in 0..3 {
            let is_slow = (node == leader) == slow_leader;
            trial.strike(node, |whom| {
                Fault::Drift(whom, if is_slow { -DRIFT_PPM } else { DRIFT_PPM })
            });
        }
        trial.go_on(A_WHILE);
        // Its lease is to end before the others' promises do: who asks it meanwhile is told no older state.
        trial.strike(leader, Fault::Isolate);
        let (_, took) = trial.leader_beside(&[leader]);
        eprintln!("another leads {took:?} after the leader was cut off");
        trial.go_on(A_WHILE);
        trial.fleet.heal();
    }
    // It is stopped while they are set back, and they do not go back if that takes so long.
    let (leader, took) = trial.until("a step back that a leader sees", |fleet| {
        let leader = fleet.cluster.leader()?;
        let counts = |fleet: &Fleet| {
            [JUMPS, VOIDED].map(|series| fleet.cluster.nodes[leader].metric(series))
        };
        let before = counts(fleet);
        if !fleet.step_back(leader, BACK) {
            return None;
        }
        let seen = (0..50).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            let after = counts(fleet);
            after
                .iter()
                .zip(&before)
                .all(|(after, before)| after > before)
        });
        seen.then_some(leader)
    });
    eprintln!(
        "the lease of n{} was void after a step back, {took:?} later",
        leader + 1
    );
    // And it has a lease again, or another has.
    trial.leader_beside(&[]);
    trial.go_on(A_WHILE);
    trial.end().demand();
}
