//! `leasehold dev`: a whole cluster in one process, to play with.
//!
//! Real nodes on loopback, with certificates made for the occasion, each configured by a file as
//! any other node is; nothing is special about them but that they share a process. Where they are
//! is written into the user's private runtime file, so that the other commands need no flags. When it
//! ends it leaves nothing behind, unless it was given a directory to keep.

mod account;
mod plan;

use std::fs::File;
use std::future::Future;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;
use std::{env, fs, io};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::account::{Account, NodeAccount};
use self::plan::Plan;
use super::arguments::DevArgs;
use super::connection::{Connection, Connector, Target};
use super::failure::Failure;
use super::logging::{self, LineFormat, LogTarget};
use super::runtime::{
    Claim, DevCluster, DevName, RuntimeDirectory, RuntimeError, TEMPORARY_PREFIX,
};
use super::signals::Stop;
use crate::api::{ErrorKind, Priority, ResponseBody, StatusResponse};
use crate::pki::{self, Authority, IdentityFiles, LEAF_LIFE, PEER_CA_FILE};
use crate::types::Role;

/// Starts nodes.
pub trait Launcher {
    /// What it starts.
    type Node: Node;

    /// Starts the node that this file configures. Does not wait for other nodes.
    ///
    /// The error is a sentence for people.
    fn launch(&self, config: &Path) -> impl Future<Output = Result<Self::Node, String>> + Send;
}

/// A node that runs in this process.
pub trait Node: Send + 'static {
    /// Waits until the node ends without having been asked to, and returns the reason.
    fn ended(&mut self) -> impl Future<Output = String> + Send;

    /// Stops it gracefully.
    fn shutdown(self) -> impl Future<Output = ()> + Send;
}

/// How long a leader is waited for before that is worth a remark.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks.
const POLL: Duration = Duration::from_millis(50);
/// The name of the client whose certificate the command line uses.
const CLIENT: &str = "dev";

/// Runs a development cluster until `stop` is asked for, or until none of its nodes is left.
///
/// # Errors
/// It could not start, or all nodes ended by themselves.
pub async fn run(
    arguments: &DevArgs,
    launcher: &impl Launcher,
    connector: &impl Connector,
    stop: Stop,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let runtime = RuntimeDirectory::find(arguments.name.as_ref())?;
    let prepared = DevSetup::new(arguments, &runtime)?;
    let log = prepared.start_log(arguments.log.as_deref())?;
    live(prepared, launcher, connector, stop, log, out).await
}

/// The configuration files of a cluster that lies in `directory`, each with its path.
///
/// # Errors
/// The directory's name cannot stand in a configuration file.
pub fn configurations(
    directory: &Path,
    nodes: usize,
    first_port: u16,
) -> Result<Vec<(PathBuf, String)>, Failure> {
    Plan::new(directory, nodes, first_port).configurations()
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        Self::refused(error.to_string())
    }
}

/// Everything that is needed before a node can start. Dropping it cleans up.
#[derive(Debug)]
struct DevSetup {
    plan: Plan,
    name: Option<DevName>,
    announcement: DevCluster,
    // In this order: the word of the cluster goes before its data does.
    claim: Claim,
    directory: Directory,
}

/// Where everything lies; gone when dropped, if it is temporary.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    temporary: bool,
}

impl DevSetup {
    fn new(arguments: &DevArgs, runtime: &RuntimeDirectory) -> Result<Self, Failure> {
        let claim = runtime.claim()?;
        // Ports before anything is written: it is the likeliest thing to go wrong.
        plan::check_ports(arguments.nodes, arguments.port)?;
        if arguments.etcd {
            plan::check_etcd_ports(arguments.nodes)?;
        }
        let directory = match &arguments.data_dir {
            Some(path) => Directory::keep(path, arguments.nodes)?,
            None => Directory::temporary()?,
        };
        let plan = Plan::new(&directory.path, arguments.nodes, arguments.port);
        let plan = match arguments.etcd {
            true => plan.with_etcd(),
            false => plan,
        };
        make_certificates(&plan)?;
        for (path, text) in plan.configurations()? {
            fs::write(&path, text).map_err(|error| cannot("write", &path, &error))?;
        }
        let client = IdentityFiles::client(&plan.pki, CLIENT);
        let announcement = DevCluster {
            pid: process::id(),
            endpoints: plan
                .nodes
                .iter()
                .map(|node| node.client.to_string())
                .collect(),
            cacert: client.trusted_ca,
            cert: client.certificate,
            key: client.key,
            directory: directory.path.clone(),
            temporary: directory.temporary,
        };
        Ok(Self {
            plan,
            name: arguments.name.clone(),
            announcement,
            claim,
            directory,
        })
    }

