//! Client leases over real servers: kept through the death of leaders, ended in time, refused with a
//! reason. What is exact is asserted of every lease, however slow the machine: a key whose keeper
//! may count on its lease is there.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use leasehold::api::{
    Consistency, ErrorKind, KeyRange, LeaseGrantRequest, LeaseKept, LeaseRef, Outcome, Request,
    ResponseBody,
};
use leasehold::client::{
    Client, GetOptions, KeepAliveEvent, LeaseEndCause, LeaseEvent, LeaseGrantOptions, LeaseKeeper,
    LeaseListOptions, LeaseWatchOptions, LeaseWatcher, LostCause, PutOptions, RetryPolicy,
    TimeToLiveOptions,
};

use crate::admin::hand_over;
use crate::harness::{Cluster, Node, PATIENCE, eventually, judged, leasehold_command};
use crate::lease_storm::by_now;

/// Long beside an election on a machine that is busy with something else.
const KEPT_FOR: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(700);

/// Waits until `key` is gone, or is there.
async fn until_gone(client: &Client, key: &str) {
    let gone = async {
        while client.get(key, None).await.unwrap().kv().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE, gone).await;
    waited.unwrap_or_else(|_| panic!("{key} is still there after {PATIENCE:?}"));
}

async fn keep(client: &Client, key: &str, ttl: Duration) -> LeaseKeeper {
    let kept = client.put_with_new_lease(key, "v", ttl, None).await;
    kept.unwrap().1
}

/// Puts `keys` on a short lease that nobody keeps, and gives the lease.
async fn put_on_a_short_lease(client: &Client, keys: &[&str]) -> i64 {
    let all_put = async {
        'another: loop {
            let short = client.lease().grant(SHORT, None).await.unwrap();
            for key in keys {
                let on_it = PutOptions::new().with_lease(short.id);
                if let Err(error) = client.put(key, "v", Some(on_it)).await {
                    // On a machine that is busy elsewhere the lease may be over by now.
                    let is_over = matches!(
                        error.kind,
                        ErrorKind::LeaseExpired | ErrorKind::LeaseNotFound
                    );
                    assert!(is_over, "{error}");
                    continue 'another;
                }
            }
            return short.id;
        }
    };
    let all_put = tokio::time::timeout(PATIENCE, all_put).await;
    all_put.expect("a lease that lasts until its keys are there")
}

/// Waits until the lease is renewed once more than was heard of.
async fn until_renewed(keeper: &mut LeaseKeeper) {
    let renewed = async {
        loop {
            match keeper.event().await {
                Some(KeepAliveEvent::Renewed { .. }) => return,
                Some(KeepAliveEvent::Lost { cause }) => panic!("lost: {cause}"),
                Some(_) => {}
                None => panic!("the events end with a loss"),
            }
        }
    };
    let renewed = tokio::time::timeout(PATIENCE, renewed).await;
    renewed.expect("a renewal");
}

/// No key is missing whose keeper may count on it.
async fn nothing_ended_early(client: &Client, keepers: &[LeaseKeeper]) -> usize {
    let options = GetOptions::new().with_prefix().with_keys_only();
    let found = client.get("kept/", Some(options)).await.unwrap();
    let mut alive = 0;
    for (number, keeper) in keepers.iter().enumerate() {
        let key = format!("kept/{number:04}");
        let is_there = found.kvs.iter().any(|kv| kv.key == key);
        // The clocks are read after the keys: who is sure now was sure then.
        if keeper.is_alive() {
            alive += 1;
            assert!(is_there, "{key} is gone, and its lease is counted on");
        }
    }
    alive
}

/// T1, T2, T12, S5, S6 between processes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_are_kept_outlive_the_deaths_of_leaders() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut keepers = Vec::new();
    for number in 0..300 {
        keepers.push(keep(&client, &format!("kept/{number:04}"), KEPT_FOR).await);
    }
    for round in 0..3 {
        let leader = cluster.wait_for_lease();
        cluster.nodes[leader].kill();
        // What the one before had renewed says nothing of the next one.
        for keeper in &mut keepers {
            while let Some(Some(event)) = by_now(keeper.event()) {
                if let KeepAliveEvent::Lost { cause } = event {
                    panic!("lost: {cause}");
                }
            }
        }
        let next = cluster.wait_for_lease();
        assert_ne!(leader, next);
        let alive = nothing_ended_early(&client, &keepers).await;
        eprintln!(
            "kill {}: {alive} of {} leases alive",
            round + 1,
            keepers.len()
        );
        cluster.nodes[leader].start();
        // Every lease is renewed by the new leader before that one dies, too.
        for keeper in &mut keepers {
            until_renewed(keeper).await;
        }
    }
    assert_eq!(nothing_ended_early(&client, &keepers).await, keepers.len());
    // Whoever leads by then has renewed each of them at least once, before long.
    eventually("as many renewals as leases", || {
        let leader = cluster.wait_for_lease();
        let renewed = cluster.nodes[leader].metric("leasehold_lease_renewed_total");
        (renewed >= keepers.len() as f64).then_some(())
    });
}

