//! K1 linearizability by search, without looking at revisions: for each operation of one key a
//! point between its begin and its end is sought, such that every read shows the last write
//! (Wing and Gong, with Lowe's memory of configurations tried in vain).
//!
//! It is slow where many clients overlap, so it judges a sample, and gives up undecided after a
//! bounded number of steps; `linear.rs` judges everything.

#![expect(
    clippy::disallowed_types,
    reason = "the set of tried configurations is asked, never iterated"
)]

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_128;

use super::Violation;
use crate::clock::Nanos;
use crate::history::{Action, Fate, History, Key, Value};

/// Steps after which a history stays undecided.
const STEPS_MAX: u64 = 200_000;
/// Longer histories are cut at a moment when nothing is under way, or not looked at.
const OPERATIONS_MAX: usize = 600;

/// One operation of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    begin: Nanos,
    end: Nanos,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The register has this value afterwards.
    Write(Option<Value>),
    /// The register had this value.
    Read(Option<Value>),
}

/// What a history says about one key; operations of unknown fate may end any time, or never.
pub(crate) fn of_key(history: &History, key: Key, frozen: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for (place, operation) in history.operations.iter().enumerate() {
        let what = match (operation.action, &operation.fate) {
            (_, Fate::NotApplied) => continue,
            (Action::Swap(swapped, _), Fate::Unequal { found, .. }) if swapped == key => {
                What::Read(found.map(|found| found.value))
            }
            (action, _) if action.puts(key) => What::Write(Some(place as u64 + 1)),
            (Action::Delete(written), _) if written == key => What::Write(None),
            (Action::Get(read, _), Fate::Read { found, leased, .. })
                if read == key && operation.is_linearizable() && !(frozen && *leased) =>
            {
                What::Read(found.first().map(|found| found.value))
            }
            (Action::GetBoth(one, other, _), Fate::Read { .. }) if one != key && other != key => {
                continue;
            }
            (Action::List(_) | Action::GetBoth(..), Fate::Read { found, leased, .. })
                if operation.is_linearizable() && !(frozen && *leased) =>
            {
                let found = found.iter().find(|found| found.key == key);
                What::Read(found.map(|found| found.value))
            }
            _ => continue,
        };
        steps.push(Step {
            begin: operation.invoked,
            end: operation.returned.unwrap_or(Nanos::MAX),
            what,
        });
    }
    steps.truncate(OPERATIONS_MAX);
    // Whoever began before the cut and ended after it may have seen what is cut away.
    if steps.len() == OPERATIONS_MAX {
        let cut = steps.last().map_or(0, |step| step.begin);
        steps.retain(|step| step.end < cut || matches!(step.what, What::Write(_)));
    }
    steps
}

/// Whether some order explains the steps; false if that stays undecided.
pub(crate) fn linearizable(steps: &[Step]) -> Result<bool, Violation> {
    let mut search = Search {
        steps,
        done: vec![false; steps.len()],
        mark: 0,
        tried: HashSet::default(),
        left: STEPS_MAX,
    };
    let must = steps.iter().filter(|step| step.end != Nanos::MAX).count();
    match search.from(0, None, must) {
        Some(false) => Err(Violation {
            rule: "K1 linearizable by search",
            what: format!("{} steps", steps.len()),
        }),
        decided => Ok(decided.is_some()),
    }
}

struct Search<'a> {
    /// In order of their begin.
    steps: &'a [Step],
    done: Vec<bool>,
    /// Stands for what is done: the sum of a random number for each.
    mark: u128,
    /// What was tried: 128 bits for what was done and what the register held, so that no two
    /// configurations of any run are ever taken for one.
    tried: HashSet<u128, BuildHasherDefault<AsItIs>>,
    left: u64,
}

