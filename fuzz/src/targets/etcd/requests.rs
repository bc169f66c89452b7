//! The requests of etcd's clients, as gRPC carries them.

use bytes::Bytes;
use leasehold::api;
use leasehold::api::{
    Compare, CompareOp, CompareTarget, LeaseTarget, Limits, PutRequest, RangeRequest, Request,
    SortOrder, SortTarget, TXN_PARTS_MAX, TxnOp, TxnRequest,
};
use leasehold::etcd::doors;
use leasehold::etcd::doors::Meant;

use super::METHODS;
use super::said::{Said, selects_alike};
use crate::targets::draw::Draw;
use crate::targets::meter;
use crate::targets::trace::say;
use crate::targets::wire::fits_the_log;

/// A part of a transaction of etcd takes less than this, decoded and converted.
const PART_BYTES: usize = 2048;
const MESSAGE_BYTES_MAX: usize = 2 << 20;

/// The body of a call: one byte for the method, then its messages, framed.
pub fn etcd_requests(data: &[u8]) {
    let mut draw = Draw::new(data);
    let method = draw.of(METHODS);
    let body = Bytes::copy_from_slice(draw.rest());
    let (messages, refusal) = doors::messages(&body, MESSAGE_BYTES_MAX);
    say(format_args!(
        "{method}: {} messages, then {refusal:?}",
        messages.len()
    ));
    let framed: usize = messages.iter().map(|message| message.len() + 5).sum();
    assert!(framed <= body.len());
    for message in messages {
        understand(method, message);
    }
}

fn understand(method: &str, message: Bytes) {
    let length = message.len();
    let (understood, peak) = meter::peak(|| doors::request(method, message));
    // A list doubles as it grows; of what takes more, there is a bounded number.
    let parts = match method.ends_with("/Txn") {
        true => length.min(TXN_PARTS_MAX),
        false => 0,
    };
    let fair = 16 * length + (64 << 10) + parts * PART_BYTES;
    assert!(
        peak <= fair,
        "{peak} bytes of memory for a message of {length}; {fair} would be fair"
    );
    let understood = match understood {
        Ok(understood) => understood,
        Err(why) => {
            say(format_args!("refused: {why}"));
            return assert!(!why.is_empty());
        }
    };
    let again = doors::request(method, Bytes::from(understood.encoded.clone()));
    let again = again.expect("what we write we can read");
    assert_eq!(again, understood, "a round trip changes nothing");
    say(format_args!("{:?}", understood.meant));
    if method.ends_with("/Txn") {
        let count = count_parts(&Said::read(&understood.encoded));
        assert!(count <= TXN_PARTS_MAX, "{count} parts were decoded");
    }
    match understood.meant {
        Meant::Asked(request) => {
            is_meant(&Said::read(&understood.encoded), &request);
            if let Err(error) = api::validate(&request, &Limits::DEFAULT) {
                assert!(!error.detail.is_empty());
            }
            fits_the_log(*request, None);
        }
        Meant::Refused(text) => assert!(!text.is_empty()),
        Meant::Itself | Meant::Nothing => {}
    }
}

/// How many comparisons and operations a transaction has, with those in it.
fn count_parts(said: &Said<'_>) -> usize {
    let ops = said.list(2).chain(said.list(3));
    let nested = ops.map(|op| {
        1 + Said::read(op)
            .list(4)
            .map(|txn| count_parts(&Said::read(txn)))
            .sum::<usize>()
    });
    said.list(1).count() + nested.sum::<usize>()
}

/// What is asked is what was said.
fn is_meant(said: &Said<'_>, request: &Request) {
    match request {
        Request::Put(put) => put_is_meant(said, put),
        Request::Range(range) => range_is_meant(said, range),
        Request::DeleteRange(delete) => {
            assert_eq!(delete.key, said.bytes(1));
            selects_alike(said.bytes(1), said.bytes(2), &delete.range);
            assert_eq!(delete.prev_kv, said.flag(3));
        }
        Request::Txn(txn) => txn_is_meant(said, txn),
        Request::Compact(compaction) => assert_eq!(compaction.revision, said.number(1)),
        Request::Watch { watch, .. } => {
            let create = Said::read(said.only().1);
            let key = match create.bytes(1) {
                // All keys: the first that there can be begins them.
                b"" => b"\0",
                key => key,
            };
            assert_eq!(watch.key, key);
            selects_alike(key, create.bytes(2), &watch.range);
            assert_eq!(watch.start_revision, create.number(3));
            assert_eq!(watch.progress_notify, create.flag(4));
            assert_eq!(watch.prev_kv, create.flag(6));
        }
        // Users and members are names and addresses.
        _ => {}
    }
}

fn put_is_meant(said: &Said<'_>, put: &PutRequest) {
    assert_eq!(put.key, said.bytes(1));
    assert_eq!(put.value, said.bytes(2));
    match (&put.lease, said.number(3)) {
        (LeaseTarget::None, 0) => {}
        (LeaseTarget::Lease(lease), id) if id > 0 => assert_eq!(lease.id, id),
        // There is no such lease, and none is granted by this entry.
        (LeaseTarget::Lease(lease), _) => assert_eq!(lease.grant_index, u64::MAX),
        (lease, id) => panic!("{lease:?} for the lease {id}"),
    }
    let flags = [put.prev_kv, put.ignore_value, put.ignore_lease];
    assert_eq!(flags, [4, 5, 6].map(|field| said.flag(field)));
}

