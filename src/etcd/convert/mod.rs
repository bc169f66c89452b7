//! Requests of etcd's clients as ours, and our answers as etcd's.
//!
//! What our requests have no word for is resolved here: a range that ends before it begins is empty in
//! etcd and an error here, so an empty range never reaches a replica ([`Keys`]). Refusals come in
//! the order in which etcd makes them.

mod auth;
mod member;
mod read;
mod txn;
mod watch;
mod write;

pub(crate) use auth::{
    change_password, grant_permission, permissions, revoke_permission, user_add,
};
pub(crate) use member::{check_member_add, check_member_update, member_add, peer_address};
pub(crate) use read::{RangePlan, header, key_value, range_response};
pub(crate) use txn::{check_txn, is_serializable, txn_plan};
pub(crate) use watch::{encoded_events, watch_request};
pub(crate) use write::{DeletePlan, delete_response, permissions_to_delete, put, put_response};

use bytes::Bytes;

use crate::api::KeyRange;

/// What `key` and `range_end` select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// These.
    Some(KeyRange),
    /// None: the range ends at or before its start.
    None,
}

impl Keys {
    /// By etcd's rules: no end means one key, the end `\0` means all keys from `key` on.
    pub(crate) fn of(key: &Bytes, range_end: &Bytes) -> Self {
        match range_end.as_ref() {
            [] => Self::Some(KeyRange::Single),
            [0] => Self::Some(KeyRange::From),
            end if end <= key.as_ref() => Self::None,
            _ => Self::Some(KeyRange::Until(range_end.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_select_as_in_etcd() {
        let keys = |key: &'static str, end: &'static [u8]| {
            Keys::of(
                &Bytes::from_static(key.as_bytes()),
                &Bytes::from_static(end),
            )
        };
        assert_eq!(keys("a", b""), Keys::Some(KeyRange::Single));
        assert_eq!(keys("a", b"\0"), Keys::Some(KeyRange::From));
        let until = KeyRange::Until(Bytes::from_static(b"b"));
        assert_eq!(keys("a", b"b"), Keys::Some(until));
        assert_eq!(keys("b", b"b"), Keys::None);
        assert_eq!(keys("b", b"a"), Keys::None);
    }
}
