//! The client's state of a watch, with which it continues on another stream.
//!
//! Streams end: connections break, nodes stop, a node cancels a slow watch. A [`WatchCursor`]
//! records what the watch has received, and so what to request from the next node such that no
//! event is lost or repeated; it assembles revisions that arrive in parts, and discards a part
//! whose remainder did not arrive. It does no I/O: the SDK runs it over the network, the simulator
//! over its own.

use super::{Error, ErrorKind, Event, KeyValue, WatchMessage, WatchRequest};

/// See the module.
#[derive(Clone, Debug)]
pub struct WatchCursor {
    request: WatchRequest,
    /// The first revision not received yet; 0 to let the node choose it.
    next: i64,
    /// The initial state is not complete.
    is_listing: bool,
    /// The parts received of an incomplete revision.
    parts: Vec<Event>,
}

/// An event of a watch. [`WatchCursor::take`] returns the four that a node's message can mean; the
/// client adds [`Created`](Self::Created), [`Resumed`](Self::Resumed) and
/// [`Restarted`](Self::Restarted).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The watch is open. Always the first event.
    Created {
        /// The node's revision when the watch was opened; a watch without a start revision receives
        /// every change above it.
        revision: i64,
    },
    /// A part of the initial state.
    State {
        /// Key-value pairs, in key order.
        kvs: Vec<KeyValue>,
    },
    /// The initial state is complete.
    Synced {
        /// The revision of that state.
        revision: i64,
    },
    /// All changes of one revision, in the order they were made: a revision is never split.
    Events {
        /// The revision.
        revision: i64,
        /// The changes.
        events: Vec<Event>,
    },
    /// Every change up to this revision has been delivered.
    Progress {
        /// The revision.
        revision: i64,
    },
    /// The watch was interrupted and continues without gaps or duplicates.
    Resumed {
        /// The first revision whose changes may follow.
        from: i64,
        /// The cause of the interruption.
        cause: Error,
    },
    /// The watch was interrupted before the initial state was complete, and starts over: discard
    /// the state received so far.
    Restarted {
        /// The cause of the interruption.
        cause: Error,
    },
}

/// Why reading a stream stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The watch continues on another stream.
    Interrupted(Error),
    /// The watch has ended for good.
    Over(Error),
}

impl WatchCursor {
    /// A watch that has received nothing yet. `request` must have passed
    /// [`WatchRequest::validate`].
    pub fn new(request: WatchRequest) -> Self {
        Self {
            next: request.start_revision,
            is_listing: request.initial_state,
            request,
            parts: Vec::new(),
        }
    }

    /// The request to send to the next node.
    pub fn request(&self) -> WatchRequest {
        let next = match planted!(ResumeBeforeNext) {
            true if self.next > self.request.start_revision.max(1) => self.next - 1,
            _ => self.next,
        };
        WatchRequest {
            start_revision: if self.is_listing { 0 } else { next },
            initial_state: self.is_listing,
            ..self.request.clone()
        }
    }

    /// The first revision whose changes may follow; `None` while the initial state is incomplete,
    /// which the next stream starts over.
    pub fn resumes_from(&self) -> Option<i64> {
        (!self.is_listing).then_some(self.next)
    }

    /// A node has opened the watch at this revision.
    pub fn opened(&mut self, revision: i64) {
        if !planted!(PartsKept) {
            self.parts.clear();
        }
        if !self.is_listing && self.next == 0 {
            self.next = revision + 1;
        }
    }

    /// The event that a message of the stream completes; `None` if more must come first.
    ///
    /// # Errors
    /// The reason why reading the stream stops.
    pub fn take(&mut self, message: WatchMessage) -> Result<Option<WatchEvent>, WatchEnd> {
        Ok(match message {
            WatchMessage::Created { .. } => None,
            WatchMessage::State { kvs } => Some(WatchEvent::State { kvs }),
            WatchMessage::Synced { revision } => {
                self.is_listing = false;
                self.next = revision + 1;
                Some(WatchEvent::Synced { revision })
            }
            WatchMessage::Events {
                revision,
                is_partial,
                events,
            } => {
                if revision < self.next {
                    return Err(WatchEnd::Interrupted(Error::not_applied(
                        ErrorKind::Internal,
                        format!(
                            "the node sent revision {revision} to a watch that starts at {}",
                            self.next
                        ),
                    )));
                }
                self.parts.extend(events);
                if is_partial {
                    return Ok(None);
                }
                self.next = revision + 1;
                let events = std::mem::take(&mut self.parts);
                Some(WatchEvent::Events { revision, events })
            }
            WatchMessage::Progress { revision } => {
                self.next = self.next.max(revision + 1);
                Some(WatchEvent::Progress { revision })
            }
            WatchMessage::Canceled {
                error,
                resume_revision,
            } => return Err(self.canceled(error, resume_revision)),
        })
    }

