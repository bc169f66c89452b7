//! Many runs on all cores, one seed each.
//!
//! Seeds are handed out in order, and after a failure nobody takes a new one: every lower seed is
//! then under way, so the lowest that fails is the one told, whatever the number of threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::checkers::Counts;
use crate::clock::Nanos;
use crate::marks::Marks;
use crate::options::Options;
use crate::run::{Report, run};

/// What the runs amounted to.
#[derive(Default)]
pub(crate) struct Total {
    pub(crate) seeds: u64,
    pub(crate) counts: Counts,
    pub(crate) marks: Marks,
    pub(crate) simulated: Nanos,
    pub(crate) operations: usize,
    pub(crate) events: u64,
    /// Of all that happened, whichever thread ran which seed: two programs that print the same did the same.
    pub(crate) digest: u64,
}

/// What became of one seed, and how long the thread that ran it has been computing so far.
struct Ended {
    seed: u64,
    thread: usize,
    computed: Duration,
    /// None if a node panicked.
    report: Option<Box<Report>>,
}

/// A seed that did not end well: its options, and the report, if no node panicked.
pub(crate) type Failed = (Options, Option<Box<Report>>);

/// How fast it goes, and how often that is said.
pub(crate) struct Pace {
    /// How long each thread has been computing: on a machine with other work, less than it ran.
    computed: Vec<Duration>,
    began: std::time::Instant,
    said: Duration,
}

const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

impl Pace {
    #[expect(
        clippy::disallowed_methods,
        reason = "elapsed time is only shown, as a rate"
    )]
    pub(crate) fn start(threads: usize) -> Self {
        Self {
            computed: vec![Duration::ZERO; threads],
            began: std::time::Instant::now(),
            said: Duration::ZERO,
        }
    }

    /// Cluster-hours, and how many times real time that is, for the machine and for one core.
    pub(crate) fn tell(&self, simulated: Nanos) -> String {
        let simulated = simulated as f64 / 1e9;
        let took = self.began.elapsed().as_secs_f64();
        let computed: Duration = self.computed.iter().sum();
        let per_core = match computed.as_secs_f64() {
            0.0 => String::new(),
            computed => format!(", {:.0} for each busy core", simulated / computed),
        };
        format!(
            "{:.2} cluster-hours in {:.2} min on {} threads ({:.1} per minute, {:.0} times real \
             time{per_core})",
            simulated / 3600.0,
            took / 60.0,
            self.computed.len(),
            simulated / 60.0 / took,
            simulated / took,
        )
    }

    fn is_due(&mut self) -> bool {
        let elapsed = self.began.elapsed();
        let due = elapsed >= self.said + PROGRESS_INTERVAL;
        if due {
            self.said = elapsed;
        }
        due
    }
}

/// Runs the seeds from `first` on, `seeds` of them; the lowest that fails, if one does.
pub(crate) fn run_all(
    first: u64,
    seeds: u64,
    pace: &mut Pace,
    options: impl Fn(u64) -> Options + Sync,
) -> (Total, Option<Failed>) {
    let next = AtomicU64::new(first);
    let failed = AtomicBool::new(false);
    let work = |thread: usize, results: &mpsc::Sender<Ended>| {
        while !failed.load(Ordering::SeqCst) {
            let seed = next.fetch_add(1, Ordering::SeqCst);
            if seed - first >= seeds {
                return;
            }
            let report = catch_unwind(AssertUnwindSafe(|| run(options(seed))));
            let report = report.ok().map(Box::new);
            if report
                .as_ref()
                .is_none_or(|report| report.violation.is_some())
            {
                failed.store(true, Ordering::SeqCst);
            }
            let ended = Ended {
                seed,
                thread,
                computed: computed_by_this_thread(),
                report,
            };
            if results.send(ended).is_err() {
                return;
            }
        }
    };
    let mut total = Total::default();
    let mut lowest: Option<(u64, Option<Box<Report>>)> = None;
    std::thread::scope(|scope| {
        let (results, ended) = mpsc::channel();
        for thread in 0..pace.computed.len() {
            let results = results.clone();
            scope.spawn(move || work(thread, &results));
        }
        drop(results);
        for Ended {
            seed,
            thread,
            computed,
            report,
        } in ended
        {
            pace.computed[thread] = computed;
            match report {
                Some(report) if report.violation.is_none() => {
                    total.add(&report);
                    if pace.is_due() {
                        eprintln!("{} seeds, {}", total.seeds, pace.tell(total.simulated));
                    }
                }
                report if lowest.as_ref().is_none_or(|(other, _)| seed < *other) => {
                    lowest = Some((seed, report));
                }
                _ => {}
            }
        }
    });
    let lowest = lowest.map(|(seed, report)| (options(seed), report));
    (total, lowest)
}

impl Total {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.counts.add(&report.counts);
        self.marks.add(&report.marks);
        self.simulated += report.simulated;
        self.operations += report.operations;
        self.events += report.trace.events();
        self.digest = self.digest.wrapping_add(report.trace.hash());
    }
}

/// How long the calling thread has had a processor; nothing where the system does not say.
pub(crate) fn computed_by_this_thread() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}
