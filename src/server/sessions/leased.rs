//! Reads of one key: under the lease, on a permit of the driver, or on nobody's word.
//!
//! A leased read takes these steps, and their order makes it linearizable (lease-protocol 5.5,
//! P20, A1, A7):
//!
//! 1. The batch is closed: every read in it has arrived and been read from its frame.
//! 2. The commit index is captured: what the reads must see. The lease of the leadership that is
//!    current now is loaded.
//! 3. The store is read. What is found contains an applied index, loaded before the lookup.
//! 4. The pair of clocks is read, once for the batch, and the lease asked whether it still holds.
//! 5. Whatever was found in a state at or past the captured index is sent. What the lease does not
//!    cover, or what was looked for too early, goes to the driver as any other request does.
//!
//! Nothing of this is kept for the next batch: a check, a clock reading or a state older than the
//! request is what makes stale reads (P20). A batch ends early if what it found is large; the rest
//! of it starts over at step 2.
//!
//! On the way nothing is allocated but the replies: requests are read where they lie, records are
//! shared with the store's cache and copied once, into the reply.

use crate::api::Consistency;
use crate::api::Error;
use crate::api::ReadPath;
use crate::node::Authority;
use crate::node::Source;
use crate::raft::LeaseCell;
use crate::raft::ReadPermit;
use crate::server::disk::store::Point;
use crate::server::disk::store::StoreError;
use crate::server::metrics::ReadFallback;
use crate::server::metrics::stopwatch;
use crate::time::Clock;
use crate::transport::FrameReceiver;
use crate::transport::StreamError;
use crate::types::LogIndex;
use crate::wire::Frame;
use crate::wire::client::ClientFrame;
use crate::wire::point::EncodedHeader;
use crate::wire::point::POINT_REPLY_BYTES;
use crate::wire::point::PointRead;
use crate::wire::point::Record;
use crate::wire::point::Wanted;
use crate::wire::point::encode_point_reply;

use super::lease_invalid;
use super::not_readable;
use super::stream::REPLIES_BYTES;
use super::stream::Session;

/// A read of a batch, and in which of the batch's frames it lies.
pub(super) struct Asked {
    pub(super) frame: usize,
    pub(super) read: PointRead,
}

