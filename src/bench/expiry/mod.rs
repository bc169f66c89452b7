//! `leasehold bench lease-expiry`: how late leases end, and what it costs when very many do at once.
//!
//! Every lease has a key, and a watch sees the keys go: what is measured is what a program that watches
//! for the death of others is owed. Leases are due as they were granted, or, where they were kept
//! first, together: each holder renews all of its leases once more, and then no more ([`book`] says
//! from when lateness counts, and which way it may be wrong). Meanwhile the leader is asked whether it
//! may still answer alone ([`probe`]).
//!
//! While leases are kept, some may be let go: how late those end is reported separately, because then the cluster
//! has little else to do. `benches/load` kills leaders meanwhile, too.

pub mod book;
pub mod leadership;
pub mod leasehold;
pub mod probe;
pub mod report;

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use self::book::{Book, Count};
use self::leadership::{Leadership, LeaseCluster};
use self::leasehold::LeaseholdLeases;
use self::report::{
    ExpiryReport, ExpiryRun, LeadershipReport, LetGoReport, MemoryReport, Spread, millis,
};
use super::cluster::{ClusterPlan, OwnCluster};
use super::figures::number_text;
use super::memory::resident_bytes;
use super::process::until_stopped;
use super::progress::Progress;
use super::store::{Connection, Store, Watch, WatchEvent, WatchTarget};
use super::{Stopwatch, Wall};
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::bench::ExpiryArgs;
use crate::cli::connection::{Surroundings, Target};
use crate::cli::failure::Failure;

/// Grants of one connection that are under way at a time.
const GRANTS: usize = 64;
/// A grant that fails is tried so often.
const GRANT_TRIES: u32 = 5;
/// Leases that one request renews: few enough that sending and answer are close together.
const RENEWED_TOGETHER: usize = 4_096;
/// Holders renew when this part of the time has passed.
const FRACTION: u32 = 3;
/// For what the grants have set off.
const REST: Duration = Duration::from_secs(2);
/// Interval between checks of the progress.
const LOOK: Duration = Duration::from_millis(500);
/// How long nothing may end after everything was due.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a turn does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    leases: usize,
    ttl: Duration,
    connections: usize,
    keep: Option<Duration>,
    let_go: usize,
}

/// Carries out `leasehold bench lease-expiry`.
///
/// # Errors
/// No node can be reached, or leases did not end.
pub fn run(
    arguments: &ExpiryArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let is_own = global.endpoints.is_empty();
    check(arguments, global)?;
    let plan = Plan::of(arguments);
    let progress = Progress::new(arguments.quiet);
    let mut report = ExpiryReport::begin();
    until_stopped(async {
        let cluster = if is_own {
            let own = ClusterPlan::of_this_binary(&arguments.own)?;
            LeaseholdLeases::own(OwnCluster::start(&own).await?)
        } else {
            let target = Target::find(global, &Surroundings::of_process(global)?)?;
            LeaseholdLeases::existing(&target, &arguments.server_pid)
        };
        for _ in 0..arguments.rounds {
            let turn = turn(&cluster, plan, progress, async |_| Ok(()));
            report.runs.push(turn.await?);
        }
        Ok(())
    })?;
    report.heading.end();
    report.show(global.output, out)
}

/// Whether the arguments can be followed.
///
/// # Errors
/// They cannot, and why.
pub fn check(arguments: &ExpiryArgs, global: &GlobalArgs) -> Result<(), Failure> {
    if !global.endpoints.is_empty() && !arguments.own.set.is_empty() {
        return Err(Failure::usage(
            "an existing cluster cannot be configured: omit --endpoints to start three processes \
             for this",
        ));
    }
    Ok(())
}

impl Plan {
    /// As the arguments say.
    pub fn of(arguments: &ExpiryArgs) -> Self {
        Self {
            leases: usize::try_from(arguments.leases).unwrap_or(usize::MAX),
            ttl: arguments.ttl,
            connections: usize::try_from(arguments.connections.min(arguments.leases)).unwrap_or(1),
            keep: arguments.keep,
            let_go: usize::try_from(arguments.let_go.min(arguments.leases)).unwrap_or(0),
        }
    }
}

/// What the parts of a turn share. All of them are on one thread.
struct Shared {
    wall: Wall,
    plan: Plan,
    prefix: String,
    book: Book,
    is_keeping: Cell<bool>,
    renewals: Cell<u64>,
    failed: Cell<u64>,
    /// Why it cannot go on.
    problem: RefCell<Option<Failure>>,
}

