//! Who has a place at an admin server.
//!
//! Whoever reaches the port may connect, and says nothing of who he is. So a connection that has asked
//! for nothing yet keeps its place only until somebody else needs it, and an address of another machine
//! never has more than a part of all places: else a few connections that send nothing would make a probe
//! wait until the orchestrator takes the node for dead. Whoever has asked keeps his place until he is
//! answered, or has taken too long about his answer, which is the server's to say.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Notify, oneshot};

use crate::sync::{Mutex, MutexGuard};

/// Of all places, one address of another machine may have this part.
const ADDRESS_PART: usize = 4;

/// All places of a server.
#[derive(Debug)]
pub(super) struct Places {
    places_max: usize,
    taken: Mutex<Taken>,
    /// A place was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// The oldest first.
    by_age: BTreeMap<u64, Holder>,
}

/// Who has a place.
#[derive(Debug)]
struct Holder {
    from: IpAddr,
    asked: Asked,
    /// Dropped when the place is taken away, which its owner notices.
    _keeps: oneshot::Sender<()>,
}

/// A place of one connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    number: u64,
    places: Arc<Places>,
    asked: Asked,
    kept: oneshot::Receiver<()>,
}

/// Said of a connection: a whole request has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

/// What becomes of a wish for a place.
#[derive(Debug)]
enum Answer {
    /// Here it is.
    Place(Place),
    /// Everyone who has one has asked for something: one has to be waited for.
    Full,
    /// The address has all that it may have, and has asked for something with each.
    Refused,
}

impl Places {
    pub(super) fn new(places_max: usize) -> Arc<Self> {
        Arc::new(Self {
            places_max,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A place for a connection from this address, once there is one; `None` if the address has too
    /// many. At most one caller may wait.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn take(self: &Arc<Self>, from: IpAddr) -> Option<Place> {
        loop {
            match self.try_take(from) {
                Answer::Place(place) => return Some(place),
                Answer::Refused => return None,
                Answer::Full => self.freed.notified().await,
            }
        }
    }

    fn try_take(self: &Arc<Self>, from: IpAddr) -> Answer {
        let from = host_of(from);
        let part = (self.places_max / ADDRESS_PART).max(1);
        let mut taken = self.lock();
        let its_own = taken.by_age.values().filter(|holder| holder.from == from);
        let has_its_part = !from.is_loopback() && its_own.count() >= part;
        if has_its_part && !taken.dismiss(|holder| holder.from == from) {
            return Answer::Refused;
        }
        if taken.by_age.len() >= self.places_max && !taken.dismiss(|_| true) {
            return Answer::Full;
        }
        let (keeps, kept) = oneshot::channel();
        let asked = Asked::default();
        let number = taken.next;
        taken.next += 1;
        let holder = Holder {
            from,
            asked: asked.clone(),
            _keeps: keeps,
        };
        taken.by_age.insert(number, holder);
        drop(taken);
        Answer::Place(Place {
            number,
            places: Arc::clone(self),
            asked,
            kept,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // A panic elsewhere cannot leave the map half changed.
        self.taken.lock()
    }
}

impl Taken {
    /// Takes its place away from the oldest of these that has asked for nothing. Whether there was one.
    fn dismiss(&mut self, of: impl Fn(&Holder) -> bool) -> bool {
        let is_silent = |holder: &Holder| of(holder) && !holder.asked.was_made();
        let mut holders = self.by_age.iter();
        let Some((&number, _)) = holders.find(|(_, holder)| is_silent(holder)) else {
            return false;
        };
        self.by_age.remove(&number);
        true
    }
}

impl Place {
    /// What is to be told once a request has come.
    pub(super) fn asked(&self) -> Asked {
        self.asked.clone()
    }

    /// Returns once the place has been taken away.
    ///
    /// # Cancel safety
    /// Safe. Once it has returned it must not be called again.
    pub(super) async fn lost(&mut self) {
        // Nothing is ever sent: the error says that the other end is gone.
        let _ = (&mut self.kept).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Nothing is there if it was taken away: then somebody else has it.
        let given_back = self.places.lock().by_age.remove(&self.number);
        if given_back.is_some() {
            self.places.freed.notify_one();
        }
    }
}

impl Asked {
    pub(super) fn make(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn was_made(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What counts as one address: of IPv6 the /64, for a host may use all of that.
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

    fn answer(places: &Arc<Places>, from: &str) -> Answer {
        places.try_take(from.parse().unwrap())
    }

    fn taken(places: &Arc<Places>, from: &str) -> Place {
        match answer(places, from) {
            Answer::Place(place) => place,
            other => panic!("{from}: {other:?}"),
        }
    }

    fn is_lost(place: &mut Place) -> bool {
        place.kept.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn one_address_has_a_part_of_all_places_and_gives_up_its_own_silent_ones() {
        let places = Places::new(16);
        let mut its: Vec<Place> = (0..4).map(|_| taken(&places, "10.0.0.1")).collect();
        let mut other = taken(&places, "10.0.0.2");
        its[0].asked().make();
        let fifth = taken(&places, "10.0.0.1");
        let lost: Vec<bool> = its.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [false, true, false, false], "the oldest silent one");
        assert!(!is_lost(&mut other));
        for place in its.iter().chain([&fifth]) {
            place.asked().make();
        }
        assert!(matches!(answer(&places, "10.0.0.1"), Answer::Refused));
        assert!(matches!(
            answer(&places, "::ffff:10.0.0.1"),
            Answer::Refused
        ));
        let _from_elsewhere = taken(&places, "10.0.0.3");
        // What was taken away is not given back a second time.
        drop(its.remove(1));
        assert!(matches!(answer(&places, "10.0.0.1"), Answer::Refused));
        drop(its);
        let _again = taken(&places, "10.0.0.1");
    }

    #[test]
    fn an_ipv6_host_is_one_address_whichever_of_its_own_it_uses() {
        let places = Places::new(4);
        let mut first = taken(&places, "2001:db8::1");
        let _second = taken(&places, "2001:db8::ffff:2");
        assert!(is_lost(&mut first));
        let mut local = taken(&places, "::1");
        let _more_local = taken(&places, "::1");
        assert!(!is_lost(&mut local));
    }

    #[test]
    fn where_all_places_are_taken_the_oldest_that_asked_for_nothing_goes() {
        let places = Places::new(4);
        let mut local: Vec<Place> = (0..4).map(|_| taken(&places, LOCAL)).collect();
        local[0].asked().make();
        let newcomer = taken(&places, "10.0.0.1");
        let lost: Vec<bool> = local.iter_mut().map(is_lost).collect();
        assert_eq!(lost, [false, true, false, false]);
        for place in local.iter().chain([&newcomer]) {
            place.asked().make();
        }
        assert!(matches!(answer(&places, LOCAL), Answer::Full));
        drop(local.remove(1));
        assert!(matches!(answer(&places, LOCAL), Answer::Full));
        drop(newcomer);
        let _last = taken(&places, LOCAL);
    }

    #[tokio::test]
    async fn whoever_waits_for_a_place_has_the_first_that_comes_back() {
        let places = Places::new(1);
        let first = taken(&places, LOCAL);
        first.asked().make();
        let waiting = tokio::spawn({
            let places = Arc::clone(&places);
            async move { places.take(LOCAL.parse().unwrap()).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.await.unwrap());
    }
}
