//! Reads of one key: under the lease, on what this node can prove of its state's age, on a permit
//! of the driver, or on nobody's word.
//!
//! A leased read takes these steps, and their order makes it linearizable (P20, A1, A7):
//!
//! 1. The batch is closed: every read in it has arrived and been read from its frame.
//! 2. The commit index is captured: what the reads must see. The lease of the leadership that is
//!    current now is loaded, and what is known of the age of this node's state.
//! 3. The store is read. What is found contains an applied index, loaded before the lookup.
//! 4. The pair of clocks is read, once for the batch, and the lease asked whether it still holds.
//! 5. Whatever was found in a state at or past the captured index is sent. What the lease does not
//!    cover, or what was looked for too early, goes to the driver as any other request does.
//!
//! Nothing of this is kept for the next batch: a check, a clock reading or a state older than the
//! request is what makes stale reads (P20). A batch ends early if what it found is large; the rest
//! of it starts over at step 2. Reads that want less than the lease take the same steps, and
//! [`Authority::for_read`] says what each may be answered on.
//!
//! On the way nothing is allocated but the replies: requests are read where they lie, records are
//! shared with the store's cache and copied once, into the reply.

use std::sync::Arc;

use crate::api::{Consistency, Error, ErrorKind, ReadPath};
use crate::kv::access::{Policy, Rules};
use crate::node::{Authority, Source};
use crate::raft::{Freshness, LeaseCell, ReadPermit, StaleBound};
use crate::server::disk::store::{Point, StoreError};
use crate::server::metrics::{Phase, ReadFallback, Sampler, stopwatch};
use crate::time::Clock;
use crate::types::LogIndex;
use crate::wire::client::ClientFrame;
use crate::wire::point::{EncodedHeader, POINT_REPLY_BYTES, PointRead, Wanted, encode_point_reply};
use crate::wire::{Frame, WireError};

use super::phases::Phases;
use super::stream::{REPLIES_BYTES, Session, call_of};
use super::{Sessions, lease_invalid, not_readable};
use crate::server::session::slow_log::{Outcome, Told};

/// A read of a batch, and in which of the batch's frames it lies.
pub(super) struct Asked {
    pub(super) frame: usize,
    pub(super) read: PointRead,
}

/// What is captured before the store is read.
pub(super) struct Captured {
    commit: LogIndex,
    lease: Option<Arc<LeaseCell>>,
    freshness: Option<Arc<Freshness>>,
}

/// What may be said once the store was read.
#[derive(Clone, Copy)]
pub(super) struct Judged {
    permit: Option<ReadPermit>,
    bound: Option<StaleBound>,
}

impl Captured {
    /// For reads that have all arrived.
    pub(super) fn now(shared: &Sessions) -> Self {
        Self {
            commit: shared.published.commit(),
            lease: shared.published.lease(),
            freshness: shared.published.freshness(),
        }
    }

    /// Whether a read may be served here at all, so that it is worth a look at the store.
    fn may_serve(&self, consistency: Consistency) -> bool {
        match consistency {
            Consistency::Linearizable | Consistency::LeaseOnly => self.lease.is_some(),
            Consistency::MaxStaleness(_) => self.lease.is_some() || self.freshness.is_some(),
            Consistency::Serializable => true,
            Consistency::LinearizableQuorum => false,
        }
    }

    /// Asks the lease and the age, with one reading of the clock taken here and now: after the
    /// store was read. `wants_lease`: some read does, so that one refused by it counts.
    pub(super) fn judge(&self, clock: &dyn Clock, wants_lease: bool) -> Judged {
        let now = clock.now();
        let lease = self.lease.as_deref().filter(|_| wants_lease);
        let freshness = self.freshness.as_deref();
        Judged {
            permit: lease.and_then(|lease| lease.permit(now, self.commit)),
            bound: freshness.map(|freshness| freshness.bound(now)),
        }
    }

    /// Why a read goes to the driver, to be counted; `Err` if it insists on a lease that is void.
    pub(super) fn fall_back(
        &self,
        shared: &Sessions,
        consistency: Consistency,
    ) -> Result<(), Error> {
        let reads = &shared.metrics.reads;
        if self.lease.is_none() || !wants_lease(consistency) {
            if matches!(consistency, Consistency::MaxStaleness(_)) {
                reads.fallbacks(ReadFallback::TooOld).increment(1);
            }
            return Ok(());
        }
        if consistency == Consistency::LeaseOnly {
            return Err(lease_invalid());
        }
        let reason = match shared.lease_enabled {
            true => ReadFallback::LeaseInvalid,
            false => ReadFallback::Disabled,
        };
        reads.fallbacks(reason).increment(1);
        Ok(())
    }
}

