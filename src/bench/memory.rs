//! Memory of processes, as the system accounts it.

use std::{fs, io};

use crate::cli::failure::Failure;

/// How much memory some processes have resident together, in bytes.
///
/// # Errors
/// One of them is not there.
pub fn resident_bytes(pids: &[u32]) -> Result<u64, Failure> {
    let of = |pid: &u32| {
        of_process(*pid).map_err(|error| {
            Failure::refused(format!(
                "cannot read the memory of process {pid}: {error}; name processes of this machine \
                 that run as long as the load"
            ))
        })
    };
    pids.iter().map(of).sum()
}

fn of_process(pid: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    resident(&text).ok_or_else(|| io::Error::other("its statistics cannot be parsed"))
}

/// What `/proc/PID/status` says is resident, in bytes.
fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_is_found_among_the_rest() {
        let status = "Name:\tx\nVmPeak:\t 9 kB\nVmRSS:\t  1234 kB\nRssAnon:\t 5 kB\n";
        assert_eq!(resident(status), Some(1234 << 10));
        assert_eq!(resident("Name:\tx\n"), None);
        assert_eq!(resident("VmRSS:\t many kB\n"), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_told_by_its_number() {
        let error = resident_bytes(&[u32::MAX]).unwrap_err();
        assert!(error.message.contains(&u32::MAX.to_string()), "{error}");
        let ours = resident_bytes(&[std::process::id()]).unwrap();
        assert!(ours > 1 << 20, "{ours}");
    }
}