/// What leases answer a client that knows no other node than `endpoint`.
async fn answers_at(cluster: &Cluster, endpoint: String, name: &str) -> Vec<String> {
    let options = cluster.options();
    let client = cluster.client_of(vec![endpoint], options).await;
    let lease = client.lease();
    let named = || LeaseGrantOptions::new().with_name(name).with_owner("x12");
    let mut said = Vec::new();
    let granted = lease.grant(KEPT_FOR, Some(named())).await.unwrap();
    said.push(format!("granted for {} ms", granted.ttl_ms));
    let again = judged(async || lease.grant(KEPT_FOR, Some(named())).await).await;
    let again = again.unwrap_err();
    said.push(format!("again: {}, {:?}", again.code(), again.outcome));
    let on_it = PutOptions::new().with_lease(granted.id);
    let key = format!("x12/{name}");
    client.put(key.clone(), "v", Some(on_it)).await.unwrap();
    let kept = lease.keep_alive_once(granted.id).await.unwrap();
    said.push(format!("kept for {kept:?}"));
    let missing = lease.keep_alive_once(4_711).await.unwrap_err();
    said.push(format!("unknown: {}", missing.code()));
    let with_keys = TimeToLiveOptions::new().with_keys();
    let left = lease.time_to_live(granted.id, Some(with_keys)).await;
    let left = left.unwrap();
    said.push(format!(
        "{:?} of {}, {:?}, alive {}",
        left.name,
        left.owner,
        left.keys,
        left.remaining_ms.is_some_and(|left| left > 0)
    ));
    let revoked = lease.revoke(granted.id).await.unwrap();
    said.push(format!("revoked with {} keys", revoked.deleted));
    let gone = lease.revoke(granted.id).await.unwrap_err();
    said.push(format!("revoked again: {}", gone.code()));
    put_on_a_short_lease(&client, &[key.as_str()]).await;
    until_gone(&client, &key).await;
    said
}

/// X12: whichever node is asked first, the same happens and the same is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x12_leases_behave_alike_whichever_node_a_client_knows() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs("");
    let leader = cluster.start_and_settle();
    let endpoints = cluster.endpoints();
    let at_leader = answers_at(&cluster, endpoints[leader].clone(), "leader").await;
    assert_eq!(at_leader.len(), 7, "{at_leader:?}");
    for number in (0..3).filter(|number| *number != leader) {
        let at_follower = answers_at(&cluster, endpoints[number].clone(), "follower").await;
        let renamed = |said: &String| said.replace("follower", "leader");
        let at_follower: Vec<_> = at_follower.iter().map(renamed).collect();
        assert_eq!(at_follower, at_leader);
    }
}

/// X14: what nobody keeps goes, with a delete event like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_nobody_keeps_ends_and_takes_its_keys() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let short = put_on_a_short_lease(&client, &["a", "b"]).await;
    until_gone(&client, "a").await;
    assert!(client.get("b", None).await.unwrap().kv().is_none());
    let error = client.lease().keep_alive_once(short).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseExpired);
    let keeper = keep(&client, "c", SHORT).await;
    drop(keeper);
    until_gone(&client, "c").await;
    let total = |reason| format!("leasehold_lease_revoked_total{{reason=\"{reason}\"}}");
    eventually("both ends are counted", || {
        let leader = cluster.wait_for_lease();
        let ended = cluster.nodes[leader].metric(&total("expired"));
        (ended >= 2.0).then_some(())
    });
}

