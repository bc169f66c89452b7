//! What the streams of one connection share.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::server::session::auth::Principal;
use crate::server::session::budget::{ByteBudget, InFlight};
use crate::server::watch::WatchSender;

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
}
