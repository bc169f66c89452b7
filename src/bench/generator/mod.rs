//! Puts a load on a store.
//!
//! Each thread is a world of its own: a runtime of one thread, its share of the connections, and
//! its share of the clients on them; threads share nothing while they measure, and their tallies
//! are added up afterwards. With one connection there is one thread, so that nothing is handed from
//! core to core that a user's program would not hand over either.
//!
//! A client waits a moment after a failure, or a dead server would be asked a million times a
//! second, and its errors would drown everything else.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};

use super::cpu::CpuTime;
use super::load::{Choices, Load, Operation};
use super::pace::Pace;
use super::pacemaker::Pacemaker;
use super::store::{Answer, Connection, Store, Trouble};
use super::tally::{RequestRecord, Tally};
use super::{Stopwatch, Wall};
use crate::cli::failure::Failure;

/// What a client waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_millis(10);
/// How often a line of progress is due.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// From the moment when all are connected to the first request.
const RUN_UP: Duration = Duration::from_millis(20);
/// After the end, for what was due just before it.
const LAST_CALL: Duration = Duration::from_millis(1);
/// Writes under way while keys are filled in.
const FILLERS: usize = 64;
/// How often the filling of one key is tried.
const FILL_ATTEMPTS: u32 = 5;

/// A load, and how hard it is put on.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all clients do.
    pub load: Load,
    /// Requests under way at a time.
    pub clients: u32,
    /// Connections that they share.
    pub connections: u32,
    /// Threads that share the connections.
    pub threads: u32,
    /// Requests due in a second; `None`: a closed loop.
    pub rate: Option<f64>,
    /// How long the load runs before it is measured.
    pub warm_up: Duration,
    /// How long it is measured.
    pub duration: Duration,
    /// What the choices begin with.
    pub seed: u64,
    /// The servers' processes, as far as they are on this machine.
    pub server_pids: Vec<u32>,
}

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was counted of the requests that began, or were due, while it was measured.
    pub tally: Tally,
    /// How long that was.
    pub elapsed: Duration,
    /// CPU time of the servers meanwhile, if their processes were named.
    pub server_cpu: Option<Duration>,
    /// CPU time of this process meanwhile.
    pub client_cpu: Duration,
}

impl Outcome {
    fn new(elapsed: Duration) -> Self {
        Self {
            tally: Tally::default(),
            elapsed,
            server_cpu: None,
            client_cpu: Duration::ZERO,
        }
    }

    fn note_cpu(&mut self, plan: &Plan, servers: &CpuTime, ours: &CpuTime) -> Result<(), Failure> {
        let spent = servers.spent()?;
        self.server_cpu = (!plan.server_pids.is_empty()).then_some(spent);
        self.client_cpu = ours.spent()?;
        Ok(())
    }
}

/// What happened lately.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Since the load began.
    pub at: Duration,
    /// Still warming up.
    pub warming_up: bool,
    /// What was counted since the last one.
    pub tally: Tally,
    /// How long that is.
    pub length: Duration,
}

/// Writes every key of the load once.
///
/// # Errors
/// The store cannot be reached, or does not take a write after several attempts.
pub fn fill<C: Store>(connector: &C, load: &Load) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let store = Rc::new(connector.connect(0).await?);
        let mut fillers = JoinSet::new();
        for first in 0..FILLERS.min(load.keys.names.len()) {
            let (store, keys) = (store.clone(), load.keys.clone());
            fillers.spawn_local(async move {
                for name in keys.names.iter().skip(first).step_by(FILLERS) {
                    let mut attempt = 1;
                    while let Err(trouble) = store.put(name, &keys.value).await {
                        if attempt == FILL_ATTEMPTS {
                            return Err(trouble);
                        }
                        attempt += 1;
                        tokio::time::sleep(AFTER_FAILURE * attempt).await;
                    }
                }
                Ok(())
            });
        }
        let mut result = Ok(());
        while let Some(filler) = fillers.join_next().await {
            let filled = filler.map_err(|error| Failure::refused(error.to_string()))?;
            result = result.and(filled);
        }
        store.close().await;
        result.map_err(|trouble| {
            let name = connector.name();
            Failure::refused(format!(
                "{name} does not accept the keys: {}",
                trouble.detail
            ))
        })
    })
}

