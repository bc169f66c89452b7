//! How long tokens are good for etcd's clients: for their time to live, as they are signed, and then
//! while the last use at this node is younger than that, as in etcd.
//!
//! Clients of etcd that stay connected count on it: not all of them log in again. A token that is void for
//! another reason (another password, no such user, access control off and on again) is void at once.
//!
//! The memory is bounded: of more tokens than are remembered, some are good for their time to live alone,
//! unless their connection stays.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};

use super::oidc::IssuerKey;
use crate::api::Secret;
use crate::sync::Mutex;

/// Tokens whose uses are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// The tokens that were used at this node.
pub(super) struct TokenUses {
    ttl: Duration,
    /// By a hash, so that no token is kept.
    table: Mutex<BTreeMap<[u8; 32], Arc<TokenUse>>>,
}

/// Until when one token is good.
#[derive(Debug)]
pub(crate) struct TokenUse {
    ttl: Duration,
    until: Mutex<Instant>,
    /// The key of an issuer that it rests on.
    key: Option<Weak<IssuerKey>>,
}

impl TokenUse {
    /// Of a token of an issuer: no use makes it live longer, and it ends with its key.
    pub(super) fn of_issuer(until: Instant, key: Weak<IssuerKey>) -> Self {
        Self {
            ttl: Duration::ZERO,
            until: Mutex::new(until),
            key: Some(key),
        }
    }

    /// Uses the token at `now`; false if it was not used for too long, or has ended.
    pub(crate) fn touch(&self, now: Instant) -> bool {
        let mut until = self.until.lock();
        let is_known = |key: &Weak<IssuerKey>| key.strong_count() > 0;
        let is_good = now < *until && self.key.as_ref().is_none_or(is_known);
        if is_good {
            *until = (*until).max(now + self.ttl);
        }
        is_good
    }

    /// Until when it is good if it is not used again.
    pub(crate) fn until(&self) -> Instant {
        *self.until.lock()
    }
}

impl TokenUses {
    /// Of tokens that are good for `ttl`.
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            table: Mutex::default(),
        }
    }

    /// The uses of a token that is good for `left` by its signature, and is used at `now`; `None` if it has
    /// expired.
    pub(super) fn of(&self, token: &Secret, left: Duration, now: Instant) -> Option<Arc<TokenUse>> {
        let mut name = [0; 32];
        name.copy_from_slice(digest(&SHA256, token.reveal()).as_ref());
        let mut table = self.table.lock();
        if let Some(known) = table.get(&name).filter(|known| known.touch(now)) {
            return Some(known.clone());
        }
        if left.is_zero() {
            table.remove(&name);
            return None;
        }
        let used = Arc::new(TokenUse {
            ttl: self.ttl,
            until: Mutex::new(now + left.max(self.ttl)),
            key: None,
        });
        if table.len() >= REMEMBERED_MAX {
            table.retain(|_, known| now < known.until());
        }
        if table.len() < REMEMBERED_MAX {
            table.insert(name, used.clone());
        }
        Some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::metrics::stopwatch;

    const TTL: Duration = Duration::from_secs(300);

    #[test]
    fn a_token_lives_for_its_time_and_then_while_it_is_used() {
        let uses = TokenUses::new(TTL);
        let (token, other) = (Secret::new("one"), Secret::new("other"));
        let begin = stopwatch();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let first = uses.of(&token, TTL, begin).unwrap();
        assert!(first.touch(at(299)));
        // Past its signed end, and on another connection of this node.
        assert!(first.touch(at(598)));
        assert!(uses.of(&token, Duration::ZERO, at(897)).is_some());
        assert!(first.touch(at(1196)), "it is one and the same");
        assert!(!first.touch(at(1496)));
        assert!(uses.of(&token, Duration::ZERO, at(1496)).is_none());
        // One that was never used here has its signed time alone.
        assert!(uses.of(&other, Duration::ZERO, begin).is_none());
    }

    #[test]
    fn the_memory_is_bounded_and_what_is_over_makes_room() {
        let uses = TokenUses::new(TTL);
        let begin = stopwatch();
        for number in 0..=REMEMBERED_MAX {
            let token = Secret::new(number.to_be_bytes());
            assert!(uses.of(&token, TTL, begin).is_some());
        }
        assert_eq!(uses.table.lock().len(), REMEMBERED_MAX);
        let token = Secret::new("late");
        assert!(uses.of(&token, TTL, begin + 2 * TTL).is_some());
        assert_eq!(uses.table.lock().len(), 1);
    }
}
