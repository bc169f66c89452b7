//! The alarm that the state has no room left.

use serde::{Deserialize, Serialize};

use crate::api::{Error, ErrorKind};

/// The state is as large as it may be, or the disk has no more to give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceAlarm {
    /// How much the leader's state took when it raised the alarm, in bytes.
    pub used: u64,
    /// How much it might take, in bytes.
    pub quota: u64,
}

impl SpaceAlarm {
    /// What is said to whoever would make the state grow.
    pub fn refusal(&self) -> Error {
        let Self { used, quota } = *self;
        Error::not_applied(
            ErrorKind::NoSpace { used, quota },
            format!(
                "out of space: the state takes {used} bytes of the allowed {quota}; delete \
                 unneeded keys and compact history (`leasehold compaction --physical`), or raise \
                 quota.bytes; writes are accepted again once there is space"
            ),
        )
    }
}
