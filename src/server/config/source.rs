//! The sources of settings, merged: for every key the value of the strongest one, and its place.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{At, ConfigError};
use super::setting::{Setting, environment_variable};

/// Variables that our programs set for the commands they run, or read themselves besides their
/// flags. A node may be started from there.
pub(super) const OF_COMMANDS: [&str; 9] = [
    "LEASEHOLD_FENCING_TOKEN",
    "LEASEHOLD_LEASE",
    "LEASEHOLD_LOCK_KEY",
    "LEASEHOLD_NEW_PASSWORD",
    "LEASEHOLD_PASSWORD",
    "LEASEHOLD_WATCH_EVENT_TYPE",
    "LEASEHOLD_WATCH_KEY",
    "LEASEHOLD_WATCH_REVISION",
    "LEASEHOLD_WATCH_VALUE",
];

/// The sources of settings, weakest first.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// The configuration file, if there is one. Relative paths in it start at its own directory.
    pub file: Option<PathBuf>,
    /// Environment variables; those of other programs are ignored.
    pub env: Vec<(String, String)>,
    /// Flags as `(section.key, value)`.
    pub flags: Vec<(String, String)>,
}

/// A value as its source had it.
#[derive(Clone, Debug)]
pub(super) enum Raw {
    /// Text of the environment, of a flag or of a default: may stand for any type.
    Text(String),
    /// A string of the file.
    String(String),
    /// An integer of the file, as written.
    Integer(String),
    /// A number of the file with a fraction, as written.
    Fraction(String),
    /// A boolean of the file.
    Boolean(bool),
    /// A list of the file, each element with its place.
    List(Vec<(Self, At)>),
    /// Anything else the file may hold, by the name of its type.
    Other(&'static str),
}

/// Every key with its value and where that came from.
pub(super) struct Values {
    settings: &'static [Setting],
    values: BTreeMap<&'static str, (Raw, At)>,
    /// Where relative paths of the file begin.
    directory: PathBuf,
}

impl Values {
    /// The values of `settings` in the sources.
    pub(super) fn collect(
        settings: &'static [Setting],
        sources: ConfigSources,
    ) -> Result<Self, ConfigError> {
        let default = |setting: &Setting| {
            let raw = Raw::Text(setting.default.to_owned());
            (setting.key, (raw, At::Default(setting.key)))
        };
        let mut collected = Self {
            settings,
            values: settings.iter().map(default).collect(),
            directory: PathBuf::new(),
        };
        if let Some(path) = &sources.file {
            collected.directory = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
            collected.read_file(path)?;
        }
        for (name, value) in sources.env {
            collected.take_variable(name, value)?;
        }
        for (key, value) in sources.flags {
            collected.set(&key, Raw::Text(value), At::Flag(key.clone()))?;
        }
        Ok(collected)
    }

    /// The declaration of a setting.
    pub(super) fn setting(&self, key: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.key == key)
    }

    /// The value of a declared setting, and its place.
    pub(super) fn raw(&self, key: &str) -> &(Raw, At) {
        self.values
            .get(key)
            .expect("only declared settings are read")
    }

    /// The directory that a path found at this place is relative to.
    pub(super) fn directory(&self, at: &At) -> &Path {
        match at {
            At::File { .. } => &self.directory,
            _ => Path::new(""),
        }
    }

