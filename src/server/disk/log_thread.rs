//! The thread that owns the log. (Signatures; the implementation follows.)

use std::io;
use std::time::Duration;

use crate::log::Disk;
use crate::log::Log;
use crate::log::LogError;
use crate::log::Recovery;
use crate::raft::Configuration;
use crate::raft::Restored;
use crate::raft::Ticket;
use crate::raft::Unsaved;
use crate::types::LogIndex;

/// What the log thread has to say. Called on that thread; must not block.
pub trait LogEvents: Send + 'static {
    /// Everything up to and including `ticket` is durable.
    fn persisted(&mut self, ticket: Ticket);
    /// The log is lost to this process, which must end. Called once, and nothing after it.
    fn fatal(&mut self, error: LogError);
    /// One group was made durable; for metrics.
    fn committed(&mut self, group: &GroupCommit) {
        let _ = group;
    }
}

/// What one group commit was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCommit {
    /// Tickets in it.
    pub tickets: u64,
    /// Entries in it.
    pub entries: u64,
    /// Payload bytes of these entries.
    pub bytes: u64,
    /// Whether the vote file was written, too.
    pub vote: bool,
    /// From taking the group to all of it durable.
    pub took: Duration,
}

/// The handle of the log thread.
#[derive(Debug)]
pub struct LogThread {}

#[allow(unused_variables, clippy::unimplemented)]
impl LogThread {
    /// Starts it.
    pub fn spawn<D>(log: Log<D>, events: impl LogEvents) -> io::Result<Self>
    where
        D: Disk + Send + 'static,
        D::File: Send,
    {
        unimplemented!()
    }
    /// Hands work over; never waits. The caller bounds what is under way. Tickets must rise.
    pub fn submit(&self, ticket: Ticket, unsaved: Unsaved) {
        unimplemented!()
    }
    /// Finishes what was submitted, writes the mark, and ends the thread.
    pub fn stop(self) {
        unimplemented!()
    }
}

/// What consensus restarts from. `applied` is the state machine's; `base_configuration` the one
/// in force at `recovery.base`.
#[allow(unused_variables, clippy::unimplemented)]
pub fn restore(
    recovery: Recovery,
    base_configuration: Configuration,
    applied: LogIndex,
) -> Result<Restored, RestoreError> {
    unimplemented!()
}

/// The log holds an entry that this version cannot read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {}
