//! A cluster, the clients on it, and what is judged when both have come to their end.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leasehold::client::Client;
use leasehold::server::disk::state_dirs::StateDirs;
use leasehold::server::disk::store::{HashReport, StateStore, StoreOptions};
use leasehold::types::LogId;
use tokio::runtime::Runtime;

use crate::chaos::fleet::Fleet;
use crate::chaos::load::members::{BY_ITS_LEADERS_WORD, BY_ITS_READ_LEASE};
use crate::chaos::load::{Load, etcd, insist};
use crate::chaos::schedule::{Event, Fault, Whom};
use crate::harness::{PATIENCE, tell_what_was_left_out};

/// Between two looks at what is due.
pub(crate) const TICK: Duration = Duration::from_millis(20);
/// Longer than any trial that ends its faults by itself.
const UNTIL_HEALED: Duration = Duration::from_secs(3_600);
/// Writes that show that writes go on.
const WRITES: usize = 5;
/// Reads by its read lease that show that a member holds one.
const BY_READ_LEASE: u64 = 20;

/// A cluster with clients.
pub(crate) struct Trial {
    pub(crate) fleet: Fleet,
    pub(crate) load: Load,
    pub(crate) runtime: Runtime,
}

/// What it came to.
pub(crate) struct Verdict {
    pub(crate) faults: BTreeMap<&'static str, (u64, u64)>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) violations: Vec<String>,
}

impl Trial {
    /// Begins on a cluster that is well.
    pub(crate) fn begin(fleet: Fleet, seed: u64) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let has_quiet_times = !fleet.read_leases.are_nowhere();
        let options = fleet.cluster.options();
        let called = (fleet.endpoints(), fleet.etcd_ports());
        let load = Load::begin(called, options, seed, has_quiet_times);
        let load = runtime.block_on(load);
        Self {
            fleet,
            load,
            runtime,
        }
    }

    /// One more client.
    pub(crate) fn client(&self) -> Client {
        let options = self.fleet.cluster.options().with_timeout(PATIENCE);
        let connect = || Client::connect(self.fleet.endpoints(), Some(options.clone()));
        self.runtime.block_on(insist(connect))
    }

    /// Has this befall `node` until all is healed. It has to be possible.
    pub(crate) fn strike(&mut self, node: usize, fault: impl Fn(Whom) -> Fault) {
        let fault = fault(Whom::Node(node));
        let event = Event {
            at: Duration::ZERO,
            lasts: UNTIL_HEALED,
            fault,
        };
        let before = self.fleet.deeds.faults.get(fault.name()).copied();
        self.fleet.begin(&event, node);
        let after = self.fleet.deeds.faults.get(fault.name()).copied();
        let done = |counts: Option<(u64, u64)>| counts.unwrap_or_default().0;
        assert!(done(after) > done(before), "{fault:?} is not possible");
    }

    /// Goes on until `probe` gives something. Returns that, and how long it took.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut probe: impl FnMut(&mut Fleet) -> Option<T>,
    ) -> (T, Duration) {
        let began = Instant::now();
        loop {
            self.fleet.tick();
            if let Some(found) = probe(&mut self.fleet) {
                return (found, began.elapsed());
            }
            assert!(
                began.elapsed() < PATIENCE,
                "waited {PATIENCE:?} for: {what}"
            );
            std::thread::sleep(TICK);
        }
    }

    /// Goes on for so long.
    pub(crate) fn go_on(&mut self, length: Duration) {
        let began = Instant::now();
        while began.elapsed() < length {
            self.fleet.tick();
            std::thread::sleep(TICK);
        }
    }

    /// Waits until somebody who is none of `others` leads under a lease.
    pub(crate) fn leader_beside(&mut self, others: &[usize]) -> (usize, Duration) {
        self.until("another leader", |fleet| {
            let leader = fleet.cluster.leader()?;
            (!others.contains(&leader)).then_some(leader)
        })
    }

    /// Waits until a node leads under a lease and every other one has answered so many reads by its read lease since
    /// this began, and until writers are quiet: what befalls one now befalls a holder that would go on to serve all
    /// reads. Returns who leads.
    pub(crate) fn leader_of_holders(&mut self) -> usize {
        let nodes = self.fleet.cluster.nodes.len();
        let now = |load: &Load| -> Vec<u64> { (0..nodes).map(|n| load.by_read_lease(n)).collect() };
        let before = now(&self.load);
        // On a busy machine they take their time: what is waited for is the next one.
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            // A node that has found a read lease of its own wrong holds none again.
            let mut wrong = self.load.violations();
            wrong.extend(self.fleet.tripped());
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            let (leader, _) = self.leader_beside(&[]);
            let after = now(&self.load);
            let served = |node: usize| (after[node] - before[node]).min(BY_READ_LEASE);
            let all_hold = (0..nodes).all(|node| node == leader || served(node) == BY_READ_LEASE);
            if all_hold && self.load.is_quiet() {
                return leader;
            }
            let all_served: u64 = (0..nodes).map(served).sum();
            if all_served > seen {
                (seen, since) = (all_served, Instant::now());
            }
            assert!(
                since.elapsed() < PATIENCE,
                "n{} leads, and not all others answer by read leases: {before:?}, and {after:?}, none of those that are \
                 missing for {PATIENCE:?}",
                leader + 1
            );
            self.fleet.tick();
            std::thread::sleep(TICK);
        }
    }

    /// Demands that writes go on, whatever is going on. Returns how long some took.
    pub(crate) fn write_on(&mut self, client: &Client) -> Duration {
        let began = Instant::now();
        // The weather follows from the faults once somebody looks.
        self.fleet.tick();
        for _ in 0..WRITES {
            let put = client.put("meanwhile", "v", None);
            self.runtime.block_on(put).unwrap();
            self.fleet.tick();
        }
        began.elapsed()
    }

    /// Heals, ends and judges.
    pub(crate) fn end(mut self) -> Verdict {
        self.fleet.heal();
        let ending = self.runtime.spawn(self.load.end());
        // A disk may end a node even now, as it may until its time of grace is over.
        while !ending.is_finished() {
            self.fleet.tick();
            std::thread::sleep(TICK);
        }
        let outcome = self.runtime.block_on(ending).unwrap();
        let fleet = &mut self.fleet;
        let mut violations = outcome.violations;
        violations.extend(look_at_states(fleet));
        violations.extend(fleet.violations());
        let mut counts = outcome.counts;
        let traffic = fleet.wires.traffic();
        let datagrams = [
            ("datagrams carried", &traffic.carried),
            ("datagrams lost", &traffic.lost),
            ("datagrams doubled", &traffic.doubled),
            ("datagrams damaged", &traffic.damaged),
            ("datagrams delayed", &traffic.delayed),
        ];
        for (name, count) in datagrams {
            counts.insert(name, count.load(Ordering::Relaxed));
        }
        counts.insert("processes started", fleet.deeds.starts);
        let ended = fleet.deeds.ended_by_disk.len() as u64;
        counts.insert("processes ended by their disk", ended);
        Verdict {
            faults: std::mem::take(&mut fleet.deeds.faults),
            counts,
            violations,
        }
    }
}

