//! Separate processes on loopback, with real certificates, disks and sockets.
//!
//! A [`Cluster`] owns its processes and its folder and leaves neither behind. Ports are looked for
//! below those that the system gives to connections, and may in principle be taken by somebody else
//! before a node binds them; a node that fails to start is therefore reported with its whole log.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::api::{Error, ErrorKind, Outcome, PutRequest};
use leasehold::bench::verify::proxy::Wires;
use leasehold::client::{Client, ConnectOptions, TlsOptions};
use leasehold::kv;
use leasehold::kv::Operation;
use leasehold::server::disk::store::{StateStore, StoreOptions};
use leasehold::types::{LogId, Role};
pub(crate) use rustix::process::Signal;
use rustix::process::{Pid, kill_process};

/// How long a test waits for something that normally takes a second or two, before it says that it
/// never came. Far beyond what a slow machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// How long a request is tried again: longer than elections take on a machine that is busy with much
/// else. Whoever waits for a request to fail asks for less.
pub(crate) const REQUEST_PATIENCE: Duration = Duration::from_secs(60);

/// How long or how much, as the environment says; `default` if it says nothing.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
        Err(_) => default,
    }
}

/// The binary under test.
pub(crate) fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_leasehold")
}

/// Runs the binary to its end and returns (exit code, stdout, stderr).
pub(crate) fn run(arguments: &[&str]) -> (i32, String, String) {
    let output = leasehold_command()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the binary under test runs");
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// Runs the binary and demands success.
pub(crate) fn must(arguments: &[&str]) -> String {
    let (code, stdout, stderr) = run(arguments);
    assert_eq!(
        code, 0,
        "leasehold {arguments:?} failed:\n{stdout}\n{stderr}"
    );
    stdout
}

/// Sends a process of ours a signal.
pub(crate) fn send(process: &Child, signal: Signal) {
    kill_process(Pid::from_child(process), signal).expect("it is a process of ours");
}

/// The binary under test, as a command that sees nothing but what the test gives it (decision 42).
pub(crate) fn leasehold_command() -> Command {
    let mut command = Command::new(binary());
    without_settings(&mut command);
    command
}

/// The binary under test where `hosts` is in place of `/etc/hosts`. The process has the id of the command.
pub(crate) fn with_hosts(hosts: &Path) -> Command {
    let mut command = Command::new("unshare");
    without_settings(&mut command);
    let bind = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
    command.args(["--mount", "sh", "-c", bind]);
    command.arg(hosts).arg(binary());
    command
}

/// Writes a file that its owner alone may read.
pub(crate) fn write_secret(path: impl AsRef<Path>, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Takes from `command` the settings of the user who runs the tests, the way to a development cluster
/// that this user may be running, and the user's contexts: no test reads or writes them.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_str();
        if text.is_some_and(|name| name.starts_with("LEASEHOLD_")) {
            command.env_remove(name);
        }
    }
    command.env(
        "XDG_RUNTIME_DIR",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/no-development-cluster"),
    );
    command.env(
        "XDG_CONFIG_HOME",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/no-contexts"),
    );
}

/// A port on loopback that is free for UDP and TCP, and that neither this process nor the system
/// gives to anybody else: it lies below the ports that outgoing connections are given.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..COUNT {
        // Processes beside this one begin elsewhere.
        let place = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::process::id().wrapping_mul(7_919).wrapping_add(place) % COUNT;
        let port = u16::try_from(FIRST + place).expect("it is below the ephemeral ports");
        let is_free = UdpSocket::bind(("127.0.0.1", port)).is_ok()
            && TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free {
            return port;
        }
    }
    panic!("no port is free on loopback");
}

/// What was left out so far, each thing once.
static LEFT_OUT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Says that a test, or a part of one, cannot be done on this machine; with `LEASEHOLD_REQUIRE_FAULTS` set that is an
/// error.
pub(crate) fn left_out(what: &str) {
    let is_demanded = std::env::var_os("LEASEHOLD_REQUIRE_FAULTS").is_some();
    assert!(!is_demanded, "{what}");
    say_left_out(what);
}

