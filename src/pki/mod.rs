//! The cluster's own certificate authorities, and the certificates they sign.
//!
//! Trust comes from certificates alone, so they also carry identity: which cluster, and which node
//! or client of it, stand in one URI name of each certificate
//! (`leasehold://<cluster-uuid>/node/<name>`). The common name is not used.
//!
//! There are two authorities, one for each port, so that no mistake with a certificate can turn a
//! client into a peer: the *peer* authority signs what nodes show each other, the *client*
//! authority signs clients and what nodes show them. A node therefore holds two certificates:
//! one for its peer port, good in both directions, and one for its client port, good only for
//! answering. Every certificate of a node also bears the DNS name
//! `<cluster-uuid>.leasehold.internal`: it is the server name by which everyone calls every node,
//! so addresses may change without new certificates.
//!
//! What is not here: revocation (certificates are short-lived instead), and any network.

mod check;
mod facts;
mod names;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, fs, io};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use time::OffsetDateTime;

pub use self::check::{Problem, Remedy, Report, check, days_and_hours};
pub use self::facts::client_name;
pub use self::names::{CLIENT_CA_FILE, PEER_CA_FILE, server_name};

use self::facts::Facts;
use self::names::{Kind, key_exposed};
use crate::server::disk::durable;
use crate::types::{ClusterId, is_name};

/// How long an authority is valid by default: ten years.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long a node's or client's certificate is valid by default: ninety days.
pub const LEAF_LIFE: Duration = Duration::from_secs(90 * 86_400);

/// Certificates begin this long before they are made, for machines whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3_600);

/// Why a certificate could not be made, stored or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The directory already holds an authority.
    #[error(
        "{} exists already: a new authority would invalidate every certificate that the old one \
         signed; choose another directory with --out, or move the old files away first",
        path.display()
    )]
    AuthorityExists {
        /// The file that is there.
        path: PathBuf,
    },
    /// The directory already holds a certificate of that name.
    #[error(
        "{} exists already: give --force to replace it with a new certificate and key",
        path.display()
    )]
    CertificateExists {
        /// The file that is there.
        path: PathBuf,
    },
    /// There is no authority to sign with.
    #[error(
        "{} does not exist: create the authorities first with `leasehold cert init --out {}`",
        path.display(),
        path.parent().unwrap_or_else(|| Path::new(".")).display()
    )]
    NoAuthority {
        /// The file that is missing.
        path: PathBuf,
    },
    /// A name cannot stand in a certificate.
    #[error(
        "`{name}` is not a valid name for a node or client: use 1 to 64 of a-z A-Z 0-9 . _ -, \
         starting with a letter or digit"
    )]
    InvalidName {
        /// What was given.
        name: String,
    },
    /// A name whose files would be the authorities' own.
    #[error("`{name}` is the name of an authority's files: choose another name")]
    ReservedName {
        /// What was given.
        name: String,
    },
    /// A subject alternative name is neither an IP address nor a host name.
    #[error("`{san}` is neither an IP address nor a host name: give --san HOST or --san IP")]
    InvalidSan {
        /// What was given.
        san: String,
    },
    /// Validity of no length, or beyond what a certificate can say.
    #[error(
        "a certificate cannot be valid for {days} days: give --days between 1 and {}",
        AUTHORITY_LIFE.as_secs() / 86_400
    )]
    InvalidLife {
        /// What was asked for.
        days: u64,
    },
    /// The authority itself has expired.
    #[error(
        "the authority in this directory has expired: nothing that it signs would be accepted; \
         create new authorities with `leasehold cert init`"
    )]
    AuthorityExpired,
    /// A file does not hold what it should.
    #[error("{} is not usable: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The certificate library refused.
    #[error("cannot create the certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// The system gave no random bytes.
    #[error(
        "the operating system provides no random bytes: no keys can be generated on this machine"
    )]
    NoRandomness,
}

/// A certificate with its private key, both as PEM text. `Debug` does not show the key.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key (PKCS #8).
    pub key_pem: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate_pem", &self.certificate_pem)
            .field("key_pem", &"***")
            .finish()
    }
}

/// What a node shows: one certificate per port.
#[derive(Clone, Debug)]
pub struct NodeIdentity {
    /// For the peer port: signed by the peer authority, good as server and as client.
    pub peer: Identity,
    /// For the client port: signed by the client authority, good as server only.
    pub server: Identity,
}

