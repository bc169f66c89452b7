//! The requests of the other services, and the path of each method.

use super::super::messages::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, AuthenticateRequest,
    CampaignRequest, DefragmentRequest, DowngradeRequest, HashKvRequest, HashRequest, LeaderKey,
    LeaderRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, LockRequest, MemberAddRequest, MemberListRequest,
    MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, Permission,
    ProclaimRequest, ResignRequest, StatusRequest, UnlockRequest, UserAddOptions,
    WatchCreateRequest,
};
use super::{Json, Object};

const ACTIONS: &[&str] = &["GET", "ACTIVATE", "DEACTIVATE"];
const ALARMS: &[&str] = &["NONE", "NOSPACE", "CORRUPT"];
const DOWNGRADES: &[&str] = &["VALIDATE", "ENABLE", "CANCEL"];
const PERMISSIONS: &[&str] = &["READ", "WRITE", "READWRITE"];

/// Messages whose fields are written in their order, each in its way.
macro_rules! written {
    ($($Request:ident: $($way:ident $name:literal $field:ident $(of $names:ident)?),*;)*) => {
        $(impl Json for $Request {
            #[allow(unused_variables, reason = "some are empty")]
            fn write(&self, object: &mut Object) {
                $(field!(object, self.$field, $way $name $(of $names)?);)*
            }
        })*
    };
}

macro_rules! field {
    ($object:ident, $value:expr, number $name:literal) => {
        $object.number($name, $value)
    };
    ($object:ident, $value:expr, unsigned $name:literal) => {
        $object.unsigned($name, $value)
    };
    ($object:ident, $value:expr, flag $name:literal) => {
        $object.flag($name, $value)
    };
    ($object:ident, $value:expr, bytes $name:literal) => {
        $object.bytes($name, &$value)
    };
    ($object:ident, $value:expr, text $name:literal) => {
        $object.text_of($name, &$value)
    };
    ($object:ident, $value:expr, texts $name:literal) => {
        $object.texts($name, &$value)
    };
    ($object:ident, $value:expr, option $name:literal) => {
        $object.option($name, $value.as_ref())
    };
    ($object:ident, $value:expr, one $name:literal of $names:ident) => {
        $object.value_of($name, $names, $value)
    };
}

written! {
    LeaseGrantRequest: number "TTL" ttl, number "ID" id;
    LeaseRevokeRequest: number "ID" id;
    LeaseKeepAliveRequest: number "ID" id;
    LeaseTimeToLiveRequest: number "ID" id, flag "keys" keys;
    LeaseLeasesRequest: ;
    LockRequest: bytes "name" name, number "lease" lease;
    UnlockRequest: bytes "key" key;
    CampaignRequest: bytes "name" name, number "lease" lease, bytes "value" value;
    LeaderKey: bytes "name" name, bytes "key" key, number "rev" rev, number "lease" lease;
    ProclaimRequest: option "leader" leader, bytes "value" value;
    LeaderRequest: bytes "name" name;
    ResignRequest: option "leader" leader;
    MemberListRequest: flag "linearizable" linearizable;
    MemberAddRequest: texts "peerURLs" peer_urls, flag "isLearner" is_learner;
    MemberRemoveRequest: unsigned "ID" id;
    MemberUpdateRequest: unsigned "ID" id, texts "peerURLs" peer_urls;
    MemberPromoteRequest: unsigned "ID" id;
    AlarmRequest: one "action" action of ACTIONS, unsigned "memberID" member_id,
        one "alarm" alarm of ALARMS;
    StatusRequest: ;
    HashRequest: ;
    HashKvRequest: number "revision" revision;
    DefragmentRequest: ;
    MoveLeaderRequest: unsigned "targetID" target_id;
    DowngradeRequest: one "action" action of DOWNGRADES, text "version" version;
    AuthEnableRequest: ;
    AuthDisableRequest: ;
    AuthStatusRequest: ;
    AuthenticateRequest: text "name" name, text "password" password;
    UserAddOptions: flag "no_password" no_password;
    AuthUserAddRequest: text "name" name, text "password" password, option "options" options;
    AuthUserGetRequest: text "name" name;
    AuthUserListRequest: ;
    AuthUserDeleteRequest: text "name" name;
    AuthUserChangePasswordRequest: text "name" name, text "password" password;
    AuthUserGrantRoleRequest: text "user" user, text "role" role;
    AuthUserRevokeRoleRequest: text "name" name, text "role" role;
    AuthRoleAddRequest: text "name" name;
    AuthRoleGetRequest: text "role" role;
    AuthRoleListRequest: ;
    AuthRoleDeleteRequest: text "role" role;
    Permission: one "permType" perm_type of PERMISSIONS, bytes "key" key,
        bytes "range_end" range_end;
    AuthRoleGrantPermissionRequest: text "name" name, option "perm" perm;
    AuthRoleRevokePermissionRequest: text "role" role, bytes "key" key, bytes "range_end" range_end;
}

