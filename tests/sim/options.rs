//! What one run is made of, drawn from its seed: each run draws its own probabilities.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use leasehold::node::AutoCompaction;
use leasehold::raft::{Timing, TimingOptions};

use crate::clock::{MS, Nanos, SECOND, US};
use crate::dice::Dice;
use crate::nemesis::Planned;
use crate::network::Quality;
use crate::watches::WatchLimits;

/// What kind of trouble a run gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// None but the usual delays.
    Calm,
    /// Each kind of fault is on or off, at a rate of its own.
    Swarm,
    /// Faults aimed at the leader, the vote, the transfer, the end of a lease; and coincidences.
    Targeted,
    /// Everything, often.
    Storm,
    /// Clocks that stop unnoticed: assumption A1 is broken, and only quorum reads are judged.
    Frozen,
}

impl Profile {
    /// Its name, as `SIM_PROFILE` takes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Swarm => "swarm",
            Self::Targeted => "targeted",
            Self::Storm => "storm",
            Self::Frozen => "frozen",
        }
    }

    /// The profile of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let all = [
            Self::Calm,
            Self::Swarm,
            Self::Targeted,
            Self::Storm,
            Self::Frozen,
        ];
        all.into_iter().find(|profile| profile.name() == name)
    }

    fn draw(dice: &mut Dice) -> Self {
        match dice.between(0, 99) {
            0..=4 => Self::Calm,
            5..=39 => Self::Swarm,
            40..=84 => Self::Targeted,
            85..=95 => Self::Storm,
            _ => Self::Frozen,
        }
    }
}

/// What one run is made of.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) profile: Profile,
    pub(crate) nodes: usize,
    /// How many of them found the cluster; the others wait until they are made members.
    pub(crate) founders: usize,
    /// Members change.
    pub(crate) moves: bool,
    pub(crate) timing: Timing,
    /// What some processes start with instead, as if the settings had been changed in between.
    pub(crate) other_timing: Option<Timing>,
    /// Who asks for read leases, if anybody does.
    pub(crate) read_leases: Option<ReadLeases>,
    /// How wrong a machine's better clock may be.
    pub(crate) drift_ppm: u32,
    /// The worse clock of every machine is slewed far beyond that.
    pub(crate) slewed: bool,
    /// How long faults last; then everything heals.
    pub(crate) faulty_for: Nanos,
    pub(crate) quality: Quality,
    /// How often a thread loses the processor between two steps, and for how long at most.
    pub(crate) preempt: f64,
    pub(crate) preempt_max: Nanos,
    pub(crate) clients: usize,
    /// Connections that the clients share.
    pub(crate) connections: usize,
    /// The pause of a client between two requests, on average.
    pub(crate) think: Nanos,
    /// How often the idle clients of a connection speak together, so that their requests arrive in
    /// one packet.
    pub(crate) together: f64,
    /// How many requests a session takes into one batch at most.
    pub(crate) batch_max: usize,
    /// Clients that keep asking the same node, one for each, at most this often.
    pub(crate) probe_every: Option<Nanos>,
    pub(crate) keys: u64,
    /// Holders of client leases.
    pub(crate) holders: usize,
    /// Who watch, and who read at past revisions.
    pub(crate) watchers: usize,
    pub(crate) historians: usize,
    pub(crate) watch: WatchLimits,
    /// Users of locks.
    pub(crate) lockers: usize,
    pub(crate) sessions_idle_max: Duration,
    pub(crate) auto_compaction: AutoCompaction,
    /// How many entries a log keeps of those that the state machine holds durably; `None`: all.
    pub(crate) log_tail: Option<u64>,
    pub(crate) check_interval: Option<Duration>,
    /// Nodes keep their logs with `log::Log`, over its own simulated disk.
    pub(crate) real_log: bool,
    /// The founders were restored from a backup of another cluster. Plain logs alone.
    pub(crate) restored: bool,
    /// The faults, if they are not those that the seed draws.
    pub(crate) schedule: Option<Vec<Planned>>,
    /// The one play that the schedule is made of, where it is made of plays.
    pub(crate) play: Option<u64>,
    /// Lines of the drawn schedule that are left out.
    pub(crate) without: BTreeSet<usize>,
    /// Keep a readable trace.
    pub(crate) readable: bool,
    /// Tell it at once.
    pub(crate) aloud: bool,
}

