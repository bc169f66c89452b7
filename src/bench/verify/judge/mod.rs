//! From what was measured to what may be relied on. Pure.
//!
//! The symbols are those of the lease's own rules. `P` is what voters promise
//! (`leader_lease.duration`), `M` the margin (`leader_lease.max_clock_skew`), `L = P - M` what the
//! leader trusts, `H` the interval of heartbeats, `ρ` how far a clock may be off
//! (`leader_lease.max_drift_ppm`), `g` how coarse a clock may be.
//!
//! - **Safety** rests on clocks: `M >= 2 ρ P + 2 g` must hold for the `ρ` of this hardware. It
//!   fails if two clocks certainly differ by more than `ρ`, and is not proved as long as they might.
//! - **Availability** rests on time: a lease that is renewed every `H` outlives two lost heartbeats
//!   and a pause if `3 H + RTT + pause < L`. So pauses up to `L - 3 H - RTT` are borne.
//!
//! The suggestion turns both round. A minute has not seen the worst, so it counts the longest pause
//! twice and the drift ten times, and never less than 1000 ppm: what a crystal may be off, and what
//! NTP may slew, whatever a minute shows.

use std::time::Duration;

use serde::Serialize;

use super::clocks::Rate;
use crate::api::{Distribution, LeaseTiming};
use crate::bench::figures::{duration_text, number_text};
use crate::bench::history::Findings;
use crate::raft::{Timing, TimingOptions};

/// Of a hundred reads, so many may need a quorum round.
const FALLBACK_PERCENT_MAX: f64 = 1.0;
/// The least drift that is reckoned with.
const DRIFT_PPM_MIN: f64 = 1_000.0;
/// What is measured in a minute is not the worst of a year.
const DRIFT_FACTOR: f64 = 10.0;
const PAUSE_FACTOR: u32 = 2;
/// To what suggestions are rounded up.
const LEASE_STEP: Duration = Duration::from_millis(10);
const SKEW_STEP: Duration = Duration::from_millis(1);

/// What was measured while nothing was broken on purpose.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// The nodes run on this machine, so their clocks are one.
    pub same_machine: bool,
    /// What voters promise.
    pub lease_duration: Duration,
    /// The margin.
    pub max_clock_skew: Duration,
    /// The other settings.
    pub timing: LeaseTiming,
    /// The largest difference between any two clocks of a kind, of the nodes and of this machine.
    pub drift: Option<Rate>,
    /// What NTP did to a node's boot clock, where it did most.
    pub slew: Option<Rate>,
    /// Spans of a lease's length in which two clocks certainly differed by more than is allowed.
    pub clock_excesses: usize,
    /// How late a thread of this machine got to run, at the 99.9th percentile and at worst.
    pub pulse: (Duration, Duration),
    /// How late the nodes acted on what was due.
    pub timer_delay: Distribution,
    /// From the beginning of a round until a quorum had answered.
    pub round_trip: Distribution,
    /// From one renewal to the next.
    pub renew_interval: Distribution,
    /// Times a lease lapsed.
    pub expirations: u64,
    /// Questions under the lease that a leader answered.
    pub probes_answered: u64,
    /// Those that it refused because its lease was void.
    pub probes_refused: u64,
    /// The longest time between two answers under the lease.
    pub longest_gap: Duration,
    /// Reads of clients that were answered under the lease.
    pub reads_leased: u64,
    /// Reads of clients that were answered.
    pub reads: u64,
    /// What nodes warn of.
    pub warnings: Vec<String>,
}

impl Measurements {
    /// L = P - M.
    fn trusted(&self) -> Duration {
        self.lease_duration.saturating_sub(self.max_clock_skew)
    }

    /// The longest pause of anything that a lease waits for.
    fn pause(&self) -> Duration {
        let nodes = self.timer_delay.max();
        // Another machine's scheduler keeps no node of a distant cluster waiting.
        if self.same_machine {
            nodes.max(self.pulse.1)
        } else {
            nodes
        }
    }

    fn round_trip_p999(&self) -> Duration {
        self.round_trip.at(0.999)
    }
}

/// Whether something may be relied on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub found: String,
    /// What is allowed; empty where nothing is.
    pub allowed: String,
    /// Whether that holds; `None` where it is only reported.
    pub passed: Option<bool>,
}

/// Settings that this hardware bears, by what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// `leader_lease.duration`.
    pub lease_duration_ms: u64,
    /// `leader_lease.max_clock_skew`.
    pub max_clock_skew_ms: u64,
    /// `leader_lease.max_drift_ppm`.
    pub max_drift_ppm: u32,
    /// `raft.heartbeat_interval`: as it is.
    pub heartbeat_interval_ms: u64,
    /// `raft.election_timeout_min`: as it is, or as a longer lease needs it.
    pub election_timeout_min_ms: u64,
    /// The longest `raft.heartbeat_interval` that the present lease bears; nothing if it bears none.
    pub heartbeat_interval_max_ms: Option<u64>,
}

