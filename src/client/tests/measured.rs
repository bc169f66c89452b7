//! What a client measures of itself, as the recorder and the subscriber of a program are told it.

use std::fmt::{Debug, Write as _};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::client::{CLIENT_METRICS, KeepAliveEvent};

/// What a recorder was told.
pub(super) struct Told(PrometheusHandle);

impl Told {
    /// The number of a series; 0 if it was not told of.
    pub(super) fn value(&self, series: &str) -> f64 {
        let text = self.0.render();
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        let number = line.and_then(|rest| rest.strip_prefix(' '));
        number.map_or(0.0, |number| number.parse().unwrap())
    }

    pub(super) async fn until(&self, series: &str, is_met: impl Fn(f64) -> bool) {
        while !is_met(self.value(series)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Runs a test on one thread, with a recorder of its own.
pub(super) fn measuring<F: Future>(test: impl FnOnce(Told) -> F) -> F::Output {
    let recorder = PrometheusBuilder::new().build_recorder();
    let told = Told(recorder.handle());
    metrics::with_local_recorder(&recorder, || {
        Client::record_metrics();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let test = test(told);
        runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() })
    })
}

/// A leader that refuses the first put and the key `wrong`, does not have the revision that is asked for, and does not
/// answer what is asked of the key `silent`.
fn wayward(authority: &Authority) -> Fake {
    let puts = AtomicUsize::new(0);
    fake(authority, "n1", move |_, frame| match &frame.call.request {
        Request::Put(_) if puts.fetch_add(1, Ordering::SeqCst) == 0 => refuse(ErrorKind::NoLeader),
        Request::Range(range) if range.key == "silent" => Reaction::Ignore,
        Request::Range(range) if range.key == "wrong" => refuse(ErrorKind::InvalidArgument),
        Request::Range(range) if range.revision > 0 => refuse(ErrorKind::Compacted {
            compact_revision: 1,
        }),
        _ => reply(answer("n1", frame)),
    })
}

#[test]
fn requests_are_counted_by_what_came_of_them_and_connections_while_they_are_kept() {
    measuring(|told| async move {
        let authority = Authority::new();
        let node = wayward(&authority);
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        client.get("k", None).await.unwrap();
        let old = GetOptions::new().with_revision(3);
        client.get("k", Some(old)).await.unwrap_err();
        client.get("wrong", None).await.unwrap_err();
        let moment = Duration::from_millis(20);
        let silent = client.get("silent", None);
        assert!(tokio::time::timeout(moment, silent).await.is_err());

        let requests = |method: &str, outcome: &str| {
            let series = "leasehold_client_requests_total";
            told.value(&format!(
                "{series}{{method=\"{method}\",outcome=\"{outcome}\"}}"
            ))
        };
        assert_eq!(requests("open_session", "ok"), 1.0);
        assert_eq!(requests("put", "ok"), 1.0);
        // One of which the shortest way was tried first counts once.
        for (outcome, count) in [("ok", 1.0), ("not_applied", 2.0), ("dropped", 1.0)] {
            assert_eq!(requests("range", outcome), count, "{outcome}");
        }
        // A machine that is busy elsewhere may need more.
        let attempts = |method: &str| {
            told.value(&format!(
                "leasehold_client_attempts_total{{method=\"{method}\"}}"
            ))
        };
        assert!(attempts("put") >= 2.0 && attempts("range") >= 3.0);
        let timed = "leasehold_client_request_duration_seconds_count{method=\"put\"}";
        assert_eq!(told.value(timed), 1.0);
        assert!(told.value("leasehold_client_connects_total{result=\"ok\"}") >= 1.0);
        assert!(told.value("leasehold_client_connections") >= 1.0);
        client.close().await;
        drop(client);
        told.until("leasehold_client_connections", |kept| kept == 0.0)
            .await;
    });
}

#[test]
fn kept_leases_are_counted_while_they_are_kept_and_so_are_their_renewals() {
    measuring(|told| async move {
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        let ttl = Duration::from_millis(TTL_MS);
        let granted = client.lease().grant_and_keep(ttl, None).await;
        let (_, mut keeper) = granted.unwrap();
        told.until("leasehold_client_kept_leases", |kept| kept == 1.0)
            .await;
        let renewed = "leasehold_client_lease_renewals_total{result=\"renewed\"}";
        loop {
            match keeper.event().await {
                Some(KeepAliveEvent::Renewed { .. }) => break assert!(told.value(renewed) >= 1.0),
                // By a machine that came too late.
                Some(KeepAliveEvent::Lost { .. }) => {
                    break assert_eq!(told.value("leasehold_client_lost_leases_total"), 1.0);
                }
                _ => {}
            }
        }
        drop(keeper);
        told.until("leasehold_client_kept_leases", |kept| kept == 0.0)
            .await;
    });
}

#[test]
fn a_recorder_is_told_what_each_metric_is() {
    measuring(|told| async move {
        // Of what it has heard of, it says so.
        let authority = Authority::new();
        let node = fake(&authority, "n1", healthy("n1"));
        let client = connect(&authority, &[&node]).await;
        client.put("k", "v", None).await.unwrap();
        let text = told.0.render();
        let known = CLIENT_METRICS[0];
        let help = format!("# HELP {} {}", known.name, known.help);
        assert!(text.contains(&help), "{text}");
        for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = line.split_once(' ').unwrap();
            let listed = CLIENT_METRICS.iter().find(|metric| metric.name == name);
            let listed = listed.unwrap_or_else(|| panic!("{name} is not in the list"));
            // Without buckets the exporter shows a summary.
            let kind = if kind == "summary" { "histogram" } else { kind };
            assert_eq!(listed.kind, kind, "{name}");
        }
    });
}

/// Remembers the spans of requests, with their fields.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<String>>>);

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Spans {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == "leasehold.request"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock().unwrap();
        let mut text = String::new();
        span.record(&mut Fields(&mut text));
        spans.push(text);
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let place = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut Fields(&mut self.0.lock().unwrap()[place]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_request_has_a_span_if_the_program_wants_that() {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        measuring(|_| async {
            let authority = Authority::new();
            let node = wayward(&authority);
            let connect = async |spans| {
                let options = options(&authority).with_spans(spans);
                connect_with(&[&node], options).await
            };
            let silent = connect(false).await;
            silent.put("k", "v", None).await.unwrap();
            silent.get("k", None).await.unwrap();
            assert!(spans.0.lock().unwrap().is_empty());
            let client = connect(true).await;
            client.put("k", "v", None).await.unwrap();
            client.get("k", None).await.unwrap();
            let old = GetOptions::new().with_revision(3);
            client.get("k", Some(old)).await.unwrap_err();
        });
    });
    let member = format!("member={}", id_of("n1"));
    let told = spans.0.lock().unwrap().clone();
    let with = |method: &str| {
        let method = format!(" method=\"{method}\"");
        let told = told.iter().filter(move |span| span.starts_with(&method));
        told.cloned().collect::<Vec<String>>()
    };
    let [put] = &with("put")[..] else {
        panic!("{told:?}");
    };
    assert!(
        put.contains("outcome=\"ok\"") && put.contains(&member),
        "{put}"
    );
    let gets = with("range");
    assert!(gets[0].contains("outcome=\"ok\"") && gets[0].contains(&member));
    let failed = gets.last().unwrap();
    assert!(
        failed.contains("outcome=\"not_applied\"") && failed.contains("code=\"LH-COMPACTED\""),
        "{failed}"
    );
}
