use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{TcpListener, UdpSocket};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::*;
use crate::api::{Consistency, Error, LeaderLeaseStatus, Request, Response, ResponseHeader};

/// A port from which on thirty are free at the moment, different for every caller.
fn free_ports() -> u16 {
    // Below what the system hands out by itself, and apart from what another run of these tests
    // looks at in the same moment.
    static NEXT: Mutex<u16> = Mutex::new(0);
    let mut next = NEXT.lock().unwrap();
    loop {
        let place = (process::id() * 7 + u32::from(*next)) % 300;
        let candidate = 21_000 + 30 * place as u16;
        *next += 1;
        assert!(*next < 300, "no thirty free ports in a row");
        if plan::check_ports(3, candidate).is_ok() {
            return candidate;
        }
    }
}

fn arguments(nodes: usize) -> DevArgs {
    DevArgs {
        nodes,
        name: None,
        data_dir: None,
        port: free_ports(),
        etcd: false,
        log: None,
    }
}

struct TestDir {
    home: tempfile::TempDir,
}

impl TestDir {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn runtime(&self) -> RuntimeDirectory {
        RuntimeDirectory::at(self.home.path().join("run")).unwrap()
    }

    fn prepare(&self, arguments: &DevArgs) -> Result<DevSetup, Failure> {
        DevSetup::new(arguments, &self.runtime())
    }

    /// A file in the cluster's directory that says whose that is: once it is gone, its name may be that
    /// of another test's.
    fn mark(&self, prepared: &DevSetup) -> PathBuf {
        let name = self.home.path().file_name().unwrap();
        let mark = prepared.directory.path.join(name);
        fs::write(&mark, "").unwrap();
        mark
    }

    fn keep(&self, nodes: usize) -> DevArgs {
        DevArgs {
            data_dir: Some(self.home.path().join("data")),
            ..arguments(nodes)
        }
    }
}

#[test]
fn the_certificates_made_for_it_pass_the_check() {
    let place = TestDir::new();
    let prepared = place.prepare(&arguments(3)).unwrap();
    let entries = fs::read_dir(&prepared.plan.pki).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2 * (2 + 3 * 2 + 1));
    for report in pki::check(&files, pki::wall_clock()) {
        assert!(report.is_ok(), "{report}");
    }
}

#[test]
fn nothing_is_left_behind_and_nothing_is_written_when_a_port_is_taken() {
    let place = TestDir::new();
    let prepared = place.prepare(&arguments(1)).unwrap();
    let ours = place.mark(&prepared);
    assert!(prepared.directory.path.join("pki").exists());
    drop(prepared);
    assert!(!ours.exists());
    assert_eq!(fs::read_dir(place.home.path()).unwrap().count(), 0);

    let arguments = place.keep(3);
    let second_admin = ("127.0.0.1", arguments.port + 12);
    let taken = TcpListener::bind(second_admin).unwrap();
    let port = arguments.port + 12;
    assert_eq!(
        place.prepare(&arguments).unwrap_err(),
        Failure::refused(format!(
            "TCP port {port} is in use but is needed as the admin port of n2: stop the process \
             that uses it (`ss -ap 'sport = :{port}'` shows it), or choose another first port with \
             --port"
        ))
    );
    assert_eq!(fs::read_dir(place.home.path()).unwrap().count(), 0);
    drop(taken);
    let taken = UdpSocket::bind(("127.0.0.1", arguments.port + 1)).unwrap();
    let failure = place.prepare(&arguments).unwrap_err();
    let expected = format!(
        "UDP port {} is in use but is needed as the peer port of n1",
        arguments.port + 1
    );
    assert!(failure.message.starts_with(&expected), "{failure}");
    drop(taken);
}

#[test]
fn a_second_cluster_is_told_of_the_first_and_harms_it_not() {
    let place = TestDir::new();
    let prepared = place.prepare(&arguments(1)).unwrap();
    prepared.claim.announce(&prepared.announcement).unwrap();
    let failure = place.prepare(&arguments(1)).unwrap_err();
    assert!(
        failure
            .message
            .starts_with("a development cluster of this name is already running (process "),
        "{failure}"
    );
    assert_eq!(
        place.runtime().running().unwrap(),
        Some(prepared.announcement.clone())
    );
}

