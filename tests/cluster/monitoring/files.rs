//! What the files say, against each other and against the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use leasehold::cli::arguments::Cli;
use leasehold::server::config::{
    ClusterState, Config, ConfigSources, SETTINGS, environment_variable,
};
use serde_json::Value;

use crate::monitoring::dashboards::{Panel, dashboards, is_row, list, panels, text};
use crate::monitoring::metrics::Catalog;
use crate::monitoring::promql;
use crate::monitoring::rules::{alerts, deploy, read};

#[test]
fn every_alert_asks_for_what_there_is_and_says_what_to_do() {
    let catalog = Catalog::of_the_code();
    let runbook = read("runbook.md");
    let tests = read("prometheus/tests.yml");
    let alerts = alerts();
    let rules = read("prometheus/alerts.yml");
    for key in [
        "expr: ",
        "severity: ",
        "summary: ",
        "description: ",
        "runbook_url: ",
    ] {
        let count = rules
            .lines()
            .filter(|line| line.trim().starts_with(key))
            .count();
        assert_eq!(count, alerts.len(), "each alert has one line `{key}`");
    }
    for alert in &alerts {
        let name = &alert.name;
        assert_eq!(catalog.strangers(&alert.expression), [""; 0], "{name}");
        assert!(
            ["critical", "warning"].contains(&alert.severity.as_str()),
            "{name}"
        );
        assert!(!alert.summary.is_empty() && !alert.description.is_empty());
        let section = format!("deploy/runbook.md#{}", name.to_lowercase());
        assert_eq!(alert.runbook_url, section, "{name}");
        assert!(
            runbook.contains(&format!("\n## {name}\n")),
            "{name} has no section in the runbook"
        );
        let told = runbook.split(&format!("\n## {name}\n")).nth(1).unwrap();
        let told = told.split("\n## ").next().unwrap();
        for question in ["**Means:**", "notice", "**Look", "**Stop worrying**"] {
            assert!(told.contains(question), "{name}: nothing of {question}");
        }
        let does = told.contains("**Do:**") || told.contains("**Look and do:**");
        let hands_on = told.contains("Go on with");
        assert!(does || hands_on, "{name}: nothing says what to do");
        let fires = format!("alertname=\"{name}\", severity=\"{}\"", alert.severity);
        assert!(tests.contains(&fires), "no test makes {name} fire");
    }
    let names: BTreeSet<&str> = alerts.iter().map(|alert| alert.name.as_str()).collect();
    for heading in headings(&runbook) {
        assert!(
            names.contains(heading),
            "the runbook explains no alert by {heading}"
        );
    }
    for link in runbook.split("(#").skip(1) {
        let target = link.split(')').next().unwrap();
        let is_there = headings(&runbook).any(|heading| heading.to_lowercase() == target);
        assert!(is_there, "the runbook has no section {target}");
    }
}

