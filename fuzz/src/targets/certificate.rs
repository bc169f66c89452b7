//! Certificates: who they are for, whether they can be used, and what `cert check` says of them.

use std::fs;
use std::time::{Duration, SystemTime};

use leasehold::pki;
use leasehold::transport::{PeerIdentity, Tls};
use leasehold::types::ClusterId;

use super::scratch::Scratch;
use super::trace::say;

/// One byte says which reader, the rest is what it reads.
pub fn certificates(data: &[u8]) {
    let Some((reader, rest)) = data.split_first() else {
        return;
    };
    match reader % 4 {
        0 => identity_of_certificate(rest),
        1 => identity_of_text(&String::from_utf8_lossy(rest)),
        2 => tls(rest),
        _ => check(rest),
    }
}

/// A certificate in binary form, as it comes with a handshake.
fn identity_of_certificate(der: &[u8]) {
    match PeerIdentity::of_certificate(der) {
        Ok(identity) => reads_back(&identity),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn identity_of_text(text: &str) {
    if let Some(identity) = PeerIdentity::parse(text) {
        reads_back(&identity);
    }
    if let Some(cluster) = ClusterId::parse(text) {
        assert_eq!(ClusterId::parse(&cluster.to_string()), Some(cluster));
    }
}

/// There is one way to write an identity, and it means this one.
fn reads_back(identity: &PeerIdentity) {
    let written = identity.to_string();
    assert_eq!(PeerIdentity::parse(&written).as_ref(), Some(identity));
    assert!(written.bytes().all(|byte| byte.is_ascii_graphic()));
}

/// Authority, certificate and key in text form, with a zero byte between.
fn tls(data: &[u8]) {
    let mut parts = data.splitn(3, |byte| *byte == 0);
    let mut part = || parts.next().unwrap_or_default();
    let (ca, certificate, key) = (part(), part(), part());
    match Tls::from_pem(ca, certificate, key) {
        Ok(tls) => reads_back(tls.identity()),
        Err(error) => say(format_args!("{error}")),
    }
}

/// A file, of a certificate or (with a first byte that is odd) of a key.
fn check(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let scratch = Scratch::new(if kind % 2 == 0 { "pem" } else { "key" });
    fs::write(scratch.path(), rest).expect("a file can be written");
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    for report in pki::check(&[scratch.path().to_owned()], now) {
        say(format_args!("{report}"));
        assert!(report.is_ok() || !report.problems.is_empty());
    }
}
