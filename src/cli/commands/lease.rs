//! The commands of client leases.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use super::lease_top;
use super::request::{note, note_another_ttl, unexpected};
use super::which_lease;
use crate::api;
use crate::api::{
    Consistency, ErrorKind, LeaseGrantRequest, LeaseKept, LeaseListRequest, Request, ResponseBody,
};
use crate::cli::arguments::Format;
use crate::cli::arguments::lease::{
    GrantArgs, KeepAliveArgs, LeaseCommand, ListArgs, TimeToLiveArgs, WatchArgs,
};
use crate::cli::connection::Connection;
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::{View, leases as print};
use crate::client::LeaseWatchOptions;

/// A renewal that could not be decided, or failed, is tried again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// Carries a command out and prints what came of it.
///
/// # Errors
/// What went wrong, with the code to end with.
pub(super) async fn run(
    command: LeaseCommand,
    connection: &impl Connection,
    consistency: Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match command {
        LeaseCommand::Grant(arguments) => grant(arguments, connection, view, out).await,
        LeaseCommand::Revoke(arguments) => {
            let lease = which_lease::find(&arguments.lease, connection).await?;
            let request = Request::LeaseRevoke(lease);
            let response = connection.call(request, Consistency::default()).await?;
            match response.body {
                ResponseBody::LeaseRevoke(revoked) => Ok(print::revoked(
                    out,
                    view,
                    &response.header,
                    lease.id,
                    &revoked,
                )?),
                other => Err(unexpected(&other)),
            }
        }
        LeaseCommand::Timetolive(arguments) => {
            time_to_live(&arguments, connection, consistency, view, out).await
        }
        LeaseCommand::List(arguments) => list(arguments, connection, consistency, view, out).await,
        LeaseCommand::Top(arguments) => {
            let live = std::io::stdout().is_terminal();
            lease_top::run(&arguments, connection, view, live, out).await
        }
        LeaseCommand::Watch(arguments) => watch(arguments, connection, view, out).await,
        LeaseCommand::KeepAlive(arguments) => keep_alive(&arguments, connection, view, out).await,
        LeaseCommand::UpdateTtl(arguments) => {
            let lease = which_lease::find(&arguments.lease, connection).await?;
            let request = Request::LeaseUpdateTtl {
                lease,
                ttl_ms: arguments.ttl_ms,
            };
            let response = connection.call(request, Consistency::default()).await?;
            match response.body {
                ResponseBody::LeaseUpdateTtl { ttl_ms } => {
                    let asked = u64::try_from(arguments.ttl_ms).unwrap_or_default();
                    note_another_ttl(ms(asked), ms(ttl_ms));
                    Ok(print::updated(
                        out,
                        view,
                        &response.header,
                        lease.id,
                        ttl_ms,
                    )?)
                }
                other => Err(unexpected(&other)),
            }
        }
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn grant(
    arguments: GrantArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let request = Request::LeaseGrant(LeaseGrantRequest {
        id: arguments.id.unwrap_or_default(),
        ttl_ms: arguments.ttl_ms,
        name: arguments.name.unwrap_or_default(),
        owner: arguments.owner.unwrap_or_default(),
        granted_at_ms: 0,
    });
    let response = connection.call(request, Consistency::default()).await?;
    match response.body {
        ResponseBody::LeaseGrant(granted) => {
            note_another_ttl(ms(granted.requested_ttl_ms), ms(granted.ttl_ms));
            Ok(print::granted(out, view, &response.header, &granted)?)
        }
        other => Err(unexpected(&other)),
    }
}

async fn time_to_live(
    arguments: &TimeToLiveArgs,
    connection: &impl Connection,
    consistency: Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let (lease, keys) = (
        which_lease::find(&arguments.lease, connection).await?,
        arguments.keys,
    );
    let request = Request::LeaseTimeToLive { id: lease.id, keys };
    let response = connection.call(request, consistency).await?;
    match response.body {
        ResponseBody::LeaseTimeToLive(info) if !lease.means(info.grant_index) => {
            let id = lease.id;
            let why = format!("lease {id:016x} has ended, and another lease has its id");
            Err(Failure::new(Exit::NotFound, why))
        }
        ResponseBody::LeaseTimeToLive(info) => Ok(print::time_to_live(
            out,
            view,
            &response.header,
            keys,
            &info,
        )?),
        other => Err(unexpected(&other)),
    }
}

async fn list(
    arguments: ListArgs,
    connection: &impl Connection,
    consistency: Consistency,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut leases = Vec::new();
    let (mut after, mut header) = (0, None);
    loop {
        let request = Request::LeaseList(LeaseListRequest {
            after,
            limit: 0,
            owner: arguments.owner.clone(),
            name_prefix: arguments.name_prefix.clone(),
        });
        let response = connection.call(request, consistency).await?;
        let ResponseBody::LeaseList(page) = response.body else {
            return Err(unexpected(&response.body));
        };
        // As with the pages of a range: the first one's.
        let header = header.get_or_insert(response.header);
        leases.extend(page.leases);
        match page.next {
            Some(next) => after = next,
            None => return Ok(print::list(out, view, header, &leases)?),
        }
    }
}

/// Renews until the lease is over. What cannot be reached is tried again for as long as the lease may
/// live, and no longer.
async fn keep_alive(
    arguments: &KeepAliveArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    // Pinned by its name, or by the first renewal: a later lease of this name or id is another's (T14).
    let mut lease = which_lease::find(&arguments.lease, connection).await?;
    let id = lease.id;
    let mut patience = None;
    loop {
        let request = Request::LeaseKeepAlive(vec![lease]);
        let answer = connection.call(request, Consistency::default()).await;
        let wait = match answer.map(|response| (response.header, response.body)) {
            Ok((header, ResponseBody::LeaseKeepAlive(kept))) => match kept.first() {
                Some(LeaseKept::Renewed {
                    ttl_ms,
                    grant_index,
                    is_extended: _,
                }) => {
                    lease.grant_index = *grant_index;
                    print::kept(out, view, &header, id, *ttl_ms)?;
                    out.flush()?;
                    if arguments.once {
                        return Ok(());
                    }
                    let ttl = Duration::from_millis(*ttl_ms);
                    patience = Some(ttl);
                    ttl / 3
                }
                Some(LeaseKept::NotFound) if patience.is_none() => {
                    return Err(lost(Exit::NotFound, id, "there is no such lease"));
                }
                Some(LeaseKept::Undecided) | None => AGAIN_AFTER,
                Some(LeaseKept::Expired) => {
                    return Err(lost(Exit::Lost, id, "it was not renewed in time"));
                }
                Some(LeaseKept::Revoked) => return Err(lost(Exit::Lost, id, "it was revoked")),
                Some(LeaseKept::NotFound) => return Err(lost(Exit::Lost, id, "it is gone")),
            },
            Ok((_, other)) => return Err(unexpected(&other)),
            Err(error) => wait_after(error, &mut patience)?,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Tells what happens to leases, until the one that is watched has ended. What cannot be reached for a while is looked
/// at again.
async fn watch(
    arguments: WatchArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if view.format == Format::Table {
        return Err(Failure::usage(
            "each event is told as it comes, and a table would never be complete: leave out `-o table`, or choose \
             json or fields",
        ));
    }
    let mut options = LeaseWatchOptions::new()
        .with_interval(arguments.interval)
        .with_owner(arguments.owner)
        .with_name_prefix(arguments.name_prefix);
    if arguments.renewals {
        options = options.with_renewals();
    }
    let leases = connection.client()?.lease();
    let mut watcher = match &arguments.lease {
        Some(typed) => {
            let lease = which_lease::find(typed, connection).await?;
            leases.watch(lease, Some(options)).await?
        }
        None => leases.watch_all(Some(options)),
    };
    while let Some(event) = watcher.next().await {
        match event {
            Ok(event) => print::watched(out, view, &event)?,
            Err(error) if error.is_retryable() || error.kind == ErrorKind::DeadlineExceeded => {
                note(&format!("looking again: {error}"))
            }
            Err(error) => return Err(error.into()),
        }
        out.flush()?;
    }
    Ok(())
}

fn wait_after(error: api::Error, patience: &mut Option<Duration>) -> Result<Duration, Failure> {
    match patience {
        Some(left) if *left > AGAIN_AFTER => {
            *left -= AGAIN_AFTER;
            Ok(AGAIN_AFTER)
        }
        _ => Err(error.into()),
    }
}

fn lost(exit: Exit, id: i64, why: &str) -> Failure {
    Failure::new(exit, format!("lease {id:016x} is no longer renewed: {why}"))
}
