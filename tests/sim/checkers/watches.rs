//! W1 to W11: what whoever watches is told, against the log, whichever nodes he goes to one after
//! the other; and how requests for a revision are answered, reads (K5) and watches (W10) alike.
//!
//! A watch is judged by what its client gives out. For each it is known up to where everything was
//! told; the next thing told must be the first change after that which concerns it, whole, in its
//! order, with what was before. A progress notice, a resumption, and an end that names a revision may
//! pass over what does not concern the watch, and nothing else.

use leasehold::api::{Error, ErrorKind, Event, EventKind, KeyValue, WatchEvent, WatchRequest};
use leasehold::types::LogIndex;

use super::model::{Change, Model};
use super::{Violation, id, violation};
use crate::marks::{Mark, Marks};

const ORDER: &str = "W1 no change is left out";
const ONCE: &str = "W2 every change is told once, in order";
const COMMITTED: &str = "W3 nothing is told that is not committed";
const WHOLE: &str = "W4 a revision is told whole";
const CONTENT: &str = "W5 changes are told as they were made";
const PROGRESS: &str = "W6 progress is not ahead of what was told";
const FILTER: &str = "W7 nothing is told that was not asked for";
const BEFORE: &str = "W8 previous values are those that were";
const STATE: &str = "W9 the initial state is that of its revision";
const START: &str = "W10 a start is what it says";
const RESUMES: &str = "W11 a watch goes on where it was";
const PAST: &str = "K5 a revision is read, or refused for what it is";

/// One watch, from its first stream to its last.
pub(crate) struct Watched {
    request: WatchRequest,
    phase: Phase,
}

enum Phase {
    /// No node has opened it yet.
    New,
    /// So much of the initial state was told.
    Listing(Vec<KeyValue>),
    /// Everything up to this revision was told.
    Told(i64),
}

impl Watched {
    pub(crate) fn new(request: WatchRequest) -> Self {
        Self {
            phase: match (request.initial_state, request.start_revision) {
                (true, _) => Phase::Listing(Vec::new()),
                (false, 0) => Phase::New,
                (false, start) => Phase::Told(start - 1),
            },
            request,
        }
    }

    /// A node that had `revision` has opened it, at first or once more; `from` is the first
    /// revision that may be told from now on, if the initial state does not begin anew.
    pub(crate) fn opened(
        &mut self,
        model: &Model,
        revision: i64,
        from: Option<i64>,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        if revision > model.revision() {
            let what = format!("a watch is opened at {revision}: {}", model.revision());
            return violation(COMMITTED, what);
        }
        match (&mut self.phase, from) {
            (Phase::New, Some(from)) => {
                if from != revision + 1 {
                    let what = format!("a watch of now, {revision}, begins at {from}");
                    return violation(START, what);
                }
                self.phase = Phase::Told(revision);
            }
            (Phase::Listing(kvs), None) => kvs.clear(),
            // What was told of a state is void if a part of it was not.
            (Phase::Told(_), None) if self.request.initial_state => {
                self.phase = Phase::Listing(Vec::new());
            }
            (Phase::Told(told), Some(from)) => {
                let told = *told;
                self.passes(model, told, from - 1, RESUMES)?;
                if from <= told {
                    let what = format!("{:?}: {from} after {told}", self.request);
                    return violation(RESUMES, what);
                }
                if from > self.request.start_revision {
                    marks.hit(Mark::WatchResumedJudged);
                }
                self.phase = Phase::Told(from - 1);
            }
            (_, from) => {
                let what = format!("{:?} goes on from {from:?}", self.request);
                return violation(RESUMES, what);
            }
        }
        Ok(())
    }

    /// Its client gives something out.
    pub(crate) fn told(
        &mut self,
        model: &Model,
        step: &WatchEvent,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        match step {
            WatchEvent::State { kvs } => {
                let Phase::Listing(known) = &mut self.phase else {
                    return violation(STATE, format!("{:?} has one already", self.request));
                };
                known.extend_from_slice(kvs);
                Ok(())
            }
            WatchEvent::Synced { revision } => self.synced(model, *revision, marks),
            WatchEvent::Events { revision, events } => {
                let told = self.everything_until(ORDER)?;
                let told = self.events(model, told, *revision, events, marks)?;
                self.phase = Phase::Told(told);
                Ok(())
            }
            WatchEvent::Progress { revision } => {
                let told = self.everything_until(PROGRESS)?;
                if *revision > model.revision() {
                    let what = format!("progress {revision}: {}", model.revision());
                    return violation(COMMITTED, what);
                }
                if *revision < told {
                    let what = format!("{:?}: {revision} after {told}", self.request);
                    return violation(PROGRESS, what);
                }
                self.passes(model, told, *revision, PROGRESS)?;
                marks.hit(Mark::WatchProgressJudged);
                self.phase = Phase::Told(*revision);
                Ok(())
            }
            WatchEvent::Created { .. }
            | WatchEvent::Resumed { .. }
            | WatchEvent::Restarted { .. } => unreachable!("a cursor returns none of these"),
        }
    }

