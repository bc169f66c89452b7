//! `leasehold lock` and `leasehold elect`: something is held while a command runs, or until a user
//! says stop.
//!
//! A command must not outlive the lock. Its lease may be counted on for a known time, by this
//! machine's clocks; when a third of its length is left and no renewal has got through, the command is
//! asked to stop (SIGTERM), and when a tenth is left it is made to (SIGKILL). Only then may the lease
//! run out. What this cannot prevent is in the help: this process itself may be suspended or
//! killed, and its command go on; hence the fencing token.

use std::ffi::OsString;
use std::io;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::signal::unix::{Signal as Arrivals, SignalKind, signal};

use super::request::note_another_ttl;
use crate::cli::arguments::lock::{ElectArgs, LockArgs};
use crate::cli::connection::Connection;
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::{View, held as print};
use crate::cli::signals::{Signals, Wish};
use crate::client::recipes::{Election, Guard, Leadership, Lock, Session};
use crate::client::{Client, LostCause};
use crate::clock::SystemClock;
use crate::time::{Clock, Instant};

/// What is held, as messages name it.
const LOCK: &str = "the lock";
const LEADERSHIP: &str = "leadership";

/// When this part of the lease's time is left, the command is asked to stop.
const ASK_AT: u32 = 3;
/// When this part is left, it is made to.
const MAKE_AT: u32 = 10;

/// Holds a lock.
///
/// # Errors
/// What went wrong, with the code to end with; the command's own code among them.
pub(super) async fn lock(
    arguments: LockArgs,
    connection: &impl Connection,
    timeout: Duration,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if let Some(program) = arguments.unmarked.first() {
        return Err(Failure::usage(format!(
            "write `--` before the command: leasehold lock {} -- {} ...",
            arguments.name.display(),
            program.display()
        )));
    }
    let mut signals = Signals::listen()?;
    let wait = arguments.wait.map(|wait| Wait::new(wait, timeout));
    let client = connection.client()?;
    let opening = open(&client, arguments.ttl, LOCK, &mut signals);
    let Some(session) = Wait::within(wait, opening).await else {
        return Err(not_acquired(
            wait,
            "the cluster granted no lease in that time; `leasehold endpoint health` shows why",
        ));
    };
    let session = session?;
    let result = hold(&session, arguments, wait, &mut signals, view, out).await;
    close(&session, result).await
}

/// How long a user will wait for a lock, from before the session is opened.
#[derive(Clone, Copy)]
struct Wait {
    /// Zero for as long as it takes to try once.
    asked: Duration,
    length: Duration,
    began: Instant,
}

impl Wait {
    /// Which begins now. Trying once has as long as a request.
    fn new(asked: Duration, timeout: Duration) -> Self {
        Self {
            asked,
            length: if asked.is_zero() { timeout } else { asked },
            began: SystemClock.now(),
        }
    }

    /// Does it within the time that is left; without a wait for as long as it takes.
    async fn within<T>(wait: Option<Self>, work: impl Future<Output = T>) -> Option<T> {
        match wait {
            None => Some(work.await),
            Some(wait) => {
                let passed = SystemClock.now().at_least_since(wait.began);
                let left = wait.length.saturating_sub(passed);
                tokio::time::timeout(left, work).await.ok()
            }
        }
    }
}

async fn hold(
    session: &Session,
    arguments: LockArgs,
    wait: Option<Wait>,
    signals: &mut Signals,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let lock = Lock::new(session, arguments.name.into_vec());
    let guard = tokio::select! {
        acquired = acquire(&lock, wait) => acquired?,
        _ = signals.next() => return Err(interrupted(LOCK)),
    };
    match arguments.command.split_first() {
        None => {
            print::locked(out, view, guard.key(), guard.fencing_token(), session.id())?;
            out.flush()?;
            until_stopped(&guard, LOCK, signals).await
        }
        Some((program, rest)) => run(&guard, program, rest, signals).await,
    }
}

