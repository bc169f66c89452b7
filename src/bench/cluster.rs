//! A cluster of our own: three processes of this binary on loopback, with certificates of their
//! own, real disks and real sockets, which may be paused, ended and cut off.
//!
//! The nodes are configured by flags alone, so that each setting that a bench varies is one more flag.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::leasehold::connect;
use super::process::{Process, Scratch, StopSignal};
use super::{Stopwatch, Wall};
use crate::cli::arguments::bench::OwnClusterArgs;
use crate::cli::connection::Target;
use crate::cli::failure::Failure;
use crate::client::Client;
use crate::pki::{AUTHORITY_LIFE, Authority, IdentityFiles, LEAF_LIFE, wall_clock};
use crate::types::NodeId;

/// The name in our client's certificate.
const CLIENT: &str = "bench";
/// How long a cluster may take until one of its nodes leads under a lease.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often that is looked for.
const POLL: Duration = Duration::from_millis(20);

/// What a cluster of our own is to be.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The program that `serve` is asked of.
    pub program: PathBuf,
    /// Where the directory of the cluster is made; it is gone afterwards.
    pub parent: PathBuf,
    /// Settings of every node, as `section.key` and value.
    pub settings: Vec<(String, String)>,
    /// Whether the nodes have the port for etcd's clients, in the clear.
    pub has_etcd_port: bool,
}

impl ClusterPlan {
    /// As the arguments say, of processes of `program`.
    pub fn of(arguments: &OwnClusterArgs, program: PathBuf) -> Self {
        Self {
            program,
            parent: arguments
                .data_dir
                .clone()
                .unwrap_or_else(std::env::temp_dir),
            settings: arguments.set.clone(),
            has_etcd_port: false,
        }
    }

    /// The same, of processes of this very binary.
    ///
    /// # Errors
    /// The system does not say which file it is.
    pub fn of_this_binary(arguments: &OwnClusterArgs) -> Result<Self, Failure> {
        Ok(Self::of(arguments, std::env::current_exe()?))
    }
}

/// Three processes on loopback.
#[derive(Debug)]
pub struct OwnCluster {
    // In this order: processes end before their directory does.
    nodes: Vec<OwnNode>,
    client: Client,
    target: Target,
    program: PathBuf,
    directory: Scratch,
}

#[derive(Debug)]
struct OwnNode {
    name: String,
    addresses: Addresses,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
}

/// Where a node listens.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// For clients.
    pub client: SocketAddr,
    /// For its peers.
    pub peer: SocketAddr,
    /// For HTTP.
    pub admin: SocketAddr,
    /// For etcd's clients, if the plan has that port.
    pub etcd: SocketAddr,
}

impl OwnCluster {
    /// Starts it, and waits until one of its nodes leads under a lease.
    ///
    /// # Errors
    /// A node cannot be started, or does not come to life.
    pub async fn start(plan: &ClusterPlan) -> Result<Self, Failure> {
        let addresses = free_addresses(3)?;
        let peers: Vec<SocketAddr> = addresses.iter().map(|node| node.peer).collect();
        Self::start_at(plan, &addresses, |_, to| peers[to]).await
    }

    /// As [`OwnCluster::start`], at these addresses, of which there are three; node `from` is given
    /// to call node `to` at `route(from, to)`.
    ///
    /// # Errors
    /// As [`OwnCluster::start`].
    pub async fn start_at(
        plan: &ClusterPlan,
        addresses: &[Addresses],
        route: impl Fn(usize, usize) -> SocketAddr,
    ) -> Result<Self, Failure> {
        let directory = Scratch::new(&plan.parent, "cluster")?;
        let (pki, now) = (directory.path().join("pki"), wall_clock());
        let authority = Authority::create(None, AUTHORITY_LIFE, now)?;
        authority.save(&pki)?;
        let identity = authority.issue_client(CLIENT, LEAF_LIFE, now)?;
        let files = IdentityFiles::client(&pki, CLIENT);
        files.write(&identity, false)?;
        let target = Target {
            endpoints: addresses
                .iter()
                .map(|node| node.client.to_string())
                .collect(),
            cacert: files.trusted_ca,
            cert: files.certificate,
            key: files.key,
            login: None,
            timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            exactly_once: false,
            traceparent: None,
            priority: crate::api::Priority::Normal,
        };
        let mut nodes = Vec::new();
        for (number, addresses) in addresses.iter().enumerate() {
            let name = node_name(number);
            let made = authority.issue_node(&name, &[], LEAF_LIFE, now)?;
            IdentityFiles::peer(&pki, &name).write(&made.peer, false)?;
            IdentityFiles::server(&pki, &name).write(&made.server, false)?;
            let initial = (0..3).map(|to| format!("{}={}", node_name(to), route(number, to)));
            let initial: Vec<String> = initial.collect();
            let mut settings = settings(&name, *addresses, directory.path())?;
            settings.push(("cluster.initial".to_owned(), initial.join(",")));
            if plan.has_etcd_port {
                settings.push(("listen.etcd".to_owned(), addresses.etcd.to_string()));
                settings.push(("etcd_compat.insecure".to_owned(), "true".to_owned()));
            }
            settings.extend(plan.settings.iter().cloned());
            let flag = |(key, value): (String, String)| [format!("--{key}"), value];
            let arguments = ["serve".to_owned()].into_iter();
            nodes.push(OwnNode {
                log: directory.path().join(format!("{name}.log")),
                arguments: arguments
                    .chain(settings.into_iter().flat_map(flag))
                    .collect(),
                name,
                addresses: *addresses,
                process: None,
            });
        }
        for node in &mut nodes {
            node.start(&plan.program)?;
        }
        let client = first_client(&target, &mut nodes).await?;
        let mut cluster = Self {
            nodes,
            client,
            target,
            program: plan.program.clone(),
            directory,
        };
        cluster.wait_for_leader(None).await?;
        Ok(cluster)
    }

