//! From file, environment and flags to a valid [`Config`].
//!
//! Every setting is declared once, in `sections`: its key, type, default, range and help. So the
//! file, the environment (`LEASEHOLD_SECTION_KEY`) and the flags (`--section.key`) have the same
//! names, and a misspelt key is found in each of them. The strongest source that has a key wins:
//! flags, then environment, then file, then default.
//!
//! Every error names the place of the value, the reason, and what would be valid. Only the
//! configuration file itself is opened here: whether an address can be bound or a certificate read is
//! found when it is needed.

mod cluster;
mod effective;
mod error;
mod limits;
mod sections;
mod setting;
mod source;
#[cfg(test)]
mod tests;
mod timing;
mod traces;
mod unknown;
mod value;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use self::cluster::{ClusterConfig, InitialMember, SrvDiscovery};
pub use self::effective::EffectiveConfig;
pub use self::error::{At, ConfigError};
pub use self::limits::WatchOptions;
pub use self::sections::{
    AdmissionOptions, AdvertiseConfig, ListenConfig, LogConfig, NodeConfig, QuotaConfig, SETTINGS,
    SnapshotConfig, StorageConfig, TracingConfig,
};
pub use self::setting::{Setting, environment_variable};
pub use self::source::{ConfigSources, variables_as_text};
pub use self::traces::Collector;
pub use self::unknown::{UnknownVariable, unknown_variables};
pub use self::value::LogFormat;
pub use crate::node::recovery::ClusterState;

use self::sections::{
    AdminSettings, AuthSettings, BackupSettings, CompactionSettings, ConsoleSettings,
    EtcdCompatSettings, LeaseSettings, RaftSettings, TlsSettings,
};
use self::source::Values;
use crate::api::Limits;
use crate::node::{AutoCompaction, LeaseOptions};
use crate::raft::Timing;
use crate::transport::{Admission, SpiffeRule, SpiffeUsers, TlsPaths};

/// The configuration of a node. It is valid: nothing needs to be checked again.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The identity of this node.
    pub node: NodeConfig,
    /// Its sockets.
    pub listen: ListenConfig,
    /// The addresses at which others reach it.
    pub advertise: AdvertiseConfig,
    /// The cluster.
    pub cluster: ClusterConfig,
    /// Timeouts of consensus and of the leader lease.
    pub timing: Timing,
    /// When the log is truncated, and how snapshots are sent.
    pub snapshots: SnapshotConfig,
    /// Client leases.
    pub leases: LeaseOptions,
    /// Limits of a request.
    pub limits: Limits,
    /// Limits of the work that this node accepts.
    pub work: AdmissionOptions,
    /// Limits of the connections to the client port.
    pub connections: Admission,
    /// The quota of the state on disk.
    pub quota: QuotaConfig,
    /// Compaction of history.
    pub compaction: CompactionConfig,
    /// Limits of watches.
    pub watch: WatchOptions,
    /// How log and state are stored.
    pub storage: StorageConfig,
    /// Certificates.
    pub tls: TlsConfig,
    /// Authentication of users, and the audit file.
    pub auth: AuthConfig,
    /// Scheduled backups, if any.
    pub backup: Option<BackupConfig>,
    /// What the node tells of its work.
    pub observability: ObservabilityConfig,
    /// All settings, with their sources.
    pub effective: EffectiveConfig,
}

/// What a node tells of its work, beside its metrics.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservabilityConfig {
    /// The log of what the node does.
    pub log: LogConfig,
    /// Traces of requests.
    pub tracing: TracingConfig,
    /// Whether profiles are made on demand.
    pub profiling: bool,
}

/// Compaction of history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    /// Automatic compaction by the leader.
    pub auto: AutoCompaction,
    /// Maximum number of changes removed in one step.
    pub batch_limit: usize,
    /// Pause between two steps.
    pub sleep_interval: Duration,
}

/// Certificates of the ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates of the client port.
    pub client: TlsFiles,
    /// Certificates of the peer port.
    pub peer: TlsFiles,
    /// The port for etcd's clients, if there is one, and its certificates, if it has any.
    pub etcd: Option<EtcdConfig>,
    /// Interval between checks for changed files; `None` to reload on demand only.
    pub reload_interval: Option<Duration>,
}

