//! A real Prometheus on a real cluster under load: dashboards have data, nothing fires while all is
//! well, and alerts fire when what they are for is done to the cluster.
//!
//! All spans of time are divided by [`FACTOR`]: a scrape every quarter of a second instead of every 15,
//! windows of five seconds instead of five minutes, and the time for which a condition must hold. What
//! is measured is not divided: a lease is as long as ever, and a threshold as high. Nothing here is
//! judged by how long it takes; what never comes fails after a minute.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use leasehold::api::Consistency;
use leasehold::client::{Client, GetOptions, PutOptions, WatchOptions};
use tokio::task::JoinSet;

use crate::harness::{Cluster, PATIENCE, copy_folder, eventually, forge_entry};
use crate::monitoring::beside::{a_node_that_is_full, ends_that_are_late};
use crate::monitoring::dashboards::{Panel, filled_in, panels};
use crate::monitoring::machines::{clocks_that_lie, slow_wires_and_a_slow_disk};
use crate::monitoring::metrics::Catalog;
use crate::monitoring::prometheus::{Prometheus, is_installed, promtool};
use crate::monitoring::rules::{deploy, for_shortened, read, shortened, spans};

/// By so much every span of time of the rules is shorter here.
const FACTOR: u32 = 60;
/// And by so much more what has to hold for a while, where nothing else may fire by it.
const HURRY: u32 = 5;
/// The longest `for` of a rule, shortened, and a window before it: when all that would fire does.
const SETTLED: Duration = Duration::from_secs(20);

/// How long a machine has to show a moment in which nothing fires.
const MACHINES_TIME: Duration = Duration::from_secs(60);
/// What fires on a machine that takes long, though nothing is wrong with the cluster.
const OF_THE_MACHINE: [&str; 10] = [
    "LeaseholdApplyBehind",
    "LeaseholdDiskStalled",
    "LeaseholdFsyncSlow",
    "LeaseholdHighLeaderChanges",
    "LeaseholdLeaderLeaseFlapping",
    "LeaseholdLeaseExpiryLate",
    "LeaseholdLeaseMarginLow",
    "LeaseholdLeaseReadFallbackHigh",
    "LeaseholdPeerRttHigh",
    "LeaseholdRequestSlow",
];
/// So long a pause, or a sync of a disk, is slow: some of what the rules ask for is a quarter of it.
const SLOW: Duration = Duration::from_millis(200);

/// Looks at how long the machine takes for next to nothing.
struct Pace {
    is_over: Arc<AtomicBool>,
    slow_at: Arc<Mutex<Option<Instant>>>,
    thread: Option<JoinHandle<()>>,
}

impl Pace {
    fn watch(folder: &Path) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        let slow_at = Arc::<Mutex<Option<Instant>>>::default();
        let (told, noted) = (is_over.clone(), slow_at.clone());
        let mut file = fs::File::create(folder.join("pace")).unwrap();
        let thread = std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                file.write_all(b"a word").unwrap();
                file.sync_data().unwrap();
                if began.elapsed() > SLOW {
                    *noted.lock().unwrap() = Some(Instant::now());
                }
            }
        });
        Self {
            is_over,
            slow_at,
            thread: Some(thread),
        }
    }

    /// Whether it was slow within what the rules look back.
    fn was_slow(&self) -> bool {
        let slow_at = *self.slow_at.lock().unwrap();
        slow_at.is_some_and(|at| at.elapsed() < SETTLED)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Four scrapes and more, as Grafana would choose.
const WINDOW: &str = "2s";

/// Panels that have nothing to show while all is well. Each is looked at later, when it must have.
const LATER: [&str; 4] = [FAILURES, CLOCK_DRIFT, ELECTIONS, SLOW_REQUESTS];
const FAILURES: &str = "Failures";
/// Needs a connection of forty seconds.
const CLOCK_DRIFT: &str = "Clock drift";
const ELECTIONS: &str = "Elections";
const SLOW_REQUESTS: &str = "Slow requests";

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
    for node in &cluster.nodes {
        let dir = cluster.folder.path().join(format!("{}-backups", node.name));
        let mut text = fs::read_to_string(&node.config).unwrap();
        text += &format!("[backup]\nschedule = \"1m\"\ndir = \"{}\"\n", dir.display());
        fs::write(&node.config, text).unwrap();
    }
    cluster.start_and_settle();
    let load = Load::start(&cluster).await;
    let prometheus = watch_over(&cluster);
    let started = Instant::now();

    healthy(&cluster, &prometheus, started);
    // Clusters beside this one, where other things are done meanwhile.
    let beside = Beside(vec![
        std::thread::spawn(|| alone(ends_that_are_late)),
        std::thread::spawn(|| alone(a_node_that_is_full)),
        std::thread::spawn(|| alone(slow_wires_and_a_slow_disk)),
        std::thread::spawn(|| alone(clocks_that_lie)),
    ]);
    let mut stage = Stage::new(&prometheus);
    slow_quorums(&mut cluster, &mut stage, &load).await;
    many_leaders(&mut stage, &load).await;
    let victim = a_state_that_differs(&mut cluster, &mut stage);
    no_majority(&mut cluster, victim, &mut stage, &load).await;
    certificates_that_end(&mut cluster, victim, &mut stage);
    load.stop.store(true, Ordering::Relaxed);
    stage.end();
    drop(beside);
    eprintln!("after {:?} in all", started.elapsed());
}

