//! Clients: they write unique values, read with every consistency, follow the leader, and retry.
//!
//! A client does one thing at a time. A write with a session is retried on other nodes under the
//! same number until its fate is known or the client loses patience; a write without one is never
//! retried once its outcome is unknown. *Probes* keep asking one node, whatever it says: they are
//! who would meet a deposed leader that still answers.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use leasehold::api::{
    Attempts, Call, Consistency, DeleteRangeRequest, Error, ErrorKind, KeyRange, KeyValue, Outcome,
    PutRequest, RangeRequest, Request, Response, ResponseBody, Safety, SessionCall, TxnOp,
    TxnOpResponse, TxnRequest, TxnResponse,
};
use leasehold::types::SessionId;

use crate::clock::{MS, Nanos, SECOND, US};
use crate::dice::Dice;
use crate::history::{Action, Fate, Found, History, Key};
use crate::marks::Mark;
use crate::options::Options;
use crate::world::{Event, Work, World, place};
use crate::{history, tell};

/// Every client, and what they saw.
pub(crate) struct Workload {
    pub(crate) clients: Vec<Client>,
    pub(crate) history: History,
    pub(crate) next_attempt: u64,
    /// Until then nobody writes: logs become equal, and their freshness stops masking what else
    /// keeps an old leader's rival from being elected.
    pub(crate) quiet_until: Nanos,
    /// Ordinary clients start nothing new.
    pub(crate) resting: bool,
}

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads and writes, wherever the leader is.
    Worker,
    /// Reads from one node.
    Probe(usize),
    /// Reads what was, wherever it likes.
    Historian,
    /// Told what to do by a scenario, or by the liveness check.
    Puppet,
}

/// One client.
pub(crate) struct Client {
    pub(crate) kind: Kind,
    connection: usize,
    think: Nanos,
    patience: Nanos,
    attempt_max: Nanos,
    sessions: bool,
    session: Option<SessionId>,
    sequence: u64,
    acknowledged: u64,
    /// The newest revision it has been shown; and whether it says so when it reads.
    pub(crate) seen: i64,
    pub(crate) says_what_it_has_seen: bool,
    /// The mod revisions that it was shown last, by key.
    found: BTreeMap<Key, i64>,
    pub(crate) node: usize,
    /// Takes no for an answer, and follows nobody's advice.
    pinned: bool,
    pub(crate) current: Option<Current>,
    /// The timer that is set, never later than what it is for; it is put off when it goes off too
    /// early.
    timer: Option<Nanos>,
    /// When it begins something next; events of other times are off.
    acts_at: Nanos,
    /// How long its last request travels, and how long the one that it makes now does if it goes
    /// along with another's.
    travels: Nanos,
    rides: Option<Nanos>,
    dice: Dice,
}

/// What a client is at.
pub(crate) struct Current {
    /// `None` while it opens a session.
    pub(crate) operation: Option<(u64, Action)>,
    sequence: Option<u64>,
    attempt: u64,
    /// When the attempt has taken too long; none while the client waits to try again.
    deadline: Option<Nanos>,
    give_up: Nanos,
    failed: Attempts,
}

impl Workload {
    pub(crate) fn new(options: &Options) -> Self {
        let mut dice = Dice::new(options.seed, "workload", 0);
        let mut clients: Vec<Client> = (0..options.clients)
            .map(|number| {
                let dice = Dice::new(options.seed, "client", number as u64);
                let connection = number % options.connections;
                Client::new(options, Kind::Worker, connection, options.think, dice)
            })
            .collect();
        if let Some(every) = options.probe_every {
            for node in 0..options.nodes {
                let kind = Kind::Probe(node);
                let probe = Dice::new(options.seed, "probe", node as u64);
                let think = every + dice.between(0, every);
                clients.push(Client::new(options, kind, 100 + node, think, probe));
            }
        }
        for number in 0..options.historians {
            let dice = Dice::new(options.seed, "historian", number as u64);
            let (kind, connection) = (Kind::Historian, 120 + number);
            clients.push(Client::new(options, kind, connection, options.think, dice));
        }
        let puppet = Dice::new(options.seed, "puppet", 0);
        clients.push(Client::new(options, Kind::Puppet, 200, MS, puppet));
        Self {
            clients,
            history: History::default(),
            next_attempt: 1,
            quiet_until: 0,
            resting: false,
        }
    }
}