impl Options {
    /// The run of `seed`; `profile` and `seconds` override what it draws.
    pub(crate) fn draw(seed: u64, profile: Option<Profile>, seconds: Option<u64>) -> Self {
        let mut dice = Dice::new(seed, "options", 0);
        let usual = Profile::draw(&mut dice);
        let profile = profile.unwrap_or(usual);
        let nodes = *dice.pick(&[3, 3, 3, 3, 3, 3, 3, 5, 5, 5, 1, 2, 4]);
        let timing = draw_timing(&mut dice);
        let length = dice.between(8, 24);
        let mut history = Dice::new(seed, "history", 0);
        let mut retimed = Dice::new(seed, "retimed", 0);
        let mut held = Dice::new(seed, "holders", 0);
        let mut watching = Dice::new(seed, "watches", 0);
        let mut locked = Dice::new(seed, "lockers", 0);
        let mut logs = Dice::new(seed, "logs", 0);
        let mut members = Dice::new(seed, "members", 0);
        let moves = members.chance(0.3);
        let founders = nodes;
        let spares = if moves { members.between(0, 2) } else { 0 };
        let nodes = nodes + spares as usize;
        let other_timing = retimed.chance(0.1).then(|| retime(&timing, &mut retimed));
        let mut read_leases = Dice::new(seed, "read leases", 0);
        let read_leases = read_leases
            .chance(0.4)
            .then(|| ReadLeases::draw(&mut read_leases));
        let mut drawn = Self {
            seed,
            profile,
            nodes,
            founders,
            moves,
            timing,
            other_timing,
            read_leases,
            drift_ppm: timing.max_drift_ppm,
            slewed: false,
            faulty_for: seconds.unwrap_or(length) * SECOND,
            quality: Quality::draw(&mut dice),
            preempt: *dice.pick(&[0.0, 0.0, 0.01, 0.05, 0.2]),
            preempt_max: dice.spread(100 * US, 1_200 * MS),
            clients: dice.between(1, 6) as usize,
            connections: dice.between(1, 4) as usize,
            think: dice.spread(5 * MS, 300 * MS),
            together: *dice.pick(&[0.0, 0.1, 0.5, 1.0]),
            batch_max: *dice.pick(&[1, 2, 3, 64, 64]),
            probe_every: dice.chance(0.8).then(|| dice.spread(2 * MS, 60 * MS)),
            keys: dice.between(1, 8),
            holders: *held.pick(&[0, 0, 0, 1, 2, 4]),
            watchers: *watching.pick(&[0, 0, 0, 1, 2, 4]),
            historians: *watching.pick(&[0, 0, 0, 1, 2]),
            watch: draw_watch(&mut watching),
            lockers: *locked.pick(&[0, 0, 0, 2, 4]),
            sessions_idle_max: Duration::from_millis(*dice.pick(&[3_600_000, 3_600_000, 4_000])),
            auto_compaction: *history.pick(&[
                AutoCompaction::Off,
                AutoCompaction::Revisions { keep: 20 },
                AutoCompaction::Periodic {
                    retention: Duration::from_millis(500),
                },
                AutoCompaction::Periodic {
                    retention: Duration::from_secs(3),
                },
            ]),
            log_tail: *logs.pick(&[None, None, Some(0), Some(3), Some(20), Some(100)]),
            check_interval: match history.chance(0.6) {
                true => Some(Duration::from_millis(history.between(100, 3_000))),
                false => None,
            },
            real_log: dice.chance(0.25),
            restored: false,
            schedule: None,
            play: None,
            without: BTreeSet::new(),
            readable: false,
            aloud: false,
        };
        let of_three_or_more = drawn.founders > 2 && !drawn.moves;
        let mut dice = Dice::new(seed, "restored", 0);
        drawn.restored = of_three_or_more && !drawn.real_log && dice.chance(0.2);
        drawn
    }

    /// The same with so many nodes, all of them founders.
    pub(crate) fn found(&mut self, nodes: usize) {
        self.nodes = nodes;
        self.founders = nodes;
    }

    /// The longest that any node waits before it campaigns.
    pub(crate) fn election_timeout_max(&self) -> Duration {
        let usual = self.timing.election_timeout_max;
        let other = self.other_timing.map(|other| other.election_timeout_max);
        other.map_or(usual, |other| usual.max(other))
    }

    /// Another timing that fits.
    #[cfg(leasehold_bugs)]
    pub(crate) fn retimed(&self) -> Timing {
        retime(&self.timing, &mut Dice::new(self.seed, "retimed", 1))
    }

