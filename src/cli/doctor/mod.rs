//! `leasehold doctor`: what is wrong with a cluster, or with this machine, and what to do about it.
//!
//! It asks every endpoint by itself, because a client only ever notices the first one that answers. Each
//! finding is a line; below one that is bad stands what to do. It changes nothing: it reads, and where a
//! folder is named it writes and removes a small file there, to learn how long its disk takes to sync.
//! Each reply names the other members, which are checked as well.

mod findings;
mod machine;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use self::findings::{CLOCK_INTERVAL, Finding, Findings, Level, ppm};
use super::arguments::{DoctorArgs, Format, GlobalArgs};
use super::connection::{Surroundings, Target};
use super::failure::Failure;
use super::print::{Align, line, table};
use super::remote::options;
use crate::api::{Consistency, Error, ErrorKind, LeaderLeaseReport, MemberInfo, StatusResponse};
use crate::client::{Client, GetOptions, RetryPolicy};
use crate::clock::SystemClock;
use crate::pki::{self, Remedy};
use crate::time::{Clock, Instant};
use crate::transport::{ConnectError, resolve};
use crate::types::{NodeId, Role};

/// What to do where a cluster with access control does not know who asks.
const UNKNOWN_USER: &str = "the cluster does not know this user: log in with --user and \
                            --password-file, or add the user named in the certificate (`leasehold \
                            user add`)";
/// What to do where the user is known and not permitted.
const USER_WITHOUT_ROLE: &str = "this user has no permissions: grant it a role (`leasehold user \
                                 grant-role`), or use another user (--user)";
/// The key that is read, whether it exists or not.
const READ_KEY: &str = "leasehold-doctor";
/// Exchanges with each node.
const EXCHANGES: usize = 20;
/// A certificate that ends sooner deserves a word.
const CERTIFICATE_NEAR: Duration = Duration::from_secs(21 * 86_400);
/// A datagram of Ethernet's size, less what tunnels and the headers of IPv6 take. QUIC works with
/// 1,200 bytes, and sends more of them then.
const DATAGRAM_BYTES: u16 = 1_350;
/// Packets that may get lost without a word, and which part of all.
const LOST_MAX: u64 = 3;
const LOST_SHARE_MAX: u64 = 50;
/// Entries that a follower may be behind without a word.
const LAG_MAX: u64 = 10_000;

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
    let mut findings = Findings::default();
    let is_given = surroundings.dev.is_some() || surroundings.context.is_some();
    if global.endpoints.is_empty() && !is_given {
        let files = [&global.cacert, &global.cert, &global.key];
        let files: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
        certificates(&files, &mut findings);
        findings.add(
            Level::Warn,
            "cluster",
            machine::PLACE,
            "no cluster was given, so only this machine was checked",
            "name one with --endpoints, --cacert, --cert and --key, or with --context; --data-dir tests a disk",
        );
    } else {
        let target = Target::find(global, surroundings)?;
        let files = [
            target.cacert.clone(),
            target.cert.clone(),
            target.key.clone(),
        ];
        // A cluster says nothing to files of another but that they are none of its own.
        if certificates(&files, &mut findings) {
            let answers = endpoints(&target, &mut findings).await;
            cluster(&target, &answers, &mut findings).await;
        }
    }
    machine::look(&mut findings).await;
    if let Some(folder) = &arguments.data_dir {
        machine::disk(folder, &mut findings);
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

/// Looks at each file, and whether they are of one cluster; says that.
fn certificates(files: &[PathBuf], findings: &mut Findings) -> bool {
    let reports = pki::check(files, pki::wall_clock());
    for report in &reports {
        let place = report.path.display().to_string();
        let near = report
            .expires_in
            .is_some_and(|left| left < CERTIFICATE_NEAR);
        let (level, advice) = match report.remedy() {
            Some(remedy) => (Level::Fail, advice_against(remedy)),
            None if near => (Level::Warn, "issue a new one before it expires"),
            None => (Level::Ok, ""),
        };
        let text = report.to_string();
        let found = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text);
        findings.add(level, "certificate", &place, found, advice);
    }
    let of_clusters = reports.iter().filter_map(|report| {
        let file = report.path.display();
        Some((
            report.cluster?,
            format!("{file} belongs to cluster {}", report.cluster?),
        ))
    });
    let of_clusters: BTreeMap<_, _> = of_clusters.collect();
    if of_clusters.len() > 1 {
        let found: Vec<String> = of_clusters.into_values().collect();
        findings.add(
            Level::Fail,
            "certificate",
            "all files",
            found.join(", and "),
            "name an authority (--cacert) and a certificate (--cert, --key) of the same cluster: \
             it was not contacted because it would refuse these",
        );
        return false;
    }
    true
}

