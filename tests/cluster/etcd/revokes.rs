//! Leases with more keys than end in one step: LeaseRevoke answers when all of them are gone.

use bytes::Bytes;

use super::EtcdCluster;
use super::grpc::Channel;
use super::kv::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, RequestUnion, TxnRequest, TxnResponse,
};
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse,
};
use super::watches::{put, started};

const KEYS: usize = 2_500;
/// How many a step ends at most, of ours.
const STEP: usize = 1_000;
const OPS_MAX: usize = 128;
const ROUNDS: i64 = 3;

/// A lease with all the keys.
async fn attach(channel: &Channel, id: i64) {
    let grant = LeaseGrantRequest { ttl: 3600, id };
    let path = "/etcdserverpb.Lease/LeaseGrant";
    let _: LeaseGrantResponse = channel.ask(path, &grant).await.unwrap();
    let keys: Vec<usize> = (0..KEYS).collect();
    for some in keys.chunks(OPS_MAX) {
        let put = |number: &usize| PutRequest {
            key: format!("k{number:04}").into(),
            lease: id,
            ..PutRequest::default()
        };
        let op = |put| RequestOp {
            request: Some(RequestUnion::RequestPut(put)),
        };
        let txn = TxnRequest {
            success: some.iter().map(put).map(op).collect(),
            ..TxnRequest::default()
        };
        let done: TxnResponse = channel.ask("/etcdserverpb.KV/Txn", &txn).await.unwrap();
        assert!(done.succeeded);
    }
}

/// How many keys the node has that is asked, and at which revision it is.
async fn here(channel: &Channel) -> (i64, i64) {
    let range = RangeRequest {
        key: Bytes::from_static(b"k"),
        range_end: Bytes::from_static(b"l"),
        count_only: true,
        serializable: true,
        ..RangeRequest::default()
    };
    let found: RangeResponse = channel.ask("/etcdserverpb.KV/Range", &range).await.unwrap();
    (found.count, found.header.unwrap().revision)
}

/// Revokes it at a node. Whatever the answer, no key is left there.
async fn revoke(channel: &Channel, id: i64) -> Result<i64, (i32, String)> {
    let path = "/etcdserverpb.Lease/LeaseRevoke";
    let revoke = LeaseRevokeRequest { id };
    let revoked: Result<LeaseRevokeResponse, _> = channel.ask(path, &revoke).await;
    let (left, revision) = here(channel).await;
    assert_eq!(left, 0, "{revoked:?}");
    revoked.map(|revoked| {
        let told = revoked.header.unwrap().revision;
        assert!(told <= revision, "{told} {revision}");
        told
    })
}

async fn open(cluster: &EtcdCluster) -> Vec<Channel> {
    let mut channels = Vec::new();
    for port in &cluster.ports {
        channels.push(Channel::open(*port).await);
    }
    channels
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_thousands_of_keys_is_revoked_when_the_last_of_them_is_gone() {
    let cluster = started(3).await;
    let channels = open(&cluster).await;
    let gone = Err((5, "etcdserver: requested lease not found".to_owned()));
    let steps = i64::try_from(KEYS.div_ceil(STEP)).unwrap();
    attach(&channels[0], 1).await;
    let before = put(&channels[0], "before", "").await;
    assert_eq!(revoke(&channels[1], 1).await, Ok(before + steps));
    assert_eq!(revoke(&channels[2], 1).await, gone);
    // By all at once: who comes too late hears nothing before the keys are gone.
    for id in 2..=ROUNDS {
        attach(&channels[0], id).await;
        let before = put(&channels[0], "before", "").await;
        let answers: [_; 3] = tokio::join!(
            revoke(&channels[0], id),
            revoke(&channels[1], id),
            revoke(&channels[2], id)
        )
        .into();
        let is_known = |answer: &_| *answer == Ok(before + steps) || *answer == gone;
        assert!(answers.iter().all(is_known), "{answers:?}");
        assert!(answers.iter().any(Result::is_ok), "{answers:?}");
    }
}
