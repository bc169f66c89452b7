//! Users of locks and elections, as the SDK's recipes are: each is granted a lease, takes a place in a
//! queue with it, and once nobody is ahead of it writes to what the lock protects, behind a fence.
//!
//! They are the worst of users: none ever looks at a clock. They sleep for longer than their leases
//! last and write all the same, go away without a word, and hear late. Nothing but the fence keeps a
//! former holder's writes out, so that is what is judged (`checkers/model/locks.rs`): by the order of
//! the log and by tokens, never by time.

use leasehold::api::{
    Call, Compare, CompareOp, Consistency, DeleteRangeRequest, Error, ErrorKind, Fence, KeyRange,
    KeyValue, LeaseGrantRequest, LeaseKept, LeaseRef, LeaseTarget, Outcome, PutRequest,
    RangeRequest, Request, Response, ResponseBody, SortOrder, SortTarget, TxnOp, TxnOpResponse,
    TxnRequest, last_ahead_of,
};

use crate::checkers::{Claim, entry, place_of, register};
use crate::clock::{MS, Nanos, US};
use crate::dice::Dice;
use crate::marks::Mark;
use crate::options::Options;
use crate::world::{Event, Work, World, place};
use crate::{history, tell};

/// Frames of lockers have these bits, and the locker's number below them.
const FRAME: u64 = 0xc0;
/// Claims of one locker, over a run; and writes of one claim.
const CLAIMS: u64 = 10_000;
const WRITES: u64 = 1_000;

/// One user.
pub(crate) struct Locker {
    number: u64,
    lock: u64,
    dice: Dice,
    node: usize,
    state: State,
    asked: Option<Asked>,
    /// Only the event scheduled last counts.
    turn: u64,
    next_claim: u64,
    next_write: u64,
}

/// Something that happens to a locker.
pub(crate) enum Turn {
    /// It is free to act, if nothing was scheduled for it since.
    Acts(u64),
    /// No answer came to this attempt.
    Tires(u64),
    /// This one did.
    Hears(u64, Box<Result<Response, Error>>),
}

impl Turn {
    /// What it is, for the hash of everything that happened.
    pub(crate) fn tag(&self) -> u64 {
        match self {
            Self::Acts(turn) => turn << 2,
            Self::Tires(attempt) => attempt << 2 | 1,
            Self::Hears(attempt, _) => attempt << 2 | 2,
        }
    }
}

#[derive(Clone, Copy)]
enum State {
    Out,
    /// It has a lease, and enters with this claim.
    Enters(LeaseRef, u64),
    Waits(Place),
    Holds(Place),
}

/// A place in the queue.
#[derive(Clone, Copy)]
struct Place {
    lease: LeaseRef,
    claim: u64,
    token: i64,
}

struct Asked {
    attempt: u64,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Grant,
    Enter,
    Look,
    Renew,
    Write(u64),
    Leave,
    Leader,
}

impl Locker {
    pub(crate) fn all(options: &Options) -> Vec<Self> {
        let of = |number: usize| {
            let mut dice = Dice::new(options.seed, "locker", number as u64);
            Self {
                number: number as u64,
                // Most want the same one.
                lock: u64::from(number > 0 && dice.chance(0.2)),
                node: dice.between(0, options.nodes as u64 - 1) as usize,
                dice,
                state: State::Out,
                asked: None,
                turn: 0,
                next_claim: 0,
                next_write: 0,
            }
        };
        (0..options.lockers).map(of).collect()
    }

    /// It has a lease and no place.
    fn enters(&mut self, lease: LeaseRef) {
        self.next_claim += 1;
        self.next_write = 0;
        let claim = self.number * CLAIMS + self.next_claim;
        self.state = State::Enters(lease, claim);
    }

    fn place(&self) -> Option<Place> {
        match self.state {
            State::Waits(place) | State::Holds(place) => Some(place),
            State::Out | State::Enters(..) => None,
        }
    }

