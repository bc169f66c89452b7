//! Ranges: now and at earlier revisions, filtered, sorted and cut, at once or in steps.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold::api::{
    Error, ErrorKind, KeyRange, KeyValue, Limits, Outcome, RangeCount, RangeRequest, RangeResponse,
    SortOrder, SortTarget,
};
use leasehold::kv::{MemStore, Scan, ScanBudget};

use super::draw::Draw;
use super::trace::say;

/// Every key with what it holds.
pub type State = BTreeMap<Bytes, KeyValue>;

/// The store as it was after each revision, the first of which is 1.
#[derive(Debug)]
pub struct History {
    states: Vec<State>,
    pub compacted: i64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            states: vec![State::new()],
            compacted: 0,
        }
    }
}

impl History {
    pub fn revision(&self) -> i64 {
        i64::try_from(self.states.len()).expect("an input is short")
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("there is a first one")
    }

    pub fn push(&mut self, state: State) {
        self.states.push(state);
    }

    /// The state at `revision`, where 0 is now, or that it must be refused, and how.
    fn at(&self, revision: i64) -> Result<&State, ErrorKind> {
        match revision {
            0 => Ok(self.now()),
            past if past < self.compacted => Err(ErrorKind::Compacted {
                compact_revision: self.compacted,
            }),
            past => usize::try_from(past - 1)
                .ok()
                .and_then(|place| self.states.get(place))
                .ok_or(ErrorKind::FutureRevision),
        }
    }

    /// Whether a read of `request` was rightly answered.
    pub fn check(
        &self,
        request: &RangeRequest,
        limits: &Limits,
        found: &Result<RangeResponse, Error>,
    ) {
        let state = match self.at(request.revision) {
            Ok(state) => state,
            Err(kind) => return refused(found, &kind),
        };
        let found = found.as_ref().expect("this revision can be read");
        let all = within(state, &request.key, &request.range);
        let count = match found.more && request.count == RangeCount::ToLimit {
            true => found.kvs.len(),
            false => all.len(),
        };
        assert_eq!(found.count, count as u64, "the count is exact");
        if request.is_count_only() {
            assert!(found.kvs.is_empty());
            return;
        }
        let mut expected = filtered(all, request);
        expected.truncate(cut_before_sorting(request).unwrap_or(usize::MAX));
        sort(&mut expected, request);
        if request.keys_only {
            expected.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        let shown = found.kvs.len();
        assert!(shown <= expected.len(), "no more than there is");
        assert_eq!(found.kvs, expected[..shown], "the first ones, in order");
        assert_eq!(
            found.more,
            shown < expected.len(),
            "and whether that was all"
        );
        let full = request.limit > 0 && shown as u64 >= request.limit;
        assert!(!full || shown as u64 == request.limit || request.range == KeyRange::Single);
        let bytes = |kv: &KeyValue| kv.key.len() + kv.value.len();
        let bytes: usize = found.kvs.iter().map(bytes).sum();
        assert!(shown <= 1 || bytes <= limits.reply_bytes_max);
        if found.more && !full {
            assert!(shown > 0, "whoever goes on after the last key gets on");
        }
    }
}

fn refused<T>(found: &Result<T, Error>, kind: &ErrorKind) {
    let error = found.as_ref().err().expect("this revision cannot be read");
    assert_eq!(error.outcome, Outcome::NotApplied);
    assert_eq!(&error.kind, kind);
}

/// The keys of a range, by asking each.
pub fn within(state: &State, from: &Bytes, range: &KeyRange) -> Vec<KeyValue> {
    let means = |key: &Bytes| match range {
        KeyRange::Single => key == from,
        KeyRange::Prefix => key.starts_with(from),
        KeyRange::Until(end) => key >= from && key < end,
        KeyRange::From => key >= from,
    };
    let all = state.values().filter(|kv| means(&kv.key));
    all.cloned().collect()
}

fn filtered(mut all: Vec<KeyValue>, request: &RangeRequest) -> Vec<KeyValue> {
    let is_within = |revision, min, max| revision >= min && (max == 0 || revision <= max);
    all.retain(|kv| {
        is_within(
            kv.mod_revision,
            request.min_mod_revision,
            request.max_mod_revision,
        ) && is_within(
            kv.create_revision,
            request.min_create_revision,
            request.max_create_revision,
        )
    });
    all
}

/// Sorts what is in key order. Equal ones stay in key order, whatever the direction.
fn sort(kvs: &mut [KeyValue], request: &RangeRequest) {
    let is_down = request.sort_order == SortOrder::Descend;
    kvs.sort_by(|one, other| {
        let by = match request.sort_target {
            SortTarget::Key => one.key.cmp(&other.key),
            SortTarget::Version => one.version.cmp(&other.version),
            SortTarget::CreateRevision => one.create_revision.cmp(&other.create_revision),
            SortTarget::ModRevision => one.mod_revision.cmp(&other.mod_revision),
            SortTarget::Value => one.value.cmp(&other.value),
        };
        if is_down { by.reverse() } else { by }
    });
}

/// How many keys are sorted where a limit comes first, as in etcd: one more than it allows.
fn cut_before_sorting(request: &RangeRequest) -> Option<usize> {
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let names_no_order = request.sort_order == SortOrder::None && bounds == [0; 4];
    let is_sorted = request.sort_target != SortTarget::Key && request.limit != 0;
    (names_no_order && is_sorted).then_some(request.limit as usize + 1)
}

/// A request for `key` and `range`, in whatever way.
pub fn request(
    draw: &mut Draw<'_>,
    key: Bytes,
    range: KeyRange,
    history: &History,
) -> RangeRequest {
    let mut request = RangeRequest {
        key,
        range,
        limit: u64::from(draw.byte() % 4),
        keys_only: draw.bool(),
        count: draw.of(&[
            RangeCount::All,
            RangeCount::All,
            RangeCount::ToLimit,
            RangeCount::Only,
        ]),
        ..RangeRequest::default()
    };
    let shape = draw.byte();
    let mut revision = |wanted: bool| match wanted {
        true => draw.number(&[history.revision() as u64, history.compacted as u64, 1]) as i64,
        false => 0,
    };
    request.revision = revision(shape & 1 != 0);
    request.min_mod_revision = revision(shape & 2 != 0);
    request.max_mod_revision = revision(shape & 4 != 0);
    request.min_create_revision = revision(shape & 8 != 0);
    request.max_create_revision = revision(shape & 16 != 0);
    if shape & 32 != 0 {
        request.sort_target = draw.of(&[
            SortTarget::Key,
            SortTarget::Version,
            SortTarget::CreateRevision,
            SortTarget::ModRevision,
            SortTarget::Value,
        ]);
        request.sort_order = draw.of(&[SortOrder::Descend, SortOrder::Ascend, SortOrder::None]);
    }
    request
}

/// A scan that goes on while the store changes.
#[derive(Debug)]
pub struct Held {
    scan: Scan,
    request: RangeRequest,
    kvs: Vec<KeyValue>,
}

impl Held {
    /// Begins at the revision that the request names, or at the present one.
    pub fn begin(store: &MemStore, request: RangeRequest, history: &History) -> Option<Self> {
        let begun = Scan::begin(store, &request).expect("memory does not fail");
        if let Err(kind) = history.at(request.revision) {
            refused(&begun, &kind);
            return None;
        }
        let scan = begun.expect("this revision can be read");
        let wanted = match request.revision {
            0 => history.revision(),
            past => past,
        };
        assert_eq!(scan.revision(), wanted);
        Some(Self {
            scan,
            request,
            kvs: Vec::new(),
        })
    }

