//! The parsers of settings: from the text of a source to a value.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use rustls_pki_types::DnsName;

use super::error::{At, ConfigError};
use super::source::{Raw, Values};
use crate::node::recovery::ClusterState;
use crate::transport::{SpiffeRule, SpiffeRuleError, check_trust_domain};
use crate::types::is_name;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text, for people.
    Text,
}

impl Values {
    /// The text of `key`, or `None` where it is empty.
    pub(super) fn optional(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let (raw, at) = self.raw(key);
        match raw {
            Raw::Text(text) | Raw::String(text) => {
                Ok(Some(text.clone()).filter(|text| !text.is_empty()))
            }
            other => Err(wrong_type(key, at, "a string in quotes", other)),
        }
    }

    /// The text of `key`, which must not be empty.
    pub(super) fn required(&self, key: &'static str) -> Result<String, ConfigError> {
        self.optional(key)?.ok_or_else(|| ConfigError::Missing {
            key,
            help: self.setting(key).map_or("", |setting| setting.help),
        })
    }

    /// A name for a node.
    pub(super) fn node_name(&self, key: &'static str) -> Result<String, ConfigError> {
        let name = self.required(key)?;
        if is_name(&name) {
            return Ok(name);
        }
        let problem = format!("a name {NAME_FORM}");
        Err(self.invalid(key, &problem))
    }

    pub(super) fn cluster_state(&self, key: &'static str) -> Result<ClusterState, ConfigError> {
        match self.required(key)?.as_str() {
            "new" => Ok(ClusterState::New),
            "existing" | "join" => Ok(ClusterState::Existing),
            _ => Err(self.invalid(key, "choose new, existing or join")),
        }
    }

    pub(super) fn log_format(&self, key: &'static str) -> Result<LogFormat, ConfigError> {
        match self.required(key)?.as_str() {
            "json" => Ok(LogFormat::Json),
            "text" => Ok(LogFormat::Text),
            _ => Err(self.invalid(key, "choose json or text")),
        }
    }

    /// A path, which must not be empty.
    pub(super) fn path(&self, key: &'static str) -> Result<PathBuf, ConfigError> {
        let path = self.required(key)?;
        Ok(self.directory(&self.at(key)).join(path))
    }

    /// A path, if one is given.
    pub(super) fn optional_path(&self, key: &'static str) -> Result<Option<PathBuf>, ConfigError> {
        let path = self.optional(key)?;
        Ok(path.map(|path| self.directory(&self.at(key)).join(path)))
    }

    /// A SPIFFE trust domain, if one is given.
    pub(super) fn trust_domain(&self, key: &'static str) -> Result<Option<String>, ConfigError> {
        let name = self.optional(key)?;
        match name.as_deref().map(check_trust_domain) {
            None | Some(Ok(())) => Ok(name),
            Some(Err(error)) => Err(self.invalid(key, &error.to_string())),
        }
    }

    /// The rules that give SPIFFE ids users.
    pub(super) fn spiffe_rules(&self, key: &'static str) -> Result<Vec<SpiffeRule>, ConfigError> {
        let entries = self.list(key)?.into_iter();
        entries
            .map(|(entry, at)| {
                entry
                    .parse()
                    .map_err(|error: SpiffeRuleError| ConfigError::Invalid {
                        at,
                        key,
                        value: entry,
                        problem: error.to_string(),
                    })
            })
            .collect()
    }

    /// A version of three numbers.
    pub(super) fn version(&self, key: &'static str) -> Result<String, ConfigError> {
        let version = self.required(key)?;
        let is_number = |part: &str| part.len() < 6 && part.parse::<u32>().is_ok();
        match version.split('.').count() == 3 && version.split('.').all(is_number) {
            true => Ok(version),
            false => Err(self.invalid(key, "write three numbers, for example 3.6.14")),
        }
    }

