//! What one bench found, for another to read: `figures=FILE` after the `--` of a bench that knows
//! it.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Figures by name: the median of rounds, the least and the greatest.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    found: Vec<Value>,
}

impl Figures {
    /// Notes the rounds of one figure; nothing if there were none.
    pub(crate) fn add(&mut self, name: &str, rounds: impl IntoIterator<Item = f64>) {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let (Some(least), Some(most)) = (rounds.first(), rounds.last()) else {
            return;
        };
        self.found.push(json!({
            "name": name,
            "median": rounds[rounds.len() / 2],
            "least": least,
            "most": most,
            "rounds": rounds.len(),
        }));
    }

    /// Writes them, if a file was named.
    pub(crate) fn write(&self, file: Option<&Path>) -> io::Result<()> {
        match file {
            Some(file) => std::fs::write(file, format!("{:#}\n", json!(self.found))),
            None => Ok(()),
        }
    }
}

/// The file that an argument names.
pub(crate) fn file_of(argument: &str) -> Option<PathBuf> {
    argument.strip_prefix("figures=").map(PathBuf::from)
}
