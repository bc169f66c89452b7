//! Programs with leases and watches: what etcd and a node of ours answer is equal, and each watch is told the
//! same events in the same order, which are those that a watch of everything was told.
//!
//! How events are packed into messages is left to each server, and so is when they come. Therefore both are
//! waited for before anything that would make a difference: a compaction, a cancellation, a question for
//! progress.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::super::grpc::{Channel, Stream};
use super::super::kv::{
    CompactionRequest, CompactionResponse, DeleteRangeResponse, PutResponse, RangeRequest,
    RangeResponse, TxnResponse,
};
use super::super::messages::{
    Event, EventType, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, WatchCancelRequest,
    WatchCreateRequest, WatchFilter, WatchProgressRequest, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
use super::{COMPACT, DELETE, Draw, Masked, PUT, Pair, RANGE, TXN, mask_headers, masked, pair};
use crate::harness::setting;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

const STEPS: u64 = 60;
/// Of the watch of everything, which lives as long as the test.
const EVERYTHING: i64 = 1000;
/// A lease may last for longer than the test, but not for longer than this.
const TTL_MAX: i64 = 9_000_000_000;

mask_headers!(
    LeaseGrantResponse,
    LeaseRevokeResponse,
    LeaseKeepAliveResponse
);

impl Masked for LeaseTimeToLiveResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        // Neither has an order, and the time goes on.
        self.keys.sort();
        self.ttl = self.ttl.signum();
        self
    }
}

impl Masked for LeaseLeasesResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.leases.sort_by_key(|lease| lease.id);
        self
    }
}

impl Masked for WatchResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_with_leases_and_watches_get_the_answers_and_events_that_etcd_gives() {
    let Some((pair, _etcd, _ours)) = pair().await else {
        return;
    };
    let mut watched = Watched::begin(&pair).await;
    let seed = setting("ETCD_SEED", 1);
    for number in 0..setting("ETCD_PROGRAMS", 12) {
        let number = seed.wrapping_add(number);
        let mut draw = Draw::new(number);
        for step in 0..STEPS {
            watched
                .step(&mut draw, &format!("program {number} step {step}"))
                .await;
        }
        watched.end(&format!("the end of program {number}")).await;
    }
    assert!(watched.told > 100, "{} events", watched.told);
}

/// Both, with a stream of watches and one of renewals at each.
struct Watched<'a> {
    pair: &'a Pair,
    etcd: Side,
    ours: Side,
    /// The watches that go on, and what each is of.
    watches: BTreeMap<i64, Scope>,
    compacted: i64,
    /// Events that were compared.
    told: usize,
}

/// What a watch is of.
#[derive(Clone)]
struct Scope {
    asked: WatchCreateRequest,
    /// Its first revision.
    from: i64,
}

/// What one of the two has said so far.
struct Side {
    watches: Stream,
    renewals: Stream,
    events: BTreeMap<i64, Vec<Event>>,
}

