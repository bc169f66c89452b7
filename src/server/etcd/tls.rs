//! TLS on a TCP port, for clients of other protocols: versions 1.2 and 1.3, and a certificate of the
//! client only if that is required or offered. Who the client is comes from its certificate.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::verify_server_name;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;

use crate::transport::{
    IdentityError, PeerIdentity, SpiffeId, SpiffeUsers, TlsError, TlsPaths, name_of, read_file,
    refuse_exposed_key, spiffe_id,
};

/// What a port shows to its clients, and whom it lets in. Cheap to clone.
#[derive(Clone)]
pub(super) struct TcpTls {
    acceptor: TlsAcceptor,
    clients: Arc<ClientCertificates>,
}

/// Which clients a port lets in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientCertificates {
    /// A client without a certificate is refused. One that shows a certificate shows a valid one in
    /// any case.
    pub(super) are_required: bool,
    /// Names of the clients that may connect, or hosts that their certificates are for; if empty, all may. With names,
    /// a certificate is required.
    pub(super) allowed: Vec<String>,
    /// Which SPIFFE ids are accepted. Without, such a name of a certificate is overlooked.
    pub(super) spiffe: Option<SpiffeUsers>,
    /// What the names of an issuer's users begin with, if there is one and it gives them a prefix.
    pub(super) issuer_prefix: Option<String>,
}

impl ClientCertificates {
    /// Whether every client shows one.
    pub(super) fn must_be_shown(&self) -> bool {
        self.are_required || !self.allowed.is_empty()
    }

    /// Whether a client of this name, which has shown this certificate, may connect.
    fn allow(&self, name: Option<&String>, shown: Option<&CertificateDer<'_>>) -> bool {
        let is_listed = |listed: &String| {
            name == Some(listed) || shown.is_some_and(|shown| is_for_host(shown, listed))
        };
        self.allowed.is_empty() || self.allowed.iter().any(is_listed)
    }
}

/// Whether `host` is among the hosts that a certificate is for, where `*` may stand for their first label.
fn is_for_host(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let certificate = ParsedCertificate::try_from(certificate);
    match (certificate, ServerName::try_from(host)) {
        (Ok(certificate), Ok(host)) => verify_server_name(&certificate, &host).is_ok(),
        _ => false,
    }
}

/// What a failed handshake has to say to an operator; `None` where a client went away, or spoke no TLS.
pub(super) fn fault(error: &io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::PeerIncompatible(_) => Some(format!(
            "the client knows neither TLS 1.2 nor 1.3, or none of their ciphers that this node takes: {error}"
        )),
        rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => {
            Some(format!("the client's certificate: {error}"))
        }
        rustls::Error::AlertReceived(_) => Some(format!(
            "the client takes this node for another one, or does not trust its certificate: {error}"
        )),
        _ => None,
    }
}

/// Why the name in a client's certificate is not taken.
#[derive(Debug, thiserror::Error)]
enum NameError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "the common name {0:?} begins as the names of users do who come with a SPIFFE id or with the token \
         of an issuer (auth.oidc.user_prefix), and a certificate makes none of those: issue it for \
         another name"
    )]
    Reserved(String),
}

impl TcpTls {
    /// Loads the files of a port that speaks `protocols` (ALPN).
    ///
    /// # Errors
    /// The first error found.
    pub(super) fn load(
        paths: &TlsPaths,
        clients: &ClientCertificates,
        protocols: &[&str],
    ) -> Result<Self, TlsError> {
        refuse_exposed_key(&paths.key)?;
        let unusable = |path: &std::path::Path, reason: String| TlsError::Unusable {
            path: name_of(path),
            reason,
        };
        let chain = pem::<CertificateDer<'static>>(&paths.certificate, "certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&read_file(&paths.key)?).map_err(|_| {
            TlsError::NotPem {
                path: name_of(&paths.key),
                wanted: "private key",
            }
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = verifier(paths, clients.must_be_shown(), &provider)?;
        let builder = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|error| unusable(&paths.certificate, error.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&paths.certificate, error.to_string()))?;
        config.alpn_protocols = protocols
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        Ok(Self {
            acceptor: TlsAcceptor::from(Arc::new(config)),
            clients: Arc::new(clients.clone()),
        })
    }

    /// Takes the handshake of a connection.
    ///
    /// # Errors
    /// It failed, or the client may not connect.
    ///
    /// # Cancel safety
    /// Cancelled, the connection is closed.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TcpTlsStream> {
        let stream = self.acceptor.accept(stream).await?;
        let certificates = stream.get_ref().1.peer_certificates();
        let shown = certificates.and_then(<[_]>::first);
        let name = shown
            .map(|certificate| client_name(certificate, &self.clients))
            .transpose()
            .map_err(|refusal| io::Error::new(io::ErrorKind::PermissionDenied, refusal))?
            .flatten();
        match self.clients.allow(name.as_ref(), shown) {
            true => Ok(TcpTlsStream {
                stream: Box::new(stream),
                name,
            }),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the client is not listed in tls.etcd.allowed_sans",
            )),
        }
    }
}