/// Says it past what the test harness keeps to itself when all goes well, and to the file that `LEASEHOLD_LEFT_OUT`
/// names, which the gate shows at its end.
pub(crate) fn say_left_out(what: &str) {
    if !LEFT_OUT.lock().unwrap().insert(what.to_owned()) {
        return;
    }
    let line = format!("##### LEFT OUT: {what} #####\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os("LEASEHOLD_LEFT_OUT") {
        let list = fs::File::options().create(true).append(true).open(list);
        list.and_then(|mut list| list.write_all(line.as_bytes()))
            .expect("the file that LEASEHOLD_LEFT_OUT names can be written");
    }
}

/// Says at the end of a run what was left out in it, in the same way.
#[allow(dead_code, reason = "only chaos has runs")]
pub(crate) fn tell_what_was_left_out() {
    let all = LEFT_OUT.lock().unwrap();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let told = match all[..] {
        [] => "nothing was left out\n".to_owned(),
        _ => format!("##### LEFT OUT: {} #####\n", all.join("; ")),
    };
    let _ = std::io::stderr().write_all(told.as_bytes());
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

/// All files in a folder, and in those below it.
pub(crate) fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(files_below(&entry.path())),
            false => files.push(entry.path()),
        }
    }
    files
}

/// Applies to the state of a stopped node, after what it has applied, an entry that its log has not.
pub(crate) fn forge_entry(state: &Path, key: &str) {
    let mut store = StateStore::open(state, &StoreOptions::default()).unwrap();
    let applied = store.reader().snapshot().unwrap().applied();
    let put = PutRequest {
        key: key.to_owned().into(),
        value: "forged".into(),
        ..PutRequest::default()
    };
    let command = kv::Command::Write {
        author: None,
        session: None,
        operation: Operation::Put(put),
    };
    let next = LogId::new(applied.index.next(), applied.term);
    store
        .apply_batch(&[(next, Some(command.encode()))])
        .unwrap();
    store.close().unwrap();
}

/// Waits until `probe` gives something, asking again after 20 ms, and less often the longer it takes: to ask costs
/// the machine something, too.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    eventually_told(what, || probe().ok_or_else(String::new))
}

/// The same; if nothing comes of it, the last reason is told.
pub(crate) fn eventually_told<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let started = Instant::now();
    let mut pause = Duration::from_millis(20);
    loop {
        let why = match probe() {
            Ok(found) => return found,
            Err(why) => why,
        };
        assert!(
            started.elapsed() < PATIENCE,
            "waited {PATIENCE:?} for: {what} {why}"
        );
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(Duration::from_millis(60));
    }
}

