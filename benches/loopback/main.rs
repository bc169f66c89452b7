//! Put and get through the SDK over real QUIC on loopback, beside a bare quinn echo of the same
//! sizes: three nodes and the echo in a process each, the load in this one.
//!
//! `cargo bench --bench loopback`. For a closer look, after `--`: `quick` for one short round of
//! each row, `64x1` for gets of 64 callers on one connection and nothing else, `puts` for puts alone,
//! `alone` for a cluster of one, `solo` to leave the echo out, `figures=FILE` to write them there too; and `LEASEHOLD_BENCH_WRAPPER="valgrind --tool=callgrind"` or the like for the nodes.
//!
//! Rows that belong together take turns, so that a busy machine spoils both sides of a ratio alike;
//! shown are the medians of the rounds. CPU is what the leader's process used while it served,
//! heartbeats and all, and of puts what those of all nodes used; a sleep is a thread of them that found
//! nothing to do.

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

mod echo;
#[path = "../../tests/cluster/embedded.rs"]
#[expect(
    dead_code,
    reason = "only its certificates and configurations are needed here"
)]
mod embedded;
#[path = "../figures/mod.rs"]
mod figures;
mod load;
mod processes;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use leasehold::client::Client;
use leasehold::pki::IdentityFiles;
use leasehold::transport::Tls;
use leasehold::types::NodeId;
use leasehold::{api, wire};

use crate::echo::EchoClient;
use crate::figures::Figures;
use crate::load::{Load, Round};
use crate::processes::{Process, Usage};

pub(crate) const KEYS: usize = 10_000;
pub(crate) const VALUE: usize = 256;

/// As the binary allocates.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Gets a second while writers do what they can.
const OPEN_RATE: u32 = 10_000;

/// Callers and connections of the rows of leased gets.
const ROWS: [(usize, usize); 5] = [(1, 1), (64, 1), (256, 1), (64, 16), (256, 16)];

struct Plan {
    nodes: usize,
    rounds: usize,
    length: Duration,
    /// One row of gets, and nothing else.
    only: Option<(usize, usize)>,
    /// Puts, and nothing else.
    only_puts: bool,
    /// No echo, so that a profile of this process shows the SDK alone.
    solo: bool,
    /// Where figures are written for other benches.
    figures: Option<PathBuf>,
}

impl Plan {
    fn of(arguments: impl Iterator<Item = String>) -> Self {
        let mut plan = Self {
            nodes: 3,
            rounds: 5,
            length: Duration::from_secs(2),
            only: None,
            only_puts: false,
            solo: false,
            figures: None,
        };
        for argument in arguments {
            if let Some(file) = figures::file_of(&argument) {
                plan.figures = Some(file);
                continue;
            }
            match argument.split_once('x') {
                _ if argument == "quick" => {
                    plan.rounds = 1;
                    plan.length = Duration::from_millis(500);
                }
                _ if argument == "puts" => plan.only_puts = true,
                _ if argument == "alone" => plan.nodes = 1,
                _ if argument == "solo" => plan.solo = true,
                Some((callers, connections)) => {
                    plan.only = Some((callers.parse().unwrap(), connections.parse().unwrap()));
                }
                // What cargo says to benches.
                None => {}
            }
        }
        plan
    }
}

fn main() {
    processes::be_what_is_asked();
    let plan = Plan::of(std::env::args().skip(1));
    println!(
        "loopback: {} nodes and the echo in a process each, the load in one, on {} cores with \
         load {}; values of {VALUE} bytes, {KEYS} keys;\nmedians of {} rounds of {:?}. A get is served \
         under the lease by the leader alone; a put is on the disks of a majority when it is answered.\n",
        plan.nodes,
        std::thread::available_parallelism().map_or(0, usize::from),
        busyness(),
        plan.rounds,
        plan.length,
    );
    let folder = tempfile::tempdir().unwrap();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(bench(folder.path(), &plan));
}

async fn bench(folder: &Path, plan: &Plan) {
    drop(embedded::configurations(folder, plan.nodes));
    let nodes: Vec<Process> = (1..=plan.nodes)
        .map(|number| Process::node(&folder.join(format!("n{number}.toml"))))
        .collect();
    let echo = Process::echo(&folder.join("pki"));
    let mut figures = Figures::default();
    let clients = connect(folder, &nodes).await;
    fill(&clients[0]).await;
    let leader = leader(&clients[0], &nodes).await;
    let (request, reply) = sizes(&clients[0]).await;
    println!("a get is {request} bytes, its reply {reply}");
    let tls = processes::tls(&IdentityFiles::client(&folder.join("pki"), "tester"));
    if !plan.only_puts {
        gets(
            plan,
            &clients,
            leader,
            (&echo, &tls, request, reply),
            &mut figures,
        )
        .await;
    }
    if plan.only.is_none() {
        puts(plan, &clients[0], &nodes).await;
    }
    if plan.only.is_none() && !plan.only_puts {
        gets_beside_puts(plan, &clients, &mut figures).await;
    }
    figures.write(plan.figures.as_deref()).unwrap();
    println!("load at the end: {}", busyness());
    for client in clients {
        client.close().await;
    }
}

