//! The initial members by service records of DNS, for a node that is not given them.
//!
//! The records of a cluster may come one by one, as those of pods do. Nodes that begin with different lists would
//! bootstrap different clusters, so a node waits until exactly as many members are named as it was told.
//!
//! A node that has data bootstraps nothing: who the members are stands in its log, and it needs no more than
//! addresses to begin with. So it asks once, and goes on with the answer of its last start if there is no good one:
//! a cluster must come back without DNS, and after it has grown.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::server::config::SrvDiscovery;
use crate::server::disk::data_dir::DataDir;
use crate::server::disk::marker::Marker;
use crate::transport::{SrvRecord, lookup_srv};

/// Interval between questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a node that has data waits for DNS.
const PATIENCE: Duration = Duration::from_secs(5);

/// The members, as `cluster.initial` has them, for the node `name` with its data in `data_dir`: those that DNS names
/// now. Waits until it names them all, unless the node has data and remembers them ([`remember`]).
///
/// # Cancel safety
/// Safe.
pub async fn members_for(discovery: &SrvDiscovery, name: &str, data_dir: &Path) -> Vec<String> {
    let Some(remembered) = remembered(data_dir).filter(|members| is_one_of(members, name)) else {
        return initial_members(discovery).await;
    };
    let problem = match tokio::time::timeout(PATIENCE, look(discovery)).await {
        Ok(Ok(members)) if is_one_of(&members, name) => return members,
        Ok(Ok(members)) => format!("it does not name {name}: {}", members.join(", ")),
        Ok(Err(problem)) => problem,
        Err(_) => format!("no DNS server has answered within {PATIENCE:?}"),
    };
    tracing::warn!(
        service = %discovery.service,
        members = ?remembered,
        "DNS does not name the members of the cluster; this node has data, so it begins with those that were \
         named at its last start: {problem}"
    );
    remembered
}

/// Has the node with its data in `data_dir`, which it has by now, remember `members`.
pub fn remember(data_dir: &Path, members: &[String]) {
    let text = as_text(members);
    let written = match Marker::MembersByDns.read(data_dir) {
        Ok(Some(known)) if known == text => Ok(()),
        _ => Marker::MembersByDns.write(data_dir, &text),
    };
    if let Err(error) = written {
        tracing::warn!(
            "the members that DNS has named cannot be remembered, so that the next start needs DNS: {error}"
        );
    }
}

/// What a node that has data remembers.
fn remembered(data_dir: &Path) -> Option<Vec<String>> {
    // What is wrong with the directory is said when it is opened.
    DataDir::read_identity(data_dir).ok()??;
    let text = Marker::MembersByDns.read(data_dir).ok()??;
    let (list, _) = text.trim_end().rsplit_once('\n')?;
    let members: Vec<String> = list.split('\n').map(str::to_owned).collect();
    (as_text(&members) == text).then_some(members)
}

fn as_text(members: &[String]) -> String {
    let list = members.join("\n");
    format!("{list}\n{:08x}\n", crc32fast::hash(list.as_bytes()))
}

fn is_one_of(members: &[String], name: &str) -> bool {
    let is_it = |member: &String| member.split('=').next() == Some(name);
    members.iter().any(is_it)
}

async fn look(discovery: &SrvDiscovery) -> Result<Vec<String>, String> {
    let found = lookup_srv(&discovery.service, discovery.dns.as_slice()).await;
    members(&found.map_err(|error| error.to_string())?, discovery.size)
}

/// The members. Waits until DNS names them all.
async fn initial_members(discovery: &SrvDiscovery) -> Vec<String> {
    let mut known = String::new();
    loop {
        match look(discovery).await {
            Ok(members) => {
                tracing::info!(service = %discovery.service, ?members, "members found by DNS");
                return members;
            }
            Err(problem) => {
                if problem != known {
                    tracing::warn!(
                        service = %discovery.service,
                        "waiting for DNS to name the members of the cluster: {problem}"
                    );
                }
                known = problem;
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// The members that these records name, if they are so many.
fn members(records: &[SrvRecord], size: usize) -> Result<Vec<String>, String> {
    let mut members = BTreeMap::new();
    for SrvRecord { target, port, .. } in records {
        let name = target.split('.').next().unwrap_or_default();
        let address = format!("{target}:{port}");
        if let Some(other) = members.insert(name, address.clone()) {
            return Err(format!(
                "{other} and {address} would both be called {name}: members are called by the first label \
                 of their targets"
            ));
        }
    }
    if members.len() != size {
        let names: Vec<&str> = members.into_keys().collect();
        return Err(format!(
            "it names {} ({}), and cluster.discovery_size is {size}",
            names.len(),
            names.join(", ")
        ));
    }
    let member = |(name, address)| format!("{name}={address}");
    Ok(members.into_iter().map(member).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(target: &str, port: u16) -> SrvRecord {
        SrvRecord {
            priority: 0,
            weight: 0,
            port,
            target: target.to_owned(),
        }
    }

    #[test]
    fn members_are_called_by_the_first_label_and_are_as_many_as_was_said() {
        let records = [record("n2.example.org", 1), record("n1.example.org", 2)];
        let found = members(&records, 2).unwrap();
        assert_eq!(found, ["n1=n1.example.org:2", "n2=n2.example.org:1"]);
        for size in [1, 3] {
            let said = members(&records, size).unwrap_err();
            assert!(said.contains("it names 2 (n1, n2)"), "{said}");
        }
        let said = members(&[record("n1.a", 1), record("n1.b", 1)], 2).unwrap_err();
        assert!(said.contains("both be called n1"), "{said}");
    }

    #[test]
    fn only_a_directory_with_data_remembers_members_and_only_as_they_were_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n1");
        std::fs::create_dir(&path).unwrap();
        let members = ["n1=a:1", "n2=b:2"].map(str::to_owned);
        remember(&path, &members);
        assert_eq!(remembered(&path), None, "no node has its data there");
        std::fs::remove_file(Marker::MembersByDns.path(&path)).unwrap();
        let identity = crate::server::disk::data_dir::Identity {
            cluster: crate::types::ClusterId(7),
            node_name: "n1".to_owned(),
            incarnation: crate::types::Incarnation(0),
        };
        drop(DataDir::open_or_create(&path, &identity).unwrap());
        assert_eq!(remembered(&path), None);
        remember(&path, &members);
        assert_eq!(remembered(&path).unwrap(), members);
        assert!(is_one_of(&members, "n1") && !is_one_of(&members, "n"));
        for text in ["", "\n", "n1=a:1\n", "n1=a:1\n00000000\n"] {
            Marker::MembersByDns.write(&path, text).unwrap();
            assert_eq!(remembered(&path), None, "{text:?}");
        }
    }
}