impl Judged {
    pub(super) fn authority(self, consistency: Consistency) -> Option<Authority> {
        Authority::for_read(consistency, self.permit, self.bound)
    }
}

/// Whether a read is better served under the lease than in any other way.
pub(super) fn wants_lease(consistency: Consistency) -> bool {
    match consistency {
        Consistency::Linearizable | Consistency::LeaseOnly | Consistency::MaxStaleness(_) => true,
        Consistency::LinearizableQuorum | Consistency::Serializable => false,
    }
}

impl Session {
    /// Answers reads of a closed batch of frames as far as this node may by itself: some of
    /// `reads`, from the front, at least one. Says how many, so that what was found can be written
    /// before more is looked up.
    pub(super) fn read_round(
        &mut self,
        frames: &[Frame],
        reads: &[Asked],
    ) -> Result<usize, WireError> {
        let shared = self.shared.clone();
        let measured = shared.sampler.take(reads.len() as u64).then(stopwatch);
        let replied = self.replies.len();
        if !self.is_readable() {
            return self.read_unverified(frames, reads);
        }
        // The batch is closed. Capture what the reads must see, and this leadership's lease.
        let captured = Captured::now(&shared);
        let mut found = std::mem::take(&mut self.found);
        let looked_up = self.look_up(&captured, frames, reads, &mut found);
        let reads = &reads[..found.len()];
        let done = match looked_up {
            Ok(bytes) => {
                self.replies
                    .reserve(bytes + reads.len() * POINT_REPLY_BYTES);
                self.answer_round(&captured, frames, reads, &mut found)
            }
            Err(error) => {
                let refusal = shared.fail(error);
                for asked in reads {
                    self.reply(asked.read.request_id, "range", Err(refusal.clone()));
                }
                Ok(reads.len())
            }
        };
        found.clear();
        self.found = found;
        if let Some(arrived) = measured {
            self.note_round(arrived, frames, reads, self.replies.len() - replied);
        }
        done
    }

    /// Accounts for the time of a round that is measured: all of it went to the look at the store.
    #[cold]
    fn note_round(
        &self,
        arrived: std::time::Instant,
        frames: &[Frame],
        reads: &[Asked],
        reply_bytes: usize,
    ) {
        let now = stopwatch();
        let mut phases = Phases::begin(arrived);
        phases.until(Phase::Storage, now);
        let (shared, took) = (&self.shared, phases.total().as_secs_f64());
        let metrics = &shared.metrics;
        metrics.reads.duration_seconds(ReadPath::Lease).record(took);
        metrics.requests.duration_seconds("range").record(took);
        shared.account(now, &phases, Sampler::EVERY, || Told {
            method: "range",
            outcome: Outcome::read(ReadPath::Lease, shared.store.revision()),
            request_bytes: reads
                .iter()
                .map(|asked| frames[asked.frame].body.len())
                .sum(),
            reply_bytes,
            beside: reads.len().saturating_sub(1),
        });
    }

    /// A lease says nothing about a state that has not been compared with its hash yet, and nobody
    /// may see that. Linearizable reads wait at the driver, where the state may get verified in time.
    fn read_unverified(&mut self, frames: &[Frame], reads: &[Asked]) -> Result<usize, WireError> {
        for asked in reads {
            match asked.read.consistency {
                Consistency::Serializable => {
                    self.reply(asked.read.request_id, "range", Err(not_readable()));
                }
                _ => self.hand_on_read(&frames[asked.frame])?,
            }
        }
        Ok(reads.len())
    }

    /// Looks the keys up one after the other, until what was found fills a write. If the store
    /// fails, all that were asked for count as looked up.
    fn look_up(
        &self,
        captured: &Captured,
        frames: &[Frame],
        reads: &[Asked],
        found: &mut Vec<Option<Point>>,
    ) -> Result<usize, StoreError> {
        let mut bytes = 0;
        for Asked { frame, read } in reads {
            if !captured.may_serve(read.consistency) {
                found.push(None);
                continue;
            }
            match self.shared.store.get(read.key(&frames[*frame])) {
                Ok(point) => {
                    let record = point.record.as_ref();
                    bytes += record.map_or(0, |record| record.encoded().len());
                    found.push(Some(point));
                }
                Err(error) => {
                    found.resize_with(reads.len(), || None);
                    return Err(error);
                }
            }
            if bytes >= REPLIES_BYTES {
                break;
            }
        }
        Ok(bytes)
    }

