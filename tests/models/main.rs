//! Small models: the consensus that serves in production, gone through exhaustively in worlds of
//! three replicas. `README.md` says what each model lets happen, and what it found.

#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test binary speaks to whoever runs it, and may panic"
)]

#[cfg(leasehold_bugs)]
mod bugs;
mod claims;
mod fingerprints;
mod holder_scopes;
mod holders;
mod marks;
mod replica;
mod scope;
mod scopes;
mod story;
mod world;

use scope::Scope;
use stateright::{Checker, Model};

/// What a search came to.
struct Found {
    /// The claim that breaks.
    #[cfg(leasehold_bugs)]
    broken: Option<String>,
    /// The conversation that breaks it.
    story: Option<String>,
    /// How many steps that takes.
    #[cfg(leasehold_bugs)]
    steps: usize,
    states: usize,
    /// Whether it stopped because it had come so far as it was to.
    is_cut: bool,
    seconds: f64,
}

/// Goes through all states of a scope, those first that are nearest to its beginning, or so many steps.
fn search(scope: &Scope, steps_max: Option<usize>) -> Found {
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the search took is only told"
    )]
    let began = std::time::Instant::now();
    let mut checker = scope.clone().checker();
    if let Some(steps_max) = steps_max {
        checker = checker.target_state_count(steps_max);
    }
    let checker = checker.spawn_bfs().join();
    let path = checker.discovery(scope::HOLDS).map(|path| path.into_vec());
    let found = Found {
        #[cfg(leasehold_bugs)]
        broken: path.as_ref().and_then(|path| {
            let (world, _) = path.last()?;
            world.broken.as_deref().map(str::to_owned)
        }),
        #[cfg(leasehold_bugs)]
        steps: path.as_ref().map_or(0, |path| path.len() - 1),
        story: path.map(|path| story::tell(scope, &path)),
        states: checker.unique_state_count(),
        is_cut: steps_max.is_some_and(|steps_max| checker.state_count() >= steps_max),
        seconds: began.elapsed().as_secs_f64(),
    };
    println!(
        "{}: {} states, {} steps, {} deep, {:.1} s; {}",
        scope.name,
        found.states,
        checker.state_count(),
        checker.max_depth() - 1,
        found.seconds,
        scope.marks,
    );
    if std::env::var_os("MODELS_TAKEN").is_some() {
        println!("{}: taken {:?}", scope.name, scope.marks.taken());
    }
    found
}

/// So many steps of each model are gone through in a build that is not optimised, which takes ten times as
/// long for each. The gate goes on in one that is.
const STEPS_UNOPTIMISED: usize = 10_000;

/// `MODELS_DEPTH`, if it is set: go through every model to its end, with so many more of what it
/// is about.
fn depth() -> Option<u8> {
    let depth = std::env::var("MODELS_DEPTH").ok()?;
    Some(depth.parse().expect("MODELS_DEPTH is a small number"))
}

fn holds(scope: impl Fn(u8) -> Scope) {
    let depth = depth();
    let mut scope = scope(depth.unwrap_or(0));
    if depth.is_some() {
        scope.steps = None;
    }
    let is_whole = depth.is_some() || !cfg!(debug_assertions);
    let steps_max = (!is_whole).then_some(STEPS_UNOPTIMISED);
    let found = search(&scope, steps_max);
    if let Some(story) = found.story {
        panic!("{}:\n{story}", scope.name);
    }
    if found.is_cut {
        return println!("{}: cut short, for this build is not optimised", scope.name);
    }
    for mark in scope.expects {
        assert!(scope.marks.count(*mark) > 0, "{}: no {mark:?}", scope.name);
    }
}

macro_rules! models {
    ($scopes:ident: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                holds($scopes::$name);
            }
        )*
    };
}

models! {
    scopes:
    elections batches logs writes figure_8 quorum_reads follower_reads
    rounds conflicts restarts unequal_promises rivals pre_votes crossed_pre_votes twice_leader
    handovers stale_authority late_orders late_words releases released_restarts late_votes
    steps_back two_clocks fresh_reads ages
    bootstraps wiped_voters
}

models! {
    holder_scopes:
    grants voting_holders uneven_clocks gates latecomers recalls installs returns grantors
    held_handovers held_releases removals promotions replacements
}

/// The control: clocks that differ by more than the settings allow break a lease.
#[test]
fn too_small_a_margin_is_found() {
    let found = search(&scopes::too_small_a_margin(0), None);
    let story = found.story.expect("leases overlap");
    assert!(
        story.contains("! O2: n1 holds a lease of t1 while n3 leads t2"),
        "{story}"
    );
}
