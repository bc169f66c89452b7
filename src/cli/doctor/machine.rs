//! What of this machine matters to a node on it: its clocks, its limits, its disk.

use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::findings::{CLOCK_INTERVAL, Findings, Level, ppm};
use crate::clock::SystemClock;
use crate::time::{Clock, Instant};

/// Where all of this is.
pub(super) const PLACE: &str = "this machine";
/// By how much the two clocks may differ: what leader_lease.max_drift_ppm allows by default.
const DRIFT_MAX_PPM: f64 = 20_000.0;
/// Syncs of the disk.
const SYNCS: usize = 50;
/// What is written before each.
const SYNC_BYTES: usize = 4 << 10;
/// A sync that takes longer than this is felt by every write.
const SYNC_SLOW: Duration = Duration::from_millis(25);
/// What nodes ask the system for.
const UDP_BUFFER_BYTES: u64 = 4 << 20;
/// Files that a node may have open at least.
const FILES_MIN: u64 = 4_096;

/// What of this machine matters to a node on it.
pub(super) async fn look(findings: &mut Findings) {
    let place = PLACE;
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    for name in ["net.core.rmem_max", "net.core.wmem_max"] {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let Some(bytes) = number(&path) else {
            continue;
        };
        let (level, advice) = match bytes < UDP_BUFFER_BYTES {
            true => (
                Level::Warn,
                "a node here would lose packets under load: set it to 4194304 (deploy/systemd has \
                 a file for that)",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(
            level,
            "udp buffers",
            place,
            format!("{name} is {bytes}"),
            advice,
        );
    }
    let limits = read("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| {
        let values = line.strip_prefix("Max open files")?;
        values.split_whitespace().next()?.parse::<u64>().ok()
    });
    if let Some(files) = files {
        let (level, advice) = match files < FILES_MIN {
            true => (
                Level::Warn,
                "raise it with `ulimit -n`, or LimitNOFILE in the unit",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(
            level,
            "open files",
            place,
            format!("the limit is {files}"),
            advice,
        );
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    if let Some(source) = read(source) {
        let source = source.trim();
        let slow = ["hpet", "acpi_pm", "jiffies"].contains(&source);
        let (level, advice) = match slow {
            true => (
                Level::Warn,
                "every clock reading is a system call, and leased reads need one: prefer tsc or \
                 the clock source of the hypervisor",
            ),
            false => (Level::Ok, ""),
        };
        findings.add(level, "clock source", place, source, advice);
    }
    let first = SystemClock.now();
    tokio::time::sleep(CLOCK_INTERVAL).await;
    judge_clocks(first, SystemClock.now(), findings);
}

/// Whether this machine's two clocks agree, by which a node on it would measure leases.
fn judge_clocks(first: Instant, second: Instant, findings: &mut Findings) {
    let nanos = |before: u64, after: u64| Duration::from_nanos(after.saturating_sub(before));
    let boot = nanos(first.boot, second.boot);
    let off = ppm(boot, nanos(first.raw, second.raw)) - 1e6;
    let (level, advice) = match off.abs() > DRIFT_MAX_PPM {
        true => (
            Level::Fail,
            "leased reads are unsafe with clocks that diverge this fast: set leader_lease.enabled \
             = false on nodes here until the time service or the hypervisor is fixed",
        ),
        false => (Level::Ok, ""),
    };
    let found = format!(
        "CLOCK_BOOTTIME differs from CLOCK_MONOTONIC_RAW by {off:+.0} ppm; allowed \
         {DRIFT_MAX_PPM:.0}"
    );
    findings.add(level, "clock", PLACE, found, advice);
}

/// How long the disk under a folder takes to sync.
pub(super) fn disk(folder: &Path, findings: &mut Findings) {
    let place = folder.display().to_string();
    judge_syncs(syncs(folder), &place, findings);
}

fn judge_syncs(took: io::Result<Vec<Duration>>, place: &str, findings: &mut Findings) {
    let took = match took {
        Ok(took) => took,
        Err(error) => {
            let advice = "name a directory that this user may write to";
            return findings.add(Level::Fail, "disk", place, error.to_string(), advice);
        }
    };
    let (middle, slowest) = (took[took.len() / 2], took[took.len() - 1]);
    let (level, advice) = match middle > SYNC_SLOW {
        true => (
            Level::Warn,
            "every write waits for a sync: use a disk with a write cache that survives a power cut",
        ),
        false => (Level::Ok, ""),
    };
    let found =
        format!("sync of {SYNC_BYTES} bytes p50 {middle:.1?}, slowest of {SYNCS} {slowest:.1?}");
    findings.add(level, "disk", place, found, advice);
}

fn syncs(folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!("leasehold-doctor-{}", std::process::id()));
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    let mut measure = || {
        let mut took = Vec::new();
        for _ in 0..SYNCS {
            let began = SystemClock.now();
            file.write_all(&[0x4C; SYNC_BYTES])?;
            file.sync_data()?;
            took.push(SystemClock.now().at_least_since(began));
        }
        took.sort_unstable();
        Ok(took)
    };
    let took = measure();
    std::fs::remove_file(&path)?;
    took
}

#[cfg(test)]
mod tests {
    use super::super::tests::only;
    use super::*;

    #[test]
    fn two_clocks_of_this_machine_that_run_apart_fail() {
        let at = |boot: u64, raw: u64| Instant { boot, raw };
        let second = 1_000_000_000;
        let judged = |later| only(|it| judge_clocks(at(50, 7), later, it));
        let sound = judged(at(50 + second, 7 + second + 15_000_000));
        assert_eq!(sound.level, Level::Ok, "{sound:?}");
        for boot in [second - 50_000_000, second + 50_000_000] {
            let apart = judged(at(50 + boot, 7 + second));
            assert_eq!(apart.level, Level::Fail, "{apart:?}");
            assert!(apart.advice.contains("leader_lease.enabled"), "{apart:?}");
        }
    }

    #[test]
    fn a_slow_disk_is_warned_of_and_one_that_cannot_be_written_fails() {
        let syncs = |took: io::Result<Vec<Duration>>| only(|it| judge_syncs(took, "/data", it));
        let quick = syncs(Ok(vec![Duration::from_millis(2); 50]));
        assert_eq!(quick.level, Level::Ok);
        let slow = syncs(Ok(vec![Duration::from_millis(40); 50]));
        assert_eq!(slow.level, Level::Warn);
        assert!(slow.advice.contains("sync"), "{slow:?}");
        let refused = syncs(Err(io::Error::from(io::ErrorKind::PermissionDenied)));
        assert_eq!(refused.level, Level::Fail);
        assert!(refused.advice.contains("may write"), "{refused:?}");
    }
}
