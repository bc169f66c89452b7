//! The command line: arguments in, text and an exit code out.
//!
//! Data goes to standard output and everything else to standard error, so that output can be piped
//! without a second thought. Each family of verbs has a file; `print` turns replies into text and
//! knows nothing of connections; `connection` decides whom to talk to and how.
//!
//! Verbs that need a server in this process (`serve`, `dev`) end in a seam here: this module knows
//! the client side only, and `main` puts the server in; so it does for `offline`, and `bench` and `verify`,
//! which stand beside.

mod access;
pub mod arguments;
pub mod cert;
pub mod connection;
pub mod dev;
mod doctor;
mod drain;
pub mod failure;
mod lease;
mod lease_top;
mod lock;
pub mod logging;
mod man;
mod member;
pub mod panics;
mod password;
pub mod pki;
pub mod print;
pub mod remote;
pub mod runtime;
mod screen;
pub mod signals;
mod snapshot;
mod top;
pub mod txn;
pub mod verbs;
mod watch;

use std::io;
use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use self::access::AccessCommand;
use self::arguments::AlarmCommand;
use self::arguments::{CONNECTION_HEADING, Cli, Command, EndpointCommand, Format, GlobalArgs};
use self::connection::{Connection, Connector, Surroundings, Target};
use self::failure::Failure;
use self::verbs::Verb;
use crate::version;

/// A setting of `serve` as the command line shows it.
#[derive(Clone, Copy, Debug)]
pub struct SettingHelp {
    /// `section.key`.
    pub key: &'static str,
    /// What holds by default; empty for nothing.
    pub default: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
}

/// The command line, taken apart.
#[derive(Debug)]
pub struct Parsed {
    /// What is to be done.
    pub command: Command,
    /// What holds for every verb.
    pub global: GlobalArgs,
    /// Settings given to `serve` as `--section.key value`.
    pub settings: Vec<(String, String)>,
}

/// The whole command line as clap knows it, with a flag of `serve` for every setting.
pub fn command(settings: &[SettingHelp]) -> clap::Command {
    let flags = settings.iter().map(|setting| {
        let help = match setting.default {
            "" => setting.help.to_owned(),
            default => format!("{} [default: {default}]", setting.help),
        };
        clap::Arg::new(setting.key)
            .long(setting.key)
            .value_name("VALUE")
            .help(help)
            .help_heading("Settings (each also in the file, and as LEASEHOLD_SECTION_KEY)")
    });
    let flags: Vec<_> = flags.collect();
    let mut command = Cli::command().mut_subcommand("serve", |serve| serve.args(flags));
    // Verbs without a connection take its flags, as every verb does, but need not explain them.
    command.build();
    for verb in [
        "serve",
        "dev",
        "drain",
        "offline",
        "leader-lease",
        "cert",
        "completion",
        "man",
    ] {
        command = command.mut_subcommand(verb, without_connection);
    }
    command
}

/// The environment variables that stand for flags of any verb.
pub fn variables(settings: &[SettingHelp]) -> Vec<String> {
    fn collect(command: &clap::Command, found: &mut Vec<String>) {
        let named = command.get_arguments().filter_map(clap::Arg::get_env);
        found.extend(named.map(|name| name.to_string_lossy().into_owned()));
        command
            .get_subcommands()
            .for_each(|verb| collect(verb, found));
    }
    let mut found = Vec::new();
    collect(&command(settings), &mut found);
    found.sort();
    found.dedup();
    found
}

fn without_connection(verb: clap::Command) -> clap::Command {
    verb.mut_args(|flag| {
        let about_connections = flag.get_help_heading() == Some(CONNECTION_HEADING);
        flag.hide(about_connections)
    })
    .mut_subcommands(without_connection)
}

/// Takes the arguments of this process apart. Help, version and mistakes are answered here, and
/// end the process (a mistake with code 2).
pub fn parse(settings: &[SettingHelp]) -> Parsed {
    match parse_from(settings, std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    }
}

