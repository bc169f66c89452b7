//! Whether the name of a state says all that decides over its future.
//!
//! A search drops whatever has a name that it has seen. So of any two states with one name, found
//! in different ways, each must go on as the other does, whatever comes: the same may happen next,
//! the same is said and written, and the states after it have one name again.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use leasehold::raft::{Envelope, LeaseCell, UnsavedState};
use stateright::Model;

use crate::replica::Replica;
use crate::scope::Scope;
use crate::scopes;
use crate::world::{Action, Parcel, World};

/// States that are looked at in each model, pairs that are compared, and how far. Fewer in a build that is not
/// optimised: the gate runs both.
const STATES: usize = if cfg!(debug_assertions) { 1_000 } else { 3_000 };
const PAIRS: usize = if cfg!(debug_assertions) { 50 } else { 150 };
const STEPS: usize = 10;
const WALKS: usize = 2;

fn name(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Whether two worlds read alike from outside: messages, disks, and what each replica publishes.
fn read_alike(one: &World, other: &World) -> bool {
    let wire = |wire: &[Arc<Parcel>]| -> Vec<Envelope> {
        wire.iter().map(|parcel| parcel.envelope.clone()).collect()
    };
    let mut replicas = one.replicas.iter().zip(&other.replicas);
    wire(&one.wire) == wire(&other.wire)
        && one.states == other.states
        && replicas.all(|(one, other)| {
            let left = |cell: &Option<Arc<LeaseCell>>, replica: &Replica| {
                let cell = cell.as_ref()?;
                Some((cell.term, cell.floor, cell.remaining(replica.clock)?))
            };
            let lease = |replica: &Replica| {
                [
                    left(&replica.cell, replica),
                    left(&replica.read_cell, replica),
                ]
            };
            let writes = |replica: &Replica| -> Vec<UnsavedState> {
                let writes = replica.writes.iter();
                writes.map(|(_, unsaved)| unsaved.clone()).collect()
            };
            one.core.status() == other.core.status()
                && lease(one) == lease(other)
                && one.disk == other.disk
                && writes(one) == writes(other)
                && (one.applied, one.to_apply) == (other.applied, other.to_apply)
        })
}

/// Pairs of states of one name that were come to in different ways.
fn pairs(scope: &Scope, rng: &mut fastrand::Rng) -> Vec<(World, World)> {
    let mut known = BTreeMap::new();
    let mut queue = VecDeque::from(scope.init_states());
    let mut pairs = Vec::new();
    let mut actions = Vec::new();
    while let Some(world) = queue.pop_front() {
        if known.len() > STATES {
            break;
        }
        scope.actions(&world, &mut actions);
        rng.shuffle(&mut actions);
        for action in actions.drain(..) {
            let Some(next) = scope.next_state(&world, action) else {
                continue;
            };
            match known.get(&name(&next)) {
                None => {
                    known.insert(name(&next), next.clone());
                    // Some are gone after deeply, most are left: so the pairs are of all depths.
                    match rng.u8(0..3) {
                        0 => queue.push_front(next),
                        _ => queue.push_back(next),
                    }
                }
                Some(first) => pairs.push((first.clone(), next)),
            }
        }
    }
    rng.shuffle(&mut pairs);
    pairs.truncate(PAIRS);
    pairs
}

/// Lets the same happen in both, as long as they can not be told apart.
fn compare(scope: &Scope, pair: (World, World), rng: &mut fastrand::Rng) -> Result<(), String> {
    let (mut one, mut other) = pair;
    let mut steps: Vec<Action> = Vec::new();
    for _ in 0..STEPS {
        if !read_alike(&one, &other) {
            return Err(format!("after {steps:?} they read differently"));
        }
        let (mut here, mut there) = (Vec::new(), Vec::new());
        scope.actions(&one, &mut here);
        scope.actions(&other, &mut there);
        if here != there {
            return Err(format!(
                "after {steps:?} comes one of {here:?} or of {there:?}"
            ));
        }
        let Some(action) = rng.choice(here) else {
            break;
        };
        steps.push(action);
        match (
            scope.next_state(&one, action),
            scope.next_state(&other, action),
        ) {
            (None, None) => {}
            (Some(next), Some(also)) if name(&next) == name(&also) => (one, other) = (next, also),
            _ => return Err(format!("after {steps:?} the states differ")),
        }
    }
    Ok(())
}

fn of_one_name_go_on_alike(mut scope: Scope) {
    // How far it is from the beginning decides only where a search ends.
    scope.steps = None;
    let mut rng = fastrand::Rng::with_seed(1);
    let pairs = pairs(&scope, &mut rng);
    assert!(pairs.len() >= 50, "{}: too few pairs", scope.name);
    for pair in pairs {
        for _ in 0..WALKS {
            if let Err(difference) = compare(&scope, pair.clone(), &mut rng) {
                panic!("{}: one name for two states: {difference}", scope.name);
            }
        }
    }
}

#[test]
fn states_of_one_name_go_on_alike() {
    for scope in scopes::ALL {
        of_one_name_go_on_alike(scope(0));
    }
}
