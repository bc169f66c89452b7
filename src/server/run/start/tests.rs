//! The order of a start, seen from outside of the node at the end of each stage.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::server::{Server, ServerOptions, Stage};
use crate::clock::SystemClock;
use crate::server::config::{Config, ConfigSources};
use crate::server::disk::data_dir::{DataDir, DataDirError, Identity};
use crate::server::disk::marker::Marker;
use crate::server::disk::store::{StateStore, StoreError, StoreOptions};
use crate::time::{Clock, Instant};
use crate::transport::PeerIdentity;
use crate::transport::testing::Authority;
use crate::types::{ClusterId, Incarnation};

const CLUSTER: ClusterId = ClusterId(7);

/// A clock that remembers whether the data directory was locked when it was read first.
struct WatchedClock {
    data_dir: PathBuf,
    was_locked: Mutex<Option<bool>>,
}

impl Clock for WatchedClock {
    fn now(&self) -> Instant {
        let mut was_locked = self.was_locked.lock().unwrap();
        was_locked.get_or_insert_with(|| is_locked(&self.data_dir));
        SystemClock.now()
    }
}

fn is_locked(data_dir: &Path) -> bool {
    let somebody = Identity {
        cluster: CLUSTER,
        node_name: "n1".to_owned(),
        incarnation: Incarnation(0),
    };
    let opened = DataDir::open_or_create(data_dir, &somebody);
    matches!(opened, Err(DataDirError::InUse { .. }))
}

/// Waits until the last task of a server that has shut down lets go of the state in `directory`.
async fn let_go_of(directory: &Path) {
    loop {
        match StateStore::open(directory, &StoreOptions::default()) {
            Ok(store) => {
                store.close().unwrap();
                return;
            }
            Err(StoreError::Locked { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// What can be seen of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenState {
    is_clock_read: bool,
    are_operators_answered: bool,
    is_state_open: bool,
    is_peer_port_open: bool,
    is_client_port_open: bool,
}

/// The configuration of `n1`, with the initial members `others` beside it.
fn configuration(folder: &Path, others: &str) -> Config {
    let authority = Authority::new();
    let issued = authority.issue(&PeerIdentity::node(CLUSTER, "n1"));
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        // A key that others can read is refused.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    };
    let ca = write("ca.pem", &authority.pem());
    let certificate = write("n1.pem", &issued.certificate);
    let key = write("n1.key", &issued.key);
    let udp = || UdpSocket::bind("127.0.0.1:0").unwrap();
    // Held until all are drawn, so that no two are the same.
    let (client, peer) = (udp(), udp());
    let admin = TcpListener::bind("127.0.0.1:0").unwrap();
    let [client, peer, admin] = [client.local_addr(), peer.local_addr(), admin.local_addr()]
        .map(|address| address.unwrap());
    let tls = format!("cert_file = {certificate:?}\nkey_file = {key:?}\ntrusted_ca_file = {ca:?}");
    let text = format!(
        "[node]\nname = \"n1\"\ndata_dir = {:?}\n\
         [listen]\nclient = \"{client}\"\npeer = \"{peer}\"\nadmin = \"{admin}\"\n\
         [cluster]\ninitial = [\"n1={peer}\"{others}]\n[tls.client]\n{tls}\n[tls.peer]\n{tls}\n",
        folder.join("data"),
    );
    let sources = ConfigSources {
        file: Some(write("n1.toml", &text)),
        ..ConfigSources::default()
    };
    Config::load(sources).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_directory_is_locked_before_the_clock_is_read_and_the_ports_open_last() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), "");
    let (data_dir, listen) = (config.node.data_dir.clone(), config.listen.clone());
    let clock = Arc::new(WatchedClock {
        data_dir: data_dir.clone(),
        was_locked: Mutex::default(),
    });
    let is_open = |port: SocketAddr| UdpSocket::bind(port).is_err();
    let mut stages = Vec::new();
    let reached = |stage: Stage| {
        let seen = SeenState {
            is_clock_read: clock.was_locked.lock().unwrap().is_some(),
            are_operators_answered: TcpStream::connect(listen.admin).is_ok(),
            is_state_open: data_dir.join("state").exists(),
            is_peer_port_open: is_open(listen.peer),
            is_client_port_open: is_open(listen.client),
        };
        stages.push((stage, seen));
    };
    let options = ServerOptions::default();
    let server = Server::start_in_stages(config, options, clock.clone(), reached).await;
    server.unwrap().shutdown().await;

    let locked = SeenState {
        is_clock_read: true,
        are_operators_answered: false,
        is_state_open: false,
        is_peer_port_open: false,
        is_client_port_open: false,
    };
    let answered = SeenState {
        are_operators_answered: true,
        ..locked
    };
    let whole = SeenState {
        is_state_open: true,
        ..answered
    };
    let reachable = SeenState {
        is_peer_port_open: true,
        is_client_port_open: true,
        ..whole
    };
    let order = [
        (Stage::Identity, locked),
        (Stage::AdminPorts, answered),
        (Stage::Disks, whole),
        (Stage::Core, whole),
        (Stage::Ports, reachable),
        (Stage::Threads, reachable),
        (Stage::Tasks, reachable),
    ];
    assert_eq!(stages, order);
    assert_eq!(
        *clock.was_locked.lock().unwrap(),
        Some(true),
        "what the silence of a voter is counted from was read without the lock (A3)"
    );
    assert!(
        !is_locked(&data_dir),
        "a node that has stopped lets go of its data"
    );
}

/// A probe or a memory limit ends the process while a large state is opened, on every member.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_while_a_state_is_opened_prove_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let config = configuration(folder.path(), "");
    let data_dir = config.node.data_dir.clone();
    for lost in [0, 2, 9] {
        if lost > 0 {
            std::fs::write(Marker::StateOpening.path(&data_dir), format!("{lost}\n")).unwrap();
        }
        let (options, clock) = (ServerOptions::default(), Arc::new(SystemClock));
        let server = Server::start_in_stages(config.clone(), options, clock, |_| ()).await;
        server.unwrap().shutdown().await;
        let_go_of(&data_dir.join("state")).await;
        assert!(!data_dir.join("state.damaged-1").exists(), "{lost}");
        assert!(!Marker::StateOpening.is_set(&data_dir).unwrap());
    }
}
