//! The verbs that talk to a cluster, over the seam of `connection`.

use std::ffi::OsString;
use std::io;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use bytes::Bytes;

use super::access;
use super::access::AccessCommand;
use super::arguments::lease::LeaseCommand;
use super::arguments::lock::{ElectArgs, LockArgs};
use super::arguments::member::MemberCommand;
use super::arguments::snapshot::SnapshotCommand;
use super::arguments::{
    ClusterTopArgs, CompactionArgs, DelArgs, GetArgs, GlobalArgs, MoveLeaderArgs, Order, PutArgs,
    RangeArgs, SortBy, StatusArgs, TxnArgs, WatchArgs,
};
use super::connection::{Connection, Target};
use super::failure::{Exit, Failure};
use super::print::{self, EndpointStatus, Parts, View};
use super::txn::Script;
use super::{lease, lock, member};
use super::{snapshot, top};
use crate::api;
use crate::api::{
    CompactionRequest, DeleteRangeRequest, ErrorKind, Fence, KeyRange, LeaseRef, LeaseTarget,
    PutRequest, RangeRequest, Request, Response, ResponseBody, ResponseHeader, SortOrder,
    SortTarget, StatusResponse, TxnOp, TxnOpResponse, TxnRequest,
};
use crate::types::NodeId;

/// A verb with its arguments.
#[derive(Debug)]
pub enum Verb {
    /// Write a key.
    Put(PutArgs),
    /// Read keys.
    Get(GetArgs),
    /// Delete keys.
    Del(DelArgs),
    /// Carry out a transaction.
    Txn(TxnArgs),
    /// Show what happens to keys.
    Watch(WatchArgs),
    /// Give up history.
    Compaction(CompactionArgs),
    /// Grant, renew and end leases.
    Lease(LeaseCommand),
    /// Hold a lock.
    Lock(LockArgs),
    /// Stand in an election, or look who leads.
    Elect(ElectArgs),
    /// Show the alarms of every member.
    Alarms,
    /// Show how each endpoint is.
    Status(StatusArgs),
    /// See and change who the members are.
    Member(MemberCommand),
    /// Hand leadership to another node.
    MoveLeader(MoveLeaderArgs),
    /// Say who may do what.
    Access(AccessCommand),
    /// Show how the cluster stands.
    Top(ClusterTopArgs),
    /// Back everything up.
    Snapshot(SnapshotCommand),
}

/// How often a new leader is looked for.
const LEADER_POLL: Duration = Duration::from_millis(50);
/// How often a node is asked whether it has removed what it should.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

/// Carries a verb out and prints what came of it.
///
/// # Errors
/// What went wrong, with the code to end with.
pub async fn run(
    verb: Verb,
    connection: &impl Connection,
    target: &Target,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let view = View {
        format: global.output,
        hex: global.hex,
    };
    match verb {
        Verb::Put(arguments) => put(arguments, connection, view, out).await,
        Verb::Get(arguments) => get(arguments, connection, global.consistency, view, out).await,
        Verb::Del(arguments) => del(arguments, connection, view, out).await,
        Verb::Txn(arguments) => {
            let script = Script::read(io::stdin().lock(), arguments.interactive)?;
            txn(script, connection, global.consistency, view, out).await
        }
        Verb::Watch(arguments) => super::watch::run(arguments, connection, view, out).await,
        Verb::Compaction(arguments) => compaction(&arguments, connection, target, view, out).await,
        Verb::Lease(command) => {
            lease::run(command, connection, global.consistency, view, out).await
        }
        Verb::Lock(arguments) => lock::lock(arguments, connection, view, out).await,
        Verb::Elect(arguments) => lock::elect(arguments, connection, view, out).await,
        Verb::Alarms => alarms(connection, target, view, out).await,
        Verb::Status(arguments) => status(&arguments, connection, target, view, out).await,
        Verb::Member(command) => {
            member::run(command, connection, global.consistency, view, out).await
        }
        Verb::MoveLeader(arguments) => move_leader(&arguments, connection, target, view, out).await,
        Verb::Access(command) => access::run(command, connection, view, out).await,
        Verb::Top(arguments) => {
            let live = io::stdout().is_terminal();
            top::run(&arguments, connection, target, view, live, out).await
        }
        Verb::Snapshot(command) => snapshot::run(&command, connection, global, out).await,
    }
}

async fn put(
    arguments: PutArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let fences = arguments.fence.clone();
    let put = put_request(arguments, from_standard_input)?;
    let (header, body) = match fences.as_slice() {
        [] => write(connection, Request::Put(put)).await?,
        fences => fenced(connection, fences, TxnOp::Put(put)).await?,
    };
    match body {
        ResponseBody::Put(body) => Ok(print::put(out, view, &header, &body)?),
        other => Err(unexpected(&other)),
    }
}

