//! A polite wish to stop, and an impolite one.

use std::io;
use std::io::Write;
use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// The code of a process that was told twice, as shells write it: 128 and SIGINT.
const IMPATIENT: i32 = 130;

/// Whether somebody asked this process to stop. Clones share the answer.
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
            let _ = writeln!(anstream::stderr(), "stopping at once");
            process::exit(IMPATIENT);
        });
        Ok(Self { asked })
    }

    /// Asked by whoever holds the sender: for tests.
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

async fn either(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
