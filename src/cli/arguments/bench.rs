//! What can be typed after `leasehold bench` and `leasehold verify`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::duration::parse_duration;

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Read single keys
    #[command(after_help = "Examples:
  leasehold bench get --clients 64
  leasehold bench get --clients 64 --connections 16 --consistency q -o json
  leasehold bench get --rate 20000        latency counted from the time each request was due
  leasehold bench get --server-pid $(pgrep -d, -x leasehold)")]
    Get(LoadArgs),
    /// Write single keys
    #[command(after_help = "Examples:
  leasehold bench put --clients 64
  leasehold bench put --clients 16 --rate 500 --value-size 1000")]
    Put(LoadArgs),
    /// Read and write single keys
    #[command(after_help = "Examples:
  leasehold bench mixed --reads 0.95 --distribution zipf
  leasehold bench mixed --reads 0.5 --rate 2000 -o table
  leasehold bench mixed --read-rate 5000 --write-rate 2000 --clients 1024")]
    Mixed(MixedArgs),
    /// Renew client leases
    #[command(after_help = "Examples:
  leasehold bench lease-keepalive --clients 64 --leases 10000
  leasehold bench lease-keepalive --clients 64 --leases 10000 --batch 100

Each request renews --batch leases; the report counts requests.")]
    LeaseKeepalive(RenewalArgs),
    /// Let client leases expire, and measure how late they do
    #[command(after_help = "Examples:
  leasehold bench lease-expiry --leases 1000 --ttl 5s
  leasehold bench lease-expiry --leases 50000 --ttl 60s --keep 5s
  leasehold bench lease-expiry --leases 1000000 --ttl 120s --keep 10s --let-go 1000

Each lease has a key, and a watch sees the keys being deleted. With --keep all leases expire \
together; without it, each expires as it was granted. With --let-go some of the kept leases expire \
first, while the cluster is otherwise idle.

Without --endpoints it starts three processes of this binary on loopback and stops them \
afterwards.")]
    LeaseExpiry(ExpiryArgs),
    /// Write while many clients watch, and measure the delivery delay
    #[command(after_help = "Examples:
  leasehold bench watch --watchers 10000 --connections 4 --rate 20
  leasehold bench watch --watchers 1000 --keys 1000 --rate 2000
  leasehold bench watch --watchers 1 --catch-up 1000000
  leasehold bench watch --watchers 10000 --find-rate --rate 5 --server-pid $(pgrep -d, -x leasehold)

A delay is measured from sending the put until the watcher has received the event.")]
    Watch(WatchLoadArgs),
}

/// How leases are renewed.
#[derive(Clone, Debug, Args)]
pub struct RenewalArgs {
    /// Number of leases per connection
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub leases: u32,
    /// Number of leases renewed per request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// The load.
    #[command(flatten)]
    pub load: LoadArgs,
}

/// How leases are granted, kept and left to end.
#[derive(Clone, Debug, Args)]
pub struct ExpiryArgs {
    /// Number of leases, each with a key of its own
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub leases: u32,
    /// TTL of each lease
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_length)]
    pub ttl: Duration,
    /// Number of connections that hold them
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub connections: u32,
    /// Keep the leases alive until all are granted and for this long afterwards, renew all once
    /// more, and stop
    #[arg(long, value_name = "DURATION", value_parser = parse_pause)]
    pub keep: Option<Duration>,
    /// First let this many leases expire while the others are kept, and measure how late they do
    #[arg(long, value_name = "N", default_value_t = 0, requires = "keep")]
    pub let_go: u32,
    /// Number of repetitions
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// How the processes are started.
    #[command(flatten)]
    pub own: OwnClusterArgs,
    /// Server processes on this machine whose memory is measured
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Print no progress on standard error
    #[arg(long)]
    pub quiet: bool,
}

/// Who watches, and what happens meanwhile.
#[derive(Clone, Debug, Args)]
pub struct WatchLoadArgs {
    /// Number of watchers
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = watchers)]
    pub watchers: usize,
    /// Number of connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = watchers)]
    pub connections: usize,
    /// Number of keys; each watcher watches one of them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = watchers)]
    pub keys: usize,
    /// Puts per second, over all keys
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub rate: u64,
    /// Size of a value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub value_size: usize,
    /// Duration of the measurement
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Write this many revisions first, and measure how fast watchers catch up
    #[arg(long, value_name = "REVISIONS", default_value_t = 0)]
    pub catch_up: u64,
    /// Watch only this node
    #[arg(long, value_name = "HOST:PORT")]
    pub endpoint: Option<String>,
    /// Find the highest rate of puts, starting from --rate, at which no watch is interrupted and
    /// all watchers receive the last change of each step within a second; then put at twice that
    /// rate for --duration
    #[arg(long, conflicts_with = "catch_up")]
    pub find_rate: bool,
    /// Duration of each step
    #[arg(long, value_name = "TIME", default_value = "5s", requires = "find_rate", value_parser = parse_duration)]
    pub step: Duration,
    /// Server processes on this machine whose memory is reported per watcher
    #[arg(
        long,
        value_name = "PID",
        value_delimiter = ',',
        requires = "find_rate"
    )]
    pub server_pid: Vec<u32>,
    /// Print no progress on standard error
    #[arg(long)]
    pub quiet: bool,
}

