//! A real Prometheus on a real cluster under load: dashboards have data, nothing fires while all is
//! well, and alerts fire when what they are for is done to the cluster.
//!
//! All spans of time are divided by [`FACTOR`]: a scrape every quarter of a second instead of every 15,
//! windows of five seconds instead of five minutes, and the time for which a condition must hold. What
//! is measured is not divided: a lease is as long as ever, and a threshold as high. Nothing here is
//! judged by how long it takes; what never comes fails after a minute.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use leasehold::api::Consistency;
use leasehold::client::Client;
use leasehold::client::GetOptions;
use leasehold::client::PutOptions;
use leasehold::client::WatchOptions;
use tokio::task::JoinSet;

use crate::dashboards::filled_in;
use crate::dashboards::panels;
use crate::harness::Cluster;
use crate::harness::Node;
use crate::harness::PATIENCE;
use crate::harness::copy_folder;
use crate::harness::eventually;
use crate::harness::forge_entry;
use crate::metrics::Catalog;
use crate::prometheus::Prometheus;
use crate::prometheus::is_installed;
use crate::prometheus::promtool;
use crate::rules::deploy;
use crate::rules::read;
use crate::rules::shortened;

/// By so much every span of time of the rules is shorter here.
const FACTOR: u32 = 60;
/// The longest `for` of a rule, shortened, and a window before it: when all that would fire does.
const SETTLED: Duration = Duration::from_secs(20);

/// Panels that have nothing to show in this test, and why.
const EMPTY: &[(&str, &str)] = &[
    ("Failures", "nothing fails while all is well"),
    ("Clock drift", "needs a connection of forty seconds"),
];

#[test]
fn rules_do_what_their_tests_say() {
    if !is_installed("rules_do_what_their_tests_say") {
        return;
    }
    let path = |name: &str| deploy(name).to_str().unwrap().to_owned();
    promtool(&["check", "config", &path("prometheus/prometheus.yml")], "");
    promtool(
        &[
            "check",
            "rules",
            "--lint=all",
            "--lint-fatal",
            &path("prometheus/alerts.yml"),
        ],
        "",
    );
    promtool(&["test", "rules", &path("prometheus/tests.yml")], "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboards_have_data_and_alerts_fire_when_they_should() {
    if !is_installed("dashboards_have_data_and_alerts_fire_when_they_should") {
        return;
    }
    let mut cluster = Cluster::prepare(3);
    cluster.check_states_every_second();
    cluster.start_and_settle();
    let load = Load::start(&cluster).await;
    let prometheus = watch_over(&cluster);
    let started = Instant::now();

    healthy(&cluster, &prometheus, started);
    let mut stage = Stage {
        prometheus: &prometheus,
        fired: BTreeMap::new(),
        began: started,
    };
    slow_quorums(&mut cluster, &mut stage, &load).await;
    many_leaders(&mut stage, &load).await;
    let victim = a_state_that_differs(&mut cluster, &mut stage);
    no_majority(&mut cluster, victim, &mut stage, &load).await;
    certificates_that_end(&mut cluster, victim, &mut stage);
    load.stop.store(true, Ordering::Relaxed);

    for (alert, said) in &stage.fired {
        eprintln!("{alert}: {said}");
        assert!(
            !said.contains("error") && !said.contains("<no value>"),
            "{said}"
        );
    }
    eprintln!("after {:?} in all", started.elapsed());
    let complaints = prometheus.log();
    assert!(!complaints.contains("level=error"), "{complaints}");
}

/// Starts Prometheus with the files of `deploy/`, shortened, on this cluster.
fn watch_over(cluster: &Cluster) -> Prometheus {
    let folder = cluster.folder.path().join("prometheus");
    fs::create_dir(&folder).unwrap();
    let rules = shortened(&read("prometheus/alerts.yml"), FACTOR);
    fs::write(folder.join("alerts.yml"), rules).unwrap();
    let mut config = shortened(&read("prometheus/prometheus.yml"), FACTOR);
    for node in &cluster.nodes {
        let target = format!("- {}:7481\n", node.name);
        assert!(config.contains(&target), "{config}");
        config = config.replace(&target, &format!("- {}\n", node.admin));
    }
    Prometheus::start(&folder, &config, Duration::from_secs(300) / FACTOR)
}

/// A little of everything, until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    /// Renews a lease that does not exist, several times a second.
    confused: Arc<AtomicBool>,
    client: Client,
    _tasks: JoinSet<()>,
}

