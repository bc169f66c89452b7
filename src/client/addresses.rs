//! Where members may be asked, and whose turn it is.
//!
//! The endpoints that a client was given may all be gone one day. So it keeps what members say of
//! where clients reach them, too, and of every address when it was last tried in vain: whoever was
//! not tried for longest is next, for all requests and watches of the client together. So no request,
//! however little time it has, begins anew with those that are known to be dead.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use crate::api::{Member, MembersResponse};
use crate::client::pool::Pool;
use crate::client::route::in_time;
use crate::sync::{Mutex, MutexGuard};

/// An address that failed is called in the background as seldom.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// Addresses that are remembered: members, and whoever hints at nodes, name them.
const ADDRESSES_MAX: usize = 64;

/// The addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    given: Vec<String>,
    /// Where clients reach the members that `given` does not name, as members said.
    learned: ArcSwap<Vec<String>>,
    tried: Mutex<Tries>,
}

/// Which addresses were tried in vain, or called in the background.
#[derive(Debug, Default)]
struct Tries {
    count: u64,
    last: BTreeMap<String, Try>,
}

#[derive(Clone, Copy, Debug)]
struct Try {
    number: u64,
    at: Instant,
}

impl Tries {
    fn note(&mut self, address: &str) {
        self.count += 1;
        let (number, at) = (self.count, in_time(Duration::ZERO));
        self.last.insert(address.to_string(), Try { number, at });
        if self.last.len() > ADDRESSES_MAX {
            let oldest = self.last.iter().min_by_key(|(_, tried)| tried.number);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.last.remove(&oldest);
            }
        }
    }

    /// Whoever has the least was not tried for longest.
    fn number(&self, address: &str) -> u64 {
        self.last.get(address).map_or(0, |tried| tried.number)
    }

    fn within(&self, address: &str, time: Duration) -> bool {
        let tried = self.last.get(address);
        tried.is_some_and(|tried| tried.at + time > in_time(Duration::ZERO))
    }
}

impl Addresses {
    /// `given` holds at least one.
    pub(super) fn new(given: Vec<String>) -> Self {
        Self {
            given,
            learned: ArcSwap::default(),
            tried: Mutex::default(),
        }
    }

    pub(super) fn given(&self) -> &[String] {
        &self.given
    }

    pub(super) fn learned(&self) -> Arc<Vec<String>> {
        self.learned.load_full()
    }

    /// How many there are to choose from.
    pub(super) fn count(&self) -> usize {
        self.given.len() + self.learned.load().len()
    }

    /// These are the members, by the word of the one that leads.
    pub(super) fn learn(&self, list: &MembersResponse) {
        self.learned.store(Arc::new(beside(&self.given, list)));
    }

    /// These are members, by the word of one that may know less than was known before.
    pub(super) fn learn_more(&self, list: &MembersResponse) {
        let known = self.learned.load();
        let mut found = beside(&self.given, list);
        let kept = known.iter().filter(|address| !found.contains(address));
        let kept: Vec<String> = kept.cloned().collect();
        found.extend(kept);
        found.truncate(ADDRESSES_MAX);
        self.learned.store(Arc::new(found));
    }

    /// A node could not be reached, or did not serve.
    pub(super) fn failed(&self, address: &str) {
        self.tries().note(address);
    }

    /// Whether that was within the last `time`.
    pub(super) fn failed_within(&self, address: &str, time: Duration) -> bool {
        self.tries().within(address, time)
    }

    /// The node to ask next where any may do, or nobody knows better: of those that are connected the
    /// one that was not tried in vain for longest. While there is one, nobody waits for another; those
    /// whose turn it would have been are called in the background. Of those that were never tried,
    /// whoever was given comes before whoever was learned of and may be out of reach from here.
    pub(super) fn next(&self, pool: &Arc<Pool>) -> String {
        let learned = self.learned.load();
        let all = || self.given.iter().chain(learned.iter());
        let is_connected = |address: &&String| pool.usable(address).is_some();
        let mut tries = self.tries();
        let connected = all()
            .filter(is_connected)
            .min_by_key(|address| tries.number(address));
        let Some(next) = connected else {
            let next = all().min_by_key(|address| tries.number(address));
            // There is at least one.
            return next.cloned().unwrap_or_default();
        };
        let number = tries.number(next);
        for address in all() {
            let is_before = tries.number(address) < number;
            if is_before && !tries.within(address, CALL_AGAIN) && !is_connected(&address) {
                tries.note(address);
                pool.dial_ahead(address);
            }
        }
        next.clone()
    }

    /// Calls an address in the background, unless that was just done in vain.
    pub(super) fn call_ahead(&self, address: &str, pool: &Arc<Pool>) {
        let mut tries = self.tries();
        if !tries.within(address, CALL_AGAIN) {
            tries.note(address);
            pool.dial_ahead(address);
        }
    }

    /// Calls the one in the background that is not connected and was not tried for longest, unless any
    /// was within the last `time`.
    pub(super) fn call_another(&self, pool: &Arc<Pool>, time: Duration) {
        let learned = self.learned.load();
        let mut tries = self.tries();
        let all = self.given.iter().chain(learned.iter());
        let unknown: Vec<&String> = all
            .filter(|address| pool.usable(address).is_none())
            .collect();
        if unknown.iter().any(|address| tries.within(address, time)) {
            return;
        }
        if let Some(address) = unknown
            .into_iter()
            .min_by_key(|address| tries.number(address))
        {
            tries.note(address);
            pool.dial_ahead(address);
        }
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        // Nothing in it can be half done.
        self.tried.lock()
    }
}

/// Where clients reach the members that `given` does not name. Those that vote come first: one of them
/// leads.
fn beside(given: &[String], list: &MembersResponse) -> Vec<String> {
    let mut members: Vec<&Member> = list.members.iter().collect();
    members.sort_by_key(|member| !member.membership.votes());
    let mut found: Vec<String> = Vec::new();
    for member in members {
        let address = &member.info.client_address;
        // "Any address" is where a node listens, and nowhere that anybody could call.
        let can_be_called = match address.parse::<SocketAddr>() {
            Ok(address) => !address.ip().is_unspecified() && address.port() > 0,
            Err(_) => !address.is_empty(),
        };
        if can_be_called && !given.contains(address) && !found.contains(address) {
            found.push(address.clone());
        }
    }
    found
}
