//! Making connections to peers, from both ends, and carrying messages over them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use tokio::task::JoinSet;

use crate::clock::SystemClock;
use crate::raft::Envelope;
use crate::server::peers::drift;
use crate::server::peers::drift::Drift;
use crate::server::peers::hub::{HelloError, Hub, Route};
use crate::time::{Clock, Instant};
use crate::transport::{
    CloseCode, ConnectError, Connection, ConnectionLost, Endpoint, FrameReceiver, FrameSender,
    FrameStream, HandshakeFailure, Port, StreamError, is_worth_saying, resolve,
};
use crate::wire::peer::{ENVELOPES_MAX, MemberStanding, PeerClock, PeerHello, Raft};
use crate::wire::{FrameLimits, Kind, WireError, encode};

/// Heartbeats before everything else.
const CONTROL_PRIORITY: i32 = 1;
const BULK_PRIORITY: i32 = 0;
/// Appends are encoded into one write until it has this many bytes.
const BULK_WRITE_BYTES: usize = 256 << 10;
/// Control messages in one frame at most.
const CONTROL_BATCH_MAX: usize = 256;
const _: () = assert!(CONTROL_BATCH_MAX <= ENVELOPES_MAX);

const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const STAGGER: Duration = Duration::from_millis(250);
/// How long the second of two connections is left open, so that both sides change over first.
const GRACE: Duration = Duration::from_millis(500);
const BACK_OFF_MIN: Duration = Duration::from_millis(25);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// How long a removed member is still called and accepted, so that it learns of its removal.
const LETTING_GO: Duration = Duration::from_secs(3);
/// A connection that lasted this long was a good one: the next call is made at once.
const LASTED: Duration = Duration::from_secs(1);

/// Accepts connections until the endpoint closes.
pub(super) async fn accept_all(endpoint: Endpoint, hub: Arc<Hub>) {
    // The set ends its tasks with this one; the endpoint bounds how many there are.
    let mut connections = JoinSet::new();
    while let Some(accepting) = endpoint.accept().await {
        let hub = Arc::clone(&hub);
        let endpoint = endpoint.clone();
        connections.spawn(async move {
            // Refusals are counted and logged where they are decided.
            let Ok(connection) = accepting.establish().await else {
                return;
            };
            let greeting = tokio::time::timeout(HELLO_TIMEOUT, answer(&connection, &hub)).await;
            let failure = match greeting {
                Ok(Ok(Some(route))) => return carry(connection, hub, route).await,
                // The caller waits for our hello and has nothing at work here: no need to wait.
                Ok(Ok(None)) => return connection.close(CloseCode::Duplicate),
                Ok(Err(failure)) => failure,
                Err(_) => Failure::Silent,
            };
            failure.count(&endpoint, &connection);
            // It may have been put to work before its answer failed to get out.
            hub.lost(&connection);
        });
        while connections.try_join_next().is_some() {}
    }
}

/// Calls the member `name` whenever it has no connection, for as long as it is one and a little longer.
pub(super) async fn keep_calling(endpoint: Endpoint, hub: Arc<Hub>, name: String) {
    let until_gone = async {
        loop {
            hub.until_no_member(&name).await;
            tokio::time::sleep(LETTING_GO).await;
            if !hub.is_member(&name) {
                return;
            }
        }
    };
    tokio::select! {
        () = call_for_ever(&endpoint, &hub, &name) => {}
        () = until_gone => hub.drop_member(&name),
    }
}

