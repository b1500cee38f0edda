//! Hosts and origins, as browsers send them.

use super::url::names_a_host;
use super::{Problem, list};
use crate::sourced_value::SourcedValue;

const HOSTS: &str = "a list of host names such as [\"scheduler.lab.example.org\"]";
const HOST: &str =
    "a host name such as \"scheduler.lab.example.org\", without scheme and port, or \"*\"";
const HOST_PORT: &str = "a host and a port such as \"aim-bridge.internal:61000\"";
const ORIGINS: &str = "a list of origins such as [\"https://app.example.org\"]";
const ORIGIN: &str =
    "an origin such as \"https://app.example.org\" or \"http://localhost:3000\", or \"*\"";

/// Names of a server, in lower case; `*` for any.
pub(crate) fn hosts(given: &SourcedValue) -> Result<Vec<String>, Problem> {
    list(given, HOSTS, |item| {
        let wrong = || Problem::new(format!("expected {HOST}"));
        let host = item.text().ok_or_else(wrong)?.to_ascii_lowercase();
        // An IPv6 address is written as in a URL.
        let has_port = !host.ends_with(']') && host.contains(':');
        let plain = |c: char| c.is_ascii_graphic() && !"/?#@".contains(c);
        match names_a_host(&host) && !has_port && host.chars().all(plain) {
            true => Ok(host),
            false => Err(wrong()),
        }
    })
}

/// A host and a port.
pub(crate) fn host_port(given: &SourcedValue) -> Result<String, Problem> {
    let wrong = || Problem::new(format!("expected {HOST_PORT}"));
    let text = given.text().ok_or_else(|| Problem::expected(HOST_PORT, given))?;
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    // An IPv6 address is written as in a URL.
    let is_address = host.starts_with('[') && host.ends_with(']');
    let plain = |c: char| c.is_ascii_graphic() && !"/?#@*".contains(c);
    let is_host = names_a_host(host)
        && (is_address || !host.contains([':', '[', ']']))
        && host.chars().all(plain);
    match is_host && port.parse::<u16>().is_ok_and(|port| port > 0) {
        true => Ok(text.to_owned()),
        false => Err(wrong()),
    }
}

/// Origins of web pages, as browsers write them: in lower case, without the usual port; `*` for any.
pub(crate) fn origins(given: &SourcedValue) -> Result<Vec<String>, Problem> {
    list(given, ORIGINS, |item| {
        let wrong = || Problem::new(format!("expected {ORIGIN}"));
        let origin = item.text().ok_or_else(wrong)?.to_ascii_lowercase();
        if origin == "*" {
            return Ok(origin);
        }
        if origin == "null" {
            return Err(Problem::new(
                "any page can make its origin \"null\": give the origin of the page, or \"*\"",
            ));
        }
        let (scheme, authority) = origin.split_once("://").ok_or_else(wrong)?;
        let in_scheme = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        let plain = |c: char| c.is_ascii_graphic() && !"/?#@*".contains(c);
        let is_scheme =
            scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(in_scheme);
        let is_authority = names_a_host(authority) && authority.chars().all(plain);
        if !is_scheme || !is_authority {
            return Err(wrong());
        }
        let usual_port = match scheme {
            "http" => ":80",
            "https" => ":443",
            _ => return Ok(origin),
        };
        Ok(origin.strip_suffix(usual_port).unwrap_or(&origin).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sourced_value::{Origin, Raw};

    type Parse = fn(&SourcedValue) -> Result<Vec<String>, Problem>;

    fn parsed(parse: Parse, text: &str) -> Option<String> {
        let item = SourcedValue::new(Raw::Text(text.to_owned()), Origin::Default);
        parse(&SourcedValue::new(Raw::List(vec![item]), Origin::Default)).ok()?.pop()
    }

    #[test]
    fn hosts_have_no_scheme_and_no_port() {
        for (given, expected) in
            [("GPU-Box", "gpu-box"), ("10.0.0.7", "10.0.0.7"), ("[::1]", "[::1]"), ("*", "*")]
        {
            assert_eq!(parsed(hosts, given).as_deref(), Some(expected));
        }
        for bad in ["", "h:80", "[::1]:80", "http://h", "h/x", "a b", "u@h", "::1", "é"] {
            assert_eq!(parsed(hosts, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_host_and_a_port_are_both_needed() {
        let parsed = |text: &str| {
            host_port(&SourcedValue::new(Raw::Text(text.to_owned()), Origin::Default)).is_ok()
        };
        for good in ["aim-bridge.internal:61000", "0.0.0.0:61000", "[::1]:1", "h:65535"] {
            assert!(parsed(good), "{good}");
        }
        for bad in ["", "h", ":1", "h:", "h:0", "h:65536", "http://h:1", "h:1/x", "::1:1", "a b:1"]
        {
            assert!(!parsed(bad), "{bad}");
        }
    }

    #[test]
    fn origins_are_written_as_browsers_do() {
        for (given, expected) in [
            ("https://App.example.org", "https://app.example.org"),
            ("https://app.example.org:443", "https://app.example.org"),
            ("http://localhost:80", "http://localhost"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("https://a.example:80", "https://a.example:80"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("tauri://localhost", "tauri://localhost"),
            ("*", "*"),
        ] {
            assert_eq!(parsed(origins, given).as_deref(), Some(expected), "{given}");
        }
        let bad = [
            "",
            "null",
            "app.example.org",
            "https://",
            "https://a/",
            "https://a/b",
            "://a",
            "1x://a",
            "https://*.example.org",
            "https://u@a",
            "https://a:0",
            "https://a b",
            "https://a?q",
        ];
        for bad in bad {
            assert_eq!(parsed(origins, bad), None, "{bad}");
        }
    }
}
