//! What commands share: requests from arguments, and answers of the kind that was asked for.

use std::ffi::OsString;
use std::future::poll_fn;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;

use crate::api;
use crate::api::{
    DeleteRangeRequest, ErrorKind, Fence, KeyRange, LeaseTarget, PutRequest, RangeCount,
    RangeRequest, Request, Response, ResponseBody, ResponseHeader, SortOrder, SortTarget,
    StatusResponse, TxnOp, TxnOpResponse, TxnRequest,
};
use crate::cli::arguments::{DelArgs, GetArgs, Order, PutArgs, RangeArgs, SortBy};
use crate::cli::connection::{Connection, Target};
use crate::cli::failure::Failure;
use crate::cli::print::Parts;
use crate::clock::SystemClock;
use crate::time::Clock;

/// What an endpoint said when it was asked for its status.
pub(super) struct StatusAnswer {
    pub(super) endpoint: String,
    pub(super) took: Duration,
    pub(super) answer: Result<(ResponseHeader, StatusResponse), Failure>,
}

/// The status of the first endpoint that answers.
pub(super) async fn any_status(
    connection: &impl Connection,
    target: &Target,
) -> Result<(ResponseHeader, StatusResponse), Failure> {
    let mut failure = Failure::usage("no endpoint was given");
    for endpoint in &target.endpoints {
        match status_of(connection, endpoint).await {
            Ok(answer) => return Ok(answer),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

pub(super) async fn status_of(
    connection: &impl Connection,
    endpoint: &str,
) -> Result<(ResponseHeader, StatusResponse), Failure> {
    let Response { header, body } = connection.status(endpoint).await?;
    match body {
        ResponseBody::Status(status) => Ok((header, *status)),
        other => Err(unexpected(&other)),
    }
}

/// The status of each endpoint, in this order. All are asked at once, so that those that do not answer take
/// the time of one.
pub(super) async fn statuses_of(
    connection: &impl Connection,
    endpoints: Vec<String>,
) -> Vec<StatusAnswer> {
    let ask = async |endpoint: String| {
        let began = SystemClock.now();
        let answer = status_of(connection, &endpoint).await;
        let took = SystemClock.now().at_least_since(began);
        StatusAnswer {
            endpoint,
            took,
            answer,
        }
    };
    let mut asked: Vec<_> = endpoints
        .into_iter()
        .map(|endpoint| (Box::pin(ask(endpoint)), None))
        .collect();
    poll_fn(|context| {
        for (question, answer) in &mut asked {
            if answer.is_none()
                && let Poll::Ready(ready) = question.as_mut().poll(context)
            {
                *answer = Some(ready);
            }
        }
        match asked.iter().all(|(_, answer)| answer.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    asked.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Where clients reach the members of the cluster.
pub(super) async fn members(
    connection: &impl Connection,
    target: &Target,
) -> Result<Vec<String>, Failure> {
    let (_, body) = any_status(connection, target).await?;
    let known = |member: &api::MemberInfo| !member.client_address.is_empty();
    let members = body.members.into_iter().filter(known);
    Ok(members.map(|member| member.client_address).collect())
}

pub(super) async fn write(
    connection: &impl Connection,
    request: Request,
) -> Result<(ResponseHeader, ResponseBody), Failure> {
    let response = connection.call(request, api::Consistency::default());
    let Response { header, body } = response.await?;
    Ok((header, body))
}

/// A write that the store refuses once a lock has moved on; answered as it would be by itself.
pub(super) async fn fenced(
    connection: &impl Connection,
    fences: &[Fence],
    op: TxnOp,
) -> Result<(ResponseHeader, ResponseBody), Failure> {
    let request = Request::Txn(TxnRequest::fenced(fences, op)?);
    let (header, body) = write(connection, request).await?;
    let ResponseBody::Txn(txn) = body else {
        return Err(unexpected(&body));
    };
    let body = match txn.into_fenced()? {
        TxnOpResponse::Range(range) => ResponseBody::Range(range),
        TxnOpResponse::Put(put) => ResponseBody::Put(put),
        TxnOpResponse::DeleteRange(delete) => ResponseBody::DeleteRange(delete),
        TxnOpResponse::Txn(txn) => ResponseBody::Txn(txn),
    };
    Ok((header, body))
}

/// The put that is asked for, to `lease`. `value` gives its value if the arguments do not.
///
/// # Errors
/// Those of `value`.
pub(super) fn put_request(
    arguments: PutArgs,
    lease: LeaseTarget,
    value: impl FnOnce() -> Result<Bytes, Failure>,
) -> Result<PutRequest, Failure> {
    let value = match arguments.value {
        Some(value) => bytes(value),
        None if arguments.ignore_value => Bytes::new(),
        None => value()?,
    };
    Ok(PutRequest {
        key: bytes(arguments.key),
        value,
        prev_kv: arguments.prev_kv,
        ignore_value: arguments.ignore_value,
        ignore_lease: arguments.ignore_lease,
        lease,
    })
}

/// The read that is asked for, and which parts of what it finds are to be shown.
pub(super) fn get_request(arguments: GetArgs) -> (RangeRequest, Parts) {
    let parts = match (
        arguments.keys_only,
        arguments.print_value_only,
        arguments.count_only,
    ) {
        (true, _, _) => Parts::Keys,
        (_, true, _) => Parts::Values,
        (_, _, true) => Parts::Count,
        _ => Parts::All,
    };
    let (key, range) = key_range(arguments.range);
    let request = RangeRequest {
        key,
        range,
        limit: arguments.limit,
        keys_only: arguments.keys_only,
        count: match arguments.count_only {
            true => RangeCount::Only,
            false => RangeCount::All,
        },
        revision: arguments.rev,
        sort_target: match arguments.sort_by {
            SortBy::Key => SortTarget::Key,
            SortBy::Version => SortTarget::Version,
            SortBy::Create => SortTarget::CreateRevision,
            SortBy::Modify => SortTarget::ModRevision,
            SortBy::Value => SortTarget::Value,
        },
        sort_order: match arguments.order {
            None if matches!(arguments.sort_by, SortBy::Key) => SortOrder::None,
            // With none the limit would be applied before what it leaves is sorted.
            None | Some(Order::Ascend) => SortOrder::Ascend,
            Some(Order::Descend) => SortOrder::Descend,
        },
        min_mod_revision: arguments.min_mod_rev,
        max_mod_revision: arguments.max_mod_rev,
        min_create_revision: arguments.min_create_rev,
        max_create_revision: arguments.max_create_rev,
    };
    (request, parts)
}

/// The delete that is asked for. An empty key is often a variable that was not set, and every key
/// begins with it: every key is meant only with `--all`.
///
/// # Errors
/// The key is empty without `--all`, or there is one with it.
pub(super) fn delete_request(arguments: DelArgs) -> Result<DeleteRangeRequest, Failure> {
    let key = arguments.key.unwrap_or_default();
    let (key, range) = match (key.is_empty(), arguments.all) {
        (false, false) => key_range(RangeArgs {
            key: Some(key),
            end: arguments.end,
            prefix: arguments.prefix,
            from_key: arguments.from_key,
        }),
        (true, true) => (Bytes::new(), KeyRange::Prefix),
        (true, false) => {
            return Err(Failure::usage(
                "KEY is empty: name a key or a prefix, or delete every key with --all",
            ));
        }
        (false, true) => {
            return Err(Failure::usage(
                "--all deletes every key: leave KEY out, or leave --all out",
            ));
        }
    };
    Ok(DeleteRangeRequest {
        key,
        range,
        prev_kv: arguments.prev_kv,
    })
}

pub(super) fn key_range(arguments: RangeArgs) -> (Bytes, KeyRange) {
    let key = bytes(arguments.key.unwrap_or_default());
    let range = match (arguments.end, arguments.prefix, arguments.from_key) {
        (Some(end), _, _) => KeyRange::Until(bytes(end)),
        (None, true, _) => KeyRange::Prefix,
        (None, false, true) => KeyRange::From,
        (None, false, false) => KeyRange::Single,
    };
    (key, range)
}

fn bytes(text: OsString) -> Bytes {
    Bytes::from(text.into_vec())
}

pub(super) fn note(text: &str) {
    // If standard error is gone, the message is lost.
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Says on standard error that a lease has another TTL than was asked for.
pub(super) fn note_another_ttl(asked: Duration, granted: Duration) {
    if granted > asked {
        let [asked, granted] = [asked, granted].map(humantime::format_duration);
        note(&format!(
            "note: a TTL of {asked} is below the minimum of this cluster: the lease has {granted}"
        ));
    }
}

pub(super) fn unexpected(body: &ResponseBody) -> Failure {
    unexpected_body(body).into()
}

pub(super) fn unexpected_body(body: &ResponseBody) -> api::Error {
    api::Error::unknown(
        ErrorKind::Internal,
        format!("the server's reply does not match the request: {body:?}"),
    )
}
