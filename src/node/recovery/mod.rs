//! What a node does at its start with what its disk holds.
//!
//! The disk of a member may be new, or hold what an earlier process left: whole, damaged, restored from a
//! backup, set aside, in quarantine, or emptied by mistake.
//! What follows from that is one pure function, [`decide`]: from [`Disk`], the facts, and [`Member`], the
//! configuration, to the next [`Step`]. The shell carries the step out, looks again, and asks again, until
//! the step is [`Step::Start`]; or it stops with a [`Refusal`].
//!
//! One step at a time, because a process can end between any two. Each step is durable when it is done, and
//! a process that comes later decides from what is there by then: so no promise rests on memory, and the
//! tests cut every start off after every step. The order is the point. What says that a member may have
//! forgotten something is written before the log is made that looks as if it had not.
//!
//! The server and the simulator start their nodes through this function, and know no rule of it themselves.
//! It does not say who the node is (the data directory's identity, or its peers), nor how to read a log.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use crate::log::Damage;
use crate::types::{LogId, LogIndex, NodeId, Term, VersionRange};

/// What the configuration says of the cluster that this member belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterState {
    /// This node, on an empty data directory, takes part in the bootstrap of its cluster.
    #[default]
    New,
    /// The cluster exists; on an empty data directory the node asks it who it is.
    Existing,
}

/// The member, as its configuration and its identity describe it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its id.
    pub id: NodeId,
    /// `cluster.state`.
    pub state: ClusterState,
    /// The names in `cluster.initial`, in any order.
    pub initial: Vec<String>,
    /// It is one of the members that the cluster was bootstrapped with: this is its first incarnation.
    pub is_initial_member: bool,
    /// The initial members as reported by peers, if the node had to ask for its identity; else empty.
    pub told: Vec<String>,
    /// The cluster versions that this program knows.
    pub versions: VersionRange,
}

/// Whether a node, on an empty data directory, would bootstrap a cluster without asking any other: its
/// `cluster.initial` names so many. Were its directory emptied it would do that again, beside the members
/// that were added meanwhile; so it takes in none before its configuration says that the cluster exists.
pub fn bootstraps_alone(state: ClusterState, initial: usize) -> bool {
    state == ClusterState::New && initial == 1
}

/// The content of the disk, as far as it has been examined.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The data directory, for messages.
    pub path: PathBuf,
    /// Why the member was removed from its cluster, if it was.
    pub removed: Option<String>,
    /// What the directory remembers of the bootstrap.
    pub bootstrap: Bootstrap,
    /// There is a mark that something acknowledged may have been forgotten.
    pub unproven: Option<UnprovenReason>,
    /// There is a mark that a leader contradicts this entry (A27).
    pub diverged: Option<LogIndex>,
    /// There is a mark that an assumption about clocks failed on this node (P37).
    pub lease_tripped: bool,
    /// Log and vote file.
    pub log: LogFacts,
    /// The state.
    pub state: StateFacts,
}

/// What a data directory remembers of the bootstrap of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bootstrap {
    /// Nothing: it is new, or was emptied.
    Missing,
    /// There is a file, and it does not read.
    Damaged,
    /// The members that the cluster began with, sorted; none for a member that joined later, or that lost
    /// its data and could not learn them from peers.
    Members(Vec<String>),
}

/// Why a member may have forgotten what it acknowledged (A23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnprovenReason {
    /// Its directory was empty when it was made: it is new, or it was emptied.
    WasEmpty,
    /// It was a member, and its log and its votes were gone.
    LostLog,
    /// Its vote file was older than its log.
    OlderVotes,
    /// Its log lacked what it had acknowledged, as its leader has said (A28).
    OlderCopy,
    /// It was restored from a backup, once or again (A26).
    Restored {
        /// The last entry of the backup.
        base: LogIndex,
        /// The hash of all that was restored.
        hash: u128,
    },
}

/// Log and vote file.
#[derive(Clone, Debug)]
pub enum LogFacts {
    /// There is neither.
    Missing,
    /// They are there, and have not been read.
    Unread,
    /// They are open.
    Open(OpenLog),
}

