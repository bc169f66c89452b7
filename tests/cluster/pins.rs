//! What users and programs see of leasehold, against golden files: see `tests/pins`.

mod documents;
#[path = "../pins/golden.rs"]
mod golden;
mod meanings;
mod references;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use leasehold::cli;
use leasehold::cli::SettingHelp;
use leasehold::cli::arguments::CONNECTION_HEADING;
use leasehold::client::{LeaseGrantOptions, PutOptions, WatchOptions};
use leasehold::server::config::{Config, ConfigSources, SETTINGS, environment_variable};
use leasehold::server::metrics::Metrics;
use serde_json::Value;

use crate::harness::{Cluster, Signal, eventually, leasehold_command, run, send, write_secret};
use documents::Seen;
use golden::{check, check_file};

/// Leaders that stay in office, so that nothing is left out of a document.
const CALM: &str = "[leader_lease]\nduration = \"5s\"\nmax_clock_skew = \"500ms\"\n\
     [raft]\nelection_timeout_min = \"6s\"\nelection_timeout_max = \"7s\"\n\
     step_down_after = \"6s\"\n";
/// As wide as the text of `--help` is made here, whatever the terminal.
const WIDTH: usize = 100;

#[test]
fn every_help_is_as_it_was() {
    /// What every command takes stands with the first alone.
    fn write(command: &mut clap::Command, of: &str, out: &mut String) {
        let name = format!("{of} {}", command.get_name());
        let name = name.trim();
        let hidden = if command.is_hide_set() {
            " (hidden)"
        } else {
            ""
        };
        writeln!(out, "=== {name}{hidden}\n{}", command.render_long_help()).unwrap();
        for below in command.get_subcommands_mut() {
            let is_global = |flag: &clap::Arg| flag.get_help_heading() == Some(CONNECTION_HEADING);
            *below = std::mem::take(below).mut_args(|flag| {
                let hidden = is_global(&flag) || flag.is_hide_set();
                flag.hide(hidden)
            });
            write(below, name, out);
        }
    }
    let settings = SETTINGS.iter().map(|setting| SettingHelp {
        key: setting.key,
        default: setting.default,
        help: setting.help,
    });
    let settings: Vec<SettingHelp> = settings.collect();
    let mut command = cli::command(&settings).term_width(WIDTH);
    command.build();
    let mut out = String::new();
    write(&mut command, "", &mut out);
    let version = format!("leasehold {}", env!("CARGO_PKG_VERSION"));
    check("help.txt", &out.replace(&version, "leasehold VERSION"));
    check_file(
        "docs/reference/command-line.md",
        &references::command_line(),
    );
}

#[test]
fn every_error_is_explained() {
    check_file("docs/reference/errors.md", &references::errors());
    check_file("docs/reference/retries.md", &references::retries());
}

#[test]
fn every_metric_is_as_it_was() {
    let metrics = Metrics::new();
    // Those that come with the first event.
    metrics.watch.canceled("client").increment(1);
    metrics.leader_lease.set_clock_drift("n2", 0.0);
    metrics.peer("n2");
    metrics.health.checked("readyz", "started", true);
    let scrape = metrics.render(|_| {});
    let mut about: BTreeMap<&str, String> = BTreeMap::new();
    let mut labels: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for line in scrape.lines().filter(|line| !line.is_empty()) {
        if let Some(said) = line.strip_prefix("# ") {
            let name = said.split(' ').nth(1).unwrap();
            writeln!(about.entry(name).or_default(), "{said}").unwrap();
            continue;
        }
        let (series, _) = line.rsplit_once(' ').unwrap();
        let (name, pairs) = series.split_once('{').unwrap_or((series, "}"));
        let of = labels.entry(name).or_default();
        for pair in pairs.trim_end_matches('}').split("\",") {
            let Some((label, value)) = pair.split_once("=\"") else {
                continue;
            };
            of.entry(label)
                .or_default()
                .insert(value.trim_end_matches('"'));
        }
    }
    let mut out: String = about.into_values().collect();
    out.push('\n');
    for (name, labels) in labels {
        writeln!(out, "{name}").unwrap();
        for (label, values) in labels {
            let values = match name {
                "leasehold_build_info" => "...".to_owned(),
                _ => values.into_iter().collect::<Vec<_>>().join(" "),
            };
            writeln!(out, "  {label}: {values}").unwrap();
        }
    }
    check("metrics.txt", &out);
    check_file("docs/reference/metrics.md", &references::metrics(&out));
}

