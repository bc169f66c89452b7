//! The dashboards, read from their files.

use std::fs;

use serde_json::Value;

use crate::monitoring::rules::deploy;

/// One question of a panel.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) dashboard: String,
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) expressions: Vec<String>,
}

/// Every dashboard, by the stem of its file.
pub(crate) fn dashboards() -> Vec<(String, Value)> {
    let mut files: Vec<_> = fs::read_dir(deploy("grafana/dashboards"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let parse = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (
            path.file_stem().unwrap().to_str().unwrap().to_owned(),
            value,
        )
    };
    files.into_iter().map(parse).collect()
}

/// All their panels.
pub(crate) fn panels() -> Vec<Panel> {
    let mut panels = Vec::new();
    for (dashboard, value) in dashboards() {
        for panel in list(&value["panels"]).iter().filter(|panel| !is_row(panel)) {
            panels.push(Panel {
                dashboard: dashboard.clone(),
                title: text(&panel["title"]),
                unit: text(&panel["fieldConfig"]["defaults"]["unit"]),
                expressions: list(&panel["targets"])
                    .iter()
                    .map(|target| text(&target["expr"]))
                    .collect(),
            });
        }
    }
    panels
}

/// Whether it is no panel, but the headline of those below it.
pub(crate) fn is_row(panel: &Value) -> bool {
    panel["type"] == "row"
}

/// An expression as Grafana would send it, for everything.
pub(crate) fn filled_in(expression: &str, window: &str) -> String {
    expression
        .replace("$__rate_interval", window)
        .replace("$job", ".+")
        .replace("$instance", ".+")
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
