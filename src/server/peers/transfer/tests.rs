//! A state between two nodes that have a connection and nothing else: whole, broken off, damaged.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::{fs, thread};

use bytes::Bytes;

use super::*;
use crate::api::PutRequest;
use crate::kv;
use crate::kv::Operation;
use crate::node::Input;
use crate::raft::{Configuration, Envelope, LogBase};
use crate::server::disk::data_dir::{DataDir, Identity};
use crate::server::disk::log_compactor::LogUse;
use crate::server::disk::state_dirs::StateDirs;
use crate::server::disk::state_thread::ReceivedStates;
use crate::server::disk::store::{Export, Origin, StateReader, StateStore, StoreOptions};
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::Metrics;
use crate::server::peers::{PeerHandler, PeerInfo, Peers, PeersConfig, Roster};
use crate::sync::Mutex;
use crate::transport::testing::Authority;
use crate::transport::{Admission, FrameStream, TransportStats};
use crate::types::{ClusterId, Incarnation, LogId, LogIndex, NodeId, Term};
use crate::wire::peer::StateChunk;

const CLUSTER: ClusterId = ClusterId(0xabc0_0000_0000_0000_0000_0000_0000_0002);
const LIMITS: FrameLimits = FrameLimits::DEFAULT;
const ENTRIES: u64 = 40;

/// Takes states in, and nothing else.
struct Receiver {
    incoming: Arc<StateReceiver>,
}

impl PeerHandler for Receiver {
    fn on_message(&self, _: Envelope) {}
    fn on_stream(&self, peer: &PeerInfo, mut stream: FrameStream) {
        let (incoming, from) = (Arc::clone(&self.incoming), peer.id);
        tokio::spawn(async move {
            let mut first = Vec::new();
            if stream.read_batch(&mut first).await.is_ok() {
                incoming.receive(from, stream, &first).await;
            }
        });
    }
}

struct Silent;

impl PeerHandler for Silent {
    fn on_message(&self, _: Envelope) {}
}

/// A sender with a state, and a receiver.
struct World {
    folder: tempfile::TempDir,
    store: StateStore,
    sender: Arc<Peers>,
    receiver: Peers,
    incoming: Arc<StateReceiver>,
}

fn id_of(name: &str) -> NodeId {
    NodeId::derive(CLUSTER, name, Incarnation(0))
}

fn start(
    authority: &Authority,
    name: &str,
    peers: &[(&str, String)],
    handler: Arc<dyn PeerHandler>,
) -> Peers {
    let tls = authority.node(CLUSTER, name);
    let config = PeersConfig {
        bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        node_id: id_of(name),
        tls,
        incarnation: Incarnation(0),
        peer_address: String::new(),
        client_address: String::new(),
        etcd_url: String::new(),
        roster: Roster::of_addresses(
            peers
                .iter()
                .map(|(name, address)| ((*name).to_owned(), address.clone())),
        ),
        limits: LIMITS,
        admission: Admission::DEFAULT,
        bootstrap: Arc::default(),
        seed: u64::from(name.as_bytes()[0]),
    };
    Peers::start(config, handler, Arc::new(TransportStats::default())).unwrap()
}

fn configuration() -> Configuration {
    Configuration {
        voters: ["a", "b"].map(id_of).into(),
        ..Configuration::default()
    }
}