    /// A node has ended it, and says where another may go on.
    pub(crate) fn ended(
        &mut self,
        model: &Model,
        error: &Error,
        resume: Option<i64>,
        marks: &mut Marks,
    ) -> Result<(), Violation> {
        match (&error.kind, resume) {
            (ErrorKind::SlowWatcher, Some(resume)) => {
                marks.hit(Mark::SlowWatchEnded);
                let told = self.everything_until(RESUMES)?;
                if resume <= told {
                    let what = format!("{:?}: to resume at {resume} after {told}", self.request);
                    return violation(RESUMES, what);
                }
                self.passes(model, told, resume - 1, RESUMES)
            }
            (ErrorKind::SlowWatcher, None) if self.request.initial_state => Ok(()),
            (ErrorKind::Compacted { compact_revision }, None) => {
                marks.hit(Mark::WatchOvertakenByCompaction);
                let is_left = match self.phase {
                    Phase::Told(told) => told + 1 >= *compact_revision,
                    _ => false,
                };
                if is_left || *compact_revision > model.newest_compact_revision() {
                    return violation(START, format!("{:?}: {error}", self.request));
                }
                Ok(())
            }
            (ErrorKind::Corrupt, None) => Ok(()),
            _ => violation(RESUMES, format!("{:?}: {error}, {resume:?}", self.request)),
        }
    }

    /// Whether something is left to tell.
    pub(crate) fn is_behind(&self, model: &Model) -> bool {
        match self.phase {
            Phase::New | Phase::Listing(_) => true,
            Phase::Told(told) => self.next(model, told).is_some(),
        }
    }

    fn synced(&mut self, model: &Model, revision: i64, marks: &mut Marks) -> Result<(), Violation> {
        let Phase::Listing(known) = &self.phase else {
            let what = format!("{:?} is synced again at {revision}", self.request);
            return violation(STATE, what);
        };
        if revision > model.revision() {
            return violation(COMMITTED, format!("synced at {revision}"));
        }
        let mut there = model.state_at(revision);
        there.retain(|kv| self.covers(&kv.key));
        if *known != there {
            let what = format!("{known:?} at {revision}, the log says {there:?}");
            return violation(STATE, what);
        }
        marks.hit(Mark::WatchStateJudged);
        self.phase = Phase::Told(revision);
        Ok(())
    }

    /// All events of `revision`, the first after `told` that concerns the watch.
    fn events(
        &self,
        model: &Model,
        told: i64,
        revision: i64,
        events: &[Event],
        marks: &mut Marks,
    ) -> Result<i64, Violation> {
        let object = |rule, what: &str| {
            let request = &self.request;
            let what = format!("{request:?} after {told}, at {revision}: {what}; {events:?}");
            Err(Violation { rule, what })
        };
        if revision <= told {
            let rule = match revision < self.request.start_revision {
                true => START,
                false => ONCE,
            };
            return object(rule, "it was told, or is before the start");
        }
        if revision > model.revision() {
            return object(COMMITTED, "nobody has committed that");
        }
        let asked_for = events.iter().all(|event| {
            let is_wanted = match event.kind {
                EventKind::Put => !self.request.no_put,
                EventKind::Delete => !self.request.no_delete,
            };
            is_wanted && self.covers(&event.kv.key)
        });
        if !asked_for {
            return object(FILTER, "not asked for");
        }
        match self.next(model, told) {
            None => return object(CONTENT, "nothing changed there"),
            Some(next) if next > revision => return object(CONTENT, "nothing changed there"),
            Some(next) if next < revision => return object(ORDER, &format!("{next} is left out")),
            Some(_) => {}
        }
        let changes: Vec<&Change> = model
            .changes_after(revision - 1)
            .iter()
            .take_while(|change| change.revision == revision)
            .filter(|change| self.concerns(change))
            .collect();
        if changes.len() != events.len() {
            return object(WHOLE, &format!("the log has {changes:?}"));
        }
        if changes.len() > 1 {
            marks.hit(Mark::WatchOfSeveralChangesJudged);
        }
        for (event, change) in events.iter().zip(changes) {
            if !is_told_as_made(event, change) {
                return object(CONTENT, &format!("the log has {change:?}"));
            }
            // A node may know nothing of what was before a compacted change, and only then.
            let is_compacted = revision <= model.newest_compact_revision();
            let expected = change.before.as_ref().filter(|_| self.request.prev_kv);
            let may_be_gone = event.prev_kv.is_none() && is_compacted;
            if event.prev_kv.as_ref() != expected && !may_be_gone {
                return object(BEFORE, &format!("the log has {change:?}"));
            }
            if event.prev_kv.is_some() {
                marks.hit(Mark::PreviousValueJudged);
            }
        }
        marks.hit(Mark::WatchEventsJudged);
        Ok(revision)
    }