/// S14, X4: the client knows only nodes that do not lead, and is sent on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_knows_only_followers_keeps_leases() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_for_lease();
    let mut endpoints = cluster.endpoints();
    endpoints.remove(leader);
    let client = cluster.client_of(endpoints, cluster.options()).await;
    let mut keeper = keep(&client, "k", KEPT_FOR).await;
    until_renewed(&mut keeper).await;
    let options = TimeToLiveOptions::new().with_keys();
    let info = client
        .lease()
        .time_to_live(keeper.id(), Some(options))
        .await
        .unwrap();
    assert_eq!(info.keys, ["k"]);
    let remaining = Duration::from_millis(info.remaining_ms.unwrap());
    assert!(remaining <= KEPT_FOR && remaining > Duration::ZERO);
    keeper.revoke().await.unwrap();
    assert!(client.get("k", None).await.unwrap().kv().is_none());
}

/// X3, and the frame of ten thousand ids: one result each, the stream lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_ids_in_a_keep_alive_cost_the_good_ones_nothing() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let granted = client.lease().grant(KEPT_FOR, None).await.unwrap().lease();
    let (good, grant_index) = (granted.id, granted.grant_index);
    let mut leases = vec![LeaseRef::id(good); 10_000];
    leases[5] = LeaseRef::id(i64::MAX);
    leases[6] = LeaseRef::id(-3);
    leases[9_999] = LeaseRef {
        id: good,
        grant_index: 1,
    };
    for _ in 0..2 {
        let request = Request::LeaseKeepAlive(leases.clone());
        let response = client
            .call(request, Consistency::Linearizable)
            .await
            .unwrap();
        let ResponseBody::LeaseKeepAlive(kept) = response.body else {
            panic!("not a renewal");
        };
        assert_eq!(kept.len(), leases.len());
        for (place, kept) in kept.into_iter().enumerate() {
            match place {
                5 | 6 | 9_999 => assert_eq!(kept, LeaseKept::NotFound),
                _ => {
                    let LeaseKept::Renewed {
                        ttl_ms,
                        grant_index: of,
                        ..
                    } = kept
                    else {
                        panic!("{place}: {kept:?}");
                    };
                    assert_eq!((ttl_ms, of), (30_000, grant_index), "{place}");
                }
            }
        }
    }
    let too_many = Request::LeaseKeepAlive(vec![LeaseRef::id(good); 20_000]);
    let error = client
        .call(too_many, Consistency::Linearizable)
        .await
        .unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    client.put("after", "1", None).await.unwrap();
}

/// The bad input of grants, puts and revocations: a typed result each, and nothing happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_that_cannot_be_are_refused_with_their_reason() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let grant = |ttl_ms: i64| {
        let request = LeaseGrantRequest {
            ttl_ms,
            ..LeaseGrantRequest::default()
        };
        client.call(Request::LeaseGrant(request), Consistency::Linearizable)
    };
    for (ttl_ms, expected) in [
        (0, ErrorKind::InvalidArgument),
        (-1, ErrorKind::InvalidArgument),
        (
            i64::MAX,
            ErrorKind::TtlOutOfRange {
                ttl_max_ms: 9_000_000_000_000,
            },
        ),
    ] {
        let error = judged(async || grant(ttl_ms).await).await.unwrap_err();
        assert_eq!((error.kind, error.outcome), (expected, Outcome::NotApplied));
    }
    let lease = client.lease();
    let short = lease.grant(Duration::from_millis(1), None).await.unwrap();
    assert_eq!((short.ttl_ms, short.requested_ttl_ms), (500, 1), "clamped");

    let named = LeaseGrantOptions::new()
        .with_name("server1Lease")
        .with_id(77);
    lease.grant(KEPT_FOR, Some(named)).await.unwrap();
    for taken in [
        LeaseGrantOptions::new().with_name("server1Lease"),
        LeaseGrantOptions::new().with_id(77),
    ] {
        let error = lease.grant(KEPT_FOR, Some(taken)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::LeaseExists);
    }
    for options in [
        PutOptions::new().with_lease(78),
        PutOptions::new().with_lease_name("nobody"),
    ] {
        let error = client.put("k", "v", Some(options)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::LeaseNotFound);
    }
    assert!(client.get("k", None).await.unwrap().kv().is_none());
    let named = PutOptions::new().with_lease_name("server1Lease");
    client.put("k", "v", Some(named)).await.unwrap();
    assert_eq!(client.get("k", None).await.unwrap().kv().unwrap().lease, 77);
    assert_eq!(lease.revoke(77).await.unwrap().deleted, 1);
    let error = lease.revoke(77).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
    let error = lease.time_to_live(77, None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
}

