//! Which path of the gateway stands for which method, and what that takes and gives.
//!
//! All methods of etcd are here.

use super::messages::{
    AlarmRequest, AlarmResponse, AuthNameRequest, AuthRoleGetResponse,
    AuthRoleGrantPermissionRequest, AuthRoleListResponse, AuthRoleRequest,
    AuthRoleRevokePermissionRequest, AuthStatusResponse, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserGetResponse, AuthUserGrantRoleRequest,
    AuthUserListResponse, AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse,
    CampaignRequest, CampaignResponse, CompactionRequest, DeleteRangeRequest, DeleteRangeResponse,
    DowngradeRequest, DowngradeResponse, Empty, HashKVRequest, HashKVResponse, HashResponse,
    HeaderOnly, LeaderRequest, LeaderResponse, LeaseGrantRequest, LeaseGrantResponse,
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, LockRequest, LockResponse, MemberAddRequest,
    MemberAddResponse, MemberListRequest, MemberRequest, MemberUpdateRequest, MembersResponse,
    MoveLeaderRequest, ProclaimRequest, PutRequest, PutResponse, RangeRequest, RangeResponse,
    ResignRequest, SnapshotResponse, StatusResponse, TxnRequest, TxnResponse, UnlockRequest,
    WatchRequest, WatchResponse,
};
use super::schema::Type;

/// A method, and a path of the gateway for it.
#[derive(Debug)]
pub(crate) struct Method {
    /// Below `/v3/`.
    path: &'static str,
    /// The path of the method in gRPC.
    pub(crate) grpc: &'static str,
    pub(crate) messages: Messages,
    pub(crate) request: &'static Type,
    pub(crate) answer: &'static Type,
}

/// How many messages a method has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Messages {
    /// One each way.
    One,
    /// One request, and answers that come by and by.
    ManyAnswers,
    /// As many requests as there are, and answers.
    Many,
}

use Messages::{Many, ManyAnswers, One};

impl Method {
    /// The method that `path` stands for.
    pub(crate) fn at(path: &str) -> Option<&'static Self> {
        let below = path
            .strip_prefix("/v3/")
            .or_else(|| path.strip_prefix("/v3beta/"))?;
        METHODS.iter().find(|method| method.path == below)
    }

    /// The method at `path` in gRPC.
    pub(crate) fn of_grpc(path: &str) -> Option<&'static Self> {
        METHODS.iter().find(|method| method.grpc == path)
    }
}

macro_rules! methods {
    ($($path:literal $grpc:literal $messages:ident $Request:ident $Answer:ident;)*) => {
        /// Every path of the gateway.
        static METHODS: &[Method] = &[$(Method {
            path: $path,
            grpc: $grpc,
            messages: $messages,
            request: &$Request,
            answer: &$Answer,
        }),*];
    };
}