/// The table says of each alert what made it fire, and cannot say what is not so.
#[test]
fn the_table_of_what_fires_is_whole_and_true() {
    let rules_tests = read("prometheus/tests.yml");
    let rules_tests: Vec<&str> = rules_tests.split("\n  - name: ").skip(1).collect();
    let live = [
        include_str!("live.rs"),
        include_str!("beside.rs"),
        include_str!("machines.rs"),
    ];
    let bodies: BTreeMap<&str, &str> = live.iter().flat_map(|file| functions(file)).collect();
    let mut told = BTreeSet::new();
    let page = read("alerts.md");
    for row in page.lines().filter(|line| line.starts_with("| Leasehold")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [alert, severity, rule_test, on_a_cluster] = cells[..] else {
            panic!("not four cells: {row}");
        };
        assert!(told.insert((alert, severity)), "{alert} {severity} twice");
        let fires = format!("alertname=\"{alert}\", severity=\"{severity}\"");
        let is_fired_by = |test: &&&str| {
            let name = test.lines().next().unwrap_or_default();
            name == format!("\"{rule_test}\"") && test.contains(&fires)
        };
        assert!(
            rules_tests.iter().any(|test| is_fired_by(&test)),
            "{alert} {severity} does not fire in `{rule_test}`"
        );
        let named = format!("\"{alert} {severity}\"");
        let provoked = bodies.iter().filter(|(_, body)| body.contains(&named));
        let provoked: Vec<String> = provoked.map(|(name, _)| format!("`{name}`")).collect();
        match on_a_cluster.strip_prefix("no: ") {
            Some(why) => {
                assert!(why.len() > 20, "{alert}: why not?");
                assert_eq!(provoked, [""; 0], "{alert} {severity} is provoked");
            }
            None => assert_eq!(provoked, [on_a_cluster], "{alert} {severity}"),
        }
    }
    let alerts = alerts();
    let all: BTreeSet<(&str, &str)> = alerts
        .iter()
        .map(|alert| (alert.name.as_str(), alert.severity.as_str()))
        .collect();
    assert_eq!(told, all);
    for (name, body) in &bodies {
        let provokes = body.contains(" warning\"") || body.contains(" critical\"");
        let explained = page.contains(&format!("\n| `{name}` | "));
        assert_eq!(provokes, explained, "what `{name}` does to a cluster");
    }
    assert!(read("README.md").contains("(alerts.md)"));
}

/// What the page says of how many there are, it says of these.
#[test]
fn the_page_counts_the_rules_as_they_are() {
    let page = read("README.md");
    let words: Vec<&str> = page.split_whitespace().collect();
    let counted: Vec<usize> = words
        .windows(2)
        .filter(|pair| pair[1].starts_with("rules") || pair[1].starts_with("alerts"))
        .filter_map(|pair| pair[0].parse().ok())
        .collect();
    assert_eq!(counted, [alerts().len(); 3]);
}

/// The functions of a file by name, without what they only wait for the end of.
fn functions(file: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for part in file.split("fn ").skip(1) {
        let name = part.split(['(', '<']).next().unwrap_or_default();
        let body = part.split("must_end(").next().unwrap_or_default();
        found.push((name, body));
    }
    found
}

fn headings(markdown: &str) -> impl Iterator<Item = &str> {
    markdown.lines().filter_map(|line| line.strip_prefix("## "))
}

#[test]
fn every_panel_asks_for_what_there_is_and_follows_the_choices_above_it() {
    let catalog = Catalog::of_the_code();
    let mut uids = BTreeSet::new();
    for (stem, dashboard) in dashboards() {
        assert_eq!(text(&dashboard["uid"]), format!("leasehold-{stem}"));
        assert!(uids.insert(text(&dashboard["uid"])), "{stem}");
        assert!(dashboard["id"].is_null(), "{stem}: Grafana gives the id");
        assert_eq!(dashboard["editable"], false, "{stem}");
        let variables: Vec<_> = list(&dashboard["templating"]["list"])
            .iter()
            .map(|variable| text(&variable["name"]))
            .collect();
        assert_eq!(variables, ["datasource", "job", "instance"], "{stem}");
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        for panel in list(&dashboard["panels"]) {
            let title = format!("{stem}: {}", text(&panel["title"]));
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: id");
            let place = &panel["gridPos"];
            let (x, y) = (place["x"].as_u64().unwrap(), place["y"].as_u64().unwrap());
            assert!(
                places.insert((x, y)) && x + place["w"].as_u64().unwrap() <= 24,
                "{title}"
            );
            assert!(!text(&panel["title"]).is_empty(), "{title}");
            if is_row(panel) {
                assert!(list(&panel["panels"]).is_empty(), "{title}: all is shown");
                continue;
            }
            assert!(!text(&panel["description"]).is_empty(), "{title}");
            assert!(
                !text(&panel["fieldConfig"]["defaults"]["unit"]).is_empty(),
                "{title}"
            );
            assert_eq!(
                text(&panel["datasource"]["uid"]),
                "${datasource}",
                "{title}"
            );
            assert!(
                !list(&panel["targets"]).is_empty(),
                "{title} asks for nothing"
            );
        }
    }
    assert_eq!(uids.len(), 7);
    for panel in panels() {
        let title = format!("{}: {}", panel.dashboard, panel.title);
        for expression in &panel.expressions {
            assert_eq!(catalog.strangers(expression), [""; 0], "{title}");
            let (selectors, _) = promql::names(expression);
            for selector in selectors {
                for label in ["job", "instance"] {
                    let chosen = selector.labels.iter().any(|found| found == label);
                    assert!(
                        chosen,
                        "{title}: {} is not chosen by {label}",
                        selector.name
                    );
                }
            }
            for rate in expression.split("rate(").skip(1) {
                assert!(rate.contains("[$__rate_interval]"), "{title}");
            }
        }
    }
}

