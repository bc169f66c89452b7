//! What a node says of itself: the service of maintenance, gRPC's service of health, and the pages for
//! programs without gRPC.

use std::time::Duration;

use serde_json::json;

use super::caller::Caller;
use super::options::EtcdOptions;
use super::pages::unexpected;
use crate::api::{Consistency, Request, ResponseBody};
use crate::etcd::errors::{Method, NO_LEADER};
use crate::etcd::proto;
use crate::etcd::proto::{ALARM_NO_SPACE, AlarmAction, AlarmMember};
use crate::etcd::status::{Code, Status};
use crate::server::session::Sessions;

/// How long a question about health waits for the word of the leader.
const HEALTH_PATIENCE: Duration = Duration::from_secs(1);

/// Status.
pub(super) async fn status(
    caller: Caller,
    _: proto::StatusRequest,
) -> Result<proto::StatusResponse, Status> {
    let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
    let response = request.await?;
    let ResponseBody::Status(status) = response.body else {
        return Err(unexpected());
    };
    let leader = response.header.leader_id;
    let mut errors = Vec::new();
    if status.quota.no_space {
        // The space at the end is etcd's.
        errors.push(format!("memberID:{} alarm:NOSPACE ", caller.member_id().0));
    }
    if leader.is_none() {
        errors.push(NO_LEADER.message.into_owned());
    }
    let bytes = i64::try_from(status.storage_bytes).unwrap_or(i64::MAX);
    let raft_term = response.header.raft_term.0;
    Ok(proto::StatusResponse {
        header: Some(caller.header(&response.header)),
        version: caller.options.emulated_version.clone(),
        db_size: bytes,
        leader: leader.map_or(0, |leader| leader.0),
        raft_index: status.last_index.0,
        raft_term,
        raft_applied_index: status.applied_index.0,
        errors,
        db_size_in_use: bytes,
        is_learner: status.role == crate::types::Role::Learner,
        storage_version: caller.options.storage_version(),
        db_size_quota: i64::try_from(status.quota.bytes).unwrap_or(i64::MAX),
    })
}

/// Alarm: the alarms can be read, not yet set.
pub(super) async fn alarm(
    caller: Caller,
    alarm: proto::AlarmRequest,
) -> Result<proto::AlarmResponse, Status> {
    if alarm.action != AlarmAction::Get as i32 {
        return Err(Status::new(
            Code::Unimplemented,
            "etcdserver: alarms are measured here: free space, and NOSPACE ends by itself",
        ));
    }
    let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
    let response = request.await?;
    let ResponseBody::Status(status) = response.body else {
        return Err(unexpected());
    };
    let is_asked = alarm.alarm == 0 || alarm.alarm == ALARM_NO_SPACE;
    let is_asked = is_asked && [0, caller.member_id().0].contains(&alarm.member_id);
    let raised = status.quota.no_space && is_asked;
    let member = AlarmMember {
        member_id: caller.member_id().0,
        alarm: ALARM_NO_SPACE,
    };
    Ok(proto::AlarmResponse {
        header: Some(caller.header(&response.header)),
        alarms: raised.then_some(member).into_iter().collect(),
    })
}

/// Check of gRPC's health.
pub(super) async fn check(
    caller: Caller,
    check: proto::HealthCheckRequest,
) -> Result<proto::HealthCheckResponse, Status> {
    if !check.service.is_empty() {
        return Err(Status::new(Code::NotFound, "unknown service"));
    }
    let status = match caller.sessions.node.is_stopping() {
        true => proto::SERVING + 1,
        false => proto::SERVING,
    };
    Ok(proto::HealthCheckResponse { status })
}

/// A page for a program without gRPC: its status, its type and its text; `None` if there is none at this
/// path.
pub(super) async fn page(
    sessions: &Sessions,
    options: &EtcdOptions,
    path: &str,
    query: Option<&str>,
) -> Option<(u16, &'static str, String)> {
    const JSON: &str = "application/json";
    const TEXT: &str = "text/plain; charset=utf-8";
    Some(match path {
        "/version" => {
            // In the order in which etcd gives them.
            let version = format!(
                "{{\"etcdserver\":{},\"etcdcluster\":{},\"storage\":{}}}",
                json!(options.emulated_version),
                json!(options.storage_version()),
                json!(options.storage_version()),
            );
            (200, JSON, version)
        }
        "/health" => {
            let parameters = Parameters::of(query.unwrap_or_default());
            let reason = unhealthy(sessions, &parameters).await;
            let (code, health) = match reason.is_empty() {
                true => (200, "true"),
                false => (503, "false"),
            };
            let page = format!("{{\"health\":\"{health}\",\"reason\":{}}}", json!(reason));
            (code, JSON, page)
        }
        "/livez" => (200, TEXT, "ok\n".to_owned()),
        "/readyz" => {
            let reason = unhealthy(sessions, &Parameters::default()).await;
            match reason.is_empty() {
                true => (200, TEXT, "ok\n".to_owned()),
                false => (503, TEXT, format!("{reason}\n")),
            }
        }
        _ => return None,
    })
}

/// What a question about health leaves out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters {
    is_serializable: bool,
    excludes_no_space: bool,
}

impl Parameters {
    fn of(query: &str) -> Self {
        let mut parameters = Self::default();
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some(("serializable", "true")) => parameters.is_serializable = true,
                Some(("exclude", "NOSPACE")) => parameters.excludes_no_space = true,
                _ => {}
            }
        }
        parameters
    }
}

/// Why this node is not healthy; empty if it is.
async fn unhealthy(sessions: &Sessions, parameters: &Parameters) -> String {
    if sessions.serving.room.status().no_space && !parameters.excludes_no_space {
        return "ALARM NOSPACE".to_owned();
    }
    if sessions.node.is_stopping() || !sessions.node.is_readable() {
        return "RANGE ERROR:etcdserver: server stopped".to_owned();
    }
    if parameters.is_serializable {
        return String::new();
    }
    if sessions.node.published.leader().is_none() {
        return "RAFT NO LEADER".to_owned();
    }
    match sessions.confirm(HEALTH_PATIENCE).await {
        Ok(()) => String::new(),
        Err(error) => {
            let status = crate::etcd::errors::status_of(&error, Method::Range, true);
            format!("RANGE ERROR:{}", status.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_health_may_leave_things_out() {
        let all = Parameters::of("serializable=true&exclude=NOSPACE&x=y");
        assert!(all.is_serializable);
        assert!(all.excludes_no_space);
        assert_eq!(Parameters::of("exclude=OTHER"), Parameters::default());
    }
}
