//! Namespaces: a program cannot tell one from a store of its own, and reaches nothing outside of it.

use proptest::prelude::*;
use proptest::sample::select;

use super::store::{Store, storing};
use super::*;
use crate::api::{
    Compare, CompareOp, Fence, LeaseInfo, RangeRequest, TxnOp, TxnOpResponse, WatchEvent,
    WatchRequest, validate,
};
use crate::client::namespace::Namespace;
use crate::client::{PutOptions, TimeToLiveOptions, TxnOptions};

const PREFIXES: [&[u8]; 6] = [b"n/", b"n", b"\xff", b"\xff\xff", b"a\xff", b"\0"];
const KEYS: [&[u8]; 8] = [
    b"a",
    b"ab",
    b"a\0",
    b"\0",
    b"\xff",
    b"a\xff\xff",
    b"n/",
    b"z",
];

fn keys() -> impl Strategy<Value = Bytes> {
    select(&KEYS[..]).prop_map(Bytes::from_static)
}

fn ranges() -> impl Strategy<Value = (Bytes, KeyRange)> {
    let from_nothing = prop_oneof![keys(), keys(), Just(Bytes::new())];
    let range = prop_oneof![
        Just(KeyRange::Single),
        Just(KeyRange::Prefix),
        Just(KeyRange::From),
        keys().prop_map(KeyRange::Until),
    ];
    (from_nothing, range)
}

fn reads() -> impl Strategy<Value = RangeRequest> {
    (ranges(), 0..3_u64, any::<bool>()).prop_map(|((key, range), limit, keys_only)| RangeRequest {
        key,
        range,
        limit,
        keys_only,
        ..RangeRequest::default()
    })
}

fn puts() -> impl Strategy<Value = PutRequest> {
    (keys(), 0..9_u8, any::<bool>()).prop_map(|(key, value, prev_kv)| PutRequest {
        key,
        value: vec![value].into(),
        prev_kv,
        ..PutRequest::default()
    })
}

fn deletes() -> impl Strategy<Value = DeleteRangeRequest> {
    (ranges(), any::<bool>()).prop_map(|((key, range), prev_kv)| DeleteRangeRequest {
        key,
        range,
        prev_kv,
    })
}

fn transactions() -> impl Strategy<Value = TxnRequest> {
    let compare = (ranges(), 0..9_i64).prop_map(|((key, range), revision)| {
        Compare::mod_revision(key, CompareOp::Less, revision).with_range(range)
    });
    let compares = prop::collection::vec(compare, 0..3);
    let op = prop_oneof![
        reads().prop_map(TxnOp::Range),
        puts().prop_map(TxnOp::Put),
        deletes().prop_map(TxnOp::DeleteRange),
    ];
    let leaf = prop::collection::vec(op, 0..3);
    let branch = leaf.prop_recursive(2, 8, 3, |inner| {
        prop::collection::vec(
            inner.prop_map(|ops| TxnOp::txn(TxnRequest::new().and_then(ops))),
            1..3,
        )
    });
    (compares, branch.clone(), branch)
        .prop_map(|(compares, yes, no)| TxnRequest::new().when(compares).and_then(yes).or_else(no))
}

fn requests() -> impl Strategy<Value = Request> {
    prop_oneof![
        reads().prop_map(Request::Range),
        reads().prop_map(Request::RangePage),
        puts().prop_map(Request::Put),
        deletes().prop_map(Request::DeleteRange),
        transactions().prop_map(Request::Txn),
    ]
}

fn watches() -> impl Strategy<Value = WatchRequest> {
    ranges().prop_map(|(key, range)| WatchRequest {
        key,
        range,
        ..WatchRequest::default()
    })
}

/// Keys beside those of the namespace, as near as they come.
fn outside(prefix: &[u8]) -> Vec<Bytes> {
    let mut before = prefix.to_vec();
    let last = before.pop().unwrap();
    let next = |last: u8| [&before[..], &[last]].concat();
    let mut all = vec![
        prefix.to_vec(),
        b"\0\0".to_vec(),
        b"m".to_vec(),
        b"z".to_vec(),
    ];
    all.extend((!before.is_empty()).then(|| before.clone()));
    all.extend(
        last.checked_sub(1)
            .map(|last| [&next(last)[..], b"\xff"].concat()),
    );
    all.extend(last.checked_add(1).map(next));
    let is_inside = |key: &[u8]| key.len() > prefix.len() && key.starts_with(prefix);
    all.retain(|key| !is_inside(key));
    all.into_iter().map(Bytes::from).collect()
}

fn put_all(store: &mut Store, keys: &[Bytes]) {
    let puts = keys.iter().map(|key| TxnOp::put(key.clone(), "outside"));
    let mut keys = std::collections::BTreeSet::new();
    let puts = puts.filter(|put| matches!(put, TxnOp::Put(put) if keys.insert(put.key.clone())));
    store.write(&TxnRequest::new().and_then(puts.collect::<Vec<_>>()));
}

