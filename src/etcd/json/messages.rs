//! The messages of etcd's services: those that are served, and those that are not yet.

#![expect(
    non_upper_case_globals,
    reason = "messages are called as in etcd's `.proto` files"
)]

use super::schema::{Field, Type};

static Bool: Type = Type::Bool;
static Bytes: Type = Type::Bytes;
static Int64: Type = Type::Int64;
static Text: Type = Type::Text;
static Uint32: Type = Type::Uint32;
static Uint64: Type = Type::Uint64;

macro_rules! enums {
    ($($Name:ident: $($value:ident)*;)*) => {
        $(static $Name: Type = Type::Enum(&[$(stringify!($value)),*]);)*
    };
}

enums! {
    AlarmAction: GET ACTIVATE DEACTIVATE;
    AlarmType: NONE NOSPACE CORRUPT;
    CompareResult: EQUAL GREATER LESS NOT_EQUAL;
    CompareTarget: VERSION CREATE MOD VALUE LEASE;
    DowngradeAction: VALIDATE ENABLE CANCEL;
    EventType: PUT DELETE;
    PermissionType: READ WRITE READWRITE;
    SortOrder: NONE ASCEND DESCEND;
    SortTarget: KEY VERSION CREATE MOD VALUE;
    WatchFilter: NOPUT NODELETE;
}

/// Fields in the order of their numbers; a list is in brackets.
macro_rules! messages {
    ($($Name:ident: $($number:literal $field:ident $of:tt)*;)*) => {
        $(pub(super) static $Name: Type = Type::Message {
            name: stringify!($Name),
            fields: &[$(field!($number $field $of)),*],
        };)*

        #[cfg(test)]
        pub(super) static ALL: &[&Type] = &[$(&$Name),*];
    };
}

macro_rules! field {
    ($number:literal $field:ident [$of:ident]) => {
        Field {
            number: $number,
            name: stringify!($field),
            of: &$of,
            is_list: true,
        }
    };
    ($number:literal $field:ident $of:ident) => {
        Field {
            number: $number,
            name: stringify!($field),
            of: &$of,
            is_list: false,
        }
    };
}

