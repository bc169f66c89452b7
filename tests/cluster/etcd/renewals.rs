//! Renewals on a stream: those that arrive together are made together, and answered one by one, in order.

use std::time::Duration;

use super::grpc::Channel;
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};
use super::watches::started;
use crate::harness::say_left_out;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
/// More than are made together.
const ROUNDS: i64 = 200;

async fn grant(channel: &Channel, id: i64, ttl: i64) {
    let grant = LeaseGrantRequest { id, ttl };
    let path = "/etcdserverpb.Lease/LeaseGrant";
    let _: LeaseGrantResponse = channel.ask(path, &grant).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_arrive_together_are_answered_in_order_at_any_node() {
    let cluster = started(3).await;
    for node in [cluster.leader, cluster.follower()] {
        let channel = Channel::open(cluster.ports[node]).await;
        grant(&channel, 1, 100).await;
        grant(&channel, 2, 200).await;
        let mut stream = channel.stream(KEEP_ALIVE, &[]).await;
        // Alive, unknown, none, impossible, alive, and the first once more.
        let expected = [(1, 100), (9, 0), (0, 0), (-5, 0), (2, 200), (1, 100)];
        for _ in 0..ROUNDS {
            stream.send_together(&expected.map(|(id, _)| LeaseKeepAliveRequest { id }));
        }
        stream.finish();
        for _ in 0..ROUNDS {
            for (id, ttl) in expected {
                let answer: LeaseKeepAliveResponse = stream.next().await.unwrap();
                assert_eq!((answer.id, answer.ttl), (id, ttl));
                assert!(answer.header.is_some());
            }
        }
        let ended: Result<LeaseKeepAliveResponse, _> = stream.next().await;
        assert_eq!(ended, Err((0, String::new())));
        for id in [1, 2] {
            let path = "/etcdserverpb.Lease/LeaseRevoke";
            let revoke = LeaseRevokeRequest { id };
            let _: LeaseRevokeResponse = channel.ask(path, &revoke).await.unwrap();
        }
    }
}

/// As etcd's own client sends them: those of all its leases at once, each in a frame of its own.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_of_many_leases_at_once_leave_the_connection_to_the_others() {
    const LEASES: i64 = 30_000;
    let cluster = started(1).await;
    let channel = Channel::open(cluster.ports[0]).await;
    grant(&channel, 1, 100).await;
    let mut stream = channel.stream(KEEP_ALIVE, &[]).await;
    for _ in 0..LEASES {
        stream.send(&LeaseKeepAliveRequest { id: 1 });
    }
    for number in 0..LEASES {
        let answer: LeaseKeepAliveResponse = stream.next().await.unwrap();
        assert_eq!(answer.ttl, 100, "{number}");
    }
    grant(&channel, 2, 100).await;
}

/// A renewal that waits for another leader is answered in its name, and not in that of the leader before.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_names_the_term_in_which_it_was_permitted() {
    let mut cluster = started(3).await;
    let (leader, follower) = (cluster.leader, cluster.follower());
    let channel = Channel::open(cluster.ports[follower]).await;
    grant(&channel, 1, 100).await;
    let ask = async || {
        let mut stream = channel.stream(KEEP_ALIVE, &[]).await;
        stream.send_together(&[LeaseKeepAliveRequest { id: 1 }]);
        stream
    };
    let answer: LeaseKeepAliveResponse = ask().await.next().await.unwrap();
    let before = answer.header.unwrap().raft_term;
    let third = 3 - leader - follower;
    for gone in [leader, third] {
        cluster.cluster.nodes[gone].kill();
    }
    // Those that were on their way to the leader are lost; the others wait for another.
    let mut asked = Vec::new();
    for _ in 0..40 {
        asked.push(ask().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.cluster.nodes[third].start();
    let mut waited = 0;
    for mut stream in asked {
        let answer: Result<LeaseKeepAliveResponse, _> = stream.next().await;
        if let Ok(answer) = answer {
            assert_eq!(answer.ttl, 100);
            assert!(answer.header.unwrap().raft_term > before);
            waited += 1;
        }
    }
    if waited == 0 {
        say_left_out("renewals that wait for another leader: none waited for so long");
    }
}
