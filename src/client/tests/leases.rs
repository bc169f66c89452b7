//! Keepers of leases, against servers that do as they are told.

use super::*;
use crate::api::LeaseTarget;
use crate::client::{KeepAliveEvent, LeaseGrantOptions, LeaseKeeper, LostCause};
use crate::clock::SystemClock;
use crate::time::Clock;

/// Answers renewals with `kept`, in turn, and goes on with the last.
fn renewing(kept: &'static [LeaseKept]) -> impl Fn(usize, &ClientFrame) -> Reaction + Send + Sync {
    let turn = AtomicUsize::new(0);
    move |_, frame| {
        let mut response = answer("n1", frame).unwrap();
        if let ResponseBody::LeaseKeepAlive(answers) = &mut response.body {
            let turn = turn.fetch_add(1, Ordering::SeqCst).min(kept.len() - 1);
            answers.fill(kept[turn]);
        }
        reply(Ok(response))
    }
}

/// How often a test begins anew on a machine that comes too late for a lease of 0.6 s.
const ATTEMPTS: usize = 20;

const RENEWED: LeaseKept = LeaseKept::Renewed {
    ttl_ms: TTL_MS,
    grant_index: 9,
    is_extended: false,
};

/// Waits until a lease is renewed. `None` if it is lost before: a machine that is busy elsewhere may come
/// too late.
async fn renewed(keeper: &mut LeaseKeeper) -> Option<Duration> {
    loop {
        match keeper.event().await.unwrap() {
            KeepAliveEvent::Renewed { ttl, .. } => return Some(ttl),
            // Or only late.
            KeepAliveEvent::AtRisk { .. } | KeepAliveEvent::Retrying { .. } => {}
            KeepAliveEvent::Lost { cause } => {
                assert_eq!(cause, LostCause::Unreachable);
                return None;
            }
        }
    }
}

/// Has fifty leases granted and each renewed three times, and says how many each request renewed. `None`
/// if one was lost.
async fn fifty_renewed(authority: &Authority) -> Option<Vec<usize>> {
    let node = fake(authority, "n1", healthy("n1"));
    let client = connect(authority, &[&node]).await;
    // All at once, so that they are due together however long a grant takes.
    let granting: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            let options = LeaseGrantOptions::new().with_owner("me");
            let ttl = Duration::from_millis(TTL_MS);
            tokio::spawn(async move { client.lease().grant_and_keep(ttl, Some(options)).await })
        })
        .collect();
    let mut keepers = Vec::new();
    for granted in granting {
        let (_, keeper) = granted.await.unwrap().unwrap();
        keepers.push(keeper);
    }
    for keeper in &mut keepers {
        for _ in 0..3 {
            assert_eq!(renewed(keeper).await?.as_millis(), 600);
        }
    }
    let calls = node.calls();
    let renewals = calls.iter().filter_map(|frame| match &frame.call.request {
        Request::LeaseKeepAlive(leases) => Some(leases.len()),
        _ => None,
    });
    Some(renewals.collect())
}

#[test]
fn leases_that_are_due_together_are_renewed_by_one_request_and_again_and_again() {
    run(async {
        let authority = Authority::new();
        let mut found = None;
        for _ in 0..ATTEMPTS {
            found = fifty_renewed(&authority).await;
            if found.is_some() {
                break;
            }
        }
        let sizes = found.expect("not every lease is lost");
        let (requests, leases) = (sizes.len(), sizes.iter().sum::<usize>());
        assert!(leases >= 150, "{leases}");
        assert!(
            requests < leases / 2,
            "{requests} requests for {leases} renewals"
        );
    });
}

#[test]
fn what_is_undecided_is_asked_again_and_a_revoked_lease_is_lost_with_its_cause() {
    run(async {
        let authority = Authority::new();
        let answers = &[LeaseKept::Undecided, RENEWED, LeaseKept::Revoked];
        let mut attempts = 0..ATTEMPTS;
        let mut keeper = loop {
            assert!(attempts.next().is_some(), "it is lost each time");
            let node = fake(&authority, "n1", renewing(answers));
            let client = connect(&authority, &[&node]).await;
            let keeper = client.lease().keep_alive(9).await.unwrap();
            assert_eq!(keeper.ttl(), Duration::from_millis(TTL_MS));
            let cause = keeper.lost().await;
            // A machine that is busy elsewhere may ask too late to be told.
            if cause != LostCause::Unreachable {
                assert_eq!(cause, LostCause::Revoked);
                break keeper;
            }
        };
        let mut last = None;
        while let Some(event) = keeper.event().await {
            last = Some(event);
        }
        let revoked = KeepAliveEvent::Lost {
            cause: LostCause::Revoked,
        };
        assert_eq!(last, Some(revoked));
        assert!(!keeper.is_alive());
    });
}

