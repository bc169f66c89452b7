//! Reads of one key, the shortest way.
//!
//! They are what a server is asked most, and the general way makes owned values of everything they
//! say, only to encode them again. Here a request is read where it lies in its frame, and a record
//! is kept encoded as replies hold it, so that a reply is a few numbers around a copy of it. The
//! bytes are those of [`ClientFrame`] and [`ServerFrame`], which tests compare: whoever is at the
//! other end cannot tell.
//!
//! [`ClientFrame`]: crate::wire::client::ClientFrame
//! [`ServerFrame`]: crate::wire::client::ServerFrame

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use bytes::BytesMut;
use serde::Deserialize;

use crate::api::Consistency;
use crate::api::KeyValue;
use crate::api::ResponseHeader;
use crate::api::SessionCall;
use crate::wire::Frame;
use crate::wire::FrameLimits;
use crate::wire::Kind;
use crate::wire::WireError;
use crate::wire::client::ServerFrame;
use crate::wire::codec::append_frame;

/// What is wanted of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The key and what it holds.
    All,
    /// All but the value.
    KeyOnly,
    /// Whether it exists.
    Count,
}

impl Wanted {
    /// As the flags of a [`RangeRequest`](crate::api::RangeRequest) say.
    pub fn of(keys_only: bool, count_only: bool) -> Self {
        match (keys_only, count_only) {
            (_, true) => Self::Count,
            (true, false) => Self::KeyOnly,
            (false, false) => Self::All,
        }
    }
}

/// A request for one key, as it lies in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointRead {
    /// Chosen by the client.
    pub request_id: u64,
    /// How fresh it must be.
    pub consistency: Consistency,
    /// What is wanted of the key.
    pub wanted: Wanted,
    key: Range<usize>,
}

impl PointRead {
    /// What `frame` asks for. `None` if that is anything else, or nothing sensible: decoding the
    /// whole frame tells which.
    pub fn of(frame: &Frame) -> Option<Self> {
        if frame.kind != Kind::Call {
            return None;
        }
        let (call, rest) = postcard::take_from_bytes::<PointCall<'_>>(&frame.body).ok()?;
        let PointRequest::Range(range) = call.request;
        if !rest.is_empty() {
            return None;
        }
        let start = range.key.as_ptr() as usize - frame.body.as_ptr() as usize;
        Some(Self {
            request_id: call.request_id,
            consistency: call.consistency,
            wanted: Wanted::of(range.keys_only, range.count_only),
            key: start..start + range.key.len(),
        })
    }

    /// The key, in the frame that this was made of.
    pub fn key<'a>(&self, frame: &'a Frame) -> &'a [u8] {
        &frame.body[self.key.clone()]
    }
}

/// The shape of a [`ClientFrame`](crate::wire::client::ClientFrame) that reads one key.
#[derive(Deserialize)]
struct PointCall<'a> {
    request_id: u64,
    // What a read has no use for.
    _timeout_ms: u32,
    consistency: Consistency,
    _session: Option<SessionCall>,
    #[serde(borrow)]
    request: PointRequest<'a>,
}

/// The first variant of [`Request`](crate::api::Request); the others do not decode.
#[derive(Deserialize)]
enum PointRequest<'a> {
    #[serde(borrow)]
    Range(PointRange<'a>),
}

#[derive(Deserialize)]
struct PointRange<'a> {
    #[serde(borrow)]
    key: &'a [u8],
    _range: SingleKey,
    /// One key is within any limit.
    _limit: u64,
    keys_only: bool,
    count_only: bool,
}

/// The first variant of [`KeyRange`](crate::api::KeyRange); the others do not decode.
#[derive(Deserialize)]
enum SingleKey {
    Single,
}

/// A key and what it holds, encoded as replies hold it. Cheap to clone; clones share one piece of
/// memory, which holds nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// The revision, then the encoded [`KeyValue`].
    bytes: Arc<[u8]>,
}

const REVISION_BYTES: usize = 8;

impl Record {
    /// Encodes `kv`.
    pub fn new(kv: &KeyValue) -> Self {
        let mut bytes = Vec::with_capacity(Self::bytes_max(kv.key.len(), kv.value.len()));
        bytes.extend_from_slice(&kv.mod_revision.to_le_bytes());
        let bytes = postcard::to_extend(kv, bytes).expect("a vector grows as it must");
        Self {
            bytes: bytes.into(),
        }
    }

