//! The alert rules, read from their file.
//!
//! There is no YAML parser here: promtool judges the file (`live`), and this relies on its form, one key
//! a line. The form is checked by counting.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// `deploy/` and what is below it.
pub(crate) fn deploy(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(path)
}

pub(crate) fn read(path: &str) -> String {
    let path = deploy(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An alert.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) expression: String,
    pub(crate) severity: String,
    pub(crate) summary: String,
    pub(crate) description: String,
    pub(crate) runbook_url: String,
}

/// Every alert of `deploy/prometheus/alerts.yml`.
pub(crate) fn alerts() -> Vec<Alert> {
    let text = read("prometheus/alerts.yml");
    let mut alerts: Vec<Alert> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push(Alert {
                name: name.to_owned(),
                ..Alert::default()
            });
            continue;
        }
        let Some((key, value)) = line.split_once(": ") else {
            continue;
        };
        let Some(alert) = alerts.last_mut() else {
            continue;
        };
        let field = match key {
            "expr" => &mut alert.expression,
            "severity" => &mut alert.severity,
            "summary" => &mut alert.summary,
            "description" => &mut alert.description,
            "runbook_url" => &mut alert.runbook_url,
            _ => continue,
        };
        *field = value.to_owned();
    }
    alerts
}

/// Divides every span of time in rules or a configuration by `factor`: windows in brackets, and what
/// follows `for:` and the like. Numbers of seconds in expressions are not spans: they are what is
/// measured, and stay.
pub(crate) fn shortened(text: &str, factor: u32) -> String {
    let mut short = String::new();
    for line in text.lines() {
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        let scaled = [
            "for: ",
            "scrape_interval: ",
            "scrape_timeout: ",
            "evaluation_interval: ",
        ]
        .iter()
        .find_map(|key| {
            let span = parse_span(rest.strip_prefix(key)?)?;
            Some(format!("{indent}{key}{}ms", (span / factor).as_millis()))
        });
        short += &scaled.unwrap_or_else(|| windows_shortened(line, factor));
        short.push('\n');
    }
    short
}

/// What stands behind `key` in each line that begins with it.
pub(crate) fn spans<'a>(text: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter_map(move |line| line.trim().strip_prefix(key))
}

/// Divides what follows `for:` in rules that are shortened already.
pub(crate) fn for_shortened(text: &str, factor: u32) -> String {
    let lines = text.lines().map(|line| {
        let (before, span) = line.split_once("for: ")?;
        let millis: u32 = span.strip_suffix("ms")?.parse().ok()?;
        before
            .trim()
            .is_empty()
            .then(|| format!("{before}for: {}ms", millis / factor))
    });
    let lines = lines.zip(text.lines());
    lines
        .map(|(short, line)| short.unwrap_or_else(|| line.to_owned()) + "\n")
        .collect()
}

fn windows_shortened(line: &str, factor: u32) -> String {
    let mut parts = line.split('[');
    let mut short = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let window = part.split_once(']').and_then(|(window, after)| {
            let span = parse_span(window)? / factor;
            Some(format!("[{}ms]{after}", span.as_millis()))
        });
        short += &window.unwrap_or_else(|| format!("[{part}"));
    }
    short
}

fn parse_span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let seconds = match &text[unit..] {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(number * seconds))
}

#[test]
fn spans_are_shortened_and_nothing_else_is() {
    let text = "  for: 10m\n  expr: rate(a[5m]) - time() < 21 * 86400 or b[1h]\n  - [x]\nscrape_interval: 15s";
    let short = "  for: 10000ms\n  expr: rate(a[5000ms]) - time() < 21 * 86400 or b[60000ms]\n  - [x]\nscrape_interval: 250ms\n";
    assert_eq!(shortened(text, 60), short);
    let shorter = short.replace("for: 10000ms", "for: 2000ms");
    assert_eq!(for_shortened(short, 5), shorter);
    assert_eq!(spans(short, "scrape_interval: ").next(), Some("250ms"));
}
