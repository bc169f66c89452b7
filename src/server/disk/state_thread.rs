//! The state thread: applies committed entries to the store, and nothing else does.
//!
//! It takes everything that has been committed meanwhile as one batch of the store (bounded, so
//! that no batch grows with the backlog), publishes it to readers, and reports the replies to the
//! driver. It does not write to the database: another thread hands over what was applied
//! (`hand_over_thread.rs`), and this one waits for that only when too much lies ahead. Nor is the store
//! synced here: it replays the log (D1).
//!
//! It also puts a state that a peer has sent in the place of its own, between two batches: readers are
//! on the one or the other, never on both.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::api::ResponseBody;
use crate::kv;
use crate::kv::{Command, KNOWN_VERSIONS, Operation};
use crate::node::{Input, InstalledSnapshot};
use crate::raft::{Entry, Payload};
use crate::server::disk::apply_listener::ApplyListener;
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::gc_thread::GcWork;
use crate::server::disk::hand_over_thread::{HandOverWork, hand_over_while, make_room};
use crate::server::disk::log_compactor::LogUse;
use crate::server::disk::space::{Passage, SpaceGate};
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::store::{
    AppliedEntry, HandOver, KeyCounter, RetiredStore, StateStore, StoreError, StoreOptions,
};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{Metrics, OperationKind, stopwatch};
use crate::server::threads::queue::BatchQueue;
use crate::server::threads::spawn;
use crate::types::{LogId, LogIndex};

/// Most entries in one batch of the store: so many writes may wait for each other's answers, and a
/// read for them.
const BATCH_ENTRIES_MAX: usize = 128;
/// Most of those that may end very many leases. A leader has no more of them under way; who is behind
/// has, and must not answer nothing before all of them are applied.
const BATCH_ENDS_MAX: usize = 2;
/// Most bytes of commands in one batch of the store; one entry may be larger and goes alone.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// Interval between checks of whether a replaced state still has readers.
const RETIRED_LOOK: Duration = Duration::from_millis(100);

/// The thread that counts the keys of a state.
pub(crate) struct CountThread {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Most sessions forgotten by one entry.
const IDLE_SESSIONS_MAX: usize = 4096;

/// A message to the state thread.
#[derive(Debug)]
pub(crate) enum Work {
    /// Applies these entries.
    Apply(Vec<Entry>),
    /// Replaces the state by the received one that ends with this entry.
    Install(LogId),
    /// Report some sessions that were not used after `unused_since`.
    FindIdleSessions { unused_since: LogIndex },
    /// Finish, make everything durable and end.
    Stop,
}

/// The states received from peers.
pub(crate) trait ReceivedStates: Send + Sync {
    /// The directory of the complete state that ends with `id`. It belongs to the caller from then on.
    fn take_whole(&self, id: LogId) -> Option<PathBuf>;
}

/// The configuration and handles of the state thread.
pub(crate) struct StateThread {
    pub(crate) store: StateStore,
    pub(crate) work: Arc<BatchQueue<Work>>,
    /// Receives [`GcWork::Look`] when there may be history to remove.
    pub(crate) gc: Arc<BatchQueue<GcWork>>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) listener: Arc<dyn ApplyListener>,
    /// Set once the store may be read: at once after a clean stop, else when its content has been
    /// compared with its hash.
    pub(crate) readable: Arc<AtomicBool>,
    /// The state ends before the log begins, so it is of no use until one comes from a peer.
    pub(crate) lacks_state: bool,
    pub(crate) received: Arc<dyn ReceivedStates>,
    pub(crate) state_dirs: StateDirs,
    /// How a state is opened.
    pub(crate) options: StoreOptions,
    /// Counts what is applied, to decide when the log is truncated.
    pub(crate) log_use: Arc<LogUse>,
    /// Keeps the directory locked while a thread that this one has started runs.
    pub(crate) data_dir: Arc<DataDir>,
    /// None at first.
    pub(crate) counting: Option<CountThread>,
    /// Holds up what would be written to a full disk.
    pub(crate) space: Arc<SpaceGate>,
    /// Is told when there is something to hand over to the database.
    pub(crate) hand_over: Arc<BatchQueue<HandOverWork>>,
}

impl StateThread {
    /// Applies entries until it is stopped.
    pub(crate) fn run(&mut self) -> Result<(), StoreError> {
        let without = if self.lacks_state { 1.0 } else { 0.0 };
        self.metrics.raft.without_state.set(without);
        if !self.lacks_state {
            self.open()?;
        }
        let mut taken = Vec::new();
        let mut entries = Vec::new();
        loop {
            self.work.take(&mut taken, Duration::from_secs(3600));
            let mut stop = false;
            let mut idle_since = None;
            for item in taken.drain(..) {
                match item {
                    Work::Apply(more) => entries.extend(more),
                    Work::Install(id) => {
                        if self.apply_all(&mut entries)? == Passage::Ended {
                            return Ok(());
                        }
                        self.install(id)?;
                    }
                    Work::FindIdleSessions { unused_since } => idle_since = Some(unused_since),
                    Work::Stop => stop = true,
                }
            }
            if self.apply_all(&mut entries)? == Passage::Ended {
                // As after a crash: the log has the rest.
                return Ok(());
            }
            if let Some(unused_since) = idle_since {
                let snapshot = self.store.reader().snapshot()?;
                let sessions = kv::idle_sessions(&snapshot, unused_since, IDLE_SESSIONS_MAX)?;
                self.mailbox.send(Mail::Input(Input::IdleSessions {
                    unused_since,
                    sessions,
                }));
            }
            if stop {
                // Its snapshot of the state would prevent a clean stop.
                self.counting = None;
                let any = |it: &HandOver| Ok(it.ahead_bytes() > 0);
                let rest = hand_over_while(any, &self.store.hand_over(), &self.space);
                if rest? == Passage::Ended {
                    return Ok(());
                }
                return self.store.persist_clean().map(|_| ());
            }
        }
    }

