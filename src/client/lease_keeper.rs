//! Keeps leases alive, and knows for how long they may be counted on.
//!
//! A lease is renewed when a third of its time has passed, with some jitter, so that two renewals may
//! be lost before it is in danger. Renewals of one client that are due together are one request. A
//! renewal counts from when it was *sent*, by this machine's own pair of clocks, and less what clocks
//! may differ by is taken off: so the holder stops before the cluster ends the lease, whatever the
//! answer took (T12). Failures are retried, at whichever node leads, until that moment.
//!
//! The program is told everything: [`KeepAliveEvent`]. It may fall behind with renewals, which are
//! then left out; that the lease is lost is never left out, and always the last.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant as Moment;

use super::route::in_time;
use super::{Client, Inner};
use crate::api::{Error, KEEP_ALIVE_LEASES_MAX, LeaseKept, LeaseRef};
use crate::clock::SystemClock;
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};

/// Clocks of holder and leader differ by no more than this each, in parts of a million.
const DRIFT_PPM: u128 = 20_000;
const GRANULARITY: Duration = Duration::from_millis(1);
/// A lease is renewed when this part of its time has passed.
const FRACTION: u32 = 3;
/// What is due within this time goes along.
const GATHER: Duration = Duration::from_millis(5);
const RETRY_FIRST: Duration = Duration::from_millis(25);
const RETRY_MAX: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 64;

/// What becomes of a lease that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepAliveEvent {
    /// It was renewed.
    Renewed {
        /// Its time to live.
        ttl: Duration,
        /// How long it may be counted on from now.
        remaining: Duration,
    },
    /// A renewal failed, and is tried again.
    Retrying {
        /// Why.
        error: Error,
    },
    /// Less than a third of its time is left, and no renewal got through.
    AtRisk {
        /// How long it may be counted on from now.
        remaining: Duration,
    },
    /// It may not be counted on any more. The last event.
    Lost {
        /// Why.
        cause: LostCause,
    },
}

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// No renewal got through in time; the cluster may keep it a little longer.
    Unreachable,
    /// The cluster ended it, because no renewal had got through in time.
    Expired,
    /// Somebody revoked it.
    Revoked,
    /// The cluster knows no such lease.
    NotFound,
    /// The client was closed.
    ClientClosed,
    /// The program gave it up.
    Closed,
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "no renewal got through in time",
            Self::Expired => "the cluster ended it, because no renewal had got through in time",
            Self::Revoked => "somebody revoked it",
            Self::NotFound => "the cluster knows no such lease",
            Self::ClientClosed => "the client was closed",
            Self::Closed => "the program gave it up",
        })
    }
}

/// When something was sent, by both clocks and by tokio's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    clock: Instant,
    moment: Moment,
}

impl Sent {
    /// To be asked before anything leaves.
    pub(super) fn now() -> Self {
        Self {
            clock: SystemClock.now(),
            moment: in_time(Duration::ZERO),
        }
    }
}

/// How long a holder may count on a lease of `ttl`, from when its renewal was sent.
fn usable(ttl: Duration) -> Duration {
    let kept = ttl.saturating_sub(GRANULARITY).as_nanos();
    let kept = kept * (1_000_000 - DRIFT_PPM) / (1_000_000 + DRIFT_PPM);
    let kept = u64::try_from(kept).unwrap_or(u64::MAX);
    Duration::from_nanos(kept).saturating_sub(GRANULARITY)
}

/// Keeps one lease alive. Dropped, it stops renewing, and the lease ends by itself; see
/// [`LeaseKeeper::revoke`] to end it at once.
///
/// ```
/// # leasehold::client::examples::run(async |client| {
/// use leasehold::client::KeepAliveEvent;
/// use std::time::Duration;
///
/// let (_, mut keeper) = client.lease().grant_and_keep(Duration::from_secs(2), None).await?;
/// while let Some(event) = keeper.event().await {
///     match event {
///         KeepAliveEvent::Renewed { remaining, .. } => {
///             println!("may be counted on for {remaining:?}");
///             break;
///         }
///         KeepAliveEvent::AtRisk { remaining } => println!("stop within {remaining:?}"),
///         KeepAliveEvent::Lost { cause } => println!("stop now: {cause}"),
///         other => println!("{other:?}"),
///     }
/// }
/// // Work for as long as it lives, and look once more right before what depends on it:
/// tokio::select! {
///     cause = keeper.lost() => println!("{cause}"),
///     () = tokio::time::sleep(Duration::from_millis(10)) => assert!(keeper.is_alive()),
/// }
/// keeper.revoke().await?;
/// # Ok(())
/// # });
/// ```
#[derive(Debug)]
pub struct LeaseKeeper {
    client: Client,
    number: u64,
    lease: LeaseRef,
    shared: Arc<Shared>,
    events: mpsc::Receiver<KeepAliveEvent>,
    orders: mpsc::UnboundedSender<Order>,
    told_lost: bool,
}