impl Shared {
    fn new(plan: Plan) -> Self {
        Self {
            wall: Wall::start(),
            plan,
            prefix: format!("bench-expiry/{}/{}/", std::process::id(), unique()),
            book: Book::new(plan.leases, plan.ttl),
            is_keeping: Cell::new(plan.keep.is_some()),
            renewals: Cell::new(0),
            failed: Cell::new(0),
            problem: RefCell::new(None),
        }
    }

    fn now(&self) -> Duration {
        self.wall.elapsed()
    }

    fn key(&self, number: usize) -> Bytes {
        format!("{}{number}", self.prefix).into()
    }

    fn number(&self, key: &[u8]) -> Option<usize> {
        let digits = key.strip_prefix(self.prefix.as_bytes())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn fail(&self, failure: Failure) {
        self.problem.borrow_mut().get_or_insert(failure);
    }

    /// The report, without what was measured about leadership and memory.
    fn report(
        &self,
        store: &'static str,
        grants_per_second: f64,
        renewals_per_second: Option<f64>,
    ) -> ExpiryRun {
        let plan = &self.plan;
        let count = self.book.count();
        let lateness = self.book.lateness(false);
        let of_let_go = self.book.lateness(true);
        let let_go = (plan.let_go > 0).then(|| LetGoReport {
            leases: plan.let_go,
            ended: count.let_go_ended,
            late: Spread::of(&of_let_go.from_answer),
            late_at_most: Spread::of(&of_let_go.from_send),
        });
        ExpiryRun {
            store,
            leases: count.granted,
            ttl_ms: u64::try_from(plan.ttl.as_millis()).unwrap_or(u64::MAX),
            due_together: plan.keep.is_some(),
            grants_per_second,
            renewals: self.renewals.get(),
            renewals_per_second,
            failed_requests: self.failed.get(),
            lost: count.lost,
            early: lateness.early + of_let_go.early,
            ended: count.ended,
            let_go,
            late: Spread::of(&lateness.from_answer),
            late_at_most: Spread::of(&lateness.from_send),
            span_ms: millis(lateness.span),
            leadership: LeadershipReport::default(),
            memory: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), Failure> {
        match self.problem.borrow_mut().take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

/// One turn of one store: leases are granted, kept, and left to end. While all are kept, `disturb` may
/// do to the cluster what it likes; it finds in the book how many leases there are.
///
/// # Errors
/// The store cannot be reached, leases are not granted, or `disturb` failed.
pub async fn turn<L: LeaseCluster>(
    cluster: &L,
    plan: Plan,
    progress: Progress,
    disturb: impl AsyncFnOnce(&Book) -> Result<(), Failure>,
) -> Result<ExpiryRun, Failure> {
    let shared = Rc::new(Shared::new(plan));
    // Dropped with this future, and then all that is under way ends, too.
    let mut beside = JoinSet::new();
    let store = cluster.store().await?;
    let watching = store.connect(0).await?;
    let prefix = shared.prefix.clone();
    let deletes = watching.watch(WatchTarget::Deletes { prefix }).await?;
    beside.spawn_local(see(deletes, shared.clone()));
    beside.spawn_local(tell(store.name(), shared.clone(), progress));
    let holders = connect_all(&store, plan.connections).await?;
    let before: Vec<(u32, u64)> = memory(&cluster.pids());
    let mut watched = match plan.keep {
        None => Some(watch_leader(cluster).await?),
        Some(_) => None,
    };

    let mut keeping = JoinSet::new();
    let took = grant_and_keep(&shared, &holders, &mut keeping).await?;
    let mut after = Vec::new();
    let mut renewals_per_second = None;
    if let Some(for_so_long) = plan.keep {
        tokio::time::sleep(REST).await;
        after = memory(&cluster.pids());
        tokio::time::sleep(for_so_long).await;
        if plan.let_go > 0 {
            shared.book.let_go(plan.let_go);
            let of = |count: &Count| (count.let_go_ended, plan.let_go);
            until_ended(&shared, Book::last_let_go_due, of).await?;
        }
        disturb(&shared.book).await?;
        shared.check()?;
        shared.is_keeping.set(false);
        while keeping.join_next().await.is_some() {}
        watched = Some(watch_leader(cluster).await?);
        renewals_per_second = Some(renew_once(&shared, &holders).await);
    } else {
        after.extend(memory(&cluster.pids()));
    }
    let all = |count: &Count| (count.ended, count.granted);
    until_ended(&shared, Book::last_due, all).await?;
    let leadership = match watched {
        Some(watched) => watched.end(cluster).await?,
        None => LeadershipReport::default(),
    };
    for holder in holders {
        holder.close().await;
    }
    watching.close().await;
    let grants_per_second = shared.book.count().granted as f64 / took.as_secs_f64().max(1e-9);
    let memory = compared(&before, &after, shared.book.count().granted);
    let run = shared.report(store.name(), grants_per_second, renewals_per_second);
    Ok(ExpiryRun {
        leadership,
        memory,
        ..run
    })
}

/// Connections of the holders.
async fn connect_all<S: Store>(store: &S, count: usize) -> Result<Vec<Rc<S::Connection>>, Failure> {
    let mut holders = Vec::new();
    for _ in 0..count {
        holders.push(Rc::new(store.connect(0).await?));
    }
    Ok(holders)
}

/// Grants all leases, and starts to keep them if the plan says so; returns how long the grants took.
async fn grant_and_keep<C: Connection + 'static>(
    shared: &Rc<Shared>,
    holders: &[Rc<C>],
    keeping: &mut JoinSet<()>,
) -> Result<Duration, Failure> {
    let start = shared.now();
    let mut granted = JoinSet::new();
    for (first, holder) in holders.iter().enumerate() {
        granted.spawn_local(grant_all(holder.clone(), shared.clone(), first));
        if shared.plan.keep.is_some() {
            keeping.spawn_local(keep(holder.clone(), shared.clone(), first));
        }
    }
    while granted.join_next().await.is_some() {
        shared.check()?;
    }
    Ok(shared.now().saturating_sub(start))
}

/// Renews every lease once, as fast as the store answers; returns the rate per second.
async fn renew_once<C: Connection + 'static>(shared: &Rc<Shared>, holders: &[Rc<C>]) -> f64 {
    let mut renewals = JoinSet::new();
    let (before, start) = (shared.renewals.get(), shared.now());
    for (first, holder) in holders.iter().enumerate() {
        renewals.spawn_local(renew_all(holder.clone(), shared.clone(), first));
    }
    while renewals.join_next().await.is_some() {}
    let took = shared.now().saturating_sub(start);
    let renewed = shared.renewals.get() - before;
    renewed as f64 / took.as_secs_f64().max(1e-9)
}

/// Tells the turns of one process apart.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static TURNS: AtomicU64 = AtomicU64::new(0);
    TURNS.fetch_add(1, Ordering::Relaxed)
}

/// Notes which keys go.
async fn see(mut deletes: impl Watch, shared: Rc<Shared>) {
    loop {
        match deletes.next().await {
            Ok(WatchEvent::Changes { changes, .. }) => {
                let now = shared.now();
                let keys = changes.iter().map(|change| &change.key);
                for number in keys.filter_map(|key| shared.number(key)) {
                    shared.book.ended(number, now);
                }
            }
            Ok(WatchEvent::Resumed | WatchEvent::Other) => {}
            Err(failure) => return shared.fail(failure),
        }
    }
}

/// A line a second.
async fn tell(store: &'static str, shared: Rc<Shared>, progress: Progress) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let count = shared.book.count();
        progress.say(&format!(
            "{store:>10} {:>4}s {:>9} granted  {:>9} renewals  {:>9} ended  {} lost  {} errors",
            shared.now().as_secs(),
            number_text(count.granted as f64),
            number_text(shared.renewals.get() as f64),
            number_text(count.ended as f64),
            count.lost,
            shared.failed.get()
        ));
    }
}