impl Client {
    fn new(options: &Options, kind: Kind, connection: usize, think: Nanos, mut dice: Dice) -> Self {
        let promise = options.timing.lease_duration.as_nanos() as u64;
        Self {
            kind,
            connection,
            think,
            patience: match kind {
                Kind::Worker | Kind::Historian => dice.spread(promise, 12 * promise),
                Kind::Probe(_) => promise,
                Kind::Puppet => 3600 * SECOND,
            },
            attempt_max: match kind {
                Kind::Puppet => promise * 2,
                _ => dice.spread(promise / 5, 4 * promise),
            },
            sessions: kind == Kind::Puppet || dice.chance(0.8),
            session: None,
            sequence: 0,
            acknowledged: 0,
            seen: 0,
            found: BTreeMap::new(),
            says_what_it_has_seen: matches!(kind, Kind::Worker | Kind::Probe(_))
                && dice.chance(0.4),
            node: match kind {
                Kind::Probe(node) => node,
                _ => dice.between(0, options.nodes as u64 - 1) as usize,
            },
            pinned: matches!(kind, Kind::Probe(_)),
            current: None,
            timer: None,
            acts_at: Nanos::MAX,
            travels: 0,
            rides: None,
            dice,
        }
    }
}

impl Client {
    /// Notes the mod revisions that an answer shows, for the next swap.
    fn remember(&mut self, fate: &Fate) {
        let operation = self.current.as_ref().and_then(|current| current.operation);
        let Some((_, action)) = operation else { return };
        match (fate, action) {
            (Fate::Written { revision }, Action::Put(key) | Action::Swap(key, _)) => {
                self.found.insert(key, *revision);
            }
            (Fate::Unequal { found: None, .. }, Action::Swap(key, _)) => {
                self.found.remove(&key);
            }
            (Fate::Unequal { found, .. }, _) => {
                self.found
                    .extend(found.iter().map(|found| (found.key, found.mod_revision)));
            }
            (Fate::Read { found, .. }, _) => {
                self.found
                    .extend(found.iter().map(|found| (found.key, found.mod_revision)));
            }
            _ => {}
        }
    }
}

impl World {
    /// Every client will act.
    pub(crate) fn clients_start(&mut self) {
        for client in 0..self.workload.clients.len() {
            if self.workload.clients[client].kind != Kind::Puppet {
                let this = &mut self.workload.clients[client];
                let delay = this.dice.between(0, this.think);
                this.acts_at = self.now + delay;
                self.schedule(delay, Event::Client(client));
            }
        }
    }

    /// The client whose strings a scenario pulls.
    pub(crate) fn puppet(&self) -> usize {
        self.workload.clients.len() - 1
    }

    /// A client is free to begin something.
    pub(crate) fn client_acts(&mut self, client: usize) {
        if self.workload.clients[client].acts_at == self.now {
            self.act(client);
            self.ride_along(client);
        }
    }

    /// Idle clients of the same connection may have something to say at the same moment.
    fn ride_along(&mut self, client: usize) {
        let together = self.options.together;
        let this = &mut self.workload.clients[client];
        if this.kind != Kind::Worker || this.current.is_none() || !this.dice.chance(together) {
            return;
        }
        let (connection, node, travels) = (this.connection, this.node, this.travels);
        for other in 0..self.options.clients {
            let that = &mut self.workload.clients[other];
            if that.connection == connection && that.current.is_none() {
                that.acts_at = Nanos::MAX;
                that.node = node;
                that.rides = Some(travels);
                self.act(other);
                self.workload.clients[other].rides = None;
            }
        }
    }

