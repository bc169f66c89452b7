//! The real clock: the one place that reads the machine's for leases.
//!
//! Reads `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW` together (see `time.rs` for why both). A
//! reading is passed on as it is: if the machine's clock steps back, so does ours, because a
//! corrected clock would hide from the lease exactly what ends it (A4).
//!
//! The pair exists on Linux, where servers run. Elsewhere only the SDK is built, which holds no
//! leader lease; there both readings come from one monotonic clock of the platform. It must run on
//! while the machine sleeps, or a client would trust a lease that has ended meanwhile (T12):
//! - Apple's systems: `CLOCK_MONOTONIC`, which counts sleep there. `std::time::Instant` does not.
//! - Windows: `std::time::Instant`, which is `QueryPerformanceCounter`, which counts sleep.
//! - Elsewhere: `std::time::Instant`, which may stop. See [`COUNTS_SLEEP`].
//!
//! A hypervisor may stop a guest together with both clocks. Where it says so by a VMClock device
//! (`vm_clock.rs`), that is time of unknown length which one of the two clocks has counted: see
//! [`watch_vm_clock`].

#[cfg(target_os = "linux")]
mod vm_clock;

use std::io;
use std::path::Path;
use std::time::Duration;

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
use rustix::time::ClockId;

use crate::leader_lease::LeaderLease;
use crate::raft::Timing;
use crate::time::{Clock, Instant};

/// Whether [`SystemClock`] runs on while the machine sleeps. Where it may not, a client that has slept
/// may take a lease for valid that has ended: there the SDK's leases must not be trusted across sleep.
pub const COUNTS_SLEEP: bool = cfg!(any(
    target_os = "linux",
    target_vendor = "apple",
    target_os = "windows"
));

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[cfg(target_os = "linux")]
    fn now(&self) -> Instant {
        let now = pair(nanos);
        // Asked after the clocks were read (P17): what happens later is not in this reading.
        match VM_CLOCK.get() {
            Some(vm_clock) => disrupted(now, vm_clock.disruptions()),
            None => now,
        }
    }

    #[cfg(target_vendor = "apple")]
    fn now(&self) -> Instant {
        Instant::from_nanos(nanos(ClockId::Monotonic))
    }

    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    fn now(&self) -> Instant {
        use std::sync::OnceLock;
        static START: OnceLock<std::time::Instant> = OnceLock::new();
        #[expect(
            clippy::disallowed_methods,
            reason = "the clock pair exists on Linux only, and no leader lease runs elsewhere"
        )]
        let now = std::time::Instant::now();
        let elapsed = now.saturating_duration_since(*START.get_or_init(|| now));
        // One second ahead of zero: zero stands before every reading.
        let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(nanos.saturating_add(1_000_000_000))
    }
}

#[cfg(target_os = "linux")]
static VM_CLOCK: std::sync::OnceLock<vm_clock::VmClock> = std::sync::OnceLock::new();

/// Where Linux shows the VMClock device of a guest that has one.
pub const VM_CLOCK_DEVICE: &str = "/dev/vmclock0";

/// Has [`SystemClock`] ask the VMClock device at `device`, for as long as the process runs, whether the hypervisor
/// has disrupted the machine's clocks: a live migration, a memory image that was restored, a pause that they did
/// not count. From each disruption on, the boot clock reads [`DISRUPTION`] more and the raw clock does not, as if the
/// machine had been suspended for that long: the leader leases that were held are over, and promises to
/// voters last (P17). A second device in one process is not asked.
///
/// # Errors
/// The device is missing, cannot be read, or is something else. On systems other than Linux there is none.
pub fn watch_vm_clock(device: &Path) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let vm_clock = vm_clock::VmClock::open(device)?;
        // An error if there is one already, which then stays.
        let _ = VM_CLOCK.set(vm_clock);
        Ok(())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = device;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// How often the hypervisor has disrupted this machine's clocks since [`watch_vm_clock`], as far as any reading has
/// seen; `None` if no device is asked.
pub fn disruptions() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        VM_CLOCK.get().map(vm_clock::VmClock::seen)
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

/// What the boot clock counts for a disruption, of whose length nothing is known: longer than any leader lease, and
/// than a client lease is of use for.
pub const DISRUPTION: Duration = Duration::from_secs(30 * 24 * 3_600);

