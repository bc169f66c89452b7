use std::sync::Arc;

use super::*;
use crate::api::ReadPath;
use crate::bench::load::{Keys, Load};
use crate::bench::store::{Answer, Trouble};
use crate::bench::tally::{RequestRecord, Tally};

const MS: Duration = Duration::from_millis(1);

fn plan(reads: f64, rate: Option<f64>) -> Plan {
    Plan {
        load: Load {
            reads,
            consistency: Consistency::Linearizable,
            keys: Arc::new(Keys::new(100, 256)),
            choice: Choice::Uniform,
        },
        clients: 4,
        connections: 1,
        threads: 1,
        rate,
        warm_up: MS,
        duration: 2_000 * MS,
        seed: 1,
        server_pids: vec![1],
    }
}

/// A run with a get of each of these lengths, `put` alike, and failures.
fn run(store: &'static str, plan: &Plan, gets: &[Duration], puts: &[Duration], failed: u64) -> Run {
    let mut tally = Tally::default();
    let mut record = |is_read, taken, result| {
        tally.record(&RequestRecord {
            is_read,
            due: MS,
            sent: MS,
            ended: MS + taken,
            result,
        });
    };
    let answer = |path| Answer {
        revision: 1,
        path,
        found: true,
    };
    for taken in gets {
        record(true, *taken, Ok(answer(Some(ReadPath::Lease))));
    }
    for taken in puts {
        record(false, *taken, Ok(answer(None)));
    }
    for _ in 0..failed {
        let trouble = Trouble {
            code: "LH-NO-LEADER",
            detail: "there is no leader".to_owned(),
        };
        record(true, MS, Err(trouble));
    }
    let outcome = Outcome {
        tally,
        elapsed: plan.duration,
        server_cpu: Some(10 * MS),
        client_cpu: 5 * MS,
    };
    Run::new(store, plan, outcome)
}

fn printed(report: &Report, format: Format) -> String {
    let mut out = Vec::new();
    report.print(&mut out, format).unwrap();
    String::from_utf8(out).unwrap()
}

fn report(runs: Vec<Run>) -> Report {
    let mut report = Report::begin();
    report.runs = runs;
    report.end();
    report.heading.load_average_before = Some(0.5);
    report.heading.load_average_after = Some(1.5);
    report
}

#[test]
fn the_summary_says_what_was_done_and_how_long_it_took() {
    let gets = vec![Duration::from_micros(61); 2_000];
    let report = report(vec![run("leasehold", &plan(1.0, None), &gets, &[], 0)]);
    assert_eq!(
        printed(&report, Format::Simple),
        "Summary  leasehold get: 1,000 ops/s  p50 61µs p99 61µs p99.9 61µs  path: lease=100.00%  \
         server CPU 5.00µs/op\n"
    );
}

#[test]
fn a_table_has_a_row_for_each_operation() {
    let (gets, puts) = (vec![MS; 300], vec![10 * MS; 100]);
    let report = report(vec![run("leasehold", &plan(0.75, None), &gets, &puts, 0)]);
    let table = printed(&report, Format::Table);
    let row = |name: &str| -> Vec<String> {
        let line = table.lines().find(|line| line.contains(name)).unwrap();
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    assert_eq!(row("get")[3], "150", "{table}");
    assert_eq!(row("put")[3], "50", "{table}");
    assert!(
        row("get")[4].starts_with('1') && row("get")[4].ends_with("ms"),
        "{table}"
    );
}

#[test]
fn the_json_document_has_the_fields_that_programs_rely_on() {
    let gets = vec![MS; 100];
    let report = report(vec![run(
        "leasehold",
        &plan(1.0, Some(50.0)),
        &gets,
        &[],
        3,
    )]);
    let value: serde_json::Value = serde_json::from_str(&printed(&report, Format::Json)).unwrap();
    assert_eq!(value["schema"], "leasehold-bench/1");
    let run = &value["runs"][0];
    let mut names: Vec<&str> = run
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "answered",
            "client_cpu_us_per_op",
            "clients",
            "connections",
            "consistency",
            "distribution",
            "errors",
            "failed",
            "keys",
            "latency_counts_from",
            "load",
            "loop",
            "not_found",
            "operations",
            "ops_per_second",
            "rate",
            "read_paths",
            "remarks",
            "seconds",
            "server_cpu_us_per_op",
            "store",
            "threads",
            "unsent",
            "value_bytes",
        ]
    );
    assert_eq!(run["loop"], "open");
    assert_eq!(run["latency_counts_from"], "due");
    assert_eq!(run["answered"], 100);
    assert_eq!(run["errors"]["LH-NO-LEADER"]["count"], 3);
    assert_eq!(run["read_paths"]["lease"], 100);
    let latency = &run["operations"]["get"]["latency_us"];
    for quantile in ["mean", "p50", "p90", "p99", "p99_9", "max"] {
        let micros = latency[quantile].as_f64().unwrap();
        assert!((999.0..1_001.0).contains(&micros), "{quantile}: {micros}");
    }
}

