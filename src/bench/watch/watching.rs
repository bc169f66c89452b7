//! Open watches, and the puts that they receive.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use crate::bench::store::{Connection, Watch, WatchEvent, WatchTarget};
use crate::bench::tally::Latencies;
use crate::bench::{Stopwatch, Wall};
use crate::cli::arguments::bench::WatchLoadArgs;
use crate::cli::failure::Failure;
use crate::sync::Mutex;

/// Bytes of a value that say when it was sent.
pub(super) const STAMP_BYTES: usize = 8;
/// In place of when it was sent: nothing of this key comes after it.
pub(super) const LAST: u64 = u64::MAX;
/// Puts that may be under way.
pub(super) const PUTS_MAX: usize = 1024;
/// Watches that are opened at the same time.
pub(super) const OPENING_MAX: usize = 64;
/// How long watchers may take to receive the last change.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Delays are taken down by many watchers at a time; each distribution is large.
pub(super) const SHARDS: usize = 8;

/// What the watchers share.
pub(super) struct Shared {
    pub(super) wall: Wall,
    pub(super) prefix: String,
    pub(super) events: AtomicU64,
    pub(super) resumed: AtomicU64,
    /// Delays count.
    pub(super) is_measured: bool,
    pub(super) delays: [Mutex<Latencies>; SHARDS],
    /// By key: the revision of its newest put that was answered.
    pub(super) written: Vec<AtomicI64>,
    /// By watcher.
    pub(super) hearing: Vec<WatcherState>,
}

/// What one watcher has received.
#[derive(Default)]
pub(super) struct WatcherState {
    /// Everything up to this revision.
    pub(super) revision: AtomicI64,
    /// How often it was interrupted.
    pub(super) resumed: AtomicU32,
}

/// A watch that was asked for, and whose it is.
type OpenTasks<W> = JoinSet<(usize, Result<W, Failure>)>;
pub(super) type WatcherTasks = JoinSet<Result<(), Failure>>;

impl Shared {
    pub(super) fn new(arguments: &WatchLoadArgs) -> Arc<Self> {
        Arc::new(Self {
            wall: Wall::start(),
            prefix: format!("bench-watch/{}/", std::process::id()),
            events: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            is_measured: arguments.catch_up == 0,
            delays: Default::default(),
            written: (0..arguments.keys).map(|_| AtomicI64::new(0)).collect(),
            hearing: (0..arguments.watchers)
                .map(|_| WatcherState::default())
                .collect(),
        })
    }

    /// The delays since this was asked last.
    pub(super) fn take_delays(&self) -> Latencies {
        let mut all = Latencies::default();
        for delays in &self.delays {
            let mut delays = delays.lock();
            all.add(&std::mem::take(&mut delays));
        }
        all
    }

    /// Which key a watcher watches. With one key for all, each receives everything.
    pub(super) fn key_of(&self, watcher: usize) -> usize {
        watcher % self.written.len()
    }

    /// How many watchers have not received the newest put to their key.
    pub(super) fn behind(&self) -> usize {
        let hearing = self.hearing.iter().enumerate();
        let is_behind = |(number, hearing): &(usize, &WatcherState)| {
            let written = self.written[self.key_of(*number)].load(Ordering::Relaxed);
            hearing.revision.load(Ordering::Acquire) < written
        };
        hearing.filter(is_behind).count()
    }
}

/// How much is written.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// So many, as fast as they go.
    Puts(u64),
    /// For so long, at so many a second.
    For(Duration, u64),
}

#[derive(Default)]
pub(super) struct WriteCounts {
    pub(super) done: u64,
    pub(super) failed: u64,
}

/// Puts, in an open loop where a rate is given. Ends early once watchers have been interrupted more
/// often than `resumed_max`.
pub(super) async fn write<C: Connection>(
    connection: &Arc<C>,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
    count: Count,
    resumed_max: Option<u64>,
) -> Result<WriteCounts, Failure> {
    let began = shared.wall.elapsed();
    let mut written = WriteCounts::default();
    let mut puts = JoinSet::new();
    let mut number = 0_u64;
    let mut note = |put: Result<Result<i64, Failure>, tokio::task::JoinError>| match put {
        Ok(Ok(_)) => written.done += 1,
        _ => written.failed += 1,
    };
    loop {
        let elapsed = shared.wall.elapsed().saturating_sub(began);
        if resumed_max.is_some_and(|most| shared.resumed.load(Ordering::Relaxed) > most) {
            break;
        }
        match count {
            Count::Puts(most) if number >= most => break,
            Count::For(duration, _) if elapsed >= duration => break,
            Count::For(_, rate) => {
                let due = Duration::from_secs_f64(number as f64 / rate as f64);
                if due > elapsed {
                    tokio::time::sleep(due - elapsed).await;
                }
            }
            Count::Puts(_) => {}
        }
        while puts.len() >= PUTS_MAX {
            puts.join_next().await.into_iter().for_each(&mut note);
        }
        while let Some(put) = puts.try_join_next() {
            note(put);
        }
        let place = (number % arguments.keys as u64) as usize;
        let key = key(shared, place);
        let (connection, shared) = (Arc::clone(connection), Arc::clone(shared));
        let bytes = arguments.value_size.max(STAMP_BYTES);
        puts.spawn(async move {
            let sent = shared.wall.elapsed().as_nanos() as u64;
            let revision = connection.put(&key, &value(bytes, sent)).await?.revision;
            shared.written[place].fetch_max(revision, Ordering::Relaxed);
            Ok(revision)
        });
        number += 1;
    }
    while let Some(put) = puts.join_next().await {
        note(put);
    }
    if written.done == 0 {
        return Err(Failure::refused("no put was acknowledged"));
    }
    Ok(written)
}

