//! Renews leases, and computes for how long they are valid.
//!
//! A lease is renewed when a third of its time to live has passed, or less ([`KeepAliveOptions`]),
//! with some jitter, so that two renewals may be lost before it is at risk. Renewals of one client
//! that are due together share one request. A renewal counts from when it was *sent*, by this
//! machine's own pair of clocks, less the assumed clock drift: so the holder stops before the
//! cluster ends the lease, however long the reply took (T12). Failures are retried, at the current
//! leader, until that moment.
//!
//! The program receives every change as a [`KeepAliveEvent`]. If it falls behind, renewals are
//! omitted; the loss of the lease is never omitted, and is always the last event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use tokio::time::Instant as Moment;

use super::deadline::{deadline_after, now};
use super::kept_lease::{
    Deadline, FRACTION, KeepAliveEvent, KeepAliveOptions, KeptLease, LeaseState, LostCause, Order,
    RETRY_FIRST, SendTime, usable,
};
use super::measure;
use super::measure::Presence;
use super::route::seed;
use super::{Client, Inner};
use crate::api::{Error, KEEP_ALIVE_LEASES_MAX, LeaseKept, LeaseRef};
use crate::sync::Mutex;
use crate::wire::RequestContext;

/// Leases that are due within this time are renewed in the same request.
const GATHER: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_secs(1);
const EVENTS_MAX: usize = 64;

/// Keeps one lease alive. When the keeper is dropped, it stops renewing, and the lease expires by
/// itself; [`LeaseKeeper::revoke`] ends it at once.
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
    shared: Arc<LeaseState>,
    events: mpsc::Receiver<KeepAliveEvent>,
    orders: mpsc::UnboundedSender<Order>,
    told_lost: bool,
}