#[derive(Debug)]
struct Shared {
    deadline: Mutex<Deadline>,
    lost: watch::Sender<Option<LostCause>>,
}

#[derive(Clone, Copy, Debug)]
struct Deadline {
    clock: Instant,
    ttl: Duration,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Deadline> {
        self.deadline.lock()
    }

    fn remaining(&self) -> Duration {
        let (now, deadline) = (SystemClock.now(), self.lock().clock);
        match now.certainly_before(deadline) {
            true => deadline.at_least_since(now),
            false => Duration::ZERO,
        }
    }
}

impl LeaseKeeper {
    /// Keeps a lease that was granted or renewed by what was `sent` then.
    pub(super) fn begin(client: &Client, lease: LeaseRef, ttl: Duration, sent: Sent) -> Self {
        let shared = Arc::new(Shared {
            deadline: Mutex::new(Deadline {
                clock: sent.clock + usable(ttl),
                ttl,
            }),
            lost: watch::Sender::new(None),
        });
        let (told, events) = mpsc::channel(EVENTS_MAX);
        let orders = client.keeping();
        let number = client.inner.random_number();
        let kept = Kept {
            lease,
            ttl,
            shared: Arc::clone(&shared),
            events: told,
            over: sent.moment + usable(ttl),
            next: in_time(Duration::ZERO),
            retry: RETRY_FIRST,
            in_flight: false,
            at_risk: false,
        };
        // The task goes when the client is closed, and then the keeper says so.
        let _ = orders.send(Order::Keep(number, Box::new(kept)));
        Self {
            client: client.clone(),
            number,
            lease,
            shared,
            events,
            orders,
            told_lost: false,
        }
    }

    /// Its id.
    pub fn id(&self) -> i64 {
        self.lease.id
    }

    /// The lease, and no later one of its id.
    pub fn lease(&self) -> LeaseRef {
        self.lease
    }

    /// How long it lasts without a renewal.
    pub fn ttl(&self) -> Duration {
        self.shared.lock().ttl
    }

    /// How long it may be counted on from now; zero once it is lost. A fresh look at the clocks:
    /// ask right before what depends on it.
    pub fn remaining(&self) -> Duration {
        match *self.shared.lost.borrow() {
            Some(_) => Duration::ZERO,
            None => self.shared.remaining(),
        }
    }

    /// Whether it may be counted on now.
    pub fn is_alive(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// What happens to it next; `None` after [`KeepAliveEvent::Lost`].
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn event(&mut self) -> Option<KeepAliveEvent> {
        if self.told_lost {
            return None;
        }
        if let Some(event) = self.events.recv().await {
            return Some(event);
        }
        self.told_lost = true;
        let cause = self.shared.lost.borrow().unwrap_or(LostCause::ClientClosed);
        Some(KeepAliveEvent::Lost { cause })
    }

    /// Waits until the lease may not be counted on any more, and says why.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LostCause {
        self.lost_later().await
    }

    /// The same, without holding on to this keeper.
    pub(super) fn lost_later(&self) -> impl Future<Output = LostCause> + Send + use<> {
        let mut lost = self.shared.lost.subscribe();
        async move {
            let cause = lost.wait_for(Option::is_some).await;
            let cause = cause.ok().and_then(|cause| *cause);
            cause.unwrap_or(LostCause::ClientClosed)
        }
    }

    /// Why it is lost, if it is: by its own clock, too, before anybody noticed.
    pub(super) fn loss(&self) -> Option<LostCause> {
        match *self.shared.lost.borrow() {
            None if self.shared.remaining().is_zero() => Some(LostCause::Unreachable),
            cause => cause,
        }
    }

    /// Counts on the lease no longer, from this moment on, and renews it no more.
    pub(super) fn give_up(&self) {
        self.shared.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(LostCause::Closed);
            is_first
        });
        let _ = self.orders.send(Order::Stop(self.number));
    }

    /// Stops renewing the lease, and ends it; what is attached to it is deleted.
    ///
    /// # Errors
    /// As [`LeaseClient::revoke`](super::LeaseClient::revoke).
    ///
    /// # Cancel safety
    /// The lease is not renewed any more, and ends by itself.
    pub async fn revoke(self) -> Result<(), Error> {
        let (client, lease) = (self.client.clone(), self.lease);
        drop(self);
        client.lease().revoke(lease).await.map(|_| ())
    }
}

impl Drop for LeaseKeeper {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop(self.number));
    }
}

