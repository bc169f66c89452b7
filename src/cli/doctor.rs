//! `leasehold doctor`: what is wrong with a cluster, or with this machine, and what to do about it.
//!
//! It asks every endpoint by itself, because a client only ever notices the first one that answers. Each
//! finding is a line; below one that is bad stands what to do. It changes nothing: it reads, and where a
//! folder is named it writes and removes a small file there, to learn how long its disk takes to sync.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::arguments::DoctorArgs;
use super::arguments::Format;
use super::arguments::GlobalArgs;
use super::connection::{Surroundings, Target};
use super::failure::Failure;
use super::pki;
use super::print::Align;
use super::print::table;
use super::remote::options;
use crate::api::Consistency;
use crate::api::Error;
use crate::api::ErrorKind;
use crate::api::LeaderLeaseReport;
use crate::api::StatusResponse;
use crate::client::Client;
use crate::client::GetOptions;
use crate::client::RetryPolicy;
use crate::clock::SystemClock;
use crate::time::Clock;
use crate::time::Instant;
use crate::types::NodeId;
use crate::types::Role;

/// Between the two readings of a node's clocks.
const CLOCK_INTERVAL: Duration = Duration::from_secs(1);
/// Exchanges with each node.
const EXCHANGES: usize = 20;
/// Syncs of the disk.
const SYNCS: usize = 50;
/// What is written before each.
const SYNC_BYTES: usize = 4 << 10;
/// A sync that takes longer than this is felt by every write.
const SYNC_SLOW: Duration = Duration::from_millis(25);
/// What nodes ask the system for.
const UDP_BUFFER_BYTES: u64 = 4 << 20;
/// Files that a node may have open at least.
const FILES_MIN: u64 = 4_096;
/// A certificate that ends sooner deserves a word.
const CERTIFICATE_NEAR: Duration = Duration::from_secs(21 * 86_400);
/// Entries that a follower may be behind without a word.
const LAG_MAX: u64 = 10_000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warn,
    /// It does not work, or will not for long.
    Fail,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    level: Level,
    /// What was looked at.
    check: &'static str,
    /// Where.
    place: String,
    /// What was found.
    found: String,
    /// What to do; empty if nothing.
    advice: String,
}

/// Everything that was found.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        level: Level,
        check: &'static str,
        place: &str,
        found: impl Into<String>,
        advice: &str,
    ) {
        self.0.push(Finding {
            level,
            check,
            place: place.to_owned(),
            found: found.into(),
            advice: advice.to_owned(),
        });
    }

    fn ok(&mut self, check: &'static str, place: &str, found: impl Into<String>) {
        self.add(Level::Ok, check, place, found, "");
    }
}

/// What an endpoint said.
struct Answer {
    cluster_id: u64,
    member_id: NodeId,
    leader_id: Option<NodeId>,
    status: StatusResponse,
}

/// Looks at everything, and prints what was found.
///
/// # Errors
/// Nothing says which cluster; or something was found that does not work.
pub(super) async fn run(
    arguments: &DoctorArgs,
    global: &GlobalArgs,
    surroundings: &Surroundings,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let target = Target::find(global, surroundings)?;
    let mut findings = Findings::default();
    certificates(&target, &mut findings);
    let answers = endpoints(&target, &mut findings).await;
    cluster(&target, &answers, &mut findings).await;
    machine(&mut findings);
    if let Some(folder) = &arguments.data_dir {
        disk(folder, &mut findings);
    }
    print(out, &findings.0, global.output)?;
    let bad = findings.0.iter().filter(|it| it.level == Level::Fail);
    match bad.count() {
        0 => Ok(()),
        bad => Err(Failure::refused(format!(
            "{bad} of {} checks failed",
            findings.0.len()
        ))),
    }
}

fn certificates(target: &Target, findings: &mut Findings) {
    let files = [
        target.cacert.clone(),
        target.cert.clone(),
        target.key.clone(),
    ];
    for report in pki::check(&files, pki::wall_clock()) {
        let place = report.path.display().to_string();
        let near = report
            .expires_in
            .is_some_and(|left| left < CERTIFICATE_NEAR);
        let (level, advice) = match report.is_ok() {
            false => (
                Level::Fail,
                "issue it anew with `leasehold cert issue --force`",
            ),
            true if near => (Level::Warn, "issue a new one before it ends"),
            true => (Level::Ok, ""),
        };
        let text = report.to_string();
        let found = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text);
        findings.add(level, "certificate", &place, found, advice);
    }
}

async fn connect(target: &Target, endpoints: &[String]) -> Result<Client, Error> {
    let options = options(target)
        .with_retry(RetryPolicy::never())
        .with_client_name("leasehold-doctor");
    Client::connect(endpoints.iter().cloned(), Some(options)).await
}

