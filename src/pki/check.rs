//! `cert check`: a certificate file looked at as a node would look at it, but all at once and in
//! sentences.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;

use super::facts::Facts;
use super::names::{CLIENT_CA_FILE, Kind, PEER_CA_FILE, key_exposed, server_name};
use crate::types::ClusterId;

/// What makes a file unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// A sentence that says so.
    pub text: String,
    /// What helps against it.
    pub remedy: Remedy,
}

/// What helps against a problem, the least work first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remedy {
    /// Make the file accessible to its owner alone.
    MakePrivate,
    /// This machine's clock is to be set.
    SetClock,
    /// Another file was meant, or this one is not readable.
    NameFile,
    /// The authority that signed it is to be named.
    NameAuthority,
    /// Issue it again.
    Issue,
}

/// What [`check`] found out about one file.
#[derive(Clone, Debug)]
pub struct Report {
    /// The file.
    pub path: PathBuf,
    /// Its identity, as far as it could be read, for example `node n1 of cluster …`.
    pub subject: Option<String>,
    /// The cluster that it says it is of; `None` for keys and for what could not be read.
    pub cluster: Option<ClusterId>,
    /// What is left of its validity; `None` for keys and for what could not be read.
    pub expires_in: Option<Duration>,
    /// The host names and addresses in it, other than the cluster's own.
    pub sans: Vec<String>,
    /// The authority that signed it.
    pub signer: Option<String>,
    /// What makes it unusable; empty when it is good.
    pub problems: Vec<Problem>,
    /// What an operator should do soon.
    pub warnings: Vec<String>,
}

impl Report {
    /// Whether the file can be used as it is.
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }

    /// What has to be done before the file can be used: of several remedies the one that makes the
    /// others needless. `None` if it can be used.
    pub fn remedy(&self) -> Option<Remedy> {
        self.problems.iter().map(|problem| problem.remedy).max()
    }

    fn add(&mut self, remedy: Remedy, text: impl Into<String>) {
        let text = text.into();
        self.problems.push(Problem { text, remedy });
    }

    fn add_exposure(&mut self, key: &Path) {
        if let Some(exposure) = key_exposed(key) {
            self.add(Remedy::MakePrivate, exposure);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_ok() { "ok" } else { "NOT OK" };
        write!(f, "{}: {verdict}", self.path.display())?;
        for problem in &self.problems {
            write!(f, ", {}", problem.text)?;
        }
        for warning in &self.warnings {
            write!(f, ", warning: {warning}")?;
        }
        if let Some(left) = self.expires_in {
            write!(f, ", expires in {}", days_and_hours(left))?;
        }
        if let Some(subject) = &self.subject {
            write!(f, ", {subject}")?;
        }
        if !self.sans.is_empty() {
            write!(f, ", SAN {}", self.sans.join(" "))?;
        }
        if let Some(signer) = &self.signer {
            write!(f, ", signed by {signer}")?;
        }
        Ok(())
    }
}

/// Looks at each file as a node would: validity at `now`, identity, usages, signature, and whether
/// the key beside it (same name, `.key`) is its own and private. Signers are looked for among the
/// files given and beside them.
pub fn check(paths: &[PathBuf], now: SystemTime) -> Vec<Report> {
    let authorities = find_authorities(paths);
    paths
        .iter()
        .map(|path| check_file(path, &authorities, now))
        .collect()
}

/// Authorities among the files given, and beside them where `cert init` puts them.
fn find_authorities(paths: &[PathBuf]) -> Vec<Facts> {
    let mut candidates = paths.to_vec();
    for path in paths {
        candidates.push(path.with_file_name(PEER_CA_FILE));
        candidates.push(path.with_file_name(CLIENT_CA_FILE));
    }
    candidates.sort();
    candidates.dedup();
    candidates
        .iter()
        .filter_map(|path| Facts::read(path).ok())
        .filter(|facts| facts.is_ca)
        .collect()
}

