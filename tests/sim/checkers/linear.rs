//! K1 linearizability by revision, C7 no resurrection, K3 one write per revision.
//!
//! Every answer carries the store's revision, so the order of operations is told, and what is left
//! is to check that it is a possible one: that it respects real time, that no two writes share a
//! place in it, and that every read shows what was last written before its own place. It sees the
//! clients' history alone, and takes n log n steps.

use std::collections::BTreeMap;

use leasehold::api::Consistency;

use super::{Violation, violation};
use crate::clock::nanos;
use crate::history::{Action, Fate, History, Key, Operation, Value};

/// What is known of a key: what each revision gave it.
type Versions = BTreeMap<(Key, i64), Option<Value>>;

/// Checks a whole history; with `frozen`, as if leased reads had never been made.
pub(crate) fn by_revision(history: &History, frozen: bool) -> Result<(), Violation> {
    let counts = |operation: &&Operation| {
        let leased = matches!(operation.fate, Fate::Read { leased: true, .. });
        operation.revision().is_some() && !(frozen && leased)
    };
    let answered: Vec<&Operation> = history.operations.iter().filter(counts).collect();
    real_time(&answered)?;
    monotone(&answered)?;
    if !frozen {
        bounded(&answered)?;
    }
    let versions = versions(history, &answered)?;
    let mut all: Vec<Key> = versions.keys().map(|(key, _)| *key).collect();
    all.dedup();
    for operation in &answered {
        if let Fate::Read { revision, .. } | Fate::Unequal { revision, .. } = operation.fate {
            let at = operation.action.at().unwrap_or(revision);
            shows_the_last(history, &versions, &all, operation, at)?;
        }
    }
    Ok(())
}

/// An operation that began after another had ended has a later place, a write strictly so.
fn real_time(answered: &[&Operation]) -> Result<(), Violation> {
    let linearizable = || answered.iter().filter(|o| o.is_linearizable());
    let mut ended: Vec<(u64, i64)> = linearizable()
        .filter_map(|o| Some((o.returned?, o.revision()?)))
        .collect();
    ended.sort_unstable();
    let mut begun: Vec<&&Operation> = linearizable().collect();
    begun.sort_by_key(|o| o.invoked);
    let mut ended = ended.into_iter().peekable();
    let mut floor = 0;
    for operation in begun {
        while let Some((_, revision)) = ended.next_if(|(at, _)| *at < operation.invoked) {
            floor = floor.max(revision);
        }
        let revision = operation.revision().expect("it was answered");
        let in_order = match operation.fate {
            Fate::Written { .. } => revision > floor,
            Fate::Deleted { keys, .. } if keys > 0 => revision > floor,
            _ => revision >= floor,
        };
        if !in_order {
            let what = format!("{operation:?} began after revision {floor} was answered");
            return violation("K1 linearizable", what);
        }
    }
    Ok(())
}

/// C9: a read that says what its client has seen shows no less.
fn monotone(answered: &[&Operation]) -> Result<(), Violation> {
    for operation in answered {
        let read = matches!(operation.fate, Fate::Read { .. });
        if read && operation.revision() < Some(operation.min_revision) {
            let what = format!("{operation:?}");
            return violation("C9 nobody is shown less than he has seen", what);
        }
    }
    Ok(())
}

/// L8, as clients see it: a read of bounded staleness shows everything that any of them had been
/// told longer than that before it began.
fn bounded(answered: &[&Operation]) -> Result<(), Violation> {
    let mut ended: Vec<(u64, i64)> = answered
        .iter()
        .filter_map(|o| Some((o.returned?, o.revision()?)))
        .collect();
    ended.sort_unstable();
    for place in 1..ended.len() {
        ended[place].1 = ended[place].1.max(ended[place - 1].1);
    }
    for operation in answered {
        let Some(Consistency::MaxStaleness(most)) = operation.action.consistency() else {
            continue;
        };
        let since = operation.invoked.saturating_sub(nanos(most));
        let told = ended.partition_point(|(at, _)| *at < since);
        let told = told.checked_sub(1).map_or(0, |last| ended[last].1);
        if operation.revision() < Some(told) {
            let what = format!("{operation:?} shows less than {told}");
            return violation("L8 no state is older than it is said to be", what);
        }
    }
    Ok(())
}

