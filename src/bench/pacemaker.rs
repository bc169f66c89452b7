//! Wakes at the times of a [`Pace`], to within some microseconds.
//!
//! The runtime's own timer has a resolution of a millisecond, which is twenty times what a leased
//! read takes; a busy loop would take a core from the servers that are measured. A timer of the
//! kernel, read through a file descriptor, is exact and costs nothing while nothing is due.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

use super::Stopwatch;
use super::pace::Pace;

/// Requests that are due closer together than this share a wake-up.
const PATIENCE_MIN: Duration = Duration::from_micros(20);

/// A timer of the kernel.
#[derive(Debug)]
pub struct Pacemaker {
    timer: AsyncFd<OwnedFd>,
}

impl Pacemaker {
    /// Needs a tokio runtime with its I/O enabled.
    ///
    /// # Errors
    /// The system gives us no timer.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        #[allow(
            deprecated,
            reason = "an OwnedFd is always the same open file, so this is sound; what replaces it \
                      is an unsafe function, and older versions of tokio have only this one"
        )]
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Keeps `pace` until all its requests are due, or `end`.
    ///
    /// # Errors
    /// The timer failed.
    pub async fn keep(&self, pace: &Pace, watch: &impl Stopwatch, end: Duration) -> io::Result<()> {
        loop {
            let now = watch.elapsed().min(end);
            let next = pace.release(now).unwrap_or(end).min(end);
            if now == end {
                return Ok(());
            }
            self.sleep(next.saturating_sub(now).max(PATIENCE_MIN))
                .await?;
        }
    }

    /// Sleeps for so long, more than nothing.
    ///
    /// # Errors
    /// The timer failed.
    pub async fn sleep(&self, length: Duration) -> io::Result<()> {
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: i64::try_from(length.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(length.subsec_nanos().max(1)),
            },
        };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let mut expirations = [0; 8];
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer, &mut expirations)?));
            match read {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                // Another wake-up, or that of an earlier setting.
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Wall;

    #[test]
    fn every_request_is_due_once_and_none_before_its_time() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let (watch, end) = (Wall::start(), Duration::from_millis(20));
            let pace = Pace::new(1_000.0, end);
            let pacemaker = Pacemaker::new().unwrap();
            let take = async {
                let mut due = Vec::new();
                while due.len() < 20 {
                    let at = pace.next().await.unwrap();
                    assert!(watch.elapsed() >= at, "{at:?} came early");
                    due.push(at);
                }
                due
            };
            let (kept, due) = tokio::join!(pacemaker.keep(&pace, &watch, end), take);
            kept.unwrap();
            assert!(due.is_sorted());
            assert_eq!(due.last(), Some(&Duration::from_millis(19)));
        });
    }
}