fn parse_from(
    settings: &[SettingHelp],
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<Parsed, clap::Error> {
    let mut matches = command(settings).try_get_matches_from(arguments)?;
    let mut given = Vec::new();
    if let Some(serve) = matches.subcommand_matches("serve") {
        for setting in settings {
            if let Some(value) = serve.get_one::<String>(setting.key) {
                given.push((setting.key.to_owned(), value.clone()));
            }
        }
    }
    let cli = Cli::from_arg_matches_mut(&mut matches)?;
    Ok(Parsed {
        command: cli.command,
        global: cli.global,
        settings: given,
    })
}

/// Runs a verb that needs no server in this process, and says how it ended. The others (`serve`,
/// `dev`, `bench`, `verify`, `offline`, `leader-lease`) are `main`'s, and refused here.
pub fn run(
    command: Command,
    global: &GlobalArgs,
    settings: &[SettingHelp],
    connector: &impl Connector,
) -> ExitCode {
    print::fit_to_terminal();
    // Raw: what strips colours for pipes would strip bytes of keys and values as well.
    let mut out = io::BufWriter::new(io::stdout());
    let result = dispatch(command, global, settings, connector, &mut out);
    let flushed = out.flush().map_err(Failure::from);
    report(result.and(flushed))
}

/// Says on standard error what went wrong, and gives the exit code of it.
pub fn report(result: Result<(), Failure>) -> ExitCode {
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    if !failure.message.is_empty() {
        let style = anstyle::Style::new()
            .bold()
            .fg_color(Some(anstyle::AnsiColor::Red.into()));
        // If standard error is gone as well there is nobody left to tell.
        let _ = writeln!(
            anstream::stderr(),
            "{style}error:{style:#} {}",
            failure.message
        );
    }
    ExitCode::from(failure.exit.code())
}

fn dispatch(
    command: Command,
    global: &GlobalArgs,
    settings: &[SettingHelp],
    connector: &impl Connector,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let verb = match command {
        Command::Serve(_)
        | Command::Dev(_)
        | Command::Bench { .. }
        | Command::Verify { .. }
        | Command::Offline { .. }
        | Command::LeaderLease { .. } => {
            return Err(Failure::usage("this verb is carried out by `main`"));
        }
        Command::Cert { command } => return cert::run(command, out),
        Command::Completion { shell } => {
            // Into memory first: the generator panics when its reader goes away.
            let mut script = Vec::new();
            clap_complete::generate(
                shell,
                &mut self::command(settings),
                "leasehold",
                &mut script,
            );
            return Ok(out.write_all(&script)?);
        }
        Command::Man { out: to } => return man::run(self::command(settings), to.as_deref(), out),
        Command::Version => return Ok(print_version(global.output, out)?),
        Command::Doctor(arguments) => {
            let surroundings = Surroundings::of_process()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            return runtime.block_on(doctor::run(&arguments, global, &surroundings, out));
        }
        Command::Drain(arguments) => return drain::run(&arguments, global, out),
        Command::Put(arguments) => Verb::Put(arguments),
        Command::Get(arguments) => Verb::Get(arguments),
        Command::Del(arguments) => Verb::Del(arguments),
        Command::Txn(arguments) => Verb::Txn(arguments),
        Command::Watch(arguments) => Verb::Watch(arguments),
        Command::Compaction(arguments) => Verb::Compaction(arguments),
        Command::Lease { command } => Verb::Lease(command),
        Command::Lock(arguments) => Verb::Lock(arguments),
        Command::Elect(arguments) => Verb::Elect(arguments),
        Command::Alarm {
            command: AlarmCommand::List,
        } => Verb::Alarms,
        Command::Endpoint {
            command: EndpointCommand::Status(arguments),
        } => Verb::Status(arguments),
        Command::Member { command } => Verb::Member(command),
        Command::MoveLeader(arguments) => Verb::MoveLeader(arguments),
        Command::Auth { command } => Verb::Access(AccessCommand::Auth(command)),
        Command::User { command } => Verb::Access(AccessCommand::User(command)),
        Command::Role { command } => Verb::Access(AccessCommand::Role(command)),
        Command::Top(arguments) => Verb::Top(arguments),
        Command::Snapshot { command } => match snapshot::look(&command, global.output, out) {
            Some(done) => return done,
            None => Verb::Snapshot(command),
        },
    };
    let target = Target::find(global, &Surroundings::of_process()?)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let connection = connector.connect(&target).await?;
        let result = verbs::run(verb, &connection, &target, global, out).await;
        connection.close().await;
        result
    })
}

fn print_version(format: Format, out: &mut impl Write) -> io::Result<()> {
    let (version, commit, rustc) = (version::VERSION, version::COMMIT, version::RUSTC);
    match format {
        Format::Json => {
            let value = serde_json::json!({
                "leasehold": version, "commit": commit, "rustc": rustc,
            });
            writeln!(out, "{value}")
        }
        _ => writeln!(out, "leasehold {version} (commit {commit}, rustc {rustc})"),
    }
}

#[cfg(test)]
mod tests;
