//! How long no request is answered while leadership changes.
//!
//! Every millisecond every member is asked for a linearizable read, and every five milliseconds for
//! a write, each by a request of its own that nothing repeats; so the longest time between two
//! successes, wherever they came from, is what the cluster owes its users, whatever client they
//! have. The SDK is probed beside, as users meet it: with its retries and its own way to find the
//! leader. Then the leader is asked to hand over, asked to end, or killed.
//!
//! A gap is counted from the end of the last success before it to the end of the first after it.
//! The longest gap without a fault is reported as `noise`: a gap below it means nothing.

mod clusters;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use self::clusters::ExistingCluster;

use leasehold::bench::cluster::OwnCluster;
use leasehold::bench::figures::{duration_text, median};
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::pacemaker::Pacemaker;
use leasehold::bench::process::until_stopped;
use leasehold::bench::progress::Progress;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::arguments::{Format, GlobalArgs};
use leasehold::cli::connection::{Surroundings, Target};
use leasehold::cli::failure::Failure;
use leasehold::cli::print::{Align, table};

use crate::arguments::{GapArgs, GapCase, PeerKind};
use crate::etcd::EtcdCluster;
use crate::run::cluster_plan;

/// The name of the JSON document's shape.
const SCHEMA: &str = "leasehold-gap/1";
/// Between two reads of one member.
const READ_INTERVAL: Duration = Duration::from_millis(1);
/// Reads of one member for each write.
const READS_PER_WRITE: u64 = 5;
/// Probing before the leader is disturbed, and after there is another.
const CALM: Duration = Duration::from_millis(500);
/// Before a round, for everything that a restarted member still does.
const REST: Duration = Duration::from_secs(2);
/// How long a cluster may take to answer again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster whose leadership can be made to change hands.
pub(crate) trait Subject {
    /// Asks it.
    type Prober: Prober;

    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Who asks it from now on. Has connections of its own.
    fn prober(&mut self) -> impl Future<Output = Result<Self::Prober, Failure>>;

    /// Waits until all members are there, and gives which one leads.
    fn wait_until_whole(&mut self) -> impl Future<Output = Result<usize, Failure>>;

    /// Waits until another member than `former` leads.
    fn wait_for_other_leader(&mut self, former: usize)
    -> impl Future<Output = Result<(), Failure>>;

    /// Takes leadership from `leader`.
    fn disturb(
        &mut self,
        leader: usize,
        case: GapCase,
    ) -> impl Future<Output = Result<(), Failure>>;

    /// Brings `former` back, if it is gone.
    fn repair(&mut self, former: usize, case: GapCase) -> Result<(), Failure>;
}

/// Asks a cluster, once each time.
pub(crate) trait Prober: 'static {
    /// How many members there are.
    fn members(&self) -> usize;

    /// Whether this member answers a linearizable read.
    fn reads(&self, member: usize) -> impl Future<Output = bool>;

    /// Whether this member takes a write.
    fn writes(&self, member: usize) -> impl Future<Output = bool>;

    /// Whether the store's own client gets a linearizable read answered; nothing if it has none.
    fn client_reads(&self) -> impl Future<Output = Option<bool>>;

    /// The same, of a write.
    fn client_writes(&self) -> impl Future<Output = Option<bool>>;
}

/// What was probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Read,
    Write,
    ClientRead,
    ClientWrite,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ClientRead => "read_by_sdk",
            Self::ClientWrite => "write_by_sdk",
        }
    }
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct GapReport {
    /// Of what, and where.
    #[serde(flatten)]
    pub(crate) heading: Heading,
    /// Every figure of every store.
    pub(crate) gaps: Vec<Gap>,
}

