//! Queues, against a server that keeps its takers waiting.

use super::*;
use crate::api::TxnOp;
use crate::client::recipes::Queue;

/// Longer than the client waits for anything else.
const LATE: Duration = Duration::from_millis(400);
const ITEM: &str = "q/0000000000000005-0000000000000001";

/// A queue of one item, whose deletion is carried out and answered late.
fn slow(_: usize, frame: &ClientFrame) -> Reaction {
    let mut response = answer("n1", frame).unwrap();
    match &mut response.body {
        ResponseBody::Range(range) => {
            range.kvs[0].key = ITEM.into();
            range.kvs[0].create_revision = 6;
        }
        ResponseBody::Txn(txn) => {
            txn.succeeded = true;
            std::thread::sleep(LATE);
        }
        _ => {}
    }
    reply(Ok(response))
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
        let options = options(&authority).with_timeout(LATE / 2);
        let client = connect_with(&[&node], options).await;
        let queue = Queue::new(&client, "q");
        let item = queue.take().await.unwrap();
        assert_eq!(item, "value of q/");
        assert_eq!(puts(&node), []);
    });
}

#[test]
fn an_item_that_was_taken_for_nobody_is_put_back_in_its_place() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", slow);
        let client = connect(&authority, &[&node]).await;
        let queue = Queue::new(&client, "q");
        let taking = tokio::spawn(async move { queue.take().await });
        while !node.methods().contains(&"txn") {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        taking.abort();
        while puts(&node).is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(puts(&node), [(ITEM.into(), "value of q/".into())]);
    });
}