async fn endpoints(target: &Target, findings: &mut Findings) -> BTreeMap<String, Answer> {
    let mut answers = BTreeMap::new();
    for endpoint in &target.endpoints {
        let began = SystemClock.now();
        let client = match connect(target, std::slice::from_ref(endpoint)).await {
            Ok(client) => client,
            Err(error) => {
                findings.add(
                    Level::Fail,
                    "connect",
                    endpoint,
                    error.to_string(),
                    advice_for(&error),
                );
                continue;
            }
        };
        let took = SystemClock.now().at_least_since(began);
        findings.ok(
            "connect",
            endpoint,
            format!("QUIC with mutual TLS, full-sized datagrams both ways, {took:.1?}"),
        );
        if let Some(answer) = ask(&client, endpoint, findings).await {
            answers.insert(endpoint.clone(), answer);
        }
        client.close().await;
    }
    answers
}

/// What to do about a connection that did not come about.
fn advice_for(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::TlsHandshake => {
            "use the client certificate and the authority (client-ca.pem) of this cluster; \
             `leasehold cert check` tells what a file is"
        }
        ErrorKind::ClusterMismatch => {
            "this endpoint belongs to another cluster: correct the address"
        }
        ErrorKind::InvalidArgument => "correct what the sentence names",
        _ => {
            "is the node running, and is its client port open for UDP? A firewall that knows only \
             TCP lets nothing through"
        }
    }
}

