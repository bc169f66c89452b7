//! How the examples reach a cluster: that of `leasehold dev`, or the one that the environment names
//! as the command line does (`LEASEHOLD_ENDPOINTS`, `LEASEHOLD_CACERT`, `LEASEHOLD_CERT` and
//! `LEASEHOLD_KEY`).

use std::env;
use std::error::Error;
use std::time::Duration;

use leasehold::cli::runtime::RuntimeDirectory;
use leasehold::client::{Client, ConnectOptions, TlsOptions};

/// A client, or a sentence that says what to do.
pub(crate) async fn connect() -> Result<Client, Box<dyn Error>> {
    let (endpoints, tls) = match env::var("LEASEHOLD_ENDPOINTS") {
        Ok(endpoints) => {
            let file = |name| env::var(name).map_err(|_| format!("{name} is missing"));
            let tls = TlsOptions::new()
                .ca_pem_file(file("LEASEHOLD_CACERT")?)
                .identity_pem_files(file("LEASEHOLD_CERT")?, file("LEASEHOLD_KEY")?);
            let endpoints = endpoints.split(',').map(str::to_owned).collect();
            (endpoints, tls)
        }
        Err(_) => {
            let dev = RuntimeDirectory::find(None)?.running()?;
            let dev = dev.ok_or("start a cluster first: leasehold dev")?;
            let tls = TlsOptions::new()
                .ca_pem_file(dev.cacert)
                .identity_pem_files(dev.cert, dev.key);
            (dev.endpoints, tls)
        }
    };
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_timeout(Duration::from_secs(10));
    Ok(Client::connect(endpoints, Some(options)).await?)
}