    fn set(&mut self, key: &str, raw: Raw, at: At) -> Result<(), ConfigError> {
        match self.setting(key) {
            Some(setting) => {
                self.values.insert(setting.key, (raw, at));
                Ok(())
            }
            None => Err(ConfigError::UnknownKey {
                at,
                key: key.to_owned(),
                nearest: self.nearest(key),
            }),
        }
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let place = |offset: usize| At::File {
            path: path.to_owned(),
            line: 1 + text
                .bytes()
                .take(offset)
                .filter(|byte| *byte == b'\n')
                .count(),
        };
        let table = DeTable::parse(&text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            // Of a second value for a key the parser points at the key, and does not name it.
            let message = match (error.message(), text.get(span.clone())) {
                ("duplicate key", Some(key)) => format!("`{key}` is set twice: leave one out"),
                (message, _) => message.to_owned(),
            };
            ConfigError::Syntax {
                at: place(span.start),
                message,
            }
        })?;
        let mut found = Vec::new();
        self.flatten("", table.get_ref(), &mut found);
        // In the order of the file, so that the first mistake is the one reported.
        found.sort_by_key(|entry| entry.offset);
        for entry in found {
            let raw = raw(entry.value, &place);
            self.set(&entry.key, raw, place(entry.offset))?;
        }
        Ok(())
    }

    /// Takes a variable if it is a setting. A variable that begins like a section but is no setting
    /// is an error, as an unknown key is, unless another program uses it. Any other variable with our
    /// prefix only causes a warning, by `unknown`.
    fn take_variable(&mut self, name: String, value: String) -> Result<(), ConfigError> {
        let settings = self.settings;
        let known = settings
            .iter()
            .find(|setting| environment_variable(setting.key) == name);
        if let Some(setting) = known {
            return self.set(setting.key, Raw::Text(value), At::Environment(name));
        }
        let ours = settings.iter().any(|setting| {
            let (section, _) = setting.key.split_once('.').expect("keys have a section");
            name.starts_with(&format!("{}_", environment_variable(section)))
        });
        if !ours || is_of_platform(&name, &value) || is_of_command(&name) {
            return Ok(());
        }
        let written = name.to_lowercase();
        let closeness = |setting: &&Setting| {
            let variable = environment_variable(setting.key).to_lowercase();
            strsim::normalized_damerau_levenshtein(&variable, &written)
        };
        Err(ConfigError::UnknownKey {
            at: At::Environment(name.clone()),
            key: name,
            nearest: settings
                .iter()
                .max_by(|a, b| closeness(a).total_cmp(&closeness(b)))
                .map(|setting| setting.key),
        })
    }

    fn flatten<'a>(&self, prefix: &str, table: &'a DeTable<'a>, found: &mut Vec<Entry<'a>>) {
        for (name, value) in table {
            let key = format!("{prefix}{}", name.get_ref());
            match value.get_ref() {
                // Of an unknown section the first key is reported, if it has one.
                DeValue::Table(inner) if self.is_section(&key) || !inner.is_empty() => {
                    self.flatten(&format!("{key}."), inner, found);
                }
                other => found.push(Entry {
                    key,
                    offset: name.span().start,
                    value: other,
                }),
            }
        }
    }

    /// Whether this is a section, or holds one.
    fn is_section(&self, key: &str) -> bool {
        let prefix = format!("{key}.");
        let mut settings = self.settings.iter();
        settings.any(|setting| setting.key.starts_with(&prefix))
    }

    /// The setting whose key is most like `key`, if any is at all like it.
    fn nearest(&self, key: &str) -> Option<&'static str> {
        let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
        let likeness = |known: &str| {
            let whole = strsim::normalized_damerau_levenshtein(known, key);
            // The right name in the wrong section is nearer than any other misspelling.
            let name = strsim::normalized_damerau_levenshtein(&last(known), &last(key));
            whole.max(if name == 1.0 { 0.95 } else { name * 0.8 })
        };
        // `max_by` returns the last of several: of equals the first one declared is meant.
        let settings = self.settings.iter().rev();
        settings
            .map(|setting| (likeness(setting.key), setting.key))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(likeness, _)| *likeness > 0.55)
            .map(|(_, key)| key)
    }
}

/// An entry of the file.
struct Entry<'a> {
    key: String,
    offset: usize,
    value: &'a DeValue<'a>,
}

/// The variables of the environment as text. Those of other programs may be anything.
///
/// # Errors
/// One that may be a setting is not UTF-8.
pub fn variables_as_text(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut found = Vec::new();
    for (name, value) in variables {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => found.push((name, value)),
            (name, _) => {
                let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                if name.starts_with("LEASEHOLD_") && !is_of_command(&name) {
                    return Err(ConfigError::NotUtf8 {
                        at: At::Environment(name),
                    });
                }
            }
        }
    }
    Ok(found)
}

/// Whether one of our programs uses this variable for something else than a setting.
pub(super) fn is_of_command(name: &str) -> bool {
    OF_COMMANDS.contains(&name)
}

/// Whether container platforms set this variable for a service whose name begins like ours, as
/// `LEASEHOLD_SERVICE_HOST` and `LEASEHOLD_NODE_PORT_7400_UDP_ADDR`.
pub(super) fn is_of_platform(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_")
        || (name.ends_with("_PORT") && value.contains("://"))
        || name
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn raw(value: &DeValue<'_>, place: &dyn Fn(usize) -> At) -> Raw {
    match value {
        DeValue::String(text) => Raw::String(text.to_string()),
        DeValue::Integer(integer) if integer.radix() == 10 => {
            Raw::Integer(integer.as_str().replace('_', ""))
        }
        DeValue::Boolean(boolean) => Raw::Boolean(*boolean),
        DeValue::Array(elements) => Raw::List(
            elements
                .iter()
                .map(|element| (raw(element.get_ref(), place), place(element.span().start)))
                .collect(),
        ),
        DeValue::Integer(_) => Raw::Other("a number that is not decimal"),
        DeValue::Float(float) => Raw::Fraction(float.as_str().replace('_', "")),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}
