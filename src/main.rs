//! The `leasehold` binary: it decides arguments and exit codes, and puts a server into the verbs
//! that need one.

#![forbid(unsafe_code)]

#[path = "main/offline.rs"]
mod offline;

use std::io;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use leasehold::bench;
use leasehold::cli;
use leasehold::cli::SettingHelp;
use leasehold::cli::arguments::leader_lease::LeaderLeaseCommand;
use leasehold::cli::arguments::{Command, DevArgs, ServeArgs};
use leasehold::cli::dev::{Launcher, Node};
use leasehold::cli::failure::{Exit, Failure};
use leasehold::cli::logging::{self, Look, Place};
use leasehold::cli::panics::{self, Ends};
use leasehold::cli::remote::Sdk;
use leasehold::cli::signals::{Hangups, Stop};
use leasehold::node::recovery::Refusal;
use leasehold::server::config::{Config, ConfigSources, LogFormat, SETTINGS, unknown_variables};
use leasehold::server::disk::store::contains_panic;
use leasehold::server::run::supervisor::Supervisor;
use leasehold::server::{CertificateReload, LogControl, Pulse, Server, ServerOptions, StartError};

/// A store's memory is made of small pieces that one thread makes and another gives back; the
/// system's allocator holds up the first while the second does.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let settings: Vec<_> = SETTINGS
        .iter()
        .map(|setting| SettingHelp {
            key: setting.key,
            default: setting.default,
            help: setting.help,
        })
        .collect();
    let parsed = cli::parse(&settings);
    match parsed.command {
        Command::Serve(arguments) => cli::report(serve(
            arguments,
            parsed.settings,
            &cli::variables(&settings),
        )),
        Command::Dev(arguments) => cli::report(dev(&arguments)),
        Command::Bench { command } => printing(|out| bench::run(command, &parsed.global, out)),
        Command::Verify { command } => {
            printing(|out| bench::verify::run(command, &parsed.global, out))
        }
        Command::Offline { command } => printing(|out| offline::run(&command, &parsed.global, out)),
        Command::LeaderLease {
            command: LeaderLeaseCommand::Clear(arguments),
        } => printing(|out| offline::clear_leader_lease(&arguments, out)),
        other => cli::run(other, &parsed.global, &settings, &Sdk),
    }
}

/// Runs what prints to standard output.
fn printing(verb: impl FnOnce(&mut io::BufWriter<io::Stdout>) -> Result<(), Failure>) -> ExitCode {
    let mut out = io::BufWriter::new(io::stdout());
    let result = verb(&mut out);
    // What was found comes before what is wrong with it.
    let flushed = out.flush().map_err(Failure::from);
    cli::report(result.and(flushed))
}

/// `of_flags` are the environment variables that stand for flags of any verb.
fn serve(
    arguments: ServeArgs,
    flags: Vec<(String, String)>,
    of_flags: &[String],
) -> Result<(), Failure> {
    let env: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let unknown = unknown_variables(&env, of_flags);
    let config = Config::load(ConfigSources {
        file: arguments.config,
        env,
        flags,
    });
    let config = config.map_err(|error| {
        // What is missing may have been set by a name that is nearly right.
        let hints = unknown.iter().map(|variable| format!("; {variable}"));
        Failure::usage(error.to_string() + &hints.collect::<String>())
    })?;
    let look = match config.log.format {
        LogFormat::Json => Look::Json,
        LogFormat::Text => Look::Text,
    };
    let filter = logging::start(&config.log.filter, look, Place::StandardError)
        .map_err(|error| Failure::usage(error.to_string()))?;
    let log = LogControl::new(&*config.log.filter, move |new| {
        filter.set(new).map_err(|error| error.to_string())
    });
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
        let mut node = tokio::select! {
            started = Server::start(config, options) => RunningNode {
                server: started.map_err(not_started)?,
            },
            () = stop.asked() => return Ok(()),
        };
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

/// Why a node did not start. One that was removed had better not be started again and again.
fn not_started(error: StartError) -> Failure {
    let exit = match error {
        StartError::Refused(Refusal::Removed { .. }) => Exit::Removed,
        _ => Exit::Refused,
    };
    Failure::new(exit, error.to_string())
}

/// Has the certificates loaded anew at every SIGHUP. Never returns.
async fn reload_when_asked(reload: &CertificateReload, hangups: &mut Hangups) {
    loop {
        hangups.next().await;
        reload.ask();
    }
}

/// The service manager that started this process, if it wants to be told how the node is.
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

fn dev(arguments: &DevArgs) -> Result<(), Failure> {
    panics::install(Ends::Thread, contains_panic);
    runtime()?.block_on(async {
        let stop = Stop::listen()?;
        cli::dev::run(
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
        let files = cli::dev::configurations(directory, 3, 7_400).unwrap();
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
            assert_eq!(config.initial_members.len(), 3);
            let pki = directory.join("pki");
            assert_eq!(
                config.tls_peer.cert_file,
                pki.join(format!("{name}-peer.pem"))
            );
            assert_eq!(config.tls_peer.trusted_ca_file, pki.join("peer-ca.pem"));
            assert_eq!(
                config.tls_client.key_file,
                pki.join(format!("{name}-server.key"))
            );
            assert_eq!(config.tls_client.trusted_ca_file, pki.join("client-ca.pem"));
            assert_eq!(config.storage.segment_bytes, 8 << 20);
        }
    }
}
