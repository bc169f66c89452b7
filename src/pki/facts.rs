//! What a certificate says, as far as leasehold cares.

use std::net::IpAddr;
use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::names::Kind;
use crate::types::{ClusterId, is_name};

/// The name of the client in a certificate; `None` if it is none of a client, or cannot be read.
pub fn client_name(path: &Path) -> Option<String> {
    let identity = Facts::read(path).ok()?.identity;
    identity
        .filter(|(_, kind, _)| *kind == Kind::Client)
        .map(|(_, _, name)| name)
}

/// What `check` and `Authority::load` need to know of a certificate.
pub(super) struct Facts {
    pub(super) der: CertificateDer<'static>,
    pub(super) identity: Option<(ClusterId, Kind, String)>,
    /// URIs of ours; good certificates have one.
    pub(super) uris: usize,
    pub(super) dns_names: Vec<String>,
    pub(super) addresses: Vec<String>,
    pub(super) server_auth: bool,
    pub(super) client_auth: bool,
    pub(super) is_ca: bool,
    pub(super) begin: OffsetDateTime,
    pub(super) end: OffsetDateTime,
    pub(super) public_key: Vec<u8>,
    pub(super) common_name: String,
}

impl Facts {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let der = CertificateDer::from_pem_file(path)
            .map_err(|error| format!("no certificate can be read from it ({error})"))?;
        Self::parse(der)
    }

    pub(super) fn parse(der: CertificateDer<'static>) -> Result<Self, String> {
        let bytes = der.clone();
        let (rest, certificate) = X509Certificate::from_der(&bytes)
            .map_err(|error| format!("the certificate is damaged ({error})"))?;
        if !rest.is_empty() {
            return Err("the certificate is damaged (bytes after its end)".to_owned());
        }
        let extension = |error| format!("the certificate is damaged ({error})");
        let usages = certificate.extended_key_usage().map_err(extension)?;
        let mut facts = Self {
            der,
            identity: None,
            uris: 0,
            dns_names: Vec::new(),
            addresses: Vec::new(),
            server_auth: usages
                .as_ref()
                .is_some_and(|usages| usages.value.server_auth),
            client_auth: usages
                .as_ref()
                .is_some_and(|usages| usages.value.client_auth),
            is_ca: certificate.is_ca(),
            begin: certificate.validity().not_before.to_datetime(),
            end: certificate.validity().not_after.to_datetime(),
            public_key: certificate.public_key().raw.to_vec(),
            common_name: certificate
                .subject()
                .iter_common_name()
                .find_map(|name| name.as_str().ok())
                .unwrap_or("(no name)")
                .to_owned(),
        };
        let names = certificate.subject_alternative_name().map_err(extension)?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::URI(uri) if uri.starts_with("leasehold://") => {
                    facts.uris += 1;
                    facts.identity = parse_uri(uri);
                }
                GeneralName::DNSName(host) => facts.dns_names.push((*host).to_owned()),
                GeneralName::IPAddress(octets) => facts.addresses.push(address(octets)),
                _ => {}
            }
        }
        Ok(facts)
    }

    /// The host names and addresses in it, but for `internal`, the cluster's own name.
    pub(super) fn sans(&self, internal: &str) -> Vec<String> {
        let hosts = self.dns_names.iter().filter(|host| *host != internal);
        hosts.chain(&self.addresses).cloned().collect()
    }

    pub(super) fn is_signed_by(&self, authority: &Self) -> bool {
        let signed = || {
            let (_, certificate) = X509Certificate::from_der(&self.der).ok()?;
            let (_, signer) = X509Certificate::from_der(&authority.der).ok()?;
            (certificate.issuer() == signer.subject()).then_some(())?;
            certificate.verify_signature(Some(signer.public_key())).ok()
        };
        authority.is_ca && signed().is_some()
    }
}

fn address(octets: &[u8]) -> String {
    if let Ok(four) = <[u8; 4]>::try_from(octets) {
        IpAddr::from(four).to_string()
    } else if let Ok(sixteen) = <[u8; 16]>::try_from(octets) {
        IpAddr::from(sixteen).to_string()
    } else {
        "(damaged address)".to_owned()
    }
}

/// What one of our URIs says, or `None` if it is not one of ours.
fn parse_uri(uri: &str) -> Option<(ClusterId, Kind, String)> {
    let (cluster, rest) = uri.strip_prefix("leasehold://")?.split_once('/')?;
    let (kind, name) = rest.split_once('/')?;
    let kind = [Kind::Authority, Kind::Node, Kind::Client]
        .into_iter()
        .find(|known| known.name() == kind)?;
    is_name(name).then_some((ClusterId::parse(cluster)?, kind, name.to_owned()))
}
