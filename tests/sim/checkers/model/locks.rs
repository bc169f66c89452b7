//! T13, X13: locks, elections and fences, by the order of the log and by tokens.
//!
//! The holder of a lock is whoever's entry was created first, of those that are there: that is a
//! function of the log. Of every write behind a fence that the log lets through, its writer must be
//! the holder at that place, and its token none that is smaller than the one of a write before it. What
//! lockers were told, that they hold, that somebody leads, that a write was made or was refused, must
//! be what the log says at that revision. Time takes no part.

use bytes::Bytes;
use leasehold::api::{CompareTarget, LeaseTarget, TxnOp, TxnRequest};

use super::{Model, Violation, violation};
use crate::history;
use crate::history::{Key, Value};
use crate::marks::{Mark, Marks};

/// Keys of what locks protect, and of the places in their queues, beside those of others.
const REGISTERS: Key = 2_000;
const ENTRIES: Key = 1_000_000;
/// How many claims a lock has room for.
const CLAIMS: Key = 1_000_000;
/// A value says whose it is: the claim, and which of its writes.
const WRITES: u64 = 1_000;

/// What a locker was told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// At this revision that claim, with that token, is the first, or nobody is.
    Leads {
        lock: u64,
        revision: i64,
        leader: Option<(u64, i64)>,
    },
    /// A write behind a fence was let through.
    Wrote {
        lock: u64,
        revision: i64,
        value: Value,
    },
    /// One was refused.
    Refused { lock: u64, value: Value },
}

/// The key of a claim's place in the queue of a lock.
pub(crate) fn entry(lock: u64, claim: u64) -> Bytes {
    format!("q{lock}/{claim:06}").into()
}

/// The key of what a lock protects.
pub(crate) fn register(lock: u64) -> Bytes {
    format!("f{lock}").into()
}

/// The claim of this key.
pub(crate) fn place_of(name: &[u8]) -> Option<u64> {
    let name = std::str::from_utf8(name.strip_prefix(b"q")?).ok()?;
    name.split_once('/')?.1.parse().ok()
}

/// The number of a key of lockers.
pub(super) fn key(name: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(name).ok()?;
    if let Some(lock) = text.strip_prefix('f') {
        return Some(REGISTERS + lock.parse::<Key>().ok()?);
    }
    let (lock, claim) = text.strip_prefix('q')?.split_once('/')?;
    Some(entry_key(lock.parse().ok()?, claim.parse().ok()?))
}

/// The name of a key of lockers.
pub(super) fn name(key: Key) -> Option<Bytes> {
    match key {
        ENTRIES.. => {
            let place = key - ENTRIES;
            Some(entry(place / CLAIMS, place % CLAIMS))
        }
        REGISTERS.. => Some(register(key - REGISTERS)),
        _ => None,
    }
}

fn entry_key(lock: u64, claim: u64) -> Key {
    ENTRIES + lock * CLAIMS + claim
}

/// Whether a transaction is one of lockers.
pub(super) fn is_of_locks(txn: &TxnRequest) -> bool {
    txn.success.iter().any(|op| match op {
        TxnOp::Put(put) => key(&put.key).is_some(),
        _ => false,
    })
}

impl Model {
    /// Carries out an entry into a queue, or a write behind a fence.
    pub(super) fn transact_locks(&mut self, txn: &TxnRequest, revision: &mut i64) {
        let holds = txn.compare.iter().all(|compare| {
            let CompareTarget::CreateRevision(expected) = compare.target else {
                unreachable!("lockers compare create revisions");
            };
            let created = key(&compare.key).and_then(|key| self.created(key, *revision));
            created.unwrap_or(0) == expected
        });
        if !holds {
            return;
        }
        for op in &txn.success {
            let TxnOp::Put(put) = op else { continue };
            let (Some(key), Some(value)) = (key(&put.key), history::value(&put.value)) else {
                continue;
            };
            let mut hangs_on = 0;
            if let LeaseTarget::Lease(lease) = put.lease {
                let found = self.leases.get_mut(&lease.id);
                let found = found.filter(|found| lease.means(found.grant_index));
                let Some(found) = found else { return };
                found.keys.insert(key);
                hangs_on = lease.id;
            } else {
                self.judge_fenced(key - REGISTERS, value, *revision);
            }
            *revision += 1;
            self.note(key, *revision, Some(value), hangs_on);
        }
    }