impl Search<'_> {
    /// Whether the rest, all of it from `first` on, can follow on `value`; `must` of it has to.
    /// `None` if undecided.
    fn from(&mut self, first: usize, value: Option<Value>, must: usize) -> Option<bool> {
        if must == 0 {
            return Some(true);
        }
        self.left = self.left.checked_sub(1)?;
        let holds = value.map_or(0, |value| random(u64::MAX - value));
        if !self.tried.insert(self.mark.wrapping_add(holds)) {
            return Some(false);
        }
        let first = first + self.done[first..].iter().take_while(|done| **done).count();
        // Only what begins before the first end of all that is open can come next.
        let mut bound = Nanos::MAX;
        for place in first..self.steps.len() {
            if self.steps[place].begin > bound {
                break;
            }
            if !self.done[place] {
                bound = bound.min(self.steps[place].end);
            }
        }
        for place in first..self.steps.len() {
            let step = self.steps[place];
            if step.begin > bound {
                break;
            }
            if self.done[place] {
                continue;
            }
            let after = match step.what {
                What::Write(written) => written,
                What::Read(read) if read == value => value,
                What::Read(_) => continue,
            };
            let before = self.mark;
            self.done[place] = true;
            self.mark = before.wrapping_add(random(place as u64));
            let rest = must - usize::from(step.end != Nanos::MAX);
            if self.from(first, after, rest)? {
                return Some(true);
            }
            self.done[place] = false;
            self.mark = before;
        }
        Some(false)
    }
}

/// A number drawn for `which`, always the same.
fn random(which: u64) -> u128 {
    xxh3_128(&which.to_le_bytes())
}

/// Takes what is random already for its own hash.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        let (first, _) = bytes.split_at(8);
        self.0 = u64::from_le_bytes(first.try_into().expect("eight bytes"));
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(begin: Nanos, end: Nanos, value: Value) -> Step {
        let what = What::Write(Some(value));
        Step { begin, end, what }
    }

    fn read(begin: Nanos, end: Nanos, value: Option<Value>) -> Step {
        let what = What::Read(value);
        Step { begin, end, what }
    }

    fn passes(mut steps: Vec<Step>) -> bool {
        steps.sort_by_key(|step| step.begin);
        linearizable(&steps).is_ok()
    }

    #[test]
    fn good_histories_pass() {
        assert!(passes(vec![]));
        assert!(passes(vec![write(0, 1, 1), read(2, 3, Some(1))]));
        let overlapping = vec![write(0, 10, 1), read(1, 2, None), read(3, 4, Some(1))];
        assert!(passes(overlapping));
        let either = vec![write(0, 10, 1), write(0, 10, 2), read(11, 12, Some(1))];
        assert!(passes(either));
        let late = vec![
            write(0, Nanos::MAX, 1),
            read(5, 6, None),
            read(7, 8, Some(1)),
        ];
        assert!(passes(late));
        assert!(passes(vec![write(0, Nanos::MAX, 1), read(5, 6, None)]));
    }

    #[test]
    fn bad_histories_do_not() {
        assert!(!passes(vec![write(0, 1, 1), read(2, 3, None)]));
        let back = vec![write(0, 10, 1), read(1, 2, Some(1)), read(3, 4, None)];
        assert!(!passes(back));
        let lost = vec![write(0, 1, 1), write(2, 3, 2), read(4, 5, Some(1))];
        assert!(!passes(lost));
        assert!(!passes(vec![read(0, 1, Some(7))]));
        let both = vec![
            write(0, 10, 1),
            write(0, 10, 2),
            read(11, 12, Some(1)),
            read(13, 14, Some(2)),
        ];
        assert!(!passes(both));
    }

    #[test]
    fn thousands_of_operations_of_a_few_clients_are_decided() {
        let mut steps = Vec::new();
        for round in 0..150 {
            let at = round * 10;
            steps.push(write(at, at + 8, round + 1));
            steps.push(read(at + 1, at + 9, Some(round + 1)));
            steps.push(read(at + 2, at + 3, (round > 0).then_some(round)));
        }
        assert!(passes(steps.clone()));
        steps.push(read(1_600, 1_601, Some(149)));
        assert!(!passes(steps));
    }
}
