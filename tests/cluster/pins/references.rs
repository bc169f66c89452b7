//! The pages of docs/reference that are made from the code: settings, metrics, errors, command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use leasehold::api::{Attempts, Error, ErrorKind, Outcome, RequestKind, Safety, Spec};
use leasehold::cli;
use leasehold::cli::arguments::CONNECTION_HEADING;
use leasehold::cli::failure::{Exit, Failure};
use leasehold::client::{CLIENT_METRICS, ClientMetric, RetryRule};
use leasehold::server::config::{Config, SETTINGS, environment_variable};

use super::meanings::REMEDIES;
use super::{WIDTH, sources};

const MADE: &str = "*Made by `UPDATE_PINS=1 cargo test --test cluster pins` from the code; the same test holds it.*\n";

/// What lies outside of what most settings take, in all the ways there are.
const PROBES: [&str; 9] = [
    "nonsense",
    "-1",
    "0",
    "0s",
    "0B",
    "1.5",
    "99999999h",
    "1000000TiB",
    "1000000000000000",
];

pub(super) fn settings() -> String {
    let mut out = format!(
        "# Settings\n\n{MADE}\nEach key can be given in the file (`section.key`), as the variable, or as the flag \
         `--section.key` of `leasehold serve`; the flag is strongest, the file weakest. A size is a number with its \
         unit, as `8KiB`; a duration likewise, as `50ms`. How a node is configured as a whole is in \
         [configuration.md](../guide/configuration.md).\n"
    );
    let mut section = "";
    for setting in SETTINGS {
        let (of, _) = setting.key.split_once('.').unwrap();
        if of != section {
            section = of;
            let head = "| Key, variable | Default | What it does | Takes |\n|---|---|---|---|";
            writeln!(out, "\n## {section}\n\n{head}").unwrap();
        }
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let (key, variable) = (setting.key, environment_variable(setting.key));
        let (help, taken) = (cell(setting.help), taken(setting.key));
        writeln!(
            out,
            "| `{key}` `{variable}` | {default} | {help} | {taken} |"
        )
        .unwrap();
    }
    out
}

/// What a setting takes, in the words with which it refuses the rest.
fn taken(key: &'static str) -> String {
    let mut said = Vec::new();
    for probe in PROBES {
        let Err(error) = Config::load(sources(key, probe)) else {
            continue;
        };
        let error = error.to_string();
        let refused = format!("{key} = `{probe}`: ");
        let words = error.split_once(&refused).map(|(_, words)| {
            let of_address = words.strip_prefix(&format!("`{probe}` is not an address: "));
            of_address.unwrap_or(words).to_owned()
        });
        if let Some(words) = words.filter(|words| !said.contains(words)) {
            said.push(words);
        }
    }
    cell(&said.join("; "))
}

/// As it stands in a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

pub(super) fn metrics(pin: &str) -> String {
    let mut out = format!(
        "# Metrics\n\n{MADE}\nServed at `/metrics` of the admin port and of `listen.metrics`, for Prometheus. A name \
         ends in its unit; `_total` is a counter. Alerts on them are in `deploy/prometheus`, what to do about each in \
         the [runbook](../../deploy/runbook.md).\n\n| Metric | Kind | Labels | What it is |\n|---|---|---|---|\n"
    );
    let mut help = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    let mut labels: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut series = "";
    for line in pin.lines() {
        if let Some((name, text)) = line.strip_prefix("HELP ").and_then(|it| it.split_once(' ')) {
            help.insert(name, text);
        } else if let Some((name, kind)) =
            line.strip_prefix("TYPE ").and_then(|it| it.split_once(' '))
        {
            kinds.insert(name, kind);
        } else if let Some((label, values)) =
            line.strip_prefix("  ").and_then(|it| it.split_once(": "))
        {
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|end| series.strip_suffix(end))
                .find(|name| kinds.get(name) == Some(&"histogram"))
                .unwrap_or(series);
            if label != "le" {
                // The peer and the node are named as the test names them.
                let values = match label {
                    "peer" | "path" => "...".to_owned(),
                    _ => values.replace(' ', ", "),
                };
                let of = labels.entry(name).or_default();
                let text = format!("`{label}`: {values}");
                if !of.contains(&text) {
                    of.push(text);
                }
            }
        } else {
            series = line;
        }
    }
    for (name, help) in help {
        let labels = labels.get(name).map(|it| it.join("; ")).unwrap_or_default();
        writeln!(
            out,
            "| `{name}` | {} | {} | {} |",
            kinds[name],
            cell(&labels),
            cell(help)
        )
        .unwrap();
    }
    out.push_str(
        "\n## Of the SDK\n\nOf a program with a client that has the feature `metrics` and has called `Client::record_metrics`, \
         for the recorder that it has installed for the crate `metrics`.\n\n\
         | Metric | Kind | Labels | What it is |\n|---|---|---|---|\n",
    );
    for metric in CLIENT_METRICS {
        let ClientMetric {
            name, kind, labels, ..
        } = metric;
        writeln!(
            out,
            "| `{name}` | {kind} | {labels} | {} |",
            cell(metric.help)
        )
        .unwrap();
    }
    out
}