    fn request(&mut self, what: What) -> Request {
        let lock = self.lock;
        let (lease, claim) = match self.state {
            State::Out => (LeaseRef::default(), 0),
            State::Enters(lease, claim) => (lease, claim),
            State::Waits(place) | State::Holds(place) => (place.lease, place.claim),
        };
        let own = entry(lock, claim);
        let token = self.place().map_or(0, |place| place.token);
        match what {
            What::Grant => Request::LeaseGrant(LeaseGrantRequest {
                ttl_ms: self.dice.between(500, 3_000) as i64,
                ..LeaseGrantRequest::default()
            }),
            What::Renew => Request::LeaseKeepAlive(vec![lease]),
            What::Enter => Request::Txn(
                TxnRequest::new()
                    .when([Compare::create_revision(own.clone(), CompareOp::Equal, 0)])
                    .and_then([TxnOp::Put(PutRequest {
                        key: own.clone(),
                        value: history::bytes(claim),
                        lease: LeaseTarget::Lease(lease),
                        ..PutRequest::default()
                    })])
                    .or_else([TxnOp::get(own)]),
            ),
            What::Look => Request::Txn(TxnRequest::new().and_then([
                queue(lock, SortOrder::Descend, last_ahead_of(token)),
                TxnOp::get(own),
            ])),
            What::Leader => {
                Request::Txn(TxnRequest::new().and_then([queue(lock, SortOrder::Ascend, 0)]))
            }
            What::Write(value) => {
                let write = TxnOp::put(register(lock), history::bytes(value));
                let fenced = TxnRequest::fenced(&[Fence::new(own, token)], write);
                Request::Txn(fenced.expect("tokens of holders are positive"))
            }
            What::Leave => Request::DeleteRange(DeleteRangeRequest {
                key: own,
                ..DeleteRangeRequest::default()
            }),
        }
    }
}

/// The first one of a queue, or the last one that was created up to a revision.
fn queue(lock: u64, order: SortOrder, until: i64) -> TxnOp {
    TxnOp::Range(RangeRequest {
        key: format!("q{lock}/").into(),
        range: KeyRange::Prefix,
        sort_target: SortTarget::CreateRevision,
        sort_order: order,
        max_create_revision: until,
        limit: 1,
        ..RangeRequest::default()
    })
}

impl World {
    /// Every locker will act.
    pub(crate) fn lockers_start(&mut self) {
        for locker in 0..self.lockers.len() {
            self.locker_later(locker, 10 * MS, 500 * MS);
        }
    }

    pub(crate) fn locker_turns(&mut self, locker: usize, turn: Turn) {
        match turn {
            Turn::Acts(turn) => self.locker_acts(locker, turn),
            Turn::Tires(attempt) => self.locker_tires(locker, attempt),
            Turn::Hears(attempt, result) => self.locker_hears(locker, attempt, *result),
        }
    }

    fn locker_later(&mut self, locker: usize, least: Nanos, most: Nanos) {
        let this = &mut self.lockers[locker];
        this.turn += 1;
        let (turn, delay) = (this.turn, this.dice.between(least, most));
        self.schedule(delay, Event::Locker(locker, Turn::Acts(turn)));
    }

    fn locker_acts(&mut self, locker: usize, turn: u64) {
        let resting = self.workload.resting || self.healed;
        let this = &mut self.lockers[locker];
        if this.turn != turn || resting {
            return;
        }
        let drawn = this.dice.between(0, 99);
        let what = match this.state {
            State::Out => What::Grant,
            State::Enters(..) => What::Enter,
            State::Waits(_) => match drawn {
                0..=29 => What::Renew,
                30..=39 => What::Leader,
                40..=42 => {
                    this.state = State::Out;
                    return self.locker_later(locker, MS, 1_000 * MS);
                }
                _ => What::Look,
            },
            State::Holds(place) => match drawn {
                0..=24 => What::Renew,
                25..=29 => What::Leader,
                // For longer than many leases last; and then it goes on as if nothing had been.
                30..=37 => return self.locker_later(locker, 500 * MS, 5_000 * MS),
                38..=40 => {
                    this.state = State::Out;
                    return self.locker_later(locker, MS, 1_000 * MS);
                }
                41..=52 => What::Leave,
                _ => {
                    this.next_write = (this.next_write + 1) % WRITES;
                    What::Write(place.claim * WRITES + this.next_write)
                }
            },
        };
        self.locker_asks(locker, what);
    }

