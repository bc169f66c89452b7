//! What peers say to each other.

use serde::{Deserialize, Serialize};

use crate::types::NodeId;
use crate::types::Term;

/// A message with its sender, receiver and the sender's term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// Who says it.
    pub from: NodeId,
    /// To whom.
    pub to: NodeId,
    /// The sender's term.
    pub term: Term,
    /// What is said.
    pub message: Message,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Placeholder until the consensus is written.
    Heartbeat,
}

impl Envelope {
    /// Whether the message may be large and may wait: it must not hold up heartbeats and votes.
    pub fn is_bulk(&self) -> bool {
        false
    }
}
