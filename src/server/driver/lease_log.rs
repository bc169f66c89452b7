//! Why client leases ended, for the log.
//!
//! Each end is worth a line while there are few; when a thousand end in a second, a line each would
//! bury everything else and cost the driver its time. So some are named, and the rest is told as a
//! number: once a second, and when nothing is left that is due.

use std::time::{Duration, Instant};

use crate::clock::DISRUPTION;
use crate::kv::LeaseEnd;
use crate::node::{Lapse, LeaseCounts, LeaseTotals};
use crate::server::metrics::stopwatch;

/// Maximum number of ended leases with a line of their own per [`PERIOD`].
const NAMED_MAX: usize = 16;
const PERIOD: Duration = Duration::from_secs(1);

/// What was logged in this period, and what is still to be logged.
pub(crate) struct LeaseLog {
    began: Instant,
    named: usize,
    unnamed: UnnamedEnds,
}

/// Ended leases without a line of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UnnamedEnds {
    expired: u64,
    revoked: u64,
}

impl LeaseLog {
    pub(crate) fn new() -> Self {
        Self {
            began: stopwatch(),
            named: 0,
            unnamed: UnnamedEnds::default(),
        }
    }

    /// Logs what happened to leases at the node `name`, within the limit.
    pub(crate) fn tell(&mut self, name: &str, counts: &LeaseCounts, totals: LeaseTotals) {
        for lapse in &counts.lapses {
            let why = lapse_reason(*lapse);
            tracing::warn!(
                node = %name,
                leases = totals.leases,
                "all client leases extended to their full TTL: {why}"
            );
        }
        if counts.expired + counts.revoked == 0 && self.unnamed == UnnamedEnds::default() {
            return;
        }
        let is_new = self.began.elapsed() >= PERIOD;
        if is_new {
            self.began = stopwatch();
            self.named = 0;
        }
        self.unnamed.expired += counts.expired;
        self.unnamed.revoked += counts.revoked;
        for (lease, cause) in &counts.ended {
            if self.named == NAMED_MAX {
                break;
            }
            self.named += 1;
            self.unnamed.forget(*cause);
            let why = reason(*cause);
            tracing::info!(
                node = %name,
                lease = %format_args!("{:016x}", lease.id),
                "client lease ended: {why}"
            );
        }
        if self.unnamed != UnnamedEnds::default() && (is_new || totals.expiring == 0) {
            let UnnamedEnds { expired, revoked } = std::mem::take(&mut self.unnamed);
            tracing::info!(node = %name, expired, revoked, "more client leases ended");
        }
    }
}

impl UnnamedEnds {
    fn forget(&mut self, cause: LeaseEnd) {
        let of = match cause {
            LeaseEnd::Expired => &mut self.expired,
            LeaseEnd::Revoked => &mut self.revoked,
        };
        *of = of.saturating_sub(1);
    }
}

fn lapse_reason(lapse: Lapse) -> String {
    match lapse {
        Lapse::StoodStill(time) if time >= DISRUPTION => {
            "the hypervisor disrupted the clocks of this machine, for how long is not known"
                .to_owned()
        }
        Lapse::StoodStill(time) => format!(
            "this leader was paused for {time:.1?} and could renew no lease; is the machine \
             overloaded, or was it suspended?"
        ),
        Lapse::ClockWentBack => "a clock of this machine went backwards".to_owned(),
        Lapse::NoQuorum(time) => {
            format!("no majority answered this leader for {time:.1?}, so it could renew no lease")
        }
    }
}

fn reason(cause: LeaseEnd) -> &'static str {
    match cause {
        LeaseEnd::Expired => "it was not renewed in time",
        LeaseEnd::Revoked => "it was revoked",
    }
}