impl Load {
    async fn start(cluster: &Cluster) -> Self {
        let client = cluster.client().await;
        let (stop, confused) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let mut tasks = JoinSet::new();
        // Errors are what some stages are about: nobody minds them here.
        let shared = (client.clone(), stop.clone());
        tasks.spawn(repeat(
            shared.clone(),
            10,
            async |client: &Client, round| {
                let consistency = match round % 4 {
                    0 => Consistency::LinearizableQuorum,
                    1 => Consistency::Serializable,
                    2 => Consistency::MaxStaleness(Duration::from_secs(5)),
                    _ => Consistency::Linearizable,
                };
                for consistency in [consistency, Consistency::Linearizable] {
                    let options = GetOptions::new().with_consistency(consistency);
                    let _ = client.get("load/1", Some(options)).await;
                }
            },
        ));
        tasks.spawn(repeat(
            shared.clone(),
            20,
            async |client: &Client, round| {
                let options = PutOptions::new().with_timeout(Duration::from_secs(1));
                let key = format!("load/{}", round % 100);
                let _ = client.put(key, "x".repeat(100), Some(options)).await;
            },
        ));
        // Nobody keeps it: it ends.
        tasks.spawn(repeat(shared.clone(), 200, async |client: &Client, _| {
            let ttl = Duration::from_millis(500);
            let _ = client.lease().grant(ttl, None).await;
        }));
        let kept = client.lease().grant(Duration::from_secs(600), None).await;
        let kept = kept.unwrap().id;
        let is_confused = confused.clone();
        tasks.spawn(repeat(
            shared.clone(),
            50,
            async move |client: &Client, _| {
                let _ = client.lease().keep_alive_once(kept).await;
                if is_confused.load(Ordering::Relaxed) {
                    let _ = client.lease().keep_alive_once(kept + 1).await;
                }
            },
        ));
        tasks.spawn(repeat(shared.clone(), 10, async |client: &Client, _| {
            let options = WatchOptions::new().with_prefix();
            let Ok(mut watcher) = client.watch("load/", Some(options)).await else {
                return;
            };
            for _ in 0..50 {
                let next = tokio::time::timeout(Duration::from_secs(1), watcher.next()).await;
                if !matches!(next, Ok(Some(Ok(_)))) {
                    return;
                }
            }
        }));
        tasks.spawn(repeat(shared, 1_000, async |client: &Client, _| {
            if let Ok(found) = client.get("load/1", None).await {
                let revision = found.header.revision;
                let _ = client.compact(revision, None).await;
            }
        }));
        Self {
            stop,
            confused,
            client,
            _tasks: tasks,
        }
    }

    /// Many reads and some writes at once; waits for their answers.
    async fn burst(&self) {
        let mut requests = JoinSet::new();
        let patience = Duration::from_secs(1);
        for number in 0..100 {
            let client = self.client.clone();
            requests.spawn(async move {
                if number < 10 {
                    let options = PutOptions::new().with_timeout(patience);
                    let _ = client
                        .put(format!("burst/{number}"), "", Some(options))
                        .await;
                } else {
                    let options = GetOptions::new().with_timeout(patience);
                    let _ = client.get("load/1", Some(options)).await;
                }
            });
        }
        while requests.join_next().await.is_some() {}
    }
}

async fn repeat(
    (client, stop): (Client, Arc<AtomicBool>),
    rest_ms: u64,
    work: impl AsyncFn(&Client, u64) + Send + Sync,
) {
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        work(&client, round).await;
        round += 1;
        tokio::time::sleep(Duration::from_millis(rest_ms)).await;
    }
}

