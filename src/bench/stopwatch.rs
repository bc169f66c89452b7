//! Elapsed time.

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
