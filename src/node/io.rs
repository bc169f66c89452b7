//! The inputs and outputs of a node: the interface between the pure replica and its shell.
//!
//! Three laws for the shell, and no more: drain [`crate::node::Node::poll_output`] after every
//! `handle`; report what became durable and what was applied; never lie about time.

use crate::api::{Call, Error, Response};
use crate::front::Truncation;
use crate::kv::access::Author;
use crate::kv::{HeldLeases, Reply};
use crate::node::{QueriedLeases, SpaceReport};
use crate::raft::{Change, Entry, Envelope, LogBase, ReadPermit, Ticket, UnsavedState};
use crate::types::{BootstrapId, LogId, LogIndex, NodeId, RequestId, SessionId, VersionRange};

/// An input of a node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A peer's message arrived.
    Message(Envelope),
    /// A client's request arrived, and the client's identity if it is known. The request must have
    /// passed [`crate::api::validate`].
    Request(RequestId, Call, Option<Author>),
    /// Everything up to and including this ticket is durable.
    Persisted(Ticket),
    /// These entries were applied in one atomic step and are visible to new snapshots. In order and
    /// without gaps: one reply for each entry of the output.
    Applied(Vec<(LogId, Reply)>),
    /// The answer to [`Output::FindIdleSessions`]: sessions not used after `unused_since`.
    IdleSessions {
        /// As it was asked.
        unused_since: LogIndex,
        /// Some of them, bounded by the shell.
        sessions: Vec<SessionId>,
    },
    /// The state machine holds everything up to here durably; the log may begin after it.
    Compact(Truncation),
    /// A snapshot was received, verified, and stored durably next to the current state. Answered by
    /// [`Output::Install`] or [`Output::DiscardSnapshot`].
    SnapshotReceived(LogBase),
    /// The transfer that [`Output::SendSnapshot`] started for this member has ended, successfully
    /// or not.
    SnapshotSent(NodeId),
    /// The snapshot was installed: it is the state machine now, and visible to new snapshots.
    Installed(Box<InstalledSnapshot>),
    /// A membership change. Accepted if this node is leader and the change is safe
    /// ([`crate::raft::Consensus::change`]); its outcome shows in the current configuration.
    Change(Change),
    /// Give up leadership and take no further part in elections: the process is stopping.
    Retire,
    /// Ask for read leases from now on, or no more: then what is held is given back first.
    AskForReadLeases(bool),
    /// Time has passed.
    Tick,
    /// The disk usage. Reported periodically; without reports there is no quota.
    Space(SpaceReport),
    /// The cluster versions that a member supports; `None` once it is disconnected, because it may
    /// return with another release.
    PeerVersions(NodeId, Option<VersionRange>),
    /// Where etcd's clients reach a member, or this node, as it says; empty if they do not. `None` once it is
    /// disconnected, because it may say another thing to another leader.
    EtcdUrl(NodeId, Option<String>),
}

/// What a node must know about an installed snapshot.
#[derive(Clone, Debug)]
pub struct InstalledSnapshot {
    /// The last entry in it.
    pub id: LogId,
    /// Its revision.
    pub revision: i64,
    /// Which bootstrap of its cluster it comes from, if it says so.
    pub bootstrap: Option<BootstrapId>,
    /// Every lease in it.
    pub leases: HeldLeases,
    /// The version that the cluster had agreed on.
    pub cluster_version: u16,
}

/// An effect that a node requests. `Persist`s must be executed in order, `Apply`s and `Install`s in
/// order, and nothing else is ordered.
#[derive(Clone, Debug)]
pub enum Output {
    /// Make this durable, then report the ticket.
    Persist(Ticket, UnsavedState),
    /// Send this; it may be lost.
    Send(Envelope),
    /// Apply these to the state machine, then report their replies.
    Apply(Vec<Entry>),
    /// The read may be answered from any snapshot opened from now on.
    Read(RequestId, ReadPermit),
    /// The store has reached the revision that the read waited for, which required nothing else: it
    /// may be answered as serializable from any snapshot opened from now on.
    CaughtUp(RequestId),
    /// The lease query may be answered from any snapshot opened from now on, for those of the named
    /// leases that exist. Without a permit, as serializable.
    ReadLeases(RequestId, Option<ReadPermit>, QueriedLeases),
    /// Find sessions in the store that were not used after `unused_since`, and report some. Without
    /// a report, sessions are kept for ever.
    FindIdleSessions {
        /// The last use that still counts as idle.
        unused_since: LogIndex,
    },
    /// Send this member a snapshot of the durable state machine, and report [`Input::SnapshotSent`]
    /// once that has ended. A transfer already in progress is enough.
    SendSnapshot(NodeId),
    /// Replace the state machine durably by the snapshot received as of this entry; then report
    /// [`Input::Installed`].
    Install(LogId),
    /// Discard the snapshot received as of this entry.
    DiscardSnapshot(LogId),
    /// The request is finished.
    Reply(RequestId, Result<Response, Error>),
}
