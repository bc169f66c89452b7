//! The ports for clients and for peers, which open last: after that others can reach this node.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::core::Shared;
use super::error::{StartError, io_error};
use super::etcd_port;
use super::identity::Identity;
use super::recovery::store_options;
use crate::node::recovery::bootstraps_alone;
use crate::node::{Input, Reader};
use crate::server::admin::service::AdvertisedAddresses;
use crate::server::config::Config;
use crate::server::disk::quota::Room;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::driver::effects::{Post, StreamRouter};
use crate::server::etcd::EtcdListener;
use crate::server::mail::Mail;
use crate::server::metrics::{Sampler, stopwatch};
use crate::server::peers::transfer::{SendRate, StateReceiver, StateSender};
use crate::server::peers::{Peers, PeersConfig, Roster};
use crate::server::session::admission::Backlog;
use crate::server::session::auth::{Access, Audit};
use crate::server::session::budget::ByteBudget;
use crate::server::session::exports::Exports;
use crate::server::session::origins::Origins;
use crate::server::session::traces::ExporterTask;
use crate::server::session::user_rates::UserRates;
use crate::server::session::{
    Accounting, ForwardService, Forwarder, Latencies, Serving, SessionLimits, Sessions, SlowLog,
    StorageSize, traces,
};
use crate::sync::Mutex;
use crate::transport::{Admission, ClientListener, ListenerConfig};
use crate::wire::FrameLimits;

/// The fourth stage.
pub(super) struct Ports {
    pub(super) listener: Arc<ClientListener>,
    pub(super) client_address: SocketAddr,
    pub(super) peers: Arc<Peers>,
    pub(super) peer_address: SocketAddr,
    /// The address at which others reach this node.
    pub(super) advertised: AdvertisedAddresses,
    /// States on their way here, and from here.
    pub(super) incoming: Arc<StateReceiver>,
    /// Where the two-way streams of peers go.
    pub(super) streams: Arc<StreamRouter>,
    pub(super) outgoing: Arc<StateSender>,
    /// The port for etcd's clients.
    pub(super) etcd: Option<EtcdListener>,
}

impl Ports {
    /// Opens them. Clients are not accepted yet; what peers say waits in the mailbox.
    pub(super) async fn new(
        config: &Config,
        identity: &Identity,
        shared: &Shared,
        state_dirs: StateDirs,
        roster: Roster,
    ) -> Result<Self, StartError> {
        let frame_limits = FrameLimits::of(&config.limits);
        let client = ListenerConfig {
            member_id: identity.member_id,
            limits: frame_limits,
            admission: config.connections,
            introduction: shared.node.clone(),
        };
        let stats = shared.transport.clone();
        let listener =
            ClientListener::bind(config.listen.client, &identity.tls_client, client, stats);
        let listener = listener.map_err(|error| StartError::Bind {
            setting: "listen.client",
            error,
        })?;
        let client_address = listener
            .local_address()
            .map_err(io_error("reading the client port"))?;
        let advertised = config.advertise.client.clone();
        let advertised = AdvertisedAddresses {
            client: advertised.unwrap_or_else(|| client_address.to_string()),
            peer: config.advertise.peer.clone().unwrap_or_default(),
        };
        let directory = &shared.node.directory;
        directory.learn(identity.member_id, "", &advertised.client);
        let etcd = etcd_port::bind(config).await?;
        let etcd_url = etcd_port::url(config, etcd.as_ref());
        directory.learn_etcd(identity.member_id, &etcd_url);
        let told = Input::EtcdUrl(identity.member_id, Some(etcd_url.clone()));
        shared.mailbox.send(Mail::Input(told));
        let incoming = Arc::new(state_receiver(config, identity, shared, state_dirs));
        let streams = Arc::new(StreamRouter {
            incoming: incoming.clone(),
            forwards: OnceLock::new(),
        });
        let addresses = (&advertised, etcd_url);
        let peers = start_peers(config, identity, shared, addresses, roster, &streams).await?;
        let outgoing = StateSender {
            cluster: identity.cluster_id,
            member: identity.member_id,
            peers: Arc::downgrade(&peers),
            store: shared.store.clone(),
            log_use: shared.log_use.clone(),
            mailbox: shared.mailbox.clone(),
            metrics: shared.metrics.clone(),
            limits: frame_limits,
            rate: SendRate::new(config.snapshots.send_bytes_per_second),
            broken: Mutex::default(),
            exports: AtomicU64::new(0),
        };
        Ok(Self {
            listener: Arc::new(listener),
            client_address,
            peer_address: peers.local_address(),
            peers,
            advertised,
            incoming,
            streams,
            outgoing: Arc::new(outgoing),
            etcd,
        })
    }
}

fn state_receiver(
    config: &Config,
    identity: &Identity,
    shared: &Shared,
    state_dirs: StateDirs,
) -> StateReceiver {
    StateReceiver {
        cluster: identity.cluster_id,
        state_dirs,
        data_dir: identity.data_dir.clone(),
        options: store_options(config),
        mailbox: shared.mailbox.clone(),
        metrics: shared.metrics.clone(),
        limits: FrameLimits::of(&config.limits),
        slot: Mutex::default(),
    }
}

