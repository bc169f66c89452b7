use bytes::Bytes;
use proptest::prelude::*;
use prost::Message;

use super::messages;
use super::messages::ALL;
use super::schema::Type;
use super::*;
use crate::etcd::proto;
use crate::etcd::proto::{
    Compare, CompareUnion, PutRequest, RangeRequest, RequestOp, RequestUnion, TxnRequest,
};

fn method(path: &str) -> &'static Method {
    Method::at(path).unwrap()
}

/// What a request at `path` means.
fn read<M: Message + Default>(path: &str, text: &str) -> Result<M, String> {
    let encoded = to_protobuf(text.as_bytes(), method(path).request)?;
    Ok(M::decode(&encoded[..]).unwrap())
}

fn range(text: &str) -> Result<RangeRequest, String> {
    read("/v3/kv/range", text)
}

fn text(message: &impl Message, of: &'static Type) -> String {
    let mut text = String::new();
    let mut writer = Writer::begin(of, &mut text);
    let encoded = message.encode_to_vec();
    assert_eq!(writer.add(&encoded, &mut text), encoded.len());
    writer.end(&mut text);
    text
}

fn kv(key: &'static str, value: &'static str) -> proto::KeyValue {
    proto::KeyValue {
        key: key.into(),
        create_revision: 2,
        mod_revision: i64::MAX,
        version: 1,
        value: value.into(),
        lease: 0,
    }
}