impl Session {
    /// Answers the linearizable reads of a closed batch of frames, as far as the lease covers them.
    pub(super) fn read_under_lease(
        &mut self,
        receiver: &FrameReceiver,
        frames: &[Frame],
        reads: &[Asked],
    ) -> Result<(), StreamError> {
        let mut rest = reads;
        while !rest.is_empty() {
            let done = self.read_round(receiver, frames, rest)?;
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Answers some of `reads`, from the front; says how many.
    fn read_round(
        &mut self,
        receiver: &FrameReceiver,
        frames: &[Frame],
        reads: &[Asked],
    ) -> Result<usize, StreamError> {
        let shared = self.shared.clone();
        let measured = shared.sampler.take(reads.len() as u64).then(stopwatch);
        // The batch is closed. Capture what the reads must see, and this leadership's lease.
        let commit = shared.published.commit();
        let lease = shared.published.lease();
        let Some(lease) = lease.filter(|_| self.is_readable()) else {
            // A lease says nothing about a state that has not been compared with its hash yet.
            return self.hand_on_reads(receiver, frames, reads, |_, _| true);
        };
        let mut found = std::mem::take(&mut self.found);
        let result = self.look_up(frames, reads, &mut found);
        let reads = &reads[..found.len()];
        let done = match result {
            Err(error) => {
                let refusal = shared.fail(error);
                for asked in reads {
                    self.reply(asked.read.request_id, "range", Err(refusal.clone()));
                }
                Ok(reads.len())
            }
            // Only now the clock: one reading and one check for the whole batch.
            Ok(bytes) => match check(&lease, &*shared.clock, commit) {
                Some(permit) => {
                    self.replies
                        .reserve(bytes + reads.len() * POINT_REPLY_BYTES);
                    self.answer_leased(receiver, frames, reads, &mut found, permit)
                }
                None => self.hand_on_reads(receiver, frames, reads, Self::may_fall_back),
            },
        };
        found.clear();
        self.found = found;
        if let Some(arrived) = measured {
            let took = arrived.elapsed().as_secs_f64();
            let metrics = &shared.metrics;
            metrics.reads.duration_seconds(ReadPath::Lease).record(took);
            metrics.requests.duration_seconds("range").record(took);
        }
        done
    }

    /// Looks the keys up one after the other, until what was found fills a write. Of an error, the
    /// read that met it counts as found.
    fn look_up(
        &self,
        frames: &[Frame],
        reads: &[Asked],
        found: &mut Vec<Option<Point>>,
    ) -> Result<usize, StoreError> {
        let mut bytes = 0;
        for asked in reads {
            let point = self.shared.store.get(asked.read.key(&frames[asked.frame]));
            let point = match point {
                Ok(point) => point,
                Err(error) => {
                    found.resize_with(reads.len(), || None);
                    return Err(error);
                }
            };
            bytes += point
                .record
                .as_ref()
                .map_or(0, |record| record.encoded().len());
            found.push(Some(point));
            if bytes >= REPLIES_BYTES {
                break;
            }
        }
        Ok(bytes)
    }

    fn answer_leased(
        &mut self,
        receiver: &FrameReceiver,
        frames: &[Frame],
        reads: &[Asked],
        found: &mut [Option<Point>],
        permit: ReadPermit,
    ) -> Result<usize, StreamError> {
        let mut header = None;
        let mut served = 0;
        for (asked, point) in reads.iter().zip(found) {
            let point = point.take().expect("the lookups were made");
            let authority = Authority::Permit(permit);
            if self.answer_point(
                (asked.read.request_id, asked.read.wanted),
                authority,
                point,
                &mut header,
            ) {
                served += 1;
            } else {
                // The state machine is not there yet: the read waits for it at the driver.
                self.count_fallback(ReadFallback::Behind);
                self.hand_on_read(receiver, &frames[asked.frame])?;
            }
        }
        let metrics = &self.shared.metrics;
        metrics.reads.total(ReadPath::Lease).increment(served);
        metrics.requests.succeeded("range").increment(served);
        if let Some(remaining) = permit.lease_remaining()
            && served > 0
        {
            let margin = &metrics.leader_lease.read_margin_seconds;
            margin.record(remaining.as_secs_f64());
        }
        Ok(reads.len())
    }

    /// Appends the reply to the read of a key; false if `point` is older than `authority` demands.
    fn answer_point(
        &mut self,
        (request_id, wanted): (u64, Wanted),
        authority: Authority,
        point: Point,
        header: &mut Option<HeaderOf>,
    ) -> bool {
        let source = Source {
            found: point.record,
            applied: point.applied,
            revision: point.revision,
        };
        let Some(answer) = self.shared.reader.answer(authority, source) else {
            return false;
        };
        let is_same = header.as_ref().is_some_and(|header| {
            header.revision == answer.revision && header.applied == answer.read.applied_index
        });
        if !is_same {
            *header = Some(HeaderOf {
                revision: answer.revision,
                applied: answer.read.applied_index,
                encoded: EncodedHeader::new(&self.shared.header_of(&answer)),
            });
        }
        let header = header.as_ref().expect("it was just made");
        let record: Option<&Record> = answer.found.as_ref();
        let limits = &self.shared.frame_limits;
        let encoded = encode_point_reply(
            request_id,
            &header.encoded,
            record,
            wanted,
            limits,
            &mut self.replies,
        );
        if let Err(error) = encoded {
            self.refuse_too_long(request_id, false, error);
        }
        true
    }

    /// A read of one key on whatever this node has applied.
    pub(super) fn read_serializable(&mut self, read: &PointRead, key: &[u8]) {
        if !self.is_readable() {
            return self.reply(read.request_id, "range", Err(not_readable()));
        }
        self.read_point((read.request_id, read.wanted), key, Authority::Serializable);
    }

    /// A read of one key that needs no lease any more: the driver has permitted it, and the store
    /// has applied what it must see; or nothing is demanded.
    pub(super) fn read_point(
        &mut self,
        (request_id, wanted): (u64, Wanted),
        key: &[u8],
        authority: Authority,
    ) {
        let point = match self.shared.store.get(key) {
            Ok(point) => point,
            Err(error) => {
                let refusal = self.shared.fail(error);
                return self.reply(request_id, "range", Err(refusal));
            }
        };
        if !self.answer_point((request_id, wanted), authority, point, &mut None) {
            return self.reply(request_id, "range", Err(behind()));
        }
        let metrics = &self.shared.metrics;
        metrics.reads.total(path_of(authority)).increment(1);
        metrics.requests.succeeded("range").increment(1);
    }

    /// Sends to the driver those of `reads` that `may_go`; it has answered the others.
    fn hand_on_reads(
        &mut self,
        receiver: &FrameReceiver,
        frames: &[Frame],
        reads: &[Asked],
        may_go: impl Fn(&mut Self, &PointRead) -> bool,
    ) -> Result<usize, StreamError> {
        for asked in reads {
            if may_go(self, &asked.read) {
                self.hand_on_read(receiver, &frames[asked.frame])?;
            }
        }
        Ok(reads.len())
    }

    fn hand_on_read(&mut self, receiver: &FrameReceiver, frame: &Frame) -> Result<(), StreamError> {
        let ClientFrame { request_id, call } = receiver.decode(frame)?;
        self.hand_on(request_id, call, frame.body.len());
        Ok(())
    }

    /// A leader's read that its lease does not cover; false if the reader insists on the lease.
    fn may_fall_back(&mut self, read: &PointRead) -> bool {
        if read.consistency == Consistency::LeaseOnly {
            self.reply(read.request_id, "range", Err(lease_invalid()));
            return false;
        }
        let reason = if self.shared.lease_enabled {
            ReadFallback::LeaseInvalid
        } else {
            ReadFallback::Disabled
        };
        self.count_fallback(reason);
        true
    }

    fn count_fallback(&self, reason: ReadFallback) {
        self.shared.metrics.reads.fallbacks(reason).increment(1);
    }
}

/// Replies of one batch differ in their header only if the store moved on between two lookups.
struct HeaderOf {
    revision: i64,
    applied: LogIndex,
    encoded: EncodedHeader,
}

/// Asks the lease, with a reading taken here and now: after the store was read.
pub(super) fn check(lease: &LeaseCell, clock: &dyn Clock, commit: LogIndex) -> Option<ReadPermit> {
    lease.permit(clock.now(), commit)
}

pub(super) fn path_of(authority: Authority) -> ReadPath {
    match authority {
        Authority::Permit(permit) if permit.lease_remaining().is_some() => ReadPath::Lease,
        Authority::Permit(_) => ReadPath::ReadIndex,
        Authority::Serializable => ReadPath::Serializable,
    }
}

fn behind() -> Error {
    Error::not_applied(
        crate::api::ErrorKind::Internal,
        "the store is behind what consensus reported as applied",
    )
}