fn range_is_meant(said: &Said<'_>, range: &RangeRequest) {
    assert_eq!(range.key, said.bytes(1));
    selects_alike(said.bytes(1), said.bytes(2), &range.range);
    // Below zero there is no limit, no revision and no lower bound.
    assert_eq!(range.limit, said.number(3).max(0).cast_unsigned());
    assert_eq!(range.revision, said.number(4).max(0));
    let order = [SortOrder::None, SortOrder::Ascend, SortOrder::Descend];
    assert_eq!(range.sort_order, order[said.number(5) as usize]);
    let target = [
        SortTarget::Key,
        SortTarget::Version,
        SortTarget::CreateRevision,
        SortTarget::ModRevision,
        SortTarget::Value,
    ];
    assert_eq!(range.sort_target, target[said.number(6) as usize]);
    assert_eq!(range.keys_only, said.flag(8));
    assert_eq!(range.is_count_only(), said.flag(9));
    let passes =
        |revision: i64, least: i64, most: i64| revision >= least && (most == 0 || revision <= most);
    for revision in [1, 2, 7, 1 << 40] {
        for (least, most) in [(10, 11), (12, 13)] {
            let in_etcd = passes(revision, said.number(least), said.number(most));
            let (least, most) = match least {
                10 => (range.min_mod_revision, range.max_mod_revision),
                _ => (range.min_create_revision, range.max_create_revision),
            };
            let none_pass = said.number(11) < 0 || said.number(13) < 0;
            assert!(none_pass || passes(revision, least, most) == in_etcd);
        }
    }
}

fn txn_is_meant(said: &Said<'_>, txn: &TxnRequest) {
    let compares: Vec<_> = said.list(1).map(Said::read).collect();
    assert!(txn.compare.len() <= compares.len());
    // One of an empty range may always hold, and then is left out.
    if txn.compare.len() == compares.len() {
        for (said, compare) in compares.iter().zip(&txn.compare) {
            compare_is_meant(said, compare);
        }
    }
    for (field, ops) in [(2, &txn.success), (3, &txn.failure)] {
        let said: Vec<_> = said
            .list(field)
            .filter(|said| !deletes_nothing(said))
            .collect();
        assert_eq!(ops.len(), said.len(), "each operation keeps its place");
        for (said, op) in said.into_iter().zip(ops) {
            let (field, body) = Said::read(said).only();
            let said = Said::read(body);
            match (field, op) {
                (1, TxnOp::Range(range)) if range.is_count_only() && !said.flag(9) => {
                    assert!(is_empty(&said), "only an empty range is replaced");
                }
                (1, TxnOp::Range(_)) if is_empty(&said) => {}
                (1, TxnOp::Range(range)) => range_is_meant(&said, range),
                (2, TxnOp::Put(put)) => put_is_meant(&said, put),
                (3, TxnOp::DeleteRange(delete)) => {
                    assert_eq!(delete.key, said.bytes(1));
                    selects_alike(said.bytes(1), said.bytes(2), &delete.range);
                    assert_eq!(delete.prev_kv, said.flag(3));
                }
                (4, TxnOp::Txn(txn)) => txn_is_meant(&said, txn),
                (field, op) => panic!("operation {field} became {op:?}"),
            }
        }
    }
}

/// Whether an operation is a delete of an empty range, which is judged and not carried out.
fn deletes_nothing(operation: &[u8]) -> bool {
    let (field, body) = Said::read(operation).only();
    field == 3 && is_empty(&Said::read(body))
}

/// Whether the range of an operation ends before it begins.
fn is_empty(said: &Said<'_>) -> bool {
    let end = said.bytes(2);
    end > b"\0".as_slice() && end <= said.bytes(1)
}

fn compare_is_meant(said: &Said<'_>, compare: &Compare) {
    assert_eq!(compare.key, said.bytes(3));
    let end = said.bytes(64);
    if end > b"\0".as_slice() && end <= said.bytes(3) {
        return;
    }
    selects_alike(said.bytes(3), end, &compare.range);
    let ops = [
        CompareOp::Equal,
        CompareOp::Greater,
        CompareOp::Less,
        CompareOp::NotEqual,
    ];
    assert_eq!(compare.op, ops[said.number(1) as usize]);
    match (&compare.target, said.number(2)) {
        (CompareTarget::Version(version), 0) => assert_eq!(*version, said.number(4)),
        (CompareTarget::CreateRevision(revision), 1) => assert_eq!(*revision, said.number(5)),
        (CompareTarget::ModRevision(revision), 2) => assert_eq!(*revision, said.number(6)),
        (CompareTarget::Value(value), 3) => assert_eq!(value, said.bytes(7)),
        (CompareTarget::Lease(lease), 4) => assert_eq!(*lease, said.number(8)),
        (target, said) => panic!("{target:?} for the target {said}"),
    }
}
