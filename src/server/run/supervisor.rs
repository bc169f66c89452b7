//! Reports the node's health to a service manager, by three messages of systemd's notification protocol.
//!
//! A manager that expects notifications sets `NOTIFY_SOCKET` to the address of a datagram socket, and
//! `WATCHDOG_USEC` to the time after which it kills a process without a keepalive. The protocol has no
//! replies, and an unreachable manager does not affect the node.
//!
//! The sender decides when the node is alive; see
//! [`Server::pulse`](crate::server::Server::pulse).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// A service manager that expects notifications.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    watchdog: Option<Duration>,
}

/// Why a service manager cannot be notified.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The address is neither a path nor an abstract name.
    #[error(
        "NOTIFY_SOCKET = `{}` is neither a path starting with / nor an abstract name starting with \
         @: the service manager will not learn that this node is ready",
        address.to_string_lossy()
    )]
    Address {
        /// The given address.
        address: OsString,
    },
    /// There is no socket to send from, or the address is too long.
    #[error("cannot notify the service manager at NOTIFY_SOCKET: {0}")]
    Socket(#[from] io::Error),
}

impl Supervisor {
    /// The manager named by the environment, if any. `variable` returns the value of a variable, and
    /// `process` is the id of this process: a watchdog may be meant for another one.
    ///
    /// # Errors
    /// [`SupervisorError`]; the node can run without a manager.
    pub fn of_environment(
        variable: impl Fn(&str) -> Option<OsString>,
        process: u32,
    ) -> Result<Option<Self>, SupervisorError> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let address = address(&name)?;
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let is_ours = number("WATCHDOG_PID").is_none_or(|id| id == u64::from(process));
        let watchdog = number("WATCHDOG_USEC").filter(|micros| is_ours && *micros > 0);
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not block the node.
        socket.set_nonblocking(true)?;
        Ok(Some(Self {
            socket,
            address,
            watchdog: watchdog.map(Duration::from_micros),
        }))
    }

    /// The interval between keepalives: half the time after which the process is killed.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|patience| patience / 2)
    }

    /// Reports that the node listens.
    pub fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving\n");
    }

    /// Reports that the node has begun to stop, which may take a while.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=handing over and stopping\n");
    }

    /// Sends one keepalive.
    pub fn alive(&self) {
        self.tell("WATCHDOG=1\n");
    }

    /// Sends keepalives at the interval, each only after another `beat` of the node. Never returns.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn show_life(&self, mut beat: impl AsyncFnMut()) {
        let Some(interval) = self.watchdog_interval() else {
            return std::future::pending().await;
        };
        loop {
            beat().await;
            self.alive();
            tokio::time::sleep(interval).await;
        }
    }

    fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            tracing::warn!(%error, "cannot notify the service manager of {state:?}");
        }
    }
}

fn address(name: &OsStr) -> Result<SocketAddr, SupervisorError> {
    match name.as_bytes() {
        [b'@', rest @ ..] => Ok(SocketAddr::from_abstract_name(rest)?),
        [b'/', ..] => Ok(SocketAddr::from_pathname(name)?),
        _ => Err(SupervisorError::Address {
            address: name.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment<'a>(
        variables: &'a [(&'a str, &'a str)],
    ) -> impl Fn(&str) -> Option<OsString> + 'a {
        |wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted)?;
            Some(found.1.into())
        }
    }

    fn heard(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 200];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_manager_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("leasehold-test-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let abstractly = SocketAddr::from_abstract_name(&name).unwrap();
        let abstractly = UnixDatagram::bind_addr(&abstractly).unwrap();
        for (socket, address) in [
            (at_path, path.to_str().unwrap().to_owned()),
            (abstractly, format!("@{name}")),
        ] {
            let variables = [("NOTIFY_SOCKET", address.as_str())];
            let found = Supervisor::of_environment(environment(&variables), 1);
            let supervisor = found.unwrap().expect("there is one");
            supervisor.ready();
            supervisor.alive();
            supervisor.stopping();
            assert!(heard(&socket).starts_with("READY=1\n"), "{address}");
            assert_eq!(heard(&socket), "WATCHDOG=1\n");
            assert!(heard(&socket).starts_with("STOPPING=1\n"));
        }
    }

    #[test]
    fn without_a_manager_nobody_is_told_and_a_strange_address_is_named() {
        for nobody in [&[][..], &[("NOTIFY_SOCKET", "")]] {
            let found = Supervisor::of_environment(environment(nobody), 1).unwrap();
            assert!(found.is_none());
        }
        let strange = [("NOTIFY_SOCKET", "vsock:2:1")];
        let error = Supervisor::of_environment(environment(&strange), 1).unwrap_err();
        assert!(error.to_string().contains("`vsock:2:1`"), "{error}");
        // One that is gone is no reason to stop.
        let gone = [("NOTIFY_SOCKET", "/nowhere/to/be/found")];
        let found = Supervisor::of_environment(environment(&gone), 1).unwrap();
        found.expect("it is tried").ready();
    }

    /// A process may run while its node stands still, and then it is to be killed.
    #[tokio::test]
    async fn a_node_whose_heart_stands_still_shows_no_life() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let variables = [
            ("NOTIFY_SOCKET", path.to_str().unwrap()),
            ("WATCHDOG_USEC", "2000"),
        ];
        let found = Supervisor::of_environment(environment(&variables), 1);
        let supervisor = found.unwrap().expect("there is one");
        let (mut beats, (stopped, stands_still)) = (0, tokio::sync::oneshot::channel());
        let mut stopped = Some(stopped);
        let beat = async || {
            beats += 1;
            if beats > 3 {
                let _ = stopped.take().map(|stopped| stopped.send(()));
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = supervisor.show_life(beat) => unreachable!("it never returns"),
            _ = async {
                let _ = stands_still.await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            } => {}
        }
        socket.set_nonblocking(true).unwrap();
        for _ in 0..3 {
            assert_eq!(heard(&socket), "WATCHDOG=1\n");
        }
        assert!(socket.recv(&mut [0; 20]).is_err(), "more signs than beats");
    }

    #[test]
    fn the_watchdog_is_fed_twice_in_its_time_if_it_is_ours() {
        let interval = |more: &[(&str, &str)]| {
            let mut variables = vec![("NOTIFY_SOCKET", "@x")];
            variables.extend(more);
            let found = Supervisor::of_environment(environment(&variables), 7);
            found.unwrap().expect("there is one").watchdog_interval()
        };
        let ten = Some(Duration::from_secs(5));
        assert_eq!(interval(&[("WATCHDOG_USEC", "10000000")]), ten);
        assert_eq!(
            interval(&[("WATCHDOG_USEC", "10000000"), ("WATCHDOG_PID", "7")]),
            ten
        );
        assert_eq!(
            interval(&[("WATCHDOG_USEC", "10000000"), ("WATCHDOG_PID", "8")]),
            None
        );
        for none in [
            &[][..],
            &[("WATCHDOG_USEC", "0")],
            &[("WATCHDOG_USEC", "x")],
        ] {
            assert_eq!(interval(none), None);
        }
    }
}
