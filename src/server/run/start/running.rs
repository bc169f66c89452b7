//! A running node: its accessors, and its shutdown.
//!
//! The order of the stop matters: refuse new work, hand leadership over, release the promises, then
//! let each thread finish what it holds. A server that is dropped instead ends all at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use super::etcd_port::EtcdService;
use super::server::Server;
use crate::raft::Status;
use crate::server::mail::{Mail, Mailbox};
use crate::transport::CloseCode;
use crate::types::{ClusterId, NodeId};

/// How long a stopped node waits until its data directory is held no more, and how often it looks.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);
const RELEASE_POLL: Duration = Duration::from_millis(5);

impl Server {
    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its member id.
    pub fn member_id(&self) -> NodeId {
        self.member_id
    }

    /// The cluster it belongs to.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster_id
    }

    /// Where clients reach it.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// Where peers reach it.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Where probes and metrics are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin[0].address()
    }

    /// Where etcd's clients reach it, if it has a port for them.
    pub fn etcd_address(&self) -> Option<SocketAddr> {
        self.tasks.etcd.as_ref().map(EtcdService::address)
    }

    /// The status of consensus on this node.
    pub fn status(&self) -> Arc<Status> {
        self.status.load_full()
    }

    /// Whether this node leads and may answer linearizable reads alone right now.
    pub fn has_lease(&self) -> bool {
        let now = self.sessions.node.clock.now();
        self.sessions
            .node
            .published
            .lease()
            .is_some_and(|cell| cell.is_valid(now))
    }

    /// A check that the node makes progress, for a watchdog.
    pub fn pulse(&self) -> Pulse {
        Pulse {
            mailbox: self.threads.mailbox(),
        }
    }

    /// Requests a reload of the certificates.
    pub fn certificate_reload(&self) -> CertificateReload {
        CertificateReload {
            asked: self.tasks.reload.clone(),
        }
    }

    /// Waits until the node has failed, and returns the reason.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn failed(&self) -> String {
        let mut failed = self.failed.clone();
        loop {
            let reason = failed.borrow_and_update().clone();
            match reason {
                Some(reason) => return reason,
                // The sender lives as long as the threads do, which end with the server.
                None if failed.changed().await.is_err() => std::future::pending().await,
                None => {}
            }
        }
    }

    /// Whether the node was removed from its cluster: then it has stopped taking part for good, and
    /// [`Server::failed`] says why.
    pub fn was_removed(&self) -> bool {
        self.exit.has_left()
    }

    /// Stops gracefully: hands leadership over, takes no more work, finishes what it holds,
    /// releases promises, makes everything durable. The data directory can be opened again when it returns.
    ///
    /// # Cancel safety
    /// Not cancel safe; dropping the server instead is like a crash, which it survives.
    pub async fn shutdown(mut self) {
        tracing::info!(node = %self.name, "stopping");
        self.tasks.drain.run().await;
        // The release of promises must leave before the peers' connections close.
        tokio::time::sleep(Duration::from_millis(50)).await;
        // It holds the ports.
        self.tasks.certificates.0.abort();
        self.tasks.listener.close(CloseCode::Stopping);
        let mut etcd = self.tasks.etcd.take();
        let idle = async {
            if let Some(etcd) = &mut etcd {
                etcd.finish().await;
            }
            self.tasks.listener.wait_idle().await;
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), idle).await;
        drop(etcd);
        self.tasks.accepting.abort();
        if let Some(exporting) = self.exporting.take() {
            exporting.finish().await;
        }
        for admin in std::mem::take(&mut self.admin) {
            admin.shutdown().await;
        }
        let name = self.name.clone();
        let locks = [
            self.sessions.serving.store.lock_held(),
            self.data_dir_lock.clone(),
        ];
        // Threads are joined where waiting is allowed.
        let joined = tokio::task::spawn_blocking(move || self.threads.join(self.peers)).await;
        if joined.is_err() {
            tracing::error!(node = %name, "a thread of this node panicked while stopping");
        }
        drop((self.tasks, self.sessions, self.exit));
        // The runtime lets go of tasks that have been ended in its own time, an earlier state may still be being
        // deleted, and a program may open the data directory again next.
        let released = async {
            while locks.iter().any(|lock| lock.strong_count() > 0) {
                tokio::time::sleep(RELEASE_POLL).await;
            }
        };
        if tokio::time::timeout(RELEASE_PATIENCE, released)
            .await
            .is_err()
        {
            tracing::warn!(node = %name, "something still holds the data directory of this node");
        }
        tracing::info!(node = %name, "stopped");
    }
}

/// Requests reloads of the certificates of a node.
#[derive(Clone, Debug)]
pub struct CertificateReload {
    asked: Arc<Notify>,
}

impl CertificateReload {
    /// Reloads the files now, even if unchanged; changed files are reloaded automatically. Returns at once:
    /// the node's log and metrics report the result.
    pub fn ask(&self) {
        self.asked.notify_one();
    }
}

/// Checks that a node makes progress.
#[derive(Clone, Debug)]
pub struct Pulse {
    mailbox: Arc<Mailbox>,
}

impl Pulse {
    /// Returns once the driver has handled everything queued before this call; never, if the driver is
    /// stuck or has ended. A slow disk or a missing leader does not delay it.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn beat(&self) {
        let (answer, answered) = oneshot::channel();
        self.mailbox.send(Mail::Pulse(answer));
        if answered.await.is_err() {
            std::future::pending().await
        }
    }
}