async fn call_for_ever(endpoint: &Endpoint, hub: &Arc<Hub>, name: &str) {
    let mut random = jitter_source(hub.seed(), name);
    let mut back_off = BACK_OFF_MIN;
    let mut trouble = Trouble::default();
    // At most one connection at a time; the set ends it with this task.
    let mut carrying = JoinSet::new();
    loop {
        // Also before the first call: so that not everyone calls everyone in the same instant.
        tokio::time::sleep(jittered(back_off, &mut random)).await;
        if !hub.is_connected(name) {
            match call(endpoint, hub, name).await {
                Ok(Some((connection, route))) => {
                    carrying.spawn(carry(connection, Arc::clone(hub), route));
                    trouble = Trouble::default();
                }
                Ok(None) => trouble = Trouble::default(),
                // It called us meanwhile, and of two calls that cross one is given up.
                Err(_) if hub.is_connected(name) => trouble = Trouble::default(),
                Err(failure) => trouble.tell(name, failure.to_string()),
            }
            while carrying.try_join_next().is_some() {}
        }
        let lasting = tokio::time::timeout(LASTED, hub.until_unconnected(name)).await;
        if lasting.is_ok() {
            back_off = (back_off * 2).min(BACK_OFF_MAX);
        } else {
            hub.until_unconnected(name).await;
            back_off = BACK_OFF_MIN;
        }
    }
}

/// How long calls to a peer may fail before that is a warning: those of a cluster start one after
/// the other.
const TROUBLE_LASTS: Duration = Duration::from_secs(5);

/// What is wrong with calls to a peer, since when.
#[derive(Default)]
struct Trouble {
    since: Option<Instant>,
    words: String,
    is_lasting: bool,
}

impl Trouble {
    /// The same failure every second says nothing new.
    fn tell(&mut self, peer: &str, failure: String) {
        let now = SystemClock.now();
        let since = *self.since.get_or_insert(now);
        let is_lasting = now.at_least_since(since) >= TROUBLE_LASTS;
        if failure == self.words && is_lasting == self.is_lasting {
            return;
        }
        match is_lasting {
            true => tracing::warn!(peer, failure, "cannot reach the peer"),
            false => tracing::info!(peer, failure, "cannot reach the peer"),
        }
        (self.words, self.is_lasting) = (failure, is_lasting);
    }
}

