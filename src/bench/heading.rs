//! What every report begins with: what measured, on which machine, and how busy that was.

use std::io::Write;
use std::{fs, io};

use serde::Serialize;

use super::cpu;
use crate::cli::arguments::Format;
use crate::cli::print::fields;
use crate::version;

/// What measured, and where.
#[derive(Clone, Debug, Serialize)]
pub struct Heading {
    /// The shape of this document.
    pub schema: &'static str,
    /// The version that measured.
    pub version: &'static str,
    /// The commit that it was made from.
    pub commit: &'static str,
    /// The model of this machine's processor, if the system tells it.
    pub processor: Option<String>,
    /// Cores of this machine that may be used.
    pub cores: usize,
    /// Its load average over the minute before.
    pub load_average_before: Option<f64>,
    /// The same, when all was done.
    pub load_average_after: Option<f64>,
}

impl Heading {
    /// Of a document of this shape; notes how busy the machine is.
    pub fn begin(schema: &'static str) -> Self {
        Self {
            schema,
            version: version::VERSION,
            commit: version::COMMIT,
            processor: processor(),
            cores: cores(),
            load_average_before: cpu::load_average(),
            load_average_after: None,
        }
    }

    /// All was done.
    pub fn end(&mut self) {
        self.load_average_after = cpu::load_average();
    }

    /// The machine and how busy it was, as the end of a sentence.
    pub fn machine(&self) -> String {
        let busy = |average: Option<f64>| {
            average.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"))
        };
        format!(
            "{} cores of {}, load average {} before and {} after",
            self.cores,
            self.processor.as_deref().unwrap_or("an unnamed processor"),
            busy(self.load_average_before),
            busy(self.load_average_after)
        )
    }
}

/// Prints a report in the formats for programs; false if another is asked for.
///
/// # Errors
/// Those of `out`.
pub fn print_for_programs(
    out: &mut impl Write,
    report: &impl Serialize,
    format: Format,
) -> io::Result<bool> {
    match format {
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(report)?)?,
        Format::Fields => fields(out, &serde_json::to_value(report)?)?,
        Format::Simple | Format::Table => return Ok(false),
    }
    Ok(true)
}

/// How many cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// As Linux tells it on x86; elsewhere often nothing.
fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, name) = lines.find(|(key, _)| key.trim() == "model name")?;
    Some(name.trim().to_owned())
}