    fn locker_asks(&mut self, locker: usize, what: What) {
        let attempt = self.workload.next_attempt;
        self.workload.next_attempt += 1;
        let now = self.now;
        let this = &mut self.lockers[locker];
        let request = this.request(what);
        this.asked = Some(Asked { attempt, what });
        let patience = this.dice.between(100 * MS, 900 * MS);
        // Some of it lies around for a while before it is sent, or on the way.
        let delay = match this.dice.chance(0.05) {
            true => this.dice.between(20 * MS, 3_000 * MS),
            false => this.dice.spread(20 * US, 20 * MS),
        };
        let node = this.node;
        let call = Call {
            timeout_ms: (patience / MS) as u32,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request,
        };
        self.trace.line(now, Some(node), || {
            format!("<~ u{locker} a{attempt} {}", tell::call(&call))
        });
        let tires = Event::Locker(locker, Turn::Tires(attempt));
        self.schedule(patience + delay, tires);
        if self.machines[node].client_cuts == 0 && self.machines[node].process.is_some() {
            let frame = attempt << 8 | FRAME | locker as u64;
            let work = Work::Arrives(200 + locker, frame, Box::new(call));
            self.schedule_work(delay, node, work);
        }
    }

    /// A session answers a frame of a locker; false if the frame is of nobody here.
    pub(crate) fn reply_to_locker(&mut self, frame: u64, result: &Result<Response, Error>) -> bool {
        let number = frame & 0xff;
        if number & FRAME != FRAME {
            return false;
        }
        let locker = (number & !FRAME) as usize;
        let delay = self.lockers[locker].dice.spread(20 * US, 100 * MS);
        let hears = Turn::Hears(frame >> 8, Box::new(result.clone()));
        self.schedule(delay, Event::Locker(locker, hears));
        true
    }

    fn locker_tires(&mut self, locker: usize, attempt: u64) {
        let nodes = self.machines.len() as u64;
        let this = &mut self.lockers[locker];
        let asked = this.asked.take_if(|asked| asked.attempt == attempt);
        let Some(asked) = asked else { return };
        this.node = this.dice.between(0, nodes - 1) as usize;
        self.locker_in_doubt(locker, asked.what);
        self.locker_later(locker, MS, 100 * MS);
    }

    /// What was asked may have happened, or may yet. Its place a locker takes again, with the same
    /// key; a place that it may have left it does not come back to.
    fn locker_in_doubt(&mut self, locker: usize, what: What) {
        let this = &mut self.lockers[locker];
        if what == What::Leave
            && let Some(place) = this.place()
        {
            this.enters(place.lease);
        }
    }

    fn locker_hears(&mut self, locker: usize, attempt: u64, result: Result<Response, Error>) {
        let real = self.now;
        let this = &mut self.lockers[locker];
        let asked = this.asked.take_if(|asked| asked.attempt == attempt);
        let Some(asked) = asked else { return };
        self.trace.line(real, None, || {
            format!("u{locker} a{attempt} hears {}", tell::outcome(&result))
        });
        match result {
            Ok(response) => self.locker_answered(locker, asked.what, response),
            Err(error) => self.locker_refused(locker, asked.what, &error),
        }
    }

