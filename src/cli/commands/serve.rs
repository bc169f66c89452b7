//! `serve` and `dev`: nodes in this process.

use std::path::Path;

use crate::cli::arguments::{DevArgs, ServeArgs};
use crate::cli::dev;
use crate::cli::dev::{Launcher, Node};
use crate::cli::failure::{Exit, Failure};
use crate::cli::logging::{self, LineFormat, LogTarget};
use crate::cli::panics::{self, Ends};
use crate::cli::remote::Sdk;
use crate::cli::signals::{Hangups, Stop};
use crate::server::config::{
    Config, ConfigSources, LogFormat, unknown_variables, variables_as_text,
};
use crate::server::disk::store::contains_panic;
use crate::server::run::discovery::{members_for, remember};
use crate::server::run::supervisor::Supervisor;
use crate::server::{CertificateReload, LogControl, Pulse, Server, ServerOptions, StartError};

/// Runs a node until it is asked to stop. `flags` are settings by name.
pub(super) fn serve(
    arguments: ServeArgs,
    flags: Vec<(String, String)>,
    program: &clap::Command,
) -> Result<(), Failure> {
    let env = variables_as_text(std::env::vars_os())
        .map_err(|error| Failure::usage(error.to_string()))?;
    let unknown = unknown_variables(&env, &variables(program));
    let sources = ConfigSources {
        file: arguments.config,
        env,
        flags,
    };
    let config = Config::load(sources.clone()).map_err(|error| {
        // What is missing may have been set by a name that is nearly right.
        let hints = unknown.iter().map(|variable| format!("; {variable}"));
        Failure::usage(error.to_string() + &hints.collect::<String>())
    })?;
    let log = start_log(&config)?;
    for variable in unknown {
        tracing::warn!("{variable}");
    }
    panics::install(Ends::Process, contains_panic);
    let options = ServerOptions {
        exit_on_fatal: true,
        log: Some(log),
    };
    runtime()?.block_on(async {
        let mut stop = Stop::listen()?;
        let mut hangups = Hangups::listen()?;
        let (config, found) = tokio::select! {
            config = with_members(config, sources) => config?,
            () = stop.asked() => return Ok(()),
        };
        let data_dir = config.node.data_dir.clone();
        let mut node = tokio::select! {
            started = Server::start(config, options) => RunningNode {
                server: started.map_err(not_started)?,
            },
            () = stop.asked() => return Ok(()),
        };
        if let Some(members) = found {
            remember(&data_dir, &members);
        }
        let pulse = node.server.pulse();
        let reload = node.server.certificate_reload();
        let supervisor = supervisor();
        if let Some(supervisor) = &supervisor {
            supervisor.ready();
        }
        let reason = tokio::select! {
            reason = node.ended() => Some(reason),
            () = stop.asked() => None,
            () = show_pulse(supervisor.as_ref(), &pulse) => None,
            () = reload_when_asked(&reload, &mut hangups) => None,
        };
        if let Some(supervisor) = &supervisor {
            supervisor.stopping();
        }
        let exit = match node.server.was_removed() {
            true => Exit::Removed,
            false => Exit::Refused,
        };
        node.shutdown().await;
        reason.map_or(Ok(()), |reason| Err(Failure::new(exit, reason)))
    })
}

/// Starts the log, whose level can be changed from then on.
fn start_log(config: &Config) -> Result<LogControl, Failure> {
    let look = match config.observability.log.format {
        LogFormat::Json => LineFormat::Json,
        LogFormat::Text => LineFormat::Text,
    };
    let filter = logging::start(
        &config.observability.log.filter,
        look,
        LogTarget::StandardError,
    )
    .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(LogControl::new(
        &*config.observability.log.filter,
        move |new| filter.set(new).map_err(|error| error.to_string()),
    ))
}

/// The configuration with the initial members, which DNS may have to name: then those, too.
async fn with_members(
    config: Config,
    mut sources: ConfigSources,
) -> Result<(Config, Option<Vec<String>>), Failure> {
    let Some(discovery) = &config.cluster.discovery else {
        return Ok((config, None));
    };
    let members = members_for(discovery, &config.node.name, &config.node.data_dir).await;
    sources
        .flags
        .push(("cluster.initial".to_owned(), members.join(",")));
    let config = Config::load(sources).map_err(|error| Failure::usage(error.to_string()))?;
    Ok((config, Some(members)))
}

