//! What a run says of how leases ended.

use std::io;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use super::leadership::Renewals;
use super::probe::ProbeReport;
use crate::bench::figures::{duration_text, number_text};
use crate::bench::heading::{Heading, print_for_programs};
use crate::bench::tally::Latencies;
use crate::cli::arguments::Format;
use crate::cli::failure::Failure;

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-expiry/1";

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct ExpiryReport {
    /// Of what, and where.
    #[serde(flatten)]
    pub heading: Heading,
    /// Every turn of every store.
    pub runs: Vec<ExpiryRun>,
}

/// One turn of one store.
#[derive(Clone, Debug, Serialize)]
pub struct ExpiryRun {
    /// The store.
    pub store: &'static str,
    /// How many leases there were, each with a key.
    pub leases: usize,
    /// How long each lasts without a renewal.
    pub ttl_ms: u64,
    /// They were kept alive, and renewed once more together: so they were due together.
    pub due_together: bool,
    /// Grants a second.
    pub grants_per_second: f64,
    /// Renewals that were acknowledged.
    pub renewals: u64,
    /// Renewals a second while all were renewed once more, as fast as that went.
    pub renewals_per_second: Option<f64>,
    /// Requests of holders that failed.
    pub failed_requests: u64,
    /// Leases that did not exist any more although their holders renewed them. Must be 0.
    pub lost: usize,
    /// Leases that ended before they can have been due. Must be 0.
    pub early: usize,
    /// Leases whose end was seen.
    pub ended: usize,
    /// Those that were let go while the others were kept.
    pub let_go: Option<LetGoReport>,
    /// How late, counted from the answer to the last renewal: never more than the truth.
    pub late: Spread,
    /// How late, counted from its sending: never less.
    pub late_at_most: Spread,
    /// From the first moment at which one was due until the last had ended, in milliseconds.
    pub span_ms: f64,
    /// How the leader bore it.
    pub leadership: LeadershipReport,
    /// Memory of the processes, if they run here.
    pub memory: Vec<MemoryReport>,
}

/// A distribution of lateness, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// The median.
    pub p50_ms: f64,
    /// What one in a hundred exceeded.
    pub p99_ms: f64,
    /// The worst.
    pub max_ms: f64,
}

/// Leases that ended while the others were kept.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LetGoReport {
    /// How many were let go.
    pub leases: usize,
    /// How many of them were seen to end.
    pub ended: usize,
    /// How late, as of the others.
    pub late: Spread,
    /// As of the others.
    pub late_at_most: Spread,
}

/// How leadership went while leases ended.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LeadershipReport {
    /// The same leader in the same term, before and after.
    pub is_same: bool,
    /// Times that the leader's lease lapsed.
    pub lapses: Option<u64>,
    /// How regularly the leader renewed its lease.
    pub renewals: Option<Renewals>,
    /// What the leader said when it was asked all the time.
    pub probe: Option<ProbeReport>,
}

/// Memory of one process.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryReport {
    /// The process.
    pub pid: u32,
    /// Resident before there were leases.
    pub before_bytes: u64,
    /// Resident when all were granted.
    pub after_bytes: u64,
    /// The difference for each lease with its key.
    pub bytes_per_lease: f64,
}

impl Spread {
    /// Of these.
    pub fn of(latencies: &Latencies) -> Self {
        Self {
            p50_ms: millis(latencies.at(0.5)),
            p99_ms: millis(latencies.at(0.99)),
            max_ms: millis(latencies.max()),
        }
    }

    fn text(self) -> String {
        let [p50, p99, max] = [self.p50_ms, self.p99_ms, self.max_ms].map(text);
        format!("p50 {p50}  p99 {p99}  max {max}")
    }
}

/// In milliseconds, to a microsecond.
pub fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

/// A time in milliseconds, for people.
pub fn text(millis: f64) -> String {
    duration_text(Duration::from_secs_f64(millis / 1e3))
}

