//! Measured disk usage, and the alarm that follows from it.

use crate::kv::SpaceAlarm;
use crate::time::Instant;
use crate::types::LogIndex;

/// The alarm is cleared once the state takes no more than so many tenths of its quota.
pub(super) const CLEAR_TENTHS: u64 = 9;
/// And once the disk has so many quarters of what it must have left.
pub(super) const CLEAR_QUARTERS: u64 = 5;

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
    /// Below this, what is committed is not applied until there is space.
    pub floor: u64,
    /// The alarm, as the state has it.
    pub alarm: Option<SpaceAlarm>,
}

/// What a node knows of the room on its disk.
#[derive(Debug, Default)]
pub(super) struct KnownSpace {
    /// The alarm, by the last report: as the state has it, or as it is to be raised.
    pub(super) alarm: Option<SpaceAlarm>,
    /// What is committed is not applied before there is more room.
    pub(super) is_stuck: bool,
    /// Up to where was applied, and since when something that is committed waits there.
    pub(super) unapplied: Option<(LogIndex, Instant)>,
    /// When leadership was last to be handed over because nothing could be applied.
    pub(super) handed_over: Option<Instant>,
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
        let has_room = used <= quota / 10 * CLEAR_TENTHS
            && free >= (reserve / 4).saturating_mul(CLEAR_QUARTERS);
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
