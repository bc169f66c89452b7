//! The state thread: applies committed entries to the store, and nothing else does.
//!
//! It takes everything that has been committed meanwhile as one batch of the store (bounded, so
//! that no batch grows with the backlog), publishes it to readers, and reports the replies to the
//! driver. The store is not synced here: it replays the log (design.md section 9).

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::disk::data_dir::DataDir;
use super::disk::store::StateStore;
use super::disk::store::StoreError;
use super::driver::Mail;
use super::driver::Mailbox;
use super::fatal::Watch;
use super::gather::Gather;
use super::metrics::Metrics;
use super::metrics::stopwatch;
use super::sweep_thread::SweepWork;
use super::watches::Watches;
use crate::kv;
use crate::kv::Command;
use crate::kv::Operation;
use crate::node::Input;
use crate::raft::Entry;
use crate::raft::Payload;
use crate::types::LogIndex;

/// Most entries in one batch of the store: so many writes may wait for each other's answers, and a
/// read for them.
const BATCH_ENTRIES_MAX: usize = 128;
/// Most bytes of commands in one batch of the store; one entry may be larger and goes alone.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Most sessions forgotten by one entry.
const IDLE_SESSIONS_MAX: usize = 4096;

/// What is sent to the state thread.
#[derive(Debug)]
pub(crate) enum Work {
    /// Apply these.
    Apply(Vec<Entry>),
    /// Report some sessions that were not used after `unused_since`.
    FindIdleSessions { unused_since: LogIndex },
    /// Finish, make everything durable and end.
    Stop,
}

/// What the state thread starts from.
pub(crate) struct StateThread {
    pub(crate) store: StateStore,
    pub(crate) work: Arc<Gather<Work>>,
    /// Told when there is history to remove.
    pub(crate) sweep: Arc<Gather<SweepWork>>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    /// Who watches what is applied.
    pub(crate) watches: Arc<Watches>,
    /// Set once the store may be read: at once after a clean stop, else when its content has been
    /// compared with its hash.
    pub(crate) readable: Arc<AtomicBool>,
    /// Called once if the store fails; the process must end.
    pub(crate) on_fatal: Box<dyn Fn(StoreError) + Send>,
    /// Nobody else may use the directory while this thread lives.
    pub(crate) data_dir: Arc<DataDir>,
    pub(crate) watch: Watch,
}

impl StateThread {
    /// Starts it.
    pub(crate) fn spawn(self, name: &str) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name(format!("{name}-state"))
            .spawn(move || {
                let (_data_dir, _watch) = (&self.data_dir, &self.watch);
                let on_fatal = &self.on_fatal;
                if let Err(error) = run(
                    &self.work,
                    &self.sweep,
                    self.store,
                    &self.mailbox,
                    &self.metrics,
                    &self.watches,
                    &self.readable,
                ) {
                    on_fatal(error);
                }
            })
    }
}

fn run(
    work: &Gather<Work>,
    sweep: &Gather<SweepWork>,
    mut store: StateStore,
    mailbox: &Mailbox,
    metrics: &Metrics,
    watches: &Watches,
    readable: &AtomicBool,
) -> Result<(), StoreError> {
    if store.needs_verification() {
        let began = stopwatch();
        let report = store.reader().verify()?;
        if !report.is_sound() {
            let detail = "it does not have the hash that its changes have kept".to_owned();
            return Err(StoreError::Damaged { detail });
        }
        store.verified(&report);
        tracing::info!(took = ?began.elapsed(), "the state is what was written");
    }
    readable.store(true, Ordering::Release);
    // A removal that an earlier process has begun goes on.
    sweep.send(SweepWork::Look);
    let reader = store.reader();
    let mut taken = Vec::new();
    let mut entries = Vec::new();
    loop {
        work.take(&mut taken, Duration::from_secs(3600));
        let mut stop = false;
        let mut idle_since = None;
        for item in taken.drain(..) {
            match item {
                Work::Apply(more) => entries.extend(more),
                Work::FindIdleSessions { unused_since } => idle_since = Some(unused_since),
                Work::Stop => stop = true,
            }
        }
        let mut rest = entries.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(batch_length(rest));
            let before = reader.compact_revision();
            apply(&mut store, batch, mailbox, metrics, watches)?;
            if reader.compact_revision() > before {
                sweep.send(sweep_work(batch));
            }
            rest = later;
        }
        entries.clear();
        if let Some(unused_since) = idle_since {
            let snapshot = store.reader().snapshot()?;
            let sessions = kv::idle_sessions(&snapshot, unused_since, IDLE_SESSIONS_MAX)?;
            mailbox.send(Mail::Input(Input::IdleSessions {
                unused_since,
                sessions,
            }));
        }
        if stop {
            return store.close().map(|_| ());
        }
    }
}