async fn get(
    arguments: GetArgs,
    connection: &impl Connection,
    consistency: api::Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (asked, parts) = get_request(arguments);
    let (key, range) = (asked.key.clone(), asked.range.clone());
    let request = Request::Range(asked.clone());
    let response = connection.call(request, consistency).await?;
    let ResponseBody::Range(body) = response.body else {
        return Err(unexpected(&response.body));
    };
    let header = response.header;
    let is_plain = asked.sort_target == SortTarget::Key && asked.sort_order != SortOrder::Descend;
    if body.more && asked.limit == 0 && is_plain && parts != Parts::Count {
        let (how, whom) = ((parts, view), (connection, consistency));
        return rest::print(body, asked, how, whom, &header, out).await;
    }
    print::get(out, view, parts, &header, &body)?;
    if range == KeyRange::Single && body.count == 0 && parts != Parts::Count {
        let key = String::from_utf8_lossy(&key).into_owned();
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no key {key:?}"),
        ));
    }
    if body.more && asked.limit == 0 {
        out.flush()?;
        return Err(Failure::refused(format!(
            "the range has {} keys, and one reply holds only the first {}: read the rest with a \
             range that begins after the last key shown",
            body.count,
            body.kvs.len()
        )));
    }
    Ok(())
}

async fn del(
    arguments: DelArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let fences = arguments.fence.clone();
    let delete = delete_request(arguments);
    let (header, body) = match fences.as_slice() {
        [] => write(connection, Request::DeleteRange(delete)).await?,
        fences => fenced(connection, fences, TxnOp::DeleteRange(delete)).await?,
    };
    match body {
        ResponseBody::DeleteRange(body) => Ok(print::delete(out, view, &header, &body)?),
        other => Err(unexpected(&other)),
    }
}

async fn write(
    connection: &impl Connection,
    request: Request,
) -> Result<(ResponseHeader, ResponseBody), Failure> {
    let response = connection.call(request, api::Consistency::default());
    let Response { header, body } = response.await?;
    Ok((header, body))
}

