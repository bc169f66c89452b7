//! Programs with leases and watches: what etcd and a node of ours answer is equal, and each watch is told the
//! same events in the same order, which are those that a watch of everything was told.
//!
//! How events are packed into messages is left to each server, and so is when they come. Therefore both are
//! waited for before anything that would make a difference: a compaction, a cancellation, a question for
//! progress.

mod lines;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

use super::super::grpc::{Channel, Stream};
use super::super::http::Connection;
use super::super::json::Json;
use super::super::kv::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse,
};
use super::super::messages::{
    Event, EventType, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, WatchCancelRequest,
    WatchCreateRequest, WatchFilter, WatchProgressRequest, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
use super::texts::{sorted, without_values};
use super::{
    COMPACT, DELETE, Draw, Ended, KEYS, Kind, Masked, PUT, Pair, STEPS, TXN, compare_programs,
    done, mask_headers, masked, masked_text, run_steps, same,
};
use crate::harness::PATIENCE;
use lines::events_of;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";

/// How many revisions back a watch begins at most.
const PAST: i64 = 25;
/// Of the watch of everything, which lives as long as its program.
const EVERYTHING: i64 = 1000;
/// No watch: those without an id are counted from 0.
const NO_WATCH: i64 = 900_000_000;
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

    fn masked_text(text: &str) -> String {
        let text = sorted(&masked_text(text), "keys");
        match text.contains("\"TTL\":\"-1\"") {
            true => text,
            false => without_values(&text, "TTL"),
        }
    }
}

impl Masked for LeaseLeasesResponse {
    fn masked(mut self) -> Self {
        masked(&mut self.header);
        self.leases.sort_by_key(|lease| lease.id);
        self
    }

    fn masked_text(text: &str) -> String {
        sorted(&masked_text(text), "leases")
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
    compare_programs::<Watched>(false, 12).await;
}

/// Each watch has a call of its own: etcd's gateway answers over HTTP/1.1 once a request is whole.
#[tokio::test(flavor = "multi_thread")]
async fn programs_with_leases_and_watches_in_json_get_what_etcd_s_gateway_gives() {
    compare_programs::<Watched>(true, 8).await;
}

/// So that the steps it takes are found and told.
#[tokio::test]
async fn a_line_of_a_watch_that_does_not_come_is_a_difference() {
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut side = Side {
        calls: Calls::Lines {
            address: silent.local_addr().unwrap(),
            open: BTreeMap::new(),
            next: EVERYTHING,
        },
        renewals: None,
        events: BTreeMap::new(),
        patience: Duration::from_millis(1),
    };
    let asked = WatchCreateRequest::default();
    side.ask_for(&asked);
    let created = side.created(&asked).await;
    assert!(matches!(created, Err(Ended::Differs(_))));
    let read = side.read(EVERYTHING).await;
    assert!(matches!(read, Err(Ended::Differs(_))));
}

/// Both, with the watches of a program and a stream of renewals at each.
struct Watched {
    pair: Pair,
    /// etcd's and ours.
    sides: [Side; 2],
    /// The watches that go on, and what each is of.
    watches: BTreeMap<i64, Scope>,
    /// The revision at which the program began, and its newest compaction.
    begun: i64,
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
    calls: Calls,
    renewals: Option<Stream>,
    events: BTreeMap<i64, Vec<Told>>,
    /// For how long it waits for a message.
    patience: Duration,
}

/// How watches are asked for.
enum Calls {
    /// All on one stream.
    Messages(Option<Stream>),
    /// In JSON, each by a call of its own, numbered as they come.
    Lines {
        address: SocketAddr,
        open: BTreeMap<i64, Connection>,
        next: i64,
    },
}

/// An event, and its text in JSON.
type Told = (Event, String);

/// A message that is about a watch and not of what it sees, and its text in JSON.
type Answer = (WatchResponse, String);

impl Kind for Watched {
    const STEPS: u64 = STEPS;
    const FOUND: &'static [(u64, &'static [u64])] = &[];

    fn new(pair: Pair) -> Self {
        let side = |address| Side {
            calls: match pair.in_json {
                Some(_) => Calls::Lines {
                    address,
                    open: BTreeMap::new(),
                    next: 0,
                },
                None => Calls::Messages(None),
            },
            renewals: None,
            events: BTreeMap::new(),
            patience: PATIENCE / 2,
        };
        Self {
            sides: pair.addresses.map(side),
            pair,
            watches: BTreeMap::new(),
            begun: 0,
            compacted: 0,
            told: 0,
        }
    }

    fn pair(&self) -> &Pair {
        &self.pair
    }

    async fn run(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        let ran = self.run_from_the_beginning(program, steps).await;
        if let Err(Ended::Differs(_)) = &ran {
            for side in &mut self.sides {
                // The steps that it takes are found by trying.
                side.patience = PATIENCE / 20;
            }
        }
        ran
    }

    fn end(self) {
        assert!(self.told > 0, "no event was compared");
    }
}

