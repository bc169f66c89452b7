//! Two processes with one identity: a copy of a data directory is in use beside the original.
//!
//! A process draws a number when it starts and says it in each hello. A member that was restarted has
//! another number from then on; only of two that run at the same time does a number come back after another
//! one was heard. And the process whose place at a peer was taken by another sees that its connection was
//! closed for that reason, again and again. One time of either says nothing yet: a hello may be late, and
//! two connections may cross.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sync::RwLock;
use crate::time::Instant;

/// For how long what was seen counts.
const WINDOW: Duration = Duration::from_secs(60);
/// So often must it be seen in that time. A dead process can be heard once more after its successor, which
/// then comes back itself: that is two.
const TIMES_MIN: usize = 3;
/// Processes of one member that are remembered.
const PROCESSES_MAX: usize = 4;

/// What is known, for all threads.
#[derive(Debug, Default)]
pub(crate) struct Doubles {
    known: RwLock<SeenProcesses>,
}

#[derive(Debug, Default)]
struct SeenProcesses {
    members: BTreeMap<String, Processes>,
    /// When another process took this one's place, by the name of the peer.
    displaced: BTreeMap<String, Times>,
}

/// The processes of one member, the one heard last at the end.
#[derive(Debug, Default)]
struct Processes {
    seen: Vec<(u64, String)>,
    returned: Times,
}

/// The last times that something was seen.
#[derive(Debug, Default)]
struct Times([Option<Instant>; TIMES_MIN]);

impl Times {
    fn add(&mut self, now: Instant) {
        self.0.rotate_left(1);
        self.0[TIMES_MIN - 1] = Some(now);
    }

    fn are_recent(&self, now: Instant) -> bool {
        self.0[0].is_some_and(|first| now.at_least_since(first) <= WINDOW)
    }
}

impl Doubles {
    /// The process `boot` of the member `name` has connected from `address`.
    pub(crate) fn connected(&self, now: Instant, name: &str, boot: u64, address: &str) {
        let mut known = self.known.write();
        let processes = known.members.entry(name.to_owned()).or_default();
        if processes.seen.last().is_some_and(|(last, _)| *last == boot) {
            return;
        }
        let before = processes.seen.len();
        processes.seen.retain(|(seen, _)| *seen != boot);
        if processes.seen.len() < before {
            processes.returned.add(now);
        }
        if processes.seen.len() == PROCESSES_MAX {
            processes.seen.remove(0);
        }
        processes.seen.push((boot, address.to_owned()));
    }

    /// The peer `by` has closed a connection of this node because another process took its place.
    pub(crate) fn displaced(&self, now: Instant, by: &str) {
        let mut known = self.known.write();
        known.displaced.entry(by.to_owned()).or_default().add(now);
    }

    /// The warning that another process has the identity of this node, which is `name`.
    pub(crate) fn of_this_node(&self, now: Instant, name: &str) -> Option<String> {
        let known = self.known.read();
        let displaced = known.displaced.iter();
        let at: Vec<&str> = displaced
            .filter(|(_, times)| times.are_recent(now))
            .map(|(by, _)| by.as_str())
            .collect();
        (!at.is_empty()).then(|| {
            format!(
                "another process runs as {name}, too, and takes this one's place at {}: a copy of \
                 the data directory is in use; stop one of the two at once, because both vote",
                at.join(", ")
            )
        })
    }

    /// A warning for each other member as which two processes run.
    pub(crate) fn of_others(&self, now: Instant) -> Vec<String> {
        let known = self.known.read();
        let members = known.members.iter();
        let doubled = members.filter(|(_, processes)| processes.returned.are_recent(now));
        doubled
            .map(|(name, processes)| {
                let newest = processes.seen.iter().rev().take(2);
                let addresses: Vec<&str> = newest.map(|(_, address)| address.as_str()).collect();
                format!(
                    "two processes run as {name}, at {}: a copy of its data directory is in use; \
                     stop one of the two at once, because both vote",
                    addresses.join(" and ")
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn only_processes_that_come_back_after_each_other_are_two() {
        let doubles = Doubles::default();
        let hears = |seconds, boot| {
            doubles.connected(at(seconds), "n3", boot, &format!("10.0.0.{boot}:7401"));
            doubles.of_others(at(seconds))
        };
        for boot in 10..40 {
            assert_eq!(hears(boot, boot), [""; 0], "restarts");
            assert_eq!(hears(boot, boot), [""; 0], "a new connection");
        }
        // One that is dead is heard once more, and its successor connects again.
        for boot in [1, 2, 1, 2, 2] {
            assert_eq!(hears(50, boot), [""; 0]);
        }
        assert_eq!(
            hears(51, 1),
            [
                "two processes run as n3, at 10.0.0.1:7401 and 10.0.0.2:7401: a copy of its data \
                 directory is in use; stop one of the two at once, because both vote"
            ]
        );
        assert_eq!(doubles.of_others(at(110)).len(), 1);
        assert_eq!(
            doubles.of_others(at(111)),
            [""; 0],
            "one of them was stopped"
        );
        assert_eq!(doubles.of_this_node(at(51), "n1"), None);
    }

    #[test]
    fn who_loses_its_place_again_and_again_is_not_alone() {
        let doubles = Doubles::default();
        let said = |seconds| doubles.of_this_node(at(seconds), "n3");
        for seconds in [1, 2] {
            doubles.displaced(at(seconds), "n1");
            doubles.displaced(at(seconds), "n2");
            assert_eq!(said(seconds), None, "connections that crossed");
        }
        doubles.displaced(at(3), "n1");
        assert_eq!(
            said(3).unwrap(),
            "another process runs as n3, too, and takes this one's place at n1: a copy of the data \
             directory is in use; stop one of the two at once, because both vote"
        );
        assert_eq!(said(62), None);
        assert_eq!(doubles.of_others(at(3)), [""; 0]);
    }
}
