//! Holding processes to a part of a core each, so that the servers are measured and not the clients
//! them.
//!
//! By control groups where the system lets us make some, of either version; else by pausing each
//! process for the rest of every twentieth of a second, which is coarser: what it has to do then waits
//! for that rest.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, kill_process};

/// The time of which a process gets its share.
const PERIOD: Duration = Duration::from_millis(20);
/// The same where it is paused: shorter pauses would cost more than they say.
const PAUSED_PERIOD: Duration = Duration::from_millis(50);

/// Processes that are held to a share, until dropped. They must live as long.
#[derive(Debug)]
pub(crate) struct CpuShare {
    how: &'static str,
    groups: Vec<PathBuf>,
    pausing: Option<PauseThread>,
}

#[derive(Debug)]
struct PauseThread {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A version of control groups.
struct Version {
    root: &'static str,
    how: &'static str,
    /// Writes the share down in a group's directory.
    limit: fn(&Path, u128, u128) -> io::Result<()>,
}

const VERSIONS: [Version; 2] = [
    Version {
        root: "/sys/fs/cgroup",
        how: "control groups (cpu.max)",
        limit: |group, quota, period| set(&group.join("cpu.max"), &format!("{quota} {period}")),
    },
    Version {
        root: "/sys/fs/cgroup/cpu",
        how: "control groups (cpu.cfs_quota_us)",
        limit: |group, quota, period| {
            set(&group.join("cpu.cfs_period_us"), &period.to_string())?;
            set(&group.join("cpu.cfs_quota_us"), &quota.to_string())
        },
    },
];

impl CpuShare {
    /// Holds each of these processes to so much of a core, above 0 and below 1.
    ///
    /// # Errors
    /// They can neither be put into groups nor be paused.
    pub(crate) fn hold(pids: &[u32], cores: f64) -> io::Result<Self> {
        for version in VERSIONS {
            if let Ok(share) = Self::by_groups(pids, cores, &version) {
                return Ok(share);
            }
        }
        Self::by_pauses(pids, cores)
    }

    /// How it is done, for the report.
    pub(crate) fn how(&self) -> &'static str {
        self.how
    }

    fn by_groups(pids: &[u32], cores: f64, version: &Version) -> io::Result<Self> {
        let mut share = Self {
            how: version.how,
            groups: Vec::new(),
            pausing: None,
        };
        let period = PERIOD.as_micros();
        let quota = PERIOD.mul_f64(cores).as_micros().max(1_000);
        for pid in pids {
            let group = Path::new(version.root).join(format!("leasehold-bench-{pid}"));
            fs::create_dir(&group)?;
            // Removed again if what follows fails.
            share.groups.push(group.clone());
            (version.limit)(&group, quota, period)?;
            set(&group.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(share)
    }

    fn by_pauses(pids: &[u32], cores: f64) -> io::Result<Self> {
        let pid = |pid: &u32| i32::try_from(*pid).ok().and_then(Pid::from_raw);
        let pids: Vec<Pid> = pids.iter().filter_map(pid).collect();
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let running = PAUSED_PERIOD.mul_f64(cores);
        let thread = thread::Builder::new().name("cpu-share".to_owned());
        let thread = thread.spawn(move || {
            let all = |signal| {
                for pid in &pids {
                    // One that has ended needs no share.
                    let _ = kill_process(*pid, signal);
                }
            };
            while !ended.load(Ordering::Relaxed) {
                all(Signal::CONT);
                thread::sleep(running);
                all(Signal::STOP);
                thread::sleep(PAUSED_PERIOD.saturating_sub(running));
            }
            all(Signal::CONT);
        })?;
        Ok(Self {
            how: "pauses (SIGSTOP, SIGCONT)",
            groups: Vec::new(),
            pausing: Some(PauseThread {
                over,
                thread: Some(thread),
            }),
        })
    }
}

/// Writes to a file that the system has made: in a directory that is no group there is none, and none
/// is to be made.
fn set(file: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(file)?;
    file.write_all(text.as_bytes())
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        if let Some(pausing) = &mut self.pausing {
            pausing.over.store(true, Ordering::Relaxed);
            if let Some(thread) = pausing.thread.take() {
                // It does nothing that could panic.
                let _ = thread.join();
            }
        }
        for group in &self.groups {
            // A group can be removed once it is empty: the processes go back to their former group.
            let parent = group.parent().unwrap_or_else(|| Path::new("/"));
            if let Ok(pids) = fs::read_to_string(group.join("cgroup.procs")) {
                for pid in pids.lines() {
                    let _ = set(&parent.join("cgroup.procs"), pid);
                }
            }
            let _ = fs::remove_dir(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::bench::cpu::CpuTime;
    use leasehold::bench::process::{Process, Scratch};

    #[test]
    fn a_directory_that_is_no_group_is_not_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.max");
        assert!(set(&file, "1000 20000").is_err());
        assert!(!file.exists());
    }

    #[test]
    fn a_process_is_held_one_way_or_another_and_goes_on_afterwards() {
        let directory = Scratch::new(&std::env::temp_dir(), "share").unwrap();
        let log = directory.path().join("log");
        let line = ["-c", "while :; do :; done"];
        let mut busy = Process::start("busy", Path::new("/bin/sh"), line, &log).unwrap();
        let pid = busy.pid();
        for hold in [CpuShare::hold, CpuShare::by_pauses] {
            let held = hold(&[pid], 0.2).unwrap();
            assert!(!held.how().is_empty());
            let groups = held.groups.clone();
            thread::sleep(PAUSED_PERIOD * 4);
            drop(held);
            assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
            // It runs: it spends time again.
            let mut time = CpuTime::of(&[pid]).unwrap();
            time.start().unwrap();
            while time.spent().unwrap().is_zero() {
                thread::sleep(PERIOD);
            }
            busy.check().unwrap();
        }
    }
}
