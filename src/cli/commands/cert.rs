//! The commands of `cert`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::arguments::{CertCommand, CertInitArgs, CertIssueArgs, CertRenewArgs, Format};
use crate::cli::failure::{Exit, Failure};
use crate::cli::print::{self, Align};
use crate::pki::{self, Authority, CLIENT_CA_FILE, IdentityFiles, PEER_CA_FILE, PkiError, Report};
use crate::types::ClusterId;

/// Runs one of them.
///
/// # Errors
/// What went wrong, with what to do about it.
pub fn run(command: CertCommand, format: Format, out: &mut impl Write) -> Result<(), Failure> {
    let mut written = CertificateFiles::default();
    let done = match command {
        CertCommand::Init(arguments) => init(&arguments, &mut written),
        CertCommand::Issue(arguments) => issue(&arguments, &mut written),
        CertCommand::Renew(arguments) => renew(&arguments, &mut written),
        CertCommand::Check(arguments) => {
            let reports = pki::check(&arguments.files, pki::wall_clock());
            show_reports(&reports, format, out)?;
            return match reports.iter().filter(|report| !report.is_ok()).count() {
                0 => Ok(()),
                bad => Err(Failure::refused(format!(
                    "{bad} of {} files cannot be used",
                    reports.len()
                ))),
            };
        }
    };
    // What was written before something failed is there.
    if done.is_ok() || !written.certificates.is_empty() {
        written.show(format, out)?;
    }
    done
}

/// What a command made.
#[derive(Default)]
struct CertificateFiles {
    /// The cluster that begins with it.
    cluster: Option<ClusterId>,
    /// Each has its key beside it.
    certificates: Vec<PathBuf>,
}

impl CertificateFiles {
    fn show(&self, format: Format, out: &mut impl Write) -> io::Result<()> {
        let files = self.certificates.iter().map(|certificate| {
            let key = certificate.with_extension("key");
            [certificate, &key].map(|file| file.display().to_string())
        });
        match format {
            Format::Simple => {
                if let Some(cluster) = self.cluster {
                    writeln!(out, "cluster {cluster}")?;
                }
                files
                    .into_iter()
                    .try_for_each(|[file, key]| writeln!(out, "wrote {file} and its key {key}"))
            }
            Format::Table => {
                let columns = [("CERTIFICATE", Align::Left), ("KEY", Align::Left)];
                if let Some(cluster) = self.cluster {
                    print::table_of_one(out, &[("CLUSTER", cluster.to_string())])?;
                }
                print::table(out, &columns, files.map(Vec::from))
            }
            Format::Json | Format::Fields => {
                let files = files.map(|[file, key]| json!({ "certificate": file, "key": key }));
                let mut document = json!({ "written": files.collect::<Vec<_>>() });
                if let Some(cluster) = self.cluster {
                    document["cluster"] = cluster.to_string().into();
                }
                document_in(format, &document, out)
            }
        }
    }
}

fn document_in(format: Format, document: &Value, out: &mut impl Write) -> io::Result<()> {
    match format {
        Format::Fields => print::fields(out, document),
        _ => print::line(out, document),
    }
}

fn show_reports(reports: &[Report], format: Format, out: &mut impl Write) -> io::Result<()> {
    let problems = |report: &Report| -> Vec<String> {
        let problems = report.problems.iter();
        problems.map(|problem| problem.text.clone()).collect()
    };
    match format {
        Format::Simple => reports
            .iter()
            .try_for_each(|report| writeln!(out, "{report}")),
        Format::Table => {
            let columns = [
                ("FILE", Align::Left),
                ("USABLE", Align::Left),
                ("IDENTITY", Align::Left),
                ("EXPIRES IN", Align::Right),
                ("REMARKS", Align::Left),
            ];
            let rows = reports.iter().map(|report| {
                let remarks = [problems(report), report.warnings.clone()].concat();
                let left = report.expires_in.map(pki::days_and_hours);
                let left = left.map(|left| left.replace(' ', ""));
                vec![
                    report.path.display().to_string(),
                    report.is_ok().to_string(),
                    report.subject.clone().unwrap_or_default(),
                    left.unwrap_or_default(),
                    remarks.join(", "),
                ]
            });
            print::table(out, &columns, rows)
        }
        Format::Json | Format::Fields => {
            let document = |report: &Report| {
                json!({
                    "file": report.path.display().to_string(),
                    "is_usable": report.is_ok(),
                    "identity": report.subject,
                    "cluster": report.cluster.map(|cluster| cluster.to_string()),
                    "expires_in_s": report.expires_in.map(|left| left.as_secs()),
                    "sans": report.sans,
                    "signer": report.signer,
                    "problems": problems(report),
                    "warnings": report.warnings,
                })
            };
            let documents: Vec<Value> = reports.iter().map(document).collect();
            document_in(format, &documents.into(), out)
        }
    }
}