/// What the task that renews is told.
#[derive(Debug)]
pub(super) enum Order {
    Keep(u64, Box<Kept>),
    Stop(u64),
}

/// A lease, as the task knows it.
#[derive(Debug)]
pub(super) struct Kept {
    lease: LeaseRef,
    ttl: Duration,
    shared: Arc<Shared>,
    events: mpsc::Sender<KeepAliveEvent>,
    /// When it is over, by tokio's clock: only to wake up, and to lose it early.
    over: Moment,
    /// When to look at it next.
    next: Moment,
    retry: Duration,
    in_flight: bool,
    at_risk: bool,
}

/// What came of a request for several leases.
struct Batch {
    sent: Sent,
    numbers: Vec<u64>,
    result: Result<Vec<LeaseKept>, Error>,
}

/// Renews the leases of one client, until it is dropped or closed.
pub(super) async fn run(client: Weak<Inner>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let (done, mut batches) = mpsc::unbounded_channel();
    let mut task = Task {
        client,
        kept: BTreeMap::new(),
        wakes: BTreeSet::new(),
        done,
        random: fastrand::Rng::with_seed(super::seed()),
    };
    loop {
        let wake = task.wakes.first().map(|(moment, _)| *moment);
        let idle = wake.is_none();
        let wake = wake.unwrap_or_else(|| in_time(Duration::from_secs(3600)));
        tokio::select! {
            order = orders.recv() => match order {
                Some(Order::Keep(number, kept)) => task.keep(number, *kept),
                Some(Order::Stop(number)) => task.stop(number),
                None => return,
            },
            Some(batch) = batches.recv() => task.settle(batch),
            () = tokio::time::sleep_until(wake), if !idle => {}
        }
        if !task.renew_due() {
            return task.give_up();
        }
    }
}

struct Task {
    client: Weak<Inner>,
    kept: BTreeMap<u64, Kept>,
    wakes: BTreeSet<(Moment, u64)>,
    done: mpsc::UnboundedSender<Batch>,
    random: fastrand::Rng,
}

impl Task {
    fn keep(&mut self, number: u64, mut kept: Kept) {
        kept.next = self.renewal_after(in_time(Duration::ZERO), kept.ttl);
        self.wakes.insert((kept.next.min(kept.over), number));
        self.kept.insert(number, kept);
    }

    fn stop(&mut self, number: u64) {
        if let Some(kept) = self.kept.remove(&number) {
            self.wakes.remove(&(kept.next.min(kept.over), number));
        }
    }

    /// When a lease that was just renewed is to be renewed again: after a third of its time, less
    /// up to a tenth of that.
    fn renewal_after(&mut self, now: Moment, ttl: Duration) -> Moment {
        let third = ttl / FRACTION;
        now + third.mul_f64(1.0 - 0.1 * self.random.f64())
    }

    /// Looks at the leases whose time has come. False if the client is gone.
    fn renew_due(&mut self) -> bool {
        let now = in_time(Duration::ZERO);
        let Some(client) = self.client.upgrade() else {
            return false;
        };
        let client = Client { inner: client };
        if client.inner.router.pool().is_closed() {
            return false;
        }
        let mut due = Vec::new();
        let mut nearest = RETRY_MAX * 4;
        let mut woken = Vec::new();
        let is_due = self.wakes.first().is_some_and(|(moment, _)| *moment <= now);
        while is_due
            && let Some((moment, number)) = self.wakes.first().copied()
            && moment <= now + GATHER
            && due.len() < KEEP_ALIVE_LEASES_MAX
        {
            self.wakes.remove(&(moment, number));
            woken.push(number);
            let kept = self.kept.get_mut(&number).expect("who wakes is kept");
            let remaining = kept.shared.remaining();
            if remaining.is_zero() {
                self.lose(number, LostCause::Unreachable);
                continue;
            }
            if remaining < kept.ttl / FRACTION && !kept.at_risk {
                kept.at_risk = true;
                let _ = kept.events.try_send(KeepAliveEvent::AtRisk { remaining });
            }
            nearest = nearest.min(remaining);
            if !kept.in_flight {
                kept.in_flight = true;
                due.push((number, kept.lease));
            }
            // While a request is under way, somebody must notice that time runs out.
            kept.next = now + (kept.ttl / FRACTION).min(remaining);
            kept.over = now + remaining;
        }
        for number in woken {
            if let Some(kept) = self.kept.get(&number) {
                self.wakes.insert((kept.next.min(kept.over), number));
            }
        }
        if !due.is_empty() {
            self.send(client, due, nearest);
        }
        true
    }

