//! A scope: what may happen in one model, and how often.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leasehold::raft::{Change, Configuration, Envelope, Timing, TimingOptions};
use leasehold::types::{LogId, NodeId};
use stateright::{Model, Property};

use crate::marks::{Mark, Marks};
use crate::replica::BASE;
use crate::world::{Action, Left, World};

/// How many voters a model has.
const VOTERS: usize = 3;

/// The one property: which claim does not, the world says.
pub(crate) const HOLDS: &str = "every claim holds";

/// How far each clock of one replica runs in a quantum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) boot: u64,
    pub(crate) raw: u64,
}

impl Rate {
    pub(crate) const fn of(both: u64) -> Self {
        Self {
            boot: both,
            raw: both,
        }
    }
}

/// Where a model begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Everybody has started, and has kept silent long enough.
    Fresh,
    /// The first replica leads term 1, everything is committed and applied everywhere, and nothing
    /// is on its way. All have just promised, and it has just been promised.
    Led,
    /// The same after a long time: but for [`Scope::deaf`], all have just promised; and who asks for a read lease
    /// has just been granted one.
    Held,
    /// The same, and before that something was committed and cut from the leader's log; and the members were changed,
    /// by which the fourth replica is one now, and is being sent a whole state.
    Joined,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) name: &'static str,
    /// Of each replica. The voters come first, learners after them.
    pub(crate) timings: Vec<Timing>,
    /// How fast clocks may run. Each possibility is gone through from its own beginning.
    pub(crate) clocks: Vec<Vec<Rate>>,
    pub(crate) configuration: Configuration,
    /// Where all logs begin.
    pub(crate) base: LogId,
    pub(crate) begin: Begin,
    pub(crate) left: Left,
    /// How many steps from its beginning everything is gone through, where the model is too large
    /// to be gone through to its end with every `cargo test`.
    pub(crate) steps: Option<u8>,
    /// A write takes a step of its own; else it is durable at once.
    pub(crate) slow_disks: bool,
    /// The replicas where applying takes a step of its own.
    pub(crate) slow_apply: &'static [usize],
    /// Every promise is over when a vote is asked for, as if clocks meant nothing. Nobody has a
    /// lease then.
    pub(crate) lapses: bool,
    /// Who asks around is told at once that it would be elected: nothing may rest on the contrary,
    /// and much is saved.
    pub(crate) pre_votes_granted: bool,
    /// What never arrives in this model.
    pub(crate) loses: fn(&Envelope) -> bool,
    /// Reads by quorum may arrive at followers, too.
    pub(crate) follower_reads: bool,
    /// How old states are is looked at, too.
    pub(crate) ages: bool,
    /// How far a clock steps back.
    pub(crate) step_back: u64,
    /// The command is so large that it travels alone.
    pub(crate) large_command: bool,
    /// The replicas whose election timers may run out.
    pub(crate) candidates: &'static [usize],
    /// The replicas whose processes may end.
    pub(crate) restarted: &'static [usize],
    /// The replicas that may lose their disks.
    pub(crate) wiped: &'static [usize],
    /// The replicas to which nothing came in the last round before the model began, so they have promised nothing.
    pub(crate) deaf: &'static [usize],
    /// The replicas to whom leaders hand over.
    pub(crate) heirs: &'static [usize],
    /// The change of members that may be asked for.
    pub(crate) change: Option<Change>,
    /// The rules that are taken away.
    #[cfg(leasehold_bugs)]
    pub(crate) bugs: &'static [leasehold::planted::Bug],
    /// What must have happened, or the model says nothing.
    pub(crate) expects: &'static [Mark],
    pub(crate) marks: Arc<Marks>,
}

static LARGE: [u8; 1 << 20] = [0; 1 << 20];

