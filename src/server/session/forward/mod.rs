//! Requests that reach a node which does not lead, and that only the leader can carry out: they go to the
//! leader over the connection between the two, and their answers come back.
//!
//! The node that received a request judges who makes it, admits it, and accounts for it; to the leader
//! it is one more request, admitted again, made in the name of the author that its node gives. Only
//! nodes speak on these connections, so the author is believed.
//!
//! A node answers only once it has applied the entry itself ([`outgoing`]): what its client reads,
//! lists or watches here afterwards shows the write. If the leader or the connection to it is lost, it is not
//! known what became of a request that had been sent. A write of a session is then sent again by its client
//! under the same number, here or elsewhere, and applied once (A17, A18): the session and the number travel
//! with it, like its deadline. etcd's clients have no sessions, and are told that it is not known.
//!
//! Requests of etcd's clients are always forwarded. A native client is told who leads, and goes there; one
//! that cannot reach the leader asks for its connection to be forwarded for
//! ([`Request::ForwardToLeader`]).

mod incoming;
mod outgoing;

use std::time::Duration;

pub(crate) use incoming::ForwardService;
pub(crate) use outgoing::Forwarder;

use crate::api::{Request, RequestKind};

/// Requests that one node may have under way at another.
const UNDER_WAY_MAX: usize = 4_096;
/// Behind heartbeats, like log entries.
const PRIORITY: i32 = 0;
/// How long the other side may take to make room for what is written.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// Whether a node answers it for another node: from its deadlines and the store which leases there are and how much
/// time they have, which the leader knows, and from its own state how it is. Whether a client may know that is
/// judged by the node that the client asked.
fn is_question(request: &Request) -> bool {
    matches!(
        request,
        Request::LeaseTimeToLive { keys: false, .. }
            | Request::LeaseList(_)
            | Request::Status
            | Request::LeaderLeaseReport
    )
}

/// Whether the leader carries requests of `kind` out for other nodes, and answers them by itself.
fn is_forwarded(kind: RequestKind) -> bool {
    matches!(
        kind,
        RequestKind::Write
            | RequestKind::KeepAlive
            | RequestKind::MemberChange
            | RequestKind::Transfer
    )
}
