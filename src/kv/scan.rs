//! A range read in steps of bounded work, at one revision.
//!
//! A [`Scan`] visits the keys of a range in key order. Each step examines a bounded number of keys
//! and bytes, and may use a different view of the store than the previous one: the scan continues
//! after the last key, at its initial revision, and fails if that has been compacted meanwhile. So
//! a range of any size can be streamed without blocking anything or holding a snapshot.
//!
//! At the store's own revision the walk goes over `current`. At an earlier one it goes over
//! `history`, where each key has a run of records, newest first: it takes the first that is not
//! newer than the revision, and seeks past long runs.

use bytes::Bytes;

use crate::api::{Error, KeyValue, RangeCount, RangeRequest};

use super::record::{Record, key_value};
use super::store::{Space, Span, View};
use super::{compaction, keys, meta};

/// The bounds of one step of a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanBudget {
    /// At most this many keys; at least one.
    pub keys: usize,
    /// From this many bytes of keys and records on, the step ends.
    pub bytes: usize,
}

/// A range on its way to be read.
#[derive(Clone, Debug)]
pub struct Scan {
    request: RangeRequest,
    revision: i64,
    source: Source,
    rest: Span,
    /// How many keys may still be handed out.
    room: u64,
    count: u64,
    /// What the count will be, if that is known: then the scan ends once it hands out nothing more.
    known: Option<u64>,
    more: bool,
}

/// Where a scan finds its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Wherever they are, by the revision of the view.
    Either,
    /// In `current`, whatever revision that is: the reads of a transaction see what it wrote.
    Current,
    /// In `history`: `current` may be younger already.
    History,
}

/// What one step of a [`Scan`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The keys that the request asks for, in key order.
    pub kvs: Vec<KeyValue>,
    /// How many keys the step went through, those not asked for included.
    pub keys: usize,
    /// How many bytes of keys and records it went through.
    pub bytes: usize,
    /// The range is at its end: [`Scan::count`] and [`Scan::more`] are final.
    pub finished: bool,
}

impl Scan {
    /// A scan of what `request` asks for, at the revision it names or the one of `view`. It hands
    /// out keys in their order; if they are to be sorted, the caller applies the limit.
    ///
    /// # Errors
    /// The outer error is the store's and is fatal for the reader. Inside, the revision is
    /// compacted or does not exist yet.
    pub fn begin<V: View>(
        view: &V,
        request: &RangeRequest,
    ) -> Result<Result<Self, Error>, V::Error> {
        let progress = meta::progress(view)?;
        let checked = compaction::check_readable(request.revision, &progress);
        Ok(checked.map(|()| Self::new(request, progress.revision, Source::Either)))
    }

    /// A scan of the current keys, whatever their revision is. It cannot be refused.
    pub(super) fn inside(request: &RangeRequest) -> Self {
        Self::new(request, 0, Source::Current)
    }

    /// A scan inside of a transaction whose changes `view` already shows.
    pub(super) fn begin_inside<V: View>(
        view: &V,
        request: &RangeRequest,
    ) -> Result<Result<Self, Error>, V::Error> {
        let progress = meta::progress(view)?;
        let checked = compaction::check_readable(request.revision, &progress);
        let source = match request.revision {
            0 => Source::Current,
            _ => Source::History,
        };
        Ok(checked.map(|()| Self::new(request, progress.revision, source)))
    }

    fn new(request: &RangeRequest, current: i64, source: Source) -> Self {
        let revision = match request.revision {
            0 => current,
            past => past,
        };
        let room = match request.limit {
            0 => u64::MAX,
            limit if request.is_cut_before_sorting() => limit.saturating_add(1),
            // Which are the first is not known before all are seen.
            _ if request.sort().is_some() => u64::MAX,
            limit => limit,
        };
        Self {
            rest: keys::span(&request.key, &request.range),
            request: request.clone(),
            revision,
            source,
            room,
            count: 0,
            known: None,
            more: false,
        }
    }

    /// The range holds so many keys at this revision: they need not be counted, unless the walk has to look at
    /// each of them for something else.
    pub(super) fn know(&mut self, count: u64) {
        let is_for_count = self.request.is_count_only() || self.request.is_in_key_order_and_whole();
        // It must not say more than a walk to the limit would.
        let is_asked_for = self.request.count.is_whole(true);
        self.known = (is_for_count && is_asked_for).then_some(count);
    }

    /// What is left would only be counted, and that is known or not asked for.
    fn is_settled(&self) -> bool {
        if !self.request.count.is_whole(self.more) {
            return true;
        }
        self.known.is_some() && (self.room == 0 || self.request.is_count_only())
    }

    /// The revision that is read.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// How many keys the range holds at the revision, as far as the scan is.
    pub fn count(&self) -> u64 {
        self.known.unwrap_or(self.count)
    }

    /// Which keys it counts.
    pub(super) fn counting(&self) -> RangeCount {
        self.request.count
    }

    /// Whether some were left out that the request asks for, because of its limit.
    pub fn more(&self) -> bool {
        let is_cut =
            self.is_settled() && !self.request.is_count_only() && self.count() > self.count;
        self.more || is_cut
    }

    /// The first key of the range that has not been scanned.
    pub fn next_key(&self) -> &Bytes {
        self.rest.from()
    }