#[test]
fn answers_have_proto_names_in_the_order_of_numbers_and_no_defaults() {
    let answer = proto::RangeResponse {
        header: Some(proto::ResponseHeader {
            cluster_id: u64::MAX,
            member_id: 0,
            revision: -3,
            raft_term: 4,
        }),
        kvs: vec![kv("a", ""), kv("b", "\u{ff}?>")],
        more: true,
        count: 0,
    };
    let answer = text(&answer, method("/v3/kv/range").answer);
    assert_eq!(
        answer,
        r#"{"header":{"cluster_id":"18446744073709551615","revision":"-3","raft_term":"4"},"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"9223372036854775807","version":"1"},{"key":"Yg==","create_revision":"2","mod_revision":"9223372036854775807","version":"1","value":"w78/Pg=="}],"more":true}"#
    );
    let empty = text(
        &proto::RangeResponse::default(),
        method("/v3/kv/range").answer,
    );
    assert_eq!(empty, "{}");
    let hash = proto::HashKvResponse {
        hash: u32::MAX,
        compact_revision: -1,
        ..proto::HashKvResponse::default()
    };
    let hash = text(&hash, method("/v3/maintenance/hashkv").answer);
    assert_eq!(hash, r#"{"hash":4294967295,"compact_revision":"-1"}"#);
    let alarms = proto::AlarmResponse {
        header: Some(proto::ResponseHeader::default()),
        alarms: vec![proto::AlarmMember {
            member_id: 0,
            alarm: 1,
        }],
    };
    let alarms = text(&alarms, method("/v3/maintenance/alarm").answer);
    assert_eq!(alarms, r#"{"header":{},"alarms":[{"alarm":"NOSPACE"}]}"#);
}

#[test]
fn unions_are_flat_and_an_unknown_enum_is_a_number() {
    let answer = proto::TxnResponse {
        header: None,
        succeeded: true,
        responses: vec![
            proto::ResponseOp {
                response: Some(proto::ResponseUnion::ResponsePut(
                    proto::PutResponse::default(),
                )),
            },
            proto::ResponseOp::default(),
        ],
    };
    let answer = text(&answer, method("/v3/kv/txn").answer);
    assert_eq!(
        answer,
        r#"{"succeeded":true,"responses":[{"response_put":{}},{}]}"#
    );
    let event = proto::Event {
        r#type: 1,
        kv: Some(kv("k", "v")),
        prev_kv: None,
    };
    let answer = proto::WatchResponse {
        cancel_reason: "\"<é>\n".to_owned(),
        events: vec![
            event,
            proto::Event {
                r#type: -7,
                ..proto::Event::default()
            },
        ],
        ..proto::WatchResponse::default()
    };
    let answer = text(&answer, method("/v3/watch").answer);
    assert_eq!(
        answer,
        r#"{"cancel_reason":"\"<é>\n","events":[{"type":"DELETE","kv":{"key":"aw==","create_revision":"2","mod_revision":"9223372036854775807","version":"1","value":"dg=="}},{"type":-7}]}"#
    );
}

#[test]
fn an_answer_is_the_same_in_one_piece_and_in_many() {
    let answer = proto::RangeResponse {
        header: Some(proto::ResponseHeader::default()),
        kvs: vec![kv("a", "1"), kv("b", "2"), kv("c", "3")],
        more: false,
        count: 3,
    };
    let of = method("/v3/kv/range").answer;
    let (whole, encoded) = (text(&answer, of), answer.encode_to_vec());
    for cut in 0..encoded.len() {
        let mut text = String::new();
        let mut writer = Writer::begin(of, &mut text);
        let used = writer.add(&encoded[..cut], &mut text);
        writer.add(&encoded[used..], &mut text);
        writer.end(&mut text);
        assert_eq!(text, whole, "cut at {cut}");
    }
}

#[test]
fn requests_are_read_by_either_name_and_in_either_form() {
    let expected = RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 3,
        sort_order: 2,
        sort_target: 1,
        keys_only: true,
        ..RangeRequest::default()
    };
    for text in [
        r#"{"key":"YQ==","range_end":"Yg==","limit":"3","sort_order":"DESCEND","sort_target":"VERSION","keys_only":true}"#,
        r#"{"key":"YQ","rangeEnd":"Yg","limit":3,"sortOrder":2,"sortTarget":1,"keysOnly":true}"#,
        r#" {"unknown":{"a":[1,{}]},"revision":null,"key":"YQ=\n=","range_end":"Yg==","limit":"3",
            "sort_order":2,"sort_target":"VERSION","keys_only":true,"serializable":false} "#,
    ] {
        assert_eq!(range(text), Ok(expected.clone()), "{text}");
    }
    for text in ["", " \n", "{}", "null"] {
        assert_eq!(range(text), Ok(RangeRequest::default()), "{text:?}");
    }
    let txn: TxnRequest = read("/v3/kv/txn", r#"{"compare":null,"success":[null,{}]}"#).unwrap();
    assert_eq!(
        (txn.compare.len(), txn.success),
        (0, vec![RequestOp::default(); 2])
    );
    let alarm = r#"{"action":"ACTIVATE","memberID":"18446744073709551615","alarm":"NOSPACE"}"#;
    let alarm: proto::AlarmRequest = read("/v3/maintenance/alarm", alarm).unwrap();
    assert_eq!(
        (alarm.action, alarm.member_id, alarm.alarm),
        (1, u64::MAX, 1)
    );
    let watch = r#"{"create_request":{"key":"YQ==","filters":["NODELETE",0]}}"#;
    let watch: proto::WatchRequest = read("/v3/watch", watch).unwrap();
    let Some(proto::WatchRequestUnion::CreateRequest(create)) = watch.request else {
        panic!("{watch:?}");
    };
    assert_eq!(create.filters, [1, 0]);
}

#[test]
fn base64_is_read_in_both_alphabets_with_and_without_padding() {
    let key = |text: &str| range(&format!(r#"{{"key":"{text}"}}"#)).map(|range| range.key);
    let bytes = Bytes::from_static(&[0xff, 0xef, 0xbe]);
    for text in ["/+++", "_---", "/++-"] {
        assert_eq!(key(text), Ok(bytes.clone()), "{text}");
    }
    for text in ["/+8=", "/+8", "_-8=", "_-8"] {
        assert_eq!(key(text), Ok(Bytes::from_static(&[0xff, 0xef])), "{text}");
    }
    assert_eq!(key(""), Ok(Bytes::new()));
    for text in ["a", "a===", "????", "Y Q=", "YQ==YQ==", "é"] {
        assert!(key(text).is_err(), "{text}");
    }
}

#[test]
fn a_value_of_another_type_is_refused_with_what_was_expected() {
    for (text, part) in [
        (
            r#"{"key":5}"#,
            "found 5, expected bytes, as a base64 string at line 1 column 8",
        ),
        (r#"{"key":[]}"#, "expected bytes"),
        (r#"{"key":true}"#, "found true, expected bytes"),
        (r#"{"key":{}}"#, "found an object, expected bytes"),
        (
            r#"{"limit":1.5}"#,
            "floating point `1.5`, expected a 64-bit integer",
        ),
        (
            r#"{"limit":"x"}"#,
            "found another string, expected a 64-bit integer",
        ),
        (r#"{"limit":""}"#, "found another string"),
        (
            r#"{"limit":9223372036854775808}"#,
            "found 9223372036854775808",
        ),
        (
            r#"{"limit":"-9223372036854775809"}"#,
            "found another string",
        ),
        (r#"{"limit":1e999}"#, "number out of range"),
        (
            r#"{"limit":99999999999999999999999999999999999}"#,
            "expected a 64-bit integer",
        ),
        (
            r#"{"sort_order":"UP"}"#,
            "found another name, expected one of its names",
        ),
        (r#"{"sort_order":2147483648}"#, "expected one of its names"),
        (r#"{"keys_only":1}"#, "found 1, expected true or false"),
        (
            r#"{"keys_only":"true"}"#,
            "found a string, expected true or false",
        ),
        ("5", "found 5, expected RangeRequest"),
        ("[]", "expected RangeRequest"),
        (r#""a""#, "found a string, expected RangeRequest"),
        ("{", "EOF"),
        ("{}{}", "trailing characters"),
        ("{} x", "trailing characters"),
        (r#"{"key""#, "EOF"),
        ("{\"key\":\"\u{1}\"}", "control character"),
        (r#"{"key":"\ud800"}"#, "hex escape"),
        (r"{'key':1}", "key must be a string"),
    ] {
        let refused = range(text).unwrap_err();
        assert!(refused.contains(part), "{text}: {refused}");
    }
    assert!(to_protobuf(b"{\"key\":\"\xff\"}", method("/v3/kv/range").request).is_err());
    let txn = |text: &str| read::<TxnRequest>("/v3/kv/txn", text).unwrap_err();
    assert!(txn(r#"{"success":{}}"#).contains("expected a list for success"));
    assert!(txn(r#"{"success":"x"}"#).contains("expected a list for success"));
    let watch = r#"{"create_request":{"filters":[null]}}"#;
    let watch: Result<proto::WatchRequest, _> = read("/v3/watch", watch);
    assert!(
        watch
            .unwrap_err()
            .contains("found null, expected one of its names")
    );
    let member: Result<proto::MoveLeaderRequest, _> =
        read("/v3/maintenance/transfer-leadership", r#"{"targetID":-1}"#);
    assert!(
        member
            .unwrap_err()
            .contains("found -1, expected a 64-bit integer from 0 on")
    );
}

#[test]
fn an_error_is_short_whatever_it_is_about() {
    let long = format!(r#"{{"limit":"{0}","key":"{0}"}}"#, "é".repeat(1 << 20));
    assert!(range(&long).unwrap_err().len() < 200);
    let long = format!(r#"{{"{}":1x}}"#, "a".repeat(1 << 20));
    assert!(range(&long).unwrap_err().len() < 200);
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [
        (r#"{"success":[{"request_txn":"#, "}]}"),
        (r#"{"x":"#, "}"),
        ("[", "]"),
    ] {
        for depth in [1 << 10, 1 << 18] {
            let bomb = [open.repeat(depth), close.repeat(depth)].concat();
            let refused = read::<TxnRequest>("/v3/kv/txn", &bomb);
            assert!(refused.is_err());
        }
    }
    // As deep as transactions go, and one more.
    let nested = |depth: usize| {
        let (open, close) = (r#"{"success":[{"request_txn":"#, "}]}");
        [&open.repeat(depth), "{}", &close.repeat(depth)].concat()
    };
    for depth in [8, 9, 30] {
        assert!(
            read::<TxnRequest>("/v3/kv/txn", &nested(depth)).is_ok(),
            "{depth}"
        );
    }
}

#[test]
fn what_is_short_in_json_stays_short() {
    // A list of empty operations takes as many bytes as the text, not a value each.
    let ops = ["{}"; 100_000].join(",");
    let text = format!(r#"{{"success":[{ops}]}}"#);
    let encoded = to_protobuf(text.as_bytes(), method("/v3/kv/txn").request).unwrap();
    assert!(encoded.len() <= text.len());
    assert_eq!(proto::txn_parts(&encoded, 1_000), 1_001);
}

#[test]
fn objects_are_told_apart_wherever_they_are_cut() {
    let stream = br#" {"a":"}\"{\\"} {"b":[{},{"c":"]"}]}
{}{"d":{}}"#;
    for cut in 0..stream.len() {
        let (mut scanner, mut bytes, mut found) = (Scanner::default(), Vec::new(), Vec::new());
        for part in [&stream[..cut], &stream[cut..]] {
            bytes.extend_from_slice(part);
            while let Some(end) = scanner.end(&bytes).unwrap() {
                let object: Vec<u8> = bytes.drain(..end).collect();
                found.push(String::from_utf8(object).unwrap().trim().to_owned());
            }
        }
        assert_eq!(
            found,
            [
                r#"{"a":"}\"{\\"}"#,
                r#"{"b":[{},{"c":"]"}]}"#,
                "{}",
                r#"{"d":{}}"#
            ]
        );
        assert!(bytes.is_empty());
    }
    for wrong in ["x", "[", "5", "\"", "}", "{}x", ",", "\0", "\u{e9}"] {
        let mut scanner = Scanner::default();
        let mut rest = wrong.as_bytes();
        let refused = loop {
            match scanner.end(rest) {
                Ok(Some(end)) => rest = &rest[end..],
                other => break other,
            }
        };
        assert!(refused.is_err(), "{wrong}");
    }
}

/// The tables say what the structs say: the text of the one is read as the other, with every field.
#[test]
fn the_tables_have_every_field_of_the_messages_that_are_served() {
    macro_rules! agrees {
        ($($path:literal $Request:ident $Answer:ident;)*) => {$(
            let found = method($path);
            agree::<proto::$Request>(found.request);
            agree::<proto::$Answer>(found.answer);
        )*};
    }
    agrees! {
        "/v3/kv/range" RangeRequest RangeResponse;
        "/v3/kv/put" PutRequest PutResponse;
        "/v3/kv/deleterange" DeleteRangeRequest DeleteRangeResponse;
        "/v3/kv/txn" TxnRequest TxnResponse;
        "/v3/kv/compaction" CompactionRequest CompactionResponse;
        "/v3/watch" WatchRequest WatchResponse;
        "/v3/lease/grant" LeaseGrantRequest LeaseGrantResponse;
        "/v3/lease/revoke" LeaseRevokeRequest LeaseRevokeResponse;
        "/v3/lease/keepalive" LeaseKeepAliveRequest LeaseKeepAliveResponse;
        "/v3/lease/timetolive" LeaseTimeToLiveRequest LeaseTimeToLiveResponse;
        "/v3/lease/leases" LeaseLeasesRequest LeaseLeasesResponse;
        "/v3/cluster/member/list" MemberListRequest MemberListResponse;
        "/v3/cluster/member/add" MemberAddRequest MemberAddResponse;
        "/v3/cluster/member/remove" MemberRemoveRequest MemberRemoveResponse;
        "/v3/cluster/member/update" MemberUpdateRequest MemberUpdateResponse;
        "/v3/cluster/member/promote" MemberPromoteRequest MemberPromoteResponse;
        "/v3/auth/enable" AuthEnableRequest AuthDoneResponse;
        "/v3/auth/disable" AuthDisableRequest AuthDoneResponse;
        "/v3/auth/status" AuthStatusRequest AuthStatusResponse;
        "/v3/auth/authenticate" AuthenticateRequest AuthenticateResponse;
        "/v3/auth/user/add" AuthUserAddRequest AuthDoneResponse;
        "/v3/auth/user/get" AuthUserGetRequest AuthUserGetResponse;
        "/v3/auth/user/list" AuthUserListRequest AuthUserListResponse;
        "/v3/auth/user/delete" AuthUserDeleteRequest AuthDoneResponse;
        "/v3/auth/user/changepw" AuthUserChangePasswordRequest AuthDoneResponse;
        "/v3/auth/user/grant" AuthUserGrantRoleRequest AuthDoneResponse;
        "/v3/auth/user/revoke" AuthUserRevokeRoleRequest AuthDoneResponse;
        "/v3/auth/role/add" AuthRoleAddRequest AuthDoneResponse;
        "/v3/auth/role/get" AuthRoleGetRequest AuthRoleGetResponse;
        "/v3/auth/role/list" AuthRoleListRequest AuthRoleListResponse;
        "/v3/auth/role/delete" AuthRoleDeleteRequest AuthDoneResponse;
        "/v3/auth/role/grant" AuthRoleGrantPermissionRequest AuthDoneResponse;
        "/v3/auth/role/revoke" AuthRoleRevokePermissionRequest AuthDoneResponse;
        "/v3/maintenance/alarm" AlarmRequest AlarmResponse;
        "/v3/maintenance/status" StatusRequest StatusResponse;
        "/v3/maintenance/defragment" DefragmentRequest DefragmentResponse;
        "/v3/maintenance/hash" HashRequest HashResponse;
        "/v3/maintenance/hashkv" HashKvRequest HashKvResponse;
        "/v3/maintenance/transfer-leadership" MoveLeaderRequest MoveLeaderResponse;
        "/v3/maintenance/downgrade" DowngradeRequest DowngradeResponse;
        "/v3/lock/lock" LockRequest LockResponse;
        "/v3/lock/unlock" UnlockRequest UnlockResponse;
        "/v3/election/campaign" CampaignRequest CampaignResponse;
        "/v3/election/proclaim" ProclaimRequest ProclaimResponse;
        "/v3/election/leader" LeaderRequest LeaderResponse;
        "/v3/election/resign" ResignRequest ResignResponse;
    }
    agree::<proto::ResponseHeader>(&messages::ResponseHeader);
    agree::<proto::KeyValue>(&messages::KeyValue);
    agree::<proto::Event>(&messages::Event);
    agree::<proto::WatchCreateRequest>(&messages::WatchCreateRequest);
    agree::<proto::LeaseStatus>(&messages::LeaseStatus);
    agree::<proto::Member>(&messages::Member);
    agree::<proto::AlarmMember>(&messages::AlarmMember);
    agree::<proto::DowngradeInfo>(&messages::DowngradeInfo);
    agree::<proto::Permission>(&messages::Permission);
    agree::<proto::UserAddOptions>(&messages::UserAddOptions);
    agree::<proto::LeaderKey>(&messages::LeaderKey);
}

/// Every field of the table, one at a time and as deep as there are messages, is decoded by the struct
/// and encoded again as it was; so the struct has it, with this number and type. And it has no more.
fn agree<M: Message + Default + PartialEq + std::fmt::Debug>(of: &'static Type) {
    let shown = format!("{:?}", M::default());
    let is_union = std::ptr::eq(of, &messages::WatchRequest);
    let fields = if is_union { 1 } else { of.fields().len() };
    // One that holds a secret shows less.
    if !shown.ends_with(".. }") {
        assert_eq!(shown.matches(": ").count(), fields, "{shown}");
    }
    for encoded in samples(of, 4) {
        let message = M::decode(&encoded[..]).unwrap();
        let again = message.encode_to_vec();
        assert_eq!(again, encoded, "{of:?} {message:?}");
        // And in JSON as well.
        let text = text(&message, of);
        let read = to_protobuf(text.as_bytes(), of).unwrap();
        assert_eq!(M::decode(&read[..]).unwrap(), message, "{text}");
    }
}

/// Encodings of messages with one field, other than its default.
fn samples(of: &'static Type, depth: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    for field in of.fields() {
        let key = |kind: u32| {
            let mut key = Vec::new();
            prost::encoding::encode_varint(u64::from(field.number << 3 | kind), &mut key);
            key
        };
        let long = |body: &[u8]| {
            let mut length = Vec::new();
            prost::encoding::encode_varint(body.len() as u64, &mut length);
            [&key(2), &length, body].concat()
        };
        match field.of {
            Type::Message { .. } if depth == 0 => {}
            Type::Message { .. } => {
                found.push(long(&[]));
                found.extend(samples(field.of, depth - 1).iter().map(|body| long(body)));
            }
            Type::Bytes | Type::Text => found.push(long(b"x")),
            Type::Enum(_) if field.is_list => found.push(long(&[1])),
            Type::Enum(names) => {
                assert!(names.len() > 1);
                found.push([key(0), vec![1]].concat());
            }
            Type::Bool | Type::Int64 | Type::Uint64 | Type::Uint32 => {
                found.push([key(0), vec![1]].concat());
            }
        }
    }
    found
}

#[test]
fn tables_are_in_order() {
    for of in ALL {
        let fields = of.fields();
        assert!(fields.is_sorted_by(|a, b| a.number < b.number), "{of:?}");
        assert!(fields.iter().all(|field| field.number < 1 << 29));
    }
}

fn any_bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn any_put() -> impl Strategy<Value = PutRequest> {
    (any_bytes(), any_bytes(), any::<i64>(), any::<[bool; 3]>()).prop_map(
        |(key, value, lease, [prev_kv, ignore_value, ignore_lease])| PutRequest {
            key,
            value,
            lease,
            prev_kv,
            ignore_value,
            ignore_lease,
        },
    )
}

fn any_compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        Just(None),
        any::<i64>().prop_map(|number| Some(CompareUnion::Version(number))),
        any::<i64>().prop_map(|number| Some(CompareUnion::Lease(number))),
        any_bytes().prop_map(|value| Some(CompareUnion::Value(value))),
    ];
    (any::<i32>(), 0..6, any_bytes(), target, any_bytes()).prop_map(
        |(result, target, key, target_union, range_end)| Compare {
            result,
            target,
            key,
            target_union,
            range_end,
        },
    )
}

fn any_txn() -> impl Strategy<Value = TxnRequest> {
    let op = prop_oneof![
        Just(None),
        any_put().prop_map(|put| Some(RequestUnion::RequestPut(put))),
    ];
    let leaf = op.prop_map(|request| RequestOp { request });
    let op = leaf.prop_recursive(3, 20, 4, |op| {
        let ops = proptest::collection::vec(op, 0..4);
        ops.prop_map(|success| RequestOp {
            request: Some(RequestUnion::RequestTxn(TxnRequest {
                success,
                ..TxnRequest::default()
            })),
        })
    });
    let compare = proptest::collection::vec(any_compare(), 0..4);
    (compare, proptest::collection::vec(op, 0..4)).prop_map(|(compare, failure)| TxnRequest {
        compare,
        success: Vec::new(),
        failure,
    })
}

proptest! {
    #[test]
    fn a_request_survives_being_written_and_read(txn in any_txn()) {
        let of = method("/v3/kv/txn").request;
        let text = text(&txn, of);
        let encoded = to_protobuf(text.as_bytes(), of).unwrap();
        prop_assert_eq!(TxnRequest::decode(&encoded[..]).unwrap(), txn);
        // It is JSON, whoever reads it.
        prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }

    #[test]
    fn whatever_is_sent_gets_an_answer(
        text in proptest::collection::vec(
            proptest::sample::select(br#"{}[]:,"\ '0123456789eE+-.tfn"#.to_vec()),
            0..60,
        ),
        cut in 0_usize..400,
        flip in any::<u8>(),
        txn in any_txn(),
    ) {
        let of = method("/v3/kv/txn").request;
        let _ = to_protobuf(&text, of);
        let _ = Scanner::default().end(&text);
        let mut good = self::text(&txn, of).into_bytes();
        good.truncate(cut);
        if let Some(last) = good.last_mut() {
            *last = flip;
        }
        let _ = to_protobuf(&good, of);
        // The encoding of nothing in particular.
        let mut out = String::new();
        let mut writer = Writer::begin(of, &mut out);
        writer.add(&text, &mut out);
        writer.end(&mut out);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&out).is_ok());
    }
}
