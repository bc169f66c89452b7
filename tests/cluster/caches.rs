//! Caches in the program: what they say of their age is true, whatever becomes of the nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use leasehold::api::ErrorKind;
use leasehold::client::Client;
use leasehold::client::recipes::{CacheAnswer, CacheOptions, CachedKv};

use crate::harness::{Cluster, PATIENCE};

/// By how much two clocks of one machine may differ over the age of an answer.
const CLOCKS: Duration = Duration::from_millis(10);

/// The writes that were acknowledged, and when.
type Acknowledgements = Arc<Mutex<Vec<(Instant, u64)>>>;

async fn count(client: Client, acknowledged: Acknowledgements, stop: Arc<AtomicBool>) {
    for number in 1_u64.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        if client.put("c/n", number.to_string(), None).await.is_ok() {
            acknowledged.lock().unwrap().push((Instant::now(), number));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The number that an answer has, which holds everything that was acknowledged longer before `asked` than it
/// says.
fn judge(answer: &CacheAnswer, asked: Instant, acknowledged: &Acknowledgements) -> u64 {
    let text = answer
        .value()
        .map(|value| value.to_vec())
        .unwrap_or_default();
    let number: u64 = String::from_utf8(text).unwrap().parse().unwrap();
    let writes = acknowledged.lock().unwrap();
    let age = answer.age + CLOCKS;
    let is_due = |(at, _): &&(Instant, u64)| *at + age <= asked;
    let due = writes
        .iter()
        .rev()
        .find(is_due)
        .map_or(0, |(_, number)| *number);
    assert!(
        number >= due,
        "{number} is told, and {due} was due: {answer:?}"
    );
    number
}

/// Leaders die, nodes stand still and history is compacted under a cache of which somebody reads all the
/// time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_cache_says_of_its_age_is_true() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    client.put("c/n", "0", None).await.unwrap();
    let often = CacheOptions::new().with_check_interval(Duration::from_millis(50));
    let cached = cluster.client().await;
    let cache = CachedKv::open(&cached, "c/", Some(often)).await.unwrap();
    let (acknowledged, stop) = (Acknowledgements::default(), Arc::<AtomicBool>::default());
    let writer = tokio::spawn(count(
        cluster.client().await,
        Arc::clone(&acknowledged),
        Arc::clone(&stop),
    ));
    let reader = tokio::spawn({
        let (cache, acknowledged, stop) = (cache.clone(), acknowledged.clone(), stop.clone());
        async move {
            let (mut last, mut oldest, mut reads) = (0, Duration::ZERO, 0_u64);
            while !stop.load(Ordering::SeqCst) {
                let asked = Instant::now();
                let answer = cache.get("c/n");
                let number = judge(&answer, asked, &acknowledged);
                assert!(number >= last, "{number} after {last}");
                (last, oldest, reads) = (number, oldest.max(answer.age), reads + 1);
                if reads.is_multiple_of(100) {
                    let asked = Instant::now();
                    if let Ok(answer) = cache.get_or_read("c/n", answer.age / 2).await {
                        judge(&answer, asked, &acknowledged);
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (reads, oldest)
        }
    });
    for round in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = client.get("c/n", None).await.unwrap().header.revision;
        client.compact(now, None).await.unwrap();
        let leader = cluster.wait_for_lease();
        let other = (leader + 1 + round) % 3;
        cluster.nodes[other].pause();
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.nodes[other].resume();
        cluster.replace_leader();
    }
    // All are gone: what was there is still told, and its age.
    for node in &mut cluster.nodes {
        node.kill();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let error = cache
        .get_within("c/n", Duration::from_millis(900))
        .unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TooOld { age_ms } if age_ms >= 900));
    let before = cache.view();
    cluster.start_all();
    // The writer goes on, and the cache after it.
    let after = tokio::time::timeout(PATIENCE, cache.changed(&before));
    assert!(after.await.unwrap().unwrap().revision() > before.revision());
    let began = Instant::now();
    while cache.get_within("c/n", Duration::from_millis(500)).is_err() {
        assert!(began.elapsed() < PATIENCE, "it stays old: {cache:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Ordering::SeqCst);
    tokio::time::timeout(PATIENCE, writer)
        .await
        .unwrap()
        .unwrap();
    let (reads, oldest) = reader.await.unwrap();
    let writes = acknowledged.lock().unwrap().len();
    eprintln!("{reads} reads of {writes} writes, at most {oldest:?} old");
}
