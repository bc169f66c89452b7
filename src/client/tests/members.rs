//! Which of the members are asked, and how a client comes to know of them.

use super::*;
use crate::api::{Member, Membership, Secret};
use crate::client::addresses::Addresses;
use crate::client::deadline::{deadline_after, within};
use crate::client::route::Router;

/// Members that are reached at these addresses, and vote.
fn members_at(addresses: &[&str]) -> MembersResponse {
    let member = |address: &&str| Member {
        info: MemberInfo {
            client_address: address.to_string(),
            ..MemberInfo::default()
        },
        membership: Membership::Voter,
        ..Member::default()
    };
    MembersResponse {
        members: addresses.iter().map(member).collect(),
        ..MembersResponse::default()
    }
}

/// Who is asked, one after the other, where nobody ever serves.
fn asked_in_vain(router: &Router, count: usize) -> Vec<String> {
    let asked = std::iter::repeat_with(|| {
        let next = router.next();
        router.avoid(&next);
        next
    });
    asked.take(count).collect()
}

#[test]
fn where_nobody_is_connected_every_node_is_asked_before_any_is_asked_again() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let pool = client.inner.router.pool();
        let given = [1, 2, 3].map(|port| format!("127.0.0.1:{port}"));
        let router = Router::new(
            Arc::clone(pool),
            given.to_vec(),
            RetryPolicy::default(),
            (true, false),
            1,
        );
        let learned = [4, 5].map(|port| format!("127.0.0.1:{port}"));
        router.learn_members(&members_at(&learned.each_ref().map(String::as_str)));
        // What was given comes first. And no request begins anew: this may be one, or ten.
        let all = [&given[..], &learned[..]].concat();
        for _ in 0..3 {
            assert_eq!(asked_in_vain(&router, 5), all);
        }
        // Whoever is new comes before those that are known to be dead.
        let newer = ["127.0.0.1:5", "127.0.0.1:6"];
        router.learn_members(&members_at(&newer));
        assert_eq!(asked_in_vain(&router, 2), ["127.0.0.1:6", "127.0.0.1:1"]);
    });
}

#[test]
fn while_some_node_is_connected_nobody_waits_for_another() {
    run(async {
        let authority = Authority::new();
        let near = fake(&authority, "n1", healthy("n1"));
        let met = fake(&authority, "n4", healthy("n4"));
        let fresh = fake(&authority, "n5", healthy("n5"));
        // Nobody is there any more, and nothing says so.
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let gone = gone.local_addr().unwrap().to_string();
        let endpoints = [gone, near.address.clone()];
        let client = Client::connect(endpoints, Some(options(&authority)))
            .await
            .unwrap();
        let router = &client.inner.router;
        let linked = router
            .pool()
            .link(&met.address, deadline_after(PATIENCE))
            .await;
        linked.unwrap();
        router.learn_members(&members_at(&[&met.address, &fresh.address]));
        assert_eq!(
            asked_in_vain(router, 2),
            [near.address.clone(), met.address.clone()]
        );
        // The third has been called meanwhile, and has its turn once it is connected.
        while router.pool().usable(&fresh.address).is_none() {
            let next = asked_in_vain(router, 1).remove(0);
            assert!([&near.address, &met.address, &fresh.address].contains(&&next));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let asked = asked_in_vain(router, 6);
        for node in [&near, &met, &fresh] {
            let turns = asked.iter().filter(|next| **next == node.address);
            assert_eq!(turns.count(), 2, "{asked:?}");
        }
    });
}

#[test]
fn a_follower_that_still_names_a_dead_leader_is_not_believed() {
    run(async {
        let authority = Authority::new();
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let gone = gone.local_addr().unwrap().to_string();
        let (leader, said) = (id_of("n1"), gone.clone());
        let follower = fake(&authority, "n2", move |number, frame| match number {
            0..4 => not_leader(Some((leader, &said))),
            _ => reply(answer("n2", frame)),
        });
        let client = connect(&authority, &[&follower]).await;
        let router = &client.inner.router;
        // As when a link to it has just fallen silent.
        router.avoid(&gone);
        let read = client.get("k", None);
        let mut read = Box::pin(read);
        // Nobody is ever taken for the leader who is known to be dead.
        loop {
            tokio::select! {
                found = &mut read => {
                    found.unwrap();
                    break;
                }
                () = tokio::time::sleep(Duration::from_millis(1)) => {
                    let believed = router.leader().map(|leader| leader.address.clone());
                    assert_ne!(believed.as_ref(), Some(&gone));
                }
            }
        }
        assert_eq!(follower.calls().len(), 5);
    });
}

#[test]
fn a_node_that_answers_too_late_is_not_asked_first_the_next_time() {
    run(async {
        let authority = Authority::new();
        let behind = fake(&authority, "n1", |_, _| refuse(ErrorKind::DeadlineExceeded));
        let other = fake(&authority, "n2", healthy("n2"));
        let client = connect(&authority, &[&behind, &other]).await;
        let router = &client.inner.router;
        for node in [&behind, &other] {
            let linked = router
                .pool()
                .link(&node.address, deadline_after(PATIENCE))
                .await;
            linked.unwrap();
        }
        let error = client.get("k", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
        client.get("k", None).await.unwrap();
        assert_eq!((behind.calls().len(), other.calls().len()), (1, 1));
    });
}

#[test]
fn a_node_that_knows_too_little_of_users_is_left_for_another() {
    run(async {
        let authority = Authority::new();
        // It has not heard of the token yet.
        let behind = fake(&authority, "n1", |_, frame| match &frame.call.request {
            Request::Auth(_) => refuse(ErrorKind::Unavailable),
            _ => refuse(ErrorKind::Unauthenticated),
        });
        let other = fake(&authority, "n2", |_, frame| match &frame.call.request {
            Request::Auth(_) => {
                let known = answer("n2", frame).unwrap();
                let body = ResponseBody::Auth(crate::api::AuthResponse::Done);
                reply(Ok(Response { body, ..known }))
            }
            _ => reply(answer("n2", frame)),
        });
        let options = options(&authority).with_token(Secret::new("of somebody"));
        let client = connect_with(&[&behind, &other], options).await;
        let router = &client.inner.router;
        for node in [&behind, &other] {
            let linked = router
                .pool()
                .link(&node.address, deadline_after(PATIENCE))
                .await;
            linked.unwrap();
        }
        let found = client.get("k", None).await.unwrap();
        assert_eq!(found.header.member_id, other.id);
    });
}

#[test]
fn whoever_asks_for_the_members_knows_where_they_are_from_then_on() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| {
            let mut known = answer("n1", frame).unwrap();
            if frame.call.request == Request::MemberList {
                let list = members_at(&["10.0.0.9:7400"]);
                known.body = ResponseBody::Members(Box::new(list));
            }
            reply(Ok(known))
        });
        *node.members.lock().unwrap() = members_at(&["10.0.0.8:7400"]);
        let client = connect(&authority, &[&node]).await;
        client.get("k", None).await.unwrap();
        // It asks by itself once, when it has heard who leads.
        while client.learned_endpoints() != ["10.0.0.8:7400"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        client.member_list(Consistency::Linearizable).await.unwrap();
        assert_eq!(client.learned_endpoints(), ["10.0.0.9:7400"]);
    });
}

