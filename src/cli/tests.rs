use std::ffi::OsString;
use std::time::Duration;

use clap_complete::Shell;

use super::arguments::bench::BenchCommand;
use super::arguments::{CertCommand, Format};
use super::connection::{Connection, Connector, Surroundings, Target};
use super::failure::Exit;
use super::runtime::DevCluster;
use super::*;
use crate::api::{Error, Request, Response};
use crate::version;

const SETTINGS: &[SettingHelp] = &[
    SettingHelp {
        key: "raft.heartbeat_interval",
        default: "50ms",
        help: "Interval between heartbeats",
    },
    SettingHelp {
        key: "node.name",
        default: "",
        help: "Name of this node",
    },
];

fn parse(line: &str) -> Result<CommandLine, clap::Error> {
    let words = ["leasehold"].into_iter().chain(line.split_whitespace());
    parse_from(SETTINGS, words.map(OsString::from))
}

#[test]
fn the_arguments_are_consistent() {
    command(SETTINGS).debug_assert();
}

#[test]
fn settings_are_flags_of_serve_in_both_spellings() {
    let parsed =
        parse("serve --raft.heartbeat_interval 30ms --config /etc/leasehold.toml --node.name=n1")
            .unwrap();
    let expected = [("raft.heartbeat_interval", "30ms"), ("node.name", "n1")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(parsed.settings, expected);
    assert!(
        matches!(parsed.command, Command::Serve(serve) if serve.config == Some("/etc/leasehold.toml".into()))
    );
    assert!(
        parse("serve").unwrap().settings.is_empty(),
        "defaults are not given settings"
    );
    let error = parse("serve --raft.heartbeat 30ms").unwrap_err();
    assert!(
        error.to_string().contains("--raft.heartbeat_interval"),
        "{error}"
    );
    assert!(parse("put --node.name n1 a b").is_err(), "of serve only");
}

#[test]
fn global_flags_may_stand_before_and_after_the_verb() {
    for line in [
        "--endpoints a:1,b:2 --timeout 500ms -o json --consistency lease get foo",
        "get foo --endpoints a:1 --endpoints b:2 --timeout 500ms -o json --consistency lease",
    ] {
        let global = parse(line).unwrap().global;
        assert_eq!(global.endpoints, ["a:1", "b:2"]);
        assert_eq!(global.timeout, Some(Duration::from_millis(500)));
        assert_eq!(global.output, Format::Json);
        assert_eq!(global.consistency, crate::api::Consistency::LeaseOnly);
    }
}

#[test]
fn the_words_of_etcdctl_are_understood() {
    for (line, format) in [
        ("get foo -w json --command-timeout 500ms", Format::Json),
        (
            "get foo --write-out=table --command-timeout=500ms",
            Format::Table,
        ),
    ] {
        let global = parse(line).unwrap().global;
        assert_eq!(global.output, format);
        assert_eq!(global.timeout, Some(Duration::from_millis(500)));
    }
    assert_eq!(
        parse("get foo --timeout 5").unwrap().global.timeout,
        Some(Duration::from_secs(5)),
        "a plain number is seconds"
    );
    assert_eq!(
        parse("get foo --consistency 5").unwrap().global.consistency,
        crate::api::Consistency::MaxStaleness(Duration::from_secs(5))
    );
    for line in [
        "top --interval 3",
        "lease top --interval 3",
        "bench get --duration 30",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
    let command = parse("compact 12").unwrap().command;
    assert!(matches!(command, Command::Compaction(it) if it.revision == Some(12)));
}

#[test]
fn the_help_of_a_verb_speaks_of_connections_only_where_there_is_one() {
    let help = |line: &str| parse(line).unwrap_err().to_string();
    for line in ["get --help", "endpoint status --help", "move-leader --help"] {
        assert!(help(line).contains("--cacert"), "{line}");
    }
    for line in [
        "serve --help",
        "dev --help",
        "cert issue --help",
        "cert renew --help",
        "completion --help",
    ] {
        assert!(!help(line).contains("--cacert"), "{line}");
    }
    assert!(help("serve --help").contains("--raft.heartbeat_interval <VALUE>"));
}

/// What `command` and everything below it is called, with what is typed before it, and the command.
fn all_below(typed: &str, command: &clap::Command, found: &mut Vec<(String, clap::Command)>) {
    for below in command.get_subcommands() {
        if below.get_name() != "help" {
            let typed = format!("{typed}{} ", below.get_name());
            all_below(&typed, below, found);
            found.push((typed, below.clone()));
        }
    }
}

#[test]
fn the_help_of_every_verb_has_an_example_and_fits_into_a_hundred_columns() {
    let mut all = Vec::new();
    all_below("", &command(SETTINGS), &mut all);
    for group in [
        "lease ",
        "bench ",
        "offline snapshot ",
        "leader-lease clear ",
        "version ",
    ] {
        assert!(all.iter().any(|(typed, _)| typed == group), "{group}");
    }
    for (typed, command) in all {
        let help = parse(&format!("{typed}--help")).unwrap_err().to_string();
        assert!(help.contains("\nExample"), "{typed}has no example:\n{help}");
        for line in help.lines() {
            assert!(line.chars().count() <= 100, "{typed}: {line}");
        }
        // A line that is broken by hand and then by clap as well makes a ragged paragraph.
        let after = command.get_after_help().map(ToString::to_string);
        let after = after.unwrap_or_default();
        let lines: Vec<&str> = after.lines().collect();
        for pair in lines.windows(2) {
            // So does an example that is to be typed as it stands.
            let goes_on = pair[1].starts_with(char::is_alphabetic) || pair[0].starts_with(' ');
            let is_broken = pair[0].chars().count() > 100 && goes_on;
            assert!(
                !is_broken,
                "{typed}: give a paragraph one line: {}",
                pair[0]
            );
        }
    }
}

#[test]
fn what_contradicts_itself_is_wrong_usage() {
    for line in [
        "get",
        "get a b --prefix",
        "get --prefix --from-key a",
        "get a --keys-only --count-only",
        "put",
        "put a b c",
        "dev --nodes 2",
        "dev --port 0",
        "dev --port 65530",
        "cert issue --name n1 --client --san 10.0.0.1",
        "cert issue --name n1 --client --node",
        "cert init --cluster-id xyz",
        "cert check",
        "cert renew --before soon",
        "completion tcsh",
        "get a --timeout 0s",
        "get a -o xml",
        "bench",
        "bench get --clients 0",
        "bench get --rate -1",
        "bench get --duration soon",
        "bench mixed --reads 1.5",
        "bench mixed --read-rate 5000",
        "bench mixed --read-rate 5000 --write-rate 0",
        "bench mixed --read-rate 5000 --write-rate 2000 --rate 7000",
        "bench mixed --read-rate 5000 --write-rate 2000 --reads 0.5",
        "frobnicate",
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn rates_of_reads_and_of_writes_are_a_rate_and_a_share() {
    let line = "bench mixed --read-rate 6000 --write-rate 2000 --clients 512";
    let Command::Bench { command } = parse(line).unwrap().command else {
        panic!("this is a load");
    };
    let BenchCommand::Mixed(mixed) = command else {
        panic!("this is a mixed load");
    };
    let (reads, load) = mixed.load();
    assert_eq!((reads, load.rate, load.clients), (0.75, 8000.0, 512));
}

#[test]
fn a_key_may_look_like_a_flag_after_two_dashes_and_be_no_text() {
    let Command::Put(put) = parse("put -- --prefix -x").unwrap().command else {
        panic!("this is a put");
    };
    assert_eq!((put.key, put.value), ("--prefix".into(), Some("-x".into())));
    use std::os::unix::ffi::OsStringExt;
    let odd = OsString::from_vec(vec![0xff, 0xfe]);
    let words = ["leasehold".into(), "get".into(), odd.clone()];
    let Command::Get(get) = parse_from(SETTINGS, words).unwrap().command else {
        panic!("this is a get");
    };
    assert_eq!(get.range.key, Some(odd));
}

/// Nobody to connect to.
struct Nowhere;

impl Connector for Nowhere {
    type Connection = Self;

    async fn connect(&self, _: &Target) -> Result<Self, Error> {
        panic!("this command needs no connection")
    }
}

impl Connection for Nowhere {
    async fn call(&self, _: Request, _: crate::api::Consistency) -> Result<Response, Error> {
        panic!("this command needs no connection")
    }

    async fn status(&self, _: &str) -> Result<Response, Error> {
        panic!("this command needs no connection")
    }

    async fn close(self) {}
}

fn leasehold(line: &str) -> Result<String, Failure> {
    let CommandLine {
        command, global, ..
    } = parse(line).unwrap_or_else(|error| panic!("{error}"));
    let mut out = Vec::new();
    let program = || super::command(SETTINGS);
    commands::run(command, &global, Vec::new(), program, &Nowhere, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn completion_scripts_know_the_verbs_and_the_settings() {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let script = leasehold(&format!("completion {shell}")).unwrap();
        for word in [
            "move-leader",
            "endpoint",
            "raft.heartbeat_interval",
            "prev-kv",
        ] {
            assert!(script.contains(word), "{word} is not known to {shell}");
        }
    }
}

/// Every command that can be typed, with all words before it.
fn commands(command: &clap::Command, before: &str) -> Vec<(String, clap::Command)> {
    let mut all = Vec::new();
    for below in command.get_subcommands() {
        if below.get_name() == "help" || below.is_hide_set() {
            continue;
        }
        let words = format!("{before} {}", below.get_name());
        match below
            .get_subcommands()
            .any(|below| below.get_name() != "help")
        {
            true => all.extend(commands(below, &words)),
            false => all.push((words, below.clone())),
        }
    }
    all
}

#[test]
fn every_verb_is_shown_by_example() {
    let all = commands(&command(SETTINGS), "leasehold");
    assert!(all.len() > 30, "{}", all.len());
    let without = all.iter().filter(|(words, command)| {
        let after = command.get_after_help().map(ToString::to_string);
        // An example is of this very command.
        !after.is_some_and(|after| after.contains(words.as_str()))
    });
    let without: Vec<&str> = without.map(|(words, _)| words.as_str()).collect();
    assert_eq!(without, [""; 0], "these say what to type, and not how");
}

#[test]
fn the_manual_has_a_page_for_every_verb_with_its_examples() {
    let page = leasehold("man").unwrap();
    assert!(page.contains(".TH leasehold 1"), "{page}");
    assert!(page.contains("endpoint"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("man1");
    let out = leasehold(&format!("man --out {}", directory.display())).unwrap();
    assert_eq!(out, "");
    for (words, _) in commands(&command(SETTINGS), "leasehold") {
        let page = directory.join(format!("{}.1", words.replace(' ', "-")));
        let text = std::fs::read_to_string(&page);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(&words.replace('-', "\\-")), "{words}: {text}");
    }
    let serve = std::fs::read_to_string(directory.join("leasehold-serve.1")).unwrap();
    assert!(serve.contains("raft.heartbeat_interval"), "{serve}");
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = leasehold(&format!("man --out {}", file.display())).unwrap_err();
    assert!(refused.message.contains("cannot write"), "{refused}");
}

#[test]
fn the_version_says_what_the_binary_was_made_from() {
    let text = leasehold("version").unwrap();
    assert!(
        text.starts_with(&format!("leasehold {} (commit ", version::VERSION)),
        "{text}"
    );
    let json = leasehold("version -o json").unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["leasehold"], version::VERSION);
    assert_eq!(json["commit"], version::COMMIT);
}

#[test]
fn a_certificate_verb_needs_no_cluster() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("pki");
    let text = leasehold(&format!("cert init --out {}", out.display())).unwrap();
    assert!(text.starts_with("cluster "), "{text}");
    let Command::Cert { command } = parse("cert issue --name n1 --san a,10.0.0.1")
        .unwrap()
        .command
    else {
        panic!("this is about certificates");
    };
    assert!(matches!(command, CertCommand::Issue(issue) if issue.san == ["a", "10.0.0.1"]));
}

fn global(line: &str) -> GlobalArgs {
    parse(&format!("get foo {line}")).unwrap().global
}

fn dev() -> Surroundings {
    Surroundings {
        discovered: Vec::new(),
        context: None,
        dev: Some(DevCluster {
            pid: 1,
            endpoints: vec!["127.0.0.1:7400".to_owned(), "127.0.0.1:7410".to_owned()],
            cacert: "/dev/ca.pem".into(),
            cert: "/dev/dev.pem".into(),
            key: "/dev/dev.key".into(),
            directory: "/dev".into(),
            temporary: true,
        }),
    }
}

#[test]
fn while_dev_runs_no_flag_is_needed() {
    let target = Target::find(&global(""), &dev()).unwrap();
    assert_eq!(target.endpoints, ["127.0.0.1:7400", "127.0.0.1:7410"]);
    assert_eq!(target.cert, std::path::Path::new("/dev/dev.pem"));
    assert!(
        !target.exactly_once,
        "a session is opened for who asks for it"
    );
    let once = Target::find(&global("--exactly-once"), &dev()).unwrap();
    assert!(once.exactly_once);
    let one = Target::find(&global("--endpoints 127.0.0.1:7410"), &dev()).unwrap();
    assert_eq!(one.endpoints, ["127.0.0.1:7410"]);
    assert_eq!(one.key, std::path::Path::new("/dev/dev.key"));
}

#[test]
fn flags_beat_dev_whose_certificates_are_kept_from_other_clusters() {
    let flags = "--endpoints db:7400 --cacert ca --cert c --key k";
    for surroundings in [dev(), Surroundings::default()] {
        let target = Target::find(&global(flags), &surroundings).unwrap();
        assert_eq!(target.endpoints, ["db:7400"]);
        assert_eq!(target.cert, std::path::Path::new("c"));
    }
    let failure = Target::find(&global("--endpoints db:7400"), &dev()).unwrap_err();
    assert_eq!(
        failure,
        Failure::usage(
            "--cacert (or LEASEHOLD_CACERT) is missing: nodes and clients authenticate with \
             certificates; issue one with `leasehold cert issue --client`"
        )
    );
}

#[test]
fn without_a_cluster_the_ways_to_one_are_named() {
    let failure = Target::find(&global(""), &Surroundings::default()).unwrap_err();
    assert_eq!(failure.exit, Exit::Usage);
    assert!(
        failure.message.contains("start one with `leasehold dev`"),
        "{failure}"
    );
    for wrong in ["db", "db:", ":7400", "db:0", "http://db:7400"] {
        let line = format!("--endpoints {wrong} --cacert a --cert b --key c");
        let failure = Target::find(&global(&line), &Surroundings::default()).unwrap_err();
        assert!(
            failure.message.contains("is not an endpoint"),
            "{wrong}: {failure}"
        );
    }
}