/// What gives every lease all its time anew, as of now: the terms, and how often a leader did it.
fn fresh_starts(cluster: &Cluster) -> (Vec<f64>, f64) {
    let term = |node: &Node| node.metric("leasehold_raft_term ");
    let lapses = |node: &Node| -> f64 {
        let of = |reason| format!("leasehold_lease_lapses_total{{reason=\"{reason}\"}} ");
        let reasons = ["stood_still", "clock_went_back", "no_quorum"];
        reasons.map(|reason| node.metric(&of(reason))).iter().sum()
    };
    let nodes = cluster.nodes.iter();
    (nodes.clone().map(term).collect(), nodes.map(lapses).sum())
}

/// What the leader says of the renewals of a lease, and what one more is answered with.
async fn renewals_of(client: &Client, id: i64) -> (Option<u64>, bool, bool) {
    let info = client.lease().time_to_live(id, None).await.unwrap();
    let request = Request::LeaseKeepAlive(vec![LeaseRef::id(id)]);
    let response = client.call(request, Consistency::Linearizable).await;
    let ResponseBody::LeaseKeepAlive(kept) = response.unwrap().body else {
        panic!("not a renewal");
    };
    match kept[..] {
        [LeaseKept::Renewed { is_extended, .. }] => (info.renewals, info.is_extended, is_extended),
        _ => panic!("{kept:?}"),
    }
}

/// T1, T15: who keeps a lease learns how often it was renewed, and that a change of leader gave it time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_are_counted_and_what_a_change_of_leader_gave_is_told_once() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let lease = client.lease();
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "a leader that stays, once");
        cluster.wait_for_lease();
        let before = fresh_starts(&cluster);
        let id = lease.grant(2 * PATIENCE, None).await.unwrap().id;
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(renewals_of(&client, id).await);
        }
        if fresh_starts(&cluster) != before {
            continue;
        }
        let plain = |count| (Some(count), false, false);
        assert_eq!(seen, [plain(0), plain(1), plain(2)]);
        hand_over(&client).await;
        cluster.wait_for_lease();
        let moved = fresh_starts(&cluster);
        let told = [
            renewals_of(&client, id).await,
            renewals_of(&client, id).await,
        ];
        if fresh_starts(&cluster) == moved {
            assert_eq!(told, [(Some(0), true, true), plain(1)]);
            return;
        }
    }
}