/// Clocks of 2 and of 3 units a quantum: as far apart as rho = 1/5 lets them be. A promise of 9
/// units is over after 3 quanta by the fast one; a lease of 6 units after 3 quanta by the slow one.
/// So L = P (1 - rho) / (1 + rho), and nothing is to spare.
pub(crate) const SLOW: Rate = Rate::of(2);
pub(crate) const FAST: Rate = Rate::of(3);

/// How long a quantum is, of which the slow clock shows 2 units and the fast one 3: 5/2 units.
pub(crate) const QUANTUM: Duration = Duration::from_nanos(5);
pub(crate) const QUANTUM_DIVISOR: u32 = 2;

/// The settings of a model in which states have an age: they must name the drift, and so leave a
/// margin of 2 rho P.
pub(crate) fn timing_with_drift() -> Timing {
    let units = Duration::from_nanos;
    Timing::new(TimingOptions {
        heartbeat_interval: units(1),
        max_drift_ppm: 200_000,
        max_clock_skew: units(4),
        ..*timing(9, 3)
    })
    .expect("fit each other")
}

/// The settings of the models with time, in their units: P, and M.
pub(crate) fn timing(promise: u64, margin: u64) -> Timing {
    let units = Duration::from_nanos;
    Timing::new(TimingOptions {
        heartbeat_interval: units(2),
        election_timeout_min: units(10),
        election_timeout_max: units(11),
        step_down_after: units(9),
        lease_duration: units(promise),
        max_clock_skew: units(margin),
        max_drift_ppm: 0,
        clock_granularity: units(0),
        lease_enabled: true,
        ..TimingOptions::default()
    })
    .expect("fit each other")
}

/// The same for a leader that beats so often.
pub(crate) fn beating(promise: u64, margin: u64, heartbeat: u64) -> Timing {
    Timing::new(TimingOptions {
        heartbeat_interval: Duration::from_nanos(heartbeat),
        ..*timing(promise, margin)
    })
    .expect("fit each other")
}

/// The same for a replica that asks for read leases.
pub(crate) fn holder(promise: u64, margin: u64) -> Timing {
    Timing::new(TimingOptions {
        read_lease_enabled: true,
        ..*timing(promise, margin)
    })
    .expect("fit each other")
}

/// The same for a leader that recalls them once commits have waited for so long.
pub(crate) fn impatient(promise: u64, margin: u64, patience: u64) -> Timing {
    Timing::new(TimingOptions {
        read_lease_max_write_delay: Duration::from_nanos(patience),
        ..*timing(promise, margin)
    })
    .expect("fit each other")
}

/// The settings of the models without time.
fn timeless() -> Timing {
    Timing::new(TimingOptions {
        lease_enabled: false,
        ..TimingOptions::default()
    })
    .expect("fit each other")
}

impl Scope {
    /// Without time: whoever waits may find that it has waited long enough.
    pub(crate) fn timeless(name: &'static str, begin: Begin, left: Left) -> Self {
        Self {
            timings: vec![timeless(); VOTERS],
            lapses: true,
            slow_disks: true,
            ..Self::timed(name, begin, left)
        }
    }

    /// With clocks as far apart as the settings allow: a slow leader, and fast voters.
    pub(crate) fn timed(name: &'static str, begin: Begin, left: Left) -> Self {
        Self {
            name,
            timings: vec![timing(9, 3); VOTERS],
            clocks: vec![vec![SLOW, FAST, FAST]],
            configuration: Configuration {
                voters: (1..).map(NodeId).take(VOTERS).collect(),
                ..Configuration::default()
            },
            base: BASE,
            begin,
            left,
            steps: None,
            slow_disks: false,
            slow_apply: &[],
            lapses: false,
            pre_votes_granted: true,
            loses: |_| false,
            follower_reads: false,
            ages: false,
            step_back: 0,
            large_command: false,
            candidates: &[0, 1, 2],
            restarted: &[0, 1, 2],
            wiped: &[0, 1, 2],
            deaf: &[],
            heirs: &[1],
            change: None,
            #[cfg(leasehold_bugs)]
            bugs: &[],
            expects: &[],
            marks: Arc::default(),
        }
    }

