//! Read leases: linearizable reads at every member, without a message.

use std::time::{Duration, Instant};

use leasehold::api::{Consistency, ErrorKind, ReadPath};
use leasehold::client::{Client, WatchEvent, WatchOptions};

use crate::access::{ANNA_PASSWORD, as_user, connect, guard};
use crate::admin::hand_over;
use crate::etcd::grpc::Channel;
use crate::etcd::messages::kv::{RangeRequest, RangeResponse};
use crate::etcd::{EtcdCluster, IN_THE_CLEAR};
use crate::harness::{Cluster, Node, PATIENCE, eventually};
use crate::reads::{at, read};

const EVERYBODY: &str = "[read_lease]\nenabled = true\n";

fn start(more: &str) -> Cluster {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(more);
    cluster.start_and_settle();
    cluster
}

fn held(node: &Node) -> f64 {
    node.metric("leasehold_reads_total{path=\"read_lease\"}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_serve_what_was_just_acknowledged_and_are_waited_for_when_they_die() {
    let mut cluster = start(EVERYBODY);
    let client = cluster.client().await;
    let (mut round, mut by_lease) = (0, [0_u32; 3]);
    let began = Instant::now();
    // Two of three do not lead. One that has acknowledged a write and not heard that it is committed asks.
    while by_lease.iter().filter(|times| **times >= 50).count() < 2 {
        assert!(began.elapsed() < PATIENCE, "{by_lease:?}");
        round += 1;
        let put = client.put("k", format!("{round}"), None).await.unwrap();
        for (node, by_lease) in by_lease.iter_mut().enumerate() {
            for _ in 0..3 {
                let get = client.get("k", Some(at(&cluster, node))).await.unwrap();
                assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
                assert!(get.header.revision >= put.header.revision);
                let read = read(&get);
                assert!(read.applied_index >= read.read_index);
                if read.path == ReadPath::ReadLease {
                    assert!(!read.lease_remaining.is_zero(), "{read:?}");
                    assert_ne!(get.header.leader_id, Some(get.header.member_id));
                    *by_lease += 1;
                }
            }
        }
    }
    let served: f64 = cluster.nodes.iter().map(held).sum();
    assert!(served >= 100.0, "{served}");

    // A holder that dies is waited for, and then no more.
    let leader = cluster.wait_for_lease();
    eventually("two holders", || {
        let holders = cluster.nodes[leader].metric("leasehold_read_lease_holders");
        (holders >= 2.0).then_some(())
    });
    cluster.nodes[(leader + 1) % 3].kill();
    client.put("k", "after", None).await.unwrap();
    let other = (leader + 2) % 3;
    let get = client.get("k", Some(at(&cluster, other))).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"after");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_once_its_read_leases_are_back() {
    let cluster = start(EVERYBODY);
    let client = cluster.client().await;
    for round in 0..3 {
        let put = client.put("k", format!("{round}"), None).await.unwrap();
        hand_over(&client).await;
        for node in 0..3 {
            let get = client.get("k", Some(at(&cluster, node))).await.unwrap();
            assert!(get.header.revision >= put.header.revision);
            assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
        }
    }
    let recalls: f64 = cluster
        .nodes
        .iter()
        .map(|node| node.metric("leasehold_read_lease_recalls_total{reason=\"transfer\"}"))
        .sum();
    assert!(recalls >= 1.0, "{recalls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_do_not_ask_for_read_leases_hold_nothing_back() {
    let mut cluster = start("");
    let client = cluster.client().await;
    let leader = cluster.wait_for_lease();
    client.put("k", "v", None).await.unwrap();
    let follower = (leader + 1) % 3;
    let get = client.get("k", Some(at(&cluster, follower))).await.unwrap();
    let read = read(&get);
    assert_ne!(read.path, ReadPath::ReadLease);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let grants: f64 = cluster
        .nodes
        .iter()
        .map(|node| node.metric("leasehold_read_lease_grants_total"))
        .sum();
    assert!(grants == 0.0, "{grants}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_beside_a_holder_reads_there_and_elsewhere_once_it_is_told_to_ask_no_more() {
    let mut cluster = start(EVERYBODY);
    let leader = cluster.wait_for_lease();
    let beside = (leader + 1) % 3;
    let mut endpoints = cluster.endpoints();
    endpoints.rotate_left(beside);
    let client = cluster.client_of(endpoints, cluster.options()).await;
    client.put("k", "v", None).await.unwrap();
    let began = Instant::now();
    let mut in_a_row = 0;
    while in_a_row < 50 {
        assert!(began.elapsed() < PATIENCE, "it does not read there");
        let get = client.get("k", None).await.unwrap();
        let is_there = get.header.leader_id != Some(get.header.member_id);
        in_a_row = match is_there && read(&get).path == ReadPath::ReadLease {
            true => in_a_row + 1,
            false => 0,
        };
    }

    let manage = |method, body| {
        let node = &cluster.nodes[beside];
        node.manage(method, "/admin/v1/read-lease", body)
    };
    let (status, document) = manage("GET", "");
    assert_eq!((status, document["enabled"].as_bool()), (200, Some(true)));
    let standing = || {
        let leader = &cluster.nodes[cluster.leader()?];
        let (_, document) = leader.manage("GET", "/admin/v1/status", "");
        let followers = document["followers"].as_array()?.clone();
        let name = &cluster.nodes[beside].name;
        let follower = followers.iter().find(|it| it["name"] == name.as_str());
        follower.map(|it| it["read_lease"].clone())
    };
    eventually("it is shown as a holder", || {
        (standing()? == "held").then_some(())
    });
    let (status, document) = manage("PUT", "{\"enabled\": 1}");
    assert_eq!(status, 400, "{document}");
    let (status, document) = manage("PUT", "{\"enabled\": false}");
    assert_eq!((status, document["before"].as_bool()), (200, Some(true)));
    eventually("its lease is given back", || {
        let is_over = manage("GET", "").1["is_valid"] == false;
        (is_over && standing()?.is_null()).then_some(())
    });
    let served = held(&cluster.nodes[beside]);
    let began = Instant::now();
    let by_leader = async || {
        let get = client.get("k", None).await.unwrap();
        get.header.leader_id == Some(get.header.member_id)
    };
    while !by_leader().await {
        assert!(
            began.elapsed() < PATIENCE,
            "reads stay where none is served"
        );
    }
    assert!(held(&cluster.nodes[beside]) <= served);
    manage("PUT", "{\"enabled\": true}");
    eventually("it holds one again", || {
        (manage("GET", "").1["is_valid"] == true).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_etcd_read_under_the_read_lease_of_the_node_they_ask() {
    let settings = [IN_THE_CLEAR, ("LEASEHOLD_READ_LEASE_ENABLED", "true")];
    let cluster = EtcdCluster::start(3, &settings);
    let follower = cluster.follower();
    let channel = Channel::open(cluster.ports[follower]).await;
    let node = &cluster.cluster.nodes[follower];
    let range = RangeRequest {
        key: b"k".to_vec().into(),
        ..RangeRequest::default()
    };
    let began = Instant::now();
    while held(node) < 20.0 {
        assert!(began.elapsed() < PATIENCE, "none is served by a read lease");
        for _ in 0..10 {
            let asked = channel.ask::<RangeResponse>("/etcdserverpb.KV/Range", &range);
            assert_eq!(asked.await.unwrap().count, 0);
        }
    }
}

/// Reads at `node` until one is served by its read lease.
async fn served_by_read_lease(client: &Client, cluster: &Cluster, node: usize, key: &str) {
    let began = Instant::now();
    loop {
        let get = client.get(key, Some(at(cluster, node))).await.unwrap();
        if read(&get).path == ReadPath::ReadLease {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", read(&get));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_serve_only_what_the_reader_may_read_and_by_no_clock_what_must_not_rest_on_one() {
    let mut cluster = start(EVERYBODY);
    let leader = cluster.wait_for_lease();
    let holder = (leader + 1) % 3;
    guard(&cluster).await;
    let anna = connect(&cluster, as_user(&cluster, "anna", ANNA_PASSWORD)).await;
    anna.put("a/w/1", "v", None).await.unwrap();
    served_by_read_lease(&anna, &cluster, holder, "a/w/1").await;
    let refused = anna
        .get("b/1", Some(at(&cluster, holder)))
        .await
        .unwrap_err();
    assert_eq!(refused.kind, ErrorKind::PermissionDenied, "{refused}");
    // A read that may be old is not: the read lease costs no more.
    let bounded = Consistency::MaxStaleness(Duration::from_secs(5));
    let bounded = at(&cluster, holder).with_consistency(bounded);
    let get = anna.get("a/w/1", Some(bounded)).await.unwrap();
    assert_eq!(get.kvs[0].value.as_ref(), b"v");
    assert_ne!(read(&get).path, ReadPath::Follower);
    // Nor does it answer for the leader where clocks are not to be relied on.
    let quorum = at(&cluster, holder).with_consistency(Consistency::LinearizableQuorum);
    // What a follower cannot answer in time its leader does.
    let began = Instant::now();
    loop {
        let get = anna.get("a/w/1", Some(quorum.clone())).await.unwrap();
        assert_ne!(read(&get).path, ReadPath::ReadLease);
        if read(&get).path == ReadPath::Follower {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{:?}", read(&get));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_watch_showed_anywhere_is_read_at_every_holder_and_a_learner_is_one() {
    let mut cluster = start("");
    let fourth = cluster.prepare_another();
    let initial = cluster.initial();
    cluster.write_config(fourth, &initial, EVERYBODY);
    cluster.says_that_the_cluster_exists(fourth);
    let peer = format!("{}", cluster.nodes[fourth].peer);
    let learner = ["member", "add", "n4", "--peer-urls", &peer, "--learner"];
    eventually("a learner that is taken in", || {
        let (code, _, _) = cluster.cli(&learner);
        (code == 0).then_some(())
    });
    cluster.nodes[fourth].start();
    let client = cluster.client().await;
    served_by_read_lease(&client, &cluster, fourth, "w").await;
    let leader = cluster.wait_for_lease();
    let elsewhere = WatchOptions::new().with_endpoint(cluster.nodes[leader].client.to_string());
    let mut watch = client.watch("w", Some(elsewhere)).await.unwrap();
    for round in 0..30 {
        let putting = client.put("w", format!("{round}"), None);
        let seeing = async {
            loop {
                let event = watch.next().await.unwrap().unwrap();
                if let WatchEvent::Events { revision, .. } = event {
                    return revision;
                }
            }
        };
        let (put, seen) = tokio::join!(putting, seeing);
        let get = client.get("w", Some(at(&cluster, fourth))).await.unwrap();
        assert!(get.header.revision >= seen.max(put.unwrap().header.revision));
        assert_eq!(get.kvs[0].value.as_ref(), format!("{round}").as_bytes());
    }
    assert!(held(&cluster.nodes[fourth]) >= 1.0);
    assert_eq!(held(&cluster.nodes[leader]), 0.0);
}