/// Runs the load to its end. `progress` is called about once a second.
///
/// # Errors
/// A connection could not be made, or a process whose CPU time was asked for is not there.
pub fn run<C: Store>(
    plan: &Plan,
    connector: &C,
    progress: &mut dyn FnMut(&Interval),
) -> Result<Outcome, Failure> {
    let mut servers = CpuTime::of(&plan.server_pids)?;
    let mut ours = CpuTime::of(&[std::process::id()])?;
    let (threads, heard, watch) = start_threads(plan, connector)?;
    let mut outcome = Outcome::new(plan.duration);
    let end = plan.warm_up + plan.duration;
    let mut sampling = Sampling::Before;
    let mut done = 0;
    let mut recent = RecentTally::default();
    while done < threads.len() {
        let now = watch.elapsed();
        let wake = match sampling {
            Sampling::Before if now >= plan.warm_up => {
                servers.start()?;
                ours.start()?;
                sampling = Sampling::During;
                continue;
            }
            Sampling::During if now >= end => {
                outcome.note_cpu(plan, &servers, &ours)?;
                sampling = Sampling::After;
                continue;
            }
            Sampling::Before => plan.warm_up,
            Sampling::During => end,
            Sampling::After => now + PROGRESS_INTERVAL,
        };
        // A load that has not begun yet has elapsed nothing: not to ask without a pause.
        let patience = wake
            .saturating_sub(now)
            .clamp(RUN_UP / 20, PROGRESS_INTERVAL);
        match heard.recv_timeout(patience) {
            Ok(Note::Lately(lately)) => {
                let at = watch.elapsed();
                if let Some((length, tally)) = recent.hear(&lately, threads.len(), at) {
                    progress(&Interval {
                        at,
                        warming_up: at <= plan.warm_up,
                        tally,
                        length,
                    });
                }
            }
            Ok(Note::Done(tally)) => {
                outcome.tally.add(&tally);
                done += 1;
            }
            Ok(Note::Failed(failure)) => return Err(failure),
            Ok(Note::Ready) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Failure::refused("a load thread stopped early"));
            }
        }
    }
    if matches!(sampling, Sampling::During) {
        // On a busy machine all threads may be done before this one wakes up.
        outcome.note_cpu(plan, &servers, &ours)?;
    }
    for thread in threads {
        // It has said that it is done.
        let _ = thread.join();
    }
    Ok(outcome)
}

/// Threads of a load, what they report, and the watch that they started by.
type LoadThreads = (Vec<thread::JoinHandle<()>>, mpsc::Receiver<Note>, Wall);

/// Connects all threads of the load, and then starts them together.
fn start_threads<C: Store>(plan: &Plan, connector: &C) -> Result<LoadThreads, Failure> {
    let (notes, heard) = mpsc::channel();
    let mut go = Vec::new();
    let mut threads = Vec::new();
    for number in 0..plan.threads.min(plan.connections).max(1) {
        let (start, started) = oneshot::channel();
        let share = Share::of(plan, number);
        let (plan, connector, notes) = (plan.clone(), connector.clone(), notes.clone());
        let thread = thread::Builder::new().name(format!("load-{number}"));
        threads.push(thread.spawn(move || {
            let ended = live(&plan, share, &connector, started, &notes);
            // A receiver that has gone knows why.
            let _ = notes.send(match ended {
                Ok(tally) => Note::Done(Box::new(tally)),
                Err(failure) => Note::Failed(failure),
            });
        })?);
        go.push(start);
    }
    drop(notes);

    for _ in &threads {
        match heard.recv() {
            Ok(Note::Ready) => {}
            Ok(Note::Failed(failure)) => return Err(failure),
            _ => return Err(Failure::refused("a load thread stopped early")),
        }
    }
    let watch = Wall::start().later(RUN_UP);
    for start in go {
        // A thread that has gone says why itself.
        let _ = start.send(watch);
    }
    Ok((threads, heard, watch))
}

