//! Sends the effects of the node to the threads that carry them out, and their reports to the driver.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::log::LogError;
use crate::node::Input;
use crate::node::turn::Mark;
use crate::raft::{Entry, Envelope, Message, Ticket, UnsavedState};
use crate::server::disk::log_thread::{GroupCommit, LogEvents, LogSize, LogThread};
use crate::server::disk::mark_writer::MarkWriter;
use crate::server::disk::state_thread::Work;
use crate::server::mail::{Mail, Mailbox};
use crate::server::metrics::{MessageKind, Metrics};
use crate::server::peers::members::OwnStanding;
use crate::server::peers::transfer::{StateReceiver, StateSender};
use crate::server::peers::{PeerHandler, PeerInfo, Peers};
use crate::server::status::contacts::Contacts;
use crate::server::status::directory::Directory;
use crate::server::status::doubles::Doubles;
use crate::server::threads::fatal::Exit;
use crate::server::threads::queue::BatchQueue;
use crate::time::Clock;
use crate::transport::FrameStream;
use crate::types::{BootstrapId, Incarnation, LogId, LogIndex, NodeId};
use crate::wire::{Frame, Kind};

/// How long a peer that opens a stream may take to say what it is for.
const FIRST_WORD_PATIENCE: Duration = Duration::from_secs(30);

/// Carries out the effects of the node, or sends them to the thread that does. None of these may block.
pub(crate) trait Effects: Send {
    /// To the log thread.
    fn persist(&mut self, ticket: Ticket, unsaved: UnsavedState);
    /// To the peers. Returns a message that was dropped because its receiver takes nothing.
    fn send(&mut self, envelope: Envelope) -> Option<Envelope>;
    /// To the state thread.
    fn apply(&mut self, entries: Vec<Entry>);
    /// To the state thread, in order with what is to be applied.
    fn install(&mut self, id: LogId);
    /// The state that was received and ends with `id` is not needed.
    fn discard_snapshot(&mut self, id: LogId);
    /// Sends this member the whole state; its end is reported to the node.
    fn send_snapshot(&mut self, peer: NodeId);
    /// To the state thread.
    fn find_idle_sessions(&mut self, unused_since: LogIndex);
    /// To the log thread: changes what the data directory says of this member.
    fn mark(&mut self, mark: Mark);
}

/// Sends effects to the threads that carry them out.
pub(crate) struct EffectRunner {
    pub(crate) log: Arc<LogThread>,
    pub(crate) state: Arc<BatchQueue<Work>>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) outgoing: Arc<StateSender>,
    pub(crate) incoming: Arc<StateReceiver>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) marks: MarkWriter,
}

impl Effects for EffectRunner {
    fn persist(&mut self, ticket: Ticket, unsaved: UnsavedState) {
        self.log.submit(ticket, unsaved);
    }

    fn send(&mut self, envelope: Envelope) -> Option<Envelope> {
        self.metrics.raft.messages_sent[kind_of(&envelope.message)].increment(1);
        self.peers.send(envelope)
    }

    fn apply(&mut self, entries: Vec<Entry>) {
        self.state.send(Work::Apply(entries));
    }

    fn install(&mut self, id: LogId) {
        self.state.send(Work::Install(id));
    }

    fn discard_snapshot(&mut self, id: LogId) {
        self.incoming.discard(id);
    }

    fn send_snapshot(&mut self, peer: NodeId) {
        self.outgoing.send(peer);
    }

    fn find_idle_sessions(&mut self, unused_since: LogIndex) {
        self.state.send(Work::FindIdleSessions { unused_since });
    }

    fn mark(&mut self, mark: Mark) {
        self.marks.write(mark);
    }
}

/// Forwards messages and events of peers to the driver.
pub(crate) struct Post {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) contacts: Arc<Contacts>,
    pub(crate) doubles: Arc<Doubles>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) streams: Arc<StreamRouter>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) standing: Arc<OwnStanding>,
    pub(crate) exit: Exit,
}

/// Takes each two-way stream of a peer to what its first frames are for: a state that is sent, or
/// requests for the leader.
pub(crate) struct StreamRouter {
    pub(crate) incoming: Arc<StateReceiver>,
    /// Serves the requests that other nodes forward, once clients are served.
    pub(crate) forwards: OnceLock<StreamHandler>,
}

/// Serves a stream on which a first batch of frames has arrived.
pub(crate) type StreamHandler = Box<dyn Fn(FrameStream, Vec<Frame>) + Send + Sync>;

