//! The way back from the driver to a client's stream.
//!
//! The driver must never wait for a client, so it only appends here and rings; the session's task
//! takes everything that has gathered and writes it as one batch. The box needs no bound of its
//! own: a session takes in no more requests than its limit while their answers are outstanding.
//!
//! When a stream ends, its requests continue: a proposed entry cannot be withdrawn. The resources that
//! they hold stay here until each request is answered or dropped, so a client cannot exceed its limits by
//! disconnecting.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::api::{Error, Response};
use crate::node::QueriedLeases;
use crate::raft::ReadPermit;
use crate::sync::{Mutex, MutexGuard};

/// An event of one request of this stream.
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
    Leases(Option<ReadPermit>, QueriedLeases),
    /// The result of a scan. The connection may begin another one once the client has been sent this one.
    Scanned(Result<Response, Error>, HeldResources),
}

/// When a request was how far, as far as those know who had it in their hands. With what its session
/// knows itself, that tells where its time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stages {
    /// The driver took it in; a write was proposed then.
    pub(crate) taken: Option<Instant>,
    /// Its entry was known to be committed, and handed on to be applied.
    pub(crate) committed: Option<Instant>,
    /// The look at the store began.
    pub(crate) looked: Option<Instant>,
}

/// A request's number, its event, and the times of its stages.
pub(crate) type Completion = (u64, Delivery, Stages);

/// What a request holds of the node while there is work for it, given back when dropped.
pub(crate) type HeldResources = Box<dyn fmt::Debug + Send>;

/// Answers on their way to one stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gathered: Vec<Completion>,
    taker: Option<Waker>,
    /// Once the stream is over: what its requests hold that are not answered.
    left: Option<BTreeMap<u64, HeldResources>>,
}

impl Outbox {
    /// Adds an answer to the stream's request `frame`, of whose way nothing is known.
    pub(crate) fn deliver(&self, frame: u64, delivery: Delivery) {
        self.deliver_after(Stages::default(), frame, delivery);
    }

    /// Adds an answer to the stream's request `frame`, which has come this way.
    pub(crate) fn deliver_after(&self, stages: Stages, frame: u64, delivery: Delivery) {
        let mut state = self.lock();
        if let Some(left) = &mut state.left {
            let held = left.remove(&frame);
            drop(state);
            drop((held, delivery));
            return;
        }
        state.gathered.push((frame, delivery, stages));
        let taker = state.taker.take();
        drop(state);
        if let Some(taker) = taker {
            taker.wake();
        }
    }

    /// The stream has ended and its completions are no longer read. `held` belongs to the requests whose
    /// completion was not read: each keeps its resources until it is answered.
    pub(crate) fn abandon(&self, mut held: BTreeMap<u64, HeldResources>) {
        let mut state = self.lock();
        let gathered = std::mem::take(&mut state.gathered);
        // These have been answered and not yet read.
        let answered = gathered.iter().map(|(frame, ..)| held.remove(frame));
        let answered: Vec<_> = answered.collect();
        state.taker = None;
        state.left = Some(held);
        drop(state);
        drop((answered, gathered));
    }

    /// Waits until there is something, then moves all of it to `into`.
    ///
    /// Cancel safe: what was not moved stays.
    pub(crate) async fn take(&self, into: &mut Vec<Completion>) {
        poll_fn(|cx| match self.poll_take(cx, into) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }

    /// Moves what is there to `into` and says whether there was anything; if not, the task is woken
    /// when there is. One task at a time.
    pub(crate) fn poll_take(&self, cx: &Context<'_>, into: &mut Vec<Completion>) -> bool {
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
        self.state.lock()
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
            taken.iter().map(|(frame, ..)| *frame).collect::<Vec<_>>(),
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

    #[test]
    fn what_an_ended_stream_holds_is_given_back_answer_by_answer() {
        let held = std::sync::Arc::new(());
        let hold = |frame: u64| -> (u64, HeldResources) { (frame, Box::new(held.clone())) };
        let outbox = std::sync::Arc::new(Outbox::default());
        outbox.deliver(1, Delivery::CaughtUp);
        outbox.abandon([1, 2, 3].map(hold).into());
        // The first was answered.
        assert_eq!(std::sync::Arc::strong_count(&held), 3);
        outbox.deliver(2, Delivery::CaughtUp);
        assert_eq!(std::sync::Arc::strong_count(&held), 2);
        drop(outbox);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}
