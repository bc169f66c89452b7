//! The nodes and the echo, each in a process of its own, so that the cost of each can be measured.
//!
//! The bench starts itself again for each of them; what a process shall be stands in its
//! environment, and it ends when its standard input does, so none outlives the bench.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use leasehold::pki::IdentityFiles;
use leasehold::server::config::{Config, ConfigSources};
use leasehold::server::{Server, ServerOptions};
use leasehold::transport::{Tls, TlsPaths};

use crate::echo;

const NODE: &str = "LEASEHOLD_BENCH_NODE";
const ECHO: &str = "LEASEHOLD_BENCH_ECHO";
/// How many threads the runtimes of nodes and echo have, if not as usual: `1` or more.
const THREADS: &str = "LEASEHOLD_BENCH_THREADS";
/// Under what the nodes shall run: a profiler and its arguments.
const WRAPPER: &str = "LEASEHOLD_BENCH_WRAPPER";

/// A process of the bench.
pub(crate) struct Process {
    child: Child,
    /// Closed, it ends the process.
    stdin: Option<ChildStdin>,
    /// Where it listens for clients.
    pub(crate) address: SocketAddr,
}

impl Process {
    /// A node, from its configuration file.
    pub(crate) fn node(config: &Path) -> Self {
        let wrapper = std::env::var(WRAPPER).unwrap_or_default();
        Self::start(NODE, config, &wrapper)
    }

    /// The echo, with the certificates of node `n1` in this folder.
    pub(crate) fn echo(pki: &Path) -> Self {
        Self::start(ECHO, pki, "")
    }

    fn start(what: &str, path: &Path, wrapper: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut words = wrapper
            .split_whitespace()
            .map(OsStr::new)
            .chain([program.as_os_str()]);
        let mut child = Command::new(words.next().unwrap())
            .args(words)
            .env(what, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let stdin = child.stdin.take();
        let address = line.trim().parse().unwrap();
        Self {
            child,
            stdin,
            address,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage::of(&self.child.id().to_string())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stdin.take();
        let _ = self.child.wait();
    }
}

/// What a process has used so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Times a thread went to sleep.
    pub(crate) sleeps: u64,
}

impl Usage {
    /// Of this process.
    pub(crate) fn own() -> Self {
        Self::of("self")
    }

    fn of(process: &str) -> Self {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        // The name, in brackets, may hold anything; behind it the fields are counted from 3.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let mut sleeps = 0;
        for task in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
            let path = task.unwrap().path().join("status");
            let status = std::fs::read_to_string(path).unwrap_or_default();
            let voluntary = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
                .map_or(0, |count| count.trim().parse().unwrap());
            sleeps += voluntary as u64;
        }
        Self {
            // A tick is 10 ms on every Linux of today.
            cpu: Duration::from_millis(10 * ticks),
            sleeps,
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu - before.cpu,
            sleeps: self.sleeps.saturating_sub(before.sleeps),
        }
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            cpu: sum.cpu + one.cpu,
            sleeps: sum.sleeps + one.sleeps,
        })
    }
}

/// Does the work of a process that the bench has started. Returns if this is the bench itself.
pub(crate) fn be_what_is_asked() {
    if let Some(path) = std::env::var_os(NODE) {
        serve(Path::new(&path));
        std::process::exit(0);
    }
    if let Some(pki) = std::env::var_os(ECHO) {
        let files = IdentityFiles::server(Path::new(&pki), "n1");
        let tls = tls(&files);
        runtime(true).block_on(async {
            let endpoint = echo::listen(&tls);
            println!("{}", endpoint.local_addr().unwrap());
            tokio::spawn(echo::serve(endpoint));
            tokio::task::spawn_blocking(wait_for_the_end).await.unwrap();
        });
        std::process::exit(0);
    }
}

fn serve(path: &Path) {
    let sources = ConfigSources {
        file: Some(path.to_owned()),
        ..ConfigSources::default()
    };
    let config = Config::load(sources).unwrap();
    runtime(false).block_on(async {
        let server = Server::start(config, ServerOptions::default())
            .await
            .unwrap();
        println!("{}", server.client_address());
        tokio::task::spawn_blocking(wait_for_the_end).await.unwrap();
        server.shutdown().await;
    });
}

/// The runtime of `leasehold serve`; the echo's has one thread, which suits it best.
fn runtime(is_single: bool) -> tokio::runtime::Runtime {
    let single = std::env::var(THREADS).map_or(is_single, |threads| threads == "1");
    let mut builder = if single {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    builder.enable_all().build().unwrap()
}

fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

pub(crate) fn tls(files: &IdentityFiles) -> Tls {
    Tls::load(&TlsPaths {
        ca: files.trusted_ca.clone(),
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        crl: None,
    })
    .unwrap()
}
