//! Transactions and history over real servers: one step or none, once, and refused with a reason.

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::api::{
    Compare, CompareOp, Consistency, Error, ErrorKind, KeyRange, Limits, Outcome, RangeRequest,
    ReadPath, SortOrder, SortTarget, TXN_DEPTH_MAX, TxnOp, TxnOpResponse, TxnRequest,
};
use leasehold::client::{Client, GetOptions, PutOptions, TxnOptions};

use crate::harness::{Cluster, PATIENCE, judged, leasehold_command};

fn value_of(response: &TxnOpResponse) -> &[u8] {
    match response {
        TxnOpResponse::Range(range) => &range.kvs[0].value,
        other => panic!("no range: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_one_step_at_one_revision_or_none() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let before = client.put("a", "1", None).await.unwrap().header.revision;
    let inner = TxnRequest::new()
        .when([Compare::value("a", CompareOp::Equal, "1")])
        .and_then([TxnOp::put("c", "3")])
        .or_else([TxnOp::put("d", "4")]);
    let txn = TxnRequest::new()
        .when([
            Compare::value("a", CompareOp::Equal, "1"),
            Compare::version("a", CompareOp::Less, 2),
            Compare::create_revision("a", CompareOp::NotEqual, 0),
            Compare::mod_revision("a", CompareOp::Greater, before - 1),
            Compare::lease("a", CompareOp::Equal, 0).with_range(KeyRange::Prefix),
            Compare::create_revision("b", CompareOp::Equal, 0),
        ])
        .and_then([
            TxnOp::put("a", "2"),
            TxnOp::put("b", "2"),
            TxnOp::get("b"),
            TxnOp::txn(inner),
        ])
        .or_else([TxnOp::put("never", "")]);
    let done = client.txn(txn.clone(), None).await.unwrap();
    assert!(done.succeeded);
    assert_eq!(done.header.revision, before + 1);
    assert_eq!(done.header.read, None);
    assert_eq!(value_of(&done.responses[2]), b"2", "it sees its own writes");
    let all = GetOptions::new().with_all_keys();
    let found = client.get("", Some(all)).await.unwrap();
    let shown: Vec<_> = found
        .kvs
        .iter()
        .map(|kv| (&kv.key[..], &kv.value[..], kv.mod_revision))
        .collect();
    let at = before + 1;
    let expected: [(&[u8], &[u8], i64); 3] = [(b"a", b"2", at), (b"b", b"2", at), (b"c", b"3", at)];
    assert_eq!(shown, expected);

    // Nothing holds any more, and the other branch is taken.
    let again = client.txn(txn, None).await.unwrap();
    assert!(!again.succeeded);
    assert_eq!(again.header.revision, before + 2);
    assert_eq!(client.get("never", None).await.unwrap().count, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_only_reads_is_served_under_the_lease_or_by_any_node() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let put = client.put("a", "1", None).await.unwrap();
    let read = TxnRequest::new()
        .when([Compare::value("a", CompareOp::Equal, "1")])
        .and_then([TxnOp::get("a")]);
    let started = Instant::now();
    loop {
        let leader = cluster.wait_for_lease();
        let endpoint = cluster.nodes[leader].client.to_string();
        let before = client.status(&endpoint).await.unwrap();
        for _ in 0..20 {
            let found = client.txn(read.clone(), None).await.unwrap();
            assert!(found.succeeded);
            assert_eq!(value_of(&found.responses[0]), b"1");
            assert_eq!(found.header.revision, put.header.revision);
            let path = found.header.read.expect("it is a read").path;
            assert_ne!(path, ReadPath::Serializable);
        }
        let after = client.status(&endpoint).await.unwrap();
        // Whoever is elected writes an entry.
        if before.header.raft_term == after.header.raft_term {
            let (before, after) = (before.status.last_index, after.status.last_index);
            assert_eq!(before, after, "reads leave the log alone");
            break;
        }
        assert!(started.elapsed() < PATIENCE, "one election after the other");
    }
    for (consistency, path) in [
        (Consistency::LinearizableQuorum, ReadPath::ReadIndex),
        (Consistency::Serializable, ReadPath::Serializable),
    ] {
        let options = TxnOptions::new()
            .with_consistency(consistency)
            .with_min_revision(put.header.revision);
        let began = Instant::now();
        let found = loop {
            let found = client.txn(read.clone(), Some(options.clone())).await;
            let found = found.unwrap();
            // Whoever has lost the leader may ask a follower, which answers by its leader's word.
            let is_of_leader = found.header.leader_id == Some(found.header.member_id);
            if is_of_leader || consistency == Consistency::Serializable {
                break found;
            }
            assert!(began.elapsed() < PATIENCE, "no leader answers: {found:?}");
        };
        assert_eq!(found.header.read.unwrap().path, path);
        assert!(found.succeeded, "not before the put was there");
    }
}

const COUNTERS: u64 = 4;
const KILLS: usize = 3;
const STEPS_PER_LEADER: u64 = 60;

/// Each client raises one shared counter by compare-and-swap, while leaders are killed. A swap that
/// is applied twice, or answered as failed because its own retry met it, would show in the sum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_raised_by_swaps_counts_each_of_them_once_while_leaders_die() {
    let mut cluster = Cluster::start(3);
    let raised = Arc::new(AtomicU64::new(0));
    let unknown = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = Vec::new();
    for _ in 0..COUNTERS {
        let client = cluster.client().await;
        let (raised, unknown, stop) = (raised.clone(), unknown.clone(), stop.clone());
        workers.push(tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                match raise(&client).await {
                    Ok(true) => drop(raised.fetch_add(1, Ordering::SeqCst)),
                    Ok(false) => {}
                    Err(error) if error.outcome == Outcome::NotApplied => {}
                    Err(_) => drop(unknown.fetch_add(1, Ordering::SeqCst)),
                }
            }
        }));
    }
    for _ in 0..KILLS {
        let leader = cluster.wait_for_lease();
        let target = raised.load(Ordering::SeqCst) + STEPS_PER_LEADER;
        let began = Instant::now();
        while raised.load(Ordering::SeqCst) < target {
            tokio::time::sleep(Duration::from_millis(10)).await;
            assert!(began.elapsed() < PATIENCE, "the counter stands still");
        }
        cluster.nodes[leader].kill();
        cluster.nodes[leader].start();
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        worker.await.unwrap();
    }
    let client = cluster.client().await;
    let found = client.get("counter", None).await.unwrap();
    let count: u64 = std::str::from_utf8(found.value().unwrap())
        .unwrap()
        .parse()
        .unwrap();
    let (raised, unknown) = (
        raised.load(Ordering::SeqCst),
        unknown.load(Ordering::SeqCst),
    );
    eprintln!("raised {raised} times, {unknown} more in doubt, the counter says {count}");
    assert!(
        count >= raised,
        "{count} of {raised} acknowledged swaps are there"
    );
    assert!(
        count <= raised + unknown,
        "{count} of {raised} swaps, {unknown} in doubt"
    );
    assert_eq!(
        u64::try_from(found.kvs[0].version).unwrap(),
        count,
        "each swap wrote the key once"
    );
}

