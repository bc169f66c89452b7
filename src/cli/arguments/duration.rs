//! How long, as it is typed.

use std::time::Duration;

/// Whole seconds, as etcdctl takes them, or a number with its unit.
pub(in crate::cli) fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    humantime::parse_duration(text)
        .map_err(|_| "write seconds, or a number with its unit, for example 2 or 500ms".to_owned())
}

/// A deadline, of a request or of a connection.
pub(in crate::cli) fn parse_timeout(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(timeout) if (1..=3_600_000).contains(&timeout.as_millis()) => Ok(timeout),
        _ => Err(
            "write seconds, or a number with its unit, between 1ms and 1h, for example 5 or 500ms"
                .to_owned(),
        ),
    }
}
