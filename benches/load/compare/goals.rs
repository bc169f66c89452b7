//! What we aim at and what came of it, as one table: goal, figure, and the command that finds it.

use std::path::Path;

use serde_json::Value;

use super::rows::{Spread, micros, millis, times};

/// Finds what the two stores are compared by.
const COMPARE: &str = "benches/compare.sh";

/// On which side of a figure is good.
#[derive(Clone, Copy)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// Of what a figure is so many.
#[derive(Clone, Copy)]
pub(crate) enum Unit {
    /// A ratio.
    Times,
    Nanos,
    Micros,
    Millis,
    Bytes,
}

impl Unit {
    fn text(self, figure: f64) -> String {
        match self {
            Self::Times => times(figure),
            Self::Nanos => micros(figure / 1e3),
            Self::Micros => micros(figure),
            Self::Millis => millis(figure),
            Self::Bytes => format!("{figure:.0} bytes"),
        }
    }
}

/// A goal, and what was found.
pub(crate) struct Outcome {
    goal: String,
    limit: Limit,
    unit: Unit,
    found: Option<Spread>,
    command: &'static str,
}

impl Outcome {
    /// Of the comparison.
    pub(crate) fn new(goal: String, limit: Limit, unit: Unit, found: Option<Spread>) -> Self {
        Self {
            goal,
            limit,
            unit,
            found,
            command: COMPARE,
        }
    }

    /// The same, found by this command.
    pub(crate) fn by(self, command: &'static str) -> Self {
        Self { command, ..self }
    }

    fn verdict(&self) -> &'static str {
        let Some(found) = self.found else {
            return "not measured";
        };
        let reached = match self.limit {
            Limit::AtLeast(least) => found.median >= least,
            Limit::AtMost(most) => found.median <= most,
        };
        if reached { "reached" } else { "missed" }
    }

    /// The row of the table.
    fn line(&self) -> String {
        let limit = match self.limit {
            Limit::AtLeast(least) => format!("≥ {}", self.unit.text(least)),
            Limit::AtMost(most) => format!("≤ {}", self.unit.text(most)),
        };
        let unit = self.unit;
        let found = self
            .found
            .map(|found| found.text(|figure| unit.text(figure)));
        format!(
            "| {} | {limit} | {} | {} | `{}` |",
            self.goal,
            found.unwrap_or_else(|| "–".to_owned()),
            self.verdict(),
            self.command
        )
    }

    pub(crate) fn json(&self) -> Value {
        let (bound, limit) = match self.limit {
            Limit::AtLeast(limit) => ("at_least", limit),
            Limit::AtMost(limit) => ("at_most", limit),
        };
        let unit = match self.unit {
            Unit::Times => "ratio",
            Unit::Nanos => "ns",
            Unit::Micros => "us",
            Unit::Millis => "ms",
            Unit::Bytes => "bytes",
        };
        serde_json::json!({
            "goal": self.goal,
            bound: limit,
            "unit": unit,
            "median": self.found.map(|found| found.median),
            "least": self.found.map(|found| found.least),
            "most": self.found.map(|found| found.most),
            "verdict": self.verdict(),
            "command": self.command,
        })
    }
}

/// All of them, as docs/performance.md shows them.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let heading = "| Goal | Aim | Results | | Command |\n|---|---|---|---|---|\n";
    let lines = outcomes.iter().map(|outcome| outcome.line() + "\n");
    std::iter::once(heading.to_owned()).chain(lines).collect()
}

/// A goal that another bench finds the figure for.
struct Elsewhere {
    goal: &'static str,
    limit: Limit,
    unit: Unit,
    /// What that bench calls the figure.
    figure: &'static str,
    command: &'static str,
}

const LOOPBACK: &str = "cargo bench --bench loopback";
const LEASED_GET: &str = "cargo bench --bench leased_get";

const ELSEWHERE: [Elsewhere; 5] = [
    Elsewhere {
        goal: "leased get, 64 clients: throughput / a bare quinn echo's",
        limit: Limit::AtLeast(0.75),
        unit: Unit::Times,
        figure: "rate/echo 64x1",
        command: LOOPBACK,
    },
    Elsewhere {
        goal: "leased get, 256 clients: throughput / the echo's",
        limit: Limit::AtLeast(0.65),
        unit: Unit::Times,
        figure: "rate/echo 256x1",
        command: LOOPBACK,
    },
    Elsewhere {
        goal: "leased get, 1 client: p50 / the echo's",
        limit: Limit::AtMost(1.2),
        unit: Unit::Times,
        figure: "p50/echo 1x1",
        command: LOOPBACK,
    },
    Elsewhere {
        goal: "leased get: p99 beside 64 clients that write / without them",
        limit: Limit::AtMost(3.0),
        unit: Unit::Times,
        figure: "p99 beside writers/without",
        command: LOOPBACK,
    },
    Elsewhere {
        goal: "leased get in process, 10,000 keys",
        limit: Limit::AtMost(500.0),
        unit: Unit::Nanos,
        figure: "leased get in process",
        command: LEASED_GET,
    },
];

/// The goals of other benches, with the figures that they wrote into these files.
///
/// # Errors
/// A file cannot be read, or holds something else.
pub(crate) fn elsewhere(files: &[impl AsRef<Path>]) -> Result<Vec<Outcome>, String> {
    let mut figures = Vec::new();
    for file in files {
        let file = file.as_ref();
        let cannot = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| cannot(&error))?;
        let found: Vec<Value> = serde_json::from_str(&text).map_err(|error| cannot(&error))?;
        figures.extend(found);
    }
    let spread = |name: &str| {
        let figure = figures.iter().find(|figure| figure["name"] == name)?;
        Some(Spread {
            median: figure["median"].as_f64()?,
            least: figure["least"].as_f64()?,
            most: figure["most"].as_f64()?,
        })
    };
    let outcome = |elsewhere: &Elsewhere| Outcome {
        goal: elsewhere.goal.to_owned(),
        limit: elsewhere.limit,
        unit: elsewhere.unit,
        found: spread(elsewhere.figure),
        command: elsewhere.command,
    };
    Ok(ELSEWHERE.iter().map(outcome).collect())
}