    /// A write to what `lock` protects is let through after `revision`.
    fn judge_fenced(&mut self, lock: u64, value: Value, revision: i64) {
        let claim = value / WRITES;
        let entry = entry_key(lock, claim);
        let versions = self.versions.get(&entry);
        let token = versions.and_then(|versions| versions.first());
        let token = token.map_or(0, |(created, _)| *created);
        let newest = self.tokens.entry(lock).or_default();
        let last = *newest;
        *newest = last.max(token);
        let first = self.first(lock, revision);
        let judged = if token < last {
            violation(
                "T13 tokens of writes only grow",
                format!(
                    "lock {lock}: claim {claim} writes with {token} after {revision}, when \
                     somebody had written with {last}"
                ),
            )
        } else if first != Some((claim, token)) {
            violation(
                "T13 only the holder writes",
                format!(
                    "lock {lock}: claim {claim} writes with {token} after {revision}, when {first:?} \
                     held it"
                ),
            )
        } else {
            Ok(())
        };
        if let Err(violation) = judged {
            self.objection.get_or_insert(violation);
        }
    }

    /// The revision that created a key, if it is there at `revision`.
    fn created(&self, key: Key, revision: i64) -> Option<i64> {
        let versions = self.versions.get(&key)?;
        let until = versions.partition_point(|(written, _)| *written <= revision);
        let alive = versions[..until].iter().rev();
        let alive = alive.take_while(|(_, value)| value.is_some());
        alive.last().map(|(created, _)| *created)
    }

    /// The claim that was created first of those that are there at `revision`, and when.
    fn first(&self, lock: u64, revision: i64) -> Option<(u64, i64)> {
        let claims = self
            .versions
            .range(entry_key(lock, 0)..entry_key(lock + 1, 0));
        let claims = claims.filter_map(|(key, _)| {
            let created = self.created(*key, revision)?;
            Some((*key - entry_key(lock, 0), created))
        });
        claims.min_by_key(|(_, created)| *created)
    }

    /// Whether what lockers were told is what the log says.
    pub(in crate::checkers) fn explains_locks(
        &self,
        claims: &[Claim],
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        for claim in claims {
            match *claim {
                Claim::Leads {
                    lock,
                    revision,
                    leader,
                } => {
                    let first = self.first(lock, revision);
                    if first != leader {
                        let what = format!("{claim:?}; the log says {first:?}");
                        return violation("X13 the first in the log holds the lock", what);
                    }
                    marks.hit(Mark::HolderCheckedAgainstLog);
                }
                Claim::Wrote {
                    lock,
                    revision,
                    value,
                } => {
                    let found = self.at(REGISTERS + lock, revision);
                    let written = found.filter(|found| found.mod_revision == revision);
                    if written.is_none_or(|found| found.value != value) {
                        let what = format!("{claim:?}; the log says {found:?}");
                        return violation("E1 acknowledged writes are there", what);
                    }
                    marks.hit(Mark::FencedWriteCheckedAgainstLog);
                }
                Claim::Refused { lock, value } => {
                    let versions = self.versions.get(&(REGISTERS + lock));
                    let written = versions.into_iter().flatten();
                    let mut written = written.filter(|(_, written)| *written == Some(value));
                    if let Some((revision, _)) = written.next() {
                        let what = format!("{claim:?}; the log has it at {revision}");
                        return violation("E2 refused means not applied", what);
                    }
                    marks.hit(Mark::RefusedByFenceCheckedAgainstLog);
                }
            }
        }
        Ok(())
    }
}