    fn everything_until(&self, rule: &'static str) -> Result<i64, Violation> {
        match self.phase {
            Phase::Told(told) => Ok(told),
            _ => Err(Violation {
                rule,
                what: format!("{:?} is not that far", self.request),
            }),
        }
    }

    /// Nothing between `told` and `through` concerns the watch.
    fn passes(
        &self,
        model: &Model,
        told: i64,
        through: i64,
        rule: &'static str,
    ) -> Result<(), Violation> {
        match self.next(model, told) {
            Some(next) if next <= through => {
                let what = format!(
                    "{:?} was told up to {told}, not {next}, and is said to be at {through}",
                    self.request
                );
                violation(rule, what)
            }
            _ => Ok(()),
        }
    }

    /// The first revision above `told` that concerns the watch.
    fn next(&self, model: &Model, told: i64) -> Option<i64> {
        let mut changes = model.changes_after(told).iter();
        let next = changes.find(|change| self.concerns(change));
        next.map(|change| change.revision)
    }

    fn concerns(&self, change: &Change) -> bool {
        let is_left_out = match change.after {
            Some(_) => self.request.no_put,
            None => self.request.no_delete,
        };
        !is_left_out && self.covers(&change.key)
    }

    fn covers(&self, key: &[u8]) -> bool {
        let (from, until) = self.request.range.bounds(&self.request.key);
        key >= from.as_ref() && until.is_none_or(|until| key < until.as_ref())
    }
}

fn is_told_as_made(event: &Event, change: &Change) -> bool {
    match &change.after {
        Some(kv) => event.kind == EventKind::Put && event.kv == *kv,
        None => {
            let expected = KeyValue {
                key: change.key.clone(),
                mod_revision: change.revision,
                ..KeyValue::default()
            };
            event.kind == EventKind::Delete && event.kv == expected
        }
    }
}

/// W10: a watch may begin at every revision that the node, which has applied `applied`, has not
/// compacted, and at no other.
pub(crate) fn may_begin(
    model: &Model,
    node: usize,
    applied: LogIndex,
    start: i64,
    refusal: Option<&Error>,
    marks: &mut Marks,
) -> Result<(), Violation> {
    let compact_revision = model.compact_revision(applied);
    let is_compacted = start != 0 && start < compact_revision;
    let refused = refusal.map(|error| &error.kind);
    let is_right = match (is_compacted, refused) {
        (true, Some(kind)) => {
            marks.hit(Mark::CompactedWatchRefused);
            *kind == ErrorKind::Compacted { compact_revision }
        }
        (false, None) => true,
        _ => false,
    };
    if !is_right {
        let what = format!(
            "{} at {applied} compacted at {compact_revision}: a watch from {start} is told {refused:?}",
            id(node)
        );
        return violation(START, what);
    }
    Ok(())
}