    fn act(&mut self, client: usize) {
        let keys = self.options.keys;
        let quiet = self.now < self.workload.quiet_until;
        let this = &mut self.workload.clients[client];
        if self.workload.resting || this.current.is_some() {
            return;
        }
        let dice = &mut this.dice;
        let key = dice.between(0, keys - 1);
        let action = match this.kind {
            Kind::Puppet => return,
            Kind::Probe(_) => Action::Get(key, *dice.pick(&PROBE_READS)),
            Kind::Historian => {
                let nodes = self.machines.len() as u64;
                this.node = dice.between(0, nodes - 1) as usize;
                past(dice, key, this.seen)
            }
            Kind::Worker if quiet => Action::Get(key, *dice.pick(&READS)),
            Kind::Worker => match dice.between(0, 99) {
                0..=29 => Action::Put(key),
                30..=39 => {
                    let seen = this.found.get(&key).copied().unwrap_or_default();
                    Action::Swap(key, seen)
                }
                // No key may be written twice.
                40..=44 if keys > 1 => Action::PutBoth(key, (key + 1) % keys),
                40..=44 => Action::Put(key),
                45..=51 => Action::Delete(key),
                52..=59 => Action::GetBoth(key, (key + 1) % keys, *dice.pick(&READS)),
                60..=94 => Action::Get(key, *dice.pick(&READS)),
                _ => Action::List(*dice.pick(&READS)),
            },
        };
        let alone = this.rides.is_none();
        if !action.is_write() && alone && this.kind == Kind::Worker && this.dice.chance(0.25) {
            let nodes = self.machines.len() as u64;
            this.node = this.dice.between(0, nodes - 1) as usize;
        }
        self.begin(client, action);
    }

    /// What a read of `client` asks for at least: what it has seen, and now and then what nobody
    /// has.
    fn min_revision(&mut self, client: usize, action: Action) -> i64 {
        let this = &mut self.workload.clients[client];
        if action.is_write() || !this.says_what_it_has_seen {
            return 0;
        }
        let dreams = this.kind == Kind::Worker && this.dice.chance(0.02);
        this.seen + i64::from(dreams) * 3
    }

    /// The client begins `action` now.
    pub(crate) fn begin(&mut self, client: usize, action: Action) {
        let is_write = action.is_write();
        let this = &self.workload.clients[client];
        if is_write && this.sessions && this.session.is_none() {
            return self.begin_current(client, None);
        }
        let least = self.min_revision(client, action);
        let history = &mut self.workload.history;
        let number = history.invoke(action, least, self.now);
        self.begin_current(client, Some((number, action)));
    }

    fn begin_current(&mut self, client: usize, operation: Option<(u64, Action)>) {
        let now = self.now;
        let this = &mut self.workload.clients[client];
        let is_write = operation.is_some_and(|(_, action)| action.is_write());
        let sequence = (is_write && this.session.is_some()).then(|| {
            this.sequence += 1;
            this.sequence
        });
        this.current = Some(Current {
            operation,
            sequence,
            attempt: 0,
            deadline: None,
            give_up: now + this.patience,
            failed: Attempts::new(match (is_write, sequence) {
                (_, Some(_)) => Safety::Numbered,
                (false, None) if operation.is_some() => Safety::Repeatable,
                (_, None) => Safety::Once,
            }),
        });
        self.attempt(client);
    }

