//! What became of many directories, by what was damaged and how: told on the way, and in tables at the
//! end.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::damage::Outcome;
use crate::damage::harm::{Harm, part};

/// Between two words on the way.
const WORD: Duration = Duration::from_secs(30);

/// Ends of a trial, in the order in which tables show them.
const ENDS: [&str; 6] = [
    "refused to start",
    "ended",
    "quarantined",
    "mended",
    "harmless",
    "WRONG",
];

fn end(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Refused => 0,
        Outcome::Ended => 1,
        Outcome::Quarantined => 2,
        Outcome::Mended => 3,
        Outcome::Harmless => 4,
        Outcome::Wrong(_) => 5,
    }
}

type Counts = [u64; ENDS.len()];

/// Everything that was counted.
pub(crate) struct Report {
    wanted: u64,
    began: Instant,
    told: Instant,
    sums: Counts,
    /// By the part that a file plays, and the stroke it was dealt. Of a directory that was dealt two
    /// strokes nobody knows which of them decided, so it is counted apart.
    rows: BTreeMap<(String, String), Counts>,
}

impl Report {
    /// Of so many directories.
    pub(crate) fn new(wanted: u64) -> Self {
        let now = Instant::now();
        Self {
            wanted,
            began: now,
            told: now,
            sums: Counts::default(),
            rows: BTreeMap::new(),
        }
    }

    /// One more. Returns a word about all of them, if it is time for one.
    pub(crate) fn count(&mut self, harms: &[Harm], outcome: &Outcome) -> Option<String> {
        let row = match harms {
            [harm] => (part(&harm.file), format!("{:?}", harm.stroke)),
            _ => ("(two strokes)".to_owned(), "any".to_owned()),
        };
        let end = end(outcome);
        self.rows.entry(row).or_default()[end] += 1;
        self.sums[end] += 1;
        (self.told.elapsed() >= WORD).then(|| {
            self.told = Instant::now();
            self.progress(self.began.elapsed())
        })
    }

    /// How many there were.
    pub(crate) fn counted(&self) -> u64 {
        self.sums.iter().sum()
    }

    fn progress(&self, took: Duration) -> String {
        let counted = self.counted();
        let left = took.mul_f64((self.wanted - counted) as f64 / counted.max(1) as f64);
        let ends = ENDS.iter().zip(self.sums);
        let ends: Vec<String> = ends.map(|(end, count)| format!("{count} {end}")).collect();
        format!(
            "{counted} of {} directories in {}s, {}s to go: {}",
            self.wanted,
            took.as_secs(),
            left.as_secs(),
            ends.join(", ")
        )
    }

    /// By file, by stroke, and by both.
    pub(crate) fn tables(&self) -> String {
        let mut by_file: BTreeMap<(String, String), Counts> = BTreeMap::new();
        let mut by_stroke = by_file.clone();
        for ((file, stroke), counts) in &self.rows {
            for (table, row) in [
                (&mut by_file, (file.clone(), "any".to_owned())),
                (&mut by_stroke, ("any".to_owned(), stroke.clone())),
            ] {
                let sums = table.entry(row).or_default();
                sums.iter_mut()
                    .zip(counts)
                    .for_each(|(sum, count)| *sum += count);
            }
        }
        // Both strokes of two are in no one row of strokes.
        by_stroke.remove(&("any".to_owned(), "any".to_owned()));
        let mut text = String::new();
        for table in [&by_file, &by_stroke, &self.rows] {
            let _ = writeln!(text, "\n| File | Damage | All | {} |", ENDS.join(" | "));
            let _ = writeln!(text, "|---|---|{}", "--:|".repeat(ENDS.len() + 1));
            for ((file, stroke), counts) in table {
                let all: u64 = counts.iter().sum();
                let counts = counts.map(|count| count.to_string());
                let _ = writeln!(
                    text,
                    "| {file} | {stroke} | {all} | {} |",
                    counts.join(" | ")
                );
            }
        }
        let _ = writeln!(text, "\n{}", self.progress(self.began.elapsed()));
        text
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::damage::harm::Stroke;

    #[test]
    fn every_directory_is_in_each_table_that_it_belongs_to() {
        let harm = |stroke, file: &str| Harm {
            stroke,
            file: PathBuf::from(file),
        };
        let mut report = Report::new(4);
        report.count(&[harm(Stroke::FlipBit, "log/7")], &Outcome::Refused);
        report.count(&[harm(Stroke::FlipBit, "log/8")], &Outcome::Harmless);
        report.count(&[harm(Stroke::Remove, "vote")], &Outcome::Refused);
        let two = [harm(Stroke::Empty, "vote"), harm(Stroke::Empty, "log/7")];
        report.count(&two, &Outcome::Wrong("so".to_owned()));
        assert_eq!(report.counted(), 4);
        let text = report.tables();
        for row in [
            "| log/N | any | 2 | 1 | 0 | 0 | 0 | 1 | 0 |",
            "| vote | any | 1 | 1 | 0 | 0 | 0 | 0 | 0 |",
            "| any | FlipBit | 2 | 1 | 0 | 0 | 0 | 1 | 0 |",
            "| log/N | FlipBit | 2 | 1 | 0 | 0 | 0 | 1 | 0 |",
            "| (two strokes) | any | 1 | 0 | 0 | 0 | 0 | 0 | 1 |",
        ] {
            assert!(text.lines().any(|line| line == row), "{row} in\n{text}");
        }
        let word = report.progress(Duration::from_secs(8));
        assert!(
            word.starts_with("4 of 4 directories in 8s, 0s to go: 2 refused to start"),
            "{word}"
        );
        let mut half = Report::new(2);
        half.count(&[harm(Stroke::Remove, "vote")], &Outcome::Mended);
        assert!(half.progress(Duration::from_secs(8)).contains("8s to go"));
    }
}
