//! What goes wrong when: drawn from a seed before anything runs.
//!
//! The same seed gives the same schedule. It does not give the same run: real processes, disks and
//! sockets interleave as they like.

use std::fmt;
use std::time::Duration;

/// Whom it befalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whom {
    /// Whoever leads when it begins; the first node if nobody does.
    Leader,
    /// This node.
    Node(usize),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// `kill -9`, and a start at the end.
    Kill(Whom),
    /// All nodes are killed, and started at the end.
    KillAll,
    /// The process is stopped, and continued at the end.
    Pause(Whom),
    /// Nothing gets to it or from it.
    Isolate(Whom),
    /// Others do not hear it, but it hears them.
    Mute(Whom),
    /// It does not hear others, but they hear it.
    Deafen(Whom),
    /// Two nodes do not hear each other; both hear the third.
    Bridge(Whom),
    /// It is cut off and joined again, over and over, each for this long.
    Flap(Whom, Duration),
    /// Datagrams between nodes are lost, doubled, damaged, delayed: each share in percent.
    Storm {
        loss: u8,
        doubled: u8,
        damaged: u8,
        jitter: Duration,
    },
    /// The same between clients and nodes.
    Drizzle {
        loss: u8,
        doubled: u8,
        damaged: u8,
        jitter: Duration,
    },
    /// Datagrams between it and the others take so much longer, and some twice as much, both ways.
    Lag(Whom, Duration),
    /// Every sync of its disk takes so much longer.
    SlowDisk(Whom, Duration),
    /// A sync of its disk fails, and the process ends by it.
    FailingDisk(Whom),
    /// Its disk is full, until the end.
    FullDisk(Whom),
    /// Its clock on the wall jumps by so many seconds, and back at the end.
    WallClock(Whom, i64),
    /// The clocks that its leases go by run faster by so many parts in a million, or slower, until the end.
    Drift(Whom, i32),
    /// They are set back by this much.
    StepBack(Whom, Duration),
}

/// How wrong clocks may be, nearly: `leader_lease.max_drift_ppm` is 20,000.
pub(crate) const DRIFT_PPM: i32 = 19_000;

impl Fault {
    /// Its name, for counting.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kill(_) => "kill",
            Self::KillAll => "kill all",
            Self::Pause(_) => "pause",
            Self::Isolate(_) => "isolate",
            Self::Mute(_) => "mute",
            Self::Deafen(_) => "deafen",
            Self::Bridge(_) => "bridge",
            Self::Flap(..) => "flap",
            Self::Storm { .. } => "storm",
            Self::Drizzle { .. } => "drizzle",
            Self::Lag(..) => "lag",
            Self::SlowDisk(..) => "slow disk",
            Self::FailingDisk(_) => "failing disk",
            Self::FullDisk(_) => "full disk",
            Self::WallClock(..) => "wall clock",
            Self::Drift(..) => "drift",
            Self::StepBack(..) => "step back",
        }
    }
}

/// A fault and its time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) fault: Fault,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, lasts, fault } = self;
        write!(
            f,
            "{:>6.1}s for {:>4.1}s {fault:?}",
            at.as_secs_f64(),
            lasts.as_secs_f64()
        )
    }
}

/// Beyond a read lease: a slow holder is never recalled.
pub(crate) const PATIENT_LEADER: Duration = Duration::from_secs(1);

/// Which members ask for read leases, and what they do as leaders about slow holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadLeases {
    /// By the number of the member.
    wanted: Vec<bool>,
    max_write_delay: Duration,
}

/// `read_lease.max_write_delay` if nothing is set.
const MAX_WRITE_DELAY: Duration = Duration::from_millis(50);

impl ReadLeases {
    /// As a cluster is by default: no member asks for one.
    pub(crate) fn nowhere(nodes: usize) -> Self {
        Self {
            wanted: vec![false; nodes],
            max_write_delay: MAX_WRITE_DELAY,
        }
    }

    /// All members ask for one, and as leaders wait so long for a slow holder.
    pub(crate) fn everywhere(nodes: usize, max_write_delay: Duration) -> Self {
        Self {
            wanted: vec![true; nodes],
            max_write_delay,
        }
    }

    /// One cluster in four has none, half of them have them everywhere, and the others at some members. It is
    /// drawn from dice of its own, beside those of the faults.
    pub(crate) fn draw(seed: u64, nodes: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(!seed);
        let wanted = match random.u8(..4) {
            0 => vec![false; nodes],
            1 => (0..nodes).map(|_| random.bool()).collect(),
            _ => vec![true; nodes],
        };
        // The shortest recalls holders for little.
        let hasty_leader = Duration::from_millis(10);
        let delays = [hasty_leader, MAX_WRITE_DELAY, PATIENT_LEADER];
        Self {
            wanted,
            max_write_delay: delays[random.usize(..3)],
        }
    }

    /// Whether all members ask for one.
    pub(crate) fn are_everywhere(&self) -> bool {
        self.wanted.iter().all(|wanted| *wanted)
    }

