//! The known addresses of members, and the choice of the next one to try.
//!
//! All endpoints that a client was configured with may disappear over time. So the client also
//! keeps the client addresses that members report, and for every address the time of its last
//! failed attempt: the address that has not failed for longest is next, for all requests and
//! watches of the client together. So no request, however short its deadline, starts again with
//! addresses that are known to be unreachable.
//!
//! A failure and a connection attempt are kept apart. A node that has just fallen silent is called
//! again at once, in the background: it may only have stood still, and its connection is there when
//! it goes on. What is limited is how often it is called.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use super::deadline::now;
use crate::api::{Member, MembersResponse};
use crate::client::pool::Pool;
use crate::sync::{Mutex, MutexGuard};

/// Shortest interval between background connection attempts to an address.
const CALL_AGAIN: Duration = Duration::from_secs(1);
/// How long a node counts as the nearest before it is measured again.
const MEASURED_EVERY: Duration = Duration::from_secs(1);
/// How long a node is not the nearest after it did not serve.
const DISTRUST: Duration = Duration::from_secs(5);
/// By how much a node must be nearer than the current one, besides a third.
const CLEARLY_NEARER: Duration = Duration::from_millis(1);
/// Maximum number of remembered addresses: members and hints from nodes supply them.
const ADDRESSES_MAX: usize = 64;

/// The known addresses.
#[derive(Debug)]
pub(super) struct Addresses {
    given: Vec<String>,
    /// Client addresses of members that are not in `given`, as members reported them.
    learned: ArcSwap<Vec<String>>,
    tried: Mutex<Tries>,
    near: Mutex<Near>,
}

/// Which node is near.
#[derive(Clone, Debug, Default)]
struct Near {
    /// The nearest, and when it is measured again.
    nearest: Option<(String, Instant)>,
    /// One that did not serve, and until when it is passed over.
    left: Option<(String, Instant)>,
}

/// Failed attempts and connection attempts, by address.
#[derive(Debug, Default)]
struct Tries {
    count: u64,
    last: BTreeMap<String, Try>,
}

#[derive(Clone, Copy, Debug)]
struct Try {
    number: u64,
    /// The number of the last failure; 0 if there was none.
    failed: u64,
    at: Instant,
    /// The last connection attempt.
    called: Option<Instant>,
}

impl Tries {
    /// A node did not serve: others come before it.
    fn note(&mut self, address: &str) {
        let called = self.last.get(address).and_then(|tried| tried.called);
        self.insert(address, self.count + 1, called);
    }

    /// It is called: others come before it until it is connected.
    fn note_call(&mut self, address: &str) {
        self.insert(address, self.failed(address), Some(now()));
    }

    fn insert(&mut self, address: &str, failed: u64, called: Option<Instant>) {
        self.count += 1;
        let tried = Try {
            number: self.count,
            failed,
            at: now(),
            called,
        };
        self.last.insert(address.to_string(), tried);
        if self.last.len() > ADDRESSES_MAX {
            let oldest = self.last.iter().min_by_key(|(_, tried)| tried.number);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.last.remove(&oldest);
            }
        }
    }

    /// The address with the lowest number has not been tried for longest.
    fn number(&self, address: &str) -> u64 {
        self.last.get(address).map_or(0, |tried| tried.number)
    }

    /// The same among connected addresses: however often they had to be called.
    fn failed(&self, address: &str) -> u64 {
        self.last.get(address).map_or(0, |tried| tried.failed)
    }

    fn within(&self, address: &str, time: Duration) -> bool {
        let tried = self.last.get(address);
        tried.is_some_and(|tried| tried.at + time > now())
    }

    /// Whether it was called within the last [`CALL_AGAIN`].
    fn is_called(&self, address: &str) -> bool {
        let called = self.last.get(address).and_then(|tried| tried.called);
        called.is_some_and(|called| called + CALL_AGAIN > now())
    }
}

impl Addresses {
    /// `given` must hold at least one address.
    pub(super) fn new(given: Vec<String>) -> Self {
        Self {
            given,
            learned: ArcSwap::default(),
            tried: Mutex::default(),
            near: Mutex::default(),
        }
    }

    pub(super) fn given(&self) -> &[String] {
        &self.given
    }

    pub(super) fn learned(&self) -> Arc<Vec<String>> {
        self.learned.load_full()
    }

    /// The number of addresses to choose from.
    pub(super) fn count(&self) -> usize {
        self.given.len() + self.learned.load().len()
    }

    /// Replaces the learned addresses by the leader's member list.
    pub(super) fn learn(&self, list: &MembersResponse) {
        self.learned.store(Arc::new(beside(&self.given, list)));
    }

    /// Adds addresses from the member list of a node that may know less than the client already
    /// does.
    pub(super) fn learn_more(&self, list: &MembersResponse) {
        let known = self.learned.load();
        let mut found = beside(&self.given, list);
        let kept = known.iter().filter(|address| !found.contains(address));
        let kept: Vec<String> = kept.cloned().collect();
        found.extend(kept);
        found.truncate(ADDRESSES_MAX);
        self.learned.store(Arc::new(found));
    }

    /// Records that a node could not be reached, or did not serve.
    pub(super) fn failed(&self, address: &str) {
        self.tries().note(address);
    }

    /// Whether the last failure was within the last `time`.
    pub(super) fn failed_within(&self, address: &str, time: Duration) -> bool {
        self.tries().within(address, time)
    }

