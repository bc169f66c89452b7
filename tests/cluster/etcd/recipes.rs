//! Locks and elections that the node carries out, and that etcd's own command line meets.

use bytes::Bytes;

use super::differential::pair;
use super::grpc::{Channel, framed};
use super::kv::{DeleteRangeRequest, DeleteRangeResponse, RangeRequest, RangeResponse};
use super::messages::{
    CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse, LockRequest, LockResponse,
    ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse, UnlockRequest,
    UnlockResponse,
};
use super::watches::{put, started};
use crate::harness::PATIENCE;

const LOCK: &str = "/v3lockpb.Lock/Lock";
const UNLOCK: &str = "/v3lockpb.Lock/Unlock";
const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";
const PROCLAIM: &str = "/v3electionpb.Election/Proclaim";
const LEADER: &str = "/v3electionpb.Election/Leader";
const OBSERVE: &str = "/v3electionpb.Election/Observe";
const RESIGN: &str = "/v3electionpb.Election/Resign";

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

async fn grant(channel: &Channel) -> i64 {
    let grant = LeaseGrantRequest { ttl: 3600, id: 0 };
    let path = "/etcdserverpb.Lease/LeaseGrant";
    let granted: LeaseGrantResponse = channel.ask(path, &grant).await.unwrap();
    granted.id
}

async fn revoke(channel: &Channel, id: i64) {
    let path = "/etcdserverpb.Lease/LeaseRevoke";
    let revoke = LeaseRevokeRequest { id };
    let _: LeaseRevokeResponse = channel.ask(path, &revoke).await.unwrap();
}

