//! Which web pages may use the HTTP APIs.
//!
//! A browser sends requests on behalf of any page that it shows, to loopback addresses too. `Host` reveals a page
//! that reaches this server under a name of its own (DNS rebinding), `Origin` a page of another site. Where tokens
//! are required, a page cannot send one that it does not have; where none is required, both headers are checked.

use std::net::{IpAddr, Ipv6Addr};

use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::error::Error;

/// How long a browser may remember the response to a preflight, in seconds. Browsers keep it for two hours at most; a
/// changed configuration should take effect sooner.
const PREFLIGHT_MAX_AGE_S: u32 = 600;
/// The headers that a page may send if it does not name them; `*` would not cover the first.
const USUAL_HEADERS: &str = "authorization, content-type, idempotency-key";
/// A page of a public site asks for these before it calls a loopback or a private address.
const REQUEST_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName =
    HeaderName::from_static("access-control-allow-private-network");
/// Stands for every host, or every origin.
const ANY: &str = "*";

/// The hosts and origins that requests may name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebAccess {
    /// Names of this server besides the loopback ones, without ports; `*` for any. They matter only where no token is
    /// required.
    pub allowed_hosts: Vec<String>,
    /// Whether any IP address is accepted as `Host`, for a server that others reach: a page reaches it under a name of
    /// its own only by DNS.
    pub any_address: bool,
    /// The origins of pages that may use the APIs, such as `https://app.example.org`; `*` for any.
    pub allowed_origins: Vec<String>,
}

/// The CORS headers of a response.
#[derive(Clone, Debug)]
pub(crate) struct Cors {
    /// `*`, or the origin of the request; `None` if it has none that is allowed.
    allowed: Option<HeaderValue>,
}

impl WebAccess {
    /// Refuses what a page of another site may have sent. For servers that require no token.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Error> {
        let host = self.check_host(request)?;
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
        if is_same_origin(origin, host) || self.allows_origin(origin) {
            return Ok(());
        }
        Err(Error::forbidden(format!(
            "a web page of `{}` may not use this server, which requires no token: add its origin to \
             allowed_origins in the server's configuration",
            origin.to_str().unwrap_or_default()
        )))
    }

    /// The host that the request names, if it is one of this server's.
    fn check_host<'a>(&self, request: &'a Request) -> Result<&'a str, Error> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(Error::bad_request("name this server in one `Host` header"));
        };
        let host = host.to_str().unwrap_or_default();
        // In the form that a proxy receives, the address names a host as well.
        let authority = request.uri().authority().map(|authority| authority.as_str());
        for given in [Some(host), authority].into_iter().flatten() {
            if !self.allows_host(given) {
                return Err(Error::forbidden(format!(
                    "`{given}` is not known as a name of this server, which requires no token: add it to \
                     allowed_hosts in the server's configuration, or use its address"
                )));
            }
        }
        Ok(host)
    }

    fn allows_host(&self, authority: &str) -> bool {
        let Some(host) = without_port(authority) else { return false };
        if let Some(address) = ip_address(host) {
            return self.any_address || address.is_loopback() || self.lists_host(host);
        }
        host.eq_ignore_ascii_case("localhost") || self.lists_host(host)
    }

    fn lists_host(&self, host: &str) -> bool {
        self.allowed_hosts.iter().any(|listed| listed == ANY || listed.eq_ignore_ascii_case(host))
    }

    fn allows_origin(&self, origin: &HeaderValue) -> bool {
        let listed = |listed: &String| {
            listed == ANY || listed.as_bytes().eq_ignore_ascii_case(origin.as_bytes())
        };
        self.allowed_origins.iter().any(listed)
    }

    /// The headers for the response to a request; `None` if no page of another site may use the APIs.
    pub(crate) fn cors(&self, headers: &HeaderMap) -> Option<Cors> {
        if self.allowed_origins.is_empty() {
            return None;
        }
        if self.allowed_origins.iter().any(|listed| listed == ANY) {
            return Some(Cors { allowed: Some(HeaderValue::from_static(ANY)) });
        }
        let origin = headers.get(ORIGIN).filter(|origin| self.allows_origin(origin));
        Some(Cors { allowed: origin.cloned() })
    }
}