async fn gets(
    plan: &Plan,
    clients: &[Client],
    leader: &Process,
    (echo, tls, request, reply): (&Process, &Tls, usize, usize),
    figures: &mut Figures,
) {
    println!(
        "\n| Leased get | gets/s | p50 | p99 | server CPU a get | client CPU a get | sleeps a get \
         | echo: /s | p50 | server CPU | client CPU | sleeps | throughput ratio | p50 ratio |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    );
    for (callers, connections) in plan.only.map_or_else(|| ROWS.to_vec(), |only| vec![only]) {
        let mut pairs = Vec::new();
        for _ in 0..plan.rounds {
            let clients = &clients[..connections];
            let gets = load::closed(clients, Load::Get, callers, plan.length);
            let get = MeasuredRound::of(std::slice::from_ref(leader), gets).await;
            let mut echoes = Vec::new();
            for _ in 0..connections {
                echoes.push(EchoClient::connect(echo.address, tls, request, reply).await);
            }
            let length = if plan.solo {
                Duration::ZERO
            } else {
                plan.length
            };
            let round = echo_round(echoes, callers / connections, length);
            let echo = MeasuredRound::of(std::slice::from_ref(echo), round).await;
            pairs.push((get, echo));
        }
        let of =
            |what: &dyn Fn(&(MeasuredRound, MeasuredRound)) -> f64| median(pairs.iter().map(what));
        let row = |which: &dyn Fn(&(MeasuredRound, MeasuredRound)) -> &MeasuredRound| {
            let of = |what: &dyn Fn(&MeasuredRound) -> f64| of(&|pair| what(which(pair)));
            (
                of(&|it| it.round.rate),
                of(&|it| it.round.micros(0.5)),
                of(&|it| it.round.micros(0.99)),
                of(&|it| it.micros_of(it.server)),
                of(&|it| it.micros_of(it.client)),
                of(&MeasuredRound::sleeps),
            )
        };
        let (rate, p50, p99, server, client, sleeps) = row(&|pair| &pair.0);
        print!(
            "| {callers} callers, {connections} connections | {rate:.0} | {p50:.1} µs | {p99:.1} µs \
             | {server:.2} µs | {client:.2} µs | {sleeps:.3} "
        );
        let (rate, p50, _, server, client, sleeps) = row(&|pair| &pair.1);
        println!(
            "| {rate:.0} | {p50:.1} µs | {server:.2} µs | {client:.2} µs | {sleeps:.3} | {:.2} | {:.2} |",
            of(&|pair| pair.0.round.rate / pair.1.round.rate),
            of(&|pair| pair.0.round.micros(0.5) / pair.1.round.micros(0.5)),
        );
        let mut note = |name: &str, of: &dyn Fn(&(MeasuredRound, MeasuredRound)) -> f64| {
            let name = format!("{name} {callers}x{connections}");
            figures.add(&name, pairs.iter().map(of));
        };
        if !plan.solo {
            note("rate/echo", &|(get, echo)| get.round.rate / echo.round.rate);
            note("p50/echo", &|(get, echo)| {
                get.round.micros(0.5) / echo.round.micros(0.5)
            });
        }
        note("server CPU", &|(get, _)| get.micros_of(get.server));
    }
}

async fn puts(plan: &Plan, client: &Client, nodes: &[Process]) {
    println!(
        "\n| Put | puts/s | p50 | p99 | CPU of all servers | client CPU | sleeps of all servers |\n\
         |---|---|---|---|---|---|---|"
    );
    for callers in [1, 64, 256] {
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            let client = std::slice::from_ref(client);
            let round = load::closed(client, Load::Put, callers, plan.length);
            rounds.push(MeasuredRound::of(nodes, round).await);
        }
        let of = |what: &dyn Fn(&MeasuredRound) -> f64| median(rounds.iter().map(what));
        println!(
            "| {callers} callers | {:.0} | {:.2} ms | {:.2} ms | {:.1} µs | {:.1} µs | {:.2} |",
            of(&|it| it.round.rate),
            of(&|it| it.round.micros(0.5) / 1e3),
            of(&|it| it.round.micros(0.99) / 1e3),
            of(&|it| it.micros_of(it.server)),
            of(&|it| it.micros_of(it.client)),
            of(&MeasuredRound::sleeps),
        );
    }
}