    /// Whether no member asks for one.
    pub(crate) fn are_nowhere(&self) -> bool {
        !self.wanted.contains(&true)
    }

    /// What a member's configuration says of it.
    pub(crate) fn settings(&self, node: usize) -> String {
        format!(
            "[read_lease]\nenabled = {}\nmax_write_delay = \"{}ms\"\n",
            self.wanted[node],
            self.max_write_delay.as_millis()
        )
    }
}

fn between(random: &mut fastrand::Rng, min_ms: u64, max_ms: u64) -> Duration {
    Duration::from_millis(random.u64(min_ms..=max_ms))
}

/// Everything that goes wrong within `length`, in the order of beginning. Faults overlap.
pub(crate) fn draw(seed: u64, length: Duration, nodes: usize) -> Vec<Event> {
    let mut random = fastrand::Rng::with_seed(seed);
    let random = &mut random;
    let mut events = Vec::new();
    // A first moment of peace, so that there is something to lose.
    let mut at = between(random, 1_000, 2_000);
    while at < length {
        let whom = match random.bool() {
            true => Whom::Leader,
            false => Whom::Node(random.usize(..nodes)),
        };
        let (fault, lasts) = match random.u32(..106) {
            0..16 => (Fault::Kill(whom), between(random, 0, 4_000)),
            16..19 => (Fault::KillAll, between(random, 0, 1_000)),
            19..31 => (Fault::Pause(whom), between(random, 100, 4_000)),
            31..40 => (Fault::Isolate(whom), between(random, 300, 4_000)),
            40..46 => (Fault::Mute(whom), between(random, 300, 4_000)),
            46..52 => (Fault::Deafen(whom), between(random, 300, 4_000)),
            52..57 => (Fault::Bridge(whom), between(random, 300, 4_000)),
            57..62 => {
                let each = between(random, 50, 1_000);
                (Fault::Flap(whom, each), between(random, 1_000, 4_000))
            }
            62..72 => {
                let storm = Fault::Storm {
                    loss: random.u8(..30),
                    doubled: random.u8(..50),
                    damaged: random.u8(..10),
                    jitter: between(random, 0, 60),
                };
                (storm, between(random, 1_000, 5_000))
            }
            72..78 => {
                let drizzle = Fault::Drizzle {
                    loss: random.u8(..20),
                    doubled: random.u8(..50),
                    damaged: random.u8(..10),
                    jitter: between(random, 0, 60),
                };
                (drizzle, between(random, 1_000, 5_000))
            }
            78..84 => {
                let each = between(random, 20, 2_000);
                (Fault::SlowDisk(whom, each), between(random, 1_000, 4_000))
            }
            84..88 => (Fault::FailingDisk(whom), between(random, 500, 2_000)),
            88..93 => (Fault::FullDisk(whom), between(random, 1_000, 4_000)),
            93..96 => {
                let ppm = [-DRIFT_PPM, DRIFT_PPM][random.usize(..2)];
                (Fault::Drift(whom, ppm), between(random, 2_000, 10_000))
            }
            96..98 => {
                let back = between(random, 100, 3_000);
                (Fault::StepBack(whom, back), Duration::ZERO)
            }
            98..100 => {
                let seconds = [-86_400, -3_600, -30, 30, 3_600, 86_400];
                let jump = seconds[random.usize(..seconds.len())];
                (Fault::WallClock(whom, jump), between(random, 1_000, 8_000))
            }
            _ => {
                let each = between(random, 10, 150);
                (Fault::Lag(whom, each), between(random, 1_000, 5_000))
            }
        };
        events.push(Event { at, lasts, fault });
        at += between(random, 200, 3_500);
    }
    events
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_schedule_is_its_seeds_and_every_fault_has_its_turn() {
        let hour = Duration::from_secs(3_600);
        let events = draw(1, hour, 3);
        assert_eq!(events, draw(1, hour, 3));
        assert_ne!(events, draw(2, hour, 3));
        assert!(events.iter().all(|event| event.at < hour));
        assert!(events.is_sorted_by_key(|event| event.at));
        let names: BTreeSet<&str> = events.iter().map(|event| event.fault.name()).collect();
        assert_eq!(names.len(), 17, "{names:?}");
        let overlap = events
            .windows(2)
            .filter(|pair| pair[0].at + pair[0].lasts > pair[1].at);
        assert!(overlap.count() > events.len() / 3);
    }

    #[test]
    fn read_leases_are_drawn_everywhere_nowhere_and_at_some_members() {
        let draws: Vec<ReadLeases> = (0..100).map(|seed| ReadLeases::draw(seed, 3)).collect();
        assert_eq!(draws[7], ReadLeases::draw(7, 3));
        let of = |few: usize| {
            let wanted = |draw: &&ReadLeases| draw.wanted.iter().filter(|it| **it).count() == few;
            draws.iter().filter(wanted).count()
        };
        let counts = [0, 1, 2, 3].map(of);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        assert!(counts[3] > counts[0], "{counts:?}");
    }
}