#[test]
fn a_lease_whose_renewals_are_refused_is_lost_by_its_holders_own_clock() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| match &frame.call.request {
            Request::LeaseKeepAlive(_) => refuse(ErrorKind::NoLeader),
            _ => reply(answer("n1", frame)),
        });
        let client = connect(&authority, &[&node]).await;
        let ttl = Duration::from_millis(TTL_MS);
        let (mut attempts, mut told) = (0..ATTEMPTS, 0);
        // A machine that is busy elsewhere may lose it before there is anything to tell.
        while told == 0 {
            assert!(attempts.next().is_some(), "nothing is told before a loss");
            let (_, mut keeper) = client.lease().grant_and_keep(ttl, None).await.unwrap();
            let (mut retries, mut at_risk) = (0, 0);
            let cause = loop {
                match keeper.event().await.unwrap() {
                    KeepAliveEvent::Retrying { error } => {
                        retries += 1;
                        assert_eq!(error.outcome, Outcome::NotApplied);
                    }
                    KeepAliveEvent::AtRisk { remaining } => {
                        at_risk += 1;
                        assert!(remaining < ttl);
                    }
                    KeepAliveEvent::Lost { cause } => break cause,
                    KeepAliveEvent::Renewed { .. } => panic!("nobody renewed it"),
                }
            };
            assert_eq!(cause, LostCause::Unreachable);
            assert!(at_risk <= 1, "{at_risk}");
            assert_eq!(keeper.event().await, None, "a loss is the last word");
            told = retries + at_risk;
        }
    });
}

#[test]
fn renewals_follow_the_leader_and_a_closed_client_loses_its_leases() {
    run(async {
        let authority = Authority::new();
        let leader = fake(&authority, "n1", healthy("n1"));
        let address = leader.address.clone();
        let follower = fake(&authority, "n2", move |_, _| {
            not_leader(Some((id_of("n1"), &address)))
        });
        let client = connect(&authority, &[&follower]).await;
        let mut keeper = client.lease().keep_alive(9).await.unwrap();
        let mut attempts = 0..ATTEMPTS;
        while renewed(&mut keeper).await.is_none() {
            assert!(attempts.next().is_some(), "it is lost each time");
            keeper = client.lease().keep_alive(9).await.unwrap();
        }
        assert!(
            leader
                .methods()
                .iter()
                .all(|method| *method == "lease_keep_alive")
        );
        client.close().await;
        let cause = keeper.lost().await;
        let causes = [LostCause::ClientClosed, LostCause::Unreachable];
        assert!(causes.contains(&cause), "{cause:?}");
    });
}

/// T12: whatever the answer took is taken off. The answers come late here by a known time at least, so
/// that a holder who counted from their arrival would count on more than there can be.
#[test]
fn t12_s15_a_holder_counts_from_when_it_sent_the_grant_or_the_renewal() {
    const LATE: Duration = Duration::from_millis(250);
    let most = |ttl_ms: u64| Duration::from_millis(ttl_ms).mul_f64(0.98 / 1.02) - LATE;
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        client.get("k", None).await.unwrap();
        for way in 0..3 {
            node.gate.shut();
            let (client, asked) = (client.clone(), node.calls().len());
            let ttl = Duration::from_millis(TTL_MS);
            let keeper = tokio::spawn(async move {
                let lease = client.lease();
                match way {
                    0 => lease.keep_alive(9).await.unwrap(),
                    1 => lease.grant_and_keep(ttl, None).await.unwrap().1,
                    _ => {
                        let put = client.put_with_new_lease("k", "v", ttl, None);
                        put.await.unwrap().1
                    }
                }
            });
            while node.calls().len() == asked {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            tokio::time::sleep(LATE).await;
            node.gate.open();
            let remaining = keeper.await.unwrap().remaining();
            assert!(remaining <= most(TTL_MS), "{way}: {remaining:?}");
        }
    });
    // And so with renewals, of which each comes late.
    const RENEWED_MS: u64 = 1_500;
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", |_, frame| {
            let mut response = answer("n1", frame).unwrap();
            if let ResponseBody::LeaseKeepAlive(answers) = &mut response.body {
                answers.fill(LeaseKept::Renewed {
                    ttl_ms: RENEWED_MS,
                    grant_index: 9,
                    is_extended: false,
                });
                std::thread::sleep(LATE);
            }
            reply(Ok(response))
        });
        let client = connect(&authority, &[&node]).await;
        let mut renewals = 0;
        while renewals < 2 {
            let mut keeper = client.lease().keep_alive(9).await.unwrap();
            // On a machine that is busy elsewhere it may be lost, and then another one is looked at.
            while renewals < 2
                && let Some(event) = keeper.event().await
            {
                if let KeepAliveEvent::Renewed { remaining, .. } = event {
                    assert!(remaining <= most(RENEWED_MS), "{remaining:?}");
                    renewals += 1;
                }
            }
        }
    });
}

