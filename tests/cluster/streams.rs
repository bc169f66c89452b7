//! Ranges larger than a reply, streamed by real servers at one revision.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::api::{Consistency, Error, ErrorKind, KeyValue, Outcome, SortOrder, SortTarget};
use leasehold::client::{Client, GetOptions, RangeStream, WatchEvent};
use leasehold::wire::state::StateDecoder;

use crate::harness::{Cluster, eventually};

const KEYS: usize = 24;
const VALUE: usize = 300_000;

async fn fill(client: &Client) -> i64 {
    let mut revision = 0;
    for number in 0..KEYS {
        let value = vec![number as u8; VALUE];
        let put = client.put(format!("k{number:02}"), value, None);
        revision = put.await.unwrap().header.revision;
    }
    client.put("other", "", None).await.unwrap();
    revision
}

fn prefix() -> GetOptions {
    GetOptions::new()
        .with_prefix()
        .with_timeout(Duration::from_secs(60))
}

async fn rest(stream: &mut RangeStream) -> Result<Vec<KeyValue>, Error> {
    let mut found = Vec::new();
    while let Some(kv) = stream.next().await {
        found.push(kv?);
    }
    Ok(found)
}

fn assert_first(kvs: &[KeyValue]) {
    for (number, kv) in kvs.iter().enumerate() {
        assert_eq!(kv.key, format!("k{number:02}"));
        assert_eq!((kv.value.len(), kv.value[0]), (VALUE, number as u8));
        assert_eq!(kv.version, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_shows_one_revision_while_everything_changes_and_the_leader_dies() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let filled = fill(&client).await;
    let mut stream = client.get_stream("k", Some(prefix())).unwrap();
    assert_eq!(stream.revision(), None);
    let mut found = vec![stream.next().await.unwrap().unwrap()];
    assert_eq!(stream.revision(), Some(filled + 1));

    for number in 0..KEYS {
        client
            .put(format!("k{number:02}"), "new", None)
            .await
            .unwrap();
        client
            .put(format!("k{number:02}x"), "new", None)
            .await
            .unwrap();
    }
    client.delete("k23", None).await.unwrap();
    let leader = cluster.wait_for_lease();
    cluster.nodes[leader].kill();
    found.extend(rest(&mut stream).await.unwrap());
    assert_eq!(found.len(), KEYS);
    assert_first(&found);

    // From any node, cut by a limit, and as it was.
    for consistency in [Consistency::Serializable, Consistency::LinearizableQuorum] {
        let options = prefix()
            .with_revision(filled)
            .with_limit(10)
            .with_consistency(consistency);
        let mut stream = client.get_stream("k", Some(options)).unwrap();
        let found = rest(&mut stream).await.unwrap();
        assert_eq!(found.len(), 10);
        assert_first(&found);
    }
    let mut stream = client.get_stream("", Some(GetOptions::new().with_all_keys()));
    let now = rest(stream.as_mut().unwrap()).await.unwrap();
    assert_eq!(
        now.len(),
        2 * KEYS,
        "one key is gone and one is of another prefix"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_cannot_be_read_says_why() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let filled = fill(&client).await;
    let mut stream = client.get_stream("k", Some(prefix())).unwrap();
    stream.next().await.unwrap().unwrap();
    let last = client.put("k", "", None).await.unwrap().header.revision;
    client.compact(last, None).await.unwrap();
    let error = rest(&mut stream).await.unwrap_err();
    let compact_revision = last;
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
    assert!(stream.next().await.is_none(), "it is over then");

    let at = |revision| client.get_stream("k", Some(prefix().with_revision(revision)));
    let error = rest(&mut at(filled).unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Compacted { compact_revision });
    let error = rest(&mut at(last + 100).unwrap()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::FutureRevision);
    let bad = [
        prefix().with_sort(SortTarget::Value, SortOrder::Ascend),
        prefix().with_sort(SortTarget::Key, SortOrder::Descend),
        prefix().with_count_only(),
        GetOptions::new().with_range("a"),
    ];
    for options in bad {
        let error = client.get_stream("k", Some(options)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert_eq!(error.outcome, Outcome::NotApplied);
    }
    let inverted = GetOptions::new().with_range("a");
    let error = client.get("k", Some(inverted)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
}

/// A reader that takes one key and then nothing for the rest of the test leaves the connection to
/// others; so do many of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_who_do_not_read_on_hold_nobody_up() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let client = cluster.client().await;
    fill(&client).await;
    let mut idle = Vec::new();
    for _ in 0..50 {
        let mut stream = client.get_stream("k", Some(prefix())).unwrap();
        stream.next().await.unwrap().unwrap();
        idle.push(stream);
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let busy = tokio::spawn({
        let (client, is_over) = (client.clone(), Arc::clone(&is_over));
        async move {
            let mut rounds = 0;
            while !is_over.load(Ordering::Relaxed) {
                let mut stream = client.get_stream("k", Some(prefix())).unwrap();
                assert_eq!(rest(&mut stream).await.unwrap().len(), KEYS);
                rounds += 1;
            }
            rounds
        }
    });
    let term = cluster.nodes[leader].metric("leasehold_raft_term");
    for number in 0..500 {
        client.put("small", number.to_string(), None).await.unwrap();
        let found = client.get("small", None).await.unwrap();
        assert_eq!(found.value().unwrap(), &number.to_string());
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(busy.await.unwrap() > 0);
    // A slow machine may change its leader; it is worth knowing all the same.
    let after = cluster.nodes[leader].metric("leasehold_raft_term");
    eprintln!(
        "terms that began while ranges were streamed: {}",
        after - term
    );
    // Whoever led meanwhile.
    let pages = "leasehold_requests_total{method=\"range_page\",code=\"OK\"} ";
    let pages: f64 = cluster
        .nodes
        .iter()
        .map(|node| {
            let (_, scrape) = eventually("a scrape", || {
                node.admin("/metrics").filter(|(status, _)| *status == 200)
            });
            let mut lines = scrape.lines();
            // A node that was never asked has no such line.
            lines
                .find_map(|line| line.strip_prefix(pages)?.trim().parse::<f64>().ok())
                .unwrap_or(0.0)
        })
        .sum();
    assert!(pages > 50.0, "{pages}");
    for mut stream in idle {
        assert_eq!(rest(&mut stream).await.unwrap().len(), KEYS - 1);
    }
}

#[test]
fn the_command_line_prints_a_range_that_is_larger_than_a_reply() {
    let cluster = Cluster::start(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { fill(&cluster.client().await).await });
    let (code, out, error) = cluster.cli(&["get", "k", "--prefix", "--hex"]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(out.lines().count(), 2 * KEYS);
    let (code, out, error) = cluster.cli(&["get", "k", "--prefix", "-o", "json"]);
    assert_eq!((code, error.as_str()), (0, ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["kvs"].as_array().unwrap().len(), KEYS);
    // Sorted otherwise it does not fit, and says so.
    let (code, _, error) = cluster.cli(&["get", "k", "--prefix", "--sort-by", "value"]);
    assert_eq!(code, 1);
    assert!(error.contains("one reply holds only the first"), "{error}");
}

/// The next item, as an executor asks for it.
async fn item<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_ranges_and_snapshots_are_streams() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let mut watch = client.watch("k", None).await.unwrap();
    client.put("k", "v", None).await.unwrap();
    let mut seen = None;
    while seen.is_none() {
        if let WatchEvent::Events { events, .. } = item(&mut watch).await.unwrap().unwrap() {
            seen = events.into_iter().next();
        }
    }
    let kv = seen.unwrap().kv;
    assert_eq!((kv.key_str(), kv.value_str()), (Ok("k"), Ok("v")));

    let last = fill(&client).await;
    let mut range = client
        .get_stream("k0", Some(prefix()))
        .unwrap()
        .into_stream();
    let mut keys = Vec::new();
    while let Some(kv) = item(&mut range).await {
        keys.push(kv.unwrap().key_str().unwrap().to_owned());
    }
    assert_eq!(keys.len(), 10);
    assert!(keys.is_sorted() && keys[9] == "k09");
    assert!(item(&mut range).await.is_none(), "it stays at its end");

    let mut snapshot = client.snapshot(None).await.unwrap().into_stream();
    let mut decoder = StateDecoder::new();
    while let Some(chunk) = item(&mut snapshot).await {
        decoder.take(chunk.unwrap()).unwrap();
    }
    assert!(decoder.finish().unwrap().header.revision >= last);
    let two_ranges = prefix().with_range("z");
    let refused = client.get("k", Some(two_ranges)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
}