methods! {
    "kv/range" "/etcdserverpb.KV/Range" One RangeRequest RangeResponse;
    "kv/put" "/etcdserverpb.KV/Put" One PutRequest PutResponse;
    "kv/deleterange" "/etcdserverpb.KV/DeleteRange" One DeleteRangeRequest DeleteRangeResponse;
    "kv/txn" "/etcdserverpb.KV/Txn" One TxnRequest TxnResponse;
    "kv/compaction" "/etcdserverpb.KV/Compact" One CompactionRequest HeaderOnly;
    "watch" "/etcdserverpb.Watch/Watch" Many WatchRequest WatchResponse;
    "lease/grant" "/etcdserverpb.Lease/LeaseGrant" One LeaseGrantRequest LeaseGrantResponse;
    "lease/revoke" "/etcdserverpb.Lease/LeaseRevoke" One LeaseRevokeRequest HeaderOnly;
    "kv/lease/revoke" "/etcdserverpb.Lease/LeaseRevoke" One LeaseRevokeRequest HeaderOnly;
    "lease/keepalive" "/etcdserverpb.Lease/LeaseKeepAlive"
        Many LeaseKeepAliveRequest LeaseKeepAliveResponse;
    "lease/timetolive" "/etcdserverpb.Lease/LeaseTimeToLive"
        One LeaseTimeToLiveRequest LeaseTimeToLiveResponse;
    "kv/lease/timetolive" "/etcdserverpb.Lease/LeaseTimeToLive"
        One LeaseTimeToLiveRequest LeaseTimeToLiveResponse;
    "lease/leases" "/etcdserverpb.Lease/LeaseLeases" One Empty LeaseLeasesResponse;
    "kv/lease/leases" "/etcdserverpb.Lease/LeaseLeases" One Empty LeaseLeasesResponse;
    "cluster/member/add" "/etcdserverpb.Cluster/MemberAdd" One MemberAddRequest MemberAddResponse;
    "cluster/member/remove" "/etcdserverpb.Cluster/MemberRemove" One MemberRequest MembersResponse;
    "cluster/member/update" "/etcdserverpb.Cluster/MemberUpdate"
        One MemberUpdateRequest MembersResponse;
    "cluster/member/list" "/etcdserverpb.Cluster/MemberList" One MemberListRequest MembersResponse;
    "cluster/member/promote" "/etcdserverpb.Cluster/MemberPromote"
        One MemberRequest MembersResponse;
    "maintenance/alarm" "/etcdserverpb.Maintenance/Alarm" One AlarmRequest AlarmResponse;
    "maintenance/status" "/etcdserverpb.Maintenance/Status" One Empty StatusResponse;
    "maintenance/defragment" "/etcdserverpb.Maintenance/Defragment" One Empty HeaderOnly;
    "maintenance/hash" "/etcdserverpb.Maintenance/Hash" One Empty HashResponse;
    "maintenance/hashkv" "/etcdserverpb.Maintenance/HashKV" One HashKVRequest HashKVResponse;
    "maintenance/snapshot" "/etcdserverpb.Maintenance/Snapshot" ManyAnswers Empty SnapshotResponse;
    "maintenance/transfer-leadership" "/etcdserverpb.Maintenance/MoveLeader"
        One MoveLeaderRequest HeaderOnly;
    "maintenance/downgrade" "/etcdserverpb.Maintenance/Downgrade"
        One DowngradeRequest DowngradeResponse;
    "auth/enable" "/etcdserverpb.Auth/AuthEnable" One Empty HeaderOnly;
    "auth/disable" "/etcdserverpb.Auth/AuthDisable" One Empty HeaderOnly;
    "auth/status" "/etcdserverpb.Auth/AuthStatus" One Empty AuthStatusResponse;
    "auth/authenticate" "/etcdserverpb.Auth/Authenticate"
        One AuthenticateRequest AuthenticateResponse;
    "auth/user/add" "/etcdserverpb.Auth/UserAdd" One AuthUserAddRequest HeaderOnly;
    "auth/user/get" "/etcdserverpb.Auth/UserGet" One AuthNameRequest AuthUserGetResponse;
    "auth/user/list" "/etcdserverpb.Auth/UserList" One Empty AuthUserListResponse;
    "auth/user/delete" "/etcdserverpb.Auth/UserDelete" One AuthNameRequest HeaderOnly;
    "auth/user/changepw" "/etcdserverpb.Auth/UserChangePassword"
        One AuthUserChangePasswordRequest HeaderOnly;
    "auth/user/grant" "/etcdserverpb.Auth/UserGrantRole" One AuthUserGrantRoleRequest HeaderOnly;
    "auth/user/revoke" "/etcdserverpb.Auth/UserRevokeRole"
        One AuthUserRevokeRoleRequest HeaderOnly;
    "auth/role/add" "/etcdserverpb.Auth/RoleAdd" One AuthNameRequest HeaderOnly;
    "auth/role/get" "/etcdserverpb.Auth/RoleGet" One AuthRoleRequest AuthRoleGetResponse;
    "auth/role/list" "/etcdserverpb.Auth/RoleList" One Empty AuthRoleListResponse;
    "auth/role/delete" "/etcdserverpb.Auth/RoleDelete" One AuthRoleRequest HeaderOnly;
    "auth/role/grant" "/etcdserverpb.Auth/RoleGrantPermission"
        One AuthRoleGrantPermissionRequest HeaderOnly;
    "auth/role/revoke" "/etcdserverpb.Auth/RoleRevokePermission"
        One AuthRoleRevokePermissionRequest HeaderOnly;
    "lock/lock" "/v3lockpb.Lock/Lock" One LockRequest LockResponse;
    "lock/unlock" "/v3lockpb.Lock/Unlock" One UnlockRequest HeaderOnly;
    "election/campaign" "/v3electionpb.Election/Campaign" One CampaignRequest CampaignResponse;
    "election/proclaim" "/v3electionpb.Election/Proclaim" One ProclaimRequest HeaderOnly;
    "election/leader" "/v3electionpb.Election/Leader" One LeaderRequest LeaderResponse;
    "election/observe" "/v3electionpb.Election/Observe" ManyAnswers LeaderRequest LeaderResponse;
    "election/resign" "/v3electionpb.Election/Resign" One ResignRequest HeaderOnly;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_path_stands_once_and_under_both_prefixes() {
        let paths: BTreeSet<_> = METHODS.iter().map(|method| method.path).collect();
        assert_eq!((paths.len(), METHODS.len()), (51, 51));
        for method in METHODS {
            for prefix in ["/v3/", "/v3beta/"] {
                let found = Method::at(&format!("{prefix}{}", method.path)).unwrap();
                assert_eq!(found.grpc, method.grpc);
            }
            assert!(
                method
                    .request
                    .fields()
                    .iter()
                    .all(|field| field.name != "header")
            );
            assert_eq!(method.answer.fields()[0].name, "header", "{}", method.path);
        }
        for path in [
            "/v3/kv",
            "/v3/kv/range/",
            "/v2/kv/range",
            "/v3beta/",
            "/v3",
            "",
        ] {
            assert!(Method::at(path).is_none(), "{path}");
        }
    }
}