/// Each dashboard offers the way to all others, with what was chosen and the time that is looked at. One
/// that is long has headlines.
#[test]
fn every_dashboard_leads_to_the_others_and_long_ones_have_rows() {
    for (stem, dashboard) in dashboards() {
        let is_tagged = |value: &Value| list(value).iter().any(|tag| tag == "leasehold");
        assert!(is_tagged(&dashboard["tags"]), "{stem} is found by none");
        let leads = list(&dashboard["links"]).iter().any(|link| {
            link["type"] == "dashboards"
                && is_tagged(&link["tags"])
                && link["includeVars"] == true
                && link["keepTime"] == true
        });
        assert!(leads, "{stem} leads nowhere");
        let panels = list(&dashboard["panels"]);
        let rows = panels.iter().filter(|panel| is_row(panel)).count();
        if panels.len() > LONG {
            assert!(is_row(&panels[0]) && panels.len() <= rows * LONG, "{stem}");
        }
    }
}

/// Panels that one can take in without a headline.
const LONG: usize = 16;

/// The units of what happens so often a second.
const RATES: [&str; 4] = ["ops", "reqps", "Bps", "pps"];

/// What a panel shows is of one kind, in the unit of that kind, and shown nowhere else on its dashboard.
#[test]
fn every_panel_shows_one_kind_of_thing_in_its_unit_and_none_twice() {
    let mut shown = BTreeMap::new();
    for panel in panels() {
        let title = format!("{}: {}", panel.dashboard, panel.title);
        let kinds: BTreeSet<Kind> = panel.expressions.iter().map(|asked| kind(asked)).collect();
        assert_eq!(kinds.len(), 1, "{title} mixes {kinds:?}");
        let kind = *kinds.first().unwrap();
        if let Err(expected) = check_unit(&panel, kind) {
            panic!("{title} is in {}, and not in {expected}", panel.unit);
        }
        let asked: BTreeSet<String> = panel.expressions.iter().flat_map(|e| series(e)).collect();
        if let Some(other) = shown.insert((panel.dashboard, kind, asked), panel.title) {
            panic!("{title} shows what {other} does");
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Part,
    Quantile,
    Rate,
    Value,
}

fn kind(expression: &str) -> Kind {
    if expression.contains("histogram_quantile(") {
        Kind::Quantile
    } else if expression.contains("} / ") {
        Kind::Part
    } else if expression.contains("rate(") {
        Kind::Rate
    } else {
        Kind::Value
    }
}

/// `none` is the unit of what is counted alone, and of processors.
fn check_unit(panel: &Panel, kind: Kind) -> Result<(), &'static str> {
    let metrics: Vec<String> = panel
        .expressions
        .iter()
        .flat_map(|expression| promql::names(expression).0)
        .map(|selector| selector.name)
        .collect();
    let are = |what: &str| metrics.iter().all(|name| name.ends_with(what));
    let unit = panel.unit.as_str();
    let expected = match kind {
        Kind::Part => "percentunit",
        Kind::Rate if metrics == ["process_cpu_seconds_total"] => "none",
        Kind::Rate if RATES.contains(&unit) => return Ok(()),
        Kind::Rate => "a unit of what happens a second",
        _ if are("_seconds") || are("_seconds_bucket") => "s",
        _ if are("_bytes") => "bytes",
        _ if are("_ratio") => "percentunit",
        _ => "none",
    };
    (unit == expected).then_some(()).ok_or(expected)
}

/// The series of an expression, with what they are chosen by.
fn series(expression: &str) -> Vec<String> {
    let ends = expression.match_indices('}').map(|(end, _)| end);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let of = |end: usize| {
        let begin = expression[..end].rfind('{').unwrap();
        let name = expression[..begin].trim_end_matches(is_word).len();
        expression[name..end].to_owned()
    };
    ends.map(of).collect()
}

/// What people are told to type can be typed.
#[test]
fn every_command_of_the_pages_is_one_of_ours() {
    let mut seen = 0;
    for page in ["runbook.md", "README.md"] {
        for command in commands(&read(page)) {
            seen += 1;
            if let Err(problem) = check_command(&command) {
                panic!("{page}: `{command}`: {problem}");
            }
        }
    }
    assert!(seen > 12, "{seen}");
    assert!(check_command("leasehold endpoint status --cluster -o table").is_ok());
    for bad in [
        "leasehold endpoint moved",
        "leasehold member lists",
        "leasehold endpoint status --everything",
        "leasehold",
    ] {
        assert!(check_command(bad).is_err(), "{bad}");
    }
}

/// What stands in `code` and begins with our name, and each such line of a block.
fn commands(markdown: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut block = String::new();
    let mut prose = String::new();
    let mut in_block = false;
    for line in markdown.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else {
            let text = if in_block { &mut block } else { &mut prose };
            *text += line;
            text.push('\n');
        }
    }
    let of_block = block.replace("\\\n", " ");
    for line in of_block.lines() {
        let command = line.trim().trim_start_matches("sudo ");
        if command.starts_with("leasehold ") {
            found.push(command.to_owned());
        }
    }
    for code in prose.split('`').skip(1).step_by(2) {
        let code = code.replace('\n', " ");
        if code.starts_with("leasehold ") {
            found.push(code);
        }
    }
    found
}

