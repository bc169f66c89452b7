//! Certificates and keys: from PEM files to a configuration that trusts exactly one authority.
//!
//! Every way in which the files of a node or client can be wrong has its own error, reported at
//! start with a sentence that says what to do; a handshake that fails later can say much less.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use std::{fmt, io};

use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::transport::identity::{cluster_of_authority, has_dns_name, server_name, spiffe_id};
use crate::transport::key_file::exposed_mode;
use crate::transport::{IdentityError, IdentityKind, PeerIdentity, Port, SpiffeUsers, Workload};
use crate::types::ClusterId;

/// The paths of the certificates and the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsPaths {
    /// PEM file of the trusted authorities; one or more certificates.
    pub ca: PathBuf,
    /// PEM file of this side's certificate, with intermediates if there are any.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// PEM file of the revocation lists, if revocation is checked: then it must cover every trusted
    /// authority, since certificates of an authority without a list are rejected.
    pub crl: Option<PathBuf>,
}

impl TlsPaths {
    /// The state of the files, with links resolved; `None` if one of them does not exist.
    pub(crate) fn stamps(&self) -> Option<TlsStamps> {
        let (ca, certificate) = (FileStamp::of(&self.ca)?, FileStamp::of(&self.certificate)?);
        let crl = match &self.crl {
            Some(crl) => Some(FileStamp::of(crl)?),
            None => None,
        };
        Some(TlsStamps([ca, certificate, FileStamp::of(&self.key)?], crl))
    }
}

/// Enough metadata of the files to detect a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsStamps([FileStamp; 3], Option<FileStamp>);

/// The file's identity, modification time and length: a link with a new target is another file,
/// even if that has the same time and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    place: (u64, u64),
    modified: SystemTime,
    length: u64,
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        #[cfg(unix)]
        let place = {
            use std::os::unix::fs::MetadataExt;
            (metadata.dev(), metadata.ino())
        };
        #[cfg(not(unix))]
        let place = (0, 0);
        Some(Self {
            place,
            modified: metadata.modified().ok()?,
            length: metadata.len(),
        })
    }
}

/// An identity with its key, and the authorities it trusts. Cheap to clone; its `Debug` output
/// shows no key.
#[derive(Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

struct Inner {
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    identity: PeerIdentity,
    not_after: i64,
    /// The revocation lists; empty if revocation is not checked.
    revoked: Vec<CertificateRevocationListDer<'static>>,
    /// The allowed names or whole identities of the other side; if empty, every identity is
    /// allowed.
    allowed: Vec<String>,
    /// Which SPIFFE ids of clients are accepted, if any are.
    spiffe: Option<Arc<SpiffeUsers>>,
}

impl Clone for Inner {
    fn clone(&self) -> Self {
        Self {
            roots: Arc::clone(&self.roots),
            chain: self.chain.clone(),
            key: self.key.clone_key(),
            identity: self.identity.clone(),
            not_after: self.not_after,
            revoked: self.revoked.clone(),
            allowed: self.allowed.clone(),
            spiffe: self.spiffe.clone(),
        }
    }
}