pub(super) fn key(shared: &Shared, number: usize) -> Bytes {
    Bytes::from(format!("{}{number}", shared.prefix))
}

pub(super) fn value(bytes: usize, stamp: u64) -> Bytes {
    let mut value = vec![b'v'; bytes];
    value[..STAMP_BYTES].copy_from_slice(&stamp.to_le_bytes());
    Bytes::from(value)
}

/// Writes to each key what tells its watchers that nothing more comes.
pub(super) async fn write_last<C: Connection>(
    connection: &Arc<C>,
    arguments: &WatchLoadArgs,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    let mut puts = JoinSet::new();
    for number in 0..arguments.keys {
        while puts.len() >= PUTS_MAX {
            written(puts.join_next().await)?;
        }
        let key = key(shared, number);
        let connection = Arc::clone(connection);
        puts.spawn(async move {
            let put = connection.put(&key, &value(STAMP_BYTES, LAST)).await?;
            Ok(put.revision)
        });
    }
    while !puts.is_empty() {
        written(puts.join_next().await)?;
    }
    Ok(())
}

pub(super) fn written(
    put: Option<Result<Result<i64, Failure>, tokio::task::JoinError>>,
) -> Result<(), Failure> {
    match put {
        Some(Ok(put)) => put.map(drop),
        _ => Err(Failure::refused("a put was cancelled")),
    }
}

pub(super) async fn watch_all<C: Connection>(
    arguments: &WatchLoadArgs,
    connections: &[Arc<C>],
    start: i64,
    shared: &Arc<Shared>,
) -> Result<WatcherTasks, Failure> {
    let mut watching = JoinSet::new();
    let mut opening: OpenTasks<C::Watch> = JoinSet::new();
    for (number, connection) in (0..arguments.watchers).zip(connections.iter().cycle()) {
        let key = key(shared, shared.key_of(number));
        let connection = Arc::clone(connection);
        while opening.len() >= OPENING_MAX {
            take(&mut opening, &mut watching, shared).await?;
        }
        opening.spawn(async move {
            let watched = WatchTarget::Key { key, start };
            (number, connection.watch(watched).await)
        });
    }
    while !opening.is_empty() {
        take(&mut opening, &mut watching, shared).await?;
    }
    Ok(watching)
}

pub(super) async fn take<W: Watch>(
    opening: &mut OpenTasks<W>,
    watching: &mut WatcherTasks,
    shared: &Arc<Shared>,
) -> Result<(), Failure> {
    match opening.join_next().await {
        Some(Ok((number, watch))) => {
            watching.spawn(hear(watch?, number, Arc::clone(shared)));
            Ok(())
        }
        _ => Err(Failure::refused("a watch was cancelled while it opened")),
    }
}

/// Reads a watch until it has received the last change of its key.
pub(super) async fn hear<W: Watch>(
    mut watch: W,
    number: usize,
    shared: Arc<Shared>,
) -> Result<(), Failure> {
    let hearing = &shared.hearing[number];
    let (mut last, mut version) = (0, 0);
    loop {
        let (revision, changes) = match watch.next().await? {
            WatchEvent::Changes { revision, changes } => (revision, changes),
            WatchEvent::Resumed => {
                hearing.resumed.fetch_add(1, Ordering::Relaxed);
                shared.resumed.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            WatchEvent::Other => continue,
        };
        if revision <= last {
            return Err(Failure::refused(format!(
                "a watch received revision {revision} after {last}"
            )));
        }
        last = revision;
        let count = changes.len() as u64;
        let mut is_last = false;
        for change in changes {
            // Of one key each version follows the one before.
            if version > 0 && change.version != version + 1 {
                return Err(Failure::refused(format!(
                    "a watch received version {} of a key after version {version}",
                    change.version
                )));
            }
            version = change.version;
            match change
                .value
                .first_chunk()
                .map(|stamp| u64::from_le_bytes(*stamp))
            {
                Some(LAST) => is_last = true,
                Some(stamp) if shared.is_measured => {
                    let delay = shared
                        .wall
                        .elapsed()
                        .saturating_sub(Duration::from_nanos(stamp));
                    let shard = &shared.delays[number % SHARDS];
                    let mut delays = shard.lock();
                    delays.record(delay);
                }
                _ => {}
            }
        }
        // In this order: once all watchers have received a revision, its events are counted.
        shared.events.fetch_add(count, Ordering::Relaxed);
        hearing.revision.store(last, Ordering::Release);
        if is_last {
            return Ok(());
        }
    }
}

pub(super) async fn finish(mut watching: WatcherTasks) -> Result<(), Failure> {
    loop {
        match tokio::time::timeout(PATIENCE, watching.join_next()).await {
            Ok(Some(Ok(heard))) => heard?,
            Ok(Some(Err(_))) => return Err(Failure::refused("a watch was cancelled")),
            Ok(None) => return Ok(()),
            Err(_) => {
                return Err(Failure::refused(format!(
                    "{} watchers did not receive the last change within {PATIENCE:?}",
                    watching.len()
                )));
            }
        }
    }
}
