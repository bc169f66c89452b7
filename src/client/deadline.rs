//! Deadlines of requests: how long a caller waits, and how much of that a server learns of.

use std::time::Duration;

use tokio::time::Instant;

/// The server receives a little less than the remaining time, so that its own error arrives in
/// time.
const REPLY_SHARE: u32 = 20;
const REPLY_TIME_MAX: Duration = Duration::from_millis(50);
/// With less time than this another attempt is not worth making.
const LAST_ATTEMPT: Duration = Duration::from_millis(20);

/// The moment `timeout` from now.
pub(super) fn deadline_after(timeout: Duration) -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a caller's patience is no lease: plain elapsed time is enough"
    )]
    let now = Instant::now();
    // A deadline beyond the clock's range is none; a year will do.
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(365 * 86_400))
}

/// This moment.
pub(super) fn now() -> Instant {
    deadline_after(Duration::ZERO)
}

/// The time left until `deadline`; zero after it.
pub(super) fn remaining(deadline: Instant) -> Duration {
    #[expect(
        clippy::disallowed_methods,
        reason = "a caller's patience is no lease: plain elapsed time is enough"
    )]
    let now = Instant::now();
    deadline.saturating_duration_since(now)
}

/// The remaining time as sent to the server, in milliseconds.
pub(super) fn timeout_ms(remaining: Duration) -> u32 {
    let kept = (remaining / REPLY_SHARE).min(REPLY_TIME_MAX);
    let sent = remaining.saturating_sub(kept).as_millis().max(1);
    u32::try_from(sent).unwrap_or(u32::MAX)
}

/// The wait with this much time `left`, which leaves time for attempts as long as those make sense.
pub(super) fn within(left: Duration, back_off: Duration) -> Duration {
    match left > LAST_ATTEMPT {
        true => back_off.min(left / 2),
        false => left,
    }
}
