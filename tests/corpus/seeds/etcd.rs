//! What clients and operators of etcd bring along. Messages are written field by field.

use leasehold::api::TXN_PARTS_MAX;

use super::super::targets::etcd::METHODS;
use super::{Seed, seed};

/// Every seed of the targets of etcd.
pub(super) fn all() -> Vec<Seed> {
    let mut all = requests();
    all.extend(texts());
    all.extend(files());
    all
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field that is a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(field << 3, &mut out);
    varint(value, &mut out);
    out
}

/// A field that has a length.
fn long(field: u64, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut out = Vec::new();
    varint(field << 3 | 2, &mut out);
    varint(body.len() as u64, &mut out);
    [out.as_slice(), body].concat()
}

fn place(method: &str) -> u8 {
    let place = METHODS.iter().position(|known| known.ends_with(method));
    u8::try_from(place.unwrap()).unwrap()
}

/// A call with these messages.
fn call(name: &'static str, method: &str, messages: &[Vec<u8>]) -> Seed {
    let mut bytes = vec![place(method)];
    for message in messages {
        bytes.push(0);
        bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend_from_slice(message);
    }
    seed("etcd_requests", name, bytes)
}

fn put() -> Vec<u8> {
    [long(1, "key"), long(2, "value"), number(3, 7), number(4, 1)].concat()
}

fn range() -> Vec<u8> {
    let bounds = [number(10, 2), number(11, 9), number(12, 1), number(13, 8)].concat();
    let order = [number(3, 5), number(4, 6), number(5, 2), number(6, 3)].concat();
    [
        long(1, "a"),
        long(2, "b"),
        order,
        number(7, 1),
        number(8, 1),
        bounds,
    ]
    .concat()
}

/// With each kind of comparison and operation, and one transaction inside.
fn txn() -> Vec<u8> {
    let compare = |target: u64, operand: Vec<u8>| {
        let of = [number(1, target % 4), number(2, target)].concat();
        long(1, [of, long(3, "k"), operand, long(64, "l")].concat())
    };
    let compares = [
        compare(0, number(4, 1)),
        compare(1, number(5, 2)),
        compare(2, number(6, 3)),
        compare(3, long(7, "v")),
        compare(4, number(8, 4)),
    ];
    let inner = long(2, long(2, [long(1, "inner"), number(5, 1)].concat()));
    let empty = [long(1, "b"), long(2, "a")].concat();
    let success = [
        long(2, long(2, put())),
        long(2, long(4, inner)),
        long(2, long(3, [long(1, "c"), long(2, "\0")].concat())),
    ];
    let failure = [
        long(3, long(1, range())),
        long(3, long(1, &empty)),
        long(3, long(3, &empty)),
    ];
    [compares.concat(), success.concat(), failure.concat()].concat()
}

/// A transaction that has many parts so many levels below it.
fn below(levels: usize) -> Vec<u8> {
    let many = long(2, "").repeat(TXN_PARTS_MAX + 1);
    (0..levels).fold(many, |txn, _| long(2, long(4, txn)))
}