fn pem<T: PemObject>(path: &std::path::Path, wanted: &'static str) -> Result<Vec<T>, TlsError> {
    let bytes = read_file(path)?;
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsError::NotPem {
            path: name_of(path),
            wanted,
        }),
    }
}

/// The revocation lists in a file: any number in PEM form, or, as authorities give them out and etcd takes
/// them, one in DER form.
fn revocation_lists(
    path: &std::path::Path,
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let wanted = "revocation list in DER form, nor one";
    let in_pem = pem::<CertificateRevocationListDer<'static>>(path, wanted);
    let bytes = read_file(path)?;
    match CertificateRevocationList::from_der(&bytes) {
        Ok(([], _)) => Ok(vec![bytes.into()]),
        _ => in_pem,
    }
}

/// The check of what clients show.
fn verifier(
    paths: &TlsPaths,
    are_required: bool,
    provider: &Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let unusable = |reason: String| TlsError::Unusable {
        path: name_of(&paths.ca),
        reason,
    };
    let mut roots = RootCertStore::empty();
    for root in pem::<CertificateDer<'static>>(&paths.ca, "certificate")? {
        roots
            .add(root)
            .map_err(|error| unusable(error.to_string()))?;
    }
    let mut builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    if let Some(crl) = &paths.crl {
        builder = builder.with_crls(revocation_lists(crl)?);
    }
    if !are_required {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| unusable(error.to_string()))
}

/// The name in a client's certificate: the user of its SPIFFE id where such are accepted, else that of our
/// own identity, else the common name.
///
/// # Errors
/// It has a SPIFFE id that is not accepted, or a common name as only users of another kind have.
fn client_name(
    der: &CertificateDer<'_>,
    clients: &ClientCertificates,
) -> Result<Option<String>, NameError> {
    if let Some(users) = &clients.spiffe
        && let Some(id) = spiffe_id(der)?
    {
        return Ok(Some(users.user(&id).map_err(IdentityError::from)?));
    }
    if let Ok(identity) = PeerIdentity::of_certificate(der) {
        return Ok(Some(identity.name().to_owned()));
    }
    let Ok((_, certificate)) = X509Certificate::from_der(der) else {
        return Ok(None);
    };
    let name = certificate.subject().iter_common_name().next();
    let Some(name) = name.and_then(|name| name.as_str().ok()) else {
        return Ok(None);
    };
    let is_of_issuer = |prefix: &String| name.starts_with(prefix.as_str());
    match SpiffeId::is_meant_by(name) || clients.issuer_prefix.as_ref().is_some_and(is_of_issuer) {
        true => Err(NameError::Reserved(name.to_owned())),
        false => Ok(Some(name.to_owned())),
    }
}

/// A connection under TLS.
pub(super) struct TcpTlsStream {
    stream: Box<TlsStream<TcpStream>>,
    name: Option<String>,
}

impl TcpTlsStream {
    /// The name in the client's certificate, if it has shown one.
    pub(super) fn client_name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

impl AsyncRead for TcpTlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TcpTlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(common: &str, clients: &ClientCertificates) -> Result<Option<String>, NameError> {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common);
        let key = rcgen::KeyPair::generate().unwrap();
        client_name(params.self_signed(&key).unwrap().der(), clients)
    }

    #[test]
    fn a_common_name_is_none_of_the_users_of_spiffe_ids_and_issuers() {
        let with = |prefix: Option<&str>| ClientCertificates {
            issuer_prefix: prefix.map(str::to_owned),
            ..ClientCertificates::default()
        };
        let (alone, issuer) = (with(None), with(Some("oidc:")));
        for (common, by_itself, beside_an_issuer) in [
            ("anna", true, true),
            ("oidc", true, true),
            ("OIDC:anna", true, true),
            ("oidc:anna", true, false),
            ("oidc:", true, false),
            ("spiffe://example.org/a", false, false),
            ("Spiffe:a", false, false),
        ] {
            for (clients, is_taken) in [(&alone, by_itself), (&issuer, beside_an_issuer)] {
                match (name(common, clients), is_taken) {
                    (Ok(Some(name)), true) => assert_eq!(name, common),
                    (Err(NameError::Reserved(name)), false) => assert_eq!(name, common),
                    (other, _) => panic!("{common}: {other:?}"),
                }
            }
        }
    }
}
