//! Measured disk usage, and the alarm that follows from it.

use crate::kv::SpaceAlarm;

/// The alarm is cleared once the state takes no more than so many tenths of its quota.
pub(super) const CLEAR_TENTHS: u64 = 9;
/// And once the disk has so many halves of what it must have left.
pub(super) const CLEAR_HALVES: u64 = 3;

/// What a node has measured of its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceReport {
    /// How much its state takes, in bytes.
    pub used: u64,
    /// How much it may take.
    pub quota: u64,
    /// How much more the disk would take.
    pub free: u64,
    /// How much the disk must have left, for the log and for merging tables.
    pub reserve: u64,
    /// The alarm, as the state has it.
    pub alarm: Option<SpaceAlarm>,
}

impl SpaceReport {
    /// What the alarm should be, if it should be another than it is.
    pub(super) fn verdict(&self) -> Option<Option<SpaceAlarm>> {
        let Self {
            used,
            quota,
            free,
            reserve,
            ..
        } = *self;
        let is_full = used >= quota || free < reserve;
        let has_room =
            used <= quota / 10 * CLEAR_TENTHS && free >= (reserve / 2).saturating_mul(CLEAR_HALVES);
        match self.alarm {
            None if is_full => Some(Some(SpaceAlarm {
                used,
                // A full disk sets a limit of its own.
                quota: quota.min(used.saturating_add(free).saturating_sub(reserve)),
            })),
            Some(_) if has_room => Some(None),
            _ => None,
        }
    }
}
