//! What a caller must be allowed for a request to be carried out.

use bytes::Bytes;

use crate::api::{KeyRange, LeaseRef};

/// Something that whoever asks must be allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// Anybody may, known or not.
    Nothing,
    /// Whoever may do anything at all.
    Anything,
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
    /// To renew and change this lease: his who granted it. One from before access was controlled is
    /// anybody's who may do anything.
    LeaseUse(LeaseRef),
    /// To attach a key to this lease.
    LeaseAttach(LeaseRef),
    /// To attach a key to the lease of this name.
    LeaseAttachNamed(&'a str),
    /// To end this lease, which deletes what is attached.
    LeaseEnd(LeaseRef),
    /// To see what is attached to this lease.
    LeaseKeys(i64),
}
