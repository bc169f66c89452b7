//! Reads of one key, the shortest way.
//!
//! They are what a server is asked most, and the general way makes owned values of everything they
//! say, only to encode them again. Here a request is read where it lies in its frame, and a record
//! is kept encoded as replies hold it, so that a reply is a few numbers around a copy of it; and the
//! client's side likewise. The bytes are those of [`ClientFrame`] and [`ServerFrame`], which tests
//! compare, and any other form is left to them: the other end sees no difference.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::api::{Consistency, KeyValue, ReadInfo, ReadPath, ResponseHeader};
use crate::types::{LogIndex, NodeId, Term};
use crate::wire::client::{ClientFrame, ServerFrame};
use crate::wire::codec::append_frame;
use crate::wire::{Frame, FrameLimits, Kind, RequestContext, WireError};

/// What is wanted of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// The key and what it holds.
    All,
    /// All but the value.
    KeyOnly,
    /// Whether it exists.
    Count,
}

impl Projection {
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
    /// The least revision it may be served at.
    pub min_revision: i64,
    /// What is wanted of the key.
    pub wanted: Projection,
    key: Range<usize>,
}

impl PointRead {
    /// What `frame` asks for. `None` if that is anything else, or nothing sensible, or said in an
    /// unusual way: decoding the whole frame tells which.
    pub fn of(frame: &Frame) -> Option<Self> {
        let mut body = Cursor::new(&frame.body);
        if frame.kind != Kind::Call {
            body.at = RequestContext::before(frame)?.1;
        }
        let request_id = body.number()?;
        let _timeout_ms = body.short_number()?;
        let consistency = match body.short_number()? {
            LINEARIZABLE => Consistency::Linearizable,
            LINEARIZABLE_QUORUM => Consistency::LinearizableQuorum,
            LEASE_ONLY => Consistency::LeaseOnly,
            SERIALIZABLE => Consistency::Serializable,
            MAX_STALENESS => Consistency::MaxStaleness(body.duration()?),
            _ => return None,
        };
        let min_revision = body.signed()?;
        // No session, a range, and a key.
        body.expect(&[NONE, RANGE])?;
        let length = usize::try_from(body.number()?).ok()?;
        let start = body.at;
        body.skip(length)?;
        body.expect(&[SINGLE])?;
        let _limit = body.number()?;
        let (keys_only, count_only) = (body.flag()?, body.flag()?);
        // At the current revision, in whatever order, with no bounds on revisions.
        body.expect(&[0])?;
        let (_target, _order) = (body.choice(SORT_TARGETS)?, body.choice(SORT_ORDERS)?);
        body.expect(&[0, 0, 0, 0])?;
        body.end()?;
        Some(Self {
            request_id,
            consistency,
            min_revision,
            wanted: Projection::of(keys_only, count_only),
            key: start..start + length,
        })
    }

    /// The key, in the frame that this was made of.
    pub fn key<'a>(&self, frame: &'a Frame) -> &'a [u8] {
        &frame.body[self.key.clone()]
    }
}

/// A request for one key, to be sent.
#[derive(Clone, Copy, Debug)]
pub struct PointCall<'a> {
    /// How long the caller waits, in milliseconds.
    pub timeout_ms: u32,
    /// How fresh it must be.
    pub consistency: Consistency,
    /// The least revision it may be served at.
    pub min_revision: i64,
    /// The key.
    pub key: &'a [u8],
    /// What is wanted of it.
    pub wanted: Projection,
    /// The caller's own limit, which one key is within.
    pub limit: u64,
}

