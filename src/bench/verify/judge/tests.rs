use super::*;

const MS: Duration = Duration::from_millis(1);

/// A healthy machine with the default settings.
fn healthy() -> Measurements {
    let timing = TimingOptions::default();
    let of = |micros: &[(u64, u64)]| Distribution {
        buckets: micros
            .iter()
            .map(|(micros, count)| (Distribution::bucket(Duration::from_micros(*micros)), *count))
            .collect(),
    };
    Measurements {
        same_machine: true,
        lease_duration: timing.lease_duration,
        max_clock_skew: timing.max_clock_skew,
        timing: LeaseTiming {
            heartbeat_interval: timing.heartbeat_interval,
            election_timeout_min: timing.election_timeout_min,
            election_timeout_max: timing.election_timeout_max,
            step_down_after: timing.step_down_after,
            max_drift_ppm: timing.max_drift_ppm,
            clock_granularity: timing.clock_granularity,
        },
        drift: Some(Rate {
            ppm: -8.0,
            error_ppm: 3.0,
        }),
        slew: None,
        clock_excesses: 0,
        pulse: (MS, 12 * MS),
        timer_delay: of(&[(200, 900), (5_000, 2)]),
        round_trip: of(&[(400, 9_980), (1_900, 20)]),
        renew_interval: of(&[(50_000, 900), (74_000, 1)]),
        expirations: 0,
        probes_answered: 50_000,
        probes_refused: 0,
        longest_gap: 9 * MS,
        reads_leased: 100_000,
        reads: 100_010,
        warnings: Vec::new(),
    }
}

fn findings(violations: u64) -> Findings {
    Findings {
        reads: 1_000,
        writes: 100,
        unanswered: 3,
        violations,
        described: Vec::new(),
    }
}

/// The checks that say no.
fn failing(measured: &Measurements, history: &[Findings]) -> Vec<&'static str> {
    let checks = judge(measured, history);
    let failing = checks.iter().filter(|check| check.passed == Some(false));
    failing.map(|check| check.name).collect()
}

#[test]
fn a_healthy_machine_passes_everything() {
    assert_eq!(failing(&healthy(), &[findings(0), findings(0)]), [""; 0]);
}

#[test]
fn each_fault_fails_its_own_check_and_no_other() {
    let with = |change: fn(&mut Measurements)| {
        let mut measured = healthy();
        change(&mut measured);
        failing(&measured, &[findings(0)])
    };
    assert_eq!(with(|m| m.drift = None), ["clock drift (max)"]);
    assert_eq!(
        with(|m| m.drift = Some(Rate {
            ppm: -20_001.0,
            error_ppm: 0.0
        })),
        ["clock drift (max)"]
    );
    assert_eq!(
        with(|m| m.drift = Some(Rate {
            ppm: 10.0,
            error_ppm: 19_991.0
        })),
        ["clock drift (max)"],
        "it might be more"
    );
    assert_eq!(with(|m| m.clock_excesses = 1), ["clock steps"]);
    assert_eq!(with(|m| m.pulse.1 = 300 * MS), ["scheduler pause (max)"]);
    assert_eq!(
        with(|m| {
            m.pulse.1 = 300 * MS;
            m.same_machine = false;
        }),
        [""; 0],
        "no pause of the nodes"
    );
    assert_eq!(
        with(|m| m.timer_delay.buckets = vec![(Distribution::bucket(300 * MS), 1)]),
        ["scheduler pause (max)"]
    );
    assert_eq!(
        with(|m| m.renew_interval.buckets = vec![(Distribution::bucket(460 * MS), 1)]),
        ["lease renew interval"]
    );
    assert_eq!(
        with(|m| m.renew_interval.buckets.clear()),
        ["lease renew interval"],
        "a lease that nobody renews is no lease"
    );
    assert_eq!(with(|m| m.expirations = 1), ["lease gaps"]);
    assert_eq!(with(|m| m.probes_refused = 1), ["lease gaps"]);
    assert_eq!(with(|m| m.probes_answered = 0), ["lease gaps"]);
    assert_eq!(with(|m| m.reads_leased = 98_000), ["reads that fell back"]);
    assert_eq!(
        with(|m| m.warnings = vec!["tripped".to_owned()]),
        ["warnings of nodes"]
    );
    assert_eq!(
        failing(&healthy(), &[findings(0), findings(1)]),
        ["linearizability"]
    );
    assert_eq!(
        failing(&healthy(), &[]),
        ["linearizability"],
        "nothing was seen"
    );
}

#[test]
fn pauses_are_borne_up_to_what_the_lease_leaves_after_three_heartbeats_and_a_round_trip() {
    let mut measured = healthy();
    let checks = judge(&measured, &[findings(0)]);
    let check = checks
        .iter()
        .find(|check| check.name == "scheduler pause (max)")
        .unwrap();
    // 450 - 3 * 50 - 1.9 ms, the round trip rounded up to its bucket.
    assert_eq!(check.allowed, "298ms");
    measured.timing.heartbeat_interval = 160 * MS;
    assert_eq!(
        failing(&measured, &[findings(0)]),
        ["scheduler pause (max)"],
        "nothing is left"
    );
}

#[test]
fn the_suggestion_is_what_was_measured_with_room_and_a_node_takes_it() {
    let measured = healthy();
    let suggestion = suggest(&measured).unwrap();
    // 3 * 50 + 2 + 2 * 12 = 176 ms and a bit to be trusted; ρ = 1000 ppm, g = 1 ms.
    assert_eq!(suggestion.lease_duration_ms, 180);
    assert_eq!(suggestion.max_clock_skew_ms, 3);
    assert_eq!(suggestion.max_drift_ppm, 1_000);
    assert_eq!(suggestion.election_timeout_min_ms, 550);
    // (450 - 2 - 24) / 3
    assert_eq!(suggestion.heartbeat_interval_max_ms, Some(141));
    assert!(suggestion.is_accepted(&measured));
}

#[test]
fn worse_machines_get_longer_leases_and_wider_margins() {
    let mut measured = healthy();
    measured.pulse.1 = 400 * MS;
    measured.drift = Some(Rate {
        ppm: 390.0,
        error_ppm: 10.0,
    });
    let suggestion = suggest(&measured).unwrap();
    // 150 + 2 + 800 ms to be trusted, at 4000 ppm.
    assert_eq!(suggestion.max_drift_ppm, 4_000);
    assert!(
        (960..=990).contains(&suggestion.lease_duration_ms),
        "{suggestion:?}"
    );
    let needed = 2.0 * 0.004 * suggestion.lease_duration_ms as f64 + 2.0;
    assert!(
        suggestion.max_clock_skew_ms as f64 >= needed,
        "{suggestion:?}"
    );
    assert!(suggestion.election_timeout_min_ms > suggestion.lease_duration_ms);
    assert_eq!(
        suggestion.heartbeat_interval_max_ms, None,
        "the present lease bears no pause twice that"
    );
    measured.drift = Some(Rate {
        ppm: 20_000.0,
        error_ppm: 0.0,
    });
    assert_eq!(suggest(&measured), None, "there is no lease on such clocks");
    measured.drift = None;
    assert_eq!(suggest(&measured), None, "and none on unknown ones");
}