/// What an open log says.
#[derive(Clone, Debug)]
pub struct OpenLog {
    /// Something that was synced is gone or altered, and has not been repaired yet.
    pub damage: Option<Damage>,
    /// The damage repaired during this start.
    pub repaired: Option<Damage>,
    /// The vote file remembers a quarantine.
    pub is_quarantined: bool,
    /// Where the log begins.
    pub base: LogId,
    /// Its last entry, or `base`.
    pub last: LogId,
    /// The term in the vote file.
    pub term: Term,
    /// The members in force after its last entry.
    pub members: BTreeSet<NodeId>,
    /// The newest cluster version that one of its entries raises the cluster to.
    pub version: Option<u16>,
}

/// The state, as far as the shell has looked.
#[derive(Clone, Debug, Default)]
pub struct StateFacts {
    /// The reason in the mark of a state that was found damaged while a node ran.
    pub damage_mark: Option<String>,
    /// It was set aside since this start began: the one that is there now is empty.
    pub is_set_aside: bool,
    /// What opening it came to; none while it is not open.
    pub opened: Option<StateOpening>,
    /// One that was set aside earlier is to be opened again: without it no leader was heard of.
    pub is_wanted_back: bool,
    /// A whole state that came from a peer lies beside it, and ends where the log begins.
    pub is_received: bool,
}

/// What the opening of a state came to.
#[derive(Clone, Debug)]
pub enum StateOpening {
    /// It is damaged.
    Damaged(String),
    /// It is open, has applied the log up to here, and says which version its cluster is of.
    Whole {
        /// The last entry that it has applied.
        applied: LogIndex,
        /// The cluster's version.
        version: u16,
    },
}

/// The next step of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Remember which members the cluster begins with, and that this one may have been emptied. The mark
    /// first: a crash in between must not leave an empty log that looks old.
    Bootstrap {
        /// The members, sorted.
        members: Vec<String>,
        /// Whether to mark it.
        unproven: bool,
    },
    /// Mark the member as one whose log and votes are gone.
    MarkLostLog,
    /// Mark the member as one whose vote file is an older one.
    MarkOlderVotes,
    /// Open the log and the vote file, or make them.
    OpenLog,
    /// Remember the quarantine in the vote file, and cut off what the log cannot vouch for.
    RepairLog,
    /// Move the state aside: the complete log or a peer replaces it.
    SetStateAside {
        /// What is wrong with it.
        why: String,
    },
    /// Open the state.
    OpenState,
    /// Put the state that was set aside in the place of the present one, which lacks everything.
    ReopenState,
    /// Put the state that came from a peer in the place of the present one, and close that.
    AdoptState,
    /// Remember the quarantine in the vote file.
    Quarantine,
    /// Start the node.
    Start(Start),
}

/// How the node starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// See [`crate::raft::RestoredState::quarantined`].
    pub quarantined: bool,
    /// See [`crate::raft::RestoredState::unproven`].
    pub unproven: bool,
    /// See [`crate::raft::RestoredState::restored_from`].
    pub restored_from: Option<u128>,
    /// See [`crate::raft::RestoredState::diverged`].
    pub diverged: Option<LogIndex>,
    /// See [`crate::raft::RestoredState::lease_tripped`].
    pub lease_tripped: bool,
    /// The state ends before the log begins: a peer has to send one.
    pub lacks_state: bool,
    /// Why the log cannot be trusted.
    pub doubt: Option<Doubt>,
    /// There is another member.
    pub has_peers: bool,
}

impl Start {
    /// The warning about a log that cannot be trusted.
    pub fn quarantine_warning(&self) -> Option<String> {
        let why = self.doubt.as_ref()?;
        let then = match self.has_peers {
            false => {
                "it has no peers to copy the data from: restore its data directory from a copy"
            }
            true => "it copies all data from its peers",
        };
        Some(format!(
            "the log of this node is damaged ({why}): it is quarantined and neither votes nor \
             serves; {then}"
        ))
    }
}

