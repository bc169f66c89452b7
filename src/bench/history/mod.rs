//! Whether what clients saw is linearizable.
//!
//! Every answer names the store's revision, so the order of operations is known, and what is left is
//! to check that it is a possible one: that it respects real time, that no two writes share a place
//! in it, and that every read shows what was last written before its own place. Every written value
//! is unique, so a read says by itself whose write it saw. Keys are written and read, never
//! deleted, and no other program writes them.
//!
//! [`Audit`] judges while it listens, and remembers writes only, so a history may be as long as it
//! likes. It records when an operation begins and when it ends, in the order in which that happens;
//! an operation that ends and one that begins at the same moment are taken for concurrent. A
//! recorded history ([`Operation`], a line of JSON each) is replayed to it.
//!
//! Sound: what it reports is a violation, whatever became of operations without an answer. Where
//! answers are missing it says nothing: a write that no read returned may have happened or not.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::{fmt, io};

use serde::{Deserialize, Serialize};

/// Violations that are described; more are only counted.
const DESCRIBED_MAX: usize = 10;

/// A rule that was broken, and by what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The rule.
    pub rule: &'static str,
    /// What broke it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// What a read was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The store's revision in the snapshot that was served.
    pub revision: i64,
    /// The value and the revision that wrote it; nothing if the key was not there.
    pub found: Option<(u64, i64)>,
}

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It took effect, at this revision.
    Written(i64),
    /// It took no effect and will take none.
    NotApplied,
    /// It may have taken effect, or may yet.
    Unknown,
}

/// An operation that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Invocation {
    key: u32,
    /// The highest revision of any reply before it.
    floor: i64,
}

/// Checks the operations that it records.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    reads: u64,
    writes: u64,
    unanswered: u64,
    /// The highest revision of any reply.
    acknowledged: i64,
    keys: BTreeMap<u32, Versions>,
    /// Every value whose write was begun.
    values: BTreeMap<u64, Write>,
    /// Whose write has which revision.
    revisions: BTreeMap<i64, u64>,
    violations: u64,
    described: Vec<Violation>,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    key: u32,
    /// It is known not to have taken effect.
    refused: bool,
    /// A read showed it.
    seen: bool,
}

/// What is known of one key.
#[derive(Clone, Debug, Default)]
struct Versions {
    /// Each revision that wrote it.
    written: BTreeMap<i64, Version>,
    /// The highest revision at which it was seen not to be there.
    absent_at: i64,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    value: u64,
    /// The highest revision at which it was still the last.
    current_at: i64,
}

/// What an audit came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Operations that failed, or whose fate is not known.
    pub unanswered: u64,
    /// Rules broken, in all.
    pub violations: u64,
    /// The first of them.
    pub described: Vec<Violation>,
}

impl Audit {
    /// Of a history that begins when the store has had this revision, which no answer may be older than.
    pub fn after(revision: i64) -> Self {
        Self {
            acknowledged: revision,
            ..Self::default()
        }
    }

    /// The highest revision of any reply.
    pub fn acknowledged(&self) -> i64 {
        self.acknowledged
    }

    /// A client begins to write `value`, which was never written before, to `key`.
    pub fn begin_write(&mut self, key: u32, value: u64) -> Invocation {
        let write = Write {
            key,
            refused: false,
            seen: false,
        };
        if self.values.insert(value, write).is_some() {
            self.break_rule("values are unique", || {
                format!("value {value} was written before: this history cannot be checked")
            });
        }
        self.begin_read(key)
    }

    /// A client learned the outcome of writing `value`.
    pub fn end_write(&mut self, begun: Invocation, value: u64, fate: Fate) {
        let revision = match fate {
            Fate::Written(revision) => revision,
            Fate::NotApplied => {
                self.unanswered += 1;
                if let Some(write) = self.values.get_mut(&value) {
                    write.refused = true;
                }
                return;
            }
            Fate::Unknown => {
                self.unanswered += 1;
                return;
            }
        };
        self.writes += 1;
        let Invocation { key, floor } = begun;
        if revision <= floor {
            self.break_rule("real time", || {
                format!(
                    "the write of {value} to key {key} has revision {revision} but began after \
                     revision {floor} had been acknowledged"
                )
            });
        }
        self.note_version(key, revision, value, revision);
        self.acknowledged = self.acknowledged.max(revision);
    }

    /// A client begins to read `key`.
    pub fn begin_read(&mut self, key: u32) -> Invocation {
        Invocation {
            key,
            floor: self.acknowledged,
        }
    }

    /// The read was answered.
    pub fn end_read(&mut self, begun: Invocation, seen: Observation) {
        self.reads += 1;
        let Invocation { key, floor } = begun;
        let Observation { revision, found } = seen;
        if revision < floor {
            self.break_rule("real time", || {
                format!(
                    "a read of key {key} was answered as of revision {revision} but began after \
                     revision {floor} had been acknowledged"
                )
            });
        }
        match found {
            None => {
                let versions = self.keys.entry(key).or_default();
                versions.absent_at = versions.absent_at.max(revision);
            }
            Some((value, written)) => {
                if written > revision {
                    self.break_rule("no read from the future", || {
                        format!(
                            "a read of key {key} as of revision {revision} returned the value \
                             written at revision {written}"
                        )
                    });
                }
                match self.values.get_mut(&value) {
                    Some(write) if write.key == key => write.seen = true,
                    _ => self.break_rule("reads show writes", || {
                        format!(
                            "a read of key {key} returned {value}, which had not been written to it"
                        )
                    }),
                }
                self.note_version(key, written, value, revision);
            }
        }
        self.acknowledged = self.acknowledged.max(revision);
    }

