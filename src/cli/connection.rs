//! The target of a command, and the interface to the client that talks to it.
//!
//! Endpoints and certificates come from flags or the environment, then from a context (see `contexts`). A
//! development cluster leaves word of itself in a private file (see `runtime`), so while it runs no flag is
//! needed.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use super::arguments::{GlobalArgs, TIMEOUT_USUAL};
use super::contexts::{Context, Contexts, ContextsError, DEV};
use super::failure::Failure;
use super::password;
use super::runtime::{DevCluster, RuntimeDirectory, RuntimeError};
use crate::api::{Consistency, Error, ErrorKind, Priority, Request, Response, Secret, TraceParent};
use crate::client::{Client, SrvDiscovery, WatchOptions, Watcher};

/// Makes connections.
pub trait Connector {
    /// What it makes.
    type Connection: Connection;

    /// A connection to `target`. May be lazy: then the first request finds out.
    fn connect(&self, target: &Target) -> impl Future<Output = Result<Self::Connection, Error>>;
}

/// What the commands ask of a client.
pub trait Connection {
    /// Sends a request to a node that can answer it, and follows the leader.
    fn call(
        &self,
        request: Request,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Response, Error>>;

    /// Asks this one endpoint how it is.
    fn status(&self, endpoint: &str) -> impl Future<Output = Result<Response, Error>>;

    /// Watches keys.
    fn watch(
        &self,
        key: Bytes,
        options: WatchOptions,
    ) -> impl Future<Output = Result<Watcher, Error>> {
        let _ = (key, options);
        std::future::ready(Err(Error::not_applied(
            ErrorKind::Unsupported,
            "this connection has no watches",
        )))
    }

    /// The client behind it, for what is made of many requests.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`]: there is none.
    fn client(&self) -> Result<Client, Error> {
        Err(Error::not_applied(
            ErrorKind::Unsupported,
            "this connection has no client of its own",
        ))
    }

    /// Says goodbye, so that the server need not wait for a timeout.
    fn close(self) -> impl Future<Output = ()>;
}

/// Which cluster to talk to, and with which identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Client addresses, as `host:port`.
    pub endpoints: Vec<String>,
    /// The authority that signs nodes.
    pub cacert: PathBuf,
    /// Our certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// What to log in with, if that is not the certificate.
    pub login: Option<Login>,
    /// Deadline for a request.
    pub timeout: Duration,
    /// Deadline for a connection.
    pub connect_timeout: Duration,
    /// Writes have a session, and are repeated in it.
    pub exactly_once: bool,
    /// The trace that the requests are a part of.
    pub traceparent: Option<TraceParent>,
    /// How much they matter.
    pub priority: Priority,
}

/// What to log in with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    /// This user's password.
    Password(String, Secret),
    /// The token in this file.
    TokenFile(PathBuf),
}

/// What besides arguments decides the target.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The context that is used, after its name.
    pub context: Option<(String, Context)>,
    /// The development cluster that runs now, where no context is used.
    pub dev: Option<DevCluster>,
    /// The endpoints that DNS names, where it is asked.
    pub discovered: Vec<String>,
}

impl Surroundings {
    /// What surrounds this process, with the context or the development cluster that is asked for.
    ///
    /// # Errors
    /// The context cannot be used; the private file is there and cannot be trusted or read; the cluster has a name and does not run;
    /// DNS names no endpoints.
    pub fn of_process(global: &GlobalArgs) -> Result<Self, Failure> {
        let discovered = discovered(global)?;
        if let Some(context) = chosen(global)? {
            return Ok(Self {
                context: Some(context),
                dev: None,
                discovered,
            });
        }
        let name = global.dev.as_ref();
        let read = |directory: RuntimeDirectory| directory.running();
        match (RuntimeDirectory::find(name).and_then(read), name) {
            (Ok(None), Some(name)) if global.endpoints.is_empty() && discovered.is_empty() => {
                Err(Failure::usage(format!(
                    "no development cluster called {name} is running: start it with `leasehold dev --name \
                 {name}`"
                )))
            }
            (Ok(dev), _) => Ok(Self {
                context: None,
                dev,
                discovered,
            }),
            (Err(error), Some(_)) => Err(error.into()),
            (Err(error @ RuntimeError::NotOurs { .. }), None) => {
                Err(Failure::refused(error.to_string()))
            }
            // Nothing that a cluster given by flags would need.
            (Err(_), None) => Ok(Self {
                discovered,
                ..Self::default()
            }),
        }
    }
}

