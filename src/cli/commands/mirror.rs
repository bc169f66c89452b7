//! `leasehold make-mirror`: copies a prefix to another cluster, and follows every change.

use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use crate::api::Error;
use crate::cli::arguments::GlobalArgs;
use crate::cli::arguments::mirror::MirrorArgs;
use crate::cli::connection::{Connection, Connector, Surroundings, Target};
use crate::cli::failure::Failure;
use crate::cli::signals::Stop;
use crate::client::{Mirror, MirrorCounts, MirrorEvent, MirrorOptions};

/// At most this often a line says what was copied.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Mirrors until it is asked to stop.
///
/// # Errors
/// What ended it.
pub(super) async fn run(
    arguments: MirrorArgs,
    global: &GlobalArgs,
    connector: &impl Connector,
) -> Result<(), Failure> {
    let source = Target::find(global, &Surroundings::of_process(global)?)?;
    let destination = destination(&arguments, global)?;
    let mut options = MirrorOptions::new().with_prefix(arguments.prefix.into_vec());
    if let Some(prefix) = arguments.dest_prefix {
        options = options.with_destination_prefix(prefix.into_vec());
    } else if arguments.no_dest_prefix {
        options = options.with_destination_prefix("");
    }
    if let Some(key) = arguments.progress_key {
        options = options.with_progress_key(key.into_vec());
    }
    let mut stop = Stop::listen()?;
    let connecting = async {
        let source = connector.connect(&source).await?;
        Ok::<_, Failure>((source, connector.connect(&destination).await?))
    };
    let (source, destination) = tokio::select! {
        connected = connecting => connected?,
        () = stop.asked() => return Ok(()),
    };
    let mut mirror = Mirror::new(&source.client()?, &destination.client()?, options);
    let mut report = Report::default();
    let result = tokio::select! {
        error = follow(&mut mirror, &mut report) => Err(Failure::from(error)),
        () = stop.asked() => Ok(()),
    };
    report.tell_numbers();
    source.close().await;
    destination.close().await;
    result
}

/// Mirrors until that fails.
async fn follow(mirror: &mut Mirror, report: &mut Report) -> Error {
    let mut ticks = tokio::time::interval(LINE_INTERVAL);
    loop {
        // A step is not given up for a line: it would have to look where it was.
        let step = mirror.next();
        tokio::pin!(step);
        let event = loop {
            tokio::select! {
                event = &mut step => break event,
                _ = ticks.tick() => report.tell_numbers(),
            }
        };
        match event {
            Ok(event) => report.tell(&event),
            Err(error) => return error,
        }
    }
}

/// The cluster to copy to. What is said of the source by flags and environment does not hold for it.
fn destination(arguments: &MirrorArgs, global: &GlobalArgs) -> Result<Target, Failure> {
    let given = GlobalArgs {
        context: None,
        endpoints: arguments.destination.clone(),
        dev: arguments.dest_dev.clone(),
        cacert: arguments.dest_cacert.clone(),
        cert: arguments.dest_cert.clone(),
        key: arguments.dest_key.clone(),
        user: arguments.dest_user.clone(),
        password_file: arguments.dest_password_file.clone(),
        token_file: None,
        ..global.clone()
    };
    let is_complete = given.cacert.is_some() && given.cert.is_some() && given.key.is_some();
    if given.dev.is_none() && !is_complete {
        return Err(Failure::usage(
            "the destination is a cluster with certificates of its own: give --dest-cacert, --dest-cert and \
             --dest-key, or --dest-dev for a development cluster",
        ));
    }
    let surroundings = match given.dev {
        Some(_) => Surroundings::of_process(&given)?,
        None => Surroundings::default(),
    };
    Target::find(&given, &surroundings)
}

