//! What a connection has to do, on one task: its frames, its calls, and the session that serves those.
//!
//! Calls that arrived together are then asked together, as one closed batch, and their answers leave in one
//! write: no other thread is woken between the socket and the leased read. What takes long waits, or runs on
//! a thread of its own, wherever it is called from.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream};
use hyper::rt::Executor;

use crate::sync::{AtomicUsize, Mutex, Ordering};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a connection hands on at most before its calls are gone on with. What arrives and is given up again before
/// anybody has looked at it takes memory until then, and the library for HTTP/2 ends a connection with much of that.
/// Of an honest client, who may give up what it likes, nothing gathers so.
const TURN_BYTES: usize = 32 << 10;
/// More streams than that opens and resets: two frames of at least nine bytes each, and what they hold.
pub(super) const RESETS_MAX: usize = TURN_BYTES / 18;

/// How much a connection may still hand on in this turn of its task.
#[derive(Clone, Default)]
pub(super) struct Turn(Arc<AtomicUsize>);

impl Turn {
    pub(super) fn begin(&self) {
        self.0.store(TURN_BYTES, Ordering::Relaxed);
    }

    /// Takes as many of these bytes as are left; the next turn comes at once if none are.
    pub(super) fn poll_take(&self, cx: &mut Context<'_>, bytes: usize) -> Poll<usize> {
        let left = self.0.load(Ordering::Relaxed);
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let taken = left.min(bytes);
        self.0.store(left - taken, Ordering::Relaxed);
        Poll::Ready(taken)
    }
}

/// Takes the calls that hyper begins, until [`Work`] goes on with them.
#[derive(Clone, Default)]
pub(super) struct BegunCalls(Arc<Mutex<Vec<Task>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for BegunCalls {
    fn execute(&self, call: F) {
        // A call that panics ends alone. The panic itself is in the log by then.
        let call = AssertUnwindSafe(call).catch_unwind();
        self.0
            .lock()
            .push(Box::pin(async move { drop(call.await) }));
    }
}

/// See the module.
pub(super) struct Work {
    turn: Turn,
    begun: BegunCalls,
    calls: FuturesUnordered<Task>,
    /// Serves the calls; done once the last client of it is gone, which is not before this ends.
    session: Option<Task>,
}

impl Work {
    /// Of the calls that `begun` is given, which `session` serves, on a connection that reads by `turn`.
    pub(super) fn new(
        turn: Turn,
        begun: BegunCalls,
        session: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
            turn,
            begun,
            calls: FuturesUnordered::new(),
            session: Some(Box::pin(session)),
        }
    }

    /// Does it until `connection` has ended, and gives what came of that.
    ///
    /// # Cancel safety
    /// Nothing is lost: it goes on when it is called again.
    pub(super) async fn until<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|cx| {
            self.turn.begin();
            // Whatever becomes ready after its turn wakes this task once more.
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(ended);
            }
            self.poll_calls(cx);
            if let Some(session) = &mut self.session
                && session.as_mut().poll(cx).is_ready()
            {
                self.session = None;
            }
            self.poll_calls(cx);
            // Sends the answers that are there.
            connection.as_mut().poll(cx)
        })
        .await
    }

    fn poll_calls(&mut self, cx: &mut Context<'_>) {
        self.calls.extend(self.begun.0.lock().drain(..));
        while let Poll::Ready(Some(())) = Pin::new(&mut self.calls).poll_next(cx) {}
    }
}

impl Drop for Work {
    /// The calls end with the connection. What some of them leave behind to be done, as who gives up a place in a
    /// line does, is served until that has been done.
    fn drop(&mut self) {
        self.calls.clear();
        // These hold what they wait in: hyper gives a call its executor.
        let begun = std::mem::take(&mut *self.begun.0.lock());
        drop(begun);
        // A session that has panicked is not gone on with.
        if std::thread::panicking() {
            return;
        }
        // None while the process ends, and then nothing is left to be done.
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(session), Ok(runtime)) = (self.session.take(), runtime) {
            runtime.spawn(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn count(ended: &AtomicUsize) -> usize {
        ended.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_call_that_was_not_gone_on_with_ends_with_the_connection_though_it_holds_its_executor()
     {
        let (begun, ended) = (BegunCalls::default(), Arc::new(AtomicUsize::new(0)));
        let mut work = Work::new(Turn::default(), begun.clone(), std::future::pending());
        let (executor, counted) = (begun.clone(), Counted(ended.clone()));
        let connection = async move {
            let kept = executor.clone();
            executor.execute(async move {
                let _ = (counted, kept);
                std::future::pending::<()>().await;
            });
        };
        work.until(std::pin::pin!(connection)).await;
        assert_eq!(count(&ended), 0);
        drop(work);
        assert_eq!(count(&ended), 1);
    }

    #[tokio::test]
    async fn a_call_that_panics_ends_alone() {
        let (begun, ended) = (BegunCalls::default(), Arc::new(AtomicUsize::new(0)));
        let mut work = Work::new(Turn::default(), begun.clone(), std::future::pending());
        begun.execute(async { panic!("as a call may") });
        let counted = Counted(ended.clone());
        begun.execute(async move { drop(counted) });
        let other = ended.clone();
        let connection = async move {
            while count(&other) == 0 {
                tokio::task::yield_now().await;
            }
        };
        work.until(std::pin::pin!(connection)).await;
    }
}