#[test]
fn every_setting_is_as_it_was() {
    let mut out = String::new();
    for setting in SETTINGS {
        let (key, variable) = (setting.key, environment_variable(setting.key));
        let (default, help) = (setting.default, setting.help);
        writeln!(out, "{key} {variable} [{default}] {help}").unwrap();
    }
    out.push('\n');
    for setting in SETTINGS {
        let mut taken = Vec::new();
        for value in [
            "",
            "nonsense",
            "0",
            "-1",
            "1",
            "1.5",
            "1000000000000",
            "true",
            "1ms",
            "20000h",
            "1GiB",
            "10.0.0.9:7400",
            "none",
        ] {
            match Config::load(sources(setting.key, value)) {
                Ok(_) => taken.push(value),
                Err(error) => writeln!(out, "{error}").unwrap(),
            }
        }
        writeln!(out, "{} takes {taken:?}", setting.key).unwrap();
    }
    check("settings.txt", &out);
    check_file("docs/reference/settings.md", &references::settings());
}

/// The least that a node needs to be told, and one setting more.
fn sources(key: &str, value: &str) -> ConfigSources {
    let least = [
        ("node.name", "n1"),
        ("node.data_dir", "/var/lib/leasehold"),
        ("cluster.initial", "n1=10.0.0.1:7401"),
        ("tls.client.cert_file", "client.pem"),
        ("tls.client.key_file", "client.key"),
        ("tls.client.trusted_ca_file", "client-ca.pem"),
        ("tls.peer.cert_file", "peer.pem"),
        ("tls.peer.key_file", "peer.key"),
        ("tls.peer.trusted_ca_file", "peer-ca.pem"),
    ];
    let pair = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let least = least.into_iter().filter(|(other, _)| *other != key);
    ConfigSources {
        file: None,
        env: Vec::new(),
        flags: least.chain([(key, value)]).map(pair).collect(),
    }
}

/// The fields of a document with their types, one to a line; what is in a list is taken together.
fn shape(documents: &str) -> BTreeSet<String> {
    fn walk(value: &Value, path: &str, lines: &mut BTreeSet<String>) {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(values) => {
                for it in values {
                    walk(it, &format!("{path}[]"), lines);
                }
                "list"
            }
            Value::Object(fields) if fields.is_empty() && !path.is_empty() => "object",
            Value::Object(fields) => {
                for (name, it) in fields {
                    walk(it, &format!("{path}.{name}"), lines);
                }
                return;
            }
        };
        lines.insert(format!("{path}: {kind}"));
    }
    let mut lines = BTreeSet::new();
    let documents = serde_json::Deserializer::from_str(documents).into_iter::<Value>();
    for document in documents {
        walk(&document.expect("it is JSON"), "", &mut lines);
    }
    lines
}

fn write_shape(out: &mut String, what: &str, documents: &str) {
    writeln!(out, "=== {what}").unwrap();
    for line in shape(documents) {
        writeln!(out, "{line}").unwrap();
    }
}

