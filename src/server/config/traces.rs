//! The collector of traces.

use std::fmt;

use super::error::ConfigError;
use super::source::Values;
use super::value::split_address;

/// A collector of traces, by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// As `host:port`.
    pub address: String,
    /// The path of its URL.
    pub path: String,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

/// The end of the path, by the protocol.
const TRACES_PATH: &str = "/v1/traces";

impl Values {
    /// A collector, if one is given.
    pub(super) fn collector(&self, key: &'static str) -> Result<Option<Collector>, ConfigError> {
        let url = self.optional(key)?;
        let collector =
            url.map(|url| collector(&url).map_err(|problem| self.invalid(key, &problem)));
        collector.transpose()
    }
}

fn collector(url: &str) -> Result<Collector, String> {
    if url.starts_with("https://") {
        return Err(
            "traces are sent in plain HTTP: run a collector on this machine that forwards them \
             over TLS, and name it here, for example http://127.0.0.1:4318"
                .to_owned(),
        );
    }
    let form = || "write a URL such as http://127.0.0.1:4318".to_owned();
    let rest = url.strip_prefix("http://").ok_or_else(form)?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    split_address(address)?;
    // It becomes part of a request line.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%".contains(c);
    if !path.chars().all(is_plain) {
        return Err(format!("`{path}` is not a valid path: {}", form()));
    }
    let base = path.trim_end_matches('/');
    let base = base.strip_suffix(TRACES_PATH).unwrap_or(base);
    Ok(Collector {
        address: address.to_owned(),
        path: format!("{base}{TRACES_PATH}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_a_url_whose_path_ends_as_the_protocol_says() {
        for (url, shown) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[fd00::1]:80/", "http://[fd00::1]:80/v1/traces"),
            ("http://otel:4318/v1/traces", "http://otel:4318/v1/traces"),
            ("http://otel:4318/a/b/", "http://otel:4318/a/b/v1/traces"),
        ] {
            let collector = collector(url).unwrap_or_else(|problem| panic!("{url}: {problem}"));
            assert_eq!(collector.to_string(), shown);
        }
        for wrong in [
            "127.0.0.1:4318",
            "grpc://otel:4317",
            "http://otel",
            "http://:4318",
            "http://0.0.0.0:4318",
            "http://me:secret@otel:4318",
            "http://otel:4318/a?b",
            "http://otel:4318/a b",
            "http://otel:4318/\r\nHost: x",
        ] {
            assert!(collector(wrong).is_err(), "{wrong}");
        }
        let refused = collector("https://otel:4318").unwrap_err();
        assert!(refused.contains("over TLS"), "{refused}");
    }
}
