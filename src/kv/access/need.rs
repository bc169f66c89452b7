//! The permissions that a request can need.

use bytes::Bytes;

use crate::api::{KeyRange, LeaseRef};

/// One permission that a request needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// None: also granted to unauthenticated clients.
    Nothing,
    /// Any permission at all.
    Anything,
    /// To write some key: who can attach no key has no use for a lease, and leases take room from others.
    AnyWrite,
    /// To have the role [`ROOT`](crate::api::ROOT).
    Root,
    /// To be this user, or root.
    User(&'a str),
    /// To have this role, or root.
    Role(&'a str),
    /// To read all of these keys.
    Read(&'a Bytes, &'a KeyRange),
    /// To write all of these keys.
    Write(&'a Bytes, &'a KeyRange),
    /// To renew and change this lease: its owner only. A lease granted before access control was
    /// enabled may be used by every user with any permission.
    LeaseUse(LeaseRef),
    /// To attach a key to this lease.
    LeaseAttach(LeaseRef),
    /// To attach a key to the lease with this name.
    LeaseAttachNamed(&'a str),
    /// To end this lease, which deletes what is attached.
    LeaseEnd(LeaseRef),
    /// To see what is attached to this lease.
    LeaseKeys(i64),
}
