//! Holders of client leases: each is granted a lease, hangs its key on it, and renews it for a while,
//! by a clock of its own that drifts like any other.
//!
//! A holder counts from when it *sent* what was acknowledged, and takes off what clocks may differ by
//! (T12). How long it believes in its lease is told to the judge; nothing may end the
//! lease before that (`checkers/client_leases.rs`). Holders stop without a word, sleep too long,
//! revoke, and begin anew with the same key, so that it moves from one lease to the next.

use std::time::Duration;

use leasehold::api::{
    Call, Consistency, Error, ErrorKind, LeaseGrantRequest, LeaseKept, LeaseRef, LeaseTarget,
    PutRequest, Request, Response, ResponseBody,
};
use leasehold::time::Instant;

use crate::clock::{MS, MachineClock, Nanos, US};
use crate::dice::Dice;
use crate::marks::Mark;
use crate::options::Options;
use crate::world::{Event, Work, World, place};
use crate::{history, tell};

/// Frames of holders have this bit, and the holder's number below it.
const FRAME: u64 = 0x80;

/// One holder.
pub(crate) struct Holder {
    clock: MachineClock,
    dice: Dice,
    node: usize,
    held: Option<Held>,
    asked: Option<Asked>,
    /// Only the event scheduled last counts.
    turn: u64,
    /// Clocks differ by so much.
    drift: f64,
    granularity: Duration,
    next_value: u64,
}

struct Held {
    lease: LeaseRef,
    ttl_ms: u64,
    attached: bool,
    /// Its holder stops when its own clock says this.
    until: Instant,
}

struct Asked {
    attempt: u64,
    sent: Instant,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Grant,
    Attach,
    Renew,
    Revoke,
}

impl Holder {
    pub(crate) fn all(options: &Options) -> Vec<Self> {
        let of = |number: usize| {
            let mut dice = Dice::new(options.seed, "holder", number as u64);
            let clock = match options.drift_ppm {
                0 => MachineClock::perfect(0),
                ppm => MachineClock::draw(&mut dice, ppm, false, 0),
            };
            Self {
                clock,
                node: dice.between(0, options.nodes as u64 - 1) as usize,
                dice,
                held: None,
                asked: None,
                turn: 0,
                drift: f64::from(options.timing.max_drift_ppm) / 1e6,
                granularity: options.timing.clock_granularity,
                next_value: (number as u64 + 1) << 40,
            }
        };
        (0..options.holders).map(of).collect()
    }

    /// What a holder may make of a time to live (T12).
    fn usable(&self, ttl_ms: u64) -> Duration {
        let ttl = Duration::from_millis(ttl_ms);
        let kept = ttl.saturating_sub(self.granularity);
        let kept = kept.mul_f64((1.0 - self.drift) / (1.0 + self.drift));
        kept.saturating_sub(self.granularity)
    }
}

impl World {
    /// Every holder will act.
    pub(crate) fn holders_start(&mut self) {
        for holder in 0..self.holders.len() {
            self.holder_later(holder, 10 * MS, 500 * MS);
        }
    }

    fn holder_later(&mut self, holder: usize, least: Nanos, most: Nanos) {
        let this = &mut self.holders[holder];
        this.turn += 1;
        let (turn, delay) = (this.turn, this.dice.between(least, most));
        self.schedule(delay, Event::Holder(holder, turn));
    }

    /// A holder is free to do something.
    pub(crate) fn holder_acts(&mut self, holder: usize, turn: u64) {
        let resting = self.workload.resting || self.healed;
        let now = self.now;
        let this = &mut self.holders[holder];
        if this.turn != turn || resting {
            return;
        }
        let reading = this.clock.read(now);
        if let Some(held) = &this.held
            && reading.possibly_after(held.until)
        {
            // It stopped in time; the lease may be there for a while.
            this.held = None;
        }
        let what = match &this.held {
            None => What::Grant,
            Some(held) if !held.attached => What::Attach,
            Some(_) => match this.dice.between(0, 99) {
                0..=3 => {
                    this.held = None;
                    return self.holder_later(holder, MS, 2_000 * MS);
                }
                4..=6 => What::Revoke,
                7..=9 => return self.holder_later(holder, MS, 3_000 * MS),
                _ => What::Renew,
            },
        };
        self.holder_asks(holder, what);
    }

    fn holder_asks(&mut self, holder: usize, what: What) {
        let attempt = self.workload.next_attempt;
        self.workload.next_attempt += 1;
        let now = self.now;
        let this = &mut self.holders[holder];
        let lease = this.held.as_ref().map(|held| held.lease);
        let lease = lease.unwrap_or_default();
        let request = match what {
            What::Grant => Request::LeaseGrant(LeaseGrantRequest {
                ttl_ms: this.dice.between(500, 4_000) as i64,
                ..LeaseGrantRequest::default()
            }),
            What::Attach => {
                this.next_value += 1;
                Request::Put(PutRequest {
                    key: key(holder),
                    value: history::bytes(this.next_value),
                    lease: LeaseTarget::Lease(lease),
                    ..PutRequest::default()
                })
            }
            What::Renew => Request::LeaseKeepAlive(vec![lease]),
            What::Revoke => Request::LeaseRevoke(lease),
        };
        let sent = this.clock.read(now);
        this.asked = Some(Asked {
            attempt,
            sent,
            what,
        });
        let patience = this.dice.between(100 * MS, 900 * MS);
        let delay = this.dice.spread(20 * US, 20 * MS);
        let node = this.node;
        let call = Call {
            timeout_ms: (patience / MS) as u32,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request,
        };
        self.trace.line(now, Some(node), || {
            format!("<~ h{holder} a{attempt} {}", tell::call(&call))
        });
        self.schedule(patience, Event::HolderTires(holder, attempt));
        if self.machines[node].client_cuts == 0 && self.machines[node].process.is_some() {
            let frame = attempt << 8 | FRAME | holder as u64;
            let work = Work::Arrives(150 + holder, frame, Box::new(call));
            self.schedule_work(delay, node, work);
        }
    }

