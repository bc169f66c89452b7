//! What a verification came to, for people and for programs.
//!
//! The JSON document is a contract: fields are added, never renamed; `schema` changes if one must
//! be.

use std::io;
use std::io::Write;

use serde::Serialize;

use super::faults::FaultReport;
use super::judge::{Check, Suggestion};
use crate::bench::heading::{Heading, print_for_programs};
use crate::bench::history::Findings;
use crate::cli::arguments::Format;
use crate::cli::print::{Align, table};

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-verify/1";

/// A whole verification.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of what, and where.
    #[serde(flatten)]
    pub heading: Heading,
    /// `PASS` or `FAIL`.
    pub verdict: &'static str,
    /// How long was measured, in seconds.
    pub seconds: f64,
    /// What was looked at.
    pub checks: Vec<Check>,
    /// What was done to leaders, and what came of it.
    pub faults: Vec<FaultReport>,
    /// What clients saw, while nothing was broken and while something was.
    pub histories: Vec<Findings>,
    /// Settings that this hardware bears; nothing if too little is known.
    pub suggestion: Option<Suggestion>,
    /// What should be known of these figures, as sentences.
    pub remarks: Vec<String>,
}

impl Report {
    /// How verifications begin.
    pub fn heading() -> Heading {
        Heading::begin(SCHEMA)
    }

    /// Of these checks, which decide the verdict; all that was measured began with `heading`.
    pub fn new(heading: Heading, checks: Vec<Check>) -> Self {
        let failed = checks.iter().any(|check| check.passed == Some(false));
        Self {
            heading,
            verdict: if failed { "FAIL" } else { "PASS" },
            seconds: 0.0,
            checks,
            faults: Vec::new(),
            histories: Vec::new(),
            suggestion: None,
            remarks: Vec::new(),
        }
    }

    /// The checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = self
            .checks
            .iter()
            .filter(|check| check.passed == Some(false));
        failed.map(|check| check.name).collect()
    }

    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        match format {
            Format::Table => self.print_table(out)?,
            _ => self.print_lines(out)?,
        }
        for fault in &self.faults {
            writeln!(out, "{}", fault_text(fault))?;
        }
        for violation in self
            .histories
            .iter()
            .flat_map(|findings| &findings.described)
        {
            writeln!(out, "violation: {violation}")?;
        }
        if let Some(suggestion) = &self.suggestion {
            writeln!(out, "{:<24} {}", "suggested", suggestion_text(suggestion))?;
        }
        for remark in &self.remarks {
            writeln!(out, "note: {remark}")?;
        }
        writeln!(out, "{}", self.verdict)
    }

    fn print_lines(&self, out: &mut impl Write) -> io::Result<()> {
        for check in &self.checks {
            let allowed = match check.allowed.as_str() {
                "" => String::new(),
                allowed => format!("allowed {allowed}"),
            };
            let line = format!(
                "{:<24} {:<40} {allowed:<24} {}",
                check.name,
                check.found,
                verdict(check)
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn print_table(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = [
            ("CHECK", Align::Left),
            ("FOUND", Align::Left),
            ("ALLOWED", Align::Left),
            ("VERDICT", Align::Left),
        ];
        let rows = self.checks.iter().map(|check| {
            vec![
                check.name.to_owned(),
                check.found.clone(),
                check.allowed.clone(),
                verdict(check).to_owned(),
            ]
        });
        table(out, &columns, rows)
    }
}

fn verdict(check: &Check) -> &'static str {
    match check.passed {
        Some(true) => "PASS",
        Some(false) => "FAIL",
        None => "",
    }
}

fn fault_text(fault: &FaultReport) -> String {
    let mut text = format!(
        "{:<24} {} for {:.1} s, reads silent for {:.0} ms",
        format!("fault: {}", fault.fault),
        fault.node,
        fault.lasted_ms / 1e3,
        fault.reads_silent_ms
    );
    if fault.fault == "cut" {
        text.push_str(&format!(", {} datagrams dropped", fault.dropped));
    }
    text
}

fn suggestion_text(suggestion: &Suggestion) -> String {
    let mut text = format!(
        "leader_lease.duration = {} ms, leader_lease.max_clock_skew = {} ms, \
         leader_lease.max_drift_ppm = {}, with raft.heartbeat_interval = {} ms and \
         raft.election_timeout_min = {} ms",
        suggestion.lease_duration_ms,
        suggestion.max_clock_skew_ms,
        suggestion.max_drift_ppm,
        suggestion.heartbeat_interval_ms,
        suggestion.election_timeout_min_ms
    );
    match suggestion.heartbeat_interval_max_ms {
        Some(longest) => text.push_str(&format!(
            "; the current lease allows heartbeats up to {longest} ms apart"
        )),
        None => text.push_str("; the current lease allows no heartbeat interval"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, passed: Option<bool>) -> Check {
        Check {
            name,
            found: "1 ms".to_owned(),
            allowed: "2 ms".to_owned(),
            passed,
        }
    }

    #[test]
    fn one_check_that_fails_fails_the_whole() {
        let good = Report::new(
            Report::heading(),
            vec![check("a", Some(true)), check("b", None)],
        );
        assert_eq!((good.verdict, good.failed().len()), ("PASS", 0));
        let bad = Report::new(
            Report::heading(),
            vec![check("a", Some(true)), check("b", Some(false))],
        );
        assert_eq!((bad.verdict, bad.failed()), ("FAIL", vec!["b"]));
    }

    #[test]
    fn every_format_says_the_verdict() {
        let report = Report::new(
            Report::heading(),
            vec![check("clock drift (max)", Some(false))],
        );
        for format in [Format::Simple, Format::Table, Format::Json, Format::Fields] {
            let mut out = Vec::new();
            report.print(&mut out, format).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains("FAIL"), "{format:?}: {text}");
            assert!(text.contains("clock drift (max)"), "{format:?}: {text}");
        }
        let mut out = Vec::new();
        report.print(&mut out, Format::Simple).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.ends_with("\nFAIL\n"),
            "the last line is the verdict: {text}"
        );
    }
}
