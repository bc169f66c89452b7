//! All settings, by section. `settings!` declares a section.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{At, ConfigError};
use super::setting::Setting;
use super::source::Values;
use super::traces::Collector;
use super::value::LogFormat;
use crate::node::recovery::ClusterState;
use crate::transport::SpiffeRule;

/// Declares a section of the configuration: a struct whose fields are read from the settings
/// `field: Type = "default" in parser(range), "help";`. The help is the documentation of the field,
/// too. The parser is a method of [`Values`].
///
/// The key is `section.field`, or `section.key` for `field as "key"`. `Section::field` is its
/// constant, for errors. A setting that cannot be read without others is declared as
/// `field = "default", "help";`: it has a key but no field, and is read where the others are known.
macro_rules! settings {
    (@key $section:literal $field:ident) => {
        concat!($section, ".", stringify!($field))
    };
    (@key $section:literal $field:ident $key:literal) => {
        concat!($section, ".", $key)
    };
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Section:ident in $section:literal {
            $(
                $field:ident $(as $key:literal)? $(: $Type:ty)? = $default:literal
                $(in $parser:ident($($range:expr)?))?, $help:literal;
            )*
        }
    ) => {
        $(#[$attribute])*
        #[allow(rustdoc::bare_urls, reason = "the help is for terminals as well")]
        $visibility struct $Section {
            $( $( #[doc = $help] pub $field: $Type, )? )*
        }

        #[allow(non_upper_case_globals, reason = "a key has the name of its field")]
        #[allow(dead_code, reason = "errors name few of the keys")]
        #[allow(unused_variables, reason = "a section may have no fields")]
        impl $Section {
            $( pub(super) const $field: &'static str = settings!(@key $section $field $($key)?); )*

            pub(super) const SETTINGS: &'static [Setting] = &[$(
                Setting {
                    key: Self::$field,
                    default: $default,
                    help: $help,
                },
            )*];

            pub(super) fn read(values: &Values) -> Result<Self, ConfigError> {
                Ok(Self {
                    $( $( $field: values.$parser(Self::$field $(, $range)?)?, )? )*
                })
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

const ZERO: Duration = Duration::ZERO;
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const LEEWAY_MAX: Duration = Duration::from_secs(300);
/// That of etcd.
const LEASE_TTL_MAX: Duration = Duration::from_secs(9_000_000_000);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The largest request that fits a peer frame (2 MiB) with what the log adds to it.
const REQUEST_BYTES_MAX: u64 = 2 * MIB - 64 * KIB;
/// The longest key whose escaped history key still fits fjall's limit (65,535 bytes).
const KEY_BYTES_MAX: u64 = 16 * KIB;
/// The engine's journal alone has 64 MiB from the start.
const QUOTA_MIN: u64 = 128 * MIB;
/// The bound that clients assume for the clocks of a leader and their own (T12): they do not learn
/// of another one, and with a larger one a lease could end before its holder knows.
const DRIFT_PPM_MAX: u64 = 20_000;
const ENTRIES_MAX: u64 = 1_000_000_000;
const CONNECTIONS_MAX: u64 = 1_000_000;

/// All settings, in the order of the documentation.
pub const SETTINGS: &[Setting] = &concatenate::<{ count(SECTIONS) }>(SECTIONS);

const SECTIONS: &[&[Setting]] = &[
    NodeConfig::SETTINGS,
    ListenConfig::SETTINGS,
    AdvertiseConfig::SETTINGS,
    ClusterSettings::SETTINGS,
    RaftSettings::SETTINGS,
    SnapshotConfig::SETTINGS,
    LeaderLeaseSettings::SETTINGS,
    ReadLeaseSettings::SETTINGS,
    LeaseSettings::SETTINGS,
    RequestSettings::SETTINGS,
    AdmissionOptions::SETTINGS,
    ConnectionSettings::SETTINGS,
    QuotaConfig::SETTINGS,
    CompactionSettings::SETTINGS,
    WatchSettings::SETTINGS,
    StorageConfig::SETTINGS,
    TlsSettings::SETTINGS,
    EtcdCompatSettings::SETTINGS,
    ConsoleSettings::SETTINGS,
    AuthSettings::SETTINGS,
    BackupSettings::SETTINGS,
    AdminSettings::SETTINGS,
    LogConfig::SETTINGS,
    TracingConfig::SETTINGS,
];

settings! {
    /// The identity of a node.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct NodeConfig in "node" {
        name: String = "" in node_name(), "Name of this node, as in its certificates";
        data_dir: PathBuf = "" in path(), "Directory for this node's log and state";
        vm_clock: Option<PathBuf> = "" in optional_path(),
            "VMClock device that tells of clocks disrupted by the hypervisor; if empty, /dev/vmclock0 \
             where it exists";
    }
}

settings! {
    /// The sockets of a node. Port 0 lets the system choose.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct ListenConfig in "listen" {
        client: SocketAddr = "0.0.0.0:7400" in socket_address(),
            "Address to listen on for clients (QUIC over UDP)";
        peer: SocketAddr = "0.0.0.0:7401" in socket_address(),
            "Address to listen on for other nodes (QUIC over UDP)";
        admin: SocketAddr = "127.0.0.1:7480" in socket_address(),
            "Address for probes, metrics and administration (HTTP, loopback only)";
        metrics: Option<SocketAddr> = "" in optional_socket_address(),
            "Additional address for probes and metrics, reachable from other machines (HTTP); off if \
             empty";
        etcd: Option<SocketAddr> = "" in optional_socket_address(),
            "Address to listen on for etcd's clients (gRPC over TCP); off if empty";
    }
}

settings! {
    /// The addresses at which others reach a node, as `host:port`; `None` if the system chooses the
    /// port.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AdvertiseConfig in "advertise" {
        client: Option<String> = "" in optional_address(),
            "Address at which clients reach this node, as host:port; default: the host of its entry \
             in cluster.initial";
        peer: Option<String> = "" in optional_address(),
            "Address at which other nodes reach this one, as host:port; default: its entry in \
             cluster.initial";
        etcd: Option<String> = "" in optional_address(),
            "Address at which etcd's clients reach this node, as host:port; default: the host of \
             advertise.client with the port of listen.etcd";
    }
}

settings! {
    pub(super) struct ClusterSettings in "cluster" {
        initial: Vec<(String, At)> = "" in list(),
            "Initial members, as name=host:port; default: this node alone. When joining: the members \
             to contact";
        state: ClusterState = "new" in cluster_state(),
            "How to start with an empty data directory: new (take part in the bootstrap of the \
             cluster), existing or join (the cluster exists; learn this node's identity from its \
             members)";
        discovery_srv: Option<String> = "" in optional(),
            "Domain whose DNS SRV records _leasehold-server._udp.DOMAIN name the initial members, each by \
             the first label of its target, where cluster.initial is not set; none if empty";
        discovery_srv_name: Option<String> = "" in optional(),
            "Suffix of the service in the records of cluster.discovery_srv: \
             _leasehold-server-SUFFIX._udp.DOMAIN";
        discovery_size: usize = "3" in integer(1..=99),
            "Number of members that cluster.discovery_srv must name: a node waits until they are all \
             there";
        discovery_dns: Option<SocketAddr> = "" in optional_socket_address(),
            "DNS server that is asked for cluster.discovery_srv; default: those of /etc/resolv.conf";
    }
}

settings! {
    pub(super) struct RaftSettings in "raft" {
        heartbeat_interval: Duration = "50ms" in duration(ZERO..=HOUR),
            "Interval between heartbeats of the leader";
        election_timeout_min: Duration = "550ms" in duration(ZERO..=HOUR),
            "Minimum election timeout: how long a node hears no leader before it campaigns";
        election_timeout_max: Duration = "1s" in duration(ZERO..=HOUR),
            "Maximum election timeout";
        step_down_after: Duration = "750ms" in duration(ZERO..=HOUR),
            "How long a leader hears no quorum before it steps down";
    }
}

settings! {
    /// When the log is truncated, and how snapshots are sent.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SnapshotConfig in "raft" {
        entries as "snapshot_entries": u64 = "10000" in integer(1..=ENTRIES_MAX),
            "Entries, beyond snapshot_catchup_entries, after which the log is truncated";
        catchup_entries as "snapshot_catchup_entries": u64 = "5000" in integer(0..=ENTRIES_MAX),
            "Entries kept when the log is truncated, for followers that lag behind";
        log_bytes as "snapshot_bytes": u64 = "256MiB" in bytes(4 * MIB..=TIB),
            "Size of the entries after which the log is truncated even if they are few; half are \
             kept";
        send_bytes_per_second as "snapshot_send_rate": u64 = "64MiB" in bytes(64 * KIB..=TIB),
            "Maximum rate at which a node sends snapshots, in bytes per second";
    }
}

settings! {
    pub(super) struct LeaderLeaseSettings in "leader_lease" {
        enabled: bool = "true" in boolean(),
            "Whether this node serves reads under a leader lease";
        duration: Duration = "500ms" in duration(ZERO..=HOUR),
            "How long a voter promises not to vote for another leader";
        max_clock_skew: Duration = "50ms" in duration(ZERO..=HOUR),
            "Safety margin: how much earlier than the promise the leader lease ends";
        max_drift_ppm: u32 = "20000" in integer(1..=DRIFT_PPM_MAX),
            "Maximum rate error of a machine's clock, in parts per million, at most 20000";
    }
}

settings! {
    pub(super) struct ReadLeaseSettings in "read_lease" {
        enabled: bool = "false" in boolean(),
            "Whether this node asks its leader for a read lease, by which it serves linearizable reads \
             without asking the leader; commits then wait for this node";
        max_write_delay: Duration = "50ms" in duration(Duration::from_millis(1)..=HOUR),
            "How long this node, as the leader, lets commits wait for the holder of a read lease before \
             it recalls that; above the round trip to the holder";
    }
}

settings! {
    pub(super) struct LeaseSettings in "lease" {
        min_ttl: Duration = "500ms" in duration_at_least(Duration::from_millis(100)),
            "Minimum TTL of a client lease; shorter requests are raised to it";
        max_ttl: Duration = "9000000000s" in duration(SECOND..=LEASE_TTL_MAX),
            "Maximum TTL of a client lease, at least lease.min_ttl; longer requests are refused. The \
             leader's setting decides, for grants and changes of a TTL from then on";
        tick: Duration = "10ms" in duration_at_least(Duration::from_millis(1)),
            "Resolution of client lease expiry: how late a lease may expire because of batching";
        checkpoint_min_ttl: Duration = "5m" in duration_at_least(SECOND),
            "Minimum TTL of the client leases whose remaining time is checkpointed, so that it \
             survives a change of leader";
        checkpoint_interval: Duration = "1m" in duration_at_least(SECOND),
            "Interval between checkpoints of a client lease";
        max_leases: u64 = "1000000" in integer(1..=100_000_000),
            "Maximum number of client leases";
        max_keys: u64 = "100000" in integer(1..=1_000_000),
            "Maximum number of keys attached to a client lease, as the leader that grants it has it: \
             the lease keeps it";
        max_per_user: u64 = "0" in integer(0..=100_000_000),
            "Maximum number of client leases of one user while access is controlled; 0: no limit";
    }
}

settings! {
    pub(super) struct RequestSettings in "limits" {
        max_request_bytes: usize = "1.5MiB" in bytes(4 * KIB..=REQUEST_BYTES_MAX),
            "Maximum size of a request or reply";
        max_key_bytes: usize = "16KiB" in bytes(1..=KEY_BYTES_MAX), "Maximum length of a key";
        max_value_bytes: usize = "1519KiB" in bytes(1..=REQUEST_BYTES_MAX),
            "Maximum length of a value";
    }
}

settings! {
    /// Limits of the work that a node accepts.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AdmissionOptions in "limits" {
        in_flight_max as "max_inflight": usize = "4096" in integer(1..=65_536),
            "Maximum number of requests in flight per connection";
        waiting_max as "max_waiting": usize = "16384" in integer(16..=1 << 20),
            "Maximum number of requests of all connections waiting for the log, the state or a scan; \
             keep-alives may use all of it, reads less, writes less than reads, scans least";
        bytes_max as "memory_budget": usize = "256MiB" in bytes(0..=u64::MAX),
            "Memory for waiting requests and for the results of scans, all connections together";
        connection_bytes_max as "connection_memory_budget": usize = "64MiB" in bytes(0..=u64::MAX),
            "Memory for the same purposes, per connection";
        user_rate_max as "max_request_rate_per_user": u64 = "0" in integer(0..=10_000_000),
            "Maximum number of requests a second of one user at this node, not counting renewals of \
             leases, logins, and requests about members, the status of nodes and who leads; a read by \
             an etcd client counts once; 0: no limit";
    }
}

