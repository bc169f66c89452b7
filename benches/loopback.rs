//! Put and get through the SDK over real QUIC on loopback: three nodes, their disks and the client
//! in one process.
//!
//! `cargo bench --bench loopback`

#![expect(clippy::unwrap_used, reason = "a bench that meets an error is over")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]
#![expect(clippy::print_stdout, reason = "a bench prints what it found")]

use std::net::SocketAddr;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant as Stopwatch;

use hdrhistogram::Histogram;
use leasehold::api::ReadPath;
use leasehold::cli::pki::Authority;
use leasehold::cli::pki::IdentityFiles;
use leasehold::client::Client;
use leasehold::client::ConnectOptions;
use leasehold::client::TlsOptions;
use leasehold::server::Server;
use leasehold::server::ServerOptions;
use leasehold::server::config::Config;
use leasehold::server::config::ConfigSources;

const NODES: usize = 3;
const KEYS: usize = 10_000;
const VALUE: usize = 256;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(2);
const DAY: Duration = Duration::from_secs(86_400);

fn free_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Starts the nodes and returns them with a client.
async fn cluster(folder: &Path) -> (Vec<Server>, Client) {
    let (pki, now) = (folder.join("pki"), leasehold::cli::pki::wall_clock());
    let authority = Authority::create(None, 10 * DAY, now).unwrap();
    authority.save(&pki).unwrap();
    let client = authority.issue_client("bench", DAY, now).unwrap();
    IdentityFiles::client(&pki, "bench")
        .write(&client, false)
        .unwrap();
    let names: Vec<String> = (1..=NODES).map(|number| format!("n{number}")).collect();
    let peers: Vec<SocketAddr> = names.iter().map(|_| free_address()).collect();
    let initial: Vec<String> = names
        .iter()
        .zip(&peers)
        .map(|(name, peer)| format!("\"{name}={peer}\""))
        .collect();
    let mut servers = Vec::new();
    for (name, peer) in names.iter().zip(&peers) {
        let identity = authority.issue_node(name, &[], DAY, now).unwrap();
        IdentityFiles::peer(&pki, name)
            .write(&identity.peer, false)
            .unwrap();
        IdentityFiles::server(&pki, name)
            .write(&identity.server, false)
            .unwrap();
        let text = format!(
            "[node]\nname = \"{name}\"\ndata_dir = \"{}\"\n\
             [listen]\nclient = \"127.0.0.1:0\"\npeer = \"{peer}\"\nadmin = \"127.0.0.1:0\"\n\
             [cluster]\ninitial = [{}]\n\
             [tls.client]\ncert_file = \"{s}.pem\"\nkey_file = \"{s}.key\"\ntrusted_ca_file = \"{p}/client-ca.pem\"\n\
             [tls.peer]\ncert_file = \"{q}.pem\"\nkey_file = \"{q}.key\"\ntrusted_ca_file = \"{p}/peer-ca.pem\"\n",
            folder.join(name).display(),
            initial.join(","),
            p = pki.display(),
            s = pki.join(format!("{name}-server")).display(),
            q = pki.join(format!("{name}-peer")).display(),
        );
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let config = Config::load(ConfigSources {
            file: Some(file),
            ..ConfigSources::default()
        });
        servers.push(
            Server::start(config.unwrap(), ServerOptions::default())
                .await
                .unwrap(),
        );
    }
    while !servers.iter().any(Server::has_lease) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let options = ConnectOptions::new()
        .with_timeout(Duration::from_secs(10))
        .with_tls(
            TlsOptions::new()
                .ca_pem_file(pki.join("client-ca.pem"))
                .identity_pem_files(pki.join("bench.pem"), pki.join("bench.key")),
        );
    let endpoints: Vec<String> = servers
        .iter()
        .map(|s| s.client_address().to_string())
        .collect();
    let client = Client::connect(endpoints, Some(options)).await.unwrap();
    (servers, client)
}

#[derive(Clone, Copy)]
enum Load {
    Get,
    Put,
}

/// One closed-loop round: operations a second, and how long each took in nanoseconds.
async fn round(client: &Client, load: Load, callers: usize) -> (f64, Histogram<u64>) {
    let done = Arc::new(AtomicU64::new(0));
    let began = Stopwatch::now();
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (client, done) = (client.clone(), done.clone());
            tokio::spawn(async move {
                let mut taken = Histogram::<u64>::new(3).unwrap();
                let mut number = caller * 7919;
                while began.elapsed() < ROUND {
                    number = number.wrapping_add(104_729) % KEYS;
                    let key = format!("key{number:05}");
                    let started = Stopwatch::now();
                    match load {
                        Load::Get => {
                            let get = client.get(key, None).await.unwrap();
                            assert_eq!(get.header.read.unwrap().path, ReadPath::Lease);
                        }
                        Load::Put => {
                            client.put(key, vec![7; VALUE], None).await.unwrap();
                        }
                    }
                    let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap();
                    taken.record(nanos).unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                taken
            })
        })
        .collect();
    let mut all = Histogram::<u64>::new(3).unwrap();
    for task in tasks {
        all.add(task.await.unwrap()).unwrap();
    }
    (
        done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64(),
        all,
    )
}

fn main() {
    println!(
        "loopback: {NODES} nodes, their disks and the client in one process, one connection, values of \
         {VALUE} bytes, {KEYS} keys, closed loop;\nmedians of {ROUNDS} rounds. A get is served under \
         the lease by the leader alone; a put is on the disks of a majority when it is answered."
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let (servers, client) = cluster(folder.path()).await;
        for chunk in 0..KEYS / 100 {
            let puts = (0..100).map(|more| {
                let client = client.clone();
                let key = format!("key{:05}", chunk * 100 + more);
                tokio::spawn(async move { client.put(key, vec![7; VALUE], None).await.unwrap() })
            });
            for put in puts.collect::<Vec<_>>() {
                put.await.unwrap();
            }
        }
        for (load, name) in [(Load::Get, "leased get"), (Load::Put, "put")] {
            for callers in [1, 16, 64, 256] {
                let mut rounds = Vec::new();
                for _ in 0..ROUNDS {
                    rounds.push(round(&client, load, callers).await);
                }
                rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
                let (rate, taken) = &rounds[ROUNDS / 2];
                println!(
                    "{name:>10}, {callers:>3} callers: {rate:>9.0} ops/s, p50 {:>7.1} µs, p99 {:>7.1} µs",
                    taken.value_at_quantile(0.5) as f64 / 1e3,
                    taken.value_at_quantile(0.99) as f64 / 1e3,
                );
            }
        }
        client.close().await;
        for server in servers {
            server.shutdown().await;
        }
    });
}
