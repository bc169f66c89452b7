//! The way back from the driver to a client's stream.
//!
//! The driver must never wait for a client, so it only appends here and rings; the session's task
//! takes everything that has gathered and writes it as one batch. The box needs no bound of its
//! own: a session takes in no more requests than its limit while their answers are outstanding.

use std::future::poll_fn;
use std::sync::PoisonError;
use std::task::Context;
use std::task::Poll;
use std::task::Waker;

use super::budget::ScanPlace;
use crate::api::Error;
use crate::api::Response;
use crate::node::AskedLeases;
use crate::raft::ReadPermit;
use crate::sync::Mutex;
use crate::sync::MutexGuard;

/// What is said about a request of this stream.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// It is finished.
    Reply(Result<Response, Error>),
    /// It is a read, and may look at the store now.
    Permit(ReadPermit),
    /// It is a read that asked for nothing but a revision, which the store has reached.
    CaughtUp,
    /// It is a question about leases, and may look at the store now: for these, and on this permit,
    /// if it needed one.
    Leases(Option<ReadPermit>, AskedLeases),
    /// It was a scan. Its place is free once the client has been sent what it found.
    Scanned(Result<Response, Error>, ScanPlace),
}

/// Answers on their way to one stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gathered: Vec<(u64, Delivery)>,
    taker: Option<Waker>,
}

impl Outbox {
    /// Adds an answer to the stream's request `frame`.
    pub(crate) fn deliver(&self, frame: u64, delivery: Delivery) {
        let mut state = self.lock();
        state.gathered.push((frame, delivery));
        let taker = state.taker.take();
        drop(state);
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// Waits until there is something, then moves all of it to `into`.
    ///
    /// Cancel safe: what was not moved stays.
    pub(crate) async fn take(&self, into: &mut Vec<(u64, Delivery)>) {
        poll_fn(|cx| match self.poll_take(cx, into) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Moves what is there to `into` and says whether there was anything; if not, the task is woken
    /// when there is. One task at a time.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, into: &mut Vec<(u64, Delivery)>) -> bool {
        let mut state = self.lock();
        if !state.gathered.is_empty() {
            into.append(&mut state.gathered);
            return true;
        }
        match &mut state.taker {
            Some(taker) => taker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
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