/// Makes a request that is to be refused, and again for as long as nobody knows what became of it: one
/// that is sent anew when its leader is lost may have been applied before. What is returned was said of
/// one attempt alone.
pub(crate) async fn judged<T>(
    mut request: impl AsyncFnMut() -> Result<T, Error>,
) -> Result<T, Error> {
    let began = Instant::now();
    loop {
        match request().await {
            Err(error) if error.outcome == Outcome::Unknown => {
                assert!(began.elapsed() < PATIENCE, "it stays unknown: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            known => return known,
        }
    }
}

/// A cluster's authorities and the certificates made with them.
pub(crate) struct Pki {
    pub(crate) path: PathBuf,
}

impl Pki {
    /// A new cluster's certificates in `path`.
    pub(crate) fn create(path: &Path) -> Self {
        must(&["cert", "init", "--out", path.to_str().unwrap()]);
        let pki = Self {
            path: path.to_owned(),
        };
        pki.issue("--client", "tester", &[]);
        pki
    }

    /// Issues one certificate.
    pub(crate) fn issue(&self, kind: &str, name: &str, more: &[&str]) {
        let out = self.path.to_str().unwrap();
        let mut arguments = vec!["cert", "issue", "--out", out, kind, "--name", name];
        if kind == "--node" {
            arguments.extend(["--san", "127.0.0.1,localhost"]);
        }
        arguments.extend(more);
        must(&arguments);
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.path.join(name).to_str().unwrap().to_owned()
    }
}

/// One node's process, or its absence.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) process: Option<Child>,
    /// Environment variables of the process.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// What the process finds in place of `/etc/hosts`, in a mount namespace of its own.
    pub(crate) hosts: Option<PathBuf>,
}

impl Node {
    /// Starts the process; it need not be ready when this returns.
    pub(crate) fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs already", self.name);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = match &self.hosts {
            None => leasehold_command(),
            Some(hosts) => with_hosts(hosts),
        };
        let child = command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args(["serve", "--config", self.config.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("the binary under test runs");
        self.process = Some(child);
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.process.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Takes the processor away from the process: to the others it is as if cut off.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Gives the processor back.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        send(self.process.as_ref().expect("it runs"), signal);
    }

    /// Asks the process to stop and returns its exit code.
    pub(crate) fn stop(&mut self) -> i32 {
        self.signal(Signal::TERM);
        let mut child = self.process.take().expect("it runs");
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(
                started.elapsed() < PATIENCE,
                "{} did not stop:\n{}",
                self.name,
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the process to end by itself and returns its exit code.
    pub(crate) fn wait_for_exit(&mut self) -> i32 {
        let mut child = self.process.take().expect("it runs");
        let started = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                panic!(
                    "{} runs on, and should have refused:\n{}",
                    self.name,
                    self.log_text()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Where it notes that it has found a leader lease of its own wrong (P37).
    pub(crate) fn tripped_mark(&self) -> PathBuf {
        self.data_dir.join("leader-lease.tripped")
    }

    /// Says, as an operator who need not be asked, that the cause of that is gone. The node is stopped.
    pub(crate) fn clear_leader_lease(&self) {
        let data_dir = self.data_dir.to_str().expect("it is UTF-8");
        must(&[
            "leader-lease",
            "clear",
            "--data-dir",
            data_dir,
            "--yes-the-cause-is-gone",
        ]);
    }

    /// What the process wrote, for messages.
    pub(crate) fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// One HTTP request to the admin listener: (status, body).
    pub(crate) fn admin(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect_timeout(&self.admin, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.admin
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        let body = answer.split_once("\r\n\r\n")?.1.to_owned();
        Some((status, body))
    }

    /// What it says of itself, if it answers. A scrape of all metrics costs six times as much.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let (_, body) = self.admin("/admin/v1/status")?;
        serde_json::from_str(&body).ok()
    }

    fn is_leading_under_a_lease(&self) -> Option<bool> {
        // Beyond loopback, a node without certificates there says nothing but its metrics.
        if !self.admin.ip().is_loopback() {
            let (_, body) = self.admin("/metrics")?;
            return Some(body.contains("\nleasehold_leader_lease_valid 1\n"));
        }
        Some(self.status()?["leader_lease"]["is_valid"] == true)
    }

    /// One HTTP request to the admin listener with whatever `head` has after the method, for example
    /// `/path HTTP/1.1\r\nHost: x`: the status and the body, once all of it has come.
    pub(crate) fn http(&self, head: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect_timeout(&self.admin, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).expect("an answer of HTTP");
        let body = answer.split_once("\r\n\r\n").expect("a whole head").1;
        (status.parse().unwrap(), body.to_owned())
    }

    /// What the admin listener answers to somebody on the node's own machine.
    pub(crate) fn manage(&self, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}", self.admin);
        let (status, body) = self.http(&head, body);
        let document = serde_json::from_str(&body)
            .unwrap_or_else(|_| panic!("{method} {path}: {status} without a document: {body}"));
        (status, document)
    }

    /// The value of one metric line, whose name and labels are `series`.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let (_, body) = eventually("a scrape", || {
            self.admin("/metrics").filter(|(status, _)| *status == 200)
        });
        value_of(&body, series)
            .unwrap_or_else(|| panic!("{} has no series {series}:\n{body}", self.name))
    }

    /// The same, if the node answers and has one.
    pub(crate) fn metric_if_any(&self, series: &str) -> Option<f64> {
        let (_, body) = self.admin("/metrics")?;
        value_of(&body, series)
    }
}

/// The value of the line of a scrape whose name and labels are `series`.
fn value_of(scrape: &str, series: &str) -> Option<f64> {
    let mut lines = scrape.lines();
    lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

impl Drop for Node {
    #[expect(clippy::print_stderr, reason = "a test has failed: this is why")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.process.as_mut().map(Child::try_wait);
            let log = self.log_text();
            let lines: Vec<&str> = log.lines().collect();
            let last = &lines[lines.len().saturating_sub(12)..];
            eprintln!("--- {} ({ended:?}):\n{}", self.name, last.join("\n"));
        }
        self.kill();
    }
}