/// A write that the store refuses once a lock has moved on; answered as it would be by itself.
async fn fenced(
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

async fn txn(
    script: Script,
    connection: &impl Connection,
    consistency: api::Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (txn, parts) = script.into_request();
    let response = connection.call(Request::Txn(txn), consistency).await?;
    let ResponseBody::Txn(body) = response.body else {
        return Err(unexpected(&response.body));
    };
    let parts = match body.succeeded {
        true => parts.success,
        false => parts.failure,
    };
    Ok(print::txn(out, view, &parts, &response.header, &body)?)
}

async fn compaction(
    arguments: &CompactionArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let CompactionArgs { revision, physical } = *arguments;
    let request = Request::Compact(CompactionRequest { revision, physical });
    let response = connection
        .call(request, api::Consistency::default())
        .await?;
    let ResponseBody::Compact = response.body else {
        return Err(unexpected(&response.body));
    };
    if physical {
        for endpoint in &target.endpoints {
            wait_for_removal(revision, connection, endpoint).await?;
        }
    }
    Ok(print::compacted(out, view, &response.header, revision)?)
}

/// Waits for as long as it takes until the node at `endpoint` has removed what a compaction at
/// `revision` gave up. One that cannot be reached is not waited for: it does so when it is back.
async fn wait_for_removal(
    revision: i64,
    connection: &impl Connection,
    endpoint: &str,
) -> Result<(), Failure> {
    loop {
        let history = match status_of(connection, endpoint).await {
            Ok((_, status)) => status.history,
            Err(failure) => {
                note(&format!(
                    "{endpoint} is not waited for, and removes the history when it is back: \
                     {failure}"
                ));
                return Ok(());
            }
        };
        if history.removed_through >= revision {
            return Ok(());
        }
        tokio::time::sleep(REMOVAL_POLL).await;
    }
}

async fn status(
    arguments: &StatusArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let endpoints = match arguments.cluster {
        false => target.endpoints.clone(),
        true => members(connection, target).await?,
    };
    let (answers, errors) = ask_all(connection, endpoints).await;
    print::status(out, view.format, &answers)?;
    out.flush()?;
    let warnings = answers.iter().flat_map(|answer| {
        let name = &answer.status.name;
        answer.status.warnings.iter().map(move |text| (name, text))
    });
    for (name, text) in warnings {
        note(&format!("{name}: {text}"));
    }
    let Some((_, first)) = errors.first() else {
        return Ok(());
    };
    let lines: Vec<_> = errors
        .iter()
        .map(|(endpoint, failure)| format!("{endpoint}: {failure}"))
        .collect();
    Err(Failure::new(first.exit, lines.join("\n")))
}

async fn move_leader(
    arguments: &MoveLeaderArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (before, body) = any_status(connection, target).await?;
    let successor = match &arguments.target {
        None => None,
        Some(text) => Some(find_member(text, &body)?),
    };
    if successor.is_some() && successor == before.leader_id {
        let text = arguments.target.as_deref().unwrap_or_default();
        return Err(Failure::refused(format!(
            "{text} leads already: choose another node, or none to let the leader choose"
        )));
    }
    let request = Request::MoveLeader { target: successor };
    let response = connection
        .call(request, api::Consistency::default())
        .await?;
    let from = response.header.member_id;
    let to = match successor {
        Some(successor) => Some(successor),
        None => new_leader(connection, target, from).await,
    };
    Ok(print::moved(out, view.format, from, to)?)
}

/// Who leads after `former`, if somebody comes forward within the time of one request.
async fn new_leader(
    connection: &impl Connection,
    target: &Target,
    former: NodeId,
) -> Option<NodeId> {
    let search = async {
        loop {
            for endpoint in &target.endpoints {
                let Ok((header, _)) = status_of(connection, endpoint).await else {
                    continue;
                };
                if let Some(leader) = header.leader_id.filter(|leader| *leader != former) {
                    return leader;
                }
            }
            tokio::time::sleep(LEADER_POLL).await;
        }
    };
    tokio::time::timeout(target.timeout, search).await.ok()
}

/// The alarms of every member.
async fn alarms(
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let endpoints = members(connection, target).await?;
    let (answers, errors) = ask_all(connection, endpoints).await;
    print::alarms(out, view.format, &answers)?;
    out.flush()?;
    match errors.into_iter().next() {
        Some((_, failure)) => Err(failure),
        None => Ok(()),
    }
}

/// Where clients reach the members of the cluster.
async fn members(connection: &impl Connection, target: &Target) -> Result<Vec<String>, Failure> {
    let (_, body) = any_status(connection, target).await?;
    let known = |member: &api::MemberInfo| !member.client_address.is_empty();
    let members = body.members.into_iter().filter(known);
    Ok(members.map(|member| member.client_address).collect())
}

/// What each endpoint says of itself, and of those that say nothing why.
async fn ask_all(
    connection: &impl Connection,
    endpoints: Vec<String>,
) -> (Vec<EndpointStatus>, Vec<(String, Failure)>) {
    let (mut answers, mut errors) = (Vec::new(), Vec::new());
    for endpoint in endpoints {
        match status_of(connection, &endpoint).await {
            Ok((header, status)) => answers.push(EndpointStatus {
                endpoint,
                header,
                status,
            }),
            Err(failure) => errors.push((endpoint, failure)),
        }
    }
    (answers, errors)
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

/// A member by its name or by its id in hexadecimal.
fn find_member(text: &str, status: &StatusResponse) -> Result<NodeId, Failure> {
    let by_name = status.members.iter().find(|member| member.name == text);
    let by_id = || {
        let id = NodeId(u64::from_str_radix(text, 16).ok()?);
        status.members.iter().find(|member| member.id == id)
    };
    by_name
        .or_else(by_id)
        .map(|member| member.id)
        .ok_or_else(|| {
            let members: Vec<_> = status
                .members
                .iter()
                .map(|member| format!("{} ({:016x})", member.name, member.id.0))
                .collect();
            Failure::usage(format!(
                "there is no member {text}: choose one of {}",
                members.join(", ")
            ))
        })
}

/// The put that is asked for. `value` gives its value if the arguments do not.
///
/// # Errors
/// Those of `value`.
pub(super) fn put_request(
    arguments: PutArgs,
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
        lease: match (arguments.lease, arguments.lease_name) {
            (Some(id), _) => LeaseTarget::Lease(LeaseRef::id(id)),
            (None, Some(name)) => LeaseTarget::Name(name),
            (None, None) => LeaseTarget::None,
        },
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
        count_only: arguments.count_only,
        revision: arguments.rev,
        sort_target: match arguments.sort_by {
            SortBy::Key => SortTarget::Key,
            SortBy::Version => SortTarget::Version,
            SortBy::Create => SortTarget::CreateRevision,
            SortBy::Modify => SortTarget::ModRevision,
            SortBy::Value => SortTarget::Value,
        },
        sort_order: match arguments.order {
            None => SortOrder::None,
            Some(Order::Ascend) => SortOrder::Ascend,
            Some(Order::Descend) => SortOrder::Descend,
        },
        min_mod_revision: arguments.min_mod_rev,
        max_mod_revision: arguments.max_mod_rev,
        min_create_revision: arguments.min_create_rev,
        max_create_revision: arguments.max_create_rev,
    };
    (request, parts)
}

/// The delete that is asked for.
pub(super) fn delete_request(arguments: DelArgs) -> DeleteRangeRequest {
    let (key, range) = key_range(arguments.range);
    DeleteRangeRequest {
        key,
        range,
        prev_kv: arguments.prev_kv,
    }
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

/// The value of a `put`, as it comes: not even a line's end is taken off.
fn from_standard_input() -> Result<Bytes, Failure> {
    let input = io::stdin();
    if input.is_terminal() {
        note("reading the value from standard input; end it with Ctrl-D");
    }
    // No value this long is taken by any server, so there is no need to read on.
    const LONGEST: u64 = 64 << 20;
    let mut value = Vec::new();
    input.lock().take(LONGEST).read_to_end(&mut value)?;
    Ok(Bytes::from(value))
}

fn note(text: &str) {
    // If standard error is gone there is nobody left to tell.
    let _ = writeln!(anstream::stderr(), "{text}");
}

pub(super) fn unexpected(body: &ResponseBody) -> Failure {
    let error = api::Error::unknown(
        ErrorKind::Internal,
        format!("the server answered with something else than was asked for: {body:?}"),
    );
    error.into()
}

mod rest;
#[cfg(test)]
mod tests;