fn ask(store: &mut Store, request: &Request) -> ResponseBody {
    let frame = ClientFrame {
        request_id: 1,
        call: crate::api::Call {
            timeout_ms: 1000,
            consistency: Consistency::Linearizable,
            min_revision: 0,
            session: None,
            request: request.clone(),
        },
    };
    store.answer("n1", &frame).unwrap().body
}

fn within(prefix: &[u8]) -> Namespace {
    Namespace::of(Bytes::copy_from_slice(prefix)).unwrap()
}

proptest! {
    /// Whatever is asked, the answers are those of a store that holds nothing else.
    #[test]
    fn a_namespace_is_like_a_store_of_its_own(
        prefix in select(&PREFIXES[..]),
        program in prop::collection::vec((requests(), watches()), 1..12),
    ) {
        let namespace = within(prefix);
        let (mut all, mut own) = (Store::default(), Store::default());
        let others = outside(prefix);
        put_all(&mut all, &others);
        own.put("a", "so that both are at the same revision");
        put_all(&mut all, &[Bytes::from_static(b"y")]);
        own.delete("a");
        let (before, start) = (all.keys().clone(), own.revision());
        for (request, watch) in program {
            let is_valid = |request: &Request| validate(request, &crate::api::Limits::DEFAULT).is_ok();
            if !is_valid(&request) {
                continue;
            }
            let mut full = request.clone();
            namespace.enter(&mut full);
            if !is_valid(&full) {
                // What ends at the first key that there can be holds none, and is refused.
                continue;
            }
            let mut answer = ask(&mut all, &full);
            prop_assert_eq!(namespace.leave(&mut answer), Ok(()));
            prop_assert_eq!(answer, ask(&mut own, &request));

            let mut full = Request::Watch { watch_id: 1, watch: watch.clone() };
            if !is_valid(&full) {
                continue;
            }
            namespace.enter(&mut full);
            // What each store began with is its own.
            if let Request::Watch { watch: full, .. } = &full
                && own.revision() > start
                && full.validate(&crate::api::Limits::DEFAULT).is_ok()
            {
                let revision = own.revision();
                let events = all.changes(revision, full);
                let mut seen = WatchEvent::Events { revision, events };
                prop_assert_eq!(namespace.leave_event(&mut seen), Ok(()));
                let events = own.changes(revision, &watch);
                prop_assert_eq!(seen, WatchEvent::Events { revision, events });
            }
        }
        let is_outside = |key: &Bytes| before.contains_key(key);
        let mut after = all.keys().clone();
        after.retain(|key, _| is_outside(key));
        prop_assert_eq!(after, before.clone());
        let inside = all.keys().keys().filter(|key| !is_outside(key));
        let inside = inside.map(|key| key.strip_prefix(prefix).unwrap().to_vec());
        prop_assert!(inside.eq(own.keys().keys().map(|key| key.to_vec())));
    }
}

/// Every door of the client, beside a store that holds more.
#[test]
fn every_request_is_made_in_the_namespace() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        for key in ["a/b/", "a/b", "a/c", "k", "z"] {
            store.lock().unwrap().put(key, "outside");
        }
        let before = store.lock().unwrap().keys().clone();
        let node = fake(&authority, "n1", storing(&store));
        let root = connect(&authority, &[&node]).await;
        let client = root.with_namespace("a/").with_namespace("b/");
        assert_eq!(
            (client.namespace(), root.namespace()),
            (&b"a/b/"[..], &b""[..])
        );
        assert_eq!(root.with_namespace("").namespace(), b"");
        let value = |key: &str| store.lock().unwrap().value(key);

        client.put("k", "1", None).await.unwrap();
        assert_eq!(value("a/b/k").unwrap(), "1");
        let found = client.get("k", None).await.unwrap();
        assert_eq!(
            (found.kvs[0].key.as_ref(), found.kvs[0].value.as_ref()),
            (&b"k"[..], &b"1"[..])
        );
        let prev = PutOptions::new().with_prev_kv();
        let put = client.put("k", "2", Some(prev)).await.unwrap();
        assert_eq!(put.prev_kv.unwrap().key, "k");
        let all = || Some(GetOptions::new().with_all_keys());
        let found = client.get("", all()).await.unwrap();
        assert_eq!(
            (found.count, found.kvs[0].key.as_ref()),
            (Some(1), &b"k"[..])
        );
        let mut stream = client.get_stream("", all()).unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap().key, "k");
        assert!(stream.next().await.is_none());

        let taken = client.create("k", "3").await.unwrap();
        assert_eq!(taken.current.unwrap().key, "k");
        let token = found.kvs[0].create_revision;
        let fenced = PutOptions::new().with_fence("k", token);
        client.put("l", "4", Some(fenced)).await.unwrap();
        assert_eq!(value("a/b/l").unwrap(), "4");
        let behind = TxnOptions::new().with_fence("k", token);
        let txn = TxnRequest::new().and_then([TxnOp::get("l"), TxnOp::delete("k")]);
        let done = client.txn(txn, Some(behind)).await.unwrap();
        let TxnOpResponse::Range(range) = &done.responses[0] else {
            panic!("{done:?}");
        };
        assert_eq!(
            (range.kvs[0].key.as_ref(), value("a/b/k")),
            (&b"l"[..], None)
        );
        let late = PutOptions::new().with_fence("k", token);
        let error = client.put("l", "5", Some(late)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Fenced { current: 0 });

        let put = PutRequest {
            key: "m".into(),
            ..PutRequest::default()
        };
        client
            .call(Request::Put(put), Consistency::Linearizable)
            .await
            .unwrap();
        let read = Request::Range(RangeRequest {
            key: "m".into(),
            ..RangeRequest::default()
        });
        let at = client.call_at(&node.address, read, Consistency::Linearizable);
        let ResponseBody::Range(range) = at.await.unwrap().body else {
            panic!("it is another answer");
        };
        assert_eq!(range.kvs[0].key, "m");
        let everything = DeleteOptions::new().with_all_keys();
        assert_eq!(
            client.delete("", Some(everything)).await.unwrap().deleted,
            2
        );
        assert_eq!(store.lock().unwrap().keys(), &before);

        let ttl = Duration::from_secs(10);
        let kept = client.put_with_new_lease("n", "5", ttl, None).await;
        drop(kept.unwrap());
        let last = node
            .calls()
            .into_iter()
            .rev()
            .find_map(|frame| match frame.call.request {
                Request::PutWithNewLease(_, put) => Some(put.key),
                _ => None,
            });
        assert_eq!(last.unwrap(), "a/b/n");
    });
}

