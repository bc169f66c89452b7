//! Log lines: where they go and how they look.
//!
//! A line that goes to the journal of systemd begins with its priority (`<4>` for a warning), which the
//! journal takes off and keeps: by it `journalctl -p warning` finds the line. Everywhere else a line
//! begins with itself.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::{env, io};

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// How a line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Where lines go.
#[derive(Debug)]
pub enum LogTarget {
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
        "the log filter `{filter}` is invalid: {problem}; write a level, and others for parts of \
         the program, for example info,leasehold::raft=debug"
    )]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        problem: String,
    },
    /// This process has a subscriber already.
    #[error("a log subscriber is installed already")]
    Taken,
}

type SetFilter = dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync;

/// The filter of log lines, which can be changed.
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
pub fn start(filter: &str, look: LineFormat, place: LogTarget) -> Result<Filter, LogError> {
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
        (LineFormat::Json, LogTarget::StandardError) => {
            launch!(builder.json().with_writer(StandardError::find()))
        }
        (LineFormat::Json, LogTarget::File(file)) => {
            launch!(builder.json().with_writer(Mutex::new(file)))
        }
        (LineFormat::Text, LogTarget::StandardError) => {
            launch!(
                builder
                    .with_ansi(colours_wanted())
                    .with_writer(StandardError::find())
            )
        }
        (LineFormat::Text, LogTarget::File(file)) => {
            launch!(builder.with_ansi(false).with_writer(Mutex::new(file)))
        }
    };
    started.map_err(|_| LogError::Taken)
}

/// What the storage engine says only to the log: why it stopped, and, of what goes well, nothing that an
/// operator could use. A filter that asks for more takes precedence. How its journal ends after a crash
/// it calls an error, and is none: the state is compared with its hash, and the log has the rest.
const ENGINE: &str = "fjall=warn,lsm_tree=warn,fjall::journal::batch_reader=off";
/// The library for HTTP/2 warns of what a client does to it, once for each frame if the client likes, and
/// unauthenticated ones must not be able to fill a disk.
const HTTP: &str = "h2=error";

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder()
        .parse(format!("{ENGINE},{HTTP},{filter}"))
        .map_err(|error| LogError::Filter {
            filter: filter.to_owned(),
            problem: error.to_string(),
        })
}

/// Standard error, as it was connected when the process began.
#[derive(Clone, Copy, Debug)]
struct StandardError {
    is_journal: bool,
}

impl StandardError {
    fn find() -> Self {
        let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
        let connected = rustix::fs::fstat(io::stderr());
        Self {
            is_journal: connected.is_ok_and(|found| is_stream(&stream, found.st_dev, found.st_ino)),
        }
    }
}

/// Whether `$JOURNAL_STREAM` names this very file: its device and inode in decimal, with a colon
/// between. That the variable is there says nothing: children inherit it, wherever they write to.
fn is_stream(variable: &str, device: u64, inode: u64) -> bool {
    let named = variable.split_once(':').and_then(|(device, inode)| {
        let device: u64 = device.parse().ok()?;
        Some((device, inode.parse::<u64>().ok()?))
    });
    named == Some((device, inode))
}

impl<'a> MakeWriter<'a> for StandardError {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { priority: None }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Line {
        Line {
            priority: self.is_journal.then(|| priority(*meta.level())),
        }
    }
}

/// What a level is called in the journal (sd-daemon(3)).
fn priority(level: Level) -> &'static [u8] {
    match level {
        Level::ERROR => b"<3>",
        Level::WARN => b"<4>",
        Level::INFO => b"<6>",
        Level::DEBUG | Level::TRACE => b"<7>",
    }
}

/// Takes in one event, whole and at once, as its layer gives it.
#[derive(Debug)]
struct Line {
    priority: Option<&'static [u8]>,
}

impl Write for Line {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        match self.priority {
            None => io::stderr().write(event),
            Some(priority) => {
                // In one piece, so that no other line begins within it.
                io::stderr().write_all(&prefixed(priority, event))?;
                Ok(event.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// The event with the priority before each of its lines, for the journal takes each for an entry.
fn prefixed(priority: &[u8], event: &[u8]) -> Vec<u8> {
    let lines = event.split_inclusive(|byte| *byte == b'\n');
    lines.flat_map(|line| [priority, line].concat()).collect()
}

fn colours_wanted() -> bool {
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_cannot_be_is_named() {
        let started = start(
            "info,leasehold=loud",
            LineFormat::Text,
            LogTarget::StandardError,
        );
        let error = started.err().expect("there is no such level");
        let text = error.to_string();
        assert!(
            text.starts_with("the log filter `info,leasehold=loud` is invalid: "),
            "{text}"
        );
    }

    #[test]
    fn only_the_very_file_of_the_variable_is_the_journal() {
        assert!(is_stream("9:12345", 9, 12_345));
        for other in [
            "",
            "9",
            "9:",
            ":12345",
            "9:12346",
            "8:12345",
            "12345:9",
            "9:12345:1",
            "9:0x3039",
            "9 :12345",
            "-9:12345",
        ] {
            assert!(!is_stream(other, 9, 12_345), "{other}");
        }
    }

    #[test]
    fn each_line_of_an_event_bears_its_priority() {
        let levels = [
            Level::ERROR,
            Level::WARN,
            Level::INFO,
            Level::DEBUG,
            Level::TRACE,
        ];
        let told = levels.map(|level| prefixed(priority(level), b"{}\n"));
        let wanted = ["<3>{}\n", "<4>{}\n", "<6>{}\n", "<7>{}\n", "<7>{}\n"];
        assert_eq!(told, wanted.map(|line| line.as_bytes().to_vec()));
        assert_eq!(prefixed(b"<4>", b"a\nb\n"), b"<4>a\n<4>b\n");
        assert_eq!(prefixed(b"<4>", b"a"), b"<4>a");
        assert_eq!(prefixed(b"<4>", b""), b"");
    }
}