/// Has the leases of one connection granted: each `connections`-th, beginning with `first`.
async fn grant_all<H: Connection>(holder: Rc<H>, shared: Rc<Shared>, first: usize) {
    let mut grants = JoinSet::new();
    for number in (first..shared.plan.leases).step_by(shared.plan.connections) {
        while grants.len() >= GRANTS {
            grants.join_next().await;
        }
        if shared.problem.borrow().is_some() {
            return;
        }
        grants.spawn_local(grant(holder.clone(), shared.clone(), number));
    }
    while grants.join_next().await.is_some() {}
}

async fn grant<H: Connection>(holder: Rc<H>, shared: Rc<Shared>, number: usize) {
    for attempt in 1..=GRANT_TRIES {
        let sent = shared.now();
        match holder
            .grant(shared.plan.ttl, Some(shared.key(number)))
            .await
        {
            Ok(id) => return shared.book.granted(number, id, sent, shared.now()),
            Err(trouble) => {
                shared.failed.set(shared.failed.get() + 1);
                if attempt == GRANT_TRIES {
                    shared.fail(Failure::refused(format!(
                        "a lease was not granted, {GRANT_TRIES} times: {}",
                        trouble.detail
                    )));
                }
            }
        }
    }
}

/// Keeps the leases of one connection alive.
async fn keep<H: Connection>(holder: Rc<H>, shared: Rc<Shared>, first: usize) {
    let third = shared.plan.ttl / FRACTION;
    let share = first as f64 / shared.plan.connections as f64;
    let mut next = shared.now() + third.mul_f64(share);
    while shared.is_keeping.get() {
        let wait = next.saturating_sub(shared.now());
        tokio::time::sleep(wait.min(LOOK)).await;
        if shared.now() < next {
            continue;
        }
        next = shared.now() + third;
        renew_all(holder.clone(), shared.clone(), first).await;
    }
}