impl Watched {
    async fn run_from_the_beginning(&mut self, program: u64, steps: &[u64]) -> Result<(), Ended> {
        self.begin().await?;
        let begun = self.begun;
        let step = async |_, draw: &mut Draw| self.step(draw).await;
        run_steps(program, steps, begun, step).await?;
        let ended = self.conclude().await;
        ended.map_err(|ended| ended.at(&format!("the end of program {program}")))?;
        let told = self.sides[1].events.iter();
        let told = told.filter(|(id, _)| **id != EVERYTHING);
        self.told += told.map(|(_, events)| events.len()).sum::<usize>();
        Ok(())
    }

    /// From no keys, no leases, no history and new streams.
    async fn begin(&mut self) -> Result<(), Ended> {
        let pair = &self.pair;
        for channel in [&pair.etcd, &pair.ours] {
            let listed = channel.ask(LEASES, &LeaseLeasesRequest {}).await;
            let listed: LeaseLeasesResponse = done(listed)?;
            for lease in listed.leases {
                let revoke = LeaseRevokeRequest { id: lease.id };
                done(channel.ask::<LeaseRevokeResponse>(REVOKE, &revoke).await)?;
            }
        }
        self.begun = pair.empty_and_compact().await?;
        self.compacted = self.begun;
        self.watches.clear();
        for (side, channel) in self.sides.iter_mut().zip([&pair.etcd, &pair.ours]) {
            side.begin(channel).await;
        }
        let everything = WatchCreateRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            start_revision: self.begun + 1,
            watch_id: EVERYTHING,
            ..WatchCreateRequest::default()
        };
        self.create(everything).await
    }

    async fn step(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let pair = &self.pair;
        match draw.below(30) {
            0..7 => {
                let mut put = draw.put();
                if put.lease == 0 && draw.one_in(2) {
                    put.lease = lease(draw);
                }
                pair.differ::<_, PutResponse>(PUT, &put).await
            }
            7..9 => {
                let delete = draw.delete();
                pair.differ::<_, DeleteRangeResponse>(DELETE, &delete).await
            }
            9..12 => pair.differ::<_, TxnResponse>(TXN, &draw.txn(0)).await,
            12..18 => self.lease(draw).await,
            18..24 => {
                let current = self.pair.current().await?;
                let mut asked = drawn(draw, current);
                // What was deleted at the compact revision etcd tells from 3.6 on, and we do.
                if asked.start_revision == self.compacted {
                    asked.start_revision += 1;
                }
                self.create(asked).await
            }
            24..27 => {
                // One that never was, at times.
                let ids: Vec<i64> = self.watches.keys().copied().collect();
                let place = usize::try_from(draw.below(4)).unwrap();
                let id = ids.get(place).copied().filter(|id| *id != EVERYTHING);
                self.cancel(id.unwrap_or(NO_WATCH)).await
            }
            27..29 => self.progress().await,
            _ => self.compact(draw).await,
        }
    }

    async fn lease(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let (pair, id) = (&self.pair, lease(draw));
        match draw.below(6) {
            0 | 1 => {
                let ttl = [300, 1_000, 100_000, TTL_MAX, TTL_MAX + 1];
                let ttl = ttl[usize::try_from(draw.below(5)).unwrap()];
                let path = "/etcdserverpb.Lease/LeaseGrant";
                let grant = LeaseGrantRequest { ttl, id };
                pair.differ::<_, LeaseGrantResponse>(path, &grant).await
            }
            2 => {
                let revoke = LeaseRevokeRequest { id };
                pair.differ::<_, LeaseRevokeResponse>(REVOKE, &revoke).await
            }
            3 => {
                let path = "/etcdserverpb.Lease/LeaseTimeToLive";
                let keys = draw.one_in(2);
                let asked = LeaseTimeToLiveRequest { id, keys };
                pair.differ::<_, LeaseTimeToLiveResponse>(path, &asked)
                    .await
            }
            4 => {
                let asked = LeaseLeasesRequest {};
                pair.differ::<_, LeaseLeasesResponse>(LEASES, &asked).await
            }
            _ if pair.in_json.is_some() => {
                let renewal = LeaseKeepAliveRequest { id };
                pair.differ::<_, LeaseKeepAliveResponse>(KEEP_ALIVE, &renewal)
                    .await
            }
            _ => {
                let [etcd, ours] = &mut self.sides;
                let theirs = etcd.renew(id).await;
                same(&ours.renew(id).await, &theirs, KEEP_ALIVE, &id)
            }
        }
    }

    async fn create(&mut self, asked: WatchCreateRequest) -> Result<(), Ended> {
        let current = self.pair.current().await?;
        let [etcd, ours] = &mut self.sides;
        etcd.ask_for(&asked);
        ours.ask_for(&asked);
        let theirs = etcd.created(&asked).await?;
        let own = ours.created(&asked).await?;
        same(&own, &theirs, WATCH, &asked)?;
        let Some(id) = own.0 else {
            return Ok(());
        };
        if asked.start_revision != 0 && asked.start_revision < self.compacted {
            let (theirs, own) = (etcd.answer(id).await?, ours.answer(id).await?);
            same(&own, &theirs, "the end of a watch", &asked)?;
            let told = own.0.compact_revision;
            assert_eq!(told, self.compacted, "{asked:?}");
            etcd.forget(id);
            ours.forget(id);
            return Ok(());
        }
        let from = match asked.start_revision {
            0 => current + 1,
            start => start,
        };
        self.watches.insert(id, Scope { asked, from });
        Ok(())
    }

    async fn cancel(&mut self, watch_id: i64) -> Result<(), Ended> {
        self.catch_up().await?;
        let is_there = self.watches.remove(&watch_id).is_some();
        let [etcd, ours] = &mut self.sides;
        let cancel = || WatchRequestUnion::CancelRequest(WatchCancelRequest { watch_id });
        let is_told = etcd.send(cancel()) && ours.send(cancel());
        // Of one that is not there neither says anything, as the next answer shows.
        if is_there && is_told {
            let theirs = etcd.answer(watch_id).await?;
            same(&ours.answer(watch_id).await?, &theirs, "cancel", &watch_id)?;
        }
        etcd.forget(watch_id);
        ours.forget(watch_id);
        Ok(())
    }

    /// etcd tells its progress, whatever its watches have been told; we do once all are told what is there.
    async fn progress(&mut self) -> Result<(), Ended> {
        let current = self.catch_up().await?;
        if self.watches.values().any(|scope| scope.from > current + 1) {
            return Ok(());
        }
        let [etcd, ours] = &mut self.sides;
        let progress = || WatchRequestUnion::ProgressRequest(WatchProgressRequest {});
        if !(etcd.send(progress()) && ours.send(progress())) {
            return Ok(());
        }
        let theirs = etcd.answer(EVERYTHING).await?;
        same(&ours.answer(EVERYTHING).await?, &theirs, "progress", &())
    }

    async fn compact(&mut self, draw: &mut Draw) -> Result<(), Ended> {
        let current = self.catch_up().await?;
        // etcd may not have looked yet for what a watch of the past is to be told, and ends it then.
        let untold = |(id, scope): (&i64, &Scope)| {
            let is_untold = self.sides[0].told(*id).is_empty();
            is_untold.then_some(scope.from)
        };
        let compactable = self.watches.iter().filter_map(untold).min();
        let revision = (current - 15 + draw.below(17)).max(1);
        let compaction = CompactionRequest {
            revision: revision.min(compactable.unwrap_or(revision)),
            physical: draw.one_in(2),
        };
        let compared = self
            .pair
            .differ::<_, CompactionResponse>(COMPACT, &compaction);
        compared.await?;
        if compaction.revision <= current {
            self.compacted = self.compacted.max(compaction.revision);
        }
        Ok(())
    }

    /// Gives every watch something to tell, before which it must have told all else, and nothing that it must not.
    async fn conclude(&mut self) -> Result<(), Ended> {
        let put = |key: &&'static [u8]| RequestOp {
            request: Some(RequestUnion::RequestPut(PutRequest {
                key: Bytes::from_static(key),
                ..PutRequest::default()
            })),
        };
        let puts = TxnRequest {
            success: KEYS.iter().map(put).collect(),
            ..TxnRequest::default()
        };
        let everything = DeleteRangeRequest {
            key: Bytes::from_static(b"\0"),
            range_end: Bytes::from_static(b"\0"),
            prev_kv: true,
        };
        // Twice, for those that are told of one of the two alone.
        for _ in 0..2 {
            let pair = &self.pair;
            pair.differ::<_, TxnResponse>(TXN, &puts).await?;
            pair.differ::<_, DeleteRangeResponse>(DELETE, &everything)
                .await?;
        }
        self.catch_up().await.map(drop)
    }

    /// Waits until every watch was told everything, and compares what that is. Returns the current revision.
    async fn catch_up(&mut self) -> Result<i64, Ended> {
        let current = self.pair.current().await?;
        let begun = self.begun;
        let is_told = |events: &[Told]| revision(events.last()).max(begun) >= current;
        for side in &mut self.sides {
            side.read_until(EVERYTHING, is_told).await?;
        }
        let everything = self.sides[0].told(EVERYTHING);
        same(
            &self.sides[1].told(EVERYTHING),
            &everything,
            WATCH,
            &"everything",
        )?;
        for (id, scope) in &self.watches {
            let expected = everything.iter().filter(|told| scope.has(&told.0));
            let expected: Vec<&Event> = expected.map(|told| &told.0).collect();
            let is_told = |events: &[Told]| events.len() >= expected.len();
            for side in &mut self.sides {
                side.read_until(*id, is_told).await?;
            }
            let theirs = self.sides[0].told(*id);
            same(&self.sides[1].told(*id), &theirs, "events", &scope.asked)?;
            let plain: Vec<Event> = theirs.into_iter().map(without_previous).collect();
            if !plain.iter().eq(expected) {
                let told = format!("watch {id} of {:?} is told {plain:?}", scope.asked);
                return Err(Ended::Differs(told));
            }
        }
        Ok(current)
    }
}

