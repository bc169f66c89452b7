//! The highest rate of puts that watchers keep up with, and what becomes of them beyond it.
//!
//! A rate is *sustained* if a step at it interrupted no watch, lost no put, made at least nineteen of
//! twenty puts that were due, and if all watchers had received the last put within a second of its
//! answer. So a rate at which delays only grow is none that is sustained, even where no queue has
//! overflowed yet. Rates double while they are sustained (or are halved until one is), then the gap is
//! halved until it is a tenth. The watches stay open from the first step to the last.
//!
//! In the end twice the rate that was found is put, for longer than a step, and nothing is stopped:
//! watches may be interrupted then. Each must still receive everything, without a gap, which
//! `hear` checks of every single event.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::watching::{
    Count, PATIENCE, Shared, WatcherTasks, finish, watch_all, write, write_last,
};
use crate::bench::Stopwatch;
use crate::bench::figures::{duration_text, micros_text, number_text};
use crate::bench::heading::Heading;
use crate::bench::memory::resident_bytes;
use crate::bench::progress::Progress;
use crate::bench::store::{Connection, Store};
use crate::cli::arguments::Format;
use crate::cli::arguments::bench::WatchLoadArgs;
use crate::cli::failure::Failure;
use crate::cli::print::fields;

/// Time within which all watchers must receive the last put of a step, from its reply.
const HEARD_WITHIN: Duration = Duration::from_secs(1);
/// This share of the puts that were due must have been made.
const MADE_MIN: f64 = 0.95;
/// Higher rates are not tried.
const RATE_MAX: u64 = 1 << 20;
/// Interval between checks whether all watchers have received the last put.
const LOOK: Duration = Duration::from_millis(5);
/// Before the memory of idle watches is read.
const REST: Duration = Duration::from_secs(1);

/// What came of it.
#[derive(Debug, Serialize)]
pub(super) struct RateReport {
    #[serde(flatten)]
    pub(super) heading: Heading,
    watchers: usize,
    connections: usize,
    keys: usize,
    value_bytes: usize,
    step_seconds: f64,
    /// The highest rate that was sustained, in puts a second.
    sustained_rate: u64,
    /// The steps, in the order they were made.
    steps: Vec<Step>,
    /// The step at the highest rate that was sustained.
    sustained: Step,
    /// At twice that rate.
    twice: Step,
    /// Of the server processes, before the watches were opened, once they were, and in the end.
    server_bytes_before: Option<u64>,
    server_bytes_watched: Option<u64>,
    server_bytes_after: Option<u64>,
    /// How much more the idle watches took, shared out.
    server_bytes_per_watcher: Option<f64>,
}

/// What a rate came to.
#[derive(Clone, Debug, Serialize)]
struct Step {
    /// Puts a second that were due.
    rate: u64,
    verdict: Verdict,
    puts: u64,
    puts_failed: u64,
    puts_per_second: f64,
    events: u64,
    /// Interruptions.
    resumed: u64,
    /// Watchers that were interrupted.
    watchers_resumed: usize,
    /// Watchers that had not received the last put a second after its reply.
    watchers_late: usize,
    /// Time from the reply to the last put until all watchers had received it.
    caught_up_ms: f64,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// Whether a rate is sustained, and if not, for the first reason that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Sustained,
    /// Watches were interrupted.
    Interrupted,
    /// Watchers received the last put too late.
    Late,
    /// Puts failed, or fewer were made than were due: the cluster does not write so fast.
    TooFewPuts,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Sustained => "sustained",
            Self::Interrupted => "watches interrupted",
            Self::Late => "heard too late",
            Self::TooFewPuts => "not written so fast",
        }
    }
}

/// Which rates are tried.
#[derive(Clone, Copy, Debug)]
struct Search {
    first: u64,
    sustained: Option<u64>,
    failed: Option<u64>,
}

impl Search {
    fn new(first: u64) -> Self {
        Self {
            first,
            sustained: None,
            failed: None,
        }
    }

    /// The next rate to try; `None` once it is known well enough.
    fn next(&self) -> Option<u64> {
        match (self.sustained, self.failed) {
            (None, None) => Some(self.first),
            (Some(sustained), None) => (sustained < RATE_MAX).then(|| sustained.saturating_mul(2)),
            (None, Some(failed)) => (failed > 1).then_some(failed / 2),
            (Some(sustained), Some(failed)) => {
                let gap = failed - sustained;
                (gap > (sustained / 10).max(1)).then(|| sustained + gap / 2)
            }
        }
    }

    fn note(&mut self, rate: u64, is_sustained: bool) {
        match is_sustained {
            true => self.sustained = Some(rate),
            false => self.failed = Some(rate),
        }
    }
}

