//! What threads and sessions send to the driver, and what they receive from it ([`outbox`]).

pub(crate) mod outbox;

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::api::Call;
use crate::kv::access::Author;
use crate::node::Input;
use crate::raft::Configuration;
use crate::server::mail::outbox::Outbox;
use crate::server::threads::queue::BatchQueue;
use crate::types::LogIndex;
use crate::wire::RequestContext;

/// A message to the driver.
#[derive(Debug)]
pub(crate) enum Mail {
    /// Something for the node.
    Input(Input),
    /// A client's request, and where its answer goes.
    Request {
        call: Call,
        /// When it was taken in: from then on its time runs.
        arrived: std::time::Instant,
        /// In whose name it is to be carried out, if that has to be known.
        author: Option<Author>,
        /// What it says of itself, for the leader if it goes there.
        context: RequestContext,
        outbox: Arc<Outbox>,
        frame: u64,
    },
    /// Asks for the configuration in force at this entry; the answer is `None` if the log no longer holds the
    /// entry.
    ConfigurationAt(LogIndex, oneshot::Sender<Option<Configuration>>),
    /// Asks whether the thread still turns.
    Pulse(oneshot::Sender<()>),
    /// End the thread.
    Stop,
}

/// The driver's only way in. Never blocks the sender.
pub(crate) type Mailbox = BatchQueue<Mail>;
