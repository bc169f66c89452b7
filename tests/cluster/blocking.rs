//! The client of programs that are not async.

use std::time::Duration;

use leasehold::api::{Compare, CompareOp, Error, ErrorKind, TxnOp, TxnRequest, WatchEvent};
use leasehold::blocking::BlockingClient;
use leasehold::client::recipes::Lock;
use leasehold::client::{GetOptions, WatchOptions};

use crate::harness::Cluster;

#[test]
fn a_program_without_async_code_reads_writes_and_watches() {
    let cluster = Cluster::start(3);
    let client = BlockingClient::connect(cluster.endpoints(), Some(cluster.options())).unwrap();
    let put = client.put("a/1", "one", None).unwrap();
    client.put("a/2", "two", None).unwrap();
    assert_eq!(client.get("a/1", None).unwrap().value().unwrap(), "one");
    assert_eq!(client.delete("a/2", None).unwrap().deleted, 1);
    let txn = TxnRequest::new()
        .when([Compare::version("a/1", CompareOp::Equal, 1)])
        .and_then([TxnOp::put("a/3", "three")]);
    assert!(client.txn(txn, None).unwrap().succeeded);

    let from = WatchOptions::new()
        .with_prefix()
        .with_start_revision(put.header.revision);
    let watcher = client.watch("a/", Some(from)).unwrap();
    let events = client.iterate(watcher).map(|event| match event.unwrap() {
        WatchEvent::Events { events, .. } => events.len(),
        _ => 0,
    });
    // Three puts and a delete, however they are batched.
    let mut seen = 0;
    assert!(events.into_iter().any(|count| {
        seen += count;
        seen >= 4
    }));
    assert_eq!(seen, 4);

    // A range as an iterator ends.
    let all = GetOptions::new().with_prefix();
    let range = client.run(async |client| client.get_stream("a/", Some(all)));
    let keys: Vec<_> = client
        .iterate(range.unwrap().into_stream())
        .map(|kv| kv.unwrap().key)
        .collect();
    assert_eq!(keys, ["a/1", "a/3"]);
    let within = client.with_namespace("a/");
    assert_eq!(within.get("1", None).unwrap().value().unwrap(), "one");
    within.put("4", "four", None).unwrap();
    assert_eq!(client.get("a/4", None).unwrap().value().unwrap(), "four");
    assert!(within.get("a/1", None).unwrap().value().is_none());
    client.close();
    let error = client.get("a/1", None).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
}

#[test]
fn a_lock_stays_held_between_the_calls_of_a_program_without_async_code() {
    let cluster = Cluster::start(1);
    let connect = || BlockingClient::connect(cluster.endpoints(), Some(cluster.options())).unwrap();
    let (client, other) = (connect(), connect());
    // Long, so that a machine that is busy does not lose it.
    let ttl = Duration::from_secs(15);
    let (session, guard) = client
        .run(async |client| {
            let session = client.lease().session(ttl, None).await?;
            let guard = Lock::new(&session, "job").acquire().await?;
            Ok::<_, Error>((session, guard))
        })
        .unwrap();
    let left = || {
        let asked = other.run(async |other| other.lease().time_to_live(session.id(), None).await);
        asked.unwrap().remaining_ms
    };
    // It is renewed while this program makes no call of its client.
    let mut before = left();
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = left();
        if now > before {
            break;
        }
        before = now;
    }
    let try_it = || {
        other.run(async |other| {
            let session = other.lease().session(ttl, None).await?;
            Lock::new(&session, "job").try_acquire().await
        })
    };
    assert!(try_it().unwrap().is_none());
    client.run(async |_| guard.release().await).unwrap();
    assert!(try_it().unwrap().is_some());
}

#[test]
fn a_client_without_certificates_is_refused_and_leaves_no_thread() {
    let refused: Result<_, Error> = BlockingClient::connect(["127.0.0.1:1"], None);
    assert_eq!(refused.unwrap_err().kind, ErrorKind::InvalidArgument);
}
