//! What can be typed after `cargo bench --bench load --`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use leasehold::cli::arguments::GlobalArgs;
use leasehold::cli::arguments::bench::{
    ExpiryArgs, LoadArgs, MixedArgs, OwnClusterArgs, RenewalArgs, WatchLoadArgs, parse_length,
    parse_rate, parse_setting,
};

/// Measure clusters, what becomes of them when they are disturbed, and other stores beside them.
#[derive(Debug, Parser)]
#[command(name = "load", arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// What cargo says to every bench.
    #[arg(long = "bench", global = true, hide = true)]
    _bench: bool,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Read single keys, on another store too
    #[command(after_help = "Example:
  cargo bench --bench load -- get --peer etcd --peer-endpoints 127.0.0.1:2379")]
    Get(BesideArgs<LoadArgs>),
    /// Write single keys, on another store too
    #[command(after_help = "Example:
  cargo bench --bench load -- put --peer etcd --peer-endpoints 127.0.0.1:2379 --interleave 5")]
    Put(BesideArgs<LoadArgs>),
    /// Read and write single keys, on another store too
    Mixed(BesideArgs<MixedArgs>),
    /// Renew client leases, on another store too
    #[command(after_help = "Example:
  cargo bench --bench load -- lease-keepalive --clients 256 --connections 4 \\
    --peer etcd --peer-endpoints 127.0.0.1:2379

etcd's leases are renewed on one stream a connection, each by a message of its own.")]
    LeaseKeepalive(BesideArgs<RenewalArgs>),
    /// Write while many watch, on another store too
    #[command(after_help = "Example:
  cargo bench --bench load -- watch --watchers 1000 --rate 100 \\
    --peer etcd --peer-endpoints 127.0.0.1:2379")]
    Watch(BesideArgs<WatchLoadArgs>),
    /// Let client leases end, while leaders are killed, or on another store too
    #[command(after_help = "Examples:
  cargo bench --bench load -- lease-expiry --leases 1000000 --ttl 120s --keep 10s --let-go 1000 --kills 1
  cargo bench --bench load -- lease-expiry --leases 1000 --ttl 5s --peer etcd --rounds 3

Without --endpoints it starts three processes on loopback, and ends them afterwards.")]
    LeaseExpiry(DisturbedExpiryArgs),
    /// Measure what a leader's clients notice while a member is sent the whole state
    #[command(after_help = "Examples:
  cargo bench --bench load -- snapshot-transfer
  cargo bench --bench load -- snapshot-transfer --mib 256 --rounds 3 --set raft.snapshot_send_rate=32MiB

Three processes are started on loopback and filled; then a load is put on the leader, without and with \
a member beside it that was emptied and is sent everything.")]
    SnapshotTransfer(TransferArgs),
    /// Measure how long no request is answered while leadership changes hands
    #[command(after_help = "Examples:
  cargo bench --bench load -- gap
  cargo bench --bench load -- gap --case kill --rounds 11 --set raft.heartbeat_interval=10ms
  cargo bench --bench load -- gap --case kill --peer etcd
  cargo bench --bench load -- gap --endpoints 10.0.0.1:7400 --case move-leader

Without --endpoints it starts three processes on loopback, and ends them afterwards. Of a cluster that \
runs already it only moves the leader.")]
    Gap(GapArgs),
    /// Ask a cluster for more than it can do, and measure what it does
    #[command(after_help = "Examples:
  cargo bench --bench load -- overload
  cargo bench --bench load -- overload --cores 0.5 --duration 30s --leases 1000 --ttl 2s
  cargo bench --bench load -- overload --set limits.max_waiting=1000

It starts three processes on loopback, holds each to a part of a core, finds the most that they serve, \
and asks them for half of it, all of it, twice and four times as much. Control groups are made for that \
where this user may; else the processes are paused and resumed.")]
    Overload(OverloadArgs),
    /// Measure what read leases give to reads and cost writes, by the round trip between members
    #[command(after_help = "Examples:
  cargo bench --bench load -- read-leases
  cargo bench --bench load -- read-leases --round-trip 2 --duration 30s --rate 1000