impl Watched<'_> {
    async fn begin(pair: &Pair) -> Watched<'_> {
        let mut watched = Watched {
            pair,
            etcd: Side::open(&pair.etcd).await,
            ours: Side::open(&pair.ours).await,
            watches: BTreeMap::new(),
            compacted: 0,
            told: 0,
        };
        let everything = WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: 1,
            watch_id: EVERYTHING,
            ..WatchCreateRequest::default()
        };
        watched.create(everything, "the beginning").await;
        watched
    }

    async fn step(&mut self, draw: &mut Draw, at: &str) {
        let pair = self.pair;
        match draw.below(30) {
            0..7 => {
                let mut put = draw.put();
                if put.lease == 0 && draw.one_in(2) {
                    put.lease = lease(draw);
                }
                pair.compare::<_, PutResponse>(PUT, &put, at).await;
            }
            7..9 => {
                let delete = draw.delete();
                pair.compare::<_, DeleteRangeResponse>(DELETE, &delete, at)
                    .await;
            }
            9..12 => pair.compare::<_, TxnResponse>(TXN, &draw.txn(0), at).await,
            12..18 => self.lease(draw, at).await,
            18..24 => {
                let current = self.current().await;
                let mut asked = drawn(draw, current);
                // What was deleted at the compact revision etcd tells from 3.6 on, and we do.
                if asked.start_revision == self.compacted {
                    asked.start_revision += 1;
                }
                self.create(asked, at).await;
            }
            24..27 => {
                // One that never was, at times.
                let ids: Vec<i64> = self.watches.keys().copied().collect();
                let place = usize::try_from(draw.below(4)).unwrap();
                let id = ids.get(place).copied().filter(|id| *id != EVERYTHING);
                self.cancel(id.unwrap_or(555), at).await;
            }
            27..29 => self.progress(at).await,
            _ => self.compact(draw, at).await,
        }
    }

    async fn lease(&mut self, draw: &mut Draw, at: &str) {
        let (pair, id) = (self.pair, lease(draw));
        match draw.below(6) {
            0 | 1 => {
                let ttl = [300, 1_000, 100_000, TTL_MAX, TTL_MAX + 1];
                let ttl = ttl[usize::try_from(draw.below(5)).unwrap()];
                let path = "/etcdserverpb.Lease/LeaseGrant";
                let grant = LeaseGrantRequest { ttl, id };
                pair.compare_messages::<_, LeaseGrantResponse>(path, &grant, at)
                    .await;
            }
            2 => {
                let path = "/etcdserverpb.Lease/LeaseRevoke";
                let revoke = LeaseRevokeRequest { id };
                pair.compare_messages::<_, LeaseRevokeResponse>(path, &revoke, at)
                    .await;
            }
            3 => {
                let path = "/etcdserverpb.Lease/LeaseTimeToLive";
                let keys = draw.one_in(2);
                let asked = LeaseTimeToLiveRequest { id, keys };
                pair.compare_messages::<_, LeaseTimeToLiveResponse>(path, &asked, at)
                    .await;
            }
            4 => {
                let path = "/etcdserverpb.Lease/LeaseLeases";
                let asked = LeaseLeasesRequest {};
                pair.compare_messages::<_, LeaseLeasesResponse>(path, &asked, at)
                    .await;
            }
            _ => {
                let theirs = self.etcd.renew(id).await;
                assert_eq!(
                    self.ours.renew(id).await,
                    theirs,
                    "{at}: ours is left: renewal of {id}"
                );
            }
        }
    }

    /// The current revision, at which both are.
    async fn current(&self) -> i64 {
        let read = RangeRequest {
            key: Bytes::from_static(b"k"),
            ..RangeRequest::default()
        };
        let found: RangeResponse = self.pair.ours.ask(RANGE, &read).await.unwrap();
        found.header.unwrap().revision
    }

    async fn create(&mut self, asked: WatchCreateRequest, at: &str) {
        let current = self.current().await;
        let create = || WatchRequestUnion::CreateRequest(asked.clone());
        let (theirs, ours) = self.both(create).await;
        assert_eq!(ours, theirs, "{at}: ours is left: {asked:?}");
        if ours.canceled {
            return;
        }
        let id = ours.watch_id;
        if asked.start_revision != 0 && asked.start_revision < self.compacted {
            let (theirs, ours) = (self.etcd.answer().await, self.ours.answer().await);
            assert_eq!(ours, theirs, "{at}: ours is left: {asked:?}");
            assert_eq!(
                (ours.watch_id, ours.compact_revision),
                (id, self.compacted),
                "{at}"
            );
            return;
        }
        let from = match asked.start_revision {
            0 => current + 1,
            start => start,
        };
        self.watches.insert(id, Scope { asked, from });
    }

    async fn cancel(&mut self, watch_id: i64, at: &str) {
        self.catch_up(at).await;
        let cancel = || WatchRequestUnion::CancelRequest(WatchCancelRequest { watch_id });
        if self.watches.remove(&watch_id).is_none() {
            // Neither says anything, as the next answer shows.
            self.etcd.send(cancel());
            return self.ours.send(cancel());
        }
        let (theirs, ours) = self.both(cancel).await;
        assert_eq!(ours, theirs, "{at}: ours is left: cancel {watch_id}");
        self.etcd.events.remove(&watch_id);
        self.ours.events.remove(&watch_id);
    }

    /// etcd tells its progress, whatever its watches have been told; we do once all are told what is there.
    async fn progress(&mut self, at: &str) {
        let current = self.catch_up(at).await;
        if self.watches.values().any(|scope| scope.from > current + 1) {
            return;
        }
        let progress = || WatchRequestUnion::ProgressRequest(WatchProgressRequest {});
        let (theirs, ours) = self.both(progress).await;
        assert_eq!(ours, theirs, "{at}: ours is left: progress");
    }

    async fn compact(&mut self, draw: &mut Draw, at: &str) {
        let current = self.catch_up(at).await;
        // etcd may not have looked yet for what a watch of the past is to be told, and ends it then.
        let untold = |(id, scope): (&i64, &Scope)| {
            let is_untold = self.etcd.told(*id).is_empty();
            is_untold.then_some(scope.from)
        };
        let compactable = self.watches.iter().filter_map(untold).min();
        let revision = (current - 15 + draw.below(17)).max(1);
        let compaction = CompactionRequest {
            revision: revision.min(compactable.unwrap_or(revision)),
            physical: draw.one_in(2),
        };
        self.pair
            .compare::<_, CompactionResponse>(COMPACT, &compaction, at)
            .await;
        if compaction.revision <= current {
            self.compacted = self.compacted.max(compaction.revision);
        }
    }

    /// Sends a request to both, and waits for what is said to it.
    async fn both(
        &mut self,
        request: impl Fn() -> WatchRequestUnion,
    ) -> (WatchResponse, WatchResponse) {
        self.etcd.send(request());
        self.ours.send(request());
        (self.etcd.answer().await, self.ours.answer().await)
    }

    /// Waits until every watch was told everything, and compares what that is. Returns the current revision.
    async fn catch_up(&mut self, at: &str) -> i64 {
        let current = self.current().await;
        // A store begins at revision 1, of which there is no event.
        let is_told = |events: &[Event]| revision(events.last()).max(1) >= current;
        self.etcd.read_until(EVERYTHING, is_told).await;
        self.ours.read_until(EVERYTHING, is_told).await;
        let everything = self.etcd.events[&EVERYTHING].clone();
        let ours = &self.ours.events[&EVERYTHING];
        assert_eq!(ours, &everything, "{at}: ours is left: everything");
        for (id, scope) in &self.watches {
            let expected: Vec<_> = everything.iter().filter(|event| scope.has(event)).collect();
            let is_told = |events: &[Event]| events.len() >= expected.len();
            self.etcd.read_until(*id, is_told).await;
            self.ours.read_until(*id, is_told).await;
            let (theirs, ours) = (self.etcd.told(*id), self.ours.told(*id));
            assert_eq!(
                ours, theirs,
                "{at}: ours is left: watch {id} of {:?}",
                scope.asked
            );
            let plain: Vec<Event> = theirs.into_iter().map(without_previous).collect();
            assert!(
                plain.iter().eq(expected),
                "{at}: watch {id} of {:?}: {plain:?}",
                scope.asked
            );
        }
        current
    }

    /// Ends all watches but that of everything, after a last look at them.
    async fn end(&mut self, at: &str) {
        self.catch_up(at).await;
        let told = self.ours.events.values().map(Vec::len);
        self.told += told.sum::<usize>() - self.ours.told(EVERYTHING).len();
        let ids: BTreeSet<i64> = self.watches.keys().copied().collect();
        for id in ids.into_iter().filter(|id| *id != EVERYTHING) {
            self.cancel(id, at).await;
        }
    }
}

