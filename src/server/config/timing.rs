//! Timeouts of consensus and of the leader lease.

use super::error::ConfigError;
use super::sections::{LeaderLeaseSettings, RaftSettings, ReadLeaseSettings};
use super::source::Values;
use crate::raft::{Timing, TimingError, TimingOptions};

/// The timing. [`Timing::new`] checks the relations between its parts.
pub(super) fn timing(values: &Values, raft: &RaftSettings) -> Result<Timing, ConfigError> {
    let lease = LeaderLeaseSettings::read(values)?;
    let read_lease = ReadLeaseSettings::read(values)?;
    let options = TimingOptions {
        heartbeat_interval: raft.heartbeat_interval,
        election_timeout_min: raft.election_timeout_min,
        election_timeout_max: raft.election_timeout_max,
        step_down_after: raft.step_down_after,
        lease_duration: lease.duration,
        max_clock_skew: lease.max_clock_skew,
        max_drift_ppm: lease.max_drift_ppm,
        lease_enabled: lease.enabled,
        read_lease_enabled: read_lease.enabled,
        read_lease_max_write_delay: read_lease.max_write_delay,
        ..TimingOptions::default()
    };
    Timing::new(options).map_err(|error| ConfigError::Relation {
        at: values.at_first_set(keys_of(&error)),
        problem: error.to_string(),
    })
}

/// The settings that contradict each other, the most likely mistake first.
fn keys_of(error: &TimingError) -> &'static [&'static str] {
    type Raft = RaftSettings;
    type Lease = LeaderLeaseSettings;
    match error {
        TimingError::HeartbeatZero => &[Raft::heartbeat_interval],
        TimingError::LeaseTooLong { .. } => &[Lease::duration],
        TimingError::NothingLeft { .. } => &[Lease::max_clock_skew, Lease::duration],
        TimingError::SkewTooSmall { .. } => {
            &[Lease::max_clock_skew, Lease::max_drift_ppm, Lease::duration]
        }
        TimingError::HeartbeatTooLong { .. } => &[
            Raft::heartbeat_interval,
            Lease::duration,
            Lease::max_clock_skew,
        ],
        TimingError::ElectionTooSoon { .. } => &[Raft::election_timeout_min, Lease::duration],
        TimingError::ElectionNotSpread { .. } => {
            &[Raft::election_timeout_max, Raft::election_timeout_min]
        }
        TimingError::StepDownOutside { .. } => &[
            Raft::step_down_after,
            Lease::duration,
            Raft::election_timeout_max,
        ],
    }
}
