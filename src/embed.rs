//! A node inside a program: no second process, no certificates to make, the same store.
//!
//! ```no_run
//! use leasehold::embed::EmbeddedNode;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let node = EmbeddedNode::start("data", None).await?;
//! node.ready().await?;
//! let client = node.client(None).await?;
//! client.put("greeting", "hello", None).await?;
//! node.shutdown().await;
//! # Ok(())
//! # }
//! ```
//!
//! It is the node that `leasehold serve` runs, with every setting of a configuration file
//! ([`EmbedOptions::with_setting`]), and its client is the SDK's. Both keep to their threads and speak QUIC over
//! loopback, so a program that blocks does not stop heartbeats, and other programs can be given a certificate
//! ([`EmbeddedNode::issue_client`]) and connect as to any node.
//!
//! # The directory
//!
//! `pki` holds the authorities of the cluster and the node's certificates, which are made at each start and end
//! when the authorities do, after ten years; `data` is the node's data directory. Both are for the owner only.
//!
//! # Several nodes
//!
//! Alone, a node is a cluster of one: it is as safe as its disk, and away when the program is. For a cluster of
//! three give each program a copy of one `pki` directory (`leasehold cert init --out DIR/pki` makes one), a name,
//! and the settings `listen.client`, `listen.peer` and `cluster.initial`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::api::{Error, ErrorKind};
use crate::client::{Client, ConnectOptions, TlsOptions};
use crate::pki::{AUTHORITY_LIFE, Authority, Identity, IdentityFiles, PkiError, wall_clock};
use crate::server::config::{Config, ConfigError, ConfigSources};
use crate::server::{Server, ServerOptions, StartError};

/// The name of a node that was given none.
const NAME: &str = "embedded";
/// The name of the client in its own process.
const CLIENT: &str = "in-process";
/// Interval between looks for a leader.
const LOOK: Duration = Duration::from_millis(10);

/// Why a node could not be started inside this program.
#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    /// The directory cannot be used.
    #[error("cannot use the directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The name of the directory cannot stand in a setting.
    #[error("the directory {} has a name that is not UTF-8: choose another one", path.display())]
    DirectoryName {
        /// The directory.
        path: PathBuf,
    },
    /// A setting is fixed here.
    #[error("`{key}` follows from the directory of an embedded node: leave it out")]
    FixedSetting {
        /// The setting.
        key: String,
    },
    /// The certificates cannot be made or read.
    #[error(transparent)]
    Certificates(#[from] PkiError),
    /// A setting is unknown or invalid.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// The node could not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The node has ended by itself.
    #[error("the node has ended: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
}

/// How a node is started inside a program.
#[derive(Clone, Debug)]
pub struct EmbedOptions {
    name: String,
    settings: Vec<(String, String)>,
}

impl Default for EmbedOptions {
    fn default() -> Self {
        Self {
            name: NAME.to_owned(),
            settings: Vec::new(),
        }
    }
}

impl EmbedOptions {
    /// A node named `embedded`, alone in its cluster, on ports of loopback that the system chooses.
    pub fn new() -> Self {
        Self::default()
    }

    /// The node's name. Its data directory belongs to this name.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// A setting by its key and its value as text, as in `--set section.key=value` of `leasehold serve`:
    /// `with_setting("listen.etcd", "127.0.0.1:2379")`. The last one of a key stands. `node.name`,
    /// `node.data_dir` and the files of `tls.client` and `tls.peer` are given by the directory and refused here.
    #[must_use]
    pub fn with_setting(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }
}

/// A node that runs inside this program. Dropped, it ends as if it had crashed, which it survives.
pub struct EmbeddedNode {
    server: Server,
    authority: Authority,
    /// By which clients know the node.
    client_ca: PathBuf,
}

impl EmbeddedNode {
    /// Starts the node of `directory`, which is created if need be, and returns once it listens.
    /// [`EmbeddedNode::ready`] waits for a leader.
    ///
    /// # Errors
    /// See [`EmbedError`]. Nothing is left running.
    ///
    /// # Cancel safety
    /// Not cancel safe: let it finish, then shut the node down.
    pub async fn start(
        directory: impl AsRef<Path>,
        options: Option<EmbedOptions>,
    ) -> Result<Self, EmbedError> {
        let options = options.unwrap_or_default();
        let directory = directory.as_ref();
        let directory = std::path::absolute(directory)
            .and_then(|path| create(&path).map(|()| path))
            .map_err(|source| EmbedError::Directory {
                path: directory.to_owned(),
                source,
            })?;
        // Nothing is made for settings that are refused.
        let config = config(&directory, &options)?;
        let pki = directory.join("pki");
        let now = wall_clock();
        let authority = Authority::load_or_create(&pki, now)?;
        authority.renew_node(&pki, &options.name, AUTHORITY_LIFE, now)?;
        let client_ca = IdentityFiles::client(&pki, CLIENT).trusted_ca;
        let server = Server::start(config, ServerOptions::default()).await?;
        Ok(Self {
            server,
            authority,
            client_ca,
        })
    }