/// Reads under read leases that are enough to be judged.
const READS_MIN: u64 = 100;

impl Verdict {
    /// The same where all members asked for read leases: of the reads at members that did not lead, enough to be
    /// judged were served by one. How many they are of all depends on how busy the machine is.
    pub(crate) fn demand_read_leases(&self) {
        self.demand();
        let count = |name: &str| self.counts.get(name).copied().unwrap_or_default();
        let (held, asked) = (count(BY_ITS_READ_LEASE), count(BY_ITS_LEADERS_WORD));
        eprintln!("{held} reads by read leases, {asked} by the leader's word");
        assert!(
            held >= READS_MIN,
            "{held} by read leases, {asked} by the leader's word"
        );
    }

    /// Fails if a rule was broken, or if nothing was there to break one.
    pub(crate) fn demand(&self) {
        eprintln!("{:?}", self.counts);
        tell_what_was_left_out();
        assert!(self.violations.is_empty(), "{}", self.violations.join("\n"));
        for what in [
            "writes acknowledged",
            "reads judged",
            "reads that a node was asked for by name",
            "looks at leases that are counted on",
            "revisions told by watches",
            etcd::watches::TOLD,
            etcd::leases::LOOKS,
        ] {
            let count = self.counts.get(what).copied().unwrap_or_default();
            assert!(count > 0, "nothing was shown: no {what}");
        }
    }
}

/// Stops all nodes, which has to go well, and compares each one's state with its own account of it, and
/// with those that ended as far.
fn look_at_states(fleet: &mut Fleet) -> Vec<String> {
    let mut violations = Vec::new();
    // Whom its disk has ended since all was healed is there again.
    fleet.heal();
    for node in &mut fleet.cluster.nodes {
        let code = node.stop();
        if code != 0 {
            violations.push(format!(
                "{} was asked to stop and ended with {code}",
                node.name
            ));
        }
    }
    let mut reports: BTreeMap<LogId, HashReport> = BTreeMap::new();
    for node in &fleet.cluster.nodes {
        // Where a state was installed, that one is in use.
        let places = StateDirs::new(&node.data_dir);
        places.settle().unwrap();
        let store = StateStore::open(&places.state(), &StoreOptions::default()).unwrap();
        let report = store.reader().verify().unwrap();
        if report.progress.applied == LogId::default() {
            violations.push(format!("the state of {} holds nothing", node.name));
        }
        if report.kept != report.scanned {
            violations.push(format!(
                "the state of {} is not what it says: {report:?}",
                node.name
            ));
        }
        let other = *reports.entry(report.progress.applied).or_insert(report);
        if other != report {
            violations.push(format!(
                "two nodes have different states: {other:?} {report:?}"
            ));
        }
    }
    violations
}