async fn ask(client: &Client, endpoint: &str, findings: &mut Findings) -> Option<Answer> {
    let mut took = Vec::new();
    let mut answered = None;
    for _ in 0..EXCHANGES {
        let began = SystemClock.now();
        match client.status(endpoint).await {
            Ok(answer) => answered = Some(answer),
            Err(error) => {
                let advice = "look into the node's log";
                findings.add(Level::Fail, "answers", endpoint, error.to_string(), advice);
                return None;
            }
        }
        took.push(SystemClock.now().at_least_since(began));
    }
    took.sort_unstable();
    let (middle, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    findings.ok(
        "answers",
        endpoint,
        format!("p50 {middle:.1?}, slowest of {EXCHANGES} {slowest:.1?}"),
    );
    let answered = answered?;
    let (header, status) = (answered.header, answered.status);
    let place = format!("{} {endpoint}", status.name);
    for warning in &status.warnings {
        findings.add(Level::Warn, "node", &place, warning.as_str(), "");
    }
    let (level, advice) = match status.role {
        Role::Leader | Role::Follower => (Level::Ok, ""),
        Role::Quarantined => (
            Level::Warn,
            "it takes everything anew from its peers; stop no other node before it is through",
        ),
        _ => (
            Level::Warn,
            "it knows no leader: look at its connections to the other nodes",
        ),
    };
    let found = format!("{}, version {}", status.role, status.version);
    findings.add(level, "role", &place, found, advice);
    clocks(client, endpoint, &place, findings).await;
    Some(Answer {
        cluster_id: header.cluster_id,
        member_id: header.member_id,
        leader_id: header.leader_id,
        status,
    })
}

/// How fast the clocks of a node run, beside those of this machine.
async fn clocks(client: &Client, endpoint: &str, place: &str, findings: &mut Findings) {
    let Some(first) = reading(client, endpoint).await else {
        return;
    };
    tokio::time::sleep(CLOCK_INTERVAL).await;
    let Some(second) = reading(client, endpoint).await else {
        return;
    };
    let here = second.middle().at_least_since(first.middle());
    let uncertain = ppm(first.width() + second.width(), here);
    let allowed = f64::from(second.report.timing.max_drift_ppm);
    let (before, after) = (first.report.clock, second.report.clock);
    for (clock, before, after) in [
        ("CLOCK_BOOTTIME", before.boot, after.boot),
        ("CLOCK_MONOTONIC_RAW", before.raw, after.raw),
    ] {
        let there = Duration::from_nanos(after.saturating_sub(before));
        let off = ppm(there, here) - 1e6;
        let (level, advice) = match off.abs() - uncertain > allowed {
            true => (
                Level::Fail,
                "clocks that run so differently make leased reads unsafe: set leader_lease.enabled = \
                 false there, or raise leader_lease.max_drift_ppm and max_clock_skew with it",
            ),
            false => (Level::Ok, ""),
        };
        let found = format!(
            "{clock} {off:+.0} ppm beside ours, known to {uncertain:.0}; allowed {allowed:.0}"
        );
        findings.add(level, "clock", place, found, advice);
    }
    let timing = second.report.timing;
    let lease = second.report.lease;
    let trusted = lease.lease_duration.saturating_sub(lease.max_clock_skew);
    let pause = second.report.timer_delay.max();
    let room = trusted.saturating_sub(timing.heartbeat_interval * 3);
    let (level, advice) = match pause > room {
        true => (
            Level::Warn,
            "pauses as long as this end the leader's lease: `leasehold verify lease` suggests settings \
             that this machine bears",
        ),
        false => (Level::Ok, ""),
    };
    let found = format!("longest pause since the start {pause:.1?}; the lease bears {room:.1?}");
    findings.add(level, "pauses", place, found, advice);
}

/// A report, and when it was asked for and came.
struct Reading {
    asked: Instant,
    came: Instant,
    report: LeaderLeaseReport,
}

impl Reading {
    fn width(&self) -> Duration {
        self.came.at_least_since(self.asked)
    }

    fn middle(&self) -> Instant {
        self.asked + self.width() / 2
    }
}

async fn reading(client: &Client, endpoint: &str) -> Option<Reading> {
    let asked = SystemClock.now();
    let report = client.leader_lease_report(endpoint).await.ok()?;
    Some(Reading {
        asked,
        came: SystemClock.now(),
        report,
    })
}

fn ppm(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(1e-9) * 1e6
}

async fn cluster(target: &Target, answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let place = "cluster";
    let Some(any) = answers.values().next() else {
        let advice = "nothing else can be said before one endpoint answers";
        return findings.add(Level::Fail, "quorum", place, "no endpoint answers", advice);
    };
    let ids: BTreeSet<u64> = answers.values().map(|answer| answer.cluster_id).collect();
    if ids.len() > 1 {
        let found = format!("the endpoints belong to {} clusters", ids.len());
        findings.add(
            Level::Fail,
            "identity",
            place,
            found,
            "correct the addresses",
        );
    }
    let members = &any.status.members;
    let reached: BTreeSet<NodeId> = answers.values().map(|answer| answer.member_id).collect();
    let here = members.iter().filter(|it| reached.contains(&it.id)).count();
    let needed = members.len() / 2 + 1;
    let missing = members.iter().filter(|it| !reached.contains(&it.id));
    let missing: Vec<&str> = missing.map(|it| it.name.as_str()).collect();
    let (level, advice) = match here {
        _ if missing.is_empty() => (Level::Ok, ""),
        here if here >= needed => (Level::Warn, "name them with --endpoints, or start them"),
        _ => (
            Level::Fail,
            "name the others with --endpoints; if they are down, start them",
        ),
    };
    let found = match missing.is_empty() {
        true => format!("all {} members answer", members.len()),
        false => format!(
            "{here} of {} members answer, not {}",
            members.len(),
            missing.join(", ")
        ),
    };
    findings.add(level, "quorum", place, found, advice);

    let leaders: BTreeSet<Option<NodeId>> = answers.values().map(|it| it.leader_id).collect();
    let (level, found, advice) = match leaders.iter().next().copied().flatten() {
        Some(leader) if leaders.len() == 1 => {
            let name = members.iter().find(|it| it.id == leader);
            let name = name.map_or_else(|| leader.to_string(), |it| it.name.clone());
            (Level::Ok, format!("all say that {name} leads"), "")
        }
        None if leaders.len() == 1 => (
            Level::Fail,
            "nobody leads".to_owned(),
            "a majority of the members has to reach each other on their peer ports (UDP)",
        ),
        _ => (
            Level::Warn,
            format!("the members name {} different leaders", leaders.len()),
            "an election may be under way: ask again",
        ),
    };
    findings.add(level, "leader", place, found, advice);
    let most = answers.values().map(|it| it.status.commit_index.0).max();
    for answer in answers.values() {
        let lag = most
            .unwrap_or(0)
            .saturating_sub(answer.status.applied_index.0);
        if lag > LAG_MAX {
            let advice = "a slow disk, or a member that was away: look whether it catches up";
            let found = format!("{lag} entries behind");
            findings.add(Level::Warn, "lag", &answer.status.name, found, advice);
        }
    }
    reads(target, findings).await;
}

/// A read by each authority.
async fn reads(target: &Target, findings: &mut Findings) {
    let Ok(client) = connect(target, &target.endpoints).await else {
        return;
    };
    for (consistency, check, advice) in [
        (
            Consistency::LinearizableQuorum,
            "quorum read",
            "the leader does not reach a majority: look at the connections between the members",
        ),
        (
            Consistency::LeaseOnly,
            "leased read",
            "reads work, and take a round to a quorum each: leader_lease.enabled, and \
             `leasehold endpoint status` of the leader, say more",
        ),
    ] {
        let began = SystemClock.now();
        let options = GetOptions::new().with_consistency(consistency);
        let read = client.get("leasehold-doctor", Some(options)).await;
        let took = SystemClock.now().at_least_since(began);
        match read {
            Ok(_) => findings.ok(check, "cluster", format!("answered, {took:.1?}")),
            Err(error) => {
                let level = match consistency {
                    Consistency::LeaseOnly => Level::Warn,
                    _ => Level::Fail,
                };
                findings.add(level, check, "cluster", error.to_string(), advice);
            }
        }
    }
    client.close().await;
}

/// What of this machine matters to a node on it.
fn machine(findings: &mut Findings) {
    let place = "this machine";
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    for name in ["net.core.rmem_max", "net.core.wmem_max"] {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let Some(bytes) = number(&path) else {
            continue;
        };
        let (level, advice) = match bytes < UDP_BUFFER_BYTES {
            true => (
                Level::Warn,
                "a node here loses packets under load: set it to 4194304 (deploy/systemd has a file \
                 for that)",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(
            level,
            "udp buffers",
            place,
            format!("{name} is {bytes}"),
            advice,
        );
    }
    let limits = read("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| {
        let values = line.strip_prefix("Max open files")?;
        values.split_whitespace().next()?.parse::<u64>().ok()
    });
    if let Some(files) = files {
        let (level, advice) = match files < FILES_MIN {
            true => (
                Level::Warn,
                "raise it with `ulimit -n`, or LimitNOFILE in the unit",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(
            level,
            "open files",
            place,
            format!("{files} may be open"),
            advice,
        );
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if let Some(source) = read(source) {
        let source = source.trim();
        let slow = ["hpet", "acpi_pm", "jiffies"].contains(&source);
        let (level, advice) = match slow {
            true => (
                Level::Warn,
                "every look at the clock is a system call, and leased reads look at it: prefer tsc \
                 or the hypervisor's own",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(level, "clock source", place, source, advice);
    }
}

fn disk(folder: &Path, findings: &mut Findings) {
    let place = folder.display().to_string();
    let took = match syncs(folder) {
        Ok(took) => took,
        Err(error) => {
            let advice = "name a folder that this user may write to";
            return findings.add(Level::Fail, "disk", &place, error.to_string(), advice);
        }
    };
    let (middle, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    let (level, advice) = match middle > SYNC_SLOW {
        true => (
            Level::Warn,
            "every write waits for a sync: use a disk with a write cache that survives a power cut",
        ),
        false => (Level::Ok, ""),
    };
    let found =
        format!("sync of {SYNC_BYTES} bytes p50 {middle:.1?}, slowest of {SYNCS} {slowest:.1?}");
    findings.add(level, "disk", &place, found, advice);
}

fn syncs(folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!("leasehold-doctor-{}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    let mut measure = || {
        let mut took = Vec::new();
        for _ in 0..SYNCS {
            let began = SystemClock.now();
            file.write_all(&[0x4C; SYNC_BYTES])?;
            file.sync_data()?;
            took.push(SystemClock.now().at_least_since(began));
        }
        took.sort_unstable();
        Ok(took)
    };
    let took = measure();
    std::fs::remove_file(&path)?;
    took
}

fn print(out: &mut impl Write, findings: &[Finding], format: Format) -> io::Result<()> {
    match format {
        Format::Json => {
            let all: Vec<_> = findings
                .iter()
                .map(|it| {
                    json!({
                        "level": it.level.name().to_lowercase(),
                        "check": it.check,
                        "place": it.place,
                        "found": it.found,
                        "advice": it.advice,
                    })
                })
                .collect();
            serde_json::to_writer_pretty(&mut *out, &all)?;
            writeln!(out)
        }
        Format::Table => {
            let columns = ["", "CHECK", "WHERE", "FOUND", "WHAT TO DO"].map(|it| (it, Align::Left));
            let rows = findings.iter().map(|it| {
                let Finding {
                    level,
                    check,
                    place,
                    found,
                    advice,
                } = it.clone();
                vec![
                    level.name().to_owned(),
                    check.to_owned(),
                    place,
                    found,
                    advice,
                ]
            });
            table(out, &columns, rows)
        }
        Format::Simple | Format::Fields => {
            for it in findings {
                writeln!(
                    out,
                    "{:<4} {:<12} {}: {}",
                    it.level.name(),
                    it.check,
                    it.place,
                    it.found
                )?;
                if !it.advice.is_empty() {
                    writeln!(out, "     {:<12} → {}", "", it.advice)?;
                }
            }
            Ok(())
        }
    }
}