impl LeaseKeeper {
    /// Keeps alive a lease whose grant or renewal was `sent` at that moment.
    pub(super) fn begin(client: &Client, lease: LeaseRef, ttl: Duration, sent: SendTime) -> Self {
        let shared = Arc::new(LeaseState {
            deadline: Mutex::new(Deadline {
                clock: sent.clock + usable(ttl),
                ttl,
            }),
            lost: watch::Sender::new(None),
        });
        let (told, events) = mpsc::channel(EVENTS_MAX);
        let orders = client.keeping();
        let number = client.inner.random_number();
        let kept = KeptLease {
            lease,
            ttl,
            shared: Arc::clone(&shared),
            events: told,
            over: sent.moment + usable(ttl),
            next: now(),
            retry: RETRY_FIRST,
            in_flight: false,
            at_risk: false,
            _presence: Presence::kept_lease(),
        };
        // The task ends when the client is closed, and then the keeper reports that.
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

    /// The id of the lease.
    pub fn id(&self) -> i64 {
        self.lease.id
    }

    /// This very lease, and no later one with the same id.
    pub fn lease(&self) -> LeaseRef {
        self.lease
    }

    /// Time to live without a renewal.
    pub fn ttl(&self) -> Duration {
        self.shared.lock().ttl
    }

    /// Remaining validity from now on; zero once the lease is lost. Every call reads the clocks:
    /// call it right before an action that depends on the lease.
    pub fn remaining(&self) -> Duration {
        match *self.shared.lost.borrow() {
            Some(_) => Duration::ZERO,
            None => self.shared.remaining(),
        }
    }

    /// Whether the lease is valid now.
    pub fn is_alive(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// The next event of the lease; `None` after [`KeepAliveEvent::Lost`].
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

    /// Waits until the lease is no longer valid, and returns the cause.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn lost(&self) -> LostCause {
        self.lost_later().await
    }

    /// Like [`LeaseKeeper::lost`], without keeping this keeper alive.
    pub(super) fn lost_later(&self) -> impl Future<Output = LostCause> + Send + use<> {
        let mut lost = self.shared.lost.subscribe();
        async move {
            let cause = lost.wait_for(Option::is_some).await;
            let cause = cause.ok().and_then(|cause| *cause);
            cause.unwrap_or(LostCause::ClientClosed)
        }
    }

    /// The cause of the loss, if the lease is lost: also by its own clock, before the task has
    /// noticed.
    pub(super) fn loss(&self) -> Option<LostCause> {
        match *self.shared.lost.borrow() {
            None if self.shared.remaining().is_zero() => Some(LostCause::Unreachable),
            cause => cause,
        }
    }

    /// Treats the lease as lost from this moment on, and stops renewing it.
    pub(super) fn give_up(&self) {
        self.shared.lost.send_if_modified(|lost| {
            let is_first = lost.is_none();
            lost.get_or_insert(LostCause::Closed);
            is_first
        });
        let _ = self.orders.send(Order::Stop(self.number));
    }

    /// Stops renewing the lease, and revokes it; the keys attached to it are deleted.
    ///
    /// # Errors
    /// As [`LeaseClient::revoke`](super::LeaseClient::revoke).
    ///
    /// # Cancel safety
    /// The lease is no longer renewed, and expires by itself.
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

/// The result of a request for several leases.
struct Batch {
    sent: SendTime,
    numbers: Vec<u64>,
    result: Result<Vec<LeaseKept>, Error>,
}

/// Renews the leases of one client, until it is dropped or closed.
pub(super) async fn run(client: Weak<Inner>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let (done, mut batches) = mpsc::unbounded_channel();
    let options = client.upgrade().map(|inner| inner.options.keep_alive);
    let mut task = Task {
        client,
        options: options.unwrap_or_default(),
        kept: BTreeMap::new(),
        wakes: BTreeSet::new(),
        done,
        random: fastrand::Rng::with_seed(seed()),
    };
    loop {
        let wake = task.wakes.first().map(|(moment, _)| *moment);
        let idle = wake.is_none();
        let wake = wake.unwrap_or_else(|| deadline_after(Duration::from_secs(3600)));
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
    options: KeepAliveOptions,
    kept: BTreeMap<u64, KeptLease>,
    wakes: BTreeSet<(Moment, u64)>,
    done: mpsc::UnboundedSender<Batch>,
    random: fastrand::Rng,
}

impl Task {
    fn keep(&mut self, number: u64, mut kept: KeptLease) {
        kept.next = self.renewal_after(now(), kept.ttl);
        self.wakes.insert((kept.next.min(kept.over), number));
        self.kept.insert(number, kept);
    }

    fn stop(&mut self, number: u64) {
        if let Some(kept) = self.kept.remove(&number) {
            self.wakes.remove(&(kept.next.min(kept.over), number));
        }
    }

    /// When a lease that was just renewed is renewed again: after a part of its time to live, less a
    /// jitter of up to a tenth of that.
    fn renewal_after(&mut self, now: Moment, ttl: Duration) -> Moment {
        now + jittered(self.options.interval(ttl), &mut self.random)
    }

    /// Processes the leases that are due. False if the client has been dropped.
    fn renew_due(&mut self) -> bool {
        let now = now();
        let Some(client) = self.client.upgrade() else {
            return false;
        };
        let client = Client {
            inner: client,
            namespace: None,
            // Its renewals are of no one request.
            context: RequestContext::default(),
        };
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
            // While a request is pending, the task must still notice that time runs out.
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
            let sent = SendTime::now();
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
        let now = now();
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
                Ok(LeaseKept::Renewed { ttl_ms, .. }) => {
                    let ttl = Duration::from_millis(ttl_ms);
                    measure::renewal("renewed");
                    kept.renewed(&batch.sent, ttl);
                    let interval = jittered(self.options.interval(ttl), &mut self.random);
                    kept.next = now.max(batch.sent.moment + interval);
                    None
                }
                Ok(LeaseKept::Undecided) => {
                    measure::renewal("undecided");
                    kept.next = now + RETRY_FIRST;
                    None
                }
                Err(error) => {
                    measure::renewal("failed");
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

    /// The lease is over for its holder: the channel ends, and the last event is stored beside it.
    fn lose(&mut self, number: u64, cause: LostCause) {
        if let Some(kept) = self.kept.remove(&number) {
            self.wakes.remove(&(kept.next.min(kept.over), number));
            measure::lost_lease();
            // Unless the keeper was closed in the meantime.
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

/// So that holders that began together do not stay together.
fn jittered(interval: Duration, random: &mut fastrand::Rng) -> Duration {
    interval.mul_f64(1.0 - 0.1 * random.f64())
}

impl Inner {
    /// A random number that identifies a keeper within this client.
    fn random_number(&self) -> u64 {
        self.keepers
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }
}

impl Client {
    /// The task that renews this client's leases, started on first use.
    fn keeping(&self) -> mpsc::UnboundedSender<Order> {
        let keeping = self.inner.keeping.get_or_init(|| {
            let (orders, taken) = mpsc::unbounded_channel();
            tokio::spawn(run(Arc::downgrade(&self.inner), taken));
            orders
        });
        keeping.clone()
    }
}