settings! {
    pub(super) struct ConnectionSettings in "limits" {
        max_connections: usize = "4096" in integer(1..=CONNECTIONS_MAX),
            "Maximum number of client connections";
        max_connections_per_client: usize = "64" in integer(1..=CONNECTIONS_MAX),
            "Maximum number of connections per client, identified by its certificate";
        max_connections_per_address: usize = "128" in integer(1..=CONNECTIONS_MAX),
            "Maximum number of client connections per IP address, including those in their handshake";
        max_handshakes: usize = "512" in integer(1..=65_536),
            "Maximum number of concurrent handshakes; above a quarter of it, unauthenticated peers \
             must validate their address first";
        max_handshake_rate: u32 = "20" in integer(1..=1_000_000),
            "Handshakes per second from one network (/24 or /48) above which its unauthenticated \
             peers must do so";
    }
}

settings! {
    /// The quota of the state on disk.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct QuotaConfig in "quota" {
        bytes: u64 = "8GiB" in bytes(QUOTA_MIN..=1024 * TIB),
            "Maximum size of the state on disk; above it, puts and lease grants are refused until \
             space is freed";
        warn_ratio: f64 = "0.8" in ratio(),
            "Fraction of quota.bytes above which this node warns";
    }
}

settings! {
    pub(super) struct CompactionSettings in "compaction" {
        mode: String = "periodic" in required(),
            "Automatic compaction of history: periodic, revision or off";
        retention = "1h",
            "History to keep: a duration if periodic, a number of revisions if by revision";
        batch_limit: usize = "1000" in integer(1..=100_000),
            "Maximum number of changes removed from disk in one step of a compaction";
        sleep_interval: Duration = "10ms" in duration(ZERO..=MINUTE),
            "Pause between two such steps";
    }
}