/// What writes say they wrote, and reads say was written.
fn versions(history: &History, answered: &[&Operation]) -> Result<Versions, Violation> {
    let mut versions = Versions::new();
    let mut writers: BTreeMap<i64, Option<Value>> = BTreeMap::new();
    let mut note = |key, revision, value: Option<Value>| {
        let one = *writers.entry(revision).or_insert(value) == value;
        if *versions.entry((key, revision)).or_insert(value) == value && one {
            return Ok(());
        }
        let what = format!("k{key} has two values at revision {revision}, one is {value:?}");
        violation("K3 one write per revision", what)
    };
    for (place, operation) in history.operations.iter().enumerate() {
        match (operation.action, &operation.fate) {
            (Action::Put(key) | Action::Swap(key, _), Fate::Written { revision }) => {
                note(key, *revision, Some(place as u64 + 1))?;
            }
            (Action::PutBoth(one, other), Fate::Written { revision }) => {
                note(one, *revision, Some(place as u64 + 1))?;
                note(other, *revision, Some(place as u64 + 1))?;
            }
            (Action::Delete(key), Fate::Deleted { revision, keys }) if *keys > 0 => {
                note(key, *revision, None)?;
            }
            _ => {}
        }
    }
    for operation in answered {
        for found in operation.found() {
            note(found.key, found.mod_revision, Some(found.value))?;
            let writer = history.operations.get(found.value as usize - 1);
            let possible = writer.is_some_and(|writer| {
                writer.action.puts(found.key)
                    && Some(writer.invoked) <= operation.returned
                    && writer.fate != Fate::NotApplied
            });
            if !possible {
                let what = format!("{operation:?} shows what nobody had written: {writer:?}");
                return Err(Violation {
                    rule: "K1 reads show writes",
                    what,
                });
            }
        }
    }
    Ok(versions)
}

