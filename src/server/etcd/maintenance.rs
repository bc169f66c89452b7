//! What a node says of itself: the service of maintenance.

use bytes::Bytes;
use xxhash_rust::xxh3::Xxh3Default;

use super::caller::Caller;
use super::pages::unexpected;
use crate::api::{
    Consistency, KeyRange, KeyValue, RangeRequest, Request, Response, ResponseBody, ResponseHeader,
    successor,
};
use crate::etcd::errors::{
    BAD_TRANSFEREE, DOWNGRADE_FORMAT, INVALID_DOWNGRADE, Method, NO_DOWNGRADE, NO_LEADER,
    NOT_LEADER, UNKNOWN_ACTION,
};
use crate::etcd::proto;
use crate::etcd::proto::{
    ALARM_CORRUPT, ALARM_NO_SPACE, AlarmAction, AlarmMember, DowngradeAction,
};
use crate::etcd::status::{Code, Status};
use crate::types::NodeId;

/// Keys that are read at once for a hash.
const HASHED_AT_ONCE: u64 = 1_000;

/// Status.
pub(super) async fn status(
    caller: Caller,
    _: proto::StatusRequest,
) -> Result<proto::StatusResponse, Status> {
    let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
    let response = request.await?;
    let ResponseBody::Status(status) = response.body else {
        return Err(unexpected());
    };
    let leader = response.header.leader_id;
    let mut errors = alarm_errors(&caller, status.quota.no_space).await;
    if leader.is_none() {
        errors.push(NO_LEADER.message.into_owned());
    }
    let bytes = i64::try_from(status.storage_bytes).unwrap_or(i64::MAX);
    let raft_term = response.header.raft_term.0;
    Ok(proto::StatusResponse {
        header: Some(caller.header(&response.header)),
        version: caller.options.emulated_version.clone(),
        db_size: bytes,
        leader: leader.map_or(0, |leader| leader.0),
        raft_index: status.last_index.0,
        raft_term,
        raft_applied_index: status.applied_index.0,
        errors,
        db_size_in_use: bytes,
        is_learner: status.role == crate::types::Role::Learner,
        storage_version: caller.options.storage_version(),
        db_size_quota: i64::try_from(status.quota.bytes).unwrap_or(i64::MAX),
        downgrade_info: Some(proto::DowngradeInfo::default()),
    })
}

/// The alarms as errors of a status: etcd's messages as text, without what is 0, each with a space at the end.
async fn alarm_errors(caller: &Caller, is_no_space: bool) -> Vec<String> {
    let own = caller.member_id();
    if !caller.sessions.node.integrity.is_sound() {
        return vec![format!("memberID:{} alarm:CORRUPT ", own.0)];
    }
    if !is_no_space {
        return Vec::new();
    }
    let found = raised_alarms(caller, Consistency::Serializable).await;
    // The status is told also while nothing is read.
    let found = found.map_or_else(|_| vec![no_space(own)], |(_, found)| found);
    let texts = found.iter().map(|alarm| match alarm.member_id {
        0 => "alarm:NOSPACE ".to_owned(),
        member => format!("memberID:{member} alarm:NOSPACE "),
    });
    texts.collect()
}

/// HashKV: of what is visible at a revision, so that members agree whatever compaction has removed.
pub(super) async fn hash_kv(
    caller: Caller,
    asked: proto::HashKvRequest,
) -> Result<proto::HashKvResponse, Status> {
    caller.wants_root().await?;
    let mut range = RangeRequest {
        key: Bytes::from_static(b"\0"),
        range: KeyRange::From,
        revision: asked.revision.max(0),
        limit: HASHED_AT_ONCE,
        ..RangeRequest::default()
    };
    let mut hash = Xxh3Default::new();
    let header = loop {
        let request = Request::Range(range.clone());
        let page = caller.ask(request, Consistency::Serializable, Method::Range);
        let Response { header, body } = page.await?;
        let ResponseBody::Range(page) = body else {
            return Err(unexpected());
        };
        if range.revision == 0 {
            range.revision = header.revision;
        }
        for kv in &page.kvs {
            add(&mut hash, kv);
        }
        match page.kvs.last() {
            Some(last) if page.more => range.key = successor(&last.key),
            _ => break header,
        }
    };
    let compacted = caller.sessions.serving.store.compact_revision();
    let hash = (hash.digest() & u64::from(u32::MAX)) as u32;
    Ok(proto::HashKvResponse {
        header: Some(caller.header(&header)),
        // None is no hash, to etcd's clients.
        hash: hash.max(1),
        compact_revision: match compacted {
            0 => -1,
            compacted => compacted,
        },
        hash_revision: range.revision,
    })
}

