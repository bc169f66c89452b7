//! Administration of a node from its own machine: the paths below `/admin/v1`.
//!
//! A process that reaches these runs on the machine and has the node's keys and data anyway, so there
//! is no authentication. Web pages in a browser on that machine must not do anything here: their
//! requests are recognized by the header `Origin`, or by the name in `Host` if the page has made a name
//! of its own point to this address.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Progress, text};
use crate::api::{Error, ErrorKind, Outcome};
use crate::server::admin::service::{AdminService, LeaseFilter};

/// The paths, for the answer to an unknown one.
pub(crate) const PATHS: &[&str] = &[
    "/admin/v1/status",
    "/admin/v1/members",
    "/admin/v1/config",
    "/admin/v1/leader-lease",
    "/admin/v1/leader-lease/report",
    "/admin/v1/leader-lease/reset-stats",
    "/admin/v1/leases",
    "/admin/v1/watches",
    "/admin/v1/connections",
    "/admin/v1/log-level",
    "/admin/v1/read-lease",
    "/admin/v1/snapshot",
    "/admin/v1/tls/reload",
    "/admin/v1/transfer-leadership",
    "/admin/v1/drain",
];

/// The node, once it has started.
pub(crate) type ServiceSlot = Arc<OnceLock<Arc<AdminService>>>;

type Node = State<ServiceSlot>;

/// What answers below `/admin/v1`.
pub(crate) fn router(slot: ServiceSlot) -> Router {
    Router::new()
        .route("/admin/v1/status", get(status))
        .route("/admin/v1/members", get(members))
        .route("/admin/v1/config", get(config))
        .route("/admin/v1/leader-lease", get(leader_lease))
        .route("/admin/v1/leader-lease/report", get(lease_report))
        .route("/admin/v1/leader-lease/reset-stats", post(reset_stats))
        .route("/admin/v1/leases", get(leases))
        .route("/admin/v1/leases/{id}", get(lease).delete(revoke))
        .route("/admin/v1/watches", get(watches))
        .route("/admin/v1/connections", get(connections))
        .route("/admin/v1/log-level", get(log_level).put(set_log_level))
        .route("/admin/v1/read-lease", get(read_lease).put(set_read_lease))
        .route("/admin/v1/snapshot", post(snapshot))
        .route("/admin/v1/tls/reload", post(reload_tls))
        .route("/admin/v1/transfer-leadership", post(transfer_leadership))
        .route("/admin/v1/drain", post(drain))
        .route_layer(middleware::from_fn(keep_browsers_out))
        .with_state(slot)
}

pub(super) async fn keep_browsers_out(request: Request, next: Next) -> Response {
    match refusal(request.method(), request.headers()) {
        Some(why) => text(StatusCode::FORBIDDEN, format!("{why}\n")),
        None => next.run(request).await,
    }
}

fn refusal(method: &Method, headers: &HeaderMap) -> Option<&'static str> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_of_this_machine) {
        return Some(
            "send this request to a loopback address such as 127.0.0.1, or to localhost: other \
             host names are refused to prevent DNS rebinding",
        );
    }
    let is_question = method == Method::GET || method == Method::HEAD;
    (!is_question && headers.contains_key(header::ORIGIN))
        .then_some("requests from web pages may not change a node")
}

/// Whether a `Host` names loopback.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_loopback = |address: IpAddr| address.is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// A refusal, as it is answered.
pub(super) struct Refusal(StatusCode, Value);

impl Refusal {
    pub(super) fn usage(detail: impl Into<String>) -> Self {
        let code = ErrorKind::InvalidArgument.code();
        Self::with(StatusCode::BAD_REQUEST, code, &detail.into())
    }

