//! One machine: clocks, a disk, and the process that runs on it.
//!
//! What lives in [`Process`] dies with it; clocks and disk stay. The process has the server's
//! threads: the driver that owns the node, one for the log, one for the state machine, and the
//! sessions of clients. What each does is in the file named after it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use leasehold::api::{Call, Consistency, Error, Request, Response, ResponseBody};
use leasehold::kv::{Change, Reply};
use leasehold::node::turn::{Asleep, Idle, Marks, StampedMail, TakenMail};
use leasehold::node::{Captured, Input, Looked, Node, Read, ReadBuffer};
use leasehold::raft::{
    Entry, Envelope, LeaseCell, Published, ReadPermit, Status, Ticket, UnsavedState,
};
use leasehold::time::Instant;
use leasehold::types::{LogId, RequestId};

use crate::clock::{MachineClock, Nanos};
use crate::disk::SimDisk;
use crate::watches::WatchThread;

/// A thread of the server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thread {
    Driver,
    Log,
    State,
    Sessions,
    Watch,
}

/// One machine.
pub(crate) struct Machine {
    pub(crate) clock: MachineClock,
    pub(crate) disk: SimDisk,
    pub(crate) process: Option<Process>,
    /// Which process this is: what was scheduled for an earlier one comes to nothing.
    pub(crate) life: u64,
    /// Until then nothing of the process runs.
    pub(crate) paused_until: Nanos,
    /// Until then this thread does not run.
    pub(crate) stalled_until: [Nanos; 5],
    /// Until then applying takes up to this long.
    pub(crate) apply_slow: (Nanos, Nanos),
    /// Cuts between this machine and all clients.
    pub(crate) client_cuts: u32,
    /// The tripwire went off in this or an earlier process (P37).
    pub(crate) tripped: bool,
    /// Its configuration says that its cluster exists, though it is one of those that it began with.
    pub(crate) cluster_exists: bool,
    /// The next write that it applies comes out otherwise than elsewhere, and nobody notices at once.
    pub(crate) miscomputes: bool,
}

impl Machine {
    pub(crate) fn new(clock: MachineClock, disk: SimDisk) -> Self {
        Self {
            clock,
            disk,
            process: None,
            life: 0,
            paused_until: 0,
            stalled_until: [0; 5],
            apply_slow: (0, 0),
            client_cuts: 0,
            tripped: false,
            cluster_exists: false,
            miscomputes: false,
        }
    }

    /// Until when `thread` does not run.
    pub(crate) fn held_until(&self, thread: Thread) -> Nanos {
        self.paused_until.max(self.stalled_until[thread as usize])
    }
}

/// A running process.
pub(crate) struct Process {
    pub(crate) node: Node,
    /// The reading with which its last input was handled.
    pub(crate) read: Instant,
    /// How its consensus stands: as it was after the last input.
    pub(crate) status: Status,
    pub(crate) published: Arc<Published>,
    /// The lease of the present leadership, as published.
    pub(crate) lease: Option<Arc<LeaseCell>>,
    pub(crate) driver: Driver,
    pub(crate) log: LogThread,
    pub(crate) state: StateThread,
    pub(crate) sessions: BTreeMap<usize, Session>,
    pub(crate) watches: WatchThread,
    /// The state may be served, as far as the driver knows.
    pub(crate) is_sound: bool,
    /// How many comparisons of its state had agreed when everything healed.
    pub(crate) agreed_when_healed: u64,
}

/// What the driver is told. It is moved about, so what is large lies elsewhere.
pub(crate) enum Mail {
    Message(Box<Envelope>),
    Persisted(Ticket),
    Applied(Vec<(LogId, Reply)>),
    Input(Box<Input>),
    /// A request, and where its answer goes: a connection, and the frame's number there.
    Request(Box<Call>, usize, u64),
}

