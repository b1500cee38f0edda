//! Addresses of HTTP servers, and paths on them.

use super::Problem;
use crate::sourced_value::SourcedValue;

const PATH: &str = "a path such as \"/health\"";

/// The use of an address, which decides what it may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UrlUse {
    /// A collector of telemetry.
    Collector,
    /// A server that does work.
    Server,
    /// This node's own, as others reach it.
    Public,
}

impl UrlUse {
    const fn example(self) -> &'static str {
        match self {
            UrlUse::Collector => "an address such as \"https://collector.example.org:4318\"",
            UrlUse::Server => "an address such as \"http://127.0.0.1:8000\"",
            UrlUse::Public => "an address such as \"https://scheduler.example.org\"",
        }
    }

    const fn instead_of_credentials(self) -> &'static str {
        match self {
            UrlUse::Collector => "put them into `telemetry_headers`",
            UrlUse::Server => "put the key into a file and give `api_key_file`",
            UrlUse::Public => "leave them out",
        }
    }
}

/// An address with a password in it is refused: addresses are logged, headers and key files are not.
pub(crate) fn url(given: &SourcedValue, purpose: UrlUse) -> Result<String, Problem> {
    let url = given.text().ok_or_else(|| Problem::expected(purpose.example(), given))?;
    let wrong = || Problem::new(format!("expected {}", purpose.example()));
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let rest = rest.ok_or_else(wrong)?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or("");
    if authority.contains('@') {
        let instead = purpose.instead_of_credentials();
        return Err(Problem::new(format!("credentials do not belong in the address: {instead}")));
    }
    if !names_a_host(authority) || url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(wrong());
    }
    if purpose == UrlUse::Collector {
        return Ok(url.to_owned());
    }
    if rest.contains(['?', '#']) {
        return Err(Problem::new("paths are added to this address: it cannot have a query"));
    }
    // Paths start with a slash of their own.
    Ok(url.trim_end_matches('/').to_owned())
}

/// `host`, `host:port`, `[::1]:port`.
pub(super) fn names_a_host(authority: &str) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host_is_fine = match bracketed {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '[', ']']),
    };
    host_is_fine && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}

/// A path that is appended to a server's address.
pub(crate) fn url_path(given: &SourcedValue) -> Result<String, Problem> {
    let path = given.text().ok_or_else(|| Problem::expected(PATH, given))?;
    let fine = path.starts_with('/') && path.chars().all(|c| c.is_ascii_graphic() && c != '#');
    if fine { Ok(path.to_owned()) } else { Err(Problem::new(format!("expected {PATH}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sourced_value::{Origin, Raw};

    fn text(text: &str) -> SourcedValue {
        SourcedValue::new(Raw::Text(text.to_owned()), Origin::Default)
    }

    #[test]
    fn addresses_are_of_a_host_and_perhaps_a_port() {
        let server = |address: &str| url(&text(address), UrlUse::Server);
        for (given, expected) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("https://h.example.org/a/b//", "https://h.example.org/a/b"),
            ("http://[::1]:1", "http://[::1]:1"),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(server(given).unwrap(), expected);
        }
        for bad in [
            "127.0.0.1:8000",
            "ftp://h",
            "http://",
            "http://:80",
            "http:///x",
            "http://h:0",
            "http://h:65536",
            "http://h:",
            "http://::1",
            "http://[::1",
            "http://[h]",
            "http://h/a b",
            "http://h/?q",
            "http://h/#f",
            "http://u:p@h",
        ] {
            assert!(server(bad).is_err(), "{bad}");
        }
        assert!(url(&text("http://h/?q"), UrlUse::Collector).is_ok());
    }

    #[test]
    fn paths_begin_with_a_slash() {
        assert_eq!(url_path(&text("/v1/models?x=1")).unwrap(), "/v1/models?x=1");
        for bad in ["", "health", "/a b", "/ä", "/#x", "http://h/"] {
            assert!(url_path(&text(bad)).is_err(), "{bad}");
        }
    }
}