    /// Sends the current request to the node that the client believes in.
    fn attempt(&mut self, client: usize) {
        let attempt = self.workload.next_attempt;
        self.workload.next_attempt += 1;
        let this = &mut self.workload.clients[client];
        let delay = this.dice.between(20 * US, 3 * MS);
        let delay = this.rides.unwrap_or(delay);
        this.travels = delay;
        let (node, connection, timeout) = (this.node, this.connection, this.attempt_max);
        let session = this.session;
        let acknowledged = this.acknowledged;
        let current = this.current.as_mut().expect("something is under way");
        current.attempt = attempt;
        current.deadline = Some(self.now + timeout);
        let call = Call {
            timeout_ms: (timeout / MS).max(1) as u32,
            consistency: consistency(current.operation),
            min_revision: current
                .operation
                .map_or(0, |(number, _)| self.workload.history.least(number)),
            session: current
                .sequence
                .zip(session)
                .map(|(sequence, id)| SessionCall {
                    id,
                    sequence,
                    acknowledged,
                }),
            request: request(current.operation),
        };
        self.trace.line(self.now, Some(node), || {
            format!("<~ c{client} a{attempt} {}", tell::call(&call))
        });
        self.set_timer(client);
        if self.machines[node].client_cuts > 0 {
            return;
        }
        if self.machines[node].process.is_some() {
            let work = Work::Arrives(connection, attempt << 8 | client as u64, Box::new(call));
            self.schedule_work(delay, node, work);
        } else {
            let error = Error::not_applied(ErrorKind::ConnectFailed, "nobody is there");
            let event = Event::ClientAnswer(client, attempt, Box::new(Err(error)));
            self.schedule(delay, event);
        }
    }

    /// A session answers a frame: on its way to the client.
    pub(crate) fn reply(&mut self, node: usize, frame: u64, result: Result<Response, Error>) {
        let is_heard = self.machines[node].client_cuts == 0;
        if is_heard
            && (self.reply_to_locker(frame, &result) || self.reply_to_holder(frame, &result))
        {
            return;
        }
        let client = (frame & 0xff) as usize;
        if client >= self.workload.clients.len() {
            return;
        }
        let delay = {
            let dice = &mut self.workload.clients[client].dice;
            dice.between(20 * US, 3 * MS)
        };
        if self.machines[node].client_cuts == 0 {
            let event = Event::ClientAnswer(client, frame >> 8, Box::new(result));
            self.schedule(delay, event);
        }
    }

    /// The process on `node` ended: connections to it break.
    pub(crate) fn clients_lose(&mut self, node: usize) {
        for client in 0..self.workload.clients.len() {
            let this = &mut self.workload.clients[client];
            let Some(current) = &this.current else {
                continue;
            };
            if this.node == node && this.dice.chance(0.5) {
                let attempt = current.attempt;
                self.judge.marks.hit(Mark::ConnectionLost);
                let delay = this.dice.between(MS, 20 * MS);
                let error = Error::unknown(ErrorKind::ConnectionLost, "the connection broke");
                let event = Event::ClientAnswer(client, attempt, Box::new(Err(error)));
                self.schedule(delay, event);
            }
        }
    }

    /// Sees to it that a timer goes off when the attempt under way has taken too long, or before.
    fn set_timer(&mut self, client: usize) {
        let this = &mut self.workload.clients[client];
        let current = this.current.as_ref();
        let Some(deadline) = current.and_then(|current| current.deadline) else {
            return;
        };
        if this.timer.is_none_or(|timer| timer > deadline) {
            this.timer = Some(deadline);
            let delay = deadline.saturating_sub(self.now);
            self.schedule(delay, Event::ClientTimeout(client, deadline));
        }
    }

    /// A timer goes off: perhaps the attempt under way took too long.
    pub(crate) fn client_timer(&mut self, client: usize, timer: Nanos) {
        let this = &mut self.workload.clients[client];
        if this.timer != Some(timer) {
            return;
        }
        this.timer = None;
        match &this.current {
            Some(current) if current.deadline.is_some_and(|at| at <= self.now) => {
                let attempt = current.attempt;
                self.judge.marks.hit(Mark::AttemptTimedOut);
                let error = Error::unknown(ErrorKind::DeadlineExceeded, "no answer came");
                self.client_hears(client, attempt, Err(error));
            }
            _ => self.set_timer(client),
        }
    }