impl From<PkiError> for Failure {
    fn from(error: PkiError) -> Self {
        let exit = match error {
            PkiError::InvalidName { .. }
            | PkiError::ReservedName { .. }
            | PkiError::InvalidSan { .. }
            | PkiError::InvalidLife { .. } => Exit::Usage,
            _ => Exit::Refused,
        };
        Self::new(exit, error.to_string())
    }
}

fn init(arguments: &CertInitArgs, written: &mut CertificateFiles) -> Result<(), Failure> {
    let authority = Authority::create(
        arguments.cluster_id,
        days(arguments.days),
        pki::wall_clock(),
    )?;
    authority.save(&arguments.out)?;
    written.cluster = Some(authority.cluster_id());
    let files = [PEER_CA_FILE, CLIENT_CA_FILE].map(|file| arguments.out.join(file));
    written.certificates.extend(files);
    Ok(())
}

fn issue(arguments: &CertIssueArgs, written: &mut CertificateFiles) -> Result<(), Failure> {
    let (directory, name) = (arguments.out.as_path(), arguments.name.as_str());
    let authority = Authority::load(directory)?;
    let (life, now) = (days(arguments.days), pki::wall_clock());
    let made = if arguments.client {
        let identity = authority.issue_client(name, life, now)?;
        vec![(IdentityFiles::client(directory, name), identity)]
    } else {
        let node = authority.issue_node(name, &arguments.san, life, now)?;
        vec![
            (IdentityFiles::peer(directory, name), node.peer),
            (IdentityFiles::server(directory, name), node.server),
        ]
    };
    // All or none: a node with one new and one old certificate would puzzle everybody.
    if !arguments.force {
        for (files, _) in &made {
            files.refuse_existing()?;
        }
    }
    for (files, identity) in &made {
        files.write(identity, arguments.force)?;
        written.certificates.push(files.certificate.clone());
    }
    Ok(())
}

fn renew(arguments: &CertRenewArgs, written: &mut CertificateFiles) -> Result<(), Failure> {
    // Before anything is calculated with them.
    if days(arguments.days) > pki::AUTHORITY_LIFE {
        let days = arguments.days;
        return Err(PkiError::InvalidLife { days }.into());
    }
    if arguments.before >= arguments.days {
        return Err(Failure::usage(
            "certificates would be renewed as soon as they are made: give --before fewer days than \
             --days",
        ));
    }
    let authority = Authority::load(&arguments.out)?;
    let by = pki::wall_clock() + days(arguments.before);
    for holder in authority.holders_ending(&arguments.out, by)? {
        let again = CertIssueArgs {
            out: arguments.out.clone(),
            name: holder.name,
            san: holder.sans,
            node: holder.is_node,
            client: !holder.is_node,
            days: arguments.days,
            force: true,
        };
        issue(&again, written)?;
    }
    Ok(())
}

