//! Which requests of browsers are answered.
//!
//! A page from elsewhere can have a browser send requests here, and must not write with them: its requests
//! say from where they come (`Origin`), and are refused. A name that leads a browser here although it is
//! none of this node's (DNS rebinding) would make such a page look as if it came from here; in the clear, so,
//! a request of a browser must call this node by an address or by a name that this node knows. Under TLS
//! the certificate says which names are its own.

use std::net::IpAddr;

use hyper::header::{HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::{Request, Response};

use crate::etcd::status::{Code, Status};
use crate::server::etcd::gateway::{error, http_status, json};
use crate::server::etcd::grpc::Reply;
use crate::server::etcd::options::BrowserOptions;

pub(super) const PAGE: &str = "/console/";
pub(super) const OWN: &str = "/v3/leasehold/";

/// Whether the console answers at this path.
pub(in crate::server::etcd) fn is_at(path: &str) -> bool {
    path.starts_with(PAGE) || path.starts_with(OWN) || path == "/console"
}

/// What a browser says of where a request comes from, and a page cannot change.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The answer to a request that comes from a page of somebody else; `None` to any other.
pub(in crate::server::etcd) fn refused<B>(
    options: &BrowserOptions,
    request: &Request<B>,
) -> Option<Response<Reply>> {
    let host = host(request);
    let status = refusal(options, request.headers(), request.uri().path(), host)?;
    let code = status.code as i32;
    Some(json(http_status(code), error(code, &status.message)))
}

/// What the client calls this node.
fn host<B>(request: &Request<B>) -> &str {
    let named = request.headers().get(HOST);
    let named = named.and_then(|host| host.to_str().ok());
    named
        .or_else(|| {
            request
                .uri()
                .authority()
                .map(|authority| authority.as_str())
        })
        .unwrap_or_default()
}

fn refusal(
    options: &BrowserOptions,
    headers: &HeaderMap,
    path: &str,
    host: &str,
) -> Option<Status> {
    let origin = headers.get(ORIGIN);
    if (origin.is_some() || is_at(path)) && !options.is_secure && !is_known(options, host) {
        return Some(denied(format!(
            "this node is not known as {host:?}: open it by its address, or set advertise.etcd to \
             this name"
        )));
    }
    let origin = origin?;
    let is_same = headers
        .get(FETCH_SITE)
        .is_some_and(|site| site == "same-origin");
    let origin = origin.to_str().unwrap_or_default();
    let place = origin.split_once("://").map_or("", |(_, place)| place);
    if is_same || (!place.is_empty() && place.eq_ignore_ascii_case(host)) {
        return None;
    }
    Some(denied(format!(
        "a page of {origin:?} may not make requests here: open this node's own page at /console/, \
         or make the request from a program"
    )))
}

fn denied(message: String) -> Status {
    Status::with(Code::PermissionDenied, message)
}

/// Whether `host`, which may have a port, is an address, this machine, or a name of this node.
fn is_known(options: &BrowserOptions, host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let is_known = |known: &String| known.eq_ignore_ascii_case(name);
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || options.hosts.iter().any(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(is_secure: bool, path: &str, host: &str, headers: &[(&str, &str)]) -> bool {
        let options = BrowserOptions {
            has_console: true,
            is_secure,
            hosts: vec!["db.example.org".to_owned()],
        };
        let mut request = Request::builder().uri(path).header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        refused(&options, &request.body(()).unwrap()).is_none()
    }

    #[test]
    fn programs_are_not_asked_where_they_come_from() {
        assert!(judged(false, "/v3/kv/put", "anything.example", &[]));
        assert!(judged(false, "/metrics", "", &[]));
    }

    #[test]
    fn a_page_of_somebody_else_makes_no_request() {
        let host = "127.0.0.1:2379";
        let from = |origin| judged(false, "/v3/kv/put", host, &[("origin", origin)]);
        assert!(from("http://127.0.0.1:2379"));
        for other in [
            "http://127.0.0.1:8080",
            "http://evil.example",
            "null",
            "",
            "http://",
            "http://127.0.0.1:2379.evil.example",
        ] {
            assert!(!from(other), "{other}");
        }
    }

    #[test]
    fn a_name_that_only_leads_here_is_none_of_this_nodes() {
        for known in [
            "localhost:1",
            "[::1]:2379",
            "10.0.0.1",
            "DB.example.org:2379",
        ] {
            assert!(judged(false, "/console/", known, &[]), "{known}");
        }
        for other in [
            "evil.example:2379",
            "",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
        ] {
            assert!(!judged(false, "/console/", other, &[]), "{other}");
            assert!(
                !judged(false, "/v3/leasehold/status", other, &[]),
                "{other}"
            );
            let origin = format!("http://{other}");
            let rebound = [
                ("origin", origin.as_str()),
                ("sec-fetch-site", "same-origin"),
            ];
            assert!(!judged(false, "/v3/kv/put", other, &rebound), "{other}");
        }
    }

    #[test]
    fn under_tls_the_certificate_says_who_this_node_is() {
        // Over HTTP/2 this port does not learn what it is called.
        let own = [
            ("origin", "https://any.example"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert!(judged(true, "/v3/kv/put", "e", &own));
        let other = [
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "cross-site"),
        ];
        assert!(!judged(true, "/v3/kv/put", "e", &other));
    }
}
