//! Reads of one key: under the lease, on what this node can prove of its state's age, on a permit
//! of the driver, or serializable.
//!
//! The steps and their order are those of [`leased_read`](crate::node::Captured). A batch ends early
//! if what it found is large; the rest of it starts over.
//!
//! On the way nothing is allocated but the replies: requests are read where they lie, records are
//! shared with the store's cache and copied once, into the reply.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;

use super::dispatch::{REPLIES_BYTES, Session};
use super::pending::call_of;
use super::phases::Phases;
use super::refusals::{behind, lease_invalid, not_readable};
use super::shared::Sessions;
use crate::api::{Consistency, Error, ReadPath, TraceParent};
use crate::kv::access::{Policy, Rules};
use crate::node::{Answer, Captured, Demand, Judged, Looked, Read, ReadResult, Source};
use crate::raft::ReadPermit;
use crate::server::disk::store::{Point, StoreError};
use crate::server::metrics::{OperationKind, Phase, Sampler, stopwatch};
use crate::server::session::slow_log::{Outcome, Summary};
use crate::wire::client::{ClientFrame, ServerFrame};
use crate::wire::point::{
    EncodedHeader, POINT_REPLY_BYTES, PointRead, Projection, Record, encode_point_reply,
};
use crate::wire::{Door, Frame, FrameReader, HEADER_BYTES, RequestContext, WireError};

/// Reads of a batch, with the record that each found.
type LookedRecords<'r> = Looked<&'r [IndexedRead], Option<Record>>;

/// A read of a batch, and in which of the batch's frames it lies.
pub(super) struct IndexedRead {
    pub(super) frame: usize,
    pub(super) read: PointRead,
}

impl Read for IndexedRead {
    fn consistency(&self) -> Consistency {
        self.read.consistency
    }

    fn min_revision(&self) -> i64 {
        self.read.min_revision
    }
}

impl Session {
    /// Answers reads of a closed batch of frames as far as this node may by itself: some of
    /// `reads`, from the front, at least one. Says how many, so that what was found can be written
    /// before more is read.
    pub(super) fn read_round(
        &mut self,
        frames: &[Frame],
        reads: &[IndexedRead],
    ) -> Result<usize, WireError> {
        let shared = self.shared.clone();
        let measured = shared
            .accounting
            .sampler
            .take(reads.len() as u64)
            .then(stopwatch);
        let traced = (!self.joined_reads.is_empty()).then(stopwatch);
        let replied = self.replies.len();
        if !self.is_readable() {
            return self.read_unverified(frames, reads);
        }
        // The batch is closed.
        let captured = Captured::of(
            reads,
            shared.serving.store.shown(),
            &shared.node.published,
            std::mem::take(&mut self.found),
        );
        let (looked_up, done) = match self.look_up(captured, frames) {
            Ok((looked, bytes)) => {
                // Only now the clock: one reading and one check for the whole batch.
                let judged = looked.judge(&*shared.node.clock);
                let count = judged.len();
                self.replies.reserve(bytes + count * POINT_REPLY_BYTES);
                (count, self.answer_round(&shared, judged, frames))
            }
            Err(error) => {
                let refusal = shared.fail(error);
                for indexed in reads {
                    self.reply(indexed.read.request_id, "range", Err(refusal.clone()));
                }
                (reads.len(), Ok(()))
            }
        };
        let reads = &reads[..looked_up];
        if let Some(arrived) = measured {
            self.note_round(arrived, frames, reads, self.replies.len() - replied);
        }
        if let Some(arrived) = traced {
            self.tell_round(arrived, frames, reads, replied);
        }
        done.map(|()| looked_up)
    }

    /// Accounts for the time of a measured round: all of it went to reading the store.
    #[cold]
    fn note_round(
        &self,
        arrived: std::time::Instant,
        frames: &[Frame],
        reads: &[IndexedRead],
        reply_bytes: usize,
    ) {
        let now = stopwatch();
        let mut phases = Phases::begin(arrived);
        phases.until(Phase::Storage, now);
        let (shared, took) = (&self.shared, phases.total().as_secs_f64());
        let metrics = &shared.accounting.metrics;
        metrics.reads.duration_seconds[ReadPath::Lease].record(took);
        shared.accounting.latencies.reads.record(phases.total());
        metrics.requests.duration_seconds.of("range").record(took);
        shared.accounting.account(
            &shared.node.name,
            now,
            &phases,
            Sampler::EVERY,
            None,
            || Summary {
                method: "range",
                outcome: Outcome::read(ReadPath::Lease, shared.serving.store.revision()),
                request_bytes: reads
                    .iter()
                    .map(|indexed| frames[indexed.frame].body.len())
                    .sum(),
                reply_bytes,
                beside: reads.len().saturating_sub(1),
            },
        );
    }

    /// Remembers the read in the frame of this number, if its client keeps the trace that it is a part of.
    #[cold]
    pub(super) fn join_read(&mut self, number: usize, frame: &Frame) {
        let parent = RequestContext::of(frame).trace_parent;
        if let Some(parent) = parent.filter(TraceParent::is_sampled) {
            let joined = self.shared.accounting.join(parent);
            self.joined_reads.insert(number, joined);
        }
    }

