//! Answers to reads as large as etcd gives them: of one revision, put together from pages of this node.
//!
//! What fits one reply of ours is one. What does not is read again page by page, at the revision of the
//! first answer, and sorted here if that was asked. The node's memory bounds it.

use std::cmp::Ordering;

use bytes::Bytes;

use super::caller::Caller;
use crate::api;
use crate::api::{
    Consistency, KeyRange, KeyValue, RangeRequest, Request, ResponseBody, ResponseHeader,
    SortOrder, SortTarget,
};
use crate::etcd::convert::RangePlan;
use crate::etcd::errors::{COMPACTED, Method, STOPPED, TOO_MANY_REQUESTS};
use crate::etcd::status::{Code, Status};
use crate::server::session::LocalClient;

/// How often a read begins again because history was compacted meanwhile.
const ATTEMPTS_MAX: usize = 3;
/// What a record takes beside its key and value.
pub(super) const AROUND_BYTES: usize = 128;

/// A whole answer.
pub(super) struct WholeRange {
    pub(super) header: ResponseHeader,
    pub(super) range: api::RangeResponse,
    /// What is held of the node's memory for it, if it is large.
    pub(super) held: Option<Box<dyn Send + Sync>>,
}

/// Reads what `plan` asks for.
///
/// # Errors
/// As etcd would refuse it; *resource exhausted* if it is larger than this node puts together.
pub(super) async fn read(
    caller: &Caller,
    plan: &RangePlan,
    consistency: Consistency,
) -> Result<WholeRange, Status> {
    let mut attempt = 1;
    loop {
        let request = Request::Range(plan.request.clone());
        let response = caller.ask(request, consistency, Method::Range).await?;
        let ResponseBody::Range(range) = response.body else {
            return Err(unexpected());
        };
        let first = WholeRange {
            header: response.header,
            range: plan.answer(range),
            held: None,
        };
        if !is_cut_by_size(&plan.request, &first.range) {
            return Ok(first);
        }
        // Apart: most answers are one page, and theirs is the future that is moved.
        match Box::pin(read_pages(caller, &plan.request, first)).await {
            // Only a revision that the client did not name may be chosen again.
            Err(status)
                if status == COMPACTED && plan.request.revision == 0 && attempt < ATTEMPTS_MAX =>
            {
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// That a session answered with something else than was asked.
pub(super) fn unexpected() -> Status {
    Status::new(
        Code::Unknown,
        "etcdserver: the request was answered with something else",
    )
}

pub(super) fn is_cut_by_size(request: &RangeRequest, range: &api::RangeResponse) -> bool {
    let found = range.kvs.len() as u64;
    range.more && (request.limit == 0 || found < request.limit)
}

async fn read_pages(
    caller: &Caller,
    request: &RangeRequest,
    first: WholeRange,
) -> Result<WholeRange, Status> {
    let revision = match request.revision {
        0 => first.header.revision,
        given => given,
    };
    let is_sorted = request.sort().is_some();
    let mut pages = Pages {
        client: caller.client(),
        kvs: Vec::new(),
        bytes: 0,
        held: Vec::new(),
    };
    let mut page = RangeRequest {
        revision,
        // Most sorted answers are cut once they are sorted; one more says whether there are more.
        limit: match is_sorted && !request.is_cut_before_sorting() || request.limit == 0 {
            true => 0,
            false => request.limit.saturating_add(1),
        },
        keys_only: request.keys_only && !request.sorts_by_value(),
        sort_target: SortTarget::Key,
        sort_order: SortOrder::None,
        ..request.clone()
    };
    let mut is_whole = true;
    loop {
        let asked = Request::RangePage(page.clone());
        let response = caller
            .ask_at(asked, Consistency::Serializable, revision, Method::Range)
            .await?;
        let ResponseBody::RangePage(found) = response.body else {
            return Err(unexpected());
        };
        pages.add(found.kvs)?;
        let got = pages.kvs.len() as u64;
        let Some(next) = found
            .next
            .filter(|_| page.limit == 0 || got <= request.limit)
        else {
            break;
        };
        if pages.bytes > caller.options.reply_bytes_max {
            if is_sorted || request.limit == 0 {
                return Err(too_large(caller.options.reply_bytes_max));
            }
            is_whole = false;
            break;
        }
        if page.limit > 0 {
            page.limit = (request.limit + 1).saturating_sub(got).max(1);
        }
        page = RangeRequest {
            range: rest(&page.range),
            key: next,
            ..page
        };
    }
    pages.sort(request).await?;
    Ok(pages.finish(request, &first, is_whole))
}

/// What is left of a range after its first page.
pub(super) fn rest(range: &KeyRange) -> KeyRange {
    match range {
        KeyRange::Until(end) => KeyRange::Until(end.clone()),
        // One key has no second page.
        KeyRange::Single => KeyRange::Single,
        KeyRange::Prefix | KeyRange::From => KeyRange::From,
    }
}

/// What was read of a range.
struct Pages<'a> {
    client: &'a LocalClient,
    kvs: Vec<KeyValue>,
    bytes: usize,
    held: Vec<Box<dyn Send + Sync>>,
}

impl Pages<'_> {
    fn add(&mut self, kvs: Vec<KeyValue>) -> Result<(), Status> {
        let of = |kv: &KeyValue| kv.key.len() + kv.value.len() + AROUND_BYTES;
        let bytes: usize = kvs.iter().map(of).sum();
        // Once as it was read, and once as it is sent.
        let held = self.client.reserve(2 * bytes).ok_or(TOO_MANY_REQUESTS)?;
        self.held.push(Box::new(held));
        self.bytes += bytes;
        self.kvs.extend(kvs);
        Ok(())
    }

    /// Sorts what was found, if that is asked for.
    async fn sort(&mut self, request: &RangeRequest) -> Result<(), Status> {
        let Some((target, order)) = request.sort() else {
            return Ok(());
        };
        let mut kvs = std::mem::take(&mut self.kvs);
        // It takes its time, and other calls of the connection do not wait for it.
        let sorted = tokio::task::spawn_blocking(move || {
            sort(&mut kvs, target, order);
            kvs
        });
        self.kvs = sorted.await.map_err(|_| STOPPED)?;
        Ok(())
    }

    fn finish(mut self, request: &RangeRequest, first: &WholeRange, is_whole: bool) -> WholeRange {
        let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
        let more = !is_whole || limit > 0 && self.kvs.len() > limit;
        if limit > 0 {
            self.kvs.truncate(limit);
        }
        if request.keys_only {
            for kv in &mut self.kvs {
                kv.value = Bytes::new();
            }
        }
        WholeRange {
            header: first.header.clone(),
            range: api::RangeResponse {
                kvs: self.kvs,
                more,
                count: first.range.count,
            },
            held: Some(Box::new(self.held)),
        }
    }
}

/// Sorts records that are in the order of their keys; ties stay in that order.
fn sort(kvs: &mut [KeyValue], target: SortTarget, order: SortOrder) {
    let compare = |a: &KeyValue, b: &KeyValue| -> Ordering {
        match target {
            SortTarget::Key => a.key.cmp(&b.key),
            SortTarget::Version => a.version.cmp(&b.version),
            SortTarget::CreateRevision => a.create_revision.cmp(&b.create_revision),
            SortTarget::ModRevision => a.mod_revision.cmp(&b.mod_revision),
            SortTarget::Value => a.value.cmp(&b.value),
        }
    };
    kvs.sort_by(|a, b| match order {
        SortOrder::Descend => compare(b, a),
        SortOrder::None | SortOrder::Ascend => compare(a, b),
    });
}

fn too_large(bytes_max: usize) -> Status {
    Status::with(
        Code::ResourceExhausted,
        format!(
            "etcdserver: the answer has more than {bytes_max} bytes, the limit of \
             etcd_compat.max_reply_bytes: read less at a time"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_stay_in_the_order_of_keys_in_both_directions() {
        let kv = |key: &'static str, version| KeyValue {
            key: Bytes::from_static(key.as_bytes()),
            version,
            ..KeyValue::default()
        };
        let mut kvs = vec![kv("a", 1), kv("b", 2), kv("c", 1)];
        let keys = |kvs: &[KeyValue]| -> Vec<u8> { kvs.iter().map(|kv| kv.key[0]).collect() };
        sort(&mut kvs, SortTarget::Version, SortOrder::None);
        assert_eq!(keys(&kvs), b"acb");
        kvs.sort_by(|a, b| a.key.cmp(&b.key));
        sort(&mut kvs, SortTarget::Version, SortOrder::Descend);
        assert_eq!(keys(&kvs), b"bac");
        sort(&mut kvs, SortTarget::Key, SortOrder::Descend);
        assert_eq!(keys(&kvs), b"cba");
    }
}
