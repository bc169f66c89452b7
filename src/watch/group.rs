//! Groups of watchers with the same selection.

use bytes::Bytes;

use crate::api::{EventKind, WatchRequest, successor};

/// The id of a group that has watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(pub(super) u32);

/// The selection of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spec {
    /// The first key.
    pub(super) from: Bytes,
    /// The end of the range, exclusive; `None` if it has no end.
    pub(super) until: Option<Bytes>,
    pub(super) prev_kv: bool,
    pub(super) no_put: bool,
    pub(super) no_delete: bool,
}

impl Spec {
    pub(super) fn of(request: &WatchRequest) -> Self {
        let (from, until) = request.range.bounds(&request.key);
        Self {
            from,
            until,
            prev_kv: request.prev_kv,
            no_put: request.no_put,
            no_delete: request.no_delete,
        }
    }

    /// Whether it selects a single key.
    pub(super) fn is_single(&self) -> bool {
        self.until
            .as_ref()
            .is_some_and(|until| *until == successor(&self.from))
    }

    pub(super) fn holds(&self, key: &[u8]) -> bool {
        key >= self.from.as_ref() && self.until.as_ref().is_none_or(|until| key < until.as_ref())
    }

    pub(super) fn wants(&self, kind: EventKind) -> bool {
        match kind {
            EventKind::Put => !self.no_put,
            EventKind::Delete => !self.no_delete || planted!(FilterIgnored),
        }
    }
}

/// The watchers of a group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) spec: Spec,
    /// Those that keep up, by their slots.
    pub(super) current: Vec<u32>,
    /// How many there are in all.
    pub(super) watchers: usize,
}