/// Certificates of one port. Both sides of a connection present one, so the first three are required.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of this node.
    pub cert_file: PathBuf,
    /// Private key of the certificate.
    pub key_file: PathBuf,
    /// Authority that signs the certificates of the other side.
    pub trusted_ca_file: PathBuf,
    /// Revocation list of that authority, if it is to be checked.
    pub crl_file: Option<PathBuf>,
    /// Names that may connect; if empty, all with a valid certificate.
    pub allowed_sans: Vec<String>,
    /// Which SPIFFE ids of clients are accepted; those of nodes never are.
    pub spiffe: Option<SpiffeUsers>,
}

/// The port for etcd's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its certificates; `None` where it is served without TLS.
    pub tls: Option<EtcdTlsConfig>,
    /// The version of etcd that clients are told.
    pub emulated_version: String,
    /// Maximum size of an answer to a read, in bytes.
    pub max_reply_bytes: usize,
    /// Calls beside each other on one connection, at most.
    pub max_concurrent_streams: u32,
    /// Whether its methods are served as JSON over HTTP, too.
    pub http_gateway: bool,
    /// Whether it serves the console.
    pub console: bool,
}

/// Certificates of the port for etcd's clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTlsConfig {
    /// The files.
    pub files: TlsFiles,
    /// Whether clients must present a certificate.
    pub client_cert_auth: bool,
}

/// Authentication of users, and the audit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    /// Lifetime of a token issued for a password.
    pub token_ttl: Duration,
    /// Audit file, which records changes and refused requests; none if empty.
    pub audit_file: Option<PathBuf>,
    /// The issuer of tokens that this cluster did not give itself, if one is trusted.
    pub oidc: Option<OidcConfig>,
}

/// An issuer of tokens (OpenID Connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// Its name, as in the claim `iss`.
    pub issuer: String,
    /// What the claim `aud` has to contain.
    pub audience: String,
    /// Its public keys (JWKS).
    pub jwks_file: PathBuf,
    /// The claim that names the user.
    pub user_claim: String,
    /// What is put before that claim.
    pub user_prefix: String,
    /// How far its clock and this node's may be apart.
    pub leeway: Duration,
}

/// Scheduled backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupConfig {
    /// Interval between backups.
    pub interval: Duration,
    /// Directory of the backups.
    pub dir: PathBuf,
    /// Number of backups to keep.
    pub keep: usize,
}

/// The shortest and the longest time for which history is kept. What is kept longer is better not
/// compacted at all.
const RETENTION_MIN: Duration = Duration::from_secs(1);
const RETENTION_MAX: Duration = Duration::from_secs(3_650 * 24 * 3_600);

/// The shortest and the longest interval between backups. Rarer ones need no server.
const BACKUP_INTERVAL_MIN: Duration = Duration::from_secs(1);
const BACKUP_INTERVAL_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

impl Config {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// The first error, see [`ConfigError`].
    pub fn load(sources: ConfigSources) -> Result<Self, ConfigError> {
        let values = &Values::collect(SETTINGS, sources)?;
        let node = NodeConfig::read(values)?;
        let listen = cluster::listen(values)?;
        let listen_etcd = listen.etcd;
        let given = AdvertiseConfig::read(values)?;
        let cluster = cluster::cluster(values, &node.name, &listen, given.peer.as_deref())?;
        let mut members = cluster.initial.iter();
        let own = members.find(|member| member.name == node.name);
        let own = own.and_then(|member| member.address.as_deref());
        let advertise = cluster::advertise(values, &listen, given, own)?;
        let limits = limits::requests(values)?;
        let raft = RaftSettings::read(values)?;
        Ok(Self {
            node,
            listen,
            advertise,
            timing: timing::timing(values, &raft)?,
            snapshots: SnapshotConfig::read(values)?,
            leases: leases(values)?,
            limits,
            work: limits::work(values, &limits)?,
            connections: limits::connections(values)?,
            quota: QuotaConfig::read(values)?,
            compaction: compaction(values)?,
            watch: limits::watches(values, &raft)?,
            storage: limits::storage(values, &limits)?,
            tls: tls(values, listen_etcd)?,
            auth: auth(values)?,
            backup: backup(values)?,
            observability: ObservabilityConfig {
                log: LogConfig::read(values)?,
                tracing: TracingConfig::read(values)?,
                profiling: AdminSettings::read(values)?.profiling,
            },
            effective: EffectiveConfig::of(values),
            cluster,
        })
    }
}

