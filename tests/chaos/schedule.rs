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
        let (fault, lasts) = match random.u32(..100) {
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
            _ => {
                let seconds = [-86_400, -3_600, -30, 30, 3_600, 86_400];
                let jump = seconds[random.usize(..seconds.len())];
                (Fault::WallClock(whom, jump), between(random, 1_000, 8_000))
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
        assert_eq!(names.len(), 16, "{names:?}");
        let overlap = events
            .windows(2)
            .filter(|pair| pair[0].at + pair[0].lasts > pair[1].at);
        assert!(overlap.count() > events.len() / 3);
    }
}
