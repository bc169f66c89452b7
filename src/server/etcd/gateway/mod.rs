//! The gateway: the same methods as JSON over HTTP, for programs without gRPC.
//!
//! It translates and knows nothing else. A request becomes one of gRPC ([`JsonBody`]), is answered by
//! what answers those, and its answer becomes JSON ([`translated`]), message by message as they are
//! sent. So limits, deadlines, access and the answers themselves are the same for both.
//!
//! As in etcd's gateway, a call of one message ends with a status of HTTP. So does a stream that fails
//! before its first message, whose headers wait for that; one that fails later ends with an object
//! that says why.

mod answer;
mod request;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

pub(super) use answer::translated;
pub(super) use request::JsonBody;

use super::grpc::Reply;
use crate::etcd::json::quoted;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// What begins the name of a header that is metadata of gRPC.
const METADATA: &str = "grpc-metadata-";

/// Has the headers of a request show as metadata what they carry as such.
pub(super) fn unwrap_metadata(headers: &mut HeaderMap) {
    let wrapped = headers.iter().filter_map(|(name, value)| {
        let name = name.as_str().strip_prefix(METADATA)?;
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, value.clone()))
    });
    let unwrapped: Vec<_> = wrapped.collect();
    headers.extend(unwrapped);
}

/// The answer to another method than `allowed`, as etcd gives it.
pub(super) fn not_allowed(allowed: &'static str) -> Response<Reply> {
    let mut response = Response::new(Reply::of("Method Not Allowed\n".into()));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// How a failure of a call of one message is put.
pub(super) fn error(code: i32, text: &str) -> String {
    let text = quoted(text);
    format!(r#"{{"error":{text},"code":{code},"message":{text}}}"#)
}

/// How the failure of a stream is put.
pub(super) fn stream_error(code: i32, text: &str) -> String {
    let http = http_status(code);
    let reason = http.canonical_reason().unwrap_or_default();
    let http = http.as_u16();
    let text = quoted(text);
    format!(
        "{{\"error\":{{\"grpc_code\":{code},\"code\":{code},\"http_code\":{http},\
         \"http_status\":\"{reason}\",\"message\":{text}}}}}\n"
    )
}

/// HTTP's status for a code of gRPC.
pub(super) fn http_status(code: i32) -> StatusCode {
    match code {
        0 => StatusCode::OK,
        3 | 9 | 11 => StatusCode::BAD_REQUEST,
        4 => StatusCode::GATEWAY_TIMEOUT,
        5 => StatusCode::NOT_FOUND,
        7 => StatusCode::FORBIDDEN,
        8 => StatusCode::TOO_MANY_REQUESTS,
        12 => StatusCode::NOT_IMPLEMENTED,
        14 => StatusCode::SERVICE_UNAVAILABLE,
        16 => StatusCode::UNAUTHORIZED,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

pub(super) fn json(status: StatusCode, text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::of(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