/// The endpoints that DNS names, if it is to be asked.
///
/// # Errors
/// It names none.
fn discovered(global: &GlobalArgs) -> Result<Vec<String>, Failure> {
    let is_partial = global.discovery_srv.is_none() && global.discovery_srv_name.is_some();
    if is_partial && global.endpoints.is_empty() {
        return Err(Failure::usage(
            "--discovery-srv-name says which of the clusters of a domain: name the domain with \
             --discovery-srv",
        ));
    }
    let Some(domain) = global
        .discovery_srv
        .as_ref()
        .filter(|_| global.endpoints.is_empty())
    else {
        return Ok(Vec::new());
    };
    let mut discovery = SrvDiscovery::new(domain);
    if let Some(name) = &global.discovery_srv_name {
        discovery = discovery.with_name(name);
    }
    if let Some(server) = global.discovery_dns {
        discovery = discovery.with_dns(server);
    }
    // On a thread of its own, because the caller may be on one of a runtime.
    let look = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Failure::refused(error.to_string()))?;
        runtime
            .block_on(discovery.endpoints())
            .map_err(Failure::from)
    };
    let looked = std::thread::scope(|scope| scope.spawn(look).join());
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The context that a command is to use, if one is.
///
/// # Errors
/// The file cannot be used, or has no such context.
fn chosen(global: &GlobalArgs) -> Result<Option<(String, Context)>, Failure> {
    let named = |contexts: &Contexts, name: &str| -> Result<_, Failure> {
        Ok(Some((name.to_owned(), contexts.named(name)?.clone())))
    };
    if let Some(name) = &global.context {
        if global.dev.is_some() {
            return Err(Failure::usage(
                "--dev and --context (or LEASEHOLD_DEV and LEASEHOLD_CONTEXT) name two clusters: leave \
                 one out",
            ));
        }
        return match name.as_str() {
            DEV => Ok(None),
            name => named(&Contexts::of(global.contexts.as_deref())?, name),
        };
    }
    // Its certificates are for its own endpoints, as those of a development cluster are.
    let names_nodes = !global.endpoints.is_empty() || global.discovery_srv.is_some();
    if global.dev.is_some() || names_nodes {
        return Ok(None);
    }
    let contexts = match Contexts::of(global.contexts.as_deref()) {
        Err(ContextsError::NoHome) => return Ok(None),
        other => other?,
    };
    match contexts.current.as_deref() {
        None | Some(DEV) => Ok(None),
        Some(name) => named(&contexts, name),
    }
}

impl Target {
    /// Puts flags, environment, context and a running development cluster together, strongest first.
    ///
    /// # Errors
    /// No target is given, or it is incomplete.
    pub fn find(global: &GlobalArgs, surroundings: &Surroundings) -> Result<Self, Failure> {
        let nothing = Context::default();
        let (name, context) = match &surroundings.context {
            Some((name, context)) => (Some(name), context),
            None => (None, &nothing),
        };
        let dev = surroundings.dev.as_ref();
        let from_dev = |endpoint: &String| dev.is_some_and(|dev| dev.endpoints.contains(endpoint));
        // The development cluster's certificates open only its own doors.
        let given = match global.endpoints.as_slice() {
            [] => surroundings.discovered.as_slice(),
            given => given,
        };
        let dev = dev.filter(|_| given.iter().all(from_dev));
        let endpoints = match (given, dev) {
            ([], _) if !context.endpoints.is_empty() => context.endpoints.clone(),
            ([], Some(dev)) => dev.endpoints.clone(),
            ([], None) => return Err(no_endpoints(name)),
            (endpoints, _) => endpoints.to_vec(),
        };
        for endpoint in &endpoints {
            check_endpoint(endpoint)?;
        }
        let file =
            |given: &Option<PathBuf>, of_context: &Option<PathBuf>, of_dev, flag, variable| {
                let found = given.as_ref().or(of_context.as_ref()).or(of_dev);
                found.cloned().ok_or_else(|| {
                    Failure::usage(format!(
                        "{flag} (or {variable}) is missing: nodes and clients authenticate with \
                     certificates; issue one with `leasehold cert issue --client`"
                    ))
                })
            };
        let timeout = global.timeout.or(context.timeout).unwrap_or(TIMEOUT_USUAL);
        Ok(Self {
            endpoints,
            cacert: file(
                &global.cacert,
                &context.cacert,
                dev.map(|dev| &dev.cacert),
                "--cacert",
                "LEASEHOLD_CACERT",
            )?,
            cert: file(
                &global.cert,
                &context.cert,
                dev.map(|dev| &dev.cert),
                "--cert",
                "LEASEHOLD_CERT",
            )?,
            key: file(
                &global.key,
                &context.key,
                dev.map(|dev| &dev.key),
                "--key",
                "LEASEHOLD_KEY",
            )?,
            login: login(global, context)?,
            timeout,
            connect_timeout: context.connect_timeout.unwrap_or(timeout),
            exactly_once: global.exactly_once,
            traceparent: global.traceparent,
            priority: global.priority.into(),
        })
    }
}