/// The read at `revision` shows the last version at or before it; of `all` keys, if it asks for those.
fn shows_the_last(
    history: &History,
    versions: &Versions,
    all: &[Key],
    operation: &Operation,
    revision: i64,
) -> Result<(), Violation> {
    let found = operation.found();
    let shows = operation.action.shows();
    let keys = match (operation.action, &shows) {
        (Action::Swap(key, _), _) => &[key][..],
        (_, Some(keys)) => keys,
        (_, None) => all,
    };
    for &key in keys {
        let shown = found.iter().find(|found| found.key == key);
        let last = versions.range((key, 0)..=(key, revision)).next_back();
        let last = last.map(|((_, written), value)| (*written, *value));
        match (shown, last) {
            (Some(shown), Some((written, None))) if shown.mod_revision < written => {
                let what = format!("{operation:?} shows k{key}, deleted at {written}");
                return violation("C7 no resurrection", what);
            }
            (Some(shown), Some((written, _))) if shown.mod_revision != written => {
                let what = format!("{operation:?} misses k{key} written at {written}");
                return violation("K1 linearizable", what);
            }
            (None, Some((written, Some(_)))) if !may_be_deleted(history, operation, key) => {
                let what = format!("{operation:?} misses k{key} written at {written}");
                return violation("K1 linearizable", what);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a delete whose outcome nobody knows may have taken the key away before `read` ended.
fn may_be_deleted(history: &History, read: &Operation, key: Key) -> bool {
    history.operations.iter().any(|operation| {
        operation.action == Action::Delete(key)
            && operation.fate == Fate::Unknown
            && Some(operation.invoked) <= read.returned
    })
}

#[cfg(test)]
mod tests {
    use leasehold::api::ReadPath;

    use super::*;
    use crate::history::Found;

    /// A history of (action, invoked, returned, fate).
    fn history(operations: &[(Action, u64, u64, Fate)]) -> History {
        let operations = operations
            .iter()
            .map(|(action, invoked, returned, fate)| Operation {
                action: *action,
                min_revision: 0,
                invoked: *invoked,
                returned: (*fate != Fate::Unknown).then_some(*returned),
                fate: fate.clone(),
            });
        History {
            operations: operations.collect(),
        }
    }

    fn put(invoked: u64, returned: u64, revision: i64) -> (Action, u64, u64, Fate) {
        (
            Action::Put(1),
            invoked,
            returned,
            Fate::Written { revision },
        )
    }

    fn delete(invoked: u64, returned: u64, revision: i64) -> (Action, u64, u64, Fate) {
        let fate = Fate::Deleted { revision, keys: 1 };
        (Action::Delete(1), invoked, returned, fate)
    }

    fn get(
        invoked: u64,
        returned: u64,
        revision: i64,
        shows: Option<(u64, i64)>,
    ) -> (Action, u64, u64, Fate) {
        let found = shows.map(|(value, mod_revision)| Found {
            key: 1,
            value,
            mod_revision,
        });
        let fate = Fate::Read {
            revision,
            path: ReadPath::Lease,
            leased: true,
            found: found.into_iter().collect(),
        };
        let action = Action::Get(1, Consistency::Linearizable);
        (action, invoked, returned, fate)
    }

    fn rule(operations: &[(Action, u64, u64, Fate)]) -> Option<&'static str> {
        let holds = by_revision(&history(operations), false);
        holds.err().map(|violation| violation.rule)
    }

    #[test]
    fn good_histories_pass() {
        assert_eq!(rule(&[put(0, 10, 2), get(11, 12, 2, Some((1, 2)))]), None);
        let overlapping = [put(0, 10, 2), put(5, 20, 3), get(6, 7, 2, Some((1, 2)))];
        assert_eq!(rule(&overlapping), None);
        let deleted = [put(0, 1, 2), delete(2, 3, 3), get(4, 5, 3, None)];
        assert_eq!(rule(&deleted), None);
        let unknown = [
            (Action::Put(1), 0, 0, Fate::Unknown),
            get(4, 5, 2, Some((1, 2))),
            get(6, 7, 2, Some((1, 2))),
        ];
        assert_eq!(rule(&unknown), None);
    }

    #[test]
    fn a_state_older_than_it_may_be_and_one_older_than_was_seen_are_found() {
        let most = std::time::Duration::from_nanos(10);
        let (_, _, _, fate) = get(0, 0, 2, Some((1, 2)));
        let at = |invoked| {
            let action = Action::Get(1, Consistency::MaxStaleness(most));
            (action, invoked, invoked + 1, fate.clone())
        };
        let writes = [put(0, 1, 2), put(2, 20, 3)];
        let with = |read| [writes.as_slice(), &[read]].concat();
        assert_eq!(rule(&with(at(30))), None, "told exactly so long ago");
        let old = "L8 no state is older than it is said to be";
        assert_eq!(rule(&with(at(31))), Some(old));
        let mut seen = history(&with(at(30)));
        seen.operations[2].min_revision = 3;
        let broken = by_revision(&seen, false).map_err(|violation| violation.rule);
        assert_eq!(broken, Err("C9 nobody is shown less than he has seen"));
    }

    #[test]
    fn a_stale_read_is_found() {
        let stale = [put(0, 1, 2), put(2, 3, 3), get(4, 5, 2, Some((1, 2)))];
        assert_eq!(rule(&stale), Some("K1 linearizable"));
        assert_eq!(
            rule(&[put(0, 1, 2), get(4, 5, 1, None)]),
            Some("K1 linearizable")
        );
    }

    #[test]
    fn a_read_that_goes_back_behind_another_read_is_found() {
        let back = [
            put(0, 1, 2),
            put(2, 30, 3),
            get(4, 5, 3, Some((2, 3))),
            get(6, 7, 2, Some((1, 2))),
        ];
        assert_eq!(rule(&back), Some("K1 linearizable"));
    }

    #[test]
    fn a_read_at_a_new_revision_with_an_old_value_is_found() {
        let torn = [put(0, 1, 2), put(2, 3, 3), get(4, 5, 3, Some((1, 2)))];
        assert_eq!(rule(&torn), Some("K1 linearizable"));
        assert_eq!(
            rule(&[put(0, 1, 2), get(4, 5, 2, None)]),
            Some("K1 linearizable")
        );
    }

    #[test]
    fn a_deleted_key_that_comes_back_is_found() {
        let back = [put(0, 1, 2), delete(2, 3, 3), get(4, 5, 3, Some((1, 2)))];
        assert_eq!(rule(&back), Some("C7 no resurrection"));
    }

    #[test]
    fn two_writes_at_one_revision_and_values_from_nowhere_are_found() {
        assert_eq!(
            rule(&[put(0, 10, 2), put(1, 11, 2)]),
            Some("K3 one write per revision")
        );
        assert_eq!(
            rule(&[put(5, 10, 3), get(1, 2, 2, Some((1, 2)))]),
            Some("K1 reads show writes")
        );
        let refused = [
            (Action::Put(1), 0, 1, Fate::NotApplied),
            get(2, 3, 2, Some((1, 2))),
        ];
        assert_eq!(rule(&refused), Some("K1 reads show writes"));
    }
}
