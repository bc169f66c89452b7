//! The initial members by service records of DNS, for a node that is not given them.
//!
//! The records of a cluster may come one by one, as those of pods do. Nodes that begin with different lists would
//! bootstrap different clusters, so a node waits until exactly as many members are named as it was told.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::server::config::SrvDiscovery;
use crate::transport::{SrvRecord, lookup_srv};

/// Interval between questions.
const INTERVAL: Duration = Duration::from_secs(1);

/// The members, as `cluster.initial` has them. Waits until DNS names them all.
///
/// # Cancel safety
/// Safe.
pub async fn initial_members(discovery: &SrvDiscovery) -> Vec<String> {
    let mut known = String::new();
    loop {
        let found = lookup_srv(&discovery.service, discovery.dns.as_slice()).await;
        let found = found.map_err(|error| error.to_string());
        match found.and_then(|records| members(&records, discovery.size)) {
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
}