#[test]
fn what_a_follower_says_of_the_members_takes_none_away() {
    let list = |addresses: &[&str]| members_at(addresses);
    let addresses = Addresses::new(vec!["a:1".into()]);
    addresses.learn(&list(&["a:1", "b:1", "c:1"]));
    assert_eq!(*addresses.learned(), ["b:1", "c:1"]);
    addresses.learn_more(&list(&["c:1", "d:1", "0.0.0.0:1", ""]));
    assert_eq!(*addresses.learned(), ["c:1", "d:1", "b:1"]);
    addresses.learn(&list(&["c:1", "d:1"]));
    assert_eq!(*addresses.learned(), ["c:1", "d:1"]);
    assert_eq!(addresses.count(), 3);
}

#[test]
fn attempts_are_made_for_as_long_as_there_is_time_for_one() {
    let policy = RetryPolicy::default();
    let second = Duration::from_secs(1);
    assert_eq!(within(second, policy.back_off(1)), policy.back_off(1));
    // Of two seconds almost all are gone, and the next back-off would be longer than what is left.
    let (mut left, mut attempts) = (2 * second, 0);
    while within(left, policy.back_off(attempts + 1)) < left {
        attempts += 1;
        left -= within(left, policy.back_off(attempts));
    }
    assert!(
        left <= Duration::from_millis(20),
        "{left:?} are left unused"
    );
    assert_eq!(attempts, 11);
    assert_eq!(within(Duration::ZERO, policy.back_off(1)), Duration::ZERO);
}

#[test]
fn members_that_replaced_all_endpoints_but_one_are_found_before_those_are_tried_in_vain() {
    run(async {
        let authority = Authority::new();
        let left = fake(&authority, "n3", |_, _| refuse(ErrorKind::NoLeader));
        let leader = fake(&authority, "n4", healthy("n4"));
        // Nobody is there any more, and nothing says so.
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let gone = gone.local_addr().unwrap().to_string();
        let endpoints = [gone, left.address.clone(), "127.0.0.1:1".into()];
        let retry = RetryPolicy::default().with_attempts_max(2);
        let client = Client::connect(endpoints, Some(options(&authority).with_retry(retry)))
            .await
            .unwrap();
        let router = &client.inner.router;
        let linked = router
            .pool()
            .link(&leader.address, deadline_after(PATIENCE))
            .await;
        linked.unwrap();
        router.learn_members(&members_at(&[&left.address, &leader.address]));
        client.get("k", None).await.unwrap();
        assert_eq!(left.calls().len() + leader.calls().len(), 2);
    });
}

#[test]
fn members_that_came_after_it_connected_are_known_to_a_client_before_it_needs_them() {
    run(async {
        let authority = Authority::new();
        let first = fake(&authority, "n1", |number, frame| match number {
            0 => reply(answer("n1", frame)),
            _ => refuse(ErrorKind::Unavailable),
        });
        let second = fake(&authority, "n2", healthy("n2"));
        let options = options(&authority).with_auto_sync_interval(Duration::from_millis(100));
        let client = connect_with(&[&first], options).await;
        client.get("k", None).await.unwrap();

        // Whoever leads is still the same, and nobody asks for anything.
        let joined = members_at(&[&first.address, &second.address]);
        *first.members.lock().unwrap() = joined;
        while client.inner.router.learned().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let found = client.get("k", None).await.unwrap();
        assert_eq!(found.header.member_id, second.id);
    });
}