impl Json for WatchCreateRequest {
    fn write(&self, object: &mut Object) {
        object.bytes("key", &self.key);
        object.bytes("range_end", &self.range_end);
        object.number("start_revision", self.start_revision);
        object.flag("progress_notify", self.progress_notify);
        if let [filter] = self.filters[..] {
            let name = ["NOPUT", "NODELETE"][usize::try_from(filter).unwrap()];
            object.field("filters", &format!("[\"{name}\"]"));
        }
        object.flag("prev_kv", self.prev_kv);
        object.number("watch_id", self.watch_id);
        object.flag("fragment", self.fragment);
    }
}

/// Methods whose paths in the gateway do not follow from their names.
const PATHS: &[(&str, &str)] = &[
    ("/etcdserverpb.KV/Compact", "/v3/kv/compaction"),
    ("/etcdserverpb.Lease/LeaseGrant", "/v3/lease/grant"),
    ("/etcdserverpb.Lease/LeaseRevoke", "/v3/lease/revoke"),
    (
        "/etcdserverpb.Lease/LeaseTimeToLive",
        "/v3/lease/timetolive",
    ),
    ("/etcdserverpb.Lease/LeaseLeases", "/v3/lease/leases"),
    ("/etcdserverpb.Lease/LeaseKeepAlive", "/v3/lease/keepalive"),
    ("/etcdserverpb.Cluster/MemberAdd", "/v3/cluster/member/add"),
    (
        "/etcdserverpb.Cluster/MemberRemove",
        "/v3/cluster/member/remove",
    ),
    (
        "/etcdserverpb.Cluster/MemberUpdate",
        "/v3/cluster/member/update",
    ),
    (
        "/etcdserverpb.Cluster/MemberList",
        "/v3/cluster/member/list",
    ),
    (
        "/etcdserverpb.Cluster/MemberPromote",
        "/v3/cluster/member/promote",
    ),
    (
        "/etcdserverpb.Maintenance/MoveLeader",
        "/v3/maintenance/transfer-leadership",
    ),
    ("/etcdserverpb.Auth/AuthEnable", "/v3/auth/enable"),
    ("/etcdserverpb.Auth/AuthDisable", "/v3/auth/disable"),
    ("/etcdserverpb.Auth/AuthStatus", "/v3/auth/status"),
    ("/etcdserverpb.Auth/UserAdd", "/v3/auth/user/add"),
    ("/etcdserverpb.Auth/UserGet", "/v3/auth/user/get"),
    ("/etcdserverpb.Auth/UserList", "/v3/auth/user/list"),
    ("/etcdserverpb.Auth/UserDelete", "/v3/auth/user/delete"),
    (
        "/etcdserverpb.Auth/UserChangePassword",
        "/v3/auth/user/changepw",
    ),
    ("/etcdserverpb.Auth/UserGrantRole", "/v3/auth/user/grant"),
    ("/etcdserverpb.Auth/UserRevokeRole", "/v3/auth/user/revoke"),
    ("/etcdserverpb.Auth/RoleAdd", "/v3/auth/role/add"),
    ("/etcdserverpb.Auth/RoleGet", "/v3/auth/role/get"),
    ("/etcdserverpb.Auth/RoleList", "/v3/auth/role/list"),
    ("/etcdserverpb.Auth/RoleDelete", "/v3/auth/role/delete"),
    (
        "/etcdserverpb.Auth/RoleGrantPermission",
        "/v3/auth/role/grant",
    ),
    (
        "/etcdserverpb.Auth/RoleRevokePermission",
        "/v3/auth/role/revoke",
    ),
];

/// The path of the gateway for one of gRPC.
pub(crate) fn path_in_json(path: &str) -> String {
    if let Some((_, named)) = PATHS.iter().find(|(grpc, _)| *grpc == path) {
        return (*named).to_owned();
    }
    let (service, method) = path.rsplit_once('/').unwrap();
    let (_, service) = service.rsplit_once('.').unwrap();
    format!("/v3/{service}/{method}").to_ascii_lowercase()
}