messages! {
    ResponseHeader: 1 cluster_id Uint64 2 member_id Uint64 3 revision Int64 4 raft_term Uint64;
    // What many answers are.
    HeaderOnly: 1 header ResponseHeader;
    Empty: ;

    KeyValue:
        1 key Bytes 2 create_revision Int64 3 mod_revision Int64 4 version Int64 5 value Bytes
        6 lease Int64;
    RangeRequest:
        1 key Bytes 2 range_end Bytes 3 limit Int64 4 revision Int64 5 sort_order SortOrder
        6 sort_target SortTarget 7 serializable Bool 8 keys_only Bool 9 count_only Bool
        10 min_mod_revision Int64 11 max_mod_revision Int64 12 min_create_revision Int64
        13 max_create_revision Int64;
    RangeResponse: 1 header ResponseHeader 2 kvs [KeyValue] 3 more Bool 4 count Int64;
    PutRequest:
        1 key Bytes 2 value Bytes 3 lease Int64 4 prev_kv Bool 5 ignore_value Bool
        6 ignore_lease Bool;
    PutResponse: 1 header ResponseHeader 2 prev_kv KeyValue;
    DeleteRangeRequest: 1 key Bytes 2 range_end Bytes 3 prev_kv Bool;
    DeleteRangeResponse: 1 header ResponseHeader 2 deleted Int64 3 prev_kvs [KeyValue];
    RequestOp:
        1 request_range RangeRequest 2 request_put PutRequest
        3 request_delete_range DeleteRangeRequest 4 request_txn TxnRequest;
    ResponseOp:
        1 response_range RangeResponse 2 response_put PutResponse
        3 response_delete_range DeleteRangeResponse 4 response_txn TxnResponse;
    Compare:
        1 result CompareResult 2 target CompareTarget 3 key Bytes 4 version Int64
        5 create_revision Int64 6 mod_revision Int64 7 value Bytes 8 lease Int64
        64 range_end Bytes;
    TxnRequest: 1 compare [Compare] 2 success [RequestOp] 3 failure [RequestOp];
    TxnResponse: 1 header ResponseHeader 2 succeeded Bool 3 responses [ResponseOp];
    CompactionRequest: 1 revision Int64 2 physical Bool;

    WatchRequest:
        1 create_request WatchCreateRequest 2 cancel_request WatchCancelRequest
        3 progress_request Empty;
    WatchCreateRequest:
        1 key Bytes 2 range_end Bytes 3 start_revision Int64 4 progress_notify Bool
        5 filters [WatchFilter] 6 prev_kv Bool 7 watch_id Int64 8 fragment Bool;
    WatchCancelRequest: 1 watch_id Int64;
    WatchResponse:
        1 header ResponseHeader 2 watch_id Int64 3 created Bool 4 canceled Bool
        5 compact_revision Int64 6 cancel_reason Text 7 fragment Bool 11 events [Event];
    Event: 1 type EventType 2 kv KeyValue 3 prev_kv KeyValue;

    LeaseGrantRequest: 1 TTL Int64 2 ID Int64;
    LeaseGrantResponse: 1 header ResponseHeader 2 ID Int64 3 TTL Int64 4 error Text;
    LeaseRevokeRequest: 1 ID Int64;
    LeaseKeepAliveRequest: 1 ID Int64;
    LeaseKeepAliveResponse: 1 header ResponseHeader 2 ID Int64 3 TTL Int64;
    LeaseTimeToLiveRequest: 1 ID Int64 2 keys Bool;
    LeaseTimeToLiveResponse:
        1 header ResponseHeader 2 ID Int64 3 TTL Int64 4 grantedTTL Int64 5 keys [Bytes];
    LeaseLeasesResponse: 1 header ResponseHeader 2 leases [LeaseStatus];
    LeaseStatus: 1 ID Int64;

    Member: 1 ID Uint64 2 name Text 3 peerURLs [Text] 4 clientURLs [Text] 5 isLearner Bool;
    MemberAddRequest: 1 peerURLs [Text] 2 isLearner Bool;
    MemberAddResponse: 1 header ResponseHeader 2 member Member 3 members [Member];
    MemberRequest: 1 ID Uint64;
    MemberUpdateRequest: 1 ID Uint64 2 peerURLs [Text];
    MemberListRequest: 1 linearizable Bool;
    MembersResponse: 1 header ResponseHeader 2 members [Member];

    AlarmRequest: 1 action AlarmAction 2 memberID Uint64 3 alarm AlarmType;
    AlarmResponse: 1 header ResponseHeader 2 alarms [AlarmMember];
    AlarmMember: 1 memberID Uint64 2 alarm AlarmType;
    StatusResponse:
        1 header ResponseHeader 2 version Text 3 dbSize Int64 4 leader Uint64 5 raftIndex Uint64
        6 raftTerm Uint64 7 raftAppliedIndex Uint64 8 errors [Text] 9 dbSizeInUse Int64
        10 isLearner Bool 11 storageVersion Text 12 dbSizeQuota Int64
        13 downgradeInfo DowngradeInfo;
    DowngradeInfo: 1 enabled Bool 2 targetVersion Text;
    HashResponse: 1 header ResponseHeader 2 hash Uint32;
    HashKVRequest: 1 revision Int64;
    HashKVResponse:
        1 header ResponseHeader 2 hash Uint32 3 compact_revision Int64 4 hash_revision Int64;
    SnapshotResponse:
        1 header ResponseHeader 2 remaining_bytes Uint64 3 blob Bytes 4 version Text;
    MoveLeaderRequest: 1 targetID Uint64;
    DowngradeRequest: 1 action DowngradeAction 2 version Text;
    DowngradeResponse: 1 header ResponseHeader 2 version Text;

    AuthStatusResponse: 1 header ResponseHeader 2 enabled Bool 3 authRevision Uint64;
    AuthenticateRequest: 1 name Text 2 password Text;
    AuthenticateResponse: 1 header ResponseHeader 2 token Text;
    UserAddOptions: 1 no_password Bool;
    AuthUserAddRequest: 1 name Text 2 password Text 3 options UserAddOptions 4 hashedPassword Text;
    AuthNameRequest: 1 name Text;
    AuthUserGetResponse: 1 header ResponseHeader 2 roles [Text];
    AuthUserListResponse: 1 header ResponseHeader 2 users [Text];
    AuthUserChangePasswordRequest: 1 name Text 2 password Text 3 hashedPassword Text;
    AuthUserGrantRoleRequest: 1 user Text 2 role Text;
    AuthUserRevokeRoleRequest: 1 name Text 2 role Text;
    AuthRoleRequest: 1 role Text;
    AuthRoleGetResponse: 1 header ResponseHeader 2 perm [Permission];
    AuthRoleListResponse: 1 header ResponseHeader 2 roles [Text];
    Permission: 1 permType PermissionType 2 key Bytes 3 range_end Bytes;
    AuthRoleGrantPermissionRequest: 1 name Text 2 perm Permission;
    AuthRoleRevokePermissionRequest: 1 role Text 2 key Bytes 3 range_end Bytes;

    LockRequest: 1 name Bytes 2 lease Int64;
    LockResponse: 1 header ResponseHeader 2 key Bytes;
    UnlockRequest: 1 key Bytes;
    LeaderKey: 1 name Bytes 2 key Bytes 3 rev Int64 4 lease Int64;
    CampaignRequest: 1 name Bytes 2 lease Int64 3 value Bytes;
    CampaignResponse: 1 header ResponseHeader 2 leader LeaderKey;
    ProclaimRequest: 1 leader LeaderKey 2 value Bytes;
    LeaderRequest: 1 name Bytes;
    LeaderResponse: 1 header ResponseHeader 2 kv KeyValue;
    ResignRequest: 1 leader LeaderKey;
}