fn check_command(line: &str) -> Result<(), String> {
    let mut command = Cli::command();
    command.build();
    let mut current = &command;
    let mut words = line.split_whitespace().skip(1).peekable();
    while let Some(word) = words.peek() {
        match current.find_subcommand(word) {
            Some(found) => {
                current = found;
                words.next();
            }
            None => break,
        }
    }
    if std::ptr::eq(current, &command) {
        return Err("there is no such verb".to_owned());
    }
    if current.has_subcommands() {
        return Err(format!("{} wants another word", current.get_name()));
    }
    for word in words {
        if ["|", ">", "&&", "#"].contains(&word) {
            break;
        }
        let Some(flag) = word.strip_prefix("--").filter(|flag| !flag.is_empty()) else {
            continue;
        };
        let flag = flag.split('=').next().unwrap_or_default();
        let is_setting = SETTINGS.iter().any(|setting| setting.key == flag);
        let is_flag = current
            .get_arguments()
            .chain(command.get_arguments())
            .any(|known| known.get_long() == Some(flag));
        if !(is_flag || is_setting && current.get_name() == "serve") {
            return Err(format!("there is no flag --{flag}"));
        }
    }
    Ok(())
}

/// Settings that the files give by the environment exist.
#[test]
fn every_variable_of_the_files_is_one_of_ours() {
    let mut known: BTreeSet<String> = SETTINGS
        .iter()
        .map(|setting| environment_variable(setting.key))
        .collect();
    known.extend(Cli::command().get_arguments().filter_map(variable));
    let of_others = [
        "LEASEHOLD_CONFIG",
        // Of tests, and of deploy/docker/make-pki.
        "LEASEHOLD_LEFT_OUT",
        "LEASEHOLD_REQUIRE_FAULTS",
        "LEASEHOLD_REQUIRE_PROMETHEUS",
        "LEASEHOLD_PKI_OWNER",
    ];
    known.extend(of_others.map(str::to_owned));
    let mut used = BTreeMap::new();
    for file in files_below(&deploy("")) {
        let text = fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("LEASEHOLD_") {
            // The chart completes it with the keys of settings that its user gives.
            if text[at..].starts_with("LEASEHOLD_{{") {
                continue;
            }
            let name: String = text[at..]
                .chars()
                .take_while(|c| c.is_ascii_uppercase() || *c == '_')
                .collect();
            used.insert(name, file.display().to_string());
        }
    }
    for (name, file) in used {
        assert!(known.contains(&name), "{file}: nobody reads {name}");
    }
}