/// Waits for the lock, for as long as the user will.
async fn acquire(lock: &Lock, wait: Option<Wait>) -> Result<Guard, Failure> {
    let tries_once = wait.is_some_and(|wait| wait.asked.is_zero());
    let acquiring = async {
        match tries_once {
            true => lock.try_acquire().await,
            false => lock.acquire().await.map(Some),
        }
    };
    match Wait::within(wait, acquiring).await {
        Some(acquired) => acquired?.ok_or_else(|| {
            Failure::new(
                Exit::NotAcquired,
                "the lock was not acquired: another client holds it, or waits for it",
            )
        }),
        None if tries_once => Err(not_acquired(wait, "the cluster did not answer")),
        // Only a cluster that answers says which.
        None => Err(not_acquired(
            wait,
            "another client holds it or waits for it, or the cluster does not answer; `leasehold \
             endpoint health` shows whether it does",
        )),
    }
}

/// The wait is over.
fn not_acquired(wait: Option<Wait>, why: &str) -> Failure {
    let length = humantime::format_duration(wait.map_or(Duration::ZERO, |wait| wait.length));
    Failure::new(
        Exit::NotAcquired,
        format!("the lock was not acquired within {length}: {why}"),
    )
}

/// Stands in an election, or looks who leads.
///
/// # Errors
/// What went wrong, with the code to end with.
pub(super) async fn elect(
    arguments: ElectArgs,
    connection: &impl Connection,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut signals = Signals::listen()?;
    let client = connection.client()?;
    let election = Election::new(&client, arguments.name.into_vec());
    let Some(value) = arguments.value else {
        return listen(&election, &mut signals, view, out).await;
    };
    let session = open(&client, arguments.ttl, LEADERSHIP, &mut signals).await?;
    let value = Bytes::from(value.into_vec());
    let led = lead(&election, &session, value, &mut signals, view, out).await;
    close(&session, led).await
}

async fn lead(
    election: &Election,
    session: &Session,
    value: Bytes,
    signals: &mut Signals,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let leadership: Leadership = tokio::select! {
        elected = election.campaign(session, value.clone()) => elected?,
        _ = signals.next() => return Err(interrupted(LEADERSHIP)),
    };
    let (key, token) = (leadership.key(), leadership.fencing_token());
    print::leads(out, view, key, &value, token)?;
    out.flush()?;
    until_stopped(&leadership, LEADERSHIP, signals).await
}

async fn listen(
    election: &Election,
    signals: &mut Signals,
    view: View,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let mut observer = election.observe().await?;
    loop {
        let leader = tokio::select! {
            leader = observer.next() => leader?,
            _ = signals.next() => return Ok(()),
        };
        print::leads(out, view, &leader.key, &leader.value, leader.fencing_token)?;
        out.flush()?;
    }
}

async fn open(
    client: &Client,
    ttl: Duration,
    what: &str,
    signals: &mut Signals,
) -> Result<Session, Failure> {
    let leases = client.lease();
    let session = tokio::select! {
        session = leases.session(ttl, None) => session?,
        _ = signals.next() => return Err(interrupted(what)),
    };
    note_another_ttl(ttl, session.ttl());
    Ok(session)
}

/// Releases everything, so that no waiter has to wait for the lease to end.
async fn close(session: &Session, result: Result<(), Failure>) -> Result<(), Failure> {
    // One that cannot be revoked ends by itself: that is no failure of what was done.
    let _ = session.close().await;
    result
}

/// Waits until a signal to stop, which is the normal end, or the loss of what is held.
async fn until_stopped(guard: &Guard, what: &str, signals: &mut Signals) -> Result<(), Failure> {
    tokio::select! {
        cause = guard.lost() => Err(lost(what, cause)),
        _ = signals.next() => Ok(()),
    }
}

fn interrupted(what: &str) -> Failure {
    Failure::refused(format!("interrupted before {what} was acquired"))
}

fn lost(what: &str, cause: LostCause) -> Failure {
    let what = match cause {
        LostCause::Deleted => what,
        _ => "the lease",
    };
    Failure::new(Exit::Lost, format!("{what} is lost: {cause}"))
}