/// What a thread reports.
enum Note {
    /// It is connected.
    Ready,
    /// What it counted since the last time.
    Lately(Box<Tally>),
    /// Its clients have ended.
    Done(Box<Tally>),
    /// It cannot go on.
    Failed(Failure),
}

/// Where the reading of CPU times is.
enum Sampling {
    Before,
    During,
    After,
}

/// What is to be reported next.
#[derive(Default)]
struct RecentTally {
    tally: Tally,
    since: Duration,
    /// How many threads have reported.
    told: usize,
}

impl RecentTally {
    /// Adds the report of a thread; once all have reported, returns a line of progress.
    fn hear(&mut self, lately: &Tally, threads: usize, now: Duration) -> Option<(Duration, Tally)> {
        self.tally.add(lately);
        self.told += 1;
        if self.told < threads {
            return None;
        }
        self.told = 0;
        let since = std::mem::replace(&mut self.since, now);
        Some((now.saturating_sub(since), std::mem::take(&mut self.tally)))
    }
}

/// A thread's part of a plan.
#[derive(Clone, Debug, PartialEq)]
struct Share {
    number: u32,
    /// Clients on each of its connections, with the connection's number.
    connections: Vec<(usize, u32)>,
    /// Its requests a second.
    rate: Option<f64>,
    /// How much later than the first thread's its requests are due.
    offset: Duration,
}

impl Share {
    fn of(plan: &Plan, number: u32) -> Self {
        let threads = plan.threads.min(plan.connections).max(1);
        let connections = plan.connections.max(1);
        let clients_of = |connection: u32| {
            let more = connection < plan.clients % connections;
            plan.clients / connections + u32::from(more)
        };
        let mine = (0..connections).filter(|connection| connection % threads == number);
        Self {
            number,
            connections: mine.map(|at| (at as usize, clients_of(at))).collect(),
            rate: plan.rate.map(|rate| rate / f64::from(threads)),
            offset: plan.rate.map_or(Duration::ZERO, |rate| {
                Duration::from_secs_f64(f64::from(number) / rate)
            }),
        }
    }
}

/// Runs one thread's share of the load.
fn live<C: Store>(
    plan: &Plan,
    share: Share,
    connector: &C,
    go: oneshot::Receiver<Wall>,
    notes: &mpsc::Sender<Note>,
) -> Result<Tally, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stores = Vec::new();
        for (number, clients) in &share.connections {
            stores.push((Rc::new(connector.connect(*number).await?), *clients));
        }
        let _ = notes.send(Note::Ready);
        let Ok(watch) = go.await else {
            return Err(Failure::refused("another thread could not connect"));
        };
        let end = plan.warm_up + plan.duration;
        let desk = Rc::new(Desk {
            watch: watch.later(share.offset),
            from: plan.warm_up,
            end,
            counted: RefCell::default(),
        });
        while desk.watch.elapsed().is_zero() {
            tokio::time::sleep(RUN_UP / 20).await;
        }
        let pace = share.rate.map(|rate| Rc::new(Pace::new(rate, end)));
        let clients = start_clients(plan, &share, &stores, &desk, pace.as_ref());
        let report = async {
            loop {
                tokio::time::sleep(PROGRESS_INTERVAL).await;
                let lately = std::mem::take(&mut desk.counted.borrow_mut().lately);
                let _ = notes.send(Note::Lately(Box::new(lately)));
            }
        };
        let worked: Result<(), Failure> = tokio::select! {
            worked = finish(plan, pace.as_deref(), &desk, clients) => worked,
            () = report => Ok(()),
        };
        worked?;
        for (store, _) in &stores {
            store.close().await;
        }
        Ok(std::mem::take(&mut desk.counted.borrow_mut().measured))
    })
}

