//! The connections that an admin server evict open at the same time.
//!
//! A client of this port sends no credentials, so a few connections that send nothing could keep a
//! probe waiting until the orchestrator takes the node for dead. A semaphore alone would allow that.
//! So a connection that has not sent a request yet is closed when another one needs its slot, the
//! oldest first, and the connections from one address of another machine never hold more than a part
//! of all slots. A connection that has sent a request evict its slot until it is answered; the server
//! limits how long that may take.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, oneshot};

use crate::sync::{Mutex, MutexGuard};

/// One address of another machine may hold one in so many of all slots.
const ADDRESS_SHARE: usize = 4;

/// The slots of a server.
#[derive(Debug)]
pub(super) struct ConnectionSlots {
    slots_max: usize,
    open: Mutex<OpenConnections>,
    /// Notified when a slot is released.
    freed: Notify,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    /// By number: the oldest first.
    by_age: BTreeMap<u64, OpenConnection>,
}

/// A connection that holds a slot.
#[derive(Debug)]
struct OpenConnection {
    from: IpAddr,
    request_seen: RequestSeen,
    /// Dropped to evict the connection.
    _evict: oneshot::Sender<()>,
}

/// The slot of one connection, released when dropped.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    slots: Arc<ConnectionSlots>,
    request_seen: RequestSeen,
    evicted: oneshot::Receiver<()>,
}

/// Whether a connection has sent a whole request.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestSeen(Arc<AtomicBool>);

/// The result of asking for a slot.
#[derive(Debug)]
enum Answer {
    Slot(Slot),
    /// Every connection has sent a request: wait for one to end.
    Full,
    /// The address holds all the slots it may, and has sent a request on each.
    Refused,
}

impl ConnectionSlots {
    pub(super) fn new(slots_max: usize) -> Arc<Self> {
        Arc::new(Self {
            slots_max,
            open: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A slot for a connection from this address, once one is free; `None` if the address has too
    /// many. At most one caller may wait.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn take(self: &Arc<Self>, from: IpAddr) -> Option<Slot> {
        loop {
            match self.try_take(from) {
                Answer::Slot(slot) => return Some(slot),
                Answer::Refused => return None,
                Answer::Full => self.freed.notified().await,
            }
        }
    }

    fn try_take(self: &Arc<Self>, from: IpAddr) -> Answer {
        let from = host_of(from);
        let part = (self.slots_max / ADDRESS_SHARE).max(1);
        let mut open = self.lock();
        let of_address = open
            .by_age
            .values()
            .filter(|connection| connection.from == from);
        let has_its_share = !from.is_loopback() && of_address.count() >= part;
        if has_its_share && !open.close_oldest_idle(|connection| connection.from == from) {
            return Answer::Refused;
        }
        if open.by_age.len() >= self.slots_max && !open.close_oldest_idle(|_| true) {
            return Answer::Full;
        }
        let (evict, evicted) = oneshot::channel();
        let request_seen = RequestSeen::default();
        let number = open.next;
        open.next += 1;
        let connection = OpenConnection {
            from,
            request_seen: request_seen.clone(),
            _evict: evict,
        };
        open.by_age.insert(number, connection);
        drop(open);
        Answer::Slot(Slot {
            number,
            slots: Arc::clone(self),
            request_seen,
            evicted,
        })
    }

    fn lock(&self) -> MutexGuard<'_, OpenConnections> {
        // A panic elsewhere cannot leave the map half changed.
        self.open.lock()
    }
}

impl OpenConnections {
    /// Evicts the oldest connection among these that has sent no request. Whether there was one.
    fn close_oldest_idle(&mut self, of: impl Fn(&OpenConnection) -> bool) -> bool {
        let is_idle =
            |connection: &OpenConnection| of(connection) && !connection.request_seen.get();
        let mut connections = self.by_age.iter();
        let Some((&number, _)) = connections.find(|(_, connection)| is_idle(connection)) else {
            return false;
        };
        self.by_age.remove(&number);
        true
    }
}

impl Slot {
    /// The flag to set when the request arrives.
    pub(super) fn request_seen(&self) -> RequestSeen {
        self.request_seen.clone()
    }

