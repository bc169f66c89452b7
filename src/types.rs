//! The nouns that every layer shares: identities, terms and places in the log.
//!
//! Each is a number of its own type, so that a term cannot be passed where an index is meant, and
//! each prints short (`n1`, `t3`, `7@3`), because traces and golden files are read by people.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

number! {
    /// A member of the cluster: a hash of cluster id, node name and incarnation, fixed when the
    /// member joins. Small numbers are used by tests.
    NodeId(u64)
}
number! {
    /// A Raft term. At most one leader is elected in each (Raft, section 5.1).
    Term(u64)
}
number! {
    /// A place in the Raft log. The first entry is 1; 0 stands before the log.
    LogIndex(u64)
}
number! {
    /// The cluster's 128-bit identity, drawn by `cert init` and carried in every certificate.
    ClusterId(u128)
}
number! {
    /// Which life of a member's data directory this is. A member whose data was replaced comes
    /// back with a higher one, and peers listen to the newest only.
    Incarnation(u64)
}
number! {
    /// Which bootstrap of its cluster a member comes from: drawn at random by the first leader, and
    /// different each time, even for the same members with the same certificates (A25).
    BootstrapId(u128)
}
number! {
    /// A client session, the scope of exactly-once writes. Never used twice, not even after the cluster was
    /// bootstrapped again: see [`SessionId::new`].
    SessionId(u64)
}
number! {
    /// A request inside one node, from the session that received it to the reply.
    RequestId(u64)
}

impl NodeId {
    /// The member id of the node `name` in `cluster`, in its `incarnation`.
    ///
    /// Never zero, so that zero can stand for "none" in atomics and on the wire.
    pub fn derive(cluster: ClusterId, name: &str, incarnation: Incarnation) -> Self {
        let mut bytes = Vec::with_capacity(24 + name.len());
        bytes.extend_from_slice(&cluster.0.to_be_bytes());
        bytes.extend_from_slice(&incarnation.0.to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
        Self(xxhash_rust::xxh3::xxh3_64(&bytes).max(1))
    }
}

impl ClusterId {
    /// The first 64 bits: what reply headers show.
    pub fn short(self) -> u64 {
        (self.0 >> 64) as u64
    }

    /// Reads the 8-4-4-4-12 form that [`fmt::Display`] writes, or 32 plain hex digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Self)
    }
}

impl BootstrapId {
    /// Whether two nodes, by what they know, can be of the same cluster. One that knows nothing yet can be
    /// of any.
    pub fn agree(ours: Option<Self>, theirs: Option<Self>) -> bool {
        match (ours, theirs) {
            (Some(ours), Some(theirs)) => ours == theirs || planted!(BootstrapsMix),
            _ => true,
        }
    }

    /// Reads the 32 hex digits that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = is_hex.then(|| u128::from_str_radix(text, 16).ok());
        number.flatten().map(Self)
    }
}

impl SessionId {
    /// The session that the entry at `opened` opens. One of another bootstrap has another id, although it may
    /// be opened at the same place of the log.
    pub fn new(opened: LogIndex, bootstrap: BootstrapId) -> Self {
        let drawn = bootstrap.0 as u64;
        Self(match planted!(SessionsRepeat) {
            true => opened.0,
            false => opened.0 ^ drawn,
        })
    }
}

impl LogIndex {
    /// The place after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The place before this one; 0 stays 0.
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl Term {
    /// The term after this one.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Whether `text` can name a node or a client: 1 to 64 of `a-z A-Z 0-9 . _ -`, beginning with a
/// letter or digit. Such a name stands unescaped in certificates, file names and metric labels.
pub fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// An entry's place and the term that wrote it: together they name the entry for ever.
///
/// Ordered by term first, which is Raft's "at least as up to date" (section 5.4.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogId {
    /// The term of the leader that wrote the entry.
    pub term: Term,
    /// Its place.
    pub index: LogIndex,
}

impl LogId {
    /// The entry at `index` that was written in `term`.
    pub fn new(index: LogIndex, term: Term) -> Self {
        Self { term, index }
    }
}

/// A node's role in consensus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Follows a leader, or waits for one.
    #[default]
    Follower,
    /// Asks whether it could win an election, without disturbing anyone (Raft thesis, 9.6).
    PreCandidate,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
    /// Receives the log and does not vote.
    Learner,
    /// Found its log damaged: neither votes nor serves until rebuilt.
    Quarantined,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Follower => "follower",
            Self::PreCandidate => "pre-candidate",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
            Self::Learner => "learner",
            Self::Quarantined => "quarantined",
        })
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{:x}", self.0)
    }
}
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}
impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.index.0, self.term.0)
    }
}
impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(
            f,
            "{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}
impl fmt::Display for BootstrapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "i{}", self.0)
    }
}
impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// An inclusive range of versions: of what travels between nodes, and of what is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRange {
    /// The oldest version spoken.
    pub oldest: u16,
    /// The newest version spoken.
    pub newest: u16,
}

impl VersionRange {
    /// The newest version that both sides speak.
    pub fn common(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest && newest >= other.oldest).then_some(newest)
    }

    /// Whether `version` is spoken.
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            write!(f, "{}", self.newest)
        } else {
            write!(f, "{} to {}", self.oldest, self.newest)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_short_and_cluster_ids_read_back() {
        assert_eq!(LogId::new(LogIndex(7), Term(3)).to_string(), "7@3");
        assert_eq!(NodeId(1).to_string(), "n1");
        let id = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string(), "01234567-89ab-cdef-0011-223344556677");
        assert_eq!(ClusterId::parse(&id.to_string()), Some(id));
        assert_eq!(ClusterId::parse("nonsense"), None);
        assert_eq!(ClusterId::parse(&"g".repeat(32)), None);
    }

    #[test]
    fn names_hold_nothing_that_needs_escaping() {
        assert!(is_name("n1") && is_name("eu-west.db_3") && is_name(&"a".repeat(64)));
        for wrong in ["", "-n1", ".n1", "a b", "a/b", "naïve", &"a".repeat(65)] {
            assert!(!is_name(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_longer_log_of_an_older_term_is_less_up_to_date() {
        let older = LogId::new(LogIndex(9), Term(2));
        let newer = LogId::new(LogIndex(3), Term(3));
        assert!(older < newer);
    }

    #[test]
    fn member_ids_differ_by_incarnation() {
        let cluster = ClusterId(7);
        let first = NodeId::derive(cluster, "n1", Incarnation(0));
        let second = NodeId::derive(cluster, "n1", Incarnation(1));
        assert_ne!(first, second);
    }
}