/// Appends a [`PointCall`] as one frame.
///
/// # Errors
/// [`WireError::TooLong`]; `out` is then as it was.
pub fn encode_point_call(
    request_id: u64,
    call: &PointCall<'_>,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    let mut front = Small::<80>::default();
    front.number(request_id);
    front.number(call.timeout_ms.into());
    match call.consistency {
        Consistency::Linearizable => front.number(LINEARIZABLE.into()),
        Consistency::LinearizableQuorum => front.number(LINEARIZABLE_QUORUM.into()),
        Consistency::LeaseOnly => front.number(LEASE_ONLY.into()),
        Consistency::Serializable => front.number(SERIALIZABLE.into()),
        Consistency::MaxStaleness(most) => {
            front.number(MAX_STALENESS.into());
            front.number(most.as_secs());
            front.number(most.subsec_nanos().into());
        }
    }
    front.signed(call.min_revision);
    front.bytes(&[NONE, RANGE]);
    front.number(call.key.len() as u64);
    let mut back = Small::<24>::default();
    back.bytes(&[SINGLE]);
    back.number(call.limit);
    let keys_only = call.wanted == Projection::KeyOnly;
    let count_only = call.wanted == Projection::Count;
    back.bytes(&[keys_only.into(), count_only.into()]);
    back.bytes(&[0; 7]);
    append_frame::<ClientFrame>(limits, out, |out| {
        out.reserve(front.length + call.key.len() + back.length);
        out.extend_from_slice(front.written());
        out.extend_from_slice(call.key);
        out.extend_from_slice(back.written());
        true
    })
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

/// Ten numbers of up to ten bytes, three of up to five, and some bytes that say what is there.
const HEADER_BYTES_MAX: usize = 10 * 10 + 3 * 5 + 8;

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
    wanted: Projection,
    limits: &FrameLimits,
    out: &mut BytesMut,
) -> Result<(), WireError> {
    let count = u8::from(record.is_some());
    let bare;
    let sent = match wanted {
        Projection::All => record,
        Projection::KeyOnly => {
            bare = record.map(Record::without_value);
            bare.as_ref()
        }
        Projection::Count => None,
    };
    let encoded = sent.map_or(&[][..], Record::encoded);
    let kvs = u8::from(sent.is_some());
    let mut front = Small::<11>::default();
    front.number(request_id);
    front.bytes(&[OK]);
    append_frame::<ServerFrame>(limits, out, |out| {
        out.reserve(POINT_REPLY_BYTES + encoded.len());
        out.extend_from_slice(front.written());
        out.extend_from_slice(&header.bytes[..header.length]);
        out.extend_from_slice(&[RANGE, kvs]);
        out.extend_from_slice(encoded);
        out.extend_from_slice(&[NO_MORE, count]);
        true
    })
}

/// The number of the request that a reply answers; it stands first in every reply.
pub fn answered_request(frame: &Frame) -> Option<u64> {
    Cursor::new(&frame.body).number()
}

/// A successful reply to a request for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PointReply {
    /// Who answered, and how.
    pub header: ResponseHeader,
    /// What was found, if it was wanted.
    pub kv: Option<KeyValue>,
    /// How many keys were found: one or none.
    pub count: u64,
}

impl PointReply {
    /// What `frame` says. `None` if that is anything else, an error for one, or nothing sensible:
    /// decoding the whole frame tells which.
    pub fn of(frame: &Frame) -> Option<Self> {
        if frame.kind != Kind::Reply {
            return None;
        }
        let mut body = Cursor::new(&frame.body);
        let _request_id = body.number()?;
        body.expect(&[OK])?;
        let header = ResponseHeader {
            cluster_id: body.number()?,
            member_id: NodeId(body.number()?),
            revision: body.signed()?,
            raft_term: Term(body.number()?),
            leader_id: match body.flag()? {
                true => Some(NodeId(body.number()?)),
                false => None,
            },
            read: match body.flag()? {
                true => Some(body.read_info()?),
                false => None,
            },
        };
        body.expect(&[RANGE])?;
        let kv = match body.flag()? {
            true => Some(KeyValue {
                key: body.copied()?,
                value: body.copied()?,
                create_revision: body.signed()?,
                mod_revision: body.signed()?,
                version: body.signed()?,
                lease: body.signed()?,
            }),
            false => None,
        };
        body.expect(&[NO_MORE])?;
        let count = body.number()?;
        body.end()?;
        Some(Self { header, kv, count })
    }
}