fn check_file(path: &Path, authorities: &[Facts], now: SystemTime) -> Report {
    let mut report = Report {
        path: path.to_owned(),
        subject: None,
        cluster: None,
        expires_in: None,
        sans: Vec::new(),
        signer: None,
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    if path.extension().is_some_and(|extension| extension == "key") {
        check_key_file(path, &mut report);
        return report;
    }
    let facts = match Facts::read(path) {
        Ok(facts) => facts,
        Err(problem) => {
            report.add(Remedy::NameFile, problem);
            return report;
        }
    };
    check_validity(&facts, OffsetDateTime::from(now), &mut report);
    let signer = authorities
        .iter()
        .find(|authority| facts.is_signed_by(authority));
    match signer {
        Some(authority) => report.signer = Some(authority.common_name.clone()),
        None => report.add(
            Remedy::NameAuthority,
            format!(
                "none of the given authorities signed it: name the file of the one that did, or \
                 put it next to this one as {PEER_CA_FILE} or {CLIENT_CA_FILE}"
            ),
        ),
    }
    check_identity(&facts, signer, &mut report);
    check_own_key(path, &facts, &mut report);
    report
}

fn check_validity(facts: &Facts, now: OffsetDateTime, report: &mut Report) {
    if now < facts.begin {
        let begin = date(facts.begin);
        report.add(
            Remedy::SetClock,
            format!("it is not valid before {begin}: check this machine's clock"),
        );
    } else if now >= facts.end {
        let end = date(facts.end);
        report.add(
            Remedy::Issue,
            format!("it expired on {end}: issue a new one with `leasehold cert issue --force`"),
        );
    } else {
        let left = Duration::try_from(facts.end - now).unwrap_or_default();
        report.expires_in = Some(left);
        if left < EXPIRES_SOON {
            report.warnings.push("it expires soon".to_owned());
        }
    }
}

/// Whether what the certificate says it is, what it may be used for and who signed it agree.
fn check_identity(facts: &Facts, signer: Option<&Facts>, report: &mut Report) {
    let Some((cluster, kind, name)) = facts.identity.as_ref().filter(|_| facts.uris == 1) else {
        report.add(
            Remedy::Issue,
            "it has no leasehold identity, or more than one: issue it with `leasehold cert issue`",
        );
        return;
    };
    let internal = server_name(*cluster);
    report.cluster = Some(*cluster);
    report.subject = Some(format!("{} {name} of cluster {cluster}", kind.name()));
    report.sans = facts.sans(&internal);

    let port = signer
        .and_then(|signer| signer.identity.as_ref())
        .map(|(signer_cluster, _, port)| (signer_cluster == cluster, port.as_str()));
    if let Some((false, _)) = port {
        report.add(Remedy::Issue, "its authority belongs to another cluster");
    }
    let may_be = (facts.server_auth, facts.client_auth);
    let fits = match (kind, port.map(|(_, port)| port)) {
        (Kind::Authority, _) => facts.is_ca,
        (Kind::Node, Some("peer")) => may_be == (true, true),
        (Kind::Node, Some("client")) => may_be == (true, false),
        (Kind::Client, Some("client")) => may_be == (false, true),
        // No authority of ours signed it, which has been said already.
        (_, None) => true,
        _ => false,
    };
    if !fits {
        let kind = kind.name();
        report.add(
            Remedy::Issue,
            format!("its key usage does not match a {kind} certificate of this authority"),
        );
    }
    if *kind == Kind::Node && !facts.dns_names.contains(&internal) {
        report.add(Remedy::Issue, format!("it lacks the DNS name {internal}"));
    }
}

/// The key beside the certificate, if there is one.
fn check_own_key(path: &Path, facts: &Facts, report: &mut Report) {
    let key_path = path.with_extension("key");
    let Ok(text) = fs::read_to_string(&key_path) else {
        return;
    };
    match KeyPair::from_pem(&text) {
        Ok(key) if key.subject_public_key_info() == facts.public_key => {}
        Ok(_) => report.add(
            Remedy::Issue,
            format!("{} is the key of another certificate", key_path.display()),
        ),
        Err(error) => report.add(
            Remedy::Issue,
            format!("{} is damaged ({error})", key_path.display()),
        ),
    }
    report.add_exposure(&key_path);
}

fn check_key_file(path: &Path, report: &mut Report) {
    report.subject = Some("private key".to_owned());
    if let Err(error) = PrivateKeyDer::from_pem_file(path) {
        report.add(
            Remedy::NameFile,
            format!("no private key can be read from it ({error})"),
        );
    }
    report.add_exposure(path);
}

fn date(at: OffsetDateTime) -> String {
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02} UTC",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute()
    )
}

/// A time to go as certificates are told of: `12d 3h`.
pub fn days_and_hours(left: Duration) -> String {
    let hours = left.as_secs() / 3_600;
    format!("{}d {}h", hours / 24, hours % 24)
}