/// The environment variables that stand for flags of any command.
fn variables(program: &clap::Command) -> Vec<String> {
    fn collect(command: &clap::Command, found: &mut Vec<String>) {
        let named = command.get_arguments().filter_map(clap::Arg::get_env);
        found.extend(named.map(|name| name.to_string_lossy().into_owned()));
        command
            .get_subcommands()
            .for_each(|below| collect(below, found));
    }
    let mut found = Vec::new();
    collect(program, &mut found);
    found.sort();
    found.dedup();
    found
}

/// Why a node did not start. One that was removed had better not be started again and again.
fn not_started(error: StartError) -> Failure {
    let exit = match error.is_removed() {
        true => Exit::Removed,
        false => Exit::Refused,
    };
    Failure::new(exit, error.to_string())
}

/// Reloads the certificates at every SIGHUP. Never returns.
async fn reload_when_asked(reload: &CertificateReload, hangups: &mut Hangups) {
    loop {
        hangups.next().await;
        reload.ask();
    }
}

/// The service manager that started this process, if it expects status notifications.
fn supervisor() -> Option<Supervisor> {
    let found = Supervisor::of_environment(|name| std::env::var_os(name), std::process::id());
    found.unwrap_or_else(|error| {
        tracing::warn!("{error}");
        None
    })
}

/// Sends the supervisor, if there is one, signs of life for as long as there are any. Never returns.
async fn show_pulse(supervisor: Option<&Supervisor>, pulse: &Pulse) {
    match supervisor {
        Some(supervisor) => supervisor.show_life(async || pulse.beat().await).await,
        None => std::future::pending().await,
    }
}

/// Runs a development cluster until it is asked to stop.
pub(super) fn dev(arguments: &DevArgs) -> Result<(), Failure> {
    panics::install(Ends::Thread, contains_panic);
    runtime()?.block_on(async {
        let stop = Stop::listen()?;
        dev::run(
            arguments,
            &InThisProcess,
            &Sdk,
            stop,
            &mut anstream::stdout(),
        )
        .await
    })
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

/// Starts the nodes of a development cluster.
struct InThisProcess;

impl Launcher for InThisProcess {
    type Node = RunningNode;

    async fn launch(&self, config: &Path) -> Result<RunningNode, String> {
        // The file says all there is: neither environment nor flags of this process may interfere.
        let config = Config::load(ConfigSources {
            file: Some(config.to_owned()),
            ..ConfigSources::default()
        });
        let config = config.map_err(|error| error.to_string())?;
        RunningNode::start(config, ServerOptions::default()).await
    }
}

/// A server in this process.
struct RunningNode {
    server: Server,
}

impl RunningNode {
    async fn start(config: Config, options: ServerOptions) -> Result<Self, String> {
        let server = Server::start(config, options)
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self { server })
    }
}

impl Node for RunningNode {
    async fn ended(&mut self) -> String {
        self.server.failed().await
    }

    async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_of_dev_are_configured_by_files_that_a_server_takes() {
        let directory = Path::new("/tmp/a \"quoted\" place");
        let files = dev::configurations(directory, 3, 7_400).unwrap();
        let home = tempfile::tempdir().unwrap();
        for (index, (path, text)) in (0u16..).zip(files) {
            let file = home.path().join(path.file_name().unwrap());
            std::fs::write(&file, text).unwrap();
            let config = Config::load(ConfigSources {
                file: Some(file),
                ..ConfigSources::default()
            });
            let config = config.unwrap_or_else(|error| panic!("{error}"));
            let name = format!("n{}", index + 1);
            assert_eq!(config.node.name, name);
            assert_eq!(config.node.data_dir, directory.join(&name));
            let listen = config.listen;
            let ports = [listen.client, listen.peer, listen.admin].map(|address| address.port());
            let base = 7_400 + 10 * index;
            assert_eq!(ports, [base, base + 1, base + 2]);
            assert!(listen.client.ip().is_loopback() && listen.peer.ip().is_loopback());
            assert_eq!(config.cluster.initial.len(), 3);
            let pki = directory.join("pki");
            assert_eq!(
                config.tls.peer.cert_file,
                pki.join(format!("{name}-peer.pem"))
            );
            assert_eq!(config.tls.peer.trusted_ca_file, pki.join("peer-ca.pem"));
            assert_eq!(
                config.tls.client.key_file,
                pki.join(format!("{name}-server.key"))
            );
            assert_eq!(config.tls.client.trusted_ca_file, pki.join("client-ca.pem"));
            assert_eq!(config.storage.segment_bytes, 8 << 20);
        }
    }
}