/// Reads what postcard has written. Each step is `None` if something else stands there.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// Seven bits a byte, the lowest first.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(first.into());
        }
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && byte > 1 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// One of 32 bits, which takes five bytes at most: more are refused, whatever they say.
    #[inline]
    fn short_number(&mut self) -> Option<u32> {
        let start = self.at;
        let number = u32::try_from(self.number()?).ok()?;
        (self.at - start <= 5).then_some(number)
    }

    /// Small ones of either sign are short: 0, -1, 1, -2 and so on.
    #[inline]
    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -((number & 1).cast_signed()))
    }

    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// The number of one of `variants`, which fits a byte.
    fn choice(&mut self, variants: u8) -> Option<u8> {
        self.byte().filter(|choice| *choice < variants)
    }

    fn duration(&mut self) -> Option<Duration> {
        let seconds = self.number()?;
        let nanos = self.short_number()?;
        (nanos < 1_000_000_000).then(|| Duration::new(seconds, nanos))
    }

    fn read_info(&mut self) -> Option<ReadInfo> {
        Some(ReadInfo {
            path: match self.byte()? {
                0 => ReadPath::Lease,
                1 => ReadPath::ReadIndex,
                2 => ReadPath::Serializable,
                3 => ReadPath::Follower,
                4 => ReadPath::ReadLease,
                _ => return None,
            },
            lease_remaining: self.duration()?,
            lease_margin: self.duration()?,
            read_index: LogIndex(self.number()?),
            applied_index: LogIndex(self.number()?),
            staleness: match self.flag()? {
                true => Some(self.duration()?),
                false => None,
            },
        })
    }

    fn skip(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(length)?;
        let skipped = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(skipped)
    }

    fn copied(&mut self) -> Option<Bytes> {
        let length = usize::try_from(self.number()?).ok()?;
        self.skip(length).map(Bytes::copy_from_slice)
    }

    fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        (self.skip(bytes.len())? == bytes).then_some(())
    }

    fn end(&self) -> Option<()> {
        (self.at == self.bytes.len()).then_some(())
    }
}

/// A few bytes, written as postcard would; `N` must be enough for all of them.
struct Small<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Small<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }
}

