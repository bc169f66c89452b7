//! The messages of etcd's v3 API, by the facts of the wire: names, numbers and types of the fields.
//!
//! They are written by hand as the structs that a compiler of `.proto` files would make. Numbers are
//! for ever.

mod auth;
mod cluster;
mod fields;
mod health;
mod kv;
mod lease;
mod maintenance;
mod parts;
mod recipes;
mod watch;

#[cfg(test)]
pub(crate) use auth::UserAddOptions;
pub(crate) use auth::{
    AuthDisableRequest, AuthDoneResponse, AuthEnableRequest, AuthRoleAddRequest,
    AuthRoleDeleteRequest, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleListRequest, AuthRoleListResponse, AuthRoleRevokePermissionRequest, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserListRequest,
    AuthUserListResponse, AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse,
    Permission, PermissionType,
};
pub(crate) use cluster::{
    Member, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse,
};
pub(crate) use fields::{FieldValue, Fields};
pub(crate) use health::{
    HealthCheckRequest, HealthCheckResponse, NOT_SERVING, SERVICE_UNKNOWN, SERVING,
};
pub(crate) use kv::{
    CompactionRequest, CompactionResponse, Compare, CompareUnion, DeleteRangeRequest,
    DeleteRangeResponse, KeyValue, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RangeStreamResponse, RequestOp, RequestUnion, ResponseHeader, ResponseOp, ResponseUnion,
    TxnRequest, TxnResponse,
};
pub(crate) use kv::{CompareResult, CompareTarget, SortOrder, SortTarget};
pub(crate) use lease::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, StoredLease,
};
pub(crate) use maintenance::{
    ALARM_CORRUPT, ALARM_NO_SPACE, AlarmAction, AlarmMember, AlarmRequest, AlarmResponse,
    DefragmentRequest, DefragmentResponse, DowngradeAction, DowngradeInfo, DowngradeRequest,
    DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse, MoveLeaderRequest,
    MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest, StatusResponse,
};
pub(crate) use parts::txn_parts;
pub(crate) use recipes::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, LockRequest,
    LockResponse, ProclaimRequest, ProclaimResponse, ResignRequest, ResignResponse, UnlockRequest,
    UnlockResponse,
};
pub(crate) use watch::{
    Event, EventType, WatchCreateRequest, WatchFilter, WatchRequest, WatchRequestUnion,
    WatchResponse,
};