    /// The most that a record takes in memory.
    pub fn bytes_max(key_bytes: usize, value_bytes: usize) -> usize {
        // Two lengths and four numbers.
        REVISION_BYTES + key_bytes + value_bytes + 2 * 10 + 4 * 10
    }

    /// Whether this is the record of `key`.
    pub fn is_of(&self, key: &[u8]) -> bool {
        let (mut length, mut rest) = (key.len(), self.encoded());
        // The key comes first, behind its length, seven bits a byte.
        loop {
            let [byte, after @ ..] = rest else {
                return false;
            };
            rest = after;
            let is_last = length < 0x80;
            let bits = (length & 0x7f) as u8;
            if *byte != if is_last { bits } else { bits | 0x80 } {
                return false;
            }
            if is_last {
                return rest.starts_with(key);
            }
            length >>= 7;
        }
    }

    /// The revision that last wrote the key.
    pub fn mod_revision(&self) -> i64 {
        let bytes = self.bytes.first_chunk();
        i64::from_le_bytes(*bytes.expect("every record begins with a revision"))
    }

    /// The key and what it holds, decoded.
    pub fn to_key_value(&self) -> KeyValue {
        postcard::from_bytes(self.encoded()).expect("what was encoded here can be decoded")
    }

    /// The same without the value.
    pub fn without_value(&self) -> Self {
        Self::new(&KeyValue {
            value: Bytes::new(),
            ..self.to_key_value()
        })
    }

    /// The encoded [`KeyValue`].
    pub fn encoded(&self) -> &[u8] {
        &self.bytes[REVISION_BYTES..]
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_key_value().fmt(f)
    }
}

/// A reply's header, encoded, for as many replies as it is the header of.
#[derive(Clone, Debug)]
pub struct EncodedHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: usize,
}

/// Eight numbers of up to ten bytes, two of up to five, and five bytes that say what is there.
const HEADER_BYTES_MAX: usize = 8 * 10 + 2 * 5 + 8;

impl EncodedHeader {
    /// Encodes `header`.
    pub fn new(header: &ResponseHeader) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = postcard::to_slice(header, &mut bytes)
            .expect("the longest header fits")
            .len();
        Self { bytes, length }
    }
}

/// The most bytes that a reply has around its record.
pub const POINT_REPLY_BYTES: usize = crate::wire::HEADER_BYTES + 10 + HEADER_BYTES_MAX + 5;

/// Appends the reply to a [`PointRead`] as one frame. `record` is what was found, if anything was,
/// and of it goes into the reply what is `wanted`.
///
/// # Errors
/// [`WireError::TooLong`]; `out` is then as it was.
pub fn encode_point_reply(
    request_id: u64,
    header: &EncodedHeader,
    record: Option<&Record>,
    wanted: Wanted,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    let count = u8::from(record.is_some());
    let bare;
    let sent = match wanted {
        Wanted::All => record,
        Wanted::KeyOnly => {
            bare = record.map(Record::without_value);
            bare.as_ref()
        }
        Wanted::Count => None,
    };
    let encoded = sent.map_or(&[][..], Record::encoded);
    let kvs = u8::from(sent.is_some());
    let mut number = [0; 10];
    let number = postcard::to_slice(&request_id, &mut number).expect("no number is longer");
    append_frame::<ServerFrame>(limits, out, |out| {
        out.reserve(POINT_REPLY_BYTES + encoded.len());
        out.extend_from_slice(number);
        out.extend_from_slice(&[OK]);
        out.extend_from_slice(&header.bytes[..header.length]);
        out.extend_from_slice(&[RANGE, kvs]);
        out.extend_from_slice(encoded);
        out.extend_from_slice(&[NO_MORE, count]);
        true
    })
}