impl<const N: usize> Small<N> {
    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }

    #[inline]
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes[self.length] = (number & 0x7f) as u8 | 0x80;
            self.length += 1;
            number >>= 7;
        }
        self.bytes[self.length] = number as u8;
        self.length += 1;
    }

    fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)).cast_unsigned());
    }

    fn written(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

// Numbers of variants, and of what is not there.
const OK: u8 = 0;
const NONE: u8 = 0;
const RANGE: u8 = 0;
const SINGLE: u8 = 0;
const NO_MORE: u8 = 0;
const LINEARIZABLE: u32 = 0;
const LINEARIZABLE_QUORUM: u32 = 1;
const LEASE_ONLY: u32 = 2;
const SERIALIZABLE: u32 = 3;
const MAX_STALENESS: u32 = 4;
// How many there are.
const SORT_TARGETS: u8 = 5;
const SORT_ORDERS: u8 = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::api;
    use crate::api::{
        KeyRange, PutRequest, RangeCount, RangeRequest, RangeResponse, Request, SessionCall,
        SortOrder, SortTarget,
    };
    use crate::types::SessionId;
    use crate::wire::{Door, FrameReader, encode};

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
        let revision = || prop_oneof![12 => Just(0), 1 => revisions()];
        let sort = prop_oneof![
            Just((SortTarget::Key, SortOrder::None)),
            Just((SortTarget::Value, SortOrder::Descend)),
        ];
        let filters = (revision(), revision(), revision(), revision(), revision());
        let count = prop_oneof![
            8 => Just(RangeCount::All),
            2 => Just(RangeCount::Only),
            1 => Just(RangeCount::ToLimit),
        ];
        (keys(), range, numbers(), flag(), count, sort, filters).prop_map(
            |(key, range, limit, keys_only, count, sort, filters)| {
                Request::Range(RangeRequest {
                    key,
                    range,
                    limit,
                    keys_only,
                    count,
                    revision: filters.0,
                    sort_target: sort.0,
                    sort_order: sort.1,
                    min_mod_revision: filters.1,
                    max_mod_revision: filters.2,
                    min_create_revision: filters.3,
                    max_create_revision: filters.4,
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
                ..PutRequest::default()
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
            any::<u32>().prop_map(|n| Consistency::MaxStaleness(Duration::from_nanos(n.into()))),
        ];
        let session = prop::option::of((numbers(), numbers(), numbers()).prop_map(
            |(id, sequence, acknowledged)| SessionCall {
                id: SessionId(id),
                sequence,
                acknowledged,
            },
        ));
        let numbers = (numbers(), any::<u32>(), revisions());
        (numbers, consistency, session, requests()).prop_map(
            |((request_id, timeout_ms, min_revision), consistency, session, request)| ClientFrame {
                request_id,
                call: api::Call {
                    timeout_ms,
                    consistency,
                    min_revision,
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
            Just(ReadPath::Serializable),
            Just(ReadPath::Follower),
            Just(ReadPath::ReadLease),
        ];
        let lengths = || (any::<u64>(), 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n));
        let staleness = prop::option::of(lengths());
        let read = (path, lengths(), lengths(), numbers(), numbers(), staleness).prop_map(
            |(path, lease_remaining, lease_margin, read_index, applied_index, staleness)| {
                ReadInfo {
                    path,
                    lease_remaining,
                    lease_margin,
                    read_index: LogIndex(read_index),
                    applied_index: LogIndex(applied_index),
                    staleness,
                }
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

    /// Whatever is a point read of `body` decodes as a whole, to the same.
    fn check_body(body: Vec<u8>) {
        let frame = Frame {
            kind: Kind::Call,
            version: 1,
            body: body.into(),
        };
        let Some(read) = PointRead::of(&frame) else {
            return;
        };
        let whole: ClientFrame = frame
            .decode()
            .unwrap_or_else(|error| panic!("{:02x?}: {error}", &frame.body[..]));
        assert_eq!(read.request_id, whole.request_id);
        assert_eq!(read.consistency, whole.call.consistency);
        assert_eq!(read.min_revision, whole.call.min_revision);
        let Request::Range(range) = whole.call.request else {
            panic!("a point read is a range");
        };
        assert!(range.is_point());
        assert_eq!(read.key(&frame), &range.key[..]);
    }

    /// Numbers of 32 bits that claim more, and numbers that are longer than they need be, are where
    /// two readers of the same bytes differ soonest.
    #[test]
    fn no_byte_of_a_point_read_can_be_changed_into_what_does_not_decode() {
        for consistency in [
            Consistency::Linearizable,
            Consistency::MaxStaleness(Duration::new(u64::MAX, 999_999_999)),
        ] {
            let call = ClientFrame {
                request_id: u64::MAX,
                call: api::Call {
                    timeout_ms: u32::MAX,
                    consistency,
                    min_revision: i64::MIN,
                    session: None,
                    request: Request::Range(RangeRequest {
                        key: Bytes::from_static(b"key"),
                        limit: u64::MAX,
                        ..RangeRequest::default()
                    }),
                },
            };
            let body = framed(&call).body.to_vec();
            assert!(PointRead::of(&framed(&call)).is_some());
            for at in 0..body.len() {
                for byte in 0..=u8::MAX {
                    let mut changed = body.clone();
                    changed[at] = byte;
                    check_body(changed);
                }
                // The number that ends here, made longer without being made larger.
                for more in 1..=6 {
                    let mut longer = body.clone();
                    longer[at] |= 0x80;
                    let zeros = (1..=more).map(|n| if n < more { 0x80 } else { 0 });
                    longer.splice(at + 1..at + 1, zeros);
                    check_body(longer);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// What is read in place is what decoding gives, and nothing is taken for a read of one key
        /// that is none.
        #[test]
        fn a_point_read_says_what_its_whole_frame_says(call in calls()) {
            let frame = framed(&call);
            let found = PointRead::of(&frame);
            let Request::Range(range) = call.call.request else {
                prop_assert_eq!(found, None);
                return Ok(());
            };
            let is_plain = range.is_point()
                && range.count != RangeCount::ToLimit
                && call.call.session.is_none();
            prop_assert_eq!(found.is_some(), is_plain);
            if let Some(read) = found {
                prop_assert_eq!(read.request_id, call.request_id);
                prop_assert_eq!(read.consistency, call.call.consistency);
                prop_assert_eq!(read.min_revision, call.call.min_revision);
                prop_assert_eq!(read.wanted, Projection::of(range.keys_only, range.is_count_only()));
                prop_assert_eq!(read.key(&frame), &range.key[..]);
            }
        }

        /// Cut or changed bytes are no point read unless they decode as a whole, to the same.
        #[test]
        fn no_bytes_are_a_point_read_that_do_not_decode(
            call in calls(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<bool>(),
        ) {
            let mut body = framed(&call).body.to_vec();
            let at = at.index(body.len());
            if cut {
                body.truncate(at);
            } else {
                body[at] = byte;
            }
            check_body(body);
        }

        /// A request made of parts is, byte for byte, the one that is encoded as a whole.
        #[test]
        fn a_point_call_is_the_call_that_would_be_encoded(call in calls()) {
            let Request::Range(range) = &call.call.request else {
                return Ok(());
            };
            let range = RangeRequest {
                key: range.key.clone(),
                limit: range.limit,
                keys_only: range.keys_only,
                count: match range.is_count_only() && !range.keys_only {
                    true => RangeCount::Only,
                    false => RangeCount::All,
                },
                ..RangeRequest::default()
            };
            let point = PointCall {
                timeout_ms: call.call.timeout_ms,
                consistency: call.call.consistency,
                min_revision: call.call.min_revision,
                key: &range.key,
                wanted: Projection::of(range.keys_only, range.is_count_only()),
                limit: range.limit,
            };
            let whole = ClientFrame {
                request_id: call.request_id,
                call: api::Call {
                    session: None,
                    request: Request::Range(range.clone()),
                    ..call.call.clone()
                },
            };
            let (mut expected, mut parts) = (BytesMut::from("x"), BytesMut::from("x"));
            encode(&whole, &LIMITS, &mut expected).unwrap();
            encode_point_call(call.request_id, &point, &LIMITS, &mut parts).unwrap();
            prop_assert_eq!(expected, parts);
        }

        /// What is read of a reply is what decoding gives, and nothing is taken for a reply to a
        /// read of one key that is none.
        #[test]
        fn a_point_reply_says_what_its_whole_frame_says(
            request_id in numbers(),
            header in headers(),
            kvs in prop::collection::vec(key_values(), 0..3),
            (more, is_error) in any::<(bool, bool)>(),
            change in prop::option::of((any::<prop::sample::Index>(), any::<u8>(), any::<bool>())),
        ) {
            let count = kvs.len() as u64;
            let found = RangeResponse { kvs, more, count };
            let body = api::ResponseBody::Range(found);
            let result = match is_error {
                true => Err(api::Error::not_applied(api::ErrorKind::NoLeader, "none")),
                false => Ok(api::Response { header, body }),
            };
            let whole = ServerFrame { request_id, result };
            let mut frame = Frame {
                kind: Kind::Reply,
                version: 1,
                body: postcard::to_stdvec(&whole).unwrap().into(),
            };
            prop_assert_eq!(answered_request(&frame), Some(request_id));
            let is_plain = !is_error && !more && count < 2;
            if let Some((at, byte, cut)) = change {
                let mut body = frame.body.to_vec();
                let at = at.index(body.len());
                if cut {
                    body.truncate(at);
                } else {
                    body[at] = byte;
                }
                frame.body = body.into();
            } else {
                prop_assert_eq!(PointReply::of(&frame).is_some(), is_plain);
            }
            if let Some(reply) = PointReply::of(&frame) {
                let whole: ServerFrame = frame.decode().unwrap();
                prop_assert_eq!(answered_request(&frame), Some(whole.request_id));
                let response = whole.result.unwrap();
                prop_assert_eq!(response.header, reply.header);
                let expected = RangeResponse {
                    kvs: reply.kv.into_iter().collect(),
                    more: false,
                    count: reply.count,
                };
                prop_assert_eq!(response.body, api::ResponseBody::Range(expected));
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
            let wanted = Projection::of(keys_only, count_only);
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
        let error = encode_point_reply(1, &header, record, Projection::All, &limits, &mut out);
        let error = error.unwrap_err();
        assert!(matches!(error, WireError::TooLong { bytes_max: 100, .. }));
        assert_eq!(&out[..], b"x");
    }
}
