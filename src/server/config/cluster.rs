//! The cluster and the addresses of its members.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::error::ConfigError;
use super::sections::{AdvertiseConfig, ClusterSettings, ListenConfig};
use super::source::Values;
use super::value::{NAME_FORM, split_address};
use crate::node::recovery::ClusterState;
use crate::transport::{SrvService, srv_name};
use crate::types::is_name;

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// How to start with an empty data directory.
    pub state: ClusterState,
    /// The members that bootstrap the cluster, this node among them, sorted by name. If the cluster
    /// exists: members to contact, perhaps without this node.
    pub initial: Vec<InitialMember>,
    /// Where the members are to be found, if they are not given: then `initial` is this node alone.
    pub discovery: Option<SrvDiscovery>,
}

/// Service records of DNS that name the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvDiscovery {
    /// The name of the records.
    pub service: String,
    /// How many members they must name.
    pub size: usize,
    /// Who is asked; `None` for the resolvers of this machine.
    pub dns: Option<SocketAddr>,
}

/// One of the initial members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialMember {
    /// Its name.
    pub name: String,
    /// The address for its peers, as `host:port`; `None` only for a single member whose port the
    /// system chooses.
    pub address: Option<String>,
}

pub(super) fn listen(values: &Values) -> Result<ListenConfig, ConfigError> {
    let listen = ListenConfig::read(values)?;
    if !listen.admin.ip().is_loopback() {
        return Err(values.invalid(
            ListenConfig::admin,
            "the admin port can change the node and is only served on loopback: use an address \
             such as 127.0.0.1:7480 here, and listen.metrics for probes and metrics from other \
             machines",
        ));
    }
    if overlap(listen.client, listen.peer) {
        return Err(values.same_socket(ListenConfig::client, ListenConfig::peer));
    }
    if listen
        .metrics
        .is_some_and(|metrics| overlap(listen.admin, metrics))
    {
        return Err(values.same_socket(ListenConfig::admin, ListenConfig::metrics));
    }
    // The ports that are TCP.
    if let Some(etcd) = listen.etcd {
        if overlap(listen.admin, etcd) {
            return Err(values.same_socket(ListenConfig::admin, ListenConfig::etcd));
        }
        if listen.metrics.is_some_and(|metrics| overlap(metrics, etcd)) {
            return Err(values.same_socket(ListenConfig::metrics, ListenConfig::etcd));
        }
    }
    Ok(listen)
}

/// Whether two sockets of one protocol cannot both be bound.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let meets = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    meets && one.port() == other.port() && one.port() != 0
}

pub(super) fn cluster(
    values: &Values,
    name: &str,
    listen: &ListenConfig,
    advertised: Option<&str>,
) -> Result<ClusterConfig, ConfigError> {
    let settings = ClusterSettings::read(values)?;
    let discovery = discovery(values, &settings)?;
    let ClusterSettings { initial, state, .. } = settings;
    if initial.is_empty() {
        return Ok(ClusterConfig {
            state,
            initial: vec![alone(name, listen, advertised)],
            discovery,
        });
    }
    let mut names = BTreeMap::new();
    let mut addresses = BTreeMap::new();
    for (entry, at) in initial {
        let (member, address) = parse_member(&entry).map_err(|problem| ConfigError::Invalid {
            at: at.clone(),
            key: ClusterSettings::initial,
            value: entry.clone(),
            problem,
        })?;
        if names.insert(member.clone(), address.clone()).is_some() {
            return Err(ConfigError::DuplicateNode { at, name: member });
        }
        if let Some(first) = addresses.insert(address.to_lowercase(), member.clone()) {
            return Err(ConfigError::DuplicateAddress {
                at,
                address,
                first,
                second: member,
            });
        }
    }
    if !names.contains_key(name) && state == ClusterState::New {
        return Err(ConfigError::NotAMember {
            at: values.at(ClusterSettings::initial),
            name: name.to_owned(),
            members: names.into_keys().collect(),
        });
    }
    if listen.peer.port() == 0 && names.len() > 1 {
        return Err(values.invalid(
            ListenConfig::peer,
            "other nodes cannot know a port chosen by the system: use the port in cluster.initial",
        ));
    }
    let member = |(name, address)| InitialMember {
        name,
        address: Some(address),
    };
    let initial = names.into_iter().map(member).collect();
    Ok(ClusterConfig {
        state,
        initial,
        discovery: None,
    })
}

