//! The thread that owns the log: it takes all queued work, makes it durable with one sync, and reports it
//! once.
//!
//! Consensus issues what to persist in an order, and learns of the last ticket of a group only
//! when everything up to it is durable. So a group may be written in any order that no crash can
//! tell from a lost message: first the newest hard state (an older one in the same group would be
//! overwritten at once, and a higher term or longer promise excuses everything the older one did),
//! then all entries as one batch. An entry is never durable before the term that it came in.
//!
//! When nothing came for 10 ms the log is marked, and the next segment is prepared slice by slice;
//! both step back for the first work that arrives. Then, too, segments are deleted that hold nothing
//! any more; under load that never rests, one goes after a group now and then.
//!
//! Where the log needs another segment and the disk has no space for it, the group waits: nothing of
//! its rest is written yet.
//!
//! The first error ends the thread: a failed sync is never tried again.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use thiserror::Error;

use crate::log::{Base, Disk, Item, Log, LogError, Preparation, Record, Recovery, Vote};
use crate::raft::{
    Configuration, Entry, HardState, LogBase, Payload, RestoredState, Ticket, UnsavedState,
};
use crate::server::threads::spawn;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::types::LogIndex;

/// Idle time after which the last batch is marked as synced.
const MARK_AFTER: Duration = Duration::from_millis(10);
/// Until a segment is asked for again that the disk had no space for.
const SPACE_PATIENCE: Duration = Duration::from_millis(100);

const NOOP: u8 = 0;
const COMMAND: u8 = 1;
const CONFIGURATION: u8 = 2;

/// Notifications by the log thread. Called on that thread; must not block.
pub trait LogEvents: Send + 'static {
    /// Everything up to and including `ticket` is durable. Once per group.
    fn persisted(&mut self, ticket: Ticket);
    /// The log is lost to this process, which must end. Called once, and nothing after it.
    fn fatal(&mut self, error: LogError);
    /// The log waits for space on its disk, or goes on because there is some.
    fn out_of_space(&mut self, waits: bool) {
        let _ = waits;
    }
    /// The size of the log has changed; for metrics.
    fn measured(&mut self, size: LogSize) {
        let _ = size;
    }
    /// One group was made durable; for metrics. After its [`LogEvents::persisted`].
    fn committed(&mut self, group: &GroupCommit) {
        let _ = group;
    }
}

/// The size of a log on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSize {
    /// The first entry that it may hold.
    pub first: LogIndex,
    /// Its files, with those that are prepared.
    pub segments: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// The result of one group commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCommit {
    /// Tickets in it.
    pub tickets: u64,
    /// Entries in it.
    pub entries: u64,
    /// Payload bytes of these entries.
    pub bytes: u64,
    /// Whether a hard state was in it.
    pub vote: bool,
    /// From taking the group to all of it durable. (Each `fdatasync` alone:
    /// [`RealDisk::observed_by`](crate::server::disk::file::RealDisk::observed_by).)
    pub took: Duration,
}

/// The handle of the log thread. Dropping it is like [`LogThread::stop`].
#[derive(Debug)]
pub struct LogThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<(), LogError>>>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<(Ticket, UnsavedState)>,
    end_quarantine: bool,
    /// To be done before anything that waits.
    first: Vec<Task>,
    closing: bool,
    /// The thread is gone; nothing that is submitted will be done.
    dead: bool,
}

