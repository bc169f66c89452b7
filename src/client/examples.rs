//! The environment of this documentation's examples: programs do not need it.
//!
//! An example is compiled with the tests and runs only where it finds a cluster, so that readers
//! may rely on it:
//!
//! ```sh
//! LEASEHOLD_EXAMPLES=10.0.0.1:7400,10.0.0.2:7400 LEASEHOLD_EXAMPLES_PKI=pki LEASEHOLD_EXAMPLES_NAME=app \
//!     cargo test --doc client -- --test-threads=1
//! ```
//!
//! with `pki/client-ca.pem`, `pki/app.pem` and `pki/app.key`.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use super::{Client, ConnectOptions, TlsOptions};
use crate::api::{Error, ErrorKind};

/// Timeout of an example's requests: the examples run on busy machines.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `example` with a client of the cluster that the environment names, or not at all. Retries
/// it once if only a stalled machine was the cause of the failure.
///
/// # Panics
/// The example, or the connection to the cluster, fails.
pub fn run<Example>(example: Example)
where
    Example: AsyncFn(Client) -> Result<(), Error>,
{
    let Ok(endpoints) = env::var("LEASEHOLD_EXAMPLES") else {
        return;
    };
    let pki = PathBuf::from(env::var_os("LEASEHOLD_EXAMPLES_PKI").unwrap_or_default());
    let name = env::var("LEASEHOLD_EXAMPLES_NAME").unwrap_or_default();
    let tls = TlsOptions::new()
        .ca_pem_file(pki.join("client-ca.pem"))
        .identity_pem_files(
            pki.join(format!("{name}.pem")),
            pki.join(format!("{name}.key")),
        );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs what every process has");
    let done = runtime.block_on(async {
        let options = ConnectOptions::new().with_tls(tls).with_timeout(TIMEOUT);
        let mut attempts_left = 5;
        loop {
            attempts_left -= 1;
            let done = async {
                let connected = Client::connect(endpoints.split(','), Some(options.clone()));
                example(connected.await?).await
            };
            match done.await {
                Err(error) if attempts_left > 0 && is_passing(&error) => {}
                done => return done,
            }
        }
    });
    if let Err(error) = done {
        panic!("{error}");
    }
}

/// Whether the error is transient: a leadership transfer, for one.
fn is_passing(error: &Error) -> bool {
    error.is_retryable() || error.kind == ErrorKind::DeadlineExceeded
}
