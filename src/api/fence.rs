//! Fences: writes that are let through only as long as a lock has not moved on.
//!
//! No lease makes a lock safe by itself: whoever holds one may be suspended, and wake long after the
//! lease has ended and somebody else holds it (T13). So a holder has a token, the
//! revision that created its key of the lock, and a write may name both. The store compares them
//! when it applies the write, in the order of the log and under no clock, and refuses it with
//! [`ErrorKind::Fenced`] if the key is gone or is a later one.
//!
//! On the wire a fenced write is a transaction that compares first and carries the write inside;
//! nothing but the comparison of create revisions is needed, which every replica does alike.

use bytes::Bytes;

use super::{
    Compare, CompareOp, Error, ErrorKind, RangeRequest, TxnOp, TxnOpResponse, TxnRequest,
    TxnResponse,
};

/// What must still stand when a write is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The key that its holder has in a lock.
    pub key: Bytes,
    /// The fencing token: the revision that created the key. Positive.
    pub token: i64,
}

impl Fence {
    /// The fence of whoever holds a lock by `key`, with the `token` that it got.
    pub fn new(key: impl Into<Bytes>, token: i64) -> Self {
        Self {
            key: key.into(),
            token,
        }
    }

    /// What holds for as long as the fence stands.
    pub fn compare(&self) -> Compare {
        Compare::create_revision(self.key.clone(), CompareOp::Equal, self.token)
    }
}

impl TxnRequest {
    /// Carries `op` out if all of `fences` stand, else nothing. [`TxnResponse::into_fenced`] tells
    /// the result.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if a token is not positive: 0 is the revision of a key that
    /// does not exist, and would let everybody through once the lock is gone.
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
    /// Reads this as the answer to a [`TxnRequest::fenced`]: what its operation answered.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`], outcome *not applied*, if a fence did not stand.
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
        // Of several, one that is gone says more than one that stands.
        let current = revisions.min().unwrap_or(0);
        Err(Error::fenced(current))
    }
}

impl Error {
    /// The lock has moved on: its key is from the revision `current` now, or, at 0, gone.
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
/// created up to this one. Whoever waits for a lock has it once there is none of them (X13).
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