/// A variant of an enum as its source has it.
struct Variant {
    name: String,
    docs: String,
    /// Names and types.
    fields: Vec<(String, String)>,
}

/// The variants of `pub enum NAME`.
fn variants(source: &str, name: &str) -> Vec<Variant> {
    let body = source
        .split_once(&format!("pub enum {name} {{\n"))
        .unwrap()
        .1;
    let body = body.split_once("\n}").unwrap().0;
    let (mut all, mut docs) = (Vec::<Variant>::new(), String::new());
    for line in body
        .lines()
        .map(|line| (line.len() - line.trim_start().len(), line.trim()))
    {
        match line {
            (4, text) if text.starts_with("/// ") => {
                docs = format!("{docs} {}", &text[4..]);
            }
            (4, text) if text.starts_with(|it: char| it.is_ascii_uppercase()) => {
                let end = text.find(|it: char| !it.is_ascii_alphanumeric());
                all.push(Variant {
                    name: text[..end.unwrap_or(text.len())].to_owned(),
                    docs: std::mem::take(&mut docs).trim().to_owned(),
                    fields: Vec::new(),
                });
            }
            (8, text) if !text.starts_with("//") => {
                let (field, kind) = text.trim_end_matches(',').split_once(": ").unwrap();
                let of = all.last_mut().unwrap();
                of.fields.push((field.to_owned(), kind.to_owned()));
            }
            _ => {}
        }
    }
    all
}

/// A kind of error with nothing in its fields.
fn kind_of(variant: &Variant) -> ErrorKind {
    let value = |kind: &str| match kind.starts_with("Option") {
        true => serde_json::Value::Null,
        false => 0.into(),
    };
    let name = variant.name.clone();
    let document = match variant.fields.is_empty() {
        true => name.into(),
        false => {
            let fields = variant.fields.iter();
            let fields: serde_json::Map<_, _> = fields
                .map(|(name, kind)| (name.clone(), value(kind)))
                .collect();
            serde_json::json!({ name: fields })
        }
    };
    serde_json::from_value(document).unwrap()
}

pub(super) fn errors() -> String {
    let mut out = format!(
        "# Errors\n\n{MADE}\nEvery error has a code, which programs match on and which does not change; an outcome \
         (*not applied*, *applied*, or *unknown*: it may have taken effect); and a sentence for people. In the SDK \
         these are `Error::code()`, or the fields of `Error::kind`; `Error::outcome`; and `Display`. *Again* says \
         whether the same request may succeed later (`is_retryable`): until the deadline of the request the SDK repeats \
         by itself what is safe to repeat. What comes from the SDK alone it leaves to the caller. The exit code is that of the command line for what was not applied.\n\n\
         | Code | What it means | Again | Exit | What to do |\n|---|---|---|---|---|\n"
    );
    let mut known = BTreeSet::new();
    for variant in variants(include_str!("../../../src/api/error.rs"), "ErrorKind") {
        let kind = kind_of(&variant);
        let code = kind.code();
        known.insert(code);
        let remedy = REMEDIES.iter().find(|(of, _)| *of == code);
        let (_, remedy) =
            remedy.unwrap_or_else(|| panic!("say what to do about {code}, in meanings.rs"));
        let error = Error::not_applied(kind, "x");
        let again = if error.is_retryable() { "yes" } else { "" };
        let exit = Failure::from(error).exit.code();
        let fields: Vec<String> = variant
            .fields
            .iter()
            .map(|(name, _)| format!("`{name}`"))
            .collect();
        let fields = match fields.is_empty() {
            true => String::new(),
            false => format!(" Has {}.", fields.join(", ")),
        };
        let docs = cell(&variant.docs);
        writeln!(
            out,
            "| `{code}` | {docs}{fields} | {again} | {exit} | {remedy} |"
        )
        .unwrap();
    }
    let idle: Vec<_> = REMEDIES
        .iter()
        .filter(|(of, _)| !known.contains(of))
        .collect();
    assert!(idle.is_empty(), "remedies of no error: {idle:?}");
    out.push_str("\n## Exit codes\n\n| Code | What it means |\n|---|---|\n");
    for variant in variants(include_str!("../../../src/cli/failure.rs"), "Exit") {
        let (code, docs) = match variant.docs.split_once(". ") {
            Some((code, docs)) if code.parse::<u8>().is_ok() => (code.to_owned(), docs.to_owned()),
            _ => ("any".to_owned(), variant.docs),
        };
        writeln!(out, "| {code} | {docs} |").unwrap();
    }
    assert_eq!(
        Exit::NotAcquired.code(),
        8,
        "the number in the words is the number"
    );
    out
}

