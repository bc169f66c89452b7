//! What becomes of the process when something panics.
//!
//! A panic is a defect, and a node that goes on with half of its threads is worse than none: so
//! the process ends at once, and its supervisor starts it again from what is durable. The exception
//! is code that is known to panic on damaged files, which catches its own panics. In `dev` the three
//! nodes share a process, and it is to survive the loss of one of them: there the panic is reported
//! and ends its thread, and the node that misses the thread ends.

use std::panic;
use std::process;

/// What a panic that nobody catches ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The process, at once.
    Process,
    /// The thread.
    Thread,
}

/// Installs the rule for the whole process. `contained` says whether the panic of the current
/// thread is one that will be caught and turned into an error.
pub fn install(ends: Ends, contained: fn() -> bool) {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |details| {
        report(details);
        if ends == Ends::Process && !contained() {
            process::abort();
        }
    }));
}
