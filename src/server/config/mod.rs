//! From file, environment and flags to a [`Config`] that is already valid.
//!
//! Every setting has one entry in [`SETTINGS`]: its key, its default as text, and what it does.
//! The table is all there is to know about names, so that the file, the environment
//! (`LEASEHOLD_SECTION_KEY`) and the flags (`--section.key`) cannot drift apart, and a misspelt key
//! is found in each of them. The strongest source that names a key wins: flags, then environment,
//! then file, then default.
//!
//! Whatever is wrong is said with the place it came from, the reason, and what would be valid.
//! Nothing is opened here but the file itself: whether an address can be bound or a certificate
//! read is found out by whoever needs it.

mod bounds;
mod error;
mod given;
mod source;
mod traces;
mod unknown;
mod value;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::bounds::QuotaConfig;
pub use self::error::{At, ConfigError};
pub use self::given::Settings;
pub use self::traces::{Collector, TracingConfig};
pub use self::unknown::{UnknownVariable, unknown_variables};
pub use crate::node::recovery::ClusterState;

use self::source::Values;
use self::value::split_address;
use crate::api::Limits;
use crate::node::{AutoCompaction, LeaseOptions};
use crate::raft::{Timing, TimingError, TimingOptions};
use crate::server::session::admission::AdmissionOptions;
use crate::server::watch::WatchOptions;
use crate::transport::{Admission, TlsPaths};
use crate::types::is_name;

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// `section.key`, as in the file and on the command line.
    pub key: &'static str,
    /// What holds where nobody says otherwise, in the words of the command line; empty for
    /// nothing.
    pub default: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
}

const fn setting(key: &'static str, default: &'static str, help: &'static str) -> Setting {
    Setting { key, default, help }
}

