//! From the path of a request to what answers it.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method as HttpMethod, Request, Response, StatusCode};
use tokio::sync::watch;

use super::body::{RequestBody, drain};
use super::caller::{Caller, PATIENCE, PATIENCE_ENDLESS, PATIENCE_LONG, message_bytes_max};
use super::calls::PortMetrics;
use super::console::{Console, browsers};
use super::counted::counted;
use super::gateway::JsonBody;
use super::grpc::{Reply, failure, is_grpc, refuse_compression};
use super::options::EtcdOptions;
use super::probes::Page;
use super::unary::unary;
use super::unknown::{RANGE_STREAM, unknown};
use super::{
    auth, cluster, console, gateway, health, kv, lease, maintenance, probes, range_stream, recipes,
    snapshot, stream, watches,
};
use crate::etcd::convert;
use crate::etcd::json::Method;
use crate::etcd::status::Status;
use crate::server::session::{LocalClient, Sessions};

const TEXT: &str = "text/plain; charset=utf-8";
/// The format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the requests of a connection share.
#[derive(Clone)]
pub(super) struct Route {
    pub(super) sessions: Arc<Sessions>,
    pub(super) options: Arc<EtcdOptions>,
    pub(super) client: LocalClient,
    pub(super) stopping: watch::Receiver<bool>,
    pub(super) metrics: Arc<PortMetrics>,
    pub(super) console: Arc<Console>,
}

impl Route {
    /// Answers a request: of gRPC, of the gateway, or for a page.
    pub(super) async fn answer(self, request: Request<Incoming>) -> Response<Reply> {
        if is_grpc(request.headers()) {
            let (head, body) = request.into_parts();
            let body = RequestBody::grpc(body, self.metrics.calls.received_bytes());
            return self.call(head.uri.path(), &head.headers, body).await;
        }
        // Apart, as the others that are less frequent: the future of every call has room for the largest.
        Box::pin(self.answer_http(request)).await
    }

    /// Answers a request of the gateway or for a page.
    async fn answer_http(self, request: Request<Incoming>) -> Response<Reply> {
        if let Some(refused) = browsers::refused(&self.options.browsers, &request) {
            drain(request.into_body());
            return refused;
        }
        if self.options.has_gateway && console::is_at(request.uri().path()) {
            let (mut head, body) = request.into_parts();
            drain(body);
            gateway::unwrap_metadata(&mut head.headers);
            let (console, options) = (self.console.clone(), self.options.clone());
            let caller = self.caller(&head.headers, PATIENCE);
            return console::answer(&console, &options.browsers, &head, caller).await;
        }
        let method = Method::at(request.uri().path());
        match method.filter(|_| self.options.has_gateway) {
            Some(method) if *request.method() == HttpMethod::POST => {
                self.translate(method, request).await
            }
            Some(_) => gateway::not_allowed("POST"),
            None => {
                let (head, body) = request.into_parts();
                drain(body);
                self.page(&head).await
            }
        }
    }

    /// Answers a request of the gateway.
    async fn translate(
        self,
        method: &'static Method,
        request: Request<Incoming>,
    ) -> Response<Reply> {
        let (mut head, body) = request.into_parts();
        gateway::unwrap_metadata(&mut head.headers);
        let bytes_max = message_bytes_max(&self.sessions);
        let body = JsonBody::new(body, method, self.client.clone(), bytes_max);
        let body = RequestBody::translated(body, self.metrics.calls.received_bytes());
        let answer = self.call(method.grpc, &head.headers, body).await;
        gateway::translated(answer, method).await
    }

    /// Answers a call of gRPC, and counts it.
    async fn call(self, path: &str, headers: &HeaderMap, body: RequestBody) -> Response<Reply> {
        let begun = self.metrics.calls.begin(path);
        let sent_bytes = Arc::clone(self.metrics.calls.sent_bytes());
        let answer = self.serve(path, headers, body).await;
        counted(begun, &sent_bytes, answer)
    }

    /// Who makes a call with these headers, which takes at most `longest`.
    pub(super) fn caller(self, headers: &HeaderMap, longest: Duration) -> Result<Caller, Status> {
        refuse_compression(headers)?;
        Caller::new(
            self.sessions,
            self.options,
            self.client,
            self.stopping,
            headers,
            longest,
        )
    }

    async fn serve(self, path: &str, headers: &HeaderMap, body: RequestBody) -> Response<Reply> {
        let caller = self.caller(headers, patience(path));
        let caller = match caller {
            Ok(caller) => caller,
            Err(status) => return failure(&status),
        };
        match path {
            "/etcdserverpb.KV/Range" => unary(caller, body, any, kv::range).await,
            "/etcdserverpb.KV/Put" => unary(caller, body, any, kv::put).await,
            _ => Box::pin(serve_other(path, caller, body)).await,
        }
    }