/// A reading after so many disruptions. If it is not known how many there were, time without end may have passed.
#[cfg(target_os = "linux")]
fn disrupted(now: Instant, disruptions: Option<u64>) -> Instant {
    let passed = match disruptions {
        Some(disruptions) => {
            disruptions.saturating_mul(DISRUPTION.as_secs().saturating_mul(1_000_000_000))
        }
        None => u64::MAX,
    };
    let passed = match planted!(DisruptionUnseen) {
        true => 0,
        false => passed,
    };
    Instant {
        boot: now.boot.saturating_add(passed),
        raw: match planted!(DisruptionEndsPromises) {
            true => now.raw.saturating_add(passed),
            false => now.raw,
        },
    }
}

/// The two clocks of which neither alone is right (P17, P18): one counts suspended time, the other is never
/// slewed. The order does not matter: each question to a pair is answered by the clock that is worse for
/// the asker.
#[cfg(target_os = "linux")]
fn pair(read: impl Fn(ClockId) -> u64) -> Instant {
    #[cfg(leasehold_bugs)]
    let read = |clock| match clock {
        ClockId::Boottime if planted!(SuspendUnseen) => read(ClockId::Monotonic),
        ClockId::MonotonicRaw if planted!(SlewUnseen) => read(ClockId::Boottime),
        clock => read(clock),
    };
    Instant {
        boot: read(ClockId::Boottime),
        raw: read(ClockId::MonotonicRaw),
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn nanos(clock: ClockId) -> u64 {
    let reading = rustix::time::clock_gettime(clock);
    // These clocks count up from the boot, so neither part is negative.
    let seconds = u64::try_from(reading.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(reading.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

impl LeaderLease<SystemClock> {
    /// A void lease with the default timing and the machine's clocks.
    pub fn create() -> Self {
        Self::new(Timing::default(), SystemClock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_takes_the_defaults_and_the_clocks_of_the_machine() {
        let lease = LeaderLease::create();
        assert_eq!(lease.lease_duration_nanos(), 500_000_000);
        assert!(!lease.is_valid());
        let long_ago = Instant::from_nanos(1);
        assert!(lease.renew_at(long_ago), "a renewal, though it is over");
        assert!(!lease.is_valid());
    }

    #[test]
    fn both_clocks_run_and_neither_runs_back() {
        let clock = SystemClock;
        let mut earlier = clock.now();
        assert!(earlier.boot > 0 && earlier.raw > 0);
        for _ in 0..1_000 {
            let later = clock.now();
            assert!(!later.went_back_since(earlier));
            earlier = later;
        }
    }

    /// A machine that has slept, and whose slewed clocks are behind: no two of its clocks agree.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_pair_counts_suspended_time_with_one_clock_and_is_not_slewed_in_the_other() {
        let slept = |clock| match clock {
            ClockId::Boottime => 50_000,
            ClockId::MonotonicRaw => 20_100,
            ClockId::Monotonic => 20_000,
            other => panic!("{other:?} may be set, or is too coarse"),
        };
        let (boot, raw) = (50_000, 20_100);
        assert_eq!(pair(slept), Instant { boot, raw });
    }

    /// P17: what the hypervisor did not let the clocks count ends what a leader trusts, and no promise.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_disruption_is_time_that_only_the_clock_that_ends_leases_has_counted() {
        let before = Instant::from_nanos(5_000_000_000);
        let deadline = before + Duration::from_secs(3_600);
        assert!(disrupted(before, Some(0)).certainly_before(deadline));
        for disruptions in [Some(1), Some(2), Some(u64::MAX), None] {
            let now = disrupted(before, disruptions);
            assert!(!now.certainly_before(deadline), "{disruptions:?}");
            assert!(!now.certainly_after(deadline), "{disruptions:?}");
            // What is granted after it is good for as long as ever, while more can be counted.
            let anew = now + Duration::from_secs(1);
            let counts = disruptions.is_some_and(|disruptions| disruptions < 100);
            assert_eq!(now.certainly_before(anew), counts, "{disruptions:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_clocks_of_the_machine_are_read_as_they_are() {
        let before = pair(nanos);
        let now = SystemClock.now();
        let after = pair(nanos);
        assert!(before.boot <= now.boot && now.boot <= after.boot);
        assert!(before.raw <= now.raw && now.raw <= after.raw);
    }
}
