//! The messages of etcd's v3 API that are used here, with the fields that are read or written.
//! Numbers are those of etcd's `rpc.proto`; what is not named is passed over when it arrives.

use bytes::Bytes;
use prost::Message;

/// Asked of `etcdserverpb.KV/Range`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bool, tag = "7")]
    pub(crate) serializable: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

/// Asked of `etcdserverpb.KV/Put`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct PutResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Asked of `etcdserverpb.Maintenance/Status`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub(crate) version: String,
    #[prost(uint64, tag = "4")]
    pub(crate) leader: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) raft_term: u64,
}

/// Asked of `etcdserverpb.Maintenance/MoveLeader`, at the leader.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct MoveLeaderRequest {
    #[prost(uint64, tag = "1")]
    pub(crate) target: u64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct MoveLeaderResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Asked of `etcdserverpb.Lease/LeaseGrant`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantRequest {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub(crate) ttl: i64,
    /// 0: the server chooses.
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseGrantResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

/// Asked of `etcdserverpb.Lease/LeaseRevoke`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseRevokeResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// Said on the stream of `etcdserverpb.Lease/LeaseKeepAlive`; each is answered, in order.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub(crate) id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) id: i64,
    /// Seconds; 0 or less: there is no such lease.
    #[prost(int64, tag = "3")]
    pub(crate) ttl: i64,
}

/// Said on the stream of `etcdserverpb.Watch/Watch`. Of the alternatives that it has, one is used.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) create: Option<WatchCreateRequest>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchCreateRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) start_revision: i64,
    /// Kinds of events that are left out; 0: puts, 1: deletes.
    #[prost(int32, repeated, tag = "5")]
    pub(crate) filters: Vec<i32>,
    /// Chosen by the client.
    #[prost(int64, tag = "7")]
    pub(crate) watch_id: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(int64, tag = "2")]
    pub(crate) watch_id: i64,
    #[prost(bool, tag = "3")]
    pub(crate) created: bool,
    #[prost(bool, tag = "4")]
    pub(crate) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(crate) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(crate) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(crate) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Event {
    /// 0: a put; 1: a delete.
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    pub(crate) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(int64, tag = "4")]
    pub(crate) version: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_look_on_the_wire_as_etcd_writes_them() {
        let range = RangeRequest {
            key: Bytes::from_static(b"k"),
            serializable: true,
        };
        assert_eq!(range.encode_to_vec(), [0x0a, 1, b'k', 0x38, 1]);
        let put = PutRequest {
            key: Bytes::from_static(b"k"),
            value: Bytes::from_static(b"v"),
            lease: 5,
        };
        assert_eq!(put.encode_to_vec(), [0x0a, 1, b'k', 0x12, 1, b'v', 0x18, 5]);
        let watch = WatchRequest {
            create: Some(WatchCreateRequest {
                key: Bytes::from_static(b"k"),
                start_revision: 9,
                watch_id: 2,
                ..WatchCreateRequest::default()
            }),
        };
        assert_eq!(
            watch.encode_to_vec(),
            [0x0a, 7, 0x0a, 1, b'k', 0x18, 9, 0x38, 2]
        );
        let deletes = WatchCreateRequest {
            filters: vec![0],
            ..WatchCreateRequest::default()
        };
        assert_eq!(deletes.encode_to_vec(), [0x2a, 1, 0]);
        let status = StatusResponse::decode(&[0x20, 5, 0x28, 9, 0x30, 3][..]).unwrap();
        assert_eq!((status.leader, status.raft_term), (5, 3));
        let target = MoveLeaderRequest { target: 3 };
        assert_eq!(target.encode_to_vec(), [0x08, 3]);
        // As etcd 3.5 answered: cluster 1, member 2, revision 7, term 3; one key; count 1.
        let answer = [
            0x0a, 8, 8, 1, 16, 2, 24, 7, 32, 3, //
            0x12, 12, 0x0a, 1, b'k', 16, 5, 24, 6, 32, 2, 0x2a, 1, b'v', //
            0x20, 1,
        ];
        let answer = RangeResponse::decode(&answer[..]).unwrap();
        assert_eq!(answer.header.unwrap().revision, 7);
        assert_eq!(answer.kvs[0].value, "v");
        assert_eq!(answer.kvs[0].mod_revision, 6);
    }
}