/// Every setting there is, in the order of the documentation.
pub const SETTINGS: &[Setting] = &[
    setting("node.name", "", "Name of this node, as in its certificates"),
    setting(
        "node.data_dir",
        "",
        "Directory for this node's log and state",
    ),
    setting(
        "listen.client",
        "0.0.0.0:7400",
        "Address to listen on for clients (QUIC over UDP)",
    ),
    setting(
        "listen.peer",
        "0.0.0.0:7401",
        "Address to listen on for other nodes (QUIC over UDP)",
    ),
    setting(
        "listen.admin",
        "127.0.0.1:7480",
        "Address for probes, metrics and administration (HTTP, loopback only)",
    ),
    setting(
        "listen.metrics",
        "",
        "Additional address for probes and metrics, reachable from other machines (HTTP); off if \
         empty",
    ),
    setting(
        "advertise.client",
        "",
        "Address at which clients reach this node, as host:port; default: the host of its entry in \
         cluster.initial",
    ),
    setting(
        "advertise.peer",
        "",
        "Address at which other nodes reach this one, as host:port; default: its entry in \
         cluster.initial",
    ),
    setting(
        "cluster.initial",
        "",
        "Initial members, as name=host:port; default: this node alone. When joining: the members \
         to contact",
    ),
    setting(
        "cluster.state",
        "new",
        "How to start with an empty data directory: new (take part in the bootstrap of the \
         cluster), existing or join (the cluster exists; learn this node's identity from its \
         members)",
    ),
    setting(
        "raft.heartbeat_interval",
        "50ms",
        "Interval between heartbeats of the leader",
    ),
    setting(
        "raft.election_timeout_min",
        "550ms",
        "Minimum election timeout: how long a node hears no leader before it campaigns",
    ),
    setting(
        "raft.election_timeout_max",
        "1s",
        "Maximum election timeout",
    ),
    setting(
        "raft.step_down_after",
        "750ms",
        "How long a leader hears no quorum before it steps down",
    ),
    setting(
        "raft.snapshot_entries",
        "10000",
        "Entries, beyond snapshot_catchup_entries, after which the log is truncated",
    ),
    setting(
        "raft.snapshot_catchup_entries",
        "5000",
        "Entries kept when the log is truncated, for followers that lag behind",
    ),
    setting(
        "raft.snapshot_bytes",
        "256MiB",
        "Size of the entries after which the log is truncated even if they are few; half are kept",
    ),
    setting(
        "raft.snapshot_send_rate",
        "64MiB",
        "Maximum rate at which a node sends snapshots, in bytes per second",
    ),
    setting(
        "leader_lease.enabled",
        "true",
        "Whether this node serves reads under a leader lease",
    ),
    setting(
        "leader_lease.duration",
        "500ms",
        "How long a voter promises not to vote for another leader",
    ),
    setting(
        "leader_lease.max_clock_skew",
        "50ms",
        "Safety margin: how much earlier than the promise the leader lease ends",
    ),
    setting(
        "leader_lease.max_drift_ppm",
        "20000",
        "Maximum rate error of a machine's clock, in parts per million, at most 20000",
    ),
    setting(
        "lease.min_ttl",
        "500ms",
        "Minimum TTL of a client lease; shorter requests are raised to it",
    ),
    setting(
        "lease.tick",
        "10ms",
        "Resolution of client lease expiry: how late a lease may expire because of batching",
    ),
    setting(
        "lease.checkpoint_min_ttl",
        "5m",
        "Minimum TTL of the client leases whose remaining time is checkpointed, so that it \
         survives a change of leader",
    ),
    setting(
        "lease.checkpoint_interval",
        "1m",
        "Interval between checkpoints of a client lease",
    ),
    setting(
        "lease.max_leases",
        "1000000",
        "Maximum number of client leases",
    ),
    setting(
        "limits.max_request_bytes",
        "1.5MiB",
        "Maximum size of a request or reply",
    ),
    setting("limits.max_key_bytes", "8KiB", "Maximum length of a key"),
    setting(
        "limits.max_value_bytes",
        "1MiB",
        "Maximum length of a value",
    ),
    setting(
        "limits.max_inflight",
        "4096",
        "Maximum number of requests in flight per connection",
    ),
    setting(
        "limits.max_waiting",
        "16384",
        "Maximum number of requests of all connections waiting for the log, the state or a scan; \
         keep-alives may use all of it, reads less, writes less than reads, scans least",
    ),
    setting(
        "limits.memory_budget",
        "256MiB",
        "Memory for waiting requests and for the results of scans, all connections together",
    ),
    setting(
        "limits.connection_memory_budget",
        "64MiB",
        "Memory for the same purposes, per connection",
    ),
    setting(
        "limits.max_connections",
        "4096",
        "Maximum number of client connections",
    ),
    setting(
        "limits.max_connections_per_client",
        "64",
        "Maximum number of connections per client, identified by its certificate",
    ),
    setting(
        "limits.max_connections_per_address",
        "128",
        "Maximum number of client connections per IP address, including those in their handshake",
    ),
    setting(
        "limits.max_handshakes",
        "512",
        "Maximum number of concurrent handshakes; above a quarter of it, unauthenticated peers \
         must validate their address first",
    ),
    setting(
        "limits.max_handshake_rate",
        "20",
        "Handshakes per second from one network (/24 or /48) above which its unauthenticated peers \
         must do so",
    ),
    setting(
        "quota.bytes",
        "8GiB",
        "Maximum size of the state on disk; above it, puts and lease grants are refused until \
         space is freed",
    ),
    setting(
        "quota.warn_ratio",
        "0.8",
        "Fraction of quota.bytes above which this node warns",
    ),
    setting(
        "compaction.mode",
        "periodic",
        "Automatic compaction of history: periodic, revision or off",
    ),
    setting(
        "compaction.retention",
        "1h",
        "History to keep: a duration if periodic, a number of revisions if by revision",
    ),
    setting(
        "compaction.batch_limit",
        "1000",
        "Maximum number of changes removed from disk in one step of a compaction",
    ),
    setting(
        "compaction.sleep_interval",
        "10ms",
        "Pause between two such steps",
    ),
    setting(
        "watch.progress_notify_interval",
        "10s",
        "Interval between progress notifications to watches that requested them",
    ),
    setting(
        "watch.max_per_connection",
        "10000",
        "Maximum number of watches per connection",
    ),
    setting(
        "watch.memory_budget",
        "128MiB",
        "Memory for events queued for watches",
    ),
    setting(
        "storage.cache_bytes",
        "256MiB",
        "Memory for the cache of recently read state",
    ),
    setting(
        "storage.corruption_check_interval",
        "1m",
        "Interval between comparisons of the nodes' state hashes; 0s to disable",
    ),
    setting(
        "storage.segment_bytes",
        "64MiB",
        "Size of a segment file of the log",
    ),
    setting("tls.client.cert_file", "", "Server certificate (PEM)"),
    setting(
        "tls.client.key_file",
        "",
        "Private key of tls.client.cert_file (PEM)",
    ),
    setting(
        "tls.client.trusted_ca_file",
        "",
        "Authority that signs client certificates (PEM)",
    ),
    setting("tls.peer.cert_file", "", "Peer certificate (PEM)"),
    setting(
        "tls.peer.key_file",
        "",
        "Private key of tls.peer.cert_file (PEM)",
    ),
    setting(
        "tls.peer.trusted_ca_file",
        "",
        "Authority that signs peer certificates (PEM)",
    ),
    setting(
        "tls.reload_interval",
        "10s",
        "Interval between checks for changed certificate files; 0s to reload on SIGHUP only",
    ),
    setting(
        "tls.client.crl_file",
        "",
        "Revocation list for client certificates (PEM)",
    ),
    setting(
        "tls.client.allowed_sans",
        "",
        "Names of the clients that may connect; if empty, all with a valid certificate",
    ),
    setting(
        "tls.peer.crl_file",
        "",
        "Revocation list for peer certificates (PEM)",
    ),
    setting(
        "tls.peer.allowed_sans",
        "",
        "Names of the nodes that may connect; if empty, all with a valid certificate",
    ),
    setting(
        "auth.token_ttl",
        "5m",
        "Lifetime of a token issued for a password",
    ),
    setting(
        "auth.audit_file",
        "",
        "Audit file, which records changes and refused requests; none if empty",
    ),
    setting(
        "backup.schedule",
        "",
        "Interval between scheduled backups on this node, for example 1h; none if empty",
    ),
    setting("backup.dir", "", "Directory for scheduled backups"),
    setting(
        "backup.keep",
        "24",
        "Number of scheduled backups to keep per cluster",
    ),
    setting("log.format", "json", "Format of log lines: json or text"),
    setting(
        "log.filter",
        "info",
        "Filter for log lines, for example info,leasehold::raft=debug",
    ),
    setting(
        "log.slow_request",
        "100ms",
        "Time inside the server from which on a request is logged as slow, with its phases; 0s to \
         disable",
    ),
    setting(
        "tracing.otlp_endpoint",
        "",
        "Collector that receives traces (OTLP over HTTP), for example http://127.0.0.1:4318; none \
         if empty",
    ),
    setting(
        "tracing.sample_ratio",
        "0.0",
        "Fraction of requests to trace, from 0 to 1, in addition to slow ones",
    ),
];