/// Renews all leases of one connection.
async fn renew_all<H: Connection>(holder: Rc<H>, shared: Rc<Shared>, first: usize) {
    let mut numbers = (first..shared.plan.leases).step_by(shared.plan.connections);
    loop {
        let known = numbers
            .by_ref()
            .filter_map(|number| Some((number, shared.book.id(number)?)));
        let some: Vec<(usize, i64)> = known.take(RENEWED_TOGETHER).collect();
        if some.is_empty() {
            return;
        }
        let ids: Vec<i64> = some.iter().map(|(_, id)| *id).collect();
        let sent = shared.now();
        match holder.renew(&ids).await {
            Ok(renewed) => {
                let now = shared.now();
                for ((number, _), kept) in some.iter().zip(renewed.kept) {
                    match kept {
                        true => shared.book.renewed(*number, sent, now),
                        false => shared.book.lost(*number),
                    }
                }
                let renewals = shared.renewals.get() + some.len() as u64;
                shared.renewals.set(renewals);
            }
            Err(_) => shared.failed.set(shared.failed.get() + 1),
        }
    }
}

/// Waits until as many have ended as `of` says that are to, or none has for a long time after all were
/// `due`.
async fn until_ended(
    shared: &Shared,
    due: impl Fn(&Book) -> Duration,
    of: impl Fn(&Count) -> (usize, usize),
) -> Result<(), Failure> {
    let mut progress_at = due(&shared.book);
    let mut ended = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        shared.check()?;
        let (now_ended, all) = of(&shared.book.count());
        if now_ended >= all {
            return Ok(());
        }
        if now_ended > ended {
            ended = now_ended;
            progress_at = progress_at.max(shared.now());
        }
        if shared.now() > progress_at + PATIENCE {
            return Ok(());
        }
    }
}

/// A leader that is observed.
struct ObservedLeader {
    before: Leadership,
    probe: Option<probe::Probe>,
}

async fn watch_leader<L: LeaseCluster>(cluster: &L) -> Result<ObservedLeader, Failure> {
    let before = cluster.leadership().await?;
    let probe = cluster.probe(&before)?;
    Ok(ObservedLeader { before, probe })
}

impl ObservedLeader {
    async fn end<L: LeaseCluster>(self, cluster: &L) -> Result<LeadershipReport, Failure> {
        let probe = self.probe.map(probe::Probe::stop).transpose()?;
        let (before, after) = (self.before, cluster.leadership().await?);
        let is_same = (&before.endpoint, before.term) == (&after.endpoint, after.term);
        Ok(LeadershipReport {
            is_same,
            lapses: before
                .lapses
                .zip(after.lapses)
                .filter(|_| is_same)
                .map(|(before, after)| after.saturating_sub(before)),
            renewals: before
                .renewals
                .zip(after.renewals)
                .filter(|_| is_same)
                .map(|(before, after)| after.since(&before)),
            probe,
        })
    }
}

fn memory(pids: &[u32]) -> Vec<(u32, u64)> {
    let of = |pid: &u32| Some((*pid, resident_bytes(&[*pid]).ok()?));
    pids.iter().filter_map(of).collect()
}

fn compared(before: &[(u32, u64)], after: &[(u32, u64)], leases: usize) -> Vec<MemoryReport> {
    let grown = |(pid, before): &(u32, u64)| {
        let (_, after) = after.iter().find(|(known, _)| known == pid)?;
        Some(MemoryReport {
            pid: *pid,
            before_bytes: *before,
            after_bytes: *after,
            bytes_per_lease: after.saturating_sub(*before) as f64 / leases.max(1) as f64,
        })
    };
    before.iter().filter_map(grown).collect()
}
