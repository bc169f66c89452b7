//! Parsing of the endpoints that a client is configured with.

use crate::api::{Error, ErrorKind};

/// Returns the endpoint with a port: the default one if it names none.
pub(super) fn with_port(endpoint: &str) -> Result<String, Error> {
    let endpoint = endpoint.trim();
    let valid = !endpoint.is_empty()
        && !endpoint.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ',' | '@'));
    if !valid {
        return Err(invalid(&format!(
            "{endpoint:?} is not an endpoint: write host:port, such as n1.example:7400"
        )));
    }
    let (host, port) = match endpoint.rsplit_once(':') {
        // An IPv6 address without a port has colons and no bracket at its end.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (endpoint, None),
    };
    match port {
        Some(port) if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) => {
            Ok(endpoint.to_string())
        }
        Some(_) => Err(invalid(&format!(
            "{endpoint:?} is not an endpoint: write host:port, with a port from 1 to 65535"
        ))),
        None if host.contains(':') && !host.starts_with('[') => {
            Ok(format!("[{host}]:{DEFAULT_PORT}"))
        }
        None => Ok(format!("{host}:{DEFAULT_PORT}")),
    }
}

/// The default client port.
const DEFAULT_PORT: u16 = 7400;

/// The error for an argument that cannot be used.
pub(super) fn invalid(detail: &str) -> Error {
    Error::not_applied(ErrorKind::InvalidArgument, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ErrorKind;

    #[test]
    fn endpoints_get_the_default_port_and_nonsense_is_refused() {
        for (given, expected) in [
            ("n1", "n1:7400"),
            (" n1:7410 ", "n1:7410"),
            ("10.0.0.1", "10.0.0.1:7400"),
            ("::1", "[::1]:7400"),
            ("[::1]", "[::1]:7400"),
            ("[::1]:7410", "[::1]:7410"),
        ] {
            assert_eq!(with_port(given).unwrap(), expected);
        }
        for bad in [
            "",
            " ",
            "n1:",
            "n1:0",
            "n1:99999",
            ":7400",
            "http://n1:7400",
            "n1,n2",
        ] {
            let error = with_port(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument, "{bad:?}");
        }
    }
}