impl StreamRouter {
    async fn take(self: Arc<Self>, from: NodeId, mut stream: FrameStream) {
        let mut first = Vec::new();
        let read = tokio::time::timeout(FIRST_WORD_PATIENCE, stream.read_batch(&mut first));
        if !matches!(read.await, Ok(Ok(()))) {
            return;
        }
        match (first.first().map(|frame| frame.kind), self.forwards.get()) {
            (Some(Kind::Forward), Some(serve)) => serve(stream, first),
            (Some(Kind::Forward), None) => {}
            _ => self.incoming.clone().receive(from, stream, &first).await,
        }
    }
}

impl PeerHandler for Post {
    fn on_message(&self, envelope: Envelope) {
        self.mailbox.send(Mail::Input(Input::Message(envelope)));
    }

    fn on_connected(&self, peer: &PeerInfo) {
        tracing::info!(peer = %peer.name, address = %peer.peer_address, "connected to peer");
        self.directory
            .learn(peer.id, &peer.peer_address, &peer.client_address);
        self.directory.learn_etcd(peer.id, &peer.etcd_url);
        self.contacts.connected(peer.id);
        let (now, from) = (self.clock.now(), peer.from.to_string());
        self.doubles.connected(now, &peer.name, peer.boot, &from);
        self.directory.note_bootstrap(&peer.name, None);
        let told = Input::PeerVersions(peer.id, Some(peer.versions));
        self.mailbox.send(Mail::Input(told));
        let told = Input::EtcdUrl(peer.id, Some(peer.etcd_url.clone()));
        self.mailbox.send(Mail::Input(told));
    }

    fn on_standing(&self, by: &str, index: LogIndex, incarnation: Option<Incarnation>) {
        if let Some(why) = self.standing.judge(index, incarnation) {
            tracing::warn!(
                by,
                configuration = %index,
                "a member does not list this node as a member"
            );
            self.exit.leave(why);
        }
    }

    fn on_displaced(&self, by: &PeerInfo) {
        self.doubles.displaced(self.clock.now(), &by.name);
    }

    fn on_other_bootstrap(&self, peer: &str, theirs: BootstrapId) {
        self.directory.note_bootstrap(peer, Some(theirs));
    }

    fn on_disconnected(&self, peer: NodeId) {
        self.contacts.disconnected(peer);
        let told = Input::PeerVersions(peer, None);
        self.mailbox.send(Mail::Input(told));
        self.mailbox.send(Mail::Input(Input::EtcdUrl(peer, None)));
    }

    fn on_stream(&self, peer: &PeerInfo, stream: FrameStream) {
        tokio::spawn(Arc::clone(&self.streams).take(peer.id, stream));
    }

    fn on_drift(&self, peer: &PeerInfo, ratio: f64) {
        self.metrics.leader_lease.set_clock_drift(&peer.name, ratio);
    }
}

/// Forwards the log thread's reports to the driver.
pub(crate) struct LogReports {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) on_fatal: Box<dyn Fn(LogError) + Send>,
}

impl LogEvents for LogReports {
    fn persisted(&mut self, ticket: Ticket) {
        self.mailbox.send(Mail::Input(Input::Persisted(ticket)));
    }

    fn fatal(&mut self, error: LogError) {
        (self.on_fatal)(error);
    }

    fn out_of_space(&mut self, waits: bool) {
        match waits {
            true => tracing::error!(
                "the disk is full: the log waits for the space of another segment; free some, and \
                 the node goes on by itself"
            ),
            false => tracing::warn!("the disk has space again: the log goes on"),
        }
    }

    fn measured(&mut self, size: LogSize) {
        let metrics = &self.metrics.storage;
        metrics.log_first_index.set(size.first.0 as f64);
        metrics.log_segments.set(size.segments as f64);
        metrics.log_bytes.set(size.bytes as f64);
    }

    fn committed(&mut self, group: &GroupCommit) {
        self.metrics
            .storage
            .wal_batch_entries
            .record(group.entries as f64);
    }
}

fn kind_of(message: &Message) -> MessageKind {
    match message {
        Message::Heartbeat(_) | Message::HeartbeatReply(_) => MessageKind::Heartbeat,
        Message::Append(_) | Message::Appended(_) => MessageKind::Append,
        Message::PreVote(_)
        | Message::PreVoteReply(_)
        | Message::Vote(_)
        | Message::VoteReply(_) => MessageKind::Vote,
        Message::StateHash(_) => MessageKind::StateHash,
        Message::NeedState => MessageKind::Other,
        _ => MessageKind::Other,
    }
}
