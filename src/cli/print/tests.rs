use std::io;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::api::{
    DeleteRangeResponse, HistoryStatus, KeyValue, LeaderLeaseStatus, PutResponse, QuotaStatus,
    RangeResponse, ReadInfo, ReadPath, ResponseHeader, StatusResponse,
};
use crate::cli::arguments::Format;
use crate::types::{LogIndex, NodeId, Role, Term};

fn header() -> ResponseHeader {
    ResponseHeader {
        cluster_id: 14_841_639_068_965_178_418,
        member_id: NodeId(0x8211_f1d0_f64f_3269),
        revision: 3,
        raft_term: Term(2),
        leader_id: Some(NodeId(0x8211_f1d0_f64f_3269)),
        read: Some(ReadInfo {
            path: ReadPath::Lease,
            lease_remaining: Duration::from_micros(612_345),
            lease_margin: Duration::from_millis(50),
            read_index: LogIndex(8),
            applied_index: LogIndex(9),
            staleness: None,
        }),
    }
}

fn kv(key: &'static str, value: &'static str) -> KeyValue {
    KeyValue {
        key: Bytes::from_static(key.as_bytes()),
        value: Bytes::from_static(value.as_bytes()),
        create_revision: 2,
        mod_revision: 3,
        version: 2,
        lease: 0,
    }
}

fn range(kvs: Vec<KeyValue>) -> RangeResponse {
    RangeResponse {
        count: kvs.len() as u64,
        kvs,
        more: false,
    }
}