/// S4, X5, X6, X11, X16.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_listed_looked_up_and_changed() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let lease = client.lease();
    // Nobody keeps them, and the last of them is asked for at the end.
    let ttl = 3 * PATIENCE;
    let mut ids = Vec::new();
    for number in 0..5 {
        let options = LeaseGrantOptions::new()
            .with_owner(if number % 2 == 0 { "even" } else { "odd" })
            .with_name(format!("lease-{number}"));
        ids.push(lease.grant(ttl, Some(options)).await.unwrap().id);
    }
    let all = lease.leases(None).await.unwrap();
    assert_eq!(all.iter().map(|info| info.id).collect::<Vec<_>>(), ids);
    assert!(
        all.iter()
            .all(|info| info.remaining_ms.is_some() && info.granted_at_ms > 0)
    );
    let odd = LeaseListOptions::new().with_owner("odd");
    assert_eq!(lease.leases(Some(odd)).await.unwrap().len(), 2);
    let named = LeaseListOptions::new().with_name_prefix("lease-3");
    assert_eq!(lease.leases(Some(named)).await.unwrap()[0].id, ids[3]);

    let shorter = Duration::from_secs(20);
    let started = Instant::now();
    loop {
        let before = fresh_starts(&cluster);
        let began = Instant::now();
        let id = lease.grant(KEPT_FOR, None).await.unwrap().id;
        assert_eq!(lease.update_ttl(id, shorter).await.unwrap(), shorter);
        let info = lease.time_to_live(id, None).await.unwrap();
        let took = began.elapsed();
        assert_eq!(info.granted_ttl_ms, 20_000);
        assert_eq!(lease.keep_alive_once(id).await.unwrap(), shorter);
        // If it was given all its time anew, that is the shorter time.
        if took < KEPT_FOR - shorter && fresh_starts(&cluster) == before {
            assert!(info.remaining_ms.unwrap() > 20_000, "nothing is taken back");
            break;
        }
        assert!(started.elapsed() < PATIENCE, "no change in peace: {took:?}");
    }

    // A follower answers what it knows itself, if that is asked for, and nothing else. It may be
    // behind, and whoever leads may change: then another one is asked, or the same again.
    let options = cluster.options().with_retry(RetryPolicy::never());
    let single = cluster.client_with(options).await;
    let old = Request::LeaseTimeToLive {
        id: ids[1],
        keys: true,
    };
    let answered = async {
        loop {
            let leader = cluster.wait_for_lease();
            let follower = cluster.nodes[(leader + 1) % 3].client.to_string();
            let known = single.call_at(&follower, old.clone(), Consistency::Serializable);
            let known = known.await;
            let refused = single.call_at(&follower, old.clone(), Consistency::Linearizable);
            let refused = refused.await;
            let is_refused = refused
                .as_ref()
                .is_err_and(|error| matches!(error.kind, ErrorKind::NotLeader { .. }));
            if let Ok(known) = &known
                && let ResponseBody::LeaseTimeToLive(info) = &known.body
                && info.remaining_ms.is_none()
                && is_refused
            {
                return info.name.clone();
            }
            eprintln!("not what a follower says: {known:?}, then {refused:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let name = tokio::time::timeout(PATIENCE, answered).await;
    assert_eq!(name.expect("a follower that knows the lease"), "lease-1");
}

/// X15: who holds a lease learns that it is over, and why, before anybody else can have its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_says_why_its_lease_is_lost_and_says_it_last() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    // Long enough that a renewal gets through in time and is told of the end.
    let ttl = Duration::from_secs(15);
    let mut keeper = keep(&client, "k", ttl).await;
    client.lease().revoke(keeper.lease()).await.unwrap();
    let last = async {
        let mut last = None;
        while let Some(event) = keeper.event().await {
            last = Some(event);
        }
        last
    };
    let last = tokio::time::timeout(PATIENCE, last).await.expect("it ends");
    let revoked = KeepAliveEvent::Lost {
        cause: LostCause::Revoked,
    };
    assert_eq!(last, Some(revoked));
    assert!(!keeper.is_alive());

    let keeper = keep(&client, "k", ttl).await;
    for node in &mut cluster.nodes {
        node.kill();
    }
    let cause = tokio::time::timeout(PATIENCE, keeper.lost()).await;
    assert_eq!(cause.expect("it is lost"), LostCause::Unreachable);
    assert_eq!(keeper.remaining(), Duration::ZERO);
}

/// T14: a keeper that was given an id alone keeps the lease that it found, and no later one of that id.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_a_keeper_of_an_id_does_not_renew_the_next_lease_of_that_id() {
    let cluster = Cluster::start(3);
    let (client, other) = (cluster.client().await, cluster.client().await);
    let id = 4711;
    let with_id = || Some(LeaseGrantOptions::new().with_id(id));
    client.lease().grant(KEPT_FOR, with_id()).await.unwrap();
    let keeper = client.lease().keep_alive(id).await.unwrap();
    assert_ne!(keeper.lease(), LeaseRef::id(id), "it names the grant");
    // The next owner of the id, to whom the keeper means nothing.
    other.lease().revoke(keeper.lease()).await.unwrap();
    let next = other.lease().grant(KEPT_FOR, with_id()).await.unwrap();
    other
        .put("k", "v", Some(PutOptions::new().with_lease(next.lease())))
        .await
        .unwrap();
    let cause = tokio::time::timeout(PATIENCE, keeper.lost()).await;
    let cause = cause.expect("a renewal that finds another lease under its id");
    let over = [LostCause::Revoked, LostCause::NotFound];
    assert!(over.contains(&cause), "{cause:?}");
    // What the keeper does last touches nothing of it either.
    let _ = keeper.revoke().await;
    let found = other.lease().time_to_live(id, None).await.unwrap();
    assert_eq!(found.grant_index, next.lease().grant_index);
    assert!(other.get("k", None).await.unwrap().kv().is_some());
}

