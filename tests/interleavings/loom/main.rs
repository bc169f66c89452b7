//! What threads share around a leased read, in every order that the memory model allows.
//!
//! The files of the library that are tried here are compiled once more, into this binary, with
//! `crate::sync` being loom's. Everything else of the library is used as it is. Each model is a
//! function that loom runs again and again, until it has seen every order of the steps of two
//! threads that differs. See README.md beside this folder for what is modelled and what is not.
//!
//! `cargo test --test interleavings_loom [NAME...]`

#![expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]

/// As in the library, but switched by name, by [`planted::with`].
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_on(stringify!($bug))
    };
    ($bug:ident => $does:expr) => {
        if $crate::planted::is_on(stringify!($bug)) {
            $does
        }
    };
}

mod lease;
mod planted;
mod sync;

// What the compiled files know as `crate::…`.
use leasehold::api;
use leasehold::time;
use leasehold::types;

/// The part of the node that answers reads.
mod node {
    #[path = "../../../../src/node/reader.rs"]
    pub(crate) mod reader;
}

#[path = "../../../src/raft/mod.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "the whole of consensus is compiled, and a part of it tried"
)]
mod raft;

use std::process::ExitCode;
use std::time::Instant;

/// A claim that must hold in every order, and the bugs that must be seen by it.
struct Model {
    name: &'static str,
    run: fn(),
    planted: &'static [&'static str],
}

const MODELS: &[Model] = &[
    Model {
        name: "a_read_sees_what_anybody_has_seen_before_it_arrived",
        run: lease::a_read_sees_what_anybody_has_seen_before_it_arrived,
        planted: &["CommitPublishedLate", "CommitNotCaptured"],
    },
    Model {
        name: "a_lease_is_void_before_its_end_is_told",
        run: lease::a_lease_is_void_before_its_end_is_told,
        planted: &["ReleaseWhileServing", "StepDownKeepsLease"],
    },
    Model {
        name: "a_new_leadership_serves_nothing_below_its_floor",
        run: lease::a_new_leadership_serves_nothing_below_its_floor,
        planted: &["NoFloor"],
    },
];

/// Threads of a model may be preempted this often: what is found with more is hardly ever found by
/// one preemption more, and the number of orders grows with each (Musuvathi and Qadeer).
const PREEMPTIONS_MAX: usize = 3;

fn check(run: fn()) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS_MAX);
    builder.max_branches = 100_000;
    builder.check(run);
}

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is its own test harness"
)]
fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut failed = false;
    for model in MODELS {
        if !wanted.is_empty() && !wanted.iter().any(|name| model.name.contains(name)) {
            continue;
        }
        let begun = Instant::now();
        check(model.run);
        println!("{}: every order in {:.1?}", model.name, begun.elapsed());
        for bug in model.planted {
            let begun = Instant::now();
            let _planted = planted::with(bug);
            // The panic is what is wanted, and says more than anybody wants to read.
            let hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(|_| {}));
            let missed = std::panic::catch_unwind(|| check(model.run)).is_ok();
            std::panic::set_hook(hook);
            let verdict = if missed { "NOT SEEN" } else { "seen" };
            println!("  {bug}: {verdict} in {:.1?}", begun.elapsed());
            failed |= missed;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
