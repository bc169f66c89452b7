//! What the files say, against each other and against the code.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use leasehold::cli::arguments::Cli;
use leasehold::server::config::Config;
use leasehold::server::config::ConfigSources;
use leasehold::server::config::SETTINGS;
use leasehold::server::config::environment_variable;

use crate::dashboards::dashboards;
use crate::dashboards::list;
use crate::dashboards::panels;
use crate::dashboards::text;
use crate::metrics::Catalog;
use crate::promql;
use crate::rules::alerts;
use crate::rules::deploy;
use crate::rules::read;

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
            assert!(!text(&panel["title"]).is_empty() && !text(&panel["description"]).is_empty());
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
        "leasehold endpoint health",
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
        // Of a test, and of deploy/docker/make-pki.
        "LEASEHOLD_REQUIRE_PROMETHEUS",
        "LEASEHOLD_PKI_OWNER",
    ];
    known.extend(of_others.map(str::to_owned));
    let mut used = BTreeMap::new();
    for file in files_below(&deploy("")) {
        let text = fs::read_to_string(&file).unwrap();
        for (at, _) in text.match_indices("LEASEHOLD_") {
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
            env: vec![("LEASEHOLD_NODE_NAME".to_owned(), name.to_owned())],
            flags: Vec::new(),
        });
        let config = config.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(config.initial_members.len(), 3, "{file}");
        assert_eq!(config.listen.metrics.unwrap().port(), 7_481, "{file}");
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