/// What is wrong with the certificates or the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file does not exist.
    #[error("{path} does not exist: create it with `leasehold cert issue`, or correct the path")]
    Missing {
        /// The file.
        path: String,
    },
    /// A file exists and cannot be read.
    #[error("{path} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// The error of the operating system.
        reason: String,
    },
    /// A file does not contain what it should.
    #[error("{path} holds no {wanted} in PEM form")]
    NotPem {
        /// The file.
        path: String,
        /// The kind of content expected.
        wanted: &'static str,
    },
    /// Other users may read the private key.
    #[error(
        "{path} is readable by other users (mode {mode:03o}): run `chmod 600 {path}`, or make it \
         owned by root and a group of this process with mode 440"
    )]
    KeyExposed {
        /// The file.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// Certificate and key do not match.
    #[error(
        "{key} is not the key of the certificate {certificate}: use the pair that was issued together"
    )]
    KeyMismatch {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
    },
    /// The certificate has expired.
    #[error("{path} expired on {not_after}: issue a new one with `leasehold cert issue`")]
    Expired {
        /// The file.
        path: String,
        /// The expiry date.
        not_after: String,
    },
    /// The certificate is not valid yet.
    #[error("{path} is not valid before {not_before}: check this machine's clock, or wait")]
    NotYetValid {
        /// The file.
        path: String,
        /// The start of its validity.
        not_before: String,
    },
    /// The certificate has no acceptable identity.
    #[error("{path}: {source}")]
    Identity {
        /// The file.
        path: String,
        /// The reason.
        source: IdentityError,
    },
    /// A node's certificate lacks the DNS name that clients and peers verify.
    #[error(
        "{path} lacks the DNS name {name}, by which nodes are addressed: issue it with `leasehold cert issue`"
    )]
    NoServerName {
        /// The file.
        path: String,
        /// The name.
        name: String,
    },
    /// A node's own certificate does not pass the check that others make by the same authority.
    #[error(
        "{path} does not verify against {ca}: {reason}. Use the certificate that was issued for this \
         port by that authority: `leasehold cert check` shows which is which"
    )]
    NotOfAuthority {
        /// The certificate's file.
        path: String,
        /// The authorities' file.
        ca: String,
        /// Why not.
        reason: String,
    },
    /// Any other error of rustls.
    #[error("{path} cannot be used: {reason}")]
    Unusable {
        /// The file.
        path: String,
        /// The error of rustls.
        reason: String,
    },
}

impl Tls {
    /// Loads and checks the files of a node or client.
    ///
    /// # Errors
    /// The first error found.
    pub fn load(paths: &TlsPaths) -> Result<Self, TlsError> {
        refuse_exposed_key(&paths.key)?;
        let ca = read_file(&paths.ca)?;
        let certificate = read_file(&paths.certificate)?;
        let key = read_file(&paths.key)?;
        let tls = Self::from_named_pem(
            (&name_of(&paths.ca), &ca),
            (&name_of(&paths.certificate), &certificate),
            (&name_of(&paths.key), &key),
        )?;
        match &paths.crl {
            Some(crl) => tls.with_revoked(&name_of(crl), &read_file(crl)?),
            None => Ok(tls),
        }
    }

    /// Loads from PEM text in memory.
    ///
    /// # Errors
    /// The first error found.
    pub fn from_pem(ca: &[u8], certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::from_named_pem(
            ("the authority's certificate", ca),
            ("the certificate", certificate),
            ("the key", key),
        )
    }