/// Why a log may lack what this member has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It and the votes were gone.
    LostLog,
    /// It was damaged, and has been repaired.
    Damaged(Damage),
    /// The directory was empty, and the cluster exists.
    Emptied,
    /// The vote file remembers it.
    QuarantinedBefore,
    /// The state has applied entries that the log lacks (A11).
    StateAhead {
        /// The last entry of the log.
        last: LogIndex,
        /// The last entry of the state.
        applied: LogIndex,
    },
    /// The vote file was older than the log.
    OlderVotes,
    /// It lacks what it has acknowledged to its leader.
    OlderCopy,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostLog => write!(
                f,
                "its log and its votes are gone, and it was a member before"
            ),
            Self::Damaged(damage) => damage.fmt(f),
            Self::Emptied => write!(
                f,
                "the data directory of this member was empty, and its cluster exists"
            ),
            Self::QuarantinedBefore => write!(
                f,
                "it was quarantined before the last stop and had not recovered"
            ),
            Self::StateAhead { last, applied } => write!(
                f,
                "it ends with entry {last}, but the state has applied entry {applied}: its end is \
                 lost"
            ),
            Self::OlderVotes => write!(
                f,
                "it held entries of a later term than the vote file knew: that file is an older \
                 copy, and votes may be lost"
            ),
            Self::OlderCopy => write!(
                f,
                "it lacked entries that this member had acknowledged: its data directory is an older copy"
            ),
        }
    }
}

/// Why a node must not start on this disk.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The directory is that of a member that was removed. It has promised and voted, and does not come
    /// back with that.
    #[error("{why} (says {})", path.display())]
    Removed {
        /// The reason given by its peers.
        why: String,
        /// The file that remembers it.
        path: PathBuf,
    },
    /// The configuration names other members than the cluster is being bootstrapped with.
    #[error(
        "cluster.initial names {configured:?}, but the bootstrap of this cluster has begun with \
         {begun:?} (recorded in {}): the members must not change before it is complete; restore \
         the original list",
        path.display()
    )]
    OtherMembers {
        /// The names in the configuration.
        configured: Vec<String>,
        /// The names at the bootstrap.
        begun: Vec<String>,
        /// The file that remembers them.
        path: PathBuf,
    },
    /// What the directory remembers of the bootstrap does not read.
    #[error(
        "{} is damaged: restore it, or empty the data directory so that the member copies all data \
         from its peers",
        path.display()
    )]
    BootstrapDamaged {
        /// The file.
        path: PathBuf,
    },
    /// Emptied, this member of a larger cluster would bootstrap it again.
    #[error(
        "this cluster has {members} members, but cluster.initial names only this node with \
         cluster.state = \"new\": if its data directory were ever emptied, it would bootstrap a \
         second cluster; set cluster.state = \"existing\""
    )]
    WouldBootstrapAlone {
        /// How many there are.
        members: usize,
    },
    /// The log is damaged, and what can be read of it names no other member. Those that were added in the
    /// damaged part are not known.
    #[error(
        "the log of this node is damaged ({}: {}), and what can be read of it names no other member; \
         nothing has been changed: check the disk first; if other members of the cluster run, move this \
         data directory away and start this node with an empty one and cluster.state = \"existing\", so \
         that it copies all data from them; if this node is the only member, there is no other copy of \
         the lost data: restore a backup (`leasehold offline snapshot restore`), or create a cluster from \
         what can still be read (`leasehold offline force-new-cluster --yes-lose-what-is-damaged`)",
        damage.place,
        damage.what
    )]
    LogDamaged {
        /// What is damaged, and where.
        damage: Damage,
    },
    /// The state is damaged, and neither the log nor a peer can make up for it.
    #[error("the state is damaged: {why}")]
    StateDamaged {
        /// What is wrong with it.
        why: String,
    },
    /// The state was lost, the log has been cut, and there are no peers to take it from.
    #[error(
        "the state has applied entry {applied}, but the log begins after {base}: the state was \
         lost, and this node has no peers to copy it from; restore a backup of the data directory"
    )]
    StateLost {
        /// How far the state goes.
        applied: LogIndex,
        /// Where the log begins.
        base: LogIndex,
    },
    /// The data is of a cluster that has agreed on what this program does not know.
    #[error(
        "{} belongs to a cluster of version {found}, but this release supports {known}: start the \
         newer release that wrote it; downgrading is not supported",
        path.display()
    )]
    NewerCluster {
        /// The data directory.
        path: PathBuf,
        /// What the cluster is.
        found: u16,
        /// What this program knows.
        known: VersionRange,
    },
}

