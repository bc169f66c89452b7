//! The TCP port: accepts connections, bounds how many there are, and serves HTTP on each.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::authority::AnyAuthority;
use super::caller::now;
use super::calls::{Calls, PortMetrics, Scrape};
use super::certificates::EtcdCertificates;
use super::console::Console;
use super::grpc::Reply;
use super::options::EtcdOptions;
use super::router::Route;
use super::tls::fault;
use super::work::{BegunCalls, RESETS_MAX, Turn, Work};
use crate::server::session::Sessions;
use crate::sync::Mutex;
use crate::transport::{Admission, is_worth_saying};

/// How long a client may take to say the first word, or for its handshake.
const GREETING: Duration = Duration::from_secs(10);
/// How long a connection of HTTP/1.1 may be without a request. Clients keep it for the next one, and some
/// have one every ten seconds.
const IDLE: Duration = Duration::from_secs(600);
/// How long the port rests when the system gives it no connection, for want of files for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// At most once in so long is it said that a connection was one too many: clients cause it.
const FULL_SAID_EVERY: Duration = Duration::from_secs(60);
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// A client that is silent for so long is asked whether it is there, and has so long to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(60);
const KEEP_ALIVE_PATIENCE: Duration = Duration::from_secs(20);

/// The port, bound and not served yet.
pub(crate) struct EtcdListener {
    listener: TcpListener,
    address: SocketAddr,
    certificates: Option<Arc<EtcdCertificates>>,
    options: Arc<EtcdOptions>,
    admission: Admission,
}

impl EtcdListener {
    /// Binds the port. Without certificates it is served in the clear.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn bind(
        address: SocketAddr,
        certificates: Option<Arc<EtcdCertificates>>,
        options: EtcdOptions,
        admission: Admission,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            certificates,
            options: Arc::new(options),
            admission,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it is served under TLS to clients that need no certificate.
    pub(crate) fn takes_unnamed_clients(&self) -> bool {
        let certificates = self.certificates.as_ref();
        certificates.is_some_and(|certificates| !certificates.must_be_shown())
    }

    /// Serves connections until `stopping` says so or is dropped; then lets those that are open finish
    /// what they do.
    pub(crate) async fn serve(
        self,
        sessions: Arc<Sessions>,
        scrape: Scrape,
        mut stopping: watch::Receiver<bool>,
    ) {
        let metrics = Arc::new(PortMetrics {
            calls: Calls::default(),
            scrape,
        });
        let console = Arc::new(Console::new(
            sessions.clone(),
            self.address.ip().is_loopback(),
        ));
        let seats = Arc::new(Seats::new(self.admission));
        let mut refusals = Refusals::default();
        let mut connections = JoinSet::new();
        let mut tending = JoinSet::new();
        if let Some(certificates) = self.certificates.clone() {
            tending.spawn(async move { certificates.look_after().await });
        }
        let stop = stopping.clone();
        loop {
            let accepted = tokio::select! {
                // An error means that the sender is gone, which is a stop too.
                _ = stopping.wait_for(|stop| *stop) => break,
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let Ok((stream, address)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // One connection too many is closed at once.
            let seat = match seats.take(address.ip()) {
                Ok(seat) => seat,
                Err(full) => {
                    refusals.add(address, full);
                    continue;
                }
            };
            let connection = Connection {
                sessions: sessions.clone(),
                options: self.options.clone(),
                certificates: self.certificates.clone(),
                stopping: stop.clone(),
                metrics: metrics.clone(),
                console: console.clone(),
                address,
            };
            connections.spawn(async move {
                connection.serve(stream).await;
                drop(seat);
            });
        }
        drop(self.listener);
        while connections.join_next().await.is_some() {}
    }
}

/// One connection.
struct Connection {
    sessions: Arc<Sessions>,
    options: Arc<EtcdOptions>,
    certificates: Option<Arc<EtcdCertificates>>,
    stopping: watch::Receiver<bool>,
    metrics: Arc<PortMetrics>,
    console: Arc<Console>,
    address: SocketAddr,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Small answers leave at once.
        let _ = stream.set_nodelay(true);
        let Some(certificates) = self.certificates.clone() else {
            let spoke = tokio::time::timeout(GREETING, stream.peek(&mut [0])).await;
            if matches!(spoke, Ok(Ok(count)) if count > 0) {
                self.serve_http("", stream).await;
            }
            return;
        };
        let tls = certificates.current();
        match tokio::time::timeout(GREETING, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let name = stream.client_name().unwrap_or_default().to_owned();
                self.serve_http(&name, stream).await;
            }
            Ok(Err(error)) => self.tell(&certificates, &error),
            Err(_) => {}
        }
    }

