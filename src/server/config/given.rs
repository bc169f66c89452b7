//! The settings as they are in force, each with the place it came from: for people who ask a running
//! node what it goes by.

use std::path::Path;

use serde_json::{Value, json};

use super::source::{Raw, Values};
use super::{At, SETTINGS};

/// Every setting, in the order of the documentation.
///
/// None of them is a secret: keys and passwords are in files of their own, and settings say where.
/// Two are equal if they say the same, wherever they say it.
#[derive(Clone, Debug)]
pub struct Settings(Vec<Given>);

/// One setting, as its strongest source gave it.
#[derive(Clone, Debug)]
struct Given {
    key: &'static str,
    value: Value,
    at: At,
}

impl Settings {
    pub(super) fn of(values: &Values) -> Self {
        let given = |key: &'static str| {
            let (raw, at) = values.raw(key);
            let directory = is_path(key).then(|| values.directory(at));
            Given {
                key,
                value: value(raw, directory),
                at: at.clone(),
            }
        };
        Self(SETTINGS.iter().map(|setting| given(setting.key)).collect())
    }

    /// Key by key: the value, which kind of source it is from, and where there.
    pub fn document(&self) -> Value {
        let mut document = serde_json::Map::new();
        for Given { key, value, at } in &self.0 {
            let (source, place) = match at {
                At::File { path, line } => ("file", Some(format!("{}:{line}", path.display()))),
                At::Environment(name) => ("environment", Some(name.clone())),
                At::Flag(key) => ("flag", Some(format!("--{key}"))),
                At::Default(_) => ("default", None),
            };
            let entry = json!({"value": value, "source": source, "place": place});
            document.insert((*key).to_owned(), entry);
        }
        Value::Object(document)
    }
}

impl PartialEq for Settings {
    fn eq(&self, other: &Self) -> bool {
        let said = |settings: &Self| -> Vec<(&'static str, Value)> {
            let said = settings.0.iter();
            said.map(|given| (given.key, given.value.clone())).collect()
        };
        said(self) == said(other)
    }
}

/// Whether the file may give it relative to its own directory.
fn is_path(key: &str) -> bool {
    key.ends_with("_file") || key.ends_with("_dir") || key == "backup.dir"
}

/// In the words of the command line; numbers and lists of the file stay such. Nothing is null.
fn value(raw: &Raw, directory: Option<&Path>) -> Value {
    match raw {
        Raw::Text(text) | Raw::String(text) if text.is_empty() => Value::Null,
        Raw::Text(text) | Raw::String(text) => match directory {
            Some(directory) => json!(directory.join(text).display().to_string()),
            None => json!(text),
        },
        Raw::Integer(text) | Raw::Fraction(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| json!(text))
        }
        Raw::Boolean(boolean) => json!(boolean),
        Raw::List(elements) => {
            let elements = elements.iter().map(|(raw, _)| value(raw, directory));
            Value::Array(elements.collect())
        }
        Raw::Other(kind) => json!(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever adds a setting that must not be seen has to hide it here first.
    #[test]
    fn no_setting_is_a_secret() {
        for setting in SETTINGS {
            let name = setting.key.rsplit('.').next().unwrap();
            for secret in ["password", "secret", "token", "key", "credentials"] {
                assert!(!name.ends_with(secret), "{}", setting.key);
            }
        }
    }

    #[test]
    fn every_setting_that_names_a_file_is_known_to() {
        let paths = SETTINGS.iter().filter(|setting| is_path(setting.key));
        let paths: Vec<&str> = paths.map(|setting| setting.key).collect();
        let files = |port: &str| {
            ["cert_file", "key_file", "trusted_ca_file", "crl_file"]
                .map(|file| format!("tls.{port}.{file}"))
        };
        for key in files("client").iter().chain(&files("peer")) {
            assert!(paths.contains(&key.as_str()), "{key}");
        }
        for key in ["node.data_dir", "auth.audit_file", "backup.dir"] {
            assert!(paths.contains(&key), "{key}");
        }
        assert_eq!(paths.len(), 11, "{paths:?}");
    }
}
