//! The boundary around code that may panic on damaged files.
//!
//! A panic ends the process (decisions.md 10), but fjall panics on some damaged tables where it
//! should return an error, and a node with a damaged state must come up far enough to be rebuilt.
//! So opening and verifying catch the panic and report damage. The process's panic hook asks
//! [`contains_panic`] before it ends anything.

use std::any::Any;
use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::thread;

use super::error::StoreError;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is caught and reported, and so must not end the process: inside
/// of opening or verifying a state, and on fjall's own threads, where it poisons the database, which
/// the next batch reports.
pub fn contains_panic() -> bool {
    INSIDE.get() || thread::current().name() == Some(FJALL_THREAD)
}

/// What fjall names its threads.
const FJALL_THREAD: &str = "fjall:worker";

/// Runs `work`; a panic inside becomes [`StoreError::Damaged`].
///
/// Safe to unwind through: `work` either makes something new, which is lost with the panic, or
/// only reads.
pub(super) fn contain<T>(work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let outside = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(outside);
    result.unwrap_or_else(|panic| {
        Err(StoreError::Damaged {
            detail: format!("the storage engine gave up: {}", message(&*panic)),
        })
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_panic_inside_becomes_damage_and_is_known_to_be_contained() {
        assert!(!contains_panic());
        let result: Result<(), _> = contain(|| {
            assert!(contains_panic());
            std::panic::resume_unwind(Box::new("a broken table"))
        });
        let text = result.unwrap_err().to_string();
        assert!(text.contains("a broken table"), "{text}");
        assert!(text.contains("rebuild"), "{text}");
        assert!(!contains_panic());
        assert!(matches!(contain(|| Ok(7)), Ok(7)));
    }

    #[test]
    fn the_database_really_names_its_threads_so() {
        let directory = tempfile::tempdir().unwrap();
        let database = fjall::Database::builder(directory.path()).open().unwrap();
        // A thread gives itself its name once it runs.
        let is_there = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            tasks
                .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
                .any(|name| name.trim() == FJALL_THREAD)
        };
        let found = (0..10_000).any(|_| {
            let found = is_there();
            if !found {
                thread::sleep(Duration::from_millis(1));
            }
            found
        });
        drop(database);
        assert!(found);
    }
}