/// Where the files of an identity lie in a directory made by [`Authority::save`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that signs the other side.
    pub trusted_ca: PathBuf,
}

impl IdentityFiles {
    /// What node `name` shows on its peer port.
    pub fn peer(directory: &Path, name: &str) -> Self {
        Self::named(directory, &format!("{name}-peer"), PEER_CA_FILE)
    }

    /// What node `name` shows on its client port.
    pub fn server(directory: &Path, name: &str) -> Self {
        Self::named(directory, &format!("{name}-server"), CLIENT_CA_FILE)
    }

    /// What client `name` shows.
    pub fn client(directory: &Path, name: &str) -> Self {
        Self::named(directory, name, CLIENT_CA_FILE)
    }

    /// Finds out whether any of these files is there already.
    ///
    /// # Errors
    /// [`PkiError::CertificateExists`], if so.
    pub fn refuse_existing(&self) -> Result<(), PkiError> {
        let existing = [&self.certificate, &self.key]
            .into_iter()
            .find(|path| path.exists());
        existing.map_or(Ok(()), |path| {
            Err(PkiError::CertificateExists { path: path.clone() })
        })
    }

    fn named(directory: &Path, stem: &str, ca: &str) -> Self {
        Self {
            certificate: directory.join(format!("{stem}.pem")),
            key: directory.join(format!("{stem}.key")),
            trusted_ca: directory.join(ca),
        }
    }

    /// Writes `identity` into these files, the key readable by its owner only.
    ///
    /// Each file appears whole or not at all, the key first. The directory is created if need be.
    ///
    /// # Errors
    /// [`PkiError::CertificateExists`] unless `replace`; [`PkiError::Io`].
    pub fn write(&self, identity: &Identity, replace: bool) -> Result<(), PkiError> {
        if !replace {
            self.refuse_existing()?;
        }
        create_directory(self.certificate.parent().unwrap_or_else(|| Path::new(".")))?;
        write_whole(&self.key, &identity.key_pem, 0o600)?;
        write_whole(&self.certificate, &identity.certificate_pem, 0o644)
    }
}

/// A node or client that certificates were issued for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The name.
    pub name: String,
    /// Whether it is a node, and else a client.
    pub is_node: bool,
    /// The host names and addresses in its certificates, other than the cluster's own.
    pub sans: Vec<String>,
}

/// Both authorities of a cluster, with their keys: the holder of these can join it.
#[derive(Debug)]
pub struct Authority {
    cluster: ClusterId,
    peer: Signer,
    client: Signer,
}

impl Authority {
    /// New authorities for `cluster`, or for a new cluster whose 128-bit id is drawn here from the
    /// operating system's randomness. They are valid for `life` from `now`.
    ///
    /// # Errors
    /// [`PkiError::NoRandomness`], [`PkiError::InvalidLife`], [`PkiError::Generate`].
    pub fn create(
        cluster: Option<ClusterId>,
        life: Duration,
        now: SystemTime,
    ) -> Result<Self, PkiError> {
        let cluster = match cluster {
            Some(cluster) => cluster,
            None => draw_cluster_id()?,
        };
        let validity = Validity::new(life, now)?;
        Ok(Self {
            cluster,
            peer: Signer::create(cluster, Port::Peer, validity)?,
            client: Signer::create(cluster, Port::Client, validity)?,
        })
    }

    /// Reads the authorities that [`Authority::save`] wrote into `directory`.
    ///
    /// # Errors
    /// [`PkiError::NoAuthority`]; [`PkiError::Damaged`] for files that are not such authorities, do
    /// not belong together, or whose key others may read; [`PkiError::Io`].
    pub fn load(directory: &Path) -> Result<Self, PkiError> {
        let (peer_cluster, peer) = Signer::load(directory, Port::Peer)?;
        let (client_cluster, client) = Signer::load(directory, Port::Client)?;
        if peer_cluster != client_cluster {
            return Err(PkiError::Damaged {
                path: directory.join(CLIENT_CA_FILE),
                problem: format!(
                    "it belongs to cluster {client_cluster}, but {PEER_CA_FILE} next to it to \
                     cluster {peer_cluster}: keep the authorities of each cluster in a directory \
                     of its own"
                ),
            });
        }
        Ok(Self {
            cluster: peer_cluster,
            peer,
            client,
        })
    }

