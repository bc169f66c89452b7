//! Answers reads, and only against a proof.
//!
//! The order of a linearizable read is fixed (P20, A7): the request arrived,
//! the commit index was captured, the store was looked at, the clock and the lease were checked,
//! the reply leaves. [`Reader::answer`] is the last step: it takes what was read and the
//! [`Authority`] it is read on, and gives nothing out unless what was read contains the index that
//! the authority names.

use std::time::Duration;

use crate::api::{Consistency, RangeResponse, ReadInfo, ReadPath};
use crate::raft::{ReadPermit, StaleBound};
use crate::types::LogIndex;

/// On whose word a read is answered.
#[derive(Clone, Copy, Debug)]
pub enum Authority {
    /// A live leader lease or a finished quorum round, here or at the leader.
    Permit(ReadPermit),
    /// Nobody's: the caller asked for this node's own state, however old. With the bound of its
    /// age, if there is one.
    Serializable(Option<StaleBound>),
    /// Nobody's: the caller asked for this node's own state if it is no older than this, and it
    /// was proved to be.
    Bounded(StaleBound),
}

impl Authority {
    /// On whose word a read may be answered that asks for `consistency`: `permit` is what the lease
    /// gave, and `bound` what is known of the state's age, both judged by one reading of the clock
    /// after the request had arrived and the store was looked at. `None`: ask consensus.
    ///
    /// A lease is better than what a bounded read asks for, and costs the same.
    pub fn for_read(
        consistency: Consistency,
        permit: Option<ReadPermit>,
        bound: Option<StaleBound>,
    ) -> Option<Self> {
        match (consistency, permit) {
            (Consistency::Serializable, _) => Some(Self::Serializable(bound)),
            (Consistency::LinearizableQuorum, _) => None,
            (_, Some(permit)) => Some(Self::Permit(permit)),
            (Consistency::MaxStaleness(most), None) => {
                let young = bound.filter(|bound| bound.staleness() <= most);
                young.map(Self::Bounded)
            }
            (Consistency::Linearizable | Consistency::LeaseOnly, None) => None,
        }
    }
}

impl Authority {
    /// How a read is served that is answered on it.
    pub fn path(&self) -> ReadPath {
        match self {
            Self::Permit(permit) => path_of(permit),
            Self::Serializable(_) | Self::Bounded(_) => ReadPath::Serializable,
        }
    }
}

/// Something read from one consistent state of the store.
#[derive(Clone, Debug)]
pub struct Source<T> {
    /// What was read.
    pub found: T,
    /// The state contains at least this log index.
    pub applied: LogIndex,
    /// The store's revision in that state, or of what was read if that is newer.
    pub revision: i64,
}

/// What may be sent to the client.
#[derive(Clone, Debug)]
pub struct Answer<T = RangeResponse> {
    /// What was read.
    pub found: T,
    /// The revision for the reply's header.
    pub revision: i64,
    /// How it was served.
    pub read: ReadInfo,
}

/// Turns what was read into what may be said.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The margin the lease keeps, for reply headers.
    pub lease_margin: Duration,
}

impl Reader {
    /// The answer, or `None` if the state that was read does not contain what the authority
    /// demands, or is not at `min_revision` yet: then the read must look again, later.
    pub fn answer<T>(
        &self,
        authority: Authority,
        min_revision: i64,
        source: Source<T>,
    ) -> Option<Answer<T>> {
        let (path, read_index) = match authority {
            Authority::Permit(permit) => (path_of(&permit), permit.index()),
            Authority::Serializable(_) => (ReadPath::Serializable, LogIndex(0)),
            Authority::Bounded(bound) => (ReadPath::Serializable, bound.index()),
        };
        let lacks = source.applied < read_index && !planted!(PermitIndexIgnored);
        let early = source.revision < min_revision && !planted!(MinRevisionIgnored);
        if lacks || early {
            return None;
        }
        let lease_remaining = match authority {
            Authority::Permit(permit) => permit.lease_remaining().unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let staleness = match authority {
            Authority::Permit(_) => None,
            Authority::Serializable(bound) => bound.filter(|bound| bound.index() <= source.applied),
            Authority::Bounded(bound) => Some(bound),
        };
        Some(Answer {
            found: source.found,
            revision: source.revision,
            read: ReadInfo {
                path,
                lease_remaining,
                lease_margin: self.lease_margin,
                read_index,
                applied_index: source.applied,
                staleness: staleness.map(|bound| bound.staleness()),
            },
        })
    }
}

/// How a read is served that has this permit.
pub fn path_of(permit: &ReadPermit) -> ReadPath {
    match permit.lease_remaining() {
        _ if permit.is_from_leader() => ReadPath::Follower,
        Some(_) => ReadPath::Lease,
        None => ReadPath::ReadIndex,
    }
}
