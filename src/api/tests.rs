//! Bounds of requests, and how an error reads.

use bytes::Bytes;

use super::*;

fn put(key: usize, value: usize) -> Request {
    Request::Put(PutRequest {
        key: Bytes::from(vec![b'k'; key]),
        value: Bytes::from(vec![b'v'; value]),
        prev_kv: false,
        ..PutRequest::default()
    })
}

#[test]
fn limits_hold_at_the_bound_and_one_beyond() {
    let limits = Limits::DEFAULT;
    assert!(validate(&put(1, 0), &limits).is_ok());
    assert!(validate(&put(limits.key_bytes_max, limits.value_bytes_max), &limits).is_ok());
    let empty = validate(&put(0, 1), &limits).unwrap_err();
    assert_eq!(empty.kind, ErrorKind::InvalidArgument);
    let long_key = validate(&put(limits.key_bytes_max + 1, 1), &limits).unwrap_err();
    assert!(matches!(
        long_key.kind,
        ErrorKind::RequestTooLarge {
            limit: 16_384,
            actual: 16_385
        }
    ));
    let long_value = validate(&put(1, limits.value_bytes_max + 1), &limits).unwrap_err();
    assert!(matches!(long_value.kind, ErrorKind::RequestTooLarge { .. }));
    assert_eq!(long_value.outcome, Outcome::NotApplied);
}

#[test]
fn an_inverted_range_is_refused_and_an_empty_prefix_means_everything() {
    let inverted = Request::Range(RangeRequest {
        key: Bytes::from_static(b"b"),
        range: KeyRange::Until(Bytes::from_static(b"a")),
        ..RangeRequest::default()
    });
    let error = validate(&inverted, &Limits::DEFAULT).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    let all = Request::Range(RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    });
    assert!(validate(&all, &Limits::DEFAULT).is_ok());
}

#[test]
fn revisions_that_cannot_be_are_refused() {
    let range = RangeRequest {
        range: KeyRange::Prefix,
        ..RangeRequest::default()
    };
    for (revision, bound) in [(-1, 0), (0, -1)] {
        let requests = [
            RangeRequest {
                revision,
                min_mod_revision: bound,
                ..range.clone()
            },
            RangeRequest {
                revision,
                max_mod_revision: bound,
                ..range.clone()
            },
            RangeRequest {
                revision,
                min_create_revision: bound,
                ..range.clone()
            },
            RangeRequest {
                revision,
                max_create_revision: bound,
                ..range.clone()
            },
        ];
        for request in requests {
            let error = validate(&Request::Range(request), &Limits::DEFAULT).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.detail.contains("-1"), "{error}");
        }
    }
    for revision in [i64::MIN, -1, 0] {
        let compaction = Request::Compact(CompactionRequest::at(revision));
        let error = validate(&compaction, &Limits::DEFAULT).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn an_error_reads_as_a_sentence_and_says_what_became_of_the_request() {
    let error = Error::unknown(ErrorKind::ConnectionLost, "the connection to n1 broke");
    assert_eq!(
        error.to_string(),
        "the connection to n1 broke (LH-CONNECTION-LOST; the request may have taken effect)"
    );
}