/// Why a connection was not put to work.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Connect(#[from] ConnectError),
    #[error("{0}")]
    Stream(#[from] StreamError),
    #[error("{0}")]
    Lost(#[from] ConnectionLost),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("no hello received")]
    Silent,
    #[error("the hello was followed by unexpected data")]
    Crowded,
    #[error("{answered} answered at the address of {called}")]
    SomeoneElse { called: String, answered: String },
    #[error("this node's hello is too long: {0}")]
    OwnHello(WireError),
    #[error("it does not list this node in its current incarnation as a member")]
    NoMember,
    /// It asked for its standing, and received it.
    #[error("it only asked for its standing")]
    StandingQuery,
}

impl Failure {
    /// Counts it, and closes the connection for it.
    fn count(&self, endpoint: &Endpoint, connection: &Connection) {
        let (reason, code) = match self {
            // Counted below; over already.
            Self::Connect(_) | Self::Stream(StreamError::Malformed(_)) => return,
            // Not a failure.
            Self::StandingQuery | Self::NoMember => return connection.close(CloseCode::Done),
            Self::Stream(_) | Self::Lost(_) => (HandshakeFailure::Other, CloseCode::Hello),
            Self::Silent => (HandshakeFailure::Timeout, CloseCode::Hello),
            Self::Crowded | Self::OwnHello(_) => (HandshakeFailure::Hello, CloseCode::Hello),
            Self::SomeoneElse { .. } => (HandshakeFailure::Identity, CloseCode::Identity),
            Self::Hello(error) => {
                let reason = match error.code() {
                    CloseCode::Cluster | CloseCode::Bootstrap => HandshakeFailure::Cluster,
                    CloseCode::Version => HandshakeFailure::Version,
                    _ => HandshakeFailure::Identity,
                };
                (reason, error.code())
            }
        };
        let count = endpoint.stats().count_failed(Port::Peer, reason);
        connection.close(code);
        // One that went away by itself may have been one of two calls that cross; and what
        // becomes of our own calls is logged where they are made.
        let went_away = matches!(
            self,
            Self::Lost(_)
                | Self::Stream(StreamError::Finished | StreamError::Stopped | StreamError::Lost(_))
        );
        let is_news = !went_away && !connection.dialled();
        if !is_news || !is_worth_saying(count) {
            return;
        }
        tracing::warn!(
            peer = %connection.identity(),
            address = %connection.remote_address(),
            failure = %self,
            "peer refused"
        );
    }
}

/// Makes one call. `None`: there is a better connection.
async fn call(
    endpoint: &Endpoint,
    hub: &Hub,
    name: &str,
) -> Result<Option<(Connection, Arc<Route>)>, Failure> {
    let addresses = resolve_all(&hub.addresses_of(name), endpoint).await?;
    let connection = tokio::select! {
        connected = endpoint.connect_any(&addresses, STAGGER) => connected?,
        // The member called us: no need to wait for an address that may be out of date. Once our
        // hello is out it is too late for that, because the other side may have chosen this one.
        () = hub.until_connected(name) => return Ok(None),
    };
    let greeting = tokio::time::timeout(HELLO_TIMEOUT, greet(&connection, hub, name)).await;
    let failure = match greeting {
        Ok(Ok(Some(route))) => return Ok(Some((connection, route))),
        Ok(Ok(None)) => {
            retire(&connection).await;
            return Ok(None);
        }
        // The other side has a better connection to us.
        Ok(Err(Failure::Lost(ConnectionLost::Closed(CloseCode::Duplicate)))) => return Ok(None),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::Silent,
    };
    failure.count(endpoint, &connection);
    Err(failure)
}

/// Every address of every name that can be called from our socket.
async fn resolve_all(
    names: &[String],
    endpoint: &Endpoint,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let from_v4 = endpoint.local_address().is_ok_and(|local| local.is_ipv4());
    let mut found: Vec<SocketAddr> = Vec::new();
    let mut failed = None;
    for name in names {
        match resolve(name).await {
            Ok(addresses) => {
                for address in addresses {
                    let out_of_reach = from_v4 && address.is_ipv6();
                    if !out_of_reach && !found.contains(&address) {
                        found.push(address);
                    }
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// The caller's half of the hellos. `None`: there is a better connection.
async fn greet(
    connection: &Connection,
    hub: &Hub,
    name: &str,
) -> Result<Option<Arc<Route>>, Failure> {
    if connection.identity().name() != name {
        return Err(Failure::SomeoneElse {
            called: name.to_string(),
            answered: connection.identity().name().to_string(),
        });
    }
    let mut stream = connection.open_stream().await?;
    let Some(ours) = hub.calling_hello(name) else {
        return Ok(None);
    };
    write_hello(&mut stream, &ours, hub.limits()).await?;
    match read_greeting(&mut stream).await? {
        Greeting::Hello(theirs) => Ok(hub.answered(connection, &ours, &theirs)?),
        Greeting::Standing(standing) => {
            hub.told(connection, standing);
            Err(Failure::NoMember)
        }
    }
}

/// The other half.
async fn answer(connection: &Connection, hub: &Hub) -> Result<Option<Arc<Route>>, Failure> {
    let mut stream = connection.accept_stream().await?;
    let theirs = match read_greeting(&mut stream).await? {
        Greeting::Hello(theirs) => theirs,
        Greeting::Standing(_) => {
            tell_standing(connection, &mut stream, hub).await?;
            return Err(Failure::StandingQuery);
        }
    };
    match hub.called(connection, &theirs) {
        Ok(None) => Ok(None),
        Ok(Some((ours, route))) => {
            write_hello(&mut stream, &ours, hub.limits()).await?;
            Ok(Some(route))
        }
        Err(refused) => {
            if refused.is_about_membership() {
                // It may not know that it was removed. That it does not listen is no news.
                let _ = tell_standing(connection, &mut stream, hub).await;
            }
            Err(refused.into())
        }
    }
}

/// Sends the node at the other end its standing, and waits a moment for it to arrive.
async fn tell_standing(
    connection: &Connection,
    stream: &mut FrameStream,
    hub: &Hub,
) -> Result<(), Failure> {
    let Some(standing) = hub.standing_of(connection) else {
        return Ok(());
    };
    let mut bytes = BytesMut::new();
    encode(&standing, hub.limits(), &mut bytes).map_err(Failure::OwnHello)?;
    flatten(stream.write(bytes.freeze()).await)?;
    let _ = tokio::time::timeout(GRACE, connection.lost()).await;
    Ok(())
}

/// Asks the member at the other end what the cluster knows of this node.
pub(crate) async fn ask_standing(
    connection: &Connection,
    limits: &FrameLimits,
) -> Option<MemberStanding> {
    let asking = async {
        let mut stream = connection.open_stream().await.ok()?;
        let mut bytes = BytesMut::new();
        encode(&MemberStanding::Ask, limits, &mut bytes).ok()?;
        stream.write(bytes.freeze()).await.ok()?;
        match read_greeting(&mut stream).await {
            Ok(Greeting::Standing(standing)) => Some(standing),
            _ => None,
        }
    };
    let answer = tokio::time::timeout(HELLO_TIMEOUT, asking).await;
    connection.close(CloseCode::Done);
    answer.ok().flatten()
}

async fn write_hello(
    stream: &mut FrameStream,
    hello: &PeerHello,
    limits: &FrameLimits,
) -> Result<(), Failure> {
    let mut bytes = BytesMut::new();
    encode(hello, limits, &mut bytes).map_err(Failure::OwnHello)?;
    flatten(stream.write(bytes.freeze()).await)
}

/// What a connection begins with, from either side.
enum Greeting {
    Hello(PeerHello),
    Standing(MemberStanding),
}

async fn read_greeting(stream: &mut FrameStream) -> Result<Greeting, Failure> {
    let mut frames = Vec::new();
    flatten(stream.read_batch(&mut frames).await)?;
    match frames.as_slice() {
        [only] if only.kind == Kind::Standing => {
            Ok(Greeting::Standing(stream.receiver.decode(only)?))
        }
        [only] => Ok(Greeting::Hello(stream.receiver.decode(only)?)),
        _ => Err(Failure::Crowded),
    }
}

/// Lets the end of a connection be seen as that, wherever it was noticed.
fn flatten(result: Result<(), StreamError>) -> Result<(), Failure> {
    result.map_err(|error| match error {
        StreamError::Lost(lost) => Failure::Lost(lost),
        other => Failure::Stream(other),
    })
}

/// Exchanges messages until the connection ends.
async fn carry(connection: Connection, hub: Arc<Hub>, route: Arc<Route>) {
    let mut tasks = JoinSet::new();
    tasks.spawn(send_control(
        connection.clone(),
        Arc::clone(&hub),
        Arc::clone(&route),
    ));
    tasks.spawn(send_bulk(
        connection.clone(),
        Arc::clone(&hub),
        Arc::clone(&route),
    ));
    tasks.spawn(receive_streams(
        connection.clone(),
        Arc::clone(&hub),
        Arc::clone(&route),
    ));
    tasks.spawn(accept_two_way(
        connection.clone(),
        Arc::clone(&hub),
        Arc::clone(&route),
    ));
    let lost = tokio::select! {
        lost = connection.lost() => lost,
        () = route.retired.notified() => {
            retire(&connection).await;
            connection.lost().await
        }
    };
    // Stop reading before the disconnect is reported, so that no message follows it.
    tasks.shutdown().await;
    if lost != ConnectionLost::Closed(CloseCode::Duplicate) && lost != ConnectionLost::ClosedHere {
        tracing::info!(peer = route.info.name, %lost, "peer disconnected");
    }
    let was_at_work = hub.lost(&connection);
    if was_at_work && lost == ConnectionLost::Closed(CloseCode::Duplicate) {
        hub.displaced(&route.info);
    }
}

/// Closes a connection whose place another one has, once the other side has had the time to see it
/// the same way.
async fn retire(connection: &Connection) {
    let _ = tokio::time::timeout(GRACE, connection.lost()).await;
    connection.close(CloseCode::Duplicate);
}

async fn send_control(connection: Connection, hub: Arc<Hub>, route: Arc<Route>) {
    let Ok(mut sender) = connection.open_sender(CONTROL_PRIORITY).await else {
        return;
    };
    let mut bytes = BytesMut::new();
    let mut clock_due = tokio::time::interval(drift::INTERVAL);
    clock_due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            envelopes = route.control.take(CONTROL_BATCH_MAX) => {
                encode_together(envelopes, &hub, &mut bytes);
            }
            _ = clock_due.tick() => {
                let Instant { boot, raw } = SystemClock.now();
                encode(&PeerClock { boot, raw }, hub.limits(), &mut bytes)
                    .expect("a reading fits every frame");
            }
        }
        if !write(&mut sender, &mut bytes).await {
            return;
        }
    }
}

async fn send_bulk(connection: Connection, hub: Arc<Hub>, route: Arc<Route>) {
    let Ok(mut sender) = connection.open_sender(BULK_PRIORITY).await else {
        return;
    };
    let mut bytes = BytesMut::new();
    loop {
        // An append may be as long as a frame may be: one to a frame, several to a write.
        let mut next = route.bulk.take(1).await;
        while !next.is_empty() {
            encode_together(next, &hub, &mut bytes);
            if bytes.len() >= BULK_WRITE_BYTES {
                break;
            }
            next = route.bulk.take_now(1);
        }
        if !write(&mut sender, &mut bytes).await {
            return;
        }
    }
}

/// One frame for all, or one for each if together they are too long for one.
fn encode_together(envelopes: Vec<Envelope>, hub: &Hub, bytes: &mut BytesMut) {
    let count = envelopes.len() as u64;
    let frame = Raft { envelopes };
    if encode(&frame, hub.limits(), bytes).is_ok() {
        hub.stats().sent.fetch_add(count, Ordering::Relaxed);
        return;
    }
    for envelope in frame.envelopes {
        let alone = Raft {
            envelopes: vec![envelope],
        };
        match encode(&alone, hub.limits(), bytes) {
            Ok(()) => hub.stats().sent.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                tracing::error!(%error, "message too long for a frame; dropped");
                hub.stats().dropped_bulk.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

async fn write(sender: &mut FrameSender, bytes: &mut BytesMut) -> bool {
    sender.write(bytes.split().freeze()).await.is_ok()
}

/// Passes on the two-way streams that the other side opens: a transfer, or forwarded requests.
async fn accept_two_way(connection: Connection, hub: Arc<Hub>, route: Arc<Route>) {
    // The transport bounds how many there are at one time.
    while let Ok(stream) = connection.accept_stream().await {
        hub.stream(&route.info, stream);
    }
}

async fn receive_streams(connection: Connection, hub: Arc<Hub>, route: Arc<Route>) {
    let mut streams = JoinSet::new();
    // The transport bounds how many there are at one time.
    while let Ok(receiver) = connection.accept_receiver().await {
        streams.spawn(receive(receiver, Arc::clone(&hub), Arc::clone(&route)));
        while streams.try_join_next().is_some() {}
    }
}

async fn receive(mut receiver: FrameReceiver, hub: Arc<Hub>, route: Arc<Route>) {
    let from = route.info.id;
    let mut frames = Vec::new();
    let mut drift = Drift::default();
    // Bad bytes close the connection and are counted below.
    while receiver.read_batch(&mut frames).await.is_ok() {
        for frame in frames.drain(..) {
            if frame.kind == Kind::PeerClock {
                let Ok(theirs) = receiver.decode::<PeerClock>(&frame) else {
                    return;
                };
                if let Some(ratio) = drift.heard(theirs, SystemClock.now()) {
                    hub.drifts(&route.info, ratio);
                }
                continue;
            }
            let Ok(raft) = receiver.decode::<Raft>(&frame) else {
                return;
            };
            for envelope in raft.envelopes {
                if !hub.receive(from, envelope) {
                    tracing::warn!(
                        peer = %from,
                        "message with a wrong sender or receiver; closing the connection"
                    );
                    receiver.connection().close(CloseCode::Identity);
                    return;
                }
            }
        }
    }
}

fn jitter_source(seed: u64, name: &str) -> fastrand::Rng {
    let name_hash = xxhash_rust::xxh3::xxh3_64(name.as_bytes());
    fastrand::Rng::with_seed(seed ^ name_hash)
}

/// Up to a fifth more or less.
fn jittered(duration: Duration, random: &mut fastrand::Rng) -> Duration {
    duration.mul_f64(0.8 + 0.4 * random.f64())
}
