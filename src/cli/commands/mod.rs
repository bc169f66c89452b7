//! What each command does. Those that talk to a cluster do so over the seam of `connection`.

mod access;
pub mod cert;
mod cluster;
mod context;
mod drain;
mod elsewhere;
mod kv;
mod lease;
mod lease_top;
mod lock;
mod man;
mod member;
mod mirror;
mod offline;
mod request;
mod rest;
mod screen;
mod serve;
mod snapshot;
mod top;
pub mod txn;
mod watch;
mod which_lease;

use std::io;
use std::io::{IsTerminal, Write};

use rustix::fs::Mode;
use rustix::process::umask;

use self::access::AccessCommand;
use self::txn::Script;
use super::arguments::leader_lease::LeaderLeaseCommand;
use super::arguments::snapshot::SnapshotCommand;
use super::arguments::{AlarmCommand, Command, Format, GlobalArgs};
use super::connection::{Connection, Connector, Surroundings, Target};
use super::doctor;
use super::failure::Failure;
use super::print::{self, View};
use crate::version;

/// Carries a command out and prints what came of it. `flags` are settings of a node, `program` describes
/// the command line.
///
/// # Errors
/// What went wrong, with the code to end with.
pub fn run(
    command: Command,
    global: &GlobalArgs,
    flags: Vec<(String, String)>,
    program: impl FnOnce() -> clap::Command,
    connector: &impl Connector,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if matches!(
        &command,
        Command::Serve(_) | Command::Dev(_) | Command::Offline { .. }
    ) {
        // Not every file of a data directory is created by code that sets its mode.
        umask(Mode::from_raw_mode(0o077));
    }
    match command {
        Command::Serve(arguments) => serve::serve(arguments, flags, &program()),
        Command::Dev(arguments) => serve::dev(&arguments),
        Command::Offline { command } => offline::run(&command, global, out),
        Command::LeaderLease {
            command: LeaderLeaseCommand::Clear(arguments),
        } => offline::clear_leader_lease(&arguments, global.output, out),
        Command::Cert { command } => cert::run(command, global.output, out),
        Command::Context { command } => context::run(command, global, out),
        Command::Completion { shell } => {
            // Into memory first: the generator panics when its reader goes away.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut program(), "leasehold", &mut script);
            Ok(out.write_all(&script)?)
        }
        Command::Man { out: to } => man::run(program(), to.as_deref(), out),
        Command::Version => Ok(print_version(global.output, out)?),
        Command::Doctor(arguments) => {
            let surroundings = Surroundings::of_process(global)?;
            runtime()?.block_on(doctor::run(&arguments, global, &surroundings, out))
        }
        Command::Drain(arguments) => drain::run(&arguments, global, out),
        Command::MakeMirror(arguments) => {
            runtime()?.block_on(mirror::run(arguments, global, connector))
        }
        Command::Snapshot {
            command: SnapshotCommand::Status(arguments),
        } => snapshot::status(&arguments, global.output, out),
        Command::Snapshot {
            command: SnapshotCommand::Verify(arguments),
        } => snapshot::verify(&arguments, global.output, out),
        command => {
            if let Some(place) = elsewhere::place(&command) {
                return Err(Failure::usage(place));
            }
            let input = io::stdin();
            let is_for_all = matches!(&command, Command::Del(arguments) if arguments.all);
            if is_for_all && input.is_terminal() {
                kv::confirm_all(&mut input.lock(), &mut anstream::stderr())?;
            }
            let target = Target::find(global, &Surroundings::of_process(global)?)?;
            runtime()?.block_on(async {
                let connection = connector.connect(&target).await?;
                let result = on_cluster(command, &connection, &target, global, out).await;
                connection.close().await;
                result
            })
        }
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// Carries out a command that asks a cluster.
async fn on_cluster(
    command: Command,
    connection: &impl Connection,
    target: &Target,
    global: &GlobalArgs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let view = View {
        format: global.output,
        hex: global.hex,
    };
    let consistency = global.consistency;
    match command {
        Command::Put(arguments) => kv::put(arguments, connection, view, out).await,
        Command::Get(arguments) => kv::get(arguments, connection, consistency, view, out).await,
        Command::Del(arguments) => kv::del(arguments, connection, view, out).await,
        Command::Txn(arguments) => {
            let script = Script::read(io::stdin().lock(), arguments.interactive)?;
            kv::txn(script, connection, consistency, view, out).await
        }
        Command::Watch(arguments) => watch::run(arguments, connection, view, out).await,
        Command::Compaction(arguments) => {
            kv::compaction(&arguments, connection, target, view, out).await
        }
        Command::Lease { command } => lease::run(command, connection, consistency, view, out).await,
        Command::Lock(arguments) => {
            lock::lock(arguments, connection, target.timeout, view, out).await
        }
        Command::Elect(arguments) => lock::elect(arguments, connection, view, out).await,
        Command::Alarm {
            command: AlarmCommand::List,
        } => cluster::alarms(connection, target, view, out).await,
        Command::Endpoint { command } => {
            cluster::endpoint(&command, connection, target, view, out).await
        }
        Command::Member { command } => {
            member::run(command, connection, consistency, view, out).await
        }
        Command::MoveLeader(arguments) => {
            cluster::move_leader(&arguments, connection, target, view, out).await
        }
        Command::Auth { command } => {
            access::run(AccessCommand::Auth(command), connection, target, view, out).await
        }
        Command::User { command } => {
            access::run(AccessCommand::User(command), connection, target, view, out).await
        }
        Command::Role { command } => {
            access::run(AccessCommand::Role(command), connection, target, view, out).await
        }
        Command::Top(arguments) => {
            let live = io::stdout().is_terminal();
            top::run(&arguments, connection, target, view, live, out).await
        }
        Command::Snapshot {
            command: SnapshotCommand::Save(arguments),
        } => snapshot::save(&arguments, connection, target, global, out).await,
        // `run` has seen to all others.
        _ => Err(Failure::usage("this command needs no cluster")),
    }
}

fn print_version(format: Format, out: &mut impl Write) -> io::Result<()> {
    let (version, commit, rustc) = (version::VERSION, version::COMMIT, version::RUSTC);
    let document = serde_json::json!({
        "leasehold": version, "commit": commit, "rustc": rustc,
    });
    match format {
        Format::Json => print::line(out, &document),
        Format::Fields => print::fields(out, &document),
        Format::Table => print::row(out, &document),
        Format::Simple => writeln!(out, "leasehold {version} (commit {commit}, rustc {rustc})"),
    }
}

#[cfg(test)]
mod tests;
