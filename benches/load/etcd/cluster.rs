//! Three processes of etcd on loopback, to stand beside ours.

use std::env;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;

use super::store::{EtcdConnection, EtcdStatus};
use crate::arguments::GapCase;
use crate::gap::{Prober, Subject};
use leasehold::api::Consistency;
use leasehold::bench::process::{Process, Scratch, StopSignal};
use leasehold::bench::store::Connection;
use leasehold::bench::{Stopwatch, Wall};
use leasehold::cli::failure::Failure;

static KEY: Bytes = Bytes::from_static(b"bench/gap");
/// How long a cluster may take to come to life.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// How long a probe of one member waits.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Three processes of etcd.
#[derive(Debug)]
pub(crate) struct EtcdCluster {
    // In this order: processes end before their directory does.
    members: Vec<Member>,
    program: PathBuf,
    _directory: Scratch,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: SocketAddr,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
    connection: EtcdConnection,
}

impl EtcdCluster {
    /// Where etcd's program is: in `ETCD`, or where programs are.
    pub(crate) fn program() -> Option<PathBuf> {
        if let Some(named) = env::var_os("ETCD") {
            return Some(PathBuf::from(named));
        }
        let paths = env::var_os("PATH")?;
        let mut programs = env::split_paths(&paths).map(|path| path.join("etcd"));
        programs.find(|program| program.is_file())
    }