/// Measures what the arguments ask for.
pub(crate) fn run(
    arguments: &GapArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_own = global.endpoints.is_empty();
    let cases = match (arguments.case.as_slice(), is_own) {
        ([], true) => GapCase::ALL.to_vec(),
        ([], false) => vec![GapCase::MoveLeader],
        (cases, _) => cases.to_vec(),
    };
    if !is_own && (cases != [GapCase::MoveLeader] || !arguments.own.set.is_empty()) {
        return Err(Failure::usage(
            "a cluster that runs already is neither ended nor configured: leave --endpoints away, \
             and three processes are started for it",
        ));
    }
    let progress = Progress::new(arguments.quiet);
    let mut report = GapReport::begin();
    until_stopped(async {
        let plan = cluster_plan(&arguments.own);
        let mut theirs = match arguments.peer {
            None => None,
            Some(PeerKind::Etcd) => {
                Some(EtcdCluster::start(&plan.parent, &arguments.peer_set).await?)
            }
        };
        let mut turns = Turns {
            cases: &cases,
            rounds: arguments.rounds,
            progress,
            report: &mut report,
        };
        if is_own {
            let mut ours = OwnCluster::start(&plan).await?;
            turns.take(&mut ours, theirs.as_mut()).await
        } else {
            let target = Target::find(global, &Surroundings::of_process(global)?)?;
            let mut ours = ExistingCluster::find(&target).await?;
            turns.take(&mut ours, theirs.as_mut()).await
        }
    })?;
    report.end();
    report.print(out, global.output)?;
    Ok(out.flush()?)
}

/// Changes of leadership in one store after the other.
pub(crate) struct Turns<'a> {
    /// What happens to leaders.
    pub(crate) cases: &'a [GapCase],
    /// How often each.
    pub(crate) rounds: u32,
    /// Where progress is shown.
    pub(crate) progress: Progress,
    /// Where it is noted.
    pub(crate) report: &'a mut GapReport,
}

impl Turns<'_> {
    /// Takes leadership away in turns, and notes what that came to.
    pub(crate) async fn take<S: Subject, T: Subject>(
        &mut self,
        ours: &mut S,
        mut theirs: Option<&mut T>,
    ) -> Result<(), Failure> {
        for case in self.cases {
            let (mut of_ours, mut of_theirs) = (Vec::new(), Vec::new());
            for _ in 0..self.rounds {
                of_ours.push(round(ours, *case, self.progress).await?);
                if let Some(theirs) = theirs.as_deref_mut() {
                    of_theirs.push(round(theirs, *case, self.progress).await?);
                }
            }
            self.report.add(ours.name(), *case, &of_ours);
            if let Some(theirs) = theirs.as_deref() {
                self.report.add(theirs.name(), *case, &of_theirs);
            }
        }
        Ok(())
    }
}

/// One kind of gap, over all rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gap {
    /// The store.
    pub(crate) store: &'static str,
    /// What happened to the leader: `move-leader`, `stop` or `kill`.
    pub(crate) case: &'static str,
    /// What was not answered: `read` and `write` by any member, `read_by_sdk` and `write_by_sdk`
    /// by the store's own client.
    pub(crate) probe: &'static str,
    /// The median of the rounds, in milliseconds.
    pub(crate) median_ms: f64,
    /// The longest of the rounds, in milliseconds.
    pub(crate) worst_ms: f64,
    /// Each round, in milliseconds.
    pub(crate) rounds_ms: Vec<f64>,
    /// The median over the rounds of the longest gap while all was well, in milliseconds.
    pub(crate) noise_ms: f64,
}

impl GapReport {
    /// Nothing yet; notes how busy the machine is.
    pub(crate) fn begin() -> Self {
        Self {
            heading: Heading::begin(SCHEMA),
            gaps: Vec::new(),
        }
    }

    /// Adds what the rounds of one case came to.
    pub(crate) fn add(&mut self, store: &'static str, case: GapCase, rounds: &[Round]) {
        let mut kinds: Vec<Kind> = rounds
            .iter()
            .flat_map(|round| round.gaps.keys())
            .copied()
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        for kind in kinds {
            let of = |round: &Round| round.gaps.get(&kind).copied();
            let found: Vec<GapSample> = rounds.iter().filter_map(of).collect();
            let millis = |gap: Duration| (gap.as_secs_f64() * 1e6).round() / 1e3;
            let each: Vec<f64> = found.iter().map(|found| millis(found.gap)).collect();
            let noise: Vec<f64> = found.iter().map(|found| millis(found.noise)).collect();
            self.gaps.push(Gap {
                store,
                case: case.name(),
                probe: kind.name(),
                median_ms: median(&each),
                worst_ms: each.iter().copied().fold(0.0, f64::max),
                rounds_ms: each,
                noise_ms: median(&noise),
            });
        }
    }

    /// All was done.
    pub(crate) fn end(&mut self) {
        self.heading.end();
    }

    /// The figure of this store, case and probe.
    pub(crate) fn find(&self, store: &str, case: GapCase, probe: &str) -> Option<&Gap> {
        let mut gaps = self.gaps.iter();
        gaps.find(|gap| gap.store == store && gap.case == case.name() && gap.probe == probe)
    }

