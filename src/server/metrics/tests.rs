//! What is true of every metric, and a few of each kind moved.

use std::collections::BTreeMap;

use super::*;
use crate::api::{ErrorKind, ReadPath};
use crate::node::{Lapse, LeaseCounts};
use crate::raft::Invalidation;

/// The type of every metric in a rendered text, by name.
fn types(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect()
}

fn value(text: &str, series: &str) -> f64 {
    text.lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
        .unwrap_or_else(|| panic!("{series} is not in\n{text}"))
}

#[test]
fn nothing_is_a_summary_everything_has_help_and_only_counters_end_in_total() {
    let metrics = Metrics::new();
    let text = metrics.render(|_| {});
    let types = types(&text);
    assert!(types.len() > 40, "{text}");
    for (name, kind) in &types {
        assert_ne!(*kind, "summary", "{name}");
        assert!(
            text.contains(&format!("# HELP {name} ")),
            "{name} has no help"
        );
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        if *kind == "histogram" {
            let units = ["_seconds", "_entries", "_ratio_at_renew"];
            let unit = units.iter().any(|unit| name.ends_with(unit));
            assert!(unit, "{name} does not end in its unit");
        }
    }
}

/// Each outcome of a renewal is counted as what it is and nothing else, and a whole request that is
/// refused only where nobody could prove to lead.
#[test]
fn renewals_are_counted_by_what_became_of_them() {
    use crate::api::LeaseKept;
    let metrics = Metrics::new();
    let renewed = LeaseKept::Renewed {
        ttl_ms: 1,
        grant_index: 1,
        is_extended: false,
    };
    let outcomes = [
        (renewed, 5),
        (LeaseKept::NotFound, 4),
        (LeaseKept::Expired, 3),
        (LeaseKept::Revoked, 2),
        (LeaseKept::Undecided, 1),
    ];
    let kept = outcomes.map(|(kept, count)| vec![kept; count]).concat();
    metrics.leases.kept(&kept);
    for doubt in [
        ErrorKind::LeaderChanged,
        ErrorKind::LeaseInvalid,
        ErrorKind::NoLeader,
        ErrorKind::DeadlineExceeded,
    ] {
        metrics.leases.refused(10, &doubt);
    }
    let elsewhere = ErrorKind::NotLeader {
        leader: None,
        address: None,
    };
    metrics.leases.refused(10, &elsewhere);
    metrics.leases.changed(&LeaseCounts {
        granted_ttl_ms: vec![500, 1_500],
        expired: 7,
        revoked: 8,
        late: vec![Duration::from_millis(250); 3],
        left_at_renewal: vec![400, 600],
        checkpoints: 9,
        lapses: vec![
            Lapse::StoodStill(Duration::from_secs(1)),
            Lapse::ClockWentBack,
            Lapse::ClockWentBack,
            Lapse::NoQuorum(Duration::from_secs(1)),
        ],
        ..LeaseCounts::default()
    });
    let text = metrics.render(|_| {});
    for (series, expected) in [
        ("leasehold_lease_renewed_total", 5.0),
        (
            "leasehold_lease_renew_rejected_total{reason=\"not_found\"}",
            4.0,
        ),
        (
            "leasehold_lease_renew_rejected_total{reason=\"expired\"}",
            5.0,
        ),
        (
            "leasehold_lease_renew_rejected_total{reason=\"undecided\"}",
            1.0,
        ),
        (
            "leasehold_lease_renew_rejected_total{reason=\"leader_lease_invalid\"}",
            40.0,
        ),
        ("leasehold_lease_granted_total", 2.0),
        ("leasehold_lease_ttl_seconds_sum", 2.0),
        ("leasehold_lease_revoked_total{reason=\"expired\"}", 7.0),
        ("leasehold_lease_revoked_total{reason=\"client\"}", 8.0),
        ("leasehold_lease_expiry_error_seconds_sum", 0.75),
        ("leasehold_lease_remaining_ratio_at_renew_sum", 1.0),
        ("leasehold_lease_checkpoints_total", 9.0),
        ("leasehold_lease_lapses_total{reason=\"stood_still\"}", 1.0),
        (
            "leasehold_lease_lapses_total{reason=\"clock_went_back\"}",
            2.0,
        ),
        ("leasehold_lease_lapses_total{reason=\"no_quorum\"}", 1.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
}

#[test]
fn every_value_of_every_label_is_there_from_the_start() {
    let text = Metrics::new().render(|_| {});
    for series in [
        "leasehold_reads_total{path=\"lease\"}",
        "leasehold_reads_total{path=\"read_index\"}",
        "leasehold_reads_total{path=\"serializable\"}",
        "leasehold_read_fallbacks_total{reason=\"behind\"}",
        "leasehold_leader_lease_invalidations_total{reason=\"quorum_lost\"}",
        "leasehold_requests_total{method=\"put\",code=\"OK\"}",
        "leasehold_quic_connections{kind=\"peer\"}",
        "leasehold_quic_handshakes_total{kind=\"peer\",result=\"cluster\"}",
        "leasehold_malformed_frames_total{kind=\"client\"}",
        "leasehold_tls_certificate_expiry_timestamp_seconds{role=\"peer\"}",
        "leasehold_request_duration_seconds_count{method=\"move_leader\"}",
        "leasehold_wal_fsync_duration_seconds_count",
        "leasehold_members{role=\"learner\"}",
        "leasehold_raft_is_learner",
        "leasehold_raft_election_duration_seconds_count",
        "leasehold_mvcc_operations_total{op=\"range\"}",
        "leasehold_mvcc_operations_total{op=\"txn\"}",
        "leasehold_quic_migrations_total",
        "leasehold_quic_lost_packets_total{kind=\"client\"}",
        "leasehold_quic_round_trip_seconds_count{kind=\"peer\"}",
        "leasehold_auth_failures_total{reason=\"token_expired\"}",
    ] {
        assert_eq!(value(&text, series), 0.0, "{series}");
    }
    assert!(text.contains("leasehold_build_info{version=\""), "{text}");
    assert!(value(&text, "leasehold_mvcc_keys").is_nan(), "not counted");
    assert!(value(&text, "process_open_fds") > 0.0);
    assert!(value(&text, "leasehold_start_time_seconds") > 1.7e9);
}

#[test]
fn a_handle_moves_its_own_series_and_no_other() {
    let metrics = Metrics::new();
    for reason in Invalidation::ALL {
        metrics.leader_lease.invalidations[reason].increment(1 + reason as u64);
    }
    for reason in ReadFallback::ALL {
        metrics.reads.fallbacks[reason].increment(1 + reason as u64);
    }
    metrics.reads.total[ReadPath::Serializable].increment(7);
    metrics.requests.succeeded("put").increment(3);
    metrics.request_failed("put", &ErrorKind::NoLeader);
    metrics.storage.wal_batch_entries.record(5.0);
    let handshakes = &metrics.transport.peer.connections.handshakes;
    handshakes.of("cluster").absolute(4);
    handshakes.of("not known here").absolute(5);
    let text = metrics.render(|metrics| metrics.raft.term.set(9.0));
    let total = |name, label: &str, of: &str| value(&text, &format!("{name}{{{label}=\"{of}\"}}"));
    for reason in Invalidation::ALL {
        let found = total(
            "leasehold_leader_lease_invalidations_total",
            "reason",
            reason.label(),
        );
        assert_eq!(found, 1.0 + reason as u64 as f64);
    }
    for reason in ReadFallback::ALL {
        let found = total("leasehold_read_fallbacks_total", "reason", reason.label());
        assert_eq!(found, 1.0 + reason as u64 as f64);
    }
    assert_eq!(total("leasehold_reads_total", "path", "serializable"), 7.0);
    assert_eq!(total("leasehold_reads_total", "path", "lease"), 0.0);
    assert_eq!(
        value(
            &text,
            "leasehold_requests_total{method=\"put\",code=\"OK\"}"
        ),
        3.0
    );
    let failed = "leasehold_requests_total{method=\"put\",code=\"LH-NO-LEADER\"}";
    assert_eq!(value(&text, failed), 1.0);
    assert_eq!(value(&text, "leasehold_raft_term"), 9.0);
    for (kind, result, expected) in [
        ("peer", "cluster", 4.0),
        ("peer", "other", 5.0),
        ("client", "cluster", 0.0),
    ] {
        let series =
            format!("leasehold_quic_handshakes_total{{kind=\"{kind}\",result=\"{result}\"}}");
        assert_eq!(value(&text, &series), expected, "{series}");
    }
    assert_eq!(
        value(&text, "leasehold_wal_batch_entries_bucket{le=\"4\"}"),
        0.0
    );
    assert_eq!(
        value(&text, "leasehold_wal_batch_entries_bucket{le=\"8\"}"),
        1.0
    );
}

#[test]
fn checks_and_members_are_told_apart_by_their_names() {
    let metrics = Metrics::new();
    let text = metrics.render(|_| {});
    assert!(!text.contains("leasehold_healthcheck{"), "nobody has asked");
    for ok in [true, true, false] {
        metrics.health.checked("readyz", "started", true);
        metrics.health.checked("readyz", "caught_up", ok);
    }
    metrics.health.checked("livez", "threads", true);
    metrics.peer("n2").lag_entries.set(7.0);
    metrics.peer("n3").heartbeat_send_failures.increment(2);
    metrics.peer("n3").heartbeat_send_failures.increment(1);
    let text = metrics.render(|_| {});
    for (series, expected) in [
        (
            "leasehold_healthcheck{type=\"readyz\",name=\"started\"}",
            1.0,
        ),
        (
            "leasehold_healthcheck{type=\"readyz\",name=\"caught_up\"}",
            0.0,
        ),
        (
            "leasehold_healthcheck{type=\"livez\",name=\"threads\"}",
            1.0,
        ),
        (
            "leasehold_healthchecks_total{type=\"readyz\",name=\"caught_up\",status=\"success\"}",
            2.0,
        ),
        (
            "leasehold_healthchecks_total{type=\"readyz\",name=\"caught_up\",status=\"error\"}",
            1.0,
        ),
        (
            "leasehold_healthchecks_total{type=\"readyz\",name=\"started\",status=\"error\"}",
            0.0,
        ),
        ("leasehold_raft_follower_lag_entries{peer=\"n2\"}", 7.0),
        ("leasehold_raft_follower_lag_entries{peer=\"n3\"}", 0.0),
        (
            "leasehold_raft_heartbeat_send_failures_total{peer=\"n3\"}",
            3.0,
        ),
        (
            "leasehold_raft_heartbeat_round_trip_seconds_count{peer=\"n2\"}",
            0.0,
        ),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
}

#[test]
fn two_nodes_of_one_process_do_not_share_a_metric() {
    let (one, two) = (Metrics::new(), Metrics::new());
    one.raft.leader_changes.increment(5);
    let name = "leasehold_raft_leader_changes_total";
    assert_eq!(value(&one.render(|_| {}), name), 5.0);
    assert_eq!(value(&two.render(|_| {}), name), 0.0);
}

#[test]
fn one_read_of_sixty_four_is_measured_whatever_the_batches() {
    let sampler = Sampler::default();
    let measured = (0..640).filter(|_| sampler.take(1)).count();
    assert_eq!(measured, 10);
    let measured = (0..64).filter(|_| sampler.take(10)).count();
    assert_eq!(measured, 10);
    assert!(
        sampler.take(1_000_000),
        "one sample of a large batch is enough"
    );
}

/// Samples that were drained into the histogram of `wal_batch_entries`, seen without draining
/// any (rendering would).
fn drained(metrics: &Metrics) -> usize {
    let text = format!("{:?}", metrics.recorder);
    let at = text
        .find("distributions:")
        .expect("the recorder holds distributions");
    text[at..].matches("count: 1000,").count()
}

#[tokio::test]
async fn upkeep_drains_the_samples_that_pile_up() {
    let metrics = Metrics::new();
    for _ in 0..1_000 {
        metrics.storage.wal_batch_entries.record(1.0);
    }
    assert_eq!(drained(&metrics), 0, "nothing drains by itself");
    let upkeep = metrics.spawn_upkeep(Duration::from_millis(1));
    let seen = async {
        while drained(&metrics) == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), seen)
        .await
        .expect("upkeep drains sooner or later");
    drop(metrics);
    upkeep
        .await
        .expect("the task ends by itself when the metrics are gone");
}
