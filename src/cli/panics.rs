//! What becomes of the process when something panics.
//!
//! A panic is a defect, and a node that goes on with half of its threads is worse than none: so
//! the process ends at once, and its supervisor starts it again from what is durable. The exception
//! is code that is known to panic on damaged files, which catches its own panics. In `dev` the three
//! nodes share a process, and it is to survive the loss of one of them: there the panic is reported
//! and ends its thread, and the node that misses the thread ends.

use std::panic::PanicHookInfo;
use std::{panic, process};

/// What an uncaught panic ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The process, at once.
    Process,
    /// The thread.
    Thread,
}

/// Installs the rule for the whole process. `contained` says whether the panic of the current
/// thread is one that will be caught and turned into an error; it may also keep the thread.
pub fn install(ends: Ends, contained: fn(&PanicHookInfo<'_>) -> bool) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |details| {
        report(details);
        let is_contained = contained(details);
        if ends == Ends::Process && !is_contained {
            process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Set for a child process that runs one of these tests in earnest.
    const CHILD: &str = "LEASEHOLD_TEST_PANIC";

    /// Runs this very test again in a child process with `CHILD` set to `case`.
    fn ends_well(case: &str) -> bool {
        let test = "cli::panics::tests::a_panic_ends_what_it_should";
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .env(CHILD, case)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("told to panic"),
            "every panic is reported: {said}"
        );
        output.status.success()
    }

    #[test]
    fn a_panic_ends_what_it_should() {
        let case = std::env::var(CHILD).unwrap_or_default();
        match case.as_str() {
            "" => {
                assert!(!ends_well("process"));
                assert!(ends_well("contained"));
                assert!(ends_well("thread"));
                return;
            }
            "process" => install(Ends::Process, |_| false),
            "contained" => install(Ends::Process, |_| true),
            _ => install(Ends::Thread, |_| false),
        }
        let panicked = thread::spawn(|| panic!("told to panic")).join();
        assert!(
            panicked.is_err(),
            "the thread ended, and we are here to see it"
        );
    }
}