#[test]
fn stores_that_took_turns_are_compared_with_their_neighbours() {
    let plan = plan(1.0, None);
    let fast = |count| vec![MS; count];
    let slow = |count| vec![4 * MS; count];
    let report = report(vec![
        run("leasehold", &plan, &fast(300), &[], 0),
        run("etcd", &plan, &slow(100), &[], 0),
        run("leasehold", &plan, &fast(200), &[], 0),
        run("etcd", &plan, &slow(100), &[], 0),
        run("leasehold", &plan, &fast(1_000), &[], 0),
        run("etcd", &plan, &slow(100), &[], 0),
    ]);
    let figure = |name: &str| {
        report
            .ratios
            .iter()
            .find(|ratio| ratio.figure == name)
            .unwrap()
    };
    assert_eq!(figure("ops/s").pairs, [3.0, 2.0, 10.0]);
    assert!((figure("ops/s").median - 3.0).abs() < 1e-9);
    assert!((figure("get p50").median - 0.25).abs() < 0.01);
    assert!(report.ratios.iter().all(|ratio| ratio.figure != "put p50"));
    let text = printed(&report, Format::Simple);
    assert!(
        text.contains("leasehold / etcd, ops/s: 3.00 (pairs: 3.00 2.00 10.0)"),
        "{text}"
    );
}

#[test]
fn what_makes_figures_mean_less_is_remarked() {
    let mut plan = plan(1.0, Some(1_000.0));
    let mut run_late = run("leasehold", &plan, &[MS; 100], &[], 0);
    assert_eq!(run_late.remarks, [""; 0]);
    for _ in 0..100 {
        run_late.outcome.tally.record_unsent(true, MS, 500 * MS);
    }
    let again = Run::new("leasehold", &plan, (*run_late.outcome).clone());
    assert_eq!(again.unsent, 100);
    assert_eq!(again.answered, 100);
    assert!(
        again.remarks[0].contains("100 of 200 were never sent"),
        "{:?}",
        again.remarks
    );
    plan.rate = None;
    let failing = run("leasehold", &plan, &[MS; 3], &[], 1);
    assert!(
        failing.remarks[0].starts_with("25.00 % of the requests"),
        "{:?}",
        failing.remarks
    );
    assert!(failing.remarks[0].contains("there is no leader"));
}

#[test]
fn a_run_without_an_answer_still_has_a_row() {
    let report = report(vec![run("leasehold", &plan(1.0, None), &[], &[], 5)]);
    let table = printed(&report, Format::Table);
    assert!(table.contains("LH-NO-LEADER=5"), "{table}");
}

#[test]
fn the_percentile_file_reaches_from_the_first_value_to_the_last() {
    let mut latencies = Latencies::default();
    for micros in 1..=1_000 {
        latencies.record(Duration::from_micros(micros));
    }
    let text = percentiles(&latencies);
    let rows: Vec<Vec<f64>> = text
        .lines()
        .skip(2)
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            line.split_whitespace()
                .map(|cell| cell.parse().unwrap())
                .collect()
        })
        .collect();
    assert!(rows.is_sorted_by(|a, b| a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2]));
    let last = rows.last().unwrap();
    assert_eq!((last[1], last[2]), (1.0, 1_000.0));
    assert!((999.0..1_002.0).contains(&last[0]), "{last:?}");
    assert!(text.contains("Total count    =         1000]"), "{text}");
}

#[test]
fn numbers_and_latencies_read_well() {
    assert_eq!(number_text(0.4), "0");
    assert_eq!(number_text(999.0), "999");
    assert_eq!(number_text(1_000.0), "1,000");
    assert_eq!(number_text(1_234_567.4), "1,234,567");
    for (micros, text) in [
        (0.0, "0µs"),
        (0.524, "0.52µs"),
        (61.04, "61µs"),
        (99.96, "100µs"),
        (999.7, "1ms"),
        (1_234.0, "1.23ms"),
        (10_000.0, "10ms"),
        (999_600.0, "1s"),
        (12_345_678.0, "12.3s"),
    ] {
        assert_eq!(micros_text(micros), text);
    }
}

#[test]
fn the_median_of_an_even_number_is_between_the_middle_two() {
    assert_eq!(median(&[]), 0.0);
    assert_eq!(median(&[3.0]), 3.0);
    assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    assert_eq!(median(&[5.0, 1.0, 3.0]), 3.0);
}
