//! The bugs that are switched on, if any: by name, because `leasehold::planted` is there only in
//! builds that ask for it.

use std::cell::Cell;

// Loom runs the threads of a model as fibers of one thread.
thread_local! {
    static ON: Cell<&'static str> = const { Cell::new("") };
}

pub(crate) fn is_on(bug: &str) -> bool {
    let on = ON.get();
    !on.is_empty() && on.split('+').any(|on| on == bug)
}

/// Switches `bugs` on until the result is dropped: one, or some that hide each other, with `+` between them.
pub(crate) fn with(bugs: &'static str) -> Planted {
    ON.set(bugs);
    Planted
}

pub(crate) struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        ON.set("");
    }
}
