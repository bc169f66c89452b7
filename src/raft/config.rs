//! Timeouts and the relations between them, checked where they are built.
//!
//! A lease is safe because a voter's promise outlasts it under the worst drift of both clocks, and
//! useful because it outlasts a few lost heartbeats. Both are relations between settings, so a
//! [`Timing`] cannot be built from settings that break one (A6, P18 of
//! docs/protocol.md); the error names the two settings, their values, and what would be valid.

use std::ops::Deref;
use std::time::Duration;

/// The longest promise a voter makes. It is also the longest time without a possible election after
/// a leader is lost, so a longer one is a mistake, or a message not to be trusted.
pub const PROMISE_MAX: Duration = Duration::from_secs(60);

/// Checked [`TimingOptions`]; reads as them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing(TimingOptions);

/// The settings of [`Timing::new`], not yet checked against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimingOptions {
    /// H: how often the leader starts a round.
    pub heartbeat_interval: Duration,
    /// E_min: a follower that hears no leader campaigns no sooner.
    pub election_timeout_min: Duration,
    /// E_max: and no later.
    pub election_timeout_max: Duration,
    /// Q: a leader that has no quorum for so long steps down.
    pub step_down_after: Duration,
    /// P: how long voters promise the leader to elect no other.
    pub lease_duration: Duration,
    /// M: how much earlier than the promise the leader stops trusting it. A margin against clock
    /// rate and granularity; offset between clocks does not matter.
    pub max_clock_skew: Duration,
    /// rho: how much faster or slower than real time a clock may run, in parts per million.
    pub max_drift_ppm: u32,
    /// g: how coarse a clock reading may be.
    pub clock_granularity: Duration,
    /// Whether this node serves leased reads when it leads. It promises to other leaders in any
    /// case.
    pub lease_enabled: bool,
    /// Whether this node asks its leader for read leases.
    pub read_lease_enabled: bool,
    /// How long commits of this leader may wait for the holder of a read lease before it is recalled.
    pub read_lease_max_write_delay: Duration,
}

impl Default for TimingOptions {
    fn default() -> Self {
        Self {
            heartbeat_interval: Duration::from_millis(50),
            election_timeout_min: Duration::from_millis(550),
            election_timeout_max: Duration::from_millis(1000),
            step_down_after: Duration::from_millis(750),
            lease_duration: Duration::from_millis(500),
            max_clock_skew: Duration::from_millis(50),
            max_drift_ppm: 20_000,
            clock_granularity: Duration::from_millis(1),
            lease_enabled: true,
            read_lease_enabled: false,
            read_lease_max_write_delay: Duration::from_millis(50),
        }
    }
}

/// A relation between settings that does not hold. The settings are named as in the configuration
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// H = 0.
    #[error("raft.heartbeat_interval is 0, but a leader must send heartbeats; 50ms is usual")]
    HeartbeatZero,
    /// P > the longest promise.
    #[error(
        "leader_lease.duration ({lease:?}) is above {PROMISE_MAX:?}: no leader could be elected for that \
         long after one is lost; choose at most {PROMISE_MAX:?}"
    )]
    LeaseTooLong {
        /// P
        lease: Duration,
    },
    /// L = P - M <= 0.
    #[error(
        "leader_lease.max_clock_skew ({skew:?}) leaves nothing of leader_lease.duration ({lease:?}): choose a skew below the lease duration, or a longer lease"
    )]
    NothingLeft {
        /// P
        lease: Duration,
        /// M
        skew: Duration,
    },
    /// M < 2 rho P + 2 g.
    #[error(
        "leader_lease.max_clock_skew ({skew:?}) is too small for leader_lease.duration ({lease:?}): clocks that drift by {drift_ppm} ppm and read in steps of {granularity:?} need at least {needed:?}"
    )]
    SkewTooSmall {
        /// P
        lease: Duration,
        /// M
        skew: Duration,
        /// rho
        drift_ppm: u32,
        /// g
        granularity: Duration,
        /// The smallest M that would do.
        needed: Duration,
    },
    /// H > L / 3.
    #[error(
        "raft.heartbeat_interval ({heartbeat:?}) is too long for a leader lease of {lease:?} (leader_lease.duration less leader_lease.max_clock_skew): two heartbeats may be lost, so choose at most {longest:?}"
    )]
    HeartbeatTooLong {
        /// H
        heartbeat: Duration,
        /// L
        lease: Duration,
        /// The longest H that would do.
        longest: Duration,
    },
    /// E_min <= P.
    #[error(
        "raft.election_timeout_min ({election:?}) is not above leader_lease.duration ({lease:?}): voters would campaign before their promise is over and be refused; choose more than {lease:?}"
    )]
    ElectionTooSoon {
        /// E_min
        election: Duration,
        /// P
        lease: Duration,
    },
    /// E_max <= E_min.
    #[error(
        "raft.election_timeout_max ({max:?}) is not above raft.election_timeout_min ({min:?}): timeouts must differ between nodes, or votes split; choose more than {min:?}"
    )]
    ElectionNotSpread {
        /// E_min
        min: Duration,
        /// E_max
        max: Duration,
    },
    /// Q outside [P, E_max].
    #[error(
        "raft.step_down_after ({step_down:?}) must lie between leader_lease.duration ({lease:?}) and raft.election_timeout_max ({election_max:?})"
    )]
    StepDownOutside {
        /// Q
        step_down: Duration,
        /// P
        lease: Duration,
        /// E_max
        election_max: Duration,
    },
}