/// Looks at everything.
pub fn judge(measured: &Measurements, history: &[Findings]) -> Vec<Check> {
    let mut checks = vec![drift(measured), excesses(measured)];
    if let Some(slew) = measured.slew {
        checks.push(told("clock slew by NTP (max)", rate_text(slew)));
    }
    checks.push(pause(measured));
    checks.push(told(
        "late wake-ups here",
        format!(
            "p99.9 {} max {}",
            duration_text(measured.pulse.0),
            duration_text(measured.pulse.1)
        ),
    ));
    checks.push(told(
        "heartbeat RTT",
        format!(
            "p50 {} p99.9 {} max {}",
            duration_text(measured.round_trip.at(0.5)),
            duration_text(measured.round_trip_p999()),
            duration_text(measured.round_trip.max())
        ),
    ));
    checks.push(renewals(measured));
    checks.push(gaps(measured));
    checks.push(fallbacks(measured));
    if !measured.warnings.is_empty() {
        checks.push(Check {
            name: "warnings of nodes",
            found: measured.warnings.join("; "),
            allowed: "none".to_owned(),
            passed: Some(false),
        });
    }
    checks.push(linearizability(history));
    checks
}

/// Looks at a history alone, which may be one of reads only.
pub fn of_history(findings: &Findings) -> Vec<Check> {
    let check = linearizability(std::slice::from_ref(findings));
    vec![Check {
        passed: Some(findings.violations == 0),
        ..check
    }]
}

fn told(name: &'static str, found: String) -> Check {
    Check {
        name,
        found,
        allowed: String::new(),
        passed: None,
    }
}

fn drift(measured: &Measurements) -> Check {
    let allowed = f64::from(measured.timing.max_drift_ppm);
    let Some(drift) = measured.drift else {
        return Check {
            name: "clock drift (max)",
            found: "too few samples: measure longer".to_owned(),
            allowed: format!("{allowed} ppm"),
            passed: Some(false),
        };
    };
    let mut found = rate_text(drift);
    if measured.same_machine {
        found.push_str(" (one machine)");
    }
    // Might differ by more, and does not certainly: also not good enough, but longer is the cure.
    if drift.bound() > allowed && drift.ppm.abs() - drift.error_ppm <= allowed {
        found.push_str(", not known precisely enough: measure longer");
    }
    Check {
        name: "clock drift (max)",
        found,
        allowed: format!("{allowed} ppm"),
        passed: Some(drift.bound() <= allowed),
    }
}

fn excesses(measured: &Measurements) -> Check {
    Check {
        name: "clock steps",
        found: measured.clock_excesses.to_string(),
        allowed: format!("0 within {}", duration_text(measured.lease_duration)),
        passed: Some(measured.clock_excesses == 0),
    }
}

fn pause(measured: &Measurements) -> Check {
    let heartbeats = measured.timing.heartbeat_interval * 3;
    let borne = measured
        .trusted()
        .checked_sub(heartbeats + measured.round_trip_p999());
    Check {
        name: "scheduler pause (max)",
        found: duration_text(measured.pause()),
        allowed: borne.map_or_else(|| "none".to_owned(), duration_text),
        passed: Some(borne.is_some_and(|borne| measured.pause() <= borne)),
    }
}

fn renewals(measured: &Measurements) -> Check {
    let interval = &measured.renew_interval;
    Check {
        name: "lease renew interval",
        found: format!(
            "p50 {} p99.9 {} max {}",
            duration_text(interval.at(0.5)),
            duration_text(interval.at(0.999)),
            duration_text(interval.max())
        ),
        allowed: duration_text(measured.trusted()),
        passed: Some(interval.count() > 0 && interval.max() < measured.trusted()),
    }
}

fn gaps(measured: &Measurements) -> Check {
    let asked = measured.probes_answered + measured.probes_refused;
    let is_whole = measured.expirations == 0 && measured.probes_refused == 0;
    let longest = duration_text(measured.longest_gap);
    Check {
        name: "lease gaps",
        found: match is_whole {
            true => format!("0, at most {longest} between leased reads"),
            false => format!(
                "expired {}, {} of {} leased reads refused, {longest} without one",
                match measured.expirations {
                    1 => "once".to_owned(),
                    times => format!("{times} times"),
                },
                number_text(measured.probes_refused as f64),
                number_text(asked as f64)
            ),
        },
        allowed: "0".to_owned(),
        passed: Some(is_whole && measured.probes_answered > 0),
    }
}

