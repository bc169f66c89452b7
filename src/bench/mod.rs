//! Load on a cluster, and how the cluster bears it: `leasehold bench` and `leasehold verify`.
//!
//! A [`generator`] puts a [`load`] on a [`store`] and keeps a [`tally`]; a [`report`] says what
//! came of it. Two ways of asking: in a *closed loop* each client sends its next request when the
//! last one is answered, which finds out how much a store can do, and hides how long requests wait
//! when it cannot keep up; in an *open loop* ([`pace`]) requests are due at times that do not
//! depend on answers, and their latency counts from when they were due. That is the answer to
//! coordinated omission: a store that stalls delays every request that would have been made
//! meanwhile, not one.
//!
//! Other stores take the same load behind the same trait, in turns in the same run: absolute
//! figures move with the machine and its mood, ratios of neighbours much less.
//!
//! Left out: ranges, deletes, and loads from several machines at once.

pub mod cluster;
pub mod command;
pub mod cpu;
pub mod cpu_share;
pub mod expiry;
pub mod feed;
pub mod figures;
pub mod gap;
pub mod generator;
pub mod heading;
pub mod history;
pub mod leasehold;
pub mod load;
pub mod memory;
pub mod overload;
pub mod pace;
pub mod pacemaker;
pub mod process;
pub mod progress;
pub mod renewals;
pub mod report;
pub mod store;
pub mod tally;
pub mod verify;
pub mod watch;
pub mod watched;

use std::time::{Duration, Instant};

/// Elapsed time since a beginning.
pub trait Stopwatch {
    /// How long ago the beginning was; zero before it.
    fn elapsed(&self) -> Duration;
}

/// The machine's monotonic clock. Good for latencies; nothing here holds a lease by it.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    began: Instant,
}

impl Wall {
    /// Begins now.
    pub fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "a bench measures time and holds no lease by it: plain elapsed time is enough"
        )]
        let began = Instant::now();
        Self { began }
    }

    /// The same clock with a beginning `later`.
    #[must_use]
    pub fn later(self, later: Duration) -> Self {
        Self {
            began: self.began + later,
        }
    }
}

impl Stopwatch for Wall {
    fn elapsed(&self) -> Duration {
        // Saturates at zero before the beginning.
        self.began.elapsed()
    }
}