/// Starts the clients of a thread.
fn start_clients<S: Connection + 'static>(
    plan: &Plan,
    share: &Share,
    stores: &[(Rc<S>, u32)],
    desk: &Rc<Desk<Wall>>,
    pace: Option<&Rc<Pace>>,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    let mut seed = plan.seed.wrapping_add(u64::from(share.number) << 32);
    for (store, count) in stores {
        for _ in 0..*count {
            seed = seed.wrapping_add(1);
            let client = Client {
                store: store.clone(),
                load: plan.load.clone(),
                choices: Choices::new(&plan.load, seed),
                desk: desk.clone(),
            };
            match pace {
                Some(pace) => clients.spawn_local(client.open_loop(pace.clone())),
                None => clients.spawn_local(client.closed_loop()),
            };
        }
    }
    clients
}

/// Keeps the pace, if there is one, until the load ends; then waits for the clients.
async fn finish(
    plan: &Plan,
    pace: Option<&Pace>,
    desk: &Desk<Wall>,
    mut clients: JoinSet<()>,
) -> Result<(), Failure> {
    if let Some(pace) = pace {
        let pacemaker = Pacemaker::new()?;
        pacemaker.keep(pace, &desk.watch, desk.end).await?;
        // An idle client takes what was due last.
        pacemaker.sleep(LAST_CALL).await?;
        let mut choices = Choices::new(&plan.load, plan.seed);
        for due in pace.close() {
            let next = choices.next_operation();
            desk.give_up(matches!(next, Operation::Get(_)), due);
        }
    }
    while let Some(client) = clients.join_next().await {
        client.map_err(|error| Failure::refused(error.to_string()))?;
    }
    Ok(())
}

/// Where the clients of a thread record their results.
struct Desk<W> {
    watch: W,
    /// When measuring begins.
    from: Duration,
    /// When nothing new begins any more.
    end: Duration,
    counted: RefCell<Tallies>,
}

#[derive(Default)]
struct Tallies {
    measured: Tally,
    lately: Tally,
}

impl<W: Stopwatch> Desk<W> {
    fn take(&self, asked: &RequestRecord) {
        let mut counted = self.counted.borrow_mut();
        if asked.due >= self.from {
            counted.measured.record(asked);
        }
        counted.lately.record(asked);
    }

    /// A request that was due, and that no client was free to send.
    fn give_up(&self, is_read: bool, due: Duration) {
        if due >= self.from {
            let mut counted = self.counted.borrow_mut();
            counted.measured.record_unsent(is_read, due, self.end);
        }
    }
}

/// Who sends one request at a time.
struct Client<S, W> {
    store: Rc<S>,
    load: Load,
    choices: Choices,
    desk: Rc<Desk<W>>,
}

impl<S: Connection, W: Stopwatch> Client<S, W> {
    /// Sends the next request when the last is answered.
    async fn closed_loop(mut self) {
        loop {
            let now = self.desk.watch.elapsed();
            if now >= self.desk.end {
                return;
            }
            self.ask(now, now).await;
        }
    }

    /// Sends each request when it is due, or as soon as this client is free after that.
    async fn open_loop(mut self, pace: Rc<Pace>) {
        while let Some(due) = pace.next().await {
            let now = self.desk.watch.elapsed();
            self.ask(due, now).await;
        }
    }

    async fn ask(&mut self, due: Duration, sent: Duration) {
        let next = self.choices.next_operation();
        let result = self.carry_out(next).await;
        let failed = result.is_err();
        self.desk.take(&RequestRecord {
            is_read: matches!(next, Operation::Get(_)),
            due,
            sent,
            ended: self.desk.watch.elapsed(),
            result,
        });
        if failed {
            tokio::time::sleep(AFTER_FAILURE).await;
        }
    }

    async fn carry_out(&self, operation: Operation) -> Result<Answer, Trouble> {
        let keys = &self.load.keys;
        match operation {
            Operation::Get(key) => {
                let key = &keys.names[key];
                self.store.get(key, self.load.consistency).await
            }
            Operation::Put(key) => self.store.put(&keys.names[key], &keys.value).await,
        }
    }
}

#[cfg(test)]
mod tests;
