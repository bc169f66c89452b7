//! What can be typed, with the help that explains it.

pub mod access;
pub mod bench;
mod cert;
mod kv;
pub mod leader_lease;
pub mod lease;
pub mod lock;
pub mod member;
pub mod offline;
pub mod snapshot;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::access::{AuthCommand, RoleCommand, UserCommand};
use self::bench::{BenchCommand, VerifyCommand};
pub use self::cert::{CertCheckArgs, CertCommand, CertInitArgs, CertIssueArgs};
pub use self::kv::{
    CompactionArgs, DelArgs, GetArgs, Order, PutArgs, RangeArgs, SortBy, TxnArgs, WatchArgs,
};
use self::leader_lease::LeaderLeaseCommand;
use self::lease::LeaseCommand;
use self::lock::{ElectArgs, LockArgs};
use self::member::MemberCommand;
use self::offline::OfflineCommand;
use self::snapshot::SnapshotCommand;
use crate::api::Consistency;

const EXAMPLES: &str = "\
Examples:
  leasehold dev                          three nodes in one process, to play with
  leasehold put foo bar                  while dev runs, no flags are needed
  leasehold get foo
  leasehold endpoint status -o table
  leasehold serve --config /etc/leasehold/leasehold.toml

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 cannot connect, 4 may have happened, 5 not found,
6 lease or lock lost, 7 (serve) removed from the cluster";

/// Under which the help lists what [`GlobalArgs`] holds.
pub const CONNECTION_HEADING: &str = "Connection and output";

/// A replicated key-value store whose leader answers linearizable reads alone, under a lease.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, after_help = EXAMPLES)]
#[command(arg_required_else_help = true, propagate_version = false)]
pub struct Cli {
    /// What holds for every verb.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every verb that talks to a cluster, and how answers are shown.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = CONNECTION_HEADING)]
pub struct GlobalArgs {
    /// Client addresses of the cluster, comma-separated; one that answers is enough
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_ENDPOINTS",
        value_name = "HOST:PORT",
        value_delimiter = ','
    )]
    pub endpoints: Vec<String>,
    /// The authority that signs nodes (client-ca.pem of `cert init`)
    #[arg(long, global = true, env = "LEASEHOLD_CACERT", value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// This client's certificate
    #[arg(long, global = true, env = "LEASEHOLD_CERT", value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// The private key of this client's certificate
    #[arg(
        id = "client_key",
        long = "key",
        global = true,
        env = "LEASEHOLD_KEY",
        value_name = "FILE"
    )]
    pub key: Option<PathBuf>,
    /// The user to log in as, where it is not the one that the certificate names
    #[arg(long, global = true, env = "LEASEHOLD_USER", value_name = "USER")]
    pub user: Option<String>,
    /// The file whose first line is the user's password; else LEASEHOLD_PASSWORD, or a terminal is
    /// asked
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_PASSWORD_FILE",
        value_name = "FILE"
    )]
    pub password_file: Option<PathBuf>,
    /// How long a request may take
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_TIMEOUT",
        value_name = "DURATION",
        default_value = "5s",
        value_parser = parse_timeout
    )]
    pub timeout: Duration,
    /// How answers are shown
    #[arg(
        short = 'o',
        long,
        global = true,
        env = "LEASEHOLD_OUTPUT",
        value_name = "FORMAT",
        default_value = "simple"
    )]
    pub output: Format,
    /// Repeat a write whose outcome is unknown until it is known, and have it applied once. Opens a
    /// session first, which is a second entry in the log
    #[arg(long, global = true)]
    pub exactly_once: bool,
    /// Show keys and values as hexadecimal escapes
    #[arg(long, global = true)]
    pub hex: bool,
    /// How fresh a read must be: l (linearizable: under the leader's lease, else by a quorum
    /// round), q (linearizable, always by a quorum round), lease (linearizable, only under the
    /// lease), s (serializable: whatever the asked node knows), or the longest time that the state
    /// may be old, as 500ms or 5s
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_CONSISTENCY",
        value_name = "l|q|lease|s|DURATION",
        value_parser = parse_consistency,
        default_value = "l"
    )]
    pub consistency: Consistency,
}

