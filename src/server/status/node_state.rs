//! What a node knows of itself, for every part of it to read at any time: sessions, probes, the admin
//! port and the drain.
//!
//! The driver publishes most of it.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;

use super::contacts::Contacts;
use super::directory::Directory;
use super::doubles::Doubles;
use super::followers::Followers;
use super::integrity::Integrity;
use super::lease_stats::LeaseStats;
use crate::api::{Error, ErrorKind, ResponseHeader};
use crate::node::Answer;
use crate::raft::{Published, Status, Timing};
use crate::time::Clock;
use crate::transport::Introduction;
use crate::types::{BootstrapId, ClusterId, NodeId, Role};
use crate::wire::client::KnownLeader;

/// The identity of a node, and its state as the driver last published it.
pub(crate) struct NodeState {
    pub(crate) cluster_id: ClusterId,
    pub(crate) member_id: NodeId,
    pub(crate) name: String,
    pub(crate) timing: Timing,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) status: Arc<ArcSwap<Status>>,
    pub(crate) published: Arc<Published>,
    /// The version that the cluster has agreed on, as far as this node knows.
    pub(crate) cluster_version: Arc<AtomicU16>,
    /// Which bootstrap of its cluster the node comes from, once it knows.
    pub(crate) bootstrap: Arc<OnceLock<BootstrapId>>,
    pub(crate) directory: Arc<Directory>,
    /// Whether the state agrees with that of the other nodes.
    pub(crate) integrity: Arc<Integrity>,
    /// The store may be read: it was closed cleanly, or its content has been verified.
    pub(crate) readable: Arc<AtomicBool>,
    /// How well the leader lease is kept alive.
    pub(crate) lease_stats: Arc<LeaseStats>,
    /// The node is stopping and refuses new work.
    pub(crate) stopping: AtomicBool,
    /// Whom this node hears.
    pub(crate) contacts: Arc<Contacts>,
    /// How far those are that follow it.
    pub(crate) followers: Arc<Followers>,
    /// Whether it asks for read leases, as set or as changed since.
    pub(crate) asks_for_read_leases: AtomicBool,
    /// Processes that have the identity of another one.
    pub(crate) doubles: Arc<Doubles>,
    /// Why its start put it into quarantine.
    pub(crate) quarantined_at_start: Option<String>,
    /// What its start found and an operator should know for as long as it runs.
    pub(crate) start_warnings: Vec<String>,
}

impl Introduction for NodeState {
    fn bootstrap(&self) -> Option<BootstrapId> {
        self.bootstrap.get().copied()
    }

    fn leader(&self) -> Option<KnownLeader> {
        let id = self.published.leader()?;
        let address = self.client_address(id);
        Some(KnownLeader { id, address })
    }

    fn serves_reads(&self) -> bool {
        self.asks_for_read_leases.load(Ordering::Relaxed)
    }
}

impl NodeState {
    /// Whether the state may be served. An unverified state never is.
    pub(crate) fn is_readable(&self) -> bool {
        self.readable.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Which bootstrap of its cluster the node comes from, if that is known as it starts.
    pub(crate) fn know_bootstrap(&self, bootstrap: Option<BootstrapId>) {
        if let Some(bootstrap) = bootstrap {
            // The driver, which may set it later, does not run yet.
            let _ = self.bootstrap.set(bootstrap);
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.status.load().role
    }

    /// The header of a reply that shows the state at `revision`.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.cluster_id.short(),
            member_id: self.member_id,
            revision,
            raft_term: self.published.term(),
            leader_id: self.published.leader(),
            read: None,
        }
    }

    /// The header of the reply to a read.
    pub(crate) fn header_of<T>(&self, answer: &Answer<T>) -> ResponseHeader {
        answer.header(self.cluster_id, self.member_id, &self.published)
    }

    /// The client address of a member, if it is known.
    fn client_address(&self, member: NodeId) -> Option<String> {
        let member = self.directory.member(member);
        member
            .map(|member| member.client_address)
            .filter(|address| !address.is_empty())
    }

    /// The refusal of a request that only the leader serves.
    pub(crate) fn not_leader(&self) -> Error {
        let leader = self.published.leader();
        match leader.filter(|leader| *leader != self.member_id) {
            Some(leader) => self.with_leader_address(Error::not_applied(
                ErrorKind::NotLeader {
                    leader: Some(leader),
                    address: None,
                },
                "this node is not the leader",
            )),
            None => Error::not_applied(
                ErrorKind::NoLeader,
                "no leader is known at the moment: retry shortly",
            ),
        }
    }

    /// Adds the leader's client address to `error`: consensus knows only the leader's id.
    pub(crate) fn with_leader_address(&self, error: Error) -> Error {
        let ErrorKind::NotLeader {
            leader: Some(leader),
            address: None,
        } = error.kind
        else {
            return error;
        };
        let detail = match self.directory.member(leader) {
            Some(member) => format!(
                "this node is not the leader: send the request to {}",
                member.name
            ),
            None => error.detail,
        };
        let address = self.client_address(leader);
        Error {
            kind: ErrorKind::NotLeader {
                leader: Some(leader),
                address,
            },
            detail,
            ..error
        }
    }
}