/// Waits until there are as many keys below `prefix`.
async fn wait_for(channel: &Channel, prefix: &str, count: i64) {
    let range = RangeRequest {
        key: bytes(&format!("{prefix}/")),
        range_end: bytes(&format!("{prefix}0")),
        count_only: true,
        ..RangeRequest::default()
    };
    let began = std::time::Instant::now();
    loop {
        let found: RangeResponse = channel.ask("/etcdserverpb.KV/Range", &range).await.unwrap();
        if found.count == count {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{} keys", found.count);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_goes_to_the_next_in_line_and_to_none_that_has_left() {
    let cluster = started(3).await;
    let mut channels = Vec::new();
    for port in &cluster.ports {
        channels.push(std::sync::Arc::new(Channel::open(*port).await));
    }
    let lock = |place: usize, lease: i64| {
        let channel = channels[place].clone();
        let name = bytes("l");
        tokio::spawn(async move {
            let request = LockRequest { name, lease };
            channel.ask::<LockResponse>(LOCK, &request).await
        })
    };
    let mut leases = Vec::new();
    for channel in &channels {
        leases.push(grant(channel).await);
    }
    let first = lock(0, leases[0]).await.unwrap().unwrap();
    assert_eq!(first.key, bytes(&format!("l/{:x}", leases[0])));
    // Who has it is given it again.
    assert_eq!(lock(1, leases[0]).await.unwrap().unwrap().key, first.key);
    // One that leaves, one whose lease ends, and one that waits.
    let leaves = lock(1, leases[1]);
    wait_for(&channels[0], "l", 2).await;
    let ends = lock(2, leases[2]);
    wait_for(&channels[0], "l", 3).await;
    // Without a lease it gets one.
    let waits = lock(1, 0);
    wait_for(&channels[0], "l", 4).await;
    leaves.abort();
    wait_for(&channels[0], "l", 3).await;
    revoke(&channels[0], leases[2]).await;
    wait_for(&channels[0], "l", 2).await;
    assert!(!waits.is_finished());
    let unlock = UnlockRequest { key: first.key };
    let _: UnlockResponse = channels[2].ask(UNLOCK, &unlock).await.unwrap();
    let ended = ends.await.unwrap();
    assert_eq!(ended, Err((2, "mutex: session is expired".to_owned())));
    let next = waits.await.unwrap().unwrap();
    assert!(next.header.unwrap().revision > first.header.unwrap().revision);
    wait_for(&channels[0], "l", 1).await;
    let unknown = lock(0, 12_345).await.unwrap();
    assert_eq!(
        unknown,
        Err((2, "etcdserver: requested lease not found".to_owned()))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_election_has_one_leader_who_is_observed_everywhere() {
    let cluster = started(3).await;
    let (one, two) = (
        cluster.ports[cluster.leader],
        cluster.ports[cluster.follower()],
    );
    let (one, two) = (Channel::open(one).await, Channel::open(two).await);
    let name = bytes("e");
    let ask = LeaderRequest { name: name.clone() };
    let none: Result<LeaderResponse, _> = two.ask(LEADER, &ask).await;
    assert_eq!(none, Err((2, "election: no leader".to_owned())));
    let missing: Result<ProclaimResponse, _> = two.ask(PROCLAIM, &ProclaimRequest::default()).await;
    assert!(missing.unwrap_err().1.contains("field must be provided"));
    let mut observed = two.stream(OBSERVE, &[]).await;
    observed.send(&ask);
    observed.finish();
    let campaign = |value: &str, lease| CampaignRequest {
        name: name.clone(),
        lease,
        value: bytes(value),
    };
    let leases = [grant(&one).await, grant(&two).await];
    let won: CampaignResponse = one.ask(CAMPAIGN, &campaign("a", leases[0])).await.unwrap();
    let leader = won.leader.unwrap();
    assert_eq!(leader.key, bytes(&format!("e/{:x}", leases[0])));
    assert_eq!(
        (leader.name.clone(), leader.lease),
        (name.clone(), leases[0])
    );
    let seen: LeaderResponse = two.ask(LEADER, &ask).await.unwrap();
    assert_eq!(seen.kv.unwrap().value, bytes("a"));
    // What comes before an observer has looked, it does not see.
    let told: LeaderResponse = observed.next().await.unwrap();
    assert_eq!(told.kv.unwrap().value, bytes("a"));
    let waiting = campaign("b", leases[1]);
    let mut waiting = std::pin::pin!(two.ask::<CampaignResponse>(CAMPAIGN, &waiting));
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), waiting.as_mut());
    assert!(early.await.is_err(), "there are two leaders");
    let proclaim = |value| ProclaimRequest {
        leader: Some(leader.clone()),
        value: bytes(value),
    };
    let _: ProclaimResponse = two.ask(PROCLAIM, &proclaim("a2")).await.unwrap();
    let resign = ResignRequest {
        leader: Some(leader.clone()),
    };
    let _: ResignResponse = two.ask(RESIGN, &resign).await.unwrap();
    let next = waiting.await.unwrap().leader.unwrap();
    assert_eq!(next.lease, leases[1]);
    let late: Result<ProclaimResponse, _> = one.ask(PROCLAIM, &proclaim("a3")).await;
    assert_eq!(late, Err((2, "election: not leader".to_owned())));
    let _: ResignResponse = one.ask(RESIGN, &resign).await.unwrap();
    let mut values = Vec::new();
    for _ in 0..2 {
        let told: LeaderResponse = observed.next().await.unwrap();
        values.push(told.kv.unwrap().value);
    }
    assert_eq!(values, [bytes("a2"), bytes("b")]);
    let delete = DeleteRangeRequest {
        key: next.key,
        ..DeleteRangeRequest::default()
    };
    let _: DeleteRangeResponse = one
        .ask("/etcdserverpb.KV/DeleteRange", &delete)
        .await
        .unwrap();
    let none: Result<LeaderResponse, _> = two.ask(LEADER, &ask).await;
    assert_eq!(none, Err((2, "election: no leader".to_owned())));
    // Who leads already says something else; the revision is that from before, as in etcd.
    let first: CampaignResponse = one.ask(CAMPAIGN, &campaign("c", leases[0])).await.unwrap();
    let again: CampaignResponse = one.ask(CAMPAIGN, &campaign("d", leases[0])).await.unwrap();
    assert_eq!(again.leader, first.leader);
    let revision = |answer: CampaignResponse| answer.header.unwrap().revision;
    assert_eq!(revision(again), revision(first));
    let seen: LeaderResponse = one.ask(LEADER, &ask).await.unwrap();
    assert_eq!(seen.kv.unwrap().value, bytes("d"));
    // Whose lease has ended cannot say it, and has left the line when it hears so.
    put(&one, "f/3039", "v").await;
    let ended = CampaignRequest {
        name: bytes("f"),
        lease: 0x3039,
        value: bytes("w"),
    };
    let refused: Result<CampaignResponse, _> = one.ask(CAMPAIGN, &ended).await;
    let not_found = "etcdserver: requested lease not found".to_owned();
    assert_eq!(refused, Err((2, not_found)));
    let place = RangeRequest {
        key: bytes("f/3039"),
        ..RangeRequest::default()
    };
    let found: RangeResponse = one.ask("/etcdserverpb.KV/Range", &place).await.unwrap();
    assert_eq!(found.count, 0);
}

/// Of the calls that have one request, those of many answers too; beside etcd, if it is there.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_end_without_a_whole_request_end_as_in_etcd() {
    let cut = framed(&[0x0a, 1, b'a']).slice(..7);
    let eof = |code, text: &str| (code, text.to_owned());
    let (none, unary, stream) = (
        eof(2, "EOF"),
        eof(2, "unexpected EOF"),
        eof(13, "unexpected EOF"),
    );
    let cluster = started(1).await;
    let mut addresses = vec![cluster.ports[0]];
    let beside = pair().await;
    addresses.extend(beside.as_ref().map(|(_, etcd, _)| etcd.address));
    for address in addresses {
        let channel = Channel::open(address).await;
        for (path, is_stream) in [
            (OBSERVE, true),
            ("/etcdserverpb.Maintenance/Snapshot", true),
            ("/grpc.health.v1.Health/Watch", true),
            ("/etcdserverpb.KV/Range", false),
            (LOCK, false),
            (LEADER, false),
        ] {
            let ended = async |body| channel.call(path, body, &[]).await.unwrap().status();
            assert_eq!(ended(Bytes::new()).await, none, "{path} at {address}");
            let expected = if is_stream { &stream } else { &unary };
            assert_eq!(ended(cut.clone()).await, *expected, "{path} at {address}");
            assert_eq!(
                ended(cut.slice(..3)).await,
                *expected,
                "{path} at {address}"
            );
        }
    }
}

/// A client that asks once more for what it holds, and goes before it is told, holds it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_a_place_does_not_lose_it_by_asking_again_and_leaving() {
    const AGAIN: u64 = 150;
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let lease = grant(&channel).await;
    let request = LockRequest {
        name: bytes("n"),
        lease,
    };
    let held: LockResponse = channel.ask(LOCK, &request).await.unwrap();
    let own = RangeRequest {
        key: held.key.clone(),
        ..RangeRequest::default()
    };
    let found: RangeResponse = channel.ask("/etcdserverpb.KV/Range", &own).await.unwrap();
    let created = found.kvs[0].create_revision;
    for path in [LOCK, CAMPAIGN] {
        for number in 0..AGAIN {
            let request = CampaignRequest {
                name: bytes("n"),
                lease,
                value: Bytes::new(),
            };
            let asked = channel.ask::<LockResponse>(path, &request);
            let after = std::time::Duration::from_micros(50 * number);
            let _ = tokio::time::timeout(after, asked).await;
        }
        // What the last ones began has ended by then.
        let _: LockResponse = channel.ask(LOCK, &request).await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let found: RangeResponse = channel.ask("/etcdserverpb.KV/Range", &own).await.unwrap();
        let found = found.kvs.first().map(|kv| kv.create_revision);
        assert_eq!(found, Some(created), "{path}");
    }
}

/// Some leave before their key is written, some while it is, and some when it has been.
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_while_the_place_is_being_taken_leaves_none_behind() {
    const CALLERS: u64 = 150;
    let cluster = started(1).await;
    let channel = std::sync::Arc::new(Channel::open(cluster.ports[0]).await);
    // Who is first is never answered to have left, so the others wait.
    let request = LockRequest {
        name: bytes("n"),
        lease: grant(&channel).await,
    };
    let _: LockResponse = channel.ask(LOCK, &request).await.unwrap();
    for path in [LOCK, CAMPAIGN] {
        let mut calls = Vec::new();
        for number in 0..CALLERS {
            let lease = grant(&channel).await;
            let channel = channel.clone();
            calls.push(tokio::spawn(async move {
                let after = std::time::Duration::from_micros(50 * number);
                let name = bytes("n");
                let value = Bytes::new();
                // A lock is asked for by the first two fields.
                let request = CampaignRequest { name, lease, value };
                let called = channel.ask::<LockResponse>(path, &request);
                tokio::time::timeout(after, called).await.is_err()
            }));
        }
        for call in calls {
            assert!(call.await.unwrap(), "it is not the first");
        }
        wait_for(&channel, "n", 1).await;
    }
}
