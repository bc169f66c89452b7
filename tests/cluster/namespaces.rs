//! Clients with a namespace: everything that is built on a client works there, and nothing of it is elsewhere.

use std::time::Duration;

use leasehold::api::{Compare, CompareOp, EventKind, KeyRange, KeyValue, TxnOp, TxnRequest};
use leasehold::client::recipes::{
    Barrier, CachedKv, DoubleBarrier, Election, Lock, PriorityQueue, Queue, Registry, RwLock,
    Semaphore, Stm,
};
use leasehold::client::{
    Client, DeleteOptions, GetOptions, PutOptions, TimeToLiveOptions, WatchEvent, WatchOptions,
};

use crate::harness::{Cluster, PATIENCE};

const LONG: Duration = Duration::from_secs(30);

async fn all(client: &Client) -> Vec<KeyValue> {
    let options = GetOptions::new().with_all_keys();
    client.get("", Some(options)).await.unwrap().kvs
}

async fn soon<T>(coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, coming).await.unwrap()
}

/// Two tenants with the same names, and keys beside them, none of which is seen or changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_watches_and_caches_stay_in_their_namespace() {
    let cluster = Cluster::start(1);
    let root = cluster.client().await;
    for key in ["t", "t/", "t/a", "t/b0", "t0", "lock", "\u{1}"] {
        root.put(key, "outside", None).await.unwrap();
    }
    let before = all(&root).await;
    let (a, b) = (
        root.with_namespace("t/a/"),
        root.with_namespace("t/").with_namespace("b/"),
    );
    let mut watcher = a
        .watch("", Some(WatchOptions::new().with_all_keys().with_prev_kv()))
        .await
        .unwrap();
    let cache = CachedKv::open(&a, "", None).await.unwrap();

    let sessions =
        [&a, &b].map(|client| async { client.lease().session(LONG, None).await.unwrap() });
    let [first, second] = sessions;
    let (first, second) = (first.await, second.await);
    // Each has the same lock, as if it were alone.
    let (one, two) = (Lock::new(&first, "lock"), Lock::new(&second, "lock"));
    let (one, two) = (
        soon(one.acquire()).await.unwrap(),
        soon(two.acquire()).await.unwrap(),
    );
    assert!(one.key().starts_with(b"lock/") && two.key().starts_with(b"lock/"));
    let fence = PutOptions::new().with_fence(one.key().clone(), one.fencing_token());
    a.put("mine", "1", Some(fence)).await.unwrap();
    let election = Election::new(&a, "chief");
    let leader = soon(election.campaign(&first, "me")).await.unwrap();
    let seen = election.leader().await.unwrap().unwrap();
    assert_eq!(seen.value, "me");
    assert!(Election::new(&b, "chief").leader().await.unwrap().is_none());
    let queue = Queue::new(&a, "mail");
    queue.put("x").await.unwrap();
    assert_eq!(Queue::new(&b, "mail").try_take().await.unwrap(), None);
    assert_eq!(soon(queue.take()).await.unwrap(), "x");
    PriorityQueue::new(&b, "urgent").put(1, "y").await.unwrap();
    assert_eq!(
        PriorityQueue::new(&a, "urgent").try_take().await.unwrap(),
        None
    );
    let commit = Stm::new(&b)
        .run(|t| async move {
            t.put(
                "stm",
                format!("{} keys", t.range("", KeyRange::Prefix).await?.len()),
            );
            Ok(())
        })
        .await
        .unwrap();
    assert!(commit.revision > 0);
    let named = a.put_sequential("log/", "line", None).await.unwrap();
    assert!(named.key.starts_with(b"log/"));

    // A lease with keys in both, and beside them.
    let lease = first.lease();
    let attached = || Some(PutOptions::new().with_lease(lease));
    b.put("attached", "", attached()).await.unwrap();
    let keys = Some(TimeToLiveOptions::new().with_keys());
    let info = b.lease().time_to_live(lease.id, keys).await.unwrap();
    assert_eq!(info.keys, ["attached"]);
    let info = root.lease().time_to_live(lease.id, keys).await.unwrap();
    assert!(info.keys.len() >= 3, "{info:?}");

    // The watch and the cache of the first have seen all of that, by its own names.
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    a.delete("mine", None).await.unwrap();
    while !deletes.contains(&b"mine".to_vec()) {
        let WatchEvent::Events { events, .. } = soon(watcher.next()).await.unwrap().unwrap() else {
            continue;
        };
        for event in events {
            let key = event.kv.key.to_vec();
            assert!(!key.starts_with(b"t/"), "{event:?}");
            if let Some(before) = &event.prev_kv {
                assert_eq!(before.key, event.kv.key);
            }
            match event.kind {
                EventKind::Put => puts.push(key),
                EventKind::Delete => deletes.push(key),
            }
        }
    }
    assert!(puts.contains(&b"mine".to_vec()) && puts.contains(&named.key.to_vec()));
    assert!(
        !puts
            .iter()
            .any(|key| key.starts_with(b"stm") || key.starts_with(b"attached"))
    );
    let mut view = cache.view();
    while view.get("mine").is_some() || view.get(&named.key).is_none() {
        view = soon(cache.changed(&view)).await.unwrap();
    }
    assert_eq!(
        cache.read(&named.key).await.unwrap().value().unwrap(),
        "line"
    );

    drop((leader, one, two));
    first.close().await.unwrap();
    second.close().await.unwrap();
    let everything = || Some(DeleteOptions::new().with_all_keys());
    a.delete("", everything()).await.unwrap();
    assert_eq!(
        (all(&a).await, all(&b).await.is_empty()),
        (Vec::new(), false)
    );
    let from_key = DeleteOptions::new().with_from_key();
    b.delete("\0", Some(from_key)).await.unwrap();
    let none = TxnRequest::new()
        .when([Compare::version("\0", CompareOp::Greater, 99).with_range(KeyRange::From)])
        .or_else([TxnOp::get("k")]);
    b.txn(none, None).await.unwrap();
    assert_eq!(all(&root).await, before, "what is beside them is as it was");
}

/// The other recipes, which wait for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recipes_that_wait_for_each_other_meet_in_their_namespace() {
    let cluster = Cluster::start(1);
    let root = cluster.client().await;
    let client = root.with_namespace("ns/");
    let session = client.lease().session(LONG, None).await.unwrap();
    let shared = RwLock::new(&session, "rw");
    let reader = soon(shared.read()).await.unwrap();
    let permit = soon(Semaphore::new(&session, "permits", 1).acquire(1))
        .await
        .unwrap();
    let inside = soon(DoubleBarrier::new(&session, "both", 1).enter())
        .await
        .unwrap();
    let barrier = Barrier::new(&client, "gate");
    let held = barrier.hold(&session).await.unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { Barrier::new(&client, "gate").wait().await }
    });
    held.release().await.unwrap();
    soon(waiting).await.unwrap().unwrap();
    let registered = Registry::new(&client, "api")
        .register(&session, "1", "10.0.0.1:80")
        .await
        .unwrap();
    let found = Registry::new(&client, "api").list().await.unwrap();
    assert_eq!(found.len(), 1);
    let outside = all(&root).await;
    assert!(
        outside.iter().all(|kv| kv.key.starts_with(b"ns/")),
        "{outside:?}"
    );
    assert_eq!(all(&client).await.len(), outside.len());
    drop((reader, permit, inside, registered));
    session.close().await.unwrap();
}
