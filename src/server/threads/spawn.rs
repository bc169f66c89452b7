//! How every thread of a node starts.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread that does `body` and then lets go of `guard`, which it holds meanwhile: the lock on
/// the data directory that it writes to, and what notices that it panics. `body` is gone by then, with
/// all that it had, even in a panic.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    guard: impl Send + 'static,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = guard;
        body()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    struct Tells(&'static str, Sender<String>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let how = if std::thread::panicking() {
                "panics"
            } else {
                "ends"
            };
            let _ = self.1.send(format!("{} {how}", self.0));
        }
    }

    fn heard(panics: bool) -> Vec<String> {
        let (sender, told) = channel();
        let (guard, owned) = (Tells("guard", sender.clone()), Tells("body", sender));
        let thread = spawn("n1-told", guard, move || {
            let _owned = owned;
            assert_eq!(std::thread::current().name(), Some("n1-told"));
            assert!(!panics, "told to panic");
        });
        assert_eq!(thread.unwrap().join().is_err(), panics);
        told.iter().collect()
    }

    #[test]
    fn a_guard_outlives_what_the_thread_had_and_sees_a_panic() {
        assert_eq!(heard(false), ["body ends", "guard ends"]);
        assert_eq!(heard(true), ["body panics", "guard panics"]);
    }
}
