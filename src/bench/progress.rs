//! A line of progress a second.

use std::io;
use std::io::{IsTerminal, Write};

use super::figures::{duration_text, number_text};
use super::generator::Interval;

/// Where lines of progress go: to standard error if that is a terminal, else nowhere.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shown, unless it is switched off or standard error is no terminal.
    pub fn new(quiet: bool) -> Self {
        Self {
            shown: !quiet && io::stderr().is_terminal(),
        }
    }

    /// Says what is going on.
    pub fn say(&self, text: &str) {
        if self.shown {
            // If standard error is gone, the line is lost.
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Says what happened lately.
    pub fn show(&self, who: &str, interval: &Interval) {
        self.say(&line(who, interval));
    }
}

fn line(who: &str, interval: &Interval) -> String {
    let tally = &interval.tally;
    let seconds = interval.length.as_secs_f64();
    let rate = tally.answered() as f64 / seconds.max(1e-9);
    let mut line = format!(
        "{who:>10} {:>4}s {:>9} ops/s",
        interval.at.as_secs(),
        number_text(rate)
    );
    for (name, series) in [("get", &tally.reads), ("put", &tally.writes)] {
        if series.taken.count() > 0 {
            let [p50, p99] = [0.5, 0.99].map(|share| duration_text(series.taken.at(share)));
            line.push_str(&format!("  {name} p50 {p50:>7} p99 {p99:>7}"));
        }
    }
    if tally.failed() > 0 {
        line.push_str(&format!("  {} errors", tally.failed()));
    }
    if interval.warming_up {
        line.push_str("  (warming up)");
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::store::Trouble;
    use crate::bench::tally::{RequestRecord, Tally};

    #[test]
    fn a_line_shows_what_there_was_and_nothing_else() {
        let mut tally = Tally::default();
        let ms = Duration::from_millis;
        for millis in 1..=100 {
            tally.record(&RequestRecord {
                is_read: false,
                due: ms(1),
                sent: ms(1),
                ended: ms(1 + millis),
                result: Ok(crate::bench::store::Answer {
                    revision: 1,
                    path: None,
                    found: true,
                }),
            });
        }
        let mut interval = Interval {
            at: ms(3_002),
            warming_up: true,
            tally,
            length: ms(1_000),
        };
        assert_eq!(
            line("etcd", &interval),
            "      etcd    3s       100 ops/s  put p50    50ms p99    99ms  (warming up)"
        );
        interval.warming_up = false;
        interval.tally.record(&RequestRecord {
            is_read: true,
            due: ms(0),
            sent: ms(0),
            ended: ms(1),
            result: Err(Trouble {
                code: "X",
                detail: String::new(),
            }),
        });
        assert!(line("etcd", &interval).ends_with("p99    99ms  1 errors"));
    }
}
