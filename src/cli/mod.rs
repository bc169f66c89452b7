//! The command line: arguments in, text and an exit code out.
//!
//! Data goes to standard output and everything else to standard error, so that output can be piped
//! without a second thought. `commands` has a file for each family of them; `print` turns replies into text and
//! knows nothing of connections; `connection` decides which cluster to talk to and how.
//!
//! Only the commands that run a node or look at the data of a stopped one (`serve`, `dev`, `offline`) know
//! the server; the others know the client side only. `bench` and `verify` stand above this module.

pub mod arguments;
pub mod commands;
pub mod connection;
pub mod contexts;
pub mod dev;
mod doctor;
pub mod failure;
pub mod logging;
pub mod panics;
mod password;
pub mod print;
pub mod remote;
pub mod runtime;
pub mod signals;

use std::any::TypeId;
use std::ffi::OsStr;
use std::io;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind as Refused;
use clap::{CommandFactory, FromArgMatches};

use self::arguments::{CONNECTION_HEADING, Cli, Command, GlobalArgs};
use self::failure::Failure;
use self::remote::Sdk;
use crate::server::config::SETTINGS;

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
pub struct CommandLine {
    /// What is to be done.
    pub command: Command,
    /// What holds for every command.
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
            // `-1` is a value, if no good one: the setting says so better than the parser of flags.
            .allow_hyphen_values(true)
            .help(help)
            .help_heading("Settings (each also in the file, and as LEASEHOLD_SECTION_KEY)")
    });
    let flags: Vec<_> = flags.collect();
    let mut command = Cli::command().mut_subcommand("serve", |serve| serve.args(flags));
    // Commands without a connection take its flags, as every command does, but need not explain them.
    command.build();
    for name in [
        "serve",
        "dev",
        "drain",
        "offline",
        "leader-lease",
        "cert",
        "completion",
        "man",
    ] {
        command = command.mut_subcommand(name, without_connection);
    }
    command
}

fn without_connection(command: clap::Command) -> clap::Command {
    command
        .mut_args(|flag| {
            let about_connections = flag.get_help_heading() == Some(CONNECTION_HEADING);
            let hidden = about_connections || flag.is_hide_set();
            flag.hide(hidden)
        })
        .mut_subcommands(without_connection)
}

/// The settings of a node.
fn settings() -> Vec<SettingHelp> {
    let help = SETTINGS.iter().map(|setting| SettingHelp {
        key: setting.key,
        default: setting.default,
        help: setting.help,
    });
    help.collect()
}

/// Takes the arguments of this process apart. Help, version and mistakes are answered here, and
/// end the process (a mistake with code 2).
pub fn parse() -> CommandLine {
    match parse_from(&settings(), std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => error.exit(),
    }
}

fn parse_from(
    settings: &[SettingHelp],
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
) -> Result<CommandLine, clap::Error> {
    let mut command = command(settings);
    let mut matches = command
        .try_get_matches_from_mut(arguments)
        .map_err(|error| name_variable(&mut command, error))?;
    let mut given = Vec::new();
    if let Some(serve) = matches.subcommand_matches("serve") {
        for setting in settings {
            if let Some(value) = serve.get_one::<String>(setting.key) {
                given.push((setting.key.to_owned(), value.clone()));
            }
        }
    }
    let cli = Cli::from_arg_matches_mut(&mut matches)?;
    Ok(CommandLine {
        command: cli.command,
        global: cli.global,
        settings: given,
    })
}

/// Names the environment variable that is not text, where that is what was refused: the parser speaks of
/// arguments alone.
fn name_variable(command: &mut clap::Command, error: clap::Error) -> clap::Error {
    // What is one of a few words is refused as none of them.
    if !matches!(error.kind(), Refused::InvalidUtf8 | Refused::InvalidValue) {
        return error;
    }
    let is_path = |flag: &clap::Arg| flag.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let is_text =
        |name: &OsStr| std::env::var_os(name).is_none_or(|value| value.to_str().is_some());
    let variable = command
        .get_arguments()
        .filter(|flag| !is_path(flag))
        .filter_map(clap::Arg::get_env)
        .find(|name| !is_text(name));
    let Some(variable) = variable else {
        return error;
    };
    let said = format!(
        "the environment variable {} is not valid UTF-8: correct it or unset it",
        variable.display()
    );
    command.error(Refused::InvalidUtf8, said)
}

/// Carries a command out, except `bench` and `verify`, which stand above this module. `flags` are the
/// settings that were given to `serve`.
///
/// # Errors
/// What went wrong, with the code to end with.
pub fn run(
    command: Command,
    global: &GlobalArgs,
    flags: Vec<(String, String)>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let program = || self::command(&settings());
    commands::run(command, global, flags, program, &Sdk, out)
}

/// Runs what prints to standard output, and gives the exit code of it.
pub fn printing(
    command: impl FnOnce(&mut io::BufWriter<io::Stdout>) -> Result<(), Failure>,
) -> ExitCode {
    print::fit_to_output();
    // Raw: what strips colours for pipes would strip bytes of keys and values as well.
    let mut out = io::BufWriter::new(io::stdout());
    let result = command(&mut out);
    // What was found comes before what is wrong with it.
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
        // If standard error is gone as well, the message is lost.
        let _ = writeln!(
            anstream::stderr(),
            "{style}error:{style:#} {}",
            failure.message
        );
    }
    ExitCode::from(failure.exit.code())
}

#[cfg(test)]
mod tests;
