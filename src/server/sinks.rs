//! Where the driver's outputs go, and where the log thread's reports come from.

use std::sync::Arc;

use super::disk::log_thread::GroupCommit;
use super::disk::log_thread::LogEvents;
use super::disk::log_thread::LogThread;
use super::driver::Mail;
use super::driver::Mailbox;
use super::driver::Sinks;
use super::gather::Gather;
use super::metrics::Metrics;
use super::peers::Peers;
use super::state_thread::Work;
use crate::log::LogError;
use crate::node::Input;
use crate::raft::Entry;
use crate::raft::Envelope;
use crate::raft::Status;
use crate::raft::Ticket;
use crate::raft::Unsaved;
use crate::types::Role;

/// Carries the driver's outputs to the threads that do them.
pub(crate) struct Hands {
    pub(crate) log: Arc<LogThread>,
    pub(crate) state: Arc<Gather<Work>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) name: String,
}

impl Sinks for Hands {
    fn persist(&mut self, ticket: Ticket, unsaved: Unsaved) {
        self.log.submit(ticket, unsaved);
    }

    fn send(&mut self, envelope: Envelope) {
        self.metrics.message_sent(&envelope.message);
        self.peers.send(envelope);
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        self.state.send(Work::Apply(entries));
    }

    fn status_changed(&mut self, before: &Status, now: &Status) {
        if before.leader != now.leader && now.leader.is_some() {
            self.metrics.leader_changed();
        }
        if before.role != now.role {
            let term = now.term;
            match now.role {
                Role::Leader => tracing::info!(node = %self.name, %term, "leads"),
                role => tracing::info!(node = %self.name, %term, %role, "role changed"),
            }
        }
    }
}

/// Carries the log thread's reports to the driver.
pub(crate) struct LogReports {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) on_fatal: Box<dyn Fn(LogError) + Send>,
}

impl LogEvents for LogReports {
    fn persisted(&mut self, ticket: Ticket) {
        self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
    }

    fn fatal(&mut self, error: LogError) {
        (self.on_fatal)(error);
    }

    fn committed(&mut self, group: &GroupCommit) {
        self.metrics.group_committed(group.took, group.entries);
    }
}