async fn gets_beside_puts(plan: &Plan, clients: &[Client], figures: &mut Figures) {
    let mut pairs = Vec::new();
    for _ in 0..plan.rounds {
        let quiet = load::open(&clients[0], OPEN_RATE, plan.length).await;
        let (busy, _) = tokio::join!(
            load::open(&clients[0], OPEN_RATE, plan.length),
            load::closed(&clients[1..2], Load::Put, 64, plan.length),
        );
        pairs.push((quiet.micros(0.99), busy.micros(0.99)));
    }
    println!(
        "\n{OPEN_RATE} leased gets a second, open loop: p99 {:.0} µs, while 64 clients write {:.0} µs, ratio {:.2}",
        median(pairs.iter().map(|pair| pair.0)),
        median(pairs.iter().map(|pair| pair.1)),
        median(pairs.iter().map(|pair| pair.1 / pair.0)),
    );
    let ratios = pairs.iter().map(|(quiet, busy)| busy / quiet);
    figures.add("p99 beside writers/without", ratios);
}

/// A round with what it cost the processes that served it, and this one.
struct MeasuredRound {
    round: Round,
    server: Usage,
    client: Usage,
}

impl MeasuredRound {
    async fn of(servers: &[Process], round: impl Future<Output = Round>) -> Self {
        let usage = || servers.iter().map(Process::usage).sum::<Usage>();
        let (served, own) = (usage(), Usage::own());
        let round = round.await;
        Self {
            round,
            server: usage().since(served),
            client: Usage::own().since(own),
        }
    }

    fn micros_of(&self, usage: Usage) -> f64 {
        usage.cpu.as_secs_f64() * 1e6 / self.round.count as f64
    }

    fn sleeps(&self) -> f64 {
        self.server.sleeps as f64 / self.round.count as f64
    }
}

async fn echo_round(mut echoes: Vec<EchoClient>, callers: usize, length: Duration) -> Round {
    if let [echo] = &mut echoes[..] {
        return echo.round(callers, length).await;
    }
    let tasks: Vec<_> = echoes
        .into_iter()
        .map(|mut echo| tokio::spawn(async move { echo.round(callers, length).await }))
        .collect();
    let mut taken = hdrhistogram::Histogram::new(3).unwrap();
    for task in tasks {
        taken.add(task.await.unwrap().taken).unwrap();
    }
    Round::new(length, taken)
}

/// As many clients as any row has connections; each has one of its own to the leader.
async fn connect(folder: &Path, nodes: &[Process]) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..16 {
        let endpoints: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
        let options = embedded::client_options(folder);
        clients.push(Client::connect(endpoints, Some(options)).await.unwrap());
    }
    clients
}

async fn fill(client: &Client) {
    for chunk in 0..KEYS / 100 {
        let mut puts = tokio::task::JoinSet::new();
        for more in 0..100 {
            let (client, key) = (client.clone(), load::key(chunk * 100 + more));
            puts.spawn(async move { client.put(key, vec![7; VALUE], None).await.unwrap() });
        }
        puts.join_all().await;
    }
}

async fn leader<'a>(client: &Client, nodes: &'a [Process]) -> &'a Process {
    let leader: NodeId = client.leader().unwrap();
    for node in nodes {
        let status = client.status(node.address.to_string()).await.unwrap();
        if status.header.member_id == leader {
            return node;
        }
    }
    panic!("the leader is none of the nodes")
}

/// How long a request and its reply are on the wire, frames and all.
async fn sizes(client: &Client) -> (usize, usize) {
    let key = Bytes::from(load::key(0));
    let request = api::Request::Range(api::RangeRequest {
        key,
        ..api::RangeRequest::default()
    });
    let consistency = api::Consistency::Linearizable;
    let response = client.call(request.clone(), consistency).await.unwrap();
    let call = api::Call {
        timeout_ms: 9_950,
        consistency,
        min_revision: 0,
        session: None,
        request,
    };
    // Numbers as high as those of a client that has been at it for a while.
    let request_id = 1 << 42;
    let limits = wire::FrameLimits::DEFAULT;
    let (mut asked, mut answered) = (BytesMut::new(), BytesMut::new());
    let frame = wire::client::ClientFrame { request_id, call };
    wire::encode(&frame, &limits, &mut asked).unwrap();
    let frame = wire::client::ServerFrame {
        request_id,
        result: Ok(response),
    };
    wire::encode(&frame, &limits, &mut answered).unwrap();
    (asked.len(), answered.len())
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How many processes want to run, on average of the last minute.
fn busyness() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}