    /// An answer to `attempt`; an answer to an older one comes too late to matter.
    pub(crate) fn client_hears(
        &mut self,
        client: usize,
        attempt: u64,
        result: Result<Response, Error>,
    ) {
        let now = self.now;
        let nodes = self.machines.len() as u64;
        let this = &mut self.workload.clients[client];
        let current = match &mut this.current {
            Some(current) if current.attempt == attempt => current,
            _ => return,
        };
        self.trace.line(now, None, || {
            format!("c{client} a{attempt} hears {}", tell::outcome(&result))
        });
        let error = match result {
            Ok(response) => return self.client_succeeds(client, response),
            Err(error) => error,
        };
        match &error.kind {
            ErrorKind::SessionExpired => self.judge.marks.hit(Mark::SessionForgotten),
            ErrorKind::NotLeader { .. } => self.judge.marks.hit(Mark::SentToTheLeader),
            ErrorKind::NoLeader => self.judge.marks.hit(Mark::NoLeaderKnown),
            _ => {}
        }
        let is_write = current.failed.safety() != Safety::Repeatable;
        if is_write && error.outcome != Outcome::NotApplied {
            self.judge.marks.hit(Mark::OutcomeUnknown);
        }
        let outcome = current.failed.outcome(error.outcome);
        let may_repeat = current.failed.may_repeat_after(error.outcome);
        current.failed.failed(error.outcome);
        let hopeless = matches!(
            error.kind,
            ErrorKind::InvalidArgument
                | ErrorKind::SessionExpired
                | ErrorKind::StaleSequence
                | ErrorKind::Internal
                | ErrorKind::Unsupported
                | ErrorKind::FutureRevision
                | ErrorKind::Compacted { .. }
        );
        let refused = matches!(error.kind, ErrorKind::LeaseInvalid) || this.pinned;
        let is_past = (current.operation).is_some_and(|(_, action)| action.at().is_some());
        let early = error.kind == ErrorKind::FutureRevision && !is_past;
        self.judge.counts.early_reads += u64::from(early);
        if now >= current.give_up || !may_repeat || hopeless || refused {
            let fate = match outcome {
                Outcome::NotApplied => Fate::NotApplied,
                Outcome::Unknown | Outcome::Applied => Fate::Unknown,
            };
            if hopeless && is_write {
                this.session = None;
            }
            return self.client_finishes(client, fate);
        }
        this.node = match error.kind {
            ErrorKind::NotLeader {
                leader: Some(leader),
                ..
            } => place(leader),
            ErrorKind::SlowDown { .. } => this.node,
            _ => this.dice.between(0, nodes - 1) as usize,
        };
        // The next attempt is sent when this one is forgotten.
        let wait = this.dice.spread(MS, 60 * MS);
        let attempt = self.workload.next_attempt;
        self.workload.next_attempt += 1;
        let current = self.workload.clients[client].current.as_mut();
        let current = current.expect("it is being worked on");
        current.attempt = attempt;
        current.deadline = None;
        self.schedule(wait, Event::ClientRetries(client, attempt));
    }

    /// A client has waited, and asks again.
    pub(crate) fn client_retries(&mut self, client: usize, attempt: u64) {
        let current = &self.workload.clients[client].current;
        if current
            .as_ref()
            .is_some_and(|current| current.attempt == attempt)
        {
            if current
                .as_ref()
                .is_some_and(|current| current.sequence.is_some())
            {
                self.judge.marks.hit(Mark::WriteRetried);
            }
            self.attempt(client);
        }
    }