/// The environment variable of a setting: `LEASEHOLD_` and the key in capitals.
pub fn environment_variable(key: &str) -> String {
    format!("LEASEHOLD_{}", key.replace('.', "_").to_uppercase())
}

/// Where settings come from, weakest first.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The configuration file, if there is one. Relative paths in it start at its own directory.
    pub file: Option<PathBuf>,
    /// Environment variables; those that are not ours are passed over.
    pub env: Vec<(String, String)>,
    /// Flags as `(section.key, value)`.
    pub flags: Vec<(String, String)>,
}

/// A node's configuration. Whoever holds one need check nothing again.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Who this node is.
    pub node: NodeConfig,
    /// Which sockets it opens.
    pub listen: ListenConfig,
    /// How others reach it.
    pub advertise: AdvertiseConfig,
    /// The members a new cluster begins with, this node among them, sorted by name. Where the cluster
    /// exists: members that can be asked, perhaps without this node.
    pub initial_members: Vec<InitialMember>,
    /// What an empty data directory is.
    pub cluster_state: ClusterState,
    /// Timeouts of consensus and of the leader's lease.
    pub timing: Timing,
    /// What a request may cost.
    pub limits: Limits,
    /// When the log is cut, and how a state is sent.
    pub snapshots: SnapshotConfig,
    /// What client leases may be.
    pub leases: LeaseOptions,
    /// Maximum number of requests in flight per connection.
    pub inflight_max: usize,
    /// What may wait in this node, of all connections.
    pub work: AdmissionOptions,
    /// Who may connect to the client port.
    pub connections: Admission,
    /// How large the state may become.
    pub quota: QuotaConfig,
    /// How history is given up and removed.
    pub compaction: CompactionConfig,
    /// What watches may cost.
    pub watch: WatchOptions,
    /// How state and log are stored.
    pub storage: StorageConfig,
    /// Certificates of the client port.
    pub tls_client: TlsFiles,
    /// How often the files of both ports are looked at; `None` for when somebody asks.
    pub tls_reload_interval: Option<Duration>,
    /// Certificates of the peer port.
    pub tls_peer: TlsFiles,
    /// How long a token is good for.
    pub auth_token_ttl: Duration,
    /// Where it is written down who did what, if anywhere.
    pub auth_audit_file: Option<PathBuf>,
    /// What backups this node writes by itself, if any.
    pub backup: Option<BackupConfig>,
    /// What is logged, and how.
    pub log: LogConfig,
    /// Who is told of single requests, and of which.
    pub tracing: TracingConfig,
    /// All of it as it was given, with the places it came from.
    pub settings: Settings,
}