    /// The next node for a request that any node may serve, or whose leader is unknown: the
    /// connected node that has not failed for longest. While one is connected, requests do not wait
    /// for another; nodes whose turn it would have been are connected in the background. Among
    /// addresses that were never tried, configured ones come before learned ones, which may be
    /// unreachable from here.
    pub(super) fn next(&self, pool: &Arc<Pool>) -> String {
        let learned = self.learned.load();
        let all = || self.given.iter().chain(learned.iter());
        let is_connected = |address: &&String| pool.usable(address).is_some();
        let mut tries = self.tries();
        let connected = all()
            .filter(is_connected)
            .min_by_key(|address| tries.failed(address));
        let Some(next) = connected else {
            let next = all().min_by_key(|address| tries.number(address));
            // There is at least one address.
            return next.cloned().unwrap_or_default();
        };
        let number = tries.failed(next);
        for address in all() {
            let is_before = tries.number(address) < number;
            if is_before && !tries.is_called(address) && !is_connected(&address) {
                tries.note_call(address);
                pool.dial_ahead(address);
            }
        }
        next.clone()
    }

    /// The node that answers soonest, for a read that any node may serve: by the measured round trips of the nodes that are
    /// connected. Those that are not are connected in the background, one after the other, so that they are measured, too.
    /// One that did not serve a moment ago is passed over.
    pub(super) fn near(&self, pool: &Arc<Pool>) -> String {
        let Near {
            nearest: known,
            left,
        } = self.near.lock().clone();
        if let Some((address, _)) = known.as_ref().filter(|(_, until)| now() < *until)
            && pool.usable(address).is_some()
        {
            return address.clone();
        }
        let is_left = |address: &&String| {
            let left = left.as_ref().filter(|(_, until)| now() < *until);
            left.is_some_and(|(left, _)| left == *address)
        };
        let learned = self.learned.load();
        let all = self.given.iter().chain(learned.iter());
        let measured: Vec<(&String, Duration)> = all
            .filter(|address| !is_left(address))
            .filter_map(|address| Some((address, pool.usable(address)?.round_trip())))
            .collect();
        let current = known.map_or_else(|| self.next(pool), |(address, _)| address);
        let Some(address) = nearest(&current, &measured) else {
            return self.next(pool);
        };
        self.call_another(pool, MEASURED_EVERY);
        let until = now() + MEASURED_EVERY;
        self.near.lock().nearest = Some((address.to_owned(), until));
        address.to_owned()
    }

    /// The nearest node did not serve a read: it is passed over for a while.
    pub(super) fn leave_near(&self) {
        let mut near = self.near.lock();
        let left = near.nearest.take();
        near.left = left.map(|(address, _)| (address, now() + DISTRUST));
    }

    /// Connects to an address in the background, unless that was tried a moment ago.
    pub(super) fn call_ahead(&self, address: &str, pool: &Arc<Pool>) {
        let mut tries = self.tries();
        if !tries.is_called(address) {
            tries.note_call(address);
            pool.dial_ahead(address);
        }
    }

    /// Connects in the background to the unconnected address that has not been tried for longest,
    /// unless any was tried within the last `time`.
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
            tries.note_call(address);
            pool.dial_ahead(address);
        }
    }

    fn tries(&self) -> MutexGuard<'_, Tries> {
        // No update under this lock can be left half done.
        self.tried.lock()
    }
}

/// The nearest of these. The current one stays it until another is clearly nearer: round trips vary, and a client that moves
/// meets nodes that are behind what it has seen.
fn nearest<'a>(current: &str, measured: &[(&'a String, Duration)]) -> Option<&'a str> {
    let best = measured.iter().min_by_key(|(_, round_trip)| *round_trip)?;
    let least = best.1;
    let current = measured
        .iter()
        .find(|(address, _)| *address == current)
        .filter(|(_, round_trip)| *round_trip <= least * 3 / 2 + CLEARLY_NEARER);
    let (address, _) = current.unwrap_or(best);
    Some(address)
}

/// Client addresses of the members that `given` does not name. Voters come first: one of them is
/// the leader.
fn beside(given: &[String], list: &MembersResponse) -> Vec<String> {
    let mut members: Vec<&Member> = list.members.iter().collect();
    members.sort_by_key(|member| !member.membership.votes());
    let mut found: Vec<String> = Vec::new();
    for member in members {
        let address = &member.info.client_address;
        // The unspecified address is one to listen on; clients cannot connect to it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_node_is_left_for_one_that_is_clearly_nearer() {
        let names = ["far", "near", "nearly"].map(str::to_owned);
        let millis = |times: [u64; 3]| -> Vec<(&String, Duration)> {
            names.iter().zip(times.map(Duration::from_millis)).collect()
        };
        assert_eq!(nearest("far", &[]), None);
        assert_eq!(nearest("gone", &millis([40, 10, 12])), Some("near"));
        assert_eq!(nearest("nearly", &millis([40, 10, 12])), Some("nearly"));
        assert_eq!(nearest("far", &millis([40, 10, 12])), Some("near"));
        // Within a millisecond all are equal.
        assert_eq!(nearest("far", &millis([1, 0, 0])), Some("far"));
        assert_eq!(nearest("far", &millis([17, 10, 12])), Some("near"));
        assert_eq!(nearest("far", &millis([16, 10, 12])), Some("far"));
    }
}