    fn canceled(&mut self, error: Error, resume_revision: Option<i64>) -> WatchEnd {
        match (&error.kind, resume_revision) {
            (ErrorKind::SlowWatcher, Some(resume)) => {
                self.next = self.next.max(resume);
                WatchEnd::Interrupted(error)
            }
            (ErrorKind::SlowWatcher, None) if self.request.initial_state => {
                self.is_listing = true;
                WatchEnd::Interrupted(error)
            }
            (ErrorKind::Compacted { .. }, _) if self.is_listing => WatchEnd::Interrupted(error),
            // Another node may serve it, from the next revision on.
            (ErrorKind::NoLeader | ErrorKind::Unavailable | ErrorKind::Corrupt, _) => {
                WatchEnd::Interrupted(error)
            }
            _ => WatchEnd::Over(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(start_revision: i64) -> WatchCursor {
        WatchCursor::new(WatchRequest {
            start_revision,
            ..WatchRequest::default()
        })
    }

    fn events(revision: i64, is_partial: bool, keys: &[&'static str]) -> WatchMessage {
        let event = |key: &&'static str| Event {
            kind: super::super::EventKind::Delete,
            kv: KeyValue {
                key: bytes::Bytes::from_static(key.as_bytes()),
                mod_revision: revision,
                ..KeyValue::default()
            },
            prev_kv: None,
        };
        WatchMessage::Events {
            revision,
            is_partial,
            events: keys.iter().map(event).collect(),
        }
    }

    fn changes(event: Option<WatchEvent>) -> Option<(i64, usize)> {
        match event {
            Some(WatchEvent::Events { revision, events }) => Some((revision, events.len())),
            _ => None,
        }
    }

    fn canceled(kind: ErrorKind, resume_revision: Option<i64>) -> WatchMessage {
        WatchMessage::Canceled {
            error: Error::not_applied(kind, "it is over"),
            resume_revision,
        }
    }

    #[test]
    fn it_goes_on_after_what_was_told_and_a_start_of_now_is_fixed_once() {
        let mut cursor = from(0);
        assert_eq!(cursor.request().start_revision, 0);
        cursor.opened(7);
        assert_eq!(cursor.request().start_revision, 8);
        assert_eq!(
            changes(cursor.take(events(9, false, &["a"])).unwrap()),
            Some((9, 1))
        );
        assert_eq!(cursor.resumes_from(), Some(10));
        cursor.opened(30);
        assert_eq!(
            cursor.request().start_revision,
            10,
            "not what the next node has"
        );
        let progress = WatchMessage::Progress { revision: 20 };
        assert!(cursor.take(progress).unwrap().is_some());
        assert_eq!(cursor.request().start_revision, 21);
    }

    #[test]
    fn a_part_whose_rest_did_not_come_is_told_whole_by_the_next_stream() {
        let mut cursor = from(5);
        cursor.opened(9);
        assert_eq!(cursor.take(events(6, true, &["a"])), Ok(None));
        cursor.opened(9);
        assert_eq!(cursor.request().start_revision, 5);
        assert_eq!(cursor.take(events(6, true, &["a"])), Ok(None));
        assert_eq!(
            changes(cursor.take(events(6, false, &["b"])).unwrap()),
            Some((6, 2))
        );
        assert_eq!(cursor.request().start_revision, 7);
    }

    #[test]
    fn what_was_told_already_is_not_told_again() {
        let mut cursor = from(5);
        cursor.opened(9);
        assert!(cursor.take(events(6, false, &["a"])).is_ok());
        let again = cursor.take(events(6, false, &["a"]));
        assert!(matches!(again, Err(WatchEnd::Interrupted(_))), "{again:?}");
    }

    #[test]
    fn a_state_that_was_not_complete_begins_anew_and_a_complete_one_does_not() {
        let mut cursor = WatchCursor::new(WatchRequest {
            initial_state: true,
            ..WatchRequest::default()
        });
        cursor.opened(9);
        assert_eq!(cursor.resumes_from(), None);
        let compacted = ErrorKind::Compacted {
            compact_revision: 12,
        };
        let end = cursor.take(canceled(compacted.clone(), None));
        assert!(matches!(end, Err(WatchEnd::Interrupted(_))), "{end:?}");
        assert!(cursor.request().initial_state);
        assert!(cursor.take(WatchMessage::Synced { revision: 14 }).is_ok());
        let request = cursor.request();
        assert_eq!((request.start_revision, request.initial_state), (15, false));
        let slow = cursor.take(canceled(ErrorKind::SlowWatcher, None));
        assert!(matches!(slow, Err(WatchEnd::Interrupted(_))), "{slow:?}");
        assert!(
            cursor.request().initial_state,
            "a part of it was not delivered"
        );
        assert!(cursor.take(WatchMessage::Synced { revision: 16 }).is_ok());
        let over = cursor.take(canceled(compacted, None));
        assert!(matches!(over, Err(WatchEnd::Over(_))), "{over:?}");
    }

    #[test]
    fn a_slow_watch_goes_on_where_its_node_says_and_never_before_what_was_told() {
        let mut cursor = from(5);
        cursor.opened(9);
        assert!(
            cursor
                .take(canceled(ErrorKind::SlowWatcher, Some(8)))
                .is_err()
        );
        assert_eq!(cursor.request().start_revision, 8);
        assert!(
            cursor
                .take(canceled(ErrorKind::SlowWatcher, Some(3)))
                .is_err()
        );
        assert_eq!(cursor.request().start_revision, 8);
        let corrupt = cursor.take(canceled(ErrorKind::Corrupt, None));
        assert!(
            matches!(corrupt, Err(WatchEnd::Interrupted(_))),
            "{corrupt:?}"
        );
    }
}
