//! What read leases give and cost: `read-leases`.
//!
//! Three processes of this binary, with datagrams between them kept back for half of a round trip each.
//! First no member asks for read leases, then one that does not lead, then all: linearizable reads are
//! made at the leader and at that member, and puts are due at a fixed rate. At the end the member is
//! killed while puts go on.

use std::io;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use leasehold::api::ReadPath;
use leasehold::bench::cluster::{OwnCluster, free_addresses};
use leasehold::bench::figures::{duration_text, number_text};
use leasehold::bench::heading::{Heading, print_for_programs};
use leasehold::bench::process::StopSignal;
use leasehold::bench::progress::Progress;
use leasehold::bench::tally::Latencies;
use leasehold::bench::verify::proxy::Wires;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::arguments::GlobalArgs;
use leasehold::cli::failure::Failure;
use leasehold::cli::print::{Align, table};
use leasehold::client::{Client, GetOptions};

use crate::arguments::ReadLeaseArgs;
use crate::run::cluster_plan;

const SCHEMA: &str = "leasehold-read-leases-1";
/// Reads that take what they can get.
const READING: Reading = Reading {
    readers: 8,
    pause: Duration::ZERO,
};
/// Reads that are hardly felt by what is measured beside them.
const GLANCES: Reading = Reading {
    readers: 1,
    pause: Duration::from_millis(2),
};
/// A delay that is not shorter than any round trip on a local network.
const WRITE_DELAY_MIN: Duration = Duration::from_millis(50);
/// How long a member takes until it holds a read lease, or none.
const SETTLED: Duration = Duration::from_secs(3);
/// How long puts go on after a holder was killed.
const AFTER_DEATH: Duration = Duration::from_secs(2);
const KEY: &str = "read-leases";

/// What was found.
#[derive(Debug, Serialize)]
struct ReadLeaseReport {
    #[serde(flatten)]
    heading: Heading,
    /// Puts due in a second.
    rate: u32,
    cases: Vec<Case>,
}

/// How many read at a time, and how long each waits between an answer and its next read.
struct Reading {
    readers: usize,
    pause: Duration,
}

/// One round trip and one set of holders.
#[derive(Debug, Serialize)]
struct Case {
    /// Between two members, in milliseconds, without what the machine adds.
    round_trip_ms: f64,
    holders: &'static str,
    at_leader: Reads,
    at_member: Reads,
    /// Reads at the member that the member served by its read lease, of all while puts went on.
    local_beside_puts: f64,
    put_p50_ms: f64,
    put_p99_ms: f64,
    put_p999_ms: f64,
    /// The longest that a put took while the member was killed; nothing where it held no lease.
    stall_ms: Option<f64>,
}