fn fallbacks(measured: &Measurements) -> Check {
    let other = measured.reads.saturating_sub(measured.reads_leased);
    let percent = match measured.reads {
        0 => 100.0,
        reads => 100.0 * other as f64 / reads as f64,
    };
    Check {
        name: "reads that fell back",
        found: format!("{percent:.2} %"),
        allowed: format!("{FALLBACK_PERCENT_MAX} %"),
        passed: Some(percent <= FALLBACK_PERCENT_MAX),
    }
}

fn linearizability(history: &[Findings]) -> Check {
    let sum = |of: fn(&Findings) -> u64| history.iter().map(of).sum::<u64>();
    let violations = sum(|findings| findings.violations);
    let (reads, writes) = (
        sum(|findings| findings.reads),
        sum(|findings| findings.writes),
    );
    Check {
        name: "linearizability",
        found: format!(
            "{} reads, {} writes, {violations} violations",
            number_text(reads as f64),
            number_text(writes as f64)
        ),
        allowed: "0".to_owned(),
        // A history without reads or writes proves nothing.
        passed: Some(violations == 0 && reads > 0 && writes > 0),
    }
}

/// What this hardware bears; nothing if too little is known.
pub fn suggest(measured: &Measurements) -> Option<Suggestion> {
    let timing = measured.timing;
    let drift = measured.drift?.bound().max(0.0) * DRIFT_FACTOR;
    let drift = (drift.max(DRIFT_PPM_MIN) / 100.0).ceil() * 100.0;
    let drift_ppm = if drift < 100_000.0 {
        drift as u32
    } else {
        return None;
    };
    let waits = measured.round_trip_p999() + measured.pause() * PAUSE_FACTOR;
    let needed = timing.heartbeat_interval * 3 + waits;
    // The shortest P for which P - M(P) is enough; M grows with P, but much more slowly.
    let mut lease = LEASE_STEP;
    let lease = loop {
        let skew = skew(lease, drift_ppm, timing.clock_granularity);
        if lease
            .checked_sub(skew)
            .is_some_and(|trusted| trusted >= needed)
        {
            break lease;
        }
        lease += LEASE_STEP;
        if lease > Duration::from_secs(60) {
            return None;
        }
    };
    let skew = skew(lease, drift_ppm, timing.clock_granularity);
    let election_min = timing
        .election_timeout_min
        .max(rounded(lease * 11 / 10, LEASE_STEP));
    let longest = measured.trusted().checked_sub(waits).map(|left| left / 3);
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let suggestion = Suggestion {
        lease_duration_ms: millis(lease),
        max_clock_skew_ms: millis(skew),
        max_drift_ppm: drift_ppm,
        heartbeat_interval_ms: millis(timing.heartbeat_interval),
        election_timeout_min_ms: millis(election_min),
        heartbeat_interval_max_ms: longest.map(millis).filter(|longest| *longest > 0),
    };
    // A suggestion that a node would refuse would be worse than none.
    suggestion.is_accepted(measured).then_some(suggestion)
}

impl Suggestion {
    /// Whether a node would take these settings, the longest timeouts raised where they must be.
    fn is_accepted(&self, measured: &Measurements) -> bool {
        let timing = measured.timing;
        let lease = Duration::from_millis(self.lease_duration_ms);
        let election_min = Duration::from_millis(self.election_timeout_min_ms);
        let election_max = timing.election_timeout_max.max(election_min * 2);
        Timing::new(TimingOptions {
            heartbeat_interval: timing.heartbeat_interval,
            election_timeout_min: election_min,
            election_timeout_max: election_max,
            step_down_after: timing.step_down_after.clamp(lease, election_max),
            lease_duration: lease,
            max_clock_skew: Duration::from_millis(self.max_clock_skew_ms),
            max_drift_ppm: self.max_drift_ppm,
            clock_granularity: timing.clock_granularity,
            ..TimingOptions::default()
        })
        .is_ok()
    }
}

/// M for this P, rounded up.
fn skew(lease: Duration, drift_ppm: u32, granularity: Duration) -> Duration {
    let drifted = lease.as_nanos() * u128::from(drift_ppm) * 2 / 1_000_000;
    let drifted = Duration::from_nanos(u64::try_from(drifted).unwrap_or(u64::MAX));
    rounded(drifted + granularity * 2, SKEW_STEP)
}

/// Up to the next multiple of `step`.
fn rounded(time: Duration, step: Duration) -> Duration {
    let steps = time.as_nanos().div_ceil(step.as_nanos());
    step * u32::try_from(steps).unwrap_or(u32::MAX)
}

fn rate_text(rate: Rate) -> String {
    format!("{:.1} ± {:.1} ppm", rate.ppm.abs(), rate.error_ppm)
}

#[cfg(test)]
mod tests;