/// Who a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its name, unique in the cluster.
    pub name: String,
    /// Its data directory.
    pub data_dir: PathBuf,
}

/// Which sockets a node opens. Port 0 lets the system choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// For clients (UDP).
    pub client: SocketAddr,
    /// For peers (UDP). Its port is 0 only in a cluster of one.
    pub peer: SocketAddr,
    /// For administration, probes and metrics (TCP); always a loopback address.
    pub admin: SocketAddr,
    /// For probes and metrics only (TCP).
    pub metrics: Option<SocketAddr>,
}

/// How others reach a node, as `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvertiseConfig {
    /// For clients; `None` when the system chooses the port: then it is the address bound.
    pub client: Option<String>,
    /// For peers; `None` when the system chooses the port, in a cluster of one.
    pub peer: Option<String>,
}

/// One of the members a new cluster begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Its name.
    pub name: String,
    /// Where its peers reach it, as `host:port`; `None` only for a member that is alone and lets
    /// the system choose its port.
    pub address: Option<String>,
}

/// When the log is cut, and how a state is sent to a node that needs what was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// The log is cut when it holds so many applied entries beyond those that are kept.
    pub entries: u64,
    /// So many are kept.
    pub catchup_entries: u64,
    /// The log is also cut when its applied entries have so many bytes; half of that is kept.
    pub log_bytes: u64,
    /// Bytes a second that are sent at most, to all nodes together.
    pub send_bytes_per_second: u64,
}

/// How history is given up and removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// What the leader gives up without being asked.
    pub auto: AutoCompaction,
    /// Most changes removed in one step.
    pub batch_limit: usize,
    /// The rest between two steps.
    pub sleep_interval: Duration,
}

/// How state and log are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// Memory for the cache of recently read state, in bytes.
    pub cache_bytes: u64,
    /// Size of one log segment, in bytes.
    pub segment_bytes: u64,
    /// How often the nodes compare their states, if at all.
    pub corruption_check_interval: Option<Duration>,
}

/// Certificates of one port: the first three are needed, for both sides of every connection show one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// What this node shows.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Who signs the other side.
    pub trusted_ca_file: PathBuf,
    /// What those have revoked, if that is to be looked at.
    pub crl_file: Option<PathBuf>,
    /// Who may be at the other side, by name; everybody who is signed if it is empty.
    pub allowed_sans: Vec<String>,
}

impl TlsFiles {
    /// The same, for whoever loads them.
    pub(crate) fn paths(&self) -> TlsPaths {
        TlsPaths {
            ca: self.trusted_ca_file.clone(),
            certificate: self.cert_file.clone(),
            key: self.key_file.clone(),
            crl: self.crl_file.clone(),
        }
    }
}

/// What backups a node writes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupConfig {
    /// How often.
    pub interval: Duration,
    /// Where to.
    pub dir: PathBuf,
    /// How many are kept.
    pub keep: usize,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// How a line looks.
    pub format: LogFormat,
    /// Which lines are written, in the syntax of `tracing_subscriber::EnvFilter`.
    pub filter: String,
    /// Which requests are told of because they took so long; `None` for none.
    pub slow_request: Option<Duration>,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// The largest request that fits a peer frame (2 MiB) with what the log adds to it.
const REQUEST_BYTES_MAX: u64 = (2 << 20) - (64 << 10);
/// The longest key whose escaped history key still fits what fjall takes (65,535 bytes).
const KEY_BYTES_MAX: u64 = 16 << 10;
/// What a request holds besides key and value, generously.
const REQUEST_OVERHEAD: u64 = 1 << 10;

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// The first thing that is wrong, weakest source first; see [`ConfigError`].
    pub fn load(sources: ConfigSources) -> Result<Self, ConfigError> {
        let values = Values::collect(sources)?;
        let name = node_name(&values)?;
        let listen = listen(&values)?;
        let cluster_state = cluster_state(&values)?;
        let initial_members = initial_members(&values, &name, &listen, cluster_state)?;
        let own = initial_members.iter().find(|member| member.name == name);
        let own_address = own.and_then(|member| member.address.as_deref());
        let advertise = advertise(&values, &listen, own_address)?;
        let limits = limits(&values)?;
        Ok(Self {
            node: NodeConfig {
                name,
                data_dir: values.path("node.data_dir")?,
            },
            listen,
            advertise,
            initial_members,
            cluster_state,
            timing: timing(&values)?,
            limits,
            snapshots: snapshots(&values)?,
            leases: leases(&values)?,
            inflight_max: values.integer("limits.max_inflight", 1, 65_536)? as usize,
            work: bounds::work(&values)?,
            connections: bounds::connections(&values)?,
            quota: bounds::quota(&values)?,
            compaction: compaction(&values)?,
            watch: watch(&values)?,
            storage: storage(&values, &limits)?,
            tls_client: tls(&values, "client")?,
            tls_reload_interval: tls_reload_interval(&values)?,
            tls_peer: tls(&values, "peer")?,
            auth_token_ttl: values.duration_between(
                "auth.token_ttl",
                Duration::from_secs(1),
                Duration::from_secs(30 * 24 * 3_600),
            )?,
            auth_audit_file: values.optional("auth.audit_file")?.map(PathBuf::from),
            backup: backup(&values)?,
            log: log(&values)?,
            tracing: traces::traces(&values)?,
            settings: Settings::of(&values),
        })
    }
}

