//! Log lines: where they go and how they look.

use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt;

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Where lines go.
#[derive(Debug)]
pub enum Place {
    /// Standard error, which a supervisor collects.
    StandardError,
    /// A file, for when the terminal is wanted for something else.
    File(File),
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be understood.
    #[error(
        "the log filter `{filter}` cannot be used: {problem}; write a level, and others for parts \
         of the program, for example info,leasehold::raft=debug"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Somebody else in this process took the lines already.
    #[error("log lines go somewhere else already")]
    Taken,
}

type SetFilter = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// Which lines are written, for whoever wants others.
pub struct Filter {
    set: Box<SetFilter>,
}

impl Filter {
    /// Writes what passes `filter` from now on, and nothing else.
    ///
    /// # Errors
    /// [`LogError::Filter`]; then nothing changes.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        (self.set)(parse(filter)?).map_err(|problem| LogError::Filter {
            filter: filter.to_owned(),
            problem,
        })
    }
}

/// Writes what passes `filter` to `place` from now on. Once per process.
///
/// # Errors
/// [`LogError`].
pub fn start(filter: &str, look: Look, place: Place) -> Result<Filter, LogError> {
    /// Each look and place is a type of its own, and so is the handle of its filter.
    macro_rules! launch {
        ($builder:expr) => {{
            let builder = $builder.with_filter_reloading();
            let handle = builder.reload_handle();
            let set = move |filter| handle.reload(filter).map_err(|error| error.to_string());
            let started = builder.finish().try_init();
            started.map(|()| Filter { set: Box::new(set) })
        }};
    }
    let builder = fmt().with_env_filter(parse(filter)?);
    let started = match (look, place) {
        (Look::Json, Place::StandardError) => launch!(builder.json().with_writer(io::stderr)),
        (Look::Json, Place::File(file)) => launch!(builder.json().with_writer(Mutex::new(file))),
        (Look::Text, Place::StandardError) => {
            launch!(builder.with_ansi(colours_wanted()).with_writer(io::stderr))
        }
        (Look::Text, Place::File(file)) => {
            launch!(builder.with_ansi(false).with_writer(Mutex::new(file)))
        }
    };
    started.map_err(|_| LogError::Taken)
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|error| LogError::Filter {
            filter: filter.to_owned(),
            problem: error.to_string(),
        })
}

fn colours_wanted() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_is_named() {
        let started = start("info,leasehold=loud", Look::Text, Place::StandardError);
        let error = started.err().expect("there is no such level");
        let text = error.to_string();
        assert!(
            text.starts_with("the log filter `info,leasehold=loud` cannot be used: "),
            "{text}"
        );
    }
}