Three processes are started on loopback, with a network between them that delays each datagram by half \
of a round trip.")]
    ReadLeases(ReadLeaseArgs),
    /// Measure reads from a copy inside the program (CachedKv) and how stale they are, beside leased gets
    #[command(after_help = "Examples:
  cargo bench --bench load -- cached-reads
  cargo bench --bench load -- cached-reads --keys 100000 --rate 2000 --duration 30s

Three processes are started on loopback.")]
    CachedReads(CachedReadArgs),
    /// Every load and every change of leaders on leasehold and etcd in turns: benches/compare.sh
    Compare(CompareArgs),
    /// Be the bare HTTP/2 echo that `compare --door` measures
    #[command(hide = true)]
    Echo(EchoArgs),
}

/// Where the echo listens, and what it says.
#[derive(Clone, Debug, Args)]
pub(crate) struct EchoArgs {
    /// Where it listens
    #[arg(value_name = "HOST:PORT")]
    pub(crate) address: SocketAddr,
    /// How long the value in each answer is
    #[arg(value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=1_048_576))]
    pub(crate) value_bytes: u32,
}

/// A load, and another store that takes it too.
#[derive(Clone, Debug, Args)]
pub(crate) struct BesideArgs<L: Args> {
    #[command(flatten)]
    pub(crate) load: L,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
}

/// How leases end, and what happens meanwhile.
#[derive(Clone, Debug, Args)]
pub(crate) struct DisturbedExpiryArgs {
    #[command(flatten)]
    pub(crate) expiry: ExpiryArgs,
    /// Kill the leader so often while they are kept; only of processes started here
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000))]
    pub(crate) kills: u32,
    /// Do the same with three processes of another store, in turns
    #[arg(long, value_name = "STORE")]
    pub(crate) peer: Option<PeerKind>,
    /// A flag of the other store's processes, as in quota-backend-bytes=8589934592
    #[arg(long, value_name = "FLAG=VALUE", requires = "peer", value_parser = parse_setting)]
    pub(crate) peer_set: Vec<(String, String)>,
}

/// How much is compared, and where everything goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareArgs {
    /// Shorter and less often: less to rely on
    #[arg(long)]
    pub(crate) quick: bool,
    /// Where tables, picture and figures go
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/target/compare"))]
    pub(crate) out: PathBuf,
    /// Where the data of the clusters lies meanwhile; default: the same
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The load average before anything of ours ran, if that was not just now
    #[arg(long, value_name = "LOAD")]
    pub(crate) load_before: Option<f64>,
    /// What other benches found
    #[arg(long, value_name = "FILE")]
    pub(crate) figures: Vec<PathBuf>,
    /// By a client of etcd on both, at the port that we have for those, beside a bare HTTP/2 echo
    #[arg(long, conflicts_with = "figures")]
    pub(crate) door: bool,
    /// Only loads with this in their names, and no changes of leaders
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Option<String>,
}

/// Another store that takes the same load.
#[derive(Clone, Debug, Args)]
pub(crate) struct PeerArgs {
    /// Put the same load on another store too, in turns
    #[arg(long, value_name = "STORE", requires = "peer_endpoints")]
    pub(crate) peer: Option<PeerKind>,
    /// Where the other store's clients go, comma-separated
    #[arg(
        long,
        value_name = "HOST:PORT",
        value_delimiter = ',',
        requires = "peer"
    )]
    pub(crate) peer_endpoints: Vec<String>,
    /// The other store's processes on this machine, as --server-pid
    #[arg(long, value_name = "PID", value_delimiter = ',', requires = "peer")]
    pub(crate) peer_pid: Vec<u32>,
    /// How many times each store gets its turn
    #[arg(long, value_name = "ROUNDS", default_value_t = 3, requires = "peer", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) interleave: u32,
}

/// Another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PeerKind {
    /// etcd, through its v3 API without TLS
    Etcd,
}

/// How much more is asked for than can be done.
#[derive(Clone, Debug, Args)]
pub(crate) struct OverloadArgs {
    /// How much of a core each server has
    #[arg(long, value_name = "PART", default_value_t = 0.25, value_parser = part_of_a_core)]
    pub(crate) cores: f64,
    /// How long each load is measured
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_length)]
    pub(crate) duration: Duration,
    /// How long whoever puts waits for an answer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_length)]
    pub(crate) deadline: Duration,
    /// Connections that those who put share
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub(crate) connections: u32,
    /// Leases that are kept alive meanwhile
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) leases: u32,
    /// How long each lasts without a renewal
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_length)]
    pub(crate) ttl: Duration,
    /// How the processes are started.
    #[command(flatten)]
    pub(crate) own: OwnClusterArgs,
    /// No line per second on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

