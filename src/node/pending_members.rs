//! Requests that wait for an answer about members.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{LogIndex, NodeId, RequestId};

/// Pending requests about members.
#[derive(Default)]
pub(super) struct PendingMembers {
    /// Reads of the member list.
    pub(super) lists: BTreeSet<RequestId>,
    /// Changes, by log index, with the member that each is about.
    pub(super) changes: BTreeMap<RequestId, (LogIndex, NodeId)>,
}

impl PendingMembers {
    /// The client no longer waits for this reply.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.lists.remove(&id);
        self.changes.remove(&id);
    }
}
