//! `leasehold watch`: prints what happens to keys, or runs a command for each event.

use std::ffi::OsString;
use std::io;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use super::request::key_range;
use crate::api::{ErrorKind, Event};
use crate::cli::arguments::{Format, WatchArgs};
use crate::cli::connection::Connection;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::print::View;
use crate::client::{WatchEvent, WatchOptions};

/// Watches until the reader of our output goes away, or the watch ends.
///
/// # Errors
/// What ended it.
pub(super) async fn run(
    arguments: WatchArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if view.format == Format::Table && arguments.command.is_empty() {
        return Err(Failure::usage(
            "a watch prints each change as it comes, and a table would never be complete: leave out \
             `-o table`, or choose json or fields",
        ));
    }
    let (key, range) = key_range(arguments.range);
    let mut options = WatchOptions::new()
        .with_key_range(range)
        .with_start_revision(arguments.rev);
    if arguments.prev_kv {
        options = options.with_prev_kv();
    }
    if arguments.progress_notify {
        options = options.with_progress_notify();
    }
    if arguments.no_put {
        options = options.with_no_put();
    }
    if arguments.no_delete {
        options = options.with_no_delete();
    }
    if arguments.initial_state {
        options = options.with_initial_state();
    }
    let mut watcher = connection.watch(key, options).await?;
    while let Some(event) = watcher.next().await {
        let event = event.map_err(with_advice)?;
        match (&event, arguments.command.as_slice()) {
            (WatchEvent::Events { events, .. }, [program, rest @ ..]) => {
                for event in events {
                    run_for(event, program, rest).await?;
                }
            }
            (_, [_, ..]) => {}
            _ => print::watched(out, view, &event)?,
        }
        match &event {
            WatchEvent::Resumed { from, cause } => {
                note(&format!("{cause}: resumed from revision {from}"));
            }
            WatchEvent::Restarted { cause } => {
                note(&format!("{cause}: the initial state starts over"));
            }
            _ => {}
        }
        out.flush()?;
    }
    Ok(())
}

fn with_advice(error: crate::api::Error) -> Failure {
    let compacted = match error.kind {
        ErrorKind::Compacted { compact_revision } => Some(compact_revision),
        _ => None,
    };
    let mut failure = Failure::from(error);
    if let Some(revision) = compacted {
        failure.message += &format!("; the oldest available revision is {revision}");
    }
    failure
}

/// Runs the command for one event, and waits for its end: events keep their order.
async fn run_for(event: &Event, program: &OsString, rest: &[OsString]) -> Result<(), Failure> {
    let kind = print::event_kind(event.kind);
    let text = |bytes: &bytes::Bytes| OsString::from_vec(bytes.to_vec());
    if event.kv.key.contains(&0) || event.kv.value.contains(&0) {
        note(
            "skipped an event whose key or value has a zero byte, which environment variables \
             cannot hold",
        );
        return Ok(());
    }
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LEASEHOLD_WATCH_EVENT_TYPE", kind)
        .env(
            "LEASEHOLD_WATCH_REVISION",
            event.kv.mod_revision.to_string(),
        )
        .env("LEASEHOLD_WATCH_KEY", text(&event.kv.key))
        .env("LEASEHOLD_WATCH_VALUE", text(&event.kv.value));
    let ended = tokio::task::spawn_blocking(move || command.status()).await;
    let status = ended
        .map_err(io::Error::other)
        .and_then(|status| status)
        .map_err(|error| {
            let program = program.to_string_lossy();
            Failure::refused(format!("cannot run {program}: {error}"))
        })?;
    if !status.success() {
        note(&format!(
            "the command for revision {} exited with {status}",
            event.kv.mod_revision
        ));
    }
    Ok(())
}

fn note(text: &str) {
    // If standard error is gone, the message is lost.
    let _ = writeln!(anstream::stderr(), "{text}");
}

#[cfg(test)]
mod tests;
