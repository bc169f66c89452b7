//! How much a request matters to the program that makes it.

/// What becomes of a request where a node has more of them than it can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// Refused first, with [`ErrorKind::SlowDown`](super::ErrorKind::SlowDown): once half of the room is taken
    /// that the node has for requests of its kind. For what can wait: a backup, a scan of everything, a
    /// rebuilt cache.
    Low,
    /// What is served as long as there is room.
    #[default]
    Normal,
}
