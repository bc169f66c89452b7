//! Counters of client writes.

/// Writes of clients at this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proposals {
    /// Writes that wait to be committed and applied.
    pub pending: usize,
    /// Writes that consensus refused, or that ended before they were committed here because leadership
    /// was lost or their deadline passed. Requests to a node that does not lead are not counted.
    pub failed: u64,
    /// Retries of decided writes, answered with the reply that their session kept.
    pub repeated: u64,
}