/// Something else in the data directory that this thread does.
struct Task(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

impl LogThread {
    /// Starts it. It keeps `guard` for as long as it lives.
    pub fn spawn<D>(
        name: &str,
        guard: impl Send + 'static,
        log: Log<D>,
        events: impl LogEvents,
    ) -> io::Result<Self>
    where
        D: Disk + Send + 'static,
        D::File: Send,
    {
        let shared = Arc::new(Shared::default());
        let owner = Owner {
            shared: Arc::clone(&shared),
            log,
            events,
            first: Vec::new(),
            group: VecDeque::new(),
            items: Vec::new(),
            size: LogSize::default(),
        };
        let thread = spawn(name, guard, move || owner.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Queues work; never waits. Tickets must rise, and the caller limits the work in flight.
    /// After [`LogEvents::fatal`] it does nothing.
    pub fn submit(&self, ticket: Ticket, unsaved: UnsavedState) {
        let mut queue = self.shared.lock();
        if !queue.dead {
            queue.waiting.push_back((ticket, unsaved));
            drop(queue);
            self.shared.wake.notify_one();
        }
    }

    /// Has the thread change another file of the data directory, so that no other thread waits for the
    /// disk: before everything that is submitted later. After [`LogEvents::fatal`] it does
    /// nothing.
    pub fn do_first(&self, task: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        if !queue.dead {
            queue.first.push(Task(Box::new(task)));
            drop(queue);
            self.shared.wake.notify_one();
        }
    }

    /// The replica holds again all that it may have acknowledged (A23): takes the quarantine out
    /// of the vote file, after everything submitted before.
    pub fn end_quarantine(&self) {
        self.shared.lock().end_quarantine = true;
        self.shared.wake.notify_one();
    }

    /// Makes what was submitted durable (and reports it), writes the mark, and ends the thread.
    /// Returns the error that [`LogEvents::fatal`] was called with, if any.
    pub fn stop(mut self) -> Result<(), LogError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), LogError> {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(done)) => done,
            // It panicked; what it was writing may or may not be there.
            Some(Err(_)) => Err(LogError::Poisoned),
            None => Ok(()),
        }
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        // The error was reported by `fatal`, and `stop` returns it.
        let _ = self.finish();
    }
}

impl Queue {
    /// Whether there is nothing to do.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.first.is_empty() && !self.end_quarantine
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent between any two statements that hold the lock.
        self.queue.lock()
    }
}

/// Maximum number of unused segments whose deletion is deferred until the thread is idle.
const OLD_SEGMENTS_MAX: usize = 2;

/// What the thread does when there is no group to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleStage {
    /// A batch was written; after a short wait it is marked as synced.
    Recent,
    /// The mark is written; slices of the next segment may be left.
    Preparing,
    /// Nothing to do until new work arrives.
    Asleep,
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupEnd {
    /// All of it is durable.
    All,
    /// The disk had no space for all of it before the thread was told to end.
    Part,
}

/// The result of taking from the queue.
enum Work {
    Group { end_quarantine: bool },
    Nothing,
    Close,
}

struct Owner<D: Disk, E> {
    shared: Arc<Shared>,
    log: Log<D>,
    events: E,
    /// To be done before the group is written.
    first: Vec<Task>,
    /// The group being written and its records, kept to be used again.
    group: VecDeque<(Ticket, UnsavedState)>,
    items: Vec<Item>,
    /// The size last reported.
    size: LogSize,
}

impl<D: Disk, E: LogEvents> Owner<D, E> {
    fn run(mut self) -> Result<(), LogError> {
        let done = self.work();
        {
            let mut queue = self.shared.lock();
            queue.dead = true;
            queue.waiting.clear();
            queue.first.clear();
        }
        if let Err(error) = &done {
            self.events.fatal(error.clone());
        }
        done
    }

    /// Reports the size of the log, if it has changed.
    fn measure(&mut self) {
        let (segments, bytes) = self.log.size();
        let size = LogSize {
            first: self.log.base().index.next(),
            segments,
            bytes,
        };
        if size != self.size {
            self.size = size;
            self.events.measured(size);
        }
    }