impl ExpiryReport {
    /// Nothing yet; notes how busy the machine is.
    pub fn begin() -> Self {
        Self {
            heading: Heading::begin(SCHEMA),
            runs: Vec::new(),
        }
    }

    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        for run in &self.runs {
            run.print(out)?;
        }
        writeln!(out, "on {}", self.heading.machine())
    }

    /// Prints it; refuses one in which leases were left over.
    ///
    /// # Errors
    /// That, or those of `out`.
    pub fn show(&self, format: Format, out: &mut impl Write) -> Result<(), Failure> {
        self.print(out, format)?;
        out.flush()?;
        self.runs.iter().try_for_each(ExpiryRun::check)
    }
}

impl ExpiryRun {
    /// Whether all leases have ended.
    ///
    /// # Errors
    /// Some have not.
    pub fn check(&self) -> Result<(), Failure> {
        if self.ended < self.leases {
            return Err(Failure::refused(format!(
                "of {} leases of {} {} ended",
                self.leases, self.store, self.ended
            )));
        }
        Ok(())
    }

    /// Prints it, for people.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let due = match self.due_together {
            true => "due together",
            false => "due as they were granted",
        };
        writeln!(
            out,
            "{}: {} leases of {}, {due}",
            self.store,
            number_text(self.leases as f64),
            text(self.ttl_ms as f64)
        )?;
        writeln!(
            out,
            "  late       {}  (from the answer to the last renewal: never more than the truth)",
            self.late.text()
        )?;
        writeln!(
            out,
            "  at most    {}  (from its sending)",
            self.late_at_most.text()
        )?;
        writeln!(
            out,
            "  ended      {} within {}; {} early, {} lost while they were kept",
            number_text(self.ended as f64),
            text(self.span_ms),
            self.early,
            self.lost
        )?;
        writeln!(
            out,
            "  before     {} grants per second, {} renewals, {} requests failed",
            number_text(self.grants_per_second),
            number_text(self.renewals as f64),
            self.failed_requests
        )?;
        if let Some(rate) = self.renewals_per_second {
            writeln!(
                out,
                "  renewed    all once more, {} a second",
                number_text(rate)
            )?;
        }
        if let Some(let_go) = &self.let_go {
            writeln!(
                out,
                "  let go     {} of {} that ended while the others were kept: late {}; at most {}",
                number_text(let_go.ended as f64),
                number_text(let_go.leases as f64),
                let_go.late.text(),
                let_go.late_at_most.text()
            )?;
        }
        self.leadership.print(out)?;
        for memory in &self.memory {
            writeln!(
                out,
                "  memory     process {}: {:.0} MiB before, {:.0} MiB with all leases: {} bytes \
                 per lease and key",
                memory.pid,
                memory.before_bytes as f64 / f64::from(1 << 20),
                memory.after_bytes as f64 / f64::from(1 << 20),
                number_text(memory.bytes_per_lease)
            )?;
        }
        Ok(())
    }
}

impl LeadershipReport {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let same = match self.is_same {
            true => "the same throughout",
            false => "CHANGED",
        };
        write!(out, "  leader     {same}")?;
        if let Some(lapses) = self.lapses {
            write!(out, "; its lease lapsed {lapses} times")?;
        }
        if let Some(renewals) = &self.renewals {
            write!(
                out,
                "; {} of {} renewals late by a heartbeat, the longest interval {}",
                renewals.late,
                number_text(renewals.count as f64),
                text(renewals.longest_ms)
            )?;
        }
        writeln!(out)?;
        if let Some(probe) = &self.probe {
            writeln!(
                out,
                "  reads      {} under its lease alone: {} refused, {} unanswered, the longest gap {}",
                number_text(probe.asked as f64),
                probe.refused,
                probe.unanswered,
                text(probe.longest_gap_ms)
            )?;
        }
        Ok(())
    }
}
