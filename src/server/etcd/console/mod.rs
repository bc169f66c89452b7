//! The console: a page for browsers at `/console/`, and what it needs beyond etcd's API, at
//! `/v3/leasehold/`.
//!
//! [`files`] holds the page. What it shows it asks over etcd's methods as JSON like any other client, with the
//! rights of who has logged in. [`status`] puts together how the cluster is, [`stream`] tells it again and
//! again to all who look, and [`leases`] lists client leases. [`browsers`] keeps pages from elsewhere out.

pub(super) mod browsers;
mod files;
mod leases;
mod status;
mod stream;

use std::sync::Arc;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::{Method as HttpMethod, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

pub(super) use browsers::is_at;
use browsers::{OWN, PAGE};
pub(super) use stream::Console;

use super::caller::Caller;
use super::gateway::{error, http_status, json};
use super::grpc::Reply;
use super::options::BrowserOptions;
use crate::api;
use crate::etcd::errors::Method;
use crate::etcd::status::{Code, Status};
use crate::types::NodeId;

/// Answers a request at such a path, of `caller`, if its headers are in order.
pub(super) async fn answer(
    console: &Arc<Console>,
    options: &BrowserOptions,
    head: &Parts,
    caller: Result<Caller, Status>,
) -> Response<Reply> {
    let path = head.uri.path();
    if let Some(name) = path.strip_prefix(OWN) {
        let wanted = match name {
            "move-leader" => HttpMethod::POST,
            _ => HttpMethod::GET,
        };
        if head.method != wanted {
            return not_allowed(&wanted);
        }
        let query = head.uri.query().unwrap_or_default();
        let answered = match caller {
            Ok(caller) => own(console, caller, name, query).await,
            Err(status) => Err(status),
        };
        return answered.unwrap_or_else(|status| {
            let code = status.code as i32;
            json(http_status(code), error(code, &status.message))
        });
    }
    if !options.has_console {
        return json(
            StatusCode::NOT_FOUND,
            error(5, "the console is off: set console.enabled to true"),
        );
    }
    if !matches!(head.method, HttpMethod::GET | HttpMethod::HEAD) {
        return not_allowed(&HttpMethod::GET);
    }
    match path.strip_prefix(PAGE) {
        Some(name) => files::file(name),
        None => {
            let mut response = Response::new(Reply::empty());
            *response.status_mut() = StatusCode::PERMANENT_REDIRECT;
            let headers = response.headers_mut();
            headers.insert(LOCATION, HeaderValue::from_static(PAGE));
            response
        }
    }
}

fn not_allowed(wanted: &HttpMethod) -> Response<Reply> {
    let text = format!("this path takes {wanted} only\n");
    let mut response = Response::new(Reply::of(text.into()));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    let headers = response.headers_mut();
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    headers.insert(CONTENT_TYPE, plain);
    if let Ok(wanted) = HeaderValue::from_str(wanted.as_str()) {
        headers.insert(ALLOW, wanted);
    }
    response
}

/// Answers at one of the paths that etcd has not.
async fn own(
    console: &Arc<Console>,
    caller: Caller,
    name: &str,
    query: &str,
) -> Result<Response<Reply>, Status> {
    match name {
        "status" => {
            status::may_look(&caller).await?;
            let document = status::collect(&caller.sessions, console.is_on_loopback()).await;
            Ok(document_of(&document))
        }
        "status/stream" => {
            status::may_look(&caller).await?;
            Ok(stream::serve(caller, console))
        }
        "leases" => leases::page(&caller, &parse(query)?)
            .await
            .map(|page| document_of(&page)),
        "move-leader" => {
            move_leader(&caller, &parse(query)?).await?;
            Ok(document_of(&Value::Object(serde_json::Map::new())))
        }
        _ => Err(Status::new(
            Code::NotFound,
            "there is nothing at this path: docs/etcd.md lists those of leasehold",
        )),
    }
}

fn document_of(document: &Value) -> Response<Reply> {
    json(StatusCode::OK, document.to_string())
}

/// What the query of a path says.
fn parse<Q: for<'a> Deserialize<'a>>(query: &str) -> Result<Q, Status> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let fields = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), Value::from(value))
    });
    serde_json::from_value(Value::Object(fields.collect())).map_err(|problem| {
        let text = format!("the query {query:?} is not understood: {problem}");
        Status::with(Code::InvalidArgument, text)
    })
}

/// To whom leadership goes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    /// A member's id, in decimal as elsewhere in the JSON of this port; absent, the leader chooses.
    target: Option<String>,
}

/// Hands leadership over, whichever node is asked.
async fn move_leader(caller: &Caller, transfer: &Transfer) -> Result<(), Status> {
    let target = transfer.target.as_ref().map(|target| {
        target.parse().map(NodeId).map_err(|_| {
            let text = format!(
                "the target {target:?} is no id of a member: see members in /v3/leasehold/status"
            );
            Status::with(Code::InvalidArgument, text)
        })
    });
    let request = api::Request::MoveLeader {
        target: target.transpose()?,
    };
    let asked = caller.ask(request, api::Consistency::Linearizable, Method::Node);
    asked.await.map(drop)
}
