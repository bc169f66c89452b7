//! CPU time of processes, as the system accounts it.

use std::time::Duration;
use std::{fs, io};

use crate::cli::failure::Failure;

/// How much CPU time some processes take.
#[derive(Clone, Debug)]
pub struct CpuTime {
    pids: Vec<u32>,
    began: Duration,
}

impl CpuTime {
    /// Of these processes, from now on.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn of(pids: &[u32]) -> Result<Self, Failure> {
        let mut all = Self {
            pids: pids.to_vec(),
            began: Duration::ZERO,
        };
        all.start()?;
        Ok(all)
    }

    /// Starts again.
    ///
    /// # Errors
    /// One of them is not there any more.
    pub fn start(&mut self) -> Result<(), Failure> {
        self.began = self.total()?;
        Ok(())
    }

    /// How much all of them took together since the beginning, all their threads included. Exact
    /// to a hundredth of a second or so.
    ///
    /// # Errors
    /// One of them is not there any more.
    pub fn spent(&self) -> Result<Duration, Failure> {
        Ok(self.total()?.saturating_sub(self.began))
    }

    fn total(&self) -> Result<Duration, Failure> {
        let of = |pid: &u32| {
            of_process(*pid).map_err(|error| {
                Failure::refused(format!(
                    "cannot read the CPU time of process {pid}: {error}; name processes of this \
                     machine that run as long as the load"
                ))
            })
        };
        self.pids.iter().map(of).sum()
    }
}

/// The load average of the last minute: how many wanted to run.
pub fn load_average() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split(' ').next()?.parse().ok()
}

fn of_process(pid: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = ticks(&text).ok_or_else(|| io::Error::other("its statistics cannot be parsed"))?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// User and system time of a line of `/proc/PID/stat`, in clock ticks.
fn ticks(line: &str) -> Option<u64> {
    // The second field is the program's name in parentheses, and may hold anything.
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_whatever_the_program_is_called() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 250 31 0 0 20";
        assert_eq!(ticks(&format!("17 (leasehold) {rest}")), Some(281));
        assert_eq!(ticks(&format!("17 (a) b) (c) {rest}")), Some(281));
        assert_eq!(ticks("17 (leasehold) S 1 2"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_told_by_its_number() {
        let error = CpuTime::of(&[u32::MAX]).unwrap_err();
        assert!(error.message.contains(&u32::MAX.to_string()), "{error}");
        CpuTime::of(&[std::process::id()]).unwrap().spent().unwrap();
    }
}