/// A state of some megabytes: a row of chunks.
fn state(path: &Path) -> StateStore {
    let mut store = StateStore::open(path, &StoreOptions::default()).unwrap();
    for index in 1..=ENTRIES {
        let put = PutRequest {
            key: format!("k{index}").into(),
            value: vec![index as u8; 60_000].into(),
            ..PutRequest::default()
        };
        let command = kv::Command::Write {
            author: None,
            session: None,
            operation: Operation::Put(put),
        };
        let id = LogId::new(LogIndex(index), Term(1));
        store.apply_batch(&[(id, Some(command.encode()))]).unwrap();
    }
    store
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity {
            cluster: CLUSTER,
            node_name: "b".to_owned(),
            incarnation: Incarnation(0),
        };
        let data = folder.path().join("b");
        let data_dir = DataDir::open_or_create(&data, &identity).unwrap();
        let incoming = Arc::new(StateReceiver {
            cluster: CLUSTER,
            state_dirs: StateDirs::new(&data),
            data_dir: Arc::new(data_dir),
            options: StoreOptions::default(),
            mailbox: Arc::new(Mailbox::default()),
            metrics: Metrics::new(),
            limits: LIMITS,
            slot: Mutex::default(),
        });
        let authority = Authority::new();
        let receiver = Receiver {
            incoming: incoming.clone(),
        };
        let nowhere = "127.0.0.1:1".to_owned();
        let receiver = start(&authority, "b", &[("a", nowhere)], Arc::new(receiver));
        let there = receiver.local_address().to_string();
        let sender = start(&authority, "a", &[("b", there)], Arc::new(Silent));
        let world = Self {
            store: state(&folder.path().join("a")),
            folder,
            sender: Arc::new(sender),
            receiver,
            incoming,
        };
        eventually("both are connected", || {
            world.sender.connection(id_of("b")).is_some()
                && world.receiver.connection(id_of("a")).is_some()
        });
        world
    }

    fn base(&self) -> LogBase {
        LogBase {
            id: LogId::new(LogIndex(ENTRIES), Term(1)),
            configuration: configuration(),
        }
    }

    fn export(&self) -> Export {
        let origin = Origin {
            cluster: CLUSTER,
            member: id_of("a"),
            configuration: configuration(),
        };
        Export::new(self.store.reader().snapshot().unwrap(), origin).unwrap()
    }

    fn chunks(&self) -> Vec<Bytes> {
        let mut export = self.export();
        std::iter::from_fn(|| export.next_chunk().unwrap()).collect()
    }

    /// Offers a state by hand and sends `chunks` of it; what the receiver wanted, and its last word if
    /// it had one.
    fn by_hand(&self, export: u64, chunks: Vec<Bytes>) -> (Transfer, Option<Transfer>) {
        let connection = self.sender.connection(id_of("b")).unwrap();
        let base = self.base().id;
        let (answer, answered) = mpsc::channel();
        self.sender.spawn(async move {
            let mut stream = connection.open_stream().await.unwrap();
            let offer = Transfer::Offer { export, base };
            say(&mut stream.sender, &LIMITS, offer).await.unwrap();
            let wanted = hear(&mut stream.receiver, STALLED_AFTER).await.unwrap();
            let mut frame = BytesMut::new();
            for bytes in chunks {
                encode(&StateChunk { bytes }, &LIMITS, &mut frame).unwrap();
                // It may have had enough.
                let _ = stream.sender.write(frame.split().freeze()).await;
            }
            stream.sender.finish();
            let word = hear(&mut stream.receiver, STALLED_AFTER).await.ok();
            answer.send((wanted, word)).unwrap();
        });
        answered.recv_timeout(STALLED_AFTER * 2).unwrap()
    }

    /// What was reported to the receiver's node.
    fn reported(&self) -> Vec<LogBase> {
        let mut mails = Vec::new();
        self.incoming.mailbox.take(&mut mails, Duration::ZERO);
        let bases = mails.into_iter().filter_map(|mail| match mail {
            Mail::Input(Input::SnapshotReceived(base)) => Some(base),
            _ => None,
        });
        bases.collect()
    }

    /// Folders of states that are not in use, at the receiver.
    fn folders(&self) -> usize {
        let names = fs::read_dir(self.folder.path().join("b")).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("state-")).count()
    }

    fn ended(&self, line: &str) -> bool {
        self.incoming.metrics.render(|_| {}).contains(line)
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("never came true: {what}");
}

/// Everything that is in a state.
fn contents(reader: &StateReader) -> (LogId, kv::ContentHash) {
    let report = reader.verify().unwrap();
    assert!(report.is_sound());
    (report.progress.applied, report.scanned)
}

