//! How the cluster is, as this node knows it: what it asks the other members, and its own part.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::api::{
    Consistency, Distribution, LeaderLeaseReport, LeaderLeaseStatus, MemberInfo, Request, Response,
    ResponseBody, ResponseHeader, StatusResponse,
};
use crate::etcd::errors::Method;
use crate::etcd::status::Status;
use crate::server::etcd::caller::Caller;
use crate::server::metrics::{ReadFallback, seconds_since_1970};
use crate::server::session::Sessions;
use crate::server::status::document::of_node;
use crate::types::NodeId;

/// How long another member may take to say how it is.
const PATIENCE: Duration = Duration::from_millis(800);
const SECONDS_A_DAY: f64 = 86_400.0;

/// That the caller may know how the cluster is.
pub(super) async fn may_look(caller: &Caller) -> Result<(), Status> {
    let request = Request::Status;
    let asked = caller.ask(request, Consistency::Serializable, Method::Node);
    asked.await.map(drop)
}

/// How the cluster is, by the word of all members that answer this node in time.
pub(super) async fn collect(sessions: &Arc<Sessions>, is_on_loopback: bool) -> Value {
    let own = split(sessions.status_response());
    let report = report(sessions);
    let Some((header, own)) = own else {
        return Value::Null;
    };
    let asked = ask_others(sessions, &own.members);
    let (report, mut answers) = tokio::join!(report, asked);
    let mut members = Vec::new();
    let commit = answers
        .values()
        .flatten()
        .map(|(_, status)| status.commit_index.0);
    let commit = commit.chain([own.commit_index.0]).max().unwrap_or(0);
    answers.insert(sessions.node.member_id, Some((header.clone(), own.clone())));
    for member in &own.members {
        let answer = answers.get(&member.id).and_then(Option::as_ref);
        members.push(of_member(sessions, member, answer, commit));
    }
    json!({
        "node": sessions.node.name,
        "member_id": sessions.node.member_id.0.to_string(),
        "cluster_id": header.cluster_id.to_string(),
        "revision": header.revision,
        "compact_revision": own.history.compact_revision,
        "term": header.raft_term.0,
        "leader": name_of_leader(sessions),
        "access": sessions.serving.access.rules().is_some(),
        "loopback": is_on_loopback,
        "lease": report.as_ref().map(of_report),
        "fallbacks": fallbacks(sessions),
        "members": members,
        "warnings": own.warnings,
    })
}

/// The lease of this node, if it leads: for who looks often.
pub(super) fn own_lease(sessions: &Sessions) -> Option<Value> {
    let node = &sessions.node;
    let lease = sessions.lease_status(node.clock.now());
    let leads = node.published.leader() == Some(node.member_id);
    leads.then(|| Value::Object(of_lease(&node.name, &lease)))
}

/// The lease of the leader, if that is another node and answers.
pub(super) async fn leaders_lease(sessions: &Sessions) -> Option<Value> {
    let leader = sessions.node.published.leader()?;
    let asked = sessions.ask_member(leader, Request::Status, PATIENCE).await;
    let (_, status) = split(asked.ok()?)?;
    let lease = of_lease(&status.name, &status.leader_lease);
    Some(Value::Object(lease))
}

fn name_of_leader(sessions: &Sessions) -> Option<String> {
    let leader = sessions.node.published.leader()?;
    Some(sessions.node.directory.member(leader)?.name)
}

fn split(response: Response) -> Option<(ResponseHeader, StatusResponse)> {
    match response.body {
        ResponseBody::Status(status) => Some((response.header, *status)),
        _ => None,
    }
}

/// The report of the leader's lease.
async fn report(sessions: &Sessions) -> Option<LeaderLeaseReport> {
    let leader = sessions.node.published.leader()?;
    let response = match leader == sessions.node.member_id {
        true => sessions.lease_report_response(),
        false => {
            let request = Request::LeaderLeaseReport;
            sessions.ask_member(leader, request, PATIENCE).await.ok()?
        }
    };
    match response.body {
        ResponseBody::LeaderLeaseReport(report) => Some(*report),
        _ => None,
    }
}