/// Looks for the rate.
///
/// # Errors
/// No node can be reached; not even one put a second is sustained; or a watcher received something else
/// than what happened.
pub(super) async fn find<S: Store>(
    arguments: &WatchLoadArgs,
    store: &S,
    progress: Progress,
) -> Result<RateReport, Failure> {
    let heading = Heading::begin("leasehold-bench-watch-rate-1");
    let shared = Shared::new(arguments);
    let writer = Arc::new(store.connect(0).await?);
    let mut connections = Vec::new();
    for number in 0..arguments.connections {
        connections.push(Arc::new(store.connect(number).await?));
    }
    let memory = || match arguments.server_pid.as_slice() {
        [] => Ok(None),
        pids => resident_bytes(pids).map(Some),
    };
    let before = memory()?;
    let first = Bytes::from(shared.prefix.clone());
    let start = writer.put(&first, &Bytes::new()).await?.revision + 1;
    let watching = watch_all(arguments, &connections, start, &shared).await?;
    progress.say(&format!("{} watches are open", arguments.watchers));
    tokio::time::sleep(REST).await;
    let watched = memory()?;
    let mut finder = Finder {
        arguments,
        writer: &writer,
        shared: &shared,
        watching,
        progress,
    };
    let (steps, sustained) = finder.search().await?;
    let twice = finder
        .step(2 * sustained.rate, arguments.duration, false)
        .await?;
    let after = memory()?;
    let Finder { watching, .. } = finder;
    write_last(&writer, arguments, &shared).await?;
    finish(watching).await?;
    for connection in connections {
        connection.close().await;
    }
    writer.close().await;
    Ok(RateReport {
        heading,
        watchers: arguments.watchers,
        connections: arguments.connections,
        keys: arguments.keys,
        value_bytes: arguments.value_size,
        step_seconds: arguments.step.as_secs_f64(),
        sustained_rate: sustained.rate,
        steps,
        sustained,
        twice,
        server_bytes_before: before,
        server_bytes_watched: watched,
        server_bytes_after: after,
        server_bytes_per_watcher: before.zip(watched).map(|(before, watched)| {
            watched.saturating_sub(before) as f64 / arguments.watchers as f64
        }),
    })
}

/// Makes steps.
struct Finder<'a, C> {
    arguments: &'a WatchLoadArgs,
    writer: &'a Arc<C>,
    shared: &'a Arc<Shared>,
    watching: WatcherTasks,
    progress: Progress,
}