/// Several nodes of one cluster.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) pki: Pki,
    pub(crate) folder: tempfile::TempDir,
}

impl Cluster {
    /// Prepares certificates and configuration for `count` nodes and starts none.
    pub(crate) fn prepare(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pki = Pki::create(&folder.path().join("pki"));
        let mut nodes = Vec::new();
        for number in 1..=count {
            let name = format!("n{number}");
            pki.issue("--node", &name, &[]);
            let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
            nodes.push(Node {
                client: address(),
                peer: address(),
                admin: address(),
                data_dir: folder.path().join(&name),
                config: folder.path().join(format!("{name}.toml")),
                log: folder.path().join(format!("{name}.log")),
                name,
                process: None,
                environment: Vec::new(),
                hosts: None,
            });
        }
        let cluster = Self { nodes, pki, folder };
        cluster.write_configs("");
        cluster
    }

    /// Nodes that reach each other through wires, which can be cut. Not started yet.
    pub(crate) fn prepare_wired(count: usize) -> (Self, Wires) {
        let cluster = Self::prepare(count);
        let peers: Vec<_> = cluster.nodes.iter().map(|node| node.peer).collect();
        let wires = Wires::start(&peers).unwrap();
        for (from, node) in cluster.nodes.iter().enumerate() {
            let mut text = fs::read_to_string(&node.config).unwrap();
            for (to, other) in cluster.nodes.iter().enumerate() {
                if let Some(wire) = wires.address(from, to) {
                    let direct = format!("{}={}", other.name, other.peer);
                    text = text.replace(&direct, &format!("{}={wire}", other.name));
                }
            }
            fs::write(&node.config, text).unwrap();
        }
        (cluster, wires)
    }

    /// Prepares and starts `count` nodes, as [`Cluster::start_and_settle`] does.
    pub(crate) fn start(count: usize) -> Self {
        let mut cluster = Self::prepare(count);
        cluster.start_and_settle();
        cluster
    }

    /// Starts all nodes and waits until a leader serves leased reads and all of them may vote.
    /// Returns the leader.
    pub(crate) fn start_and_settle(&mut self) -> usize {
        self.start_all();
        self.wait_until_settled()
    }

    /// Waits until a leader serves leased reads and all nodes may vote. Returns the leader.
    pub(crate) fn wait_until_settled(&mut self) -> usize {
        self.wait_for_lease();
        // A member without an entry cannot know that its disk was always empty: if it loses its vote
        // of the bootstrap, it does not vote until it has received everything, and one of the others
        // must not be stopped.
        for node in &self.nodes {
            eventually("a member that may vote", || {
                // One that nobody has told of the cluster yet is not in quarantine yet.
                let may_vote = node.metric("leasehold_raft_quarantined") == 0.0;
                let proven = !node.data_dir.join("unproven").exists();
                (may_vote && proven).then_some(())
            });
        }
        self.wait_for_lease()
    }

    /// Writes every node's configuration; `more` is appended to each.
    pub(crate) fn write_configs(&self, more: &str) {
        let initial = self.initial();
        for place in 0..self.nodes.len() {
            self.write_config(place, &initial, more);
        }
    }

