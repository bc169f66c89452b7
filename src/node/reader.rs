//! Answers reads, and only against a proof.
//!
//! The order of a linearizable read is fixed (lease-protocol 5.5, P20, A7): the request arrived,
//! the commit index was captured, the store was looked at, the clock and the lease were checked,
//! the reply leaves. [`Reader::answer`] is the last step: it takes what was read and the
//! [`Authority`] it is read on, and gives nothing out unless what was read contains the index that
//! the authority names.

use std::time::Duration;

use crate::api::RangeResponse;
use crate::api::ReadInfo;
use crate::api::ReadPath;
use crate::raft::ReadPermit;
use crate::types::LogIndex;

/// On whose word a read is answered.
#[derive(Clone, Copy, Debug)]
pub enum Authority {
    /// A live leader lease or a finished quorum round.
    Permit(ReadPermit),
    /// Nobody's: the caller asked for this node's own state, however old.
    Serializable,
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
    /// demands: then the read must look again, later.
    pub fn answer<T>(&self, authority: Authority, source: Source<T>) -> Option<Answer<T>> {
        let (path, read_index, lease_remaining) = match authority {
            Authority::Permit(permit) => match permit.lease_remaining() {
                Some(remaining) => (ReadPath::Lease, permit.index(), remaining),
                None => (ReadPath::ReadIndex, permit.index(), Duration::ZERO),
            },
            Authority::Serializable => (ReadPath::Serializable, LogIndex(0), Duration::ZERO),
        };
        if source.applied < read_index && !planted!(PermitIndexIgnored) {
            return None;
        }
        Some(Answer {
            found: source.found,
            revision: source.revision,
            read: ReadInfo {
                path,
                lease_remaining,
                lease_margin: self.lease_margin,
                read_index,
                applied_index: source.applied,
            },
        })
    }
}