fn advice_against(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::MakePrivate => "remove the permissions of others with the chmod above",
        Remedy::SetClock => "set this machine's clock",
        Remedy::NameFile => {
            "correct the path, or make the file readable for this user; if it is damaged, issue it \
             again with `leasehold cert issue --force`"
        }
        Remedy::NameAuthority => {
            "name the authority that signed it; if that is lost, issue it again with `leasehold \
             cert issue --force`"
        }
        Remedy::Issue => "issue it again with `leasehold cert issue --force`",
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
        if let Some(answer) = meet(target, endpoint, findings).await {
            answers.insert(endpoint.clone(), answer);
        }
    }
    for endpoint in unasked(&answers, &target.endpoints) {
        if let Some(answer) = meet(target, &endpoint, findings).await {
            answers.insert(endpoint, answer);
        }
    }
    answers
}

/// Addresses of members that were not given and have not answered at another address.
fn unasked(answers: &BTreeMap<String, Answer>, named: &[String]) -> BTreeSet<String> {
    let met: BTreeSet<NodeId> = answers.values().map(|it| it.member_id).collect();
    let members = answers.values().flat_map(|it| &it.status.members);
    let others = members.filter(|it| !met.contains(&it.id) && !it.client_address.is_empty());
    let addresses = others.map(|it| it.client_address.clone());
    addresses.filter(|it| !named.contains(it)).collect()
}

/// Connects to an endpoint, and asks it.
async fn meet(target: &Target, endpoint: &str, findings: &mut Findings) -> Option<Answer> {
    let resolved = match resolve(endpoint).await {
        Ok(addresses) => addresses,
        Err(error) => {
            let advice =
                "correct the name, or this machine's name service (`getent hosts` queries it)";
            findings.add(Level::Fail, "connect", endpoint, error.to_string(), advice);
            return None;
        }
    };
    let began = SystemClock.now();
    let client = match connect(target, &[endpoint.to_owned()]).await {
        Ok(client) => client,
        Err(error) => {
            let advice = advice_for(&error, &resolved);
            findings.add(Level::Fail, "connect", endpoint, error.to_string(), advice);
            return None;
        }
    };
    let took = SystemClock.now().at_least_since(began);
    findings.ok(
        "connect",
        endpoint,
        format!("QUIC with mutual TLS, {took:.1?}"),
    );
    let answer = ask(&client, endpoint, findings).await;
    // By now larger and larger datagrams have been tried.
    if let Some(facts) = client.path(endpoint) {
        let path = UdpPath {
            datagram_bytes: facts.datagram_bytes,
            sent: facts.sent_packets,
            lost: facts.lost_packets,
        };
        path.judge(endpoint, findings);
    }
    client.close().await;
    answer
}

/// What is known of the way to an endpoint.
#[derive(Clone, Copy, Debug)]
struct UdpPath {
    datagram_bytes: u16,
    sent: u64,
    lost: u64,
}

impl UdpPath {
    fn judge(self, endpoint: &str, findings: &mut Findings) {
        let Self {
            datagram_bytes,
            sent,
            lost,
        } = self;
        let is_lossy = lost > LOST_MAX && lost * LOST_SHARE_MAX > sent;
        let (level, advice) = match datagram_bytes < DATAGRAM_BYTES {
            _ if is_lossy => (
                Level::Warn,
                "packets are lost on the way: check the network and the UDP buffers at both ends \
                 (`leasehold doctor` there, deploy/systemd/50-leasehold.sysctl)",
            ),
            true => (
                Level::Warn,
                "everything works, but in more and smaller packets: look for a tunnel, or for a \
                 firewall that drops large UDP datagrams or ICMP",
            ),
            false => (Level::Ok, ""),
        };
        let found = format!("datagrams of {datagram_bytes} bytes arrive; {lost} of {sent} lost");
        findings.add(level, "udp path", endpoint, found, advice);
    }
}

/// What to do where a cluster with access control refuses who asks; `None` if that is not why.
fn advice_for_refused(error: &Error) -> Option<&'static str> {
    match error.kind {
        ErrorKind::Unauthenticated | ErrorKind::TokenExpired | ErrorKind::UserNotFound => {
            Some(UNKNOWN_USER)
        }
        ErrorKind::PermissionDenied => Some(USER_WITHOUT_ROLE),
        _ => None,
    }
}

