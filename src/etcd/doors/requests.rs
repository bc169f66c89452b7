//! Requests of gRPC.

use bytes::{Buf, Bytes};
use prost::Message;

use crate::api::{AuthRequest, CompactionRequest, Limits, Request};
use crate::etcd::convert;
use crate::etcd::convert::RangePlan;
use crate::etcd::framing::{PREFIX_BYTES, message_bytes};
use crate::etcd::proto;
use crate::etcd::proto::WatchRequestUnion;
use crate::etcd::status::Status;

/// A request that was decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Understood {
    /// Its encoding, in which each field stands once and in order.
    pub encoded: Vec<u8>,
    /// What it means.
    pub meant: Meant,
}

/// What a request means in our words.
#[derive(Clone, Debug, PartialEq)]
pub enum Meant {
    /// It is not converted as a whole: the service asks what it needs.
    Itself,
    /// It concerns no key, and so nothing is asked.
    Nothing,
    /// This is asked.
    Asked(Box<Request>),
    /// It is refused, with this text.
    Refused(String),
}

/// The messages of the body of a call, each of at most `bytes_max`; and why no more are read, if that is not
/// that the body ends.
pub fn messages(body: &Bytes, bytes_max: usize) -> (Vec<Bytes>, Option<String>) {
    let mut rest = body.clone();
    let mut messages = Vec::new();
    loop {
        match message_bytes(&rest, bytes_max) {
            Err(status) => return (messages, Some(status.message.into_owned())),
            Ok(Some(bytes)) if rest.len() >= PREFIX_BYTES + bytes => {
                rest.advance(PREFIX_BYTES);
                messages.push(rest.split_to(bytes));
            }
            Ok(_) => return (messages, None),
        }
    }
}

type Conversion = Result<Option<Request>, Status>;

/// Decodes `message`, the request of the method of gRPC at `path`, and converts it.
///
/// # Errors
/// It does not read, or there is no such method.
pub fn request(path: &str, message: Bytes) -> Result<Understood, String> {
    let (service, name) = path.rsplit_once('/').unwrap_or_default();
    match service {
        "/etcdserverpb.KV" | "/etcdserverpb.Watch" => keys(name, message),
        "/etcdserverpb.Auth" => auth(name, message),
        "/etcdserverpb.Cluster" => members(name, message),
        _ => other(path, message),
    }
}

fn keys(name: &str, message: Bytes) -> Result<Understood, String> {
    match name {
        "Range" => converted(message, |range: &proto::RangeRequest| {
            let plan = RangePlan::of(range)?;
            Ok((!plan.is_empty).then_some(Request::Range(plan.request)))
        }),
        "Put" => converted(message, |put| Ok(Some(Request::Put(convert::put(put)?)))),
        "DeleteRange" => converted(message, |delete| {
            let plan = convert::DeletePlan::of(delete)?;
            Ok((!plan.is_empty).then_some(Request::DeleteRange(plan.request)))
        }),
        "Txn" => {
            convert::check_txn(&message).map_err(text)?;
            converted(message, |txn| {
                let plan = convert::txn_plan(txn, Limits::DEFAULT.txn_ops_max)?;
                Ok(Some(Request::Txn(plan.request)))
            })
        }
        "Compact" => converted(message, |compaction: &proto::CompactionRequest| {
            let request = CompactionRequest::at(compaction.revision);
            Ok(Some(Request::Compact(request)))
        }),
        "Watch" => watch(message),
        _ => Err(unknown()),
    }
}

fn watch(message: Bytes) -> Result<Understood, String> {
    let read: proto::WatchRequest = decoded(message)?;
    let meant = match &read.request {
        Some(WatchRequestUnion::CreateRequest(create)) => match convert::watch_request(create) {
            Ok(watch) => Meant::Asked(Box::new(Request::Watch { watch_id: 0, watch })),
            Err(reason) => Meant::Refused(reason.to_owned()),
        },
        _ => Meant::Itself,
    };
    Ok(Understood {
        encoded: read.encode_to_vec(),
        meant,
    })
}

fn auth(name: &str, message: Bytes) -> Result<Understood, String> {
    let asked = |request: AuthRequest| Ok(Some(Request::Auth(request)));
    match name {
        "UserAdd" => converted(message, |add: &proto::AuthUserAddRequest| {
            asked(convert::user_add(add.clone())?)
        }),
        "UserChangePassword" => {
            converted(message, |change: &proto::AuthUserChangePasswordRequest| {
                asked(convert::change_password(change.clone())?)
            })
        }
        "RoleGrantPermission" => {
            converted(message, |grant: &proto::AuthRoleGrantPermissionRequest| {
                asked(convert::grant_permission(grant.clone())?)
            })
        }
        "RoleRevokePermission" => converted(
            message,
            |revoke: &proto::AuthRoleRevokePermissionRequest| {
                Ok(convert::revoke_permission(revoke.clone()).map(Request::Auth))
            },
        ),
        "AuthEnable" => itself::<proto::AuthEnableRequest>(message),
        "AuthDisable" => itself::<proto::AuthDisableRequest>(message),
        "AuthStatus" => itself::<proto::AuthStatusRequest>(message),
        "Authenticate" => itself::<proto::AuthenticateRequest>(message),
        "UserGet" => itself::<proto::AuthUserGetRequest>(message),
        "UserList" => itself::<proto::AuthUserListRequest>(message),
        "UserDelete" => itself::<proto::AuthUserDeleteRequest>(message),
        "UserGrantRole" => itself::<proto::AuthUserGrantRoleRequest>(message),
        "UserRevokeRole" => itself::<proto::AuthUserRevokeRoleRequest>(message),
        "RoleAdd" => itself::<proto::AuthRoleAddRequest>(message),
        "RoleGet" => itself::<proto::AuthRoleGetRequest>(message),
        "RoleList" => itself::<proto::AuthRoleListRequest>(message),
        "RoleDelete" => itself::<proto::AuthRoleDeleteRequest>(message),
        _ => Err(unknown()),
    }
}