    /// The world that a model begins with.
    fn begin(&self, left: Left, clocks: usize) -> World {
        let mut world = World::new(self, clocks);
        // Everybody has kept silent since its start.
        for replica in &mut world.replicas {
            let replica = Arc::make_mut(replica);
            replica.lapse();
            replica.seal(Duration::ZERO);
        }
        world.settle(self);
        if self.begin != Begin::Fresh {
            world.left.timeouts = 1;
            let first = world.after(self, Action::TimeOut(0));
            world = first.expect("it campaigns");
            world.settle(self);
        }
        if self.begin == Begin::Joined {
            world = self.joined(world);
        }
        if matches!(self.begin, Begin::Held | Begin::Joined) {
            world = self.granted(world);
        }
        world.left = left;
        world.steps = 0;
        for replica in &mut world.replicas {
            Arc::make_mut(replica).seal(self.steps_back(&left));
        }
        world
    }

    /// What follows upon `world` up to [`Begin::Joined`].
    fn joined(&self, mut world: World) -> World {
        world.left.proposals = 1;
        world.left.changes = 1;
        let command = world.after(self, Action::Propose(0));
        world = command.expect("it is appended");
        world.settle(self);
        world.cut_log(self, 0);
        world = world
            .after(self, Action::Change(0))
            .expect("a member is added");
        world.settle(self);
        world
    }

    /// A long time after `world`, when all but the deaf have promised again and all who ask for one hold a read lease.
    fn granted(&self, mut world: World) -> World {
        world.left.waits = 1;
        world = world.after(self, Action::Wait).expect("time always passes");
        // The leader has no lease before the first round, and no replica has asked before it is answered.
        for _ in 0..2 {
            world.left.quorum_reads = 1;
            world = world
                .after(self, Action::Ask(0))
                .expect("a read begins a round");
            let deaf: Vec<NodeId> = self.deaf.iter().map(|n| world.replicas[*n].id).collect();
            world
                .wire
                .retain(|parcel| !deaf.contains(&parcel.envelope.to));
            world.settle(self);
        }
        world
    }

    /// Whether a replica asks for read leases.
    pub(crate) fn asks_to_hold(&self, n: usize) -> bool {
        self.timings[n].read_lease_enabled
    }

    /// Whether any does.
    pub(crate) fn has_holders(&self) -> bool {
        (0..self.timings.len()).any(|n| self.asks_to_hold(n))
    }

    pub(crate) fn may_time_out(&self, world: &World, n: usize) -> bool {
        // While all are alike, it does not matter which of them is the first.
        let alike = self.begin == Begin::Fresh && world.left.timeouts == self.left.timeouts;
        self.candidates.contains(&n) && (n == 0 || !alike)
    }

    /// Whether anything rests on the names of questions.
    pub(crate) fn names_matter(&self) -> bool {
        self.ages || self.left.quorum_reads > 0
    }

    pub(crate) fn command(&self, number: u8) -> Bytes {
        match self.large_command {
            true => Bytes::from_static(&LARGE),
            false => Bytes::copy_from_slice(&[number]),
        }
    }

    pub(crate) fn steps_back(&self, left: &Left) -> Duration {
        Duration::from_nanos(self.step_back * u64::from(left.steps_back))
    }
}

impl Model for Scope {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        // What happens before the model begins does not count.
        let scope = &Self {
            marks: Arc::default(),
            loses: |_| false,
            ..self.clone()
        };
        let begin = |clocks| scope.begin(self.left, clocks);
        (0..self.clocks.len()).map(begin).collect()
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // Those nearest to the beginning come first, so no state is found by a detour.
        if self.steps.is_none_or(|steps| world.steps < steps) {
            world.actions(self, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        world.after(self, action)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(HOLDS, |_, world: &World| {
            world.broken.is_none()
        })]
    }
}
