//! Server processes that a bench starts itself, so that it may pause and end them.
//!
//! Whatever happens to the bench, short of its own sudden end, they end with it.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;
use std::{io, thread};

use rustix::process::{Pid, Signal};
use tokio::task::LocalSet;

use super::{Stopwatch, Wall};
use crate::cli::failure::Failure;
use crate::cli::signals::Stop;

/// How long a process may take to end when it is asked to, before it is made to.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between checks of the process.
const POLL: Duration = Duration::from_millis(5);
/// How much of its last words is shown.
const LAST_WORDS_BYTES: u64 = 2_000;

/// A process of ours.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
    told_to_end: bool,
}

/// How a process is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopSignal {
    /// It is asked to, and may take leave of the others.
    Stop,
    /// It is gone at once, as in a crash.
    Kill,
}

impl Process {
    /// Starts `program`. What it says goes to the end of the file `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        log: &Path,
    ) -> Result<Self, Failure> {
        let cannot = |error: io::Error| {
            Failure::refused(format!(
                "cannot start {} ({name}): {error}",
                program.display()
            ))
        };
        let open = || -> io::Result<(File, File)> {
            let file = OpenOptions::new().create(true).append(true).open(log)?;
            Ok((file.try_clone()?, file))
        };
        let (out, err) = open().map_err(cannot)?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(cannot)?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
            ended: None,
            told_to_end: false,
        })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it in its tracks, until [`Process::resume`].
    ///
    /// # Errors
    /// It has ended.
    pub fn pause(&mut self) -> Result<(), Failure> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It has ended.
    pub fn resume(&mut self) -> Result<(), Failure> {
        self.signal(Signal::CONT)
    }

    /// Tells it to end, and does not wait until it has.
    ///
    /// # Errors
    /// It has ended by itself.
    pub fn begin_to_end(&mut self, how: StopSignal) -> Result<(), Failure> {
        self.signal(match how {
            StopSignal::Stop => Signal::TERM,
            StopSignal::Kill => Signal::KILL,
        })?;
        self.told_to_end = true;
        Ok(())
    }

    /// Waits until it has ended, and after a while makes it.
    ///
    /// # Errors
    /// The system does not say.
    pub fn wait(&mut self) -> Result<(), Failure> {
        let watch = Wall::start();
        while self.poll()?.is_none() {
            if watch.elapsed() > PATIENCE {
                self.child.kill()?;
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Reports with its last output if it has ended without having been stopped.
    ///
    /// # Errors
    /// That, or the system does not say.
    pub fn check(&mut self) -> Result<(), Failure> {
        match self.poll()? {
            None => Ok(()),
            Some(_) if self.told_to_end => Ok(()),
            Some(status) => Err(Failure::refused(format!(
                "{} exited unexpectedly ({status}): {}",
                self.name,
                self.last_words()
            ))),
        }
    }

    /// The end of what it said.
    pub fn last_words(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS_BYTES)))?;
            let mut words = Vec::new();
            file.read_to_end(&mut words)?;
            Ok(String::from_utf8_lossy(&words).trim().to_owned())
        };
        read().unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
    }

    fn poll(&mut self) -> Result<Option<ExitStatus>, Failure> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        self.check()?;
        if self.ended.is_some() {
            return Err(Failure::refused(format!("{} has exited", self.name)));
        }
        // It has not been waited for, so the number is still its own.
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let sent = pid.map(|pid| rustix::process::kill_process(pid, signal));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Failure::refused(format!("{}: {error}", self.name))),
            None => Err(Failure::refused(format!("{} has no process id", self.name))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Works on one that is paused as well; nothing more can be done about one that is not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `work` on a thread of its own runtime until it is done, or until this process is asked to
/// stop: then it is dropped, and with it every process that it started.
///
/// # Errors
/// Those of `work`, or that it was stopped.
pub fn until_stopped<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut stop = Stop::listen()?;
        tokio::select! {
            done = work => done,
            () = stop.asked() => Err(Failure::refused("interrupted")),
        }
    })
}

/// A directory that is gone when dropped.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new one below `parent`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(parent: &Path, purpose: &str) -> Result<Self, Failure> {
        use std::os::unix::fs::DirBuilderExt;
        let cannot = |path: &Path, error: &io::Error| {
            Failure::refused(format!("cannot create {}: {error}", path.display()))
        };
        let parent = std::path::absolute(parent).map_err(|error| cannot(parent, &error))?;
        for suffix in 0..1_000 {
            let name = format!("leasehold-{purpose}-{}-{suffix}", std::process::id());
            let path = parent.join(name);
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(cannot(&path, &error)),
            }
        }
        Err(cannot(&parent, &io::ErrorKind::AlreadyExists.into()))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(directory: &Scratch) -> Process {
        let log = directory.path().join("log");
        let line = ["-c", "echo here I am; exec sleep 1000"];
        Process::start("sleeper", Path::new("/bin/sh"), line, &log).unwrap()
    }

    #[test]
    fn a_process_ends_when_it_is_told_to_and_when_it_is_dropped() {
        let directory = Scratch::new(&std::env::temp_dir(), "test").unwrap();
        for how in [StopSignal::Stop, StopSignal::Kill] {
            let mut process = sleeper(&directory);
            process.check().unwrap();
            process.pause().unwrap();
            process.resume().unwrap();
            process.begin_to_end(how).unwrap();
            process.wait().unwrap();
            process.check().expect("it was told to");
            assert!(
                process.resume().is_err(),
                "no signal to a number that may be another's"
            );
        }
        let log = directory.path().join("short");
        let line = ["-c", "echo my last words; exit 3"];
        let mut short = Process::start("short", Path::new("/bin/sh"), line, &log).unwrap();
        short.wait().unwrap();
        let failure = short.check().unwrap_err();
        assert!(
            failure.message.contains("short exited unexpectedly"),
            "{failure}"
        );
        assert!(failure.message.contains("my last words"), "{failure}");

        let mut paused = sleeper(&directory);
        paused.pause().unwrap();
        let pid = paused.pid();
        drop(paused);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        let path = directory.path().to_owned();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let directory = Scratch::new(&std::env::temp_dir(), "test").unwrap();
        let log = directory.path().join("log");
        let failure = Process::start("x", Path::new("/nowhere/x"), [""; 0], &log).unwrap_err();
        assert!(failure.message.contains("/nowhere/x"), "{failure}");
    }
}