fn apply(
    store: &mut StateStore,
    batch: &[Entry],
    mailbox: &Mailbox,
    metrics: &Metrics,
    watches: &Watches,
) -> Result<(), StoreError> {
    let commands: Vec<_> = batch
        .iter()
        .map(|entry| (entry.id, command(entry)))
        .collect();
    let began = stopwatch();
    let (replies, changes) = store.apply_ahead(&commands, watches.are_heard())?;
    let replies = replies
        .into_iter()
        .map(|applied| (applied.id, applied.reply))
        .collect();
    // Whoever waits is answered before the database is given what was applied.
    mailbox.send(Mail::Input(Input::Applied(replies)));
    watches.applied(store.reader().revision(), changes);
    store.settle()?;
    metrics
        .storage
        .commit_seconds
        .record(began.elapsed().as_secs_f64());
    Ok(())
}

/// What a batch with a compaction in it wants done.
fn sweep_work(batch: &[Entry]) -> SweepWork {
    let is_physical = batch.iter().filter_map(command).any(|command| {
        let Ok(Command::Write { operation, .. }) = Command::decode(&command) else {
            return false;
        };
        matches!(operation, Operation::Compact(request) if request.physical)
    });
    match is_physical {
        true => SweepWork::Reclaim,
        false => SweepWork::Look,
    }
}

/// What an entry says to the state machine; `None` for entries that are consensus' own.
fn command(entry: &Entry) -> Option<bytes::Bytes> {
    match &entry.payload {
        Payload::Command(bytes) => Some(bytes.clone()),
        Payload::Noop | Payload::Configuration(_) => None,
    }
}

/// How many entries from the front make the next batch: at least one.
fn batch_length(entries: &[Entry]) -> usize {
    let mut bytes = 0;
    let fitting = entries
        .iter()
        .take(BATCH_ENTRIES_MAX)
        .take_while(|entry| {
            bytes += command(entry).map_or(0, |command| command.len());
            bytes <= BATCH_BYTES_MAX
        })
        .count();
    fitting.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LogId;
    use crate::types::LogIndex;
    use crate::types::Term;

    fn entry(index: u64, bytes: usize) -> Entry {
        Entry {
            id: LogId::new(LogIndex(index), Term(1)),
            payload: Payload::Command(vec![0; bytes].into()),
        }
    }

    #[test]
    fn only_a_physical_compaction_has_the_space_given_back_at_once() {
        let compaction = |physical| {
            let operation = Operation::Compact(crate::api::CompactionRequest {
                revision: 5,
                physical,
            });
            let session = None;
            Entry {
                id: LogId::new(LogIndex(1), Term(1)),
                payload: Payload::Command(Command::Write { session, operation }.encode()),
            }
        };
        assert_eq!(sweep_work(&[compaction(false)]), SweepWork::Look);
        assert_eq!(
            sweep_work(&[entry(1, 9), compaction(true)]),
            SweepWork::Reclaim
        );
    }

    #[test]
    fn a_batch_is_bounded_in_entries_and_bytes_and_never_empty() {
        let small: Vec<_> = (1..=1000).map(|index| entry(index, 10)).collect();
        assert_eq!(batch_length(&small), BATCH_ENTRIES_MAX);
        let large = [entry(1, BATCH_BYTES_MAX + 1), entry(2, 1)];
        assert_eq!(batch_length(&large), 1);
        let two = [entry(1, BATCH_BYTES_MAX - 1), entry(2, 1), entry(3, 1)];
        assert_eq!(batch_length(&two), 2);
    }
}