fn watch(values: &Values) -> Result<WatchOptions, ConfigError> {
    let per_connection_max = values.integer("watch.max_per_connection", 1, 10_000)?;
    let interval = "watch.progress_notify_interval";
    let progress_interval = values.duration(interval)?;
    if progress_interval < Duration::from_millis(100) {
        return Err(values.invalid(interval, "choose at least 100ms"));
    }
    // Several may campaign in vain before one is elected.
    let elections = values.duration("raft.election_timeout_max")? * 3;
    let defaults = WatchOptions::default();
    Ok(WatchOptions {
        leaderless_max: elections.max(defaults.leaderless_max),
        per_connection_max: per_connection_max as usize,
        progress_interval,
        memory_bytes_max: values.bytes("watch.memory_budget", 1 << 20, 1 << 40)? as usize,
    })
}

fn node_name(values: &Values) -> Result<String, ConfigError> {
    let name = values.required("node.name")?;
    if is_name(&name) {
        return Ok(name);
    }
    Err(values.invalid(
        "node.name",
        "a name has 1 to 64 of a-z A-Z 0-9 . _ - and starts with a letter or digit",
    ))
}

fn listen(values: &Values) -> Result<ListenConfig, ConfigError> {
    let listen = ListenConfig {
        client: values.socket_address("listen.client")?,
        peer: values.socket_address("listen.peer")?,
        admin: values.socket_address("listen.admin")?,
        metrics: match values.optional("listen.metrics")? {
            Some(_) => Some(values.socket_address("listen.metrics")?),
            None => None,
        },
    };
    if !listen.admin.ip().is_loopback() {
        return Err(values.invalid(
            "listen.admin",
            "the admin port can change the node and is only served on loopback: use an address \
             such as 127.0.0.1:7480 here, and listen.metrics for probes and metrics from other \
             machines",
        ));
    }
    if overlap(listen.client, listen.peer) {
        return Err(values.same_socket("listen.client", "listen.peer"));
    }
    if listen
        .metrics
        .is_some_and(|metrics| overlap(listen.admin, metrics))
    {
        return Err(values.same_socket("listen.admin", "listen.metrics"));
    }
    Ok(listen)
}

/// Whether two sockets of one protocol cannot both be bound.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    meets && one.port() == other.port() && one.port() != 0
}

fn cluster_state(values: &Values) -> Result<ClusterState, ConfigError> {
    const KEY: &str = "cluster.state";
    match values.required(KEY)?.as_str() {
        "new" => Ok(ClusterState::New),
        "existing" | "join" => Ok(ClusterState::Existing),
        _ => Err(values.invalid(KEY, "choose new, existing or join")),
    }
}

fn initial_members(
    values: &Values,
    name: &str,
    listen: &ListenConfig,
    state: ClusterState,
) -> Result<Vec<InitialMember>, ConfigError> {
    const KEY: &str = "cluster.initial";
    let entries = values.list(KEY)?;
    if entries.is_empty() {
        return alone(values, name, listen);
    }
    let mut names = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for (entry, at) in entries {
        let (member, address) = parse_member(&entry).map_err(|problem| ConfigError::Invalid {
            at: at.clone(),
            key: KEY,
            value: entry.clone(),
            problem,
        })?;
        if names.insert(member.clone(), address.clone()).is_some() {
            return Err(ConfigError::DuplicateNode { at, name: member });
        }
        if let Some(first) = addresses.insert(address.to_lowercase(), member.clone()) {
            return Err(ConfigError::DuplicateAddress {
                at,
                address,
                first,
                second: member,
            });
        }
    }
    if !names.contains_key(name) && state == ClusterState::New {
        return Err(ConfigError::NotAMember {
            at: values.at(KEY),
            name: name.to_owned(),
            members: names.into_keys().collect(),
        });
    }
    if listen.peer.port() == 0 && names.len() > 1 {
        return Err(values.invalid(
            "listen.peer",
            "other nodes cannot know a port chosen by the system: use the port in cluster.initial",
        ));
    }
    let member = |(name, address)| InitialMember {
        name,
        address: Some(address),
    };
    Ok(names.into_iter().map(member).collect())
}

