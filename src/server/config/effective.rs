//! The settings in force, each with its source, as a running node shows them.

use std::path::Path;

use serde_json::{Value, json};

use super::error::At;
use super::sections::SETTINGS;
use super::source::{Raw, Values};

/// Every setting, in the order of the documentation.
///
/// None of them is a secret: keys and passwords are in files of their own, whose paths are settings.
/// Two configurations are equal if their values are, whatever their sources.
#[derive(Clone, Debug)]
pub struct EffectiveConfig(Vec<EffectiveSetting>);

/// One setting, from its strongest source.
#[derive(Clone, Debug)]
struct EffectiveSetting {
    key: &'static str,
    value: Value,
    at: At,
}

impl EffectiveConfig {
    pub(super) fn of(values: &Values) -> Self {
        let effective = |key: &'static str| {
            let (raw, at) = values.raw(key);
            let directory = is_path(key).then(|| values.directory(at));
            EffectiveSetting {
                key,
                value: value(raw, directory),
                at: at.clone(),
            }
        };
        Self(
            SETTINGS
                .iter()
                .map(|setting| effective(setting.key))
                .collect(),
        )
    }

    /// Where a setting was found.
    pub(crate) fn at(&self, key: &str) -> At {
        let mut settings = self.0.iter();
        let found = settings.find(|setting| setting.key == key);
        found.expect("every setting is in here").at.clone()
    }

    /// For each key the value, the kind of its source, and the place in that.
    pub fn document(&self) -> Value {
        let mut document = serde_json::Map::new();
        for EffectiveSetting { key, value, at } in &self.0 {
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

impl PartialEq for EffectiveConfig {
    fn eq(&self, other: &Self) -> bool {
        let values = |config: &'_ Self| -> Vec<(&'static str, Value)> {
            let settings = config.0.iter();
            let pair = |setting: &EffectiveSetting| (setting.key, setting.value.clone());
            settings.map(pair).collect()
        };
        values(self) == values(other)
    }
}

/// Whether it is a path, which the file may give relative to its own directory.
fn is_path(key: &str) -> bool {
    key.ends_with("_file") || key.ends_with("_dir") || key == "backup.dir"
}

/// As on the command line, but numbers and lists of the file stay such. An empty value is null.
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

    /// A setting that is a secret would have to be hidden here first.
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
        let ports = ["client", "etcd", "peer"];
        for key in ports.map(files).iter().flatten() {
            assert!(paths.contains(&key.as_str()), "{key}");
        }
        for key in [
            "node.data_dir",
            "auth.audit_file",
            "auth.oidc.jwks_file",
            "backup.dir",
        ] {
            assert!(paths.contains(&key), "{key}");
        }
        assert_eq!(paths.len(), 16, "{paths:?}");
    }
}