/// Runs a command for as long as the lock is held, and ends as it does.
async fn run(
    guard: &Guard,
    program: &OsString,
    rest: &[OsString],
    signals: &mut Signals,
) -> Result<(), Failure> {
    let session = guard.session();
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LEASEHOLD_LOCK_KEY", text(guard.key()))
        .env("LEASEHOLD_FENCING_TOKEN", guard.fencing_token().to_string())
        .env("LEASEHOLD_LEASE", format!("{:016x}", session.id()));
    // A terminal's input goes to the command, and only its foreground group may read it.
    let is_group = !io::stdin().is_terminal();
    if is_group {
        command.process_group(0);
    }
    // Before there is a process whose end could be missed.
    let ends = signal(SignalKind::child())?;
    let child = command.spawn().map_err(|error| {
        let program = program.to_string_lossy();
        Failure::refused(format!("cannot run {program}: {error}"))
    })?;
    let mut job = Job {
        child,
        ends,
        is_group,
    };
    match job.supervise(guard, signals).await? {
        JobEnd::ByItself(status) => as_it_ended(status),
        JobEnd::Stopped(why) => {
            let cause = match (why, session.is_alive()) {
                (Stop::Lost(LostCause::Deleted), _) => {
                    return Err(Failure::new(
                        Exit::Lost,
                        "the command was stopped because the lock is lost: its key was deleted",
                    ));
                }
                (Stop::Lost(cause), _) => cause.to_string(),
                (Stop::NearsEnd, true) => "it was not renewed in time".to_owned(),
                (Stop::NearsEnd, false) => session.lost().await.to_string(),
            };
            Err(Failure::new(
                Exit::Lost,
                format!("the command was stopped because the lock was about to be lost: {cause}"),
            ))
        }
    }
}

fn as_it_ended(status: ExitStatus) -> Result<(), Failure> {
    // As shells say it.
    let of_signal = || 128 + status.signal().unwrap_or_default();
    match status.code().unwrap_or_else(of_signal) {
        0 => Ok(()),
        code => Err(Failure::new(
            Exit::Command(u8::try_from(code).unwrap_or(u8::MAX)),
            "",
        )),
    }
}

fn text(key: &Bytes) -> OsString {
    OsString::from_vec(key.to_vec())
}

/// A command that runs.
struct Job {
    child: Child,
    ends: Arrivals,
    /// It leads a group of its own.
    is_group: bool,
}

enum JobEnd {
    ByItself(ExitStatus),
    /// Because the lock was about to be lost, or was.
    Stopped(Stop),
}

/// Why a command is stopped.
enum Stop {
    NearsEnd,
    Lost(LostCause),
}

impl Job {
    async fn supervise(&mut self, guard: &Guard, signals: &mut Signals) -> Result<JobEnd, Failure> {
        let session = guard.session();
        let ttl = session.ttl();
        let ask = session.nears_end(ttl / ASK_AT);
        let lost = guard.lost();
        tokio::pin!(ask, lost);
        let why = loop {
            tokio::select! {
                status = self.end() => return Ok(JobEnd::ByItself(status?)),
                wish = signals.next() => self.pass_on(wish),
                () = &mut ask => break Stop::NearsEnd,
                cause = &mut lost => break Stop::Lost(cause),
            }
        };
        self.send(Signal::TERM);
        // A lock whose key is gone may have another holder by now, but its lease goes on: then the
        // command has no longer than it would have had otherwise.
        let grace = tokio::time::sleep(ttl / ASK_AT - ttl / MAKE_AT);
        let make = session.nears_end(ttl / MAKE_AT);
        let has_ended = tokio::select! {
            status = self.end() => status.map(|_| true)?,
            () = make => false,
            () = grace, if matches!(why, Stop::Lost(_)) => false,
        };
        // What the command has started and left behind goes as well. A process that has ended has no
        // number any more, but its group has, while a process is in it.
        if self.is_group || !has_ended {
            self.send(Signal::KILL);
        }
        self.end().await?;
        Ok(JobEnd::Stopped(why))
    }

    /// Waits until the command has ended.
    async fn end(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            self.ends.recv().await;
        }
    }

    fn pass_on(&self, wish: Wish) {
        match wish {
            // The terminal has signalled it already.
            Wish::Interrupt if !self.is_group => {}
            Wish::Interrupt => self.send(Signal::INT),
            Wish::Terminate => self.send(Signal::TERM),
        }
    }

    fn send(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // One that has ended needs no signal any more.
        let _ = match self.is_group {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
    }
}
