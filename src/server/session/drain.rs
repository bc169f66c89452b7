//! Takes a node out of service while it runs: the first half of every stop.
//!
//! Leadership moves first, while everything is still served: reads wait no longer than the transfer takes,
//! and writes are forwarded to the next leader. Then the node refuses new requests, finishes those it has
//! admitted, and releases the promises that voters made to it. After that it follows and votes as before,
//! so that the others keep their majority, but neither leads nor serves until it is restarted. A drain
//! cannot be undone, because a node is drained in order to stop it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::refusals::stopping;
use super::shared::Sessions;
use crate::api::{Consistency, Request};
use crate::node::Input;
use crate::server::mail::Mail;
use crate::server::status::node_state::NodeState;
use crate::types::{NodeId, Role};

/// How long a leader tries to hand leadership over.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(2);
/// How long the requests in flight may take.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);
/// The interval between checks whether they are finished.
const DRAIN_LOOK: Duration = Duration::from_millis(5);

/// The result of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainReport {
    /// It led: the new leader, or why leadership did not move.
    pub(crate) handed_over: Option<Result<Option<NodeId>, String>>,
    /// Requests that were not finished in time. Their clients have no answer yet.
    pub(crate) unfinished: usize,
}

/// Drains a node, once.
pub(crate) struct Drain {
    pub(crate) node: Arc<NodeState>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) done: tokio::sync::Mutex<Option<DrainReport>>,
}

impl Drain {
    /// Takes the node out of service. A second call waits for the first, and returns the same report.
    ///
    /// # Cancel safety
    /// Cancelled, the node may be anywhere on the way; the next call goes the rest.
    pub(crate) async fn run(&self) -> DrainReport {
        let mut done = self.done.lock().await;
        if let Some(report) = &*done {
            return report.clone();
        }
        let sessions = &self.sessions;
        let handed_over = self.hand_over().await;
        self.node.stopping.store(true, Ordering::Relaxed);
        // Watchers continue at another node.
        sessions.serving.watches.refuse(Some(stopping()));
        let report = DrainReport {
            handed_over,
            unfinished: self.finish().await,
        };
        sessions.mailbox.send(Mail::Input(Input::Retire));
        tracing::info!(
            node = %self.node.name,
            unfinished = report.unfinished,
            "drained: this node still replicates and votes, but serves no requests until it is \
             restarted"
        );
        *done = Some(report.clone());
        report
    }

    /// Waits for the requests in flight, and returns how many are left.
    async fn finish(&self) -> usize {
        let sessions = &self.sessions;
        let until = self.node.clock.now() + DRAIN_PATIENCE;
        while sessions.in_flight() > 0 && !self.node.clock.now().possibly_after(until) {
            tokio::time::sleep(DRAIN_LOOK).await;
        }
        sessions.in_flight()
    }

    /// Moves leadership to another voter, if this node leads and another one is fit to.
    async fn hand_over(&self) -> Option<Result<Option<NodeId>, String>> {
        if self.node.role() != Role::Leader || self.node.directory.members().len() < 2 {
            return None;
        }
        let request = Request::MoveLeader { target: None };
        let consistency = Consistency::default();
        let asked = self.sessions.ask(request, consistency, HAND_OVER_PATIENCE);
        // Where all members stop at once, as those of `leasehold dev` do, there is soon none to hand over to.
        let alone = async {
            while !self.node.contacts.is_alone() {
                tokio::time::sleep(DRAIN_LOOK).await;
            }
        };
        let moved = tokio::select! {
            biased;
            moved = asked => moved,
            () = alone => {
                let why = "no other member is connected to this one";
                tracing::info!(node = %self.node.name, "leadership was not transferred: {why}");
                return Some(Err(why.to_owned()));
            }
        };
        Some(match moved {
            Ok(_) => {
                tracing::info!(node = %self.node.name, "leadership transferred");
                Ok(self.node.published.leader())
            }
            Err(error) => {
                tracing::warn!(node = %self.node.name, %error, "leadership was not transferred");
                Err(error.to_string())
            }
        })
    }
}
