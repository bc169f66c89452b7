//! What a node is told and what it wants done: the seam between the pure replica and its shell.
//!
//! Three laws for the shell, and no more: drain [`crate::node::Node::poll_output`] after every
//! `handle`; report what became durable and what was applied; never lie about time.

use crate::api::{Call, Error, Response};
use crate::kv::access::Author;
use crate::kv::{HeldLeases, Reply};
use crate::node::{AskedLeases, SpaceReport};
use crate::raft::{Change, Entry, Envelope, LogBase, ReadPermit, Ticket, Unsaved};
use crate::types::{LogId, LogIndex, NodeId, RequestId, SessionId, VersionRange};

/// What a node is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A peer's message arrived.
    Message(Envelope),
    /// A client's request arrived. It must have passed [`crate::api::validate`].
    Request(RequestId, Call),
    /// A request of a client of whom it is known who it is, or who says so.
    RequestAs(RequestId, Call, Author),
    /// Everything up to and including this ticket is durable.
    Persisted(Ticket),
    /// These entries, all in one atomic step, are applied and visible to new snapshots. In order,
    /// none left out: one reply for each entry that was handed out.
    Applied(Vec<(LogId, Reply)>),
    /// The answer to [`Output::FindIdleSessions`]: sessions not used after `unused_since`.
    IdleSessions {
        /// As it was asked.
        unused_since: LogIndex,
        /// Some of them; bounded by whoever looked.
        sessions: Vec<SessionId>,
    },
    /// The state machine holds everything up to here durably; the log may begin after it.
    Compact(LogIndex),
    /// A whole state was received, checked, and lies durably beside the one that is used. Answered
    /// by [`Output::Install`] or [`Output::DiscardSnapshot`].
    SnapshotReceived(LogBase),
    /// What [`Output::SendSnapshot`] asked for this member has ended, well or not.
    SnapshotSent(NodeId),
    /// The state that was to be installed is the state machine now, and visible to new snapshots.
    Installed(Box<Installed>),
    /// Members are to change. Taken if this node leads and the change is safe
    /// ([`crate::raft::Consensus::change`]); what became of it shows in the configuration in force.
    Change(Change),
    /// Let go of leadership and take no further part in elections: the process is stopping.
    Retire,
    /// Time has passed.
    Tick,
    /// How much room there is. Reported again and again; a shell that does not has no quota.
    Space(SpaceReport),
    /// A member has said which versions of the cluster it knows; `None` once it is not connected any
    /// more, for it may come back as another release.
    PeerVersions(NodeId, Option<VersionRange>),
}

/// What a node must know of a state that took the place of its own.
#[derive(Clone, Debug)]
pub struct Installed {
    /// The last entry in it.
    pub id: LogId,
    /// Its revision.
    pub revision: i64,
    /// It holds the cluster's founding command.
    pub founded: bool,
    /// Every lease in it.
    pub leases: HeldLeases,
    /// The version that the cluster had agreed on.
    pub cluster_version: u16,
}

/// What a node wants done. `Persist`s are carried out in the order given, `Apply`s and `Install`s
/// in the order given, and nothing else has an order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Make this durable, then report the ticket.
    Persist(Ticket, Unsaved),
    /// Send this; it may be lost.
    Send(Envelope),
    /// Apply these to the state machine, then report their replies.
    Apply(Vec<Entry>),
    /// The read may be answered now, from any snapshot opened from now on.
    Read(RequestId, ReadPermit),
    /// The store has reached the revision that the read waited for, which asked for nothing else:
    /// it may be answered as serializable from any snapshot opened from now on.
    CaughtUp(RequestId),
    /// The question about leases may be answered now, from any snapshot opened from now on: of the
    /// leases named, those that are there. Without a permit, as serializable.
    ReadLeases(RequestId, Option<ReadPermit>, AskedLeases),
    /// Look in the store for sessions that were not used after `unused_since`, and report some.
    /// A shell that does not answer keeps every session for ever.
    FindIdleSessions {
        /// The last use that still counts as idle.
        unused_since: LogIndex,
    },
    /// Send this member the state machine as it is durable by now, and report
    /// [`Input::SnapshotSent`] once that has ended. One that is on its way already is enough.
    SendSnapshot(NodeId),
    /// What was received as of this entry takes the place of the state machine, durably; then
    /// report [`Input::Installed`].
    Install(LogId),
    /// What was received as of this entry is not needed.
    DiscardSnapshot(LogId),
    /// The request is finished.
    Reply(RequestId, Result<Response, Error>),
}