/// X8: everything about leases is found again after a restart of all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x8_leases_outlive_a_restart_of_every_node() {
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let named = LeaseGrantOptions::new().with_name("n").with_owner("o");
    let granted = client.lease().grant(KEPT_FOR, Some(named)).await.unwrap();
    let on_it = PutOptions::new().with_lease(granted.id);
    client.put("k", "v", Some(on_it)).await.unwrap();
    put_on_a_short_lease(&client, &["short"]).await;
    for node in &mut cluster.nodes {
        node.kill();
    }
    cluster.start_and_settle();
    let client = cluster.client().await;
    let options = TimeToLiveOptions::new().with_keys();
    let info = client
        .lease()
        .time_to_live(granted.id, Some(options))
        .await
        .unwrap();
    assert_eq!((&*info.name, &*info.owner), ("n", "o"));
    assert_eq!(info.keys, ["k"]);
    until_gone(&client, "short").await;
    let all = Request::Range(leasehold::api::RangeRequest {
        range: KeyRange::Prefix,
        ..leasehold::api::RangeRequest::default()
    });
    let left = client.call(all, Consistency::Linearizable).await.unwrap();
    let ResponseBody::Range(left) = left.body else {
        panic!("not a range");
    };
    assert_eq!(left.count, 1);
}

#[test]
fn the_command_line_grants_renews_shows_and_revokes() {
    let cluster = Cluster::start(1);
    let run = |arguments: &[&str]| cluster.cli(&[&["--exactly-once"][..], arguments].concat());
    let (code, out, err) = run(&["lease", "grant", "60", "--name", "n1", "--owner", "me"]);
    assert_eq!(code, 0, "{err}");
    let id = out.split(' ').nth(1).unwrap().to_owned();
    assert_eq!(out, format!("lease {id} granted with TTL(60s) name(n1)\n"));
    assert_eq!(run(&["put", "k", "v", "--lease", &id]).0, 0);
    let (_, out, _) = run(&["lease", "timetolive", &id, "--keys"]);
    assert!(out.contains("attached keys([k])"), "{out}");
    let (_, out, _) = run(&["lease", "keep-alive", &id, "--once"]);
    assert_eq!(out, format!("lease {id} keepalived with TTL(60s)\n"));
    let (_, out, _) = run(&["lease", "list", "-o", "table"]);
    assert!(out.contains("| n1") && out.contains("| me"), "{out}");
    let (_, out, _) = run(&["lease", "update-ttl", &id, "30s"]);
    assert_eq!(out, format!("lease {id} has TTL(30s)\n"));
    let (_, out, _) = run(&["lease", "revoke", &id]);
    assert_eq!(out, format!("lease {id} revoked\n"));
    assert_eq!(run(&["get", "k"]).0, 5);
    for gone in [["lease", "timetolive", &id], ["lease", "revoke", &id]] {
        assert_eq!(cluster.refused(&gone).0, 5, "{gone:?}");
    }
    assert_eq!(run(&["lease", "keep-alive", &id]).0, 6, "it was revoked");
    let (code, _, err) = run(&["lease", "grant", "0"]);
    assert_eq!(code, 1, "{err}");
}

