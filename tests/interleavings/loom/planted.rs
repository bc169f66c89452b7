//! The bug that is switched on, if any: by name, because `leasehold::planted` is there only in
//! builds that ask for it.

use std::cell::Cell;

// Loom runs the threads of a model as fibers of one thread.
thread_local! {
    static ON: Cell<&'static str> = const { Cell::new("") };
}

pub(crate) fn is_on(bug: &str) -> bool {
    ON.get() == bug
}

/// Switches `bug` on until the result is dropped.
pub(crate) fn with(bug: &'static str) -> Planted {
    ON.set(bug);
    Planted
}

pub(crate) struct Planted;

impl Drop for Planted {
    fn drop(&mut self) {
        ON.set("");
    }
}