    /// Returns when the connection was evicted.
    ///
    /// # Cancel safety
    /// Safe. Once it has returned it must not be called again.
    pub(super) async fn lost(&mut self) {
        // Nothing is ever sent: the error says that the sender was dropped.
        let _ = (&mut self.evicted).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // An evicted connection holds no slot any more.
        let given_back = self.slots.lock().by_age.remove(&self.number);
        if given_back.is_some() {
            self.slots.freed.notify_one();
        }
    }
}

impl RequestSeen {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The address that a host counts as: of IPv6 the /64, because a host may use all of it.
fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1";

    fn answer(slots: &Arc<ConnectionSlots>, from: &str) -> Answer {
        slots.try_take(from.parse().unwrap())
    }

    fn open(slots: &Arc<ConnectionSlots>, from: &str) -> Slot {
        match answer(slots, from) {
            Answer::Slot(slot) => slot,
            other => panic!("{from}: {other:?}"),
        }
    }

    fn is_lost(slot: &mut Slot) -> bool {
        slot.evicted.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_address_has_a_part_of_all_places_and_gives_up_its_own_silent_ones() {
        let slots = ConnectionSlots::new(16);
        let mut its: Vec<Slot> = (0..4).map(|_| open(&slots, "10.0.0.1")).collect();
        let mut other = open(&slots, "10.0.0.2");
        its[0].request_seen().set();
        let fifth = open(&slots, "10.0.0.1");
        let lost: Vec<bool> = its.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [false, true, false, false], "the oldest silent one");
        assert!(!is_lost(&mut other));
        for slot in its.iter().chain([&fifth]) {
            slot.request_seen().set();
        }
        assert!(matches!(answer(&slots, "10.0.0.1"), Answer::Refused));
        assert!(matches!(answer(&slots, "::ffff:10.0.0.1"), Answer::Refused));
        let _from_elsewhere = open(&slots, "10.0.0.3");
        // What was open away is not given back a second time.
        drop(its.remove(1));
        assert!(matches!(answer(&slots, "10.0.0.1"), Answer::Refused));
        drop(its);
        let _again = open(&slots, "10.0.0.1");
    }

    #[test]
    fn an_ipv6_host_is_one_address_whichever_of_its_own_it_uses() {
        let slots = ConnectionSlots::new(4);
        let mut first = open(&slots, "2001:db8::1");
        let _second = open(&slots, "2001:db8::ffff:2");
        assert!(is_lost(&mut first));
        let mut local = open(&slots, "::1");
        let _more_local = open(&slots, "::1");
        assert!(!is_lost(&mut local));
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_that_request_seen_for_nothing_goes() {
        let slots = ConnectionSlots::new(4);
        let mut local: Vec<Slot> = (0..4).map(|_| open(&slots, LOCAL)).collect();
        local[0].request_seen().set();
        let newcomer = open(&slots, "10.0.0.1");
        let lost: Vec<bool> = local.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [false, true, false, false]);
        for slot in local.iter().chain([&newcomer]) {
            slot.request_seen().set();
        }
        assert!(matches!(answer(&slots, LOCAL), Answer::Full));
        drop(local.remove(1));
        assert!(matches!(answer(&slots, LOCAL), Answer::Full));
        drop(newcomer);
        let _last = open(&slots, LOCAL);
    }

    #[tokio::test]
    async fn whoever_waits_for_a_place_has_the_first_that_comes_back() {
        let slots = ConnectionSlots::new(1);
        let first = open(&slots, LOCAL);
        first.request_seen().set();
        let waiting = tokio::spawn({
            let slots = Arc::clone(&slots);
            async move { slots.take(LOCAL.parse().unwrap()).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.unwrap());
    }
}
