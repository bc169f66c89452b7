//! Leaders are killed, one every five seconds, and leases that are kept outlive all of it: none is
//! lost, none ends early.
//!
//! A short storm by default; a real one by environment:
//!
//! ```text
//! LEASE_STORM_SECONDS=600 LEASE_STORM_LEASES=10000 \
//!     cargo test --release --test cluster lease_storm -- --nocapture
//! ```
//!
//! The checker goes by what holders may rely on: whenever a holder may count on its lease, by its own
//! clock, the key of that lease is there. The keys are read first and the clocks after that, so who is
//! sure then was sure when the keys were read; and what is missing from the read of any moment in the
//! storm is an early end, whatever comes back later.

use std::collections::BTreeSet;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use leasehold::client::{Client, GetOptions, KeepAliveEvent, LeaseKeeper};
use tokio::task::JoinSet;

use crate::harness::{Cluster, setting};

/// Between the deaths of two leaders.
const PERIOD: Duration = Duration::from_secs(5);
/// Far beyond a restart and an election on a machine that is busy with something else, and shorter than
/// any storm, so that it is the renewals that keep leases alive.
const TTL: Duration = Duration::from_secs(30);
/// Grants under way at a time.
const GRANTS: usize = 64;
/// Between two looks of the checker.
const LOOK: Duration = Duration::from_millis(250);

/// What the checker counted.
#[derive(Debug, Default)]
struct Tally {
    kills: u64,
    /// By how much the latest of them came later than it was due.
    latest: Duration,
    looks: u64,
    /// Leases that a holder counted on while it was looked.
    checked: u64,
    /// Keys that were not there although their holder counted on its lease.
    early: u64,
    renewed: u64,
    retried: u64,
    at_risk: u64,
    lost: Vec<String>,
}

fn key(number: usize) -> String {
    format!("storm/{number:06}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_dying_leaders_loses_no_lease_that_is_kept_and_ends_none_early() {
    let length = Duration::from_secs(setting("LEASE_STORM_SECONDS", 35));
    let leases = usize::try_from(setting("LEASE_STORM_LEASES", 200)).unwrap();
    let mut cluster = Cluster::start(3);
    let client = cluster.client().await;
    let mut keepers = grant(&client, leases).await;
    let mut tally = Tally::default();
    let began = Instant::now();
    let mut kill_at = began + PERIOD;
    while began.elapsed() < length {
        tokio::time::sleep(LOOK).await;
        look(&client, &mut keepers, &mut tally).await;
        if Instant::now() < kill_at {
            continue;
        }
        // While nobody leads there is nobody to kill: the next one dies as soon as there is one.
        let Some(leader) = cluster.leader() else {
            continue;
        };
        tally.latest = tally.latest.max(kill_at.elapsed());
        kill_at += PERIOD;
        cluster.nodes[leader].kill();
        cluster.nodes[leader].start();
        tally.kills += 1;
        let lived = keepers.iter().filter(|keeper| keeper.is_alive()).count();
        eprintln!(
            "{:>4}s kill {}: {lived} of {leases} leases counted on, {} early, {} lost",
            began.elapsed().as_secs(),
            tally.kills,
            tally.early,
            tally.lost.len()
        );
    }
    cluster.wait_for_lease();
    look(&client, &mut keepers, &mut tally).await;
    eprintln!("{tally:?}");
    assert_eq!(tally.early, 0, "a lease ended that its holder counted on");
    assert_eq!(tally.lost, [""; 0], "a lease was lost that was kept");
    assert!(tally.kills > 0 && tally.checked > 0, "nothing was shown");
    let least = leases as u64 * length.as_secs() / TTL.as_secs();
    assert!(tally.renewed >= least, "{} renewals", tally.renewed);
}

async fn grant(client: &Client, leases: usize) -> Vec<LeaseKeeper> {
    let mut keepers: Vec<Option<LeaseKeeper>> = Vec::new();
    keepers.resize_with(leases, || None);
    let mut grants = JoinSet::new();
    let mut take = |granted: Result<(usize, LeaseKeeper), _>| {
        let (number, keeper): (usize, LeaseKeeper) = granted.expect("a grant does not panic");
        keepers[number] = Some(keeper);
    };
    for number in 0..leases {
        while grants.len() >= GRANTS {
            take(grants.join_next().await.unwrap());
        }
        let client = client.clone();
        grants.spawn(async move {
            let kept = client.put_with_new_lease(key(number), "v", TTL, None).await;
            (number, kept.unwrap().1)
        });
    }
    while let Some(granted) = grants.join_next().await {
        take(granted);
    }
    keepers.into_iter().flatten().collect()
}

/// Looks at all keys, and then at who counts on them; and hears what the keepers have to tell.
async fn look(client: &Client, keepers: &mut [LeaseKeeper], tally: &mut Tally) {
    let options = GetOptions::new().with_prefix().with_keys_only();
    // While nobody leads there is nothing to be seen.
    if let Ok(found) = client.get("storm/", Some(options)).await {
        assert!(!found.more, "all keys fit one answer");
        let found: BTreeSet<_> = found.kvs.into_iter().map(|kv| kv.key).collect();
        tally.looks += 1;
        for (number, keeper) in keepers.iter().enumerate() {
            if !keeper.is_alive() {
                continue;
            }
            tally.checked += 1;
            if !found.contains(key(number).as_bytes()) {
                tally.early += 1;
                eprintln!("{} is gone, and its lease is counted on", key(number));
            }
        }
    }
    for (number, keeper) in keepers.iter_mut().enumerate() {
        // What is there already, and no more.
        while let Some(Some(event)) = by_now(keeper.event()) {
            match event {
                KeepAliveEvent::Renewed { .. } => tally.renewed += 1,
                KeepAliveEvent::Retrying { .. } => tally.retried += 1,
                KeepAliveEvent::AtRisk { .. } => tally.at_risk += 1,
                KeepAliveEvent::Lost { cause } => {
                    tally.lost.push(format!("{}: {cause}", key(number)));
                }
                _ => {}
            }
        }
    }
}

/// What a future has come to by now, if it has. A timer for each of ten thousand would take longer than
/// a leader has to live.
pub(crate) fn by_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let future = pin!(tokio::task::unconstrained(future));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}