fn members(name: &str, message: Bytes) -> Result<Understood, String> {
    match name {
        "MemberAdd" => {
            convert::check_member_add(&message).map_err(text)?;
            converted(message, |add| {
                Ok(Some(Request::MemberAdd(convert::member_add(add)?)))
            })
        }
        "MemberUpdate" => {
            convert::check_member_update(&message).map_err(text)?;
            converted(message, |update: &proto::MemberUpdateRequest| {
                convert::peer_address(&update.peer_urls).map(|_| None)
            })
        }
        "MemberList" => itself::<proto::MemberListRequest>(message),
        "MemberRemove" => itself::<proto::MemberRemoveRequest>(message),
        "MemberPromote" => itself::<proto::MemberPromoteRequest>(message),
        _ => Err(unknown()),
    }
}

fn other(path: &str, message: Bytes) -> Result<Understood, String> {
    match path {
        "/etcdserverpb.Lease/LeaseGrant" => itself::<proto::LeaseGrantRequest>(message),
        "/etcdserverpb.Lease/LeaseRevoke" => itself::<proto::LeaseRevokeRequest>(message),
        "/etcdserverpb.Lease/LeaseKeepAlive" => itself::<proto::LeaseKeepAliveRequest>(message),
        "/etcdserverpb.Lease/LeaseTimeToLive" => itself::<proto::LeaseTimeToLiveRequest>(message),
        "/etcdserverpb.Lease/LeaseLeases" => itself::<proto::LeaseLeasesRequest>(message),
        "/etcdserverpb.Maintenance/Alarm" => itself::<proto::AlarmRequest>(message),
        "/etcdserverpb.Maintenance/Status" => itself::<proto::StatusRequest>(message),
        "/etcdserverpb.Maintenance/Defragment" => itself::<proto::DefragmentRequest>(message),
        "/etcdserverpb.Maintenance/Hash" => itself::<proto::HashRequest>(message),
        "/etcdserverpb.Maintenance/HashKV" => itself::<proto::HashKvRequest>(message),
        "/etcdserverpb.Maintenance/Snapshot" => itself::<proto::SnapshotRequest>(message),
        "/etcdserverpb.Maintenance/MoveLeader" => itself::<proto::MoveLeaderRequest>(message),
        "/etcdserverpb.Maintenance/Downgrade" => itself::<proto::DowngradeRequest>(message),
        "/v3lockpb.Lock/Lock" => itself::<proto::LockRequest>(message),
        "/v3lockpb.Lock/Unlock" => itself::<proto::UnlockRequest>(message),
        "/v3electionpb.Election/Campaign" => itself::<proto::CampaignRequest>(message),
        "/v3electionpb.Election/Proclaim" => itself::<proto::ProclaimRequest>(message),
        "/v3electionpb.Election/Leader" | "/v3electionpb.Election/Observe" => {
            itself::<proto::LeaderRequest>(message)
        }
        "/v3electionpb.Election/Resign" => itself::<proto::ResignRequest>(message),
        "/grpc.health.v1.Health/Check" => itself::<proto::HealthCheckRequest>(message),
        _ => Err(unknown()),
    }
}

fn text(status: Status) -> String {
    status.message.into_owned()
}

fn unknown() -> String {
    "there is no such method".to_owned()
}

fn decoded<M: Message + Default>(message: Bytes) -> Result<M, String> {
    M::decode(message).map_err(|error| error.to_string())
}

fn itself<M: Message + Default>(message: Bytes) -> Result<Understood, String> {
    Ok(Understood {
        encoded: decoded::<M>(message)?.encode_to_vec(),
        meant: Meant::Itself,
    })
}

fn converted<M: Message + Default>(
    message: Bytes,
    convert: impl FnOnce(&M) -> Conversion,
) -> Result<Understood, String> {
    let read: M = decoded(message)?;
    let meant = match convert(&read) {
        Ok(Some(request)) => Meant::Asked(Box::new(request)),
        Ok(None) => Meant::Nothing,
        Err(status) => Meant::Refused(status.message.into_owned()),
    };
    Ok(Understood {
        encoded: read.encode_to_vec(),
        meant,
    })
}