/// How answers are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// As short as possible: for people and pipes
    #[default]
    Simple,
    /// One JSON document, keys and values in base64
    Json,
    /// A table
    Table,
    /// Every field on a line of its own
    Fields,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node
    Serve(ServeArgs),
    /// Run a whole cluster in this process, to play with
    Dev(DevArgs),
    /// Write a key
    Put(PutArgs),
    /// Read a key, or a range of keys
    Get(GetArgs),
    /// Delete a key, or a range of keys
    Del(DelArgs),
    /// Compare, and do one thing or another, in one step
    Txn(TxnArgs),
    /// Show what happens to a key, or to a range of keys
    Watch(WatchArgs),
    /// Give up history
    Compaction(CompactionArgs),
    /// Grant, renew and end leases
    #[command(after_help = "Examples:
  leasehold lease grant 60
  leasehold lease keep-alive 1f
  leasehold lease list -o table")]
    Lease {
        /// What to do.
        #[command(subcommand)]
        command: LeaseCommand,
    },
    /// Hold a lock, perhaps while a command runs
    Lock(LockArgs),
    /// Stand in an election, or look who leads
    Elect(ElectArgs),
    /// Ask single nodes
    #[command(after_help = "Examples:
  leasehold endpoint status -o table
  leasehold endpoint status --cluster")]
    Endpoint {
        /// What to ask.
        #[command(subcommand)]
        command: EndpointCommand,
    },
    /// See and change who the members are
    #[command(after_help = "Examples:
  leasehold member list -o table
  leasehold member add n4 --peer-urls 10.0.0.4:7401
  leasehold member remove n4")]
    Member {
        /// What to do.
        #[command(subcommand)]
        command: MemberCommand,
    },
    /// Show what keeps the cluster from taking everything in
    #[command(after_help = "Examples:
  leasehold alarm list")]
    Alarm {
        /// What to do.
        #[command(subcommand)]
        command: AlarmCommand,
    },
    /// Hand leadership to another node
    MoveLeader(MoveLeaderArgs),
    /// Turn access control on and off
    #[command(after_help = "Examples:
  leasehold auth status
  leasehold auth enable")]
    Auth {
        /// What to do.
        #[command(subcommand)]
        command: AuthCommand,
    },
    /// Add and change users
    #[command(after_help = "Examples:
  leasehold user add anna
  leasehold user grant-role anna readers")]
    User {
        /// What to do.
        #[command(subcommand)]
        command: UserCommand,
    },
    /// Add and change roles
    #[command(after_help = "Examples:
  leasehold role add readers
  leasehold role grant-permission readers --prefix /svc/ read")]
    Role {
        /// What to do.
        #[command(subcommand)]
        command: RoleCommand,
    },
    /// Show how the cluster stands, again and again: leader, lease, reads, leases at risk
    Top(ClusterTopArgs),
    /// Take the node of this machine out of service, before it is stopped
    Drain(DrainArgs),
    /// Back everything up, and look at backups
    #[command(after_help = "Examples:
  leasehold snapshot save backup.lhs
  leasehold snapshot status backup.lhs -o table")]
    Snapshot {
        /// What to do.
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Look at the data of a node that does not run
    #[command(after_help = "Examples:
  leasehold offline check --data-dir /var/lib/leasehold
  leasehold offline dump-kv --data-dir /var/lib/leasehold")]
    Offline {
        /// What to do.
        #[command(subcommand)]
        command: OfflineCommand,
    },
    /// End what a failed assumption about clocks left behind
    #[command(after_help = "Example:
  leasehold leader-lease clear --data-dir /var/lib/leasehold")]
    LeaderLease {
        /// What to do.
        #[command(subcommand)]
        command: LeaderLeaseCommand,
    },
    /// Put load on a cluster and measure how it bears it
    #[command(after_help = "Examples:
  leasehold bench get --clients 64
  leasehold bench lease-expiry --leases 50000 --keep 5s")]
    Bench {
        /// What to measure.
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Find out what is wrong with a cluster, or with this machine, and what to do about it
    #[command(after_help = "Examples:
  leasehold doctor --endpoints n1:7400,n2:7400,n3:7400
  leasehold doctor --data-dir /var/lib/leasehold -o table

Ends with 1 if something does not work.")]
    Doctor(DoctorArgs),
    /// Find out whether this hardware keeps what a cluster relies on
    #[command(after_help = "Examples:
  leasehold verify lease")]
    Verify {
        /// What to verify.
        #[command(subcommand)]
        command: VerifyCommand,
    },
    /// Make and check certificates
    #[command(after_help = "Examples:
  leasehold cert init --out pki/
  leasehold cert issue --out pki/ --name n1 --san 10.0.0.1
  leasehold cert check pki/*")]
    Cert {
        /// What to do.
        #[command(subcommand)]
        command: CertCommand,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  leasehold completion bash > \
        /etc/bash_completion.d/leasehold")]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write the manual, for `man`
    #[command(after_help = "Examples:
  leasehold man | man -l -                  the page of the program
  leasehold man --out /usr/share/man/man1   a page for every verb")]
    Man {
        /// The directory to write to; without it, the page of the program goes to standard output
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print what this binary was made from
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

SIGTERM or SIGINT stops the node gracefully; a second one at once.")]
pub struct ServeArgs {
    /// The configuration file
    #[arg(long, env = "LEASEHOLD_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Run a whole cluster in this process.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  leasehold dev                    three nodes, gone without a trace after Ctrl-C
  leasehold dev --nodes 1
  leasehold dev --data-dir ./data  kept for the next time
  leasehold dev --log              with the nodes' log lines on standard error")]
pub struct DevArgs {
    /// How many nodes: 1 or 3
    #[arg(long, default_value_t = 3, value_parser = parse_nodes, value_name = "1|3")]
    pub nodes: usize,
    /// Keep data and certificates here, instead of in a temporary directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The first node's client port; the next two are its peer and admin port, the second node
    /// begins ten further on
    #[arg(long, default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_500))]
    pub port: u16,
    /// Show the nodes' log lines, those that pass this filter
    #[arg(long, value_name = "FILTER", num_args = 0..=1, default_missing_value = "info")]
    pub log: Option<String>,
}

/// What to ask single nodes.
#[derive(Debug, Subcommand)]
pub enum EndpointCommand {
    /// Show how each endpoint is
    #[command(after_help = "Examples:
  leasehold endpoint status -o table
  leasehold endpoint status --cluster")]
    Status(StatusArgs),
}

/// Show how each endpoint is.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Ask every member of the cluster, not only the endpoints given
    #[arg(long)]
    pub cluster: bool,
}

/// What to do about alarms.
#[derive(Debug, Subcommand)]
pub enum AlarmCommand {
    /// Show the alarms that are raised, of every member
    #[command(after_help = "Examples:
  leasehold alarm list
  leasehold alarm list -o json

NOSPACE: the state is as large as quota.bytes allows, or the leader's disk is full. Nothing is written \
or granted; deletions, compactions and renewals go on. It clears itself once there is room.")]
    List,
}

/// Hand leadership to another node.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold move-leader n2
  leasehold move-leader 8211f1d0f64f3269
  leasehold move-leader            the leader chooses who is most up to date")]
pub struct MoveLeaderArgs {
    /// The node to lead next, by name or id
    pub target: Option<String>,
}

/// Show how the cluster stands, again and again.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold top
  leasehold top --once             one look, without a terminal
  leasehold top --once -o json

Rates are of the time between two looks, so the first one has none. A lease is at risk while less than \
a third of its time is left.")]
pub struct ClusterTopArgs {
    /// How long between two looks
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = humantime::parse_duration)]
    pub interval: Duration,
    /// How many looks; default: until it is interrupted
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub count: Option<u32>,
    /// One look
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// How many leases
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub limit: usize,
}

/// Take the node of this machine out of service.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold drain
  leasehold drain --admin 127.0.0.1:7412

The node hands leadership over while it still serves, then refuses new work, finishes what it holds,
and reports itself as not ready. It goes on following and voting, so that the others keep their
majority, and serves nothing until it is stopped and started again. Once this returns with 0, stop it.")]
pub struct DrainArgs {
    /// Where the node has its admin port: `listen.admin` of its configuration
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
    /// A folder on this machine whose disk is to be tried: a small file is written there and removed
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(timeout) if (1..=3_600_000).contains(&timeout.as_millis()) => Ok(timeout),
        _ => {
            Err("write a number and a unit between 1ms and 1h, for example 500ms or 5s".to_owned())
        }
    }
}

/// A level by its name, or how old a state may be at most.
fn parse_consistency(text: &str) -> Result<Consistency, String> {
    match text {
        "l" | "linearizable" => Ok(Consistency::Linearizable),
        "q" | "quorum" => Ok(Consistency::LinearizableQuorum),
        "lease" => Ok(Consistency::LeaseOnly),
        "s" | "serializable" => Ok(Consistency::Serializable),
        _ => humantime::parse_duration(text)
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