    fn send(&self, client: Client, due: Vec<(u64, LeaseRef)>, timeout: Duration) {
        let done = self.done.clone();
        let (numbers, leases): (Vec<u64>, Vec<LeaseRef>) = due.into_iter().unzip();
        tokio::spawn(async move {
            let sent = Sent::now();
            // An attempt that hangs must leave time for another.
            let timeout = (timeout / 2).max(Duration::from_millis(20));
            let result = client.renew(leases, timeout).await;
            let _ = done.send(Batch {
                sent,
                numbers,
                result,
            });
        });
    }

    fn settle(&mut self, batch: Batch) {
        let now = in_time(Duration::ZERO);
        for (place, number) in batch.numbers.into_iter().enumerate() {
            let Some(kept) = self.kept.get_mut(&number) else {
                continue;
            };
            self.wakes.remove(&(kept.next.min(kept.over), number));
            kept.in_flight = false;
            let result = match &batch.result {
                Ok(all) => Ok(all.get(place).copied().unwrap_or(LeaseKept::Undecided)),
                Err(error) => Err(error),
            };
            let lost = match result {
                Ok(LeaseKept::Renewed { ttl_ms }) => {
                    let ttl = Duration::from_millis(ttl_ms);
                    kept.renewed(&batch.sent, ttl);
                    let third = ttl / FRACTION;
                    let jitter = 1.0 - 0.1 * self.random.f64();
                    kept.next = now.max(batch.sent.moment + third.mul_f64(jitter));
                    None
                }
                Ok(LeaseKept::Undecided) => {
                    kept.next = now + RETRY_FIRST;
                    None
                }
                Err(error) => {
                    let error = error.clone();
                    let _ = kept.events.try_send(KeepAliveEvent::Retrying { error });
                    kept.next = now + kept.retry.mul_f64(0.8 + 0.4 * self.random.f64());
                    kept.retry = (kept.retry * 2).min(RETRY_MAX).min(kept.ttl / 10);
                    None
                }
                Ok(LeaseKept::NotFound) => Some(LostCause::NotFound),
                Ok(LeaseKept::Expired) => Some(LostCause::Expired),
                Ok(LeaseKept::Revoked) => Some(LostCause::Revoked),
            };
            match lost {
                Some(cause) => self.lose(number, cause),
                None => {
                    let wake = kept.next.min(kept.over);
                    self.wakes.insert((wake, number));
                }
            }
        }
    }

    /// The lease is over for whoever holds it: the channel ends, and what is said last stands beside.
    fn lose(&mut self, number: u64, cause: LostCause) {
        if let Some(kept) = self.kept.remove(&number) {
            self.wakes.remove(&(kept.next.min(kept.over), number));
            // Unless it was given up meanwhile.
            kept.shared
                .lost
                .send_if_modified(|lost| lost.replace(lost.unwrap_or(cause)).is_none());
        }
    }

    fn give_up(mut self) {
        while let Some((number, _)) = self.kept.first_key_value() {
            self.lose(*number, LostCause::ClientClosed);
        }
    }
}

impl Kept {
    /// A renewal that was `sent` then was acknowledged.
    fn renewed(&mut self, sent: &Sent, ttl: Duration) {
        self.ttl = ttl;
        self.retry = RETRY_FIRST;
        self.at_risk = false;
        let mut deadline = self.shared.lock();
        deadline.clock = deadline.clock.max(sent.clock + usable(ttl));
        deadline.ttl = ttl;
        drop(deadline);
        self.over = self.over.max(sent.moment + usable(ttl));
        let remaining = self.shared.remaining();
        let _ = self
            .events
            .try_send(KeepAliveEvent::Renewed { ttl, remaining });
    }
}

impl Inner {
    /// Names a keeper among those of this client.
    fn random_number(&self) -> u64 {
        self.keepers
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Client {
    /// The task that renews this client's leases, started when it is first needed.
    fn keeping(&self) -> mpsc::UnboundedSender<Order> {
        let keeping = self.inner.keeping.get_or_init(|| {
            let (orders, taken) = mpsc::unbounded_channel();
            tokio::spawn(run(Arc::downgrade(&self.inner), taken));
            orders
        });
        keeping.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_a_holder_counts_on_less_than_the_slowest_leader_gives() {
        for ttl_ms in [500, 2_000, 60_000, 3_600_000] {
            let ttl = Duration::from_millis(ttl_ms);
            let held = usable(ttl).as_secs_f64();
            // The holder's clock may be slow, and the leader's fast (Theorem 3).
            let at_most = (held + 0.001) / 0.98;
            let leader = (ttl.as_secs_f64() - 0.001) / 1.02;
            assert!(at_most <= leader, "{ttl:?}: {at_most} > {leader}");
            assert!(held > ttl.as_secs_f64() * 0.94);
        }
        assert_eq!(usable(Duration::ZERO), Duration::ZERO);
    }
}
