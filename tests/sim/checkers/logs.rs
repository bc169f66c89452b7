//! R2 log matching, R3 leader completeness, R4 state-machine safety, R5 the committed prefix
//! stays, R7 committed is durable on a quorum, R8 applied lies within committed, R10 quorums of
//! successive configurations meet.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold::raft::{Configuration, Entry, Payload, Status, UnsavedState};
use leasehold::types::{LogId, LogIndex, Term};
use xxhash_rust::xxh3::xxh3_64;

use super::{Committed, Violation, id, majority, slot, violation};
use crate::disk::SimDisk;
use crate::machine::Machine;
use crate::marks::{Mark, Marks};
use crate::options::Options;
use crate::world::{founding, place};

/// What an entry is to the checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) term: Term,
    hash: u64,
}

/// Every node's log as its outputs tell it, and what was committed.
pub(crate) struct Logs {
    pub(crate) marks: Marks,
    mirrors: Vec<Vec<Seen>>,
    /// The configurations in them, by place.
    configurations: Vec<Vec<(usize, Configuration)>>,
    /// What the cluster began with.
    founding: Configuration,
    /// Who begins with nothing: they know of no configuration before they hear of one.
    strangers: Vec<bool>,
    /// Every entry ever seen.
    entries: BTreeMap<LogId, Known>,
    committed: Vec<Committed>,
    /// The last configuration among them.
    in_force: Configuration,
}

/// An entry as it was first seen.
struct Known {
    /// The term of the one before it.
    before: Term,
    hash: u64,
    command: Option<Bytes>,
    configuration: Option<Configuration>,
}

impl Logs {
    pub(crate) fn new(options: &Options) -> Self {
        let nodes = options.nodes;
        Self {
            marks: Marks::default(),
            mirrors: vec![Vec::new(); nodes],
            configurations: vec![Vec::new(); nodes],
            founding: founding(options),
            strangers: (0..nodes).map(|node| node >= options.founders).collect(),
            entries: BTreeMap::new(),
            committed: Vec::new(),
            in_force: founding(options),
        }
    }

    /// One node's log, durable or not.
    pub(crate) fn of(&self, node: usize) -> &[Seen] {
        &self.mirrors[node]
    }

    /// The configuration in force on `node`.
    pub(crate) fn configuration(&self, node: usize) -> &Configuration {
        self.configuration_through(node, usize::MAX)
    }

    /// The configuration that was in force on `node` when its log was so long.
    fn configuration_through(&self, node: usize, length: usize) -> &Configuration {
        let all = self.configurations[node].iter().rev();
        let mut known = all.filter(|(place, _)| *place < length);
        known.next().map_or(&self.founding, |(_, latest)| latest)
    }

    /// The sets of voters that `node` counts, each of which must have a majority.
    pub(crate) fn voters_known_to(&self, node: usize) -> Vec<Vec<usize>> {
        if self.strangers[node] && self.configurations[node].is_empty() {
            return Vec::new();
        }
        halves(self.configuration(node))
    }

    /// What was committed, in order.
    pub(crate) fn committed(&self) -> &[Committed] {
        &self.committed
    }

    /// A process has what its disk has.
    pub(crate) fn started(&mut self, node: usize, disk: &SimDisk) {
        self.mirrors[node] = disk.entries().iter().map(seen).collect();
        let configurations = disk.entries().iter().enumerate();
        let configurations = configurations.filter_map(|(place, entry)| {
            configuration_in(entry).map(|configuration| (place, configuration))
        });
        self.configurations[node] = configurations.collect();
    }

    /// What all members begin with was committed in the cluster that they were restored from.
    pub(crate) fn restored(&mut self, entries: &[Entry]) {
        let mut before = Term(0);
        for entry in entries {
            let known = known(entry, before);
            self.committed.push(Committed {
                id: entry.id,
                hash: known.hash,
                by: entry.id.term,
                command: known.command.clone(),
                state: None,
            });
            self.entries.insert(entry.id, known);
            before = entry.id.term;
        }
    }