    fn work(&mut self) -> Result<(), LogError> {
        self.measure();
        let mut stage = IdleStage::Recent;
        loop {
            match self.wait(stage) {
                Work::Group { end_quarantine } => {
                    for task in self.first.drain(..) {
                        (task.0)();
                    }
                    if self.commit()? == GroupEnd::Part {
                        // Nothing of the rest was reported, so it is as after a crash.
                        return Ok(());
                    }
                    if end_quarantine {
                        self.log.end_quarantine()?;
                    }
                    // Under steady load the thread is never idle, so deletion must keep pace with it.
                    self.log.prepare_next(false)?;
                    if self.log.old_segments() > OLD_SEGMENTS_MAX {
                        self.log.delete_old()?;
                    }
                    self.measure();
                    stage = IdleStage::Recent;
                }
                Work::Nothing if stage == IdleStage::Recent => {
                    self.log.mark()?;
                    stage = IdleStage::Preparing;
                }
                Work::Nothing => {
                    let deleted = self.log.delete_old()?;
                    let prepared = self.log.prepare_next(true)?;
                    self.measure();
                    stage = match prepared {
                        _ if deleted => IdleStage::Preparing,
                        Preparation::More => IdleStage::Preparing,
                        // A full disk is tried again after the next batch.
                        Preparation::Done | Preparation::NoSpace => IdleStage::Asleep,
                    };
                }
                Work::Close => return self.log.mark(),
            }
        }
    }

    /// Moves all queued work into `self.group`, waiting for it as `stage` allows.
    fn wait(&mut self, stage: IdleStage) -> Work {
        let idle = |queue: &mut Queue| queue.is_empty() && !queue.closing;
        let mut queue = self.shared.lock();
        queue = match stage {
            IdleStage::Recent => self.shared.wake.wait_timeout_while(queue, MARK_AFTER, idle),
            IdleStage::Preparing => queue,
            IdleStage::Asleep => self.shared.wake.wait_while(queue, idle),
        };
        if queue.is_empty() {
            return if queue.closing {
                Work::Close
            } else {
                Work::Nothing
            };
        }
        let end_quarantine = std::mem::take(&mut queue.end_quarantine);
        std::mem::swap(&mut queue.waiting, &mut self.group);
        std::mem::swap(&mut queue.first, &mut self.first);
        Work::Group { end_quarantine }
    }

    /// Makes the group durable and reports it.
    #[expect(
        clippy::disallowed_methods,
        reason = "a figure for metrics; nothing is decided by it"
    )]
    fn commit(&mut self) -> Result<GroupEnd, LogError> {
        let Some((last_ticket, _)) = self.group.back() else {
            return Ok(GroupEnd::All);
        };
        let last_ticket = *last_ticket;
        let begun = Instant::now();
        let mut group = GroupCommit {
            tickets: self.group.len() as u64,
            ..GroupCommit::default()
        };
        let mut newest = None;
        for (_, unsaved) in self.group.drain(..) {
            newest = unsaved.hard_state.or(newest);
            self.items.extend(unsaved.base.map(encode_base));
            group.entries += unsaved.entries.len() as u64;
            let records = unsaved.entries.into_iter().map(encode);
            self.items.extend(records.map(Item::Entry));
        }
        if let Some(hard_state) = newest {
            group.vote = true;
            self.log.save_vote(Vote {
                term: hard_state.term,
                voted_for: hard_state.vote,
                promise_floor: hard_state.promise_floor,
                bootstrap: hard_state.bootstrap,
            })?;
        }
        let bytes = self.items.iter().map(|item| match item {
            Item::Entry(record) => record.payload.len() as u64,
            Item::Base(_) => 0,
        });
        group.bytes = bytes.sum();
        if self.write()? == GroupEnd::Part {
            return Ok(GroupEnd::Part);
        }
        group.took = begun.elapsed();
        self.events.persisted(last_ticket);
        self.events.committed(&group);
        Ok(GroupEnd::All)
    }

    /// Writes all items, waiting for space where there is none; part of them, if the thread is to end
    /// meanwhile.
    fn write(&mut self) -> Result<GroupEnd, LogError> {
        let mut written = self.log.write_some(&self.items)?;
        if written < self.items.len() {
            self.events.out_of_space(true);
            while written < self.items.len() {
                let queue = self.shared.lock();
                let closes = |queue: &mut Queue| !queue.closing;
                let queue = self
                    .shared
                    .wake
                    .wait_timeout_while(queue, SPACE_PATIENCE, closes);
                if queue.closing {
                    return Ok(GroupEnd::Part);
                }
                drop(queue);
                written += self.log.write_some(&self.items[written..])?;
            }
            self.events.out_of_space(false);
        }
        self.items.clear();
        Ok(GroupEnd::All)
    }
}

