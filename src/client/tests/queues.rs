//! Queues, against a server that keeps its takers waiting.

use super::store::{Store, storing};
use super::*;
use crate::api::TxnOp;
use crate::client::recipes::{PriorityQueue, Queue};

/// How long the client waits for anything else.
const TIMEOUT: Duration = Duration::from_secs(3);
const ITEM: &str = "q/0000000000000005-0000000000000001";

/// A queue of one item, whose deletion is carried out, and answered when somebody asks for something else.
fn slow(_: usize, frame: &ClientFrame) -> Reaction {
    let mut response = answer("n1", frame).unwrap();
    match &mut response.body {
        ResponseBody::Range(range) => {
            range.kvs[0].key = ITEM.into();
            range.kvs[0].create_revision = 6;
        }
        ResponseBody::Txn(txn) => {
            txn.succeeded = true;
            return Reaction::AfterNext(Box::new(Ok(response)));
        }
        _ => {}
    }
    reply(Ok(response))
}

/// Somebody takes from the queue, and the answer to that is held back.
async fn taking(node: &Fake, client: &Client) -> JoinHandle<Result<Bytes, Error>> {
    let queue = Queue::new(client, "q");
    let taking = tokio::spawn(async move { queue.take().await });
    while !node.methods().contains(&"txn") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    taking
}

fn puts(node: &Fake) -> Vec<(Bytes, Bytes)> {
    let calls = node.calls().into_iter();
    let txns = calls.filter_map(|frame| match frame.call.request {
        Request::Txn(txn) => Some(txn.success),
        _ => None,
    });
    let put = |op| match op {
        TxnOp::Put(put) => Some((put.key, put.value)),
        _ => None,
    };
    txns.flatten().filter_map(put).collect()
}

/// What a taker does not know it asks until it does: else an item may be gone that nobody was given.
#[test]
fn an_item_is_taken_however_late_that_is_told() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", slow);
        let client = connect_with(&[&node], options(&authority).with_timeout(TIMEOUT)).await;
        let taking = taking(&node, &client).await;
        tokio::time::sleep(TIMEOUT).await;
        let patient = GetOptions::new().with_timeout(PATIENCE);
        client.get("k", Some(patient)).await.unwrap();
        assert_eq!(taking.await.unwrap().unwrap(), "value of q/");
        assert_eq!(puts(&node), []);
    });
}

#[test]
fn an_item_that_was_taken_for_nobody_is_put_back_in_its_place() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", slow);
        let client = connect(&authority, &[&node]).await;
        let taking = taking(&node, &client).await;
        taking.abort();
        assert!(taking.await.unwrap_err().is_cancelled());
        assert_eq!(puts(&node), []);
        client.get("k", None).await.unwrap();
        while puts(&node).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(puts(&node), [(ITEM.into(), "value of q/".into())]);
    });
}

/// What a queue of priorities puts, and where: the lower number first, then the earlier.
#[test]
fn items_of_a_priority_queue_are_put_in_the_order_they_are_taken_in() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let node = fake(&authority, "n1", storing(&store));
        let client = connect(&authority, &[&node]).await;
        let queue = PriorityQueue::new(&client, "pq");
        for (priority, item) in [
            (20, "d"),
            (3, "b"),
            (u32::MAX, "f"),
            (0, "a"),
            (20, "e"),
            (3, "c"),
        ] {
            queue.put(priority, item).await.unwrap();
        }
        let keys: Vec<Bytes> = store.lock().unwrap().keys().keys().cloned().collect();
        assert!(
            keys[0].starts_with(b"pq/00000000-0000000000000004-"),
            "{keys:?}"
        );
        let mut taken = Vec::new();
        while let Some(item) = queue.try_take().await.unwrap() {
            taken.push(item);
        }
        assert_eq!(taken, ["a", "b", "c", "d", "e", "f"]);
    });
}

/// A key of a sequence is behind all those that exist when it is created, though it was named before.
#[test]
fn a_key_of_a_sequence_that_was_overtaken_is_named_anew() {
    run(async {
        let authority = Authority::new();
        let store = Store::shared();
        let (other, mut names) = (Arc::clone(&store), Vec::new());
        // Somebody else is faster twice, and gone again once.
        let node = fake(&authority, "n1", move |number, frame| {
            let mut store = other.lock().unwrap();
            if let Request::Txn(_) = frame.call.request {
                let revision = store.revision();
                let faster = format!("s/{revision:016x}-ffffffffffffffff");
                match number {
                    2 | 3 => store.put(&faster, "faster"),
                    4 => {
                        store.put(&faster, "faster");
                        store.delete(&faster)
                    }
                    _ => revision,
                };
            }
            reply(store.answer("n1", frame))
        });
        let client = connect(&authority, &[&node]).await;
        let put = client.put_sequential("s/", "v", None).await.unwrap();
        let calls = node.methods();
        assert_eq!(calls, ["range", "open_session", "txn", "txn", "txn"]);
        names.extend(store.lock().unwrap().keys().keys().cloned());
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(names[2], put.key);
        assert_eq!(put.header.revision, store.lock().unwrap().revision());
        assert_eq!(store.lock().unwrap().keys()[&put.key].value, "v");
        // What is none of it and would sort behind is told, instead of waited out.
        store.lock().unwrap().put("s/7", "a stranger");
        let error = client.put_sequential("s/", "v", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
        assert!(error.detail.contains("s/7"), "{error}");
    });
}
