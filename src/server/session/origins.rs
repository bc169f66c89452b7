//! The origin of each state that leaves a node: its cluster, its node, and the configuration at its end.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::raft::Configuration;
use crate::server::disk::store::Origin;
use crate::server::mail::{Mail, Mailbox};
use crate::types::{ClusterId, LogIndex, NodeId};

/// How long the driver may take to answer, and the interval between two checks.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(1);

type ConfigurationAt = Box<dyn Fn(LogIndex) -> Option<Configuration> + Send + Sync>;

/// Makes an [`Origin`] for each state that goes out.
pub(crate) struct Origins {
    cluster: ClusterId,
    member: NodeId,
    configuration_at: ConfigurationAt,
}

impl Origins {
    /// Of a node: its driver knows the configuration.
    pub(crate) fn of_node(cluster: ClusterId, member: NodeId, mailbox: Arc<Mailbox>) -> Self {
        Self {
            cluster,
            member,
            configuration_at: Box::new(move |at| {
                let (answer, mut answered) = oneshot::channel();
                mailbox.send(Mail::ConfigurationAt(at, answer));
                let mut waited = Duration::ZERO;
                while waited < PATIENCE {
                    match answered.try_recv() {
                        Ok(found) => return found.filter(|known| !known.voters.is_empty()),
                        Err(oneshot::error::TryRecvError::Closed) => return None,
                        Err(oneshot::error::TryRecvError::Empty) => {
                            std::thread::sleep(LOOK_EVERY);
                            waited += LOOK_EVERY;
                        }
                    }
                }
                None
            }),
        }
    }

    /// With the same members everywhere.
    #[cfg(test)]
    pub(crate) fn fixed(cluster: ClusterId, member: NodeId, configuration: Configuration) -> Self {
        Self {
            cluster,
            member,
            configuration_at: Box::new(move |_| Some(configuration.clone())),
        }
    }

    /// The origin of a state that ends with the entry `at`; `None` if the log begins later already, if
    /// the configuration there is unknown, or the node is stopping. Blocks: call it on a thread that
    /// may.
    pub(crate) fn at(&self, at: LogIndex) -> Option<Origin> {
        Some(Origin {
            cluster: self.cluster,
            member: self.member,
            configuration: (self.configuration_at)(at)?,
        })
    }
}
