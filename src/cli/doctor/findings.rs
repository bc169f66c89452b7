//! What was found, and how bad it is.

use std::time::Duration;

/// Between the two readings of a node's clocks.
pub(super) const CLOCK_INTERVAL: Duration = Duration::from_secs(1);

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It works, and an operator should look at it.
    Warn,
    /// It does not work, or will not for long.
    Fail,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// What was looked at.
    pub(super) check: &'static str,
    /// Where.
    pub(super) place: String,
    /// What was found.
    pub(super) found: String,
    /// What to do; empty if nothing.
    pub(super) advice: String,
}

/// Everything that was found.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(
        &mut self,
        level: Level,
        check: &'static str,
        place: &str,
        found: impl Into<String>,
        advice: &str,
    ) {
        self.0.push(Finding {
            level,
            check,
            place: place.to_owned(),
            found: found.into(),
            advice: advice.to_owned(),
        });
    }

    pub(super) fn ok(&mut self, check: &'static str, place: &str, found: impl Into<String>) {
        self.add(Level::Ok, check, place, found, "");
    }
}

/// A part in parts of a million.
pub(super) fn ppm(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 1e6
}