    pub(super) fn with(status: StatusCode, code: &str, detail: &str) -> Self {
        Self(
            status,
            json!({"error": {"code": code, "detail": detail, "outcome": "not_applied"}}),
        )
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match error.kind {
            ErrorKind::InvalidArgument | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
            ErrorKind::LeaseNotFound => StatusCode::NOT_FOUND,
            ErrorKind::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::SlowDown { .. } => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let outcome = match error.outcome {
            Outcome::NotApplied => "not_applied",
            Outcome::Applied => "applied",
            Outcome::Unknown => "unknown",
        };
        let mut document = json!({
            "code": error.code(),
            "detail": error.detail,
            "outcome": outcome,
        });
        if let ErrorKind::NotLeader { leader, address } = &error.kind {
            document["leader"] = json!({
                "id": leader.map(|id| id.to_string()),
                "client_address": address,
            });
        }
        Self(status, json!({"error": document}))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, axum::Json(self.1)).into_response()
    }
}

type JsonResult = Result<axum::Json<Value>, Refusal>;

/// The node; an answer of its own while it starts.
fn node(slot: &ServiceSlot) -> Result<&Arc<AdminService>, Refusal> {
    slot.get().ok_or_else(|| {
        Refusal::with(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Unavailable.code(),
            "this node is starting: /startupz shows its progress",
        )
    })
}

async fn status(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.status().await))
}

async fn members(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.members().await))
}

async fn config(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.config()))
}

async fn leader_lease(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.leader_lease()))
}

async fn lease_report(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.lease_report()))
}

async fn reset_stats(State(slot): Node) -> JsonResult {
    node(&slot)?.reset_stats();
    Ok(axum::Json(json!({"reset": true})))
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseListParameters {
    #[serde(default)]
    owner: String,
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    limit: Option<u32>,
    /// The cursor of the previous page.
    #[serde(default)]
    cursor: Option<String>,
}

async fn leases(
    State(slot): Node,
    parameters: Result<Query<LeaseListParameters>, QueryRejection>,
) -> JsonResult {
    let Query(parameters) = parameters.map_err(|error| {
        Refusal::usage(format!(
            "the supported parameters are owner, prefix, limit and cursor: {}",
            error.body_text()
        ))
    })?;
    let filter = LeaseFilter {
        owner: parameters.owner,
        name_prefix: parameters.prefix,
        limit: parameters.limit.unwrap_or(0),
        after: match &parameters.cursor {
            Some(cursor) => lease_id(cursor)?,
            None => 0,
        },
    };
    Ok(axum::Json(node(&slot)?.leases(filter).await?))
}

async fn lease(State(slot): Node, Path(id): Path<String>) -> JsonResult {
    let id = lease_id(&id)?;
    Ok(axum::Json(node(&slot)?.lease(id).await?))
}

async fn revoke(State(slot): Node, Path(id): Path<String>) -> JsonResult {
    let id = lease_id(&id)?;
    Ok(axum::Json(node(&slot)?.revoke(id).await?))
}

/// A lease's id, in hexadecimal as everywhere that people see one.
fn lease_id(text: &str) -> Result<i64, Refusal> {
    let id = u64::from_str_radix(text, 16).ok();
    id.and_then(|id| i64::try_from(id).ok())
        .filter(|_| !text.starts_with('+'))
        .ok_or_else(|| {
            Refusal::usage(format!(
                "{text:?} is not a lease id: write it in hexadecimal, as in lease lists"
            ))
        })
}

async fn watches(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.watches().await))
}

async fn connections(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.connections()))
}

async fn log_level(State(slot): Node) -> JsonResult {
    let log = node(&slot)?.log().ok_or_else(no_log)?;
    Ok(axum::Json(json!({"filter": log.filter()})))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    filter: String,
}

async fn set_log_level(State(slot): Node, body: Bytes) -> JsonResult {
    let log = node(&slot)?.log().ok_or_else(no_log)?;
    let Filter { filter } = serde_json::from_slice(&body).map_err(|error| {
        Refusal::usage(format!(
            "send {{\"filter\": \"info,leasehold::raft=debug\"}}: {error}"
        ))
    })?;
    let before = log.filter();
    log.set(&filter).map_err(Refusal::usage)?;
    tracing::info!(%before, %filter, "log filter changed over the admin port");
    Ok(axum::Json(json!({"filter": filter, "before": before})))
}