impl TlsFiles {
    /// The same files, as the transport loads them.
    pub(crate) fn paths(&self) -> TlsPaths {
        TlsPaths {
            ca: self.trusted_ca_file.clone(),
            certificate: self.cert_file.clone(),
            key: self.key_file.clone(),
            crl: self.crl_file.clone(),
        }
    }
}

fn leases(values: &Values) -> Result<LeaseOptions, ConfigError> {
    let leases = LeaseSettings::read(values)?;
    let (ttl_min, ttl_max) = (leases.min_ttl, leases.max_ttl);
    if ttl_min > ttl_max {
        return Err(ConfigError::Relation {
            at: values.at_first_set(&[LeaseSettings::max_ttl, LeaseSettings::min_ttl]),
            problem: format!(
                "lease.max_ttl = {ttl_max:?} is below lease.min_ttl = {ttl_min:?}, to which shorter \
                 requests are raised: no lease could be granted"
            ),
        });
    }
    Ok(LeaseOptions {
        ttl_min,
        ttl_max,
        tick: leases.tick,
        checkpoint_min_ttl: leases.checkpoint_min_ttl,
        checkpoint_interval: leases.checkpoint_interval,
        leases_max: leases.max_leases,
        keys_max: leases.max_keys,
        per_user_max: leases.max_per_user,
    })
}

fn compaction(values: &Values) -> Result<CompactionConfig, ConfigError> {
    let compaction = CompactionSettings::read(values)?;
    let (mode, retention) = (CompactionSettings::mode, CompactionSettings::retention);
    let auto = match compaction.mode.as_str() {
        "off" => AutoCompaction::Off,
        "periodic" => AutoCompaction::Periodic {
            retention: values.duration(retention, RETENTION_MIN..=RETENTION_MAX)?,
        },
        "revision" => {
            let text = values.required(retention)?;
            let keep = text.parse().ok().filter(|keep| *keep >= 1);
            AutoCompaction::Revisions {
                keep: keep.ok_or_else(|| {
                    values.invalid(
                        retention,
                        "with compaction.mode = \"revision\" it is a number of revisions of at \
                         least 1, for example \"10000\"",
                    )
                })?,
            }
        }
        _ => return Err(values.invalid(mode, "choose periodic, revision or off")),
    };
    Ok(CompactionConfig {
        auto,
        batch_limit: compaction.batch_limit,
        sleep_interval: compaction.sleep_interval,
    })
}

fn tls(values: &Values, etcd_address: Option<SocketAddr>) -> Result<TlsConfig, ConfigError> {
    let tls = TlsSettings::read(values)?;
    Ok(TlsConfig {
        etcd: etcd(values, etcd_address)?,
        client: TlsFiles {
            cert_file: tls.client_cert_file,
            key_file: tls.client_key_file,
            trusted_ca_file: tls.client_trusted_ca_file,
            crl_file: tls.client_crl_file,
            allowed_sans: tls.client_allowed_sans,
            spiffe: spiffe(values, tls.spiffe_trust_domain, tls.spiffe_users)?,
        },
        peer: TlsFiles {
            cert_file: tls.peer_cert_file,
            key_file: tls.peer_key_file,
            trusted_ca_file: tls.peer_trusted_ca_file,
            crl_file: tls.peer_crl_file,
            allowed_sans: tls.peer_allowed_sans,
            spiffe: None,
        },
        reload_interval: tls.reload_interval,
    })
}

fn spiffe(
    values: &Values,
    trust_domain: Option<String>,
    rules: Vec<SpiffeRule>,
) -> Result<Option<SpiffeUsers>, ConfigError> {
    match trust_domain {
        Some(trust_domain) => Ok(Some(SpiffeUsers {
            trust_domain,
            rules,
        })),
        None if rules.is_empty() => Ok(None),
        None => Err(ConfigError::Relation {
            at: values.at(TlsSettings::spiffe_users),
            problem:
                "tls.spiffe.users is set but tls.spiffe.trust_domain is not: set it, for example \
                      to \"example.org\""
                    .to_owned(),
        }),
    }
}

