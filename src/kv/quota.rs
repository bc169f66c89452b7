//! The space quota: while the alarm is raised, writes that would make the state grow are refused.
//!
//! The state machine measures nothing. The leader does, and proposes an entry that raises or clears
//! the alarm, with the figures that appear in every refusal: so all replicas refuse the same writes
//! with the same message. What frees space is always allowed: deletions, compactions, ends of
//! leases, and transactions without a put on any path. Renewals are not affected.

use crate::api::{TxnOp, TxnRequest};

use super::command::Operation;

impl Operation {
    /// Whether it may make the state grow, whatever the state is.
    pub fn takes_room(&self) -> bool {
        match self {
            Self::Put(_) | Self::LeaseGrant(_) | Self::PutWithNewLease { .. } => true,
            Self::Txn(txn) => puts_something(txn),
            Self::DeleteRange(_)
            | Self::Compact(_)
            | Self::LeaseRevoke(_)
            | Self::LeaseUpdateTtl { .. }
            | Self::Auth(_)
            | Self::SetAlarm { .. } => false,
        }
    }
}

/// Whether any path through `txn` puts a key. Its nesting was bounded when the request was
/// accepted.
fn puts_something(txn: &TxnRequest) -> bool {
    let operations = txn.success.iter().chain(&txn.failure);
    operations.into_iter().any(|operation| match operation {
        TxnOp::Put(_) => true,
        TxnOp::Txn(nested) => puts_something(nested),
        TxnOp::Range(_) | TxnOp::DeleteRange(_) => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{CompactionRequest, DeleteRangeRequest, LeaseRef, PutRequest};
    use crate::kv::LeaseGrant;

    #[test]
    fn what_puts_or_grants_takes_room_and_what_frees_it_does_not() {
        let put = || TxnOp::Put(PutRequest::default());
        let delete = || TxnOp::DeleteRange(DeleteRangeRequest::default());
        let nested = |operation| TxnRequest::new().or_else([operation]);
        let txn = |operation| Operation::Txn(nested(TxnOp::Txn(nested(operation))));
        for growing in [
            Operation::Put(PutRequest::default()),
            Operation::LeaseGrant(LeaseGrant::default()),
            Operation::PutWithNewLease {
                grant: Box::default(),
                put: PutRequest::default(),
            },
            txn(put()),
            Operation::Txn(TxnRequest::new().and_then([delete(), put()])),
        ] {
            assert!(growing.takes_room(), "{growing:?}");
        }
        for freeing in [
            Operation::DeleteRange(DeleteRangeRequest::default()),
            Operation::Compact(CompactionRequest::at(5)),
            Operation::LeaseRevoke(LeaseRef::id(1)),
            Operation::LeaseUpdateTtl {
                lease: LeaseRef::id(1),
                ttl_ms: 5,
            },
            txn(delete()),
        ] {
            assert!(!freeing.takes_room(), "{freeing:?}");
        }
    }
}