impl Side {
    /// Ends what goes on, and begins anew.
    async fn begin(&mut self, channel: &Channel) {
        self.events = BTreeMap::from([(EVERYTHING, Vec::new())]);
        match &mut self.calls {
            Calls::Messages(stream) => {
                *stream = Some(channel.begin(WATCH, &[]).await);
                self.renewals = Some(channel.begin(KEEP_ALIVE, &[]).await);
            }
            Calls::Lines { open, next, .. } => {
                open.clear();
                *next = EVERYTHING;
            }
        }
    }

    /// Asks for a watch, whose answer is read later.
    fn ask_for(&mut self, asked: &WatchCreateRequest) {
        if self.send(WatchRequestUnion::CreateRequest(asked.clone())) {
            return;
        }
        if let Calls::Lines {
            address,
            open,
            next,
        } = &mut self.calls
        {
            let mut call = Connection::open(*address);
            call.begin("/v3/watch");
            let text = asked.json(asked.encoded_len());
            call.send(&format!("{{\"create_request\":{text}}}"));
            call.finish();
            open.insert(*next, call);
        }
    }

    /// The number of the watch that was asked for, unless it is refused, and what is said of it.
    async fn created(
        &mut self,
        asked: &WatchCreateRequest,
    ) -> Result<(Option<i64>, Answer), Ended> {
        let number = match &mut self.calls {
            Calls::Messages(_) => None,
            Calls::Lines { open, next, .. } => {
                let call = open.get_mut(next).unwrap();
                call.set_patience(self.patience);
                *next += 1;
                match call.try_head().map_err(silence)? {
                    (200, _) => Some(*next - 1),
                    (_, head) => return Err(Ended::Differs(format!("{asked:?}: {head}"))),
                }
            }
        };
        let answer = self.answer(number.unwrap_or_default()).await?;
        let id = number.unwrap_or(answer.0.watch_id);
        Ok(((!answer.0.canceled).then_some(id), answer))
    }

