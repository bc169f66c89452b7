//! What happened, as a hash always and as lines of text on demand.
//!
//! The hash is what the determinism test compares; the lines are what a person reads: one event
//! each, with the real time in milliseconds and the node that it happened to.

use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::MS;
use crate::clock::Nanos;

/// See the module.
#[derive(Default)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    /// With lines, if `readable`.
    pub(crate) fn new(readable: bool) -> Self {
        Self {
            hash: 0,
            events: 0,
            lines: readable.then(Vec::new),
        }
    }

    /// Takes an event into the hash.
    pub(crate) fn mix(&mut self, numbers: [u64; 4]) {
        let mut bytes = [0; 32];
        for (slot, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        self.hash = xxh3_64_with_seed(&bytes, self.hash);
        self.events += 1;
    }

    /// Adds a line, if anybody reads them. `node` counts from 0; `None` is the world.
    pub(crate) fn line(&mut self, now: Nanos, node: Option<usize>, say: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            let mut line = String::new();
            let millis = now as f64 / MS as f64;
            let _ = match node {
                Some(node) => write!(line, "{millis:>12.3} n{} {}", node + 1, say()),
                None => write!(line, "{millis:>12.3} -- {}", say()),
            };
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