#[test]
fn a_key_without_a_name_is_refused_and_a_key_counts_with_its_prefix() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let node = fake(&authority, "n1", storing(&store));
        let client = connect(&authority, &[&node]).await.with_namespace("n/");
        client.get("warm", None).await.unwrap();
        let calls = node.calls().len();
        let invalid = |error: Error| assert_eq!(error.kind, ErrorKind::InvalidArgument);
        invalid(client.get("", None).await.unwrap_err());
        invalid(client.put("", "v", None).await.unwrap_err());
        invalid(client.delete("", None).await.unwrap_err());
        invalid(client.create("", "v").await.unwrap_err());
        invalid(client.watch("", None).await.unwrap_err());
        // Nothing can be before the first key.
        let none = GetOptions::new().with_range("\0");
        invalid(client.get("", Some(none)).await.unwrap_err());
        let long = "k".repeat(crate::api::Limits::DEFAULT.key_bytes_max - 1);
        let error = client.get(&long, None).await.unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::RequestTooLarge { .. }),
            "{error}"
        );
        let error = client.watch(&long, None).await.unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::RequestTooLarge { .. }),
            "{error}"
        );
        assert_eq!(node.calls().len(), calls, "nothing was sent");
    });
}

#[test]
fn of_a_lease_those_keys_are_told_that_are_in_the_namespace() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| {
            let mut told = answer("n1", frame).unwrap();
            if let ResponseBody::LeaseTimeToLive(info) = &mut told.body {
                let keys = ["n", "n/", "n/k", "o"].map(|key: &'static str| Bytes::from(key));
                **info = LeaseInfo {
                    keys: keys.to_vec(),
                    key_count: 4,
                    ..LeaseInfo::default()
                };
            }
            reply(Ok(told))
        });
        let client = connect(&authority, &[&node]).await.with_namespace("n/");
        let options = TimeToLiveOptions::new().with_keys();
        let info = client.lease().time_to_live(9, Some(options)).await.unwrap();
        assert_eq!((info.keys, info.key_count), (vec![Bytes::from("k")], 4));
    });
}

/// A node that answers with other keys than were asked for is not believed.
#[test]
fn a_key_from_outside_is_an_error() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| {
            let mut told = answer("n1", frame).unwrap();
            let foreign = KeyValue {
                key: "other".into(),
                ..KeyValue::default()
            };
            match &mut told.body {
                ResponseBody::Range(range) => range.kvs = vec![foreign],
                ResponseBody::RangePage(page) => page.kvs = vec![foreign],
                ResponseBody::Put(put) => put.prev_kv = Some(foreign),
                _ => {}
            }
            reply(Ok(told))
        });
        let client = connect(&authority, &[&node]).await.with_namespace("n/");
        for _ in 0..2 {
            let error = client.get("k", None).await.unwrap_err();
            assert_eq!(
                (error.kind, error.outcome),
                (ErrorKind::Internal, Outcome::NotApplied)
            );
        }
        let mut stream = client.get_stream("k", None).unwrap();
        assert!(stream.next().await.unwrap().is_err());
        let error = client.put("k", "v", None).await.unwrap_err();
        assert_eq!(
            (error.kind, error.outcome),
            (ErrorKind::Internal, Outcome::Applied)
        );
    });
}

#[test]
fn a_fence_of_a_namespace_is_one_of_its_keys() {
    let namespace = within(b"n/");
    let fences = [Fence::new("lock/1", 7)];
    let mut fenced = Request::Txn(TxnRequest::fenced(&fences, TxnOp::put("k", "v")).unwrap());
    namespace.enter(&mut fenced);
    let expected = [Fence::new("n/lock/1", 7)];
    let expected = TxnRequest::fenced(&expected, TxnOp::put("n/k", "v")).unwrap();
    assert_eq!(fenced, Request::Txn(expected));
}