impl Timing {
    /// The settings, if every relation between them holds.
    ///
    /// # Errors
    /// The first relation that does not hold.
    pub fn new(options: TimingOptions) -> Result<Self, TimingError> {
        let TimingOptions {
            heartbeat_interval: heartbeat,
            election_timeout_min: election_min,
            election_timeout_max: election_max,
            step_down_after: step_down,
            lease_duration: lease,
            max_clock_skew: skew,
            max_drift_ppm: drift_ppm,
            clock_granularity: granularity,
            lease_enabled: _,
            read_lease_enabled: _,
            read_lease_max_write_delay: _,
        } = options;

        if heartbeat.is_zero() {
            return Err(TimingError::HeartbeatZero);
        }
        if lease > PROMISE_MAX {
            return Err(TimingError::LeaseTooLong { lease });
        }
        // What the leader may trust must be over, by its slowest clock, before the promise is, by
        // the voters' fastest: L <= (P - g)(1 - rho)/(1 + rho) - g. This is the simpler, stricter
        // form M >= 2 rho P + 2 g, which implies it.
        let needed = drifted(lease, drift_ppm)
            .saturating_mul(2)
            .saturating_add(granularity.saturating_mul(2));
        if skew < needed && skew < lease && !planted!(UncheckedTiming) {
            return Err(TimingError::SkewTooSmall {
                lease,
                skew,
                drift_ppm,
                granularity,
                needed,
            });
        }
        if skew >= lease {
            return Err(TimingError::NothingLeft { lease, skew });
        }
        let trusted = lease - skew;
        if heartbeat.saturating_mul(3) > trusted {
            return Err(TimingError::HeartbeatTooLong {
                heartbeat,
                lease: trusted,
                longest: trusted / 3,
            });
        }
        if election_min <= lease {
            return Err(TimingError::ElectionTooSoon {
                election: election_min,
                lease,
            });
        }
        if election_max <= election_min {
            return Err(TimingError::ElectionNotSpread {
                min: election_min,
                max: election_max,
            });
        }
        if step_down < lease || step_down > election_max {
            return Err(TimingError::StepDownOutside {
                step_down,
                lease,
                election_max,
            });
        }
        Ok(Self(options))
    }

    /// For how long after a start a candidate may still count a vote that was given before it. It counts
    /// none for longer than its own election timeout; the rest is for clocks that run apart.
    pub(super) fn earlier_votes_count(&self) -> Duration {
        self.election_timeout_max * 2
    }

    /// L = P - M: how long after a round's creation the leader trusts what it promised.
    pub fn trusted_lease(&self) -> Duration {
        planted!(NoMargin => return self.lease_duration);
        self.lease_duration - self.max_clock_skew
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self::new(TimingOptions::default()).expect("the defaults fit each other")
    }
}

impl Deref for Timing {
    type Target = TimingOptions;

    fn deref(&self) -> &TimingOptions {
        &self.0
    }
}

/// `rate` parts per million of `duration`, rounded up.
fn drifted(duration: Duration, rate: u32) -> Duration {
    let nanos = duration.as_nanos() * u128::from(rate);
    let nanos = nanos.div_ceil(1_000_000);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn with(change: impl FnOnce(&mut TimingOptions)) -> Result<Timing, TimingError> {
        let mut options = TimingOptions::default();
        change(&mut options);
        Timing::new(options)
    }

    #[test]
    fn the_defaults_trust_450_of_500_milliseconds() {
        let timing = Timing::default();
        assert_eq!(timing.lease_duration, ms(500));
        assert_eq!(timing.trusted_lease(), ms(450));
    }

    #[test]
    fn a_margin_of_50_ms_is_refused_for_a_lease_of_10_s_which_needs_402() {
        let error = with(|o| o.lease_duration = ms(10_000)).unwrap_err();
        assert!(
            matches!(error, TimingError::SkewTooSmall { needed, .. } if needed == ms(402)),
            "{error}"
        );
        assert!(error.to_string().contains("402ms"), "{error}");
    }

    #[test]
    fn every_relation_is_refused_just_beyond_its_bound_and_accepted_on_it() {
        assert!(with(|o| o.heartbeat_interval = Duration::ZERO).is_err());
        assert!(with(|o| o.heartbeat_interval = ms(150)).is_ok());
        assert!(with(|o| o.heartbeat_interval = ms(151)).is_err());
        assert!(with(|o| o.max_clock_skew = ms(22)).is_ok());
        assert!(with(|o| o.max_clock_skew = ms(22) - Duration::from_nanos(1)).is_err());
        assert!(with(|o| o.max_clock_skew = ms(500)).is_err());
        assert!(with(|o| o.max_clock_skew = ms(700)).is_err());
        assert!(with(|o| o.election_timeout_min = ms(501)).is_ok());
        assert!(with(|o| o.election_timeout_min = ms(500)).is_err());
        assert!(with(|o| o.election_timeout_max = ms(550)).is_err());
        assert!(with(|o| o.step_down_after = ms(500)).is_ok());
        assert!(with(|o| o.step_down_after = ms(499)).is_err());
        assert!(with(|o| o.step_down_after = ms(1000)).is_ok());
        assert!(with(|o| o.step_down_after = ms(1001)).is_err());
        assert!(with(|o| o.max_drift_ppm = 600_000).is_err());
    }

    #[test]
    fn no_setting_however_absurd_overflows() {
        let extreme = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
        for heartbeat_interval in extreme {
            for lease_duration in extreme {
                for clock_granularity in extreme {
                    for max_clock_skew in extreme {
                        let _ = with(|o| {
                            *o = TimingOptions {
                                heartbeat_interval,
                                lease_duration,
                                clock_granularity,
                                max_clock_skew,
                                max_drift_ppm: u32::MAX,
                                ..*o
                            };
                        });
                    }
                }
            }
        }
    }
}