    /// Writes one node's configuration, with these initial members.
    pub(crate) fn write_config(&self, place: usize, initial: &[String], more: &str) {
        let node = &self.nodes[place];
        let text = format!(
            "[node]\nname = \"{}\"\ndata_dir = \"{}\"\n\
             [listen]\nclient = \"{}\"\npeer = \"{}\"\nadmin = \"{}\"\n\
             [cluster]\ninitial = [{}]\n\
             [storage]\nsegment_bytes = \"8MiB\"\n\
             [tls.client]\ncert_file = \"{server}.pem\"\nkey_file = \"{server}.key\"\ntrusted_ca_file = \"{client_ca}\"\n\
             [tls.peer]\ncert_file = \"{peer}.pem\"\nkey_file = \"{peer}.key\"\ntrusted_ca_file = \"{peer_ca}\"\n\
             [log]\nformat = \"text\"\n{more}",
            node.name,
            node.data_dir.display(),
            node.client,
            node.peer,
            node.admin,
            initial.join(", "),
            server = self.pki.file(&format!("{}-server", node.name)),
            peer = self.pki.file(&format!("{}-peer", node.name)),
            client_ca = self.pki.file("client-ca.pem"),
            peer_ca = self.pki.file("peer-ca.pem"),
        );
        fs::write(&node.config, text).unwrap();
    }

    /// Prepares one more node, which asks the others who it is; starts nothing. Returns its place.
    pub(crate) fn prepare_another(&mut self) -> usize {
        let name = format!("n{}", self.nodes.len() + 1);
        self.pki.issue("--node", &name, &[]);
        let address = || SocketAddr::from(([127, 0, 0, 1], free_port()));
        self.nodes.push(Node {
            client: address(),
            peer: address(),
            admin: address(),
            data_dir: self.folder.path().join(&name),
            config: self.folder.path().join(format!("{name}.toml")),
            log: self.folder.path().join(format!("{name}.log")),
            name,
            process: None,
            environment: Vec::new(),
            hosts: None,
        });
        let place = self.nodes.len() - 1;
        self.write_config(place, &self.initial(), "");
        self.says_that_the_cluster_exists(place);
        place
    }

    /// Has a node, before it starts, take its cluster for one that exists.
    pub(crate) fn says_that_the_cluster_exists(&self, place: usize) {
        let path = &self.nodes[place].config;
        let text = fs::read_to_string(path).unwrap();
        let text = text.replace("[cluster]\n", "[cluster]\nstate = \"existing\"\n");
        fs::write(path, text).unwrap();
    }

    /// All nodes, as `cluster.initial` names them.
    pub(crate) fn initial(&self) -> Vec<String> {
        let nodes = self.nodes.iter();
        nodes
            .map(|node| format!("\"{}={}\"", node.name, node.peer))
            .collect()
    }

    /// Makes of a backup the data of `node`, which has none yet: (exit code, stdout, stderr).
    pub(crate) fn restore(
        &self,
        node: &Node,
        file: &str,
        certificate: &str,
        more: &[&str],
    ) -> (i32, String, String) {
        let initial = self.initial().join(",").replace('"', "");
        let mut arguments = vec!["offline", "snapshot", "restore", file];
        arguments.extend(["--data-dir", node.data_dir.to_str().unwrap()]);
        arguments.extend(["--name", &node.name, "--initial-cluster", &initial]);
        arguments.extend(["--node-cert", certificate, "-o", "json"]);
        arguments.extend(more);
        run(&arguments)
    }

    /// Has the nodes, before they start, compare their states every second.
    pub(crate) fn check_states_every_second(&self) {
        for node in &self.nodes {
            let text = fs::read_to_string(&node.config).unwrap();
            let storage = "[storage]\ncorruption_check_interval = \"1s\"\n";
            fs::write(&node.config, text.replace("[storage]\n", storage)).unwrap();
        }
    }

    pub(crate) fn start_all(&mut self) {
        for node in &mut self.nodes {
            node.start();
        }
    }