fn days(days: u64) -> Duration {
    Duration::from_secs(days.saturating_mul(86_400))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::cli::arguments::CertCheckArgs;

    fn run_to_text(command: CertCommand) -> Result<String, Failure> {
        let mut out = Vec::new();
        run(command, Format::Simple, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn init_in(directory: &Path) -> Result<String, Failure> {
        run_to_text(CertCommand::Init(CertInitArgs {
            out: directory.to_owned(),
            cluster_id: None,
            days: 3650,
        }))
    }

    fn issue_in(
        directory: &Path,
        name: &str,
        client: bool,
        force: bool,
    ) -> Result<String, Failure> {
        run_to_text(CertCommand::Issue(CertIssueArgs {
            out: directory.to_owned(),
            name: name.to_owned(),
            san: Vec::new(),
            node: false,
            client,
            days: 90,
            force,
        }))
    }

    fn check(files: Vec<PathBuf>) -> Result<String, Failure> {
        run_to_text(CertCommand::Check(CertCheckArgs { files }))
    }

    #[test]
    fn what_init_and_issue_write_passes_check() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki");
        assert!(init_in(&pki).unwrap().starts_with("cluster "));
        let text = issue_in(&pki, "n1", false, false).unwrap();
        let (peer, server) = (pki.join("n1-peer"), pki.join("n1-server"));
        let (peer, server) = (peer.display(), server.display());
        assert_eq!(
            text,
            format!(
                "wrote {peer}.pem and its key {peer}.key\nwrote {server}.pem and its key \
                 {server}.key\n"
            )
        );
        issue_in(&pki, "app", true, false).unwrap();
        let entries = std::fs::read_dir(&pki).unwrap();
        let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 10);
        let text = check(files).unwrap();
        assert_eq!(
            text.lines().filter(|line| line.contains(": ok, ")).count(),
            10,
            "{text}"
        );
    }

    #[test]
    fn a_bad_file_makes_check_fail() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.pem");
        std::fs::write(&file, "no").unwrap();
        let failure = check(vec![file]).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        assert_eq!(failure.message, "1 of 1 files cannot be used");
    }

    #[test]
    fn nothing_is_replaced_unless_forced_and_then_everything_is() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path();
        init_in(pki).unwrap();
        assert!(init_in(pki).unwrap_err().message.contains("exists already"));
        issue_in(pki, "n1", false, false).unwrap();
        let before = std::fs::read(pki.join("n1-peer.pem")).unwrap();
        // One of the four files is enough to refuse, whichever it is.
        for file in ["n1-peer.pem", "n1-peer.key", "n1-server.pem"] {
            std::fs::remove_file(pki.join(file)).unwrap();
        }
        let refused = issue_in(pki, "n1", false, false).unwrap_err();
        assert!(refused.message.contains("give --force"), "{refused}");
        assert!(!pki.join("n1-peer.pem").exists());
        issue_in(pki, "n1", false, true).unwrap();
        assert_ne!(std::fs::read(pki.join("n1-peer.pem")).unwrap(), before);
    }

    #[test]
    fn what_ends_soon_is_renewed_for_the_same_names_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path();
        let renew = |before, days| {
            run_to_text(CertCommand::Renew(CertRenewArgs {
                out: pki.to_owned(),
                before,
                days,
            }))
        };
        init_in(pki).unwrap();
        issue_in(pki, "app", true, false).unwrap();
        // A node of 10 days, and a copy of its certificate by a name of the user's own.
        run_to_text(CertCommand::Issue(CertIssueArgs {
            out: pki.to_owned(),
            name: "n1".to_owned(),
            san: vec!["db.example".to_owned(), "10.0.0.1".to_owned()],
            node: true,
            client: false,
            days: 10,
            force: false,
        }))
        .unwrap();
        let files = ["app.pem", "n1-peer.pem", "n1-server.pem", "copy.pem"].map(|it| pki.join(it));
        std::fs::copy(&files[1], &files[3]).unwrap();
        let read = || {
            files
                .each_ref()
                .map(|file| std::fs::read_to_string(file).unwrap())
        };
        let before = read();

        assert_eq!(renew(9, 90).unwrap(), "");
        let text = renew(30, 90).unwrap();
        assert_eq!(text.matches("wrote ").count(), 2, "{text}");
        let after = read();
        let is_new = [0, 1, 2, 3].map(|file| before[file] != after[file]);
        assert_eq!(is_new, [false, true, true, false]);
        let checked = check(files[1..3].to_vec()).unwrap();
        assert_eq!(checked.matches("expires in 89d 23h").count(), 2);
        assert_eq!(checked.matches("SAN db.example 10.0.0.1").count(), 2);
        assert_eq!(renew(30, 90).unwrap(), "");

        // One of a node's two is enough; what has ended is renewed as well.
        std::fs::copy(&files[3], &files[2]).unwrap();
        assert_eq!(renew(30, 90).unwrap().matches("wrote ").count(), 2);
        for (before, days) in [(90, 90), (0, 0), (u64::MAX - 1, u64::MAX), (1, u64::MAX)] {
            let failure = renew(before, days).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn a_name_that_cannot_be_is_wrong_usage() {
        let directory = tempfile::tempdir().unwrap();
        init_in(directory.path()).unwrap();
        let failure = issue_in(directory.path(), "n 1", false, false).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
    }
}