    fn client_succeeds(&mut self, client: usize, response: Response) {
        let this = &mut self.workload.clients[client];
        let revision = response.header.revision;
        this.seen = this.seen.max(revision);
        let fate = match response.body {
            ResponseBody::OpenSession { id } => {
                this.session = Some(id);
                this.sequence = 0;
                this.acknowledged = 0;
                Fate::Unknown
            }
            ResponseBody::Put(_) => Fate::Written { revision },
            ResponseBody::DeleteRange(deleted) => Fate::Deleted {
                revision,
                keys: deleted.deleted,
            },
            ResponseBody::Range(range) => {
                let read = response
                    .header
                    .read
                    .expect("reads say how they were served");
                Fate::Read {
                    revision,
                    path: read.path,
                    leased: !read.lease_remaining.is_zero(),
                    found: range.kvs.iter().filter(is_ours).map(found).collect(),
                }
            }
            ResponseBody::Txn(txn) => match (response.header.read, txn.succeeded) {
                (Some(read), _) => Fate::Read {
                    revision,
                    path: read.path,
                    leased: !read.lease_remaining.is_zero(),
                    found: found_in(&txn),
                },
                (None, true) => Fate::Written { revision },
                (None, false) => Fate::Unequal {
                    revision,
                    found: found_in(&txn).first().copied(),
                },
            },
            ResponseBody::Status(_)
            | ResponseBody::MoveLeader
            | ResponseBody::Compact
            | ResponseBody::LeaderLeaseReport(_)
            | ResponseBody::ForwardToLeader
            | ResponseBody::LeaseNamed(_)
            | ResponseBody::Watch
            | ResponseBody::WatchCancel
            | ResponseBody::WatchProgress
            | ResponseBody::LeaseGrant(_)
            | ResponseBody::LeaseRevoke(_)
            | ResponseBody::LeaseKeepAlive(_)
            | ResponseBody::LeaseTimeToLive(_)
            | ResponseBody::LeaseList(_)
            | ResponseBody::LeaseUpdateTtl { .. }
            | ResponseBody::PutWithNewLease(_)
            | ResponseBody::RangePage(_)
            | ResponseBody::Snapshot(_)
            | ResponseBody::Members(_)
            | ResponseBody::Auth(_)
            | ResponseBody::Alarms(_) => Fate::Unknown,
        };
        this.remember(&fate);
        self.client_finishes(client, fate);
    }

    fn client_finishes(&mut self, client: usize, fate: Fate) {
        let now = self.now;
        let this = &mut self.workload.clients[client];
        let current = this.current.take().expect("something was under way");
        // Answered or given up: either way it will not be retried.
        if let Some(sequence) = current.sequence {
            this.acknowledged = this.acknowledged.max(sequence);
        }
        let pause = this.dice.between(0, 2 * this.think);
        if let Some((number, _)) = current.operation {
            self.workload.history.finish(number, now, fate);
        }
        if this.kind != Kind::Puppet {
            this.acts_at = now + pause;
            self.schedule(pause, Event::Client(client));
        }
    }

    /// Has the puppet do `action`, at `node` first, and waits for it; what takes longer than
    /// `within` is given up. A read that insists on a lease is asked of that node alone.
    pub(crate) fn ask(&mut self, node: usize, action: Action, within: Nanos) -> Fate {
        let insists = matches!(action, Action::Get(_, Consistency::LeaseOnly));
        self.ask_only(node, action, within, insists)
    }

    /// The same, of `node` and, if `alone`, of nobody else.
    pub(crate) fn ask_only(
        &mut self,
        node: usize,
        action: Action,
        within: Nanos,
        alone: bool,
    ) -> Fate {
        let deadline = self.now + within;
        let puppet = self.puppet();
        self.workload.clients[puppet].node = node;
        self.workload.clients[puppet].pinned = alone;
        self.workload.clients[puppet].current = None;
        let mut asked = None;
        while self.now < deadline && self.judge.violation().is_none() {
            match (&self.workload.clients[puppet].current, asked) {
                (None, Some(number)) => {
                    return self.workload.history.operations[number as usize - 1]
                        .fate
                        .clone();
                }
                (None, None) => {
                    self.begin(puppet, action);
                    let current = self.workload.clients[puppet].current.as_ref();
                    let operation = current.and_then(|current| current.operation);
                    asked = operation.map(|(number, _)| number);
                }
                (Some(_), _) => {}
            }
            self.run_until(self.now + MS / 4);
        }
        self.workload.clients[puppet].current = None;
        Fate::Unknown
    }
}

/// A read of what a key, or every key, was at some revision: one of late, one of long ago, which may
/// be compacted, or one that nobody has been told of.
fn past(dice: &mut Dice, key: Key, seen: i64) -> Action {
    let ago = match dice.between(0, 9) {
        0 => -(dice.spread(1, 20) as i64),
        1..=6 => dice.spread(1, 30) as i64 - 1,
        _ => dice.spread(1, 1_000) as i64,
    };
    let revision = (seen - ago).max(1);
    let consistency = *dice.pick(&READS);
    match dice.between(0, 3) {
        0 => Action::ListAt(revision, consistency),
        _ => Action::GetAt(key, revision, consistency),
    }
}