/// The members of a cluster of one.
fn alone(
    values: &Values,
    name: &str,
    listen: &ListenConfig,
) -> Result<Vec<InitialMember>, ConfigError> {
    let address = match values.optional("advertise.peer")? {
        Some(_) => Some(values.address("advertise.peer")?),
        None if listen.peer.port() == 0 => None,
        // Nobody else dials it, so any address of this machine will do.
        None if listen.peer.ip().is_unspecified() => {
            Some(format!("127.0.0.1:{}", listen.peer.port()))
        }
        None => Some(listen.peer.to_string()),
    };
    Ok(vec![InitialMember {
        name: name.to_owned(),
        address,
    }])
}

fn parse_member(entry: &str) -> Result<(String, String), String> {
    let form = "write name=host:port, for example n1=10.0.0.1:7401";
    let (name, address) = entry.split_once('=').ok_or(form)?;
    let (name, address) = (name.trim(), address.trim());
    if !is_name(name) {
        return Err(format!(
            "`{name}` is not a valid node name: a name has 1 to 64 of a-z A-Z 0-9 . _ - and starts \
             with a letter or digit"
        ));
    }
    split_address(address)?;
    Ok((name.to_owned(), address.to_owned()))
}

fn advertise(
    values: &Values,
    listen: &ListenConfig,
    own: Option<&str>,
) -> Result<AdvertiseConfig, ConfigError> {
    let peer = match values.optional("advertise.peer")? {
        None => own.map(str::to_owned),
        Some(_) => {
            let address = values.address("advertise.peer")?;
            if let Some(own) = own.filter(|own| !own.eq_ignore_ascii_case(&address)) {
                return Err(values.invalid(
                    "advertise.peer",
                    &format!(
                        "cluster.initial gives the other nodes {own}: use the same address in \
                         both, or omit advertise.peer"
                    ),
                ));
            }
            Some(address)
        }
    };
    let client = match values.optional("advertise.client")? {
        Some(_) => Some(values.address("advertise.client")?),
        None if listen.client.port() == 0 => None,
        None if !listen.client.ip().is_unspecified() => Some(listen.client.to_string()),
        None => {
            // The host under which peers reach this node is the best guess for clients.
            let host = own
                .or(peer.as_deref())
                .and_then(|own| split_address(own).ok())
                .map(|(host, _)| host);
            let host = host.unwrap_or("127.0.0.1");
            Some(format!("{host}:{}", listen.client.port()))
        }
    };
    Ok(AdvertiseConfig { client, peer })
}

/// The timing, with every relation between its parts checked by those who know why.
fn timing(values: &Values) -> Result<Timing, ConfigError> {
    let options = TimingOptions {
        heartbeat_interval: values.duration("raft.heartbeat_interval")?,
        election_timeout_min: values.duration("raft.election_timeout_min")?,
        election_timeout_max: values.duration("raft.election_timeout_max")?,
        step_down_after: values.duration("raft.step_down_after")?,
        lease_duration: values.duration("leader_lease.duration")?,
        max_clock_skew: values.duration("leader_lease.max_clock_skew")?,
        max_drift_ppm: values.integer("leader_lease.max_drift_ppm", 1, DRIFT_PPM_MAX)? as u32,
        lease_enabled: values.boolean("leader_lease.enabled")?,
        ..TimingOptions::default()
    };
    Timing::new(options).map_err(|error| ConfigError::Relation {
        at: values.at_first_set(keys_to_blame(&error)),
        problem: in_words_of_the_file(&error.to_string()),
    })
}

/// The settings that a broken relation is between, the one to look at first in front.
fn keys_to_blame(error: &TimingError) -> &'static [&'static str] {
    match error {
        TimingError::HeartbeatZero => &["raft.heartbeat_interval"],
        TimingError::LeaseTooLong { .. } => &["leader_lease.duration"],
        TimingError::NothingLeft { .. } => {
            &["leader_lease.max_clock_skew", "leader_lease.duration"]
        }
        TimingError::SkewTooSmall { .. } => &[
            "leader_lease.max_clock_skew",
            "leader_lease.max_drift_ppm",
            "leader_lease.duration",
        ],
        TimingError::HeartbeatTooLong { .. } => &[
            "raft.heartbeat_interval",
            "leader_lease.duration",
            "leader_lease.max_clock_skew",
        ],
        TimingError::ElectionTooSoon { .. } => {
            &["raft.election_timeout_min", "leader_lease.duration"]
        }
        TimingError::ElectionNotSpread { .. } => {
            &["raft.election_timeout_max", "raft.election_timeout_min"]
        }
        TimingError::StepDownOutside { .. } => &[
            "raft.step_down_after",
            "leader_lease.duration",
            "raft.election_timeout_max",
        ],
    }
}