/// Kinds of requests by how often they may be sent.
const SAFETIES: [(Safety, &str); 3] = [
    (Safety::Repeatable, "read, renewal"),
    (Safety::Numbered, "write in a session"),
    (Safety::Once, "other write"),
];

/// Errors that a connection may fail with before anything is sent.
const OF_CONNECTING: [ErrorKind; 7] = [
    ErrorKind::ConnectFailed,
    ErrorKind::ConnectionLost,
    ErrorKind::TlsHandshake,
    ErrorKind::ClusterMismatch,
    ErrorKind::Unauthenticated,
    ErrorKind::TokenExpired,
    ErrorKind::InvalidArgument,
];

pub(super) fn retries() -> String {
    let mut out = format!(
        "# Retries of the SDK\n\n{MADE}\nAn attempt that failed is followed by another when two things hold: its \
         error says that another attempt may succeed ([by error](#by-error)), and the request is safe to send again \
         ([by effect](#by-effect)). Between attempts there is a back-off, which a new connection or a leader that has \
         answered ends early; `RetryPolicy` sets it and the most attempts. Nothing is sent after the deadline of the \
         request. What an error *means* is in [errors.md](errors.md). `RetryRule::of` and `Attempts` are these tables as \
         functions.\n\n## By error\n\nOf a node that answered with it.\n\n\
         | Code | Sent again |\n|---|---|\n"
    );
    for variant in variants(include_str!("../../../src/api/error.rs"), "ErrorKind") {
        let kind = kind_of(&variant);
        let (code, rule) = (kind.code(), words_of(RetryRule::of(&kind)));
        writeln!(out, "| `{code}` | {rule} |").unwrap();
    }
    out.push_str(
        "\n## Without an answer\n\nA connection that breaks, or falls silent, while a request is on its way counts as \
         `LH-CONNECTION-LOST`, at another node after a back-off; its outcome is *unknown* for a write of which anything \
         was sent, and *not applied* otherwise. The deadline counts as `LH-DEADLINE-EXCEEDED`, likewise. Where no \
         connection could be made nothing was sent, so every request is safe to send again:\n\n\
         | Code of the attempt to connect | Sent again |\n|---|---|\n",
    );
    for kind in OF_CONNECTING {
        let (code, rule) = (kind.code(), words_of(RetryRule::of_connecting(&kind)));
        writeln!(out, "| `{code}` | {rule} |").unwrap();
    }
    let never = variants(include_str!("../../../src/api/error.rs"), "ErrorKind");
    let never = never.iter().map(kind_of);
    let never = never.filter(|kind| RetryRule::of_watching(kind) == RetryRule::Never);
    let never: Vec<String> = never.map(|kind| format!("`{}`", kind.code())).collect();
    writeln!(
        out,
        "\n## Watches\n\nA watch whose stream breaks off is opened again where it was. Where opening it is refused, the first time or \
         then, that is tried again after a back-off, at another node if there is one; after {} it ends.",
        never.join(", ")
    )
    .unwrap();
    out.push_str(
        "\n## By effect\n\nWhat one attempt may have done stays possible, whatever becomes of those after it: a write \
         that fails says *not applied* only if that holds for all of its attempts. A write whose session is gone is \
         sent in another session, if no attempt may have applied it.\n\n\
         | Request | An attempt said | Sent again | If no attempt succeeds, the request says |\n|---|---|---|---|\n",
    );
    for (safety, what) in SAFETIES {
        for outcome in [Outcome::NotApplied, Outcome::Unknown] {
            let mut attempts = Attempts::new(safety);
            let again = match attempts.may_repeat_after(outcome) {
                true => "yes",
                false => "",
            };
            let last = attempts.outcome(outcome);
            attempts.failed(outcome);
            let after_another = attempts.outcome(Outcome::NotApplied);
            assert_eq!(last, after_another, "whichever attempt it was");
            let (said, says) = (words_of_outcome(outcome), words_of_outcome(last));
            writeln!(out, "| {what} | {said} | {again} | {says} |").unwrap();
        }
    }
    out.push_str(
        "\n## By request\n\nA client has a session unless it was made `with_exactly_once(false)`, and numbers its \
         writes in it. From the command line that is `--exactly-once`.\n\n\
         | Request | What it is | Without a session | In a session |\n|---|---|---|---|\n",
    );
    for spec in Spec::all() {
        let kind = match spec.kind {
            RequestKind::Write => "write",
            RequestKind::Read | RequestKind::LeaseRead | RequestKind::MemberList => "read",
            RequestKind::KeepAlive => "renewal",
            RequestKind::MemberChange => "change of members",
            RequestKind::Transfer => "hand-over",
            RequestKind::Watch | RequestKind::Node | RequestKind::Login => "about one node",
        };
        let [without, within] = [false, true].map(|is_numbered| match spec.safety(is_numbered) {
            Safety::Repeatable => "as a read",
            Safety::Numbered => "as a write in a session",
            Safety::Once => "as another write",
        });
        let row = format!("| `{}` | {kind} | {without} | {within} |\n", spec.name);
        // Some have two lines of the table that differ in nothing that matters here.
        if !out.ends_with(&row) {
            out.push_str(&row);
        }
    }
    out
}