/// Adds a record to a hash, each part with its length.
fn add(hash: &mut Xxh3Default, kv: &KeyValue) {
    for part in [&kv.key, &kv.value] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease] {
        hash.update(&number.to_le_bytes());
    }
}

/// Hash: that of the keys as they are.
pub(super) async fn hash(
    caller: Caller,
    _: proto::HashRequest,
) -> Result<proto::HashResponse, Status> {
    let of_keys = hash_kv(caller, proto::HashKvRequest::default()).await?;
    Ok(proto::HashResponse {
        header: of_keys.header,
        hash: of_keys.hash,
    })
}

/// MoveLeader: the leader alone does it.
pub(super) async fn move_leader(
    caller: Caller,
    asked: proto::MoveLeaderRequest,
) -> Result<proto::MoveLeaderResponse, Status> {
    if caller.sessions.node.published.leader() != Some(caller.member_id()) {
        return Err(NOT_LEADER);
    }
    let target = NodeId(asked.target_id);
    let voters = caller.sessions.node.directory.voters();
    if !voters.iter().any(|voter| voter.id == target) {
        return Err(BAD_TRANSFEREE);
    }
    if target != caller.member_id() {
        let request = Request::MoveLeader {
            target: Some(target),
        };
        caller
            .ask(request, Consistency::Linearizable, Method::Node)
            .await?;
    }
    Ok(proto::MoveLeaderResponse::default())
}

/// Defragment: there is nothing to do, as the files are rewritten all the time.
pub(super) async fn defragment(
    caller: Caller,
    _: proto::DefragmentRequest,
) -> Result<proto::DefragmentResponse, Status> {
    caller.wants_root().await?;
    Ok(proto::DefragmentResponse::default())
}

/// Downgrade: a cluster does not go back, so there is no version to go to, and nothing under way.
pub(super) async fn downgrade(
    caller: Caller,
    asked: proto::DowngradeRequest,
) -> Result<proto::DowngradeResponse, Status> {
    // A client that may do nothing is told so.
    let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
    request.await?;
    Err(match DowngradeAction::try_from(asked.action) {
        Err(_) => UNKNOWN_ACTION,
        Ok(DowngradeAction::Cancel) => NO_DOWNGRADE,
        Ok(_) if !is_version(&asked.version) => DOWNGRADE_FORMAT,
        Ok(_) => INVALID_DOWNGRADE,
    })
}

/// Two numbers; or three, and perhaps what follows a hyphen or a plus.
fn is_version(text: &str) -> bool {
    let (numbers, rest) = text.split_at(text.find(['-', '+']).unwrap_or(text.len()));
    let numbers: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| part.parse::<u64>().is_ok();
    let is_long_enough = numbers.len() == 3 || numbers.len() == 2 && rest.is_empty();
    is_long_enough && numbers.iter().all(is_number)
}

