//! The identity in a certificate: its one URI name of our form, and nothing else.
//!
//! `leasehold://<cluster>/node/<name>` or `leasehold://<cluster>/client/<name>`. The common name is
//! ignored. A certificate with two such names is rejected as ambiguous. Where SPIFFE ids are accepted,
//! a client's certificate may have one instead ([`spiffe`](super::spiffe)).

use std::fmt;

use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::spiffe::{SpiffeError, SpiffeId, SpiffeUsers};
use crate::types::{ClusterId, is_name};

const SCHEME: &str = "leasehold://";

/// The identity of the other side of a connection, by certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerIdentity {
    /// The cluster that the certificate was issued for.
    pub cluster_id: ClusterId,
    /// The kind of the identity, with its name.
    pub kind: IdentityKind,
}

/// The kind of identity in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IdentityKind {
    /// The node of this name.
    Node(String),
    /// The client of this name.
    Client(String),
    /// The client with this SPIFFE id.
    Workload(Box<Workload>),
}

/// A client with a SPIFFE id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// The user it stands for.
    pub user: String,
    /// The id.
    pub id: SpiffeId,
}

/// Why a certificate has no acceptable identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is not an X.509 certificate.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It has no URI name of our form.
    #[error(
        "the certificate has no name of the form leasehold://CLUSTER/node/NAME or \
         leasehold://CLUSTER/client/NAME: issue it with `leasehold cert issue`"
    )]
    Missing,
    /// It has more than one.
    #[error("the certificate has more than one leasehold:// name, and must have exactly one")]
    Ambiguous,
    /// Its name does not follow the form.
    #[error("the certificate's name {0:?} is not of the form leasehold://CLUSTER/node/NAME")]
    Malformed(String),
    /// It has a SPIFFE id, and no authority that this side trusts names a cluster.
    #[error(
        "the certificate has a SPIFFE id, which names no cluster, and so has none of the trusted \
         authorities: trust the client-ca.pem that `leasehold cert init` has made"
    )]
    NoCluster,
    /// It has a SPIFFE id that is not accepted.
    #[error(transparent)]
    Spiffe(Box<SpiffeError>),
    /// A client where a node is needed, or the other way round.
    #[error("the certificate is for {0}, which may not connect here")]
    WrongKind(PeerIdentity),
    /// An identity that is not among the allowed ones.
    #[error("{0} is not listed in tls.client.allowed_sans or tls.peer.allowed_sans")]
    NotAllowed(PeerIdentity),
    /// The certificate is of another cluster.
    #[error("the certificate belongs to cluster {theirs}, but this is cluster {ours}")]
    ForeignCluster {
        /// This side's cluster.
        ours: ClusterId,
        /// The certificate's cluster.
        theirs: ClusterId,
    },
}

impl From<SpiffeError> for IdentityError {
    fn from(error: SpiffeError) -> Self {
        Self::Spiffe(Box::new(error))
    }
}

impl PeerIdentity {
    /// The node `name` of `cluster_id`.
    pub fn node(cluster_id: ClusterId, name: impl Into<String>) -> Self {
        Self {
            cluster_id,
            kind: IdentityKind::Node(name.into()),
        }
    }

    /// The client `name` of `cluster_id`.
    pub fn client(cluster_id: ClusterId, name: impl Into<String>) -> Self {
        Self {
            cluster_id,
            kind: IdentityKind::Client(name.into()),
        }
    }

    /// The name, without the kind.
    pub fn name(&self) -> &str {
        match &self.kind {
            IdentityKind::Node(name) | IdentityKind::Client(name) => name,
            IdentityKind::Workload(workload) => &workload.user,
        }
    }

    /// Whether it is a node's.
    pub fn is_node(&self) -> bool {
        matches!(self.kind, IdentityKind::Node(_))
    }

    /// Parses the form that [`fmt::Display`] writes, unless it is a SPIFFE id.
    pub fn parse(uri: &str) -> Option<Self> {
        let mut parts = uri.strip_prefix(SCHEME)?.split('/');
        let (cluster, kind, name) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || !is_name(name) {
            return None;
        }
        let cluster_id = ClusterId::parse(cluster)?;
        match kind {
            "node" => Some(Self::node(cluster_id, name)),
            "client" => Some(Self::client(cluster_id, name)),
            _ => None,
        }
    }

