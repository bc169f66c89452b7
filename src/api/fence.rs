//! Fences: writes that take effect only while a lock is still held by their writer.
//!
//! No lease makes a lock safe by itself: a holder may be suspended and resume long after the lease
//! has ended and another client has acquired the lock (T13). So a holder has a fencing token, the
//! revision that created its key of the lock, and a write may name both. The store compares them
//! when it applies the write, in the order of the log and without any clock, and refuses it with
//! [`ErrorKind::Fenced`] if the key was deleted or created again.
//!
//! On the wire, a fenced write is a transaction that contains the write after a comparison of
//! create revisions, which every replica decides alike.

use bytes::Bytes;

use super::{
    Compare, CompareOp, Error, ErrorKind, RangeRequest, TxnOp, TxnOpResponse, TxnRequest,
    TxnResponse,
};

/// The condition that must hold when a write is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The holder's key of the lock.
    pub key: Bytes,
    /// The fencing token: the revision that created the key. Positive.
    pub token: i64,
}

impl Fence {
    /// The fence of a lock held by `key` with its fencing `token`.
    pub fn new(key: impl Into<Bytes>, token: i64) -> Self {
        Self {
            key: key.into(),
            token,
        }
    }

    /// The comparison that holds while the fence is valid.
    pub fn compare(&self) -> Compare {
        Compare::create_revision(self.key.clone(), CompareOp::Equal, self.token)
    }
}

impl TxnRequest {
    /// Executes `op` if all of `fences` are valid, and nothing otherwise.
    /// [`TxnResponse::into_fenced`] extracts the result.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a token is not positive: 0 is the revision of a missing
    /// key, and would admit every write once the lock is released.
    pub fn fenced(fences: &[Fence], op: TxnOp) -> Result<Self, Error> {
        if let Some(fence) = fences.iter().find(|fence| fence.token < 1) {
            return Err(Error::not_applied(
                ErrorKind::InvalidArgument,
                format!(
                    "{} is not a fencing token: tokens are positive and are issued with the lock",
                    fence.token
                ),
            ));
        }
        let compares = fences.iter().map(Fence::compare);
        #[cfg(leasehold_bugs)]
        let compares = compares.filter(|_| !planted!(FenceUnchecked));
        let looks = fences.iter().map(|fence| {
            TxnOp::Range(RangeRequest {
                key: fence.key.clone(),
                keys_only: true,
                ..RangeRequest::default()
            })
        });
        Ok(Self::new().when(compares).and_then([op]).or_else(looks))
    }
}

impl TxnResponse {
    /// Interprets this as the reply to a [`TxnRequest::fenced`] and returns that of its operation.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`], outcome *not applied*, if a fence was not valid.
    pub fn into_fenced(self) -> Result<TxnOpResponse, Error> {
        let mut responses = self.responses.into_iter();
        if self.succeeded {
            return responses.next().ok_or_else(|| {
                let detail = "the server sent an empty reply to a fenced write";
                Error::unknown(ErrorKind::Internal, detail)
            });
        }
        let revisions = responses.map(|response| match response {
            TxnOpResponse::Range(range) => range.kvs.first().map_or(0, |kv| kv.create_revision),
            _ => 0,
        });
        // With several fences, report one that failed.
        let current = revisions.min().unwrap_or(0);
        Err(Error::fenced(current))
    }
}

impl Error {
    /// The lock is no longer held: its key now has the create revision `current`, or does not exist
    /// if that is 0.
    pub(crate) fn fenced(current: i64) -> Self {
        let found = match current {
            0 => "its key was deleted".to_owned(),
            current => format!("its key is from revision {current} now"),
        };
        Self::not_applied(
            ErrorKind::Fenced { current },
            format!(
                "the lock is no longer held with this token ({found}), so nothing was written: \
                 stop, and acquire the lock again"
            ),
        )
    }
}

/// Of the entries of a queue those are ahead of the one that the revision `token` created which were
/// created up to this one. A waiter for a lock has it once there is none of them (X13).
pub fn last_ahead_of(token: i64) -> i64 {
    match planted!(LockToAnyWaiter) {
        true => 1,
        false => token - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{KeyValue, Outcome, PutResponse, RangeResponse};

    #[test]
    fn a_token_that_is_not_positive_is_refused() {
        for token in [0, -1, i64::MIN] {
            let fenced = TxnRequest::fenced(&[Fence::new("l/1", token)], TxnOp::put("k", "v"));
            let error = fenced.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert_eq!(error.outcome, Outcome::NotApplied);
        }
    }

    #[test]
    fn what_a_fenced_write_answers_is_its_own_answer_or_that_it_is_fenced() {
        let put = TxnOpResponse::Put(PutResponse::default());
        let done = TxnResponse {
            succeeded: true,
            responses: vec![put.clone()],
        };
        assert_eq!(done.into_fenced(), Ok(put));
        let found = |create_revision| {
            let kv = KeyValue {
                create_revision,
                ..KeyValue::default()
            };
            TxnOpResponse::Range(RangeResponse {
                kvs: vec![kv],
                ..RangeResponse::default()
            })
        };
        let gone = TxnOpResponse::Range(RangeResponse::default());
        for (responses, current) in [
            (vec![gone.clone()], 0),
            (vec![found(7)], 7),
            (vec![found(7), gone], 0),
        ] {
            let refused = TxnResponse {
                succeeded: false,
                responses,
            };
            let error = refused.into_fenced().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Fenced { current });
            assert_eq!(error.outcome, Outcome::NotApplied);
        }
    }
}
