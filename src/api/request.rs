//! What a client asks.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    AuthRequest, CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseListRequest,
    LeaseRef, MemberAddRequest, MemberUpdateRequest, PutRequest, RangeRequest, SnapshotCall,
    TxnRequest, WatchRequest,
};
use crate::types::{NodeId, SessionId};

/// One request with everything a server needs to decide whether and how to serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The remaining time of the caller, in milliseconds from when it sent this.
    pub timeout_ms: u32,
    /// The consistency of a read. Ignored by writes.
    pub consistency: Consistency,
    /// The least revision a read may be served at, as an earlier reply gave it; 0 for any. A node
    /// that has not applied it waits until it has, and just before the deadline refuses the read
    /// with [`ErrorKind::FutureRevision`](super::ErrorKind::FutureRevision). No clock is involved, so a caller that passes the newest
    /// revision it has seen never sees an older state. Ignored by writes.
    pub min_revision: i64,
    /// The session and number of this write, if it is to be applied exactly once.
    pub session: Option<SessionCall>,
    /// What is asked.
    pub request: Request,
}

/// A write's session and number, by which a retry is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCall {
    /// The session.
    pub id: SessionId,
    /// This write's number in it; numbers start at 1 and are never reused for another write.
    pub sequence: u64,
    /// The client has received the replies of all writes up to and including this number and will
    /// not retry them: the server may forget these replies.
    pub acknowledged: u64,
}

/// The consistency of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// Linearizable: sees every write acknowledged before the read began. Served under the leader
    /// lease if it is valid, else after one quorum round.
    #[default]
    Linearizable,
    /// As above, always by a quorum round: independent of clocks.
    LinearizableQuorum,
    /// As above, only under the lease: refused with [`ErrorKind::LeaseInvalid`](super::ErrorKind::LeaseInvalid) if it is not valid.
    LeaseOnly,
    /// The local state of the node; may be stale.
    Serializable,
    /// Bounded staleness: a state that contains everything acknowledged to any client longer than
    /// this before the request arrived. The node answers from its local state, without a message,
    /// if its own clocks prove that the state is recent enough; else as [`Self::Linearizable`].
    MaxStaleness(Duration),
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Read one key or a range of keys.
    Range(RangeRequest),
    /// Write one key.
    Put(PutRequest),
    /// Delete one key or a range of keys.
    DeleteRange(DeleteRangeRequest),
    /// Open a session for exactly-once writes.
    OpenSession,
    /// The status of this node; answered by any node from local knowledge.
    Status,
    /// Transfer leadership to another voter; answered by the leader once it has stepped down.
    MoveLeader {
        /// The new leader; `None` lets the leader choose the most up-to-date voter.
        target: Option<NodeId>,
    },
    /// Compact history.
    Compact(CompactionRequest),
    /// The leader lease report of this node; answered by any node.
    LeaderLeaseReport,
    /// Run a transaction.
    Txn(TxnRequest),
    /// Grant a client lease.
    LeaseGrant(LeaseGrantRequest),
    /// Revoke a client lease and delete its keys.
    LeaseRevoke(LeaseRef),
    /// Renew client leases; answered by the leader, without a log entry.
    LeaseKeepAlive(Vec<LeaseRef>),
    /// The status of a client lease.
    LeaseTimeToLive {
        /// Its id.
        id: i64,
        /// Also return the attached keys.
        keys: bool,
    },
    /// List client leases.
    LeaseList(LeaseListRequest),
    /// Change the TTL of a client lease. It applies from the next renewal on; time that has been
    /// promised already is never taken back (A13).
    LeaseUpdateTtl {
        /// Which.
        lease: LeaseRef,
        /// The new TTL in milliseconds, by the rules of a grant.
        ttl_ms: i64,
    },
    /// Grant a client lease and attach a key to it, in one step.
    PutWithNewLease(LeaseGrantRequest, PutRequest),
    /// Read as much of a range as fits one reply, in key order, with the start of the rest: so a
    /// range of any size can be read at one revision, at the reader's pace. Nothing is sorted or
    /// counted.
    RangePage(RangeRequest),
    /// Watch keys. Served by any node from its applied state; changes arrive as [`WatchMessage`](super::WatchMessage)s
    /// on a one-way stream that the server opens.
    Watch {
        /// The watch id, chosen by the client; unique among the open watches of a connection.
        watch_id: u64,
        /// What to watch.
        watch: WatchRequest,
    },
    /// Cancel a watch of this connection.
    WatchCancel {
        /// Which.
        watch_id: u64,
    },
    /// Request a progress notification ([`WatchMessage::Progress`](super::WatchMessage::Progress)) of a watch of this connection,
    /// sent once all earlier events have been sent.
    WatchProgress {
        /// Which.
        watch_id: u64,
    },
    /// A snapshot of the whole state, chunk by chunk.
    Snapshot(SnapshotCall),
    /// List the members; a read like any other.
    MemberList,
    /// Add a member, or replace one.
    MemberAdd(MemberAddRequest),
    /// Remove a member.
    MemberRemove {
        /// Which.
        id: NodeId,
    },
    /// Promote a learner that has caught up.
    MemberPromote {
        /// Which.
        id: NodeId,
    },
    /// Change the addresses of a member.
    MemberUpdate(MemberUpdateRequest),
    /// A request about users, roles or access control.
    Auth(AuthRequest),
    /// List the alarms of the cluster; a read like any other.
    AlarmList,
    /// Raise or clear the alarm NOSPACE of a member by an operator's word.
    AlarmSet {
        /// Of which; 0 and ids of no member are allowed, as in etcd.
        member: NodeId,
        /// Raise it.
        is_raised: bool,
    },
    /// As long as `leader` leads, the node takes what only the leader carries out, of this connection, to it,
    /// instead of naming it: the client cannot reach it. Answered once the node has heard of that leader
    /// since: one that no client reaches may just have died, and nothing should be sent there.
    ForwardToLeader {
        /// The leader that the node has named.
        leader: NodeId,
    },
    /// The client lease that has a name now: its id, and the index of its grant, by which renewals and the
    /// like mean this lease and not the next of that name (T14). A read like any other.
    LeaseNamed {
        /// The name.
        name: String,
    },
}
