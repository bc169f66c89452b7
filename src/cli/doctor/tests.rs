//! What the doctor makes of measurements: those that a test cannot bring about, too.

use super::*;
use crate::api::{ClockReading, LeaseTiming, MemberInfo};

pub(super) fn only(judge: impl FnOnce(&mut Findings)) -> Finding {
    let mut findings = Findings::default();
    judge(&mut findings);
    let [finding] = <[Finding; 1]>::try_from(findings.0).expect("one thing was looked at");
    assert_eq!(finding.advice.is_empty(), finding.level == Level::Ok);
    finding
}

fn millis(millis: u64) -> u64 {
    millis * 1_000_000
}

/// Readings a second apart by our clock, and by `boot` and `raw` of the node's.
fn readings(boot: u64, raw: u64) -> (Reading, Reading) {
    let reading = |at: u64, boot: u64, raw: u64| Reading {
        asked: Instant::from_nanos(millis(at)),
        came: Instant::from_nanos(millis(at + 1)),
        report: LeaderLeaseReport {
            clock: ClockReading { boot, raw },
            timing: LeaseTiming {
                max_drift_ppm: 20_000,
                ..LeaseTiming::default()
            },
            ..LeaderLeaseReport::default()
        },
    };
    (reading(5_000, 0, 0), reading(6_000, boot, raw))
}

fn clocks(boot: u64, raw: u64) -> Vec<(Level, String)> {
    let (first, second) = readings(boot, raw);
    let mut findings = Findings::default();
    judge_clocks(&first, &second, "n1", &mut findings);
    let clocks = findings.0.into_iter().filter(|it| it.check == "clock");
    clocks.map(|it| (it.level, it.advice)).collect()
}

#[test]
fn a_clock_that_runs_beyond_the_drift_that_is_allowed_fails() {
    let sound = clocks(millis(1_000), millis(1_000));
    assert!(sound.iter().all(|it| it.0 == Level::Ok), "{sound:?}");
    // 1.5 % is allowed; so is what two exchanges of a millisecond cannot tell from 2 %.
    let near = clocks(millis(1_015), millis(1_021));
    assert!(near.iter().all(|it| it.0 == Level::Ok), "{near:?}");
    for (boot, raw) in [(900, 1_000), (1_100, 1_000)] {
        let found = clocks(millis(boot), millis(raw));
        assert_eq!(found[0].0, Level::Fail, "{found:?}");
        assert!(found[0].1.contains("leader_lease.enabled"), "{found:?}");
        assert_eq!(found[1].0, Level::Ok, "{found:?}");
    }
}

#[test]
fn a_path_that_loses_packets_or_large_ones_is_warned_of() {
    let path = |datagram_bytes, sent, lost| {
        let path = UdpPath {
            datagram_bytes,
            sent,
            lost,
        };
        only(|it| path.judge("n1:7400", it))
    };
    assert_eq!(path(1_452, 100, 0).level, Level::Ok);
    assert_eq!(path(1_452, 100, LOST_MAX).level, Level::Ok);
    let small = path(1_200, 100, 0);
    assert_eq!(small.level, Level::Warn);
    assert!(small.advice.contains("tunnel"), "{small:?}");
    let lossy = path(1_452, 100, 10);
    assert_eq!(lossy.level, Level::Warn);
    assert!(lossy.advice.contains("lost"), "{lossy:?}");
}

#[test]
fn advice_follows_from_what_kept_a_connection_from_coming_about() {
    let address = SocketAddr::from(([10, 0, 0, 1], 7401));
    let advice = |kind, detail: &str| {
        let error = Error::not_applied(kind, detail);
        advice_for(&error, &[address])
    };
    let another = ConnectError::Alpn {
        address: address.to_string(),
    };
    let another = format!("no endpoint can be reached: {another}");
    let told = advice(ErrorKind::TlsHandshake, &another);
    assert!(told.contains("listen.client"), "{told}");
    let told = advice(ErrorKind::TlsHandshake, "TLS handshake");
    assert!(told.contains("client-ca.pem"), "{told}");
    let told = advice(ErrorKind::ConnectFailed, "did not answer in time");
    assert!(told.contains("UDP"), "{told}");
    let told = advice(ErrorKind::Unauthenticated, "no such user");
    assert!(told.contains("--user"), "{told}");
}

