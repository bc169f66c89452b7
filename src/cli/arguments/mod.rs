//! What can be typed, with the help that explains it.

pub mod access;
pub mod bench;
mod cert;
pub mod context;
pub(in crate::cli) mod duration;
pub mod elsewhere;
mod kv;
pub mod leader_lease;
pub mod lease;
pub mod lock;
pub mod member;
pub mod mirror;
pub mod offline;
pub mod snapshot;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::access::{AuthCommand, RoleCommand, UserCommand};
use self::bench::{BenchCommand, ChaosArgs, VerifyCommand};
pub use self::cert::{CertCheckArgs, CertCommand, CertInitArgs, CertIssueArgs, CertRenewArgs};
use self::context::ContextCommand;
use self::duration::{parse_duration, parse_timeout};
use self::elsewhere::ElsewhereArgs;
pub use self::kv::{
    CompactionArgs, DelArgs, GetArgs, Order, PutArgs, RangeArgs, SortBy, TxnArgs, WatchArgs,
};
use self::leader_lease::LeaderLeaseCommand;
use self::lease::LeaseCommand;
use self::lock::{ElectArgs, LockArgs};
use self::member::MemberCommand;
use self::mirror::MirrorArgs;
use self::offline::OfflineCommand;
use self::snapshot::SnapshotCommand;
use super::runtime::DevName;
use crate::api::{Consistency, Error, Priority, TraceParent};

const EXAMPLES: &str = "\
Examples:
  leasehold dev                          a cluster of three nodes in one process
  leasehold put foo bar                  no flags are needed while dev runs
  leasehold get foo
  leasehold endpoint status -o table
  leasehold serve --config /etc/leasehold/leasehold.toml

Exit codes: 0 success, 1 refused, 2 usage error, 3 cannot connect, 4 outcome unknown, 5 not found,
6 lease or lock lost, 7 (serve) removed from the cluster, 8 (lock) not acquired within --wait";

/// Deadline for a request where nothing else is said.
pub const TIMEOUT_USUAL: Duration = Duration::from_secs(5);

/// Under which the help lists what [`GlobalArgs`] holds.
pub const CONNECTION_HEADING: &str = "Connection and output";

