//! Which connection to a member is at work, and how messages find it.
//!
//! Both sides call, so two connections between the same two members are normal for a moment. Each
//! side decides alone which one stays, and both decide alike, because both look at the same
//! facts: the hellos that were exchanged on each connection. A hello carries a number that rises
//! with every hello its process writes, and a process calls only while it has no connection. So if
//! a peer's call was written after its answer on the other connection, it had lost that one; then
//! the call is the newer connection and stays. If neither call knew of the other, the one made by
//! the member with the smaller id stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::raft::Envelope;
use crate::server::peers::handler::{PeerHandler, PeerInfo, PeersConfig};
use crate::server::peers::roster::{MembershipCheck, Roster};
use crate::server::peers::stats::PeerStats;
use crate::server::threads::queue::{Overflow, StreamQueue};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::{CloseCode, Connection, FrameStream};
use crate::types::{BootstrapId, Incarnation, NodeId, VersionRange};
use crate::wire::peer::{MemberStanding, PeerHello};
use crate::wire::{FrameLimits, PROTOCOL_VERSIONS};

/// Control messages that may wait for one peer. A heartbeat interval brings a handful.
const CONTROL_MAX: usize = 1024;
/// Appends that may wait for one peer; consensus bounds what it has in flight below that.
const BULK_MAX: usize = 256;

/// What is waiting for one peer, on the connection at work.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) info: PeerInfo,
    pub(super) control: StreamQueue,
    pub(super) bulk: StreamQueue,
    /// Notified when another connection has taken this one's place.
    pub(super) retired: Notify,
}

/// All connections to members, with their queues.
pub(super) struct Hub {
    config: PeersConfig,
    advertised: String,
    handler: Arc<dyn PeerHandler>,
    stats: PeerStats,
    /// What `send` looks at: no lock on the way of a message.
    routes: ArcSwap<BTreeMap<NodeId, Arc<Route>>>,
    known: ArcSwap<BTreeMap<NodeId, PeerInfo>>,
    connections: Mutex<PeerConnections>,
    /// Notified when a member connects or disconnects, and when the membership changes.
    changed: Notify,
    /// Members of releases that do not know this version are not let in.
    required_version: AtomicU16,
}

struct PeerConnections {
    /// The number of the next hello that this process writes.
    sequence: u64,
    roster: Roster,
    by_name: BTreeMap<String, PeerConnection>,
    /// Members that a task calls.
    called: BTreeSet<String>,
}

#[derive(Default)]
struct PeerConnection {
    newest: Incarnation,
    active: Option<Active>,
    learned_address: Option<String>,
}

struct Active {
    connection: Connection,
    hellos: Hellos,
    route: Arc<Route>,
}

/// The order of the two hellos on a connection, which says when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hellos {
    /// Whether this side called.
    pub(super) dialled: bool,
    /// The process at the other end.
    pub(super) boot: u64,
    /// The number of our hello.
    pub(super) ours: u64,
    /// The number of theirs.
    pub(super) theirs: u64,
}

/// Why a hello is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelloError {
    #[error("{0} is not a member in this cluster's configuration")]
    NotMember(String),
    #[error("the hello comes from another cluster")]
    ForeignCluster,
    #[error("the hello names {said}, but the certificate names {certified}")]
    WrongName { said: String, certified: String },
    #[error("the hello's member id does not match its name and incarnation")]
    WrongId,
    #[error(
        "its release supports cluster versions {theirs} and this one {ours}, but the cluster has \
         version {required}: run a release there that supports it"
    )]
    Version {
        theirs: VersionRange,
        ours: VersionRange,
        required: u16,
    },
    #[error(
        "{name} comes from another bootstrap of this cluster ({theirs}, and this node from {ours}): the \
         cluster was bootstrapped again, and its members do not mix; decide whose data to keep, and \
         let the others start with empty data directories and cluster.state = \"existing\""
    )]
    OtherBootstrap {
        name: String,
        theirs: BootstrapId,
        ours: BootstrapId,
    },
    #[error("a newer incarnation of the same member exists: this one was replaced")]
    Outdated,
}

impl HelloError {
    /// Whether it may mean that the node at the other end is no member any more.
    pub(super) fn is_about_membership(&self) -> bool {
        matches!(self, Self::NotMember(_) | Self::Outdated)
    }

