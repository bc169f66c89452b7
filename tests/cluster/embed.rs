//! Nodes inside a program, by the library's own door for them.

use std::time::Duration;

use leasehold::api::{ErrorKind, ReadPath};
use leasehold::bench::cluster::free_addresses;
use leasehold::client::{Client, ConnectOptions, TlsOptions};
use leasehold::embed::{EmbedError, EmbedOptions, EmbeddedNode};
use leasehold::pki::{Authority, wall_clock};
use leasehold::server::StartError;

const HOUR: Duration = Duration::from_secs(3_600);
/// A machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn patient() -> Option<ConnectOptions> {
    Some(ConnectOptions::new().with_timeout(PATIENCE))
}

#[tokio::test]
async fn what_a_program_wrote_is_there_when_it_starts_again() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("new/store");
    let node = EmbeddedNode::start(&directory, None).await.unwrap();
    node.ready().await.unwrap();
    let client = node.client(patient()).await.unwrap();
    client.put("color", "blue", None).await.unwrap();
    let cluster = node.server().cluster_id();
    client.close().await;
    node.shutdown().await;

    let node = EmbeddedNode::start(&directory, None).await.unwrap();
    node.ready().await.unwrap();
    assert_eq!(node.server().cluster_id(), cluster);
    let client = node.client(patient()).await.unwrap();
    let mut found = client.get("color", None).await.unwrap();
    assert_eq!(found.value().unwrap(), "blue");
    // Alone, it leads, and needs no one else to read.
    while found.header.read.as_ref().unwrap().path != ReadPath::Lease {
        found = client.get("color", None).await.unwrap();
    }
    node.shutdown().await;
}

#[tokio::test]
async fn a_directory_has_one_node_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = EmbeddedNode::start(folder.path(), None).await.unwrap();
    let Err(error) = EmbeddedNode::start(folder.path(), None).await else {
        panic!("two nodes have one directory");
    };
    assert!(
        matches!(error, EmbedError::Start(StartError::DataDir { .. })),
        "{error}"
    );
    // The first has lost nothing by it.
    first.ready().await.unwrap();
    let client = first.client(patient()).await.unwrap();
    client.put("color", "blue", None).await.unwrap();
    first.shutdown().await;
    // Nor is the directory another node's.
    let other = EmbedOptions::new().with_name("other");
    let Err(error) = EmbeddedNode::start(folder.path(), Some(other)).await else {
        panic!("a directory belongs to two nodes");
    };
    assert!(error.to_string().contains("embedded"), "{error}");
}

/// A first start that was killed while it wrote its certificates.
#[tokio::test]
async fn a_first_start_that_was_cut_short_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("pki.new");
    std::fs::create_dir(&part).unwrap();
    std::fs::write(part.join("peer-ca.key"), "half of it").unwrap();
    let node = EmbeddedNode::start(folder.path(), None).await.unwrap();
    node.ready().await.unwrap();
    assert!(!part.exists());
    node.shutdown().await;
}

#[tokio::test]
async fn settings_are_those_of_a_configuration_file() {
    let folder = tempfile::tempdir().unwrap();
    let refused = async |key: &str, value: &str| {
        let options = EmbedOptions::new().with_setting(key, value);
        let started = EmbeddedNode::start(folder.path().join("refused"), Some(options)).await;
        started.err().unwrap().to_string()
    };
    let unknown = refused("storage.cash_bytes", "1MiB").await;
    assert!(unknown.contains("storage.cache_bytes"), "{unknown}");
    let invalid = refused("storage.cache_bytes", "much").await;
    assert!(invalid.contains("storage.cache_bytes"), "{invalid}");
    let fixed = refused("tls.peer.key_file", "mine.key").await;
    assert!(
        fixed.contains("`tls.peer.key_file` follows from the directory"),
        "{fixed}"
    );
    // Nothing was made for what was refused.
    let left = std::fs::read_dir(folder.path().join("refused"))
        .unwrap()
        .count();
    assert_eq!(left, 0);

    let options = EmbedOptions::new()
        .with_setting("limits.max_value_bytes", "1KiB")
        .with_setting("limits.max_value_bytes", "2KiB");
    let node = EmbeddedNode::start(folder.path(), Some(options))
        .await
        .unwrap();
    let client = node.client(patient()).await.unwrap();
    client.put("fits", vec![7; 2_048], None).await.unwrap();
    let error = client.put("large", vec![7; 2_049], None).await.unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::RequestTooLarge { .. }),
        "{error}"
    );
    node.shutdown().await;
}

/// Three programs with one authority are one cluster, and a program elsewhere is one of its clients.
#[tokio::test]
async fn three_embedded_nodes_with_one_authority_are_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::create(None, HOUR, wall_clock()).unwrap();
    let free = free_addresses(3).unwrap();
    let names = ["a", "b", "c"];
    let members = names.iter().zip(&free);
    let members: Vec<_> = members
        .map(|(name, at)| format!("{name}={}", at.peer))
        .collect();
    let mut nodes = Vec::new();
    for (name, at) in names.iter().zip(&free) {
        let directory = folder.path().join(name);
        authority.save(&directory.join("pki")).unwrap();
        let options = EmbedOptions::new()
            .with_name(*name)
            .with_setting("listen.peer", at.peer.to_string())
            .with_setting("cluster.initial", members.join(","));
        nodes.push(EmbeddedNode::start(directory, Some(options)).await.unwrap());
    }
    for node in &nodes {
        node.ready().await.unwrap();
    }
    // Each is asked by its own program, whichever of them leads.
    for (number, node) in nodes.iter().enumerate() {
        let client = node.client(patient()).await.unwrap();
        client.put(format!("by/{number}"), "x", None).await.unwrap();
        client.close().await;
    }
    let issued = nodes[0].issue_client("elsewhere", HOUR).unwrap();
    let tls = TlsOptions::new()
        .ca_pem_file(folder.path().join("a/pki/client-ca.pem"))
        .identity_pem(issued.certificate_pem, issued.key_pem);
    let options = patient().unwrap().with_tls(tls);
    let endpoints = nodes
        .iter()
        .map(|node| node.server().client_address().to_string());
    let elsewhere = Client::connect(endpoints, Some(options)).await.unwrap();
    let all = leasehold::client::GetOptions::new().with_prefix();
    assert_eq!(elsewhere.get("by/", Some(all)).await.unwrap().kvs.len(), 3);
    for node in nodes {
        node.shutdown().await;
    }
}