    pub(super) fn boolean(&self, key: &'static str) -> Result<bool, ConfigError> {
        let (raw, at) = self.raw(key);
        match raw {
            Raw::Boolean(boolean) => Ok(*boolean),
            Raw::Text(text) => match text.as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(self.invalid(key, "choose true or false")),
            },
            other => Err(wrong_type(key, at, "true or false, without quotes", other)),
        }
    }

    pub(super) fn integer<T: TryFrom<u64>>(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<T, ConfigError> {
        let (raw, at) = self.raw(key);
        let text = match raw {
            Raw::Integer(text) | Raw::Text(text) => text,
            other => return Err(wrong_type(key, at, "a whole number, without quotes", other)),
        };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| {
                let (least, most) = range.into_inner();
                let problem = format!("choose a whole number between {least} and {most}");
                self.invalid(key, &problem)
            })
    }

    /// A fraction above 0 and at most 1.
    pub(super) fn ratio(&self, key: &'static str) -> Result<f64, ConfigError> {
        let ratio = self
            .number(key)?
            .filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
        ratio.ok_or_else(|| {
            self.invalid(key, "choose a number above 0 and up to 1, for example 0.8")
        })
    }

    /// A fraction from 0 to 1.
    pub(super) fn share(&self, key: &'static str) -> Result<f64, ConfigError> {
        let share = self
            .number(key)?
            .filter(|share| (0.0..=1.0).contains(share));
        share.ok_or_else(|| self.invalid(key, "choose a number from 0 to 1, for example 0.01"))
    }

    /// A number, if it is one.
    fn number(&self, key: &'static str) -> Result<Option<f64>, ConfigError> {
        let (raw, at) = self.raw(key);
        let text = match raw {
            Raw::Fraction(text) | Raw::Integer(text) | Raw::Text(text) => text,
            other => {
                return Err(wrong_type(
                    key,
                    at,
                    "a number such as 0.8, without quotes",
                    other,
                ));
            }
        };
        Ok(text.parse().ok())
    }

    pub(super) fn duration(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Duration, ConfigError> {
        let (raw, at) = self.raw(key);
        let text = match raw {
            Raw::String(text) | Raw::Text(text) => text,
            other => return Err(wrong_type(key, at, "a duration such as \"50ms\"", other)),
        };
        let [least, most] = [range.start(), range.end()].map(|bound| {
            let bound = humantime::format_duration(*bound).to_string();
            bound.replace(' ', "")
        });
        let (least, most) = (
            format!("at least {least} is required"),
            format!("at most {most} is allowed"),
        );
        let problem = match humantime::parse_duration(text) {
            Ok(duration) if duration > *range.end() => most,
            Ok(duration) if duration < *range.start() => least,
            Ok(duration) => return Ok(duration),
            Err(humantime::DurationError::NumberOverflow) => most,
            Err(_) if text.starts_with('-') => least,
            Err(_) => "write a number and a unit, for example 50ms or 1s".to_owned(),
        };
        Err(self.invalid(key, &problem))
    }

    /// A duration up to `most`, or none if it is zero.
    pub(super) fn optional_duration(
        &self,
        key: &'static str,
        most: Duration,
    ) -> Result<Option<Duration>, ConfigError> {
        let duration = self.duration(key, Duration::ZERO..=most)?;
        Ok(Some(duration).filter(|duration| !duration.is_zero()))
    }

    /// A duration from `least` to an hour.
    pub(super) fn duration_at_least(
        &self,
        key: &'static str,
        least: Duration,
    ) -> Result<Duration, ConfigError> {
        let duration = self.duration(key, Duration::ZERO..=Duration::from_secs(3_600))?;
        if duration < least {
            return Err(ConfigError::Relation {
                at: self.at(key),
                problem: format!("{key} = {duration:?} is too short: choose {least:?} or more"),
            });
        }
        Ok(duration)
    }

    pub(super) fn bytes<T: TryFrom<u64>>(
        &self,
        key: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<T, ConfigError> {
        let (raw, at) = self.raw(key);
        let text = match raw {
            Raw::String(text) | Raw::Text(text) | Raw::Integer(text) => text,
            other => return Err(wrong_type(key, at, "a size such as \"64MiB\"", other)),
        };
        let (least, most) = (show_bytes(*range.start()), show_bytes(*range.end()));
        let bytes = parse_bytes(text);
        if bytes.is_none() && !text.starts_with('-') {
            return Err(self.invalid(
                key,
                "write a number and a unit, for example 8KiB, 1.5MiB or 1GiB",
            ));
        }
        bytes
            .filter(|bytes| range.contains(bytes))
            .and_then(|bytes| T::try_from(bytes).ok())
            .ok_or_else(|| self.invalid(key, &format!("choose between {least} and {most}")))
    }

    /// The elements of a list, each with its place. In the environment and in flags they are
    /// separated by commas.
    pub(super) fn list(&self, key: &'static str) -> Result<Vec<(String, At)>, ConfigError> {
        let (raw, at) = self.raw(key);
        match raw {
            Raw::Text(text) => Ok(text
                .split(',')
                .map(str::trim)
                .filter(|element| !element.is_empty())
                .map(|element| (element.to_owned(), at.clone()))
                .collect()),
            Raw::List(elements) => elements
                .iter()
                .map(|(element, at)| match element {
                    Raw::String(text) => Ok((text.clone(), at.clone())),
                    other => Err(wrong_type(key, at, "a list of strings in quotes", other)),
                })
                .collect(),
            other => Err(wrong_type(
                key,
                at,
                "a list, as in [\"...\", \"...\"]",
                other,
            )),
        }
    }

    /// The elements of a list.
    pub(super) fn names(&self, key: &'static str) -> Result<Vec<String>, ConfigError> {
        Ok(self.list(key)?.into_iter().map(|(name, _)| name).collect())
    }

    /// An address to listen on: an IP address, because a host name may resolve to several or change.
    pub(super) fn socket_address(&self, key: &'static str) -> Result<SocketAddr, ConfigError> {
        self.required(key)?.parse().map_err(|_| {
            self.invalid(
                key,
                "write an IP address and a port, for example 0.0.0.0:7400 or [::1]:7400",
            )
        })
    }

    /// An address to listen on, if one is given.
    pub(super) fn optional_socket_address(
        &self,
        key: &'static str,
    ) -> Result<Option<SocketAddr>, ConfigError> {
        let text = self.optional(key)?;
        text.map(|_| self.socket_address(key)).transpose()
    }

    /// An address that others can dial, with a host name or an IP address, if one is given.
    pub(super) fn optional_address(
        &self,
        key: &'static str,
    ) -> Result<Option<String>, ConfigError> {
        let text = self.optional(key)?;
        if let Some(Err(problem)) = text.as_deref().map(split_address) {
            return Err(self.invalid(key, &problem));
        }
        Ok(text)
    }

    /// Where the value of `key` came from.
    pub(super) fn at(&self, key: &'static str) -> At {
        self.raw(key).1.clone()
    }

    /// Where the first of `keys` that is not a default came from.
    pub(super) fn at_first_set(&self, keys: &[&'static str]) -> At {
        keys.iter()
            .map(|key| self.at(key))
            .find(|at| !matches!(at, At::Default(_)))
            .unwrap_or_else(|| self.at(keys[0]))
    }

    /// The error that the value of `key` is invalid.
    pub(super) fn invalid(&self, key: &'static str, problem: &str) -> ConfigError {
        let (raw, at) = self.raw(key);
        ConfigError::Invalid {
            at: at.clone(),
            key,
            value: match raw {
                Raw::Text(text) | Raw::String(text) | Raw::Integer(text) | Raw::Fraction(text) => {
                    text.clone()
                }
                Raw::Boolean(boolean) => boolean.to_string(),
                Raw::List(_) => "(a list)".to_owned(),
                Raw::Other(kind) => (*kind).to_owned(),
            },
            problem: problem.to_owned(),
        }
    }

    /// The error that two listeners have the same address.
    pub(super) fn same_socket(&self, first: &'static str, second: &'static str) -> ConfigError {
        let text = |key| match &self.raw(key).0 {
            Raw::Text(text) | Raw::String(text) => text.clone(),
            _ => String::new(),
        };
        ConfigError::SameSocket {
            at: self.at_first_set(&[second, first]),
            first,
            second,
            address: text(second),
        }
    }
}

fn wrong_type(key: &'static str, at: &At, expected: &'static str, found: &Raw) -> ConfigError {
    ConfigError::WrongType {
        at: at.clone(),
        key,
        expected,
        found: match found {
            Raw::Text(_) | Raw::String(_) => "a string",
            Raw::Integer(_) => "a number",
            Raw::Fraction(_) => "a number with a fraction",
            Raw::Boolean(_) => "a boolean",
            Raw::List(_) => "a list",
            Raw::Other(kind) => kind,
        },
    }
}

/// The form of a node's name, for errors.
pub(super) const NAME_FORM: &str =
    "has 1 to 64 of a-z A-Z 0-9 . _ - and starts with a letter or digit";

/// Host and port of an address that others can dial: `10.0.0.1:7401`, `[::1]:7401` or
/// `db1.example.org:7401`. The host keeps its brackets.
pub(super) fn split_address(address: &str) -> Result<(&str, u16), String> {
    let form = || {
        format!(
            "`{address}` is not an address: write host:port, for example 10.0.0.1:7401, \
             [fd00::1]:7401 or db1.example.org:7401"
        )
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    let port: u16 = port.parse().map_err(|_| form())?;
    if port == 0 {
        return Err(format!(
            "`{address}` has port 0, which cannot be dialled: give the actual port"
        ));
    }
    if let Ok(parsed) = address.parse::<SocketAddr>() {
        if parsed.ip().is_unspecified() {
            return Err(format!(
                "`{address}` stands for all addresses of this machine and cannot be dialled: give \
                 the one by which others reach it"
            ));
        }
        return Ok((host, port));
    }
    // A name whose last part is a number was meant to be an IP address.
    let last = host.rsplit('.').next().unwrap_or_default();
    let numeric = last.bytes().all(|byte| byte.is_ascii_digit());
    if numeric || DnsName::try_from(host).is_err() {
        return Err(form());
    }
    Ok((host, port))
}

/// A number of bytes with a unit: powers of 1024 (`KiB`) or of 1000 (`kB`), at most three decimals.
/// What no number holds is the largest one: too much for every setting.
fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "PiB" => 1 << 50,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "PB" => 1_000_000_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.len() > 3 {
        return None;
    }
    let thousandths = format!("{fraction:0<3}").parse::<u64>().ok()?;
    if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX);
    let whole = whole.saturating_mul(scale);
    let part = thousandths.checked_mul(scale)?;
    (part % 1_000 == 0).then_some(())?;
    Some(whole.saturating_add(part / 1_000))
}

fn show_bytes(bytes: u64) -> String {
    for (unit, scale) in [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ] {
        if bytes >= scale && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact_or_refused() {
        assert_eq!(parse_bytes("1.5MiB"), Some(1_572_864));
        assert_eq!(parse_bytes("8KiB"), Some(8_192));
        assert_eq!(parse_bytes("64 MB"), Some(64_000_000));
        assert_eq!(parse_bytes("42"), Some(42));
        assert_eq!(parse_bytes("0.125KiB"), Some(128));
        for wrong in [
            "", "MiB", "1.2.3MiB", "-1KiB", "1mib", "1.5", "0.001KiB", ".5KiB", "1.KiB",
        ] {
            assert_eq!(parse_bytes(wrong), None, "{wrong:?}");
        }
        for too_much in ["99999999999TiB", "99999999999999999999"] {
            assert_eq!(parse_bytes(too_much), Some(u64::MAX), "{too_much}");
        }
    }

    #[test]
    fn addresses_to_dial_have_a_host_and_a_port() {
        for right in [
            "10.0.0.1:7401",
            "[fd00::1]:7401",
            "db1.example.org:1",
            "localhost:65535",
        ] {
            assert!(split_address(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            ":7401",
            "10.0.0.1",
            "10.0.0.1:",
            "10.0.0.1:65536",
            "10.0.0:7401",
            "300.0.0.1:1",
            "fd00::1:7401",
            "a b:1",
            "http://x:1",
            "0.0.0.0:7401",
            "[::]:7401",
            "n1:0",
            "[x]:1",
        ] {
            assert!(split_address(wrong).is_err(), "{wrong}");
        }
    }
}