    /// Says why a client was refused. One whose name may not connect learns no more than that it is over: its
    /// handshake went well.
    fn tell(&self, certificates: &EtcdCertificates, error: &io::Error) {
        let address = self.address;
        let reason = match error.kind() {
            io::ErrorKind::PermissionDenied => Some(error.to_string()),
            _ => fault(error),
        };
        match reason {
            Some(reason) if is_worth_saying(certificates.count_refusal()) => {
                tracing::warn!(%address, reason, "client of the etcd port refused");
            }
            _ => tracing::debug!(%address, %error, "handshake on the etcd port failed"),
        }
    }

    async fn serve_http(
        mut self,
        name: &str,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        let (client, session) = self.sessions.connect_local(name, self.address);
        let streams_max = self.options.streams_max;
        let route = Route {
            client,
            sessions: self.sessions,
            options: self.options,
            stopping: self.stopping.clone(),
            metrics: self.metrics,
            console: self.console,
        };
        let service = service_fn(move |request: Request<Incoming>| {
            // What is large is moved once, and hyper moves where it is.
            let answer = Box::pin(route.clone().answer(request));
            async move { Ok::<Response<Reply>, Infallible>(answer.await) }
        });
        let begun = BegunCalls::default();
        let builder = http(begun.clone(), streams_max);
        let turn = Turn::default();
        let stream = AnyAuthority::new(stream, turn.clone());
        let mut work = Work::new(turn, begun, session);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        // How a connection ends is no news.
        tokio::select! {
            _ = work.until(connection.as_mut()) => return,
            _ = self.stopping.wait_for(|stop| *stop) => {}
        }
        connection.as_mut().graceful_shutdown();
        let _ = work.until(connection).await;
    }
}

/// HTTP/2 with etcd's limits, and HTTP/1.1 for the gateway and for pages.
fn http(begun: BegunCalls, streams_max: u32) -> auto::Builder<BegunCalls> {
    let mut builder = auto::Builder::new(begun);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams_max)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_PATIENCE);
    builder
}

/// How many connections there are, in all and from each address.
struct Seats {
    admission: Admission,
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

/// The place of one connection, free again when dropped.
struct Seat {
    seats: Arc<Seats>,
    address: IpAddr,
}

impl Seats {
    fn new(admission: Admission) -> Self {
        Self {
            admission,
            taken: Mutex::default(),
        }
    }

    /// # Errors
    /// There is none left.
    fn take(self: &Arc<Self>, address: IpAddr) -> Result<Seat, Full> {
        let mut taken = self.taken.lock();
        let all: usize = taken.values().sum();
        let of_address = taken.get(&address).copied().unwrap_or_default();
        let limits = [
            (
                "limits.max_connections",
                all,
                self.admission.connections_max,
            ),
            (
                "limits.max_connections_per_address",
                of_address,
                self.admission.per_address_max,
            ),
        ];
        for (setting, count, limit) in limits {
            if count >= limit {
                return Err(Full { setting, limit });
            }
        }
        taken.insert(address, of_address + 1);
        Ok(Seat {
            seats: Arc::clone(self),
            address,
        })
    }
}

/// The limit that leaves no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Full {
    setting: &'static str,
    limit: usize,
}

/// The connections that were one too many.
#[derive(Default)]
struct Refusals {
    /// Those that were not said yet.
    count: u64,
    said: Option<Instant>,
}

impl Refusals {
    /// Counts one from this address, and says so if it is time.
    fn add(&mut self, address: SocketAddr, full: Full) {
        let Some(refused) = self.count(now()) else {
            return;
        };
        let Full { setting, limit } = full;
        tracing::warn!(
            address = %address.ip(),
            setting,
            limit,
            refused,
            "the etcd port closed a connection at once: it has as many as the setting allows"
        );
    }

    /// How many there are to say, if it is time.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.count += 1;
        let is_due = self.said.is_none_or(|said| now - said >= FULL_SAID_EVERY);
        is_due.then(|| {
            self.said = Some(now);
            std::mem::take(&mut self.count)
        })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken.lock();
        if let Some(count) = taken.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_bounded_in_all_and_by_address() {
        let seats = Arc::new(Seats::new(Admission {
            connections_max: 3,
            per_address_max: 2,
            ..Admission::DEFAULT
        }));
        let address = |last: u8| IpAddr::from([127, 0, 0, last]);
        let full = |setting, limit| Some(Full { setting, limit });
        let first = seats.take(address(1)).ok();
        let _second = seats.take(address(1)).ok().unwrap();
        assert_eq!(
            seats.take(address(1)).err(),
            full("limits.max_connections_per_address", 2)
        );
        let _third = seats.take(address(2)).ok().unwrap();
        assert_eq!(
            seats.take(address(2)).err(),
            full("limits.max_connections", 3)
        );
        drop(first);
        assert!(seats.take(address(2)).is_ok());
    }

    #[test]
    fn connections_too_many_are_said_once_a_minute_with_their_number() {
        let mut refusals = Refusals::default();
        let begin = now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        let said: Vec<_> = [0, 1, 59, 60, 61, 200]
            .map(|seconds| refusals.count(after(seconds)))
            .into();
        assert_eq!(said, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
