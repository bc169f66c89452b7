//! The boundary around code that may panic on damaged files.
//!
//! A panic ends the process, but fjall panics on some damaged tables where it
//! should return an error, and a node with a damaged state must come up far enough to be rebuilt.
//! So opening and verifying catch the panic and report damage. The process's panic hook asks
//! [`contains_panic`] before it ends anything.
//!
//! Catching is not enough where a half-opened database panics again while it is dropped: a panic during
//! unwinding aborts the process. So a database is opened on an expendable thread: the panic hook reports
//! its first panic and then parks the thread, with everything it owns, until the process ends
//! ([`expendable`]).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::mpsc;
use std::thread;

use super::error::StoreError;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Where an expendable thread reports its panic.
    static LAST_WORD: RefCell<Option<LastWord>> = const { RefCell::new(None) };
}

type LastWord = Box<dyn FnOnce(StoreError)>;

/// Whether a panic of this thread is caught and reported, and so must not end the process: inside
/// of opening or verifying a state, and on fjall's own threads, where it poisons the database, which
/// the next batch reports.
///
/// Does not return on a thread that opens a database: see above.
pub fn contains_panic(details: &PanicHookInfo<'_>) -> bool {
    if let Ok(Some(tell)) = LAST_WORD.try_with(RefCell::take) {
        tell(gave_up(details.payload()));
        loop {
            thread::park();
        }
    }
    is_inside()
}

fn is_inside() -> bool {
    INSIDE.get() || thread::current().name() == Some(FJALL_THREAD)
}

/// Runs `work` on a thread of its own, which is parked for ever if it panics.
pub(super) fn expendable<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let (sender, receiver) = mpsc::channel();
    let tell = sender.clone();
    let spared = move || {
        LAST_WORD.set(Some(Box::new(move |error| {
            // The receiver waits for exactly one result, so this cannot fail.
            let _ = tell.send(Err(error));
        })));
        let result = contain(work);
        LAST_WORD.set(None);
        let _ = sender.send(result);
    };
    thread::Builder::new()
        .name("state-opening".to_owned())
        .spawn(spared)
        .map_err(StoreError::io("starting the thread that opens the state"))?;
    let result = receiver.recv();
    result.expect("the thread keeps its sender until it has sent a result")
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
    result.unwrap_or_else(|panic| Err(gave_up(&*panic)))
}

fn gave_up(panic: &(dyn Any + Send)) -> StoreError {
    StoreError::Damaged {
        detail: format!("the storage engine gave up: {}", message(panic)),
    }
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
    use crate::server::threads::give_way;
    use std::time::Duration;

    #[test]
    fn a_panic_inside_becomes_damage_and_is_known_to_be_contained() {
        assert!(!is_inside());
        let result: Result<(), _> = contain(|| {
            assert!(is_inside());
            std::panic::resume_unwind(Box::new("a broken table"))
        });
        let text = result.unwrap_err().to_string();
        assert!(text.contains("a broken table"), "{text}");
        assert!(text.contains("rebuild"), "{text}");
        assert!(!is_inside());
        assert!(matches!(contain(|| Ok(7)), Ok(7)));
    }

    #[test]
    fn the_database_really_names_its_threads_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        // As a state is opened: there is a test that looks at the niceness of all threads of this name.
        let database = expendable(move || {
            give_way();
            let opened = fjall::Database::builder(&path).open();
            opened.map_err(|error| StoreError::from_fjall("opening the state", error))
        });
        let database = database.unwrap();
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
