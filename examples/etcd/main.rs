//! An `etcd` that is leasehold: it takes etcd's flags, so that etcd's own tests, and tools that start an
//! etcd, start a node of leasehold. Not for production: its peers' certificates are made by itself.
//!
//! ```sh
//! cargo build --example etcd
//! target/debug/examples/etcd --name default --data-dir /tmp/data \
//!     --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
//! etcdctl put foo bar
//! ```
//!
//! The authority of all clusters that one user starts with one token lies in a folder below the system's
//! temporary one. Flags without a meaning here are named on standard error, and passed over.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what starts an etcd reads what that prints"
)]

mod flags;

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::pki::{Authority, IdentityFiles, wall_clock};
use leasehold::server::config::{Config, ConfigSources};
use leasehold::server::{Server, ServerOptions};
use tokio::signal::unix::{SignalKind, signal};

use flags::{Address, Flags};

const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 86_400);
const LEADER_LOOK: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--version") {
        println!("etcd Version: 3.6.14\nleasehold, behind the flags of etcd");
        return Ok(());
    }
    let flags = Flags::parse(&arguments)?;
    for flag in &flags.ignored {
        eprintln!("{flag} has no meaning here, and is passed over");
    }
    let pki = certificates(&flags)?;
    let file = write_configuration(&flags, &pki)?;
    let config = Config::load(ConfigSources {
        file: Some(file),
        ..ConfigSources::default()
    })?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let server = Server::start(config, ServerOptions::default()).await?;
    let ended = tokio::select! {
        reason = live(&server) => Some(reason),
        _ = terminated.recv() => None,
        _ = interrupted.recv() => None,
    };
    server.shutdown().await;
    match ended {
        Some(reason) => Err(reason.into()),
        None => Ok(()),
    }
}

/// Says what those wait for who start an etcd, then waits for the end of the node.
async fn live(server: &Server) -> String {
    let ready = async {
        while server.status().leader.is_none() {
            tokio::time::sleep(LEADER_LOOK).await;
        }
        eprintln!("published {} to the cluster", server.name());
        eprintln!("enabled capabilities for version 3.6");
        eprintln!("ready to serve client requests");
        std::future::pending().await
    };
    tokio::select! {
        reason = server.failed() => reason,
        () = ready => unreachable!("it waits for ever"),
    }
}

/// The folder with the certificates of the cluster, and of this node in it.
fn certificates(flags: &Flags) -> Result<PathBuf, Box<dyn Error>> {
    let user = std::env::var("USER").unwrap_or_else(|_| "nobody".to_owned());
    let folder = std::env::temp_dir().join(format!("leasehold-as-etcd-{user}"));
    let pki = folder.join(&flags.token);
    fs::create_dir_all(&pki)?;
    // One process at a time makes something.
    let lock = File::create(folder.join("lock"))?;
    lock.lock()?;
    let now = wall_clock();
    let authority = match Authority::load(&pki) {
        Ok(authority) => authority,
        Err(_) => {
            let authority = Authority::create(None, AUTHORITY_LIFE, now)?;
            authority.save(&pki)?;
            authority
        }
    };
    let peer = IdentityFiles::peer(&pki, &flags.name);
    if !peer.certificate.exists() {
        let identity = authority.issue_node(&flags.name, &[], LEAF_LIFE, now)?;
        IdentityFiles::server(&pki, &flags.name).write(&identity.server, true)?;
        peer.write(&identity.peer, true)?;
    }
    Ok(pki)
}

/// Writes the configuration that the flags mean, beside the data.
fn write_configuration(flags: &Flags, pki: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(&flags.data_dir)?;
    let tls = |section: &str, files: &IdentityFiles| {
        format!(
            "[tls.{section}]\ncert_file = {:?}\nkey_file = {:?}\ntrusted_ca_file = {:?}\n",
            files.certificate, files.key, files.trusted_ca
        )
    };
    let initial: Vec<String> = flags
        .members
        .iter()
        .map(|(name, at)| format!("\"{name}={at}\""))
        .collect();
    let Address { host, port } = &flags.client;
    let (peer_host, peer_port) = (&flags.peer.host, flags.peer.port);
    let mut text = format!(
        "[node]\nname = {:?}\ndata_dir = {:?}\n\
         [listen]\nclient = \"{host}:{port}\"\npeer = \"{peer_host}:{peer_port}\"\nadmin = \"127.0.0.1:0\"\n\
         etcd = \"{host}:{port}\"\n\
         [advertise]\netcd = \"{}\"\n\
         [cluster]\nstate = \"{}\"\ninitial = [{}]\n",
        flags.name,
        flags.data_dir.join("leasehold"),
        flags.advertised,
        flags.state,
        initial.join(", "),
    );
    if let Some(bytes) = flags.quota_bytes {
        text += &format!("[quota]\nbytes = {bytes}\n");
    }
    if let Some(ttl) = &flags.token_ttl {
        text += &format!("[auth]\ntoken_ttl = {ttl:?}\n");
    }
    text += &tls("client", &IdentityFiles::server(pki, &flags.name));
    text += &tls("peer", &IdentityFiles::peer(pki, &flags.name));
    text += "[etcd_compat]\n";
    if let Some(count) = flags.streams_max {
        text += &format!("max_concurrent_streams = {count}\n");
    }
    match &flags.tls {
        None => text += "insecure = true\n",
        Some(files) => {
            text += "[tls.etcd]\n";
            for (name, path) in files {
                let path = match *name {
                    "key_file" => private_copy(path, flags)?,
                    _ => path.clone(),
                };
                text += &format!("{name} = {path:?}\n");
            }
            text += &format!("client_cert_auth = {}\n", flags.wants_client_certificate);
            text += &format!("allowed_sans = {:?}\n", flags.allowed_hosts);
        }
    }
    let file = flags.data_dir.join("leasehold.toml");
    fs::write(&file, text)?;
    Ok(file)
}

/// A copy of a key that its owner alone can read: a node takes no other one, and etcd does.
fn private_copy(key: &Path, flags: &Flags) -> io::Result<PathBuf> {
    let copy = flags.data_dir.join("client.key");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&copy)?.write_all(&fs::read(key)?)?;
    Ok(copy)
}