fn text(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
    let mut out = Vec::new();
    print(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn got(format: Format, parts: Parts, range: &RangeResponse) -> String {
    let view = View { format, hex: false };
    text(|out| get(out, view, parts, &header(), range))
}

#[test]
fn a_get_prints_as_etcdctl_does() {
    let range = range(vec![kv("foo", "bar2")]);
    assert_eq!(got(Format::Simple, Parts::All, &range), "foo\nbar2\n");
    assert_eq!(got(Format::Simple, Parts::Keys, &range), "foo\n");
    assert_eq!(got(Format::Simple, Parts::Values, &range), "bar2\n");
    assert_eq!(got(Format::Simple, Parts::Count, &range), "1\n");
}

#[test]
fn the_fields_of_a_get_say_how_it_was_served() {
    assert_eq!(
        got(Format::Fields, Parts::All, &range(vec![kv("foo", "bar2")])),
        r#""ClusterID" : 14841639068965178418
"Revision" : 3
"ReadPath" : "lease"
"LeaseRemainingMs" : 612
"Key" : "foo"
"CreateRevision" : 2
"ModRevision" : 3
"Version" : 2
"Value" : "bar2"
"Lease" : 0
"#
    );
    let cut = RangeResponse {
        more: true,
        ..range(vec![])
    };
    assert!(got(Format::Fields, Parts::All, &cut).ends_with("\"More\" : true\n"));
    assert!(got(Format::Fields, Parts::Count, &cut).ends_with("\"Count\" : 0\n"));
}

#[test]
fn the_json_of_a_get_is_one_line_with_base64() {
    assert_eq!(
        got(Format::Json, Parts::All, &range(vec![kv("foo", "bar")])),
        concat!(
            r#"{"header":{"cluster_id":14841639068965178418,"member_id":9372538179322589801,"#,
            r#""revision":3,"raft_term":2,"leader_id":9372538179322589801,"#,
            r#""read":{"path":"lease","lease_remaining_ms":612.345,"lease_margin_ms":50.0,"#,
            r#""read_index":8,"applied_index":9}},"#,
            r#""kvs":[{"key":"Zm9v","create_revision":2,"mod_revision":3,"version":2,"#,
            r#""value":"YmFy","lease":0}],"more":false,"count":1}"#,
            "\n"
        )
    );
}

#[test]
fn a_table_has_etcdctls_look() {
    assert_eq!(
        got(
            Format::Table,
            Parts::All,
            &range(vec![kv("foo", "bär\n"), kv("x", "")])
        ),
        "\
+-----+-------+-----------------+--------------+---------+
| KEY | VALUE | CREATE REVISION | MOD REVISION | VERSION |
+-----+-------+-----------------+--------------+---------+
| foo | bär\\n |               2 |            3 |       2 |
| x   |       |               2 |            3 |       2 |
+-----+-------+-----------------+--------------+---------+
"
    );
}

#[test]
fn a_put_prints_ok_and_what_was_there() {
    let nothing = PutResponse::default();
    let something = PutResponse {
        prev_kv: Some(kv("foo", "bar")),
    };
    let write = ResponseHeader {
        read: None,
        ..header()
    };
    let with = |format, response: &PutResponse| {
        let view = View { format, hex: false };
        text(|out| put(out, view, &write, response))
    };
    assert_eq!(with(Format::Simple, &nothing), "OK\n");
    assert_eq!(with(Format::Simple, &something), "OK\nfoo\nbar\n");
    assert_eq!(
        with(Format::Fields, &nothing),
        "\"ClusterID\" : 14841639068965178418\n\"Revision\" : 3\n"
    );
    assert!(with(Format::Fields, &something).contains("\"PrevValue\" : \"bar\"\n"));
    assert!(with(Format::Json, &nothing).ends_with("\"leader_id\":9372538179322589801}}\n"));
    assert!(with(Format::Json, &something).contains(r#""prev_kv":{"key":"Zm9v""#));
}

#[test]
fn a_delete_prints_how_many_and_what_was_there() {
    let deleted = DeleteRangeResponse {
        deleted: 2,
        prev_kvs: vec![kv("a", "1"), kv("b", "2")],
    };
    let with = |format, response: &DeleteRangeResponse| {
        let view = View { format, hex: false };
        text(|out| delete(out, view, &header(), response))
    };
    assert_eq!(with(Format::Simple, &deleted), "2\na\n1\nb\n2\n");
    assert_eq!(with(Format::Simple, &DeleteRangeResponse::default()), "0\n");
    assert!(with(Format::Fields, &deleted).contains("\"Deleted\" : 2\n\"PrevKey\" : \"a\"\n"));
    assert_eq!(
        with(Format::Table, &DeleteRangeResponse::default()),
        "\
+---------+----------+
| DELETED | REVISION |
+---------+----------+
|       0 |        3 |
+---------+----------+
"
    );
    assert!(with(Format::Table, &deleted).contains("| b   | 2     |"));
    assert!(with(Format::Json, &deleted).contains(r#""deleted":2,"prev_kvs":[{"key":"YQ=="#));
}

#[test]
fn bytes_that_are_no_text_are_raw_in_simple_and_escaped_elsewhere() {
    let odd = KeyValue {
        key: Bytes::from_static(b"a\xff\"\x00\n"),
        ..kv("", "\u{1b}[31m")
    };
    let odd = range(vec![odd]);
    let view = View::default();
    let mut raw = Vec::new();
    get(&mut raw, view, Parts::All, &header(), &odd).unwrap();
    assert_eq!(raw, b"a\xff\"\x00\n\n\x1b[31m\n");
    let fields = got(Format::Fields, Parts::All, &odd);
    assert!(fields.contains(r#""Key" : "a\xff\"\x00\n""#), "{fields}");
    assert!(fields.contains(r#""Value" : "\x1b[31m""#), "{fields}");
    let view = View {
        hex: true,
        ..View::default()
    };
    let hex = text(|out| {
        get(
            out,
            view,
            Parts::Keys,
            &header(),
            &range(vec![kv("foo", "")]),
        )
    });
    assert_eq!(hex, "\\x66\\x6f\\x6f\n");
}

fn endpoint(name: &str, role: Role, lease: bool) -> EndpointStatus {
    EndpointStatus {
        endpoint: "127.0.0.1:7400".to_owned(),
        header: ResponseHeader {
            read: None,
            ..header()
        },
        status: StatusResponse {
            name: name.to_owned(),
            version: "0.1.0".to_owned(),
            role,
            last_index: LogIndex(10),
            commit_index: LogIndex(9),
            applied_index: LogIndex(8),
            storage_bytes: 25_000,
            leader_lease: LeaderLeaseStatus {
                is_valid: lease,
                remaining: Duration::from_millis(412),
                lease_duration: Duration::from_millis(500),
                max_clock_skew: Duration::from_millis(50),
                renewals: 3,
                expirations: 1,
                rejections: 0,
            },
            members: Vec::new(),
            history: HistoryStatus::default(),
            quota: QuotaStatus {
                bytes: 100_000,
                no_space: lease,
            },
            warnings: Vec::new(),
            ..StatusResponse::default()
        },
    }
}

#[test]
fn the_status_of_endpoints_shows_who_leads_and_whether_the_lease_holds() {
    let all = [
        endpoint("n1", Role::Leader, true),
        endpoint("n2", Role::Follower, false),
    ];
    assert_eq!(
        text(|out| status(out, Format::Simple, &all)),
        "127.0.0.1:7400, 8211f1d0f64f3269, n1, 0.1.0, 25kB, leader, term 2, commit 9, applied 8, \
         lease valid for 412ms\n\
         127.0.0.1:7400, 8211f1d0f64f3269, n2, 0.1.0, 25kB, follower, term 2, commit 9, applied 8, \
         no lease\n"
    );
    let table = text(|out| status(out, Format::Table, &all));
    let rows: Vec<_> = table.lines().collect();
    assert_eq!(rows.len(), 6, "{table}");
    assert!(rows[3].contains("| n1   | 0.1.0   | leader   |"), "{table}");
    assert!(
        rows[3].ends_with("|      412ms |         50ms |"),
        "{table}"
    );
    assert!(rows[3].contains("| 25kB/100kB(NOSPACE) |"), "{table}");
    assert!(rows[4].contains("|          25kB/100kB |"), "{table}");
    assert!(
        rows[4].ends_with("|            |         50ms |"),
        "{table}"
    );
    let fields = text(|out| status(out, Format::Fields, &all[..1]));
    assert!(fields.contains("\"LeaseRemainingMs\" : 412\n"), "{fields}");
    assert!(
        fields.contains("\"QuotaBytes\" : 100000\n\"NoSpace\" : true\n"),
        "{fields}"
    );
    let json = text(|out| status(out, Format::Json, &all));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["leader_lease"]["remaining_ms"], 412.0);
    assert_eq!(json[1]["role"], "follower");
    assert_eq!(json[0]["quota"]["no_space"], true);
}

#[test]
fn alarms_print_almost_as_etcdctl_does_and_only_those_that_are_raised() {
    let all = [
        endpoint("n1", Role::Leader, true),
        endpoint("n2", Role::Follower, false),
    ];
    assert_eq!(
        text(|out| alarms(out, Format::Simple, &all)),
        "memberID:8211f1d0f64f3269 alarm:NOSPACE\n"
    );
    let json = text(|out| alarms(out, Format::Json, &all));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert_eq!(json[0]["alarm"], "NOSPACE");
    assert_eq!(json[0]["header"]["member_id"], json[0]["member_id"]);
    assert_eq!(
        (&json[0]["used"], &json[0]["quota"]),
        (&25_000.into(), &100_000.into())
    );
    assert_eq!(text(|out| alarms(out, Format::Simple, &all[1..])), "");
    assert_eq!(text(|out| alarms(out, Format::Json, &[])), "[]\n");
}

#[test]
fn a_move_of_leadership_prints_as_etcdctl_does() {
    let to = NodeId(0x91bc_3c39_8fb3_c146);
    let from = ResponseHeader {
        member_id: NodeId(0x8211_f1d0_f64f_3269),
        ..ResponseHeader::default()
    };
    assert_eq!(
        text(|out| moved(out, Format::Simple, &from, Some(to))),
        "Leadership transferred from 8211f1d0f64f3269 to 91bc3c398fb3c146\n"
    );
    assert_eq!(
        text(|out| moved(out, Format::Simple, &from, None)),
        "Leadership given up by 8211f1d0f64f3269\n"
    );
}
