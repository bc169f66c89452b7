//! Reads at the node beside the client, which serves them by its read lease.

use super::*;
use crate::api::{Consistency, ReadInfo, ReadPath};
use crate::types::LogIndex;

/// A follower beside the client that asks for read leases, and the leader. Each read is served on `path`, or
/// its connection breaks off.
fn home_and_leader(authority: &Authority, path: fn(usize) -> Option<ReadPath>) -> (Fake, Fake) {
    let leader = fake(authority, "n2", healthy("n2"));
    let id = leader.id;
    let home = fake(authority, "n1", move |number, frame| {
        let Some(path) = path(number) else {
            return Reaction::Cut;
        };
        let mut answer = answer("n1", frame);
        if let Ok(response) = &mut answer {
            response.header.leader_id = Some(id);
            response.header.read = Some(ReadInfo {
                path,
                lease_remaining: Duration::ZERO,
                lease_margin: Duration::ZERO,
                read_index: LogIndex(1),
                applied_index: LogIndex(1),
                staleness: None,
            });
        }
        reply(answer)
    });
    home.said.asks_for_read_leases();
    home.said.leads(KnownLeader {
        id,
        address: Some(leader.address.clone()),
    });
    (home, leader)
}

#[test]
fn linearizable_reads_stay_at_the_node_beside_the_client_while_it_serves_them_itself() {
    run(async {
        let authority = Authority::new();
        let (home, leader) = home_and_leader(&authority, |_| Some(ReadPath::ReadLease));
        let client = connect(&authority, &[&home]).await;
        for _ in 0..20 {
            let found = client.get("k", None).await.unwrap();
            assert_eq!(found.header.member_id, home.id);
        }
        // Ranges and transactions that only read, too; what only the leader can do goes there.
        let prefix = GetOptions::new().with_prefix();
        client.get("k", Some(prefix)).await.unwrap();
        let quorum = GetOptions::new().with_consistency(Consistency::LinearizableQuorum);
        client.get("k", Some(quorum)).await.unwrap();
        client.put("k", "v", None).await.unwrap();
        assert_eq!(home.methods(), ["range"; 21]);
        assert_eq!(leader.methods(), ["range", "open_session", "put"]);
    });
}

#[test]
fn a_node_that_has_to_ask_the_leader_each_time_is_left_and_tried_again() {
    run(async {
        let authority = Authority::new();
        let (home, leader) = home_and_leader(&authority, |number| match number {
            0..8 => Some(ReadPath::Follower),
            _ => Some(ReadPath::ReadLease),
        });
        let client = connect(&authority, &[&home]).await;
        for _ in 0..8 {
            client.get("k", None).await.unwrap();
        }
        assert_eq!((home.calls().len(), leader.calls().len()), (8, 0));
        let found = client.get("k", None).await.unwrap();
        assert_eq!(found.header.member_id, leader.id);
        while home.calls().len() < 9 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            client.get("k", None).await.unwrap();
        }
        let at_leader = leader.calls().len();
        for _ in 0..20 {
            client.get("k", None).await.unwrap();
        }
        assert_eq!((home.calls().len(), leader.calls().len()), (29, at_leader));
    });
}

#[test]
fn a_read_whose_node_breaks_off_goes_to_the_leader_and_later_ones_come_back() {
    run(async {
        let authority = Authority::new();
        let (home, leader) = home_and_leader(&authority, |number| {
            (number != 1).then_some(ReadPath::ReadLease)
        });
        let client = connect(&authority, &[&home]).await;
        let asked = async || client.get("k", None).await.unwrap().header.member_id;
        assert_eq!(asked().await, home.id);
        assert_eq!(asked().await, leader.id);
        while asked().await != home.id {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(home.calls().len(), 3);
    });
}

/// It may be cut off from all others, and then it serves nothing; but its connection is sound.
#[test]
fn a_read_that_its_node_does_not_answer_goes_to_the_leader_while_there_is_time() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n2", healthy("n2"));
        let home = fake(&authority, "n1", |number, frame| match number {
            0 | 1 => Reaction::Ignore,
            _ => reply(answer("n1", frame)),
        });
        home.said.asks_for_read_leases();
        home.said.leads(KnownLeader {
            id: leader.id,
            address: Some(leader.address.clone()),
        });
        for options in [None, Some(GetOptions::new().with_prefix())] {
            let client = connect(&authority, &[&home]).await;
            for _ in 0..3 {
                let found = client.get("k", options.clone()).await.unwrap();
                assert_eq!(found.header.member_id, leader.id);
            }
        }
        assert_eq!((home.calls().len(), leader.calls().len()), (2, 6));
    });
}

#[test]
fn a_node_that_asks_for_no_read_leases_is_not_read_at() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n2", healthy("n2"));
        let follower = fake(&authority, "n1", healthy("n1"));
        follower.said.leads(KnownLeader {
            id: leader.id,
            address: Some(leader.address.clone()),
        });
        let client = connect(&authority, &[&follower]).await;
        client.get("k", None).await.unwrap();
        assert_eq!((follower.calls().len(), leader.calls().len()), (0, 1));
    });
}