/// That there are none: of the context called `name`, or at all.
fn no_endpoints(name: Option<&String>) -> Failure {
    Failure::usage(match name {
        Some(name) => format!(
            "the context {name} has no `endpoints`: add them with `leasehold context set {name} \
             --endpoints HOST:PORT`"
        ),
        None => "no cluster was given: start one with `leasehold dev`, or name one with --endpoints (or \
                 LEASEHOLD_ENDPOINTS) or --discovery-srv, --cacert, --cert and --key, or with --context"
            .to_owned(),
    })
}

/// What to log in with. The password of the context is its user's alone.
fn login(global: &GlobalArgs, context: &Context) -> Result<Option<Login>, Failure> {
    one_user(global)?;
    let of_context = context
        .token_file
        .as_ref()
        .filter(|_| global.user.is_none());
    if let Some(file) = global.token_file.as_ref().or(of_context) {
        no_typed_password(global)?;
        return Ok(Some(Login::TokenFile(file.clone())));
    }
    let (user, of_context) = match (&global.user, &context.user) {
        (Some(user), _) => (user, None),
        (None, Some(user)) => (user, context.password_file.as_deref()),
        (None, None) if typed_password_file(global).is_some() => {
            return Err(Failure::usage(
                "--password-file is of a user: name the user with --user",
            ));
        }
        (None, None) => return Ok(None),
    };
    let file = global.password_file.as_deref();
    let password = password::of_user(user, file, of_context)?;
    Ok(Some(Login::Password(user.clone(), password)))
}

/// # Errors
/// A password was typed, where the context logs in with a token.
pub(super) fn no_typed_password(global: &GlobalArgs) -> Result<(), Failure> {
    match typed_password_file(global) {
        None => Ok(()),
        Some(_) => Err(Failure::usage(
            "--password-file is of a user, and the context logs in with token_file: name the user with \
             --user, or leave the password out",
        )),
    }
}

/// The password file that was typed: one that the environment names is there for all commands, and for those that
/// have a user.
fn typed_password_file(global: &GlobalArgs) -> Option<&PathBuf> {
    let of_environment = std::env::var_os("LEASEHOLD_PASSWORD_FILE").map(PathBuf::from);
    let given = global.password_file.as_ref();
    given.filter(|file| of_environment.as_ref() != Some(file))
}

/// # Errors
/// Both a user and a token are given.
pub(super) fn one_user(global: &GlobalArgs) -> Result<(), Failure> {
    let second = match (&global.user, &global.password_file) {
        _ if global.token_file.is_none() => return Ok(()),
        (Some(_), _) => {
            "--user and --token-file (or LEASEHOLD_USER and LEASEHOLD_TOKEN_FILE) name two users"
        }
        (None, _) if typed_password_file(global).is_some() => {
            "--password-file is of a user, and --token-file names one already"
        }
        (None, _) => return Ok(()),
    };
    Err(Failure::usage(format!("{second}: leave one out")))
}

fn check_endpoint(endpoint: &str) -> Result<(), Failure> {
    let valid = endpoint
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0));
    if valid && !endpoint.contains('/') {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "`{endpoint}` is not an endpoint: write host:port, for example 10.0.0.1:7400"
    )))
}