// Numbers of variants, and of what is not there.
const OK: u8 = 0;
const RANGE: u8 = 0;
const NO_MORE: u8 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api;
    use crate::api::KeyRange;
    use crate::api::PutRequest;
    use crate::api::RangeRequest;
    use crate::api::RangeResponse;
    use crate::api::ReadInfo;
    use crate::api::ReadPath;
    use crate::api::Request;
    use crate::types::LogIndex;
    use crate::types::NodeId;
    use crate::types::SessionId;
    use crate::types::Term;
    use crate::wire::Door;
    use crate::wire::FrameReader;
    use crate::wire::client::ClientFrame;
    use crate::wire::encode;
    use std::time::Duration;

    const LIMITS: FrameLimits = FrameLimits::DEFAULT;

    fn keys() -> impl Strategy<Value = Bytes> {
        let length = prop_oneof![0usize..4, 126usize..130, 16_382usize..16_386];
        (length, any::<u8>()).prop_map(|(length, byte)| Bytes::from(vec![byte; length]))
    }

    fn numbers() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..300, any::<u64>(), Just(u64::MAX)]
    }

    fn revisions() -> impl Strategy<Value = i64> {
        prop_oneof![0i64..300, any::<i64>()]
    }

    fn ranges() -> impl Strategy<Value = Request> {
        let range = prop_oneof![
            4 => Just(KeyRange::Single),
            1 => Just(KeyRange::Prefix),
            1 => Just(KeyRange::From),
            1 => keys().prop_map(KeyRange::Until),
        ];
        let flag = || prop::bool::weighted(0.2);
        (keys(), range, numbers(), flag(), flag()).prop_map(
            |(key, range, limit, keys_only, count_only)| {
                Request::Range(RangeRequest {
                    key,
                    range,
                    limit,
                    keys_only,
                    count_only,
                })
            },
        )
    }

    fn requests() -> impl Strategy<Value = Request> {
        let put = (keys(), keys()).prop_map(|(key, value)| {
            Request::Put(PutRequest {
                key,
                value,
                prev_kv: false,
            })
        });
        prop_oneof![6 => ranges(), 1 => put, 1 => Just(Request::Status), 1 => Just(Request::OpenSession)]
    }

    fn calls() -> impl Strategy<Value = ClientFrame> {
        let consistency = prop_oneof![
            Just(Consistency::Linearizable),
            Just(Consistency::LinearizableQuorum),
            Just(Consistency::LeaseOnly),
            Just(Consistency::Serializable),
        ];
        let session = prop::option::of((numbers(), numbers(), numbers()).prop_map(
            |(id, sequence, acknowledged)| SessionCall {
                id: SessionId(id),
                sequence,
                acknowledged,
            },
        ));
        (numbers(), any::<u32>(), consistency, session, requests()).prop_map(
            |(request_id, timeout_ms, consistency, session, request)| ClientFrame {
                request_id,
                call: api::Call {
                    timeout_ms,
                    consistency,
                    session,
                    request,
                },
            },
        )
    }

    fn headers() -> impl Strategy<Value = ResponseHeader> {
        let path = prop_oneof![
            Just(ReadPath::Lease),
            Just(ReadPath::ReadIndex),
            Just(ReadPath::Serializable)
        ];
        let lengths = || (any::<u64>(), 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n));
        let read = (path, lengths(), lengths(), numbers(), numbers()).prop_map(
            |(path, lease_remaining, lease_margin, read_index, applied_index)| ReadInfo {
                path,
                lease_remaining,
                lease_margin,
                read_index: LogIndex(read_index),
                applied_index: LogIndex(applied_index),
            },
        );
        let leader = prop::option::of(numbers().prop_map(NodeId));
        (
            numbers(),
            numbers(),
            revisions(),
            numbers(),
            leader,
            prop::option::of(read),
        )
            .prop_map(
                |(cluster_id, member_id, revision, raft_term, leader_id, read)| ResponseHeader {
                    cluster_id,
                    member_id: NodeId(member_id),
                    revision,
                    raft_term: Term(raft_term),
                    leader_id,
                    read,
                },
            )
    }

    fn key_values() -> impl Strategy<Value = KeyValue> {
        (
            keys(),
            keys(),
            revisions(),
            revisions(),
            revisions(),
            revisions(),
        )
            .prop_map(
                |(key, value, create_revision, mod_revision, version, lease)| KeyValue {
                    key,
                    value,
                    create_revision,
                    mod_revision,
                    version,
                    lease,
                },
            )
    }

    fn framed(call: &ClientFrame) -> Frame {
        let mut out = BytesMut::new();
        encode(call, &LIMITS, &mut out).unwrap();
        let mut reader = FrameReader::new(Door::Server, LIMITS);
        reader.push(out.freeze());
        reader.next_frame().unwrap().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What is read in place is what decoding gives, and nothing is taken for a read of one key
        /// that is none.
        #[test]
        fn a_point_read_says_what_its_whole_frame_says(call in calls()) {
            let frame = framed(&call);
            let expected = match &call.call.request {
                Request::Range(range) if range.range == KeyRange::Single => {
                    let wanted = Wanted::of(range.keys_only, range.count_only);
                    Some((call.request_id, call.call.consistency, wanted, range.key.to_vec()))
                }
                _ => None,
            };
            let found = PointRead::of(&frame)
                .map(|read| (read.request_id, read.consistency, read.wanted, read.key(&frame).to_vec()));
            prop_assert_eq!(found, expected);
        }

        /// Cut or changed bytes are no point read unless they decode as a whole, to the same.
        #[test]
        fn no_bytes_are_a_point_read_that_do_not_decode(
            call in calls(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut frame = framed(&call);
            let mut body = frame.body.to_vec();
            let at = at.index(body.len());
            if cut {
                body.truncate(at);
            } else {
                body[at] = byte;
            }
            frame.body = body.into();
            if let Some(read) = PointRead::of(&frame) {
                let whole: ClientFrame = frame.decode().unwrap();
                prop_assert_eq!(read.request_id, whole.request_id);
                prop_assert_eq!(read.consistency, whole.call.consistency);
                let Request::Range(range) = whole.call.request else {
                    panic!("a point read is a range");
                };
                prop_assert_eq!(range.range, KeyRange::Single);
                prop_assert_eq!(read.key(&frame), &range.key[..]);
            }
        }

        /// A reply made of parts is, byte for byte, the one that is encoded as a whole.
        #[test]
        fn a_point_reply_is_the_reply_that_would_be_encoded(
            request_id in numbers(),
            header in headers(),
            kv in prop::option::of(key_values()),
            (keys_only, count_only) in any::<(bool, bool)>(),
        ) {
            let record = kv.as_ref().map(Record::new);
            let count = u64::from(kv.is_some());
            let kvs = kv.filter(|_| !count_only).map(|kv| match keys_only {
                true => KeyValue { value: Bytes::new(), ..kv },
                false => kv,
            });
            let kvs = kvs.into_iter().collect();
            let found = RangeResponse { kvs, more: false, count };
            let encoded_header = EncodedHeader::new(&header);
            let body = api::ResponseBody::Range(found);
            let whole = ServerFrame { request_id, result: Ok(api::Response { header, body }) };
            // Behind another frame, as in a batch.
            let (mut expected, mut parts) = (BytesMut::from("x"), BytesMut::from("x"));
            encode(&whole, &LIMITS, &mut expected).unwrap();
            let wanted = Wanted::of(keys_only, count_only);
            encode_point_reply(
                request_id,
                &encoded_header,
                record.as_ref(),
                wanted,
                &LIMITS,
                &mut parts,
            )
            .unwrap();
            let most = POINT_REPLY_BYTES + record.as_ref().map_or(0, |r| r.encoded().len());
            prop_assert!(parts.len() - 1 <= most);
            prop_assert_eq!(expected, parts);
        }

        #[test]
        fn a_record_knows_its_key_and_gives_back_what_it_was_made_of(
            kv in key_values(),
            other in keys(),
        ) {
            let record = Record::new(&kv);
            prop_assert!(record.is_of(&kv.key));
            prop_assert_eq!(record.is_of(&other), kv.key == other);
            prop_assert_eq!(record.mod_revision(), kv.mod_revision);
            prop_assert_eq!(record.to_key_value(), kv);
        }
    }

    #[test]
    fn a_reply_too_long_for_a_frame_is_refused_and_leaves_nothing_behind() {
        let limits = FrameLimits {
            reply_bytes_max: 100,
            ..LIMITS
        };
        let header = EncodedHeader::new(&ResponseHeader::default());
        let record = Record::new(&KeyValue {
            value: Bytes::from(vec![7; 100]),
            ..KeyValue::default()
        });
        let mut out = BytesMut::from("x");
        let record = Some(&record);
        let error = encode_point_reply(1, &header, record, Wanted::All, &limits, &mut out);
        let error = error.unwrap_err();
        assert!(matches!(error, WireError::TooLong { bytes_max: 100, .. }));
        assert_eq!(&out[..], b"x");
    }
}