settings! {
    pub(super) struct WatchSettings in "watch" {
        progress_notify_interval: Duration = "10s" in duration(ZERO..=HOUR),
            "Interval between progress notifications to watches that requested them";
        max_per_connection: usize = "10000" in integer(1..=10_000),
            "Maximum number of watches per connection";
        memory_budget: usize = "128MiB" in bytes(MIB..=TIB),
            "Memory for events queued for watches";
    }
}

settings! {
    /// How log and state are stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct StorageConfig in "storage" {
        cache_bytes: u64 = "256MiB" in bytes(MIB..=16 * TIB),
            "Memory for the cache of recently read state";
        corruption_check_interval: Option<Duration> = "1m" in optional_duration(DAY),
            "Interval between comparisons of the nodes' state hashes; 0s to disable";
        segment_bytes: u64 = "64MiB" in bytes(4 * MIB..=GIB),
            "Size of a segment file of the log";
    }
}

settings! {
    pub(super) struct TlsSettings in "tls" {
        client_cert_file as "client.cert_file": PathBuf = "" in path(), "Server certificate (PEM)";
        client_key_file as "client.key_file": PathBuf = "" in path(),
            "Private key of tls.client.cert_file (PEM)";
        client_trusted_ca_file as "client.trusted_ca_file": PathBuf = "" in path(),
            "Authority that signs client certificates (PEM)";
        peer_cert_file as "peer.cert_file": PathBuf = "" in path(), "Peer certificate (PEM)";
        peer_key_file as "peer.key_file": PathBuf = "" in path(),
            "Private key of tls.peer.cert_file (PEM)";
        peer_trusted_ca_file as "peer.trusted_ca_file": PathBuf = "" in path(),
            "Authority that signs peer certificates (PEM)";
        reload_interval: Option<Duration> = "10s" in optional_duration(DAY),
            "Interval between checks for changed certificate files; 0s to reload on SIGHUP only";
        client_crl_file as "client.crl_file": Option<PathBuf> = "" in optional_path(),
            "Revocation list for client certificates (PEM)";
        client_allowed_sans as "client.allowed_sans": Vec<String> = "" in names(),
            "Names of the clients that may connect; if empty, all with a valid certificate";
        etcd_crl_file as "etcd.crl_file": Option<PathBuf> = "" in optional_path(),
            "Revocation list for the certificates of etcd's clients (PEM or DER); default: \
             tls.client.crl_file, unless tls.etcd.trusted_ca_file is set";
        etcd_allowed_sans as "etcd.allowed_sans": Vec<String> = "" in names(),
            "Names of etcd's clients that may connect, or hosts that their certificates are for; they must \
             then present one; if empty, all";
        etcd_cert_file as "etcd.cert_file": Option<PathBuf> = "" in optional_path(),
            "Server certificate of listen.etcd (PEM); default: tls.client.cert_file";
        etcd_key_file as "etcd.key_file": Option<PathBuf> = "" in optional_path(),
            "Private key of tls.etcd.cert_file (PEM); default: tls.client.key_file";
        etcd_trusted_ca_file as "etcd.trusted_ca_file": Option<PathBuf> = "" in optional_path(),
            "Authority that signs the certificates of etcd's clients (PEM); default: \
             tls.client.trusted_ca_file";
        etcd_client_cert_auth as "etcd.client_cert_auth": bool = "false" in boolean(),
            "Whether etcd's clients must present a certificate; one that is presented must be valid \
             in any case";
        peer_crl_file as "peer.crl_file": Option<PathBuf> = "" in optional_path(),
            "Revocation list for peer certificates (PEM)";
        peer_allowed_sans as "peer.allowed_sans": Vec<String> = "" in names(),
            "Names of the nodes that may connect; if empty, all with a valid certificate";
        spiffe_trust_domain as "spiffe.trust_domain": Option<String> = "" in trust_domain(),
            "Trust domain whose SPIFFE ids in client certificates name users; none are accepted if empty";
        spiffe_users as "spiffe.users": Vec<SpiffeRule> = "" in spiffe_rules(),
            "Users of SPIFFE ids, as path=user, in which * is any one segment, for example \
             /ns/prod/sa/*=prod/*; the first that fits decides, and if empty, the id is the user";
    }
}

