//! Range reads, at the current or an earlier revision, with filters, sorting and limits.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use bytes::Bytes;

use crate::api::{Error, KeyValue, Limits, RangeRequest, RangeResponse, SortOrder, SortTarget};

use super::record;
use super::scan::{Chunk, Scan, ScanBudget};
use super::store::{Space, View};

/// The keys that `request` asks for, as `view` has them.
///
/// The reply holds as many keys as `request.limit` and `limits.reply_bytes_max` allow, but always
/// the first one; in key order, a caller who goes on after the last key gets to the end. `count` is
/// exact unless the request counts to its limit: what does not fit, and what the request filters
/// out, is still counted. That takes a walk over all keys of the range (some tenths of a microsecond
/// each on disk), so do not run it on a thread that must not block; take the steps one by one
/// instead, with a [`Scan`] and a [`RangeReply`]. Memory is bounded by the reply, sorted or not.
///
/// # Errors
/// The outer error is the store's and is fatal for the reader. Inside, the revision is compacted or
/// does not exist yet.
pub fn range<V: View>(
    view: &V,
    request: &RangeRequest,
    limits: &Limits,
) -> Result<Result<RangeResponse, Error>, V::Error> {
    counted_range(view, request, limits, None)
}

/// As [`range`]. If it is known how many keys the range holds ([`RangeCounts`](super::RangeCounts)), the walk
/// ends where the reply does.
///
/// # Errors
/// As [`range`].
pub fn counted_range<V: View>(
    view: &V,
    request: &RangeRequest,
    limits: &Limits,
    known: Option<u64>,
) -> Result<Result<RangeResponse, Error>, V::Error> {
    if request.is_point() {
        return point(view, request).map(Ok);
    }
    let mut scan = match Scan::begin(view, request)? {
        Ok(scan) => scan,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(count) = known {
        scan.know(count);
    }
    let mut reply = RangeReply::new(request, limits);
    loop {
        match scan.step(view, &STEP)? {
            Ok(chunk) => {
                let finished = chunk.finished;
                reply.add(&mut scan, chunk);
                if finished {
                    return Ok(Ok(reply.finish(&scan)));
                }
            }
            Err(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// The step size where nothing waits between steps.
pub(super) const STEP: ScanBudget = ScanBudget {
    keys: 1024,
    bytes: 1 << 20,
};

/// One key as it is now, for a request that [is a point](RangeRequest::is_point).
fn point<V: View>(view: &V, request: &RangeRequest) -> Result<RangeResponse, V::Error> {
    let mut response = RangeResponse::default();
    let Some(record) = view.get(Space::Current, &request.key)? else {
        return Ok(response);
    };
    response.count = 1;
    if !request.is_count_only() {
        let mut kv = record::key_value(request.key.clone(), record)?;
        if request.keys_only {
            kv.value = Bytes::new();
        }
        response.kvs.push(kv);
    }
    Ok(response)
}

/// The reply to a range, while a [`Scan`] goes through it.
#[derive(Debug)]
pub struct RangeReply {
    keys_only: bool,
    kept: Collection,
    /// Keys were left out because the reply is full.
    is_cut: bool,
}

#[derive(Debug)]
enum Collection {
    /// In key order, until the reply is full.
    InOrder {
        kvs: Vec<KeyValue>,
        bytes_left: usize,
    },
    Sorted(First),
}

impl RangeReply {
    /// An empty reply to `request`.
    pub fn new(request: &RangeRequest, limits: &Limits) -> Self {
        // Header, count and the frame around the reply.
        let bytes = limits.reply_bytes_max.saturating_sub(512);
        let kept = match request.sort() {
            None => Collection::InOrder {
                kvs: Vec::new(),
                bytes_left: bytes,
            },
            Some((target, order)) => Collection::Sorted(First {
                target,
                order,
                kvs: BTreeMap::new(),
                kvs_max: match request.limit {
                    0 => usize::MAX,
                    limit => usize::try_from(limit).unwrap_or(usize::MAX),
                },
                bytes: 0,
                bytes_max: bytes,
                end: None,
            }),
        };
        Self {
            keys_only: request.keys_only,
            kept,
            is_cut: false,
        }
    }

    /// Adds the result of a step of `scan`. Once only the count is needed, the scan stops
    /// collecting keys.
    pub fn add(&mut self, scan: &mut Scan, chunk: Chunk) {
        match &mut self.kept {
            Collection::InOrder { kvs, bytes_left } => {
                for kv in chunk.kvs {
                    let bytes = weight(&kv);
                    let fits = bytes <= *bytes_left || kvs.is_empty();
                    if self.is_cut || !fits {
                        self.is_cut = true;
                        scan.only_count();
                        break;
                    }
                    *bytes_left = bytes_left.saturating_sub(bytes);
                    kvs.push(kv);
                }
            }
            Collection::Sorted(first) => {
                for kv in chunk.kvs {
                    first.add(kv);
                }
            }
        }
    }

    /// The reply, once the scan is finished.
    pub fn finish(self, scan: &Scan) -> RangeResponse {
        let (kvs, more) = match self.kept {
            Collection::InOrder { kvs, .. } => (kvs, self.is_cut || scan.more()),
            Collection::Sorted(first) => {
                let more = first.end.is_some();
                (first.into_kvs(self.keys_only), more)
            }
        };
        let count = match scan.counting().is_whole(more) {
            true => scan.count(),
            // How far it went beyond the reply depends on its steps.
            false => kvs.len() as u64,
        };
        RangeResponse { kvs, more, count }
    }
}

/// The most that a key's numbers and the lengths of its two parts take in an encoded reply.
const OVERHEAD: usize = 4 * 10 + 2 * 5;

/// What `kv` takes in an encoded reply, at most.
pub(super) fn weight(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len() + OVERHEAD
}

/// The first keys in sort order, as many as fit into the reply. Once a key did not fit, no key that sorts
/// after it is accepted, so that the reply has no gap.
#[derive(Debug)]
struct First {
    target: SortTarget,
    order: SortOrder,
    kvs: BTreeMap<Rank, KeyValue>,
    kvs_max: usize,
    bytes: usize,
    bytes_max: usize,
    /// The first key that did not fit.
    end: Option<Rank>,
}

impl First {
    fn add(&mut self, kv: KeyValue) {
        let rank = Rank::of(&kv, self.target, self.order);
        if self.end.as_ref().is_some_and(|end| rank > *end) {
            return;
        }
        self.bytes += weight(&kv);
        self.kvs.insert(rank, kv);
        while self.kvs.len() > self.kvs_max || self.bytes > self.bytes_max && self.kvs.len() > 1 {
            let (rank, kv) = self.kvs.pop_last().expect("there is more than one");
            self.bytes -= weight(&kv);
            self.end = Some(rank);
        }
    }

    fn into_kvs(self, keys_only: bool) -> Vec<KeyValue> {
        let mut kvs: Vec<KeyValue> = self.kvs.into_values().collect();
        if keys_only {
            for kv in &mut kvs {
                kv.value = Bytes::new();
            }
        }
        kvs
    }
}

/// A place in a sorted reply. Where two keys are equal by what is sorted by, the smaller key comes
/// first, whatever the order.
#[derive(Debug, PartialEq, Eq)]
struct Rank {
    order: SortOrder,
    by: By,
    key: Bytes,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Number(i64),
    Bytes(Bytes),
}

impl Rank {
    fn of(kv: &KeyValue, target: SortTarget, order: SortOrder) -> Self {
        let by = match target {
            SortTarget::Key => By::Bytes(kv.key.clone()),
            SortTarget::Value => By::Bytes(kv.value.clone()),
            SortTarget::Version => By::Number(kv.version),
            SortTarget::CreateRevision => By::Number(kv.create_revision),
            SortTarget::ModRevision => By::Number(kv.mod_revision),
        };
        Self {
            order,
            by,
            key: kv.key.clone(),
        }
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let by = match self.order {
            SortOrder::Descend => other.by.cmp(&self.by),
            SortOrder::None | SortOrder::Ascend => self.by.cmp(&other.by),
        };
        by.then_with(|| self.key.cmp(&other.key))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
