//! What follows from what a request is, against a golden file: see `tests/pins`.

#[path = "../../../../tests/pins/golden.rs"]
mod golden;

use std::fmt::Write;

use bytes::Bytes;

use crate::api::fixtures::every_request;
use crate::api::{
    AuthRequest, DeleteRangeRequest, KeyRange, LeaseGrantRequest, LeaseTarget, Password,
    PutRequest, RangeCount, RangeRequest, Request, RequestKind, Secret, SortTarget, TxnOp,
    TxnRequest,
};
use crate::kv::access::needs;
use crate::server::session::auth::{AuthorizationPoint, Note};

/// Requests of which it depends on more than their kind what follows.
fn variants() -> Vec<(&'static str, Request)> {
    let key = Bytes::from_static(b"a/k");
    let range = RangeRequest {
        key: key.clone(),
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    let put = PutRequest {
        key: key.clone(),
        value: vec![0; 64 << 10].into(),
        prev_kv: true,
        lease: LeaseTarget::Name("n".into()),
        ..PutRequest::default()
    };
    let delete = DeleteRangeRequest {
        key,
        range: KeyRange::Prefix,
        prev_kv: true,
    };
    let txn = |op: &TxnOp| Request::Txn(TxnRequest::new().and_then([op.clone()]));
    let reads = TxnOp::Range(range.clone());
    let puts = TxnOp::Put(put.clone());
    let deletes = TxnOp::DeleteRange(delete.clone());
    let nested = TxnOp::Txn(TxnRequest::new().or_else([puts.clone(), reads.clone()]));
    vec![
        ("of a prefix", Request::Range(range.clone())),
        (
            "that counts",
            Request::Range(RangeRequest {
                count: RangeCount::Only,
                ..range.clone()
            }),
        ),
        (
            "of the past",
            Request::Range(RangeRequest {
                range: KeyRange::Single,
                revision: 3,
                ..range.clone()
            }),
        ),
        (
            "sorted",
            Request::Range(RangeRequest {
                sort_target: SortTarget::Value,
                ..range
            }),
        ),
        ("large", Request::Put(put.clone())),
        ("of a prefix", Request::DeleteRange(delete)),
        ("empty", Request::Txn(TxnRequest::new())),
        ("that reads", txn(&reads)),
        ("that puts", txn(&puts)),
        ("that deletes", txn(&deletes)),
        ("nested", txn(&nested)),
        (
            "large",
            Request::PutWithNewLease(LeaseGrantRequest::default(), put),
        ),
        ("of no lease", Request::LeaseKeepAlive(Vec::new())),
        (
            "without keys",
            Request::LeaseTimeToLive { id: 7, keys: false },
        ),
        (
            "in plain",
            Request::Auth(AuthRequest::UserAdd {
                name: "anna".into(),
                password: Password::Plain(Secret::new("x")),
            }),
        ),
    ]
}

#[test]
fn what_follows_from_what_a_request_is_stays_as_it_was() {
    let kinds = every_request().into_iter().map(|request| ("", request));
    let mut out = String::new();
    for (variant, request) in kinds.chain(variants()) {
        let spec = request.spec();
        writeln!(out, "=== {} {variant}", spec.name).unwrap();
        for (name, said) in [
            ("write", request.is_write()),
            ("read", request.is_read()),
            ("member change", spec.kind == RequestKind::MemberChange),
            ("watch control", spec.kind == RequestKind::Watch),
            ("urgent", spec.is_urgent()),
            ("large", request.is_large()),
            ("throttled", spec.is_throttled),
        ] {
            if said {
                writeln!(out, "{name}").unwrap();
            }
        }
        let safety = [false, true].map(|numbered| spec.safety(numbered));
        writeln!(
            out,
            "sent again: {:?}, numbered: {:?}",
            safety[0], safety[1]
        )
        .unwrap();
        writeln!(out, "class: {:?}", spec.class).unwrap();
        writeln!(out, "judged: {:?}", AuthorizationPoint::of(spec.kind)).unwrap();
        writeln!(out, "audit: {:?}", Note::of(&request)).unwrap();
        writeln!(out, "needs: {:?}", needs(&request)).unwrap();
    }
    golden::check("requests.txt", &out);
}