#[test]
fn a_directory_to_keep_is_kept_with_its_authorities() {
    let place = TestDir::new();
    let first = place.keep(1);
    let prepared = place.prepare(&first).unwrap();
    fs::create_dir(&prepared.plan.nodes[0].data).unwrap();
    let authority = prepared.plan.pki.join(PEER_CA_FILE);
    let before = fs::read(&authority).unwrap();
    drop(prepared);
    let prepared = place.prepare(&first).unwrap();
    assert_eq!(fs::read(&authority).unwrap(), before);
    drop(prepared);
    let failure = place.prepare(&place.keep(3)).unwrap_err();
    assert!(
        failure
            .message
            .contains("holds a cluster of 1: start it with --nodes 1"),
        "{failure}"
    );
}

#[test]
fn a_directory_of_something_else_is_left_alone() {
    let place = TestDir::new();
    let arguments = place.keep(1);
    let data = arguments.data_dir.clone().unwrap();
    fs::create_dir(&data).unwrap();
    fs::write(data.join("thesis.tex"), "precious").unwrap();
    let failure = place.prepare(&arguments).unwrap_err();
    assert!(
        failure
            .message
            .contains("does not hold a development cluster"),
        "{failure}"
    );
    assert_eq!(fs::read_dir(&data).unwrap().count(), 1);
}

/// Nodes that do nothing but end when told to.
#[derive(Clone, Default)]
struct FakeNodes {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// What was launched, stopped, and in which order.
    events: Vec<String>,
    /// By name, how to end a node.
    ends: BTreeMap<String, oneshot::Sender<String>>,
    broken: Option<&'static str>,
}

struct FakeNode {
    name: String,
    end: oneshot::Receiver<String>,
    shared: Arc<Mutex<Shared>>,
}

impl Launcher for FakeNodes {
    type Node = FakeNode;

    async fn launch(&self, config: &Path) -> Result<FakeNode, String> {
        let name = config.file_stem().unwrap().to_string_lossy().into_owned();
        let mut shared = self.shared.lock().unwrap();
        if shared.broken == Some(name.as_str()) {
            return Err("its disk is on fire".to_owned());
        }
        let (sender, end) = oneshot::channel();
        shared.events.push(format!("start {name}"));
        shared.ends.insert(name.clone(), sender);
        Ok(FakeNode {
            name,
            end,
            shared: Arc::clone(&self.shared),
        })
    }
}

impl Node for FakeNode {
    async fn ended(&mut self) -> String {
        match (&mut self.end).await {
            Ok(reason) => reason,
            Err(_) => std::future::pending().await,
        }
    }

    async fn shutdown(self) {
        let event = format!("stop {}", self.name);
        self.shared.lock().unwrap().events.push(event);
    }
}

/// Finds a leader at the third time of asking.
#[derive(Default)]
struct FakeClient {
    asked: Rc<RefCell<u32>>,
    connected: RefCell<u32>,
    leaderless: bool,
}

impl Connector for FakeClient {
    type Connection = Self;

    async fn connect(&self, _: &Target) -> Result<Self, Error> {
        *self.connected.borrow_mut() += 1;
        if *self.connected.borrow() == 1 {
            let detail = "they only just started";
            return Err(Error::not_applied(ErrorKind::ConnectFailed, detail));
        }
        Ok(Self {
            asked: Rc::clone(&self.asked),
            connected: RefCell::default(),
            leaderless: self.leaderless,
        })
    }
}

impl Connection for FakeClient {
    async fn call(&self, _: Request, _: Consistency) -> Result<Response, Error> {
        Err(Error::not_applied(ErrorKind::Unsupported, "only status"))
    }

    async fn status(&self, endpoint: &str) -> Result<Response, Error> {
        *self.asked.borrow_mut() += 1;
        let leads = endpoint.ends_with('0') && *self.asked.borrow() > 3 && !self.leaderless;
        Ok(Response {
            header: ResponseHeader::default(),
            body: ResponseBody::Status(Box::new(StatusResponse {
                role: if leads { Role::Leader } else { Role::Follower },
                leader_lease: LeaderLeaseStatus {
                    is_valid: leads,
                    ..LeaderLeaseStatus::default()
                },
                ..StatusResponse::default()
            })),
        })
    }

    async fn close(self) {}
}

/// Text that another task can look at while it grows.
#[derive(Clone, Default)]
struct Screen {
    text: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    fn text(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }

    async fn shows(&self, what: &str) {
        let look = async {
            while !self.text().contains(what) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let seen = tokio::time::timeout(Duration::from_secs(60), look).await;
        assert!(seen.is_ok(), "`{what}` is not in\n{}", self.text());
    }
}

impl Write for Screen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lives through a cluster of three while `story` happens to it.
async fn live_through<F: Future<Output = ()>>(
    place: &TestDir,
    nodes: &FakeNodes,
    client: FakeClient,
    story: impl FnOnce(Screen, watch::Sender<bool>) -> F,
) -> Result<(), Failure> {
    let prepared = place.prepare(&arguments(3)).unwrap();
    let ours = place.mark(&prepared);
    let (ask, asked) = watch::channel(false);
    let screen = Screen::default();
    let mut out = screen.clone();
    let living = live(prepared, nodes, &client, Stop::by(asked), None, &mut out);
    let (result, ()) = tokio::join!(living, story(screen, ask));
    assert!(!ours.exists(), "nothing is left behind");
    assert_eq!(place.runtime().running().unwrap(), None);
    result
}

fn events(nodes: &FakeNodes) -> Vec<String> {
    nodes.shared.lock().unwrap().events.clone()
}

fn end(nodes: &FakeNodes, name: &str, reason: &str) {
    let sender = nodes.shared.lock().unwrap().ends.remove(name).unwrap();
    sender.send(reason.to_owned()).unwrap();
}

#[tokio::test]
async fn a_cluster_is_announced_once_it_leads_and_ends_when_asked() {
    let (place, nodes) = (TestDir::new(), FakeNodes::default());
    let result = live_through(&place, &nodes, FakeClient::default(), |screen, ask| {
        let place = &place;
        async move {
            screen.shows("Try, in a second shell").await;
            assert!(screen.text().contains("leader"), "{}", screen.text());
            let running = place.runtime().running().unwrap().expect("it is announced");
            assert_eq!(running.endpoints.len(), 3);
            assert!(running.cert.exists() && running.key.exists() && running.cacert.exists());
            ask.send_replace(true);
        }
    })
    .await;
    assert_eq!(result, Ok(()));
    let mut events = events(&nodes);
    events[3..].sort();
    let expected = [
        "start n1", "start n2", "start n3", "stop n1", "stop n2", "stop n3",
    ];
    assert_eq!(events, expected);
}

#[tokio::test]
async fn the_loss_of_a_node_is_told_and_survived_and_the_loss_of_all_is_not() {
    let (place, nodes) = (TestDir::new(), FakeNodes::default());
    let result = live_through(&place, &nodes, FakeClient::default(), |screen, ask| {
        let nodes = &nodes;
        async move {
            screen.shows("Try, in a second shell").await;
            end(nodes, "n2", "its driver panicked");
            screen
                .shows("node n2 stopped: its driver panicked; 2 go on\n")
                .await;
            end(nodes, "n1", "its disk is full");
            screen
                .shows("node n1 stopped: its disk is full; 1 goes on\n")
                .await;
            end(nodes, "n3", "it was lonely");
            drop(ask.subscribe());
            // Held until here: nobody asked for the end.
            std::mem::forget(ask);
        }
    })
    .await;
    let expected = "no node is left; node n3 stopped: it was lonely";
    assert_eq!(result, Err(Failure::refused(expected)));
}

#[tokio::test]
async fn a_node_that_cannot_start_stops_those_that_could() {
    let (place, nodes) = (TestDir::new(), FakeNodes::default());
    nodes.shared.lock().unwrap().broken = Some("n3");
    let result = live_through(&place, &nodes, FakeClient::default(), |_, ask| async move {
        std::mem::forget(ask);
    })
    .await;
    let expected = "node n3 failed to start: its disk is on fire";
    assert_eq!(result, Err(Failure::refused(expected)));
    let mut events = events(&nodes);
    events.sort();
    assert_eq!(events, ["start n1", "start n2", "stop n1", "stop n2"]);
}

#[tokio::test]
async fn a_cluster_without_a_leader_can_be_given_up_and_one_whose_nodes_all_end_gives_up() {
    let (place, nodes) = (TestDir::new(), FakeNodes::default());
    let leaderless = || FakeClient {
        leaderless: true,
        ..FakeClient::default()
    };
    let result = live_through(&place, &nodes, leaderless(), |_, ask| async move {
        tokio::task::yield_now().await;
        ask.send_replace(true);
    })
    .await;
    assert_eq!(result, Ok(()));

    let nodes = FakeNodes::default();
    let result = live_through(&place, &nodes, leaderless(), |_, ask| {
        let nodes = &nodes;
        async move {
            while nodes.shared.lock().unwrap().ends.len() < 3 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for name in ["n1", "n2", "n3"] {
                end(nodes, name, "the machine has no clock");
            }
            std::mem::forget(ask);
        }
    })
    .await;
    let failure = result.unwrap_err();
    assert!(
        failure.message.starts_with("no node is left; node n"),
        "{failure}"
    );
}