/// All targets answer, every panel has data, every name of the files is in the scrapes, and nothing
/// fires.
fn healthy(cluster: &Cluster, prometheus: &Prometheus, started: Instant) {
    let mut catalog = Catalog::default();
    for node in &cluster.nodes {
        let (_, scrape) = eventually("a scrape", || node.admin("/metrics"));
        promtool(&["check", "metrics"], &scrape);
        catalog.add(&scrape);
    }
    // Peers that the test does not wait for have no drift yet.
    catalog.add("leasehold_clock_drift_ratio{peer=\"n1\"} 0");
    let of_the_code = Catalog::of_the_code();
    let alive: BTreeSet<&str> = catalog.names().collect();
    let missing: Vec<_> = of_the_code
        .names()
        .filter(|name| !alive.contains(name))
        .collect();
    assert!(
        missing
            .iter()
            .all(|name| name.starts_with("leasehold_watch_cancels")),
        "a node does not show {missing:?}"
    );
    eventually("three targets that answer", || {
        let up = prometheus.query("sum(up)");
        (up.first()?.1 == 3.0).then_some(())
    });
    // Four scrapes and more, as Grafana would choose.
    let window = "2s";
    let panels = panels();
    let mut shown = 0;
    for panel in &panels {
        if EMPTY.iter().any(|(title, _)| *title == panel.title) {
            // That it is an expression is checked all the same.
            for expression in &panel.expressions {
                prometheus.query(&filled_in(expression, window));
            }
            continue;
        }
        for expression in &panel.expressions {
            let filled = filled_in(expression, window);
            let what = format!("data for {}: {}: {filled}", panel.dashboard, panel.title);
            eventually(&what, || {
                let series = prometheus.query(&filled);
                series
                    .iter()
                    .any(|(_, value)| value.is_finite())
                    .then_some(())
            });
            shown += 1;
        }
    }
    eprintln!("{shown} expressions of {} panels have data", panels.len());
    std::thread::sleep(SETTLED.saturating_sub(started.elapsed()));
    // A busy machine may be slow for a while, and rightly said to be.
    let waiting = Instant::now();
    loop {
        let firing = prometheus.firing();
        if firing.is_empty() {
            break;
        }
        assert!(
            waiting.elapsed() < PATIENCE,
            "all is well, and yet: {firing:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!(
        "nothing fires while all is well, after {:?}",
        started.elapsed()
    );
}

/// What has fired so far.
struct Stage<'a> {
    prometheus: &'a Prometheus,
    fired: BTreeMap<String, String>,
    began: Instant,
}

impl Stage<'_> {
    /// Whether all of these have fired, now or earlier; fails when they do not for too long.
    fn has_fired(&mut self, wanted: &[&str]) -> bool {
        for (alert, said) in self.prometheus.firing() {
            if !self.fired.contains_key(&alert) {
                eprintln!(
                    "  {alert} fires {:?} after the fault began",
                    self.began.elapsed()
                );
                self.fired.insert(alert, said);
            }
        }
        let missing: Vec<_> = wanted
            .iter()
            .filter(|alert| !self.fired.contains_key(**alert))
            .collect();
        let waited = self.began.elapsed();
        assert!(
            missing.is_empty() || waited < PATIENCE,
            "waited {waited:?} for {missing:?}"
        );
        missing.is_empty()
    }

    fn begin(&mut self, fault: &str) {
        eprintln!("{fault}:");
        self.began = Instant::now();
    }

    /// Waits until these have fired.
    fn must_fire(&mut self, wanted: &[&str]) {
        while !self.has_fired(wanted) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until none of these fires any more.
    fn must_end(&self, alerts: &[&str]) {
        eventually(&format!("the end of {alerts:?}"), || {
            let firing = self.prometheus.firing();
            alerts
                .iter()
                .all(|alert| !firing.contains_key(*alert))
                .then_some(())
        });
    }
}

fn signal(node: &Node, signal: &str) {
    let id = node.process.as_ref().unwrap().id().to_string();
    let sent = Command::new("kill").args([signal, &id]).status().unwrap();
    assert!(sent.success(), "{signal} to {}", node.name);
}

