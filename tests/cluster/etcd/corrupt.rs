//! A node whose state differs from the others', as etcd's clients and probes see it.

use super::grpc::Channel;
use super::http::Connection;
use super::kv::{RangeRequest, RangeResponse};
use super::messages::{AlarmMember, AlarmRequest, AlarmResponse, StatusRequest, StatusResponse};
use super::{EtcdCluster, IN_THE_CLEAR};
use crate::consistency::corrupt;
use crate::harness::eventually;

const NO_SPACE: i32 = 1;
const CORRUPT: i32 = 2;

/// The alarms of a kind, and what the status has as errors.
async fn alarms(channel: &Channel, alarm: i32) -> (Vec<AlarmMember>, Vec<String>) {
    let list = AlarmRequest {
        alarm,
        ..AlarmRequest::default()
    };
    let listed: AlarmResponse = channel
        .ask("/etcdserverpb.Maintenance/Alarm", &list)
        .await
        .unwrap();
    let status: StatusResponse = channel
        .ask("/etcdserverpb.Maintenance/Status", &StatusRequest {})
        .await
        .unwrap();
    let mut errors = status.errors;
    // On a busy machine an election may be under way.
    errors.retain(|error| error != "etcdserver: no leader");
    (listed.alarms, errors)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_state_differs_says_so_to_etcd_s_clients_and_probes() {
    let mut cluster = EtcdCluster::prepare(3, &[IN_THE_CLEAR]);
    cluster.cluster.check_states_every_second();
    cluster.leader = cluster.cluster.start_and_settle();
    let client = cluster.cluster.client().await;
    let victim = cluster.follower();
    corrupt(&mut cluster.cluster, &client, victim).await;

    let is = |place: usize, path: &str, status: &str, text: &str| {
        eventually(path, || {
            let page = cluster.page(place, path);
            (page.0 == status && page.1.starts_with(text)).then_some(())
        });
    };
    let alarmed = r#"{"health":"false","reason":"ALARM CORRUPT"}"#;
    let well = r#"{"health":"true","reason":""}"#;
    is(victim, "/health", "503", alarmed);
    is(victim, "/health?serializable=true", "503", alarmed);
    is(victim, "/health?exclude=NOSPACE", "503", alarmed);
    is(victim, "/health?exclude=CORRUPT", "200", well);
    let found = "[-]data_corruption failed: ALARM CORRUPT: ";
    is(victim, "/readyz", "503", found);
    is(victim, "/readyz/data_corruption", "503", found);
    is(victim, "/readyz/serializable_read", "200", "ok\n");
    is(victim, "/livez", "200", "ok\n");
    is(cluster.leader, "/health", "200", well);
    is(cluster.leader, "/readyz", "200", "ok\n");

    let channel = Channel::open(cluster.ports[victim]).await;
    let read = RangeRequest {
        key: "k".into(),
        serializable: true,
        ..RangeRequest::default()
    };
    let refused: Result<RangeResponse, _> = channel.ask("/etcdserverpb.KV/Range", &read).await;
    assert_eq!(refused, Err((15, "etcdserver: corrupt cluster".to_owned())));
    let (listed, errors) = alarms(&channel, 0).await;
    let member_id = listed[0].member_id;
    let alarm = AlarmMember {
        member_id,
        alarm: CORRUPT,
    };
    assert_eq!(listed, [alarm]);
    assert_eq!(errors, [format!("memberID:{member_id} alarm:CORRUPT ")]);
    assert_eq!(alarms(&channel, CORRUPT).await.0, listed);
    assert_eq!(alarms(&channel, NO_SPACE).await.0, []);
    // The others have none.
    eventually("no alarm at the leader", || {
        let mut connection = Connection::open(cluster.ports[cluster.leader]);
        let listed = connection.post("/v3/maintenance/alarm", "{}").body;
        (listed.contains("header") && !listed.contains("alarms")).then_some(())
    });
}