    /// Three nodes with perfect clocks on a network without surprises: what scenarios start from.
    pub(crate) fn still(nodes: usize) -> Self {
        Self {
            seed: 7,
            profile: Profile::Calm,
            nodes,
            founders: nodes,
            moves: false,
            timing: Timing::default(),
            other_timing: None,
            read_leases: None,
            drift_ppm: 0,
            slewed: false,
            faulty_for: 0,
            quality: Quality::STILL,
            preempt: 0.0,
            preempt_max: MS,
            clients: 0,
            connections: 1,
            think: 50 * MS,
            together: 0.0,
            batch_max: 64,
            probe_every: None,
            keys: 3,
            holders: 0,
            watchers: 0,
            historians: 0,
            watch: WatchLimits::USUAL,
            lockers: 0,
            sessions_idle_max: Duration::from_secs(3600),
            auto_compaction: AutoCompaction::Off,
            log_tail: None,
            check_interval: None,
            real_log: true,
            restored: false,
            schedule: None,
            play: None,
            without: BTreeSet::new(),
            readable: true,
            aloud: false,
        }
    }
}

/// Who asks for read leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadLeases {
    /// A bit for each node.
    pub(crate) members: u64,
    pub(crate) max_write_delay: Duration,
}

impl ReadLeases {
    fn draw(dice: &mut Dice) -> Self {
        let some = dice.between(1, 31);
        Self {
            members: *dice.pick(&[u64::MAX, u64::MAX, some]),
            max_write_delay: Duration::from_millis(*dice.pick(&[5, 50, 50, 300])),
        }
    }

    /// Everybody, with the usual patience.
    #[cfg(leasehold_bugs)]
    pub(crate) const ALL: Self = Self {
        members: u64::MAX,
        max_write_delay: Duration::from_millis(50),
    };

    /// The timing of `node`.
    pub(crate) fn set(self, timing: Timing, node: usize) -> Timing {
        let timing = Timing::new(TimingOptions {
            read_lease_enabled: self.members >> node & 1 == 1,
            read_lease_max_write_delay: self.max_write_delay,
            ..*timing
        });
        timing.expect("the relations do not speak of read leases")
    }
}

impl fmt::Display for ReadLeases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (members, delay) = (self.members, self.max_write_delay.as_millis());
        write!(f, "read-leases {members} {delay}ms")
    }
}

/// Limits of watches, small and less small.
fn draw_watch(dice: &mut Dice) -> WatchLimits {
    WatchLimits {
        queue_events: *dice.pick(&[2, 4, 16, 64]),
        queue_bytes: *dice.pick(&[600, 4_000, 64_000]),
        memory_bytes: *dice.pick(&[4_000, 64_000, 1 << 20]),
        step_changes: *dice.pick(&[1, 2, 5, 50]),
        step_bytes: *dice.pick(&[100, 2_000, 64_000]),
        parcel_bytes: *dice.pick(&[1, 300, 64_000]),
        progress: Duration::from_millis(dice.spread(100, 2_000)),
        forgets: *dice.pick(&[0.0, 0.05, 0.3]),
    }
}

/// The same with a longer or shorter promise, and what follows from it.
fn retime(timing: &Timing, dice: &mut Dice) -> Timing {
    let (numerator, denominator) = *dice.pick(&[(1, 3), (1, 2), (2, 1), (3, 1)]);
    let lease = timing.lease_duration.as_millis() as u64 * numerator / denominator;
    let lease = Duration::from_millis(lease.clamp(150, 1_500));
    fitting(dice, lease, timing.max_drift_ppm)
}

/// The usual timing for most; for others a longer or shorter promise, with the least margin that
/// the drift allows.
fn draw_timing(dice: &mut Dice) -> Timing {
    if dice.chance(0.5) {
        return Timing::default();
    }
    let lease = Duration::from_millis(dice.between(200, 1_200));
    let drift_ppm = *dice.pick(&[500, 20_000, 20_000, 50_000, 150_000]);
    fitting(dice, lease, drift_ppm)
}

/// A promise of this length, with the least margin that the drift allows.
fn fitting(dice: &mut Dice, duration: Duration, drift_ppm: u32) -> Timing {
    let granularity = Duration::from_millis(1);
    let skew = duration * drift_ppm * 2 / 1_000_000 + granularity * 2;
    let trusted = duration - skew;
    let options = TimingOptions {
        lease_duration: duration,
        max_clock_skew: skew,
        max_drift_ppm: drift_ppm,
        clock_granularity: granularity,
        heartbeat_interval: trusted / dice.between(4, 12) as u32,
        election_timeout_min: duration + Duration::from_millis(dice.between(1, 100)),
        election_timeout_max: duration * 2 + Duration::from_millis(200),
        step_down_after: duration + duration / dice.between(1, 10) as u32,
        lease_enabled: true,
        ..TimingOptions::default()
    };
    Timing::new(options).expect("the relations are kept by how it was drawn")
}