/// Consensus names its settings without the sections of the file.
fn in_words_of_the_file(sentence: &str) -> String {
    let names = [
        ("heartbeat_interval", "raft.heartbeat_interval"),
        ("election_timeout_min", "raft.election_timeout_min"),
        ("election_timeout_max", "raft.election_timeout_max"),
        ("step_down_after", "raft.step_down_after"),
        ("lease_duration", "leader_lease.duration"),
        ("max_clock_skew", "leader_lease.max_clock_skew"),
    ];
    names.iter().fold(sentence.to_owned(), |text, (name, key)| {
        text.replace(name, key)
    })
}

fn limits(values: &Values) -> Result<Limits, ConfigError> {
    let request = values.bytes("limits.max_request_bytes", 4 << 10, REQUEST_BYTES_MAX)?;
    let key = values.bytes("limits.max_key_bytes", 1, KEY_BYTES_MAX)?;
    let value = values.bytes("limits.max_value_bytes", 1, REQUEST_BYTES_MAX)?;
    if key + value + REQUEST_OVERHEAD > request {
        return Err(ConfigError::Relation {
            at: values.at_first_set(&[
                "limits.max_value_bytes",
                "limits.max_request_bytes",
                "limits.max_key_bytes",
            ]),
            problem: format!(
                "a put of limits.max_key_bytes = {key} and limits.max_value_bytes = {value} does \
                 not fit limits.max_request_bytes = {request}: choose a request size of at least {}",
                key + value + REQUEST_OVERHEAD
            ),
        });
    }
    // Each fits a usize: the largest is REQUEST_BYTES_MAX.
    Ok(Limits {
        key_bytes_max: key as usize,
        value_bytes_max: value as usize,
        request_bytes_max: request as usize,
        reply_bytes_max: request as usize,
        ..Limits::DEFAULT
    })
}

fn snapshots(values: &Values) -> Result<SnapshotConfig, ConfigError> {
    const ENTRIES_MAX: u64 = 1_000_000_000;
    Ok(SnapshotConfig {
        entries: values.integer("raft.snapshot_entries", 1, ENTRIES_MAX)?,
        catchup_entries: values.integer("raft.snapshot_catchup_entries", 0, ENTRIES_MAX)?,
        log_bytes: values.bytes("raft.snapshot_bytes", 4 << 20, 1 << 40)?,
        send_bytes_per_second: values.bytes("raft.snapshot_send_rate", 64 << 10, 1 << 40)?,
    })
}

fn leases(values: &Values) -> Result<LeaseOptions, ConfigError> {
    let at_least = |key: &'static str, least: Duration| {
        let duration = values.duration(key)?;
        if duration < least {
            return Err(ConfigError::Relation {
                at: values.at_first_set(&[key]),
                problem: format!("{key} = {duration:?} is too short: choose {least:?} or more"),
            });
        }
        Ok(duration)
    };
    Ok(LeaseOptions {
        ttl_min: at_least("lease.min_ttl", Duration::from_millis(100))?,
        tick: at_least("lease.tick", Duration::from_millis(1))?,
        checkpoint_min_ttl: at_least("lease.checkpoint_min_ttl", Duration::from_secs(1))?,
        checkpoint_interval: at_least("lease.checkpoint_interval", Duration::from_secs(1))?,
        leases_max: values.integer("lease.max_leases", 1, 100_000_000)?,
        ..LeaseOptions::DEFAULT
    })
}

/// What clients count on for the clocks of a leader and their own (T12): nobody tells them
/// of another bound, and with a larger one a lease could end before its holder knows.
const DRIFT_PPM_MAX: u64 = 20_000;

/// The shortest time for which history is kept.
const RETENTION_MIN: Duration = Duration::from_secs(1);
/// The longest: what is kept longer is better not compacted at all.
const RETENTION_MAX: Duration = Duration::from_secs(3_650 * 24 * 3_600);

