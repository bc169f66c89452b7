//! `put`, `get`, `del`, `txn` and `compaction`.

use std::io;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::time::Duration;

use bytes::Bytes;

use super::request::{
    delete_request, fenced, get_request, note, put_request, status_of, unexpected, write,
};
use super::rest;
use super::txn::Script;
use super::which_lease;
use crate::api;
use crate::api::{
    CompactionRequest, ErrorKind, KeyRange, LeaseTarget, RangeCount, Request, ResponseBody,
    ResponseHeader, SortOrder, SortTarget, TxnOp,
};
use crate::cli::arguments::{CompactionArgs, DelArgs, Format, GetArgs, PutArgs};
use crate::cli::connection::{Connection, Target};
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::{self, Parts, View};

/// How often a node is asked whether it has removed what it should.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

pub(super) async fn put(
    arguments: PutArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let fences = arguments.fence.clone();
    let lease = match arguments.lease_text() {
        None => LeaseTarget::None,
        Some(typed) => which_lease::target(&typed, connection).await?,
    };
    let put = put_request(arguments, lease, from_standard_input)?;
    let (header, body) = match fences.as_slice() {
        [] => write(connection, Request::Put(put)).await?,
        fences => fenced(connection, fences, TxnOp::Put(put)).await?,
    };
    match body {
        ResponseBody::Put(body) => Ok(print::put(out, view, &header, &body)?),
        other => Err(unexpected(&other)),
    }
}

pub(super) async fn get(
    arguments: GetArgs,
    connection: &impl Connection,
    consistency: api::Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (mut asked, parts) = get_request(arguments);
    let (key, range) = (asked.key.clone(), asked.range.clone());
    let is_plain = asked.sort_target == SortTarget::Key && asked.sort_order != SortOrder::Descend;
    let is_shown = view.format == Format::Json || parts == Parts::Count;
    // A sorted range that does not fit is refused with the number.
    let is_told = !is_plain && asked.limit == 0;
    if range != KeyRange::Single && !is_shown && !is_told {
        asked.count = RangeCount::ToLimit;
    }
    let request = Request::Range(asked.clone());
    let response = connection.call(request, consistency).await?;
    let ResponseBody::Range(body) = response.body else {
        return Err(unexpected(&response.body));
    };
    let header = response.header;
    if body.more && asked.limit == 0 && is_plain && parts != Parts::Count {
        let (how, whom) = ((parts, view), (connection, consistency));
        return rest::print(body, asked, how, whom, &header, out).await;
    }
    print::get(out, view, parts, &header, &body)?;
    if range == KeyRange::Single && body.count == 0 && parts != Parts::Count {
        let key = print::escaped(View::default(), &key);
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no key \"{key}\""),
        ));
    }
    if body.more && asked.limit == 0 {
        out.flush()?;
        return Err(Failure::refused(format!(
            "the range has {} keys, and one reply holds only the first {}: read the rest with a \
             range that starts after the last key shown",
            body.count,
            body.kvs.len()
        )));
    }
    Ok(())
}

pub(super) async fn del(
    arguments: DelArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let fences = arguments.fence.clone();
    let delete = delete_request(arguments)?;
    let (header, body) = match fences.as_slice() {
        [] => write(connection, Request::DeleteRange(delete)).await?,
        fences => fenced(connection, fences, TxnOp::DeleteRange(delete)).await?,
    };
    match body {
        ResponseBody::DeleteRange(body) => {
            print::delete(out, view, &header, &body)?;
            if view.format == Format::Simple && body.deleted > 0 {
                out.flush()?;
                note(&format!("deleted at revision {}", header.revision));
            }
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}

/// Has the user say that every key is to go.
///
/// # Errors
/// The answer was not `yes`.
pub(super) fn confirm_all(input: &mut impl BufRead, ask: &mut impl Write) -> Result<(), Failure> {
    write!(
        ask,
        "This deletes every key of the store. Type yes to go on: "
    )?;
    ask.flush()?;
    const LONGEST: u64 = 64;
    let mut answer = Vec::new();
    input.take(LONGEST).read_until(b'\n', &mut answer)?;
    match answer.trim_ascii() {
        b"yes" => Ok(()),
        _ => Err(Failure::refused("nothing was deleted")),
    }
}

pub(super) async fn txn(
    script: Script,
    connection: &impl Connection,
    consistency: api::Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (txn, parts) = script.into_request(connection).await?;
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

pub(super) async fn compaction(
    arguments: &CompactionArgs,
    connection: &impl Connection,
    target: &Target,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let physical = arguments.physical;
    let (revision, now) = match arguments.revision {
        Some(revision) => (revision, None),
        None => {
            let now = current(connection).await?;
            (now.revision, Some(now))
        }
    };
    let request = Request::Compact(CompactionRequest { revision, physical });
    let header = match connection.call(request, api::Consistency::default()).await {
        Ok(response) => {
            let ResponseBody::Compact = response.body else {
                return Err(unexpected(&response.body));
            };
            response.header
        }
        Err(error) => match now {
            // Nothing was written since: what is to go is given up already.
            Some(header) if is_at(&error, revision) => header,
            _ => return Err(error.into()),
        },
    };
    if physical {
        for endpoint in &target.endpoints {
            wait_for_removal(revision, connection, endpoint).await?;
        }
    }
    Ok(print::compacted(out, view, &header, revision)?)
}

/// Where the store stands now.
async fn current(connection: &impl Connection) -> Result<ResponseHeader, Failure> {
    // Every reply has a revision, and this one needs no permission for any key.
    let asked = connection.call(Request::MemberList, api::Consistency::default());
    Ok(asked.await?.header)
}

/// That history is compacted at just this revision.
fn is_at(error: &api::Error, revision: i64) -> bool {
    error.kind
        == ErrorKind::Compacted {
            compact_revision: revision,
        }
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
                    "{endpoint} did not answer and will remove the history when it is back: \
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