settings! {
    pub(super) struct EtcdCompatSettings in "etcd_compat" {
        insecure: bool = "false" in boolean(),
            "Whether listen.etcd is served without TLS: then anyone who reaches it can read along, \
             and without users may do everything";
        emulated_version: String = "3.6.14" in version(),
            "Version of etcd that its clients are told, as three numbers";
        max_reply_bytes: usize = "64MiB" in bytes(2 * MIB..=GIB),
            "Maximum size of an answer to a read of etcd's clients, within limits.memory_budget";
        max_concurrent_streams: u32 = "4096" in integer(1..=4_096),
            "Calls of etcd's clients beside each other on one connection";
        http_gateway: bool = "true" in boolean(),
            "Whether listen.etcd serves its methods as JSON over HTTP, too, as etcd's gateway does";
    }
}

settings! {
    pub(super) struct ConsoleSettings in "console" {
        enabled: bool = "true" in boolean(),
            "Whether listen.etcd serves the console, a page for browsers at /console/, where it serves \
             JSON";
    }
}

settings! {
    pub(super) struct AuthSettings in "auth" {
        token_ttl: Duration = "5m" in duration(SECOND..=MONTH),
            "Lifetime of a token issued for a password";
        audit_file: Option<PathBuf> = "" in optional_path(),
            "Audit file, which records changes and refused requests; none if empty";
        oidc_issuer as "oidc.issuer": Option<String> = "" in optional(),
            "Issuer of tokens (OpenID Connect) that name users, exactly as in their claim iss; none if \
             empty";
        oidc_audience as "oidc.audience": Option<String> = "" in optional(),
            "Audience that tokens of auth.oidc.issuer must have in their claim aud";
        oidc_jwks_file as "oidc.jwks_file": Option<PathBuf> = "" in optional_path(),
            "Public keys of auth.oidc.issuer (JWKS), read again when they change";
        oidc_user_claim as "oidc.user_claim": String = "sub" in required(),
            "Claim of a token that names the user";
        oidc_user_prefix as "oidc.user_prefix": Option<String> = "oidc:" in optional(),
            "What is put before the claim to make the user's name, so that the issuer can name no \
             other user; empty for nothing";
        oidc_leeway as "oidc.leeway": Duration = "30s" in duration(ZERO..=LEEWAY_MAX),
            "How far the clocks of the issuer and of this node may be apart";
    }
}

