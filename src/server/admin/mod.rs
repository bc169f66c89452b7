//! Probes and metrics over plain HTTP, for clients without QUIC: orchestrators, Prometheus, and `curl`.
//!
//! `/livez` checks that the process runs, and never depends on leaders or quorum: otherwise a network
//! partition would make an orchestrator restart a whole cluster. `/startupz` reports the progress of a
//! start. `/readyz` checks that this node can do its work now and has caught up with the others: a rolling
//! restart waits for it before the next node. None of these changes anything; the requests that do are in
//! `manage`, and served to the node's own machine alone, as are those of `profile`.
//!
//! axum's own server bounds neither connections nor how slowly a request may arrive, so hyper serves the
//! connections directly, with a limit on the size of a header and the time it may take.
//! `connection_slots` decides which connections are kept.

mod connection_slots;
mod download;
pub(crate) mod log_control;
pub(crate) mod manage;
pub(crate) mod probes;
pub(crate) mod profile;
pub(crate) mod service;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use self::connection_slots::{ConnectionSlots, RequestSeen, Slot};
pub use crate::server::status::checks::Check;
use crate::server::status::startup::Startup;
use crate::version;
use crate::wire::PROTOCOL_VERSIONS;

/// An answer that may take a moment.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What the admin server asks of the node, on every request. Only [`AdminSource::ready`] may wait.
pub trait AdminSource: Send + Sync + 'static {
    /// Whether the process turns: its threads, and nothing about other nodes.
    fn live(&self) -> Vec<Check>;
    /// Whether the node can do its work now. May ask the leader, for a second at most.
    fn ready(self: Arc<Self>) -> Answer<Vec<Check>>;
    /// What else an operator should know; it makes no check fail.
    fn warnings(&self) -> Vec<String>;
    /// The alarm NOSPACE, while it is raised.
    fn no_space(&self) -> Option<String>;
    /// How far its start is.
    fn startup(&self) -> Startup;
    /// The version that the cluster has agreed on; `None` while this node cannot know.
    fn cluster_version(&self) -> Option<u16>;
    /// All metrics as Prometheus text; `None` while there are none, because the node is starting: zeros
    /// would be taken for facts. Called on a thread that may block.
    fn render_metrics(&self) -> Option<String>;
}

