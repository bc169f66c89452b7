//! Counters of client writes.

/// Writes of clients at this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposals {
    /// How many wait to be committed and applied.
    pub pending: usize,
    /// How many consensus did not take, or that were given up before they were committed here:
    /// leadership was lost, or their deadline was over. Who asked the wrong node is not among them.
    pub failed: u64,
    /// How many were retries of what had been decided, answered with what their session kept.
    pub repeated: u64,
}