/// Both followers stand still for longer than the leader lease lasts, and shorter than the leader
/// waits before it gives up, over and over.
async fn slow_quorums(cluster: &mut Cluster, stage: &mut Stage<'_>, load: &Load) {
    stage.begin("followers stand still, again and again; a client renews what does not exist");
    load.confused.store(true, Ordering::Relaxed);
    while !stage.has_fired(&[
        "LeaseholdLeaderLeaseFlapping warning",
        "LeaseholdLeaseReadFallbackHigh warning",
        "LeaseholdRenewRejected warning",
        "LeaseholdRequestSlow warning",
    ]) {
        let leader = cluster.wait_for_lease();
        let followers = || (0..3).filter(|number| *number != leader);
        for number in followers() {
            signal(&cluster.nodes[number], "-STOP");
        }
        tokio::time::sleep(Duration::from_millis(600)).await;
        let go_on = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for number in followers() {
                signal(&cluster.nodes[number], "-CONT");
            }
        };
        tokio::join!(load.burst(), go_on);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    load.confused.store(false, Ordering::Relaxed);
}

async fn many_leaders(stage: &mut Stage<'_>, load: &Load) {
    stage.begin("leadership is handed on, again and again");
    while !stage.has_fired(&["LeaseholdHighLeaderChanges warning"]) {
        let _ = load.client.move_leader(None).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
}

/// A follower is stopped, and comes back with a state of some entries ago and an entry on top that
/// nobody else has. Returns which.
fn a_state_that_differs(cluster: &mut Cluster, stage: &mut Stage<'_>) -> usize {
    stage.begin("a member is gone, and comes back with another state");
    let victim = (cluster.wait_for_lease() + 1) % 3;
    let state = cluster.nodes[victim].data_dir.join("state");
    let aside = cluster.folder.path().join("aside");
    assert_eq!(cluster.nodes[victim].stop(), 0);
    copy_folder(&state, &aside);
    cluster.nodes[victim].start();
    cluster.wait_for_lease();
    let applied = "leasehold_raft_applied_index";
    let before = cluster.nodes[victim].metric(applied);
    eventually("entries that the copy has not", || {
        (cluster.nodes[victim].metric(applied) > before + 50.0).then_some(())
    });
    assert_eq!(cluster.nodes[victim].stop(), 0);
    stage.must_fire(&["LeaseholdMembersDown warning"]);
    fs::remove_dir_all(&state).unwrap();
    fs::rename(&aside, &state).unwrap();
    forge_entry(&state, "forged");
    cluster.nodes[victim].start();
    stage.must_fire(&["LeaseholdCorruption critical"]);
    victim
}

async fn no_majority(cluster: &mut Cluster, victim: usize, stage: &mut Stage<'_>, load: &Load) {
    stage.begin("two of three members are killed");
    cluster.nodes[victim].kill();
    cluster.nodes[(victim + 1) % 3].kill();
    while !stage.has_fired(&[
        "LeaseholdInsufficientMembers critical",
        "LeaseholdNoLeader critical",
        "LeaseholdProposalFailures warning",
        "LeaseholdRequestErrors critical",
        "LeaseholdRequestErrors warning",
    ]) {
        load.burst().await;
    }
}

/// One of those who were killed comes back with certificates for three days.
fn certificates_that_end(cluster: &mut Cluster, victim: usize, stage: &mut Stage<'_>) {
    stage.begin("members come back, one with certificates that end soon");
    let name = cluster.nodes[victim].name.clone();
    cluster
        .pki
        .issue("--node", &name, &["--days", "3", "--force"]);
    cluster.nodes[victim].start();
    cluster.nodes[(victim + 1) % 3].start();
    stage.must_fire(&[
        "LeaseholdCertExpiring critical",
        "LeaseholdCertExpiring warning",
    ]);
    stage.must_end(&[
        "LeaseholdMembersDown warning",
        "LeaseholdInsufficientMembers critical",
        "LeaseholdNoLeader critical",
        "LeaseholdCorruption critical",
    ]);
}
