//! L1 exclusivity: when a lease permits a read in some term, nobody has been elected in a higher
//! one. L2 freshness: a linearizable read shows everything that anybody had been shown when it
//! arrived.
//!
//! L1 is asked when it can first break, at every election, of every other node's lease by that
//! node's own clock; and again of every leader that has been succeeded, whenever it does anything.

use leasehold::api::ReadPath;
use leasehold::raft::Status;
use leasehold::types::{LogIndex, Term};

use super::{Violation, id, violation};
use crate::clock::{MS, Nanos};
use crate::machine::Machine;
use crate::marks::{Mark, Marks};

/// See the module.
#[derive(Default)]
pub(crate) struct Lease {
    highest: Term,
    /// The latest term whose leader has told another to campaign, and that leader.
    pub(crate) burned: Option<(Term, usize)>,
    /// The newest revision that anybody outside may know of.
    pub(crate) exposed: i64,
    /// Since when each was known that was the newest.
    exposures: Vec<(Nanos, i64)>,
}

impl Lease {
    /// Somebody outside may know of `revision` from now on.
    pub(crate) fn expose(&mut self, real: Nanos, revision: i64) {
        if revision > self.exposed {
            self.exposed = revision;
            self.exposures.push((real, revision));
        }
    }

    /// Whether `node`, elected in `term`, gave the term before away in vain.
    pub(crate) fn gave_up(&self, node: usize, term: Term) -> bool {
        self.burned.map(|(term, node)| (term.next(), node)) == Some((term, node))
    }

    /// The newest revision that was known before `real`.
    pub(crate) fn exposed_before(&self, real: Nanos) -> i64 {
        let known = self.exposures.partition_point(|(at, _)| *at < real);
        known
            .checked_sub(1)
            .map_or(0, |last| self.exposures[last].1)
    }

    /// Somebody leads in `term`.
    pub(crate) fn elected(&mut self, term: Term) {
        self.highest = self.highest.max(term);
    }

    /// L1 when `node` is elected in `term`: no lease of a lower term holds.
    pub(crate) fn exclusive(
        &self,
        real: Nanos,
        node: usize,
        term: Term,
        machines: &[Machine],
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        for (other, machine) in machines.iter().enumerate() {
            let process = machine.process.as_ref();
            if other != node && process.is_some_and(|p| p.lease.is_some()) {
                marks.hit(Mark::RivalLeaseJudged);
            }
            if process.is_some_and(|p| p.published.read_lease().is_some()) {
                marks.hit(Mark::RivalReadLeaseJudged);
            }
            self.held(real, other, machine, marks)?;
            if let Some(older) = holds(real, machine)
                && older < term
            {
                let what = format!(
                    "{} is elected in {term} while the lease of {} in {older} holds",
                    id(node),
                    id(other)
                );
                return violation("L1 exclusivity", what);
            }
        }
        Ok(())
    }

    /// L1 for a leader that has been succeeded; and I4 for one that has told another to campaign.
    pub(crate) fn silent(
        &self,
        real: Nanos,
        node: usize,
        term: Term,
        machine: &Machine,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let succeeded = term < self.highest;
        let gave_away = self.burned == Some((term, node));
        if !succeeded && !gave_away {
            return Ok(());
        }
        marks.hit(if succeeded {
            Mark::SucceededLeaderJudged
        } else {
            Mark::BurnedLeaderJudged
        });
        if holds(real, machine).is_none() {
            return Ok(());
        }
        if succeeded {
            let what = format!(
                "{} holds a lease in {term} after {}",
                id(node),
                self.highest
            );
            return violation("L1 exclusivity", what);
        }
        let what = format!("{} holds a lease in {term}, which it gave away", id(node));
        violation("P9 a burned lease stays void", what)
    }

    /// L1 for the holder of a read lease whose leader has been succeeded.
    pub(crate) fn held(
        &self,
        real: Nanos,
        node: usize,
        machine: &Machine,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let Some(term) = may_read(real, machine) else {
            return Ok(());
        };
        marks.hit(Mark::ReadLeaseHeld);
        if term < self.highest {
            let what = format!(
                "{} holds a read lease of {term} after {}",
                id(node),
                self.highest
            );
            return violation("L1 exclusivity", what);
        }
        Ok(())
    }

    /// L1 for a permit.
    pub(crate) fn permitted(&self, real: Nanos, node: usize, term: Term) -> Result<(), Violation> {
        if term < self.highest {
            let what = format!(
                "{} permits a read by its lease in {term} at {} ms, {} was elected before",
                id(node),
                real / MS,
                self.highest
            );
            return violation("L1 exclusivity", what);
        }
        Ok(())
    }
}

/// L2.
pub(crate) fn fresh(
    real: Nanos,
    node: usize,
    path: ReadPath,
    revision: i64,
    exposed: i64,
) -> Result<(), Violation> {
    if revision < exposed {
        let what = format!(
            "{} answers by {} at revision {revision} at {} ms; {exposed} was known when it arrived",
            id(node),
            path.name(),
            real / MS
        );
        return violation("L2 freshness", what);
    }
    Ok(())
}

/// L9: the leader of a term commits nothing that a holder of a read lease of it does not have on its disk, or
/// that was committed before its tenure.
pub(crate) fn holders_have_it(
    real: Nanos,
    node: usize,
    status: &Status,
    machines: &[Machine],
    marks: &mut Marks,
) -> Result<(), Violation> {
    for (holder, machine) in machines.iter().enumerate() {
        if holder == node || may_read(real, machine) != Some(status.term) {
            continue;
        }
        marks.hit(Mark::CommitPastHoldersJudged);
        let process = machine.process.as_ref().expect("it holds a read lease");
        let lease = process.published.read_lease().expect("it holds one");
        let has = machine.disk.term_at(status.commit).is_some();
        if !has && lease.floor < status.commit {
            let what = format!(
                "{} commits {} without {}, which holds a read lease from {} on",
                id(node),
                status.commit,
                id(holder),
                lease.floor
            );
            return violation("L9 no commit past a holder", what);
        }
    }
    Ok(())
}

/// What has become of the read leases that `machine` has granted in this life.
pub(crate) fn mark_grants(machine: &Machine, marks: &mut Marks) {
    let Some(process) = &machine.process else {
        return;
    };
    let counters = process.published.grant_counters();
    if counters.waited_out() > 0 {
        marks.hit(Mark::ReadLeaseWaitedOut);
    }
    if !counters.held_back().is_zero() {
        marks.hit(Mark::CommitHeldBack);
    }
}

/// The term in which `machine` could answer a read by its read lease right now.
fn may_read(real: Nanos, machine: &Machine) -> Option<Term> {
    let lease = machine.process.as_ref()?.published.read_lease()?;
    lease
        .is_valid(machine.clock.read(real))
        .then_some(lease.term)
}

/// The term in which `machine` could answer a read by its lease right now.
fn holds(real: Nanos, machine: &Machine) -> Option<Term> {
    let lease = machine.process.as_ref()?.lease.as_deref()?;
    let now = machine.clock.read(real);
    lease.permit(now, LogIndex(0)).map(|_| lease.term)
}
