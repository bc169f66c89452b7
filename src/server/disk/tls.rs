//! The certificates of a port, from their files.

use crate::server::config::TlsFiles;
use crate::transport::{Port, Tls, TlsError};

/// Why the certificates of a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read, or what is in it is no valid certificate.
    #[error("[tls.{section}] {error}")]
    Tls {
        /// `client` or `peer`.
        section: &'static str,
        /// What is wrong with it.
        error: TlsError,
    },
    /// The certificate was issued to another node.
    #[error(
        "[tls.{section}] the certificate belongs to {found}, but node.name is \"{name}\": use the \
         certificate issued to \"{name}\", or correct the name"
    )]
    Name {
        /// `client` or `peer`.
        section: &'static str,
        /// The name in the certificate.
        found: String,
        /// This node's name.
        name: String,
    },
}

/// Loads the certificates of one port, which must have been issued to the node `name`.
pub(crate) fn load_tls(
    section: &'static str,
    files: &TlsFiles,
    name: &str,
) -> Result<Tls, CertificateError> {
    let port = match section {
        "peer" => Port::Peer,
        _ => Port::Client,
    };
    let tls = Tls::load_of_node(&files.paths(), port)
        .map_err(|error| CertificateError::Tls { section, error })?;
    let tls = tls
        .with_allowed(files.allowed_sans.clone())
        .with_spiffe(files.spiffe.clone());
    let identity = tls.identity();
    if !identity.is_node() || identity.name() != name {
        return Err(CertificateError::Name {
            section,
            found: identity.to_string(),
            name: name.to_owned(),
        });
    }
    Ok(tls)
}
