//! The space alarm.

use serde::{Deserialize, Serialize};

use crate::api::{Error, ErrorKind};

/// The state has reached its quota, or the disk is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceAlarm {
    /// How much the leader's state took when it raised the alarm, in bytes.
    pub used: u64,
    /// How much it might take, in bytes.
    pub quota: u64,
}

impl SpaceAlarm {
    /// The refusal of a write that would make the state grow.
    pub fn refusal(&self) -> Error {
        let Self { used, quota } = *self;
        Error::not_applied(
            ErrorKind::NoSpace { used, quota },
            format!(
                "out of space: the state takes {used} bytes, and quota.bytes or the leader's disk allows \
                 {quota}; delete unneeded keys and compact history (`leasehold compaction --physical`), \
                 raise quota.bytes, or free space on that disk; writes are accepted again once there is \
                 space"
            ),
        )
    }
}
