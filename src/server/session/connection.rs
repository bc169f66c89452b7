//! What the streams of one connection share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;

use crate::server::session::auth::Principal;
use crate::server::session::budget::{ByteBudget, InFlight};
use crate::server::watch::WatchSender;
use crate::types::NodeId;

/// See the module.
pub(super) struct ConnectionState {
    /// Requests that are not answered yet.
    pub(super) in_flight: Arc<InFlight>,
    /// Bytes that the connection may make the node hold.
    pub(super) budget: Arc<ByteBudget>,
    /// Permits for scans.
    pub(super) scans: Arc<Semaphore>,
    /// Sends the events of its watches.
    pub(super) watch_sender: Arc<WatchSender>,
    pub(super) principal: Arc<Principal>,
    /// The client's address when it connected.
    pub(super) address: SocketAddr,
    /// Whether what only the leader carries out is taken to it; otherwise the client is told who that is.
    pub(super) forwarding: ForwardTarget,
    /// Whether a page is always what follows a read that counted as a request of its user.
    pub(super) has_free_pages: bool,
}

/// To whom the requests of a connection are forwarded that only the leader carries out.
#[derive(Debug)]
pub(super) enum ForwardTarget {
    /// To any leader: the client takes any node for as good as another.
    Always,
    /// To this member while it leads, because the client cannot reach it; 0 for none.
    To(AtomicU64),
}

impl ForwardTarget {
    /// To none, until the client asks for it.
    pub(super) fn none() -> Self {
        Self::To(AtomicU64::new(0))
    }

    /// From now on to `leader`.
    pub(super) fn add(&self, leader: NodeId) {
        if let Self::To(to) = self {
            to.store(leader.0, Ordering::Relaxed);
        }
    }

    /// Whether to `leader`, which leads as far as this node knows.
    pub(super) fn includes(&self, leader: Option<NodeId>) -> bool {
        match self {
            Self::Always => true,
            Self::To(to) => {
                let to = to.load(Ordering::Relaxed);
                to != 0 && leader == Some(NodeId(to))
            }
        }
    }
}