    /// Sends the nodes' log lines to the terminal if they are wanted there, else to a file, whose
    /// name is returned.
    fn start_log(&self, wanted: Option<&str>) -> Result<Option<PathBuf>, Failure> {
        let (filter, place, file) = match wanted {
            Some(filter) => (filter, LogTarget::StandardError, None),
            None => {
                let path = self.directory.path.join("dev.log");
                let file = File::create(&path).map_err(|error| cannot("write", &path, &error))?;
                ("info", LogTarget::File(file), Some(path))
            }
        };
        logging::start(filter, LineFormat::Text, place)
            .map_err(|error| Failure::usage(error.to_string()))?;
        Ok(file)
    }

    fn target(&self) -> Target {
        Target {
            endpoints: self.announcement.endpoints.clone(),
            cacert: self.announcement.cacert.clone(),
            cert: self.announcement.cert.clone(),
            key: self.announcement.key.clone(),
            login: None,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            exactly_once: false,
            traceparent: None,
            priority: Priority::Normal,
        }
    }
}

impl Directory {
    fn temporary() -> Result<Self, Failure> {
        // Our process number makes a good name; where it is taken (numbers come round again) the
        // owner may still live, so it is left alone.
        let base = env::temp_dir().join(format!("{TEMPORARY_PREFIX}{}", process::id()));
        let mut path = base.clone();
        for suffix in 1..100 {
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    return Ok(Self {
                        path,
                        temporary: true,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path = PathBuf::from(format!("{}-{suffix}", base.display()));
                }
                Err(error) => return Err(cannot("create", &path, &error)),
            }
        }
        Err(cannot(
            "create",
            &base,
            &io::ErrorKind::AlreadyExists.into(),
        ))
    }

    fn keep(path: &Path, nodes: usize) -> Result<Self, Failure> {
        let path = std::path::absolute(path).map_err(|error| cannot("use", path, &error))?;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| cannot("create", &path, &error))?;
        let entries = fs::read_dir(&path).map_err(|error| cannot("read", &path, &error))?;
        let is_new = entries.count() == 0;
        let is_ours = path.join("pki").join(PEER_CA_FILE).exists();
        if !is_new && !is_ours {
            return Err(Failure::refused(format!(
                "{} does not hold a development cluster: give --data-dir an empty or a new \
                 directory",
                path.display()
            )));
        }
        let holds = (1..=9).take_while(|number| path.join(format!("n{number}")).exists());
        match holds.count() {
            0 => {}
            held if held != nodes => {
                return Err(Failure::usage(format!(
                    "{} holds a cluster of {held}: start it with --nodes {held}, or give another \
                     directory",
                    path.display()
                )));
            }
            _ => {}
        }
        Ok(Self {
            path,
            temporary: false,
        })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::refused(format!("cannot {action} {}: {error}", path.display()))
}

/// The cluster's authorities, once; new certificates on every start, so they never expire here.
fn make_certificates(plan: &Plan) -> Result<(), Failure> {
    let now = pki::wall_clock();
    let authority = Authority::load_or_create(&plan.pki, now)?;
    for node in &plan.nodes {
        authority.renew_node(&plan.pki, &node.name, LEAF_LIFE, now)?;
    }
    let client = authority.issue_client(CLIENT, LEAF_LIFE, now)?;
    IdentityFiles::client(&plan.pki, CLIENT).write(&client, true)?;
    Ok(())
}

/// The nodes that run, each in a task of its own.
struct Nodes {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
    report: mpsc::UnboundedSender<(String, String)>,
    /// Name and reason of each node that ended by itself.
    ended: mpsc::UnboundedReceiver<(String, String)>,
}

impl Nodes {
    fn new() -> Self {
        let (report, ended) = mpsc::unbounded_channel();
        Self {
            tasks: JoinSet::new(),
            stop: watch::Sender::new(false),
            report,
            ended,
        }
    }

    fn add(&mut self, name: String, mut node: impl Node) {
        let (mut stopping, report) = (self.stop.subscribe(), self.report.clone());
        self.tasks.spawn(async move {
            let reason = tokio::select! {
                reason = node.ended() => Some(reason),
                _ = async { stopping.wait_for(|stop| *stop).await.is_ok() } => None,
            };
            node.shutdown().await;
            if let Some(reason) = reason {
                // The receiver is gone once all are being stopped.
                let _ = report.send((name, reason));
            }
        });
    }

