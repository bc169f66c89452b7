#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test binary speaks to whoever runs it, and may panic"
)]

mod claims;
mod fingerprints;
mod marks;
mod replica;
mod scope;
mod scopes;
mod story;
mod world;

use scope::Scope;
use stateright::Checker;
use stateright::Model;

/// What a search came to.
struct Found {
    /// The conversation that breaks a claim.
    story: Option<String>,
}

fn search(scope: Scope) -> Found {
    let name = scope.name;
    #[expect(
        clippy::disallowed_methods,
        reason = "how long the search took is only told"
    )]
    let began = std::time::Instant::now();
    let checker = scope.clone().checker().spawn_bfs().join();
    let path = checker.discovery("every claim holds");
    println!(
        "{name}: {} states, {} steps, {} deep, {:.1} s; {}",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth() - 1,
        began.elapsed().as_secs_f64(),
        scope.marks,
    );
    let story = path.map(|path| story::tell(&scope, &path.into_vec()));
    Found { story }
}

fn depth() -> u8 {
    let set = std::env::var("MODELS_DEPTH").ok();
    set.map_or(0, |depth| {
        depth.parse().expect("MODELS_DEPTH is a small number")
    })
}

fn holds(scope: impl Fn(u8) -> Scope) {
    let scope = scope(depth());
    let found = search(scope.clone());
    if let Some(story) = found.story {
        panic!("{}:\n{story}", scope.name);
    }
    for mark in scope.expects {
        assert!(scope.marks.count(*mark) > 0, "{}: no {mark:?}", scope.name);
    }
}

macro_rules! models {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                holds(scopes::$name);
            }
        )*
    };
}

models! {
    elections batches logs writes figure_8 quorum_reads
    rounds conflicts restarts unequal_promises rivals pre_votes twice_leader
    handovers stale_authority late_words releases late_votes steps_back two_clocks fresh_reads
}

#[test]
fn too_small_a_margin_is_found() {
    let found = search(scopes::too_small_a_margin(0));
    println!("{}", found.story.expect("leases overlap"));
}