/// K5: whether a read at the revision `at` is answered, or refused for the right reason, by a node
/// whose store is at `revision` and has applied `applied`.
pub(crate) fn is_readable(
    model: &Model,
    node: usize,
    at: i64,
    applied: LogIndex,
    revision: i64,
    refusal: Option<&Error>,
    marks: &mut Marks,
) -> Result<(), Violation> {
    let compact_revision = model.compact_revision(applied);
    let refused = refusal.map(|error| &error.kind);
    let expected = if at < compact_revision {
        marks.hit(Mark::CompactedReadRefused);
        Some(ErrorKind::Compacted { compact_revision })
    } else if at > revision {
        marks.hit(Mark::FutureReadRefused);
        Some(ErrorKind::FutureRevision)
    } else {
        None
    };
    if refused != expected.as_ref() {
        let what = format!(
            "{} at {revision} after {applied}, asked for {at}: {refused:?} instead of {expected:?}",
            id(node)
        );
        return violation(PAST, what);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use leasehold::api::{
        CompactionRequest, DeleteRangeRequest, KeyRange, PutRequest, TxnOp, TxnRequest,
    };
    use leasehold::kv::{Command, Operation};
    use leasehold::types::{LogId, Term};

    use super::super::Committed;
    use super::*;
    use crate::history;

    /// k0 = 7 at 2, k1 = 8 at 3, k0 and k1 = 9 at 4, k1 deleted at 5; then compacted at 3.
    fn model() -> Model {
        let put = |key, value| PutRequest {
            key: history::name(key),
            value: history::bytes(value),
            ..PutRequest::default()
        };
        let both = [0, 1].map(|key| TxnOp::put(history::name(key), history::bytes(9)));
        let delete = DeleteRangeRequest {
            key: history::name(1),
            ..DeleteRangeRequest::default()
        };
        let operations = [
            Operation::Put(put(0, 7)),
            Operation::Put(put(1, 8)),
            Operation::Txn(TxnRequest::new().and_then(both)),
            Operation::DeleteRange(delete),
            Operation::Compact(CompactionRequest::at(3)),
        ];
        let committed = |(place, operation): (usize, Operation)| {
            let command = Command::Write {
                author: None,
                session: None,
                operation,
            };
            Committed {
                id: LogId::new(LogIndex(place as u64 + 1), Term(1)),
                hash: 0,
                by: Term(1),
                command: Some(command.encode()),
                state: None,
            }
        };
        let log: Vec<Committed> = operations.into_iter().enumerate().map(committed).collect();
        let mut model = Model::default();
        model.extend(&log).unwrap();
        model
    }

    fn request(start_revision: i64) -> WatchRequest {
        WatchRequest {
            key: Bytes::from_static(b"k"),
            range: KeyRange::Prefix,
            start_revision,
            prev_kv: true,
            ..WatchRequest::default()
        }
    }

    /// What the log has at `revision`, as it must be told.
    fn events(revision: i64) -> Vec<Event> {
        let model = model();
        let changes = model.changes_after(revision - 1).iter();
        let changes = changes.take_while(|change| change.revision == revision);
        let event = |change: &Change| Event {
            kind: match change.after {
                Some(_) => EventKind::Put,
                None => EventKind::Delete,
            },
            kv: change.after.clone().unwrap_or_else(|| KeyValue {
                key: change.key.clone(),
                mod_revision: revision,
                ..KeyValue::default()
            }),
            prev_kv: change.before.clone(),
        };
        changes.map(event).collect()
    }

    fn told(revision: i64) -> WatchEvent {
        let events = events(revision);
        WatchEvent::Events { revision, events }
    }

    fn progress(revision: i64) -> WatchEvent {
        WatchEvent::Progress { revision }
    }

    /// The rule that these steps of a watch break.
    fn rule(request: WatchRequest, steps: &[WatchEvent]) -> Option<&'static str> {
        let model = model();
        let mut watch = Watched::new(request);
        let mut marks = Marks::default();
        let mut tell = |step| watch.told(&model, step, &mut marks);
        let broken = steps.iter().find_map(|step| tell(step).err());
        broken.map(|violation| violation.rule)
    }

    #[test]
    fn what_the_log_says_may_be_told() {
        assert_eq!(
            rule(request(2), &[told(2), told(3), told(4), told(5)]),
            None
        );
        let steps = [
            told(3),
            progress(3),
            told(4),
            progress(4),
            told(5),
            progress(5),
        ];
        assert_eq!(rule(request(3), &steps), None);
        let deletes = WatchRequest {
            no_put: true,
            ..request(2)
        };
        assert_eq!(rule(deletes, &[progress(4), told(5)]), None);
    }

    #[test]
    fn whatever_else_is_told_is_found() {
        let mut altered = told(4);
        let WatchEvent::Events { events, .. } = &mut altered else {
            unreachable!()
        };
        let whole = events.clone();
        events[0].prev_kv.clone_from(&whole[1].prev_kv);
        let other = |events: Vec<Event>| {
            let revision = 4;
            [told(3), WatchEvent::Events { revision, events }]
        };
        for (expected, steps) in [
            (ORDER, vec![told(4)]),
            (ORDER, vec![told(3), told(5)]),
            (ONCE, vec![told(3), told(3)]),
            (ONCE, vec![told(3), told(4), told(3)]),
            (START, vec![told(2)]),
            (COMMITTED, vec![told(3), told(4), told(5), told(6)]),
            (COMMITTED, vec![told(3), told(4), told(5), progress(6)]),
            (WHOLE, other(whole[..1].to_vec()).to_vec()),
            (
                CONTENT,
                other(vec![whole[1].clone(), whole[0].clone()]).to_vec(),
            ),
            (PROGRESS, vec![progress(3)]),
            (PROGRESS, vec![told(3), progress(4)]),
            (PROGRESS, vec![told(3), told(4), progress(3)]),
            (BEFORE, vec![told(3), altered]),
            (STATE, vec![WatchEvent::Synced { revision: 3 }]),
        ] {
            assert_eq!(rule(request(3), &steps), Some(expected), "{steps:?}");
        }
        let puts = WatchRequest {
            no_delete: true,
            ..request(5)
        };
        assert_eq!(rule(puts, &[told(5)]), Some(FILTER));
        let one = WatchRequest {
            range: KeyRange::Single,
            ..request(2)
        };
        assert_eq!(rule(one, &[told(2)]), Some(FILTER));
    }

    #[test]
    fn previous_values_may_be_missing_where_the_change_is_compacted_and_nowhere_else() {
        let without = |revision: i64| {
            let mut events = events(revision);
            events.iter_mut().for_each(|event| event.prev_kv = None);
            WatchEvent::Events { revision, events }
        };
        assert_eq!(rule(request(2), &[without(2), without(3), told(4)]), None);
        assert_eq!(rule(request(4), &[without(4)]), Some(BEFORE));
    }

    #[test]
    fn an_initial_state_is_that_of_its_revision_and_comes_once() {
        let listing = WatchRequest {
            initial_state: true,
            ..request(0)
        };
        let state = |revision: i64| WatchEvent::State {
            kvs: model().state_at(revision),
        };
        let synced = |revision| WatchEvent::Synced { revision };
        let good = [state(4), synced(4), told(5)];
        assert_eq!(rule(listing.clone(), &good), None);
        for steps in [
            vec![state(4), synced(5)],
            vec![synced(4)],
            vec![state(4), state(4), synced(4)],
            vec![state(4), synced(4), synced(4)],
        ] {
            assert_eq!(rule(listing.clone(), &steps), Some(STATE), "{steps:?}");
        }
        assert_eq!(rule(listing, &[told(5)]), Some(ORDER), "before the state");
    }

    #[test]
    fn a_watch_resumes_where_it_was_and_a_revision_that_is_left_out_is_found() {
        let model = model();
        let marks = &mut Marks::default();
        let after = |revision: i64, marks: &mut Marks| {
            let mut watch = Watched::new(request(3));
            watch.opened(&model, 5, Some(3), marks).unwrap();
            for revision in 3..=revision {
                watch.told(&model, &told(revision), marks).unwrap();
            }
            watch
        };
        assert_eq!(after(4, marks).opened(&model, 5, Some(5), marks), Ok(()));
        for from in [3, 4, 6] {
            let resumed = after(4, marks).opened(&model, 5, Some(from), marks);
            assert_eq!(resumed.map_err(|v| v.rule), Err(RESUMES), "{from}");
        }
        let slow = Error::not_applied(ErrorKind::SlowWatcher, "slow");
        assert_eq!(after(3, marks).ended(&model, &slow, Some(4), marks), Ok(()));
        for resume in [3, 5] {
            let ended = after(3, marks).ended(&model, &slow, Some(resume), marks);
            assert_eq!(ended.map_err(|v| v.rule), Err(RESUMES), "{resume}");
        }
        assert!(after(4, marks).is_behind(&model));
        assert!(!after(5, marks).is_behind(&model));
    }

    #[test]
    fn requests_for_a_revision_are_refused_for_what_it_is() {
        let model = model();
        let marks = &mut Marks::default();
        let compacted = Error::not_applied(
            ErrorKind::Compacted {
                compact_revision: 3,
            },
            "gone",
        );
        let future = Error::not_applied(ErrorKind::FutureRevision, "not there");
        let mut read = |at, applied, refusal| {
            let applied = LogIndex(applied);
            is_readable(&model, 0, at, applied, 5, refusal, marks).is_ok()
        };
        assert!(read(2, 5, Some(&compacted)) && !read(2, 5, None));
        assert!(
            read(2, 4, None) && !read(2, 4, Some(&compacted)),
            "not applied"
        );
        assert!(read(3, 5, None) && !read(3, 5, Some(&compacted)));
        assert!(read(6, 5, Some(&future)) && !read(6, 5, None));
        let mut begin = |start, applied, refusal| {
            may_begin(&model, 0, LogIndex(applied), start, refusal, marks).is_ok()
        };
        assert!(begin(2, 5, Some(&compacted)) && !begin(2, 5, None));
        assert!(begin(2, 4, None) && begin(9, 5, None) && begin(0, 5, None));
        assert!(!begin(3, 5, Some(&compacted)) && !begin(3, 5, Some(&future)));
    }
}