fn etcd(values: &Values, address: Option<SocketAddr>) -> Result<Option<EtcdConfig>, ConfigError> {
    let compat = EtcdCompatSettings::read(values)?;
    let tls = TlsSettings::read(values)?;
    let Some(address) = address else {
        return Ok(None);
    };
    // A list covers an authority: that of another one would refuse every certificate.
    let crl_file = match &tls.etcd_trusted_ca_file {
        Some(_) => tls.etcd_crl_file,
        None => tls.etcd_crl_file.or(tls.client_crl_file),
    };
    let files = TlsFiles {
        cert_file: tls.etcd_cert_file.unwrap_or(tls.client_cert_file),
        key_file: tls.etcd_key_file.unwrap_or(tls.client_key_file),
        trusted_ca_file: tls
            .etcd_trusted_ca_file
            .unwrap_or(tls.client_trusted_ca_file),
        crl_file,
        allowed_sans: tls.etcd_allowed_sans,
        spiffe: spiffe(values, tls.spiffe_trust_domain, tls.spiffe_users)?,
    };
    let tls = EtcdTlsConfig {
        files,
        client_cert_auth: tls.etcd_client_cert_auth,
    };
    Ok(Some(EtcdConfig {
        address,
        tls: (!compat.insecure).then_some(tls),
        emulated_version: compat.emulated_version,
        max_reply_bytes: compat.max_reply_bytes,
        max_concurrent_streams: compat.max_concurrent_streams,
        http_gateway: compat.http_gateway,
        console: ConsoleSettings::read(values)?.enabled,
    }))
}

fn auth(values: &Values) -> Result<AuthConfig, ConfigError> {
    let auth = AuthSettings::read(values)?;
    let needed = |key: &'static str, example: &str| ConfigError::Relation {
        at: values.at(AuthSettings::oidc_issuer),
        problem: format!(
            "auth.oidc.issuer is set but {key} is not: set it, for example to {example}"
        ),
    };
    let oidc = match auth.oidc_issuer {
        Some(issuer) => Some(OidcConfig {
            issuer,
            audience: auth
                .oidc_audience
                .ok_or_else(|| needed(AuthSettings::oidc_audience, "\"leasehold\""))?,
            jwks_file: auth
                .oidc_jwks_file
                .ok_or_else(|| needed(AuthSettings::oidc_jwks_file, "\"jwks.json\""))?,
            user_claim: auth.oidc_user_claim,
            user_prefix: auth.oidc_user_prefix.unwrap_or_default(),
            leeway: auth.oidc_leeway,
        }),
        None if auth.oidc_audience.is_none() && auth.oidc_jwks_file.is_none() => None,
        None => {
            return Err(ConfigError::Relation {
                at: values
                    .at_first_set(&[AuthSettings::oidc_audience, AuthSettings::oidc_jwks_file]),
                problem: "auth.oidc.issuer is not set: set it to the claim iss of its tokens, for \
                          example \"https://login.example.org\""
                    .to_owned(),
            });
        }
    };
    Ok(AuthConfig {
        token_ttl: auth.token_ttl,
        audit_file: auth.audit_file,
        oidc,
    })
}

fn backup(values: &Values) -> Result<Option<BackupConfig>, ConfigError> {
    let (schedule, dir) = (BackupSettings::schedule, BackupSettings::dir);
    if values.optional(schedule)?.is_none() {
        return match values.optional(dir)? {
            None => Ok(None),
            Some(_) => Err(ConfigError::Relation {
                at: values.at(dir),
                problem: "backup.dir is set but backup.schedule is not: set it, for example to \
                          \"1h\""
                    .to_owned(),
            }),
        };
    }
    Ok(Some(BackupConfig {
        interval: values.duration(schedule, BACKUP_INTERVAL_MIN..=BACKUP_INTERVAL_MAX)?,
        dir: values.path(dir)?,
        keep: values.integer(BackupSettings::keep, 1..=1_000_000)?,
    }))
}