/// S15: a holder renews after a third, so a lease costs the cluster about three renewals in its time
/// and never more than four.
#[test]
fn s15_a_keeper_asks_no_more_often_than_its_share_of_the_time_to_live() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let began = SystemClock.now();
        let mut keeper = client.lease().keep_alive(9).await.unwrap();
        // On a machine that is busy elsewhere it may be tried again, or be lost.
        let (mut renewals, mut more) = (0, 0);
        while renewals < 12 {
            assert!(more <= 12, "as often as it is renewed");
            match keeper.event().await.unwrap() {
                KeepAliveEvent::Renewed { .. } => renewals += 1,
                KeepAliveEvent::Retrying { .. } => more += 1,
                KeepAliveEvent::AtRisk { .. } => {}
                KeepAliveEvent::Lost { cause } => {
                    assert_eq!(cause, LostCause::Unreachable);
                    keeper = client.lease().keep_alive(9).await.unwrap();
                    more += 1;
                }
            }
        }
        let asked = node.methods().len() as u64;
        drop(keeper);
        let passed = SystemClock.now().at_most_since(began);
        let passed = u64::try_from(passed.as_millis()).unwrap();
        // A third, less up to a tenth of it, and what `keep_alive` itself asks at the beginning.
        let soonest = TTL_MS * 3 / 10;
        let most = passed / soonest + 2 + more;
        assert!(asked <= most, "{asked} in {passed} ms, {more} more");
        assert!(soonest * 4 > TTL_MS, "never more than four in its time");
    });
}

/// T14: the next lease of that id is another's.
#[test]
fn t14_a_keeper_of_an_id_names_the_grant_from_its_first_renewal_on() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let keeper = client.lease().keep_alive(3).await.unwrap();
        let pinned = LeaseRef {
            id: 3,
            grant_index: 9,
        };
        assert_eq!(keeper.lease(), pinned);
        let named = || {
            let calls = node.calls();
            calls
                .into_iter()
                .filter_map(|frame| match frame.call.request {
                    Request::LeaseKeepAlive(leases) => leases.first().copied(),
                    _ => None,
                })
        };
        // The first may be asked for more than once.
        while named().last() != Some(pinned) {
            assert_eq!(named().last(), Some(LeaseRef::id(3)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
}

/// T14: the next lease of that name is another's.
#[test]
fn t14_what_is_done_to_a_lease_by_its_name_is_done_to_the_grant_that_was_found() {
    run(async {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let leases = client.lease();
        let asked = || {
            let calls = node.calls();
            let requests = calls.into_iter().map(|frame| frame.call.request);
            let asked: Vec<Request> = requests.filter(|it| *it != Request::OpenSession).collect();
            asked
        };
        let look_up = Request::LeaseNamed { name: "n".into() };
        assert_eq!(leases.named("n").await.unwrap(), NAMED);
        leases.keep_alive_once("n").await.unwrap();
        leases.revoke("n").await.unwrap();
        let longer = Duration::from_secs(60);
        leases.update_ttl("n".to_owned(), longer).await.unwrap();
        let expected = [
            look_up.clone(),
            look_up.clone(),
            Request::LeaseKeepAlive(vec![NAMED]),
            look_up.clone(),
            Request::LeaseRevoke(NAMED),
            look_up.clone(),
            Request::LeaseUpdateTtl {
                lease: NAMED,
                ttl_ms: 60_000,
            },
        ];
        assert_eq!(asked(), expected);
        let keeper = leases.keep_alive("n").await.unwrap();
        assert_eq!(keeper.lease(), NAMED);
        drop(keeper);
        // What the fake says of it is another grant.
        let error = leases.time_to_live("n", None).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::LeaseNotFound);
        assert!(leases.time_to_live(NAMED.id, None).await.is_ok());
        // A write finds it when it takes effect.
        let on_it = PutOptions::new().with_lease("n");
        client.put("k", "v", Some(on_it)).await.unwrap();
        let put = asked().pop();
        assert!(
            matches!(&put, Some(Request::Put(put)) if put.lease == LeaseTarget::Name("n".into())),
            "{put:?}"
        );
        for bad in ["", &"n".repeat(256)] {
            let error = leases.named(bad).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
        }
    });
}