/// What each read asks for.
const READS: [Consistency; 10] = [
    Consistency::Linearizable,
    Consistency::Linearizable,
    Consistency::Linearizable,
    Consistency::LinearizableQuorum,
    Consistency::LeaseOnly,
    Consistency::Serializable,
    Consistency::MaxStaleness(Duration::ZERO),
    Consistency::MaxStaleness(Duration::from_millis(60)),
    Consistency::MaxStaleness(Duration::from_millis(400)),
    Consistency::MaxStaleness(Duration::from_secs(3)),
];
const PROBE_READS: [Consistency; 6] = [
    Consistency::Linearizable,
    Consistency::LinearizableQuorum,
    Consistency::LeaseOnly,
    Consistency::LeaseOnly,
    Consistency::MaxStaleness(Duration::from_millis(120)),
    Consistency::Serializable,
];

fn consistency(operation: Option<(u64, Action)>) -> Consistency {
    let asked = operation.and_then(|(_, action)| action.consistency());
    asked.unwrap_or_default()
}

fn request(operation: Option<(u64, Action)>) -> Request {
    match operation {
        None => Request::OpenSession,
        Some((number, Action::Put(key))) => Request::Put(PutRequest {
            key: history::name(key),
            value: history::bytes(number),
            prev_kv: false,
            ..PutRequest::default()
        }),
        Some((_, Action::Delete(key))) => Request::DeleteRange(DeleteRangeRequest {
            key: history::name(key),
            ..DeleteRangeRequest::default()
        }),
        Some((_, Action::Get(key, _))) => Request::Range(RangeRequest {
            key: history::name(key),
            ..RangeRequest::default()
        }),
        Some((_, Action::List(_))) => Request::Range(RangeRequest {
            key: Bytes::from_static(b"k"),
            range: KeyRange::Prefix,
            ..RangeRequest::default()
        }),
        Some((_, Action::GetAt(key, revision, _))) => Request::Range(RangeRequest {
            key: history::name(key),
            revision,
            ..RangeRequest::default()
        }),
        Some((_, Action::ListAt(revision, _))) => Request::Range(RangeRequest {
            key: Bytes::from_static(b"k"),
            range: KeyRange::Prefix,
            revision,
            ..RangeRequest::default()
        }),
        Some((number, Action::Swap(key, expected))) => Request::Txn(TxnRequest::compare_and_swap(
            history::name(key),
            expected,
            history::bytes(number),
        )),
        Some((number, Action::PutBoth(one, other))) => {
            let put = |key| TxnOp::put(history::name(key), history::bytes(number));
            Request::Txn(TxnRequest::new().and_then([put(one), put(other)]))
        }
        Some((_, Action::GetBoth(one, other, _))) => {
            let get = |key| TxnOp::get(history::name(key));
            // The second one in a transaction of its own, which sees the same state.
            let second = TxnRequest::new().and_then([get(other)]);
            Request::Txn(TxnRequest::new().and_then([get(one), TxnOp::txn(second)]))
        }
    }
}

/// Holders of leases have keys of their own.
fn is_ours(kv: &&KeyValue) -> bool {
    history::key(&kv.key).is_some()
}

/// One key as a reply has it.
fn found(kv: &KeyValue) -> Found {
    Found {
        key: history::key(&kv.key).expect("only such keys are written"),
        value: history::value(&kv.value).expect("only such values are written"),
        mod_revision: kv.mod_revision,
    }
}

/// Every key that a transaction's reply shows, in order.
fn found_in(txn: &TxnResponse) -> Vec<Found> {
    let shown = txn.responses.iter().map(|response| match response {
        TxnOpResponse::Range(range) => range.kvs.iter().map(found).collect(),
        TxnOpResponse::Txn(inner) => found_in(inner),
        TxnOpResponse::Put(_) | TxnOpResponse::DeleteRange(_) => Vec::new(),
    });
    shown.flatten().collect()
}