    /// Allows reads once the state has been verified.
    fn open(&mut self) -> Result<(), StoreError> {
        if self.store.needs_verification() {
            let began = stopwatch();
            let report = self.store.reader().verify()?;
            if !report.is_sound() {
                let detail = "its content does not match the hash kept with its changes".to_owned();
                return Err(StoreError::Damaged { detail });
            }
            self.store.verified(&report);
            tracing::info!(took = ?began.elapsed(), "state verified after an unclean stop");
        }
        self.readable.store(true, Ordering::Release);
        // The one before, if there is one, ends first.
        self.counting = None;
        let uncounted = self.store.uncounted()?;
        self.counting = Some(CountThread::start(uncounted, self.data_dir.clone()));
        // Continues a removal that an earlier process began.
        self.gc.send(GcWork::Look);
        Ok(())
    }

    /// Applies all entries, each batch once there is room for it; or ends, if the node does.
    fn apply_all(&mut self, entries: &mut Vec<Entry>) -> Result<Passage, StoreError> {
        let mut rest = entries.as_slice();
        while !rest.is_empty() {
            if self.space.wait() == Passage::Ended
                || make_room(&self.store.hand_over(), &self.space)? == Passage::Ended
            {
                return Ok(Passage::Ended);
            }
            let (batch, later) = rest.split_at(batch_length(rest));
            let reader = self.store.reader();
            let before = reader.compact_revision();
            self.apply(batch)?;
            if reader.compact_revision() > before {
                self.gc.send(gc_work(batch));
            }
            rest = later;
        }
        entries.clear();
        Ok(Passage::Open)
    }

    fn apply(&mut self, batch: &[Entry]) -> Result<(), StoreError> {
        let commands: Vec<_> = batch
            .iter()
            .map(|entry| (entry.id, command(entry)))
            .collect();
        for (_, command) in &commands {
            let raised = command.as_ref().and_then(|bytes| kv::raises_version(bytes));
            raised.map_or(Ok(0), known_version)?;
        }
        let began = stopwatch();
        let gate = self.store.reader().gate().clone();
        let rules_before = gate.policy().status();
        let (replies, changes) = self
            .store
            .apply_ahead(&commands, self.listener.wants_changes())?;
        // A retry is answered again without being applied again.
        let is_txn = |AppliedEntry { reply, .. }: &&AppliedEntry| {
            !reply.is_repeat && matches!(reply.result, Ok(Some(ResponseBody::Txn(_))))
        };
        let txns = replies.iter().filter(is_txn).count();
        self.metrics.mvcc.operations[OperationKind::Txn].increment(txns as u64);
        let replies = replies
            .into_iter()
            .map(|applied| (applied.id, applied.reply))
            .collect();
        self.mailbox.send(Mail::Input(Input::Applied(replies)));
        let reader = self.store.reader();
        self.listener.applied(reader.revision(), changes);
        if gate.policy().status() != rules_before {
            self.listener.rules_changed();
        }
        self.hand_over
            .send_all(HandOverWork::after(self.store.growth()).into_iter());
        self.store.merge_runs();
        if let Some((last, _)) = commands.last() {
            let bytes = commands.iter().flat_map(|(_, command)| command);
            let bytes: usize = bytes.map(bytes::Bytes::len).sum();
            self.log_use.applied(last.index, bytes as u64);
        }
        self.metrics
            .storage
            .commit_seconds
            .record(began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Replaces the state by the received one that ends with `id`. Once this is recorded, the new state is
    /// also used after a crash.
    fn install(&mut self, id: LogId) -> Result<(), StoreError> {
        let began = stopwatch();
        let path = self.received.take_whole(id);
        let path = path.expect("consensus installs what it was told of, once");
        let newer = StateStore::open(&path, &self.options)?;
        let snapshot = newer.reader().snapshot()?;
        if snapshot.applied() != id {
            let detail = format!(
                "it ends with {}, but should end with {id}",
                snapshot.applied()
            );
            return Err(StoreError::Damaged { detail });
        }
        let installed = InstalledSnapshot {
            id,
            revision: snapshot.revision(),
            bootstrap: kv::bootstrap(&snapshot)?,
            leases: kv::held_leases(&snapshot)?,
            cluster_version: known_version(kv::cluster_version(&snapshot)?)?,
        };
        drop(snapshot);
        let adopted = self.state_dirs.adopt(&path);
        adopted.map_err(StoreError::io("recording which state is in use"))?;
        retire(self.store.replace(newer), self.data_dir.clone());
        self.open()?;
        self.log_use.installed(id.index);
        let revision = installed.revision;
        let installed = Input::Installed(Box::new(installed));
        self.mailbox.send(Mail::Input(installed));
        // The changes in between are unknown here: watchers read them from the state.
        self.listener.applied(revision, None);
        self.listener.rules_changed();
        self.metrics.raft.without_state.set(0.0);
        let took = began.elapsed();
        let seconds = &self.metrics.snapshots.install_seconds;
        seconds.record(took.as_secs_f64());
        tracing::info!(%id, ?took, "snapshot installed");
        Ok(())
    }
}

impl CountThread {
    fn start(counter: KeyCounter, data_dir: Arc<DataDir>) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let stop = Arc::clone(&is_over);
        // The next process may use the path, so the directory stays locked until this has ended.
        let thread = spawn("counting-keys", data_dir, move || {
            let counted = counter.count(|| stop.load(Ordering::Relaxed));
            if let Err(error) = counted {
                // The state thread meets the same error, and ends the process.
                tracing::warn!(%error, "cannot count the keys");
            }
        });
        if let Err(error) = &thread {
            tracing::warn!(%error, "leasehold_mvcc_keys stays unknown until the next start");
        }
        Self {
            is_over,
            thread: thread.ok(),
        }
    }
}

impl Drop for CountThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The hook has reported a panic of the thread.
            let _ = thread.join();
        }
    }
}