fn part_of_a_core(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(part) if part > 0.01 && part <= 1.0 => Ok(part),
        _ => Err("choose a number above 0.01 and up to 1, for example 0.25".to_owned()),
    }
}

/// How leadership changes hands, and how often.
#[derive(Clone, Debug, Args)]
pub(crate) struct GapArgs {
    /// What happens to the leader, comma-separated; default: all three, or move-leader with
    /// --endpoints
    #[arg(long, value_name = "CASE", value_delimiter = ',')]
    pub(crate) case: Vec<GapCase>,
    /// How often each
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// How the processes are started.
    #[command(flatten)]
    pub(crate) own: OwnClusterArgs,
    /// Do the same to a cluster of another store, in turns
    #[arg(long, value_name = "STORE")]
    pub(crate) peer: Option<PeerKind>,
    /// A flag of the other store's processes, as in heartbeat-interval=10
    #[arg(long, value_name = "FLAG=VALUE", requires = "peer", value_parser = parse_setting)]
    pub(crate) peer_set: Vec<(String, String)>,
    /// No line per round on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// How large the state is, and what is asked meanwhile.
#[derive(Clone, Debug, Args)]
pub(crate) struct TransferArgs {
    /// Mebibytes of all values together
    #[arg(long, value_name = "MIB", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) mib: u32,
    /// Bytes of each value
    #[arg(long, value_name = "BYTES", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) value_size: u32,
    /// Requests due in a second, of which one in ten writes; 0: as fast as they are answered
    #[arg(long, value_name = "PER SECOND", default_value = "2000", value_parser = parse_rate)]
    pub(crate) rate: f64,
    /// How long is measured each time
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_length)]
    pub(crate) duration: Duration,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) rounds: u32,
    /// How the processes are started.
    #[command(flatten)]
    pub(crate) own: OwnClusterArgs,
    /// No line per second on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// How far members are from each other, and how much is written.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadLeaseArgs {
    /// Round trips between two members in milliseconds, comma-separated, beside what the machine takes
    #[arg(long = "round-trip", value_name = "MS", value_delimiter = ',', default_value = "0,20,70", value_parser = parse_round_trip)]
    pub(crate) round_trips: Vec<Duration>,
    /// Puts due in a second
    #[arg(long, value_name = "PER SECOND", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    /// How long puts are measured each time, and reads for half of that
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_length)]
    pub(crate) duration: Duration,
    /// How the processes are started.
    #[command(flatten)]
    pub(crate) own: OwnClusterArgs,
    /// No line per case on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// What is read from memory and from the leader.
#[derive(Clone, Debug, Args)]
pub(crate) struct CachedReadArgs {
    /// Keys below the prefix
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
    /// Leased gets on their way at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) clients: u32,
    /// Threads that read from memory
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) threads: u32,
    /// Puts due in a second
    #[arg(long, value_name = "PER SECOND", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: u32,
    /// How long each way of reading is measured
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_length)]
    pub(crate) duration: Duration,
    /// How the processes are started.
    #[command(flatten)]
    pub(crate) own: OwnClusterArgs,
    /// No line per case on standard error
    #[arg(long)]
    pub(crate) quiet: bool,
}

fn parse_round_trip(text: &str) -> Result<Duration, String> {
    let round_trip: u16 = text.parse().unwrap_or(u16::MAX);
    match round_trip <= 300 {
        true => Ok(Duration::from_millis(round_trip.into())),
        false => {
            Err("choose whole milliseconds up to 300: no leader lease outlives more".to_owned())
        }
    }
}

/// What happens to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GapCase {
    /// It is asked to hand over
    MoveLeader,
    /// It is asked to end
    Stop,
    /// It is killed
    Kill,
}

impl GapCase {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::MoveLeader, Self::Stop, Self::Kill];

    /// As it is typed and printed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MoveLeader => "move-leader",
            Self::Stop => "stop",
            Self::Kill => "kill",
        }
    }
}
