//! `tokio::sync::Notify` as its documentation has it, over a lock of loom's. Tokio tries its own
//! code under loom itself; what is tried here is whether ours can rest on what it promises.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::sync::Mutex;

use crate::planted::is_on;

/// One permit at most, and those that wait.
#[derive(Debug)]
pub(crate) struct Notify {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    permit: bool,
    /// How often everybody was called.
    calls: u64,
    /// Each by the number of its future.
    waiting: VecDeque<(u64, Waker)>,
    numbers: u64,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State::default()),
        }
    }

    /// Wakes one that waits, or leaves a permit for the next.
    pub(crate) fn notify_one(&self) {
        if is_on("NoticeLost") {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.permit = true;
        let waiting = state.waiting.pop_front();
        drop(state);
        if let Some((_, waker)) = waiting {
            waker.wake();
        }
    }

    /// Wakes whoever has called [`notified`](Self::notified) before this, polled or not, and leaves
    /// no permit.
    pub(crate) fn notify_waiters(&self) {
        if is_on("NoticeLost") {
            return;
        }
        let mut state = self.state.lock().unwrap();
        state.calls += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        let mut state = self.state.lock().unwrap();
        state.numbers += 1;
        Notified {
            number: state.numbers,
            calls: state.calls,
            notify: self,
        }
    }
}

pub(crate) struct Notified<'a> {
    notify: &'a Notify,
    number: u64,
    calls: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.notify.state.lock().unwrap();
        state.waiting.retain(|(number, _)| *number != self.number);
        if state.calls > self.calls || std::mem::take(&mut state.permit) {
            return Poll::Ready(());
        }
        let place = (self.number, cx.waker().clone());
        state.waiting.push_back(place);
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        let mut state = self.notify.state.lock().unwrap();
        state.waiting.retain(|(number, _)| *number != self.number);
    }
}

/// Only so that what knows it can be compiled: no model waits for a place.
#[derive(Debug)]
pub(crate) struct Semaphore;

#[derive(Debug)]
pub(crate) struct OwnedSemaphorePermit;

impl Semaphore {
    pub(crate) async fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, ()> {
        Ok(OwnedSemaphorePermit)
    }
}