    async fn page(self, request: &Parts) -> Response<Reply> {
        let is_read = matches!(request.method, HttpMethod::GET | HttpMethod::HEAD);
        let found = match Page::at(request.uri.path()) {
            None if is_read => return page(404, TEXT, "404 page not found\n".to_owned()),
            Some(found) if is_read => found,
            Some(_) => return gateway::not_allowed("GET"),
            None => {
                let text = "this port answers gRPC, JSON at etcd's paths, and GET /version, /health, \
                            /livez, /readyz, /metrics and /console/\n";
                return page(404, TEXT, text.to_owned());
            }
        };
        let query = request.uri.query().unwrap_or_default();
        let (status, content, text) = match found {
            Page::Version => probes::version(&self.options),
            Page::Health => probes::health(&self.sessions, query).await,
            Page::Probe(probe) => probes::probe(&self.sessions, probe, query).await,
            Page::Check(probe, name) => probes::check(&self.sessions, probe, name, query).await,
            Page::Metrics => self.metrics_page().await,
        };
        page(status, content, text)
    }

    async fn metrics_page(self) -> (u16, &'static str, String) {
        let metrics = self.metrics.clone();
        let text = tokio::task::spawn_blocking(move || metrics.page()).await;
        match text {
            Ok(text) => (200, METRICS, text),
            Err(_) => (
                500,
                TEXT,
                "the metrics cannot be read: see the log of this node\n".to_owned(),
            ),
        }
    }
}

/// Serves the methods that are called less often than [`Route::serve`] has them.
async fn serve_other(path: &str, caller: Caller, body: RequestBody) -> Response<Reply> {
    match path {
        RANGE_STREAM => range_stream::serve(caller, body),
        "/etcdserverpb.KV/DeleteRange" => unary(caller, body, any, kv::delete_range).await,
        "/etcdserverpb.KV/Txn" => unary(caller, body, convert::check_txn, kv::txn).await,
        "/etcdserverpb.KV/Compact" => unary(caller, body, any, kv::compact).await,
        "/etcdserverpb.Watch/Watch" => watches::serve(caller, body),
        "/etcdserverpb.Lease/LeaseGrant" => unary(caller, body, any, lease::grant).await,
        "/etcdserverpb.Lease/LeaseRevoke" => unary(caller, body, any, lease::revoke).await,
        "/etcdserverpb.Lease/LeaseKeepAlive" => stream::serve(caller, body, lease::keep_alive),
        "/etcdserverpb.Lease/LeaseTimeToLive" => {
            unary(caller, body, any, lease::time_to_live).await
        }
        "/etcdserverpb.Lease/LeaseLeases" | "/etcdserverpb.Lease/Leases" => {
            unary(caller, body, any, lease::leases).await
        }
        "/etcdserverpb.Maintenance/Status" => unary(caller, body, any, maintenance::status).await,
        "/etcdserverpb.Maintenance/Alarm" => unary(caller, body, any, maintenance::alarm).await,
        "/etcdserverpb.Maintenance/HashKV" => unary(caller, body, any, maintenance::hash_kv).await,
        "/etcdserverpb.Maintenance/Hash" => unary(caller, body, any, maintenance::hash).await,
        "/etcdserverpb.Maintenance/MoveLeader" => {
            unary(caller, body, any, maintenance::move_leader).await
        }
        "/etcdserverpb.Maintenance/Defragment" => {
            unary(caller, body, any, maintenance::defragment).await
        }
        "/etcdserverpb.Maintenance/Snapshot" => snapshot::serve(caller, body),
        "/etcdserverpb.Maintenance/Downgrade" => {
            unary(caller, body, any, maintenance::downgrade).await
        }
        path if path.starts_with(cluster::SERVICE) => cluster::call(caller, body, path).await,
        path if path.starts_with(auth::SERVICE) => auth::call(caller, body, path).await,
        "/v3lockpb.Lock/Lock" => unary(caller, body, any, recipes::lock).await,
        "/v3lockpb.Lock/Unlock" => unary(caller, body, any, recipes::unlock).await,
        "/v3electionpb.Election/Campaign" => unary(caller, body, any, recipes::campaign).await,
        "/v3electionpb.Election/Proclaim" => unary(caller, body, any, recipes::proclaim).await,
        "/v3electionpb.Election/Leader" => unary(caller, body, any, recipes::leader).await,
        "/v3electionpb.Election/Observe" => recipes::observe(caller, body),
        "/v3electionpb.Election/Resign" => unary(caller, body, any, recipes::resign).await,
        "/grpc.health.v1.Health/Check" => unary(caller, body, any, health::check).await,
        "/grpc.health.v1.Health/Watch" => health::watch(caller, body),
        path => failure(&unknown(path)),
    }
}

/// Nothing is looked for in a message before it is decoded.
fn any(_: &[u8]) -> Result<(), Status> {
    Ok(())
}

/// The longest that a call of the method at `path` takes.
fn patience(path: &str) -> Duration {
    match path {
        // It may wait until history is gone from the disk.
        "/etcdserverpb.KV/Compact" => PATIENCE_LONG,
        // For those before.
        "/v3lockpb.Lock/Lock" | "/v3electionpb.Election/Campaign" => PATIENCE_ENDLESS,
        _ => PATIENCE,
    }
}

fn page(status: u16, content: &'static str, text: String) -> Response<Reply> {
    let mut response = Response::new(Reply::of(text.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    let content = HeaderValue::from_static(content);
    response.headers_mut().insert(CONTENT_TYPE, content);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<F>(_: impl Fn(Route, Request<Incoming>) -> F) -> usize {
        size_of::<F>()
    }

    /// Every call has one of its own.
    #[test]
    fn the_future_of_a_call_has_no_room_for_what_is_rare() {
        let bytes = bytes(Route::answer);
        assert!(bytes <= 5120, "{bytes}");
    }
}