    /// The node that leads with a valid lease, by its own account.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            node.process.is_some() && node.is_leading_under_a_lease().unwrap_or(false)
        })
    }

    /// Kills the leader, and starts it again once another one leads under a valid lease.
    pub(crate) fn replace_leader(&mut self) {
        let leader = self.wait_for_lease();
        self.nodes[leader].kill();
        self.wait_for_lease();
        self.nodes[leader].start();
    }

    /// Waits until some node leads under a valid lease.
    pub(crate) fn wait_for_lease(&mut self) -> usize {
        let started = Instant::now();
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            for node in &mut self.nodes {
                if let Some(child) = &mut node.process
                    && let Some(status) = child.try_wait().unwrap()
                {
                    node.process = None;
                    panic!("{} ended with {status}:\n{}", node.name, node.log_text());
                }
            }
            if started.elapsed() > PATIENCE {
                let logs: Vec<String> = self.nodes.iter().map(Node::log_text).collect();
                panic!(
                    "no node leads under a lease after {PATIENCE:?}:\n{}",
                    logs.join("\n---\n")
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What every client of this cluster connects with.
    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .with_tls(
                TlsOptions::new()
                    .ca_pem_file(self.pki.file("client-ca.pem"))
                    .identity_pem_files(self.pki.file("tester.pem"), self.pki.file("tester.key")),
            )
            .with_timeout(REQUEST_PATIENCE)
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.nodes
            .iter()
            .map(|node| node.client.to_string())
            .collect()
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(self.options()).await
    }

    /// A client with options of its own.
    pub(crate) async fn client_with(&self, options: ConnectOptions) -> Client {
        self.client_of(self.endpoints(), options).await
    }

    /// A client that is given these nodes alone.
    pub(crate) async fn client_at(&self, nodes: &[usize]) -> Client {
        let endpoints = nodes
            .iter()
            .map(|node| self.nodes[*node].client.to_string());
        self.client_of(endpoints.collect(), self.options()).await
    }

    /// A client that is given these endpoints, which may take their time.
    pub(crate) async fn client_of(
        &self,
        endpoints: Vec<String>,
        options: ConnectOptions,
    ) -> Client {
        let began = Instant::now();
        loop {
            match Client::connect(endpoints.clone(), Some(options.clone())).await {
                Ok(client) => return client,
                // A machine may stand still for longer than a handshake may take.
                Err(error) => {
                    let may_pass =
                        error.is_retryable() || error.kind == ErrorKind::DeadlineExceeded;
                    assert!(may_pass && began.elapsed() < PATIENCE, "nobody: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// The flags that make the command line talk to this cluster.
    pub(crate) fn flags(&self) -> Vec<String> {
        vec![
            format!("--endpoints={}", self.endpoints().join(",")),
            format!("--cacert={}", self.pki.file("client-ca.pem")),
            format!("--cert={}", self.pki.file("tester.pem")),
            format!("--key={}", self.pki.file("tester.key")),
            format!("--timeout={}s", REQUEST_PATIENCE.as_secs()),
        ]
    }

    /// Runs a client command against this cluster. A handshake may take five seconds, whatever a
    /// request may, and a machine may stand still for longer: then nothing was asked yet, and it is
    /// run again.
    pub(crate) fn cli(&self, arguments: &[&str]) -> (i32, String, String) {
        let flags = self.flags();
        let mut all: Vec<&str> = flags.iter().map(String::as_str).collect();
        all.extend(arguments);
        let began = Instant::now();
        loop {
            let (code, out, error) = run(&all);
            let is_late = code == 3
                && error.contains("no endpoint can be reached")
                && error.contains("did not answer in time");
            if !is_late || began.elapsed() > PATIENCE {
                return (code, out, error);
            }
        }
    }

    /// As [`Cluster::cli`], of a command that is to be refused: given anew for as long as nobody knows
    /// what became of it.
    pub(crate) fn refused(&self, arguments: &[&str]) -> (i32, String, String) {
        eventually("a command of which it is known what became", || {
            let answer = self.cli(arguments);
            (answer.0 != 4).then_some(answer)
        })
    }
}

/// Whether `role` is one that a healthy member has.
pub(crate) fn is_healthy(role: Role) -> bool {
    matches!(role, Role::Leader | Role::Follower)
}