    /// The read was not answered.
    pub fn give_up_read(&mut self, _: Invocation) {
        self.unanswered += 1;
    }

    /// All operations have been recorded.
    pub fn finish(mut self) -> Findings {
        let keys = std::mem::take(&mut self.keys);
        for (key, versions) in &keys {
            let mut before: Option<(i64, &Version)> = None;
            for (revision, version) in &versions.written {
                if before.is_none() && versions.absent_at >= *revision {
                    self.break_rule("reads show the last write", || {
                        format!(
                            "key {key} was written at revision {revision} but missing as of \
                             revision {}",
                            versions.absent_at
                        )
                    });
                }
                if let Some((written, version)) = before
                    && version.current_at >= *revision
                {
                    self.break_rule("reads show the last write", || {
                        format!(
                            "key {key} was written at revision {revision} but had the value of \
                             revision {written} as of revision {}",
                            version.current_at
                        )
                    });
                }
                before = Some((*revision, version));
            }
        }
        let values = std::mem::take(&mut self.values);
        for (value, write) in &values {
            if write.refused && write.seen {
                self.break_rule("refused writes are not visible", || {
                    format!(
                        "the write of {value} to key {} was reported as not applied, but was read",
                        write.key
                    )
                });
            }
        }
        Findings {
            reads: self.reads,
            writes: self.writes,
            unanswered: self.unanswered,
            violations: self.violations,
            described: self.described,
        }
    }

    /// `written` gave `key` this value, which was still its last as of `current_at`.
    fn note_version(&mut self, key: u32, written: i64, value: u64, current_at: i64) {
        let whose = *self.revisions.entry(written).or_insert(value);
        if whose != value {
            self.break_rule("one write per revision", || {
                format!("revision {written} wrote {value} and {whose}")
            });
        }
        let versions = &mut self.keys.entry(key).or_default().written;
        let version = versions
            .entry(written)
            .or_insert(Version { value, current_at });
        version.current_at = version.current_at.max(current_at);
        let known = version.value;
        if known != value && whose == value {
            self.break_rule("one write per revision", || {
                format!("revision {written} gave key {key} both {value} and {known}")
            });
        }
    }

    fn break_rule(&mut self, rule: &'static str, what: impl FnOnce() -> String) {
        self.violations += 1;
        if self.described.len() < DESCRIBED_MAX {
            self.described.push(Violation { rule, what: what() });
        }
    }
}

/// One operation of a recorded history. Times are nanoseconds since any one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// A write.
    Put {
        /// The key.
        key: u32,
        /// What was written; unique.
        value: u64,
        /// When it was sent.
        invoked: u64,
        /// When its fate was known.
        returned: u64,
        /// Its revision, if it was acknowledged.
        revision: Option<i64>,
        /// Not acknowledged, and certain not to take effect.
        #[serde(default, skip_serializing_if = "is_false")]
        refused: bool,
    },
    /// A read that was answered.
    Get {
        /// The key.
        key: u32,
        /// When it was sent.
        invoked: u64,
        /// When it was answered.
        returned: u64,
        /// The revision that it was answered as of.
        revision: i64,
        /// What was found; nothing if the key was not there.
        value: Option<u64>,
        /// The revision that wrote what was found.
        mod_revision: Option<i64>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Why a recorded history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line is no operation.
    #[error("line {line} is not an operation: {source}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The file.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads a recorded history, an operation a line.
///
/// # Errors
/// A line is no operation, or cannot be read.
pub fn read(input: impl BufRead) -> Result<Vec<Operation>, HistoryError> {
    let mut operations = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let line = line?;
        if !line.trim().is_empty() {
            let operation = serde_json::from_str(&line).map_err(|source| HistoryError::Line {
                line: number + 1,
                source,
            })?;
            operations.push(operation);
        }
    }
    Ok(operations)
}

/// Judges a recorded history. It may be in any order.
pub fn check(operations: &[Operation]) -> Findings {
    // At the same moment beginnings come first: who begins as another ends is concurrent with it.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (place, operation) in operations.iter().enumerate() {
        let (invoked, returned) = match operation {
            Operation::Put {
                invoked, returned, ..
            }
            | Operation::Get {
                invoked, returned, ..
            } => (*invoked, *returned),
        };
        events.push((invoked, false, place));
        events.push((returned.max(invoked), true, place));
    }
    events.sort_unstable();
    let mut audit = Audit::default();
    let mut under_way: BTreeMap<usize, Invocation> = BTreeMap::new();
    for (_, ends, place) in events {
        match (&operations[place], ends) {
            (Operation::Put { key, value, .. }, false) => {
                under_way.insert(place, audit.begin_write(*key, *value));
            }
            (Operation::Get { key, .. }, false) => {
                under_way.insert(place, audit.begin_read(*key));
            }
            (operation, true) => {
                let begun = under_way.remove(&place);
                let begun = begun.expect("every operation begins before it ends");
                end(&mut audit, begun, operation);
            }
        }
    }
    audit.finish()
}

fn end(audit: &mut Audit, begun: Invocation, operation: &Operation) {
    match operation {
        Operation::Put {
            value,
            revision,
            refused,
            ..
        } => {
            let fate = match (revision, refused) {
                (Some(revision), _) => Fate::Written(*revision),
                (None, true) => Fate::NotApplied,
                (None, false) => Fate::Unknown,
            };
            audit.end_write(begun, *value, fate);
        }
        Operation::Get {
            revision,
            value,
            mod_revision,
            ..
        } => {
            let found = value.zip(*mod_revision);
            let seen = Observation {
                revision: *revision,
                found,
            };
            audit.end_read(begun, seen);
        }
    }
}

#[cfg(test)]
mod tests;