    /// R2 and R5.
    pub(crate) fn persist(
        &mut self,
        node: usize,
        before: &Status,
        unsaved: &UnsavedState,
    ) -> Result<(), Violation> {
        if let Some(base) = &unsaved.base {
            self.begins_after(node, base.id)?;
        }
        let Some(first) = unsaved.entries.first() else {
            return Ok(());
        };
        if first.id.index <= before.commit {
            let what = format!(
                "{} rewrites {} with commit {}",
                id(node),
                first.id,
                before.commit
            );
            return violation("R5 committed prefix stays", what);
        }
        let mirror = &mut self.mirrors[node];
        let place = slot(first.id.index).unwrap_or(usize::MAX);
        if place > mirror.len() {
            let what = format!("{} leaves a gap before {}", id(node), first.id);
            return violation("R2 log matching", what);
        }
        if place < mirror.len() {
            self.marks.hit(Mark::ConflictCutJudged);
        }
        mirror.truncate(place);
        self.configurations[node].retain(|(at, _)| *at < place);
        for entry in &unsaved.entries {
            let before = mirror.last().map_or(Term(0), |last| last.term);
            let now = seen(entry);
            if let Some(configuration) = configuration_in(entry) {
                self.configurations[node].push((mirror.len(), configuration));
            }
            mirror.push(now);
            let first = self.entries.entry(entry.id);
            let first = first.or_insert_with(|| known(entry, before));
            if (first.before, first.hash) != (before, now.hash) {
                let what = format!("{} has another {} than others", id(node), entry.id);
                return violation("R2 log matching", what);
            }
        }
        Ok(())
    }

    /// R10: a log begins after what was committed, and what is before that is what was committed.
    fn begins_after(&mut self, node: usize, base: LogId) -> Result<(), Violation> {
        let through = usize::try_from(base.index.0).expect("logs fit in memory");
        let committed = slot(base.index).and_then(|place| self.committed.get(place));
        if committed.is_none_or(|committed| committed.id != base) {
            let what = format!("{} begins its log after {base}, not committed", id(node));
            return violation("R10 logs begin after what is committed", what);
        }
        let mirror = &mut self.mirrors[node];
        let held = slot(base.index).and_then(|place| mirror.get(place));
        if held.is_none_or(|held| held.term != base.term) {
            mirror.clear();
            let before = self.committed[..through].iter();
            mirror.extend(before.map(|committed| Seen {
                term: committed.id.term,
                hash: committed.hash,
            }));
            let before = self.committed[..through].iter().enumerate();
            let before = before.filter_map(|(place, committed)| {
                let known = self.entries.get(&committed.id)?;
                Some((place, known.configuration.clone()?))
            });
            self.configurations[node] = before.collect();
        }
        Ok(())
    }

    /// R3: what was committed in an earlier term is in the log of the leader of `term`. A leader
    /// of an older term that is elected late need not have it.
    pub(crate) fn elected(
        &self,
        node: usize,
        term: Term,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let earlier = self.committed.iter().rposition(|entry| entry.by < term);
        let Some(place) = earlier else {
            return Ok(());
        };
        marks.hit(Mark::CompletenessJudged);
        let must = &self.committed[place];
        let has = self.mirrors[node].get(place).map(|seen| seen.term);
        if has != Some(must.id.term) {
            let what = format!(
                "{} leads in {term} without {}, committed in {}",
                id(node),
                must.id,
                must.by
            );
            return violation("R3 leader completeness", what);
        }
        Ok(())
    }

    /// R4 for what a leader commits, R7, and R10; gives how many entries are new. `before` is how it
    /// stood: what it appended since was not in force when it counted.
    pub(crate) fn commits(
        &mut self,
        node: usize,
        before: &Status,
        status: &Status,
        machines: &[Machine],
        marks: &mut Marks,
    ) -> Result<u64, Violation> {
        let known = self.committed.len();
        let through = usize::try_from(status.commit.0).expect("logs fit in memory");
        if through <= known {
            return Ok(0);
        }
        for place in known..through {
            let seen = self.mirrors[node][place];
            let entry_id = LogId::new(LogIndex(place as u64 + 1), seen.term);
            self.committed.push(Committed {
                id: entry_id,
                hash: seen.hash,
                by: status.term,
                command: (self.entries.get(&entry_id)).and_then(|known| known.command.clone()),
                state: None,
            });
            let known = self.entries.get(&entry_id);
            if let Some(next) = known.and_then(|known| known.configuration.as_ref()) {
                follows(&self.in_force, next, marks)?;
                self.in_force = next.clone();
            }
        }
        let last = self.mirrors[node][through - 1].term;
        // A damaged replica may have acknowledged what its disk has lost since. It has no vote,
        // so no quorum of the others can do without one of those who have it.
        let holds = |voter: &&usize| {
            let disk = &machines[**voter].disk;
            disk.term_at(status.commit) == Some(last) || disk.is_damaged()
        };
        let length = usize::try_from(before.last.index.0).expect("logs fit in memory");
        marks.hit(Mark::QuorumOnDiskJudged);
        for half in halves(self.configuration_through(node, length)) {
            let on_disks = half.iter().filter(holds).count();
            if on_disks < majority(half.len()) {
                let what = format!(
                    "{} commits {}@{} which is on {on_disks} disks of {half:?}",
                    id(node),
                    status.commit,
                    last.0
                );
                return Err(Violation {
                    rule: "R7 committed is durable on a quorum",
                    what,
                });
            }
        }
        Ok((through - known) as u64)
    }

