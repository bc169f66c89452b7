//! Which node of a development cluster has which ports and files.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};

use super::super::failure::Failure;
use crate::pki::IdentityFiles;

/// Ports from one node's client port to the next one's.
const STRIDE: u16 = 10;
/// The ports for etcd's clients: those of etcd's own examples.
const ETCD_PORTS: [u16; 3] = [2_379, 22_379, 32_379];

/// Where everything is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) nodes: Vec<NodePlan>,
    pub(super) pki: PathBuf,
}

/// One node's part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodePlan {
    pub(super) name: String,
    pub(super) client: SocketAddr,
    pub(super) peer: SocketAddr,
    pub(super) admin: SocketAddr,
    /// The port for etcd's clients, if it has one.
    pub(super) etcd: Option<SocketAddr>,
    pub(super) data: PathBuf,
    pub(super) config: PathBuf,
}

impl Plan {
    pub(super) fn new(directory: &Path, nodes: usize, first_port: u16) -> Self {
        let node = |index: usize| {
            let name = format!("n{}", index + 1);
            let [client, peer, admin] = addresses(index, first_port);
            NodePlan {
                client,
                peer,
                admin,
                etcd: None,
                data: directory.join(&name),
                config: directory.join(format!("{name}.toml")),
                name,
            }
        };
        Self {
            nodes: (0..nodes).map(node).collect(),
            pki: directory.join("pki"),
        }
    }

    /// The same, with a port for etcd's clients at each node.
    pub(super) fn with_etcd(mut self) -> Self {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            node.etcd = Some(etcd_address(index));
        }
        self
    }

    /// Each node's configuration file with its text.
    pub(super) fn configurations(&self) -> Result<Vec<(PathBuf, String)>, Failure> {
        let file = |node: &NodePlan| Ok((node.config.clone(), self.configuration(node)?));
        self.nodes.iter().map(file).collect()
    }

    fn configuration(&self, node: &NodePlan) -> Result<String, Failure> {
        let members = self.nodes.iter().map(|member| {
            let text = format!("{}={}", member.name, member.peer);
            toml::Value::String(text).to_string()
        });
        let members: Vec<_> = members.collect();
        let tls = |section: &str, files: IdentityFiles| -> Result<String, Failure> {
            Ok(format!(
                "[tls.{section}]\ncert_file = {}\nkey_file = {}\ntrusted_ca_file = {}\n",
                quoted(&files.certificate)?,
                quoted(&files.key)?,
                quoted(&files.trusted_ca)?
            ))
        };
        let (etcd, compat) = match node.etcd {
            Some(address) => (
                format!("etcd = \"{address}\"\n"),
                "[etcd_compat]\ninsecure = true\n",
            ),
            None => (String::new(), ""),
        };
        Ok(format!(
            "# Written by `leasehold dev` on every start: changes are lost.\n\
             [node]\nname = \"{}\"\ndata_dir = {}\n\
             [listen]\nclient = \"{}\"\npeer = \"{}\"\nadmin = \"{}\"\n{etcd}\
             [cluster]\ninitial = [{}]\n\
             # Smaller than a server's: three nodes share one machine.\n\
             [storage]\ncache_bytes = \"32MiB\"\nsegment_bytes = \"8MiB\"\n\
             {}{}{compat}\
             [log]\nformat = \"text\"\n",
            node.name,
            quoted(&node.data)?,
            node.client,
            node.peer,
            node.admin,
            members.join(", "),
            tls("client", IdentityFiles::server(&self.pki, &node.name))?,
            tls("peer", IdentityFiles::peer(&self.pki, &node.name))?,
        ))
    }
}

/// A node's client, peer and admin address.
fn addresses(index: usize, first_port: u16) -> [SocketAddr; 3] {
    // The arguments allow for nine nodes below the highest port.
    let base = first_port.saturating_add(STRIDE.saturating_mul(index as u16));
    [0, 1, 2].map(|offset| SocketAddr::from((Ipv4Addr::LOCALHOST, base.saturating_add(offset))))
}

/// A node's address for etcd's clients.
fn etcd_address(index: usize) -> SocketAddr {
    // There are at most three nodes.
    let port = ETCD_PORTS.get(index).copied().unwrap_or_default();
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Finds out whether the ports for etcd's clients can be had.
pub(super) fn check_etcd_ports(nodes: usize) -> Result<(), Failure> {
    for index in 0..nodes {
        let address = etcd_address(index);
        let Err(error) = TcpListener::bind(address) else {
            continue;
        };
        return Err(Failure::refused(format!(
            "cannot use TCP port {} for the etcd port of n{}: {error}: stop the process that uses it \
             (`ss -ap 'sport = :{}'` shows it; perhaps an etcd), or leave --etcd out",
            address.port(),
            index + 1,
            address.port()
        )));
    }
    Ok(())
}

/// Finds out whether every port can be had, by having each for a moment.
pub(super) fn check_ports(nodes: usize, first_port: u16) -> Result<(), Failure> {
    for index in 0..nodes {
        let [client, peer, admin] = addresses(index, first_port);
        let node = index + 1;
        port_is_free(UdpSocket::bind(client), client, "UDP", node, "client")?;
        port_is_free(UdpSocket::bind(peer), peer, "UDP", node, "peer")?;
        port_is_free(TcpListener::bind(admin), admin, "TCP", node, "admin")?;
    }
    Ok(())
}

fn port_is_free<T>(
    bound: io::Result<T>,
    address: SocketAddr,
    protocol: &str,
    node: usize,
    role: &str,
) -> Result<(), Failure> {
    let Err(error) = bound else {
        return Ok(());
    };
    let port = address.port();
    Err(Failure::refused(match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "{protocol} port {port} is in use but is needed as the {role} port of n{node}: stop \
             the process that uses it (`ss -ap 'sport = :{port}'` shows it), or choose another \
             first port with --port"
        ),
        _ => format!("cannot use {protocol} port {port} for the {role} port of n{node}: {error}"),
    }))
}

/// A path as a TOML string.
fn quoted(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().ok_or_else(|| {
        Failure::usage(format!(
            "the directory {} has a name that is not UTF-8, which a configuration file cannot \
             hold: choose another with --data-dir",
            path.display()
        ))
    })?;
    Ok(toml::Value::String(text.to_owned()).to_string())
}
