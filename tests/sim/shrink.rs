//! Makes a failing run small: leaves out what it does not need in order to fail.
//!
//! A run is a function of its options, and its faults are a list; so lines are left out as long as
//! the same rule still breaks, many at a time first, one at a time in the end (delta debugging).
//! Then clients are taken away. What is left is the schedule to write a scenario from.

use crate::dice::Dice;
use crate::nemesis::Planned;
use crate::options::Options;
use crate::run::run;
use crate::schedule;

/// The smallest options found under which the same rule breaks, and their schedule.
pub(crate) fn shrink(options: Options) -> Option<(Options, Vec<Planned>)> {
    let rule = broken_rule(&options)?;
    let fails = |options: &Options| broken_rule(options) == Some(rule);
    let planned = schedule::draw(&options, &mut Dice::new(options.seed, "nemesis", 0));
    let mut options = options;
    let mut size = planned.len().div_ceil(2).max(1);
    loop {
        for start in (0..planned.len()).step_by(size) {
            let mut fewer = options.clone();
            fewer
                .without
                .extend(start..(start + size).min(planned.len()));
            if fewer.without.len() > options.without.len() && fails(&fewer) {
                options = fewer;
            }
        }
        if size == 1 {
            break;
        }
        size = size.div_ceil(2);
    }
    while options.clients > 0 {
        let mut fewer = options.clone();
        fewer.clients -= 1;
        if !fails(&fewer) {
            break;
        }
        options = fewer;
    }
    let left = planned.iter().enumerate();
    let left = left.filter(|(line, _)| !options.without.contains(line));
    let left = left.map(|(_, planned)| *planned).collect();
    Some((options, left))
}

fn broken_rule(options: &Options) -> Option<&'static str> {
    run(options.clone())
        .violation
        .map(|violation| violation.rule)
}
