//! Watches, ranges and snapshots as [`Stream`]s, for programs that combine streams.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::{RangeStream, SnapshotStream, Watcher};
use crate::api::{Error, KeyValue, WatchEvent};

impl Stream for Watcher {
    type Item = Result<WatchEvent, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_next(cx)
    }
}

type NextItem<S, T> = Pin<Box<dyn Future<Output = (S, Option<T>)> + Send>>;

/// The items of a source, each asked for when the one before was taken.
///
/// # Cancel safety
/// Dropped, it ends; no item is lost while it is kept.
pub struct Items<S, T> {
    state: State<S, T>,
    next: fn(S) -> NextItem<S, T>,
}

enum State<S, T> {
    Idle(Option<S>),
    Asking(NextItem<S, T>),
}

impl<S: Unpin, T> Stream for Items<S, T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Idle(source) => match source.take() {
                    None => return Poll::Ready(None),
                    Some(source) => this.state = State::Asking((this.next)(source)),
                },
                State::Asking(next) => {
                    let (source, item) = ready!(next.as_mut().poll(cx));
                    this.state = State::Idle(item.is_some().then_some(source));
                    return Poll::Ready(item);
                }
            }
        }
    }
}

impl<S, T> fmt::Debug for Items<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}

impl RangeStream {
    /// The keys as a [`Stream`]. An error is the last item.
    pub fn into_stream(self) -> Items<Self, Result<KeyValue, Error>> {
        Items {
            state: State::Idle(Some(self)),
            next: |mut source| {
                Box::pin(async {
                    let item = source.next().await;
                    (source, item)
                })
            },
        }
    }
}

impl SnapshotStream {
    /// The chunks as a [`Stream`]. An error is the last item. What [`SnapshotStream::summary`] says is to be
    /// found in the chunks, too.
    pub fn into_stream(self) -> Items<Self, Result<Bytes, Error>> {
        Items {
            state: State::Idle(Some(self)),
            next: |mut source| {
                Box::pin(async {
                    let item = source.next().await;
                    (source, item)
                })
            },
        }
    }
}
