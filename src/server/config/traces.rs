//! Where traces go, and of which requests there are any.

use std::fmt;

use super::error::ConfigError;
use super::source::Values;
use super::value::split_address;

/// Where traces go, and of which requests there are any.
#[derive(Clone, Debug, PartialEq)]
pub struct TracingConfig {
    /// Nowhere, if there is none.
    pub collector: Option<Collector>,
    /// The share of requests that are traced, from 0 to 1, beside those that are slow.
    pub sample_ratio: f64,
}

/// What takes traces, by OTLP over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// As `host:port`.
    pub address: String,
    /// Where traces are taken there.
    pub path: String,
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.address, self.path)
    }
}

/// What the path ends with, by the protocol.
const TRACES_PATH: &str = "/v1/traces";

pub(super) fn traces(values: &Values) -> Result<TracingConfig, ConfigError> {
    const ENDPOINT: &str = "tracing.otlp_endpoint";
    let collector = match values.optional(ENDPOINT)? {
        None => None,
        Some(url) => Some(collector(&url).map_err(|problem| values.invalid(ENDPOINT, &problem))?),
    };
    Ok(TracingConfig {
        collector,
        sample_ratio: values.share("tracing.sample_ratio")?,
    })
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
    // It becomes a part of a request's first line.
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
