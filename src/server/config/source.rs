//! The sources laid over each other: for every key the value of the strongest one, and its place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{At, ConfigError};
use super::unknown::{is_of_command, is_of_platform};
use super::{ConfigSources, SETTINGS, Setting, environment_variable};

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
    values: BTreeMap<&'static str, (Raw, At)>,
    /// Where relative paths of the file begin.
    directory: PathBuf,
}

impl Values {
    pub(super) fn collect(sources: ConfigSources) -> Result<Self, ConfigError> {
        let default = |setting: &Setting| {
            let raw = Raw::Text(setting.default.to_owned());
            (setting.key, (raw, At::Default(setting.key)))
        };
        let mut collected = Self {
            values: SETTINGS.iter().map(default).collect(),
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

    /// The value of a key that stands in the table, and its place.
    pub(super) fn raw(&self, key: &str) -> &(Raw, At) {
        self.values
            .get(key)
            .expect("only keys of SETTINGS are asked for")
    }

    /// The directory that a path found at this place is relative to.
    pub(super) fn directory(&self, at: &At) -> &Path {
        match at {
            At::File { .. } => &self.directory,
            _ => Path::new(""),
        }
    }

    fn set(&mut self, key: &str, raw: Raw, at: At) -> Result<(), ConfigError> {
        match SETTINGS.iter().find(|setting| setting.key == key) {
            Some(setting) => {
                self.values.insert(setting.key, (raw, at));
                Ok(())
            }
            None => Err(ConfigError::UnknownKey {
                at,
                key: key.to_owned(),
                nearest: nearest(key),
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
        let table = DeTable::parse(&text).map_err(|error| ConfigError::Syntax {
            at: place(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut found = Vec::new();
        flatten("", table.get_ref(), &mut found);
        // In the order of the file, so that the first mistake is the one reported.
        found.sort_by_key(|entry| entry.offset);
        for entry in found {
            let raw = raw(entry.value, &place);
            self.set(&entry.key, raw, place(entry.offset))?;
        }
        Ok(())
    }

    /// Takes a variable if it is one of ours. A variable that begins like one of our sections but
    /// is none is an error, as an unknown key is, but for those that others set for ends of their own.
    /// Of what else begins as ours do, `unknown` warns.
    fn take_variable(&mut self, name: String, value: String) -> Result<(), ConfigError> {
        let known = SETTINGS
            .iter()
            .find(|setting| environment_variable(setting.key) == name);
        if let Some(setting) = known {
            return self.set(setting.key, Raw::Text(value), At::Environment(name));
        }
        let ours = SETTINGS.iter().any(|setting| {
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
            nearest: SETTINGS
                .iter()
                .max_by(|a, b| closeness(a).total_cmp(&closeness(b)))
                .map(|setting| setting.key),
        })
    }
}

/// An entry of the file.
struct Entry<'a> {
    key: String,
    offset: usize,
    value: &'a DeValue<'a>,
}

fn flatten<'a>(prefix: &str, table: &'a DeTable<'a>, found: &mut Vec<Entry<'a>>) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        match value.get_ref() {
            // A section that we know, or one that holds a section that we know.
            DeValue::Table(inner) if is_section(&key) => {
                flatten(&format!("{key}."), inner, found);
            }
            // Of an unknown section the first key is named, if there is any.
            DeValue::Table(inner) if !inner.is_empty() => {
                flatten(&format!("{key}."), inner, found);
            }
            other => found.push(Entry {
                key,
                offset: name.span().start,
                value: other,
            }),
        }
    }
}

fn is_section(key: &str) -> bool {
    let prefix = format!("{key}.");
    SETTINGS
        .iter()
        .any(|setting| setting.key.starts_with(&prefix))
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

/// The known key that looks most like `key`, if any looks at all like it.
fn nearest(key: &str) -> Option<&'static str> {
    let last = |key: &str| key.rsplit('.').next().unwrap_or_default().to_owned();
    let likeness = |known: &str| {
        let whole = strsim::normalized_damerau_levenshtein(known, key);
        // The right name in the wrong section is nearer than any other misspelling.
        let name = strsim::normalized_damerau_levenshtein(&last(known), &last(key));
        whole.max(if name == 1.0 { 0.95 } else { name * 0.8 })
    };
    // Of two that look the same the first in the table: `max_by` keeps the last.
    SETTINGS
        .iter()
        .rev()
        .map(|setting| (likeness(setting.key), setting.key))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.55)
        .map(|(_, key)| key)
}