    /// Loads and checks the files of a node's port. Its certificate must pass the check that the
    /// other nodes, and on the client port the clients, make: one that does not would let the node
    /// start and be refused by everybody.
    ///
    /// # Errors
    /// The first error found.
    #[allow(dead_code, reason = "the SDK alone has no node")]
    pub(crate) fn load_of_node(paths: &TlsPaths, port: Port) -> Result<Self, TlsError> {
        let tls = Self::load(paths)?;
        tls.verify_own(port).map_err(|error| {
            let why = |reason: CertificateError| match reason {
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    "another authority signed it".to_owned()
                }
                CertificateError::InvalidPurpose
                | CertificateError::InvalidPurposeContext { .. } => {
                    "it was issued for another use".to_owned()
                }
                other => other.to_string(),
            };
            TlsError::NotOfAuthority {
                path: name_of(&paths.certificate),
                ca: name_of(&paths.ca),
                reason: match error {
                    rustls::Error::InvalidCertificate(reason) => why(reason),
                    other => other.to_string(),
                },
            }
        })?;
        Ok(tls)
    }

    /// Whether others with the same authorities accept this side's certificate at `port`. Revocation
    /// is theirs to judge: a list that names this node must not keep it from hearing of the others.
    #[allow(dead_code, reason = "the SDK alone has no node")]
    fn verify_own(&self, port: Port) -> Result<(), rustls::Error> {
        let mut inner = (*self.inner).clone();
        inner.revoked = Vec::new();
        let unrevoked = Self {
            inner: Arc::new(inner),
        };
        let (chain, now) = (&self.inner.chain, UnixTime::now());
        unrevoked.still_trusts(chain, true, now)?;
        match port {
            Port::Peer => unrevoked.still_trusts(chain, false, now),
            Port::Client => Ok(()),
        }
    }

    /// The identity of this side's certificate.
    pub fn identity(&self) -> &PeerIdentity {
        &self.inner.identity
    }

    /// The cluster of this side's certificate.
    pub fn cluster_id(&self) -> ClusterId {
        self.inner.identity.cluster_id
    }

    /// When this side's certificate expires, in seconds since 1970.
    pub fn expires_at_unix_seconds(&self) -> i64 {
        self.inner.not_after
    }

    fn from_named_pem(
        (ca_name, ca): (&str, &[u8]),
        (certificate_name, certificate): (&str, &[u8]),
        (key_name, key): (&str, &[u8]),
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let roots_der = certificates(ca_name, ca)?;
        for root in &roots_der {
            check_validity(ca_name, root)?;
            roots
                .add(root.clone())
                .map_err(|error| unusable(ca_name, &error))?;
        }
        let chain = certificates(certificate_name, certificate)?;
        let leaf = chain.first().ok_or_else(|| TlsError::NotPem {
            path: certificate_name.into(),
            wanted: "certificate",
        })?;
        let not_after = check_validity(certificate_name, leaf)?;
        let identity = own_identity(leaf, &roots_der).map_err(|source| TlsError::Identity {
            path: certificate_name.into(),
            source,
        })?;
        check_server_name(certificate_name, leaf, &identity)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsError::NotPem {
            path: key_name.into(),
            wanted: "private key",
        })?;
        let tls = Self {
            inner: Arc::new(Inner {
                roots: Arc::new(roots),
                chain,
                key,
                identity,
                not_after,
                revoked: Vec::new(),
                allowed: Vec::new(),
                spiffe: None,
            }),
        };
        // Built once here to find errors now that would otherwise appear at the first connection.
        tls.client_config(Port::Client)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch {
                    certificate: certificate_name.into(),
                    key: key_name.into(),
                },
                other => unusable(key_name, &other),
            })?;
        Ok(tls)
    }

    /// The configuration for accepting connections.
    pub(crate) fn server_config(&self, port: Port) -> Result<rustls::ServerConfig, String> {
        let verifier = self.client_verifier().map_err(|error| error.to_string())?;
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.inner.chain.clone(), self.inner.key.clone_key())
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![port.alpn().to_vec()];
        // Each connection authenticates both sides again: nothing to replay, nothing to outlive a
        // certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(config)
    }

    /// The configuration for connecting to a node.
    pub(crate) fn client_config(&self, port: Port) -> Result<rustls::ClientConfig, rustls::Error> {
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_webpki_verifier(self.server_verifier().map_err(unbuilt)?)
            .with_client_auth_cert(self.inner.chain.clone(), self.inner.key.clone_key())?;
        config.alpn_protocols = vec![port.alpn().to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(config)
    }

    /// Whether the other side of an existing connection would be accepted now: with the authorities
    /// that are trusted now, and at this time. `dialled` is true if this side connected.
    pub(crate) fn still_trusts(
        &self,
        chain: &[CertificateDer<'_>],
        dialled: bool,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        if dialled {
            let verifier = self.server_verifier().map_err(unbuilt)?;
            let name = ServerName::try_from(self.server_name())
                .map_err(|error| rustls::Error::General(error.to_string()))?;
            verifier.verify_server_cert(leaf, intermediates, &name, &[], now)?;
        } else {
            let verifier = self.client_verifier().map_err(unbuilt)?;
            verifier.verify_client_cert(leaf, intermediates, now)?;
        }
        Ok(())
    }

    /// Restricts the identities of the other side to these: names, or whole identities as they
    /// appear in certificates. An empty list allows every valid certificate.
    #[must_use]
    pub fn with_allowed(mut self, allowed: Vec<String>) -> Self {
        Arc::make_mut(&mut self.inner).allowed = allowed;
        self
    }

    /// From now on clients with SPIFFE ids are accepted as `users` say; with `None`, as before, none.
    #[must_use]
    pub fn with_spiffe(mut self, users: Option<SpiffeUsers>) -> Self {
        Arc::make_mut(&mut self.inner).spiffe = users.map(Arc::new);
        self
    }

    /// Which SPIFFE ids of clients are accepted.
    pub(crate) fn spiffe(&self) -> Option<&SpiffeUsers> {
        self.inner.spiffe.as_deref()
    }

    /// Whether `identity` is allowed on the other side.
    pub(crate) fn allows(&self, identity: &PeerIdentity) -> bool {
        let allowed = &self.inner.allowed;
        let is_meant = |entry: &String| entry == identity.name() || *entry == identity.to_string();
        allowed.is_empty() || allowed.iter().any(is_meant)
    }

    /// Adds the revocation lists in `pem`.
    fn with_revoked(mut self, name: &str, pem: &[u8]) -> Result<Self, TlsError> {
        let lists =
            CertificateRevocationListDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let lists = lists.ok().filter(|lists| !lists.is_empty());
        Arc::make_mut(&mut self.inner).revoked = lists.ok_or_else(|| TlsError::NotPem {
            path: name.into(),
            wanted: "revocation list",
        })?;
        match self.client_verifier() {
            Ok(_) => Ok(self),
            Err(error) => Err(unusable(name, &unbuilt(error))),
        }
    }

    /// Verifies certificates of connecting peers.
    fn client_verifier(&self) -> Result<Arc<dyn ClientCertVerifier>, VerifierBuilderError> {
        let roots = Arc::clone(&self.inner.roots);
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        match self.inner.revoked.as_slice() {
            [] => builder.build(),
            lists => builder
                .with_crls(lists.to_vec())
                .only_check_end_entity_revocation()
                .build(),
        }
    }

    /// Verifies certificates of the nodes this side connects to.
    fn server_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
        let roots = Arc::clone(&self.inner.roots);
        let builder = WebPkiServerVerifier::builder_with_provider(roots, provider());
        match self.inner.revoked.as_slice() {
            [] => builder.build(),
            lists => builder
                .with_crls(lists.to_vec())
                .only_check_end_entity_revocation()
                .build(),
        }
    }

    /// A key for `purpose`, the same in every process that holds this private key, from which the
    /// private key cannot be derived.
    pub(crate) fn derived_key(&self, purpose: &[u8]) -> ring::hmac::Key {
        let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.inner.key.secret_der());
        let derived = ring::hmac::sign(&secret, purpose);
        ring::hmac::Key::new(ring::hmac::HMAC_SHA256, derived.as_ref())
    }

    /// The DNS name of this cluster's nodes in TLS.
    pub(crate) fn server_name(&self) -> String {
        server_name(self.cluster_id())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("identity", &self.inner.identity)
            .field("key", &"***")
            .finish_non_exhaustive()
    }
}

