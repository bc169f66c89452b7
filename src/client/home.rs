//! Reads at the node that a client connected to first, while that serves them by its read lease.
//!
//! A client is beside the node that it names first, so a linearizable read goes there if the node can serve it
//! without a message to the leader: it said in its welcome that it asks for read leases, and its replies say
//! how they were served. Where it had to ask the leader several times in a row, or did not answer soon, reads
//! go to the leader for a while, that one included.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::time::Instant;

use super::addresses::Addresses;
use super::deadline::now;
use super::known_node::KnownNode;
use super::link::Link;
use super::pool::Pool;
use crate::api::ReadPath;
use crate::sync::Mutex;

/// So many reads in a row that the node could not serve by itself.
const MISSES_MAX: u32 = 8;
/// How long reads go to the leader then, and after one that was not answered.
const AWAY: Duration = Duration::from_secs(1);
const AWAY_AFTER_FAILURE: Duration = Duration::from_secs(5);
/// How long the node has for a read before the leader is asked: it may be cut off from all others.
pub(super) const HOME_PATIENCE: Duration = Duration::from_millis(500);

/// The node beside the client, if that asks for read leases.
#[derive(Debug, Default)]
pub(super) struct Home {
    node: ArcSwapOption<KnownNode>,
    misses: AtomicU32,
    /// Reads go to the leader until then.
    away: Mutex<Option<Instant>>,
}

impl Home {
    /// The client's first connection, to `address`.
    pub(super) fn greeted(&self, address: &str, link: &Arc<Link>) {
        if link.serves_reads() {
            self.node.store(Some(Arc::new(KnownNode {
                id: Some(link.member_id()),
                address: address.to_owned(),
                link: Arc::downgrade(link),
            })));
        }
    }

    /// The node that a linearizable read goes to, and the connection, if not to the leader.
    pub(super) fn node(
        &self,
        pool: &Arc<Pool>,
        addresses: &Addresses,
    ) -> Option<(Arc<KnownNode>, Arc<Link>)> {
        let node = self.node.load();
        let node = node.as_ref().filter(|_| !self.is_away())?;
        let link = node.link.upgrade().filter(|link| link.is_usable());
        if let Some(link) = link {
            return Some((Arc::clone(node), link));
        }
        // It is connected again, perhaps as another life with other settings, or called.
        match pool.usable(&node.address) {
            Some(link) if link.serves_reads() => self.greeted(&node.address, &link),
            Some(_) => {}
            None => addresses.call_ahead(&node.address, pool),
        }
        self.leave(AWAY);
        None
    }

    fn is_away(&self) -> bool {
        if self.misses.load(Ordering::Relaxed) < MISSES_MAX {
            return false;
        }
        let mut away = self.away.lock();
        if away.is_some_and(|until| now() < until) {
            return true;
        }
        // One more read that it cannot serve, and it is left again.
        *away = None;
        self.misses.store(MISSES_MAX - 1, Ordering::Relaxed);
        false
    }

    fn leave(&self, how_long: Duration) {
        *self.away.lock() = Some(now() + how_long);
        self.misses.store(MISSES_MAX, Ordering::Relaxed);
    }

    /// It has served a read on `path`.
    pub(super) fn served(&self, path: ReadPath) {
        if path == ReadPath::Follower {
            if self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= MISSES_MAX {
                self.leave(AWAY);
            }
        } else if self.misses.load(Ordering::Relaxed) != 0 {
            self.misses.store(0, Ordering::Relaxed);
        }
    }

    /// The node at `address` did not serve.
    pub(super) fn failed(&self, address: &str) {
        let node = self.node.load();
        if node.as_ref().is_some_and(|node| node.address == address) {
            self.leave(AWAY_AFTER_FAILURE);
        }
    }
}