settings! {
    pub(super) struct BackupSettings in "backup" {
        schedule = "",
            "Interval between scheduled backups on this node, for example 1h; none if empty";
        dir = "", "Directory for scheduled backups";
        keep = "24", "Number of scheduled backups to keep per cluster";
    }
}

settings! {
    pub(super) struct AdminSettings in "admin" {
        profiling: bool = "false" in boolean(),
            "Whether listen.admin serves /debug/profile: what each thread did over some seconds";
    }
}

settings! {
    /// The log of what the node does.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct LogConfig in "log" {
        format: LogFormat = "json" in log_format(), "Format of log lines: json or text";
        filter: String = "info" in required(),
            "Filter for log lines, for example info,leasehold::raft=debug";
        slow_request: Option<Duration> = "100ms" in optional_duration(HOUR),
            "Time inside the server from which on a request is logged as slow, with its phases; 0s \
             to disable";
    }
}

settings! {
    /// Traces of requests.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TracingConfig in "tracing" {
        collector as "otlp_endpoint": Option<Collector> = "" in collector(),
            "Collector that receives traces (OTLP over HTTP), for example http://127.0.0.1:4318; \
             none if empty";
        sample_ratio: f64 = "0.0" in share(),
            "Fraction of requests to trace, from 0 to 1, in addition to slow ones";
    }
}

const fn count(sections: &[&[Setting]]) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < sections.len() {
        count += sections[at].len();
        at += 1;
    }
    count
}

const fn concatenate<const N: usize>(sections: &[&[Setting]]) -> [Setting; N] {
    let mut all = [sections[0][0]; N];
    let (mut section, mut at, mut count) = (0, 0, 0);
    while count < N {
        if at < sections[section].len() {
            all[count] = sections[section][at];
            (at, count) = (at + 1, count + 1);
        } else {
            (section, at) = (section + 1, 0);
        }
    }
    all
}
