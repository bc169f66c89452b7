//! Which lease a call is about: one known by its id, by its grant, or by its name.
//!
//! An id and a name may pass to another lease when theirs has ended (T14). So a name is first asked for its
//! lease, and what follows is about that very grant: a call is refused rather than carried out on the next
//! lease of that name.

use crate::api::{LeaseRef, LeaseTarget};

/// Which lease is meant. Calls take it as an id (`i64`), as a [`LeaseRef`], or as a name (`&str` or
/// `String`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhichLease {
    /// This one.
    Lease(LeaseRef),
    /// The one that has this name when the call is made.
    Named(String),
}

impl From<LeaseRef> for WhichLease {
    fn from(lease: LeaseRef) -> Self {
        Self::Lease(lease)
    }
}

impl From<i64> for WhichLease {
    /// The lease that has this id now.
    fn from(id: i64) -> Self {
        Self::Lease(LeaseRef::id(id))
    }
}

impl From<&str> for WhichLease {
    /// The lease that has this name now.
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for WhichLease {
    /// The lease that has this name now.
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

impl From<&String> for WhichLease {
    /// The lease that has this name now.
    fn from(name: &String) -> Self {
        Self::Named(name.clone())
    }
}

impl From<WhichLease> for LeaseTarget {
    /// For a write, which finds the lease of a name when it takes effect.
    fn from(which: WhichLease) -> Self {
        match which {
            WhichLease::Lease(lease) => Self::Lease(lease),
            WhichLease::Named(name) => Self::Name(name),
        }
    }
}