    /// Finds the identity in a certificate (DER).
    ///
    /// # Errors
    /// There is none, or more than one.
    pub fn of_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| IdentityError::Unreadable)?;
        let mut found = None;
        for name in alternative_names(&certificate) {
            let GeneralName::URI(uri) = name else {
                continue;
            };
            if !uri.starts_with(SCHEME) {
                continue;
            }
            let identity =
                Self::parse(uri).ok_or_else(|| IdentityError::Malformed((*uri).to_string()))?;
            if found.replace(identity).is_some() {
                return Err(IdentityError::Ambiguous);
            }
        }
        found.ok_or(IdentityError::Missing)
    }

    /// As [`PeerIdentity::of_certificate`], of a client of `cluster_id`, where SPIFFE ids are
    /// accepted as `users` say. Such an id, well formed or not, is the certificate's only name.
    ///
    /// # Errors
    /// There is no identity, more than one, or one that is not accepted.
    pub fn of_client(
        der: &[u8],
        cluster_id: ClusterId,
        users: Option<&SpiffeUsers>,
    ) -> Result<Self, IdentityError> {
        let Some(users) = users else {
            return Self::of_certificate(der);
        };
        match spiffe_id(der)? {
            None => Self::of_certificate(der),
            Some(id) => Ok(Self {
                cluster_id,
                kind: IdentityKind::Workload(Box::new(Workload {
                    user: users.user(&id)?,
                    id,
                })),
            }),
        }
    }
}

/// The SPIFFE id of a certificate (DER), if it has one.
///
/// # Errors
/// It breaks SPIFFE's rules, has other URI names beside it, or its names cannot be read.
pub(crate) fn spiffe_id(der: &[u8]) -> Result<Option<SpiffeId>, IdentityError> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| IdentityError::Unreadable)?;
    if !has_readable_names(&certificate) {
        return Err(SpiffeError::UnreadableNames.into());
    }
    let uris: Vec<&str> = alternative_names(&certificate)
        .filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        })
        .collect();
    if !uris.iter().any(|uri| SpiffeId::is_meant_by(uri)) {
        return Ok(None);
    }
    match uris.as_slice() {
        [uri] => Ok(Some(SpiffeId::parse(uri)?)),
        several => Err(SpiffeError::SeveralNames(several.len()).into()),
    }
}

/// Whether every alternative name can be read: one that cannot may be a SPIFFE id.
fn has_readable_names(certificate: &X509Certificate<'_>) -> bool {
    let is_readable = |extension: &X509Extension<'_>| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => !names
            .general_names
            .iter()
            .any(|name| matches!(name, GeneralName::Invalid(..))),
        _ => extension.oid != OID_X509_EXT_SUBJECT_ALT_NAME,
    };
    certificate.extensions().iter().all(is_readable)
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.kind {
            IdentityKind::Node(name) => ("node", name),
            IdentityKind::Client(name) => ("client", name),
            IdentityKind::Workload(workload) => return write!(f, "{}", workload.id),
        };
        write!(f, "{SCHEME}{}/{kind}/{name}", self.cluster_id)
    }
}

/// The DNS name in the certificate of every node of a cluster, whatever its address.
pub(crate) fn server_name(cluster_id: ClusterId) -> String {
    format!("{cluster_id}.leasehold.internal")
}

/// Whether the certificate carries the DNS name `name`.
pub(crate) fn has_dns_name(certificate: &X509Certificate<'_>, name: &str) -> bool {
    alternative_names(certificate)
        .any(|candidate| matches!(candidate, GeneralName::DNSName(dns) if *dns == name))
}

/// The cluster of an authority's certificate (DER), if that names one.
pub(crate) fn cluster_of_authority(der: &[u8]) -> Option<ClusterId> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    alternative_names(&certificate).find_map(|name| {
        let GeneralName::URI(uri) = name else {
            return None;
        };
        let (cluster, rest) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        rest.strip_prefix("ca/")?;
        ClusterId::parse(cluster)
    })
}

fn alternative_names<'a>(
    certificate: &'a X509Certificate<'a>,
) -> impl Iterator<Item = &'a GeneralName<'a>> {
    certificate
        .extensions()
        .iter()
        .filter_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        })
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_and_nothing_else_does() {
        let id = ClusterId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        for identity in [
            PeerIdentity::node(id, "n1"),
            PeerIdentity::client(id, "a.b-c_d"),
        ] {
            assert_eq!(PeerIdentity::parse(&identity.to_string()), Some(identity));
        }
        let cluster = id.to_string();
        for bad in [
            "leasehold://x/node/n1".to_string(),
            format!("leasehold://{cluster}/node/"),
            format!("leasehold://{cluster}/node"),
            format!("leasehold://{cluster}/admin/n1"),
            format!("leasehold://{cluster}/node/n1/n2"),
            format!("leasehold://{cluster}/node/n 1"),
            format!("leasehold://{cluster}/node/.n1"),
            format!("leasehold://{cluster}/node/{}", "n".repeat(65)),
            format!("https://{cluster}/node/n1"),
        ] {
            assert_eq!(PeerIdentity::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_certificate_identifies_nobody() {
        for bytes in [&b""[..], b"nonsense", &[0x30, 0x82, 0xff, 0xff, 0]] {
            assert_eq!(
                PeerIdentity::of_certificate(bytes),
                Err(IdentityError::Unreadable)
            );
        }
    }
}
