//! Bugs that a test of the library notices by itself do fail it. Each is run in a process of its
//! own, with the bug in its environment; and once without, because a test that always fails
//! notices nothing.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use super::*;

#[test]
fn every_witness_notices_its_bug_and_nothing_else() {
    let wrong = on_two_threads(Bug::ALL, |bug| {
        let witness = bug.witness()?;
        let (without, with) = (passes(witness, ""), passes(witness, &bug.to_string()));
        let line = format!("{bug}: {witness} passes without: {without:?}, with: {with:?}");
        ((without, with) != (Some(true), Some(false))).then_some(line)
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Bugs of one rule may hide each other: whoever notices one of the two must notice both together.
/// (Of those that have no witness, `tests/sim/bugs/mod.rs` plants the pairs.)
#[test]
fn witnesses_notice_pairs_of_one_rule() {
    let share_a_rule = |one: Bug, other: Bug| {
        let mut rules = one.rule().split(", ");
        rules.any(|rule| other.rule().split(", ").any(|its| its == rule))
    };
    let mut pairs = Vec::new();
    for (place, one) in Bug::ALL.iter().enumerate() {
        for other in &Bug::ALL[place + 1..] {
            if share_a_rule(*one, *other) && one.witness().or(other.witness()).is_some() {
                pairs.push((*one, *other));
            }
        }
    }
    let missed = on_two_threads(&pairs, |(one, other)| {
        let both = format!("{one},{other}");
        let mut witnesses = [one.witness(), other.witness()].into_iter().flatten();
        let noticed = witnesses.any(|witness| passes(witness, &both) == Some(false));
        (!noticed).then_some(both)
    });
    assert!(missed.is_empty(), "not noticed: {}", missed.join(" "));
    assert!(pairs.len() > 50, "{}", pairs.len());
}

/// What `work` says of each of `all`.
fn on_two_threads<T: Copy + Sync>(
    all: &[T],
    work: impl Fn(T) -> Option<String> + Sync,
) -> Vec<String> {
    let queue = Mutex::new(all.iter());
    let said = Mutex::new(Vec::new());
    let thread = || {
        loop {
            let next = queue.lock().expect("no other thread panicked").next();
            let Some(next) = next else { return };
            if let Some(line) = work(*next) {
                said.lock().expect("no other thread panicked").push(line);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(thread);
        scope.spawn(thread);
    });
    said.into_inner().expect("no thread panicked")
}

/// Whether `witness` passes with these bugs; `None` if there is no such test.
fn passes(witness: &str, bugs: &str) -> Option<bool> {
    let mut test = witness;
    if !witness.contains("::") {
        let conversation = format!("src/raft/testdata/{witness}.txt");
        if !Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(conversation)
            .exists()
        {
            return None;
        }
        test = "raft::tests::golden_conversations_hold";
    }
    let output = Command::new(std::env::current_exe().expect("this process has a file"))
        .args(["--exact", test, "--test-threads", "1"])
        .env("LEASEHOLD_BUGS", bugs)
        .env("GOLDEN", witness)
        .output()
        .expect("this binary can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let exists = said.contains("running 1 test");
    exists.then_some(output.status.success())
}

/// A bug without a place would be on and do nothing; and one with a place in a copy of the product would
/// prove the copy.
#[test]
fn every_bug_has_its_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                code.push_str(&std::fs::read_to_string(path).expect("readable"));
            }
        }
    }
    let missing: Vec<_> = Bug::ALL
        .iter()
        .filter(|bug| {
            let asked = [format!("planted!({bug})"), format!("planted!({bug} =>")];
            !asked.iter().any(|asked| code.contains(asked))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_bug_is_on_in_its_thread_until_it_is_dropped() {
    assert!(!is_on(Bug::AckTime));
    {
        let _planted = plant(&[Bug::AckTime, Bug::NoSpare]);
        assert!(is_on(Bug::AckTime));
        assert!(is_on(Bug::NoSpare));
        assert!(!is_on(Bug::NoFloor));
        assert!(was_reached(Bug::NoFloor));
        assert!(!was_reached(Bug::NoBurn));
        let elsewhere = std::thread::spawn(|| is_on(Bug::AckTime));
        assert!(!elsewhere.join().expect("it does not panic"));
    }
    assert!(!is_on(Bug::AckTime));
}

#[test]
fn names_lead_to_their_bugs() {
    for bug in Bug::ALL {
        assert_eq!(Bug::named(&bug.to_string()), Some(*bug));
    }
    assert_eq!(Bug::named("Nonsense"), None);
}