/// Where the driver is in its turn, whose steps are those of `leasehold::node::turn`.
#[derive(Default)]
pub(crate) enum Stage {
    Idle(Idle<Mail>),
    Asleep(Asleep<Mail>),
    Taken(TakenMail<Mail>),
    Stamped(StampedMail<Mail>),
    /// The next step is being taken right now.
    #[default]
    Underway,
}

/// The thread that owns the node.
pub(crate) struct Driver {
    pub(crate) mails: Vec<Mail>,
    /// What the data directory says.
    pub(crate) marks: Marks,
    /// How far it has come in its turn.
    pub(crate) turn: Stage,
    /// It sleeps until its alarm, or until mail comes.
    pub(crate) asleep: bool,
    /// When it wakes though no mail comes.
    pub(crate) due: Nanos,
    /// The alarm that is set, never later than `due`; it is put off when it goes off too early,
    /// which costs less than setting another at each sleep.
    pub(crate) alarm: Option<Nanos>,
    pub(crate) pending: BTreeMap<RequestId, (usize, u64)>,
    pub(crate) next_request: u64,
}

/// The thread that makes things durable.
#[derive(Default)]
pub(crate) struct LogThread {
    pub(crate) queue: Vec<(Ticket, UnsavedState)>,
    pub(crate) writing: Option<Ticket>,
    pub(crate) busy: bool,
}

/// The thread that applies.
#[derive(Default)]
pub(crate) struct StateThread {
    pub(crate) queue: VecDeque<Step>,
    pub(crate) replies: Vec<(LogId, Reply)>,
    /// What the step changed, if somebody listened when it began.
    pub(crate) changes: Option<Vec<Change>>,
    pub(crate) busy: bool,
}

/// What the state thread does next.
pub(crate) enum Step {
    Apply(Entry),
    Install(LogId),
}

/// One client connection.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) arrived: Vec<Arrival>,
    pub(crate) outbox: Vec<(u64, Delivery)>,
    pub(crate) waiting: BTreeMap<u64, Handed>,
    pub(crate) batch: Option<Batch>,
    /// Kept for the next batch: its reads, and what they find.
    pub(crate) spare: Vec<Arrival>,
    pub(crate) buffer: ReadBuffer<Found>,
    pub(crate) busy: bool,
}

/// A request that reached the node.
pub(crate) struct Arrival {
    pub(crate) frame: u64,
    pub(crate) call: Box<Call>,
    /// The newest revision that anybody had been shown when it arrived.
    pub(crate) exposed: i64,
}

/// What the driver says about a request.
pub(crate) enum Delivery {
    Reply(Result<Response, Error>),
    Permit(ReadPermit),
    CaughtUp,
}

/// A request that was handed to the driver.
pub(crate) enum Handed {
    Read { request: Box<Request>, asked: Asked },
    Other,
}

impl Read for Asked {
    fn consistency(&self) -> Consistency {
        self.consistency
    }

    fn min_revision(&self) -> i64 {
        self.min_revision
    }
}

/// What a read asked for, and what was known when it arrived.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) consistency: Consistency,
    pub(crate) min_revision: i64,
    /// The revision that it asks for by its number; 0 for what is there now.
    pub(crate) at: i64,
    /// The newest revision that anybody had been shown.
    pub(crate) exposed: i64,
}

impl Read for Arrival {
    fn consistency(&self) -> Consistency {
        self.call.consistency
    }

    fn min_revision(&self) -> i64 {
        self.call.min_revision
    }
}

impl Arrival {
    pub(crate) fn asked(&self) -> Asked {
        Asked {
            consistency: self.call.consistency,
            min_revision: self.call.min_revision,
            at: match &self.call.request {
                Request::Range(range) => range.revision,
                _ => 0,
            },
            exposed: self.exposed,
        }
    }
}

/// What a read finds.
pub(crate) type Found = Result<ResponseBody, Error>;

/// A closed batch of reads on its way through the session.
pub(crate) enum Batch {
    Captured(Captured<Vec<Arrival>, Found>),
    Looked(Looked<Vec<Arrival>, Found>),
}