/// Tests on threads of their own. They are waited for in any case: their clusters end with them.
struct Beside(Vec<JoinHandle<()>>);

impl Drop for Beside {
    fn drop(&mut self) {
        for test in self.0.drain(..) {
            let ended = test.join();
            let is_failing = std::thread::panicking();
            assert!(ended.is_ok() || is_failing, "a test beside has failed");
        }
    }
}

/// Runs a test on a thread that has nothing else.
fn alone<F: Future<Output = ()>>(test: fn() -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(test());
}

/// Starts Prometheus with the files of `deploy/`, shortened, on this cluster.
pub(crate) fn watch_over(cluster: &Cluster) -> Prometheus {
    watch_over_with(cluster, str::to_owned)
}

/// The same for a cluster with which something is wrong all the time: what has to hold for minutes has
/// to hold for a few seconds only, for a scrape that takes too long begins them anew.
pub(crate) fn watch_over_what_is_wrong(cluster: &Cluster) -> Prometheus {
    watch_over_with(cluster, |rules| for_shortened(rules, HURRY))
}

fn watch_over_with(cluster: &Cluster, change: impl FnOnce(&str) -> String) -> Prometheus {
    let folder = cluster.folder.path().join("prometheus");
    fs::create_dir(&folder).unwrap();
    let rules = change(&shortened(&read("prometheus/alerts.yml"), FACTOR));
    fs::write(folder.join("alerts.yml"), rules).unwrap();
    let mut config = shortened(&read("prometheus/prometheus.yml"), FACTOR);
    // As long as there may be: a scrape that took longer would end all that has to hold for a while.
    let interval = spans(&config, "scrape_interval: ").next().unwrap();
    let timeout = spans(&config, "scrape_timeout: ").next().unwrap();
    config = config.replace(
        &format!("scrape_timeout: {timeout}"),
        &format!("scrape_timeout: {interval}"),
    );
    for place in 0..3 {
        let target = format!("- n{}:7481\n", place + 1);
        assert!(config.contains(&target), "{config}");
        let node = cluster.nodes.get(place);
        let node = node.map_or_else(String::new, |node| format!("- {}\n", node.admin));
        config = config.replace(&target, &node);
    }
    Prometheus::start(&folder, &config, Duration::from_secs(300) / FACTOR)
}