/// An entry as a record: the payload's kind is the record's.
fn encode(entry: Entry) -> Record {
    let (kind, payload) = match entry.payload {
        Payload::Noop => (NOOP, Bytes::new()),
        Payload::Command(bytes) => (COMMAND, bytes),
        Payload::Configuration(configuration) => (CONFIGURATION, encoded(&configuration)),
    };
    Record {
        id: entry.id,
        kind,
        payload,
    }
}

fn encoded(configuration: &Configuration) -> Bytes {
    let bytes = postcard::to_allocvec(configuration)
        .expect("a configuration is sets of numbers, and memory takes any length");
    Bytes::from(bytes)
}

/// Where the log begins, with the configuration in force there as the note.
pub(crate) fn encode_base(base: LogBase) -> Item {
    Item::Base(Base {
        id: base.id,
        note: encoded(&base.configuration),
    })
}

pub(crate) fn decode(record: Record) -> Result<Entry, RestoreError> {
    let index = record.id.index;
    let payload = match record.kind {
        NOOP => Payload::Noop,
        COMMAND => Payload::Command(record.payload),
        CONFIGURATION => Payload::Configuration(
            postcard::from_bytes(&record.payload)
                .map_err(|_| RestoreError::BadConfiguration { index })?,
        ),
        kind => return Err(RestoreError::UnknownKind { index, kind }),
    };
    Ok(Entry {
        id: record.id,
        payload,
    })
}

/// What consensus restarts from, as far as the log says it; `initial_members` is the configuration that the cluster
/// began with: what holds where the log begins with its first entry. Where it begins later, the log says
/// itself which one is in force.
///
/// What the state has applied, and whether any of this can be trusted, is for
/// [`recovery`](crate::node::recovery).
pub fn restore(
    recovery: Recovery,
    initial_members: Configuration,
) -> Result<RestoredState, RestoreError> {
    let base = recovery.base;
    let index = base.index;
    let base_configuration = match index {
        LogIndex(0) => initial_members,
        _ => postcard::from_bytes(&recovery.base_note)
            .map_err(|_| RestoreError::BadConfiguration { index })?,
    };
    let entries: Result<Vec<Entry>, _> = recovery.records.into_iter().map(decode).collect();
    Ok(RestoredState {
        hard_state: HardState {
            term: recovery.vote.term,
            vote: recovery.vote.voted_for,
            promise_floor: recovery.vote.promise_floor,
            bootstrap: recovery.vote.bootstrap,
        },
        base,
        base_configuration,
        entries: entries?,
        quarantined: recovery.quarantined,
        ..RestoredState::default()
    })
}

