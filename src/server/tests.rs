//! Nodes in one process, with real sockets and disks.

use std::net::SocketAddr;
use std::net::UdpSocket;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::Server;
use super::ServerOptions;
use super::config::Config;
use super::config::ConfigSources;

const DAY: Duration = Duration::from_secs(86_400);

fn free_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// Configurations of `count` nodes of a new cluster below `folder`.
fn configs(folder: &Path, count: usize) -> Vec<Config> {
    let (pki, now) = (folder.join("pki"), crate::cli::pki::wall_clock());
    let authority = crate::cli::pki::Authority::create(None, 10 * DAY, now).unwrap();
    authority.save(&pki).unwrap();
    let names: Vec<String> = (1..=count).map(|number| format!("n{number}")).collect();
    let peers: Vec<SocketAddr> = names.iter().map(|_| free_address()).collect();
    let initial: Vec<String> = names
        .iter()
        .zip(&peers)
        .map(|(name, peer)| format!("\"{name}={peer}\""))
        .collect();
    let config = |(name, peer): (&String, &SocketAddr)| {
        let identity = authority.issue_node(name, &[], DAY, now).unwrap();
        let files = crate::cli::pki::IdentityFiles::peer(&pki, name);
        files.write(&identity.peer, false).unwrap();
        let server = crate::cli::pki::IdentityFiles::server(&pki, name);
        server.write(&identity.server, false).unwrap();
        let text = format!(
            "[node]\nname = \"{name}\"\ndata_dir = \"{}\"\n\
             [listen]\nclient = \"127.0.0.1:0\"\npeer = \"{peer}\"\nadmin = \"127.0.0.1:0\"\n\
             [cluster]\ninitial = [{}]\n[storage]\nsegment_bytes = \"8MiB\"\n\
             [tls.client]\ncert_file = \"{s}.pem\"\nkey_file = \"{s}.key\"\ntrusted_ca_file = \"{p}/client-ca.pem\"\n\
             [tls.peer]\ncert_file = \"{q}.pem\"\nkey_file = \"{q}.key\"\ntrusted_ca_file = \"{p}/peer-ca.pem\"\n",
            folder.join(name).display(),
            initial.join(","),
            p = pki.display(),
            s = pki.join(format!("{name}-server")).display(),
            q = pki.join(format!("{name}-peer")).display(),
        );
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        Config::load(ConfigSources {
            file: Some(file),
            ..ConfigSources::default()
        })
        .unwrap()
    };
    names.iter().zip(&peers).map(config).collect()
}

async fn lease_holder(servers: &[Server]) -> usize {
    for _ in 0..3000 {
        if let Some(leader) = servers.iter().position(Server::has_lease) {
            return leader;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("nobody leads under a lease after a minute");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_elect_a_leader_that_hands_over_when_it_stops() {
    let folder = TempDir::new().unwrap();
    let mut servers = Vec::new();
    for config in configs(folder.path(), 3) {
        servers.push(
            Server::start(config, ServerOptions::default())
                .await
                .unwrap(),
        );
    }
    let leader = lease_holder(&servers).await;
    let term = servers[leader].status().term;
    servers.remove(leader).shutdown().await;
    let next = lease_holder(&servers).await;
    assert!(servers[next].status().term > term);
    for server in servers {
        server.shutdown().await;
    }
}