/// A client for load while something is wrong: its requests fail soon, and others follow them.
pub(crate) async fn who_gives_up(cluster: &Cluster) -> Client {
    let options = cluster.options().with_timeout(Duration::from_secs(10));
    cluster.client_with(options).await
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
        let client = who_gives_up(cluster).await;
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
        let patient = cluster.client().await;
        let kept = patient.lease().grant(Duration::from_secs(600), None).await;
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

    /// Reads one after the other for so long. What is under way then is dropped: its deadline is later,
    /// for a client whose leader let a deadline pass asks another node next, and it is the leader that
    /// has to find its lease ended.
    async fn sip(&self, length: Duration) {
        let reads = async {
            loop {
                let _ = self.client.get("load/1", None).await;
            }
        };
        let _ = tokio::time::timeout(length, reads).await;
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

pub(crate) async fn repeat(
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
        // What a check says is told once somebody has asked.
        for probe in ["/livez", "/readyz"] {
            eventually("a probe that passes", || {
                (node.admin(probe)?.0 == 200).then_some(())
            });
        }
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
    assert_eq!(missing, [""; 0], "a node does not show these");
    eventually("three targets that answer", || {
        let up = prometheus.query("sum(up)");
        (up.first()?.1 == 3.0).then_some(())
    });
    let is_later = |panel: &Panel| LATER.contains(&panel.title.as_str());
    let (later, now): (Vec<Panel>, Vec<Panel>) = panels().into_iter().partition(is_later);
    let found: BTreeSet<&str> = later.iter().map(|panel| panel.title.as_str()).collect();
    assert_eq!(found, LATER.into(), "a panel of LATER is none any more");
    let shown: usize = now.iter().map(|panel| shows_data(prometheus, panel)).sum();
    eprintln!("{shown} expressions of {} panels have data", now.len());
    std::thread::sleep(SETTLED.saturating_sub(started.elapsed()));
    // A busy machine may be slow for a while, and rightly said to be. That it is shows elsewhere, too.
    let pace = Pace::watch(cluster.folder.path());
    let waiting = Instant::now();
    loop {
        let firing = prometheus.firing();
        if firing.is_empty() {
            eprintln!("nothing fires, after {:?}", started.elapsed());
            break;
        }
        let is_excused = || firing.keys().all(|alert| is_of_the_machine(alert));
        if waiting.elapsed() > MACHINES_TIME && pace.was_slow() && is_excused() {
            eprintln!("this machine is too slow not to be told of: {firing:?}");
            break;
        }
        assert!(
            waiting.elapsed() < PATIENCE,
            "all is well, and yet: {firing:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether an alert, as Prometheus names it with its severity, may be about nothing but a machine whose
/// disk or processors take long.
fn is_of_the_machine(alert: &str) -> bool {
    let name = alert.split(' ').next().unwrap_or_default();
    OF_THE_MACHINE.contains(&name)
}

/// Waits until each expression of a panel, by itself, has data. Returns how many it has.
fn shows_data(prometheus: &Prometheus, panel: &Panel) -> usize {
    for expression in &panel.expressions {
        let filled = filled_in(expression, WINDOW);
        let what = format!("data for {}: {}: {filled}", panel.dashboard, panel.title);
        eventually(&what, || has_data(prometheus, &filled).then_some(()));
    }
    panel.expressions.len()
}

/// Whether there is a number for it just now.
fn has_data(prometheus: &Prometheus, filled: &str) -> bool {
    let mut series = prometheus.query(filled).into_iter();
    series.any(|(_, value)| value.is_finite())
}

/// What has fired so far.
pub(crate) struct Stage<'a> {
    prometheus: &'a Prometheus,
    fired: BTreeMap<String, String>,
    began: Instant,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(prometheus: &'a Prometheus) -> Self {
        Self {
            prometheus,
            fired: BTreeMap::new(),
            began: Instant::now(),
        }
    }

    /// What has fired can be read, and Prometheus had nothing to complain of.
    pub(crate) fn end(self) {
        for (alert, said) in &self.fired {
            eprintln!("{alert}: {said}");
            assert!(
                !said.contains("error") && !said.contains("<no value>"),
                "{said}"
            );
        }
        let complaints = self.prometheus.log();
        assert!(!complaints.contains("level=error"), "{complaints}");
    }

    /// Whether all of these have fired, now or earlier; fails when they do not for too long.
    pub(crate) fn has_fired(&mut self, wanted: &[&str]) -> bool {
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

    pub(crate) fn begin(&mut self, fault: &str) {
        eprintln!("{fault}:");
        self.began = Instant::now();
    }

    /// What was begun takes its time, and is not over.
    pub(crate) fn goes_on(&mut self) {
        self.began = Instant::now();
    }

    /// Waits until these have fired.
    pub(crate) fn must_fire(&mut self, wanted: &[&str]) {
        while !self.has_fired(wanted) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until the panels of this title have data, which they need not have had before.
    fn must_show(&self, title: &str) {
        assert!(LATER.contains(&title), "{title}");
        for panel in panels().iter().filter(|panel| panel.title == title) {
            shows_data(self.prometheus, panel);
        }
    }

    /// Whether the panels of this title have data, which must come for as long as this is asked.
    fn shows(&self, title: &str) -> bool {
        assert!(LATER.contains(&title), "{title}");
        let panels = panels();
        let expressions = panels.iter().filter(|panel| panel.title == title);
        let mut expressions = expressions.flat_map(|panel| &panel.expressions);
        let shown =
            expressions.all(|expression| has_data(self.prometheus, &filled_in(expression, WINDOW)));
        let waited = self.began.elapsed();
        assert!(shown || waited < PATIENCE, "waited {waited:?} for {title}");
        shown
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

/// Both followers stand still for longer than the leader lease lasts, and shorter than the leader
/// waits before it gives up, over and over.
async fn slow_quorums(cluster: &mut Cluster, stage: &mut Stage<'_>, load: &Load) {
    stage.begin("followers stand still, again and again; a client renews what does not exist");
    load.confused.store(true, Ordering::Relaxed);
    let mut slow_shown = false;
    while !stage.has_fired(&[
        "LeaseholdLeaderLeaseFlapping warning",
        "LeaseholdLeaseMarginLow warning",
        "LeaseholdLeaseReadFallbackHigh warning",
        "LeaseholdRenewRejected warning",
        "LeaseholdRequestSlow warning",
    ]) || !slow_shown
    {
        slow_shown |= stage.shows(SLOW_REQUESTS);
        let leader = cluster.wait_for_lease();
        let followers = || (0..3).filter(|number| *number != leader);
        for number in followers() {
            cluster.nodes[number].pause();
        }
        tokio::time::sleep(Duration::from_millis(350)).await;
        load.sip(Duration::from_millis(100)).await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        let go_on = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            for number in followers() {
                cluster.nodes[number].resume();
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
    stage.must_show(ELECTIONS);
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
    let mark = state.with_extension("damaged");
    eventually("a mark for the next start", || mark.exists().then_some(()));
    victim
}

async fn no_majority(cluster: &mut Cluster, victim: usize, stage: &mut Stage<'_>, load: &Load) {
    // While most of them are as old as the test.
    stage.must_show(CLOCK_DRIFT);
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
    // Requests of the load go on, and fail.
    stage.must_show(FAILURES);
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
