//! Reads of keys.

use super::Keys;
use crate::api;
use crate::api::{KeyRange, RangeCount, RangeRequest, ResponseHeader, SortOrder, SortTarget};
use crate::etcd::errors::{EMPTY_KEY, INVALID_SORT_OPTION};
use crate::etcd::proto;
use crate::etcd::status::Status;

/// A read, and what becomes of its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangePlan {
    /// What is asked.
    pub(crate) request: RangeRequest,
    /// The range has no keys: the read is made for its header and its refusals alone.
    pub(crate) is_empty: bool,
}

impl RangePlan {
    /// Of a request.
    ///
    /// # Errors
    /// As etcd refuses it.
    pub(crate) fn of(range: &proto::RangeRequest) -> Result<Self, Status> {
        if range.key.is_empty() {
            return Err(EMPTY_KEY);
        }
        let (sort_target, mut sort_order) = (sort_target(range)?, sort_order(range)?);
        // A filter that lets everything pass is one to etcd, which then sorts before it applies the limit.
        let passes_all = range.min_mod_revision < 0 || range.min_create_revision < 0;
        if passes_all && sort_order == SortOrder::None {
            sort_order = SortOrder::Ascend;
        }
        let keys = Keys::of(&range.key, &range.range_end);
        let is_empty = keys == Keys::None;
        // A bound of zero is none, and so is a lower one below that; nothing is below a negative upper one.
        let passes_none = range.max_mod_revision < 0 || range.max_create_revision < 0;
        let request = RangeRequest {
            key: range.key.clone(),
            range: match keys {
                Keys::Some(range) => range,
                Keys::None => KeyRange::Single,
            },
            limit: u64::try_from(range.limit).unwrap_or(0),
            keys_only: range.keys_only,
            count: match range.count_only || is_empty {
                true => RangeCount::Only,
                false => RangeCount::All,
            },
            revision: range.revision.max(0),
            sort_target,
            sort_order,
            min_mod_revision: match passes_none {
                true => i64::MAX,
                false => range.min_mod_revision.max(0),
            },
            max_mod_revision: range.max_mod_revision.max(0),
            min_create_revision: range.min_create_revision.max(0),
            max_create_revision: range.max_create_revision.max(0),
        };
        Ok(Self { request, is_empty })
    }

    /// What the answer is, given what was found.
    pub(crate) fn answer(&self, found: api::RangeResponse) -> api::RangeResponse {
        match self.is_empty {
            true => api::RangeResponse::default(),
            false => found,
        }
    }
}

fn sort_target(range: &proto::RangeRequest) -> Result<SortTarget, Status> {
    let target = proto::SortTarget::try_from(range.sort_target);
    Ok(match target.map_err(|_| INVALID_SORT_OPTION)? {
        proto::SortTarget::Key => SortTarget::Key,
        proto::SortTarget::Version => SortTarget::Version,
        proto::SortTarget::Create => SortTarget::CreateRevision,
        proto::SortTarget::Mod => SortTarget::ModRevision,
        proto::SortTarget::Value => SortTarget::Value,
    })
}

fn sort_order(range: &proto::RangeRequest) -> Result<SortOrder, Status> {
    let order = proto::SortOrder::try_from(range.sort_order);
    Ok(match order.map_err(|_| INVALID_SORT_OPTION)? {
        proto::SortOrder::None => SortOrder::None,
        proto::SortOrder::Ascend => SortOrder::Ascend,
        proto::SortOrder::Descend => SortOrder::Descend,
    })
}

/// The header of an answer, at `revision`.
pub(crate) fn header(of: &ResponseHeader, revision: i64) -> proto::ResponseHeader {
    proto::ResponseHeader {
        cluster_id: of.cluster_id,
        member_id: of.member_id.0,
        revision,
        raft_term: of.raft_term.0,
    }
}

/// A record.
pub(crate) fn key_value(kv: api::KeyValue) -> proto::KeyValue {
    proto::KeyValue {
        key: kv.key,
        create_revision: kv.create_revision,
        mod_revision: kv.mod_revision,
        version: kv.version,
        value: kv.value,
        lease: kv.lease,
    }
}

/// The answer to a read.
pub(crate) fn range_response(
    header: proto::ResponseHeader,
    range: api::RangeResponse,
) -> proto::RangeResponse {
    proto::RangeResponse {
        header: Some(header),
        kvs: range.kvs.into_iter().map(key_value).collect(),
        more: range.more,
        count: i64::try_from(range.count).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn range(key: &'static str, range_end: &'static str) -> proto::RangeRequest {
        proto::RangeRequest {
            key: Bytes::from_static(key.as_bytes()),
            range_end: Bytes::from_static(range_end.as_bytes()),
            ..proto::RangeRequest::default()
        }
    }

    #[test]
    fn a_range_that_ends_before_it_begins_finds_nothing_and_is_read_all_the_same() {
        let plan = RangePlan::of(&range("b", "a")).unwrap();
        assert!(plan.request.is_count_only());
        assert_eq!(plan.request.range, KeyRange::Single);
        let found = api::RangeResponse {
            count: 1,
            ..api::RangeResponse::default()
        };
        assert_eq!(plan.answer(found).count, 0);
    }

    #[test]
    fn numbers_below_zero_are_no_bounds_but_for_the_upper_ones() {
        let asked = proto::RangeRequest {
            limit: -1,
            revision: -2,
            min_mod_revision: -3,
            ..range("a", "")
        };
        let request = RangePlan::of(&asked).unwrap().request;
        assert_eq!((request.limit, request.revision), (0, 0));
        assert_eq!(request.min_mod_revision, 0);
        assert_eq!(request.sort_order, SortOrder::Ascend);
        let asked = proto::RangeRequest {
            max_create_revision: -1,
            ..range("a", "")
        };
        let request = RangePlan::of(&asked).unwrap().request;
        assert_eq!(request.min_mod_revision, i64::MAX);
    }

    #[test]
    fn a_key_is_needed_and_only_known_orders_are_taken() {
        assert_eq!(RangePlan::of(&range("", "b")), Err(EMPTY_KEY));
        for (sort_order, sort_target) in [(3, 0), (0, 5), (-1, 0)] {
            let asked = proto::RangeRequest {
                sort_order,
                sort_target,
                ..range("a", "")
            };
            assert_eq!(RangePlan::of(&asked), Err(INVALID_SORT_OPTION));
        }
    }
}
