//! Queues, against a server that keeps its takers waiting.

use super::*;
use crate::api::TxnOp;
use crate::client::recipes::Queue;

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