    fn locker_refused(&mut self, locker: usize, what: What, error: &Error) {
        let nodes = self.machines.len() as u64;
        let this = &mut self.lockers[locker];
        this.node = match error.kind {
            ErrorKind::NotLeader {
                leader: Some(leader),
                ..
            } => place(leader),
            _ => this.dice.between(0, nodes - 1) as usize,
        };
        if let ErrorKind::LeaseNotFound | ErrorKind::LeaseExpired = error.kind {
            this.state = State::Out;
        }
        if error.outcome != Outcome::NotApplied {
            self.locker_in_doubt(locker, what);
        }
        self.locker_later(locker, MS, 60 * MS);
    }

    fn locker_answered(&mut self, locker: usize, what: What, response: Response) {
        let revision = response.header.revision;
        let this = &mut self.lockers[locker];
        let lock = this.lock;
        match (what, response.body) {
            (What::Grant, ResponseBody::LeaseGrant(granted)) => {
                this.enters(LeaseRef {
                    id: granted.id,
                    grant_index: granted.grant_index,
                });
            }
            (What::Enter, ResponseBody::Txn(txn)) => {
                let State::Enters(lease, claim) = this.state else {
                    unreachable!("it does one thing after the other");
                };
                let token = match txn.succeeded {
                    true => Some(revision),
                    false => first_of(&txn.responses[0]).map(|kv| kv.create_revision),
                };
                match token {
                    Some(token) => {
                        this.state = State::Waits(Place {
                            lease,
                            claim,
                            token,
                        });
                    }
                    None => this.enters(lease),
                }
            }
            (What::Look, ResponseBody::Txn(txn)) => {
                let Some(place) = this.place() else { return };
                let own = first_of(&txn.responses[1]);
                let is_there = own.is_some_and(|own| own.create_revision == place.token);
                let is_first = first_of(&txn.responses[0]).is_none();
                match (is_there, is_first) {
                    (true, true) => {
                        this.state = State::Holds(place);
                        let (claim, token) = (place.claim, place.token);
                        self.judge.marks.hit(Mark::LockAcquired);
                        self.judge.claims.push(Claim::Leads {
                            lock,
                            revision,
                            leader: Some((claim, token)),
                        });
                    }
                    (true, false) => self.judge.marks.hit(Mark::LockWaitedFor),
                    (false, _) => this.state = State::Out,
                }
            }
            (What::Leader, ResponseBody::Txn(txn)) => {
                let leader = first_of(&txn.responses[0]);
                let leader = leader.and_then(|kv| Some((place_of(&kv.key)?, kv.create_revision)));
                self.judge.marks.hit(Mark::LeaderSeen);
                self.judge.claims.push(Claim::Leads {
                    lock,
                    revision,
                    leader,
                });
            }
            (What::Write(value), ResponseBody::Txn(txn)) => match txn.into_fenced() {
                Ok(_) => {
                    self.judge.marks.hit(Mark::FencedWriteMade);
                    self.judge.claims.push(Claim::Wrote {
                        lock,
                        revision,
                        value,
                    });
                }
                Err(error) => {
                    assert!(matches!(error.kind, ErrorKind::Fenced { .. }), "{error}");
                    this.state = State::Out;
                    self.judge.marks.hit(Mark::FencedWriteRefused);
                    self.judge.claims.push(Claim::Refused { lock, value });
                }
            },
            (What::Leave, ResponseBody::DeleteRange(_)) => {
                if let Some(place) = this.place() {
                    this.enters(place.lease);
                }
            }
            (What::Renew, ResponseBody::LeaseKeepAlive(kept)) => {
                let is_over = !matches!(kept[0], LeaseKept::Renewed { .. } | LeaseKept::Undecided);
                // Many do not listen.
                if is_over && this.dice.chance(0.3) {
                    this.state = State::Out;
                }
            }
            (_, other) => unreachable!("{other:?} answers something else"),
        }
        self.locker_later(locker, MS, 120 * MS);
    }
}

fn first_of(response: &TxnOpResponse) -> Option<&KeyValue> {
    match response {
        TxnOpResponse::Range(range) => range.kvs.first(),
        _ => None,
    }
}