    /// R4: what is handed out to be applied is what was committed; R8: and not before.
    pub(crate) fn apply(&self, node: usize, entries: &[Entry]) -> Result<(), Violation> {
        for entry in entries {
            let committed = slot(entry.id.index).and_then(|place| self.committed.get(place));
            let Some(committed) = committed else {
                let what = format!("{} applies {}, which nobody committed", id(node), entry.id);
                return violation("R8 applied within committed", what);
            };
            if committed.id != entry.id || committed.hash != seen(entry).hash {
                let what = format!("{} applies {}, others {}", id(node), entry.id, committed.id);
                return violation("R4 state-machine safety", what);
            }
        }
        Ok(())
    }

    /// R4: equal entries make equal states.
    pub(crate) fn applied(
        &mut self,
        node: usize,
        entry: LogId,
        state: u128,
    ) -> Result<(), Violation> {
        let committed = slot(entry.index).and_then(|place| self.committed.get_mut(place));
        let Some(committed) = committed else {
            let what = format!("{} applied {entry}, which nobody committed", id(node));
            return violation("R8 applied within committed", what);
        };
        let first = *committed.state.get_or_insert(state);
        if first != state {
            let what = format!(
                "{} after {entry}: {state:032x}, others {first:032x}",
                id(node)
            );
            return violation("R4 state-machine safety", what);
        }
        Ok(())
    }
}

/// What is known of `entry`, which comes after one of the term `before`.
fn known(entry: &Entry, before: Term) -> Known {
    Known {
        before,
        hash: seen(entry).hash,
        command: match &entry.payload {
            Payload::Command(bytes) => Some(bytes.clone()),
            Payload::Noop | Payload::Configuration(_) => None,
        },
        configuration: configuration_in(entry),
    }
}

/// R10: whoever decides by a configuration meets whoever decides by the one before. Gone through by
/// hand: each set of members against all others.
fn follows(
    before: &Configuration,
    next: &Configuration,
    marks: &mut Marks,
) -> Result<(), Violation> {
    if before.voters != next.voters || before.outgoing != next.outgoing {
        marks.hit(Mark::VotersChanged);
    }
    if next.is_joint() {
        marks.hit(Mark::JointCommitted);
    }
    let (before, next) = (halves(before), halves(next));
    let decides = |halves: &[Vec<usize>], set: u32| {
        halves.iter().all(|half| {
            let agree = half.iter().filter(|voter| set >> **voter & 1 == 1).count();
            agree >= majority(half.len())
        })
    };
    let most = before.iter().chain(&next).flatten().max();
    for set in 0..1u32 << (most.map_or(0, |most| most + 1)) {
        if decides(&before, set) && decides(&next, !set) {
            let what = format!("{before:?} is followed by {next:?}");
            return violation("R10 quorums of successive configurations meet", what);
        }
    }
    marks.hit(Mark::AdjacentQuorumsJudged);
    Ok(())
}

/// The sets of voters each of which must have a majority.
pub(crate) fn halves(configuration: &Configuration) -> Vec<Vec<usize>> {
    let sets = std::iter::once(&configuration.voters).chain(&configuration.outgoing);
    sets.map(|set| set.iter().map(|voter| place(*voter)).collect())
        .collect()
}

fn configuration_in(entry: &Entry) -> Option<Configuration> {
    match &entry.payload {
        Payload::Configuration(configuration) => Some(Configuration::clone(configuration)),
        Payload::Noop | Payload::Command(_) => None,
    }
}

fn seen(entry: &Entry) -> Seen {
    let hash = match &entry.payload {
        Payload::Noop => 0,
        Payload::Command(bytes) => xxh3_64(bytes),
        Payload::Configuration(configuration) => xxh3_64(format!("{configuration:?}").as_bytes()),
    };
    Seen {
        term: entry.id.term,
        hash,
    }
}
