//! How fast states are sent: one rate for all receivers together.

use std::time::Duration;

use tokio::time::Instant;

use crate::sync::Mutex;

/// Shares a rate out.
#[derive(Debug)]
pub(crate) struct SendRate {
    bytes_per_second: u64,
    /// When what was let through so far would be sent at the rate.
    next: Mutex<Option<Instant>>,
}

impl SendRate {
    pub(crate) fn new(bytes_per_second: u64) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(None),
        }
    }

    /// Waits until `bytes` more may be sent.
    pub(crate) async fn wait(&self, bytes: usize) {
        let at = self.at(bytes, now());
        tokio::time::sleep_until(at).await;
    }

    /// When `bytes` may be sent that somebody wants to send at `now`. What was not used is not saved
    /// up.
    fn at(&self, bytes: usize, now: Instant) -> Instant {
        let mut next = self.next.lock();
        let at = next.map_or(now, |next| next.max(now));
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *next = Some(at + takes);
        at
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how fast something is sent; no lease hangs on it"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_shared_and_what_was_not_used_is_lost() {
        let rate = SendRate::new(1000);
        let begin = now();
        let after = |millis| begin + Duration::from_millis(millis);
        assert_eq!(rate.at(500, begin), begin);
        assert_eq!(rate.at(100, begin), after(500), "whoever asks");
        assert_eq!(rate.at(100, after(100)), after(600));
        assert_eq!(rate.at(100, after(5000)), after(5000));
        assert_eq!(rate.at(100, after(5000)), after(5100));
    }
}