impl Side {
    async fn open(channel: &Channel) -> Self {
        Self {
            watches: channel.begin(WATCH, &[]).await,
            renewals: channel.begin(KEEP_ALIVE, &[]).await,
            events: BTreeMap::from([(EVERYTHING, Vec::new())]),
        }
    }

    fn send(&mut self, request: WatchRequestUnion) {
        let request = Some(request);

        self.watches.send(&WatchRequest { request });
    }

    async fn renew(&mut self, id: i64) -> LeaseKeepAliveResponse {
        self.renewals.send(&LeaseKeepAliveRequest { id });
        let renewed: LeaseKeepAliveResponse = self.renewals.next().await.unwrap();
        renewed.masked()
    }

    /// The next message that is about a watch and not of what it sees.
    async fn answer(&mut self) -> WatchResponse {
        loop {
            if let Some(answer) = self.read().await {
                return answer;
            }
        }
    }

    /// Reads a message, and returns it if it has no events.
    async fn read(&mut self) -> Option<WatchResponse> {
        let response: WatchResponse = self.watches.next().await.unwrap();

        if response.events.is_empty() {
            return Some(response.masked());
        }
        let last = revision(response.events.last());
        assert!(response.header.unwrap().revision >= last, "{response:?}");
        let events = self.events.entry(response.watch_id).or_default();
        // All of a revision are in one message, unless it may be in fragments.
        assert!(
            revision(events.last()) <= revision(response.events.first()),
            "{response:?}"
        );
        events.extend(response.events);
        None
    }