    async fn shutdown(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn live(
    prepared: DevSetup,
    launcher: &impl Launcher,
    connector: &impl Connector,
    mut stop: Stop,
    log: Option<PathBuf>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut nodes = Nodes::new();
    let result = tokio::select! {
        result = lead(&prepared, launcher, connector, &mut nodes, log, out) => result,
        () = stop.asked() => Ok(()),
    };
    // Whatever happened, the nodes end before their directory does.
    nodes.shutdown().await;
    drop(prepared);
    result
}

/// Starts the nodes, tells the world, and stays for as long as one of them does.
async fn lead(
    prepared: &DevSetup,
    launcher: &impl Launcher,
    connector: &impl Connector,
    nodes: &mut Nodes,
    log: Option<PathBuf>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for node in &prepared.plan.nodes {
        let started = launcher.launch(&node.config).await;
        let started = started.map_err(|error| {
            Failure::refused(format!("node {} failed to start: {error}", node.name))
        })?;
        nodes.add(node.name.clone(), started);
    }
    prepared.claim.announce(&prepared.announcement)?;
    let target = prepared.target();
    let connection = connect(connector, &target).await?;
    tokio::select! {
        statuses = wait_for_lease(&connection, &target, out) => {
            let account = account(prepared, &statuses, log);
            // A terminal that went away is no reason to end a cluster.
            let _ = write!(out, "{account}").and_then(|()| out.flush());
        }
        // All of them gone before one could lead.
        failure = until_none_is_left(&prepared.plan, &mut nodes.ended) => return Err(failure),
    }
    connection.close().await;
    Err(mourn(&prepared.plan, &mut nodes.ended, out).await)
}

/// Connects to nodes that have only just started to listen.
async fn connect<C: Connector>(connector: &C, target: &Target) -> Result<C::Connection, Failure> {
    let mut polls = 0;
    loop {
        match connector.connect(target).await {
            Err(error) if error.kind == ErrorKind::ConnectFailed && POLL * polls < PATIENCE => {
                polls += 1;
                tokio::time::sleep(POLL).await;
            }
            other => return Ok(other?),
        }
    }
}

/// Returns when no node is left; otherwise [`mourn`] reports those that ended.
async fn until_none_is_left(
    plan: &Plan,
    ended: &mut mpsc::UnboundedReceiver<(String, String)>,
) -> Failure {
    // Looks without taking, so that giving up loses nothing.
    loop {
        if ended.len() == plan.nodes.len() {
            return none_left(ended.recv().await);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Says of each node that ends by itself that it did, and returns when none is left.
async fn mourn(
    plan: &Plan,
    ended: &mut mpsc::UnboundedReceiver<(String, String)>,
    out: &mut impl Write,
) -> Failure {
    let mut left = plan.nodes.len();
    loop {
        let last = ended.recv().await;
        left = left.saturating_sub(1);
        if left == 0 {
            return none_left(last);
        }
        if let Some((name, reason)) = last {
            let verb = if left == 1 { "goes" } else { "go" };
            let _ = writeln!(out, "node {name} stopped: {reason}; {left} {verb} on");
            let _ = out.flush();
        }
    }
}

fn none_left(last: Option<(String, String)>) -> Failure {
    let (name, reason) = last.unwrap_or_default();
    Failure::refused(format!("no node is left; node {name} stopped: {reason}"))
}

/// Waits until a leader holds a valid lease; returns the status of every node.
async fn wait_for_lease(
    connection: &impl Connection,
    target: &Target,
    out: &mut impl Write,
) -> Vec<Option<StatusResponse>> {
    let mut polls = 0;
    loop {
        let mut statuses = Vec::new();
        for endpoint in &target.endpoints {
            let answer = connection.status(endpoint).await.ok();
            statuses.push(answer.and_then(|answer| match answer.body {
                ResponseBody::Status(status) => Some(*status),
                _ => None,
            }));
        }
        let leads =
            |status: &StatusResponse| status.role == Role::Leader && status.leader_lease.is_valid;
        if statuses.iter().flatten().any(leads) {
            return statuses;
        }
        polls += 1;
        if POLL * polls == PATIENCE {
            let _ = writeln!(out, "no leader yet; still waiting (Ctrl-C gives up)");
            let _ = out.flush();
        }
        tokio::time::sleep(POLL).await;
    }
}

fn account(
    prepared: &DevSetup,
    statuses: &[Option<StatusResponse>],
    log: Option<PathBuf>,
) -> Account {
    let nodes = prepared.plan.nodes.iter().zip(statuses);
    Account {
        nodes: nodes
            .map(|(node, status)| NodeAccount {
                name: node.name.clone(),
                client: node.client,
                peer: node.peer,
                admin: node.admin,
                etcd: node.etcd,
                role: status.as_ref().map(|status| status.role),
                lease: status
                    .as_ref()
                    .filter(|status| status.leader_lease.is_valid)
                    .map(|status| status.leader_lease.remaining),
            })
            .collect(),
        directory: prepared.directory.path.clone(),
        temporary: prepared.directory.temporary,
        pki: prepared.plan.pki.clone(),
        log,
        program: match &prepared.name {
            Some(name) => format!("{} --dev {name}", account::program()),
            None => account::program(),
        },
    }
}

#[cfg(test)]
mod tests;
