//! Which log lines are written, changed while the process runs.

use std::fmt;
use std::sync::Arc;

use crate::sync::Mutex;

type Change = dyn Fn(&str) -> Result<(), String> + Send + Sync;

/// The filter of a process' log, which can be changed while it runs.
#[derive(Clone)]
pub struct LogControl {
    change: Arc<Change>,
    filter: Arc<Mutex<String>>,
}

impl LogControl {
    /// `filter` is in force; `change` replaces it, or returns what is wrong with the new one.
    pub fn new(
        filter: impl Into<String>,
        change: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            change: Arc::new(change),
            filter: Arc::new(Mutex::new(filter.into())),
        }
    }

    /// What is in force.
    pub fn filter(&self) -> String {
        let filter = self.filter.lock();
        filter.clone()
    }

    /// Puts `filter` in force until the process ends.
    ///
    /// # Errors
    /// What is wrong with it; then nothing changes.
    pub fn set(&self, filter: &str) -> Result<(), String> {
        let mut current = self.filter.lock();
        (self.change)(filter)?;
        filter.clone_into(&mut current);
        Ok(())
    }
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogControl({:?})", self.filter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_changes_nothing() {
        let control = LogControl::new("info", |filter| match filter {
            "loud" => Err("no such level".to_owned()),
            _ => Ok(()),
        });
        assert_eq!(control.set("loud"), Err("no such level".to_owned()));
        assert_eq!(control.filter(), "info");
        assert_eq!(control.set("debug"), Ok(()));
        assert_eq!(control.filter(), "debug");
    }
}
