//! Members, hashes, leadership and alarms, as etcd's command line asks for them.

use std::collections::BTreeSet;
use std::time::Instant;

use super::grpc::Channel;
use super::http::Connection;
use super::messages::{
    DowngradeAction, DowngradeInfo, DowngradeRequest, DowngradeResponse, HashKvRequest,
    HashKvResponse, HashRequest, HashResponse, HealthCheckRequest, HealthCheckResponse,
    MemberListRequest, MemberListResponse, MoveLeaderRequest, MoveLeaderResponse, NOT_SERVING,
    SERVICE_UNKNOWN, SERVING, StatusRequest, StatusResponse,
};
use super::watches::{put, started};
use super::{EtcdCluster, etcdctl, must, run};
use crate::harness::{PATIENCE, eventually};

const MEMBERS: &str = "/etcdserverpb.Cluster/MemberList";
const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";
const DOWNGRADE: &str = "/etcdserverpb.Maintenance/Downgrade";
const MOVE_LEADER: &str = "/etcdserverpb.Maintenance/MoveLeader";

#[tokio::test(flavor = "multi_thread")]
async fn members_are_listed_with_the_urls_of_all_and_agree_on_hashes() {
    let mut cluster = started(3).await;
    let mut channels = Vec::new();
    for port in &cluster.ports {
        channels.push(Channel::open(*port).await);
    }
    let members = async |channel: &Channel, linearizable| -> MemberListResponse {
        let list = MemberListRequest { linearizable };
        channel.ask(MEMBERS, &list).await.unwrap()
    };
    let urls: BTreeSet<String> = cluster
        .ports
        .iter()
        .map(|it| format!("http://{it}"))
        .collect();
    for channel in &channels {
        let list = members(channel, true).await;
        let names: Vec<&str> = list.members.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["n1", "n2", "n3"]);
        let found = list.members.iter().flat_map(|it| it.client_urls.clone());
        assert_eq!(found.collect::<BTreeSet<_>>(), urls);
        assert!(list.members.iter().all(|it| it.peer_urls.len() == 1));
        assert!(list.members.iter().all(|it| !it.is_learner && it.id != 0));
        assert_eq!(list.header.unwrap().revision, 0);
    }
    for number in 0..20 {
        put(&channels[0], &format!("k{number}"), "v").await;
    }
    let last = put(&channels[0], "k3", "v2").await;
    let hash = async |channel: &Channel, revision| -> Result<HashKvResponse, (i32, String)> {
        channel.ask(HASH_KV, &HashKvRequest { revision }).await
    };
    let mut seen = Vec::new();
    for revision in [last - 1, last] {
        let of_first = hash(&channels[0], revision).await.unwrap();
        assert_eq!(of_first.hash_revision, revision);
        assert_eq!(of_first.compact_revision, -1);
        for channel in &channels[1..] {
            // It may not have applied it yet.
            let of_other = loop {
                match hash(channel, revision).await {
                    Ok(hash) => break hash,
                    Err((code, text)) => assert_eq!(code, 11, "{text}"),
                }
            };
            assert_eq!(of_other.hash, of_first.hash);
        }
        seen.push(of_first.hash);
    }
    assert_ne!(seen[0], seen[1]);
    let current: HashResponse = channels[0]
        .ask("/etcdserverpb.Maintenance/Hash", &HashRequest {})
        .await
        .unwrap();
    assert_eq!(current.hash, seen[1]);
    let future = hash(&channels[0], last + 100).await.unwrap_err();
    assert_eq!(future.0, 11, "{future:?}");

    // One that is down is listed with its URL.
    let (down, up) = (cluster.follower(), cluster.leader);
    cluster.cluster.nodes[down].kill();
    let list = members(&channels[up], false).await;
    let found = list.members.iter().flat_map(|it| it.client_urls.clone());
    assert_eq!(found.collect::<BTreeSet<_>>(), urls);

    // Leadership moves where its holder is asked, and to members alone.
    let ids: Vec<u64> = list.members.iter().map(|it| it.id).collect();
    assert!(!ids.contains(&7));
    let move_to = async |place: usize, target_id| -> Result<MoveLeaderResponse, (i32, String)> {
        let request = MoveLeaderRequest { target_id };
        channels[place].ask(MOVE_LEADER, &request).await
    };
    let elsewhere = Err((9, "etcdserver: not leader".to_owned()));
    let unknown = Err((9, "etcdserver: bad leader transferee".to_owned()));
    let mut refusals = [0; 3];
    let began = Instant::now();
    let (leader, third) = loop {
        let leader = tokio::task::block_in_place(|| cluster.cluster.wait_for_lease());
        let third = 3 - down - leader;
        let name = format!("n{}", leader + 1);
        let own = list.members.iter().find(|it| it.name == name).unwrap().id;
        let seen = [
            move_to(third, own).await,
            move_to(leader, 7).await,
            move_to(leader, own).await,
        ];
        for (place, answer) in [third, leader, leader].into_iter().zip(&seen) {
            refusals[place] += u32::from(matches!(answer, Err((9, _))));
        }
        let to_itself = Ok(MoveLeaderResponse::default());
        if seen == [elsewhere.clone(), unknown.clone(), to_itself] {
            break (leader, third);
        }
        // On a busy machine another may have begun to lead meanwhile.
        assert!(began.elapsed() < PATIENCE, "{seen:?}");
    };
    // No version is older, and none is on its way.
    let status: StatusResponse = channels[third]
        .ask("/etcdserverpb.Maintenance/Status", &StatusRequest {})
        .await
        .unwrap();
    assert_eq!(status.downgrade_info, Some(DowngradeInfo::default()));
    let mut connection = Connection::open(cluster.ports[third]);
    let status = connection.post("/v3/maintenance/status", "{}").body;
    assert!(status.ends_with(r#","downgradeInfo":{}}"#), "{status}");
    let downgrade = async |action, version: &str| -> Result<DowngradeResponse, (i32, String)> {
        let version = version.to_owned();
        let request = DowngradeRequest { action, version };
        channels[third].ask(DOWNGRADE, &request).await
    };
    let refused = "etcdserver: invalid downgrade target version".to_owned();
    for action in [DowngradeAction::Validate, DowngradeAction::Enable] {
        let asked = downgrade(action as i32, "3.5.0").await;
        assert_eq!(asked, Err((3, refused.clone())));
        for text in ["", "3", "3.4.x", "3.4.0.1"] {
            let format = "etcdserver: wrong downgrade target version format".to_owned();
            assert_eq!(downgrade(action as i32, text).await, Err((3, format)));
        }
    }
    let none = "etcdserver: no inflight downgrade job".to_owned();
    assert_eq!(
        downgrade(DowngradeAction::Cancel as i32, "3").await,
        Err((9, none))
    );
    let unknown = "etcdserver: unknown method".to_owned();
    assert_eq!(downgrade(3, "3.5.0").await, Err((2, unknown)));
    // What was asked is counted, by its code.
    let metrics = cluster.page(leader, "/metrics").1;
    let counted = format!(
        "grpc_server_handled_total{{grpc_code=\"FailedPrecondition\",grpc_method=\"MoveLeader\",\
         grpc_service=\"etcdserverpb.Maintenance\",grpc_type=\"unary\"}} {}\n",
        refusals[leader]
    );
    assert!(metrics.contains(&counted), "{metrics}");
}

#[test]
fn etcdctl_looks_after_a_cluster() {
    let Some(etcdctl) = etcdctl("maintenance by etcdctl") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let (leader, follower) = (
        cluster.ports[cluster.leader],
        cluster.ports[cluster.follower()],
    );
    let list = must(&etcdctl, follower, &["member", "list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
    for port in &cluster.ports {
        assert!(list.contains(&format!("http://{port}")), "{list}");
    }
    must(&etcdctl, leader, &["put", "a", "1"]);
    let all: Vec<String> = cluster.ports.iter().map(ToString::to_string).collect();
    // A node that does not lead hears with the next heartbeat that the write is committed.
    eventually("the nodes agree on the hash", || {
        let hashes = run(&etcdctl, &all.join(","), &["endpoint", "hashkv"]);
        assert!(hashes.0, "{hashes:?}");
        let hashes = hashes.1.lines().filter_map(|it| it.split(", ").nth(1));
        let hashes: BTreeSet<&str> = hashes.collect();
        (hashes.len() == 1).then_some(())
    });
    must(&etcdctl, follower, &["defrag"]);
    assert_eq!(must(&etcdctl, follower, &["alarm", "list"]), "");
    assert_eq!(must(&etcdctl, follower, &["alarm", "disarm"]), "");
    // A hand-over to a node that stands still for a moment fails for good, and is asked for anew.
    eventually("leadership has moved", || {
        let place = (cluster.cluster.leader()? + 1) % 3;
        let name = format!("n{}", place + 1);
        let target = list.lines().find(|line| line.contains(&name)).unwrap();
        let target = target.split(',').next().unwrap();
        let moved = run(&etcdctl, &all.join(","), &["move-leader", target]);
        let is_told = moved.0 && moved.1.contains("Leadership transferred");
        (is_told && cluster.cluster.leader()? == place).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_watches_the_health_of_a_node_is_told_that_it_stops() {
    const WATCH: &str = "/grpc.health.v1.Health/Watch";
    let mut cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let of = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    let mut whole = channel.stream(WATCH, &[]).await;
    whole.send(&of(""));
    let told: HealthCheckResponse = whole.next().await.unwrap();
    assert_eq!(told.status, SERVING);
    let mut other = channel.stream(WATCH, &[]).await;
    other.send(&of("etcdserverpb.KV"));
    let told: HealthCheckResponse = other.next().await.unwrap();
    assert_eq!(told.status, SERVICE_UNKNOWN);
    let stopped = tokio::task::spawn_blocking(move || cluster.cluster.nodes[0].stop());
    let told: HealthCheckResponse = whole.next().await.unwrap();
    assert_eq!(told.status, NOT_SERVING);
    for stream in [&mut whole, &mut other] {
        let ended = stream.next::<HealthCheckResponse>().await.unwrap_err();
        assert_eq!(ended.0, 14, "{}", ended.1);
    }
    assert_eq!(stopped.await.unwrap(), 0);
}