/// The configurations that are shipped are ones that a server takes.
#[test]
fn every_configuration_of_the_files_is_taken() {
    for (file, name) in [
        ("systemd/leasehold.toml", "n1"),
        ("k8s/leasehold.toml", "leasehold-2"),
    ] {
        let config = Config::load(ConfigSources {
            file: Some(deploy(file)),
            env: environment(file, name),
            flags: Vec::new(),
        });
        let config = config.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(config.cluster.initial.len(), 3, "{file}");
        assert_eq!(config.listen.metrics.unwrap().port(), 7_481, "{file}");
        assert_eq!(config.cluster.state, ClusterState::New, "{file}");
    }
}

/// What stands ready in them for the time after the founding is what it says.
#[test]
fn every_configuration_says_what_to_write_once_the_cluster_is_founded() {
    let folder = tempfile::tempdir().unwrap();
    for (file, name) in [
        ("systemd/leasehold.toml", "n1"),
        ("k8s/leasehold.toml", "leasehold-2"),
    ] {
        let founded = folder.path().join("leasehold.toml");
        let text = read(file).replace("# state = ", "state = ");
        fs::write(&founded, text).unwrap();
        let config = Config::load(ConfigSources {
            file: Some(founded),
            env: environment(file, name),
            flags: Vec::new(),
        });
        let config = config.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(config.cluster.state, ClusterState::Existing, "{file}");
    }
    assert!(read("compose.yaml").contains("\n  # LEASEHOLD_CLUSTER_STATE: existing\n"));
}

/// What a member by this name is told beside its file: its name, and of a pod what the set says.
fn environment(file: &str, name: &str) -> Vec<(String, String)> {
    let mut told = vec![("LEASEHOLD_NODE_NAME".to_owned(), name.to_owned())];
    if !file.starts_with("k8s/") {
        return told;
    }
    let set = read("k8s/statefulset.yaml");
    let lines: Vec<&str> = set.lines().map(str::trim).collect();
    for pair in lines.windows(2) {
        let variable = pair[0].strip_prefix("- name: LEASEHOLD_");
        let (Some(variable), Some(value)) = (variable, pair[1].strip_prefix("value: ")) else {
            continue;
        };
        let value = value
            .replace("$(LEASEHOLD_NODE_NAME)", name)
            .replace("$(POD_NAMESPACE)", "leasehold");
        told.push((format!("LEASEHOLD_{variable}"), value));
    }
    told
}

/// Every file that a pod is told of lies in the volume that it mounts.
#[test]
fn pods_find_their_certificates_where_they_are_told() {
    let set = read("k8s/statefulset.yaml");
    for name in ["leasehold-0", "leasehold-1", "leasehold-2"] {
        let mut files = 0;
        for (variable, value) in environment("k8s/leasehold.toml", name) {
            let Some(file) = value.strip_prefix("/etc/leasehold/tls/") else {
                continue;
            };
            files += 1;
            let is_there = set.contains(&format!(", path: {file}}}"));
            assert!(is_there, "{name}: {variable}: {file} is in no secret");
        }
        assert_eq!(files, 9, "six for the server, three for the command line");
    }
}

fn variable(argument: &clap::Arg) -> Option<String> {
    Some(argument.get_env()?.to_str()?.to_owned())
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}
