//! Leases: which there are by the rules, what entries do to them, and keys that go with them.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold::api::{LeaseGrantResponse, LeaseRef, LeaseTarget};
use leasehold::kv;
use leasehold::kv::{
    Command, LEASE_KEYS_MAX, LeaseChange, LeaseGrant, LeaseMark, LeaseMarkKind, LeaseTerms,
    MemStore, Operation,
};
use leasehold::types::Term;

use super::draw::Draw;
use super::ranges::State;

/// The term of every entry.
pub const TERM: Term = Term(1);

/// Ids that nobody chose and that are taken go on in steps of this.
const FREE_ID_STEP: i64 = 1 << 40;

/// The leases of a model. Which keys hang on them, the keys say themselves.
#[derive(Clone, Debug, Default)]
pub struct Leases {
    all: BTreeMap<i64, Lease>,
    /// What the replies of entries have told, as a leader keeps it for its deadlines.
    told: BTreeMap<i64, LeaseTerms>,
}

#[derive(Clone, Debug)]
struct Lease {
    grant_index: u64,
    name: String,
    owner: String,
    ttl_ms: u64,
    promised_ms: u64,
    checkpoint_ms: Option<u64>,
}

impl Leases {
    pub fn count(&self) -> u64 {
        self.all.len() as u64
    }

    fn find(&mut self, lease: LeaseRef) -> Option<&mut Lease> {
        let found = self.all.get_mut(&lease.id);
        found.filter(|found| lease.grant_index == 0 || lease.grant_index == found.grant_index)
    }

    /// The lease that a put asks for, 0 for none; `None` if there is no such.
    pub fn target(&mut self, target: &LeaseTarget) -> Option<i64> {
        match target {
            LeaseTarget::None => Some(0),
            LeaseTarget::Lease(lease) => self.find(*lease).map(|_| lease.id),
            LeaseTarget::Name(name) => {
                let mut all = self.all.iter();
                all.find(|(_, lease)| !name.is_empty() && lease.name == *name)
                    .map(|(id, _)| *id)
            }
        }
    }

    /// `None` if the grant is refused.
    pub fn grant(&mut self, index: u64, grant: &LeaseGrant) -> Option<LeaseGrantResponse> {
        if self.count() >= grant.leases_max || grant.ttl_ms == 0 || grant.id < 0 {
            return None;
        }
        let mut id = grant.id;
        if id == 0 {
            id = i64::try_from(index).expect("an input is short");
            while self.all.contains_key(&id) {
                id += FREE_ID_STEP;
            }
        }
        let mut others = self.all.values();
        let is_named = !grant.name.is_empty() && others.any(|lease| lease.name == grant.name);
        if self.all.contains_key(&id) || is_named {
            return None;
        }
        let lease = Lease {
            grant_index: index,
            name: grant.name.clone(),
            owner: grant.owner.clone(),
            ttl_ms: grant.ttl_ms,
            promised_ms: 0,
            checkpoint_ms: None,
        };
        self.all.insert(id, lease);
        Some(LeaseGrantResponse {
            id,
            grant_index: index,
            ttl_ms: grant.ttl_ms,
            requested_ttl_ms: grant.requested_ttl_ms,
            name: grant.name.clone(),
        })
    }

    /// `None` if there is no such lease.
    pub fn update_ttl(&mut self, lease: LeaseRef, ttl_ms: u64) -> Option<u64> {
        let found = self.find(lease)?;
        let promised = found.promised_ms.max(found.ttl_ms);
        found.promised_ms = if promised > ttl_ms { promised } else { 0 };
        found.ttl_ms = ttl_ms;
        Some(ttl_ms)
    }

    /// Ends a lease, and takes what hangs on it out of `state`: how many keys that were. `None` if
    /// there is no such lease.
    pub fn end(&mut self, state: &mut State, lease: LeaseRef) -> Option<u64> {
        self.find(lease)?;
        self.all.remove(&lease.id);
        let before = state.len();
        state.retain(|_, kv| kv.lease != lease.id);
        Some((before - state.len()) as u64)
    }

    /// Notes what a leader of `term` says of leases.
    pub fn mark(&mut self, term: Term, marks: &[LeaseMark]) {
        for LeaseMark { lease, kind } in marks {
            let Some(found) = self.find(*lease).filter(|_| term == TERM) else {
                continue;
            };
            match kind {
                LeaseMarkKind::Remaining(left) => found.checkpoint_ms = Some(*left),
                LeaseMarkKind::Clear => found.checkpoint_ms = None,
                LeaseMarkKind::Settle { ttl_ms } if *ttl_ms == found.ttl_ms => {
                    found.promised_ms = 0;
                }
                LeaseMarkKind::Settle { .. } => {}
            }
        }
    }

    /// An entry's reply told this.
    pub fn hear(&mut self, changes: &[LeaseChange]) {
        for change in changes {
            match change {
                LeaseChange::Granted(terms) => {
                    let before = self.told.insert(terms.lease.id, *terms);
                    assert!(before.is_none(), "{terms:?} was granted before");
                }
                LeaseChange::Changed(terms) => {
                    let before = self.told.insert(terms.lease.id, *terms);
                    assert_eq!(before.map(|terms| terms.lease), Some(terms.lease));
                }
                LeaseChange::Ended(lease, _) => {
                    let before = self.told.remove(&lease.id);
                    assert_eq!(before.map(|terms| terms.lease), Some(*lease));
                }
            }
        }
    }