/// Decides the next step at the start of `member` on `disk`.
///
/// # Errors
/// The node must not start. Nothing has been changed that a corrected start would miss.
pub fn decide(disk: &Disk, member: &Member) -> Result<Step, Refusal> {
    if let Some(why) = &disk.removed {
        let (why, path) = (why.clone(), disk.path.join("removed"));
        return Err(Refusal::Removed { why, path });
    }
    let begun = match &disk.bootstrap {
        Bootstrap::Missing => return Ok(bootstrap(disk, member)),
        Bootstrap::Damaged => {
            let path = disk.path.join("bootstrap");
            return Err(Refusal::BootstrapDamaged { path });
        }
        Bootstrap::Members(names) => names,
    };
    refuse_other_members(disk, member, begun)?;
    let log = match &disk.log {
        LogFacts::Missing if has_lost_log(disk, member, begun) => return Ok(Step::MarkLostLog),
        LogFacts::Missing | LogFacts::Unread => return Ok(Step::OpenLog),
        LogFacts::Open(log) => log,
    };
    if bootstraps_alone(member.state, member.initial.len())
        && log.members.iter().any(|id| *id != member.id)
    {
        let members = log.members.len();
        return Err(Refusal::WouldBootstrapAlone { members });
    }
    // A member that joins, and knows of no members yet, has peers: they took it in.
    let has_peers = log.members.len() != 1;
    if let Some(damage) = &log.damage {
        // A repair discards the damaged end, and without peers a copy of it may be all that is left. A member
        // that was alone may have taken in others in that part; that it cannot know, and the operator can.
        let damage = damage.clone();
        return match has_peers {
            true => Ok(Step::RepairLog),
            false => Err(Refusal::LogDamaged { damage }),
        };
    }
    let (applied, version) = match open_state(&disk.state, log, has_peers)? {
        Ok(state) => state,
        Err(step) => return Ok(step),
    };
    if let Some(UnprovenReason::Restored { base, .. }) = disk.unproven
        && has_peers
        && (log.base.index == base && log.last.index > base && applied >= base)
    {
        let why = "the cluster goes on without what this member was restored from".to_owned();
        return Ok(Step::SetStateAside { why });
    }
    refuse_newer_cluster(disk, member, log, version)?;
    Ok(start(disk, member, log, applied, has_peers))
}

/// A directory that remembers nothing.
fn bootstrap(disk: &Disk, member: &Member) -> Step {
    let mut members = match (member.is_initial_member, member.state) {
        (true, ClusterState::New) => member.initial.clone(),
        // Where peers did not say, the log will: somebody joined since.
        (true, ClusterState::Existing) => member.told.clone(),
        (false, _) => Vec::new(),
    };
    members.sort();
    // A member that bootstraps alone has no peers to take anything from.
    let has_peers = members.len() != 1 || member.state == ClusterState::Existing;
    // A mark that is there already may say more.
    let unproven = has_peers && disk.unproven.is_none();
    Step::Bootstrap { members, unproven }
}

/// While the cluster is not known to be bootstrapped, voters are derived from the names of its first members.
/// With other names two halves of it could each find a majority; later the log alone says who they are.
fn refuse_other_members(disk: &Disk, member: &Member, begun: &[String]) -> Result<(), Refusal> {
    let mut configured = member.initial.clone();
    configured.sort();
    let may_bootstrap = disk.unproven.is_some() && member.state == ClusterState::New;
    if may_bootstrap && !begun.is_empty() && begun != configured {
        return Err(Refusal::OtherMembers {
            configured,
            begun: begun.to_owned(),
            path: disk.path.join("bootstrap"),
        });
    }
    Ok(())
}

/// Whether a missing log existed before. A new member of a larger cluster is marked as unproven from
/// the start, so a member without that mark has had a log.
fn has_lost_log(disk: &Disk, member: &Member, begun: &[String]) -> bool {
    let may_have_peers = begun.len() != 1 || member.state == ClusterState::Existing;
    disk.unproven.is_none() && may_have_peers && !planted!(LostLogForgiven)
}