/// T14: a name that passes to another lease takes nothing along that was meant for the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t14_a_lease_is_kept_and_ended_by_its_name_and_the_next_of_that_name_is_not() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let leases = client.lease();
    let grant = async || {
        let options = LeaseGrantOptions::new().with_name("server1Lease");
        leases.grant(KEPT_FOR, Some(options)).await.unwrap().lease()
    };
    let error = leases.named("server1Lease").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
    let first = grant().await;
    assert_eq!(leases.named("server1Lease").await.unwrap(), first);
    let mut keeper = leases.keep_alive("server1Lease").await.unwrap();
    assert_eq!(keeper.lease(), first);
    let info = leases.time_to_live("server1Lease", None).await.unwrap();
    assert_eq!(info.grant_index, first.grant_index);

    leases.revoke("server1Lease").await.unwrap();
    let second = grant().await;
    assert_ne!(second, first);
    let lost = async {
        loop {
            if let Some(KeepAliveEvent::Lost { cause }) = keeper.event().await {
                return cause;
            }
        }
    };
    let lost = tokio::time::timeout(PATIENCE, lost).await;
    lost.expect("a keeper that hears that its lease is gone");
    let error = leases.revoke(first).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
    let info = leases.time_to_live("server1Lease", None).await.unwrap();
    assert_eq!(
        (info.grant_index, info.renewals),
        (second.grant_index, Some(0))
    );

    // The same from a shell, at any node.
    let (code, out, err) = cluster.cli(&["lease", "keep-alive", "server1Lease", "--once"]);
    let id = format!("{:016x}", second.id);
    assert_eq!(
        (code, out),
        (0, format!("lease {id} keepalived with TTL(30s)\n")),
        "{err}"
    );
    assert_eq!(
        cluster.cli(&["put", "k", "v", "--lease", "server1Lease"]).0,
        0
    );
    let (_, out, _) = cluster.cli(&["lease", "timetolive", "server1Lease", "--keys"]);
    assert!(
        out.contains(&id) && out.contains("attached keys([k])"),
        "{out}"
    );
    let (code, out, err) = cluster.cli(&["lease", "update-ttl", "server1Lease", "40s"]);
    assert!(code == 0 && out.contains("40s"), "{out}{err}");
    let mut txn = leasehold_command()
        .args(cluster.flags())
        .arg("txn")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = b"lease(\"k\") = \"server1Lease\"\n\nget k\n\n\n";
    txn.stdin.take().unwrap().write_all(said).unwrap();
    let out = txn.wait_with_output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert!(out.starts_with("SUCCESS"), "{out}");
    let mut watch = leasehold_command()
        .args(cluster.flags())
        .args(["lease", "watch", "server1Lease"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(watch.stdout.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    assert!(first.contains(&id), "{first}");
    leases.revoke("server1Lease").await.unwrap();
    let rest: Vec<String> = told.map(Result::unwrap).collect();
    assert!(
        rest.iter().any(|line| line.contains("revoked")),
        "{first} {rest:?}"
    );
    assert!(watch.wait().unwrap().success());
    // A name that reads as an id.
    let (code, _, err) = cluster.cli(&["lease", "grant", "60", "--name", "db"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = cluster.refused(&["lease", "revoke", "db"]);
    assert!(code == 2 && err.contains("name:db"), "{code}: {err}");
    let (code, _, err) = cluster.cli(&["lease", "revoke", "name:db"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = cluster.refused(&["lease", "revoke", "name:db"]);
    assert!(
        code == 5 && err.contains("no lease has the name"),
        "{code}: {err}"
    );
}

/// What a watcher tells next that is not about the time of a lease: a machine that stands still has all of them
/// extended.
async fn told(watcher: &mut LeaseWatcher) -> LeaseEvent {
    let next = async {
        loop {
            match watcher.next().await.expect("there is more to tell") {
                Ok(LeaseEvent::Extended(_) | LeaseEvent::Renewed(_)) => {}
                Ok(event) => return event,
                Err(error) => assert!(
                    error.is_retryable() || error.kind == ErrorKind::DeadlineExceeded,
                    "{error}"
                ),
            }
        }
    };
    let next = tokio::time::timeout(PATIENCE, next).await;
    next.expect("an event")
}

/// A watcher tells of grants, changes and ends, and why; one that goes on from what another knew misses no end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_of_leases_tells_what_begins_and_ends_and_why() {
    let cluster = Cluster::start(3);
    let client = cluster.client().await;
    let leases = client.lease();
    let grant = async |name: &str, ttl| {
        let options = LeaseGrantOptions::new().with_name(name);
        leases.grant(ttl, Some(options)).await.unwrap().lease()
    };
    let options = || {
        LeaseWatchOptions::new()
            .with_interval(Duration::from_millis(20))
            .with_name_prefix("job/")
    };
    let first = grant("job/1", KEPT_FOR).await;
    grant("other", KEPT_FOR).await;
    let mut watcher = leases.watch_all(Some(options()));
    let LeaseEvent::Present(info) = told(&mut watcher).await else {
        panic!("it was there before");
    };
    assert_eq!(
        (&*info.name, info.grant_index),
        ("job/1", first.grant_index)
    );
    let second = grant("job/2", KEPT_FOR).await;
    let LeaseEvent::Granted(info) = told(&mut watcher).await else {
        panic!("it was not there before");
    };
    assert_eq!(info.name, "job/2");
    leases.update_ttl(second, 2 * KEPT_FOR).await.unwrap();
    let LeaseEvent::TtlChanged(info) = told(&mut watcher).await else {
        panic!("it has another TTL");
    };
    assert_eq!(info.granted_ttl_ms, 60_000);
    leases.revoke(first).await.unwrap();
    let ended = |lease, name: &str, cause| LeaseEvent::Ended {
        lease,
        name: name.to_owned(),
        cause,
    };
    let revoked = ended(first, "job/1", LeaseEndCause::Revoked);
    assert_eq!(told(&mut watcher).await, revoked);

    // The next of that name is another lease, and it is not renewed: it expires.
    let third = loop {
        let lease = grant("job/1", Duration::from_secs(3)).await;
        tokio::select! {
            event = told(&mut watcher) => match event {
                LeaseEvent::Granted(info) => break LeaseRef {
                    id: info.id,
                    grant_index: info.grant_index,
                },
                other => panic!("{other:?} is no grant"),
            },
            // It began and ended between two looks of a machine that is busy elsewhere.
            () = until_ended(&client, lease) => {}
        }
    };
    assert_ne!(third, first);
    let expired = ended(third, "job/1", LeaseEndCause::Expired);
    assert_eq!(told(&mut watcher).await, expired);
    let mut known: Vec<LeaseRef> = watcher.known().collect();
    assert_eq!(known, [second]);
    drop(watcher);

    // Another watcher goes on from what is known of before.
    known.extend([first, third]);
    leases.revoke(second).await.unwrap();
    let mut watcher = leases.watch_all(Some(options().with_known(known)));
    let mut causes = Vec::new();
    for _ in 0..3 {
        match told(&mut watcher).await {
            LeaseEvent::Ended { lease, cause, .. } => causes.push((lease, cause)),
            other => panic!("{other:?} is no end"),
        }
    }
    causes.sort_by_key(|(lease, _)| lease.grant_index);
    let expected = [
        (first, LeaseEndCause::Revoked),
        (second, LeaseEndCause::Revoked),
        (third, LeaseEndCause::Expired),
    ];
    assert_eq!(causes, expected);
    assert_eq!(watcher.known().count(), 0);
}

/// Waits until a lease is not there.
async fn until_ended(client: &Client, lease: LeaseRef) {
    let gone = async {
        while client.lease().time_to_live(lease, None).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(PATIENCE, gone).await;
    gone.expect("a lease that ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_of_one_lease_ends_with_it() {
    let cluster = Cluster::start(1);
    let client = cluster.client().await;
    let leases = client.lease();
    let options = LeaseWatchOptions::new()
        .with_interval(Duration::from_millis(20))
        .with_renewals();
    let named = LeaseGrantOptions::new().with_name("job");
    let lease = leases.grant(KEPT_FOR, Some(named)).await.unwrap().lease();
    let mut watcher = leases.watch("job", Some(options.clone())).await.unwrap();
    let first = watcher.next().await;
    assert!(
        matches!(first, Some(Ok(LeaseEvent::Present(_)))),
        "{first:?}"
    );
    leases.keep_alive_once(lease).await.unwrap();
    let renewed = async {
        loop {
            match watcher.next().await {
                Some(Ok(LeaseEvent::Renewed(info))) => return info.renewals,
                // By a leader that stood still, which counts from there.
                Some(Ok(LeaseEvent::Extended(_))) => {
                    leases.keep_alive_once(lease).await.unwrap();
                }
                _ => {}
            }
        }
    };
    let renewed = tokio::time::timeout(PATIENCE, renewed).await;
    assert_eq!(renewed.expect("a renewal that is told"), Some(1));
    leases.revoke(lease).await.unwrap();
    let ended = LeaseEvent::Ended {
        lease,
        name: "job".to_owned(),
        cause: LeaseEndCause::Revoked,
    };
    assert_eq!(told(&mut watcher).await, ended);
    assert!(watcher.next().await.is_none());
    // Of the grant it is known that it was; of the name, nothing.
    let mut late = leases.watch(lease, Some(options)).await.unwrap();
    let LeaseEvent::Ended { cause, .. } = told(&mut late).await else {
        panic!("it has ended");
    };
    assert_eq!(cause, LeaseEndCause::Revoked);
    let error = leases.watch("job", None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::LeaseNotFound);
    let (code, _, err) = cluster.refused(&["lease", "watch", "job"]);
    assert!(code == 5 && err.contains("job"), "{code}: {err}");
    let (id, out) = eventually("a command that begins before the lease ends", || {
        let (_, out, _) = cluster.cli(&["lease", "grant", "1"]);
        let id = out.split(' ').nth(1).unwrap().to_owned();
        let (code, out, err) = cluster.cli(&["lease", "watch", &id, "--interval", "50ms"]);
        assert!(code == 0 || code == 5, "{code}: {err}");
        (code == 0).then_some((id, out))
    });
    let last = format!("lease {id} ended: it was not renewed in time");
    assert_eq!(out.lines().last(), Some(&*last), "{out}");
}