    fn answer_round(
        &mut self,
        captured: &Captured,
        frames: &[Frame],
        reads: &[Asked],
        found: &mut [Option<Point>],
    ) -> Result<usize, WireError> {
        // Only now the clock: one reading and one check for the whole batch.
        let wants_lease = reads
            .iter()
            .any(|asked| wants_lease(asked.read.consistency));
        let judged = captured.judge(&*self.shared.clock, wants_lease);
        // After the lookup: the rules are no older than what was found.
        let rules = self.shared.access.rules();
        let rules = rules.as_deref().map(|policy| self.rules_of(policy));
        let mut headers = Headers::default();
        let mut served = Served::default();
        for (asked, point) in reads.iter().zip(found) {
            let read = &asked.read;
            let key = read.key(&frames[asked.frame]);
            let refusal = rules.as_ref().and_then(|rules| may_read(rules, key).err());
            let authority = judged.authority(read.consistency);
            match (authority, point.take()) {
                (Some(authority), Some(point)) => {
                    if let Some(error) = refusal {
                        // Rules that are older than what is asked for refuse nothing.
                        let source = Source {
                            found: (),
                            applied: point.applied,
                            revision: point.revision,
                        };
                        let reader = self.shared.reader;
                        if reader
                            .answer(authority, read.min_revision, source)
                            .is_some()
                        {
                            self.deny_read(read.request_id, key, error);
                            continue;
                        }
                    } else if self.answer_point(read.into(), authority, point, &mut headers) {
                        served.count(authority);
                        continue;
                    }
                    // The state machine is not there yet: the read waits for it at the driver.
                    self.shared.count_behind(read.min_revision);
                }
                _ => {
                    if let Err(error) = captured.fall_back(&self.shared, read.consistency) {
                        self.reply(read.request_id, "range", Err(error));
                        continue;
                    }
                }
            }
            self.hand_on_read(&frames[asked.frame])?;
        }
        served.report(&self.shared, judged);
        Ok(reads.len())
    }

    /// Appends the reply to the read of a key; false if `point` is older than is demanded.
    fn answer_point(
        &mut self,
        wish: Wish,
        authority: Authority,
        point: Point,
        headers: &mut Headers,
    ) -> bool {
        let source = Source {
            found: point.record,
            applied: point.applied,
            revision: point.revision,
        };
        let reader = self.shared.reader;
        let Some(answer) = reader.answer(authority, wish.min_revision, source) else {
            return false;
        };
        let is_same = headers
            .last
            .as_ref()
            .is_some_and(|last| last.revision == answer.revision && last.read == answer.read);
        if !is_same {
            headers.last = Some(Header {
                revision: answer.revision,
                read: answer.read,
                encoded: EncodedHeader::new(&self.shared.header_of(&answer)),
            });
        }
        let header = headers.last.as_ref().expect("it was just made");
        let encoded = encode_point_reply(
            wish.request_id,
            &header.encoded,
            answer.found.as_ref(),
            wish.wanted,
            &self.shared.frame_limits,
            &mut self.replies,
        );
        if let Err(error) = encoded {
            self.refuse_too_long(wish.request_id, false, error);
        }
        true
    }

    /// A read of one key that the driver let go: on its permit, or as a serializable one that has
    /// waited for its revision. Nothing is demanded of the clock any more.
    /// How it ended is for the log.
    pub(super) fn read_released(
        &mut self,
        wish: Wish,
        key: &[u8],
        permit: Option<ReadPermit>,
    ) -> Outcome {
        let captured = Captured::now(&self.shared);
        let point = match self.shared.store.get(key) {
            Ok(point) => point,
            Err(error) => {
                let refusal = self.shared.fail(error);
                return self.refuse_read(wish, refusal);
            }
        };
        let authority = released_authority(&self.shared, &captured, permit);
        if let Some(policy) = self.shared.access.rules()
            && let Err(error) = may_read(&self.rules_of(&policy), key)
        {
            let outcome = Outcome::refused(&error);
            self.deny_read(wish.request_id, key, error);
            return outcome;
        }
        let outcome = Outcome::read(authority.path(), point.revision);
        let mut served = Served::default();
        if self.answer_point(wish, authority, point, &mut Headers::default()) {
            served.count(authority);
        } else {
            return self.refuse_read(wish, behind());
        }
        served.report(
            &self.shared,
            Judged {
                permit: None,
                bound: None,
            },
        );
        outcome
    }

