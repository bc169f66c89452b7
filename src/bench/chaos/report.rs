//! What came of breaking a cluster, for people and for programs.
//!
//! The JSON document is a contract: fields are added, never renamed; `schema` changes if one must be.

use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use crate::bench::figures::number_text;
use crate::bench::heading::{Heading, print_for_programs};
use crate::bench::history::{Findings, Violation};
use crate::bench::verify::workload::Counts;
use crate::cli::arguments::Format;
use crate::cli::arguments::bench::ChaosFault;
use crate::cli::failure::Failure;

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-chaos/1";
/// Violations that are described; more are only counted.
const DESCRIBED_MAX: usize = 10;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// Where.
    #[serde(flatten)]
    heading: Heading,
    /// `PASS` or `FAIL`.
    verdict: &'static str,
    /// The turns follow from it.
    seed: u64,
    /// How long the cluster was broken, in seconds.
    seconds: f64,
    /// How often each was done.
    faults: BTreeMap<&'static str, u64>,
    /// Reads that were answered.
    reads: u64,
    /// Writes that were acknowledged.
    writes: u64,
    /// Operations that failed, or whose fate is not known.
    unanswered: u64,
    /// Failures of the clients, by code.
    failures: BTreeMap<&'static str, u64>,
    /// The longest time in which no client was answered a read, in milliseconds.
    longest_silence_ms: f64,
    /// Rules broken, in all.
    violations: u64,
    /// The first of them.
    described: Vec<Violation>,
    /// The process was asked to stop before the time was over.
    #[serde(rename = "interrupted")]
    pub(super) is_interrupted: bool,
    /// Why it could not go on: the cluster has not come back to life, or a process has ended by itself.
    trouble: Option<String>,
}

impl Report {
    pub(super) fn begin(seed: u64) -> Self {
        Self {
            heading: Heading::begin(SCHEMA),
            verdict: "PASS",
            seed,
            seconds: 0.0,
            faults: BTreeMap::new(),
            reads: 0,
            writes: 0,
            unanswered: 0,
            failures: BTreeMap::new(),
            longest_silence_ms: 0.0,
            violations: 0,
            described: Vec::new(),
            is_interrupted: false,
            trouble: None,
        }
    }

    /// A fault was inflicted.
    pub(super) fn count(&mut self, fault: ChaosFault) {
        *self.faults.entry(fault.name()).or_default() += 1;
    }

    /// A history was judged.
    pub(super) fn add(&mut self, counts: &Counts, findings: Findings) {
        self.reads += findings.reads;
        self.writes += findings.writes;
        self.unanswered += findings.unanswered;
        self.violations += findings.violations;
        self.described.extend(findings.described);
        self.described.truncate(DESCRIBED_MAX);
        for (code, count) in &counts.failures {
            *self.failures.entry(code).or_default() += count;
        }
        let silence = (counts.longest_silence.as_secs_f64() * 1e6).round() / 1e3;
        self.longest_silence_ms = self.longest_silence_ms.max(silence);
    }

