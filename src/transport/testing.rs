//! For tests: an authority that issues every certificate requested, valid or not, and what a node says to who
//! connects.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sync::Mutex;
use crate::transport::{Introduction, PeerIdentity, Tls};
use crate::types::{BootstrapId, ClusterId};
use crate::wire::client::KnownLeader;

/// A certificate authority for tests.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate and its key, as PEM text.
pub(crate) struct IssuedCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2100, 1, 1);
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A certificate with these names, valid in these years.
    pub(crate) fn issue_with(
        &self,
        uris: &[&str],
        dns: &[&str],
        years: (i32, i32),
    ) -> IssuedCertificate {
        let mut params = CertificateParams::default();
        for uri in uris {
            params
                .subject_alt_names
                .push(SanType::URI((*uri).try_into().unwrap()));
        }
        for name in dns {
            params
                .subject_alt_names
                .push(SanType::DnsName((*name).try_into().unwrap()));
        }
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        IssuedCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn issue(&self, identity: &PeerIdentity) -> IssuedCertificate {
        let dns = format!("{}.leasehold.internal", identity.cluster_id);
        // Clients get the name too: nothing but the URI may decide what they are.
        self.issue_with(&[&identity.to_string()], &[&dns], (2020, 2100))
    }

    pub(crate) fn tls(&self, identity: &PeerIdentity) -> Tls {
        let issued = self.issue(identity);
        Tls::from_pem(
            self.pem().as_bytes(),
            issued.certificate.as_bytes(),
            issued.key.as_bytes(),
        )
        .unwrap()
    }

    pub(crate) fn node(&self, cluster_id: ClusterId, name: &str) -> Tls {
        self.tls(&PeerIdentity::node(cluster_id, name))
    }

    pub(crate) fn client(&self, cluster_id: ClusterId, name: &str) -> Tls {
        self.tls(&PeerIdentity::client(cluster_id, name))
    }
}

/// A node that says of itself and its cluster what a test has told it.
#[derive(Debug, Default)]
pub(crate) struct Says {
    bootstrap: Option<BootstrapId>,
    leader: Mutex<Option<KnownLeader>>,
    serves_reads: AtomicBool,
}

impl Says {
    /// Its cluster has this bootstrap.
    pub(crate) fn comes_from(bootstrap: Option<BootstrapId>) -> Self {
        Self {
            bootstrap,
            ..Self::default()
        }
    }

    /// From here on it says that this one leads.
    pub(crate) fn leads(&self, leader: KnownLeader) {
        *self.leader.lock() = Some(leader);
    }

    /// From here on it says that it asks for read leases.
    pub(crate) fn asks_for_read_leases(&self) {
        self.serves_reads.store(true, Ordering::Relaxed);
    }
}

impl Introduction for Says {
    fn bootstrap(&self) -> Option<BootstrapId> {
        self.bootstrap
    }

    fn leader(&self) -> Option<KnownLeader> {
        self.leader.lock().clone()
    }

    fn serves_reads(&self) -> bool {
        self.serves_reads.load(Ordering::Relaxed)
    }
}