async fn raise(client: &Client) -> Result<bool, Error> {
    let found = client.get("counter", None).await?;
    let Some(kv) = found.kv() else {
        return Ok(client.create("counter", "1").await?.succeeded);
    };
    let count: u64 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
    let next = (count + 1).to_string();
    let swap = client.compare_and_swap("counter", kv.mod_revision, next);
    Ok(swap.await?.succeeded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shorthands_tell_what_they_met() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let created = client.create("k", "1").await.unwrap();
    assert!(created.succeeded);
    let met = client.create("k", "2").await.unwrap();
    assert!(!met.succeeded);
    let current = met.current.unwrap();
    assert_eq!(current.value, "1");
    assert_eq!(current.mod_revision, created.header.revision);
    let swapped = client
        .compare_and_swap("k", current.mod_revision, "2")
        .await
        .unwrap();
    assert!(swapped.succeeded);
    let late = client
        .compare_and_delete("k", current.mod_revision)
        .await
        .unwrap();
    assert!(!late.succeeded);
    assert_eq!(late.current.unwrap().value, "2");
    let gone = client
        .compare_and_delete("k", swapped.header.revision)
        .await
        .unwrap();
    assert!(gone.succeeded);
    let absent = client.compare_and_swap("k", 7, "3").await.unwrap();
    assert_eq!((absent.succeeded, absent.current), (false, None));

    let keep = || Some(PutOptions::new().with_ignore_value().with_prev_kv());
    let error = client.put("k", "", keep()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::KeyNotFound);
    client.put("k", "kept", None).await.unwrap();
    client.put("k", "", keep()).await.unwrap();
    let found = client.get("k", None).await.unwrap();
    assert_eq!(
        (found.value().unwrap().as_ref(), found.kvs[0].version),
        (&b"kept"[..], 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_that_cannot_be_are_refused_by_the_server_too_and_change_nothing() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let first = client.put("k", "v", None).await.unwrap().header.revision;
    // One that lets pass what the server must refuse.
    let lax = Limits {
        txn_ops_max: usize::MAX,
        key_bytes_max: usize::MAX,
        ..Limits::DEFAULT
    };
    let options = cluster.options().with_limits(lax);
    let lax = cluster.client_with(options).await;
    let inverted =
        Compare::version("b", CompareOp::Equal, 0).with_range(KeyRange::Until("a".into()));
    let deep = (0..TXN_DEPTH_MAX).fold(TxnRequest::new(), |inner, _| {
        TxnRequest::new().and_then([TxnOp::txn(inner)])
    });
    let put = || TxnOp::put("x", "1");
    let future = TxnOp::Range(RangeRequest {
        key: "k".into(),
        revision: first + 100,
        ..RangeRequest::default()
    });
    let bad = [
        (
            TxnRequest::new().and_then([put(), put()]),
            "LH-DUPLICATE-KEY",
        ),
        (
            TxnRequest::new().or_else([TxnOp::delete("x"), put()]),
            "LH-DUPLICATE-KEY",
        ),
        (
            TxnRequest::new().and_then((0..129).map(|n| TxnOp::put(format!("x{n}"), ""))),
            "LH-TXN-TOO-LARGE",
        ),
        (deep, "LH-TXN-TOO-LARGE"),
        (
            TxnRequest::new().when([inverted]).and_then([put()]),
            "LH-INVALID-ARGUMENT",
        ),
        (
            TxnRequest::new().and_then([TxnOp::get(""), put()]),
            "LH-INVALID-ARGUMENT",
        ),
        (
            TxnRequest::new().and_then([TxnOp::put(
                "k".repeat(Limits::DEFAULT.key_bytes_max + 1),
                "",
            )]),
            "LH-REQUEST-TOO-LARGE",
        ),
        // Refused in the middle, with a put before it.
        (
            TxnRequest::new().and_then([put(), future.clone()]),
            "LH-FUTURE-REVISION",
        ),
        (TxnRequest::new().and_then([future]), "LH-FUTURE-REVISION"),
    ];
    for (txn, code) in bad {
        for client in [&client, &lax] {
            let error = judged(async || client.txn(txn.clone(), None).await).await;
            let error = error.unwrap_err();
            assert_eq!(
                (error.code(), error.outcome),
                (code, Outcome::NotApplied),
                "{error}"
            );
        }
    }
    let found = client.get("x", None).await.unwrap();
    assert_eq!((found.count, found.header.revision), (Some(0), first));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_can_be_read_until_it_is_given_up() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut revisions = Vec::new();
    for value in ["1", "2", "3"] {
        revisions.push(client.put("k", value, None).await.unwrap().header.revision);
    }
    client.put("l", "x", None).await.unwrap();
    let at = |revision| Some(GetOptions::new().with_revision(revision));
    for (revision, value) in revisions.iter().zip(["1", "2", "3"]) {
        let found = client.get("k", at(*revision)).await.unwrap();
        assert_eq!(found.value().unwrap(), value);
    }
    let newest = GetOptions::new()
        .with_prefix()
        .with_sort(SortTarget::ModRevision, SortOrder::Descend)
        .with_limit(1)
        .with_count();
    let found = client.get("", Some(newest)).await.unwrap();
    assert_eq!(
        (&found.kvs[0].key[..], found.more, found.count),
        (&b"l"[..], true, Some(2))
    );
    let early = GetOptions::new()
        .with_prefix()
        .with_max_create_revision(revisions[0]);
    let found = client.get("", Some(early)).await.unwrap();
    assert_eq!((found.kvs.len(), found.count), (1, Some(2)));

    let compact_revision = revisions[1];
    let done = client.compact(compact_revision, None).await.unwrap();
    assert_eq!(done.header.revision, revisions[2] + 1, "it changes no key");
    let error = client.get("k", at(revisions[0])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
    assert_eq!(
        client
            .get("k", at(revisions[1]))
            .await
            .unwrap()
            .value()
            .unwrap(),
        "2"
    );
    let error = client.compact(compact_revision, None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
    let error = judged(async || client.compact(revisions[2] + 100, None).await).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, ErrorKind::FutureRevision);
    assert_eq!(error.outcome, Outcome::NotApplied);
    let error = client.get("k", at(revisions[2] + 100)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::FutureRevision);
    for revision in [0, -1] {
        let error = client.compact(revision, None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
    }
    let past = TxnRequest::new().and_then([
        TxnOp::put("k", "4"),
        TxnOp::Range(RangeRequest {
            key: "k".into(),
            revision: revisions[0],
            ..RangeRequest::default()
        }),
    ]);
    let error = client.txn(past, None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
    assert_eq!(client.get("k", None).await.unwrap().value().unwrap(), "3");
}

#[test]
fn the_command_line_takes_transactions_in_etcdctls_words() {
    let cluster = Cluster::start(1);
    let script =
        "mod(\"key1\") > \"0\"\n\nput key1 \"overwrote-key1\"\n\nput key1 \"created-key1\"\n\n";
    assert_eq!(
        txn(&cluster, &[], script),
        (0, "FAILURE\n\nOK\n".to_owned(), String::new())
    );
    assert_eq!(
        txn(&cluster, &[], script),
        (0, "SUCCESS\n\nOK\n".to_owned(), String::new())
    );
    let (code, out, asked) = txn(&cluster, &["-i"], "\nget key1\ndel nothing\n");
    assert_eq!(
        (code, out.as_str()),
        (0, "SUCCESS\n\nkey1\noverwrote-key1\n\n0\n")
    );
    assert!(
        asked.contains("success requests (get, put, del):"),
        "{asked}"
    );

    let (code, out, error) = txn(&cluster, &[], "\nput a 1\nput a 2\n");
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(error.contains("LH-DUPLICATE-KEY"), "{error}");
    let (code, _, error) = txn(&cluster, &[], "vlaue(\"k\") = \"1\"\n");
    assert_eq!(code, 2);
    assert!(error.contains("line 1 of the transaction"), "{error}");

    let (code, out, error) = cluster.cli(&["get", "key1", "--rev", "2"]);
    assert_eq!((code, out.as_str()), (0, "key1\ncreated-key1\n"), "{error}");
    let (code, out, error) = cluster.cli(&["compaction", "3", "--exactly-once"]);
    assert_eq!(
        (code, out.as_str()),
        (0, "compacted revision 3\n"),
        "{error}"
    );
    let (code, _, error) = cluster.cli(&["get", "key1", "--rev", "2"]);
    assert_eq!(code, 1);
    assert!(error.contains("LH-COMPACTED"), "{error}");
    let (code, _, error) = cluster.refused(&["compaction", "100"]);
    assert_eq!(code, 1);
    assert!(error.contains("LH-FUTURE-REVISION"), "{error}");
    let (code, _, _) = cluster.cli(&["compaction", "0"]);
    assert_eq!(code, 2);
}

/// `leasehold txn` with this standard input.
fn txn(cluster: &Cluster, flags: &[&str], script: &str) -> (i32, String, String) {
    let mut child = leasehold_command()
        .args(cluster.flags())
        .args(["txn", "--exactly-once"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap_or(-1),
        text(output.stdout),
        text(output.stderr),
    )
}