/// Alarm: reads the alarms, and raises and clears those of operators. What is measured is cleared by
/// measuring alone.
pub(super) async fn alarm(
    caller: Caller,
    asked: proto::AlarmRequest,
) -> Result<proto::AlarmResponse, Status> {
    let kind = AlarmKind::of(asked.alarm);
    let is_raised = match AlarmAction::try_from(asked.action) {
        Ok(AlarmAction::Get) => return list_alarms(caller, kind).await,
        Ok(AlarmAction::Activate) => true,
        Ok(AlarmAction::Deactivate) => false,
        Err(_) => return Err(unknown_alarm("action", asked.action)),
    };
    if is_raised && kind == AlarmKind::Corrupt {
        return Err(Status::new(
            Code::Unimplemented,
            "etcdserver: whether a member is corrupt is found out here, and cannot be claimed",
        ));
    }
    if is_raised && kind == AlarmKind::Unknown {
        // etcd ends the process.
        return Err(unknown_alarm("alarm", asked.alarm));
    }
    if kind != AlarmKind::NoSpace {
        caller.wants_root().await?;
        let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
        let response = request.await?;
        return Ok(alarms(&caller, &response.header, []));
    }
    let member = NodeId(asked.member_id);
    let request = Request::AlarmSet { member, is_raised };
    let request = caller.ask(request, Consistency::Linearizable, Method::Node);
    let Response { header, body } = request.await?;
    let ResponseBody::Alarms(touched) = body else {
        return Err(unexpected());
    };
    let touched = touched.members.into_iter().map(no_space);
    Ok(alarms(&caller, &header, touched))
}

/// The alarms of the cluster, as far as `kind` asks for them. As in etcd, it does not matter which member is
/// named.
async fn list_alarms(caller: Caller, kind: AlarmKind) -> Result<proto::AlarmResponse, Status> {
    if !caller.sessions.node.integrity.is_sound() {
        // Nothing is served of its state, nor what alarms are in it.
        let request = caller.ask(Request::Status, Consistency::Serializable, Method::Node);
        let header = request.await?.header;
        let corrupt = AlarmMember {
            member_id: caller.member_id().0,
            alarm: ALARM_CORRUPT,
        };
        let is_asked = matches!(kind, AlarmKind::Any | AlarmKind::Corrupt);
        return Ok(alarms(&caller, &header, is_asked.then_some(corrupt)));
    }
    let consistency = caller.consistency(false);
    let (header, found) = raised_alarms(&caller, consistency).await?;
    let is_asked = matches!(kind, AlarmKind::Any | AlarmKind::NoSpace);
    let found = found.into_iter().filter(|_| is_asked);
    Ok(alarms(&caller, &header, found))
}

/// The alarms NOSPACE. The one that is measured has no member, and is named by the member that was asked.
async fn raised_alarms(
    caller: &Caller,
    consistency: Consistency,
) -> Result<(ResponseHeader, Vec<AlarmMember>), Status> {
    let request = caller.ask(Request::AlarmList, consistency, Method::Node);
    let Response { header, body } = request.await?;
    let ResponseBody::Alarms(found) = body else {
        return Err(unexpected());
    };
    let own = caller.member_id();
    let is_new = found.measured && !found.members.contains(&own);
    let members = found.members.into_iter().chain(is_new.then_some(own));
    Ok((header, members.map(no_space).collect()))
}

/// Which alarms a request is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AlarmKind {
    /// All, if alarms are read; else none.
    Any,
    NoSpace,
    Corrupt,
    /// Of which there are none.
    Unknown,
}

impl AlarmKind {
    fn of(number: i32) -> Self {
        match number {
            0 => Self::Any,
            ALARM_NO_SPACE => Self::NoSpace,
            ALARM_CORRUPT => Self::Corrupt,
            _ => Self::Unknown,
        }
    }
}

fn unknown_alarm(field: &str, number: i32) -> Status {
    Status {
        code: Code::InvalidArgument,
        message: format!("etcdserver: there is no {field} {number} of alarms").into(),
    }
}

fn no_space(member: NodeId) -> AlarmMember {
    AlarmMember {
        member_id: member.0,
        alarm: ALARM_NO_SPACE,
    }
}

fn alarms(
    caller: &Caller,
    header: &ResponseHeader,
    alarms: impl IntoIterator<Item = AlarmMember>,
) -> proto::AlarmResponse {
    proto::AlarmResponse {
        header: Some(caller.header(header)),
        alarms: alarms.into_iter().collect(),
    }
}
