//! Bugs that a test of the library notices by itself do fail it. Each is run in a process of its
//! own, with the bug in its environment; and once without, because a test that always fails
//! notices nothing.

use std::path::{Path, PathBuf};
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

/// Every line of code below `folder` that is the product's, or, below `tests`, the provers'.
fn lines_below(folder: &str) -> Vec<(PathBuf, String)> {
    let mut lines = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
            let path = entry.expect("readable").path();
            let name = path.file_name().and_then(|name| name.to_str());
            let is_product = !matches!(name, Some("planted" | "tests" | "tests.rs"));
            if path.is_dir() && is_product {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") && is_product {
                let text = std::fs::read_to_string(&path).expect("readable");
                let code = text.lines().map(|line| line.split("//").next());
                lines.extend(code.flatten().map(|line| (path.clone(), line.to_owned())));
            }
        }
    }
    lines
}

/// A bug without a place would be on and do nothing.
#[test]
fn every_bug_has_its_place_in_the_product() {
    let code = lines_below("src").into_iter().map(|(_, line)| line);
    let code: String = code.collect();
    let missing: Vec<_> = Bug::ALL
        .iter()
        .filter(|bug| {
            let asked = [format!("planted!({bug})"), format!("planted!({bug} =>")];
            !asked.iter().any(|asked| code.contains(asked))
        })
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// A bug with a place in what is meant to find it would prove a copy. (What the models under loom weaken
/// themselves are stand-ins for the system's threads and memory, and no bugs of this list.)
#[test]
fn no_bug_has_a_place_outside_of_the_product() {
    for folder in ["tests", "benches", "fuzz/src", "fuzz/fuzz_targets"] {
        for (path, line) in lines_below(folder) {
            let asks = |bug: &&Bug| {
                let asked = [format!("planted!({bug}"), format!("is_on(\"{bug}\")")];
                asked.iter().any(|asked| line.contains(asked))
                    || line.contains(&format!("is_on(Bug::{bug})"))
            };
            let copied = Bug::ALL.iter().find(asks);
            assert!(copied.is_none(), "{}: {line}", path.display());
        }
    }
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