/// What is to be said when it is time, and what was said.
#[derive(Debug, Default)]
struct Report {
    /// What is done, up to which revision, and the numbers that no line has told yet.
    untold: Option<(&'static str, i64, MirrorCounts)>,
    /// The last trouble, as its code and detail: it is said once, however often it was tried.
    trouble: Option<(&'static str, String)>,
}

impl Report {
    fn tell(&mut self, event: &MirrorEvent) {
        match event {
            MirrorEvent::Interrupted { cause } => {
                if self.is_news(cause) {
                    say(&format!("interrupted, and tries again: {cause}"));
                }
                return;
            }
            MirrorEvent::CopyStarted { reason } => say(&format!("copying everything: {reason}")),
            MirrorEvent::Copying { revision, counts } => {
                self.untold = Some(("copying", *revision, *counts));
            }
            MirrorEvent::Copied { revision, counts } => {
                self.untold = Some(("copied", *revision, *counts));
                self.tell_numbers();
            }
            MirrorEvent::Following { revision } => {
                say(&format!("following the source from revision {revision}"));
            }
            MirrorEvent::Applied { revision, counts } => {
                let (_, _, before) = self.untold.unwrap_or_default();
                let sum = MirrorCounts {
                    puts: before.puts + counts.puts,
                    deletes: before.deletes + counts.deletes,
                    ..before
                };
                self.untold = Some(("up to", *revision, sum));
            }
            MirrorEvent::UpToDate { .. } => {}
        }
        self.trouble = None;
    }

    /// Whether this trouble is another than the last.
    fn is_news(&mut self, cause: &Error) -> bool {
        let trouble = Some((cause.code(), cause.detail.clone()));
        let is_news = self.trouble != trouble;
        self.trouble = trouble;
        is_news
    }

    fn tell_numbers(&mut self) {
        if let Some((what, revision, counts)) = self.untold.take() {
            say(&format!("{what} revision {revision}: {}", numbers(&counts)));
        }
    }
}

fn say(text: &str) {
    // If standard error is gone, the line is lost.
    let _ = writeln!(anstream::stderr(), "{text}");
}

fn numbers(counts: &MirrorCounts) -> String {
    let MirrorCounts {
        puts,
        deletes,
        unchanged,
    } = counts;
    match unchanged {
        0 => format!("{puts} keys written, {deletes} deleted"),
        _ => format!("{puts} keys written, {deletes} deleted, {unchanged} unchanged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ErrorKind, Tries};

    /// A token of the source's user is nothing that the destination may learn.
    #[test]
    fn what_logs_in_at_the_source_is_not_sent_to_the_destination() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            let is_private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, is_private).unwrap();
            path.display().to_string()
        };
        let (token, password) = (file("token", "a.b.c"), file("password", "secret\n"));
        let words = format!(
            "leasehold make-mirror there:7400 --token-file {token} --dest-cacert a --dest-cert b \
             --dest-key c"
        );
        let own = format!(" --dest-user anna --dest-password-file {password}");
        for (words, is_user) in [(words.clone(), false), (words + &own, true)] {
            let parsed = crate::cli::parse_from(&[], words.split_whitespace().map(Into::into));
            let parsed = parsed.unwrap();
            let crate::cli::arguments::Command::MakeMirror(arguments) = parsed.command else {
                unreachable!("it begins with that word");
            };
            let target = destination(&arguments, &parsed.global).unwrap();
            assert_eq!(target.login.is_some(), is_user, "{words}");
        }
    }

    #[test]
    fn a_trouble_that_lasts_is_said_once() {
        let trouble = |attempts, detail| Error {
            tries: Some(Tries {
                attempts,
                elapsed: Duration::from_millis(u64::from(attempts)),
            }),
            ..Error::not_applied(ErrorKind::NoLeader, detail)
        };
        let mut report = Report::default();
        assert!(report.is_news(&trouble(2, "nobody leads")));
        assert!(!report.is_news(&trouble(3, "nobody leads")));
        assert!(report.is_news(&trouble(3, "nobody has a quorum")));
        report.tell(&MirrorEvent::UpToDate { revision: 1 });
        assert!(report.is_news(&trouble(3, "nobody has a quorum")));
    }
}
