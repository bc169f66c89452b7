//! The connections to all nodes in use, made on demand and shared by all requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::watch;
use tokio::time::Instant;

use super::deadline::deadline_after;
use crate::api::{Error, ErrorKind};
use crate::client::credentials::Credentials;
use crate::client::link::Link;
use crate::client::login;
use crate::client::login::Login;
use crate::client::measure;
use crate::client::newest::NewestRevisions;
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{
    CloseCode, ConnectError, ConnectionLost, Endpoint, FrameStream, IdentityError, StreamError,
    resolve,
};
use crate::types::{ClusterId, NodeId};
use crate::wire::client::{ClientHello, ServerHello, Welcome};
use crate::wire::{FrameLimits, PROTOCOL_VERSIONS, encode};

/// Delay between attempts at several addresses of one name.
const STAGGER: Duration = Duration::from_millis(100);
/// How long a connection attempt may go unanswered before another one is started in its place.
const CALL_ANEW: Duration = Duration::from_secs(2);
/// Maximum number of addresses remembered beyond those in use: hints come from the network.
const ADDRESSES_MAX: usize = 64;
/// After this many silences or timeouts in a row, the local port is suspected and changed: a
/// middlebox may have dropped its state.
const STRIKES_MAX: u32 = 2;

/// How often it is looked whether a goodbye has been sent. It takes one turn of the connection's task.
const FAREWELL_LOOK: Duration = Duration::from_millis(1);

type DialResult = Option<Result<Arc<Link>, Error>>;

