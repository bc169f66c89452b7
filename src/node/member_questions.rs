//! Requests that wait for an answer about members.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{LogIndex, NodeId, RequestId};

/// Who waits for what about members.
#[derive(Default)]
pub(super) struct MemberQuestions {
    /// Reads of the list.
    pub(super) lists: BTreeSet<RequestId>,
    /// Changes, by where their entries are, with the member that each is about.
    pub(super) changes: BTreeMap<RequestId, (LogIndex, NodeId)>,
}

impl MemberQuestions {
    /// Nobody waits for this answer any more.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.lists.remove(&id);
        self.changes.remove(&id);
    }
}