type Answers = BTreeMap<NodeId, Option<(ResponseHeader, StatusResponse)>>;

async fn ask_others(sessions: &Arc<Sessions>, members: &[MemberInfo]) -> Answers {
    let mut asking = JoinSet::new();
    let others = members.iter().map(|member| member.id);
    for member in others.filter(|id| *id != sessions.node.member_id) {
        let sessions = sessions.clone();
        asking.spawn(async move {
            let asked = sessions.ask_member(member, Request::Status, PATIENCE).await;
            (member, asked.ok().and_then(split))
        });
    }
    asking.join_all().await.into_iter().collect()
}

fn of_member(
    sessions: &Sessions,
    member: &MemberInfo,
    answer: Option<&(ResponseHeader, StatusResponse)>,
    commit: u64,
) -> Value {
    let mut document = match answer {
        None => json!({"name": member.name, "problem": "it does not answer this node"}),
        Some((header, status)) => of_node(header, status),
    };
    document["id"] = member.id.0.to_string().into();
    document["certificate_days"] = certificate_days(sessions, member.id).into();
    let Some((header, status)) = answer else {
        return document;
    };
    document["version"] = status.version.clone().into();
    document["commit_index"] = status.commit_index.0.into();
    document["lag"] = commit.saturating_sub(status.applied_index.0).into();
    document["revision"] = header.revision.into();
    document["quota_bytes"] = status.quota.bytes.into();
    document
}

/// How long the certificate that the member uses towards other nodes is still valid.
fn certificate_days(sessions: &Sessions, member: NodeId) -> Option<i64> {
    let end = match member == sessions.node.member_id {
        true => {
            let metrics = &sessions.accounting.metrics.transport.peer;
            metrics.certificate.expiry_seconds.last()
        }
        false => sessions.forwarder.as_ref()?.certificate_end(member)? as f64,
    };
    (end > 0.0).then(|| ((end - seconds_since_1970()) / SECONDS_A_DAY).floor() as i64)
}

fn fallbacks(sessions: &Sessions) -> Value {
    let counts = &sessions.accounting.metrics.reads.fallbacks;
    let each = ReadFallback::ALL.map(|reason| {
        let count = counts[reason].so_far();
        (reason.label().to_owned(), Value::from(count))
    });
    Value::Object(each.into_iter().collect())
}

/// Quantiles of durations, in milliseconds; null without samples.
pub(super) fn quantiles(of: &Distribution) -> Value {
    if of.count() == 0 {
        return Value::Null;
    }
    json!({"count": of.count(), "p50_ms": millis(of.at(0.5)), "p99_ms": millis(of.at(0.99))})
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn of_lease(node: &str, lease: &LeaderLeaseStatus) -> Map<String, Value> {
    let fields = [
        ("node", Value::from(node)),
        ("is_valid", lease.is_valid.into()),
        ("remaining_ms", millis(lease.remaining).into()),
        ("duration_ms", millis(lease.lease_duration).into()),
        ("margin_ms", millis(lease.max_clock_skew).into()),
        ("renewals", lease.renewals.into()),
        ("expirations", lease.expirations.into()),
        ("rejections", lease.rejections.into()),
    ];
    fields
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect()
}

fn of_report(report: &LeaderLeaseReport) -> Value {
    let mut document = of_lease(&report.name, &report.lease);
    let heartbeat = millis(report.timing.heartbeat_interval);
    document.insert("heartbeat_ms".to_owned(), heartbeat.into());
    let longest = report.renew_interval.max();
    document.insert("longest_gap_ms".to_owned(), millis(longest).into());
    document.insert(
        "renew_interval".to_owned(),
        quantiles(&report.renew_interval),
    );
    document.insert("round_trip".to_owned(), quantiles(&report.round_trip));
    Value::Object(document)
}