/// The connection pool.
#[derive(Debug)]
pub(super) struct Pool {
    endpoint: Endpoint,
    credentials: Credentials,
    cluster_id: ClusterId,
    client_name: String,
    limits: FrameLimits,
    connect_timeout: Duration,
    login: Option<Login>,
    entries: Mutex<BTreeMap<String, Entry>>,
    newest: NewestRevisions,
    /// How often a way to the cluster appeared that was not there before.
    news: watch::Sender<u64>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Entry {
    link: Option<Arc<Link>>,
    dialling: Option<watch::Receiver<DialResult>>,
    strikes: u32,
}

impl Pool {
    pub(super) fn new(
        endpoint: Endpoint,
        credentials: Credentials,
        cluster_id: ClusterId,
        client_name: String,
        limits: FrameLimits,
        connect_timeout: Duration,
        login: Option<Login>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            credentials,
            cluster_id,
            client_name,
            limits,
            connect_timeout,
            login,
            entries: Mutex::default(),
            newest: NewestRevisions::default(),
            news: watch::Sender::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// The connection to `address`, if there is one that is likely to work.
    pub(super) fn usable(&self, address: &str) -> Option<Arc<Link>> {
        let entries = self.lock();
        let link = entries.get(address)?.link.as_ref()?;
        link.is_usable().then(|| Arc::clone(link))
    }

    /// The address at which a connection to this member was made.
    pub(super) fn address_of(&self, member: NodeId) -> Option<String> {
        let entries = self.lock();
        entries.iter().find_map(|(address, entry)| {
            let link = entry.link.as_ref()?;
            (link.member_id() == member && link.is_usable()).then(|| address.clone())
        })
    }

    /// The connections that are likely to work, with their addresses.
    pub(super) fn all_usable(&self) -> Vec<(String, Arc<Link>)> {
        let entries = self.lock();
        let links = entries.iter().filter_map(|(address, entry)| {
            let link = entry.link.as_ref().filter(|link| link.is_usable())?;
            Some((address.clone(), Arc::clone(link)))
        });
        links.collect()
    }

    /// Connects to `address` again, in the background. What uses the connection of before, `old`, keeps it.
    pub(super) fn replace(self: &Arc<Self>, address: &str, old: &Arc<Link>) {
        let mut entries = self.lock();
        if let Some(entry) = entries.get_mut(address)
            && entry
                .link
                .as_ref()
                .is_some_and(|link| Arc::ptr_eq(link, old))
        {
            entry.link = None;
        }
        drop(entries);
        self.dial_ahead(address);
    }

    /// A way to the cluster appeared: a new connection, or a leader that has answered.
    pub(super) fn tell_news(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// The number of news so far.
    pub(super) fn news(&self) -> u64 {
        *self.news.borrow()
    }

    /// Waits for news after the first `seen`.
    pub(super) async fn news_after(&self, seen: u64) {
        // Only with the pool does it end without news.
        let _ = self.news.subscribe().wait_for(|count| *count > seen).await;
    }

    /// A connection to `address`, made if there is none.
    ///
    /// # Cancel safety
    /// Safe: a connection attempt in progress goes on, for the next caller.
    pub(super) async fn link(
        self: &Arc<Self>,
        address: &str,
        deadline: Instant,
    ) -> Result<Arc<Link>, Error> {
        let mut dialling = match self.link_or_dial(address)? {
            Ok(link) => return Ok(link),
            Err(dialling) => dialling,
        };
        let dialled = tokio::time::timeout_at(deadline, dialling.wait_for(Option::is_some)).await;
        match dialled {
            Ok(Ok(dialled)) => match &*dialled {
                Some(result) => result.clone(),
                None => Err(ended(address)),
            },
            Ok(Err(_)) => Err(ended(address)),
            Err(_) => Err(Error::not_applied(
                ErrorKind::ConnectFailed,
                format!("{address} did not answer in time"),
            )),
        }
    }

    /// Connects to `address` in the background, if there is no connection.
    pub(super) fn dial_ahead(self: &Arc<Self>, address: &str) {
        // The outcome shows in whether the connection exists.
        let _ = self.link_or_dial(address);
    }

    fn link_or_dial(
        self: &Arc<Self>,
        address: &str,
    ) -> Result<Result<Arc<Link>, watch::Receiver<DialResult>>, Error> {
        if self.is_closed() {
            return Err(closed());
        }
        let mut entries = self.lock();
        if entries.len() >= ADDRESSES_MAX && !entries.contains_key(address) {
            entries.retain(|_, entry| entry.link.as_ref().is_some_and(|link| link.is_usable()));
        }
        let entry = entries.entry(address.to_string()).or_default();
        if let Some(link) = &entry.link
            && link.is_usable()
        {
            return Ok(Ok(Arc::clone(link)));
        }
        if let Some(dialling) = &entry.dialling {
            return Ok(Err(dialling.clone()));
        }
        let (result, dialling) = watch::channel(None);
        entry.dialling = Some(dialling.clone());
        drop(entries);
        // In a task of its own: its caller may stop waiting, and others may wait for it too.
        let pool = Arc::clone(self);
        let address = address.to_string();
        tokio::spawn(async move {
            let dialled = pool.dial(&address).await;
            let kept = pool.dialled(&address, dialled);
            // There may be no waiter left.
            let _ = result.send(Some(kept));
        });
        Ok(Err(dialling))
    }

    fn dialled(
        &self,
        address: &str,
        dialled: Result<Arc<Link>, Error>,
    ) -> Result<Arc<Link>, Error> {
        measure::connected(dialled.is_ok());
        let mut entries = self.lock();
        let entry = entries.entry(address.to_string()).or_default();
        entry.dialling = None;
        match &dialled {
            Ok(link) if self.is_closed() => {
                link.close();
                return Err(closed());
            }
            Ok(link) => {
                entry.link = Some(Arc::clone(link));
                entry.strikes = 0;
                drop(entries);
                self.tell_news();
            }
            Err(_) => {}
        }
        dialled
    }

    /// Records that `address` was silent, or did not answer a connection attempt in time.
    pub(super) fn strike(&self, address: &str) {
        let mut entries = self.lock();
        let Some(entry) = entries.get_mut(address) else {
            return;
        };
        entry.strikes = entry.strikes.saturating_add(1);
        // Less and less often, for a node that is simply gone.
        if entry.strikes < STRIKES_MAX || !entry.strikes.is_power_of_two() {
            return;
        }
        drop(entries);
        match self.endpoint.change_port() {
            Ok(()) => tracing::debug!(address, "repeated timeouts; connecting from another port"),
            Err(error) => tracing::debug!(%error, "cannot open another local port"),
        }
    }

    /// How often `address` was silent since its last connection.
    #[cfg(test)]
    pub(super) fn strikes(&self, address: &str) -> u32 {
        self.lock().get(address).map_or(0, |entry| entry.strikes)
    }

    /// Closes every connection, and makes no new one. Returns what the connected nodes are still
    /// to be told.
    pub(super) fn close(&self) -> Farewells {
        self.closed.store(true, Ordering::SeqCst);
        let entries = std::mem::take(&mut *self.lock());
        let links = entries.into_values().filter_map(|entry| entry.link);
        let farewells = links.filter(|link| !link.is_lost()).map(|link| {
            let before = link.packets_sent();
            link.close();
            (link, before)
        });
        let farewells = Farewells(farewells.collect());
        self.endpoint.close(CloseCode::Done);
        farewells
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    async fn dial(&self, address: &str) -> Result<Arc<Link>, Error> {
        let attempt = async {
            self.credentials.renew(&self.endpoint);
            let addresses = resolve(address)
                .await
                .map_err(|error| connect_error(address, &error))?;
            let calling = self.endpoint.connect_any(&addresses, STAGGER);
            let connection = match tokio::time::timeout(CALL_ANEW, calling).await {
                Ok(called) => called,
                // Retransmissions of an unanswered attempt become less and less frequent. A new
                // attempt reaches a node that has just started at once.
                Err(_) => self.endpoint.connect_any(&addresses, STAGGER).await,
            };
            let connection = connection.map_err(|error| connect_error(address, &error))?;
            let mut first = connection
                .open_stream()
                .await
                .map_err(|lost| lost_error(address, &lost))?;
            let welcome = self
                .greet(&mut first)
                .await
                .map_err(|error| error.at(address))?;
            let second = connection
                .open_stream()
                .await
                .map_err(|lost| lost_error(address, &lost))?;
            let member_id = welcome.member_id;
            tracing::debug!(address, member = %member_id, name = welcome.name, "connected");
            let newest = self.newest.of(welcome.bootstrap);
            let streams = (first, second);
            let link = Link::new(connection, welcome, newest, streams, self.limits);
            if let Some(login) = &self.login {
                let deadline = deadline_after(self.connect_timeout);
                match login.log_in(&link, deadline).await {
                    Err(refusal) if login::is_final(&refusal) => return Err(refusal),
                    // The first request finds any other failure, and then logs in again.
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(link)
        };
        let result = tokio::time::timeout(self.connect_timeout, attempt).await;
        match result {
            Ok(result) => result,
            Err(_) => {
                self.strike(address);
                Err(Error::not_applied(
                    ErrorKind::ConnectFailed,
                    format!("{address} did not answer in time"),
                ))
            }
        }
    }

    /// The login to use, if it may cure this error.
    pub(super) fn remedy(&self, link: &Link, error: &Error) -> Option<&Login> {
        let login = self.login.as_ref()?;
        login.may_help(link, error).then_some(login)
    }

    async fn greet(&self, stream: &mut FrameStream) -> Result<Welcome, GreetError> {
        let hello = ClientHello {
            versions: PROTOCOL_VERSIONS,
            cluster_id: self.cluster_id,
            name: self.client_name.clone(),
        };
        let mut bytes = BytesMut::new();
        encode(&hello, &self.limits, &mut bytes).map_err(|_| GreetError::NameTooLong)?;
        stream.write(bytes.freeze()).await?;
        let mut frames = Vec::new();
        stream.read_batch(&mut frames).await?;
        let frame = frames.first().ok_or(GreetError::Senseless)?;
        let answer: ServerHello = stream.receiver.decode(frame)?;
        let welcome = answer.result.map_err(GreetError::TurnedAway)?;
        if welcome.cluster_id == self.cluster_id && PROTOCOL_VERSIONS.contains(welcome.version) {
            Ok(welcome)
        } else {
            Err(GreetError::Senseless)
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock()
    }
}

/// Closed connections, each with the number of packets that it had sent before.
#[must_use = "who is in no hurry waits until they are sent"]
pub(super) struct Farewells(Vec<(Arc<Link>, u64)>);

impl Farewells {
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Waits until the nodes have been notified, as far as possible: after its end, a connection sends
    /// nothing but this. Connections that are only being made are not waited for, or a node that is
    /// gone would hold up every goodbye.
    pub(super) async fn sent(self) {
        for (link, before) in self.0 {
            while link.packets_sent() <= before {
                tokio::time::sleep(FAREWELL_LOOK).await;
            }
        }
    }
}

/// The errors between hello and welcome.
enum GreetError {
    Stream(StreamError),
    TurnedAway(Error),
    Senseless,
    NameTooLong,
}

impl From<StreamError> for GreetError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl GreetError {
    fn at(self, address: &str) -> Error {
        match self {
            Self::Stream(StreamError::Lost(lost)) => lost_error(address, &lost),
            Self::Stream(other) => {
                Error::not_applied(ErrorKind::ConnectFailed, format!("{address}: {other}"))
            }
            Self::TurnedAway(error) => error,
            Self::Senseless => Error::not_applied(
                ErrorKind::ConnectFailed,
                format!("{address} sent an unexpected reply to the hello"),
            ),
            Self::NameTooLong => Error::not_applied(
                ErrorKind::InvalidArgument,
                "the client's name is too long: use a shorter one",
            ),
        }
    }
}

pub(super) fn closed() -> Error {
    Error::not_applied(ErrorKind::ConnectionLost, "this client has been closed")
}

fn ended(address: &str) -> Error {
    Error::not_applied(
        ErrorKind::ConnectFailed,
        format!("the connection to {address} was abandoned: is the runtime shutting down?"),
    )
}

fn connect_error(address: &str, error: &ConnectError) -> Error {
    let kind = match error {
        ConnectError::Tls { .. } | ConnectError::Alpn { .. } => ErrorKind::TlsHandshake,
        ConnectError::Identity { source, .. } => match source {
            IdentityError::ForeignCluster { .. } => ErrorKind::ClusterMismatch,
            _ => ErrorKind::TlsHandshake,
        },
        ConnectError::Lost { lost, .. } => return lost_error(address, lost),
        ConnectError::Address { .. } | ConnectError::Timeout { .. } => ErrorKind::ConnectFailed,
    };
    Error::not_applied(kind, error.to_string())
}

fn lost_error(address: &str, lost: &ConnectionLost) -> Error {
    let kind = match lost {
        ConnectionLost::Tls(_) | ConnectionLost::Closed(CloseCode::Identity) => {
            ErrorKind::TlsHandshake
        }
        ConnectionLost::Closed(CloseCode::Cluster) => ErrorKind::ClusterMismatch,
        ConnectionLost::Closed(CloseCode::Version) => ErrorKind::Unsupported,
        _ => ErrorKind::ConnectFailed,
    };
    Error::not_applied(kind, format!("{address}: {lost}"))
}