fn requests() -> Vec<Seed> {
    let user = [long(1, "anna"), long(2, "secret"), long(3, number(1, 0))].concat();
    let permission = [number(1, 2), long(2, "a/"), long(3, "a0")].concat();
    let watch = [
        long(1, "a"),
        long(2, "b"),
        number(3, 5),
        number(4, 1),
        long(5, [0, 1]),
        number(6, 1),
    ];
    let renewal = |id: u64| number(1, id);
    let negative = (-2_i64).cast_unsigned();
    vec![
        call("range", "KV/Range", &[range()]),
        call(
            "range_of_nothing",
            "KV/Range",
            &[[long(1, "b"), long(2, "a"), number(3, negative)].concat()],
        ),
        call("put", "KV/Put", &[put()]),
        call(
            "put_with_a_negative_lease",
            "KV/Put",
            &[[long(1, "k"), number(3, negative)].concat()],
        ),
        call(
            "delete",
            "KV/DeleteRange",
            &[[long(1, "a"), long(2, "b"), number(3, 1)].concat()],
        ),
        call("txn", "KV/Txn", &[txn()]),
        call("compact", "KV/Compact", &[number(1, 5)]),
        call(
            "watch",
            "Watch/Watch",
            &[long(1, watch.concat()), long(3, "")],
        ),
        // As much memory as filters can be made to take, and as parts of a transaction.
        call(
            "watch_with_many_filters",
            "Watch/Watch",
            &[long(1, long(5, [1; 4_100]))],
        ),
        call(
            "txn_of_many_parts",
            "KV/Txn",
            &[long(2, "").repeat(TXN_PARTS_MAX)],
        ),
        // What a decoder passes over hides none, nor does depth.
        call(
            "txn_of_many_parts_behind_a_group",
            "KV/Txn",
            &[[vec![0x7b, 0x7c], long(2, "").repeat(TXN_PARTS_MAX + 1)].concat()],
        ),
        call("txn_of_many_parts_below", "KV/Txn", &[below(20)]),
        call("renewals", "LeaseKeepAlive", &[renewal(3), renewal(0)]),
        call("user", "UserAdd", &[user]),
        call(
            "permission",
            "RoleGrantPermission",
            &[[long(1, "r"), long(2, permission)].concat()],
        ),
        call(
            "member",
            "MemberAdd",
            &[long(1, "https://n4@10.0.0.4:7401")],
        ),
        // Lists of nothing take more than their length.
        call(
            "member_of_many_urls",
            "MemberAdd",
            &[long(1, "").repeat(4_100)],
        ),
        seed(
            "etcd_requests",
            "long_claim",
            [place("KV/Put"), 0, 0x7f, 0, 0, 0, 1],
        ),
        seed(
            "etcd_requests",
            "compressed",
            [place("KV/Put"), 1, 0, 0, 0, 0],
        ),
        seed(
            "etcd_requests",
            "cut",
            [place("KV/Put"), 0, 0, 0, 0, 9, 0x0a, 3],
        ),
    ]
}

/// A text for a method, which arrives in pieces of so many bytes.
fn json(name: &'static str, method: &str, piece_bytes: u8, text: &str) -> Seed {
    let head = [place(method), piece_bytes - 1];
    seed("etcd_json", name, [&head, text.as_bytes()].concat())
}

fn texts() -> Vec<Seed> {
    let txn = r#"{"compare":[{"result":"EQUAL","target":"VERSION","key":"a2V5","version":"1"},
        {"target":3,"key":"a2V5","value":"_-8"}],"success":[{"requestPut":{"key":"a2V5","value":
        "dmFsdWU=","lease":"-1"}},{"request_txn":{"failure":[{"request_range":{"key":"AA==",
        "limit":9007199254740993,"sort_order":"DESCEND"}}]}}],"else":[null,{"a":1.5e300}]}"#;
    let deep = r#"{"success":[{"request_txn":"#.repeat(60);
    let list = |element: &str, count: usize| format!("[{}]", vec![element; count].join(","));
    vec![
        json("txn", "KV/Txn", 9, txn),
        json("deep", "KV/Txn", 200, &deep),
        json(
            "deep_unknown",
            "KV/Put",
            200,
            &format!("{{\"x\":{}", "[".repeat(3_000)),
        ),
        json(
            "watches",
            "Watch/Watch",
            1,
            r#"{"create_request":{"key":"YQ","filters":["NOPUT",1],"watch_id":"7"}} {"progress_request":{}}"#,
        ),
        json(
            "many_filters",
            "Watch/Watch",
            255,
            &format!(r#"{{"create_request":{{"filters":{}}}}}"#, list("1", 3_000)),
        ),
        json(
            "numbers",
            "KV/Range",
            255,
            r#"{"limit":-1,"revision":"9223372036854775808","limit":1e3}"#,
        ),
        json(
            "base64",
            "KV/Put",
            255,
            "{\"key\":\"YW\\nJj\",\"value\":\"_w\"}",
        ),
        json(
            "escapes",
            "UserAdd",
            255,
            r#"{"name":"\u00e9\ud83d\ude00","password":"\ud800"}"#,
        ),
        json(
            "twice",
            "KV/Put",
            255,
            r#"{"key":"YQ==","key":"Yg==","value":null}"#,
        ),
        json(
            "members",
            "MemberAdd",
            255,
            r#"{"peerURLs":["https://n4@h:1","",""],"isLearner":true}"#,
        ),
        json("nothing", "Status", 255, ""),
    ]
}