#[test]
fn a_read_that_was_refused_to_its_reader_says_nothing_of_the_members() {
    let judged =
        |consistency, kind| judge_refusal(consistency, true, &Error::not_applied(kind, "x"));
    for consistency in [Consistency::LinearizableQuorum, Consistency::LeaseOnly] {
        for kind in [
            ErrorKind::Unauthenticated,
            ErrorKind::TokenExpired,
            ErrorKind::UserNotFound,
        ] {
            let (level, advice) = judged(consistency, kind);
            assert_eq!(level, Level::Fail);
            assert!(advice.contains("leasehold user add"), "{advice}");
        }
        let (level, advice) = judged(consistency, ErrorKind::PermissionDenied);
        assert_eq!(level, Level::Warn, "the cluster may be as sound as can be");
        assert!(
            advice.contains(READ_KEY) && advice.contains("--user"),
            "{advice}"
        );
    }
    let (level, advice) = judged(Consistency::LinearizableQuorum, ErrorKind::QuorumTimeout);
    assert_eq!(level, Level::Fail);
    assert!(advice.contains("majority"), "{advice}");
    let (level, advice) = judged(Consistency::LeaseOnly, ErrorKind::LeaseInvalid);
    assert_eq!(level, Level::Warn);
    assert!(advice.contains("leader_lease.enabled"), "{advice}");
    // Without a majority no read works, whatever it rests on.
    let error = Error::not_applied(ErrorKind::NoLeader, "x");
    let (level, advice) = judge_refusal(Consistency::LeaseOnly, false, &error);
    assert_eq!(level, Level::Fail);
    assert!(!advice.contains("reads work"), "{advice}");
}

#[test]
fn members_that_were_not_met_are_asked_where_they_say_that_they_are() {
    let member = |id: u64, client_address: &str| MemberInfo {
        id: NodeId(id),
        client_address: client_address.to_owned(),
        ..MemberInfo::default()
    };
    let members = vec![
        member(1, "10.0.0.1:7400"),
        member(2, "10.0.0.2:7400"),
        member(3, "10.0.0.3:7400"),
        member(4, ""),
    ];
    let answer = Answer {
        cluster_id: 7,
        member_id: NodeId(1),
        leader_id: None,
        status: StatusResponse {
            members,
            ..StatusResponse::default()
        },
    };
    // The first is met by another name, the second did not answer, of the fourth nothing is known.
    let named = ["n1:7400", "10.0.0.2:7400"].map(str::to_owned);
    let answers = BTreeMap::from([(named[0].clone(), answer)]);
    let expected = BTreeSet::from(["10.0.0.3:7400".to_owned()]);
    assert_eq!(unasked(&answers, &named), expected);
}

#[test]
fn no_pause_is_not_a_pause_of_no_time() {
    let pauses = |longest| only(|it| judge_pauses(longest, Duration::from_millis(300), "n1", it));
    let none = pauses(Duration::ZERO);
    assert_eq!(
        none.found,
        "no pause since the start; the lease tolerates 300.0ms"
    );
    let some = pauses(Duration::from_micros(4_700));
    assert!(
        some.found
            .starts_with("longest pause since the start 4.7ms"),
        "{some:?}"
    );
    assert_eq!(pauses(Duration::from_millis(301)).level, Level::Warn);
}

#[test]
fn each_remedy_is_another_advice() {
    let told = [
        Remedy::MakePrivate,
        Remedy::SetClock,
        Remedy::NameFile,
        Remedy::NameAuthority,
        Remedy::Issue,
    ]
    .map(advice_against);
    assert_eq!(BTreeSet::from(told).len(), told.len());
    assert!(
        told[0].contains("chmod") && !told[0].contains("issue"),
        "{told:?}"
    );
}

#[test]
fn a_cluster_that_refuses_who_asks_is_not_said_to_lack_a_quorum() {
    let advice = |kind| advice_for_refused(&Error::not_applied(kind, "x"));
    assert_eq!(advice(ErrorKind::Unauthenticated), Some(UNKNOWN_USER));
    assert_eq!(advice(ErrorKind::PermissionDenied), Some(USER_WITHOUT_ROLE));
    assert_eq!(advice(ErrorKind::Unavailable), None);
}
