//! What becomes of a failure: how it is told, replayed, made small, and kept.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::options::Options;
use crate::run::{Report, run};
use crate::script::Script;
use crate::{Settings, number, script, shrink};

/// How many runs making a failure small may take.
const SHRINK_RUNS_MAX: usize = 3_000;

/// The run that the environment names: by `SIM_SCRIPT`, a file, or by `SIM_SEED`.
fn named() -> Option<Options> {
    if let Ok(path) = std::env::var("SIM_SCRIPT") {
        return Some(load(Path::new(&path)).options);
    }
    Some(Settings::read().options(number("SIM_SEED")?))
}

fn load(path: &Path) -> Script {
    let text = std::fs::read_to_string(path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    script::read(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs one seed, or one script, and tells everything.
#[test]
fn replay() {
    let Some(mut options) = named() else {
        return;
    };
    println!("{}", script::write(&options));
    options.aloud = true;
    let report = run(options.clone());
    println!("{:?}", report.counts);
    if let Some(failure) = failure(&options, &report) {
        panic!("{failure}");
    }
}

/// Leaves out of a failing run what it does not need to fail, and tells the rest; writes it to
/// `SIM_OUT`, if that is given.
#[test]
fn shrunk() {
    let Some(options) = named() else {
        return;
    };
    let Some(mut small) = shrink::shrink(options, SHRINK_RUNS_MAX) else {
        println!("it ends well");
        return;
    };
    small.options.aloud = true;
    let report = run(small.options.clone());
    let what = report.violation.as_ref().map(|violation| &violation.what);
    let mut text = format!("# {}\n", small.rule);
    if let Some(what) = what {
        let _ = writeln!(text, "# {}", what.replace('\n', " "));
    }
    for bug in std::env::var("LEASEHOLD_BUGS")
        .iter()
        .flat_map(|bugs| bugs.split(','))
    {
        let _ = writeln!(text, "bug {bug}");
    }
    let _ = writeln!(text, "breaks {}", small.rule);
    text += &script::write(&small.options);
    println!(
        "{} faults of {} are left after {} runs:\n\n{text}",
        small.options.schedule.as_ref().map_or(0, Vec::len),
        small.faults_before,
        small.runs
    );
    if let Some(path) = std::env::var_os("SIM_OUT") {
        std::fs::write(&path, text).expect("SIM_OUT can be written");
        println!("written to {}", Path::new(&path).display());
    }
}

/// Every failure that was kept ends well; and where it was kept for a deliberate bug, it does not
/// with that.
#[test]
fn what_failed_once_ends_well() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/regressions");
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("it reads").path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for path in files {
        let script = load(&path);
        let report = run(script.options.clone());
        if let Some(violation) = report.violation {
            let name = path.file_name().expect("named").to_string_lossy();
            let replay = command(
                &format!("SIM_SCRIPT=tests/sim/regressions/{name}"),
                "replay",
            );
            panic!("{name}: {}: {}\n{replay}", violation.rule, violation.what);
        }
        #[cfg(leasehold_bugs)]
        finds_its_bugs(&path, &script);
    }
}

#[cfg(leasehold_bugs)]
fn finds_its_bugs(path: &Path, script: &Script) {
    use leasehold::planted;
    let name = |name: &String| planted::Bug::named(name).expect("a bug's name");
    let bugs: Vec<_> = script.bugs.iter().map(name).collect();
    if bugs.is_empty() {
        return;
    }
    let _planted = planted::plant(&bugs);
    let report = run(script.options.clone());
    let rule = report.violation.map(|violation| violation.rule.to_owned());
    assert_eq!(rule, script.breaks, "{} with {bugs:?}", path.display());
}

/// What to say of a run that failed: the rule, the command that replays it, the one that makes it
/// small, and where its trace is.
pub(crate) fn failure(options: &Options, report: &Report) -> Option<String> {
    let violation = report.violation.as_ref()?;
    let mut text = String::new();
    let seed = options.seed;
    let _ = write!(
        text,
        "FAILED {} seed={seed:#x} profile={} nodes={} event={} at {:?}\n{}\n{}",
        violation.rule,
        options.profile.name(),
        options.nodes,
        report.trace.events(),
        Duration::from_nanos(report.simulated),
        violation.what,
        what_next(options),
    );
    Some(text)
}

/// The commands for a run that failed; its trace is written on the way.
pub(crate) fn what_next(options: &Options) -> String {
    let seed = format!("SIM_SEED={:#x}", options.seed);
    let out = format!("tests/sim/regressions/{:#x}.sched", options.seed);
    let replay = command(&seed, "replay");
    let shrink = command(&format!("{seed} SIM_OUT={out}"), "shrunk");
    let mut text = format!("replay: {replay}\nshrink: {shrink}");
    if !options.aloud
        && let Some(path) = write_trace(options)
    {
        let _ = write!(text, "\ntrace : {}", path.display());
    }
    text
}

/// A command that does the same as this process, told with `environment`.
fn command(environment: &str, test: &str) -> String {
    let mut text = String::new();
    for name in ["RUSTFLAGS", "LEASEHOLD_BUGS", "SIM_PROFILE", "SIM_SECONDS"] {
        if let Ok(value) = std::env::var(name)
            && !(cfg!(leasehold_bugs) && name == "RUSTFLAGS")
        {
            let _ = write!(text, "{name}='{value}' ");
        }
    }
    if cfg!(leasehold_bugs) {
        text += "RUSTFLAGS='--cfg leasehold_bugs' CARGO_TARGET_DIR=target/bugs ";
    }
    let release = if cfg!(debug_assertions) {
        ""
    } else {
        "--release "
    };
    let _ = write!(
        text,
        "{environment} cargo test {release}--no-default-features --test sim {test} -- --nocapture"
    );
    text
}

/// Runs it once more and writes down what happens.
fn write_trace(options: &Options) -> Option<PathBuf> {
    let mut options = options.clone();
    options.readable = true;
    let name = format!("sim-{:#x}.log", options.seed);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let run = std::panic::AssertUnwindSafe(|| run(options));
    let report = std::panic::catch_unwind(run).ok()?;
    std::fs::write(&path, report.trace.lines().join("\n")).ok()?;
    Some(path)
}

/// Every pitfall of the lease protocol has its row in the README, and what the row names exists.
#[test]
fn what_the_readme_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = include_str!("README.md");
    let table = readme.split("## Pitfalls").nth(1).expect("it is there");
    let table = table.split("\n## ").next().expect("there is a first");
    let mut tests = String::new();
    let mut folders = vec![root.join("tests/sim"), root.join("src")];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder).expect("the folder is there") {
            let path = file.expect("it reads").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                tests += &std::fs::read_to_string(path).expect("it reads");
            }
        }
    }
    for pitfall in 1..=38 {
        let begins = format!("| P{pitfall} ");
        let row = table.lines().find(|line| line.starts_with(&begins));
        let row = row.unwrap_or_else(|| panic!("P{pitfall} has no row"));
        let names: Vec<_> = row.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || row.contains("not yet"), "{row}");
        for name in names {
            let conversation = root.join(format!("src/raft/testdata/{name}.txt"));
            let found = conversation.exists() || tests.contains(&format!("fn {name}()"));
            assert!(found, "there is no {name}");
        }
    }
}
