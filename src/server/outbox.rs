//! The way back from the driver to a client's stream.
//!
//! The driver must never wait for a client, so it only appends here and rings; the session's task
//! takes everything that has gathered and writes it as one batch. The box needs no bound of its
//! own: a session takes in no more requests than its limit while their answers are outstanding.

use std::sync::Mutex;
use std::sync::PoisonError;

use tokio::sync::Notify;

use crate::api::Error;
use crate::api::Response;
use crate::raft::ReadPermit;

/// What the driver says about a request of this stream.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// It is finished.
    Reply(Result<Response, Error>),
    /// It is a read, and may look at the store now.
    Permit(ReadPermit),
    /// It is a read that asked for a revision and nothing else, and the store has reached it.
    CaughtUp,
}

/// Answers on their way to one stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    gathered: Mutex<Vec<(u64, Delivery)>>,
    arrived: Notify,
}

impl Outbox {
    /// Adds an answer to the stream's request `frame`.
    pub(crate) fn deliver(&self, frame: u64, delivery: Delivery) {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.push((frame, delivery));
        if gathered.len() == 1 {
            drop(gathered);
            self.arrived.notify_one();
        }
    }

    /// Waits until there is something, then moves all of it to `into`.
    ///
    /// Cancel safe: what was not moved stays.
    pub(crate) async fn take(&self, into: &mut Vec<(u64, Delivery)>) {
        loop {
            if self.try_take(into) {
                return;
            }
            self.arrived.notified().await;
        }
    }

    /// Moves what is there to `into`; says whether there was anything.
    pub(crate) fn try_take(&self, into: &mut Vec<(u64, Delivery)>) -> bool {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let some = !gathered.is_empty();
        into.append(&mut gathered);
        some
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorKind;

    #[tokio::test]
    async fn everything_delivered_before_a_take_comes_in_order_and_a_later_one_wakes_the_taker() {
        let outbox = std::sync::Arc::new(Outbox::default());
        let refuse = || Delivery::Reply(Err(Error::not_applied(ErrorKind::NoLeader, "none")));
        outbox.deliver(1, refuse());
        outbox.deliver(2, refuse());
        let mut taken = Vec::new();
        outbox.take(&mut taken).await;
        assert_eq!(
            taken.iter().map(|(frame, _)| *frame).collect::<Vec<_>>(),
            [1, 2]
        );
        taken.clear();
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move {
                let mut taken = Vec::new();
                outbox.take(&mut taken).await;
                taken.len()
            }
        });
        tokio::task::yield_now().await;
        outbox.deliver(3, refuse());
        assert_eq!(waiting.await.unwrap(), 1);
    }
}