/// A replicated key-value store whose leader serves linearizable reads under a lease.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, after_help = EXAMPLES)]
#[command(arg_required_else_help = true, propagate_version = false)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every command that talks to a cluster, and how answers are shown.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = CONNECTION_HEADING)]
pub struct GlobalArgs {
    /// Client addresses of the cluster, comma-separated; one reachable address is enough
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_ENDPOINTS",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub endpoints: Vec<String>,
    /// Domain whose DNS SRV records _leasehold-client._udp.DOMAIN name the client addresses, where
    /// --endpoints is not given
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_DISCOVERY_SRV",
        value_name = "DOMAIN"
    )]
    pub discovery_srv: Option<String>,
    /// Suffix of the service in those records: _leasehold-client-SUFFIX._udp.DOMAIN
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_DISCOVERY_SRV_NAME",
        value_name = "SUFFIX"
    )]
    pub discovery_srv_name: Option<String>,
    /// DNS server to ask for them [default: those of /etc/resolv.conf]
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_DISCOVERY_DNS",
        value_name = "IP:PORT"
    )]
    pub discovery_dns: Option<SocketAddr>,
    /// Development cluster to use, by the name that was given to `leasehold dev --name`; default: the
    /// one without a name, if it runs
    #[arg(
        long = "dev",
        global = true,
        env = "LEASEHOLD_DEV",
        value_name = "NAME"
    )]
    pub dev: Option<DevName>,
    /// Cluster to use, by the name of its context (`leasehold context list`); `dev` is the development
    /// cluster without a name. Flags and variables stand above what the context says. Default: the
    /// context chosen by `leasehold context use`, unless --endpoints is given
    #[arg(long, global = true, env = "LEASEHOLD_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// The file of contexts; default: leasehold/contexts.toml in XDG_CONFIG_HOME or in ~/.config
    #[arg(long, global = true, env = "LEASEHOLD_CONTEXTS", value_name = "FILE")]
    pub contexts: Option<PathBuf>,
    /// Certificate of the authority that signs the nodes' certificates (client-ca.pem of `cert
    /// init`)
    #[arg(long, global = true, env = "LEASEHOLD_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Client certificate
    #[arg(long, global = true, env = "LEASEHOLD_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of the client certificate
    #[arg(
        id = "client_key",
        long = "key",
        global = true,
        env = "LEASEHOLD_KEY",
        value_name = "FILE"
    )]
    pub key: Option<PathBuf>,
    /// User to log in as, if it is not the one named in the certificate
    #[arg(long, global = true, env = "LEASEHOLD_USER", value_name = "USER")]
    pub user: Option<String>,
    /// File, private to its owner, whose first line is the user's password; otherwise
    /// LEASEHOLD_PASSWORD is used, or a prompt on the terminal
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_PASSWORD_FILE",
        value_name = "FILE"
    )]
    pub password_file: Option<PathBuf>,
    /// File with a token of the issuer that the cluster trusts (OpenID Connect), to log in as the
    /// user that it names
    #[arg(long, global = true, env = "LEASEHOLD_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Deadline for a request [default: 5s]
    #[arg(
        long,
        visible_alias = "command-timeout",
        global = true,
        env = "LEASEHOLD_TIMEOUT",
        value_name = "DURATION",
        value_parser = parse_timeout
    )]
    pub timeout: Option<Duration>,
    /// Output format
    #[arg(
        short = 'o',
        long,
        visible_short_alias = 'w',
        visible_alias = "write-out",
        global = true,
        env = "LEASEHOLD_OUTPUT",
        value_name = "FORMAT",
        default_value = "simple"
    )]
    pub output: Format,
    /// Retry a write whose outcome is unknown until it is known, and apply it exactly once. Opens a
    /// session first, which costs a second entry in the log
    #[arg(long, global = true)]
    pub exactly_once: bool,
    /// Show keys and values as hexadecimal escapes
    #[arg(long, global = true)]
    pub hex: bool,
    /// Consistency of reads: l (linearizable: under the leader lease, else by a quorum round), q
    /// (linearizable, always by a quorum round), lease (linearizable, only under the lease), s
    /// (serializable: the local state of the node that is asked), or the maximum staleness, such as
    /// 500ms or 5s
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_CONSISTENCY",
        value_name = "l|q|lease|s|DURATION",
        value_parser = parse_consistency,
        default_value = "l"
    )]
    pub consistency: Consistency,
    /// Trace that the requests are a part of, as W3C's traceparent names it: 00-TRACE-SPAN-FLAGS. With
    /// the flags 01, nodes that have a collector send it their spans, as far as there is room; with 00,
    /// those that they would have sent anyway
    #[arg(long, global = true, value_name = "TRACEPARENT", value_parser = parse_traceparent)]
    pub traceparent: Option<TraceParent>,
    /// How much the requests matter: an overloaded node refuses those of low priority first
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_PRIORITY",
        value_name = "PRIORITY",
        default_value = "normal"
    )]
    pub priority: PriorityName,
}

/// How much a request matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PriorityName {
    /// Refused first
    Low,
    /// The usual one
    #[default]
    Normal,
}