#[test]
fn every_document_of_the_command_line_is_as_it_was() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(CALM);
    let leader = cluster.start_and_settle();
    let mut seen = context_documents(&cluster);
    seen.extend(cert_documents(&cluster.folder.path().join("another pki")));
    seen.push(bounded_document(&cluster, (leader + 1) % 3));
    let folder = cluster.folder.path().to_owned();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    write_secret(file("password"), "correct horse\n");
    for (what, words) in [
        ("put", "put k v --prev-kv"),
        ("put, again", "put k w --prev-kv"),
        ("get", "get k"),
        ("get, keys only", "get k --keys-only"),
        ("get, count only", "get k --count-only"),
        ("del", "del k --prev-kv"),
        ("compaction", "compaction 3"),
        (
            "lease grant",
            "lease grant 600 --id 1f --name job --owner host",
        ),
        ("put, with a lease", "put held v --lease 1f"),
        ("lease timetolive", "lease timetolive 1f --keys"),
        ("lease list", "lease list"),
        ("lease keep-alive", "lease keep-alive 1f --once"),
        ("lease update-ttl", "lease update-ttl 1f 700"),
        ("lease top", "lease top --count 1"),
        ("lease revoke", "lease revoke 1f"),
        ("endpoint status", "endpoint status"),
        ("endpoint health", "endpoint health"),
        ("member list", "member list"),
        (
            "member add",
            "member add n9 --peer-urls 127.0.0.1:9 --learner",
        ),
        ("member update", "member update n9 --peer-urls 127.0.0.1:19"),
        ("member remove", "member remove n9"),
        ("alarm list", "alarm list"),
        ("auth status", "auth status"),
        ("role add", "role add ops"),
        (
            "role grant-permission",
            "role grant-permission ops readwrite --prefix a/",
        ),
        ("role get", "role get ops"),
        ("role list", "role list"),
        ("user add", "user add anna --new-password-file PASSWORD"),
        (
            "user passwd",
            "user passwd anna --new-password-file PASSWORD",
        ),
        ("user grant-role", "user grant-role anna ops"),
        ("user get", "user get anna"),
        ("user list", "user list"),
        (
            "user add, root",
            "user add root --new-password-file PASSWORD",
        ),
        ("user grant-role, root", "user grant-role root root"),
        ("auth enable", "auth enable"),
        (
            "auth disable",
            "auth disable --user root --password-file PASSWORD",
        ),
        ("user revoke-role", "user revoke-role anna ops"),
        ("user delete", "user delete anna"),
        (
            "role revoke-permission",
            "role revoke-permission ops --prefix a/",
        ),
        ("role delete", "role delete ops"),
        ("top", "top --count 1"),
        ("snapshot save", "snapshot save BACKUP"),
        ("snapshot status", "snapshot status BACKUP"),
        ("snapshot verify", "snapshot verify BACKUP"),
        ("doctor", "doctor"),
        ("move-leader", "move-leader"),
        ("version", "version"),
    ] {
        let words = words.replace("PASSWORD", &file("password"));
        let words = words.replace("BACKUP", &file("backup"));
        let words: Vec<&str> = ["-o", "json"].into_iter().chain(words.split(' ')).collect();
        let documents = eventually(what, || {
            let (code, documents, said) = cluster.cli(&words);
            assert!(code != 2, "{what}: {said}");
            (code == 0).then_some(documents)
        });
        seen.push(Seen::new(what, documents));
    }
    let script = "mod(\"k\") > \"0\"\n\nput k v\nget k\n\nput j w\nget k\ndel k\n\n";
    seen.push(Seen::new("txn", piped(&cluster, &["txn"], script)));
    let lease_watch = eventually("a lease that ends while it is watched", || {
        let (code, granted, _) = cluster.cli(&["lease", "grant", "2", "--name", "short"]);
        let id = granted.split(' ').nth(1).filter(|_| code == 0)?;
        let (code, told, _) = cluster.cli(&["-o", "json", "lease", "watch", id]);
        (code == 0 && told.lines().count() > 1).then_some(told)
    });
    seen.push(Seen::new("lease watch", lease_watch));
    let watch = ["watch", "k", "--rev", "4", "--prev-kv"];
    for (what, words, lines) in [
        ("watch", &watch[..], 2),
        (
            "watch, initial state",
            &["watch", "s", "--initial-state"],
            2,
        ),
        ("lock", &["lock", "l"], 1),
        ("elect", &["elect", "e", "host-7"], 1),
    ] {
        seen.push(Seen::new(what, until(&cluster, words, lines)));
    }
    offline_documents(&mut cluster, leader, &mut seen);

    let mut out = String::new();
    for seen in &seen {
        write_shape(&mut out, &seen.what, &seen.documents);
    }
    check("json.txt", &out);
    check_file("docs/reference/json.md", &documents::page(&seen));
}

/// What a follower says of a read that may be old.
fn bounded_document(cluster: &Cluster, follower: usize) -> Seen {
    let mut flags = cluster.flags();
    flags[0] = format!("--endpoints={}", cluster.nodes[follower].client);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    eventually("a key", || {
        (cluster.cli(&["put", "s", "v"]).0 == 0).then_some(())
    });
    let get = ["get", "s", "--consistency", "1h", "-o", "json"];
    let documents = eventually("a read at a follower", || {
        let (code, documents, _) = run(&[&flags[..], &get].concat());
        (code == 0 && documents.contains("staleness_ms")).then_some(documents)
    });
    Seen::new("get, of bounded staleness", documents)
}