/// Why the admin server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another process uses the port.
    #[error(
        "{setting} = {address}: TCP port {} is in use: stop the process that uses it (`ss -ltnp` \
         shows it), or choose another port with --{setting}",
        address.port()
    )]
    PortInUse {
        /// The setting that names the address.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be bound for another reason.
    #[error("{setting} = {address}: cannot listen there: {source}")]
    Bind {
        /// The setting that names the address.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
}

/// How much an HTTP client may ask of us.
#[derive(Clone, Copy, Debug)]
struct HttpLimits {
    /// Connections served at a time. One that has sent no request is closed for the next; when all have,
    /// further ones wait in the system's queue.
    connections: usize,
    /// A request's line and headers, in bytes.
    header_bytes: usize,
    /// How long they may take to arrive, from the first moment of the connection.
    header_time: Duration,
    /// How long a connection may last, from its first moment to the last byte of its one answer:
    /// a client that reads nothing must not keep its slot. With an answer that comes in parts it
    /// may last so long after each.
    connection_time: Duration,
    /// How long a request under way may still take when the server stops.
    stop_time: Duration,
}

const LIMITS: HttpLimits = HttpLimits {
    connections: 64,
    header_bytes: 16 << 10,
    header_time: Duration::from_secs(5),
    connection_time: Duration::from_secs(30),
    stop_time: Duration::from_secs(2),
};

/// A request's body, in bytes: only a log filter travels in one.
const BODY_BYTES_MAX: usize = 4 << 10;

/// The progress of a response that is sent in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<AtomicBool>);

impl Progress {
    pub(crate) fn made(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether there was any since the last call.
    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// The pages of a server.
#[derive(Debug)]
pub struct Pages {
    router: Router,
    paths: Vec<&'static str>,
}

impl Pages {
    /// Probes, metrics and versions, as `source` knows them.
    pub fn probes(source: Arc<dyn AdminSource>) -> Self {
        let router = Router::new()
            .route("/livez", get(livez))
            .route("/livez/{check}", get(one_of_livez))
            .route("/readyz", get(readyz))
            .route("/readyz/{check}", get(one_of_readyz))
            .route("/startupz", get(startupz))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .route("/version", get(version))
            .with_state(source);
        Self {
            router,
            paths: vec![
                "/livez",
                "/readyz",
                "/startupz",
                "/health",
                "/metrics",
                "/version",
            ],
        }
    }

    /// These and others.
    pub(crate) fn and(mut self, router: Router, paths: &[&'static str]) -> Self {
        self.router = self.router.merge(router);
        self.paths.extend(paths);
        self
    }

    fn into_router(self) -> Router {
        let paths = self.paths.join(" ");
        self.router
            .fallback(async move || {
                let body = format!("not found: use one of {paths}\n");
                text(StatusCode::NOT_FOUND, body)
            })
            .method_not_allowed_fallback(async || {
                let body = "method not allowed: the header Allow names the supported one\n";
                text(StatusCode::METHOD_NOT_ALLOWED, body.to_owned())
            })
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
    }
}

/// A running admin server. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl AdminServer {
    /// Binds `address`, which `setting` gave, and serves `pages` there. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`AdminError`], when the address cannot be bound.
    ///
    /// # Cancel safety
    /// A cancelled start leaves nothing behind.
    pub async fn start(
        setting: &'static str,
        address: SocketAddr,
        pages: Pages,
    ) -> Result<Self, AdminError> {
        Self::start_with(setting, address, pages, LIMITS).await
    }

    /// The address bound; its port is the system's choice where 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections, lets requests under way end (for two seconds at most) and
    /// returns.
    ///
    /// # Cancel safety
    /// Cancelled, the server stops all the same.
    pub async fn shutdown(self) {
        self.stop.send_replace(true);
        // The task ends by itself; a panic in it has been reported where it happened.
        let _ = self.task.await;
    }

    async fn start_with(
        setting: &'static str,
        address: SocketAddr,
        pages: Pages,
        limits: HttpLimits,
    ) -> Result<Self, AdminError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => AdminError::PortInUse { setting, address },
            _ => AdminError::Bind {
                setting,
                address,
                source,
            },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (stop, stopping) = watch::channel(false);
        let task = tokio::spawn(serve(listener, pages.into_router(), limits, stopping));
        Ok(Self {
            address: bound,
            stop,
            task,
        })
    }
}

async fn serve(
    listener: TcpListener,
    router: Router,
    limits: HttpLimits,
    mut stopping: watch::Receiver<bool>,
) {
    let slots = ConnectionSlots::new(limits.connections);
    let for_connections = stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut stopping) => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => {
                    let slot = tokio::select! {
                        () = stopped(&mut stopping) => break,
                        slot = slots.take(address.ip()) => slot,
                    };
                    let Some(slot) = slot else {
                        // Its address holds all it may, and must not keep the others waiting.
                        continue;
                    };
                    let progress = Progress::default();
                    let router = router.clone().layer(Extension(progress.clone()));
                    let stopping = for_connections.clone();
                    let connection = serve_one(stream, router, slot.request_seen(), limits, stopping);
                    let time = limits.connection_time;
                    connections.spawn(serve_within(slot, connection, progress, time));
                }
                // Out of file descriptors, or a connection that was gone at once: the next try
                // may do better, but must not spin.
                Err(error) => {
                    tracing::warn!(%error, "the admin server cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // Requests that take longer are aborted when the set is dropped.
    let _ = tokio::time::timeout(limits.stop_time, ended).await;
}

/// Serves a connection until it is evicted or makes no progress for `time`.
async fn serve_within(
    mut slot: Slot,
    connection: impl Future<Output = ()>,
    progress: Progress,
    time: Duration,
) {
    let served = async move {
        let mut connection = std::pin::pin!(connection);
        // What a client does wrong, or too slowly, is of no interest to us.
        while tokio::time::timeout(time, &mut connection).await.is_err() && progress.take() {}
    };
    tokio::select! {
        () = served => {}
        () = slot.lost() => {}
    }
}

async fn serve_one(
    stream: TcpStream,
    router: Router,
    request_seen: RequestSeen,
    limits: HttpLimits,
    mut stopping: watch::Receiver<bool>,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        request_seen.set();
        router.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(limits.header_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stopped(&mut stopping) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// Returns once the server is to stop.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which stops the server as well.
    let _ = stopping.wait_for(|stop| *stop).await;
}

type Source = State<Arc<dyn AdminSource>>;

async fn livez(State(source): Source, RawQuery(query): RawQuery) -> Response {
    probe("livez", &source.live(), &[], query.as_deref())
}

async fn readyz(State(source): Source, RawQuery(query): RawQuery) -> Response {
    let checks = source.clone().ready().await;
    probe("readyz", &checks, &source.warnings(), query.as_deref())
}

async fn one_of_livez(State(source): Source, Path(check): Path<String>) -> Response {
    probe_one("livez", source.live(), &check)
}

async fn one_of_readyz(State(source): Source, Path(check): Path<String>) -> Response {
    probe_one("readyz", source.ready().await, &check)
}

async fn startupz(State(source): Source) -> Response {
    let startup = source.startup();
    let status = match startup {
        Startup::Serving => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, axum::Json(startup.document())).into_response()
}

/// The query of a probe.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProbeQuery<'a> {
    /// List every check.
    verbose: bool,
    /// Checks that do not count.
    exclude: Vec<&'a str>,
}

impl<'a> ProbeQuery<'a> {
    fn of(text: Option<&'a str>) -> Self {
        let mut query = Self::default();
        for part in text.unwrap_or_default().split('&') {
            match part.split_once('=').unwrap_or((part, "")) {
                ("verbose", _) => query.verbose = true,
                ("exclude", check) => query.exclude.push(check),
                _ => {}
            }
        }
        query
    }

    /// The refusal of an excluded name that is no check. A node that is starting does not know all of
    /// its checks yet, and answers that it is starting.
    fn refusal(&self, probe: &str, checks: &[Check]) -> Option<Response> {
        let is_known = |name: &str| checks.iter().any(|check| check.name == name);
        let starts = |check: &Check| check.name == "started" && !check.ok;
        let unknown = self.exclude.iter().find(|name| !is_known(name))?;
        if checks.iter().any(starts) {
            return None;
        }
        let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        Some(not_excludable(probe, unknown, &names))
    }
}

/// The refusal of an excluded name that does not exist.
fn not_excludable(probe: &str, unknown: &str, known: &[&str]) -> Response {
    let body = format!(
        "{probe} has no {unknown:?} to exclude: choose from {}\n",
        known.join(" ")
    );
    text(StatusCode::BAD_REQUEST, body)
}

/// A line per check where one failed or the caller wants to know, else a short `ok`.
fn probe(name: &str, checks: &[Check], warnings: &[String], query: Option<&str>) -> Response {
    let query = ProbeQuery::of(query);
    if let Some(refusal) = query.refusal(name, checks) {
        return refusal;
    }
    let is_excluded = |check: &Check| query.exclude.contains(&check.name);
    let passed = checks.iter().all(|check| check.ok || is_excluded(check));
    if passed && !query.verbose {
        return text(StatusCode::OK, "ok\n".to_owned());
    }
    let mut lines = String::new();
    for check in checks {
        lines += &match is_excluded(check) {
            true => format!("[ ]{} excluded\n", check.name),
            false => check.line(),
        };
    }
    // What a check found is not said twice.
    let found = |warning: &String| checks.iter().any(|check| check.detail == *warning);
    for warning in warnings.iter().filter(|warning| !found(warning)) {
        lines += &format!("[!]{warning}\n");
    }
    let (status, verdict) = match passed {
        true => (StatusCode::OK, "passed"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    text(status, format!("{lines}{name} check {verdict}\n"))
}

/// The line of one check.
fn probe_one(name: &str, checks: Vec<Check>, wanted: &str) -> Response {
    let Some(check) = checks.iter().find(|check| check.name == wanted) else {
        let names: Vec<&str> = checks.iter().map(|check| check.name).collect();
        let names = names.join(" ");
        let body = format!("{name} has no such check: use one of {names}\n");
        return text(StatusCode::NOT_FOUND, body);
    };
    match check.ok {
        true => text(StatusCode::OK, "ok\n".to_owned()),
        false => text(StatusCode::SERVICE_UNAVAILABLE, check.line()),
    }
}

/// The alarms that a request to `/health` may exclude, by etcd's names.
const ALARMS: [&str; 2] = [NO_SPACE, CORRUPT];
const NO_SPACE: &str = "NOSPACE";
const CORRUPT: &str = "CORRUPT";

/// As etcd answers it, for those who ask etcd: whether no alarm is raised that is not excluded, and a
/// read would be served here, with `serializable=true` one that may be old.
async fn health(State(source): Source, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let may_be_old = query.split('&').any(|part| part == "serializable=true");
    let excluded = ProbeQuery::of(Some(&query)).exclude;
    if let Some(unknown) = excluded.iter().find(|alarm| !ALARMS.contains(alarm)) {
        return not_excludable("health", unknown, &ALARMS);
    }
    let needed: &[&str] = match may_be_old {
        true => &[
            "started",
            "storage_writable",
            "data_corruption",
            "serializable_read",
        ],
        false => &[
            "started",
            "storage_writable",
            "data_corruption",
            "linearizable_read",
        ],
    };
    let counts = |alarm: &str| !excluded.contains(&alarm);
    let no_space = source.no_space().filter(|_| counts(NO_SPACE));
    let checks = source.ready().await;
    let is_needed = |check: &&Check| {
        needed.contains(&check.name) && (check.name != "data_corruption" || counts(CORRUPT))
    };
    let failed = checks
        .iter()
        .filter(is_needed)
        .find(|check| !check.ok)
        .map(|check| check.detail.clone());
    let (status, health, reason) = match no_space.or(failed) {
        None => (StatusCode::OK, "true", String::new()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, "false", reason),
    };
    let document = serde_json::json!({"health": health, "reason": reason});
    (status, axum::Json(document)).into_response()
}

async fn metrics(State(source): Source) -> Response {
    // Rendering takes milliseconds, which the threads that serve requests do not have.
    match tokio::task::spawn_blocking(move || source.render_metrics()).await {
        Ok(None) => {
            let body = "the node is starting: /startupz shows its progress\n";
            text(StatusCode::SERVICE_UNAVAILABLE, body.to_owned())
        }
        Ok(Some(rendered)) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], rendered).into_response()
        }
        Err(error) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the metrics could not be rendered: {error}\n"),
        ),
    }
}

/// What this binary was made from, and what it and its cluster can read.
async fn version(State(source): Source) -> Response {
    axum::Json(serde_json::json!({
        "leasehold": version::VERSION,
        "commit": version::COMMIT,
        "rustc": version::RUSTC,
        "cluster": source.cluster_version(),
        "cluster_supported": {"oldest": PROTOCOL_VERSIONS.oldest, "newest": PROTOCOL_VERSIONS.newest},
        "storage": crate::kv::STATE_FORMAT,
    }))
    .into_response()
}

fn text(status: StatusCode, body: String) -> Response {
    let kind = "text/plain; charset=utf-8";
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A node that is as well as it is told to be.
    #[derive(Default)]
    struct Node {
        leaderless: AtomicBool,
        full: AtomicBool,
        starting: AtomicBool,
        panics: AtomicBool,
        warns: AtomicBool,
    }

    impl AdminSource for Node {
        fn live(&self) -> Vec<Check> {
            vec![Check::ok("driver")]
        }

        fn ready(self: Arc<Self>) -> Answer<Vec<Check>> {
            let leader = match self.leaderless.load(Ordering::SeqCst) {
                true => Check::failed("leader_known", "no leader for 3s"),
                false => Check::ok("leader_known"),
            };
            if self.starting.load(Ordering::SeqCst) {
                return Box::pin(async { vec![Check::failed("started", "it starts")] });
            }
            Box::pin(async { vec![Check::ok("storage_writable"), leader] })
        }

        fn warnings(&self) -> Vec<String> {
            let all = match self.warns.load(Ordering::SeqCst) {
                true => &["no leader for 3s", "n3 has not answered"][..],
                false => &[],
            };
            all.iter().map(|warning| (*warning).to_owned()).collect()
        }

        fn no_space(&self) -> Option<String> {
            let is_full = self.full.load(Ordering::SeqCst);
            is_full.then(|| "alarm NOSPACE: no room".to_owned())
        }

        fn startup(&self) -> Startup {
            match self.leaderless.load(Ordering::SeqCst) {
                true => Startup::Replaying { done: 8, total: 9 },
                false => Startup::Serving,
            }
        }

        fn cluster_version(&self) -> Option<u16> {
            Some(1)
        }

        fn render_metrics(&self) -> Option<String> {
            assert!(!self.panics.load(Ordering::SeqCst), "told to panic");
            Some("# TYPE up gauge\nup 1\n".to_owned())
        }
    }

    fn pages() -> Pages {
        Pages::probes(Arc::<Node>::default())
    }

    async fn start(node: &Arc<Node>) -> AdminServer {
        let pages = Pages::probes(Arc::clone(node) as Arc<dyn AdminSource>);
        let any = "127.0.0.1:0".parse().unwrap();
        AdminServer::start("listen.admin", any, pages)
            .await
            .unwrap()
    }

    /// Sends these bytes and reads until the other side closes.
    async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is as good as an end.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    /// Status, content type and body of an answer.
    async fn ask(server: &AdminServer, method: &str, path: &str) -> (u16, String, String) {
        let request = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let answer = exchange(server.address(), request.as_bytes()).await;
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let kind = head
            .lines()
            .find_map(|line| line.strip_prefix("content-type: "))
            .unwrap_or_default();
        (status, kind.to_owned(), body.to_owned())
    }

    #[tokio::test]
    async fn a_healthy_node_says_ok_and_in_detail_when_asked() {
        let server = start(&Arc::default()).await;
        let plain = "text/plain; charset=utf-8".to_owned();
        let ok = (200, plain.clone(), "ok\n".to_owned());
        assert_eq!(ask(&server, "GET", "/livez").await, ok);
        assert_eq!(ask(&server, "GET", "/readyz").await, ok);
        for path in ["/readyz?verbose", "/readyz?x=1&verbose=true"] {
            let lines = "[+]storage_writable ok\n[+]leader_known ok\nreadyz check passed\n";
            let expected = (200, plain.clone(), lines.to_owned());
            assert_eq!(ask(&server, "GET", path).await, expected, "{path}");
        }
    }

    #[tokio::test]
    async fn a_node_without_a_leader_is_alive_but_not_ready_and_says_why() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        node.leaderless.store(true, Ordering::SeqCst);
        let (status, _, body) = ask(&server, "GET", "/readyz").await;
        assert_eq!(status, 503);
        assert_eq!(
            body,
            "[+]storage_writable ok\n[-]leader_known failed: no leader for 3s\nreadyz check failed\n"
        );
        assert_eq!(ask(&server, "GET", "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn warnings_are_listed_beside_the_checks_and_fail_none() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        node.warns.store(true, Ordering::SeqCst);
        assert_eq!(ask(&server, "GET", "/readyz").await.2, "ok\n");
        let (status, _, body) = ask(&server, "GET", "/readyz?verbose").await;
        assert_eq!(
            (status, body.as_str()),
            (
                200,
                "[+]storage_writable ok\n[+]leader_known ok\n[!]no leader for 3s\n[!]n3 has not \
                 answered\nreadyz check passed\n"
            )
        );
        node.leaderless.store(true, Ordering::SeqCst);
        let (_, _, body) = ask(&server, "GET", "/readyz").await;
        assert_eq!(
            body,
            "[+]storage_writable ok\n[-]leader_known failed: no leader for 3s\n[!]n3 has not \
             answered\nreadyz check failed\n"
        );
        let (_, _, body) = ask(&server, "GET", "/livez?verbose").await;
        assert_eq!(body, "[+]driver ok\nlivez check passed\n");
    }

    #[tokio::test]
    async fn each_check_has_a_path_of_its_own_and_can_be_left_out() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        node.leaderless.store(true, Ordering::SeqCst);
        assert_eq!(ask(&server, "GET", "/readyz/storage_writable").await.0, 200);
        let (status, _, body) = ask(&server, "GET", "/readyz/leader_known").await;
        assert_eq!(
            (status, body.as_str()),
            (503, "[-]leader_known failed: no leader for 3s\n")
        );
        let (status, _, body) = ask(&server, "GET", "/readyz/nonsense").await;
        assert_eq!(status, 404);
        assert_eq!(
            body,
            "readyz has no such check: use one of storage_writable leader_known\n"
        );
        assert_eq!(ask(&server, "GET", "/livez/driver").await.0, 200);
        let without = "/readyz?exclude=leader_known";
        assert_eq!(ask(&server, "GET", without).await.0, 200);
        let (_, _, body) = ask(&server, "GET", "/readyz?exclude=leader_known&verbose").await;
        assert_eq!(
            body,
            "[+]storage_writable ok\n[ ]leader_known excluded\nreadyz check passed\n"
        );
        let (status, _, body) = ask(&server, "GET", "/readyz?exclude=leader").await;
        assert_eq!(status, 400, "a part of a name leaves nothing out");
        assert_eq!(
            body,
            "readyz has no \"leader\" to exclude: choose from storage_writable leader_known\n"
        );
        assert_eq!(ask(&server, "GET", "/livez?exclude=driver").await.0, 200);
        assert_eq!(ask(&server, "GET", "/livez?exclude=nobody").await.0, 400);
        // Before it has looked, it cannot know.
        node.starting.store(true, Ordering::SeqCst);
        assert_eq!(ask(&server, "GET", without).await.0, 503);
        assert_eq!(ask(&server, "GET", "/readyz?exclude=leader").await.0, 503);
    }

    #[tokio::test]
    async fn health_is_told_of_alarms_that_are_not_excluded() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        let well = (200, r#"{"health":"true","reason":""}"#);
        let full = (
            503,
            r#"{"health":"false","reason":"alarm NOSPACE: no room"}"#,
        );
        for (is_full, path, expected) in [
            (false, "/health", well),
            (true, "/health", full),
            (true, "/health?exclude=CORRUPT", full),
            (true, "/health?serializable=true", full),
            (true, "/health?exclude=NOSPACE", well),
            (true, "/health?serializable=true&exclude=NOSPACE", well),
            (true, "/health?exclude=CORRUPT&exclude=NOSPACE", well),
        ] {
            node.full.store(is_full, Ordering::SeqCst);
            let (status, _, body) = ask(&server, "GET", path).await;
            assert_eq!((status, body.as_str()), expected, "{path}");
        }
        for typo in ["NO_SPACE", "nospace", "", "leader_known"] {
            let path = format!("/health?exclude={typo}");
            let (status, _, body) = ask(&server, "GET", &path).await;
            assert_eq!(status, 400, "{path}");
            let said = format!("health has no {typo:?} to exclude: choose from NOSPACE CORRUPT\n");
            assert_eq!(body, said);
        }
    }

    #[tokio::test]
    async fn a_start_tells_how_far_it_is() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        node.leaderless.store(true, Ordering::SeqCst);
        let (status, kind, body) = ask(&server, "GET", "/startupz").await;
        assert_eq!((status, kind.as_str()), (503, "application/json"));
        assert_eq!(body, r#"{"done":8,"phase":"replaying","total":9}"#);
        node.leaderless.store(false, Ordering::SeqCst);
        let (status, _, body) = ask(&server, "GET", "/startupz").await;
        assert_eq!((status, body.as_str()), (200, r#"{"phase":"serving"}"#));
    }

    #[tokio::test]
    async fn metrics_have_the_content_type_that_prometheus_insists_on() {
        let node = Arc::<Node>::default();
        let server = start(&node).await;
        let expected = (
            200,
            "text/plain; version=0.0.4; charset=utf-8".to_owned(),
            "# TYPE up gauge\nup 1\n".to_owned(),
        );
        assert_eq!(ask(&server, "GET", "/metrics").await, expected);
        node.panics.store(true, Ordering::SeqCst);
        assert_eq!(ask(&server, "GET", "/metrics").await.0, 500);
        node.panics.store(false, Ordering::SeqCst);
        assert_eq!(
            ask(&server, "GET", "/metrics").await,
            expected,
            "it lives on"
        );
    }

    #[tokio::test]
    async fn the_version_is_json_and_an_unknown_path_is_told_what_there_is() {
        let server = start(&Arc::default()).await;
        let (status, kind, body) = ask(&server, "GET", "/version").await;
        assert_eq!((status, kind.as_str()), (200, "application/json"));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["leasehold"], version::VERSION);
        let (status, _, body) = ask(&server, "GET", "/admin").await;
        assert_eq!(status, 404);
        assert_eq!(
            body,
            "not found: use one of /livez /readyz /startupz /health /metrics /version\n"
        );
        let (status, _, body) = ask(&server, "POST", "/livez").await;
        assert_eq!(status, 405);
        assert!(body.starts_with("method not allowed"), "{body}");
    }

    #[tokio::test]
    async fn a_header_that_is_too_large_or_no_http_is_refused_and_harms_nobody() {
        let server = start(&Arc::default()).await;
        let large = format!("GET /livez HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(20 << 10));
        let answer = exchange(server.address(), large.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431"),
            "{answer}"
        );
        let answer = exchange(server.address(), b"\x16\x03\x01 not http\r\n\r\n").await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
            "{answer}"
        );
        assert_eq!(ask(&server, "GET", "/livez").await.0, 200);
    }

    async fn start_within(limits: HttpLimits) -> AdminServer {
        let any = "127.0.0.1:0".parse().unwrap();
        let server = AdminServer::start_with("listen.admin", any, pages(), limits);
        server.await.unwrap()
    }

    #[tokio::test]
    async fn a_request_that_never_comes_is_cut_off_and_gives_its_place_back() {
        let limits = HttpLimits {
            connections: 1,
            header_time: Duration::from_millis(20),
            connection_time: Duration::from_secs(3_600),
            ..LIMITS
        };
        let server = start_within(limits).await;
        let silent = exchange(server.address(), b"GET /livez HT");
        let silent = tokio::time::timeout(Duration::from_secs(60), silent).await;
        assert!(!silent.expect("it is cut off").contains("200 OK"));
        assert_eq!(ask(&server, "GET", "/livez").await.0, 200);
    }

    #[tokio::test]
    async fn connections_that_ask_for_nothing_keep_no_probe_waiting() {
        let limits = HttpLimits {
            connections: 2,
            header_time: Duration::from_secs(3_600),
            connection_time: Duration::from_secs(3_600),
            ..LIMITS
        };
        let server = start_within(limits).await;
        let mut silent = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            stream.write_all(b"GET /livez HT").await.unwrap();
            silent.push(stream);
        }
        let asked = ask(&server, "GET", "/livez");
        let asked = tokio::time::timeout(Duration::from_secs(60), asked).await;
        assert_eq!(asked.expect("somebody makes room").0, 200);
        // It was the older one, and the younger may still go on.
        let mut answer = Vec::new();
        let end = silent[0].read_to_end(&mut answer);
        let end = tokio::time::timeout(Duration::from_secs(60), end).await;
        let _ = end.expect("it is cut off");
        assert!(answer.is_empty());
        let rest = b"TP/1.1\r\nhost: x\r\n\r\n";
        silent[1].write_all(rest).await.unwrap();
        silent[1].read_to_end(&mut answer).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 OK"));
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_what_to_do() {
        let first = start(&Arc::default()).await;
        let address = first.address();
        let second = AdminServer::start("listen.admin", address, pages()).await;
        let port = address.port();
        assert_eq!(
            second.unwrap_err().to_string(),
            format!(
                "listen.admin = 127.0.0.1:{port}: TCP port {port} is in use: stop the process that \
                 uses it (`ss -ltnp` shows it), or choose another port with --listen.admin"
            )
        );
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_answer_is_cut_off() {
        struct Talkative;
        impl AdminSource for Talkative {
            fn no_space(&self) -> Option<String> {
                None
            }
            fn warnings(&self) -> Vec<String> {
                Vec::new()
            }
            fn live(&self) -> Vec<Check> {
                Vec::new()
            }
            fn ready(self: Arc<Self>) -> Answer<Vec<Check>> {
                Box::pin(async { Vec::new() })
            }
            fn startup(&self) -> Startup {
                Startup::Opening
            }
            fn cluster_version(&self) -> Option<u16> {
                None
            }
            fn render_metrics(&self) -> Option<String> {
                // More than the sockets in between will hold.
                Some("x".repeat(64 << 20))
            }
        }
        let limits = HttpLimits {
            connections: 1,
            connection_time: Duration::from_millis(500),
            ..LIMITS
        };
        let any = "127.0.0.1:0".parse().unwrap();
        let server = AdminServer::start_with(
            "listen.admin",
            any,
            Pages::probes(Arc::new(Talkative)),
            limits,
        )
        .await
        .unwrap();
        let mut deaf = TcpStream::connect(server.address()).await.unwrap();
        deaf.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        // The only place is taken, and is free again once the deaf one was cut off.
        let next = ask(&server, "GET", "/livez");
        let next = tokio::time::timeout(Duration::from_secs(60), next).await;
        assert_eq!(next.expect("the place is given back").0, 200);
    }

    #[tokio::test]
    async fn after_shutdown_the_port_is_free_and_waiting_connections_are_closed() {
        let limits = HttpLimits {
            header_time: Duration::from_secs(3_600),
            connection_time: Duration::from_secs(3_600),
            stop_time: Duration::from_millis(20),
            ..LIMITS
        };
        let server = start_within(limits).await;
        let address = server.address();
        let mut silent = TcpStream::connect(address).await.unwrap();
        silent.write_all(b"GET /liv").await.unwrap();
        // Connections are accepted in order: once this one is served, the silent one is held.
        assert_eq!(ask(&server, "GET", "/livez").await.0, 200);
        let stopped = tokio::time::timeout(Duration::from_secs(60), server.shutdown()).await;
        stopped.expect("nobody can keep the server from stopping");
        let mut rest = Vec::new();
        let _ = silent.read_to_end(&mut rest).await;
        assert!(TcpStream::connect(address).await.is_err());
        TcpListener::bind(address)
            .await
            .expect("the port is free again");
    }
}