    /// Tells of the reads of a round that are parts of traces, by the replies from `replied` on. One that
    /// was passed on has none, and is told of when it comes back.
    #[cold]
    fn tell_round(
        &self,
        arrived: std::time::Instant,
        frames: &[Frame],
        reads: &[IndexedRead],
        replied: usize,
    ) {
        let now = stopwatch();
        let mut phases = Phases::begin(arrived);
        phases.until(Phase::Storage, now);
        let shared = &self.shared;
        let joined = |indexed: &IndexedRead| {
            let joined = self.joined_reads.get(&indexed.frame)?;
            Some((indexed.read.request_id, (indexed.frame, joined)))
        };
        let joined: BTreeMap<_, _> = reads.iter().filter_map(joined).collect();
        let mut replies = FrameReader::new(Door::Client, shared.limits.frames);
        replies.push(Bytes::copy_from_slice(&self.replies[replied..]));
        while let Ok(Some(reply)) = replies.next_frame() {
            let Ok(ServerFrame { request_id, result }) = reply.decode() else {
                continue;
            };
            if let Some((frame, joined)) = joined.get(&request_id) {
                let summary = Summary {
                    method: "range",
                    outcome: Outcome::of(&result),
                    request_bytes: frames[*frame].body.len(),
                    reply_bytes: HEADER_BYTES + reply.body.len(),
                    beside: reads.len().saturating_sub(1),
                };
                let (node, accounting) = (&shared.node.name, &shared.accounting);
                accounting.tell_joined(node, now, &phases, joined, summary);
            }
        }
    }

    /// A state that has not been verified yet is not served, lease or not. Linearizable reads wait at
    /// the driver, where the state may be verified in time.
    fn read_unverified(
        &mut self,
        frames: &[Frame],
        reads: &[IndexedRead],
    ) -> Result<usize, WireError> {
        for indexed in reads {
            match indexed.read.consistency {
                Consistency::Serializable => {
                    self.reply(indexed.read.request_id, "range", Err(not_readable()));
                }
                _ => self.enqueue_read(&frames[indexed.frame])?,
            }
        }
        Ok(reads.len())
    }