    /// Hands out nothing from here on, although there is more, and only counts.
    pub fn only_count(&mut self) {
        self.room = 0;
        self.more = true;
    }

    /// Continues within `budget`, reading `view`.
    ///
    /// # Errors
    /// The outer error is the store's and is fatal for the reader. Inside, the revision has been
    /// compacted since the scan began, or `view` is older than its beginning; the scan is over
    /// then.
    pub fn step<V: View>(
        &mut self,
        view: &V,
        budget: &ScanBudget,
    ) -> Result<Result<Chunk, Error>, V::Error> {
        let mut chunk = Chunk::default();
        if self.source == Source::Current {
            self.walk_current(view, budget, &mut chunk)?;
            return Ok(Ok(chunk));
        }
        let progress = meta::progress(view)?;
        if let Err(refusal) = compaction::check_readable(self.revision, &progress) {
            return Ok(Err(refusal));
        }
        let is_now = self.revision == progress.revision || planted!(PastReadsCurrent);
        if self.source == Source::Either && is_now {
            self.walk_current(view, budget, &mut chunk)?;
        } else {
            self.walk_history(view, budget, &mut chunk)?;
        }
        Ok(Ok(chunk))
    }

    fn walk_current<V: View>(
        &mut self,
        view: &V,
        budget: &ScanBudget,
        chunk: &mut Chunk,
    ) -> Result<(), V::Error> {
        for pair in view.range(Space::Current, &self.rest.clone()) {
            if self.is_settled() {
                break;
            }
            let (key, record) = pair?;
            if chunk.is_full(budget) {
                self.rest.advance(key);
                return Ok(());
            }
            chunk.keys += 1;
            chunk.bytes += key.len() + record.len();
            self.take(chunk, key_value(key, record)?);
        }
        chunk.finished = true;
        Ok(())
    }

    fn walk_history<V: View>(
        &mut self,
        view: &V,
        budget: &ScanBudget,
        chunk: &mut Chunk,
    ) -> Result<(), V::Error> {
        let mut span = keys::history_span(&self.rest);
        let mut run = Run::default();
        loop {
            match self.walk_runs(view, &span, &mut run, budget, chunk)? {
                WalkEnd::Leap(to) => {
                    // The same run may continue after the leap, and its key has been counted.
                    run.skipped = 0;
                    span.advance(to);
                }
                WalkEnd::Full(key) => {
                    self.rest.advance(key);
                    return Ok(());
                }
                WalkEnd::End => {
                    chunk.finished = true;
                    return Ok(());
                }
            }
        }
    }

    /// Walks over the runs of records in `span`, until it is better to leap.
    fn walk_runs<V: View>(
        &mut self,
        view: &V,
        span: &Span,
        run: &mut Run,
        budget: &ScanBudget,
        chunk: &mut Chunk,
    ) -> Result<WalkEnd, V::Error> {
        for pair in view.range(Space::History, span) {
            if self.is_settled() {
                break;
            }
            let (raw, record) = pair?;
            let (prefix, place) = keys::history_run(&raw)?;
            if run.prefix != prefix {
                if chunk.is_full(budget) {
                    let (key, _) = keys::history_parts(&raw)?;
                    return Ok(WalkEnd::Full(key));
                }
                *run = Run {
                    prefix: raw.slice(..prefix.len()),
                    ..Run::default()
                };
                chunk.keys += 1;
            }
            if run.is_decided || place.main > self.revision {
                run.skipped += 1;
                if run.skipped > LEAP_AFTER {
                    let (key, _) = keys::history_parts(&raw)?;
                    return Ok(WalkEnd::Leap(match run.is_decided {
                        true => keys::history_end(&key),
                        false => keys::history_at(&key, self.revision).from().clone(),
                    }));
                }
                continue;
            }
            run.is_decided = true;
            chunk.bytes += raw.len() + record.len();
            if let Some(record) = Record::decode_past(record)? {
                let (key, _) = keys::history_parts(&raw)?;
                self.take(chunk, record.with_key(key));
            }
        }
        Ok(WalkEnd::End)
    }

    /// A key of the range, as it is at the revision.
    fn take(&mut self, chunk: &mut Chunk, mut kv: KeyValue) {
        self.count += 1;
        if self.request.is_count_only() || !self.request.admits(&kv) {
            return;
        }
        if self.room == 0 {
            self.more = true;
            return;
        }
        self.room -= 1;
        if self.request.keys_only && !self.request.sorts_by_value() {
            kv.value = Bytes::new();
        }
        chunk.kvs.push(kv);
    }
}

impl Chunk {
    /// A step looks at one key at least, or it would never end.
    fn is_full(&self, budget: &ScanBudget) -> bool {
        self.keys >= budget.keys.max(1) || self.keys > 0 && self.bytes >= budget.bytes
    }
}

/// After so many records that are of no use, it is cheaper to look for the next one that is.
const LEAP_AFTER: usize = 16;

/// The records of one key in `history`.
#[derive(Default)]
struct Run {
    /// What their keys have in common: the key, escaped and terminated.
    prefix: Bytes,
    /// What the key was at the revision is found.
    is_decided: bool,
    skipped: usize,
}

/// Why a walk over `history` ended.
enum WalkEnd {
    /// Records that are of use begin here.
    Leap(Bytes),
    /// The budget is used up; this key has not been scanned.
    Full(Bytes),
    /// There is nothing more.
    End,
}