    pub(super) fn code(&self) -> CloseCode {
        match self {
            Self::NotMember(_) | Self::WrongName { .. } | Self::WrongId => CloseCode::Identity,
            Self::ForeignCluster => CloseCode::Cluster,
            Self::OtherBootstrap { .. } => CloseCode::Bootstrap,
            Self::Version { .. } => CloseCode::Version,
            Self::Outdated => CloseCode::Outdated,
        }
    }
}

impl Hub {
    pub(super) fn new(
        config: PeersConfig,
        local_address: SocketAddr,
        handler: Arc<dyn PeerHandler>,
    ) -> Self {
        let roster = without(config.roster.clone(), config.tls.identity().name());
        let advertised = if !config.peer_address.is_empty() {
            config.peer_address.clone()
        } else if local_address.ip().is_unspecified() {
            // "Any address" is where we listen, and nowhere that a peer could call.
            String::new()
        } else {
            local_address.to_string()
        };
        Self {
            config,
            advertised,
            handler,
            stats: PeerStats::default(),
            routes: ArcSwap::default(),
            known: ArcSwap::default(),
            connections: Mutex::new(PeerConnections {
                sequence: 1,
                roster,
                by_name: BTreeMap::new(),
                called: BTreeSet::new(),
            }),
            changed: Notify::new(),
            required_version: AtomicU16::new(0),
        }
    }

    /// Admits only members that know this version of the cluster from now on.
    pub(super) fn require_version(&self, version: u16) {
        self.required_version.fetch_max(version, Ordering::Relaxed);
    }

    fn bootstrap(&self) -> Option<BootstrapId> {
        self.config.bootstrap.get().copied()
    }

    /// Closes the connections to members that come from another bootstrap than this node, which was not
    /// known when they were made.
    pub(super) fn part_from_other_bootstraps(&self) {
        let ours = self.bootstrap();
        let connections = self.lock();
        let active = connections.by_name.values();
        for active in active.filter_map(|entry| entry.active.as_ref()) {
            if !BootstrapId::agree(ours, active.route.info.bootstrap) {
                active.connection.close(CloseCode::Bootstrap);
            }
        }
    }