fn watchers(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1_000_000) => Ok(number),
        _ => Err("choose a whole number between 1 and 1000000".to_owned()),
    }
}

/// A cluster that is started for the purpose.
#[derive(Clone, Debug, Args)]
pub struct OwnClusterArgs {
    /// Setting for the started processes, such as raft.heartbeat_interval=10ms
    #[arg(long, value_name = "SECTION.KEY=VALUE", value_parser = parse_setting)]
    pub set: Vec<(String, String)>,
    /// Directory for their data; default: the temporary directory
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// What to verify.
#[derive(Debug, Subcommand)]
pub enum VerifyCommand {
    /// Measure under load whether clocks and schedulers are good enough for the leader lease
    #[command(after_help = "Examples:
  leasehold verify lease
  leasehold verify lease --duration 5m --faults pause,kill,cut
  leasehold verify lease --set leader_lease.duration=300ms --set raft.heartbeat_interval=30ms
  leasehold verify lease --endpoints 10.0.0.1:7400 --cacert ca.pem --cert c.pem --key c.key

Without --endpoints it starts three processes of this binary on loopback and stops them \
afterwards. \
On an existing cluster it only reads and writes keys that begin with `verify/`, which are not \
deleted afterwards.

Exits with 0 if everything passed, with 1 otherwise.")]
    Lease(VerifyLeaseArgs),
    /// Check a history recorded with --history
    #[command(after_help = "Example:
  leasehold verify lease --duration 10s --faults kill --history history.jsonl
  leasehold verify history history.jsonl

Exits with 0 if the history is linearizable, with 1 if it is not.")]
    History(VerifyHistoryArgs),
}

/// How a lease is verified.
#[derive(Clone, Debug, Args)]
pub struct VerifyLeaseArgs {
    /// Duration of the measurement, which is followed by the faults
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_length)]
    pub duration: Duration,
    /// Faults to inject into the leader afterwards, comma-separated; only if the processes are
    /// started by this command
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub faults: Vec<FaultKind>,
    /// Number of clients that read and write meanwhile, each as fast as it is answered
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub clients: u32,
    /// How the processes are started.
    #[command(flatten)]
    pub own: OwnClusterArgs,
    /// Record the operations of the clients, one per line: in FILE without faults, in FILE.faults
    /// with faults
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Print no progress on standard error
    #[arg(long)]
    pub quiet: bool,
}

/// Which history is checked.
#[derive(Clone, Debug, Args)]
pub struct VerifyHistoryArgs {
    /// The file
    pub file: PathBuf,
}

/// What is done to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultKind {
    /// Suspend it, and resume it once another node is leader
    Pause,
    /// Kill it, and restart it
    Kill,
    /// Partition it from the other nodes, but not from clients
    #[value(alias = "partition")]
    Cut,
}

impl FaultKind {
    /// As it is typed and printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Cut => "cut",
        }
    }
}

/// How a cluster is broken.
#[derive(Clone, Debug, Args)]
pub struct ChaosArgs {
    /// How long
    #[arg(
        long = "for",
        visible_alias = "seconds",
        value_name = "DURATION",
        default_value = "60s",
        value_parser = parse_length
    )]
    pub length: Duration,
    /// What is done to the nodes by turn, comma-separated
    #[arg(
        long,
        value_name = "FAULT",
        value_delimiter = ',',
        default_value = "kill,pause,restart,cut"
    )]
    pub faults: Vec<ChaosFault>,
    /// Seed of the turns; default: a random one, which is printed
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of clients that read and write meanwhile, each as fast as it is answered
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub clients: u32,
    /// How the processes are started.
    #[command(flatten)]
    pub own: OwnClusterArgs,
    /// Record the operations of the clients, one per line, since the last time they were judged: in
    /// the end, those that broke a rule
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Print no progress on standard error
    #[arg(long)]
    pub quiet: bool,
}

/// What is done to one node of a cluster that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum ChaosFault {
    /// Kill it, and start it again
    Kill,
    /// Suspend it, and resume it
    Pause,
    /// Ask it to stop, and start it again
    Restart,
    /// Partition it from the other nodes, but not from clients
    #[value(alias = "partition")]
    Cut,
}