/// A certificate with less than this left is worth a warning.
const EXPIRES_SOON: Duration = Duration::from_secs(14 * 86_400);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rcgen::ExtendedKeyUsagePurpose;

    use super::super::tests::{authority, der, now};
    use super::super::{Authority, IdentityFiles, LEAF_LIFE, Validity};
    use super::*;

    /// A directory with the authorities and the files of node `n1` and client `app`.
    fn directory() -> (tempfile::TempDir, Authority) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let authority = authority();
        authority.save(path).unwrap();
        let sans = ["10.0.0.1".to_owned()];
        let node = authority.issue_node("n1", &sans, LEAF_LIFE, now()).unwrap();
        let client = authority.issue_client("app", LEAF_LIFE, now()).unwrap();
        for (files, identity) in [
            (IdentityFiles::peer(path, "n1"), &node.peer),
            (IdentityFiles::server(path, "n1"), &node.server),
            (IdentityFiles::client(path, "app"), &client),
        ] {
            files.write(identity, false).unwrap();
        }
        (directory, authority)
    }

    fn check_one(path: &Path, at: SystemTime) -> String {
        check(&[path.to_owned()], at)[0].to_string()
    }

    #[test]
    fn a_good_directory_checks_out() {
        let (directory, authority) = directory();
        let mut files: Vec<PathBuf> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        let reports = check(&files, now());
        assert_eq!(reports.len(), 10);
        for report in &reports {
            assert!(report.is_ok(), "{report}");
        }
        let path = directory.path().join("n1-peer.pem");
        let cluster = authority.cluster_id();
        assert_eq!(
            check_one(&path, now()),
            format!(
                "{}: ok, expires in 90d 0h, node n1 of cluster {cluster}, SAN 10.0.0.1, signed by \
                 leasehold peer ca {cluster}",
                path.display()
            )
        );
    }

    #[test]
    fn an_expired_a_future_and_a_soon_expiring_certificate_are_told_apart() {
        let (directory, _) = directory();
        let path = directory.path().join("app.pem");
        let expired = check_one(&path, now() + LEAF_LIFE);
        assert!(
            expired.contains("NOT OK, it expired on 2027-04-15 08:00 UTC"),
            "{expired}"
        );
        let future = check_one(&path, now() - Duration::from_secs(86_400));
        assert!(
            future.contains("NOT OK, it is not valid before"),
            "{future}"
        );
        let soon = check_one(&path, now() + LEAF_LIFE - Duration::from_secs(86_400));
        assert!(soon.contains("ok, warning: it expires soon"), "{soon}");
    }

    #[test]
    fn a_certificate_of_another_authority_or_with_another_key_is_found() {
        let (directory, _) = directory();
        let (foreign, _) = self::directory();
        let path = directory.path();
        fs::copy(foreign.path().join("app.pem"), path.join("app.pem")).unwrap();
        let report = check_one(&path.join("app.pem"), now());
        assert!(
            report.contains("none of the given authorities signed it"),
            "{report}"
        );
        assert!(
            report.contains("app.key is the key of another certificate"),
            "{report}"
        );
    }

    #[test]
    fn a_certificate_that_says_one_thing_and_may_do_another_is_found() {
        let (directory, authority) = directory();
        // A client's name with a peer's usages, signed by the peer authority: it would let a
        // client in as a node.
        let names = authority.names(Kind::Client, "app", &[]).unwrap();
        let usages = &[ExtendedKeyUsagePurpose::ClientAuth];
        let validity = Validity::new(LEAF_LIFE, now()).unwrap();
        let wrong = authority
            .peer
            .issue("app", names, usages, validity)
            .unwrap();
        let files = IdentityFiles::client(directory.path(), "app");
        files.write(&wrong, true).unwrap();
        let report = check_one(&files.certificate, now());
        assert!(
            report.contains("its key usage does not match a client certificate"),
            "{report}"
        );
    }

    #[test]
    fn exposed_keys_and_files_that_are_no_certificates_are_found() {
        let (directory, _) = directory();
        let key = directory.path().join("app.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        for path in [key, directory.path().join("app.pem")] {
            let report = check_one(&path, now());
            assert!(report.contains("(mode 0640): chmod 600"), "{report}");
            let remedy = |at| check(std::slice::from_ref(&path), at)[0].remedy();
            assert_eq!(remedy(now()), Some(Remedy::MakePrivate));
            if path.extension().is_some_and(|it| it == "pem") {
                let expired = remedy(now() + LEAF_LIFE);
                assert_eq!(expired, Some(Remedy::Issue), "a new key is private");
            }
        }
        let nonsense = directory.path().join("nonsense.pem");
        fs::write(&nonsense, "hello").unwrap();
        let report = check_one(&nonsense, now());
        assert!(
            report.contains("NOT OK, no certificate can be read"),
            "{report}"
        );
        let truncated = directory.path().join("truncated.pem");
        let pem =
            pem_of(&der(&fs::read_to_string(directory.path().join("app.pem")).unwrap())[..90]);
        fs::write(&truncated, pem).unwrap();
        let report = check_one(&truncated, now());
        assert!(report.contains("the certificate is damaged"), "{report}");
    }

    fn pem_of(der: &[u8]) -> String {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
    }
}