/// What to do about a connection to one of `addresses` that did not come about.
fn advice_for(error: &Error, addresses: &[SocketAddr]) -> &'static str {
    // Both are failed handshakes, and only the sentence tells them apart.
    let is_another_port = addresses.iter().any(|address| {
        let address = address.to_string();
        error
            .detail
            .contains(&ConnectError::Alpn { address }.to_string())
    });
    if let Some(advice) = advice_for_refused(error) {
        return advice;
    }
    match error.kind {
        ErrorKind::TlsHandshake if is_another_port => {
            "use the client port (listen.client, 7400 by default), not the peer port"
        }
        ErrorKind::TlsHandshake => {
            "use the client certificate and the authority (client-ca.pem) of this cluster; \
             `leasehold cert check` shows what a file is"
        }
        ErrorKind::ClusterMismatch => {
            "this endpoint belongs to another cluster: correct the address"
        }
        ErrorKind::InvalidArgument => "correct what the message names",
        _ => {
            "is the node running, and is its client port open for UDP? A firewall that allows only \
             TCP blocks it"
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
                let advice = advice_for_refused(&error).unwrap_or("see the node's log");
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
            "it is quarantined and copies all data from its peers; stop no other node before it \
             has finished",
        ),
        _ => (
            Level::Warn,
            "it has no leader: check its connections to the other nodes",
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
    judge_clocks(&first, &second, place, findings);
}

fn judge_clocks(first: &Reading, second: &Reading, place: &str, findings: &mut Findings) {
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
                "leased reads are unsafe with clocks that diverge this fast: set \
                 leader_lease.enabled = false there, or raise leader_lease.max_drift_ppm and \
                 max_clock_skew with it",
            ),
            false => (Level::Ok, ""),
        };
        let found = format!(
            "{clock} differs from ours by {off:+.0} ppm, known to within {uncertain:.0}; allowed \
             {allowed:.0}"
        );
        findings.add(level, "clock", place, found, advice);
    }
    let timing = second.report.timing;
    let lease = second.report.lease;
    let trusted = lease.lease_duration.saturating_sub(lease.max_clock_skew);
    let pause = second.report.timer_delay.max();
    let room = trusted.saturating_sub(timing.heartbeat_interval * 3);
    judge_pauses(pause, room, place, findings);
}

