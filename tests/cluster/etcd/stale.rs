//! Reads at a node that has no quorum: those that may be stale are answered, and no others.

use super::grpc::Channel;
use super::kv::{RangeRequest, RangeResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse};
use super::watches::{put, started};

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";

fn read(serializable: bool) -> RangeRequest {
    RangeRequest {
        key: "k".into(),
        serializable,
        ..RangeRequest::default()
    }
}

/// A transaction of reads, each of which may be stale or not.
fn txn(reads: &[bool]) -> TxnRequest {
    let op = |may_be_stale: &bool| RequestOp {
        request: Some(RequestUnion::RequestRange(read(*may_be_stale))),
    };
    TxnRequest {
        success: reads.iter().map(op).collect(),
        ..TxnRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_what_may_be_stale_is_answered_and_nothing_else() {
    let cluster = started(3).await;
    let last = cluster.follower();
    let channel = Channel::open(cluster.ports[last]).await;
    put(&channel, "k", "v").await;
    for (place, node) in cluster.cluster.nodes.iter().enumerate() {
        if place != last {
            node.pause();
        }
    }
    let range = async |read: RangeRequest, headers: &[(&str, &str)]| {
        let found: Result<RangeResponse, _> = channel.ask_with(RANGE, &read, headers).await;
        found.map(|found| found.kvs.len())
    };
    let ask = async |txn: TxnRequest, headers: &[(&str, &str)]| {
        let found: Result<TxnResponse, _> = channel.ask_with(TXN, &txn, headers).await;
        found.map(|found| found.responses.len())
    };
    // A permit of the leader may last for a while.
    let soon = ("grpc-timeout", "1S");
    while range(read(false), &[soon]).await.is_ok() {}

    assert_eq!(range(read(true), &[]).await, Ok(1));
    assert_eq!(ask(txn(&[true]), &[]).await, Ok(1));
    assert_eq!(ask(txn(&[true, true]), &[]).await, Ok(2));
    for reads in [&[false][..], &[true, false], &[]] {
        let answered = ask(txn(reads), &[soon]).await;
        assert!(answered.is_err(), "{reads:?}: {answered:?}");
    }

    // Our own word counts more than the request's.
    let words = |word| ("leasehold-consistency", word);
    assert_eq!(range(read(false), &[words("s")]).await, Ok(1));
    assert_eq!(ask(txn(&[false]), &[words("s")]).await, Ok(1));
    for word in ["q", "lease"] {
        let headers = [soon, words(word)];
        let answered = range(read(true), &headers).await;
        assert!(answered.is_err(), "{word}: {answered:?}");
        let answered = ask(txn(&[true]), &headers).await;
        assert!(answered.is_err(), "{word}: {answered:?}");
    }
}