    async fn read_until(&mut self, id: i64, is_enough: impl Fn(&[Event]) -> bool) {
        while !is_enough(&self.told(id)) {
            let unasked = self.read().await;
            assert_eq!(unasked, None, "while watch {id} is waited for");
        }
    }

    fn told(&self, id: i64) -> Vec<Event> {
        self.events.get(&id).cloned().unwrap_or_default()
    }
}

impl Scope {
    /// Whether a watch of it is told this event.
    fn has(&self, event: &Event) -> bool {
        let asked = &self.asked;
        let key = &event.kv.as_ref().unwrap().key;
        let first = match asked.key.is_empty() {
            true => &b"\0"[..],
            false => &asked.key,
        };
        let is_in = match &asked.range_end[..] {
            b"" => key == first,
            b"\0" => &key[..] >= first,
            end => &key[..] >= first && &key[..] < end,
        };
        let unwanted = match event.r#type == EventType::Put as i32 {
            true => WatchFilter::NoPut,
            false => WatchFilter::NoDelete,
        };
        is_in && !asked.filters.contains(&(unwanted as i32)) && revision(Some(event)) >= self.from
    }
}

fn revision(event: Option<&Event>) -> i64 {
    let kv = event.and_then(|event| event.kv.as_ref());
    kv.map_or(0, |kv| kv.mod_revision)
}

fn without_previous(event: Event) -> Event {
    Event {
        prev_kv: None,
        ..event
    }
}

/// The id of a lease: few, so that they meet.
fn lease(draw: &mut Draw) -> i64 {
    1 + draw.below(5)
}

/// A watch at or near `current`, seldom of the far past.
fn drawn(draw: &mut Draw, current: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: draw.key(),
        range_end: draw.range_end(),
        start_revision: match draw.below(4) {
            0 => (current - 25 + draw.below(30)).max(0),
            1 => (current - 3 + draw.below(5)).max(0),
            _ => 0,
        },
        filters: match draw.below(6) {
            0 => vec![WatchFilter::NoPut as i32],
            1 => vec![WatchFilter::NoDelete as i32],
            _ => Vec::new(),
        },
        prev_kv: draw.one_in(2),
        watch_id: match draw.below(5) {
            0 => 5 + draw.below(4),
            _ => 0,
        },
        fragment: draw.one_in(4),
        ..WatchCreateRequest::default()
    }
}