    fn refuse_read(&mut self, wish: Wish, error: Error) -> Outcome {
        let outcome = Outcome::refused(&error);
        self.reply(wish.request_id, "range", Err(error));
        outcome
    }

    /// What `policy` allows to who is at the other end.
    fn rules_of<'p>(&self, policy: &'p Policy) -> Result<&'p Rules, Error> {
        let identity = self.who().identity()?;
        policy.rules(&identity)
    }

    fn hand_on_read(&mut self, frame: &Frame) -> Result<(), WireError> {
        let ClientFrame { request_id, call } = call_of(frame)?;
        self.hand_on(request_id, call, None, frame.body.len());
        Ok(())
    }
}

/// Whether `key` may be read by `rules`.
fn may_read(rules: &Result<&Rules, Error>, key: &[u8]) -> Result<(), Error> {
    match rules {
        Ok(rules) if rules.may_read(key) => Ok(()),
        Ok(rules) => Err(rules.read_denied(key)),
        Err(refusal) => Err(refusal.clone()),
    }
}

/// On whose word a read is answered that the driver let go; the store was looked at.
pub(super) fn released_authority(
    shared: &Sessions,
    captured: &Captured,
    permit: Option<ReadPermit>,
) -> Authority {
    match permit {
        Some(permit) => Authority::Permit(permit),
        None => Authority::Serializable(captured.judge(&*shared.clock, false).bound),
    }
}

impl Sessions {
    /// The state machine has not reached what a read must see: it waits at the driver.
    pub(super) fn count_behind(&self, min_revision: i64) {
        let reason = match min_revision > self.store.revision() {
            true => ReadFallback::Revision,
            false => ReadFallback::Behind,
        };
        self.metrics.reads.fallbacks(reason).increment(1);
    }
}

pub(super) fn behind() -> Error {
    Error::not_applied(
        ErrorKind::Internal,
        "the store is behind what consensus reported as applied",
    )
}

/// What the reply to a read of one key depends on, beside what is found.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) request_id: u64,
    pub(super) wanted: Wanted,
    pub(super) min_revision: i64,
}

impl From<&PointRead> for Wish {
    fn from(read: &PointRead) -> Self {
        Self {
            request_id: read.request_id,
            wanted: read.wanted,
            min_revision: read.min_revision,
        }
    }
}

/// Replies of one batch differ in their header only if the store moved on between two lookups, or
/// if they are served in different ways.
#[derive(Default)]
struct Headers {
    last: Option<Header>,
}

struct Header {
    revision: i64,
    read: crate::api::ReadInfo,
    encoded: EncodedHeader,
}

/// How many reads of a batch were served, and how. Counted once for the batch.
#[derive(Default)]
struct Served {
    paths: [u64; 4],
}

const PATHS: [ReadPath; 4] = [
    ReadPath::Lease,
    ReadPath::ReadIndex,
    ReadPath::Serializable,
    ReadPath::Follower,
];

impl Served {
    fn count(&mut self, authority: Authority) {
        let place = match authority.path() {
            ReadPath::Lease => 0,
            ReadPath::ReadIndex => 1,
            ReadPath::Serializable => 2,
            ReadPath::Follower => 3,
        };
        self.paths[place] += 1;
    }

    fn report(&self, shared: &Sessions, judged: Judged) {
        let metrics = &shared.metrics;
        for (path, count) in PATHS.into_iter().zip(self.paths) {
            if count > 0 {
                metrics.reads.total(path).increment(count);
            }
        }
        let all = self.paths.iter().sum();
        metrics.requests.succeeded("range").increment(all);
        metrics.mvcc.ranges.increment(all);
        let remaining = judged.permit.and_then(|permit| permit.lease_remaining());
        if let Some(remaining) = remaining
            && self.paths[0] > 0
        {
            let margin = &metrics.leader_lease.read_margin_seconds;
            margin.record(remaining.as_secs_f64());
        }
        if let Some(bound) = judged.bound
            && self.paths[2] > 0
        {
            let staleness = &metrics.reads.staleness_seconds;
            staleness.record(bound.staleness().as_secs_f64());
        }
    }
}
