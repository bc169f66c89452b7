//! Recipes: what they decide by is read as it is now, however their client reads otherwise.

use super::*;
use crate::api::{TxnOp, TxnOpResponse};
use crate::client::recipes::{
    Barrier, Election, Lock, PriorityQueue, Queue, RwLock, Semaphore, Stm,
};

/// Leases that need no renewal while a test runs.
const LONG_MS: u64 = 600_000;

/// A cluster where everything is free: of the keys of recipes, those are there that their owner asks for by name.
fn free(_: usize, frame: &ClientFrame) -> Reaction {
    let mut response = answer("n1", frame).unwrap();
    match (&frame.call.request, &mut response.body) {
        (_, ResponseBody::LeaseGrant(granted)) => granted.ttl_ms = LONG_MS,
        (_, ResponseBody::LeaseKeepAlive(kept)) => {
            kept.fill(LeaseKept::Renewed {
                ttl_ms: LONG_MS,
                grant_index: 9,
                is_extended: false,
            });
        }
        (_, ResponseBody::Range(range)) => {
            range.kvs[0].key = "queue/0000000000000005-0000000000000001".into();
        }
        (Request::Txn(txn), ResponseBody::Txn(done)) => {
            done.succeeded = true;
            done.responses = txn.success.iter().map(carried_out).collect();
        }
        _ => {}
    }
    reply(Ok(response))
}

fn carried_out(op: &TxnOp) -> TxnOpResponse {
    match op {
        TxnOp::Range(range) if range.range == KeyRange::Single => {
            let own = KeyValue {
                key: range.key.clone(),
                // The revision of every answer.
                create_revision: 7,
                ..KeyValue::default()
            };
            TxnOpResponse::Range(RangeResponse {
                kvs: vec![own],
                ..RangeResponse::default()
            })
        }
        TxnOp::Range(_) => TxnOpResponse::Range(RangeResponse::default()),
        TxnOp::Put(_) => TxnOpResponse::Put(PutResponse::default()),
        TxnOp::DeleteRange(_) => TxnOpResponse::DeleteRange(DeleteRangeResponse::default()),
        TxnOp::Txn(_) => TxnOpResponse::Txn(TxnResponse::default()),
    }
}

/// X13: of a state that may be old two clients could each be told that they are the first.
#[test]
fn what_a_recipe_decides_by_is_never_read_from_a_state_that_may_be_old() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", free);
        let stale = options(&authority).with_consistency(Consistency::Serializable);
        let client = connect_with(&[&node], stale).await;
        let ttl = Duration::from_millis(LONG_MS);
        let session = client.lease().session(ttl, None).await.unwrap();
        let before = node.calls().len();

        let lock = Lock::new(&session, "lock");
        lock.acquire().await.unwrap();
        assert!(lock.try_acquire().await.unwrap().is_some());
        let lock = RwLock::new(&session, "rw");
        lock.read().await.unwrap();
        lock.write().await.unwrap();
        let semaphore = Semaphore::new(&session, "semaphore", 2);
        semaphore.acquire(1).await.unwrap();
        assert!(semaphore.try_acquire(1).await.unwrap().is_some());
        let election = Election::new(&client, "election");
        election.campaign(&session, "n7").await.unwrap();
        assert_eq!(election.leader().await.unwrap(), None);
        Barrier::new(&client, "barrier").wait().await.unwrap();
        let queue = Queue::new(&client, "queue");
        queue.put("item").await.unwrap();
        assert!(queue.try_take().await.unwrap().is_some());
        let queue = PriorityQueue::new(&client, "queue");
        queue.put(3, "item").await.unwrap();
        assert!(queue.try_take().await.unwrap().is_some());
        client.put_sequential("log/", "line", None).await.unwrap();
        let stm = Stm::new(&client);
        let reads = stm.run(|t| async move { t.get("k").await });
        assert!(reads.await.unwrap().value.is_some());

        let reads = node.calls().into_iter().skip(before);
        let reads = reads.filter(|frame| frame.call.request.is_read());
        let asked: Vec<_> = reads.map(|frame| frame.call.consistency).collect();
        assert_eq!(asked, [Consistency::Linearizable; 15]);
    });
}