    /// Prints it.
    ///
    /// # Errors
    /// Those of `out`.
    pub(crate) fn print(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        if print_for_programs(out, self, format)? {
            return Ok(());
        }
        let columns = [
            ("STORE", Align::Left),
            ("CASE", Align::Left),
            ("PROBE", Align::Left),
            ("MEDIAN", Align::Right),
            ("WORST", Align::Right),
            ("NOISE", Align::Right),
            ("ROUNDS", Align::Right),
        ];
        let text = |millis: f64| duration_text(Duration::from_secs_f64(millis / 1e3));
        let rows = self.gaps.iter().map(|gap| {
            vec![
                gap.store.to_owned(),
                gap.case.to_owned(),
                gap.probe.to_owned(),
                text(gap.median_ms),
                text(gap.worst_ms),
                text(gap.noise_ms),
                gap.rounds_ms.len().to_string(),
            ]
        });
        table(out, &columns, rows)
    }
}

/// What one change of leadership came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    gaps: BTreeMap<Kind, GapSample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GapSample {
    gap: Duration,
    noise: Duration,
}

/// One change of leadership. Runs on a [`tokio::task::LocalSet`].
///
/// # Errors
/// The cluster does not come back to life, or cannot be made to change its leader.
pub(crate) async fn round<S: Subject>(
    subject: &mut S,
    case: GapCase,
    progress: Progress,
) -> Result<Round, Failure> {
    subject.wait_until_whole().await?;
    tokio::time::sleep(REST).await;
    let successes = Rc::new(Successes {
        watch: Wall::start(),
        ended: RefCell::default(),
    });
    let prober = Rc::new(subject.prober().await?);
    let probing = probe(prober, successes.clone());
    let disturbing = async {
        successes
            .until_all_succeed(successes.watch.elapsed())
            .await?;
        let began = successes.watch.elapsed();
        tokio::time::sleep(CALM).await;
        // Not before: leadership may have moved by itself meanwhile.
        let leader = subject.wait_until_whole().await?;
        let disturbed = successes.watch.elapsed();
        subject.disturb(leader, case).await?;
        subject.wait_for_other_leader(leader).await?;
        tokio::time::sleep(CALM).await;
        successes
            .until_all_succeed(successes.watch.elapsed())
            .await?;
        Ok::<_, Failure>((leader, began, disturbed, successes.watch.elapsed()))
    };
    let (leader, began, disturbed, over) = tokio::select! {
        times = disturbing => times?,
        failed = probing => return Err(failed.into()),
    };
    subject.repair(leader, case)?;
    let mut round = Round::default();
    for (kind, ended) in successes.ended.take() {
        let found = GapSample {
            gap: longest_gap(&ended, disturbed, over),
            noise: longest_gap(&ended, began, disturbed),
        };
        progress.say(&format!(
            "{:>10} {} {}: {} (noise {})",
            subject.name(),
            case.name(),
            kind.name(),
            duration_text(found.gap),
            duration_text(found.noise)
        ));
        round.gaps.insert(kind, found);
    }
    Ok(round)
}

/// The longest time without a success that ended, of those that have their end within the span.
/// What begins in it or ends in it counts whole; `ended` need not be in order.
fn longest_gap(ended: &[Duration], from: Duration, to: Duration) -> Duration {
    let mut ended = ended.to_vec();
    ended.sort_unstable();
    let within = |pair: &&[Duration]| pair[1] > from && pair[0] < to;
    let gaps = ended
        .windows(2)
        .filter(within)
        .map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_else(|| to.saturating_sub(from))
}

/// When probes succeeded.
struct Successes {
    watch: Wall,
    ended: RefCell<BTreeMap<Kind, Vec<Duration>>>,
}

impl Successes {
    fn note(&self, kind: Kind, success: bool) {
        let now = self.watch.elapsed();
        // A kind is known from its first probe on, so that one that never succeeds is waited for.
        let mut ended = self.ended.borrow_mut();
        let ended = ended.entry(kind).or_default();
        if success {
            ended.push(now);
        }
    }