impl Cors {
    /// The response to a preflight: a browser asks whether a page may send a request. It carries no token.
    pub(crate) fn preflight(&self, request: &Request) -> Option<Response> {
        let headers = request.headers();
        if *request.method() != Method::OPTIONS
            || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
            || !headers.contains_key(ORIGIN)
        {
            return None;
        }
        self.allowed.as_ref()?;
        let mut response = StatusCode::NO_CONTENT.into_response();
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(ANY));
        // Clients add headers of their own; what they say is checked like that of any other client.
        let requested = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let usual = || HeaderValue::from_static(USUAL_HEADERS);
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.unwrap_or_else(usual));
        answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_MAX_AGE_S));
        answer.append(VARY, HeaderValue::from_name(ACCESS_CONTROL_REQUEST_HEADERS));
        if headers.contains_key(REQUEST_PRIVATE_NETWORK) {
            answer.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
        }
        Some(response)
    }

    /// Adds the headers to a response.
    pub(crate) fn add_to(&self, mut response: Response) -> Response {
        let headers = response.headers_mut();
        if let Some(allowed) = &self.allowed {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANY));
        }
        if self.allowed.as_ref().is_none_or(|allowed| allowed != ANY) {
            // Or a cache would give one origin the response that another got.
            headers.append(VARY, HeaderValue::from_name(ORIGIN));
        }
        response
    }
}

/// Whether the page came from this server, under the name that the request uses for it.
fn is_same_origin(origin: &HeaderValue, host: &str) -> bool {
    let origin = origin.as_bytes();
    let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host.as_bytes()))
}

/// The host of `host`, `host:port`, `[::1]` or `[::1]:port`.
fn without_port(authority: &str) -> Option<&str> {
    let end = match authority.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => authority.find(':').unwrap_or(authority.len()),
    };
    let (host, port) = authority.split_at(end);
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let fine = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    fine.then_some(host)
}

fn ip_address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(rest) => {
            let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            Some(IpAddr::V6(address).to_canonical())
        }
        None => Some(IpAddr::V4(host.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn of(hosts: &[&str], origins: &[&str]) -> WebAccess {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        WebAccess {
            allowed_hosts: owned(hosts),
            any_address: false,
            allowed_origins: owned(origins),
        }
    }

    fn status(access: &WebAccess, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().uri("/api/v1/tasks");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let checked = access.check(&request.body(Body::empty()).unwrap());
        checked.map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    #[test]
    fn only_loopback_names_and_listed_hosts_are_accepted() {
        let access = of(&["gpu-box", "10.0.0.7"], &[]);
        let cases = [
            ("localhost", 200),
            ("LocalHost:8080", 200),
            ("127.0.0.1:8080", 200),
            ("127.8.9.1", 200),
            ("[::1]:8080", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("GPU-Box:1", 200),
            ("10.0.0.7:8080", 200),
            ("10.0.0.8", 403),
            ("0.0.0.0:8080", 403),
            ("evil.example", 403),
            ("localhost.evil.example:8080", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost:8080.evil.example", 403),
            ("localhost@evil.example", 403),
            ("evil.example:localhost", 403),
            ("[::1].evil.example", 403),
            ("[::1", 403),
            ("[::2]", 403),
            ("gpu-box.evil.example", 403),
            ("127.1", 403),
            ("2130706433", 403),
            ("", 403),
        ];
        for (host, expected) in cases {
            assert_eq!(status(&access, &[("host", host)]), expected, "{host}");
        }
        assert_eq!(status(&access, &[]), 400, "none");
        assert_eq!(status(&access, &[("host", "localhost"), ("host", "evil.example")]), 400, "two");
        assert_eq!(status(&of(&["*"], &[]), &[("host", "any.example")]), 200);
        let reached_by_others = WebAccess { any_address: true, ..WebAccess::default() };
        for (host, expected) in [("10.0.0.8:8080", 200), ("[fd00::1]", 200), ("evil.example", 403)]
        {
            assert_eq!(status(&reached_by_others, &[("host", host)]), expected, "{host}");
        }
    }

    #[test]
    fn only_pages_of_this_server_and_listed_origins_are_accepted() {
        let access = of(&[], &["https://app.example.org", "http://localhost:3000"]);
        let cases = [
            ("http://localhost:8080", 200),
            ("https://LOCALHOST:8080", 200),
            ("https://app.example.org", 200),
            ("http://localhost:3000", 200),
            ("http://localhost:3001", 403),
            ("http://localhost", 403),
            ("http://127.0.0.1:8080", 403),
            ("https://app.example.org.evil.example", 403),
            ("https://app.example.org:444", 403),
            ("https://evil.example", 403),
            ("null", 403),
            ("", 403),
            ("localhost:8080", 403),
        ];
        for (origin, expected) in cases {
            let headers = [("host", "localhost:8080"), ("origin", origin)];
            assert_eq!(status(&access, &headers), expected, "{origin}");
        }
        let rebound = [("host", "evil.example:8080"), ("origin", "http://evil.example:8080")];
        assert_eq!(status(&access, &rebound), 403, "the same origin, under a foreign name");
    }

    #[test]
    fn an_address_in_the_request_line_is_checked_too() {
        let request = |uri: &str| {
            let request = Request::builder().uri(uri).header("host", "localhost");
            of(&[], &[]).check(&request.body(Body::empty()).unwrap()).is_ok()
        };
        assert!(request("http://localhost/api/v1/tasks"));
        assert!(!request("http://evil.example/api/v1/tasks"));
    }
}