/// The applied index and the cluster version of the open state; or the step that is needed first.
fn open_state(
    state: &StateFacts,
    log: &OpenLog,
    has_peers: bool,
) -> Result<Result<(LogIndex, u16), Step>, Refusal> {
    // The log or a peer can replace a lost state.
    let can_be_lost = log.base.index == LogIndex(0) || has_peers;
    let set_aside = |why: String| Ok(Err(Step::SetStateAside { why }));
    match &state.opened {
        None => match &state.damage_mark {
            Some(why) if can_be_lost => set_aside(why.clone()),
            _ => Ok(Err(Step::OpenState)),
        },
        Some(StateOpening::Damaged(why)) if can_be_lost && !state.is_set_aside => {
            set_aside(why.clone())
        }
        Some(StateOpening::Damaged(why)) => Err(Refusal::StateDamaged { why: why.clone() }),
        Some(StateOpening::Whole { applied, .. }) if *applied < log.base.index => {
            // The log goes back no further, so only a state that ends there will do.
            if state.is_received {
                return Ok(Err(Step::AdoptState));
            }
            // Perhaps it was not as bad as it looked, or this is another release.
            if state.is_wanted_back && !planted!(AsideForEver) {
                return Ok(Err(Step::ReopenState));
            }
            let (applied, base) = (*applied, log.base.index);
            match state.opened {
                Some(StateOpening::Whole { version, .. }) if has_peers => {
                    Ok(Ok((applied, version)))
                }
                _ => Err(Refusal::StateLost { applied, base }),
            }
        }
        Some(StateOpening::Whole { applied, version }) => Ok(Ok((*applied, *version))),
    }
}

/// A cluster does not go back to an older version. What is only in the log may still be cut from it, but not
/// by this program: it would apply what comes instead, and could not read that either.
fn refuse_newer_cluster(
    disk: &Disk,
    member: &Member,
    log: &OpenLog,
    version: u16,
) -> Result<(), Refusal> {
    let found = log.version.unwrap_or(version).max(version);
    if found > member.versions.newest {
        return Err(Refusal::NewerCluster {
            path: disk.path.clone(),
            found,
            known: member.versions,
        });
    }
    Ok(())
}

/// Everything is open.
fn start(disk: &Disk, member: &Member, log: &OpenLog, applied: LogIndex, has_peers: bool) -> Step {
    // Entries are never durable before their term. The next vote would hide that this was so.
    let votes_are_older = log.term < log.last.term && !planted!(OlderVotesForgotten);
    if votes_are_older && disk.unproven.is_none() {
        return Step::MarkOlderVotes;
    }
    let doubt = doubt(disk, member, log, applied);
    let quarantined = doubt.is_some();
    // A candidate that it helped to elect could not be sure of what the cluster has committed; only the
    // vote file remembers that after a crash.
    if quarantined && !log.is_quarantined && !planted!(QuarantineForgotten) {
        return Step::Quarantine;
    }
    Step::Start(Start {
        quarantined,
        unproven: disk.unproven.is_some(),
        restored_from: match disk.unproven {
            Some(UnprovenReason::Restored { base, hash }) if log.base.index == base => Some(hash),
            _ => None,
        },
        diverged: disk.diverged.filter(|_| !planted!(DivergenceForgotten)),
        lease_tripped: disk.lease_tripped && !planted!(TripwireForgotten),
        lacks_state: applied < log.base.index,
        doubt,
        has_peers,
    })
}

/// Whether an initial member of an existing cluster starts without data: it has voted there before.
fn is_emptied(disk: &Disk, member: &Member) -> bool {
    let is_restored = matches!(disk.unproven, Some(UnprovenReason::Restored { .. }));
    let is_emptied = disk.unproven.is_some()
        && !is_restored
        && member.is_initial_member
        && member.state == ClusterState::Existing;
    is_emptied && !planted!(EmptiedForgiven)
}

/// Why a log that is open may still lack what this member has acknowledged.
fn doubt(disk: &Disk, member: &Member, log: &OpenLog, applied: LogIndex) -> Option<Doubt> {
    if disk.unproven == Some(UnprovenReason::LostLog) {
        Some(Doubt::LostLog)
    } else if disk.unproven == Some(UnprovenReason::OlderVotes) {
        Some(Doubt::OlderVotes)
    } else if disk.unproven == Some(UnprovenReason::OlderCopy) {
        Some(Doubt::OlderCopy)
    } else if let Some(damage) = log.repaired.as_ref().filter(|_| !planted!(DamageForgiven)) {
        Some(Doubt::Damaged(damage.clone()))
    } else if is_emptied(disk, member) {
        Some(Doubt::Emptied)
    } else if applied > log.last.index {
        Some(Doubt::StateAhead {
            last: log.last.index,
            applied,
        })
    } else if log.is_quarantined && !planted!(DamageForgiven) {
        Some(Doubt::QuarantinedBefore)
    } else {
        None
    }
}
