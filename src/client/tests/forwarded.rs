//! Clients that reach one node, and not the leader that it names.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use super::*;

const LEADER: NodeId = NodeId(b'9' as u64);

/// A node that names a leader at its own address, as all do behind one, unless it forwards. To whom it does is
/// in the second, 0 for none.
fn behind_a_balancer(authority: &Authority) -> (Fake, Arc<AtomicU64>) {
    let forwards_to = Arc::<AtomicU64>::default();
    let address = Arc::<OnceLock<String>>::default();
    let (to, balancer) = (Arc::clone(&forwards_to), Arc::clone(&address));
    let node = fake(authority, "n1", move |_, frame| {
        if let Request::ForwardToLeader { leader } = frame.call.request {
            to.store(leader.0, Ordering::SeqCst);
        } else if to.load(Ordering::SeqCst) != LEADER.0 {
            return not_leader(Some((LEADER, balancer.get().unwrap())));
        }
        reply(answer("n1", frame).map(|mut response| {
            response.header.leader_id = Some(LEADER);
            response
        }))
    });
    address.set(node.address.clone()).unwrap();
    (node, forwards_to)
}

#[test]
fn behind_an_address_that_all_nodes_share_the_one_that_is_reached_forwards() {
    run(async {
        let authority = Authority::new();
        let (node, _) = behind_a_balancer(&authority);
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        client.put("k", "v", None).await.unwrap();
        let asked = [
            "open_session",
            "forward_to_leader",
            "open_session",
            "put",
            "put",
        ];
        assert_eq!(node.methods(), asked);
        let Some(wish) = node.calls().into_iter().nth(1) else {
            panic!("it was asked to forward");
        };
        let left = wish.call.timeout_ms;
        assert!(
            (301..=2_000).contains(&left),
            "time for a quorum round of members far apart: {left} ms"
        );
    });
}

#[test]
fn a_node_that_names_the_leader_again_is_asked_again_to_forward() {
    run(async {
        let authority = Authority::new();
        let (node, forwards_to) = behind_a_balancer(&authority);
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        // What an earlier wish of this connection led to came last.
        forwards_to.store(7, Ordering::SeqCst);
        client.put("k", "v", None).await.unwrap();
        let asked = node.methods();
        assert_eq!(asked[4..], ["put", "forward_to_leader", "put"], "{asked:?}");
    });
}
