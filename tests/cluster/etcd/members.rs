//! Changes of members by etcd's command line, at a node that does not lead.

use std::net::SocketAddr;

use super::grpc::Channel;
use super::messages::{
    MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
use super::watches::started;
use super::{EtcdCluster, etcdctl, must, run};
use crate::harness::{PATIENCE, eventually, free_port};

const LIST: &str = "/etcdserverpb.Cluster/MemberList";
const ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
const UPDATE: &str = "/etcdserverpb.Cluster/MemberUpdate";
const PROMOTE: &str = "/etcdserverpb.Cluster/MemberPromote";
const REMOVE: &str = "/etcdserverpb.Cluster/MemberRemove";
/// The code of a process whose node was removed.
const REMOVED: i32 = 7;

/// The line of a member in etcdctl's list.
fn line(list: &str, name: &str) -> String {
    let found = list
        .lines()
        .find(|line| line.contains(&format!(", {name}, ")));
    found.unwrap_or_else(|| panic!("{name}: {list}")).to_owned()
}

fn id_of(line: &str) -> String {
    line.split(',').next().unwrap().to_owned()
}

#[test]
fn etcdctl_adds_promotes_moves_and_removes_a_member_at_a_node_that_does_not_lead() {
    let Some(etcdctl) = etcdctl("members of etcdctl") else {
        return;
    };
    let mut cluster = EtcdCluster::in_the_clear(3);
    let follower = cluster.ports[cluster.follower()];
    let fourth = cluster.cluster.prepare_another();
    let peer = |cluster: &EtcdCluster| cluster.cluster.nodes[fourth].peer;
    let url = |address: SocketAddr| format!("--peer-urls=https://n4@{address}");
    let refused = |arguments: &[&str], with: &str| {
        let (is_done, said) = run(&etcdctl, &follower.to_string(), arguments);
        assert!(!is_done && said.contains(with), "{arguments:?}: {said}");
    };
    let list = must(&etcdctl, follower, &["member", "list"]);
    let first = id_of(&line(&list, "n1"));
    let taken = format!("--peer-urls=https://n4@{}", cluster.cluster.nodes[0].peer);
    refused(&["member", "add", "n4", &taken], "Peer URLs already exists");
    let unnamed = format!("--peer-urls=https://{}", peer(&cluster));
    refused(
        &["member", "add", "n4", &unnamed],
        "given member URLs are invalid",
    );
    let password = format!("--peer-urls=https://n4:x@{}", peer(&cluster));
    refused(
        &["member", "add", "n4", &password],
        "given member URLs are invalid",
    );
    refused(&["member", "remove", "7"], "member not found");
    refused(&["member", "promote", "7"], "member not found");
    refused(
        &["member", "promote", &first],
        "can only promote a learner member",
    );
    refused(
        &["member", "update", "7", "--peer-urls=https://n7:1"],
        "member not found",
    );

    let added = ["member", "add", "n4", "--learner", &url(peer(&cluster))];
    let said = must(&etcdctl, follower, &added);
    assert!(
        said.contains("added to cluster") && said.contains("ETCD_NAME"),
        "{said}"
    );
    let list = must(&etcdctl, follower, &["member", "list"]);
    let fourth_line = line(&list, "n4");
    assert!(fourth_line.ends_with(", true"), "it is a learner: {list}");
    let id = id_of(&fourth_line);
    refused(
        &["member", "promote", &id],
        "can only promote a learner member which is in sync with leader",
    );
    // It moves before it is started.
    cluster.cluster.nodes[fourth].peer = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let initial = cluster.cluster.initial();
    cluster.cluster.write_config(fourth, &initial, "");
    cluster.cluster.says_that_the_cluster_exists(fourth);
    let moved = ["member", "update", &id, &url(peer(&cluster))];
    must(&etcdctl, follower, &moved);
    let list = must(&etcdctl, follower, &["member", "list"]);
    let new_url = format!("https://{}", peer(&cluster));
    assert!(line(&list, "n4").contains(&new_url), "{list}");
    cluster.cluster.nodes[fourth].start();
    eventually("the learner is in sync, and promoted", || {
        let (is_done, said) = run(&etcdctl, &follower.to_string(), &["member", "promote", &id]);
        let is_early = said.contains("in sync with leader");
        assert!(is_done || is_early, "{said}");
        is_done.then_some(())
    });
    let list = must(&etcdctl, follower, &["member", "list"]);
    assert!(line(&list, "n4").ends_with(", false"), "it votes: {list}");
    let voters = || cluster.cluster.nodes[fourth].metric("leasehold_members{role=\"voter\"}");
    eventually("four voters", || (voters() == 4.0).then_some(()));
    must(&etcdctl, follower, &["member", "remove", &id]);
    assert_eq!(cluster.cluster.nodes[fourth].wait_for_exit(), REMOVED);
    let list = must(&etcdctl, follower, &["member", "list"]);
    assert_eq!(list.lines().count(), 3, "{list}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_added_by_a_follower_joins_and_votes_by_itself() {
    let mut cluster = started(3).await;
    let fourth = cluster.cluster.prepare_another();
    let follower = Channel::open(cluster.ports[cluster.follower()]).await;
    let add = MemberAddRequest {
        peer_urls: vec![format!("https://n4@{}", cluster.cluster.nodes[fourth].peer)],
        is_learner: false,
    };
    let added: MemberAddResponse = follower.ask(ADD, &add).await.unwrap();
    assert_eq!(added.header.unwrap().revision, 0);
    let member = added.member.unwrap();
    assert_eq!(member.name, "n4");
    assert!(added.members.contains(&member) && added.members.len() == 4);
    // The name is taken, whatever the address.
    let again = MemberAddRequest {
        peer_urls: vec!["https://n4@127.0.0.1:9".to_owned()],
        is_learner: true,
    };
    let refused = follower.ask::<MemberAddResponse>(ADD, &again);
    let exists = "etcdserver: member ID already exist".to_owned();
    assert_eq!(refused.await.unwrap_err(), (9, exists));
    tokio::task::block_in_place(|| cluster.cluster.nodes[fourth].start());
    let list = MemberListRequest { linearizable: true };
    let mut looks = 0;
    loop {
        let found: MemberListResponse = follower.ask(LIST, &list).await.unwrap();
        if found.members.iter().all(|member| !member.is_learner) {
            break;
        }
        looks += 1;
        assert!(looks < 9_000, "{found:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let missing = (5, "etcdserver: member not found".to_owned());
    let update = MemberUpdateRequest {
        id: 7,
        peer_urls: vec!["https://h:1".to_owned()],
    };
    let updated = follower.ask::<MemberUpdateResponse>(UPDATE, &update);
    assert_eq!(updated.await.unwrap_err(), missing);
    // The list shows a voter from the moment the leader appends its configuration, and until that is
    // committed and left again no other change is taken.
    let promote = MemberPromoteRequest { id: member.id };
    let text = "etcdserver: can only promote a learner member";
    loop {
        let promoted = follower.ask::<MemberPromoteResponse>(PROMOTE, &promote);
        let (code, said) = promoted.await.unwrap_err();
        if said == text {
            break assert_eq!(code, 9);
        }
        looks += 1;
        assert!(
            said.contains("re-configuration failed") && looks < 9_000,
            "{said}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let remove = MemberRemoveRequest { id: member.id };
    let removed: MemberRemoveResponse = follower.ask(REMOVE, &remove).await.unwrap();
    assert_eq!(removed.members.len(), 3);
    let removed = follower.ask::<MemberRemoveResponse>(REMOVE, &remove);
    assert_eq!(removed.await.unwrap_err(), missing);
}

/// The URLs of etcd's clients in the list of the node at `port`, by names.
async fn urls(port: SocketAddr) -> Vec<(String, Vec<String>)> {
    let channel = Channel::open(port).await;
    let list = MemberListRequest {
        linearizable: false,
    };
    let began = std::time::Instant::now();
    let found: MemberListResponse = loop {
        match channel.ask(LIST, &list).await {
            Ok(found) => break found,
            // It has just started.
            Err(early) => assert!(began.elapsed() < PATIENCE, "{early:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    };
    let members = found.members.into_iter();
    let mut urls: Vec<_> = members.map(|it| (it.name, it.client_urls)).collect();
    urls.sort();
    urls
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_down_are_listed_with_their_urls_by_nodes_that_never_met_them() {
    let mut cluster = started(3).await;
    let ports = cluster.ports.clone();
    let named = |(place, port): (usize, &SocketAddr)| {
        (format!("n{}", place + 1), vec![format!("http://{port}")])
    };
    let all: Vec<_> = ports.iter().enumerate().map(named).collect();
    let listed = async |port: SocketAddr, expected: &[(String, Vec<String>)]| {
        let began = std::time::Instant::now();
        loop {
            let urls = urls(port).await;
            if urls == expected {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{urls:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    for port in &ports {
        listed(*port, &all).await;
    }
    // One stays down while the others, the leader among them, are stopped and started.
    let down = cluster.follower();
    let nodes = &mut cluster.cluster.nodes;
    tokio::task::block_in_place(|| {
        nodes[down].kill();
        let others = || (0..3).filter(|place| *place != down);
        for place in others() {
            nodes[place].kill();
        }
        for place in others() {
            nodes[place].start();
        }
    });
    for place in (0..3).filter(|place| *place != down) {
        listed(ports[place], &all).await;
    }
    // It comes back without the port, and that is what the others say then.
    let mut without = all;
    without[down].1.clear();
    tokio::task::block_in_place(|| {
        let environment = &mut nodes[down].environment;
        environment.retain(|(name, _)| *name != "LEASEHOLD_LISTEN_ETCD");
        nodes[down].start();
    });
    for place in (0..3).filter(|place| *place != down) {
        listed(ports[place], &without).await;
    }
}