async fn start_peers(
    config: &Config,
    identity: &Identity,
    shared: &Shared,
    (advertised, etcd_url): (&AdvertisedAddresses, String),
    roster: Roster,
    streams: &Arc<StreamRouter>,
) -> Result<Arc<Peers>, StartError> {
    let peers_config = PeersConfig {
        bind: config.listen.peer,
        tls: identity.tls_peer.clone(),
        node_id: identity.member_id,
        incarnation: identity.data_dir.identity().incarnation,
        peer_address: advertised.peer.clone(),
        client_address: advertised.client.clone(),
        etcd_url,
        roster,
        limits: FrameLimits::of(&config.limits),
        admission: Admission::DEFAULT,
        bootstrap: shared.node.bootstrap.clone(),
        seed: identity.seed(),
    };
    let post = Arc::new(Post {
        mailbox: shared.mailbox.clone(),
        directory: shared.node.directory.clone(),
        contacts: shared.node.contacts.clone(),
        doubles: shared.node.doubles.clone(),
        clock: shared.node.clock.clone(),
        streams: streams.clone(),
        metrics: shared.metrics.clone(),
        standing: shared.standing.clone(),
        exit: shared.exit.clone(),
    });
    let stats = shared.transport.clone();
    // It makes a runtime of its own, which must not be dropped inside of this one.
    let peers = tokio::task::spawn_blocking(move || Peers::start(peers_config, post, stats))
        .await
        .map_err(|error| StartError::Io {
            what: "starting the peer connections",
            error: io::Error::other(error),
        })?
        .map_err(StartError::Peers)?;
    let version = shared.node.cluster_version.load(Ordering::Relaxed);
    peers.require_version(version);
    Ok(Arc::new(peers))
}

/// What every connection of a client shares, and what takes the traces of requests away.
pub(super) fn sessions(
    config: &Config,
    identity: &Identity,
    shared: &Shared,
    ports: &Ports,
    audit: Option<Audit>,
) -> (Arc<Sessions>, Option<ExporterTask>) {
    let (traces, exporting) = traces::start(
        &config.observability.tracing,
        &config.node.name,
        identity.cluster_id,
        identity.seed(),
        &shared.metrics,
    )
    .unzip();
    let sessions = Sessions {
        node: shared.node.clone(),
        limits: SessionLimits {
            requests: config.limits,
            frames: FrameLimits::of(&config.limits),
            in_flight_max: config.work.in_flight_max,
            connection_bytes_max: config.work.connection_bytes_max,
            budget: ByteBudget::new(config.work.bytes_max),
            backlog: Backlog::new(config.work.waiting_max),
            scans: SessionLimits::scan_permits(),
            keep_alives: SessionLimits::keep_alive_permits(),
            user_rates: UserRates::new(config.work.user_rate_max, stopwatch()),
        },
        serving: serving(config, identity, shared),
        accounting: Accounting {
            metrics: shared.metrics.clone(),
            audit,
            slow: SlowLog::new(config.observability.log.slow_request),
            traces,
            sampler: Sampler::default(),
            latencies: Latencies::default(),
        },
        mailbox: shared.mailbox.clone(),
        forwarder: Some(Forwarder::new(
            identity.member_id,
            shared.node.published.clone(),
            Arc::downgrade(&ports.peers),
            shared.mailbox.clone(),
            shared.store.clone(),
            FrameLimits::of(&config.limits),
        )),
        in_flight: AtomicUsize::new(0),
        bootstraps_alone: bootstraps_alone(config.cluster.state, config.cluster.initial.len()),
        on_fatal: shared.fatal.for_store(),
    };
    let sessions = Arc::new(sessions);
    // Not on the thread of heartbeats, which accepts the streams.
    let (service, runtime) = (
        ForwardService::new(sessions.clone()),
        tokio::runtime::Handle::current(),
    );
    let serve = move |stream, first| drop(runtime.spawn(service.clone().serve(stream, first)));
    // It is set here, and nowhere else.
    let _ = ports.streams.forwards.set(Box::new(serve));
    (sessions, exporting)
}

fn serving(config: &Config, identity: &Identity, shared: &Shared) -> Serving {
    let (cluster_id, member_id) = (identity.cluster_id, identity.member_id);
    let gate = shared.store.gate().clone();
    let origins = Origins::of_node(cluster_id, member_id, shared.mailbox.clone());
    Serving {
        reader: Reader {
            lease_margin: config.timing.max_clock_skew,
        },
        store: shared.store.clone(),
        counts: Mutex::default(),
        storage_size: StorageSize::default(),
        room: Arc::new(Room::new(config.quota)),
        removed: shared.removed.clone(),
        access: Access::new(
            gate,
            cluster_id,
            config.auth.token_ttl,
            identity.issuer.clone(),
        ),
        watches: shared.watches.clone(),
        exports: Arc::new(Exports::default()),
        origins: Arc::new(origins),
    }
}