    /// Keeps the first reason for which it could not go on.
    pub(super) fn note(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.trouble.get_or_insert_with(|| failure.to_string());
        }
    }

    /// All is over, after this time.
    pub(super) fn end(&mut self, length: Duration) {
        self.heading.end();
        self.seconds = (length.as_secs_f64() * 1e3).round() / 1e3;
        self.verdict = match self.failure() {
            None => "PASS",
            Some(_) => "FAIL",
        };
    }

    pub(super) fn has_violations(&self) -> bool {
        self.violations > 0
    }

    /// What the command ends with, if the cluster has not kept its promises.
    pub(super) fn failure(&self) -> Option<String> {
        let again = format!("the turns come again with --seed {}", self.seed);
        match (&self.trouble, self.violations) {
            (_, count @ 1..) => Some(format!(
                "what clients saw is not linearizable: {count} violations; {again}"
            )),
            (Some(trouble), 0) => Some(format!("{trouble}; {again}")),
            (None, 0) if self.reads == 0 && !self.is_interrupted => Some(
                "no read was answered, so nothing can be said: let it run for longer".to_owned(),
            ),
            (None, 0) if self.writes == 0 && !self.is_interrupted => Some(
                "no write was acknowledged, so none could be lost: let it run for longer"
                    .to_owned(),
            ),
            (None, 0) => None,
        }
    }

    /// A line of progress.
    pub(super) fn so_far(&self) -> String {
        let faults: u64 = self.faults.values().sum();
        format!(
            "{faults} faults, {} reads, {} writes, {} violations",
            number_text(self.reads as f64),
            number_text(self.writes as f64),
            self.violations
        )
    }

    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub(super) fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        let counts = |counts: &BTreeMap<&str, u64>| {
            let each = counts.iter().map(|(name, count)| format!("{count} {name}"));
            match counts.is_empty() {
                true => "none".to_owned(),
                false => each.collect::<Vec<_>>().join(", "),
            }
        };
        for (name, value) in [
            ("seed", self.seed.to_string()),
            ("time", format!("{:.1} s", self.seconds)),
            ("faults", counts(&self.faults)),
            ("reads answered", self.reads.to_string()),
            ("writes acknowledged", self.writes.to_string()),
            ("unanswered", self.unanswered.to_string()),
            ("failures", counts(&self.failures)),
            (
                "longest silence",
                format!("{:.0} ms", self.longest_silence_ms),
            ),
            ("violations", self.violations.to_string()),
        ] {
            writeln!(out, "{name:<24} {value}")?;
        }
        for violation in &self.described {
            writeln!(out, "violation: {violation}")?;
        }
        if self.is_interrupted {
            writeln!(out, "note: interrupted before the time was over")?;
        }
        if let Some(trouble) = &self.trouble {
            writeln!(out, "trouble: {trouble}")?;
        }
        writeln!(out, "{}", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(reads: u64, violations: u64) -> Findings {
        let described = Violation {
            rule: "a rule",
            what: "broken".to_owned(),
        };
        Findings {
            reads,
            writes: 1,
            unanswered: 0,
            violations,
            described: vec![described; violations as usize],
        }
    }

    #[test]
    fn one_violation_in_one_of_many_histories_fails_the_whole() {
        let mut report = Report::begin(7);
        for violations in [0, 1, 0] {
            report.add(&Counts::default(), findings(10, violations));
        }
        report.end(Duration::from_secs(90));
        let failure = report.failure().unwrap();
        assert!(
            failure.contains("1 violations") && failure.contains("--seed 7"),
            "{failure}"
        );
        assert_eq!((report.verdict, report.reads), ("FAIL", 30));
        let mut text = Vec::new();
        report.print(&mut text, Format::Simple).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("violation: a rule: broken"), "{text}");
        assert!(text.ends_with("FAIL\n"), "{text}");
    }

    #[test]
    fn a_cluster_that_does_not_come_back_fails_and_one_that_does_passes() {
        let mut report = Report::begin(7);
        report.count(ChaosFault::Kill);
        report.add(&Counts::default(), findings(10, 0));
        report.end(Duration::from_secs(1));
        assert_eq!((report.verdict, report.failure()), ("PASS", None));
        report.note(Err(Failure::refused("no leader")));
        report.note(Err(Failure::refused("later")));
        report.end(Duration::from_secs(1));
        assert_eq!(report.verdict, "FAIL");
        assert_eq!(
            report.failure().unwrap(),
            "no leader; the turns come again with --seed 7"
        );
        let mut empty = Report::begin(7);
        assert!(empty.failure().unwrap().contains("nothing can be said"));
        let mut found = findings(10, 0);
        found.writes = 0;
        empty.add(&Counts::default(), found);
        assert!(empty.failure().unwrap().contains("no write was"));
        empty.is_interrupted = true;
        assert_eq!(empty.failure(), None);
    }
}