fn words_of(rule: RetryRule) -> &'static str {
    match rule {
        RetryRule::AtLeader => {
            "at the leader that it names, at once the first time; at another node if it names none that can be \
             reached, after a back-off"
        }
        RetryRule::AfterWait(_) => {
            "at the same node, after the wait that it asks for, or a back-off if that is longer"
        }
        RetryRule::Elsewhere => "at another node if there is one, after a back-off",
        RetryRule::AfterLogin => {
            "at the same node at once, when the client has logged in there, if it has a user; else not"
        }
        RetryRule::NextElsewhere => "no; the next request begins at another node",
        RetryRule::Never => "no",
        other => panic!("say what {other:?} means"),
    }
}

fn words_of_outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::NotApplied => "not applied",
        Outcome::Applied => "applied",
        Outcome::Unknown => "unknown",
    }
}

pub(super) fn command_line() -> String {
    let mut out = format!(
        "# Command line\n\n{MADE}\nThe help of every command, as `leasehold COMMAND --help` prints it. The flags of \
         `serve` for single settings are in [settings.md](settings.md), what `-o json` prints in [json.md](json.md), \
         exit codes in [errors.md](errors.md#exit-codes).\n"
    );
    fn write(command: &mut clap::Command, of: &str, out: &mut String) {
        let name = format!("{of} {}", command.get_name());
        let name = name.trim();
        // Where lines end in blanks depends on the terminal alone.
        let help = command.render_long_help().to_string();
        let help: Vec<&str> = help.lines().map(str::trim_end).collect();
        writeln!(
            out,
            "\n## {name}\n\n```text\n{}\n```",
            help.join("\n").trim()
        )
        .unwrap();
        for below in command
            .get_subcommands_mut()
            .filter(|below| !below.is_hide_set())
        {
            let is_global = |flag: &clap::Arg| flag.get_help_heading() == Some(CONNECTION_HEADING);
            *below = std::mem::take(below).mut_args(|flag| {
                let hidden = is_global(&flag) || flag.is_hide_set();
                flag.hide(hidden)
            });
            if below.get_name() != "help" {
                write(below, name, out);
            }
        }
    }
    let mut command = cli::command(&[]).term_width(WIDTH);
    command.build();
    write(&mut command, "", &mut out);
    out
}