    /// Sends a request on the stream that all watches share, if they do.
    fn send(&mut self, request: WatchRequestUnion) -> bool {
        let Calls::Messages(Some(stream)) = &mut self.calls else {
            return false;
        };
        let request = Some(request);
        stream.send(&WatchRequest { request });
        true
    }

    fn forget(&mut self, id: i64) {
        self.events.remove(&id);
        if let Calls::Lines { open, .. } = &mut self.calls {
            open.remove(&id);
        }
    }

    async fn renew(&mut self, id: i64) -> Result<LeaseKeepAliveResponse, (i32, String)> {
        let renewals = self.renewals.as_mut().unwrap();
        renewals.send(&LeaseKeepAliveRequest { id });
        renewals.next().await.map(LeaseKeepAliveResponse::masked)
    }

    /// The next message that is about a watch and not of what it sees; of this one, if each has its call.
    async fn answer(&mut self, id: i64) -> Result<Answer, Ended> {
        loop {
            if let Some(answer) = self.read(id).await? {
                return Ok(answer);
            }
        }
    }

    /// Reads a message, and returns it if it has no events.
    async fn read(&mut self, number: i64) -> Result<Option<Answer>, Ended> {
        let (response, texts, id) = match &mut self.calls {
            Calls::Messages(stream) => {
                let next = stream.as_mut().unwrap().next::<WatchResponse>();
                let Ok(next) = tokio::time::timeout(self.patience, next).await else {
                    return Err(Ended::Differs("nothing came".to_owned()));
                };
                let response = next.map_err(|end| Ended::Differs(format!("it ended: {end:?}")))?;
                let (texts, id) = (
                    vec![String::new(); response.events.len()],
                    response.watch_id,
                );
                (response, texts, id)
            }
            Calls::Lines { open, .. } => {
                let call = open.get_mut(&number).unwrap();
                call.set_patience(self.patience);
                let ended = |how: &str| Ended::Differs(format!("it ended: {how}"));
                let line = call.try_line().map_err(silence)?;
                let line = line.ok_or_else(|| ended("no more lines"))?;
                let (head, texts) = events_of(&line);
                let response = lines::read(&line).ok_or_else(|| ended(&line))?;
                if texts.is_empty() {
                    return Ok(Some((response.masked(), masked_text(&head))));
                }
                (response, texts, number)
            }
        };
        if response.events.is_empty() {
            return Ok(Some((response.masked(), String::new())));
        }
        let last = response.events.last().map_or(0, mod_revision);
        let first = response.events.first().map_or(0, mod_revision);
        let events = self.events.entry(id).or_default();
        // All of a revision are in one message, unless it may be in fragments.
        let is_in_order = revision(events.last()) <= first;
        if !is_in_order || response.header.unwrap().revision < last {
            return Err(Ended::Differs(format!("out of order: {response:?}")));
        }
        events.extend(response.events.into_iter().zip(texts));
        Ok(None)
    }

    async fn read_until(
        &mut self,
        id: i64,
        is_enough: impl Fn(&[Told]) -> bool,
    ) -> Result<(), Ended> {
        while !is_enough(&self.told(id)) {
            let waited = self.read(id).await;
            let unasked = waited.map_err(|ended| ended.at(&format!("watch {id}")))?;
            if let Some(unasked) = unasked {
                return Err(Ended::Differs(format!("watch {id} is told {unasked:?}")));
            }
        }
        Ok(())
    }

    fn told(&self, id: i64) -> Vec<Told> {
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
        is_in && !asked.filters.contains(&(unwanted as i32)) && mod_revision(event) >= self.from
    }
}

/// A line that does not come is a difference as any other.
fn silence(error: io::Error) -> Ended {
    Ended::Differs(format!("nothing came: {error}"))
}

fn mod_revision(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |kv| kv.mod_revision)
}

fn revision(told: Option<&Told>) -> i64 {
    told.map_or(0, |told| mod_revision(&told.0))
}

fn without_previous((event, _): Told) -> Event {
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
            0 => (current - PAST + draw.below(30)).max(0),
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
