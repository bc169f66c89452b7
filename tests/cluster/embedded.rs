//! A whole cluster in this process, with real certificates, sockets and disks. The benches use it,
//! too.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use leasehold::bench::cluster::free_addresses;
use leasehold::client::{ConnectOptions, TlsOptions};
use leasehold::pki::{Authority, IdentityFiles, wall_clock};
use leasehold::server::config::{Config, ConfigSources};
use leasehold::server::{Server, ServerOptions};

const DAY: Duration = Duration::from_secs(86_400);
/// How long a request is tried again. As in the harness, which the benches do not have.
const REQUEST_PATIENCE: Duration = Duration::from_secs(60);

/// Starts `count` nodes of a new cluster below `folder` and waits until one leads under a lease, and all
/// of them may vote.
pub(crate) async fn start(folder: &Path, count: usize) -> Vec<Server> {
    let mut servers = Vec::new();
    for config in configurations(folder, count) {
        servers.push(
            Server::start(config, ServerOptions::default())
                .await
                .unwrap(),
        );
    }
    lease_holder(&servers).await;
    // A member that is still marked may be quarantined when it meets the others again, and does not vote
    // until it has all that they have: none of them may stop before.
    let is_unproven = |number: usize| folder.join(format!("n{number}/unproven")).exists();
    for _ in 0..3000 {
        if !(1..=count).any(is_unproven) {
            lease_holder(&servers).await;
            return servers;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a node may not vote after a minute");
}

/// The node that leads under a lease.
pub(crate) async fn lease_holder(servers: &[Server]) -> usize {
    for _ in 0..3000 {
        if let Some(leader) = servers.iter().position(Server::has_lease) {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody leads under a lease after a minute");
}

/// What a client of the cluster below `folder` connects with.
pub(crate) fn client_options(folder: &Path) -> ConnectOptions {
    let files = IdentityFiles::client(&folder.join("pki"), "tester");
    ConnectOptions::new()
        .with_timeout(REQUEST_PATIENCE)
        .with_tls(
            TlsOptions::new()
                .ca_pem_file(files.trusted_ca)
                .identity_pem_files(files.certificate, files.key),
        )
}

/// Where clients reach these nodes.
pub(crate) fn endpoints(servers: &[Server]) -> Vec<String> {
    servers
        .iter()
        .map(|server| server.client_address().to_string())
        .collect()
}

/// Configurations of `count` nodes, with their certificates.
pub(crate) fn configurations(folder: &Path, count: usize) -> Vec<Config> {
    let (pki, now) = (folder.join("pki"), wall_clock());
    let authority = Authority::create(None, 10 * DAY, now).unwrap();
    authority.save(&pki).unwrap();
    let client = authority.issue_client("tester", DAY, now).unwrap();
    IdentityFiles::client(&pki, "tester")
        .write(&client, false)
        .unwrap();
    let names: Vec<String> = (1..=count).map(|number| format!("n{number}")).collect();
    let free = free_addresses(count).unwrap();
    let peers: Vec<SocketAddr> = free.iter().map(|node| node.peer).collect();
    let initial: Vec<String> = names
        .iter()
        .zip(&peers)
        .map(|(name, peer)| format!("\"{name}={peer}\""))
        .collect();
    let configuration = |(name, address): (&String, &SocketAddr)| {
        let identity = authority.issue_node(name, &[], DAY, now).unwrap();
        let (peer, server) = (
            IdentityFiles::peer(&pki, name),
            IdentityFiles::server(&pki, name),
        );
        peer.write(&identity.peer, false).unwrap();
        server.write(&identity.server, false).unwrap();
        let tls = |section: &str, files: &IdentityFiles| {
            format!(
                "[tls.{section}]\ncert_file = {:?}\nkey_file = {:?}\ntrusted_ca_file = {:?}\n",
                files.certificate, files.key, files.trusted_ca
            )
        };
        let text = format!(
            "[node]\nname = \"{name}\"\ndata_dir = {:?}\n\
             [listen]\nclient = \"127.0.0.1:0\"\npeer = \"{address}\"\nadmin = \"127.0.0.1:0\"\n\
             [cluster]\ninitial = [{}]\n{}{}",
            folder.join(name),
            initial.join(","),
            tls("client", &server),
            tls("peer", &peer),
        );
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let sources = ConfigSources {
            file: Some(file),
            ..ConfigSources::default()
        };
        Config::load(sources).unwrap()
    };
    names.iter().zip(&peers).map(configuration).collect()
}
