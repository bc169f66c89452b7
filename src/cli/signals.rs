//! A polite wish to stop, and an impolite one.

use std::io::Write;
use std::{io, process};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The exit code after a second signal, as shells write it: 128 and SIGINT.
const IMPATIENT: i32 = 130;

/// Whether this process was asked to stop. Clones share the answer.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: watch::Receiver<bool>,
}

impl Stop {
    /// Listens for SIGINT and SIGTERM from now on. The first asks for a graceful end; the second
    /// ends the process at once. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system does not let us listen.
    pub fn listen() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (ask, asked) = watch::channel(false);
        tokio::spawn(async move {
            either(&mut interrupt, &mut terminate).await;
            ask.send_replace(true);
            either(&mut interrupt, &mut terminate).await;
            let _ = writeln!(anstream::stderr(), "stopping immediately");
            process::exit(IMPATIENT);
        });
        Ok(Self { asked })
    }

    /// Asked through the sender: for tests.
    #[cfg(test)]
    pub(crate) fn by(asked: watch::Receiver<bool>) -> Self {
        Self { asked }
    }

    /// Returns once a graceful end was asked for.
    ///
    /// # Cancel safety
    /// Safe: the wish is not lost.
    pub async fn asked(&mut self) {
        // An error means that the listening task is gone, which happens when all else is.
        let _ = self.asked.wait_for(|asked| *asked).await;
    }
}

/// Every request to stop, one after the other, to be passed on. None ends the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

/// A wish to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// SIGINT: most likely Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

impl Signals {
    /// Listens for SIGINT and SIGTERM from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// The system does not let us listen.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// Safe: no wish is lost.
    pub async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.interrupt.recv() => Wish::Interrupt,
            _ = self.terminate.recv() => Wish::Terminate,
        }
    }
}

/// Waits for every SIGHUP, which asks a service to read its files again. Needs a tokio runtime.
#[derive(Debug)]
pub struct Hangups(Signal);

impl Hangups {
    /// Listens from now on: SIGHUP does not end the process any more.
    ///
    /// # Errors
    /// The system does not let us listen.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// Waits for the next one.
    ///
    /// # Cancel safety
    /// Safe: none is lost, though several may be one.
    pub async fn next(&mut self) {
        if self.0.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Set for a child process that runs the test in earnest.
    const CHILD: &str = "LEASEHOLD_TEST_SIGNALS";

    fn send(child: &Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    #[test]
    fn the_first_signal_asks_and_the_second_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            listen_for_signals();
            return;
        }
        for (first, second) in [(Signal::TERM, Signal::INT), (Signal::INT, Signal::TERM)] {
            let test = "cli::signals::tests::the_first_signal_asks_and_the_second_ends_the_process";
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture"])
                .env(CHILD, "1")
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let mut says = |word: &str| lines.any(|line| line.unwrap().contains(word));
            assert!(says("listening"));
            send(&child, first);
            assert!(says("asked"));
            send(&child, second);
            assert_eq!(child.wait().unwrap().code(), Some(IMPATIENT));
        }
    }

    fn listen_for_signals() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut stop = Stop::listen().unwrap();
            println!("listening");
            stop.asked().await;
            stop.clone().asked().await;
            println!("asked");
            // Longer than anybody waits for this test, yet not for ever.
            tokio::time::sleep(std::time::Duration::from_secs(60)).await;
        });
    }
}