fn compaction(values: &Values) -> Result<CompactionConfig, ConfigError> {
    const RETENTION: &str = "compaction.retention";
    let auto = match values.required("compaction.mode")?.as_str() {
        "off" => AutoCompaction::Off,
        "periodic" => AutoCompaction::Periodic {
            retention: values.duration_between(RETENTION, RETENTION_MIN, RETENTION_MAX)?,
        },
        "revision" => {
            let text = values.required(RETENTION)?;
            let keep = text.parse().ok().filter(|keep| *keep >= 1);
            AutoCompaction::Revisions {
                keep: keep.ok_or_else(|| {
                    values.invalid(
                        RETENTION,
                        "with compaction.mode = \"revision\" it is a number of revisions of at \
                         least 1, for example \"10000\"",
                    )
                })?,
            }
        }
        _ => return Err(values.invalid("compaction.mode", "choose periodic, revision or off")),
    };
    let rest = "compaction.sleep_interval";
    Ok(CompactionConfig {
        auto,
        batch_limit: values.integer("compaction.batch_limit", 1, 100_000)? as usize,
        sleep_interval: values.duration_between(rest, Duration::ZERO, Duration::from_secs(60))?,
    })
}

fn storage(values: &Values, limits: &Limits) -> Result<StorageConfig, ConfigError> {
    let segment_bytes = values.bytes("storage.segment_bytes", 4 << 20, 1 << 30)?;
    let least = 4 * limits.request_bytes_max as u64;
    if segment_bytes < least {
        return Err(ConfigError::Relation {
            at: values.at_first_set(&["storage.segment_bytes", "limits.max_request_bytes"]),
            problem: format!(
                "storage.segment_bytes = {segment_bytes} is below four times \
                 limits.max_request_bytes: a segment must hold several of the largest entries; \
                 choose at least {least}"
            ),
        });
    }
    let most = Duration::from_secs(24 * 3_600);
    let check_interval =
        values.duration_between("storage.corruption_check_interval", Duration::ZERO, most)?;
    Ok(StorageConfig {
        cache_bytes: values.bytes("storage.cache_bytes", 1 << 20, 1 << 44)?,
        segment_bytes,
        corruption_check_interval: Some(check_interval).filter(|interval| !interval.is_zero()),
    })
}

fn tls_reload_interval(values: &Values) -> Result<Option<Duration>, ConfigError> {
    let most = Duration::from_secs(24 * 3_600);
    let interval = values.duration_between("tls.reload_interval", Duration::ZERO, most)?;
    Ok(Some(interval).filter(|interval| !interval.is_zero()))
}

fn tls(values: &Values, port: &str) -> Result<TlsFiles, ConfigError> {
    let file = |name: &str| values.path(&format!("tls.{port}.{name}"));
    Ok(TlsFiles {
        cert_file: file("cert_file")?,
        key_file: file("key_file")?,
        trusted_ca_file: file("trusted_ca_file")?,
        crl_file: values
            .optional(&format!("tls.{port}.crl_file"))?
            .map(PathBuf::from),
        allowed_sans: values
            .list(&format!("tls.{port}.allowed_sans"))?
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
    })
}

/// The longest time between two backups: what is rarer needs no server.
const BACKUP_INTERVAL_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

fn backup(values: &Values) -> Result<Option<BackupConfig>, ConfigError> {
    const SCHEDULE: &str = "backup.schedule";
    if values.optional(SCHEDULE)?.is_none() {
        return match values.optional("backup.dir")? {
            None => Ok(None),
            Some(_) => Err(ConfigError::Relation {
                at: values.at("backup.dir"),
                problem: "backup.dir is set but backup.schedule is not: set it, for example to \
                          \"1h\""
                    .to_owned(),
            }),
        };
    }
    let second = Duration::from_secs(1);
    Ok(Some(BackupConfig {
        interval: values.duration_between(SCHEDULE, second, BACKUP_INTERVAL_MAX)?,
        dir: values.path("backup.dir")?,
        keep: values.integer("backup.keep", 1, 1_000_000)? as usize,
    }))
}

fn log(values: &Values) -> Result<LogConfig, ConfigError> {
    let format = match values.required("log.format")?.as_str() {
        "json" => LogFormat::Json,
        "text" => LogFormat::Text,
        _ => return Err(values.invalid("log.format", "choose json or text")),
    };
    let most = Duration::from_secs(3_600);
    let slow_request = values.duration_between("log.slow_request", Duration::ZERO, most)?;
    Ok(LogConfig {
        format,
        filter: values.required("log.filter")?,
        slow_request: Some(slow_request).filter(|from| !from.is_zero()),
    })
}

#[cfg(test)]
mod tests;
