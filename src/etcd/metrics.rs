//! Metrics by the names that etcd gives them, for dashboards and alerts that are made for etcd.

use std::fmt::Write;

/// A series of etcd: its name, its type, what it says, and which one of ours says the same.
const SAME: [(&str, &str, &str, &str); 8] = [
    (
        "etcd_server_has_leader",
        "gauge",
        "1 if this member knows a leader.",
        "leasehold_raft_has_leader",
    ),
    (
        "etcd_server_is_leader",
        "gauge",
        "1 if this member leads.",
        "leasehold_raft_is_leader",
    ),
    (
        "etcd_server_leader_changes_seen_total",
        "counter",
        "Changes of leader that this member has seen.",
        "leasehold_raft_leader_changes_total",
    ),
    (
        "etcd_server_proposals_committed_total",
        "gauge",
        "The last entry that is committed.",
        "leasehold_raft_commit_index",
    ),
    (
        "etcd_server_proposals_applied_total",
        "gauge",
        "The last entry that is applied.",
        "leasehold_raft_applied_index",
    ),
    (
        "etcd_server_proposals_pending",
        "gauge",
        "Proposals that wait to be committed.",
        "leasehold_raft_proposals_pending",
    ),
    (
        "etcd_server_quota_backend_bytes",
        "gauge",
        "How large the state may become.",
        "leasehold_storage_quota_bytes",
    ),
    (
        "etcd_mvcc_db_total_size_in_bytes",
        "gauge",
        "The size of the state on disk.",
        "leasehold_storage_size_bytes",
    ),
];
/// Ours are divided by their reasons, and etcd's is the sum.
const FAILED: &str = "leasehold_raft_proposals_failed_total";

/// `ours`, the text of a scrape, and after it what etcd's names say of the same.
pub(crate) fn with_etcd_names(ours: &str) -> String {
    let mut text = ours.to_owned();
    for (name, kind, help, source) in SAME {
        if let Some(value) = values(ours, source).next() {
            add(&mut text, name, kind, help, value);
        }
    }
    let failed = values(ours, FAILED).filter_map(|value| value.parse::<f64>().ok());
    let failed: f64 = failed.sum();
    add(
        &mut text,
        "etcd_server_proposals_failed_total",
        "counter",
        "Proposals that failed.",
        &failed.to_string(),
    );
    text
}

fn add(text: &mut String, name: &str, kind: &str, help: &str, value: &str) {
    let written = write!(
        text,
        "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
    );
    written.expect("a text takes everything");
}

/// The values of all series of this name.
fn values<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?.1,
            None => rest,
        };
        value.strip_prefix(' ')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_has_etcds_names_too_and_nothing_is_lost() {
        let ours = "# TYPE leasehold_raft_has_leader gauge\n\
                    leasehold_raft_has_leader 1\n\
                    leasehold_raft_has_leader_ever 7\n\
                    leasehold_raft_proposals_failed_total{reason=\"a } b\"} 2\n\
                    leasehold_raft_proposals_failed_total{reason=\"b\"} 3\n";
        let text = with_etcd_names(ours);
        assert!(text.starts_with(ours));
        let added = &text[ours.len()..];
        assert_eq!(
            added,
            "# HELP etcd_server_has_leader 1 if this member knows a leader.\n\
             # TYPE etcd_server_has_leader gauge\n\
             etcd_server_has_leader 1\n\
             # HELP etcd_server_proposals_failed_total Proposals that failed.\n\
             # TYPE etcd_server_proposals_failed_total counter\n\
             etcd_server_proposals_failed_total 5\n"
        );
    }
}