    /// Waits until each kind of probe has succeeded after `since`.
    async fn until_all_succeed(&self, since: Duration) -> Result<(), Failure> {
        loop {
            tokio::time::sleep(CALM / 10).await;
            let failing: Vec<&str> = {
                let ended = self.ended.borrow();
                let late = |ended: &[Duration]| ended.last().is_none_or(|last| *last <= since);
                let failing = ended.iter().filter(|(_, ended)| late(ended));
                failing.map(|(kind, _)| kind.name()).collect()
            };
            if failing.is_empty() && !self.ended.borrow().is_empty() {
                return Ok(());
            }
            if self.watch.elapsed() > since + PATIENCE {
                return Err(Failure::refused(format!(
                    "for {PATIENCE:?} no probe succeeded: {}",
                    failing.join(", ")
                )));
            }
        }
    }
}

/// Probes until it is dropped; ends only if the timer fails.
async fn probe<P: Prober>(prober: Rc<P>, successes: Rc<Successes>) -> io::Error {
    let pacemaker = match Pacemaker::new() {
        Ok(pacemaker) => pacemaker,
        Err(error) => return error,
    };
    // Dropped with this future: then all probes under way end, too.
    let mut probes = JoinSet::new();
    let began = successes.watch.elapsed();
    for tick in 0_u32.. {
        let is_write = u64::from(tick).is_multiple_of(READS_PER_WRITE);
        for member in 0..prober.members() {
            let (asking, noting) = (prober.clone(), successes.clone());
            probes.spawn_local(async move {
                noting.note(Kind::Read, asking.reads(member).await);
            });
            if is_write {
                let (asking, noting) = (prober.clone(), successes.clone());
                probes.spawn_local(async move {
                    noting.note(Kind::Write, asking.writes(member).await);
                });
            }
        }
        let (asking, noting) = (prober.clone(), successes.clone());
        probes.spawn_local(async move {
            if let Some(success) = asking.client_reads().await {
                noting.note(Kind::ClientRead, success);
            }
        });
        if is_write {
            let (asking, noting) = (prober.clone(), successes.clone());
            probes.spawn_local(async move {
                if let Some(success) = asking.client_writes().await {
                    noting.note(Kind::ClientWrite, success);
                }
            });
        }
        while probes.try_join_next().is_some() {}
        let due = began + READ_INTERVAL * (tick + 1);
        let wait = due.saturating_sub(successes.watch.elapsed());
        if !wait.is_zero()
            && let Err(error) = pacemaker.sleep(wait).await
        {
            return error;
        }
        // A thread that is behind must still receive replies.
        tokio::task::yield_now().await;
    }
    io::Error::other("the ticks have run out")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_gap_is_between_the_last_success_before_it_and_the_first_after() {
        let mut ended: Vec<Duration> = (0..100).chain(350..=500).map(|at| at * MS).collect();
        assert_eq!(longest_gap(&ended, 90 * MS, 500 * MS), 251 * MS);
        assert_eq!(
            longest_gap(&ended, MS, 90 * MS),
            MS,
            "before it there is none"
        );
        assert_eq!(
            longest_gap(&ended, 200 * MS, 500 * MS),
            251 * MS,
            "it counts whole"
        );
        ended.reverse();
        assert_eq!(
            longest_gap(&ended, 90 * MS, 500 * MS),
            251 * MS,
            "answers overtake"
        );
        assert_eq!(longest_gap(&[], 90 * MS, 500 * MS), 410 * MS);
    }

    #[test]
    fn the_report_has_median_worst_and_each_round() {
        let round = |gap: u32, noise: u32| Round {
            gaps: [(
                Kind::Read,
                GapSample {
                    gap: gap * MS,
                    noise: noise * MS,
                },
            )]
            .into(),
        };
        let mut report = GapReport::begin();
        report.add(
            "leasehold",
            GapCase::Kill,
            &[round(700, 1), round(900, 3), round(800, 2)],
        );
        let gap = report.find("leasehold", GapCase::Kill, "read").unwrap();
        assert_eq!(gap.median_ms, 800.0);
        assert_eq!(gap.worst_ms, 900.0);
        assert_eq!(gap.rounds_ms, [700.0, 900.0, 800.0]);
        assert_eq!(gap.noise_ms, 2.0);
        assert!(report.find("leasehold", GapCase::Stop, "read").is_none());
        let mut out = Vec::new();
        report.print(&mut out, Format::Table).unwrap();
        let table = String::from_utf8(out).unwrap();
        assert!(
            table.contains("800ms") && table.contains("900ms"),
            "{table}"
        );
    }
}
