//! The prover proven: every deliberate bug of `leasehold::planted` is to be found.

use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Mutex;

use leasehold::planted;
use leasehold::planted::Bug;

use crate::options::Options;
use crate::run::run;

/// Which rule breaks under `bugs` in the run of `options`, if any does.
fn broken(bugs: &[Bug], options: Options) -> Option<String> {
    let _planted = planted::plant(bugs);
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(report) => report.violation.map(|violation| violation.rule.to_owned()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Some(format!("panic: {}", text.unwrap_or_default()))
        }
    }
}

/// What the seeds of `SIM_FIRST_SEED` and on find, of all bugs or of `BUGS=AckTime,NoFloor+…`:
/// `BUGS_SURVEY=1000` says how many.
#[test]
fn survey() {
    let Some(seeds) = crate::number("BUGS_SURVEY") else {
        return;
    };
    std::panic::set_hook(Box::new(|_| {}));
    let cases: Vec<Vec<Bug>> = match std::env::var("BUGS") {
        Err(_) => Bug::ALL.iter().map(|bug| vec![*bug]).collect(),
        Ok(names) => {
            let bug = |name| Bug::named(name).unwrap_or_else(|| panic!("no bug {name}"));
            let cases = names.split(',');
            cases
                .map(|case| case.split('+').map(bug).collect())
                .collect()
        }
    };
    let settings = crate::Settings::read();
    let queue = Mutex::new(cases.into_iter());
    let work = || {
        loop {
            let Some(bugs) = queue.lock().unwrap().next() else {
                return;
            };
            let mut reached = 0;
            let found = (settings.first..settings.first + seeds).find_map(|seed| {
                let options = settings.options(seed);
                let (profile, nodes) = (options.profile.name(), options.nodes);
                let rule = broken(&bugs, options);
                reached += u64::from(bugs.iter().all(|bug| planted::was_reached(*bug)));
                rule.map(|rule| (seed, rule, profile, nodes))
            });
            println!("{bugs:?} {found:?} reached in {reached}");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}