    /// A session answers a frame of a holder; false if the frame is of nobody here.
    pub(crate) fn reply_to_holder(&mut self, frame: u64, result: &Result<Response, Error>) -> bool {
        let number = frame & 0xff;
        if number & FRAME == 0 {
            return false;
        }
        let holder = (number & !FRAME) as usize;
        // Late answers are what T12 is about.
        let delay = self.holders[holder].dice.spread(20 * US, 400 * MS);
        let hears = Event::HolderHears(holder, frame >> 8, Box::new(result.clone()));
        self.schedule(delay, hears);
        true
    }

    /// No answer came.
    pub(crate) fn holder_tires(&mut self, holder: usize, attempt: u64) {
        let nodes = self.machines.len() as u64;
        let this = &mut self.holders[holder];
        if this
            .asked
            .as_ref()
            .is_some_and(|asked| asked.attempt == attempt)
        {
            this.asked = None;
            this.node = this.dice.between(0, nodes - 1) as usize;
            self.holder_later(holder, MS, 100 * MS);
        }
    }

    /// An answer came.
    pub(crate) fn holder_hears(
        &mut self,
        holder: usize,
        attempt: u64,
        result: Result<Response, Error>,
    ) {
        let real = self.now;
        let nodes = self.machines.len() as u64;
        let this = &mut self.holders[holder];
        let asked = this.asked.take_if(|asked| asked.attempt == attempt);
        let Some(asked) = asked else {
            return;
        };
        self.trace.line(real, None, || {
            format!("h{holder} a{attempt} hears {}", tell::outcome(&result))
        });
        let body = match result {
            Ok(response) => response.body,
            Err(error) => return self.holder_refused(holder, asked.what, &error),
        };
        match body {
            ResponseBody::LeaseGrant(granted) => {
                let lease = LeaseRef {
                    id: granted.id,
                    grant_index: granted.grant_index,
                };
                let until = asked.sent + this.usable(granted.ttl_ms);
                this.held = Some(Held {
                    lease,
                    ttl_ms: granted.ttl_ms,
                    attached: false,
                    until,
                });
                let trusted = this.clock.trusted_until(real, until);
                self.judge.holds(real, lease.id, trusted);
                self.holder_later(holder, 0, 5 * MS);
            }
            ResponseBody::Put(_) => {
                if let Some(held) = &mut this.held {
                    held.attached = true;
                }
                self.holder_later(holder, MS, 100 * MS);
            }
            ResponseBody::LeaseKeepAlive(kept) => {
                let Some(held) = &mut this.held else { return };
                let (id, ttl) = (held.lease.id, held.ttl_ms * MS);
                match kept[0] {
                    LeaseKept::Renewed { ttl_ms, .. } => {
                        let until = asked.sent + this.usable(ttl_ms);
                        let held = this.held.as_mut().expect("it was there");
                        held.until = held.until.max(until);
                        let trusted = this.clock.trusted_until(real, until);
                        self.judge.marks.hit(Mark::LeaseRenewed);
                        self.judge.holds(real, id, trusted);
                        self.holder_later(holder, ttl / 4, ttl / 3);
                    }
                    LeaseKept::Undecided => {
                        self.judge.marks.hit(Mark::RenewalUndecided);
                        self.holder_later(holder, 10 * MS, 60 * MS);
                    }
                    LeaseKept::NotFound | LeaseKept::Expired | LeaseKept::Revoked => {
                        this.held = None;
                        self.judge.told_over(id);
                        self.holder_later(holder, MS, 300 * MS);
                    }
                }
            }
            _ => {
                this.held = None;
                this.node = this.dice.between(0, nodes - 1) as usize;
                self.holder_later(holder, MS, 300 * MS);
            }
        }
    }

    fn holder_refused(&mut self, holder: usize, what: What, error: &Error) {
        let nodes = self.machines.len() as u64;
        let this = &mut self.holders[holder];
        this.node = match error.kind {
            ErrorKind::NotLeader {
                leader: Some(leader),
                ..
            } => place(leader),
            _ => this.dice.between(0, nodes - 1) as usize,
        };
        let lost = matches!(
            error.kind,
            ErrorKind::LeaseNotFound | ErrorKind::LeaseExpired
        );
        if lost && let Some(held) = this.held.take() {
            self.judge.told_over(held.lease.id);
        } else if what == What::Revoke {
            // It may be revoked: nothing is to be counted on any more.
            this.held = None;
        }
        self.holder_later(holder, MS, 60 * MS);
    }
}

/// The key that a holder hangs on its leases.
pub(crate) fn key(holder: usize) -> bytes::Bytes {
    format!("l{holder}").into()
}
