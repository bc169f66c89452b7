//! C1, C4, A15: client leases, judged in real time against what was committed.
//!
//! Nothing may end a lease by expiry while its holder believes in it, by its own clock and counted
//! from when it sent its last acknowledged renewal; and nobody may be told that a lease is over
//! before its end is committed. An expiry of another term than its entry's ends nothing.

use std::collections::BTreeMap;

use leasehold::api::LeaseRef;
use leasehold::kv::{Command, Operation};

use super::{Committed, Violation};
use crate::clock::Nanos;
use crate::marks::{Mark, Marks};

/// See the module.
#[derive(Default)]
pub(crate) struct ClientLeases {
    /// How much of the log was looked at.
    seen: usize,
    /// Leases that exist by what is committed, with the index of their grant.
    live: BTreeMap<i64, u64>,
    /// When their ends were committed, and whether by an expiry.
    ended: BTreeMap<i64, (Nanos, bool)>,
    /// Until when their holders believe in them, in real time.
    trusted: BTreeMap<i64, Nanos>,
}

impl ClientLeases {
    /// More may have been committed.
    pub(crate) fn committed(
        &mut self,
        real: Nanos,
        log: &[Committed],
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let new = log.get(self.seen..).unwrap_or_default();
        self.seen = log.len();
        for entry in new {
            let command = entry.command.as_ref().map(|bytes| Command::decode(bytes));
            let Some(Ok(command)) = command else {
                continue;
            };
            match command {
                Command::Write { operation, .. } => match operation {
                    Operation::LeaseGrant(_) => {
                        self.live.insert(entry.id.index.0 as i64, entry.id.index.0);
                    }
                    Operation::LeaseRevoke(lease) => {
                        self.end(real, lease, false);
                    }
                    _ => {}
                },
                Command::ExpireLeases { term, leases } => {
                    // Whether the word of another term counts is for `model.rs` to say; that a
                    // holder who is still sure of its lease is not bereft is said here.
                    let _ = term;
                    for lease in leases {
                        if self.end(real, lease, true) {
                            self.is_over_for_its_holder(real, lease.id, marks)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn end(&mut self, real: Nanos, lease: LeaseRef, expired: bool) -> bool {
        let is_there = self
            .live
            .get(&lease.id)
            .is_some_and(|index| lease.means(*index));
        if is_there {
            self.live.remove(&lease.id);
            self.ended.insert(lease.id, (real, expired));
        }
        is_there
    }

    fn is_over_for_its_holder(
        &self,
        real: Nanos,
        id: i64,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        let Some(until) = self.trusted.get(&id) else {
            return Ok(());
        };
        marks.hit(Mark::LeaseEndJudged);
        if *until > real {
            return Err(Violation {
                rule: "C1 a client lease never ends early",
                what: format!(
                    "the expiry of lease {id} is committed at {real}, and its holder counts on it \
                     until {until}"
                ),
            });
        }
        Ok(())
    }

    /// A holder was told that it has the lease, and counts on it `until` then.
    pub(crate) fn holds(&mut self, real: Nanos, id: i64, until: Nanos) -> Result<(), Violation> {
        let trusted = self.trusted.entry(id).or_default();
        *trusted = until.max(*trusted);
        match self.ended.get(&id) {
            // A revocation is its holder's own doing; a renewal may overtake it (T17).
            Some((ended, true)) if until > real && *ended <= real => Err(Violation {
                rule: "C1 a client lease never ends early",
                what: format!(
                    "lease {id} is said to last until {until}, and its end was committed at {ended}"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// A holder was told that its lease is over.
    pub(crate) fn told_over(&mut self, id: i64, marks: &mut Marks) -> Result<(), Violation> {
        marks.hit(Mark::LeaseLossJudged);
        match self.ended.contains_key(&id) {
            true => Ok(()),
            false => Err(Violation {
                rule: "A15 an end is told once it is committed",
                what: format!("the holder of lease {id} is told that it is over"),
            }),
        }
    }
}