fn unbuilt(error: VerifierBuilderError) -> rustls::Error {
    rustls::Error::General(error.to_string())
}

/// The only crypto provider. Always named explicitly: with two in a dependency tree, requesting the
/// default panics.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A path as errors show it.
pub(crate) fn name_of(path: &Path) -> String {
    path.display().to_string()
}

/// Reads a file of certificates or a key.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => TlsError::Missing {
            path: name_of(path),
        },
        _ => TlsError::Unreadable {
            path: name_of(path),
            reason: error.to_string(),
        },
    })
}

/// That other users cannot read the key.
pub(crate) fn refuse_exposed_key(path: &Path) -> Result<(), TlsError> {
    match exposed_mode(path) {
        None => Ok(()),
        Some(mode) => Err(TlsError::KeyExposed {
            path: name_of(path),
            mode,
        }),
    }
}

fn certificates(name: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let not_pem = || TlsError::NotPem {
        path: name.into(),
        wanted: "certificate",
    };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|_| not_pem())?;
    if found.is_empty() {
        return Err(not_pem());
    }
    Ok(found)
}

/// Checks that the certificate is valid now, and returns when it expires.
fn check_validity(name: &str, der: &[u8]) -> Result<i64, TlsError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| TlsError::Identity {
        path: name.into(),
        source: IdentityError::Unreadable,
    })?;
    #[expect(
        clippy::disallowed_methods,
        reason = "certificates are valid by the wall clock"
    )]
    let since_1970 = SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = since_1970.map_or(0, |elapsed| {
        i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
    });
    let validity = certificate.validity();
    if now < validity.not_before.timestamp() {
        return Err(TlsError::NotYetValid {
            path: name.into(),
            not_before: validity.not_before.to_string(),
        });
    }
    if now > validity.not_after.timestamp() {
        return Err(TlsError::Expired {
            path: name.into(),
            not_after: validity.not_after.to_string(),
        });
    }
    Ok(validity.not_after.timestamp())
}

