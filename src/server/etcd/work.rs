//! What a connection has to do, on one task: its frames, its calls, and the session that serves those.
//!
//! Calls that arrived together are then asked together, as one closed batch, and their answers leave in one
//! write: no other thread is woken between the socket and the leased read. What takes long waits, or runs on
//! a thread of its own, wherever it is called from.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;

use crate::sync::Mutex;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Takes the calls that hyper begins, until [`Work`] goes on with them.
#[derive(Clone, Default)]
pub(super) struct BegunCalls(Arc<Mutex<Vec<Task>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for BegunCalls {
    fn execute(&self, call: F) {
        self.0.lock().push(Box::pin(call));
    }
}

/// See the module.
pub(super) struct Work {
    begun: BegunCalls,
    calls: FuturesUnordered<Task>,
    /// Serves the calls; done once the last client of it is gone, which is not before this ends.
    session: Option<Task>,
}

impl Work {
    /// Of the calls that `begun` is given, which `session` serves.
    pub(super) fn new(
        begun: BegunCalls,
        session: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self {
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
        // None while the process ends, and then nothing is left to be done.
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(session), Ok(runtime)) = (self.session.take(), runtime) {
            runtime.spawn(session);
        }
    }
}