    /// Writes both authorities into `directory`, which is created (for its owner only) if need be.
    ///
    /// # Errors
    /// [`PkiError::AuthorityExists`] before anything is written, if any of the four files is
    /// there; [`PkiError::Io`].
    pub fn save(&self, directory: &Path) -> Result<(), PkiError> {
        let files = [Port::Peer, Port::Client].map(|port| port.authority_files(directory));
        for path in files.iter().flat_map(|(pem, key)| [pem, key]) {
            if path.exists() {
                return Err(PkiError::AuthorityExists { path: path.clone() });
            }
        }
        create_directory(directory)?;
        for (signer, (pem, key)) in [&self.peer, &self.client].into_iter().zip(&files) {
            write_whole(key, &signer.issuer.key().serialize_pem(), 0o600)?;
            write_whole(pem, &signer.certificate_pem, 0o644)?;
        }
        Ok(())
    }

    /// The authorities in `directory`, made if it does not exist or is empty: all of their files are there then or,
    /// after a crash, none.
    ///
    /// # Errors
    /// As [`Authority::load`] and [`Authority::create`]; [`PkiError::Io`], also if the directory holds others' files.
    pub fn load_or_create(directory: &Path, now: SystemTime) -> Result<Self, PkiError> {
        match Self::load(directory) {
            Err(PkiError::NoAuthority { .. }) => {}
            found => return found,
        }
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| PkiError::Io {
                action,
                path,
                source,
            }
        };
        let part = directory.with_extension("new");
        match fs::remove_dir_all(&part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &part)(error));
            }
            _ => {}
        }
        let authority = Self::create(None, AUTHORITY_LIFE, now)?;
        authority.save(&part)?;
        durable::move_into_place(&part, directory).map_err(failed("create", directory))?;
        Ok(authority)
    }

    /// Issues both certificates of the node `name` as [`Authority::issue_node`] does, without further names, and
    /// writes them into `directory` in place of any before.
    ///
    /// # Errors
    /// As [`Authority::issue_node`] and [`IdentityFiles::write`].
    pub fn renew_node(
        &self,
        directory: &Path,
        name: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<(), PkiError> {
        let made = self.issue_node(name, &[], life, now)?;
        IdentityFiles::peer(directory, name).write(&made.peer, true)?;
        IdentityFiles::server(directory, name).write(&made.server, true)
    }

    /// The cluster whose members these authorities vouch for.
    pub fn cluster_id(&self) -> ClusterId {
        self.cluster
    }

    /// The certificate by which nodes know each other.
    pub fn peer_ca_pem(&self) -> &str {
        &self.peer.certificate_pem
    }

    /// The certificate by which nodes know clients and clients know nodes.
    pub fn client_ca_pem(&self) -> &str {
        &self.client.certificate_pem
    }

    /// Both certificates of the node `name`, valid for `life` from `now` (or as long as the
    /// authority, where that ends sooner). `sans` are further host names and IP addresses to put
    /// in; nothing in leasehold needs them.
    ///
    /// # Errors
    /// [`PkiError::InvalidName`], [`PkiError::ReservedName`], [`PkiError::InvalidSan`],
    /// [`PkiError::InvalidLife`], [`PkiError::AuthorityExpired`], [`PkiError::Generate`].
    pub fn issue_node(
        &self,
        name: &str,
        sans: &[String],
        life: Duration,
        now: SystemTime,
    ) -> Result<NodeIdentity, PkiError> {
        let names = self.names(Kind::Node, name, sans)?;
        let validity = Validity::new(life, now)?;
        let both = &[
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let server = &[ExtendedKeyUsagePurpose::ServerAuth];
        Ok(NodeIdentity {
            peer: self.peer.issue(name, names.clone(), both, validity)?,
            server: self.client.issue(name, names, server, validity)?,
        })
    }

    /// A certificate of the client `name`, valid for `life` from `now` (or as long as the
    /// authority, where that ends sooner).
    ///
    /// # Errors
    /// As [`Authority::issue_node`].
    pub fn issue_client(
        &self,
        name: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<Identity, PkiError> {
        let names = self.names(Kind::Client, name, &[])?;
        let usages = &[ExtendedKeyUsagePurpose::ClientAuth];
        self.client
            .issue(name, names, usages, Validity::new(life, now)?)
    }

    /// The nodes and clients that have a certificate of this cluster in `directory` which ends before
    /// `by`, in order. Files under other names than [`IdentityFiles`] gives them are left out, and so is
    /// what cannot be read as a certificate.
    ///
    /// # Errors
    /// [`PkiError::Io`]: the directory cannot be read.
    pub fn holders_ending(
        &self,
        directory: &Path,
        by: SystemTime,
    ) -> Result<BTreeSet<Holder>, PkiError> {
        let failed = |source| PkiError::Io {
            action: "read",
            path: directory.to_owned(),
            source,
        };
        let mut holders = BTreeSet::new();
        for entry in fs::read_dir(directory).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let Ok(facts) = Facts::read(&path) else {
                continue;
            };
            if facts.end >= OffsetDateTime::from(by) {
                continue;
            }
            holders.extend(self.holder(directory, &path, &facts));
        }
        Ok(holders)
    }

    /// Whose certificate `facts` are of, if it lies where that of a node or client of this cluster does.
    fn holder(&self, directory: &Path, path: &Path, facts: &Facts) -> Option<Holder> {
        let (cluster, kind, name) = facts.identity.as_ref()?;
        let files = match kind {
            Kind::Authority => return None,
            Kind::Node => vec![
                IdentityFiles::peer(directory, name),
                IdentityFiles::server(directory, name),
            ],
            Kind::Client => vec![IdentityFiles::client(directory, name)],
        };
        let is_in_place = files.iter().any(|files| files.certificate == path);
        (*cluster == self.cluster && is_in_place).then(|| Holder {
            name: name.clone(),
            is_node: *kind == Kind::Node,
            sans: facts.sans(&server_name(*cluster)),
        })
    }

    /// The subject alternative names of a certificate.
    fn names(&self, kind: Kind, name: &str, sans: &[String]) -> Result<Vec<SanType>, PkiError> {
        if !is_name(name) {
            return Err(PkiError::InvalidName {
                name: name.to_owned(),
            });
        }
        if [PEER_CA_FILE, CLIENT_CA_FILE].contains(&format!("{name}.pem").as_str()) {
            return Err(PkiError::ReservedName {
                name: name.to_owned(),
            });
        }
        let mut names = vec![uri(self.cluster, kind, name)?];
        if kind == Kind::Node {
            names.push(SanType::DnsName(server_name(self.cluster).try_into()?));
        }
        for san in sans {
            names.push(parse_san(san)?);
        }
        Ok(names)
    }
}

/// The machine's wall clock. Only the validity of certificates looks at it.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are valid between two points of wall time"
)]
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Which of a node's ports an authority is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Port {
    Peer,
    Client,
}