fn no_log() -> Refusal {
    Refusal::with(
        StatusCode::NOT_FOUND,
        ErrorKind::Unsupported.code(),
        "this node does not own the log filter of its process",
    )
}

async fn read_lease(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.read_lease()))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadLeaseSwitch {
    enabled: bool,
}

async fn set_read_lease(State(slot): Node, body: Bytes) -> JsonResult {
    let node = node(&slot)?;
    let ReadLeaseSwitch { enabled } = serde_json::from_slice(&body)
        .map_err(|error| Refusal::usage(format!("send {{\"enabled\": false}}: {error}")))?;
    let document = node.ask_for_read_leases(enabled);
    tracing::info!(
        enabled,
        "read_lease.enabled changed over the admin port, until the next start"
    );
    Ok(axum::Json(document))
}

/// The bytes of a backup, as `leasehold snapshot save` writes them. They end early, and so that HTTP
/// shows it, when the node cannot go on with them.
async fn snapshot(
    State(slot): Node,
    Extension(progress): Extension<Progress>,
) -> Result<Response, Refusal> {
    let download = node(&slot)?.snapshot(progress).await?;
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::new(download)).into_response())
}

async fn reload_tls(State(slot): Node) -> JsonResult {
    match node(&slot)?.reload_certificates().await {
        Ok(document) => Ok(axum::Json(document)),
        Err(problems) => Err(Refusal(
            StatusCode::CONFLICT,
            json!({"error": {
                "code": ErrorKind::InvalidArgument.code(),
                "detail": "the previous certificates stay in use",
                "problems": problems,
            }}),
        )),
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferParameters {
    /// A member's name or id; without it, the member with the most recent log.
    #[serde(default)]
    to: Option<String>,
}

async fn transfer_leadership(
    State(slot): Node,
    parameters: Result<Query<TransferParameters>, QueryRejection>,
) -> JsonResult {
    let Query(parameters) = parameters.map_err(|error| {
        Refusal::usage(format!(
            "the only supported parameter is `to`: {}",
            error.body_text()
        ))
    })?;
    let node = node(&slot)?;
    let target = match &parameters.to {
        None => None,
        Some(to) => Some(node.find_member(to).ok_or_else(|| {
            Refusal::usage(format!(
                "{to:?} is not a member: /admin/v1/members lists them"
            ))
        })?),
    };
    Ok(axum::Json(node.transfer_leadership(target).await?))
}

async fn drain(State(slot): Node) -> JsonResult {
    Ok(axum::Json(node(&slot)?.drain().await))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_answered(method: Method, headers: &[(header::HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, value.parse().unwrap());
        }
        refusal(&method, &map).is_none()
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7480",
            "localhost:7480",
            "LOCALHOST",
            "[::1]:7480",
            "127.9.9.9",
        ] {
            assert!(is_answered(Method::GET, &[(header::HOST, host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7480",
            "10.0.0.1:7480",
            "localhost.evil.example",
            "[::2]",
            "",
            "127.0.0.1.evil.example",
        ] {
            assert!(!is_answered(Method::GET, &[(header::HOST, host)]), "{host}");
        }
        assert!(!is_answered(Method::GET, &[]), "no name at all");
    }

    #[test]
    fn a_page_in_a_browser_changes_nothing() {
        let from_page = [
            (header::HOST, "localhost:7480"),
            (header::ORIGIN, "https://evil.example"),
        ];
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            assert!(!is_answered(method.clone(), &from_page), "{method}");
            assert!(is_answered(method, &from_page[..1]));
        }
    }

    #[test]
    fn an_id_of_a_lease_is_hexadecimal() {
        assert!(matches!(lease_id("00000000000000ff"), Ok(255)));
        for text in [
            "",
            "xyz",
            "+ff",
            "-1",
            "ffffffffffffffff",
            "1ffffffffffffffff",
        ] {
            assert!(lease_id(text).is_err(), "{text}");
        }
    }
}
