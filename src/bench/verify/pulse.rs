//! Pauses of the scheduler: a thread that wants to run every millisecond, and notes how late it
//! does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bench::tally::Latencies;
use crate::bench::{Stopwatch, Wall};
use crate::cli::failure::Failure;

const BEAT: Duration = Duration::from_millis(1);

/// The thread, until it is asked what it found.
#[derive(Debug)]
pub struct Pulse {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<Latencies>>,
}

impl Pulse {
    /// Begins.
    ///
    /// # Errors
    /// The system gives us no thread.
    pub fn start() -> Result<Self, Failure> {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let thread = thread::Builder::new()
            .name("pulse".to_owned())
            .spawn(move || {
                let mut late = Latencies::default();
                let watch = Wall::start();
                let mut before = watch.elapsed();
                // Stopped or not, it beats once: it may first run after the end.
                loop {
                    thread::sleep(BEAT);
                    let now = watch.elapsed();
                    late.record(now.saturating_sub(before + BEAT));
                    before = now;
                    if told.load(Ordering::Relaxed) {
                        return late;
                    }
                }
            })?;
        Ok(Self {
            over,
            thread: Some(thread),
        })
    }

    /// Ends, and says how late each beat was.
    pub fn stop(mut self) -> Latencies {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Latencies> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_until_it_is_stopped() {
        let pulse = Pulse::start().unwrap();
        thread::sleep(20 * BEAT);
        assert!(pulse.stop().count() > 0);
        drop(Pulse::start().unwrap());
    }
}
