//! What cannot be asked of the data model, asked at its widest doors: of a server by a client that
//! checks nothing itself, and of a cluster by the SDK.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leasehold::api::{
    CompactionRequest, Compare, CompareOp, DeleteRangeRequest, ErrorKind, KeyRange, Limits,
    Outcome, PutRequest, RangeRequest, Request, ResponseBody, TxnOp, TxnRequest, WatchRequest,
};
use leasehold::client::{GetOptions, PutOptions, WatchEvent, WatchOptions};

use crate::harness::{Cluster, PATIENCE, eventually};
use crate::watches::Raw;

/// A range of keys from `b` back to `a`.
fn inverted() -> RangeRequest {
    RangeRequest {
        key: "b".into(),
        range: KeyRange::Until("a".into()),
        ..RangeRequest::default()
    }
}

fn at(revision: i64) -> RangeRequest {
    RangeRequest {
        key: "k".into(),
        revision,
        ..RangeRequest::default()
    }
}

/// Nothing that is refused below changes anything, or costs the connection.
async fn is_unmoved(raw: &mut Raw, revision: i64) {
    let all = RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    match raw.ask(Request::Range(all)).await {
        Ok(ResponseBody::Range(found)) => {
            let newest = found.kvs.iter().map(|kv| kv.mod_revision).max();
            assert_eq!((found.count, newest), (1, Some(revision)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revisions_that_are_compacted_or_yet_to_come_are_refused_at_every_door() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let mut newest = 0;
    for value in ["1", "2", "3"] {
        newest = client.put("k", value, None).await.unwrap().header.revision;
    }
    let compact_revision = newest - 1;
    client.compact(compact_revision, None).await.unwrap();
    let mut raw = Raw::connect(&cluster).await;
    let in_txn = |range| Request::Txn(TxnRequest::new().and_then([TxnOp::Range(range)]));
    let after_put = |range| {
        let ops = [TxnOp::put("other", ""), TxnOp::Range(range)];
        Request::Txn(TxnRequest::new().and_then(ops))
    };
    let reads = [Request::Range, Request::RangePage, in_txn, after_put];
    for read in reads {
        for gone in [1, compact_revision - 1] {
            let refused = raw.ask(read(at(gone))).await.unwrap_err();
            assert_eq!(refused, ErrorKind::Compacted { compact_revision });
        }
        let refused = raw.ask(read(at(newest + 1))).await.unwrap_err();
        assert_eq!(refused, ErrorKind::FutureRevision);
        let refused = raw.ask(read(at(-1))).await.unwrap_err();
        assert_eq!(refused, ErrorKind::InvalidArgument);
    }
    let compact = |revision| Request::Compact(CompactionRequest::at(revision));
    for (revision, kind) in [
        (compact_revision, ErrorKind::Compacted { compact_revision }),
        (1, ErrorKind::Compacted { compact_revision }),
        (newest + 1, ErrorKind::FutureRevision),
        (0, ErrorKind::InvalidArgument),
        (i64::MIN, ErrorKind::InvalidArgument),
    ] {
        assert_eq!(raw.ask(compact(revision)).await, Err(kind));
    }
    for start_revision in [1, compact_revision - 1, -1, i64::MIN] {
        let watch = WatchRequest {
            key: "k".into(),
            start_revision,
            ..WatchRequest::default()
        };
        let asked = Request::Watch { watch_id: 1, watch };
        let refused = raw.ask(asked).await.unwrap_err();
        assert_eq!(refused, ErrorKind::Compacted { compact_revision });
    }
    // What is left can be read, and a transaction that was refused has put nothing.
    assert!(raw.ask(Request::Range(at(compact_revision))).await.is_ok());
    is_unmoved(&mut raw, newest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inverted_ranges_are_refused_at_every_door_and_delete_nothing() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let newest = client.put("k", "v", None).await.unwrap().header.revision;
    let mut raw = Raw::connect(&cluster).await;
    let RangeRequest { key, range, .. } = inverted();
    let delete = || DeleteRangeRequest {
        key: key.clone(),
        range: range.clone(),
        prev_kv: false,
    };
    let compare = Compare::version(key.clone(), CompareOp::Equal, 0).with_range(range.clone());
    let txn = |ops: Vec<TxnOp>| Request::Txn(TxnRequest::new().and_then(ops));
    let watch = WatchRequest {
        key: key.clone(),
        range: range.clone(),
        ..WatchRequest::default()
    };
    let empty = RangeRequest {
        key: "a".into(),
        range: KeyRange::Until("a".into()),
        ..RangeRequest::default()
    };
    let bad = [
        Request::Range(inverted()),
        Request::Range(empty),
        Request::RangePage(inverted()),
        Request::DeleteRange(delete()),
        Request::Watch { watch_id: 1, watch },
        txn(vec![TxnOp::Range(inverted())]),
        txn(vec![TxnOp::put("x", ""), TxnOp::DeleteRange(delete())]),
        Request::Txn(
            TxnRequest::new()
                .when([compare])
                .and_then([TxnOp::put("x", "")]),
        ),
    ];
    for request in bad {
        let method = request.method();
        let refused = raw.ask(request).await;
        assert_eq!(refused, Err(ErrorKind::InvalidArgument), "{method}");
    }
    is_unmoved(&mut raw, newest).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_are_too_large_or_write_a_key_twice_are_refused_and_change_nothing() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let newest = client.put("k", "v", None).await.unwrap().header.revision;
    let mut raw = Raw::connect(&cluster).await;
    let put = |key: &str| TxnOp::put(key.to_owned(), "1");
    let prefix = TxnOp::DeleteRange(DeleteRangeRequest {
        key: "x".into(),
        range: KeyRange::Prefix,
        prev_kv: false,
    });
    let nested = |ops: Vec<TxnOp>| TxnOp::txn(TxnRequest::new().or_else(ops));
    let many = |count: usize| (0..count).map(|number| put(&format!("x{number}")));
    let compares = (0..129).map(|_| Compare::version("k", CompareOp::Equal, 1));
    let twice = [
        TxnRequest::new().and_then([put("x"), put("x")]),
        TxnRequest::new().or_else([put("x1"), prefix.clone()]),
        TxnRequest::new().and_then([prefix, put("x1")]),
        TxnRequest::new().and_then([put("x"), nested(vec![put("x")])]),
    ];
    for txn in twice {
        let refused = raw.ask(Request::Txn(txn)).await;
        assert_eq!(refused, Err(ErrorKind::DuplicateKey));
    }
    let most = Limits::DEFAULT.txn_ops_max;
    let large = [
        TxnRequest::new().and_then(many(most + 1)),
        TxnRequest::new().or_else(many(most + 1)),
        TxnRequest::new().when(compares),
        // What is nested counts together with what it is nested in.
        TxnRequest::new().and_then(many(most).chain([nested(vec![put("y")])])),
    ];
    for txn in large {
        let refused = raw.ask(Request::Txn(txn)).await;
        assert_eq!(refused, Err(ErrorKind::TxnTooLarge));
    }
    is_unmoved(&mut raw, newest).await;
    // As many as are allowed are done.
    let txn = TxnRequest::new().and_then(many(most));
    assert!(raw.ask(Request::Txn(txn)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_are_not_there_or_are_there_already_are_errors_of_their_own() {
    let cluster = Cluster::start(1);
    let mut raw = Raw::connect(&cluster).await;
    let watch = |watch_id| Request::Watch {
        watch_id,
        watch: WatchRequest {
            key: "k".into(),
            ..WatchRequest::default()
        },
    };
    for watch_id in [0, 7, u64::MAX] {
        for unknown in [
            Request::WatchCancel { watch_id },
            Request::WatchProgress { watch_id },
        ] {
            assert_eq!(raw.ask(unknown).await, Err(ErrorKind::WatchNotFound));
        }
    }
    assert_eq!(raw.ask(watch(7)).await, Ok(ResponseBody::Watch));
    assert_eq!(raw.ask(watch(7)).await, Err(ErrorKind::WatchExists));
    // Names are of one connection.
    let mut other = Raw::connect(&cluster).await;
    let cancel = || Request::WatchCancel { watch_id: 7 };
    assert_eq!(other.ask(cancel()).await, Err(ErrorKind::WatchNotFound));
    assert_eq!(other.ask(watch(7)).await, Ok(ResponseBody::Watch));
    assert_eq!(raw.ask(cancel()).await, Ok(ResponseBody::WatchCancel));
    assert_eq!(raw.ask(cancel()).await, Err(ErrorKind::WatchNotFound));
    assert_eq!(raw.ask(watch(7)).await, Ok(ResponseBody::Watch));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_watch_more_than_a_connection_may_have_is_refused_until_another_ends() {
    let mut cluster = Cluster::prepare(1);
    cluster.write_configs("[watch]\nmax_per_connection = 3\n");
    cluster.start_and_settle();
    let client = cluster.client().await;
    let mut watchers = Vec::new();
    for _ in 0..3 {
        watchers.push(client.watch("k", None).await.unwrap());
    }
    let soon = || Some(WatchOptions::new().with_timeout(Duration::from_millis(500)));
    let began = Instant::now();
    let error = loop {
        let watched = client.watch("k", soon()).await.map(drop);
        // Where nobody answered so soon, nobody said why; and after a connection that was given up for
        // its silence all begin anew.
        match watched {
            Err(error) if matches!(error.kind, ErrorKind::SlowDown { .. }) => break error,
            Ok(()) => {}
            Err(error) => {
                let is_late = error.kind == ErrorKind::DeadlineExceeded;
                assert!(is_late || error.is_retryable(), "{error}");
            }
        }
        assert!(began.elapsed() < PATIENCE, "nobody is refused");
    };
    assert!(
        error.to_string().contains("watch.max_per_connection"),
        "{error}"
    );
    assert_eq!(error.outcome, Outcome::NotApplied);
    // Another connection has room of its own, and those that are open lose nothing.
    let other = cluster.client().await;
    other.watch("k", None).await.unwrap();
    client.put("k", "v", None).await.unwrap();
    for watcher in &mut watchers {
        loop {
            let next = tokio::time::timeout(PATIENCE, watcher.next()).await;
            let event = next.expect("an event within a minute").unwrap().unwrap();
            if matches!(event, WatchEvent::Events { .. }) {
                break;
            }
        }
    }
    watchers.pop().unwrap().cancel();
    let node = &cluster.nodes[0];
    eventually("the end of a watch", || {
        (node.metric("leasehold_watchers") <= 2.0).then_some(())
    });
    client.watch("k", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_no_reply_can_hold_are_refused_before_anything_is_done() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let large = vec![b'v'; Limits::DEFAULT.value_bytes_max];
    let mut newest = 0;
    for key in ["a", "b", "c"] {
        let put = client.put(key, large.clone(), None).await.unwrap();
        newest = put.header.revision;
    }
    // One that reads, and two that write and would tell what was there before.
    let both = [TxnOp::get("a"), TxnOp::get("b")];
    let over = |key: &'static str| {
        TxnOp::Put(PutRequest {
            key: key.into(),
            prev_kv: true,
            ..PutRequest::default()
        })
    };
    let gone = TxnOp::DeleteRange(DeleteRangeRequest {
        key: "a".into(),
        range: KeyRange::From,
        prev_kv: true,
    });
    for ops in [both.to_vec(), vec![over("a"), over("b")], vec![gone]] {
        let txn = TxnRequest::new().and_then(ops);
        let error = client.txn(txn, None).await.unwrap_err();
        let kind = &error.kind;
        assert!(
            matches!(kind, ErrorKind::RequestTooLarge { limit, actual } if actual > limit)
                || matches!(kind, ErrorKind::ResponseTooLarge { limit, actual } if actual > limit),
            "{error}"
        );
        assert_eq!(error.outcome, Outcome::NotApplied, "{error}");
    }
    // A range that is too large for one reply is a part, says so, and never less than one key.
    let all = GetOptions::new().with_prefix();
    let found = client.get("", Some(all.clone())).await.unwrap();
    assert_eq!((found.kvs.len(), found.count, found.more), (1, None, true));
    let found = client.get("", Some(all.with_count())).await.unwrap();
    assert_eq!(
        (found.kvs.len(), found.count, found.more),
        (1, Some(3), true)
    );
    assert_eq!(found.header.revision, newest, "nothing was written");
    // A single value always has room.
    let before = client
        .put("a", "", Some(PutOptions::new().with_prev_kv()))
        .await;
    assert_eq!(before.unwrap().prev_kv.unwrap().value.len(), large.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_is_read_as_the_type_that_is_asked_for_or_the_error_names_key_and_type() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let scores = BTreeMap::from([("anna".to_owned(), 7_u32)]);
    client.put_json("scores", &scores, None).await.unwrap();
    let raw = client.get("scores", None).await.unwrap();
    assert_eq!(raw.value().unwrap().as_ref(), br#"{"anna":7}"#);
    assert_eq!(client.get_json("scores", None).await.unwrap(), Some(scores));
    assert_eq!(client.get_json::<u8>("none", None).await.unwrap(), None);
    let error = client
        .get_json::<Vec<u8>>("scores", None)
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    for part in ["\"scores\"", "Vec<u8>"] {
        assert!(error.detail.contains(part), "{error}");
    }
    let unfit = BTreeMap::from([((1, 2), 3)]);
    let error = client.put_json("scores", &unfit, None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument, "{error}");
    let after = client.get("scores", None).await.unwrap();
    assert_eq!(after.kvs, raw.kvs, "nothing was written");
}
