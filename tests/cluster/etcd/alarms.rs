//! Alarms that operators raise: what etcd answers to the same requests, and where else they are seen.

use super::differential::pair;
use super::grpc::Channel;
use super::http::{Connection, masked};
use super::kv::{PutRequest, PutResponse};
use super::messages::{AlarmAction, AlarmRequest, AlarmResponse, StatusRequest, StatusResponse};
use super::watches::started;
use super::{EtcdCluster, etcdctl, must, run};
use crate::harness::eventually;

const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const PUT: &str = "/etcdserverpb.KV/Put";
const METRIC: &str = "leasehold_alarms{type=\"no_space\"}";
const NO_SPACE: i32 = 1;
/// No member.
const NONE: [u64; 0] = [];

/// Requests of which each changes or shows something of alarms, in this order; at most one is raised whenever
/// they are listed, as etcd lists them in no order. Puts below a transaction below another are left out: etcd
/// takes them while all others are refused.
const STEPS: &[(&str, &str)] = &[
    ("kv/put", r#"{"key":"YQ==","value":"YQ=="}"#),
    ("lease/grant", r#"{"TTL":1000,"ID":77}"#),
    ("maintenance/alarm", "{}"),
    ("maintenance/alarm", r#"{"action":"ACTIVATE"}"#),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":5,"alarm":"NOSPACE"}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":5,"alarm":"NOSPACE"}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"5","alarm":1}"#,
    ),
    ("maintenance/alarm", "{}"),
    ("maintenance/alarm", r#"{"memberID":9}"#),
    ("maintenance/alarm", r#"{"alarm":"NOSPACE"}"#),
    ("maintenance/alarm", r#"{"alarm":"CORRUPT"}"#),
    ("maintenance/alarm", r#"{"alarm":7}"#),
    ("kv/put", r#"{"key":"YQ==","value":"YQ=="}"#),
    ("kv/put", r#"{"key":"","value":"YQ=="}"#),
    ("kv/put", r#"{"key":"YQ==","value":"YQ==","lease":9}"#),
    ("kv/put", r#"{"key":"Yg==","ignore_value":true}"#),
    ("lease/grant", r#"{"TTL":1000,"ID":78}"#),
    ("lease/grant", r#"{"TTL":1000,"ID":77}"#),
    ("lease/keepalive", r#"{"ID":77}"#),
    (
        "kv/txn",
        r#"{"success":[{"request_put":{"key":"YQ==","value":"YQ=="}}]}"#,
    ),
    (
        "kv/txn",
        r#"{"failure":[{"request_put":{"key":"YQ==","value":"YQ=="}}]}"#,
    ),
    (
        "kv/txn",
        r#"{"success":[{"request_txn":{"success":[{"request_range":{"key":"YQ=="}}]}}]}"#,
    ),
    (
        "kv/txn",
        r#"{"success":[{"request_range":{"key":"YQ=="}},{"request_delete_range":{"key":"YQ=="}}]}"#,
    ),
    ("kv/txn", "{}"),
    ("kv/range", r#"{"key":"YQ=="}"#),
    ("kv/deleterange", r#"{"key":"YQ=="}"#),
    ("kv/compaction", r#"{"revision":"2"}"#),
    ("lease/revoke", r#"{"ID":77}"#),
    ("auth/role/add", r#"{"name":"r"}"#),
    ("auth/user/add", r#"{"name":"u","password":"p"}"#),
    (
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","alarm":"NOSPACE"}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":5}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":5,"alarm":"CORRUPT"}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":5,"alarm":"NOSPACE"}"#,
    ),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":5,"alarm":"NOSPACE"}"#,
    ),
    // That of no member is left.
    ("kv/put", r#"{"key":"YQ==","value":"YQ=="}"#),
    ("maintenance/alarm", "{}"),
    ("maintenance/alarm", r#"{"action":"DEACTIVATE"}"#),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","alarm":"NOSPACE"}"#,
    ),
    ("maintenance/alarm", "{}"),
    (
        "maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"18446744073709551615","alarm":"NOSPACE"}"#,
    ),
    ("maintenance/alarm", "{}"),
    (
        "maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":"18446744073709551615","alarm":"NOSPACE"}"#,
    ),
    ("kv/put", r#"{"key":"YQ==","value":"YQ=="}"#),
    ("lease/grant", r#"{"TTL":1000,"ID":78}"#),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_that_is_raised_has_the_answers_and_effects_that_it_has_in_etcd() {
    let Some((_pair, etcd, ours)) = pair().await else {
        return;
    };
    let compared = tokio::task::spawn_blocking(move || {
        let mut theirs = Connection::open(etcd.address);
        let mut own = Connection::open(ours.ports[0]);
        for (path, body) in STEPS {
            let path = format!("/v3/{path}");
            let ask = |connection: &mut Connection| {
                let answer = connection.post(&path, body);
                (answer.status, masked(&answer.body))
            };
            let (own, theirs) = (ask(&mut own), ask(&mut theirs));
            assert_eq!(own, theirs, "ours is left: {path} {body}");
            let page = |address, path: &str| {
                let page = Connection::open(address).request("GET", path, "", "");
                (page.status, page.body.trim().to_owned())
            };
            let health = [ours.ports[0], etcd.address].map(|address| page(address, "/health"));
            assert_eq!(health[0], health[1], "ours is left: after {path} {body}");
            // Of two alarms etcd leaves out one.
            let excluded = page(ours.ports[0], "/health?exclude=NOSPACE");
            assert_eq!(excluded.0, 200, "after {path} {body}");
        }
    });
    compared.await.unwrap();
}

/// Raises or clears an alarm; the members that were touched.
async fn set(channel: &Channel, action: AlarmAction, member_id: u64) -> Vec<u64> {
    let request = AlarmRequest {
        action: action as i32,
        member_id,
        alarm: NO_SPACE,
    };
    let answer: AlarmResponse = channel.ask(ALARM, &request).await.unwrap();
    assert!(answer.header.unwrap().revision > 0);
    assert!(answer.alarms.iter().all(|alarm| alarm.alarm == NO_SPACE));
    answer.alarms.iter().map(|alarm| alarm.member_id).collect()
}

async fn put(channel: &Channel) -> Result<PutResponse, (i32, String)> {
    let put = PutRequest {
        key: "k".into(),
        ..PutRequest::default()
    };
    channel.ask(PUT, &put).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alarm_is_the_cluster_s_and_is_seen_everywhere_at_every_node() {
    let mut cluster = started(3).await;
    let (follower, leader) = (cluster.follower(), cluster.leader);
    let mut channels = Vec::new();
    for port in &cluster.ports {
        channels.push(Channel::open(*port).await);
    }
    let list = AlarmRequest::default();
    // Each node takes it, and shows it at once when it has answered.
    assert_eq!(
        set(&channels[follower], AlarmAction::Activate, 0).await,
        [0]
    );
    let listed: AlarmResponse = channels[follower].ask(ALARM, &list).await.unwrap();
    assert_eq!(listed.alarms.len(), 1);
    let status: StatusResponse = channels[follower]
        .ask(STATUS, &StatusRequest {})
        .await
        .unwrap();
    assert_eq!(status.errors, ["alarm:NOSPACE "]);
    let (code, health) = cluster.page(follower, "/health");
    assert_eq!(
        (code.as_str(), health.as_str()),
        ("503", r#"{"health":"false","reason":"ALARM NOSPACE"}"#)
    );
    assert_eq!(cluster.page(follower, "/health?exclude=NOSPACE").0, "200");
    // What has to be compacted must be reached.
    assert_eq!(cluster.page(follower, "/readyz").1, "ok\n");
    assert_eq!(set(&channels[leader], AlarmAction::Activate, 7).await, [7]);
    for channel in &channels {
        let listed: AlarmResponse = channel.ask(ALARM, &list).await.unwrap();
        let listed: Vec<u64> = listed.alarms.iter().map(|alarm| alarm.member_id).collect();
        assert_eq!(listed, [0, 7]);
        let refused = put(channel).await.unwrap_err();
        assert_eq!(
            refused,
            (8, "etcdserver: mvcc: database space exceeded".to_owned())
        );
    }
    // The native protocol refuses the same, and its operators see why.
    let seen = tokio::task::spawn_blocking(move || {
        for node in &cluster.cluster.nodes {
            eventually("the alarm on every node", || {
                (node.metric(METRIC) == 1.0).then_some(())
            });
            let health = |path| eventually("an answer", || node.admin(path));
            let (status, said) = health("/health");
            assert_eq!(status, 503);
            assert!(said.contains("an operator has raised"), "{said}");
            assert_eq!(health("/health?exclude=NOSPACE").0, 200);
        }
        let (code, _, said) = cluster.cluster.cli(&["put", "k", "v"]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("LH-NO-SPACE"), "{said}");
        assert!(said.contains("etcdctl alarm disarm"), "{said}");
        let (code, listed, said) = cluster.cluster.cli(&["alarm", "list"]);
        assert_eq!((code, said.as_str()), (0, ""));
        assert_eq!(listed.matches("alarm:NOSPACE").count(), 3, "{listed}");
        // It is in the log, and in the state of a node that was away.
        cluster.cluster.nodes[follower].kill();
        cluster.cluster.nodes[follower].start();
        cluster.cluster.wait_until_settled();
        cluster
    });
    let cluster = seen.await.unwrap();
    let again = Channel::open(cluster.ports[follower]).await;
    let listed: AlarmResponse = again.ask(ALARM, &list).await.unwrap();
    assert_eq!(listed.alarms.len(), 2);
    for member in [0, 7] {
        assert!(put(&again).await.is_err());
        assert_eq!(set(&again, AlarmAction::Deactivate, member).await, [member]);
        assert_eq!(set(&again, AlarmAction::Deactivate, member).await, NONE);
    }
    put(&again).await.unwrap();
    assert_eq!(cluster.page(follower, "/health").0, "200");
    let status: StatusResponse = again.ask(STATUS, &StatusRequest {}).await.unwrap();
    assert!(status.errors.is_empty());
}

/// What etcd does not survive is refused, and what is found out cannot be claimed.
#[tokio::test(flavor = "multi_thread")]
async fn alarms_that_there_are_not_are_refused() {
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    let ask = async |action: i32, alarm: i32| -> Result<AlarmResponse, (i32, String)> {
        let request = AlarmRequest {
            action,
            member_id: 3,
            alarm,
        };
        channel.ask(ALARM, &request).await
    };
    assert_eq!(ask(1, 2).await.unwrap_err().0, 12);
    assert_eq!(ask(1, 7).await.unwrap_err().0, 3);
    assert_eq!(ask(7, 1).await.unwrap_err().0, 3);
    assert!(ask(0, 0).await.unwrap().alarms.is_empty());
    put(&channel).await.unwrap();
}

#[test]
fn etcdctl_lists_alarms_and_disarms_them_all() {
    let Some(etcdctl) = etcdctl("alarms by etcdctl") else {
        return;
    };
    let cluster = EtcdCluster::in_the_clear(3);
    let port = cluster.ports[cluster.follower()];
    let connection = &mut Connection::open(port);
    for member in [3, 12] {
        let body = format!(r#"{{"action":"ACTIVATE","memberID":{member},"alarm":"NOSPACE"}}"#);
        assert_eq!(connection.post("/v3/maintenance/alarm", &body).status, 200);
    }
    let both = "memberID:3 alarm:NOSPACE \nmemberID:12 alarm:NOSPACE \n";
    assert_eq!(must(&etcdctl, port, &["alarm", "list"]), both);
    let refused = run(&etcdctl, &port.to_string(), &["put", "k", "v"]);
    assert!(
        !refused.0 && refused.1.contains("database space exceeded"),
        "{refused:?}"
    );
    assert_eq!(must(&etcdctl, port, &["alarm", "disarm"]), both);
    assert_eq!(must(&etcdctl, port, &["alarm", "list"]), "");
    assert_eq!(must(&etcdctl, port, &["put", "k", "v"]), "OK\n");
}
