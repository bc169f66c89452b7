//! RangeStream: a range of any size as many answers, of one revision.
//!
//! What etcd has of it since 3.7: each answer has about a mebibyte of records, and the last one has what says
//! something of the whole: header, `more` and `count`. Nothing is put together, so no limit of answers holds;
//! a client that does not read holds up what is read for it, and one that reads nothing for ten seconds loses
//! the call, with what is held for it, as with other large answers. Sorting would need everything at once, and is
//! left to Range, as are filters by revision.

use std::sync::Arc;

use hyper::Response;
use tokio::sync::mpsc;

use super::body::RequestBody;
use super::caller::Caller;
use super::grpc::{Reply, StreamFrame, message_frame, streaming_large};
use super::large::Patience;
use super::pages::{AROUND_BYTES, is_cut_by_size, rest, unexpected};
use super::stream::{Requests, send_answers};
use crate::api::{
    Consistency, KeyValue, RangeRequest, Request, ResponseBody, ResponseHeader, SortOrder,
    SortTarget,
};
use crate::etcd::convert;
use crate::etcd::convert::RangePlan;
use crate::etcd::errors::{Method, TOO_MANY_REQUESTS};
use crate::etcd::proto;
use crate::etcd::status::{Code, Status};

/// What an answer has of keys and values at least, unless it is the last.
const ANSWER_BYTES: usize = 1 << 20;
/// Answers that may wait until the client reads, beside the one that is on its way.
const WAITING_MAX: usize = 1;

const NO_SORTING: Status = Status::new(
    Code::Unimplemented,
    "RangeStream does not support custom sort orders",
);
const NO_FILTERS: Status = Status::new(
    Code::Unimplemented,
    "RangeStream does not support revision filters",
);

/// Serves RangeStream. The headers go out at once.
pub(super) fn serve(caller: Caller, body: RequestBody) -> Response<Reply> {
    send_answers(
        caller,
        WAITING_MAX,
        |answers| streaming_large(answers, Patience::TenSeconds),
        |caller, answers| async move { Some(send(&caller, body, &answers).await) },
    )
}

async fn send(
    caller: &Caller,
    body: RequestBody,
    answers: &mpsc::Sender<StreamFrame>,
) -> Result<(), Status> {
    let asked: proto::RangeRequest = Requests::new(caller.clone(), body).only().await?;
    let plan = plan_of(&asked)?;
    let consistency = caller.consistency(asked.serializable);
    let request = Request::Range(plan.request.clone());
    // Each page takes its own time.
    let own = caller.again();
    let first = own.ask(request, consistency, Method::Range).await?;
    let ResponseBody::Range(found) = first.body else {
        return Err(unexpected());
    };
    let found = plan.answer(found);
    let mut stream = Answers {
        caller,
        answers,
        header: first.header,
        count: found.count,
        waiting: proto::RangeResponse::default(),
        bytes: 0,
        held: Vec::new(),
        sent: 0,
    };
    let rest_of = is_cut_by_size(&plan.request, &found).then(|| found.kvs.last());
    let rest_of = rest_of.flatten().map(|last| last.key.clone());
    stream.add(found.kvs).await?;
    if let Some(last) = rest_of {
        let page = RangeRequest {
            key: crate::api::successor(&last),
            range: rest(&plan.request.range),
            revision: match plan.request.revision {
                0 => stream.header.revision,
                given => given,
            },
            sort_target: SortTarget::Key,
            sort_order: SortOrder::None,
            ..plan.request.clone()
        };
        stream.add_pages(page).await?;
    }
    stream.finish(plan.request.is_count_only()).await;
    Ok(())
}

/// What a request asks for.
///
/// # Errors
/// As etcd refuses it.
fn plan_of(asked: &proto::RangeRequest) -> Result<RangePlan, Status> {
    let plan = RangePlan::of(asked)?;
    let is_sorted = asked.sort_order != proto::SortOrder::None as i32
        && (asked.sort_order, asked.sort_target)
            != (
                proto::SortOrder::Ascend as i32,
                proto::SortTarget::Key as i32,
            );
    if is_sorted {
        return Err(NO_SORTING);
    }
    let filters = [
        asked.min_mod_revision,
        asked.max_mod_revision,
        asked.min_create_revision,
        asked.max_create_revision,
    ];
    if filters != [0; 4] {
        return Err(NO_FILTERS);
    }
    // A target without an order sorts Range, but not this.
    let request = RangeRequest {
        sort_target: SortTarget::Key,
        sort_order: SortOrder::None,
        ..plan.request
    };
    Ok(RangePlan { request, ..plan })
}