impl Port {
    fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Client => "client",
        }
    }

    fn authority_files(self, directory: &Path) -> (PathBuf, PathBuf) {
        let pem = directory.join(match self {
            Self::Peer => PEER_CA_FILE,
            Self::Client => CLIENT_CA_FILE,
        });
        let key = pem.with_extension("key");
        (pem, key)
    }
}

/// From when until when.
#[derive(Clone, Copy, Debug)]
struct Validity {
    begin: OffsetDateTime,
    end: OffsetDateTime,
    now: OffsetDateTime,
}

impl Validity {
    fn new(life: Duration, now: SystemTime) -> Result<Self, PkiError> {
        if life.is_zero() || life > AUTHORITY_LIFE {
            return Err(PkiError::InvalidLife {
                days: life.as_secs() / 86_400,
            });
        }
        let now = OffsetDateTime::from(now);
        Ok(Self {
            begin: now - BACKDATED,
            end: now + life,
            now,
        })
    }
}

/// One authority.
#[derive(Debug)]
struct Signer {
    issuer: Issuer<'static, KeyPair>,
    certificate_pem: String,
    end: OffsetDateTime,
}

impl Signer {
    fn create(cluster: ClusterId, port: Port, validity: Validity) -> Result<Self, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("leasehold {} ca {cluster}", port.name()));
        params.not_before = validity.begin;
        params.not_after = validity.end;
        params.subject_alt_names = vec![uri(cluster, Kind::Authority, port.name())?];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate_pem = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate_pem,
            end: validity.end,
        })
    }

    fn load(directory: &Path, port: Port) -> Result<(ClusterId, Self), PkiError> {
        let (pem, key_path) = port.authority_files(directory);
        if !pem.exists() {
            return Err(PkiError::NoAuthority { path: pem });
        }
        let damaged = |path: &Path, problem: String| PkiError::Damaged {
            path: path.to_owned(),
            problem,
        };
        let certificate_pem = read_text(&pem)?;
        let facts = Facts::read(&pem).map_err(|problem| damaged(&pem, problem))?;
        let Some((cluster, Kind::Authority, name)) = facts.identity else {
            return Err(damaged(
                &pem,
                "it is not an authority created by `leasehold cert init`".to_owned(),
            ));
        };
        if name != port.name() {
            return Err(damaged(&pem, format!("it is the {name} authority")));
        }
        if let Some(problem) = key_exposed(&key_path) {
            return Err(damaged(&key_path, problem));
        }
        let key = KeyPair::from_pem(&read_text(&key_path)?)
            .map_err(|error| damaged(&key_path, error.to_string()))?;
        if key.subject_public_key_info() != facts.public_key {
            return Err(damaged(
                &key_path,
                format!("it is not the key of {}", pem.display()),
            ));
        }
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)
            .map_err(|error| damaged(&pem, error.to_string()))?;
        Ok((
            cluster,
            Self {
                issuer,
                certificate_pem,
                end: facts.end,
            },
        ))
    }

    fn issue(
        &self,
        name: &str,
        names: Vec<SanType>,
        usages: &[ExtendedKeyUsagePurpose],
        validity: Validity,
    ) -> Result<Identity, PkiError> {
        if self.end <= validity.now {
            return Err(PkiError::AuthorityExpired);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.not_before = validity.begin;
        params.not_after = validity.end.min(self.end);
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

fn draw_cluster_id() -> Result<ClusterId, PkiError> {
    let random = rustls::crypto::ring::default_provider().secure_random;
    let mut bytes = [0; 16];
    random
        .fill(&mut bytes)
        .map_err(|_| PkiError::NoRandomness)?;
    Ok(ClusterId(u128::from_be_bytes(bytes)))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn uri(cluster: ClusterId, kind: Kind, name: &str) -> Result<SanType, PkiError> {
    let text = format!("leasehold://{cluster}/{}/{name}", kind.name());
    Ok(SanType::URI(text.try_into()?))
}

fn parse_san(san: &str) -> Result<SanType, PkiError> {
    let invalid = || PkiError::InvalidSan {
        san: san.to_owned(),
    };
    if let Ok(address) = san.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    // A leading `*.` is allowed in certificates; what follows must be a host name.
    let host = san.strip_prefix("*.").unwrap_or(san);
    rustls_pki_types::DnsName::try_from(host).map_err(|_| invalid())?;
    Ok(SanType::DnsName(
        san.to_owned().try_into().map_err(|_| invalid())?,
    ))
}

fn create_directory(path: &Path) -> Result<(), PkiError> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|source| PkiError::Io {
            action: "create",
            path: path.to_owned(),
            source,
        })
}

/// Writes beside the file and renames, so that a reader sees the old text or the new one.
fn write_whole(path: &Path, text: &str, mode: u32) -> Result<(), PkiError> {
    durable::replace_with_mode(path, text.as_bytes(), mode).map_err(|source| PkiError::Io {
        action: "write",
        path: path.to_owned(),
        source,
    })
}

fn read_text(path: &Path) -> Result<String, PkiError> {
    fs::read_to_string(path).map_err(|source| PkiError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::server::WebPkiClientVerifier;
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    pub(super) fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + NOW
    }

    pub(super) fn authority() -> Authority {
        Authority::create(None, AUTHORITY_LIFE, now()).expect("authorities can be made")
    }

    pub(super) fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("what we write is PEM")
    }

    fn roots(ca_pem: &str) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(der(ca_pem)).expect("an authority is a root");
        Arc::new(roots)
    }

    /// Whether a server that trusts `ca` lets this client certificate in.
    fn accepted_as_client(ca: &str, certificate: &str, at: Duration) -> bool {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        WebPkiClientVerifier::builder_with_provider(roots(ca), provider)
            .build()
            .expect("one root is enough")
            .verify_client_cert(&der(certificate), &[], UnixTime::since_unix_epoch(at))
            .is_ok()
    }

    /// Whether a client that trusts `ca` and calls for `name` accepts this server certificate.
    fn accepted_as_server(ca: &str, certificate: &str, name: &str, at: Duration) -> bool {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let name = ServerName::try_from(name.to_owned()).expect("a host name");
        WebPkiServerVerifier::builder_with_provider(roots(ca), provider)
            .build()
            .expect("one root is enough")
            .verify_server_cert(
                &der(certificate),
                &[],
                &name,
                &[],
                UnixTime::since_unix_epoch(at),
            )
            .is_ok()
    }

    #[test]
    fn each_certificate_opens_its_own_doors_and_no_other() {
        let authority = authority();
        let node = authority
            .issue_node("n1", &["10.0.0.1".to_owned()], LEAF_LIFE, now())
            .unwrap();
        let client = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        let name = server_name(authority.cluster_id());
        let (peer_ca, client_ca) = (authority.peer_ca_pem(), authority.client_ca_pem());
        // certificate, accepted as client on (peer, client) port, as server by (peer, client).
        let table = [
            ("peer", &node.peer, [true, false, true, false]),
            ("server", &node.server, [false, false, false, true]),
            ("client", &client, [false, true, false, false]),
        ];
        for (which, identity, expected) in table {
            let pem = &identity.certificate_pem;
            let found = [
                accepted_as_client(peer_ca, pem, NOW),
                accepted_as_client(client_ca, pem, NOW),
                accepted_as_server(peer_ca, pem, &name, NOW),
                accepted_as_server(client_ca, pem, &name, NOW),
            ];
            assert_eq!(found, expected, "{which}");
        }
    }

    #[test]
    fn a_certificate_holds_in_its_time_and_for_its_cluster_only() {
        let authority = authority();
        let other = authority_of_another_cluster();
        let node = authority.issue_node("n1", &[], LEAF_LIFE, now()).unwrap();
        let pem = &node.peer.certificate_pem;
        let ca = authority.peer_ca_pem();
        let name = server_name(authority.cluster_id());
        let minute = Duration::from_secs(60);
        assert!(accepted_as_server(ca, pem, &name, NOW - 50 * minute));
        assert!(!accepted_as_server(ca, pem, &name, NOW - 70 * minute));
        assert!(accepted_as_client(ca, pem, NOW + LEAF_LIFE - minute));
        assert!(!accepted_as_client(ca, pem, NOW + LEAF_LIFE + minute));
        assert!(!accepted_as_client(other.peer_ca_pem(), pem, NOW));
        let other_name = server_name(other.cluster_id());
        assert!(!accepted_as_server(ca, pem, &other_name, NOW));
    }

    fn authority_of_another_cluster() -> Authority {
        authority()
    }

    #[test]
    fn a_node_certificate_says_who_it_is_once_and_lists_what_was_asked_for() {
        let authority = authority();
        let sans = ["db1.example.org".to_owned(), "fd00::1".to_owned()];
        let node = authority.issue_node("n1", &sans, LEAF_LIFE, now()).unwrap();
        for identity in [&node.peer, &node.server] {
            let facts = Facts::parse(der(&identity.certificate_pem)).unwrap();
            let expected = (authority.cluster_id(), Kind::Node, "n1".to_owned());
            assert_eq!(facts.identity, Some(expected));
            assert_eq!(facts.uris, 1);
            let internal = server_name(authority.cluster_id());
            assert_eq!(facts.dns_names, [internal, "db1.example.org".to_owned()]);
            assert_eq!(facts.addresses, ["fd00::1"]);
        }
    }

    #[test]
    fn a_certificate_never_outlives_its_authority() {
        let day = Duration::from_secs(86_400);
        let authority = Authority::create(None, day, now()).unwrap();
        let client = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        let facts = Facts::parse(der(&client.certificate_pem)).unwrap();
        assert_eq!(facts.end, OffsetDateTime::from(now() + day));
        let late = authority.issue_client("app", LEAF_LIFE, now() + day);
        assert!(matches!(late, Err(PkiError::AuthorityExpired)));
    }

    #[test]
    fn two_clusters_never_share_an_id_and_a_given_one_is_kept() {
        assert_ne!(authority().cluster_id(), authority().cluster_id());
        let given = ClusterId(42);
        let authority = Authority::create(Some(given), AUTHORITY_LIFE, now()).unwrap();
        assert_eq!(authority.cluster_id(), given);
    }

    #[test]
    fn what_is_saved_loads_and_signs_the_same_way() {
        let directory = tempfile::tempdir().unwrap();
        let made = authority();
        made.save(&directory.path().join("pki")).unwrap();
        let loaded = Authority::load(&directory.path().join("pki")).unwrap();
        assert_eq!(loaded.cluster_id(), made.cluster_id());
        let node = loaded.issue_node("n1", &[], LEAF_LIFE, now()).unwrap();
        let name = server_name(made.cluster_id());
        let pem = &node.peer.certificate_pem;
        assert!(accepted_as_server(made.peer_ca_pem(), pem, &name, NOW));
        assert!(accepted_as_client(made.peer_ca_pem(), pem, NOW));
    }

    #[test]
    fn authorities_are_never_overwritten_not_even_one_of_them() {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("client-ca.key");
        fs::write(&key, "precious").unwrap();
        let error = authority().save(directory.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "{} exists already: a new authority would invalidate every certificate that the \
                 old one signed; choose another directory with --out, or move the old files away \
                 first",
                key.display()
            )
        );
        assert_eq!(fs::read_to_string(&key).unwrap(), "precious");
        assert!(!directory.path().join(PEER_CA_FILE).exists());
    }

    #[test]
    fn keys_are_for_their_owner_alone_and_nothing_prints_them() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki");
        let authority = authority();
        authority.save(&pki).unwrap();
        let client = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        let files = IdentityFiles::client(&pki, "app");
        files.write(&client, false).unwrap();
        for key in ["peer-ca.key", "client-ca.key", "app.key"] {
            let mode = fs::metadata(pki.join(key)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        let secret = client.key_pem.lines().nth(1).unwrap();
        assert!(!format!("{client:?}").contains(secret));

        fs::set_permissions(pki.join("peer-ca.key"), fs::Permissions::from_mode(0o644)).unwrap();
        let exposed = Authority::load(&pki).unwrap_err();
        assert!(exposed.to_string().contains("chmod 600"), "{exposed}");
    }

    #[test]
    fn a_certificate_is_replaced_only_when_asked() {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority();
        let files = IdentityFiles::client(directory.path(), "app");
        let first = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        let second = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        files.write(&first, false).unwrap();
        let refused = files.write(&second, false);
        assert!(matches!(refused, Err(PkiError::CertificateExists { .. })));
        assert_eq!(fs::read_to_string(&files.key).unwrap(), first.key_pem);
        files.write(&second, true).unwrap();
        assert_eq!(fs::read_to_string(&files.key).unwrap(), second.key_pem);
    }

    #[test]
    fn wrong_names_lives_and_directories_are_refused_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority();
        let say = |error: PkiError| error.to_string();
        assert_eq!(
            say(authority.issue_client("a/b", LEAF_LIFE, now()).unwrap_err()),
            "`a/b` is not a valid name for a node or client: use 1 to 64 of a-z A-Z 0-9 . _ -, \
             starting with a letter or digit"
        );
        let reserved = authority.issue_client("peer-ca", LEAF_LIFE, now());
        assert!(matches!(reserved, Err(PkiError::ReservedName { .. })));
        assert_eq!(
            say(authority
                .issue_node("n1", &["http://x".to_owned()], LEAF_LIFE, now())
                .unwrap_err()),
            "`http://x` is neither an IP address nor a host name: give --san HOST or --san IP"
        );
        assert_eq!(
            say(authority
                .issue_client("app", Duration::ZERO, now())
                .unwrap_err()),
            "a certificate cannot be valid for 0 days: give --days between 1 and 3650"
        );
        let missing = say(Authority::load(directory.path()).unwrap_err());
        assert!(missing.contains("create the authorities first with `leasehold cert init --out"));
    }

    #[test]
    fn authorities_of_two_clusters_in_one_directory_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("1"), directory.path().join("2"));
        authority().save(&one).unwrap();
        authority().save(&two).unwrap();
        for file in ["client-ca.pem", "client-ca.key"] {
            fs::copy(two.join(file), one.join(file)).unwrap();
        }
        let error = Authority::load(&one).unwrap_err().to_string();
        assert!(
            error.contains("keep the authorities of each cluster"),
            "{error}"
        );
        fs::copy(two.join("peer-ca.key"), one.join("peer-ca.key")).unwrap();
        let error = Authority::load(&one).unwrap_err().to_string();
        assert!(error.contains("it is not the key of"), "{error}");
    }
}
