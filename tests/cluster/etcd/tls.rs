//! Whom the port lets in under TLS, and what the log says of those that it does not.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::EtcdCluster;
use super::differential::{Etcd, etcd};
use crate::harness::{PATIENCE, eventually};

const LOGGED: (&str, &str) = ("LEASEHOLD_LOG_FILTER", "info");

/// What a client shows.
pub(crate) struct Shown(CertificateDer<'static>, PrivateKeyDer<'static>);

impl Shown {
    pub(crate) fn of(certificate: &rcgen::Certificate, key: &rcgen::KeyPair) -> Self {
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Self(certificate.der().clone(), key)
    }
}

/// What was issued for `name`.
fn issued(cluster: &EtcdCluster, name: &str) -> Shown {
    let file = |kind: &str| cluster.cluster.pki.file(&format!("{name}.{kind}"));
    Shown(
        CertificateDer::from_pem_file(file("pem")).unwrap(),
        PrivateKeyDer::from_pem_file(file("key")).unwrap(),
    )
}

/// A certificate for this host, and its key.
pub(crate) fn certificate_for(
    authority: &rcgen::Issuer<'_, rcgen::KeyPair>,
    host: &str,
) -> (rcgen::Certificate, rcgen::KeyPair) {
    let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    (params.signed_by(&key, authority).unwrap(), key)
}