/// The answers to one call.
struct Answers<'a> {
    caller: &'a Caller,
    answers: &'a mpsc::Sender<StreamFrame>,
    /// Of the first page.
    header: ResponseHeader,
    /// Of all keys.
    count: u64,
    /// What goes into the next answer, and how much that is.
    waiting: proto::RangeResponse,
    bytes: usize,
    /// What is held of the node's memory for it.
    held: Vec<Arc<dyn Send + Sync>>,
    /// Records so far, those that wait included.
    sent: u64,
}

impl Answers<'_> {
    /// Reads what follows the first page, page by page.
    async fn add_pages(&mut self, mut page: RangeRequest) -> Result<(), Status> {
        let limit = page.limit;
        loop {
            if limit > 0 {
                page.limit = limit.saturating_sub(self.sent);
                if page.limit == 0 {
                    return Ok(());
                }
            }
            let (asked, revision) = (Request::RangePage(page.clone()), page.revision);
            let (consistency, method) = (Consistency::Serializable, Method::Range);
            let caller = self.caller.again();
            let found = caller.ask_at(asked, consistency, revision, method).await?;
            let ResponseBody::RangePage(found) = found.body else {
                return Err(unexpected());
            };
            self.add(found.kvs).await?;
            let Some(next) = found.next else {
                return Ok(());
            };
            page = RangeRequest {
                range: rest(&page.range),
                key: next,
                ..page
            };
        }
    }

    async fn add(&mut self, kvs: Vec<KeyValue>) -> Result<(), Status> {
        let bytes: usize = kvs.iter().map(bytes_of).sum();
        // Once as it was read, and once as it is sent.
        let held = self.caller.client().reserve(2 * bytes);
        let held: Arc<dyn Send + Sync> = Arc::new(held.ok_or(TOO_MANY_REQUESTS)?);
        for kv in kvs {
            if self.bytes >= ANSWER_BYTES {
                self.held.push(Arc::clone(&held));
                self.send().await;
            }
            self.bytes += bytes_of(&kv);
            self.sent += 1;
            self.waiting.kvs.push(convert::key_value(kv));
        }
        self.held.push(held);
        Ok(())
    }

    /// Sends the last answer. One that only counts has no `more`.
    async fn finish(mut self, is_count: bool) {
        self.waiting.header = Some(self.caller.header(&self.header));
        self.waiting.more = !is_count && self.sent < self.count;
        self.waiting.count = i64::try_from(self.count).unwrap_or(i64::MAX);
        self.send().await;
    }

    async fn send(&mut self) {
        let message = proto::RangeStreamResponse {
            range_response: Some(std::mem::take(&mut self.waiting)),
        };
        self.bytes = 0;
        let held = Arc::new(std::mem::take(&mut self.held));
        let frame = message_frame(&message).held_with(held);
        // Once the channel is closed, the call is over.
        let _ = self.answers.send(frame).await;
    }
}

fn bytes_of(kv: &KeyValue) -> usize {
    kv.key.len() + kv.value.len() + AROUND_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_need_everything_at_once_is_left_to_range() {
        let asked = |change: fn(&mut proto::RangeRequest)| {
            let mut asked = proto::RangeRequest {
                key: "a".into(),
                range_end: "b".into(),
                ..proto::RangeRequest::default()
            };
            change(&mut asked);
            plan_of(&asked).map(|plan| plan.request.sort())
        };
        assert_eq!(asked(|_| ()), Ok(None));
        assert_eq!(asked(|it| it.sort_order = 1), Ok(None));
        assert_eq!(asked(|it| it.sort_target = 1), Ok(None));
        assert_eq!(asked(|it| it.sort_order = 2), Err(NO_SORTING));
        assert_eq!(
            asked(|it| (it.sort_order, it.sort_target) = (1, 1)),
            Err(NO_SORTING)
        );
        let filters: [fn(&mut proto::RangeRequest); 4] = [
            |it| it.min_mod_revision = 1,
            |it| it.max_mod_revision = -1,
            |it| it.min_create_revision = 1,
            |it| it.max_create_revision = 1,
        ];
        for filter in filters {
            assert_eq!(asked(filter), Err(NO_FILTERS));
        }
        assert!(asked(|it| it.key = "".into()).is_err());
        assert!(asked(|it| it.sort_order = 7).is_err_and(|it| it != NO_SORTING));
    }
}
