//! A lease that is kept alive: how long it is valid, which events its holder receives, and what its task keeps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::deadline::now;
use super::measure::Presence;
use crate::api::{Error, LeaseRef};
use crate::clock::SystemClock;
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant as Moment;

/// Assumed maximum drift of the holder's and the leader's clock, each, in parts per million.
const DRIFT_PPM: u128 = 20_000;
const GRANULARITY: Duration = Duration::from_millis(1);
pub(super) const RETRY_FIRST: Duration = Duration::from_millis(25);

/// Of its time to live, what passes at most before a lease is renewed: a third.
pub(super) const FRACTION: u32 = 3;
/// And at least, unless the program wants less: an eighth.
const FRACTION_LEAST: u32 = 8;
/// The pause that a holder outlives if its time to live is long enough: four seconds, and what the
/// renewal after it takes.
const PAUSE: Duration = Duration::from_millis(4_150);

/// How the leases of a client are kept alive.
///
/// ```
/// use leasehold::client::{ConnectOptions, KeepAliveOptions};
///
/// // Five times in the time to live of a lease.
/// let keep_alive = KeepAliveOptions::new().with_renew_after(0.2);
/// let options = ConnectOptions::new().with_keep_alive(keep_alive);
/// # drop(options);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeepAliveOptions {
    renew_after: Option<f64>,
}

impl KeepAliveOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Renews a lease when this fraction of its time to live has passed; less than 0.01 counts as
    /// that, and more than 0.9 as that. What is left is how long a holder, or the cluster, may pause
    /// before the lease is lost. Default: a third, and less where a pause of four seconds fits only
    /// then: 0.13 of a TTL of 5 s, 0.27 of 6 s.
    #[must_use]
    pub fn with_renew_after(mut self, fraction: f64) -> Self {
        self.renew_after = Some(fraction);
        self
    }

    /// How long after a renewal was sent a lease of `ttl` is renewed again.
    pub(super) fn interval(self, ttl: Duration) -> Duration {
        if let Some(fraction) = self.renew_after.filter(|fraction| !fraction.is_nan()) {
            return ttl.mul_f64(fraction.clamp(0.01, 0.9));
        }
        let third = ttl / FRACTION;
        let for_pause = usable(ttl).saturating_sub(PAUSE);
        match for_pause >= ttl / FRACTION_LEAST {
            true => third.min(for_pause),
            // The lease is too short for the pause: renewals would only cost.
            false => third,
        }
    }
}

/// An event in the life of a lease that is kept alive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepAliveEvent {
    /// The lease was renewed.
    Renewed {
        /// The lease's time to live.
        ttl: Duration,
        /// Remaining validity from now on.
        remaining: Duration,
    },
    /// A renewal failed, and is retried.
    Retrying {
        /// The error.
        error: Error,
    },
    /// Less than a third of the time to live remains, and no renewal has succeeded.
    AtRisk {
        /// Remaining validity from now on.
        remaining: Duration,
    },
    /// The lease is no longer valid. The last event.
    Lost {
        /// The cause.
        cause: LostCause,
    },
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostCause {
    /// No renewal succeeded in time; the cluster may keep the lease a little longer.
    Unreachable,
    /// The cluster ended the lease, because no renewal had arrived in time.
    Expired,
    /// The lease was revoked.
    Revoked,
    /// The cluster knows no such lease.
    NotFound,
    /// The client was closed.
    ClientClosed,
    /// The program closed the lease.
    Closed,
    /// The key of what was held was deleted: by another client, or because the lease was revoked.
    Deleted,
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "no renewal succeeded in time",
            Self::Expired => "the cluster ended it because no renewal had arrived in time",
            Self::Revoked => "it was revoked",
            Self::NotFound => "the cluster has no such lease",
            Self::ClientClosed => "the client was closed",
            Self::Closed => "the application gave it up",
            Self::Deleted => "its key was deleted",
        })
    }
}

/// The moment at which a request was sent, by both clocks and by tokio's.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendTime {
    pub(super) clock: Instant,
    pub(super) moment: Moment,
}

impl SendTime {
    /// Must be read before the request is sent.
    pub(super) fn now() -> Self {
        Self {
            clock: SystemClock.now(),
            moment: now(),
        }
    }
}

/// How long a holder may rely on a lease of `ttl`, counted from when its renewal was sent.
pub(super) fn usable(ttl: Duration) -> Duration {
    let kept = ttl.saturating_sub(GRANULARITY).as_nanos();
    let kept = kept * (1_000_000 - DRIFT_PPM) / (1_000_000 + DRIFT_PPM);
    let kept = u64::try_from(kept).unwrap_or(u64::MAX);
    Duration::from_nanos(kept).saturating_sub(GRANULARITY)
}

#[derive(Debug)]
pub(super) struct LeaseState {
    pub(super) deadline: Mutex<Deadline>,
    pub(super) lost: watch::Sender<Option<LostCause>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub(super) clock: Instant,
    pub(super) ttl: Duration,
}

impl LeaseState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Deadline> {
        self.deadline.lock()
    }

    pub(super) fn remaining(&self) -> Duration {
        let (now, deadline) = (SystemClock.now(), self.lock().clock);
        match now.certainly_before(deadline) {
            true => deadline.at_least_since(now),
            false => Duration::ZERO,
        }
    }
}

/// A command to the task that renews leases.
#[derive(Debug)]
pub(super) enum Order {
    Keep(u64, Box<KeptLease>),
    Stop(u64),
}

/// A lease, as the task knows it.
#[derive(Debug)]
pub(super) struct KeptLease {
    pub(super) lease: LeaseRef,
    pub(super) ttl: Duration,
    pub(super) shared: Arc<LeaseState>,
    pub(super) events: mpsc::Sender<KeepAliveEvent>,
    /// The end of its validity, by tokio's clock: only to wake up, and to lose the lease early.
    pub(super) over: Moment,
    /// The time of the next check.
    pub(super) next: Moment,
    pub(super) retry: Duration,
    pub(super) in_flight: bool,
    pub(super) at_risk: bool,
    pub(super) _presence: Presence,
}

impl KeptLease {
    /// Records that a renewal `sent` at that moment was acknowledged.
    pub(super) fn renewed(&mut self, sent: &SendTime, ttl: Duration) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s15_a_lease_of_five_seconds_outlives_a_pause_of_four() {
        let default = KeepAliveOptions::new();
        let ms = Duration::from_millis;
        for ttl_ms in [5_000, 5_500, 6_000, 6_500, 7_000, 10_000, 60_000] {
            let ttl = ms(ttl_ms);
            let left = usable(ttl) - default.interval(ttl);
            assert!(left > ms(4_100), "{ttl:?}: {left:?}");
            assert!(default.interval(ttl) <= ttl / 3);
            assert!(
                default.interval(ttl) >= ttl / 8,
                "renewals have their price"
            );
        }
        for ttl_ms in [500, 2_000, 4_500, 8_000, 3_600_000] {
            assert_eq!(default.interval(ms(ttl_ms)), ms(ttl_ms) / 3);
        }
        let chosen = |fraction| KeepAliveOptions::new().with_renew_after(fraction);
        assert_eq!(chosen(0.5).interval(ms(5_000)), ms(2_500));
        assert_eq!(chosen(0.0).interval(ms(5_000)), ms(50));
        assert_eq!(chosen(7.0).interval(ms(5_000)), ms(4_500));
        assert_eq!(chosen(f64::NAN).interval(ms(9_000)), ms(3_000));
    }

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