/// The version of the cluster, if this program knows it: else nothing that follows may be applied here.
fn known_version(found: u16) -> Result<u16, StoreError> {
    match found <= KNOWN_VERSIONS.newest {
        true => Ok(found),
        false => Err(StoreError::NewerCluster {
            found,
            known: KNOWN_VERSIONS,
        }),
    }
}

/// Removes a database once it has no readers any more.
fn retire(retired: RetiredStore, data_dir: Arc<DataDir>) {
    // The next process may use the path, so the directory stays locked until this has ended.
    let waiting = spawn("retired-state", data_dir, move || {
        let mut retired = retired;
        loop {
            match retired.remove() {
                Ok(None) => return,
                Ok(Some(still_read)) => retired = still_read,
                Err(error) => {
                    tracing::warn!(%error, "cannot remove a replaced state");
                    return;
                }
            }
            std::thread::sleep(RETIRED_LOOK);
        }
    });
    if let Err(error) = waiting {
        tracing::warn!(%error, "a replaced state stays on disk until the next start");
    }
}

/// The GC work that follows from a batch with a compaction.
fn gc_work(batch: &[Entry]) -> GcWork {
    let is_physical = batch.iter().filter_map(command).any(|command| {
        let Ok(Command::Write { operation, .. }) = Command::decode(&command) else {
            return false;
        };
        matches!(operation, Operation::Compact(request) if request.physical)
    });
    match is_physical {
        true => GcWork::Reclaim,
        false => GcWork::Look,
    }
}

/// The command of an entry; `None` for entries of consensus itself.
fn command(entry: &Entry) -> Option<bytes::Bytes> {
    match &entry.payload {
        Payload::Command(bytes) => Some(bytes.clone()),
        Payload::Noop | Payload::Configuration(_) => None,
    }
}

/// How many entries from the front make the next batch: at least one.
fn batch_length(entries: &[Entry]) -> usize {
    let (mut bytes, mut ends) = (0, 0);
    let fitting = entries
        .iter()
        .take(BATCH_ENTRIES_MAX)
        .take_while(|entry| {
            let command = command(entry).unwrap_or_default();
            bytes += command.len();
            ends += usize::from(kv::ends_many_leases(&command));
            bytes <= BATCH_BYTES_MAX && ends <= BATCH_ENDS_MAX
        })
        .count();
    fitting.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
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
                payload: Payload::Command(
                    Command::Write {
                        author: None,
                        session,
                        operation,
                    }
                    .encode(),
                ),
            }
        };
        assert_eq!(gc_work(&[compaction(false)]), GcWork::Look);
        assert_eq!(gc_work(&[entry(1, 9), compaction(true)]), GcWork::Reclaim);
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

    #[test]
    fn a_batch_ends_so_many_leases_and_no_more() {
        let command = |command: &Command| Entry {
            id: LogId::new(LogIndex(1), Term(1)),
            payload: Payload::Command(command.encode()),
        };
        let expire = command(&Command::ExpireLeases {
            term: Term(1),
            leases: vec![crate::api::LeaseRef::id(5)],
        });
        let go_on = command(&Command::ContinueLeaseEnds { leases: Vec::new() });
        let check = command(&Command::CheckHash);
        let batch = [&check, &expire, &check, &go_on, &check, &expire, &check];
        let batch = batch.map(Clone::clone);
        assert_eq!(batch_length(&batch), 5);
        assert_eq!(batch_length(&batch[5..]), 2);
        assert_eq!(batch_length(&vec![check; 9]), 9);
    }
}