    /// One step, on the store as it is by now. `None` when it has come to its end.
    pub fn step(
        mut self,
        store: &MemStore,
        budget: &ScanBudget,
        history: &History,
    ) -> Option<Self> {
        let step = self.scan.step(store, budget).expect("memory does not fail");
        let state = match history.at(self.scan.revision()) {
            Ok(state) => state,
            Err(kind) => {
                refused(&step, &kind);
                return None;
            }
        };
        let chunk = step.expect("this revision can be read");
        say(format_args!("  {chunk:?}"));
        assert!(chunk.keys <= budget.keys.max(1), "a step is bounded");
        assert!(chunk.kvs.len() <= chunk.keys);
        assert!(chunk.finished || chunk.keys > 0, "and gets on");
        self.kvs.extend(chunk.kvs);
        if !chunk.finished {
            return Some(self);
        }
        let all = within(state, &self.request.key, &self.request.range);
        if self.request.count != RangeCount::ToLimit || !self.scan.more() {
            assert_eq!(self.scan.count(), all.len() as u64);
        }
        let mut expected = filtered(all, &self.request);
        let sorted_by_who_asks = self.request.sort_target != SortTarget::Key
            || self.request.sort_order == SortOrder::Descend;
        let room = match self.request.limit {
            _ if self.request.is_count_only() => 0,
            _ if cut_before_sorting(&self.request).is_some() => {
                cut_before_sorting(&self.request).unwrap_or_default()
            }
            _ if sorted_by_who_asks => usize::MAX,
            0 => usize::MAX,
            limit => limit as usize,
        };
        let more = !self.request.is_count_only() && expected.len() > room;
        assert_eq!(self.scan.more(), more);
        expected.truncate(room);
        if self.request.keys_only && self.request.sort_target != SortTarget::Value {
            expected.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        assert_eq!(self.kvs, expected, "as it was when the scan began");
        None
    }
}