impl ChaosFault {
    /// As it is typed and printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Restart => "restart",
            Self::Cut => "cut",
        }
    }
}

/// A load of reads and writes.
#[derive(Clone, Debug, Args)]
pub struct MixedArgs {
    /// The share of reads, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value = "0.9", value_parser = parse_share)]
    pub reads: f64,
    /// Reads to start per second, in place of --reads and --rate; reads and writes share --clients
    #[arg(long, value_name = "PER SECOND", requires = "write_rate", conflicts_with_all = ["reads", "rate"], value_parser = parse_positive_rate)]
    pub read_rate: Option<f64>,
    /// Writes to start per second
    #[arg(long, value_name = "PER SECOND", requires = "read_rate", value_parser = parse_positive_rate)]
    pub write_rate: Option<f64>,
    /// The rest.
    #[command(flatten)]
    pub load: LoadArgs,
}

impl MixedArgs {
    /// The share of reads, and the load with the rate of both.
    pub fn load(self) -> (f64, LoadArgs) {
        let Self {
            reads,
            read_rate,
            write_rate,
            mut load,
        } = self;
        let (Some(of_reads), Some(of_writes)) = (read_rate, write_rate) else {
            return (reads, load);
        };
        load.rate = of_reads + of_writes;
        (of_reads / load.rate, load)
    }
}

/// A load, and how it is measured.
#[derive(Clone, Debug, Args)]
pub struct LoadArgs {
    /// Number of requests in flight (with --rate: at most this many)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub clients: u32,
    /// Number of connections shared by the clients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub connections: u32,
    /// Number of threads that generate the load, at most one per connection; default: half of the
    /// cores
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub threads: Option<u32>,
    /// Requests to start per second, whether or not earlier ones are answered; 0: as fast as they
    /// are answered
    #[arg(long, value_name = "PER SECOND", default_value = "0", value_parser = parse_rate)]
    pub rate: f64,
    /// Duration of the measurement
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_length)]
    pub duration: Duration,
    /// Duration of the load before the measurement
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_pause)]
    pub warm_up: Duration,
    /// Number of keys; they begin with `bench/` and are not deleted afterwards
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,
    /// Size of each value in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub value_size: u32,
    /// Distribution of the keys
    #[arg(long, value_name = "KIND", default_value = "uniform")]
    pub distribution: Distribution,
    /// Which nodes to send reads to that any node may serve
    #[arg(long, value_name = "WHOM", default_value = "leader")]
    pub target: LoadTarget,
    /// Seed for the choice of keys: the same seed makes the same choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Do not write the keys before the measurement
    #[arg(long)]
    pub no_fill: bool,
    /// Server processes on this machine whose CPU time is reported per request
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub server_pid: Vec<u32>,
    /// Write the latency distribution to files in HdrHistogram's percentile format, one per
    /// operation: NAME.get.hgrm and so on
    #[arg(long, value_name = "NAME")]
    pub histogram: Option<PathBuf>,
    /// Print no progress on standard error
    #[arg(long)]
    pub quiet: bool,
}

/// How keys are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// All keys equally often
    #[default]
    Uniform,
    /// Few keys often, most seldom: Zipf's law with exponent 0.99
    Zipf,
}

/// Which nodes to send reads to that any node may serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LoadTarget {
    /// The leader
    #[default]
    Leader,
    /// All nodes; each connection uses a different one
    Any,
}

/// A name and a value, with an equals sign between them.
///
/// # Errors
/// It is something else.
pub fn parse_setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok((key.trim_start_matches("--").to_owned(), value.to_owned()))
        }
        _ => Err("write a name, an equals sign and a value".to_owned()),
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("write a number from 0 to 1, for example 0.95".to_owned()),
    }
}

/// Requests a second, or 0.
///
/// # Errors
/// It is something else, or out of range.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == 0.0 || (0.001..=1e8).contains(&rate) => Ok(rate),
        _ => Err("write requests per second between 0.001 and 100000000, or 0".to_owned()),
    }
}

fn parse_positive_rate(text: &str) -> Result<f64, String> {
    match parse_rate(text)? {
        0.0 => Err("write requests per second between 0.001 and 100000000".to_owned()),
        rate => Ok(rate),
    }
}

/// How long something is measured.
///
/// # Errors
/// It is something else, or out of range.
pub fn parse_length(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(length) if (100..=86_400_000).contains(&length.as_millis()) => Ok(length),
        _ => Err(
            "write seconds, or a number with its unit, between 100ms and 1day, for example 30 or 5m"
                .to_owned(),
        ),
    }
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(pause) if pause.as_secs() <= 3_600 => Ok(pause),
        _ => Err(
            "write seconds, or a number with its unit, up to 1h, for example 2; 0 for none"
                .to_owned(),
        ),
    }
}