#[test]
fn a_state_arrives_whole_and_is_reported_once_it_is_durable() {
    let world = World::new();
    let log_use = Arc::new(LogUse::new(LogIndex(0)));
    let outgoing = Arc::new(StateSender {
        cluster: CLUSTER,
        member: id_of("a"),
        peers: Arc::downgrade(&world.sender),
        store: world.store.reader(),
        log_use,
        mailbox: Arc::new(Mailbox::default()),
        metrics: Metrics::new(),
        limits: LIMITS,
        rate: SendRate::new(1 << 30),
        broken: Mutex::default(),
        exports: AtomicU64::new(0),
    });
    outgoing.send(id_of("b"));
    // The driver's part: it knows the configuration, and is told when it is over.
    let mut asked = BTreeMap::new();
    eventually("the transfer ends", || {
        let mut mails = Vec::new();
        outgoing.mailbox.take(&mut mails, Duration::ZERO);
        mails.into_iter().any(|mail| match mail {
            Mail::ConfigurationAt(index, answer) => {
                asked.insert(index, ());
                answer.send(Some(configuration())).unwrap();
                false
            }
            Mail::Input(Input::SnapshotSent(peer)) => peer == id_of("b"),
            other => panic!("{other:?}"),
        })
    });
    assert_eq!(asked.into_keys().collect::<Vec<_>>(), [LogIndex(ENTRIES)]);
    assert_eq!(world.reported(), [world.base()]);
    let path = world.incoming.take_whole(world.base().id).unwrap();
    let received = StateStore::open(&path, &StoreOptions::default()).unwrap();
    assert!(!received.needs_verification());
    assert_eq!(
        contents(&received.reader()),
        contents(&world.store.reader())
    );
}

#[test]
fn a_transfer_that_broke_goes_on_with_the_chunk_that_is_missing() {
    let world = World::new();
    let chunks = world.chunks();
    assert!(chunks.len() > 6, "{} chunks", chunks.len());
    let (wanted, word) = world.by_hand(7, chunks[..4].to_vec());
    assert_eq!((wanted, word), (Transfer::Want { from: 0 }, None));
    assert_eq!(world.reported(), []);
    let (wanted, word) = world.by_hand(7, chunks[4..].to_vec());
    assert_eq!(wanted, Transfer::Want { from: 4 });
    assert_eq!(word, Some(Transfer::Done));
    assert_eq!(world.reported(), [world.base()]);

    // There is one place; and what is not needed goes.
    let (wanted, _) = world.by_hand(8, Vec::new());
    assert_eq!(wanted, Transfer::Busy);
    world.incoming.discard(world.base().id);
    eventually("it is removed", || world.folders() == 0);
    assert!(world.ended("leasehold_raft_snapshot_received_total{result=\"broken\"} 1"));
}

#[test]
fn another_state_in_between_begins_anew() {
    let world = World::new();
    let chunks = world.chunks();
    world.by_hand(7, chunks[..4].to_vec());
    let (wanted, word) = world.by_hand(8, chunks);
    assert_eq!(wanted, Transfer::Want { from: 0 });
    assert_eq!(word, Some(Transfer::Done));
    eventually("the part of the other is removed", || world.folders() == 1);
}

#[test]
fn a_damaged_chunk_is_refused_and_nothing_of_the_state_is_kept() {
    let world = World::new();
    let sound = world.chunks();
    let damaged = |place: usize, at: usize| {
        let mut chunks = sound.clone();
        let mut bytes = chunks[place].to_vec();
        let at = at.min(bytes.len() - 1);
        bytes[at] ^= 4;
        chunks[place] = bytes.into();
        chunks
    };
    let mut missing = sound.clone();
    missing.remove(3);
    for (number, chunks) in [
        damaged(3, 9_000),
        damaged(0, 60),
        damaged(sound.len() - 1, 30),
        missing,
    ]
    .into_iter()
    .enumerate()
    {
        let (_, word) = world.by_hand(number as u64, chunks);
        assert_eq!(word, Some(Transfer::Failed { corrupt: true }), "{number}");
        assert_eq!(world.reported(), [], "{number}");
        eventually("it is removed", || world.folders() == 0);
    }
    assert!(world.ended("leasehold_raft_snapshot_received_total{result=\"corrupt\"} 4"));
    let (_, word) = world.by_hand(99, sound);
    assert_eq!(word, Some(Transfer::Done), "the next one is taken");
}