/// What `context` says of a file of its own.
fn context_documents(cluster: &Cluster) -> Vec<Seen> {
    let file = cluster.folder.path().join("contexts.toml");
    let said = |what: &str, words: &[&str]| {
        let file = ["--contexts", file.to_str().unwrap(), "-o", "json"];
        let (code, documents, said) = run(&[words, &file].concat());
        assert_eq!(code, 0, "{what}: {said}");
        Seen::new(what, documents)
    };
    let flags = cluster.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let more = ["--user=anna", "--password-file=pw", "--connect-timeout=2s"];
    let set = ["context", "set", "prod"];
    vec![
        said("context set", &[&set, &flags[..], &more].concat()),
        said("context use", &["context", "use", "prod"]),
        said("context list", &["context", "list"]),
        said("context show", &["context", "show"]),
        said("context remove", &["context", "remove", "prod"]),
    ]
}

/// What `cert` says.
fn cert_documents(pki: &Path) -> Vec<Seen> {
    let pki = pki.to_str().unwrap();
    let ca = format!("{pki}/client-ca.pem");
    let documents = |what: &str, words: &[&str]| {
        let (code, documents, said) = run(&[words, &["-o", "json"]].concat());
        assert_eq!(code, 0, "{what}: {said}");
        Seen::new(what, documents)
    };
    vec![
        documents("cert init", &["cert", "init", "--out", pki]),
        documents(
            "cert issue",
            &["cert", "issue", "--out", pki, "--name=n", "--days=60"],
        ),
        documents(
            "cert renew",
            &["cert", "renew", "--out", pki, "--before=80"],
        ),
        documents("cert check", &["cert", "check", &ca]),
    ]
}

/// What is said of and to a node of this machine, which is stopped for it.
fn offline_documents(cluster: &mut Cluster, node: usize, seen: &mut Vec<Seen>) {
    let folder = cluster.folder.path().to_owned();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    // The patience of this test with each request is that with a node that will never answer, too.
    let mut flags = cluster.flags();
    flags.retain(|flag| !flag.starts_with("--timeout="));
    flags.push("--timeout=2s".to_owned());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = &mut cluster.nodes[node];
    let admin = node.admin.to_string();
    let (_, drained, _) = run(&["drain", "--admin", &admin, "-o", "json"]);
    seen.push(Seen::new("drain", drained));
    node.stop();
    let data = node.data_dir.to_str().unwrap().to_owned();
    let dead = eventually(
        "an endpoint that does not answer, beside one that does",
        || {
            let (code, documents, _) =
                run(&[&flags[..], &["endpoint", "health", "-o", "json"]].concat());
            (code == 1 && documents.contains("header")).then_some(documents)
        },
    );
    seen.push(Seen::new("endpoint health, of a dead one", dead));
    let [new, other, backup] = [file("new"), file("other"), file("backup")];
    let id = "--cluster-id=01234567-89ab-cdef-0011-223344556677";
    let new = [
        "--name=n1",
        "--initial-cluster=n1=10.0.0.1:7401",
        "--data-dir",
        &new,
        id,
    ];
    let restore = [&["offline", "snapshot", "restore", &backup], &new[..]].concat();
    let flag = "--yes-lose-what-others-had";
    let clear = ["leader-lease", "clear", "--data-dir", &data];
    for (what, words) in [
        (
            "offline check",
            vec!["offline", "check", "--data-dir", &data],
        ),
        (
            "offline hashkv",
            vec!["offline", "hashkv", "--data-dir", &data],
        ),
        (
            "offline dump-kv",
            vec!["offline", "dump-kv", "--data-dir", &data],
        ),
        (
            "offline dump-log",
            vec!["offline", "dump-log", "--data-dir", &data],
        ),
        ("offline snapshot restore", restore),
        (
            "offline force-new-cluster",
            vec![
                "offline",
                "force-new-cluster",
                "--data-dir",
                &data,
                "--new-data-dir",
                &other,
                "--name=n1",
                id,
                flag,
            ],
        ),
        ("leader-lease clear, of nothing", clear.to_vec()),
        (
            "leader-lease clear",
            [&clear[..], &["--yes-the-cause-is-gone"]].concat(),
        ),
    ] {
        if what == "leader-lease clear" {
            fs::write(node.tripped_mark(), "").unwrap();
        }
        let (_, documents, said) = run(&[&words[..], &["-o", "json"]].concat());
        assert!(!documents.is_empty(), "{what}: {said}");
        seen.push(Seen::new(what, documents));
    }
}