/// A file with these buckets of [`bbolt_files`](super::super::targets::etcd::bolt::bbolt_files), and changes to
/// it.
fn file(name: &'static str, how: u8, chosen: u8, rest: &[&[u8]]) -> Seed {
    let head = [how | 1, chosen];
    seed(
        "bbolt_files",
        name,
        [&head, rest.concat().as_slice()].concat(),
    )
}

fn files() -> Vec<Seed> {
    const PUT_RIGHT: u8 = 0x80;
    const KEYS: u8 = 1 << 2;
    const LEASES: u8 = 1 << 3;
    const META: u8 = 1 << 4;
    const OTHER: u8 = 1 << 5;
    // A step of the revision, a number, a key, then what is written.
    let put: &[u8] = &[1, 0, 1, 0, 2, 1, 3, b'v', b'a', b'l', 1];
    let delete: &[u8] = &[1, 0, 1, 3];
    let lease: &[u8] = &[1, 1, 60];
    let compaction: &[u8] = &[1, 0, 2];
    let long: &[u8] = &[1, 40, 255, 3, b'k', b'e', b'y'];
    let of_etcd = [lease, &[1], compaction].concat();
    let keys = [&[3], put, delete, put].concat();
    let versions = [&[40][..], &put.repeat(40)].concat();
    let copies = leasehold::etcd::doors::write_bolt(&[(
        "key".to_owned(),
        vec![(b"k".to_vec(), b"v".to_vec())],
    )]);
    vec![
        file("snapshot", 0, KEYS | LEASES | META, &[&keys, &of_etcd]),
        file("versions", 0, KEYS, &[&versions]),
        file("long", 0, OTHER, &[long]),
        // The newer meta page names another root; its checksum is put right.
        file("other_root", PUT_RIGHT, KEYS, &[&keys, &[1, 2, 8, 0, 3]]),
        file("in_a_circle", 0, KEYS, &[&keys, &[4, 3, 0, 3, 4, 3, 1, 4]]),
        file("cut", 0, KEYS, &[&keys, &[4, 7, 9]]),
        file("page_for_another", 0, KEYS, &[&keys, &[3, 5, 4, 3, 6, 3]]),
        // Every element is as long as its page: what there is to read is a hundred times the file.
        seed("bbolt_files", "overlaid", overlaid(&copies)),
        seed("bbolt_files", "bytes", [0, 1, 2, 3]),
    ]
}

/// The bytes of a file whose one leaf of keys has elements that all go on to the end of the page.
fn overlaid(file: &[u8]) -> Vec<u8> {
    const PAGE: usize = 4096;
    const COUNT: usize = 200;
    let mut file = file.to_vec();
    let leaf = &mut file[3 * PAGE..4 * PAGE];
    leaf[10..12].copy_from_slice(&(COUNT as u16).to_le_bytes());
    for place in 0..COUNT {
        let at = 16 + 16 * place;
        // Keys of three bytes, each one byte behind the other.
        let key_at = 16 + 16 * COUNT + place;
        let value = PAGE - key_at - 3;
        let fields = [0, (key_at - at) as u32, 3, value as u32];
        for (field, value) in fields.into_iter().enumerate() {
            leaf[at + 4 * field..at + 4 * field + 4].copy_from_slice(&value.to_le_bytes());
        }
        leaf[key_at] = place as u8 + 1;
    }
    [&[0], file.as_slice()].concat()
}