impl<C: Connection> Finder<'_, C> {
    /// All steps, and the one at the highest rate that was sustained.
    async fn search(&mut self) -> Result<(Vec<Step>, Step), Failure> {
        let mut search = Search::new(self.arguments.rate);
        let mut steps: Vec<Step> = Vec::new();
        let mut best = None;
        while let Some(rate) = search.next() {
            let step = self.step(rate, self.arguments.step, true).await?;
            let is_sustained = step.verdict == Verdict::Sustained;
            search.note(rate, is_sustained);
            if is_sustained {
                best = Some(step.clone());
            }
            steps.push(step);
        }
        let best = best.ok_or_else(|| {
            Failure::refused(
                "not even one put per second reaches all watchers in time: use fewer watchers",
            )
        })?;
        Ok((steps, best))
    }

    /// Puts at `rate` for `duration`, and waits until all watchers have received them. One that `stops` ends with
    /// the first interruption, after which it has failed anyway.
    async fn step(&mut self, rate: u64, duration: Duration, stops: bool) -> Result<Step, Failure> {
        let shared = self.shared;
        shared.take_delays();
        let events_before = shared.events.load(Ordering::Relaxed);
        let resumed_before = shared.resumed.load(Ordering::Relaxed);
        let each_before = self.resumed_each();
        let began = shared.wall.elapsed();
        let count = Count::For(duration, rate);
        let resumed_max = stops.then_some(resumed_before);
        let written = write(self.writer, self.arguments, shared, count, resumed_max).await?;
        let answered = shared.wall.elapsed();
        let wrote_for = answered.saturating_sub(began).as_secs_f64();
        let watchers_late = self.wait_until_heard(answered).await?;
        let resumed = shared.resumed.load(Ordering::Relaxed) - resumed_before;
        let each = self.resumed_each();
        let delays = shared.take_delays();
        let micros = |share| delays.at(share).as_secs_f64() * 1e6;
        let due = rate as f64 * wrote_for;
        let verdict = if resumed > 0 {
            Verdict::Interrupted
        } else if watchers_late > 0 {
            Verdict::Late
        } else if written.failed > 0 || (written.done as f64) < MADE_MIN * due.floor() {
            Verdict::TooFewPuts
        } else {
            Verdict::Sustained
        };
        let step = Step {
            rate,
            verdict,
            puts: written.done,
            puts_failed: written.failed,
            puts_per_second: written.done as f64 / wrote_for,
            events: shared.events.load(Ordering::Relaxed) - events_before,
            resumed,
            watchers_resumed: each_before
                .iter()
                .zip(&each)
                .filter(|(a, b)| a != b)
                .count(),
            watchers_late,
            caught_up_ms: shared.wall.elapsed().saturating_sub(answered).as_secs_f64() * 1e3,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            max_us: delays.max().as_secs_f64() * 1e6,
        };
        self.progress.say(&line(&step));
        Ok(step)
    }

    fn resumed_each(&self) -> Vec<u32> {
        let hearing = self.shared.hearing.iter();
        hearing
            .map(|hearing| hearing.resumed.load(Ordering::Relaxed))
            .collect()
    }

    /// Waits until all watchers have received everything, for as long as any makes progress. How many had not
    /// within a second.
    async fn wait_until_heard(&mut self, answered: Duration) -> Result<usize, Failure> {
        let shared = self.shared;
        let mut late = None;
        let mut heard = shared.events.load(Ordering::Relaxed);
        let mut moved = shared.wall.elapsed();
        loop {
            // None ends before it is stopped, unless something is wrong.
            if let Some(ended) = self.watching.try_join_next() {
                return match ended {
                    Ok(Err(failure)) => Err(failure),
                    _ => Err(Failure::refused("a watch was cancelled")),
                };
            }
            let behind = shared.behind();
            let now = shared.wall.elapsed();
            if behind == 0 {
                return Ok(late.unwrap_or(0));
            }
            if now.saturating_sub(answered) >= HEARD_WITHIN {
                late.get_or_insert(behind);
            }
            let events = shared.events.load(Ordering::Relaxed);
            if events != heard {
                (heard, moved) = (events, now);
            }
            if now.saturating_sub(moved) >= PATIENCE {
                return Err(Failure::refused(format!(
                    "{behind} watchers have not received the last put, and none has received \
                     anything for {PATIENCE:?}"
                )));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A step, for people.
fn line(step: &Step) -> String {
    let caught_up = duration_text(Duration::from_secs_f64(step.caught_up_ms / 1e3));
    let mut line = format!(
        "{:>9} puts a second: {}; delay p50 {}, p99 {}; all heard {caught_up} after the last",
        number_text(step.rate as f64),
        step.verdict.text(),
        micros_text(step.p50_us),
        micros_text(step.p99_us),
    );
    if step.resumed > 0 {
        line += &format!(
            "; {} interruptions of {} watchers",
            number_text(step.resumed as f64),
            number_text(step.watchers_resumed as f64)
        );
    }
    if step.verdict == Verdict::TooFewPuts {
        line += &format!(
            "; {} were made, {} failed",
            number_text(step.puts_per_second),
            step.puts_failed
        );
    }
    line
}

pub(super) fn print(
    found: &RateReport,
    format: Format,
    out: &mut impl Write,
) -> Result<(), Failure> {
    match format {
        Format::Json => {
            serde_json::to_writer(&mut *out, found).map_err(std::io::Error::from)?;
            writeln!(out)?;
        }
        Format::Fields => {
            let document = serde_json::to_value(found).map_err(std::io::Error::from)?;
            fields(out, &document)?;
        }
        Format::Simple | Format::Table => {
            writeln!(
                out,
                "{} watchers on {} connections, {} keys, steps of {}",
                number_text(found.watchers as f64),
                found.connections,
                found.keys,
                duration_text(Duration::from_secs_f64(found.step_seconds))
            )?;
            writeln!(out, "  highest {}", line(&found.sustained).trim_start())?;
            writeln!(out, "  twice   {}", line(&found.twice).trim_start())?;
            writeln!(
                out,
                "          {} events were heard then, every one once and in order",
                number_text(found.twice.events as f64)
            )?;
            if let (Some(before), Some(watched), Some(after), Some(each)) = (
                found.server_bytes_before,
                found.server_bytes_watched,
                found.server_bytes_after,
                found.server_bytes_per_watcher,
            ) {
                let mib = |bytes: u64| number_text(bytes as f64 / f64::from(1 << 20));
                writeln!(
                    out,
                    "  memory  {} bytes a watcher: {} MiB before, {} MiB with all, {} MiB in the end",
                    number_text(each),
                    mib(before),
                    mib(watched),
                    mib(after)
                )?;
            }
            writeln!(out, "  on {}", found.heading.machine())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates that are tried where all up to `limit` are sustained, and the one that is found.
    fn tried(first: u64, limit: u64) -> (Vec<u64>, Option<u64>) {
        let mut search = Search::new(first);
        let mut rates = Vec::new();
        while let Some(rate) = search.next() {
            rates.push(rate);
            search.note(rate, rate <= limit);
        }
        (rates, search.sustained)
    }

    #[test]
    fn rates_double_and_then_close_in_to_a_tenth() {
        assert_eq!(
            tried(100, 555),
            (vec![100, 200, 400, 800, 600, 500, 550], Some(550))
        );
        for limit in [1, 2, 7, 99, 5000, 77_777] {
            let (rates, found) = tried(100, limit);
            let found = found.unwrap();
            assert!(found <= limit && limit <= found + (found / 10).max(1));
            assert!(rates.len() < 24, "{rates:?}");
        }
    }

    #[test]
    fn the_search_ends_where_nothing_or_everything_is_sustained() {
        let (rates, found) = tried(8, 0);
        assert_eq!((rates, found), (vec![8, 4, 2, 1], None));
        let (rates, found) = tried(1 << 18, u64::MAX);
        assert_eq!((rates.len(), found), (3, Some(RATE_MAX)));
    }
}