/// The log contains an entry that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// An entry of a kind that a later version wrote.
    #[error(
        "log entry {index} has kind {kind}, which this release cannot read; run the newer release"
    )]
    UnknownKind {
        /// Its index.
        index: LogIndex,
        /// Its kind.
        kind: u8,
    },
    /// A membership that cannot be read, though its checksum holds.
    #[error(
        "this release cannot read the configuration in log entry {index}; run the newer release"
    )]
    BadConfiguration {
        /// Its index.
        index: LogIndex,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::sync::mpsc::{Receiver, Sender};
    use std::thread;

    use super::*;
    use crate::log::sim_disk::{Fault, SimDisk};
    use crate::log::{LogOptions, Verdict};
    use crate::types::{ClusterId, Incarnation, LogId, NodeId, Term};

    /// Long enough for the slowest machine; reached only by a failing test.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Debug, PartialEq)]
    enum Event {
        Persisted(Ticket),
        Fatal(LogError),
        Committed(GroupCommit),
        OutOfSpace(bool),
    }

    /// Reports everything, and at each `persisted` waits for leave to go on.
    struct Watcher {
        events: Sender<Event>,
        leave: Option<Receiver<()>>,
    }

    impl LogEvents for Watcher {
        fn persisted(&mut self, ticket: Ticket) {
            self.events.send(Event::Persisted(ticket)).unwrap();
            if let Some(leave) = &self.leave {
                leave.recv_timeout(PATIENCE).unwrap();
            }
        }
        fn fatal(&mut self, error: LogError) {
            self.events.send(Event::Fatal(error)).unwrap();
        }
        fn out_of_space(&mut self, waits: bool) {
            self.events.send(Event::OutOfSpace(waits)).unwrap();
        }
        fn committed(&mut self, group: &GroupCommit) {
            let group = GroupCommit {
                took: Duration::ZERO,
                ..*group
            };
            self.events.send(Event::Committed(group)).unwrap();
        }
    }

    fn options() -> LogOptions {
        LogOptions {
            cluster: ClusterId(1),
            node: NodeId(2),
            incarnation: Incarnation(0),
            segment_bytes: 64 * 1024,
        }
    }

    fn start(disk: &SimDisk, leave: Option<Receiver<()>>) -> (LogThread, Receiver<Event>) {
        let (log, _) = Log::open(disk.clone(), options()).unwrap();
        let (events, seen) = mpsc::channel();
        let thread = LogThread::spawn("log", (), log, Watcher { events, leave }).unwrap();
        (thread, seen)
    }

    fn entry(index: u64, term: u64) -> Entry {
        let payload = match index % 3 {
            0 => Payload::Noop,
            1 => Payload::Command(Bytes::from(vec![index as u8; 20])),
            _ => Payload::Configuration(Box::new(Configuration {
                voters: BTreeSet::from([NodeId(1), NodeId(index)]),
                outgoing: index.is_multiple_of(2).then(|| BTreeSet::from([NodeId(9)])),
                details: [(NodeId(1), Bytes::from_static(b"where"))].into(),
                ..Configuration::default()
            })),
        };
        Entry {
            id: LogId::new(LogIndex(index), Term(term)),
            payload,
        }
    }

    fn voters(last: u64) -> Configuration {
        Configuration {
            voters: [NodeId(last)].into(),
            ..Configuration::default()
        }
    }

    /// As consensus hands out where its log begins, with the entries behind that are new.
    fn begins(index: u64, term: u64, entries: Vec<Entry>) -> UnsavedState {
        UnsavedState {
            hard_state: None,
            base: Some(LogBase {
                id: LogId::new(LogIndex(index), Term(term)),
                configuration: voters(index),
            }),
            entries,
        }
    }

    fn unsaved(hard_state: Option<HardState>, entries: Vec<Entry>) -> UnsavedState {
        UnsavedState {
            hard_state,
            base: None,
            entries,
        }
    }

    fn hard_state(term: u64, vote: u64) -> HardState {
        HardState {
            term: Term(term),
            vote: (vote > 0).then_some(NodeId(vote)),
            promise_floor: Duration::from_millis(500),
            bootstrap: Term(term / 2),
        }
    }

    /// What a power failure right now would leave.
    fn durable(disk: &SimDisk) -> RestoredState {
        let fork = disk.fork(1);
        fork.crash_keeping(|_, _| false);
        let (_, recovery) = Log::open(fork, options()).unwrap();
        assert!(!matches!(recovery.verdict, Verdict::Damaged(_)));
        restore(recovery, Configuration::default()).unwrap()
    }

    #[test]
    fn all_that_waits_becomes_one_group_with_one_sync_and_one_report() {
        let disk = SimDisk::new(1);
        let (leave, wait) = mpsc::channel();
        let (thread, seen) = start(&disk, Some(wait));
        thread.submit(Ticket(1), unsaved(None, vec![entry(1, 1)]));
        let first = seen.recv_timeout(PATIENCE).unwrap();
        assert_eq!(first, Event::Persisted(Ticket(1)));
        // The thread waits in its report; these pile up.
        let before = disk.calls();
        for index in 2..=10 {
            thread.submit(Ticket(index), unsaved(None, vec![entry(index, 1)]));
        }
        leave.send(()).unwrap();
        assert!(matches!(
            seen.recv_timeout(PATIENCE).unwrap(),
            Event::Committed(GroupCommit { tickets: 1, .. })
        ));
        let second = seen.recv_timeout(PATIENCE).unwrap();
        assert_eq!(second, Event::Persisted(Ticket(10)));
        let after = disk.calls();
        assert_eq!(after.writes - before.writes, 1);
        assert_eq!(after.syncs - before.syncs, 1);
        assert_eq!(durable(&disk).entries.len(), 10);
        leave.send(()).unwrap();
        let committed = seen.recv_timeout(PATIENCE).unwrap();
        let Event::Committed(group) = committed else {
            panic!("{committed:?}");
        };
        assert_eq!((group.tickets, group.entries, group.vote), (9, 9, false));
        thread.stop().unwrap();
    }

    #[test]
    fn what_is_to_be_done_first_is_done_before_anything_submitted_after_it_is_written() {
        let disk = SimDisk::new(1);
        let (leave, wait) = mpsc::channel();
        let (thread, seen) = start(&disk, Some(wait));
        thread.submit(Ticket(1), unsaved(None, vec![entry(1, 1)]));
        let first = seen.recv_timeout(PATIENCE).unwrap();
        assert_eq!(first, Event::Persisted(Ticket(1)));
        // The thread waits in its report, and finds both of these at once.
        let (found, when_done) = (disk.clone(), mpsc::channel());
        thread.do_first(move || when_done.0.send(durable(&found).entries.len()).unwrap());
        thread.submit(Ticket(2), unsaved(None, vec![entry(2, 1)]));
        leave.send(()).unwrap();
        leave.send(()).unwrap();
        let durable_entries = when_done.1.recv_timeout(PATIENCE).unwrap();
        assert_eq!(durable_entries, 1);
        thread.stop().unwrap();
        assert_eq!(durable(&disk).entries.len(), 2);
    }

    #[test]
    fn what_is_reported_is_durable_and_the_newest_hard_state_of_a_group_stands() {
        let disk = SimDisk::new(2);
        let (leave, wait) = mpsc::channel();
        let (thread, seen) = start(&disk, Some(wait));
        thread.submit(Ticket(1), unsaved(Some(hard_state(1, 2)), vec![]));
        assert_eq!(
            seen.recv_timeout(PATIENCE).unwrap(),
            Event::Persisted(Ticket(1))
        );
        assert_eq!(durable(&disk).hard_state, hard_state(1, 2));
        thread.submit(
            Ticket(2),
            unsaved(Some(hard_state(2, 3)), vec![entry(1, 2), entry(2, 2)]),
        );
        // A conflict within the group: the leader of term 3 replaces entry 2.
        thread.submit(
            Ticket(3),
            unsaved(Some(hard_state(3, 0)), vec![entry(2, 3)]),
        );
        thread.submit(Ticket(4), unsaved(None, vec![entry(3, 3)]));
        leave.send(()).unwrap();
        leave.send(()).unwrap();
        let events: Vec<Event> = (0..3)
            .map(|_| seen.recv_timeout(PATIENCE).unwrap())
            .collect();
        assert_eq!(events[1], Event::Persisted(Ticket(4)));
        let found = durable(&disk);
        assert_eq!(found.hard_state, hard_state(3, 0));
        assert_eq!(found.entries, vec![entry(1, 2), entry(2, 3), entry(3, 3)]);
        thread.stop().unwrap();
    }

    #[test]
    fn an_entry_is_never_durable_before_the_term_it_came_in() {
        // Whatever call the power fails in.
        for call in 1..20 {
            let disk = SimDisk::new(call);
            let (thread, seen) = start(&disk, None);
            disk.fail_call(call, Fault::Crash);
            thread.submit(
                Ticket(1),
                unsaved(Some(hard_state(7, 2)), vec![entry(1, 7)]),
            );
            let first = seen.recv_timeout(PATIENCE).unwrap();
            drop(thread);
            disk.crash();
            let (_, recovery) = Log::open(disk, options()).unwrap();
            let saved = recovery.vote.term == Term(7);
            assert!(saved || recovery.records.is_empty(), "call {call}");
            if first == Event::Persisted(Ticket(1)) {
                assert!(saved && recovery.records.len() == 1);
            }
        }
    }

    #[test]
    fn the_first_error_is_reported_once_and_ends_the_thread() {
        let disk = SimDisk::new(3);
        let (thread, seen) = start(&disk, None);
        thread.submit(Ticket(1), unsaved(None, vec![entry(1, 1)]));
        assert_eq!(
            seen.recv_timeout(PATIENCE).unwrap(),
            Event::Persisted(Ticket(1))
        );
        disk.fail_call(2, Fault::Io);
        disk.fail_call(1, Fault::Io);
        thread.submit(Ticket(2), unsaved(None, vec![entry(2, 1)]));
        // The mark after 10 ms may meet the fault first; then the group is never reported.
        let mut events = Vec::new();
        while let Ok(event) = seen.recv_timeout(PATIENCE) {
            thread.submit(Ticket(3), unsaved(None, vec![entry(3, 1)]));
            events.push(event);
        }
        let fatal = |event: &&Event| matches!(event, Event::Fatal(LogError::Disk(_)));
        assert_eq!(events.iter().filter(fatal).count(), 1, "{events:?}");
        assert!(matches!(events.last(), Some(Event::Fatal(_))));
        assert!(!events.contains(&Event::Persisted(Ticket(2))));
        assert!(matches!(thread.stop(), Err(LogError::Disk(_))));
    }

    #[test]
    fn a_group_without_space_waits_is_reported_once_it_is_written_and_does_not_hold_up_the_end() {
        let payload = || Payload::Command(Bytes::from(vec![1; 6000]));
        let mut waited = 0;
        for call in 1..60 {
            let disk = SimDisk::new(call);
            let (thread, seen) = start(&disk, None);
            let entries = (1..=60).map(|index| Entry {
                id: LogId::new(LogIndex(index), Term(1)),
                payload: payload(),
            });
            disk.fail_call(call, Fault::NoSpace);
            thread.submit(Ticket(1), unsaved(None, entries.collect()));
            let mut events = Vec::new();
            loop {
                let event = seen.recv_timeout(PATIENCE).unwrap();
                let is_last = matches!(event, Event::Persisted(_) | Event::Fatal(_));
                events.push(event);
                if is_last {
                    break;
                }
            }
            let done = events.last() == Some(&Event::Persisted(Ticket(1)));
            if events.contains(&Event::OutOfSpace(true)) {
                waited += 1;
                assert!(done, "{call}: {events:?}");
            }
            drop(thread);
            assert!(!done || durable(&disk).entries.len() == 60, "{call}");
        }
        assert!(waited > 0, "some call was one for another segment");
    }

    #[test]
    fn stopping_finishes_what_was_submitted_and_leaves_a_marked_log() {
        let disk = SimDisk::new(4);
        let (thread, seen) = start(&disk, None);
        for index in 1..=50 {
            thread.submit(Ticket(index), unsaved(None, vec![entry(index, 1)]));
        }
        thread.stop().unwrap();
        let reported: Vec<Event> = seen.iter().collect();
        assert!(reported.contains(&Event::Persisted(Ticket(50))));
        let found = durable(&disk);
        assert_eq!(found.entries.len(), 50);
        let (mut log, _) = Log::open(disk.clone(), options()).unwrap();
        let calls = disk.calls();
        log.mark().unwrap();
        assert_eq!(disk.calls(), calls, "nothing is left to mark");
    }

    #[test]
    fn a_log_that_begins_later_is_found_so_with_its_configuration_and_gives_its_space_back() {
        let disk = SimDisk::new(5);
        let (thread, seen) = start(&disk, None);
        for index in 1..=60 {
            let payload = Payload::Command(Bytes::from(vec![1; 6000]));
            let id = LogId::new(LogIndex(index), Term(1));
            thread.submit(Ticket(index), unsaved(None, vec![Entry { id, payload }]));
        }
        thread.submit(Ticket(61), begins(55, 1, vec![]));
        while seen.recv_timeout(PATIENCE).unwrap() != Event::Persisted(Ticket(61)) {}
        let segments = |disk: &SimDisk| disk.file_names().len();
        let mut patience = 6_000;
        while segments(&disk) > 6 {
            thread::sleep(Duration::from_millis(10));
            patience -= 1;
            assert!(patience > 0, "{} segments stay", segments(&disk));
        }
        let found = durable(&disk);
        assert_eq!(found.base.index, LogIndex(55));
        assert_eq!(found.base_configuration, voters(55));
        assert_eq!(found.entries.len(), 5);
        // A state takes the place of all of it.
        thread.submit(Ticket(62), begins(99, 4, vec![entry(100, 4)]));
        thread.stop().unwrap();
        let found = durable(&disk);
        assert_eq!(found.base, LogId::new(LogIndex(99), Term(4)));
        assert_eq!(found.base_configuration, voters(99));
        assert_eq!(found.entries, [entry(100, 4)]);
        assert!(
            seen.iter()
                .any(|event| event == Event::Persisted(Ticket(62)))
        );
    }

    #[test]
    fn an_idle_log_is_marked() {
        let disk = SimDisk::new(5);
        let (thread, seen) = start(&disk, None);
        let opened = disk.calls().writes;
        thread.submit(Ticket(1), unsaved(None, vec![entry(1, 1)]));
        assert_eq!(
            seen.recv_timeout(PATIENCE).unwrap(),
            Event::Persisted(Ticket(1))
        );
        let mut patience = 6_000;
        while disk.calls().writes < opened + 2 {
            thread::sleep(Duration::from_millis(10));
            patience -= 1;
            assert!(patience > 0, "no mark came");
        }
        thread.stop().unwrap();
    }

    #[test]
    fn a_quarantine_ends_when_it_is_told_to() {
        let disk = SimDisk::new(6);
        let (mut log, _) = Log::open(disk.clone(), options()).unwrap();
        let record = encode(entry(1, 1));
        log.append(&[record]).unwrap();
        drop(log);
        disk.flip("log/0000000000000001", 8200 * 8);
        let (mut log, recovery) = Log::open(disk.clone(), options()).unwrap();
        assert!(recovery.quarantined);
        log.repair().unwrap();
        drop(log);
        assert!(durable(&disk).quarantined);
        let (thread, _seen) = start(&disk, None);
        thread.end_quarantine();
        thread.stop().unwrap();
        assert!(!durable(&disk).quarantined);
    }

    #[test]
    fn a_log_that_cannot_be_read_whole_is_refused_and_a_later_beginning_has_its_configuration() {
        let recovery = |base: u64, count: u64| Recovery {
            verdict: Verdict::Clean,
            vote: Vote::default(),
            base: LogId::new(LogIndex(base), Term(1)),
            base_note: match base {
                0 => Bytes::new(),
                _ => encoded(&voters(base)),
            },
            records: (base + 1..=base + count)
                .map(|i| encode(entry(i, 1)))
                .collect(),
            created: false,
            quarantined: false,
        };
        let restored = |base, count| restore(recovery(base, count), Configuration::default());
        assert!(!restored(0, 3).unwrap().quarantined);
        let later = restored(5, 3).unwrap();
        assert_eq!(later.base_configuration, voters(5));
        assert_eq!(later.entries.len(), 3);
        let mut quarantined = recovery(0, 3);
        quarantined.quarantined = true;
        let quarantined = restore(quarantined, Configuration::default()).unwrap();
        assert!(quarantined.quarantined);
        let mut unreadable = recovery(5, 3);
        unreadable.base_note = Bytes::from_static(&[0xff]);
        assert_eq!(
            restore(unreadable, Configuration::default()).unwrap_err(),
            RestoreError::BadConfiguration { index: LogIndex(5) }
        );
        let mut unknown = recovery(0, 2);
        unknown.records[1].kind = 9;
        assert_eq!(
            restore(unknown, Configuration::default()).unwrap_err(),
            RestoreError::UnknownKind {
                index: LogIndex(2),
                kind: 9
            }
        );
        let mut broken = recovery(0, 2);
        broken.records[1].payload = Bytes::from_static(&[0xff]);
        assert_eq!(
            restore(broken, Configuration::default()).unwrap_err(),
            RestoreError::BadConfiguration { index: LogIndex(2) }
        );
    }
}