    /// See [`Peers::send`](super::Peers::send).
    pub(super) fn send(&self, envelope: Envelope) -> Option<Envelope> {
        let routes = self.routes.load();
        let stats = &self.stats;
        let (dropped, count) = match routes.get(&envelope.to) {
            None => (Some(envelope), &stats.dropped_unconnected),
            Some(route) if envelope.is_bulk() => (route.bulk.push(envelope), &stats.dropped_bulk),
            Some(route) => (route.control.push(envelope), &stats.dropped_control),
        };
        if dropped.is_some() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    pub(super) fn connected(&self) -> Vec<PeerInfo> {
        let routes = self.routes.load();
        routes.values().map(|route| route.info.clone()).collect()
    }

    pub(super) fn find(&self, id: NodeId) -> Option<PeerInfo> {
        self.known.load().get(&id).cloned()
    }

    /// The connection to a member that is at work.
    pub(super) fn connection(&self, id: NodeId) -> Option<Connection> {
        let connections = self.lock();
        let mut active = connections
            .by_name
            .values()
            .filter_map(|entry| entry.active.as_ref());
        active
            .find(|active| active.route.info.id == id)
            .map(|active| active.connection.clone())
    }

    /// Passes on a two-way stream that a member has opened.
    pub(super) fn stream(&self, peer: &PeerInfo, stream: FrameStream) {
        self.handler.on_stream(peer, stream);
    }

    pub(super) fn stats(&self) -> &PeerStats {
        &self.stats
    }

    pub(super) fn limits(&self) -> &FrameLimits {
        &self.config.limits
    }

    pub(super) fn seed(&self) -> u64 {
        self.config.seed
    }

    /// Replaces the members.
    pub(super) fn set_roster(&self, roster: Roster) {
        let roster = without(roster, self.config.tls.identity().name());
        let mut connections = self.lock();
        // Peers that were accepted while the members were not known, and are no members.
        let known = |name: &String| roster.knows(name) || connections.called.contains(name);
        let departed = connections.by_name.keys().filter(|name| !known(name));
        let departed: Vec<String> = departed.cloned().collect();
        connections.roster = roster;
        drop(connections);
        for name in departed {
            self.drop_member(&name);
        }
        self.changed.notify_waiters();
    }

    /// Takes the members that have no task which calls them. The caller starts one for each.
    pub(super) fn take_uncalled(&self) -> Vec<String> {
        let mut connections = self.lock();
        let names = connections.roster.peers.keys();
        let uncalled = names.filter(|name| !connections.called.contains(*name));
        let uncalled: Vec<String> = uncalled.cloned().collect();
        connections.called.extend(uncalled.iter().cloned());
        uncalled
    }

    /// Waits for members that have no task which calls them, and takes them.
    pub(super) async fn uncalled(&self) -> Vec<String> {
        loop {
            let changed = self.changed.notified();
            let uncalled = self.take_uncalled();
            if !uncalled.is_empty() {
                return uncalled;
            }
            changed.await;
        }
    }

    /// Waits while `name` is a member.
    pub(super) async fn until_no_member(&self, name: &str) {
        loop {
            let changed = self.changed.notified();
            if !self.is_member(name) {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn is_member(&self, name: &str) -> bool {
        self.lock().roster.peers.contains_key(name)
    }

    /// Closes the connection to `name`, which is neither called nor accepted any more.
    pub(super) fn drop_member(&self, name: &str) {
        let mut connections = self.lock();
        connections.called.remove(name);
        let entry = connections.by_name.remove(name);
        self.publish(&connections);
        drop(connections);
        if let Some(active) = entry.and_then(|entry| entry.active) {
            active.connection.close(CloseCode::Identity);
            self.handler.on_disconnected(active.route.info.id);
            tracing::info!(peer = name, "peer is no longer a member: connection closed");
        }
        self.changed.notify_waiters();
    }

    /// The standing of the node at the other end.
    pub(super) fn standing_of(&self, connection: &Connection) -> Option<MemberStanding> {
        let connections = self.lock();
        connections.roster.standing_of(connection.identity().name())
    }

    /// A member has said what the cluster knows of us.
    pub(super) fn told(&self, by: &Connection, standing: MemberStanding) {
        if let MemberStanding::Known {
            index, incarnation, ..
        } = standing
        {
            self.handler
                .on_standing(by.identity().name(), index, incarnation);
        }
    }

    /// Where the member may be: where the configuration says, and where it said itself.
    pub(super) fn addresses_of(&self, name: &str) -> Vec<String> {
        let connections = self.lock();
        let configured = connections.roster.peers.get(name);
        let mut addresses = configured.map_or_else(Vec::new, |peer| peer.addresses.clone());
        let entry = connections.by_name.get(name);
        if let Some(learned) = entry.and_then(|entry| entry.learned_address.clone())
            && !addresses.contains(&learned)
        {
            addresses.push(learned);
        }
        addresses
    }

    /// Waits until everything that is queued is on its way.
    pub(super) async fn drained(&self) {
        for route in self.routes.load_full().values() {
            route.control.drained().await;
            route.bulk.drained().await;
        }
    }

    /// Waits while the member has a connection.
    pub(super) async fn until_unconnected(&self, name: &str) {
        loop {
            let changed = self.changed.notified();
            if !self.is_connected(name) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the member has a connection.
    pub(super) async fn until_connected(&self, name: &str) {
        loop {
            let changed = self.changed.notified();
            if self.is_connected(name) {
                return;
            }
            changed.await;
        }
    }

    pub(super) fn is_connected(&self, name: &str) -> bool {
        let connections = self.lock();
        connections
            .by_name
            .get(name)
            .is_some_and(|entry| entry.active.is_some())
    }

    /// The hello for a call, unless a connection has come up meanwhile.
    pub(super) fn calling_hello(&self, name: &str) -> Option<PeerHello> {
        let mut connections = self.lock();
        let entry = connections.by_name.get(name);
        if entry.is_some_and(|entry| entry.active.is_some()) {
            return None;
        }
        Some(self.next_hello(&mut connections))
    }

    fn next_hello(&self, connections: &mut PeerConnections) -> PeerHello {
        let sequence = connections.sequence;
        connections.sequence += 1;
        let identity = self.config.tls.identity();
        PeerHello {
            versions: PROTOCOL_VERSIONS,
            cluster_id: identity.cluster_id,
            node_id: self.config.node_id,
            name: identity.name().to_string(),
            incarnation: self.config.incarnation,
            peer_address: self.advertised.clone(),
            client_address: self.config.client_address.clone(),
            etcd_url: self.config.etcd_url.clone(),
            boot: self.config.seed,
            sequence,
            bootstrap: self.bootstrap(),
        }
    }

    /// Checks the hello of an answered call, and puts the connection to work if it is the one to
    /// keep.
    pub(super) fn answered(
        &self,
        connection: &Connection,
        ours: &PeerHello,
        theirs: &PeerHello,
    ) -> Result<Option<Arc<Route>>, HelloError> {
        let connections = self.checked(connection, theirs)?;
        let hellos = Hellos {
            dialled: true,
            boot: theirs.boot,
            ours: ours.sequence,
            theirs: theirs.sequence,
        };
        Ok(self.put_to_work(connections, connection, hellos, theirs))
    }

    /// Checks the hello of a caller, and puts the connection to work if it is the one to keep.
    /// The hello to answer with is written in the same moment, so that its number tells what was
    /// known when.
    pub(super) fn called(
        &self,
        connection: &Connection,
        theirs: &PeerHello,
    ) -> Result<Option<(PeerHello, Arc<Route>)>, HelloError> {
        let mut connections = self.checked(connection, theirs)?;
        let ours = self.next_hello(&mut connections);
        let hellos = Hellos {
            dialled: false,
            boot: theirs.boot,
            ours: ours.sequence,
            theirs: theirs.sequence,
        };
        let route = self.put_to_work(connections, connection, hellos, theirs);
        Ok(route.map(|route| (ours, route)))
    }

    /// The connections, once `hello` has been checked.
    fn checked(
        &self,
        connection: &Connection,
        hello: &PeerHello,
    ) -> Result<MutexGuard<'_, PeerConnections>, HelloError> {
        let mut connections = self.lock();
        let Err(refused) = self.check(&mut connections, connection, hello) else {
            return Ok(connections);
        };
        drop(connections);
        if let HelloError::OtherBootstrap { name, theirs, .. } = &refused {
            self.handler.on_other_bootstrap(name, *theirs);
        }
        Err(refused)
    }

    fn check(
        &self,
        connections: &mut PeerConnections,
        connection: &Connection,
        hello: &PeerHello,
    ) -> Result<(), HelloError> {
        let certified = connection.identity();
        let not_member = || HelloError::NotMember(certified.name().to_string());
        let is_self = certified.name() == self.config.tls.identity().name();
        if is_self || !connections.roster.knows(certified.name()) {
            return Err(not_member());
        }
        if hello.cluster_id != certified.cluster_id {
            return Err(HelloError::ForeignCluster);
        }
        if hello.name != certified.name() {
            return Err(HelloError::WrongName {
                said: hello.name.clone(),
                certified: certified.name().to_string(),
            });
        }
        if hello.node_id != NodeId::derive(hello.cluster_id, &hello.name, hello.incarnation) {
            return Err(HelloError::WrongId);
        }
        if let (Some(ours), Some(theirs)) = (self.bootstrap(), hello.bootstrap)
            && !BootstrapId::agree(Some(ours), Some(theirs))
        {
            let name = hello.name.clone();
            return Err(HelloError::OtherBootstrap { name, theirs, ours });
        }
        let required = self.required_version.load(Ordering::Relaxed);
        if PROTOCOL_VERSIONS.common(hello.versions).is_none() || hello.versions.newest < required {
            return Err(HelloError::Version {
                theirs: hello.versions,
                ours: PROTOCOL_VERSIONS,
                required,
            });
        }
        match connections.roster.admits(&hello.name, hello.incarnation) {
            MembershipCheck::Yes => {}
            MembershipCheck::NotMember => return Err(not_member()),
            MembershipCheck::Outdated => return Err(HelloError::Outdated),
        }
        let entry = connections.by_name.entry(hello.name.clone()).or_default();
        if hello.incarnation < entry.newest {
            return Err(HelloError::Outdated);
        }
        entry.newest = hello.incarnation;
        Ok(())
    }

    fn put_to_work(
        &self,
        mut connections: MutexGuard<'_, PeerConnections>,
        connection: &Connection,
        hellos: Hellos,
        theirs: &PeerHello,
    ) -> Option<Arc<Route>> {
        let entry = connections.by_name.get_mut(&theirs.name)?;
        if !theirs.peer_address.is_empty() {
            entry.learned_address = Some(theirs.peer_address.clone());
        }
        if let Some(active) = &entry.active {
            let live = !active.connection.is_lost();
            if live && !replaces(self.config.node_id, theirs.node_id, active.hellos, hellos) {
                return None;
            }
            if active.hellos.boot == theirs.boot {
                // The other side may not have changed over yet, and would be without a connection
                // for a moment: the older one is closed a little later.
                active.route.retired.notify_one();
            } else {
                // A later process of this member has connected; messages of the earlier one are void.
                active.connection.close(CloseCode::Duplicate);
            }
        }
        let info = PeerInfo {
            id: theirs.node_id,
            name: theirs.name.clone(),
            incarnation: theirs.incarnation,
            peer_address: theirs.peer_address.clone(),
            client_address: theirs.client_address.clone(),
            etcd_url: theirs.etcd_url.clone(),
            versions: theirs.versions,
            boot: theirs.boot,
            from: connection.remote_address(),
            bootstrap: theirs.bootstrap,
        };
        let route = Arc::new(Route {
            info: info.clone(),
            control: StreamQueue::new(CONTROL_MAX, Overflow::DropOldest),
            bulk: StreamQueue::new(BULK_MAX, Overflow::DropNewest),
            retired: Notify::new(),
        });
        entry.active = Some(Active {
            connection: connection.clone(),
            hellos,
            route: Arc::clone(&route),
        });
        self.publish(&connections);
        let mut known = BTreeMap::clone(&self.known.load());
        known.retain(|_, older| older.name != info.name);
        known.insert(info.id, info.clone());
        self.known.store(Arc::new(known));
        drop(connections);
        tracing::info!(
            peer = info.name,
            id = %info.id,
            address = %connection.remote_address(),
            called = hellos.dialled,
            "peer connected"
        );
        self.handler.on_connected(&info);
        self.changed.notify_waiters();
        Some(route)
    }

    /// Takes a connection that is over out of work. Returns whether it was at work.
    pub(super) fn lost(&self, connection: &Connection) -> bool {
        let mut connections = self.lock();
        let entry = connections.by_name.get_mut(connection.identity().name());
        let was_active = entry.and_then(|entry| {
            entry
                .active
                .take_if(|active| active.connection.is_same(connection))
        });
        let Some(active) = was_active else {
            return false;
        };
        self.publish(&connections);
        drop(connections);
        self.handler.on_disconnected(active.route.info.id);
        self.changed.notify_waiters();
        true
    }

    /// This member has given our place to another process.
    pub(super) fn displaced(&self, by: &PeerInfo) {
        self.handler.on_displaced(by);
    }

    /// Hands a message on, if it comes from the member at the other end and is meant for us.
    pub(super) fn receive(&self, from: NodeId, envelope: Envelope) -> bool {
        let addressed = envelope.from == from && envelope.to == self.config.node_id;
        if addressed {
            self.stats.received.fetch_add(1, Ordering::Relaxed);
            self.handler.on_message(envelope);
        } else {
            self.stats.misaddressed.fetch_add(1, Ordering::Relaxed);
        }
        addressed
    }

    /// Reports the rate of a peer's clocks relative to ours.
    pub(super) fn drifts(&self, peer: &PeerInfo, ratio: f64) {
        self.handler.on_drift(peer, ratio);
    }

    fn publish(&self, connections: &PeerConnections) {
        let routes = connections
            .by_name
            .values()
            .filter_map(|entry| entry.active.as_ref())
            .map(|active| (active.route.info.id, Arc::clone(&active.route)))
            .collect();
        self.routes.store(Arc::new(routes));
    }

    fn lock(&self) -> MutexGuard<'_, PeerConnections> {
        self.connections.lock()
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("node_id", &self.config.node_id)
            .field("connected", &self.connected())
            .finish_non_exhaustive()
    }
}

/// A node does not call itself.
fn without(mut roster: Roster, own: &str) -> Roster {
    roster.peers.remove(own);
    roster
}

/// Whether `new` takes the place of `old`. Both sides, asked about the same two connections, keep
/// the same one.
fn replaces(us: NodeId, them: NodeId, old: Hellos, new: Hellos) -> bool {
    if old.boot != new.boot {
        // The other process was restarted; what it had before is gone.
        return true;
    }
    match (old.dialled, new.dialled) {
        (true, true) => new.ours > old.ours,
        (false, false) => new.theirs > old.theirs,
        (true, false) => !our_call_stays(us, them, old, new),
        (false, true) => our_call_stays(us, them, new, old),
    }
}

/// Of a connection that we called for and one that they called for, whether ours stays.
fn our_call_stays(us: NodeId, them: NodeId, our_call: Hellos, their_call: Hellos) -> bool {
    if their_call.theirs > our_call.theirs {
        // They called after they had answered our call: they have lost that connection.
        return false;
    }
    if our_call.ours > their_call.ours {
        return true;
    }
    us < them
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: NodeId = NodeId(1);
    const LARGE: NodeId = NodeId(2);

    /// A connection as its two ends see it: who called, and the numbers of both hellos.
    #[derive(Clone, Copy, Debug)]
    struct SeenConnection {
        small_called: bool,
        small: u64,
        large: u64,
    }

    impl SeenConnection {
        fn by_small(self) -> Hellos {
            Hellos {
                dialled: self.small_called,
                boot: 0,
                ours: self.small,
                theirs: self.large,
            }
        }
        fn by_large(self) -> Hellos {
            Hellos {
                dialled: !self.small_called,
                boot: 0,
                ours: self.large,
                theirs: self.small,
            }
        }
    }

    #[test]
    fn both_ends_keep_the_same_connection_whichever_they_saw_first() {
        // Every order of numbers that two connections can have.
        let numbers = [(1, 2), (2, 1)];
        for (first_small, second_small) in numbers {
            for (first_large, second_large) in numbers {
                for (first_called, second_called) in
                    [(true, true), (true, false), (false, true), (false, false)]
                {
                    let first = SeenConnection {
                        small_called: first_called,
                        small: first_small,
                        large: first_large,
                    };
                    let second = SeenConnection {
                        small_called: second_called,
                        small: second_small,
                        large: second_large,
                    };
                    // One side calls once at a time: its calls are ordered at both ends alike.
                    if first_called == second_called
                        && (first_small < second_small) != (first_large < second_large)
                    {
                        continue;
                    }
                    // Neither can know of the other call before it was made.
                    let impossible = match (first_called, second_called) {
                        (true, false) => second_large > first_large && first_small > second_small,
                        (false, true) => first_large > second_large && second_small > first_small,
                        _ => false,
                    };
                    if impossible {
                        continue;
                    }
                    let small_keeps_second =
                        replaces(SMALL, LARGE, first.by_small(), second.by_small());
                    let large_keeps_second =
                        replaces(LARGE, SMALL, first.by_large(), second.by_large());
                    assert_eq!(
                        small_keeps_second, large_keeps_second,
                        "{first:?} {second:?}"
                    );
                    // And the order in which they are seen does not matter.
                    let swapped = replaces(SMALL, LARGE, second.by_small(), first.by_small());
                    assert_eq!(small_keeps_second, !swapped, "{first:?} {second:?}");
                }
            }
        }
    }

    #[test]
    fn of_two_calls_that_crossed_the_smaller_ids_stays() {
        // Both wrote their calls (1) before they answered the other's (2).
        let by_small = SeenConnection {
            small_called: true,
            small: 1,
            large: 2,
        };
        let by_large = SeenConnection {
            small_called: false,
            small: 2,
            large: 1,
        };
        assert!(replaces(
            SMALL,
            LARGE,
            by_large.by_small(),
            by_small.by_small()
        ));
        assert!(!replaces(
            LARGE,
            SMALL,
            by_small.by_large(),
            by_large.by_large()
        ));
    }

    #[test]
    fn a_peer_that_calls_after_it_had_answered_has_lost_the_older_connection() {
        let by_small = SeenConnection {
            small_called: true,
            small: 1,
            large: 1,
        };
        let by_large = SeenConnection {
            small_called: false,
            small: 2,
            large: 2,
        };
        assert!(replaces(
            SMALL,
            LARGE,
            by_small.by_small(),
            by_large.by_small()
        ));
        assert!(replaces(
            LARGE,
            SMALL,
            by_small.by_large(),
            by_large.by_large()
        ));
    }

    #[test]
    fn a_restarted_peer_replaces_what_it_had_whatever_its_numbers() {
        let before = Hellos {
            dialled: true,
            boot: 1,
            ours: 9,
            theirs: 900,
        };
        let after = Hellos {
            dialled: false,
            boot: 2,
            ours: 10,
            theirs: 1,
        };
        assert!(replaces(SMALL, LARGE, before, after));
    }
}
