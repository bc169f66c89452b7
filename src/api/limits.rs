//! The limits of requests, and the checks of keys, ranges and puts against them.

use super::{DeleteRangeRequest, Error, ErrorKind, KeyRange, PutRequest, RangeRequest, lease};

/// The limits of requests, checked by the SDK before sending and by the server before accepting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of a key, in bytes. Keys are never empty.
    pub key_bytes_max: usize,
    /// Maximum length of a value, in bytes.
    pub value_bytes_max: usize,
    /// Largest encoded request, in bytes.
    pub request_bytes_max: usize,
    /// Largest encoded reply, in bytes; a range that would exceed it stops early with `more`.
    pub reply_bytes_max: usize,
    /// Maximum number of comparisons, and of operations of a branch, in a transaction, counting
    /// those of the enclosing transactions. [`TXN_PARTS_MAX`](super::TXN_PARTS_MAX) bounds the
    /// total.
    pub txn_ops_max: usize,
}

impl Limits {
    /// The limits of an unconfigured server.
    pub const DEFAULT: Self = Self {
        key_bytes_max: 16 << 10,
        // With a key, it fits a request.
        value_bytes_max: 1519 << 10,
        request_bytes_max: 1536 << 10,
        reply_bytes_max: 1536 << 10,
        txn_ops_max: 128,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

pub(super) fn validate_put(put: &PutRequest, limits: &Limits) -> Result<(), Error> {
    validate_key(&put.key, limits)?;
    lease::validate_target(&put.lease, put.ignore_lease)?;
    if put.ignore_value && !put.value.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the put gives a value and also asks to keep the current one: leave one of the two out",
        ));
    }
    if put.value.len() > limits.value_bytes_max {
        return Err(Error::not_applied(
            ErrorKind::RequestTooLarge {
                limit: limits.value_bytes_max as u64,
                actual: put.value.len() as u64,
            },
            format!(
                "the value has {} bytes and at most {} are allowed: split it, or raise \
                 limits.max_value_bytes on every node",
                put.value.len(),
                limits.value_bytes_max
            ),
        ));
    }
    Ok(())
}

pub(super) fn validate_delete(delete: &DeleteRangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_range(&delete.key, &delete.range, limits)
}

pub(super) fn validate_read(range: &RangeRequest, limits: &Limits) -> Result<(), Error> {
    validate_range(&range.key, &range.range, limits)?;
    let revisions = [
        ("the revision to read at", range.revision),
        ("min_mod_revision", range.min_mod_revision),
        ("max_mod_revision", range.max_mod_revision),
        ("min_create_revision", range.min_create_revision),
        ("max_create_revision", range.max_create_revision),
    ];
    match revisions.into_iter().find(|(_, revision)| *revision < 0) {
        None => Ok(()),
        Some((what, revision)) => Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            format!("{what} is {revision}: revisions are positive, and 0 means no bound"),
        )),
    }
}

fn validate_key(key: &[u8], limits: &Limits) -> Result<(), Error> {
    if key.is_empty() {
        return Err(Error::not_applied(
            ErrorKind::InvalidArgument,
            "the key is empty: give a key of at least one byte",
        ));
    }
    validate_key_length(key, limits)
}

fn validate_key_length(key: &[u8], limits: &Limits) -> Result<(), Error> {
    if key.len() > limits.key_bytes_max {
        return Err(Error::not_applied(
            ErrorKind::RequestTooLarge {
                limit: limits.key_bytes_max as u64,
                actual: key.len() as u64,
            },
            format!(
                "the key has {} bytes and at most {} are allowed: use a shorter key",
                key.len(),
                limits.key_bytes_max
            ),
        ));
    }
    Ok(())
}

pub(super) fn validate_range(key: &[u8], range: &KeyRange, limits: &Limits) -> Result<(), Error> {
    match range {
        KeyRange::Single => validate_key(key, limits),
        KeyRange::Prefix | KeyRange::From => validate_key_length(key, limits),
        KeyRange::Until(end) => {
            validate_key_length(key, limits)?;
            validate_key_length(end, limits)?;
            if end.as_ref() <= key {
                return Err(Error::not_applied(
                    ErrorKind::InvalidArgument,
                    "the range ends at or before its start: its end must sort after its first key",
                ));
            }
            Ok(())
        }
    }
}