fn check_server_name(name: &str, der: &[u8], identity: &PeerIdentity) -> Result<(), TlsError> {
    let IdentityKind::Node(_) = identity.kind else {
        return Ok(());
    };
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| TlsError::Identity {
        path: name.into(),
        source: IdentityError::Unreadable,
    })?;
    let wanted = server_name(identity.cluster_id);
    if has_dns_name(&certificate, &wanted) {
        return Ok(());
    }
    Err(TlsError::NoServerName {
        path: name.into(),
        name: wanted,
    })
}

/// The identity of this side's own certificate. One with a SPIFFE id names no cluster: it is that of
/// the authority by which the nodes are known.
fn own_identity(
    leaf: &CertificateDer<'_>,
    roots: &[CertificateDer<'_>],
) -> Result<PeerIdentity, IdentityError> {
    match (PeerIdentity::of_certificate(leaf), spiffe_id(leaf)) {
        (Err(IdentityError::Missing), Ok(Some(id))) => {
            let cluster_id = roots.iter().find_map(|root| cluster_of_authority(root));
            Ok(PeerIdentity {
                cluster_id: cluster_id.ok_or(IdentityError::NoCluster)?,
                kind: IdentityKind::Workload(Box::new(Workload {
                    user: id.to_string(),
                    id,
                })),
            })
        }
        (Err(IdentityError::Missing), Err(refusal)) => Err(refusal),
        (found, _) => found,
    }
}

fn unusable(name: &str, error: &rustls::Error) -> TlsError {
    TlsError::Unusable {
        path: name.into(),
        reason: error.to_string(),
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;

    use super::*;

    /// As Kubernetes replaces a secret: each file is a link through one that is made to lead elsewhere.
    #[test]
    fn files_behind_a_link_that_leads_elsewhere_are_others() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        for version in ["..1", "..2"] {
            fs::create_dir(at(version)).unwrap();
            for name in ["ca.pem", "n.pem", "n.key"] {
                // As long and as old as the other.
                let file = at(version).join(name);
                fs::write(&file, version).unwrap();
                let file = fs::File::options().write(true).open(file).unwrap();
                file.set_modified(written).unwrap();
            }
        }
        let lead = |version: &str| {
            std::os::unix::fs::symlink(version, at("..new")).unwrap();
            fs::rename(at("..new"), at("..data")).unwrap();
        };
        lead("..1");
        for name in ["ca.pem", "n.pem", "n.key"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), at(name)).unwrap();
        }
        let paths = TlsPaths {
            ca: at("ca.pem"),
            certificate: at("n.pem"),
            key: at("n.key"),
            crl: None,
        };
        let first = paths.stamps().unwrap();
        assert_eq!(paths.stamps(), Some(first));
        lead("..2");
        assert_ne!(paths.stamps(), Some(first));
        lead("..1");
        assert_eq!(paths.stamps(), Some(first));
        fs::remove_file(at("..data")).unwrap();
        assert_eq!(paths.stamps(), None, "nothing is there for a moment");
    }
}
