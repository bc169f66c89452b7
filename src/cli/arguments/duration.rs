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