    /// Waits until this node knows a leader, itself or another; a request before that waits, too, up to its own
    /// deadline.
    ///
    /// # Errors
    /// [`EmbedError::Ended`]: the node has failed.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ready(&self) -> Result<(), EmbedError> {
        let has_leader = async {
            while self.server.status().leader.is_none() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            reason = self.server.failed() => Err(EmbedError::Ended { reason }),
            () = has_leader => Ok(()),
        }
    }

    /// A client of the cluster, connected to this node first. It needs no certificate: `options` may leave
    /// out [`ConnectOptions::with_tls`], which is set here to one for the client `in-process` that is kept in
    /// memory. Where access control is on, that is its user unless the options name another.
    ///
    /// # Errors
    /// As [`Client::connect`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn client(&self, options: Option<ConnectOptions>) -> Result<Client, Error> {
        let identity = self
            .authority
            .issue_client(CLIENT, AUTHORITY_LIFE, wall_clock());
        let identity = identity
            .map_err(|error| Error::not_applied(ErrorKind::InvalidArgument, error.to_string()))?;
        let tls = TlsOptions::new()
            .ca_pem_file(&self.client_ca)
            .identity_pem(identity.certificate_pem, identity.key_pem);
        let options = options.unwrap_or_default().with_tls(tls);
        let endpoint = reachable(self.server.client_address()).to_string();
        Client::connect([endpoint], Some(options)).await
    }

    /// A certificate with its key for the client `name` of another program, valid for `life`; `client-ca.pem` in
    /// the directory `pki` is what it trusts.
    ///
    /// # Errors
    /// The name is none, or `life` is nothing or more than ten years.
    pub fn issue_client(&self, name: &str, life: Duration) -> Result<Identity, PkiError> {
        self.authority.issue_client(name, life, wall_clock())
    }

    /// The node: its addresses, whether it leads under a lease, and when it has failed.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Stops gracefully, as [`Server::shutdown`] does.
    ///
    /// # Cancel safety
    /// Not cancel safe; dropping the node instead is like a crash.
    pub async fn shutdown(self) {
        self.server.shutdown().await;
    }
}

fn create(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
}

/// The configuration of the node of `directory`.
fn config(directory: &Path, options: &EmbedOptions) -> Result<Config, EmbedError> {
    let pki = directory.join("pki");
    let (peer, client) = (
        IdentityFiles::peer(&pki, &options.name),
        IdentityFiles::server(&pki, &options.name),
    );
    let fixed = [
        ("node.data_dir", &directory.join("data")),
        ("tls.client.cert_file", &client.certificate),
        ("tls.client.key_file", &client.key),
        ("tls.client.trusted_ca_file", &client.trusted_ca),
        ("tls.peer.cert_file", &peer.certificate),
        ("tls.peer.key_file", &peer.key),
        ("tls.peer.trusted_ca_file", &peer.trusted_ca),
    ];
    let is_fixed = |key: &str| key == "node.name" || fixed.iter().any(|(own, _)| *own == key);
    if let Some((key, _)) = options.settings.iter().find(|(key, _)| is_fixed(key)) {
        return Err(EmbedError::FixedSetting { key: key.clone() });
    }
    let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).to_string();
    let mut flags = vec![("node.name".to_owned(), options.name.clone())];
    for port in ["listen.client", "listen.peer", "listen.admin"] {
        flags.push((port.to_owned(), any_port.clone()));
    }
    for (key, path) in fixed {
        let path = path.to_str().ok_or_else(|| EmbedError::DirectoryName {
            path: directory.to_owned(),
        })?;
        flags.push((key.to_owned(), path.to_owned()));
    }
    flags.extend(options.settings.iter().cloned());
    let sources = ConfigSources {
        flags,
        ..ConfigSources::default()
    };
    Ok(Config::load(sources)?)
}

/// Where this process reaches what listens on `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