    /// The store has these leases and no others, on these terms, with the keys that `state` says;
    /// and replies have told all of it.
    pub fn check(&self, store: &MemStore, state: &State) {
        let progress = kv::progress(store).expect("memory does not fail");
        assert!(kv::leases_are_sound(store, &progress).expect("memory does not fail"));
        let terms = kv::held_leases(store).expect("memory does not fail").terms;
        assert!(self.told.values().eq(&terms), "replies tell all there is");
        let expected = self.all.iter().map(|(id, lease)| LeaseTerms {
            lease: LeaseRef {
                id: *id,
                grant_index: lease.grant_index,
            },
            ttl_ms: lease.ttl_ms,
            restart_ms: lease
                .checkpoint_ms
                .unwrap_or_else(|| lease.ttl_ms.max(lease.promised_ms)),
            is_checkpointed: lease.checkpoint_ms.is_some(),
            outlasts_ttl: lease.promised_ms > lease.ttl_ms,
            ending: None,
        });
        assert_eq!(terms, expected.collect::<Vec<_>>());
        for (id, lease) in &self.all {
            let info = kv::lease_info(store, *id, true, usize::MAX).expect("memory does not fail");
            let info = info.expect("it is among the terms");
            assert_eq!((&info.name, &info.owner), (&lease.name, &lease.owner));
            let attached = state.values().filter(|kv| kv.lease == *id);
            let keys: Vec<&Bytes> = attached.map(|kv| &kv.key).collect();
            assert_eq!(info.keys.iter().collect::<Vec<_>>(), keys);
            assert_eq!(info.key_count, keys.len() as u64);
        }
    }

    /// Mostly one that there is; now and then only if it is the one that was granted then.
    fn some(&self, draw: &mut Draw<'_>) -> LeaseRef {
        let chosen = draw.byte();
        let mut all = self.all.iter();
        let living = all.nth(usize::from(chosen / 8) % self.all.len().max(1));
        match (living, chosen % 8) {
            (Some((id, lease)), 0) => LeaseRef {
                id: *id,
                grant_index: lease.grant_index,
            },
            (Some((id, lease)), 1) => LeaseRef {
                id: *id,
                grant_index: lease.grant_index + 1,
            },
            (Some((id, _)), 2..=6) => LeaseRef::id(*id),
            _ => LeaseRef::id(i64::from(chosen / 8)),
        }
    }

    /// The lease that a put shall name.
    pub fn draw_target(&self, draw: &mut Draw<'_>) -> LeaseTarget {
        match draw.below(4) {
            0 => LeaseTarget::None,
            1 => LeaseTarget::Name(name(draw)),
            _ => LeaseTarget::Lease(self.some(draw)),
        }
    }

    /// A grant, an end or a change that a client asks for. With a `put`, a grant attaches its key.
    pub fn draw_operation(
        &self,
        draw: &mut Draw<'_>,
        put: impl FnOnce(&mut Draw<'_>) -> leasehold::api::PutRequest,
    ) -> Operation {
        match draw.below(6) {
            0..=2 => Operation::LeaseGrant(grant(draw)),
            3 => Operation::LeaseRevoke(self.some(draw)),
            4 => Operation::LeaseUpdateTtl {
                lease: self.some(draw),
                ttl_ms: 1 + u64::from(draw.byte() % 8),
            },
            _ => Operation::PutWithNewLease {
                grant: Box::new(grant(draw)),
                put: put(draw),
            },
        }
    }

    /// What a leader decides, or one that leads no more.
    pub fn draw_decision(&self, draw: &mut Draw<'_>) -> Command {
        let how = draw.byte();
        let term = match how & 0x80 {
            0 => TERM,
            _ => Term(TERM.0 - 1),
        };
        let count = 1 + draw.below(3);
        match how % 4 {
            0 | 1 => Command::ExpireLeases {
                term,
                leases: (0..count).map(|_| self.some(draw)).collect(),
            },
            2 => Command::MarkLeases {
                term,
                marks: (0..count).map(|_| self.mark_of(draw)).collect(),
            },
            // None has so many keys that its end is not over at once.
            _ => Command::ContinueLeaseEnds {
                leases: (0..count).map(|_| self.some(draw)).collect(),
            },
        }
    }

    fn mark_of(&self, draw: &mut Draw<'_>) -> LeaseMark {
        LeaseMark {
            lease: self.some(draw),
            kind: match draw.below(3) {
                0 => LeaseMarkKind::Remaining(u64::from(draw.byte())),
                1 => LeaseMarkKind::Clear,
                _ => LeaseMarkKind::Settle {
                    ttl_ms: 1 + u64::from(draw.byte() % 8),
                },
            },
        }
    }
}

fn name(draw: &mut Draw<'_>) -> String {
    ["", "", "n", "m"][draw.below(4)].to_owned()
}

/// 0 lets the entry decide, low numbers are those of early entries, and after the largest there is
/// none.
fn id(draw: &mut Draw<'_>) -> i64 {
    match draw.byte() {
        large @ 240.. => i64::MAX - i64::from((u8::MAX - large) % 4),
        small => i64::from(small % 8),
    }
}

fn grant(draw: &mut Draw<'_>) -> LeaseGrant {
    let ttl_ms = u64::from(draw.byte() % 8);
    LeaseGrant {
        id: id(draw),
        ttl_ms,
        requested_ttl_ms: ttl_ms,
        name: name(draw),
        owner: name(draw),
        granted_at_ms: 0,
        leases_max: 2 + u64::from(draw.byte() % 4),
        keys_max: LEASE_KEYS_MAX,
        per_user_max: 0,
    }
}
