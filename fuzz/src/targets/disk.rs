//! A log and a vote on a disk that keeps what was settled and forgets the rest.

use std::collections::VecDeque;

use leasehold::raft::{Entry, HardState, Ticket, UnsavedState};
use leasehold::types::LogIndex;

/// What is on the disk, and what is on its way there.
#[derive(Debug, Default)]
pub struct Disk {
    pub hard_state: HardState,
    pub entries: Vec<Entry>,
    pub writing: VecDeque<(Ticket, UnsavedState)>,
}

impl Disk {
    /// The oldest write becomes durable.
    pub fn settle_one(&mut self) -> Option<Ticket> {
        let (ticket, unsaved) = self.writing.pop_front()?;
        self.hard_state = unsaved.hard_state.unwrap_or(self.hard_state);
        if let Some(first) = unsaved.entries.first() {
            self.entries.truncate(place(first.id.index));
            assert_eq!(
                self.entries.len(),
                place(first.id.index),
                "a hole in the log"
            );
        }
        self.entries.extend(unsaved.entries);
        Some(ticket)
    }

    pub fn last(&self) -> LogIndex {
        self.entries
            .last()
            .map_or(LogIndex(0), |entry| entry.id.index)
    }
}

/// Where the entry at `index` lies among all.
pub fn place(index: LogIndex) -> usize {
    usize::try_from(index.0 - 1).expect("logs are short here")
}