/// Where the members are to be found, if that is set.
fn discovery(
    values: &Values,
    settings: &ClusterSettings,
) -> Result<Option<SrvDiscovery>, ConfigError> {
    let Some(domain) = &settings.discovery_srv else {
        return match settings.discovery_srv_name {
            None => Ok(None),
            Some(_) => Err(ConfigError::Relation {
                at: values.at(ClusterSettings::discovery_srv_name),
                problem: "cluster.discovery_srv_name is set but cluster.discovery_srv is not: set it, for \
                          example to \"example.org\""
                    .to_owned(),
            }),
        };
    };
    let suffix = settings.discovery_srv_name.as_deref();
    let service = srv_name(SrvService::Server, suffix, domain)
        .map_err(|error| values.invalid(ClusterSettings::discovery_srv, &error.to_string()))?;
    Ok(Some(SrvDiscovery {
        service,
        size: settings.discovery_size,
        dns: settings.discovery_dns,
    }))
}

/// The member of a cluster of one.
fn alone(name: &str, listen: &ListenConfig, advertised: Option<&str>) -> InitialMember {
    let address = match advertised {
        Some(address) => Some(address.to_owned()),
        None if listen.peer.port() == 0 => None,
        // No other node dials it, so any address of this machine will do.
        None if listen.peer.ip().is_unspecified() => {
            Some(format!("127.0.0.1:{}", listen.peer.port()))
        }
        None => Some(listen.peer.to_string()),
    };
    InitialMember {
        name: name.to_owned(),
        address,
    }
}

fn parse_member(entry: &str) -> Result<(String, String), String> {
    let form = "write name=host:port, for example n1=10.0.0.1:7401";
    let (name, address) = entry.split_once('=').ok_or(form)?;
    let (name, address) = (name.trim(), address.trim());
    if !is_name(name) {
        return Err(format!(
            "`{name}` is not a valid node name: a name {NAME_FORM}"
        ));
    }
    split_address(address)?;
    Ok((name.to_owned(), address.to_owned()))
}

/// The addresses at which others reach this node. `own` is its address among the initial members.
pub(super) fn advertise(
    values: &Values,
    listen: &ListenConfig,
    given: AdvertiseConfig,
    own: Option<&str>,
) -> Result<AdvertiseConfig, ConfigError> {
    if let (Some(address), Some(own)) = (&given.peer, own)
        && !own.eq_ignore_ascii_case(address)
    {
        return Err(values.invalid(
            AdvertiseConfig::peer,
            &format!(
                "cluster.initial gives the other nodes {own}: use the same address in both, or \
                 omit advertise.peer"
            ),
        ));
    }
    let peer = given.peer.or_else(|| own.map(str::to_owned));
    let client = match given.client {
        Some(address) => Some(address),
        None if listen.client.port() == 0 => None,
        None if !listen.client.ip().is_unspecified() => Some(listen.client.to_string()),
        None => {
            // Clients most likely reach this node under the same host as its peers.
            let host = own
                .or(peer.as_deref())
                .and_then(|own| split_address(own).ok())
                .map(|(host, _)| host);
            let host = host.unwrap_or("127.0.0.1");
            Some(format!("{host}:{}", listen.client.port()))
        }
    };
    let etcd = match (given.etcd, listen.etcd) {
        (_, None) => None,
        (Some(address), Some(_)) => Some(address),
        (None, Some(etcd)) if etcd.port() == 0 => None,
        (None, Some(etcd)) if !etcd.ip().is_unspecified() => Some(etcd.to_string()),
        (None, Some(etcd)) => {
            let client = client.as_deref().and_then(|it| split_address(it).ok());
            let host = client.map_or("127.0.0.1", |(host, _)| host);
            Some(format!("{host}:{}", etcd.port()))
        }
    };
    Ok(AdvertiseConfig { client, peer, etcd })
}