impl From<PriorityName> for Priority {
    fn from(name: PriorityName) -> Self {
        match name {
            PriorityName::Low => Self::Low,
            PriorityName::Normal => Self::Normal,
        }
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Short text for people and pipes
    #[default]
    Simple,
    /// One JSON document, keys and values in base64
    Json,
    /// A table
    Table,
    /// One field per line
    Fields,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node
    Serve(ServeArgs),
    /// Run a development cluster in one process
    Dev(DevArgs),
    /// Write a key
    Put(PutArgs),
    /// Read a key, or a range of keys
    Get(GetArgs),
    /// Delete a key, or a range of keys
    Del(DelArgs),
    /// Run a transaction: comparisons, and the operations that depend on them, in one atomic step
    Txn(TxnArgs),
    /// Watch a key, or a range of keys, and print its changes
    Watch(WatchArgs),
    /// Compact history up to a revision
    #[command(visible_alias = "compact")]
    Compaction(CompactionArgs),
    /// Grant, renew and revoke client leases
    #[command(after_help = "Examples:
  leasehold lease grant 60
  leasehold lease keep-alive 1f
  leasehold lease list -o table")]
    Lease {
        /// What to do.
        #[command(subcommand)]
        command: LeaseCommand,
    },
    /// Acquire a lock and hold it, optionally while a command runs
    Lock(LockArgs),
    /// Campaign in an election, or observe its leader
    Elect(ElectArgs),
    /// Query individual nodes
    #[command(after_help = "Examples:
  leasehold endpoint status -o table
  leasehold endpoint status --cluster
  leasehold endpoint health")]
    Endpoint {
        /// What to ask.
        #[command(subcommand)]
        command: EndpointCommand,
    },
    /// List and change the members of the cluster
    #[command(after_help = "Examples:
  leasehold member list -o table
  leasehold member add n4 --peer-urls 10.0.0.4:7401
  leasehold member remove n4")]
    Member {
        /// What to do.
        #[command(subcommand)]
        command: MemberCommand,
    },
    /// Show raised alarms, which restrict what the cluster accepts
    #[command(after_help = "Examples:
  leasehold alarm list")]
    Alarm {
        /// What to do.
        #[command(subcommand)]
        command: AlarmCommand,
    },
    /// Transfer leadership to another node
    MoveLeader(MoveLeaderArgs),
    /// Enable and disable access control
    #[command(after_help = "Examples:
  leasehold auth status
  leasehold auth enable")]
    Auth {
        /// What to do.
        #[command(subcommand)]
        command: AuthCommand,
    },
    /// Manage users
    #[command(after_help = "Examples:
  leasehold user add anna
  leasehold user grant-role anna readers")]
    User {
        /// What to do.
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Manage roles
    #[command(after_help = "Examples:
  leasehold role add readers
  leasehold role grant-permission readers --prefix /svc/ read")]
    Role {
        /// What to do.
        #[command(subcommand)]
        command: RoleCommand,
    },
    /// Show the live state of the cluster: leader, leader lease, reads, client leases at risk
    Top(ClusterTopArgs),
    /// Take the node of this machine out of service before it is stopped
    Drain(DrainArgs),
    /// Save backups and inspect them
    #[command(after_help = "Examples:
  leasehold snapshot save backup.lhs
  leasehold snapshot status backup.lhs -o table")]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Inspect the data of a stopped node; restore it from a backup or a surviving member
    #[command(after_help = "Examples:
  leasehold offline check --data-dir /var/lib/leasehold
  leasehold offline dump-kv --data-dir /var/lib/leasehold")]
    Offline {
        /// What to do.
        #[command(subcommand)]
        command: OfflineCommand,
    },
    /// Re-enable leased reads after a violated clock assumption
    #[command(after_help = "Example:
  leasehold leader-lease clear --data-dir /var/lib/leasehold")]
    LeaderLease {
        /// What to do.
        #[command(subcommand)]
        command: LeaderLeaseCommand,
    },
    /// Generate load on a cluster and measure its performance
    #[command(after_help = "Examples:
  leasehold bench get --clients 64
  leasehold bench lease-expiry --leases 50000 --keep 5s")]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Diagnose a cluster and this machine, and suggest remedies
    #[command(after_help = "Examples:
  leasehold doctor --endpoints n1:7400,n2:7400,n3:7400
  leasehold doctor --data-dir /var/lib/leasehold -o table

Exits with 1 if a check fails.")]
    Doctor(DoctorArgs),
    /// Verify that this hardware meets the assumptions that a cluster relies on
    #[command(after_help = "Examples:
  leasehold verify lease")]
    Verify {
        /// What to verify.
        #[command(subcommand)]
        command: VerifyCommand,
    },
    /// Break a cluster of its own for as long as asked, and judge what its clients see
    #[command(after_help = "Examples:
  leasehold chaos --for 10m
  leasehold chaos --for 1h --faults kill,pause --seed 7 -o json
  leasehold chaos --history history.jsonl || leasehold verify history history.jsonl

It starts three processes of this binary on loopback and stops them afterwards; a cluster that \
exists is never touched. Interrupted, it reports what it has seen so far.

Exits with 0 if every promise was kept, with 1 if one was broken or the cluster did not come back \
to life.")]
    Chaos(ChaosArgs),
    /// Create and check certificates
    #[command(after_help = "Examples:
  leasehold cert init --out pki/
  leasehold cert issue --out pki/ --name n1 --san 10.0.0.1
  leasehold cert check pki/*")]
    Cert {
        /// What to do.
        #[command(subcommand)]
        command: CertCommand,
    },
    /// Name clusters, and choose the one that commands use
    #[command(after_help = "Examples:
  leasehold context list
  leasehold context use prod
  leasehold --context prod get foo")]
    Context {
        /// What to do.
        #[command(subcommand)]
        command: ContextCommand,
    },
    /// Print a shell completion script
    #[command(after_help = "Example:\n  leasehold completion bash > \
        /etc/bash_completion.d/leasehold")]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Generate the manual pages
    #[command(after_help = "Examples:
  leasehold man | man -l -                  the page of the program
  leasehold man --out /usr/share/man/man1   a page for every command")]
    Man {
        /// Directory to write to; without it, the page of the program goes to standard output
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// See `leasehold compaction --physical`
    #[command(
        hide = true,
        after_help = "Example:
  leasehold compaction 1234 --physical"
    )]
    Defrag(ElsewhereArgs),
    /// See `leasehold bench`
    #[command(
        hide = true,
        after_help = "Example:
  leasehold bench put --clients 64"
    )]
    Check(ElsewhereArgs),
    /// Copy a prefix to another cluster, and follow every change until stopped
    #[command(after_help = "\
How far the copy is stands in a key of the destination, so this may be stopped and started again at any time: every revision is copied once, and whole. If the source has compacted what comes next, everything is compared again, and what differs is written.

All keys of the destination with the prefix belong to the mirror: those that the source does not have are deleted. Leases are not copied. Lines on standard error say what was done.

Examples:
  leasehold make-mirror --prefix config/ 10.1.0.1:7400 \\
      --dest-cacert dest/client-ca.pem --dest-cert dest/app.pem --dest-key dest/app.key
  leasehold make-mirror --prefix config/ --dest-prefix eu/config/ --dest-dev other")]
    MakeMirror(MirrorArgs),
    /// Print the version of this binary
    #[command(after_help = "Examples:
  leasehold version
  leasehold version -o json")]
    Version,
}

/// Run a node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold serve --config /etc/leasehold/leasehold.toml
  leasehold serve --config leasehold.toml --log.format text --raft.heartbeat_interval 30ms

SIGTERM or SIGINT stops the node gracefully; a second signal stops it at once.")]
pub struct ServeArgs {
    /// The configuration file
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Run a whole cluster in this process.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  leasehold dev                    three nodes; everything is deleted on Ctrl-C
  leasehold dev --nodes 1
  leasehold dev --data-dir ./data  kept for the next run
  leasehold dev --log              with the nodes' log lines on standard error
  leasehold dev --name two --port 7500   beside another; then `leasehold --dev two get k`")]
pub struct DevArgs {
    /// Number of nodes: 1 or 3
    #[arg(long, default_value_t = 3, value_parser = parse_nodes, value_name = "1|3")]
    pub nodes: usize,
    /// Name by which the other commands find it (`--dev NAME`), if several run side by side
    #[arg(
        id = "dev_name",
        long = "name",
        env = "LEASEHOLD_DEV",
        value_name = "NAME"
    )]
    pub name: Option<DevName>,
    /// Keep data and certificates in this directory instead of a temporary one
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Client port of the first node; the next two are its peer and admin ports, and each further
    /// node starts ten higher
    #[arg(long, default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_500))]
    pub port: u16,
    /// Serve etcd's clients too, without TLS, on loopback ports 2379, 22379 and 32379
    #[arg(long)]
    pub etcd: bool,
    /// Show the nodes' log lines that pass this filter
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "info")]
    pub log: Option<String>,
}

/// What to ask single nodes.
#[derive(Debug, Subcommand)]
pub enum EndpointCommand {
    /// Show the status of each endpoint
    #[command(after_help = "Examples:
  leasehold endpoint status -o table
  leasehold endpoint status --cluster")]
    Status(StatusArgs),
    /// Check whether each endpoint serves; exits with 1 if one does not
    #[command(after_help = "Examples:
  leasehold endpoint health
  leasehold endpoint health --cluster -o table

An endpoint is healthy if it answers, knows a leader, is neither drained nor quarantined, and the \
cluster has no alarm NOSPACE. For probes of one node see its admin address: /livez and /readyz.")]
    Health(StatusArgs),
    /// See `leasehold offline hashkv`
    #[command(
        hide = true,
        after_help = "Example:
  leasehold offline hashkv --data-dir /var/lib/leasehold"
    )]
    Hashkv(ElsewhereArgs),
}

/// Show the status of each endpoint.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Query every member of the cluster, not only the given endpoints
    #[arg(long)]
    pub cluster: bool,
}

/// What to do about alarms.
#[derive(Debug, Subcommand)]
pub enum AlarmCommand {
    /// List the raised alarms of all members
    #[command(after_help = "Examples:
  leasehold alarm list
  leasehold alarm list -o json

NOSPACE: the state has reached quota.bytes, or the leader's disk is full. Puts and lease grants \
are refused; deletions, compactions and renewals are accepted. The alarm clears itself once space \
is freed.")]
    List,
    /// Alarms clear themselves
    #[command(
        hide = true,
        after_help = "Example:
  leasehold alarm list"
    )]
    Disarm(ElsewhereArgs),
}

/// Transfer leadership to another node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold move-leader n2
  leasehold move-leader 8211f1d0f64f3269
  leasehold move-leader            the leader chooses the most up-to-date voter")]
pub struct MoveLeaderArgs {
    /// The new leader, by name or id
    pub target: Option<String>,
}

/// Show how the cluster stands, again and again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold top
  leasehold top --once             one update, without a terminal
  leasehold top --once -o json

LEASED/S to LOCAL/S are the reads per second that a node answers: LEASED under a lease, without asking anybody; QUORUM \
after a round to a majority; FOLLOWER after one question to the leader; LOCAL from its own state, \
serializable or of bounded staleness. Rates are averages over one interval, so the first update has \
none. A lease is at risk while less \
than a third of its TTL is left.")]
pub struct ClusterTopArgs {
    /// Interval between updates
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Number of updates; default: until interrupted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// Print one update and exit
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Number of leases to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
}

/// Take the node of this machine out of service.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold drain
  leasehold drain --admin 127.0.0.1:7412

The node transfers leadership while it still serves, then refuses new requests, finishes pending \
ones and reports itself as not ready. It keeps replicating and voting, so that the cluster keeps its \
majority, but serves no requests until it is restarted. Stop it once this command exits with 0.")]
pub struct DrainArgs {
    /// Admin address of the node: `listen.admin` in its configuration
    #[arg(
        long,
        env = "LEASEHOLD_LISTEN_ADMIN",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:7480"
    )]
    pub admin: String,
}

/// Looks for what is wrong.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Directory on this machine whose disk is tested: a small file is written there and removed
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// As W3C writes it.
fn parse_traceparent(text: &str) -> Result<TraceParent, String> {
    text.parse().map_err(|error: Error| error.detail)
}

/// A level by its name, or how old a state may be at most.
fn parse_consistency(text: &str) -> Result<Consistency, String> {
    match text {
        "l" | "linearizable" => Ok(Consistency::Linearizable),
        "q" | "quorum" => Ok(Consistency::LinearizableQuorum),
        "lease" => Ok(Consistency::LeaseOnly),
        "s" | "serializable" => Ok(Consistency::Serializable),
        _ => parse_duration(text)
            .map(Consistency::MaxStaleness)
            .map_err(|_| {
                "choose l, q, lease or s, or write how old the state may be at most, for example \
                 500ms or 5s"
                    .to_owned()
            }),
    }
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("choose 1 or 3".to_owned()),
    }
}