/// The first lines of a command that does not end by itself.
fn until(cluster: &Cluster, words: &[&str], lines: usize) -> String {
    let mut command = leasehold_command();
    let mut child = command
        .args(cluster.flags())
        .args(words)
        .args(["-o", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let lines: Vec<String> = out.lines().take(lines).map(Result::unwrap).collect();
    send(&child, Signal::TERM);
    child.wait().unwrap();
    lines.join("\n")
}

/// What a command says that is given `input`.
fn piped(cluster: &Cluster, words: &[&str], input: &str) -> String {
    let mut command = leasehold_command();
    let mut child = command
        .args(cluster.flags())
        .args(words)
        .args(["-o", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_document_of_the_admin_port_is_as_it_was() {
    let mut cluster = Cluster::prepare(3);
    cluster.write_configs(CALM);
    let leader = cluster.start_and_settle();
    // All of it is asked of one node.
    let client = cluster.client_at(&[leader]).await;
    let options = LeaseGrantOptions::new().with_name("job").with_owner("host");
    let ttl = Duration::from_secs(600);
    let lease = client.lease().grant(ttl, Some(options)).await.unwrap();
    let put = PutOptions::new().with_lease(lease.id);
    client.put("svc/a", "1", Some(put)).await.unwrap();
    let watch = WatchOptions::new().with_prefix();
    let _watcher = client.watch("svc/", Some(watch)).await.unwrap();
    let node = &cluster.nodes[leader];
    eventually("members that are all known", || {
        let (_, members) = node.manage("GET", "/admin/v1/members", "");
        let members = members["members"].as_array()?.clone();
        let mut known = members
            .iter()
            .map(|it| it["is_connected"] == true && it["part"] != "none");
        (members.len() == 3 && known.all(|it| it)).then_some(())
    });
    eventually("the watch", || {
        let (_, watches) = node.manage("GET", "/admin/v1/watches", "");
        (watches["open"] == 1).then_some(())
    });
    let id = format!("/admin/v1/leases/{:016x}", lease.id);
    let mut out = String::new();
    for (method, path, body) in [
        ("GET", "/version", ""),
        ("GET", "/startupz", ""),
        ("GET", "/health", ""),
        ("GET", "/admin/v1/status", ""),
        ("GET", "/admin/v1/members", ""),
        ("GET", "/admin/v1/config", ""),
        ("GET", "/admin/v1/leader-lease", ""),
        ("GET", "/admin/v1/leader-lease/report", ""),
        ("POST", "/admin/v1/leader-lease/reset-stats", ""),
        ("GET", "/admin/v1/leases", ""),
        ("GET", id.as_str(), ""),
        ("GET", "/admin/v1/watches", ""),
        ("GET", "/admin/v1/connections", ""),
        ("GET", "/admin/v1/log-level", ""),
        ("PUT", "/admin/v1/log-level", "{\"filter\":\"debug\"}"),
        ("POST", "/admin/v1/tls/reload", ""),
        ("DELETE", id.as_str(), ""),
        ("GET", id.as_str(), ""),
        ("GET", "/admin/v1/nothing", ""),
        ("GET", "/debug/profile", ""),
        ("POST", "/admin/v1/transfer-leadership", ""),
        ("POST", "/admin/v1/drain", ""),
    ] {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}", node.admin);
        let (status, answer) = node.http(&head, body);
        let path = path.replace(&id, "/admin/v1/leases/ID");
        match serde_json::from_str::<Value>(&answer) {
            Ok(_) => write_shape(&mut out, &format!("{method} {path}: {status}"), &answer),
            Err(_) => writeln!(out, "=== {method} {path}: {status}, no JSON").unwrap(),
        }
    }
    check("admin.txt", &out);
}