fn judge_pauses(longest: Duration, room: Duration, place: &str, findings: &mut Findings) {
    let (level, advice) = match longest > room {
        true => (
            Level::Warn,
            "pauses this long let the leader lease expire: `leasehold verify lease` suggests \
             settings for this machine",
        ),
        false => (Level::Ok, ""),
    };
    let longest = match longest.is_zero() {
        true => "no pause since the start".to_owned(),
        false => format!("longest pause since the start {longest:.1?}"),
    };
    let found = format!("{longest}; the lease tolerates {room:.1?}");
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

/// Where a finding about the whole cluster is.
const CLUSTER: &str = "cluster";

async fn cluster(target: &Target, answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let Some(any) = answers.values().next() else {
        // They do answer then, and what they would say is for others.
        let is_refused = |it: &Finding| [UNKNOWN_USER, USER_WITHOUT_ROLE].contains(&&*it.advice);
        if findings.0.iter().any(is_refused) {
            return;
        }
        let advice = "nothing else can be checked until an endpoint answers";
        return findings.add(
            Level::Fail,
            "quorum",
            CLUSTER,
            "no endpoint answers",
            advice,
        );
    };
    identity(answers, findings);
    let members = &any.status.members;
    quorum(members, answers, findings);
    leader(members, answers, findings);
    lag(answers, findings);
    reads(target, findings).await;
}

/// Whether all endpoints belong to one cluster.
fn identity(answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let ids: BTreeSet<u64> = answers.values().map(|answer| answer.cluster_id).collect();
    if ids.len() > 1 {
        let found = format!("the endpoints belong to {} different clusters", ids.len());
        let advice = "correct the addresses";
        findings.add(Level::Fail, "identity", CLUSTER, found, advice);
    }
}

/// Whether a majority of the members answers.
fn quorum(members: &[MemberInfo], answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let reached: BTreeSet<NodeId> = answers.values().map(|answer| answer.member_id).collect();
    let here = members.iter().filter(|it| reached.contains(&it.id)).count();
    let needed = members.len() / 2 + 1;
    let missing = members.iter().filter(|it| !reached.contains(&it.id));
    let missing: Vec<&str> = missing.map(|it| it.name.as_str()).collect();
    let (level, advice) = match here {
        _ if missing.is_empty() => (Level::Ok, ""),
        here if here >= needed => (
            Level::Warn,
            "start them; if they are running, make their advertised client addresses reachable \
             from here",
        ),
        _ => (
            Level::Fail,
            "start the others; if they are running, make their advertised client addresses \
             reachable from here, or name others with --endpoints",
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
    findings.add(level, "quorum", CLUSTER, found, advice);
}

/// Whether the members agree on one leader.
fn leader(members: &[MemberInfo], answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let leaders: BTreeSet<Option<NodeId>> = answers.values().map(|it| it.leader_id).collect();
    let (level, found, advice) = match leaders.iter().next().copied().flatten() {
        Some(leader) if leaders.len() == 1 => {
            let name = members.iter().find(|it| it.id == leader);
            let name = name.map_or_else(|| leader.to_string(), |it| it.name.clone());
            (
                Level::Ok,
                format!("all agree that {name} is the leader"),
                "",
            )
        }
        None if leaders.len() == 1 => (
            Level::Fail,
            "there is no leader".to_owned(),
            "a majority of the members must reach each other on their peer ports (UDP)",
        ),
        _ => (
            Level::Warn,
            format!("the members name {} different leaders", leaders.len()),
            "an election may be in progress: try again",
        ),
    };
    findings.add(level, "leader", CLUSTER, found, advice);
}

/// Whether a member is far behind the others.
fn lag(answers: &BTreeMap<String, Answer>, findings: &mut Findings) {
    let most = answers.values().map(|it| it.status.commit_index.0).max();
    for answer in answers.values() {
        let lag = most
            .unwrap_or(0)
            .saturating_sub(answer.status.applied_index.0);
        if lag > LAG_MAX {
            let advice = "the disk is slow, or the member was down: check whether it catches up";
            let found = format!("{lag} entries behind");
            findings.add(Level::Warn, "lag", &answer.status.name, found, advice);
        }
    }
}

/// A read by each authority.
async fn reads(target: &Target, findings: &mut Findings) {
    let Ok(client) = connect(target, &target.endpoints).await else {
        return;
    };
    let mut quorum_reads_work = false;
    for (consistency, check) in [
        (Consistency::LinearizableQuorum, "quorum read"),
        (Consistency::LeaseOnly, "leased read"),
    ] {
        let began = SystemClock.now();
        let options = GetOptions::new().with_consistency(consistency);
        let read = client.get(READ_KEY, Some(options)).await;
        let took = SystemClock.now().at_least_since(began);
        match read {
            Ok(_) => {
                quorum_reads_work |= consistency == Consistency::LinearizableQuorum;
                findings.ok(check, "cluster", format!("answered, {took:.1?}"));
            }
            Err(error) => {
                let (level, advice) = judge_refusal(consistency, quorum_reads_work, &error);
                findings.add(level, check, "cluster", error.to_string(), advice);
            }
        }
    }
    client.close().await;
}

/// What a read by this authority that was refused says: of who asks, or of the cluster.
fn judge_refusal(
    consistency: Consistency,
    quorum_reads_work: bool,
    error: &Error,
) -> (Level, &'static str) {
    match error.kind {
        ErrorKind::Unauthenticated | ErrorKind::TokenExpired | ErrorKind::UserNotFound => {
            (Level::Fail, UNKNOWN_USER)
        }
        ErrorKind::PermissionDenied => (
            Level::Warn,
            "this user may not read the key leasehold-doctor, so reads were not tested: use a user \
             who may (--user), or grant the permission (`leasehold role grant-permission`)",
        ),
        _ if consistency == Consistency::LeaseOnly && quorum_reads_work => (
            Level::Warn,
            "reads work, but each takes a quorum round: check leader_lease.enabled, and `leasehold \
             endpoint status` of the leader",
        ),
        _ => (
            Level::Fail,
            "the leader does not reach a majority: check the connections between the members",
        ),
    }
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
            line(out, &all)
        }
        Format::Table => {
            let columns =
                ["LEVEL", "CHECK", "WHERE", "FOUND", "WHAT TO DO"].map(|it| (it, Align::Left));
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

#[cfg(test)]
mod tests;
