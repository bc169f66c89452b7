//! Metrics by the names that etcd gives them, for dashboards and alerts that are made for etcd.

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
/// The same of histograms, whose buckets are ours.
const SAME_HISTOGRAMS: [(&str, &str, &str); 2] = [
    (
        "etcd_disk_wal_fsync_duration_seconds",
        "Time of one sync of the log.",
        "leasehold_wal_fsync_duration_seconds",
    ),
    (
        "etcd_disk_backend_commit_duration_seconds",
        "Time of one hand-over of applied changes to the storage engine.",
        "leasehold_storage_hand_over_duration_seconds",
    ),
];
/// Ours are divided, and etcd's are the sum of those with this label; etcd divides what peers are sent by peer.
const SUMS: [(&str, &str, &str, &str); 3] = [
    (
        "etcd_server_proposals_failed_total",
        "Proposals that failed.",
        "leasehold_raft_proposals_failed_total",
        "",
    ),
    (
        "etcd_network_peer_sent_bytes_total",
        "Bytes that were sent to peers.",
        "leasehold_quic_sent_bytes_total",
        "kind=\"peer\"",
    ),
    (
        "etcd_network_peer_received_bytes_total",
        "Bytes that were received from peers.",
        "leasehold_quic_received_bytes_total",
        "kind=\"peer\"",
    ),
];

/// `ours`, the text of a scrape, and after it what etcd's names say of the same.
pub(crate) fn with_etcd_names(ours: &str) -> String {
    let mut text = ours.to_owned();
    for (name, kind, help, source) in SAME {
        if let Some(value) = values(ours, source).next() {
            add(&mut text, name, kind, help, value);
        }
    }
    for (name, help, source) in SAME_HISTOGRAMS {
        add_head(&mut text, name, "histogram", help);
        for line in ours.lines() {
            if let Some(rest) = line.strip_prefix(source)
                && rest.starts_with(['_', '{'])
            {
                text.extend([name, rest, "\n"]);
            }
        }
    }
    for (name, help, source, label) in SUMS {
        let lines = ours.lines().filter(|line| line.contains(label));
        let counts = lines.flat_map(|line| values(line, source));
        let counts = counts.filter_map(|count| count.parse::<f64>().ok());
        // The sum of no numbers would be -0.
        let sum = counts.fold(0.0, |sum, count| sum + count);
        add(&mut text, name, "counter", help, &sum.to_string());
    }
    text
}

fn add(text: &mut String, name: &str, kind: &str, help: &str, value: &str) {
    add_head(text, name, kind, help);
    text.extend([name, " ", value, "\n"]);
}

fn add_head(text: &mut String, name: &str, kind: &str, help: &str) {
    text.extend([
        "# HELP ",
        name,
        " ",
        help,
        "\n# TYPE ",
        name,
        " ",
        kind,
        "\n",
    ]);
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
                    leasehold_wal_fsync_duration_seconds_bucket{le=\"0.1\"} 4\n\
                    leasehold_wal_fsync_duration_seconds_sum 0.25\n\
                    leasehold_wal_fsync_duration_seconds_count 4\n\
                    leasehold_quic_sent_bytes_total{kind=\"client\"} 20\n\
                    leasehold_quic_sent_bytes_total{kind=\"peer\"} 30\n\
                    leasehold_raft_proposals_failed_total{reason=\"a } b\"} 2\n\
                    leasehold_raft_proposals_failed_total{reason=\"b\"} 3\n";
        let text = with_etcd_names(ours);
        assert!(text.starts_with(ours));
        let added = text[ours.len()..].lines();
        let series: Vec<&str> = added.filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            series,
            [
                "# TYPE etcd_server_has_leader gauge",
                "etcd_server_has_leader 1",
                "# TYPE etcd_disk_wal_fsync_duration_seconds histogram",
                "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.1\"} 4",
                "etcd_disk_wal_fsync_duration_seconds_sum 0.25",
                "etcd_disk_wal_fsync_duration_seconds_count 4",
                "# TYPE etcd_disk_backend_commit_duration_seconds histogram",
                "# TYPE etcd_server_proposals_failed_total counter",
                "etcd_server_proposals_failed_total 5",
                "# TYPE etcd_network_peer_sent_bytes_total counter",
                "etcd_network_peer_sent_bytes_total 30",
                "# TYPE etcd_network_peer_received_bytes_total counter",
                "etcd_network_peer_received_bytes_total 0",
            ]
        );
        assert!(text.contains("# HELP etcd_server_has_leader 1 if this member knows a leader.\n"));
    }
}
