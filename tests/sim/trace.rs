//! What happened, as a hash always and as lines of text on demand.
//!
//! The hash is what the determinism test compares; the lines are what a person reads: one event
//! each, with the real time in milliseconds and the node that it happened to.

use std::fmt::Write as _;

use crate::clock::{MS, Nanos};

/// See the module.
#[derive(Default)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<String>>,
    aloud: bool,
}

impl Trace {
    /// With lines that are kept, if `readable`; and told at once, if `aloud`: a run that ends in a
    /// panic leaves nothing else.
    pub(crate) fn new(readable: bool, aloud: bool) -> Self {
        Self {
            hash: 0,
            events: 0,
            lines: readable.then(Vec::new),
            aloud,
        }
    }

    /// Takes an event into the hash.
    pub(crate) fn mix<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            // An odd factor loses nothing, and the turn brings its upper bits down again.
            let mixed = (self.hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.hash = mixed.rotate_left(29);
        }
        self.events += 1;
    }

    /// Adds a line, if anybody reads them. `node` counts from 0; `None` is the world.
    pub(crate) fn line(&mut self, now: Nanos, node: Option<usize>, say: impl FnOnce() -> String) {
        if self.lines.is_none() && !self.aloud {
            return;
        }
        let mut line = String::new();
        let millis = now as f64 / MS as f64;
        let _ = match node {
            Some(node) => write!(line, "{millis:>12.3} n{} {}", node + 1, say()),
            None => write!(line, "{millis:>12.3} -- {}", say()),
        };
        if self.aloud {
            println!("{line}");
        }
        if let Some(lines) = &mut self.lines {
            lines.push(line);
        }
    }

    /// The hash so far.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events it holds.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The lines, if they were kept.
    pub(crate) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