    /// Starts it below `parent` with these flags besides its own, and waits until a member leads.
    ///
    /// # Errors
    /// etcd is not there, or does not come to life.
    pub(crate) async fn start(parent: &Path, flags: &[(String, String)]) -> Result<Self, Failure> {
        let program = Self::program().ok_or_else(|| {
            Failure::refused(
                "there is no etcd on this machine: install one (Debian: `apt-get install \
                 etcd-server`), or say where it is with ETCD=/path/to/etcd",
            )
        })?;
        let directory = Scratch::new(parent, "etcd")?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        // All held until all are known, so that none is given twice.
        let held = (0..6)
            .map(|_| TcpListener::bind(any))
            .collect::<std::io::Result<Vec<_>>>()?;
        let addresses: Vec<SocketAddr> = held
            .iter()
            .map(TcpListener::local_addr)
            .collect::<std::io::Result<_>>()?;
        drop(held);
        let (clients, peers) = addresses.split_at(3);
        let name = |number: usize| format!("e{}", number + 1);
        let initial = (0..3).map(|number| format!("{}=http://{}", name(number), peers[number]));
        let initial: Vec<String> = initial.collect();
        let mut members = Vec::new();
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let name = name(number);
            let data = directory.path().join(&name);
            let mut arguments = vec![
                format!("--name={name}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls=http://{client}"),
                format!("--advertise-client-urls=http://{client}"),
                format!("--listen-peer-urls=http://{peer}"),
                format!("--initial-advertise-peer-urls=http://{peer}"),
                format!("--initial-cluster={}", initial.join(",")),
                "--initial-cluster-state=new".to_owned(),
            ];
            arguments.extend(
                flags
                    .iter()
                    .map(|(flag, value)| format!("--{flag}={value}")),
            );
            let log = directory.path().join(format!("{name}.log"));
            members.push(Member {
                process: Some(Process::start(&name, &program, &arguments, &log)?),
                connection: EtcdConnection::new(&client.to_string(), PROBE_TIMEOUT)
                    .map_err(|trouble| Failure::refused(trouble.detail))?,
                name,
                client: *client,
                arguments,
                log,
            });
        }
        let mut cluster = Self {
            members,
            program,
            _directory: directory,
        };
        cluster.wait_until_whole().await?;
        Ok(cluster)
    }

    /// Where clients go.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members
            .iter()
            .map(|member| member.client.to_string())
            .collect()
    }

    /// The processes that run.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let running = self
            .members
            .iter()
            .filter_map(|member| member.process.as_ref());
        running.map(Process::pid).collect()
    }

    /// The version that the members say they have.
    ///
    /// # Errors
    /// The first does not answer.
    pub(crate) async fn version(&self) -> Result<String, Failure> {
        match self.members[0].connection.status().await {
            Ok(status) => Ok(status.version),
            Err(trouble) => Err(Failure::refused(trouble.detail)),
        }
    }

    /// What each member says of itself.
    async fn statuses(&self) -> Vec<Option<EtcdStatus>> {
        let mut statuses = Vec::new();
        for member in &self.members {
            statuses.push(match member.process {
                Some(_) => member.connection.status().await.ok(),
                None => None,
            });
        }
        statuses
    }

    /// The member that the others follow, another one than `not`; if `all` are to be there, only
    /// once all follow it.
    async fn wait(&mut self, not: Option<usize>, all: bool) -> Result<usize, Failure> {
        let watch = Wall::start();
        loop {
            let statuses = self.statuses().await;
            let leader = leader(&statuses, all).filter(|leader| Some(*leader) != not);
            if let Some(leader) = leader {
                return Ok(leader);
            }
            for member in &mut self.members {
                member.process.as_mut().map_or(Ok(()), Process::check)?;
            }
            if watch.elapsed() > PATIENCE {
                return Err(Failure::refused(format!(
                    "etcd has no leader after {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn running(&mut self, number: usize) -> Result<&mut Process, Failure> {
        let member = &mut self.members[number];
        let name = &member.name;
        let process = member.process.as_mut();
        process.ok_or_else(|| Failure::refused(format!("etcd's member {name} does not run")))
    }
}

/// The member that says it leads, in the account of a majority (or of all).
fn leader(statuses: &[Option<EtcdStatus>], all: bool) -> Option<usize> {
    let known: Vec<&EtcdStatus> = statuses.iter().flatten().collect();
    let needed = if all {
        statuses.len()
    } else {
        statuses.len() / 2 + 1
    };
    let leads = |status: &&EtcdStatus| status.member == status.leader && status.leader != 0;
    let leader = known.iter().copied().find(leads)?;
    let follow = known.iter().filter(|status| status.leader == leader.member);
    if follow.count() < needed {
        return None;
    }
    let is_leader = |status: &Option<EtcdStatus>| {
        status
            .as_ref()
            .is_some_and(|status| status.member == leader.member)
    };
    statuses.iter().position(is_leader)
}

impl Subject for EtcdCluster {
    type Prober = EtcdProber;

    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn prober(&mut self) -> Result<EtcdProber, Failure> {
        EtcdProber::new(&self.endpoints())
    }

    async fn wait_until_whole(&mut self) -> Result<usize, Failure> {
        self.wait(None, true).await
    }

    async fn wait_for_other_leader(&mut self, former: usize) -> Result<(), Failure> {
        self.wait(Some(former), false).await?;
        Ok(())
    }

    async fn disturb(&mut self, leader: usize, case: GapCase) -> Result<(), Failure> {
        match case {
            GapCase::MoveLeader => {
                let next = (leader + 1) % self.members.len();
                let refused = |trouble: leasehold::bench::store::Trouble| {
                    Failure::refused(format!("etcd does not move its leader: {}", trouble.detail))
                };
                let target = self.members[next]
                    .connection
                    .status()
                    .await
                    .map_err(refused)?;
                let asked = self.members[leader].connection.move_leader(target.member);
                asked.await.map_err(refused)
            }
            GapCase::Stop => self.running(leader)?.begin_to_end(StopSignal::Stop),
            GapCase::Kill => self.running(leader)?.begin_to_end(StopSignal::Kill),
        }
    }

    fn repair(&mut self, former: usize, case: GapCase) -> Result<(), Failure> {
        if case == GapCase::MoveLeader {
            return Ok(());
        }
        let member = &mut self.members[former];
        if let Some(mut process) = member.process.take() {
            process.wait()?;
        }
        let started = Process::start(&member.name, &self.program, &member.arguments, &member.log);
        member.process = Some(started?);
        Ok(())
    }
}

/// Asks the members of an etcd cluster.
#[derive(Debug)]
pub(crate) struct EtcdProber {
    members: Vec<EtcdConnection>,
}

impl EtcdProber {
    /// Of the members at these endpoints.
    ///
    /// # Errors
    /// One of them is no endpoint.
    pub(crate) fn new(endpoints: &[String]) -> Result<Self, Failure> {
        let connect = |endpoint: &String| {
            let made = EtcdConnection::new(endpoint, PROBE_TIMEOUT);
            made.map_err(|trouble| Failure::refused(trouble.detail))
        };
        let members = endpoints.iter().map(connect);
        Ok(Self {
            members: members.collect::<Result<_, _>>()?,
        })
    }
}

impl Prober for EtcdProber {
    fn members(&self) -> usize {
        self.members.len()
    }

    async fn reads(&self, member: usize) -> bool {
        let asked = self.members[member].get(&KEY, Consistency::Linearizable);
        asked.await.is_ok()
    }

    async fn writes(&self, member: usize) -> bool {
        self.members[member].put(&KEY, &KEY).await.is_ok()
    }

    async fn client_reads(&self) -> Option<bool> {
        None
    }

    async fn client_writes(&self) -> Option<bool> {
        None
    }
}