    /// Looks the keys up one after the other, until what was found fills a write. With the bytes of
    /// what was found.
    fn look_up<'r>(
        &self,
        captured: Captured<&'r [IndexedRead], Option<Record>>,
        frames: &[Frame],
    ) -> Result<(LookedRecords<'r>, usize), StoreError> {
        let mut bytes = 0;
        let looked = captured.look(|IndexedRead { frame, read }| {
            let point = self.shared.serving.store.get(read.key(&frames[*frame]));
            point.map(|point| {
                let record = point.record.as_ref();
                bytes += record.map_or(0, |record| record.encoded().len());
                match bytes >= REPLIES_BYTES {
                    true => ControlFlow::Break(point.into()),
                    false => ControlFlow::Continue(point.into()),
                }
            })
        })?;
        Ok((looked, bytes))
    }

    fn answer_round(
        &mut self,
        shared: &Sessions,
        mut judged: Judged<&[IndexedRead], Option<Record>>,
        frames: &[Frame],
    ) -> Result<(), WireError> {
        // After the lookup: the rules are no older than what was found.
        let rules = shared.serving.store.gate().rules();
        let rules = rules.as_deref().map(|policy| self.rules_of(policy));
        let mut headers = Headers::default();
        let mut counts = ReadCounts::default();
        while let Some((indexed, result)) = judged.next(&shared.serving.reader) {
            let read = &indexed.read;
            match result {
                ReadResult::Answer(answer) => {
                    let key = read.key(&frames[indexed.frame]);
                    // Rules that are older than what is asked for refuse nothing.
                    match rules.as_ref().and_then(|rules| may_read(rules, key).err()) {
                        Some(error) => self.deny_read(read.request_id, key, error),
                        None => {
                            counts.count(&answer);
                            self.answer_point(read.into(), &answer, &mut headers);
                        }
                    }
                    continue;
                }
                ReadResult::Behind => shared.count_behind(read.min_revision),
                ReadResult::Lapsed if read.consistency == Consistency::LeaseOnly => {
                    self.reply(read.request_id, "range", Err(lease_invalid()));
                    continue;
                }
                ReadResult::Lapsed => shared.count_lapsed(),
                ReadResult::Uncovered => shared.count_uncovered(read.consistency),
            }
            self.enqueue_read(&frames[indexed.frame])?;
        }
        self.found = judged.finish().1;
        counts.report(shared);
        Ok(())
    }

    /// Appends the reply to the read of a key.
    fn answer_point(
        &mut self,
        request: PointRequest,
        answer: &Answer<Option<Record>>,
        headers: &mut Headers,
    ) {
        let is_same = headers
            .last
            .as_ref()
            .is_some_and(|last| last.revision == answer.revision() && last.read == answer.read());
        if !is_same {
            let node = &self.shared.node;
            headers.last = Some(Header {
                revision: answer.revision(),
                read: answer.read(),
                encoded: EncodedHeader::new(&answer.header(
                    node.cluster_id,
                    node.member_id,
                    &node.published,
                )),
            });
        }
        let header = headers.last.as_ref().expect("it was just made");
        let encoded = encode_point_reply(
            request.request_id,
            &header.encoded,
            answer.found().as_ref(),
            request.wanted,
            &self.shared.limits.frames,
            &mut self.replies,
        );
        if let Err(error) = encoded {
            self.refuse_too_long(request.request_id, false, error);
        }
    }

    /// A read of one key that the driver released: on its permit, or as a serializable one that has
    /// waited for its revision. How it ended is for the log.
    pub(super) fn read_released(
        &mut self,
        request: PointRequest,
        consistency: Consistency,
        key: &[u8],
        permit: Option<ReadPermit>,
    ) -> Outcome {
        let shared = self.shared.clone();
        let demand = Demand {
            consistency,
            min_revision: request.min_revision,
        };
        let buffer = std::mem::take(&mut self.found);
        let captured = Captured::released(&demand, permit, &shared.node.published, buffer);
        let looked = captured.look(|_| {
            let point = shared.serving.store.get(key);
            point.map(|point| ControlFlow::Break(point.into()))
        });
        let mut judged = match looked {
            Ok(looked) => looked.judge(&*shared.node.clock),
            Err(error) => {
                let refusal = shared.fail(error);
                return self.refuse_read(request, refusal);
            }
        };
        let result = judged
            .next(&shared.serving.reader)
            .map(|(_, result)| result);
        self.found = judged.finish().1;
        let Some(ReadResult::Answer(answer)) = result else {
            return self.refuse_read(request, behind());
        };
        if let Some(policy) = shared.serving.store.gate().rules()
            && let Err(error) = may_read(&self.rules_of(&policy), key)
        {
            let outcome = Outcome::refused(&error);
            self.deny_read(request.request_id, key, error);
            return outcome;
        }
        let mut counts = ReadCounts::default();
        counts.count(&answer);
        self.answer_point(request, &answer, &mut Headers::default());
        counts.report(&shared);
        Outcome::read(answer.read().path, answer.revision())
    }

    fn refuse_read(&mut self, request: PointRequest, error: Error) -> Outcome {
        let outcome = Outcome::refused(&error);
        self.reply(request.request_id, "range", Err(error));
        outcome
    }

    /// What `policy` allows the client.
    fn rules_of<'p>(&self, policy: &'p Policy) -> Result<&'p Rules, Error> {
        let identity = self.principal().identity()?;
        policy.rules(&identity)
    }

    fn enqueue_read(&mut self, frame: &Frame) -> Result<(), WireError> {
        let (ClientFrame { request_id, call }, context) = call_of(frame)?;
        let arrival = self.arrival(frame, context);
        self.enqueue(request_id, call, None, arrival);
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

impl From<Point> for Source<Option<Record>> {
    fn from(point: Point) -> Self {
        Self {
            found: point.record,
            applied: point.applied,
            revision: point.revision,
        }
    }
}

/// What the reply to a read of one key depends on, beside what is found.
#[derive(Clone, Copy)]
pub(super) struct PointRequest {
    pub(super) request_id: u64,
    pub(super) wanted: Projection,
    pub(super) min_revision: i64,
}

impl From<&PointRead> for PointRequest {
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
struct ReadCounts {
    paths: [u64; 5],
    /// What was left of the lease that they were served under.
    margin: Option<Duration>,
    staleness: Option<Duration>,
}

const PATHS: [ReadPath; 5] = [
    ReadPath::Lease,
    ReadPath::ReadIndex,
    ReadPath::Serializable,
    ReadPath::Follower,
    ReadPath::ReadLease,
];

impl ReadCounts {
    fn count<T>(&mut self, answer: &Answer<T>) {
        let read = answer.read();
        let place = match read.path {
            ReadPath::Lease => {
                self.margin = Some(read.lease_remaining);
                0
            }
            ReadPath::ReadIndex => 1,
            ReadPath::Serializable => {
                self.staleness = read.staleness;
                2
            }
            ReadPath::Follower => 3,
            ReadPath::ReadLease => 4,
        };
        self.paths[place] += 1;
    }

    fn report(&self, shared: &Sessions) {
        let metrics = &shared.accounting.metrics;
        for (path, count) in PATHS.into_iter().zip(self.paths) {
            if count > 0 {
                metrics.reads.total[path].increment(count);
            }
        }
        let all = self.paths.iter().sum();
        metrics.requests.succeeded("range").increment(all);
        metrics.mvcc.operations[OperationKind::Range].increment(all);
        if let Some(margin) = self.margin {
            let margins = &metrics.leader_lease.read_margin_seconds;
            margins.record(margin.as_secs_f64());
        }
        if let Some(staleness) = self.staleness {
            let staleness_seconds = &metrics.reads.staleness_seconds;
            staleness_seconds.record(staleness.as_secs_f64());
        }
    }
}
