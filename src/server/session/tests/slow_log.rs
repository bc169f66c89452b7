//! Requests whose time is accounted for, and those of them that took too long.

use super::*;
use crate::server::metrics::stopwatch;

/// A session that takes every request for slow, or none.
fn world(slow: Option<Duration>) -> World {
    let options = AdmissionOptions::DEFAULT;
    World::telling(options.bytes_max, options.waiting_max, slow)
}

fn count(world: &World, series: &str) -> f64 {
    let rendered = world.shared.accounting.metrics.render(|_| {});
    let line = rendered.lines().find_map(|line| line.strip_prefix(series));
    let value = line.unwrap_or_else(|| panic!("no {series} in:\n{rendered}"));
    value.trim().parse().unwrap()
}

/// How many requests spent time in a phase, and how much that was.
fn phase(world: &World, phase: &str) -> (f64, f64) {
    let name = "leasehold_request_phase_duration_seconds";
    (
        count(world, &format!("{name}_count{{phase=\"{phase}\"}}")),
        count(world, &format!("{name}_sum{{phase=\"{phase}\"}}")),
    )
}

/// A write that the driver took in at once, and that came back after these times.
fn written(world: &mut World, quorum: Duration, apply: Duration) {
    let put = Request::Put(PutRequest {
        key: Bytes::from_static(b"k"),
        ..PutRequest::default()
    });
    let frame = world.frame(Consistency::Linearizable, put);
    world.take_in(&[frame]);
    let mut mails = Vec::new();
    world.shared.mailbox.take(&mut mails, Duration::ZERO);
    let Some(Mail::Request { frame, arrived, .. }) = mails.pop() else {
        panic!("a write goes to the driver");
    };
    let taken = arrived;
    let stages = Stages {
        taken: Some(taken),
        committed: Some(taken + quorum),
        looked: None,
    };
    // It comes back when the clock has come there.
    while stopwatch() < taken + quorum + apply {
        std::thread::yield_now();
    }
    let refused = Error::not_applied(ErrorKind::LeaseNotFound, "none");
    let answered = (frame, Delivery::Reply(Err(refused)), stages);
    world.session.complete(answered);
    assert_eq!(world.replies().len(), 1);
}

#[test]
fn the_time_of_a_write_is_quorum_up_to_its_commit_and_apply_after_it() {
    let mut world = world(Some(Duration::from_nanos(1)));
    let (quorum, apply) = (Duration::from_millis(4), Duration::from_millis(2));
    written(&mut world, quorum, apply);
    assert_eq!(phase(&world, "quorum"), (1.0, 0.004));
    let (count_of, sum) = phase(&world, "apply");
    assert_eq!(count_of, 1.0);
    assert!(sum >= 0.002, "{sum}");
    assert_eq!(phase(&world, "storage").0, 0.0);
    let slow = count(&world, "leasehold_slow_requests_total{method=\"put\"}");
    assert_eq!(slow, 1.0);
    let whole = "leasehold_request_duration_seconds_sum{method=\"put\"}";
    assert!(count(&world, whole) >= 0.006);
}

#[test]
fn what_is_fast_enough_is_accounted_for_and_not_told() {
    let mut fast = world(Some(Duration::from_secs(3_600)));
    let mut untold = world(None);
    for world in [&mut fast, &mut untold] {
        written(world, Duration::from_millis(1), Duration::ZERO);
        assert_eq!(phase(world, "quorum").0, 1.0);
        let slow = count(world, "leasehold_slow_requests_total{method=\"put\"}");
        assert_eq!(slow, 0.0);
    }
}

#[tokio::test]
async fn a_scan_waits_for_its_turn_and_then_reads_the_store() {
    let mut world = world(Some(Duration::from_nanos(1)));
    world.put("k", "v");
    scanned(&mut world, Consistency::Serializable)
        .await
        .unwrap();
    for (name, requests) in [("queue", 1.0), ("storage", 1.0), ("quorum", 0.0)] {
        assert_eq!(phase(&world, name).0, requests, "{name}");
    }
    let slow = count(&world, "leasehold_slow_requests_total{method=\"range\"}");
    assert_eq!(slow, 1.0);
}

#[test]
fn of_reads_under_the_lease_one_in_64_is_accounted_for() {
    let mut world = world(Some(Duration::from_nanos(1)));
    world.put("k", "v");
    for _ in 0..128 {
        world.get(Consistency::Linearizable, "k").unwrap().unwrap();
    }
    assert_eq!(phase(&world, "storage").0, 2.0);
    assert_eq!(phase(&world, "queue").0, 0.0);
    let slow = count(&world, "leasehold_slow_requests_total{method=\"range\"}");
    assert_eq!(slow, 2.0);
}