    /// How clients reach it.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Where its data is.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A client of it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where node `number` listens.
    pub fn addresses(&self, number: usize) -> Addresses {
        self.nodes[number].addresses
    }

    /// The processes that run.
    pub fn pids(&self) -> Vec<u32> {
        let running = self.nodes.iter().filter_map(|node| node.process.as_ref());
        running.map(Process::pid).collect()
    }

    /// Waits until a node leads under a lease, another one than `not`, and gives its number.
    ///
    /// # Errors
    /// A node ended by itself, or none leads within a minute.
    pub async fn wait_for_leader(&mut self, not: Option<usize>) -> Result<usize, Failure> {
        let watch = Wall::start();
        loop {
            if let Some(leader) = self.leader().await.filter(|leader| Some(*leader) != not) {
                return Ok(leader);
            }
            self.check()?;
            if watch.elapsed() > PATIENCE {
                let words: Vec<String> = self.nodes.iter().map(OwnNode::last_words).collect();
                return Err(Failure::refused(format!(
                    "no node holds a leader lease after {PATIENCE:?}:\n{}",
                    words.join("\n")
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every node answers and follows the same leader, under its lease.
    ///
    /// # Errors
    /// As [`OwnCluster::wait_for_leader`].
    pub async fn wait_until_whole(&mut self) -> Result<usize, Failure> {
        let watch = Wall::start();
        loop {
            let leader = self.wait_for_leader(None).await?;
            let mut known = Vec::new();
            for node in &self.nodes {
                let status = self.client.status(node.addresses.client.to_string()).await;
                known.push(status.ok().and_then(|status| status.header.leader_id));
            }
            let first = known.first().copied().flatten();
            if first.is_some() && known.iter().all(|leader| *leader == first) {
                return Ok(leader);
            }
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "the cluster has not recovered after {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Which node leads under a lease, by its own account.
    pub async fn leader(&self) -> Option<usize> {
        for (number, node) in self.nodes.iter().enumerate() {
            if node.process.is_none() {
                continue;
            }
            let asked = self.client.status(node.addresses.client.to_string());
            // A node that is paused or cut off says nothing for as long as one waits.
            let answer = tokio::time::timeout(Duration::from_millis(300), asked).await;
            if let Ok(Ok(answer)) = answer
                && answer.status.leader_lease.is_valid
            {
                return Some(number);
            }
        }
        None
    }

    /// The member id of node `number`.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn member_id(&self, number: usize) -> Result<NodeId, Failure> {
        let endpoint = self.nodes[number].addresses.client.to_string();
        Ok(self.client.status(endpoint).await?.header.member_id)
    }

    /// Stops node `number` in its tracks.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&mut self, number: usize) -> Result<(), Failure> {
        self.running(number)?.pause()
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&mut self, number: usize) -> Result<(), Failure> {
        self.running(number)?.resume()
    }

    /// Ends node `number`, and does not wait until it has ended.
    ///
    /// # Errors
    /// It does not run.
    pub fn begin_to_end(&mut self, number: usize, how: StopSignal) -> Result<(), Failure> {
        self.running(number)?.begin_to_end(how)
    }

    /// Starts node `number` again, once it has stopped as requested.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart(&mut self, number: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[number];
        if let Some(mut process) = node.process.take() {
            process.wait()?;
        }
        node.start(&self.program)
    }

    /// As [`OwnCluster::restart`], with nothing left of what it had stored.
    ///
    /// # Errors
    /// It cannot be started, or its directory cannot be removed.
    pub fn start_empty(&mut self, number: usize) -> Result<(), Failure> {
        let node = &mut self.nodes[number];
        if let Some(mut process) = node.process.take() {
            process.wait()?;
        }
        std::fs::remove_dir_all(self.directory.path().join(&node.name))?;
        node.start(&self.program)
    }

    /// Says which node ended by itself, if one did.
    ///
    /// # Errors
    /// That, with its last words.
    pub fn check(&mut self) -> Result<(), Failure> {
        let mut running = self
            .nodes
            .iter_mut()
            .filter_map(|node| node.process.as_mut());
        running.try_for_each(Process::check)
    }

    fn running(&mut self, number: usize) -> Result<&mut Process, Failure> {
        let node = &mut self.nodes[number];
        let name = &node.name;
        let process = node.process.as_mut();
        process.ok_or_else(|| Failure::refused(format!("node {name} is not running")))
    }
}

impl OwnNode {
    fn start(&mut self, program: &Path) -> Result<(), Failure> {
        let process = Process::start(&self.name, program, &self.arguments, &self.log)?;
        self.process = Some(process);
        Ok(())
    }

    fn last_words(&self) -> String {
        match &self.process {
            Some(process) => format!("{}: {}", self.name, process.last_words()),
            None => format!("{}: not running", self.name),
        }
    }
}

/// A client, once a node answers.
async fn first_client(target: &Target, nodes: &mut [OwnNode]) -> Result<Client, Failure> {
    let watch = Wall::start();
    loop {
        let failure = match connect(target).await {
            Ok(client) => return Ok(client),
            Err(failure) => failure,
        };
        let mut running = nodes.iter_mut().filter_map(|node| node.process.as_mut());
        running.try_for_each(Process::check)?;
        if watch.elapsed() > PATIENCE {
            return Err(failure);
        }
        tokio::time::sleep(POLL).await;
    }
}

fn settings(
    name: &str,
    addresses: Addresses,
    directory: &Path,
) -> Result<Vec<(String, String)>, Failure> {
    let pki = directory.join("pki");
    let text = |path: PathBuf| {
        path.into_os_string().into_string().map_err(|path| {
            Failure::usage(format!(
                "{} has a name that is not UTF-8: choose another directory",
                path.display()
            ))
        })
    };
    let mut settings = vec![
        ("node.name", name.to_owned()),
        ("node.data_dir", text(directory.join(name))?),
        ("listen.client", addresses.client.to_string()),
        ("listen.peer", addresses.peer.to_string()),
        ("listen.admin", addresses.admin.to_string()),
        ("log.format", "text".to_owned()),
    ];
    let (server, peer) = (
        IdentityFiles::server(&pki, name),
        IdentityFiles::peer(&pki, name),
    );
    settings.extend([
        ("tls.client.cert_file", text(server.certificate)?),
        ("tls.client.key_file", text(server.key)?),
        ("tls.client.trusted_ca_file", text(server.trusted_ca)?),
        ("tls.peer.cert_file", text(peer.certificate)?),
        ("tls.peer.key_file", text(peer.key)?),
        ("tls.peer.trusted_ca_file", text(peer.trusted_ca)?),
    ]);
    Ok(settings
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect())
}

fn node_name(number: usize) -> String {
    format!("n{}", number + 1)
}

/// Addresses on loopback that are free at the moment.
///
/// # Errors
/// No port is free.
pub fn free_addresses(count: usize) -> Result<Vec<Addresses>, Failure> {
    let address = || Ok::<_, Failure>(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
    let node = |_| {
        Ok(Addresses {
            client: address()?,
            peer: address()?,
            admin: address()?,
            etcd: address()?,
        })
    };
    (0..count).map(node).collect()
}

/// A port on loopback that is free for UDP and TCP, and that neither this process nor the system
/// gives to another process before a node takes it: it lies below the ports that outgoing connections
/// are given.
fn free_port() -> Result<u16, Failure> {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        // Other processes, and tests of this one, start elsewhere.
        let begin = std::process::id().wrapping_mul(7_919);
        let begin = begin.wrapping_add(u32::from(COUNT / 2));
        let place = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % u32::from(COUNT);
        let port = FIRST + u16::try_from(place).unwrap_or_default();
        let address = (Ipv4Addr::LOCALHOST, port);
        if UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok() {
            return Ok(port);
        }
    }
    Err(Failure::refused("no free port on loopback"))
}