/// A page as a client reads it that knows these versions and shows this, and the version that both took.
fn page(
    cluster: &EtcdCluster,
    versions: &[&'static SupportedProtocolVersion],
    shown: Option<Shown>,
) -> std::io::Result<(Option<ProtocolVersion>, String)> {
    let ca = cluster.cluster.pki.file("client-ca.pem");
    page_in(versions, cluster.ports[0], Path::new(&ca), shown)
}

/// The same at a port of which this is the authority.
pub(crate) fn page_at(
    port: SocketAddr,
    ca: &Path,
    shown: Option<Shown>,
) -> std::io::Result<(Option<ProtocolVersion>, String)> {
    page_in(&[&TLS12, &TLS13], port, ca, shown)
}

fn page_in(
    versions: &[&'static SupportedProtocolVersion],
    port: SocketAddr,
    ca: &Path,
    shown: Option<Shown>,
) -> std::io::Result<(Option<ProtocolVersion>, String)> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(ca).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let config = match shown {
        Some(Shown(certificate, key)) => builder
            .with_client_auth_cert(vec![certificate], key)
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::from(port.ip());
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(port)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut stream = StreamOwned::new(connection, stream);
    write!(
        stream,
        "GET /version HTTP/1.1\r\nHost: {port}\r\nConnection: close\r\n\r\n"
    )?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok((stream.conn.protocol_version(), page))
}

/// Waits until the log names the refusal of a client for this reason.
fn is_said(cluster: &EtcdCluster, reason: &str) {
    eventually(reason, || {
        let said = cluster.cluster.nodes[0].log_text();
        let mut lines = said.lines();
        lines
            .any(|line| line.contains("client of the etcd port refused") && line.contains(reason))
            .then_some(())
    });
}

/// What a client of old says first: that it knows TLS 1.1 and no later version.
fn hello_of_tls_11() -> Vec<u8> {
    let ciphers = [0xc0, 0x14, 0xc0, 0x0a, 0x00, 0x35, 0x00, 0x2f];
    let body = [
        &[3, 2][..],
        &[7; 32],
        &[0, 0, 8],
        &ciphers,
        &[1, 0],
        &[0, 0],
    ]
    .concat();
    let length = u8::try_from(body.len()).unwrap();
    let message = [&[1, 0, 0, length][..], &body].concat();
    [&[22, 3, 1, 0, length + 4][..], &message].concat()
}

#[test]
fn tls_1_2_and_1_3_are_taken_and_an_older_one_is_refused_with_a_line_in_the_log() {
    let cluster = EtcdCluster::start(1, &[LOGGED]);
    for (versions, taken) in [
        (&[&TLS12][..], ProtocolVersion::TLSv1_2),
        (&[&TLS13], ProtocolVersion::TLSv1_3),
        (&[&TLS12, &TLS13], ProtocolVersion::TLSv1_3),
    ] {
        let (version, page) = page(&cluster, versions, None).unwrap();
        assert_eq!(version, Some(taken));
        assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    }
    let refused = |port: SocketAddr| {
        let mut stream = TcpStream::connect(port).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&hello_of_tls_11()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    };
    let answer = refused(cluster.ports[0]);
    // A fatal alert.
    assert_eq!((answer[0], answer[5]), (21, 2), "{answer:?}");
    is_said(&cluster, "the client knows neither TLS 1.2 nor 1.3");
}

#[test]
fn a_client_that_is_not_listed_or_whose_certificate_is_another_authority_s_is_refused_with_a_line()
{
    let names = [("LEASEHOLD_TLS_ETCD_ALLOWED_SANS", "good"), LOGGED];
    let mut cluster = EtcdCluster::prepare(1, &names);
    cluster.cluster.pki.issue("--client", "good", &[]);
    cluster.cluster.start_and_settle();
    let both = [&TLS12, &TLS13];
    let served = page(&cluster, &both, Some(issued(&cluster, "good"))).unwrap();
    assert!(served.1.starts_with("HTTP/1.1 200"), "{served:?}");
    let key = rcgen::KeyPair::generate().unwrap();
    let own = rcgen::CertificateParams::new(vec!["good".to_owned()]).unwrap();
    let own = Shown::of(&own.self_signed(&key).unwrap(), &key);
    for (shown, reason) in [
        (
            Some(issued(&cluster, "tester")),
            "not listed in tls.etcd.allowed_sans",
        ),
        (None, "the client's certificate: peer sent no certificates"),
        (
            Some(own),
            "the client's certificate: invalid peer certificate",
        ),
    ] {
        // Under TLS 1.3 it may learn that only as it reads, and then the connection ends.
        if let Ok((_, page)) = page(&cluster, &both, shown) {
            assert_eq!(page, "", "{reason}");
        }
        is_said(&cluster, reason);
    }
}

/// Of a client's certificate, the host that it is for, and whether one of [`LISTED`] is that.
const HOSTS: &[(&str, bool)] = &[
    ("app.of.example", true),
    ("APP.of.example", true),
    ("*.of.example", true),
    ("*.in.deep.example", true),
    ("10.0.0.7", true),
    // A star stands for one label, the first, and for the whole of it.
    ("*.deep.example", false),
    ("*.*.deep.example", false),
    ("one.*.deep.example", false),
    ("*.one.in.deep.example", false),
    ("*pp.of.example", false),
    ("*", false),
    ("an.app.of.example", false),
    ("of.example", false),
    ("*.app.of.example", false),
    ("10.0.0.8", false),
];
const LISTED: [&str; 3] = ["app.of.example", "one.in.deep.example", "10.0.0.7"];

/// As etcd's `client-cert-allowed-hostname` has it: by the hosts that a certificate is for, whatever its common name is.
#[test]
fn a_client_whose_certificate_is_for_a_listed_host_is_let_in() {
    let listed = LISTED.join(",");
    let names = [("LEASEHOLD_TLS_ETCD_ALLOWED_SANS", &*listed), LOGGED];
    let cluster = EtcdCluster::start(1, &names);
    let file = |name: &str| cluster.cluster.pki.file(name);
    let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
    let key = rcgen::KeyPair::from_pem(&read("client-ca.key")).unwrap();
    let authority = rcgen::Issuer::from_ca_cert_pem(&read("client-ca.pem"), key).unwrap();
    let ca = file("client-ca.pem");
    let is_let_in = |port: SocketAddr, host: &str| {
        let (certificate, key) = certificate_for(&authority, host);
        let answered = page_at(port, Path::new(&ca), Some(Shown::of(&certificate, &key)));
        answered.is_ok_and(|(_, page)| page.starts_with("HTTP/1.1 200"))
    };
    for (host, is_listed) in HOSTS {
        assert_eq!(is_let_in(cluster.ports[0], host), *is_listed, "{host}");
    }
    is_said(&cluster, "not listed in tls.etcd.allowed_sans");
    let Some(program) = etcd() else {
        return;
    };
    // Which takes one host, and lets in who is for any.
    let etcds = LISTED.map(|listed| {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = certificate_for(&authority, "127.0.0.1");
        let mut arguments = vec![
            "--client-cert-auth".to_owned(),
            format!("--client-cert-allowed-hostname={listed}"),
            format!("--trusted-ca-file={ca}"),
        ];
        for (name, pem) in [("cert", certificate.pem()), ("key", key.serialize_pem())] {
            let path = folder.path().join(name);
            std::fs::write(&path, pem).unwrap();
            arguments.push(format!("--{name}-file={}", path.display()));
        }
        let etcd = Etcd::start_with(&program, folder, "https", &arguments);
        eventually("etcd that serves who is listed", || {
            is_let_in(etcd.address, listed).then_some(())
        });
        etcd
    });
    for (host, is_listed) in HOSTS {
        let is_taken = |etcd: &Etcd| is_let_in(etcd.address, host);
        assert_eq!(etcds.iter().any(is_taken), *is_listed, "etcd and {host}");
    }
}
