//! Sequence numbers for writes, so that the cluster recognises a retry.
//!
//! A client opens one session, at its first write, and numbers its writes in it. The numbers do not
//! imply an order: writes are in flight together and may arrive in any. Each write also carries the
//! number up to which all are settled, so that the cluster may forget those replies. Settled means
//! that the client will not send it again: it was answered, abandoned or dropped.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::SessionCall;
use crate::sync::{Mutex, MutexGuard};
use crate::types::SessionId;

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    id: SessionId,
    numbers: Mutex<Numbers>,
}

#[derive(Debug)]
struct Numbers {
    next: u64,
    unsettled: BTreeSet<u64>,
}

impl Session {
    pub(super) fn new(id: SessionId) -> Arc<Self> {
        Arc::new(Self {
            id,
            numbers: Mutex::new(Numbers {
                next: 1,
                unsettled: BTreeSet::new(),
            }),
        })
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    /// Allocates the sequence number of a new write.
    pub(super) fn number(self: &Arc<Self>) -> Ticket {
        let mut numbers = self.lock();
        let sequence = numbers.next;
        numbers.next += 1;
        numbers.unsettled.insert(sequence);
        drop(numbers);
        Ticket {
            session: Arc::clone(self),
            sequence,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock()
    }
}

/// A write's sequence number. The write is settled when this is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    session: Arc<Session>,
    sequence: u64,
}

impl Ticket {
    /// The session part of a call that is sent now.
    pub(super) fn call(&self) -> SessionCall {
        let numbers = self.session.lock();
        let acknowledged = numbers
            .unsettled
            .first()
            .map_or(numbers.next, |oldest| *oldest)
            - 1;
        SessionCall {
            id: self.session.id,
            sequence: self.sequence,
            acknowledged,
        }
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.session.lock().unsettled.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_before_the_oldest_unsettled_write_is_acknowledged() {
        let session = Session::new(SessionId(7));
        let first = session.number();
        let second = session.number();
        assert_eq!((first.call().sequence, first.call().acknowledged), (1, 0));
        assert_eq!((second.call().sequence, second.call().acknowledged), (2, 0));
        drop(second);
        let third = session.number();
        assert_eq!(third.call().acknowledged, 0, "the first may be sent again");
        drop(first);
        assert_eq!(third.call().acknowledged, 2);
        drop(third);
        assert_eq!(session.number().call().acknowledged, 3);
    }

    #[test]
    fn a_number_is_never_given_twice() {
        let session = Session::new(SessionId(7));
        let numbers: Vec<u64> = (0..5).map(|_| session.number().call().sequence).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
    }
}