/// Linearizable reads of one key at one member, by a few clients, each after its last one.
#[derive(Debug, Serialize)]
struct Reads {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// Measures each round trip with each set of holders.
///
/// # Errors
/// The cluster cannot be started, or does not answer.
pub(crate) fn run(
    arguments: &ReadLeaseArgs,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let progress = Progress::new(arguments.quiet);
    let runtime = tokio::runtime::Runtime::new()?;
    let mut heading = Heading::begin(SCHEMA);
    let mut cases = Vec::new();
    for round_trip in &arguments.round_trips {
        let found = runtime.block_on(measure(arguments, *round_trip, progress))?;
        cases.extend(found);
    }
    heading.end();
    let report = ReadLeaseReport {
        heading,
        rate: arguments.rate,
        cases,
    };
    if !print_for_programs(out, &report, global.output)? {
        print(&report, out)?;
    }
    Ok(())
}

async fn measure(
    arguments: &ReadLeaseArgs,
    round_trip: Duration,
    progress: Progress,
) -> Result<Vec<Case>, Failure> {
    let addresses = free_addresses(3)?;
    let peers: Vec<_> = addresses.iter().map(|node| node.peer).collect();
    let wires = Wires::start(&peers)?;
    let route = |from, to| wires.address(from, to).unwrap_or(peers[to]);
    let mut plan = cluster_plan(&arguments.own);
    let delay = WRITE_DELAY_MIN.max(round_trip * 3);
    let setting = format!("{}ms", delay.as_millis());
    plan.settings
        .push(("read_lease.max_write_delay".to_owned(), setting));
    let mut cluster = OwnCluster::start_at(&plan, &addresses, route).await?;
    wires.delay(round_trip / 2);
    let mut cases = Vec::new();
    for (holders, count) in [("none", 0), ("one", 1), ("all", 2)] {
        let leader = cluster.wait_until_whole().await?;
        let members = [(leader + 1) % 3, (leader + 2) % 3];
        for (number, member) in members.into_iter().enumerate() {
            ask_for_read_leases(&cluster, member, number < count).await?;
        }
        tokio::time::sleep(SETTLED).await;
        progress.say(&format!(
            "{round_trip:?} between members, {holders} of them a holder"
        ));
        let mut case = one_case(&cluster, arguments, leader, members[0]).await?;
        case.round_trip_ms = millis(round_trip);
        case.holders = holders;
        if count > 0 {
            case.stall_ms = Some(stall(&mut cluster, arguments, members[0]).await?);
        }
        cases.push(case);
    }
    Ok(cases)
}

async fn one_case(
    cluster: &OwnCluster,
    arguments: &ReadLeaseArgs,
    leader: usize,
    member: usize,
) -> Result<Case, Failure> {
    let client = cluster.client();
    client.put(KEY, "value", None).await?;
    let address = |number: usize| cluster.addresses(number).client.to_string();
    let never = Arc::new(AtomicBool::new(false));
    let half = arguments.duration / 2;
    let (at_leader, _) = read(client, &address(leader), &READING, half, &never).await?;
    let (at_member, _) = read(client, &address(member), &READING, half, &never).await?;
    let over = Arc::new(AtomicBool::new(false));
    let beside = {
        let (client, at, over) = (client.clone(), address(member), over.clone());
        tokio::spawn(async move { read(&client, &at, &GLANCES, Duration::MAX, &over).await })
    };
    let puts = put(client, always_one, arguments.rate, arguments.duration).await?;
    over.store(true, Ordering::Relaxed);
    let (_, local_beside_puts) = beside.await.expect("it does not panic")?;
    Ok(Case {
        round_trip_ms: 0.0,
        holders: "",
        at_leader,
        at_member,
        local_beside_puts,
        put_p50_ms: millis(puts.at(0.5)),
        put_p99_ms: millis(puts.at(0.99)),
        put_p999_ms: millis(puts.at(0.999)),
        stall_ms: None,
    })
}

/// Reads for so long, or until it is over; and which part of it was served by a read lease.
async fn read(
    client: &Client,
    at: &str,
    how: &Reading,
    duration: Duration,
    over: &Arc<AtomicBool>,
) -> Result<(Reads, f64), Failure> {
    let mut readers = JoinSet::new();
    let watch = Wall::start();
    for _ in 0..how.readers {
        let pause = how.pause;
        let (client, over, at) = (client.clone(), over.clone(), at.to_owned());
        readers.spawn(async move {
            let (mut taken, mut local) = (Latencies::default(), 0_u64);
            while watch.elapsed() < duration && !over.load(Ordering::Relaxed) {
                let asked = Wall::start();
                let options = GetOptions::new().with_endpoint(at.clone());
                let found = client.get(KEY, Some(options)).await?;
                taken.record(asked.elapsed());
                let read = found.header.read;
                local += u64::from(read.is_some_and(|it| it.path == ReadPath::ReadLease));
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            Ok::<_, Failure>((taken, local))
        });
    }
    let (mut taken, mut local) = (Latencies::default(), 0);
    while let Some(reader) = readers.join_next().await {
        let (more, more_local) = reader.expect("it does not panic")?;
        taken.add(&more);
        local += more_local;
    }
    let reads = Reads {
        per_second: taken.count() as f64 / watch.elapsed().as_secs_f64(),
        p50_ms: millis(taken.at(0.5)),
        p99_ms: millis(taken.at(0.99)),
    };
    Ok((reads, local as f64 / taken.count().max(1) as f64))
}

fn always_one(_turn: u32) -> String {
    KEY.to_owned()
}

/// Puts that are due at a rate, whether or not earlier ones are answered: each counts from when it was due.
/// `key` names the key of each turn.
pub(crate) async fn put(
    client: &Client,
    key: impl Fn(u32) -> String,
    rate: u32,
    duration: Duration,
) -> Result<Latencies, Failure> {
    let mut puts = JoinSet::new();
    let (began, interval) = (Wall::start(), Duration::from_secs(1) / rate);
    let mut offset = Duration::ZERO;
    let mut turn = 0;
    while offset < duration {
        tokio::time::sleep(offset.saturating_sub(began.elapsed())).await;
        let (client, key, due) = (client.clone(), key(turn), began.later(offset));
        turn += 1;
        puts.spawn(async move {
            client.put(key, "value", None).await?;
            Ok::<_, Failure>(due.elapsed())
        });
        offset += interval;
    }
    let mut taken = Latencies::default();
    while let Some(put) = puts.join_next().await {
        taken.record(put.expect("it does not panic")?);
    }
    Ok(taken)
}

/// Kills the member while puts go on, and says how long the slowest took. It runs again afterwards.
async fn stall(
    cluster: &mut OwnCluster,
    arguments: &ReadLeaseArgs,
    member: usize,
) -> Result<f64, Failure> {
    let client = cluster.client().clone();
    let rate = arguments.rate;
    let putting = tokio::spawn(async move { put(&client, always_one, rate, AFTER_DEATH).await });
    tokio::time::sleep(AFTER_DEATH / 4).await;
    cluster.begin_to_end(member, StopSignal::Kill)?;
    let taken = putting.await.expect("it does not panic")?;
    cluster.restart(member)?;
    cluster.wait_until_whole().await?;
    Ok(millis(taken.max()))
}

/// Tells a member to ask for read leases, or not to.
async fn ask_for_read_leases(
    cluster: &OwnCluster,
    member: usize,
    asks: bool,
) -> Result<(), Failure> {
    let admin = cluster.addresses(member).admin;
    let body = format!("{{\"enabled\": {asks}}}");
    let request = format!(
        "PUT /admin/v1/read-lease HTTP/1.1\r\nHost: {admin}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(admin).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.starts_with("HTTP/1.1 200 ") {
        true => Ok(()),
        false => Err(Failure::refused(format!("{admin} answered: {answer}"))),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn print(report: &ReadLeaseReport, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "puts due a second: {}", report.rate)?;
    let text = |millis: f64| duration_text(Duration::from_secs_f64(millis / 1e3));
    let rows = report.cases.iter().map(|case| {
        let reads = |it: &Reads| {
            format!(
                "{} / {} / {}",
                number_text(it.per_second),
                text(it.p50_ms),
                text(it.p99_ms)
            )
        };
        vec![
            format!("{} ms", case.round_trip_ms),
            case.holders.to_owned(),
            reads(&case.at_leader),
            reads(&case.at_member),
            format!("{:.0} %", case.local_beside_puts * 100.0),
            format!(
                "{} / {} / {}",
                text(case.put_p50_ms),
                text(case.put_p99_ms),
                text(case.put_p999_ms)
            ),
            case.stall_ms.map_or_else(String::new, text),
        ]
    });
    let columns = [
        ("ROUND TRIP", Align::Right),
        ("HOLDERS", Align::Left),
        ("AT LEADER/S, P50, P99", Align::Right),
        ("AT MEMBER/S, P50, P99", Align::Right),
        ("LOCAL BESIDE PUTS", Align::Right),
        ("PUT P50, P99, P99.9", Align::Right),
        ("STALL", Align::Right),
    ];
    table(out, &columns, rows)?;
    writeln!(out, "on {}", report.heading.machine())
}
